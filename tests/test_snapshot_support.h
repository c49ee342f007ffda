/* SPDX-License-Identifier: BSD-3-Clause */
/* test_snapshot_support.h - small snapshots. */
#ifndef LMCS_TEST_SNAPSHOT_SUPPORT_H
#define LMCS_TEST_SNAPSHOT_SUPPORT_H

#include "support.h"
#include <math.h>
#include <unistd.h>

/* One small new tensor. */
static inline uint64_t take(struct lmcs_pool *pool, const char *shelf, uint64_t value,
                            const struct lmcs_commit_options *options)
{
    struct lmcs_capture *capture;
    struct lmcs_tensor tensor = {.name = "value", .dtype = LMC_U64};
    const void *data = &value;
    uint64_t number = 0;
    OK(lmcs_capture_begin(pool, shelf, &capture, &err));
    OK(lmcs_capture_put(capture, &tensor, &data, 1, &err));
    OK(lmcs_capture_commit(capture, options, &number, &err));
    return number;
}

static inline uint64_t take_step(struct lmcs_pool *pool, const char *shelf, int64_t step)
{
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.step = step;
    return take(pool, shelf, (uint64_t)step, &options);
}

/* The address's number. */
static inline uint64_t at(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    uint64_t number = lmcs_snapshot_info(snapshot)->number;
    lmcs_snapshot_close(snapshot);
    return number;
}

static inline void absent(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot = NULL;
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_open(pool, address, &snapshot, &err));
    assert_null(snapshot);
    assert_true(err.message[0] != '\0');
}

static inline bool count_tag(void *context, const char *tag)
{
    (void)tag;
    ++*(size_t *)context;
    return true;
}

#endif
