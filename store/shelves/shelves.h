/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shelves/shelves.h - face of shelves/, the room of whole shelves: policies, tags, forks, renames, removal, pruning.
 * Most of it is public (lmcstore.h).
 */
#ifndef LMCS_SHELVES_SHELVES_H
#define LMCS_SHELVES_SHELVES_H

#include "records/shelf.h"

/* ---- prune.c ---- */

/* Whether the pool and `other_bytes` exceed the policy's budget, or will with the next snapshot; false: no budget. In a
 * transaction. */
bool lmcs_over_budget(struct lmcs_txn *txn, const struct lmcs_policy *policy, uint64_t other_bytes);

enum lmcs_prune_when {
    LMCS_PRUNE_SURPLUS, /* policies without a budget, where an eighth too many have gathered */
    LMCS_PRUNE_BUDGETS, /* policies whose budget is exceeded: some at a time */
    LMCS_PRUNE_ALL      /* all that the rules do not keep: there is no space left */
};

/*
 * Prunes by the policies of all shelves that no capture owns, and of `held` (may be NULL), which the caller owns.
 * *removed counts snapshots. Skips damaged shelves, then returns LMCS_DAMAGED for the first of them.
 */
enum lmcs_status lmcs_prune_pool(struct lmcs_pool *pool, enum lmcs_prune_when when, const char *held, uint64_t *removed,
                                 struct lmcs_error *error);
/* After a change of the policy: examine the whole shelf next time. */
void lmcs_prune_soon(struct lmcs_pool *pool, const char *shelf);

/* ---- let_go.c ---- */

/*
 * Obeys requests to let snapshots go (records/safe.h), for shelves that no capture owns, and for `held` (may be NULL).
 * Others wait. *count: of snapshots.
 */
enum lmcs_status lmcs_let_go(struct lmcs_pool *pool, const char *held, uint64_t *count, struct lmcs_error *error);

/* ---- warning.c ---- */

/* For pool->explain_full. */
void lmcs_policy_warn_full(struct lmcs_pool *pool, const char *held, struct lmcs_error *error);

/* ---- drop.c ---- */

#define LMCS_REMOVALS 16u /* snapshots in one transaction */

/*
 * Removes `count` snapshots of a staging shelf in one transaction: `numbers`, or (NULL) the oldest. *done: none was
 * left, and the shelf was removed as well. Adds to *removal.
 */
enum lmcs_status lmcs_staging_remove(struct lmcs_pool *pool, uint64_t id, const uint64_t *numbers, size_t count,
                                     struct lmcs_removal *removal, bool *done, struct lmcs_error *error);
/* LMCS_IN_USE: the shelf has a prepared snapshot. */
enum lmcs_status lmcs_shelf_check_unprepared(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_error *error);
/* Removes a staging shelf with all snapshots and live variables, in several transactions. Adds to *removal. */
enum lmcs_status lmcs_staging_drop(struct lmcs_pool *pool, uint64_t id, struct lmcs_removal *removal,
                                   struct lmcs_error *error);
/* Removes staging shelves that a crash has left, except kept ones. Called when a pool is opened for writing. */
enum lmcs_status lmcs_staging_drop_left(struct lmcs_pool *pool, struct lmcs_error *error);
/* Removes staging shelves that earlier restores kept, unless a restore is using them. */
enum lmcs_status lmcs_staging_drop_kept(struct lmcs_pool *pool, struct lmcs_error *error);

#endif
