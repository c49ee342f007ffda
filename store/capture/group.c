/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/group.c - commits, drops and lists prepared snapshots: second phase of a commit across pools (CAPTURES.md).
 *
 * A drop does not hold the shelf: it waits for the captures in flight that may share the snapshot's contents.
 */
#include <stdlib.h>
#include <string.h>

#include "pages/pool.h"
#include "pages/tree.h"
#include "payload/attachment.h"
#include "records/busy.h"
#include "records/shelf.h"

struct resolving {
    struct lmcs_pool *pool;
    struct lmcs_key_df group;
    bool commit;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
};

/* Loads the shelf and the record of the group's snapshot. */
static enum lmcs_status find(struct resolving *r, struct lmcs_txn *txn, struct lmcs_error *error)
{
    uint64_t value[2];
    bool found;
    const size_t bytes = sizeof value;
    enum lmcs_status status = lmcs_root_get(txn, LMCS_TREE_GROUPS, r->group, value, bytes, bytes, NULL, &found, error);
    if (status == LMCS_OK && !found)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: there is no prepared snapshot of this group", txn->pool->path);
    if (status == LMCS_OK)
        status = lmcs_shelf_load(txn, value[0], &r->shelf, error);
    if (status == LMCS_OK)
        status = lmcs_record_get(txn, &r->shelf, value[1], &r->record, &found, error);
    if (status == LMCS_OK && (!found || r->record.df.state != LMCS_SNAPSHOT_PREPARED))
        status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: a prepared snapshot", txn->pool->path);
    return status;
}

/* Puts the tag on the snapshot, unless a newer one has it. */
static enum lmcs_status put_tag(struct resolving *r, struct lmcs_txn *txn, const char *tag, struct lmcs_error *error)
{
    uint64_t at;
    if (lmcs_tag_check(tag, NULL) != LMCS_OK) /* forged */
        return LMCS_OK;
    enum lmcs_status status = lmcs_tag_find(txn, &r->shelf, tag, &at, error);
    if (status != LMCS_OK || at > r->record.df.number)
        return status;
    return lmcs_tag_put(txn, &r->shelf, tag, r->record.df.number, error);
}

/* Puts the tags that the snapshot was prepared with. Unreadable ones are left out: the group's decision stands. */
static enum lmcs_status put_tags(struct resolving *r, struct lmcs_txn *txn, struct lmcs_error *error)
{
    char *text = NULL;
    uint64_t bytes = 0;
    bool found = false;
    enum lmcs_status status =
        lmcs_attachment_read(txn, &r->record, LMCS_TAGS_NAME, LMCS_TAGS_MOST, (void **)&text, &bytes, &found, error);
    if (lmcs_is_unusable(status))
        return LMCS_OK;
    for (uint64_t at = 0; status == LMCS_OK && found && at < bytes; at += strlen(text + at) + 1)
        status = put_tag(r, txn, text + at, error);
    free(text);
    return status;
}

static enum lmcs_status resolve(struct resolving *r, struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct lmcs_shelf *shelf = &r->shelf;
    struct lmcs_removal removal = {0};
    enum lmcs_status status;
    if (r->commit) {
        r->record.df.state = LMCS_SNAPSHOT_COMMITTED;
        status = lmcs_record_put(txn, shelf, &r->record, error);
        if (status == LMCS_OK)
            status = put_tags(r, txn, error);
        shelf->df.latest = r->record.df.number > shelf->df.latest ? r->record.df.number : shelf->df.latest;
        shelf->df.snapshot_count++;
        txn->root.snapshot_count++;
    } else {
        status = lmcs_shelf_remove(txn, shelf, r->record.df.number, &removal, error);
    }
    if (status == LMCS_OK)
        status = lmcs_root_delete(txn, LMCS_TREE_GROUPS, r->group, NULL, error);
    return status == LMCS_OK ? lmcs_shelf_save(txn, shelf, error) : status;
}

/* Runs the transaction. `name`: the shelf's, or NULL. *moved: it has another name now, and nothing has changed. */
static enum lmcs_status resolve_now(struct resolving *r, const char *name, bool *moved, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_write(r->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = find(r, &txn, error);
    *moved = status == LMCS_OK && name != NULL && strcmp(name, r->shelf.name) != 0;
    if (status == LMCS_OK && !*moved)
        status = resolve(r, &txn, error);
    if (status != LMCS_OK || *moved) {
        lmcs_txn_end(&txn);
        return status;
    }
    return lmcs_txn_commit(&txn, error);
}

/* The next snapshot of this process continues from what the dropped one continued from. */
static void forget_dropped(const struct resolving *r)
{
    pthread_mutex_lock(&r->pool->captures);
    struct lmcs_loaded *loaded = lmcs_loaded_find(r->pool, r->shelf.df.id);
    if (loaded != NULL && loaded->number == r->record.df.number)
        loaded->number = r->record.df.parent;
    pthread_mutex_unlock(&r->pool->captures);
}

static enum lmcs_status drop(struct resolving *r, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_busy_shelf *busy;
    char name[LMCS_MAX_NAME + 1];
    bool moved = true;
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && moved) {
        status = lmcs_txn_read(r->pool, &txn, error);
        if (status != LMCS_OK)
            return status;
        status = find(r, &txn, error);
        lmcs_txn_end(&txn);
        if (status != LMCS_OK)
            return status;
        memcpy(name, r->shelf.name, sizeof name);
        status = lmcs_base_drop_begin(r->pool, name, r->record.df.number, &busy, error);
        if (status != LMCS_OK)
            return status;
        status = resolve_now(r, name, &moved, error);
        lmcs_base_drop_end(r->pool, busy);
    }
    if (status == LMCS_OK)
        forget_dropped(r);
    return status;
}

enum lmcs_status lmcs_group_resolve(struct lmcs_pool *pool, const unsigned char group[16], bool commit,
                                    struct lmcs_error *error)
{
    struct resolving r = {.pool = pool, .commit = commit};
    bool moved;
    memcpy(&r.group, group, sizeof r.group);
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = commit ? resolve_now(&r, NULL, &moved, error) : drop(&r, error);
    if (status == LMCS_OK)
        lmcs_pool_wake(pool);
    return status;
}

/* ---- List ---- */

static enum lmcs_status visit_next(struct lmcs_txn *txn, struct lmcs_cursor *cursor,
                                   bool (*visit)(void *context, const struct lmcs_prepared *prepared), void *context,
                                   bool *stop, struct lmcs_error *error)
{
    struct resolving r = {.group = lmcs_cursor_key(cursor)};
    enum lmcs_status status = find(&r, txn, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_prepared prepared = {
        .shelf = r.shelf.name, .number = r.record.df.number, .step = r.record.df.step, .time_ns = r.record.df.time_ns};
    memcpy(prepared.group, &r.group, sizeof prepared.group);
    *stop = !visit(context, &prepared);
    return LMCS_OK;
}

enum lmcs_status lmcs_group_list(struct lmcs_pool *pool,
                                 bool (*visit)(void *context, const struct lmcs_prepared *prepared), void *context,
                                 struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    struct lmcs_passed passed = {0};
    struct lmcs_error why;
    bool stop = false;
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status == LMCS_OK)
        status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_open(&cursor, &txn, LMCS_TREE_GROUPS, (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && !stop && lmcs_cursor_valid(cursor)) {
        status = visit_next(&txn, cursor, visit, context, &stop, &why);
        status = lmcs_pass_over(&passed, status, &why);
        if (status == LMCS_OK && !stop)
            status = lmcs_cursor_next(cursor, error);
        else if (status != LMCS_OK && error != NULL)
            *error = why;
    }
    lmcs_cursor_free(cursor);
    lmcs_txn_end(&txn);
    return lmcs_passed_over(&passed, status, error);
}
