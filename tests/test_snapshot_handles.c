/* SPDX-License-Identifier: BSD-3-Clause */
/* test_snapshot_handles.c - handles, digests, storage, and the space that removal frees. */
/* ctest: timeout=600 */
#include "test_snapshot_support.h"

static bool see_entry(void *context, const struct lmcs_entry *entry)
{
    (void)entry;
    ++*(size_t *)context;
    return false;
}

static void handles_of_removed_snapshots(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_snapshot *snapshot;
    struct lmcs_snapshot_storage storage = {.stored_bytes = 42};
    struct lmc_hash digest;
    uint64_t value = 0;
    size_t count = 0;
    take_step(pool, "run", 1);
    take_step(pool, "run", 2);
    OK(lmcs_snapshot_open(pool, "run@1", &snapshot, &err));
    OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, "value", &value, sizeof value, &err));
    assert_int_equal(value, 1);
    FAILS(LMCS_INVALID, lmcs_snapshot_read(snapshot, LMCS_TENSOR, "value", &value, 7, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_read(snapshot, LMCS_TENSOR, "Value", &value, sizeof value, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_read(snapshot, LMCS_ATTACHMENT, "value", &value, sizeof value, &err));
    OK(lmcs_snapshot_entries(snapshot, see_entry, &count, &err));
    assert_int_equal(count, 1);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    value = 99;
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_read(snapshot, LMCS_TENSOR, "value", &value, sizeof value, &err));
    assert_int_equal(value, 99);
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_entries(snapshot, see_entry, &count, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_storage(snapshot, &storage, &err));
    assert_int_equal(storage.stored_bytes, 42);
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_digest(snapshot, &digest, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_tags(snapshot, count_tag, &count, &err));
    assert_int_equal(count, 1);
    assert_int_equal(lmcs_snapshot_info(snapshot)->number, 1);
    assert_int_equal(lmcs_snapshot_info(snapshot)->step, 1);
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
}

static struct lmc_hash digest_of(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot;
    struct lmc_hash digest;
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    OK(lmcs_snapshot_digest(snapshot, &digest, &err));
    lmcs_snapshot_close(snapshot);
    return digest;
}

static bool same_hash(struct lmc_hash a, struct lmc_hash b)
{
    return a.low == b.low && a.high == b.high;
}

static void digests_of_orders(struct lmcs_pool *pool, struct state *now, const struct state *backwards)
{
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    lmcs_commit_options_init(&options);
    options.parent = UINT64_MAX;
    options.time_ns = 5;
    const struct state *orders[2] = {now, backwards};
    const char *shelves[2] = {"first", "second"};
    for (int i = 0; i < 2; i++) {
        OK(lmcs_capture_begin(pool, shelves[i], &capture, &err));
        put_state(capture, orders[i]);
        OK(lmcs_capture_commit(capture, &options, NULL, &err));
    }
    assert_true(same_hash(digest_of(pool, "first"), digest_of(pool, "second")));
    options.time_ns = 6;
    OK(lmcs_capture_begin(pool, "second", &capture, &err));
    put_state(capture, now);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    assert_false(same_hash(digest_of(pool, "first"), digest_of(pool, "second")));
    options.time_ns = 5;
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            now->tensors[2].data[17] ^= 1;
        else
            snprintf(now->tensors[2].name, sizeof now->tensors[2].name, "T2");
        OK(lmcs_capture_begin(pool, "second", &capture, &err));
        put_state(capture, now);
        OK(lmcs_capture_commit(capture, &options, NULL, &err));
        assert_false(same_hash(digest_of(pool, "first"), digest_of(pool, "second")));
        if (i == 0)
            now->tensors[2].data[17] ^= 1;
    }
}

static void digests_tell_what_not_how(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 5, 20000), *backwards;
    struct lmc_hash digests[12];
    char address[32];
    for (size_t i = 0; i < 12; i++) {
        take_snapshot(pool, "run", now, (int64_t)i);
        state_step(now, &rng, 0, 4);
    }
    for (size_t i = 0; i < 12; i++) {
        snprintf(address, sizeof address, "run@%zu", i + 1);
        digests[i] = digest_of(pool, address);
        for (size_t k = 0; k < i; k++)
            assert_false(same_hash(digests[i], digests[k]));
    }
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_tag_set(pool, "run", "best", 3, &err));
    assert_true(storage_of(pool, "run", 1).raw_contents < 5);
    OK(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    for (size_t i = 0; i < 12; i++) {
        snprintf(address, sizeof address, "run@%zu", i + 1);
        if (i != 1)
            assert_true(same_hash(digests[i], digest_of(pool, address)));
    }
    /* A digest covers the content, not the order of puts, the number or the shelf. */
    backwards = state_copy(now);
    for (size_t i = 0; i < 2; i++) {
        struct held held = backwards->tensors[i];
        backwards->tensors[i] = backwards->tensors[4 - i];
        backwards->tensors[4 - i] = held;
    }
    digests_of_orders(pool, now, backwards);
    close_pool(pool);
    state_free(backwards);
    state_free(now);
}

static void storage_counts_a_content_once(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 3, 50000);
    struct lmcs_capture *capture;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, now);
    char names[20][16];
    for (size_t i = 0; i < 20; i++) {
        struct lmcs_tensor tensor;
        held_tensor(&now->tensors[i % 2], &tensor);
        snprintf(names[i], sizeof names[i], "alias%zu", i);
        tensor.name = names[i];
        OK(lmcs_capture_put_same(capture, &tensor, now->tensors[i % 2].name, &err));
    }
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    struct lmcs_snapshot_storage storage = storage_of(pool, "run", 1);
    assert_int_equal(storage.raw_contents, 3);
    assert_int_equal(storage.stored_bytes, 3 * 200000);
    assert_int_equal(storage.delta_contents + storage.keyframe_contents + storage.longest_chain, 0);
    state_step(now, &rng, 2, 1);
    take_snapshot(pool, "run", now, 1);
    assert_int_equal(storage_of(pool, "run", 2).stored_bytes, 3 * 200000);
    assert_int_equal(pool_info(pool).content_count, 4);
    for (int i = 0; i < 6; i++) {
        state_step(now, &rng, 0, 3);
        take_snapshot(pool, "run", now, i);
    }
    OK(lmcs_compact(pool, NULL, &err));
    storage = storage_of(pool, "run", 1);
    assert_int_equal(storage.raw_contents + storage.delta_contents + storage.keyframe_contents, 3);
    assert_true(storage.stored_bytes < 3 * 200000 && storage.stored_bytes > 0);
    check_pool(pool);
    close_pool(pool);
    state_free(now);
}

static uint64_t new_bytes(struct lmcs_pool *pool, const char *shelf, uint64_t number)
{
    uint64_t bytes = 42;
    OK(lmcs_snapshot_new_bytes(pool, shelf, &number, 1, &bytes, &err));
    return bytes;
}

static uint64_t sum_of_new_bytes(struct lmcs_pool *pool, const char *shelf)
{
    uint64_t numbers[64], bytes[64], sum = 0;
    size_t count;
    OK(lmcs_snapshot_numbers(pool, shelf, 0, numbers, 64, &count, &err));
    for (size_t i = 0; i < count / 2; i++) { /* in any order */
        uint64_t other = numbers[count - 1 - i];
        numbers[count - 1 - i] = numbers[i];
        numbers[i] = other;
    }
    OK(lmcs_snapshot_new_bytes(pool, shelf, numbers, count, bytes, &err));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(bytes[i], new_bytes(pool, shelf, numbers[i]));
        sum += bytes[i];
    }
    return sum;
}

static void fork_at(struct lmcs_pool *pool, const char *address, const char *name)
{
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    OK(lmcs_shelf_fork(snapshot, name, &err));
    lmcs_snapshot_close(snapshot);
}

/* As with LoRA: a frozen base, and a small adapter that changes. */
static void new_bytes_count_each_content_once(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 10, 20000);
    const uint64_t tensor = 80000;
    for (int i = 0; i < 6; i++) {
        take_snapshot(pool, "run", now, i);
        state_step(now, &rng, 9, 1);
    }
    assert_int_equal(new_bytes(pool, "run", 1), 10 * tensor);
    for (uint64_t n = 2; n <= 6; n++) {
        assert_int_equal(new_bytes(pool, "run", n), tensor);
        assert_int_equal(storage_of(pool, "run", n).stored_bytes, 10 * tensor);
    }
    assert_int_equal(new_bytes(pool, "run", 7), 0);
    uint64_t number = 1, bytes = 42;
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_new_bytes(pool, "walk", &number, 1, &bytes, &err));
    OK(lmcs_snapshot_new_bytes(pool, "run", NULL, 0, NULL, &err));

    /* A fork adds nothing; its next snapshot only what changed. */
    fork_at(pool, "run@3", "tune");
    state_step(now, &rng, 9, 1);
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(new_bytes(pool, "tune", 1), 0);
    assert_int_equal(new_bytes(pool, "run", 3), storage_of(pool, "run", 3).stored_bytes - 9 * tensor);
    const uint64_t small = sum_of_new_bytes(pool, "run");
    assert_true(small < 15 * tensor && small > 9 * tensor);
    assert_int_equal(sum_of_new_bytes(pool, "tune"), 0);

    /* What the first snapshot added becomes the next one's, on this shelf or the fork. */
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    assert_true(new_bytes(pool, "run", 2) >= 9 * tensor && new_bytes(pool, "run", 2) <= 10 * tensor);
    assert_int_equal(new_bytes(pool, "tune", 1), 0);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    assert_int_equal(new_bytes(pool, "tune", 1), storage_of(pool, "tune", 1).stored_bytes);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    assert_true(sum_of_new_bytes(pool, "tune") >= 9 * tensor);
    close_pool(pool);
    state_free(now);
}

static void removal_says_what_it_frees(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 4, 100000), *first;
    const uint64_t tensor = 400000;
    struct lmcs_removal removal, wished;
    take_snapshot(pool, "run", now, 0);
    first = state_copy(now);
    state_step(now, &rng, 0, 1);
    take_snapshot(pool, "run", now, 1);
    OK(lmcs_snapshot_remove(pool, "run", 1, true, &wished, &err));
    assert_true(wished.freed_bytes >= tensor && wished.freed_bytes < tensor + 65536);
    assert_int_equal(wished.later_bytes, 0);
    expect_snapshot(pool, "run", 1, first);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, &removal, &err));
    assert_memory_equal(&removal, &wished, sizeof removal);
    expect_snapshot(pool, "run", 2, now);
    OK(lmcs_snapshot_remove(pool, "run", 2, false, &removal, &err));
    assert_true(removal.freed_bytes >= 4 * tensor && removal.freed_bytes < 4 * tensor + 4 * 65536);
    assert_int_equal(pool_info(pool).content_count, 0);
    assert_int_equal(pool_info(pool).snapshot_count, 0);
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_remove(pool, "run", 2, true, &removal, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_remove(pool, "run", 0, false, NULL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_remove(pool, "walk", 1, false, NULL, &err));
    check_pool(pool);
    /* Space of bases is free later, no sooner than reported. */
    for (int i = 0; i < 10; i++) {
        state_step(now, &rng, 0, 4);
        take_snapshot(pool, "run", now, i);
    }
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t freed = 0, later = 0, live = pool_info(pool).live_bytes;
    for (uint64_t n = 12; n > 3; n--) {
        OK(lmcs_snapshot_remove(pool, "run", n, false, &removal, &err));
        freed += removal.freed_bytes;
        later += removal.later_bytes;
        check_pool(pool);
    }
    assert_true(later > 0);
    assert_true(pool_info(pool).live_bytes <= live - freed + 1000000);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 1);
    OK(lmcs_snapshot_remove(pool, "run", 3, false, &removal, &err));
    assert_int_equal(removal.later_bytes, 0);
    assert_int_equal(pool_info(pool).content_count, 0);
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    close_pool(pool);
    state_free(now);
    state_free(first);
}

static void take_thousands(struct lmcs_pool *pool, uint64_t count)
{
    uint64_t values[4] = {0, 0, 0, 0};
    for (uint64_t n = 1; n <= count; n++) {
        struct lmcs_capture *capture;
        struct lmcs_commit_options options;
        lmcs_commit_options_init(&options);
        options.step = (int64_t)(n / 2);
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        for (uint64_t i = 0; i < 4; i++) {
            char name[8];
            snprintf(name, sizeof name, "t%llu", (unsigned long long)i);
            struct lmcs_tensor tensor = {.name = name, .dtype = LMC_U64};
            const void *data = &values[i];
            values[i] = n >> (2 * i);
            OK(lmcs_capture_put(capture, &tensor, &data, 1, &err));
        }
        OK(lmcs_capture_commit(capture, &options, NULL, &err));
    }
}

static void thousands_of_snapshots(void **state)
{
    struct place *place = *state;
    struct rng rng = {6};
    const uint64_t count = scaled("LMCS_TEST_SNAPSHOTS", 2500);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_thousands(pool, count);
    check_pool(pool);
    assert_int_equal(at(pool, "run@latest~1000"), count - 1000);
    assert_int_equal(at(pool, "run@step:777"), 1555);
    bool *there = calloc(count + 1, 1);
    memset(there + 1, 1, count);
    for (uint64_t i = 0; i < count - count / 10; i++) {
        uint64_t n = 1 + rng_below(&rng, count);
        while (!there[n])
            n = n % count + 1;
        there[n] = false;
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        if (i % 700 == 699)
            check_pool(pool);
    }
    OK(lmcs_compact(pool, NULL, &err));
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    verify_pool(pool);
    uint64_t numbers[97], first = 0, expected = 0;
    size_t got;
    do {
        OK(lmcs_snapshot_numbers(pool, "run", first, numbers, 97, &got, &err));
        for (size_t i = 0; i < got; i++) {
            do
                expected++;
            while (!there[expected]);
            assert_int_equal(numbers[i], expected);
            struct lmcs_snapshot *snapshot;
            char which[32];
            snprintf(which, sizeof which, "%llu", (unsigned long long)expected);
            OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
            for (uint64_t t = 0; t < 4; t++) {
                uint64_t value;
                snprintf(which, sizeof which, "t%llu", (unsigned long long)t);
                OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, which, &value, sizeof value, &err));
                assert_int_equal(value, expected >> (2 * t));
            }
            lmcs_snapshot_close(snapshot);
        }
        first = expected + 1;
    } while (got == 97);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, count / 10);
    close_pool(pool);
    free(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(handles_of_removed_snapshots),  ON_BOTH(digests_tell_what_not_how),
        ON_BOTH(storage_counts_a_content_once), ON_BOTH(removal_says_what_it_frees),
        ON_BOTH(thousands_of_snapshots),        ON_BOTH(new_bytes_count_each_content_once),
    };
    return cmocka_run_group_tests_name("snapshot handles", tests, NULL, NULL);
}
