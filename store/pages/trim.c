/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/trim.c - giving file space back.
 *
 * Space is punched after the commit. A crash in between, or during a capture, leaves unrecorded file space; the first
 * trim after opening punches it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/order.h"
#include "pages/extents.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"

enum lmcs_status lmcs_space_release_some(struct lmcs_pool *pool, bool *some, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    size_t done = 0;
    *some = false;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    if (txn.root.trees[LMCS_TREE_RETIRED].count > 0)
        status = lmcs_space_release(&txn, 4096, &done, error);
    *some = status == LMCS_OK && done > 0;
    if (*some)
        return lmcs_txn_commit(&txn, error);
    lmcs_txn_end(&txn);
    return status;
}

/*
 * For pools of fixed size (device, poolset), so that libpmemobj can join extents; a file has addresses enough. Extents
 * with unsound records stay.
 */
enum lmcs_status lmcs_space_free_some(struct lmcs_pool *pool, bool *some, struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    uint64_t offsets[LMCS_MAX_ACTIONS], sizes[LMCS_MAX_ACTIONS];
    size_t count = 0;
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    *some = false;
    if (status != LMCS_OK)
        return status;
    size_t most = lmcs_txn_room(&txn);
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; status == LMCS_OK && i < space->count && count < most; i++) {
        struct lmcs_extent *extent = space->extents[i];
        if (!lmcs_extent_is_free(extent))
            continue;
        status = lmcs_space_check_none(&txn, extent->offset, lmcs_extent_end(extent), error);
        if (status == LMCS_DAMAGED) {
            status = LMCS_OK;
            continue;
        }
        if (status != LMCS_OK)
            break;
        lmcs_extent_note_untrimmed(extent);
        space->used -= lmcs_extent_used(&extent->now);
        lmcs_extent_cut(extent, extent->now.first);
        extent->now.punched_bytes = 0;
        extent->touched = extent->freeing = true;
        extent->next = extent->now;
        offsets[count] = extent->offset;
        sizes[count++] = extent->now.bytes;
    }
    pthread_mutex_unlock(&space->lock);
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = lmcs_txn_free(&txn, offsets[i], sizes[i], error);
    *some = status == LMCS_OK && count > 0;
    if (*some)
        return lmcs_txn_commit(&txn, error);
    lmcs_txn_end(&txn);
    return status;
}

static int by_offset(const void *a, const void *b)
{
    const struct lmcs_retired *x = a, *y = b;
    return LMCS_ORDER(x->key.low, y->key.low);
}

struct hole {
    uint64_t offset;
    uint64_t bytes;
};

struct trimmed {
    struct lmcs_extent *extent; /* claimed */
    uint64_t offset;            /* a copy: the extent may be freed */
    uint64_t hole_bytes;        /* between payloads */
    bool is_sound;
};

struct lmcs_trim {
    struct lmcs_txn *txn;
    uint64_t keep;
    uint64_t from;                /* start of the next trim */
    struct lmcs_retired *retired; /* ascending by offset */
    size_t retired_count;
    struct trimmed *items;
    size_t count;
    size_t sound_count;
    struct hole *holes;
    size_t hole_count;
    size_t hole_capacity;
    struct lmcs_passed *passed;
};
#define TRIM_EXTENTS 16 /* in one transaction */

static bool add_hole(struct lmcs_trim *trim, uint64_t offset, uint64_t bytes)
{
    if (!lmcs_grow(&trim->holes, &trim->hole_capacity, trim->hole_count, sizeof *trim->holes))
        return false;
    trim->holes[trim->hole_count++] = (struct hole){offset, bytes};
    return true;
}

/* The first retired range from `at` on, or an empty one at `end`. */
static struct hole next_retired(const struct lmcs_trim *trim, uint64_t at, uint64_t end)
{
    size_t low = 0, high = trim->retired_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (trim->retired[middle].key.low < at)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == trim->retired_count || trim->retired[low].key.low >= end)
        return (struct hole){end, 0};
    return (struct hole){trim->retired[low].key.low, trim->retired[low].bytes};
}

/* Adds the whole pages between live and retired payloads. *total: their bytes. */
static enum lmcs_status find_holes(struct lmcs_trim *trim, const struct lmcs_extent *extent, uint64_t *total,
                                   struct lmcs_error *error)
{
    struct lmcs_txn *txn = trim->txn;
    struct lmcs_cursor *cursor;
    uint64_t at = extent->now.first, end = extent->committed_cursor;
    enum lmcs_status status = lmcs_root_open(&cursor, txn, LMCS_TREE_SPACE, (struct lmcs_key_df){at, 0}, error);
    for (*total = 0; status == LMCS_OK && at < end;) {
        struct hole next = next_retired(trim, at, end);
        bool live = lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high < next.offset;
        if (live) {
            struct lmcs_space_df df = {0, 0};
            size_t bytes;
            const void *value = lmcs_cursor_value(cursor, &bytes);
            if (bytes == sizeof df)
                memcpy(&df, value, sizeof df);
            next = (struct hole){lmcs_cursor_key(cursor).high, df.bytes};
        }
        /* Overlapping records would loop forever or punch live payloads. */
        if (next.offset < at || (next.offset < end && next.bytes == 0) || next.bytes > end - next.offset) {
            status = lmcs_extent_fail(txn, next.offset, error);
            break;
        }
        uint64_t from = lmcs_page_up(at), to = next.offset & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
        if (from < to) {
            *total += to - from;
            if (!add_hole(trim, from, to - from))
                status = lmcs_fail_memory(error);
        }
        at = next.offset + next.bytes;
        if (live && status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

/*
 * File space to give back. The tail, filled next, counts only if nothing is to be kept; bytes that an earlier trim
 * could not free, on pages shared with others, don't.
 */
static uint64_t dead_bytes(const struct lmcs_extent *extent, uint64_t keep)
{
    uint64_t used = lmcs_extent_used(&extent->now), held = extent->now.live_bytes + extent->now.retired_bytes;
    uint64_t tail = extent->now.backed - extent->committed_cursor;
    held += lmcs_extent_is_free(extent) || keep == 0 ? 0 : tail;
    held += lmcs_extent_is_empty(extent) ? 0 : extent->stuck_bytes;
    return used > held ? used - held : 0;
}

/*
 * Claims free extents beyond `keep` bytes, those with holes, and, first after opening, those with perhaps unrecorded
 * file space. Under the lock.
 */
static void choose_extents(struct lmcs_space *space, struct lmcs_trim *trim)
{
    uint64_t warm = 0;
    for (size_t i = 0; i < space->count && trim->count < TRIM_EXTENTS; i++) {
        struct lmcs_extent *extent = space->extents[i];
        uint64_t dead = dead_bytes(extent, trim->keep);
        bool enough = dead >= 16 * LMCS_PAGE_BYTES, stays = enough && warm + dead <= trim->keep;
        if (extent->claimed)
            continue;
        warm += stays ? dead : 0;
        if (((!enough || stays) && !extent->needs_trim_check) || extent->offset < trim->from)
            continue;
        extent->stays = (!enough || stays) && extent->now.punched_bytes == 0;
        extent->claimed = true;
        extent->trim = trim;
        trim->items[trim->count++] = (struct trimmed){.extent = extent, .offset = extent->offset};
    }
    if (trim->count > 0)
        trim->from = trim->items[trim->count - 1].offset + 1;
}

/* Whether file space after the last payload, filled next, is given back, too. */
static bool is_cut(const struct lmcs_trim *trim, const struct lmcs_extent *extent)
{
    return !lmcs_extent_is_empty(extent) && trim->keep == 0 &&
           lmcs_page_up(extent->committed_cursor) < extent->now.backed;
}

/* Checks an extent against the tree of space. */
static enum lmcs_status check_and_add_holes(struct lmcs_trim *trim, struct trimmed *item, struct lmcs_error *error)
{
    struct lmcs_extent *extent = item->extent;
    bool whole = lmcs_extent_is_empty(extent);
    uint64_t behind = lmcs_page_up(extent->now.backed), last = lmcs_extent_end(extent);
    uint64_t tail = extent->committed_cursor < extent->now.backed ? extent->committed_cursor : extent->now.backed;
    enum lmcs_status status = lmcs_space_check_none(trim->txn, whole ? extent->now.first : tail, last, error);
    if (status != LMCS_OK)
        return status;
    if (extent->needs_trim_check && behind < last && !add_hole(trim, behind, last - behind))
        return lmcs_fail_memory(error);
    if (extent->stays)
        return LMCS_OK;
    if (!whole)
        status = find_holes(trim, extent, &item->hole_bytes, error);
    else if (!add_hole(trim, extent->now.first, extent->now.backed - extent->now.first))
        status = lmcs_fail_memory(error);
    uint64_t end = lmcs_page_up(extent->committed_cursor);
    if (status == LMCS_OK && is_cut(trim, extent) && !add_hole(trim, end, extent->now.backed - end))
        status = lmcs_fail_memory(error);
    return status;
}

/* Skips unsound records; reports the first at the end. */
static enum lmcs_status check_all(struct lmcs_trim *trim, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < trim->count; i++) {
        const size_t holes = trim->hole_count;
        status = check_and_add_holes(trim, &trim->items[i], error);
        trim->items[i].is_sound = status == LMCS_OK;
        trim->sound_count += status == LMCS_OK;
        if (status != LMCS_OK)
            trim->hole_count = holes;
        status = lmcs_pass_over(trim->passed, status, error);
    }
    return status;
}

/* Records an extent's new file space. Under the lock. */
static void note_trim(const struct lmcs_trim *trim, const struct trimmed *item)
{
    struct lmcs_space *space = trim->txn->pool->space;
    struct lmcs_extent *extent = item->extent;
    bool whole = lmcs_extent_is_empty(extent), cut = is_cut(trim, extent);
    if (!item->is_sound || extent->stays)
        return;
    lmcs_extent_touch(space, extent->offset);
    lmcs_extent_note_untrimmed(extent);
    space->used -= lmcs_extent_used(&extent->now);
    if (whole || cut)
        lmcs_extent_cut(extent, whole ? extent->now.first : lmcs_page_up(extent->committed_cursor));
    extent->next.backed = extent->now.backed;
    extent->now.punched_bytes = extent->next.punched_bytes = item->hole_bytes;
    space->used += lmcs_extent_used(&extent->now);
    extent->stuck_bytes = 0;
    extent->stuck_bytes = dead_bytes(extent, 1);
}

/* Unlikely to fit a later payload. */
static bool is_oversized(struct lmcs_space *space, const struct lmcs_extent *extent)
{
    return lmcs_extent_is_empty(extent) && extent->now.backed == extent->now.first &&
           extent->now.bytes > 2 * lmcs_extent_standard(space, 0);
}

/* They are already punched: after this commit libpmemobj may give their room to an extent that is filled at once. */
static enum lmcs_status free_oversized(struct lmcs_pool *pool, struct lmcs_trim *trim, struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    size_t freed = 0;
    for (size_t i = 0; status == LMCS_OK && i < trim->count && lmcs_txn_room(&txn) > 0; i++) {
        struct lmcs_extent *extent = trim->items[i].extent;
        if (!trim->items[i].is_sound)
            continue;
        pthread_mutex_lock(&space->lock);
        extent->freeing = is_oversized(space, extent);
        pthread_mutex_unlock(&space->lock);
        if (!extent->freeing)
            continue;
        status = lmcs_txn_free(&txn, extent->offset, extent->now.bytes, error);
        freed++;
    }
    if (status == LMCS_OK && freed > 0)
        status = lmcs_txn_commit(&txn, error);
    else
        lmcs_txn_end(&txn);
    return status == LMCS_FULL ? LMCS_OK : status; /* only addresses are used */
}

/* At most TRIM_EXTENTS extents in one transaction. *from: where the next call continues. */
static enum lmcs_status trim_some(struct lmcs_pool *pool, uint64_t keep, uint64_t *from, bool *more,
                                  struct lmcs_passed *passed, struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    struct lmcs_txn txn;
    struct trimmed items[TRIM_EXTENTS];
    struct lmcs_trim trim = {.txn = &txn, .keep = keep, .from = *from, .items = items, .passed = passed};
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&space->lock);
    choose_extents(space, &trim);
    pthread_mutex_unlock(&space->lock);
    *from = trim.from;
    *more = trim.count == TRIM_EXTENTS;
    status = lmcs_retired_collect(&txn, false, SIZE_MAX, &trim.retired, &trim.retired_count, error);
    if (status == LMCS_OK && trim.retired_count > 0)
        qsort(trim.retired, trim.retired_count, sizeof *trim.retired, by_offset);
    if (status == LMCS_OK)
        status = check_all(&trim, error);
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; status == LMCS_OK && i < trim.count; i++)
        note_trim(&trim, &items[i]);
    pthread_mutex_unlock(&space->lock);
    if (status == LMCS_OK && trim.sound_count > 0)
        status = lmcs_txn_commit(&txn, error);
    else
        lmcs_txn_end(&txn);
    for (size_t i = 0; status == LMCS_OK && i < trim.hole_count; i++)
        lmcs_heap_punch(pool->heap, trim.holes[i].offset, trim.holes[i].bytes);
    if (status == LMCS_OK && trim.sound_count > 0)
        status = free_oversized(pool, &trim, error);
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < trim.count; i++) {
        /* The extent may be freed by now, and another be in its place. */
        struct lmcs_extent *extent = lmcs_extent_find(space, items[i].offset);
        if (extent == NULL || extent->trim != &trim)
            continue;
        extent->claimed = false;
        extent->trim = NULL;
        extent->needs_trim_check = extent->needs_trim_check && (status != LMCS_OK || !items[i].is_sound);
    }
    pthread_mutex_unlock(&space->lock);
    free(trim.retired);
    free(trim.holes);
    return status;
}

enum lmcs_status lmcs_space_trim(struct lmcs_pool *pool, uint64_t keep, struct lmcs_error *error)
{
    bool more = lmcs_heap_can_punch(pool->heap);
    struct lmcs_passed passed = {.any = false};
    enum lmcs_status status = LMCS_OK;
    for (uint64_t from = 0; more && status == LMCS_OK;)
        status = trim_some(pool, keep, &from, &more, &passed, error);
    return lmcs_passed_over(&passed, status, error);
}

uint64_t lmcs_space_waste(struct lmcs_pool *pool, uint64_t keep)
{
    struct lmcs_space *space = pool->space;
    uint64_t dead = 0, unsure = 0;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < space->count; i++) {
        if (space->extents[i]->claimed)
            continue;
        unsure += space->extents[i]->needs_trim_check ? 1 : 0;
        if (dead_bytes(space->extents[i], keep) >= 16 * LMCS_PAGE_BYTES)
            dead += dead_bytes(space->extents[i], keep);
    }
    pthread_mutex_unlock(&space->lock);
    return (dead > keep ? dead - keep : 0) + unsure;
}

bool lmcs_space_trim_all(struct lmcs_pool *pool)
{
    struct lmcs_error ignored;
    if (lmcs_space_waste(pool, 0) == 0)
        return false;
    enum lmcs_status status = lmcs_space_trim(pool, 0, &ignored);
    return status == LMCS_OK || status == LMCS_DAMAGED;
}

/* If space is short, gives back file space of free extents and tries again. */
enum lmcs_status lmcs_space_charge(struct lmcs_pool *pool, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    struct lmcs_error ignored;
    bool some;
    pthread_mutex_lock(&space->lock);
    enum lmcs_status status = lmcs_space_need(pool, bytes, 0, true, error);
    pthread_mutex_unlock(&space->lock);
    if (status != LMCS_FULL || lmcs_space_release_some(pool, &some, &ignored) != LMCS_OK || !lmcs_space_trim_all(pool))
        return status;
    pthread_mutex_lock(&space->lock);
    status = lmcs_space_need(pool, bytes, 0, true, error);
    pthread_mutex_unlock(&space->lock);
    return status;
}
