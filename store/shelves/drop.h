/* SPDX-License-Identifier: BSD-3-Clause */
/* archive.h - what the rest of the store knows of restoring archives. */
#ifndef LMCS_SHELVES_DROP_H
#define LMCS_SHELVES_DROP_H

#include "pages/pool.h"

/* Removes what a restore that was cut short left in staging shelves. Called when a pool has been opened for writing. */
enum lmcs_status lmcs_archive_drop_staging(struct lmcs_pool *pool, struct lmcs_error *error);

#endif
