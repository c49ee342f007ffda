/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/replace.h - gives one content another payload. */
#ifndef LMCS_COMPACT_REPLACE_H
#define LMCS_COMPACT_REPLACE_H

#include "pages/space.h"
#include "payload/read.h"

/*
 * Lines of links that were verified recently, by their newest link. The arrays of a step share a line, and the next
 * step's line is one link longer. A line that is not in the table is verified again.
 */
#define LMCS_LINES_KNOWN 8192u
struct lmcs_known_lines {
    struct lmcs_known_line {
        uint64_t link;
        uint64_t at_ns; /* time at which the first of its links was verified */
    } lines[LMCS_LINES_KNOWN];
};

struct lmcs_replace {
    struct lmcs_pool *pool;
    struct lmcs_region *region;
    bool serial;                    /* work in the caller's thread alone */
    struct lmcs_known_lines *known; /* set before begin; NULL: verify all lines */
    uint64_t known_since_ns;        /* set before begin: lines verified earlier are verified again */
    uint32_t chain_bound;           /* set before begin: most deltas to undo; 0: no more than now */
    uint64_t successor;             /* set before begin: the content that came after it; 0: none */
    uint32_t place;                 /* set before begin: the successor's place, recorded by the swap */
    struct lmcs_chain chain;        /* the content as it is; pinned */
    struct lmcs_identity identity;
    bool has_base;
    struct lmcs_chain base;   /* pinned */
    struct lmcs_content made; /* the new payload: parts, sizes, bases, kind, flags */
    bool worthwhile;          /* false: no smaller; the swap records the attempt in the flags */
    bool same_bytes;          /* a copy of the old payload */
    bool line_is_damaged;     /* the link that leads to it, or a payload below, is damaged */
    bool is_refused;          /* by the swap: the base is gone or can no longer be one */
};

/* Looks up and pins the content (LMCS_NOT_FOUND: gone) and its base (0: none). */
enum lmcs_status lmcs_replace_begin(struct lmcs_replace *replace, struct lmcs_pool *pool, struct lmcs_region *region,
                                    uint64_t content, uint64_t base, bool serial, struct lmcs_error *error);
/* Drops the base: the content is encoded alone. */
void lmcs_replace_alone(struct lmcs_replace *replace);
/*
 * Takes the link that leads to the content as its payload, if the link yields the content's digest and the line below
 * is sound. *possible false: it does not.
 */
enum lmcs_status lmcs_replace_linked(struct lmcs_replace *replace, bool *possible, struct lmcs_error *error);
/* Encodes the content against its base, or alone, into the region, and verifies the frame by decoding it. */
enum lmcs_status lmcs_replace_encode(struct lmcs_replace *replace, struct lmcs_error *error);
/* Copies the payload unchanged to another place. */
enum lmcs_status lmcs_replace_copy(struct lmcs_replace *replace, struct lmcs_error *error);
/* Switches to the new payload within a transaction if nothing it relies on has changed. *done: it did. */
enum lmcs_status lmcs_replace_swap(struct lmcs_txn *txn, struct lmcs_replace *replace, bool *done,
                                   struct lmcs_error *error);
void lmcs_replace_end(struct lmcs_replace *replace);

/* Maps a raw content's bytes: directly, or, of several parts, as one mapping. */
struct lmcs_bytes_at {
    const void *data;
    void *map;
    size_t map_bytes;
};
enum lmcs_status lmcs_bytes_map(struct lmcs_pool *pool, const struct lmcs_content *content, struct lmcs_bytes_at *at,
                                struct lmcs_error *error);
void lmcs_bytes_unmap(struct lmcs_bytes_at *at);

#endif
