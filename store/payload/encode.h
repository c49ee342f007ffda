/* SPDX-License-Identifier: BSD-3-Clause */
/* payload/encode.h - encodes a tensor as a frame in the pool, or the arrays of an optimizer step as a link. */
#ifndef LMCS_PAYLOAD_ENCODE_H
#define LMCS_PAYLOAD_ENCODE_H

#include "pages/space.h"
#include "payload/read.h"

struct lmcs_encoding {
    struct lmcs_pool *pool;
    struct lmcs_region *region;
    pthread_mutex_t *region_lock; /* NULL: the region is this thread's alone */
    struct lmcs_workers *workers; /* NULL: the pool's */
    bool write_behind;            /* start the kernel's writeback: the caller waits until all is durable */
    bool serial;                  /* in the caller's thread alone */
    struct lmcs_tensor tensor;
    uint64_t raw_bytes;
    const void *data;                    /* raw_bytes of it, row-major */
    const void *base;                    /* NULL: none */
    const struct lmcs_chain *base_chain; /* pinned */
    const struct lmc_link_params *link;  /* makes a link (data and base are unused) ... */
    const struct lmcs_content *before;   /* ... from these, raw and pinned, ... */
    const struct lmcs_content *after;    /* ... to these. Both NULL: the link's arrays are in memory alone */
    struct lmc_hash *after_digests;      /* then: of the arrays after the step, or room for them */
    bool finds_digests;                  /* after_digests receive those that decoding confirmed */
    const struct lmc_hash *after_hashes[LMC_MAX_BASES]; /* of the blocks of each; NULL: unknown */
    bool in_place;       /* the verification may change link->before, which is in memory, to `after` */
    uint64_t most_bytes; /* largest payload worthwhile; 0: one that saves a 64th */
    /* on output */
    struct lmcs_content made; /* input: raw size; output: parts, sizes, bases, kind */
    bool worthwhile;          /* false: nothing made: not smaller */
    uint32_t link_plan;       /* of a link (struct lmc_link_params) */
};

/* Writes, then verifies by decoding the written bytes. */
enum lmcs_status lmcs_encoding_run(struct lmcs_encoding *encoding, struct lmcs_error *error);
/* Reads back from the medium and decodes. */
enum lmcs_status lmcs_encoding_verify(const struct lmcs_encoding *encoding, struct lmcs_error *error);

#endif
