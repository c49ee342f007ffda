/* SPDX-License-Identifier: BSD-3-Clause */
/* test_finished.c - compaction of finished runs: no snapshot stays raw. */
/* ctest: timeout=600 */
#include <signal.h>
#include <sys/wait.h>

#include "test_compact_support.h"
#include "test_links_support.h"

#define SNAPSHOTS 12

static uint64_t raw_bytes(struct lmcs_pool *pool, const char *shelf)
{
    uint64_t bytes = 42;
    OK(lmcs_shelf_raw_bytes(pool, shelf, &bytes, &err));
    return bytes;
}

static void expect_no_raw(struct lmcs_pool *pool, const char *shelf, uint64_t first, uint64_t last)
{
    for (uint64_t n = first; n <= last; n++)
        assert_int_equal(storage_of(pool, shelf, n).raw_contents, 0);
}

static void expect_history(struct lmcs_pool *pool, struct state **states, uint64_t first, uint64_t last)
{
    for (uint64_t n = first; n <= last; n++)
        expect_snapshot(pool, "run", n, states[n - 1]);
}

static void no_snapshot_stays_raw(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct state *states[SNAPSHOTS];
    struct lmcs_pool *pool = open_quiet(place->pool);
    FAILS(LMCS_NOT_FOUND, lmcs_compact_finished(pool, "run", NULL, &err));
    make_history(pool, "run", &rng, states, SNAPSHOTS, 4, 60000);
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t before = pool_info(pool).live_bytes;
    assert_int_equal(raw_bytes(pool, "run"), (4 * 3 + 1) * 240000); /* 4 snapshots; one tensor never changes */
    OK(lmcs_compact_finished(pool, "run", NULL, &err));
    check_pool(pool);
    expect_no_raw(pool, "run", 1, SNAPSHOTS);
    assert_int_equal(raw_bytes(pool, "run"), 0);
    assert_true(pool_info(pool).live_bytes < before);
    assert_int_equal(pool_info(pool).compaction_backlog, 0);
    uint64_t deltas = 0; /* no keyframes where deltas are smaller */
    for (uint64_t n = SNAPSHOTS - 3; n < SNAPSHOTS; n++)
        deltas += storage_of(pool, "run", n).delta_contents;
    assert_true(deltas >= 6);
    uint64_t epoch = pool_info(pool).epoch;
    OK(lmcs_compact_finished(pool, NULL, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(pool_info(pool).epoch <= epoch + 2);
    verify_pool(pool);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    FAILS(LMCS_READ_ONLY, lmcs_compact_finished(pool, "run", NULL, &err));
    expect_history(pool, states, 1, SNAPSHOTS);
    close_pool(pool);
    free_history(states, SNAPSHOTS);
}

static void a_finished_run_goes_on(void **state)
{
    struct place *place = *state;
    struct rng rng = {2};
    struct state *states[SNAPSHOTS], *other[6];
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, 6, 3, 30000);
    make_history(pool, "other", &rng, other, 6, 3, 30000);
    OK(lmcs_compact_finished(pool, "run", NULL, &err));
    expect_no_raw(pool, "run", 1, 6);
    assert_int_equal(storage_of(pool, "other", 6).raw_contents, 3); /* another shelf keeps its own */
    struct state *now = state_copy(states[5]);
    for (size_t i = 6; i < SNAPSHOTS; i++) {
        state_step(now, &rng, 0, 2);
        states[i] = state_copy(now);
        assert_int_equal(take_snapshot(pool, "run", now, (int64_t)i), i + 1);
    }
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(storage_of(pool, "run", SNAPSHOTS).raw_contents, 3);
    assert_true(storage_of(pool, "run", 7).delta_contents > 0);
    expect_history(pool, states, 1, SNAPSHOTS);
    OK(lmcs_compact_finished(pool, NULL, NULL, &err));
    expect_no_raw(pool, "run", 1, SNAPSHOTS);
    expect_no_raw(pool, "other", 1, 6);
    for (uint64_t n = 1; n <= 6; n++)
        expect_snapshot(pool, "other", n, other[n - 1]);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
    free_history(states, SNAPSHOTS);
    free_history(other, 6);
}

/* The tensor that never changes is raw as long as the newest snapshots are; then these are removed. */
static void removals_leave_nothing_raw(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct state *states[SNAPSHOTS];
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, SNAPSHOTS, 3, 30000);
    OK(lmcs_compact(pool, NULL, &err));
    for (uint64_t n = SNAPSHOTS; n > SNAPSHOTS - 4; n--)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(storage_of(pool, "run", SNAPSHOTS - 4).raw_contents, 1);
    assert_int_equal(raw_bytes(pool, "run"), 120000);
    OK(lmcs_compact_finished(pool, "run", NULL, &err));
    expect_no_raw(pool, "run", 1, SNAPSHOTS - 4);
    assert_int_equal(raw_bytes(pool, "run"), 0);
    expect_history(pool, states, 1, SNAPSHOTS - 4);
    verify_pool(pool);
    close_pool(pool);
    free_history(states, SNAPSHOTS);
}

static void links_end_the_line(void **state)
{
    struct place *place = *state;
    const size_t steps = 8;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    run_on(&run, pool, "run", steps);
    OK(lmcs_compact_finished(pool, "run", NULL, &err));
    check_pool(pool);
    for (uint64_t n = 2; n <= steps; n++)
        assert_int_equal(storage_of(pool, "run", n).link_contents, 3 * PARAMETERS);
    expect_run(&run, pool, "run");
    assert_int_equal(raw_bytes(pool, "run"), 0);
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

static bool count_down(void *context, const char *what, uint64_t done, uint64_t total)
{
    int *left = context;
    (void)what;
    (void)done;
    (void)total;
    return --*left > 0;
}

static bool kill_at(void *context, const char *what, uint64_t done, uint64_t total)
{
    if (!count_down(context, what, done, total))
        raise(SIGKILL);
    return true;
}

static void finish_in_child(const char *path, int calls)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct lmcs_pool *pool = open_quiet(path);
        const struct lmcs_progress progress = {kill_at, &calls};
        enum lmcs_status status = lmcs_compact_finished(pool, "run", &progress, &err);
        close_pool(pool);
        _exit(status == LMCS_OK ? 0 : 1);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) || WEXITSTATUS(how) == 0);
}

static void stops_and_kills_lose_nothing(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    struct state *states[SNAPSHOTS];
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, SNAPSHOTS, 4, 30000);
    OK(lmcs_compact(pool, NULL, &err));
    int left = 3;
    const struct lmcs_progress stop = {count_down, &left};
    FAILS(LMCS_CANCELLED, lmcs_compact_finished(pool, "run", &stop, &err));
    close_pool(pool);
    for (int calls = 1; calls <= 9; calls += 2) {
        finish_in_child(place->pool, calls);
        pool = open_quiet(place->pool);
        check_pool(pool);
        expect_history(pool, states, 1, SNAPSHOTS);
        close_pool(pool);
    }
    pool = open_quiet(place->pool);
    OK(lmcs_compact_finished(pool, "run", NULL, &err));
    expect_no_raw(pool, "run", 1, SNAPSHOTS);
    verify_pool(pool);
    expect_history(pool, states, 1, SNAPSHOTS);
    close_pool(pool);
    free_history(states, SNAPSHOTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(no_snapshot_stays_raw), ON_BOTH(a_finished_run_goes_on),       ON_BOTH(removals_leave_nothing_raw),
        ON_BOTH(links_end_the_line),    ON_BOTH(stops_and_kills_lose_nothing),
    };
    return cmocka_run_group_tests_name("finished runs", tests, NULL, NULL);
}
