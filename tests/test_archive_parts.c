/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_parts.c - archives of a part, since others, and in canonical form. */
/* ctest: timeout=600 labels=slow,no-tsan */
#include "test_archive_parts_support.h"

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
        EXPECT(snapshot_tagged(to, "best") == (cases[i].first <= 4 && cases[i].last >= 4 ? 4 : 0));
        EXPECT(pool_info(to).shelf_count == 1);
        /* No part is larger than its raw snapshots, with any bases. */
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
    OK(restore_part(to, fd, "run@2", NULL, NULL, &report)); /* completes it */
    EXPECT(report.snapshots == 1 && report.snapshots_skipped == 0);
    expect_snapshot(to, "run", 2, run.kept[2]);
    FAILS(LMCS_NOT_FOUND, restore_part(to, fd, NULL, "none*", NULL, &report));
    FAILS(LMCS_NOT_FOUND, restore_part(to, fd, "run@11", NULL, NULL, &report));
    FAILS(LMCS_NOT_FOUND, restore_part(to, fd, "none", NULL, NULL, &report));
    FAILS(LMCS_INVALID, restore_part(to, fd, "run@5..2", NULL, NULL, &report));
    FAILS(LMCS_INVALID, restore_part(to, fd, NULL, NULL, "one", &report));
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
    struct lmcs_pool *to = new_pool(place, "to.pool");
    FAILS(LMCS_NOT_FOUND, lmcs_restore(to, fds[1], NULL, &restored, &err));
    EXPECT(strstr(err.message, "older") != NULL && pool_info(to).shelf_count == 0);
    for (int i = 0; i < 3; i++) {
        const struct lmcs_restore_options options = {.move_tags = i == 2};
        rewind_to_start(fds[i]);
        OK(lmcs_restore_with(to, &fds[i], 1, &options, NULL, &restored, &err));
    }
    expect_numbers(to, "run", &run, 1, 16);
    EXPECT(snapshot_tagged(to, "best") == 12 && snapshot_tagged(to, "old") == 2);
    close_pool(to);
    to = new_pool(place, "to.pool");
    for (int i = 0; i < 3; i++)
        rewind_to_start(fds[i]);
    FAILS(LMCS_NOT_FOUND, lmcs_restore_with(to, fds + 1, 2, NULL, NULL, &restored, &err));
    EXPECT(pool_info(to).snapshot_count == 0 && pool_info(to).content_count == 0);
    for (int i = 0; i < 3; i++)
        rewind_to_start(fds[i]);
    OK(lmcs_restore_with(to, fds, 3, NULL, NULL, &restored, &err));
    EXPECT(restored.snapshots == 17);
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
    int b = dump_canonical(place, to, "b.archive");
    EXPECT(storage_of(to, "run", 2).delta_contents == 0 && same_files(a, b));
    OK(lmcs_shelf_set_policy(to, "run", "chain=1", &err));
    OK(lmcs_compact(to, NULL, &err));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(test_dump_parts), IN_MEMORY(test_restore_parts),   IN_MEMORY(test_since),
        IN_MEMORY(test_canonical),  IN_MEMORY(test_canonical_order), IN_MEMORY(test_largest_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
