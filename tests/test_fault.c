/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_fault.c - what goes wrong around us: processes that are killed, disks that are full, memory that there is none
 * of. Nothing that was committed may be lost, nothing half done may be seen, and the pool goes on.
 *
 * Memory: this program's own malloc, calloc, realloc, aligned_alloc, strdup and posix_memalign stand in front of the
 * C library's, and fail the n-th call of the thread that asked for it, once or from then on.
 */
/* ctest: timeout=600 labels=no-asan,no-tsan */
#include "support.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- Failing allocations ---- */

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static _Atomic long allocations_left = -1; /* negative: all succeed */
static _Atomic bool all_further_fail;
static _Atomic long failed_allocations;
static pid_t failing_pid;

static bool fails_now(void)
{
    if (allocations_left < 0)
        return false;
    long left = atomic_fetch_sub(&allocations_left, 1);
    if (left > 0)
        return false;
    if (left < 0 || all_further_fail)
        atomic_store(&allocations_left, all_further_fail ? 0 : -1);
    else
        atomic_store(&allocations_left, -1);
    if (left < 0 && !all_further_fail)
        return false;
    failed_allocations++;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return fails_now() ? NULL : __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : __libc_calloc(count, bytes);
}
void *realloc(void *old, size_t bytes)
{
    return fails_now() ? NULL : __libc_realloc(old, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails_now() ? NULL : __libc_memalign(alignment, bytes);
}

static void fail_allocation(long n, bool all_further)
{
    failing_pid = getpid();
    failed_allocations = 0;
    all_further_fail = all_further;
    atomic_store(&allocations_left, n);
}

static bool allocations_work_again(void)
{
    bool any = failed_allocations > 0;
    atomic_store(&allocations_left, -1);
    return any;
}

/* What follows is not to fail, but whether anything has failed is still to be asked. */
static void no_more_failures(void)
{
    atomic_store(&allocations_left, -1);
}

struct attempt {
    struct place *place;
    struct state *weights;
    struct state *next;
    struct lmcs_pool *pool;
    uint64_t number;
};

static enum lmcs_status attempt_open(struct attempt *a)
{
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    options.flags = LMCS_NO_BACKGROUND;
    options.threads = 2;
    enum lmcs_status status = lmcs_pool_open(a->place->pool, LMCS_OPEN_OR_CREATE, &options, &a->pool, &err);
    if (status == LMCS_OK) {
        no_more_failures();
        close_pool(a->pool);
        a->pool = NULL;
    }
    return status;
}

static enum lmcs_status attempt_read_open(struct attempt *a)
{
    struct lmcs_pool *pool;
    enum lmcs_status status = lmcs_pool_open(a->place->pool, LMCS_OPEN_READ, NULL, &pool, &err);
    if (status == LMCS_OK) {
        no_more_failures();
        close_pool(pool);
    }
    return status;
}

static enum lmcs_status attempt_snapshot(struct attempt *a)
{
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    static const char *const tags[] = {"best"};
    static const struct lmcs_metric metric = {"loss", 2.5};
    struct lmcs_tensor tensors[16];
    const void *data[16];
    lmcs_commit_options_init(&options);
    options.step = 7;
    options.tags = tags;
    options.tag_count = 1;
    options.metrics = &metric;
    options.metric_count = 1;
    options.meta_json = "{\"lr\": 0.1}";
    for (size_t i = 0; i < a->next->count; i++) {
        held_tensor(&a->next->tensors[i], &tensors[i]);
        data[i] = a->next->tensors[i].data;
    }
    enum lmcs_status status = lmcs_capture_begin(a->pool, "run", &capture, &err);
    if (status != LMCS_OK)
        return status;
    status = lmcs_capture_put(capture, tensors, data, a->next->count - 1, &err);
    struct lmcs_tensor *last = &tensors[a->next->count - 1];
    void *reserved;
    if (status == LMCS_OK)
        status = lmcs_capture_reserve(capture, last, &reserved, &err);
    if (status != LMCS_OK) {
        lmcs_capture_abort(capture);
        return status;
    }
    memcpy(reserved, data[a->next->count - 1], a->next->tensors[a->next->count - 1].bytes);
    return lmcs_capture_commit(capture, &options, &a->number, &err);
}

static enum lmcs_status attempt_compact(struct attempt *a)
{
    return lmcs_compact(a->pool, NULL, &err);
}

static enum lmcs_status attempt_remove(struct attempt *a)
{
    return lmcs_snapshot_remove(a->pool, "run", a->number, false, NULL, &err);
}

static enum lmcs_status attempt_read(struct attempt *a)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view = NULL;
    char which[32];
    snprintf(which, sizeof which, "%llu", (unsigned long long)a->number);
    enum lmcs_status status = lmcs_snapshot_find(a->pool, "run", which, &snapshot, &err);
    if (status != LMCS_OK)
        return status;
    status = lmcs_view_open(snapshot, NULL, NULL, 0, LMCS_VIEW_VERIFY, &view, &err);
    struct lmc_hash digest;
    if (status == LMCS_OK)
        status = lmcs_snapshot_digest(snapshot, &digest, &err);
    no_more_failures();
    if (view != NULL)
        lmcs_view_close(view);
    lmcs_snapshot_close(snapshot);
    return status;
}

static enum lmcs_status attempt_verify(struct attempt *a)
{
    return lmcs_verify(a->pool, NULL, NULL, NULL, NULL, NULL, &err);
}

/* Fails the first, the second, ... allocation until the call gets through. */
static void until_it_passes(struct attempt *a, const char *what, enum lmcs_status (*call)(struct attempt *a),
                            bool all_further)
{
    for (long n = 0;; n++) {
        if (n == 20000)
            fail_msg("%s: still failing", what);
        fail_allocation(n, all_further);
        enum lmcs_status status = call(a);
        bool any = allocations_work_again();
        /* Some failures do no harm: then the call has passed all the same. */
        if (status != LMCS_OK && (!any || status != LMCS_NO_MEMORY))
            fail_msg("%s, allocation %ld: %s (%s)", what, n, lmcs_status_name(status), err.message);
        if (a->pool != NULL && (n % 16 == 0 || status == LMCS_OK))
            check_pool(a->pool);
        if (status == LMCS_OK)
            return;
    }
}

static void failed_allocations_do_no_harm(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct attempt a = {.place = place, .weights = state_weights(&rng, 6, 20000)};
    for (int all_further = 0; all_further < 2; all_further++) {
        until_it_passes(&a, "create", attempt_open, all_further != 0);
        a.pool = NULL;
        until_it_passes(&a, "open", attempt_open, all_further != 0);
        a.pool = open_quiet(place->pool);
        for (int i = 0; i < 5; i++) {
            take_snapshot(a.pool, "run", a.weights, i);
            state_step(a.weights, &rng, 0, 6);
        }
        a.next = state_copy(a.weights);
        until_it_passes(&a, "snapshot", attempt_snapshot, all_further != 0);
        expect_snapshot(a.pool, "run", a.number, a.next);
        until_it_passes(&a, "compact", attempt_compact, all_further != 0);
        until_it_passes(&a, "read", attempt_read, all_further != 0);
        uint64_t newest = a.number;
        a.number = newest - 5;
        until_it_passes(&a, "read what is compacted", attempt_read, all_further != 0);
        until_it_passes(&a, "verify", attempt_verify, all_further != 0);
        until_it_passes(&a, "remove", attempt_remove, all_further != 0);
        a.number = newest;
        expect_snapshot(a.pool, "run", newest, a.next);
        verify_pool(a.pool);
        close_pool(a.pool);
        a.pool = NULL;
        until_it_passes(&a, "open for reading", attempt_read_open, all_further != 0);
        state_free(a.next);
    }
    state_free(a.weights);
}

/* ---- Killed ---- */

/* Killed while the pool is made: it is there as a whole, or it is not there. */
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

/* ---- Full disks ---- */

struct volume {
    char folder[300];
    char pool[320];
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
    /* All is there that was acknowledged, and after some pruning it goes on. */
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

/*
 * Snapshots that share all their tensors fill the disk with metadata. Removing them takes pages before it gives some
 * back, so without a reserve nothing could be removed any more; and with the freed pages there is room for new ones.
 */
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

/* Somebody else takes all the space that is left while a trainer works. */
static int work_while_disk_fills(void *argument)
{
    struct volume *volume = argument;
    struct rng rng = {6};
    char hog[340];
    struct state *now = state_weights(&rng, 3, 50000);
    struct lmcs_pool *pool = open_pool(volume->pool, LMCS_OPEN_OR_CREATE, 0);
    uint64_t number, last = take_snapshot(pool, "run", now, 0);
    snprintf(hog, sizeof hog, "%s/hog", volume->folder);
    FILE *file = fopen(hog, "w");
    static char block[1 << 16];
    memset(block, 1, sizeof block);
    while (fwrite(block, 1, sizeof block, file) == sizeof block && fflush(file) == 0)
        ;
    fclose(file);
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
        ON_BOTH(failed_allocations_do_no_harm), ON_BOTH(killed_while_created),  ON_DISK(full_disks_are_errors),
        ON_DISK(metadata_that_fills_a_disk),    ON_DISK(disk_filled_by_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
