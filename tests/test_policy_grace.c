/* SPDX-License-Identifier: BSD-3-Clause */
/* test_policy_grace.c - the grace period after a change of a policy. */
#include "base/clock.h"
#include "test_policy_support.h"

#define SECOND ((uint64_t)1000000000)
#define MINUTE (60 * SECOND)
#define NOON   (20000 * 24 * HOUR + 12 * HOUR)

static void parse(const char *words, struct lmcs_policy *policy)
{
    lmcs_policy_init(policy);
    OK(lmcs_policy_parse_stored(words, policy, &err));
}

/* Changes the stored policy `from` by `words`, `seconds` after 10,000. */
static void expect_change(const char *from, const char *words, uint64_t seconds, const char *expected)
{
    struct lmcs_policy before, policy;
    char text[LMCS_MAX_POLICY + 1];
    parse(from, &before);
    policy = before;
    OK(lmcs_policy_parse(words, &policy, &err));
    lmcs_policy_begin_grace(&before, &policy, (10000 + seconds) * SECOND);
    OK(lmcs_policy_format_stored(&policy, text, &err));
    assert_true(strncmp(text, "keep_raw=4 chain=3 ", 19) == 0);
    assert_string_equal(text + 19, expected);
}

static void changes_add_up(void **state)
{
    (void)state;
    expect_change("", "keep=last:3", 0, "keep=last:3 since=10000");
    expect_change("keep=last:9", "keep=last:3", 7, "keep=last:3 since=10007 was=last:9");
    expect_change("keep=last:9", "keep=last:3 grace=none", 0, "keep=last:3 grace=none");
    expect_change("keep=last:9", "keep=last:9 chain=3", 0, "keep=last:9");
    expect_change("keep=last:9", "keep=last:9,every:10", 0, "keep=last:9,every:10");
    expect_change("keep=last:9,every:10", "keep=every:10", 0, "keep=every:10 since=10000 was=last:9");
    expect_change("keep=last:9", "keep=all", 0, "keep=all");
    expect_change("keep=last:9", "budget=1G", 0, "keep=last:9 budget=1G since=10000");
    expect_change("keep=last:9 budget=1G", "budget=none", 0, "keep=last:9 since=10000");
    /* Within a period the time begins anew, and every rule from before still keeps. */
    static const char pending[] = "keep=last:3 since=10000 was=last:9";
    expect_change(pending, "keep=last:2", 599, "keep=last:2 since=10599 was=last:3,last:9");
    expect_change(pending, "keep=last:3", 599, "keep=last:3 since=10000 was=last:9");
    expect_change(pending, "keep_raw=4", 599, "keep=last:3 since=10000 was=last:9");
    expect_change(pending, "keep=last:2", 600, "keep=last:2 since=10600 was=last:3");
    expect_change(pending, "keep=last:3", 600, "keep=last:3");
    expect_change(pending, "grace=1h", 599, "keep=last:3 grace=1h since=10000 was=last:9");
    expect_change(pending, "grace=1h", 600, "keep=last:3 grace=1h");
    expect_change(pending, "grace=none", 1, "keep=last:3 grace=none");
    expect_change(pending, "keep=last:9", 1, "keep=last:9 since=10001 was=last:3");
    expect_change("keep=last:3 since=10000", "keep=last:2", 1, "keep=last:2 since=10001");
    expect_change("keep=all", "keep=last:2", 1, "keep=last:2 since=10001");
    expect_change("keep=last:3 since=10000", "keep=last:3,every:9", 1, "keep=last:3,every:9 since=10001");
    /* Too many rules, or too long a text: everything is kept meanwhile. */
    expect_change("keep=last:1,last:2,last:3,last:4,last:5,last:6,last:7",
                  "keep=last:21,last:22,last:23,last:24,last:25,last:26", 0,
                  "keep=last:21,last:22,last:23,last:24,last:25,last:26 since=10000");
    char from[LMCS_MAX_POLICY + 1] = "keep=", words[LMCS_MAX_POLICY + 1] = "keep=", expected[LMCS_MAX_POLICY + 32];
    for (int i = 0; i < 5; i++) {
        char rule[80];
        snprintf(rule, sizeof rule, "%sbest:a%048d:1", i > 0 ? "," : "", i);
        strcat(from, rule);
        rule[i > 0 ? 6 : 5] = 'b';
        strcat(words, rule);
    }
    snprintf(expected, sizeof expected, "%s since=10000", words);
    expect_change(from, words, 0, expected);
}

static void the_period_ends(void **state)
{
    (void)state;
    struct lmcs_policy policy, before;
    parse("keep=last:9", &before);
    parse("keep=last:3", &policy);
    lmcs_policy_begin_grace(&before, &policy, 9999 * SECOND + 1);
    assert_int_equal(policy.since_seconds, 10000); /* rounded up: the period is never shorter */
    parse("keep=last:3 since=10000 was=last:9", &policy);
    assert_int_equal(lmcs_policy_grace_end(&policy, 10000 * SECOND), 10600 * SECOND);
    assert_int_equal(lmcs_policy_grace_end(&policy, 10600 * SECOND - 1), 10600 * SECOND);
    assert_int_equal(lmcs_policy_grace_end(&policy, 10600 * SECOND), 0);
    parse("keep=last:3 grace=none since=10000", &policy);
    assert_int_equal(lmcs_policy_grace_end(&policy, 10000 * SECOND), 0);
    parse("keep=last:3 since=18446744073709551615", &policy);
    assert_true(lmcs_policy_grace_end(&policy, 10000 * SECOND) == UINT64_MAX);
    FAILS(LMCS_INVALID, lmcs_policy_parse("since=5", &policy, &err));
    FAILS(LMCS_INVALID, lmcs_policy_parse("was=last:1", &policy, &err));
    FAILS(LMCS_INVALID, lmcs_policy_parse_stored("was=last:1 was=last:1", &policy, &err));
    FAILS(LMCS_INVALID, lmcs_policy_parse("grace=10", &policy, &err));
    for (size_t i = 0; lmcs_policy_key(i) != NULL; i++) {
        assert_string_not_equal(lmcs_policy_key(i)->name, "since");
        assert_string_not_equal(lmcs_policy_key(i)->name, "was");
    }
}

static void fill(struct lmcs_pool *pool, int count)
{
    struct rng rng = {1};
    struct state *now = state_weights(&rng, 1, 100);
    for (int i = 0; i < count; i++)
        take_snapshot(pool, "run", now, i);
    state_free(now);
}

static uint64_t left_at(struct lmcs_pool *pool, uint64_t now_ns)
{
    uint64_t removed;
    lmcs_clock_set(now_ns);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_prune_pool(pool, LMCS_PRUNE_SURPLUS, NULL, &removed, &err));
    OK(lmcs_prune_pool(pool, LMCS_PRUNE_BUDGETS, NULL, &removed, &err));
    return shelf_info(pool, "run").snapshot_count;
}

/* The time of the change is rounded up to `now_ns`. */
static void set_at(struct lmcs_pool *pool, uint64_t now_ns, const char *words)
{
    lmcs_clock_set(now_ns - SECOND / 2);
    OK(lmcs_shelf_set_policy(pool, "run", words, &err));
}

/* Also after the pool was closed. */
static void nothing_new_goes_before_the_end(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    lmcs_clock_set(NOON);
    fill(pool, 40);
    set_at(pool, NOON, "keep=last:20");
    assert_string_equal(shelf_info(pool, "run").policy, "keep_raw=4 chain=3 keep=last:20");
    assert_int_equal(left_at(pool, NOON + MINUTE), 40);
    close_pool(pool);
    pool = open_quiet(place->pool);
    assert_int_equal(left_at(pool, NOON + 9 * MINUTE), 40);
    assert_int_equal(left_at(pool, NOON + 10 * MINUTE), 20);
    /* The rules from before still apply. */
    fill(pool, 10);
    set_at(pool, NOON + 20 * MINUTE, "keep=last:2 grace=1h");
    assert_int_equal(left_at(pool, NOON + 79 * MINUTE), 20);
    OK(lmcs_tag_set(pool, "run", "precious", 31, &err));
    set_at(pool, NOON + 79 * MINUTE, "keep=last:5");
    assert_int_equal(left_at(pool, NOON + 138 * MINUTE), 20);
    assert_int_equal(left_at(pool, NOON + 139 * MINUTE), 6);
    /* A new policy keeps what was due. */
    fill(pool, 10);
    assert_int_equal(left_at(pool, NOON + 140 * MINUTE), 6);
    set_at(pool, NOON + 150 * MINUTE, "keep=last:1 grace=10m");
    set_at(pool, NOON + 151 * MINUTE, "keep=all");
    assert_int_equal(left_at(pool, NOON + 500 * MINUTE), 6);
    set_at(pool, NOON + 500 * MINUTE, "keep=last:1");
    set_at(pool, NOON + 501 * MINUTE, "grace=none");
    assert_int_equal(left_at(pool, NOON + 501 * MINUTE), 2);
    lmcs_clock_set(0);
    verify_pool(pool);
    close_pool(pool);
}

/* The clock was a year ahead at the change: the period begins again. */
static void a_clock_that_was_ahead(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    lmcs_clock_set(NOON);
    fill(pool, 10);
    set_at(pool, NOON + 365 * 24 * 60 * MINUTE, "keep=last:3");
    assert_int_equal(left_at(pool, NOON + MINUTE), 10);
    assert_int_equal(left_at(pool, NOON + 10 * MINUTE), 10);
    assert_int_equal(left_at(pool, NOON + 12 * MINUTE), 3);
    lmcs_clock_set(0);
    close_pool(pool);
}

struct due {
    uint64_t at_ns;
    size_t now, later;
};

static bool note_due(void *context, const struct lmcs_pruned *snapshot)
{
    struct due *due = context;
    EXPECT(snapshot->why == NULL || snapshot->due_ns == 0);
    due->now += snapshot->why == NULL && snapshot->due_ns == 0;
    due->later += snapshot->due_ns != 0;
    due->at_ns = snapshot->due_ns != 0 ? snapshot->due_ns : due->at_ns;
    return true;
}

static void expect_due(struct lmcs_pool *pool, const char *words, size_t now, size_t later, uint64_t at_ns)
{
    struct due due = {0};
    OK(lmcs_prune(pool, "run", words, true, note_due, &due, NULL, NULL, &err));
    assert_int_equal(due.now, now);
    assert_int_equal(due.later, later);
    assert_true(due.at_ns == at_ns);
}

static void a_dry_run_lists_when_snapshots_are_due(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_prune_report report;
    lmcs_clock_set(NOON);
    fill(pool, 40);
    set_at(pool, NOON, "keep=last:38 grace=none");
    set_at(pool, NOON, "keep=last:30,best:loss grace=10m");
    expect_due(pool, NULL, 0, 0, 0); /* no snapshot has the metric */
    set_at(pool, NOON + MINUTE, "keep=last:30");
    expect_due(pool, NULL, 0, 10, NOON + 11 * MINUTE);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    expect_due(pool, "  ", 0, 10, NOON + 11 * MINUTE);
    expect_due(pool, "keep=last:10", 30, 0, 0);
    close_pool(pool);
    pool = open_quiet(place->pool);
    set_at(pool, NOON + 12 * MINUTE, "keep=last:20");
    lmcs_clock_set(NOON + 12 * MINUTE);
    expect_due(pool, NULL, 10, 10, NOON + 22 * MINUTE);
    lmcs_clock_set(NOON + 22 * MINUTE);
    expect_due(pool, NULL, 20, 0, 0);
    lmcs_clock_set(NOON + 12 * MINUTE);
    OK(lmcs_prune(pool, "run", NULL, false, NULL, NULL, NULL, &report, &err)); /* on request: at once */
    assert_int_equal(report.removed, 20);
    lmcs_clock_set(0);
    close_pool(pool);
}

/* A capture without room does not wait for the end of the period. */
static void a_full_pool_does_not_wait(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    struct state *now = state_weights(&rng, 2, 250000);
    struct lmcs_pool *pool = open_limited(place->pool, 48 << 20);
    enum lmcs_status status = LMCS_OK;
    for (int64_t step = 0; status == LMCS_OK && step < 200; step++) {
        status = try_snapshot(pool, "run", now, step, NULL, &err);
        for (size_t i = 0; i < now->count; i++)
            rng_fill(&rng, now->tensors[i].data, now->tensors[i].bytes);
    }
    assert_int_equal(status, LMCS_FULL);
    uint64_t count = shelf_info(pool, "run").snapshot_count;
    OK(lmcs_tag_set(pool, "run", "precious", 1, &err));
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:3", &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(shelf_info(pool, "run").snapshot_count, count);
    take_snapshot(pool, "run", now, 1000);
    assert_in_range(shelf_info(pool, "run").snapshot_count, 4, count - 1);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes_add_up),           cmocka_unit_test(the_period_ends),
        IN_MEMORY(nothing_new_goes_before_the_end), IN_MEMORY(a_dry_run_lists_when_snapshots_are_due),
        IN_MEMORY(a_full_pool_does_not_wait),       IN_MEMORY(a_clock_that_was_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
