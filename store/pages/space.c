/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/space.c - the table of extents, and the trees that it follows.
 *
 * A transaction keeps an extent's new record beside the old one, writes it to the tree of objects before the commit
 * (space_flush) and adopts it afterwards (space_settle). Bytes taken by a region and not committed are in the table
 * only.
 *
 * A record may be forged: before bytes are written, punched or given to libpmemobj on its word, the tree of space is
 * searched for a payload there.
 */
#include "pages/space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/extents.h"
#include "pages/pool.h"
#include "pages/tree.h"

#define LARGEST_EXTENT    ((uint64_t)64 << 20)
#define SMALLEST_EXTENT   ((uint64_t)512 << 10)
#define COMPACTOR_SHARE   64  /* of the limit */
#define EXTENTS_OF_A_POOL 128 /* of a full pool */
#define EXTENTS_IN_USE    8   /* at least */

/*
 * A sixteenth is for gaps between extents and for their ends: else captures' last extents would leave the compactor no
 * space.
 */
uint64_t lmcs_space_most(const struct lmcs_pool *pool)
{
    uint64_t whole = lmcs_media_bytes(pool->media), heap = lmcs_media_heap(pool->media) + ((uint64_t)1 << 20);
    whole = whole > heap ? whole - heap : 0;
    return whole - whole / 16;
}

uint64_t lmcs_space_limit(const struct lmcs_pool *pool, const struct lmcs_root_df *root)
{
    uint64_t most = lmcs_space_most(pool);
    return root->limit_bytes != 0 && root->limit_bytes < most ? root->limit_bytes : most;
}

uint64_t lmcs_space_share(uint64_t largest, uint64_t whole)
{
    uint64_t share = whole / COMPACTOR_SHARE;
    if (share < largest)
        share = largest < whole / 8 ? largest : whole / 8;
    return share;
}

uint64_t lmcs_space_ready(const struct lmcs_space *space)
{
    uint64_t ready = 0;
    for (size_t i = 0; i < space->count; i++)
        if (lmcs_extent_is_free(space->extents[i]))
            ready += lmcs_extent_used(&space->extents[i]->now);
    return ready;
}

static size_t find_index(const struct lmcs_space *space, uint64_t offset)
{
    size_t low = 0, high = space->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (space->extents[middle]->offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low; /* first that begins after it */
}

struct lmcs_extent *lmcs_extent_find(const struct lmcs_space *space, uint64_t offset)
{
    size_t i = find_index(space, offset);
    struct lmcs_extent *extent = i > 0 ? space->extents[i - 1] : NULL;
    return extent != NULL && offset < lmcs_extent_end(extent) ? extent : NULL;
}

struct lmcs_extent *lmcs_extent_add(struct lmcs_space *space, uint64_t offset, const struct lmcs_object_df *df)
{
    if (!lmcs_grow(&space->extents, &space->capacity, space->count, sizeof *space->extents))
        return NULL;
    struct lmcs_extent *extent = calloc(1, sizeof *extent);
    if (extent == NULL)
        return NULL;
    extent->offset = offset;
    extent->now = *df;
    extent->committed_cursor = df->cursor;
    extent->warm_end = space->is_mapped ? df->first : df->backed;
    extent->spare_from = UINT64_MAX;
    extent->needs_trim_check = df->punched_bytes > 0 || lmcs_page_up(df->backed) < offset + df->bytes;
    size_t i = find_index(space, offset);
    memmove(&space->extents[i + 1], &space->extents[i], (space->count - i) * sizeof *space->extents);
    space->extents[i] = extent;
    space->count++;
    space->used += lmcs_extent_used(df);
    return extent;
}

static void drop_extent(struct lmcs_space *space, struct lmcs_extent *extent)
{
    size_t i = find_index(space, extent->offset) - 1;
    memmove(&space->extents[i], &space->extents[i + 1], (space->count - i - 1) * sizeof *space->extents);
    space->count--;
    free(extent);
}

/* An almost empty extent must be a small part of the pool. */
static uint64_t largest_extent(struct lmcs_pool *pool)
{
    uint64_t disk = lmcs_heap_disk_free(pool->heap);
    uint64_t budget = pool->root.limit_bytes;
    if (budget == 0)
        budget = disk == UINT64_MAX ? lmcs_media_bytes(pool->media) : disk + pool->root.extent_bytes;
    uint64_t bytes = LARGEST_EXTENT;
    while (bytes > SMALLEST_EXTENT && bytes > budget / EXTENTS_OF_A_POOL)
        bytes /= 2;
    return bytes;
}

uint64_t lmcs_extent_standard(const struct lmcs_space *space, uint64_t expected)
{
    uint64_t bytes = 4 * SMALLEST_EXTENT;
    while (bytes < space->used / EXTENTS_IN_USE || bytes < expected / EXTENTS_IN_USE)
        bytes *= 2;
    return bytes < space->largest_bytes ? bytes : space->largest_bytes;
}

static bool object_is_sound(const struct lmcs_pool *pool, uint64_t offset, const struct lmcs_object_df *df)
{
    uint64_t end = lmcs_media_bytes(pool->media);
    if (df->kind < LMCS_OBJECT_SLAB)
        return false;
    if (offset >= end || df->bytes > end - offset || df->first < offset || df->first > offset + df->bytes)
        return false;
    return df->kind != LMCS_OBJECT_EXTENT ||
           (df->cursor >= df->first && df->cursor <= offset + df->bytes && df->backed >= df->first &&
            df->backed <= offset + df->bytes + LMCS_PAGE_BYTES);
}

/* `left` bytes are free, of the limit or (0) of the disk; captures leave `share` of them to the compactor. */
static enum lmcs_status fail_full(const struct lmcs_pool *pool, uint64_t limit, uint64_t need, uint64_t left,
                                  uint64_t share, struct lmcs_error *error)
{
    char of_limit[48] = "", reserved[80] = "";
    if (limit != 0)
        snprintf(of_limit, sizeof of_limit, " of its limit of %llu", (unsigned long long)limit);
    if (share > 0)
        snprintf(reserved, sizeof reserved, ", and %llu more are reserved for compaction", (unsigned long long)share);
    return lmcs_fail_full(error, need, left - share, 0,
                          "%s: the %s is full: %llu bytes are needed and %llu%s are free%s; compact it, remove "
                          "snapshots ('lmc-store rm'), or %s",
                          pool->path, limit != 0 ? "pool" : "disk", (unsigned long long)need,
                          (unsigned long long)(left - share), of_limit, reserved,
                          limit == 0                      ? "free disk space"
                          : limit < lmcs_space_most(pool) ? "open it with a larger size"
                                                          : "dump it and restore it into a new pool of a larger size");
}

enum lmcs_status lmcs_space_need(struct lmcs_pool *pool, uint64_t need, uint64_t largest, bool leaves,
                                 struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    uint64_t limit = space->limit_bytes, taken = space->used + space->slab_bytes;
    uint64_t left = limit > taken ? limit - taken : 0, share = leaves ? lmcs_space_share(largest, limit) : 0;
    share = share < left ? share : left;
    if (need > left - share)
        return fail_full(pool, limit, need, left, share, error);
    uint64_t disk = leaves ? lmcs_heap_disk_free(pool->heap) : UINT64_MAX;
    share = leaves ? lmcs_space_share(largest, space->used + disk) : 0;
    if (disk != UINT64_MAX && (need > disk || disk - need < share))
        return fail_full(pool, 0, need, disk, share < disk ? share : disk, error);
    space->used += need;
    return LMCS_OK;
}

enum lmcs_status lmcs_space_check_none(struct lmcs_txn *txn, uint64_t from, uint64_t end, struct lmcs_error *error)
{
    const struct lmcs_root_tree_df *tree = &txn->root.trees[LMCS_TREE_SPACE];
    struct lmcs_key_df key = {from, 0};
    struct lmcs_space_df df = {0, 0};
    struct lmcs_cursor *cursor;
    bool found = false;
    enum lmcs_status status = lmcs_cursor_open(&cursor, txn, LMCS_TREE_SPACE, tree, key, error);
    if (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high < end) {
        key = lmcs_cursor_key(cursor);
        found = true;
    } else if (status == LMCS_OK) { /* or a payload begins before the range */
        status = lmcs_tree_before(txn, LMCS_TREE_SPACE, tree, key, &key, &found, error);
        if (status == LMCS_OK && found)
            status = lmcs_tree_get(txn, LMCS_TREE_SPACE, tree, key, &df, sizeof df, sizeof df, NULL, &found, error);
        found = found && key.high + df.bytes > from;
    }
    lmcs_cursor_free(cursor);
    return status == LMCS_OK && found
               ? lmcs_fail(error, LMCS_DAMAGED, 0,
                           "%s: damaged metadata: a payload is at offset %llu, but an object's record has none from "
                           "%llu to %llu; 'lmc-store dump' saves the pool's contents",
                           txn->pool->path, (unsigned long long)key.high, (unsigned long long)from,
                           (unsigned long long)end)
               : status;
}

struct lmcs_extent *lmcs_extent_touch(struct lmcs_space *space, uint64_t offset)
{
    struct lmcs_extent *extent = lmcs_extent_find(space, offset);
    if (extent != NULL && !extent->touched) {
        extent->touched = true;
        extent->next = extent->now;
        extent->next.cursor = extent->committed_cursor;
    }
    return extent;
}

enum lmcs_status lmcs_extent_fail(struct lmcs_txn *txn, uint64_t offset, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: no extent holds offset %llu", txn->pool->path,
                     (unsigned long long)offset);
}

enum lmcs_status lmcs_space_add(struct lmcs_txn *txn, uint64_t offset, uint64_t bytes, uint64_t content,
                                struct lmcs_error *error)
{
    struct lmcs_space *space = txn->pool->space;
    struct lmcs_space_df df = {content, lmcs_room(bytes)};
    pthread_mutex_lock(&space->lock);
    struct lmcs_extent *extent = lmcs_extent_touch(space, offset);
    if (extent != NULL)
        extent->next.live_bytes += df.bytes;
    pthread_mutex_unlock(&space->lock);
    if (extent == NULL)
        return lmcs_extent_fail(txn, offset, error);
    txn->root.live_bytes += df.bytes;
    return lmcs_root_put(txn, LMCS_TREE_SPACE, (struct lmcs_key_df){offset, 0}, &df, sizeof df, error);
}

enum lmcs_status lmcs_space_retire(struct lmcs_txn *txn, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_space *space = txn->pool->space;
    uint64_t room = lmcs_room(bytes);
    pthread_mutex_lock(&space->lock);
    struct lmcs_extent *extent = lmcs_extent_touch(space, offset);
    if (extent != NULL) {
        extent->next.live_bytes -= room;
        extent->next.retired_bytes += room;
    }
    pthread_mutex_unlock(&space->lock);
    if (extent == NULL)
        return lmcs_extent_fail(txn, offset, error);
    txn->root.live_bytes -= room;
    enum lmcs_status status = lmcs_root_delete(txn, LMCS_TREE_SPACE, (struct lmcs_key_df){offset, 0}, NULL, error);
    if (status == LMCS_OK)
        status = lmcs_root_put(txn, LMCS_TREE_RETIRED, (struct lmcs_key_df){txn->root.epoch, offset}, &room,
                               sizeof room, error);
    return status;
}

/* An unsound range would never be released, or would punch a live payload. */
static bool retired_is_sound(struct lmcs_txn *txn, const struct lmcs_retired *one)
{
    struct lmcs_space *space = txn->pool->space;
    pthread_mutex_lock(&space->lock);
    const struct lmcs_extent *extent = lmcs_extent_find(space, one->key.low);
    bool sound = extent != NULL && one->key.low >= extent->now.first && one->bytes > 0 &&
                 one->bytes <= lmcs_extent_end(extent) - one->key.low;
    pthread_mutex_unlock(&space->lock);
    return sound && one->key.low % LMCS_PACK_ALIGN == 0 && one->bytes % LMCS_PACK_ALIGN == 0 &&
           one->key.high <= txn->root.epoch;
}

enum lmcs_status lmcs_retired_collect(struct lmcs_txn *txn, bool releasable, size_t most, struct lmcs_retired **list,
                                      size_t *count, struct lmcs_error *error)
{
    struct lmcs_pool *pool = txn->pool;
    uint64_t safe = releasable ? lmcs_lease_safe_epoch(pool->lease, pool->root.epoch) : UINT64_MAX;
    size_t capacity = 0;
    struct lmcs_cursor *cursor;
    *count = 0;
    *list = NULL;
    enum lmcs_status status = lmcs_root_open(&cursor, txn, LMCS_TREE_RETIRED, (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && *count < most) {
        struct lmcs_retired one = {.key = lmcs_cursor_key(cursor)};
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        if (bytes == sizeof one.bytes)
            memcpy(&one.bytes, value, sizeof one.bytes);
        if (bytes != sizeof one.bytes || !retired_is_sound(txn, &one)) {
            status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the retired range at offset %llu",
                               pool->path, (unsigned long long)one.key.low);
            break;
        }
        if (one.key.high > safe)
            break;
        if (!releasable || !lmcs_lease_is_pinned(pool->lease, one.key.low, one.bytes)) {
            if (!lmcs_grow(list, &capacity, *count, sizeof **list)) {
                status = lmcs_fail_memory(error);
                break;
            }
            (*list)[(*count)++] = one;
        }
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_space_release(struct lmcs_txn *txn, size_t most, size_t *done, struct lmcs_error *error)
{
    struct lmcs_space *space = txn->pool->space;
    struct lmcs_retired *list = NULL;
    size_t count = 0;
    *done = 0;
    enum lmcs_status status = lmcs_retired_collect(txn, true, most, &list, &count, error);
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        pthread_mutex_lock(&space->lock);
        struct lmcs_extent *extent = lmcs_extent_touch(space, list[i].key.low);
        if (extent != NULL && extent->next.retired_bytes < list[i].bytes)
            extent = NULL; /* its record counts fewer retired bytes */
        if (extent != NULL)
            extent->next.retired_bytes -= list[i].bytes;
        pthread_mutex_unlock(&space->lock);
        status = extent == NULL ? lmcs_extent_fail(txn, list[i].key.low, error)
                                : lmcs_root_delete(txn, LMCS_TREE_RETIRED, list[i].key, NULL, error);
    }
    free(list);
    *done = count;
    return status;
}

static enum lmcs_status space_flush(struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct lmcs_space *space = txn->pool->space;
    if (space == NULL)
        return LMCS_OK;
    enum lmcs_status status = LMCS_OK;
    pthread_mutex_lock(&space->lock);
    txn->root.extent_bytes = space->used;
    for (size_t i = 0; status == LMCS_OK && i < space->count; i++) {
        struct lmcs_extent *extent = space->extents[i];
        struct lmcs_key_df key = {extent->offset, 0};
        if (extent->freeing) {
            status = lmcs_root_delete(txn, LMCS_TREE_OBJECTS, key, NULL, error);
        } else if (extent->touched) {
            if (extent->next.live_bytes == 0 && extent->next.retired_bytes == 0 && !extent->claimed)
                extent->next.cursor = extent->next.first;
            extent->next.backed = extent->now.backed;
            status = lmcs_root_put(txn, LMCS_TREE_OBJECTS, key, &extent->next, sizeof extent->next, error);
        }
    }
    pthread_mutex_unlock(&space->lock);
    return status;
}

/* Takes a failed trim back before others get the metadata lock. */
static void settle_trim(struct lmcs_space *space, struct lmcs_extent *extent, bool committed)
{
    const struct lmcs_untrimmed *was = &extent->untrimmed;
    if (was->any && !committed) {
        space->used -= lmcs_extent_used(&extent->now);
        extent->now.backed = was->backed;
        extent->now.punched_bytes = was->punched_bytes;
        extent->stuck_bytes = was->stuck_bytes;
        space->used += lmcs_extent_used(&extent->now);
    }
    extent->untrimmed.any = false;
}

static void space_settle(struct lmcs_pool *pool, bool committed)
{
    struct lmcs_space *space = pool->space;
    if (space == NULL)
        return;
    pthread_mutex_lock(&space->lock);
    space->limit_bytes = lmcs_space_limit(pool, &pool->root);
    space->slab_bytes = pool->root.slab_bytes;
    for (size_t i = 0; i < space->count; i++) {
        struct lmcs_extent *extent = space->extents[i];
        bool remove = committed ? extent->freeing : extent->fresh;
        settle_trim(space, extent, committed);
        if (committed && extent->touched) {
            uint64_t cursor = extent->now.cursor, backed = extent->now.backed;
            extent->now = extent->next;
            extent->committed_cursor = extent->next.cursor;
            extent->now.backed = backed;
            if (extent->claimed && cursor > extent->now.cursor)
                extent->now.cursor = cursor; /* its region filled it meanwhile */
        }
        extent->touched = extent->fresh = extent->freeing = false;
        if (remove) {
            space->used -= lmcs_extent_used(&extent->now);
            drop_extent(space, extent);
            i--;
        }
    }
    pthread_mutex_unlock(&space->lock);
}

enum lmcs_status lmcs_object_read(struct lmcs_pool *pool, uint64_t offset, const void *value, size_t bytes,
                                  struct lmcs_object_df *df, struct lmcs_error *error)
{
    if (bytes >= sizeof *df) {
        memcpy(df, value, sizeof *df);
        if (df->kind > LMCS_OBJECT_RING)
            return lmcs_fail_newer(error, "%s: the object at offset %llu: kind %u", pool->path,
                                   (unsigned long long)offset, df->kind);
        if (df->kind == LMCS_OBJECT_EXTENT && df->purpose > 1)
            return lmcs_fail_newer(error, "%s: the extent at offset %llu: purpose %u", pool->path,
                                   (unsigned long long)offset, df->purpose);
    }
    return bytes == sizeof *df
               ? LMCS_OK
               : lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: a record of an extent", pool->path);
}

enum lmcs_status lmcs_space_load(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_space *space = calloc(1, sizeof *space);
    struct lmcs_cursor *cursor = NULL;
    struct lmcs_txn txn;
    if (space == NULL)
        return lmcs_fail_memory(error);
    pthread_mutex_init(&space->lock, NULL);
    space->largest_bytes = largest_extent(pool);
    space->is_mapped = lmcs_heap_method(pool->heap) == LMCS_WRITE_STORE;
    space->limit_bytes = lmcs_space_limit(pool, &pool->root);
    space->slab_bytes = pool->root.slab_bytes;
    pool->space = space;
    pool->space_hook = (struct lmcs_space_hook){space_flush, space_settle};
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_open(&cursor, &txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        struct lmcs_object_df df;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        uint64_t offset = lmcs_cursor_key(cursor).high;
        status = lmcs_object_read(pool, offset, value, bytes, &df, error);
        if (status == LMCS_OK && !object_is_sound(pool, offset, &df))
            status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: a record of an extent", pool->path);
        if (status != LMCS_OK)
            break;
        lmcs_heap_note(pool->heap, offset);
        if (df.kind == LMCS_OBJECT_EXTENT && lmcs_extent_add(space, offset, &df) == NULL)
            status = lmcs_fail_memory(error);
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return status;
}

void lmcs_space_free(struct lmcs_space *space)
{
    if (space == NULL)
        return;
    for (size_t i = 0; i < space->count; i++)
        free(space->extents[i]);
    free(space->extents);
    free(space->expected.fills);
    pthread_mutex_destroy(&space->lock);
    free(space);
}

void lmcs_space_count(struct lmcs_pool *pool, int64_t bytes)
{
    pthread_mutex_lock(&pool->space->lock);
    pool->space->used += (uint64_t)bytes;
    pthread_mutex_unlock(&pool->space->lock);
}

bool lmcs_extent_is_sparse(const struct lmcs_extent *extent)
{
    uint64_t filled = extent->committed_cursor - extent->now.first;
    return !extent->claimed && extent->now.live_bytes > 0 && extent->now.retired_bytes == 0 &&
           filled > extent->now.bytes / 2 && extent->now.live_bytes < filled / 4;
}

bool lmcs_space_sparse(struct lmcs_pool *pool, uint64_t from, uint64_t *first, uint64_t *end)
{
    struct lmcs_space *space = pool->space;
    bool found = false;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; !found && i < space->count; i++) {
        const struct lmcs_extent *extent = space->extents[i];
        found = extent->now.first >= from && lmcs_extent_is_sparse(extent);
        if (found) {
            *first = extent->now.first;
            *end = extent->committed_cursor;
        }
    }
    pthread_mutex_unlock(&space->lock);
    return found;
}

uint64_t lmcs_space_used(struct lmcs_pool *pool)
{
    pthread_mutex_lock(&pool->space->lock);
    uint64_t used = pool->space->used;
    pthread_mutex_unlock(&pool->space->lock);
    return used;
}

uint64_t lmcs_space_free_bytes(struct lmcs_pool *pool)
{
    struct lmcs_space *space = pool->space;
    uint64_t unbacked = 0;
    pthread_mutex_lock(&space->lock);
    uint64_t ready = lmcs_space_ready(space);
    for (size_t i = 0; i < space->count; i++)
        unbacked += lmcs_extent_end(space->extents[i]) - space->extents[i]->now.backed;
    uint64_t used = space->used + space->slab_bytes;
    uint64_t limit = space->limit_bytes - lmcs_space_share(space->largest_taken, space->limit_bytes);
    pthread_mutex_unlock(&space->lock);
    uint64_t disk = lmcs_heap_disk_free(pool->heap);
    if (disk == UINT64_MAX) /* a poolset or a device: about the bytes not given out by libpmemobj */
        disk = lmcs_media_bytes(pool->media) > used + ((uint64_t)8 << 20)
                   ? lmcs_media_bytes(pool->media) - used - ((uint64_t)8 << 20)
                   : unbacked;
    if (disk > (limit > used ? limit - used : 0))
        disk = limit > used ? limit - used : 0;
    return disk + ready;
}
