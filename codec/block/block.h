/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * block.h - encodes and decodes one block: transforms its words, groups their bytes into planes, encodes each plane.
 *
 * The first byte of a coded block is its method (FORMAT.md, 5.1). A block that would grow is stored raw. Content is
 * hashed piece by piece while a piece is in the cache.
 */
#ifndef LMC_BLOCK_H
#define LMC_BLOCK_H

#include "block/scheme.h"
#include "block/shape.h"

/* Writes at most lmc_block_bound(shape->bytes) bytes. The only error is LMC_NO_MEMORY. */
enum lmc_status lmci_block_encode(const struct lmci_block_shape *shape, const struct lmci_scheme *scheme,
                                  const unsigned char *data, const unsigned char *base, unsigned char *dst,
                                  size_t *coded_bytes, struct lmc_hash *content);
/* `base` is NULL if the frame has none; a block that needs one is then damaged. *content receives the hash of the
 * decoded bytes; with a NULL `content`, nothing is hashed. */
enum lmc_status lmci_block_decode(const struct lmci_block_shape *shape, const unsigned char *coded, size_t coded_bytes,
                                  const unsigned char *base, unsigned char *dst, struct lmc_hash *content,
                                  const char **message);

#endif
