/* SPDX-License-Identifier: BSD-3-Clause */
/* test_groups.c - prepared snapshots: captures behind them, decisions in any order, tags, readers, pruning. */
/* ctest: timeout=600 */
#include "test_capture_support.h"

#include "capture/state.h"
#include "shelves/shelves.h"

static struct lmcs_commit_options preparing(unsigned char group)
{
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.prepare = true;
    memset(options.group, group, sizeof options.group);
    options.step = group;
    return options;
}

static uint64_t prepare_with(struct lmcs_pool *pool, const struct state *weights,
                             const struct lmcs_commit_options *options)
{
    uint64_t number = 0;
    struct lmcs_capture *capture = begin(pool, "run");
    put_state(capture, weights);
    OK(lmcs_capture_commit(capture, options, &number, &err));
    return number;
}

static uint64_t prepare(struct lmcs_pool *pool, const struct state *weights, unsigned char group)
{
    const struct lmcs_commit_options options = preparing(group);
    return prepare_with(pool, weights, &options);
}

static void resolve(struct lmcs_pool *pool, unsigned char group, bool commit)
{
    unsigned char id[16];
    memset(id, group, sizeof id);
    OK(lmcs_group_resolve(pool, id, commit, &err));
}

static bool is_there(struct lmcs_pool *pool, const char *which)
{
    struct lmcs_snapshot *snapshot;
    enum lmcs_status status = lmcs_snapshot_find(pool, "run", which, &snapshot, &err);
    EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
    if (status == LMCS_OK)
        lmcs_snapshot_close(snapshot);
    return status == LMCS_OK;
}

/* What a dropped snapshot shares with those behind it stays. */
static void captures_behind_a_dropped_one(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct state *weights = state_weights(&rng, 8, 20000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    uint64_t written, shared;
    take_snapshot(pool, "run", weights, 1);
    state_step(weights, &rng, 0, 4);
    assert_int_equal(prepare(pool, weights, 2), 2);
    struct state *second = state_copy(weights);
    state_step(weights, &rng, 0, 1);
    struct lmcs_capture *capture = begin(pool, "run");
    put_state(capture, weights);
    lmcs_capture_stats(capture, &written, &shared);
    assert_int_equal(written, 80000);
    assert_int_equal(shared, 7 * 80000);
    assert_int_equal(commit(capture), 3);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 2);
    assert_int_equal(shelf_info(pool, "run").latest, 3);
    assert_false(is_there(pool, "2"));
    assert_true(is_there(pool, "latest~1"));
    assert_false(is_there(pool, "latest~2"));
    check_pool(pool);
    resolve(pool, 2, false);
    verify_pool(pool);
    expect_snapshot(pool, "run", 3, weights);
    OK(lmcs_compact(pool, NULL, &err));
    expect_snapshot(pool, "run", 3, weights);
    assert_int_equal(prepare(pool, second, 4), 4);
    state_step(weights, &rng, 2, 3);
    assert_int_equal(prepare(pool, weights, 5), 5);
    resolve(pool, 5, true);
    resolve(pool, 4, true);
    expect_snapshot(pool, "run", 4, second);
    expect_snapshot(pool, "run", 5, weights);
    assert_int_equal(shelf_info(pool, "run").latest, 5);
    verify_pool(pool);
    close_pool(pool);
    state_free(second);
    state_free(weights);
}

#define MANY 40

static void check_many(struct lmcs_pool *pool, struct state *const *states, const int *decided, size_t count)
{
    uint64_t numbers[MANY + 1], latest = 0;
    size_t got, committed = 0;
    for (size_t i = 1; i <= count; i++) {
        committed += decided[i] == 1;
        latest = decided[i] == 1 ? i : latest;
        if (decided[i] == 1)
            expect_snapshot(pool, "run", i, states[i]);
    }
    assert_int_equal(shelf_info(pool, "run").snapshot_count, committed);
    assert_int_equal(shelf_info(pool, "run").latest, latest);
    OK(lmcs_snapshot_numbers(pool, "run", 0, numbers, MANY + 1, &got, &err));
    assert_int_equal(got, committed);
    OK(lmcs_snapshot_newest(pool, "run", UINT64_MAX, numbers, MANY + 1, &got, &err));
    assert_int_equal(got, committed);
    verify_pool(pool);
}

/* Prepares, decides and compacts at random; some captures are not prepared, some are removed. */
static void decisions_in_any_order(void **state)
{
    struct place *place = *state;
    for (uint64_t seed = 1; seed <= scaled("LMCS_TEST_GROUPS", 3); seed++) {
        struct rng rng = {seed};
        struct state *weights = state_weights(&rng, 6, 9000), *states[MANY + 1] = {NULL};
        int decided[MANY + 1] = {0}; /* 0: prepared, 1: committed, 2: gone */
        struct lmcs_pool *pool = open_quiet(place->pool);
        OK(lmcs_shelf_set_policy(pool, "run", seed % 2 == 0 ? "keep_raw=1" : "keep_raw=1 write=link", &err));
        for (size_t i = 1; i <= MANY; i++) {
            state_step(weights, &rng, rng_below(&rng, 3), 3);
            states[i] = state_copy(weights);
            const bool plain = rng_below(&rng, 4) == 0;
            assert_int_equal(
                plain ? take_snapshot(pool, "run", weights, (int64_t)i) : prepare(pool, weights, (unsigned char)i), i);
            decided[i] = plain;
            size_t at = 1 + rng_below(&rng, i);
            if (decided[at] == 0 && rng_below(&rng, 2) == 0) {
                decided[at] = 1 + (rng_below(&rng, 2) == 0);
                resolve(pool, (unsigned char)at, decided[at] == 1);
            } else if (decided[at] == 1 && rng_below(&rng, 3) == 0) {
                OK(lmcs_snapshot_remove(pool, "run", at, false, NULL, &err));
                decided[at] = 2;
            }
            if (rng_below(&rng, 8) == 0)
                OK(lmcs_compact(pool, NULL, &err));
            if (rng_below(&rng, 8) == 0) {
                close_pool(pool);
                pool = open_quiet(place->pool);
            }
            check_pool(pool);
        }
        check_many(pool, states, decided, MANY);
        for (size_t i = MANY; i > 0; i--)
            if (decided[i] == 0) {
                decided[i] = 1 + i % 2;
                resolve(pool, (unsigned char)i, decided[i] == 1);
            }
        check_many(pool, states, decided, MANY);
        OK(lmcs_compact_finished(pool, NULL, NULL, &err));
        check_many(pool, states, decided, MANY);
        close_pool(pool);
        for (size_t i = 1; i <= MANY; i++)
            state_free(states[i]);
        state_free(weights);
        unlink(place->pool);
    }
}

static bool no_attachment(void *context, const struct lmcs_entry *entry)
{
    (void)context;
    EXPECT(entry->tensor.kind != LMCS_ATTACHMENT);
    return true;
}

static void tags_and_metrics_come_with_the_decision(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    struct state *weights = state_weights(&rng, 2, 1000);
    static const char *const tags[] = {"best", "last"}, *const wrong[] = {"a..b"};
    const struct lmcs_metric metric = {"loss", 0.5};
    struct lmcs_snapshot *snapshot;
    char *long_tag = calloc(1, LMCS_MAX_NAME + 1);
    const char *many[100];
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    OK(lmcs_tag_set(pool, "run", "best", 1, &err));
    for (unsigned char i = 2; i < 6; i++) {
        struct lmcs_commit_options options = preparing(i);
        options.tags = tags;
        options.tag_count = i == 5 ? 0 : 2;
        options.metrics = &metric;
        options.metric_count = 1;
        assert_int_equal(prepare_with(pool, weights, &options), i);
    }
    assert_int_equal(snapshot_tagged(pool, "best"), 1);
    assert_int_equal(snapshot_tagged(pool, "last"), 0);
    resolve(pool, 3, true);
    assert_int_equal(snapshot_tagged(pool, "best"), 3);
    resolve(pool, 2, true); /* a newer one has them */
    assert_int_equal(snapshot_tagged(pool, "best"), 3);
    assert_int_equal(snapshot_tagged(pool, "last"), 3);
    OK(lmcs_snapshot_open(pool, "run@2", &snapshot, &err));
    assert_int_equal(lmcs_snapshot_info(snapshot)->metric_count, 1);
    assert_true(lmcs_snapshot_info(snapshot)->metrics[0].value == 0.5);
    OK(lmcs_snapshot_entries(snapshot, no_attachment, NULL, &err));
    lmcs_snapshot_close(snapshot);
    resolve(pool, 4, false);
    assert_int_equal(snapshot_tagged(pool, "best"), 3);
    close_pool(pool);
    pool = open_quiet(place->pool);
    resolve(pool, 5, true);
    assert_int_equal(snapshot_tagged(pool, "last"), 3);
    struct lmcs_commit_options options = preparing(6);
    options.tags = wrong;
    options.tag_count = 1;
    FAILS(LMCS_INVALID, lmcs_capture_commit(begin(pool, "run"), &options, NULL, &err));
    memset(long_tag, 'x', LMCS_MAX_NAME);
    for (size_t i = 0; i < 100; i++)
        many[i] = long_tag;
    options.tags = many;
    options.tag_count = 100;
    FAILS(LMCS_INVALID, lmcs_capture_commit(begin(pool, "run"), &options, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
    free(long_tag);
    state_free(weights);
}

struct listed {
    size_t count;
    struct lmcs_prepared all[4];
};

static bool note_prepared(void *context, const struct lmcs_prepared *prepared)
{
    struct listed *listed = context;
    EXPECT(strcmp(prepared->shelf, "run") == 0);
    listed->all[listed->count++] = *prepared;
    return listed->count < 3;
}

/* A reader that knows the decision reads the snapshot before the pool does, and afterwards. */
static void readers_open_a_group(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct state *weights = state_weights(&rng, 2, 1000);
    unsigned char id[16], unknown[16] = {9};
    struct lmcs_snapshot *snapshot;
    struct listed listed = {0};
    struct lmcs_pool *pool = open_quiet(place->pool);
    for (unsigned char i = 1; i < 5; i++)
        prepare(pool, weights, i);
    OK(lmcs_capture_commit(begin(pool, "other"), NULL, NULL, &err));
    resolve(pool, 4, false);
    struct lmcs_pool *reader = open_pool(place->pool, LMCS_OPEN_READ, 0);
    OK(lmcs_group_list(reader, note_prepared, &listed, &err));
    assert_int_equal(listed.count, 3);
    for (unsigned char i = 1; i < 4; i++) {
        assert_int_equal(listed.all[i - 1].group[0], i);
        assert_int_equal(listed.all[i - 1].number, i);
        assert_int_equal(listed.all[i - 1].step, i);
    }
    memset(id, 2, sizeof id);
    for (int round = 0; round < 2; round++) {
        OK(lmcs_group_open(reader, "run", id, &snapshot, &err));
        assert_int_equal(lmcs_snapshot_info(snapshot)->number, 2);
        assert_memory_equal(lmcs_snapshot_info(snapshot)->group, id, sizeof id);
        float *data = malloc(4000);
        OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, weights->tensors[0].name, data, 4000, &err));
        assert_memory_equal(data, weights->tensors[0].data, 4000);
        free(data);
        lmcs_snapshot_close(snapshot);
        if (round == 0)
            resolve(pool, 2, true);
    }
    FAILS(LMCS_NOT_FOUND, lmcs_group_open(reader, "run", unknown, &snapshot, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_group_open(reader, "other", id, &snapshot, &err));
    close_pool(reader);
    close_pool(pool);
    state_free(weights);
}

struct dropping {
    struct lmcs_pool *pool;
    pthread_mutex_t lock;
    bool done;
};

static void *drop_it(void *context)
{
    struct dropping *dropping = context;
    resolve(dropping->pool, 2, false);
    pthread_mutex_lock(&dropping->lock);
    dropping->done = true;
    pthread_mutex_unlock(&dropping->lock);
    return NULL;
}

static bool is_done(struct dropping *dropping)
{
    pthread_mutex_lock(&dropping->lock);
    const bool done = dropping->done;
    pthread_mutex_unlock(&dropping->lock);
    return done;
}

/* A drop waits for captures that may share the contents, and for no others. */
static void a_drop_waits_for_its_captures(void **state)
{
    struct place *place = *state;
    struct rng rng = {6};
    struct state *weights = state_weights(&rng, 4, 5000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct dropping dropping = {pool, PTHREAD_MUTEX_INITIALIZER, false};
    unsigned char id[16];
    pthread_t thread;
    take_snapshot(pool, "run", weights, 1);
    state_step(weights, &rng, 0, 2);
    prepare(pool, weights, 2);
    struct lmcs_capture *capture = begin(pool, "run");
    put_state(capture, weights); /* shares all */
    memset(id, 2, sizeof id);
    FAILS(LMCS_INVALID, lmcs_group_resolve(pool, id, false, &err)); /* its own capture would never end */
    EXPECT(pthread_create(&thread, NULL, drop_it, &dropping) == 0);
    usleep(50000);
    assert_false(is_done(&dropping));
    assert_int_equal(commit(capture), 3);
    pthread_join(thread, NULL);
    verify_pool(pool);
    expect_snapshot(pool, "run", 3, weights);
    prepare(pool, weights, 2);
    take_snapshot(pool, "run", weights, 5);
    capture = begin(pool, "run");
    resolve(pool, 2, false);
    lmcs_capture_abort(capture);
    expect_snapshot(pool, "run", 5, weights);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

static void *drop_each(void *context)
{
    struct dropping *dropping = context;
    unsigned char id[16];
    for (unsigned char i = 1; i < 60; i++) {
        memset(id, i, sizeof id);
        while (lmcs_group_resolve(dropping->pool, id, i % 3 == 0, NULL) == LMCS_NOT_FOUND)
            usleep(100);
    }
    return NULL;
}

/* Another thread decides while captures begin. */
static void decisions_beside_captures(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct state *weights = state_weights(&rng, 4, 3000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct dropping dropping = {.pool = pool};
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, drop_each, &dropping) == 0);
    for (unsigned char i = 1; i < 60; i++) {
        struct lmcs_commit_options options = preparing(i);
        options.asynchronous = i % 4 != 0;
        state_step(weights, &rng, i % 4, 1);
        struct lmcs_capture *capture = begin(pool, "run");
        put_state(capture, weights);
        if (i % 8 == 1)
            OK(promise_and_commit(capture, &options, NULL, &err));
        else
            OK(lmcs_capture_commit(capture, &options, NULL, &err));
        if (options.asynchronous)
            lmcs_capture_detach(capture);
    }
    pthread_join(thread, NULL);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 19);
    take_snapshot(pool, "run", weights, 60);
    expect_state(pool, "run", "latest", weights);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

/* Asynchronous ones give the shelf to the next capture, and are durable in order. */
static void prepares_in_flight(void **state)
{
    struct place *place = *state;
    struct rng rng = {8};
    struct state *weights = state_weights(&rng, 4, 3000), *states[9] = {NULL};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *captures[9];
    for (unsigned char i = 1; i < 9; i++) {
        struct lmcs_commit_options options = preparing(i);
        uint64_t number;
        options.asynchronous = true;
        state_step(weights, &rng, i % 3, 1);
        states[i] = state_copy(weights);
        captures[i] = begin(pool, "run");
        put_state(captures[i], weights);
        OK((i % 2 == 0 ? promise_and_commit : lmcs_capture_commit)(captures[i], &options, &number, &err));
        assert_int_equal(number, i);
    }
    for (unsigned char i = 1; i < 9; i++)
        OK(lmcs_capture_wait(captures[i], &err));
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 0);
    close_pool(pool);
    pool = open_quiet(place->pool);
    for (unsigned char i = 8; i > 0; i--)
        resolve(pool, i, i != 4);
    for (unsigned char i = 1; i < 9; i++) {
        struct lmcs_snapshot *snapshot;
        char which[8];
        snprintf(which, sizeof which, "%u", i);
        if (i != 4) {
            expect_snapshot(pool, "run", i, states[i]);
            OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
            assert_int_equal(lmcs_snapshot_info(snapshot)->parent, i - 1);
            lmcs_snapshot_close(snapshot);
        }
        state_free(states[i]);
    }
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

/* A follower gets the snapshots in order, so it waits for a decision. */
static void followers_wait_for_a_decision(void **state)
{
    struct place *place = *state;
    struct rng rng = {9};
    struct state *weights = state_weights(&rng, 1, 1000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_follower follower = {0};
    uint64_t number = 0, first, last;
    prepare(pool, weights, 1);
    prepare(pool, weights, 2);
    take_snapshot(pool, "run", weights, 3);
    OK(lmcs_snapshot_follow(pool, "run", &follower, 0, &number, &err));
    assert_int_equal(number, 0);
    OK(lmcs_snapshot_range(pool, "run", "..", &first, &last, &err));
    assert_int_equal(first, 3);
    assert_int_equal(last, 3);
    resolve(pool, 1, false);
    resolve(pool, 2, true);
    for (uint64_t expected = 2; expected < 4; expected++) {
        OK(lmcs_snapshot_follow(pool, "run", &follower, 0, &number, &err));
        assert_int_equal(number, expected);
    }
    close_pool(pool);
    state_free(weights);
}

/* Pruning counts no prepared snapshot; the background removes no part of a group. */
static void pruning_leaves_groups(void **state)
{
    struct place *place = *state;
    struct rng rng = {10};
    struct state *weights = state_weights(&rng, 1, 1000);
    struct lmcs_prune_report report;
    uint64_t removed = 0;
    struct lmcs_pool *pool = open_quiet(place->pool);
    for (unsigned char i = 1; i < 30; i++)
        if (i % 2 == 0)
            prepare(pool, weights, i);
        else
            take_snapshot(pool, "run", weights, i);
    for (unsigned char i = 2; i < 20; i += 2)
        resolve(pool, i, true);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:3", &err));
    OK(lmcs_prune_pool(pool, LMCS_PRUNE_ALL, NULL, &removed, &err));
    assert_int_equal(removed, 12);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 12);
    assert_true(is_there(pool, "2") && is_there(pool, "25") && is_there(pool, "27") && !is_there(pool, "23"));
    OK(lmcs_prune(pool, "run", NULL, false, NULL, NULL, NULL, &report, &err));
    assert_int_equal(report.removed, 9);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 3);
    check_pool(pool);
    for (unsigned char i = 20; i < 30; i += 2)
        resolve(pool, i, true);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 8);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

/* Operations on a whole shelf need all decisions, also of those that are not the newest. */
static void whole_shelves_wait(void **state)
{
    struct place *place = *state;
    struct rng rng = {11};
    struct state *weights = state_weights(&rng, 1, 1000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    prepare(pool, weights, 1);
    take_snapshot(pool, "run", weights, 2);
    FAILS(LMCS_IN_USE, lmcs_shelf_drop(pool, "run", false, NULL, &err));
    FAILS(LMCS_IN_USE, lmcs_shelf_drop(pool, "run", true, NULL, &err));
    unsigned char id[16];
    struct lmcs_snapshot *snapshot;
    memset(id, 1, sizeof id);
    OK(lmcs_group_open(pool, "run", id, &snapshot, &err));
    FAILS(LMCS_IN_USE, lmcs_shelf_fork(snapshot, "fork", &err));
    lmcs_snapshot_close(snapshot);
    check_pool(pool);
    OK(lmcs_shelf_rename(pool, "run", "moved", &err));
    resolve(pool, 1, false);
    OK(lmcs_shelf_drop(pool, "moved", false, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(captures_behind_a_dropped_one),
        ON_BOTH(decisions_in_any_order),
        ON_BOTH(tags_and_metrics_come_with_the_decision),
        ON_BOTH(readers_open_a_group),
        IN_MEMORY(a_drop_waits_for_its_captures),
        ON_BOTH(decisions_beside_captures),
        ON_BOTH(prepares_in_flight),
        IN_MEMORY(followers_wait_for_a_decision),
        IN_MEMORY(pruning_leaves_groups),
        IN_MEMORY(whole_shelves_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
