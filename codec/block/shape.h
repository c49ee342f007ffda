/* SPDX-License-Identifier: BSD-3-Clause */
/* shape.h - how a tensor is cut into blocks, and how a decoded block reaches its destination. */
#ifndef LMC_SHAPE_H
#define LMC_SHAPE_H

#include "lmc.h"

#include <stdbool.h>

struct lmci_block_shape {
    unsigned word; /* bytes of a word; divides `bytes` */
    size_t bytes;  /* 1 to LMC_BLOCK_BYTES */
    bool dense;    /* encode to the smallest size, regardless of time */
    bool stream;   /* decode past the caches: the tensor exceeds them */
};

/* Content of this size has left the caches when used. */
#define LMCI_STREAM_LEAST ((uint64_t)16 << 20)

/* Bytes dealt or joined by one call of a kernel. Fits the second-level cache. */
#define LMCI_PIECE_BYTES ((size_t)64 << 10)
/* Bytes joined, hashed and copied together. Fits the first-level cache. */
#define LMCI_OUT_BYTES ((size_t)8 << 10)

/* Decoded bytes of block `index`, which exists. */
size_t lmci_block_bytes(uint64_t raw_bytes, uint64_t index);

/* `hasher` may be NULL. */
void lmci_hash_decoded(struct lmc_hasher *hasher, const void *data, size_t bytes);
/* Hashes a decoded piece and copies it to `dst`. */
void lmci_deliver(const struct lmci_block_shape *shape, const unsigned char *piece, size_t bytes, unsigned char *dst,
                  struct lmc_hasher *hasher);

#endif
