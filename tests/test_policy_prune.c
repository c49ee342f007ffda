/* SPDX-License-Identifier: BSD-3-Clause */
/* test_policy_prune.c - pruning on request, in the background, and while the shelf changes. */
#include "base/names.h"
#include "test_policy_support.h"

static void grow(struct lmcs_pool *pool, struct state *state, struct rng *rng, int64_t from, int64_t to)
{
    for (int64_t step = from; step <= to; step++) {
        take_snapshot(pool, "run", state, step);
        state_step(state, rng, 0, state->count);
    }
}

struct seen {
    uint64_t kept, removed;
    char goes[512];
};

static bool see(void *context, const struct lmcs_pruned *snapshot)
{
    struct seen *seen = context;
    seen->kept += snapshot->why != NULL;
    seen->removed += snapshot->why == NULL;
    if (snapshot->why == NULL)
        snprintf(seen->goes + strlen(seen->goes), sizeof seen->goes - strlen(seen->goes), " %lld",
                 (long long)snapshot->step);
    return true;
}

static void expect_steps(struct lmcs_pool *pool, const int64_t *steps, size_t count)
{
    uint64_t numbers[MOST];
    size_t got;
    OK(lmcs_snapshot_numbers(pool, "run", 0, numbers, MOST, &got, &err));
    assert_int_equal(got, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(numbers[i], (uint64_t)steps[i] + 1);
}

static void policies_stay_with_the_shelf(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:9 keep_raw=2", &err));
    OK(lmcs_shelf_set_policy(pool, "run", "chain=5", &err));
    FAILS(LMCS_INVALID, lmcs_shelf_set_policy(pool, "run", "chain=1 keep=some", &err));
    OK(lmcs_shelf_set_keep_raw(pool, "run", 3, &err));
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    assert_string_equal(shelf_info(pool, "run").policy, "keep_raw=3 chain=5 keep=last:9");
    assert_int_equal(shelf_info(pool, "run").keep_raw, 3);
    FAILS(LMCS_READ_ONLY, lmcs_shelf_set_policy(pool, "run", "chain=1", &err));
    close_pool(pool);
}

static void pruning_on_request(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct state *now = state_weights(&rng, 3, 20000);
    struct lmcs_prune_report report;
    struct seen seen = {0};
    struct lmcs_pool *pool = open_quiet(place->pool);
    grow(pool, now, &rng, 0, 11);
    OK(lmcs_tag_set(pool, "run", "good", 2, &err));
    OK(lmcs_prune(pool, "run", NULL, false, NULL, NULL, NULL, &report, &err));
    assert_int_equal(report.removed, 0);
    OK(lmcs_prune(pool, "run", "keep=last:2,every:5", true, see, &seen, NULL, &report, &err));
    assert_int_equal(report.removed, 7);
    assert_int_equal(report.kept, 5);
    assert_int_equal(seen.removed, 7);
    assert_string_equal(seen.goes, " 2 3 4 6 7 8 9");
    assert_true(report.removal.freed_bytes > 0);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 12);
    assert_string_equal(shelf_info(pool, "run").policy, "keep_raw=4 chain=3 keep=all");
    struct lmcs_prune_report again;
    OK(lmcs_prune(pool, "run", "keep=last:2,every:5", false, NULL, NULL, NULL, &again, &err));
    assert_int_equal(again.removed, 7);
    assert_true(again.removal.freed_bytes == report.removal.freed_bytes);
    expect_steps(pool, (int64_t[]){0, 1, 5, 10, 11}, 5);
    OK(lmcs_prune(pool, "run", "keep=last:2,every:5", false, NULL, NULL, NULL, &again, &err));
    assert_int_equal(again.removed, 0);
    FAILS(LMCS_NOT_FOUND, lmcs_prune(pool, "walk", NULL, true, NULL, NULL, NULL, NULL, &err));
    FAILS(LMCS_INVALID, lmcs_prune(pool, "run", "keep=most", true, NULL, NULL, NULL, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

static void pruning_by_itself(void **state)
{
    struct place *place = *state;
    struct rng rng = {2};
    struct state *now = state_weights(&rng, 3, 20000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    grow(pool, now, &rng, 0, 39);
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 40);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:3,every:10 grace=none", &err));
    OK(lmcs_compact(pool, NULL, &err));
    expect_steps(pool, (int64_t[]){0, 10, 20, 30, 37, 38, 39}, 7);
    /* Contents encoded against removed ones are encoded again: no removed content is left. */
    assert_true(pool_info(pool).content_count <= 7 * 3);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

static void a_budget_prunes_only_when_it_must(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct state *now = state_weights(&rng, 3, 200000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:2 budget=1G grace=none", &err));
    grow(pool, now, &rng, 0, 19);
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 20);
    assert_int_equal(storage_of(pool, "run", 19).raw_contents, 3);
    OK(lmcs_shelf_set_policy(pool, "run", "budget=16M", &err));
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t left = shelf_info(pool, "run").snapshot_count;
    assert_in_range(left, 3, 19);
    assert_int_equal(storage_of(pool, "run", 19).raw_contents, 0);
    assert_true(pool_info(pool).live_bytes + 2400000 <= (16u << 20));
    uint64_t numbers[1];
    size_t got;
    OK(lmcs_snapshot_numbers(pool, "run", 0, numbers, 1, &got, &err));
    assert_int_equal(numbers[0], 21 - left);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=all budget=1M", &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(shelf_info(pool, "run").snapshot_count, left);
    grow(pool, now, &rng, 20, 21);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

static void several_pools_share_a_budget(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct state *now = state_weights(&rng, 2, 1000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    const uint64_t others = (uint64_t)1 << 30;
    uint64_t removed = 7, numbers[20];
    size_t got;
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:2 budget=1G grace=none", &err));
    grow(pool, now, &rng, 0, 19);
    OK(lmcs_tag_set(pool, "run", "first", 1, &err));
    OK(lmcs_prune_budget(pool, "run", 0, &removed, &err));
    assert_int_equal(removed, 0);
    OK(lmcs_prune_budget(pool, "run", others, &removed, &err));
    assert_int_equal(removed, 3); /* an eighth of 17 */
    OK(lmcs_snapshot_numbers(pool, "run", 0, numbers, 20, &got, &err));
    assert_int_equal(got, 17);
    assert_int_equal(numbers[0], 1);
    assert_int_equal(numbers[1], 5);
    OK(lmcs_shelf_set_policy(pool, "run", "budget=100M grace=1h", &err));
    OK(lmcs_prune_budget(pool, "run", others, &removed, &err));
    assert_int_equal(removed, 0); /* the change has a grace period */
    OK(lmcs_shelf_set_policy(pool, "run", "grace=none budget=none", &err));
    OK(lmcs_prune_budget(pool, "run", others, NULL, &err));
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 17);
    FAILS(LMCS_NOT_FOUND, lmcs_prune_budget(pool, "none", others, &removed, &err));
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

static void a_budget_may_be_a_share(void **state)
{
    struct place *place = *state;
    struct rng rng = {6};
    struct state *now = state_weights(&rng, 3, 200000);
    struct lmcs_pool *pool = open_limited(place->pool, 96 << 20);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:2 budget=90% grace=none", &err));
    grow(pool, now, &rng, 0, 19);
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 20);
    OK(lmcs_shelf_set_policy(pool, "run", "budget=17%", &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_in_range(shelf_info(pool, "run").snapshot_count, 3, 19);
    assert_true(pool_info(pool).live_bytes + 2400000 <= (96u << 20) / 100 * 17);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

static bool no_more(void *context, const char *what, uint64_t done, uint64_t total)
{
    EXPECT(what[0] != '\0' && done <= total);
    return (*(int *)context)-- > 0;
}

static void pruning_can_be_stopped(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct state *now = state_weights(&rng, 1, 100);
    struct lmcs_prune_report report;
    int calls = 1;
    const struct lmcs_progress progress = {no_more, &calls};
    struct lmcs_pool *pool = open_quiet(place->pool);
    grow(pool, now, &rng, 0, 299);
    FAILS(LMCS_CANCELLED, lmcs_prune(pool, "run", "keep=last:2", false, NULL, NULL, &progress, &report, &err));
    uint64_t left = shelf_info(pool, "run").snapshot_count;
    assert_in_range(left, 3, 299);
    assert_int_equal(report.removed, 300 - left);
    check_pool(pool);
    OK(lmcs_prune(pool, "run", "keep=last:2", false, NULL, NULL, NULL, &report, &err));
    assert_int_equal(report.removed, left - 2);
    expect_steps(pool, (int64_t[]){298, 299}, 2);
    close_pool(pool);
    state_free(now);
}

/* A full pool prunes by the policy before it refuses; without a policy it refuses. */
static void a_full_pool_prunes_before_it_refuses(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    struct state *now = state_weights(&rng, 2, 250000);
    struct lmcs_pool *pool = open_limited(place->pool, 48 << 20);
    uint64_t number;
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:3 budget=90%", &err));
    for (int64_t step = 0; step < 100; step++) {
        take_snapshot(pool, "run", now, step);
        for (size_t i = 0; i < now->count; i++)
            rng_fill(&rng, now->tensors[i].data, now->tensors[i].bytes);
    }
    assert_true(shelf_info(pool, "run").snapshot_count >= 3);
    assert_int_equal(shelf_info(pool, "run").latest, 100);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=all", &err));
    enum lmcs_status status = LMCS_OK;
    for (int64_t step = 100; status == LMCS_OK && step < 200; step++) {
        status = try_snapshot(pool, "run", now, step, &number, &err);
        for (size_t i = 0; i < now->count; i++)
            rng_fill(&rng, now->tensors[i].data, now->tensors[i].bytes);
    }
    assert_int_equal(status, LMCS_FULL);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

static void metrics_decide(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct state *now = state_weights(&rng, 1, 2000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    static char long_meta[4000];
    memset(long_meta, ' ', sizeof long_meta - 1);
    memcpy(long_meta, "{}", 2);
    for (int64_t step = 0; step < 12; step++) {
        struct lmcs_capture *capture;
        struct lmcs_commit_options options;
        struct lmcs_metric metric = {"loss", step == 3 || step == 8 ? 0.1 : 1.0 + (double)step};
        lmcs_commit_options_init(&options);
        options.step = step;
        options.metrics = &metric;
        options.metric_count = step != 5;
        options.meta_json = step == 8 ? long_meta : NULL;
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        put_state(capture, now);
        OK(lmcs_capture_commit(capture, &options, NULL, &err));
    }
    OK(lmcs_prune(pool, "run", "keep=best:loss:2", false, NULL, NULL, NULL, NULL, &err));
    expect_steps(pool, (int64_t[]){3, 8, 11}, 3);
    close_pool(pool);
    state_free(now);
}

static void take_measured(struct lmcs_pool *pool, const struct state *now, int64_t step,
                          const struct lmcs_metric *metrics, size_t count)
{
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.step = step;
    options.metrics = metrics;
    options.metric_count = count;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, now);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
}

static void expect_warning(struct lmcs_pool *pool, const char *policy, const char *expected)
{
    char warning[LMCS_MAX_WARNING + 1] = "not written";
    OK(lmcs_shelf_set_policy(pool, "run", policy, &err));
    OK(lmcs_policy_warning(pool, "run", warning, &err));
    assert_string_equal(warning, expected);
}

/* No way of pruning removes a snapshot by a rule whose metric no snapshot has. */
static void an_absent_metric_prunes_nothing(void **state)
{
    struct place *place = *state;
    struct rng rng = {11};
    struct state *now = state_weights(&rng, 1, 2000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_prune_report report;
    uint64_t removed;
    for (int64_t step = 0; step < 40; step++)
        take_measured(pool, now, step, (struct lmcs_metric[]){{"loss", 40.0 - (double)step}, {"nan", NAN}}, 2);
    static const char *const words[] = {"keep=best:los:3", "keep=last:2,best:los", "keep=best:nan:3:max",
                                        "keep=best:los budget=1M"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        OK(lmcs_shelf_set_policy(pool, "run", words[i], &err));
        OK(lmcs_compact(pool, NULL, &err));
        for (enum lmcs_prune_when when = LMCS_PRUNE_SURPLUS; when <= LMCS_PRUNE_ALL; when++)
            OK(lmcs_prune_pool(pool, when, NULL, &removed, &err));
        OK(lmcs_prune(pool, "run", NULL, false, NULL, NULL, NULL, &report, &err));
        assert_int_equal(report.removed, 0);
        assert_int_equal(report.kept, 40);
        assert_true(report.warning[0] != '\0');
        assert_int_equal(shelf_info(pool, "run").snapshot_count, 40);
    }
    OK(lmcs_prune(pool, "run", "keep=best:loss:2 budget=none", false, NULL, NULL, NULL, &report, &err));
    assert_string_equal(report.warning, "");
    expect_steps(pool, (int64_t[]){38, 39}, 2);
    close_pool(pool);
    state_free(now);
}

static void warnings_name_the_metric(void **state)
{
    struct place *place = *state;
    struct rng rng = {12};
    struct state *now = state_weights(&rng, 1, 2000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    char long_name[101], warning[LMCS_MAX_WARNING + 1];
    FAILS(LMCS_NOT_FOUND, lmcs_policy_warning(pool, "run", warning, &err));
    expect_warning(pool, "keep=best:los:3", "");
    take_measured(pool, now, 0, NULL, 0);
    expect_warning(
        pool, "keep=best:los:3",
        "the rule best:los keeps all snapshots, because 0 of 1 have the metric \"los\"; they have no metrics");
    for (int64_t step = 1; step < 4; step++)
        take_measured(pool, now, step, (struct lmcs_metric[]){{"loss", 1}, {"eval/acc", NAN}}, 2);
    expect_warning(
        pool, "keep=best:los:3,best:los:1:max",
        "the rule best:los keeps all snapshots, because 0 of 4 have the metric \"los\"; did you mean \"loss\"? "
        "Metrics: \"loss\", \"eval/acc\"");
    expect_warning(pool, "keep=best:LOSS,last:1",
                   "the rule best:LOSS keeps all snapshots, because 0 of 4 have the metric \"LOSS\"; did you mean "
                   "\"loss\"? Metrics: \"loss\", \"eval/acc\"");
    expect_warning(pool, "keep=best:acc",
                   "the rule best:acc keeps all snapshots, because 0 of 4 have the metric \"acc\"; did you mean "
                   "\"eval/acc\"? Metrics: \"loss\", \"eval/acc\"");
    expect_warning(pool, "keep=best:eval/acc",
                   "the rule best:eval/acc keeps all snapshots, because 0 of 4 have a number for the metric "
                   "\"eval/acc\"; metrics: \"loss\"");
    expect_warning(pool, "keep=best:loss",
                   "the rule best:loss ignores 1 of 4 snapshots, which do not have the metric \"loss\"");
    expect_warning(pool, "keep=last:3", "");
    for (size_t i = 0; i < 100; i += 2)
        memcpy(long_name + i, "\xc3\xa9", 2);
    long_name[100] = '\0';
    memmove(long_name + 1, long_name, 99);
    long_name[0] = 'x';
    long_name[99] = '\0';
    for (int64_t step = 4; step < 24; step++)
        take_measured(pool, now, step, (struct lmcs_metric[]){{long_name, 1}, {"m", (double)step}}, 2);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=best:none,best:loss,best:m,best:no,best:never", &err));
    OK(lmcs_policy_warning(pool, "run", warning, &err));
    assert_true(lmcs_name_is_sound(warning)); /* long names and texts are cut between characters */
    assert_true(strlen(warning) > 300);
    close_pool(pool);
    state_free(now);
}

/* The message of a full pool shows the warning of the policy that makes no room, also of another shelf. */
static void a_full_pool_shows_the_warning(void **state)
{
    struct place *place = *state;
    struct rng rng = {13};
    struct state *now = state_weights(&rng, 2, 250000);
    struct lmcs_pool *pool = open_limited(place->pool, 48 << 20);
    const char *const shelves[] = {"run", "other"};
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:1,best:los", &err));
    for (size_t s = 0; s < 2; s++) {
        enum lmcs_status status = LMCS_OK;
        for (int64_t step = 0; status == LMCS_OK && step < 200; step++) {
            status = try_snapshot(pool, shelves[s], now, step, NULL, &err);
            for (size_t i = 0; i < now->count; i++)
                rng_fill(&rng, now->tensors[i].data, now->tensors[i].bytes);
        }
        assert_int_equal(status, LMCS_FULL);
        assert_non_null(
            strstr(err.message, "; by the policy of \"run\", the rule best:los keeps all snapshots, because 0 of "));
    }
    assert_true(shelf_info(pool, "run").snapshot_count > 2);
    close_pool(pool);
    state_free(now);
}

static void unknown_words_prune_nothing(void **state)
{
    struct place *place = *state;
    struct rng rng = {6};
    struct state *now = state_weights(&rng, 1, 2000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    grow(pool, now, &rng, 0, 9);
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, "run", &shelf, &err));
    strcpy(shelf.policy, "keep=last:1 moon=full");
    OK(lmcs_shelf_save(&txn, &shelf, &err));
    OK(lmcs_txn_commit(&txn, &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 10);
    FAILS(LMCS_UNSUPPORTED, lmcs_shelf_set_policy(pool, "run", "keep=all", &err));
    close_pool(pool);
    state_free(now);
}

static void grow_small(struct lmcs_pool *pool, int64_t from, int64_t to)
{
    struct rng rng = {8};
    struct state *now = state_weights(&rng, 1, 100);
    grow(pool, now, &rng, from, to);
    state_free(now);
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

struct meanwhile {
    struct lmcs_pool *pool;
    uint64_t last;
    uint64_t stays;
    uint64_t going;
    const char *policy; /* set after the first removal */
    const unsigned char *group;
};

static void *tag_it(void *context)
{
    const struct meanwhile *meanwhile = context;
    OK(lmcs_tag_set(meanwhile->pool, "run", "precious", meanwhile->going, &err));
    return NULL;
}

static bool tag_first(void *context, const struct lmcs_pruned *snapshot)
{
    struct meanwhile *meanwhile = context;
    if (snapshot->number < meanwhile->last) {
        EXPECT(snapshot->why != NULL && meanwhile->stays == 0);
        meanwhile->stays = snapshot->number;
        return true;
    }
    meanwhile->last = snapshot->number;
    if (snapshot->why == NULL && meanwhile->going == 0) {
        pthread_t thread;
        meanwhile->going = snapshot->number;
        EXPECT(pthread_create(&thread, NULL, tag_it, meanwhile) == 0);
        pthread_join(thread, NULL);
    }
    return true;
}

static void what_is_tagged_meanwhile_stays(void **state)
{
    struct place *place = *state;
    struct lmcs_prune_report report;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct meanwhile meanwhile = {.pool = pool};
    grow_small(pool, 0, 99);
    OK(lmcs_prune(pool, "run", "keep=last:20", false, tag_first, &meanwhile, NULL, &report, &err));
    assert_int_equal(meanwhile.going, 1);
    assert_int_equal(meanwhile.stays, 1);
    assert_true(is_there(pool, "precious"));
    assert_int_equal(report.removed, 79);
    assert_int_equal(report.kept, 21);
    assert_int_equal(report.removal.removed_tags, 0);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 21);
    verify_pool(pool);
    close_pool(pool);
}

static bool change_once(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct meanwhile *meanwhile = context;
    EXPECT(what[0] != '\0' && done <= total);
    if (done == 0)
        return true;
    if (meanwhile->policy != NULL)
        OK(lmcs_shelf_set_policy(meanwhile->pool, "run", meanwhile->policy, &err));
    if (meanwhile->group != NULL)
        OK(lmcs_group_resolve(meanwhile->pool, meanwhile->group, false, &err));
    meanwhile->policy = NULL;
    meanwhile->group = NULL;
    return true;
}

static void a_policy_set_meanwhile_holds(void **state)
{
    struct place *place = *state;
    static const struct {
        const char *before, *words, *meanwhile;
        uint64_t left;
    } cases[] = {{"keep=last:2", NULL, "keep=all", 68},
                 {"keep=last:2", NULL, "keep=last:10", 10},
                 {"keep=last:10", NULL, "keep=last:2", 10},
                 {"keep=last:2", "keep=last:3", "keep=all", 3}}; /* the call's own words win */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lmcs_prune_report report;
        struct lmcs_pool *pool = open_quiet(place->pool);
        struct meanwhile meanwhile = {.pool = pool, .policy = cases[i].meanwhile};
        const struct lmcs_progress progress = {change_once, &meanwhile};
        grow_small(pool, 0, 99);
        OK(lmcs_shelf_set_policy(pool, "run", cases[i].before, &err));
        OK(lmcs_prune(pool, "run", cases[i].words, false, NULL, NULL, &progress, &report, &err));
        assert_int_equal(shelf_info(pool, "run").snapshot_count, cases[i].left);
        assert_int_equal(report.kept, cases[i].left);
        assert_int_equal(report.removed, 100 - cases[i].left);
        check_pool(pool);
        close_pool(pool);
        unlink(place->pool);
    }
}

/* A prepared snapshot is none of the newest, and may be dropped meanwhile. */
static void a_group_dropped_meanwhile_does_not_count(void **state)
{
    struct place *place = *state;
    static const unsigned char group[16] = {5};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct meanwhile meanwhile = {.pool = pool, .group = group};
    const struct lmcs_progress progress = {change_once, &meanwhile};
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    grow_small(pool, 0, 99);
    lmcs_commit_options_init(&options);
    options.prepare = true;
    memcpy(options.group, group, sizeof group);
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    OK(lmcs_prune(pool, "run", "keep=last:10", false, NULL, NULL, &progress, NULL, &err));
    assert_null(meanwhile.group);
    assert_true(is_there(pool, "91"));
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 10);
    check_pool(pool);
    close_pool(pool);
}

#define RACED 1500

struct race {
    struct lmcs_pool *pool;
    atomic_bool is_over;
    bool acknowledged[RACED + 1];
};

static void *tag_them(void *context)
{
    struct race *race = context;
    for (uint64_t number = RACED - 10; number > 0 && !race->is_over; number -= 7) {
        char tag[32];
        snprintf(tag, sizeof tag, "tag-%d", (int)number);
        enum lmcs_status status = lmcs_tag_set(race->pool, "run", tag, number, &err);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
        race->acknowledged[number] = status == LMCS_OK;
        if (number < 8)
            break;
    }
    return NULL;
}

/* The same in the background. */
static void tags_set_while_it_prunes_by_itself(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct race *race = calloc(1, sizeof *race);
    pthread_t thread;
    uint64_t removed, tagged = 0;
    race->pool = pool;
    grow_small(pool, 0, RACED - 1);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:2 grace=none", &err));
    EXPECT(pthread_create(&thread, NULL, tag_them, race) == 0);
    OK(lmcs_prune_pool(pool, LMCS_PRUNE_SURPLUS, NULL, &removed, &err));
    race->is_over = true;
    pthread_join(thread, NULL);
    assert_in_range(removed, 1, RACED - 2);
    for (uint64_t number = 1; number <= RACED; number++) {
        char tag[32];
        snprintf(tag, sizeof tag, "tag-%d", (int)number);
        tagged += race->acknowledged[number];
        assert_int_equal(is_there(pool, tag), race->acknowledged[number]);
    }
    assert_in_range(shelf_info(pool, "run").snapshot_count, tagged + 1, tagged + 2);
    check_pool(pool);
    close_pool(pool);
    free(race);
}

/* lmcs_shelf_rename's transaction, without holding the shelf. */
static void rename_by_hand(struct lmcs_pool *pool, const char *from, const char *to)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, from, &shelf, &err));
    struct lmcs_root_tree_df *names = &txn.root.trees[LMCS_TREE_SHELF_NAMES];
    OK(lmcs_tree_delete(&txn, LMCS_TREE_SHELF_NAMES, names,
                        (struct lmcs_key_df){lmc_hash64(from, strlen(from), 0), shelf.df.id}, NULL, &err));
    shelf.df.name_bytes = (uint32_t)strlen(to);
    strcpy(shelf.name, to);
    OK(lmcs_tree_put(&txn, LMCS_TREE_SHELF_NAMES, names,
                     (struct lmcs_key_df){lmc_hash64(to, strlen(to), 0), shelf.df.id}, NULL, 0, &err));
    OK(lmcs_shelf_save(&txn, &shelf, &err));
    OK(lmcs_txn_commit(&txn, &err));
}

static void *prune_it(void *context)
{
    uint64_t removed;
    OK(lmcs_prune_pool(context, LMCS_PRUNE_ALL, NULL, &removed, &err));
    EXPECT(removed == 0);
    return NULL;
}

/* Renamed between the look-up of its name and the hold: another thread holds the new name. */
static void a_shelf_renamed_before_it_is_held(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_busy_shelf *moved;
    uint64_t removed;
    pthread_t thread;
    grow_small(pool, 0, 9);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:2", &err));
    OK(lmcs_shelf_take(pool, "moved", &moved, &err));
    pthread_mutex_lock(&pool->captures);
    EXPECT(pthread_create(&thread, NULL, prune_it, pool) == 0);
    usleep(200000);
    rename_by_hand(pool, "run", "moved");
    pthread_mutex_unlock(&pool->captures);
    pthread_join(thread, NULL);
    assert_int_equal(shelf_info(pool, "moved").snapshot_count, 10);
    lmcs_shelf_give(pool, moved);
    OK(lmcs_prune_pool(pool, LMCS_PRUNE_ALL, NULL, &removed, &err));
    assert_int_equal(removed, 8);
    check_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(policies_stay_with_the_shelf),
        ON_BOTH(pruning_on_request),
        IN_MEMORY(pruning_by_itself),
        IN_MEMORY(a_budget_prunes_only_when_it_must),
        IN_MEMORY(several_pools_share_a_budget),
        IN_MEMORY(a_budget_may_be_a_share),
        IN_MEMORY(pruning_can_be_stopped),
        IN_MEMORY(a_full_pool_prunes_before_it_refuses),
        IN_MEMORY(metrics_decide),
        IN_MEMORY(an_absent_metric_prunes_nothing),
        IN_MEMORY(warnings_name_the_metric),
        IN_MEMORY(a_full_pool_shows_the_warning),
        IN_MEMORY(unknown_words_prune_nothing),
        ON_BOTH(what_is_tagged_meanwhile_stays),
        IN_MEMORY(a_policy_set_meanwhile_holds),
        IN_MEMORY(a_group_dropped_meanwhile_does_not_count),
        IN_MEMORY(tags_set_while_it_prunes_by_itself),
        IN_MEMORY(a_shelf_renamed_before_it_is_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
