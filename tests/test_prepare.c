/* SPDX-License-Identifier: BSD-3-Clause */
/* test_prepare.c - space prepared for the next capture, taken, limited and given back. */
/* ctest: labels=no-tsan */
#include "support.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pages/extents.h"
#include "pages/pool.h"
#include "pages/space.h"

#define MIB     ((uint64_t)1 << 20)
#define TENSORS 20
#define BYTES   900000 /* of a tensor: two fit an extent, and leave a gap */
#define CAPTURE (TENSORS * (uint64_t)BYTES)

static uint64_t disk_left; /* 0: as it is */

/* Visible to shared libraries. */
#pragma GCC visibility push(default)
int fstatvfs(int fd, struct statvfs *fs)
{
    static int (*real)(int, struct statvfs *);
    if (real == NULL)
        real = (int (*)(int, struct statvfs *))dlsym(RTLD_NEXT, "fstatvfs");
    int result = real(fd, fs);
    if (result == 0 && disk_left > 0)
        fs->f_bavail = disk_left / fs->f_frsize;
    return result;
}
#pragma GCC visibility pop

static bool always(void *context)
{
    (void)context;
    return true;
}

/* As the background thread does, in this thread. */
static void prepare(struct lmcs_pool *pool)
{
    OK(lmcs_space_prepare(pool, always, NULL, &err));
}

static struct state *new_state(uint64_t seed, size_t count, uint64_t bytes)
{
    struct rng rng = {seed};
    struct state *state = calloc(1, sizeof *state);
    for (size_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%zu", i);
        rng_fill(&rng, state_add(state, name, LMC_U8, 1, &bytes)->data, bytes);
    }
    return state;
}

static uint64_t take_new(struct lmcs_pool *pool, uint64_t seed, size_t count, uint64_t bytes)
{
    struct state *state = new_state(seed, count, bytes);
    uint64_t number = take_snapshot(pool, "run", state, (int64_t)seed);
    state_free(state);
    return number;
}

static long minor_faults(void)
{
    struct rusage usage;
    EXPECT(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt;
}

/* The next capture allocates no file space, and faults no page of the pool in. */
static void the_next_capture_finds_space(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *next = new_state(2, TENSORS, BYTES), *last = new_state(3, TENSORS, BYTES);
    take_new(pool, 1, TENSORS, BYTES);
    uint64_t before = disk_bytes(place->pool);
    prepare(pool);
    uint64_t ready = disk_bytes(place->pool), used = lmcs_space_used(pool);
    EXPECT(ready >= before + CAPTURE);
    prepare(pool);
    EXPECT(disk_bytes(place->pool) == ready); /* once for each capture */
    long faults = minor_faults();
    take_snapshot(pool, "run", next, 2);
    faults = minor_faults() - faults;
    EXPECT(lmcs_space_used(pool) == used && disk_bytes(place->pool) <= ready + MIB); /* metadata */
    EXPECT(faults < (long)(CAPTURE / 4096 / 4));
    faults = minor_faults();
    take_snapshot(pool, "run", last, 3); /* nothing was prepared */
    faults = minor_faults() - faults;
    EXPECT(lmcs_space_used(pool) >= used + CAPTURE);
    EXPECT(lmcs_heap_method(pool->heap) == LMCS_WRITE_FILE || faults >= (long)(CAPTURE / 4096));
    expect_snapshot(pool, "run", 2, next);
    verify_pool(pool);
    check_pool(pool);
    close_pool(pool);
    state_free(next);
    state_free(last);
}

/* Space that compaction has freed is used first. */
static void freed_space_is_not_prepared_again(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_new(pool, 1, TENSORS, BYTES);
    take_new(pool, 2, TENSORS, BYTES);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    uint64_t used = lmcs_space_used(pool);
    prepare(pool);
    EXPECT(lmcs_space_used(pool) == used);
    close_pool(pool);
}

/* A pool closed after preparation has the file space of one that never prepared. */
static void the_close_gives_it_back(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_new(pool, 1, TENSORS, BYTES);
    uint64_t before = disk_bytes(place->pool), used = lmcs_space_used(pool);
    prepare(pool);
    take_new(pool, 2, 1, BYTES); /* takes some of it */
    uint64_t more = lmcs_space_used(pool) - used;
    EXPECT(more >= CAPTURE);
    close_pool(pool);
    EXPECT(disk_bytes(place->pool) <= before + BYTES + MIB / 2);
    EXPECT(closed_root(place->pool).extent_bytes <= used + lmcs_page_up(BYTES));
    pool = open_quiet(place->pool);
    EXPECT(lmcs_space_used(pool) <= used + lmcs_page_up(BYTES));
    take_new(pool, 3, TENSORS, BYTES);
    verify_pool(pool);
    check_pool(pool);
    close_pool(pool);
}

/* A caller's compaction gives it back, and the background does not prepare it again. */
static void a_compaction_gives_it_back(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_new(pool, 1, TENSORS, BYTES);
    uint64_t used = lmcs_space_used(pool);
    prepare(pool);
    EXPECT(lmcs_space_used(pool) >= used + CAPTURE);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(lmcs_space_used(pool) <= used);
    prepare(pool);
    EXPECT(lmcs_space_used(pool) <= used);
    take_new(pool, 2, TENSORS, BYTES);
    OK(lmcs_compact(pool, NULL, &err)); /* before it was prepared */
    used = lmcs_space_used(pool);
    prepare(pool);
    EXPECT(lmcs_space_used(pool) == used);
    close_pool(pool);
}

/* At most half of the free space is taken. */
static void the_limit_and_the_disk_are_kept(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_limited(place->pool, 3 * CAPTURE);
    take_new(pool, 1, TENSORS, BYTES);
    uint64_t used = lmcs_space_used(pool);
    prepare(pool);
    EXPECT(lmcs_space_used(pool) == used);
    take_new(pool, 2, TENSORS, BYTES);
    close_pool(pool);
    EXPECT(unlink(place->pool) == 0);
    pool = open_limited(place->pool, 5 * CAPTURE);
    take_new(pool, 1, TENSORS, BYTES);
    used = lmcs_space_used(pool);
    disk_left = CAPTURE + CAPTURE / 2;
    prepare(pool);
    EXPECT(lmcs_space_used(pool) == used);
    disk_left = 0;
    take_new(pool, 2, TENSORS, BYTES / 2);
    used = lmcs_space_used(pool);
    prepare(pool);
    EXPECT(lmcs_space_used(pool) >= used + CAPTURE / 2 && lmcs_space_used(pool) < 5 * CAPTURE);
    take_new(pool, 3, 2 * TENSORS, BYTES); /* a larger one gets all of it */
    close_pool(pool);
}

struct visit {
    struct lmcs_pool *pool;
    unsigned steps;
    bool kills;
};

/* At the third step: takes a snapshot, or ends the process. */
static bool act_once(void *context)
{
    struct visit *visit = context;
    if (++visit->steps != 3)
        return true;
    if (visit->kills)
        raise(SIGKILL);
    take_new(visit->pool, 2, TENSORS, BYTES);
    return true;
}

/* A capture between two steps takes what is prepared by then; the rest is prepared for the one after it. */
static void a_capture_comes_between(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct visit visit = {.pool = pool};
    take_new(pool, 1, TENSORS, BYTES);
    uint64_t used = lmcs_space_used(pool);
    OK(lmcs_space_prepare(pool, act_once, &visit, &err));
    EXPECT(visit.steps == 3); /* the older expectation ended */
    EXPECT(lmcs_space_used(pool) < used + CAPTURE + CAPTURE / 2);
    used = lmcs_space_used(pool);
    prepare(pool);
    EXPECT(lmcs_space_used(pool) >= used + CAPTURE);
    verify_pool(pool);
    check_pool(pool);
    close_pool(pool);
}

static void die_while_preparing(const char *path, bool commits)
{
    struct lmcs_pool *pool = open_quiet(path);
    struct visit visit = {.pool = pool, .kills = true, .steps = commits ? 1000 : 0};
    take_new(pool, 1, TENSORS, BYTES);
    OK(lmcs_space_prepare(pool, act_once, &visit, &err));
    if (commits)
        take_new(pool, 2, 1, 1000);
    raise(SIGKILL);
}

static void a_kill_while_preparing_loses_nothing(void **state)
{
    struct place *place = *state;
    for (int commits = 0; commits < 2; commits++) {
        int status;
        (void)unlink(place->pool);
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0)
            die_while_preparing(place->pool, commits > 0);
        EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        EXPECT(disk_bytes(place->pool) > CAPTURE + MIB);
        struct lmcs_pool *pool = open_quiet(place->pool);
        EXPECT(lmcs_space_used(pool) <= 2 * CAPTURE + 8 * MIB);
        verify_pool(pool);
        check_pool(pool);
        OK(lmcs_compact(pool, NULL, &err));
        EXPECT(disk_bytes(place->pool) <= lmcs_space_used(pool) + 6 * MIB);
        EXPECT(lmcs_space_used(pool) <= CAPTURE + MIB);
        close_pool(pool);
    }
}

/* Waits until the background has prepared the expected space. */
static void wait_prepared(struct lmcs_pool *pool)
{
    for (int i = 0; i < 60000; i++) {
        pthread_mutex_lock(&pool->space->lock);
        bool pending = pool->space->expected.pending;
        pthread_mutex_unlock(&pool->space->lock);
        if (!pending)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    fail_msg("the background prepares nothing");
}

/* With expect_bytes, the background prepares before the first capture; it returns what a smaller one leaves. */
static void the_background_prepares(void **state)
{
    struct place *place = *state;
    struct lmcs_open_options options;
    struct lmcs_pool *pool = NULL;
    lmcs_open_options_init(&options);
    options.expect_bytes = CAPTURE;
    options.limit_bytes = 1024 * MIB;
    OK(lmcs_pool_open(place->pool, LMCS_OPEN_CREATE, &options, &pool, &err));
    wait_prepared(pool);
    uint64_t used = lmcs_space_used(pool);
    EXPECT(used >= CAPTURE && disk_bytes(place->pool) >= CAPTURE);
    lmcs_compactor_pause(pool);
    take_new(pool, 1, TENSORS, BYTES);
    EXPECT(lmcs_space_used(pool) <= used + MIB);
    lmcs_compactor_resume(pool);
    wait_prepared(pool);
    EXPECT(lmcs_space_used(pool) >= 2 * CAPTURE);
    take_new(pool, 2, 2, BYTES);
    for (int i = 0; i < 60000 && lmcs_space_used(pool) >= 2 * CAPTURE; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    EXPECT(lmcs_space_used(pool) < 2 * CAPTURE);
    OK(lmcs_pool_open(place->pool, LMCS_OPEN_WRITE, &options, &pool, &err)); /* a second open expects, too */
    wait_prepared(pool);
    EXPECT(lmcs_space_expected(pool) == CAPTURE);
    close_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    EXPECT(disk_bytes(place->pool) < 2 * CAPTURE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ON_BOTH(the_next_capture_finds_space),
                                       ON_BOTH(freed_space_is_not_prepared_again),
                                       ON_BOTH(the_close_gives_it_back),
                                       ON_BOTH(a_compaction_gives_it_back),
                                       ON_BOTH(the_limit_and_the_disk_are_kept),
                                       ON_BOTH(a_capture_comes_between),
                                       ON_BOTH(a_kill_while_preparing_loses_nothing),
                                       ON_BOTH(the_background_prepares)};
    return cmocka_run_group_tests_name("prepare", tests, NULL, NULL);
}
