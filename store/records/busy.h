/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/busy.h - the shelves that this process is changing, and the threads that hold them.
 *
 * One operation at a time holds a shelf: a capture, a removal, a fork, a restore or a round of pruning. An asynchronous
 * commit gives the shelf to the next capture before it is durable (CAPTURES.md), but to no other operation.
 * pool->captures guards everything here.
 */
#ifndef LMCS_RECORDS_BUSY_H
#define LMCS_RECORDS_BUSY_H

#include "pages/pool.h"

/* A capture takes the shelf while fewer captures, and fewer bytes, wait for their commit. */
#define LMCS_MOST_IN_FLIGHT       16u
#define LMCS_MOST_BYTES_IN_FLIGHT ((uint64_t)16 << 20)

/* A capture's place in the order of commits, which is the order of begins. In the capture, until its end. */
struct lmcs_ticket {
    struct lmcs_ticket *next;
    bool is_queued;  /* for an asynchronous commit; false: open, so the last of its shelf */
    uint64_t base;   /* newest snapshot of the shelf at the begin, prepared ones included; 0: none, or not needed */
    uint64_t number; /* promised at the call of commit */
    uint64_t bytes;  /* written, and memory; set when queued */
    uint64_t loaded; /* parent: the shelf's struct lmcs_loaded at the call of commit, or a later predecessor */
    uint64_t loads;
};

/* The failure of an asynchronous capture that is not yet given to a caller. */
struct lmcs_failure {
    struct lmcs_failure *next;
    uint64_t id; /* from 1, by shelf */
    struct lmcs_error error;
};

/* A shelf's state, by name, until the pool closes. */
struct lmcs_busy_shelf {
    struct lmcs_busy_shelf *next;
    char *name;
    bool busy;
    bool has_owner; /* held by thread `owner`; false: by a commit, a promised capture or the compactor */
    pthread_t owner;
    bool waits;                    /* for a transaction of the shelf's live variables */
    struct lmcs_ticket *tickets;   /* captures in flight */
    bool committing;               /* a thread commits those that are queued */
    uint64_t failed;               /* asynchronous captures so far */
    struct lmcs_failure *failures; /* oldest first */
    struct lmcs_pace pace;         /* begins with the pool's */
    struct lmcs_memory *memory;    /* capture/memory.h; only its holder uses it */
    uint64_t dropping;   /* a prepared snapshot that is being dropped, which no capture may take as its base */
    uint64_t drops;      /* so far */
    uint64_t prune_from; /* the compactor skips the shelf while its next number is below ... */
    uint64_t prune_at;   /* ... and the time in ns is earlier; 0: no such time */
};

/*
 * Waits for the shelf and its captures in flight, and holds it for this thread. Instead of an endless wait:
 * LMCS_INVALID when this thread's own capture holds it, or the holder waits for this thread's live transaction;
 * LMCS_IN_USE when the holder's thread waits for a shelf of this thread. Also fails, once, with the first failure of
 * earlier asynchronous captures and their number.
 */
enum lmcs_status lmcs_shelf_take(struct lmcs_pool *pool, const char *name, struct lmcs_busy_shelf **taken,
                                 struct lmcs_error *error);
/* For a capture: waits for those in flight only if they are too many, and adds `ticket`. */
enum lmcs_status lmcs_shelf_take_for(struct lmcs_pool *pool, const char *name, struct lmcs_ticket *ticket,
                                     struct lmcs_busy_shelf **taken, struct lmcs_error *error);
/* Whether lmcs_shelf_take_for would wait. */
bool lmcs_shelf_is_full(struct lmcs_pool *pool, const char *name);
/* Waits until all captures before `ticket` have ended. False: there were none. */
bool lmcs_ticket_wait(struct lmcs_pool *pool, const struct lmcs_busy_shelf *busy, const struct lmcs_ticket *ticket);
/* Ends a ticket. The caller holds pool->captures. */
void lmcs_ticket_end(struct lmcs_busy_shelf *busy, struct lmcs_ticket *ticket);
/* Lists the snapshots whose contents captures in flight may share. While the shelf is held, none is added. */
struct lmcs_bases {
    uint64_t numbers[LMCS_MOST_IN_FLIGHT + 1];
    size_t count;
};
void lmcs_busy_bases(struct lmcs_pool *pool, const char *name, struct lmcs_bases *bases);
/*
 * Before a prepared snapshot is dropped: waits until no capture in flight has it as its base, and until
 * lmcs_base_drop_end keeps those that begin from taking it. Needs no shelf. Fails like lmcs_shelf_take instead of an
 * endless wait.
 */
enum lmcs_status lmcs_base_drop_begin(struct lmcs_pool *pool, const char *name, uint64_t number,
                                      struct lmcs_busy_shelf **busy, struct lmcs_error *error);
void lmcs_base_drop_end(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy);
/* For a capture that holds the shelf, before it looks for its base. Waits for a drop; returns their number. */
uint64_t lmcs_base_drops(struct lmcs_pool *pool, const struct lmcs_busy_shelf *busy, struct lmcs_ticket *ticket);
/* Sets the ticket's base. False: a snapshot may have been dropped since lmcs_base_drops; look again. */
bool lmcs_base_take(struct lmcs_pool *pool, const struct lmcs_busy_shelf *busy, struct lmcs_ticket *ticket,
                    uint64_t base, uint64_t drops);
/* For a background thread, beside captures that are queued. False: held, or no memory. */
bool lmcs_shelf_try(struct lmcs_pool *pool, const char *name, struct lmcs_busy_shelf **busy);
void lmcs_shelf_give(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy);
/* Made if needed. The caller holds pool->captures. NULL: no memory. */
struct lmcs_busy_shelf *lmcs_busy_find(struct lmcs_pool *pool, const char *name, struct lmcs_error *error);
/* Removes a failure, unless it was given to a caller. The caller holds pool->captures. */
void lmcs_failure_take(struct lmcs_busy_shelf *busy, uint64_t id);
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
    uint64_t number; /* loaded for training, committed or prepared last by this process; 0: none */
    uint64_t loads;  /* counts lmcs_snapshot_mark_loaded */
};
/* Made if needed. The caller holds pool->captures. NULL: no memory. */
struct lmcs_loaded *lmcs_loaded_find(struct lmcs_pool *pool, uint64_t shelf);
/* For a removed shelf. */
void lmcs_loaded_forget(struct lmcs_pool *pool, uint64_t shelf);

#endif
