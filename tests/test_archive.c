/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive.c - dump and restore: round trips, pipes, merges. */
/* ctest: timeout=600 labels=slow,no-tsan */
#include "test_archive_support.h"

static void test_round_trip(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report, restored;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 400000), *to = new_pool(place, "to.pool");
    EXPECT(storage_of(from, "run", 5).delta_contents + storage_of(from, "run", 5).keyframe_contents > 0);
    int fd = dump_file(place, from, NULL, "a.archive", &report);
    OK(restore_file(to, fd, &restored));
    EXPECT(restored.snapshots == report.snapshots && restored.snapshots == 13 && restored.snapshots_skipped == 0);
    EXPECT(restored.contents == report.contents && restored.bytes == report.bytes);
    expect_same_shelf(from, to, "run");
    expect_same_shelf(from, to, "other");
    expect_same_shelf(from, to, "empty");
    EXPECT(pool_info(to).snapshot_count == pool_info(from).snapshot_count);
    EXPECT(pool_info(to).shelf_count == 3);
    EXPECT(pool_info(to).content_count == pool_info(from).content_count);
    for (uint64_t number = 1; number <= 10; number++)
        if (number != 3)
            expect_snapshot(to, "run", number, run.kept[number]);
    EXPECT(content_of(to, "run", 11, "tied") == content_of(to, "run", 11, "t0"));
    verify_pool(to);
    size_t bytes, again;
    int second = dump_file(place, to, NULL, "b.archive", &restored);
    unsigned char *a = file_content(fd, &bytes), *b = file_content(second, &again);
    EXPECT(bytes == again && memcmp(a, b, bytes) == 0);
    free(a);
    free(b);
    take_snapshot(to, "run", run.state, 200);
    OK(lmcs_compact(to, NULL, &err));
    verify_pool(to);
    for (uint64_t number = 1; number <= 13; number++)
        if (number != 3)
            OK(lmcs_snapshot_remove(to, "run", number, false, NULL, &err));
    OK(lmcs_snapshot_remove(to, "other", 1, false, NULL, &err));
    OK(lmcs_snapshot_remove(to, "other", 2, false, NULL, &err));
    OK(lmcs_compact(to, NULL, &err));
    verify_pool(to);
    EXPECT(pool_info(to).content_count == 0);
    close(fd);
    close(second);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

static void test_one_shelf(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report, restored;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 1000), *to = new_pool(place, "to.pool");
    int fd = dump_file(place, from, "other", "a.archive", &report);
    EXPECT(report.snapshots == 2);
    OK(restore_file(to, fd, &restored));
    EXPECT(pool_info(to).shelf_count == 1);
    expect_same_shelf(from, to, "other");
    FAILS(LMCS_NOT_FOUND, lmcs_dump(from, "none", fd, NULL, &report, &err));
    verify_pool(to);
    close(fd);
    close_pool(to);
    to = new_pool(place, "to.pool");
    fd = dump_file(place, to, NULL, "b.archive", &report);
    OK(restore_file(from, fd, &restored));
    EXPECT(restored.snapshots == 0);
    close(fd);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

static void test_pipe(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report restored;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 300000), *to = new_pool(place, "to.pool");
    int ends[2];
    pthread_t thread;
    EXPECT(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    struct sending sending = {from, ends[1]};
    EXPECT(pthread_create(&thread, NULL, send_thread, &sending) == 0);
    OK(lmcs_restore(to, ends[0], NULL, &restored, &err));
    pthread_join(thread, NULL);
    close(ends[0]);
    EXPECT(restored.snapshots == 13);
    expect_same_shelf(from, to, "run");
    verify_pool(to);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

static void test_merge(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report, restored;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 20000), *to = new_pool(place, "to.pool");
    int fd = dump_file(place, from, NULL, "a.archive", &report);
    OK(restore_file(to, fd, &restored));
    struct counters before = counters_of(to);
    OK(restore_file(to, fd, &restored));
    EXPECT(restored.snapshots == 0 && restored.snapshots_skipped == 13);
    expect_unchanged(to, &before);
    verify_pool(to);
    OK(lmcs_snapshot_remove(to, "run", 1, false, NULL, &err));
    OK(lmcs_snapshot_remove(to, "run", 6, false, NULL, &err));
    OK(lmcs_snapshot_remove(to, "run", 12, false, NULL, &err));
    OK(lmcs_tag_set(to, "run", "best", 8, &err));
    uint64_t newest = take_snapshot(to, "run", run.state, 77);
    EXPECT(newest == 13);
    OK(lmcs_compact(to, NULL, &err));
    OK(restore_file(to, fd, &restored));
    EXPECT(restored.snapshots == 3 && restored.snapshots_skipped == 10);
    EXPECT(shelf_info(to, "run").latest == 13 && shelf_info(to, "run").next_number == 14);
    EXPECT(shelf_info(to, "run").snapshot_count == 12);
    for (uint64_t number = 1; number <= 12; number++) {
        if (number == 3)
            continue;
        struct lmc_hash x = digest_of(from, "run", number), y = digest_of(to, "run", number);
        EXPECT(x.low == y.low && x.high == y.high);
    }
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_find(to, "run", "best", &snapshot, &err));
    EXPECT(lmcs_snapshot_info(snapshot)->number == 8);
    lmcs_snapshot_close(snapshot);
    OK(lmcs_snapshot_find(to, "run", "first", &snapshot, &err));
    EXPECT(lmcs_snapshot_info(snapshot)->number == 1);
    lmcs_snapshot_close(snapshot);
    verify_pool(to);
    OK(lmcs_compact(to, NULL, &err));
    verify_pool(to);
    for (uint64_t number = 1; number <= 13; number++)
        if (number != 3)
            OK(lmcs_snapshot_remove(to, "run", number, false, NULL, &err));
    OK(lmcs_compact(to, NULL, &err));
    verify_pool(to);
    close(fd);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

static void test_conflict(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 5000), *to = new_pool(place, "to.pool");
    struct state *else_where = state_weights(&run.rng, 2, 100);
    int fd = dump_file(place, from, NULL, "a.archive", &report);
    for (int i = 0; i < 7; i++)
        take_snapshot(to, "run", else_where, i);
    for (uint64_t number = 1; number < 7; number++)
        OK(lmcs_snapshot_remove(to, "run", number, false, NULL, &err));
    struct counters before = counters_of(to);
    FAILS(LMCS_EXISTS, restore_file(to, fd, &report));
    expect_unchanged(to, &before);
    verify_pool(to);
    FAILS(LMCS_NOT_FOUND, lmcs_shelf_info(to, "other", &(struct lmcs_shelf_info){.latest = 0}, &err));
    struct lmcs_capture *capture;
    OK(lmcs_capture_begin(to, "run", &capture, &err));
    FAILS(LMCS_INVALID, restore_file(to, fd, &report));
    lmcs_capture_abort(capture);
    take_snapshot(to, "run", else_where, 8);
    verify_pool(to);
    state_free(else_where);
    close(fd);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

static void test_prepared(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct rng rng = {3};
    struct state *weights = state_weights(&rng, 2, 100);
    struct lmcs_pool *pool = new_pool(place, "from.pool"), *to = new_pool(place, "to.pool");
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    take_snapshot(pool, "run", weights, 1);
    lmcs_commit_options_init(&options);
    options.prepare = true;
    memset(options.group, 9, sizeof options.group);
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, weights);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    int fd = dump_file(place, pool, NULL, "a.archive", &report);
    EXPECT(report.snapshots == 1);
    OK(restore_file(to, fd, &report));
    FAILS(LMCS_IN_USE, restore_file(pool, fd, &report));
    OK(lmcs_group_resolve(pool, options.group, true, &err));
    OK(restore_file(pool, fd, &report));
    EXPECT(report.snapshots_skipped == 1 && shelf_info(pool, "run").latest == 2);
    verify_pool(pool);
    verify_pool(to);
    state_free(weights);
    close(fd);
    close_pool(pool);
    close_pool(to);
}

/* Bytes that functions receive, or give `at_once` at most at a time. Both stop after `most`. */
struct stream {
    unsigned char *data;
    size_t bytes, at, at_once, most;
    size_t calls;
};

static bool take_bytes(void *context, const void *bytes, size_t count)
{
    struct stream *stream = context;
    EXPECT(count > 0);
    stream->calls++;
    if (stream->bytes + count > stream->most)
        return false;
    stream->data = realloc(stream->data, stream->bytes + count);
    EXPECT(stream->data != NULL);
    memcpy(stream->data + stream->bytes, bytes, count);
    stream->bytes += count;
    return true;
}

static bool give_bytes(void *context, void *to, size_t most, size_t *got)
{
    struct stream *stream = context;
    size_t left = stream->bytes - stream->at, count = left < most ? left : most;
    EXPECT(most > 0);
    stream->calls++;
    count = count < stream->at_once ? count : stream->at_once;
    if (stream->at + count > stream->most)
        return false;
    memcpy(to, stream->data + stream->at, count);
    stream->at += count;
    *got = count;
    return true;
}

static bool give_too_many(void *context, void *to, size_t most, size_t *got)
{
    bool goes_on = give_bytes(context, to, most, got);
    *got = most + 1;
    return goes_on;
}

static void test_functions(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report, restored;
    struct lmcs_dump_options options;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 400000), *to = new_pool(place, "to.pool");
    size_t bytes;
    int fd = dump_file(place, from, NULL, "a.archive", &report);
    unsigned char *data = file_content(fd, &bytes);
    struct stream stream = {.most = SIZE_MAX};
    OK(lmcs_dump_to(from, NULL, take_bytes, &stream, NULL, &restored, &err));
    EXPECT(stream.bytes == bytes && memcmp(stream.data, data, bytes) == 0 && restored.bytes == bytes);

    struct stream stopped = {.most = bytes - 1};
    FAILS(LMCS_CANCELLED, lmcs_dump_to(from, NULL, take_bytes, &stopped, NULL, NULL, &err));
    const size_t calls = stream.calls;
    EXPECT(stopped.calls <= calls); /* it is not called again */
    free(stopped.data);
    lmcs_dump_options_init(&options);
    options.resume = true;
    FAILS(LMCS_INVALID, lmcs_dump_to(from, &options, take_bytes, &stopped, NULL, NULL, &err));

    struct counters before = counters_of(to);
    stream.at_once = 1000;
    stream.most = bytes / 2;
    FAILS(LMCS_CANCELLED, lmcs_restore_from(to, give_bytes, &stream, NULL, NULL, NULL, &err));
    stream.at = 0;
    FAILS(LMCS_CANCELLED, lmcs_restore_from(to, give_too_many, &stream, NULL, NULL, NULL, &err));
    stream.at = 0;
    stream.most = SIZE_MAX;
    stream.bytes = bytes - 100;
    FAILS(LMCS_DAMAGED, lmcs_restore_from(to, give_bytes, &stream, NULL, NULL, NULL, &err));
    expect_unchanged(to, &before);
    const char *const only[] = {"t0"};
    struct lmcs_restore_options part;
    lmcs_restore_options_init(&part);
    part.only = only;
    part.only_count = 1;
    stream.bytes = bytes;
    stream.at = 0;
    FAILS(LMCS_INVALID, lmcs_restore_from(to, give_bytes, &stream, &part, NULL, NULL, &err));
    OK(lmcs_restore_from(to, give_bytes, &stream, NULL, NULL, &restored, &err));
    EXPECT(restored.snapshots == report.snapshots && restored.bytes == bytes);
    expect_same_shelf(from, to, "run");
    verify_pool(to);
    free(stream.data);
    free(data);
    close(fd);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(test_round_trip), IN_MEMORY(test_one_shelf), IN_MEMORY(test_pipe),      ON_BOTH(test_merge),
        IN_MEMORY(test_conflict), IN_MEMORY(test_prepared),  IN_MEMORY(test_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
