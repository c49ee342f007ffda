/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_history.c - the check of histories (tests/stress/) accepts possible histories and refuses others.
 *
 * A history lists calls with their times. Overlapping calls may have happened in either order.
 */
#include "stress/history.h"

static struct event at(uint64_t begun, uint64_t ended, enum op op, uint64_t number)
{
    return (struct event){.begun_ns = begun, .ended_ns = ended, .op = (uint8_t)op, .number = number, .found = true};
}

/* A commit's ticket is its number plus 100. */
static struct event committed(uint64_t begun, uint64_t ended, uint64_t number, uint64_t tags)
{
    struct event event = at(begun, ended, OP_COMMIT, number);
    event.ticket = number + 100;
    event.value = tags;
    return event;
}

static struct event found(uint64_t begun, uint64_t ended, enum op op, uint32_t arg, uint64_t number)
{
    struct event event = at(begun, ended, op, number);
    event.arg = arg;
    event.found = number != 0;
    event.ticket = number == 0 ? 0 : number + 100;
    return event;
}

static struct event missing(struct event event)
{
    event.found = false;
    return event;
}

static struct event removed(uint64_t begun, uint64_t ended, uint64_t number, uint64_t tags)
{
    struct event event = at(begun, ended, OP_REMOVE, number);
    event.value = tags;
    return event;
}

static struct event tagged(uint64_t begun, uint64_t ended, uint32_t tag, uint64_t number)
{
    struct event event = at(begun, ended, number != 0 ? OP_TAG_SET : OP_TAG_REMOVE, number);
    event.arg = tag;
    return event;
}

static struct event tags_of(uint64_t begun, uint64_t ended, uint64_t number, uint64_t mask)
{
    struct event event = at(begun, ended, OP_TAGS, number);
    event.value = mask;
    return event;
}

static enum verdict check(const struct event *events, size_t count)
{
    struct model model;
    struct verdict_report report;
    model_init(&model);
    return history_check(&model, events, count, 100000, &report);
}

#define TAKEN(...)                                                                       \
    do {                                                                                 \
        const struct event events[] = {__VA_ARGS__};                                     \
        assert_int_equal(check(events, sizeof events / sizeof events[0]), LINEARISABLE); \
    } while (0)
#define REFUSED(...)                                                                         \
    do {                                                                                     \
        const struct event events[] = {__VA_ARGS__};                                         \
        assert_int_equal(check(events, sizeof events / sizeof events[0]), NOT_LINEARISABLE); \
    } while (0)

static void one_after_the_other(void **state)
{
    (void)state;
    TAKEN(committed(1, 2, 1, 0), found(3, 4, OP_FIND_LATEST, 0, 1), committed(5, 6, 2, 0),
          found(7, 8, OP_FIND_LATEST, 0, 2), found(9, 10, OP_FIND_LATEST, 1, 1));
    REFUSED(committed(1, 2, 1, 0), found(3, 4, OP_FIND_LATEST, 0, 0)); /* durable, but not found */
    REFUSED(found(1, 2, OP_FIND_LATEST, 0, 1), committed(3, 4, 1, 0)); /* found before it was made */
    REFUSED(committed(1, 2, 1, 0), committed(3, 4, 3, 0));             /* a number skipped */
    REFUSED(committed(1, 2, 1, 0), committed(3, 4, 1, 0));             /* given twice */
    REFUSED(committed(1, 2, 1, 0), removed(3, 4, 1, 0), at(5, 6, OP_LOOK, 1));
    TAKEN(committed(1, 2, 1, 0), removed(3, 4, 1, 0), missing(at(5, 6, OP_LOOK, 1)), committed(7, 8, 2, 0));
    REFUSED(committed(1, 2, 1, 0), removed(3, 4, 1, 0), committed(5, 6, 1, 0)); /* a number reused */
}

static void at_the_same_time(void **state)
{
    (void)state;
    for (uint64_t seen = 0; seen < 2; seen++)
        TAKEN(committed(1, 10, 1, 0), found(2, 9, OP_FIND_LATEST, 0, seen));
    REFUSED(committed(1, 10, 1, 0), found(2, 3, OP_FIND_LATEST, 0, 1), found(4, 5, OP_FIND_LATEST, 0, 0));
    TAKEN(committed(1, 10, 1, 0), found(2, 5, OP_FIND_LATEST, 0, 1), found(4, 6, OP_FIND_LATEST, 0, 0));
    TAKEN(committed(1, 2, 1, 0), removed(3, 9, 1, 0), missing(at(4, 8, OP_REMOVE, 1)));
    REFUSED(committed(1, 2, 1, 0), removed(3, 9, 1, 0), removed(4, 8, 1, 0));
}

static void tags_are_registers(void **state)
{
    (void)state;
    const struct event one = committed(1, 2, 1, 0), two = committed(3, 4, 2, 0);
    TAKEN(one, two, tagged(5, 6, 0, 1), tagged(7, 8, 0, 2), found(9, 10, OP_FIND_TAG, 0, 2));
    REFUSED(one, two, tagged(5, 6, 0, 1), tagged(7, 8, 0, 2), found(9, 10, OP_FIND_TAG, 0, 1)); /* stale */
    REFUSED(one, two, tagged(5, 6, 0, 1), tagged(7, 20, 0, 2), found(8, 9, OP_FIND_TAG, 0, 0));
    REFUSED(one, two, tagged(5, 6, 0, 1), tagged(7, 20, 0, 2), tags_of(8, 9, 2, 1), tags_of(10, 11, 1, 1));
    TAKEN(one, two, tagged(5, 6, 0, 1), tagged(7, 20, 0, 2), tags_of(8, 9, 1, 1), tags_of(10, 11, 2, 1));
    /* A removal moves the tag and reports it. */
    TAKEN(one, tagged(5, 6, 3, 1), removed(7, 8, 1, 1), found(9, 10, OP_FIND_TAG, 3, 0));
    REFUSED(one, tagged(5, 6, 3, 1), removed(7, 8, 1, 0));
    REFUSED(one, two, tagged(5, 6, 3, 1), removed(7, 8, 1, 1), tagged(9, 10, 3, 0));
    REFUSED(one, missing(tagged(5, 6, 3, 1)));
    REFUSED(one, committed(3, 20, 2, 1), found(4, 5, OP_FIND_LATEST, 0, 2), found(6, 7, OP_FIND_TAG, 0, 0));
    TAKEN(one, committed(3, 20, 2, 1), found(4, 5, OP_FIND_LATEST, 0, 2), found(6, 7, OP_FIND_TAG, 0, 2));
}

static void lists_and_infos_are_of_one_moment(void **state)
{
    (void)state;
    const struct event one = committed(1, 2, 1, 0), two = committed(3, 20, 2, 0);
    const uint64_t both[] = {1, 2};
    struct event listed = at(4, 5, OP_LIST, 0), info = at(6, 7, OP_INFO, 2);
    listed.arg = 10;
    listed.value = list_hash(both, 2);
    info.ticket = 3;
    info.arg = DEFAULT_KEEP_RAW;
    info.value = 2;
    TAKEN(one, two, listed, info);
    info.value = 1;
    REFUSED(one, two, listed, info);
    info.value = 2;
    info.arg = 9;
    REFUSED(one, two, listed, info);
    struct event keep = at(5, 30, OP_KEEP_RAW, 0);
    keep.value = 9;
    TAKEN(one, two, listed, info, keep);
    listed.value = list_hash(both, 1);
    info.arg = DEFAULT_KEEP_RAW;
    TAKEN(one, two, listed, info);
    listed.value = list_hash(both + 1, 1);
    REFUSED(one, two, listed, info);
}

static void wrong_bytes_of_a_ticket(void **state)
{
    (void)state;
    struct event other = found(3, 4, OP_FIND_NUMBER, 0, 1);
    TAKEN(committed(1, 2, 1, 0), other);
    other.ticket++;
    REFUSED(committed(1, 2, 1, 0), other);
}

/* Sequential runs with calls stretched until they overlap are accepted, and refused after one answer changes to a never
 * true one. Both searches visit a bounded number of states. */
static size_t make_history(struct rng *rng, struct event *events, size_t most)
{
    uint64_t latest = 0, tags[TAGS] = {0}, now = 1000;
    size_t count = 0;
    while (count < most) {
        uint64_t begun = now - rng_below(rng, 300), ended = now + rng_below(rng, 300);
        unsigned tag = (unsigned)rng_below(rng, TAGS);
        switch (rng_below(rng, 4)) {
        case 0:
            if (latest < MOST_PRESENT)
                events[count++] = committed(now - 40, ended, ++latest, 0);
            break;
        case 1:
            if (latest > 0) {
                tags[tag] = 1 + rng_below(rng, latest);
                events[count++] = tagged(begun, ended, tag, tags[tag]);
            }
            break;
        case 2:
            events[count++] = found(begun, ended, OP_FIND_TAG, tag, tags[tag]);
            break;
        default:
            events[count++] = found(begun, ended, OP_FIND_LATEST, 0, latest);
        }
        now += 50;
    }
    return count;
}

static void long_histories(void **state)
{
    enum { MOST = 3000 };
    (void)state;
    struct event *events = malloc(MOST * sizeof *events);
    assert_non_null(events);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct rng rng = {seed};
        size_t count = make_history(&rng, events, MOST), i;
        assert_int_equal(check(events, count), LINEARISABLE);
        do
            i = MOST / 2 + rng_below(&rng, MOST / 2);
        while (events[i].op != OP_FIND_LATEST || events[i].number < 40);
        events[i].number -= 30;
        events[i].ticket -= 30;
        assert_int_equal(check(events, count), NOT_LINEARISABLE);
    }
    free(events);
}

static void the_state_goes_on(void **state)
{
    (void)state;
    struct model model;
    struct verdict_report report;
    const struct event first[] = {committed(1, 2, 1, 0), committed(3, 4, 2, 2), removed(5, 6, 1, 0)};
    const struct event second[] = {found(11, 12, OP_FIND_LATEST, 0, 2), found(13, 14, OP_FIND_TAG, 1, 2),
                                   committed(15, 16, 3, 0)};
    model_init(&model);
    assert_int_equal(history_check(&model, first, 3, 1000, &report), LINEARISABLE);
    assert_int_equal(history_check(&model, second, 3, 1000, &report), LINEARISABLE);
    assert_int_equal(model.count, 2);
    assert_int_equal(model.next, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_after_the_other),     cmocka_unit_test(at_the_same_time),
        cmocka_unit_test(tags_are_registers),      cmocka_unit_test(lists_and_infos_are_of_one_moment),
        cmocka_unit_test(wrong_bytes_of_a_ticket), cmocka_unit_test(long_histories),
        cmocka_unit_test(the_state_goes_on),
    };
    return cmocka_run_group_tests_name("history", tests, NULL, NULL);
}
