/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/replace.h - gives one content another payload. */
#ifndef LMCS_COMPACT_REPLACE_H
#define LMCS_COMPACT_REPLACE_H

#include "pages/space.h"
#include "payload/read.h"

/* Recently verified lines, by newest link. The arrays of a step share a line, and the next step's line is one link
 * longer. Lines not recorded here are verified again. */
#define LMCS_LINES_KNOWN 8192u
struct lmcs_known_lines {
    struct lmcs_known_line {
        uint64_t link;
        uint64_t at_ns; /* when the first of its links was verified */
    } lines[LMCS_LINES_KNOWN];
};

struct lmcs_replace {
    struct lmcs_pool *pool;
    struct lmcs_region *region;
    bool serial;                    /* in the caller's thread alone */
    struct lmcs_known_lines *known; /* set before begin; NULL: verify all lines */
    uint64_t known_since_ns;        /* set before begin: verify lines again that were verified before this time */
    uint32_t chain_bound;           /* set before begin: most deltas to undo; 0: as many as now */
    uint64_t successor;             /* set before begin: the next content; 0: none */
    uint32_t place;                 /* set before begin: place of the successor, which the swap records */
    struct lmcs_chain chain;        /* of the content; pinned */
    struct lmcs_identity identity;
    bool has_base;
    struct lmcs_chain base;   /* pinned */
    struct lmcs_content made; /* parts, sizes, bases, kind, flags of the new payload */
    bool worthwhile;          /* false: not smaller; the swap records that */
    bool same_bytes;          /* a copy of the old payload */
    bool line_is_damaged;     /* the link, or a payload below, is damaged */
    bool is_refused;          /* the swap refused it: the base is gone or unsuitable */
};

/* Pins the content (LMCS_NOT_FOUND: gone) and its base (0: none). */
enum lmcs_status lmcs_replace_begin(struct lmcs_replace *replace, struct lmcs_pool *pool, struct lmcs_region *region,
                                    uint64_t content, uint64_t base, bool serial, struct lmcs_error *error);
void lmcs_replace_alone(struct lmcs_replace *replace);
/* Makes the link that leads to the content its payload. *possible false: the digest differs or the line below is
 * damaged. */
enum lmcs_status lmcs_replace_linked(struct lmcs_replace *replace, bool *possible, struct lmcs_error *error);
/* Encodes against the base, or alone, into the region; verifies by decoding. */
enum lmcs_status lmcs_replace_encode(struct lmcs_replace *replace, struct lmcs_error *error);
/* Copies the payload to another place. */
enum lmcs_status lmcs_replace_copy(struct lmcs_replace *replace, struct lmcs_error *error);
/* Switches to the new payload if nothing that it relies on has changed. *done: it switched. */
enum lmcs_status lmcs_replace_swap(struct lmcs_txn *txn, struct lmcs_replace *replace, bool *done,
                                   struct lmcs_error *error);
void lmcs_replace_end(struct lmcs_replace *replace);

/* A raw content's bytes; several parts as one mapping. */
struct lmcs_bytes_at {
    const void *data;
    void *map;
    size_t map_bytes;
};
enum lmcs_status lmcs_bytes_map(struct lmcs_pool *pool, const struct lmcs_content *content, struct lmcs_bytes_at *at,
                                struct lmcs_error *error);
void lmcs_bytes_unmap(struct lmcs_bytes_at *at);

#endif
