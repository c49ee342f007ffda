/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * huffman.h - code lengths of canonical Huffman codes for bytes.
 *
 * Lengths are 1 to LMCI_MAX_BITS and complete (the Kraft sum is exactly 1): every sequence of bits decodes. At least
 * two symbols have a code; the escape is for bytes without one.
 */
#ifndef LMC_HUFFMAN_H
#define LMC_HUFFMAN_H

#include "base/bytes.h"

#define LMCI_SYMBOLS       257
#define LMCI_ESCAPE        256

#define LMCI_MAX_BITS      12 /* the format's longest code */

#define LMCI_LENGTHS_BOUND 129

/* Order-0 entropy of counts that sum to `total`; within 0.02 bits a symbol. */
uint64_t lmci_entropy_bits(const uint32_t *counts, unsigned symbols, uint64_t total);

/* The same from a sample: corrects the entropy, which a sample makes too low (Miller and Madow). */
uint64_t lmci_expected_bits(const uint32_t counts[256], uint64_t total);

/* Bits of a symbol that was counted `count` times of `total`, in parts of a bit. */
#define LMCI_COST_BIT 256u
uint16_t lmci_cost(uint32_t count, uint64_t total);

/* Computes code lengths. At least two counts are not zero. Absent symbols get 0. Returns the bits of all symbols. */
uint64_t lmci_huffman_lengths(const uint32_t counts[LMCI_SYMBOLS], uint8_t lengths[LMCI_SYMBOLS]);

/* Writes the lengths. Returns bytes, at most LMCI_LENGTHS_BOUND. */
size_t lmci_huffman_put_lengths(const uint8_t lengths[LMCI_SYMBOLS], unsigned char *dst);
/* Reads the lengths. False: they are malformed or incomplete. */
bool lmci_huffman_get_lengths(struct lmci_reader *in, uint8_t lengths[LMCI_SYMBOLS]);

#endif
