/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * copies.h - repeated lines (64 bytes) of a block (FORMAT.md, 5.9).
 *
 * Rows repeat in moments of an embedding (zeros for unseen tokens), after equal initialization, in tiled tables.
 * Entropy coding sees only frequent bytes.
 */
#ifndef LMC_COPIES_H
#define LMC_COPIES_H

#include "base/bytes.h"

#define LMCI_LINE        ((size_t)64)
#define LMCI_MOST_LINES  (LMC_BLOCK_BYTES / LMCI_LINE)
#define LMCI_MOST_COPIES (LMCI_MOST_LINES - 1)
#define LMCI_COPY_BYTES  6 /* of a stored run */

/* `lines` lines from `first` on equal those from `source` on, which come before. */
struct lmci_copy {
    uint16_t first, lines, source;
};

/* Runs in order, and the block and the base without the lines of the runs. */
struct lmci_copies {
    unsigned char *memory;
    struct lmci_copy *runs;
    size_t count;
    size_t rest_bytes;
    unsigned char *rest;
    unsigned char *base; /* or NULL */
};

/* Whether lines seem to repeat, from a sample. Lines equal to the base's do not count. */
bool lmci_copies_likely(const unsigned char *data, const unsigned char *base, size_t bytes);

enum lmc_status lmci_copies_take(const unsigned char *data, const unsigned char *base, size_t bytes,
                                 struct lmci_copies *copies);
static inline size_t lmci_copies_bytes(const struct lmci_copies *copies)
{
    return 2 + LMCI_COPY_BYTES * copies->count;
}
void lmci_copies_put(const struct lmci_copies *copies, unsigned char *dst);

/* Reads the runs; allocates the rest, and removes the runs from the base. */
enum lmc_status lmci_copies_get(struct lmci_reader *in, const unsigned char *base, size_t bytes,
                                struct lmci_copies *copies, const char **message);
void lmci_copies_fill(const struct lmci_copies *copies, unsigned char *dst, size_t bytes);

#endif
