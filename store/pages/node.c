/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/node.c - slotted pages (layout.h) with sorted entries. */
#include "pages/node.h"

#include <string.h>

#include "pages/pool.h"

struct lmcs_key_df lmcs_node_key(const struct lmcs_node_df *node, size_t i)
{
    struct lmcs_key_df key;
    memcpy(&key, (const char *)node + node->slots[i].offset, sizeof key);
    return key;
}

const void *lmcs_node_value(const struct lmcs_node_df *node, size_t i)
{
    return (const char *)node + node->slots[i].offset + LMCS_KEY_BYTES;
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
    size_t first = node->level > 0; /* its first key is ignored: see lmcs_node_find */
    for (size_t i = first; i < node->count; i++)
        if (!lmcs_in_bounds(bounds, lmcs_node_key(node, i)) ||
            (i > first && lmcs_key_compare(lmcs_node_key(node, i - 1), lmcs_node_key(node, i)) >= 0))
            return false;
    return true;
}

void lmcs_node_set_child(struct lmcs_node_df *node, size_t i, struct lmcs_ref_df ref)
{
    memcpy((char *)node + node->slots[i].offset + LMCS_KEY_BYTES, &ref, sizeof ref);
}

/* An inner page's first key is ignored: its first child may get smaller keys when the page before it is removed. */
size_t lmcs_node_find(const struct lmcs_node_df *node, struct lmcs_key_df key)
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

size_t lmcs_node_child_of(const struct lmcs_node_df *node, struct lmcs_key_df key)
{
    size_t i = lmcs_node_find(node, key);
    if (i < node->count && lmcs_key_compare(lmcs_node_key(node, i), key) == 0)
        return i;
    return i == 0 ? 0 : i - 1;
}

size_t lmcs_node_used(const struct lmcs_node_df *node)
{
    return LMCS_PAGE_BYTES - node->low - node->garbage + node->count * LMCS_SLOT_BYTES;
}

size_t lmcs_node_entry_bytes(const struct lmcs_node_df *node, size_t i)
{
    return LMCS_SLOT_BYTES + LMCS_KEY_BYTES + node->slots[i].value_bytes;
}

bool lmcs_node_append(struct lmcs_node_df *node, struct lmcs_key_df key, const void *value, size_t bytes)
{
    if (sizeof *node + (node->count + 1u) * LMCS_SLOT_BYTES + LMCS_KEY_BYTES + bytes > node->low)
        return false;
    node->low = (uint16_t)(node->low - LMCS_KEY_BYTES - bytes);
    node->slots[node->count++] = (struct lmcs_slot_df){node->low, (uint16_t)bytes};
    memcpy((char *)node + node->low, &key, LMCS_KEY_BYTES);
    if (bytes > 0)
        memcpy((char *)node + node->low + LMCS_KEY_BYTES, value, bytes);
    return true;
}

bool lmcs_node_append_from(struct lmcs_node_df *node, const struct lmcs_node_df *from, size_t i)
{
    return lmcs_node_append(node, lmcs_node_key(from, i), lmcs_node_value(from, i), from->slots[i].value_bytes);
}

void lmcs_node_make_empty(struct lmcs_node_df *node)
{
    node->count = 0;
    node->garbage = 0;
    node->low = LMCS_PAGE_BYTES;
}

bool lmcs_node_squeeze(struct lmcs_node_df *node)
{
    _Alignas(8) unsigned char copy[LMCS_PAGE_BYTES];
    memcpy(copy, node, sizeof copy);
    const struct lmcs_node_df *from = (const struct lmcs_node_df *)copy;
    lmcs_node_make_empty(node);
    for (size_t i = 0; i < from->count; i++)
        if (!lmcs_node_append_from(node, from, i))
            return false;
    memset((char *)node + sizeof *node + node->count * LMCS_SLOT_BYTES, 0,
           node->low - sizeof *node - node->count * LMCS_SLOT_BYTES);
    return true;
}

void lmcs_node_remove(struct lmcs_node_df *node, size_t i)
{
    node->garbage = (uint16_t)(node->garbage + LMCS_KEY_BYTES + node->slots[i].value_bytes);
    memmove(&node->slots[i], &node->slots[i + 1], (node->count - i - 1) * LMCS_SLOT_BYTES);
    node->count--;
}

enum lmcs_placed lmcs_node_insert(struct lmcs_node_df *node, size_t i, struct lmcs_key_df key, const void *value,
                                  size_t bytes)
{
    if (lmcs_node_used(node) + LMCS_SLOT_BYTES + LMCS_KEY_BYTES + bytes > LMCS_NODE_ROOM)
        return LMCS_NO_ROOM;
    bool gaps = sizeof *node + (node->count + 1u) * LMCS_SLOT_BYTES + LMCS_KEY_BYTES + bytes > node->low;
    if ((gaps && !lmcs_node_squeeze(node)) || !lmcs_node_append(node, key, value, bytes))
        return LMCS_NONSENSE;
    struct lmcs_slot_df slot = node->slots[node->count - 1];
    memmove(&node->slots[i + 1], &node->slots[i], (node->count - 1u - i) * LMCS_SLOT_BYTES);
    node->slots[i] = slot;
    return LMCS_PLACED;
}

enum lmcs_status lmcs_tree_fail(struct lmcs_txn *txn, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: %s", txn->pool->path, why);
}

enum lmcs_status lmcs_tree_fail_order(struct lmcs_txn *txn, struct lmcs_error *error)
{
    return lmcs_tree_fail(txn, "a tree's keys don't ascend", error);
}
