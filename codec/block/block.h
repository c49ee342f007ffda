/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * block.h - codes one block: its words transformed, their bytes grouped into planes, each plane coded by itself.
 *
 * The first byte of a coded block is its method (FORMAT.md, 5.1); a block that would grow is stored raw behind it.
 * The content is hashed on the way, piece by piece while a piece is in the cache.
 */
#ifndef LMC_BLOCK_H
#define LMC_BLOCK_H

#include "block/scheme.h"
#include "block/shape.h"

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

#endif
