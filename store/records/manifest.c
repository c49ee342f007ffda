/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/manifest.c - the entries of manifests.
 *
 * A page or entry exists in a contiguous run of a lineage (SPACE.md). A page of snapshot S is in the older neighbour P
 * exactly when it was written no later than P, and in the newer neighbour N exactly when a walk of N meets it. That
 * walk stops at pages no newer than S: the cost is that of the changes.
 */
#include "records/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "pages/pool.h"
#include "pages/tree.h"

struct walk {
    struct lmcs_txn *txn;
    const struct lmcs_snapshot_df *of;
    const struct lmcs_snapshot_df *older;
    const struct lmcs_snapshot_df *newer;
    struct lmcs_map in_newer; /* offsets of pages */
    bool free_pages;
    enum lmcs_status (*visit)(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                              uint64_t successor, struct lmcs_error *error);
    void *context;
    struct lmcs_error *error;
};

static enum lmcs_status read_node(struct walk *walk, const struct lmcs_ref_df *ref, int level,
                                  const struct lmcs_bounds *bounds, void *buffer, const struct lmcs_node_df **node)
{
    enum lmcs_status status = lmcs_page_read(walk->txn, ref, LMCS_TREE_MANIFEST, buffer, node, walk->error);
    if (status == LMCS_OK && level >= 0 && (*node)->level != level)
        return lmcs_fail(walk->error, LMCS_DAMAGED, 0, "%s: damaged metadata: a manifest's levels don't match",
                         walk->txn->pool->path);
    if (status == LMCS_OK && !lmcs_node_in_bounds(*node, bounds))
        return lmcs_fail(walk->error, LMCS_DAMAGED, 0, "%s: damaged metadata: a manifest's keys don't ascend",
                         walk->txn->pool->path);
    return status;
}

/* Collects the newer snapshot's pages that are old enough to be in `of`, without those below. */
static enum lmcs_status collect_newer(struct walk *walk, struct lmcs_ref_df ref, int level,
                                      const struct lmcs_bounds *bounds)
{
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *node;
    enum lmcs_status status = read_node(walk, &ref, level, bounds, buffer, &node);
    if (status != LMCS_OK)
        return status;
    if (node->epoch <= walk->of->epoch)
        return lmcs_map_put(&walk->in_newer, ref.offset, 1) ? LMCS_OK : lmcs_fail_memory(walk->error);
    for (size_t i = 0; status == LMCS_OK && node->level > 0 && i < node->count; i++) {
        struct lmcs_bounds inner = lmcs_child_bounds(node, i, bounds);
        status = collect_newer(walk, lmcs_node_child(node, i), node->level - 1, &inner);
    }
    return status;
}

static enum lmcs_status visit_entry(struct walk *walk, const struct lmcs_node_df *node, size_t i)
{
    struct lmcs_key_df key = lmcs_node_key(node, i);
    struct lmcs_manifest_df entry, after = {0, 0};
    if (node->slots[i].value_bytes != sizeof entry)
        return lmcs_fail(walk->error, LMCS_DAMAGED, 0, "%s: damaged metadata: an entry of a manifest",
                         walk->txn->pool->path);
    __builtin_memcpy(&entry, lmcs_node_value(node, i), sizeof entry);
    if (walk->older != NULL && entry.birth <= walk->older->number)
        return LMCS_OK;
    if (walk->newer != NULL) {
        struct lmcs_root_tree_df tree = {.ref = walk->newer->manifest, .count = walk->newer->entry_count};
        bool found;
        enum lmcs_status status = lmcs_tree_get(walk->txn, LMCS_TREE_MANIFEST, &tree, key, &after, sizeof after,
                                                sizeof after, NULL, &found, walk->error);
        if (status != LMCS_OK)
            return status;
        if (found && after.birth == entry.birth && after.content == entry.content)
            return LMCS_OK;
    }
    return walk->visit(walk->context, key.high, &entry, after.content, walk->error);
}

static enum lmcs_status walk_own(struct walk *walk, struct lmcs_ref_df ref, int level, const struct lmcs_bounds *bounds)
{
    if (lmcs_map_get(&walk->in_newer, ref.offset) != 0)
        return LMCS_OK;
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *node;
    enum lmcs_status status = read_node(walk, &ref, level, bounds, buffer, &node);
    if (status != LMCS_OK || (walk->older != NULL && node->epoch <= walk->older->epoch))
        return status;
    for (size_t i = 0; status == LMCS_OK && i < node->count; i++) {
        struct lmcs_bounds inner = lmcs_child_bounds(node, i, bounds);
        status = node->level == 0 ? visit_entry(walk, node, i)
                                  : walk_own(walk, lmcs_node_child(node, i), node->level - 1, &inner);
    }
    if (status == LMCS_OK && walk->free_pages)
        status = lmcs_page_free(walk->txn, ref.offset, false, walk->error);
    return status;
}

enum lmcs_status lmcs_manifest_own(struct lmcs_txn *txn, const struct lmcs_snapshot_df *of,
                                   const struct lmcs_snapshot_df *older, const struct lmcs_snapshot_df *newer,
                                   bool free_pages,
                                   enum lmcs_status (*visit)(void *context, uint64_t identity,
                                                             const struct lmcs_manifest_df *entry, uint64_t successor,
                                                             struct lmcs_error *error),
                                   void *context, struct lmcs_error *error)
{
    struct walk walk = {.txn = txn,
                        .of = of,
                        .older = older,
                        .newer = newer,
                        .free_pages = free_pages,
                        .visit = visit,
                        .context = context,
                        .error = error};
    const struct lmcs_bounds everywhere = {{0, 0}, {0, 0}, false};
    if (of->manifest.offset == 0)
        return LMCS_OK;
    enum lmcs_status status = LMCS_OK;
    if (newer != NULL && newer->manifest.offset != 0)
        status = collect_newer(&walk, newer->manifest, -1, &everywhere);
    if (status == LMCS_OK)
        status = walk_own(&walk, of->manifest, -1, &everywhere);
    lmcs_map_free(&walk.in_newer);
    return status;
}

/* ---- Entries ---- */

enum lmcs_status lmcs_manifest_each(struct lmcs_txn *txn, const struct lmcs_snapshot_df *of,
                                    enum lmcs_status (*visit)(void *context, uint64_t identity,
                                                              const struct lmcs_manifest_df *entry, bool *stop,
                                                              struct lmcs_error *error),
                                    void *context, struct lmcs_error *error)
{
    struct lmcs_root_tree_df manifest = {.ref = of->manifest, .count = of->entry_count};
    struct lmcs_cursor *cursor;
    bool stop = false;
    enum lmcs_status status =
        lmcs_cursor_open(&cursor, txn, LMCS_TREE_MANIFEST, &manifest, (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && !stop && lmcs_cursor_valid(cursor)) {
        struct lmcs_manifest_df entry;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        if (bytes != sizeof entry) {
            status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: an entry of a manifest", txn->pool->path);
            break;
        }
        memcpy(&entry, value, sizeof entry);
        status = visit(context, lmcs_cursor_key(cursor).high, &entry, &stop, error);
        if (status == LMCS_OK && !stop)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

#define SAME_NAME 64 /* identities of one name read at once */

enum lmcs_status lmcs_manifest_find(struct lmcs_txn *txn, const struct lmcs_snapshot_df *of, uint32_t kind,
                                    const char *name, struct lmcs_identity *identity, uint64_t *content, bool *found,
                                    struct lmcs_error *error)
{
    struct lmcs_root_tree_df manifest = {.ref = of->manifest, .count = of->entry_count};
    uint64_t ids[SAME_NAME];
    size_t count = SAME_NAME;
    uint64_t first = 0;
    enum lmcs_status status = LMCS_OK;
    *found = false;
    while (status == LMCS_OK && !*found && count == SAME_NAME && first < UINT64_MAX) {
        status = lmcs_identity_named(txn, kind, name, first, ids, SAME_NAME, &count, error);
        for (size_t i = 0; status == LMCS_OK && !*found && i < count; i++) {
            struct lmcs_manifest_df entry;
            status = lmcs_tree_get(txn, LMCS_TREE_MANIFEST, &manifest, (struct lmcs_key_df){ids[i], 0}, &entry,
                                   sizeof entry, sizeof entry, NULL, found, error);
            if (status == LMCS_OK && *found) {
                *content = entry.content;
                status = lmcs_identity_get(txn, ids[i], identity, error);
            }
            first = ids[i] < UINT64_MAX ? ids[i] + 1 : UINT64_MAX;
        }
    }
    return status;
}
