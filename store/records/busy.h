/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/busy.h - the shelves that this process is changing, and the threads that hold them.
 *
 * One operation at a time holds a shelf: a capture (until durable), a removal, a fork, a restore or a round of pruning.
 * pool->captures guards everything here.
 */
#ifndef LMCS_RECORDS_BUSY_H
#define LMCS_RECORDS_BUSY_H

#include "pages/pool.h"

/* A shelf's state, by name, until the pool closes. */
struct lmcs_busy_shelf {
    struct lmcs_busy_shelf *next;
    char *name;
    bool busy;
    bool has_owner; /* held by thread `owner`; false: by a background commit or the compactor */
    pthread_t owner;
    bool waits;          /* for a transaction of the shelf's live variables */
    uint64_t failures;   /* of asynchronous captures */
    uint64_t unreported; /* the failure not yet given to a caller; 0: none */
    struct lmcs_error failure;
    uint64_t prune_from; /* the compactor skips the shelf while its next number is below ... */
    uint64_t prune_at;   /* ... and the time in ns is earlier; 0: no such time */
};

/*
 * Waits for the shelf and holds it for this thread. Instead of an endless wait: LMCS_INVALID when this thread's own
 * capture holds it, or the holder waits for this thread's live transaction; LMCS_IN_USE when the holder's thread waits
 * for a shelf of this thread. Also fails, once, with the failure of an earlier asynchronous capture.
 */
enum lmcs_status lmcs_shelf_take(struct lmcs_pool *pool, const char *name, struct lmcs_busy_shelf **taken,
                                 struct lmcs_error *error);
/* For a background thread. False: held, or no memory. */
bool lmcs_shelf_try(struct lmcs_pool *pool, const char *name, struct lmcs_busy_shelf **busy);
void lmcs_shelf_give(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy);
/* Made if needed. The caller holds pool->captures. NULL: no memory. */
struct lmcs_busy_shelf *lmcs_busy_find(struct lmcs_pool *pool, const char *name, struct lmcs_error *error);
/* Waits for asynchronous captures. Returns the first failure not yet given to a caller. */
enum lmcs_status lmcs_busy_settle(struct lmcs_pool *pool, struct lmcs_error *error);
/* Frees entries of busy and loaded shelves, at close. */
void lmcs_busy_free(struct lmcs_pool *pool);

/* Holds a shelf's live variables by a transaction, snapshot or checkout. The caller owns the memory. */
struct lmcs_live_holder {
    struct lmcs_live_holder *next;
    pthread_t thread;
    const char *shelf;
};
void lmcs_live_holder_enter(struct lmcs_pool *pool, struct lmcs_live_holder *holder);
void lmcs_live_holder_leave(struct lmcs_pool *pool, struct lmcs_live_holder *holder);

/* The snapshot that this process continues from. Keyed by the shelf's id, which is never reused. */
struct lmcs_loaded {
    struct lmcs_loaded *next;
    uint64_t shelf;
    uint64_t number;         /* loaded for training or committed last by this process; 0: none */
    uint64_t loads;          /* counts lmcs_snapshot_mark_loaded ... */
    uint64_t prepared_loads; /* ... and is copied here when a snapshot is prepared */
};
/* Made if needed. The caller holds pool->captures. NULL: no memory. */
struct lmcs_loaded *lmcs_loaded_find(struct lmcs_pool *pool, uint64_t shelf);
/* For a removed shelf. */
void lmcs_loaded_forget(struct lmcs_pool *pool, uint64_t shelf);

/* The encode gate: captures that write deltas, any number, exclude compactor steps that replace bases. */
/* Waits until the compactor replaces no base. */
void lmcs_encode_gate_enter(struct lmcs_pool *pool);
void lmcs_encode_gate_leave(struct lmcs_pool *pool);
/* For the compactor. False: a capture encodes. */
bool lmcs_encode_gate_close(struct lmcs_pool *pool);
void lmcs_encode_gate_open(struct lmcs_pool *pool);

#endif
