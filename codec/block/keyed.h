/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * keyed.h - deltas of floats of 1 and of 8 bytes, coded given the exponent of the base.
 *
 * Classes (classes.h) know words of 2 and 4 bytes. A difference of two floats of 1 byte fits into 2; of one of 8 bytes,
 * four hold all that depends on the base's exponent, and the other four are planes, of noise below or of zeros above.
 * So each word stands as a shorter or longer one, beside a base that has the same key, and that is coded by classes
 * (FORMAT.md, 5.8).
 */
#ifndef LMC_KEYED_H
#define LMC_KEYED_H

#include "base/bytes.h"
#include "block/shape.h"
#include "kernels/class_lists.h"

#define LMCI_KEYED_PLANES   4 /* of words of 8 bytes */
#define LMCI_KEYED_LOW_MOST 4

static inline bool lmci_has_keys(unsigned word)
{
    return word == 1 || word == 8;
}

/* Bytes of the word that stands for one of so many. */
static inline unsigned lmci_keyed_word(unsigned word)
{
    return word == 1 ? 2 : 4;
}

/* The coded block behind its method byte, of which `low` of the planes stand below the difference; the bytes written,
 * or 0: they don't fit, or there are too many outliers. */
enum lmc_status lmci_keyed_encode(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                  unsigned low, const unsigned char *data, const unsigned char *base,
                                  unsigned char *dst, size_t room, size_t *written);
enum lmc_status lmci_keyed_decode(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                  const unsigned char *base, unsigned char *dst, const char **message);

#endif
