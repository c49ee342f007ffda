/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/freelist.c - the tree of free pages.
 *
 * Changes of this tree take and free pages, so a commit repeats until nothing is left. It ends: a page written by this
 * transaction is not copied again.
 */
#include "pages/freelist.h"

#include <string.h>

#include "base/grow.h"
#include "pages/dirty.h"
#include "pages/pool.h"
#include "pages/tree.h"

#define LOAD_AT_ONCE 4096u /* free pages */

static enum lmcs_status add_avail(struct lmcs_pool *pool, struct lmcs_key_df key, const struct lmcs_cursor *cursor,
                                  struct lmcs_error *error)
{
    uint64_t left;
    size_t bytes;
    const void *value = lmcs_cursor_value(cursor, &bytes);
    if (bytes == sizeof left)
        memcpy(&left, value, sizeof left);
    if (bytes != sizeof left || left == 0 || left > LMCS_FREE_RANGE_MOST || !lmcs_slabs_hold(pool, key.low, left))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the record of free pages at offset %llu",
                         pool->path, (unsigned long long)key.low);
    size_t count = pool->avail_count;
    for (uint64_t at = key.low; left > 0; left--, at += LMCS_PAGE_BYTES) {
        if (!lmcs_grow(&pool->avail, &pool->avail_capacity, count, sizeof *pool->avail))
            return lmcs_fail_memory(error);
        pool->avail[count++] = (struct lmcs_free_page){key.high, at, left};
    }
    pool->avail_count = count;
    return LMCS_OK;
}

enum lmcs_status lmcs_freelist_load(struct lmcs_pool *pool, struct lmcs_error *error)
{
    if (pool->root.free_pages == pool->avail_count)
        return LMCS_OK;
    uint64_t safe = lmcs_lease_safe_epoch(pool->lease, pool->root.epoch);
    size_t most = pool->avail_count + LOAD_AT_ONCE;
    struct lmcs_txn committed = {.pool = pool, .root = pool->root};
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_key_df from = {0, 0};
    if (pool->avail_count > 0)
        from = (struct lmcs_key_df){pool->avail[pool->avail_count - 1].epoch,
                                    pool->avail[pool->avail_count - 1].offset + 1};
    status = lmcs_root_seek(cursor, &committed, LMCS_TREE_FREE_PAGES, from, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && pool->avail_count < most) {
        struct lmcs_key_df key = lmcs_cursor_key(cursor);
        if (key.high > safe)
            break;
        status = add_avail(pool, key, cursor, error);
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

static enum lmcs_status enter_slabs(struct lmcs_txn *txn, size_t *done, struct lmcs_error *error)
{
    struct lmcs_txn_pages *pages = txn->pages;
    for (; *done < pages->slab_count; (*done)++) {
        const uint64_t *slab = pages->slabs[*done];
        struct lmcs_object_df object = {.kind = LMCS_OBJECT_SLAB, .bytes = slab[1], .first = slab[2]};
        enum lmcs_status status =
            lmcs_root_put(txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){slab[0], 0}, &object, sizeof object, error);
        if (status != LMCS_OK)
            return status;
    }
    return LMCS_OK;
}

static enum lmcs_status enter_range(struct lmcs_txn *txn, struct lmcs_free_page range, struct lmcs_error *error)
{
    txn->root.free_pages += range.left;
    return lmcs_root_put(txn, LMCS_TREE_FREE_PAGES, (struct lmcs_key_df){range.epoch, range.offset}, &range.left,
                         sizeof range.left, error);
}

/* Takes at most *count pages, the first ones. */
static enum lmcs_status take_from_range(struct lmcs_txn *txn, struct lmcs_free_page range, size_t *count,
                                        struct lmcs_error *error)
{
    enum lmcs_status status =
        lmcs_root_delete(txn, LMCS_TREE_FREE_PAGES, (struct lmcs_key_df){range.epoch, range.offset}, NULL, error);
    txn->root.free_pages -= range.left;
    if (status != LMCS_OK || range.left <= *count) {
        *count = (size_t)range.left;
        return status;
    }
    range.left -= *count;
    range.offset += *count * LMCS_PAGE_BYTES;
    return enter_range(txn, range, error);
}

enum lmcs_status lmcs_freelist_settle(struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct lmcs_txn_pages *pages = txn->pages;
    size_t deleted = 0, inserted = 0, slabs = 0;
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && (deleted < pages->avail_used || inserted < pages->freed_count ||
                                 slabs < pages->slab_count || pages->recycled_count > 0)) {
        if (pages->recycled_count > 0 && !lmcs_page_push_freed(txn, pages->recycled[pages->recycled_count - 1], 1))
            return lmcs_fail_memory(error);
        if (pages->recycled_count > 0)
            pages->recycled_count--;
        status = enter_slabs(txn, &slabs, error);
        while (status == LMCS_OK && deleted < pages->avail_used) {
            size_t count = pages->avail_used - deleted;
            status = take_from_range(txn, txn->pool->avail[deleted], &count, error);
            deleted += count;
        }
        for (; status == LMCS_OK && inserted < pages->freed_count; inserted++)
            status = enter_range(txn, pages->freed[inserted], error);
    }
    return status;
}
