/* SPDX-License-Identifier: BSD-3-Clause */
/* test_idle.c - the compactor yields: the thread of lowest priority, rests, and callers that must not wait for it. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/idle.h"
#include "base/usage.h"
#include "support.h"

#define MS ((uint64_t)1000000)

static uint64_t rest_after(struct lmcs_yield *yield, uint64_t wall_ms, uint64_t cpu_ms, uint64_t waits,
                           uint64_t preemptions)
{
    const struct lmcs_usage from = {5 * MS, 3 * MS, 7, 9};
    const struct lmcs_usage to = {(5 + wall_ms) * MS, (3 + cpu_ms) * MS, 7 + waits, 9 + preemptions};
    yield->since = from;
    return lmcs_yield_after(yield, &to) / MS;
}

static uint64_t first_rest(uint64_t wall_ms, uint64_t cpu_ms, uint64_t waits, uint64_t preemptions)
{
    struct lmcs_yield yield = {.crowded = 0};
    return rest_after(&yield, wall_ms, cpu_ms, waits, preemptions);
}

static void a_thread_rests_where_others_need_the_processor(void **state)
{
    struct lmcs_yield yield = {.crowded = 0};
    (void)state;
    assert_int_equal(first_rest(10, 10, 0, 0), 0);
    assert_int_equal(first_rest(10, 9, 0, 3), 0);
    assert_int_equal(first_rest(10, 5, 0, 3), 90); /* 5 of 100 ms */
    assert_int_equal(first_rest(10, 5, 0, 0), 90); /* without counters, as in some sandboxes */
    assert_int_equal(first_rest(10, 5, 4, 3), 90);
    assert_int_equal(first_rest(10, 5, 4, 0), 0);       /* waited for a medium */
    assert_int_equal(first_rest(10, 0, 0, 0), 0);       /* has rested enough */
    assert_int_equal(first_rest(400, 200, 0, 1), 1000); /* at most a second */
    assert_int_equal(rest_after(&yield, 10, 5, 0, 1), 90);
    for (unsigned i = 0; i + 1 < LMCS_YIELD_PIECES; i++)
        assert_int_equal(rest_after(&yield, 5, 5, 0, 0), 95); /* a thread that has slept gets a turn at once */
    assert_int_equal(rest_after(&yield, 5, 5, 0, 0), 0);
}

/* ---- A pool whose thread of lowest priority is starved ---- */

static atomic_bool starve;
static atomic_bool is_starved;
static atomic_uint low, normal; /* readings by threads of the lowest priority, and of the process's */
static sem_t begins, ends;

/* Of a thread that has the processor all the time. */
static void watch(struct lmcs_usage *usage)
{
    const int nice = getpriority(PRIO_PROCESS, (id_t)gettid());
    const bool is_low = sched_getscheduler(0) == SCHED_BATCH;
    *usage = (struct lmcs_usage){MS, MS, 0, 0};
    EXPECT(nice == (is_low ? 19 : getpriority(PRIO_PROCESS, (id_t)getpid())));
    atomic_fetch_add(is_low ? &low : &normal, 1);
    if (is_low && atomic_exchange(&starve, false)) {
        atomic_store(&is_starved, true);
        sem_post(&begins);
        while (sem_wait(&ends) != 0)
            ;
        atomic_store(&is_starved, false);
    }
}

static struct lmcs_pool *open_watched(const char *path, uint64_t limit_bytes)
{
    struct lmcs_open_options options;
    struct lmcs_pool *pool = NULL;
    sem_init(&begins, 0, 0);
    sem_init(&ends, 0, 0);
    atomic_store(&low, 0);
    atomic_store(&normal, 0);
    lmcs_usage_set(watch);
    lmcs_open_options_init(&options);
    options.limit_bytes = limit_bytes;
    OK(lmcs_pool_open(path, LMCS_OPEN_OR_CREATE, &options, &pool, &err));
    return pool;
}

static void wait_for_starvation(void)
{
    while (sem_wait(&begins) != 0)
        ;
    assert_true(atomic_load(&is_starved));
}

static void end_starvation(struct lmcs_pool *pool)
{
    sem_post(&ends);
    close_pool(pool);
    lmcs_usage_set(NULL);
    sem_destroy(&begins);
    sem_destroy(&ends);
}

enum { FLOATS = 3 << 18 }; /* 3 MiB */

static struct state *grow(struct lmcs_pool *pool, struct state *now, struct rng *rng, int count)
{
    if (now == NULL)
        now = state_weights(rng, 2, FLOATS);
    for (int i = 0; i < count; i++) {
        state_step(now, rng, 0, now->count);
        take_snapshot(pool, "run", now, i);
    }
    return now;
}

static void the_lowest_priority_computes_and_holds_no_lock(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    uint64_t number;
    struct lmcs_pool *pool = open_watched(place->pool, 0);
    atomic_store(&starve, true);
    struct state *now = grow(pool, NULL, &rng, 8);
    wait_for_starvation();
    state_step(now, &rng, 0, now->count);
    OK(try_snapshot(pool, "run", now, 8, &number, &err)); /* beside the starved thread */
    OK(lmcs_shelf_set_policy(pool, "run", "keep_raw=2", &err));
    OK(lmcs_tag_set(pool, "run", "last", number, &err));
    OK(lmcs_compact(pool, NULL, &err)); /* goes on without it */
    assert_true(atomic_load(&is_starved));
    assert_true(storage_of(pool, "run", number - 2).stored_bytes < storage_of(pool, "run", number).stored_bytes);
    lmcs_compactor_pause(pool);
    lmcs_compactor_stop(pool);
    assert_true(atomic_load(&is_starved));
    assert_true(atomic_load(&low) > 0 && atomic_load(&normal) > 0);
    expect_snapshot(pool, "run", number, now);
    end_starvation(pool);
    state_free(now);
}

static void a_full_pool_does_not_wait_for_the_lowest_priority(void **state)
{
    struct place *place = *state;
    struct rng rng = {2};
    struct lmcs_pool *pool = open_watched(place->pool, (uint64_t)72 << 20);
    atomic_store(&starve, true);
    struct state *now = grow(pool, NULL, &rng, 8);
    wait_for_starvation();
    now = grow(pool, now, &rng, 8); /* 96 MiB of raw bytes */
    assert_true(atomic_load(&is_starved));
    expect_snapshot(pool, "run", 16, now);
    end_starvation(pool);
    state_free(now);
}

/* Counts rests by the readings that follow them. */
static atomic_uint readings;

static void is_crowded(struct lmcs_usage *usage)
{
    const uint64_t n = atomic_fetch_add(&readings, 1) + 1;
    *usage = (struct lmcs_usage){2 * n * MS / 10, n * MS / 10, 0, n};
}

static void crowded_compaction_rests_and_ends(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    lmcs_usage_set(is_crowded);
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_OR_CREATE, 0);
    struct state *now = grow(pool, NULL, &rng, 6);
    while (storage_of(pool, "run", 1).stored_bytes >= 2 * FLOATS * sizeof(float))
        usleep(1000);
    assert_true(atomic_load(&readings) > 4);
    expect_snapshot(pool, "run", 6, now);
    close_pool(pool);
    lmcs_usage_set(NULL);
    state_free(now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_rests_where_others_need_the_processor),
        ON_DISK(the_lowest_priority_computes_and_holds_no_lock),
        ON_DISK(a_full_pool_does_not_wait_for_the_lowest_priority),
        ON_DISK(crowded_compaction_rests_and_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
