/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/cursor.c - trees read: one key, the key before, walks. */
#include <stdlib.h>
#include <string.h>

#include "pages/node.h"
#include "pages/pool.h"

struct lookup {
    struct lmcs_key_df key;
    uint8_t kind;
    int level;               /* of the next page; -1: any */
    struct lmcs_ref_df next; /* the page below; 0: it was a leaf */
    void *value;
    size_t least, most;
    size_t bytes;
    bool found;
    const char *why; /* NULL: sound */
};

static void look_in_page(void *context, const struct lmcs_node_df *node)
{
    struct lookup *l = context;
    l->next.offset = 0;
    if (node->kind != l->kind)
        l->why = "a page belongs to another tree";
    else if (l->level >= 0 && node->level != l->level)
        l->why = "a tree's levels don't match";
    if (l->why != NULL)
        return;
    if (node->level > 0) {
        l->level = node->level - 1;
        l->next = lmcs_node_child(node, lmcs_node_child_of(node, l->key));
        if (l->next.offset == 0)
            l->why = "a tree refers to no page";
        return;
    }
    size_t i = lmcs_node_find(node, l->key);
    if (i == node->count || lmcs_key_compare(lmcs_node_key(node, i), l->key) != 0)
        return;
    l->found = true;
    l->bytes = node->slots[i].value_bytes;
    if (l->bytes < l->least || l->bytes > l->most)
        l->why = "a record has the wrong size";
    else
        memcpy(l->value, lmcs_node_value(node, i), l->bytes);
}

enum lmcs_status lmcs_tree_get(struct lmcs_txn *txn, uint8_t kind, const struct lmcs_root_tree_df *tree,
                               struct lmcs_key_df key, void *value, size_t least, size_t most, size_t *bytes,
                               bool *found, struct lmcs_error *error)
{
    bool tail = lmcs_tree_in_tail(tree, key);
    struct lookup l = {.key = key,
                       .kind = kind,
                       .level = tail ? 0 : -1,
                       .next = tail ? tree->tail : tree->ref,
                       .value = value,
                       .least = least,
                       .most = most};
    *found = false;
    while (l.next.offset != 0) {
        struct lmcs_ref_df ref = l.next;
        enum lmcs_status status = lmcs_page_show(txn, &ref, kind, look_in_page, &l, error);
        if (status != LMCS_OK)
            return status;
        if (l.why != NULL)
            return lmcs_tree_fail(txn, l.why, error);
    }
    *found = l.found;
    if (l.found && bytes != NULL)
        *bytes = l.bytes;
    return LMCS_OK;
}

struct cursor_level {
    const struct lmcs_node_df *node;
    size_t index;
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
};

struct lmcs_cursor {
    struct lmcs_txn *txn;
    uint8_t kind;
    int leaf;                /* its level; -1: past the end */
    int broken;              /* level of the page that a move could not read; -1: none */
    struct lmcs_key_df from; /* entries behind a skipped page are not less */
    struct lmcs_ref_df tail; /* visited last; 0: none or done */
    struct cursor_level levels[LMCS_MAX_LEVEL + 1];
};

enum lmcs_status lmcs_cursor_new(struct lmcs_cursor **cursor, struct lmcs_error *error)
{
    *cursor = malloc(sizeof **cursor);
    if (*cursor == NULL)
        return lmcs_fail_memory(error);
    (*cursor)->leaf = -1;
    (*cursor)->broken = -1;
    return LMCS_OK;
}

void lmcs_cursor_free(struct lmcs_cursor *cursor)
{
    free(cursor);
}
bool lmcs_cursor_valid(const struct lmcs_cursor *cursor)
{
    return cursor != NULL && cursor->leaf >= 0;
}

struct lmcs_key_df lmcs_cursor_key(const struct lmcs_cursor *cursor)
{
    const struct cursor_level *level = &cursor->levels[cursor->leaf];
    return lmcs_node_key(level->node, level->index);
}

const void *lmcs_cursor_value(const struct lmcs_cursor *cursor, size_t *bytes)
{
    const struct cursor_level *level = &cursor->levels[cursor->leaf];
    if (bytes != NULL)
        *bytes = level->node->slots[level->index].value_bytes;
    return lmcs_node_value(level->node, level->index);
}

/* Descends from `ref` at `depth` to `key` (NULL: the first entry). */
static enum lmcs_status descend(struct lmcs_cursor *cursor, struct lmcs_ref_df ref, int depth,
                                const struct lmcs_key_df *key, struct lmcs_error *error)
{
    for (;; depth++) {
        struct cursor_level *level = &cursor->levels[depth];
        cursor->broken = depth;
        enum lmcs_status status = lmcs_page_read(cursor->txn, &ref, cursor->kind, level->buffer, &level->node, error);
        if (status != LMCS_OK)
            return status;
        if (depth > 0 && level->node->level + 1 != cursor->levels[depth - 1].node->level)
            return lmcs_tree_fail(cursor->txn, "a tree's levels don't match", error);
        if (level->node->level == 0) {
            level->index = key == NULL ? 0 : lmcs_node_find(level->node, *key);
            cursor->leaf = depth;
            cursor->broken = -1;
            return LMCS_OK;
        }
        level->index = key == NULL ? 0 : lmcs_node_child_of(level->node, *key);
        ref = lmcs_node_child(level->node, level->index);
    }
}

static enum lmcs_status enter_tail(struct lmcs_cursor *cursor, const struct lmcs_key_df *key, struct lmcs_error *error)
{
    struct lmcs_ref_df tail = cursor->tail;
    cursor->tail.offset = 0;
    enum lmcs_status status = descend(cursor, tail, 0, key, error);
    if (status == LMCS_OK && cursor->leaf != 0) {
        cursor->leaf = -1;
        status = lmcs_tree_fail(cursor->txn, "a tree's levels don't match", error);
    }
    return status;
}

/* The level with a next entry or child at or above `depth`; -1: none. */
static int climb(struct lmcs_cursor *cursor, int depth)
{
    while (depth >= 0 && cursor->levels[depth].index >= cursor->levels[depth].node->count) {
        if (--depth >= 0)
            cursor->levels[depth].index++;
    }
    return depth;
}

/* Moves to the first entry below the present child at `depth`; -1: to the tail, if any. */
static enum lmcs_status enter_next(struct lmcs_cursor *cursor, int depth, struct lmcs_error *error)
{
    cursor->leaf = -1;
    if (depth < 0)
        return cursor->tail.offset != 0 ? enter_tail(cursor, NULL, error) : LMCS_OK;
    struct lmcs_ref_df ref = lmcs_node_child(cursor->levels[depth].node, cursor->levels[depth].index);
    return descend(cursor, ref, depth + 1, NULL, error);
}

/* Moves from the end of a page to the next entry. */
static enum lmcs_status settle(struct lmcs_cursor *cursor, struct lmcs_error *error)
{
    int depth = climb(cursor, cursor->leaf);
    return depth >= 0 && depth == cursor->leaf ? LMCS_OK : enter_next(cursor, depth, error);
}

/* An order that does not ascend: no page behind it can be trusted to be another one. */
static enum lmcs_status fail_order(struct lmcs_cursor *cursor, struct lmcs_error *error)
{
    cursor->leaf = -1;
    cursor->broken = -1;
    return lmcs_tree_fail_order(cursor->txn, error);
}

static struct lmcs_key_df key_after(struct lmcs_key_df key)
{
    key.high += ++key.low == 0;
    return key;
}

enum lmcs_status lmcs_cursor_skip(struct lmcs_cursor *cursor, struct lmcs_error *error)
{
    int depth = cursor->broken - 1;
    bool in_tail = cursor->broken == 0 && cursor->tail.offset == 0;
    if (cursor->broken < 0 || in_tail) {
        cursor->broken = cursor->leaf = -1;
        return LMCS_OK;
    }
    cursor->broken = -1;
    if (depth >= 0)
        cursor->levels[depth].index++;
    depth = climb(cursor, depth);
    /* Children that ascend are each entered once, also if forged pages refer to one page twice. */
    struct lmcs_key_df low = cursor->from;
    if (depth >= 0)
        low = lmcs_node_key(cursor->levels[depth].node, cursor->levels[depth].index);
    if (lmcs_key_compare(low, cursor->from) < 0)
        return fail_order(cursor, error);
    cursor->from = depth >= 0 ? key_after(low) : low;
    enum lmcs_status status = enter_next(cursor, depth, error);
    if (status == LMCS_OK && cursor->leaf >= 0 && lmcs_key_compare(lmcs_cursor_key(cursor), low) < 0)
        return fail_order(cursor, error);
    return status;
}

enum lmcs_status lmcs_cursor_seek(struct lmcs_cursor *cursor, struct lmcs_txn *txn, uint8_t kind,
                                  const struct lmcs_root_tree_df *tree, struct lmcs_key_df key,
                                  struct lmcs_error *error)
{
    cursor->txn = txn;
    cursor->kind = kind;
    cursor->leaf = -1;
    cursor->broken = -1;
    cursor->from = key;
    cursor->tail = tree->tail;
    if (tree->ref.offset == 0)
        return LMCS_OK;
    enum lmcs_status status =
        lmcs_tree_in_tail(tree, key) ? enter_tail(cursor, &key, error) : descend(cursor, tree->ref, 0, &key, error);
    if (status == LMCS_OK)
        status = settle(cursor, error);
    /* Keys less than `key` in the next leaf would make a walk repeat entries. */
    if (status == LMCS_OK && cursor->leaf >= 0 && lmcs_key_compare(lmcs_cursor_key(cursor), key) < 0)
        return fail_order(cursor, error);
    return status;
}

enum lmcs_status lmcs_cursor_next(struct lmcs_cursor *cursor, struct lmcs_error *error)
{
    struct lmcs_key_df before = lmcs_cursor_key(cursor);
    cursor->levels[cursor->leaf].index++;
    enum lmcs_status status = settle(cursor, error);
    /* A cycle of pages would be walked forever. */
    if (status == LMCS_OK && cursor->leaf >= 0 && lmcs_key_compare(lmcs_cursor_key(cursor), before) <= 0)
        return fail_order(cursor, error);
    if (status != LMCS_OK)
        cursor->from = key_after(before);
    return status;
}

enum lmcs_status lmcs_cursor_open(struct lmcs_cursor **cursor, struct lmcs_txn *txn, uint8_t kind,
                                  const struct lmcs_root_tree_df *tree, struct lmcs_key_df key,
                                  struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_cursor_new(cursor, error);
    return status == LMCS_OK ? lmcs_cursor_seek(*cursor, txn, kind, tree, key, error) : status;
}

static enum lmcs_status before_below(struct lmcs_txn *txn, uint8_t kind, struct lmcs_ref_df ref, int level,
                                     struct lmcs_key_df key, struct lmcs_key_df *before, bool *found,
                                     struct lmcs_error *error)
{
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *node;
    enum lmcs_status status = lmcs_page_read(txn, &ref, kind, buffer, &node, error);
    if (status != LMCS_OK)
        return status;
    if (level >= 0 && node->level != level)
        return lmcs_tree_fail(txn, "a tree's levels don't match", error);
    if (node->level == 0) {
        size_t i = lmcs_node_find(node, key);
        *found = i > 0;
        if (i > 0)
            *before = lmcs_node_key(node, i - 1);
        return LMCS_OK;
    }
    /*
     * If the key's child has only greater keys, its left neighbour has a smaller one. With forged pages, searching on
     * would visit each page once for every path to it.
     */
    size_t i = lmcs_node_child_of(node, key);
    status = before_below(txn, kind, lmcs_node_child(node, i), node->level - 1, key, before, found, error);
    if (status != LMCS_OK || *found || i == 0)
        return status;
    status = before_below(txn, kind, lmcs_node_child(node, i - 1), node->level - 1, key, before, found, error);
    return status == LMCS_OK && !*found ? lmcs_tree_fail_order(txn, error) : status;
}

enum lmcs_status lmcs_tree_before(struct lmcs_txn *txn, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                  struct lmcs_key_df key, struct lmcs_key_df *before, bool *found,
                                  struct lmcs_error *error)
{
    *found = false;
    if (lmcs_tree_in_tail(tree, key)) {
        enum lmcs_status status = before_below(txn, kind, tree->tail, 0, key, before, found, error);
        if (status != LMCS_OK || *found)
            return status;
    }
    return tree->ref.offset == 0 ? LMCS_OK : before_below(txn, kind, tree->ref, -1, key, before, found, error);
}
