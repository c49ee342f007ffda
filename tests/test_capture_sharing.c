/* SPDX-License-Identifier: BSD-3-Clause */
/* test_capture_sharing.c - shared contents and their space. */
/* ctest: timeout=600 */
#include "test_capture_support.h"

static void reserved_and_filled(void **state)
{
    struct place *place = *state;
    struct rng rng = {8};
    struct lmcs_pool *pool = open_quiet(place->pool);
    static const uint64_t sizes[] = {0, 1, 4000, 65536, 1 << 20, (3 << 20) + 7};
    struct state filled = {NULL, 0};
    for (int round = 0; round < 3; round++) {
        struct lmcs_capture *capture = begin(pool, "run");
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            char name[32];
            void *data;
            snprintf(name, sizeof name, "r%zu", i);
            if (round == 0)
                state_add(&filled, name, LMC_U8, 1, &sizes[i]);
            struct held *held = &filled.tensors[i];
            rng_fill(&rng, held->data, held->bytes);
            struct lmcs_tensor tensor;
            held_tensor(held, &tensor);
            OK(lmcs_capture_reserve(capture, &tensor, &data, &err));
            assert_non_null(data);
            memcpy(data, held->data, held->bytes);
        }
        uint64_t number = commit(capture);
        check_pool(pool);
        expect_snapshot(pool, "run", number, &filled);
    }
    struct lmcs_capture *capture = begin(pool, "run");
    struct lmcs_tensor tensor;
    void *data;
    held_tensor(&filled.tensors[4], &tensor);
    OK(lmcs_capture_reserve(capture, &tensor, &data, &err));
    memset(data, 1, filled.tensors[4].bytes);
    lmcs_capture_abort(capture);
    verify_pool(pool);
    close_pool(pool);
    for (size_t i = 0; i < filled.count; i++)
        free(filled.tensors[i].data);
    free(filled.tensors);
}

static void two_names_of_one_content(void **state)
{
    struct place *place = *state;
    struct rng rng = {9};
    struct lmcs_pool *pool = open_quiet(place->pool);
    uint64_t shape = 5000, other = 5001;
    float values[5000];
    struct lmcs_tensor tied = {.name = "head", .dtype = LMC_F32, .ndim = 1, .shape = &shape};
    for (int round = 0; round < 4; round++) {
        if (round != 2)
            rng_fill(&rng, values, sizeof values);
        struct lmcs_capture *capture = begin(pool, "run");
        put_one(capture, "embedding", LMC_F32, 1, &shape, NULL, values);
        OK(lmcs_capture_put_same(capture, &tied, "embedding", &err));
        uint64_t number = commit(capture);
        assert_int_equal(content_of(pool, "run", number, "embedding"), content_of(pool, "run", number, "head"));
        expect_bytes(pool, "head", values, sizeof values);
        check_pool(pool);
    }
    assert_int_equal(content_of(pool, "run", 2, "head"), content_of(pool, "run", 3, "head"));
    struct lmcs_capture *capture = begin(pool, "run");
    FAILS(LMCS_NOT_FOUND, lmcs_capture_put_same(capture, &tied, "embedding", &err));
    put_one(capture, "embedding", LMC_F32, 1, &shape, NULL, values);
    FAILS(LMCS_NOT_FOUND, lmcs_capture_put_same(capture, &tied, NULL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_capture_put_same(capture, &tied, "nothing", &err));
    tied.shape = &other;
    FAILS(LMCS_INVALID, lmcs_capture_put_same(capture, &tied, "embedding", &err));
    lmcs_capture_abort(capture);
    capture = begin(pool, "run");
    put_one(capture, "embedding", LMC_F32, 1, &shape, NULL, values);
    values[0] += 1;
    put_one(capture, "head", LMC_F32, 1, &shape, NULL, values);
    commit(capture);
    assert_int_not_equal(content_of(pool, "run", 5, "embedding"), content_of(pool, "run", 5, "head"));
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    for (uint64_t n = 1; n <= 4; n++) {
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        check_pool(pool);
    }
    verify_pool(pool);
    close_pool(pool);
}

static void unchanged_tensors_are_shared(void **state)
{
    struct place *place = *state;
    struct rng rng = {10};
    struct state *weights = state_weights(&rng, 20, 30000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    weights->tensors[7].data[weights->tensors[7].bytes - 1] ^= 1;
    struct lmcs_capture *capture = begin(pool, "run");
    put_state(capture, weights);
    uint64_t written, shared;
    lmcs_capture_stats(capture, &written, &shared);
    assert_int_equal(written, 30000 * 4);
    assert_int_equal(shared, 19 * 30000 * 4);
    commit(capture);
    for (size_t i = 0; i < 20; i++) {
        uint64_t a = content_of(pool, "run", 1, weights->tensors[i].name);
        uint64_t b = content_of(pool, "run", 2, weights->tensors[i].name);
        assert_true((a == b) == (i != 7));
    }
    expect_state(pool, "run", "latest", weights);
    check_pool(pool);
    close_pool(pool);
    state_free(weights);
}

static void names_that_go_meanwhile(void **state)
{
    struct place *place = *state;
    struct rng rng = {16};
    struct state *weights = state_weights(&rng, 2, 5000), *more = state_weights(&rng, 3, 6000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    take_snapshot(pool, "other", more, 1);
    struct lmcs_capture *capture = begin(pool, "run");
    put_state(capture, more);
    OK(lmcs_snapshot_remove(pool, "other", 1, false, NULL, &err));
    commit(capture);
    check_pool(pool);
    expect_state(pool, "run", "latest", more);
    close_pool(pool);
    state_free(weights);
    state_free(more);
}

static void random_histories_add_up(void **state)
{
    struct place *place = *state;
    struct rng rng = {11};
    struct lmcs_pool *pool = open_quiet(place->pool);
    enum { NAMES = 300, KEPT = 12 };
    struct state *pool_of_tensors = state_weights(&rng, NAMES, 50);
    struct state *kept[KEPT] = {NULL};
    uint64_t numbers[KEPT];
    for (int round = 0; round < 120; round++) {
        struct state *now = calloc(1, sizeof *now);
        state_step(pool_of_tensors, &rng, rng_below(&rng, NAMES), rng_below(&rng, 20));
        uint64_t keep = 1 + rng_below(&rng, 20);
        for (size_t i = 0; i < NAMES; i++) {
            const struct held *from = &pool_of_tensors->tensors[i];
            if (rng_below(&rng, keep) == 0 && round % 3 != 0)
                continue;
            struct held *held = state_add(now, from->name, from->dtype, from->ndim, from->shape);
            memcpy(held->data, from->data, from->bytes);
        }
        size_t slot = rng_below(&rng, KEPT);
        if (kept[slot] != NULL) {
            OK(lmcs_snapshot_remove(pool, "run", numbers[slot], false, NULL, &err));
            state_free(kept[slot]);
            check_pool(pool);
        }
        kept[slot] = now;
        numbers[slot] = take_snapshot(pool, "run", now, round);
        if (round % 10 == 3)
            OK(lmcs_compact(pool, NULL, &err));
        check_pool(pool);
        for (size_t i = 0; i < KEPT && round % 5 == 0; i++)
            if (kept[i] != NULL)
                expect_snapshot(pool, "run", numbers[i], kept[i]);
    }
    verify_pool(pool);
    for (size_t i = 0; i < KEPT; i++)
        if (kept[i] != NULL) {
            expect_snapshot(pool, "run", numbers[i], kept[i]);
            OK(lmcs_snapshot_remove(pool, "run", numbers[i], false, NULL, &err));
            state_free(kept[i]);
        }
    check_pool(pool);
    assert_int_equal(pool_info(pool).content_count, 0);
    close_pool(pool);
    state_free(pool_of_tensors);
}

/* Many small tensors: the cost follows the changed ones. */
static void many_tensors_cost_what_changed(void **state)
{
    struct place *place = *state;
    struct rng rng = {12};
    size_t count = scaled("LMCS_TEST_TENSORS", UNDER_SANITIZER ? 2000 : 20000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *many = calloc(1, sizeof *many);
    many->tensors = calloc(count, sizeof *many->tensors);
    many->count = count;
    for (size_t i = 0; i < count; i++) {
        struct held *held = &many->tensors[i];
        *held = (struct held){.dtype = LMC_F32, .ndim = 1, .shape = {4}, .bytes = 16, .data = malloc(17)};
        snprintf(held->name, sizeof held->name, "module.%zu.weight", i);
        rng_fill(&rng, held->data, held->bytes);
    }
    take_snapshot(pool, "run", many, 0);
    check_pool(pool);
    uint64_t before[3];
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 10; i++)
            rng_fill(&rng, many->tensors[rng_below(&rng, count)].data, 16);
        struct lmcs_pool_info info = pool_info(pool);
        before[0] = info.metadata_bytes + info.live_bytes;
        take_snapshot(pool, "run", many, round);
        info = pool_info(pool);
        if (round >= 2 && info.metadata_bytes + info.live_bytes > before[0] + (256 << 10))
            fail_msg("ten changed tensors cost %llu bytes",
                     (unsigned long long)(info.metadata_bytes + info.live_bytes - before[0]));
    }
    expect_state(pool, "run", "latest", many);
    check_pool(pool);
    for (int round = 0; round < 8; round++)
        take_snapshot(pool, "run", many, 100);
    struct lmcs_pool_info info = pool_info(pool);
    before[0] = info.used_bytes;
    before[1] = info.live_bytes;
    before[2] = disk_bytes(place->pool);
    for (int round = 0; round < 32; round++)
        take_snapshot(pool, "run", many, 101);
    info = pool_info(pool);
    assert_int_equal(info.live_bytes, before[1]);
    assert_true(info.used_bytes - before[0] <= 32 * 4096);
    assert_true(disk_bytes(place->pool) - before[2] <= 32 * 4096);
    for (uint64_t n = 1; n <= 12; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
    state_free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(reserved_and_filled),       ON_DISK(two_names_of_one_content),
        ON_BOTH(names_that_go_meanwhile),   ON_BOTH(unchanged_tensors_are_shared),
        IN_MEMORY(random_histories_add_up), ON_BOTH(many_tensors_cost_what_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
