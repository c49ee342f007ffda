/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/tree.h - copy-on-write B+ trees from 16-byte keys to values of at most LMCS_MAX_VALUE bytes.
 *
 * The owner stores a tree's references and count: the root page (the pool's trees), a shelf's record (its indexes), a
 * snapshot's record (its manifest). Neighbouring snapshots share pages of manifests, which have no tail; changing one
 * frees no page (records/manifest.c does later).
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

/* Copies the value to `value`, its size to *bytes (or NULL). LMCS_DAMAGED: not `least` to `most` bytes. */
enum lmcs_status lmcs_tree_get(struct lmcs_txn *txn, uint8_t kind, const struct lmcs_root_tree_df *tree,
                               struct lmcs_key_df key, void *value, size_t least, size_t most, size_t *bytes,
                               bool *found, struct lmcs_error *error);
enum lmcs_status lmcs_tree_put(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                               struct lmcs_key_df key, const void *value, size_t bytes, struct lmcs_error *error);
/* `found` NULL: a missing key is LMCS_DAMAGED. */
enum lmcs_status lmcs_tree_delete(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                                  struct lmcs_key_df key, bool *found, struct lmcs_error *error);
/* Frees all pages. Not for trees that share pages. */
enum lmcs_status lmcs_tree_clear(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                                 struct lmcs_error *error);
/* Computes checksums, so that tree->ref can be stored. */
enum lmcs_status lmcs_tree_seal(struct lmcs_txn *txn, uint8_t kind, struct lmcs_root_tree_df *tree,
                                struct lmcs_error *error);

/* A position, valid until the transaction changes the tree. Keys that do not ascend are damage. */
struct lmcs_cursor;
enum lmcs_status lmcs_cursor_new(struct lmcs_cursor **cursor, struct lmcs_error *error);
void lmcs_cursor_free(struct lmcs_cursor *cursor);
/* Moves to the first key not less than `key`; past the end, the cursor is not valid. */
enum lmcs_status lmcs_cursor_seek(struct lmcs_cursor *cursor, struct lmcs_txn *txn, uint8_t kind,
                                  const struct lmcs_root_tree_df *tree, struct lmcs_key_df key,
                                  struct lmcs_error *error);
enum lmcs_status lmcs_cursor_next(struct lmcs_cursor *cursor, struct lmcs_error *error);
/*
 * After a seek or a move that failed because a page is damaged: moves to the first entry behind that page. Repeated
 * calls reach the end, and then return LMCS_OK.
 */
enum lmcs_status lmcs_cursor_skip(struct lmcs_cursor *cursor, struct lmcs_error *error);
/* Skips damaged pages until a move succeeds, and notes the first. */
static inline enum lmcs_status lmcs_cursor_pass(struct lmcs_cursor *cursor, enum lmcs_status status,
                                                struct lmcs_passed *passed, struct lmcs_error *error)
{
    while (lmcs_is_unusable(status)) {
        (void)!lmcs_pass_over(passed, status, error);
        status = lmcs_cursor_skip(cursor, error);
    }
    return status;
}
bool lmcs_cursor_valid(const struct lmcs_cursor *cursor);
struct lmcs_key_df lmcs_cursor_key(const struct lmcs_cursor *cursor);
/* Valid until the cursor moves. */
const void *lmcs_cursor_value(const struct lmcs_cursor *cursor, size_t *bytes);
/*
 * Creates a cursor and seeks `key`. Free *cursor always; NULL is allowed and not valid. A loop:
 *   status = lmcs_cursor_open(&cursor, ...);
 *   for (; status == LMCS_OK && lmcs_cursor_valid(cursor); status = lmcs_cursor_next(cursor, error)) ...
 *   lmcs_cursor_free(cursor);
 */
enum lmcs_status lmcs_cursor_open(struct lmcs_cursor **cursor, struct lmcs_txn *txn, uint8_t kind,
                                  const struct lmcs_root_tree_df *tree, struct lmcs_key_df key,
                                  struct lmcs_error *error);
/* The greatest key less than `key`. */
enum lmcs_status lmcs_tree_before(struct lmcs_txn *txn, uint8_t kind, const struct lmcs_root_tree_df *tree,
                                  struct lmcs_key_df key, struct lmcs_key_df *before, bool *found,
                                  struct lmcs_error *error);

/* The same for the pool's tree of a kind. */
static inline enum lmcs_status lmcs_root_get(struct lmcs_txn *txn, uint8_t kind, struct lmcs_key_df key, void *value,
                                             size_t least, size_t most, size_t *bytes, bool *found,
                                             struct lmcs_error *error)
{
    return lmcs_tree_get(txn, kind, &txn->root.trees[kind], key, value, least, most, bytes, found, error);
}

static inline enum lmcs_status lmcs_root_put(struct lmcs_txn *txn, uint8_t kind, struct lmcs_key_df key,
                                             const void *value, size_t bytes, struct lmcs_error *error)
{
    return lmcs_tree_put(txn, kind, &txn->root.trees[kind], key, value, bytes, error);
}

static inline enum lmcs_status lmcs_root_delete(struct lmcs_txn *txn, uint8_t kind, struct lmcs_key_df key, bool *found,
                                                struct lmcs_error *error)
{
    return lmcs_tree_delete(txn, kind, &txn->root.trees[kind], key, found, error);
}

static inline enum lmcs_status lmcs_root_seek(struct lmcs_cursor *cursor, struct lmcs_txn *txn, uint8_t kind,
                                              struct lmcs_key_df key, struct lmcs_error *error)
{
    return lmcs_cursor_seek(cursor, txn, kind, &txn->root.trees[kind], key, error);
}

static inline enum lmcs_status lmcs_root_open(struct lmcs_cursor **cursor, struct lmcs_txn *txn, uint8_t kind,
                                              struct lmcs_key_df key, struct lmcs_error *error)
{
    return lmcs_cursor_open(cursor, txn, kind, &txn->root.trees[kind], key, error);
}

/* For walks over pages: records/manifest.c, records/holders.c, repair/. */
struct lmcs_key_df lmcs_node_key(const struct lmcs_node_df *node, size_t i);
const void *lmcs_node_value(const struct lmcs_node_df *node, size_t i);
struct lmcs_ref_df lmcs_node_child(const struct lmcs_node_df *node, size_t i);

/* Bounds of the keys of a page and the pages below. */
struct lmcs_bounds {
    struct lmcs_key_df low;  /* inclusive */
    struct lmcs_key_df high; /* exclusive */
    bool has_high;
};
bool lmcs_in_bounds(const struct lmcs_bounds *bounds, struct lmcs_key_df key);
/* The first child's own key is ignored: the parent's bound applies. */
struct lmcs_bounds lmcs_child_bounds(const struct lmcs_node_df *node, size_t i, const struct lmcs_bounds *bounds);
/*
 * Whether keys ascend within the bounds. Children's bounds never overlap, so a walk that checks every page descends
 * below none twice, even with forged references.
 */
bool lmcs_node_in_bounds(const struct lmcs_node_df *node, const struct lmcs_bounds *bounds);

#endif
