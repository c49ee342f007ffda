/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tree.h - a Huffman code laid out for vectors: node by node instead of symbol by symbol.
 *
 * The bits of a code are stored by the node of its tree at which they decide: a node holds one bit for each symbol
 * that passes it, in their order. So coding a node is a partition of a list of bytes, decoding it is a merge of two
 * lists, and both work on 64 symbols at a time. The idea is that of a wavelet tree over a canonical code, as in
 * PivCo-Huffman (arXiv 2606.05765). The layout is specified in FORMAT.md, 5.5.
 */
#ifndef LMC_TREE_H
#define LMC_TREE_H

#include "base/bytes.h"
#include "block/huffman.h"

/* A child of a node: the number of a node, or ~leaf. */
struct lmci_tree_node {
    int16_t child[2];
    uint8_t pivot; /* the least rank of the right child */
};

/*
 * Leaves are numbered in the order of their codes. `rank` numbers the bytes in that order, those without a code of
 * their own standing where the escape is, so that a node sends a byte to the right if its rank is at least the pivot.
 */
struct lmci_tree {
    struct lmci_tree_node nodes[LMCI_SYMBOLS];
    uint16_t symbol[LMCI_SYMBOLS]; /* of each leaf */
    uint8_t rank[256];
    uint8_t byte[256]; /* of each rank */
};

/* Room past the end of every list and buffer that these functions work in. */
#define LMCI_TREE_PAD ((size_t)64)

/* Bytes of scratch that either way needs for a list of `count` symbols. */
static inline size_t lmci_tree_scratch(size_t count)
{
    return 2 * count + 32 * LMCI_TREE_PAD;
}

/* Makes the tree of complete lengths. `with_ranks`: for encoding. */
void lmci_tree_make(const uint8_t lengths[LMCI_SYMBOLS], bool with_ranks, struct lmci_tree *tree);

/* Writes the nodes for `count` symbols (at least 1); the bytes written, or 0 if `room` does not suffice. */
size_t lmci_tree_encode(const struct lmci_tree *tree, const unsigned char *symbols, size_t count,
                        unsigned char *scratch, unsigned char *dst, size_t room);
/* Reads the nodes of `count` symbols (at least 1) into `out`, LMCI_TREE_PAD bytes longer; false: damaged. */
bool lmci_tree_decode(const struct lmci_tree *tree, struct lmci_reader *in, size_t count, unsigned char *scratch,
                      unsigned char *out);

#endif
