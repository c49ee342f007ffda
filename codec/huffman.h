/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * huffman.h - canonical Huffman codes for bytes: made from counts, written, read back and checked.
 *
 * Code lengths are 1 to LMCI_MAX_BITS and complete (Kraft's sum is exactly one), so every sequence of bits decodes to
 * symbols and a decoding table has no holes. That needs two symbols; a plane with one is stored as a constant.
 */
#ifndef LMC_HUFFMAN_H
#define LMC_HUFFMAN_H

#include "bytes.h"
#include "kernels.h"

/* Most bytes that a table of code lengths takes when written. */
#define LMCI_LENGTHS_BOUND 128

/* Bits that `counts`, which add up to `total`, take at their order-0 entropy; an estimate within 0.02 bits a symbol. */
uint64_t lmci_entropy_bits(const uint32_t counts[256], uint64_t total);

/* Code lengths of at most LMCI_ENCODER_BITS for counts of which at least two aren't zero; 0 for absent symbols. */
void lmci_huffman_lengths(const uint32_t counts[256], uint8_t lengths[256]);
/* Canonical codes in the form that the encode kernel takes: length | code << 8, the code's first bit lowest. */
void lmci_huffman_codes(const uint8_t lengths[256], uint32_t codes[256]);

/* Writes lengths into dst (LMCI_LENGTHS_BOUND bytes of room); returns the bytes written. */
size_t lmci_huffman_put_lengths(const uint8_t lengths[256], unsigned char *dst);
/* Reads lengths; false unless they are well formed and complete. */
bool lmci_huffman_get_lengths(struct lmci_reader *in, uint8_t lengths[256]);

/* Fills a decoding table from complete lengths; `two` as well when `want_two`. */
void lmci_huffman_table(const uint8_t lengths[256], bool want_two, struct lmci_decode_table *table);

#endif
