/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_names.c - finding snapshots in a long history, forking from it, and comparing its ends. */
#include "bench.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 8, LOOKUPS = 2000 };

/* Returns the median time to find a snapshot, over many places in the history. */
static double timed_find(struct lmcs_pool *pool, const char *prefix, uint64_t snapshots, uint64_t scale)
{
    static double seconds[LOOKUPS];
    uint64_t random = 7;
    for (size_t i = 0; i < LOOKUPS; i++) {
        char which[64];
        struct lmcs_snapshot *snapshot = NULL;
        struct lmcs_error error;
        uint64_t at = 1 + bench_random(&random) % snapshots;
        snprintf(which, sizeof which, "%s%" PRIu64, prefix, at * scale);
        double start = bench_now_s();
        bench_check(lmcs_snapshot_find(pool, "run", which, &snapshot, &error), &error, which);
        seconds[i] = bench_now_s() - start;
        lmcs_snapshot_close(snapshot);
    }
    return bench_median(seconds, LOOKUPS);
}

/* Returns the median time to open the same snapshot. */
static double timed_fixed(struct lmcs_pool *pool, const char *which)
{
    static double seconds[LOOKUPS];
    for (size_t i = 0; i < LOOKUPS; i++) {
        struct lmcs_snapshot *snapshot = NULL;
        struct lmcs_error error;
        double start = bench_now_s();
        bench_check(lmcs_snapshot_find(pool, "run", which, &snapshot, &error), &error, which);
        seconds[i] = bench_now_s() - start;
        lmcs_snapshot_close(snapshot);
    }
    return bench_median(seconds, LOOKUPS);
}

static uint64_t take(struct lmcs_pool *pool, const struct bench_state *state, uint64_t round)
{
    struct lmcs_capture *capture = NULL;
    struct lmcs_commit_options options;
    struct lmcs_error error;
    uint64_t number = 0;
    const struct lmcs_metric metric = {"loss", 1.0 / (double)(round + 1)};
    lmcs_commit_options_init(&options);
    options.step = (int64_t)(10 * (round + 1));
    options.time_ns = (uint64_t)1600000000000000000 + round * 1000000000;
    options.metrics = &metric;
    options.metric_count = 1;
    bench_check(lmcs_capture_begin(pool, "run", &capture, &error), &error, "begin");
    bench_check(lmcs_capture_put(capture, state->tensors, state->data, state->count, &error), &error, "put");
    bench_check(lmcs_capture_commit(capture, &options, &number, &error), &error, "commit");
    return number;
}

static double timed_fork(struct lmcs_pool *pool, const char *address, const char *name)
{
    struct lmcs_snapshot *snapshot = NULL;
    struct lmcs_error error;
    bench_check(lmcs_snapshot_open(pool, address, &snapshot, &error), &error, address);
    double start = bench_now_s();
    bench_check(lmcs_shelf_fork(snapshot, name, &error), &error, "fork");
    double seconds = bench_now_s() - start;
    lmcs_snapshot_close(snapshot);
    return seconds;
}

/* Measures finding among `rounds` snapshots. Keeps the pool for the command. */
void bench_names(const struct bench_options *options)
{
    uint64_t sizes[COUNT] = {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024};
    struct bench_state state = bench_state_new(COUNT, sizes);
    struct lmcs_pool *pool = bench_pool(options, "names.pool");
    struct lmcs_error error;
    double begin = bench_now_s();
    for (uint64_t round = 0; round < options->rounds; round++) {
        bench_state_touch(&state, round);
        take(pool, &state, round);
        if ((round + 1) % 10000 == 0)
            fprintf(stderr, "names: %" PRIu64 " snapshots, %.0f s\n", round + 1, bench_now_s() - begin);
    }
    bench_check(lmcs_tag_set(pool, "run", "best", options->rounds / 2, &error), &error, "tag");
    printf("{\"snapshots\": %" PRIu64 ", \"number_s\": %.9f", options->rounds,
           timed_find(pool, "", options->rounds, 1));
    printf(", \"step_s\": %.9f", timed_find(pool, "step:", options->rounds, 10));
    printf(", \"tag_s\": %.9f, \"back_s\": %.9f, \"time_s\": %.9f", timed_fixed(pool, "best"),
           timed_fixed(pool, "latest~2"), timed_fixed(pool, "{2020-09-13 12:30}"));
    printf(", \"fork_s\": %.9f}\n", timed_fork(pool, "run@best", "branch"));
    bench_close(pool);
    bench_state_free(&state);
}

/* Measures a fork of `rounds` tensors. */
void bench_fork(const struct bench_options *options)
{
    uint64_t *sizes = calloc(options->rounds, sizeof *sizes);
    if (sizes == NULL)
        bench_die("out of memory");
    for (size_t i = 0; i < options->rounds; i++)
        sizes[i] = 64;
    struct bench_state state = bench_state_new(options->rounds, sizes);
    struct lmcs_pool *pool = bench_pool(options, "names.pool");
    double start = bench_now_s();
    bench_snapshot(pool, "run", &state);
    double snapshot = bench_now_s() - start;
    uint64_t before = bench_info(pool).metadata_bytes;
    double fork = timed_fork(pool, "run", "branch");
    printf("{\"tensors\": %" PRIu64 ", \"snapshot_s\": %.6f, \"fork_s\": %.6f, \"metadata_bytes\": %" PRIu64 "}\n",
           options->rounds, snapshot, fork, bench_info(pool).metadata_bytes - before);
    bench_close(pool);
    bench_state_free(&state);
    char *path = bench_path(options, "names.pool");
    unlink(path);
    free(path);
    free(sizes);
}

static bool ignore(void *context, const struct lmcs_difference *difference)
{
    (void)context;
    (void)difference;
    return true;
}

static double timed_diff(struct lmcs_pool *pool)
{
    enum { TIMES = 5 };
    double seconds[TIMES];
    struct lmcs_snapshot *before = NULL;
    struct lmcs_snapshot *after = NULL;
    struct lmcs_error error;
    bench_check(lmcs_snapshot_open(pool, "run@1", &before, &error), &error, "run@1");
    bench_check(lmcs_snapshot_open(pool, "run@2", &after, &error), &error, "run@2");
    for (size_t i = 0; i < TIMES; i++) {
        double start = bench_now_s();
        bench_check(lmcs_snapshot_diff(before, after, 0, ignore, NULL, NULL, NULL, &error), &error, "diff");
        seconds[i] = bench_now_s() - start;
    }
    lmcs_snapshot_close(before);
    lmcs_snapshot_close(after);
    return bench_median(seconds, TIMES);
}

/* Measures comparing two snapshots: both raw, then one as a delta. */
void bench_diff(const struct bench_options *options)
{
    struct bench_state state = bench_state_model(options->bytes);
    struct lmcs_pool *pool = bench_pool(options, "names.pool");
    struct lmcs_error error;
    for (uint64_t i = 0; i < 2; i++) {
        bench_state_step(&state, i);
        bench_snapshot(pool, "run", &state);
    }
    double raw = timed_diff(pool);
    bench_check(lmcs_shelf_set_keep_raw(pool, "run", 1, &error), &error, "keep");
    bench_compact(pool);
    printf("{\"bytes\": %" PRIu64 ", \"raw_s\": %.6f, \"delta_s\": %.6f}\n", state.bytes, raw, timed_diff(pool));
    bench_close(pool);
    bench_state_free(&state);
    char *path = bench_path(options, "names.pool");
    unlink(path);
    free(path);
}
