/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/pool.h - an open pool: what the modules of the store share.
 *
 * Locks, in the order in which they are taken (a thread that holds a later one takes no earlier one):
 *   shelf->busy    a capture has its shelf from begin until it is durable
 *   live           live variables: their records and their space (live.h)
 *   meta           the root and the volatile tables of space: read, compute and publish are one step under it
 *   pins           what views hold in place (lease.c)
 *   page cache     a few instructions
 * Copying, hashing, encoding and decoding happen outside of all of them but `busy`.
 */
#ifndef LMCS_PAGES_POOL_H
#define LMCS_PAGES_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/workers.h"
#include "media/heap.h"
#include "media/layout.h"
#include "media/lease.h"
#include "media/media.h"
#include "pages/txn.h"

struct lmcs_free_page;
struct lmcs_space;
struct lmcs_background;
struct lmcs_compactor;
struct lmcs_busy_shelf;
struct lmcs_loaded;
struct lmcs_shelf_waiter;
struct lmcs_live_holder;
struct lmcs_live_store;

/* How fast captures were: bytes a second until durable, of what had changed; 0: not measured yet. */
struct lmcs_pace {
    double raw;
    double coded;
    unsigned since; /* captures since the slower way was tried */
};

/* The parts of a commit that belong to the table of space (space.c). Set by lmcs_space_load; NULL before that. */
struct lmcs_space_hook {
    enum lmcs_status (*flush)(struct lmcs_txn *txn, struct lmcs_error *error);
    void (*settle)(struct lmcs_pool *pool, bool committed);
};

struct lmcs_pool {
    struct lmcs_pool *next; /* in the registry of this process */
    atomic_uint opens; /* it becomes 0, and a pool that is found in the registry is kept, under the registry's lock */
    pid_t pid;
    dev_t device;
    ino_t inode;
    char *path;
    bool writable;
    uint32_t flags;
    uint32_t thread_count;
    int32_t numa_node; /* -1: not known */
    struct lmcs_media *media;
    struct lmcs_heap *heap; /* NULL: reading only */
    struct lmcs_lease *lease;
    struct lmcs_page_cache *cache;
    struct lmcs_workers *workers;

    pthread_rwlock_t meta;
    struct lmcs_root_df root; /* the newest committed, of a writer */
    _Atomic uint64_t epoch;   /* the root's, to be read without the lock of metadata: at worst one that has passed */
    struct lmcs_superblock_df superblock;
    struct lmcs_page_range_df *slabs; /* of a writer: where pages may lie, ascending; under the lock of metadata */
    size_t slab_count;
    size_t slab_capacity;
    struct lmcs_free_page *avail; /* the first ones of the tree of free pages, one by one */
    size_t avail_count;
    size_t avail_capacity;
    struct lmcs_space *space; /* of a writer */
    struct lmcs_space_hook space_hook;
    uint64_t lineage; /* for the next restore */
    struct lmcs_live_store *live;

    pthread_mutex_t captures; /* guards the list and what hangs on it */
    pthread_cond_t captures_changed;
    struct lmcs_busy_shelf *busy;      /* shelves that this process has used */
    struct lmcs_shelf_waiter *waiters; /* threads that wait for one of them */
    struct lmcs_live_holder *live_holders;
    struct lmcs_loaded *loaded; /* the snapshots that this process continues from */
    unsigned encoding;          /* captures that write deltas */
    bool rebasing;              /* the compactor replaces bases */
    struct lmcs_pace pace;
    struct lmcs_compactor *compactor;
    struct lmcs_background *background;
    atomic_uint copying; /* captures that copy at this moment: the compactor holds still */
    uint64_t part_bytes; /* the largest part of a payload; less than libpmemobj's 16 GiB */

    /* Set by later rooms. */
    enum lmcs_status (*last_close)(struct lmcs_pool *pool, struct lmcs_error *error);
    void (*wake)(struct lmcs_pool *pool);                        /* these two: NULL without a compactor */
    bool (*make_room)(struct lmcs_pool *pool, const char *held); /* see lmcs_pool_make_room */
};

/* Fails in a forked child, whose pool is its parent's. */
enum lmcs_status lmcs_pool_check(const struct lmcs_pool *pool, bool to_write, struct lmcs_error *error);
/* Whether a writer that opened the file now would be let in; LMCS_OK also while somebody else writes. */
enum lmcs_status lmcs_pool_look(const struct lmcs_pool *pool, struct lmcs_error *error);

/* Adds an open to a pool that is open. lmcs_pool_close ends it. */
void lmcs_pool_keep(struct lmcs_pool *pool);

/* Wakes the background thread, if there is one: there may be work, since a snapshot was committed or removed. */
void lmcs_pool_wake(struct lmcs_pool *pool);
/*
 * Compacts harder, prunes by the policies and gives all unused space back, for a caller that found none and has the
 * shelf `held` (NULL: none). True when it may now find some.
 */
bool lmcs_pool_make_room(struct lmcs_pool *pool, const char *held);

#endif
