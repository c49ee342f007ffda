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

#include "block.h"
#include "bytes.h"

#define LMCI_MAX_CLASSES 16
#define LMCI_MARK        128u /* the symbol of an outlier */

/* Room past the end of every list here. */
#define LMCI_CLASS_PAD ((size_t)64)

/* Class c has the keys from first[c] to first[c + 1] - 1; a key is a byte of the base's exponent, sign excluded. */
struct lmci_classes {
    unsigned count;                  /* 1 to LMCI_MAX_CLASSES */
    uint8_t first[LMCI_MAX_CLASSES]; /* ascending; first[0] is 0 */
    uint8_t shift[LMCI_MAX_CLASSES]; /* bits; multiples of 4, at most 8 * word - 8 */
    uint8_t finer[LMCI_MAX_CLASSES]; /* by how much the shift is smaller than what the lengths of differences ask for */
    uint32_t center;                 /* what stands for each word of a base where there is none ... */
    bool rotate;                     /* ... and whether the words are rotated to the left then */
    bool fitted;                     /* the shifts are the block's own already */
};

/* What a block is dealt to, and put together from: the kernels advance the lists. */
struct lmci_class_lists {
    unsigned char *symbols[LMCI_MAX_CLASSES];
    unsigned char *low[3];   /* low[k]: the k-th byte below the symbol, of those whose shift is at least 8 * k + 8 */
    unsigned char *nibbles;  /* the last four bits of those whose shift is 4 more than whole bytes, one in a byte */
    unsigned char *outliers; /* their words; they are not in the lists of low bits */
};

static inline unsigned lmci_class_key(unsigned word, uint32_t base)
{
    return (word == 2 ? base >> 7 : base >> 23) & 255;
}

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
