/* SPDX-License-Identifier: BSD-3-Clause */
/* test_compact.c - compaction: bytes stay, space shrinks, chains stay short, views stay in place. */
/* ctest: timeout=600 */
#include "test_compact_support.h"

#define SNAPSHOTS 24

static void history_stays_bit_exact(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct state *states[SNAPSHOTS];
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, SNAPSHOTS, 4, 60000);
    uint64_t before = pool_info(pool).live_bytes;
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    uint64_t deltas = 0;
    for (uint64_t n = 1; n <= SNAPSHOTS; n++) {
        expect_snapshot(pool, "run", n, states[n - 1]);
        struct lmcs_snapshot_storage storage = storage_of(pool, "run", n);
        assert_true(storage.longest_chain <= LMCS_CHAIN_BOUND);
        if (n > SNAPSHOTS - 4)
            assert_int_equal(storage.raw_contents, 4);
        deltas += storage.delta_contents;
    }
    assert_true(deltas > 0);
    assert_true(pool_info(pool).live_bytes < before);
    assert_int_equal(pool_info(pool).compaction_backlog, 0);
    verify_pool(pool);
    uint64_t epoch = pool_info(pool).epoch;
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(pool_info(pool).epoch <= epoch + 2);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    verify_pool(pool);
    for (uint64_t n = 1; n <= SNAPSHOTS; n++)
        expect_snapshot(pool, "run", n, states[n - 1]);
    close_pool(pool);
    free_history(states, SNAPSHOTS);
}

static void keep_raw_is_respected(void **state)
{
    struct place *place = *state;
    struct rng rng = {2};
    struct state *states[10];
    struct lmcs_pool *pool = open_quiet(place->pool);
    FAILS(LMCS_INVALID, lmcs_shelf_set_keep_raw(pool, "run", 0, &err));
    OK(lmcs_shelf_set_keep_raw(pool, "run", 7, &err));
    make_history(pool, "run", &rng, states, 10, 2, 30000);
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(shelf_info(pool, "run").keep_raw, 7);
    for (uint64_t n = 4; n <= 10; n++)
        assert_int_equal(storage_of(pool, "run", n).longest_chain, 0);
    assert_true(storage_of(pool, "run", 1).raw_contents < 2);
    OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(storage_of(pool, "run", 8).raw_contents < 2);
    for (uint64_t n = 1; n <= 10; n++)
        expect_snapshot(pool, "run", n, states[n - 1]);
    verify_pool(pool);
    close_pool(pool);
    free_history(states, 10);
}

static void all_dtypes_and_incompressible_ones(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct state *states[8];
    struct lmcs_pool *pool = open_quiet(place->pool);
    for (size_t i = 0; i < 8; i++) {
        struct rng shapes = {4};
        states[i] = state_mixed(&shapes, 66, 20000);
        for (size_t t = 0; t < states[i]->count; t++)
            if (t % 3 != 0)
                rng_fill(&rng, states[i]->tensors[t].data,
                         t % 3 == 1 ? states[i]->tensors[t].bytes / 100 : states[i]->tensors[t].bytes);
        take_snapshot(pool, "mixed", states[i], (int64_t)i);
    }
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    verify_pool(pool);
    for (uint64_t n = 1; n <= 8; n++)
        expect_snapshot(pool, "mixed", n, states[n - 1]);
    close_pool(pool);
    free_history(states, 8);
}

static void removal_of_bases_and_dependents(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct state *states[SNAPSHOTS];
    bool there[SNAPSHOTS];
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, SNAPSHOTS, 3, 20000);
    memset(there, 1, sizeof there);
    OK(lmcs_compact(pool, NULL, &err));
    for (size_t left = SNAPSHOTS; left > 1; left--) {
        size_t victim = rng_below(&rng, SNAPSHOTS);
        while (!there[victim])
            victim = (victim + 1) % SNAPSHOTS;
        struct lmcs_removal wished, done;
        OK(lmcs_snapshot_remove(pool, "run", victim + 1, true, &wished, &err));
        OK(lmcs_snapshot_remove(pool, "run", victim + 1, false, &done, &err));
        assert_true(wished.freed_bytes == done.freed_bytes && wished.later_bytes == done.later_bytes);
        there[victim] = false;
        check_pool(pool);
        if (left % 3 == 0) {
            OK(lmcs_compact(pool, NULL, &err));
            check_pool(pool);
        }
        for (size_t i = 0; i < SNAPSHOTS; i++)
            if (there[i])
                expect_snapshot(pool, "run", i + 1, states[i]);
    }
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    assert_int_equal(pool_info(pool).content_count, 3);
    close_pool(pool);
    free_history(states, SNAPSHOTS);
}

static void later_bytes_come_free(void **state)
{
    struct place *place = *state;
    struct rng rng = {6};
    struct state *states[12];
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, 12, 3, 50000);
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t freed = 0;
    uint64_t before = pool_info(pool).live_bytes;
    for (uint64_t n = 1; n <= 8; n++) {
        struct lmcs_removal removal;
        OK(lmcs_snapshot_remove(pool, "run", n, false, &removal, &err));
        freed += removal.freed_bytes;
    }
    assert_true(freed > 0);
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t after = pool_info(pool).live_bytes;
    assert_true(after <= (4 * 2 + 1) * (uint64_t)(50000 * 4 + 65536));
    assert_true(after < before);
    verify_pool(pool);
    close_pool(pool);
    free_history(states, 12);
}

static struct lmcs_view *view_of(struct lmcs_pool *pool, uint64_t number, uint32_t flags)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    char which[32];
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
    OK(lmcs_view_open(snapshot, NULL, NULL, 0, flags, &view, &err));
    lmcs_snapshot_close(snapshot);
    return view;
}

static void expect_view(struct lmcs_view *view, const struct state *state)
{
    assert_int_equal(lmcs_view_count(view), state->count);
    for (size_t i = 0; i < state->count; i++) {
        const struct held *held = &state->tensors[i];
        assert_string_equal(lmcs_view_entry(view, i)->tensor.name, held->name);
        assert_memory_equal(lmcs_view_data(view, i), held->data, held->bytes);
    }
}

static void views_outlast_compaction_and_removal(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct state *states[SNAPSHOTS];
    struct lmcs_view *views[SNAPSHOTS], *copies[SNAPSHOTS];
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, SNAPSHOTS, 5, 30000);
    for (uint64_t n = 1; n <= SNAPSHOTS; n++) {
        views[n - 1] = view_of(pool, n, n % 2 == 0 ? LMCS_VIEW_PRIVATE : 0);
        copies[n - 1] = view_of(pool, n, LMCS_VIEW_COPY);
    }
    OK(lmcs_compact(pool, NULL, &err));
    for (uint64_t n = 1; n <= SNAPSHOTS - 2; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    struct state *more[SNAPSHOTS];
    struct state *now = state_weights(&rng, 5, 30000);
    for (int i = 0; i < SNAPSHOTS; i++) {
        take_snapshot(pool, "run", now, 100 + i);
        more[i] = state_copy(now);
        state_step(now, &rng, 0, 5);
    }
    check_pool(pool);
    for (int i = 0; i < SNAPSHOTS; i++) {
        expect_view(views[i], states[i]);
        expect_view(copies[i], states[i]);
    }
    close_pool(pool);
    for (int i = 0; i < SNAPSHOTS; i++) {
        expect_view(views[i], states[i]);
        lmcs_view_close(views[i]);
        lmcs_view_close(copies[i]);
    }
    pool = open_quiet(place->pool);
    for (int i = 0; i < SNAPSHOTS; i++)
        expect_snapshot(pool, "run", SNAPSHOTS + 1 + (uint64_t)i, more[i]);
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
    free_history(states, SNAPSHOTS);
    free_history(more, SNAPSHOTS);
}

static bool wait_idle(struct lmcs_pool *pool, unsigned seconds)
{
    for (unsigned i = 0; i < seconds * 100; i++) {
        struct lmcs_pool_info info = pool_info(pool);
        if (info.compaction_backlog == 0 && !info.compaction_running)
            return true;
        usleep(10000);
    }
    return false;
}

static void background_compacts_by_itself(void **state)
{
    struct place *place = *state;
    struct rng rng = {8};
    struct state *states[12];
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_OR_CREATE, 0);
    make_history(pool, "run", &rng, states, 12, 3, 40000);
    assert_true(wait_idle(pool, 500));
    assert_true(storage_of(pool, "run", 2).raw_contents < 3);
    assert_string_equal(pool_info(pool).compaction_error, "");
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    free_history(states, 12);
}

static void pause_holds_and_resume_goes_on(void **state)
{
    struct place *place = *state;
    struct rng rng = {9};
    struct state *states[12];
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_OR_CREATE, 0);
    lmcs_compactor_pause(pool);
    lmcs_compactor_pause(pool);
    assert_true(pool_info(pool).compaction_paused);
    make_history(pool, "run", &rng, states, 12, 3, 40000);
    usleep(200000);
    assert_int_equal(storage_of(pool, "run", 1).raw_contents, 3);
    assert_true(pool_info(pool).compaction_backlog > 0);
    lmcs_compactor_resume(pool);
    usleep(100000);
    assert_int_equal(storage_of(pool, "run", 1).raw_contents, 3);
    lmcs_compactor_resume(pool);
    assert_false(pool_info(pool).compaction_paused);
    assert_true(wait_idle(pool, 500));
    assert_true(storage_of(pool, "run", 1).raw_contents < 3);
    lmcs_compactor_stop(pool);
    lmcs_compactor_stop(pool);
    OK(lmcs_compactor_start(pool, &err));
    OK(lmcs_compactor_start(pool, &err));
    verify_pool(pool);
    close_pool(pool);
    free_history(states, 12);
}

static void request_works_while_paused(void **state)
{
    struct place *place = *state;
    struct rng rng = {10};
    struct state *states[8];
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_OR_CREATE, 0);
    lmcs_compactor_pause(pool);
    make_history(pool, "run", &rng, states, 8, 3, 40000);
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(storage_of(pool, "run", 1).raw_contents < 3);
    verify_pool(pool);
    close_pool(pool);
    free_history(states, 8);
}

static bool stop_soon(void *context, const char *what, uint64_t done, uint64_t total)
{
    int *calls = context;
    (void)what;
    (void)total;
    (void)done;
    return ++*calls < 3;
}

static void many_tensors_take_few_commits(void **state)
{
    enum { COUNT = 1300 };
    struct place *place = *state;
    struct rng rng = {12};
    struct state *first = state_weights(&rng, COUNT, 500), *second = state_copy(first);
    struct lmcs_pool *pool = open_quiet(place->pool);
    state_step(second, &rng, 0, COUNT);
    OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
    take_snapshot(pool, "run", first, 1);
    take_snapshot(pool, "run", second, 2);
    uint64_t before = pool->root.epoch;
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(storage_of(pool, "run", 1).delta_contents == COUNT);
    EXPECT(pool->root.epoch - before < COUNT / 64);
    expect_snapshot(pool, "run", 1, first);
    expect_snapshot(pool, "run", 2, second);
    verify_pool(pool);
    close_pool(pool);
    state_free(first);
    state_free(second);
}

static void cancelled(void **state)
{
    struct place *place = *state;
    struct rng rng = {11};
    struct state *states[SNAPSHOTS];
    int calls = 0;
    struct lmcs_progress progress = {stop_soon, &calls};
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, SNAPSHOTS, 3, 40000);
    FAILS(LMCS_CANCELLED, lmcs_compact(pool, &progress, &err));
    check_pool(pool);
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
    free_history(states, SNAPSHOTS);
}

struct nested {
    struct lmcs_pool *pool;
    struct state *state;
    enum lmcs_status compacted, captured;
};

static bool call_again(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct nested *nested = context;
    uint64_t number;
    (void)what;
    (void)done;
    (void)total;
    if (nested->compacted == LMCS_OK) { /* the first call comes from inside a round */
        struct lmcs_error error;
        nested->compacted = lmcs_compact(nested->pool, NULL, &error);
        for (struct rng rng = {14}; nested->captured == LMCS_OK; state_step(nested->state, &rng, 0, 3))
            nested->captured = try_snapshot(nested->pool, "filler", nested->state, 0, &number, &error);
    }
    return true;
}

/* A signal handler takes a snapshot that finds the pool full, say. */
static void a_call_from_inside_a_compaction(void **state)
{
    struct place *place = *state;
    struct rng rng = {13};
    struct state *states[SNAPSHOTS];
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_pool_set_limit(pool, (uint64_t)32 << 20, &err));
    make_history(pool, "run", &rng, states, SNAPSHOTS, 3, 40000);
    struct nested nested = {.pool = pool, .state = state_copy(states[0])};
    struct lmcs_progress progress = {call_again, &nested};
    OK(lmcs_compact(pool, &progress, &err));
    assert_int_equal(nested.compacted, LMCS_IN_USE);
    assert_int_equal(nested.captured, LMCS_FULL);
    state_free(nested.state);
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    free_history(states, SNAPSHOTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(history_stays_bit_exact),
        ON_BOTH(keep_raw_is_respected),
        ON_BOTH(all_dtypes_and_incompressible_ones),
        ON_BOTH(removal_of_bases_and_dependents),
        ON_BOTH(later_bytes_come_free),
        ON_BOTH(views_outlast_compaction_and_removal),
        ON_BOTH(background_compacts_by_itself),
        ON_BOTH(pause_holds_and_resume_goes_on),
        ON_DISK(request_works_while_paused),
        ON_DISK(many_tensors_take_few_commits),
        ON_DISK(cancelled),
        ON_DISK(a_call_from_inside_a_compaction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
