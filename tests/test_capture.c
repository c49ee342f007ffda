/* SPDX-License-Identifier: BSD-3-Clause */
/* test_capture.c - capture of all shapes and dtypes, bit for bit; wrong calls are refused. */
/* ctest: timeout=600 */
#include "test_capture_support.h"

static void every_dtype_and_shape(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *mixed = state_mixed(&rng, 220, 5000);
    char name[64];
    static const uint64_t odd[][4] = {{1, 1, 1, 1}, {0, 5, 0, 1}, {7, 1, 3, 2}, {1, 0, 0, 0}};
    for (uint32_t dtype = 1; dtype < LMC_DTYPE_END; dtype++) {
        snprintf(name, sizeof name, "zero-dimensional.%s", lmc_dtype_name(dtype));
        struct held *held = state_add(mixed, name, dtype, 0, NULL);
        rng_fill(&rng, held->data, held->bytes);
        snprintf(name, sizeof name, "empty.%s", lmc_dtype_name(dtype));
        state_add(mixed, name, dtype, 1, odd[3] + 1);
        snprintf(name, sizeof name, "odd.%s", lmc_dtype_name(dtype));
        held = state_add(mixed, name, dtype, 4, odd[dtype % 3]);
        rng_fill(&rng, held->data, held->bytes);
    }
    uint64_t big[2] = {3, 700001};
    struct held *held = state_add(mixed, "big", LMC_BF16, 2, big);
    rng_fill(&rng, held->data, held->bytes);
    uint64_t number = take_snapshot(pool, "run", mixed, 1);
    check_pool(pool);
    expect_snapshot(pool, "run", number, mixed);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    expect_snapshot(pool, "run", number, mixed);
    verify_pool(pool);
    close_pool(pool);
    state_free(mixed);
}

static void strided_data_is_gathered(void **state)
{
    struct place *place = *state;
    struct rng rng = {2};
    struct lmcs_pool *pool = open_quiet(place->pool);
    static const uint32_t dtypes[] = {LMC_U8, LMC_BF16, LMC_F32, LMC_F64, LMC_C128};
    size_t buffer_bytes = 4 << 20;
    unsigned char *buffer = malloc(buffer_bytes);
    rng_fill(&rng, buffer, buffer_bytes);
    for (int round = 0; round < 60; round++) {
        uint32_t dtype = dtypes[round % 5], ndim = 1 + (uint32_t)rng_below(&rng, 4);
        size_t size = lmc_dtype_size(dtype), elements = 1;
        uint64_t shape[4];
        int64_t strides[4], low = 0, high = 0;
        for (uint32_t d = 0; d < ndim; d++) {
            shape[d] = 1 + rng_below(&rng, round % 7 == 0 ? 40 : 9);
            elements *= shape[d];
            int64_t stride = (int64_t)rng_below(&rng, 2000) - 1000;
            strides[d] = rng_below(&rng, 4) == 0 ? 0 : round % 2 == 0 ? stride : stride / (int64_t)size * (int64_t)size;
            int64_t reach = (int64_t)(shape[d] - 1) * strides[d];
            low += reach < 0 ? reach : 0;
            high += reach > 0 ? reach : 0;
        }
        assert_true(high - low + (int64_t)size < (int64_t)buffer_bytes);
        const unsigned char *data = buffer - low;
        unsigned char *expected = malloc(elements * size);
        for (size_t e = 0; e < elements; e++) {
            const unsigned char *from = data;
            size_t rest = e;
            for (uint32_t d = ndim; d-- > 0; rest /= shape[d])
                from += (int64_t)(rest % shape[d]) * strides[d];
            memcpy(expected + e * size, from, size);
        }
        struct lmcs_capture *capture = begin(pool, "run");
        put_one(capture, "t", dtype, ndim, shape, strides, data);
        commit(capture);
        expect_bytes(pool, "t", expected, elements * size);
        /* Contiguous and strided forms of the same bytes share a content. */
        uint64_t number = shelf_info(pool, "run").latest;
        capture = begin(pool, "run");
        put_one(capture, "t", dtype, ndim, shape, NULL, expected);
        commit(capture);
        assert_int_equal(content_of(pool, "run", number, "t"), content_of(pool, "run", number + 1, "t"));
        free(expected);
    }
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    free(buffer);
}

static void large_transposed_tensor(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    uint64_t shape[2] = {1500, 1100};
    int64_t strides[2] = {4, 1500 * 4};
    size_t bytes = shape[0] * shape[1] * 4;
    uint32_t *data = malloc(bytes), *expected = malloc(bytes);
    rng_fill(&rng, data, bytes);
    for (size_t i = 0; i < shape[0]; i++)
        for (size_t k = 0; k < shape[1]; k++)
            expected[i * shape[1] + k] = data[k * shape[0] + i];
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *capture = begin(pool, "run");
    put_one(capture, "t", LMC_F32, 2, shape, strides, data);
    commit(capture);
    expect_bytes(pool, "t", expected, bytes);
    verify_pool(pool);
    close_pool(pool);
    free(data);
    free(expected);
}

struct part_seen {
    int count;
};

static bool part_is_right(void *context, const struct lmcs_entry *entry)
{
    struct part_seen *seen = context;
    const struct lmcs_tensor *t = &entry->tensor;
    bool right = t->ndim == 2 && t->global_shape != NULL && t->offsets != NULL && t->global_shape[0] == 8 &&
                 t->global_shape[1] == 6 && t->offsets[0] == 4 && t->offsets[1] == 0 && t->shape[0] == 4 &&
                 t->shape[1] == 6;
    seen->count += right;
    return true;
}

static void part_of_a_larger_tensor(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    uint64_t shape[2] = {4, 6}, global[2] = {8, 6}, offsets[2] = {4, 0}, outside[2] = {5, 0};
    float values[24];
    const void *data = values;
    rng_fill(&rng, values, sizeof values);
    struct lmcs_tensor part = {
        .name = "w", .dtype = LMC_F32, .ndim = 2, .shape = shape, .global_shape = global, .offsets = offsets};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *capture = begin(pool, "run");
    OK(lmcs_capture_put(capture, &part, &data, 1, &err));
    commit(capture);
    close_pool(pool);
    pool = open_quiet(place->pool);
    struct lmcs_snapshot *snapshot;
    struct part_seen seen = {0};
    OK(lmcs_snapshot_open(pool, "run@1", &snapshot, &err));
    OK(lmcs_snapshot_entries(snapshot, part_is_right, &seen, &err));
    assert_int_equal(seen.count, 1);
    struct lmcs_view *view;
    OK(lmcs_view_open(snapshot, NULL, NULL, 0, 0, &view, &err));
    assert_true(part_is_right(&seen, lmcs_view_entry(view, 0)));
    assert_int_equal(seen.count, 2);
    lmcs_view_close(view);
    lmcs_snapshot_close(snapshot);
    expect_bytes(pool, "w", values, sizeof values);
    capture = begin(pool, "run");
    put_one(capture, "w", LMC_F32, 2, shape, NULL, values);
    commit(capture);
    assert_int_not_equal(content_of(pool, "run", 1, "w"), content_of(pool, "run", 2, "w"));
    capture = begin(pool, "run");
    part.offsets = outside;
    FAILS(LMCS_INVALID, lmcs_capture_put(capture, &part, &data, 1, &err));
    lmcs_capture_abort(capture);
    check_pool(pool);
    close_pool(pool);
}

static void tensors_above_the_part_limit(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct state *states[6];
    struct lmcs_pool *pool = open_quiet(place->pool);
    pool->part_bytes = 2u << 20;
    struct state *now = state_weights(&rng, 2, (9u << 20) / 4 + 12345);
    for (int i = 0; i < 6; i++) {
        take_snapshot(pool, "run", now, i);
        states[i] = state_copy(now);
        state_step(now, &rng, 0, 1);
    }
    check_pool(pool);
    uint64_t shape = (7u << 20) + 99;
    struct lmcs_tensor tensor = {.name = "filled", .dtype = LMC_U8, .ndim = 1, .shape = &shape};
    struct lmcs_capture *capture = begin(pool, "filled");
    void *data;
    OK(lmcs_capture_reserve(capture, &tensor, &data, &err));
    unsigned char *bytes = malloc(shape);
    rng_fill(&rng, bytes, shape);
    memcpy(data, bytes, shape);
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t n = 1; n <= 6; n++)
            expect_snapshot(pool, "run", n, states[n - 1]);
        struct lmcs_snapshot *snapshot;
        struct lmcs_view *view;
        OK(lmcs_snapshot_find(pool, "filled", NULL, &snapshot, &err));
        OK(lmcs_view_open(snapshot, NULL, NULL, 0, LMCS_VIEW_VERIFY, &view, &err));
        assert_memory_equal(lmcs_view_data(view, 0), bytes, shape);
        lmcs_view_close(view);
        lmcs_snapshot_close(snapshot);
        OK(lmcs_compact(pool, NULL, &err));
        verify_pool(pool);
    }
    for (uint64_t n = 1; n <= 5; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    struct state *large = state_weights(&rng, 1, (34u << 20) / 4);
    uint64_t number;
    FAILS(LMCS_UNSUPPORTED, try_snapshot(pool, "large", large, 0, &number, &err));
    check_pool(pool);
    close_pool(pool);
    for (int i = 0; i < 6; i++)
        state_free(states[i]);
    state_free(now);
    state_free(large);
    free(bytes);
}

static void refuse(struct lmcs_pool *pool, struct lmcs_tensor tensor)
{
    float value[4] = {0, 0, 0, 0};
    const void *data = value;
    struct lmcs_capture *capture = begin(pool, "bad");
    FAILS(LMCS_INVALID, lmcs_capture_put(capture, &tensor, &data, 1, &err));
    FAILS(LMCS_INVALID, lmcs_capture_commit(capture, NULL, NULL, &err));
}

static void wrong_tensors(void **state)
{
    struct place *place = *state;
    char name[LMCS_MAX_NAME + 2];
    uint64_t shape[33] = {1, 1}, huge[2] = {UINT64_MAX / 2, 8};
    struct lmcs_pool *pool = open_quiet(place->pool);
    memset(name, 'x', sizeof name);
    name[LMCS_MAX_NAME + 1] = '\0';
    refuse(pool, (struct lmcs_tensor){.name = name, .dtype = LMC_F32});
    refuse(pool, (struct lmcs_tensor){.name = "", .dtype = LMC_F32});
    refuse(pool, (struct lmcs_tensor){.name = NULL, .dtype = LMC_F32});
    refuse(pool, (struct lmcs_tensor){.name = "a\nb", .dtype = LMC_F32});
    refuse(pool, (struct lmcs_tensor){.name = "\xc3", .dtype = LMC_F32});
    refuse(pool, (struct lmcs_tensor){.name = "\xed\xa0\x80", .dtype = LMC_F32});
    refuse(pool, (struct lmcs_tensor){.name = "a", .dtype = 0});
    refuse(pool, (struct lmcs_tensor){.name = "a", .dtype = LMC_DTYPE_END});
    refuse(pool, (struct lmcs_tensor){.name = "a", .dtype = LMC_F32, .kind = 7});
    refuse(pool, (struct lmcs_tensor){.name = "a", .dtype = LMC_F32, .ndim = 33, .shape = shape});
    refuse(pool, (struct lmcs_tensor){.name = "a", .dtype = LMC_F32, .ndim = 1, .shape = NULL});
    refuse(pool, (struct lmcs_tensor){.name = "a", .dtype = LMC_F32, .ndim = 2, .shape = huge});
    refuse(pool, (struct lmcs_tensor){.name = "a", .dtype = LMC_F32, .ndim = 1, .shape = shape, .offsets = shape});
    struct lmcs_capture *capture;
    FAILS(LMCS_INVALID, lmcs_capture_begin(pool, "a@b", &capture, &err));
    FAILS(LMCS_INVALID, lmcs_capture_begin(pool, "", &capture, &err));
    FAILS(LMCS_INVALID, lmcs_capture_begin(pool, NULL, &capture, &err));
    assert_int_equal(pool_info(pool).shelf_count, 0);
    check_pool(pool);
    name[LMCS_MAX_NAME] = '\0';
    capture = begin(pool, name);
    uint64_t one = 1;
    put_one(capture, name, LMC_U8, 1, &one, NULL, "x");
    put_one(capture, "\xe5\xb1\x82.\xf0\x9f\x8c\x8a", LMC_U8, 1, &one, NULL, "y");
    commit(capture);
    assert_int_equal(shelf_info(pool, name).snapshot_count, 1);
    check_pool(pool);
    close_pool(pool);
}

static void duplicates_are_refused(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_tensor tensors[2] = {{.name = "a", .dtype = LMC_U8}, {.name = "a", .dtype = LMC_F32}};
    const void *data[2] = {"x", "yyyy"};
    struct lmcs_capture *capture = begin(pool, "run");
    FAILS(LMCS_INVALID, lmcs_capture_put(capture, tensors, data, 2, &err));
    assert_non_null(strstr(err.message, "\"a\""));
    lmcs_capture_abort(capture);
    capture = begin(pool, "run");
    OK(lmcs_capture_put(capture, tensors, data, 1, &err));
    FAILS(LMCS_INVALID, lmcs_capture_put(capture, tensors + 1, data + 1, 1, &err));
    lmcs_capture_abort(capture);
    uint64_t one = 1;
    tensors[1] = (struct lmcs_tensor){.name = "a", .kind = LMCS_ATTACHMENT, .dtype = LMC_U8, .ndim = 1, .shape = &one};
    capture = begin(pool, "run");
    OK(lmcs_capture_put(capture, tensors, data, 2, &err));
    commit(capture);
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, "run", &snapshot, &err));
    assert_int_equal(lmcs_snapshot_info(snapshot)->tensor_count, 1);
    char byte;
    OK(lmcs_snapshot_read(snapshot, LMCS_ATTACHMENT, "a", &byte, 1, &err));
    assert_int_equal(byte, 'y');
    OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, "a", &byte, 1, &err));
    assert_int_equal(byte, 'x');
    FAILS(LMCS_INVALID, lmcs_snapshot_read(snapshot, LMCS_TENSOR, "a", &byte, 0, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_read(snapshot, LMCS_TENSOR, "b", &byte, 1, &err));
    lmcs_snapshot_close(snapshot);
    check_pool(pool);
    close_pool(pool);
}

static void aborted_capture_leaves_nothing(void **state)
{
    struct place *place = *state;
    struct rng rng = {6};
    struct state *weights = state_weights(&rng, 5, 100000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    state_step(weights, &rng, 0, 5);
    uint64_t live = pool_info(pool).live_bytes, disk = 0;
    for (int i = 0; i < 20; i++) {
        struct lmcs_capture *capture = begin(pool, i % 2 == 0 ? "run" : "other");
        put_state(capture, weights);
        lmcs_capture_abort(capture);
        check_pool(pool);
        if (i == 2)
            disk = disk_bytes(place->pool);
    }
    assert_true(disk_bytes(place->pool) <= disk);
    struct lmcs_pool_info info = pool_info(pool);
    assert_int_equal(info.live_bytes, live);
    assert_int_equal(info.snapshot_count, 1);
    assert_int_equal(info.shelf_count, 1);
    assert_int_equal(take_snapshot(pool, "run", weights, 2), 2);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

static void one_capture_of_a_shelf_in_a_thread(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *first = begin(pool, "run"), *second;
    FAILS(LMCS_INVALID, lmcs_capture_begin(pool, "run", &second, &err));
    second = begin(pool, "other");
    uint64_t one = 1;
    put_one(first, "a", LMC_U8, 1, &one, NULL, "1");
    put_one(second, "a", LMC_U8, 1, &one, NULL, "2");
    assert_int_equal(commit(second), 1);
    assert_int_equal(commit(first), 1);
    check_pool(pool);
    close_pool(pool);
}

static void empty_snapshot(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct state none = {NULL, 0};
    struct state *weights = state_weights(&rng, 3, 1000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", &none, 1);
    take_snapshot(pool, "run", weights, 2);
    take_snapshot(pool, "run", &none, 3);
    take_snapshot(pool, "run", weights, 4);
    check_pool(pool);
    expect_snapshot(pool, "run", 1, &none);
    expect_snapshot(pool, "run", 2, weights);
    expect_snapshot(pool, "run", 3, &none);
    expect_snapshot(pool, "run", 4, weights);
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    OK(lmcs_snapshot_open(pool, "run@1", &snapshot, &err));
    OK(lmcs_view_open(snapshot, NULL, NULL, 0, 0, &view, &err));
    assert_int_equal(lmcs_view_count(view), 0);
    lmcs_view_close(view);
    lmcs_snapshot_close(snapshot);
    for (uint64_t n = 1; n <= 4; n++) {
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        check_pool(pool);
    }
    assert_int_equal(pool_info(pool).content_count, 0);
    close_pool(pool);
    state_free(weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(every_dtype_and_shape),
        ON_BOTH(strided_data_is_gathered),
        ON_DISK(large_transposed_tensor),
        ON_DISK(part_of_a_larger_tensor),
        ON_BOTH(tensors_above_the_part_limit),
        ON_DISK(wrong_tensors),
        ON_DISK(duplicates_are_refused),
        ON_BOTH(aborted_capture_leaves_nothing),
        ON_DISK(one_capture_of_a_shelf_in_a_thread),
        ON_DISK(empty_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
