/* SPDX-License-Identifier: BSD-3-Clause */
/* transform.h - bijections of words, applied before grouping bytes (FORMAT.md, 5.2). */
#ifndef LMC_TRANSFORM_H
#define LMC_TRANSFORM_H

enum lmci_transform {
    LMCI_KEEP = 0,     /* y = x */
    LMCI_ROTATE = 1,   /* rotated left by one: separates a float's sign from its exponent */
    LMCI_XOR = 2,      /* y = x ^ b */
    LMCI_SUBTRACT = 3, /* y = x - b, wrapping */
    LMCI_ZIGZAG = 4,   /* d = x - b, signed; y = 2d, or -2d - 1 if negative */
    LMCI_TRANSFORM_END = 5
};

#define LMCI_MAX_WORD 8

static inline int lmci_transform_needs_base(unsigned transform)
{
    return transform >= LMCI_XOR;
}

#endif
