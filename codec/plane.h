/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plane.h - codes one plane: the bytes at one position of all words of a block.
 *
 * A plane is raw, constant, Huffman-coded, or sparse: flags of what isn't zero, then those bytes, each a plane again
 * (FORMAT.md, 5.3). The kinds' values are part of the format.
 */
#ifndef LMC_PLANE_H
#define LMC_PLANE_H

#include "bytes.h"
#include "kernels.h"

enum lmci_plane_kind { LMCI_PLANE_RAW = 0, LMCI_PLANE_CONSTANT = 1, LMCI_PLANE_HUFFMAN = 2, LMCI_PLANE_SPARSE = 3 };

/* A sparse plane's flags may be sparse again, and no deeper. */
#define LMCI_MAX_SPARSE_DEPTH 2

/* Room that coding a plane of `bytes` bytes needs aside: flags and nonzero bytes of each depth, and 8 bytes more. */
static inline size_t lmci_plane_scratch(size_t bytes)
{
    return 2 * bytes + 64;
}

/* Codes a plane (at least one byte) into at most `room` bytes; the bytes written, or 0 if they don't suffice. */
size_t lmci_plane_encode(const unsigned char *plane, size_t bytes, unsigned char *scratch, unsigned char *dst,
                         size_t room);

/*
 * Decodes a plane of `bytes` bytes. `plane` becomes its address: `own`, which has room for it, or the input itself
 * when it is stored raw.
 */
enum lmc_status lmci_plane_decode(struct lmci_reader *in, size_t bytes, unsigned char *scratch, unsigned char *own,
                                  const unsigned char **plane, const char **message);

#endif
