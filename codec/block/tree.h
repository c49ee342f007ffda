/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tree.h - a Huffman code laid out by node instead of by symbol, for vectors (FORMAT.md, 5.5).
 *
 * Nodes store one bit for each symbol that passes. Encoding partitions lists of bytes, decoding merges them, 64 symbols
 * at a time: a wavelet tree over a canonical code, as in PivCo-Huffman (arXiv 2606.05765).
 */
#ifndef LMC_TREE_H
#define LMC_TREE_H

#include "base/bytes.h"
#include "block/huffman.h"

/* A child is the number of a node, or ~leaf. */
struct lmci_tree_node {
    int16_t child[2];
    uint8_t pivot; /* least rank of the right child */
};

/* Leaves are in the order of codes; a byte's `rank` is its place there, or the escape's if it has no code. Ranks of at
 * least the pivot go right. */
struct lmci_tree {
    struct lmci_tree_node nodes[LMCI_SYMBOLS];
    uint16_t symbol[LMCI_SYMBOLS]; /* of each leaf */
    uint8_t rank[256];
    uint8_t byte[257]; /* of each rank; the last is for loops without branches */
};

/* Writable bytes past every list and buffer. */
#define LMCI_TREE_PAD ((size_t)64)

static inline size_t lmci_tree_scratch(size_t count)
{
    return 2 * count + 32 * LMCI_TREE_PAD;
}

/* Makes the tree of complete lengths. `with_ranks`: for encoding. */
void lmci_tree_make(const uint8_t lengths[LMCI_SYMBOLS], bool with_ranks, struct lmci_tree *tree);

/* Encodes `count` >= 1 symbols. Returns bytes, or 0 if they exceed `room`. */
size_t lmci_tree_encode(const struct lmci_tree *tree, const unsigned char *symbols, size_t count,
                        unsigned char *scratch, unsigned char *dst, size_t room);
/* Decodes `count` >= 1 symbols; `out` is LMCI_TREE_PAD bytes longer. False: damage. */
bool lmci_tree_decode(const struct lmci_tree *tree, struct lmci_reader *in, size_t count, unsigned char *scratch,
                      unsigned char *out);

#endif
