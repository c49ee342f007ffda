/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/txn.h - metadata transactions: copy-on-write pages under one root, switched all at once.
 *
 * A read transaction sees one root. The one write transaction holds pool->meta from begin to end.
 */
#ifndef LMCS_PAGES_TXN_H
#define LMCS_PAGES_TXN_H

#include "pages/page.h"
#include "pages/root.h"

enum lmcs_status lmcs_txn_read(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error);
/* Reads under a lease of the newest root instead of pool->meta: this process can commit meanwhile. */
enum lmcs_status lmcs_txn_hold(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error);
/*
 * Gives a read transaction pages of its own: trees can then be changed, not the pool. The changes end with the
 * transaction.
 */
enum lmcs_status lmcs_txn_make_private(struct lmcs_txn *txn, struct lmcs_error *error);
/* Calls pool->fold first, in transactions of its own. */
enum lmcs_status lmcs_txn_write(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error);
/* For pool->fold. */
enum lmcs_status lmcs_txn_write_only(struct lmcs_pool *pool, struct lmcs_txn *txn, struct lmcs_error *error);
/* Ends a read transaction, or drops a write transaction. */
void lmcs_txn_end(struct lmcs_txn *txn);
/* Ends the transaction; drops it on failure. The same sync makes earlier payload writes durable. */
enum lmcs_status lmcs_txn_commit(struct lmcs_txn *txn, struct lmcs_error *error);
/* Commits if `status` is LMCS_OK, else drops. Returns the first failure. */
enum lmcs_status lmcs_txn_finish(struct lmcs_txn *txn, enum lmcs_status status, struct lmcs_error *error);

/* The first root of a new pool. */
enum lmcs_status lmcs_root_create(struct lmcs_pool *pool, uint64_t limit_bytes, struct lmcs_error *error);

#endif
