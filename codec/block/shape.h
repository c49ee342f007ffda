/* SPDX-License-Identifier: BSD-3-Clause */
/* shape.h - how a tensor is cut into blocks, and how a decoded block reaches its destination. */
#ifndef LMC_SHAPE_H
#define LMC_SHAPE_H

#include "lmc.h"

#include <stdbool.h>

/* A block's bytes and the words that they consist of. */
struct lmci_block_shape {
    unsigned word; /* bytes of a word; divides `bytes` */
    size_t bytes;  /* 1 to LMC_BLOCK_BYTES */
    bool dense;    /* encode to the smallest size, however long it takes */
    bool stream;   /* decode past the caches: the tensor is larger than they are */
};

/* Content of at least this size is no longer in the caches when it is used. */
#define LMCI_STREAM_LEAST ((uint64_t)16 << 20)

/* Bytes dealt to classes, or joined, in one call of a kernel; each call has a cost. Fits the second-level cache. */
#define LMCI_PIECE_BYTES ((size_t)64 << 10)
/* Bytes joined, hashed and copied to the destination together. Fits the first-level cache. */
#define LMCI_OUT_BYTES ((size_t)8 << 10)

/* Decoded bytes of block `index`, which exists. */
size_t lmci_block_bytes(uint64_t raw_bytes, uint64_t index);

/* Hashes decoded bytes; a NULL `hasher` hashes nothing. */
void lmci_hash_decoded(struct lmc_hasher *hasher, const void *data, size_t bytes);
/* Hashes a piece of decoded content (see lmci_hash_decoded) and copies it to `dst`. */
void lmci_deliver(const struct lmci_block_shape *shape, const unsigned char *piece, size_t bytes, unsigned char *dst,
                  struct lmc_hasher *hasher);

#endif
