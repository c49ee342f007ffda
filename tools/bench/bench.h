/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench.h - shared by the parts of bench_store, one section per source file.
 *
 * bench_store is the C half of tools/bench.sh: each of its sections measures one claim through the public header and
 * prints one JSON object. A benchmark that can't go on says why and exits: there is nothing to clean up but its pool,
 * which lies in the folder that it was given.
 */
#ifndef BENCH_H
#define BENCH_H

#include "lmcstore.h"

#include <stdio.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

struct bench_options {
    const char *directory;
    const char *cgroup; /* NULL: none */
    uint64_t bytes;
    uint64_t rounds;
    unsigned threads;
};

/* ---- bench_tools.c --------------------------------------------------------------------------------------------- */

_Noreturn __attribute__((format(printf, 1, 2))) void bench_die(const char *format, ...);
/* Ends the program with the error's message unless the call went well. */
void bench_check(enum lmcs_status status, const struct lmcs_error *error, const char *what);

double bench_now_s(void);
/* The middle one; sorts in place. */
double bench_median(double *values, size_t count);
uint64_t bench_random(uint64_t *state);

/* A path in the options' folder, in a buffer of its own (never freed). */
char *bench_path(const struct bench_options *options, const char *name);
/* A new pool there without background work; an old one is removed first. */
struct lmcs_pool *bench_pool(const struct bench_options *options, const char *name);
struct lmcs_pool *bench_open(const char *path, enum lmcs_open_mode mode, unsigned threads);
void bench_close(struct lmcs_pool *pool);
struct lmcs_pool_info bench_info(struct lmcs_pool *pool);

/* Tensors over one buffer: names, shapes and addresses. */
struct bench_state {
    size_t count;
    struct lmcs_tensor *tensors;
    const void **data;
    unsigned char *buffer;
    uint64_t bytes;
};
/* `count` f32 tensors of the sizes given (multiples of 4), filled with numbers like weights. */
struct bench_state bench_state_new(size_t count, const uint64_t *sizes);
/* Tensors like a transformer's, of about `bytes` in all: most of it in large ones. */
struct bench_state bench_state_model(uint64_t bytes);
void bench_state_free(struct bench_state *state);
/* Changes every tensor by its first 8 bytes (where the comparison stops). */
void bench_state_touch(struct bench_state *state, uint64_t round);
/* Moves every number a little, as a training step does. */
void bench_state_step(struct bench_state *state, uint64_t round);
/* Captures and commits all of it; the number of the snapshot. */
uint64_t bench_snapshot(struct lmcs_pool *pool, const char *shelf, const struct bench_state *state);
void bench_remove(struct lmcs_pool *pool, const char *shelf, uint64_t number);
void bench_compact(struct lmcs_pool *pool);

/* memcpy of a whole buffer by so many threads, each its share. Seconds. */
double bench_memcpy(void *to, const void *from, uint64_t bytes, unsigned threads);
/* pwrite by so many threads at offset 0, and fdatasync, into an open file. Seconds. */
double bench_write(int fd, const void *from, uint64_t bytes, unsigned threads);

/* The most anonymous memory of this process (RssAnon) between start and stop, sampled by a thread. */
struct bench_watch;
uint64_t bench_anonymous_bytes(void);
struct bench_watch *bench_watch_start(void);
uint64_t bench_watch_stop(struct bench_watch *watch);

/* ---- The sections, each in a file of its theme ------------------------------------------------------------------ */

void bench_capture(const struct bench_options *options); /* bench_capture.c */
void bench_commit(const struct bench_options *options);
void bench_big(const struct bench_options *options);
void bench_memory(const struct bench_options *options);
void bench_many(const struct bench_options *options); /* bench_history.c */
void bench_churn(const struct bench_options *options);
void bench_long(const struct bench_options *options);
void bench_names(const struct bench_options *options); /* bench_names.c */
void bench_fork(const struct bench_options *options);
void bench_diff(const struct bench_options *options);
void bench_view(const struct bench_options *options); /* bench_read.c */
void bench_decode(const struct bench_options *options);
void bench_live(const struct bench_options *options); /* bench_live.c */
void bench_ages(const struct bench_options *options); /* bench_ages.c */

#endif
