/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_read.c - views and decoding. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct lmcs_snapshot *latest(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot = NULL;
    struct lmcs_error error;
    bench_check(lmcs_snapshot_open(pool, address, &snapshot, &error), &error, address);
    return snapshot;
}

/* Returns the time to open a raw tensor's view, without touching it. */
static double timed_view(struct lmcs_pool *pool, const char *name)
{
    enum { TIMES = 2001 };
    static double seconds[TIMES];
    struct lmcs_snapshot *snapshot = latest(pool, "run@latest");
    struct lmcs_error error;
    for (size_t i = 0; i < TIMES; i++) {
        struct lmcs_view *view = NULL;
        double start = bench_now_s();
        bench_check(lmcs_view_open(snapshot, &name, NULL, 1, 0, &view, &error), &error, "view");
        seconds[i] = bench_now_s() - start;
        lmcs_view_close(view);
    }
    lmcs_snapshot_close(snapshot);
    return bench_median(seconds, TIMES);
}

/* Measures views of a small and a large tensor, after one snapshot and after `rounds`. */
void bench_view(const struct bench_options *options)
{
    uint64_t sizes[] = {4096, 256 * MIB};
    struct bench_state state = bench_state_new(2, sizes);
    struct lmcs_pool *pool = bench_pool(options, "bench.pool");
    bench_snapshot(pool, "run", &state);
    double small_early = timed_view(pool, "h.0.weight");
    double large_early = timed_view(pool, "h.1.weight");
    for (uint64_t round = 1; round < options->rounds; round++) {
        float value = (float)round;
        memcpy(state.buffer, &value, sizeof value); /* the small one changes, the large one is shared */
        bench_snapshot(pool, "run", &state);
    }
    printf("{\"small_bytes\": %lu, \"large_bytes\": %lu, \"snapshots\": %lu, \"small_early_s\": %.9f, "
           "\"large_early_s\": %.9f, \"small_late_s\": %.9f, \"large_late_s\": %.9f}\n",
           (unsigned long)sizes[0], (unsigned long)sizes[1], (unsigned long)options->rounds, small_early, large_early,
           timed_view(pool, "h.0.weight"), timed_view(pool, "h.1.weight"));
    bench_close(pool);
    char *path = bench_path(options, "bench.pool");
    unlink(path);
    free(path);
    bench_state_free(&state);
}

static double timed_read(const char *path, unsigned threads, const char *address, void *buffer, uint64_t bytes)
{
    struct lmcs_pool *pool = bench_open(path, LMCS_OPEN_READ, threads);
    struct lmcs_snapshot *snapshot = latest(pool, address);
    struct lmcs_error error;
    double start = bench_now_s();
    bench_check(lmcs_snapshot_read(snapshot, LMCS_TENSOR, "h.0.weight", buffer, bytes, &error), &error, "read");
    double seconds = bench_now_s() - start;
    lmcs_snapshot_close(snapshot);
    bench_close(pool);
    return seconds;
}

struct found {
    enum lmcs_stored_as stored_as;
    uint64_t stored_bytes;
};

static bool note(void *context, const struct lmcs_entry *entry)
{
    struct found *found = context;
    found->stored_as = entry->stored_as;
    found->stored_bytes = entry->stored_bytes;
    return false;
}

/* Measures decoding with one thread and with two, in turn. */
void bench_decode(const struct bench_options *options)
{
    enum { MOST = 32 };
    static double one[MOST];
    static double two[MOST];
    size_t rounds = options->rounds < MOST ? options->rounds : MOST;
    struct bench_state state = bench_state_new(1, &options->bytes);
    char *path = bench_path(options, "bench.pool");
    struct lmcs_pool *pool = bench_pool(options, "bench.pool");
    for (uint64_t i = 0; i < 6; i++) {
        bench_snapshot(pool, "run", &state);
        bench_state_step(&state, i);
    }
    bench_compact(pool);
    struct lmcs_snapshot *snapshot = latest(pool, "run@2");
    struct lmcs_error error;
    struct found found = {0};
    bench_check(lmcs_snapshot_entries(snapshot, note, &found, &error), &error, "entries");
    lmcs_snapshot_close(snapshot);
    bench_close(pool);
    if (found.stored_as == LMCS_STORED_RAW)
        bench_die("decode: run@2 is still raw");
    for (size_t i = 0; i < rounds; i++) {
        one[i] = timed_read(path, 1, "run@2", state.buffer, state.bytes);
        two[i] = timed_read(path, 2, "run@2", state.buffer, state.bytes);
    }
    printf("{\"bytes\": %lu, \"stored_bytes\": %lu, \"is_delta\": %s, \"rounds\": %zu, \"one_thread_s\": %.6f, "
           "\"two_threads_s\": %.6f}\n",
           (unsigned long)state.bytes, (unsigned long)found.stored_bytes,
           found.stored_as == LMCS_STORED_DELTA ? "true" : "false", rounds, bench_median(one, rounds),
           bench_median(two, rounds));
    unlink(path);
    free(path);
    bench_state_free(&state);
}
