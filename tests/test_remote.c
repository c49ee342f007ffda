/* SPDX-License-Identifier: BSD-3-Clause */
/* test_remote.c - snapshots that left the pool for a URL: their removal, refusals, and their return. */
/* ctest: timeout=300 */
#include "test_archive_parts_support.h"

#define URL "s3://bucket/run"

static struct lmcs_snapshot *find(struct lmcs_pool *pool, uint64_t number)
{
    struct lmcs_snapshot *snapshot;
    char which[24];
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
    return snapshot;
}

static bool is_remote(struct lmcs_pool *pool, uint64_t number)
{
    struct lmcs_snapshot *snapshot = find(pool, number);
    const char *url = lmcs_snapshot_info(snapshot)->remote;
    bool remote = url != NULL;
    EXPECT(!remote || strcmp(url, URL) == 0);
    lmcs_snapshot_close(snapshot);
    return remote;
}

static uint64_t now(struct lmcs_pool *pool)
{
    return pool_info(pool).epoch;
}

static void expect_remote(struct lmcs_pool *pool, const char *numbers)
{
    char found[200] = "";
    uint64_t listed[64], remote = 0;
    size_t count;
    OK(lmcs_snapshot_numbers(pool, "run", 1, listed, 64, &count, &err));
    for (size_t i = 0; i < count; i++)
        if (is_remote(pool, listed[i])) {
            snprintf(found + strlen(found), sizeof found - strlen(found), "%s%llu", remote++ > 0 ? " " : "",
                     (unsigned long long)listed[i]);
            EXPECT(storage_of(pool, "run", listed[i]).stored_bytes == 0);
        }
    assert_string_equal(found, numbers);
    EXPECT(shelf_info(pool, "run").remote_count == remote && pool_info(pool).remote_count == remote);
    struct lmcs_verify_report report;
    OK(lmcs_verify(pool, "run", NULL, NULL, NULL, &report, &err));
    EXPECT(report.remote == remote && report.snapshots == count - remote);
}

static bool stop(void *context, const struct lmcs_entry *entry)
{
    (void)context;
    (void)entry;
    return false;
}

static bool stop_at_difference(void *context, const struct lmcs_difference *difference)
{
    (void)context;
    (void)difference;
    return false;
}

/* Nothing reads it, and each error names the URL. */
static void expect_refused(const struct place *place, struct lmcs_pool *pool, uint64_t number)
{
    static const char *const addresses[] = {"run", "run@2", "run@2..10"};
    struct lmcs_snapshot *snapshot = find(pool, number), *newest = find(pool, 10);
    struct lmcs_view *view;
    struct lmc_hash digest;
    float one;
    FAILS(LMCS_REMOTE, lmcs_snapshot_read(snapshot, LMCS_TENSOR, "t0", &one, sizeof one, &err));
    EXPECT(strstr(err.message, URL) != NULL && strstr(err.message, "lmc-store pull") != NULL);
    FAILS(LMCS_REMOTE, lmcs_snapshot_entries(snapshot, stop, NULL, &err));
    FAILS(LMCS_REMOTE, lmcs_view_open(snapshot, NULL, NULL, 0, 0, &view, &err));
    FAILS(LMCS_REMOTE, lmcs_snapshot_digest(snapshot, &digest, &err));
    FAILS(LMCS_REMOTE, lmcs_snapshot_diff(snapshot, newest, 0, stop_at_difference, NULL, NULL, NULL, &err));
    FAILS(LMCS_REMOTE, lmcs_snapshot_diff(newest, snapshot, 0, stop_at_difference, NULL, NULL, NULL, &err));
    FAILS(LMCS_REMOTE, lmcs_shelf_fork(snapshot, "fork", &err));
    int fd = new_file(place, "refused.archive");
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        const struct lmcs_dump_options options = {.addresses = &addresses[i], .address_count = 1};
        FAILS(LMCS_REMOTE, lmcs_dump_with(pool, &options, fd, NULL, NULL, &err));
        EXPECT(strstr(err.message, URL) != NULL);
    }
    close(fd);
    lmcs_snapshot_close(snapshot);
    lmcs_snapshot_close(newest);
}

static void test_they_go(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run;
    char path[512];
    struct lmcs_pool *pool = make_run(place, &run, 60000);
    struct lmcs_snapshot *handle = find(pool, 2);
    place_path(place, "from.pool", path);
    OK(lmcs_snapshots_safe(pool, "run", 1, 9, now(pool), URL, &err)); /* without a policy: nothing */
    expect_remote(pool, "");
    OK(lmcs_shelf_set_policy(pool, "run", "keep_raw=2 local=last:5", &err));
    int fd = dump_part(place, pool, "run", "all.archive", &report);
    uint64_t before = pool_info(pool).live_bytes;
    OK(lmcs_snapshots_safe(pool, "run", 1, 9, now(pool), URL, &err));
    expect_remote(pool, "1 2 3 5"); /* 4 has a tag */
    EXPECT(pool_info(pool).live_bytes < before);
    for (uint64_t number = 4; number <= SNAPSHOTS; number += number == 4 ? 2 : 1)
        expect_snapshot(pool, "run", number, run.kept[number]);
    EXPECT(lmcs_snapshot_info(handle)->remote == NULL);
    float one;
    FAILS(LMCS_REMOTE, lmcs_snapshot_read(handle, LMCS_TENSOR, "t0", &one, sizeof one, &err));
    lmcs_snapshot_close(handle);
    expect_refused(place, pool, 2);
    /* They have tags, metrics and notes as others. */
    OK(lmcs_tag_set(pool, "run", "early", 2, &err));
    OK(lmcs_metric_set(pool, "run", 2, "loss", 0.5, &err));
    OK(lmcs_note_set(pool, "run", 2, "early", &err));
    EXPECT(snapshot_tagged(pool, "early") == 2);
    pool = reopen_counted(pool, path);
    expect_remote(pool, "1 2 3 5");
    OK(lmcs_compact(pool, NULL, &err));
    take_more(pool, &run, 10, 14);
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    /* The archive brings one back; later tags and metrics stay. */
    FAILS(LMCS_EXISTS, restore_part(pool, fd, "run@2", "t0", NULL, &report)); /* not in part */
    OK(restore_part(pool, fd, "run@2", NULL, NULL, &report));
    EXPECT(report.snapshots == 1);
    expect_remote(pool, "1 3 5");
    expect_snapshot(pool, "run", 2, run.kept[2]);
    EXPECT(snapshot_tagged(pool, "early") == 2);
    struct lmcs_snapshot *back = find(pool, 2);
    EXPECT(lmcs_snapshot_info(back)->metric_count == 1 && strstr(lmcs_snapshot_info(back)->meta_json, "early") != NULL);
    lmcs_snapshot_close(back);
    OK(restore_part(pool, fd, "run", NULL, NULL, &report));
    expect_remote(pool, "");
    OK(lmcs_compact(pool, NULL, &err));
    expect_numbers(pool, "run", &run, 1, 14);
    close(fd);
    close_pool(pool);
    free_run(&run);
}

/* A snapshot that is younger than the request stays. */
static void test_what_stays(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_transfer_report report;
    struct lmcs_pool *pool = make_run(place, &run, 5000);
    uint64_t epoch = now(pool);
    int fd = dump_part(place, pool, "run@3", "3.archive", &report);
    struct lmcs_removal removal;
    OK(lmcs_shelf_set_policy(pool, "run", "keep_raw=4 local=last:1", &err));
    OK(lmcs_snapshot_remove(pool, "run", 3, false, &removal, &err));
    OK(restore_part(pool, fd, "run", NULL, NULL, &report)); /* another 3, for all that the request knows */
    OK(lmcs_snapshots_safe(pool, "run", 1, 10, epoch, URL, &err));
    expect_remote(pool, "1 2 5 6"); /* 7 to 10 are raw */
    expect_snapshot(pool, "run", 3, run.kept[3]);
    static const char *const bad[] = {"", "no-url", "s3://a b", "s3://a\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        FAILS(LMCS_INVALID, lmcs_snapshots_safe(pool, "run", 1, 9, now(pool), bad[i], &err));
    FAILS(LMCS_INVALID, lmcs_snapshots_safe(pool, "run", 3, 2, now(pool), URL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshots_safe(pool, "run", 1, 99, now(pool), URL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshots_safe(pool, "none", 1, 9, now(pool), URL, &err));
    OK(lmcs_snapshots_safe(pool, "run", 3, 3, now(pool), URL, &err));
    expect_remote(pool, "1 2 3 5 6");
    close(fd);
    close_pool(pool);
    free_run(&run);
}

static void test_removals_and_rules(void **state)
{
    const struct place *place = *state;
    struct run run;
    struct lmcs_removal removal;
    struct lmcs_prune_report pruned;
    struct lmcs_pool *pool = make_run(place, &run, 5000);
    OK(lmcs_shelf_set_policy(pool, "run", "keep_raw=1 local=last:2 grace=none", &err));
    OK(lmcs_snapshots_safe(pool, "run", 1, 10, now(pool), URL, &err));
    expect_remote(pool, "1 2 3 5 6 7 8");
    OK(lmcs_snapshot_remove(pool, "run", 5, false, &removal, &err));
    expect_remote(pool, "1 2 3 6 7 8");
    OK(lmcs_prune(pool, "run", "keep=last:5", false, NULL, NULL, NULL, &pruned, &err));
    expect_remote(pool, "6 7 8");
    /* The newest may be remote; a capture then begins anew. */
    OK(lmcs_snapshot_remove(pool, "run", 9, false, &removal, &err));
    OK(lmcs_snapshot_remove(pool, "run", 10, false, &removal, &err));
    EXPECT(shelf_info(pool, "run").latest == 8);
    take_more(pool, &run, 10, 13);
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    for (uint64_t number = 11; number <= 13; number++)
        expect_snapshot(pool, "run", number, run.kept[number]);
    OK(lmcs_shelf_drop(pool, "run", false, &removal, &err));
    verify_pool(pool);
    EXPECT(pool_info(pool).remote_count == 0);
    close_pool(pool);
    free_run(&run);
}

struct beside {
    const char *path;
    uint64_t last, epoch;
};

static int ask(void *argument)
{
    const struct beside *beside = argument;
    struct lmcs_pool *pool = open_pool(beside->path, LMCS_OPEN_READ, 0);
    OK(lmcs_snapshots_safe(pool, "run", 1, beside->last, beside->epoch, URL, &err));
    close_pool(pool);
    return 0;
}

static void test_beside_a_writer(void **state)
{
    const struct place *place = *state;
    struct run run;
    char path[512];
    struct lmcs_pool *pool = make_run(place, &run, 5000);
    place_path(place, "from.pool", path);
    OK(lmcs_shelf_set_policy(pool, "run", "keep_raw=1 local=last:2", &err));
    struct beside beside = {path, 5, now(pool)};
    EXPECT(run_child(ask, &beside, 60) == 0);
    struct lmcs_capture *capture; /* its base stays, and the request waits for the shelf */
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, run.state);
    OK(lmcs_compact(pool, NULL, &err));
    expect_remote(pool, "");
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    expect_remote(pool, "1 2 3 5");
    close_pool(pool);
    beside = (struct beside){path, 8, UINT64_MAX}; /* no writer: the process is one for a moment */
    EXPECT(run_child(ask, &beside, 60) == 0);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    expect_remote(pool, "1 2 3 5 6 7 8");
    close_pool(pool);
    free_run(&run);
}

static void take_part(struct lmcs_pool *pool, unsigned char group)
{
    struct rng rng = {group};
    struct state *noise = state_of_noise(rng_next(&rng), 50000);
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    lmcs_commit_options_init(&options);
    options.prepare = true;
    memset(options.group, group, sizeof options.group);
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, noise);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    state_free(noise);
}

/* Committed parts of groups go, and are found by their groups. */
static void test_parts_of_groups(void **state)
{
    const struct place *place = *state;
    unsigned char group[16];
    struct lmcs_snapshot *found;
    struct lmcs_pool *pool = open_quiet(place->pool);
    for (unsigned char i = 1; i <= 5; i++) {
        take_part(pool, i);
        memset(group, i, sizeof group);
        if (i != 2)
            OK(lmcs_group_resolve(pool, group, true, &err));
    }
    OK(lmcs_shelf_set_policy(pool, "run", "keep_raw=1 local=last:1", &err));
    OK(lmcs_snapshots_safe(pool, "run", 1, 5, now(pool), URL, &err));
    expect_remote(pool, "1 3 4");
    memset(group, 3, sizeof group);
    OK(lmcs_group_open(pool, "run", group, &found, &err));
    EXPECT(lmcs_snapshot_info(found)->number == 3 && strcmp(lmcs_snapshot_info(found)->remote, URL) == 0);
    lmcs_snapshot_close(found);
    memset(group, 2, sizeof group);
    OK(lmcs_group_open(pool, "run", group, &found, &err));
    EXPECT(lmcs_snapshot_info(found)->remote == NULL);
    lmcs_snapshot_close(found);
    OK(lmcs_group_resolve(pool, group, true, &err));
    OK(lmcs_snapshots_safe(pool, "run", 2, 2, now(pool), URL, &err));
    expect_remote(pool, "1 2 3 4");
    verify_pool(pool);
    close_pool(pool);
}

/* A pool at its limit goes on, since the request makes room before rules do. */
static void test_a_full_pool(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct lmcs_pool *pool = open_limited(place->pool, (uint64_t)24 << 20);
    OK(lmcs_shelf_set_policy(pool, "run", "keep_raw=1 local=last:2", &err));
    uint64_t number = 0;
    for (uint64_t i = 1; i <= 12; i++) {
        struct state *noise = state_of_noise(rng_next(&rng), (uint64_t)4 << 20);
        struct beside beside = {place->pool, number, now(pool)};
        if (number > 0)
            EXPECT(run_child(ask, &beside, 60) == 0);
        number = take_snapshot(pool, "run", noise, (int64_t)i);
        expect_snapshot(pool, "run", number, noise);
        state_free(noise);
    }
    EXPECT(shelf_info(pool, "run").snapshot_count == 12 && shelf_info(pool, "run").remote_count >= 6);
    verify_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(test_they_go),         IN_MEMORY(test_what_stays), IN_MEMORY(test_removals_and_rules),
        ON_DISK(test_beside_a_writer), ON_DISK(test_a_full_pool),  IN_MEMORY(test_parts_of_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
