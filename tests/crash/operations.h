/* SPDX-License-Identifier: BSD-3-Clause */
/* operations.h - a run of random operations, and its expected states. */
#ifndef LMCS_CRASH_OPERATIONS_H
#define LMCS_CRASH_OPERATIONS_H

#include "expected.h"

struct run {
    uint64_t seed;
    const char *folder; /* beside the pool */
    const char *pool_path;
    bool large;    /* some exceed a block */
    bool threaded; /* not repeatable */
    bool tight;    /* soon reached */
    bool lively;
    size_t operations;
};

/*
 * Opens or creates the pool. recorder_mark(1, operation) marks a beginning, recorder_mark(2, operation) an
 * acknowledgement.
 */
void run_operations(const struct run *run, struct expected *expected);
enum { MARK_BEGIN = 1, MARK_ACKNOWLEDGED = 2 };

/* After a power failure, captures, compaction and verification must succeed. */
bool run_goes_on(struct lmcs_pool *pool, uint64_t seed, char *why, size_t why_bytes);

/* NULL: `error` is set. */
struct lmcs_pool *run_open(const char *path, enum lmcs_open_mode mode, bool threaded, uint64_t limit_bytes,
                           struct lmcs_error *error);

#endif
