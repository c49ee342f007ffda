/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/extents.h - the table of extents in memory. Private to space.c, trim.c, region.c, prepare.c.
 *
 * Its lock comes after the metadata lock; no page is read under it.
 */
#ifndef LMCS_PAGES_EXTENTS_H
#define LMCS_PAGES_EXTENTS_H

#include <pthread.h>

#include "pages/space.h"

struct lmcs_extent {
    uint64_t offset;            /* libpmemobj's */
    struct lmcs_object_df now;  /* as committed; `backed` and `cursor` are ahead while a region fills it */
    struct lmcs_object_df next; /* in the open transaction */
    bool touched;
    bool fresh; /* created by the open transaction */
    bool freeing;
    bool claimed; /* by a region or `trim` */
    const struct lmcs_trim *trim;
    bool needs_trim_check; /* opened since: a crash may have left unrecorded file space */
    bool stays;            /* only unrecorded file space is given back */
    bool tail_known;       /* no payload at or after the cursor (searched) */
    bool empty_known;      /* no payload in it (searched, or never since opening) */
    uint64_t stuck_bytes;  /* dead, but on pages with live bytes */
    uint64_t committed_cursor;
    uint64_t warm_end;   /* filled or warmed by this process up to here */
    uint64_t spare_from; /* file space from here on was prepared, and no region took it; UINT64_MAX: none */
    struct lmcs_untrimmed {
        bool any; /* a transaction that gives file space back is open: restore these if it fails */
        uint64_t backed;
        uint64_t punched_bytes;
        uint64_t stuck_bytes;
    } untrimmed;
};

struct lmcs_space {
    pthread_mutex_t lock;
    struct lmcs_extent **extents; /* by offset */
    size_t count;
    size_t capacity;
    uint64_t used;          /* of extents and live variables */
    uint64_t limit_bytes;   /* lmcs_space_limit, readable without the metadata lock */
    uint64_t slab_bytes;    /* the root's, likewise */
    uint64_t largest_taken; /* by a capture since opening */
    uint64_t largest_bytes; /* of a standard extent */
    bool is_mapped;         /* filled by stores: pages are to be in this process's mapping */
    unsigned taking;        /* regions of captures and restores with extents */
    struct lmcs_expected {
        uint64_t bytes;  /* 0: unknown */
        uint64_t *fills; /* parts of it, each taken from one extent; the rest may be taken anywhere */
        size_t count;
        uint64_t serial; /* of this expectation */
        bool pending;    /* it is to be prepared */
    } expected;          /* room of the next capture */
};

struct lmcs_retired {
    struct lmcs_key_df key; /* epoch, offset */
    uint64_t bytes;
};

static inline uint64_t lmcs_extent_end(const struct lmcs_extent *extent)
{
    return extent->offset + extent->now.bytes;
}

/* Backed and not punched. */
static inline uint64_t lmcs_extent_used(const struct lmcs_object_df *df)
{
    return df->backed - df->first - (df->punched_bytes < df->backed - df->first ? df->punched_bytes : 0);
}

static inline bool lmcs_extent_is_empty(const struct lmcs_extent *extent)
{
    return extent->now.live_bytes == 0 && extent->now.retired_bytes == 0;
}

static inline bool lmcs_extent_is_free(const struct lmcs_extent *extent)
{
    return !extent->claimed && !extent->freeing && lmcs_extent_is_empty(extent) && !extent->touched;
}

/* Returns file space from `backed` on. */
static inline void lmcs_extent_cut(struct lmcs_extent *extent, uint64_t backed)
{
    extent->now.backed = backed;
    if (extent->warm_end > backed)
        extent->warm_end = backed;
}

/* Restored if the transaction that gives file space back fails. */
static inline void lmcs_extent_note_untrimmed(struct lmcs_extent *extent)
{
    extent->untrimmed.any = true;
    extent->untrimmed.backed = extent->now.backed;
    extent->untrimmed.punched_bytes = extent->now.punched_bytes;
    extent->untrimmed.stuck_bytes = extent->stuck_bytes;
}

/* Under the table's lock: */

/* The extent that contains an offset, or NULL. */
struct lmcs_extent *lmcs_extent_find(const struct lmcs_space *space, uint64_t offset);
struct lmcs_extent *lmcs_extent_add(struct lmcs_space *space, uint64_t offset, const struct lmcs_object_df *df);
/* Finds an extent and begins its `next`. */
struct lmcs_extent *lmcs_extent_touch(struct lmcs_space *space, uint64_t offset);
/* Whether so little is live that moving it pays. No payload may be moved into it. */
bool lmcs_extent_is_sparse(const struct lmcs_extent *extent);
/* Size of a new extent: grows with the pool's contents and `expected` bytes. */
uint64_t lmcs_extent_standard(const struct lmcs_space *space, uint64_t expected);
/* File space of free extents. */
uint64_t lmcs_space_ready(const struct lmcs_space *space);
/*
 * Bytes that captures leave: the compactor writes a content again before it frees the old bytes. `largest`: the largest
 * payload.
 */
uint64_t lmcs_space_share(uint64_t largest, uint64_t whole);
/* Counts file space about to be taken. `leaves_share`: LMCS_FULL rather than use the compactor's share. */
enum lmcs_status lmcs_space_need(struct lmcs_pool *pool, uint64_t need, uint64_t largest, bool leaves_share,
                                 struct lmcs_error *error);

/* These lock the table: */

/*
 * lmcs_region_take without file space and without trims: where a capture would find room. `apart`: in an extent that
 * the region has not claimed yet.
 */
enum lmcs_status lmcs_region_look(struct lmcs_region *region, uint64_t bytes, bool apart, struct lmcs_error *error);
/* Claims a free extent, or the open end of a filled one, that is as it was when a region looked; NULL: it is not. */
struct lmcs_extent *lmcs_region_claim_again(struct lmcs_region *region, uint64_t offset, uint64_t cursor);
/* Allocates and counts file space of a claimed extent, in steps. */
enum lmcs_status lmcs_region_back(struct lmcs_region *region, struct lmcs_extent *extent, uint64_t end,
                                  struct lmcs_error *error);

enum lmcs_status lmcs_extent_fail(struct lmcs_txn *txn, uint64_t offset, struct lmcs_error *error);
/* Collects up to `most`: those that no reader needs (`releasable`), or all. *list: to be freed. */
enum lmcs_status lmcs_retired_collect(struct lmcs_txn *txn, bool releasable, size_t most, struct lmcs_retired **list,
                                      size_t *count, struct lmcs_error *error);
/* Releases retired ranges, which may free extents. *some: there was one. */
enum lmcs_status lmcs_space_release_some(struct lmcs_pool *pool, bool *some, struct lmcs_error *error);
/* Returns free extents to libpmemobj, for pools of fixed size. *some: there was one. */
enum lmcs_status lmcs_space_free_some(struct lmcs_pool *pool, bool *some, struct lmcs_error *error);
/* Gives back all unneeded file space; skips damaged records. False: none, or it failed. */
bool lmcs_space_trim_all(struct lmcs_pool *pool);

#endif
