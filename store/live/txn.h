/* SPDX-License-Identifier: BSD-3-Clause */
/* live/txn.h - transactions on live variables, and their members. Needs live->lock. */
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
    bool all; /* variables of the shelf, later ones too */
    bool is_declared;
    uint64_t limit_bytes;
    struct lmcs_live_body *bodies;
    uint64_t sequence; /* of the undo journal */
    uint64_t undo_at;  /* next entry */
    struct lmcs_declared *declared;
    size_t declared_count;
    size_t declared_capacity;
};

/* ---- Members (member.c) ---- */

/* Makes a body a member. `made`: new, so its pages stay shared: nothing in the pool leads to them. */
enum lmcs_status lmcs_transaction_enter(struct lmcs_transaction *transaction, struct lmcs_live_body *body, bool made,
                                        struct lmcs_error *error);
/* A body just opened or made enters if it was made or the transaction (or NULL) has all variables. */
enum lmcs_status lmcs_transaction_join(struct lmcs_live_body *body, struct lmcs_transaction *transaction, bool made,
                                       struct lmcs_error *error);
/* Whether a member has this name in the pool but not in the transaction (or NULL). */
bool lmcs_transaction_gave_up(const struct lmcs_transaction *transaction, const char *name);
/* Saves bytes about to be stored to, if declared. */
enum lmcs_status lmcs_transaction_will_store(struct lmcs_live_body *body, uint64_t offset, uint64_t bytes,
                                             struct lmcs_error *error);

#endif
