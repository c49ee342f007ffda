/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/page.c - the pages of a transaction.
 *
 * Only pages that no committed root reaches are written.
 */
#include "pages/page.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/cache.h"
#include "pages/dirty.h"
#include "pages/pool.h"

#define LEAST_SLAB ((uint64_t)256 << 10)
#define MOST_SLAB  ((uint64_t)16 << 20)

/* Offsets beyond any pool, of pages that lmcs_txn_make_private permits and nothing writes. */
#define PRIVATE_PAGES ((uint64_t)1 << 62)

struct lmcs_node_df *lmcs_page_dirty(struct lmcs_txn *txn, uint64_t offset)
{
    struct lmcs_txn_pages *pages = txn->pages;
    if (pages == NULL)
        return NULL;
    struct lmcs_node_df *node = (struct lmcs_node_df *)(uintptr_t)lmcs_map_get(&pages->by_offset, offset);
    return node != NULL && node->magic == LMCS_NODE_MAGIC ? node : NULL;
}

size_t lmcs_pages_dirty(const struct lmcs_txn *txn)
{
    return txn->pages == NULL ? 0 : txn->pages->count;
}

/* Finds a page, perhaps one that the transaction dropped, or makes one with magic 0. */
static struct lmcs_node_df *enter(struct lmcs_txn_pages *pages, uint64_t offset)
{
    struct lmcs_node_df *node = (struct lmcs_node_df *)(uintptr_t)lmcs_map_get(&pages->by_offset, offset);
    if (node != NULL)
        return node;
    if (!lmcs_grow(&pages->order, &pages->order_capacity, pages->count, sizeof(struct lmcs_node_df *)))
        return NULL;
    node = aligned_alloc(64, LMCS_PAGE_BYTES);
    if (node == NULL || !lmcs_map_put(&pages->by_offset, offset, (uintptr_t)node)) {
        free(node);
        return NULL;
    }
    node->magic = 0;
    node->self = offset;
    pages->order[pages->count++] = node;
    return node;
}

void lmcs_txn_pages_free(struct lmcs_txn_pages *pages)
{
    if (pages == NULL)
        return;
    for (size_t i = 0; i < pages->count; i++)
        free(pages->order[i]);
    free(pages->order);
    lmcs_map_free(&pages->by_offset);
    free(pages->freed);
    free(pages->recycled);
    free(pages);
}

static uint64_t slab_first(uint64_t offset)
{
    return (offset + LMCS_PAGE_BYTES - 1) & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
}

static uint64_t slab_end(uint64_t offset, uint64_t bytes)
{
    return (offset + bytes) & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
}

void lmcs_slabs_forget(struct lmcs_pool *pool)
{
    pool->slab_count = 0;
}

bool lmcs_slabs_add(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes)
{
    if (!lmcs_grow(&pool->slabs, &pool->slab_capacity, pool->slab_count, sizeof *pool->slabs))
        return false;
    size_t i = pool->slab_count++;
    for (; i > 0 && pool->slabs[i - 1].next > offset; i--)
        pool->slabs[i] = pool->slabs[i - 1];
    pool->slabs[i] = (struct lmcs_page_range_df){slab_first(offset), slab_end(offset, bytes)};
    return true;
}

bool lmcs_slabs_hold(const struct lmcs_pool *pool, uint64_t offset, uint64_t pages)
{
    size_t low = 0, high = pool->slab_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (pool->slabs[middle].next <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    const struct lmcs_page_range_df *slab = low > 0 ? &pool->slabs[low - 1] : NULL;
    return slab != NULL && offset % LMCS_PAGE_BYTES == 0 && offset < slab->end &&
           pages <= (slab->end - offset) / LMCS_PAGE_BYTES;
}

/* In a slab, or in one reserved by this transaction. */
static bool is_ours(const struct lmcs_txn *txn, uint64_t offset)
{
    const struct lmcs_txn_pages *pages = txn->pages;
    for (size_t i = 0; i < pages->slab_count; i++)
        if (offset >= pages->slabs[i][2] && offset < slab_end(pages->slabs[i][0], pages->slabs[i][1]))
            return offset % LMCS_PAGE_BYTES == 0;
    return lmcs_slabs_hold(txn->pool, offset, 1);
}

static bool push_recycled(struct lmcs_txn_pages *pages, uint64_t offset)
{
    if (!lmcs_grow(&pages->recycled, &pages->recycled_capacity, pages->recycled_count, sizeof *pages->recycled))
        return false;
    pages->recycled[pages->recycled_count++] = offset;
    return true;
}

bool lmcs_page_push_freed(struct lmcs_txn *txn, uint64_t offset, uint64_t count)
{
    struct lmcs_txn_pages *pages = txn->pages;
    if (!lmcs_grow(&pages->freed, &pages->freed_capacity, pages->freed_count, sizeof *pages->freed))
        return false;
    pages->freed[pages->freed_count++] = (struct lmcs_free_page){txn->root.epoch, offset, count};
    pages->freed_pages += count;
    return true;
}

/* Reserves a slab with its file space, or nothing. */
static enum lmcs_status take_slab(struct lmcs_txn *txn, uint64_t bytes, uint64_t *offset, uint64_t *got,
                                  struct lmcs_error *error)
{
    struct lmcs_txn_pages *pages = txn->pages;
    struct lmcs_heap *heap = txn->pool->heap;
    enum lmcs_status status = lmcs_txn_reserve(txn, bytes - 16, offset, got, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_heap_back(heap, *offset, *got, error);
    if (status != LMCS_OK) {
        lmcs_heap_punch(heap, *offset, *got);
        lmcs_heap_cancel(heap, &pages->actions[--pages->action_count], 1);
    }
    return status;
}

enum lmcs_status lmcs_slab_new(struct lmcs_txn *txn, uint64_t least, struct lmcs_page_range_df *range,
                               struct lmcs_error *error)
{
    struct lmcs_txn_pages *pages = txn->pages;
    uint64_t wanted = txn->root.slab_bytes / 2, more = 0, offset, got;
    wanted = wanted < LEAST_SLAB ? LEAST_SLAB : wanted > MOST_SLAB ? MOST_SLAB : wanted;
    wanted = wanted < least ? least : wanted;
    for (size_t i = 0; i < pages->slab_count && range != &txn->root.spare; i++)
        more += pages->slabs[i][1] / 2;
    more = more < LMCS_PAGE_RANGE_MOST ? more : LMCS_PAGE_RANGE_MOST;
    if (txn->root.limit_bytes > 0 && more > txn->root.limit_bytes / 16)
        more = txn->root.limit_bytes / 16;
    enum lmcs_status status = take_slab(txn, more > wanted ? more : wanted, &offset, &got, error);
    if (status == LMCS_FULL && more > wanted)
        status = take_slab(txn, wanted, &offset, &got, error);
    if (status != LMCS_OK)
        return status;
    uint64_t first = slab_first(offset), end = slab_end(offset, got);
    pages->slabs[pages->slab_count][0] = offset;
    pages->slabs[pages->slab_count][1] = got;
    pages->slabs[pages->slab_count++][2] = first;
    txn->root.slab_bytes += got;
    for (uint64_t left = lmcs_range_pages(range); left > 0; left = lmcs_range_pages(range)) {
        uint64_t count = left < LMCS_FREE_RANGE_MOST ? left : LMCS_FREE_RANGE_MOST;
        if (!lmcs_page_push_freed(txn, range->next, count))
            return lmcs_fail_memory(error);
        range->next += count * LMCS_PAGE_BYTES;
    }
    *range = (struct lmcs_page_range_df){first, end};
    return LMCS_OK;
}

static enum lmcs_status choose_page(struct lmcs_txn *txn, uint64_t *offset, struct lmcs_error *error)
{
    struct lmcs_txn_pages *pages = txn->pages;
    if (pages->recycled_count > 0) {
        *offset = pages->recycled[--pages->recycled_count];
        return LMCS_OK;
    }
    if (pages->avail_used == txn->pool->avail_count) {
        enum lmcs_status status = txn->refill(txn->pool, error);
        if (status != LMCS_OK)
            return status;
    }
    if (pages->avail_used < txn->pool->avail_count) {
        *offset = txn->pool->avail[pages->avail_used++].offset;
        return LMCS_OK;
    }
    struct lmcs_page_range_df *range = &txn->root.fresh;
    if (lmcs_range_pages(range) == 0 && !txn->only_allocates && lmcs_range_pages(&txn->root.spare) > 0)
        range = &txn->root.spare;
    if (lmcs_range_pages(range) == 0) {
        enum lmcs_status status = lmcs_slab_new(txn, 0, range, error);
        if (status != LMCS_OK)
            return status;
    }
    *offset = range->next;
    range->next += LMCS_PAGE_BYTES;
    return LMCS_OK;
}

/* The page will be overwritten: a forged record may name one outside of slabs, the root, or one twice. */
enum lmcs_status lmcs_page_take(struct lmcs_txn *txn, uint64_t *offset, struct lmcs_error *error)
{
    if (!txn->write) {
        *offset = PRIVATE_PAGES + txn->pages->count * LMCS_PAGE_BYTES;
        return LMCS_OK;
    }
    enum lmcs_status status = choose_page(txn, offset, error);
    if (status == LMCS_OK &&
        (!is_ours(txn, *offset) || lmcs_page_dirty(txn, *offset) != NULL || *offset == txn->root.self))
        status = lmcs_fail(error, LMCS_DAMAGED, 0,
                           "%s: damaged metadata: the page at offset %llu is recorded as free but is in use",
                           txn->pool->path, (unsigned long long)*offset);
    return status;
}

enum lmcs_status lmcs_page_new(struct lmcs_txn *txn, uint8_t kind, uint8_t level, struct lmcs_ref_df *ref,
                               struct lmcs_node_df **node, struct lmcs_error *error)
{
    uint64_t offset;
    enum lmcs_status status = lmcs_page_take(txn, &offset, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_node_df *n = enter(txn->pages, offset);
    if (n == NULL)
        return lmcs_fail_memory(error);
    memset(n, 0, LMCS_PAGE_BYTES);
    n->magic = LMCS_NODE_MAGIC;
    n->kind = kind;
    n->level = level;
    n->self = offset;
    n->epoch = txn->root.epoch;
    n->low = LMCS_PAGE_BYTES;
    *ref = (struct lmcs_ref_df){offset, 0};
    *node = n;
    return LMCS_OK;
}

enum lmcs_status lmcs_page_read(struct lmcs_txn *txn, const struct lmcs_ref_df *ref, uint8_t kind, void *buffer,
                                const struct lmcs_node_df **node, struct lmcs_error *error)
{
    *node = lmcs_page_dirty(txn, ref->offset);
    if (*node != NULL)
        return (*node)->kind == kind ? LMCS_OK : lmcs_page_fail(txn->pool, ref, "it belongs to another tree", error);
    enum lmcs_status status = lmcs_page_load(txn->pool, ref, kind, buffer, error);
    *node = buffer;
    return status;
}

enum lmcs_status lmcs_page_show(struct lmcs_txn *txn, const struct lmcs_ref_df *ref, uint8_t kind, lmcs_page_look *look,
                                void *context, struct lmcs_error *error)
{
    const struct lmcs_node_df *node = lmcs_page_dirty(txn, ref->offset);
    if (node != NULL) {
        look(context, node);
        return LMCS_OK;
    }
    bool possible = ref->offset % LMCS_PAGE_BYTES == 0 && ref->offset != 0;
    if (possible && lmcs_cache_show(txn->pool->cache, ref, look, context))
        return LMCS_OK;
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    enum lmcs_status status = lmcs_page_load(txn->pool, ref, kind, buffer, error);
    if (status == LMCS_OK)
        look(context, (const struct lmcs_node_df *)buffer);
    return status;
}

enum lmcs_status lmcs_page_write(struct lmcs_txn *txn, struct lmcs_ref_df *ref, uint8_t kind, bool shared,
                                 struct lmcs_node_df **node, struct lmcs_error *error)
{
    *node = lmcs_page_dirty(txn, ref->offset);
    if (*node != NULL)
        return (*node)->kind == kind ? LMCS_OK : lmcs_page_fail(txn->pool, ref, "it belongs to another tree", error);
    uint64_t offset;
    enum lmcs_status status = lmcs_page_take(txn, &offset, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_node_df *copy = enter(txn->pages, offset);
    if (copy == NULL)
        return lmcs_fail_memory(error);
    status = lmcs_page_load(txn->pool, ref, kind, copy, error);
    copy->self = offset;
    if (status == LMCS_OK)
        status = lmcs_page_free(txn, ref->offset, shared, error);
    if (status != LMCS_OK) {
        copy->magic = 0;
        push_recycled(txn->pages, offset);
        return status;
    }
    copy->epoch = txn->root.epoch;
    copy->check = 0;
    *ref = (struct lmcs_ref_df){offset, 0};
    *node = copy;
    return LMCS_OK;
}

enum lmcs_status lmcs_page_free(struct lmcs_txn *txn, uint64_t offset, bool shared, struct lmcs_error *error)
{
    struct lmcs_txn_pages *pages = txn->pages;
    struct lmcs_node_df *own = lmcs_page_dirty(txn, offset);
    if (own == NULL && !txn->write)
        return LMCS_OK;
    if (own == NULL && !shared && !is_ours(txn, offset))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the page at offset %llu lies in no slab",
                         txn->pool->path, (unsigned long long)offset);
    if (own == NULL)
        return shared || lmcs_page_push_freed(txn, offset, 1) ? LMCS_OK : lmcs_fail_memory(error);
    own->magic = 0;
    return push_recycled(pages, offset) ? LMCS_OK : lmcs_fail_memory(error);
}

size_t lmcs_txn_room(const struct lmcs_txn *txn)
{
    /* some actions are kept for slabs */
    size_t used = txn->pages->action_count;
    return used + 8 < LMCS_MAX_ACTIONS ? LMCS_MAX_ACTIONS - 8 - used : 0;
}

enum lmcs_status lmcs_txn_reserve(struct lmcs_txn *txn, uint64_t bytes, uint64_t *offset, uint64_t *got,
                                  struct lmcs_error *error)
{
    struct lmcs_txn_pages *pages = txn->pages;
    if (pages->action_count == LMCS_MAX_ACTIONS)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "%s: one commit can't take so much metadata: save fewer tensors in a snapshot, or by shorter "
                         "names",
                         txn->pool->path);
    enum lmcs_status status =
        lmcs_heap_reserve(txn->pool->heap, bytes, &pages->actions[pages->action_count], offset, got, error);
    if (status == LMCS_OK)
        pages->action_count++;
    return status;
}

enum lmcs_status lmcs_txn_free(struct lmcs_txn *txn, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_txn_pages *pages = txn->pages;
    if (pages->action_count == LMCS_MAX_ACTIONS)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: one commit can't free so many objects", txn->pool->path);
    enum lmcs_status status =
        lmcs_heap_free(txn->pool->heap, offset, bytes, &pages->actions[pages->action_count], error);
    if (status == LMCS_OK)
        pages->action_count++;
    return status;
}
