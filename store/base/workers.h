/* SPDX-License-Identifier: BSD-3-Clause */
/* workers.h - the threads of a pool, for copying and encoding. */
#ifndef LMCS_BASE_WORKERS_H
#define LMCS_BASE_WORKERS_H

#include "base/error.h"

struct lmcs_workers;

/* `threads` counts the caller's own: 1 makes none. They run on NUMA node `node`, if that is not negative. */
enum lmcs_status lmcs_workers_new(uint32_t threads, int node, struct lmcs_workers **workers, struct lmcs_error *error);
void lmcs_workers_free(struct lmcs_workers *workers);
uint32_t lmcs_workers_count(const struct lmcs_workers *workers);
/*
 * Calls work(context, i) for each i below count, in the caller's and the other threads, and returns when all are done.
 * Several callers may do so at the same time. `finish`, which may be NULL, is called by each thread that took part.
 */
void lmcs_workers_run(struct lmcs_workers *workers, void (*work)(void *context, uint64_t i),
                      void (*finish)(void *context), void *context, uint64_t count);

#endif
