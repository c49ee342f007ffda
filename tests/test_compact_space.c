/* SPDX-License-Identifier: BSD-3-Clause */
/* test_compact_space.c - file space given back, full pools, and long pruned runs. */
/* ctest: timeout=600 */
#include "test_compact_support.h"

static void space_is_given_back(void **state)
{
    struct place *place = *state;
    struct rng rng = {12};
    struct state *states[16];
    struct lmcs_pool *pool = open_quiet(place->pool);
    make_history(pool, "run", &rng, states, 16, 4, 1 << 18);
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

/* Interposes libc: slow and counted. */
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

/* Each page of many extents has a small live content, so its dead space can't be given back; each attempt must end. */
static void space_that_is_stuck_is_left(void **state)
{
    enum { PAIRS = 64, ROUNDS = 100 };
    struct place *place = *state;
    struct rng rng = {14};
    struct lmcs_pool *pool = open_limited(place->pool, (uint64_t)64 << 20);
    struct state *now = calloc(1, sizeof *now);
    static const uint64_t floats[2] = {250, 500};
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

/* Space being given back may be allocated at once, but only after the punch. */
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
    OK(lmcs_root_seek(cursor, &txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){0, 0}, &err));
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
    if ((double)info.used_bytes > 1.15 * (double)info.live_bytes + (1 << 20) || worst > middle + middle / 10 ||
        end > info.used_bytes + (5 << 20))
        fail_msg("live %llu, used %llu, on disk %llu, at most %llu, half way %llu", (unsigned long long)info.live_bytes,
                 (unsigned long long)info.used_bytes, (unsigned long long)end, (unsigned long long)worst,
                 (unsigned long long)middle);
    close_pool(pool);
    state_free(now);
}

static enum lmcs_status fill(struct lmcs_pool *pool, const char *shelf, struct rng *rng, struct state *state)
{
    enum lmcs_status status = LMCS_OK;
    for (int64_t step = 0; step < 1000 && status == LMCS_OK; step++) {
        state_step(state, rng, 0, 1);
        status = try_snapshot(pool, shelf, state, step, NULL, &err);
    }
    return status;
}

/* Captures leave the compactor room for their contents; a large older one may find none. It stays, small ones are
 * compacted, and it follows when there is room. */
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
    close_pool(pool);
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
    close_pool(pool);
    pool = open_quiet(place->pool);
    assert_int_equal(fill(pool, "small", &rng, little), LMCS_FULL);
    OK(lmcs_snapshot_remove(pool, "large", 3, false, NULL, &err));
    OK(lmcs_compact(pool, &progress, &err));
    for (uint64_t n = 1; n <= 50; n++)
        OK(lmcs_snapshot_remove(pool, "small", n, false, NULL, &err));
    struct lmcs_pool_info before = pool_info(pool);
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(pool_info(pool).live_bytes < before.live_bytes);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(space_is_given_back),
        ON_BOTH(a_full_pool_is_compacted_as_far_as_it_goes),
        ON_BOTH(no_room_to_replace_a_base),
        ON_BOTH(space_that_is_stuck_is_left),
        ON_BOTH(space_is_taken_while_it_is_given_back),
        ON_BOTH(space_is_given_back_after_a_crash),
        IN_MEMORY(long_pruned_run_does_not_grow),
        IN_MEMORY(random_removals_keep_chains_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
