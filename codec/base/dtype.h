/* SPDX-License-Identifier: BSD-3-Clause */
/* dtype.h - properties of dtypes for the codec. */
#ifndef LMC_DTYPE_H
#define LMC_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of a word, the unit of encoding: 1, 2, 4 or 8; 0 for no dtype. */
unsigned lmci_dtype_word(uint32_t dtype);
/* Whether it is a float of at least 16 bits, whose sign precedes an exponent. */
bool lmci_dtype_is_float(uint32_t dtype);
/* Whether it is a float of at least 8 bits with a mantissa. */
bool lmci_dtype_has_exponent(uint32_t dtype);

#endif
