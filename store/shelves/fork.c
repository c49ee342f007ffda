/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shelves/fork.c - forks a shelf from a snapshot, and renames shelves.
 *
 * The first manifest of a fork is a copy of the snapshot's in which every entry begins a new run of its content, so the
 * rules on the life of pages and contents (records/manifest.c) hold, and removals in one shelf never examine the other.
 * The tree of origins records the source by the shelf's id, so renames do not matter.
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "live/live.h"
#include "pages/tree.h"
#include "records/busy.h"
#include "records/content.h"
#include "records/manifest.h"
#include "records/origin.h"
#include "shelves/shelves.h"
#include "snapshots/snapshot.h"

/* ---- Forks ---- */

static enum lmcs_status check_free(struct lmcs_txn *txn, const char *name, struct lmcs_error *error)
{
    struct lmcs_shelf there;
    bool found;
    enum lmcs_status status = lmcs_shelf_find(txn, name, &there, &found, error);
    if (status == LMCS_OK && found)
        return lmcs_fail(error, LMCS_EXISTS, 0, "%s: there is a shelf \"%.200s\" already; choose another name",
                         txn->pool->path, name);
    return status;
}

struct forking {
    struct lmcs_txn txn;
    struct lmcs_shelf from;
    struct lmcs_record record; /* of the snapshot; later of the fork's first */
    struct lmcs_shelf fork;
    struct lmcs_root_tree_df manifest;
    char **tags;
    size_t tag_count;
    bool no_memory;
};

static enum lmcs_status share_entry(void *context, uint64_t identity, const struct lmcs_manifest_df *entry, bool *stop,
                                    struct lmcs_error *error)
{
    struct forking *f = context;
    struct lmcs_manifest_df now = {entry->content, 1};
    (void)stop;
    enum lmcs_status status = lmcs_content_run(&f->txn, entry->content, identity, error);
    return status == LMCS_OK ? lmcs_tree_put(&f->txn, LMCS_TREE_MANIFEST, &f->manifest,
                                             (struct lmcs_key_df){identity, 0}, &now, sizeof now, error)
                             : status;
}

static bool note_tag(void *context, const char *tag)
{
    struct forking *f = context;
    f->no_memory = !lmcs_add_text(&f->tags, &f->tag_count, tag);
    return !f->no_memory;
}

static enum lmcs_status share_tags(struct forking *f, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_tags_of(&f->txn, &f->from, f->record.df.number, note_tag, f, error);
    if (status == LMCS_OK && f->no_memory)
        status = lmcs_fail_memory(error);
    for (size_t i = 0; status == LMCS_OK && i < f->tag_count; i++)
        status = lmcs_tag_put(&f->txn, &f->fork, f->tags[i], 1, error);
    return status;
}

static enum lmcs_status enter_first(struct forking *f, struct lmcs_error *error)
{
    struct lmcs_snapshot_df *df = &f->record.df;
    enum lmcs_status status = lmcs_tree_seal(&f->txn, LMCS_TREE_MANIFEST, &f->manifest, error);
    if (status != LMCS_OK)
        return status;
    df->number = 1;
    df->parent = 0;
    df->epoch = df->lineage = f->txn.root.epoch;
    df->manifest = f->manifest.ref;
    status = lmcs_record_put(&f->txn, &f->fork, &f->record, error);
    f->fork.df.latest = f->fork.df.snapshot_count = 1;
    f->fork.df.next_number = 2;
    f->txn.root.snapshot_count++;
    return status == LMCS_OK ? lmcs_shelf_save(&f->txn, &f->fork, error) : status;
}

/* Inherits how contents are kept safe, but no rule that prunes. */
static enum lmcs_status inherit_policy(struct forking *f, struct lmcs_error *error)
{
    struct lmcs_policy from, policy;
    f->fork.df.keep_raw = f->from.df.keep_raw;
    lmcs_shelf_policy(&f->from, &from);
    if (from.scrub_seconds == 0 && from.parity_of_bases)
        return LMCS_OK;
    lmcs_policy_init(&policy);
    policy.keep_raw = from.keep_raw;
    policy.scrub_seconds = from.scrub_seconds;
    policy.parity_of_bases = from.parity_of_bases;
    policy.parity_data = from.parity_data;
    policy.parity = from.parity;
    return lmcs_policy_format(&policy, f->fork.policy, error);
}

static enum lmcs_status fork_in(struct forking *f, const struct lmcs_snapshot *snapshot, const char *name,
                                struct lmcs_error *error)
{
    struct lmcs_origin origin;
    enum lmcs_status status = lmcs_snapshot_locate(snapshot, &f->txn, &f->from, &f->record, error);
    if (status == LMCS_OK && f->record.df.state == LMCS_SNAPSHOT_PREPARED)
        return lmcs_fail(error, LMCS_IN_USE, 0, "%s: snapshot %s@%llu is prepared and awaits its group's decision",
                         f->txn.pool->path, f->from.name, (unsigned long long)f->record.df.number);
    if (status == LMCS_OK)
        status = lmcs_record_check_local(&f->txn, &f->from, &f->record, error);
    if (status == LMCS_OK)
        status = check_free(&f->txn, name, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_make(&f->txn, name, 0, &f->fork, error);
    if (status == LMCS_OK)
        status = inherit_policy(f, error);
    if (status != LMCS_OK)
        return status;
    lmcs_shelf_identify(&f->txn, &f->fork);
    origin.df =
        (struct lmcs_origin_df){.shelf = f->from.df.id, .number = f->record.df.number, .time_ns = f->record.df.time_ns};
    memcpy(origin.name, f->from.name, sizeof origin.name);
    status = lmcs_origin_put(&f->txn, f->fork.df.id, &origin, error);
    if (status == LMCS_OK)
        status = lmcs_manifest_each(&f->txn, &f->record.df, share_entry, f, error);
    if (status == LMCS_OK && f->manifest.count != f->record.df.entry_count)
        status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the manifest of %s@%llu", f->txn.pool->path,
                           f->from.name, (unsigned long long)f->record.df.number);
    if (status == LMCS_OK)
        status = share_tags(f, error);
    return status == LMCS_OK ? enter_first(f, error) : status;
}

static enum lmcs_status fork_once(struct lmcs_snapshot *snapshot, const char *name, struct lmcs_error *error)
{
    struct forking f = {.tags = NULL};
    enum lmcs_status status = lmcs_txn_write(snapshot->pool, &f.txn, error);
    if (status != LMCS_OK)
        return status;
    f.txn.only_allocates = true;
    status = fork_in(&f, snapshot, name, error);
    status = lmcs_txn_finish(&f.txn, status, error);
    for (size_t i = 0; i < f.tag_count; i++)
        free(f.tags[i]);
    free(f.tags);
    return status;
}

enum lmcs_status lmcs_shelf_fork(struct lmcs_snapshot *snapshot, const char *name, struct lmcs_error *error)
{
    struct lmcs_pool *pool = snapshot->pool;
    struct lmcs_busy_shelf *busy;
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_check_name(name, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_take(pool, name, &busy, error);
    if (status != LMCS_OK)
        return status;
    status = fork_once(snapshot, name, error);
    if (status == LMCS_FULL && lmcs_pool_make_room(pool, name))
        status = fork_once(snapshot, name, error);
    if (status == LMCS_FULL)
        lmcs_pool_explain_full(pool, name, error);
    lmcs_shelf_give(pool, busy);
    return status;
}

/* ---- Names ---- */

static enum lmcs_status rename_in(struct lmcs_txn *txn, const char *from, const char *to, struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    enum lmcs_status status = lmcs_shelf_get(txn, from, &shelf, error);
    if (status == LMCS_OK)
        status = check_free(txn, to, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_set_name(txn, &shelf, to, error);
    return status == LMCS_OK ? lmcs_shelf_save(txn, &shelf, error) : status;
}

static enum lmcs_status rename_in_txn(struct lmcs_pool *pool, const char *from, const char *to,
                                      struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = rename_in(&txn, from, to, error);
    return lmcs_txn_finish(&txn, status, error);
}

static enum lmcs_status rename_now(struct lmcs_pool *pool, const char *from, const char *to, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_shelf_begin(pool, from, "renamed", error);
    if (status != LMCS_OK)
        return status;
    status = rename_in_txn(pool, from, to, error);
    lmcs_live_shelf_end(pool, from, status == LMCS_OK);
    return status;
}

enum lmcs_status lmcs_shelf_rename(struct lmcs_pool *pool, const char *shelf, const char *name,
                                   struct lmcs_error *error)
{
    const char *from = shelf == NULL ? "" : shelf;
    struct lmcs_busy_shelf *busy[2] = {NULL, NULL};
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_check_name(name, error);
    if (status != LMCS_OK)
        return status;
    if (strcmp(from, name) == 0)
        return lmcs_fail(error, LMCS_EXISTS, 0, "%s: the shelf is called \"%.200s\" already", pool->path, name);
    int order = strcmp(from, name) > 0; /* shelves are acquired in the order of their names */
    status = lmcs_shelf_take(pool, order ? name : from, &busy[order], error);
    if (status == LMCS_OK)
        status = lmcs_shelf_take(pool, order ? from : name, &busy[!order], error);
    if (status == LMCS_OK)
        status = rename_now(pool, from, name, error);
    if (status == LMCS_OK) { /* the time of the next pruning is recorded by name */
        lmcs_prune_soon(pool, from);
        lmcs_prune_soon(pool, name);
    }
    for (int i = 0; i < 2; i++)
        if (busy[i] != NULL)
            lmcs_shelf_give(pool, busy[i]);
    return status;
}
