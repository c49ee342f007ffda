/* SPDX-License-Identifier: BSD-3-Clause */
/* dtype.h - properties of element types that only the codec uses. */
#ifndef LMC_DTYPE_H
#define LMC_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of a word, the unit of encoding: 1, 2, 4 or 8; 0 for a value that is no dtype. */
unsigned lmci_dtype_word(uint32_t dtype);
/* Floats of at least 16 bits: the sign is above an exponent that shares its byte. */
bool lmci_dtype_is_float(uint32_t dtype);
/* Floats of at least 8 bits with a mantissa: differences depend on exponents. */
bool lmci_dtype_has_exponent(uint32_t dtype);

#endif
