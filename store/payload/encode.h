/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * encoding.h - a tensor's bytes become a frame in the pool: for the compactor, and for captures that write deltas; and
 * the arrays of an optimizer become a link.
 */
#ifndef LMCS_PAYLOAD_ENCODE_H
#define LMCS_PAYLOAD_ENCODE_H

#include "pages/space.h"
#include "payload/read.h"

struct lmcs_encoding {
    struct lmcs_pool *pool;
    struct lmcs_region *region;
    pthread_mutex_t *region_lock; /* NULL: the region is this thread's alone */
    bool serial;                  /* in the caller's thread alone */
    bool may_change;              /* others may write to `data` meanwhile: a torn tensor, but a sound frame */
    struct lmcs_tensor tensor;    /* its name, dtype and shape */
    uint64_t raw_bytes;
    const void *data;                    /* raw_bytes, row-major */
    const void *base;                    /* NULL: none */
    const struct lmcs_chain *base_chain; /* of the base, pinned */
    const struct lmcs_content *known;    /* NULL, or: when the data turns out to be that, nothing is made */
    const struct lmc_link_params *link;  /* NULL, or: a link is made, and data, base and known are not looked at ... */
    const struct lmcs_content *before;   /* ... from these contents, raw and pinned, ... */
    const struct lmcs_content *after;    /* ... to these */
    uint64_t most_bytes;                 /* not worthwhile when it is larger; 0: than what saves the 64th part */
    /* on output */
    struct lmcs_content made; /* on input its raw size; parts, sizes, bases, kind; the digest, when data may change */
    bool is_known;            /* it was */
    bool worthwhile;          /* false: a frame is not smaller, or it is known, and nothing was made */
};

/* Encodes, writes, and verifies what was written by decoding it. */
enum lmcs_status lmcs_encoding_run(struct lmcs_encoding *encoding, struct lmcs_error *error);
/* Reads a payload back and decodes it. */
enum lmcs_status lmcs_encoding_verify(const struct lmcs_encoding *encoding, struct lmcs_error *error);

#endif
