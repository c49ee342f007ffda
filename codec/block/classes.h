/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * classes.h - deltas of floats, encoded given the exponent of the base.
 *
 * An update moves all weights by similar amounts, so bit patterns differ more where the exponent is smaller. Elements
 * are dealt to classes by the base's exponent; the shift of a class brings its differences to one scale. The shifted
 * difference is a symbol of one byte with a code of the class; the bits below are stored separately. Too large
 * differences, such as changes of sign, are outliers: marked, and stored whole (FORMAT.md, 5.6).
 */
#ifndef LMC_CLASSES_H
#define LMC_CLASSES_H

#include "base/bytes.h"
#include "block/shape.h"
#include "kernels/class_lists.h"

static inline bool lmci_has_classes(unsigned word)
{
    return word == 2 || word == 4;
}

/* Encodes a block after its method byte. Without a `base`, words are encoded as distances from `center`, in one class.
 * `hasher` may be NULL only with a base. *written: bytes, or 0 if they do not fit or outliers are too many. */
enum lmc_status lmci_classes_encode(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                    const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                                    unsigned char *dst, size_t room, size_t *written);
enum lmc_status lmci_classes_decode(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                    const unsigned char *base, unsigned char *dst, struct lmc_hasher *hasher,
                                    const char **message);

#endif
