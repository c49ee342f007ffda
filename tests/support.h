/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * support.h - pools in temporary files, states (sets of tensors) with known bytes, and a structure check at the end.
 *
 * OK(...) wraps calls that must succeed, FAILS(status, ...) calls that must fail; both pass `&err`. In threads and
 * forked children a failure ends the process.
 */
#ifndef LMCS_TEST_SUPPORT_H
#define LMCS_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <cmocka.h>

#include "lmcstore.h"
#include "pages/pool.h"
#include "repair/check.h"

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define UNDER_THREAD_SANITIZER 1
#else
#define UNDER_THREAD_SANITIZER 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define UNDER_ADDRESS_SANITIZER 1
#else
#define UNDER_ADDRESS_SANITIZER 0
#endif
#define UNDER_SANITIZER (UNDER_THREAD_SANITIZER || UNDER_ADDRESS_SANITIZER)

extern _Thread_local struct lmcs_error err;

void expect_status(const char *file, int line, const char *call, enum lmcs_status got, enum lmcs_status expected);
#define OK(call)              expect_status(__FILE__, __LINE__, #call, (call), LMCS_OK)
#define FAILS(expected, call) expect_status(__FILE__, __LINE__, #call, (call), (expected))
/* Like assert_true, also in threads and children. */
void expect_true(const char *file, int line, const char *what, bool is_true);
#define EXPECT(condition) expect_true(__FILE__, __LINE__, #condition, (condition))

/* A test's state: a temporary folder and the path of a pool in it. */
struct place {
    char folder[256];
    char pool[300];
};
int set_up_on_disk(void **state);   /* in $TMPDIR, or /tmp */
int set_up_in_memory(void **state); /* in /dev/shm */
int tear_down(void **state);

#define ON_DISK(test)                                          \
    {                                                          \
#test " (disk)", test, set_up_on_disk, tear_down, NULL \
    }
#define IN_MEMORY(test)                                            \
    {                                                              \
#test " (memory)", test, set_up_in_memory, tear_down, NULL \
    }

/* Sanitizers are slow, so each runs in one place only; places alternate from test to test. */
#if UNDER_SANITIZER
#define IS_NEXT_ON_DISK ((__COUNTER__ + UNDER_THREAD_SANITIZER) % 2 == 0)
#define ON_BOTH(test)                                                                                    \
    {                                                                                                    \
#test " (one place)", test, IS_NEXT_ON_DISK ? set_up_on_disk : set_up_in_memory, tear_down, NULL \
    }
#else
#define ON_BOTH(test) ON_DISK(test), IN_MEMORY(test)
#endif

void place_path(const struct place *place, const char *name, char path[512]);
uint64_t disk_bytes(const char *path);            /* allocated for the file */
void copy_file(const char *from, const char *to); /* keeps holes */
/* From the environment, to scale tests. */
uint64_t scaled(const char *variable, uint64_t normally);

struct lmcs_pool *open_pool(const char *path, enum lmcs_open_mode mode, uint32_t flags);
struct lmcs_pool *open_quiet(const char *path); /* creates it if missing; no background thread */
struct lmcs_pool *open_limited(const char *path, uint64_t limit_bytes);
void close_pool(struct lmcs_pool *pool);
struct lmcs_root_df closed_root(const char *path); /* the last close of a writer makes a new one */
/* The counted space must be equal after reopening. */
struct lmcs_pool *reopen_counted(struct lmcs_pool *pool, const char *path);
void check_pool(struct lmcs_pool *pool);
void verify_pool(struct lmcs_pool *pool); /* and every byte */
struct lmcs_pool_info pool_info(struct lmcs_pool *pool);
struct lmcs_shelf_info shelf_info(struct lmcs_pool *pool, const char *shelf);

struct rng {
    uint64_t state;
};
uint64_t rng_next(struct rng *rng);
uint64_t rng_below(struct rng *rng, uint64_t bound);
void rng_fill(struct rng *rng, void *data, size_t bytes);

struct held {
    char name[64];
    uint32_t kind;
    uint32_t dtype;
    uint32_t ndim;
    uint64_t shape[4];
    size_t bytes;
    unsigned char *data; /* malloced; never NULL */
};

struct state {
    struct held *tensors;
    size_t count;
};

struct held *state_add(struct state *state, const char *name, uint32_t dtype, uint32_t ndim, const uint64_t *shape);
/* `count` f32 tensors t0, t1, ... of `floats` elements: normal numbers around zero. */
struct state *state_weights(struct rng *rng, size_t count, size_t floats);
/* Many dtypes and shapes, also empty and zero-dimensional. */
struct state *state_mixed(struct rng *rng, size_t count, size_t most_bytes);
struct state *state_copy(const struct state *state);
struct state *state_of_noise(uint64_t seed, uint64_t bytes); /* one tensor, "t" */
/* Slightly moves all elements of `count` f32 tensors from `first` on, as training does. */
void state_step(struct state *state, struct rng *rng, size_t first, size_t count);
void state_free(struct state *state);

void held_tensor(const struct held *held, struct lmcs_tensor *tensor);
void put_state(struct lmcs_capture *capture, const struct state *state);
enum lmcs_status try_snapshot(struct lmcs_pool *pool, const char *shelf, const struct state *state, int64_t step,
                              uint64_t *number, struct lmcs_error *error);
/* Commits like lmcs_capture_commit, as a lazy snapshot does it, but in one thread. */
enum lmcs_status promise_and_commit(struct lmcs_capture *capture, const struct lmcs_commit_options *options,
                                    uint64_t *number, struct lmcs_error *error);
uint64_t take_snapshot(struct lmcs_pool *pool, const char *shelf, const struct state *state, int64_t step);
/* Exactly these tensors and bytes. */
void expect_state(struct lmcs_pool *pool, const char *shelf, const char *which, const struct state *state);
void expect_snapshot(struct lmcs_pool *pool, const char *shelf, uint64_t number, const struct state *state);
uint64_t snapshot_tagged(struct lmcs_pool *pool, const char *tag); /* the snapshot's number in shelf "run"; 0: none */
uint64_t content_of(struct lmcs_pool *pool, const char *shelf, uint64_t number, const char *tensor);
struct lmcs_snapshot_storage storage_of(struct lmcs_pool *pool, const char *shelf, uint64_t number);
/* Makes a poolset full of dead extents; only snapshot FREE_EXTENTS + 1 of "run" exists. */
enum { FREE_EXTENTS = 18, LARGE_FOR_A_POOLSET = 24000000 };
struct lmcs_pool *poolset_of_free_extents(struct place *place, char path[static 512], const struct state *last);

/* Runs `work` in a forked child, which exits with the result (0: success) or by a failed OK, FAILS or EXPECT. */
pid_t start_child(int (*work)(void *argument), void *argument);
void expect_child(pid_t child);
int run_child(int (*work)(void *argument), void *argument, unsigned seconds);

#endif
