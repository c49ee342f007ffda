/* SPDX-License-Identifier: BSD-3-Clause */
/* test_annotations_support.h - a run of a few snapshots, and its tags and metrics. */
#ifndef LMCS_TEST_ANNOTATIONS_SUPPORT_H
#define LMCS_TEST_ANNOTATIONS_SUPPORT_H

#include "support.h"

#include <math.h>

#include "records/annotation.h"

enum { SNAPSHOTS = 4 };

static const char *path;

static void train(struct lmcs_pool *pool, size_t count)
{
    struct rng rng = {3};
    struct state *state = state_weights(&rng, 2, 3000);
    for (size_t i = 0; i < count; i++) {
        take_snapshot(pool, "run", state, (int64_t)i);
        state_step(state, &rng, 0, 2);
    }
    state_free(state);
}

static double metric_of(struct lmcs_pool *pool, uint64_t number, const char *name)
{
    struct lmcs_snapshot *snapshot;
    char which[32];
    double value = NAN;
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    for (size_t i = 0; i < info->metric_count; i++)
        if (strcmp(info->metrics[i].name, name) == 0)
            value = info->metrics[i].value;
    lmcs_snapshot_close(snapshot);
    return value;
}

#endif
