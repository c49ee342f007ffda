/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/freelist.h - the tree of free pages: loaded for a transaction, and brought up to date by its commit. */
#ifndef LMCS_PAGES_FREELIST_H
#define LMCS_PAGES_FREELIST_H

#include "pages/page.h"

/* Loads more into pool->avail, as far as readers' leases allow. */
enum lmcs_status lmcs_freelist_load(struct lmcs_pool *pool, struct lmcs_error *error);
/* Enters pages taken and freed, and new slabs. */
enum lmcs_status lmcs_freelist_settle(struct lmcs_txn *txn, struct lmcs_error *error);

#endif
