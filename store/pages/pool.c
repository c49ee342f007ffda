/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/pool.c - whether an open pool may be used here, and how often it is open. */
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
