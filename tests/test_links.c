/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_links.c - snapshots of an optimizer's steps: what relations promise, what links cost, and that whatever becomes
 * of a line of them, by policies, removals or damage, every step that is kept is read back bit for bit.
 */
/* ctest: timeout=600 */
#include "test_links_support.h"

#include <pthread.h>
#include <stdatomic.h>

#include "media/media.h"
#include "pages/txn.h"
#include "payload/read.h"
#include "records/content.h"
#include "snapshots/snapshot.h"

/* ---- What links give ---- */

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
    assert_int_equal(storage_of(pool, "run", steps).link_contents, 0); /* raw */
    expect_run(&run, pool, "run");
    verify_pool(pool);
    uint64_t epoch = pool_info(pool).epoch;
    OK(lmcs_compact(pool, NULL, &err)); /* nothing is left to do */
    assert_true(pool_info(pool).epoch <= epoch + 2);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    verify_pool(pool);
    expect_run(&run, pool, "run");
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
        for (uint64_t n = 2; n <= 5; n++) /* the smallest is below what links are made for */
            assert_true(storage_of(pool, shelf, n).link_contents >= 2 * run.parameters[0].arrays);
        expect_run(&run, pool, shelf);
        run_end(&run);
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
            assert_non_null(strstr(storage.links_note, "begins a line"));
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

/* ---- Where they don't apply ---- */

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
    for (size_t i = 0; i < 3; i++) { /* every other step */
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
    for (size_t i = 0; i < 3; i++) { /* no optimizer's steps */
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

/* A caller who says nothing of relations gets links all the same; names have no part in it. */
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

/* A caller who takes another tensor for the parameter, such as an average of it, loses nothing by that. */
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

/* What no optimizer made is said to be so; when the next such look is due, a run that began meanwhile is found. */
static void noise_is_looked_through_seldom(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct run run;
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "keep_raw=1");
    for (uint64_t n = 1; n <= 18; n++) {
        for (size_t p = 0; n < 5 && p < PARAMETERS; p++) /* no optimizer's steps */
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
    /* Tensors that are not there, or are no f32, cost nothing but the hint. */
    struct lmcs_relation absent = {.names = {"a", "b", "c"}, .name_count = 3, .optimizer = LMC_ADAM};
    OK(lmcs_capture_relate(capture, &absent, 1, &err));
    struct rng rng = {3};
    struct state *weights = state_weights(&rng, 2, 3000);
    put_state(capture, weights);
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    expect_snapshot(pool, "run", 1, weights); /* attachments of the store's own are not shown */
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

/* Weights that stay for a step, parameters without a gradient, steps taken again, captures that write deltas. */
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
        if (i % 5 == 2) { /* a rate of 0: the moments move and the weights stay */
            run.hints.lr = 0;
            run.hints.weight_decay = 0;
        }
        run_step(&run);
        if (i % 7 == 3) { /* no gradient */
            trained_free(&run.parameters[i % PARAMETERS]);
            run.parameters[i % PARAMETERS] = trained_copy(&kept);
        }
        if (i == 9 || i == 20)
            set_policy(pool, "run", i == 9 ? "encode=always" : "encode=never");
        if (i == 13)
            for (size_t e = 0; e < run.parameters[1].elements; e++)
                run.parameters[1].array[1][e] = 0; /* somebody reset it */
        run_snapshot(&run, pool, "run", i != 16, i == 18 ? 77 : 0);
        if (i == 23) { /* an older state is taken up again */
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

/* ---- Removal ---- */

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
    assert_true(removal.kept_bytes > 0); /* its links: step 5 rests on them */
    OK(lmcs_snapshot_remove(pool, "run", 4, false, &removal, &err));
    run.there[4] = false;
    OK(lmcs_compact(pool, NULL, &err));
    expect_run(&run, pool, "run");
    verify_pool(pool);
    for (uint64_t n = 5; n <= 8; n++) { /* with the last of those behind it, all goes */
        OK(lmcs_snapshot_remove(pool, "run", n, false, &removal, &err));
        run.there[n] = false;
        check_pool(pool);
    }
    assert_int_equal(storage_of(pool, "run", 3).longest_line, 2);
    expect_run(&run, pool, "run");
    close_pool(pool);
    run_end(&run);
}

/* Keeping every tenth step does not keep the links between, which are more than the steps; keeping others does. */
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
    run_on(&run, pool, "run", 14); /* and lines go on as long as they may */
    OK(lmcs_compact(pool, NULL, &err));
    expect_run(&run, pool, "run");
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    run_end(&run);
}

/* ---- Forks, and shelves that go on ---- */

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

/* ---- Archives ---- */

static void dump_to(struct lmcs_pool *pool, const char *path)
{
    struct lmcs_transfer_report report;
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    OK(lmcs_dump(pool, NULL, fd, NULL, &report, &err));
    assert_int_equal(close(fd), 0);
}

static void restore_from(struct lmcs_pool *pool, const char *path)
{
    struct lmcs_transfer_report report;
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    OK(lmcs_restore(pool, fd, NULL, &report, &err));
    assert_int_equal(close(fd), 0);
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
    assert_true(storage_of(other, "run", 5).link_contents > 0); /* the relations came along */
    restore_from(other, path);                                  /* which has it all */
    check_pool(other);
    expect_run(&run, other, "run");
    for (uint64_t n = 3; n <= 6; n++) { /* what was removed comes back, onto lines that are there */
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

/* ---- Damage ---- */

/* How many tensors of snapshot `number` can't be read; what can be is right. */
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
    set_policy(pool, "run", "keep_raw=1");
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
    options.addresses = &after; /* rests on it */
    FAILS(LMCS_DAMAGED, scrub_with(pool, &options, &telling));
    struct lmcs_verify_report report;
    FAILS(LMCS_DAMAGED, lmcs_verify(pool, NULL, NULL, NULL, NULL, &report, &err));
    /* It can't be repaired; life goes on around it. */
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    run_on(&run, pool, "run", 4);
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    for (uint64_t n = 8; n <= 12; n++) /* a line that is damaged is not gone on with */
        assert_int_equal(unreadable(&run, pool, n), 0);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    expect_clean(pool);
    close_pool(pool);
    run_end(&run);
}

/* ---- Bytes that rot while they wait ---- */

/* Which snapshot one byte of is turned, where in which array, and how many tensors of each then can't be read. */
struct rot {
    uint64_t number;
    const char *tensor;
    uint64_t at; /* of its stored bytes; 0: near the end of them */
    size_t at_once[6], in_the_end[6];
    uint64_t lost;    /* contents */
    bool is_its_link; /* not the raw array, but the link that leads to it */
};

/*
 * keep_raw=2: of five steps the first is a keyframe, the next two are stored by links, and two are raw, of which the
 * older has a link that leads to it. What rots is not what was written any more; all other steps are what they were.
 */
static void rot_once(struct place *place, const struct rot *rot)
{
    static const size_t sizes[PARAMETERS] = {300, 5000, LMC_BLOCK_BYTES / 4 + 5000};
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, sizes);
    set_policy(pool, "run", "keep_raw=2");
    run_on(&run, pool, "run", 5);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_content content = record_of(pool, "run", rot->number, rot->tensor);
    if (content.df.payload == LMCS_PAYLOAD_LINKED || rot->is_its_link)
        content = content_record(pool, content.link);
    damage_content(place->pool, &content, rot->at != 0 ? rot->at : content.df.stored_bytes - 20, 1);
    for (uint64_t n = 1; n <= 5; n++)
        assert_int_equal(unreadable(&run, pool, n), rot->at_once[n]);
    for (size_t i = 0; i < 4; i++) { /* the line goes on, or begins anew */
        run_on(&run, pool, "run", 1);
        OK(lmcs_compact(pool, NULL, &err));
        check_pool(pool);
        for (uint64_t n = 1; n <= run.count; n++)
            assert_int_equal(unreadable(&run, pool, n), n <= 5 ? rot->in_the_end[n] : 0);
    }
    assert_int_equal(pool_info(pool).lost_contents, rot->lost); /* it was met, and noted */
    if (rot->lost == 0)
        expect_clean(pool);
    close_pool(pool);
    assert_int_equal(unlink(place->pool), 0);
    run_end(&run);
}

static void a_raw_array_rots(void **state)
{
    static const struct rot cases[] = {
        /* Before a step: no link is made from it; it is what its own link leads to, which is whole. */
        {.number = 4, .tensor = "p2.weight", .at = 4000, .at_once = {[4] = 1}},
        {.number = 4, .tensor = "p2.exp_avg", .at = LMC_BLOCK_BYTES + 400, .at_once = {[4] = 1}},
        {.number = 4, .tensor = "p1.weight", .at = 4000, .at_once = {[4] = 1}},
        /* After it: no link leads to it, and it is lost, alone. */
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
        /* What it begins with, at either end, and links between that and the one that raw bytes are given up for. */
        {.number = 1, .tensor = "p2.weight", FROM_1_ON},
        {.number = 1, .tensor = "p1.exp_avg", .at = 10, FROM_1_ON},
        {.number = 2,
         .tensor = "p2.weight",
         .at_once = {[2] = 3, [3] = 3},
         .in_the_end = {[2] = 3, [3] = 3},
         .lost = 1},
        {.number = 3, .tensor = "p1.weight", .at_once = {[3] = 3}, .in_the_end = {[3] = 3}, .lost = 1},
        /* That one itself, while all that it leads to is raw: it was not needed yet. */
        {.number = 4, .tensor = "p1.weight", .is_its_link = true},
    };
#undef FROM_1_ON
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        rot_once(*state, &cases[i]);
}

/* Changes the record of a tensor of run@`number`. */
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

/* A link whose record, bytes and checksums are right, and that leads elsewhere than the array that is tied to it. */
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
    /* Stored by it: it can't be read, and verify says so, whichever of the line is looked at first. */
    struct lmcs_content linked = forge(pool, 3, "p2.weight", 2, 1);
    assert_int_equal(linked.df.payload, LMCS_PAYLOAD_LINKED);
    assert_int_equal(unreadable(&run, pool, 3), 1);
    assert_int_equal(damages_of(pool), 1);
    forge(pool, 3, "p2.weight", 2, 1);
    assert_int_equal(damages_of(pool), 0);
    /* Raw: it is right, verify tells of the link, and the bytes are not given up for it. */
    struct lmcs_content raw = forge(pool, 5, "p2.weight", 1, 0);
    assert_true(raw.df.payload == LMCS_PAYLOAD_RAW && raw.link != 0 && raw.df.output == 2);
    assert_int_equal(unreadable(&run, pool, 5), 0);
    assert_true(damages_of(pool) > 0);
    set_policy(pool, "run", "keep_raw=2 links=off"); /* or the next one's arrays are made to begin a line */
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

/* The longest there is goes in one removal. */
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

/* Parity that was wanted of an array, and not made yet when it got stored by its link, is made of that. */
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
    damage_content(place->pool, &link, 5, 100); /* its header */
    damage_content(place->pool, &first, first.df.stored_bytes / 2, 3000);
    OK(repair_from(pool, NULL, &telling));
    assert_int_equal(telling.report.repaired, telling.report.damages);
    assert_true(telling.count >= 2);
    expect_run(&run, pool, "run");
    expect_clean(pool);
    close_pool(pool);
    run_end(&run);
}

/* ---- In parts, and by many ---- */

static void slices_of_steps(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "keep_raw=1");
    run_on(&run, pool, "run", 5);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, "run@4", &snapshot, &err));
    for (size_t t = 0; t < run.states[4]->count; t++) {
        const struct held *held = &run.states[4]->tensors[t];
        size_t from = held->bytes / 3, take = held->bytes / 2;
        unsigned char *got = malloc(take);
        assert_non_null(got);
        OK(lmcs_snapshot_read_range(snapshot, held->kind, held->name, from, got, take, &err));
        assert_memory_equal(got, held->data + from, take);
        free(got);
    }
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
    run_end(&run);
}

/* A view of arrays of one link, of some of them, and of what has nothing to do with links. */
static void views_of_steps(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, large);
    set_policy(pool, "run", "keep_raw=1");
    run_on(&run, pool, "run", 5);
    OK(lmcs_compact(pool, NULL, &err));
    const char *const wanted[] = {"p2.weight", "noise", "p0.exp_avg", "p2.exp_avg", "p1.exp_avg_sq", "p0.weight"};
    const uint32_t flags[] = {0, LMCS_VIEW_PRIVATE, LMCS_VIEW_COPY | LMCS_VIEW_VERIFY};
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    OK(lmcs_snapshot_open(pool, "run@4", &snapshot, &err));
    for (size_t i = 0; i < 3; i++) {
        OK(lmcs_view_open(snapshot, wanted, NULL, sizeof wanted / sizeof wanted[0], flags[i], &view, &err));
        assert_int_equal(lmcs_view_count(view), sizeof wanted / sizeof wanted[0]);
        for (size_t k = 0; k < sizeof wanted / sizeof wanted[0]; k++) {
            const struct held *held = run.states[4]->tensors;
            while (strcmp(held->name, wanted[k]) != 0)
                held++;
            assert_memory_equal(lmcs_view_data(view, k), held->data, held->bytes);
        }
        lmcs_view_close(view);
    }
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
    run_end(&run);
}

struct watching {
    struct lmcs_pool *pool;
    const struct state *first;
    atomic_bool stop;
    atomic_uint rounds;
};

/* Looks at everything all the time, and repairs what is well. */
static void *watch(void *argument)
{
    struct watching *watching = argument;
    while (!watching->stop) {
        struct telling telling;
        expect_snapshot(watching->pool, "run", 1, watching->first);
        OK(lmcs_verify(watching->pool, NULL, NULL, NULL, NULL, NULL, &err));
        OK(repair_from(watching->pool, NULL, &telling));
        watching->rounds++;
    }
    return NULL;
}

static void in_the_background(void **state)
{
    struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_CREATE, 0);
    struct watching watching = {.pool = pool};
    pthread_t thread;
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=2 links=5 parity=4+1");
    run_on(&run, pool, "run", 1);
    watching.first = run.states[1];
    assert_int_equal(pthread_create(&thread, NULL, watch, &watching), 0);
    for (size_t i = 1; i < 24 || watching.rounds < 2; i++) {
        if (i >= MOST_STEPS) {
            usleep(1000);
            continue;
        }
        run_on(&run, pool, "run", 1);
        uint64_t n = 1 + rng_below(&run.rng, run.count);
        if (run.there[n])
            expect_snapshot(pool, "run", n, run.states[n]);
        if (i % 5 == 4 && run.there[i - 2]) {
            OK(lmcs_snapshot_remove(pool, "run", i - 2, false, NULL, &err));
            run.there[i - 2] = false;
        }
    }
    watching.stop = true;
    assert_int_equal(pthread_join(thread, NULL), 0);
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    verify_pool(pool);
    expect_run(&run, pool, "run");
    close_pool(pool);
    run_end(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(steps_come_back),
        ON_BOTH(all_optimizers),
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
        ON_BOTH(damage_is_found_and_named),
        IN_MEMORY(a_raw_array_rots),
        IN_MEMORY(a_line_rots),
        IN_MEMORY(a_link_leads_elsewhere),
        IN_MEMORY(damage_behind_a_long_line_is_named),
        IN_MEMORY(the_longest_line_goes),
        IN_MEMORY(wanted_parity_is_of_the_link),
        ON_BOTH(parity_repairs_links),
        ON_BOTH(slices_of_steps),
        ON_BOTH(views_of_steps),
        ON_BOTH(in_the_background),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
