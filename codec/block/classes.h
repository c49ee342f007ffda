/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * classes.h - deltas of floats, coded given the exponent of the base.
 *
 * An update moves a weight by about as much whatever the weight, so the difference of two bit patterns is large where
 * the exponent is small. The decoder knows the base: elements fall into classes by its exponent, each with a shift that
 * brings its differences to one size. The difference shifted is a symbol of one byte, and each class has a code of its
 * own; the bits shifted out are stored beside it. The rare difference that is too large for its symbol, a change of
 * sign for one, is an outlier: a symbol that marks it stands in its class, and its word is stored whole (FORMAT.md,
 * 5.6).
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

/*
 * `base` is NULL for a block that is coded alone: by its distances from `center`, of which there is one class, so that
 * a symbol has the exponent and the first bits behind it. `hasher` may be NULL with a base.
 */
/* The coded block behind its method byte; the bytes written, or 0: they don't fit, or there are too many outliers. */
enum lmc_status lmci_classes_encode(const struct lmci_block_shape *shape, const struct lmci_classes *classes,
                                    const unsigned char *data, const unsigned char *base, struct lmc_hasher *hasher,
                                    unsigned char *dst, size_t room, size_t *written);
enum lmc_status lmci_classes_decode(const struct lmci_block_shape *shape, struct lmci_reader *in,
                                    const unsigned char *base, unsigned char *dst, struct lmc_hasher *hasher,
                                    const char **message);

#endif
