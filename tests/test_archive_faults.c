/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_faults.c - restores into full pools, cancelled, killed, and beside others. */
/* ctest: timeout=600 labels=slow,no-tsan */
#include "test_archive_support.h"

#include <stdatomic.h>
#include <sys/syscall.h>

/* Large writes until one fails, and counted from then on; 0: none fails. */
static atomic_uint fail_in;
static atomic_uint large_writes;

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    if (count >= (size_t)64 << 10) {
        atomic_fetch_add(&large_writes, 1);
        unsigned left = atomic_load(&fail_in);
        if (left > 0 && atomic_fetch_sub(&fail_in, 1) == 1) {
            errno = EIO;
            return -1;
        }
    }
    return syscall(SYS_pwrite64, fd, bytes, count, offset);
}

/* One of the large reads fails once; 0: none. */
static atomic_uint fail_read_in;

ssize_t pread(int fd, void *bytes, size_t count, off_t offset)
{
    if (count >= (size_t)64 << 10 && atomic_load(&fail_read_in) > 0 && atomic_fetch_sub(&fail_read_in, 1) == 1) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, bytes, count, offset);
}

/* A block that can't be read once fails the dump: its record has begun. */
static void test_a_failed_read(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run;
    char path[512];
    struct lmcs_pool *from = make_run(place, &run, 700000);
    unsigned n = 1;
    place_path(place, "failed.archive", path);
    for (enum lmcs_status status = LMCS_DAMAGED; status != LMCS_OK; n++) {
        const int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
        EXPECT(fd >= 0);
        atomic_store(&fail_read_in, n);
        status = lmcs_dump(from, NULL, fd, NULL, &report, &err);
        EXPECT((status == LMCS_OK) == (atomic_exchange(&fail_read_in, 0) > 0));
        EXPECT(status == LMCS_OK || status == LMCS_DAMAGED);
        close(fd);
    }
    EXPECT(n > 4);
    close_pool(from);
    free_run(&run);
}

/* A failed write of a piece, also of the last, fails the restore and leaves the pool as it was. */
static void test_failed_writes(void **state)
{
    const struct place *place = *state;
    struct lmcs_transfer_report report;
    struct run run;
    struct lmcs_pool *from = make_run(place, &run, 700000), *to = new_pool(place, "to.pool");
    int fd = dump_file(place, from, NULL, "a.archive", &report);
    struct counters before = counters_of(to);
    atomic_store(&large_writes, 0);
    OK(restore_file(to, fd, &report));
    unsigned writes = atomic_load(&large_writes);
    EXPECT(writes > 10);
    close_pool(to);
    to = new_pool(place, "to.pool");
    for (unsigned n = 1; n <= writes; n = n < 4 ? n + 1 : n < writes - 3 ? writes - 3 : n + 1) {
        atomic_store(&fail_in, n);
        FAILS(LMCS_IO, restore_file(to, fd, &report));
        EXPECT(atomic_load(&fail_in) == 0 && strstr(err.message, "can't write") != NULL);
        expect_unchanged(to, &before);
    }
    OK(restore_file(to, fd, &report));
    expect_same_shelf(from, to, "run");
    verify_pool(to);
    close(fd);
    close_pool(from);
    close_pool(to);
    free_run(&run);
}

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
    EXPECT(report.contents_found > 0);
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

/* Removes the archive's contents once in each attempt of a restore that has found them. */
struct rival {
    struct lmcs_pool *pool;
    const struct state *state;
    unsigned times;
    unsigned removals;
    uint64_t number;
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

/* A file is read again, in the end without sharing; a pipe can't be. */
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
            assert_non_null(strstr(err.message, "restore again"));
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

/* Removes a content that serves the archive only as a base, after the restore has found it. */
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

static void test_base_has_gone(void **state)
{
    static const char *const addresses[] = {"rival@1", "rival@3"};
    const struct place *place = *state;
    struct rng rng = {43};
    struct lmcs_pool *pool = new_pool(place, "from.pool"), *acts = pool;
    struct state *weights = state_weights(&rng, 2, 1500000), *kept[4] = {NULL};
    OK(lmcs_shelf_set_policy(pool, "rival", "keep_raw=1 links=off", &err));
    for (int64_t step = 1; step <= 3; step++) {
        memset(weights->tensors[0].data, (int)step, 1000);
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
    FAILS(LMCS_IO, lmcs_restore(from, ends[1], NULL, &report, &err));
    sigaction(SIGPIPE, &before, NULL);
    close(full);
    close(ends[1]);
    close_pool(from);
    free_run(&run);
}

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
    EXPECT(pthread_timedjoin_np(thread, NULL, &until) == 0);
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

/* A restore waits for a capture, unless the capture's thread wants the restore's shelf. */
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
        ON_DISK(test_full_pool),
        ON_DISK(test_a_failed_read),
        ON_DISK(test_failed_writes),
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
