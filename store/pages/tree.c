/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/tree.c - copy-on-write B+ trees, changed.
 *
 * Splits and merges go up as the recursion returns. A page that overflows at its right end stays full, for ascending
 * keys. A page below a quarter is merged with a neighbour if both fit in one. The newest entries are in a leaf beside
 * the tree, the tail; when full it becomes the last leaf.
 */
#include "pages/tree.h"

#include <string.h>

#include "pages/node.h"
#include "pages/pool.h"

struct change {
    struct lmcs_txn *txn;
    struct lmcs_root_tree_df *tree;
    uint8_t kind;
    uint8_t level; /* put: of the page */
    bool shared;
    bool added; /* put: new key */
    bool last;  /* put: only last children so far */
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

static enum lmcs_status fail_sums(struct lmcs_txn *txn, struct lmcs_error *error)
{
    return lmcs_tree_fail(txn, "a page's entries exceed its sums", error);
}

static void drop_tail(struct lmcs_root_tree_df *tree)
{
    tree->tail = (struct lmcs_ref_df){0, 0};
    tree->tail_from = (struct lmcs_key_df){0, 0};
}

/* Number of entries, with the new one at `at`, of the left page so that both fit. */
static size_t choose_cut(const struct lmcs_node_df *node, size_t at, size_t bytes)
{
    size_t total = lmcs_node_used(node) + LMCS_SLOT_BYTES + LMCS_KEY_BYTES + bytes;
    if (at == node->count)
        return node->count; /* ascending keys */
    size_t left = 0;
    for (size_t i = 0; i <= node->count; i++) {
        left += i == at ? LMCS_SLOT_BYTES + LMCS_KEY_BYTES + bytes : lmcs_node_entry_bytes(node, i < at ? i : i - 1);
        if (left >= total / 2)
            return left <= LMCS_NODE_ROOM ? i + 1 : i;
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
    lmcs_node_make_empty(node);
    for (size_t i = 0; i <= from->count; i++) {
        struct lmcs_node_df *to = i < cut ? node : right;
        if (!(i == at ? lmcs_node_append(to, key, value, bytes) : lmcs_node_append_from(to, from, i < at ? i : i - 1)))
            return fail_sums(change->txn, change->error);
    }
    if (right->count == 0)
        return fail_sums(change->txn, change->error);
    memset((char *)node + sizeof *node + node->count * LMCS_SLOT_BYTES, 0,
           node->low - sizeof *node - node->count * LMCS_SLOT_BYTES);
    split->happened = true;
    split->key = lmcs_node_key(right, 0);
    return LMCS_OK;
}

/* Begins a tail with a key beyond all others. */
static enum lmcs_status begin_tail(struct change *change)
{
    struct lmcs_node_df *node;
    enum lmcs_status status = lmcs_page_new(change->txn, change->kind, 0, &change->tree->tail, &node, change->error);
    if (status != LMCS_OK)
        return status;
    change->tree->tail_from = change->key;
    return lmcs_node_append(node, change->key, change->value, change->bytes) ? LMCS_OK
                                                                             : fail_sums(change->txn, change->error);
}

static enum lmcs_status put_in_page(struct change *change, struct lmcs_node_df *node, struct split *split)
{
    size_t i = lmcs_node_find(node, change->key);
    bool there = i < node->count && lmcs_key_compare(lmcs_node_key(node, i), change->key) == 0;
    change->added = !there;
    if (there && node->level > 0)
        return lmcs_tree_fail(change->txn, "a tail begins where a page does", change->error);
    if (there && node->slots[i].value_bytes == change->bytes) {
        if (change->bytes > 0)
            memcpy((char *)node + node->slots[i].offset + LMCS_KEY_BYTES, change->value, change->bytes);
        return LMCS_OK;
    }
    if (there)
        lmcs_node_remove(node, i);
    enum lmcs_placed placed = lmcs_node_insert(node, i, change->key, change->value, change->bytes);
    if (placed != LMCS_NO_ROOM)
        return placed == LMCS_PLACED ? LMCS_OK : fail_sums(change->txn, change->error);
    if (i == node->count && change->last && !change->shared && change->level == 0 && !lmcs_tree_has_tail(change->tree))
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
        return lmcs_tree_fail(change->txn, "a tree's levels don't match", change->error);
    if (node->level == change->level)
        return put_in_page(change, node, split);
    if (node->level < change->level)
        return lmcs_tree_fail(change->txn, "a tree's levels don't match", change->error);
    size_t i = lmcs_node_child_of(node, change->key);
    change->last = change->last && i + 1u == node->count;
    struct lmcs_ref_df child = lmcs_node_child(node, i);
    struct split below = {0};
    status = put_below(change, &child, node->level - 1, &below);
    if (status != LMCS_OK)
        return status;
    lmcs_node_set_child(node, i, child);
    enum lmcs_placed placed =
        below.happened ? lmcs_node_insert(node, i + 1, below.key, &below.ref, sizeof below.ref) : LMCS_PLACED;
    if (placed != LMCS_NO_ROOM)
        return placed == LMCS_PLACED ? LMCS_OK : fail_sums(change->txn, change->error);
    return split_node(change, node, i + 1, below.key, &below.ref, sizeof below.ref, split);
}

static enum lmcs_status raise_root(struct change *change, const struct split *split)
{
    struct lmcs_root_tree_df *tree = change->tree;
    struct lmcs_node_df *old = lmcs_page_dirty(change->txn, tree->ref.offset);
    struct lmcs_node_df *root;
    struct lmcs_ref_df ref;
    if (old == NULL || old->level >= LMCS_MAX_LEVEL)
        return lmcs_tree_fail(change->txn, "a tree is too high", change->error);
    enum lmcs_status status =
        lmcs_page_new(change->txn, change->kind, (uint8_t)(old->level + 1), &ref, &root, change->error);
    if (status != LMCS_OK)
        return status;
    if (!lmcs_node_append(root, (struct lmcs_key_df){0, 0}, &tree->ref, sizeof tree->ref) ||
        !lmcs_node_append(root, split->key, &split->ref, sizeof split->ref))
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
        status = lmcs_tree_fail(change->txn, "a tree's levels don't match", change->error);
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
        return lmcs_node_append(node, key, value, bytes) ? LMCS_OK : fail_sums(txn, error);
    }
    enum lmcs_status status;
    if (lmcs_tree_in_tail(tree, key)) {
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

/* Merges child i + 1 into child i if both fit. */
static enum lmcs_status try_merge(struct change *change, struct lmcs_node_df *node, size_t i)
{
    struct lmcs_ref_df left_ref = lmcs_node_child(node, i), right_ref = lmcs_node_child(node, i + 1);
    _Alignas(8) unsigned char left_copy[LMCS_PAGE_BYTES], right_copy[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *left, *right;
    enum lmcs_status status = lmcs_page_read(change->txn, &left_ref, change->kind, left_copy, &left, change->error);
    if (status == LMCS_OK)
        status = lmcs_page_read(change->txn, &right_ref, change->kind, right_copy, &right, change->error);
    if (status != LMCS_OK || left->level != right->level ||
        lmcs_node_used(left) + lmcs_node_used(right) > LMCS_NODE_ROOM)
        return status;
    struct lmcs_node_df *into;
    status = lmcs_page_write(change->txn, &left_ref, change->kind, change->shared, &into, change->error);
    if (status != LMCS_OK)
        return status;
    bool fits = lmcs_node_squeeze(into);
    for (size_t k = 0; fits && k < right->count; k++)
        fits = k > 0 || right->level == 0 ? lmcs_node_append_from(into, right, k)
                                          : lmcs_node_append(into, lmcs_node_key(node, i + 1),
                                                             lmcs_node_value(right, k), right->slots[k].value_bytes);
    if (!fits) /* if forged, both may be the same page */
        return fail_sums(change->txn, change->error);
    lmcs_node_set_child(node, i, left_ref);
    lmcs_node_remove(node, i + 1);
    return lmcs_page_free(change->txn, right_ref.offset, change->shared, change->error);
}

static enum lmcs_status repair_child(struct change *change, struct lmcs_node_df *node, size_t i,
                                     const struct lmcs_node_df *child)
{
    if (child->count == 0) {
        enum lmcs_status status = lmcs_page_free(change->txn, child->self, change->shared, change->error);
        /* The next child takes over the range: keys still begin at the parent's key. */
        if (i == 0 && node->count > 1)
            memcpy((char *)node + node->slots[1].offset, (char *)node + node->slots[0].offset, LMCS_KEY_BYTES);
        lmcs_node_remove(node, i);
        return status;
    }
    if (lmcs_node_used(child) >= LMCS_NODE_ROOM / 4)
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
        return lmcs_tree_fail(change->txn, "a tree's levels don't match", change->error);
    if (node->level == 0) {
        size_t i = lmcs_node_find(node, change->key);
        lmcs_node_remove(node, i); /* found by lmcs_tree_delete */
        return LMCS_OK;
    }
    size_t i = lmcs_node_child_of(node, change->key);
    struct lmcs_ref_df child = lmcs_node_child(node, i);
    status = delete_below(change, &child, node->level - 1);
    if (status != LMCS_OK)
        return status;
    lmcs_node_set_child(node, i, child);
    return repair_child(change, node, i, lmcs_page_dirty(change->txn, child.offset));
}

/* Replaces a root with one child by the child, an empty one by the tail. */
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
    lmcs_node_remove(node, lmcs_node_find(node, change->key)); /* found by the caller */
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
        return found != NULL ? LMCS_OK : lmcs_tree_fail(txn, "an entry that must be there is not", error);
    if (lmcs_tree_in_tail(tree, key)) {
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
        status = lmcs_tree_fail(txn, "a tree's levels don't match", error);
    if (status == LMCS_OK && !lmcs_node_in_bounds(node, bounds))
        status = lmcs_tree_fail_order(txn, error);
    for (size_t i = 0; status == LMCS_OK && node->level > 0 && i < node->count; i++) {
        struct lmcs_bounds inner = lmcs_child_bounds(node, i, bounds);
        status = clear_below(txn, kind, lmcs_node_child(node, i), node->level - 1, &inner, error);
    }
    return status == LMCS_OK ? lmcs_page_free(txn, ref.offset, false, error) : status;
}

enum lmcs_status lmcs_tree_clear(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                                 struct lmcs_error *error)
{
    const struct lmcs_bounds below = {.high = tree->tail_from, .has_high = lmcs_tree_has_tail(tree)};
    const struct lmcs_bounds tail = {.low = tree->tail_from};
    enum lmcs_status status = tree->ref.offset == 0 ? LMCS_OK : clear_below(txn, kind, tree->ref, -1, &below, error);
    if (status == LMCS_OK && lmcs_tree_has_tail(tree))
        status = clear_below(txn, kind, tree->tail, 0, &tail, error);
    if (status == LMCS_OK)
        memset(tree, 0, sizeof *tree);
    return status;
}

/*
 * A forged reference may lead to a page that this transaction took: upwards, to another tree, or repeatedly. `left`:
 * the transaction's pages that this walk has not met.
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
        lmcs_node_set_child(node, i, child);
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
    if (sound && lmcs_tree_has_tail(tree))
        sound = seal_below(txn, kind, &tree->tail, 0, &left);
    return sound ? LMCS_OK : lmcs_tree_fail(txn, "a page refers to a page of another tree or above it", error);
}
