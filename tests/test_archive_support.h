/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_support.h - dump, restore and comparison of pools. */
#ifndef LMCS_TEST_ARCHIVE_SUPPORT_H
#define LMCS_TEST_ARCHIVE_SUPPORT_H

#include "payload/layout.h"
#include "records/busy.h"
#include "test_archive_seal.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static inline int new_file(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    return fd;
}

/* Leaves the file open at its start. */
static inline int dump_file(const struct place *place, struct lmcs_pool *pool, const char *shelf, const char *name,
                            struct lmcs_transfer_report *report)
{
    int fd = new_file(place, name);
    OK(lmcs_dump(pool, shelf, fd, NULL, report, &err));
    EXPECT((uint64_t)lseek(fd, 0, SEEK_END) == report->bytes);
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

static inline enum lmcs_status restore_file(struct lmcs_pool *pool, int fd, struct lmcs_transfer_report *report)
{
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    return lmcs_restore(pool, fd, NULL, report, &err);
}

static inline struct lmcs_pool *new_pool(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    unlink(path);
    return open_quiet(path);
}

static inline unsigned char *file_content(int fd, size_t *bytes)
{
    *bytes = (size_t)lseek(fd, 0, SEEK_END);
    unsigned char *data = malloc(*bytes + 1);
    EXPECT(data != NULL && pread(fd, data, *bytes, 0) == (ssize_t)*bytes);
    return data;
}

struct counters {
    uint64_t shelves, snapshots, contents, live;
};

static inline struct counters counters_of(struct lmcs_pool *pool)
{
    struct lmcs_pool_info info = pool_info(pool);
    return (struct counters){info.shelf_count, info.snapshot_count, info.content_count, info.live_bytes};
}

static inline void expect_unchanged(struct lmcs_pool *pool, const struct counters *before)
{
    struct counters now = counters_of(pool);
    EXPECT(now.shelves == before->shelves);
    EXPECT(now.snapshots == before->snapshots);
    EXPECT(now.contents == before->contents);
    /* `live` includes metadata, whose pages differ slightly. */
}

static inline struct lmc_hash digest_of(struct lmcs_pool *pool, const char *shelf, uint64_t number)
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

static inline void add_text(void *context, const char *text)
{
    char *all = context;
    size_t length = strlen(all);
    snprintf(all + length, 4096 - length, "%s;", text);
}

static inline bool add_tag(void *context, const char *tag)
{
    add_text(context, tag);
    return true;
}

static inline void expect_same_snapshot(struct lmcs_pool *a, struct lmcs_pool *b, const char *shelf, uint64_t number)
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

static inline size_t numbers_of(struct lmcs_pool *pool, const char *shelf, uint64_t numbers[64])
{
    size_t count;
    OK(lmcs_snapshot_numbers(pool, shelf, 1, numbers, 64, &count, &err));
    return count;
}

static inline void expect_same_shelf(struct lmcs_pool *a, struct lmcs_pool *b, const char *shelf)
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

struct run {
    struct rng rng;
    struct state *state;
    struct state *kept[64];
};

static inline void free_run(struct run *run)
{
    state_free(run->state);
    for (size_t i = 0; i < 64; i++)
        state_free(run->kept[i]);
}

static inline void take_rich(struct lmcs_pool *pool, struct run *run, size_t long_meta)
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

static inline struct lmcs_pool *make_run(const struct place *place, struct run *run, size_t floats)
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

struct sending {
    struct lmcs_pool *pool;
    int fd;
};

static inline void *send_thread(void *argument)
{
    struct sending *sending = argument;
    struct lmcs_transfer_report report;
    OK(lmcs_dump(sending->pool, NULL, sending->fd, NULL, &report, &err));
    close(sending->fd);
    return NULL;
}

#endif
