/* SPDX-License-Identifier: BSD-3-Clause */
/* pages/heap_check.h - compares libpmemobj's heap with the objects tree. */
#ifndef LMCS_PAGES_HEAP_CHECK_H
#define LMCS_PAGES_HEAP_CHECK_H

#include "base/error.h"

struct lmcs_pool;

/*
 * Compares libpmemobj's heap with our objects, and the root's unused pages with the slabs, which the pool then knows.
 * Runs after libpmemobj's recovery, before any allocation. A pool with a heap gives back free chunks' file space.
 * LMCS_DAMAGED: they differ.
 */
enum lmcs_status lmcs_check_heap(struct lmcs_pool *pool, struct lmcs_error *error);

#endif
