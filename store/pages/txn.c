/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/txn.c - metadata transactions: begun, committed, ended.
 *
 * A commit writes the pages, syncs, and publishes once in libpmemobj: objects are claimed or freed and the root word is
 * switched.
 */
#include "pages/txn.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/order.h"
#include "pages/cache.h"
#include "pages/dirty.h"
#include "pages/freelist.h"
#include "pages/pool.h"
#include "pages/tree.h"

#define LEAST_RESERVE 24u   /* pages */
#define MOST_RESERVE  8192u /* pages: for a snapshot of 100,000 tensors */

enum lmcs_status lmcs_txn_read(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error)
{
    txn->pool = pool;
    txn->write = txn->leased = false;
    txn->pages = NULL;
    if (pool->heap != NULL) {
        pthread_rwlock_rdlock(&pool->meta);
        txn->root = pool->root;
        return LMCS_OK;
    }
    for (int tries = 0;; tries++) {
        struct lmcs_root_df again;
        enum lmcs_status status = lmcs_root_read(pool, &txn->root, error);
        if (status == LMCS_OK) {
            status = lmcs_lease_epoch(pool->lease, txn->root.epoch, error);
            if (status != LMCS_OK)
                return status;
            status = lmcs_root_read(pool, &again, error);
            if (status == LMCS_OK && again.epoch == txn->root.epoch)
                break;
            lmcs_lease_epoch_end(pool->lease, txn->root.epoch);
        }
        /* Two commits of the writer between the two reads may have reused the page. */
        if (status != LMCS_OK && tries >= 100)
            return status;
    }
    txn->leased = true;
    return LMCS_OK;
}

enum lmcs_status lmcs_txn_hold(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_txn_read(pool, txn, error);
    if (status != LMCS_OK || txn->leased)
        return status;
    struct lmcs_root_df root = txn->root;
    status = lmcs_lease_epoch(pool->lease, root.epoch, error);
    lmcs_txn_end(txn);
    *txn = (struct lmcs_txn){.pool = pool, .leased = true, .root = root}; /* lmcs_txn_end drops the lease */
    return status;
}

enum lmcs_status lmcs_txn_make_private(struct lmcs_txn *txn, struct lmcs_error *error)
{
    if (txn->pages == NULL)
        txn->pages = calloc(1, sizeof *txn->pages);
    return txn->pages != NULL ? LMCS_OK : lmcs_fail_memory(error);
}

enum lmcs_status lmcs_txn_write(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error)
{
    enum lmcs_status status = pool->fold != NULL ? pool->fold(pool, error) : LMCS_OK;
    return status == LMCS_OK ? lmcs_txn_write_only(pool, txn, error) : status;
}

enum lmcs_status lmcs_txn_write_only(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error)
{
    *txn = (struct lmcs_txn){.pool = pool, .write = true, .refill = lmcs_freelist_load};
    txn->pages = calloc(1, sizeof *txn->pages);
    if (txn->pages == NULL)
        return lmcs_fail_memory(error);
    pthread_rwlock_wrlock(&pool->meta);
    txn->root = pool->root;
    txn->root.epoch++;
    return LMCS_OK;
}

void lmcs_txn_end(struct lmcs_txn *txn)
{
    struct lmcs_pool *pool = txn->pool;
    if (txn->write) {
        if (pool->space_hook.settle != NULL)
            pool->space_hook.settle(pool, txn->committed);
        /* Before another transaction reserves the space. */
        for (size_t i = 0; i < txn->pages->slab_count && !txn->committed; i++)
            lmcs_heap_punch(pool->heap, txn->pages->slabs[i][0], txn->pages->slabs[i][1]);
        lmcs_heap_cancel(pool->heap, txn->pages->actions, txn->pages->action_count);
        lmcs_txn_pages_free(txn->pages);
        txn->pages = NULL;
        pthread_rwlock_unlock(&pool->meta);
        txn->pool = NULL;
        return;
    }
    lmcs_txn_pages_free(txn->pages);
    txn->pages = NULL;
    if (txn->leased) {
        lmcs_lease_epoch_end(pool->lease, txn->root.epoch);
    } else if (pool->heap != NULL) {
        pthread_rwlock_unlock(&pool->meta);
    }
    txn->pool = NULL;
}

/* ---- Commit ---- */

static int by_place(const void *a, const void *b)
{
    const struct lmcs_node_df *const *x = a, *const *y = b;
    return LMCS_ORDER((*x)->self, (*y)->self);
}

static enum lmcs_status write_pages(struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct lmcs_txn_pages *pages = txn->pages;
    struct lmcs_heap *heap = txn->pool->heap;
    qsort(pages->order, pages->count, sizeof(struct lmcs_node_df *), by_place);
    for (size_t i = 0; i < pages->count; i++) {
        struct lmcs_node_df *node = pages->order[i];
        if (node->magic != LMCS_NODE_MAGIC)
            continue;
        enum lmcs_status status = lmcs_heap_write(heap, node->self, node, LMCS_PAGE_BYTES, error);
        if (status != LMCS_OK)
            return status;
        struct lmcs_ref_df ref = {node->self, node->check};
        lmcs_cache_put(txn->pool->cache, &ref, node);
    }
    unsigned char page[LMCS_PAGE_BYTES] = {0};
    lmcs_root_seal(&txn->root);
    memcpy(page, &txn->root, sizeof txn->root);
    return lmcs_heap_write(heap, txn->root.self, page, sizeof page, error);
}

/*
 * Keeps pages so that a full disk can be emptied: a removal takes pages before it frees some. A transaction that only
 * allocates leaves enough for a large removal.
 */
static enum lmcs_status leave_reserve(struct lmcs_txn *txn, struct lmcs_error *error)
{
    const struct lmcs_txn_pages *pages = txn->pages;
    struct lmcs_root_df *root = &txn->root;
    uint64_t free_pages = root->free_pages - pages->avail_used + pages->freed_pages + pages->recycled_count +
                          lmcs_range_pages(&root->fresh) + lmcs_range_pages(&root->spare);
    uint64_t reserve = LEAST_RESERVE + root->slab_bytes / LMCS_PAGE_BYTES / 4;
    reserve = reserve < MOST_RESERVE ? reserve : MOST_RESERVE;
    return free_pages < reserve ? lmcs_slab_new(txn, reserve * LMCS_PAGE_BYTES, &root->spare, error) : LMCS_OK;
}

static enum lmcs_status prepare_commit(struct lmcs_txn *txn, struct lmcs_error *error)
{
    const struct lmcs_pool *pool = txn->pool;
    uint64_t old_root = txn->root.self, new_root;
    enum lmcs_status status = lmcs_page_take(txn, &new_root, error);
    if (status == LMCS_OK && old_root != 0 && !lmcs_page_push_freed(txn, old_root, 1))
        status = lmcs_fail_memory(error);
    if (status != LMCS_OK)
        return status;
    txn->root.self = new_root;
    if (pool->space_hook.flush != NULL)
        status = pool->space_hook.flush(txn, error);
    if (status == LMCS_OK && txn->only_allocates)
        status = leave_reserve(txn, error);
    if (status == LMCS_OK)
        status = lmcs_freelist_settle(txn, error);
    for (uint8_t kind = 0; status == LMCS_OK && kind < LMCS_ROOT_TREES; kind++)
        status = lmcs_tree_seal(txn, kind, &txn->root.trees[kind], error);
    if (status == LMCS_OK)
        status = write_pages(txn, error);
    if (status == LMCS_OK)
        status = lmcs_heap_sync(txn->pool->heap, error);
    return status;
}

enum lmcs_status lmcs_txn_commit(struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct lmcs_pool *pool = txn->pool;
    struct lmcs_txn_pages *pages = txn->pages;
    enum lmcs_status status = lmcs_heap_check_file(pool->heap, error);
    if (status == LMCS_OK)
        status = prepare_commit(txn, error);
    /* lmcs_slabs_add must not fail after the publish. */
    for (size_t i = 0; status == LMCS_OK && i < pages->slab_count; i++)
        if (!lmcs_grow(&pool->slabs, &pool->slab_capacity, pool->slab_count + i, sizeof *pool->slabs))
            status = lmcs_fail_memory(error);
    if (status == LMCS_OK) {
        uint64_t word_at = lmcs_media_superblock(pool->media) + offsetof(struct lmcs_superblock_df, root);
        status = lmcs_heap_publish(pool->heap, pages->actions, pages->action_count, word_at,
                                   lmcs_root_word(txn->root.self), error);
    }
    if (status != LMCS_OK) {
        lmcs_txn_end(txn);
        return status;
    }
    pool->root = txn->root;
    pool->epoch = txn->root.epoch;
    if (pages->avail_used > 0)
        memmove(pool->avail, pool->avail + pages->avail_used,
                (pool->avail_count - pages->avail_used) * sizeof *pool->avail);
    pool->avail_count -= pages->avail_used;
    for (size_t i = 0; i < pages->slab_count; i++)
        (void)lmcs_slabs_add(pool, pages->slabs[i][0], pages->slabs[i][1]);
    pages->action_count = 0;
    txn->committed = true;
    lmcs_txn_end(txn);
    return LMCS_OK;
}

enum lmcs_status lmcs_txn_finish(struct lmcs_txn *txn, enum lmcs_status status, struct lmcs_error *error)
{
    if (status == LMCS_OK)
        return lmcs_txn_commit(txn, error);
    lmcs_txn_end(txn);
    return status;
}

enum lmcs_status lmcs_root_create(struct lmcs_pool *pool, uint64_t limit_bytes, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    memset(&pool->root, 0, sizeof pool->root);
    pool->root.magic = LMCS_ROOT_MAGIC;
    pool->root.version = LMCS_FORMAT_VERSION;
    pool->root.next_shelf = pool->root.next_identity = pool->root.next_content = 1;
    pool->root.limit_bytes = limit_bytes;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    return status == LMCS_OK ? lmcs_txn_commit(&txn, error) : status;
}
