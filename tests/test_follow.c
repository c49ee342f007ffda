/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_follow.c - followers of a shelf, in the writing process and beside it.
 *
 * This program interposes nanosleep, in which followers wait. A test counts and measures the naps that are asked for,
 * and acts in one of them: by itself, or through a child that writes. No nap takes time. Syncs are counted, and fail.
 */
/* ctest: labels=no-tsan */
#include "support.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FOREVER UINT32_MAX
#define MS      ((uint64_t)1000000)

static unsigned naps, act_in; /* act_in: the nap in which `meanwhile` is called */
static uint64_t shortest_ns, longest_ns;
static void (*meanwhile)(void);

int nanosleep(const struct timespec *wanted, struct timespec *left)
{
    uint64_t ns = (uint64_t)wanted->tv_sec * 1000 * MS + (uint64_t)wanted->tv_nsec;
    (void)left;
    shortest_ns = ns < shortest_ns ? ns : shortest_ns;
    longest_ns = ns > longest_ns ? ns : longest_ns;
    if (++naps == act_in && meanwhile != NULL)
        meanwhile();
    return 0;
}

static unsigned syncs;
static bool fail_sync;

int fdatasync(int fd)
{
    syncs++;
    if (fail_sync)
        errno = EIO;
    return fail_sync ? -1 : (int)syscall(SYS_fdatasync, fd);
}

static void in_nap(unsigned nap, void (*act)(void))
{
    naps = 0;
    shortest_ns = UINT64_MAX;
    longest_ns = 0;
    act_in = nap;
    meanwhile = act;
}

/* ---- The writer: this process, or a child that gets one letter for an act and answers with it ---- */

static struct lmcs_pool *pool; /* the follower's */
static const char *path;
static pid_t child; /* 0: none */
static int line;

static void take(struct lmcs_pool *writer, bool prepare)
{
    struct rng rng = {1};
    struct state *state = state_weights(&rng, 1, 10);
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    lmcs_commit_options_init(&options);
    options.prepare = prepare;
    memset(options.group, prepare ? 7 : 0, sizeof options.group);
    OK(lmcs_capture_begin(writer, "run", &capture, &err));
    put_state(capture, state);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    state_free(state);
}

static void act_on(struct lmcs_pool *writer, char act)
{
    const unsigned char group[16] = {7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7};
    if (act == 't')
        take(writer, false);
    else if (act == 'p')
        take(writer, true);
    else if (act == 'c')
        OK(lmcs_group_resolve(writer, group, true, &err));
    else if (act == 'd')
        OK(lmcs_shelf_drop(writer, "run", false, NULL, &err));
    else if (act == 'm')
        OK(lmcs_shelf_rename(writer, "run", "ran", &err));
    else if (act >= '1' && act <= '9')
        OK(lmcs_snapshot_remove(writer, "run", (uint64_t)(act - '0'), false, NULL, &err));
}

static void serve(int end)
{
    char act;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct lmcs_pool *writer = open_quiet(path);
    for (act = 'o'; write(end, &act, 1) == 1 && read(end, &act, 1) == 1;)
        act_on(writer, act);
    close_pool(writer);
    _exit(0);
}

static void answered(void)
{
    char act;
    EXPECT(read(line, &act, 1) == 1);
}

static void start_writer(void)
{
    int ends[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    child = fork();
    if (child == 0) {
        close(ends[0]);
        serve(ends[1]);
    }
    close(ends[1]);
    line = ends[0];
    answered();
}

static void end_writer(bool by_kill)
{
    int status;
    if (by_kill)
        EXPECT(kill(child, SIGKILL) == 0);
    close(line);
    EXPECT(waitpid(child, &status, 0) == child && (by_kill ? WIFSIGNALED(status) : status == 0));
    child = 0;
}

static void act(const char *acts)
{
    for (; *acts != '\0'; acts++) {
        if (child == 0) {
            act_on(pool, *acts);
        } else {
            EXPECT(write(line, acts, 1) == 1);
            answered();
        }
    }
}

static void begin(void **state, bool beside)
{
    path = ((struct place *)*state)->pool;
    in_nap(0, NULL);
    if (beside)
        start_writer();
    pool = beside ? open_pool(path, LMCS_OPEN_READ, 0) : open_quiet(path);
}

static void end(void)
{
    close_pool(pool);
    if (child != 0)
        end_writer(false);
}

static uint64_t next(struct lmcs_follower *follower, uint32_t wait_ms)
{
    uint64_t number = 77;
    OK(lmcs_snapshot_follow(pool, "run", follower, wait_ms, &number, &err));
    return number;
}

static void expect_gone(struct lmcs_follower *follower, uint32_t wait_ms, const char *why)
{
    uint64_t number = 77;
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_follow(pool, "run", follower, wait_ms, &number, &err));
    EXPECT(number == 77 && strstr(err.message, why) != NULL);
}

/* ---- Tests ---- */

static void take_one(void)
{
    act("t");
}

/* At most 20 naps a second, none of 100 ms or longer: so a snapshot is seen within that time. */
static void wait_for_the_next(void **state, bool beside)
{
    struct lmcs_follower follower = {.after = 0}, late = {.after = 3};
    begin(state, beside);
    EXPECT(next(&follower, 0) == 0 && follower.shelf_id == 0);
    act("ttt");
    EXPECT(next(&follower, FOREVER) == 1 && next(&follower, 0) == 2 && next(&follower, 5000) == 3);
    EXPECT(next(&follower, 0) == 0 && follower.after == 3 && naps == 0);
    in_nap(20, take_one);
    EXPECT(next(&follower, FOREVER) == 4 && naps == 20);
    EXPECT(shortest_ns >= 50 * MS && longest_ns < 90 * MS);
    in_nap(1, take_one);
    EXPECT(next(&follower, 600000) == 5 && naps == 1 && longest_ns >= 50 * MS && longest_ns < 90 * MS);
    in_nap(0, NULL);
    EXPECT(next(&follower, 2) == 0 && naps > 0 && longest_ns <= 2 * MS);
    EXPECT(next(&late, 0) == 4 && next(&late, 0) == 5);
    end();
}

static void begin_now(void **state, bool beside)
{
    struct lmcs_follower early = {.after = LMCS_FROM_NOW}, now = early, far = {.after = 6};
    begin(state, beside);
    EXPECT(next(&early, 0) == 0 && early.after == 0);
    act("ttt");
    EXPECT(next(&now, 0) == 0 && now.after == 3 && next(&far, 0) == 0);
    in_nap(3, take_one);
    EXPECT(next(&now, FOREVER) == 4 && naps == 3);
    EXPECT(next(&early, 0) == 1);
    act("ttt");
    EXPECT(next(&far, 0) == 7);
    end();
}

static void remove_and_take(void)
{
    act("56t");
}

static void pass_over_what_is_removed(void **state, bool beside)
{
    struct lmcs_follower follower = {.after = 1};
    begin(state, beside);
    act("ttttt23");
    EXPECT(next(&follower, 0) == 4);
    act("1");
    EXPECT(next(&follower, 0) == 5);
    act("4t");
    in_nap(1, remove_and_take);
    EXPECT(next(&follower, 0) == 6);
    EXPECT(next(&follower, FOREVER) == 7);
    act("7");
    EXPECT(next(&follower, 0) == 0);
    act("t");
    EXPECT(next(&follower, 0) == 8);
    end();
}

static void prepare_one(void)
{
    act("p");
}
static void commit_it(void)
{
    EXPECT(naps == 9);
    act("c");
}
static void wait_for_a_decision(void **state, bool beside)
{
    struct lmcs_follower follower = {.after = 0};
    begin(state, beside);
    prepare_one();
    EXPECT(next(&follower, 0) == 0);
    in_nap(9, commit_it);
    EXPECT(next(&follower, FOREVER) == 1);
    end();
}

static void drop(void)
{
    act("d");
}
static void begin_anew(void)
{
    act("dttt");
}
static void move(void)
{
    act("m");
}
static void unlink_pool(void)
{
    EXPECT(unlink(path) == 0);
}

static void end_with_the_shelf(void **state, bool beside)
{
    void (*const acts[])(void) = {drop, begin_anew, move};
    struct lmcs_follower follower = {.after = 0};
    uint64_t number;
    begin(state, beside);
    for (size_t i = 0; i < 3; i++) {
        take_one();
        follower = (struct lmcs_follower){.after = LMCS_FROM_NOW};
        EXPECT(next(&follower, 0) == 0);
        in_nap(2, acts[i]);
        expect_gone(&follower, FOREVER, "removed or renamed");
        expect_gone(&follower, 0, "removed or renamed");
    }
    take_one();
    FAILS(LMCS_INVALID, lmcs_snapshot_follow(pool, "run@1", &follower, 0, &number, &err));
    FAILS(LMCS_INVALID, lmcs_snapshot_follow(pool, NULL, &follower, 0, &number, &err));
    follower = (struct lmcs_follower){.after = 1};
    in_nap(2, unlink_pool);
    expect_gone(&follower, FOREVER, "deleted or replaced");
    end();
}

#define BOTH(test)                          \
    static void test##_here(void **state)   \
    {                                       \
        test(state, false);                 \
    }                                       \
    static void test##_beside(void **state) \
    {                                       \
        test(state, true);                  \
    }
BOTH(wait_for_the_next)
BOTH(begin_now)
BOTH(pass_over_what_is_removed)
BOTH(wait_for_a_decision)
BOTH(end_with_the_shelf)

static void replace_writer(void)
{
    end_writer(true);
    start_writer();
    act("t");
}

static void outlive_the_writer(void **state)
{
    struct lmcs_follower follower = {.after = 0};
    begin(state, true);
    act("t");
    EXPECT(next(&follower, 0) == 1);
    in_nap(30, replace_writer);
    EXPECT(next(&follower, FOREVER) == 2 && naps == 30);
    end();
}

/* Once for each new root. */
static void sync_before_the_report(void **state)
{
    struct lmcs_follower follower = {.after = 0};
    uint64_t number = 77;
    begin(state, true);
    act("tt");
    fail_sync = true;
    FAILS(LMCS_IO, lmcs_snapshot_follow(pool, "run", &follower, 0, &number, &err));
    EXPECT(number == 77 && follower.after == 0);
    fail_sync = false;
    syncs = 0;
    EXPECT(next(&follower, 0) == 1 && syncs == 1 && next(&follower, 0) == 2 && next(&follower, 0) == 0 && syncs == 1);
    act("t");
    EXPECT(next(&follower, 0) == 3 && syncs == 2);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(wait_for_the_next_here),
        ON_DISK(wait_for_the_next_beside),
        IN_MEMORY(begin_now_here),
        ON_DISK(begin_now_beside),
        IN_MEMORY(pass_over_what_is_removed_here),
        IN_MEMORY(pass_over_what_is_removed_beside),
        IN_MEMORY(wait_for_a_decision_here),
        IN_MEMORY(wait_for_a_decision_beside),
        IN_MEMORY(end_with_the_shelf_here),
        IN_MEMORY(end_with_the_shelf_beside),
        ON_DISK(outlive_the_writer),
        ON_DISK(sync_before_the_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
