/* SPDX-License-Identifier: BSD-3-Clause */
/* test_capture_lazy.c - captures that are promised, and go on in another thread. */
#include "test_capture_support.h"

#define COUNT 4096u

static const uint64_t SHAPE = COUNT;

/* A promised capture, whose copier is another thread. */
struct lazy {
    struct lmcs_capture *capture;
    const float *data;
    enum lmcs_status reason; /* LMCS_OK: commits */
    enum lmcs_status result;
    pthread_t copier;
};

static void *copy(void *argument)
{
    struct lazy *lazy = argument;
    struct lmcs_tensor tensor = {.name = "weight", .dtype = LMC_F32, .ndim = 1, .shape = &SHAPE};
    const void *data = lazy->data;
    struct lmcs_error error = {.status = lazy->reason, .message = "the tensor was changed"};
    usleep(20000);
    lazy->result = lmcs_capture_put(lazy->capture, &tensor, &data, 1, NULL);
    if (lazy->reason != LMCS_OK)
        lmcs_capture_fail(lazy->capture, &error);
    else if (lazy->result == LMCS_OK)
        lazy->result = lmcs_capture_commit(lazy->capture, NULL, NULL, NULL);
    return NULL;
}

static uint64_t promise(struct lmcs_capture *capture, int64_t step)
{
    uint64_t number = 0;
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.step = step;
    OK(lmcs_capture_promise(capture, &options, &number, &err));
    return number;
}

static uint64_t take_lazily(struct lmcs_pool *pool, struct lazy *lazy, const float *data, enum lmcs_status reason)
{
    *lazy = (struct lazy){.capture = begin(pool, "run"), .data = data, .reason = reason};
    put_one(lazy->capture, "buffer", LMC_F32, 1, &SHAPE, NULL, data);
    uint64_t number = promise(lazy->capture, 7);
    assert_int_equal(pthread_create(&lazy->copier, NULL, copy, lazy), 0);
    return number;
}

static void end_copier(struct lazy *lazy)
{
    pthread_join(lazy->copier, NULL);
    assert_int_equal(lazy->result, LMCS_OK);
}

static void another_thread_copies(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    static float data[3][COUNT];
    struct lazy lazies[3];
    for (unsigned i = 0; i < 3; i++) {
        for (size_t at = 0; at < COUNT; at++)
            data[i][at] = (float)(i * COUNT + at);
        /* The begin of the next one waits for the copy, in the thread that promised it. */
        assert_int_equal(take_lazily(pool, &lazies[i], data[i], LMCS_OK), i + 1);
        assert_true(lmcs_capture_would_wait(pool, "run"));
        assert_false(lmcs_capture_would_wait(pool, "other"));
    }
    for (unsigned i = 3; i-- > 0;) {
        OK(lmcs_capture_wait(lazies[i].capture, &err));
        end_copier(&lazies[i]);
    }
    assert_false(lmcs_capture_would_wait(pool, "run"));
    expect_bytes(pool, "weight", data[2], sizeof data[2]);
    expect_bytes(pool, "buffer", data[2], sizeof data[2]);
    verify_pool(pool);
    close_pool(pool);
}

static void the_parent_is_that_of_the_promise(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_snapshot *snapshot;
    struct lmcs_snapshot_info info;
    for (int i = 0; i < 2; i++)
        (void)commit(begin(pool, "run"));
    OK(lmcs_snapshot_open(pool, "run@1", &snapshot, &err));
    lmcs_snapshot_mark_loaded(snapshot);
    struct lmcs_capture *capture = begin(pool, "run");
    assert_int_equal(promise(capture, 3), 3);
    lmcs_snapshot_close(snapshot);
    OK(lmcs_snapshot_open(pool, "run@2", &snapshot, &err));
    lmcs_snapshot_mark_loaded(snapshot);
    lmcs_snapshot_close(snapshot);
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    OK(lmcs_capture_wait(capture, &err));
    OK(lmcs_snapshot_open(pool, "run@3", &snapshot, &err));
    info = *lmcs_snapshot_info(snapshot);
    assert_int_equal(info.parent, 1);
    assert_int_equal(info.step, 3);
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
}

/* Wait, the next capture or close reports a failure once. */
static void a_failed_copy_is_reported(void **state)
{
    struct place *place = *state;
    static const float data[COUNT];
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *refused;
    struct lazy lazy;
    for (int round = 0; round < 3; round++) {
        take_lazily(pool, &lazy, data, LMCS_INVALID);
        if (round == 0) {
            FAILS(LMCS_INVALID, lmcs_capture_wait(lazy.capture, &err));
            assert_string_equal(err.message, "the tensor was changed");
        } else {
            lmcs_capture_detach(lazy.capture);
        }
        end_copier(&lazy);
        if (round == 1) {
            FAILS(LMCS_INVALID, lmcs_capture_begin(pool, "run", &refused, &err));
            assert_non_null(strstr(err.message, "was not saved: the tensor was changed"));
        }
        if (round == 2)
            FAILS(LMCS_INVALID, lmcs_pool_close(pool, &err));
    }
    pool = open_quiet(place->pool);
    assert_int_equal(pool_info(pool).snapshot_count, 0);
    take_lazily(pool, &lazy, data, LMCS_OK);
    OK(lmcs_capture_wait(lazy.capture, &err));
    end_copier(&lazy);
    verify_pool(pool);
    close_pool(pool);
}

static void a_commit_after_a_failed_put_is_reported(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_tensor tensor = {.name = "weight", .dtype = LMC_F32, .ndim = 1, .shape = &SHAPE};
    const void *nothing = NULL;
    struct lmcs_capture *capture = begin(pool, "run");
    (void)promise(capture, 1);
    FAILS(LMCS_INVALID, lmcs_capture_put(capture, &tensor, &nothing, 1, &err));
    FAILS(LMCS_INVALID, lmcs_capture_commit(capture, NULL, NULL, &err));
    assert_true(lmcs_capture_done(capture));
    FAILS(LMCS_INVALID, lmcs_capture_wait(capture, &err));
    assert_int_equal(commit(begin(pool, "run")), 1);
    close_pool(pool);
}

static void what_is_promised_is_promised_once(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_commit_options options;
    struct lmcs_capture *capture = begin(pool, "run");
    lmcs_commit_options_init(&options);
    options.prepare = true;
    options.group[0] = 1;
    FAILS(LMCS_INVALID, lmcs_capture_promise(capture, &options, NULL, &err));
    assert_int_equal(promise(capture, 1), 1);
    lmcs_capture_abort(capture);
    assert_false(lmcs_capture_would_wait(pool, "run"));
    capture = begin(pool, "run");
    assert_int_equal(promise(capture, 1), 1);
    FAILS(LMCS_INVALID, lmcs_capture_promise(capture, NULL, NULL, &err));
    lmcs_capture_abort(capture);
    assert_int_equal(pool_info(pool).snapshot_count, 0);
    verify_pool(pool);
    close_pool(pool);
}

static int use_the_parents(void *argument)
{
    struct lmcs_capture *capture = argument;
    struct lmcs_error reason = {.status = LMCS_INVALID};
    EXPECT(lmcs_capture_done(capture));
    FAILS(LMCS_INVALID, lmcs_capture_wait(capture, &err));
    FAILS(LMCS_INVALID, lmcs_capture_commit(capture, NULL, NULL, &err));
    lmcs_capture_fail(capture, &reason);
    return 0;
}

/* A forked child never waits for its parent's copier. */
static void a_promise_of_the_parents(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *capture = begin(pool, "run");
    (void)promise(capture, 1);
    assert_int_equal(run_child(use_the_parents, capture, 20), 0);
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    OK(lmcs_capture_wait(capture, &err));
    assert_int_equal(shelf_info(pool, "run").latest, 1);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(another_thread_copies),
        IN_MEMORY(the_parent_is_that_of_the_promise),
        ON_BOTH(a_failed_copy_is_reported),
        IN_MEMORY(a_commit_after_a_failed_put_is_reported),
        IN_MEMORY(what_is_promised_is_promised_once),
        IN_MEMORY(a_promise_of_the_parents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
