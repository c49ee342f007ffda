/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/live.h - the face of the room of live variables: variables that change in place, with their space, journals and
 * transactions. It may use base, media, pages, records, snapshots and capture.
 *
 *   record   a variable in the tree: name, dtype, shape, note, places (record.h)
 *   cell     a variable's version, and a value's bytes (cell.h)
 *   part     a run of pages of a tensor (space.h)
 *   body     the process's one object for a variable in use (body.h)
 *   mapping  addresses of a tensor (map.h)
 *   journal  changes bytes at several places together (journal.h)
 *
 * Records are replaced, never modified. A *change* is an old and a new record; either may be missing. One metadata
 * transaction makes any number. Space of the new record is taken before the commit and given back if that fails; space
 * of the old one is given back after it.
 *
 * A commit holds live->lock throughout. body->lock guards slots and version. Read under body->lock alone, written under
 * both: record, transaction, is_private, pending. The record changes in one step with its cell's slots, is_private with
 * the pages.
 */
#ifndef LMCS_LIVE_LIVE_H
#define LMCS_LIVE_LIVE_H

#include "lmcstore_live.h"
#include "pages/pool.h"

/* ---- Opening and closing a pool (state.c, load.c) ---- */

enum lmcs_status lmcs_live_store_new(struct lmcs_pool *pool, struct lmcs_error *error);
/* Checks, after lmcs_check_heap, that the pool can be recovered and opened for writing. Writes nothing. */
enum lmcs_status lmcs_live_store_check(struct lmcs_pool *pool, const struct lmcs_root_df *root,
                                       struct lmcs_error *error);
/* Recovers journals and finds free space, for writing. */
enum lmcs_status lmcs_live_store_load(struct lmcs_pool *pool, struct lmcs_error *error);
void lmcs_live_store_free(struct lmcs_pool *pool);

/* Forks since the first pool's process. The first call installs the fork handlers. */
unsigned lmcs_live_forks(void);

/* ---- Renaming and removing shelves (shelf_table.c, drop.c) ---- */

/*
 * Brackets a change of a shelf's name or its removal from sight; live->lock is held until lmcs_live_shelf_end.
 * LMCS_IN_USE, unlocked: this process uses a variable of the shelf. `action`: a participle ("removed"). `gone`: the
 * name no longer belongs to that shelf.
 */
enum lmcs_status lmcs_live_shelf_begin(struct lmcs_pool *pool, const char *name, const char *action,
                                       struct lmcs_error *error);
void lmcs_live_shelf_end(struct lmcs_pool *pool, const char *name, bool gone);
/* Adds the bytes that removing a shelf's variables frees. */
enum lmcs_status lmcs_live_count_removal(struct lmcs_txn *txn, uint64_t shelf, struct lmcs_removal *removal,
                                         struct lmcs_error *error);
/* Erases the variables of a shelf that is out of sight, in batches. Locks live->lock. */
enum lmcs_status lmcs_live_drop(struct lmcs_pool *pool, uint64_t shelf, struct lmcs_removal *removal,
                                struct lmcs_error *error);

/* ---- Usage (info.c) ---- */

/* Counts a shelf's variables and their data bytes. Locks live->lock. */
enum lmcs_status lmcs_live_count(struct lmcs_pool *pool, const char *shelf, uint64_t *variables, uint64_t *bytes,
                                 struct lmcs_error *error);

#endif
