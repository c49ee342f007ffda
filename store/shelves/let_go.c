/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shelves/let_go.c - lets snapshots go that are safe at a URL, as policies allow (local=).
 *
 * A request names snapshots whose copies were verified. It is obeyed as it fits the pool now: newer, tagged, prepared
 * and changed snapshots stay. The caller owns the shelf, as in prune.c, and the bases of captures in flight stay.
 */
#include <stdlib.h>
#include <string.h>

#include "records/annotation.h"
#include "records/busy.h"
#include "records/safe.h"
#include "shelves/shelves.h"

#define BATCH_SNAPSHOTS 32u

/* The newest number below which snapshots may leave. */
static enum lmcs_status find_end(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t *end,
                                 struct lmcs_error *error)
{
    struct lmcs_policy policy;
    enum lmcs_status status = LMCS_OK;
    lmcs_shelf_policy(shelf, &policy);
    uint64_t stay = policy.local > policy.keep_raw ? policy.local : policy.keep_raw;
    *end = policy.local == 0 ? 0 : shelf->df.latest + 1;
    for (uint64_t i = 0; status == LMCS_OK && i < stay && *end != 0; i++)
        status = lmcs_record_before(txn, shelf, *end, end, error);
    return status;
}

static enum lmcs_status may_go(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct lmcs_record *record,
                               const struct lmcs_safe *safe, const struct lmcs_bases *bases, bool *may,
                               struct lmcs_error *error)
{
    bool is_tagged = false;
    *may = record->df.state == LMCS_SNAPSHOT_COMMITTED && record->df.epoch <= safe->epoch &&
           record->df.meta_bytes != UINT32_MAX;
    for (size_t i = 0; i < bases->count; i++)
        *may = *may && bases->numbers[i] != record->df.number;
    if (!*may)
        return LMCS_OK;
    enum lmcs_status status = lmcs_record_is_tagged(txn, shelf, record->df.number, &is_tagged, error);
    *may = status == LMCS_OK && !is_tagged;
    return status;
}

static enum lmcs_status let_some_go(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_safe *safe,
                                    const struct lmcs_bases *bases, uint64_t *gone, struct lmcs_error *error)
{
    struct lmcs_removal removal = {0};
    uint64_t end, number = safe->first > 0 ? safe->first - 1 : 0;
    enum lmcs_status status = find_end(txn, shelf, &end, error);
    for (*gone = 0; status == LMCS_OK && *gone < BATCH_SNAPSHOTS;) {
        struct lmcs_record record;
        bool found = false, may = false;
        status = lmcs_record_after(txn, shelf, number, &number, error);
        if (status != LMCS_OK || number == 0 || number > safe->last || number >= end) {
            safe->first = safe->last + 1; /* done */
            break;
        }
        status = lmcs_record_get(txn, shelf, number, &record, &found, error);
        if (status == LMCS_OK && found)
            status = may_go(txn, shelf, &record, safe, bases, &may, error);
        if (status == LMCS_OK && may) {
            status = lmcs_shelf_let_go(txn, shelf, number, safe->url, &removal, error);
            ++*gone;
        }
        safe->first = number + 1;
    }
    return status;
}

/* One transaction for a part of the request, from which it removes the numbers that are done. */
static enum lmcs_status let_go(struct lmcs_pool *pool, struct lmcs_safe *safe, const char *name, uint64_t *gone,
                               struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_bases bases;
    bool found;
    *gone = 0;
    lmcs_busy_bases(pool, name, &bases);
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&txn, safe->shelf, &shelf, &found, error);
    if (status == LMCS_OK && found && strcmp(shelf.name, name) == 0) /* else it was renamed or removed */
        status = let_some_go(&txn, &shelf, safe, &bases, gone, error);
    else
        safe->first = safe->last + 1;
    if (status == LMCS_OK && *gone > 0) {
        status = lmcs_shelf_save(&txn, &shelf, error);
        return lmcs_txn_finish(&txn, status, error);
    }
    lmcs_txn_end(&txn);
    return status;
}

static enum lmcs_status find_name(struct lmcs_pool *pool, uint64_t id, char name[LMCS_MAX_NAME + 1],
                                  struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    bool found;
    name[0] = '\0';
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&txn, id, &shelf, &found, error);
    if (status == LMCS_OK && found && (shelf.df.flags & LMCS_SHELF_STAGING) == 0)
        memcpy(name, shelf.name, sizeof shelf.name);
    lmcs_txn_end(&txn);
    return status;
}

static enum lmcs_status obey(struct lmcs_pool *pool, struct lmcs_safe *safe, const char *held, uint64_t *count,
                             struct lmcs_error *error)
{
    char name[LMCS_MAX_NAME + 1];
    struct lmcs_busy_shelf *busy = NULL;
    enum lmcs_status status = find_name(pool, safe->shelf, name, error);
    if (status != LMCS_OK || name[0] == '\0')
        return status;
    bool mine = held != NULL && strcmp(held, name) == 0;
    if (!mine && !lmcs_shelf_try(pool, name, &busy))
        return lmcs_safe_add(pool, safe, error); /* later */
    while (status == LMCS_OK && safe->first <= safe->last) {
        uint64_t gone;
        status = let_go(pool, safe, name, &gone, error);
        *count += status == LMCS_OK ? gone : 0;
    }
    if (busy != NULL)
        lmcs_shelf_give(pool, busy);
    return status;
}

enum lmcs_status lmcs_let_go(struct lmcs_pool *pool, const char *held, uint64_t *count, struct lmcs_error *error)
{
    struct lmcs_passed passed = {.any = false};
    enum lmcs_status status = pool->fold != NULL ? pool->fold(pool, error) : LMCS_OK;
    struct lmcs_safe *list = status == LMCS_OK ? lmcs_safe_take(pool) : NULL;
    *count = 0;
    for (struct lmcs_safe *safe = list; status == LMCS_OK && safe != NULL; safe = safe->next) {
        const uint64_t id = safe->shelf;
        status = obey(pool, safe, held, count, error);
        status = lmcs_shelf_pass_over(pool, id, &passed, status, error);
    }
    lmcs_safe_free(list);
    return lmcs_passed_over(&passed, status, error);
}
