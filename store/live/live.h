/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/live.h - the face of the room of live variables: variables that change in place, with their space, journals and
 * transactions. The room may use base, media, pages, records, snapshots and capture.
 *
 * Terms
 *   record   describes a variable in the tree of live variables: name, dtype, shape, note and places (record.h)
 *   cell     holds the version of a variable, and the bytes of a value (cell.h)
 *   part     a run of pages with bytes of a tensor (space.h)
 *   body     the one object in this process for a variable in use, however many handles it has (body.h)
 *   mapping  a range of addresses of a tensor (map.h)
 *   journal  makes bytes at several places change together (journal.h)
 *
 * Changes. A record in the pool is replaced, never modified. A *change* is a pair of records, old and new; either may
 * be missing. One metadata transaction makes any number of changes. Space that only the new record has is taken before
 * the commit. Space that only the old record has is given back after the commit. If the commit fails, the new space is
 * given back instead.
 *
 * Locks
 *   live->lock  guards records, space and tables. It comes before the pool's `meta`. A commit holds it throughout.
 *   body->lock  comes after live->lock. It guards the slots of a value and the version of a variable.
 * Some fields are read under body->lock alone: record, transaction, is_private, pending. Their writers hold both locks.
 * The record changes in one step with the slots of its cell, is_private in one step with the pages.
 */
#ifndef LMCS_LIVE_LIVE_H
#define LMCS_LIVE_LIVE_H

#include "lmcstore_live.h"
#include "pages/pool.h"

/* ---- Opening and closing a pool (state.c, load.c) ---- */

/* Makes pool->live. */
enum lmcs_status lmcs_live_store_new(struct lmcs_pool *pool, struct lmcs_error *error);
/*
 * Checks, before a pool is opened for writing and after lmcs_check_heap, that the state after a crash can be recovered.
 * Writes nothing.
 */
enum lmcs_status lmcs_live_store_check(struct lmcs_pool *pool, const struct lmcs_root_df *root,
                                       struct lmcs_error *error);
/* Recovers journals and finds free space, in a pool that is open for writing. */
enum lmcs_status lmcs_live_store_load(struct lmcs_pool *pool, struct lmcs_error *error);
void lmcs_live_store_free(struct lmcs_pool *pool);

/* Counts the forks between the first pool's process and this one. The first call installs the fork handlers. */
unsigned lmcs_live_forks(void);

/* ---- Renaming and removing shelves (shelf_table.c, drop.c) ---- */

/*
 * Brackets the change of a shelf's name, or its removal from sight. Takes live->lock; lmcs_live_shelf_end releases it.
 * Returns LMCS_IN_USE, without the lock, while this process uses a variable of the shelf. `action` is a participle for
 * the message ("removed"). `gone` of the end: the name no longer belongs to that shelf.
 */
enum lmcs_status lmcs_live_shelf_begin(struct lmcs_pool *pool, const char *name, const char *action,
                                       struct lmcs_error *error);
void lmcs_live_shelf_end(struct lmcs_pool *pool, const char *name, bool gone);
/* Adds the bytes of a shelf's variables to those that its removal frees. */
enum lmcs_status lmcs_live_count_removal(struct lmcs_txn *txn, uint64_t shelf, struct lmcs_removal *removal,
                                         struct lmcs_error *error);
/* Erases all variables of a shelf that is out of sight, in batches. Takes live->lock. */
enum lmcs_status lmcs_live_drop(struct lmcs_pool *pool, uint64_t shelf, struct lmcs_removal *removal,
                                struct lmcs_error *error);

/* ---- Usage (info.c) ---- */

/* Counts a shelf's variables and the bytes of their data. Takes live->lock. */
enum lmcs_status lmcs_live_count(struct lmcs_pool *pool, const char *shelf, uint64_t *variables, uint64_t *bytes,
                                 struct lmcs_error *error);

#endif
