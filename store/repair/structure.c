/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/structure.c - is the metadata what it should be?
 *
 * All trees of one root are walked, page by page, read from the media and not from the cache. What the records say of
 * one another is compared: every reference has its target, every count its number of things, every byte of an extent
 * at most one owner, and every page of a slab exactly one use; a page that is neither reached nor free is a leak. The
 * root is held by a lease, so a writer goes on meanwhile, in this process or another.
 *
 * Manifests share pages, which are looked at once: what is below a page is summed up and remembered. A *run* (a name
 * that keeps a content over a stretch of snapshots) is counted at the first snapshot that has it, which the rules of
 * manifest.c tell: its birth is later than the older neighbour. When a page can't be read, what hangs on it is not
 * known, so totals are then not compared: one damaged page must not look like a thousand damages.
 */
#include "repair/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "live/live.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/origin.h"
#include "records/safety.h"
#include "records/shelf.h"

struct object {
    uint64_t offset;
    struct lmcs_object_df df;
    uint64_t live_bytes; /* as found */
    uint64_t retired_bytes;
    unsigned char *pages; /* of a slab: what each page is used for */
    size_t page_count;
};
enum page_use { PAGE_UNKNOWN, PAGE_REACHED, PAGE_FREE, PAGE_NEVER_USED };

struct known_identity {
    uint64_t id;
    uint64_t raw_bytes;
    uint64_t uses; /* contents and runs under it */
    bool is_tensor;
};

struct range {
    uint64_t offset;
    uint64_t bytes;
};

/* What is below a page of a manifest. */
struct summary {
    uint64_t offset; /* of the page; 0: an empty place of the table */
    uint64_t check;
    uint64_t shelf;
    uint64_t epoch;
    uint64_t low; /* identities */
    uint64_t high;
    uint64_t entries;
    uint64_t tensors;
    uint64_t raw_bytes;
    uint8_t level;
};

struct checking {
    struct lmcs_pool *pool;
    struct lmcs_txn txn;
    lmcs_damage_fn visit;
    void *context;
    struct lmcs_structure *out;
    bool lost;              /* something could not be read: totals mean nothing */
    bool repairs;           /* pages that another replica has are written again */
    struct object *objects; /* by offset */
    size_t object_count;
    size_t object_capacity;
    struct range *retired; /* by offset, once sorted */
    size_t retired_count;
    size_t retired_capacity;
    size_t retired_next;
    struct known_identity *identities; /* by id */
    size_t identity_count;
    size_t identity_capacity;
    size_t content_capacity;
    struct summary *summaries; /* open addressing; power of two */
    size_t summary_count;
    size_t summary_capacity;
    uint64_t snapshot_count; /* of visible shelves */
    uint64_t prepared_count;
    uint64_t free_pages;
    uint64_t live_bytes;
    uint64_t slab_bytes;
    uint64_t part_count;
    uint64_t base_count;
    uint64_t idle_count; /* contents without runs */
    uint64_t lost_count; /* contents of which something is lost */
    uint64_t last_lost;
    uint64_t parity_bytes;
    bool staging;       /* a restore is at work, or left over */
    uint64_t space_end; /* of the part before */
    struct range *live; /* where live variables and journals lie */
    size_t live_count;
    size_t live_capacity;
    /* what was asked for */
    bool want_all;
    uint64_t want_shelf;  /* id; 0: all */
    uint64_t want_number; /* 0: all of the shelf */
    /* the shelf under way */
    struct lmcs_shelf *shelf;
    uint32_t shelf_index;
    uint64_t committed;
    uint64_t stepped;
    uint64_t highest;
    uint64_t latest;
    struct lmcs_error *error;
};

/* ---- Damage ---- */

static void say(struct checking *c, const char *shelf, uint64_t number, const char *tensor, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static void say(struct checking *c, const char *shelf, uint64_t number, const char *tensor, const char *format, ...)
{
    char what[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    struct lmcs_damage damage = {.what = what, .shelf = shelf, .number = number, .tensor = tensor};
    c->out->damages++;
    if (c->visit != NULL)
        c->visit(c->context, &damage);
}

#define SAY(c, ...)       say(c, "", 0, "", __VA_ARGS__)
#define SAY_SHELF(c, ...) say(c, (c)->shelf->name, 0, "", __VA_ARGS__)
#define ULL(n)            ((unsigned long long)(n))

/* Damage that a function of ours has found is told, and checking goes on; other failures end it. */
static enum lmcs_status absorb(struct checking *c, enum lmcs_status status, const char *shelf, uint64_t number)
{
    if (status != LMCS_DAMAGED)
        return status;
    char what[1024];
    snprintf(what, sizeof what, "%s", c->error->message);
    say(c, shelf, number, "", "%s", what);
    c->lost = true;
    return LMCS_OK;
}

static void compare_total(struct checking *c, const char *what, uint64_t found, uint64_t said)
{
    if (!c->lost && found != said)
        SAY(c, "there are %llu %s, but %llu are recorded", ULL(found), what, ULL(said));
}

/* Index of the last of `count` items of `size` bytes, each beginning with a u64, that is not greater than `key`. */
static size_t find_last(const void *items, size_t count, size_t size, uint64_t key)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        uint64_t here;
        memcpy(&here, (const char *)items + middle * size, sizeof here);
        if (here <= key)
            low = middle + 1;
        else
            high = middle;
    }
    return low == 0 ? SIZE_MAX : low - 1;
}

static struct known_identity *find_identity(struct checking *c, uint64_t id)
{
    size_t i = find_last(c->identities, c->identity_count, sizeof *c->identities, id);
    return i != SIZE_MAX && c->identities[i].id == id ? &c->identities[i] : NULL;
}

static struct lmcs_known_content *find_content(struct checking *c, uint64_t id)
{
    struct lmcs_known_content *contents = c->out->contents;
    size_t i = find_last(contents, c->out->content_count, sizeof *contents, id);
    return i != SIZE_MAX && contents[i].id == id ? &contents[i] : NULL;
}

static struct object *find_object(struct checking *c, uint64_t offset)
{
    size_t i = find_last(c->objects, c->object_count, sizeof *c->objects, offset);
    return i != SIZE_MAX && offset - c->objects[i].offset < c->objects[i].df.bytes ? &c->objects[i] : NULL;
}

/* ---- Pages ---- */

/* Notes what a page is used for. False when it can't be that, which has been told: it is not to be read. */
static bool use_page(struct checking *c, uint64_t offset, enum page_use use)
{
    static const char *const names[] = {"unknown", "in use", "free", "never used"};
    struct object *slab = find_object(c, offset);
    if (slab == NULL || slab->df.kind != LMCS_OBJECT_SLAB || offset % LMCS_PAGE_BYTES != 0 || offset < slab->df.first ||
        (offset - slab->df.first) / LMCS_PAGE_BYTES >= slab->page_count) {
        if (!c->lost) /* else its slab may just not be known */
            SAY(c, "the page at offset %llu is %s, but lies in no slab", ULL(offset), names[use]);
        c->lost = true;
        return false;
    }
    unsigned char *now = &slab->pages[(offset - slab->df.first) / LMCS_PAGE_BYTES];
    if (*now != PAGE_UNKNOWN) {
        SAY(c, "the page at offset %llu is %s and also %s", ULL(offset), names[*now], names[use]);
        c->lost = true;
        return false;
    }
    *now = (unsigned char)use;
    return true;
}

/*
 * Writes a page again that another replica has. In place: its place is what refers to it, and no other bytes have the
 * checksum that stands there, so whatever of this a crash leaves is no worse than what was.
 */
static bool repair_page(struct checking *c, struct lmcs_ref_df ref, void *buffer)
{
    struct lmcs_error ignored;
    if (!c->repairs || !lmcs_page_from_replica(c->pool, &ref, buffer) ||
        lmcs_heap_write(c->pool->heap, ref.offset, buffer, LMCS_PAGE_BYTES, &ignored) != LMCS_OK)
        return false;
    lmcs_heap_drain(c->pool->heap);
    if (lmcs_heap_sync(c->pool->heap, &ignored) != LMCS_OK)
        return false;
    c->out->repaired_pages++;
    return true;
}

/*
 * Reads a page, of a manifest of snapshot `number` or of none (0), from the media itself. *node is NULL when it is
 * damaged, which has been told.
 */
static enum lmcs_status read_page(struct checking *c, uint8_t kind, struct lmcs_ref_df ref, uint64_t number, int level,
                                  void *buffer, const struct lmcs_node_df **node)
{
    *node = NULL;
    enum lmcs_status status = lmcs_media_read(c->pool->media, ref.offset, buffer, LMCS_PAGE_BYTES, c->error);
    bool whole = status == LMCS_OK && lmcs_page_is_whole(buffer, &ref);
    if (!whole && repair_page(c, ref, buffer)) {
        status = LMCS_OK;
        whole = true;
    }
    if (status == LMCS_OK && !whole)
        status = lmcs_fail(c->error, LMCS_DAMAGED, 0,
                           "the metadata page at offset %llu is damaged (its checksum is wrong)", ULL(ref.offset));
    const struct lmcs_node_df *found = NULL;
    if (status == LMCS_OK)
        status = lmcs_page_read(&c->txn, &ref, kind, buffer, &found, c->error);
    if (status == LMCS_OK && level >= 0 && found->level != level)
        status = lmcs_fail(c->error, LMCS_DAMAGED, 0,
                           "the metadata page at offset %llu is damaged (its level is wrong)", ULL(ref.offset));
    if (status == LMCS_OK)
        *node = found;
    return absorb(c, status, c->shelf != NULL ? c->shelf->name : "", number);
}

/* ---- Trees, but for manifests ---- */

typedef enum lmcs_status (*entry_fn)(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes);

struct tree_walk {
    struct checking *c;
    uint8_t kind;
    entry_fn visit;
    uint64_t entries;
    bool has_last;
    struct lmcs_key_df last;
};

static enum lmcs_status walk_leaf(struct tree_walk *walk, const struct lmcs_node_df *node,
                                  const struct lmcs_bounds *bounds)
{
    struct checking *c = walk->c;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < node->count; i++) {
        struct lmcs_key_df key = lmcs_node_key(node, i);
        if (!lmcs_in_bounds(bounds, key) || (walk->has_last && lmcs_key_compare(key, walk->last) <= 0))
            SAY(c, "the metadata page at offset %llu has a key out of order", ULL(node->self));
        walk->last = key;
        walk->has_last = true;
        walk->entries++;
        status = absorb(c, walk->visit(c, key, lmcs_node_value(node, i), node->slots[i].value_bytes),
                        c->shelf != NULL ? c->shelf->name : "", 0);
    }
    return status;
}

static enum lmcs_status walk_page(struct tree_walk *walk, struct lmcs_ref_df ref, int level,
                                  const struct lmcs_bounds *bounds)
{
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *node;
    struct checking *c = walk->c;
    if (!use_page(c, ref.offset, PAGE_REACHED))
        return LMCS_OK;
    enum lmcs_status status = read_page(c, walk->kind, ref, 0, level, buffer, &node);
    if (status != LMCS_OK || node == NULL)
        return status;
    if (node->epoch > c->txn.root.epoch)
        SAY(c, "the metadata page at offset %llu comes from a later commit than the newest", ULL(ref.offset));
    if (node->level == 0)
        return walk_leaf(walk, node, bounds);
    if (!lmcs_node_in_bounds(node, bounds))
        SAY(c, "the metadata page at offset %llu has a key out of order", ULL(ref.offset));
    for (size_t i = 0; status == LMCS_OK && i < node->count; i++) {
        struct lmcs_bounds inner = lmcs_child_bounds(node, i, bounds);
        status = walk_page(walk, lmcs_node_child(node, i), node->level - 1, &inner);
    }
    return status;
}

static enum lmcs_status walk_tree(struct checking *c, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                  entry_fn visit)
{
    struct tree_walk walk = {.c = c, .kind = kind, .visit = visit};
    struct lmcs_bounds bounds = {{0, 0}, {0, 0}, false};
    bool tail = tree->tail.offset != 0;
    if (tail) {
        bounds.high = tree->tail_from;
        bounds.has_high = true;
    }
    enum lmcs_status status = tree->ref.offset == 0 ? LMCS_OK : walk_page(&walk, tree->ref, -1, &bounds);
    if (status == LMCS_OK && tail) {
        bounds = (struct lmcs_bounds){.low = tree->tail_from};
        status = walk_page(&walk, tree->tail, 0, &bounds);
    }
    if (status == LMCS_OK && !c->lost && walk.entries != tree->count)
        SAY(c, "tree %u has %llu entries, but %llu are recorded", kind, ULL(walk.entries), ULL(tree->count));
    return status;
}

static enum lmcs_status walk_root_tree(struct checking *c, uint8_t kind, entry_fn visit)
{
    return walk_tree(c, kind, &c->txn.root.trees[kind], visit);
}

static enum lmcs_status fail_record(struct checking *c, const char *what, uint64_t key)
{
    return lmcs_fail(c->error, LMCS_DAMAGED, 0, "damaged metadata: the record of %s %llu", what, ULL(key));
}

/* Whether a tree of the root has a key, with a value of `bytes` bytes. */
static enum lmcs_status has_key(struct checking *c, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                struct lmcs_key_df key, void *value, size_t bytes, bool *found)
{
    *found = false;
    enum lmcs_status status = lmcs_tree_get(&c->txn, kind, tree, key, value, bytes, bytes, NULL, found, c->error);
    if (status == LMCS_DAMAGED && c->lost) /* one damaged page is told once */
        return LMCS_OK;
    return absorb(c, status, c->shelf != NULL ? c->shelf->name : "", 0);
}

/* ---- Objects ---- */

static enum lmcs_status add_object(struct checking *c, uint64_t offset, const void *value, size_t bytes)
{
    struct object object = {.offset = offset};
    if (bytes != sizeof object.df)
        return fail_record(c, "the object at offset", offset);
    memcpy(&object.df, value, sizeof object.df);
    const struct lmcs_object_df *df = &object.df;
    uint64_t end = lmcs_media_bytes(c->pool->media);
    bool slab = df->kind == LMCS_OBJECT_SLAB;
    bool extent = df->kind == LMCS_OBJECT_EXTENT;
    if ((!slab && !extent && df->kind != LMCS_OBJECT_LIVE) || offset >= end || df->bytes > end - offset ||
        df->bytes == 0 || df->first < offset || df->first % LMCS_PAGE_BYTES != 0 || df->first - offset > df->bytes)
        return fail_record(c, "the object at offset", offset);
    if (extent && (df->cursor < df->first || df->cursor - offset > df->bytes || df->backed < df->first))
        return fail_record(c, "the object at offset", offset);
    const struct object *before = c->object_count > 0 ? &c->objects[c->object_count - 1] : NULL;
    if (before != NULL && offset - before->offset < before->df.bytes)
        SAY(c, "the objects at offsets %llu and %llu overlap", ULL(before->offset), ULL(offset));
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

/* The first look, before pages can be placed: by a cursor. */
static enum lmcs_status load_objects(struct checking *c)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_new(&cursor, c->error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_cursor_seek(cursor, &c->txn, LMCS_TREE_OBJECTS, &c->txn.root.trees[LMCS_TREE_OBJECTS],
                              (struct lmcs_key_df){0, 0}, c->error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        status = absorb(c, add_object(c, lmcs_cursor_key(cursor).high, value, bytes), "", 0);
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, c->error);
    }
    lmcs_cursor_free(cursor);
    return absorb(c, status, "", 0);
}

static enum lmcs_status visit_nothing(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    (void)c;
    (void)key;
    (void)value;
    (void)bytes;
    return LMCS_OK;
}

static enum lmcs_status visit_free_page(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    uint64_t pages;
    if (bytes != sizeof pages)
        return fail_record(c, "free pages at offset", key.low);
    memcpy(&pages, value, sizeof pages);
    if (pages == 0 || pages > LMCS_FREE_RANGE_MOST)
        return fail_record(c, "free pages at offset", key.low);
    if (key.high > c->txn.root.epoch)
        SAY(c, "the page at offset %llu is free since a commit that has not been", ULL(key.low));
    for (uint64_t i = 0; i < pages && use_page(c, key.low + i * LMCS_PAGE_BYTES, PAGE_FREE); i++)
        continue;
    c->free_pages += pages;
    return LMCS_OK;
}

static void check_leaks(struct checking *c)
{
    uint64_t leaks = 0, one = 0;
    for (size_t i = 0; i < c->object_count; i++)
        for (size_t p = 0; p < c->objects[i].page_count; p++)
            if (c->objects[i].pages[p] == PAGE_UNKNOWN) {
                leaks++;
                one = c->objects[i].df.first + p * LMCS_PAGE_BYTES;
            }
    if (leaks > 0)
        SAY(c, "%llu metadata pages are lost: neither in use nor free (one at offset %llu)", ULL(leaks), ULL(one));
}

/* ---- Space ---- */

static enum lmcs_status visit_retired(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct range range = {.offset = key.low};
    if (bytes != sizeof range.bytes)
        return fail_record(c, "the retired range at offset", key.low);
    memcpy(&range.bytes, value, sizeof range.bytes);
    struct object *extent = find_object(c, range.offset);
    if (key.high > c->txn.root.epoch || extent == NULL || extent->df.kind != LMCS_OBJECT_EXTENT ||
        range.offset < extent->df.first || range.bytes == 0 || range.bytes > extent->df.bytes ||
        (range.offset | range.bytes) % LMCS_PACK_ALIGN != 0)
        return fail_record(c, "the retired range at offset", key.low);
    extent->retired_bytes += range.bytes;
    if (!lmcs_grow(&c->retired, &c->retired_capacity, c->retired_count, sizeof range))
        return lmcs_fail_memory(c->error);
    c->retired[c->retired_count++] = range;
    return LMCS_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Payloads, live or retired, come in the order of their places: they must not overlap. */
static void place_range(struct checking *c, struct range range, const char *what)
{
    if (range.offset < c->space_end)
        SAY(c, "the %s payload at offset %llu overlaps another", what, ULL(range.offset));
    if (range.offset + range.bytes > c->space_end)
        c->space_end = range.offset + range.bytes;
    const struct object *extent = find_object(c, range.offset);
    if (extent == NULL || extent->df.kind != LMCS_OBJECT_EXTENT || range.offset < extent->df.first ||
        range.offset > extent->df.cursor || range.bytes > extent->df.cursor - range.offset)
        SAY(c, "the %s payload at offset %llu does not lie in an extent", what, ULL(range.offset));
    else if (range.offset + range.bytes > extent->df.backed)
        SAY(c, "the %s payload at offset %llu lies where no file space is allocated", what, ULL(range.offset));
}

static void place_retired(struct checking *c, uint64_t up_to)
{
    for (; c->retired_next < c->retired_count && c->retired[c->retired_next].offset < up_to; c->retired_next++)
        place_range(c, c->retired[c->retired_next], "retired");
}

static enum lmcs_status visit_space(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_space_df df;
    if (bytes != sizeof df)
        return fail_record(c, "the payload at offset", key.high);
    memcpy(&df, value, sizeof df);
    place_retired(c, key.high);
    place_range(c, (struct range){key.high, df.bytes}, "live");
    struct object *extent = find_object(c, key.high);
    if (extent != NULL)
        extent->live_bytes += df.bytes;
    c->live_bytes += df.bytes;
    return LMCS_OK;
}

static enum lmcs_status check_space(struct checking *c)
{
    enum lmcs_status status = walk_root_tree(c, LMCS_TREE_RETIRED, visit_retired);
    if (status == LMCS_OK && c->retired_count > 0)
        qsort(c->retired, c->retired_count, sizeof *c->retired, by_offset);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_SPACE, visit_space);
    place_retired(c, UINT64_MAX);
    compare_total(c, "bytes of live payloads", c->live_bytes, c->txn.root.live_bytes);
    compare_total(c, "bytes of slabs", c->slab_bytes, c->txn.root.slab_bytes);
    for (size_t i = 0; i < c->object_count && !c->lost; i++) {
        const struct object *o = &c->objects[i];
        if (o->live_bytes != o->df.live_bytes || o->retired_bytes != o->df.retired_bytes)
            SAY(c, "the extent at offset %llu has %llu bytes live and %llu retired, but %llu and %llu are recorded",
                ULL(o->offset), ULL(o->live_bytes), ULL(o->retired_bytes), ULL(o->df.live_bytes),
                ULL(o->df.retired_bytes));
    }
    return status;
}

/* ---- Live variables ---- */

static enum lmcs_status add_live_range(struct checking *c, uint64_t offset, uint64_t bytes)
{
    if (!lmcs_grow(&c->live, &c->live_capacity, c->live_count, sizeof *c->live))
        return lmcs_fail_memory(c->error);
    c->live[c->live_count++] = (struct range){offset, bytes};
    return LMCS_OK;
}

static enum lmcs_status check_live_name(struct checking *c, const struct lmcs_live_record *record)
{
    struct lmcs_key_df key = {lmc_hash64(record->name, strlen(record->name), record->shelf), record->id};
    char nothing;
    bool found;
    enum lmcs_status status =
        has_key(c, LMCS_TREE_LIVE_NAMES, &c->txn.root.trees[LMCS_TREE_LIVE_NAMES], key, &nothing, 0, &found);
    if (status == LMCS_OK && !c->lost && (!found || record->id >= c->txn.root.next_live))
        SAY(c, "live variable \"%.200s\" can't be found by its name", record->name);
    return status;
}

static enum lmcs_status check_live(struct checking *c, const struct lmcs_live_record *record)
{
    struct lmcs_shelf shelf;
    struct lmcs_cell_state state;
    bool found;
    enum lmcs_status status = lmcs_shelf_load_if(&c->txn, record->shelf, &shelf, &found, c->error);
    if (status != LMCS_OK)
        return status;
    if (!found)
        SAY(c, "live variable \"%.200s\" is on a shelf that is not there", record->name);
    status = lmcs_cell_read(c->pool, record, NULL, &state, c->error);
    if (status == LMCS_DAMAGED) {
        say(c, found ? shelf.name : "", 0, record->name, "%s", c->error->message);
        status = LMCS_OK;
    }
    if (status == LMCS_OK)
        status = add_live_range(c, record->df.cell, record->df.cell_bytes);
    for (size_t i = 0; status == LMCS_OK && i < record->df.part_count; i++)
        status = add_live_range(c, record->parts[i].offset, record->parts[i].bytes);
    return status == LMCS_OK ? check_live_name(c, record) : status;
}

static enum lmcs_status visit_live(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_live_record *record;
    enum lmcs_status status = lmcs_live_record_read(c->pool, key, value, bytes, &record, c->error);
    if (status != LMCS_OK)
        return status;
    status = check_live(c, record);
    free(record);
    return status;
}

static enum lmcs_status check_live_space(struct checking *c)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < LMCS_JOURNALS; i++)
        if (c->txn.root.journals[i].end != 0)
            status = add_live_range(c, c->txn.root.journals[i].next,
                                    c->txn.root.journals[i].end - c->txn.root.journals[i].next);
    if (c->live_count > 0)
        qsort(c->live, c->live_count, sizeof *c->live, by_offset);
    for (size_t i = 0; i < c->live_count; i++) {
        const struct range *range = &c->live[i];
        const struct object *object = find_object(c, range->offset);
        if (i > 0 && range->offset - range[-1].offset < range[-1].bytes)
            SAY(c, "the live variables or journals at offsets %llu and %llu overlap", ULL(range[-1].offset),
                ULL(range->offset));
        if (!c->lost && (object == NULL || object->df.kind != LMCS_OBJECT_LIVE || range->offset < object->df.first ||
                         range->bytes > object->offset + object->df.bytes - range->offset))
            SAY(c, "the live variable or journal at offset %llu does not lie where such may", ULL(range->offset));
    }
    return status;
}

static enum lmcs_status check_live_variables(struct checking *c)
{
    enum lmcs_status status = walk_root_tree(c, LMCS_TREE_LIVE, visit_live);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_LIVE_NAMES, visit_nothing);
    compare_total(c, "names of live variables", c->txn.root.trees[LMCS_TREE_LIVE_NAMES].count,
                  c->txn.root.trees[LMCS_TREE_LIVE].count);
    return status == LMCS_OK ? check_live_space(c) : status;
}

/* ---- Identities ---- */

static enum lmcs_status visit_identity(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_identity identity;
    struct known_identity known = {.id = key.high};
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_identity_get(&c->txn, key.high, &identity, c->error);
    if (status != LMCS_OK)
        return status;
    lmcs_shape_bytes(identity.df.dtype, identity.df.ndim, identity.shape, &known.raw_bytes);
    known.is_tensor = identity.df.kind == LMCS_TENSOR;
    if (key.high >= c->txn.root.next_identity)
        SAY(c, "tensor name %llu was never given out", ULL(key.high));
    if (!lmcs_grow(&c->identities, &c->identity_capacity, c->identity_count, sizeof known))
        return lmcs_fail_memory(c->error);
    c->identities[c->identity_count++] = known;
    return LMCS_OK;
}

static enum lmcs_status visit_identity_name(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_identity identity;
    (void)value;
    (void)bytes;
    if (find_identity(c, key.low) == NULL)
        return fail_record(c, "tensor name", key.low);
    enum lmcs_status status = lmcs_identity_get(&c->txn, key.low, &identity, c->error);
    if (status == LMCS_OK && key.high != lmc_hash64(identity.name, strlen(identity.name), identity.df.kind + 1u))
        SAY(c, "tensor \"%.200s\" is filed under a wrong hash", identity.name);
    return status;
}

static enum lmcs_status visit_identity_count(struct checking *c, struct lmcs_key_df key, const void *value,
                                             size_t bytes)
{
    struct known_identity *known = find_identity(c, key.high);
    uint64_t uses = 0;
    if (known == NULL || bytes != sizeof uses)
        return fail_record(c, "tensor name", key.high);
    memcpy(&uses, value, sizeof uses);
    if (!c->lost && uses != known->uses)
        SAY(c, "tensor name %llu has %llu uses, but %llu are recorded", ULL(key.high), ULL(known->uses), ULL(uses));
    return LMCS_OK;
}

static enum lmcs_status check_identity_uses(struct checking *c)
{
    enum lmcs_status status = walk_root_tree(c, LMCS_TREE_IDENTITY_NAMES, visit_identity_name);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_IDENTITY_COUNTS, visit_identity_count);
    compare_total(c, "tensor names with a hash", c->txn.root.trees[LMCS_TREE_IDENTITY_NAMES].count, c->identity_count);
    compare_total(c, "tensor names with a count", c->txn.root.trees[LMCS_TREE_IDENTITY_COUNTS].count,
                  c->identity_count);
    return status;
}

/* ---- Contents ---- */

static enum lmcs_status visit_content(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_content content;
    struct lmcs_structure *out = c->out;
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_content_get(&c->txn, key.high, &content, c->error);
    if (status != LMCS_OK)
        return status;
    struct known_identity *identity = find_identity(c, content.df.identity);
    if (identity != NULL)
        identity->uses++;
    if (identity == NULL || identity->raw_bytes != content.df.raw_bytes || key.high >= c->txn.root.next_content)
        SAY(c, "content %llu does not match the tensor that it belongs to", ULL(key.high));
    if (!lmcs_grow(&out->contents, &c->content_capacity, out->content_count, sizeof *out->contents))
        return lmcs_fail_memory(c->error);
    uint8_t arrays = content.df.payload == LMCS_PAYLOAD_LINK ? content.df.base_count : 0;
    out->contents[out->content_count++] = (struct lmcs_known_content){.id = key.high,
                                                                      .identity = content.df.identity,
                                                                      .raw_bytes = content.df.raw_bytes,
                                                                      .runs = content.df.runs,
                                                                      .base_uses = content.df.base_uses,
                                                                      .height = content.df.height,
                                                                      .link_arrays = arrays,
                                                                      .has_link = content.link != 0,
                                                                      .wanted = c->want_all};
    return LMCS_OK;
}

static enum lmcs_status check_parts(struct checking *c, const struct lmcs_content *content)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < content->df.part_count; i++, c->part_count++) {
        struct lmcs_space_df df = {0, 0};
        bool found;
        status = has_key(c, LMCS_TREE_SPACE, &c->txn.root.trees[LMCS_TREE_SPACE],
                         (struct lmcs_key_df){content->parts[i].offset, 0}, &df, sizeof df, &found);
        if (status == LMCS_OK && !c->lost &&
            (!found || df.content != content->id || df.bytes != lmcs_room(content->parts[i].bytes)))
            SAY(c, "the payload of content %llu at offset %llu is not in the map of space", ULL(content->id),
                ULL(content->parts[i].offset));
    }
    return status;
}

/* That a content is counted and listed as a dependent of `base_id`. *base gets what is known of that; NULL: nothing. */
static enum lmcs_status check_tie(struct checking *c, const struct lmcs_content *content, uint64_t base_id,
                                  const struct lmcs_known_content **known)
{
    struct lmcs_known_content *base = find_content(c, base_id);
    char nothing;
    bool found;
    *known = base;
    c->base_count++;
    if (base == NULL) {
        if (!c->lost)
            SAY(c, "content %llu rests on content %llu, which is not there", ULL(content->id), ULL(base_id));
        return LMCS_OK;
    }
    if (base->base_uses == 0)
        SAY(c, "content %llu is the base of more deltas than are recorded", ULL(base->id));
    else
        base->base_uses--;
    if (base->raw_bytes != content->df.raw_bytes)
        SAY(c, "content %llu does not fit the content %llu that it rests on", ULL(content->id), ULL(base->id));
    enum lmcs_status status = has_key(c, LMCS_TREE_DEPENDENTS, &c->txn.root.trees[LMCS_TREE_DEPENDENTS],
                                      (struct lmcs_key_df){base->id, content->id}, &nothing, 0, &found);
    if (status == LMCS_OK && !found && !c->lost)
        SAY(c, "content %llu is not listed among those that rest on %llu", ULL(content->id), ULL(base->id));
    return status;
}

/*
 * What a link leads from: arrays that one link leads to, in their order, or such as need no other content. (Of the
 * former, some may have been given a payload of their own since.)
 */
static enum lmcs_status check_link(struct checking *c, const struct lmcs_content *link)
{
    struct lmcs_content base, before = {.df = {.place = 0}};
    enum lmcs_status status = LMCS_OK;
    uint64_t from = 0;
    for (size_t i = 0; status == LMCS_OK && i < link->df.base_count; i++) {
        status = lmcs_content_get(&c->txn, link->bases[i], &base, c->error);
        if (status != LMCS_OK)
            break;
        from = from == 0 ? base.link : from;
        if (base.df.base_count > 0 || base.df.payload == LMCS_PAYLOAD_LINK ||
            (base.link != 0 && (base.link != from || base.df.output != i)))
            SAY(c, "link %llu leads from arrays that don't belong together", ULL(link->id));
    }
    if (status == LMCS_OK && from != 0)
        status = lmcs_content_get(&c->txn, from, &before, c->error);
    if (status == LMCS_OK && link->df.place <= before.df.place)
        SAY(c, "link %llu has place %u in its line, but comes after place %u", ULL(link->id), link->df.place,
            before.df.place);
    return status;
}

static enum lmcs_status check_bases(struct checking *c, const struct lmcs_content *content)
{
    const struct lmcs_known_content *base;
    bool is_link = content->df.payload == LMCS_PAYLOAD_LINK;
    enum lmcs_status status = LMCS_OK;
    if (content->df.height > LMCS_CHAIN_BOUND)
        SAY(c, "on content %llu rests a chain of %u deltas: too long", ULL(content->id), content->df.height);
    for (size_t i = 0; status == LMCS_OK && i < content->df.base_count; i++) {
        status = check_tie(c, content, content->bases[i], &base);
        if (status == LMCS_OK && base != NULL && !is_link && (base->height <= content->df.height || base->has_link))
            SAY(c, "content %llu does not fit the content %llu that it rests on", ULL(content->id), ULL(base->id));
    }
    if (status == LMCS_OK && content->link != 0) {
        status = check_tie(c, content, content->link, &base);
        if (status == LMCS_OK && base != NULL && content->df.output >= base->link_arrays)
            SAY(c, "content %llu is said to be an array that link %llu does not have", ULL(content->id), ULL(base->id));
    }
    return status == LMCS_OK && is_link ? check_link(c, content) : status;
}

static enum lmcs_status visit_content_again(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_content content;
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_content_get(&c->txn, key.high, &content, c->error);
    if (status == LMCS_OK)
        status = check_parts(c, &content);
    if (status == LMCS_OK)
        status = check_bases(c, &content);
    if (status != LMCS_OK || content.df.runs > 0)
        return status;
    if (content.df.payload == LMCS_PAYLOAD_LINK) { /* no manifest has any: it goes with the last that it leads to */
        if (!c->lost && content.df.base_uses == 0)
            SAY(c, "link %llu is used by nothing, and nobody will remove it", ULL(key.high));
        return status;
    }
    uint64_t successor;
    bool found;
    c->idle_count++;
    status = has_key(c, LMCS_TREE_DEPENDENTS, &c->txn.root.trees[LMCS_TREE_DEPENDENTS],
                     (struct lmcs_key_df){0, key.high}, &successor, sizeof successor, &found);
    if (status == LMCS_OK && !found && c->staging && content.df.base_uses > 0) {
        c->idle_count--; /* what a restore brings only as a base is noted when it is shown */
        return status;
    }
    if (status == LMCS_OK && !c->lost && (!found || content.df.base_uses == 0))
        SAY(c, "content %llu is used by nothing, and nobody will remove it", ULL(key.high));
    return status;
}

/* What the records of contents say of each other and of space; by a cursor, for their pages have been counted. */
static enum lmcs_status check_contents(struct checking *c)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < c->out->content_count; i++)
        status = absorb(c, visit_content_again(c, (struct lmcs_key_df){c->out->contents[i].id, 0}, NULL, 0), "", 0);
    compare_total(c, "parts of payloads", c->part_count, c->txn.root.trees[LMCS_TREE_SPACE].count);
    compare_total(c, "bases and idle contents", c->base_count + c->idle_count,
                  c->txn.root.trees[LMCS_TREE_DEPENDENTS].count);
    for (size_t i = 0; i < c->out->content_count && !c->lost; i++) {
        const struct lmcs_known_content *known = &c->out->contents[i];
        if (known->base_uses != 0)
            SAY(c, "content %llu is said to be the base of %u more deltas than there are", ULL(known->id),
                known->base_uses);
        if (known->runs != 0)
            SAY(c, "content %llu is said to be in %llu more manifests than there are", ULL(known->id),
                ULL(known->runs));
    }
    return status;
}

/* ---- What is noted for the safety of contents ---- */

static enum lmcs_status check_parity(struct checking *c, uint64_t content)
{
    struct lmcs_parity_record parity;
    bool found;
    struct lmcs_content of;
    bool is_there = false;
    enum lmcs_status status = lmcs_parity_find(&c->txn, content, &parity, &found, c->error);
    if (status == LMCS_OK && found)
        status = lmcs_content_find(&c->txn, content, &of, &is_there, c->error);
    if (status == LMCS_OK && is_there && of.df.stored_bytes != parity.df.stored_bytes)
        SAY(c, "the parity of content %llu is of %llu bytes, but the content has %llu", ULL(content),
            ULL(parity.df.stored_bytes), ULL(of.df.stored_bytes));
    for (size_t i = 0; status == LMCS_OK && found && i < parity.df.part_count; i++, c->part_count++) {
        struct lmcs_space_df df = {0, 0};
        bool mapped;
        c->parity_bytes += lmcs_room(parity.parts[i].bytes);
        status = has_key(c, LMCS_TREE_SPACE, &c->txn.root.trees[LMCS_TREE_SPACE],
                         (struct lmcs_key_df){parity.parts[i].offset, 0}, &df, sizeof df, &mapped);
        if (status == LMCS_OK && !c->lost &&
            (!mapped || df.content != (content | LMCS_SPACE_PARITY) || df.bytes != lmcs_room(parity.parts[i].bytes)))
            SAY(c, "the parity of content %llu at offset %llu is not in the map of space", ULL(content),
                ULL(parity.parts[i].offset));
    }
    return status;
}

static enum lmcs_status visit_safety(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    uint64_t content = key.high != 0 ? key.high : key.low;
    const struct lmcs_known_content *known = find_content(c, content);
    struct lmcs_lost_df lost;
    if (known == NULL && !c->lost)
        SAY(c, "something is noted of content %llu, which is not there", ULL(content));
    if (key.high == 0)
        return bytes == sizeof(struct lmcs_wanted_df) ? LMCS_OK : fail_record(c, "wanted parity of content", content);
    if (key.low == 0)
        return check_parity(c, content);
    if (bytes != sizeof lost)
        return fail_record(c, "what is lost of content", content);
    memcpy(&lost, value, sizeof lost);
    uint64_t blocks = known != NULL ? lmc_block_count(known->raw_bytes) : UINT64_MAX;
    if (lost.blocks == 0 || (known != NULL && (key.low - 1 >= blocks || lost.blocks > blocks - (key.low - 1))))
        SAY(c, "of content %llu more is said to be lost than there is", ULL(content));
    c->lost_count += c->last_lost != content;
    c->last_lost = content;
    return LMCS_OK;
}

static enum lmcs_status check_safety(struct checking *c)
{
    enum lmcs_status status = walk_root_tree(c, LMCS_TREE_SAFETY, visit_safety);
    compare_total(c, "contents of which something is lost", c->lost_count, c->txn.root.lost_contents);
    compare_total(c, "bytes of parity", c->parity_bytes, c->txn.root.parity_bytes);
    return status;
}

/* ---- Manifests ---- */

static struct summary *find_summary(struct checking *c, uint64_t offset)
{
    size_t i = (size_t)(offset / LMCS_PAGE_BYTES * 0x9e3779b97f4a7c15u >> 20) & (c->summary_capacity - 1);
    while (c->summaries[i].offset != 0 && c->summaries[i].offset != offset)
        i = (i + 1) & (c->summary_capacity - 1);
    return &c->summaries[i];
}

static enum lmcs_status remember(struct checking *c, const struct summary *summary)
{
    if ((c->summary_count + 1) * 2 > c->summary_capacity) {
        struct summary *old = c->summaries;
        size_t old_capacity = c->summary_capacity, wanted = old_capacity == 0 ? 256 : old_capacity * 2;
        struct summary *grown = calloc(wanted, sizeof *grown);
        if (grown == NULL)
            return lmcs_fail_memory(c->error);
        c->summaries = grown;
        c->summary_capacity = wanted;
        for (size_t i = 0; i < old_capacity; i++)
            if (old[i].offset != 0)
                *find_summary(c, old[i].offset) = old[i];
        free(old);
    }
    struct summary *place = find_summary(c, summary->offset);
    c->summary_count += place->offset == 0;
    *place = *summary;
    return LMCS_OK;
}

/* A snapshot whose manifest is walked. */
struct manifest_walk {
    struct checking *c;
    const struct lmcs_snapshot_df *of;
    const struct lmcs_snapshot_df *older; /* its neighbour; NULL: none */
    bool wanted;
};

static void say_entry(struct manifest_walk *walk, uint64_t identity, const char *what)
{
    struct checking *c = walk->c;
    struct lmcs_identity named;
    struct lmcs_error ignored;
    bool known = lmcs_identity_get(&c->txn, identity, &named, &ignored) == LMCS_OK;
    say(c, c->shelf->name, walk->of->number, known ? named.name : "", "%s", what);
}

/* A run that did not begin here must be in the older neighbour, just so. */
static enum lmcs_status check_inherited(struct manifest_walk *walk, uint64_t identity,
                                        const struct lmcs_manifest_df *entry)
{
    struct checking *c = walk->c;
    struct lmcs_root_tree_df tree = {.ref = walk->older->manifest, .count = walk->older->entry_count};
    struct lmcs_manifest_df before = {0, 0};
    bool found;
    enum lmcs_status status =
        has_key(c, LMCS_TREE_MANIFEST, &tree, (struct lmcs_key_df){identity, 0}, &before, sizeof before, &found);
    if (status == LMCS_OK && !c->lost && (!found || before.content != entry->content || before.birth != entry->birth))
        say_entry(walk, identity, "a manifest's entry is said to be older than it is");
    return status;
}

static enum lmcs_status check_entry(struct manifest_walk *walk, uint64_t identity, const struct lmcs_manifest_df *entry,
                                    struct summary *sum)
{
    struct checking *c = walk->c;
    struct known_identity *name = find_identity(c, identity);
    struct lmcs_known_content *content = find_content(c, entry->content);
    if (name == NULL || content == NULL) {
        if (!c->lost)
            say_entry(walk, identity,
                      name == NULL ? "a manifest has an entry without a name" : "a tensor's content is not there");
        return LMCS_OK;
    }
    if (name->raw_bytes != content->raw_bytes)
        say_entry(walk, identity, "a tensor has a content of another size");
    if (entry->birth == 0 || entry->birth > walk->of->number)
        say_entry(walk, identity, "a manifest's entry comes from a later snapshot");
    sum->tensors += name->is_tensor;
    sum->raw_bytes += name->raw_bytes;
    content->wanted |= walk->wanted;
    if (content->number == 0 || walk->wanted) {
        content->number = walk->of->number;
        content->shelf = c->shelf_index;
    }
    if (walk->older != NULL && entry->birth <= walk->older->number)
        return check_inherited(walk, identity, entry);
    if (content->runs == 0)
        say_entry(walk, identity, "a content is in more manifests than are recorded");
    else
        content->runs--;
    name->uses += identity != content->identity;
    return LMCS_OK;
}

static enum lmcs_status check_manifest_leaf(struct manifest_walk *walk, const struct lmcs_node_df *node,
                                            struct summary *sum)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < node->count; i++) {
        struct lmcs_key_df key = lmcs_node_key(node, i);
        struct lmcs_manifest_df entry;
        if (node->slots[i].value_bytes != sizeof entry || key.low != 0 || (i > 0 && key.high <= sum->high)) {
            say_entry(walk, key.high, "a manifest's entry is damaged");
            continue;
        }
        memcpy(&entry, lmcs_node_value(node, i), sizeof entry);
        if (i == 0)
            sum->low = key.high;
        sum->high = key.high;
        sum->entries++;
        status = check_entry(walk, key.high, &entry, sum);
    }
    return status;
}

/* The same page seen from another snapshot. */
static void check_shared(struct manifest_walk *walk, struct lmcs_ref_df ref, int level, const struct summary *known)
{
    struct checking *c = walk->c;
    if (known->check != ref.check || (level >= 0 && known->level != level) || known->shelf != c->shelf->df.id)
        SAY(c, "the page at offset %llu is used twice", ULL(ref.offset));
    else if (walk->older == NULL || known->epoch > walk->older->epoch)
        say(c, c->shelf->name, walk->of->number, "", "the page at offset %llu is shared against the rules",
            ULL(ref.offset));
}

static enum lmcs_status walk_manifest(struct manifest_walk *walk, struct lmcs_ref_df ref, int level,
                                      struct summary *sum)
{
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *node;
    struct checking *c = walk->c;
    if (c->summary_capacity > 0 && find_summary(c, ref.offset)->offset != 0) {
        *sum = *find_summary(c, ref.offset);
        check_shared(walk, ref, level, sum);
        return LMCS_OK;
    }
    *sum = (struct summary){.offset = ref.offset, .check = ref.check, .shelf = c->shelf->df.id};
    if (!use_page(c, ref.offset, PAGE_REACHED))
        return LMCS_OK;
    enum lmcs_status status = read_page(c, LMCS_TREE_MANIFEST, ref, walk->of->number, level, buffer, &node);
    if (status != LMCS_OK || node == NULL)
        return status;
    sum->level = node->level;
    sum->epoch = node->epoch;
    if (node->epoch > walk->of->epoch || (walk->older != NULL && node->epoch <= walk->older->epoch))
        say(c, c->shelf->name, walk->of->number, "", "the page at offset %llu has the wrong epoch", ULL(ref.offset));
    if (node->level == 0)
        status = check_manifest_leaf(walk, node, sum);
    for (size_t i = 0; status == LMCS_OK && node->level > 0 && i < node->count; i++) {
        struct summary below;
        struct lmcs_key_df key = lmcs_node_key(node, i);
        status = walk_manifest(walk, lmcs_node_child(node, i), node->level - 1, &below);
        if (below.entries == 0)
            continue;
        if (i > 0 && (key.high > below.low || key.high <= sum->high))
            say(c, c->shelf->name, walk->of->number, "", "the page at offset %llu has a key out of order",
                ULL(ref.offset));
        sum->low = sum->entries == 0 ? below.low : sum->low;
        sum->high = below.high;
        sum->entries += below.entries;
        sum->tensors += below.tensors;
        sum->raw_bytes += below.raw_bytes;
    }
    return status == LMCS_OK ? remember(c, sum) : status;
}

/* One snapshot is wanted: pages that it shares have been looked at, so its entries are marked by a cursor. */
static enum lmcs_status mark_snapshot(struct checking *c, const struct lmcs_snapshot_df *df)
{
    struct lmcs_root_tree_df tree = {.ref = df->manifest, .count = df->entry_count};
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_new(&cursor, c->error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_cursor_seek(cursor, &c->txn, LMCS_TREE_MANIFEST, &tree, (struct lmcs_key_df){0, 0}, c->error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        struct lmcs_manifest_df entry;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        struct lmcs_known_content *content = NULL;
        if (bytes == sizeof entry) {
            memcpy(&entry, value, sizeof entry);
            content = find_content(c, entry.content);
        }
        if (content != NULL) {
            content->wanted = true;
            content->number = df->number;
            content->shelf = c->shelf_index;
        }
        status = lmcs_cursor_next(cursor, c->error);
    }
    lmcs_cursor_free(cursor);
    return absorb(c, status, c->shelf->name, df->number);
}

/* ---- Shelves ---- */

static enum lmcs_status check_manifest(struct checking *c, const struct lmcs_record *record)
{
    const struct lmcs_snapshot_df *df = &record->df;
    struct lmcs_record older;
    bool has_older;
    enum lmcs_status status = lmcs_record_neighbour(&c->txn, c->shelf, df, false, &older, &has_older, c->error);
    if (status != LMCS_OK)
        return status;
    bool in_scope = c->want_shelf == 0 || c->shelf->df.id == c->want_shelf;
    struct manifest_walk walk = {.c = c,
                                 .of = df,
                                 .older = has_older ? &older.df : NULL,
                                 .wanted = in_scope && c->want_shelf != 0 && c->want_number == 0};
    struct summary sum = {0};
    if (df->manifest.offset != 0)
        status = walk_manifest(&walk, df->manifest, -1, &sum);
    if (status == LMCS_OK && !c->lost &&
        (sum.entries != df->entry_count || sum.tensors != df->tensor_count || sum.raw_bytes != df->raw_bytes))
        say(c, c->shelf->name, df->number, "",
            "it has %llu entries, %llu tensors and %llu bytes, but %llu, %llu and %llu are recorded", ULL(sum.entries),
            ULL(sum.tensors), ULL(sum.raw_bytes), ULL(df->entry_count), ULL(df->tensor_count), ULL(df->raw_bytes));
    if (in_scope && (c->want_number == 0 || df->number == c->want_number) && df->state == LMCS_SNAPSHOT_COMMITTED)
        c->out->snapshots++;
    if (status == LMCS_OK && in_scope && c->want_number != 0 && df->number == c->want_number)
        status = mark_snapshot(c, df);
    return status;
}

static enum lmcs_status check_indexed(struct checking *c, const struct lmcs_snapshot_df *df)
{
    char nothing;
    bool found = true;
    enum lmcs_status status = LMCS_OK;
    if (df->step != LMCS_NO_STEP) {
        c->stepped++;
        status = has_key(c, LMCS_TREE_STEPS, lmcs_shelf_tree(c->shelf, LMCS_TREE_STEPS),
                         (struct lmcs_key_df){lmcs_step_key(df->step), df->number}, &nothing, 0, &found);
    }
    if (status == LMCS_OK && found)
        status = has_key(c, LMCS_TREE_TIMES, lmcs_shelf_tree(c->shelf, LMCS_TREE_TIMES),
                         (struct lmcs_key_df){df->time_ns, df->number}, &nothing, 0, &found);
    if (status == LMCS_OK && !found && !c->lost)
        say(c, c->shelf->name, df->number, "", "it is not in the indexes by step and time");
    return status;
}

static enum lmcs_status check_prepared(struct checking *c, const struct lmcs_snapshot_df *df)
{
    struct lmcs_key_df key;
    uint64_t value[2] = {0, 0};
    bool found;
    memcpy(&key, df->group, sizeof key);
    c->prepared_count++;
    enum lmcs_status status =
        has_key(c, LMCS_TREE_GROUPS, &c->txn.root.trees[LMCS_TREE_GROUPS], key, value, sizeof value, &found);
    if (status == LMCS_OK && !c->lost && (!found || value[0] != c->shelf->df.id || value[1] != df->number))
        say(c, c->shelf->name, df->number, "", "it is prepared, but its group does not know it");
    return status;
}

static enum lmcs_status visit_record(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_record record;
    bool found;
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_record_get(&c->txn, c->shelf, key.high, &record, &found, c->error);
    if (status != LMCS_OK || !found)
        return status;
    const struct lmcs_snapshot_df *df = &record.df;
    bool committed = df->state == LMCS_SNAPSHOT_COMMITTED;
    if ((!committed && df->state != LMCS_SNAPSHOT_PREPARED) || df->epoch > c->txn.root.epoch)
        return fail_record(c, "snapshot", key.high);
    c->highest = df->number;
    if (committed) {
        c->committed++;
        c->latest = df->number;
    }
    status = committed ? check_indexed(c, df) : check_prepared(c, df);
    return status == LMCS_OK ? check_manifest(c, &record) : status;
}

static enum lmcs_status visit_tag(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_tag_df df;
    struct lmcs_record record;
    uint64_t index;
    bool found = false, listed = false;
    if (bytes < sizeof df)
        return fail_record(c, "the tag with hash", key.high);
    memcpy(&df, value, sizeof df);
    if (bytes != sizeof df + df.tag_bytes || lmc_hash64((const char *)value + sizeof df, df.tag_bytes, 0) != key.high)
        return fail_record(c, "the tag with hash", key.high);
    enum lmcs_status status = lmcs_record_get(&c->txn, c->shelf, df.number, &record, &found, c->error);
    if (status == LMCS_OK)
        status = has_key(c, LMCS_TREE_TAGGED, lmcs_shelf_tree(c->shelf, LMCS_TREE_TAGGED),
                         (struct lmcs_key_df){df.number, key.high}, &index, sizeof index, &listed);
    if (status == LMCS_OK && !c->lost && (!found || !listed || record.df.state != LMCS_SNAPSHOT_COMMITTED))
        say(c, c->shelf->name, df.number, "", "the tag \"%.*s\" and its snapshot don't know one another",
            (int)df.tag_bytes, (const char *)value + sizeof df);
    return status;
}

static enum lmcs_status check_shelf_trees(struct checking *c)
{
    static const entry_fn visits[LMCS_SHELF_TREES] = {visit_record, visit_nothing, visit_nothing, visit_tag,
                                                      visit_nothing};
    enum lmcs_status status = LMCS_OK;
    for (uint8_t i = 0; status == LMCS_OK && i < LMCS_SHELF_TREES; i++)
        status = walk_tree(c, (uint8_t)(LMCS_TREE_NUMBERS + i), &c->shelf->df.trees[i], visits[i]);
    return status;
}

static void check_shelf_totals(struct checking *c)
{
    const struct lmcs_shelf_df *df = &c->shelf->df;
    if (c->lost)
        return;
    const struct lmcs_root_tree_df *trees = df->trees;
    if (c->committed != df->snapshot_count || c->latest != df->latest || c->highest >= df->next_number)
        SAY_SHELF(c, "it has %llu snapshots up to %llu, but %llu up to %llu are recorded", ULL(c->committed),
                  ULL(c->latest), ULL(df->snapshot_count), ULL(df->latest));
    if (df->compacted >= df->next_number || df->guarded >= df->next_number)
        SAY_SHELF(c,
                  "snapshots up to %llu are said to be compacted and up to %llu to have parity, but %llu is the next",
                  ULL(df->compacted), ULL(df->guarded), ULL(df->next_number));
    if (trees[LMCS_TREE_STEPS - LMCS_TREE_NUMBERS].count != c->stepped ||
        trees[LMCS_TREE_TIMES - LMCS_TREE_NUMBERS].count != c->committed ||
        trees[LMCS_TREE_TAGS - LMCS_TREE_NUMBERS].count != trees[LMCS_TREE_TAGGED - LMCS_TREE_NUMBERS].count)
        SAY_SHELF(c, "its indexes list other snapshots than it has");
}

static enum lmcs_status add_shelf_name(struct checking *c, const char *name)
{
    struct lmcs_structure *out = c->out;
    c->shelf_index = (uint32_t)out->shelf_count;
    return lmcs_add_text(&out->shelf_names, &out->shelf_count, name) ? LMCS_OK : lmcs_fail_memory(c->error);
}

static enum lmcs_status visit_shelf(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_shelf shelf;
    char nothing;
    bool found;
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_shelf_load(&c->txn, key.high, &shelf, c->error);
    if (status == LMCS_OK)
        status = add_shelf_name(c, shelf.name);
    if (status != LMCS_OK)
        return status;
    c->shelf = &shelf;
    c->committed = c->stepped = c->highest = c->latest = 0;
    status =
        has_key(c, LMCS_TREE_SHELF_NAMES, &c->txn.root.trees[LMCS_TREE_SHELF_NAMES],
                (struct lmcs_key_df){lmc_hash64(shelf.name, strlen(shelf.name), 0), key.high}, &nothing, 0, &found);
    if (status == LMCS_OK && !c->lost && (!found || key.high >= c->txn.root.next_shelf))
        SAY_SHELF(c, "it can't be found by its name");
    if (status == LMCS_OK)
        status = check_shelf_trees(c);
    if (status == LMCS_OK)
        check_shelf_totals(c);
    if ((shelf.df.flags & LMCS_SHELF_STAGING) == 0)
        c->snapshot_count += c->committed;
    else
        c->staging = true;
    c->shelf = NULL;
    return status;
}

static enum lmcs_status visit_origin(struct checking *c, struct lmcs_key_df key, const void *value, size_t bytes)
{
    struct lmcs_origin origin;
    struct lmcs_shelf shelf;
    bool found = false;
    (void)value;
    (void)bytes;
    enum lmcs_status status = lmcs_origin_get(&c->txn, key.high, &origin, &found, c->error);
    if (status == LMCS_OK)
        status = lmcs_shelf_load_if(&c->txn, key.high, &shelf, &found, c->error);
    if (status == LMCS_OK && !c->lost && !found)
        SAY(c, "a shelf that is not there was forked from \"%s\"", origin.name);
    if (status == LMCS_OK && found && origin.df.shelf != 0) {
        status = lmcs_shelf_load_if(&c->txn, origin.df.shelf, &shelf, &found, c->error);
        if (status == LMCS_OK && !c->lost && !found)
            SAY(c, "the shelf \"%s\" is known as an origin, but is not there", origin.name);
    }
    return absorb(c, status, "", 0);
}

/* ---- All of it ---- */

static enum lmcs_status find_wanted(struct checking *c, const char *address)
{
    char name[LMCS_MAX_NAME + 1];
    struct lmcs_shelf shelf;
    c->want_all = address == NULL || *address == '\0';
    if (c->want_all)
        return LMCS_OK;
    size_t length = strcspn(address, "@");
    if (length > LMCS_MAX_NAME)
        return lmcs_fail(c->error, LMCS_INVALID, 0, "the address is too long");
    memcpy(name, address, length);
    name[length] = '\0';
    enum lmcs_status status = lmcs_shelf_get(&c->txn, name, &shelf, c->error);
    if (status == LMCS_OK && address[length] == '@')
        status = lmcs_shelf_resolve(&c->txn, &shelf, address + length + 1, &c->want_number, c->error);
    if (status == LMCS_OK)
        c->want_shelf = shelf.df.id;
    return status;
}

static void check_never_used(struct checking *c, const struct lmcs_page_range_df *range)
{
    for (uint64_t at = range->next; at < range->end && use_page(c, at, PAGE_NEVER_USED); at += LMCS_PAGE_BYTES)
        continue;
}

static enum lmcs_status check_root(struct checking *c)
{
    const struct lmcs_root_df *root = &c->txn.root;
    enum lmcs_status status = load_objects(c);
    if (!lmcs_root_counts(root))
        SAY(c, "numbers are said to be the next that can never have been given out");
    use_page(c, root->self, PAGE_REACHED);
    check_never_used(c, &root->fresh);
    check_never_used(c, &root->spare);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_OBJECTS, visit_nothing);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_FREE_PAGES, visit_free_page);
    if (status == LMCS_OK)
        status = check_space(c);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_IDENTITIES, visit_identity);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_CONTENTS, visit_content);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_DEPENDENTS, visit_nothing);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_GROUPS, visit_nothing);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_ORIGINS, visit_origin);
    if (status == LMCS_OK)
        status = check_live_variables(c);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_SHELF_NAMES, visit_nothing);
    if (status == LMCS_OK)
        status = walk_root_tree(c, LMCS_TREE_SHELVES, visit_shelf);
    return status;
}

static enum lmcs_status check_totals(struct checking *c)
{
    const struct lmcs_root_df *root = &c->txn.root;
    enum lmcs_status status = check_safety(c);
    if (status == LMCS_OK)
        status = check_contents(c);
    if (status == LMCS_OK)
        status = check_identity_uses(c);
    compare_total(c, "shelves", root->trees[LMCS_TREE_SHELF_NAMES].count, root->trees[LMCS_TREE_SHELVES].count);
    compare_total(c, "snapshots", c->snapshot_count, root->snapshot_count);
    compare_total(c, "prepared snapshots", c->prepared_count, root->trees[LMCS_TREE_GROUPS].count);
    compare_total(c, "free pages", c->free_pages, root->free_pages);
    if (status == LMCS_OK && !c->lost)
        check_leaks(c);
    return status;
}

static enum lmcs_status check(struct lmcs_pool *pool, const char *address, bool repairs, lmcs_damage_fn visit,
                              void *context, struct lmcs_structure *structure, struct lmcs_error *error)
{
    struct lmcs_error local;
    *structure = (struct lmcs_structure){0};
    struct checking c = {
        .pool = pool, .visit = visit, .context = context, .out = structure, .repairs = repairs, .error = &local};
    enum lmcs_status status = lmcs_txn_hold(pool, &c.txn, &local);
    if (status == LMCS_OK) {
        status = find_wanted(&c, address);
        if (status == LMCS_OK)
            status = check_root(&c);
        if (status == LMCS_OK)
            status = check_totals(&c);
        lmcs_txn_end(&c.txn);
    }
    for (size_t i = 0; i < c.object_count; i++)
        free(c.objects[i].pages);
    free(c.objects);
    free(c.retired);
    free(c.live);
    free(c.identities);
    free(c.summaries);
    if (status != LMCS_OK && error != NULL)
        *error = local;
    return status;
}

enum lmcs_status lmcs_structure_check(struct lmcs_pool *pool, const char *address, lmcs_damage_fn visit, void *context,
                                      struct lmcs_structure *structure, struct lmcs_error *error)
{
    return check(pool, address, false, visit, context, structure, error);
}

enum lmcs_status lmcs_structure_repair(struct lmcs_pool *pool, lmcs_damage_fn visit, void *context,
                                       struct lmcs_structure *structure, struct lmcs_error *error)
{
    return check(pool, NULL, true, visit, context, structure, error);
}

void lmcs_structure_free(struct lmcs_structure *structure)
{
    for (size_t i = 0; i < structure->shelf_count; i++)
        free(structure->shelf_names[i]);
    free(structure->shelf_names);
    free(structure->contents);
    *structure = (struct lmcs_structure){0};
}

struct first_damage {
    lmcs_damage_fn visit;
    void *context;
    struct lmcs_error *error;
    bool any;
};

static void keep_first(void *context, const struct lmcs_damage *damage)
{
    struct first_damage *first = context;
    if (!first->any)
        lmcs_fail(first->error, LMCS_DAMAGED, 0, "%s%s%s: %s", damage->shelf, *damage->tensor != '\0' ? " " : "",
                  damage->tensor, damage->what);
    first->any = true;
    if (first->visit != NULL)
        first->visit(first->context, damage);
}

enum lmcs_status lmcs_check_structure(struct lmcs_pool *pool, lmcs_damage_fn visit, void *context,
                                      struct lmcs_error *error)
{
    struct lmcs_structure structure;
    struct lmcs_error local;
    struct first_damage first = {.visit = visit, .context = context, .error = error};
    enum lmcs_status status = lmcs_structure_check(pool, NULL, keep_first, &first, &structure, &local);
    if (status != LMCS_OK && error != NULL)
        *error = local;
    if (status == LMCS_OK && structure.damages > 0)
        status = LMCS_DAMAGED;
    lmcs_structure_free(&structure);
    return status;
}
