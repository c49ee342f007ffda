/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/txn.h - metadata transactions: pages that are read, copied on write, and switched to all at once.
 *
 * A read transaction sees one root and all that it refers to. A write transaction works on a copy of the root page;
 * what it changes it writes to pages that nothing reaches, and its commit makes them durable and then switches the
 * root. One write transaction at a time; the pool's metadata lock is held from begin to end.
 */
#ifndef LMCS_PAGES_TXN_H
#define LMCS_PAGES_TXN_H

#include "base/error.h"
#include "media/heap.h"
#include "media/layout.h"

struct lmcs_pool;
struct lmcs_page_cache;

struct lmcs_txn {
    struct lmcs_pool *pool;
    bool write;
    bool committed;
    bool leased; /* a reader beside another process's writer */
    bool spends; /* set by who begins it: it only takes space, so it may not take the last pages */
    struct lmcs_root_df root;
    struct lmcs_txn_pages *pages; /* of a write transaction */
};

enum lmcs_status lmcs_txn_read(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error);
/* Begins a read transaction that holds the newest root by a lease, not by a lock: a writer in this process can commit. */
enum lmcs_status lmcs_txn_hold(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error);
enum lmcs_status lmcs_txn_write(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error);
/* Ends a read transaction, or drops a write transaction: nothing of it remains. */
void lmcs_txn_end(struct lmcs_txn *txn);
/* Ends a write transaction, in any case. Payload bytes written before are made durable by the same sync. */
enum lmcs_status lmcs_txn_commit(struct lmcs_txn *txn, struct lmcs_error *error);

/* The page that `ref` refers to, checked: either the transaction's own, or a copy in `buffer` (LMCS_PAGE_BYTES). */
enum lmcs_status lmcs_page_read(struct lmcs_txn *txn, const struct lmcs_ref_df *ref, uint8_t kind, void *buffer,
                                const struct lmcs_node_df **node, struct lmcs_error *error);
/*
 * Shows that page to `look`, without a copy if there is one already. It may belong to another tree: node->kind says so.
 * What `look` does is short, for others wait for it, and it reads no pages.
 */
typedef void lmcs_page_look(void *context, const struct lmcs_node_df *node);
enum lmcs_status lmcs_page_show(struct lmcs_txn *txn, const struct lmcs_ref_df *ref, uint8_t kind, lmcs_page_look *look,
                                void *context, struct lmcs_error *error);
/* Makes the page writable: copies it unless this transaction wrote it, and sets ref->offset. The page that it replaces
 * becomes free with the commit, unless it is `shared` with others. */
enum lmcs_status lmcs_page_write(struct lmcs_txn *txn, struct lmcs_ref_df *ref, uint8_t kind, bool shared,
                                 struct lmcs_node_df **node, struct lmcs_error *error);
enum lmcs_status lmcs_page_new(struct lmcs_txn *txn, uint8_t kind, uint8_t level, struct lmcs_ref_df *ref,
                               struct lmcs_node_df **node, struct lmcs_error *error);
/* Drops a page: at once if it is the transaction's own, else with its commit, unless it is shared. */
enum lmcs_status lmcs_page_free(struct lmcs_txn *txn, uint64_t offset, bool shared, struct lmcs_error *error);
/* The transaction's own page at an offset; NULL when it has none there. */
struct lmcs_node_df *lmcs_page_dirty(struct lmcs_txn *txn, uint64_t offset);
size_t lmcs_pages_dirty(const struct lmcs_txn *txn); /* how many it has, at most */
uint64_t lmcs_page_check(const void *page, uint64_t offset);
/* Whether all of it, its own checksum included, is what the reference vouches for. */
bool lmcs_page_is_whole(const void *page, const struct lmcs_ref_df *ref);
/* Reads the page from another replica of the pool; false: there is none that has it whole. */
bool lmcs_page_from_replica(const struct lmcs_pool *pool, const struct lmcs_ref_df *ref, void *buffer);

/* An object that this transaction reserves or frees through libpmemobj. */
enum lmcs_status lmcs_txn_reserve(struct lmcs_txn *txn, uint64_t bytes, uint64_t *offset, uint64_t *got,
                                  struct lmcs_error *error);
enum lmcs_status lmcs_txn_free(struct lmcs_txn *txn, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
/* How many more objects this transaction can take. */
size_t lmcs_txn_room(const struct lmcs_txn *txn);

enum lmcs_status lmcs_page_cache_new(struct lmcs_page_cache **cache, struct lmcs_error *error);
void lmcs_page_cache_free(struct lmcs_page_cache *cache);

/* Reads and checks the superblock and the root page that it names. */
enum lmcs_status lmcs_root_read(struct lmcs_pool *pool, struct lmcs_root_df *root, struct lmcs_error *error);
/*
 * Of a root that a writer has read, once slabs are known: whether the pages that it would hand out lie in them, and the
 * numbers are those of nothing that is there. (Live variables are asked when all of them are looked at: live.c.)
 */
enum lmcs_status lmcs_root_check(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error);
/* LMCS_DAMAGED: the next one that is made would take the place of `what` of this number. */
enum lmcs_status lmcs_root_fail_number(struct lmcs_pool *pool, const char *what, uint64_t number,
                                       struct lmcs_error *error);
/* Whether next numbers of shelves, contents and so on are possible: the bit that tells parity from payloads is free. */
bool lmcs_root_counts(const struct lmcs_root_df *root);
uint64_t lmcs_root_word(uint64_t page_offset);
/* Writes the first root of a new pool. */
enum lmcs_status lmcs_root_create(struct lmcs_pool *pool, uint64_t limit_bytes, struct lmcs_error *error);

/* Where pages may lie, as a writer knows it: lmcs_check_heap adds what it finds, commits what they make. */
void lmcs_slabs_forget(struct lmcs_pool *pool);
bool lmcs_slabs_add(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes);
/* Whether so many pages from `offset` on lie in one of them. */
bool lmcs_slabs_hold(const struct lmcs_pool *pool, uint64_t offset, uint64_t pages);

#endif
