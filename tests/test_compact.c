/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_compact.c - compaction: nothing that can be read changes, space gets less, chains stay short, what is seen by a
 * view stays where it is, and a pool that is pruned for long does not grow.
 */
/* ctest: timeout=600 */
#include "support.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pages/pool.h"
#include "pages/tree.h"
#include "records/content.h"

#define SNAPSHOTS 24

/* A training run's history: states[i] is what snapshot i + 1 had. */
static void make_history(struct lmcs_pool *pool, const char *shelf, struct rng *rng, struct state **states,
                         size_t count, size_t tensors, size_t floats)
{
    struct state *now = state_weights(rng, tensors, floats);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(take_snapshot(pool, shelf, now, (int64_t)i), i + 1);
        states[i] = state_copy(now);
        state_step(now, rng, 0, tensors - 1); /* the last one never changes */
    }
    state_free(now);
}

static void free_history(struct state **states, size_t count)
{
    for (size_t i = 0; i < count; i++)
        state_free(states[i]);
}

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
            assert_int_equal(storage.raw_contents, 4); /* the newest ones stay raw */
        deltas += storage.delta_contents;
    }
    assert_true(deltas > 0);
    assert_true(pool_info(pool).live_bytes < before);
    assert_int_equal(pool_info(pool).compaction_backlog, 0);
    verify_pool(pool);
    /* Nothing is left to do: doing it again changes nothing. */
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
        struct rng shapes = {4}; /* the same names and shapes every time, with other bytes */
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
    /* What was a base of what is gone has gone too. */
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
    /* The newest four are raw, one tensor shared: nothing else is left. */
    assert_true(after <= (4 * 2 + 1) * (uint64_t)(50000 * 4 + 65536));
    assert_true(after < before);
    verify_pool(pool);
    close_pool(pool);
    free_history(states, 12);
}

/* ---- Views ---- */

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
    /* New snapshots want the room that the old ones had. */
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

/* ---- In the background ---- */

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
    assert_true(wait_idle(pool, 60));
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
    assert_true(wait_idle(pool, 60));
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
    close_pool(pool); /* still paused: close does not hang */
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

/* More tensors than are switched at once: each batch ends with a commit, and none is forgotten between two. */
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

/* ---- Space ---- */

static void space_is_given_back(void **state)
{
    struct place *place = *state;
    struct rng rng = {12};
    struct state *states[16];
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, 16, 4, 1 << 18); /* 4 MiB each */
    uint64_t full = disk_bytes(place->pool);
    assert_true(full >= 16 * (uint64_t)(3 << 20));
    for (uint64_t n = 1; n <= 15; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t less = disk_bytes(place->pool);
    struct lmcs_pool_info info = pool_info(pool);
    if (less > (uint64_t)14 << 20)
        fail_msg("%llu of %llu bytes are left, %llu used", (unsigned long long)less, (unsigned long long)full,
                 (unsigned long long)info.used_bytes);
    assert_true(info.used_bytes <= less);
    expect_snapshot(pool, "run", 16, states[15]);
    verify_pool(pool);
    close_pool(pool);
    free_history(states, 16);
}

/* This program's own stands in front of the C library's: a kernel that is slow to give space back, and counted. */
static atomic_bool slow_punches;
static atomic_uint punches;

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if ((mode & FALLOC_FL_PUNCH_HOLE) != 0 && atomic_load(&slow_punches))
        usleep(3000);
    if ((mode & FALLOC_FL_PUNCH_HOLE) != 0 && atomic_fetch_add(&punches, 1) > 100000)
        fail_msg("space is given back again and again");
    return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}

/*
 * In every page of many extents something small lives on: what dies around it can't be given back, and trying that must
 * come to an end, each time.
 */
static void space_that_is_stuck_is_left(void **state)
{
    enum { PAIRS = 64, ROUNDS = 100 };
    struct place *place = *state;
    struct rng rng = {14};
    struct lmcs_pool *pool = open_limited(place->pool, (uint64_t)64 << 20); /* so that extents are small */
    struct state *now = calloc(1, sizeof *now);
    static const uint64_t floats[2] = {250, 500}; /* not worth a frame; worth one */
    for (size_t i = 0; i < 2 * PAIRS; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%zu", i);
        state_add(now, name, LMC_F32, 1, &floats[i % 2]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        state_step(now, &rng, 0, now->count);
        take_snapshot(pool, "run", now, round);
    }
    atomic_store(&punches, 0);
    OK(lmcs_compact(pool, NULL, &err));
    uint32_t first = atomic_exchange(&punches, 0);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_pool_info info = pool_info(pool);
    if (atomic_load(&punches) > 0 || info.used_bytes < info.live_bytes + ((uint64_t)2 << 20))
        fail_msg("%u holes, then %u; %llu used, %llu live", first, atomic_load(&punches),
                 (unsigned long long)info.used_bytes, (unsigned long long)info.live_bytes);
    /* When what lived among them goes, all of it does. */
    for (uint64_t n = 1; n < ROUNDS; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    info = pool_info(pool);
    assert_true(info.used_bytes < info.live_bytes + ((uint64_t)2 << 20));
    expect_snapshot(pool, "run", ROUNDS, now);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

struct pruning {
    struct lmcs_pool *pool;
    atomic_bool done;
};

static void *keep_compacting(void *argument)
{
    struct pruning *pruning = argument;
    while (!atomic_load(&pruning->done))
        OK(lmcs_compact(pruning->pool, NULL, &err));
    return NULL;
}

/* Space that is given back may be taken again at once: by then it must have been given back. */
static void space_is_taken_while_it_is_given_back(void **state)
{
    struct place *place = *state;
    struct rng rng = {15};
    struct pruning pruning = {.pool = open_quiet(place->pool)};
    pthread_t thread;
    atomic_init(&pruning.done, false);
    atomic_store(&slow_punches, true);
    assert_int_equal(pthread_create(&thread, NULL, keep_compacting, &pruning), 0);
    for (uint64_t i = 1; i <= scaled("LMCS_TEST_ROUNDS", 60); i++) {
        struct state *large = calloc(1, sizeof *large);
        struct held *held = state_add(large, "large", LMC_U8, 1, &(uint64_t){1500000 + i % 5 * 700000});
        rng_fill(&rng, held->data, held->bytes);
        EXPECT(take_snapshot(pruning.pool, "run", large, (int64_t)i) == i);
        usleep(2000);
        expect_snapshot(pruning.pool, "run", i, large);
        if (i > 1)
            OK(lmcs_snapshot_remove(pruning.pool, "run", i - 1, false, NULL, &err));
        state_free(large);
    }
    atomic_store(&pruning.done, true);
    pthread_join(thread, NULL);
    atomic_store(&slow_punches, false);
    verify_pool(pruning.pool);
    close_pool(pruning.pool);
}

/* As if power had failed between the commit that gives file space back and the punching. */
static void back_all_extents(struct lmcs_pool *pool)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    int fd = open(pool->path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_cursor_seek(cursor, &txn, LMCS_TREE_OBJECTS, &txn.root.trees[LMCS_TREE_OBJECTS], (struct lmcs_key_df){0, 0},
                        &err));
    for (; lmcs_cursor_valid(cursor); OK(lmcs_cursor_next(cursor, &err))) {
        struct lmcs_object_df df;
        memcpy(&df, lmcs_cursor_value(cursor, NULL), sizeof df);
        if (df.kind == LMCS_OBJECT_EXTENT)
            assert_int_equal(fallocate(fd, 0, (off_t)df.first, (off_t)(df.bytes - LMCS_PAGE_BYTES)), 0);
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    close(fd);
}

static void space_is_given_back_after_a_crash(void **state)
{
    struct place *place = *state;
    struct rng rng = {15};
    struct state *states[16];
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, 16, 6, 1 << 15);
    for (uint64_t n = 1; n <= 15; n++)
        if (n % 4 != 0)
            OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t less = disk_bytes(place->pool);
    back_all_extents(pool);
    close_pool(pool);
    assert_true(disk_bytes(place->pool) > less + ((uint64_t)1 << 20));
    pool = open_quiet(place->pool);
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t again = disk_bytes(place->pool);
    if (again > less + ((uint64_t)64 << 10))
        fail_msg("%llu bytes, after %llu", (unsigned long long)again, (unsigned long long)less);
    for (uint64_t n = 4; n <= 16; n += 4)
        expect_snapshot(pool, "run", n, states[n - 1]);
    verify_pool(pool);
    close_pool(pool);
    free_history(states, 16);
}

/* Sizes from 100 bytes to 1 MiB, snapshot, prune to the newest few, compact now and then: for long. */
static void long_pruned_run_does_not_grow(void **state)
{
    struct place *place = *state;
    struct rng rng = {13};
    uint64_t rounds = scaled("LMCS_TEST_ROUNDS", UNDER_SANITIZER ? 500 : 2000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = calloc(1, sizeof *now);
    static const uint64_t floats[] = {25, 300, 4000, 20000, 60000, 100};
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%zu", i);
        state_add(now, name, LMC_F32, 1, &floats[i]);
    }
    uint64_t worst = 0, middle = 0, end = 0;
    for (uint64_t round = 1; round <= rounds; round++) {
        state_step(now, &rng, rng_below(&rng, now->count), 1 + rng_below(&rng, now->count));
        uint64_t number = take_snapshot(pool, "run", now, (int64_t)round);
        if (number > 12)
            OK(lmcs_snapshot_remove(pool, "run", number - 12, false, NULL, &err));
        if (round % 10 == 0)
            OK(lmcs_compact(pool, NULL, &err));
        if (round % 500 == 0) {
            check_pool(pool);
            expect_snapshot(pool, "run", number, now);
        }
        uint64_t used = disk_bytes(place->pool);
        worst = used > worst ? used : worst;
        if (round == rounds / 2)
            middle = worst;
    }
    OK(lmcs_compact(pool, NULL, &err));
    end = disk_bytes(place->pool);
    verify_pool(pool);
    struct lmcs_pool_info info = pool_info(pool);
    /* What is on the disk is what is counted, and what libpmemobj needs itself. */
    if ((double)info.used_bytes > 1.15 * (double)info.live_bytes + (1 << 20) || worst > middle + middle / 10 ||
        end > info.used_bytes + (5 << 20))
        fail_msg("live %llu, used %llu, on disk %llu, at most %llu, half way %llu", (unsigned long long)info.live_bytes,
                 (unsigned long long)info.used_bytes, (unsigned long long)end, (unsigned long long)worst,
                 (unsigned long long)middle);
    close_pool(pool);
    state_free(now);
}

/* Changes some of a tensor's elements. */
static enum lmcs_status fill(struct lmcs_pool *pool, const char *shelf, struct rng *rng, struct state *state)
{
    enum lmcs_status status = LMCS_OK;
    for (int64_t step = 0; step < 1000 && status == LMCS_OK; step++) {
        state_step(state, rng, 0, 1);
        status = try_snapshot(pool, shelf, state, step, NULL, &err);
    }
    return status;
}

/*
 * Captures leave the compactor room for what they have; then a large content of an older one may find none. It stays as
 * it is, the small ones are compacted all the same, and when there is room it is, too.
 */
static void a_full_pool_is_compacted_as_far_as_it_goes(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_pool_info info;
    struct rng rng = {29};
    struct state *large = state_weights(&rng, 1, 220000), *little = state_weights(&rng, 1, 5000);
    OK(lmcs_pool_set_limit(pool, (uint64_t)8 << 20, &err));
    OK(lmcs_shelf_set_policy(pool, "large", "keep_raw=1", &err));
    OK(lmcs_shelf_set_policy(pool, "small", "keep_raw=1", &err));
    for (int64_t step = 0; step < 5; step++) {
        state_step(large, &rng, 0, 1);
        take_snapshot(pool, "large", large, step);
    }
    close_pool(pool); /* what is opened again knows of no large captures */
    pool = open_quiet(place->pool);
    assert_int_equal(fill(pool, "small", &rng, little), LMCS_FULL);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_pool_info(pool, &info, &err));
    assert_true(info.used_bytes <= (uint64_t)8 << 20);
    for (uint64_t n = 1; n <= 20; n++)
        OK(lmcs_snapshot_remove(pool, "small", n, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_pool_info(pool, &info, &err));
    assert_int_equal(info.compaction_backlog, 0);
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    state_free(large);
    state_free(little);
}

static bool comes_to_an_end(void *context, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    (void)done;
    (void)total;
    return ++*(unsigned *)context < 10000;
}

/* What rested on a snapshot that was removed is coded otherwise, and that takes room, which a full pool has not. */
static void no_room_to_replace_a_base(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {31};
    struct state *large = state_weights(&rng, 1, 220000), *little = state_weights(&rng, 1, 5000);
    unsigned calls = 0;
    struct lmcs_progress progress = {comes_to_an_end, &calls};
    OK(lmcs_pool_set_limit(pool, (uint64_t)8 << 20, &err));
    OK(lmcs_shelf_set_policy(pool, "large", "keep_raw=1", &err));
    OK(lmcs_shelf_set_policy(pool, "small", "keep_raw=1", &err));
    for (int64_t step = 0; step < 3; step++) {
        state_step(large, &rng, 0, 1);
        take_snapshot(pool, "large", large, step);
    }
    OK(lmcs_compact(pool, NULL, &err));
    close_pool(pool); /* what is opened again knows of no large captures */
    pool = open_quiet(place->pool);
    assert_int_equal(fill(pool, "small", &rng, little), LMCS_FULL);
    OK(lmcs_snapshot_remove(pool, "large", 3, false, NULL, &err));
    OK(lmcs_compact(pool, &progress, &err));
    for (uint64_t n = 1; n <= 50; n++)
        OK(lmcs_snapshot_remove(pool, "small", n, false, NULL, &err));
    struct lmcs_pool_info before = pool_info(pool);
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(pool_info(pool).live_bytes < before.live_bytes); /* now it was replaced */
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    state_free(large);
    state_free(little);
}

static void change_sparsely(struct rng *rng, struct held *held)
{
    for (size_t k = 0; k + 4 <= held->bytes; k += 4 * (1 + (size_t)rng_below(rng, 8))) {
        float value;
        memcpy(&value, held->data + k, sizeof value);
        value += 1e-4f;
        memcpy(held->data + k, &value, sizeof value);
    }
}

/* Snapshots go from the middle too, so bases outlive them and are replaced, and chains come to rest on chains. */
static void random_removals_keep_chains_short(void **state)
{
    enum { KEPT = 12 };
    struct place *place = *state;
    struct rng rng = {14};
    uint64_t rounds = scaled("LMCS_TEST_ROUNDS", UNDER_SANITIZER ? 200 : 800), numbers[KEPT + 1];
    struct state *states[KEPT + 1], *now = calloc(1, sizeof *now);
    struct lmcs_pool *pool = open_quiet(place->pool);
    size_t count = 0;
    for (unsigned i = 0; i < 16; i++) {
        char name[32];
        uint64_t floats = 16 + rng_below(&rng, i % 2 == 0 ? 16000 : 600);
        snprintf(name, sizeof name, "t%u", i);
        state_add(now, name, LMC_F32, 1, &floats);
    }
    state_step(now, &rng, 0, now->count);
    for (uint64_t round = 1; round <= rounds; round++) {
        for (size_t i = 0; i < now->count; i++)
            if (rng_below(&rng, 3) == 0)
                change_sparsely(&rng, &now->tensors[i]);
        numbers[count] = take_snapshot(pool, "run", now, (int64_t)round);
        states[count++] = state_copy(now);
        OK(lmcs_compact(pool, NULL, &err));
        if (count > KEPT) {
            size_t victim = round % 2 == 0 ? rng_below(&rng, KEPT - 1) : 0;
            OK(lmcs_snapshot_remove(pool, "run", numbers[victim], false, NULL, &err));
            state_free(states[victim]);
            count--;
            memmove(&numbers[victim], &numbers[victim + 1], (count - victim) * sizeof numbers[0]);
            memmove(&states[victim], &states[victim + 1], (count - victim) * sizeof states[0]);
        }
        if (round % 50 == 0) {
            check_pool(pool);
            for (size_t i = 0; i < count; i++)
                expect_snapshot(pool, "run", numbers[i], states[i]);
        }
    }
    verify_pool(pool);
    close_pool(pool);
    while (count-- > 0)
        state_free(states[count]);
    state_free(now);
}

/* ---- Contents that would rest on each other ---- */

/* t0 and t1, and a second name of each, which are exchanged when `swapped`. */
static void put_tied(struct lmcs_pool *pool, const struct state *now, bool swapped, int64_t step)
{
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    struct lmcs_tensor tensor;
    uint64_t number;
    lmcs_commit_options_init(&options);
    options.step = step;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, now);
    held_tensor(&now->tensors[0], &tensor);
    tensor.name = "front";
    OK(lmcs_capture_put_same(capture, &tensor, swapped ? "t1" : "t0", &err));
    tensor.name = "back";
    OK(lmcs_capture_put_same(capture, &tensor, swapped ? "t0" : "t1", &err));
    OK(lmcs_capture_commit(capture, &options, &number, &err));
}

static void names_exchange_their_contents(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 2, 60000), *first;
    memcpy(now->tensors[1].data, now->tensors[0].data, now->tensors[0].bytes);
    state_step(now, &rng, 1, 1); /* each is a good base for the other */
    first = state_copy(now);
    OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
    put_tied(pool, now, false, 0);
    for (int i = 1; i < 6; i++) {
        put_tied(pool, now, true, i);
        state_step(now, &rng, 0, 2);
    }
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(pool_info(pool).compaction_backlog, 0);
    struct lmcs_snapshot_storage storage = storage_of(pool, "run", 1);
    assert_true(storage.raw_contents == 0 && storage.keyframe_contents == 1 && storage.delta_contents == 1);
    assert_int_equal(content_of(pool, "run", 2, "front"), content_of(pool, "run", 1, "back"));
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, "run@1", &snapshot, &err));
    for (size_t t = 0; t < 2; t++) {
        unsigned char *bytes = malloc(first->tensors[t].bytes);
        OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, first->tensors[t].name, bytes, first->tensors[t].bytes, &err));
        assert_memory_equal(bytes, first->tensors[t].data, first->tensors[t].bytes);
        free(bytes);
    }
    lmcs_snapshot_close(snapshot);
    verify_pool(pool);
    close_pool(pool);
    state_free(first);
    state_free(now);
}

/* ---- Forged records ---- */

static struct lmcs_content record_of(struct lmcs_pool *pool, const char *shelf, uint64_t number)
{
    struct lmcs_content content;
    struct lmcs_txn txn;
    uint64_t id = content_of(pool, shelf, number, "t0");
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_content_get(&txn, id, &content, &err));
    lmcs_txn_end(&txn);
    return content;
}

/* What is wrong with one shelf is said, and the others are compacted. */
static void a_damaged_shelf_does_not_stop_the_others(void **state)
{
    struct place *place = *state;
    struct rng rng = {8};
    struct state *states[6];
    struct lmcs_txn txn;
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "bad", &rng, states, 6, 2, 30000);
    free_history(states, 6);
    make_history(pool, "good", &rng, states, 6, 2, 30000);
    struct lmcs_content content = record_of(pool, "bad", 1);
    OK(lmcs_txn_write(pool, &txn, &err));
    content.df.raw_bytes = UINT64_MAX / 2; /* no sound record */
    OK(lmcs_content_put(&txn, &content, &err));
    OK(lmcs_txn_commit(&txn, &err));
    FAILS(LMCS_DAMAGED, lmcs_compact(pool, NULL, &err));
    assert_non_null(strstr(err.message, "the record of content 1"));
    assert_int_equal(storage_of(pool, "good", 1).raw_contents, 1); /* the one that never changes */
    for (uint64_t n = 1; n <= 6; n++)
        expect_snapshot(pool, "good", n, states[n - 1]);
    close_pool(pool);
    free_history(states, 6);
}

/* Nor does one content that can't be switched keep those that were coded with it as they are. */
static void a_damaged_content_does_not_stop_its_batch(void **state)
{
    struct place *place = *state;
    struct rng rng = {9};
    struct state *states[8];
    struct lmcs_txn txn;
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, 8, 4, 30000);
    const uint64_t none = 0;
    struct lmcs_content content = record_of(pool, "run", 2);
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_tree_put(&txn, LMCS_TREE_SAFETY, &txn.root.trees[LMCS_TREE_SAFETY], (struct lmcs_key_df){content.id, 0},
                     &none, sizeof none, &err)); /* no sound record of parity */
    OK(lmcs_txn_commit(&txn, &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(pool_info(pool).compaction_backlog, 0);
    assert_int_equal(storage_of(pool, "run", 1).raw_contents, 1); /* the one that never changes */
    assert_int_equal(storage_of(pool, "run", 2).raw_contents, 2);
    assert_int_equal(storage_of(pool, "run", 3).raw_contents, 1);
    close_pool(pool);
    pool = open_quiet(place->pool);
    for (uint64_t n = 1; n <= 8; n++)
        expect_snapshot(pool, "run", n, states[n - 1]);
    close_pool(pool);
    free_history(states, 8);
}

/* Two that rest on each other and that nothing else needs. */
static void bases_in_a_circle(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct state *states[8];
    struct lmcs_txn txn;
    const uint64_t none = 0;
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, 8, 2, 30000);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_content x = record_of(pool, "run", 1), y = record_of(pool, "run", 2);
    OK(lmcs_txn_write(pool, &txn, &err));
    x.df.runs = y.df.runs = 0;
    x.df.base_count = y.df.base_count = 1;
    x.bases[0] = y.id;
    y.bases[0] = x.id;
    OK(lmcs_content_put(&txn, &x, &err));
    OK(lmcs_content_put(&txn, &y, &err));
    OK(lmcs_tree_put(&txn, LMCS_TREE_DEPENDENTS, &txn.root.trees[LMCS_TREE_DEPENDENTS], (struct lmcs_key_df){0, x.id},
                     &none, sizeof none, &err));
    OK(lmcs_txn_commit(&txn, &err));
    FAILS(LMCS_DAMAGED, lmcs_compact(pool, NULL, &err));
    assert_non_null(strstr(err.message, "chain that is too long"));
    close_pool(pool);
    free_history(states, 8);
}

/* Contents that only the one above needs, more of them than the stack has room for. */
static void bases_without_end(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct state *states[3];
    struct lmcs_txn txn;
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, 3, 2, 30000);
    struct lmcs_content top = record_of(pool, "run", 1), content = {.df = top.df};
    OK(lmcs_txn_write(pool, &txn, &err));
    struct lmcs_root_tree_df *dependents = &txn.root.trees[LMCS_TREE_DEPENDENTS];
    content.df.payload = LMCS_PAYLOAD_FRAME;
    content.df.raw_bytes = content.df.stored_bytes = content.df.part_count = content.df.runs = 0;
    content.df.base_uses = 1;
    for (uint64_t i = 0; i < 60000; i++) {
        content.df.base_count = i > 0;
        content.bases[0] = content.id;
        content.id = txn.root.next_content++;
        OK(lmcs_content_put(&txn, &content, &err));
        OK(lmcs_identity_count(&txn, content.df.identity, 1, &err));
        if (i > 0)
            OK(lmcs_tree_put(&txn, LMCS_TREE_DEPENDENTS, dependents, (struct lmcs_key_df){content.bases[0], content.id},
                             NULL, 0, &err));
    }
    top.df.payload = LMCS_PAYLOAD_FRAME;
    top.df.base_count = 1;
    top.bases[0] = content.id;
    OK(lmcs_content_put(&txn, &top, &err));
    OK(lmcs_tree_put(&txn, LMCS_TREE_DEPENDENTS, dependents, (struct lmcs_key_df){content.id, top.id}, NULL, 0, &err));
    OK(lmcs_txn_commit(&txn, &err));
    FAILS(LMCS_DAMAGED, lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    assert_non_null(strstr(err.message, "rests on more than"));
    struct lmcs_scrub_options options;
    const char *address = "run@1";
    lmcs_scrub_options_init(&options);
    options.addresses = &address;
    options.address_count = 1;
    struct lmcs_scrub_report report;
    assert_int_not_equal(lmcs_scrub(pool, &options, NULL, NULL, NULL, &report, &err), LMCS_NO_MEMORY);
    assert_true(report.contents < 1000);
    close_pool(pool);
    free_history(states, 3);
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
        ON_BOTH(space_is_given_back),
        ON_BOTH(a_full_pool_is_compacted_as_far_as_it_goes),
        ON_BOTH(no_room_to_replace_a_base),
        ON_BOTH(space_that_is_stuck_is_left),
        ON_BOTH(space_is_taken_while_it_is_given_back),
        ON_BOTH(space_is_given_back_after_a_crash),
        IN_MEMORY(names_exchange_their_contents),
        IN_MEMORY(a_damaged_shelf_does_not_stop_the_others),
        IN_MEMORY(a_damaged_content_does_not_stop_its_batch),
        IN_MEMORY(bases_in_a_circle),
        IN_MEMORY(bases_without_end),
        IN_MEMORY(long_pruned_run_does_not_grow),
        IN_MEMORY(random_removals_keep_chains_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
