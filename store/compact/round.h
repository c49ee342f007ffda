/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/round.h - a round of the compactor (private to compact/).
 *
 * A batch is encoded and verified outside of all locks. One transaction then switches all of it, after checking that
 * nothing it relies on has changed. A crash loses at most a batch. Damage or lack of space is recorded and skipped.
 */
#ifndef LMCS_COMPACT_ROUND_H
#define LMCS_COMPACT_ROUND_H

#include <pthread.h>
#include <stdatomic.h>

#include "compact/compact.h"
#include "compact/parity.h"
#include "compact/plan.h"
#include "compact/replace.h"
#include "records/shelf.h"

#define LMCS_BATCH_CONTENTS 512u
#define LMCS_BATCH_BYTES    ((uint64_t)64 << 20)
#define LMCS_MOST_SUSPECTS  64u
#define LMCS_EVERY_SHELF    UINT64_MAX

/* State that outlives a round. */
struct lmcs_compactor {
    pthread_mutex_t round; /* held during a round */
    atomic_uint waiting;   /* callers that wait for `round` */
    _Atomic uint64_t replaced;
    lmcs_repair_content_fn *repair;
    struct lmcs_parity_wait parity;      /* of the background thread */
    struct lmcs_known_lines known_lines; /* guarded by `round` */
};

struct lmcs_candidate {
    uint64_t content;
    uint64_t base;
    uint64_t successor; /* next content, which gets `place`; 0: none */
    uint32_t place;
    uint32_t chain; /* most deltas to undo; 0: as many as now */
};

/* Input of the plan for one snapshot. */
struct lmcs_outlook {
    uint32_t chain;
    uint32_t links;
    uint32_t keep_raw;   /* newest snapshots that stay raw; 0: the run is finished */
    uint32_t jump;       /* longest jump of a delta: snapshots that are raw when its snapshot is encoded */
    uint64_t rate_bytes; /* decoded bytes a second; 0: no limit */
    struct lmcs_policy policy;
    struct lmcs_plan_pattern pattern;
    size_t newer_count;
    struct lmcs_snapshot_df newer[LMCS_DELTA_MOST_JUMP]; /* following snapshots, nearest first */
};

struct lmcs_round {
    struct lmcs_pool *pool;
    struct lmcs_compactor *compactor;
    bool background;
    const struct lmcs_progress *progress;
    struct lmcs_throttle throttle;
    uint64_t keep;         /* bytes of free extents to leave untrimmed */
    bool urgent;           /* a writer found no space: keep only the newest snapshots raw, prune at once */
    const char *held;      /* urgent: shelf of this writer */
    uint64_t finished;     /* id of the shelf of which no snapshot stays raw; LMCS_EVERY_SHELF; 0: none */
    bool worked;           /* changed the pool */
    uint64_t swapped;      /* contents replaced */
    uint64_t parity_bytes; /* read in this turn */
    struct lmcs_candidate *candidates;
    size_t count;
    size_t capacity;
    uint64_t *links; /* that store raw candidates, or rest on them */
    size_t link_count;
    size_t link_capacity;
    struct lmcs_txn *txn; /* while collecting candidates */
    struct lmcs_outlook outlook;
    uint64_t suspects[LMCS_MOST_SUSPECTS]; /* contents with damage in their chain */
    size_t suspect_count;
    uint64_t since_ns;         /* start of the first round in a row */
    struct lmcs_passed passed; /* first damage that the round skipped */
};

/* New payloads, switched to in one transaction. */
struct lmcs_batch {
    struct lmcs_region region;
    struct lmcs_replace *items[LMCS_BATCH_CONTENTS];
    size_t count;
    uint64_t bytes;
};

/* LMCS_CANCELLED: the background must stop, or the caller's progress function returned false. */
enum lmcs_status lmcs_round_go_on(struct lmcs_round *round, uint64_t done, uint64_t total, struct lmcs_error *error);
/* Background: waits for the policy's rate. */
void lmcs_round_hold(struct lmcs_round *round, uint64_t bytes);
/* Background: prepares space for the next capture. */
enum lmcs_status lmcs_round_prepare(struct lmcs_round *round, struct lmcs_error *error);
/* Records a content for lmcs_round_repair. `context`: a round. */
void lmcs_round_suspect(void *context, uint64_t content);
/* Repairs suspects or records them as lost, so that later rounds skip them. */
enum lmcs_status lmcs_round_repair(struct lmcs_round *round, struct lmcs_error *error);
/* Whether a failure concerns `content` alone, so that the round goes on. Damage makes the content a suspect. */
bool lmcs_round_skips(struct lmcs_round *round, uint64_t content, enum lmcs_status status);
/* Returns LMCS_OK instead of LMCS_DAMAGED, which the end of the round reports. */
enum lmcs_status lmcs_round_pass_over(struct lmcs_round *round, enum lmcs_status status,
                                      const struct lmcs_error *error);
enum lmcs_status lmcs_round_pass_over_shelf(struct lmcs_round *round, uint64_t shelf_id, enum lmcs_status status,
                                            struct lmcs_error *error);
/* Returns LMCS_OK instead of LMCS_FULL: the content stays and is tried again. Smaller contents may fit; moves, pruning
 * and trimming make room. */
enum lmcs_status lmcs_unless_full(enum lmcs_status status);

enum lmcs_status lmcs_round_add(struct lmcs_round *round, const struct lmcs_candidate *candidate,
                                struct lmcs_error *error);
enum lmcs_status lmcs_round_encode(struct lmcs_round *round, struct lmcs_error *error);

/* Encodes a candidate into the batch; leaves out a content that can't be encoded. */
enum lmcs_status lmcs_batch_encode(struct lmcs_round *round, struct lmcs_batch *batch,
                                   const struct lmcs_candidate *candidate, struct lmcs_error *error);
/* Switches the batch in one transaction: all of it (`whole`), or the items with sound records. */
enum lmcs_status lmcs_batch_swap(struct lmcs_round *round, struct lmcs_batch *batch, bool whole,
                                 struct lmcs_error *error);
void lmcs_batch_end(struct lmcs_batch *batch);

/* Begins a compaction after which no snapshot of a shelf (NULL: all) is raw. */
enum lmcs_status lmcs_round_finish(struct lmcs_round *round, const char *name, struct lmcs_error *error);
enum lmcs_status lmcs_round_encode_shelves(struct lmcs_round *round, struct lmcs_error *error);
enum lmcs_status lmcs_round_rebase(struct lmcs_round *round, struct lmcs_error *error);
enum lmcs_status lmcs_round_release(struct lmcs_round *round, struct lmcs_error *error);
enum lmcs_status lmcs_round_move(struct lmcs_round *round, struct lmcs_error *error);

#endif
