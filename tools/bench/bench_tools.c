/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_tools.c - clocks, states, baselines. */
#include "bench.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

void bench_die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("bench_store: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

void bench_check(enum lmcs_status status, const struct lmcs_error *error, const char *what)
{
    if (status != LMCS_OK)
        bench_die("%s: %s", what, error->message);
}

double bench_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

uint64_t bench_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

/* ---- Pools ---------------------------------------------------------------------------------------------------- */

char *bench_path(const struct bench_options *options, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", options->directory, name) < 0)
        bench_die("out of memory");
    return path;
}

struct lmcs_pool *bench_open(const char *path, enum lmcs_open_mode mode, unsigned threads)
{
    struct lmcs_pool *pool = NULL;
    struct lmcs_error error;
    struct lmcs_open_options open_options;
    lmcs_open_options_init(&open_options);
    open_options.threads = threads;
    open_options.flags = LMCS_NO_BACKGROUND;
    bench_check(lmcs_pool_open(path, mode, &open_options, &pool, &error), &error, path);
    return pool;
}

struct lmcs_pool *bench_pool(const struct bench_options *options, const char *name)
{
    char *path = bench_path(options, name);
    if (unlink(path) != 0 && errno != ENOENT)
        bench_die("%s: %s", path, strerror(errno));
    struct lmcs_pool *pool = bench_open(path, LMCS_OPEN_CREATE, options->threads);
    free(path);
    return pool;
}

void bench_close(struct lmcs_pool *pool)
{
    struct lmcs_error error;
    bench_check(lmcs_pool_close(pool, &error), &error, "close");
}

struct lmcs_pool_info bench_info(struct lmcs_pool *pool)
{
    struct lmcs_pool_info info;
    struct lmcs_error error;
    bench_check(lmcs_pool_info(pool, &info, &error), &error, "info");
    return info;
}

uint64_t bench_snapshot(struct lmcs_pool *pool, const char *shelf, const struct bench_state *state)
{
    struct lmcs_capture *capture = NULL;
    struct lmcs_error error;
    uint64_t number = 0;
    bench_check(lmcs_capture_begin(pool, shelf, &capture, &error), &error, "begin");
    bench_check(lmcs_capture_put(capture, state->tensors, state->data, state->count, &error), &error, "put");
    bench_check(lmcs_capture_commit(capture, NULL, &number, &error), &error, "commit");
    return number;
}

void bench_remove(struct lmcs_pool *pool, const char *shelf, uint64_t number)
{
    struct lmcs_error error;
    bench_check(lmcs_snapshot_remove(pool, shelf, number, false, NULL, &error), &error, "remove");
}

void bench_compact(struct lmcs_pool *pool)
{
    struct lmcs_error error;
    bench_check(lmcs_compact(pool, NULL, &error), &error, "compact");
}

/* ---- States --------------------------------------------------------------------------------------------------- */

static float number_like_a_weight(uint64_t *random)
{
    uint64_t bits = bench_random(random);
    float sum = 0; /* of four uniform numbers: nearly normal */
    for (int i = 0; i < 4; i++)
        sum += (float)((bits >> (16 * i)) & 0xFFFF) / 65536.0f - 0.5f;
    return 0.02f * sum;
}

struct bench_state bench_state_new(size_t count, const uint64_t *sizes)
{
    struct bench_state state = {.count = count};
    state.tensors = calloc(count, sizeof *state.tensors);
    state.data = calloc(count, sizeof *state.data);
    uint64_t *shapes = calloc(count, sizeof *shapes);
    char(*names)[32] = calloc(count, sizeof *names);
    for (size_t i = 0; i < count; i++)
        state.bytes += sizes[i];
    void *buffer = mmap(NULL, state.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (state.tensors == NULL || state.data == NULL || shapes == NULL || names == NULL || buffer == MAP_FAILED)
        bench_die("out of memory");
    state.buffer = buffer;
    uint64_t random = 1;
    float *numbers = buffer;
    for (uint64_t i = 0; i < state.bytes / sizeof *numbers; i++)
        numbers[i] = number_like_a_weight(&random);
    uint64_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "h.%zu.weight", i);
        shapes[i] = sizes[i] / sizeof *numbers;
        state.tensors[i] = (struct lmcs_tensor){.name = names[i], .dtype = LMC_F32, .ndim = 1, .shape = &shapes[i]};
        state.data[i] = state.buffer + offset;
        offset += sizes[i];
    }
    return state;
}

struct bench_state bench_state_model(uint64_t bytes)
{
    enum { COUNT = 198 }; /* of 33 blocks of 6: two large, two of a quarter, two small */
    uint64_t sizes[COUNT];
    uint64_t large = bytes / (COUNT / 6) / 10 * 4 / 4096 * 4096;
    for (size_t i = 0; i < COUNT; i++)
        sizes[i] = i % 6 < 2 ? large : i % 6 < 4 ? large / 4096 / 4 * 4096 : 6144;
    return bench_state_new(COUNT, sizes);
}

void bench_state_free(struct bench_state *state)
{
    munmap(state->buffer, state->bytes);
    if (state->count > 0) {
        free((void *)(uintptr_t)state->tensors[0].name);
        free((void *)(uintptr_t)state->tensors[0].shape);
    }
    free(state->tensors);
    free(state->data);
}

void bench_state_touch(struct bench_state *state, uint64_t round)
{
    for (size_t i = 0; i < state->count; i++) {
        unsigned char *first = state->buffer + ((const unsigned char *)state->data[i] - state->buffer);
        float value = 1e-3f * (float)(round % 1000003 + 1);
        memcpy(first, &value, sizeof value);
    }
}

void bench_state_step(struct bench_state *state, uint64_t round)
{
    float *numbers = (float *)(void *)state->buffer;
    uint64_t random = round + 77;
    for (uint64_t i = 0; i < state->bytes / sizeof *numbers; i++)
        numbers[i] += 0.01f * number_like_a_weight(&random);
}

/* ---- Baselines ------------------------------------------------------------------------------------------------ */

struct share {
    pthread_t thread;
    unsigned char *to; /* NULL: write to fd */
    const unsigned char *from;
    uint64_t bytes;
    off_t offset;
    int fd;
};

static void *do_share(void *argument)
{
    struct share *share = argument;
    if (share->to != NULL) {
        memcpy(share->to, share->from, share->bytes);
        return NULL;
    }
    for (uint64_t done = 0; done < share->bytes;) {
        uint64_t left = share->bytes - done;
        ssize_t n = pwrite(share->fd, share->from + done, left < 8 * MIB ? left : 8 * MIB, share->offset + (off_t)done);
        if (n <= 0)
            bench_die("pwrite: %s", strerror(errno));
        done += (uint64_t)n;
    }
    return NULL;
}

static void in_shares(unsigned char *to, const unsigned char *from, uint64_t bytes, int fd, unsigned threads)
{
    struct share shares[64] = {0};
    if (threads > 64)
        threads = 64;
    uint64_t each = bytes / threads / 4096 * 4096;
    for (unsigned i = 0; i < threads; i++) {
        uint64_t offset = i * each;
        shares[i] = (struct share){.to = to == NULL ? NULL : to + offset,
                                   .from = from + offset,
                                   .bytes = i + 1 == threads ? bytes - offset : each,
                                   .offset = (off_t)offset,
                                   .fd = fd};
        if (i > 0 && pthread_create(&shares[i].thread, NULL, do_share, &shares[i]) != 0)
            bench_die("can't start a thread");
    }
    do_share(&shares[0]);
    for (unsigned i = 1; i < threads; i++)
        pthread_join(shares[i].thread, NULL);
}

double bench_memcpy(void *to, const void *from, uint64_t bytes, unsigned threads)
{
    double start = bench_now_s();
    in_shares(to, from, bytes, -1, threads);
    return bench_now_s() - start;
}

double bench_write(int fd, const void *from, uint64_t bytes, unsigned threads)
{
    double start = bench_now_s();
    in_shares(NULL, from, bytes, fd, threads);
    if (fdatasync(fd) != 0)
        bench_die("fdatasync: %s", strerror(errno));
    return bench_now_s() - start;
}

/* ---- Anonymous memory ----------------------------------------------------------------------------------------- */

struct bench_watch {
    pthread_t thread;
    atomic_bool stop;
    uint64_t most;
};

uint64_t bench_anonymous_bytes(void)
{
    static const char label[] = "RssAnon:";
    char line[256];
    uint64_t kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, label, sizeof label - 1) == 0)
            kib = strtoull(line + sizeof label - 1, NULL, 10);
    }
    if (file != NULL)
        fclose(file);
    return kib << 10;
}

static void *watch(void *argument)
{
    struct bench_watch *watched = argument;
    while (!atomic_load(&watched->stop)) {
        uint64_t now = bench_anonymous_bytes();
        if (now > watched->most)
            watched->most = now;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return NULL;
}

struct bench_watch *bench_watch_start(void)
{
    struct bench_watch *watched = calloc(1, sizeof *watched);
    if (watched == NULL || pthread_create(&watched->thread, NULL, watch, watched) != 0)
        bench_die("can't start a thread");
    return watched;
}

uint64_t bench_watch_stop(struct bench_watch *watched)
{
    atomic_store(&watched->stop, true);
    pthread_join(watched->thread, NULL);
    uint64_t most = watched->most;
    free(watched);
    return most;
}
