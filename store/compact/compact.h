/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/compact.h - face of compact/, the room that stores older contents smaller: deltas, links, moves, parity.
 *
 * Uses base, media, pages, records, payload, shelves. pool/background.c owns the thread; this room owns the rounds
 * (compact.c describes them), which run in that thread or in a caller's.
 */
#ifndef LMCS_COMPACT_COMPACT_H
#define LMCS_COMPACT_COMPACT_H

#include "pages/pool.h"

/* Repairs the payloads that `content` rests on, or records them as lost. */
typedef enum lmcs_status lmcs_repair_content_fn(struct lmcs_pool *pool, uint64_t content, struct lmcs_error *error);

/* Sets pool->compactor. `repair` is called after a round for each content that the round found damaged. */
enum lmcs_status lmcs_compactor_new(struct lmcs_pool *pool, lmcs_repair_content_fn *repair, struct lmcs_error *error);
void lmcs_compactor_free(struct lmcs_pool *pool);
/* Contents replaced since the pool was opened. */
uint64_t lmcs_compactor_replaced(const struct lmcs_pool *pool);

/*
 * Slows background work down for the sake of others. Used by one thread. A caller's own work sets must_stop to NULL:
 * it neither waits nor stops.
 */
struct lmcs_throttle {
    struct lmcs_pool *pool;
    bool (*must_stop)(void *context);
    void *context;
    uint64_t next_ns; /* time before which a limited rate allows no further bytes */
};
/* Waits while a capture copies. False: stop as soon as possible. */
bool lmcs_throttle_go_on(struct lmcs_throttle *throttle);
/* Waits until `bytes` are due at `rate` bytes a second (0: no limit), unless a caller waits for a round. */
void lmcs_throttle_hold(struct lmcs_throttle *throttle, uint64_t rate, uint64_t bytes);

/* Runs rounds in the background thread until nothing is left to do. LMCS_CANCELLED: must_stop returned true. */
enum lmcs_status lmcs_compact_in_background(struct lmcs_pool *pool, bool (*must_stop)(void *context), void *context,
                                            struct lmcs_error *error);
/*
 * Makes room for a writer that got LMCS_FULL: keeps only the newest snapshots raw, prunes by the policies, and returns
 * unused space. `held` (may be NULL) is the shelf that the caller owns. True: there is more room than before.
 */
bool lmcs_compact_for_space(struct lmcs_pool *pool, const char *held);

#endif
