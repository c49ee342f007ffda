/* SPDX-License-Identifier: BSD-3-Clause */
/* test_keyframe.c - keyframes in the lines behind newest snapshots; the length that a restore's time allows. */
/* ctest: timeout=600 */
#include "compact/round.h"
#include "payload/speed.h"
#include "records/shelf.h"
#include "test_links_support.h"

#define STEPS 13

/* Makes a finished run look like one whose captures made the links, up to snapshot `newest`. */
static void as_captured(struct lmcs_pool *pool, const char *name, uint64_t newest)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, name, &shelf, &err));
    shelf.df.latest = newest;
    shelf.df.compacted = newest - 1;
    OK(lmcs_shelf_save(&txn, &shelf, &err));
    OK(lmcs_txn_commit(&txn, &err));
}

/* Snapshot n is behind n - 1 links. */
static struct lmcs_pool *one_line(struct place *place, struct run *run, const size_t *sizes, const char *words)
{
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(run, adamw_hints(), BF16, sizes);
    set_policy(pool, "run", words);
    set_policy(pool, "run", "restore=none");
    run_on(run, pool, "run", STEPS);
    OK(lmcs_compact_finished(pool, "run", NULL, &err));
    assert_int_equal(storage_of(pool, "run", STEPS).longest_line, STEPS - 1);
    return pool;
}

static enum lmcs_status keyframes(struct lmcs_pool *pool, const struct lmcs_progress *progress)
{
    struct lmcs_round round = {
        .pool = pool, .compactor = pool->compactor, .progress = progress, .throttle = {.pool = pool}};
    enum lmcs_status status = lmcs_round_keyframes(&round, &err);
    if (status == LMCS_OK)
        OK(lmcs_round_repair(&round, &err));
    free(round.candidates);
    return status;
}

static struct lmcs_content link_to(struct lmcs_pool *pool, uint64_t number, const char *tensor)
{
    struct lmcs_content content = record_of(pool, "run", number, tensor);
    assert_int_equal(content.df.payload, LMCS_PAYLOAD_LINKED);
    return content_record(pool, content.link);
}

static void the_newest_state_gets_keyframes(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = one_line(place, &run, large, "keep_raw=1");
    const uint64_t contents = pool_info(pool).content_count;
    OK(lmcs_compact(pool, NULL, &err)); /* finished: the links stay */
    as_captured(pool, "run", STEPS);
    set_policy(pool, "run", "links=13");
    OK(lmcs_compact(pool, NULL, &err));
    const struct lmcs_snapshot_storage storage = storage_of(pool, "run", STEPS);
    assert_int_equal(storage.longest_line, 0);
    assert_int_equal(storage.link_contents, 0);
    assert_int_equal(storage.keyframe_contents, 3 * PARAMETERS + 1);
    assert_int_equal(storage_of(pool, "run", STEPS - 1).longest_line, STEPS - 2);
    assert_int_equal(pool_info(pool).content_count, contents - PARAMETERS); /* the last links are freed */
    expect_run(&run, pool, "run");
    check_pool(pool);
    verify_pool(pool);
    const uint64_t epoch = pool_info(pool).epoch;
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(pool_info(pool).epoch <= epoch + 2);
    run_on(&run, pool, "run", 4); /* new lines begin at the keyframes */
    OK(lmcs_compact_finished(pool, "run", NULL, &err));
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

/* The links above begin at the keyframes, and their places are the true ones. */
static void lines_above_become_shorter(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = one_line(place, &run, small, "keep_raw=1");
    set_policy(pool, "run", "links=7");
    as_captured(pool, "run", 6);
    OK(keyframes(pool, NULL));
    assert_int_equal(storage_of(pool, "run", 6).longest_line, 5); /* of 7 */
    as_captured(pool, "run", 7);
    OK(keyframes(pool, NULL));
    as_captured(pool, "run", STEPS);
    for (uint64_t n = 1; n <= STEPS; n++)
        assert_true(storage_of(pool, "run", n).longest_line <= 7); /* some had their turn at 6 */
    assert_int_equal(record_of(pool, "run", 7, "p2.weight").df.payload, LMCS_PAYLOAD_FRAME);
    for (uint64_t n = 9; n <= STEPS; n++) {
        const struct lmcs_content link = link_to(pool, n, "p2.weight"), below = link_to(pool, n - 1, "p2.weight");
        assert_true(link.df.place <= 6 && link.df.place == below.df.place + 1);
    }
    expect_run(&run, pool, "run");
    verify_pool(pool);
    for (uint64_t n = 1; n <= 6; n++) {
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        run.there[n] = false;
    }
    assert_int_equal(storage_of(pool, "run", STEPS).longest_line, 7);
    OK(lmcs_compact(pool, NULL, &err)); /* 6 or 7 of 7: again */
    assert_int_equal(storage_of(pool, "run", STEPS).longest_line, 0);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(pool_info(pool).content_count, 0);
    close_pool(pool);
    run_end(&run);
}

/* A step without gradients. */
static void drift(struct run *run)
{
    float *none = calloc(large[PARAMETERS - 1], sizeof *none);
    assert_non_null(none);
    for (size_t p = 0; p < PARAMETERS; p++)
        sgd_step(&run->parameters[p], &run->hints, none);
    free(none);
    run->hints.step++;
}

/* Numbers of all exponents: a frame saves nothing. */
static void raw_where_a_frame_saves_nothing(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, sgd_hints(), BF16, large);
    run.hints.weight_decay = 0;
    for (size_t p = 0; p < PARAMETERS; p++)
        for (size_t i = 0; i < 2 * run.parameters[p].elements; i++) {
            const uint32_t bits = (uint32_t)rng_next(&run.rng), exponent = 1 + (bits >> 8) % 250;
            const uint32_t number = (bits & 0x80000000u) | exponent << 23 | (uint32_t)(rng_next(&run.rng) & 0x7fffff);
            memcpy(&run.parameters[p].array[i % 2][i / 2], &number, sizeof number);
        }
    set_policy(pool, "run", "keep_raw=1");
    for (size_t i = 0; i < 4; i++) {
        drift(&run);
        run_snapshot(&run, pool, "run", true, 0);
    }
    OK(lmcs_compact_finished(pool, "run", NULL, &err));
    assert_int_equal(storage_of(pool, "run", 4).link_contents, 2 * PARAMETERS);
    as_captured(pool, "run", 4);
    set_policy(pool, "run", "links=4 restore=none");
    OK(keyframes(pool, NULL));
    const struct lmcs_content content = record_of(pool, "run", 4, "p2.weight");
    assert_int_equal(content.df.payload, LMCS_PAYLOAD_RAW);
    assert_int_equal(content.link, 0);
    assert_int_equal(storage_of(pool, "run", 4).longest_line, 0);
    OK(lmcs_compact(pool, NULL, &err));
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

/* A damaged line is left as it is, and reported; other parameters get their keyframes. */
static void damage_stops_one_parameter(void **state)
{
    struct place *place = *state;
    struct run run;
    struct telling telling;
    struct lmcs_pool *pool = one_line(place, &run, large, "keep_raw=1 links=13 parity=none");
    const struct lmcs_content link = link_to(pool, 5, "p1.weight");
    damage_content(place->pool, &link, link.df.stored_bytes - 20, 1);
    as_captured(pool, "run", STEPS);
    for (int i = 0; i < 2; i++)
        OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(pool_info(pool).lost_contents, 1);
    assert_int_equal(storage_of(pool, "run", STEPS).link_contents, 3);
    assert_int_equal(record_of(pool, "run", STEPS, "p2.weight").df.payload, LMCS_PAYLOAD_FRAME);
    FAILS(LMCS_DAMAGED, scrub_with(pool, NULL, &telling));
    assert_int_equal(telling.count, 1);
    assert_true(telling.items[0].content == link.id);
    for (uint64_t n = 1; n <= STEPS; n++)
        for (size_t t = 0; t < run.states[n]->count; t++) {
            const struct held *held = &run.states[n]->tensors[t];
            char address[32];
            snprintf(address, sizeof address, "run@%llu", (unsigned long long)n);
            const bool lost = n >= 5 && strncmp(held->name, "p1.", 3) == 0;
            assert_int_equal(read_tensor(pool, address, held, 0, held->bytes), lost ? LMCS_DAMAGED : LMCS_OK);
        }
    damage_content(place->pool, &link, link.df.stored_bytes - 20, 1); /* repaired */
    OK(repair_from(pool, NULL, &telling));
    expect_run(&run, pool, "run");
    run_on(&run, pool, "run", 1);
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

struct meanwhile {
    struct lmcs_pool *pool;
    long left; /* calls before it happens */
    bool stop;
    const char *drop;
    uint64_t remove;
};

static bool happen(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct meanwhile *m = context;
    (void)what;
    (void)done;
    (void)total;
    if (m->left-- != 0)
        return true;
    if (m->remove != 0)
        OK(lmcs_snapshot_remove(m->pool, "run", m->remove, false, NULL, &err));
    if (m->drop != NULL)
        OK(lmcs_shelf_drop(m->pool, m->drop, false, NULL, &err));
    return !m->stop;
}

static void finished_work_stays(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = one_line(place, &run, small, "keep_raw=1 links=13");
    as_captured(pool, "run", STEPS);
    for (long calls = 0;; calls++) {
        struct meanwhile meanwhile = {.pool = pool, .left = calls, .stop = true};
        const struct lmcs_progress progress = {happen, &meanwhile};
        const enum lmcs_status status = keyframes(pool, &progress);
        assert_true(status == LMCS_OK || status == LMCS_CANCELLED);
        expect_snapshot(pool, "run", STEPS, run.states[STEPS]);
        check_pool(pool);
        if (status == LMCS_OK)
            break;
        assert_true(calls < 20);
    }
    assert_int_equal(storage_of(pool, "run", STEPS).longest_line, 0);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

/* At every moment: of the newest snapshot, of one below it, of the shelf. */
static void removals_meanwhile(void **state)
{
    struct place *place = *state;
    for (int what = 0; what < 3; what++)
        for (long calls = 0; calls < 7; calls++) {
            struct run run;
            struct lmcs_pool *pool = one_line(place, &run, small, "keep_raw=1 links=13");
            struct meanwhile meanwhile = {.pool = pool,
                                          .left = calls,
                                          .remove = what == 0   ? STEPS
                                                    : what == 1 ? STEPS - 1
                                                                : 0,
                                          .drop = what == 2 ? "run" : NULL};
            const struct lmcs_progress progress = {happen, &meanwhile};
            as_captured(pool, "run", STEPS);
            OK(keyframes(pool, &progress));
            assert_true(meanwhile.left < 0);
            run.there[meanwhile.remove] = false;
            check_pool(pool);
            if (what < 2) {
                expect_run(&run, pool, "run");
                OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
            }
            OK(lmcs_compact(pool, NULL, &err));
            verify_pool(pool);
            assert_int_equal(pool_info(pool).content_count, 0);
            close_pool(pool);
            assert_int_equal(unlink(place->pool), 0);
            run_end(&run);
        }
}

/* Of the third parameter, in snapshot 6. */
static size_t arrays_stored(struct lmcs_pool *pool, enum lmcs_payload_kind as)
{
    size_t count = 0;
    for (unsigned k = 0; k < 3; k++) {
        char name[32];
        snprintf(name, sizeof name, "p2.%s", adam_roles[k]);
        count += record_of(pool, "run", 6, name).df.payload == as;
    }
    return count;
}

/* A parameter that was being finished has raw arrays beside linked ones. It is left to the next compaction. */
static void half_finished_parameters_wait(void **state)
{
    struct place *place = *state;
    for (long calls = 0, mixed = 0; mixed == 0; calls++) {
        struct run run;
        struct lmcs_pool *pool = open_quiet(place->pool);
        struct meanwhile meanwhile = {.pool = pool, .left = calls, .stop = true};
        const struct lmcs_progress progress = {happen, &meanwhile};
        run_begin(&run, adamw_hints(), BF16, small);
        set_policy(pool, "run", "keep_raw=1 links=6 restore=none");
        run_on(&run, pool, "run", 6);
        OK(lmcs_compact(pool, NULL, &err));
        FAILS(LMCS_CANCELLED, lmcs_compact_finished(pool, "run", &progress, &err));
        const size_t linked = arrays_stored(pool, LMCS_PAYLOAD_LINKED);
        mixed = linked == 1 || linked == 2;
        if (mixed) {
            set_policy(pool, "run", "links=5");
            OK(keyframes(pool, NULL));
            assert_int_equal(arrays_stored(pool, LMCS_PAYLOAD_LINKED), linked);
            assert_int_equal(arrays_stored(pool, LMCS_PAYLOAD_RAW), 3 - linked);
        }
        expect_run(&run, pool, "run");
        OK(lmcs_compact_finished(pool, "run", NULL, &err));
        expect_run(&run, pool, "run");
        verify_pool(pool);
        close_pool(pool);
        assert_int_equal(unlink(place->pool), 0);
        run_end(&run);
    }
}

static void no_room_for_a_keyframe(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_region hog;
    uint64_t offset, bytes = 256 << 10;
    struct lmcs_pool *pool = one_line(place, &run, small, "keep_raw=1 links=13");
    as_captured(pool, "run", STEPS);
    OK(lmcs_pool_set_limit(pool, pool_info(pool).used_bytes + ((uint64_t)8 << 20), &err));
    lmcs_region_init(&hog, pool, 1);
    for (; bytes >= 256; bytes /= 2)
        while (lmcs_region_take(&hog, bytes, &offset, &err) == LMCS_OK)
            ;
    const uint64_t contents = pool_info(pool).content_count;
    OK(keyframes(pool, NULL));
    assert_int_equal(pool_info(pool).content_count, contents);
    assert_int_equal(storage_of(pool, "run", STEPS).longest_line, STEPS - 1);
    expect_run(&run, pool, "run");
    lmcs_region_end(&hog);
    OK(keyframes(pool, NULL));
    assert_int_equal(storage_of(pool, "run", STEPS).longest_line, 0);
    expect_run(&run, pool, "run");
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

static void the_background_cuts_lines(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = one_line(place, &run, large, "keep_raw=1 links=13");
    as_captured(pool, "run", STEPS);
    OK(lmcs_compactor_start(pool, &err));
    while (storage_of(pool, "run", STEPS).longest_line > 0)
        usleep(1000);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

static void time_bounds_lines(void **state)
{
    (void)state;
    struct lmcs_pool *pool = calloc(1, sizeof *pool);
    assert_non_null(pool);
    pool->options.threads = 1;
    assert_int_equal(lmcs_links_within(pool, 0), LMCS_LINK_BOUND);
    assert_int_equal(lmcs_links_within(pool, 1), 2); /* (1 - 0.45 - 0.3) / 0.125 */
    pool->options.threads = 4;
    assert_int_equal(lmcs_links_within(pool, 1), 26);
    assert_int_equal(lmcs_links_within(pool, 3600), LMCS_LINK_BOUND);
    pool->speeds[LMCS_DECODED_LINK].bytes = 1 << 20; /* too few to count */
    pool->speeds[LMCS_DECODED_LINK].ns = 1;
    assert_int_equal(lmcs_links_within(pool, 1), 26);
    pool->speeds[LMCS_DECODED_LINK].bytes = (uint64_t)1 << 30;
    pool->speeds[LMCS_DECODED_LINK].ns = 200000000;
    pool->speeds[LMCS_DECODED_KEYFRAME].bytes = (uint64_t)1 << 31;
    pool->speeds[LMCS_DECODED_KEYFRAME].ns = 4000000000;
    assert_int_equal(lmcs_links_within(pool, 1), 6);
    pool->options.threads = 1;
    assert_int_equal(lmcs_links_within(pool, 1), 0); /* not even a keyframe */
    free(pool);
}

/* A restore of 4 links needs 1 s per GiB. */
static void the_policy_bounds_the_time(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = one_line(place, &run, small, "keep_raw=1");
    pool->options.threads = 1;
    for (int i = 0; i < 2; i++)
        pool->speeds[i].bytes = (uint64_t)1 << 50;
    pool->speeds[LMCS_DECODED_LINK].ns = (uint64_t)50000000 << 20;
    pool->speeds[LMCS_DECODED_KEYFRAME].ns = (uint64_t)400000000 << 20;
    as_captured(pool, "run", STEPS);
    set_policy(pool, "run", "restore=2s");
    OK(keyframes(pool, NULL));
    assert_int_equal(storage_of(pool, "run", STEPS).longest_line, STEPS - 1);
    set_policy(pool, "run", "restore=1s");
    OK(keyframes(pool, NULL));
    assert_int_equal(storage_of(pool, "run", STEPS).longest_line, 0);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

/* What a step that its capture linked needs later: nothing. Only the watermark moves. */
static void captured_steps_are_passed_over(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = one_line(place, &run, small, "keep_raw=3");
    as_captured(pool, "run", STEPS);
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, "run", &shelf, &err));
    shelf.df.compacted = 4;
    OK(lmcs_shelf_save(&txn, &shelf, &err));
    OK(lmcs_txn_commit(&txn, &err));
    OK(keyframes(pool, NULL)); /* of those whose turn it is */
    const uint64_t live = pool_info(pool).live_bytes, replaced = pool_info(pool).compacted_contents;
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(pool_info(pool).compacted_contents, replaced);
    assert_int_equal(pool_info(pool).live_bytes, live);
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, "run", &shelf, &err));
    assert_int_equal(shelf.df.compacted, STEPS - 3);
    for (uint64_t n = 2; n <= STEPS; n++) {
        OK(lmcs_record_get(&txn, &shelf, n, &record, &found, &err));
        assert_int_equal(record.df.links, LMCS_LINKS_MADE);
    }
    lmcs_txn_end(&txn);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

/* Links and keyframes are measured where they are verified. */
static void speeds_are_measured(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = one_line(place, &run, large, "keep_raw=1 links=13");
    uint64_t bytes = 0;
    for (size_t p = 0; p < PARAMETERS; p++)
        bytes += 3 * 4 * large[p];
    assert_int_equal(pool->speeds[LMCS_DECODED_LINK].bytes, bytes * (STEPS - 1));
    const uint64_t keyframes_before = pool->speeds[LMCS_DECODED_KEYFRAME].bytes;
    as_captured(pool, "run", STEPS);
    OK(keyframes(pool, NULL));
    assert_int_equal(pool->speeds[LMCS_DECODED_KEYFRAME].bytes, keyframes_before + bytes);
    assert_true(pool->speeds[LMCS_DECODED_LINK].ns > 0 && pool->speeds[LMCS_DECODED_KEYFRAME].ns > 0);
    close_pool(pool);
    run_end(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(the_newest_state_gets_keyframes),
        IN_MEMORY(lines_above_become_shorter),
        IN_MEMORY(raw_where_a_frame_saves_nothing),
        ON_BOTH(damage_stops_one_parameter),
        IN_MEMORY(finished_work_stays),
        IN_MEMORY(removals_meanwhile),
        IN_MEMORY(half_finished_parameters_wait),
        IN_MEMORY(no_room_for_a_keyframe),
        ON_BOTH(the_background_cuts_lines),
        cmocka_unit_test(time_bounds_lines),
        IN_MEMORY(the_policy_bounds_the_time),
        IN_MEMORY(captured_steps_are_passed_over),
        IN_MEMORY(speeds_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
