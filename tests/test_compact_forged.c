/* SPDX-License-Identifier: BSD-3-Clause */
/* test_compact_forged.c - compaction of mutual bases, and of damaged and forged records. */
/* ctest: timeout=600 */
#include "test_compact_support.h"

/* t0 and t1, and a second name of each, exchanged when `swapped`. */
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
    content.df.raw_bytes = UINT64_MAX / 2;
    OK(lmcs_content_put(&txn, &content, &err));
    OK(lmcs_txn_commit(&txn, &err));
    FAILS(LMCS_DAMAGED, lmcs_compact(pool, NULL, &err));
    assert_non_null(strstr(err.message, "the record of content 1"));
    assert_int_equal(storage_of(pool, "good", 1).raw_contents, 1);
    for (uint64_t n = 1; n <= 6; n++)
        expect_snapshot(pool, "good", n, states[n - 1]);
    close_pool(pool);
    free_history(states, 6);
}

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
    OK(lmcs_root_put(&txn, LMCS_TREE_SAFETY, (struct lmcs_key_df){content.id, 0}, &none, sizeof none, &err));
    OK(lmcs_txn_commit(&txn, &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(pool_info(pool).compaction_backlog, 0);
    assert_int_equal(storage_of(pool, "run", 1).raw_contents, 1);
    assert_int_equal(storage_of(pool, "run", 2).raw_contents, 2);
    assert_int_equal(storage_of(pool, "run", 3).raw_contents, 1);
    close_pool(pool);
    pool = open_quiet(place->pool);
    for (uint64_t n = 1; n <= 8; n++)
        expect_snapshot(pool, "run", n, states[n - 1]);
    close_pool(pool);
    free_history(states, 8);
}

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
    OK(lmcs_root_put(&txn, LMCS_TREE_DEPENDENTS, (struct lmcs_key_df){0, x.id}, &none, sizeof none, &err));
    OK(lmcs_txn_commit(&txn, &err));
    FAILS(LMCS_DAMAGED, lmcs_compact(pool, NULL, &err));
    assert_non_null(strstr(err.message, "chain that is too long"));
    close_pool(pool);
    free_history(states, 8);
}

/* More contents in a chain than the stack has room for. */
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
        IN_MEMORY(names_exchange_their_contents),
        IN_MEMORY(a_damaged_shelf_does_not_stop_the_others),
        IN_MEMORY(a_damaged_content_does_not_stop_its_batch),
        IN_MEMORY(bases_in_a_circle),
        IN_MEMORY(bases_without_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
