/* SPDX-License-Identifier: BSD-3-Clause */
/* test_fork.c - forks, renames, removals, and shared contents of shelves. */
#include <fcntl.h>
#include <unistd.h>

#include "media/lease.h"
#include "records/shelf.h"
#include "support.h"

static struct lmcs_snapshot *open_snapshot(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    return snapshot;
}

static enum lmcs_status try_fork(struct lmcs_pool *pool, const char *address, const char *name)
{
    struct lmcs_snapshot *snapshot = open_snapshot(pool, address);
    enum lmcs_status status = lmcs_shelf_fork(snapshot, name, &err);
    lmcs_snapshot_close(snapshot);
    return status;
}

static void take_line(struct lmcs_pool *pool, const char *shelf, struct state **states, size_t count, struct rng *rng)
{
    for (size_t i = 0; i < count; i++) {
        states[i] = i == 0 ? state_weights(rng, 6, 5000) : state_copy(states[i - 1]);
        if (i > 0)
            state_step(states[i], rng, 0, 3);
        EXPECT(take_snapshot(pool, shelf, states[i], (int64_t)(10 * i)) == i + 1);
    }
}

static void free_line(struct state **states, size_t count)
{
    for (size_t i = 0; i < count; i++)
        state_free(states[i]);
}

static bool first_tag(void *context, const char *tag)
{
    snprintf(context, 64, "%s", tag);
    return false;
}

static void test_a_fork_is_the_snapshot(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {1};
    struct state *held = state_weights(&rng, 4, 3000);
    const struct lmcs_metric metric = {"loss", 0.25};
    const char *tags[] = {"best", "keep"};
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options = (struct lmcs_commit_options){.step = 70,
                                           .time_ns = 1234567890,
                                           .tags = tags,
                                           .tag_count = 2,
                                           .metrics = &metric,
                                           .metric_count = 1,
                                           .meta_json = "{\"a\":1}"};
    take_snapshot(pool, "run", held, 1);
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, held);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    OK(lmcs_shelf_set_keep_raw(pool, "run", 7, &err));
    uint64_t contents = pool_info(pool).content_count;
    OK(try_fork(pool, "run@best", "branch"));
    EXPECT(pool_info(pool).content_count == contents);
    check_pool(pool);

    struct lmcs_shelf_info info = shelf_info(pool, "branch");
    EXPECT(info.snapshot_count == 1 && info.latest == 1 && info.next_number == 2 && info.keep_raw == 7);
    EXPECT(info.origin_number == 2 && info.origin_is_there && strcmp(info.origin_shelf, "run") == 0);
    EXPECT(info.origin_time_ns == 1234567890);
    EXPECT(shelf_info(pool, "run").origin_number == 0);
    EXPECT(pool_info(pool).snapshot_count == 3);

    struct lmcs_snapshot *snapshot = open_snapshot(pool, "branch@keep");
    const struct lmcs_snapshot_info *first = lmcs_snapshot_info(snapshot);
    char tag[64] = "";
    EXPECT(first->number == 1 && first->parent == 0 && first->step == 70 && first->time_ns == 1234567890);
    EXPECT(first->metric_count == 1 && first->metrics[0].value == 0.25 && strcmp(first->meta_json, "{\"a\":1}") == 0);
    OK(lmcs_snapshot_tags(snapshot, first_tag, tag, &err));
    EXPECT(tag[0] != '\0');
    lmcs_snapshot_close(snapshot);
    expect_snapshot(pool, "branch", 1, held);
    EXPECT(content_of(pool, "branch", 1, "t0") == content_of(pool, "run", 2, "t0"));

    state_step(held, &rng, 0, 1);
    EXPECT(take_snapshot(pool, "branch", held, 71) == 2);
    EXPECT(content_of(pool, "branch", 2, "t1") == content_of(pool, "run", 2, "t1"));
    EXPECT(content_of(pool, "branch", 2, "t0") != content_of(pool, "run", 2, "t0"));
    snapshot = open_snapshot(pool, "branch");
    EXPECT(lmcs_snapshot_info(snapshot)->parent == 1);
    lmcs_snapshot_close(snapshot);
    EXPECT(shelf_info(pool, "run").latest == 2);
    state_free(held);
    verify_pool(pool);
    close_pool(pool);
}

/* A fork inherits policies of safety, none of pruning. */
static void test_care_goes_along(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {9};
    struct state *held = state_weights(&rng, 2, 1000);
    take_snapshot(pool, "run", held, 1);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:2 budget=50% scrub=30d parity=16+2 keep_raw=5", &err));
    OK(try_fork(pool, "run", "branch"));
    assert_string_equal(shelf_info(pool, "branch").policy, "keep_raw=5 chain=3 keep=all scrub=30d parity=16+2");
    OK(lmcs_shelf_set_policy(pool, "run", "scrub=none parity=none", &err));
    OK(try_fork(pool, "run", "another"));
    assert_string_equal(shelf_info(pool, "another").policy, "keep_raw=5 chain=3 keep=all parity=none");
    assert_string_equal(shelf_info(pool, "branch").policy, "keep_raw=5 chain=3 keep=all scrub=30d parity=16+2");
    check_pool(pool);
    close_pool(pool);
    state_free(held);
}

static void test_long_metadata_goes_along(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {2};
    struct state *held = state_weights(&rng, 1, 100);
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    static char meta[5000];
    snprintf(meta, sizeof meta, "{\"note\":\"%04000d\"}", 7);
    lmcs_commit_options_init(&options);
    options.meta_json = meta;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, held);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    OK(try_fork(pool, "run", "branch"));
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    struct lmcs_snapshot *snapshot = open_snapshot(pool, "branch");
    EXPECT(strcmp(lmcs_snapshot_info(snapshot)->meta_json, meta) == 0);
    lmcs_snapshot_close(snapshot);
    state_free(held);
    close_pool(pool);
}

static void test_what_is_shared_lives_as_long_as_one_has_it(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    for (int fork_first = 0; fork_first < 2; fork_first++) {
        struct lmcs_pool *pool = open_quiet(place->pool);
        struct state *states[5];
        take_line(pool, "run", states, 5, &rng);
        OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
        OK(lmcs_compact(pool, NULL,
                        &err)); /* 1 to 4 are deltas: the fork depends on later contents of the other shelf */
        OK(try_fork(pool, "run@2", "branch"));
        check_pool(pool);
        OK(lmcs_shelf_drop(pool, fork_first ? "branch" : "run", false, NULL, &err));
        check_pool(pool);
        OK(lmcs_compact(pool, NULL, &err));
        verify_pool(pool);
        if (fork_first)
            for (size_t i = 0; i < 5; i++)
                expect_snapshot(pool, "run", i + 1, states[i]);
        else
            expect_snapshot(pool, "branch", 1, states[1]);
        EXPECT(pool_info(pool).snapshot_count == (fork_first ? 5 : 1));
        OK(lmcs_shelf_drop(pool, fork_first ? "run" : "branch", false, NULL, &err));
        OK(lmcs_compact(pool, NULL, &err));
        check_pool(pool);
        EXPECT(pool_info(pool).content_count == 0 && pool_info(pool).snapshot_count == 0);
        free_line(states, 5);
        close_pool(pool);
        unlink(place->pool);
    }
}

static void test_removing_the_snapshot_that_was_forked(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {4};
    struct state *states[4];
    take_line(pool, "run", states, 4, &rng);
    OK(try_fork(pool, "run@2", "branch"));
    OK(try_fork(pool, "branch", "twig"));
    OK(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    check_pool(pool);
    EXPECT(!shelf_info(pool, "branch").origin_is_there && shelf_info(pool, "twig").origin_is_there);
    EXPECT(shelf_info(pool, "branch").origin_number == 2);
    OK(lmcs_snapshot_remove(pool, "branch", 1, false, NULL, &err));
    check_pool(pool);
    expect_snapshot(pool, "twig", 1, states[1]);
    expect_snapshot(pool, "run", 3, states[2]);
    verify_pool(pool);
    free_line(states, 4);
    close_pool(pool);
}

static void test_many_tensors(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {5};
    struct state *held = state_weights(&rng, 5000, 16);
    take_snapshot(pool, "run", held, 1);
    struct lmcs_pool_info before = pool_info(pool);
    OK(try_fork(pool, "run", "branch"));
    EXPECT(pool_info(pool).used_bytes - before.used_bytes <= (uint64_t)4 << 20);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    expect_snapshot(pool, "branch", 1, held);
    check_pool(pool);
    state_free(held);
    close_pool(pool);
}

static void test_forks_that_are_refused(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {6};
    struct state *held = state_weights(&rng, 2, 100);
    static char long_name[LMCS_MAX_NAME + 2];
    memset(long_name, 'x', LMCS_MAX_NAME + 1);
    take_snapshot(pool, "run", held, 1);
    take_snapshot(pool, "other", held, 1);
    struct lmcs_snapshot *snapshot = open_snapshot(pool, "run");
    FAILS(LMCS_EXISTS, lmcs_shelf_fork(snapshot, "other", &err));
    FAILS(LMCS_EXISTS, lmcs_shelf_fork(snapshot, "run", &err));
    FAILS(LMCS_INVALID, lmcs_shelf_fork(snapshot, "", &err));
    FAILS(LMCS_INVALID, lmcs_shelf_fork(snapshot, NULL, &err));
    FAILS(LMCS_INVALID, lmcs_shelf_fork(snapshot, "a@b", &err));
    FAILS(LMCS_INVALID, lmcs_shelf_fork(snapshot, long_name, &err));
    long_name[LMCS_MAX_NAME] = '\0';
    OK(lmcs_shelf_fork(snapshot, long_name, &err));
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_shelf_fork(snapshot, "branch", &err));
    FAILS(LMCS_NOT_FOUND, lmcs_shelf_info(pool, "branch", &(struct lmcs_shelf_info){.latest = 0}, &err));
    lmcs_snapshot_close(snapshot);
    check_pool(pool);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    snapshot = open_snapshot(pool, "other");
    FAILS(LMCS_READ_ONLY, lmcs_shelf_fork(snapshot, "branch", &err));
    FAILS(LMCS_READ_ONLY, lmcs_shelf_rename(pool, "other", "x", &err));
    FAILS(LMCS_READ_ONLY, lmcs_shelf_drop(pool, "other", false, NULL, &err));
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
    state_free(held);
}

static void test_rename(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {7};
    struct state *states[3];
    take_line(pool, "run", states, 3, &rng);
    OK(lmcs_tag_set(pool, "run", "best", 2, &err));
    OK(try_fork(pool, "run@2", "branch"));
    struct lmcs_snapshot *snapshot = open_snapshot(pool, "run@2");
    OK(lmcs_shelf_rename(pool, "run", "a much longer name than before", &err));
    check_pool(pool);
    FAILS(LMCS_NOT_FOUND, lmcs_shelf_rename(pool, "run", "x", &err));
    FAILS(LMCS_EXISTS, lmcs_shelf_rename(pool, "branch", "a much longer name than before", &err));
    FAILS(LMCS_EXISTS, lmcs_shelf_rename(pool, "branch", "branch", &err));
    FAILS(LMCS_INVALID, lmcs_shelf_rename(pool, "branch", "a@b", &err));
    struct lmc_hash digest;
    OK(lmcs_snapshot_digest(snapshot, &digest, &err));
    lmcs_snapshot_close(snapshot);
    struct lmcs_shelf_info info = shelf_info(pool, "branch");
    EXPECT(info.origin_is_there && strcmp(info.origin_shelf, "a much longer name than before") == 0);
    expect_state(pool, "a much longer name than before", "best", states[1]);
    EXPECT(take_snapshot(pool, "run", states[2], 0) == 1);
    snapshot = open_snapshot(pool, "run");
    EXPECT(lmcs_snapshot_info(snapshot)->parent == 0);
    lmcs_snapshot_close(snapshot);
    EXPECT(strcmp(shelf_info(pool, "branch").origin_shelf, "a much longer name than before") == 0);
    close_pool(pool);
    pool = open_quiet(place->pool);
    verify_pool(pool);
    OK(lmcs_shelf_rename(pool, "a much longer name than before", "b", &err));
    EXPECT(strcmp(shelf_info(pool, "branch").origin_shelf, "b") == 0);
    snapshot = open_snapshot(pool, "b@1");
    lmcs_snapshot_mark_loaded(snapshot);
    lmcs_snapshot_close(snapshot);
    OK(lmcs_shelf_rename(pool, "b", "c", &err));
    take_snapshot(pool, "c", states[2], 0);
    snapshot = open_snapshot(pool, "c");
    EXPECT(lmcs_snapshot_info(snapshot)->parent == 1);
    lmcs_snapshot_close(snapshot);
    free_line(states, 3);
    close_pool(pool);
}

static void test_drop(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {8};
    struct state *states[40];
    struct lmcs_removal dry, wet;
    take_line(pool, "run", states, 40, &rng);
    OK(lmcs_shelf_set_keep_raw(pool, "run", 2, &err));
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_tag_set(pool, "run", "best", 2, &err));
    OK(try_fork(pool, "run@40", "branch"));
    FAILS(LMCS_NOT_FOUND, lmcs_shelf_drop(pool, "nothing", false, NULL, &err));
    OK(lmcs_shelf_drop(pool, "run", true, &dry, &err));
    EXPECT(shelf_info(pool, "run").snapshot_count == 40);
    OK(lmcs_shelf_drop(pool, "run", false, &wet, &err));
    EXPECT(dry.freed_bytes == wet.freed_bytes && dry.removed_tags == 1 && wet.removed_tags == 1);
    EXPECT(wet.freed_bytes > 0 && wet.later_bytes == dry.later_bytes);
    check_pool(pool);
    EXPECT(pool_info(pool).shelf_count == 1 && pool_info(pool).snapshot_count == 1);
    struct lmcs_shelf_info info = shelf_info(pool, "branch");
    EXPECT(!info.origin_is_there && strcmp(info.origin_shelf, "run") == 0 && info.origin_number == 40);
    OK(try_fork(pool, "branch", "run"));
    EXPECT(!shelf_info(pool, "branch").origin_is_there && shelf_info(pool, "run").origin_is_there);
    expect_snapshot(pool, "run", 1, states[39]);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    take_snapshot(pool, "run", states[0], 0);
    struct lmcs_snapshot *snapshot = open_snapshot(pool, "run");
    EXPECT(lmcs_snapshot_info(snapshot)->parent == 0 && lmcs_snapshot_info(snapshot)->number == 1);
    lmcs_snapshot_close(snapshot);
    verify_pool(pool);
    free_line(states, 40);
    close_pool(pool);
}

static void leave_staging(struct lmcs_pool *pool, const char *name)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, name, &shelf, &err));
    shelf.df.flags |= LMCS_SHELF_STAGING;
    txn.root.snapshot_count -= shelf.df.snapshot_count;
    OK(lmcs_shelf_save(&txn, &shelf, &err));
    OK(lmcs_txn_commit(&txn, &err));
}

static size_t count_shelves(struct lmcs_pool *pool)
{
    struct lmcs_txn txn;
    uint64_t ids[8];
    size_t count;
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_shelf_ids(&txn, 0, ids, 8, &count, &err));
    lmcs_txn_end(&txn);
    return count;
}

/*
 * A full pool with an interrupted removal opens, since room can be made only then. The removal ends when there is room.
 */
static void test_what_is_left_in_a_full_pool(void **state)
{
    struct place *place = *state;
    struct rng rng = {10};
    struct state *states[3];
    char path[512];
    place_path(place, "pool.set", path);
    FILE *file = fopen(path, "w");
    EXPECT(file != NULL && fprintf(file, "PMEMPOOLSET\n32M %s/part0\n", place->folder) > 0 && fclose(file) == 0);
    struct lmcs_pool *pool = open_quiet(path), *reader;
    take_line(pool, "run", states, 3, &rng);
    OK(try_fork(pool, "run@3", "gone"));
    leave_staging(pool, "gone");
    uint64_t epoch = pool_info(pool).epoch;
    close_pool(pool);
    OK(lmcs_pool_open(path, LMCS_OPEN_READ, NULL, &reader, &err));
    OK(lmcs_lease_epoch(reader->lease, epoch, &err)); /* keeps freed pages from reuse */
    pool = open_quiet(path);
    EXPECT(count_shelves(pool) == 1);
    OK(try_fork(pool, "run@3", "gone"));
    leave_staging(pool, "gone");
    enum lmcs_status status = LMCS_OK;
    for (uint64_t i = 0; status == LMCS_OK; i++)
        status = lmcs_tag_set(pool, "run", "moving", i % 3 + 1, &err);
    EXPECT(status == LMCS_FULL);
    close_pool(pool);
    pool = open_quiet(path);
    EXPECT(count_shelves(pool) == 2 && pool_info(pool).shelf_count == 1);
    FAILS(LMCS_FULL, lmcs_tag_set(pool, "run", "moving", 1, &err));
    check_pool(pool);
    lmcs_lease_epoch_end(reader->lease, epoch);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    close_pool(pool);
    pool = open_quiet(path);
    EXPECT(count_shelves(pool) == 1);
    expect_snapshot(pool, "run", 3, states[2]);
    verify_pool(pool);
    close_pool(pool);
    close_pool(reader);
    free_line(states, 3);
}

static void test_prepared_snapshots_hold_their_shelf(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {9};
    struct state *held = state_weights(&rng, 2, 100);
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    take_snapshot(pool, "run", held, 0);
    lmcs_commit_options_init(&options);
    options.prepare = true;
    options.group[0] = 1;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, held);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    FAILS(LMCS_IN_USE, lmcs_shelf_drop(pool, "run", false, NULL, &err));
    FAILS(LMCS_IN_USE, lmcs_shelf_drop(pool, "run", true, NULL, &err));
    OK(lmcs_shelf_rename(pool, "run", "walk", &err));
    OK(try_fork(pool, "walk@1", "branch"));
    OK(lmcs_group_resolve(pool, options.group, true, &err));
    expect_snapshot(pool, "walk", 2, held);
    check_pool(pool);
    state_free(held);
    close_pool(pool);
}

static int dump_to_file(const struct place *place, struct lmcs_pool *pool, const char *shelf)
{
    char path[512];
    place_path(place, "archive", path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    OK(lmcs_dump(pool, shelf, fd, NULL, NULL, &err));
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

static void test_archives_of_forks(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool), *copy;
    struct rng rng = {10};
    struct state *states[4];
    struct lmcs_transfer_report report;
    char path[512];
    place_path(place, "copy", path);
    take_line(pool, "run", states, 4, &rng);
    OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
    OK(lmcs_compact(pool, NULL, &err));
    OK(try_fork(pool, "run@2", "branch"));
    uint64_t contents = pool_info(pool).content_count;

    int fd = dump_to_file(place, pool, NULL);
    copy = open_quiet(path);
    OK(lmcs_restore(copy, fd, NULL, &report, &err));
    EXPECT(report.snapshots == 5 && pool_info(copy).content_count == contents);
    struct lmcs_shelf_info info = shelf_info(copy, "branch");
    EXPECT(info.origin_number == 2 && info.origin_is_there && strcmp(info.origin_shelf, "run") == 0);
    EXPECT(content_of(copy, "branch", 1, "t0") == content_of(copy, "run", 2, "t0"));
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    OK(lmcs_restore(copy, fd, NULL, &report, &err));
    EXPECT(report.snapshots == 0 && report.snapshots_skipped == 5);
    verify_pool(copy);
    close_pool(copy);
    close(fd);
    unlink(path);

    fd = dump_to_file(place, pool, "branch");
    copy = open_quiet(path);
    OK(lmcs_restore(copy, fd, NULL, &report, &err));
    info = shelf_info(copy, "branch");
    EXPECT(info.origin_number == 2 && !info.origin_is_there && strcmp(info.origin_shelf, "run") == 0);
    expect_snapshot(copy, "branch", 1, states[1]);
    verify_pool(copy);
    close_pool(copy);
    close(fd);
    free_line(states, 4);
    close_pool(pool);
}

enum { SHELVES = 5, MOST = 12 };

struct model {
    char name[16];
    struct state *states[MOST];
    uint64_t numbers[MOST];
    size_t count;
};

static void forget(struct model *model, size_t at)
{
    state_free(model->states[at]);
    model->count--;
    memmove(&model->states[at], &model->states[at + 1], (model->count - at) * sizeof model->states[0]);
    memmove(&model->numbers[at], &model->numbers[at + 1], (model->count - at) * sizeof model->numbers[0]);
}

static void model_clear(struct model *model)
{
    while (model->count > 0)
        forget(model, 0);
    model->name[0] = '\0';
}

static void snapshot_or_make(struct lmcs_pool *pool, struct model *model, struct rng *rng, unsigned *serial)
{
    if (model->count == MOST)
        return;
    if (model->name[0] == '\0')
        snprintf(model->name, sizeof model->name, "s%u", (*serial)++);
    struct state *next = model->count > 0 ? state_copy(model->states[model->count - 1]) : state_weights(rng, 5, 2000);
    state_step(next, rng, rng_below(rng, 3), 2);
    model->numbers[model->count] = take_snapshot(pool, model->name, next, 0);
    model->states[model->count++] = next;
}

static void fork_model(struct lmcs_pool *pool, const struct model *from, struct model *to, struct rng *rng,
                       unsigned *serial)
{
    char address[64];
    if (from->count == 0 || to->name[0] != '\0')
        return;
    size_t at = rng_below(rng, from->count);
    snprintf(to->name, sizeof to->name, "s%u", (*serial)++);
    snprintf(address, sizeof address, "%s@%llu", from->name, (unsigned long long)from->numbers[at]);
    OK(try_fork(pool, address, to->name));
    to->states[0] = state_copy(from->states[at]);
    to->numbers[0] = 1;
    to->count = 1;
}

static void do_something(struct lmcs_pool *pool, struct model *models, struct rng *rng, unsigned *serial)
{
    struct model *model = &models[rng_below(rng, SHELVES)];
    uint64_t what = rng_below(rng, 100);
    if (what < 40) {
        snapshot_or_make(pool, model, rng, serial);
    } else if (what < 60) {
        fork_model(pool, model, &models[rng_below(rng, SHELVES)], rng, serial);
    } else if (what < 80 && model->count > 0) {
        size_t at = rng_below(rng, model->count);
        OK(lmcs_snapshot_remove(pool, model->name, model->numbers[at], false, NULL, &err));
        forget(model, at);
    } else if (what < 85 && model->name[0] != '\0') {
        OK(lmcs_shelf_drop(pool, model->name, false, NULL, &err));
        model_clear(model);
    } else if (what < 90 && model->name[0] != '\0') {
        char name[16];
        snprintf(name, sizeof name, "s%u", (*serial)++);
        OK(lmcs_shelf_rename(pool, model->name, name, &err));
        memcpy(model->name, name, sizeof name);
    } else {
        OK(lmcs_compact(pool, NULL, &err));
    }
}

static void test_random_histories(void **state)
{
    struct place *place = *state;
    for (uint64_t seed = 1; seed <= scaled("LMCS_TEST_FORK_SEEDS", 6); seed++) {
        struct lmcs_pool *pool = open_quiet(place->pool);
        struct model models[SHELVES] = {0};
        struct rng rng = {seed};
        unsigned serial = 0;
        for (int i = 0; i < 120; i++) {
            do_something(pool, models, &rng, &serial);
            check_pool(pool);
            if (i == 60) {
                close_pool(pool);
                pool = open_quiet(place->pool);
            }
        }
        uint64_t count = 0;
        for (size_t i = 0; i < SHELVES; i++) {
            for (size_t k = 0; k < models[i].count; k++)
                expect_snapshot(pool, models[i].name, models[i].numbers[k], models[i].states[k]);
            count += models[i].count;
        }
        EXPECT(pool_info(pool).snapshot_count == count);
        verify_pool(pool);
        for (size_t i = 0; i < SHELVES; i++)
            if (models[i].name[0] != '\0') {
                OK(lmcs_shelf_drop(pool, models[i].name, false, NULL, &err));
                model_clear(&models[i]);
            }
        OK(lmcs_compact(pool, NULL, &err));
        EXPECT(pool_info(pool).content_count == 0);
        check_pool(pool);
        close_pool(pool);
        unlink(place->pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(test_a_fork_is_the_snapshot),
        IN_MEMORY(test_care_goes_along),
        IN_MEMORY(test_long_metadata_goes_along),
        IN_MEMORY(test_what_is_shared_lives_as_long_as_one_has_it),
        IN_MEMORY(test_removing_the_snapshot_that_was_forked),
        IN_MEMORY(test_many_tensors),
        IN_MEMORY(test_forks_that_are_refused),
        IN_MEMORY(test_rename),
        IN_MEMORY(test_drop),
        IN_MEMORY(test_what_is_left_in_a_full_pool),
        IN_MEMORY(test_prepared_snapshots_hold_their_shelf),
        IN_MEMORY(test_archives_of_forks),
        IN_MEMORY(test_random_histories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
