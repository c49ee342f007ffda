/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench.h - shared by the parts of bench_store, the C half of tools/bench.sh, one section per source file.
 *
 * Each section measures one claim through the public header and prints one JSON object. A failing benchmark prints the
 * reason and exits; it leaves only its pool.
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
/* Exits with the message of a failed call. */
void bench_check(enum lmcs_status status, const struct lmcs_error *error, const char *what);

double bench_now_s(void);
/* Returns the median; sorts in place. */
double bench_median(double *values, size_t count);
uint64_t bench_random(uint64_t *state);

/* Returns a path in the options' folder; never freed. */
char *bench_path(const struct bench_options *options, const char *name);
/* Creates a pool, without background work, in place of an older one. */
struct lmcs_pool *bench_pool(const struct bench_options *options, const char *name);
struct lmcs_pool *bench_open(const char *path, enum lmcs_open_mode mode, unsigned threads);
void bench_close(struct lmcs_pool *pool);
struct lmcs_pool_info bench_info(struct lmcs_pool *pool);

/* A state: tensors in one buffer. */
struct bench_state {
    size_t count;
    struct lmcs_tensor *tensors;
    const void **data;
    unsigned char *buffer;
    uint64_t bytes;
};
/* Makes f32 tensors of these sizes (multiples of 4), filled with numbers like weights. */
struct bench_state bench_state_new(size_t count, const uint64_t *sizes);
/* Makes a transformer's tensors: about `bytes` in all, mostly in large ones. */
struct bench_state bench_state_model(uint64_t bytes);
void bench_state_free(struct bench_state *state);
/* Changes the first 8 bytes of each tensor, where a comparison stops. */
void bench_state_touch(struct bench_state *state, uint64_t round);
/* Changes every number a little. */
void bench_state_step(struct bench_state *state, uint64_t round);
/* Captures the state; returns the snapshot's number. */
uint64_t bench_snapshot(struct lmcs_pool *pool, const char *shelf, const struct bench_state *state);
void bench_remove(struct lmcs_pool *pool, const char *shelf, uint64_t number);
void bench_compact(struct lmcs_pool *pool);

/* Copies by so many threads; returns seconds. */
double bench_memcpy(void *to, const void *from, uint64_t bytes, unsigned threads);
/* Writes from offset 0 on by so many threads, then calls fdatasync; returns seconds. */
double bench_write(int fd, const void *from, uint64_t bytes, unsigned threads);

/* Peak anonymous memory (RssAnon), sampled by a thread. */
struct bench_watch;
uint64_t bench_anonymous_bytes(void);
struct bench_watch *bench_watch_start(void);
uint64_t bench_watch_stop(struct bench_watch *watch);

/* ---- The sections, each in a file of its theme ------------------------------------------------------------------ */

void bench_capture(const struct bench_options *options); /* bench_capture.c */
void bench_first(const struct bench_options *options);
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
