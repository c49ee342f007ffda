/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_archive_parts.c - archives of a part, since others, canonical, taken up again; and archives without a pool.
 */
/* ctest: timeout=600 labels=slow,no-tsan */
#include "support.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <time.h>
#include <unistd.h>

#include "archive/format.h"
#include "records/shelf.h"
#include "test_archive_files.h"
#include "test_archive_seal.h"

#define SNAPSHOTS 10u

/* ---- A run, and archives of it in files ---- */

struct run {
    struct rng rng;
    struct state *state;
    struct state *kept[64]; /* what each number of "run" held */
};

static void free_run(struct run *run)
{
    state_free(run->state);
    for (size_t i = 0; i < 64; i++)
        state_free(run->kept[i]);
}

static void take_more(struct lmcs_pool *pool, struct run *run, int from, int to)
{
    for (int step = from; step < to; step++) {
        state_step(run->state, &run->rng, (size_t)step % 2, 3);
        uint64_t number = take_snapshot(pool, "run", run->state, step);
        run->kept[number] = state_copy(run->state);
    }
}

static struct lmcs_pool *new_pool(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    unlink(path);
    return open_quiet(path);
}

/* Ten snapshots, most of them deltas, and a shelf beside them. */
static struct lmcs_pool *make_run(const struct place *place, struct run *run, size_t floats)
{
    struct lmcs_pool *pool = new_pool(place, "from.pool");
    *run = (struct run){.rng = {7}};
    run->state = state_weights(&run->rng, 5, floats);
    take_more(pool, run, 0, (int)SNAPSHOTS);
    take_snapshot(pool, "other", run->state, 3);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_tag_set(pool, "run", "best", 4, &err));
    OK(lmcs_tag_set(pool, "other", "last", 1, &err)); /* an archive has this shelf first */
    return pool;
}

static int new_file(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    return fd;
}

static int dump_to(const struct place *place, struct lmcs_pool *pool, const struct lmcs_dump_options *options,
                   const char *name, struct lmcs_transfer_report *report)
{
    int fd = new_file(place, name);
    OK(lmcs_dump_with(pool, options, fd, NULL, report, &err));
    EXPECT((uint64_t)lseek(fd, 0, SEEK_END) == report->bytes);
    rewind_to_start(fd);
    return fd;
}

static int dump_part(const struct place *place, struct lmcs_pool *pool, const char *address, const char *name,
                     struct lmcs_transfer_report *report)
{
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    options.addresses = &address;
    options.address_count = 1;
    return dump_to(place, pool, &options, name, report);
}

static int dump_since(const struct place *place, struct lmcs_pool *pool, const int *since, size_t count,
                      const char *name, struct lmcs_transfer_report *report)
{
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    options.since = since;
    options.since_count = count;
    return dump_to(place, pool, &options, name, report);
}

/* The shelf has these snapshots and no others, each as it was taken. */
static void expect_numbers(struct lmcs_pool *pool, const char *shelf, const struct run *run, uint64_t first,
                           uint64_t last)
{
    uint64_t numbers[64];
    size_t count;
    OK(lmcs_snapshot_numbers(pool, shelf, 1, numbers, 64, &count, &err));
    EXPECT(count == last - first + 1);
    for (size_t i = 0; i < count; i++) {
        EXPECT(numbers[i] == first + i);
        expect_snapshot(pool, shelf, numbers[i], run->kept[numbers[i]]);
    }
    verify_pool(pool);
}

static uint64_t tagged(struct lmcs_pool *pool, const char *tag)
{
    struct lmcs_snapshot *snapshot;
    if (lmcs_snapshot_find(pool, "run", tag, &snapshot, &err) != LMCS_OK)
        return 0;
    uint64_t number = lmcs_snapshot_info(snapshot)->number;
    lmcs_snapshot_close(snapshot);
    return number;
}

/* ---- Parts ---- */

static void test_dump_parts(void **state)
{
    static const struct {
        const char *address;
        uint64_t first, last;
    } cases[] = {{"run@3", 3, 3},   {"run@best", 4, 4},           {"run@2..5", 2, 5},
                 {"run@..3", 1, 3}, {"run@8..", 8, 10},           {"run@latest~2", 8, 8},
                 {"run", 1, 10},    {"run@best..latest~1", 4, 9}, {"run@step:0..4", 1, 4}};
    const struct place *place = *state;
    struct lmcs_transfer_report report, restored;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 60000);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lmcs_pool *to = new_pool(place, "to.pool");
        int fd = dump_part(place, from, cases[i].address, "part.archive", &report);
        EXPECT(report.snapshots == cases[i].last - cases[i].first + 1);
        OK(lmcs_restore(to, fd, NULL, &restored, &err));
        expect_numbers(to, "run", &run, cases[i].first, cases[i].last);
        EXPECT(tagged(to, "best") == (cases[i].first <= 4 && cases[i].last >= 4 ? 4 : 0));
        EXPECT(pool_info(to).shelf_count == 1);
        /* No part takes more than its snapshots take raw, whatever bases it has. */
        EXPECT(report.bytes < report.snapshots * 5 * 60000 * 4 + 100000);
        close(fd);
        close_pool(to);
    }
    static const char *const bad[] = {"run@11", "none", "run@5..11", "run@7..2", "run@none.."};
    int fd = new_file(place, "bad.archive");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct lmcs_dump_options options = {.addresses = &bad[i], .address_count = 1};
        FAILS(i == 3 ? LMCS_INVALID : LMCS_NOT_FOUND, lmcs_dump_with(from, &options, fd, NULL, NULL, &err));
    }
    close(fd);
    close_pool(from);
    free_run(&run);
}

static enum lmcs_status restore_part(struct lmcs_pool *pool, int fd, const char *address, const char *only,
                                     const char *as, struct lmcs_transfer_report *report)
{
    struct lmcs_restore_options options;
    lmcs_restore_options_init(&options);
    options.addresses = &address;
    options.address_count = address != NULL;
    options.only = &only;
    options.only_count = only != NULL;
    options.as = as;
    rewind_to_start(fd);
    return lmcs_restore_with(pool, &fd, 1, &options, NULL, report, &err);
}

static void test_restore_parts(void **state)
{
    static const struct {
        const char *address;
        uint64_t first, last;
    } cases[] = {{"run@3", 3, 3},    {"run@best", 4, 4}, {"run@2..5", 2, 5},     {"run@..3", 1, 3},
                 {"run@8..", 8, 10}, {"run", 1, 10},     {"run@latest~1", 9, 9}, {"run@step:4", 5, 5}};
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 60000);
    const struct lmcs_dump_options everything = {.address_count = 0};
    int fd = dump_to(place, from, &everything, "all.archive", &report);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lmcs_pool *to = new_pool(place, "to.pool");
        OK(restore_part(to, fd, cases[i].address, NULL, "again", &report));
        EXPECT(report.snapshots == cases[i].last - cases[i].first + 1);
        expect_numbers(to, "again", &run, cases[i].first, cases[i].last);
        EXPECT(pool_info(to).shelf_count == 1);
        /* Everything that came is held by something: when the snapshots go, all goes. */
        for (uint64_t number = cases[i].first; number <= cases[i].last; number++)
            OK(lmcs_snapshot_remove(to, "again", number, false, NULL, &err));
        OK(lmcs_compact(to, NULL, &err));
        EXPECT(pool_info(to).content_count == 0);
        close_pool(to);
    }
    struct lmcs_pool *to = new_pool(place, "to.pool");
    OK(restore_part(to, fd, "run@2..4", "t[13]", NULL, &report));
    EXPECT(report.snapshots == 3);
    EXPECT(storage_of(to, "run", 3).raw_contents + storage_of(to, "run", 3).delta_contents +
               storage_of(to, "run", 3).keyframe_contents ==
           2);
    verify_pool(to);
    FAILS(LMCS_EXISTS, restore_part(to, fd, "run@2", NULL, NULL, &report)); /* there it has fewer tensors */
    FAILS(LMCS_NOT_FOUND, restore_part(to, fd, NULL, "none*", NULL, &report));
    FAILS(LMCS_NOT_FOUND, restore_part(to, fd, "run@11", NULL, NULL, &report));
    FAILS(LMCS_NOT_FOUND, restore_part(to, fd, "none", NULL, NULL, &report));
    FAILS(LMCS_INVALID, restore_part(to, fd, "run@5..2", NULL, NULL, &report));
    FAILS(LMCS_INVALID, restore_part(to, fd, NULL, NULL, "one", &report)); /* two shelves under one name */
    FAILS(LMCS_INVALID, restore_part(to, fd, "run", NULL, "a@b", &report));
    int ends[2];
    EXPECT(pipe2(ends, O_CLOEXEC) == 0);
    const char *address = "run@2";
    const struct lmcs_restore_options options = {.addresses = &address, .address_count = 1};
    FAILS(LMCS_INVALID, lmcs_restore_with(to, &ends[0], 1, &options, NULL, &report, &err));
    EXPECT(pool_info(to).snapshot_count == 3);
    verify_pool(to);
    close(ends[0]);
    close(ends[1]);
    close(fd);
    close_pool(to);
    close_pool(from);
    free_run(&run);
}

/* ---- Since ---- */

static void test_since(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report first, second, third, restored;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 60000);
    int fds[3];
    fds[0] = dump_since(place, from, NULL, 0, "a.archive", &first);
    take_more(from, &run, 10, 14);
    OK(lmcs_compact(from, NULL, &err));
    fds[1] = dump_since(place, from, fds, 1, "b.archive", &second);
    take_more(from, &run, 14, 16);
    OK(lmcs_tag_set(from, "run", "best", 12, &err));
    OK(lmcs_tag_set(from, "run", "old", 2, &err));
    fds[2] = dump_since(place, from, fds, 2, "c.archive", &third);
    EXPECT(second.snapshots == 4 && third.snapshots == 2 && third.contents_found > 0);
    EXPECT(second.bytes < first.bytes);
    /* One by one. */
    struct lmcs_pool *to = new_pool(place, "to.pool");
    FAILS(LMCS_NOT_FOUND, lmcs_restore(to, fds[1], NULL, &restored, &err));
    EXPECT(strstr(err.message, "older") != NULL && pool_info(to).shelf_count == 0);
    for (int i = 0; i < 3; i++) {
        const struct lmcs_restore_options options = {.move_tags = i == 2};
        rewind_to_start(fds[i]);
        OK(lmcs_restore_with(to, &fds[i], 1, &options, NULL, &restored, &err));
    }
    expect_numbers(to, "run", &run, 1, 16);
    EXPECT(tagged(to, "best") == 12 && tagged(to, "old") == 2);
    close_pool(to);
    /* All at once, in one commit; the second alone is not enough for the third. */
    to = new_pool(place, "to.pool");
    for (int i = 0; i < 3; i++)
        rewind_to_start(fds[i]);
    FAILS(LMCS_NOT_FOUND, lmcs_restore_with(to, fds + 1, 2, NULL, NULL, &restored, &err));
    EXPECT(pool_info(to).snapshot_count == 0 && pool_info(to).content_count == 0);
    for (int i = 0; i < 3; i++)
        rewind_to_start(fds[i]);
    OK(lmcs_restore_with(to, fds, 3, NULL, NULL, &restored, &err));
    EXPECT(restored.snapshots == 17); /* with that of "other" */
    expect_numbers(to, "run", &run, 1, 16);
    for (uint64_t number = 1; number <= 16; number++)
        OK(lmcs_snapshot_remove(to, "run", number, false, NULL, &err));
    OK(lmcs_snapshot_remove(to, "other", 1, false, NULL, &err));
    OK(lmcs_compact(to, NULL, &err));
    EXPECT(pool_info(to).content_count == 0);
    verify_pool(to);
    close_pool(to);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    close_pool(from);
    free_run(&run);
}

/* ---- Canonical ---- */

static int dump_canonical(const struct place *place, struct lmcs_pool *pool, const char *name)
{
    const struct lmcs_dump_options options = {.canonical = true};
    struct lmcs_transfer_report report;
    return dump_to(place, pool, &options, name, &report);
}

static void test_canonical(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 400000), *to = new_pool(place, "to.pool");
    EXPECT(storage_of(from, "run", 2).delta_contents > 0);
    int a = dump_canonical(place, from, "a.archive");
    OK(lmcs_restore(to, a, NULL, &report, &err));
    expect_numbers(to, "run", &run, 1, SNAPSHOTS);
    int b = dump_canonical(place, to, "b.archive"); /* there all is raw */
    EXPECT(storage_of(to, "run", 2).delta_contents == 0 && same_files(a, b));
    OK(lmcs_shelf_set_policy(to, "run", "chain=1", &err));
    OK(lmcs_compact(to, NULL, &err)); /* and there it is coded in another way */
    int c = dump_canonical(place, to, "c.archive");
    EXPECT(storage_of(to, "run", 2).delta_contents + storage_of(to, "run", 2).keyframe_contents > 0);
    EXPECT(same_files(a, c));
    OK(lmcs_tag_set(to, "run", "new", 3, &err));
    int d = dump_canonical(place, to, "d.archive");
    EXPECT(!same_files(a, d));
    const struct lmcs_dump_options both = {.canonical = true, .resume = true};
    FAILS(LMCS_INVALID, lmcs_dump_with(to, &both, d, NULL, NULL, &err));
    close(a);
    close(b);
    close(c);
    close(d);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

/* A snapshot of two tensors, put in one order or the other. */
static void take_in_order(struct lmcs_pool *pool, int64_t step, bool reversed)
{
    const uint64_t shape = 3;
    const unsigned char bytes[2][3] = {{1, 2, (unsigned char)step}, {4, 5, 6}};
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    lmcs_commit_options_init(&options);
    options.step = step;
    options.time_ns = 1700000000000000000u + (uint64_t)step;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    for (size_t i = 0; i < 2; i++) {
        size_t which = reversed ? 1 - i : i;
        const struct lmcs_tensor tensor = {.name = which == 0 ? "a" : "b", .dtype = LMC_U8, .ndim = 1, .shape = &shape};
        const void *data = bytes[which];
        OK(lmcs_capture_put(capture, &tensor, &data, 1, &err));
    }
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
}

static void test_canonical_order(void **state)
{
    const struct place *place = *state;
    struct lmcs_pool *one = new_pool(place, "one.pool"), *other = new_pool(place, "other.pool");
    for (int64_t step = 1; step <= 3; step++) {
        take_in_order(one, step, false);
        take_in_order(other, step, true);
    }
    int a = dump_canonical(place, one, "a.archive"), b = dump_canonical(place, other, "b.archive");
    EXPECT(same_files(a, b));
    close(a);
    close(b);
    close_pool(one);
    close_pool(other);
}

/* ---- Numbers ---- */

/* An archive may say that a shelf's next number is very large. What the shelf gets then can be dumped and restored. */
static void test_largest_numbers(void **state)
{
    const struct place *place = *state;
    struct lmcs_pool *pool = new_pool(place, "from.pool"), *copy = new_pool(place, "copy.pool");
    struct rng rng = {3};
    struct state *weights = state_weights(&rng, 2, 1000);
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    struct lmcs_shelf shelf;
    struct lmcs_txn txn;
    take_snapshot(pool, "run", weights, 1);
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, "run", &shelf, &err));
    shelf.df.next_number = LMCS_LARGEST_NUMBER - 1;
    OK(lmcs_shelf_save(&txn, &shelf, &err));
    OK(lmcs_txn_commit(&txn, &err));
    EXPECT(take_snapshot(pool, "run", weights, 2) == LMCS_LARGEST_NUMBER - 1);
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    FAILS(LMCS_UNSUPPORTED, lmcs_capture_commit(capture, NULL, NULL, &err));
    lmcs_commit_options_init(&options);
    options.parent = LMCS_LARGEST_NUMBER;
    OK(lmcs_capture_begin(pool, "other", &capture, &err));
    FAILS(LMCS_INVALID, lmcs_capture_commit(capture, &options, NULL, &err));
    struct lmcs_transfer_report report;
    int fd = dump_to(place, pool, &(struct lmcs_dump_options){0}, "x.archive", &report);
    OK(lmcs_restore(copy, fd, NULL, &report, &err));
    EXPECT(report.snapshots == 2);
    expect_snapshot(copy, "run", LMCS_LARGEST_NUMBER - 1, weights);
    check_pool(copy);
    close(fd);
    state_free(weights);
    close_pool(copy);
    close_pool(pool);
}

/* ---- Taken up again ---- */

/* What was begun as a part can't become more: what comes before what is there has no place in it. */
static void resume_of_another_part(const struct place *place, struct lmcs_pool *from, int cut)
{
    static const struct {
        const char *begun, *wanted, *lacks;
    } cases[] = {{"run@5..", "run@2..", "run@2"}, {"run", NULL, "\"other\""}, {"run@5..", "run@5..", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct lmcs_dump_options part = {.addresses = &cases[i].begun, .address_count = 1};
        const struct lmcs_dump_options more = {
            .addresses = &cases[i].wanted, .address_count = cases[i].wanted != NULL, .resume = true};
        struct lmcs_transfer_report report;
        size_t bytes;
        int fd = dump_to(place, from, &part, "part.archive", &report);
        unsigned char *data = bytes_of(fd, &bytes);
        set_bytes(cut, data, bytes * 2 / 3);
        if (cases[i].lacks == NULL) {
            OK(lmcs_dump_with(from, &more, cut, NULL, NULL, &err));
        } else {
            for (int whole = 0; whole < 2; whole++) {
                FAILS(LMCS_INVALID, lmcs_dump_with(from, &more, whole ? fd : cut, NULL, NULL, &err));
                EXPECT(strstr(err.message, cases[i].lacks) != NULL);
            }
            EXPECT(lseek(fd, 0, SEEK_END) == (off_t)bytes);
        }
        free(data);
        close(fd);
    }
}

static void test_resume_dump(void **state)
{
    const struct place *place = *state;
    const struct lmcs_dump_options options = {.resume = true};
    struct lmcs_transfer_report report, restored;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 3000);
    int whole = new_file(place, "whole.archive"), cut = new_file(place, "cut.archive");
    size_t bytes;
    OK(lmcs_dump_with(from, &options, whole, NULL, &report, &err)); /* nothing was begun */
    unsigned char *data = bytes_of(whole, &bytes);
    OK(lmcs_dump_with(from, &options, whole, NULL, &restored, &err));
    EXPECT(restored.bytes == bytes && restored.snapshots == report.snapshots); /* it is complete: left alone ... */
    EXPECT(pwrite(whole, data, 700, (off_t)bytes) == 700);
    OK(lmcs_dump_with(from, &options, whole, NULL, &restored, &err)); /* ... but for what follows its end */
    EXPECT(restored.bytes == bytes && lseek(whole, 0, SEEK_END) == (off_t)bytes);
    rewind_to_start(whole);
    OK(lmcs_archive_verify(whole, NULL, NULL, &err));
    for (size_t n = 0; n < bytes; n += 1 + bytes / 97) {
        set_bytes(cut, data, n);
        if (n > 100 && n % 2 == 0) { /* what is damaged at the end is written anew, too */
            unsigned char wrong = data[n - 1] ^ 1;
            EXPECT(pwrite(cut, &wrong, 1, (off_t)n - 1) == 1);
        }
        if (n == 0)
            set_bytes(cut, data, 0);
        OK(lmcs_dump_with(from, &options, cut, NULL, &restored, &err));
        EXPECT(restored.snapshots == report.snapshots);
        rewind_to_start(cut);
        OK(lmcs_archive_verify(cut, NULL, NULL, &err));
        EXPECT(restored.bytes <= bytes); /* a digest that has come is not sent again */
        if (n % 8 == 0) {
            struct lmcs_pool *copy = new_pool(place, "copy.pool");
            rewind_to_start(cut);
            OK(lmcs_restore(copy, cut, NULL, NULL, &err));
            expect_numbers(copy, "run", &run, 1, SNAPSHOTS);
            EXPECT(tagged(copy, "best") == 4);
            close_pool(copy);
        }
    }
    /* What happened meanwhile does no harm, and is not in it. */
    set_bytes(cut, data, bytes * 2 / 3);
    take_more(from, &run, 10, 12);
    OK(lmcs_compact(from, NULL, &err));
    OK(lmcs_dump_with(from, &options, cut, NULL, &restored, &err));
    struct lmcs_pool *to = new_pool(place, "to.pool");
    rewind_to_start(cut);
    OK(lmcs_restore(to, cut, NULL, &restored, &err));
    expect_numbers(to, "run", &run, 1, SNAPSHOTS);
    /* Of what it can't be the beginning, it is not. */
    set_bytes(cut, "this is a text of somebody, with more bytes than a head has", 59);
    FAILS(LMCS_DAMAGED, lmcs_dump_with(from, &options, cut, NULL, NULL, &err));
    EXPECT(lseek(cut, 0, SEEK_END) == 59);
    set_bytes(cut, "LMC: a note", 11); /* shorter than a head */
    FAILS(LMCS_INVALID, lmcs_dump_with(from, &options, cut, NULL, NULL, &err));
    EXPECT(lseek(cut, 0, SEEK_END) == 11);
    const struct lmcs_dump_options since = {.resume = true, .since = &whole, .since_count = 1};
    set_bytes(cut, data, bytes / 2);
    rewind_to_start(whole);
    FAILS(LMCS_INVALID, lmcs_dump_with(from, &since, cut, NULL, NULL, &err));
    EXPECT(lseek(cut, 0, SEEK_END) == (off_t)(bytes / 2));
    resume_of_another_part(place, from, cut);
    free(data);
    close(whole);
    close(cut);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

static void test_resume_restore(void **state)
{
    const struct place *place = *state;
    const struct lmcs_restore_options resume = {.resume = true};
    const struct lmcs_dump_options everything = {.address_count = 0};
    struct lmcs_transfer_report report, restored;
    struct run run;
    char path[512];
    struct lmcs_pool *from = make_run(place, &run, 60000), *to = new_pool(place, "to.pool");
    int whole = dump_to(place, from, &everything, "whole.archive", &report), cut = new_file(place, "cut.archive");
    size_t bytes;
    unsigned char *data = bytes_of(whole, &bytes);
    set_bytes(cut, data, bytes * 3 / 4);
    FAILS(LMCS_DAMAGED, lmcs_restore_with(to, &cut, 1, &resume, NULL, NULL, &err));
    EXPECT(pool_info(to).snapshot_count == 0 && pool_info(to).shelf_count == 0);
    uint64_t arrived = pool_info(to).content_count;
    EXPECT(arrived > 0);
    close_pool(to);
    place_path(place, "to.pool", path);
    to = open_quiet(path); /* it outlives the process */
    EXPECT(pool_info(to).content_count == arrived && pool_info(to).shelf_count == 0);
    verify_pool(to);
    OK(lmcs_restore_with(to, &whole, 1, &resume, NULL, &restored, &err));
    EXPECT(restored.contents_found >= arrived / 2 && restored.snapshots == report.snapshots);
    expect_numbers(to, "run", &run, 1, SNAPSHOTS);
    EXPECT(pool_info(to).content_count <= report.contents);
    close_pool(to);
    /* A restore without it removes what was left. */
    to = new_pool(place, "to.pool");
    rewind_to_start(cut);
    FAILS(LMCS_DAMAGED, lmcs_restore_with(to, &cut, 1, &resume, NULL, NULL, &err));
    EXPECT(pool_info(to).content_count > 0);
    rewind_to_start(cut);
    FAILS(LMCS_DAMAGED, lmcs_restore(to, cut, NULL, NULL, &err));
    EXPECT(pool_info(to).content_count == 0);
    rewind_to_start(whole);
    OK(lmcs_restore(to, whole, NULL, &restored, &err));
    expect_numbers(to, "run", &run, 1, SNAPSHOTS);
    free(data);
    close(whole);
    close(cut);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

/* ---- Names that come and go ---- */

/* Some of eight tensors, of which one changes its shape now and then, and an attachment. */
static struct state *some_of(struct rng *rng)
{
    struct state *state = calloc(1, sizeof *state);
    EXPECT(state != NULL);
    for (int i = 0; i < 8; i++) {
        char name[8];
        const uint64_t shape = i == 3 ? 100 + rng_below(rng, 2) : 64;
        snprintf(name, sizeof name, "t%d", i);
        if (rng_below(rng, 3) != 0)
            rng_fill(rng, state_add(state, name, LMC_F32, 1, &shape)->data, shape * sizeof(float));
    }
    return state;
}

/* Whichever snapshots are wanted, and whichever names: each has those names that it had. */
static void test_names_that_come_and_go(void **state)
{
    static const struct {
        const char *addresses[4];
        unsigned wanted; /* bit n: snapshot n */
        const char *only;
    } cases[] = {{{"run@2", "run@4", "run@5", "run@9..12"}, 0x1e34, "t[0-4]"},
                 {{"run@3", "run@6", "run@8", "run@11"}, 0x948, "t3"},
                 {{"run@1..3", "run@7", "run@10", "run@12"}, 0x148e, "t*"},
                 {{"run@1", "run@5", "run@7", "run@12"}, 0x10a2, NULL},
                 {{"run@1..12", "run@1", "run@1", "run@1"}, 0x1ffe, "t[2357]"}};
    const struct place *place = *state;
    const struct lmcs_dump_options everything = {.address_count = 0};
    struct lmcs_transfer_report report;
    struct rng rng = {17};
    struct state *states[13];
    struct lmcs_pool *from = new_pool(place, "from.pool");
    for (int i = 1; i <= 12; i++) {
        states[i] = some_of(&rng);
        take_snapshot(from, "run", states[i], i);
    }
    int fd = dump_to(place, from, &everything, "all.archive", &report);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lmcs_pool *to = new_pool(place, "to.pool");
        struct lmcs_restore_options options;
        lmcs_restore_options_init(&options);
        options.addresses = cases[i].addresses;
        options.address_count = 4;
        options.only = &cases[i].only;
        options.only_count = cases[i].only != NULL;
        rewind_to_start(fd);
        OK(lmcs_restore_with(to, &fd, 1, &options, NULL, &report, &err));
        EXPECT(report.snapshots == (uint64_t)__builtin_popcount(cases[i].wanted));
        for (uint64_t n = 1; n <= 12; n++) {
            struct state some = {.count = 0};
            struct held held[8];
            if ((cases[i].wanted >> n & 1) == 0)
                continue;
            some.tensors = held;
            for (size_t k = 0; k < states[n]->count; k++)
                if (cases[i].only == NULL || fnmatch(cases[i].only, states[n]->tensors[k].name, 0) == 0)
                    held[some.count++] = states[n]->tensors[k];
            expect_snapshot(to, "run", n, &some);
        }
        verify_pool(to);
        close_pool(to);
    }
    for (int i = 1; i <= 12; i++)
        state_free(states[i]);
    close(fd);
    close_pool(from);
}

/* ---- Time: what an archive's records are many of is not gone through for each of them ---- */

struct forged {
    unsigned char *data;
    size_t bytes;
    size_t capacity;
};

static void add_record(struct forged *forged, uint32_t type, const void *df, size_t df_bytes, const char *text)
{
    struct lmcs_archive_record_df record = {.type = type, .bytes = (uint32_t)(df_bytes + strlen(text))};
    while (forged->capacity - forged->bytes < sizeof record + record.bytes) {
        forged->capacity = forged->capacity == 0 ? 4096 : 2 * forged->capacity;
        forged->data = realloc(forged->data, forged->capacity);
        EXPECT(forged->data != NULL);
    }
    memcpy(forged->data + forged->bytes, &record, sizeof record);
    memcpy(forged->data + forged->bytes + sizeof record, df, df_bytes);
    memcpy(forged->data + forged->bytes + sizeof record + df_bytes, text, strlen(text));
    forged->bytes += sizeof record + record.bytes;
}

/* Snapshots that are empty, or the same as the one before; `entries`: that one's. */
static void add_snapshots(struct forged *forged, uint64_t first, uint64_t last, uint64_t entries)
{
    static const char meta[] = "{\"metrics\":{},\"meta\":{}}";
    for (uint64_t number = first; number <= last; number++) {
        const struct lmcs_archive_snapshot_df snapshot = {.number = number,
                                                          .step = (int64_t)number,
                                                          .time_ns = number,
                                                          .flags = number == 1 ? 0 : LMCS_ARCHIVE_CHANGES,
                                                          .meta_bytes = sizeof meta - 1};
        const struct lmcs_archive_snapshot_end_df end = {entries};
        add_record(forged, LMCS_ARCHIVE_SNAPSHOT, &snapshot, sizeof snapshot, meta);
        add_record(forged, LMCS_ARCHIVE_SNAPSHOT_END, &end, sizeof end, "");
    }
}

static int seal_to(const struct place *place, struct forged *forged)
{
    int fd = new_file(place, "forged.archive");
    seal(forged->data, forged->bytes);
    set_bytes(fd, forged->data, forged->bytes);
    free(forged->data);
    return fd;
}

static double seconds_of_this_thread(void)
{
    struct timespec now;
    EXPECT(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Tag k is of this snapshot: those of the first half have two, the others none. */
static uint64_t number_of_tag(uint64_t k, uint64_t count)
{
    return 1 + k * 7919 % count / 2;
}

struct many {
    uint64_t count; /* of snapshots, and of tags */
    uint64_t seen;
    uint64_t calls; /* that say how far it is */
    bool stops;
};

static bool see_one_of_many(void *context, const struct lmcs_archived *snapshot)
{
    struct many *many = context;
    EXPECT(snapshot->number == ++many->seen && snapshot->tag_count == (snapshot->number <= many->count / 2 ? 2 : 0));
    for (size_t i = 0; i < snapshot->tag_count; i++)
        EXPECT(number_of_tag(strtoull(snapshot->tags[i] + 1, NULL, 10), many->count) == snapshot->number);
    EXPECT(snapshot->tag_count == 0 || strcmp(snapshot->tags[0], snapshot->tags[1]) < 0);
    return true;
}

static bool count_calls(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct many *many = context;
    if (strcmp(what, "listing") != 0)
        return true;
    EXPECT(done == many->seen && total == many->count);
    many->calls++;
    return !many->stops;
}

static void test_many_tags(void **state)
{
    enum { COUNT = 60000 };
    const struct place *place = *state;
    const struct lmcs_archive_head_df head = {.magic = LMCS_ARCHIVE_MAGIC, .version = LMCS_ARCHIVE_VERSION};
    const struct lmcs_archive_shelf_df shelf = {.next_number = COUNT + 1, .keep_raw = 4, .name_bytes = 3};
    const struct lmcs_archive_end_df last = {
        .shelves = 1, .snapshots = COUNT, .tags = COUNT, .records = 1 + 3 * (uint64_t)COUNT};
    struct forged forged = {malloc(sizeof head), sizeof head, sizeof head};
    struct many many = {.count = COUNT};
    const struct lmcs_progress progress = {count_calls, &many};
    EXPECT(forged.data != NULL);
    memcpy(forged.data, &head, sizeof head);
    add_record(&forged, LMCS_ARCHIVE_SHELF, &shelf, sizeof shelf, "run");
    add_snapshots(&forged, 1, COUNT, 0);
    for (uint64_t k = 0; k < COUNT; k++) {
        char text[16];
        const struct lmcs_archive_tag_df tag = {number_of_tag(k, COUNT), 10, 0};
        snprintf(text, sizeof text, "t%09llu", (unsigned long long)k);
        add_record(&forged, LMCS_ARCHIVE_TAG, &tag, sizeof tag, text);
    }
    add_record(&forged, LMCS_ARCHIVE_END, &last, sizeof last, "");
    int fd = seal_to(place, &forged);
    double begun = seconds_of_this_thread();
    OK(lmcs_archive_list(fd, NULL, NULL, NULL, NULL, &err));
    double read = seconds_of_this_thread();
    rewind_to_start(fd);
    OK(lmcs_archive_list(fd, see_one_of_many, &many, &progress, NULL, &err));
    double listed = seconds_of_this_thread();
    EXPECT(many.seen == COUNT && many.calls == COUNT / 1024);
    EXPECT(listed - read < 8 * (read - begun) + 0.5);
    many = (struct many){.count = COUNT, .stops = true};
    rewind_to_start(fd);
    FAILS(LMCS_CANCELLED, lmcs_archive_list(fd, see_one_of_many, &many, &progress, NULL, &err));
    EXPECT(many.calls == 1 && many.seen < COUNT);
    close(fd);
}

/* One name of many, in many snapshots. */
static void test_one_of_many_names(void **state)
{
    enum { NAMES = 20000, COUNT = UNDER_SANITIZER ? 2000 : 10000 };
    const struct place *place = *state;
    const struct lmcs_dump_options everything = {.address_count = 0};
    struct lmcs_transfer_report report;
    struct rng rng = {2};
    struct state *weights = state_weights(&rng, NAMES, 1);
    struct lmcs_pool *from = new_pool(place, "from.pool"), *to;
    take_snapshot(from, "run", weights, 1);
    int fd = dump_to(place, from, &everything, "one.archive", &report);
    struct forged forged = {.bytes = 0};
    forged.data = bytes_of(fd, &forged.bytes);
    forged.capacity = forged.bytes;
    close(fd);
    struct lmcs_archive_end_df last;
    struct lmcs_archive_shelf_df shelf;
    unsigned char *shelf_at = forged.data + sizeof(struct lmcs_archive_head_df) + sizeof(struct lmcs_archive_record_df);
    memcpy(&shelf, shelf_at, sizeof shelf);
    shelf.next_number = COUNT + 1;
    memcpy(shelf_at, &shelf, sizeof shelf);
    memcpy(&last, forged.data + forged.bytes - sizeof last, sizeof last);
    last.snapshots = COUNT;
    last.records += 2 * (COUNT - 1);
    forged.bytes -= sizeof last + sizeof(struct lmcs_archive_record_df);
    add_snapshots(&forged, 2, COUNT, NAMES);
    add_record(&forged, LMCS_ARCHIVE_END, &last, sizeof last, "");
    fd = seal_to(place, &forged);
    double begun = seconds_of_this_thread();
    to = new_pool(place, "to.pool");
    OK(lmcs_restore(to, fd, NULL, &report, &err));
    EXPECT(report.snapshots == COUNT);
    close_pool(to);
    double restored = seconds_of_this_thread();
    to = new_pool(place, "to.pool");
    OK(restore_part(to, fd, NULL, "t77*", NULL, &report));
    EXPECT(report.snapshots == COUNT && pool_info(to).content_count == 111);
    close_pool(to);
    EXPECT(seconds_of_this_thread() - restored < 2 * (restored - begun) + 0.3);
    close(fd);
    close_pool(from);
    state_free(weights);
}

/* ---- Without a pool ---- */

struct seen {
    uint64_t count;
    uint64_t raw_bytes;
    uint64_t new_bytes;
    bool has_tag;
};

static bool see(void *context, const struct lmcs_archived *snapshot)
{
    struct seen *seen = context;
    if (strcmp(snapshot->shelf, "run") != 0)
        return true;
    seen->count++;
    seen->raw_bytes += snapshot->raw_bytes;
    seen->new_bytes += snapshot->new_bytes;
    EXPECT(snapshot->number == seen->count && snapshot->step == (int64_t)seen->count - 1);
    EXPECT(snapshot->tensor_count == 5);
    if (snapshot->tag_count == 1)
        seen->has_tag = snapshot->number == 4 && strcmp(snapshot->tags[0], "best") == 0;
    return true;
}

static void test_list(void **state)
{
    const struct place *place = *state;
    const struct lmcs_dump_options everything = {.address_count = 0};
    struct lmcs_transfer_report report;
    struct lmcs_archive_info info, other;
    struct seen seen = {0};
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 400000);
    int fd = dump_to(place, from, &everything, "a.archive", &report);
    OK(lmcs_archive_list(fd, see, &seen, NULL, &info, &err));
    EXPECT(seen.count == SNAPSHOTS && seen.has_tag && seen.raw_bytes == SNAPSHOTS * 5 * 400000 * 4);
    EXPECT(seen.new_bytes > report.bytes / 2 && seen.new_bytes < report.bytes);
    EXPECT(info.snapshots == report.snapshots && info.contents == report.contents && info.bytes == report.bytes);
    EXPECT(info.shelves == 2 && info.tags == 2 && info.since_count == 0);
    rewind_to_start(fd);
    OK(lmcs_archive_verify(fd, NULL, &other, &err));
    EXPECT(other.decoded_contents == report.contents && other.id.low == info.id.low && other.id.high == info.id.high);
    rewind_to_start(fd);
    int since = dump_since(place, from, &fd, 1, "b.archive", &report);
    OK(lmcs_archive_list(since, NULL, NULL, NULL, &other, &err));
    EXPECT(other.since_count == 1 && other.since[0].low == info.id.low && other.snapshots == 0);
    close(fd);
    close(since);
    close_pool(from);
    free_run(&run);
}

/* Every truncation and every flipped bit is found without a pool, too; also what the records' checksums can't tell. */
static void test_verify(void **state)
{
    const struct place *place = *state;
    const struct lmcs_dump_options everything = {.address_count = 0};
    struct lmcs_transfer_report report;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 40);
    int fd = dump_to(place, from, &everything, "a.archive", &report), bad = new_file(place, "bad.archive");
    size_t bytes;
    unsigned char *data = bytes_of(fd, &bytes);
    for (size_t n = 0; n < bytes; n++) {
        set_bytes(bad, data, n);
        FAILS(LMCS_DAMAGED, lmcs_archive_verify(bad, NULL, NULL, &err));
        rewind_to_start(bad);
        FAILS(LMCS_DAMAGED, lmcs_archive_list(bad, NULL, NULL, NULL, NULL, &err));
    }
    set_bytes(bad, data, bytes);
    for (size_t n = 0; n < bytes; n++) {
        unsigned char byte = data[n] ^ (unsigned char)(1u << n % 8);
        EXPECT(pwrite(bad, &byte, 1, (off_t)n) == 1);
        rewind_to_start(bad);
        FAILS(LMCS_DAMAGED, lmcs_archive_verify(bad, NULL, NULL, &err));
        EXPECT(pwrite(bad, data + n, 1, (off_t)n) == 1);
    }
    /* A byte of a payload whose record was sealed anew: only decoding tells. */
    struct lmcs_archive_record_df record;
    size_t at = sizeof(struct lmcs_archive_head_df);
    uint64_t number = 0;
    for (;; at += sizeof record + record.bytes, number++) {
        memcpy(&record, data + at, sizeof record);
        if (record.type == LMCS_ARCHIVE_DATA)
            break;
    }
    data[at + sizeof record] ^= 1;
    record.payload_check = lmc_hash64(data + at + sizeof record, record.bytes, number);
    record.check = lmc_hash64(&record, offsetof(struct lmcs_archive_record_df, check), number);
    memcpy(data + at, &record, sizeof record);
    struct lmc_hasher headers;
    lmc_hasher_init(&headers);
    lmc_hasher_update(&headers, data, sizeof(struct lmcs_archive_head_df));
    for (at = sizeof(struct lmcs_archive_head_df), number = 0;; at += sizeof record + record.bytes, number++) {
        memcpy(&record, data + at, sizeof record);
        if (record.type == LMCS_ARCHIVE_END)
            break;
        lmc_hasher_update(&headers, &record, sizeof record);
    }
    struct lmc_hash hash = lmc_hasher_final(&headers);
    memcpy(data + at + sizeof record + offsetof(struct lmcs_archive_end_df, hash_low), &hash, sizeof hash);
    record.payload_check = lmc_hash64(data + at + sizeof record, record.bytes, number);
    record.check = lmc_hash64(&record, offsetof(struct lmcs_archive_record_df, check), number);
    memcpy(data + at, &record, sizeof record);
    set_bytes(bad, data, bytes);
    OK(lmcs_archive_list(bad, NULL, NULL, NULL, NULL, &err));
    rewind_to_start(bad);
    FAILS(LMCS_DAMAGED, lmcs_archive_verify(bad, NULL, NULL, &err));
    EXPECT(strstr(err.message, "content 1") != NULL);
    free(data);
    close(fd);
    close(bad);
    close_pool(from);
    free_run(&run);
}

struct stopping {
    uint64_t calls;
    uint64_t stop_at; /* this call says no; 0: none does */
    bool decodes;
};

static bool stop_then(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct stopping *stopping = context;
    (void)total;
    stopping->decodes |= strcmp(what, "decoding") == 0 && done > 0;
    return ++stopping->calls != stopping->stop_at;
}

/* At each moment at which it says how far it is: while it reads, and while it decodes. */
static void test_verify_can_be_stopped(void **state)
{
    const struct place *place = *state;
    const struct lmcs_dump_options everything = {.address_count = 0};
    struct lmcs_transfer_report report;
    struct stopping stopping = {0};
    const struct lmcs_progress progress = {stop_then, &stopping};
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 40);
    int fd = dump_to(place, from, &everything, "a.archive", &report);
    OK(lmcs_archive_verify(fd, &progress, NULL, &err));
    EXPECT(stopping.decodes && stopping.calls > report.contents / 2);
    for (uint64_t all = stopping.calls, i = 1; i <= all; i++) {
        stopping = (struct stopping){.stop_at = i};
        rewind_to_start(fd);
        FAILS(LMCS_CANCELLED, lmcs_archive_verify(fd, &progress, NULL, &err));
        EXPECT(stopping.calls == i);
    }
    close(fd);
    close_pool(from);
    free_run(&run);
}

/* What is read in another order than it was written, or twice, can't be a pipe; that is said before all else. */
static void test_pipes_where_files_must_be(void **state)
{
    const struct place *place = *state;
    const char *address = "run@3";
    struct lmcs_transfer_report report;
    struct lmcs_dump_options dump;
    struct lmcs_restore_options part;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 40), *to = new_pool(place, "to.pool");
    int file = dump_part(place, from, "run", "a.archive", &report), other = new_file(place, "b.archive"), ends[2];
    EXPECT(pipe2(ends, O_CLOEXEC) == 0);
    lmcs_dump_options_init(&dump);
    dump.since = &ends[0];
    dump.since_count = 1;
    FAILS(LMCS_INVALID, lmcs_dump_with(from, &dump, other, NULL, NULL, &err));
    lmcs_dump_options_init(&dump);
    dump.resume = true;
    FAILS(LMCS_INVALID, lmcs_dump_with(from, &dump, ends[1], NULL, NULL, &err));
    lmcs_restore_options_init(&part);
    part.addresses = &address;
    part.address_count = 1;
    FAILS(LMCS_INVALID, lmcs_restore_with(to, &ends[0], 1, &part, NULL, NULL, &err));
    const int both[] = {file, file};
    FAILS(LMCS_INVALID, lmcs_restore_with(to, both, 2, &part, NULL, NULL, &err));
    EXPECT(lseek(other, 0, SEEK_END) == 0 && pool_info(to).shelf_count == 0);
    rewind_to_start(file);
    OK(lmcs_restore_with(to, &file, 1, &part, NULL, NULL, &err));
    expect_numbers(to, "run", &run, 3, 3);
    close(ends[0]);
    close(ends[1]);
    close(other);
    close(file);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(test_dump_parts),  IN_MEMORY(test_restore_parts),         IN_MEMORY(test_since),
        IN_MEMORY(test_canonical),   IN_MEMORY(test_canonical_order),       IN_MEMORY(test_largest_numbers),
        IN_MEMORY(test_resume_dump), ON_BOTH(test_resume_restore),          IN_MEMORY(test_names_that_come_and_go),
        IN_MEMORY(test_many_tags),   IN_MEMORY(test_one_of_many_names),     IN_MEMORY(test_list),
        IN_MEMORY(test_verify),      IN_MEMORY(test_verify_can_be_stopped), IN_MEMORY(test_pipes_where_files_must_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
