/* SPDX-License-Identifier: BSD-3-Clause */
/* base/workers.h - the threads of a pool, for copying, encoding and decoding. */
#ifndef LMCS_BASE_WORKERS_H
#define LMCS_BASE_WORKERS_H

#include "base/error.h"

struct lmcs_workers;

/*
 * `threads` includes the caller's: 1 creates no thread. Threads run on the processors of NUMA node `node` (-1: any),
 * and are created by the first run that can use them.
 */
enum lmcs_status lmcs_workers_new(uint32_t threads, int node, struct lmcs_workers **workers, struct lmcs_error *error);
/* Ends the threads. No run may be under way. */
void lmcs_workers_free(struct lmcs_workers *workers);
/* The threads that a run can use, the caller's included. */
uint32_t lmcs_workers_count(const struct lmcs_workers *workers);
/*
 * Calls work(context, i) for each i below `count`, in the caller's and the other threads, and returns when all calls
 * have returned. Runs of several callers share the threads. Each thread that took part calls `finish` (or NULL) last.
 */
void lmcs_workers_run(struct lmcs_workers *workers, void (*work)(void *context, uint64_t i),
                      void (*finish)(void *context), void *context, uint64_t count);

/* One item of a run that may fail. `error` is this call's own and never NULL. */
typedef enum lmcs_status lmcs_workers_job(void *context, uint64_t i, struct lmcs_error *error);
/*
 * Runs `job` likewise until one call fails: no item begins after that. Returns the first failure and its error.
 * `workers` NULL: in the caller's thread, in order.
 */
enum lmcs_status lmcs_workers_try(struct lmcs_workers *workers, lmcs_workers_job *job, void (*finish)(void *context),
                                  void *context, uint64_t count, struct lmcs_error *error);

#endif
