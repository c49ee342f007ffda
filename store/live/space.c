/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/space.c - where live variables are stored: objects that never move.
 *
 * *Pages* hold tensors and journals; free ones are holes, so pages that get file space are zero. *Cells*, in units of
 * 64 bytes, have pages of their own. If the file system refuses to punch, a range is old: reuse writes zeros, and the
 * punch is retried after another one succeeds. Given-back space is kept aside with its commit's epoch, until no process
 * leases an older one or has it mapped.
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "live/body.h"
#include "pages/space.h"
#include "pages/tree.h"

#define LEAST_OBJECT   ((uint64_t)1 << 20) /* bytes */
#define MOST_OBJECT    ((uint64_t)64 << 20)
#define CHECKS_AT_ONCE 16u /* freed ranges per call */

static enum lmcs_status write_zeros(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    static const unsigned char zeros[1 << 16];
    enum lmcs_status status = LMCS_OK;
    for (uint64_t n; status == LMCS_OK && bytes > 0; offset += n, bytes -= n) {
        n = bytes < sizeof zeros ? bytes : sizeof zeros;
        status = lmcs_heap_write(pool->heap, offset, zeros, n, error);
    }
    return status;
}

/* Zeroes pages, on media without holes or after a failed punch. */
static enum lmcs_status clear_pages(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_live_space *space = &pool->live->space;
    bool all = space->is_old || !lmcs_heap_can_punch(pool->heap);
    enum lmcs_status status = all ? write_zeros(pool, offset, bytes, error) : LMCS_OK;
    struct lmcs_range part = {offset, 0};
    while (!all && status == LMCS_OK &&
           lmcs_ranges_find_common(&space->old, part.offset + part.bytes, offset + bytes, &part))
        status = write_zeros(pool, part.offset, part.bytes, error);
    if (status == LMCS_OK)
        lmcs_ranges_cut(&space->old, offset, bytes);
    return status;
}

static enum lmcs_status back(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_ranges *old = &pool->live->space.old;
    if (old->count > 0 && !lmcs_ranges_reserve(old))
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_space_charge(pool, bytes, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_heap_back(pool->heap, offset, bytes, error);
    if (status == LMCS_OK)
        status = clear_pages(pool, offset, bytes, error);
    if (status != LMCS_OK)
        lmcs_live_unback(pool, offset, bytes);
    return status;
}

/* Makes unused pages holes or old. */
static bool punch(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes)
{
    struct lmcs_live_space *space = &pool->live->space;
    struct lmcs_ranges *old = &space->old;
    if (lmcs_heap_punch(pool->heap, offset, bytes))
        return true;
    if (lmcs_ranges_reserve(old)) {
        lmcs_ranges_cut(old, offset, bytes);
        space->is_old |= !lmcs_ranges_add(old, offset, bytes);
    } else {
        space->is_old = true;
    }
    return false;
}

static void punch_old(struct lmcs_pool *pool)
{
    struct lmcs_ranges *old = &pool->live->space.old;
    while (old->count > 0 &&
           lmcs_heap_punch(pool->heap, old->all[old->count - 1].offset, old->all[old->count - 1].bytes))
        old->count--;
}

void lmcs_live_unback(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes)
{
    /* A committed change that is not completed may use the pages. The next open frees them. */
    if (bytes == 0 || atomic_load(&pool->live->is_broken))
        return;
    if (punch(pool, offset, bytes))
        punch_old(pool);
    lmcs_space_count(pool, -(int64_t)bytes);
}

/* ---- Freed space ---- */

/* Frees a cell; a page left without cells becomes a free page. */
static void free_cell(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes)
{
    struct lmcs_live_space *space = &pool->live->space;
    if (!lmcs_ranges_add(&space->cells, offset, bytes))
        return;
    const struct lmcs_range *range = lmcs_ranges_find(&space->cells, offset, bytes);
    uint64_t first = lmcs_page_up(range->offset),
             end = (range->offset + range->bytes) & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
    if (first >= end || !lmcs_ranges_take(&space->cells, first, end - first))
        return;
    lmcs_live_unback(pool, first, end - first);
    lmcs_ranges_add(&space->pages, first, end - first);
}

static struct lmcs_live_freed cut_freed(const struct lmcs_live_freed *freed, uint64_t from, uint64_t end)
{
    struct lmcs_live_freed piece = *freed;
    uint64_t before = from - freed->range.offset, bytes = end - from;
    piece.range = (struct lmcs_range){from, bytes};
    piece.backed = freed->backed > before ? freed->backed - before : 0;
    piece.backed = piece.backed < bytes ? piece.backed : bytes;
    return piece;
}

/* Returns the pinned pages, `first` to `end`; the pages around them are appended to the list. */
static struct lmcs_live_freed split_freed(struct lmcs_live_space *space, const struct lmcs_live_freed *freed,
                                          uint64_t first, uint64_t end)
{
    uint64_t from = freed->range.offset, last = from + freed->range.bytes;
    if (!lmcs_grow(&space->freed, &space->freed_capacity, space->freed_count + 1, sizeof *space->freed))
        return *freed;
    if (from < first)
        space->freed[space->freed_count++] = cut_freed(freed, from, first);
    if (end < last)
        space->freed[space->freed_count++] = cut_freed(freed, end, last);
    return cut_freed(freed, first, end);
}

/* Frees range i unless a reader needs it; splits it if a part is pinned. True: another range took its index. */
static bool settle_one(struct lmcs_pool *pool, uint64_t safe, size_t i)
{
    struct lmcs_live_space *space = &pool->live->space;
    const struct lmcs_live_freed freed = space->freed[i];
    uint64_t first, end;
    if (freed.epoch > safe)
        return false;
    if (!freed.is_cell && lmcs_lease_find_pin(pool->lease, freed.range.offset, freed.range.bytes, &first, &end)) {
        const struct lmcs_live_freed piece = split_freed(space, &freed, first, end);
        space->freed[i] = piece;
        return false;
    }
    space->freed[i] = space->freed[--space->freed_count];
    if (freed.is_cell) {
        free_cell(pool, freed.range.offset, freed.range.bytes);
    } else {
        lmcs_live_unback(pool, freed.range.offset, freed.backed);
        lmcs_ranges_add(&space->pages, freed.range.offset, freed.range.bytes);
    }
    return true;
}

/* Frees ranges from i on, until `most` have to wait. Returns the next index. */
static size_t settle_from(struct lmcs_pool *pool, uint64_t safe, size_t i, size_t most)
{
    while (i < pool->live->space.freed_count && most > 0)
        if (!settle_one(pool, safe, i)) {
            i++;
            most--;
        }
    return i;
}

/*
 * Each check is a system call, and a child may block ranges as long as it lives: a call checks the last range, perhaps
 * new, and some others in turn. `all`: before the pool grows or is full.
 */
static void settle_freed(struct lmcs_pool *pool, bool all)
{
    struct lmcs_live_space *space = &pool->live->space;
    if (space->freed_count == 0)
        return;
    const uint64_t safe = lmcs_lease_safe_epoch(pool->lease, pool->epoch);
    if (all || space->freed_count <= CHECKS_AT_ONCE) {
        settle_from(pool, safe, 0, SIZE_MAX);
        return;
    }
    settle_from(pool, safe, space->freed_count - 1, SIZE_MAX); /* and pieces split off */
    space->freed_next = settle_from(pool, safe, space->freed_next, CHECKS_AT_ONCE);
    if (space->freed_next >= space->freed_count)
        space->freed_next = 0;
}

/* Keeps space aside until no reader needs it. */
static void give(struct lmcs_pool *pool, struct lmcs_live_freed freed)
{
    struct lmcs_live_space *space = &pool->live->space;
    if (freed.range.bytes == 0 || atomic_load(&pool->live->is_broken) ||
        !lmcs_grow(&space->freed, &space->freed_capacity, space->freed_count, sizeof *space->freed))
        return; /* the next open finds it */
    space->freed[space->freed_count++] = freed;
    settle_freed(pool, false);
}

enum lmcs_status lmcs_live_back(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    if (bytes == 0)
        return LMCS_OK;
    enum lmcs_status status = back(pool, offset, bytes, error);
    if (status != LMCS_FULL || pool->live->space.freed_count == 0)
        return status;
    settle_freed(pool, true);
    return back(pool, offset, bytes, error);
}

void lmcs_live_give(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, uint64_t backed)
{
    give(pool, (struct lmcs_live_freed){{offset, bytes}, backed, pool->epoch, false});
}

void lmcs_live_give_cell(struct lmcs_pool *pool, uint64_t offset, uint32_t bytes)
{
    give(pool, (struct lmcs_live_freed){{offset, bytes}, 0, pool->epoch, true});
}

static const struct lmcs_part_df *part_at(const struct lmcs_live_record *record, uint64_t offset)
{
    for (size_t i = 0; record != NULL && i < record->df.part_count; i++)
        if (record->parts[i].offset == offset)
            return &record->parts[i];
    return NULL;
}

static uint64_t backed_in(uint64_t bytes, uint64_t before, uint64_t part_bytes)
{
    uint64_t backed = lmcs_page_up(bytes);
    backed = backed > before ? backed - before : 0;
    return backed < part_bytes ? backed : part_bytes;
}

void lmcs_live_give_difference(struct lmcs_pool *pool, const struct lmcs_live_record *from,
                               const struct lmcs_live_record *keep)
{
    uint64_t before = 0;
    if (from == NULL)
        return;
    if (keep == NULL || keep->df.cell != from->df.cell)
        lmcs_live_give_cell(pool, from->df.cell, from->df.cell_bytes);
    for (size_t i = 0; i < from->df.part_count; before += from->parts[i++].bytes) {
        const struct lmcs_part_df *part = &from->parts[i], *kept = part_at(keep, part->offset);
        uint64_t backed = backed_in(from->df.bytes, before, part->bytes), kept_bytes = kept != NULL ? kept->bytes : 0;
        uint64_t kept_backed = kept != NULL ? backed_in(keep->df.bytes, before, kept->bytes) : 0;
        uint64_t end = backed < kept_bytes ? backed : kept_bytes;
        if (kept_backed < end)
            lmcs_live_unback(pool, part->offset + kept_backed, end - kept_backed);
        if (kept_bytes < part->bytes)
            lmcs_live_give(pool, part->offset + kept_bytes, part->bytes - kept_bytes,
                           backed > kept_bytes ? backed - kept_bytes : 0);
    }
}

static uint64_t object_bytes(const struct lmcs_pool *pool, uint64_t bytes)
{
    uint64_t wanted = pool->live->space.object_bytes / 4;
    wanted = wanted < LEAST_OBJECT ? LEAST_OBJECT : wanted > MOST_OBJECT ? MOST_OBJECT : wanted;
    wanted -= 16;
    return wanted < bytes + 2 * (uint64_t)LMCS_PAGE_BYTES ? bytes + 2 * (uint64_t)LMCS_PAGE_BYTES : wanted;
}

/* Allocates an object and enters it in the tree, in a transaction of its own. */
static enum lmcs_status add_object(struct lmcs_pool *pool, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_live_space *space = &pool->live->space;
    struct lmcs_txn txn;
    uint64_t offset = 0, got = 0;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    txn.only_allocates = true;
    status = lmcs_txn_reserve(&txn, object_bytes(pool, bytes), &offset, &got, error);
    struct lmcs_object_df df = {.kind = LMCS_OBJECT_LIVE, .bytes = got, .first = lmcs_page_up(offset)};
    df.cursor = df.backed = df.first;
    if (status == LMCS_OK)
        status = lmcs_root_put(&txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){offset, 0}, &df, sizeof df, error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    status = lmcs_txn_commit(&txn, error);
    if (status != LMCS_OK)
        return status;
    uint64_t end = (offset + got) & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
    punch(pool, df.first, end - df.first); /* an earlier object may have left bytes */
    space->object_bytes += got;
    return lmcs_ranges_add(&space->pages, df.first, end - df.first) ? LMCS_OK : lmcs_fail_memory(error);
}

enum lmcs_status lmcs_live_take(struct lmcs_pool *pool, uint64_t bytes, uint64_t *offset, struct lmcs_error *error)
{
    settle_freed(pool, false);
    if (lmcs_ranges_take_best(&pool->live->space.pages, bytes, offset))
        return LMCS_OK;
    settle_freed(pool, true);
    if (lmcs_ranges_take_best(&pool->live->space.pages, bytes, offset))
        return LMCS_OK;
    enum lmcs_status status = add_object(pool, bytes, error);
    if (status == LMCS_OK && !lmcs_ranges_take_best(&pool->live->space.pages, bytes, offset))
        status = lmcs_fail_memory(error);
    return status;
}

bool lmcs_live_take_at(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes)
{
    return lmcs_ranges_take(&pool->live->space.pages, offset, bytes);
}

enum lmcs_status lmcs_live_take_cell(struct lmcs_pool *pool, uint32_t bytes, uint64_t *offset, struct lmcs_error *error)
{
    struct lmcs_live_space *space = &pool->live->space;
    settle_freed(pool, false);
    if (lmcs_ranges_take_best(&space->cells, bytes, offset))
        return LMCS_OK;
    uint64_t pages = lmcs_page_up(bytes), at;
    enum lmcs_status status = lmcs_live_take(pool, pages, &at, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_back(pool, at, pages, error);
    if (status != LMCS_OK) {
        lmcs_ranges_add(&space->pages, at, pages);
        return status;
    }
    if (pages > bytes)
        lmcs_ranges_add(&space->cells, at + bytes, pages - bytes);
    *offset = at;
    return LMCS_OK;
}

static enum lmcs_status fail_place(struct lmcs_pool *pool, const char *what, uint64_t offset, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0,
                     "%s: damaged metadata: %s at offset %llu overlaps another object or is outside of live objects",
                     pool->path, what, (unsigned long long)offset);
}

bool lmcs_live_space_has(const struct lmcs_pool *pool, uint64_t offset, uint64_t bytes)
{
    return lmcs_ranges_find(&pool->live->space.pages, offset, bytes) != NULL;
}

static enum lmcs_status note_object(struct lmcs_txn *txn, uint64_t offset, const struct lmcs_object_df *df,
                                    struct lmcs_error *error)
{
    struct lmcs_pool *pool = txn->pool;
    struct lmcs_live_space *space = &pool->live->space;
    uint64_t end = (offset + df->bytes) & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
    if (df->kind != LMCS_OBJECT_LIVE)
        return LMCS_OK;
    space->object_bytes += df->bytes;
    if (df->first < offset) /* lmcs_live_store_check runs before lmcs_space_load */
        return fail_place(pool, "the first byte of an object", offset, error);
    /* No payload may be in free space, which is punched. */
    enum lmcs_status status = lmcs_space_check_none(txn, offset, offset + df->bytes, error);
    if (status != LMCS_OK)
        return status;
    return df->first >= end || lmcs_ranges_add(&space->pages, df->first, end - df->first) ? LMCS_OK
                                                                                          : lmcs_fail_memory(error);
}

enum lmcs_status lmcs_live_space_begin(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_open(&cursor, &txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        struct lmcs_object_df df; /* checked by lmcs_space_load */
        memcpy(&df, lmcs_cursor_value(cursor, NULL), sizeof df);
        status = note_object(&txn, lmcs_cursor_key(cursor).high, &df, error);
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_live_space_use_pages(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, uint64_t backed,
                                           struct lmcs_error *error)
{
    if (!lmcs_ranges_take(&pool->live->space.pages, offset, bytes))
        return fail_place(pool, "a live tensor or journal", offset, error);
    if (pool->heap != NULL) /* else only a check */
        lmcs_space_count(pool, (int64_t)backed);
    return LMCS_OK;
}

/* Removes a cell from free space; its first cell makes a page one of cells. */
static enum lmcs_status use_cell(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_live_space *space = &pool->live->space;
    uint64_t end = lmcs_page_up(offset + bytes);
    for (uint64_t page = offset & ~(uint64_t)(LMCS_PAGE_BYTES - 1); page < end; page += LMCS_PAGE_BYTES)
        if (lmcs_ranges_take(&space->pages, page, LMCS_PAGE_BYTES)) {
            if (pool->heap != NULL)
                lmcs_space_count(pool, LMCS_PAGE_BYTES);
            if (!lmcs_ranges_add(&space->cells, page, LMCS_PAGE_BYTES))
                return lmcs_fail_memory(error);
        }
    return lmcs_ranges_take(&space->cells, offset, bytes)
               ? LMCS_OK
               : fail_place(pool, "a cell of a live variable", offset, error);
}

enum lmcs_status lmcs_live_space_use(struct lmcs_pool *pool, const struct lmcs_live_record *record,
                                     struct lmcs_error *error)
{
    uint64_t before = 0;
    enum lmcs_status status = use_cell(pool, record->df.cell, record->df.cell_bytes, error);
    for (size_t i = 0; status == LMCS_OK && i < record->df.part_count; before += record->parts[i++].bytes) {
        const struct lmcs_part_df *part = &record->parts[i];
        uint64_t backed = backed_in(record->df.bytes, before, part->bytes);
        status = lmcs_live_space_use_pages(pool, part->offset, part->bytes, backed, error);
        if (status == LMCS_OK && pool->heap != NULL) /* a crash may have left bytes where growth expects zeros */
            punch(pool, part->offset + backed, part->bytes - backed);
    }
    if (status == LMCS_DAMAGED)
        lmcs_error_prefix(error, "live variable \"%.200s\": ", record->name);
    return status;
}

static enum lmcs_status free_later(struct lmcs_pool *pool, struct lmcs_ranges *ranges, bool are_cells,
                                   struct lmcs_error *error)
{
    struct lmcs_live_space *space = &pool->live->space;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < ranges->count; i++) {
        struct lmcs_range range = ranges->all[i];
        if (!are_cells)
            lmcs_space_count(pool, (int64_t)range.bytes); /* the punch subtracts it */
        if (!lmcs_grow(&space->freed, &space->freed_capacity, space->freed_count, sizeof *space->freed))
            status = lmcs_fail_memory(error);
        else
            space->freed[space->freed_count++] =
                (struct lmcs_live_freed){range, are_cells ? 0 : range.bytes, pool->epoch, are_cells};
    }
    free(ranges->all);
    *ranges = (struct lmcs_ranges){0};
    return status;
}

/* Punches bytes that a crash left in free pages; keeps aside pages that readers of an earlier writer may need. */
enum lmcs_status lmcs_live_space_end(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_live_space *space = &pool->live->space;
    enum lmcs_status status = free_later(pool, &space->pages, false, error);
    if (status == LMCS_OK)
        status = free_later(pool, &space->cells, true, error);
    if (status == LMCS_OK)
        settle_freed(pool, true);
    return status;
}

void lmcs_live_space_free(struct lmcs_live_space *space)
{
    free(space->pages.all);
    free(space->cells.all);
    free(space->old.all);
    free(space->freed);
    *space = (struct lmcs_live_space){.object_bytes = 0};
}
