/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/check_space.c - the structure check: objects, free pages, payloads and live variables.
 *
 * Each byte of an extent has at most one owner. Each object has as many live and retired bytes as its record says.
 */
#include "base/order.h"
#include "repair/checking.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "live/cell.h"
#include "live/record.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/origin.h"
#include "records/ring.h"
#include "records/safety.h"
#include "records/shelf.h"

static enum lmcs_status add_object(struct lmcs_checking *c, uint64_t offset, const void *value, size_t bytes)
{
    struct lmcs_checked_object object = {.offset = offset};
    enum lmcs_status status = lmcs_object_read(c->pool, offset, value, bytes, &object.df, c->error);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_object_df *df = &object.df;
    uint64_t end = lmcs_media_bytes(c->pool->media);
    bool slab = df->kind == LMCS_OBJECT_SLAB;
    bool extent = df->kind == LMCS_OBJECT_EXTENT;
    if (df->kind < LMCS_OBJECT_SLAB || df->kind > LMCS_OBJECT_RING || offset >= end || df->bytes > end - offset ||
        df->bytes == 0 || df->first < offset || df->first % LMCS_PAGE_BYTES != 0 || df->first - offset > df->bytes)
        return lmcs_check_fail_record(c, "the object at offset", offset);
    if (extent && (df->cursor < df->first || df->cursor - offset > df->bytes || df->backed < df->first))
        return lmcs_check_fail_record(c, "the object at offset", offset);
    const struct lmcs_checked_object *before = c->object_count > 0 ? &c->objects[c->object_count - 1] : NULL;
    if (before != NULL && offset - before->offset < before->df.bytes)
        REPORT(c, "the objects at offsets %llu and %llu overlap", ULL(before->offset), ULL(offset));
    if (slab) {
        object.page_count = (offset + df->bytes - df->first) / LMCS_PAGE_BYTES;
        object.pages = calloc(object.page_count + 1, 1);
        c->slab_bytes += df->bytes;
    }
    if ((slab && object.pages == NULL) ||
        !lmcs_grow(&c->objects, &c->object_capacity, c->object_count, sizeof object)) {
        free(object.pages);
        return lmcs_fail_memory(c->error);
    }
    c->objects[c->object_count++] = object;
    return LMCS_OK;
}

enum lmcs_status lmcs_check_load_objects(struct lmcs_checking *c)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_root_open(&cursor, &c->txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){0, 0}, c->error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        status = lmcs_check_absorb(c, add_object(c, lmcs_cursor_key(cursor).high, value, bytes), "", 0);
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, c->error);
    }
    lmcs_cursor_free(cursor);
    return lmcs_check_absorb(c, status, "", 0);
}

enum lmcs_status lmcs_check_no_value(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    (void)c;
    (void)key;
    (void)value;
    (void)bytes;
    return LMCS_OK;
}

enum lmcs_status lmcs_check_free_page(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    uint64_t pages;
    if (bytes != sizeof pages)
        return lmcs_check_fail_record(c, "free pages at offset", key.low);
    memcpy(&pages, value, sizeof pages);
    if (pages == 0 || pages > LMCS_FREE_RANGE_MOST)
        return lmcs_check_fail_record(c, "free pages at offset", key.low);
    if (key.high > c->txn.root.epoch)
        REPORT(c, "the page at offset %llu is free since a commit that has not happened", ULL(key.low));
    for (uint64_t i = 0; i < pages && lmcs_check_use_page(c, key.low + i * LMCS_PAGE_BYTES, LMCS_PAGE_FREE); i++)
        continue;
    c->free_pages += pages;
    return LMCS_OK;
}

void lmcs_check_leaks(struct lmcs_checking *c)
{
    uint64_t leaks = 0, one = 0;
    for (size_t i = 0; i < c->object_count; i++)
        for (size_t p = 0; p < c->objects[i].page_count; p++)
            if (c->objects[i].pages[p] == LMCS_PAGE_UNKNOWN) {
                leaks++;
                one = c->objects[i].df.first + p * LMCS_PAGE_BYTES;
            }
    if (leaks > 0)
        REPORT(c, "%llu metadata pages are lost: neither in use nor free (one at offset %llu)", ULL(leaks), ULL(one));
}

/* The last annotation may be one that a killed process left unfinished; one before another is damaged. */
static enum lmcs_status check_annotations(struct lmcs_checking *c)
{
    const uint64_t applied = c->txn.root.ring_applied;
    struct lmcs_annotation *list, annotation;
    size_t count;
    bool is_old, is_sound;
    enum lmcs_status status = lmcs_ring_load(&c->txn, &list, &count, &is_old, c->error);
    free(list);
    for (uint64_t s = applied + count + 2; status == LMCS_OK && !is_old && s <= applied + LMCS_RING_SLOTS; s++) {
        status = lmcs_ring_read(&c->txn, s, &annotation, &is_sound, c->error);
        if (status == LMCS_OK && is_sound && annotation.df.sequence == s) {
            REPORT(c, "annotation %llu in the ring cannot be read, nor those after it", ULL(applied + count + 1));
            break;
        }
    }
    return status;
}

enum lmcs_status lmcs_check_ring(struct lmcs_checking *c)
{
    for (size_t i = 0; i < c->object_count; i++)
        if (c->objects[i].df.kind == LMCS_OBJECT_RING && c->objects[i].offset != c->txn.root.ring)
            REPORT(c, "the object at offset %llu is a ring of annotations that the root does not name",
                   ULL(c->objects[i].offset));
    if (c->txn.root.ring == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_ring_check(&c->txn, c->error);
    if (status == LMCS_OK)
        status = check_annotations(c);
    return lmcs_check_absorb(c, status, "", 0);
}

static enum lmcs_status visit_retired(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_checked_range range = {.offset = key.low};
    if (bytes != sizeof range.bytes)
        return lmcs_check_fail_record(c, "the retired range at offset", key.low);
    memcpy(&range.bytes, value, sizeof range.bytes);
    struct lmcs_checked_object *extent = lmcs_check_find_object(c, range.offset);
    if (key.high > c->txn.root.epoch || extent == NULL || extent->df.kind != LMCS_OBJECT_EXTENT ||
        range.offset < extent->df.first || range.bytes == 0 || range.bytes > extent->df.bytes ||
        (range.offset | range.bytes) % LMCS_PACK_ALIGN != 0)
        return lmcs_check_fail_record(c, "the retired range at offset", key.low);
    extent->retired_bytes += range.bytes;
    if (!lmcs_grow(&c->retired, &c->retired_capacity, c->retired_count, sizeof range))
        return lmcs_fail_memory(c->error);
    c->retired[c->retired_count++] = range;
    return LMCS_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct lmcs_checked_range *x = a, *y = b;
    return LMCS_ORDER(x->offset, y->offset);
}

/* Checks the next range in order of offsets: it must not overlap the one before, and be in an extent. */
static void place_range(struct lmcs_checking *c, struct lmcs_checked_range range, const char *kind)
{
    if (range.offset < c->space_end)
        REPORT(c, "the %s payload at offset %llu overlaps another", kind, ULL(range.offset));
    if (range.offset + range.bytes > c->space_end)
        c->space_end = range.offset + range.bytes;
    const struct lmcs_checked_object *extent = lmcs_check_find_object(c, range.offset);
    if (extent == NULL || extent->df.kind != LMCS_OBJECT_EXTENT || range.offset < extent->df.first ||
        range.offset > extent->df.cursor || range.bytes > extent->df.cursor - range.offset)
        REPORT(c, "the %s payload at offset %llu is not in an extent", kind, ULL(range.offset));
    else if (range.offset + range.bytes > extent->df.backed)
        REPORT(c, "the %s payload at offset %llu has no allocated file space", kind, ULL(range.offset));
}

/* Checks the retired ranges before `up_to`. */
static void place_retired(struct lmcs_checking *c, uint64_t up_to)
{
    for (; c->retired_next < c->retired_count && c->retired[c->retired_next].offset < up_to; c->retired_next++)
        place_range(c, c->retired[c->retired_next], "retired");
}

static enum lmcs_status visit_space(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_space_df df;
    if (bytes != sizeof df)
        return lmcs_check_fail_record(c, "the payload at offset", key.high);
    memcpy(&df, value, sizeof df);
    place_retired(c, key.high);
    place_range(c, (struct lmcs_checked_range){key.high, df.bytes}, "live");
    struct lmcs_checked_object *extent = lmcs_check_find_object(c, key.high);
    if (extent != NULL)
        extent->live_bytes += df.bytes;
    c->live_bytes += df.bytes;
    return LMCS_OK;
}

enum lmcs_status lmcs_check_space(struct lmcs_checking *c)
{
    enum lmcs_status status = lmcs_check_root_tree(c, LMCS_TREE_RETIRED, visit_retired);
    if (status == LMCS_OK && c->retired_count > 0)
        qsort(c->retired, c->retired_count, sizeof *c->retired, by_offset);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_SPACE, visit_space);
    place_retired(c, UINT64_MAX);
    lmcs_check_total(c, "bytes of live payloads", c->live_bytes, c->txn.root.live_bytes);
    lmcs_check_total(c, "bytes of slabs", c->slab_bytes, c->txn.root.slab_bytes);
    for (size_t i = 0; i < c->object_count && !c->incomplete; i++) {
        const struct lmcs_checked_object *o = &c->objects[i];
        if (o->live_bytes != o->df.live_bytes || o->retired_bytes != o->df.retired_bytes)
            REPORT(c, "the extent at offset %llu has %llu bytes live and %llu retired, but %llu and %llu are recorded",
                   ULL(o->offset), ULL(o->live_bytes), ULL(o->retired_bytes), ULL(o->df.live_bytes),
                   ULL(o->df.retired_bytes));
    }
    return status;
}

static enum lmcs_status add_live_range(struct lmcs_checking *c, uint64_t offset, uint64_t bytes)
{
    if (!lmcs_grow(&c->live, &c->live_capacity, c->live_count, sizeof *c->live))
        return lmcs_fail_memory(c->error);
    c->live[c->live_count++] = (struct lmcs_checked_range){offset, bytes};
    return LMCS_OK;
}

static enum lmcs_status check_live_name(struct lmcs_checking *c, const struct lmcs_live_record *record)
{
    struct lmcs_key_df key = {lmc_hash64(record->name, strlen(record->name), record->shelf), record->id};
    char nothing;
    bool found;
    enum lmcs_status status = lmcs_check_root_has(c, LMCS_TREE_LIVE_NAMES, key, &nothing, 0, &found);
    if (status == LMCS_OK && !c->incomplete && (!found || record->id >= c->txn.root.next_live))
        REPORT(c, "live variable \"%.200s\" is not in the index of names", record->name);
    return status;
}

static enum lmcs_status check_live(struct lmcs_checking *c, const struct lmcs_live_record *record)
{
    struct lmcs_shelf shelf;
    struct lmcs_cell_state state;
    bool found;
    enum lmcs_status status = lmcs_shelf_load_if(&c->txn, record->shelf, &shelf, &found, c->error);
    if (status != LMCS_OK)
        return status;
    if (!found)
        REPORT(c, "live variable \"%.200s\" is on a shelf that does not exist", record->name);
    status = lmcs_cell_read(c->pool, record, NULL, &state, c->error);
    if (status == LMCS_DAMAGED) {
        lmcs_check_report(c, found ? shelf.name : "", 0, record->name, "%s", c->error->message);
        status = LMCS_OK;
    }
    if (status == LMCS_OK)
        status = add_live_range(c, record->df.cell, record->df.cell_bytes);
    for (size_t i = 0; status == LMCS_OK && i < record->df.part_count; i++)
        status = add_live_range(c, record->parts[i].offset, record->parts[i].bytes);
    return status == LMCS_OK ? check_live_name(c, record) : status;
}

static enum lmcs_status visit_live(struct lmcs_checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_live_record *record;
    enum lmcs_status status = lmcs_live_record_read(c->pool, key, value, bytes, &record, c->error);
    if (status != LMCS_OK)
        return status;
    status = check_live(c, record);
    free(record);
    return status;
}

static enum lmcs_status check_live_space(struct lmcs_checking *c)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < LMCS_JOURNALS; i++)
        if (c->txn.root.journals[i].end != 0)
            status = add_live_range(c, c->txn.root.journals[i].next,
                                    c->txn.root.journals[i].end - c->txn.root.journals[i].next);
    if (c->live_count > 0)
        qsort(c->live, c->live_count, sizeof *c->live, by_offset);
    for (size_t i = 0; i < c->live_count; i++) {
        const struct lmcs_checked_range *range = &c->live[i];
        const struct lmcs_checked_object *object = lmcs_check_find_object(c, range->offset);
        if (i > 0 && range->offset - range[-1].offset < range[-1].bytes)
            REPORT(c, "the live variables or journals at offsets %llu and %llu overlap", ULL(range[-1].offset),
                   ULL(range->offset));
        if (!c->incomplete &&
            (object == NULL || object->df.kind != LMCS_OBJECT_LIVE || range->offset < object->df.first ||
             range->bytes > object->offset + object->df.bytes - range->offset))
            REPORT(c, "the live variable or journal at offset %llu is not in an object for live variables",
                   ULL(range->offset));
    }
    return status;
}

enum lmcs_status lmcs_check_live(struct lmcs_checking *c)
{
    enum lmcs_status status = lmcs_check_root_tree(c, LMCS_TREE_LIVE, visit_live);
    if (status == LMCS_OK)
        status = lmcs_check_root_tree(c, LMCS_TREE_LIVE_NAMES, lmcs_check_no_value);
    lmcs_check_total(c, "names of live variables", c->txn.root.trees[LMCS_TREE_LIVE_NAMES].count,
                     c->txn.root.trees[LMCS_TREE_LIVE].count);
    return status == LMCS_OK ? check_live_space(c) : status;
}
