/* SPDX-License-Identifier: BSD-3-Clause */
/* test_compact_support.h - histories to compact. */
#ifndef LMCS_TEST_COMPACT_SUPPORT_H
#define LMCS_TEST_COMPACT_SUPPORT_H

#include "pages/pool.h"
#include "pages/tree.h"
#include "records/content.h"
#include "support.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* states[i] is the state of snapshot i + 1. */
static inline void make_history(struct lmcs_pool *pool, const char *shelf, struct rng *rng, struct state **states,
                                size_t count, size_t tensors, size_t floats)
{
    struct state *now = state_weights(rng, tensors, floats);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(take_snapshot(pool, shelf, now, (int64_t)i), i + 1);
        states[i] = state_copy(now);
        state_step(now, rng, 0, tensors - 1); /* the last one never changes */
    }
    state_free(now);
}

static inline void free_history(struct state **states, size_t count)
{
    for (size_t i = 0; i < count; i++)
        state_free(states[i]);
}

#endif
