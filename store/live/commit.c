/* SPDX-License-Identifier: BSD-3-Clause */
/* live/commit.c - commits changes of records, and gives bodies their new records. */
#include <stdlib.h>

#include "live/cell.h"
#include "live/change.h"
#include "live/map.h"

enum lmcs_status lmcs_live_commit_changes(struct lmcs_pool *pool, const struct lmcs_live_change *changes, size_t count,
                                          uint64_t sequence, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        txn.only_allocates = txn.only_allocates || changes[i].to != NULL;
    status = lmcs_live_change_put(&txn, changes, count, error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    txn.root.next_live = pool->live->next_id;
    if (sequence != 0)
        txn.root.live_committed = sequence;
    return lmcs_txn_commit(&txn, error);
}

struct lmcs_live_record *lmcs_live_body_set(struct lmcs_live_body *body, struct lmcs_live_record *record)
{
    struct lmcs_live_record *old = body->record;
    struct lmcs_error ignored;
    pthread_mutex_lock(&body->lock);
    body->record = record;
    if (record->df.cell != old->df.cell) {
        free(body->pending);
        body->pending = NULL;
        enum lmcs_status status = lmcs_cell_load(body, &ignored);
        body->is_unread = status != LMCS_OK;
        body->is_damaged = status == LMCS_DAMAGED;
    }
    lmcs_live_move(body);
    pthread_mutex_unlock(&body->lock);
    return old;
}
