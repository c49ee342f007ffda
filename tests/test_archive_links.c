/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_links.c - archives of linked steps: whole, in parts, since others. */
/* ctest: timeout=900 labels=slow,no-tsan */
#include "test_archive_links_files.h"

static void restore_part(struct lmcs_pool *pool, int fd, const char *address, const char *only)
{
    struct lmcs_restore_options options;
    lmcs_restore_options_init(&options);
    options.addresses = &address;
    options.address_count = address != NULL;
    options.only = &only;
    options.only_count = only != NULL;
    rewind_to_start(fd);
    OK(lmcs_restore_with(pool, &fd, 1, &options, NULL, NULL, &err));
    check_pool(pool);
}

static void lines_of_every_length(void **state)
{
    const struct place *place = *state;
    static const char *const policies[] = {"keep_raw=1 links=1", "keep_raw=1 links=2", "keep_raw=3 links=5",
                                           "keep_raw=1 links=64"};
    for (size_t i = 0; i < 4; i++) {
        struct run run;
        const size_t steps = i < 3 ? 14 : UNDER_SANITIZER ? 20 : 40;
        struct lmcs_pool *pool = make_run(place, &run, small, policies[i], steps), *other = new_pool(place, "to.pool");
        int fd = dump_run(place, pool, "a"), again = dump_run(place, pool, "b");
        EXPECT(same_files(fd, again));
        restore(other, fd);
        verify_pool(other);
        expect_run(&run, other, "run");
        for (uint64_t n = 1; n <= steps; n++) {
            struct lmcs_snapshot_storage a = storage_of(pool, "run", n), b = storage_of(other, "run", n);
            EXPECT(a.link_contents == b.link_contents && a.longest_line == b.longest_line);
            EXPECT(a.raw_contents == b.raw_contents && a.delta_contents == b.delta_contents);
        }
        close(again);
        again = dump_run(place, other, "b");
        EXPECT(same_files(fd, again));
        run_on(&run, other, "run", i < 3 ? 6 : 0);
        OK(lmcs_compact(other, NULL, &err));
        check_pool(other);
        verify_pool(other);
        expect_run(&run, other, "run");
        OK(lmcs_shelf_drop(other, "run", false, NULL, &err));
        OK(lmcs_compact(other, NULL, &err));
        check_pool(other);
        EXPECT(pool_info(other).content_count == 0);
        close(fd);
        close(again);
        close_pool(other);
        close_pool(pool);
        run_end(&run);
    }
}

static void all_optimizers(void **state)
{
    const struct place *place = *state;
    struct lmc_link_hints all[4] = {adamw_hints(), adamw_hints(), sgd_hints(), sgd_hints()};
    const enum gradients kinds[4] = {CLIPPED, ANY, BF16, SUMMED};
    all[1].flags = LMC_LINK_AMSGRAD | LMC_LINK_L2;
    all[3].flags = LMC_LINK_NESTEROV;
    for (size_t i = 0; i < 4; i++) {
        struct run run;
        struct lmcs_pool *pool = new_pool(place, "from.pool"), *other = new_pool(place, "to.pool");
        run_begin(&run, all[i], kinds[i], large);
        set_policy(pool, "run", "keep_raw=1");
        run_on(&run, pool, "run", 6);
        OK(lmcs_compact(pool, NULL, &err));
        int fd = dump_run(place, pool, "a");
        EXPECT(forms_of(fd).of[LMCS_PAYLOAD_LINKED] >= 4 * 2 * run.parameters[0].arrays);
        restore(other, fd);
        verify_pool(other);
        expect_run(&run, other, "run");
        close(fd);
        close_pool(other);
        close_pool(pool);
        run_end(&run);
    }
}

static void as_small_as_the_pool(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_transfer_report report;
    struct lmcs_pool *pool = make_run(place, &run, large, "keep_raw=1", 16);
    uint64_t stored = 0, raw = 0;
    for (uint64_t n = 1; n <= 16; n++) {
        stored += storage_of(pool, "run", n).stored_bytes;
        for (size_t t = 0; t < run.states[n]->count; t++)
            raw += run.states[n]->tensors[t].bytes;
    }
    int fd = dump_part(place, pool, "run", -1, "a", &report);
    print_message("16 steps: raw %llu, stored %llu, archive %llu\n", (unsigned long long)raw,
                  (unsigned long long)stored, (unsigned long long)report.bytes);
    EXPECT(report.bytes < stored + stored / 20);
    EXPECT(report.bytes < raw / 3);
    close(fd);
    close_pool(pool);
    run_end(&run);
}

static void removed_in_the_middle(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct rng rng = {5};
    struct lmcs_pool *pool = make_run(place, &run, small, "keep_raw=2 links=8", 20);
    for (size_t i = 0; i < 17; i++) {
        uint64_t victim = 1 + rng_below(&rng, run.count);
        while (!run.there[victim])
            victim = victim % run.count + 1;
        OK(lmcs_snapshot_remove(pool, "run", victim, false, NULL, &err));
        run.there[victim] = false;
        if (i % 4 != 0)
            continue;
        if (i % 8 == 0)
            OK(lmcs_compact(pool, NULL, &err));
        struct lmcs_pool *other = new_pool(place, "to.pool");
        int fd = dump_run(place, pool, "a");
        restore(other, fd);
        verify_pool(other);
        expect_run(&run, other, "run");
        OK(lmcs_compact(other, NULL, &err));
        check_pool(other);
        expect_run(&run, other, "run");
        OK(lmcs_shelf_drop(other, "run", false, NULL, &err));
        check_pool(other);
        EXPECT(pool_info(other).content_count == 0);
        close(fd);
        close_pool(other);
    }
    close_pool(pool);
    run_end(&run);
}

static void forks_share_lines(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_snapshot *snapshot;
    struct lmcs_pool *pool = make_run(place, &run, small, "keep_raw=1", 7);
    OK(lmcs_snapshot_open(pool, "run@4", &snapshot, &err));
    OK(lmcs_shelf_fork(snapshot, "a fork", &err));
    lmcs_snapshot_close(snapshot);
    for (int turn = 0; turn < 2; turn++) {
        struct lmcs_pool *other = new_pool(place, "to.pool");
        int fd = new_file(place, "a");
        OK(lmcs_dump(pool, NULL, fd, NULL, NULL, &err));
        rewind_to_start(fd);
        OK(lmcs_archive_verify(fd, NULL, NULL, &err));
        EXPECT(forms_of(fd).of[LMCS_PAYLOAD_LINK] == (turn == 0 ? 5 : 3) * PARAMETERS);
        restore(other, fd);
        verify_pool(other);
        expect_snapshot(other, "a fork", 1, run.states[4]);
        if (turn == 0)
            expect_run(&run, other, "run");
        close(fd);
        close_pool(other);
        if (turn == 0)
            OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    }
    close_pool(pool);
    run_end(&run);
}

static void canonical_has_no_links(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = new_pool(place, "from.pool"), *other = new_pool(place, "to.pool");
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    options.canonical = true;
    run_begin(&run, adamw_hints(), BF16, large);
    run_on(&run, pool, "run", 6);
    int before = new_file(place, "a"), after = new_file(place, "b"), there = new_file(place, "c");
    OK(lmcs_dump_with(pool, &options, before, NULL, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(storage_of(pool, "run", 2).link_contents > 0);
    OK(lmcs_dump_with(pool, &options, after, NULL, NULL, &err));
    EXPECT(same_files(before, after));
    int fd = dump_run(place, pool, "d");
    restore(other, fd);
    OK(lmcs_dump_with(other, &options, there, NULL, NULL, &err));
    EXPECT(same_files(before, there));
    close(before);
    close(after);
    close(there);
    close(fd);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

/* A snapshot by links, and one that is raw: frames of their own, and smaller than raw. */
static void alone(void **state)
{
    const struct place *place = *state;
    static const char *const addresses[] = {"run@12", "run@latest"};
    struct run run;
    struct lmcs_pool *pool = make_run(place, &run, large, "keep_raw=1", 16);
    EXPECT(storage_of(pool, "run", 12).link_contents > 0 && storage_of(pool, "run", 16).raw_contents > 0);
    for (size_t i = 0; i < 2; i++) {
        struct lmcs_pool *other = new_pool(place, "to.pool");
        struct lmcs_dump_options options;
        struct lmcs_transfer_report report, raw;
        lmcs_dump_options_init(&options);
        options.addresses = &addresses[i];
        options.address_count = 1;
        options.canonical = true;
        int fd = new_file(place, "a");
        OK(lmcs_dump_with(pool, &options, fd, NULL, &raw, &err));
        close(fd);
        options.canonical = false;
        options.alone = true;
        fd = new_file(place, "a");
        OK(lmcs_dump_with(pool, &options, fd, NULL, &report, &err));
        const struct forms forms = forms_of(fd);
        EXPECT(forms.of[LMCS_PAYLOAD_LINK] == 0 && forms.of[LMCS_PAYLOAD_LINKED] == 0);
        EXPECT(forms.of[LMCS_PAYLOAD_FRAME] > 0 && report.bytes < raw.bytes - raw.bytes / 20);
        restore(other, fd);
        EXPECT(expect_what_is_there(&run, other) == 1);
        EXPECT(storage_of(other, "run", i == 0 ? 12 : 16).delta_contents == 0);
        close(fd);
        close_pool(other);
    }
    close_pool(pool);
    run_end(&run);
}

static void parts_of_a_line(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = make_run(place, &run, small, "keep_raw=1", 24);
    static const struct {
        const char *addresses[2];
        size_t links; /* for each parameter; one more where the states before the first are smaller raw */
    } parts[] = {{{"run@20"}, 0}, {{"run@3"}, 0}, {{"run@15..20"}, 5}, {{"run@2..6"}, 4}, {{"run@9", "run@13"}, 4}};
    for (size_t i = 0; i < 5; i++) {
        struct lmcs_pool *other = new_pool(place, "to.pool");
        struct lmcs_dump_options options;
        lmcs_dump_options_init(&options);
        options.addresses = parts[i].addresses;
        options.address_count = parts[i].addresses[1] != NULL ? 2 : 1;
        int fd = new_file(place, "a");
        OK(lmcs_dump_with(pool, &options, fd, NULL, NULL, &err));
        rewind_to_start(fd);
        OK(lmcs_archive_verify(fd, NULL, NULL, &err));
        size_t links = forms_of(fd).of[LMCS_PAYLOAD_LINK], least = parts[i].links * PARAMETERS;
        EXPECT(links >= least && links < least + PARAMETERS);
        EXPECT(forms_of(fd).of[LMCS_PAYLOAD_LINKED] == links * 3);
        restore(other, fd);
        expect_what_is_there(&run, other);
        OK(lmcs_compact(other, NULL, &err));
        check_pool(other);
        expect_what_is_there(&run, other);
        close(fd);
        close_pool(other);
    }
    int fd = dump_run(place, pool, "a");
    for (size_t i = 0; i < 4; i++) {
        struct lmcs_pool *other = new_pool(place, "to.pool");
        restore_part(other, fd, parts[i].addresses[0], NULL);
        expect_what_is_there(&run, other);
        OK(lmcs_compact(other, NULL, &err));
        check_pool(other);
        expect_what_is_there(&run, other);
        OK(lmcs_shelf_drop(other, "run", false, NULL, &err));
        OK(lmcs_compact(other, NULL, &err));
        check_pool(other);
        EXPECT(pool_info(other).content_count == 0);
        close_pool(other);
    }
    close(fd);
    close_pool(pool);
    run_end(&run);
}

/* The link's other arrays come along, hidden. */
static void one_tensor(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = make_run(place, &run, small, "keep_raw=1", 8), *other = new_pool(place, "to.pool");
    int fd = dump_run(place, pool, "a");
    restore_part(other, fd, "run@2..6", "p1.weight");
    verify_pool(other);
    for (uint64_t n = 2; n <= 6; n++) {
        char address[32];
        const struct held *held = run.states[n]->tensors;
        while (strcmp(held->name, "p1.weight") != 0)
            held++;
        snprintf(address, sizeof address, "run@%d", (int)n);
        OK(read_tensor(other, address, held, 0, held->bytes));
        EXPECT(read_tensor(other, address, held + 1, 0, held[1].bytes) == LMCS_NOT_FOUND);
    }
    OK(lmcs_compact(other, NULL, &err));
    check_pool(other);
    restore_part(other, fd, "run@7", "p*.exp_avg");
    verify_pool(other);
    OK(lmcs_shelf_drop(other, "run", false, NULL, &err));
    OK(lmcs_compact(other, NULL, &err));
    check_pool(other);
    EXPECT(pool_info(other).content_count == 0);
    close(fd);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

/* `policy`: of the shelf before the second archive. */
static void since_into(const struct place *place, const struct run *run, int early, int late, const char *policy)
{
    struct lmcs_pool *other = new_pool(place, "to.pool");
    restore(other, early);
    if (policy != NULL) {
        set_policy(other, "run", policy);
        OK(lmcs_compact(other, NULL, &err));
    }
    restore(other, late);
    verify_pool(other);
    expect_run(run, other, "run");
    OK(lmcs_compact(other, NULL, &err));
    check_pool(other);
    verify_pool(other);
    expect_run(run, other, "run");
    OK(lmcs_shelf_drop(other, "run", false, NULL, &err));
    OK(lmcs_compact(other, NULL, &err));
    check_pool(other);
    EXPECT(pool_info(other).content_count == 0);
    close_pool(other);
}

static void since_another(void **state)
{
    const struct place *place = *state;
    struct run run;
    static const char *const policies[] = {"keep_raw=1 links=4", "keep_raw=3 links=64"};
    for (size_t i = 0; i < 2; i++) {
        struct lmcs_pool *pool = make_run(place, &run, small, policies[i], 9);
        int early = dump_run(place, pool, "a");
        run_on(&run, pool, "run", 9);
        OK(lmcs_compact(pool, NULL, &err));
        int late = dump_part(place, pool, "run", early, "b", NULL);
        EXPECT(forms_of(late).of[LMCS_PAYLOAD_LINK] >= 8);
        EXPECT(forms_of(late).of[LMCS_PAYLOAD_RAW] < 60);
        since_into(place, &run, early, late, NULL);
        /* The newest of the first is a delta, a keyframe, or in another line. */
        since_into(place, &run, early, late, "keep_raw=1 links=off");
        since_into(place, &run, early, late, "keep_raw=1 chain=1 links=off");
        since_into(place, &run, early, late, "keep_raw=1 links=2");
        struct lmcs_pool *other = new_pool(place, "to.pool");
        const int both[] = {early, late};
        rewind_to_start(early);
        rewind_to_start(late);
        FAILS(LMCS_NOT_FOUND, lmcs_restore(other, late, NULL, NULL, &err));
        rewind_to_start(late);
        OK(lmcs_restore_with(other, both, 2, NULL, NULL, NULL, &err));
        check_pool(other);
        expect_run(&run, other, "run");
        close_pool(other);
        close(early);
        close(late);
        close_pool(pool);
        run_end(&run);
    }
}

static void since_what_bears_no_link(void **state)
{
    const struct place *place = *state;
    struct run run, same;
    struct lmcs_pool *pool = make_run(place, &run, small, "keep_raw=1", 6), *other = new_pool(place, "to.pool");
    struct lmcs_restore_options how;
    int early = dump_run(place, pool, "a");
    run_on(&run, pool, "run", 4);
    OK(lmcs_compact(pool, NULL, &err));
    int late = dump_part(place, pool, "run", early, "b", NULL);
    lmcs_restore_options_init(&how);
    how.as = "copy";
    OK(lmcs_restore_with(other, &early, 1, &how, NULL, NULL, &err));
    set_policy(other, "copy", "keep_raw=1 links=off");
    for (uint64_t n = 7; n <= 9; n++) {
        struct lmcs_capture *capture;
        OK(lmcs_capture_begin(other, "copy", &capture, &err));
        put_state(capture, run.states[n]);
        OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    }
    OK(lmcs_compact(other, NULL, &err));
    EXPECT(record_of(other, "copy", 6, "p2.weight").df.base_count == 1);
    for (uint64_t n = 7; n <= 9; n++)
        OK(lmcs_snapshot_remove(other, "copy", n, false, NULL, &err));
    restore(other, late);
    verify_pool(other);
    for (uint64_t n = 7; n <= 10; n++)
        expect_snapshot(other, "run", n, run.states[n]);
    EXPECT(record_of(other, "run", 8, "p2.weight").df.payload == LMCS_PAYLOAD_LINKED);
    close_pool(other);
    other = new_pool(place, "to.pool");
    run_begin(&same, adamw_hints(), BF16, small);
    set_policy(other, "copy", "keep_raw=1");
    run_on(&same, other, "copy", 5);
    same.hints.lr *= 2;
    run_on(&same, other, "copy", 1);
    OK(lmcs_compact(other, NULL, &err));
    take_snapshot(other, "weights", run.states[6], 6);
    EXPECT(record_of(other, "copy", 6, "p2.exp_avg").link != 0);
    struct lmcs_content ours = record_of(other, "weights", 1, "p2.exp_avg");
    struct lmcs_content theirs = record_of(other, "copy", 6, "p2.exp_avg");
    EXPECT(ours.df.digest_low == theirs.df.digest_low && ours.id > theirs.id);
    EXPECT(record_of(other, "copy", 6, "p2.weight").df.digest_low !=
           record_of(other, "weights", 1, "p2.weight").df.digest_low);
    restore(other, late);
    run_on(&same, other, "copy", 2);
    OK(lmcs_compact(other, NULL, &err));
    EXPECT(record_of(other, "copy", 6, "p2.exp_avg").df.payload == LMCS_PAYLOAD_LINKED);
    check_pool(other);
    verify_pool(other);
    for (uint64_t n = 7; n <= 10; n++)
        expect_snapshot(other, "run", n, run.states[n]);
    run_end(&same);
    close(early);
    close(late);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

/* The pool has the base of a line late in another line, which can't go on for as long as the archive's. */
static void since_the_end_of_a_line(void **state)
{
    enum { EARLY = 34 };
    const struct place *place = *state;
    struct run run;
    struct lmcs_restore_options how;
    struct lmcs_pool *pool = make_run(place, &run, small, "keep_raw=1 links=64", EARLY), *other = new_pool(place, "b");
    int early = dump_part(place, pool, "run@34", -1, "early", NULL);
    restore(other, early);
    set_policy(other, "run", "keep_raw=1 links=64");
    run_on(&run, other, "run", MOST_STEPS - EARLY);
    OK(lmcs_compact(other, NULL, &err));
    rewind_to_start(early);
    int late = dump_part(place, other, "run", early, "late", NULL);
    take_snapshot(pool, "run", run.states[1], 1);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(storage_of(pool, "run", EARLY).longest_line == EARLY - 1);
    EXPECT(storage_of(other, "run", MOST_STEPS - 1).longest_line + EARLY - 1 > LMCS_LINK_BOUND);
    lmcs_restore_options_init(&how);
    how.as = "copy";
    rewind_to_start(late);
    OK(lmcs_restore_with(pool, &late, 1, &how, NULL, NULL, &err));
    check_pool(pool);
    for (uint64_t n = EARLY + 1; n <= MOST_STEPS; n++)
        expect_snapshot(pool, "copy", n, run.states[n]);
    verify_pool(pool);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    OK(lmcs_shelf_drop(pool, "copy", false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    EXPECT(pool_info(pool).content_count == 0);
    close(early);
    close(late);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

/* Captures write deltas against raw contents. When a link replaces the base on restore, no delta may rest on it. */
static void deltas_onto_links(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = new_pool(place, "from.pool"), *other = new_pool(place, "to.pool");
    run_begin(&run, adamw_hints(), BF16, small);
    run_on(&run, pool, "run", 3);
    int early = dump_run(place, pool, "a");
    set_policy(pool, "run", "write=link");
    for (int i = 0; i < 2; i++) { /* without relations */
        run_step(&run);
        run_snapshot(&run, pool, "run", false, 0);
    }
    EXPECT(storage_of(pool, "run", 4).delta_contents > 0);
    int late = dump_part(place, pool, "run", early, "b", NULL);
    restore(other, early);
    set_policy(other, "run", "keep_raw=1");
    OK(lmcs_compact(other, NULL, &err));
    EXPECT(record_of(other, "run", 3, "p1.weight").link != 0);
    restore(other, late);
    verify_pool(other);
    expect_run(&run, other, "run");
    OK(lmcs_compact(other, NULL, &err));
    check_pool(other);
    expect_run(&run, other, "run");
    OK(lmcs_shelf_drop(other, "run", false, NULL, &err));
    OK(lmcs_compact(other, NULL, &err));
    check_pool(other);
    EXPECT(pool_info(other).content_count == 0);
    close(early);
    close(late);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

static void equal_arrays(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = new_pool(place, "from.pool");
    run_begin(&run, adamw_hints(), BF16, small);
    set_policy(pool, "run", "keep_raw=1");
    for (size_t p = 0; p < PARAMETERS; p++)
        for (unsigned k = 0; k < 2; k++)
            memset(run.parameters[p].array[k], 0, 4 * run.parameters[p].elements);
    run.hints.step = 1;
    run_snapshot(&run, pool, "run", true, 0);
    int early = dump_run(place, pool, "a");
    run_on(&run, pool, "run", 5);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(storage_of(pool, "run", 2).link_contents > 0);
    int late = dump_part(place, pool, "run", early, "b", NULL), all = dump_run(place, pool, "c");
    since_into(place, &run, early, late, NULL);
    since_into(place, &run, early, all, NULL);
    since_into(place, &run, early, all, "keep_raw=1");
    /* Resumed after the first snapshot, of which only digests are known. */
    size_t bytes;
    unsigned char *data = bytes_of(all, &bytes);
    for (size_t cut = 100; cut < bytes; cut += bytes / 9) {
        struct lmcs_dump_options options;
        struct lmcs_pool *other = new_pool(place, "to.pool");
        int fd = new_file(place, "d");
        set_bytes(fd, data, cut);
        lmcs_dump_options_init(&options);
        options.resume = true;
        OK(lmcs_dump_with(pool, &options, fd, NULL, NULL, &err));
        restore(other, fd);
        verify_pool(other);
        expect_run(&run, other, "run");
        close(fd);
        close_pool(other);
    }
    free(data);
    close(early);
    close(late);
    close(all);
    close_pool(pool);
    run_end(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(lines_of_every_length),
        IN_MEMORY(all_optimizers),
        IN_MEMORY(as_small_as_the_pool),
        IN_MEMORY(removed_in_the_middle),
        IN_MEMORY(forks_share_lines),
        IN_MEMORY(canonical_has_no_links),
        IN_MEMORY(parts_of_a_line),
        IN_MEMORY(one_tensor),
        IN_MEMORY(since_another),
        IN_MEMORY(since_what_bears_no_link),
        IN_MEMORY(since_the_end_of_a_line),
        IN_MEMORY(deltas_onto_links),
        IN_MEMORY(equal_arrays),
        IN_MEMORY(alone),
    };
    return cmocka_run_group_tests_name("archive links", tests, NULL, NULL);
}
