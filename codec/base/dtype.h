/* SPDX-License-Identifier: BSD-3-Clause */
/* dtype.h - what the coder asks of an element type beyond the public functions. */
#ifndef LMC_DTYPE_H
#define LMC_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of the word that elements are transformed and split by: 1, 2, 4 or 8; 0 for no dtype. */
unsigned lmci_dtype_word(uint32_t dtype);
/* Whether the words are floats of 16 bits or more. */
bool lmci_dtype_is_float(uint32_t dtype);
/* Whether the words are floats, of 8 bits too, whose differences depend on their exponents. */
bool lmci_dtype_has_exponent(uint32_t dtype);

#endif
