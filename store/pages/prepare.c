/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/prepare.c - file space for the next capture, before it begins (SPACE.md).
 *
 * A region looks for the room of the next capture and lets it go. Then each extent is claimed again for one step: file
 * space is allocated, and what no region filled in this process is warmed. Meanwhile captures take all other extents.
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/idle.h"
#include "pages/extents.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"

#define LEAST_BYTES ((uint64_t)1 << 20)   /* of a capture; less is quickly allocated */
#define LOOK_BYTES  ((uint64_t)64 << 10)  /* of room, if its parts are unknown */
#define STEP_BYTES  ((uint64_t)4 << 20)   /* of file space */
#define WARM_BYTES  ((uint64_t)256 << 10) /* by the idle thread at once */

struct place {
    uint64_t offset; /* of an extent */
    uint64_t cursor;
    uint64_t end; /* to be filled up to here */
};

struct places {
    struct place *items;
    size_t count;
};

/* Under the lock. */
static void expect(struct lmcs_pool *pool, uint64_t bytes, uint64_t *fills, size_t count)
{
    struct lmcs_space *space = pool->space;
    bool can_give_back = lmcs_heap_can_punch(pool->heap);
    free(space->expected.fills);
    space->expected = (struct lmcs_expected){.bytes = bytes,
                                             .fills = fills,
                                             .count = count,
                                             .serial = space->expected.serial + 1,
                                             .pending = bytes >= LEAST_BYTES && can_give_back};
}

void lmcs_space_expect(struct lmcs_pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&pool->space->lock);
    expect(pool, bytes, NULL, 0);
    pthread_mutex_unlock(&pool->space->lock);
}

uint64_t lmcs_space_expected(struct lmcs_pool *pool)
{
    pthread_mutex_lock(&pool->space->lock);
    uint64_t bytes = pool->space->expected.bytes;
    pthread_mutex_unlock(&pool->space->lock);
    return bytes;
}

static uint64_t start_of(const struct lmcs_extent *extent)
{
    return lmcs_extent_is_empty(extent) ? extent->now.first : extent->committed_cursor;
}

void lmcs_space_expect_again(const struct lmcs_region *region)
{
    struct lmcs_space *space = region->pool->space;
    uint64_t *fills = calloc(region->count + 1, sizeof *fills), bytes = 0;
    size_t count = 0;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; fills != NULL && i < region->count; i++) {
        const struct lmcs_extent *extent = region->extents[i];
        uint64_t taken = extent->now.cursor - start_of(extent);
        bytes += taken;
        if (taken > 0)
            fills[count++] = taken;
    }
    if (bytes > 0)
        expect(region->pool, bytes, fills, count);
    else
        free(fills);
    pthread_mutex_unlock(&space->lock);
}

/* A copy; its serial is 0 if nothing is to be prepared. */
static enum lmcs_status get_expected(struct lmcs_space *space, struct lmcs_expected *expected, struct lmcs_error *error)
{
    bool copied = true;
    pthread_mutex_lock(&space->lock);
    *expected = (struct lmcs_expected){.serial = 0};
    if (space->expected.pending && space->taking == 0) {
        size_t bytes = space->expected.count * sizeof *expected->fills;
        *expected = space->expected;
        expected->fills = malloc(bytes + 1);
        copied = expected->fills != NULL;
        if (copied && bytes > 0)
            memcpy(expected->fills, space->expected.fills, bytes);
    }
    pthread_mutex_unlock(&space->lock);
    return copied ? LMCS_OK : lmcs_fail_memory(error);
}

/* Whether it is the newest expectation, and no capture is on its way to the disk. */
static bool is_expected(struct lmcs_space *space, const struct lmcs_expected *expected)
{
    pthread_mutex_lock(&space->lock);
    bool yes = space->expected.serial == expected->serial && space->taking == 0;
    pthread_mutex_unlock(&space->lock);
    return yes;
}

/* It is not to be prepared again. */
static void end_expectation(struct lmcs_space *space, const struct lmcs_expected *expected)
{
    pthread_mutex_lock(&space->lock);
    if (space->expected.serial == expected->serial)
        space->expected.pending = false;
    pthread_mutex_unlock(&space->lock);
}

static enum lmcs_status look(struct lmcs_region *region, const struct lmcs_expected *expected, struct lmcs_error *error)
{
    uint64_t left = expected->bytes + (expected->count == 0 ? expected->bytes / 8 : 0); /* for gaps, as yet unknown */
    enum lmcs_status status = LMCS_OK;
    region->expected = expected->bytes;
    for (size_t i = 0; status == LMCS_OK && i < expected->count; i++) {
        status = lmcs_region_look(region, expected->fills[i], true, error);
        left -= expected->fills[i];
    }
    while (status == LMCS_OK && left > 0) {
        uint64_t bytes = left < LOOK_BYTES ? left : LOOK_BYTES;
        status = lmcs_region_look(region, bytes, false, error);
        left -= bytes;
    }
    return status;
}

/* Finds the room of the expected capture. */
static enum lmcs_status find_places(struct lmcs_pool *pool, const struct lmcs_expected *expected, struct places *places,
                                    struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    struct lmcs_region region;
    lmcs_region_init(&region, pool, 0);
    region.prepares = true;
    lmcs_region_leave_share(&region);
    enum lmcs_status status = look(&region, expected, error);
    if (status == LMCS_OK && (places->items = calloc(region.count + 1, sizeof *places->items)) == NULL)
        status = lmcs_fail_memory(error);
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; status == LMCS_OK && i < region.count; i++) {
        const struct lmcs_extent *extent = region.extents[i];
        places->items[places->count++] = (struct place){extent->offset, start_of(extent), extent->now.cursor};
    }
    pthread_mutex_unlock(&space->lock);
    lmcs_region_end(&region);
    return status;
}

/* Whether the file space takes at most half of what is free, under the limit and on the disk. */
static bool may_take(struct lmcs_pool *pool, const struct places *places)
{
    struct lmcs_space *space = pool->space;
    uint64_t need = 0, disk = lmcs_heap_disk_free(pool->heap);
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < places->count; i++) {
        const struct lmcs_extent *extent = lmcs_extent_find(space, places->items[i].offset);
        if (extent != NULL && extent->now.backed < places->items[i].end)
            need += places->items[i].end - extent->now.backed;
    }
    uint64_t limit = space->limit_bytes, taken = space->used + space->slab_bytes;
    taken += lmcs_space_share(space->largest_taken, limit);
    pthread_mutex_unlock(&space->lock);
    return need <= disk / 2 && (need == 0 || (taken < limit && need <= (limit - taken) / 2));
}

struct warming {
    struct lmcs_heap *heap;
    uint64_t at;
    uint64_t end;
    _Atomic bool failed;
};

static void warm_some(void *context, uint64_t i)
{
    struct warming *w = context;
    uint64_t at = w->at + i * WARM_BYTES, bytes = w->end - at < WARM_BYTES ? w->end - at : WARM_BYTES;
    if (!w->failed && !lmcs_heap_warm(w->heap, at, bytes))
        w->failed = true;
}

/* Prepares some of a claimed extent. *bytes: how much; 0: nothing is left, or it is impossible. */
static enum lmcs_status prepare_step(struct lmcs_region *region, struct lmcs_extent *extent, const struct place *place,
                                     uint64_t *bytes, struct lmcs_error *error)
{
    struct lmcs_space *space = region->pool->space;
    pthread_mutex_lock(&space->lock);
    uint64_t was = extent->now.backed, from = lmcs_page_up(place->cursor);
    from = from < lmcs_page_up(extent->warm_end) ? lmcs_page_up(extent->warm_end) : from;
    pthread_mutex_unlock(&space->lock);
    if (from >= place->end)
        return LMCS_OK;
    uint64_t end = place->end - from > STEP_BYTES ? from + STEP_BYTES : place->end;
    enum lmcs_status status = lmcs_region_back(region, extent, end, error);
    pthread_mutex_lock(&space->lock);
    uint64_t backed = extent->now.backed;
    if (backed > was && extent->spare_from > was)
        extent->spare_from = was;
    pthread_mutex_unlock(&space->lock);
    if (status != LMCS_OK)
        return status;
    end = lmcs_page_up(end) < backed ? lmcs_page_up(end) : backed;
    struct warming w = {.heap = region->pool->heap, .at = from, .end = end};
    lmcs_idle_help(warm_some, &w, (end - from + WARM_BYTES - 1) / WARM_BYTES);
    pthread_mutex_lock(&space->lock);
    if (!w.failed)
        extent->warm_end = end;
    pthread_mutex_unlock(&space->lock);
    *bytes = w.failed ? 0 : end - from;
    return LMCS_OK;
}

static enum lmcs_status prepare_place(struct lmcs_pool *pool, const struct place *place, uint64_t *bytes,
                                      struct lmcs_error *error)
{
    struct lmcs_region region;
    lmcs_region_init(&region, pool, 0);
    region.prepares = true;
    lmcs_region_leave_share(&region);
    *bytes = 0;
    struct lmcs_extent *extent = lmcs_region_claim_again(&region, place->offset, place->cursor);
    enum lmcs_status status = extent == NULL ? LMCS_OK : prepare_step(&region, extent, place, bytes, error);
    lmcs_region_end(&region);
    return status;
}

enum lmcs_status lmcs_space_prepare(struct lmcs_pool *pool, bool (*go_on)(void *context), void *context,
                                    struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    struct lmcs_expected expected;
    struct places places = {.count = 0};
    uint64_t bytes = 0;
    bool goes_on = true;
    enum lmcs_status status = get_expected(space, &expected, error);
    if (status != LMCS_OK || expected.serial == 0)
        return status;
    status = find_places(pool, &expected, &places, error);
    if (status == LMCS_OK && !may_take(pool, &places))
        places.count = 0;
    for (size_t i = 0; status == LMCS_OK && goes_on && i < places.count; i++)
        do {
            goes_on = go_on(context) && is_expected(space, &expected);
            bytes = 0;
            if (goes_on)
                status = prepare_place(pool, &places.items[i], &bytes, error);
        } while (bytes > 0);
    if (goes_on)
        end_expectation(space, &expected);
    free(expected.fills);
    free(places.items);
    return status == LMCS_FULL ? LMCS_OK : status;
}

/* ---- Giving back ---- */

struct given {
    uint64_t offset;
    uint64_t bytes;
};

/* Where the extent's file space is to end. Under the lock. */
static uint64_t end_of_taken(const struct lmcs_extent *extent)
{
    uint64_t end = extent->spare_from;
    if (!lmcs_extent_is_empty(extent) && end < extent->committed_cursor)
        end = extent->committed_cursor;
    return lmcs_page_up(end);
}

static bool has_spare(const struct lmcs_extent *extent)
{
    return extent->spare_from != UINT64_MAX && !extent->claimed && !extent->freeing && !extent->touched &&
           end_of_taken(extent) < extent->now.backed;
}

/* Enters the smaller file space of all extents in the transaction. */
static enum lmcs_status cut_all(struct lmcs_txn *txn, struct given *given, size_t most, size_t *count,
                                struct lmcs_error *error)
{
    struct lmcs_space *space = txn->pool->space;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; i < most; i++) {
        status = lmcs_space_check_none(txn, given[i].offset, given[i].offset + given[i].bytes, error);
        if (status == LMCS_DAMAGED) { /* it stays */
            status = LMCS_OK;
            continue;
        }
        if (status != LMCS_OK)
            break;
        pthread_mutex_lock(&space->lock);
        struct lmcs_extent *extent = lmcs_extent_touch(space, given[i].offset);
        lmcs_extent_note_untrimmed(extent);
        space->used -= lmcs_extent_used(&extent->now);
        lmcs_extent_cut(extent, given[i].offset);
        extent->next.backed = extent->now.backed;
        space->used += lmcs_extent_used(&extent->now);
        pthread_mutex_unlock(&space->lock);
        given[(*count)++] = given[i];
    }
    return status;
}

enum lmcs_status lmcs_space_give_back(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    struct given *given = NULL;
    size_t capacity = 0, most = 0, count = 0;
    struct lmcs_txn txn;
    bool grown = true;
    if (!lmcs_heap_can_punch(pool->heap))
        return LMCS_OK;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; grown && i < space->count; i++) {
        const struct lmcs_extent *extent = space->extents[i];
        if (!has_spare(extent))
            continue;
        grown = lmcs_grow(&given, &capacity, most, sizeof *given);
        if (grown)
            given[most++] = (struct given){end_of_taken(extent), extent->now.backed - end_of_taken(extent)};
    }
    pthread_mutex_unlock(&space->lock);
    if (most == 0) {
        free(given);
        return grown ? LMCS_OK : lmcs_fail_memory(error);
    }
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status == LMCS_OK)
        status = lmcs_txn_finish(&txn, cut_all(&txn, given, most, &count, error), error);
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        lmcs_heap_punch(pool->heap, given[i].offset, given[i].bytes);
    free(given);
    return status;
}
