/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_capture_support.h - captures of small states.
 */
#ifndef LMCS_TEST_CAPTURE_SUPPORT_H
#define LMCS_TEST_CAPTURE_SUPPORT_H

#include "support.h"
#include <pthread.h>
#include <unistd.h>

static inline struct lmcs_capture *begin(struct lmcs_pool *pool, const char *shelf)
{
    struct lmcs_capture *capture = NULL;
    OK(lmcs_capture_begin(pool, shelf, &capture, &err));
    return capture;
}

static inline uint64_t commit(struct lmcs_capture *capture)
{
    uint64_t number = 0;
    OK(lmcs_capture_commit(capture, NULL, &number, &err));
    return number;
}

static inline void put_one(struct lmcs_capture *capture, const char *name, uint32_t dtype, uint32_t ndim,
                           const uint64_t *shape, const int64_t *strides, const void *data)
{
    struct lmcs_tensor tensor = {.name = name, .dtype = dtype, .ndim = ndim, .shape = shape, .strides = strides};
    OK(lmcs_capture_put(capture, &tensor, &data, 1, &err));
}

static inline void expect_bytes(struct lmcs_pool *pool, const char *name, const void *data, size_t bytes)
{
    struct lmcs_snapshot *snapshot;
    unsigned char *got = malloc(bytes + 1);
    OK(lmcs_snapshot_find(pool, "run", NULL, &snapshot, &err));
    OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, name, got, bytes, &err));
    if (bytes > 0)
        assert_memory_equal(got, data, bytes);
    lmcs_snapshot_close(snapshot);
    free(got);
}

#endif
