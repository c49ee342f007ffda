/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/tree.c - copy-on-write B+ trees.
 *
 * Nodes are slotted pages (layout.h). The way down copies each page on first touch, so that a change ends at the
 * root of the tree; splits and merges go up as the recursion returns. Keys that arrive in ascending order fill pages
 * the brim: a page that overflows at its right end is left as it is. A page is merged with a neighbour when
 * it falls below a quarter and both fit in one.
 *
 * Most keys of a store ascend: numbers, steps, times, contents, epochs. The newest are therefore kept in a leaf of
 * their own beside the tree, the tail, so that adding one writes one page, however high the tree is. A tail that is
 * full goes below the tree as its last leaf, and a new one begins.
 */
#include "pages/tree.h"

#include <stdlib.h>
#include <string.h>

#include "pages/pool.h"

#define ROOM       (LMCS_PAGE_BYTES - sizeof(struct lmcs_node_df))
#define KEY_BYTES  sizeof(struct lmcs_key_df)
#define SLOT_BYTES sizeof(struct lmcs_slot_df)

/* ---- Nodes ---- */

struct lmcs_key_df lmcs_node_key(const struct lmcs_node_df *node, size_t i)
{
    struct lmcs_key_df key;
    memcpy(&key, (const char *)node + node->slots[i].offset, sizeof key);
    return key;
}

const void *lmcs_node_value(const struct lmcs_node_df *node, size_t i)
{
    return (const char *)node + node->slots[i].offset + KEY_BYTES;
}

struct lmcs_ref_df lmcs_node_child(const struct lmcs_node_df *node, size_t i)
{
    struct lmcs_ref_df ref;
    memcpy(&ref, lmcs_node_value(node, i), sizeof ref);
    return ref;
}

bool lmcs_in_bounds(const struct lmcs_bounds *bounds, struct lmcs_key_df key)
{
    return lmcs_key_compare(key, bounds->low) >= 0 && (!bounds->has_high || lmcs_key_compare(key, bounds->high) < 0);
}

struct lmcs_bounds lmcs_child_bounds(const struct lmcs_node_df *node, size_t i, const struct lmcs_bounds *bounds)
{
    struct lmcs_bounds inner = *bounds;
    if (i > 0)
        inner.low = lmcs_node_key(node, i);
    if (i + 1u < node->count) {
        inner.high = lmcs_node_key(node, i + 1);
        inner.has_high = true;
    }
    return inner;
}

bool lmcs_node_in_bounds(const struct lmcs_node_df *node, const struct lmcs_bounds *bounds)
{
    size_t first = node->level > 0; /* its first key means nothing: see lower_bound */
    for (size_t i = first; i < node->count; i++)
        if (!lmcs_in_bounds(bounds, lmcs_node_key(node, i)) ||
            (i > first && lmcs_key_compare(lmcs_node_key(node, i - 1), lmcs_node_key(node, i)) >= 0))
            return false;
    return true;
}

static void set_child(struct lmcs_node_df *node, size_t i, struct lmcs_ref_df ref)
{
    memcpy((char *)node + node->slots[i].offset + KEY_BYTES, &ref, sizeof ref);
}

/*
 * The first slot whose key is not less than `key`. An inner page's first key means nothing: when a page before it has
 * gone, its first child may have got keys that are less.
 */
static size_t lower_bound(const struct lmcs_node_df *node, struct lmcs_key_df key)
{
    size_t low = node->level > 0 && node->count > 0, high = node->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (lmcs_key_compare(lmcs_node_key(node, middle), key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The child in which `key` belongs. */
static size_t child_index(const struct lmcs_node_df *node, struct lmcs_key_df key)
{
    size_t i = lower_bound(node, key);
    if (i < node->count && lmcs_key_compare(lmcs_node_key(node, i), key) == 0)
        return i;
    return i == 0 ? 0 : i - 1;
}

static bool has_tail(const struct lmcs_root_tree_df *tree)
{
    return tree->tail.offset != 0;
}

/* Whether `key` belongs in the tail. */
static bool in_tail(const struct lmcs_root_tree_df *tree, struct lmcs_key_df key)
{
    return has_tail(tree) && lmcs_key_compare(key, tree->tail_from) >= 0;
}

static void drop_tail(struct lmcs_root_tree_df *tree)
{
    tree->tail = (struct lmcs_ref_df){0, 0};
    tree->tail_from = (struct lmcs_key_df){0, 0};
}

static size_t used_bytes(const struct lmcs_node_df *node)
{
    return LMCS_PAGE_BYTES - node->low - node->garbage + node->count * SLOT_BYTES;
}

static size_t entry_bytes(const struct lmcs_node_df *node, size_t i)
{
    return SLOT_BYTES + KEY_BYTES + node->slots[i].value_bytes;
}

/*
 * Adds an entry behind the last slot. There is room, by the sums that were checked when the page was read (txn.c);
 * false: all the same there is not, so they were wrong.
 */
static bool append(struct lmcs_node_df *node, struct lmcs_key_df key, const void *value, size_t bytes)
{
    if (sizeof *node + (node->count + 1u) * SLOT_BYTES + KEY_BYTES + bytes > node->low)
        return false;
    node->low = (uint16_t)(node->low - KEY_BYTES - bytes);
    node->slots[node->count++] = (struct lmcs_slot_df){node->low, (uint16_t)bytes};
    memcpy((char *)node + node->low, &key, KEY_BYTES);
    if (bytes > 0)
        memcpy((char *)node + node->low + KEY_BYTES, value, bytes);
    return true;
}

static bool append_from(struct lmcs_node_df *node, const struct lmcs_node_df *from, size_t i)
{
    return append(node, lmcs_node_key(from, i), lmcs_node_value(from, i), from->slots[i].value_bytes);
}

static void make_empty(struct lmcs_node_df *node)
{
    node->count = 0;
    node->garbage = 0;
    node->low = LMCS_PAGE_BYTES;
}

static bool squeeze(struct lmcs_node_df *node)
{
    _Alignas(8) unsigned char copy[LMCS_PAGE_BYTES];
    memcpy(copy, node, sizeof copy);
    const struct lmcs_node_df *from = (const struct lmcs_node_df *)copy;
    make_empty(node);
    for (size_t i = 0; i < from->count; i++)
        if (!append_from(node, from, i))
            return false;
    memset((char *)node + sizeof *node + node->count * SLOT_BYTES, 0,
           node->low - sizeof *node - node->count * SLOT_BYTES);
    return true;
}

static void remove_entry(struct lmcs_node_df *node, size_t i)
{
    node->garbage = (uint16_t)(node->garbage + KEY_BYTES + node->slots[i].value_bytes);
    memmove(&node->slots[i], &node->slots[i + 1], (node->count - i - 1) * SLOT_BYTES);
    node->count--;
}

enum placed { PLACED, NO_ROOM, NONSENSE /* the page's sums are wrong: nothing of it may be committed */ };

static enum placed insert_entry(struct lmcs_node_df *node, size_t i, struct lmcs_key_df key, const void *value,
                                size_t bytes)
{
    if (used_bytes(node) + SLOT_BYTES + KEY_BYTES + bytes > ROOM)
        return NO_ROOM;
    bool gaps = sizeof *node + (node->count + 1u) * SLOT_BYTES + KEY_BYTES + bytes > node->low;
    if ((gaps && !squeeze(node)) || !append(node, key, value, bytes))
        return NONSENSE;
    struct lmcs_slot_df slot = node->slots[node->count - 1];
    memmove(&node->slots[i + 1], &node->slots[i], (node->count - 1u - i) * SLOT_BYTES);
    node->slots[i] = slot;
    return PLACED;
}

/* ---- Putting ---- */

struct change {
    struct lmcs_txn *txn;
    struct lmcs_root_tree_df *tree;
    uint8_t kind;
    uint8_t level; /* put: of the page that the entry goes to */
    bool shared;
    bool added; /* put: the key was not there */
    bool last;  /* put: so far, the way down led to the last child */
    struct lmcs_key_df key;
    const void *value;
    size_t bytes;
    struct lmcs_error *error;
};

struct split {
    bool happened;
    struct lmcs_key_df key; /* of the new right page */
    struct lmcs_ref_df ref;
};

static enum lmcs_status fail_tree(struct lmcs_txn *txn, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: %s", txn->pool->path, why);
}

static enum lmcs_status fail_sums(struct lmcs_txn *txn, struct lmcs_error *error)
{
    return fail_tree(txn, "a page has more in it than it says", error);
}

static enum lmcs_status fail_order(struct lmcs_txn *txn, struct lmcs_error *error)
{
    return fail_tree(txn, "a tree's keys don't ascend", error);
}

/* Where to cut so that both halves, one of them with the new entry at `at`, fit: the left one gets `cut` entries of
 * the sequence with the new one in its place. */
static size_t choose_cut(const struct lmcs_node_df *node, size_t at, size_t bytes)
{
    size_t total = used_bytes(node) + SLOT_BYTES + KEY_BYTES + bytes;
    if (at == node->count)
        return node->count; /* ascending keys: keep the left page full */
    size_t left = 0;
    for (size_t i = 0; i <= node->count; i++) {
        left += i == at ? SLOT_BYTES + KEY_BYTES + bytes : entry_bytes(node, i < at ? i : i - 1);
        if (left >= total / 2)
            return left <= ROOM ? i + 1 : i;
    }
    return node->count;
}

static enum lmcs_status split_node(struct change *change, struct lmcs_node_df *node, size_t at, struct lmcs_key_df key,
                                   const void *value, size_t bytes, struct split *split)
{
    struct lmcs_node_df *right;
    enum lmcs_status status = lmcs_page_new(change->txn, change->kind, node->level, &split->ref, &right, change->error);
    if (status != LMCS_OK)
        return status;
    _Alignas(8) unsigned char copy[LMCS_PAGE_BYTES];
    memcpy(copy, node, sizeof copy);
    const struct lmcs_node_df *from = (const struct lmcs_node_df *)copy;
    size_t cut = choose_cut(from, at, bytes);
    make_empty(node);
    for (size_t i = 0; i <= from->count; i++) {
        struct lmcs_node_df *to = i < cut ? node : right;
        if (!(i == at ? append(to, key, value, bytes) : append_from(to, from, i < at ? i : i - 1)))
            return fail_sums(change->txn, change->error);
    }
    if (right->count == 0)
        return fail_sums(change->txn, change->error);
    memset((char *)node + sizeof *node + node->count * SLOT_BYTES, 0,
           node->low - sizeof *node - node->count * SLOT_BYTES);
    split->happened = true;
    split->key = lmcs_node_key(right, 0);
    return LMCS_OK;
}

/* A leaf of its own for a key beyond all that are in the tree. */
static enum lmcs_status begin_tail(struct change *change)
{
    struct lmcs_node_df *node;
    enum lmcs_status status = lmcs_page_new(change->txn, change->kind, 0, &change->tree->tail, &node, change->error);
    if (status != LMCS_OK)
        return status;
    change->tree->tail_from = change->key;
    return append(node, change->key, change->value, change->bytes) ? LMCS_OK : fail_sums(change->txn, change->error);
}

static enum lmcs_status put_in_page(struct change *change, struct lmcs_node_df *node, struct split *split)
{
    size_t i = lower_bound(node, change->key);
    bool there = i < node->count && lmcs_key_compare(lmcs_node_key(node, i), change->key) == 0;
    change->added = !there;
    if (there && node->level > 0)
        return fail_tree(change->txn, "a tail begins where a page does", change->error);
    if (there && node->slots[i].value_bytes == change->bytes) {
        if (change->bytes > 0)
            memcpy((char *)node + node->slots[i].offset + KEY_BYTES, change->value, change->bytes);
        return LMCS_OK;
    }
    if (there)
        remove_entry(node, i);
    enum placed placed = insert_entry(node, i, change->key, change->value, change->bytes);
    if (placed != NO_ROOM)
        return placed == PLACED ? LMCS_OK : fail_sums(change->txn, change->error);
    if (i == node->count && change->last && !change->shared && change->level == 0 && !has_tail(change->tree))
        return begin_tail(change);
    return split_node(change, node, i, change->key, change->value, change->bytes, split);
}

static enum lmcs_status put_below(struct change *change, struct lmcs_ref_df *ref, int level, struct split *split)
{
    struct lmcs_node_df *node;
    enum lmcs_status status = lmcs_page_write(change->txn, ref, change->kind, change->shared, &node, change->error);
    if (status != LMCS_OK)
        return status;
    if (level >= 0 && node->level != level)
        return fail_tree(change->txn, "a tree's levels don't match", change->error);
    if (node->level == change->level)
        return put_in_page(change, node, split);
    if (node->level < change->level)
        return fail_tree(change->txn, "a tree's levels don't match", change->error);
    size_t i = child_index(node, change->key);
    change->last = change->last && i + 1u == node->count;
    struct lmcs_ref_df child = lmcs_node_child(node, i);
    struct split below = {0};
    status = put_below(change, &child, node->level - 1, &below);
    if (status != LMCS_OK)
        return status;
    set_child(node, i, child);
    enum placed placed = below.happened ? insert_entry(node, i + 1, below.key, &below.ref, sizeof below.ref) : PLACED;
    if (placed != NO_ROOM)
        return placed == PLACED ? LMCS_OK : fail_sums(change->txn, change->error);
    return split_node(change, node, i + 1, below.key, &below.ref, sizeof below.ref, split);
}

static enum lmcs_status raise_root(struct change *change, const struct split *split)
{
    struct lmcs_root_tree_df *tree = change->tree;
    struct lmcs_node_df *old = lmcs_page_dirty(change->txn, tree->ref.offset);
    struct lmcs_node_df *root;
    struct lmcs_ref_df ref;
    if (old == NULL || old->level >= LMCS_MAX_LEVEL)
        return fail_tree(change->txn, "a tree is too high", change->error);
    enum lmcs_status status =
        lmcs_page_new(change->txn, change->kind, (uint8_t)(old->level + 1), &ref, &root, change->error);
    if (status != LMCS_OK)
        return status;
    if (!append(root, (struct lmcs_key_df){0, 0}, &tree->ref, sizeof tree->ref) ||
        !append(root, split->key, &split->ref, sizeof split->ref))
        return fail_sums(change->txn, change->error);
    tree->ref = ref;
    return LMCS_OK;
}

/* Makes the tail the last leaf below the root. */
static enum lmcs_status attach_tail(struct change *change)
{
    struct lmcs_root_tree_df *tree = change->tree;
    struct change attach = {.txn = change->txn,
                            .tree = tree,
                            .kind = change->kind,
                            .level = 1,
                            .key = tree->tail_from,
                            .value = &tree->tail,
                            .bytes = sizeof tree->tail,
                            .error = change->error};
    struct split split = {true, tree->tail_from, tree->tail};
    struct lmcs_node_df *root;
    enum lmcs_status status = lmcs_page_write(change->txn, &tree->ref, change->kind, false, &root, change->error);
    if (status == LMCS_OK && root->level > 0) {
        split.happened = false;
        status = put_below(&attach, &tree->ref, -1, &split);
    }
    if (status == LMCS_OK && split.happened)
        status = raise_root(&attach, &split);
    return status;
}

static enum lmcs_status put_in_tail(struct change *change)
{
    struct lmcs_root_tree_df *tree = change->tree;
    struct lmcs_node_df *node;
    struct split split = {0};
    enum lmcs_status status = lmcs_page_write(change->txn, &tree->tail, change->kind, false, &node, change->error);
    if (status == LMCS_OK && node->level != 0)
        status = fail_tree(change->txn, "a tree's levels don't match", change->error);
    if (status == LMCS_OK)
        status = put_in_page(change, node, &split);
    if (status != LMCS_OK || !split.happened)
        return status;
    status = attach_tail(change);
    tree->tail = split.ref;
    tree->tail_from = split.key;
    return status;
}

enum lmcs_status lmcs_tree_put(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                               struct lmcs_key_df key, const void *value, size_t bytes, struct lmcs_error *error)
{
    struct change change = {.txn = txn,
                            .tree = tree,
                            .kind = kind,
                            .shared = kind == LMCS_TREE_MANIFEST,
                            .last = true,
                            .key = key,
                            .value = value,
                            .bytes = bytes,
                            .error = error};
    if (bytes > LMCS_MAX_VALUE)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: a record of %zu bytes is too long", txn->pool->path, bytes);
    if (tree->ref.offset == 0) {
        struct lmcs_node_df *node;
        enum lmcs_status status = lmcs_page_new(txn, kind, 0, &tree->ref, &node, error);
        if (status != LMCS_OK)
            return status;
        tree->count = 1;
        return append(node, key, value, bytes) ? LMCS_OK : fail_sums(txn, error);
    }
    enum lmcs_status status;
    if (in_tail(tree, key)) {
        status = put_in_tail(&change);
    } else {
        struct split split = {0};
        status = put_below(&change, &tree->ref, -1, &split);
        if (status == LMCS_OK && split.happened)
            status = raise_root(&change, &split);
    }
    if (status == LMCS_OK && change.added)
        tree->count++;
    return status;
}

/* ---- Deleting ---- */

/* Merges child i + 1 of `node` into child i when both fit in one page. */
static enum lmcs_status try_merge(struct change *change, struct lmcs_node_df *node, size_t i)
{
    struct lmcs_ref_df left_ref = lmcs_node_child(node, i), right_ref = lmcs_node_child(node, i + 1);
    _Alignas(8) unsigned char left_copy[LMCS_PAGE_BYTES], right_copy[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *left, *right;
    enum lmcs_status status = lmcs_page_read(change->txn, &left_ref, change->kind, left_copy, &left, change->error);
    if (status == LMCS_OK)
        status = lmcs_page_read(change->txn, &right_ref, change->kind, right_copy, &right, change->error);
    if (status != LMCS_OK || left->level != right->level || used_bytes(left) + used_bytes(right) > ROOM)
        return status;
    struct lmcs_node_df *into;
    status = lmcs_page_write(change->txn, &left_ref, change->kind, change->shared, &into, change->error);
    if (status != LMCS_OK)
        return status;
    bool fits = squeeze(into);
    for (size_t k = 0; fits && k < right->count; k++)
        fits = k > 0 || right->level == 0
                   ? append_from(into, right, k)
                   : append(into, lmcs_node_key(node, i + 1), lmcs_node_value(right, k), right->slots[k].value_bytes);
    if (!fits) /* as when both are the same page */
        return fail_sums(change->txn, change->error);
    set_child(node, i, left_ref);
    remove_entry(node, i + 1);
    return lmcs_page_free(change->txn, right_ref.offset, change->shared, change->error);
}

static enum lmcs_status repair_child(struct change *change, struct lmcs_node_df *node, size_t i,
                                     const struct lmcs_node_df *child)
{
    if (child->count == 0) {
        enum lmcs_status status = lmcs_page_free(change->txn, child->self, change->shared, change->error);
        /* The next child takes over its range, so that the node's keys still begin where its parent says. */
        if (i == 0 && node->count > 1)
            memcpy((char *)node + node->slots[1].offset, (char *)node + node->slots[0].offset, KEY_BYTES);
        remove_entry(node, i);
        return status;
    }
    if (used_bytes(child) >= ROOM / 4)
        return LMCS_OK;
    if (i + 1 < node->count)
        return try_merge(change, node, i);
    return i > 0 ? try_merge(change, node, i - 1) : LMCS_OK;
}

static enum lmcs_status delete_below(struct change *change, struct lmcs_ref_df *ref, int level)
{
    struct lmcs_node_df *node;
    enum lmcs_status status = lmcs_page_write(change->txn, ref, change->kind, change->shared, &node, change->error);
    if (status != LMCS_OK)
        return status;
    if (level >= 0 && node->level != level)
        return fail_tree(change->txn, "a tree's levels don't match", change->error);
    if (node->level == 0) {
        size_t i = lower_bound(node, change->key);
        remove_entry(node, i); /* the caller has looked: it is there */
        return LMCS_OK;
    }
    size_t i = child_index(node, change->key);
    struct lmcs_ref_df child = lmcs_node_child(node, i);
    status = delete_below(change, &child, node->level - 1);
    if (status != LMCS_OK)
        return status;
    set_child(node, i, child);
    return repair_child(change, node, i, lmcs_page_dirty(change->txn, child.offset));
}

/* A root with one child gives way to it; one without entries, to the tail. */
static enum lmcs_status lower_root(struct change *change)
{
    struct lmcs_root_tree_df *tree = change->tree;
    for (;;) {
        struct lmcs_node_df *root = lmcs_page_dirty(change->txn, tree->ref.offset);
        if (root == NULL || (root->count > 1 || (root->level == 0 && root->count == 1)))
            return LMCS_OK;
        struct lmcs_ref_df child = {0, 0};
        if (root->count == 1)
            child = lmcs_node_child(root, 0);
        enum lmcs_status status = lmcs_page_free(change->txn, tree->ref.offset, change->shared, change->error);
        bool empty = child.offset == 0;
        tree->ref = empty ? tree->tail : child;
        if (empty)
            drop_tail(tree);
        if (status != LMCS_OK || empty)
            return status;
    }
}

static enum lmcs_status delete_in_tail(struct change *change)
{
    struct lmcs_root_tree_df *tree = change->tree;
    struct lmcs_node_df *node;
    enum lmcs_status status = lmcs_page_write(change->txn, &tree->tail, change->kind, false, &node, change->error);
    if (status != LMCS_OK)
        return status;
    remove_entry(node, lower_bound(node, change->key)); /* the caller has looked: it is there */
    if (node->count > 0)
        return LMCS_OK;
    status = lmcs_page_free(change->txn, tree->tail.offset, false, change->error);
    drop_tail(tree);
    return status;
}

enum lmcs_status lmcs_tree_delete(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                                  struct lmcs_key_df key, bool *found, struct lmcs_error *error)
{
    struct change change = {
        .txn = txn, .tree = tree, .kind = kind, .shared = kind == LMCS_TREE_MANIFEST, .key = key, .error = error};
    unsigned char value[LMCS_MAX_VALUE];
    bool there;
    enum lmcs_status status = lmcs_tree_get(txn, kind, tree, key, value, 0, sizeof value, NULL, &there, error);
    if (status != LMCS_OK)
        return status;
    if (found != NULL)
        *found = there;
    if (!there)
        return found != NULL ? LMCS_OK : fail_tree(txn, "an entry that must be there is not", error);
    if (in_tail(tree, key)) {
        status = delete_in_tail(&change);
    } else {
        status = delete_below(&change, &tree->ref, -1);
        if (status == LMCS_OK)
            status = lower_root(&change);
    }
    if (status == LMCS_OK)
        tree->count--;
    return status;
}

static enum lmcs_status clear_below(struct lmcs_txn *txn, uint8_t kind, struct lmcs_ref_df ref, int level,
                                    const struct lmcs_bounds *bounds, struct lmcs_error *error)
{
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *node;
    enum lmcs_status status = lmcs_page_read(txn, &ref, kind, buffer, &node, error);
    if (status == LMCS_OK && level >= 0 && node->level != level)
        status = fail_tree(txn, "a tree's levels don't match", error);
    if (status == LMCS_OK && !lmcs_node_in_bounds(node, bounds))
        status = fail_order(txn, error);
    for (size_t i = 0; status == LMCS_OK && node->level > 0 && i < node->count; i++) {
        struct lmcs_bounds inner = lmcs_child_bounds(node, i, bounds);
        status = clear_below(txn, kind, lmcs_node_child(node, i), node->level - 1, &inner, error);
    }
    return status == LMCS_OK ? lmcs_page_free(txn, ref.offset, false, error) : status;
}

enum lmcs_status lmcs_tree_clear(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                                 struct lmcs_error *error)
{
    const struct lmcs_bounds below = {.high = tree->tail_from, .has_high = has_tail(tree)};
    const struct lmcs_bounds tail = {.low = tree->tail_from};
    enum lmcs_status status = tree->ref.offset == 0 ? LMCS_OK : clear_below(txn, kind, tree->ref, -1, &below, error);
    if (status == LMCS_OK && has_tail(tree))
        status = clear_below(txn, kind, tree->tail, 0, &tail, error);
    if (status == LMCS_OK)
        memset(tree, 0, sizeof *tree);
    return status;
}

/* ---- Sealing ---- */

/*
 * A reference that someone made may lead to a page that this transaction has just taken: up again, to another tree, or
 * again and again to the same one. `left`: pages that this transaction has, and this walk has not met.
 */
static bool seal_below(struct lmcs_txn *txn, uint8_t kind, struct lmcs_ref_df *ref, int level, size_t *left)
{
    struct lmcs_node_df *node = lmcs_page_dirty(txn, ref->offset);
    if (node == NULL)
        return true;
    if (node->kind != kind || (level >= 0 && node->level != level) || *left == 0)
        return false;
    --*left;
    for (size_t i = 0; node->level > 0 && i < node->count; i++) {
        struct lmcs_ref_df child = lmcs_node_child(node, i);
        if (!seal_below(txn, kind, &child, node->level - 1, left))
            return false;
        set_child(node, i, child);
    }
    node->check = 0;
    node->check = lmcs_page_check(node, node->self);
    ref->check = node->check;
    return true;
}

enum lmcs_status lmcs_tree_seal(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                                struct lmcs_error *error)
{
    size_t left = lmcs_pages_dirty(txn);
    bool sound = tree->ref.offset == 0 || seal_below(txn, kind, &tree->ref, -1, &left);
    if (sound && has_tail(tree))
        sound = seal_below(txn, kind, &tree->tail, 0, &left);
    return sound ? LMCS_OK : fail_tree(txn, "a page refers to one of another tree, or to one above it", error);
}

/* ---- Looking up ---- */

/* One page on the way down to a key. */
struct lookup {
    struct lmcs_key_df key;
    uint8_t kind;
    int level;               /* of the page that is looked at next; -1: any */
    struct lmcs_ref_df next; /* below it; 0: it was a leaf */
    void *value;
    size_t least, most; /* bytes of it */
    size_t bytes;
    bool found;
    const char *why; /* damaged */
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
        l->next = lmcs_node_child(node, child_index(node, l->key));
        if (l->next.offset == 0)
            l->why = "a tree refers to no page";
        return;
    }
    size_t i = lower_bound(node, l->key);
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
    bool tail = in_tail(tree, key);
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
            return fail_tree(txn, l.why, error);
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
    int leaf;                /* index of the leaf's level; -1: at the end */
    struct lmcs_ref_df tail; /* still to come after the pages below the root; 0: none */
    struct cursor_level levels[LMCS_MAX_LEVEL + 1];
};

enum lmcs_status lmcs_cursor_new(struct lmcs_cursor **cursor, struct lmcs_error *error)
{
    *cursor = malloc(sizeof **cursor);
    if (*cursor == NULL)
        return lmcs_fail_memory(error);
    (*cursor)->leaf = -1;
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

/* Goes down from `ref` at `depth`, to `key` or (NULL) to the first entry. */
static enum lmcs_status descend(struct lmcs_cursor *cursor, struct lmcs_ref_df ref, int depth,
                                const struct lmcs_key_df *key, struct lmcs_error *error)
{
    for (;; depth++) {
        struct cursor_level *level = &cursor->levels[depth];
        enum lmcs_status status = lmcs_page_read(cursor->txn, &ref, cursor->kind, level->buffer, &level->node, error);
        if (status != LMCS_OK)
            return status;
        if (depth > 0 && level->node->level + 1 != cursor->levels[depth - 1].node->level)
            return fail_tree(cursor->txn, "a tree's levels don't match", error);
        if (level->node->level == 0) {
            level->index = key == NULL ? 0 : lower_bound(level->node, *key);
            cursor->leaf = depth;
            return LMCS_OK;
        }
        level->index = key == NULL ? 0 : child_index(level->node, *key);
        ref = lmcs_node_child(level->node, level->index);
    }
}

/* To `key`, or (NULL) to the first entry, in the tail. */
static enum lmcs_status enter_tail(struct lmcs_cursor *cursor, const struct lmcs_key_df *key, struct lmcs_error *error)
{
    struct lmcs_ref_df tail = cursor->tail;
    cursor->tail.offset = 0;
    enum lmcs_status status = descend(cursor, tail, 0, key, error);
    if (status == LMCS_OK && cursor->leaf != 0) {
        cursor->leaf = -1;
        status = fail_tree(cursor->txn, "a tree's levels don't match", error);
    }
    return status;
}

/* When the leaf is used up, goes to the next one. */
static enum lmcs_status settle(struct lmcs_cursor *cursor, struct lmcs_error *error)
{
    int depth = cursor->leaf;
    while (depth >= 0 && cursor->levels[depth].index >= cursor->levels[depth].node->count) {
        if (--depth >= 0)
            cursor->levels[depth].index++;
    }
    if (depth < 0 && cursor->tail.offset != 0)
        return enter_tail(cursor, NULL, error);
    if (depth == cursor->leaf || depth < 0) {
        cursor->leaf = depth;
        return LMCS_OK;
    }
    struct lmcs_ref_df ref = lmcs_node_child(cursor->levels[depth].node, cursor->levels[depth].index);
    cursor->leaf = -1;
    return descend(cursor, ref, depth + 1, NULL, error);
}

enum lmcs_status lmcs_cursor_seek(struct lmcs_cursor *cursor, struct lmcs_txn *txn, uint8_t kind,
                                  const struct lmcs_root_tree_df *tree, struct lmcs_key_df key,
                                  struct lmcs_error *error)
{
    cursor->txn = txn;
    cursor->kind = kind;
    cursor->leaf = -1;
    cursor->tail = tree->tail;
    if (tree->ref.offset == 0)
        return LMCS_OK;
    enum lmcs_status status =
        in_tail(tree, key) ? enter_tail(cursor, &key, error) : descend(cursor, tree->ref, 0, &key, error);
    if (status == LMCS_OK)
        status = settle(cursor, error);
    /* The leaf behind the one where the key belongs; whoever goes on from what he found must not come back. */
    if (status == LMCS_OK && cursor->leaf >= 0 && lmcs_key_compare(lmcs_cursor_key(cursor), key) < 0) {
        cursor->leaf = -1;
        status = fail_order(cursor->txn, error);
    }
    return status;
}

enum lmcs_status lmcs_cursor_next(struct lmcs_cursor *cursor, struct lmcs_error *error)
{
    struct lmcs_key_df before = lmcs_cursor_key(cursor);
    cursor->levels[cursor->leaf].index++;
    enum lmcs_status status = settle(cursor, error);
    /* Pages that refer to one another in a circle of shared children would otherwise be walked for ever. */
    if (status == LMCS_OK && cursor->leaf >= 0 && lmcs_key_compare(lmcs_cursor_key(cursor), before) <= 0) {
        cursor->leaf = -1;
        status = fail_order(cursor->txn, error);
    }
    return status;
}

enum lmcs_status lmcs_cursor_open(struct lmcs_cursor **cursor, struct lmcs_txn *txn, uint8_t kind,
                                  const struct lmcs_root_tree_df *tree, struct lmcs_key_df key,
                                  struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_cursor_new(cursor, error);
    return status == LMCS_OK ? lmcs_cursor_seek(*cursor, txn, kind, tree, key, error) : status;
}

enum lmcs_status lmcs_tree_each(struct lmcs_txn *txn, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                struct lmcs_key_df from, lmcs_tree_visit *visit, void *context,
                                struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    bool more = true;
    enum lmcs_status status = lmcs_cursor_open(&cursor, txn, kind, tree, from, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        status = visit(context, lmcs_cursor_key(cursor), value, bytes, &more, error);
        if (status != LMCS_OK || !more)
            break;
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
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
        return fail_tree(txn, "a tree's levels don't match", error);
    if (node->level == 0) {
        size_t i = lower_bound(node, key);
        *found = i > 0;
        if (i > 0)
            *before = lmcs_node_key(node, i - 1);
        return LMCS_OK;
    }
    /*
     * The child where the key belongs may hold only greater ones; the one to its left does not. One that does was made
     * so, and to look on would be to look at each page as often as there are ways to it.
     */
    size_t i = child_index(node, key);
    status = before_below(txn, kind, lmcs_node_child(node, i), node->level - 1, key, before, found, error);
    if (status != LMCS_OK || *found || i == 0)
        return status;
    status = before_below(txn, kind, lmcs_node_child(node, i - 1), node->level - 1, key, before, found, error);
    return status == LMCS_OK && !*found ? fail_order(txn, error) : status;
}

enum lmcs_status lmcs_tree_before(struct lmcs_txn *txn, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                  struct lmcs_key_df key, struct lmcs_key_df *before, bool *found,
                                  struct lmcs_error *error)
{
    *found = false;
    if (in_tail(tree, key)) {
        enum lmcs_status status = before_below(txn, kind, tree->tail, 0, key, before, found, error);
        if (status != LMCS_OK || *found)
            return status;
    }
    return tree->ref.offset == 0 ? LMCS_OK : before_below(txn, kind, tree->ref, -1, key, before, found, error);
}
