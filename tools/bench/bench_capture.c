/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_capture.c - writing: bandwidth, small tensors, memory. */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_ROUNDS     64
#define FIRST_CAPTURES 10

static double timed_snapshot(struct lmcs_pool *pool, struct bench_state *state, uint64_t round)
{
    bench_state_touch(state, round);
    double start = bench_now_s();
    bench_snapshot(pool, "run", state);
    return bench_now_s() - start;
}

static double timed_memcpy_to_new_memory(const struct bench_state *state, unsigned threads)
{
    void *fresh = mmap(NULL, state->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED)
        bench_die("out of memory");
    double seconds = bench_memcpy(fresh, state->buffer, state->bytes, threads);
    munmap(fresh, state->bytes);
    return seconds;
}

static int new_file(const char *path)
{
    unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        bench_die("%s: %s", path, strerror(errno));
    return fd;
}

struct capture_times {
    double memory[MAX_ROUNDS];
    double file_one[MAX_ROUNDS];
    double file_all[MAX_ROUNDS];
    double pool[MAX_ROUNDS];
};

static void print_capture_times(const char *name, struct capture_times *times, size_t rounds, const char *after)
{
    printf(
        "\"%s\": {\"memcpy_s\": %.6f, \"write_one_thread_s\": %.6f, \"write_threads_s\": %.6f, \"capture_s\": %.6f}%s",
        name, bench_median(times->memory, rounds), bench_median(times->file_one, rounds),
        bench_median(times->file_all, rounds), bench_median(times->pool, rounds), after);
}

/* Measures with a new file, a new pool and new memory. */
static void capture_cold(const struct bench_options *options, struct bench_state *state, struct capture_times *times,
                         size_t rounds)
{
    char *path = bench_path(options, "bench.file");
    char *pool_path = bench_path(options, "bench.pool");
    for (size_t i = 0; i < rounds; i++) {
        times->memory[i] = timed_memcpy_to_new_memory(state, options->threads);
        sync();
        int fd = new_file(path);
        times->file_one[i] = bench_write(fd, state->buffer, state->bytes, 1);
        close(fd);
        sync();
        fd = new_file(path);
        times->file_all[i] = bench_write(fd, state->buffer, state->bytes, options->threads);
        close(fd);
        unlink(path);
        sync();
        struct lmcs_pool *pool = bench_pool(options, "bench.pool");
        times->pool[i] = timed_snapshot(pool, state, i);
        bench_close(pool);
        unlink(pool_path);
    }
    free(path);
    free(pool_path);
}

/* Measures with an existing file, and with a pool where each snapshot replaces a removed one. */
static void capture_warm(const struct bench_options *options, struct bench_state *state, struct capture_times *times,
                         size_t rounds)
{
    char *path = bench_path(options, "bench.file");
    char *pool_path = bench_path(options, "bench.pool");
    void *warm = mmap(NULL, state->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (warm == MAP_FAILED)
        bench_die("out of memory");
    int fd = new_file(path);
    bench_write(fd, state->buffer, state->bytes, 1);
    struct lmcs_pool *pool = bench_pool(options, "bench.pool");
    uint64_t number = 0;
    for (size_t i = 0; i < rounds + 3; i++) {
        size_t at = i < 3 ? 0 : i - 3; /* the first three make the space */
        times->memory[at] = bench_memcpy(warm, state->buffer, state->bytes, options->threads);
        sync();
        times->file_one[at] = bench_write(fd, state->buffer, state->bytes, 1);
        sync();
        times->file_all[at] = bench_write(fd, state->buffer, state->bytes, options->threads);
        sync();
        times->pool[at] = timed_snapshot(pool, state, 1000 + i);
        number++;
        if (number > 1)
            bench_remove(pool, "run", number - 1);
    }
    bench_close(pool);
    close(fd);
    munmap(warm, state->bytes);
    unlink(path);
    unlink(pool_path);
    free(path);
    free(pool_path);
}

void bench_capture(const struct bench_options *options)
{
    static struct capture_times cold;
    static struct capture_times warm;
    size_t rounds = options->rounds < MAX_ROUNDS ? options->rounds : MAX_ROUNDS;
    struct bench_state state = bench_state_model(options->bytes);
    capture_cold(options, &state, &cold, rounds);
    capture_warm(options, &state, &warm, rounds);
    printf("{\"bytes\": %lu, \"tensors\": %zu, \"threads\": %u, \"rounds\": %zu, ", (unsigned long)state.bytes,
           state.count, options->threads, rounds);
    print_capture_times("cold", &cold, rounds, ", ");
    print_capture_times("warm", &warm, rounds, "}\n");
    bench_state_free(&state);
}

static struct lmcs_pool *pool_with_background(const struct bench_options *options, const char *path, uint64_t expected)
{
    struct lmcs_pool *pool = NULL;
    struct lmcs_error error;
    struct lmcs_open_options open_options;
    lmcs_open_options_init(&open_options);
    open_options.threads = options->threads;
    open_options.expect_bytes = expected;
    unlink(path);
    bench_check(lmcs_pool_open(path, LMCS_OPEN_CREATE, &open_options, &pool, &error), &error, path);
    return pool;
}

/* Captures a new pool's first snapshots, with pauses as long as the first capture took. `expected`: told to open, with
 * a pause before the first. */
static void first_captures(const struct bench_options *options, struct bench_state *state, uint64_t expected,
                           double pause_s, double times[FIRST_CAPTURES][MAX_ROUNDS], size_t round)
{
    char *path = bench_path(options, "bench.pool");
    struct lmcs_pool *pool = pool_with_background(options, path, expected);
    for (size_t i = 0; i < FIRST_CAPTURES; i++) {
        if (i > 0 || expected > 0)
            usleep((useconds_t)(pause_s * 1e6));
        times[i][round] = timed_snapshot(pool, state, 100 * round + i);
        if (pause_s == 0)
            pause_s = times[i][round];
    }
    bench_close(pool);
    unlink(path);
    free(path);
}

static void print_first(const char *name, double times[FIRST_CAPTURES][MAX_ROUNDS], size_t rounds, const char *after)
{
    printf("\"%s\": [", name);
    for (size_t i = 0; i < FIRST_CAPTURES; i++)
        printf("%s%.6f", i == 0 ? "" : ", ", bench_median(times[i], rounds));
    printf("]%s", after);
}

/* Measures the first ten captures of a new pool, told and untold how large they will be. */
void bench_first(const struct bench_options *options)
{
    static double untold[FIRST_CAPTURES][MAX_ROUNDS];
    static double told[FIRST_CAPTURES][MAX_ROUNDS];
    size_t rounds = options->rounds < MAX_ROUNDS ? options->rounds : MAX_ROUNDS;
    struct bench_state state = bench_state_model(options->bytes);
    for (size_t round = 0; round < rounds; round++) {
        sync();
        first_captures(options, &state, 0, 0, untold, round);
        sync();
        first_captures(options, &state, state.bytes, untold[0][round], told, round);
    }
    printf("{\"bytes\": %lu, \"tensors\": %zu, \"threads\": %u, \"rounds\": %zu, ", (unsigned long)state.bytes,
           state.count, options->threads, rounds);
    print_first("untold_s", untold, rounds, ", ");
    print_first("told_s", told, rounds, "}\n");
    bench_state_free(&state);
}

/* Measures commits of 1,000 tensors of 2 KiB, all changed. */
void bench_commit(const struct bench_options *options)
{
    enum { COUNT = 1000 };
    static double put[MAX_ROUNDS];
    static double commit[MAX_ROUNDS];
    static double whole[MAX_ROUNDS];
    static double file[MAX_ROUNDS];
    uint64_t sizes[COUNT];
    size_t rounds = options->rounds < MAX_ROUNDS ? options->rounds : MAX_ROUNDS;
    for (size_t i = 0; i < COUNT; i++)
        sizes[i] = 2048;
    struct bench_state state = bench_state_new(COUNT, sizes);
    struct lmcs_pool *pool = bench_pool(options, "bench.pool");
    char *path = bench_path(options, "bench.file");
    int fd = new_file(path);
    bench_write(fd, state.buffer, state.bytes, 1);
    bench_snapshot(pool, "run", &state);
    for (size_t i = 0; i < rounds; i++) {
        struct lmcs_capture *capture = NULL;
        struct lmcs_error error;
        bench_state_touch(&state, i);
        file[i] = bench_write(fd, state.buffer, state.bytes, 1);
        double start = bench_now_s();
        bench_check(lmcs_capture_begin(pool, "run", &capture, &error), &error, "begin");
        bench_check(lmcs_capture_put(capture, state.tensors, state.data, state.count, &error), &error, "put");
        double half = bench_now_s();
        bench_check(lmcs_capture_commit(capture, NULL, NULL, &error), &error, "commit");
        double end = bench_now_s();
        put[i] = half - start;
        commit[i] = end - half;
        whole[i] = end - start;
    }
    printf("{\"tensors\": %d, \"tensor_bytes\": 2048, \"rounds\": %zu, \"put_s\": %.6f, \"commit_s\": %.6f, "
           "\"whole_s\": %.6f, \"write_s\": %.6f}\n",
           COUNT, rounds, bench_median(put, rounds), bench_median(commit, rounds), bench_median(whole, rounds),
           bench_median(file, rounds));
    bench_close(pool);
    close(fd);
    unlink(path);
    free(path);
    path = bench_path(options, "bench.pool");
    unlink(path);
    free(path);
    bench_state_free(&state);
}

/* ---- Memory --------------------------------------------------------------------------------------------------- */

/* Measures the anonymous memory that a capture adds to the process's. */
void bench_memory(const struct bench_options *options)
{
    struct bench_state state = bench_state_model(options->bytes);
    struct lmcs_pool *pool = bench_pool(options, "bench.pool");
    uint64_t before = bench_anonymous_bytes();
    struct bench_watch *watch = bench_watch_start();
    for (uint64_t round = 0; round < 2; round++) {
        bench_state_touch(&state, round);
        bench_snapshot(pool, "run", &state);
    }
    uint64_t most = bench_watch_stop(watch);
    printf("{\"bytes\": %lu, \"more_anonymous_bytes\": %lu}\n", (unsigned long)state.bytes,
           (unsigned long)(most > before ? most - before : 0));
    bench_close(pool);
    char *path = bench_path(options, "bench.pool");
    unlink(path);
    free(path);
    bench_state_free(&state);
}

static char *cgroup_file(const struct bench_options *options, const char *v1, const char *v2)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", options->cgroup, v1) < 0)
        bench_die("out of memory");
    if (access(path, F_OK) != 0) {
        free(path);
        if (asprintf(&path, "%s/%s", options->cgroup, v2) < 0)
            bench_die("out of memory");
    }
    return path;
}

static uint64_t read_number(const char *path)
{
    char line[64];
    FILE *file = fopen(path, "re");
    if (file == NULL || fgets(line, sizeof line, file) == NULL)
        bench_die("can't read %s", path);
    fclose(file);
    return strtoull(line, NULL, 10);
}

/* Captures under a limit of 512 MiB above the process's memory, page cache included. The process starts in the cgroup
 * and sets the limit once its state is in memory. */
void bench_big(const struct bench_options *options)
{
    enum { PIECES = 64 };
    uint64_t sizes[PIECES];
    for (size_t i = 0; i < PIECES; i++)
        sizes[i] = options->bytes / PIECES;
    struct bench_state state = bench_state_new(PIECES, sizes);
    struct lmcs_pool *pool = bench_pool(options, "bench.pool");
    uint64_t limit = 0;
    if (options->cgroup != NULL) {
        char *usage = cgroup_file(options, "memory.usage_in_bytes", "memory.current");
        char *most = cgroup_file(options, "memory.limit_in_bytes", "memory.max");
        limit = read_number(usage) + 512 * MIB;
        FILE *file = fopen(most, "we");
        if (file == NULL || fprintf(file, "%lu\n", (unsigned long)limit) < 0 || fclose(file) != 0)
            bench_die("can't set %s", most);
        free(usage);
        free(most);
    }
    uint64_t before = bench_anonymous_bytes();
    struct bench_watch *watch = bench_watch_start();
    double start = bench_now_s();
    bench_snapshot(pool, "run", &state);
    double seconds = bench_now_s() - start;
    uint64_t most = bench_watch_stop(watch);
    printf("{\"bytes\": %lu, \"limit_bytes\": %lu, \"capture_s\": %.3f, \"more_anonymous_bytes\": %lu}\n",
           (unsigned long)state.bytes, (unsigned long)limit, seconds,
           (unsigned long)(most > before ? most - before : 0));
    bench_close(pool);
    char *path = bench_path(options, "bench.pool");
    unlink(path);
    free(path);
    bench_state_free(&state);
}
