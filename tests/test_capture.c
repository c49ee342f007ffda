/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_capture.c - the writing of snapshots: whatever tensors there are come back bit for bit, what did not change is
 * shared, what is not committed leaves nothing, and what is wrong is refused.
 */
/* ctest: timeout=600 */
#include "support.h"

#include <pthread.h>
#include <unistd.h>

static struct lmcs_capture *begin(struct lmcs_pool *pool, const char *shelf)
{
    struct lmcs_capture *capture = NULL;
    OK(lmcs_capture_begin(pool, shelf, &capture, &err));
    return capture;
}

static uint64_t commit(struct lmcs_capture *capture)
{
    uint64_t number = 0;
    OK(lmcs_capture_commit(capture, NULL, &number, &err));
    return number;
}

static void put_one(struct lmcs_capture *capture, const char *name, uint32_t dtype, uint32_t ndim,
                    const uint64_t *shape, const int64_t *strides, const void *data)
{
    struct lmcs_tensor tensor = {.name = name, .dtype = dtype, .ndim = ndim, .shape = shape, .strides = strides};
    OK(lmcs_capture_put(capture, &tensor, &data, 1, &err));
}

static void expect_bytes(struct lmcs_pool *pool, const char *name, const void *data, size_t bytes)
{
    struct lmcs_snapshot *snapshot;
    unsigned char *got = malloc(bytes + 1);
    OK(lmcs_snapshot_find(pool, "run", NULL, &snapshot, &err));
    OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, name, got, bytes, &err));
    if (bytes > 0)
        assert_memory_equal(got, data, bytes);
    lmcs_snapshot_close(snapshot);
    free(got);
}

/* ---- Shapes and types ---- */

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
    uint64_t big[2] = {3, 700001}; /* several blocks, the last one short */
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

/* Random strides over a random buffer, against an element by element reference. */
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
        /* The same bytes laid out plainly are the same content, and the other way round. */
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
    /* It is another tensor than the whole of that name. */
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
    setenv("LMCS_TEST_PART_BYTES", "2097152", 1);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 2, (9u << 20) / 4 + 12345); /* five parts */
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
    /* More parts than a payload may have. */
    struct state *large = state_weights(&rng, 1, (34u << 20) / 4);
    uint64_t number;
    FAILS(LMCS_UNSUPPORTED, try_snapshot(pool, "large", large, 0, &number, &err));
    check_pool(pool);
    close_pool(pool);
    unsetenv("LMCS_TEST_PART_BYTES");
    for (int i = 0; i < 6; i++)
        state_free(states[i]);
    state_free(now);
    state_free(large);
    free(bytes);
}

/* ---- What is refused ---- */

static void refuse(struct lmcs_pool *pool, struct lmcs_tensor tensor)
{
    float value[4] = {0, 0, 0, 0};
    const void *data = value;
    struct lmcs_capture *capture = begin(pool, "bad");
    FAILS(LMCS_INVALID, lmcs_capture_put(capture, &tensor, &data, 1, &err));
    FAILS(LMCS_INVALID, lmcs_capture_commit(capture, NULL, NULL, &err)); /* which ends it */
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
    /* Just long enough is fine, also with characters of several bytes. */
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
    /* An attachment has names of its own. */
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
    FAILS(LMCS_INVALID, lmcs_capture_begin(pool, "run", &second, &err)); /* it would wait for itself */
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

/* ---- Reserve and fill, one content under two names ---- */

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
    FAILS(LMCS_NOT_FOUND, lmcs_capture_put_same(capture, &tied, "embedding", &err)); /* not yet */
    put_one(capture, "embedding", LMC_F32, 1, &shape, NULL, values);
    FAILS(LMCS_NOT_FOUND, lmcs_capture_put_same(capture, &tied, NULL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_capture_put_same(capture, &tied, "nothing", &err));
    tied.shape = &other;
    FAILS(LMCS_INVALID, lmcs_capture_put_same(capture, &tied, "embedding", &err));
    lmcs_capture_abort(capture);
    /* Untied again: two contents. */
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

/* ---- Sharing and space ---- */

static void unchanged_tensors_are_shared(void **state)
{
    struct place *place = *state;
    struct rng rng = {10};
    struct state *weights = state_weights(&rng, 20, 30000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    weights->tensors[7].data[weights->tensors[7].bytes - 1] ^= 1; /* one bit, at the very end */
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

/* What another shelf knew when a tensor was put, and has forgotten by the commit. */
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

/* Names come and go, bytes change and change back, snapshots go: counts stay right. */
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

/* Snapshots of very many small tensors: what ten changed ones cost, and none. */
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

/* ---- Asynchronous ---- */

static struct lmcs_commit_options asynchronously(int64_t step)
{
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.asynchronous = true;
    options.step = step;
    return options;
}

static void asynchronous_captures(void **state)
{
    struct place *place = *state;
    struct rng rng = {13};
    struct state *weights = state_weights(&rng, 10, 50000), *last = NULL;
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_OR_CREATE, 0);
    for (int i = 1; i <= 20; i++) {
        struct lmcs_commit_options options = asynchronously(i);
        struct lmcs_capture *capture = begin(pool, "run"); /* waits for the one before */
        uint64_t number = 0;
        put_state(capture, weights);
        state_free(last);
        last = state_copy(weights);
        OK(lmcs_capture_commit(capture, &options, &number, &err));
        assert_int_equal(number, i);
        state_step(weights, &rng, 0, 10); /* the trainer goes on at once */
        if (i % 3 == 0) {
            OK(lmcs_capture_wait(capture, &err));
            expect_state(pool, "run", "latest", last);
        } else if (i % 3 == 1) {
            while (!lmcs_capture_done(capture))
                usleep(100);
            OK(lmcs_capture_wait(capture, &err));
        } else {
            lmcs_capture_detach(capture);
        }
    }
    close_pool(pool); /* waits for the last one */
    pool = open_quiet(place->pool);
    assert_int_equal(shelf_info(pool, "run").latest, 20);
    expect_state(pool, "run", "latest", last);
    verify_pool(pool);
    close_pool(pool);
    state_free(last);
    state_free(weights);
}

/* A failure is told once: by the wait, by the next capture, or by close. */
static void asynchronous_failure_is_told(void **state)
{
    struct place *place = *state;
    struct rng rng = {14};
    struct state *weights = state_weights(&rng, 1, 1000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    unsigned char group[16] = "somebody's group";
    struct lmcs_commit_options options = asynchronously(1);
    memcpy(options.group, group, sizeof group);
    options.prepare = true;
    struct lmcs_capture *capture = begin(pool, "other");
    put_state(capture, weights);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    OK(lmcs_capture_wait(capture, &err));
    for (int round = 0; round < 3; round++) { /* the same group again fails at its commit */
        capture = begin(pool, "run");
        put_state(capture, weights);
        OK(lmcs_capture_commit(capture, &options, NULL, &err));
        if (round == 0) {
            FAILS(LMCS_EXISTS, lmcs_capture_wait(capture, &err));
        } else {
            lmcs_capture_detach(capture);
        }
        if (round == 1)
            FAILS(LMCS_EXISTS, lmcs_capture_begin(pool, "run", &capture, &err));
        if (round == 2)
            FAILS(LMCS_EXISTS, lmcs_pool_close(pool, &err));
    }
    pool = open_quiet(place->pool);
    assert_int_equal(pool_info(pool).snapshot_count, 0);
    OK(lmcs_group_resolve(pool, group, true, &err));
    expect_state(pool, "other", "latest", weights);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

/* Fails at its commit: the pool has a prepared snapshot of that group. */
static struct lmcs_capture *failing(struct lmcs_pool *pool, const unsigned char group[16])
{
    struct lmcs_commit_options options = asynchronously(1);
    struct lmcs_capture *capture = begin(pool, "run");
    memcpy(options.group, group, sizeof options.group);
    options.prepare = true;
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    while (!lmcs_capture_done(capture))
        usleep(100);
    return capture;
}

/* Whose failure a wait tells of is whose nobody has to be told of any more: another's is. */
static void each_failure_is_told(void **state)
{
    struct place *place = *state;
    static const unsigned char group[16] = {1};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_commit_options options;
    struct lmcs_capture *first, *second, *refused;
    lmcs_commit_options_init(&options);
    options.prepare = true;
    memcpy(options.group, group, sizeof group);
    OK(lmcs_capture_commit(begin(pool, "other"), &options, NULL, &err));
    for (int round = 0; round < 3; round++) {
        first = failing(pool, group);
        FAILS(LMCS_EXISTS, lmcs_capture_begin(pool, "run", &refused, &err)); /* told of the first */
        second = failing(pool, group);
        FAILS(LMCS_EXISTS, lmcs_capture_wait(first, &err)); /* and again, by its own wait */
        if (round == 0) {
            FAILS(LMCS_EXISTS, lmcs_capture_wait(second, &err));
        } else {
            lmcs_capture_detach(second);
        }
        if (round == 1)
            FAILS(LMCS_EXISTS, lmcs_capture_begin(pool, "run", &refused, &err));
    }
    FAILS(LMCS_EXISTS, lmcs_pool_close(pool, &err));
}

static int ask_whether_it_is_done(void *argument)
{
    struct lmcs_capture *capture = argument;
    EXPECT(lmcs_capture_done(capture));
    FAILS(LMCS_INVALID, lmcs_capture_wait(capture, &err));
    return 0;
}

/* In a forked child nothing waits for locks that its parent's threads had. */
static void a_capture_of_the_parents(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_commit_options options = asynchronously(1);
    struct lmcs_capture *capture = begin(pool, "run");
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    pthread_mutex_lock(&pool->captures);
    int status = run_child(ask_whether_it_is_done, capture, 20);
    pthread_mutex_unlock(&pool->captures);
    assert_int_equal(status, 0);
    OK(lmcs_capture_wait(capture, &err));
    close_pool(pool);
}

/* ---- Groups ---- */

static void prepared_snapshots(void **state)
{
    struct place *place = *state;
    struct rng rng = {15};
    struct state *weights = state_weights(&rng, 3, 20000), *first = state_copy(weights);
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    unsigned char group[16] = {1, 2, 3}, unknown[16] = {9};
    uint64_t number;
    lmcs_commit_options_init(&options);
    options.prepare = true;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    capture = begin(pool, "run");
    put_state(capture, weights);
    FAILS(LMCS_INVALID, lmcs_capture_commit(capture, &options, &number, &err)); /* without a group */
    memcpy(options.group, group, sizeof group);
    for (int round = 0; round < 4; round++) {
        bool wanted = round % 2 == 0;
        state_step(weights, &rng, 0, 3);
        capture = begin(pool, "run");
        put_state(capture, weights);
        OK(lmcs_capture_commit(capture, &options, &number, &err));
        check_pool(pool);
        assert_int_equal(shelf_info(pool, "run").snapshot_count, 1 + (round + 1) / 2);
        struct lmcs_snapshot *snapshot;
        char address[32];
        snprintf(address, sizeof address, "run@%llu", (unsigned long long)number);
        FAILS(LMCS_NOT_FOUND, lmcs_snapshot_open(pool, address, &snapshot, &err));
        FAILS(LMCS_IN_USE, lmcs_capture_begin(pool, "run", &capture, &err));
        FAILS(LMCS_IN_USE, lmcs_snapshot_remove(pool, "run", number, false, NULL, &err));
        if (round > 1) {
            close_pool(pool);
            pool = open_quiet(place->pool);
        }
        OK(lmcs_compact(pool, NULL, &err));
        FAILS(LMCS_NOT_FOUND, lmcs_group_resolve(pool, unknown, true, &err));
        OK(lmcs_group_resolve(pool, group, wanted, &err));
        FAILS(LMCS_NOT_FOUND, lmcs_group_resolve(pool, group, wanted, &err));
        check_pool(pool);
        if (wanted)
            expect_snapshot(pool, "run", number, weights);
        assert_int_equal(shelf_info(pool, "run").snapshot_count, 2 + round / 2);
    }
    expect_snapshot(pool, "run", 1, first);
    state_step(weights, &rng, 0, 3);
    assert_int_equal(take_snapshot(pool, "run", weights, 9), 6); /* numbers are never used again */
    verify_pool(pool);
    close_pool(pool);
    state_free(first);
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
        ON_BOTH(reserved_and_filled),
        ON_DISK(two_names_of_one_content),
        ON_BOTH(names_that_go_meanwhile),
        ON_BOTH(unchanged_tensors_are_shared),
        IN_MEMORY(random_histories_add_up),
        ON_BOTH(many_tensors_cost_what_changed),
        ON_BOTH(asynchronous_captures),
        ON_DISK(asynchronous_failure_is_told),
        IN_MEMORY(each_failure_is_told),
        IN_MEMORY(a_capture_of_the_parents),
        ON_BOTH(prepared_snapshots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
