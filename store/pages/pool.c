/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/pool.c - the use of an open pool. */
#include "pages/pool.h"

#include <unistd.h>

enum lmcs_status lmcs_pool_check(const struct lmcs_pool *pool, bool to_write, struct lmcs_error *error)
{
    if (pool->pid != getpid())
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: the pool belongs to the parent process %d: open it anew here",
                         pool->path, (int)pool->pid);
    if (to_write && pool->heap == NULL)
        return lmcs_fail(error, LMCS_READ_ONLY, 0, "%s: the pool is open for reading only", pool->path);
    return LMCS_OK;
}

void lmcs_pool_keep(struct lmcs_pool *pool)
{
    atomic_fetch_add(&pool->opens, 1);
}

enum lmcs_status lmcs_pool_close(struct lmcs_pool *pool, struct lmcs_error *error)
{
    if (pool == NULL || pool->pid != getpid())
        return LMCS_OK; /* a child's copy: its locks may be held forever, its threads don't exist */
    for (unsigned opens = atomic_load(&pool->opens); opens > 1;)
        if (atomic_compare_exchange_weak(&pool->opens, &opens, opens - 1))
            return LMCS_OK;
    return pool->last_close(pool, error);
}

void lmcs_pool_wake(struct lmcs_pool *pool)
{
    if (pool->wake != NULL)
        pool->wake(pool);
}

bool lmcs_pool_make_room(struct lmcs_pool *pool, const char *held)
{
    return pool->make_room != NULL && pool->make_room(pool, held);
}

void lmcs_pool_explain_full(struct lmcs_pool *pool, const char *held, struct lmcs_error *error)
{
    if (pool->explain_full != NULL && error != NULL)
        pool->explain_full(pool, held, error);
}
