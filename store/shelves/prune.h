/* SPDX-License-Identifier: BSD-3-Clause */
/* prune.h - removing what the shelves' policies don't keep. */
#ifndef LMCS_SHELVES_PRUNE_H
#define LMCS_SHELVES_PRUNE_H

#include "records/shelf.h"

/*
 * Whether a pool holds more than the policy's budget, or will with the next snapshot. Policies without one: false.
 * Called with a transaction at hand.
 */
bool lmcs_over_budget(struct lmcs_txn *txn, const struct lmcs_policy *policy);

enum lmcs_prune_when {
    LMCS_PRUNE_SURPLUS, /* policies without a budget: where there is an eighth too many */
    LMCS_PRUNE_BUDGETS, /* those whose budget is exceeded: some at a time */
    LMCS_PRUNE_ALL      /* whatever the rules don't keep: there is no space left */
};

/*
 * Prunes by the policies of all shelves that no capture has, and of `held` (may be NULL), which the caller has.
 * *removed gets how many snapshots went. A shelf that is damaged keeps what it has, and the others have their turn:
 * then LMCS_DAMAGED, with the first one's name.
 */
enum lmcs_status lmcs_prune_pool(struct lmcs_pool *pool, enum lmcs_prune_when when, const char *held, uint64_t *removed,
                                 struct lmcs_error *error);
/* The shelf's policy was changed: look at all of it. */
void lmcs_prune_soon(struct lmcs_pool *pool, const char *shelf);

#endif
