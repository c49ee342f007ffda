/* SPDX-License-Identifier: BSD-3-Clause */
/* replace.h - giving a content another payload: the work of the compactor, one content at a time. */
#ifndef LMCS_COMPACT_REPLACE_H
#define LMCS_COMPACT_REPLACE_H

#include "pages/space.h"
#include "payload/read.h"

/*
 * Lines of links that were whole when they were looked at a moment ago, by their newest links: the arrays of a step
 * share one, and the line of the step after it is the same and one link more. What is forgotten is looked at again.
 */
#define LMCS_LINES_KNOWN 8192u
struct lmcs_known_lines {
    struct lmcs_known_line {
        uint64_t link;
        uint64_t at_ns; /* when the first of what is known of it was looked at */
    } lines[LMCS_LINES_KNOWN];
};

struct lmcs_replace {
    struct lmcs_pool *pool;
    struct lmcs_region *region;
    bool serial;                    /* in the caller's thread alone */
    struct lmcs_known_lines *known; /* set before begin; NULL: none are ... */
    uint64_t known_since_ns;        /* ... that were looked at before this */
    uint32_t chain_bound;           /* set before begin: deltas to undo, at most; 0: no more than now */
    uint64_t successor;             /* set before begin: the content that came after it (0: none) ... */
    uint32_t place;                 /* ... and its place, which it gets with the swap */
    struct lmcs_chain chain;        /* the content as it is, pinned */
    struct lmcs_identity identity;
    bool has_base;
    struct lmcs_chain base;   /* pinned */
    struct lmcs_content made; /* the new payload: parts, sizes, bases, kind, flags */
    bool worthwhile;          /* false: no smaller; made.df.flags says that it was tried */
    bool same_bytes;          /* the new payload is the old one, elsewhere */
    bool line_is_damaged;     /* the link that leads to it, or what that rests on, is not what was written */
    bool is_refused;          /* by the swap: its base has gone, or can't be one any more */
};

/* Looks the content up (LMCS_NOT_FOUND when it is gone) and its base (0: none), and pins them. */
enum lmcs_status lmcs_replace_begin(struct lmcs_replace *replace, struct lmcs_pool *pool, struct lmcs_region *region,
                                    uint64_t content, uint64_t base, bool serial, struct lmcs_error *error);
/* Drops the base: it is to be coded alone. */
void lmcs_replace_alone(struct lmcs_replace *replace);
/*
 * Takes the link that leads to it, which has been made and verified, for its payload: if that leads to its very digest,
 * and the whole line up to there is still what was written. *possible false: it can't be.
 */
enum lmcs_status lmcs_replace_linked(struct lmcs_replace *replace, bool *possible, struct lmcs_error *error);
/* Encodes it against its base, or alone, into the region, and verifies what was written by decoding it. */
enum lmcs_status lmcs_replace_encode(struct lmcs_replace *replace, struct lmcs_error *error);
/* Copies its payload as it is to another place. */
enum lmcs_status lmcs_replace_copy(struct lmcs_replace *replace, struct lmcs_error *error);
/* In a transaction: replaces the payload, if all is still as it was. *done says so. */
enum lmcs_status lmcs_replace_swap(struct lmcs_txn *txn, struct lmcs_replace *replace, bool *done,
                                   struct lmcs_error *error);
void lmcs_replace_end(struct lmcs_replace *replace);

/* A raw content's bytes at an address: where they lie, or, of several parts, stitched together by a mapping. */
struct lmcs_bytes_at {
    const void *data;
    void *map;
    size_t map_bytes;
};
enum lmcs_status lmcs_bytes_map(struct lmcs_pool *pool, const struct lmcs_content *content, struct lmcs_bytes_at *at,
                                struct lmcs_error *error);
void lmcs_bytes_unmap(struct lmcs_bytes_at *at);

#endif
