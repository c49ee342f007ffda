/* SPDX-License-Identifier: BSD-3-Clause */
/* test_links_damage.c - damaged links, raw arrays that rot before they become links, and parity of links. */
/* ctest: timeout=600 */
#include "media/media.h"
#include "pages/tree.h"
#include "pages/txn.h"
#include "payload/read.h"
#include "records/content.h"
#include "snapshots/snapshot.h"
#include "test_links_support.h"
#include <pthread.h>
#include <stdatomic.h>

/* Returns the number of unreadable tensors of a snapshot; the others are right. */
static size_t unreadable(const struct run *run, struct lmcs_pool *pool, uint64_t number)
{
    char address[32];
    size_t count = 0;
    snprintf(address, sizeof address, "run@%llu", (unsigned long long)number);
    for (size_t t = 0; t < run->states[number]->count; t++) {
        const struct held *held = &run->states[number]->tensors[t];
        enum lmcs_status status = read_tensor(pool, address, held, 0, held->bytes);
        assert_true(status == LMCS_OK || status == LMCS_DAMAGED);
        count += status == LMCS_DAMAGED;
    }
    return count;
}

static struct lmcs_content link_record(struct lmcs_pool *pool, uint64_t number, const char *tensor)
{
    struct lmcs_content content = record_of(pool, "run", number, tensor);
    assert_int_equal(content.df.payload, LMCS_PAYLOAD_LINKED);
    return content_record(pool, content.link);
}

static void damage_is_found_and_named(void **state)
{
    struct place *place = *state;
    struct run run;
    struct telling telling;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "keep_raw=1 parity=none");
    run_on(&run, pool, "run", 8);
    OK(lmcs_compact(pool, NULL, &err));
    expect_clean(pool);
    struct lmcs_content link = link_record(pool, 4, "p1.weight");
    damage_content(place->pool, &link, link.df.stored_bytes - 20, 1);
    FAILS(LMCS_DAMAGED, scrub_with(pool, NULL, &telling));
    assert_int_equal(telling.count, 1);
    assert_true(telling.items[0].content == link.id);
    assert_string_equal(telling.items[0].holders, "run@4..7 p1.exp_avg; run@4..7 p1.exp_avg_sq; run@4..7 p1.weight; ");
    for (uint64_t n = 1; n <= 8; n++)
        assert_int_equal(unreadable(&run, pool, n), n >= 4 && n <= 7 ? 3 : 0);
    const char *before = "run@1..3", *after = "run@6";
    struct lmcs_scrub_options options;
    lmcs_scrub_options_init(&options);
    options.addresses = &before;
    options.address_count = 1;
    OK(scrub_with(pool, &options, &telling));
    options.addresses = &after;
    FAILS(LMCS_DAMAGED, scrub_with(pool, &options, &telling));
    struct lmcs_verify_report report;
    FAILS(LMCS_DAMAGED, lmcs_verify(pool, NULL, NULL, NULL, NULL, &report, &err));
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    run_on(&run, pool, "run", 4);
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    for (uint64_t n = 8; n <= 12; n++)
        assert_int_equal(unreadable(&run, pool, n), 0);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    expect_clean(pool);
    close_pool(pool);
    run_end(&run);
}

struct rot {
    uint64_t number;
    const char *tensor;
    uint64_t at; /* of its stored bytes; 0: near their end */
    size_t at_once[6], in_the_end[6];
    uint64_t lost;
    bool is_its_link; /* the link to the raw array, not the array */
};

/* keep_raw=2: of five steps the first is a keyframe, the next two are links, and two are raw, the older with a link to
 * it. Rotten steps differ from the written ones; all others are unchanged. */
static void rot_once(struct place *place, const struct rot *rot)
{
    static const size_t sizes[PARAMETERS] = {300, 5000, LMC_BLOCK_BYTES / 4 + 5000};
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, sizes);
    set_policy(pool, "run", "keep_raw=2 parity=none");
    run_on(&run, pool, "run", 5);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_content content = record_of(pool, "run", rot->number, rot->tensor);
    if (content.df.payload == LMCS_PAYLOAD_LINKED || rot->is_its_link)
        content = content_record(pool, content.link);
    damage_content(place->pool, &content, rot->at != 0 ? rot->at : content.df.stored_bytes - 20, 1);
    for (uint64_t n = 1; n <= 5; n++)
        assert_int_equal(unreadable(&run, pool, n), rot->at_once[n]);
    for (size_t i = 0; i < 4; i++) {
        run_on(&run, pool, "run", 1);
        OK(lmcs_compact(pool, NULL, &err));
        check_pool(pool);
        for (uint64_t n = 1; n <= run.count; n++)
            assert_int_equal(unreadable(&run, pool, n), n <= 5 ? rot->in_the_end[n] : 0);
    }
    assert_int_equal(pool_info(pool).lost_contents, rot->lost);
    if (rot->lost == 0)
        expect_clean(pool);
    close_pool(pool);
    assert_int_equal(unlink(place->pool), 0);
    run_end(&run);
}

static void a_raw_array_rots(void **state)
{
    static const struct rot cases[] = {
        /* Before a step: no link is made from the array; the sound link to it stays. */
        {.number = 4, .tensor = "p2.weight", .at = 4000, .at_once = {[4] = 1}},
        {.number = 4, .tensor = "p2.exp_avg", .at = LMC_BLOCK_BYTES + 400, .at_once = {[4] = 1}},
        {.number = 4, .tensor = "p1.weight", .at = 4000, .at_once = {[4] = 1}},
        /* After a step: no link leads to it; it alone is lost. */
        {.number = 5, .tensor = "p2.weight", .at = 4000, .at_once = {[5] = 1}, .in_the_end = {[5] = 1}, .lost = 1},
        {.number = 5, .tensor = "p1.exp_avg_sq", .at = 4000, .at_once = {[5] = 1}, .in_the_end = {[5] = 1}, .lost = 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        rot_once(*state, &cases[i]);
}

static void a_line_rots(void **state)
{
#define FROM_1_ON .at_once = {[1] = 1, [2] = 3, [3] = 3}, .in_the_end = {[1] = 1, [2] = 3, [3] = 3}, .lost = 1
    static const struct rot cases[] = {
        /* The line's first contents, at either end, and links between them and the one that replaces raw bytes. */
        {.number = 1, .tensor = "p2.weight", FROM_1_ON},
        {.number = 1, .tensor = "p1.exp_avg", .at = 10, FROM_1_ON},
        {.number = 2,
         .tensor = "p2.weight",
         .at_once = {[2] = 3, [3] = 3},
         .in_the_end = {[2] = 3, [3] = 3},
         .lost = 1},
        {.number = 3, .tensor = "p1.weight", .at_once = {[3] = 3}, .in_the_end = {[3] = 3}, .lost = 1},
        {.number = 4, .tensor = "p1.weight", .is_its_link = true},
    };
#undef FROM_1_ON
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        rot_once(*state, &cases[i]);
}

static struct lmcs_content forge(struct lmcs_pool *pool, uint64_t number, const char *tensor, uint8_t output,
                                 uint64_t digest)
{
    struct lmcs_txn txn;
    struct lmcs_content content = record_of(pool, "run", number, tensor), forged = content;
    forged.df.output = output;
    forged.df.digest_low ^= digest;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_content_put(&txn, &forged, &err));
    OK(lmcs_txn_commit(&txn, &err));
    return content;
}

static uint64_t damages_of(struct lmcs_pool *pool)
{
    struct lmcs_verify_report report;
    enum lmcs_status status = lmcs_verify(pool, NULL, NULL, NULL, NULL, &report, &err);
    assert_int_equal(status, report.damages > 0 ? LMCS_DAMAGED : LMCS_OK);
    return report.damages;
}

static void a_link_leads_elsewhere(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=2");
    run_on(&run, pool, "run", 6);
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(damages_of(pool), 0);
    /* Stored by the link: unreadable, and verify reports it, in any order of reads. */
    struct lmcs_content linked = forge(pool, 3, "p2.weight", 2, 1);
    assert_int_equal(linked.df.payload, LMCS_PAYLOAD_LINKED);
    assert_int_equal(unreadable(&run, pool, 3), 1);
    assert_int_equal(damages_of(pool), 1);
    forge(pool, 3, "p2.weight", 2, 1);
    assert_int_equal(damages_of(pool), 0);
    /* Raw: right and kept; verify reports the link. */
    struct lmcs_content raw = forge(pool, 5, "p2.weight", 1, 0);
    assert_true(raw.df.payload == LMCS_PAYLOAD_RAW && raw.link != 0 && raw.df.output == 2);
    assert_int_equal(unreadable(&run, pool, 5), 0);
    assert_true(damages_of(pool) > 0);
    set_policy(pool, "run", "keep_raw=2 links=off");
    run_on(&run, pool, "run", 1);
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(record_of(pool, "run", 5, "p2.exp_avg").df.payload, LMCS_PAYLOAD_LINKED);
    assert_int_equal(record_of(pool, "run", 5, "p2.weight").df.payload, LMCS_PAYLOAD_FRAME);
    assert_int_equal(damages_of(pool), 0);
    expect_run(&run, pool, "run");
    close_pool(pool);
    run_end(&run);
}

static void damage_behind_a_long_line_is_named(void **state)
{
    struct place *place = *state;
    struct run run;
    struct telling telling;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=1");
    run_on(&run, pool, "run", 18);
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(storage_of(pool, "run", 17).longest_line, 16);
    struct lmcs_content first = record_of(pool, "run", 1, "p2.weight");
    damage_content(place->pool, &first, first.df.stored_bytes - 20, 1);
    FAILS(LMCS_DAMAGED, scrub_with(pool, NULL, &telling));
    assert_int_equal(telling.count, 1);
    assert_string_equal(telling.items[0].holders,
                        "run@2..17 p2.exp_avg; run@2..17 p2.exp_avg_sq; run@1..17 p2.weight; ");
    close_pool(pool);
    run_end(&run);
}

static void the_longest_line_goes(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_txn txn;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=1 links=64");
    run_on(&run, pool, "run", 66);
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(storage_of(pool, "run", 65).longest_line, 64);
    for (uint64_t n = 1; n <= 64; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    check_pool(pool);
    expect_snapshot(pool, "run", 65, run.states[65]);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_txn_read(pool, &txn, &err));
    assert_true(txn.root.trees[LMCS_TREE_CONTENTS].count == 0);
    lmcs_txn_end(&txn);
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

static void wanted_parity_is_of_the_link(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_txn txn;
    struct lmcs_parity_record parity;
    bool found;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=1");
    run_on(&run, pool, "run", 4);
    uint64_t content = content_of(pool, "run", 3, "p2.weight");
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_parity_want(&txn, content, 4, 2, &err));
    OK(lmcs_txn_commit(&txn, &err));
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_content link = link_record(pool, 3, "p2.weight");
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_parity_find(&txn, link.id, &parity, &found, &err));
    lmcs_txn_end(&txn);
    assert_true(found && parity.df.data == 4 && parity.df.parity == 2);
    close_pool(pool);
    run_end(&run);
}

static void parity_repairs_links(void **state)
{
    struct place *place = *state;
    struct run run;
    struct telling telling;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "keep_raw=1 parity=4+2");
    run_on(&run, pool, "run", 6);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_content link = link_record(pool, 4, "p2.weight");
    struct lmcs_content first = record_of(pool, "run", 1, "p2.exp_avg");
    damage_content(place->pool, &link, link.df.stored_bytes / 2, 3000);
    damage_content(place->pool, &link, 5, 100);
    damage_content(place->pool, &first, first.df.stored_bytes / 2, 3000);
    OK(repair_from(pool, NULL, &telling));
    assert_int_equal(telling.report.repaired, telling.report.damages);
    assert_true(telling.count >= 2);
    expect_run(&run, pool, "run");
    expect_clean(pool);
    close_pool(pool);
    run_end(&run);
}

/* Whether all links that store arrays have parity. */
static bool links_have_parity(struct lmcs_pool *pool)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    bool all = true;
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_root_open(&cursor, &txn, LMCS_TREE_CONTENTS, (struct lmcs_key_df){0, 0}, &err));
    for (; lmcs_cursor_valid(cursor); OK(lmcs_cursor_next(cursor, &err))) {
        struct lmcs_content content;
        struct lmcs_parity_record parity;
        bool found = true;
        OK(lmcs_content_get(&txn, lmcs_cursor_key(cursor).high, &content, &err));
        if (content.df.payload == LMCS_PAYLOAD_LINKED)
            OK(lmcs_parity_find(&txn, content.link, &parity, &found, &err));
        all &= found;
    }
    lmcs_cursor_free(cursor);
    lmcs_txn_end(&txn);
    return all;
}

static bool look_at_links(void *context, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    (void)done;
    (void)total;
    assert_true(links_have_parity(context));
    return true;
}

/* Raw arrays are given up only for links with parity. */
static void links_get_parity_first(void **state)
{
    static const char *const policies[] = {"keep_raw=2", "keep_raw=2 parity=4+2", "keep_raw=2 parity=none"};
    struct place *place = *state;
    for (int i = 0; i < 3; i++) {
        struct run run;
        struct lmcs_pool *pool = open_quiet(place->pool);
        const struct lmcs_progress progress = {i < 2 ? look_at_links : NULL, pool};
        run_begin(&run, adamw_hints(), BF16, small);
        set_policy(pool, "run", policies[i]);
        run_on(&run, pool, "run", 8);
        OK(lmcs_compact(pool, &progress, &err));
        assert_int_equal(storage_of(pool, "run", 6).longest_line, 5);
        assert_int_equal(links_have_parity(pool), i < 2);
        expect_run(&run, pool, "run");
        verify_pool(pool);
        close_pool(pool);
        assert_int_equal(unlink(place->pool), 0);
        run_end(&run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(damage_is_found_and_named),
        IN_MEMORY(a_raw_array_rots),
        IN_MEMORY(a_line_rots),
        IN_MEMORY(a_link_leads_elsewhere),
        IN_MEMORY(damage_behind_a_long_line_is_named),
        IN_MEMORY(the_longest_line_goes),
        IN_MEMORY(wanted_parity_is_of_the_link),
        ON_BOTH(parity_repairs_links),
        IN_MEMORY(links_get_parity_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
