/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shelves/drop.c - removes whole shelves, and staging shelves left by a removal or a restore.
 *
 * One commit turns the shelf into a staging shelf, which is not listed. Its snapshots then go, some in a commit, and at
 * last the shelf. After a crash or a full pool the next open for writing removes the rest. A restore fills staging
 * shelves (transfer/stage.c); those that it marks as kept stay until a restore continues or drops them.
 */
#include "shelves/shelves.h"

#include <string.h>

#include "live/live.h"
#include "pages/tree.h"
#include "records/busy.h"
#include "records/origin.h"

enum lmcs_status lmcs_staging_remove(struct lmcs_pool *pool, uint64_t id, const uint64_t *numbers, size_t count,
                                     struct lmcs_removal *removal, bool *done, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    *done = false;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load(&txn, id, &shelf, error);
    for (size_t i = 0; status == LMCS_OK && i < count && !*done; i++) {
        uint64_t number = numbers != NULL ? numbers[i] : 0;
        if (numbers == NULL)
            status = lmcs_record_after(&txn, &shelf, 0, &number, error);
        *done = number == 0;
        if (status == LMCS_OK && !*done)
            status = lmcs_shelf_remove(&txn, &shelf, number, removal, error);
    }
    if (status == LMCS_OK)
        status = *done ? lmcs_shelf_delete(&txn, &shelf, error) : lmcs_shelf_save(&txn, &shelf, error);
    return lmcs_txn_finish(&txn, status, error);
}

enum lmcs_status lmcs_staging_drop(struct lmcs_pool *pool, uint64_t id, struct lmcs_removal *removal,
                                   struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_drop(pool, id, removal, error);
    for (bool done = false; status == LMCS_OK && !done;)
        status = lmcs_staging_remove(pool, id, NULL, LMCS_REMOVALS, removal, &done, error);
    return status;
}

static enum lmcs_status drop_shelf(struct lmcs_pool *pool, uint64_t id, struct lmcs_error *error)
{
    struct lmcs_removal removal = {0};
    return lmcs_staging_drop(pool, id, &removal, error);
}

static enum lmcs_status drop_if_left(struct lmcs_pool *pool, uint64_t id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load(&txn, id, &shelf, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && (shelf.df.flags & (LMCS_SHELF_STAGING | LMCS_SHELF_KEPT)) == LMCS_SHELF_STAGING)
        status = drop_shelf(pool, id, error);
    /* The pool must open so that room can be made. The next open tries again, perhaps one of a newer version. */
    return status == LMCS_FULL || lmcs_is_unusable(status) ? LMCS_OK : status;
}

/* Damage is passed over, also in the list of shelves: the sound shelves stay usable. */
static enum lmcs_status for_each_shelf(struct lmcs_pool *pool,
                                       enum lmcs_status (*drop)(struct lmcs_pool *pool, uint64_t id,
                                                                struct lmcs_error *error),
                                       struct lmcs_error *error)
{
    uint64_t ids[64], first = 0;
    size_t got = 0;
    enum lmcs_status status;
    do {
        struct lmcs_txn txn;
        status = lmcs_txn_read(pool, &txn, error);
        if (status != LMCS_OK)
            return status;
        status = lmcs_shelf_ids(&txn, first, ids, 64, &got, error);
        lmcs_txn_end(&txn);
        status = lmcs_is_unusable(status) ? LMCS_OK : status;
        for (size_t i = 0; status == LMCS_OK && i < got; i++)
            status = drop(pool, ids[i], error);
        first = got > 0 ? ids[got - 1] + 1 : 0;
    } while (status == LMCS_OK && got == 64);
    return status;
}

enum lmcs_status lmcs_staging_drop_left(struct lmcs_pool *pool, struct lmcs_error *error)
{
    return for_each_shelf(pool, drop_if_left, error);
}

/* Drops the shelf if an earlier restore kept it and no restore has its name. */
static enum lmcs_status drop_if_kept(struct lmcs_pool *pool, uint64_t id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_busy_shelf *busy;
    bool found = false;
    for (int look = 0; look < 2; look++) { /* first for its name, then as the owner of the name */
        enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
        if (status != LMCS_OK)
            return status;
        status = lmcs_shelf_load_if(&txn, id, &shelf, &found, error);
        lmcs_txn_end(&txn);
        found = found && (shelf.df.flags & LMCS_SHELF_KEPT) != 0;
        if (look == 1 && status == LMCS_OK && found)
            status = drop_shelf(pool, id, error);
        if (look == 1)
            lmcs_shelf_give(pool, busy);
        if (lmcs_is_unusable(status)) /* it stays, perhaps for a newer version */
            return LMCS_OK;
        if (status != LMCS_OK || !found || (look == 0 && !lmcs_shelf_try(pool, shelf.name, &busy)))
            return status;
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_staging_drop_kept(struct lmcs_pool *pool, struct lmcs_error *error)
{
    return for_each_shelf(pool, drop_if_kept, error);
}

/* ---- On request ---- */

enum lmcs_status lmcs_shelf_check_unprepared(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    bool found = false;
    enum lmcs_status status = lmcs_root_open(&cursor, txn, LMCS_TREE_GROUPS, (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && !found && lmcs_cursor_valid(cursor)) {
        uint64_t id = 0;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        if (bytes >= sizeof id)
            memcpy(&id, value, sizeof id);
        found = id == shelf->df.id;
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    if (status == LMCS_OK && found)
        return lmcs_fail(error, LMCS_IN_USE, 0,
                         "%s: shelf \"%s\" has a prepared snapshot that awaits its group's decision: resolve it first",
                         txn->pool->path, shelf->name);
    return status;
}

static enum lmcs_status hide(struct lmcs_txn *txn, const char *name, uint64_t *id, struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    enum lmcs_status status = lmcs_shelf_get(txn, name, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_check_unprepared(txn, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_origin_forget(txn, shelf.df.id, shelf.name, error);
    if (status != LMCS_OK)
        return status;
    shelf.df.flags |= LMCS_SHELF_STAGING;
    txn->root.snapshot_count -= shelf.df.snapshot_count;
    *id = shelf.df.id;
    return lmcs_shelf_save(txn, &shelf, error);
}

/* Counts by removing everything in a transaction that is not committed. */
static enum lmcs_status count_removal(struct lmcs_pool *pool, const char *name, struct lmcs_removal *removal,
                                      struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    uint64_t number = 0;
    enum lmcs_status status = lmcs_live_shelf_begin(pool, name, "removed", error);
    if (status != LMCS_OK)
        return status;
    lmcs_live_shelf_end(pool, name, false);
    status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_get(&txn, name, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_check_unprepared(&txn, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_live_count_removal(&txn, shelf.df.id, removal, error);
    while (status == LMCS_OK) {
        status = lmcs_record_after(&txn, &shelf, 0, &number, error);
        if (status != LMCS_OK || number == 0)
            break;
        status = lmcs_shelf_remove(&txn, &shelf, number, removal, error);
    }
    lmcs_txn_end(&txn);
    return status;
}

static enum lmcs_status hide_in_txn(struct lmcs_pool *pool, const char *name, uint64_t *id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = hide(&txn, name, id, error);
    return lmcs_txn_finish(&txn, status, error);
}

static enum lmcs_status drop_now(struct lmcs_pool *pool, const char *name, struct lmcs_removal *removal,
                                 struct lmcs_error *error)
{
    uint64_t id = 0;
    enum lmcs_status status = lmcs_live_shelf_begin(pool, name, "removed", error);
    if (status != LMCS_OK)
        return status;
    status = hide_in_txn(pool, name, &id, error);
    lmcs_live_shelf_end(pool, name, status == LMCS_OK);
    if (status != LMCS_OK)
        return status;
    lmcs_loaded_forget(pool, id);
    status = lmcs_staging_drop(pool, id, removal, error);
    if (status == LMCS_FULL) /* the shelf is hidden; the next open removes the rest */
        return LMCS_OK;
    if (status != LMCS_OK)
        lmcs_error_prefix(error, "the shelf \"%.200s\" is gone, but not all of it could be removed: ", name);
    return status;
}

enum lmcs_status lmcs_shelf_drop(struct lmcs_pool *pool, const char *shelf, bool dry_run, struct lmcs_removal *removal,
                                 struct lmcs_error *error)
{
    struct lmcs_busy_shelf *busy;
    struct lmcs_removal counted = {0};
    const char *name = shelf == NULL ? "" : shelf;
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_take(pool, name, &busy, error);
    if (status != LMCS_OK)
        return status;
    status = dry_run ? count_removal(pool, name, &counted, error) : drop_now(pool, name, &counted, error);
    lmcs_shelf_give(pool, busy);
    if (status != LMCS_OK)
        return status;
    if (removal != NULL)
        *removal = counted;
    if (!dry_run)
        lmcs_pool_wake(pool);
    return LMCS_OK;
}
