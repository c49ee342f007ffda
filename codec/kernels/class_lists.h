/* SPDX-License-Identifier: BSD-3-Clause */
/* class_lists.h - classes of words (block/classes.h), and their lists. */
#ifndef LMC_CLASS_LISTS_H
#define LMC_CLASS_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LMCI_MAX_CLASSES 16
#define LMCI_MARK        128u /* an outlier's symbol */

/* Writable bytes past every list. */
#define LMCI_CLASS_PAD ((size_t)64)

/* Class c has the keys first[c] to first[c + 1] - 1. A key is 8 bits of the base's exponent. */
struct lmci_classes {
    unsigned count;                  /* 1 to LMCI_MAX_CLASSES */
    uint8_t first[LMCI_MAX_CLASSES]; /* ascending; first[0] is 0 */
    uint8_t shift[LMCI_MAX_CLASSES]; /* bits; multiples of 4, at most 8 * word - 8 */
    uint8_t finer[LMCI_MAX_CLASSES]; /* bits below the shift that lengths suggest */
    uint32_t center;                 /* without a base: the value in its place */
    bool rotate;                     /* without a base: rotate words left */
    bool fitted;                     /* shifts were chosen for this block */
};

/* Lists of a block's elements. Kernels advance the pointers. */
struct lmci_class_lists {
    unsigned char *symbols[LMCI_MAX_CLASSES];
    unsigned char *low[3];   /* low[k]: byte k below the symbol, of words whose shift is at least 8 * k + 8 */
    unsigned char *nibbles;  /* the last 4 bits, a byte each, of words whose shift is 4 more than whole bytes */
    unsigned char *outliers; /* whole words, absent from the lists above */
};

static inline unsigned lmci_class_key(unsigned word, uint32_t base)
{
    return (word == 2 ? base >> 7 : base >> 23) & 255;
}

#endif
