/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * classes.h - deltas of floats given the base's exponent (FORMAT.md, 5.6).
 *
 * An update moves all weights by similar amounts: bit patterns differ more where the exponent is smaller. Elements are
 * dealt to classes by the exponent, and each class's shift brings differences to one scale: a symbol of one byte, coded
 * by class, and the bits below it, stored separately. Outliers, such as changes of sign, are marked and stored whole.
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

/* Encodes a block after its method byte. Without a `base`, words are distances from `center`, in one class. `hasher`
 * may be NULL only with a base. *written 0: no room, or too many outliers. */
enum lmc_status lmci_classes_encode(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                    const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                                    unsigned char *dst, size_t capacity, size_t *written);
enum lmc_status lmci_classes_decode(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                    const unsigned char *base, unsigned char *dst, struct lmc_hasher *hasher,
                                    const char **message);

#endif
