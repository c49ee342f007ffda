/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_archive_links.c - archives of steps that are stored by links: of all, of parts, since others, taken up again,
 * into pools that have the same in other forms; their size, damage to them, and those that someone has forged.
 */
/* ctest: timeout=900 labels=slow,no-tsan */
#include "test_links_support.h"

#include "data/codec/seal.h"
#include "pages/txn.h"
#include "records/content.h"
#include "records/shelf.h"
#include "snapshots/snapshot.h"
#include "test_archive_files.h"
#include "test_archive_seal.h"

static const size_t tiny[PARAMETERS] = {300, 1100, 1400};

/* ---- Archives in files ---- */

static int new_file(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    return fd;
}

/* Of "run", or a part of it. Whatever was dumped can be verified. */
static int dump_part(const struct place *place, struct lmcs_pool *pool, const char *address, int since,
                     const char *name, struct lmcs_transfer_report *report)
{
    struct lmcs_dump_options options;
    struct lmcs_archive_info info;
    struct lmcs_transfer_report ignored;
    int fd = new_file(place, name);
    lmcs_dump_options_init(&options);
    options.addresses = &address;
    options.address_count = 1;
    options.since = &since;
    options.since_count = since >= 0;
    OK(lmcs_dump_with(pool, &options, fd, NULL, report != NULL ? report : &ignored, &err));
    rewind_to_start(fd);
    OK(lmcs_archive_verify(fd, NULL, &info, &err));
    EXPECT(since >= 0 || info.decoded_contents == info.contents);
    rewind_to_start(fd);
    return fd;
}

static int dump_run(const struct place *place, struct lmcs_pool *pool, const char *name)
{
    return dump_part(place, pool, "run", -1, name, NULL);
}

static void restore(struct lmcs_pool *pool, int fd)
{
    rewind_to_start(fd);
    OK(lmcs_restore(pool, fd, NULL, NULL, &err));
    check_pool(pool);
}

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

static struct lmcs_pool *new_pool(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    unlink(path);
    return open_quiet(path);
}

/* How many records of contents are stored in each way. */
struct forms {
    size_t of[4];
};

static struct forms forms_of(int fd)
{
    struct forms forms = {{0}};
    size_t bytes;
    unsigned char *data = bytes_of(fd, &bytes);
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        struct lmcs_archive_content_df df;
        memcpy(&record, data + at, sizeof record);
        memcpy(&df, data + at + sizeof record, sizeof df < bytes - at - sizeof record ? sizeof df : 0);
        if (record.type == LMCS_ARCHIVE_CONTENT)
            forms.of[df.payload]++;
        at += sizeof record + record.bytes;
    }
    free(data);
    return forms;
}

/* Steps of a run, all but the newest stored by links. */
static struct lmcs_pool *make_run(const struct place *place, struct run *run, const size_t *sizes, const char *policy,
                                  size_t steps)
{
    struct lmcs_pool *pool = new_pool(place, "from.pool");
    run_begin(run, adamw_hints(), BF16, sizes);
    set_policy(pool, "run", policy);
    run_on(run, pool, "run", steps);
    OK(lmcs_compact(pool, NULL, &err));
    return pool;
}

/* ---- All of it ---- */

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
        for (uint64_t n = 1; n <= steps; n++) { /* in the same form */
            struct lmcs_snapshot_storage a = storage_of(pool, "run", n), b = storage_of(other, "run", n);
            EXPECT(a.link_contents == b.link_contents && a.longest_line == b.longest_line);
            EXPECT(a.raw_contents == b.raw_contents && a.delta_contents == b.delta_contents);
        }
        close(again);
        again = dump_run(place, other, "b");
        EXPECT(same_files(fd, again));
        /* And it goes on, and can go. */
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

/* An archive is about as large as what the pool stores; that of the same states by deltas, or raw, is much larger. */
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

/* A shelf that was forked in the middle of a line: together with that, and when nothing else has it any more. */
static void forks_share_lines(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_snapshot *snapshot;
    struct lmcs_pool *pool = make_run(place, &run, small, "keep_raw=1", 7);
    OK(lmcs_snapshot_open(pool, "run@4", &snapshot, &err));
    OK(lmcs_shelf_fork(snapshot, "a fork", &err)); /* comes first */
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

/* The same names and bytes make the same canonical archive, linked or not. */
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

/* ---- Parts ---- */

/* Snapshots that are there are what they were. Gives how many. */
static size_t expect_what_is_there(const struct run *run, struct lmcs_pool *pool)
{
    uint64_t numbers[MOST_STEPS];
    size_t count;
    OK(lmcs_snapshot_numbers(pool, "run", 1, numbers, MOST_STEPS, &count, &err));
    EXPECT(count > 0);
    for (size_t i = 0; i < count; i++)
        expect_snapshot(pool, "run", numbers[i], run->states[numbers[i]]);
    verify_pool(pool);
    return count;
}

static void parts_of_a_line(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = make_run(place, &run, small, "keep_raw=1", 24);
    static const struct {
        const char *addresses[2];
        size_t links; /* for each parameter; one more where what leads to the first takes less than that, raw */
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
    /* Parts of an archive of all, of which only what they need is read. */
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

/* One array of those that a link leads to: the others come along, where nobody sees them. */
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
    restore_part(other, fd, "run@7", "p*.exp_avg"); /* onto what is there */
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

/* ---- Since others ---- */

/* `policy`: of the shelf that has the first archive, before it gets the second. */
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
        /* The newest of the first is a delta there, a keyframe, or linked to another line. */
        since_into(place, &run, early, late, "keep_raw=1 links=off");
        since_into(place, &run, early, late, "keep_raw=1 chain=1 links=off");
        since_into(place, &run, early, late, "keep_raw=1 links=2");
        /* Both at once; and the second alone is not complete. */
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

/* Arrays that a pool has as deltas, or that are found in places that don't belong together: no link goes there. */
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
    for (uint64_t n = 7; n <= 9; n++) { /* nothing relates these */
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
    /* The same moments, to which a link leads, with other weights; and those weights by themselves. */
    other = new_pool(place, "to.pool");
    run_begin(&same, adamw_hints(), BF16, small);
    set_policy(other, "copy", "keep_raw=1");
    run_on(&same, other, "copy", 5);
    same.hints.lr *= 2;
    run_on(&same, other, "copy", 1);
    OK(lmcs_compact(other, NULL, &err));
    take_snapshot(other, "weights", run.states[6], 6); /* shares nothing: it is another shelf */
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

/* Captures that write deltas against what is raw; where that is restored, a link leads to it: none may rest on it. */
static void deltas_onto_links(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = new_pool(place, "from.pool"), *other = new_pool(place, "to.pool");
    run_begin(&run, adamw_hints(), BF16, small);
    run_on(&run, pool, "run", 3);
    int early = dump_run(place, pool, "a");
    set_policy(pool, "run", "encode=always");
    run_on(&run, pool, "run", 2);
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

/* Steps that began with moments of zeros: two arrays of one digest. */
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
    /* Taken up again behind the first snapshot, of which only digests are known then. */
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

/* ---- Taken up again ---- */

static void taken_up_again(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct rng rng = {31};
    size_t bytes;
    struct lmcs_pool *pool = make_run(place, &run, small, "keep_raw=2 links=6", 16);
    int fd = dump_run(place, pool, "a"), part = new_file(place, "b");
    unsigned char *data = bytes_of(fd, &bytes);
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    options.resume = true;
    for (size_t i = 0; i < 12; i++) {
        struct lmcs_pool *other = new_pool(place, "to.pool");
        struct lmcs_restore_options how;
        size_t cut = i == 0 ? bytes - 1 : rng_below(&rng, bytes);
        lmcs_restore_options_init(&how);
        how.resume = true;
        set_bytes(part, data, cut);
        EXPECT(lmcs_restore_with(other, &part, 1, &how, NULL, NULL, &err) == LMCS_DAMAGED);
        check_pool(other);
        OK(lmcs_dump_with(pool, &options, part, NULL, NULL, &err));
        rewind_to_start(part);
        OK(lmcs_archive_verify(part, NULL, NULL, &err));
        const char *const address = "run@9";
        if (i % 2 == 0) { /* of what came, only a part is wanted now: what else it rests on stays, and is noted */
            how.addresses = &address;
            how.address_count = 1;
        }
        rewind_to_start(part);
        OK(lmcs_restore_with(other, &part, 1, &how, NULL, NULL, &err));
        check_pool(other);
        verify_pool(other);
        if (i % 2 == 0)
            EXPECT(expect_what_is_there(&run, other) == 1);
        else
            expect_run(&run, other, "run");
        OK(lmcs_shelf_drop(other, "run", false, NULL, &err));
        OK(lmcs_compact(other, NULL, &err));
        check_pool(other);
        EXPECT(pool_info(other).content_count == 0);
        close_pool(other);
    }
    free(data);
    close(fd);
    close(part);
    close_pool(pool);
    run_end(&run);
}

/* A dump beside a compactor: what was sent raw is a base of links later, and lines are sent onto what is there. */
static void beside_the_compactor(void **state)
{
    const struct place *place = *state;
    for (size_t turn = 0; turn < 4; turn++) {
        struct run run;
        struct lmcs_dump_options options;
        struct lmcs_pool *pool = new_pool(place, "from.pool"), *other = new_pool(place, "to.pool");
        run_begin(&run, adamw_hints(), BF16, small);
        set_policy(pool, "run", turn % 2 == 0 ? "keep_raw=1 links=5" : "keep_raw=3");
        int fd = new_file(place, "a");
        lmcs_dump_options_init(&options);
        options.resume = true;
        for (size_t i = 0; i < 6; i++) { /* begun while all was raw; its end is taken off, and it goes on */
            run_on(&run, pool, "run", 2);
            if (i % 2 == turn / 2)
                OK(lmcs_compact(pool, NULL, &err));
            OK(lmcs_dump_with(pool, &options, fd, NULL, NULL, &err));
            if (i < 5)
                EXPECT(ftruncate(fd, lseek(fd, 0, SEEK_END) - 88) == 0);
        }
        restore(other, fd);
        EXPECT(expect_what_is_there(&run, other) >= 2);
        close(fd);
        close_pool(other);
        close_pool(pool);
        run_end(&run);
    }
}

/* ---- Into pools that have it ---- */

static void onto_what_is_there(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = make_run(place, &run, small, "keep_raw=1 links=6", 12),
                     *other = new_pool(place, "to.pool");
    int fd = dump_run(place, pool, "a");
    restore(other, fd);
    uint64_t contents = pool_info(other).content_count;
    restore(other, fd); /* which has it all */
    EXPECT(pool_info(other).content_count == contents);
    for (uint64_t n = 3; n <= 8; n++)
        OK(lmcs_snapshot_remove(other, "run", n, false, NULL, &err));
    restore(other, fd);
    verify_pool(other);
    expect_run(&run, other, "run");
    EXPECT(pool_info(other).content_count == contents);
    close_pool(other);
    /* The same states, each in its own way. */
    static const char *const policies[] = {"keep_raw=20", "keep_raw=1 links=off", "keep_raw=1 links=3", "keep_raw=4"};
    for (size_t i = 0; i < 4; i++) {
        other = new_pool(place, "to.pool");
        restore(other, fd);
        char path[512];
        place_path(place, "b", path);
        struct lmcs_dump_options options;
        struct lmcs_restore_options how;
        lmcs_dump_options_init(&options);
        options.canonical = true;
        int raw = new_file(place, "b");
        OK(lmcs_dump_with(other, &options, raw, NULL, NULL, &err));
        close_pool(other);
        other = new_pool(place, "to.pool");
        restore(other, raw);
        set_policy(other, "run", policies[i]);
        OK(lmcs_compact(other, NULL, &err));
        check_pool(other);
        restore(other, fd); /* all is skipped */
        expect_run(&run, other, "run");
        lmcs_restore_options_init(&how);
        how.as = "copy";
        rewind_to_start(fd);
        OK(lmcs_restore_with(other, &fd, 1, &how, NULL, NULL, &err));
        check_pool(other);
        verify_pool(other);
        expect_run(&run, other, "copy");
        OK(lmcs_shelf_drop(other, "copy", false, NULL, &err));
        const char *const part = "run@5..7";
        how.addresses = &part;
        how.address_count = 1;
        rewind_to_start(fd);
        OK(lmcs_restore_with(other, &fd, 1, &how, NULL, NULL, &err));
        check_pool(other);
        for (uint64_t n = 5; n <= 7; n++)
            expect_snapshot(other, "copy", n, run.states[n]);
        verify_pool(other);
        OK(lmcs_shelf_drop(other, "copy", false, NULL, &err));
        check_pool(other);
        how.address_count = 0;
        rewind_to_start(fd);
        OK(lmcs_restore_with(other, &fd, 1, &how, NULL, NULL, &err));
        OK(lmcs_shelf_drop(other, "run", false, NULL, &err));
        OK(lmcs_compact(other, NULL, &err));
        check_pool(other);
        expect_run(&run, other, "copy");
        OK(lmcs_shelf_drop(other, "copy", false, NULL, &err));
        OK(lmcs_compact(other, NULL, &err));
        check_pool(other);
        EXPECT(pool_info(other).content_count == 0);
        close(raw);
        close_pool(other);
    }
    close(fd);
    close_pool(pool);
    run_end(&run);
}

/* What is lost in a pool is got back from an archive that has it by links. */
static void repaired_from_links(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct telling telling;
    char path[512], from[512];
    struct lmcs_pool *pool = make_run(place, &run, large, "keep_raw=1", 6);
    int fd = dump_run(place, pool, "a");
    place_path(place, "to.pool", path);
    place_path(place, "a", from);
    close_pool(pool);
    pool = new_pool(place, "to.pool");
    set_policy(pool, "run", "keep_raw=20");
    for (uint64_t n = 1; n <= 6; n++) { /* the same states, raw */
        struct lmcs_capture *capture;
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        put_state(capture, run.states[n]);
        OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    }
    struct lmcs_content weight = record_of(pool, "run", 4, "p2.weight"),
                        moment = record_of(pool, "run", 3, "p1.exp_avg");
    damage_content(path, &weight, LMC_BLOCK_BYTES + 5, 3);
    damage_content(path, &moment, 5, 3);
    OK(repair_from(pool, from, &telling));
    EXPECT(telling.count >= 2 && telling.report.repaired == telling.report.damages);
    expect_run(&run, pool, "run");
    expect_clean(pool);
    close(fd);
    close_pool(pool);
    run_end(&run);
}

/* ---- Damage, and forgery ---- */

static void expect_refused(struct lmcs_pool *pool, int fd, uint64_t contents)
{
    rewind_to_start(fd);
    enum lmcs_status status = lmcs_restore(pool, fd, NULL, NULL, &err);
    EXPECT(status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED);
    EXPECT(strlen(err.message) > 20);
    EXPECT(pool_info(pool).snapshot_count == 0 && pool_info(pool).content_count == contents);
    rewind_to_start(fd);
    status = lmcs_archive_verify(fd, NULL, NULL, &err);
    EXPECT(status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED);
}

/* Each record of an archive, damaged; and each byte of the records of contents, forged, with right checksums. */
static void damage_to_each_line(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct rng rng = {77};
    size_t bytes, taken = 0, tried = 0;
    struct lmcs_pool *pool = make_run(place, &run, tiny, "keep_raw=1 links=3", 7), *other = new_pool(place, "to.pool");
    int fd = dump_run(place, pool, "a"), bad = new_file(place, "b");
    unsigned char *data = bytes_of(fd, &bytes), *copy = malloc(bytes);
    const size_t stride = UNDER_SANITIZER ? 3 : 1;
    EXPECT(copy != NULL && forms_of(fd).of[LMCS_PAYLOAD_LINK] == 4 * PARAMETERS);
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        memcpy(&record, data + at, sizeof record);
        memcpy(copy, data, bytes);
        copy[at + rng_below(&rng, sizeof record + record.bytes)] ^= (unsigned char)(1u << rng_below(&rng, 8));
        set_bytes(bad, copy, bytes);
        expect_refused(other, bad, 0);
        at += sizeof record;
        size_t most = record.type == LMCS_ARCHIVE_CONTENT ? record.bytes : record.type == LMCS_ARCHIVE_DATA ? 200 : 0;
        for (size_t i = 0; i < most && i < record.bytes; i += record.type == LMCS_ARCHIVE_DATA ? 23 : stride, tried++) {
            memcpy(copy, data, bytes);
            copy[at + i] ^= (unsigned char)(1u << rng_below(&rng, 3));
            seal(copy, bytes);
            set_bytes(bad, copy, bytes);
            enum lmcs_status status = lmcs_restore(other, bad, NULL, NULL, &err), verdict;
            EXPECT(status == LMCS_OK || status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED || status == LMCS_FULL);
            rewind_to_start(bad);
            verdict = lmcs_archive_verify(bad, NULL, NULL, &err);
            EXPECT((verdict == LMCS_OK) == (status == LMCS_OK));
            EXPECT(status == LMCS_OK || pool_info(other).content_count == 0);
            if (status == LMCS_OK) { /* the name that a content comes with, or a flag */
                taken++;
                check_pool(other);
                verify_pool(other);
                close_pool(other);
                other = new_pool(place, "to.pool");
            }
        }
        at += record.bytes;
    }
    print_message("%zu forged archives, of which %zu were sound\n", tried, taken);
    EXPECT(taken < tried / 10);
    check_pool(other);
    restore(other, fd);
    expect_run(&run, other, "run");
    verify_pool(other);
    free(copy);
    free(data);
    close(fd);
    close(bad);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

/* Where the record of the n-th content is that is stored in this way, and its number. */
static unsigned char *find_numbered(unsigned char *data, size_t bytes, unsigned payload, size_t n, uint64_t *number)
{
    *number = 0;
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        struct lmcs_archive_content_df df;
        memcpy(&record, data + at, sizeof record);
        if (record.type == LMCS_ARCHIVE_CONTENT) {
            memcpy(&df, data + at + sizeof record, sizeof df);
            ++*number;
            if (df.payload == payload && n-- == 0)
                return data + at + sizeof record;
        }
        at += sizeof record + record.bytes;
    }
    fail_msg("there is no such content");
    return NULL;
}

static unsigned char *find_content(unsigned char *data, size_t bytes, unsigned payload, size_t n)
{
    uint64_t number;
    return find_numbered(data, bytes, payload, n, &number);
}

/* Where the list is that gives a name this content: the place of its number there. */
static unsigned char *find_entry(unsigned char *data, size_t bytes, uint64_t number)
{
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        struct lmcs_archive_entry_df entry;
        memcpy(&record, data + at, sizeof record);
        at += sizeof record;
        for (size_t i = 0; record.type == LMCS_ARCHIVE_ENTRIES && i < record.bytes; i += sizeof entry) {
            memcpy(&entry, data + at + i, sizeof entry);
            if (entry.content == number)
                return data + at + i + offsetof(struct lmcs_archive_entry_df, content);
        }
        at += record.bytes;
    }
    fail_msg("there is no such entry");
    return NULL;
}

static void put64(unsigned char *to, uint64_t value)
{
    memcpy(to, &value, sizeof value);
}

static uint64_t get64(const unsigned char *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* A header, and blocks of two links. */
static void damage_links(struct lmcs_pool *pool, const char *path)
{
    static const struct {
        uint64_t number, at;
        const char *name;
    } damages[] = {{3, 5, "p1.weight"}, {4, 20000, "p1.weight"}, {4, 20000, "p2.exp_avg"}};
    for (size_t i = 0; i < 3; i++) {
        struct lmcs_content link =
            content_record(pool, record_of(pool, "run", damages[i].number, damages[i].name).link);
        EXPECT(link.df.payload == LMCS_PAYLOAD_LINK);
        damage_content(path, &link, damages[i].at, 9);
    }
}

/* Links that are damaged are got back from an archive or a pool that has them, but not from what was forged. */
static void links_repaired_from_links(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct telling telling;
    char path[512], from[512], twin[512];
    place_path(place, "from.pool", path);
    place_path(place, "a", from);
    place_path(place, "twin.pool", twin);
    struct lmcs_pool *pool = make_run(place, &run, large, "keep_raw=1", 6);
    int fd = dump_run(place, pool, "a");
    struct lmcs_pool *copy = new_pool(place, "twin.pool");
    OK(lmcs_restore(copy, fd, NULL, NULL, &err));
    close_pool(copy);
    damage_links(pool, path);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    /* One whose checksums are right, and whose bytes lead elsewhere. */
    size_t bytes, forged = 0;
    unsigned char *data = bytes_of(fd, &bytes), *good = bytes_of(fd, &bytes);
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        memcpy(&record, data + at, sizeof record);
        at += sizeof record;
        bool is_frame = record.type == LMCS_ARCHIVE_DATA && record.bytes > 100 && memcmp(data + at, "LMCF", 4) == 0;
        if (is_frame && seal_get(data + at + 34, 2) != 0 && seal_get(data + at + 24, 8) == record.bytes) {
            data[at + record.bytes - 9] ^= 4;
            seal_frame(data + at, record.bytes);
            forged++;
        }
        at += record.bytes;
    }
    EXPECT(forged >= 8);
    seal(data, bytes);
    set_bytes(fd, data, bytes);
    FAILS(LMCS_DAMAGED, lmcs_archive_verify(fd, NULL, NULL, &err));
    FAILS(LMCS_DAMAGED, repair_from(pool, from, &telling));
    check_pool(pool);
    EXPECT(telling.report.repaired == 0);
    set_bytes(fd, good, bytes);
    free(data);
    free(good);
    OK(repair_from(pool, from, &telling));
    EXPECT(telling.report.repaired == telling.report.damages && telling.count == 3);
    damage_links(pool, path);
    OK(repair_from(pool, twin, &telling));
    EXPECT(telling.report.repaired == telling.report.damages && telling.count == 3);
    EXPECT(strstr(telling.items[0].source, twin) != NULL);
    check_pool(pool);
    expect_run(&run, pool, "run");
    expect_clean(pool);
    close(fd);
    close_pool(pool);
    run_end(&run);
}

/* What ids can say that no writer says. */
static void forged_lines(void **state)
{
    const struct place *place = *state;
    struct run run;
    size_t bytes;
    enum { BASES = sizeof(struct lmcs_archive_content_df), OUTPUT = offsetof(struct lmcs_archive_content_df, output) };
    struct lmcs_pool *pool = make_run(place, &run, tiny, "keep_raw=1", 7), *other = new_pool(place, "to.pool");
    int fd = dump_run(place, pool, "a"), bad = new_file(place, "b");
    unsigned char *data = bytes_of(fd, &bytes), *copy = malloc(bytes);
    EXPECT(copy != NULL);
    for (unsigned way = 0; way < 12; way++) {
        memcpy(copy, data, bytes);
        unsigned char *link = find_content(copy, bytes, LMCS_PAYLOAD_LINK, 4);
        uint64_t number;
        unsigned char *linked = find_numbered(copy, bytes, LMCS_PAYLOAD_LINKED, 4, &number);
        const unsigned char *before = find_content(copy, bytes, LMCS_PAYLOAD_LINK, 0);
        const char *why = "";
        uint64_t first = get64(link + BASES), own = get64(linked + BASES);
        switch (way) {
        case 0: /* of itself, or what comes later */
            put64(link + BASES, own + 20);
            why = "has not come";
            break;
        case 1: /* one array twice */
            put64(link + BASES + 8, first);
            why = "twice";
            break;
        case 2: /* in another order */
            put64(link + BASES, get64(link + BASES + 8));
            put64(link + BASES + 8, first);
            why = "don't belong together";
            break;
        case 3: /* of two lines */
            put64(link + BASES, get64(before + BASES));
            why = "";
            break;
        case 4: /* the array of a link that it does not have */
            linked[OUTPUT] = 3;
            why = "that no link has";
            break;
        case 5: /* another array */
            linked[OUTPUT] = (unsigned char)((linked[OUTPUT] + 1) % 3);
            why = "";
            break;
        case 6: /* led to by what is no link */
            put64(linked + BASES, get64(before + BASES));
            why = "";
            break;
        case 7: /* a link on a link */
            put64(link + BASES, own);
            why = "";
            break;
        case 8: /* what a link leads to has no bytes */
            put64(linked + offsetof(struct lmcs_archive_content_df, stored_bytes), 1);
            why = "impossible size";
            break;
        case 9: /* a tensor that is a link */
            put64(find_entry(copy, bytes, number), own);
            why = "said to be a link";
            break;
        case 10: /* arrays of two steps */
            find_numbered(copy, bytes, LMCS_PAYLOAD_LINKED, 3 + 1, &number);
            put64(find_content(copy, bytes, LMCS_PAYLOAD_LINK, 2 * 3 + 1) + BASES + 8, number);
            why = "don't belong together";
            break;
        default: /* another link's digest */
            put64(link + offsetof(struct lmcs_archive_content_df, digest_low), 1);
            why = "";
        }
        seal(copy, bytes);
        set_bytes(bad, copy, bytes);
        expect_refused(other, bad, 0);
        if (strstr(err.message, why) == NULL)
            fail_msg("%u: \"%s\" is said, not \"%s\"", way, err.message, why);
    }
    check_pool(other);
    free(copy);
    free(data);
    close(fd);
    close(bad);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

/* A line of 64 links is the longest that comes back; one more, put onto its end, is refused. */
static void the_longest_line(void **state)
{
    const struct place *place = *state;
    struct run run;
    size_t bytes;
    uint64_t number;
    struct lmcs_pool *pool = make_run(place, &run, tiny, "keep_raw=1 links=64", 68),
                     *other = new_pool(place, "to.pool");
    int fd = dump_run(place, pool, "a");
    restore(other, fd);
    EXPECT(storage_of(other, "run", 65).longest_line == 64 && storage_of(other, "run", 67).longest_line == 1);
    expect_run(&run, other, "run");
    close_pool(other);
    other = new_pool(place, "to.pool");
    unsigned char *data = bytes_of(fd, &bytes), *link = find_content(data, bytes, LMCS_PAYLOAD_LINK, 64 * PARAMETERS);
    for (size_t i = 0; i < 3; i++) { /* from what the last link of the first parameter leads to */
        find_numbered(data, bytes, LMCS_PAYLOAD_LINKED, 63 * 3 * PARAMETERS + i, &number);
        memcpy(link + sizeof(struct lmcs_archive_content_df) + i * sizeof number, &number, sizeof number);
    }
    seal(data, bytes);
    set_bytes(fd, data, bytes);
    expect_refused(other, fd, 0);
    EXPECT(strstr(err.message, "longer than 64") != NULL);
    free(data);
    close(fd);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

/* An archive whose known content is said to have the digest of a link. */
static void a_link_is_no_tensor(void **state)
{
    const struct place *place = *state;
    struct run run;
    size_t bytes, forged = 0;
    struct lmcs_pool *pool = make_run(place, &run, tiny, "keep_raw=1", 6);
    struct lmcs_pool_info info = pool_info(pool);
    int early = dump_part(place, pool, "run@..4", -1, "a", NULL),
        late = dump_part(place, pool, "run", early, "b", NULL);
    struct lmcs_content array = record_of(pool, "run", 4, "p1.weight"), link = content_record(pool, array.link);
    unsigned char *data = bytes_of(late, &bytes);
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        struct lmcs_archive_known_df df;
        memcpy(&record, data + at, sizeof record);
        memcpy(&df, data + at + sizeof record, sizeof df < bytes - at - sizeof record ? sizeof df : 0);
        if (record.type == LMCS_ARCHIVE_KNOWN && df.digest_low == array.df.digest_low) {
            df.digest_low = link.df.digest_low;
            df.digest_high = link.df.digest_high;
            memcpy(data + at + sizeof record, &df, sizeof df);
            forged++;
        }
        at += sizeof record + record.bytes;
    }
    EXPECT(forged == 1);
    seal(data, bytes);
    set_bytes(late, data, bytes);
    OK(lmcs_snapshot_remove(pool, "run", 6, false, NULL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_restore(pool, late, NULL, NULL, &err));
    check_pool(pool);
    EXPECT(pool_info(pool).snapshot_count == info.snapshot_count - 1);
    free(data);
    close(early);
    close(late);
    close_pool(pool);
    run_end(&run);
}

/* What was forged and refused is not there for a restore that is taken up again. */
static void forged_and_taken_up_again(void **state)
{
    const struct place *place = *state;
    struct run run;
    size_t bytes;
    struct lmcs_pool *pool = make_run(place, &run, tiny, "keep_raw=1", 5), *other = new_pool(place, "to.pool");
    static const unsigned kinds[] = {LMCS_PAYLOAD_RAW, LMCS_PAYLOAD_LINK, LMCS_PAYLOAD_LINKED};
    int fd = dump_run(place, pool, "a"), bad = new_file(place, "b");
    for (size_t i = 0; i < 3; i++) {
        unsigned char *data = bytes_of(fd, &bytes), *content = find_content(data, bytes, kinds[i], 3);
        struct lmcs_restore_options how;
        lmcs_restore_options_init(&how);
        how.resume = true;
        content[offsetof(struct lmcs_archive_content_df, digest_low)] ^= 1; /* of other bytes */
        seal(data, bytes);
        set_bytes(bad, data, bytes);
        for (size_t turn = 0; turn < 3; turn++) {
            rewind_to_start(bad);
            FAILS(LMCS_DAMAGED, lmcs_restore_with(other, &bad, 1, &how, NULL, NULL, &err));
            EXPECT(pool_info(other).snapshot_count == 0);
        }
        free(data);
    }
    restore(other, fd);
    expect_run(&run, other, "run");
    verify_pool(other);
    close(fd);
    close(bad);
    close_pool(other);
    close_pool(pool);
    run_end(&run);
}

/* A link that is damaged in the pool is not sent. */
static void damaged_links_are_not_sent(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_transfer_report report;
    char path[512];
    place_path(place, "from.pool", path);
    struct lmcs_pool *pool = make_run(place, &run, large, "keep_raw=1", 7);
    struct lmcs_content array = record_of(pool, "run", 4, "p1.weight"), link = content_record(pool, array.link);
    damage_content(path, &link, link.df.stored_bytes - 20, 1);
    int fd = new_file(place, "a");
    FAILS(LMCS_DAMAGED, lmcs_dump(pool, NULL, fd, NULL, NULL, &err));
    EXPECT(strstr(err.message, "can't be dumped") != NULL);
    close(fd);
    close(dump_part(place, pool, "run@1..3", -1, "a", NULL));
    struct telling telling;
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling)); /* notes it */
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    options.skip_lost = true;
    fd = new_file(place, "a");
    OK(lmcs_dump_with(pool, &options, fd, NULL, &report, &err));
    EXPECT(report.snapshots_lost == 3 && report.snapshots == 4);
    struct lmcs_pool *other = new_pool(place, "to.pool");
    restore(other, fd);
    for (uint64_t n = 4; n <= 6; n++)
        run.there[n] = false;
    expect_run(&run, other, "run");
    close(fd);
    close_pool(other);
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
        IN_MEMORY(deltas_onto_links),
        IN_MEMORY(equal_arrays),
        IN_MEMORY(taken_up_again),
        IN_MEMORY(beside_the_compactor),
        IN_MEMORY(onto_what_is_there),
        IN_MEMORY(repaired_from_links),
        IN_MEMORY(links_repaired_from_links),
        IN_MEMORY(damage_to_each_line),
        IN_MEMORY(forged_lines),
        IN_MEMORY(the_longest_line),
        IN_MEMORY(a_link_is_no_tensor),
        IN_MEMORY(forged_and_taken_up_again),
        IN_MEMORY(damaged_links_are_not_sent),
    };
    return cmocka_run_group_tests_name("archives of links", tests, NULL, NULL);
}
