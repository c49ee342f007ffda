/* SPDX-License-Identifier: BSD-3-Clause */
/* test_links_reading.c - links read in parts, by views and by several threads. */
/* ctest: timeout=600 */
#include "media/media.h"
#include "pages/txn.h"
#include "payload/read.h"
#include "records/content.h"
#include "snapshots/snapshot.h"
#include "test_links_support.h"
#include <pthread.h>
#include <stdatomic.h>

static void slices_of_steps(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "keep_raw=1");
    run_on(&run, pool, "run", 5);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, "run@4", &snapshot, &err));
    for (size_t t = 0; t < run.states[4]->count; t++) {
        const struct held *held = &run.states[4]->tensors[t];
        size_t from = held->bytes / 3, take = held->bytes / 2;
        unsigned char *got = malloc(take);
        assert_non_null(got);
        OK(lmcs_snapshot_read_range(snapshot, held->kind, held->name, from, got, take, &err));
        assert_memory_equal(got, held->data + from, take);
        free(got);
    }
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
    run_end(&run);
}

static void views_of_steps(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "keep_raw=1");
    run_on(&run, pool, "run", 5);
    OK(lmcs_compact(pool, NULL, &err));
    const char *const wanted[] = {"p2.weight", "noise", "p0.exp_avg", "p2.exp_avg", "p1.exp_avg_sq", "p0.weight"};
    const uint32_t flags[] = {0, LMCS_VIEW_PRIVATE, LMCS_VIEW_COPY | LMCS_VIEW_VERIFY};
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    OK(lmcs_snapshot_open(pool, "run@4", &snapshot, &err));
    for (size_t i = 0; i < 3; i++) {
        OK(lmcs_view_open(snapshot, wanted, NULL, sizeof wanted / sizeof wanted[0], flags[i], &view, &err));
        assert_int_equal(lmcs_view_count(view), sizeof wanted / sizeof wanted[0]);
        for (size_t k = 0; k < sizeof wanted / sizeof wanted[0]; k++) {
            const struct held *held = run.states[4]->tensors;
            while (strcmp(held->name, wanted[k]) != 0)
                held++;
            assert_memory_equal(lmcs_view_data(view, k), held->data, held->bytes);
        }
        lmcs_view_close(view);
    }
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
    run_end(&run);
}

struct watching {
    struct lmcs_pool *pool;
    const struct state *first;
    atomic_bool stop;
    atomic_uint rounds;
};

static void *watch(void *argument)
{
    struct watching *watching = argument;
    while (!watching->stop) {
        struct telling telling;
        expect_snapshot(watching->pool, "run", 1, watching->first);
        OK(lmcs_verify(watching->pool, NULL, NULL, NULL, NULL, NULL, &err));
        OK(repair_from(watching->pool, NULL, &telling));
        watching->rounds++;
    }
    return NULL;
}

static void in_the_background(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_CREATE, 0);
    struct watching watching = {.pool = pool};
    pthread_t thread;
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=2 links=5 parity=4+1");
    run_on(&run, pool, "run", 1);
    watching.first = run.states[1];
    assert_int_equal(pthread_create(&thread, NULL, watch, &watching), 0);
    for (size_t i = 1; i < 24 || watching.rounds < 2; i++) {
        if (i >= MOST_STEPS) {
            usleep(1000);
            continue;
        }
        run_on(&run, pool, "run", 1);
        uint64_t n = 1 + rng_below(&run.rng, run.count);
        if (run.there[n])
            expect_snapshot(pool, "run", n, run.states[n]);
        if (i % 5 == 4 && run.there[i - 2]) {
            OK(lmcs_snapshot_remove(pool, "run", i - 2, false, NULL, &err));
            run.there[i - 2] = false;
        }
    }
    watching.stop = true;
    assert_int_equal(pthread_join(thread, NULL), 0);
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    verify_pool(pool);
    expect_run(&run, pool, "run");
    close_pool(pool);
    run_end(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(slices_of_steps),
        ON_BOTH(views_of_steps),
        ON_BOTH(in_the_background),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
