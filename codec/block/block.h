/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * block.h - encodes and decodes one block: transforms words, groups bytes into planes, encodes each.
 *
 * A block that would grow is stored raw.
 */
#ifndef LMC_BLOCK_H
#define LMC_BLOCK_H

#include "block/scheme.h"
#include "block/shape.h"

/* Writes at most lmc_block_bound(shape->bytes) bytes. Fails only with LMC_NO_MEMORY. */
enum lmc_status lmci_block_encode(const struct lmci_block_shape *shape, const struct lmci_scheme *scheme,
                                  const unsigned char *data, const unsigned char *base, unsigned char *dst,
                                  size_t *coded_bytes, struct lmc_hash *content);
/* `base` and `content` may be NULL; a block that needs a base is then damaged. *content: hash of the decoded bytes. */
enum lmc_status lmci_block_decode(const struct lmci_block_shape *shape, const unsigned char *coded, size_t coded_bytes,
                                  const unsigned char *base, unsigned char *dst, struct lmc_hash *content,
                                  const char **message);

#endif
