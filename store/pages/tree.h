/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/tree.h - copy-on-write B+ trees from 16-byte keys to values of at most LMCS_MAX_VALUE bytes.
 *
 * A tree is a reference to its root page and to its tail, and a count, kept by whoever owns it: the root page for the
 * pool's trees, a shelf's record for its indexes, a snapshot's record for its manifest. The pages of manifests are
 * shared by neighbouring snapshots, so changing one never frees the page that it replaces (manifest.c does, when it
 * knows); a manifest has no tail.
 */
#ifndef LMCS_PAGES_TREE_H
#define LMCS_PAGES_TREE_H

#include "pages/txn.h"

static inline int lmcs_key_compare(struct lmcs_key_df a, struct lmcs_key_df b)
{
    if (a.high != b.high)
        return a.high < b.high ? -1 : 1;
    return a.low < b.low ? -1 : a.low > b.low;
}

/*
 * Looks a key up; *found says whether it is there. Copies its value, which must have between `least` and `most`
 * bytes (else LMCS_DAMAGED), to `value`, and its size to *bytes, which may be NULL.
 */
enum lmcs_status lmcs_tree_get(struct lmcs_txn *txn, uint8_t kind, const struct lmcs_root_tree_df *tree,
                               struct lmcs_key_df key, void *value, size_t least, size_t most, size_t *bytes,
                               bool *found, struct lmcs_error *error);
/* Inserts or replaces. */
enum lmcs_status lmcs_tree_put(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                               struct lmcs_key_df key, const void *value, size_t bytes, struct lmcs_error *error);
/* `found` may be NULL: then a key that is not there is LMCS_DAMAGED. */
enum lmcs_status lmcs_tree_delete(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                                  struct lmcs_key_df key, bool *found, struct lmcs_error *error);
/* Frees all its pages (not for shared ones) and makes it empty. */
enum lmcs_status lmcs_tree_clear(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                                 struct lmcs_error *error);
/* Computes the checksums of what the transaction changed, so that tree->ref may be stored in a record. */
enum lmcs_status lmcs_tree_seal(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                                struct lmcs_error *error);

/* A place in a tree. It is valid until the transaction changes the tree. Keys that don't ascend are damage. */
struct lmcs_cursor;
enum lmcs_status lmcs_cursor_new(struct lmcs_cursor **cursor, struct lmcs_error *error);
void lmcs_cursor_free(struct lmcs_cursor *cursor);
/* To the first key that is not less; past the end the cursor is not valid. */
enum lmcs_status lmcs_cursor_seek(struct lmcs_cursor *cursor, struct lmcs_txn *txn, uint8_t kind,
                                  const struct lmcs_root_tree_df *tree, struct lmcs_key_df key,
                                  struct lmcs_error *error);
enum lmcs_status lmcs_cursor_next(struct lmcs_cursor *cursor, struct lmcs_error *error);
bool lmcs_cursor_valid(const struct lmcs_cursor *cursor);
struct lmcs_key_df lmcs_cursor_key(const struct lmcs_cursor *cursor);
/* The value at the cursor, valid until the cursor moves. */
const void *lmcs_cursor_value(const struct lmcs_cursor *cursor, size_t *bytes);
/*
 * Creates a cursor and seeks `key`. *cursor is always to be freed; NULL is freed and is not valid. A loop:
 *   status = lmcs_cursor_open(&cursor, ...);
 *   for (; status == LMCS_OK && lmcs_cursor_valid(cursor); status = lmcs_cursor_next(cursor, error)) ...
 *   lmcs_cursor_free(cursor);
 */
enum lmcs_status lmcs_cursor_open(struct lmcs_cursor **cursor, struct lmcs_txn *txn, uint8_t kind,
                                  const struct lmcs_root_tree_df *tree, struct lmcs_key_df key,
                                  struct lmcs_error *error);
/* Receives an entry. *more is true; false ends the walk. It must not change the tree. */
typedef enum lmcs_status lmcs_tree_visit(void *context, struct lmcs_key_df key, const void *value, size_t bytes,
                                         bool *more, struct lmcs_error *error);
/* Calls `visit` for each entry from `from` on, in order, until a call fails or ends the walk. */
enum lmcs_status lmcs_tree_each(struct lmcs_txn *txn, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                struct lmcs_key_df from, lmcs_tree_visit *visit, void *context,
                                struct lmcs_error *error);
/* The greatest key that is less than `key`. */
enum lmcs_status lmcs_tree_before(struct lmcs_txn *txn, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                  struct lmcs_key_df key, struct lmcs_key_df *before, bool *found,
                                  struct lmcs_error *error);

/* For those who walk pages themselves (manifest.c, holders.c, check_structure.c). */
struct lmcs_key_df lmcs_node_key(const struct lmcs_node_df *node, size_t i);
const void *lmcs_node_value(const struct lmcs_node_df *node, size_t i);
struct lmcs_ref_df lmcs_node_child(const struct lmcs_node_df *node, size_t i);

/* Where the keys of a page, and of all below it, lie; without the limits, everywhere. */
struct lmcs_bounds {
    struct lmcs_key_df low;  /* a key must not be less ... */
    struct lmcs_key_df high; /* ... and must be less than this */
    bool has_high;
};
bool lmcs_in_bounds(const struct lmcs_bounds *bounds, struct lmcs_key_df key);
/* Where those of child i lie. Its own key does not matter when it is the first: then its parent's bound does. */
struct lmcs_bounds lmcs_child_bounds(const struct lmcs_node_df *node, size_t i, const struct lmcs_bounds *bounds);
/*
 * Whether the keys of a page ascend, and lie in its bounds. No two children have bounds in common, so whoever asks this
 * of each page goes below none of them twice, whatever refers to it.
 */
bool lmcs_node_in_bounds(const struct lmcs_node_df *node, const struct lmcs_bounds *bounds);

#endif
