/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * snapshots/follow.c - waits for the next snapshot of a shelf.
 *
 * A reader in another process gets no signal from the writer, so every follower checks the root, NAP_NS after the last
 * check: 17 times a second. It holds no lock and no lease meanwhile.
 */
#include <sys/stat.h>
#include <time.h>

#include "snapshots/snapshot.h"

#define NAP_NS ((uint64_t)60000000)

/* LMCS_NOT_FOUND: the file has lost its name, so no process commits to it again. */
static enum lmcs_status check_name(const struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct stat st;
    if (fstat(lmcs_media_fd(pool->media), &st) != 0 || st.st_nlink > 0)
        return LMCS_OK;
    return lmcs_fail(error, LMCS_NOT_FOUND, 0,
                     "%s: the pool was deleted or replaced, so no snapshot can follow: open it again", pool->path);
}

static enum lmcs_status fail_gone(const struct lmcs_pool *pool, const char *shelf, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_NOT_FOUND, 0,
                     "%s: shelf \"%.200s\" was removed or renamed while it was followed: follow a shelf that exists",
                     pool->path, shelf);
}

/* *number 0: there is no later snapshot yet. */
static enum lmcs_status find_next(struct lmcs_txn *txn, const char *name, struct lmcs_follower *follower,
                                  uint64_t *number, struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    bool found, prepared = false;
    *number = 0;
    enum lmcs_status status = lmcs_shelf_find(txn, name, &shelf, &found, error);
    if (status != LMCS_OK)
        return status;
    if (follower->shelf_id != 0 && (!found || shelf.df.id != follower->shelf_id))
        return fail_gone(txn->pool, name, error);
    if (found)
        follower->shelf_id = shelf.df.id;
    if (follower->after == LMCS_FROM_NOW)
        follower->after = found ? shelf.df.latest : 0;
    if (!found || shelf.df.latest <= follower->after)
        return LMCS_OK;
    status = lmcs_record_after(txn, &shelf, follower->after, number, error);
    if (status == LMCS_OK && *number != 0)
        status = lmcs_record_is_prepared(txn, &shelf, *number, &prepared, error);
    if (prepared)
        *number = 0; /* later ones wait for its decision, so that none is missed */
    return status;
}

/* Another process's root is seen as soon as libpmemobj has stored its word, before that is synced. */
static enum lmcs_status make_durable(struct lmcs_pool *pool, uint64_t epoch, struct lmcs_error *error)
{
    if (pool->heap != NULL || atomic_load(&pool->durable) >= epoch)
        return LMCS_OK;
    enum lmcs_status status = lmcs_media_sync(pool->media, error);
    if (status == LMCS_OK)
        atomic_store(&pool->durable, epoch); /* an older one of another thread costs a sync */
    return status;
}

static enum lmcs_status check(struct lmcs_pool *pool, const char *shelf, struct lmcs_follower *follower,
                              uint64_t *number, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status == LMCS_OK)
        status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    const uint64_t epoch = txn.root.epoch;
    status = find_next(&txn, shelf, follower, number, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && *number == 0)
        return check_name(pool, error);
    if (status == LMCS_OK)
        status = make_durable(pool, epoch, error);
    if (status == LMCS_OK)
        follower->after = *number;
    return status;
}

enum lmcs_status lmcs_snapshot_follow(struct lmcs_pool *pool, const char *shelf, struct lmcs_follower *follower,
                                      uint32_t wait_ms, uint64_t *number, struct lmcs_error *error)
{
    uint64_t next = 0, start_ns = lmcs_steady_ns();
    enum lmcs_status status = lmcs_shelf_check_name(shelf, error);
    while (status == LMCS_OK) {
        status = check(pool, shelf, follower, &next, error);
        uint64_t waited = lmcs_steady_ns() - start_ns, wait_ns = (uint64_t)wait_ms * 1000000;
        if (wait_ms == UINT32_MAX)
            wait_ns = UINT64_MAX;
        if (status != LMCS_OK || next != 0 || waited >= wait_ns)
            break;
        uint64_t nap_ns = wait_ns - waited < NAP_NS ? wait_ns - waited : NAP_NS;
        nanosleep(&(struct timespec){.tv_nsec = (long)nap_ns}, NULL);
    }
    if (status == LMCS_OK)
        *number = next;
    return status;
}
