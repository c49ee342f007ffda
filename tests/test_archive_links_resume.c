/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_links_resume.c - resumed archives of links, and restores onto other forms. */
/* ctest: timeout=900 labels=slow,no-tsan */
#include "test_archive_links_files.h"

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
        if (i % 2 == 0) { /* only a part is wanted now: the bases of received contents stay */
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

/* Beside a compactor, contents sent raw become bases of links, and lines are sent onto existing contents. */
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
        for (size_t i = 0; i < 6; i++) {
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

static void onto_other_forms(const struct place *place, struct run *run, int fd, const char *policy)
{
    struct lmcs_pool *other = new_pool(place, "to.pool");
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
    set_policy(other, "run", policy);
    OK(lmcs_compact(other, NULL, &err));
    check_pool(other);
    restore(other, fd);
    expect_run(run, other, "run");
    lmcs_restore_options_init(&how);
    how.as = "copy";
    rewind_to_start(fd);
    OK(lmcs_restore_with(other, &fd, 1, &how, NULL, NULL, &err));
    check_pool(other);
    verify_pool(other);
    expect_run(run, other, "copy");
    OK(lmcs_shelf_drop(other, "copy", false, NULL, &err));
    const char *const part = "run@5..7";
    how.addresses = &part;
    how.address_count = 1;
    rewind_to_start(fd);
    OK(lmcs_restore_with(other, &fd, 1, &how, NULL, NULL, &err));
    check_pool(other);
    for (uint64_t n = 5; n <= 7; n++)
        expect_snapshot(other, "copy", n, run->states[n]);
    verify_pool(other);
    OK(lmcs_shelf_drop(other, "copy", false, NULL, &err));
    check_pool(other);
    how.address_count = 0;
    rewind_to_start(fd);
    OK(lmcs_restore_with(other, &fd, 1, &how, NULL, NULL, &err));
    OK(lmcs_shelf_drop(other, "run", false, NULL, &err));
    OK(lmcs_compact(other, NULL, &err));
    check_pool(other);
    expect_run(run, other, "copy");
    OK(lmcs_shelf_drop(other, "copy", false, NULL, &err));
    OK(lmcs_compact(other, NULL, &err));
    check_pool(other);
    EXPECT(pool_info(other).content_count == 0);
    close(raw);
    close_pool(other);
}

static void onto_what_is_there(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_pool *pool = make_run(place, &run, small, "keep_raw=1 links=6", 12),
                     *other = new_pool(place, "to.pool");
    int fd = dump_run(place, pool, "a");
    restore(other, fd);
    uint64_t contents = pool_info(other).content_count;
    restore(other, fd);
    EXPECT(pool_info(other).content_count == contents);
    for (uint64_t n = 3; n <= 8; n++)
        OK(lmcs_snapshot_remove(other, "run", n, false, NULL, &err));
    restore(other, fd);
    verify_pool(other);
    expect_run(&run, other, "run");
    EXPECT(pool_info(other).content_count == contents);
    close_pool(other);
    static const char *const policies[] = {"keep_raw=20", "keep_raw=1 links=off", "keep_raw=1 links=3", "keep_raw=4"};
    for (size_t i = 0; i < 4; i++)
        onto_other_forms(place, &run, fd, policies[i]);
    close(fd);
    close_pool(pool);
    run_end(&run);
}

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
    for (uint64_t n = 1; n <= 6; n++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(taken_up_again),
        IN_MEMORY(beside_the_compactor),
        IN_MEMORY(onto_what_is_there),
        IN_MEMORY(repaired_from_links),
    };
    return cmocka_run_group_tests_name("archive links resume", tests, NULL, NULL);
}
