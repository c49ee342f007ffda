/* SPDX-License-Identifier: BSD-3-Clause */
/* test_clock.c - ages, schedules and waits while the time of day jumps. */
#include "base/clock.h"
#include "compact/round.h"
#include "repair/scrub.h"
#include "support.h"

#define SECOND ((uint64_t)1000000000)
#define HOUR   (3600 * SECOND)
#define DAY    (24 * HOUR)
#define NOON   (20000 * DAY + 12 * HOUR) /* of 2024-10-04, UTC */

/* Takes a snapshot every 20 minutes from noon on. */
static void grow(struct lmcs_pool *pool, int count, uint64_t elements)
{
    struct rng rng = {1};
    struct state *now = state_weights(&rng, 2, elements);
    for (int i = 0; i < count; i++) {
        lmcs_clock_set(NOON + (uint64_t)i * HOUR / 3);
        take_snapshot(pool, "run", now, i);
        state_step(now, &rng, 0, now->count);
    }
    state_free(now);
}

static uint64_t prune_at(struct lmcs_pool *pool, uint64_t now_ns)
{
    struct lmcs_prune_report report;
    lmcs_clock_set(now_ns);
    OK(lmcs_prune(pool, "run", NULL, true, NULL, NULL, NULL, &report, &err));
    return report.kept;
}

static void snapshots_age(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    grow(pool, 18, 1000); /* 12:00 to 17:40 */
    OK(lmcs_shelf_set_policy(pool, "run", "keep=each:1h/2d,last:2", &err));
    assert_int_equal(prune_at(pool, NOON + DAY), 8);                    /* 12:00, 13:00 to 17:00, 17:20 and 17:40 */
    assert_int_equal(prune_at(pool, NOON + 2 * DAY + 5 * HOUR / 2), 6); /* 14:40, 15:00, and the same from 16:00 on */
    assert_int_equal(prune_at(pool, NOON + 3 * DAY), 2);
    assert_int_equal(prune_at(pool, NOON - DAY), 8); /* set back: none is too old */
    verify_pool(pool);
    close_pool(pool);
}

static uint64_t number_at(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    uint64_t number = lmcs_snapshot_info(snapshot)->number;
    lmcs_snapshot_close(snapshot);
    return number;
}

static void addresses_count_back_from_now(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    grow(pool, 18, 1000);
    lmcs_clock_set(NOON + DAY + HOUR / 6);
    assert_int_equal(number_at(pool, "run@{now}"), 18);
    assert_int_equal(number_at(pool, "run@{yesterday}"), 1);
    assert_int_equal(number_at(pool, "run@{22 hours ago}"), 7);
    assert_int_equal(number_at(pool, "run@{1280 min ago}"), 9);
    close_pool(pool);
}

/* A pass is due once per period of the policy, also if there is nothing to read. */
static void an_empty_pool_is_scrubbed_seldom(void **state)
{
    struct place *place = *state;
    struct lmcs_scrub_turn turn = {.is_loaded = false};
    struct lmcs_pool *pool = open_quiet(place->pool);
    uint64_t now = NOON;
    lmcs_clock_set(now);
    OK(lmcs_shelf_set_policy(pool, "run", "scrub=100d", &err));
    uint64_t epoch = pool_info(pool).epoch;
    OK(lmcs_scrub_turn(pool, &turn, NULL, NULL, &err));
    EXPECT(pool_info(pool).epoch == epoch);
    for (int day = 1; day <= 110; day++) {
        lmcs_clock_set(now += DAY);
        OK(lmcs_scrub_turn(pool, &turn, NULL, NULL, &err));
        EXPECT(pool_info(pool).epoch == epoch + (day < 100 ? 1 : 2) || day == 100);
    }
    close_pool(pool);
}

static void a_pass_reads_everything_in_its_period(void **state)
{
    struct place *place = *state;
    struct lmcs_scrub_turn turn = {.is_loaded = false};
    struct lmcs_pool *pool = open_quiet(place->pool);
    grow(pool, 8, 100000);
    OK(lmcs_shelf_set_policy(pool, "run", "scrub=30d", &err));
    lmcs_clock_set(NOON + DAY);
    OK(lmcs_scrub_turn(pool, &turn, NULL, NULL, &err));
    lmcs_clock_set(NOON + 16 * DAY);
    OK(lmcs_scrub_turn(pool, &turn, NULL, NULL, &err));
    EXPECT(turn.bytes > 0);
    EXPECT(pool_info(pool).scrubbed_ns == 0);
    lmcs_clock_set(NOON + DAY); /* set back: nothing is due, and the pass goes on later */
    OK(lmcs_scrub_turn(pool, &turn, NULL, NULL, &err));
    EXPECT(pool_info(pool).scrubbed_ns == 0);
    lmcs_clock_set(NOON + 17 * DAY);
    OK(lmcs_scrub_turn(pool, &turn, NULL, NULL, &err));
    uint64_t done_ns = pool_info(pool).scrubbed_ns;
    EXPECT(done_ns >= NOON + 17 * DAY && done_ns < NOON + 18 * DAY);
    close_pool(pool);
}

/* A wait by the time of day would take the day. */
static void a_clock_set_back_delays_no_background_work(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_throttle throttle = {.pool = pool};
    lmcs_clock_set(NOON);
    lmcs_throttle_hold(&throttle, 1 << 20, 1 << 10);
    lmcs_clock_set(NOON - DAY);
    lmcs_throttle_hold(&throttle, 1 << 20, 1 << 10);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(snapshots_age),
        IN_MEMORY(addresses_count_back_from_now),
        IN_MEMORY(an_empty_pool_is_scrubbed_seldom),
        IN_MEMORY(a_pass_reads_everything_in_its_period),
        IN_MEMORY(a_clock_set_back_delays_no_background_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
