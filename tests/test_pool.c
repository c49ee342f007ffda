/* SPDX-License-Identifier: BSD-3-Clause */
/* test_pool.c - creation, opening, one writing process at a time, and limits. */
#include "test_pool_support.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void modes(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool;
    FAILS(LMCS_NOT_FOUND, try_open(place->pool, LMCS_OPEN_READ, 0, &pool));
    FAILS(LMCS_NOT_FOUND, try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
    assert_int_equal(access(place->pool, F_OK), -1);
    OK(try_open(place->pool, LMCS_OPEN_CREATE, 0, &pool));
    assert_true(pool_info(pool).writable);
    FAILS(LMCS_EXISTS, lmcs_pool_open(place->pool, LMCS_OPEN_CREATE, NULL, &pool, &err));
    close_pool(pool);
    FAILS(LMCS_EXISTS, try_open(place->pool, LMCS_OPEN_CREATE, 0, &pool));
    OK(try_open(place->pool, LMCS_OPEN_OR_CREATE, 0, &pool));
    close_pool(pool);
    OK(try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
    close_pool(pool);
    OK(try_open(place->pool, LMCS_OPEN_READ, 0, &pool));
    assert_false(pool_info(pool).writable);
    struct lmcs_capture *capture;
    FAILS(LMCS_READ_ONLY, lmcs_capture_begin(pool, "run", &capture, &err));
    FAILS(LMCS_READ_ONLY, lmcs_pool_set_limit(pool, 0, &err));
    check_pool(pool);
    close_pool(pool);
}

static void new_file_is_private_sparse_and_alone(void **state)
{
    struct place *place = *state;
    mode_t old = umask(0);
    struct lmcs_pool *pool = open_quiet(place->pool);
    umask(old);
    struct stat st;
    assert_int_equal(stat(place->pool, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_true(st.st_size >= (off_t)1 << 30);
    assert_true(disk_bytes(place->pool) < (uint64_t)8 << 20);
    close_pool(pool);
    char command[512];
    snprintf(command, sizeof command, "test \"$(ls -A %s)\" = a.pool", place->folder);
    assert_int_equal(system(command), 0);
}

static void no_folder(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool;
    char path[512];
    place_path(place, "nowhere", path);
    strcat(path, "/a.pool");
    FAILS(LMCS_NOT_FOUND, try_open(path, LMCS_OPEN_OR_CREATE, 0, &pool));
}

static void same_pool_twice_in_a_process(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct state *weights = state_weights(&rng, 2, 100);
    char other[512];
    place_path(place, "link.pool", other);
    struct lmcs_pool *first = open_quiet(place->pool);
    assert_int_equal(symlink(place->pool, other), 0);
    struct lmcs_pool *second = open_quiet(other), *third = open_pool(place->pool, LMCS_OPEN_READ, 0);
    assert_ptr_equal(first, second);
    assert_ptr_equal(first, third);
    take_snapshot(second, "run", weights, 1);
    close_pool(second);
    close_pool(third);
    expect_state(first, "run", "latest", weights);
    close_pool(first);
    first = open_quiet(place->pool);
    expect_state(first, "run", "latest", weights);
    close_pool(first);
    state_free(weights);
}

static void reopened(void **state)
{
    struct place *place = *state;
    struct rng rng = {2};
    struct state *weights = state_mixed(&rng, 40, 3000);
    unsigned char uuid[16];
    for (int i = 0; i < 5; i++) {
        struct lmcs_pool *pool = open_quiet(place->pool);
        struct lmcs_pool_info info = pool_info(pool);
        if (i == 0)
            memcpy(uuid, info.uuid, sizeof uuid);
        assert_memory_equal(uuid, info.uuid, sizeof uuid);
        assert_int_equal(info.snapshot_count, i);
        assert_int_equal(take_snapshot(pool, "run", weights, i), i + 1);
        check_pool(pool);
        close_pool(pool);
    }
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    for (int i = 1; i <= 5; i++)
        expect_snapshot(pool, "run", (uint64_t)i, weights);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

struct shared {
    volatile int stage;
    volatile int pid;
};

static struct shared *share(void)
{
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    return shared;
}

static void wait_stage(struct shared *shared, int stage)
{
    for (int i = 0; i < 250000 && shared->stage < stage; i++)
        usleep(1000);
    EXPECT(shared->stage >= stage);
}

struct holder {
    const char *path;
    struct shared *shared;
};

static int hold(void *argument)
{
    struct holder *holder = argument;
    struct lmcs_pool *pool = open_quiet(holder->path);
    holder->shared->stage = 1;
    wait_stage(holder->shared, 2);
    close_pool(pool);
    return 0;
}

static void in_use_by_another_process(void **state)
{
    struct place *place = *state;
    struct holder holder = {place->pool, share()};
    struct lmcs_pool *pool;
    pid_t child = start_child(hold, &holder);
    wait_stage(holder.shared, 1);
    double start = now();
    FAILS(LMCS_IN_USE, try_open(place->pool, LMCS_OPEN_OR_CREATE, 300, &pool));
    assert_true(now() - start >= 0.25);
    char pid[32];
    snprintf(pid, sizeof pid, "%d", (int)child);
    if (strstr(err.message, pid) == NULL)
        fail_msg("the message does not name the holder: %s", err.message);
    OK(try_open(place->pool, LMCS_OPEN_READ, 0, &pool));
    check_pool(pool);
    close_pool(pool);
    holder.shared->stage = 2;
    OK(try_open(place->pool, LMCS_OPEN_WRITE, 10000, &pool));
    close_pool(pool);
    expect_child(child);
    munmap(holder.shared, sizeof *holder.shared);
}

static int write_until_told(void *argument)
{
    struct holder *holder = argument;
    struct rng rng = {4};
    struct state *weights = state_weights(&rng, 3, 20000);
    struct lmcs_pool *pool = open_quiet(holder->path);
    for (int64_t step = 0; holder->shared->stage < 2; step++) {
        for (size_t i = 0; i < weights->count; i++)
            rng_fill(&rng, weights->tensors[i].data, weights->tensors[i].bytes);
        uint64_t number = take_snapshot(pool, "run", weights, step);
        if (number > 1000)
            OK(lmcs_snapshot_remove(pool, "run", number - 1000, false, NULL, &err));
        if (holder->shared->stage == 0)
            holder->shared->stage = 1;
    }
    state_free(weights);
    close_pool(pool);
    return 0;
}

/* Changes during a check are no damage: a second writer gets the error that the pool is in use. */
static void in_use_by_a_busy_process(void **state)
{
    struct place *place = *state;
    struct holder holder = {place->pool, share()};
    struct lmcs_pool *pool;
    pid_t child = start_child(write_until_told, &holder);
    wait_stage(holder.shared, 1);
    for (uint64_t i = 0; i < scaled("LMCS_TEST_OPENS", 500); i++)
        FAILS(LMCS_IN_USE, try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
    holder.shared->stage = 2;
    expect_child(child);
    munmap(holder.shared, sizeof *holder.shared);
}

/* A kill leaves libpmemobj's log as it was, with any capacity. */
static void log_that_was_cut_short(void **state)
{
    struct place *place = *state;
    static const uint64_t capacities[] = {0, 64, 128, 192, 576, 640};
    for (size_t i = 0; i < sizeof capacities / sizeof capacities[0]; i++) {
        uint64_t lanes = 0;
        close_pool(open_quiet(place->pool));
        int fd = open(place->pool, O_RDWR | O_CLOEXEC);
        EXPECT(fd >= 0 && pread(fd, &lanes, sizeof lanes, 5120) == sizeof lanes);
        EXPECT(pwrite(fd, &capacities[i], sizeof capacities[i], (off_t)lanes + 256 + 16) == sizeof capacities[i]);
        close(fd);
        struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
        check_pool(pool);
        close_pool(pool);
    }
}

static int fork_and_outlive(void *argument)
{
    struct holder *holder = argument;
    struct rng rng = {3};
    struct state *weights = state_weights(&rng, 3, 1000);
    struct lmcs_pool *pool = open_pool(holder->path, LMCS_OPEN_OR_CREATE, 0);
    take_snapshot(pool, "run", weights, 1);
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    OK(lmcs_snapshot_find(pool, "run", NULL, &snapshot, &err));
    OK(lmcs_view_open(snapshot, NULL, NULL, 0, 0, &view, &err));
    pid_t child = fork();
    if (child == 0) {
        holder->shared->pid = getpid();
        pause();
        _exit(0);
    }
    while (holder->shared->pid == 0)
        usleep(1000);
    holder->shared->stage = 1;
    pause();
    return 0;
}

static void killed_parent_with_a_child_alive(void **state)
{
    struct place *place = *state;
    struct holder holder = {place->pool, share()};
    struct lmcs_pool *pool;
    int status;
    pid_t parent = start_child(fork_and_outlive, &holder);
    wait_stage(holder.shared, 1);
    FAILS(LMCS_IN_USE, try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
    kill(parent, SIGKILL);
    assert_int_equal(waitpid(parent, &status, 0), parent);
    assert_int_equal(kill(holder.shared->pid, 0), 0);
    OK(try_open(place->pool, LMCS_OPEN_WRITE, 60000, &pool));
    check_pool(pool);
    close_pool(pool);
    kill(holder.shared->pid, SIGKILL);
    munmap(holder.shared, sizeof *holder.shared);
}

static int use_parents_pool(void *argument)
{
    struct lmcs_pool *pool = argument;
    struct lmcs_capture *capture;
    struct lmcs_pool_info info;
    struct lmcs_snapshot *snapshot;
    FAILS(LMCS_INVALID, lmcs_capture_begin(pool, "run", &capture, &err));
    FAILS(LMCS_INVALID, lmcs_pool_info(pool, &info, &err));
    FAILS(LMCS_INVALID, lmcs_snapshot_find(pool, "run", NULL, &snapshot, &err));
    FAILS(LMCS_INVALID, lmcs_compact(pool, NULL, &err));
    FAILS(LMCS_INVALID, lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &err));
    (void)lmcs_pool_close(pool, &err);
    return 0;
}

static void forked_child_cannot_use_it(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    struct state *weights = state_weights(&rng, 3, 1000);
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_OR_CREATE, 0);
    take_snapshot(pool, "run", weights, 1);
    int status = run_child(use_parents_pool, pool, 20);
    assert_int_equal(status, 0);
    take_snapshot(pool, "run", weights, 2);
    expect_state(pool, "run", "latest", weights);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

static int read_in_child(void *argument)
{
    struct place *place = argument;
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_find(pool, "run", NULL, &snapshot, &err));
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
    return 0;
}

static void forked_child_opens_it_anew_for_reading(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct state *weights = state_weights(&rng, 3, 1000);
    struct lmcs_pool *pool = open_pool(place->pool, LMCS_OPEN_OR_CREATE, 0);
    take_snapshot(pool, "run", weights, 1);
    assert_int_equal(run_child(read_in_child, place, 20), 0);
    close_pool(pool);
    state_free(weights);
}

static void *open_what_is_in_use(void *argument)
{
    struct place *place = argument;
    struct lmcs_pool *pool;
    FAILS(LMCS_IN_USE, try_open(place->pool, LMCS_OPEN_WRITE, 1500, &pool));
    return NULL;
}

/* The parent holds locks of the process during an opening; the child has no pool. */
static void forked_child_of_one_that_opens_a_pool(void **state)
{
    struct place *place = *state, beside = *place;
    struct holder holder = {place->pool, share()};
    struct rng rng = {5};
    struct state *weights = state_weights(&rng, 3, 1000);
    pthread_t thread;
    snprintf(beside.pool, sizeof beside.pool, "%s/other.pool", place->folder);
    struct lmcs_pool *pool = open_pool(beside.pool, LMCS_OPEN_OR_CREATE, 0);
    take_snapshot(pool, "run", weights, 1);
    pid_t child = start_child(hold, &holder);
    wait_stage(holder.shared, 1);
    assert_int_equal(pthread_create(&thread, NULL, open_what_is_in_use, place), 0);
    usleep(50000);
    for (int i = 0; i < 4; i++)
        assert_int_equal(run_child(read_in_child, &beside, 20), 0);
    pthread_join(thread, NULL);
    holder.shared->stage = 2;
    expect_child(child);
    munmap(holder.shared, sizeof *holder.shared);
    close_pool(pool);
    state_free(weights);
}

static void limit_is_kept_and_can_be_changed(void **state)
{
    struct place *place = *state;
    struct rng rng = {6};
    struct lmcs_open_options options;
    struct lmcs_pool *pool;
    lmcs_open_options_init(&options);
    options.limit_bytes = LMCS_MIN_POOL_BYTES - 1;
    FAILS(LMCS_INVALID, lmcs_pool_open(place->pool, LMCS_OPEN_OR_CREATE, &options, &pool, &err));
    uint64_t limit = (uint64_t)16 << 20;
    pool = open_limited(place->pool, limit);
    struct state *weights = state_weights(&rng, 4, 1 << 18);
    uint64_t number, taken = 0;
    for (;;) {
        enum lmcs_status status = try_snapshot(pool, "run", weights, 0, &number, &err);
        check_pool(pool);
        if (status != LMCS_OK)
            break;
        taken++;
        assert_true(taken <= 6);
        for (size_t i = 0; i < weights->count; i++)
            rng_fill(&rng, weights->tensors[i].data, weights->tensors[i].bytes);
    }
    assert_int_equal(err.status, LMCS_FULL);
    assert_true(err.bytes_needed > 0);
    assert_true(taken >= 2);
    assert_true(pool_info(pool).used_bytes <= limit);
    assert_true(disk_bytes(place->pool) <= limit + ((uint64_t)5 << 20));
    FAILS(LMCS_INVALID, lmcs_pool_set_limit(pool, LMCS_MIN_POOL_BYTES, &err));
    OK(lmcs_pool_set_limit(pool, 2 * limit, &err));
    number = take_snapshot(pool, "run", weights, 0);
    expect_snapshot(pool, "run", number, weights);
    close_pool(pool);
    pool = open_quiet(place->pool);
    assert_int_equal(pool_info(pool).limit_bytes, 2 * limit);
    /* The file's addresses: 8 times the first limit, and 16 GiB at least. */
    FAILS(LMCS_INVALID, lmcs_pool_set_limit(pool, (uint64_t)1 << 40, &err));
    assert_non_null(strstr(err.message, "'lmc-store restore' it into a new pool"));
    OK(lmcs_pool_set_limit(pool, (uint64_t)14 << 30, &err));
    OK(lmcs_pool_set_limit(pool, 0, &err));
    assert_true(pool_info(pool).free_bytes < (uint64_t)16 << 30);
    assert_int_equal(pool_info(pool).limit_bytes, 0);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

static void info_adds_up(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct state *weights = state_weights(&rng, 4, 1 << 16);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_pool_info info = pool_info(pool);
    assert_int_equal(info.snapshot_count, 0);
    assert_int_equal(info.shelf_count, 0);
    assert_int_equal(info.content_count, 0);
    assert_int_equal(info.last_snapshot_bytes, 0);
    assert_true(info.snapshots_that_fit == UINT64_MAX);
    take_snapshot(pool, "a", weights, 1);
    take_snapshot(pool, "b", weights, 1);
    info = pool_info(pool);
    assert_int_equal(info.snapshot_count, 2);
    assert_int_equal(info.shelf_count, 2);
    assert_int_equal(info.content_count, 8);
    assert_int_equal(info.last_snapshot_bytes, 4u << 18);
    assert_true(info.live_bytes >= 8u << 18);
    assert_true(info.used_bytes >= info.live_bytes);
    assert_true(info.free_bytes > 0);
    assert_true(info.snapshots_that_fit <= info.free_bytes / (4u << 18));
    assert_int_equal(info.format_version, LMCS_FORMAT_VERSION);
    assert_string_equal(info.path, place->pool);
    close_pool(pool);
    state_free(weights);
}

static void refused_in_all_modes(const char *path, enum lmcs_status expected)
{
    struct lmcs_pool *pool;
    FAILS(expected, try_open(path, LMCS_OPEN_READ, 0, &pool));
    FAILS(expected, try_open(path, LMCS_OPEN_WRITE, 0, &pool));
    FAILS(expected, try_open(path, LMCS_OPEN_OR_CREATE, 0, &pool));
    assert_true(strlen(err.message) > 0);
}

static void foreign_files(void **state)
{
    struct place *place = *state;
    unsigned char noise[70000];
    struct rng rng = {8};
    char path[512];
    write_bytes(place->pool, "", 0);
    refused_in_all_modes(place->pool, LMCS_DAMAGED);
    write_bytes(place->pool, "hello", 5);
    refused_in_all_modes(place->pool, LMCS_DAMAGED);
    rng_fill(&rng, noise, sizeof noise);
    write_bytes(place->pool, noise, sizeof noise);
    refused_in_all_modes(place->pool, LMCS_DAMAGED);
    int fd = open(place->pool, O_RDONLY);
    unsigned char again[sizeof noise];
    assert_int_equal(read(fd, again, sizeof again), sizeof again);
    assert_memory_equal(noise, again, sizeof again);
    close(fd);
    unlink(place->pool);
    place_path(place, "folder", path);
    assert_int_equal(mkdir(path, 0700), 0);
    refused_in_all_modes(path, LMCS_INVALID);
    assert_int_equal(mkfifo(place->pool, 0600), 0);
    refused_in_all_modes(place->pool, LMCS_INVALID);
}

static void unreadable_file(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool;
    close_pool(open_quiet(place->pool));
    if (geteuid() == 0)
        skip();
    assert_int_equal(chmod(place->pool, 0400), 0);
    FAILS(LMCS_READ_ONLY, try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
    OK(try_open(place->pool, LMCS_OPEN_READ, 0, &pool));
    close_pool(pool);
}

static void change_superblock(const char *path, void (*change)(struct lmcs_superblock_df *super))
{
    struct lmcs_media *media;
    struct lmcs_superblock_df super;
    OK(lmcs_media_open(path, &media, &err));
    uint64_t at = lmcs_media_superblock(media);
    OK(lmcs_media_read(media, at, &super, sizeof super, &err));
    lmcs_media_release(media);
    change(&super);
    super.check = lmc_hash64(&super, offsetof(struct lmcs_superblock_df, check), 0);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, &super, sizeof super, (off_t)at), sizeof super);
    close(fd);
}

static void newer_version(struct lmcs_superblock_df *super)
{
    super->version = LMCS_FORMAT_VERSION + 1;
}

static void unknown_feature(struct lmcs_superblock_df *super)
{
    super->incompatible = 1;
}

static void harmless_feature(struct lmcs_superblock_df *super)
{
    super->compatible = 1;
}

static void feature_for_reading(struct lmcs_superblock_df *super)
{
    super->read_only_compatible = 4;
}

static void no_feature(struct lmcs_superblock_df *super)
{
    super->version = LMCS_FORMAT_VERSION;
    super->compatible = super->incompatible = super->read_only_compatible = 0;
}

static void pools_of_newer_versions(void **state)
{
    struct place *place = *state;
    struct rng rng = {9};
    struct state *weights = state_weights(&rng, 2, 1000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    close_pool(pool);
    change_superblock(place->pool, newer_version);
    refused_in_all_modes(place->pool, LMCS_UNSUPPORTED);
    change_superblock(place->pool, no_feature);
    change_superblock(place->pool, unknown_feature);
    refused_in_all_modes(place->pool, LMCS_UNSUPPORTED);
    change_superblock(place->pool, no_feature);
    change_superblock(place->pool, feature_for_reading);
    FAILS(LMCS_UNSUPPORTED, try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
    OK(try_open(place->pool, LMCS_OPEN_READ, 0, &pool));
    expect_state(pool, "run", "latest", weights);
    close_pool(pool);
    change_superblock(place->pool, no_feature);
    change_superblock(place->pool, harmless_feature);
    OK(try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
    expect_state(pool, "run", "latest", weights);
    close_pool(pool);
    state_free(weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(modes),
        ON_BOTH(new_file_is_private_sparse_and_alone),
        ON_DISK(no_folder),
        ON_BOTH(same_pool_twice_in_a_process),
        ON_BOTH(reopened),
        ON_BOTH(in_use_by_another_process),
        ON_BOTH(in_use_by_a_busy_process),
        ON_BOTH(log_that_was_cut_short),
        ON_BOTH(killed_parent_with_a_child_alive),
        ON_BOTH(forked_child_cannot_use_it),
        ON_DISK(forked_child_opens_it_anew_for_reading),
        ON_DISK(forked_child_of_one_that_opens_a_pool),
        ON_BOTH(limit_is_kept_and_can_be_changed),
        ON_BOTH(info_adds_up),
        ON_DISK(foreign_files),
        ON_DISK(unreadable_file),
        ON_DISK(pools_of_newer_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
