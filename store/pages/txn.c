/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/txn.c - metadata transactions: pages that are read, copied on write, and switched to all at once.
 *
 * Pages come from slabs. A page that a commit of epoch E no longer reaches is entered in the tree of free pages under
 * E, by that commit, and is written to again only by a later one, and only when no reader in another process holds a
 * lease on an epoch before E. Taking pages from that tree and entering pages in it changes the tree, which takes and
 * frees pages; commit repeats until nothing is left to enter, which ends quickly since a page that this transaction
 * wrote is not copied again.
 *
 * The order of a commit: pages written, everything synced, then one publish of libpmemobj that claims or frees its
 * objects and switches the root word. A crash before the publish leaves the old root, and pages that nothing reaches.
 */
#include "pages/txn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"

/* ---- Page cache: checked copies of pages, found by place and checksum ---- */

#ifndef LMCS_CACHE_SLOTS /* fuzz targets, which open many pools a second, have fewer */
#define LMCS_CACHE_SLOTS 4096u
#endif
#define CACHE_LOCKS   64u

#define LOAD_AT_ONCE  4096u /* free pages */
#define LEAST_RESERVE 24u   /* pages */
#define MOST_RESERVE  8192u /* pages: for a snapshot of 100,000 tensors */
#define LEAST_SLAB    ((uint64_t)256 << 10)
#define MOST_SLAB     ((uint64_t)16 << 20)

struct cache_slot {
    uint64_t offset;
    uint64_t check;
    unsigned char page[LMCS_PAGE_BYTES];
};

struct lmcs_page_cache {
    pthread_mutex_t locks[CACHE_LOCKS];
    struct cache_slot *slots; /* calloc: memory is taken as it is used */
};

enum lmcs_status lmcs_page_cache_new(struct lmcs_page_cache **cache, struct lmcs_error *error)
{
    struct lmcs_page_cache *c = calloc(1, sizeof *c);
    if (c == NULL || (c->slots = calloc(LMCS_CACHE_SLOTS, sizeof *c->slots)) == NULL) {
        free(c);
        return lmcs_fail_memory(error);
    }
    for (size_t i = 0; i < CACHE_LOCKS; i++)
        pthread_mutex_init(&c->locks[i], NULL);
    *cache = c;
    return LMCS_OK;
}

void lmcs_page_cache_free(struct lmcs_page_cache *cache)
{
    if (cache == NULL)
        return;
    for (size_t i = 0; i < CACHE_LOCKS; i++)
        pthread_mutex_destroy(&cache->locks[i]);
    free(cache->slots);
    free(cache);
}

static size_t cache_index(uint64_t offset)
{
    return (size_t)(offset / LMCS_PAGE_BYTES * 0x9e3779b97f4a7c15u >> 52);
}

static void copy_page(void *context, const struct lmcs_node_df *node)
{
    memcpy(context, node, LMCS_PAGE_BYTES);
}

/* Shows the page to `look` while nobody can put another in its place. False: it is not there. */
static bool cache_look(struct lmcs_page_cache *cache, const struct lmcs_ref_df *ref, lmcs_page_look *look,
                       void *context)
{
    size_t i = cache_index(ref->offset) % LMCS_CACHE_SLOTS;
    struct cache_slot *slot = &cache->slots[i];
    pthread_mutex_lock(&cache->locks[i % CACHE_LOCKS]);
    bool found = slot->offset == ref->offset && slot->check == ref->check;
    if (found)
        look(context, (const struct lmcs_node_df *)slot->page);
    pthread_mutex_unlock(&cache->locks[i % CACHE_LOCKS]);
    return found;
}

static void cache_put(struct lmcs_page_cache *cache, const struct lmcs_ref_df *ref, const void *page)
{
    size_t i = cache_index(ref->offset) % LMCS_CACHE_SLOTS;
    struct cache_slot *slot = &cache->slots[i];
    pthread_mutex_lock(&cache->locks[i % CACHE_LOCKS]);
    slot->offset = ref->offset;
    slot->check = ref->check;
    memcpy(slot->page, page, LMCS_PAGE_BYTES);
    pthread_mutex_unlock(&cache->locks[i % CACHE_LOCKS]);
}

/* ---- Checking pages ---- */

uint64_t lmcs_page_check(const void *page, uint64_t offset)
{
    unsigned char copy[LMCS_PAGE_BYTES];
    memcpy(copy, page, sizeof copy);
    memset(copy + offsetof(struct lmcs_node_df, check), 0, 8);
    return lmc_hash64(copy, sizeof copy, offset);
}

bool lmcs_page_is_whole(const void *page, const struct lmcs_ref_df *ref)
{
    const struct lmcs_node_df *node = page;
    return node->check == ref->check && lmcs_page_check(page, ref->offset) == ref->check;
}

/* Marks the bytes of an entry as taken. False: some were, by another. */
static bool take_bytes(uint64_t taken[LMCS_PAGE_BYTES / 64], size_t from, size_t bytes)
{
    for (size_t end = from + bytes, next; from < end; from = next) {
        next = (from | 63) + 1 < end ? (from | 63) + 1 : end;
        uint64_t mask = (next - from == 64 ? UINT64_MAX : ((uint64_t)1 << (next - from)) - 1) << from % 64;
        if ((taken[from / 64] & mask) != 0)
            return false;
        taken[from / 64] |= mask;
    }
    return true;
}

/*
 * A page may be checksummed and still be nonsense that someone made: every offset in it is looked at once. What changes
 * pages (tree.c) goes by their sums: entries of which each has its own bytes, and which fill, with those that were
 * removed, all from `low` on.
 */
static bool node_is_sound(const struct lmcs_node_df *node, uint8_t kind, uint64_t offset)
{
    if (node->magic != LMCS_NODE_MAGIC || node->kind != kind || node->self != offset || node->level > LMCS_MAX_LEVEL ||
        node->count == 0 || node->low > LMCS_PAGE_BYTES ||
        sizeof *node + (size_t)node->count * sizeof(struct lmcs_slot_df) > node->low)
        return false;
    uint64_t taken[LMCS_PAGE_BYTES / 64] = {0};
    size_t sum = node->garbage;
    for (size_t i = 0; i < node->count; i++) {
        struct lmcs_slot_df slot = node->slots[i];
        size_t bytes = sizeof(struct lmcs_key_df) + slot.value_bytes;
        if (slot.offset < node->low || slot.offset + bytes > LMCS_PAGE_BYTES || slot.value_bytes > LMCS_MAX_VALUE ||
            (node->level > 0 && slot.value_bytes != sizeof(struct lmcs_ref_df)) ||
            !take_bytes(taken, slot.offset, bytes))
            return false;
        sum += bytes;
    }
    return sum == (size_t)LMCS_PAGE_BYTES - node->low;
}

static enum lmcs_status fail_page(struct lmcs_txn *txn, const struct lmcs_ref_df *ref, const char *why,
                                  struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: the metadata page at offset %llu is damaged (%s)", txn->pool->path,
                     (unsigned long long)ref->offset, why);
}

bool lmcs_page_from_replica(const struct lmcs_pool *pool, const struct lmcs_ref_df *ref, void *buffer)
{
    struct lmcs_error ignored;
    for (size_t i = 0; i < lmcs_media_replicas(pool->media); i++)
        if (lmcs_media_read(lmcs_media_replica(pool->media, i), ref->offset, buffer, LMCS_PAGE_BYTES, &ignored) ==
                LMCS_OK &&
            lmcs_page_is_whole(buffer, ref))
            return true;
    return false;
}

static enum lmcs_status load_page(struct lmcs_txn *txn, const struct lmcs_ref_df *ref, uint8_t kind, void *buffer,
                                  struct lmcs_error *error)
{
    if (ref->offset % LMCS_PAGE_BYTES != 0 || ref->offset == 0)
        return fail_page(txn, ref, "its place is impossible", error);
    if (!cache_look(txn->pool->cache, ref, copy_page, buffer)) {
        enum lmcs_status status = lmcs_media_read(txn->pool->media, ref->offset, buffer, LMCS_PAGE_BYTES, error);
        bool whole = status == LMCS_OK && lmcs_page_is_whole(buffer, ref);
        if (!whole && !lmcs_page_from_replica(txn->pool, ref, buffer))
            return status != LMCS_OK ? status : fail_page(txn, ref, "its checksum is wrong", error);
        if (!node_is_sound(buffer, kind, ref->offset))
            return fail_page(txn, ref, "it is not what refers to it says", error);
        cache_put(txn->pool->cache, ref, buffer);
    } else if (((const struct lmcs_node_df *)buffer)->kind != kind) {
        return fail_page(txn, ref, "it belongs to another tree", error);
    }
    return LMCS_OK;
}

/* ---- The pages of a write transaction ---- */

struct lmcs_txn_pages {
    struct lmcs_node_df **table; /* open addressing by offset; power of two */
    size_t capacity;
    size_t count;
    struct lmcs_node_df **order; /* all of them, for writing */
    size_t order_capacity;
    struct lmcs_free_page *freed; /* to be entered in the tree of free pages */
    size_t freed_count;
    size_t freed_capacity;
    uint64_t freed_pages;
    uint64_t *recycled; /* taken and dropped again by this transaction */
    size_t recycled_count;
    size_t recycled_capacity;
    size_t avail_used;
    struct lmcs_action actions[LMCS_MAX_ACTIONS];
    size_t action_count;
    size_t reserved_count;               /* of the actions, those that can be cancelled come first */
    uint64_t slabs[LMCS_MAX_ACTIONS][3]; /* offset, bytes, first page: to be entered in the tree of objects */
    size_t slab_count;
};

static size_t probe(const struct lmcs_txn_pages *pages, uint64_t offset)
{
    size_t i = (size_t)(offset / LMCS_PAGE_BYTES * 0x9e3779b97f4a7c15u >> 20) & (pages->capacity - 1);
    while (pages->table[i] != NULL && pages->table[i]->self != offset)
        i = (i + 1) & (pages->capacity - 1);
    return i;
}

struct lmcs_node_df *lmcs_page_dirty(struct lmcs_txn *txn, uint64_t offset)
{
    struct lmcs_txn_pages *pages = txn->pages;
    if (pages == NULL || pages->count == 0)
        return NULL;
    struct lmcs_node_df *node = pages->table[probe(pages, offset)];
    return node != NULL && node->magic == LMCS_NODE_MAGIC ? node : NULL;
}

size_t lmcs_pages_dirty(const struct lmcs_txn *txn)
{
    return txn->pages == NULL ? 0 : txn->pages->count;
}

static bool rehash(struct lmcs_txn_pages *pages)
{
    size_t wanted = pages->capacity == 0 ? 256 : pages->capacity * 2;
    struct lmcs_node_df **table = calloc(wanted, sizeof(struct lmcs_node_df *));
    if (table == NULL)
        return false;
    free(pages->table);
    pages->table = table;
    pages->capacity = wanted;
    for (size_t i = 0; i < pages->count; i++)
        table[probe(pages, pages->order[i]->self)] = pages->order[i];
    return true;
}

/* Gives a place its page in memory, with magic 0. A dropped page is the same: it may be taken again. */
static struct lmcs_node_df *enter(struct lmcs_txn_pages *pages, uint64_t offset)
{
    if ((pages->count + 1) * 2 > pages->capacity && !rehash(pages))
        return NULL;
    size_t i = probe(pages, offset);
    if (pages->table[i] != NULL)
        return pages->table[i];
    if (!lmcs_grow(&pages->order, &pages->order_capacity, pages->count, sizeof(struct lmcs_node_df *)))
        return NULL;
    struct lmcs_node_df *node = aligned_alloc(64, LMCS_PAGE_BYTES);
    if (node == NULL)
        return NULL;
    node->magic = 0;
    node->self = offset;
    pages->table[i] = node;
    pages->order[pages->count++] = node;
    return node;
}

/* ---- Slabs: where pages may lie ---- */

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

/* Whether a page may be written to: it lies in a slab, be it one that this transaction has made. */
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

static bool push_freed(struct lmcs_txn *txn, uint64_t offset, uint64_t count)
{
    struct lmcs_txn_pages *pages = txn->pages;
    if (!lmcs_grow(&pages->freed, &pages->freed_capacity, pages->freed_count, sizeof *pages->freed))
        return false;
    pages->freed[pages->freed_count++] = (struct lmcs_free_page){txn->root.epoch, offset, count};
    pages->freed_pages += count;
    return true;
}

/* Adds a range of free pages, one by one, to those at hand. */
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

/* Loads more of the committed tree of free pages, as far as no reader's lease is in the way. */
static enum lmcs_status load_avail(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_root_tree_df *tree = &pool->root.trees[LMCS_TREE_FREE_PAGES];
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
    status = lmcs_cursor_seek(cursor, &committed, LMCS_TREE_FREE_PAGES, tree, from, error);
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

static uint64_t range_pages(const struct lmcs_page_range_df *range)
{
    return (range->end - range->next) / LMCS_PAGE_BYTES;
}

/* An object with file space, or nothing. */
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
        lmcs_heap_punch(heap, *offset, *got); /* what there was before it said so */
        lmcs_heap_cancel(heap, &pages->actions[--pages->action_count], 1);
    }
    return status;
}

/*
 * A slab of at least `least` bytes; `range` becomes its pages. Slabs grow with the pool; and, as a commit may take only
 * so many of them, with what this one has taken already, unless there is no room for that.
 */
static enum lmcs_status new_slab(struct lmcs_txn *txn, uint64_t least, struct lmcs_page_range_df *range,
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
    /* What is left of the old range is not lost: those pages were never used, so they are free at once. */
    for (uint64_t left = range_pages(range); left > 0; left = range_pages(range)) {
        uint64_t count = left < LMCS_FREE_RANGE_MOST ? left : LMCS_FREE_RANGE_MOST;
        if (!push_freed(txn, range->next, count))
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
        enum lmcs_status status = load_avail(txn->pool, error);
        if (status != LMCS_OK)
            return status;
    }
    if (pages->avail_used < txn->pool->avail_count) {
        *offset = txn->pool->avail[pages->avail_used++].offset;
        return LMCS_OK;
    }
    struct lmcs_page_range_df *range = &txn->root.fresh;
    if (range_pages(range) == 0 && !txn->spends && range_pages(&txn->root.spare) > 0)
        range = &txn->root.spare;
    if (range_pages(range) == 0) {
        enum lmcs_status status = new_slab(txn, 0, range, error);
        if (status != LMCS_OK)
            return status;
    }
    *offset = range->next;
    range->next += LMCS_PAGE_BYTES;
    return LMCS_OK;
}

/*
 * What it takes is written to, so it must be a page, and not one that it has taken before, or the root: a record that
 * names another place, or one place twice, may have a right checksum.
 */
static enum lmcs_status take_page(struct lmcs_txn *txn, uint64_t *offset, struct lmcs_error *error)
{
    enum lmcs_status status = choose_page(txn, offset, error);
    if (status == LMCS_OK &&
        (!is_ours(txn, *offset) || lmcs_page_dirty(txn, *offset) != NULL || *offset == txn->root.self))
        status = lmcs_fail(error, LMCS_DAMAGED, 0,
                           "%s: damaged metadata: the page at offset %llu is said to be free, but can't be",
                           txn->pool->path, (unsigned long long)*offset);
    return status;
}

enum lmcs_status lmcs_page_new(struct lmcs_txn *txn, uint8_t kind, uint8_t level, struct lmcs_ref_df *ref,
                               struct lmcs_node_df **node, struct lmcs_error *error)
{
    uint64_t offset;
    enum lmcs_status status = take_page(txn, &offset, error);
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
        return (*node)->kind == kind ? LMCS_OK : fail_page(txn, ref, "it belongs to another tree", error);
    enum lmcs_status status = load_page(txn, ref, kind, buffer, error);
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
    if (possible && cache_look(txn->pool->cache, ref, look, context))
        return LMCS_OK;
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    enum lmcs_status status = load_page(txn, ref, kind, buffer, error);
    if (status == LMCS_OK)
        look(context, (const struct lmcs_node_df *)buffer);
    return status;
}

enum lmcs_status lmcs_page_write(struct lmcs_txn *txn, struct lmcs_ref_df *ref, uint8_t kind, bool shared,
                                 struct lmcs_node_df **node, struct lmcs_error *error)
{
    *node = lmcs_page_dirty(txn, ref->offset);
    if (*node != NULL)
        return (*node)->kind == kind ? LMCS_OK : fail_page(txn, ref, "it belongs to another tree", error);
    uint64_t offset;
    enum lmcs_status status = take_page(txn, &offset, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_node_df *copy = enter(txn->pages, offset);
    if (copy == NULL)
        return lmcs_fail_memory(error);
    status = load_page(txn, ref, kind, copy, error);
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
    if (own == NULL && !shared && !is_ours(txn, offset))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the page at offset %llu lies in no slab",
                         txn->pool->path, (unsigned long long)offset);
    if (own == NULL)
        return shared || push_freed(txn, offset, 1) ? LMCS_OK : lmcs_fail_memory(error);
    own->magic = 0;
    return push_recycled(pages, offset) ? LMCS_OK : lmcs_fail_memory(error);
}

/* ---- Objects ---- */

size_t lmcs_txn_room(const struct lmcs_txn *txn)
{
    /* A few are kept for slabs. */
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
    lmcs_heap_free(txn->pool->heap, offset, bytes, &pages->actions[pages->action_count++]);
    return LMCS_OK;
}

/* ---- The root ---- */

uint64_t lmcs_root_word(uint64_t page_offset)
{
    uint64_t page = page_offset / LMCS_PAGE_BYTES;
    return page << 16 | (lmc_hash64(&page, sizeof page, 0) & 0xffff);
}

static enum lmcs_status fail_root(struct lmcs_pool *pool, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged: %s", pool->path, why);
}

static enum lmcs_status check_superblock(struct lmcs_pool *pool, const struct lmcs_superblock_df *super,
                                         struct lmcs_error *error)
{
    if (memcmp(super->magic, LMCS_SUPERBLOCK_MAGIC, 8) != 0)
        return fail_root(pool, "there is no superblock (its creation was cut short, or it is another's pool)", error);
    if (super->check != lmc_hash64(super, offsetof(struct lmcs_superblock_df, check), 0))
        return fail_root(pool, "the superblock's checksum is wrong", error);
    if (super->version != LMCS_FORMAT_VERSION || super->incompatible != 0)
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                         "%s: has format version %u (features %llx), this lmc-store knows version %u: use a newer one",
                         pool->path, super->version, (unsigned long long)super->incompatible, LMCS_FORMAT_VERSION);
    if (super->read_only_compatible != 0 && pool->heap != NULL)
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                         "%s: was written by a newer lmc-store; this one can read it (mode r) but not write it",
                         pool->path);
    return LMCS_OK;
}

static bool range_is_sound(const struct lmcs_page_range_df *range)
{
    return range->next <= range->end && range->end - range->next <= LMCS_PAGE_RANGE_MOST &&
           range->next % LMCS_PAGE_BYTES == 0 && range->end % LMCS_PAGE_BYTES == 0;
}

enum lmcs_status lmcs_root_read(struct lmcs_pool *pool, struct lmcs_root_df *root, struct lmcs_error *error)
{
    struct lmcs_superblock_df *super = &pool->superblock;
    uint64_t at = lmcs_media_superblock(pool->media);
    struct lmcs_superblock_df fresh;
    enum lmcs_status status = lmcs_media_read(pool->media, at, &fresh, sizeof fresh, error);
    if (status == LMCS_OK && super->check == 0) {
        status = check_superblock(pool, &fresh, error);
        if (status == LMCS_OK)
            memcpy(super, &fresh, sizeof fresh);
    }
    if (status != LMCS_OK)
        return status;
    uint64_t offset = (fresh.root >> 16) * LMCS_PAGE_BYTES;
    if (fresh.root == 0 || fresh.root != lmcs_root_word(offset))
        return fail_root(pool, "the reference to its root page is wrong", error);
    status = lmcs_media_read(pool->media, offset, root, sizeof *root, error);
    if (status != LMCS_OK)
        return status;
    if (root->magic != LMCS_ROOT_MAGIC || root->self != offset ||
        root->check != lmc_hash64(root, offsetof(struct lmcs_root_df, check), offset))
        return fail_root(pool, "its root page is not what was written", error);
    if (!range_is_sound(&root->fresh) || !range_is_sound(&root->spare))
        return fail_root(pool, "its root page speaks of impossible pages", error);
    return LMCS_OK;
}

static void seal_root(struct lmcs_root_df *root)
{
    root->time_ns = lmcs_now_ns();
    root->check = lmc_hash64(root, offsetof(struct lmcs_root_df, check), root->self);
}

/* The root page itself becomes free with the next commit; a range that is used up names no page. */
static bool range_is_ours(const struct lmcs_pool *pool, const struct lmcs_page_range_df *range)
{
    uint64_t pages = range_pages(range);
    return pages == 0 || lmcs_slabs_hold(pool, range->next, pages);
}

bool lmcs_root_counts(const struct lmcs_root_df *root)
{
    return ((root->next_shelf | root->next_identity | root->next_content | root->next_live) & LMCS_SPACE_PARITY) == 0 &&
           root->next_shelf != 0 && root->next_identity != 0 && root->next_content != 0;
}

enum lmcs_status lmcs_root_fail_number(struct lmcs_pool *pool, const char *what, uint64_t number,
                                       struct lmcs_error *error)
{
    return lmcs_fail(
        error, LMCS_DAMAGED, 0,
        "%s: damaged metadata: the next %s that is made would take the place of number %llu, which is "
        "there, so nothing may be written to it; mode r still reads it, and 'lmc-store dump' saves what it "
        "holds",
        pool->path, what, (unsigned long long)number);
}

/* Whether a tree of the root has nothing with the next number, or a later one. */
static enum lmcs_status check_number(struct lmcs_txn *txn, uint8_t kind, uint64_t next, const char *what,
                                     struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_cursor_seek(cursor, txn, kind, &txn->root.trees[kind], (struct lmcs_key_df){next, 0}, error);
    if (status == LMCS_OK && lmcs_cursor_valid(cursor))
        status = lmcs_root_fail_number(txn->pool, what, lmcs_cursor_key(cursor).high, error);
    else if (status == LMCS_DAMAGED)
        status = LMCS_OK; /* nothing can be put where it can't be read */
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_root_check(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error)
{
    if (!lmcs_root_counts(root))
        return fail_root(pool, "its root page speaks of numbers that can never have been given out", error);
    if (!lmcs_slabs_hold(pool, root->self, 1) || !range_is_ours(pool, &root->fresh) ||
        !range_is_ours(pool, &root->spare))
        return fail_root(pool, "its root page speaks of impossible pages", error);
    struct lmcs_txn txn = {.pool = pool, .root = *root};
    enum lmcs_status status = check_number(&txn, LMCS_TREE_SHELVES, root->next_shelf, "shelf", error);
    if (status == LMCS_OK)
        status = check_number(&txn, LMCS_TREE_IDENTITIES, root->next_identity, "identity", error);
    return status == LMCS_OK ? check_number(&txn, LMCS_TREE_CONTENTS, root->next_content, "content", error) : status;
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

/* ---- Begin and end ---- */

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
        /* The writer may have moved on twice between our two looks, and reused the page: look again. */
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
    *txn = (struct lmcs_txn){.pool = pool, .leased = true, .root = root}; /* its end drops the lease */
    return status;
}

enum lmcs_status lmcs_txn_write(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error)
{
    *txn = (struct lmcs_txn){.pool = pool, .write = true};
    txn->pages = calloc(1, sizeof *txn->pages);
    if (txn->pages == NULL)
        return lmcs_fail_memory(error);
    pthread_rwlock_wrlock(&pool->meta);
    txn->root = pool->root;
    txn->root.epoch++;
    return LMCS_OK;
}

static void free_pages(struct lmcs_txn_pages *pages)
{
    if (pages == NULL)
        return;
    for (size_t i = 0; i < pages->count; i++)
        free(pages->order[i]);
    free(pages->order);
    free(pages->table);
    free(pages->freed);
    free(pages->recycled);
    free(pages);
}

void lmcs_txn_end(struct lmcs_txn *txn)
{
    struct lmcs_pool *pool = txn->pool;
    if (txn->write) {
        lmcs_space_settle(pool, txn->committed);
        for (size_t i = 0; i < txn->pages->slab_count && !txn->committed; i++) /* before others may have their place */
            lmcs_heap_punch(pool->heap, txn->pages->slabs[i][0], txn->pages->slabs[i][1]);
        lmcs_heap_cancel(pool->heap, txn->pages->actions, txn->pages->action_count);
        free_pages(txn->pages);
        txn->pages = NULL;
        pthread_rwlock_unlock(&pool->meta);
    } else if (txn->leased) {
        lmcs_lease_epoch_end(pool->lease, txn->root.epoch);
    } else if (pool->heap != NULL) {
        pthread_rwlock_unlock(&pool->meta);
    }
    txn->pool = NULL;
}

/* ---- Commit ---- */

static enum lmcs_status enter_slabs(struct lmcs_txn *txn, size_t *done, struct lmcs_error *error)
{
    struct lmcs_txn_pages *pages = txn->pages;
    for (; *done < pages->slab_count; (*done)++) {
        const uint64_t *slab = pages->slabs[*done];
        struct lmcs_object_df object = {.kind = LMCS_OBJECT_SLAB, .bytes = slab[1], .first = slab[2]};
        enum lmcs_status status = lmcs_tree_put(txn, LMCS_TREE_OBJECTS, &txn->root.trees[LMCS_TREE_OBJECTS],
                                                (struct lmcs_key_df){slab[0], 0}, &object, sizeof object, error);
        if (status != LMCS_OK)
            return status;
    }
    return LMCS_OK;
}

static enum lmcs_status enter_range(struct lmcs_txn *txn, struct lmcs_free_page range, struct lmcs_error *error)
{
    txn->root.free_pages += range.left;
    return lmcs_tree_put(txn, LMCS_TREE_FREE_PAGES, &txn->root.trees[LMCS_TREE_FREE_PAGES],
                         (struct lmcs_key_df){range.epoch, range.offset}, &range.left, sizeof range.left, error);
}

/* Takes the first *count pages of a range from the tree, or as many as it has. */
static enum lmcs_status take_from_range(struct lmcs_txn *txn, struct lmcs_free_page range, size_t *count,
                                        struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_tree_delete(txn, LMCS_TREE_FREE_PAGES, &txn->root.trees[LMCS_TREE_FREE_PAGES],
                                               (struct lmcs_key_df){range.epoch, range.offset}, NULL, error);
    txn->root.free_pages -= range.left;
    if (status != LMCS_OK || range.left <= *count) {
        *count = (size_t)range.left;
        return status;
    }
    range.left -= *count;
    range.offset += *count * LMCS_PAGE_BYTES;
    return enter_range(txn, range, error);
}

/* Repeats until the tree of free pages says what this transaction, this very work included, took and freed. */
static enum lmcs_status settle_free_pages(struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct lmcs_txn_pages *pages = txn->pages;
    size_t deleted = 0, inserted = 0, slabs = 0;
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && (deleted < pages->avail_used || inserted < pages->freed_count ||
                                 slabs < pages->slab_count || pages->recycled_count > 0)) {
        if (pages->recycled_count > 0 && !push_freed(txn, pages->recycled[pages->recycled_count - 1], 1))
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

static int by_place(const void *a, const void *b)
{
    const struct lmcs_node_df *const *x = a, *const *y = b;
    return ((*x)->self > (*y)->self) - ((*x)->self < (*y)->self);
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
        cache_put(txn->pool->cache, &ref, node);
    }
    unsigned char page[LMCS_PAGE_BYTES] = {0};
    seal_root(&txn->root);
    memcpy(page, &txn->root, sizeof txn->root);
    return lmcs_heap_write(heap, txn->root.self, page, sizeof page, error);
}

/*
 * A full disk must not keep anyone from removing snapshots, which takes pages before it gives some back: what only
 * takes has to leave as many as a large removal may need.
 */
static enum lmcs_status leave_reserve(struct lmcs_txn *txn, struct lmcs_error *error)
{
    const struct lmcs_txn_pages *pages = txn->pages;
    struct lmcs_root_df *root = &txn->root;
    uint64_t free_pages = root->free_pages - pages->avail_used + pages->freed_pages + pages->recycled_count +
                          range_pages(&root->fresh) + range_pages(&root->spare);
    uint64_t reserve = LEAST_RESERVE + root->slab_bytes / LMCS_PAGE_BYTES / 4;
    reserve = reserve < MOST_RESERVE ? reserve : MOST_RESERVE;
    return free_pages < reserve ? new_slab(txn, reserve * LMCS_PAGE_BYTES, &root->spare, error) : LMCS_OK;
}

static enum lmcs_status prepare_commit(struct lmcs_txn *txn, struct lmcs_error *error)
{
    uint64_t old_root = txn->root.self, new_root;
    enum lmcs_status status = take_page(txn, &new_root, error);
    if (status == LMCS_OK && old_root != 0 && !push_freed(txn, old_root, 1))
        status = lmcs_fail_memory(error);
    if (status != LMCS_OK)
        return status;
    txn->root.self = new_root;
    status = lmcs_space_flush(txn, error);
    if (status == LMCS_OK && txn->spends)
        status = leave_reserve(txn, error);
    if (status == LMCS_OK)
        status = settle_free_pages(txn, error);
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
    enum lmcs_status status = lmcs_heap_check_name(pool->heap, error);
    if (status == LMCS_OK)
        status = prepare_commit(txn, error);
    for (size_t i = 0; status == LMCS_OK && i < pages->slab_count; i++) /* room: later, adding them must not fail */
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
