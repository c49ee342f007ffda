/* SPDX-License-Identifier: BSD-3-Clause */
/* capture/group.c - commits or drops a prepared snapshot: second phase of a commit across pools. */
#include <string.h>

#include "pages/pool.h"
#include "pages/tree.h"
#include "records/busy.h"
#include "records/shelf.h"

/* Commits or drops the snapshot of a group. `value`: its shelf and number. */
static enum lmcs_status resolve(struct lmcs_txn *txn, const struct lmcs_key_df *key, bool commit, uint64_t value[2],
                                struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    struct lmcs_removal removal = {0};
    bool found;
    const size_t bytes = 2 * sizeof *value;
    enum lmcs_status status = lmcs_root_get(txn, LMCS_TREE_GROUPS, *key, value, bytes, bytes, NULL, &found, error);
    if (status == LMCS_OK && !found)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: there is no prepared snapshot of this group", txn->pool->path);
    if (status == LMCS_OK)
        status = lmcs_shelf_load(txn, value[0], &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_record_get(txn, &shelf, value[1], &record, &found, error);
    if (status == LMCS_OK && (!found || record.df.state != LMCS_SNAPSHOT_PREPARED))
        status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: a prepared snapshot", txn->pool->path);
    if (status != LMCS_OK)
        return status;
    if (commit) {
        record.df.state = LMCS_SNAPSHOT_COMMITTED;
        status = lmcs_record_put(txn, &shelf, &record, error);
        shelf.df.latest = record.df.number;
        shelf.df.snapshot_count++;
        txn->root.snapshot_count++;
    } else {
        status = lmcs_shelf_remove(txn, &shelf, value[1], &removal, error);
    }
    if (status == LMCS_OK)
        status = lmcs_root_delete(txn, LMCS_TREE_GROUPS, *key, NULL, error);
    return status == LMCS_OK ? lmcs_shelf_save(txn, &shelf, error) : status;
}

/* Makes this snapshot the parent of the next one, unless another was loaded, or a later one committed, since its
 * capture. */
static void follow_resolved(struct lmcs_pool *pool, uint64_t shelf, uint64_t number)
{
    pthread_mutex_lock(&pool->captures);
    struct lmcs_loaded *loaded = lmcs_loaded_find(pool, shelf);
    if (loaded != NULL && loaded->loads == loaded->prepared_loads && loaded->number < number)
        loaded->number = number;
    pthread_mutex_unlock(&pool->captures);
}

enum lmcs_status lmcs_group_resolve(struct lmcs_pool *pool, const unsigned char group[16], bool commit,
                                    struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_key_df key;
    uint64_t value[2];
    memcpy(&key, group, sizeof key);
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = resolve(&txn, &key, commit, value, error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    status = lmcs_txn_commit(&txn, error);
    if (status == LMCS_OK && commit)
        follow_resolved(pool, value[0], value[1]);
    return status;
}
