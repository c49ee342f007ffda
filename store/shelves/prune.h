/* SPDX-License-Identifier: BSD-3-Clause */
/* shelves/prune.h - removes the snapshots that policies do not keep. */
#ifndef LMCS_SHELVES_PRUNE_H
#define LMCS_SHELVES_PRUNE_H

#include "records/shelf.h"

/*
 * Whether the pool exceeds the policy's budget, or will with the next snapshot. False without a budget. Called within a
 * transaction.
 */
bool lmcs_over_budget(struct lmcs_txn *txn, const struct lmcs_policy *policy);

enum lmcs_prune_when {
    LMCS_PRUNE_SURPLUS, /* policies without a budget, where an eighth too many have gathered */
    LMCS_PRUNE_BUDGETS, /* policies whose budget is exceeded: some at a time */
    LMCS_PRUNE_ALL      /* every snapshot that the rules do not keep: there is no space left */
};

/*
 * Prunes by the policies of all shelves that no capture owns, and of `held` (may be NULL), which the caller owns.
 * *removed counts snapshots. Skips damaged shelves, then returns LMCS_DAMAGED for the first of them.
 */
enum lmcs_status lmcs_prune_pool(struct lmcs_pool *pool, enum lmcs_prune_when when, const char *held, uint64_t *removed,
                                 struct lmcs_error *error);
/* The shelf's policy has changed: examine the whole shelf next time. */
void lmcs_prune_soon(struct lmcs_pool *pool, const char *shelf);

#endif
