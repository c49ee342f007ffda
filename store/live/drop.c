/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/drop.c - erases the live variables of a removed shelf.
 *
 * The shelf goes out of sight first; the next open for writing erases variables that a crash leaves.
 */
#include <stdlib.h>

#include "live/change.h"
#include "live/space.h"

enum { AT_ONCE = 64 };

static uint64_t taken_bytes(const struct lmcs_live_record *record)
{
    return (record->df.form == LMCS_LIVE_TENSOR ? record->df.bytes : 0) + record->df.cell_bytes;
}

static enum lmcs_status count_one(void *context, struct lmcs_live_record *record, struct lmcs_error *error)
{
    struct lmcs_removal *removal = context;
    (void)error;
    removal->freed_bytes += taken_bytes(record);
    free(record);
    return LMCS_OK;
}

enum lmcs_status lmcs_live_count_removal(struct lmcs_txn *txn, uint64_t shelf, struct lmcs_removal *removal,
                                         struct lmcs_error *error)
{
    return lmcs_live_record_each(txn, shelf, count_one, removal, error);
}

struct some {
    struct lmcs_live_record *records[AT_ONCE];
    struct lmcs_live_change changes[AT_ONCE];
    size_t count;
};

static enum lmcs_status take_one(void *context, struct lmcs_live_record *record, struct lmcs_error *error)
{
    struct some *some = context;
    (void)error;
    some->records[some->count] = record;
    some->changes[some->count++] = (struct lmcs_live_change){.from = record};
    return some->count < AT_ONCE ? LMCS_OK : LMCS_CANCELLED;
}

/* Erases a batch. *count 0: none was left. Needs live->lock. */
static enum lmcs_status drop_some(struct lmcs_pool *pool, uint64_t shelf, struct lmcs_removal *removal, size_t *count,
                                  struct lmcs_error *error)
{
    struct some some = {.count = 0};
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_record_each(&txn, shelf, take_one, &some, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_CANCELLED && some.count == AT_ONCE)
        status = LMCS_OK;
    if (status == LMCS_OK && some.count > 0)
        status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK && some.count > 0)
        status = lmcs_live_commit_changes(pool, some.changes, some.count, 0, error);
    for (size_t i = 0; i < some.count; i++) {
        if (status == LMCS_OK) {
            removal->freed_bytes += taken_bytes(some.records[i]);
            lmcs_live_give_difference(pool, some.records[i], NULL);
        }
        free(some.records[i]);
    }
    *count = some.count;
    return status;
}

enum lmcs_status lmcs_live_drop(struct lmcs_pool *pool, uint64_t shelf, struct lmcs_removal *removal,
                                struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t count = 1; status == LMCS_OK && count > 0;) {
        pthread_mutex_lock(&pool->live->lock);
        status = drop_some(pool, shelf, removal, &count, error);
        pthread_mutex_unlock(&pool->live->lock);
    }
    return status;
}
