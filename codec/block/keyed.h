/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * keyed.h - deltas of floats of 1 and 8 bytes given the base's exponent (FORMAT.md, 5.8).
 *
 * Classes need words of 2 or 4 bytes, so each word is replaced by a stand-in of that size, and the base's word by one
 * with the same key. For words of 8 bytes, the stand-in holds the middle of the difference, which depends on the
 * exponent; the other bytes become planes: noise below, zeros above.
 */
#ifndef LMC_KEYED_H
#define LMC_KEYED_H

#include "base/bytes.h"
#include "block/shape.h"
#include "kernels/class_lists.h"

#define LMCI_KEYED_PLANES   4 /* for words of 8 bytes */
#define LMCI_KEYED_LOW_MOST 4

static inline bool lmci_has_keys(unsigned word)
{
    return word == 1 || word == 8;
}

static inline unsigned lmci_keyed_word(unsigned word)
{
    return word == 1 ? 2 : 4;
}

/* Encodes a block after its method byte, with `low` planes below the difference. *written 0: no room, or too many
 * outliers. */
enum lmc_status lmci_keyed_encode(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                  unsigned low, const unsigned char *data, const unsigned char *base,
                                  unsigned char *dst, size_t capacity, size_t *written);
enum lmc_status lmci_keyed_decode(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                  const unsigned char *base, unsigned char *dst, const char **message);

#endif
