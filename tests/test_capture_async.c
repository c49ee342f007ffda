/* SPDX-License-Identifier: BSD-3-Clause */
/* test_capture_async.c - asynchronous captures, their failures, and groups of prepared snapshots. */
/* ctest: timeout=600 */
#include "test_capture_support.h"

static struct lmcs_commit_options asynchronously(int64_t step)
{
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.asynchronous = true;
    options.step = step;
    return options;
}

static void asynchronous_captures(void **state)
{
    struct place *place = *state;
    struct rng rng = {13};
    struct state *weights = state_weights(&rng, 10, 50000), *last = NULL;
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_OR_CREATE, 0);
    for (int i = 1; i <= 20; i++) {
        struct lmcs_commit_options options = asynchronously(i);
        struct lmcs_capture *capture = begin(pool, "run");
        uint64_t number = 0;
        put_state(capture, weights);
        state_free(last);
        last = state_copy(weights);
        OK(lmcs_capture_commit(capture, &options, &number, &err));
        assert_int_equal(number, i);
        state_step(weights, &rng, 0, 10);
        if (i % 3 == 0) {
            OK(lmcs_capture_wait(capture, &err));
            expect_state(pool, "run", "latest", last);
        } else if (i % 3 == 1) {
            while (!lmcs_capture_done(capture))
                usleep(100);
            OK(lmcs_capture_wait(capture, &err));
        } else {
            lmcs_capture_detach(capture);
        }
    }
    close_pool(pool);
    pool = open_quiet(place->pool);
    assert_int_equal(shelf_info(pool, "run").latest, 20);
    expect_state(pool, "run", "latest", last);
    verify_pool(pool);
    close_pool(pool);
    state_free(last);
    state_free(weights);
}

/* Wait, the next capture or close reports a failure once. */
static void asynchronous_failure_is_told(void **state)
{
    struct place *place = *state;
    struct rng rng = {14};
    struct state *weights = state_weights(&rng, 1, 1000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    unsigned char group[16] = "another's group";
    struct lmcs_commit_options options = asynchronously(1);
    memcpy(options.group, group, sizeof group);
    options.prepare = true;
    struct lmcs_capture *capture = begin(pool, "other");
    put_state(capture, weights);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    OK(lmcs_capture_wait(capture, &err));
    for (int round = 0; round < 3; round++) {
        capture = begin(pool, "run");
        put_state(capture, weights);
        OK(lmcs_capture_commit(capture, &options, NULL, &err));
        if (round == 0) {
            FAILS(LMCS_EXISTS, lmcs_capture_wait(capture, &err));
        } else {
            while (!lmcs_capture_done(capture))
                usleep(100);
            lmcs_capture_detach(capture);
        }
        if (round == 1)
            FAILS(LMCS_EXISTS, lmcs_capture_begin(pool, "run", &capture, &err));
        if (round == 2)
            FAILS(LMCS_EXISTS, lmcs_pool_close(pool, &err));
    }
    pool = open_quiet(place->pool);
    assert_int_equal(pool_info(pool).snapshot_count, 0);
    OK(lmcs_group_resolve(pool, group, true, &err));
    expect_state(pool, "other", "latest", weights);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

/* The group has a prepared snapshot already, so the commit fails. */
static struct lmcs_capture *failing(struct lmcs_pool *pool, const unsigned char group[16])
{
    struct lmcs_commit_options options = asynchronously(1);
    struct lmcs_capture *capture = begin(pool, "run");
    memcpy(options.group, group, sizeof options.group);
    options.prepare = true;
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    while (!lmcs_capture_done(capture))
        usleep(100);
    return capture;
}

static void each_failure_is_told(void **state)
{
    struct place *place = *state;
    static const unsigned char group[16] = {1};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_commit_options options;
    struct lmcs_capture *first, *second, *refused;
    lmcs_commit_options_init(&options);
    options.prepare = true;
    memcpy(options.group, group, sizeof group);
    OK(lmcs_capture_commit(begin(pool, "other"), &options, NULL, &err));
    for (int round = 0; round < 3; round++) {
        first = failing(pool, group);
        FAILS(LMCS_EXISTS, lmcs_capture_begin(pool, "run", &refused, &err));
        second = failing(pool, group);
        FAILS(LMCS_EXISTS, lmcs_capture_wait(first, &err));
        if (round == 0) {
            FAILS(LMCS_EXISTS, lmcs_capture_wait(second, &err));
        } else {
            lmcs_capture_detach(second);
        }
        if (round == 1)
            FAILS(LMCS_EXISTS, lmcs_capture_begin(pool, "run", &refused, &err));
    }
    FAILS(LMCS_EXISTS, lmcs_pool_close(pool, &err));
}

static int ask_whether_it_is_done(void *argument)
{
    struct lmcs_capture *capture = argument;
    EXPECT(lmcs_capture_done(capture));
    FAILS(LMCS_INVALID, lmcs_capture_wait(capture, &err));
    return 0;
}

/* A forked child never waits for its parent's locks. */
static void a_capture_of_the_parents(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_commit_options options = asynchronously(1);
    struct lmcs_capture *capture = begin(pool, "run");
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    pthread_mutex_lock(&pool->captures);
    int status = run_child(ask_whether_it_is_done, capture, 20);
    pthread_mutex_unlock(&pool->captures);
    assert_int_equal(status, 0);
    OK(lmcs_capture_wait(capture, &err));
    close_pool(pool);
}

static void prepared_snapshots(void **state)
{
    struct place *place = *state;
    struct rng rng = {15};
    struct state *weights = state_weights(&rng, 3, 20000), *first = state_copy(weights);
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    unsigned char group[16] = {1, 2, 3}, unknown[16] = {9};
    uint64_t number;
    lmcs_commit_options_init(&options);
    options.prepare = true;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    capture = begin(pool, "run");
    put_state(capture, weights);
    FAILS(LMCS_INVALID, lmcs_capture_commit(capture, &options, &number, &err));
    memcpy(options.group, group, sizeof group);
    for (int round = 0; round < 4; round++) {
        bool wanted = round % 2 == 0;
        state_step(weights, &rng, 0, 3);
        capture = begin(pool, "run");
        put_state(capture, weights);
        OK(lmcs_capture_commit(capture, &options, &number, &err));
        check_pool(pool);
        assert_int_equal(shelf_info(pool, "run").snapshot_count, 1 + (round + 1) / 2);
        struct lmcs_snapshot *snapshot;
        char address[32];
        snprintf(address, sizeof address, "run@%llu", (unsigned long long)number);
        FAILS(LMCS_NOT_FOUND, lmcs_snapshot_open(pool, address, &snapshot, &err));
        FAILS(LMCS_IN_USE, lmcs_snapshot_remove(pool, "run", number, false, NULL, &err));
        if (round > 1) {
            close_pool(pool);
            pool = open_quiet(place->pool);
        }
        OK(lmcs_compact(pool, NULL, &err));
        FAILS(LMCS_NOT_FOUND, lmcs_group_resolve(pool, unknown, true, &err));
        OK(lmcs_group_resolve(pool, group, wanted, &err));
        FAILS(LMCS_NOT_FOUND, lmcs_group_resolve(pool, group, wanted, &err));
        check_pool(pool);
        if (wanted)
            expect_snapshot(pool, "run", number, weights);
        assert_int_equal(shelf_info(pool, "run").snapshot_count, 2 + round / 2);
    }
    expect_snapshot(pool, "run", 1, first);
    state_step(weights, &rng, 0, 3);
    assert_int_equal(take_snapshot(pool, "run", weights, 9), 6);
    verify_pool(pool);
    close_pool(pool);
    state_free(first);
    state_free(weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(asynchronous_captures),      ON_DISK(asynchronous_failure_is_told), IN_MEMORY(each_failure_is_told),
        IN_MEMORY(a_capture_of_the_parents), ON_BOTH(prepared_snapshots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
