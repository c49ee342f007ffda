/* SPDX-License-Identifier: BSD-3-Clause */
/* shelves/drop.h - the removal of staging shelves; drop.c describes them. */
#ifndef LMCS_SHELVES_DROP_H
#define LMCS_SHELVES_DROP_H

#include "records/shelf.h"

#define LMCS_REMOVALS 16u /* snapshots in one transaction */

/*
 * Removes `count` snapshots of a staging shelf in one transaction: those of `numbers`, or (NULL) the oldest. *done: no
 * snapshot was left, and the shelf was removed as well. Adds to *removal.
 */
enum lmcs_status lmcs_staging_remove(struct lmcs_pool *pool, uint64_t id, const uint64_t *numbers, size_t count,
                                     struct lmcs_removal *removal, bool *done, struct lmcs_error *error);
/* Removes a staging shelf with all snapshots and live variables, in several transactions. Adds to *removal. */
enum lmcs_status lmcs_staging_drop(struct lmcs_pool *pool, uint64_t id, struct lmcs_removal *removal,
                                   struct lmcs_error *error);
/* Removes the staging shelves that a crash has left, except kept ones. Called when a pool has been opened for writing. */
enum lmcs_status lmcs_staging_drop_left(struct lmcs_pool *pool, struct lmcs_error *error);
/* Removes the kept staging shelves of earlier restores, unless a restore is using them. */
enum lmcs_status lmcs_staging_drop_kept(struct lmcs_pool *pool, struct lmcs_error *error);

#endif
