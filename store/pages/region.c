/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/region.c - room for payloads, in extents that a region claims.
 *
 * A small transaction gets new extents from libpmemobj and enters them as empty: a crash leaks nothing. File space is
 * allocated in steps as an extent is filled.
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/extents.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"

#define LARGEST_EXTENT ((uint64_t)64 << 20)
#define LARGEST_STEP   (LARGEST_EXTENT / 16) /* of file space */

/* Whether filling a free extent leaves the share; lmcs_region_back checks those without file space. Under the lock. */
static bool leaves_share(const struct lmcs_region *region, const struct lmcs_extent *extent)
{
    const struct lmcs_space *space = region->pool->space;
    uint64_t limit = space->limit_bytes, taken = space->used + space->slab_bytes;
    if (!region->leaves_share || !lmcs_extent_is_free(extent) || lmcs_extent_used(&extent->now) == 0)
        return true;
    uint64_t left = (limit > taken ? limit - taken : 0) + lmcs_space_ready(space) - lmcs_extent_used(&extent->now);
    return left >= lmcs_space_share(region->largest, limit);
}

void lmcs_region_init(struct lmcs_region *region, struct lmcs_pool *pool, uint32_t purpose)
{
    *region = (struct lmcs_region){.pool = pool, .purpose = purpose, .leaves_share = purpose == 0};
}

void lmcs_region_leave_share(struct lmcs_region *region)
{
    struct lmcs_space *space = region->pool->space;
    region->leaves_share = true;
    pthread_mutex_lock(&space->lock);
    region->largest = space->largest_taken;
    pthread_mutex_unlock(&space->lock);
}

void lmcs_region_expect(struct lmcs_region *region, uint64_t bytes, uint64_t largest)
{
    region->expected = bytes;
    if (region->largest < largest)
        region->largest = largest;
    struct lmcs_space *space = region->pool->space;
    pthread_mutex_lock(&space->lock);
    if (region->purpose == 0 && space->largest_taken < largest)
        space->largest_taken = largest;
    pthread_mutex_unlock(&space->lock);
}

static bool claim(struct lmcs_region *region, struct lmcs_extent *extent)
{
    if (!lmcs_grow(&region->extents, &region->capacity, region->count, sizeof *region->extents))
        return false;
    region->extents[region->count++] = extent;
    extent->claimed = true;
    if (region->purpose == 0 && !region->prepares && !region->is_counted) {
        region->is_counted = true;
        region->pool->space->taking++;
    }
    return true;
}

/* Fills an empty extent from its start. Under the lock. */
static void begin_again(struct lmcs_pool *pool, struct lmcs_extent *extent)
{
    extent->now.cursor = extent->now.first;
    extent->stuck_bytes = 0;
    if (extent->now.punched_bytes > 0) { /* holes are backed before they are stored to */
        pool->space->used -= lmcs_extent_used(&extent->now);
        lmcs_heap_punch(pool->heap, extent->now.first, extent->now.backed - extent->now.first);
        lmcs_extent_cut(extent, extent->now.first);
        extent->now.punched_bytes = 0;
    }
}

/* Checks that the part to be filled contains no payload. */
static enum lmcs_status begin_claimed(struct lmcs_pool *pool, struct lmcs_extent *extent, struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    struct lmcs_txn txn;
    enum lmcs_status status = LMCS_OK;
    pthread_mutex_lock(&space->lock);
    bool empty = lmcs_extent_is_empty(extent), known = empty ? extent->empty_known : extent->tail_known;
    uint64_t from = empty ? extent->now.first : extent->now.cursor, end = lmcs_extent_end(extent);
    pthread_mutex_unlock(&space->lock);
    if (!known) {
        status = lmcs_txn_read(pool, &txn, error);
        if (status != LMCS_OK)
            return status;
        status = lmcs_space_check_none(&txn, from, end, error);
        lmcs_txn_end(&txn);
    }
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&space->lock);
    extent->tail_known = true;
    extent->empty_known = extent->empty_known || empty;
    if (empty)
        begin_again(pool, extent);
    pthread_mutex_unlock(&space->lock);
    return LMCS_OK;
}

static uint64_t align_for(uint64_t cursor, uint64_t bytes)
{
    return bytes >= LMCS_ALIGNED_BYTES ? lmcs_page_up(cursor) : cursor;
}

static bool fits(const struct lmcs_extent *extent, uint64_t cursor, uint64_t bytes)
{
    uint64_t at = align_for(cursor, bytes), room = lmcs_room(bytes), end = lmcs_extent_end(extent);
    return at <= end && room <= end - at;
}

static struct lmcs_extent *open_extent(struct lmcs_region *region, uint64_t bytes)
{
    size_t oldest = region->count > LMCS_REGION_EXTENTS ? region->count - LMCS_REGION_EXTENTS : 0;
    for (size_t i = region->count; i-- > oldest;)
        if (fits(region->extents[i], region->extents[i]->now.cursor, bytes))
            return region->extents[i];
    return NULL;
}

/* Finds an extent, free or partly filled for this purpose. Best fit; backed before unbacked. */
static struct lmcs_extent *closed_extent(struct lmcs_region *region, uint64_t bytes)
{
    struct lmcs_space *space = region->pool->space;
    uint64_t standard = lmcs_extent_standard(space, region->expected);
    bool large = lmcs_room(bytes) + 2 * LMCS_PAGE_BYTES > standard;
    struct lmcs_extent *best = NULL;
    for (size_t i = 0; i < space->count; i++) {
        struct lmcs_extent *extent = space->extents[i];
        if (extent->claimed || extent->freeing || extent->touched)
            continue;
        bool free_now = lmcs_extent_is_free(extent);
        if (!free_now && (large || extent->now.purpose != region->purpose || lmcs_extent_is_sparse(extent)))
            continue;
        if (!fits(extent, free_now ? extent->now.first : extent->now.cursor, bytes))
            continue;
        if (large && extent->now.bytes > bytes + bytes / 4 + 2 * (uint64_t)LMCS_PAGE_BYTES + (256 << 10))
            continue;
        if (!large && extent->now.bytes > 2 * standard)
            continue;
        if (!leaves_share(region, extent))
            continue;
        if (!free_now)
            return extent;
        if (best == NULL || extent->now.backed - extent->now.first > best->now.backed - best->now.first)
            best = extent;
    }
    return best;
}

/* Makes extents for `bytes`: more of them, the more there are already. */
static enum lmcs_status grow(struct lmcs_region *region, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_pool *pool = region->pool;
    struct lmcs_space *space = pool->space;
    pthread_mutex_lock(&space->lock);
    uint64_t standard = lmcs_extent_standard(space, region->expected);
    pthread_mutex_unlock(&space->lock);
    bool large = lmcs_room(bytes) + 2 * LMCS_PAGE_BYTES > standard;
    uint64_t wanted = large ? lmcs_room(bytes) + 2 * LMCS_PAGE_BYTES : standard - 16;
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    txn.only_allocates = region->leaves_share;
    size_t count = large ? 1 : 1 + space->count / 4;
    if (!large && count < region->expected / standard + 1)
        count = region->expected / standard + 1;
    if (count > lmcs_txn_room(&txn))
        count = lmcs_txn_room(&txn);
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        uint64_t offset, got;
        status = lmcs_txn_reserve(&txn, wanted, &offset, &got, error);
        if (status != LMCS_OK && i > 0) {
            status = LMCS_OK;
            break;
        }
        if (status != LMCS_OK)
            break;
        uint64_t first = lmcs_page_up(offset);
        struct lmcs_object_df df = {.kind = LMCS_OBJECT_EXTENT,
                                    .purpose = region->purpose,
                                    .bytes = got,
                                    .first = first,
                                    .cursor = first,
                                    .backed = first};
        pthread_mutex_lock(&space->lock);
        struct lmcs_extent *extent = lmcs_extent_add(space, offset, &df);
        if (extent != NULL) {
            extent->next = df;
            extent->touched = extent->fresh = true;
            extent->tail_known = extent->empty_known = true;
            extent->needs_trim_check = false;
        }
        pthread_mutex_unlock(&space->lock);
        if (extent == NULL)
            status = lmcs_fail_memory(error);
    }
    return lmcs_txn_finish(&txn, status, error);
}

/* Grows; a full pool of fixed size frees extents first. */
static enum lmcs_status grow_somehow(struct lmcs_region *region, uint64_t bytes, struct lmcs_error *error)
{
    bool some = !lmcs_heap_can_punch(region->pool->heap);
    enum lmcs_status status = grow(region, bytes, error);
    while (status == LMCS_FULL && some) {
        struct lmcs_error full = error != NULL ? *error : (struct lmcs_error){0};
        status = lmcs_space_free_some(region->pool, &some, error);
        if (status == LMCS_OK && some)
            status = grow(region, bytes, error);
        else if (status == LMCS_OK && error != NULL)
            *error = full;
        if (!some && status == LMCS_OK)
            status = LMCS_FULL;
    }
    return status;
}

enum lmcs_status lmcs_region_back(struct lmcs_region *region, struct lmcs_extent *extent, uint64_t end,
                                  struct lmcs_error *error)
{
    struct lmcs_pool *pool = region->pool;
    struct lmcs_space *space = pool->space;
    pthread_mutex_lock(&space->lock);
    uint64_t from = extent->now.backed, last = lmcs_extent_end(extent);
    if (end <= from) {
        pthread_mutex_unlock(&space->lock);
        return LMCS_OK;
    }
    uint64_t step = (last - extent->now.first) / 16 & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
    step = step < LMCS_PAGE_BYTES ? LMCS_PAGE_BYTES : step > LARGEST_STEP ? LARGEST_STEP : step;
    uint64_t target = from + (end - from + step - 1) / step * step;
    if (target > last)
        target = last;
    uint64_t need = target - from;
    uint64_t limit = space->limit_bytes, taken = space->used + space->slab_bytes;
    if (region->leaves_share)
        limit -= lmcs_space_share(region->largest, limit);
    if (taken + need > limit) {
        target = end;
        need = target - from;
    }
    enum lmcs_status status = lmcs_space_need(pool, need, region->largest, region->leaves_share, error);
    pthread_mutex_unlock(&space->lock);
    if (status != LMCS_OK)
        return status;
    status = lmcs_heap_back(pool->heap, from, need, error);
    pthread_mutex_lock(&space->lock);
    if (status == LMCS_OK)
        extent->now.backed = target;
    else
        space->used -= need;
    pthread_mutex_unlock(&space->lock);
    return status;
}

/* An unsound extent stays claimed until the pool closes. */
static void leave_claimed(struct lmcs_region *region, struct lmcs_extent *extent, bool is_sound)
{
    pthread_mutex_lock(&region->pool->space->lock);
    for (size_t i = 0; i < region->count; i++)
        if (region->extents[i] == extent) {
            region->extents[i] = region->extents[--region->count];
            break;
        }
    extent->claimed = !is_sound;
    pthread_mutex_unlock(&region->pool->space->lock);
}

/* Claims an extent with room: the region's (unless `other`), a free one, or a new one. */
static enum lmcs_status find_extent_for(struct lmcs_region *region, uint64_t bytes, bool other, bool *released,
                                        struct lmcs_extent **extent, struct lmcs_error *error)
{
    struct lmcs_space *space = region->pool->space;
    pthread_mutex_lock(&space->lock);
    *extent = other ? NULL : open_extent(region, bytes);
    pthread_mutex_unlock(&space->lock);
    while (*extent == NULL) {
        pthread_mutex_lock(&space->lock);
        *extent = closed_extent(region, bytes);
        bool claimed = *extent == NULL || claim(region, *extent);
        pthread_mutex_unlock(&space->lock);
        if (!claimed)
            return lmcs_fail_memory(error);
        enum lmcs_status status = LMCS_OK;
        if (*extent != NULL) {
            status = begin_claimed(region->pool, *extent, error);
            if (status != LMCS_OK)
                leave_claimed(region, *extent, status != LMCS_DAMAGED);
            return status;
        }
        bool some = false;
        if (!*released)
            status = lmcs_space_release_some(region->pool, &some, error);
        *released = true;
        if (status == LMCS_OK && !some)
            status = grow_somehow(region, bytes, error);
        if (status != LMCS_OK)
            return status;
    }
    return LMCS_OK;
}

/* Under the lock. */
static void note_taken(struct lmcs_extent *extent, uint64_t at, uint64_t end)
{
    if (extent->warm_end < end && lmcs_page_up(extent->warm_end) >= at)
        extent->warm_end = end;
    if (extent->spare_from < end)
        extent->spare_from = end;
}

/* Another thread's commit adopts records (space_settle), so the lock also covers the region's cursors. */
static enum lmcs_status take_room(struct lmcs_region *region, uint64_t bytes, bool looks, bool apart, uint64_t *offset,
                                  struct lmcs_error *error)
{
    struct lmcs_space *space = region->pool->space;
    struct lmcs_extent *extent;
    bool released = false, again = apart;
    uint64_t at, end;
    enum lmcs_status status;
    for (;;) {
        status = find_extent_for(region, bytes, again, &released, &extent, error);
        if (status != LMCS_OK)
            return status;
        pthread_mutex_lock(&space->lock);
        at = align_for(extent->now.cursor, bytes);
        end = at + lmcs_room(bytes);
        pthread_mutex_unlock(&space->lock);
        status = looks ? LMCS_OK : lmcs_region_back(region, extent, end, error);
        if (status != LMCS_FULL || again)
            break;
        /* Extents that this frees may have file space. */
        bool some = true;
        if (!released && lmcs_space_release_some(region->pool, &some, error) != LMCS_OK)
            break;
        released = again = true;
    }
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&space->lock);
    extent->now.cursor = end;
    if (!looks)
        note_taken(extent, at, end);
    region->expected -= bytes < region->expected ? bytes : region->expected;
    pthread_mutex_unlock(&space->lock);
    *offset = at;
    return LMCS_OK;
}

enum lmcs_status lmcs_region_look(struct lmcs_region *region, uint64_t bytes, bool apart, struct lmcs_error *error)
{
    uint64_t ignored;
    return take_room(region, bytes, true, apart, &ignored, error);
}

struct lmcs_extent *lmcs_region_claim_again(struct lmcs_region *region, uint64_t offset, uint64_t cursor)
{
    struct lmcs_space *space = region->pool->space;
    pthread_mutex_lock(&space->lock);
    struct lmcs_extent *extent = lmcs_extent_find(space, offset);
    if (extent != NULL && (extent->claimed || extent->freeing || extent->touched || extent->offset != offset))
        extent = NULL;
    if (extent != NULL && lmcs_extent_is_empty(extent)) {
        extent = extent->empty_known && extent->now.punched_bytes == 0 && cursor == extent->now.first ? extent : NULL;
        if (extent != NULL)
            extent->now.cursor = extent->now.first;
    } else if (extent != NULL && (!extent->tail_known || cursor != extent->committed_cursor)) {
        extent = NULL;
    }
    if (extent != NULL && !claim(region, extent))
        extent = NULL;
    pthread_mutex_unlock(&space->lock);
    return extent;
}

void lmcs_region_shrink(struct lmcs_region *region, uint64_t offset, uint64_t bytes)
{
    struct lmcs_space *space = region->pool->space;
    pthread_mutex_lock(&space->lock);
    for (size_t i = region->count; i-- > 0;) {
        struct lmcs_extent *extent = region->extents[i];
        if (offset >= extent->now.first && offset < extent->now.cursor) {
            extent->now.cursor = offset + lmcs_room(bytes);
            break;
        }
    }
    pthread_mutex_unlock(&space->lock);
}

void lmcs_region_end(struct lmcs_region *region)
{
    struct lmcs_space *space = region->pool->space;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < region->count; i++) {
        struct lmcs_extent *extent = region->extents[i];
        extent->claimed = false;
        extent->now.cursor = extent->committed_cursor;
    }
    space->taking -= region->is_counted ? 1 : 0;
    region->is_counted = false;
    pthread_mutex_unlock(&space->lock);
    free(region->extents);
    region->extents = NULL;
    region->count = region->capacity = 0;
}

enum lmcs_status lmcs_region_commit(struct lmcs_txn *txn, struct lmcs_region *region, struct lmcs_error *error)
{
    struct lmcs_space *space = txn->pool->space;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < region->count; i++) {
        struct lmcs_extent *extent = lmcs_extent_touch(space, region->extents[i]->offset);
        extent->next.cursor = extent->now.cursor;
        extent->next.backed = extent->now.backed;
        extent->next.punched_bytes = extent->now.punched_bytes;
        extent->next.purpose = region->purpose;
    }
    pthread_mutex_unlock(&space->lock);
    (void)error;
    return LMCS_OK;
}

/* Before failing, gives back unneeded file space. */
enum lmcs_status lmcs_region_take(struct lmcs_region *region, uint64_t bytes, uint64_t *offset,
                                  struct lmcs_error *error)
{
    struct lmcs_pool *pool = region->pool;
    struct lmcs_error ignored;
    enum lmcs_status status = take_room(region, bytes, false, false, offset, error);
    bool some;
    if (status != LMCS_FULL || lmcs_space_release_some(pool, &some, &ignored) != LMCS_OK || !lmcs_space_trim_all(pool))
        return status;
    return take_room(region, bytes, false, false, offset, error);
}
