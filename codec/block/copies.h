/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * copies.h - repeated bytes of a block (FORMAT.md, 5.9 and 5.10).
 *
 * Rows repeat in moments of an embedding (zeros for unseen tokens), after equal initialization, in tiled tables.
 * Entropy coding sees only frequent bytes.
 */
#ifndef LMC_COPIES_H
#define LMC_COPIES_H

#include "base/bytes.h"

#define LMCI_LINE        ((size_t)64)
#define LMCI_LEAST_COPY  ((size_t)128) /* a shorter run of words saves little */
#define LMCI_LEAST_LINES ((size_t)256) /* ... of lines */

/* `bytes` bytes from `first` on equal those from `source` on, which come before. */
struct lmci_copy {
    uint32_t first, bytes, source;
};

/* Runs in order, and the block and the base without the bytes of the runs. */
struct lmci_copies {
    unsigned char *memory;
    struct lmci_copy *runs;
    size_t count;
    unsigned unit; /* what all numbers of runs are multiples of: a word, or a line */
    size_t rest_bytes;
    unsigned char *rest;
    unsigned char *base; /* or NULL */
};

/* A number from 0 to `free` for a piece of a sample: pieces start at no regular distance, as rows may repeat at one. */
size_t lmci_copies_moved(size_t piece, size_t free);

/* A tensor or a block. */
struct lmci_searched {
    const unsigned char *data;
    const unsigned char *base; /* or NULL: bytes equal to the base's are no copies */
    size_t bytes;
    unsigned word;
};

/* Whether lines seem to repeat, from a sample. */
bool lmci_lines_likely(const unsigned char *data, const unsigned char *base, size_t bytes);
/* Whether words repeat together with those around them: one in `one_in` of those selected by content, one in 2^log2, in
 * pieces at multiples of `stride`. Pieces have at most 64 KiB and are fewer than 128. */
bool lmci_words_likely(const struct lmci_searched *in, size_t pieces, size_t piece_bytes, size_t stride, unsigned log2,
                       unsigned one_in);
#define LMCI_WORDS_OF 256            /* for whole blocks */
unsigned lmci_rarely(unsigned word); /* a log2 for one word in about 512 bytes */
/* Both, for a whole block. */
bool lmci_copies_likely(const struct lmci_searched *in, unsigned unit);

/* Runs for at most `bytes` bytes. */
static inline size_t lmci_copies_most(size_t bytes)
{
    return bytes / LMCI_LEAST_COPY;
}
enum lmc_status lmci_copies_find(const struct lmci_searched *in, unsigned unit, struct lmci_copy *runs, size_t *count);
enum lmc_status lmci_copies_take(const struct lmci_searched *in, unsigned unit, struct lmci_copies *copies);
size_t lmci_copies_bytes(const struct lmci_copies *copies);
void lmci_copies_put(const struct lmci_copies *copies, unsigned char *dst);

/* Reads the runs; allocates the rest, and removes the runs from the base. */
enum lmc_status lmci_copies_get(struct lmci_reader *in, unsigned unit, const unsigned char *base, size_t bytes,
                                struct lmci_copies *copies, const char **message);
void lmci_copies_fill(const struct lmci_copies *copies, unsigned char *dst, size_t bytes);

#endif
