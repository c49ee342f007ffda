/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/compact.h - face of compact/, the room that stores older contents smaller: deltas, links, moves, parity.
 *
 * Uses base, media, pages, records, payload, links, shelves. Rounds run in a caller's thread or in that of
 * pool/background.c.
 */
#ifndef LMCS_COMPACT_COMPACT_H
#define LMCS_COMPACT_COMPACT_H

#include "base/usage.h"
#include "pages/pool.h"

/* Repairs the payloads below `content`, or records them as lost. */
typedef enum lmcs_status lmcs_repair_content_fn(struct lmcs_pool *pool, uint64_t content, struct lmcs_error *error);

/* Sets pool->compactor. `repair` gets each content that a round found damaged, after the round. */
enum lmcs_status lmcs_compactor_new(struct lmcs_pool *pool, lmcs_repair_content_fn *repair, struct lmcs_error *error);
void lmcs_compactor_free(struct lmcs_pool *pool);
/* Counts contents replaced since the pool was opened. */
uint64_t lmcs_compactor_replaced(const struct lmcs_pool *pool);

/*
 * Slows background work down. Used by one thread. must_stop NULL: a caller's own work, which neither waits nor stops,
 * nor yields.
 */
struct lmcs_throttle {
    struct lmcs_pool *pool;
    bool (*must_stop)(void *context);
    void *context;
    uint64_t next_ns; /* a limited rate allows no bytes before this time */
    struct lmcs_yield yield;
};
/* Waits while a capture copies. False: stop, or a caller waits for this work to end (lmcs_idle_hurry). */
bool lmcs_throttle_go_on(struct lmcs_throttle *throttle);
/* Waits until `bytes` are due at `rate` bytes/s (0: no limit) and, if other threads need the processors, until this
 * thread has rested (base/usage.h). A hurry ends the wait. */
void lmcs_throttle_hold(struct lmcs_throttle *throttle, uint64_t rate, uint64_t bytes);

/* Runs rounds until nothing is left to do. LMCS_CANCELLED: must_stop returned true. */
enum lmcs_status lmcs_compact_in_background(struct lmcs_pool *pool, bool (*must_stop)(void *context), void *context,
                                            struct lmcs_error *error);
/* Makes room after LMCS_FULL: keeps only the newest snapshots raw, prunes by policies, trims. `held`: shelf that the
 * caller owns, or NULL. True: there is more room. */
bool lmcs_compact_for_space(struct lmcs_pool *pool, const char *held);

#endif
