/* SPDX-License-Identifier: BSD-3-Clause */
/* test_live_snapshot.c - live variables into snapshots and back. */
/* ctest: timeout=600 */
#include "live/body.h"
#include "pages/extents.h"
#include "test_live_support.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

static uint64_t snapshot(struct lmcs_pool *pool)
{
    uint64_t number = 0;
    OK(lmcs_live_snapshot(pool, "run", NULL, &number, &err));
    return number;
}

static void back_and_forth(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 300000), *v = new_tensor(pool, "v", 100), *empty;
    empty = new_tensor(pool, "empty", 0);
    fill(w, 1);
    fill(v, 2);
    put_text(pool, "t", "at one");
    uint64_t one = snapshot(pool);
    fill(w, 10);
    put_text(pool, "t", "at two, and longer than it was at one, so that it had to move to another cell");
    uint64_t two = snapshot(pool);
    EXPECT(content_of(pool, "run", one, "v") == content_of(pool, "run", two, "v"));
    EXPECT(content_of(pool, "run", one, "w") != content_of(pool, "run", two, "w"));
    put_text(pool, "extra", "not in any");
    float *address = lmcs_live_data(w);
    for (int i = 0; i < 3; i++) {
        OK(lmcs_live_checkout(pool, "run", i % 2 == 0 ? "1" : "2", &err));
        EXPECT(lmcs_live_data(w) == address);
        expect_filled(w, i % 2 == 0 ? 1 : 10);
        expect_filled(v, 2);
        expect_text(pool, "t",
                    i % 2 == 0 ? "at one"
                               : "at two, and longer than it was at one, so that it had to move to another cell");
        expect_names(pool, "empty t v w");
        struct lmcs_live_info info;
        struct lmcs_live *t;
        OK(lmcs_live_open(pool, "run", "t", &t, &err));
        OK(lmcs_live_info(t, &info, &err));
        EXPECT(strcmp((char *)info.note, "str") == 0 && info.form == LMCS_LIVE_VALUE);
        lmcs_live_close(t);
        check_pool(pool);
    }
    fill(w, 77);
    lmcs_live_close(w);
    lmcs_live_close(v);
    lmcs_live_close(empty);
    pool = reopen(pool, place);
    OK(lmcs_live_open(pool, "run", "w", &w, &err));
    expect_filled(w, 77);
    lmcs_live_close(w);
    verify_pool(pool);
    close_pool(pool);
}

/* They may change as soon as they are put. */
static void live_variables_are_not_lent(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 30000);
    OK(lmcs_shelf_set_policy(pool, "run", "write=link", &err));
    for (int i = 0; i < 3; i++) {
        struct lmcs_capture *capture;
        fill(w, (float)i);
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        lmcs_capture_lend(capture, true);
        OK(lmcs_capture_put_live(capture, &err));
        fill(w, 77);
        OK(lmcs_capture_commit(capture, NULL, NULL, &err));
        OK(lmcs_live_checkout(pool, "run", NULL, &err));
        expect_filled(w, (float)i);
    }
    lmcs_live_close(w);
    verify_pool(pool);
    close_pool(pool);
}

static void compacted_ones_come_back(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 200000);
    OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
    for (int i = 0; i < 6; i++) {
        fill(w, (float)i);
        snapshot(pool);
    }
    OK(lmcs_compact(pool, NULL, &err));
    for (int i = 5; i >= 0; i--) {
        char which[8];
        snprintf(which, sizeof which, "%d", i + 1);
        OK(lmcs_live_checkout(pool, "run", which, &err));
        expect_filled(w, (float)i);
    }
    lmcs_live_close(w);
    OK(lmcs_live_erase(pool, "run", "w", &err));
    OK(lmcs_live_checkout(pool, "run", "4", &err));
    OK(lmcs_live_open(pool, "run", "w", &w, &err));
    expect_filled(w, 3);
    lmcs_live_close(w);
    verify_pool(pool);
    close_pool(pool);
}

static void what_is_held_is_not_taken_away(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 100), *late;
    fill(w, 1);
    snapshot(pool);
    late = new_tensor(pool, "late", 100);
    fill(late, 2);
    fill(w, 3);
    FAILS(LMCS_IN_USE, lmcs_live_checkout(pool, "run", "1", &err));
    expect_filled(w, 3);
    lmcs_live_close(late);
    OK(lmcs_live_resize(w, 1, &(uint64_t){200}, &err));
    FAILS(LMCS_IN_USE, lmcs_live_checkout(pool, "run", "1", &err));
    expect_names(pool, "late w");
    lmcs_live_close(w);
    OK(lmcs_live_checkout(pool, "run", "1", &err));
    expect_names(pool, "w");
    FAILS(LMCS_NOT_FOUND, lmcs_live_checkout(pool, "run", "9", &err));
    struct rng rng = {1};
    struct state *other = state_weights(&rng, 2, 10);
    take_snapshot(pool, "run", other, 1);
    FAILS(LMCS_INVALID, lmcs_live_checkout(pool, "run", "2", &err));
    state_free(other);
    OK(lmcs_live_open(pool, "run", "w", &w, &err));
    expect_filled(w, 1);
    lmcs_live_close(w);
    check_pool(pool);
    close_pool(pool);
}

static void full_pools_stay_as_they_are(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_limited(place->pool, (uint64_t)16 << 20);
    struct lmcs_live *w = new_tensor(pool, "w", 1 << 20);
    fill(w, 1);
    snapshot(pool);
    fill(w, 2);
    struct lmcs_live *v = new_tensor(pool, "v", 1 << 20);
    lmcs_live_close(v);
    FAILS(LMCS_FULL, lmcs_live_checkout(pool, "run", "1", &err));
    expect_filled(w, 2);
    expect_names(pool, "v w");
    OK(lmcs_live_erase(pool, "run", "v", &err));
    OK(lmcs_live_checkout(pool, "run", "1", &err));
    expect_filled(w, 1);
    lmcs_live_close(w);
    check_pool(pool);
    close_pool(pool);
}

static void captures_take_more_beside(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *capture;
    struct lmcs_live *w = new_tensor(pool, "w", 1000);
    fill(w, 1);
    put_text(pool, "t", "text");
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    OK(lmcs_capture_put_live(capture, &err));
    uint64_t length = 4;
    struct lmcs_tensor note = {
        .name = "structure", .kind = LMCS_ATTACHMENT, .dtype = LMC_U8, .ndim = 1, .shape = &length};
    const void *data = "{ }\n";
    OK(lmcs_capture_put(capture, &note, &data, 1, &err));
    fill(w, 2);
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.asynchronous = true;
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    OK(lmcs_capture_wait(capture, &err));
    OK(lmcs_live_checkout(pool, "run", "latest", &err));
    expect_filled(w, 1);
    lmcs_live_close(w);
    check_pool(pool);
    close_pool(pool);
}

struct storm {
    struct lmcs_pool *pool;
    atomic_bool stop;
};

static void *make_and_erase(void *argument)
{
    struct storm *storm = argument;
    for (int i = 0; !atomic_load(&storm->stop); i++) {
        char name[32];
        snprintf(name, sizeof name, "s%d", i % 5);
        struct lmcs_error error;
        struct lmcs_tensor tensor = {.name = name, .dtype = LMC_F32, .ndim = 1, .shape = (uint64_t[]){20000}};
        enum lmcs_status status = lmcs_live_create(storm->pool, "run", &tensor, NULL, NULL, &error);
        EXPECT(status == LMCS_OK || status == LMCS_EXISTS);
        put_text(storm->pool, "t", name);
        status = lmcs_live_erase(storm->pool, "run", name, &error);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND || status == LMCS_IN_USE);
    }
    return NULL;
}

static void snapshots_in_a_storm(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct storm storm = {.pool = pool};
    struct lmcs_live *w = new_tensor(pool, "w", 50000);
    pthread_t threads[2];
    put_text(pool, "t", "x");
    atomic_init(&storm.stop, false);
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_create(&threads[i], NULL, make_and_erase, &storm) == 0);
    for (int i = 0; i < 20; i++) {
        struct lmcs_transaction *transaction;
        OK(lmcs_transaction_begin(pool, "run", &w, 1, NULL, &transaction, &err));
        ((float *)lmcs_live_data(w))[i] = (float)i;
        if (i % 2 == 0)
            OK(lmcs_transaction_commit(transaction, &err));
        else
            lmcs_transaction_abort(transaction);
        snapshot(pool);
    }
    atomic_store(&storm.stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    lmcs_live_close(w);
    verify_pool(pool);
    close_pool(pool);
}

struct waiting {
    struct lmcs_pool *pool;
    struct lmcs_capture *capture;
    atomic_int has_shelf;
    useconds_t before;
};

static void *capture_live(void *argument)
{
    struct waiting *waiting = argument;
    struct lmcs_error error;
    EXPECT(lmcs_capture_begin(waiting->pool, "run", &waiting->capture, &error) == LMCS_OK);
    atomic_store(&waiting->has_shelf, 1);
    usleep(waiting->before);
    EXPECT(lmcs_capture_put_live(waiting->capture, &error) == LMCS_OK);
    EXPECT(lmcs_capture_commit(waiting->capture, NULL, NULL, &error) == LMCS_OK);
    return NULL;
}

/* A capture waits for a transaction whose thread wants the shelf: one must fail. */
static void transactions_and_captures_wait_for_each_other(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 1000);
    for (int late = 0; late < 2; late++) {
        struct waiting waiting = {.pool = pool, .before = late ? 100000 : 0};
        struct lmcs_transaction *transaction;
        struct lmcs_capture *capture;
        pthread_t thread;
        OK(lmcs_transaction_begin(pool, "run", &w, 1, NULL, &transaction, &err));
        EXPECT(pthread_create(&thread, NULL, capture_live, &waiting) == 0);
        while (atomic_load(&waiting.has_shelf) == 0)
            usleep(100);
        if (!late)
            usleep(100000); /* so that it waits most likely; either order is right */
        FAILS(LMCS_INVALID, lmcs_capture_begin(pool, "run", &capture, &err));
        EXPECT(strstr(err.message, "transaction") != NULL);
        FAILS(LMCS_INVALID, lmcs_shelf_drop(pool, "run", false, NULL, &err));
        OK(lmcs_transaction_commit(transaction, &err));
        pthread_join(thread, NULL);
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        OK(lmcs_capture_put_live(capture, &err));
        lmcs_capture_abort(capture);
    }
    lmcs_live_close(w);
    check_pool(pool);
    close_pool(pool);
}

static void *hold_shelf(void *argument)
{
    struct waiting *waiting = argument;
    struct lmcs_transaction *transaction;
    struct lmcs_error error;
    EXPECT(lmcs_transaction_begin(waiting->pool, "run", NULL, 0, NULL, &transaction, &error) == LMCS_OK);
    atomic_store(&waiting->has_shelf, 1);
    while (atomic_load(&waiting->has_shelf) != 2)
        usleep(100);
    EXPECT(lmcs_transaction_commit(transaction, &error) == LMCS_OK);
    return NULL;
}

static void waits_end_in_time(void **state)
{
    struct place *place = *state;
    struct waiting waiting = {.pool = open_quiet(place->pool)};
    struct lmcs_live *w = new_tensor(waiting.pool, "w", 1000);
    struct lmcs_capture *capture;
    pthread_t thread;
    OK(lmcs_live_snapshot(waiting.pool, "run", NULL, NULL, &err));
    EXPECT(pthread_create(&thread, NULL, hold_shelf, &waiting) == 0);
    while (atomic_load(&waiting.has_shelf) == 0)
        usleep(100);
    OK(lmcs_capture_begin(waiting.pool, "run", &capture, &err));
    for (uint32_t wait_ms = 0; wait_ms < 2; wait_ms++) {
        FAILS(LMCS_IN_USE, lmcs_capture_put_live_within(capture, wait_ms, &err));
        EXPECT(err.system_errno == ETIMEDOUT);
        FAILS(LMCS_IN_USE, lmcs_live_checkout_within(waiting.pool, "run", "1", wait_ms, &err));
        EXPECT(err.system_errno == ETIMEDOUT);
    }
    atomic_store(&waiting.has_shelf, 2);
    pthread_join(thread, NULL);
    OK(lmcs_capture_put_live_within(capture, 0, &err));
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    OK(lmcs_live_checkout_within(waiting.pool, "run", "1", 0, &err));
    lmcs_live_close(w);
    check_pool(waiting.pool);
    close_pool(waiting.pool);
}

struct across {
    struct lmcs_pool *pool;
    atomic_int is_ready;
};

static void *capture_two(void *argument)
{
    struct across *across = argument;
    struct lmcs_capture *first, *second;
    struct lmcs_error error;
    EXPECT(lmcs_capture_begin(across->pool, "beside", &first, &error) == LMCS_OK);
    EXPECT(lmcs_capture_begin(across->pool, "run", &second, &error) == LMCS_OK);
    atomic_store(&across->is_ready, 1);
    EXPECT(lmcs_capture_put_live(second, &error) == LMCS_OK);
    EXPECT(lmcs_capture_commit(second, NULL, NULL, &error) == LMCS_OK);
    EXPECT(lmcs_capture_commit(first, NULL, NULL, &error) == LMCS_OK);
    return NULL;
}

static void waiting_across_two_shelves(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 1000);
    struct across across = {.pool = pool};
    struct lmcs_transaction *transaction;
    struct lmcs_capture *capture;
    pthread_t thread;
    OK(lmcs_transaction_begin(pool, "run", &w, 1, NULL, &transaction, &err));
    EXPECT(pthread_create(&thread, NULL, capture_two, &across) == 0);
    while (atomic_load(&across.is_ready) == 0)
        usleep(100);
    FAILS(LMCS_INVALID, lmcs_capture_begin(pool, "beside", &capture, &err));
    EXPECT(strstr(err.message, "transaction") != NULL);
    lmcs_transaction_abort(transaction);
    pthread_join(thread, NULL);
    lmcs_live_close(w);
    check_pool(pool);
    close_pool(pool);
}

/* ---- Resizes during a snapshot -------------------------------------------------------------------------------- */

struct resizing {
    struct lmcs_live *live;
    uint64_t count;
};

static void *resize_live(void *argument)
{
    struct resizing *resizing = argument;
    struct lmcs_error error;
    EXPECT(lmcs_live_resize(resizing->live, 1, &resizing->count, &error) == LMCS_OK);
    return NULL;
}

static void await_shelf(struct lmcs_pool *pool, bool is_read, uint32_t waiting)
{
    for (bool done = false; !done; usleep(100)) {
        pthread_mutex_lock(&pool->live->lock);
        const struct lmcs_live_shelf *shelf = pool->live->shelves;
        done = shelf->is_read == is_read && shelf->waiting == waiting;
        pthread_mutex_unlock(&pool->live->lock);
    }
}

/* Holds a lock between two barriers, in a thread of its own: others take this lock after those of the test's thread. */
struct holding {
    pthread_mutex_t *lock;
    pthread_barrier_t barrier;
};

static void *hold(void *context)
{
    struct holding *holding = context;
    pthread_mutex_lock(holding->lock);
    pthread_barrier_wait(&holding->barrier);
    pthread_barrier_wait(&holding->barrier);
    pthread_mutex_unlock(holding->lock);
    return NULL;
}

/* The lock of the table of extents stops the snapshot while it reads. */
static void resizes_wait_for_snapshots(void **state)
{
    struct place *place = *state;
    struct waiting waiting = {.pool = open_quiet(place->pool)};
    struct lmcs_pool *pool = waiting.pool;
    struct lmcs_live *w = new_tensor(pool, "w", 300000), *other;
    static const uint64_t sizes[] = {3000, 700000}, count = 300000;
    struct holding holding = {.lock = &pool->space->lock};
    pthread_t threads[3];
    pthread_barrier_init(&holding.barrier, NULL, 2);
    OK(lmcs_shelf_set_policy(pool, "run", "write=link", &err));
    fill(w, 1);
    snapshot(pool);
    for (size_t i = 0; i < 2; i++) {
        struct resizing resizing = {w, sizes[i]};
        fill(w, 2);
        OK(lmcs_live_open(pool, "run", "w", &other, &err));
        EXPECT(pthread_create(&threads[2], NULL, hold, &holding) == 0);
        pthread_barrier_wait(&holding.barrier);
        EXPECT(pthread_create(&threads[0], NULL, capture_live, &waiting) == 0);
        await_shelf(pool, true, 0);
        for (uint32_t wait_ms = 0; wait_ms < 2; wait_ms++) {
            FAILS(LMCS_IN_USE, lmcs_live_resize_within(w, 1, &sizes[i], wait_ms, &err));
            EXPECT(err.system_errno == ETIMEDOUT && strstr(err.message, "snapshot") != NULL);
        }
        EXPECT(float_count(w) == count);
        EXPECT(pthread_create(&threads[1], NULL, resize_live, &resizing) == 0);
        await_shelf(pool, true, 1);
        lmcs_live_close(other);
        EXPECT(float_count(w) == count);
        pthread_barrier_wait(&holding.barrier);
        for (size_t k = 0; k < 3; k++)
            pthread_join(threads[k], NULL);
        EXPECT(float_count(w) == sizes[i]);
        OK(lmcs_live_resize_within(w, 1, &count, 0, &err));
        OK(lmcs_live_checkout(pool, "run", "latest", &err));
        expect_filled(w, 2);
    }
    pthread_barrier_destroy(&holding.barrier);
    /* In a capture that has put them, the same thread resizes without waiting. */
    struct lmcs_capture *capture;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    OK(lmcs_capture_put_live(capture, &err));
    OK(lmcs_live_resize(w, 1, &sizes[0], &err));
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    lmcs_live_close(w);
    OK(lmcs_live_checkout(pool, "run", "latest", &err));
    OK(lmcs_live_open(pool, "run", "w", &w, &err));
    expect_filled(w, 2);
    lmcs_live_close(w);
    check_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(back_and_forth),
        IN_MEMORY(live_variables_are_not_lent),
        ON_BOTH(compacted_ones_come_back),
        ON_BOTH(what_is_held_is_not_taken_away),
        ON_BOTH(full_pools_stay_as_they_are),
        ON_MEMORY_ONLY(captures_take_more_beside),
        ON_BOTH(snapshots_in_a_storm),
        ON_MEMORY_ONLY(transactions_and_captures_wait_for_each_other),
        ON_MEMORY_ONLY(waits_end_in_time),
        ON_BOTH(resizes_wait_for_snapshots),
        ON_MEMORY_ONLY(waiting_across_two_shelves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
