/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * class_lists.h - the classes that a block's words are dealt to, and the lists that hold them.
 *
 * block/classes.h explains classes and their coded form. The kernels deal words to the lists and join them again.
 */
#ifndef LMC_CLASS_LISTS_H
#define LMC_CLASS_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

#endif
