/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/pool.h - an open pool: the state that the rooms of the store share. The face of pages/.
 *
 * pages/ is transactions: copy-on-write pages, B+ trees, free pages and extents under one root. It uses base/ and
 * media/. From below: cache, page, tree (node, cursor), freelist, root, txn, space, trim, region.
 *
 * LOCKS, in the order in which a thread acquires them. A thread that holds one acquires only later ones.
 *
 *   lock                     file                  protects; how long it is held
 *   registry_lock            pool/open.c           the list of open pools; pools being opened, closed, or forked
 *   a shelf (not a mutex)    records/busy.c        one operation on the shelf: a capture from begin until durable, or
 *                                                  queued, a fork, a removal, pruning, a restore. Kept in pool->busy
 *   compactor->round         compact/round.h       one round of the compactor or of lmcs_compact
 *   live->lock               live/body.h           live variables, their handles, records and space
 *   pool->captures           records/busy.h        busy, waiters, live_holders, loaded, pace
 *   body->lock               live/body.h           value and version of one live variable
 *   region_lock              capture/              the region from which a capture's threads take room
 *   pool->meta (rwlock)      pages/txn.c           root, slabs, avail. A write transaction holds it from begin to end;
 *                                                  read transactions of the writing process share it
 *   space->lock              pages/extents.h       the table of extents
 *   known_lock               live/fork.c           the list of mappings of live tensors; held during a fork
 *   all_lock                 media/lease.c         the leases of this process; held during a fork
 *   lease->lock              media/lease.c         the pins of one pool; held during a fork
 *   cache->locks             pages/cache.c         some slots of the page cache, while a page is copied
 *   heap->syncing            media/heap.c          a sync of the file until its failure is recorded
 *   heap->persisting         media/heap.c          the same for our own mappings
 *   writeback->lock          media/writeback.c     ranges to write
 *   background->lock         pool/background.c     state of the background thread
 *   workers->lock            base/workers.c        jobs
 *   pool->verified_lock      payload/verified.c    pool->verified; no other is acquired under it
 *   install_lock             base/guard.c          the handler of SIGBUS
 *
 * A run of jobs may have a lock for its first error or results (payload/read.c, base/workers.c), with no other acquired
 * under it. Copying, hashing, encoding, decoding and the sync of payloads hold only the shelf's and, in the compactor,
 * the round's. Between processes: libpmemobj's flock admits one writer; leases (media/lease.h) keep bytes for readers;
 * annotations have two locks (records/ring.h).
 *
 * THREADS. All block signals but SIGBUS (lmcs_guard_signals), and end with the pool.
 *
 *   thread       created by             function         runs
 *   a caller's   the application        -                every public function; its part of each run of jobs; a round
 *                                                        of the compactor, when a capture finds no space
 *   workers,     lmcs_workers_run,      serve            jobs of lmcs_workers_run and lmcs_workers_try: copy, compare,
 *    threads-1   when first useful      (workers.c)      encode, decode, hash. On the pool's NUMA node
 *   later, 0 to  likewise               likewise         the same for captures whose call has returned, if options
 *    copy_threads                                        differ. With copy_nice, callers only wait: they hold locks,
 *                                                        and these threads hold one only to take or give room
 *   commit, one  lmcs_capture_commit,   commit_thread    lmcs_capture_enter: sync of payloads, the transaction; for
 *    a shelf     asynchronous           (commit.c)       all captures queued. Detached; lmcs_pool_close waits for it
 *   background,  lmcs_compactor_start   background_main  space for the next capture, compaction, pruning, parity, scrub
 *    0 or 1                             (background.c)   turns with repair: alone or by the idle thread. Priority of
 *                                                        its creator, as it holds locks
 *   idle,        lmcs_idle_run, when    serve            jobs of the background thread on more than one block: encode,
 *    0 or 1      first useful           (idle.c)         decode, hash, warm. Lowest, so it holds no lock that others
 *                                                        want; callers in a hurry let the background thread do the rest
 *   writeback,   lmcs_writeback_add     serve            sync_file_range, for files alone
 *    0 or 1                             (writeback.c)
 *
 * HOOKS: functions that an earlier room calls and a later room sets.
 *
 *   hook                     set by                called by; thread, locks held
 *   pool->space_hook         lmcs_space_load       lmcs_txn_commit (flush), lmcs_txn_end (settle); any thread, meta
 *   txn->refill              lmcs_txn_write        lmcs_page_take; the transaction's thread, meta
 *   pool->fold               pool/open.c           lmcs_txn_write, before it begins: applies annotations of other
 *                                                  processes; any thread, the locks before meta
 *   lmcs_media_overlay       pool/open.c           lmcs_media_read, while a pool is opened; registry_lock
 *   pool->last_close         pool/open.c           lmcs_pool_close, for the last open; a caller's thread, none
 *   pool->as_writer          pool/open.c           changes by a handle that is open for reading; a caller's thread,
 *                                                  none
 *   pool->wake               pool/background.c     lmcs_pool_wake, after commits and removals; any thread, none or a
 *                                                  shelf
 *   pool->make_room          pool/background.c     lmcs_pool_make_room, when space is short; any thread, a shelf
 *   pool->explain_full       pool/background.c     lmcs_pool_explain_full, after LMCS_FULL; any thread, a shelf
 */
#ifndef LMCS_PAGES_POOL_H
#define LMCS_PAGES_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/map.h"
#include "base/workers.h"
#include "media/heap.h"
#include "media/layout.h"
#include "media/lease.h"
#include "media/media.h"
#include "pages/txn.h"

struct lmcs_free_page;
struct lmcs_space;
struct lmcs_background;
struct lmcs_idle;
struct lmcs_compactor;
struct lmcs_busy_shelf;
struct lmcs_loaded;
struct lmcs_safe;
struct lmcs_shelf_waiter;
struct lmcs_live_holder;
struct lmcs_live_store;

/* Changed bytes per second until durable; 0: not measured. */
struct lmcs_pace {
    double raw;
    double linked;
    unsigned since; /* captures since the slower way was tried */
};

/* Decoded bytes, and the ns of processor time that one thread needs for them (payload/speed.h). */
struct lmcs_speed {
    _Atomic uint64_t bytes;
    _Atomic uint64_t ns;
};

/* The table of space's part of a commit; NULL before lmcs_space_load. */
struct lmcs_space_hook {
    enum lmcs_status (*flush)(struct lmcs_txn *txn, struct lmcs_error *error);
    void (*settle)(struct lmcs_pool *pool, bool committed);
};

struct lmcs_pool {
    struct lmcs_pool *next;
    atomic_uint opens; /* under registry_lock when it becomes 0 or a pool found in the registry is opened */
    pid_t pid;
    dev_t device;
    ino_t inode;
    char *path;
    bool writable;
    struct lmcs_open_options options; /* as given; `threads` is the number chosen */
    int32_t numa_node;                /* -1: unknown */
    struct lmcs_media *media;
    struct lmcs_heap *heap; /* NULL: read only */
    struct lmcs_lease *lease;
    struct lmcs_page_cache *cache;
    struct lmcs_workers *workers;
    struct lmcs_workers *later_workers; /* for captures whose call has returned; the same without options */

    pthread_rwlock_t meta;
    struct lmcs_root_df root; /* newest committed (writer) */
    _Atomic uint64_t epoch;   /* the root's, for reading without the lock; perhaps outdated */
    _Atomic uint64_t durable; /* reader: the newest epoch whose root a follower has synced */
    struct lmcs_superblock_df superblock;
    struct lmcs_page_range_df *slabs; /* writer: ranges with pages, ascending */
    size_t slab_count;
    size_t slab_capacity;
    struct lmcs_free_page *avail; /* the first free pages, one by one */
    size_t avail_count;
    size_t avail_capacity;
    struct lmcs_space *space; /* writer */
    struct lmcs_space_hook space_hook;
    enum lmcs_status (*fold)(struct lmcs_pool *pool, struct lmcs_error *error);
    uint64_t lineage; /* for the next restore */
    struct lmcs_live_store *live;

    pthread_mutex_t captures; /* guards the fields from `busy` to `pace` */
    pthread_cond_t captures_changed;
    struct lmcs_busy_shelf *busy;
    struct lmcs_shelf_waiter *waiters;
    struct lmcs_live_holder *live_holders;
    struct lmcs_loaded *loaded;
    struct lmcs_safe *safe;        /* records/safe.h */
    struct lmcs_pace pace;         /* of the newest capture */
    _Atomic uint64_t memory_bytes; /* of all memory states (capture/memory.h) */
    struct lmcs_speed speeds[2];   /* of a link, of a keyframe */
    struct lmcs_compactor *compactor;
    struct lmcs_background *background;
    struct lmcs_idle *idle; /* for the background thread; NULL without a compactor */
    atomic_uint copying;    /* captures copying now; the compactor waits */
    pthread_mutex_t verified_lock;
    struct lmcs_map verified; /* raw payloads that were compared with their checksums (payload/verified.h) */
    uint64_t part_bytes;      /* largest part of a payload; less than libpmemobj's 16 GiB */

    enum lmcs_status (*last_close)(struct lmcs_pool *pool, struct lmcs_error *error);
    /* Opens the same pool for writing; the caller closes it. */
    enum lmcs_status (*as_writer)(struct lmcs_pool *pool, uint32_t wait_ms, struct lmcs_pool **writer,
                                  struct lmcs_error *error);
    void (*wake)(struct lmcs_pool *pool); /* NULL without a compactor, as the next */
    bool (*make_room)(struct lmcs_pool *pool, const char *held);
    void (*explain_full)(struct lmcs_pool *pool, const char *held, struct lmcs_error *error);
};

/* LMCS_INVALID: the pool of a forked child's parent. LMCS_READ_ONLY: `to_write`, and open for reading. */
enum lmcs_status lmcs_pool_check(const struct lmcs_pool *pool, bool to_write, struct lmcs_error *error);

/* Counts one more open, which lmcs_pool_close ends. */
void lmcs_pool_keep(struct lmcs_pool *pool);

/* Wakes the background thread, if any. */
void lmcs_pool_wake(struct lmcs_pool *pool);
/*
 * Compacts harder, prunes and gives unused space back, for a holder of shelf `held` (or NULL) without space. True:
 * there is more space.
 */
bool lmcs_pool_make_room(struct lmcs_pool *pool, const char *held);
/*
 * Appends warnings about policies to the message of LMCS_FULL, that of shelf `held` (or NULL) first. `error` may be
 * NULL. Outside a transaction.
 */
void lmcs_pool_explain_full(struct lmcs_pool *pool, const char *held, struct lmcs_error *error);

#endif
