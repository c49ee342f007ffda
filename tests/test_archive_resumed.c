/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_resumed.c - resumed dumps and restores, and changing names. */
/* ctest: timeout=600 labels=slow,no-tsan */
#include <errno.h>
#include <sys/file.h>

#include "test_archive_parts_support.h"

static void flip(int fd, size_t at)
{
    unsigned char byte;
    EXPECT(pread(fd, &byte, 1, (off_t)at) == 1);
    byte ^= 1;
    EXPECT(pwrite(fd, &byte, 1, (off_t)at) == 1);
}

/* A dump of a part can't become more: records are ordered. */
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
            EXPECT(lseek(fd, 0, SEEK_END) == (off_t)bytes && lseek(cut, 0, SEEK_END) == (off_t)(bytes * 2 / 3));
        }
        free(data);
        close(fd);
    }
}

/* Resumes a dump after `n` bytes. */
static void resume_at(const struct place *place, struct lmcs_pool *from, struct run *run, int cut,
                      const unsigned char *data, size_t bytes, size_t n, uint64_t snapshots)
{
    const struct lmcs_dump_options options = {.resume = true};
    struct lmcs_transfer_report restored;
    set_bytes(cut, data, n);
    if (n > 100 && n % 2 == 0)
        flip(cut, n - 1);
    if (n == 0)
        set_bytes(cut, data, 0);
    OK(lmcs_dump_with(from, &options, cut, NULL, &restored, &err));
    EXPECT(restored.snapshots == snapshots);
    rewind_to_start(cut);
    OK(lmcs_archive_verify(cut, NULL, NULL, &err));
    EXPECT(restored.bytes <= bytes);
    if (n % 8 == 0) {
        struct lmcs_pool *copy = new_pool(place, "copy.pool");
        rewind_to_start(cut);
        OK(lmcs_restore(copy, cut, NULL, NULL, &err));
        expect_numbers(copy, "run", run, 1, SNAPSHOTS);
        EXPECT(snapshot_tagged(copy, "best") == 4);
        close_pool(copy);
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
    OK(lmcs_dump_with(from, &options, whole, NULL, &report, &err));
    unsigned char *data = bytes_of(whole, &bytes);
    OK(lmcs_dump_with(from, &options, whole, NULL, &restored, &err));
    EXPECT(restored.bytes == bytes && restored.snapshots == report.snapshots);
    EXPECT(pwrite(whole, data, 700, (off_t)bytes) == 700);
    OK(lmcs_dump_with(from, &options, whole, NULL, &restored, &err));
    EXPECT(restored.bytes == bytes && lseek(whole, 0, SEEK_END) == (off_t)bytes);
    rewind_to_start(whole);
    OK(lmcs_archive_verify(whole, NULL, NULL, &err));
    for (size_t n = 0; n < bytes; n += 1 + bytes / 97)
        resume_at(place, from, &run, cut, data, bytes, n, report.snapshots);
    set_bytes(cut, data, bytes * 2 / 3);
    take_more(from, &run, 10, 12);
    OK(lmcs_compact(from, NULL, &err));
    OK(lmcs_dump_with(from, &options, cut, NULL, &restored, &err));
    struct lmcs_pool *to = new_pool(place, "to.pool");
    rewind_to_start(cut);
    OK(lmcs_restore(to, cut, NULL, &restored, &err));
    expect_numbers(to, "run", &run, 1, SNAPSHOTS);
    set_bytes(cut, "this is a text of somebody, with more bytes than a head has", 59);
    FAILS(LMCS_DAMAGED, lmcs_dump_with(from, &options, cut, NULL, NULL, &err));
    EXPECT(lseek(cut, 0, SEEK_END) == 59);
    set_bytes(cut, "LMC: a note", 11);
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
    to = open_quiet(path);
    EXPECT(pool_info(to).content_count == arrived && pool_info(to).shelf_count == 0);
    verify_pool(to);
    OK(lmcs_restore_with(to, &whole, 1, &resume, NULL, &restored, &err));
    EXPECT(restored.contents_found >= arrived / 2 && restored.snapshots == report.snapshots);
    expect_numbers(to, "run", &run, 1, SNAPSHOTS);
    EXPECT(pool_info(to).content_count <= report.contents);
    close_pool(to);
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

static void test_names_that_come_and_go(void **state)
{
    static const struct {
        const char *addresses[4];
        unsigned wanted;
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

/* Damage before the end is no end: nothing is cut off a complete archive, and not silently off another. */
static void test_resume_over_damage(void **state)
{
    const struct place *place = *state;
    const struct lmcs_dump_options options = {.resume = true};
    const size_t last = sizeof(struct lmcs_archive_record_df) + sizeof(struct lmcs_archive_end_df);
    struct lmcs_transfer_report report;
    struct run run;
    size_t bytes, others;
    struct lmcs_pool *from = make_run(place, &run, 3000);
    int fd = new_file(place, "a.archive");
    OK(lmcs_dump_with(from, &options, fd, NULL, NULL, &err));
    unsigned char *data = bytes_of(fd, &bytes);
    for (uint64_t n = 4; n <= 8; n++)
        OK(lmcs_snapshot_remove(from, "run", n, n == 4, NULL, &err));
    for (size_t at = 0; at < bytes - last; at += 1 + bytes / 97) {
        set_bytes(fd, data, bytes);
        flip(fd, at);
        FAILS(LMCS_DAMAGED, lmcs_dump_with(from, &options, fd, NULL, NULL, &err));
        EXPECT(at < sizeof(struct lmcs_archive_head_df) || strstr(err.message, "beside it") != NULL);
        unsigned char *left = bytes_of(fd, &others);
        EXPECT(others == bytes && (left[at] ^ 1) == data[at]);
        left[at] = data[at];
        EXPECT(memcmp(left, data, bytes) == 0);
        free(left);
    }
    for (size_t end = bytes - last; end < bytes; end += last - 1) { /* a torn end */
        set_bytes(fd, data, bytes);
        flip(fd, end);
        OK(lmcs_dump_with(from, &options, fd, NULL, &report, &err));
        EXPECT(report.snapshots == 11);
    }
    for (int damaged = 0; damaged < 2; damaged++) {
        set_bytes(fd, data, bytes / 2);
        if (damaged)
            flip(fd, bytes / 4);
        OK(lmcs_dump_with(from, &options, fd, NULL, &report, &err));
        EXPECT((strstr(report.warnings, "were cut off") != NULL) == damaged);
        rewind_to_start(fd);
        OK(lmcs_archive_verify(fd, NULL, NULL, &err));
    }
    free(data);
    close(fd);
    close_pool(from);
    free_run(&run);
}

struct watching {
    int other; /* the same file, opened again */
    bool stops;
    size_t calls;
};

static bool watch(void *context, const char *doing, uint64_t done, uint64_t total)
{
    struct watching *watching = context;
    (void)done;
    (void)total;
    watching->calls++;
    EXPECT(flock(watching->other, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK);
    return !watching->stops || strcmp(doing, "dumping") != 0;
}

static void test_one_dump_at_a_time(void **state)
{
    const struct place *place = *state;
    const struct lmcs_dump_options options = {.resume = true};
    char path[512];
    struct run run;
    size_t bytes;
    struct lmcs_pool *from = make_run(place, &run, 500000);
    int fd = new_file(place, "a.archive");
    place_path(place, "a.archive", path);
    struct watching watching = {.other = open(path, O_RDWR | O_CLOEXEC)};
    const struct lmcs_progress progress = {watch, &watching};
    OK(lmcs_dump_with(from, &options, fd, &progress, NULL, &err));
    EXPECT(watching.calls > 1);
    unsigned char *data = bytes_of(fd, &bytes);
    set_bytes(fd, data, bytes / 2);
    EXPECT(flock(watching.other, LOCK_EX | LOCK_NB) == 0); /* the dump has ended */
    FAILS(LMCS_IN_USE, lmcs_dump_with(from, &options, fd, NULL, NULL, &err));
    EXPECT(lseek(fd, 0, SEEK_END) == (off_t)(bytes / 2));
    EXPECT(flock(watching.other, LOCK_UN) == 0);
    flip(fd, bytes / 4);
    watching.stops = true;
    FAILS(LMCS_CANCELLED, lmcs_dump_with(from, &options, fd, &progress, NULL, &err));
    EXPECT(strstr(err.message, "were cut off") != NULL);
    watching.stops = false;
    OK(lmcs_dump_with(from, &options, fd, &progress, NULL, &err));
    rewind_to_start(fd);
    OK(lmcs_archive_verify(fd, NULL, NULL, &err));
    free(data);
    close(watching.other);
    close(fd);
    close_pool(from);
    free_run(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(test_resume_dump),        ON_BOTH(test_resume_restore),       IN_MEMORY(test_names_that_come_and_go),
        IN_MEMORY(test_resume_over_damage), IN_MEMORY(test_one_dump_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
