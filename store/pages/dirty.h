/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/dirty.h - the pages that a write transaction has made, taken and freed. Private to this room. */
#ifndef LMCS_PAGES_DIRTY_H
#define LMCS_PAGES_DIRTY_H

#include "base/map.h"
#include "pages/page.h"

/* A page of a range in the tree of free pages. */
struct lmcs_free_page {
    uint64_t epoch; /* no root from here on reaches it */
    uint64_t offset;
    uint64_t left; /* pages of its range, from this one on */
};

struct lmcs_txn_pages {
    struct lmcs_map by_offset;
    size_t count;
    struct lmcs_node_df **order;
    size_t order_capacity;
    struct lmcs_free_page *freed; /* for the tree of free pages */
    size_t freed_count;
    size_t freed_capacity;
    uint64_t freed_pages;
    uint64_t *recycled; /* taken and dropped */
    size_t recycled_count;
    size_t recycled_capacity;
    size_t avail_used;
    struct lmcs_action actions[LMCS_MAX_ACTIONS];
    size_t action_count;
    size_t reserved_count;               /* actions; those that can be cancelled come first */
    uint64_t slabs[LMCS_MAX_ACTIONS][3]; /* offset, bytes, first page: for the tree of objects */
    size_t slab_count;
};

static inline uint64_t lmcs_range_pages(const struct lmcs_page_range_df *range)
{
    return (range->end - range->next) / LMCS_PAGE_BYTES;
}

/* Takes a page: one that the transaction dropped, a free one of the pool, or a never used one. */
enum lmcs_status lmcs_page_take(struct lmcs_txn *txn, uint64_t *offset, struct lmcs_error *error);
/* Records pages for the tree of free pages. False: out of memory. */
bool lmcs_page_push_freed(struct lmcs_txn *txn, uint64_t offset, uint64_t count);
/*
 * Reserves at least `least` bytes as `range`. Slabs grow with the pool and, if there is room, within this commit, which
 * can reserve only few.
 */
enum lmcs_status lmcs_slab_new(struct lmcs_txn *txn, uint64_t least, struct lmcs_page_range_df *range,
                               struct lmcs_error *error);
void lmcs_txn_pages_free(struct lmcs_txn_pages *pages);

#endif
