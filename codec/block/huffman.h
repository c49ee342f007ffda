/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * huffman.h - code lengths of canonical Huffman codes for bytes: made from counts, written, read back and checked.
 *
 * Code lengths are 1 to LMCI_MAX_BITS and complete (Kraft's sum is exactly one), so every sequence of bits decodes to
 * symbols. That needs two symbols; a plane with one is stored as a constant. One symbol more than the bytes, the
 * escape, stands for all bytes that have no code of their own.
 */
#ifndef LMC_HUFFMAN_H
#define LMC_HUFFMAN_H

#include "base/bytes.h"

#define LMCI_SYMBOLS  257
#define LMCI_ESCAPE   256

#define LMCI_MAX_BITS 12 /* longest code that the format allows */

/* Most bytes that a table of code lengths takes when written. */
#define LMCI_LENGTHS_BOUND 129

/* Bits that the counts of so many symbols, which add up to `total`, take at their order-0 entropy; an estimate within
 * 0.02 bits a symbol. */
uint64_t lmci_entropy_bits(const uint32_t *counts, unsigned symbols, uint64_t total);

/* The same for 256 symbols that were counted in a sample and stand for more: a sample has too little entropy (Miller
 * and Madow), and a code that was made from it fits the rest less well. */
uint64_t lmci_expected_bits(const uint32_t counts[256], uint64_t total);

/* Code lengths of at most LMCI_MAX_BITS for counts of which at least two aren't zero; 0 for absent symbols. */
void lmci_huffman_lengths(const uint32_t counts[LMCI_SYMBOLS], uint8_t lengths[LMCI_SYMBOLS]);

/* Writes lengths into dst (LMCI_LENGTHS_BOUND bytes of room); returns the bytes written. */
size_t lmci_huffman_put_lengths(const uint8_t lengths[LMCI_SYMBOLS], unsigned char *dst);
/* Reads lengths; false unless they are well formed and complete. */
bool lmci_huffman_get_lengths(struct lmci_reader *in, uint8_t lengths[LMCI_SYMBOLS]);

#endif
