/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/shelf_table.c - shelves whose live variables this process has used, and their holders.
 *
 * Records refer to a shelf by id, so renaming it concerns only its entry here.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "live/body.h"
#include "records/shelf.h"

/* *id 0: no such shelf. */
static enum lmcs_status find_shelf_id(struct lmcs_pool *pool, const char *name, uint64_t *id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    bool found = false;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_find(&txn, name, &shelf, &found, error);
    lmcs_txn_end(&txn);
    *id = found ? shelf.df.id : 0;
    return status;
}

static enum lmcs_status make_shelf(struct lmcs_pool *pool, const char *name, uint64_t *id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    txn.only_allocates = true;
    status = lmcs_shelf_make(&txn, name, 0, &shelf, error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    *id = shelf.df.id;
    return lmcs_txn_commit(&txn, error);
}

enum lmcs_status lmcs_live_shelf_find(struct lmcs_pool *pool, const char *name, bool make,
                                      struct lmcs_live_shelf **found, struct lmcs_error *error)
{
    struct lmcs_live_shelf *shelf = pool->live->shelves;
    uint64_t id = 0;
    enum lmcs_status status = LMCS_OK;
    *found = NULL;
    if (pool->heap == NULL) /* the writer may have given the name to another shelf */
        status = find_shelf_id(pool, name, &id, error);
    if (status != LMCS_OK || (pool->heap == NULL && id == 0))
        return status;
    while (shelf != NULL && (name == NULL || strcmp(shelf->name, name) != 0 || (id != 0 && shelf->id != id)))
        shelf = shelf->next;
    *found = shelf;
    if (shelf != NULL)
        return LMCS_OK;
    if (id == 0)
        status = find_shelf_id(pool, name, &id, error);
    if (status == LMCS_OK && id == 0 && make)
        status = make_shelf(pool, name, &id, error);
    if (status != LMCS_OK || id == 0)
        return status;
    shelf = calloc(1, sizeof *shelf + strlen(name) + 1);
    if (shelf == NULL)
        return lmcs_fail_memory(error);
    shelf->id = id;
    memcpy(shelf->name, name, strlen(name) + 1);
    shelf->next = pool->live->shelves;
    pool->live->shelves = shelf;
    *found = shelf;
    return LMCS_OK;
}

struct timespec lmcs_live_deadline(uint32_t wait_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return until;
}

bool lmcs_live_wait(struct lmcs_live_store *live, const struct timespec *until, uint32_t wait_ms)
{
    if (wait_ms == UINT32_MAX)
        return pthread_cond_wait(&live->changed, &live->lock) == 0;
    return pthread_cond_timedwait(&live->changed, &live->lock, until) == 0;
}

enum lmcs_status lmcs_live_shelf_hold(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, uint32_t wait_ms,
                                      struct lmcs_error *error)
{
    struct timespec until = lmcs_live_deadline(wait_ms);
    bool waited = shelf->held;
    while (shelf->held) {
        if (pthread_equal(shelf->holder.thread, pthread_self()))
            return lmcs_fail(error, LMCS_INVALID, 0,
                             "%s: this thread already has a transaction on shelf \"%.200s\"; transactions don't nest: "
                             "commit or abort it first",
                             pool->path, shelf->name);
        shelf->waiting++; /* prevents renaming and removal */
        bool in_time = lmcs_live_wait(pool->live, &until, wait_ms);
        shelf->waiting--;
        if (!in_time) {
            lmcs_fail(error, LMCS_IN_USE, 0,
                      "%s: a transaction, snapshot or checkout of the live variables of shelf \"%.200s\" has not "
                      "ended within %u ms",
                      pool->path, shelf->name, wait_ms);
            if (error != NULL)
                error->system_errno = ETIMEDOUT;
            return LMCS_IN_USE;
        }
    }
    enum lmcs_status status =
        waited ? lmcs_live_check(pool, true, error) : LMCS_OK; /* the state may have changed meanwhile */
    if (status != LMCS_OK)
        return status;
    shelf->held = true;
    shelf->holder.shelf = shelf->name;
    lmcs_live_holder_enter(pool, &shelf->holder);
    return LMCS_OK;
}

void lmcs_live_shelf_release(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf)
{
    shelf->held = false;
    lmcs_live_holder_leave(pool, &shelf->holder);
    pthread_cond_broadcast(&pool->live->changed);
}

bool lmcs_live_is_held(struct lmcs_pool *pool, const char *shelf)
{
    if (lmcs_pool_check(pool, true, NULL) != LMCS_OK)
        return false;
    pthread_mutex_lock(&pool->captures);
    const struct lmcs_live_holder *holder = pool->live_holders;
    while (holder != NULL && strcmp(holder->shelf, shelf) != 0)
        holder = holder->next;
    pthread_mutex_unlock(&pool->captures);
    return holder != NULL;
}

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

static enum lmcs_status check_unheld(struct lmcs_pool *pool, const struct lmcs_live_shelf *shelf, const char *action,
                                     struct lmcs_error *error)
{
    if (shelf->held || shelf->waiting > 0)
        return lmcs_fail(
            error, LMCS_IN_USE, 0,
            "%s: shelf \"%.200s\" can't be %s during a transaction, snapshot or checkout of its live variables",
            pool->path, shelf->name, action);
    const struct lmcs_live_body *body = body_on(pool->live, shelf);
    if (body == NULL)
        return LMCS_OK;
    const char *name = body->record->name[0] != '\0' ? body->record->name : "(without a name)";
    return lmcs_fail(
        error, LMCS_IN_USE, 0,
        "%s: shelf \"%.200s\" can't be %s: its live variable \"%.200s\" is open in this process; close it first",
        pool->path, shelf->name, action, name);
}

enum lmcs_status lmcs_live_shelf_begin(struct lmcs_pool *pool, const char *name, const char *action,
                                       struct lmcs_error *error)
{
    pthread_mutex_lock(&pool->live->lock);
    const struct lmcs_live_shelf *shelf = *known_shelf(pool, name);
    enum lmcs_status status = shelf != NULL ? check_unheld(pool, shelf, action, error) : LMCS_OK;
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
