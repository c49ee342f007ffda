/* SPDX-License-Identifier: BSD-3-Clause */
/* test_address.c - the address grammar. */
#include <time.h>

#include "support.h"

#define SECOND ((uint64_t)1000000000)
#define DAY    (86400 * SECOND)

static uint64_t at(const char *utc)
{
    struct tm when = {.tm_isdst = 0};
    EXPECT(strptime(utc, "%Y-%m-%d %H:%M:%S", &when) != NULL);
    return (uint64_t)timegm(&when) * SECOND;
}

static uint64_t take_at(struct lmcs_pool *pool, const struct state *state, int64_t step, uint64_t time_ns)
{
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    uint64_t number;
    lmcs_commit_options_init(&options);
    options.step = step;
    options.time_ns = time_ns;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, state);
    OK(lmcs_capture_commit(capture, &options, &number, &err));
    return number;
}

static struct lmcs_pool *make_pool(const char *path)
{
    struct lmcs_pool *pool = open_quiet(path);
    struct rng rng = {1};
    struct state *state = state_weights(&rng, 1, 10);
    take_at(pool, state, 10, at("2026-11-19 23:59:59") + 500000000);
    take_at(pool, state, 20, at("2026-11-20 13:00:00"));
    take_at(pool, state, 20, at("2026-11-20 13:00:30") + 999999999);
    take_at(pool, state, 20, at("2026-11-20 13:01:00"));
    take_at(pool, state, -5, at("2026-11-21 00:00:00"));
    OK(lmcs_snapshot_remove(pool, "run", 3, false, NULL, &err));
    OK(lmcs_tag_set(pool, "run", "best", 2, &err));
    state_free(state);
    return pool;
}

/* 0: none; UINT64_MAX: invalid. */
static uint64_t find(struct lmcs_pool *pool, const char *which)
{
    struct lmcs_snapshot *snapshot;
    enum lmcs_status status = lmcs_snapshot_find(pool, "run", which, &snapshot, &err);
    if (status == LMCS_INVALID)
        return UINT64_MAX;
    if (status == LMCS_NOT_FOUND)
        return 0;
    OK(status);
    uint64_t number = lmcs_snapshot_info(snapshot)->number;
    lmcs_snapshot_close(snapshot);
    return number;
}

static void expect_numbers(struct lmcs_pool *pool, const char *const *which, uint64_t number)
{
    for (size_t i = 0; which[i] != NULL; i++) {
        uint64_t found = find(pool, which[i]);
        if (found != number)
            fail_msg("\"%s\" gives %llu, not %llu", which[i], (unsigned long long)found, (unsigned long long)number);
    }
}

static void test_points(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = make_pool(place->pool);
    expect_numbers(pool, (const char *const[]){"latest", "5", "", "step:-5", "005", NULL}, 5);
    expect_numbers(pool, (const char *const[]){"4", "latest~", "latest~1", "step:20", "5~", NULL}, 4);
    expect_numbers(pool, (const char *const[]){"2", "best", "latest~2", "4~1", "step:20~1", NULL}, 2);
    expect_numbers(pool, (const char *const[]){"1", "best~", "latest~3", "step:10", NULL}, 1);
    expect_numbers(pool,
                   (const char *const[]){"3", "0", "6", "nothing", "latest~4", "step:11", "best~2",
                                         "99999999999999999999999", "latest~99999999999999999999",
                                         "step:99999999999999999999", NULL},
                   0);
    static const char *const advice[][2] = {{"step:11", "none has that step; the nearest are 10 and 20"},
                                            {"step:999", "none has that step; the nearest is 20"},
                                            {"step:-99999999999999999999", "none has that step; the nearest is -5"},
                                            {"5-9", "A range is written 5..9"},
                                            {"5:9", "A range is written 5..9"}};
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
        (void)find(pool, advice[i][0]);
        EXPECT(strstr(err.message, advice[i][1]) != NULL);
    }
    expect_numbers(
        pool,
        (const char *const[]){"step:", "step:x", "latest~x", "a:b", "a@b", "{}", "{", "a{b", "1..2", "..", "~~", NULL},
        UINT64_MAX);
    close_pool(pool);
}

static void test_times(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = make_pool(place->pool);
    expect_numbers(pool,
                   (const char *const[]){"{2026-11-19}", "{2026-11-19 23:59}", "{2026-11-19T23:59:59Z}",
                                         "{2026-11-20 12:59:59}", "{2026-11-20 14:59:59 +02:00}",
                                         "{2026-11-20 14:59+0200}", "{2026-11-20 10:59 -02:00}", NULL},
                   1);
    expect_numbers(pool,
                   (const char *const[]){"{2026-11-20 13:00}", "{2026-11-20 13:00:00}", "{2026-11-20 13:00:30}",
                                         "{2026-11-20T15:00:00+02:00}", "{2026-11-20 13:01}~", NULL},
                   2);
    expect_numbers(pool,
                   (const char *const[]){"{2026-11-20}", "{2026-11-20 13:01}", "{2026-11-21+02:00}~1",
                                         "{2026-11-20 23:59:59}", NULL},
                   4);
    expect_numbers(pool, (const char *const[]){"{2026-11-21}", "{2026-11-21 00:00:00}", "{9999-12-31}", NULL}, 5);
    expect_numbers(pool,
                   (const char *const[]){"{2026-11-18}", "{1970-01-01}", "{2026-11-19 23:59:58}",
                                         "{99999999999999999 weeks ago}", NULL},
                   0);
    expect_numbers(pool,
                   (const char *const[]){"{2026-13-01}",
                                         "{2026-02-30}",
                                         "{2026-11-20 24:00}",
                                         "{2026-11-20 13:60}",
                                         "{2026-11-20 13}",
                                         "{2026-11-20 13:00:0}",
                                         "{26-11-20}",
                                         "{tomorrow}",
                                         "{2 hours}",
                                         "{two hours ago}",
                                         "{2 fortnights ago}",
                                         "{2 hours ago!}",
                                         "{-2 hours ago}",
                                         "{2 minss ago}",
                                         "{2026-11-20 13:00 +99:00}",
                                         "{2026-11-20",
                                         "2026-11-20}",
                                         "{now }",
                                         "{2 ss ago}",
                                         NULL},
                   UINT64_MAX);
    close_pool(pool);
}

static void test_times_ago(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {1};
    struct state *held = state_weights(&rng, 1, 10);
    uint64_t now = lmcs_now_ns();
    take_at(pool, held, 0, now - 15 * DAY);
    take_at(pool, held, 0, now - DAY - 3600 * SECOND);
    take_at(pool, held, 0, now - 7300 * SECOND);
    take_at(pool, held, 0, now - 100 * SECOND);
    take_at(pool, held, 0, now);
    expect_numbers(pool, (const char *const[]){"{now}", "{0 seconds ago}", NULL}, 5);
    expect_numbers(pool, (const char *const[]){"{1 minute ago}", "{50 s ago}", "{1 min ago}", NULL}, 4);
    expect_numbers(
        pool, (const char *const[]){"{2 hours ago}", "{2 h ago}", "{120 minutes ago}", "{101 seconds ago}", NULL}, 3);
    expect_numbers(pool, (const char *const[]){"{yesterday}", "{1 day ago}", "{25 hours ago}", "{1 d ago}", NULL}, 2);
    expect_numbers(pool, (const char *const[]){"{2 weeks ago}", "{2 w ago}", "{14 days ago}", "{1 week ago}", NULL}, 1);
    expect_numbers(pool, (const char *const[]){"{16 d ago}", NULL}, 0);
    state_free(held);
    close_pool(pool);
}

static void expect_range(struct lmcs_pool *pool, const char *range, uint64_t first, uint64_t last)
{
    uint64_t a = 0, b = 0;
    enum lmcs_status status = lmcs_snapshot_range(pool, "run", range, &a, &b, &err);
    if (status != LMCS_OK || a != first || b != last)
        fail_msg("\"%s\" gives %llu..%llu (%s)", range == NULL ? "" : range, (unsigned long long)a,
                 (unsigned long long)b, lmcs_status_name(status));
}

static void test_ranges(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = make_pool(place->pool);
    uint64_t a = 77, b = 77;
    expect_range(pool, "1..5", 1, 5);
    expect_range(pool, "..", 1, 5);
    expect_range(pool, "best..", 2, 5);
    expect_range(pool, "..best", 1, 2);
    expect_range(pool, "step:10..step:20", 1, 4);
    expect_range(pool, "{2026-11-20 13:00}..latest~1", 2, 4);
    expect_range(pool, "2..2", 2, 2);
    expect_range(pool, "best", 2, 2);
    expect_range(pool, "", 5, 5);
    expect_range(pool, NULL, 5, 5);
    FAILS(LMCS_INVALID, lmcs_snapshot_range(pool, "run", "5..1", &a, &b, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_range(pool, "run", "3..5", &a, &b, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_range(pool, "run", "1..9", &a, &b, &err));
    FAILS(LMCS_INVALID, lmcs_snapshot_range(pool, "run", "1..2..5", &a, &b, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_range(pool, "run", "1...5", &a, &b, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_range(pool, "nothing", "..", &a, &b, &err));
    EXPECT(a == 77 && b == 77);
    OK(lmcs_shelf_set_keep_raw(pool, "empty", 2, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_range(pool, "empty", "..", &a, &b, &err));
    close_pool(pool);
}

static void expect_clipped(struct lmcs_pool *pool, const char *range, uint64_t first, uint64_t last)
{
    uint64_t a = 0, b = 0;
    enum lmcs_status status = lmcs_snapshot_range_clip(pool, "run", range, &a, &b, &err);
    if (status != LMCS_OK || a != first || b != last)
        fail_msg("\"%s\" gives %llu..%llu (%s)", range, (unsigned long long)a, (unsigned long long)b,
                 lmcs_status_name(status));
}

/* Ends without a snapshot, except tags, are clipped for reading; without a snapshot inside, first is above last. */
static void test_clipped_ranges(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = make_pool(place->pool);
    uint64_t a = 77, b = 77;
    static const char *const empty[] = {"6..",       "6..9",      "99999999999999999999..", "step:21..", "..0",
                                        "6..latest", "..step:-6", "..{2026-11-18}",         "..best~7"};
    expect_clipped(pool, "1..5", 1, 5);
    expect_clipped(pool, "3..5", 3, 5);
    expect_clipped(pool, "1..9", 1, 5);
    expect_clipped(pool, "0..99999999999999999999", 0, 5);
    expect_clipped(pool, "step:11..", 4, 5);
    expect_clipped(pool, "step:-99..", 5, 5);
    expect_clipped(pool, "..step:15", 1, 1);
    expect_clipped(pool, "..step:99999999999999999999", 1, 4);
    expect_clipped(pool, "{2026-11-18}..best", 0, 2);
    expect_clipped(pool, "latest~9..", 0, 5);
    expect_clipped(pool, "3~1..", 2, 5);
    expect_clipped(pool, "best", 2, 2);
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        OK(lmcs_snapshot_range_clip(pool, "run", empty[i], &a, &b, &err));
        if (a <= b)
            fail_msg("\"%s\" gives %llu..%llu", empty[i], (unsigned long long)a, (unsigned long long)b);
    }
    a = b = 77;
    FAILS(LMCS_INVALID, lmcs_snapshot_range_clip(pool, "run", "5..1", &a, &b, &err));
    FAILS(LMCS_INVALID, lmcs_snapshot_range_clip(pool, "run", "9..7", &a, &b, &err));
    FAILS(LMCS_INVALID, lmcs_snapshot_range_clip(pool, "run", "6..best", &a, &b, &err));
    FAILS(LMCS_INVALID, lmcs_snapshot_range_clip(pool, "run", "1..step:x", &a, &b, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_range_clip(pool, "run", "3", &a, &b, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_range_clip(pool, "run", "nothing..", &a, &b, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_range_clip(pool, "run", "..nothing~3", &a, &b, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_range_clip(pool, "nothing", "..", &a, &b, &err));
    EXPECT(a == 77 && b == 77);
    OK(lmcs_shelf_set_keep_raw(pool, "empty", 2, &err));
    for (size_t i = 0; i < 3; i++) {
        OK(lmcs_snapshot_range_clip(pool, "empty", ((const char *const[]){"..", "1..", "latest..7"})[i], &a, &b, &err));
        EXPECT(a > b);
    }
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_range_clip(pool, "empty", "best..", &a, &b, &err));
    close_pool(pool);
}

static void test_newest(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = make_pool(place->pool);
    uint64_t numbers[8];
    size_t count;
    OK(lmcs_snapshot_newest(pool, "run", UINT64_MAX, numbers, 8, &count, &err));
    EXPECT(count == 4 && numbers[0] == 5 && numbers[1] == 4 && numbers[2] == 2 && numbers[3] == 1);
    OK(lmcs_snapshot_newest(pool, "run", 4, numbers, 1, &count, &err));
    EXPECT(count == 1 && numbers[0] == 2);
    OK(lmcs_snapshot_newest(pool, "run", 1, numbers, 8, &count, &err));
    EXPECT(count == 0);
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_newest(pool, "nothing", 1, numbers, 8, &count, &err));
    close_pool(pool);
}

/* Several tags at once, all or none, and only from their expected place. */
static void test_tags(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = make_pool(place->pool);
    const struct lmcs_tag_change both[] = {{"best", 5, 2}, {"last", 5, 0}};
    OK(lmcs_tags_change(pool, "run", both, 2, &err));
    expect_numbers(pool, (const char *const[]){"best", "last", NULL}, 5);
    FAILS(LMCS_EXISTS, lmcs_tags_change(pool, "run", both, 2, &err));
    EXPECT(strstr(err.message, "run@5") != NULL);
    const struct lmcs_tag_change half[] = {{"best", 1, 5}, {"last", 1, 4}};
    FAILS(LMCS_EXISTS, lmcs_tags_change(pool, "run", half, 2, &err));
    expect_numbers(pool, (const char *const[]){"best", "last", NULL}, 5);
    FAILS(LMCS_NOT_FOUND, lmcs_tags_change(pool, "run", &(struct lmcs_tag_change){"new", 5, 1}, 1, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_tags_change(pool, "run", &(struct lmcs_tag_change){"best", 3, 5}, 1, &err));
    FAILS(LMCS_NOT_FOUND,
          lmcs_tags_change(pool, "run", &(struct lmcs_tag_change){"new", 0, LMCS_TAG_ANYWHERE}, 1, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_tag_set(pool, "run", "best", 0, &err));
    FAILS(LMCS_INVALID, lmcs_tag_set(pool, "run", "a{", 1, &err));
    FAILS(LMCS_INVALID, lmcs_tag_set(pool, "run", "}", 1, &err));
    OK(lmcs_tags_change(pool, "run", &(struct lmcs_tag_change){"best", 0, 5}, 1, &err));
    expect_numbers(pool, (const char *const[]){"best", NULL}, 0);
    OK(lmcs_tags_change(pool, "run", NULL, 0, &err));
    check_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(test_points),         IN_MEMORY(test_times),  IN_MEMORY(test_times_ago), IN_MEMORY(test_ranges),
        IN_MEMORY(test_clipped_ranges), IN_MEMORY(test_newest), IN_MEMORY(test_tags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
