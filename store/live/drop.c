/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/drop.c - what becomes of live variables when their shelf gets another name, or is removed.
 *
 * Records know their shelf by its id, so another name concerns only those who have looked the old one up. A shelf that
 * is removed is taken out of sight as a whole; then its variables are erased, some at a time, and what a crash leaves
 * of them is erased when the pool is next opened, before anything else can be done to it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "live/live.h"
#include "pages/space.h"
#include "pages/tree.h"

enum { AT_ONCE = 64 };

/* ---- Names ---- */

static struct lmcs_live_shelf **known_shelf(struct lmcs_pool *pool, const char *name)
{
    struct lmcs_live_shelf **at = &pool->live->shelves;
    while (*at != NULL && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    return at;
}

static const struct lmcs_live_body *body_on(const struct lmcs_live_store *live, const struct lmcs_live_shelf *shelf)
{
    for (size_t i = 0; i < live->bucket_count; i++)
        for (const struct lmcs_live_body *body = live->by_id[i]; body != NULL; body = body->next_id)
            if (body->shelf == shelf)
                return body;
    return NULL;
}

static enum lmcs_status check_unheld(struct lmcs_pool *pool, const struct lmcs_live_shelf *shelf, const char *what,
                                     struct lmcs_error *error)
{
    if (shelf->held || shelf->waiting > 0)
        return lmcs_fail(error, LMCS_IN_USE, 0,
                         "%s: shelf \"%.200s\" has a transaction, a snapshot or a checkout of its live variables under "
                         "way and can't be %s",
                         pool->path, shelf->name, what);
    const struct lmcs_live_body *body = body_on(pool->live, shelf);
    if (body == NULL)
        return LMCS_OK;
    const char *name = body->record->name[0] != '\0' ? body->record->name : "(without a name)";
    return lmcs_fail(error, LMCS_IN_USE, 0,
                     "%s: live variable \"%.200s\" of shelf \"%.200s\" is open in this process, so the shelf can't be "
                     "%s: close it first",
                     pool->path, name, shelf->name, what);
}

enum lmcs_status lmcs_live_shelf_begin(struct lmcs_pool *pool, const char *name, const char *what,
                                       struct lmcs_error *error)
{
    pthread_mutex_lock(&pool->live->lock);
    const struct lmcs_live_shelf *shelf = *known_shelf(pool, name);
    enum lmcs_status status = shelf != NULL ? check_unheld(pool, shelf, what, error) : LMCS_OK;
    if (status != LMCS_OK)
        pthread_mutex_unlock(&pool->live->lock);
    return status;
}

void lmcs_live_shelf_end(struct lmcs_pool *pool, const char *name, bool gone)
{
    struct lmcs_live_shelf **at = known_shelf(pool, name), *shelf = *at;
    if (gone && shelf != NULL) {
        *at = shelf->next;
        free(shelf);
    }
    pthread_mutex_unlock(&pool->live->lock);
}

/* ---- Removal ---- */

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

/* One transaction. `count` 0: there are none. Under live->lock. */
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
