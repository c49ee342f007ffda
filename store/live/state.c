/* SPDX-License-Identifier: BSD-3-Clause */
/* live/state.c - the state of a pool's live variables: made, checked, broken, freed. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "live/body.h"

#define FIRST_BUCKETS 256u

enum lmcs_status lmcs_live_store_new(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_live_store *live = calloc(1, sizeof *live);
    if (live == NULL)
        return lmcs_fail_memory(error);
    pool->live = live;
    live->forks = lmcs_live_forks();
    live->by_id = calloc(FIRST_BUCKETS, sizeof(struct lmcs_live_body *));
    live->by_name = calloc(FIRST_BUCKETS, sizeof(struct lmcs_live_body *));
    live->bucket_count = FIRST_BUCKETS;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&live->lock, NULL);
    pthread_cond_init(&live->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return live->by_id != NULL && live->by_name != NULL ? LMCS_OK : lmcs_fail_memory(error);
}

void lmcs_live_store_free(struct lmcs_pool *pool)
{
    struct lmcs_live_store *live = pool->live;
    if (live == NULL)
        return;
    for (struct lmcs_live_shelf *shelf = live->shelves, *next; shelf != NULL; shelf = next) {
        next = shelf->next;
        free(shelf);
    }
    lmcs_live_space_free(&live->space);
    free(live->by_id);
    free(live->by_name);
    pthread_mutex_destroy(&live->lock);
    pthread_cond_destroy(&live->changed);
    free(live);
    pool->live = NULL;
}

enum lmcs_status lmcs_live_check(struct lmcs_pool *pool, bool to_write, struct lmcs_error *error)
{
    /* The count of forks avoids getpid, which is slower than many writes. */
    bool known = pool->live->forks == lmcs_live_forks() && (!to_write || pool->heap != NULL);
    enum lmcs_status status = known ? LMCS_OK : lmcs_pool_check(pool, to_write, error);
    if (status == LMCS_OK && lmcs_media_is_poolset(pool->media))
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                         "%s: poolsets can't have live variables; use a pool on a file or a device", pool->path);
    if (status == LMCS_OK && to_write && atomic_load(&pool->live->is_broken))
        return lmcs_fail(
            error, LMCS_IO, 0,
            "%s: a change of live variables could neither be completed nor undone (%s); close the pool and open it "
            "again",
            pool->path, pool->live->broken);
    /* After a failed sync, bytes in memory only look durable: a call with nothing to write must fail, too. */
    return status == LMCS_OK && to_write && pool->heap != NULL ? lmcs_heap_check_syncs(pool->heap, error) : status;
}

void lmcs_live_break(struct lmcs_pool *pool, const struct lmcs_error *why)
{
    if (atomic_exchange(&pool->live->is_breaking, true))
        return;
    snprintf(pool->live->broken, sizeof pool->live->broken, "%.200s", why->message);
    atomic_store(&pool->live->is_broken, true);
}

void lmcs_live_doubt(struct lmcs_pool *pool, struct lmcs_error *error)
{
    lmcs_live_break(pool, error);
    lmcs_error_prefix(error, "whether the change took place is known when the pool is opened again: ");
}
