/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * block.h - codes one block: its words transformed, their bytes grouped into planes, each plane coded by itself.
 *
 * The first byte of a coded block is its method (FORMAT.md, 5.1); a block that would grow is stored raw behind it.
 * The content is hashed on the way, piece by piece while a piece is in the cache.
 */
#ifndef LMC_BLOCK_H
#define LMC_BLOCK_H

#include "lmc.h"
#include "transform.h"

#include <stdbool.h>

enum lmci_method {
    LMCI_METHOD_RAW = 0,
    LMCI_METHOD_PLANES = 1,
    LMCI_METHOD_CLASSES = 2,
    LMCI_METHOD_VALUES = 3,
    LMCI_METHOD_KEYED = 4,
    LMCI_METHOD_COPIES = 5
};

/* A block's bytes and how they are seen. */
struct lmci_block_shape {
    unsigned word; /* bytes of a word; divides `bytes` */
    size_t bytes;  /* 1 to LMC_BLOCK_BYTES */
    bool dense;    /* encode to the smallest, whatever time it takes */
    bool stream;   /* decode past the caches: the tensor is larger than they are */
};

struct lmci_scheme;

/* Writes at most lmc_block_bound(shape->bytes) bytes; LMC_NO_MEMORY is the only failure. */
enum lmc_status lmci_block_encode(const struct lmci_block_shape *shape, const struct lmci_scheme *scheme,
                                  const unsigned char *data, const unsigned char *base, unsigned char *dst,
                                  size_t *coded_bytes, struct lmc_hash *content);
/*
 * `base` is NULL when the frame has none; a block that asks for one is damaged then. `content` gets the hash of what
 * was decoded; NULL: nothing is hashed.
 */
enum lmc_status lmci_block_decode(const struct lmci_block_shape *shape, const unsigned char *coded, size_t coded_bytes,
                                  const unsigned char *base, unsigned char *dst, struct lmc_hash *content,
                                  const char **message);

/* Bytes of content that are hashed and split into planes at once: in the first-level cache. */
#define LMCI_SPLIT_BYTES ((size_t)4 << 10)
/* Bytes that are dealt to classes, or joined, at once; there is more to prepare: in the second-level cache. */
#define LMCI_PIECE_BYTES ((size_t)64 << 10)
/* Bytes that are put together, hashed and copied to where they belong, on the way out: in the first-level cache. */
#define LMCI_OUT_BYTES ((size_t)8 << 10)

/* Content of so many bytes won't be in the caches when it is used, wherever it is written. */
#define LMCI_STREAM_LEAST ((uint64_t)16 << 20)

/* Hashes a piece of decoded content (`hasher` NULL: doesn't) and copies it to where it belongs. */
void lmci_deliver(const struct lmci_block_shape *shape, const unsigned char *piece, size_t bytes, unsigned char *dst,
                  struct lmc_hasher *hasher);

#endif
