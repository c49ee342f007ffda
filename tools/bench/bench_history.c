/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_history.c - many tensors, many snapshots, many rounds of compaction and pruning. */
#include "bench.h"

#include <stdlib.h>
#include <unistd.h>

static void remove_pool(const struct bench_options *options)
{
    char *path = bench_path(options, "bench.pool");
    unlink(path);
    free(path);
}

/* Changes `count` tensors, evenly spread. */
static void change_some(struct bench_state *state, size_t count, float value)
{
    for (size_t i = 0; i < count; i++) {
        size_t which = count == state->count ? i : i * (state->count / count);
        size_t offset = (size_t)((const unsigned char *)state->data[which] - state->buffer);
        float *first = (float *)(void *)(state->buffer + offset);
        *first = value;
    }
}

/* Measures snapshots of `rounds` tensors of `bytes` (0: 1 KiB), of which none, ten and all changed. */
void bench_many(const struct bench_options *options)
{
    enum { TIMES = 5 };
    size_t count = options->rounds;
    uint64_t tensor_bytes = options->bytes != 0 ? options->bytes : 1024;
    uint64_t *sizes = calloc(count, sizeof *sizes);
    if (sizes == NULL)
        bench_die("out of memory");
    for (size_t i = 0; i < count; i++)
        sizes[i] = tensor_bytes;
    struct bench_state state = bench_state_new(count, sizes);
    struct lmcs_pool *pool = bench_pool(options, "bench.pool");
    double start = bench_now_s();
    bench_snapshot(pool, "run", &state);
    double first = bench_now_s() - start;
    printf("{\"tensors\": %zu, \"tensor_bytes\": %lu, \"first_s\": %.6f, \"first_used_bytes\": %lu", count,
           (unsigned long)tensor_bytes, first, (unsigned long)bench_info(pool).used_bytes);
    static const char *const names[] = {"none", "ten", "all"};
    const size_t changed[] = {0, 10, count};
    for (size_t kind = 0; kind < 3; kind++) {
        double seconds[TIMES];
        double live[TIMES];
        double metadata[TIMES];
        for (size_t i = 0; i < TIMES; i++) {
            struct lmcs_pool_info before = bench_info(pool);
            if (changed[kind] > 0)
                change_some(&state, changed[kind], (float)(10 * kind + i + 1));
            start = bench_now_s();
            bench_snapshot(pool, "run", &state);
            seconds[i] = bench_now_s() - start;
            struct lmcs_pool_info after = bench_info(pool);
            live[i] = (double)after.live_bytes - (double)before.live_bytes;
            metadata[i] = (double)after.metadata_bytes - (double)before.metadata_bytes;
        }
        printf(", \"%s\": {\"changed\": %zu, \"snapshot_s\": %.6f, \"more_live_bytes\": %.0f, "
               "\"more_metadata_bytes\": %.0f}",
               names[kind], changed[kind], bench_median(seconds, TIMES), bench_median(live, TIMES),
               bench_median(metadata, TIMES));
    }
    printf("}\n");
    bench_close(pool);
    remove_pool(options);
    bench_state_free(&state);
    free(sizes);
}

/* Takes, compacts and prunes snapshots of mixed sizes, of which at most eight remain: the pool's size over its live
 * bytes. */
void bench_churn(const struct bench_options *options)
{
    enum { COUNT = 24, KEEP = 8 };
    uint64_t sizes[COUNT];
    uint64_t random = 42;
    for (size_t i = 0; i < COUNT; i++)
        sizes[i] = 4 * (16 + bench_random(&random) % (i % 6 == 0 ? 400000 : i % 2 == 0 ? 20000 : 600));
    struct bench_state state = bench_state_new(COUNT, sizes);
    struct lmcs_pool *pool = bench_pool(options, "bench.pool");
    double worst = 0;
    double last = 0;
    struct lmcs_pool_info info = bench_info(pool);
    double start = bench_now_s();
    for (uint64_t round = 1; round <= options->rounds; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            if (bench_random(&random) % 3 == 0) {
                size_t offset = (size_t)((const unsigned char *)state.data[i] - state.buffer);
                float *first = (float *)(void *)(state.buffer + offset);
                for (uint64_t j = 0; j < sizes[i] / 4; j += 1 + bench_random(&random) % 8)
                    first[j] += 1e-4f;
            }
        }
        uint64_t number = bench_snapshot(pool, "run", &state);
        bench_compact(pool);
        if (number > KEEP) {
            /* Removes mostly the oldest; sometimes another, so that bases outlive their snapshots. */
            struct lmcs_error error;
            uint64_t numbers[KEEP + 1];
            size_t there = 0;
            bench_check(lmcs_snapshot_numbers(pool, "run", 1, numbers, KEEP + 1, &there, &error), &error, "numbers");
            if (there > KEEP)
                bench_remove(pool, "run", numbers[round % 5 == 0 ? bench_random(&random) % (there - 1) : 0]);
        }
        if (round % 100 == 0 || round == options->rounds) {
            bench_compact(pool);
            info = bench_info(pool);
            last = (double)info.used_bytes / (double)info.live_bytes;
            worst = last > worst ? last : worst;
        }
        if (round % 500 == 0)
            fprintf(stderr, "churn: %lu rounds, %.0f s, used/live %.3f\n", (unsigned long)round, bench_now_s() - start,
                    last);
    }
    printf("{\"rounds\": %lu, \"seconds\": %.1f, \"used_bytes\": %lu, \"live_bytes\": %lu, \"metadata_bytes\": %lu, "
           "\"used_over_live\": %.4f, \"worst_used_over_live\": %.4f}\n",
           (unsigned long)options->rounds, bench_now_s() - start, (unsigned long)info.used_bytes,
           (unsigned long)info.live_bytes, (unsigned long)info.metadata_bytes, last, worst);
    bench_close(pool);
    remove_pool(options);
    bench_state_free(&state);
}

static double timed_open(const char *path, unsigned threads)
{
    enum { TIMES = 9 };
    double seconds[TIMES];
    for (size_t i = 0; i < TIMES; i++) {
        double start = bench_now_s();
        struct lmcs_pool *pool = bench_open(path, LMCS_OPEN_WRITE, threads);
        struct lmcs_snapshot *snapshot = NULL;
        struct lmcs_error error;
        bench_check(lmcs_snapshot_open(pool, "run@latest", &snapshot, &error), &error, "latest");
        seconds[i] = bench_now_s() - start;
        lmcs_snapshot_close(snapshot);
        bench_close(pool);
    }
    return bench_median(seconds, TIMES);
}

/* Measures the first and the last of `rounds` snapshots, and opening the pool at the beginning and at the end. */
void bench_long(const struct bench_options *options)
{
    enum { COUNT = 8 };
    const size_t window = 500;
    uint64_t sizes[COUNT] = {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024};
    static double first[500];
    static double last[500];
    if (options->rounds < 2 * window)
        bench_die("long: at least %zu rounds", 2 * window);
    struct bench_state state = bench_state_new(COUNT, sizes);
    struct lmcs_pool *pool = bench_pool(options, "bench.pool");
    char *path = bench_path(options, "bench.pool");
    double open_early = 0;
    double begin = bench_now_s();
    for (uint64_t round = 0; round < options->rounds; round++) {
        bench_state_touch(&state, round);
        double start = bench_now_s();
        bench_snapshot(pool, "run", &state);
        double seconds = bench_now_s() - start;
        if (round < window)
            first[round] = seconds;
        if (round >= options->rounds - window)
            last[round - (options->rounds - window)] = seconds;
        if (round + 1 == window) {
            bench_close(pool);
            open_early = timed_open(path, options->threads);
            pool = bench_open(path, LMCS_OPEN_WRITE, options->threads);
        }
        if ((round + 1) % 10000 == 0)
            fprintf(stderr, "long: %lu snapshots, %.0f s\n", (unsigned long)round + 1, bench_now_s() - begin);
    }
    struct lmcs_pool_info info = bench_info(pool);
    bench_close(pool);
    printf("{\"snapshots\": %lu, \"first_s\": %.7f, \"last_s\": %.7f, \"open_early_s\": %.6f, \"open_late_s\": %.6f, "
           "\"used_bytes\": %lu}\n",
           (unsigned long)options->rounds, bench_median(first, window), bench_median(last, window), open_early,
           timed_open(path, options->threads), (unsigned long)info.used_bytes);
    unlink(path);
    free(path);
    bench_state_free(&state);
}
