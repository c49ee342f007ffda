/* SPDX-License-Identifier: BSD-3-Clause */
/* test_fault.c - killed creation and full disks: committed data stay, incomplete data are invisible. */
/* ctest: timeout=600 labels=no-asan,no-tsan */
#include "test_live_support.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool has_quota; /* smaller than the disk's free space */

/* Visible to shared libraries. */
#pragma GCC visibility push(default)
int fstatvfs(int fd, struct statvfs *fs)
{
    static int (*real)(int, struct statvfs *);
    if (real == NULL)
        real = (int (*)(int, struct statvfs *))dlsym(RTLD_NEXT, "fstatvfs");
    int result = real(fd, fs);
    if (result == 0 && has_quota)
        fs->f_bavail = ((uint64_t)4 << 30) / fs->f_frsize;
    return result;
}
#pragma GCC visibility pop

static int make_pool(void *argument)
{
    close_pool(open_quiet(argument));
    return 0;
}

static void killed_while_created(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    for (int round = 0; round < 40; round++) {
        unlink(place->pool);
        pid_t child = start_child(make_pool, place->pool);
        usleep((useconds_t)rng_below(&rng, round < 20 ? 4000 : 30000));
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        struct lmcs_pool *pool;
        enum lmcs_status opened = lmcs_pool_open(place->pool, LMCS_OPEN_WRITE, NULL, &pool, &err);
        if (opened == LMCS_OK) {
            check_pool(pool);
            close_pool(pool);
        } else {
            FAILS(LMCS_NOT_FOUND, opened);
            close_pool(open_quiet(place->pool));
        }
    }
}

struct volume {
    char folder[300];
    char pool[320];
    const char *of; /* a pool to copy */
};

static bool mount_volume(struct place *place, const char *size, struct volume *volume)
{
    char options[64];
    snprintf(volume->folder, sizeof volume->folder, "%s/disk", place->folder);
    snprintf(volume->pool, sizeof volume->pool, "%s/a.pool", volume->folder);
    snprintf(options, sizeof options, "size=%s", size);
    if (mkdir(volume->folder, 0700) != 0)
        return false;
    return mount("tmpfs", volume->folder, "tmpfs", 0, options) == 0;
}

static int fill_disk(void *argument)
{
    struct volume *volume = argument;
    struct rng rng = {5};
    struct lmcs_pool *pool = NULL;
    enum lmcs_status opened = lmcs_pool_open(volume->pool, LMCS_OPEN_OR_CREATE, NULL, &pool, &err);
    EXPECT(opened == LMCS_OK || opened == LMCS_FULL);
    if (opened == LMCS_FULL) {
        EXPECT(access(volume->pool, F_OK) != 0);
        return 0;
    }
    struct state *states[64];
    uint64_t taken = 0, number;
    struct state *now = state_weights(&rng, 5, 20000);
    for (;;) {
        for (size_t i = 0; i < now->count; i++)
            rng_fill(&rng, now->tensors[i].data, now->tensors[i].bytes);
        enum lmcs_status status = try_snapshot(pool, "run", now, 0, &number, &err);
        check_pool(pool);
        if (status != LMCS_OK)
            break;
        EXPECT(number == taken + 1 && taken < 63 * 8);
        if (taken < 64)
            states[taken] = state_copy(now);
        taken++;
        if (taken == 64)
            break;
    }
    if (taken < 64) {
        EXPECT(err.status == LMCS_FULL);
        EXPECT(err.bytes_needed > 0);
    }
    for (uint64_t n = 1; n <= taken; n++)
        expect_snapshot(pool, "run", n, states[n - 1]);
    for (uint64_t n = 1; n + 1 <= taken; n++) {
        struct lmcs_removal removal;
        OK(lmcs_snapshot_remove(pool, "run", n, false, &removal, &err));
        check_pool(pool);
    }
    for (int i = 0; i < 3 && taken > 2; i++) {
        OK(try_snapshot(pool, "run", now, 1, &number, &err));
        expect_state(pool, "run", "latest", now);
    }
    verify_pool(pool);
    close_pool(pool);
    pool = open_pool(volume->pool, LMCS_OPEN_WRITE, 0);
    verify_pool(pool);
    close_pool(pool);
    return 0;
}

static void full_disks_are_errors(void **state)
{
    static const char *const sizes[] = {"1m", "3800k", "4200k", "8m", "9m", "16m", "64m"};
    struct place *place = *state;
    if (geteuid() != 0)
        skip();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct volume volume;
        if (!mount_volume(place, sizes[i], &volume)) {
            rmdir(volume.folder);
            skip();
        }
        int status = run_child(fill_disk, &volume, 120);
        umount2(volume.folder, MNT_DETACH);
        rmdir(volume.folder);
        if (status != 0)
            fail_msg("on a disk of %s: status %x", sizes[i], (unsigned)status);
    }
}

static void fill_volume(const struct volume *volume)
{
    static const char block[4096] = {1};
    char hog[340];
    snprintf(hog, sizeof hog, "%s/hog", volume->folder);
    int fd = open(hog, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    while (write(fd, block, sizeof block) > 0)
        ;
    close(fd);
}

/* The extent of a large tensor: its header is the first store to a hole. */
static int capture_on_used_up_quota(void *argument)
{
    struct volume *volume = argument;
    struct rng rng = {8};
    struct state *small = state_weights(&rng, 3, 5000), *large = state_weights(&rng, 1, 1 << 20);
    struct lmcs_pool *pool = open_pool(volume->pool, LMCS_OPEN_OR_CREATE, LMCS_NO_BACKGROUND);
    uint64_t number = take_snapshot(pool, "run", small, 0);
    fill_volume(volume);
    has_quota = true;
    FAILS(LMCS_FULL, try_snapshot(pool, "run", large, 1, &number, &err));
    expect_state(pool, "run", "latest", small);
    close_pool(pool);
    return 0;
}

static void used_up_quotas_are_errors(void **state)
{
    struct place *place = *state;
    struct volume volume;
    if (geteuid() != 0 || !mount_volume(place, "12m", &volume))
        skip();
    int status = run_child(capture_on_used_up_quota, &volume, 60);
    umount2(volume.folder, MNT_DETACH);
    rmdir(volume.folder);
    assert_int_equal(status, 0);
}

static void punch_zeros(const char *path, off_t bytes)
{
    static const char zeros[4096];
    char page[sizeof zeros];
    int fd = open(path, O_RDWR | O_CLOEXEC);
    for (off_t at = 0; at < bytes; at += (off_t)sizeof zeros)
        if (pread(fd, page, sizeof page, at) == (ssize_t)sizeof page && memcmp(page, zeros, sizeof page) == 0)
            EXPECT(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, (off_t)sizeof zeros) == 0);
    close(fd);
}

static int open_copy_on_full_disk(void *argument)
{
    struct volume *volume = argument;
    struct lmcs_pool *pool;
    copy_file(volume->of, volume->pool);
    punch_zeros(volume->pool, 64 << 20);
    EXPECT(mount(NULL, volume->folder, NULL, MS_REMOUNT, "size=3500k") == 0);
    FAILS(LMCS_FULL, lmcs_pool_open(volume->pool, LMCS_OPEN_WRITE, NULL, &pool, &err));
    EXPECT(mount(NULL, volume->folder, NULL, MS_REMOUNT, "size=8m") == 0);
    pool = open_pool(volume->pool, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
    struct lmcs_live *zeros;
    FAILS(LMCS_FULL, lmcs_live_open(pool, "run", "zeros", &zeros, &err));
    EXPECT(mount(NULL, volume->folder, NULL, MS_REMOUNT, "size=16m") == 0);
    OK(lmcs_live_open(pool, "run", "zeros", &zeros, &err));
    fill_volume(volume);
    memset(lmcs_live_data(zeros), 1, (size_t)8 << 20);
    lmcs_live_close(zeros);
    verify_pool(pool);
    close_pool(pool);
    return 0;
}

/* As 'cp --sparse=always' makes them: parts to which libpmemobj stores without asking are holes. */
static void copies_with_holes(void **state)
{
    struct place *place = *state;
    struct volume volume;
    if (geteuid() != 0 || !mount_volume(place, "16m", &volume))
        skip();
    struct lmcs_pool *pool = open_limited(place->pool, (uint64_t)64 << 20);
    lmcs_live_close(new_tensor(pool, "zeros", 2 << 20));
    close_pool(pool);
    volume.of = place->pool;
    int status = run_child(open_copy_on_full_disk, &volume, 60);
    umount2(volume.folder, MNT_DETACH);
    rmdir(volume.folder);
    assert_int_equal(status, 0);
}

/* Snapshots that share all tensors fill the disk with metadata. Removal takes pages before it frees some, so it needs a
 * reserve; the freed pages have room for new snapshots. */
static int fill_disk_with_metadata(void *argument)
{
    struct volume *volume = argument;
    struct rng rng = {7};
    struct lmcs_pool *pool = open_pool(volume->pool, LMCS_OPEN_OR_CREATE, LMCS_NO_BACKGROUND);
    struct state *state = state_weights(&rng, 12, 9000);
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    uint64_t taken = 0;
    char meta[1101];
    memset(meta, 'x', sizeof meta - 1);
    memcpy(meta, "{\"note\":\"", 9);
    memcpy(meta + sizeof meta - 3, "\"}", 3);
    lmcs_commit_options_init(&options);
    options.meta_json = meta;
    for (enum lmcs_status status = LMCS_OK; status == LMCS_OK; taken += status == LMCS_OK) {
        EXPECT(taken < 100000);
        options.step = (int64_t)taken;
        status = lmcs_capture_begin(pool, "run", &capture, &err);
        if (status != LMCS_OK)
            break;
        put_state(capture, state);
        status = lmcs_capture_commit(capture, &options, NULL, &err);
    }
    EXPECT(err.status == LMCS_FULL && taken > 100);
    check_pool(pool);
    for (uint64_t n = taken / 2; n < taken / 2 + 100; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    check_pool(pool);
    expect_snapshot(pool, "run", taken, state);
    options.step = 0;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, state);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    close_pool(pool);
    state_free(state);
    return 0;
}

static void metadata_that_fills_a_disk(void **state)
{
    static const char *const sizes[] = {"6m", "12m", "13m"};
    struct place *place = *state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct volume volume;
        if (geteuid() != 0 || !mount_volume(place, sizes[i], &volume))
            skip();
        int status = run_child(fill_disk_with_metadata, &volume, 120);
        umount2(volume.folder, MNT_DETACH);
        rmdir(volume.folder);
        if (status != 0)
            fail_msg("on a disk of %s: status %x", sizes[i], (unsigned)status);
    }
}

static int work_while_disk_fills(void *argument)
{
    struct volume *volume = argument;
    struct rng rng = {6};
    char hog[340];
    struct state *now = state_weights(&rng, 3, 50000);
    struct lmcs_pool *pool = open_pool(volume->pool, LMCS_OPEN_OR_CREATE, 0);
    uint64_t number, last = take_snapshot(pool, "run", now, 0);
    snprintf(hog, sizeof hog, "%s/hog", volume->folder);
    fill_volume(volume);
    for (int i = 0; i < 40; i++) {
        struct state *old = state_copy(now);
        state_step(now, &rng, 0, 3);
        enum lmcs_status status = try_snapshot(pool, "run", now, i, &number, &err);
        check_pool(pool);
        if (status == LMCS_OK) {
            last = number;
            state_free(old);
            continue;
        }
        EXPECT(status == LMCS_FULL);
        state_free(now);
        now = old;
        expect_snapshot(pool, "run", last, now);
        if (i == 30)
            unlink(hog);
    }
    OK(try_snapshot(pool, "run", now, 99, &number, &err));
    verify_pool(pool);
    close_pool(pool);
    return 0;
}

static void disk_filled_by_others(void **state)
{
    struct place *place = *state;
    struct volume volume;
    if (geteuid() != 0 || !mount_volume(place, "24m", &volume))
        skip();
    int status = run_child(work_while_disk_fills, &volume, 120);
    umount2(volume.folder, MNT_DETACH);
    rmdir(volume.folder);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(killed_while_created), ON_DISK(full_disks_are_errors),      ON_DISK(used_up_quotas_are_errors),
        ON_DISK(copies_with_holes),    ON_DISK(metadata_that_fills_a_disk), ON_DISK(disk_filled_by_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
