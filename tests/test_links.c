/* SPDX-License-Identifier: BSD-3-Clause */
/* test_links.c - optimizer steps: relations, the size of links, removals, forks and archives. */
/* ctest: timeout=600 */
#include "compact/links.h"
#include "media/media.h"
#include "pages/space.h"
#include "pages/txn.h"
#include "payload/read.h"
#include "records/content.h"
#include "snapshots/snapshot.h"
#include "test_links_support.h"
#include <pthread.h>
#include <stdatomic.h>

static void steps_come_back(void **state)
{
    struct place *place = *state;
    const size_t steps = 12;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "keep_raw=2");
    run_on(&run, pool, "run", steps);
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    for (uint64_t n = 2; n <= steps - 2; n++) {
        struct lmcs_snapshot_storage storage = storage_of(pool, "run", n);
        uint64_t bytes = 0;
        for (size_t t = 0; t < run.states[n]->count; t++)
            bytes += run.states[n]->tensors[t].bytes;
        assert_int_equal(storage.link_contents, 3 * PARAMETERS);
        assert_int_equal(storage.longest_line, n - 1);
        assert_true(storage.stored_bytes < bytes / 5);
        assert_null(storage.links_note);
    }
    assert_int_equal(storage_of(pool, "run", 1).link_contents, 0);
    assert_int_equal(storage_of(pool, "run", steps).link_contents, 0);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    uint64_t epoch = pool_info(pool).epoch;
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(pool_info(pool).epoch <= epoch + 2);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    verify_pool(pool);
    expect_run(&run, pool, "run");
    close_pool(pool);
    run_end(&run);
}

static bool stop_at_second(void *context, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    (void)done;
    (void)total;
    return ++*(int *)context < 2;
}

static bool go_on(void *context, uint64_t bytes)
{
    (void)context;
    return bytes > 0;
}

static void nothing_is_suspect(void *context, uint64_t content)
{
    (void)context;
    fail_msg("content %llu is suspect", (unsigned long long)content);
}

/* The pool becomes full between the parameters of a step. */
static void links_stay_in_a_full_pool(void **state)
{
    struct place *place = *state;
    struct run run;
    char path[512];
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_links_turn turn = {.number = 1, .bound = 8, .go_on = go_on, .suspect = nothing_is_suspect};
    unsigned partly = 0;
    place_path(place, "full.pool", path);
    run_begin(&run, adamw_hints(), BF16, large);
    run_on(&run, pool, "run", 2);
    turn.shelf = pool->root.next_shelf - 1;
    uint64_t limit = pool_info(pool).used_bytes;
    close_pool(pool);
    for (turn.made = 0; turn.made < PARAMETERS; limit += 64 << 10) {
        copy_file(place->pool, path);
        turn.pool = pool = open_quiet(path);
        OK(lmcs_pool_set_limit(pool, limit, &err));
        OK(lmcs_links_make(&turn, &err));
        assert_int_equal(storage_of(pool, "run", 2).link_contents, 0); /* raw until their turn */
        assert_true(pool_info(pool).used_bytes <= limit);
        pool = reopen_counted(pool, path);
        check_pool(pool);
        verify_pool(pool);
        expect_run(&run, pool, "run");
        if (turn.made > 0 && turn.made < PARAMETERS) {
            partly++;
            OK(lmcs_pool_set_limit(pool, 0, &err));
            set_policy(pool, "run", "keep_raw=1");
            run_on(&run, pool, "run", 1);
            OK(lmcs_compact(pool, NULL, &err));
            assert_int_equal(storage_of(pool, "run", 2).link_contents, 3 * PARAMETERS);
            verify_pool(pool);
            expect_run(&run, pool, "run");
            state_free(run.states[run.count]);
            run.there[run.count--] = false;
        }
        close_pool(pool);
        assert_int_equal(unlink(path), 0);
    }
    assert_true(partly > 0);
    run_end(&run);
}

/* Compaction stops between the parameters of a step. */
static void finished_links_stay(void **state)
{
    struct place *place = *state;
    struct run run;
    int calls = 0;
    struct lmcs_progress progress = {stop_at_second, &calls};
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "keep_raw=1");
    run_on(&run, pool, "run", 3);
    FAILS(LMCS_CANCELLED, lmcs_compact(pool, &progress, &err));
    assert_true(record_of(pool, "run", 2, "p2.weight").link != 0);
    assert_true(record_of(pool, "run", 2, "p1.weight").link == 0);
    OK(lmcs_compact(pool, NULL, &err));
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

static void all_optimizers(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmc_link_hints all[4] = {adamw_hints(), adamw_hints(), sgd_hints(), sgd_hints()};
    const enum gradients kinds[4] = {CLIPPED, ANY, BF16, SUMMED};
    all[1].flags = LMC_LINK_AMSGRAD | LMC_LINK_L2;
    all[3].flags = LMC_LINK_NESTEROV;
    for (size_t i = 0; i < 4; i++) {
        char shelf[16];
        struct run run;
        snprintf(shelf, sizeof shelf, "run%zu", i);
        run_begin(&run, all[i], kinds[i], small);
        set_policy(pool, shelf, "keep_raw=1");
        run_on(&run, pool, shelf, 6);
        OK(lmcs_compact(pool, NULL, &err));
        for (uint64_t n = 2; n <= 5; n++) /* the smallest is below the least size for links */
            assert_true(storage_of(pool, shelf, n).link_contents >= 2 * run.parameters[0].arrays);
        expect_run(&run, pool, shelf);
        run_end(&run);
    }
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
}

/* As a scheduler does, to numbers of many digits. */
static void schedule(struct lmc_link_hints *hints, size_t turn)
{
    const double by = sin(0.7 * (double)turn);
    hints->lr *= 1 + 0.3 * by;
    hints->weight_decay *= 1 + 0.2 * by;
    hints->beta1 = 0.9 + 0.05 * by;
    hints->momentum = 0.9 + 0.05 * by;
}

/* A snapshot after the scheduler's step has the constants of the next step; the one before it has the step's. */
static void schedulers_change_constants(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmc_link_hints all[5] = {adamw_hints(), adamw_hints(), adamw_hints(), sgd_hints(), sgd_hints()};
    all[1].flags = LMC_LINK_L2;
    all[2].flags = LMC_LINK_AMSGRAD;
    all[4].flags = LMC_LINK_NESTEROV;
    for (size_t i = 0; i < 5; i++) {
        uint64_t stored[2] = {0};
        for (size_t late = 0; late < 2; late++) {
            char shelf[16];
            struct run run;
            snprintf(shelf, sizeof shelf, "%s%zu", late ? "late" : "early", i);
            run_begin(&run, all[i], CLIPPED, large);
            set_policy(pool, shelf, "keep_raw=1");
            for (size_t n = 0; n < 8; n++) {
                run_step(&run);
                if (late)
                    schedule(&run.hints, n);
                run_snapshot(&run, pool, shelf, true, 0);
                if (!late)
                    schedule(&run.hints, n);
            }
            OK(lmcs_compact(pool, NULL, &err));
            for (uint64_t n = 2; n <= 7; n++) {
                assert_int_equal(storage_of(pool, shelf, n).link_contents, run.parameters[0].arrays * PARAMETERS);
                stored[late] += storage_of(pool, shelf, n).stored_bytes;
            }
            expect_run(&run, pool, shelf);
            run_end(&run);
        }
        assert_true(stored[1] < stored[0] + stored[0] / 50);
    }
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
}

static void lines_have_a_bound(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    size_t first = 0, longest = 0;
    FAILS(LMCS_INVALID, lmcs_shelf_set_policy(pool, "run", "links=65", &err));
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=1 links=3");
    run_on(&run, pool, "run", 14);
    OK(lmcs_compact(pool, NULL, &err));
    for (uint64_t n = 1; n <= 13; n++) {
        struct lmcs_snapshot_storage storage = storage_of(pool, "run", n);
        longest = storage.longest_line > longest ? storage.longest_line : longest;
        assert_int_equal(storage.longest_line, (n - 1) % 4);
        if (storage.links_note != NULL) {
            assert_non_null(strstr(storage.links_note, "begins lines"));
            first++;
        }
    }
    assert_int_equal(longest, 3);
    assert_int_equal(first, 3);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

static void expect_note(struct lmcs_pool *pool, const char *shelf, uint64_t number, const char *why)
{
    struct lmcs_snapshot_storage storage = storage_of(pool, shelf, number);
    assert_int_equal(storage.link_contents, 0);
    if (why == NULL)
        assert_null(storage.links_note);
    else if (storage.links_note == NULL || strstr(storage.links_note, why) == NULL)
        fail_msg("%s@%d: \"%s\" is said, not \"%s\"", shelf, (int)number, storage.links_note, why);
}

static void reasons_are_said(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "gap", "keep_raw=1");
    for (size_t i = 0; i < 3; i++) {
        run_step(&run);
        run_step(&run);
        run_snapshot(&run, pool, "gap", true, 0);
    }
    OK(lmcs_compact(pool, NULL, &err));
    expect_note(pool, "gap", 2, "missing");
    assert_true(storage_of(pool, "gap", 1).delta_contents > 0);
    expect_run(&run, pool, "gap");
    run_end(&run);

    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "off", "keep_raw=1 links=off");
    run_on(&run, pool, "off", 3);
    OK(lmcs_compact(pool, NULL, &err));
    expect_note(pool, "off", 2, "links=off");
    expect_run(&run, pool, "off");
    run_end(&run);

    run_begin(&run, adamw_hints(), ANY, small);
    set_policy(pool, "strange", "keep_raw=1");
    for (size_t i = 0; i < 3; i++) {
        for (size_t p = 0; p < PARAMETERS; p++)
            for (unsigned k = 0; k < 3; k++)
                for (size_t e = 0; e < run.parameters[p].elements; e++)
                    run.parameters[p].array[k][e] = (float)rng_below(&run.rng, 1 << 24) * 1e-7f;
        run.hints.step++;
        run_snapshot(&run, pool, "strange", true, 0);
    }
    OK(lmcs_compact(pool, NULL, &err));
    expect_note(pool, "strange", 2, "arithmetic");
    expect_run(&run, pool, "strange");
    run_end(&run);
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
}

static void steps_are_found_in_the_data(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    const struct lmc_link_hints all[2] = {adamw_hints(), sgd_hints()};
    for (size_t i = 0; i < 2; i++) {
        struct run run;
        const char *shelf = i == 0 ? "adam" : "sgd";
        run_begin(&run, all[i], BF16, large);
        set_policy(pool, shelf, "keep_raw=1");
        for (size_t n = 0; n < 6; n++) {
            run_step(&run);
            run_snapshot(&run, pool, shelf, false, 0);
        }
        OK(lmcs_compact(pool, NULL, &err));
        for (uint64_t n = 2; n <= 5; n++) {
            const struct lmcs_snapshot_storage storage = storage_of(pool, shelf, n);
            assert_int_equal(storage.link_contents, run.parameters[0].arrays * PARAMETERS);
            assert_int_equal(storage.longest_line, n - 1);
            assert_null(storage.links_note);
        }
        expect_run(&run, pool, shelf);
        run_end(&run);
    }
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
}

/* A wrong parameter in a relation, such as an average, costs nothing. */
static void wrong_relations_are_looked_through(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    const size_t alike[PARAMETERS] = {40000, 40000, 40000};
    for (size_t turned = 0; turned < 2; turned++) {
        struct run run;
        const char *shelf = turned ? "wrong" : "right";
        run_begin(&run, adamw_hints(), BF16, alike);
        run.turned = turned;
        set_policy(pool, shelf, "keep_raw=1");
        run_on(&run, pool, shelf, 5);
        OK(lmcs_compact(pool, NULL, &err));
        expect_run(&run, pool, shelf);
        run_end(&run);
    }
    for (uint64_t n = 2; n <= 4; n++) {
        const struct lmcs_snapshot_storage right = storage_of(pool, "right", n), wrong = storage_of(pool, "wrong", n);
        assert_int_equal(wrong.link_contents, 3 * PARAMETERS);
        assert_true(wrong.stored_bytes < right.stored_bytes + right.stored_bytes / 50);
        assert_null(wrong.links_note);
    }
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
}

/* States without an optimizer are reported; the next search finds a run that began meanwhile. */
static void noise_is_looked_through_seldom(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct run run;
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "keep_raw=1");
    for (uint64_t n = 1; n <= 18; n++) {
        for (size_t p = 0; n < 5 && p < PARAMETERS; p++)
            for (unsigned k = 0; k < 3; k++)
                for (size_t e = 0; e < run.parameters[p].elements; e++)
                    run.parameters[p].array[k][e] = (float)rng_below(&run.rng, 1 << 24) * 1e-7f;
        run_step(&run);
        run_snapshot(&run, pool, "run", false, 0);
    }
    OK(lmcs_compact(pool, NULL, &err));
    expect_note(pool, "run", 2, "no optimizer's step");
    for (uint64_t n = 2; n < 16; n++)
        assert_int_equal(storage_of(pool, "run", n).link_contents, 0);
    assert_int_equal(storage_of(pool, "run", 17).link_contents, 3 * PARAMETERS);
    expect_run(&run, pool, "run");
    run_end(&run);
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
}

static void relations_are_checked(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *capture;
    struct lmcs_relation wrong[] = {
        {.names = {"a", "b", "c"}, .name_count = 3, .optimizer = 9},
        {.names = {"a", "b"}, .name_count = 2, .optimizer = LMC_ADAM},
        {.names = {"a", "b", ""}, .name_count = 3, .optimizer = LMC_ADAM},
        {.names = {"a", "b", NULL}, .name_count = 3, .optimizer = LMC_ADAM},
        {.names = {"a", "b", "c"}, .name_count = 3, .optimizer = LMC_ADAM, .lr = NAN},
        {.names = {"a", "b"}, .name_count = 2, .optimizer = LMC_SGD, .flags = 1u << 30},
    };
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        FAILS(LMCS_INVALID, lmcs_capture_relate(capture, &wrong[i], 1, &err));
    /* Hints to missing tensors or other dtypes than f32 are ignored. */
    struct lmcs_relation absent = {.names = {"a", "b", "c"}, .name_count = 3, .optimizer = LMC_ADAM};
    OK(lmcs_capture_relate(capture, &absent, 1, &err));
    struct rng rng = {3};
    struct state *weights = state_weights(&rng, 2, 3000);
    put_state(capture, weights);
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    expect_snapshot(pool, "run", 1, weights);
    for (size_t i = 0; i < 3; i++) {
        state_step(weights, &rng, 0, 2);
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        OK(lmcs_capture_relate(capture, &absent, 1, &err));
        put_state(capture, weights);
        OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    }
    set_policy(pool, "run", "keep_raw=1");
    OK(lmcs_compact(pool, NULL, &err));
    expect_note(pool, "run", 2, "relations");
    expect_snapshot(pool, "run", 4, weights);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

static void odd_histories(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=2 links=6");
    for (size_t i = 0; i < 30; i++) {
        double lr = run.hints.lr;
        struct trained_state kept = trained_copy(&run.parameters[i % PARAMETERS]);
        if (i % 5 == 2) {
            run.hints.lr = 0;
            run.hints.weight_decay = 0;
        }
        run_step(&run);
        if (i % 7 == 3) {
            trained_free(&run.parameters[i % PARAMETERS]);
            run.parameters[i % PARAMETERS] = trained_copy(&kept);
        }
        if (i == 9 || i == 20)
            set_policy(pool, "run", i == 9 ? "write=link" : "write=raw");
        if (i == 13)
            for (size_t e = 0; e < run.parameters[1].elements; e++)
                run.parameters[1].array[1][e] = 0;
        run_snapshot(&run, pool, "run", i != 16, i == 18 ? 77 : 0);
        if (i == 23) {
            for (size_t p = 0; p < PARAMETERS; p++)
                for (unsigned k = 0; k < 3; k++)
                    memcpy(run.parameters[p].array[k], run.states[20]->tensors[p * 3 + k].data,
                           4 * run.parameters[p].elements);
            run.hints.step -= 4;
        }
        run.hints.lr = lr;
        run.hints.weight_decay = adamw_hints().weight_decay;
        trained_free(&kept);
        if (i % 4 == 3) {
            OK(lmcs_compact(pool, NULL, &err));
            check_pool(pool);
        }
    }
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    expect_run(&run, pool, "run");
    size_t linked = 0;
    for (uint64_t n = 1; n <= run.count; n++) {
        linked += storage_of(pool, "run", n).link_contents > 0;
        assert_true(storage_of(pool, "run", n).longest_line <= 6);
    }
    assert_true(linked >= 8);
    close_pool(pool);
    run_end(&run);
}

static void removal_anywhere(void **state)
{
    struct place *place = *state;
    struct run run;
    struct rng rng = {23};
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=2 links=8");
    run_on(&run, pool, "run", 20);
    OK(lmcs_compact(pool, NULL, &err));
    for (size_t left = run.count; left > 1; left--) {
        uint64_t victim = 1 + rng_below(&rng, run.count);
        while (!run.there[victim])
            victim = victim % run.count + 1;
        struct lmcs_removal wished, done;
        OK(lmcs_snapshot_remove(pool, "run", victim, true, &wished, &err));
        OK(lmcs_snapshot_remove(pool, "run", victim, false, &done, &err));
        assert_memory_equal(&wished, &done, sizeof done);
        run.there[victim] = false;
        check_pool(pool);
        if (left % 3 == 0) {
            OK(lmcs_compact(pool, NULL, &err));
            check_pool(pool);
        }
        expect_run(&run, pool, "run");
    }
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    assert_int_equal(pool_info(pool).content_count, 0);
    close_pool(pool);
    run_end(&run);
}

static void a_step_in_the_middle_goes(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_removal removal;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=1");
    run_on(&run, pool, "run", 8);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_snapshot_remove(pool, "run", 4, true, &removal, &err));
    assert_true(removal.kept_bytes > 0);
    OK(lmcs_snapshot_remove(pool, "run", 4, false, &removal, &err));
    run.there[4] = false;
    OK(lmcs_compact(pool, NULL, &err));
    expect_run(&run, pool, "run");
    verify_pool(pool);
    for (uint64_t n = 5; n <= 8; n++) {
        OK(lmcs_snapshot_remove(pool, "run", n, false, &removal, &err));
        run.there[n] = false;
        check_pool(pool);
    }
    assert_int_equal(storage_of(pool, "run", 3).longest_line, 2);
    expect_run(&run, pool, "run");
    close_pool(pool);
    run_end(&run);
}

/* Keeping every tenth step does not keep the links between, which are larger; keeping others does. */
static void thinned_lines_begin_anew(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), ANY, small);
    set_policy(pool, "run", "keep_raw=1 links=32");
    run_on(&run, pool, "run", 24);
    OK(lmcs_compact(pool, NULL, &err));
    for (uint64_t n = 3; n <= 4; n++) {
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        run.there[n] = false;
    }
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(storage_of(pool, "run", 5).longest_line, 4);
    for (uint64_t n = 3; n <= 22; n++) {
        if (run.there[n] && n % 10 != 0)
            OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        run.there[n] = n % 10 == 0;
    }
    const uint64_t before = pool_info(pool).live_bytes;
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    assert_true(pool_info(pool).live_bytes < before * 2 / 3);
    for (uint64_t n = 10; n <= 20; n += 10) {
        assert_int_equal(storage_of(pool, "run", n).link_contents, 0);
        assert_int_equal(storage_of(pool, "run", n).keyframe_contents, 3 * PARAMETERS);
    }
    assert_int_equal(storage_of(pool, "run", 23).longest_line, 3);
    expect_run(&run, pool, "run");
    verify_pool(pool);
    run_on(&run, pool, "run", 14);
    OK(lmcs_compact(pool, NULL, &err));
    expect_run(&run, pool, "run");
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

static void forks_share_lines(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=1");
    run_on(&run, pool, "run", 6);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, "run@4", &snapshot, &err));
    OK(lmcs_shelf_fork(snapshot, "fork", &err));
    lmcs_snapshot_close(snapshot);
    for (uint64_t n = 1; n <= 6; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    expect_snapshot(pool, "fork", 1, run.states[4]);
    verify_pool(pool);
    OK(lmcs_shelf_drop(pool, "fork", false, NULL, &err));
    check_pool(pool);
    close_pool(pool);
    run_end(&run);
}

static void archives_carry_steps(void **state)
{
    struct place *place = *state;
    struct run run;
    char path[512], other_path[512];
    place_path(place, "steps.lmcs", path);
    place_path(place, "other.pool", other_path);
    struct lmcs_pool *pool = open_quiet(place->pool), *other = open_quiet(other_path);
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=2");
    run_on(&run, pool, "run", 9);
    OK(lmcs_compact(pool, NULL, &err));
    dump_to(pool, path);
    restore_from(other, path);
    check_pool(other);
    expect_run(&run, other, "run");
    OK(lmcs_shelf_set_policy(other, "run", "keep_raw=1", &err));
    OK(lmcs_compact(other, NULL, &err));
    check_pool(other);
    verify_pool(other);
    expect_run(&run, other, "run");
    assert_true(storage_of(other, "run", 5).link_contents > 0);
    restore_from(other, path);
    check_pool(other);
    expect_run(&run, other, "run");
    for (uint64_t n = 3; n <= 6; n++) {
        OK(lmcs_snapshot_remove(other, "run", n, false, NULL, &err));
        OK(lmcs_compact(other, NULL, &err));
    }
    restore_from(other, path);
    check_pool(other);
    expect_run(&run, other, "run");
    verify_pool(other);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(steps_come_back),
        ON_DISK(finished_links_stay),
        IN_MEMORY(links_stay_in_a_full_pool),
        ON_BOTH(all_optimizers),
        ON_BOTH(schedulers_change_constants),
        ON_BOTH(lines_have_a_bound),
        ON_BOTH(reasons_are_said),
        ON_BOTH(steps_are_found_in_the_data),
        ON_BOTH(wrong_relations_are_looked_through),
        ON_BOTH(noise_is_looked_through_seldom),
        ON_BOTH(relations_are_checked),
        ON_BOTH(odd_histories),
        ON_BOTH(removal_anywhere),
        ON_BOTH(a_step_in_the_middle_goes),
        ON_BOTH(thinned_lines_begin_anew),
        ON_BOTH(forks_share_lines),
        ON_BOTH(archives_carry_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
