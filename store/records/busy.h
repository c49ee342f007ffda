/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/busy.h - the shelves that this process is changing, and the threads that hold them.
 *
 * One operation at a time holds a shelf: a capture (from begin until it is durable), a removal, a fork, a restore or a
 * round of pruning. Everything here is guarded by pool->captures.
 */
#ifndef LMCS_RECORDS_BUSY_H
#define LMCS_RECORDS_BUSY_H

#include "pages/pool.h"

/* A shelf that this process has used, by name. Kept until the pool closes. */
struct lmcs_busy_shelf {
    struct lmcs_busy_shelf *next;
    char *name;
    bool busy;
    bool has_owner; /* held by thread `owner`; false: by a commit in the background or by the compactor */
    pthread_t owner;
    bool waits;        /* its capture waits for a transaction of the shelf's live variables to end */
    uint64_t failures; /* of asynchronous captures, counted */
    uint64_t untold;   /* the failure that no caller has been given yet; 0: none */
    struct lmcs_error failure;
    uint64_t prune_from; /* the compactor skips the shelf while its next number is below this one */
};

/*
 * Waits until the shelf is free, then holds it for this thread. Fails instead of waiting where the wait would never
 * end: LMCS_INVALID when this thread's own capture holds the shelf, or the holder waits for a live transaction of this
 * thread; LMCS_IN_USE when the holder's thread waits for a shelf that this thread holds. Also fails, once, with the
 * failure of an earlier asynchronous capture of the shelf.
 */
enum lmcs_status lmcs_shelf_take(struct lmcs_pool *pool, const char *name, struct lmcs_busy_shelf **busy,
                                 struct lmcs_error *error);
/* Holds the shelf for a background thread. False: it is held, or there is no memory. */
bool lmcs_shelf_try(struct lmcs_pool *pool, const char *name, struct lmcs_busy_shelf **busy);
void lmcs_shelf_give(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy);
/* The entry of a shelf, made if needed. The caller holds pool->captures. NULL: no memory. */
struct lmcs_busy_shelf *lmcs_busy_find(struct lmcs_pool *pool, const char *name, struct lmcs_error *error);
/* Waits for asynchronous captures. Returns the first failure among them that no caller has been given yet. */
enum lmcs_status lmcs_busy_settle(struct lmcs_pool *pool, struct lmcs_error *error);
/* Frees all entries of busy and loaded shelves. The pool is closing. */
void lmcs_busy_free(struct lmcs_pool *pool);

/* A thread that holds a shelf's live variables: a transaction, a snapshot or a checkout. The caller owns the memory. */
struct lmcs_live_holder {
    struct lmcs_live_holder *next;
    pthread_t thread;
    const char *shelf; /* its name */
};
/* Records this thread as the holder; lmcs_shelf_take reads that to detect waits that would never end. */
void lmcs_live_holder_enter(struct lmcs_pool *pool, struct lmcs_live_holder *holder);
void lmcs_live_holder_leave(struct lmcs_pool *pool, struct lmcs_live_holder *holder);

/* The snapshot that this process continues from on a shelf. Keyed by the shelf's id, which is never reused. */
struct lmcs_loaded {
    struct lmcs_loaded *next;
    uint64_t shelf;
    uint64_t number;         /* last loaded for training or committed by this process; 0: none */
    uint64_t loads;          /* counts lmcs_snapshot_mark_loaded ... */
    uint64_t prepared_loads; /* ... and is copied here when a snapshot is prepared */
};
/* The entry of a shelf, made if needed. The caller holds pool->captures. NULL: no memory. */
struct lmcs_loaded *lmcs_loaded_find(struct lmcs_pool *pool, uint64_t shelf);
/* Forgets a shelf that was removed. */
void lmcs_loaded_forget(struct lmcs_pool *pool, uint64_t shelf);

/*
 * The encode gate: captures that write deltas and compactor steps that replace bases exclude each other. Any number of
 * captures may encode at once.
 */
/* Waits until the compactor replaces no base, then enters. */
void lmcs_encode_gate_enter(struct lmcs_pool *pool);
void lmcs_encode_gate_leave(struct lmcs_pool *pool);
/* For the compactor. False: a capture encodes; the gate stays open. */
bool lmcs_encode_gate_close(struct lmcs_pool *pool);
void lmcs_encode_gate_open(struct lmcs_pool *pool);

#endif
