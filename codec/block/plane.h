/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plane.h - codes one plane: the bytes at one position of all words of a block.
 *
 * A plane is raw, constant, bits (those that vary, side by side), tree-coded, or sparse: flags of what isn't zero, then
 * those bytes, each a plane again. Where its bytes change from place to place it is cut into pieces, and where they
 * depend on those before them dealt to classes, each such a plane (FORMAT.md, 5.3). The kinds' values are part of the
 * format.
 */
#ifndef LMC_PLANE_H
#define LMC_PLANE_H

#include "base/bytes.h"
#include "block/tree.h"

enum lmci_plane_kind {
    LMCI_PLANE_RAW = 0,
    LMCI_PLANE_CONSTANT = 1,
    LMCI_PLANE_TREE = 2,
    LMCI_PLANE_SPARSE = 3,
    LMCI_PLANE_PIECES = 4,
    LMCI_PLANE_BITS = 5,
    LMCI_PLANE_CONTEXT = 6
};

/* A tree plane is cut into segments of 2^n symbols. */
#define LMCI_SEGMENT_LOG2_LEAST 10
#define LMCI_SEGMENT_LOG2_USUAL 15
#define LMCI_SEGMENT_LOG2_MOST  20

/* A plane is cut into pieces of 2^n bytes. */
#define LMCI_PIECE_LOG2_LEAST 14
#define LMCI_PIECE_LOG2_MOST  20

/* Classes by what lies a distance before. */
#define LMCI_CONTEXT_CLASSES  16
#define LMCI_CONTEXT_DISTANCE 64 /* the least */

/* A sparse plane's flags may be sparse again, and no deeper. */
#define LMCI_MAX_SPARSE_DEPTH 4

/* Room past the end of a decoded plane. */
#define LMCI_PLANE_PAD LMCI_TREE_PAD

/* Room that coding a plane of `bytes` bytes needs aside: lists of contexts, from any of which on a decoder may read as
 * if it had all bytes; flags and nonzero bytes of each depth; and a tree's lists. */
static inline size_t lmci_plane_scratch(size_t bytes)
{
    return 4 * bytes + 10 * LMCI_PLANE_PAD + lmci_tree_scratch(bytes);
}

/* Of symbols that were counted: the bits that vary, if these are all that there is to save; otherwise 0. */
unsigned lmci_plane_bits(const uint32_t counts[256], size_t counted);

/* Whether a plane's bytes, by a sample, are not worth coding. */
bool lmci_plane_is_noise(const unsigned char *plane, size_t bytes);

/* What coding planes takes. */
struct lmci_plane_coder {
    unsigned char *scratch; /* lmci_plane_scratch bytes for the longest plane */
    bool dense;             /* count all symbols, take the smallest whatever it costs in time */
    bool contexts;          /* look whether bytes depend on those before them */
};

/* Codes a plane (at least one byte) into at most `room` bytes; the bytes written, or 0 if they don't suffice. */
size_t lmci_plane_encode(const unsigned char *plane, size_t bytes, const struct lmci_plane_coder *coder,
                         unsigned char *dst, size_t room);

/* The same for a plane of two halves, of `half` bytes each, of which the second one depends on the first. */
size_t lmci_plane_encode_halves(const unsigned char *plane, size_t half, const struct lmci_plane_coder *coder,
                                unsigned char *dst, size_t room);

/*
 * Decodes a plane of `bytes` bytes. `plane` becomes its address: `own`, which has room for it and LMCI_PLANE_PAD more,
 * or the input itself when it is stored raw.
 */
enum lmc_status lmci_plane_decode(struct lmci_reader *in, size_t bytes, unsigned char *scratch, unsigned char *own,
                                  const unsigned char **plane, const char **message);

#endif
