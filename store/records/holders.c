/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/holders.c - which tensors of which snapshots need a content.
 *
 * Contents that rest on it at any distance need it, too. A page of manifests without needed contents below it is walked
 * once: the work is that of the pages, not of the snapshots.
 */
#include "records/holders.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/map.h"
#include "base/order.h"
#include "pages/pool.h"
#include "pages/tree.h"
#include "records/shelf.h"

struct needed {
    uint64_t content;
    size_t root;
};

/* Most dependents read, for all contents; only forged records have more. */
#define MOST_LOOKS LMCS_MAX_TENSORS

struct finding {
    struct lmcs_pool *pool;
    struct lmcs_txn txn;
    struct needed *needed; /* each once; at the end by content */
    size_t needed_count;
    size_t needed_capacity;
    struct lmcs_map places; /* hash of content and root -> 1 + index in `needed` */
    size_t looks;
    struct lmcs_map clean; /* offsets of pages without a needed content below */
    struct lmcs_holders *out;
    bool whole;
    uint64_t number;
    uint64_t ordinal;
    struct lmcs_error *error;
};

/* Skips unusable records. */
static enum lmcs_status absorb(struct finding *f, enum lmcs_status status)
{
    if (!lmcs_is_unusable(status))
        return status;
    f->whole = false;
    return LMCS_OK;
}

/* ---- Contents ---- */

/* Adds each content once: a step's arrays need all of its links, and each link all arrays. */
static enum lmcs_status need(struct finding *f, uint64_t content, size_t root)
{
    const uint64_t pair[2] = {content, root};
    uint64_t key = lmc_hash64(pair, sizeof pair, 0), place;
    for (; (place = lmcs_map_get(&f->places, key)) != 0; key++)
        if (f->needed[place - 1].content == content && f->needed[place - 1].root == root)
            return LMCS_OK;
    if (!lmcs_grow(&f->needed, &f->needed_capacity, f->needed_count, sizeof *f->needed) ||
        !lmcs_map_put(&f->places, key, f->needed_count + 1))
        return lmcs_fail_memory(f->error);
    f->needed[f->needed_count++] = (struct needed){content, root};
    return LMCS_OK;
}

/* Adds contents that rest on needed[i] directly. */
static enum lmcs_status add_dependents(struct finding *f, struct lmcs_cursor *cursor, size_t i)
{
    struct needed base = f->needed[i];
    struct lmcs_content content = {.df = {.payload = LMCS_PAYLOAD_RAW}};
    bool found;
    enum lmcs_status status = lmcs_content_find(&f->txn, base.content, &content, &found, f->error);
    if (lmcs_is_unusable(status)) /* its dependents are still found */
        status = LMCS_OK;
    bool is_link = content.df.payload == LMCS_PAYLOAD_LINK;
    if (status == LMCS_OK)
        status = lmcs_root_seek(cursor, &f->txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){base.content, 0}, f->error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == base.content) {
        bool needs_it = true; /* a raw one may be stored by a link later */
        if (++f->looks > MOST_LOOKS) {
            f->whole = false;
            break;
        }
        if (is_link)
            status = lmcs_content_get(&f->txn, lmcs_cursor_key(cursor).low, &content, f->error);
        if (status == LMCS_OK && is_link)
            needs_it = content.df.payload != LMCS_PAYLOAD_RAW;
        if (status == LMCS_OK && needs_it)
            status = need(f, lmcs_cursor_key(cursor).low, base.root);
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, f->error);
    }
    return absorb(f, status);
}

static int by_content(const void *a, const void *b)
{
    const struct needed *x = a, *y = b;
    return LMCS_ORDER2(x->content, y->content, x->root, y->root);
}

static enum lmcs_status collect_needed(struct finding *f, const uint64_t *contents, size_t count)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_new(&cursor, f->error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = need(f, contents[i], i);
    for (size_t i = 0; status == LMCS_OK && i < f->needed_count && f->looks <= MOST_LOOKS; i++)
        status = add_dependents(f, cursor, i);
    lmcs_cursor_free(cursor);
    lmcs_map_free(&f->places);
    if (f->needed_count > 0)
        qsort(f->needed, f->needed_count, sizeof *f->needed, by_content);
    return status;
}

static const struct needed *find_needed(const struct finding *f, uint64_t content)
{
    size_t low = 0, high = f->needed_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (f->needed[middle].content < content)
            low = middle + 1;
        else
            high = middle;
    }
    return low < f->needed_count && f->needed[low].content == content ? &f->needed[low] : NULL;
}

/* ---- Pages ---- */

static enum lmcs_status add_hit(struct finding *f, size_t root, uint64_t identity)
{
    struct lmcs_holders *out = f->out;
    if (!lmcs_grow(&out->items, &out->capacity, out->count, sizeof *out->items))
        return lmcs_fail_memory(f->error);
    out->items[out->count++] = (struct lmcs_found_holder){.root = root,
                                                          .shelf = (uint32_t)out->shelf_count - 1,
                                                          .identity = identity,
                                                          .first = f->number,
                                                          .last = f->number,
                                                          .count = 1,
                                                          .ordinal = f->ordinal};
    return LMCS_OK;
}

static enum lmcs_status look_at_leaf(struct finding *f, const struct lmcs_node_df *node, size_t *hits)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < node->count; i++) {
        struct lmcs_manifest_df entry;
        if (node->slots[i].value_bytes != sizeof entry)
            continue;
        memcpy(&entry, lmcs_node_value(node, i), sizeof entry);
        const struct needed *end = f->needed + f->needed_count;
        for (const struct needed *at = find_needed(f, entry.content);
             status == LMCS_OK && at != NULL && at < end && at->content == entry.content; at++, ++*hits)
            status = add_hit(f, at->root, lmcs_node_key(node, i).high);
    }
    return status;
}

static enum lmcs_status walk(struct finding *f, struct lmcs_ref_df ref, int level, const struct lmcs_bounds *bounds,
                             size_t *hits)
{
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *node;
    size_t below = 0;
    bool whole = f->whole;
    if (lmcs_map_get(&f->clean, ref.offset) != 0)
        return LMCS_OK;
    f->whole = true;
    enum lmcs_status status = lmcs_page_read(&f->txn, &ref, LMCS_TREE_MANIFEST, buffer, &node, f->error);
    if (status == LMCS_OK && ((level >= 0 && node->level != level) || !lmcs_node_in_bounds(node, bounds)))
        status = LMCS_DAMAGED;
    if (status == LMCS_OK && node->level == 0)
        status = look_at_leaf(f, node, &below);
    for (size_t i = 0; status == LMCS_OK && node->level > 0 && i < node->count; i++) {
        struct lmcs_bounds inner = lmcs_child_bounds(node, i, bounds);
        status = walk(f, lmcs_node_child(node, i), node->level - 1, &inner, &below);
    }
    status = absorb(f, status);
    if (status == LMCS_OK && below == 0 && f->whole)
        status = lmcs_map_put(&f->clean, ref.offset, 1) ? LMCS_OK : lmcs_fail_memory(f->error);
    *hits += below;
    f->whole &= whole;
    return status;
}

/* ---- Snapshots ---- */

static enum lmcs_status look_at_snapshot(struct finding *f, struct lmcs_shelf *shelf)
{
    const struct lmcs_bounds everywhere = {{0, 0}, {0, 0}, false};
    struct lmcs_record record;
    size_t hits = 0;
    bool found;
    enum lmcs_status status = lmcs_record_get(&f->txn, shelf, f->number, &record, &found, f->error);
    if (status == LMCS_OK && found && record.df.manifest.offset != 0)
        status = walk(f, record.df.manifest, -1, &everywhere, &hits);
    return absorb(f, status);
}

static enum lmcs_status look_at_shelf(struct finding *f, uint64_t id)
{
    struct lmcs_shelf shelf;
    struct lmcs_holders *out = f->out;
    bool found;
    enum lmcs_status status = lmcs_shelf_load_if(&f->txn, id, &shelf, &found, f->error);
    if (status != LMCS_OK || !found || (shelf.df.flags & LMCS_SHELF_STAGING) != 0)
        return absorb(f, status);
    if (!lmcs_add_text(&out->shelf_names, &out->shelf_count, shelf.name))
        return lmcs_fail_memory(f->error);
    f->number = f->ordinal = 0;
    for (;;) {
        status = lmcs_record_after(&f->txn, &shelf, f->number, &f->number, f->error);
        if (status != LMCS_OK || f->number == 0)
            return absorb(f, status);
        f->ordinal++;
        status = look_at_snapshot(f, &shelf);
        if (status != LMCS_OK)
            return status;
    }
}

static int by_place(const void *a, const void *b)
{
    const struct lmcs_found_holder *x = a, *y = b;
    if (x->root != y->root)
        return LMCS_ORDER(x->root, y->root);
    if (x->shelf != y->shelf)
        return LMCS_ORDER(x->shelf, y->shelf);
    return LMCS_ORDER2(x->identity, y->identity, x->first, y->first);
}

static void join_runs(struct lmcs_holders *out)
{
    size_t kept = 0;
    if (out->count > 1)
        qsort(out->items, out->count, sizeof *out->items, by_place);
    for (size_t i = 0; i < out->count; i++) {
        struct lmcs_found_holder *last = kept > 0 ? &out->items[kept - 1] : NULL, *now = &out->items[i];
        bool joins =
            last != NULL && last->root == now->root && last->shelf == now->shelf && last->identity == now->identity;
        if (joins && last->ordinal == now->ordinal)
            continue;
        if (joins && last->ordinal + 1 == now->ordinal) {
            last->last = now->first;
            last->ordinal = now->ordinal;
            last->count++;
            continue;
        }
        out->items[kept++] = *now;
    }
    out->count = kept;
}

enum lmcs_status lmcs_holders_find(struct lmcs_pool *pool, const uint64_t *contents, size_t count,
                                   struct lmcs_holders *holders, bool *whole, struct lmcs_error *error)
{
    uint64_t ids[64], first = 0;
    size_t got = 64;
    struct lmcs_error local;
    struct finding f = {.pool = pool, .out = holders, .whole = true, .error = &local};
    *holders = (struct lmcs_holders){0};
    enum lmcs_status status = lmcs_txn_hold(pool, &f.txn, &local);
    if (status != LMCS_OK) {
        if (error != NULL)
            *error = local;
        return status;
    }
    status = collect_needed(&f, contents, count);
    while (status == LMCS_OK && got == 64) {
        status = absorb(&f, lmcs_shelf_ids(&f.txn, first, ids, 64, &got, &local));
        for (size_t i = 0; status == LMCS_OK && i < got; i++)
            status = look_at_shelf(&f, ids[i]);
        first = got > 0 ? ids[got - 1] + 1 : 0;
    }
    lmcs_txn_end(&f.txn);
    free(f.needed);
    lmcs_map_free(&f.clean);
    join_runs(holders);
    *whole = f.whole;
    if (status != LMCS_OK && error != NULL)
        *error = local;
    return status;
}

void lmcs_holders_free(struct lmcs_holders *holders)
{
    for (size_t i = 0; i < holders->shelf_count; i++)
        free(holders->shelf_names[i]);
    free(holders->shelf_names);
    free(holders->items);
    *holders = (struct lmcs_holders){0};
}
