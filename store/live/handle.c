/* SPDX-License-Identifier: BSD-3-Clause */
/* live/handle.c - handles of live variables, and their locks. */
#include <stdlib.h>

#include "live/cell.h"

enum lmcs_status lmcs_live_handle_new(struct lmcs_live_body *body, struct lmcs_live **live, struct lmcs_error *error)
{
    struct lmcs_live *handle = calloc(1, sizeof *handle);
    if (handle == NULL)
        return lmcs_fail_memory(error);
    handle->pool = body->pool;
    handle->body = body;
    handle->is_tensor = body->record->df.form == LMCS_LIVE_TENSOR;
    body->references++;
    body->handles++;
    lmcs_pool_keep(body->pool);
    *live = handle;
    return LMCS_OK;
}

enum lmcs_status lmcs_live_open(struct lmcs_pool *pool, const char *shelf, const char *name, struct lmcs_live **live,
                                struct lmcs_error *error)
{
    struct lmcs_live_shelf *on = NULL;
    struct lmcs_live_body *body = NULL;
    enum lmcs_status status = lmcs_live_check(pool, false, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->live->lock);
    status = lmcs_live_shelf_find(pool, shelf, false, &on, error);
    if (status == LMCS_OK)
        status = lmcs_live_body_get(pool, on, shelf, name, &body, error);
    if (status == LMCS_OK) {
        if (body->is_damaged) {
            pthread_mutex_lock(&body->lock);
            status = lmcs_cell_load(body, error);
            pthread_mutex_unlock(&body->lock);
        }
        if (status == LMCS_OK)
            status = lmcs_live_handle_new(body, live, error);
        lmcs_live_body_release(body);
    }
    pthread_mutex_unlock(&pool->live->lock);
    return status;
}

static void drop_lock(struct lmcs_live *live)
{
    struct lmcs_live_body *body = live->body;
    if (live->shares)
        body->sharers--;
    if (body->owner == live)
        body->owner = NULL;
    live->shares = false;
    pthread_cond_broadcast(&live->pool->live->changed);
}

void lmcs_live_close(struct lmcs_live *live)
{
    if (live == NULL)
        return;
    struct lmcs_pool *pool = live->pool;
    if (lmcs_pool_check(pool, false, NULL) != LMCS_OK) { /* the copy in a child */
        free(live);
        return;
    }
    pthread_mutex_lock(&pool->live->lock);
    drop_lock(live);
    live->body->handles--;
    lmcs_live_body_release(live->body);
    pthread_mutex_unlock(&pool->live->lock);
    free(live);
    (void)!lmcs_pool_close(pool, NULL);
}

static bool may_lock(const struct lmcs_live *live, enum lmcs_live_lock lock)
{
    return live->body->owner == NULL && (lock == LMCS_LOCK_SHARED || live->body->sharers == 0);
}

static enum lmcs_status wait_for_lock(struct lmcs_live *live, enum lmcs_live_lock lock, uint32_t wait_ms,
                                      struct lmcs_error *error)
{
    struct timespec until = lmcs_live_deadline(wait_ms);
    while (!may_lock(live, lock))
        if (wait_ms == 0 || !lmcs_live_wait(live->pool->live, &until, wait_ms)) {
            if (may_lock(live, lock))
                break;
            return lmcs_fail(error, LMCS_IN_USE, 0, "%s: live variable \"%.200s\" is locked by another handle",
                             live->pool->path, live->body->record->name);
        }
    return LMCS_OK;
}

enum lmcs_status lmcs_live_lock(struct lmcs_live *live, enum lmcs_live_lock lock, uint32_t wait_ms,
                                struct lmcs_error *error)
{
    struct lmcs_live_body *body = live->body;
    enum lmcs_status status = lmcs_pool_check(live->pool, false, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&live->pool->live->lock);
    if (live->shares || body->owner == live)
        status = lmcs_fail(error, LMCS_INVALID, 0, "%s: this handle already has a lock of live variable \"%.200s\"",
                           live->pool->path, body->record->name);
    if (status == LMCS_OK)
        status = wait_for_lock(live, lock, wait_ms, error);
    if (status == LMCS_OK && lock == LMCS_LOCK_SHARED) {
        live->shares = true;
        body->sharers++;
    } else if (status == LMCS_OK) {
        body->owner = live;
    }
    pthread_mutex_unlock(&live->pool->live->lock);
    return status;
}

enum lmcs_status lmcs_live_unlock(struct lmcs_live *live, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(live->pool, false, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&live->pool->live->lock);
    if (!live->shares && live->body->owner != live)
        status = lmcs_fail(error, LMCS_INVALID, 0, "%s: this handle has no lock of live variable \"%.200s\"",
                           live->pool->path, live->body->record->name);
    drop_lock(live);
    pthread_mutex_unlock(&live->pool->live->lock);
    return status;
}
