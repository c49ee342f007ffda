/* SPDX-License-Identifier: BSD-3-Clause */
/* test_line.c - where in a line a new link would be. */
/* ctest: timeout=600 */
#include "links/line.h"
#include "media/media.h"
#include "pages/txn.h"
#include "records/safety.h"
#include "snapshots/snapshot.h"
#include "test_links_support.h"

#define ARRAYS 3

struct found {
    struct lmcs_line_end end;
    enum lmcs_links verdict;
};

static void arrays_of(struct lmcs_pool *pool, uint64_t number, struct lmcs_content *arrays)
{
    for (unsigned i = 0; i < ARRAYS; i++) {
        char name[64];
        snprintf(name, sizeof name, "p1.%s", adam_roles[i]);
        arrays[i] = record_of(pool, "run", number, name);
    }
}

static struct found find(struct lmcs_txn *txn, const struct lmcs_content *arrays)
{
    struct found found;
    OK(lmcs_line_find(txn, arrays, ARRAYS, &found.end, &found.verdict, &err));
    return found;
}

static struct found find_from(struct lmcs_pool *pool, const struct lmcs_content *arrays)
{
    struct lmcs_txn txn;
    OK(lmcs_txn_read(pool, &txn, &err));
    const struct found found = find(&txn, arrays);
    lmcs_txn_end(&txn);
    return found;
}

static struct found find_after(struct lmcs_pool *pool, uint64_t number)
{
    struct lmcs_content arrays[ARRAYS];
    arrays_of(pool, number, arrays);
    return find_from(pool, arrays);
}

static void expect_made(struct found found, uint32_t place, uint32_t links)
{
    assert_int_equal(found.verdict, LMCS_LINKS_MADE);
    assert_int_equal(found.end.place, place);
    assert_int_equal(found.end.links, links);
    assert_false(found.end.breaks);
}

static void expect_break(struct found found)
{
    assert_int_equal(found.verdict, LMCS_LINKS_MADE);
    assert_int_equal(found.end.place, 1);
    assert_int_equal(found.end.links, 1);
    assert_true(found.end.breaks);
}

/* Step 1 is a keyframe, 2 to 8 are linked, 9 is raw with a link to it, 10 is raw. */
static struct lmcs_pool *linked_run(struct run *run, struct place *place)
{
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=2");
    run_on(run, pool, "run", 10);
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(record_of(pool, "run", 1, "p1.weight").df.payload, LMCS_PAYLOAD_FRAME);
    assert_int_equal(record_of(pool, "run", 8, "p1.weight").df.payload, LMCS_PAYLOAD_LINKED);
    const struct lmcs_content raw = record_of(pool, "run", 9, "p1.weight");
    assert_int_equal(raw.df.payload, LMCS_PAYLOAD_RAW);
    assert_true(raw.link != 0);
    return pool;
}

static void links_follow_any_form(void **state)
{
    struct run run;
    struct lmcs_pool *pool = linked_run(&run, *state);
    expect_made(find_after(pool, 1), 1, 1);
    expect_made(find_after(pool, 8), 8, 8);
    expect_made(find_after(pool, 9), 9, 9);
    expect_made(find_after(pool, 10), 1, 1);
    close_pool(pool);
    run_end(&run);
}

/* A raw array may be stored by its link later: then a reader applies all links below it. */
static void raw_arrays_in_a_line_count(void **state)
{
    struct run run;
    struct lmcs_content before[ARRAYS], raw;
    struct lmcs_pool *pool = linked_run(&run, *state);
    struct lmcs_txn txn;
    arrays_of(pool, 8, before);
    raw = record_of(pool, "run", 10, "p1.weight");
    const struct lmcs_content link = content_record(pool, before[0].link);
    OK(lmcs_txn_write(pool, &txn, &err));
    for (unsigned i = 0; i < ARRAYS; i++) { /* the arrays before step 8 become raw; never committed */
        struct lmcs_content content;
        OK(lmcs_content_get(&txn, link.bases[i], &content, &err));
        content.df.payload = LMCS_PAYLOAD_RAW;
        content.df.stored_bytes = content.df.raw_bytes;
        content.df.part_count = raw.df.part_count;
        memcpy(content.parts, raw.parts, sizeof content.parts);
        OK(lmcs_content_put(&txn, &content, &err));
    }
    expect_made(find(&txn, before), 8, 8);
    lmcs_txn_end(&txn);
    close_pool(pool);
    run_end(&run);
}

/* Recorded places don't fall when a step below is stored alone, and the links that a reader applies do. */
static void a_keyframe_shortens_the_line(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), ANY, small);
    set_policy(pool, "run", "keep_raw=1 links=32");
    run_on(&run, pool, "run", 24);
    OK(lmcs_compact(pool, NULL, &err));
    for (uint64_t n = 3; n <= 22; n++)
        if (n % 10 != 0)
            OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(storage_of(pool, "run", 23).longest_line, 3);
    /* keyframes lower the places of the links above them, too */
    expect_made(find_after(pool, 23), 4, 4);
    close_pool(pool);
    run_end(&run);
}

static void full_lines_end(void **state)
{
    struct run run;
    struct lmcs_content before[ARRAYS];
    struct lmcs_pool *pool = linked_run(&run, *state);
    struct lmcs_txn txn;
    arrays_of(pool, 8, before);
    struct lmcs_content link = content_record(pool, before[0].link);
    link.df.place = LMCS_LINK_BOUND;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_content_put(&txn, &link, &err));
    assert_int_equal(find(&txn, before).verdict, LMCS_LINKS_FIRST);
    lmcs_txn_end(&txn);
    close_pool(pool);
    run_end(&run);
}

/* Raw arrays can begin a new line; linked ones can't be read without theirs. */
static void broken_lines_are_not_continued(void **state)
{
    struct run run;
    struct lmcs_content linked[ARRAYS], raw[ARRAYS], mixed[ARRAYS];
    const unsigned char bad = 1;
    struct lmcs_pool *pool = linked_run(&run, *state);
    struct lmcs_txn txn;
    arrays_of(pool, 8, linked);
    arrays_of(pool, 9, raw);
    memcpy(mixed, raw, sizeof mixed);
    mixed[0] = raw[1];
    mixed[1] = raw[0];
    expect_break(find_from(pool, mixed));
    mixed[1] = raw[1];
    assert_int_equal(find_from(pool, mixed).verdict, LMCS_LINKS_NOT_RAW);
    memcpy(mixed, linked, sizeof mixed);
    mixed[0] = linked[1];
    mixed[1] = linked[0];
    assert_int_equal(find_from(pool, mixed).verdict, LMCS_LINKS_NOT_RAW);
    mixed[0] = raw[0];
    mixed[1] = linked[1];
    assert_int_equal(find_from(pool, mixed).verdict, LMCS_LINKS_NOT_RAW);

    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_lost_set(&txn, linked[0].link, &bad, 1, NULL, &err));
    assert_int_equal(find(&txn, linked).verdict, LMCS_LINKS_NOT_RAW);
    expect_break(find(&txn, raw));
    OK(lmcs_line_break(&txn, raw, ARRAYS, &err));
    for (unsigned i = 0; i < ARRAYS; i++)
        OK(lmcs_content_get(&txn, raw[i].id, &raw[i], &err));
    expect_made(find(&txn, raw), 1, 1);
    OK(lmcs_lost_set(&txn, raw[2].id, &bad, 1, NULL, &err));
    assert_int_equal(find(&txn, raw).verdict, LMCS_LINKS_NOT_RAW);
    lmcs_txn_end(&txn);
    check_pool(pool);
    close_pool(pool);
    run_end(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(links_follow_any_form),          IN_MEMORY(raw_arrays_in_a_line_count),
        IN_MEMORY(a_keyframe_shortens_the_line),   IN_MEMORY(full_lines_end),
        IN_MEMORY(broken_lines_are_not_continued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
