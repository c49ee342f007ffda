/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * keyed.h - deltas of floats of 1 and 8 bytes, encoded given the exponent of the base.
 *
 * classes.h requires words of 2 and 4 bytes. A difference of 1-byte floats fits into 2; of 8-byte floats, 4 bytes hold
 * everything that depends on the exponent; the others are planes, of noise below and zeros above. Classes encode
 * stand-in words of 2 or 4 bytes, against stand-in bases with the same keys (FORMAT.md, 5.8).
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

/* Bytes of a stand-in. */
static inline unsigned lmci_keyed_word(unsigned word)
{
    return word == 1 ? 2 : 4;
}

/* Encodes a block after its method byte, with `low` of the planes below the difference. *written: bytes, or 0 if they
 * do not fit or outliers are too many. */
enum lmc_status lmci_keyed_encode(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                  unsigned low, const unsigned char *data, const unsigned char *base,
                                  unsigned char *dst, size_t room, size_t *written);
enum lmc_status lmci_keyed_decode(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                  const unsigned char *base, unsigned char *dst, const char **message);

#endif
