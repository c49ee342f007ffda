/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/node.h - the pages of a tree: sorted entries in one page. Private to this room.
 */
#ifndef LMCS_PAGES_NODE_H
#define LMCS_PAGES_NODE_H

#include "pages/tree.h"

#define LMCS_NODE_ROOM  (LMCS_PAGE_BYTES - sizeof(struct lmcs_node_df))
#define LMCS_KEY_BYTES  sizeof(struct lmcs_key_df)
#define LMCS_SLOT_BYTES sizeof(struct lmcs_slot_df)

/* Index of the first key not less. An inner page's first key is ignored (node.c). */
size_t lmcs_node_find(const struct lmcs_node_df *node, struct lmcs_key_df key);
size_t lmcs_node_child_of(const struct lmcs_node_df *node, struct lmcs_key_df key);
void lmcs_node_set_child(struct lmcs_node_df *node, size_t i, struct lmcs_ref_df ref);
size_t lmcs_node_used(const struct lmcs_node_df *node); /* entries and slots */
size_t lmcs_node_entry_bytes(const struct lmcs_node_df *node, size_t i);

/*
 * These four return false (lmcs_node_insert: LMCS_NONSENSE) when the entries exceed the page though its sums, checked
 * on reading, allow them. Such a page must not be committed.
 */
bool lmcs_node_append(struct lmcs_node_df *node, struct lmcs_key_df key, const void *value, size_t bytes);
bool lmcs_node_append_from(struct lmcs_node_df *node, const struct lmcs_node_df *from, size_t i);
bool lmcs_node_squeeze(struct lmcs_node_df *node); /* closes gaps of removed entries */
enum lmcs_placed { LMCS_PLACED, LMCS_NO_ROOM, LMCS_NONSENSE };
enum lmcs_placed lmcs_node_insert(struct lmcs_node_df *node, size_t i, struct lmcs_key_df key, const void *value,
                                  size_t bytes);
void lmcs_node_make_empty(struct lmcs_node_df *node);
void lmcs_node_remove(struct lmcs_node_df *node, size_t i);

static inline bool lmcs_tree_has_tail(const struct lmcs_root_tree_df *tree)
{
    return tree->tail.offset != 0;
}

static inline bool lmcs_tree_in_tail(const struct lmcs_root_tree_df *tree, struct lmcs_key_df key)
{
    return lmcs_tree_has_tail(tree) && lmcs_key_compare(key, tree->tail_from) >= 0;
}

enum lmcs_status lmcs_tree_fail(struct lmcs_txn *txn, const char *why, struct lmcs_error *error);
enum lmcs_status lmcs_tree_fail_order(struct lmcs_txn *txn, struct lmcs_error *error);

#endif
