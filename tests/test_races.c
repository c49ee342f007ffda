/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_races.c - pools that are replaced, removed, linked or moved during an opening.
 *
 * This program interposes pmemobj_open, to act between the check of a pool and its opening.
 */
/* ctest: labels=no-tsan */
#include "support.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libpmemobj.h>
#include <sys/stat.h>
#include <unistd.h>

static void (*meanwhile)(void); /* once, before the next pmemobj_open */
static const char *target, *other;
static struct stat opened;

/* Visible to shared libraries. */
#pragma GCC visibility push(default)
PMEMobjpool *pmemobj_open(const char *path, const char *layout)
{
    static PMEMobjpool *(*real)(const char *, const char *);
    if (real == NULL)
        real = (PMEMobjpool * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "pmemobj_open");
    if (meanwhile != NULL)
        meanwhile();
    meanwhile = NULL;
    if (stat(path, &opened) != 0)
        memset(&opened, 0, sizeof opened);
    return real(path, layout);
}
#pragma GCC visibility pop

static void replace_target(void)
{
    EXPECT(rename(other, target) == 0);
}
static void remove_target(void)
{
    EXPECT(unlink(target) == 0);
}
static void empty_target(void)
{
    EXPECT(unlink(target) == 0 && mkfifo(target, 0600) == 0);
}

static void make_pool(const char *path, const char *shelf)
{
    struct rng rng = {1};
    struct state *state = state_weights(&rng, 2, 1000);
    struct lmcs_pool *pool = open_quiet(path);
    take_snapshot(pool, shelf, state, 1);
    close_pool(pool);
    state_free(state);
}

static struct stat stat_of(const char *path)
{
    struct stat st;
    EXPECT(stat(path, &st) == 0);
    return st;
}

static enum lmcs_status try_open(const char *path, enum lmcs_open_mode mode, uint32_t wait_ms, struct lmcs_pool **pool)
{
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    options.wait_ms = wait_ms;
    options.flags = LMCS_NO_BACKGROUND;
    return lmcs_pool_open(path, mode, &options, pool, &err);
}

/* libpmemobj trusts its data, so it must get exactly the checked file. */
static void replaced_before_libpmemobj_opens(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool;
    char second[512];
    place_path(place, "second.pool", second);
    make_pool(place->pool, "first");
    make_pool(second, "second");
    target = place->pool;
    other = second;
    struct stat first = stat_of(target), replacement = stat_of(other);
    meanwhile = replace_target;
    FAILS(LMCS_IN_USE, try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
    EXPECT(strstr(err.message, "was replaced") != NULL);
    EXPECT(opened.st_ino == first.st_ino);
    OK(try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
    EXPECT(opened.st_ino == replacement.st_ino);
    EXPECT(shelf_info(pool, "second").snapshot_count == 1);
    verify_pool(pool);
    close_pool(pool);
}

static void replaced_while_one_waits(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool;
    char second[512];
    place_path(place, "second.pool", second);
    make_pool(place->pool, "first");
    make_pool(second, "second");
    target = place->pool;
    other = second;
    meanwhile = replace_target;
    OK(try_open(place->pool, LMCS_OPEN_WRITE, 1000, &pool));
    EXPECT(shelf_info(pool, "second").snapshot_count == 1);
    close_pool(pool);
}

static void removed_before_libpmemobj_opens(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool;
    make_pool(place->pool, "run");
    target = place->pool;
    meanwhile = remove_target;
    FAILS(LMCS_NOT_FOUND, try_open(place->pool, LMCS_OPEN_WRITE, 300, &pool));
    make_pool(place->pool, "run");
    meanwhile = empty_target;
    FAILS(LMCS_INVALID, try_open(place->pool, LMCS_OPEN_WRITE, 300, &pool));
}

static void expect_in_use(const char *path, const char *variable, const char *value, const char *expected)
{
    struct lmcs_pool *pool;
    if (variable != NULL)
        EXPECT(setenv(variable, value, 1) == 0);
    FAILS(LMCS_IN_USE, try_open(path, LMCS_OPEN_WRITE, 0, &pool));
    EXPECT(strstr(err.message, "in use by process") != NULL && strstr(err.message, "its own pool") != NULL);
    if (strstr(err.message, expected) == NULL)
        fail_msg("%s=%s: %s", variable, value, err.message);
    if (variable != NULL)
        EXPECT(unsetenv(variable) == 0);
}

static int be_rank(void *path)
{
    const char *const variables[] = {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    const char *const none[] = {"", "x", "-1", "1 ", "1\n", "12345678901", "%s"};
    for (size_t i = 0; i < 5; i++)
        EXPECT(unsetenv(variables[i]) == 0);
    expect_in_use(path, NULL, NULL, "such as a.0.pool and a.1.pool");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        expect_in_use(path, "RANK", none[i], "such as a.0.pool and a.1.pool");
    expect_in_use(path, "RANK", "1", "RANK=1, can open a.1.pool");
    for (size_t i = 1; i < 5; i++) {
        char expected[64];
        snprintf(expected, sizeof expected, ", %s=13, can open a.13.pool", variables[i]);
        expect_in_use(path, variables[i], "13", expected);
    }
    EXPECT(setenv("LOCAL_RANK", "0", 1) == 0); /* of one machine: each other variable is preferred */
    for (size_t i = 0; i < 5; i++) {
        char expected[64];
        snprintf(expected, sizeof expected, ", %s=8, can open a.8.pool", variables[i]);
        expect_in_use(path, variables[i], "8", expected);
        EXPECT(setenv("LOCAL_RANK", "0", 1) == 0);
    }
    expect_in_use(path, "RANK", "8", "RANK=8, can open a.8.pool");
    char plain[512];
    snprintf(plain, sizeof plain, "%.*s/plain", (int)(strrchr(path, '/') - (char *)path), (char *)path);
    EXPECT(link(path, plain) == 0);
    expect_in_use(plain, "RANK", "8", "RANK=8, can open plain.8.");
    return 0;
}

/* Two ranks that open one pool: the message names a pool for the second one. */
static void ranks_need_pools(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool;
    make_pool(place->pool, "run");
    OK(try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
    EXPECT(run_child(be_rank, place->pool, 60) == 0);
    close_pool(pool);
}

/* Two names, one pool: the same in this process, in use for another. */
static int open_in_child(void *path)
{
    struct lmcs_pool *pool;
    FAILS(LMCS_IN_USE, try_open(path, LMCS_OPEN_WRITE, 0, &pool));
    EXPECT(strstr(err.message, "in use by process") != NULL);
    OK(try_open(path, LMCS_OPEN_READ, 0, &pool));
    verify_pool(pool);
    close_pool(pool);
    return 0;
}

static void hard_and_symbolic_links(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool, *same;
    char hard[512], symbolic[512];
    place_path(place, "hard.pool", hard);
    place_path(place, "symbolic.pool", symbolic);
    make_pool(place->pool, "run");
    EXPECT(link(place->pool, hard) == 0 && symlink("hard.pool", symbolic) == 0);
    OK(try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
    OK(try_open(symbolic, LMCS_OPEN_WRITE, 0, &same));
    EXPECT(same == pool);
    close_pool(same);
    OK(try_open(hard, LMCS_OPEN_READ, 0, &same));
    EXPECT(same == pool);
    close_pool(same);
    EXPECT(run_child(open_in_child, hard, 20) == 0);
    EXPECT(run_child(open_in_child, symbolic, 20) == 0);
    FAILS(LMCS_EXISTS, lmcs_pool_open(hard, LMCS_OPEN_CREATE, NULL, &same, &err));
    close_pool(pool);
    FAILS(LMCS_EXISTS, lmcs_pool_open(symbolic, LMCS_OPEN_CREATE, NULL, &same, &err));
}

static int work_elsewhere(void *argument)
{
    const struct place *place = argument;
    struct rng rng = {2};
    struct state *weights = state_weights(&rng, 2, 1000);
    struct lmcs_pool *reader, *writer;
    EXPECT(chdir(place->folder) == 0);
    OK(try_open("pool", LMCS_OPEN_READ, 0, &reader));
    EXPECT(chdir("/") == 0);
    verify_pool(reader);
    close_pool(reader);
    EXPECT(chdir(place->folder) == 0);
    OK(try_open("pool", LMCS_OPEN_WRITE, 0, &writer));
    EXPECT(chdir("/") == 0);
    take_snapshot(writer, "run", weights, 2);
    OK(lmcs_compact(writer, NULL, &err));
    verify_pool(writer);
    close_pool(writer);
    state_free(weights);
    return 0;
}

static void another_directory(void **state)
{
    struct place *place = *state;
    char here[512];
    place_path(place, "pool", here);
    make_pool(here, "run");
    EXPECT(run_child(work_elsewhere, place, 60) == 0);
    struct lmcs_pool *pool = open_quiet(here);
    EXPECT(shelf_info(pool, "run").snapshot_count == 2);
    close_pool(pool);
}

static void removed_under_a_reader(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool;
    make_pool(place->pool, "run");
    OK(try_open(place->pool, LMCS_OPEN_READ, 0, &pool));
    EXPECT(unlink(place->pool) == 0);
    verify_pool(pool);
    int fd = open(place->pool, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    EXPECT(fd >= 0 && write(fd, "no pool", 7) == 7 && close(fd) == 0);
    verify_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(replaced_before_libpmemobj_opens),
        IN_MEMORY(replaced_while_one_waits),
        IN_MEMORY(removed_before_libpmemobj_opens),
        ON_BOTH(hard_and_symbolic_links),
        IN_MEMORY(ranks_need_pools),
        IN_MEMORY(another_directory),
        ON_BOTH(removed_under_a_reader),
    };
    return cmocka_run_group_tests_name("races", tests, NULL, NULL);
}
