/* SPDX-License-Identifier: BSD-3-Clause */
/* plane.h - one plane: the bytes at one position of all words of a block (FORMAT.md, 5.3). */
#ifndef LMC_PLANE_H
#define LMC_PLANE_H

#include "base/bytes.h"
#include "block/code.h"

enum lmci_plane_kind {
    LMCI_PLANE_RAW = 0,
    LMCI_PLANE_CONSTANT = 1,
    LMCI_PLANE_TREE = 2,
    LMCI_PLANE_SPARSE = 3,
    LMCI_PLANE_PIECES = 4,
    LMCI_PLANE_BITS = 5,
    LMCI_PLANE_CONTEXT = 6,
    LMCI_PLANE_PAIRS = 7
};

/* Log2 of symbols in a segment. */
#define LMCI_SEGMENT_LOG2_LEAST 10
#define LMCI_SEGMENT_LOG2_USUAL 15
#define LMCI_SEGMENT_LOG2_MOST  20

/* Log2 of bytes in a piece. */
#define LMCI_PIECE_LOG2_LEAST 14
#define LMCI_PIECE_LOG2_MOST  20

#define LMCI_MAX_SPARSE_DEPTH 4

/* Writable bytes past a decoded plane. */
#define LMCI_PLANE_PAD LMCI_TREE_PAD

/* Bytes of scratch: for lists of contexts, from any of which a decoder may read `bytes` bytes; for flags and nonzero
 * bytes of each depth; for lists of a tree. */
static inline size_t lmci_plane_scratch(size_t bytes)
{
    return 4 * bytes + 10 * LMCI_PLANE_PAD + lmci_tree_scratch(bytes);
}

/* Returns the varying bits if packing them saves as much as any code, otherwise 0. */
unsigned lmci_plane_bits(const uint32_t counts[256], size_t counted);

/* Whether a sample shows that encoding does not pay. */
bool lmci_plane_is_noise(const unsigned char *plane, size_t bytes);

struct lmci_plane_coder {
    unsigned char *scratch; /* lmci_plane_scratch bytes for the longest plane */
    bool dense;             /* count more and choose the smallest form */
    bool contexts;
    bool pairs; /* the frame's version has them */
};

/* Encodes at least one byte. Returns bytes, or 0 if they exceed `room`. */
size_t lmci_plane_encode(const unsigned char *plane, size_t bytes, const struct lmci_plane_coder *coder,
                         unsigned char *dst, size_t room);

/* The same for symbols of a class, which are no noise and have no contexts. */
size_t lmci_plane_encode_symbols(const unsigned char *symbols, size_t count, const struct lmci_plane_coder *coder,
                                 unsigned char *dst, size_t room);

/* The same for a plane of which few bytes, but at least one, are not zero. */
size_t lmci_plane_encode_sparse(const unsigned char *plane, size_t bytes, const struct lmci_plane_coder *coder,
                                unsigned char *dst, size_t room);

/* Encodes two halves of `half` bytes, the second depending on the first. */
size_t lmci_plane_encode_halves(const unsigned char *plane, size_t half, const struct lmci_plane_coder *coder,
                                unsigned char *dst, size_t room);

/* Codes made once from a sample, for planes that are distributed alike in many blocks. */
struct lmci_shared_code {
    struct lmci_code code; /* counted 0: none */
    struct lmci_tree tree;
};

struct lmci_shared {
    enum lmci_plane_kind kind;             /* TREE, SPARSE or PAIRS, or RAW for none */
    unsigned part;                         /* codes of a plane's own must save one part in so many, ... */
    unsigned one_in;                       /* ... or a bit in so many symbols */
    uint16_t cost[256];                    /* of each byte in the sample (lmci_cost) */
    struct lmci_shared_code first, second; /* of bytes; of flags and nonzero bytes; of pairs */
};

/* Makes the codes of planes of about `expected` bytes from a sample. Scratch: 3 * bytes and pads. */
void lmci_plane_share(const unsigned char *plane, size_t bytes, size_t expected, unsigned char *scratch,
                      struct lmci_shared *shared);
/* Encodes a plane by shared codes. Returns bytes, or 0 if other codes would be smaller, or without room. */
size_t lmci_plane_encode_shared(const unsigned char *plane, size_t bytes, const struct lmci_shared *shared,
                                const struct lmci_plane_coder *coder, unsigned char *dst, size_t room);

/* Decodes a plane. *plane: `own`, with room for LMCI_PLANE_PAD more bytes, or the input if raw. */
enum lmc_status lmci_plane_decode(struct lmci_reader *in, size_t bytes, unsigned char *scratch, unsigned char *own,
                                  const unsigned char **plane, const char **message);

#endif
