/* SPDX-License-Identifier: BSD-3-Clause */
/* base/workers.h - the threads of a pool, for copying, encoding and decoding. */
#ifndef LMCS_BASE_WORKERS_H
#define LMCS_BASE_WORKERS_H

#include "base/error.h"

struct lmcs_workers;

/*
 * `threads` includes the caller's: 1 creates none. Others run on NUMA node `node` (-1: any), created by the first run
 * that can use them.
 *
 * `nice` above 0: `threads` threads of at least that nice value do everything, and the caller only waits. Its own
 * priority stays: it may hold locks, and could not raise it again. A job must not start another run of them.
 */
enum lmcs_status lmcs_workers_new(uint32_t threads, uint32_t nice, int node, struct lmcs_workers **workers,
                                  struct lmcs_error *error);
/* No run may be under way. */
void lmcs_workers_free(struct lmcs_workers *workers);
/* Threads of a run, the caller's included. */
uint32_t lmcs_workers_count(const struct lmcs_workers *workers);
/*
 * Calls work(context, i) for each i below `count`, in the caller's and other threads; returns after all calls. Runs of
 * several callers share the threads. Each participating thread calls `finish` (or NULL) last. `workers` NULL: in the
 * caller's thread, in order, or in the idle thread that it owns (base/idle.h). Without a nice value, a single item is
 * always the caller's: it ends sooner than another thread begins.
 */
void lmcs_workers_run(struct lmcs_workers *workers, void (*work)(void *context, uint64_t i),
                      void (*finish)(void *context), void *context, uint64_t count);

/* `error` is this call's own, never NULL. */
typedef enum lmcs_status lmcs_workers_job(void *context, uint64_t i, struct lmcs_error *error);
/*
 * Runs a job for each item; once one has failed, no other begins. Returns the first failure and its error.
 */
enum lmcs_status lmcs_workers_try(struct lmcs_workers *workers, lmcs_workers_job *job, void (*finish)(void *context),
                                  void *context, uint64_t count, struct lmcs_error *error);

#endif
