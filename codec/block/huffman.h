/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * huffman.h - code lengths of canonical Huffman codes for bytes: computes, writes, reads and checks them.
 *
 * Code lengths are 1 to LMCI_MAX_BITS and complete (the Kraft sum is exactly 1), so every sequence of bits decodes to
 * symbols. A complete code has at least two symbols; a plane with one is stored as a constant. Besides the bytes there
 * is one more symbol, the escape, for all bytes without a code.
 */
#ifndef LMC_HUFFMAN_H
#define LMC_HUFFMAN_H

#include "base/bytes.h"

#define LMCI_SYMBOLS  257
#define LMCI_ESCAPE   256

#define LMCI_MAX_BITS 12 /* the format's longest code */

/* The largest size of a written table. */
#define LMCI_LENGTHS_BOUND 129

/* Bits of `symbols` counts, whose sum is `total`, at their order-0 entropy. An estimate within 0.02 bits a symbol. */
uint64_t lmci_entropy_bits(const uint32_t *counts, unsigned symbols, uint64_t total);

/* The same for counts from a sample of more data. Corrects the entropy of a sample, which is too low (Miller and
 * Madow), for a code made from it. */
uint64_t lmci_expected_bits(const uint32_t counts[256], uint64_t total);

/* Computes lengths of at most LMCI_MAX_BITS. At least two counts are not zero. Absent symbols have length 0. */
void lmci_huffman_lengths(const uint32_t counts[LMCI_SYMBOLS], uint8_t lengths[LMCI_SYMBOLS]);

/* Writes at most LMCI_LENGTHS_BOUND bytes and returns their number. */
size_t lmci_huffman_put_lengths(const uint8_t lengths[LMCI_SYMBOLS], unsigned char *dst);
/* Returns false unless the lengths are well formed and complete. */
bool lmci_huffman_get_lengths(struct lmci_reader *in, uint8_t lengths[LMCI_SYMBOLS]);

#endif
