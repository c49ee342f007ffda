/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pairs.h - planes of small numbers, two in a byte (FORMAT.md, 5.3).
 *
 * A Huffman code gives each symbol a whole bit at least. A code for pairs loses half of that.
 */
#ifndef LMC_PAIRS_H
#define LMC_PAIRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Estimated bytes as pairs, or SIZE_MAX if too many would be escapes. */
size_t lmci_pairs_estimate(const uint32_t counts[256], size_t counted, size_t bytes);

/* Packs a plane into (bytes + 1) / 2 pairs. Returns the number of escapes, or SIZE_MAX if `room` has too few bytes. */
size_t lmci_pairs_pack(const unsigned char *plane, size_t bytes, unsigned char *pairs, unsigned char *escapes,
                       size_t room);
/* The inverse. False: other than `count` escapes, or an unused half byte that is not zero. */
bool lmci_pairs_unpack(const unsigned char *pairs, size_t bytes, const unsigned char *escapes, size_t count,
                       unsigned char *plane);

#endif
