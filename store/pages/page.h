/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/page.h - the pages of a transaction: read, copied on write, taken from slabs and dropped. */
#ifndef LMCS_PAGES_PAGE_H
#define LMCS_PAGES_PAGE_H

#include "base/error.h"
#include "media/heap.h"
#include "media/layout.h"
#include "pages/cache.h"

struct lmcs_pool;

struct lmcs_txn {
    struct lmcs_pool *pool;
    bool write;
    bool committed;
    bool leased;         /* a reader beside another process's writer, or lmcs_txn_hold */
    bool only_allocates; /* set by its caller: it frees nothing, so it leaves the last pages to others */
    struct lmcs_root_df root;
    struct lmcs_txn_pages *pages; /* those that it wrote; of a read transaction, only after lmcs_txn_make_private */
    /* Loads more free pages into pool->avail (freelist.c); set by lmcs_txn_write. */
    enum lmcs_status (*refill)(struct lmcs_pool *pool, struct lmcs_error *error);
};

/* *node: the transaction's own page, or a checked copy in `buffer` (LMCS_PAGE_BYTES). */
enum lmcs_status lmcs_page_read(struct lmcs_txn *txn, const struct lmcs_ref_df *ref, uint8_t kind, void *buffer,
                                const struct lmcs_node_df **node, struct lmcs_error *error);
/* Calls `look`, without a copy if the page is cached. It may belong to another tree: check node->kind. */
enum lmcs_status lmcs_page_show(struct lmcs_txn *txn, const struct lmcs_ref_df *ref, uint8_t kind, lmcs_page_look *look,
                                void *context, struct lmcs_error *error);
/*
 * Copies the page unless this transaction wrote it, and sets ref->offset. The old one becomes free with the commit,
 * unless `shared`.
 */
enum lmcs_status lmcs_page_write(struct lmcs_txn *txn, struct lmcs_ref_df *ref, uint8_t kind, bool shared,
                                 struct lmcs_node_df **node, struct lmcs_error *error);
enum lmcs_status lmcs_page_new(struct lmcs_txn *txn, uint8_t kind, uint8_t level, struct lmcs_ref_df *ref,
                               struct lmcs_node_df **node, struct lmcs_error *error);
/* Drops a page: the transaction's own at once, another with the commit unless shared. */
enum lmcs_status lmcs_page_free(struct lmcs_txn *txn, uint64_t offset, bool shared, struct lmcs_error *error);
/* The transaction's own page at an offset, or NULL. */
struct lmcs_node_df *lmcs_page_dirty(struct lmcs_txn *txn, uint64_t offset);
size_t lmcs_pages_dirty(const struct lmcs_txn *txn); /* upper bound of its own pages */

/* Reserve or free an object with the commit. LMCS_INVALID: too many for one commit. */
enum lmcs_status lmcs_txn_reserve(struct lmcs_txn *txn, uint64_t bytes, uint64_t *offset, uint64_t *got,
                                  struct lmcs_error *error);
enum lmcs_status lmcs_txn_free(struct lmcs_txn *txn, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
/* Objects that it can still reserve or free. */
size_t lmcs_txn_room(const struct lmcs_txn *txn);

/* A writer's ranges with pages: lmcs_check_heap and commits add theirs. False: out of memory. */
void lmcs_slabs_forget(struct lmcs_pool *pool);
bool lmcs_slabs_add(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes);
/* Whether the pages are in one slab. */
bool lmcs_slabs_hold(const struct lmcs_pool *pool, uint64_t offset, uint64_t pages);

#endif
