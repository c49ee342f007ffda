/* SPDX-License-Identifier: BSD-3-Clause */
/* test_keyframe.c - keyframes that link captures write; the lengths of lines that a restore's time allows. */
/* ctest: timeout=600 */
#include "capture/state.h"
#include "payload/read.h"
#include "payload/speed.h"
#include "records/shelf.h"
#include "test_links_support.h"

/* How a parameter's arrays are stored in a snapshot: all in one way. */
static enum lmcs_payload_kind stored_as(struct lmcs_pool *pool, const struct run *run, uint64_t number, size_t p)
{
    enum lmcs_payload_kind kind = LMCS_PAYLOAD_RAW;
    for (unsigned k = 0; k < run->parameters[p].arrays; k++) {
        char name[32];
        snprintf(name, sizeof name, "p%zu.%s", p, role(run, k));
        const struct lmcs_content content = record_of(pool, "run", number, name);
        kind = k == 0 ? content.df.payload : kind;
        assert_int_equal(content.df.payload, kind);
        assert_int_equal(content.df.base_count, 0);
        assert_int_equal(content.link != 0, kind == LMCS_PAYLOAD_LINKED);
    }
    return kind;
}

/* Links behind a parameter. */
static uint32_t line_of(struct lmcs_pool *pool, const struct run *run, uint64_t number, size_t p)
{
    struct lmcs_txn txn;
    struct lmcs_chain chain;
    char name[32];
    snprintf(name, sizeof name, "p%zu.%s", p, role(run, 0));
    const uint64_t content = content_of(pool, "run", number, name);
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_chain_load(&txn, content, &chain, &err));
    lmcs_txn_end(&txn);
    return (uint32_t)chain.line;
}

/* ---- In pools ---- */

static void captures_write_keyframes(void **state)
{
    struct place *place = *state;
    struct run run;
    size_t keyframes[PARAMETERS] = {0};
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "write=link restore=none links=4 keep_raw=1");
    run_on(&run, pool, "run", 15);
    for (uint64_t n = 2; n <= 15; n++) {
        assert_true(storage_of(pool, "run", n).longest_line <= 4);
        for (size_t p = 0; p < PARAMETERS; p++) {
            const enum lmcs_payload_kind kind = stored_as(pool, &run, n, p);
            assert_int_not_equal(kind, LMCS_PAYLOAD_RAW);
            assert_int_equal(line_of(pool, &run, n, p),
                             kind == LMCS_PAYLOAD_FRAME ? 0 : line_of(pool, &run, n - 1, p) + 1);
            keyframes[p] += kind == LMCS_PAYLOAD_FRAME;
        }
    }
    for (size_t p = 0; p < PARAMETERS; p++)
        assert_in_range(keyframes[p], 2, 5);
    expect_run(&run, pool, "run");
    check_pool(pool);
    close_pool(pool);
    pool = open_quiet(place->pool);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    run_on(&run, pool, "run", 3); /* no process has the last state in memory; then links */
    for (size_t p = 0; p < PARAMETERS; p++) {
        assert_int_not_equal(stored_as(pool, &run, 16, p), LMCS_PAYLOAD_LINKED);
        assert_int_equal(stored_as(pool, &run, 17, p), LMCS_PAYLOAD_LINKED);
    }
    for (uint64_t n = 3; n <= 12; n += 3) {
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        run.there[n] = false;
    }
    OK(lmcs_compact_finished(pool, "run", NULL, &err));
    expect_run(&run, pool, "run");
    verify_pool(pool);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(pool_info(pool).content_count, 0);
    close_pool(pool);
    run_end(&run);
}

/* Numbers of all exponents: a frame saves nothing. Their gradients are 0. */
static void raw_where_a_frame_saves_nothing(void **state)
{
    struct place *place = *state;
    struct run run;
    float *none = calloc(large[PARAMETERS - 1], sizeof *none);
    struct lmcs_pool *pool = open_quiet(place->pool);
    assert_non_null(none);
    run_begin(&run, sgd_hints(), BF16, large);
    run.hints.weight_decay = 0;
    for (size_t p = 0; p < PARAMETERS; p++)
        for (size_t i = 0; i < 2 * run.parameters[p].elements; i++) {
            const uint32_t bits = (uint32_t)rng_next(&run.rng), exponent = 1 + (bits >> 8) % 250;
            const uint32_t number = (bits & 0x80000000u) | exponent << 23 | (uint32_t)(rng_next(&run.rng) & 0x7fffff);
            memcpy(&run.parameters[p].array[i % 2][i / 2], &number, sizeof number);
        }
    set_policy(pool, "run", "write=link restore=none links=2");
    for (size_t i = 0; i < 8; i++) {
        for (size_t p = 0; p < PARAMETERS; p++)
            sgd_step(&run.parameters[p], &run.hints, none);
        run.hints.step++;
        run_snapshot(&run, pool, "run", true, 0);
    }
    for (uint64_t n = 2; n <= 8; n++)
        assert_true(storage_of(pool, "run", n).longest_line <= 2);
    assert_int_equal(storage_of(pool, "run", 2).link_contents, 2 * PARAMETERS);
    assert_int_equal(record_of(pool, "run", 4, "p2.weight").df.payload, LMCS_PAYLOAD_RAW);
    assert_int_equal(record_of(pool, "run", 5, "p2.weight").df.payload, LMCS_PAYLOAD_LINKED);
    expect_run(&run, pool, "run");
    OK(lmcs_compact(pool, NULL, &err));
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
    free(none);
}

/* A state on a damaged link is lost until its parameter gets a keyframe, also while the damage is unknown. */
static void keyframes_end_damage(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "write=link restore=none links=5 parity=none");
    run_on(&run, pool, "run", 4);
    const struct lmcs_content link = content_record(pool, record_of(pool, "run", 4, "p1.weight").link);
    damage_content(place->pool, &link, link.df.stored_bytes - 20, 1);
    run_on(&run, pool, "run", 10);
    uint64_t keyframe = 5;
    while (stored_as(pool, &run, keyframe, 1) != LMCS_PAYLOAD_FRAME)
        keyframe++;
    assert_true(keyframe <= 10);
    for (uint64_t n = 1; n <= 14; n++)
        for (size_t t = 0; t < run.states[n]->count; t++) {
            const struct held *held = &run.states[n]->tensors[t];
            char address[32];
            snprintf(address, sizeof address, "run@%llu", (unsigned long long)n);
            const bool lost = n >= 4 && n < keyframe && strncmp(held->name, "p1.", 3) == 0;
            assert_int_equal(read_tensor(pool, address, held, 0, held->bytes), lost ? LMCS_DAMAGED : LMCS_OK);
        }
    close_pool(pool);
    run_end(&run);
}

static const size_t alike[PARAMETERS] = {20000, 20000, 20000};

/* Between the encoding and the transaction a loss is recorded below a link: the keyframes beside it are entered. */
static void keyframes_beside_a_refused_link(void **state)
{
    struct place *place = *state;
    struct run run;
    struct telling telling;
    struct lmcs_capture *capture;
    char name[32];
    size_t keyframe = PARAMETERS, linked = PARAMETERS;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, alike);
    set_policy(pool, "run", "write=link restore=none links=3 parity=none");
    run_on(&run, pool, "run", 3);
    run_step(&run);
    struct state *now = state_of_run(&run);
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    relate(capture, &run, 0);
    put_state(capture, now);
    OK(lmcs_capture_encode(capture, &err));
    for (size_t p = 0; p < PARAMETERS; p++) {
        snprintf(name, sizeof name, "p%zu.weight", p);
        const struct lmcs_captured *entry =
            capture->entries.items[lmcs_entries_find(&capture->entries, LMCS_TENSOR, name) - 1];
        assert_int_equal(entry->form, entry->is_keyframe ? LMCS_FORM_FRAME : LMCS_FORM_LINKED);
        if (entry->is_keyframe)
            keyframe = p;
        else if (line_of(pool, &run, 3, p) > 0)
            linked = p;
    }
    assert_true(keyframe < PARAMETERS && linked < PARAMETERS);
    snprintf(name, sizeof name, "p%zu.weight", linked);
    const struct lmcs_content link = content_record(pool, record_of(pool, "run", 3, name).link);
    damage_content(place->pool, &link, link.df.stored_bytes - 20, 1);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    OK(lmcs_capture_commit(capture, NULL, &run.count, &err));
    assert_int_equal(run.count, 4);
    run.states[4] = now;
    assert_int_equal(stored_as(pool, &run, 4, keyframe), LMCS_PAYLOAD_FRAME);
    assert_int_equal(stored_as(pool, &run, 4, linked), LMCS_PAYLOAD_RAW);
    run_on(&run, pool, "run", 3);
    for (uint64_t n = 4; n <= 7; n++)
        expect_snapshot(pool, "run", n, run.states[n]);
    check_pool(pool);
    close_pool(pool);
    run_end(&run);
}

static enum lmcs_status try_step(struct run *run, struct lmcs_pool *pool)
{
    struct lmcs_capture *capture;
    uint64_t number;
    run_step(run);
    struct state *now = state_of_run(run);
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    relate(capture, run, 0);
    put_state(capture, now);
    const enum lmcs_status status = lmcs_capture_commit(capture, NULL, &number, &err);
    if (status != LMCS_OK) {
        state_free(now);
        return status;
    }
    assert_int_equal(number, run->count + 1);
    run->count = number;
    run->states[number] = now;
    run->there[number] = true;
    return status;
}

/* A capture in a full pool fails or succeeds as a whole, and those after it go on. */
static void full_pools(void **state)
{
    struct place *place = *state;
    struct run run;
    size_t failed = 0;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, alike);
    set_policy(pool, "run", "write=link restore=none links=3");
    run_on(&run, pool, "run", 3);
    OK(lmcs_pool_set_limit(pool, pool_info(pool).used_bytes + ((uint64_t)8 << 20), &err));
    for (uint64_t least = 256; least <= (uint64_t)256 << 10; least *= 2) { /* room is left for smaller payloads */
        struct lmcs_region hog;
        uint64_t offset;
        lmcs_region_init(&hog, pool, 1);
        for (uint64_t bytes = 256 << 10; bytes >= least; bytes /= 2)
            while (lmcs_region_take(&hog, bytes, &offset, &err) == LMCS_OK)
                ;
        const enum lmcs_status status = try_step(&run, pool);
        assert_true(status == LMCS_OK || status == LMCS_FULL);
        failed += status == LMCS_FULL;
        lmcs_region_end(&hog);
        check_pool(pool);
        OK(try_step(&run, pool));
    }
    assert_true(failed > 0);
    for (uint64_t n = 1; n <= run.count; n++)
        assert_true(storage_of(pool, "run", n).longest_line <= 3);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

/* The background compacts beside captures; their contents stay. */
static void beside_the_background(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "write=link restore=none links=3 keep_raw=1");
    OK(lmcs_compactor_start(pool, &err));
    run_on(&run, pool, "run", 30);
    for (uint64_t n = 2; n <= 30; n++)
        for (size_t p = 1; p < PARAMETERS; p++) {
            assert_int_not_equal(stored_as(pool, &run, n, p), LMCS_PAYLOAD_RAW);
            assert_true(line_of(pool, &run, n, p) <= 3);
        }
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
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "write=link restore=none links=4 keep_raw=3");
    run_on(&run, pool, "run", 4);
    OK(lmcs_compact(pool, NULL, &err)); /* the first is raw */
    run_on(&run, pool, "run", 9);
    uint64_t frames[13];
    for (uint64_t n = 2; n <= 13; n++)
        frames[n - 1] = record_of(pool, "run", n, "p2.weight").df.stored_bytes;
    OK(lmcs_compact(pool, NULL, &err));
    for (uint64_t n = 2; n <= 13; n++)
        assert_int_equal(record_of(pool, "run", n, "p2.weight").df.stored_bytes, frames[n - 1]);
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, "run", &shelf, &err));
    assert_int_equal(shelf.df.compacted, 10);
    for (uint64_t n = 2; n <= 13; n++) {
        OK(lmcs_record_get(&txn, &shelf, n, &record, &found, &err));
        assert_int_equal(record.df.links, LMCS_LINKS_MADE);
    }
    lmcs_txn_end(&txn);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

/* ---- Time ---- */

static void time_bounds_lines(void **state)
{
    (void)state;
    struct lmcs_pool *pool = calloc(1, sizeof *pool);
    assert_non_null(pool);
    pool->options.threads = 1;
    assert_float_equal(lmcs_links_within(pool, 0), LMCS_LINK_BOUND, 0);
    assert_float_equal(lmcs_links_within(pool, 1), 2, 1e-6); /* (1 - 0.45 - 0.3) / 0.125 */
    pool->options.threads = 4;
    assert_float_equal(lmcs_links_within(pool, 1), 26, 1e-6);
    assert_float_equal(lmcs_links_within(pool, 3600), LMCS_LINK_BOUND, 0);
    pool->speeds[LMCS_DECODED_LINK].bytes = 1 << 20; /* too few to count */
    pool->speeds[LMCS_DECODED_LINK].ns = 1;
    assert_float_equal(lmcs_links_within(pool, 1), 26, 1e-6);
    pool->speeds[LMCS_DECODED_LINK].bytes = (uint64_t)1 << 30;
    pool->speeds[LMCS_DECODED_LINK].ns = 200000000;
    pool->speeds[LMCS_DECODED_KEYFRAME].bytes = (uint64_t)1 << 31;
    pool->speeds[LMCS_DECODED_KEYFRAME].ns = 4000000000;
    assert_float_equal(lmcs_links_within(pool, 1), 6.8, 1e-6); /* (4 - 2 - 0.3) / 0.25 */
    pool->options.threads = 1;
    assert_float_equal(lmcs_links_within(pool, 1), 0, 0); /* not even a keyframe */
    free(pool);
}

/* Links on average over the bytes of parameters. */
static double mean_line(struct lmcs_pool *pool, const struct run *run, uint64_t number)
{
    double bytes = 0, to_undo = 0;
    for (size_t p = 0; p < PARAMETERS; p++) {
        const double own = (double)run->parameters[p].elements;
        bytes += own;
        to_undo += own * line_of(pool, run, number, p);
    }
    return to_undo / bytes;
}

/* A GiB is decoded by 4 links in the second that the policy gives, after a keyframe and new memory. */
static void set_speeds(struct lmcs_pool *pool)
{
    pool->options.threads = 1;
    for (int i = 0; i < 2; i++)
        pool->speeds[i].bytes = (uint64_t)1 << 50;
    pool->speeds[LMCS_DECODED_LINK].ns = (uint64_t)60000000 << 20;
    pool->speeds[LMCS_DECODED_KEYFRAME].ns = (uint64_t)400000000 << 20;
}

static void the_policy_bounds_the_mean(void **state)
{
    struct place *place = *state;
    struct run run;
    double sum = 0;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, alike);
    set_speeds(pool);
    set_policy(pool, "run", "write=link restore=1s");
    run_on(&run, pool, "run", 40);
    uint32_t longest = 0;
    for (uint64_t n = 2; n <= 40; n++) {
        const uint32_t line = storage_of(pool, "run", n).longest_line;
        assert_true(mean_line(pool, &run, n) <= 4);
        longest = line > longest ? line : longest;
        sum += n > 10 ? mean_line(pool, &run, n) : 0;
    }
    assert_in_range(longest, 5, 8);
    assert_true(sum / 30 > 2);
    set_policy(pool, "run", "restore=2s");
    run_on(&run, pool, "run", 4);
    assert_true(mean_line(pool, &run, 44) > 4);
    set_policy(pool, "run", "restore=1s"); /* at once */
    run_on(&run, pool, "run", 1);
    assert_true(mean_line(pool, &run, 45) <= 4);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

/* Their long lines count, and the others' keyframes come sooner. */
static void unchanged_parameters_count(void **state)
{
    struct place *place = *state;
    struct run run;
    static const size_t sizes[PARAMETERS] = {30000, 20000, 20000};
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, sizes);
    set_speeds(pool);
    set_policy(pool, "run", "write=link restore=2s");
    run_on(&run, pool, "run", 7);
    const uint32_t frozen = line_of(pool, &run, 7, 0);
    assert_int_equal(frozen, 6);
    set_policy(pool, "run", "restore=1s");
    for (uint64_t n = 8; n <= 20; n++) {
        const struct lmc_link_hints hints = run.hints;
        for (size_t p = 1; p < PARAMETERS; p++)
            optimizer_step(&run.parameters[p], &hints, run.kind, 0.3f, rng_next(&run.rng));
        run.hints.step++;
        run_snapshot(&run, pool, "run", true, 0);
        assert_int_equal(line_of(pool, &run, n, 0), frozen);
        assert_true(mean_line(pool, &run, n) <= 4);
        for (size_t p = 1; p < PARAMETERS; p++)
            assert_int_not_equal(stored_as(pool, &run, n, p), LMCS_PAYLOAD_RAW);
    }
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
    uint64_t bytes = 0;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "write=link restore=none links=3");
    run_on(&run, pool, "run", 9);
    for (size_t p = 0; p < PARAMETERS; p++)
        bytes += 3 * 4 * large[p];
    const uint64_t linked = pool->speeds[LMCS_DECODED_LINK].bytes, alone = pool->speeds[LMCS_DECODED_KEYFRAME].bytes;
    assert_true(linked > 4 * bytes && alone > 2 * bytes);
    assert_int_equal(linked + alone, 9 * bytes);
    assert_true(pool->speeds[LMCS_DECODED_LINK].ns > 0 && pool->speeds[LMCS_DECODED_KEYFRAME].ns > 0);
    close_pool(pool);
    run_end(&run);
}

/* ---- Turns ---- */

#define MOST_TURNS 1000u
#define STEPS      200u

struct turning {
    size_t count;
    uint64_t bytes[MOST_TURNS];
    uint32_t links[MOST_TURNS];
    double share; /* of bytes in the step's keyframes */
    double mean;  /* links to undo, after the step */
};

/* A step that changes the parameters for which `changes` is set (NULL: all). */
static void turn(struct turning *t, uint32_t bound, double mean, const bool *changes)
{
    static struct lmcs_turn turns[MOST_TURNS];
    struct lmcs_turns all = {.bound = bound, .mean = mean};
    size_t count = 0;
    uint64_t bytes = 0, due = 0, to_undo = 0;
    for (size_t i = 0; i < t->count; i++) {
        bytes += t->bytes[i];
        if (changes == NULL || changes[i]) {
            turns[count++] = (struct lmcs_turn){.bytes = t->bytes[i], .links = t->links[i] + 1, .job = i};
            continue;
        }
        all.unchanged_bytes += t->bytes[i];
        all.unchanged_to_undo += t->bytes[i] * t->links[i];
    }
    lmcs_turns_choose(turns, count, &all);
    for (size_t i = 0; i < count; i++) {
        t->links[turns[i].job] = turns[i].is_due ? 0 : turns[i].links;
        due += turns[i].is_due ? turns[i].bytes : 0;
    }
    for (size_t i = 0; i < t->count; i++) {
        assert_true(t->links[i] <= bound);
        to_undo += t->bytes[i] * t->links[i];
    }
    t->share = (double)due / (double)bytes;
    t->mean = (double)to_undo / (double)bytes;
}

static void many_alike(struct turning *t)
{
    *t = (struct turning){.count = MOST_TURNS};
    for (size_t i = 0; i < MOST_TURNS; i++)
        t->bytes[i] = 4096;
}

/* Under a bound of links alone the share of keyframes is even from the first step on. */
static void turns_are_even(void **state)
{
    (void)state;
    static const uint32_t bounds[] = {1, 2, 4, 16, 64};
    static struct turning t;
    for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++) {
        const double even = 1 / (bounds[b] + 1.0);
        many_alike(&t);
        for (size_t n = 0; n < STEPS; n++) {
            turn(&t, bounds[b], LMCS_LINK_BOUND, NULL);
            assert_true(t.share > even - 0.002 && t.share < even + 0.002);
            assert_true(t.mean < bounds[b] / 2.0 + 0.1);
        }
    }
}

/* Under the bound of the mean, they are soon even; the sum is little more than that of even ones. */
static void the_mean_holds_from_the_first_step(void **state)
{
    (void)state;
    static const double means[] = {0.5, 1, 2.7, 8, 16, 30};
    static struct turning t;
    for (size_t m = 0; m < sizeof means / sizeof *means; m++) {
        const double even = 1 / (2 * means[m] + 1);
        double sum = 0;
        many_alike(&t);
        for (size_t n = 0; n < STEPS; n++) {
            turn(&t, LMCS_LINK_BOUND, means[m], NULL);
            assert_true(t.mean <= means[m] + 1e-9 && t.share < 2.1 * even);
            assert_true(n < 6 * means[m] + 1 || (t.share > 0.8 * even && t.share < 1.2 * even));
            sum += t.share;
        }
        assert_true(sum / STEPS < 1.05 * even);
    }
}

/* Any sizes; speeds that are measured anew; a process that begins with other lines. */
static void turns_of_any_sizes(void **state)
{
    (void)state;
    static struct turning t;
    struct rng rng = {5};
    for (size_t rounds = 0; rounds < 50; rounds++) {
        const double about = 1 + (double)rng_below(&rng, 20);
        double sum = 0, largest = 0, bytes = 0;
        t = (struct turning){.count = 1 + rng_below(&rng, 100)};
        for (size_t i = 0; i < t.count; i++) {
            t.bytes[i] = 1024 + (rng_next(&rng) >> (40 + rng_below(&rng, 20)));
            t.links[i] = (uint32_t)rng_below(&rng, 70) % (LMCS_LINK_BOUND + 1);
            bytes += (double)t.bytes[i];
            largest = (double)t.bytes[i] > largest ? (double)t.bytes[i] : largest;
        }
        for (size_t n = 0; n < STEPS; n++) {
            const double mean = about * (0.95 + 0.001 * (double)rng_below(&rng, 100));
            turn(&t, LMCS_LINK_BOUND, mean, NULL);
            assert_true(t.mean <= mean + 1e-9);
            sum += n >= STEPS / 2 ? t.share : 0;
        }
        /* lines grow to 2 means, less if one parameter has most of the bytes */
        assert_true(sum / (STEPS / 2) < 1.6 * (1 + largest / bytes) / (2 * about * 0.95 + 1));
    }
}

static void one_large_array(void **state)
{
    (void)state;
    static struct turning t;
    t = (struct turning){.count = 1, .bytes = {(uint64_t)1 << 40}};
    for (uint32_t n = 1; n <= STEPS; n++) {
        turn(&t, LMCS_LINK_BOUND, 5.5, NULL);
        assert_int_equal(t.links[0], n % 6);
    }
}

/* Experts, of which each step changes some; the mean is of all. */
static void turns_of_some(void **state)
{
    (void)state;
    static struct turning t;
    static bool changes[MOST_TURNS];
    struct rng rng = {6};
    double sum = 0;
    many_alike(&t);
    for (size_t n = 0; n < 4 * (size_t)STEPS; n++) {
        for (size_t i = 0; i < MOST_TURNS; i++)
            changes[i] = rng_below(&rng, 4) == 0;
        turn(&t, LMCS_LINK_BOUND, 6, changes);
        assert_true(t.mean <= 6 + 1e-9);
        sum += t.share;
    }
    assert_true(sum / (4 * STEPS) < 0.25 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(captures_write_keyframes),
        IN_MEMORY(raw_where_a_frame_saves_nothing),
        ON_BOTH(keyframes_end_damage),
        IN_MEMORY(keyframes_beside_a_refused_link),
        ON_BOTH(full_pools),
        ON_BOTH(beside_the_background),
        IN_MEMORY(captured_steps_are_passed_over),
        cmocka_unit_test(time_bounds_lines),
        IN_MEMORY(the_policy_bounds_the_mean),
        IN_MEMORY(unchanged_parameters_count),
        IN_MEMORY(speeds_are_measured),
        cmocka_unit_test(turns_are_even),
        cmocka_unit_test(the_mean_holds_from_the_first_step),
        cmocka_unit_test(turns_of_any_sizes),
        cmocka_unit_test(one_large_array),
        cmocka_unit_test(turns_of_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
