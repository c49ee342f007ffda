/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * copies.h - repeated rows: lines of a block that are as lines before them, found and left out.
 *
 * Rows of zeros in the moments of an embedding whose tokens were not seen, rows that were initialized alike, a table
 * that was tiled: entropy coding sees bytes of some frequency there, not that they are all known. A line is 64 bytes;
 * what isn't a copy is coded as a shorter block (FORMAT.md, 5.9).
 */
#ifndef LMC_COPIES_H
#define LMC_COPIES_H

#include "base/bytes.h"

#define LMCI_LINE        ((size_t)64)
#define LMCI_MOST_LINES  (LMC_BLOCK_BYTES / LMCI_LINE)
#define LMCI_MOST_COPIES (LMCI_MOST_LINES - 1)
#define LMCI_COPY_BYTES  6 /* of a run, as it is stored */

/* Lines `first` to `first + lines - 1` are as those from `source` on, which come before. */
struct lmci_copy {
    uint16_t first, lines, source;
};

/* The runs of a block, in their order; and the block, and its base if it has one, without them. */
struct lmci_copies {
    unsigned char *memory;
    struct lmci_copy *runs;
    size_t count;
    size_t rest_bytes;
    unsigned char *rest;
    unsigned char *base; /* NULL: none */
};

/* Whether lines seem to repeat: a look at a few of them. Content that is the base's is none. */
bool lmci_copies_likely(const unsigned char *data, const unsigned char *base, size_t bytes);

/* Finds runs that are worth it and takes them out. A count of 0: there are none. */
enum lmc_status lmci_copies_take(const unsigned char *data, const unsigned char *base, size_t bytes,
                                 struct lmci_copies *copies);
/* The runs as they are stored: their number, and each. */
static inline size_t lmci_copies_bytes(const struct lmci_copies *copies)
{
    return 2 + LMCI_COPY_BYTES * copies->count;
}
void lmci_copies_put(const struct lmci_copies *copies, unsigned char *dst);

/* Reads the runs of a block of so many bytes, makes room for the rest, and takes the base's. */
enum lmc_status lmci_copies_get(struct lmci_reader *in, const unsigned char *base, size_t bytes,
                                struct lmci_copies *copies, const char **message);
/* The block from the rest and the runs. */
void lmci_copies_fill(const struct lmci_copies *copies, unsigned char *dst, size_t bytes);

#endif
