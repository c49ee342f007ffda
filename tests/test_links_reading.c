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

static uint64_t link_of(struct lmcs_snapshot *snapshot, const char *name)
{
    struct lmcs_view *view;
    OK(lmcs_view_open(snapshot, &name, NULL, 1, 0, &view, &err));
    uint64_t link = lmcs_view_entry(view, 0)->link;
    lmcs_view_close(view);
    return link;
}

/* Ranges of arrays of one link, in and out of order, beside others. */
static void ranges_of_steps(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "keep_raw=1");
    run_on(&run, pool, "run", 5);
    OK(lmcs_compact(pool, NULL, &err));
    static const char *const wanted[] = {"p2.weight", "p2.exp_avg",    "noise",     "p2.exp_avg", "p2.exp_avg_sq",
                                         "p2.weight", "p2.exp_avg_sq", "p2.weight", "p2.weight",  "p1.weight"};
    enum { COUNT = sizeof wanted / sizeof wanted[0] };
    const uint64_t block = LMC_BLOCK_BYTES, all = 4 * large[2];
    const uint64_t edges[] = {0, 8, block - 4, block, block + 1000, all};
    const struct held *held[COUNT];
    struct lmcs_tensor_range ranges[COUNT];
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, "run@4", &snapshot, &err));
    assert_true(link_of(snapshot, "p2.weight") != 0);
    assert_int_equal(link_of(snapshot, "p2.weight"), link_of(snapshot, "p2.exp_avg_sq"));
    assert_int_not_equal(link_of(snapshot, "p2.weight"), link_of(snapshot, "p1.weight"));
    assert_int_equal(link_of(snapshot, "noise"), 0);
    for (size_t k = 0; k < COUNT; k++)
        for (held[k] = run.states[4]->tensors; strcmp(held[k]->name, wanted[k]) != 0;)
            held[k]++;
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        for (size_t j = i; j < sizeof edges / sizeof *edges; j++) {
            for (size_t k = 0; k < COUNT; k++) {
                uint64_t first = edges[i] < held[k]->bytes ? edges[i] : held[k]->bytes;
                uint64_t end = edges[j] < held[k]->bytes ? edges[j] : held[k]->bytes;
                ranges[k] = (struct lmcs_tensor_range){wanted[k], first, end - first, malloc(end - first + 1)};
                ((unsigned char *)ranges[k].buffer)[end - first] = 0x5a;
            }
            OK(lmcs_snapshot_read_ranges(snapshot, LMCS_TENSOR, ranges, COUNT, &err));
            for (size_t k = 0; k < COUNT; k++) {
                const unsigned char *got = ranges[k].buffer;
                assert_memory_equal(got, held[k]->data + ranges[k].first_byte, ranges[k].bytes);
                assert_int_equal(got[ranges[k].bytes], 0x5a);
                free(ranges[k].buffer);
            }
        }
    unsigned char byte;
    const struct lmcs_tensor_range outside[] = {{"p2.weight", all, 1, &byte}, {"p2.exp_avg", all, 1, &byte}};
    const struct lmcs_tensor_range missing[] = {{"p2.weight", 0, 1, &byte}, {"p2.none", 0, 1, &byte}};
    FAILS(LMCS_INVALID, lmcs_snapshot_read_ranges(snapshot, LMCS_TENSOR, outside, 2, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_read_ranges(snapshot, LMCS_TENSOR, missing, 2, &err));
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
        ON_BOTH(ranges_of_steps),
        ON_BOTH(in_the_background),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
