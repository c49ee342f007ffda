/* SPDX-License-Identifier: BSD-3-Clause */
/* test_capture_lazy.c - captures that are promised, and go on in another thread. */
#include <dirent.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "base/workers.h"
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
    struct lmcs_capture *capture = begin(pool, "run");
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

/* The number of this process's threads with a nice value. */
static unsigned threads_of(int nice)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[300], text[1024];
        int fields = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (file == NULL)
            continue;
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        char *at = strrchr(text, ')'); /* behind the name; the nice value is the 17th field after it */
        for (; at != NULL && fields < 17; fields++)
            at = strchr(at + 1, ' ');
        count += at != NULL && atoi(at + 1) == nice;
    }
    closedir(folder);
    return count;
}

static void a_later_copy_has_threads_of_its_own(void **state)
{
    struct place *place = *state;
    static const float data[2][COUNT] = {{1}, {2}};
    struct lmcs_open_options options;
    struct lmcs_pool *pool;
    struct lazy lazy;
    lmcs_open_options_init(&options);
    options.flags = LMCS_NO_BACKGROUND;
    options.threads = 4;
    options.copy_threads = 3;
    options.copy_nice = 20;
    FAILS(LMCS_INVALID, lmcs_pool_open(place->pool, LMCS_OPEN_OR_CREATE, &options, &pool, &err));
    assert_non_null(strstr(err.message, "copy_nice is 20"));
    options.copy_nice = 17;
    OK(lmcs_pool_open(place->pool, LMCS_OPEN_OR_CREATE, &options, &pool, &err));
    const int own = getpriority(PRIO_PROCESS, 0);
    struct lmcs_capture *capture = begin(pool, "run");
    put_one(capture, "weight", LMC_F32, 1, &SHAPE, NULL, data[0]);
    assert_int_equal(commit(capture), 1);
    assert_int_equal(threads_of(17), 0); /* a synchronous capture keeps its caller's priority */
    take_lazily(pool, &lazy, data[1], LMCS_OK);
    OK(lmcs_capture_wait(lazy.capture, &err));
    end_copier(&lazy);
    while (threads_of(17) != 3) /* threads set their value when they begin */
        usleep(1000);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), own);
    expect_bytes(pool, "weight", data[1], sizeof data[1]);
    verify_pool(pool);
    close_pool(pool);
    assert_int_equal(threads_of(17), 0);
}

static atomic_uint items_of[20]; /* done, by nice value */

static void note_nice(void *context, uint64_t i)
{
    (void)context;
    (void)i;
    atomic_fetch_add(&items_of[getpriority(PRIO_PROCESS, 0)], 1);
}

/* Runs of 1, 2 and 100 items. */
static void *run_nicely(void *workers)
{
    const uint64_t counts[] = {1, 2, 100};
    memset(items_of, 0, sizeof items_of);
    for (size_t i = 0; i < 3; i++)
        lmcs_workers_run(workers, note_nice, NULL, NULL, counts[i]);
    return NULL;
}

static void *run_with_low_priority(void *workers)
{
    setpriority(PRIO_PROCESS, 0, 19);
    return run_nicely(workers);
}

static void threads_with_a_nice_value_do_everything(void **state)
{
    struct lmcs_workers *workers;
    pthread_t thread;
    (void)state;
    OK(lmcs_workers_new(1, 18, -1, &workers, &err));
    run_nicely(workers);
    assert_int_equal(items_of[18], 103);
    lmcs_workers_free(workers);
    OK(lmcs_workers_new(3, 18, -1, &workers, &err));
    assert_int_equal(pthread_create(&thread, NULL, run_with_low_priority, workers), 0);
    pthread_join(thread, NULL);
    assert_int_equal(items_of[19], 103); /* never a higher priority than that of the thread that made them */
    lmcs_workers_free(workers);
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
        ON_BOTH(a_later_copy_has_threads_of_its_own),
        cmocka_unit_test(threads_with_a_nice_value_do_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
