/* SPDX-License-Identifier: BSD-3-Clause */
/* shape.h - sizes and delivery of blocks. */
#ifndef LMC_SHAPE_H
#define LMC_SHAPE_H

#include "lmc.h"

#include <stdbool.h>

struct lmci_codes;

struct lmci_block_shape {
    unsigned word;                  /* divides `bytes` */
    size_t bytes;                   /* 1 to LMC_BLOCK_BYTES */
    bool dense;                     /* encode to the smallest size */
    bool pairs;                     /* encode planes in pairs, too */
    bool stream;                    /* decode past the caches */
    const struct lmci_codes *codes; /* encode with these where they fit, or NULL */
};

/* Decoded content this long leaves the caches before it is used. */
#define LMCI_STREAM_LEAST ((uint64_t)16 << 20)

/* Joined, hashed and copied together; fits the first-level cache. */
#define LMCI_OUT_BYTES ((size_t)8 << 10)

/* Decoded bytes of block `index`, which exists. */
size_t lmci_block_bytes(uint64_t raw_bytes, uint64_t index);

/* Hashes decoded bytes. `hasher` may be NULL. */
void lmci_hash_decoded(struct lmc_hasher *hasher, const void *data, size_t bytes);
/* Hashes and copies a decoded piece. */
void lmci_deliver(const struct lmci_block_shape *shape, const unsigned char *piece, size_t bytes, unsigned char *dst,
                  struct lmc_hasher *hasher);

#endif
