/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/extents.h - the table of extents in memory. Private to this room: space.c, trim.c, region.c.
 *
 * The table's lock guards all of it. It comes after the metadata lock; no page is read under it.
 */
#ifndef LMCS_PAGES_EXTENTS_H
#define LMCS_PAGES_EXTENTS_H

#include <pthread.h>

#include "pages/space.h"

struct lmcs_extent {
    uint64_t offset;            /* libpmemobj's */
    struct lmcs_object_df now;  /* as committed; `backed` and `cursor` are ahead of it while a region fills it */
    struct lmcs_object_df next; /* as the open transaction changes it */
    bool touched;               /* the open transaction changes it */
    bool fresh;                 /* the open transaction creates it */
    bool freeing;               /* the open transaction frees it */
    bool claimed;               /* by a region, or by `trim` */
    const struct lmcs_trim *trim;
    bool needs_trim_check; /* since the pool was opened: a crash may have left file space that its record omits */
    bool stays;            /* the trim under way gives back only file space that the record omits */
    bool tail_known;       /* the tree of space was searched: no payload is at or after the cursor */
    bool empty_known;      /* likewise: no payload is in it, or none has been since the pool was opened */
    uint64_t stuck_bytes;  /* dead, but in pages that also contain live bytes: the last trim could not free them */
    uint64_t committed_cursor;
    struct lmcs_untrimmed {
        bool any; /* a transaction that gives file space back is open; on failure, these are restored */
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
    uint64_t used;          /* file space of all extents and of live variables */
    uint64_t limit_bytes;   /* copied from the root, to be read without the metadata lock; 0: none */
    uint64_t slab_bytes;    /* likewise */
    uint64_t largest_taken; /* the largest payload of a capture since the pool was opened */
    uint64_t largest_bytes; /* the most that a standard extent has, however much the pool contains */
};

/* A range of the tree of retired ranges. */
struct lmcs_retired {
    struct lmcs_key_df key; /* epoch, offset */
    uint64_t bytes;
};

static inline uint64_t lmcs_extent_end(const struct lmcs_extent *extent)
{
    return extent->offset + extent->now.bytes;
}

/* File space of an extent: backed and not punched. */
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

/* Records the state to restore if the transaction that gives file space back fails. */
static inline void lmcs_extent_note_untrimmed(struct lmcs_extent *extent)
{
    extent->untrimmed.any = true;
    extent->untrimmed.backed = extent->now.backed;
    extent->untrimmed.punched_bytes = extent->now.punched_bytes;
    extent->untrimmed.stuck_bytes = extent->stuck_bytes;
}

/* These are called under the table's lock. */

/* The extent that contains an offset; NULL: none does. */
struct lmcs_extent *lmcs_extent_find(const struct lmcs_space *space, uint64_t offset);
struct lmcs_extent *lmcs_extent_add(struct lmcs_space *space, uint64_t offset, const struct lmcs_object_df *df);
/* That extent, with `next` begun for the open transaction. */
struct lmcs_extent *lmcs_extent_touch(struct lmcs_space *space, uint64_t offset);
/* Whether so little is live in it that moving that elsewhere is worth the space. No payload may be moved into it. */
bool lmcs_extent_is_sparse(const struct lmcs_extent *extent);
/* The size of a new extent: it grows with the pool's contents and with the bytes that are expected. */
uint64_t lmcs_extent_standard(const struct lmcs_space *space, uint64_t expected);
/* File space of free extents. */
uint64_t lmcs_space_ready(const struct lmcs_space *space);
/*
 * Bytes that captures leave of a limit, or of the disk: the compactor must write a content again before it frees the
 * old bytes. `largest`: the largest payload.
 */
uint64_t lmcs_space_share(uint64_t largest, uint64_t whole);
/* Adds file space that is about to be taken. `leaves_share`: LMCS_FULL when it would use the compactor's share. */
enum lmcs_status lmcs_space_need(struct lmcs_pool *pool, uint64_t need, uint64_t largest, bool leaves_share,
                                 struct lmcs_error *error);

/* These take the lock themselves. */

enum lmcs_status lmcs_extent_fail(struct lmcs_txn *txn, uint64_t offset, struct lmcs_error *error);
/* Collects up to `most` retired ranges: those that no reader needs (`releasable`), or all. *list: to be freed. */
enum lmcs_status lmcs_retired_collect(struct lmcs_txn *txn, bool releasable, size_t most, struct lmcs_retired **list,
                                      size_t *count, struct lmcs_error *error);
/* Releases retired ranges, so that extents may become free. *some: there was one. */
enum lmcs_status lmcs_space_release_some(struct lmcs_pool *pool, bool *some, struct lmcs_error *error);
/* Gives free extents back to libpmemobj, for pools of fixed size. *some: there was one. */
enum lmcs_status lmcs_space_free_some(struct lmcs_pool *pool, bool *some, struct lmcs_error *error);
/* Gives back all file space that is not needed. False: there was none, or it failed. Skips damaged records. */
bool lmcs_space_trim_all(struct lmcs_pool *pool);

#endif
