/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/check_pages.c - the structure check: damage reports, pages, and trees other than manifests.
 *
 * Pages are read past the cache. Each page of a slab has exactly one use: reached from the root, free, or never used.
 */
#include "repair/checking.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/origin.h"
#include "records/safety.h"
#include "records/shelf.h"

void lmcs_check_report(struct lmcs_checking *c, const char *shelf, uint64_t number, const char *tensor,
                       const char *format, ...)
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

enum lmcs_status lmcs_check_absorb(struct lmcs_checking *c, enum lmcs_status status, const char *shelf, uint64_t number)
{
    if (!lmcs_is_unusable(status))
        return status;
    char what[1024];
    snprintf(what, sizeof what, "%s", c->error->message);
    c->incomplete = true;
    if (status == LMCS_DAMAGED) {
        lmcs_check_report(c, shelf, number, "", "%s", what);
        return LMCS_OK;
    }
    struct lmcs_damage newer = {.what = what, .shelf = shelf, .number = number, .tensor = "", .is_unsupported = true};
    c->out->unsupported++;
    if (c->visit != NULL)
        c->visit(c->context, &newer);
    return LMCS_OK;
}

void lmcs_check_total(struct lmcs_checking *c, const char *things, uint64_t found, uint64_t recorded)
{
    if (!c->incomplete && found != recorded)
        REPORT(c, "there are %llu %s, but %llu are recorded", ULL(found), things, ULL(recorded));
}

/* Returns the index of the last of `count` ascending items of `size` bytes whose first u64 is at most `key`; SIZE_MAX:
 * none. */
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

struct lmcs_checked_identity *lmcs_check_find_identity(struct lmcs_checking *c, uint64_t id)
{
    size_t i = find_last(c->identities, c->identity_count, sizeof *c->identities, id);
    return i != SIZE_MAX && c->identities[i].id == id ? &c->identities[i] : NULL;
}

struct lmcs_known_content *lmcs_check_find_content(struct lmcs_checking *c, uint64_t id)
{
    struct lmcs_known_content *contents = c->out->contents;
    size_t i = find_last(contents, c->out->content_count, sizeof *contents, id);
    return i != SIZE_MAX && contents[i].id == id ? &contents[i] : NULL;
}

struct lmcs_checked_object *lmcs_check_find_object(struct lmcs_checking *c, uint64_t offset)
{
    size_t i = find_last(c->objects, c->object_count, sizeof *c->objects, offset);
    return i != SIZE_MAX && offset - c->objects[i].offset < c->objects[i].df.bytes ? &c->objects[i] : NULL;
}

bool lmcs_check_use_page(struct lmcs_checking *c, uint64_t offset, enum lmcs_page_use use)
{
    static const char *const names[] = {"unknown", "in use", "free", "never used"};
    struct lmcs_checked_object *slab = lmcs_check_find_object(c, offset);
    if (slab == NULL || slab->df.kind != LMCS_OBJECT_SLAB || offset % LMCS_PAGE_BYTES != 0 || offset < slab->df.first ||
        (offset - slab->df.first) / LMCS_PAGE_BYTES >= slab->page_count) {
        if (!c->incomplete) /* else the slab of the page may be unread */
            REPORT(c, "the page at offset %llu is %s, but in no slab", ULL(offset), names[use]);
        c->incomplete = true;
        return false;
    }
    unsigned char *now = &slab->pages[(offset - slab->df.first) / LMCS_PAGE_BYTES];
    if (*now != LMCS_PAGE_UNKNOWN) {
        REPORT(c, "the page at offset %llu is %s and also %s", ULL(offset), names[*now], names[use]);
        c->incomplete = true;
        return false;
    }
    *now = (unsigned char)use;
    return true;
}

/* Rewrites a page in place from another replica. Only the right bytes match the reference's checksum, so a torn write
 * is no worse than the damage. */
static bool repair_page(struct lmcs_checking *c, struct lmcs_ref_df ref, void *buffer)
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

enum lmcs_status lmcs_check_read_page(struct lmcs_checking *c, uint8_t kind, struct lmcs_ref_df ref, uint64_t number,
                                      int level, void *buffer, const struct lmcs_node_df **node)
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
    return lmcs_check_absorb(c, status, c->shelf != NULL ? c->shelf->name : "", number);
}

typedef enum lmcs_status (*lmcs_check_fn)(struct lmcs_checking *c, struct lmcs_key_df key, const void *value,
                                          size_t bytes);

struct tree_walk {
    struct lmcs_checking *c;
    uint8_t kind;
    lmcs_check_fn visit;
    uint64_t entries;
    bool has_last;
    struct lmcs_key_df last;
};

static enum lmcs_status walk_leaf(struct tree_walk *walk, const struct lmcs_node_df *node,
                                  const struct lmcs_bounds *bounds)
{
    struct lmcs_checking *c = walk->c;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < node->count; i++) {
        struct lmcs_key_df key = lmcs_node_key(node, i);
        if (!lmcs_in_bounds(bounds, key) || (walk->has_last && lmcs_key_compare(key, walk->last) <= 0))
            REPORT(c, "the metadata page at offset %llu has a key out of order", ULL(node->self));
        walk->last = key;
        walk->has_last = true;
        walk->entries++;
        status = lmcs_check_absorb(c, walk->visit(c, key, lmcs_node_value(node, i), node->slots[i].value_bytes),
                                   c->shelf != NULL ? c->shelf->name : "", 0);
    }
    return status;
}

static enum lmcs_status walk_page(struct tree_walk *walk, struct lmcs_ref_df ref, int level,
                                  const struct lmcs_bounds *bounds)
{
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *node;
    struct lmcs_checking *c = walk->c;
    if (!lmcs_check_use_page(c, ref.offset, LMCS_PAGE_REACHED))
        return LMCS_OK;
    enum lmcs_status status = lmcs_check_read_page(c, walk->kind, ref, 0, level, buffer, &node);
    if (status != LMCS_OK || node == NULL)
        return status;
    if (node->epoch > c->txn.root.epoch)
        REPORT(c, "the metadata page at offset %llu is newer than the newest commit", ULL(ref.offset));
    if (node->level == 0)
        return walk_leaf(walk, node, bounds);
    if (!lmcs_node_in_bounds(node, bounds))
        REPORT(c, "the metadata page at offset %llu has a key out of order", ULL(ref.offset));
    for (size_t i = 0; status == LMCS_OK && i < node->count; i++) {
        struct lmcs_bounds inner = lmcs_child_bounds(node, i, bounds);
        status = walk_page(walk, lmcs_node_child(node, i), node->level - 1, &inner);
    }
    return status;
}

enum lmcs_status lmcs_check_tree(struct lmcs_checking *c, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                 lmcs_check_fn visit)
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
    if (status == LMCS_OK && !c->incomplete && walk.entries != tree->count)
        REPORT(c, "tree %u has %llu entries, but %llu are recorded", kind, ULL(walk.entries), ULL(tree->count));
    return status;
}

enum lmcs_status lmcs_check_root_tree(struct lmcs_checking *c, uint8_t kind, lmcs_check_fn visit)
{
    return lmcs_check_tree(c, kind, &c->txn.root.trees[kind], visit);
}

enum lmcs_status lmcs_check_fail_record(struct lmcs_checking *c, const char *kind, uint64_t key)
{
    return lmcs_fail(c->error, LMCS_DAMAGED, 0, "damaged metadata: the record of %s %llu", kind, ULL(key));
}

enum lmcs_status lmcs_check_has_key(struct lmcs_checking *c, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                    struct lmcs_key_df key, void *value, size_t bytes, bool *found)
{
    *found = false;
    enum lmcs_status status = lmcs_tree_get(&c->txn, kind, tree, key, value, bytes, bytes, NULL, found, c->error);
    if (lmcs_is_unusable(status) && c->incomplete) /* the walk reported the damage */
        return LMCS_OK;
    return lmcs_check_absorb(c, status, c->shelf != NULL ? c->shelf->name : "", 0);
}

enum lmcs_status lmcs_check_root_has(struct lmcs_checking *c, uint8_t kind, struct lmcs_key_df key, void *value,
                                     size_t bytes, bool *found)
{
    return lmcs_check_has_key(c, kind, &c->txn.root.trees[kind], key, value, bytes, found);
}
