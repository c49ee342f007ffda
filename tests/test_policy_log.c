/* SPDX-License-Identifier: BSD-3-Clause */
/* test_policy_log.c - the bounded record of the snapshots that policies removed. */
#include "base/clock.h"
#include "test_policy_support.h"

#define SECOND ((uint64_t)1000000000)

static void add_removal(struct lmcs_policy *policy, const char *rules, uint64_t first, uint64_t last, uint64_t seconds)
{
    struct lmcs_policy by;
    char text[LMCS_MAX_POLICY + 1];
    lmcs_policy_init(&by);
    OK(lmcs_policy_parse(rules, &by, &err));
    OK(lmcs_policy_format_rules(&by, text, &err));
    for (uint64_t number = first; number <= last; number++)
        lmcs_policy_log_add(policy, text, &number, 1, seconds * SECOND + 7);
}

static void entries_are_joined(void **state)
{
    (void)state;
    struct lmcs_policy policy;
    struct lmcs_prune_event event;
    lmcs_policy_init(&policy);
    add_removal(&policy, "keep=last:10", 1, 5, 100);
    assert_string_equal(policy.log, "100-100:5:1-5:last:10");
    add_removal(&policy, "keep=last:10", 6, 6, 160);
    add_removal(&policy, "keep=last:10", 9, 9, 170);
    add_removal(&policy, "keep=last:10", 8, 8, 180);
    assert_string_equal(policy.log, "100-180:8:1-6,8-9:last:10");
    add_removal(&policy, "keep=last:2,best:a;b|c@d:3:max", 7, 7, 190);
    add_removal(&policy, "keep=last:10", 11, 11, 200);
    assert_string_equal(policy.log,
                        "200-200:1:11:last:10 190-190:1:7:last:2,best:a;b|c@d:3:max 100-180:8:1-6,8-9:last:10");
    const char *at = policy.log;
    assert_true(lmcs_policy_log_next(&at, &event) && event.first_ns == 200 * SECOND && event.count == 1);
    assert_true(lmcs_policy_log_next(&at, &event));
    assert_string_equal(event.policy, "keep=last:2,best:a;b|c@d:3:max");
    assert_true(lmcs_policy_log_next(&at, &event) && event.range_count == 2 && event.ranges[1].last == 9);
    assert_false(lmcs_policy_log_next(&at, &event));
}

/* Beyond the ranges of an entry the nearest are joined; the number of snapshots stays exact. */
static void ranges_are_bounded(void **state)
{
    (void)state;
    struct lmcs_policy policy;
    struct lmcs_prune_event event;
    lmcs_policy_init(&policy);
    for (uint64_t first = 2; first < 1000; first += 5)
        add_removal(&policy, "keep=every:5", first, first + 3, first);
    add_removal(&policy, "keep=every:5", 100000, 100000, 5000);
    const char *at = policy.log;
    assert_true(lmcs_policy_log_next(&at, &event));
    assert_int_equal(event.count, 801);
    assert_in_range(event.range_count, 2, LMCS_PRUNE_RANGES);
    assert_int_equal(event.ranges[0].first, 2);
    assert_int_equal(event.ranges[event.range_count - 2].last, 1000);
    assert_int_equal(event.ranges[event.range_count - 1].first, 100000);
    assert_int_equal(event.first_ns, 2 * SECOND);
    assert_int_equal(event.last_ns, 5000 * SECOND);
}

/* The newest entries stay, also beside a long policy, whose own words come first. */
static void the_record_is_bounded(void **state)
{
    (void)state;
    struct lmcs_policy policy, read;
    char text[LMCS_MAX_POLICY + 1], rules[200], entry[40];
    lmcs_policy_init(&policy);
    for (unsigned i = 1; i < 200; i++) {
        snprintf(rules, sizeof rules, "keep=last:%u", i);
        add_removal(&policy, rules, i, i, 1000 + i);
        OK(lmcs_policy_format_stored(&policy, text, &err));
        lmcs_policy_init(&read);
        OK(lmcs_policy_parse_stored(text, &read, &err));
        snprintf(entry, sizeof entry, "%u-%u:1:%u:last:%u", 1000 + i, 1000 + i, i, i);
        assert_true(strncmp(read.log, entry, strlen(entry)) == 0);
        assert_true(strncmp(policy.log, read.log, strlen(read.log)) == 0);
        assert_true(strlen(text) <= LMCS_MAX_POLICY);
    }
    assert_true(strlen(read.log) > 200);
    strcpy(rules, "keep=");
    for (int i = 0; i < 3; i++)
        snprintf(rules + strlen(rules), sizeof rules - strlen(rules), "%sbest:m%050d:1", i > 0 ? "," : "", i);
    OK(lmcs_policy_parse(rules, &policy, &err));
    OK(lmcs_policy_format_stored(&policy, text, &err));
    assert_non_null(strstr(text, rules));
    assert_non_null(strstr(text, " log=1199-1199:1:199:last:199"));
    static const char *const wrong[] = {"log=",
                                        "log=1",
                                        "log=1-2:3",
                                        "log=1-2:3:4",
                                        "log=1-2:3:4:",
                                        "log=1-2:3:4:most",
                                        "log=1-2:3:0:last:1",
                                        "log=1-2:3:5-4:last:1",
                                        "log=1-2:3:1,2,3,4,5,6,7,8,9:last:1",
                                        "log=99999999999999999999-1:1:1:last:1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        FAILS(LMCS_INVALID, lmcs_policy_parse_stored(wrong[i], &read, &err));
    FAILS(LMCS_INVALID, lmcs_policy_parse("log=1-2:3:4:last:1", &read, &err));
}

static bool count_event(void *context, const struct lmcs_prune_event *event)
{
    uint64_t *count = context;
    *count += event->count;
    return true;
}

static uint64_t removed_on(struct lmcs_pool *pool)
{
    uint64_t count = 0;
    OK(lmcs_prune_log(pool, "run", count_event, &count, &err));
    return count;
}

static void every_way_of_pruning_is_recorded(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct state *now = state_weights(&rng, 1, 100);
    struct lmcs_pool *pool = open_quiet(place->pool);
    uint64_t removed;
    FAILS(LMCS_NOT_FOUND, lmcs_prune_log(pool, "run", count_event, &removed, &err));
    for (int i = 0; i < 200; i++)
        take_snapshot(pool, "run", now, i);
    OK(lmcs_prune(pool, "run", "keep=last:150", true, NULL, NULL, NULL, NULL, &err));
    assert_int_equal(removed_on(pool), 0);
    OK(lmcs_prune(pool, "run", "keep=last:100", false, NULL, NULL, NULL, NULL, &err)); /* several batches */
    assert_int_equal(removed_on(pool), 100);
    assert_string_equal(shelf_info(pool, "run").policy, "keep_raw=4 chain=3 keep=all");
    OK(lmcs_snapshot_remove(pool, "run", 200, false, NULL, &err)); /* by no policy */
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:50 grace=none", &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(removed_on(pool), 149);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:20 keep_raw=7", &err));
    OK(lmcs_prune_pool(pool, LMCS_PRUNE_ALL, NULL, &removed, &err));
    assert_int_equal(removed_on(pool), 179);
    assert_int_equal(shelf_info(pool, "run").keep_raw, 7);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    assert_int_equal(removed_on(pool), 179);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_joined),
        cmocka_unit_test(ranges_are_bounded),
        cmocka_unit_test(the_record_is_bounded),
        IN_MEMORY(every_way_of_pruning_is_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
