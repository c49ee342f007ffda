/* SPDX-License-Identifier: BSD-3-Clause */
/* live/txn.h - transactions on live variables, and their members. All functions need live->lock. */
#ifndef LMCS_LIVE_TXN_H
#define LMCS_LIVE_TXN_H

#include "live/body.h"

struct lmcs_declared {
    struct lmcs_live_body *body;
    uint64_t offset;
    uint64_t bytes;
};

struct lmcs_transaction {
    struct lmcs_pool *pool;
    struct lmcs_live_shelf *shelf;
    bool all; /* variables of the shelf, also those opened later */
    bool is_declared;
    uint64_t limit_bytes;
    struct lmcs_live_body *bodies;
    uint64_t sequence; /* of the undo journal */
    uint64_t undo_at;  /* position of its next entry */
    struct lmcs_declared *declared;
    size_t declared_count;
    size_t declared_capacity;
};

/* ---- Members (member.c) ---- */

/* Makes a body a member. `made`: it is new, so its pages stay shared, since nothing in the pool leads to them. */
enum lmcs_status lmcs_transaction_enter(struct lmcs_transaction *transaction, struct lmcs_live_body *body, bool made,
                                        struct lmcs_error *error);
/*
 * Enters a body that was just opened or made, if the transaction (NULL: none) has all variables of the shelf, or if it
 * was made.
 */
enum lmcs_status lmcs_transaction_join(struct lmcs_live_body *body, struct lmcs_transaction *transaction, bool made,
                                       struct lmcs_error *error);
/* Returns whether a member has this name in the pool, but not in the transaction. `transaction` may be NULL. */
bool lmcs_transaction_gave_up(const struct lmcs_transaction *transaction, const char *name);
/* Saves bytes that a function is about to store to, if the transaction of the body is declared. */
enum lmcs_status lmcs_transaction_will_store(struct lmcs_live_body *body, uint64_t offset, uint64_t bytes,
                                             struct lmcs_error *error);

#endif
