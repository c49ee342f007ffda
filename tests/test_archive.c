/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_archive.c - dump and restore: round trips, merging, hostile archives, faults, and dumping beside a trainer.
 */
/* ctest: timeout=600 labels=slow,no-tsan */
#include "test_archive_seal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "payload/layout.h"
#include "records/busy.h"

/* ---- Archives in files ---- */

static int new_file(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    return fd;
}

/* Dumps to a file, and leaves it open at its start. */
static int dump_file(const struct place *place, struct lmcs_pool *pool, const char *shelf, const char *name,
                     struct lmcs_transfer_report *report)
{
    int fd = new_file(place, name);
    OK(lmcs_dump(pool, shelf, fd, NULL, report, &err));
    EXPECT((uint64_t)lseek(fd, 0, SEEK_END) == report->bytes);
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

static enum lmcs_status restore_file(struct lmcs_pool *pool, int fd, struct lmcs_transfer_report *report)
{
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    return lmcs_restore(pool, fd, NULL, report, &err);
}

static struct lmcs_pool *new_pool(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    unlink(path);
    return open_quiet(path);
}

static unsigned char *file_content(int fd, size_t *bytes)
{
    *bytes = (size_t)lseek(fd, 0, SEEK_END);
    unsigned char *data = malloc(*bytes + 1);
    EXPECT(data != NULL && pread(fd, data, *bytes, 0) == (ssize_t)*bytes);
    return data;
}

static void set_content(int fd, const void *data, size_t bytes)
{
    EXPECT(ftruncate(fd, 0) == 0 && pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
}

/* ---- Comparing ---- */

struct counters {
    uint64_t shelves, snapshots, contents, live;
};

static struct counters counters_of(struct lmcs_pool *pool)
{
    struct lmcs_pool_info info = pool_info(pool);
    return (struct counters){info.shelf_count, info.snapshot_count, info.content_count, info.live_bytes};
}

static void expect_unchanged(struct lmcs_pool *pool, const struct counters *before)
{
    struct counters now = counters_of(pool);
    EXPECT(now.shelves == before->shelves);
    EXPECT(now.snapshots == before->snapshots);
    EXPECT(now.contents == before->contents);
    /* `live` counts the metadata too, whose pages shift a little. */
}

static struct lmc_hash digest_of(struct lmcs_pool *pool, const char *shelf, uint64_t number)
{
    struct lmcs_snapshot *snapshot;
    struct lmc_hash digest;
    char which[32];
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(pool, shelf, which, &snapshot, &err));
    OK(lmcs_snapshot_digest(snapshot, &digest, &err));
    lmcs_snapshot_close(snapshot);
    return digest;
}

static void add_text(void *context, const char *text)
{
    char *all = context;
    size_t length = strlen(all);
    snprintf(all + length, 4096 - length, "%s;", text);
}

static bool add_tag(void *context, const char *tag)
{
    add_text(context, tag);
    return true;
}

/* Everything that a user sees of a snapshot is the same in both pools. */
static void expect_same_snapshot(struct lmcs_pool *a, struct lmcs_pool *b, const char *shelf, uint64_t number)
{
    struct lmcs_snapshot *x, *y;
    char which[32], tags_x[4096] = "", tags_y[4096] = "";
    struct lmc_hash digest_x = digest_of(a, shelf, number), digest_y = digest_of(b, shelf, number);
    EXPECT(digest_x.low == digest_y.low && digest_x.high == digest_y.high);
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(a, shelf, which, &x, &err));
    OK(lmcs_snapshot_find(b, shelf, which, &y, &err));
    const struct lmcs_snapshot_info *info_x = lmcs_snapshot_info(x), *info_y = lmcs_snapshot_info(y);
    EXPECT(info_x->step == info_y->step && info_x->time_ns == info_y->time_ns && info_x->parent == info_y->parent);
    EXPECT(info_x->tensor_count == info_y->tensor_count && info_x->raw_bytes == info_y->raw_bytes);
    EXPECT(strcmp(info_x->meta_json, info_y->meta_json) == 0);
    EXPECT(info_x->metric_count == info_y->metric_count);
    EXPECT(memcmp(info_x->group, info_y->group, sizeof info_x->group) == 0);
    OK(lmcs_snapshot_tags(x, add_tag, tags_x, &err));
    OK(lmcs_snapshot_tags(y, add_tag, tags_y, &err));
    EXPECT(strcmp(tags_x, tags_y) == 0);
    struct lmcs_snapshot_storage stored_x, stored_y;
    OK(lmcs_snapshot_storage(x, &stored_x, &err));
    OK(lmcs_snapshot_storage(y, &stored_y, &err));
    EXPECT(stored_x.stored_bytes == stored_y.stored_bytes && stored_x.delta_contents == stored_y.delta_contents);
    lmcs_snapshot_close(x);
    lmcs_snapshot_close(y);
}

static size_t numbers_of(struct lmcs_pool *pool, const char *shelf, uint64_t numbers[64])
{
    size_t count;
    OK(lmcs_snapshot_numbers(pool, shelf, 1, numbers, 64, &count, &err));
    return count;
}

static void expect_same_shelf(struct lmcs_pool *a, struct lmcs_pool *b, const char *shelf)
{
    uint64_t numbers[64], others[64];
    size_t count = numbers_of(a, shelf, numbers);
    struct lmcs_shelf_info x = shelf_info(a, shelf), y = shelf_info(b, shelf);
    EXPECT(numbers_of(b, shelf, others) == count);
    EXPECT(x.snapshot_count == y.snapshot_count && x.latest == y.latest && x.next_number == y.next_number &&
           x.keep_raw == y.keep_raw);
    for (size_t i = 0; i < count; i++) {
        EXPECT(numbers[i] == others[i]);
        expect_same_snapshot(a, b, shelf, numbers[i]);
    }
}

/* ---- Pools to dump ---- */

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

/* A snapshot with everything that a snapshot may have. */
static void take_rich(struct lmcs_pool *pool, struct run *run, size_t long_meta)
{
    static const char *const tags[] = {"best", "ähnlich"};
    static const struct lmcs_metric metrics[] = {{"loss", 2.25}, {"nan", __builtin_nan("")}};
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    struct lmcs_tensor alias, attachment = {.name = "structure", .kind = LMCS_ATTACHMENT, .dtype = LMC_U8, .ndim = 1};
    const uint64_t shape[2] = {2, 3}, whole[2] = {4, 3}, offsets[2] = {2, 0}, bytes = 5;
    struct lmcs_tensor part = {
        .name = "part", .dtype = LMC_F32, .ndim = 2, .shape = shape, .global_shape = whole, .offsets = offsets};
    const float values[6] = {1, 2, 3, 4, 5, 6};
    const void *data[2] = {"bytes", values};
    char *meta = malloc(long_meta + 64);
    uint64_t number;
    attachment.shape = &bytes;
    snprintf(meta, long_meta + 64, "{ \"note\" : \"%0*d\" }", (int)long_meta, 1);
    lmcs_commit_options_init(&options);
    options.step = 100;
    options.tags = tags;
    options.tag_count = 2;
    options.metrics = metrics;
    options.metric_count = 2;
    options.meta_json = meta;
    memcpy(options.group, "group of a rank.", 16);
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, run->state);
    held_tensor(&run->state->tensors[0], &alias);
    alias.name = "tied";
    OK(lmcs_capture_put_same(capture, &alias, run->state->tensors[0].name, &err));
    const struct lmcs_tensor more[2] = {attachment, part};
    OK(lmcs_capture_put(capture, more, data, 2, &err));
    OK(lmcs_capture_commit(capture, &options, &number, &err));
    free(meta);
}

/* Two shelves, with raw contents, deltas, keyframes, shared ones, and some that only serve as bases. */
static struct lmcs_pool *make_run(const struct place *place, struct run *run, size_t floats)
{
    struct lmcs_pool *pool = new_pool(place, "from.pool");
    *run = (struct run){.rng = {7}};
    run->state = state_weights(&run->rng, 5, floats);
    for (int step = 0; step < 10; step++) {
        state_step(run->state, &run->rng, step % 2, 3);
        uint64_t number = take_snapshot(pool, "run", run->state, step);
        run->kept[number] = state_copy(run->state);
    }
    struct state *mixed = state_mixed(&run->rng, 40, 3000);
    take_snapshot(pool, "other", mixed, LMCS_NO_STEP);
    take_snapshot(pool, "other", mixed, -5);
    state_free(mixed);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_snapshot_remove(pool, "run", 3, false, NULL, &err));
    take_rich(pool, run, 10);
    take_rich(pool, run, 5000);
    OK(lmcs_tag_set(pool, "run", "first", 1, &err));
    OK(lmcs_shelf_set_keep_raw(pool, "run", 2, &err));
    OK(lmcs_shelf_set_keep_raw(pool, "empty", 9, &err));
    return pool;
}

/* ---- Round trips ---- */

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
    /* The same state gives the same archive, also from the copy. */
    size_t bytes, again;
    int second = dump_file(place, to, NULL, "b.archive", &restored);
    unsigned char *a = file_content(fd, &bytes), *b = file_content(second, &again);
    EXPECT(bytes == again && memcmp(a, b, bytes) == 0);
    free(a);
    free(b);
    /* Life goes on in the copy: captures share, the compactor codes, removals free. */
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
    to = new_pool(place, "to.pool"); /* an empty pool travels too */
    fd = dump_file(place, to, NULL, "b.archive", &report);
    OK(restore_file(from, fd, &restored));
    EXPECT(restored.snapshots == 0);
    close(fd);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

struct sending {
    struct lmcs_pool *pool;
    int fd;
};

static void *send_thread(void *argument)
{
    struct sending *sending = argument;
    struct lmcs_transfer_report report;
    OK(lmcs_dump(sending->pool, NULL, sending->fd, NULL, &report, &err));
    close(sending->fd);
    return NULL;
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

/* ---- Shelves that are there ---- */

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
    /* What is missing is added; what has happened since stays. */
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
    /* A capture that nobody has ended keeps the shelf. */
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
    EXPECT(report.snapshots == 1); /* what is only prepared does not travel */
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

/* ---- Damage ---- */

/* A small archive with a bit of everything: shared and changed contents, tags, metadata. */
static int small_archive(const struct place *place)
{
    struct lmcs_pool *pool = new_pool(place, "small.pool");
    struct lmcs_transfer_report report;
    struct run run = {.rng = {5}};
    run.state = state_weights(&run.rng, 3, 24);
    for (int step = 0; step < 3; step++) {
        state_step(run.state, &run.rng, (size_t)step, 1);
        take_snapshot(pool, "run", run.state, step);
    }
    take_rich(pool, &run, 10);
    struct state *fewer = state_copy(run.state);
    fewer->count = 2;
    take_snapshot(pool, "run", fewer, 9);
    OK(lmcs_compact(pool, NULL, &err));
    int fd = dump_file(place, pool, NULL, "small.archive", &report);
    fewer->count = 3;
    state_free(fewer);
    free_run(&run);
    close_pool(pool);
    return fd;
}

/* A pool with something in it that must not change. */
static struct lmcs_pool *small_target(const struct place *place)
{
    struct lmcs_pool *pool = new_pool(place, "target.pool");
    struct rng rng = {11};
    struct state *weights = state_weights(&rng, 2, 50);
    take_snapshot(pool, "mine", weights, 1);
    take_snapshot(pool, "mine", weights, 2);
    state_free(weights);
    return pool;
}

static void test_truncated(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    int fd = small_archive(place), cut = new_file(place, "cut.archive");
    size_t bytes;
    unsigned char *data = file_content(fd, &bytes);
    struct lmcs_pool *pool = small_target(place);
    struct counters before = counters_of(pool);
    for (size_t n = 0; n < bytes; n++) {
        set_content(cut, data, n);
        FAILS(LMCS_DAMAGED, restore_file(pool, cut, &report));
        expect_unchanged(pool, &before);
    }
    verify_pool(pool);
    set_content(cut, data, bytes);
    EXPECT(pwrite(cut, "x", 1, (off_t)bytes) == 1);
    FAILS(LMCS_DAMAGED, restore_file(pool, cut, &report)); /* something follows */
    expect_unchanged(pool, &before);
    OK(restore_file(pool, fd, &report));
    EXPECT(report.snapshots == 5);
    verify_pool(pool);
    free(data);
    close(fd);
    close(cut);
    close_pool(pool);
}

static void test_flipped(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    int fd = small_archive(place), bad = new_file(place, "bad.archive");
    size_t bytes;
    unsigned char *data = file_content(fd, &bytes);
    struct lmcs_pool *pool = small_target(place);
    struct counters before = counters_of(pool);
    uint64_t bits = scaled("LMCS_TEST_BITS", 1); /* of each byte; 8: all of them */
    set_content(bad, data, bytes);
    for (size_t n = 0; n < bytes; n++)
        for (uint64_t bit = 0; bit < bits; bit++) {
            unsigned char byte = data[n] ^ (unsigned char)(1u << ((n + bit) % 8));
            EXPECT(pwrite(bad, &byte, 1, (off_t)n) == 1);
            FAILS(LMCS_DAMAGED, restore_file(pool, bad, &report));
            EXPECT(pwrite(bad, data + n, 1, (off_t)n) == 1);
            expect_unchanged(pool, &before);
        }
    verify_pool(pool);
    OK(restore_file(pool, bad, &report));
    free(data);
    close(fd);
    close(bad);
    close_pool(pool);
}

/* Restores what someone has forged: refused with nothing left, or sound. */
static bool try_forged(const struct place *place, struct lmcs_pool **pool, int fd, const struct counters *before)
{
    struct lmcs_transfer_report report;
    enum lmcs_status status = restore_file(*pool, fd, &report);
    if (status == LMCS_OK) {
        verify_pool(*pool);
        close_pool(*pool);
        *pool = small_target(place);
        return true;
    }
    if (status != LMCS_DAMAGED && status != LMCS_UNSUPPORTED && status != LMCS_FULL && status != LMCS_EXISTS)
        fprintf(stderr, "%s: %s\n", lmcs_status_name(status), err.message);
    EXPECT(status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED || status == LMCS_FULL || status == LMCS_EXISTS);
    expect_unchanged(*pool, before);
    return false;
}

static void test_forged(void **state)
{
    const struct place *place = *state;
    int fd = small_archive(place), bad = new_file(place, "bad.archive");
    size_t bytes, taken = 0, tried = 0;
    unsigned char *data = file_content(fd, &bytes), *forged = malloc(bytes);
    struct lmcs_pool *pool = small_target(place);
    struct counters before = counters_of(pool);
    struct rng rng = {99};
    EXPECT(forged != NULL);
    static const unsigned char masks[] = {1, 0x80, 0xff};
    const size_t step = UNDER_THREAD_SANITIZER ? 13 : 1; /* few threads are in this */
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes;) {
        struct lmcs_archive_record_df record;
        memcpy(&record, data + at, sizeof record);
        at += sizeof record;
        for (size_t i = 0; i < record.bytes; i += step, tried++) {
            memcpy(forged, data, bytes);
            forged[at + i] ^= masks[rng_below(&rng, sizeof masks)];
            seal(forged, bytes);
            set_content(bad, forged, bytes);
            taken += try_forged(place, &pool, bad, &before);
        }
        at += record.bytes;
    }
    verify_pool(pool);
    print_message("%zu forged archives, of which %zu were sound\n", tried, taken);
    EXPECT(taken < tried / 4);
    free(data);
    free(forged);
    close(fd);
    close(bad);
    close_pool(pool);
}

/* Records left out, doubled, swapped, with right checksums. */
static void test_forged_order(void **state)
{
    const struct place *place = *state;
    int fd = small_archive(place), bad = new_file(place, "bad.archive");
    size_t bytes, count = 0, starts[512], length;
    unsigned char *data = file_content(fd, &bytes), *forged = malloc(2 * bytes);
    struct lmcs_pool *pool = small_target(place);
    struct counters before = counters_of(pool);
    EXPECT(forged != NULL);
    for (size_t at = sizeof(struct lmcs_archive_head_df); at < bytes; count++) {
        struct lmcs_archive_record_df record;
        memcpy(&record, data + at, sizeof record);
        EXPECT(count < 511);
        starts[count] = at;
        at += sizeof record + record.bytes;
    }
    starts[count] = bytes;
    for (size_t i = 0; i < count; i++)
        for (size_t copies = 0; copies <= 2; copies += 2) { /* left out, doubled */
            memcpy(forged, data, starts[i]);
            length = starts[i];
            for (size_t k = 0; k < copies; k++) {
                memcpy(forged + length, data + starts[i], starts[i + 1] - starts[i]);
                length += starts[i + 1] - starts[i];
            }
            memcpy(forged + length, data + starts[i + 1], bytes - starts[i + 1]);
            length += bytes - starts[i + 1];
            seal(forged, length);
            set_content(bad, forged, length);
            try_forged(place, &pool, bad, &before);
        }
    for (size_t i = 0; i + 1 < count; i++) { /* swapped with the next */
        size_t first = starts[i + 1] - starts[i], second = starts[i + 2] - starts[i + 1];
        memcpy(forged, data, bytes);
        memcpy(forged + starts[i], data + starts[i + 1], second);
        memcpy(forged + starts[i] + second, data + starts[i], first);
        seal(forged, bytes);
        set_content(bad, forged, bytes);
        try_forged(place, &pool, bad, &before);
    }
    verify_pool(pool);
    free(data);
    free(forged);
    close(fd);
    close(bad);
    close_pool(pool);
}

static void test_newer(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    int fd = small_archive(place);
    size_t bytes;
    unsigned char *data = file_content(fd, &bytes);
    struct lmcs_pool *pool = small_target(place);
    struct lmcs_archive_head_df head;
    memcpy(&head, data, sizeof head);
    head.version = 2;
    memcpy(data, &head, sizeof head);
    seal(data, bytes);
    set_content(fd, data, bytes);
    FAILS(LMCS_UNSUPPORTED, restore_file(pool, fd, &report));
    set_content(fd, "PK\3\4 this is something else altogether, and long", 48);
    FAILS(LMCS_DAMAGED, restore_file(pool, fd, &report));
    set_content(fd, "", 0);
    FAILS(LMCS_DAMAGED, restore_file(pool, fd, &report));
    verify_pool(pool);
    free(data);
    close(fd);
    close_pool(pool);
}

/* ---- Faults ---- */

static void test_full_pool(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run;
    char path[512];
    struct lmcs_pool *from = make_run(place, &run, 400000);
    int fd = dump_file(place, from, NULL, "a.archive", &report);
    place_path(place, "to.pool", path);
    struct lmcs_pool *to = open_limited(path, (uint64_t)12 << 20);
    struct state *weights = state_weights(&run.rng, 2, 100000);
    take_snapshot(to, "mine", weights, 1);
    struct counters before = counters_of(to);
    for (int tries = 0; tries < 3; tries++) {
        FAILS(LMCS_FULL, restore_file(to, fd, &report));
        EXPECT(err.bytes_needed > 0);
        expect_unchanged(to, &before);
    }
    take_snapshot(to, "mine", run.kept[1], 2);
    expect_state(to, "mine", "latest", run.kept[1]);
    verify_pool(to);
    OK(lmcs_pool_set_limit(to, 0, &err));
    OK(restore_file(to, fd, &report));
    EXPECT(report.contents_found > 0); /* those of "mine" */
    for (uint64_t number = 1; number <= 10; number++)
        if (number != 3)
            expect_snapshot(to, "run", number, run.kept[number]);
    verify_pool(to);
    state_free(weights);
    close(fd);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

static bool stop_soon(void *context, const char *what, uint64_t done, uint64_t total)
{
    unsigned *calls = context;
    EXPECT(what != NULL && (total == 0 || done <= total));
    return --*calls > 0;
}

static void test_cancel(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 400000), *to = new_pool(place, "to.pool");
    int fd = dump_file(place, from, NULL, "a.archive", &report), other = new_file(place, "b.archive");
    unsigned calls = 2;
    const struct lmcs_progress progress = {stop_soon, &calls};
    FAILS(LMCS_CANCELLED, lmcs_dump(from, NULL, other, &progress, &report, &err));
    struct counters before = counters_of(to);
    for (unsigned wanted = 1; wanted < 4; wanted++) {
        calls = wanted;
        EXPECT(lseek(fd, 0, SEEK_SET) == 0);
        FAILS(LMCS_CANCELLED, lmcs_restore(to, fd, &progress, &report, &err));
        expect_unchanged(to, &before);
    }
    verify_pool(to);
    OK(restore_file(to, fd, &report));
    close(fd);
    close(other);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

/* ---- A pool that changes meanwhile ---- */

/* Somebody who has what the archive has, and takes it away, once in each attempt of a restore that has found it. */
struct rival {
    struct lmcs_pool *pool;
    const struct state *state;
    unsigned times; /* that it is put there again */
    unsigned removals;
    uint64_t number; /* of the snapshot */
    uint64_t done;
    bool has_acted;
};

static bool take_away(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct rival *rival = context;
    (void)what;
    (void)total;
    rival->has_acted = rival->has_acted && done > rival->done;
    rival->done = done;
    if (rival->has_acted || rival->number == 0)
        return true;
    rival->has_acted = true;
    OK(lmcs_snapshot_remove(rival->pool, "rival", rival->number, false, NULL, &err));
    rival->number = rival->removals++ < rival->times ? take_snapshot(rival->pool, "rival", rival->state, 1) : 0;
    return true;
}

/* A file is read anew, in the end without sharing anything; a pipe can't be. */
static void test_overtaken(void **state)
{
    static const struct {
        unsigned times, removals;
    } cases[] = {{0, 1}, {1, 2}, {100, 4}};
    const struct place *place = *state;
    struct rng rng = {41};
    struct state *weights = state_weights(&rng, 3, 600000);
    struct lmcs_pool *from = new_pool(place, "from.pool");
    struct lmcs_transfer_report report;
    take_snapshot(from, "run", weights, 1);
    int fd = dump_file(place, from, NULL, "a.archive", &report);
    for (size_t i = 0; i <= sizeof cases / sizeof cases[0]; i++) {
        bool piped = i == sizeof cases / sizeof cases[0];
        struct lmcs_pool *to = new_pool(place, "to.pool");
        struct rival rival = {.pool = to, .state = weights, .times = piped ? 0 : cases[i].times};
        const struct lmcs_progress progress = {take_away, &rival};
        rival.number = take_snapshot(to, "rival", weights, 1);
        if (piped) {
            int ends[2];
            pthread_t thread;
            EXPECT(pipe2(ends, O_CLOEXEC) == 0);
            struct sending sending = {from, ends[1]};
            EXPECT(pthread_create(&thread, NULL, send_thread, &sending) == 0);
            FAILS(LMCS_NOT_FOUND, lmcs_restore(to, ends[0], &progress, &report, &err));
            assert_non_null(strstr(err.message, "restore once more"));
            pthread_join(thread, NULL);
            close(ends[0]);
        } else {
            EXPECT(lseek(fd, 0, SEEK_SET) == 0);
            OK(lmcs_restore(to, fd, &progress, &report, &err));
            assert_int_equal(rival.removals, cases[i].removals);
            expect_same_shelf(from, to, "run");
        }
        check_pool(to);
        verify_pool(to);
        close_pool(to);
    }
    close(fd);
    close_pool(from);
    state_free(weights);
}

/* Somebody who takes away what the archive has as a base alone, once that was found: nothing has it any more. */
static bool take_base_away(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct lmcs_pool **pool = context;
    (void)what;
    if (done < total / 2)
        return true;
    if (*pool != NULL) {
        OK(lmcs_snapshot_remove(*pool, "rival", 2, false, NULL, &err));
        OK(lmcs_compact(*pool, NULL, &err));
    }
    *pool = NULL;
    return true;
}

/* A base that was found, and that nothing needs any more at the end, is no damage. */
static void test_base_has_gone(void **state)
{
    static const char *const addresses[] = {"rival@1", "rival@3"};
    const struct place *place = *state;
    struct rng rng = {43};
    struct lmcs_pool *pool = new_pool(place, "from.pool"), *acts = pool;
    struct state *weights = state_weights(&rng, 2, 1500000), *kept[4] = {NULL};
    OK(lmcs_shelf_set_policy(pool, "rival", "keep_raw=1 links=off", &err));
    for (int64_t step = 1; step <= 3; step++) {
        memset(weights->tensors[0].data, (int)step, 1000); /* so little that two deltas are less than a whole */
        take_snapshot(pool, "rival", weights, step);
        kept[step] = state_copy(weights);
        OK(lmcs_compact(pool, NULL, &err));
    }
    int fd = new_file(place, "a.archive");
    struct lmcs_dump_options dump;
    struct lmcs_transfer_report report;
    lmcs_dump_options_init(&dump);
    dump.addresses = addresses;
    dump.address_count = 2;
    OK(lmcs_dump_with(pool, &dump, fd, NULL, &report, &err));
    struct lmcs_restore_options options;
    lmcs_restore_options_init(&options);
    options.as = "again";
    const struct lmcs_progress progress = {take_base_away, &acts};
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    OK(lmcs_restore_with(pool, &fd, 1, &options, &progress, &report, &err));
    EXPECT(acts == NULL && report.contents_found > 0);
    for (uint64_t number = 1; number <= 3; number += 2)
        expect_snapshot(pool, "again", number, kept[number]);
    check_pool(pool);
    verify_pool(pool);
    for (int step = 1; step <= 3; step++)
        state_free(kept[step]);
    state_free(weights);
    close(fd);
    close_pool(pool);
}

static void test_bad_descriptors(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 100000);
    int ends[2], full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    EXPECT(pipe2(ends, O_CLOEXEC) == 0 && full >= 0);
    sigaction(SIGPIPE, &ignore, &before);
    close(ends[0]);
    FAILS(LMCS_IO, lmcs_dump(from, NULL, ends[1], NULL, &report, &err));
    EXPECT(err.system_errno == EPIPE);
    FAILS(LMCS_FULL, lmcs_dump(from, NULL, full, NULL, &report, &err));
    EXPECT(err.system_errno == ENOSPC);
    FAILS(LMCS_IO, lmcs_restore(from, ends[1], NULL, &report, &err)); /* not open for reading */
    sigaction(SIGPIPE, &before, NULL);
    close(full);
    close(ends[1]);
    close_pool(from);
    free_run(&run);
}

/* ---- Several at once ---- */

/* A restore of an archive in a file, and then of one that comes by a pipe. */
struct restoring {
    struct lmcs_pool *pool;
    int fds[2];
    enum lmcs_status status;
    struct lmcs_error error;
};

static void *restore_both(void *argument)
{
    struct restoring *restoring = argument;
    restoring->status = lmcs_restore_with(restoring->pool, restoring->fds, 2, NULL, NULL, NULL, &restoring->error);
    return NULL;
}

static pthread_t begin_restoring(struct restoring *restoring, struct lmcs_pool *pool, int first, int *pipe_end)
{
    int ends[2];
    pthread_t thread;
    EXPECT(pipe2(ends, O_CLOEXEC) == 0 && lseek(first, 0, SEEK_SET) == 0);
    *restoring = (struct restoring){.pool = pool, .fds = {first, ends[0]}};
    *pipe_end = ends[1];
    EXPECT(pthread_create(&thread, NULL, restore_both, restoring) == 0);
    return thread;
}

static void send_all(int from, int to)
{
    size_t bytes;
    unsigned char *data = file_content(from, &bytes);
    EXPECT(write(to, data, bytes) == (ssize_t)bytes);
    free(data);
    close(to);
}

static void end_restoring(pthread_t thread, struct restoring *restoring)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    EXPECT(pthread_timedjoin_np(thread, NULL, &until) == 0); /* else it waits for ever */
    close(restoring->fds[1]);
}

static void wait_until_taken(struct lmcs_pool *pool, const char *name)
{
    struct lmcs_busy_shelf *busy;
    while (lmcs_shelf_try(pool, name, &busy)) {
        lmcs_shelf_give(pool, busy);
        usleep(1000);
    }
}

static void wait_for_waiters(struct lmcs_pool *pool)
{
    for (bool waits = false; !waits; usleep(1000)) {
        pthread_mutex_lock(&pool->captures);
        waits = pool->waiters != NULL;
        pthread_mutex_unlock(&pool->captures);
    }
}

/* Two restores, each of which has what the other wants: one fails and leaves nothing, the other goes on. */
static void test_each_others_shelves(void **state)
{
    const struct place *place = *state;
    static const char *const names[2] = {"a", "b"};
    struct rng rng = {8};
    struct state *weights = state_weights(&rng, 2, 1000);
    struct lmcs_pool *from = new_pool(place, "from.pool"), *to = new_pool(place, "to.pool");
    struct lmcs_transfer_report report;
    struct restoring restoring[2];
    pthread_t threads[2];
    int fds[2], ends[2], failed = 0;
    for (int i = 0; i < 2; i++) {
        take_snapshot(from, names[i], weights, 1);
        fds[i] = dump_file(place, from, names[i], names[i], &report);
    }
    for (int i = 0; i < 2; i++) {
        threads[i] = begin_restoring(&restoring[i], to, fds[i], &ends[i]);
        wait_until_taken(to, names[i]);
    }
    for (int i = 0; i < 2; i++)
        send_all(fds[!i], ends[i]);
    for (int i = 0; i < 2; i++) {
        end_restoring(threads[i], &restoring[i]);
        if (restoring[i].status == LMCS_OK)
            continue;
        failed++;
        EXPECT(restoring[i].status == LMCS_IN_USE && strstr(restoring[i].error.message, "\"a\"") != NULL &&
               strstr(restoring[i].error.message, "\"b\"") != NULL);
    }
    EXPECT(failed == 1);
    EXPECT(counters_of(to).shelves == 2 && counters_of(to).snapshots == 2);
    for (int i = 0; i < 2; i++)
        expect_same_shelf(from, to, names[i]);
    verify_pool(to);
    for (int i = 0; i < 2; i++)
        close(fds[i]);
    state_free(weights);
    close_pool(from);
    close_pool(to);
}

struct late_sender {
    struct lmcs_pool *pool;
    int from, to;
};

static void *send_when_waited_for(void *argument)
{
    struct late_sender *sender = argument;
    wait_for_waiters(sender->pool);
    send_all(sender->from, sender->to);
    return NULL;
}

/* A restore waits for a capture; but not when that one's thread wants what the restore has. */
static void test_captures_and_shelves(void **state)
{
    const struct place *place = *state;
    struct rng rng = {8};
    struct state *weights = state_weights(&rng, 2, 1000);
    struct lmcs_pool *from = new_pool(place, "from.pool"), *to = new_pool(place, "to.pool");
    struct lmcs_transfer_report report;
    struct lmcs_capture *capture, *other;
    struct restoring restoring;
    int end;
    take_snapshot(from, "a", weights, 1);
    take_snapshot(from, "b", weights, 1);
    int a = dump_file(place, from, "a", "a", &report), b = dump_file(place, from, "b", "b", &report);
    OK(lmcs_capture_begin(to, "b", &capture, &err));
    pthread_t thread = begin_restoring(&restoring, to, a, &end);
    wait_until_taken(to, "a");
    send_all(b, end);
    wait_for_waiters(to);
    FAILS(LMCS_IN_USE, lmcs_capture_begin(to, "a", &other, &err));
    EXPECT(strstr(err.message, "\"a\"") != NULL && strstr(err.message, "\"b\"") != NULL);
    usleep(10000);
    EXPECT(pthread_tryjoin_np(thread, NULL) == EBUSY);
    lmcs_capture_abort(capture);
    end_restoring(thread, &restoring);
    EXPECT(restoring.status == LMCS_OK);
    expect_same_shelf(from, to, "a");
    expect_same_shelf(from, to, "b");
    close_pool(to);
    /* The other way round: the restore is who would close the circle. */
    to = new_pool(place, "to.pool");
    OK(lmcs_capture_begin(to, "b", &capture, &err));
    thread = begin_restoring(&restoring, to, a, &end);
    wait_until_taken(to, "a");
    struct late_sender late = {to, b, end};
    pthread_t sender;
    EXPECT(pthread_create(&sender, NULL, send_when_waited_for, &late) == 0);
    OK(lmcs_capture_begin(to, "a", &other, &err));
    pthread_join(sender, NULL);
    end_restoring(thread, &restoring);
    EXPECT(restoring.status == LMCS_IN_USE && strstr(restoring.error.message, "\"b\"") != NULL);
    EXPECT(counters_of(to).shelves == 0 && counters_of(to).contents == 0);
    lmcs_capture_abort(capture);
    lmcs_capture_abort(other);
    verify_pool(to);
    close(a);
    close(b);
    state_free(weights);
    close_pool(from);
    close_pool(to);
}

/* ---- Crashes ---- */

struct crash {
    const struct place *place;
    int fd;
    int said;
};

static bool say_and_wait(void *context, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    (void)total;
    if (done > (uint64_t)12 << 20) {
        EXPECT(write(*(int *)context, "x", 1) == 1);
        pause();
    }
    return true;
}

static int restore_and_hang(void *argument)
{
    struct crash *crash = argument;
    const struct lmcs_progress progress = {say_and_wait, &crash->said};
    char path[512];
    place_path(crash->place, "to.pool", path);
    struct lmcs_pool *pool = open_quiet(path);
    (void)!lmcs_restore(pool, crash->fd, &progress, NULL, &err);
    return 1;
}

static void test_killed(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 1000000), *to = new_pool(place, "to.pool");
    int ends[2], fd = dump_file(place, from, NULL, "a.archive", &report);
    char path[512], byte;
    place_path(place, "to.pool", path);
    take_snapshot(to, "run-mine", run.state, 4);
    struct counters before = counters_of(to);
    close_pool(to);
    close_pool(from);
    EXPECT(report.bytes > (uint64_t)20 << 20 && pipe2(ends, O_CLOEXEC) == 0);
    struct crash crash = {place, fd, ends[1]};
    pid_t child = start_child(restore_and_hang, &crash);
    EXPECT(read(ends[0], &byte, 1) == 1);
    EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    to = open_quiet(path);
    expect_unchanged(to, &before);
    verify_pool(to);
    OK(restore_file(to, fd, &report));
    verify_pool(to);
    close(fd);
    close(ends[0]);
    close(ends[1]);
    close_pool(to);
    free_run(&run);
}

/* ---- Beside a trainer ---- */

#define DUMPS 6

static int dump_often(void *argument)
{
    const struct place *place = argument;
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    for (int i = 0; i < DUMPS; i++) {
        char name[32];
        struct lmcs_transfer_report report;
        snprintf(name, sizeof name, "%d.archive", i);
        close(dump_file(place, pool, NULL, name, &report));
    }
    close_pool(pool);
    return 0;
}

static void *dump_here(void *argument)
{
    struct sending *sending = argument;
    struct lmcs_transfer_report report;
    for (int i = 0; i < DUMPS; i++) {
        EXPECT(ftruncate(sending->fd, 0) == 0 && lseek(sending->fd, 0, SEEK_SET) == 0);
        OK(lmcs_dump(sending->pool, NULL, sending->fd, NULL, &report, &err));
    }
    return NULL;
}

static void test_beside_trainer(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run = {.rng = {21}};
    run.state = state_weights(&run.rng, 6, 60000);
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_CREATE, 0);
    for (int i = 0; i < 12; i++) {
        state_step(run.state, &run.rng, 0, 4);
        take_snapshot(pool, "run", run.state, i);
    }
    pthread_t thread;
    struct sending sending = {pool, new_file(place, "here.archive")};
    pid_t child = start_child(dump_often, *state);
    EXPECT(pthread_create(&thread, NULL, dump_here, &sending) == 0);
    for (int i = 12; i < 60; i++) {
        state_step(run.state, &run.rng, (size_t)i % 3, 4);
        uint64_t number = take_snapshot(pool, "run", run.state, i);
        if (i % 2 == 0)
            OK(lmcs_snapshot_remove(pool, "run", number - 8, false, NULL, &err));
        if (i % 16 == 0)
            OK(lmcs_compact(pool, NULL, &err));
    }
    pthread_join(thread, NULL);
    expect_child(child);
    verify_pool(pool);
    for (int i = 0; i <= DUMPS; i++) {
        char name[32], path[512];
        struct lmcs_pool *to = new_pool(place, "to.pool");
        snprintf(name, sizeof name, "%d.archive", i);
        place_path(place, i < DUMPS ? name : "here.archive", path);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        OK(lmcs_restore(to, fd, NULL, &report, &err));
        EXPECT(report.snapshots >= 8);
        verify_pool(to);
        close(fd);
        close_pool(to);
    }
    close(sending.fd);
    close_pool(pool);
    free_run(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(test_round_trip),
        IN_MEMORY(test_one_shelf),
        IN_MEMORY(test_pipe),
        ON_BOTH(test_merge),
        IN_MEMORY(test_conflict),
        IN_MEMORY(test_prepared),
        IN_MEMORY(test_truncated),
        IN_MEMORY(test_flipped),
        IN_MEMORY(test_forged),
        IN_MEMORY(test_forged_order),
        IN_MEMORY(test_newer),
        ON_DISK(test_full_pool),
        IN_MEMORY(test_cancel),
        IN_MEMORY(test_bad_descriptors),
        ON_BOTH(test_killed),
        ON_BOTH(test_beside_trainer),
        ON_BOTH(test_overtaken),
        ON_BOTH(test_base_has_gone),
        IN_MEMORY(test_each_others_shelves),
        IN_MEMORY(test_captures_and_shelves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
