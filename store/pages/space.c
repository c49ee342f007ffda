/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/space.c - extents: where payloads lie.
 *
 * The tree of objects is the truth; a table in memory follows it. Within a transaction an extent's new record is kept
 * beside the old one, written to the tree before the commit, and taken over after it, so a failed commit changes
 * nothing. What a region has taken but not committed is known to the table alone: a crash gives it back.
 *
 * An extent's file space is allocated step by step as it is filled, so a small pool stays small, and counted, so that
 * the pool's own limit holds. Extents come from libpmemobj in a small transaction of their own, which enters them as
 * empty; captures therefore never hold anything that a crash could leak.
 *
 * A record may have a right checksum and be wrong, for somebody made it. Before room is written to, punched or given to
 * libpmemobj for what a record says, the tree of space is asked whether it knows of a payload there.
 */
#include "pages/space.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/pool.h"
#include "pages/tree.h"

#define LARGEST_EXTENT    ((uint64_t)64 << 20)
#define SMALLEST_EXTENT   ((uint64_t)512 << 10)
#define LARGEST_STEP      (LARGEST_EXTENT / 16) /* of file space */
#define COMPACTOR_SHARE   64                    /* of the limit */
#define EXTENTS_OF_A_POOL 128                   /* of one that is full */
#define EXTENTS_IN_USE    8                     /* at least, as it grows */

struct lmcs_extent {
    uint64_t offset;            /* libpmemobj's */
    struct lmcs_object_df now;  /* as committed; `backed` and `cursor` run ahead in a region */
    struct lmcs_object_df next; /* as the transaction under way will have it */
    bool touched;
    bool fresh;   /* entered by the transaction under way */
    bool going;   /* to be freed by the transaction under way */
    bool claimed; /* by a region, or by a trim: */
    const struct trim *trim;
    bool unsure;     /* since the pool was opened: a crash may have left file space that its record does not speak of */
    bool leave;      /* when it is trimmed: what its record speaks of stays */
    bool tail_known; /* not by its record alone: nothing lies at or behind its cursor; */
    bool live_known; /* what lives in it, for it has been empty since the pool was opened */
    uint64_t stuck_bytes; /* dead, but in pages of which something lives: what the last trim could not give back */
    uint64_t committed_cursor;
    struct untrimmed {
        bool any; /* a trim or a freeing under way: if it fails, nothing is given back, and this was right */
        uint64_t backed;
        uint64_t punched_bytes;
        uint64_t stuck_bytes;
    } untrimmed;
};

struct lmcs_space {
    pthread_mutex_t lock;
    struct lmcs_extent **extents; /* by offset */
    size_t count;
    size_t capacity;
    uint64_t used;        /* file space of all extents, and of live variables */
    uint64_t limit_bytes; /* the root's, to be read without the lock of metadata */
    uint64_t slab_bytes;
    uint64_t largest_taken; /* payload of a capture, since the pool was opened */
    uint64_t largest_bytes; /* of a standard extent, however much the pool holds */
};

/*
 * The pool's own limit; where its size is fixed (a device, a poolset), one below that, or the last extents that a
 * capture fills would leave the compactor nothing to write to. A sixteenth is what lies between extents, and their
 * ends.
 */
static uint64_t limit_of(const struct lmcs_pool *pool)
{
    uint64_t limit = pool->root.limit_bytes, whole = lmcs_media_bytes(pool->media);
    if (lmcs_heap_disk_free(pool->heap) != UINT64_MAX)
        return limit;
    uint64_t heap = lmcs_media_heap(pool->media) + ((uint64_t)1 << 20);
    whole = whole > heap ? whole - heap : 0;
    whole -= whole / 16;
    return limit != 0 && limit < whole ? limit : whole;
}

static uint64_t extent_end(const struct lmcs_extent *extent)
{
    return extent->offset + extent->now.bytes;
}

static uint64_t extent_used(const struct lmcs_object_df *df)
{
    return df->backed - df->first - (df->punched_bytes < df->backed - df->first ? df->punched_bytes : 0);
}

/* What is to be put back if the transaction that gives some of it back fails. */
static void note_untrimmed(struct lmcs_extent *extent)
{
    extent->untrimmed = (struct untrimmed){true, extent->now.backed, extent->now.punched_bytes, extent->stuck_bytes};
}

static bool is_empty(const struct lmcs_extent *extent)
{
    return extent->now.live_bytes == 0 && extent->now.retired_bytes == 0;
}

static bool is_free(const struct lmcs_extent *extent)
{
    return !extent->claimed && !extent->going && is_empty(extent) && !extent->touched;
}

/* What captures leave, of a limit or a disk: the compactor must write a content anew before it can free the old. */
static uint64_t compactor_share(uint64_t largest, uint64_t whole)
{
    uint64_t share = whole / COMPACTOR_SHARE;
    if (share < largest)
        share = largest < whole / 8 ? largest : whole / 8;
    return share;
}

/* File space of extents that are free. Under the lock. */
static uint64_t ready_bytes(const struct lmcs_space *space)
{
    uint64_t ready = 0;
    for (size_t i = 0; i < space->count; i++)
        if (is_free(space->extents[i]))
            ready += extent_used(&space->extents[i]->now);
    return ready;
}

/* Whether a capture that fills a free extent leaves the compactor its share of the limit. One without file space takes
 * none of it before it is filled, and is asked then (back_up_to). Under the lock. */
static bool leaves_share(const struct lmcs_region *region, const struct lmcs_extent *extent)
{
    const struct lmcs_space *space = region->pool->space;
    uint64_t limit = space->limit_bytes, taken = space->used + space->slab_bytes;
    if (limit == 0 || !region->leaves_share || !is_free(extent) || extent_used(&extent->now) == 0)
        return true;
    uint64_t left = (limit > taken ? limit - taken : 0) + ready_bytes(space) - extent_used(&extent->now);
    return left >= compactor_share(region->largest, limit);
}

/* ---- The table ---- */

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
    return low; /* the first that begins behind it */
}

static struct lmcs_extent *find_extent(const struct lmcs_space *space, uint64_t offset)
{
    size_t i = find_index(space, offset);
    struct lmcs_extent *extent = i > 0 ? space->extents[i - 1] : NULL;
    return extent != NULL && offset < extent_end(extent) ? extent : NULL;
}

static struct lmcs_extent *add_extent(struct lmcs_space *space, uint64_t offset, const struct lmcs_object_df *df)
{
    if (!lmcs_grow(&space->extents, &space->capacity, space->count, sizeof *space->extents))
        return NULL;
    struct lmcs_extent *extent = calloc(1, sizeof *extent);
    if (extent == NULL)
        return NULL;
    extent->offset = offset;
    extent->now = *df;
    extent->committed_cursor = df->cursor;
    extent->unsure = df->punched_bytes > 0 || lmcs_page_up(df->backed) < offset + df->bytes;
    size_t i = find_index(space, offset);
    memmove(&space->extents[i + 1], &space->extents[i], (space->count - i) * sizeof *space->extents);
    space->extents[i] = extent;
    space->count++;
    space->used += extent_used(df);
    return extent;
}

static void drop_extent(struct lmcs_space *space, struct lmcs_extent *extent)
{
    size_t i = find_index(space, extent->offset) - 1;
    memmove(&space->extents[i], &space->extents[i + 1], (space->count - i - 1) * sizeof *space->extents);
    space->count--;
    free(extent);
}

/* So that one that is just begun, or dying, is a small part of what the pool can hold. */
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

/* Extents grow with what the pool holds, or is about to take. */
static uint64_t standard_extent(const struct lmcs_space *space, uint64_t expected)
{
    uint64_t bytes = 4 * SMALLEST_EXTENT;
    while (bytes < space->used / EXTENTS_IN_USE || bytes < expected / EXTENTS_IN_USE)
        bytes *= 2;
    return bytes < space->largest_bytes ? bytes : space->largest_bytes;
}

static bool object_is_sound(const struct lmcs_pool *pool, uint64_t offset, const struct lmcs_object_df *df)
{
    uint64_t end = lmcs_media_bytes(pool->media);
    if (df->kind < LMCS_OBJECT_SLAB || df->kind > LMCS_OBJECT_LIVE)
        return false;
    if (offset >= end || df->bytes > end - offset || df->first < offset || df->first > offset + df->bytes)
        return false;
    return df->kind != LMCS_OBJECT_EXTENT ||
           (df->cursor >= df->first && df->cursor <= offset + df->bytes && df->backed >= df->first &&
            df->backed <= offset + df->bytes + LMCS_PAGE_BYTES);
}

static enum lmcs_status space_flush(struct lmcs_txn *txn, struct lmcs_error *error);
static void space_settle(struct lmcs_pool *pool, bool committed);

enum lmcs_status lmcs_space_load(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_space *space = calloc(1, sizeof *space);
    struct lmcs_cursor *cursor = NULL;
    struct lmcs_txn txn;
    if (space == NULL)
        return lmcs_fail_memory(error);
    pthread_mutex_init(&space->lock, NULL);
    space->largest_bytes = largest_extent(pool);
    space->limit_bytes = limit_of(pool);
    space->slab_bytes = pool->root.slab_bytes;
    pool->space = space;
    pool->space_hook = (struct lmcs_space_hook){space_flush, space_settle};
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK) {
        lmcs_cursor_free(cursor);
        return status;
    }
    status = lmcs_cursor_seek(cursor, &txn, LMCS_TREE_OBJECTS, &txn.root.trees[LMCS_TREE_OBJECTS],
                              (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        struct lmcs_object_df df;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        uint64_t offset = lmcs_cursor_key(cursor).high;
        if (bytes == sizeof df)
            memcpy(&df, value, sizeof df);
        if (bytes != sizeof df || !object_is_sound(pool, offset, &df)) {
            status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: a record of an extent", pool->path);
            break;
        }
        lmcs_heap_note(pool->heap, offset);
        if (df.kind == LMCS_OBJECT_EXTENT && add_extent(space, offset, &df) == NULL)
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
    pthread_mutex_destroy(&space->lock);
    free(space);
}

/* ---- Whether what a record says is so ---- */

enum lmcs_status lmcs_space_check_none(struct lmcs_txn *txn, uint64_t from, uint64_t end, struct lmcs_error *error)
{
    const struct lmcs_root_tree_df *tree = &txn->root.trees[LMCS_TREE_SPACE];
    struct lmcs_key_df key = {from, 0};
    struct lmcs_space_df df = {0, 0};
    struct lmcs_cursor *cursor;
    bool found = false;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_cursor_seek(cursor, txn, LMCS_TREE_SPACE, tree, key, error);
    if (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high < end) {
        key = lmcs_cursor_key(cursor);
        found = true;
    } else if (status == LMCS_OK) { /* or it begins before them */
        status = lmcs_tree_before(txn, LMCS_TREE_SPACE, tree, key, &key, &found, error);
        if (status == LMCS_OK && found)
            status = lmcs_tree_get(txn, LMCS_TREE_SPACE, tree, key, &df, sizeof df, sizeof df, NULL, &found, error);
        found = found && key.high + df.bytes > from;
    }
    lmcs_cursor_free(cursor);
    return status == LMCS_OK && found
               ? lmcs_fail(error, LMCS_DAMAGED, 0,
                           "%s: damaged metadata: a payload lies at offset %llu, and the record of an object says that "
                           "there is none from %llu to %llu: 'lmc-store dump' saves what the pool holds",
                           txn->pool->path, (unsigned long long)key.high, (unsigned long long)from,
                           (unsigned long long)end)
               : status;
}

/* ---- Taking room ---- */

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
    return true;
}

/* Nothing lives in it: from the start again. Under the lock. */
static void begin_again(struct lmcs_pool *pool, struct lmcs_extent *extent)
{
    extent->now.cursor = extent->now.first;
    extent->stuck_bytes = 0;
    if (extent->now.punched_bytes > 0) { /* its holes must be filled before they are stored to */
        pool->space->used -= extent_used(&extent->now);
        lmcs_heap_punch(pool->heap, extent->now.first, extent->now.backed - extent->now.first);
        extent->now.backed = extent->now.first;
        extent->now.punched_bytes = 0;
    }
}

/* One that has just been claimed: what it is about to be filled with must come where nothing lies. */
static enum lmcs_status begin_claimed(struct lmcs_pool *pool, struct lmcs_extent *extent, struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    struct lmcs_txn txn;
    enum lmcs_status status = LMCS_OK;
    pthread_mutex_lock(&space->lock);
    bool empty = is_empty(extent), known = empty ? extent->live_known : extent->tail_known;
    uint64_t from = empty ? extent->now.first : extent->now.cursor, end = extent_end(extent);
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
    extent->live_known = extent->live_known || empty;
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
    uint64_t at = align_for(cursor, bytes), room = lmcs_room(bytes), end = extent_end(extent);
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

/* So little lives in it that moving that out is worth the space. What is moved must not go there. */
static bool is_sparse(const struct lmcs_extent *extent)
{
    uint64_t filled = extent->committed_cursor - extent->now.first;
    return !extent->claimed && extent->now.live_bytes > 0 && extent->now.retired_bytes == 0 &&
           filled > extent->now.bytes / 2 && extent->now.live_bytes < filled / 4;
}

/* A free extent, or one left partly filled by an earlier region of the same purpose: the best fit, warm before cold. */
static struct lmcs_extent *closed_extent(struct lmcs_region *region, uint64_t bytes)
{
    struct lmcs_space *space = region->pool->space;
    uint64_t standard = standard_extent(space, region->expected);
    bool large = lmcs_room(bytes) + 2 * LMCS_PAGE_BYTES > standard;
    struct lmcs_extent *best = NULL;
    for (size_t i = 0; i < space->count; i++) {
        struct lmcs_extent *extent = space->extents[i];
        if (extent->claimed || extent->going || extent->touched)
            continue;
        bool free_now = is_free(extent);
        if (!free_now && (large || extent->now.purpose != region->purpose || is_sparse(extent)))
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

/* Enters new, empty extents: enough for `bytes`, more of them the more there are. */
static enum lmcs_status grow(struct lmcs_region *region, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_pool *pool = region->pool;
    struct lmcs_space *space = pool->space;
    pthread_mutex_lock(&space->lock);
    uint64_t standard = standard_extent(space, region->expected);
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
        struct lmcs_extent *extent = add_extent(space, offset, &df);
        if (extent != NULL) {
            extent->next = df;
            extent->touched = extent->fresh = true;
            extent->tail_known = extent->live_known = true;
            extent->unsure = false;
        }
        pthread_mutex_unlock(&space->lock);
        if (extent == NULL)
            status = lmcs_fail_memory(error);
    }
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    return lmcs_txn_commit(&txn, error);
}

/* Takes what no reader needs any more off the retired list, so that extents may become free. *some: there was any. */
static enum lmcs_status release_some(struct lmcs_pool *pool, bool *some, struct lmcs_error *error)
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
 * Frees extents in which nothing lives, so that libpmemobj may join them to others. *some: there were any. For pools
 * whose size is fixed (a device, a poolset): in a file there is always more of the address space, and free extents are
 * kept for what fits them. Those whose records are not sound stay as they are.
 */
static enum lmcs_status free_some(struct lmcs_pool *pool, bool *some, struct lmcs_error *error)
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
        if (!is_free(extent))
            continue;
        status = lmcs_space_check_none(&txn, extent->offset, extent_end(extent), error);
        if (status == LMCS_DAMAGED) {
            status = LMCS_OK;
            continue;
        }
        if (status != LMCS_OK)
            break;
        note_untrimmed(extent);
        space->used -= extent_used(&extent->now);
        extent->now.backed = extent->now.first;
        extent->now.punched_bytes = 0;
        extent->touched = extent->going = true;
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

static enum lmcs_status grow_somehow(struct lmcs_region *region, uint64_t bytes, struct lmcs_error *error)
{
    bool some = !lmcs_heap_can_punch(region->pool->heap);
    enum lmcs_status status = grow(region, bytes, error);
    while (status == LMCS_FULL && some) {
        struct lmcs_error full = error != NULL ? *error : (struct lmcs_error){0};
        status = free_some(region->pool, &some, error);
        if (status == LMCS_OK && some)
            status = grow(region, bytes, error);
        else if (status == LMCS_OK && error != NULL)
            *error = full;
        if (!some && status == LMCS_OK)
            status = LMCS_FULL;
    }
    return status;
}

/* Counts file space that is about to be taken; `leaves`: the compactor's share must stay. Under the lock. */
static enum lmcs_status count_need(struct lmcs_pool *pool, uint64_t need, uint64_t largest, bool leaves,
                                   struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    uint64_t limit = space->limit_bytes, taken = space->used + space->slab_bytes;
    if (leaves)
        limit -= compactor_share(largest, limit);
    uint64_t left = limit > taken ? limit - taken : 0;
    bool over = limit != 0 && need > left;
    uint64_t disk = over || !leaves ? UINT64_MAX : lmcs_heap_disk_free(pool->heap);
    if (disk != UINT64_MAX && (need > disk || disk - need < compactor_share(largest, space->used + disk)))
        return lmcs_fail_full(error, need, disk, 0,
                              "%s: the disk is full: %llu bytes are needed and %llu are free, some of which the "
                              "compactor needs",
                              pool->path, (unsigned long long)need, (unsigned long long)disk);
    if (over)
        return lmcs_fail_full(
            error, need, left, 0, "%s: the pool is full: %llu bytes are needed and %llu of its limit of %llu are free",
            pool->path, (unsigned long long)need, (unsigned long long)left, (unsigned long long)space->limit_bytes);
    space->used += need;
    return LMCS_OK;
}

/*
 * Allocates file space so that the extent is backed up to `end`, a step at a time, and counts it.
 */
static enum lmcs_status back_up_to(struct lmcs_region *region, struct lmcs_extent *extent, uint64_t end,
                                   struct lmcs_error *error)
{
    struct lmcs_pool *pool = region->pool;
    struct lmcs_space *space = pool->space;
    pthread_mutex_lock(&space->lock);
    uint64_t from = extent->now.backed, last = extent_end(extent);
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
        limit -= compactor_share(region->largest, limit);
    if (limit != 0 && taken + need > limit) {
        target = end;
        need = target - from;
    }
    enum lmcs_status status = count_need(pool, need, region->largest, region->leaves_share, error);
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

/* One that could not be begun is not the region's. Where its record is not sound, it is nobody's in this opening. */
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

/* An extent with room for `bytes`, claimed: one that the region has (unless `other`), or a free one, or a new one. */
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
            status = release_some(region->pool, &some, error);
        *released = true;
        if (status == LMCS_OK && !some)
            status = grow_somehow(region, bytes, error);
        if (status != LMCS_OK)
            return status;
    }
    return LMCS_OK;
}

/*
 * A commit may take over an extent's record while its region fills it (space_settle), so even a region looks at
 * its own cursors under the lock.
 */
static enum lmcs_status take_room(struct lmcs_region *region, uint64_t bytes, uint64_t *offset,
                                  struct lmcs_error *error)
{
    struct lmcs_space *space = region->pool->space;
    struct lmcs_extent *extent;
    bool released = false, again = false;
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
        status = back_up_to(region, extent, end, error);
        if (status != LMCS_FULL || again)
            break;
        /* No space for this one; but there may be extents that have theirs, and are free once readers were asked. */
        bool some = true;
        if (!released && release_some(region->pool, &some, error) != LMCS_OK)
            break;
        released = again = true;
    }
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&space->lock);
    extent->now.cursor = end;
    region->expected -= bytes < region->expected ? bytes : region->expected;
    pthread_mutex_unlock(&space->lock);
    *offset = at;
    return LMCS_OK;
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
    pthread_mutex_unlock(&space->lock);
    free(region->extents);
    region->extents = NULL;
    region->count = region->capacity = 0;
}

/* ---- Within a transaction ---- */

static struct lmcs_extent *touch(struct lmcs_space *space, uint64_t offset)
{
    struct lmcs_extent *extent = find_extent(space, offset);
    if (extent != NULL && !extent->touched) {
        extent->touched = true;
        extent->next = extent->now;
        extent->next.cursor = extent->committed_cursor;
    }
    return extent;
}

static enum lmcs_status fail_extent(struct lmcs_txn *txn, uint64_t offset, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: no extent holds offset %llu", txn->pool->path,
                     (unsigned long long)offset);
}

enum lmcs_status lmcs_region_commit(struct lmcs_txn *txn, struct lmcs_region *region, struct lmcs_error *error)
{
    struct lmcs_space *space = txn->pool->space;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < region->count; i++) {
        struct lmcs_extent *extent = touch(space, region->extents[i]->offset);
        extent->next.cursor = extent->now.cursor;
        extent->next.backed = extent->now.backed;
        extent->next.punched_bytes = extent->now.punched_bytes;
        extent->next.purpose = region->purpose;
    }
    pthread_mutex_unlock(&space->lock);
    (void)error;
    return LMCS_OK;
}

enum lmcs_status lmcs_space_add(struct lmcs_txn *txn, uint64_t offset, uint64_t bytes, uint64_t content,
                                struct lmcs_error *error)
{
    struct lmcs_space *space = txn->pool->space;
    struct lmcs_space_df df = {content, lmcs_room(bytes)};
    pthread_mutex_lock(&space->lock);
    struct lmcs_extent *extent = touch(space, offset);
    if (extent != NULL)
        extent->next.live_bytes += df.bytes;
    pthread_mutex_unlock(&space->lock);
    if (extent == NULL)
        return fail_extent(txn, offset, error);
    txn->root.live_bytes += df.bytes;
    return lmcs_tree_put(txn, LMCS_TREE_SPACE, &txn->root.trees[LMCS_TREE_SPACE], (struct lmcs_key_df){offset, 0}, &df,
                         sizeof df, error);
}

enum lmcs_status lmcs_space_retire(struct lmcs_txn *txn, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_space *space = txn->pool->space;
    uint64_t room = lmcs_room(bytes);
    pthread_mutex_lock(&space->lock);
    struct lmcs_extent *extent = touch(space, offset);
    if (extent != NULL) {
        extent->next.live_bytes -= room;
        extent->next.retired_bytes += room;
    }
    pthread_mutex_unlock(&space->lock);
    if (extent == NULL)
        return fail_extent(txn, offset, error);
    txn->root.live_bytes -= room;
    enum lmcs_status status = lmcs_tree_delete(txn, LMCS_TREE_SPACE, &txn->root.trees[LMCS_TREE_SPACE],
                                               (struct lmcs_key_df){offset, 0}, NULL, error);
    if (status == LMCS_OK)
        status = lmcs_tree_put(txn, LMCS_TREE_RETIRED, &txn->root.trees[LMCS_TREE_RETIRED],
                               (struct lmcs_key_df){txn->root.epoch, offset}, &room, sizeof room, error);
    return status;
}

struct retired {
    struct lmcs_key_df key;
    uint64_t bytes;
};

/* What is not, would never be released, or make holes where something lives. */
static bool retired_is_sound(struct lmcs_txn *txn, const struct retired *one)
{
    struct lmcs_space *space = txn->pool->space;
    pthread_mutex_lock(&space->lock);
    const struct lmcs_extent *extent = find_extent(space, one->key.low);
    bool sound = extent != NULL && one->key.low >= extent->now.first && one->bytes > 0 &&
                 one->bytes <= extent_end(extent) - one->key.low;
    pthread_mutex_unlock(&space->lock);
    return sound && one->key.low % LMCS_PACK_ALIGN == 0 && one->bytes % LMCS_PACK_ALIGN == 0 &&
           one->key.high <= txn->root.epoch;
}

/* Collects retired ranges: those that are safe to release (`releasable`), or all. */
static enum lmcs_status collect_retired(struct lmcs_txn *txn, bool releasable, size_t most, struct retired **list,
                                        size_t *count, struct lmcs_error *error)
{
    struct lmcs_pool *pool = txn->pool;
    struct lmcs_root_tree_df *tree = &txn->root.trees[LMCS_TREE_RETIRED];
    uint64_t safe = releasable ? lmcs_lease_safe_epoch(pool->lease, pool->root.epoch) : UINT64_MAX;
    size_t capacity = 0;
    struct lmcs_cursor *cursor;
    *count = 0;
    *list = NULL;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_cursor_seek(cursor, txn, LMCS_TREE_RETIRED, tree, (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && *count < most) {
        struct retired one = {.key = lmcs_cursor_key(cursor)};
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
    struct retired *list = NULL;
    size_t count = 0;
    *done = 0;
    enum lmcs_status status = collect_retired(txn, true, most, &list, &count, error);
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        pthread_mutex_lock(&space->lock);
        struct lmcs_extent *extent = touch(space, list[i].key.low);
        if (extent != NULL && extent->next.retired_bytes < list[i].bytes)
            extent = NULL; /* more than it has, by its record */
        if (extent != NULL)
            extent->next.retired_bytes -= list[i].bytes;
        pthread_mutex_unlock(&space->lock);
        status = extent == NULL ? fail_extent(txn, list[i].key.low, error)
                                : lmcs_tree_delete(txn, LMCS_TREE_RETIRED, &txn->root.trees[LMCS_TREE_RETIRED],
                                                   list[i].key, NULL, error);
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
    struct lmcs_root_tree_df *tree = &txn->root.trees[LMCS_TREE_OBJECTS];
    enum lmcs_status status = LMCS_OK;
    pthread_mutex_lock(&space->lock);
    txn->root.extent_bytes = space->used;
    for (size_t i = 0; status == LMCS_OK && i < space->count; i++) {
        struct lmcs_extent *extent = space->extents[i];
        struct lmcs_key_df key = {extent->offset, 0};
        if (extent->going) {
            status = lmcs_tree_delete(txn, LMCS_TREE_OBJECTS, tree, key, NULL, error);
        } else if (extent->touched) {
            if (extent->next.live_bytes == 0 && extent->next.retired_bytes == 0 && !extent->claimed)
                extent->next.cursor = extent->next.first;
            extent->next.backed = extent->now.backed;
            status = lmcs_tree_put(txn, LMCS_TREE_OBJECTS, tree, key, &extent->next, sizeof extent->next, error);
        }
    }
    pthread_mutex_unlock(&space->lock);
    return status;
}

/* A trim or a freeing that has failed leaves what it found: before others have the lock of metadata, and record it. */
static void settle_trim(struct lmcs_space *space, struct lmcs_extent *extent, bool committed)
{
    const struct untrimmed *was = &extent->untrimmed;
    if (was->any && !committed) {
        space->used -= extent_used(&extent->now);
        extent->now.backed = was->backed;
        extent->now.punched_bytes = was->punched_bytes;
        extent->stuck_bytes = was->stuck_bytes;
        space->used += extent_used(&extent->now);
    }
    extent->untrimmed.any = false;
}

static void space_settle(struct lmcs_pool *pool, bool committed)
{
    struct lmcs_space *space = pool->space;
    if (space == NULL)
        return;
    pthread_mutex_lock(&space->lock);
    space->limit_bytes = limit_of(pool);
    space->slab_bytes = pool->root.slab_bytes;
    for (size_t i = 0; i < space->count; i++) {
        struct lmcs_extent *extent = space->extents[i];
        bool remove = committed ? extent->going : extent->fresh;
        settle_trim(space, extent, committed);
        if (committed && extent->touched) {
            uint64_t cursor = extent->now.cursor, backed = extent->now.backed;
            extent->now = extent->next;
            extent->committed_cursor = extent->next.cursor;
            extent->now.backed = backed;
            if (extent->claimed && cursor > extent->now.cursor)
                extent->now.cursor = cursor; /* its region has gone on meanwhile */
        }
        extent->touched = extent->fresh = extent->going = false;
        if (remove) {
            space->used -= extent_used(&extent->now);
            drop_extent(space, extent);
            i--;
        }
    }
    pthread_mutex_unlock(&space->lock);
}

/* ---- Giving space back ---- */

static int by_offset(const void *a, const void *b)
{
    const struct retired *x = a, *y = b;
    return (x->key.low > y->key.low) - (x->key.low < y->key.low);
}

struct hole {
    uint64_t offset;
    uint64_t bytes;
};

/* An extent that is trimmed. */
struct trimmed {
    struct lmcs_extent *extent; /* claimed */
    uint64_t offset;            /* its own: it may go */
    uint64_t hole_bytes;        /* between what lives in it */
    bool is_sound;
};

struct trim {
    struct lmcs_txn *txn;
    uint64_t keep;
    uint64_t from;           /* extents before this offset have had their turn */
    struct retired *retired; /* by offset */
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

static bool add_hole(struct trim *trim, uint64_t offset, uint64_t bytes)
{
    if (!lmcs_grow(&trim->holes, &trim->hole_capacity, trim->hole_count, sizeof *trim->holes))
        return false;
    trim->holes[trim->hole_count++] = (struct hole){offset, bytes};
    return true;
}

/* The next retired range at or behind `at`, or `end`. */
static struct hole next_retired(const struct trim *trim, uint64_t at, uint64_t end)
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

/* Finds the whole pages between live and retired payloads of an extent; *total gets their bytes. */
static enum lmcs_status find_holes(struct trim *trim, const struct lmcs_extent *extent, uint64_t *total,
                                   struct lmcs_error *error)
{
    struct lmcs_txn *txn = trim->txn;
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    uint64_t at = extent->now.first, end = extent->committed_cursor;
    status = lmcs_cursor_seek(cursor, txn, LMCS_TREE_SPACE, &txn->root.trees[LMCS_TREE_SPACE],
                              (struct lmcs_key_df){at, 0}, error);
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
        /* Each lies behind the one before it, or this would never end, and holes would be where something lives. */
        if (next.offset < at || (next.offset < end && next.bytes == 0) || next.bytes > end - next.offset) {
            status = fail_extent(txn, next.offset, error);
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
 * File space in which nothing lives, and which a trim may give back. A tail that is to be filled next counts only when
 * nothing is to be kept; what an earlier trim could not give back does not, for others live in its pages.
 */
static uint64_t dead_bytes(const struct lmcs_extent *extent, uint64_t keep)
{
    uint64_t used = extent_used(&extent->now), held = extent->now.live_bytes + extent->now.retired_bytes;
    uint64_t tail = extent->now.backed - extent->committed_cursor;
    held += is_free(extent) || keep == 0 ? 0 : tail;
    held += is_empty(extent) ? 0 : extent->stuck_bytes;
    return used > held ? used - held : 0;
}

/*
 * Claims extents to trim: free ones as far as they exceed `keep`, then those with holes, and, once after the pool was
 * opened, all those to which a crash may have left more than their records speak of. Under the lock.
 */
static void choose_extents(struct lmcs_space *space, struct trim *trim)
{
    uint64_t warm = 0;
    for (size_t i = 0; i < space->count && trim->count < TRIM_EXTENTS; i++) {
        struct lmcs_extent *extent = space->extents[i];
        uint64_t dead = dead_bytes(extent, trim->keep);
        bool enough = dead >= 16 * LMCS_PAGE_BYTES, stays = enough && warm + dead <= trim->keep;
        if (extent->claimed)
            continue;
        warm += stays ? dead : 0;
        if (((!enough || stays) && !extent->unsure) || extent->offset < trim->from)
            continue;
        extent->leave = (!enough || stays) && extent->now.punched_bytes == 0;
        extent->claimed = true;
        extent->trim = trim;
        trim->items[trim->count++] = (struct trimmed){.extent = extent, .offset = extent->offset};
    }
    if (trim->count > 0)
        trim->from = trim->items[trim->count - 1].offset + 1;
}

/* Whether file space behind what lives in an extent, which is to be filled next, goes as well. */
static bool is_cut(const struct trim *trim, const struct lmcs_extent *extent)
{
    return !is_empty(extent) && trim->keep == 0 && lmcs_page_up(extent->committed_cursor) < extent->now.backed;
}

/* Looks at an extent, and adds its holes. */
static enum lmcs_status look_into(struct trim *trim, struct trimmed *item, struct lmcs_error *error)
{
    struct lmcs_extent *extent = item->extent;
    bool whole = is_empty(extent);
    uint64_t behind = lmcs_page_up(extent->now.backed), last = extent_end(extent);
    uint64_t tail = extent->committed_cursor < extent->now.backed ? extent->committed_cursor : extent->now.backed;
    enum lmcs_status status = lmcs_space_check_none(trim->txn, whole ? extent->now.first : tail, last, error);
    if (status != LMCS_OK)
        return status;
    if (extent->unsure && behind < last && !add_hole(trim, behind, last - behind))
        return lmcs_fail_memory(error);
    if (extent->leave)
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

/* Those whose records are not sound are left as they are, and said at the end: the others are trimmed. */
static enum lmcs_status look_into_all(struct trim *trim, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < trim->count; i++) {
        const size_t holes = trim->hole_count;
        status = look_into(trim, &trim->items[i], error);
        trim->items[i].is_sound = status == LMCS_OK;
        trim->sound_count += status == LMCS_OK;
        if (status != LMCS_OK)
            trim->hole_count = holes;
        status = lmcs_pass_over(trim->passed, status, error);
    }
    return status;
}

/* Under the lock. */
static void note_trim(const struct trim *trim, const struct trimmed *item)
{
    struct lmcs_space *space = trim->txn->pool->space;
    struct lmcs_extent *extent = item->extent;
    bool whole = is_empty(extent), cut = is_cut(trim, extent);
    if (!item->is_sound || extent->leave)
        return;
    touch(space, extent->offset);
    note_untrimmed(extent);
    space->used -= extent_used(&extent->now);
    if (whole || cut)
        extent->now.backed = extent->next.backed = whole ? extent->now.first : lmcs_page_up(extent->committed_cursor);
    extent->now.punched_bytes = extent->next.punched_bytes = item->hole_bytes;
    space->used += extent_used(&extent->now);
    extent->stuck_bytes = 0;
    extent->stuck_bytes = dead_bytes(extent, 1);
}

/* One of an unusual size will hardly be wanted again. */
static bool is_odd(struct lmcs_space *space, const struct lmcs_extent *extent)
{
    return is_empty(extent) && extent->now.backed == extent->now.first &&
           extent->now.bytes > 2 * standard_extent(space, 0);
}

/*
 * Gives extents of unusual sizes, of those that have been trimmed, back to libpmemobj. Only now that their space has
 * been punched: once the commit is done, libpmemobj may give their room to another extent, and that be filled.
 */
static enum lmcs_status free_odd(struct lmcs_pool *pool, struct trim *trim, struct lmcs_error *error)
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
        extent->going = is_odd(space, extent);
        pthread_mutex_unlock(&space->lock);
        if (!extent->going)
            continue;
        status = lmcs_txn_free(&txn, extent->offset, extent->now.bytes, error);
        freed++;
    }
    if (status == LMCS_OK && freed > 0)
        status = lmcs_txn_commit(&txn, error);
    else
        lmcs_txn_end(&txn);
    return status == LMCS_FULL ? LMCS_OK : status; /* they only keep addresses */
}

/*
 * One transaction's worth. The commit comes before the punching: what is recorded as backed must be. A crash between
 * the two leaves holes that are recorded and have file space, as one during a capture leaves some behind what is
 * recorded: the first trim after the pool was opened punches both. *from: where it goes on.
 */
static enum lmcs_status trim_some(struct lmcs_pool *pool, uint64_t keep, uint64_t *from, bool *more,
                                  struct lmcs_passed *passed, struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    struct lmcs_txn txn;
    struct trimmed items[TRIM_EXTENTS];
    struct trim trim = {.txn = &txn, .keep = keep, .from = *from, .items = items, .passed = passed};
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&space->lock);
    choose_extents(space, &trim);
    pthread_mutex_unlock(&space->lock);
    *from = trim.from;
    *more = trim.count == TRIM_EXTENTS;
    status = collect_retired(&txn, false, SIZE_MAX, &trim.retired, &trim.retired_count, error);
    if (status == LMCS_OK && trim.retired_count > 0)
        qsort(trim.retired, trim.retired_count, sizeof *trim.retired, by_offset);
    if (status == LMCS_OK)
        status = look_into_all(&trim, error);
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
        status = free_odd(pool, &trim, error);
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < trim.count; i++) {
        /* Some are gone, and where one was there may be another by now: a capture's, or of another trim. */
        struct lmcs_extent *extent = find_extent(space, items[i].offset);
        if (extent == NULL || extent->trim != &trim)
            continue;
        extent->claimed = false;
        extent->trim = NULL;
        extent->unsure = extent->unsure && (status != LMCS_OK || !items[i].is_sound);
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
        unsure += space->extents[i]->unsure ? 1 : 0;
        if (dead_bytes(space->extents[i], keep) >= 16 * LMCS_PAGE_BYTES)
            dead += dead_bytes(space->extents[i], keep);
    }
    pthread_mutex_unlock(&space->lock);
    return (dead > keep ? dead - keep : 0) + unsure;
}

/* Gives back all that can be; false: there is nothing. What has a damaged record is left out. */
static bool has_trimmed(struct lmcs_pool *pool)
{
    struct lmcs_error ignored;
    if (lmcs_space_waste(pool, 0) == 0)
        return false;
    enum lmcs_status status = lmcs_space_trim(pool, 0, &ignored);
    return status == LMCS_OK || status == LMCS_DAMAGED;
}

/* Space may be short only because free extents of other sizes, and holes, still have theirs: it is given back first. */
enum lmcs_status lmcs_region_take(struct lmcs_region *region, uint64_t bytes, uint64_t *offset,
                                  struct lmcs_error *error)
{
    struct lmcs_pool *pool = region->pool;
    struct lmcs_error ignored;
    enum lmcs_status status = take_room(region, bytes, offset, error);
    bool some;
    if (status != LMCS_FULL || release_some(pool, &some, &ignored) != LMCS_OK || !has_trimmed(pool))
        return status;
    return take_room(region, bytes, offset, error);
}

/* Space may be short only because extents in which nothing lives still have theirs. */
enum lmcs_status lmcs_space_charge(struct lmcs_pool *pool, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_space *space = pool->space;
    struct lmcs_error ignored;
    bool some;
    pthread_mutex_lock(&space->lock);
    enum lmcs_status status = count_need(pool, bytes, 0, true, error);
    pthread_mutex_unlock(&space->lock);
    if (status != LMCS_FULL || release_some(pool, &some, &ignored) != LMCS_OK || !has_trimmed(pool))
        return status;
    pthread_mutex_lock(&space->lock);
    status = count_need(pool, bytes, 0, true, error);
    pthread_mutex_unlock(&space->lock);
    return status;
}

void lmcs_space_count(struct lmcs_pool *pool, int64_t bytes)
{
    pthread_mutex_lock(&pool->space->lock);
    pool->space->used += (uint64_t)bytes;
    pthread_mutex_unlock(&pool->space->lock);
}

bool lmcs_space_sparse(struct lmcs_pool *pool, uint64_t from, uint64_t *first, uint64_t *end)
{
    struct lmcs_space *space = pool->space;
    bool found = false;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; !found && i < space->count; i++) {
        const struct lmcs_extent *extent = space->extents[i];
        found = extent->now.first >= from && is_sparse(extent);
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
    uint64_t ready = ready_bytes(space);
    for (size_t i = 0; i < space->count; i++)
        unbacked += extent_end(space->extents[i]) - space->extents[i]->now.backed;
    uint64_t used = space->used + space->slab_bytes;
    uint64_t limit = space->limit_bytes - compactor_share(space->largest_taken, space->limit_bytes);
    pthread_mutex_unlock(&space->lock);
    uint64_t disk = lmcs_heap_disk_free(pool->heap);
    if (disk == UINT64_MAX) /* a poolset or a device: what libpmemobj has not given out, about */
        disk = lmcs_media_bytes(pool->media) > used + ((uint64_t)8 << 20)
                   ? lmcs_media_bytes(pool->media) - used - ((uint64_t)8 << 20)
                   : unbacked;
    if (limit != 0 && disk > (limit > used ? limit - used : 0))
        disk = limit > used ? limit - used : 0;
    return disk + ready;
}
