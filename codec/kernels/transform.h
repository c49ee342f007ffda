/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transform.h - what is done to the words of a block before their bytes are grouped into planes.
 *
 * The values are part of the format (FORMAT.md, 5.2). Each is a bijection of the word once the base is known, so a
 * decoder needs no more than the byte that names it.
 */
#ifndef LMC_TRANSFORM_H
#define LMC_TRANSFORM_H

enum lmci_transform {
    LMCI_KEEP = 0,     /* y = x */
    LMCI_ROTATE = 1,   /* y = x rotated left by one: a float's sign leaves its exponent's byte */
    LMCI_XOR = 2,      /* y = x ^ b */
    LMCI_SUBTRACT = 3, /* y = x - b, wrapping */
    LMCI_ZIGZAG = 4,   /* d = x - b, wrapping, signed; y = 2d, or -2d - 1 when negative: small either way */
    LMCI_TRANSFORM_END = 5
};

#define LMCI_MAX_WORD 8

static inline int lmci_transform_needs_base(unsigned transform)
{
    return transform >= LMCI_XOR;
}

#endif
