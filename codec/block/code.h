/* SPDX-License-Identifier: BSD-3-Clause */
/* code.h - a Huffman code for a plane: planned from counts, and written with its segments (FORMAT.md, 5.4 and 5.5). */
#ifndef LMC_CODE_H
#define LMC_CODE_H

#include "block/tree.h"

struct lmci_code {
    uint8_t lengths[LMCI_SYMBOLS];
    unsigned char table[LMCI_LENGTHS_BOUND];
    size_t table_bytes;
    unsigned leaves;
    uint64_t bits; /* of as many symbols as were counted */
    size_t counted;
};

/* `counts`, of `bytes` bytes, sum to `counted`. Rare bytes are escaped, and others unless all were `seen`. */
void lmci_code_plan(const uint32_t counts[256], size_t counted, size_t bytes, bool dense, bool seen,
                    struct lmci_code *code);

/* Estimated bytes of a plane with its table. */
size_t lmci_code_estimate(const struct lmci_code *code, size_t bytes);

/* Writes a plane with its kind. `tree` is the code's, with ranks. Returns bytes, or 0 if they exceed `room`. */
size_t lmci_code_put(const struct lmci_code *code, const struct lmci_tree *tree, const unsigned char *plane,
                     size_t bytes, unsigned char *scratch, unsigned char *dst, size_t room);

#endif
