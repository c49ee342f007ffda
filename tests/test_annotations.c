/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_annotations.c - tags, metrics and notes added to snapshots by the writer, beside it, and without one.
 *
 * This program interposes the calls by which an annotator changes the file, to die in them.
 */
/* ctest: labels=no-tsan */
#include "test_annotations_support.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lmc.h"

/* ---- Deaths and a failed sync ---- */

static int die_in; /* the call, from 1, in which the process dies; 0: none */
static bool die_half;

static void count_call(void)
{
    if (die_in > 0 && --die_in == 0)
        raise(SIGKILL);
}

static bool fail_sync;
static struct { /* the last one written before: only the page cache has it */
    char was[4096];
    off_t at;
    bool lost;
} page;

static void note_write(int fd, off_t offset)
{
    off_t at = offset / 4096 * 4096;
    if (fail_sync)
        EXPECT(pread(fd, page.was, sizeof page.was, page.at = at) == sizeof page.was);
    page.lost = page.lost && at != page.at;
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    note_write(fd, offset);
    if (die_in == 1 && die_half)
        syscall(SYS_pwrite64, fd, bytes, count / 2, offset);
    count_call();
    return syscall(SYS_pwrite64, fd, bytes, count, offset);
}

int fdatasync(int fd)
{
    count_call();
    if (fail_sync) { /* as Linux: the page counts as clean */
        fail_sync = false;
        page.lost = true;
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, fd);
}

/* ---- The trainer ---- */

static int train_and_stop(void *argument)
{
    (void)argument;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_OR_CREATE, 0);
    if (pool->root.snapshot_count == 0)
        train(pool, SNAPSHOTS);
    raise(SIGSTOP);
    while (true)
        pause();
    return 0;
}

/* A trainer that has the pool open and is stopped. */
static pid_t start_stopped(void **state)
{
    int status;
    path = ((struct place *)*state)->pool;
    pid_t trainer = start_child(train_and_stop, NULL);
    EXPECT(waitpid(trainer, &status, WUNTRACED) == trainer && WIFSTOPPED(status));
    return trainer;
}

static void end_trainer(pid_t trainer)
{
    EXPECT(kill(trainer, SIGKILL) == 0 && waitpid(trainer, NULL, 0) == trainer);
}

/* ---- Looking ---- */

static void expect_meta(struct lmcs_pool *pool, uint64_t number, const char *json)
{
    struct lmcs_snapshot *snapshot;
    char which[32];
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
    assert_string_equal(lmcs_snapshot_info(snapshot)->meta_json, json);
    lmcs_snapshot_close(snapshot);
}

static void annotate_all(struct lmcs_pool *pool)
{
    OK(lmcs_tag_set(pool, "run", "good", 2, &err));
    OK(lmcs_tag_set(pool, "run", "moved", 1, &err));
    OK(lmcs_tag_set(pool, "run", "moved", 3, &err));
    OK(lmcs_tag_set(pool, "run", "gone", 1, &err));
    OK(lmcs_tag_remove(pool, "run", "gone", &err));
    OK(lmcs_metric_set(pool, "run", 1, "val_loss", 0.5, &err));
    OK(lmcs_metric_set(pool, "run", 1, "val_loss", 0.25, &err));
    OK(lmcs_metric_set(pool, "run", 1, "top1", INFINITY, &err));
    OK(lmcs_note_set(pool, "run", 2, "first", &err));
    OK(lmcs_note_set(pool, "run", 2, "caf\xc3\xa9 \"x\"", &err));
    OK(lmcs_note_set(pool, "run", 3, "away", &err));
    OK(lmcs_note_set(pool, "run", 3, "", &err));
}

static void expect_all(struct lmcs_pool *pool)
{
    EXPECT(snapshot_tagged(pool, "good") == 2 && snapshot_tagged(pool, "moved") == 3 &&
           snapshot_tagged(pool, "gone") == 0);
    EXPECT(metric_of(pool, 1, "val_loss") == 0.25 && isinf(metric_of(pool, 1, "top1")));
    expect_meta(pool, 1, "{}");
    expect_meta(pool, 2, "{\"message\":\"caf\xc3\xa9 \\\"x\\\"\"}");
    expect_meta(pool, 3, "{}");
}

static void expect_refusals(struct lmcs_pool *pool)
{
    char text[LMCS_MAX_NOTE + 2];
    memset(text, 'n', sizeof text);
    text[sizeof text - 1] = '\0';
    FAILS(LMCS_INVALID, lmcs_note_set(pool, "run", 2, text, &err));
    EXPECT(strstr(err.message, "901 bytes: at most 900") != NULL);
    FAILS(LMCS_INVALID, lmcs_metric_set(pool, "run", 2, text, 1, &err));
    FAILS(LMCS_INVALID, lmcs_note_set(pool, "run", 2, "\xff", &err));
    FAILS(LMCS_INVALID, lmcs_metric_set(pool, "run", 2, "", 1, &err));
    FAILS(LMCS_INVALID, lmcs_metric_set(pool, "run", 2, NULL, 1, &err));
    FAILS(LMCS_INVALID, lmcs_tag_set(pool, "run", "a@b", 2, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_tag_set(pool, "run", "t", 99, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_tag_remove(pool, "run", "t", &err));
    FAILS(LMCS_NOT_FOUND, lmcs_metric_set(pool, "run", 99, "m", 1, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_metric_set(pool, "run", 0, "m", 1, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_note_set(pool, "walk", 1, "m", &err));
    for (int i = 0; i < 100; i++) {
        char name[32];
        snprintf(name, sizeof name, "metric-number-%d", i);
        if (lmcs_metric_set(pool, "run", 4, name, i, &err) != LMCS_OK)
            break;
    }
    EXPECT(err.status == LMCS_INVALID && strstr(err.message, "1200 are possible") != NULL);
}

/* ---- Tests ---- */

static void annotate_as_the_writer(void **state)
{
    path = ((struct place *)*state)->pool;
    struct lmcs_pool *pool = open_quiet(path);
    train(pool, SNAPSHOTS);
    annotate_all(pool);
    expect_all(pool);
    expect_refusals(pool);
    pool = reopen_counted(pool, path);
    expect_all(pool);
    verify_pool(pool);
    close_pool(pool);
}

static void annotate_beside_a_stopped_writer(void **state)
{
    pid_t trainer = start_stopped(state);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0), *other = open_pool(path, LMCS_OPEN_READ, 0);
    annotate_all(pool);
    expect_all(pool);
    expect_all(other);
    expect_refusals(pool);
    close_pool(other);
    other = open_pool(path, LMCS_OPEN_READ, 0);
    expect_all(other);
    const struct lmcs_tag_change change = {"good", 3, 2};
    FAILS(LMCS_IN_USE, lmcs_tags_change(pool, "run", &change, 1, &err));
    EXPECT(strstr(err.message, "without an expected place") != NULL);
    end_trainer(trainer);
    expect_all(other);
    close_pool(other);
    struct lmcs_pool *writer = open_quiet(path);
    EXPECT(writer->root.annotated > 0 && writer->root.ring_dropped == 0);
    expect_all(writer);
    expect_all(pool);
    verify_pool(writer);
    close_pool(writer);
    expect_all(pool);
    close_pool(pool);
}

static void annotate_without_a_writer(void **state)
{
    path = ((struct place *)*state)->pool;
    struct lmcs_pool *pool = open_quiet(path);
    train(pool, SNAPSHOTS);
    close_pool(pool);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    annotate_all(pool);
    expect_all(pool);
    expect_refusals(pool);
    end_trainer(start_stopped(state)); /* leaves a ring */
    OK(lmcs_note_set(pool, "run", 4, "later", &err));
    expect_meta(pool, 4, "{\"message\":\"later\"}");
    close_pool(pool);
    pool = open_quiet(path);
    expect_all(pool);
    expect_meta(pool, 4, "{\"message\":\"later\"}");
    close_pool(pool);
}

/* An older version writes to pools without objects of kind 4. */
static void leave_no_ring(void **state)
{
    path = ((struct place *)*state)->pool;
    struct lmcs_pool *pool = open_quiet(path);
    train(pool, SNAPSHOTS);
    EXPECT(pool->root.ring != 0);
    close_pool(pool);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    EXPECT(pool->root.ring == 0);
    annotate_all(pool);
    close_pool(pool);
    end_trainer(start_stopped(state));
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    EXPECT(pool->root.ring != 0);
    close_pool(pool);
    uint64_t before = disk_bytes(path);
    for (int i = 0; i < 20; i++)
        close_pool(open_quiet(path));
    EXPECT(disk_bytes(path) <= before + 65536);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    EXPECT(pool->root.ring == 0);
    verify_pool(pool);
    close_pool(pool);
}

/* Waits until the trainer's background thread has applied every annotation. */
static void wait_for_the_trainer(struct lmcs_pool *pool)
{
    for (size_t waiting = 1; waiting > 0; usleep(1000)) {
        struct lmcs_txn txn;
        struct lmcs_annotation *list;
        bool is_old;
        OK(lmcs_txn_read(pool, &txn, &err));
        OK(lmcs_ring_load(&txn, &list, &waiting, &is_old, &err));
        waiting += is_old;
        lmcs_txn_end(&txn);
        free(list);
    }
}

static void fill_the_ring(void **state)
{
    pid_t trainer = start_stopped(state);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    for (int round = 0; round < 3; round++) {
        int i = 0;
        while (lmcs_metric_set(pool, "run", 1, "m", i, &err) == LMCS_OK)
            i++;
        EXPECT(err.status == LMCS_IN_USE && strstr(err.message, "128 tags, metrics and notes") != NULL);
        EXPECT(strstr(err.message, "in use by process") != NULL && i == (int)LMCS_RING_SLOTS);
        EXPECT(metric_of(pool, 1, "m") == i - 1);
        EXPECT(kill(trainer, SIGCONT) == 0); /* its background thread takes them */
        while (lmcs_metric_set(pool, "run", 1, "m", -1, &err) == LMCS_IN_USE)
            continue;
        EXPECT(metric_of(pool, 1, "m") == -1);
        wait_for_the_trainer(pool);
        EXPECT(kill(trainer, SIGSTOP) == 0 && waitpid(trainer, NULL, WUNTRACED) == trainer);
    }
    for (int i = 0; i < (int)LMCS_RING_SLOTS; i++)
        OK(lmcs_metric_set(pool, "run", 2, "m", i, &err));
    end_trainer(trainer);
    OK(lmcs_metric_set(pool, "run", 2, "m", 500, &err)); /* as a writer */
    EXPECT(metric_of(pool, 2, "m") == 500);
    close_pool(pool);
    pool = open_quiet(path);
    EXPECT(metric_of(pool, 2, "m") == 500 && metric_of(pool, 1, "m") == -1);
    check_pool(pool);
    close_pool(pool);
}

static int annotate_and_die(void *argument)
{
    const int *call = argument;
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    die_in = (*call + 1) / 2;
    die_half = *call % 2 == 0;
    OK(lmcs_metric_set(pool, "run", 1, "dying", *call, &err));
    EXPECT(die_in > 0);
    return 0;
}

static void die_at_each_step(void **state)
{
    pid_t trainer = start_stopped(state);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    for (int call = 1, status = 1; status != 0; call++) {
        status = run_child(annotate_and_die, &call, 60);
        EXPECT(status == 0 || WIFSIGNALED(status));
        EXPECT(status == 0 || call < 40);
        OK(lmcs_metric_set(pool, "run", 2, "m", call, &err));
        EXPECT(metric_of(pool, 2, "m") == call);
        double dying = metric_of(pool, 1, "dying");
        EXPECT(isnan(dying) || (dying >= 1 && dying <= call));
        if (call == 4)
            EXPECT(kill(trainer, SIGCONT) == 0);
        if (call >= 4) /* an addition writes those before it again */
            wait_for_the_trainer(pool);
    }
    end_trainer(trainer);
    close_pool(pool);
    pool = open_quiet(path);
    EXPECT(pool->root.ring_dropped == 0 && metric_of(pool, 1, "dying") > 0);
    verify_pool(pool);
    close_pool(pool);
}

/* Sequences 3 and 4 are on two pages. */
static void a_failed_sync_loses_no_later_one(void **state)
{
    pid_t trainer = start_stopped(state);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    for (int i = 1; i <= 2; i++)
        OK(lmcs_metric_set(pool, "run", 1, "m", i, &err));
    fail_sync = true;
    FAILS(LMCS_IO, lmcs_metric_set(pool, "run", 1, "m", 3, &err));
    EXPECT(page.lost);
    OK(lmcs_metric_set(pool, "run", 1, "m", 4, &err));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (page.lost) /* the power fails */
        EXPECT(syscall(SYS_pwrite64, fd, page.was, sizeof page.was, page.at) == sizeof page.was);
    close(fd);
    EXPECT(metric_of(pool, 1, "m") == 4);
    close_pool(pool);
    end_trainer(trainer);
}

enum { ADDITIONS = 300 };

static int add_many(void *argument)
{
    const int *who = argument;
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    for (int i = 0; i < ADDITIONS; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d-%d", *who, i);
        enum lmcs_status status;
        do { /* on a slow machine, the other process may have the pool at each look */
            status = lmcs_tag_set(pool, "run", name, (uint64_t)(1 + i % SNAPSHOTS), &err);
        } while (status == LMCS_IN_USE);
        OK(status);
        EXPECT(snapshot_tagged(pool, name) == (uint64_t)(1 + i % SNAPSHOTS));
    }
    close_pool(pool);
    return 0;
}

static void expect_many(struct lmcs_pool *pool)
{
    for (int i = 0; i < 2 * ADDITIONS; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d-%d", i % 2, i / 2);
        EXPECT(snapshot_tagged(pool, name) == (uint64_t)(1 + i / 2 % SNAPSHOTS));
    }
}

static void two_add_beside(void **state, bool writes)
{
    const int who[] = {0, 1};
    pid_t children[2];
    path = ((struct place *)*state)->pool;
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_CREATE, 0);
    train(pool, SNAPSHOTS);
    if (!writes)
        close_pool(pool);
    for (int i = 0; i < 2; i++)
        children[i] = start_child(add_many, (void *)&who[i]);
    for (int status = 0; writes && waitpid(children[0], &status, WNOHANG) == 0;)
        train(pool, 1);
    for (int i = writes; i < 2; i++)
        expect_child(children[i]);
    if (writes) {
        expect_many(pool);
        close_pool(pool);
    }
    pool = open_quiet(path);
    expect_many(pool);
    EXPECT(pool->root.ring_dropped == 0);
    verify_pool(pool);
    close_pool(pool);
}

static void two_add_beside_a_writer(void **state)
{
    two_add_beside(state, true);
}

static void two_add_without_a_writer(void **state)
{
    two_add_beside(state, false);
}

static int annotate_without_permission(void *argument)
{
    (void)argument;
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0); /* another user may not enter its folder */
    if (geteuid() == 0)
        EXPECT(setegid(65534) == 0 && seteuid(65534) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0); /* opens /proc/self/fd */
    FAILS(LMCS_READ_ONLY, lmcs_metric_set(pool, "run", 1, "m", 1, &err));
    EXPECT(strstr(err.message, "permission to write to the file") != NULL);
    FAILS(LMCS_READ_ONLY, lmcs_tag_set(pool, "run", "t", 1, &err));
    close_pool(pool);
    return 0;
}

static void need_permission(void **state)
{
    pid_t trainer = start_stopped(state);
    EXPECT(chmod(path, 0444) == 0);
    EXPECT(run_child(annotate_without_permission, NULL, 60) == 0);
    end_trainer(trainer);
    EXPECT(run_child(annotate_without_permission, NULL, 60) == 0);
}

/* ---- Damaged and forged rings ---- */

static uint64_t place_of(const struct lmcs_root_df *root, uint64_t sequence)
{
    return lmcs_page_up(root->ring) + sequence % LMCS_RING_SLOTS * LMCS_RING_SLOT_BYTES;
}

static void flip(uint64_t place)
{
    unsigned char byte = 0;
    int fd = open(path, O_RDWR);
    EXPECT(fd >= 0 && pread(fd, &byte, 1, (off_t)place) == 1);
    byte ^= 4;
    EXPECT(pwrite(fd, &byte, 1, (off_t)place) == 1 && close(fd) == 0);
}

/* A pool that a killed trainer left, with metric m = i of snapshot 1 as annotation i, from 1 to `count`. */
static struct lmcs_root_df pool_with_ring(void **state, int count)
{
    struct lmcs_root_df root;
    pid_t trainer = start_stopped(state);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    for (int i = 1; i <= count; i++)
        OK(lmcs_metric_set(pool, "run", 1, "m", i, &err));
    OK(lmcs_root_read(pool, &root, &err));
    close_pool(pool);
    end_trainer(trainer);
    return root;
}

static void note_damage(void *context, const struct lmcs_damage *damage)
{
    snprintf(context, 200, "%s", damage->what);
}

static void damage_the_ring(void **state)
{
    struct lmcs_root_df root = pool_with_ring(state, 5);
    char what[200] = "";
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    check_pool(pool);
    flip(place_of(&root, 3) + 60);
    EXPECT(metric_of(pool, 1, "m") == 2);
    FAILS(LMCS_DAMAGED, lmcs_check_structure(pool, note_damage, what, &err));
    EXPECT(strstr(what, "annotation 3") != NULL);
    flip(place_of(&root, 3) + 60);
    EXPECT(metric_of(pool, 1, "m") == 5);
    check_pool(pool);
    flip(place_of(&root, 5));
    EXPECT(metric_of(pool, 1, "m") == 4);
    check_pool(pool); /* like an addition that was cut short */
    close_pool(pool);
    pool = open_quiet(path);
    EXPECT(metric_of(pool, 1, "m") == 4);
    verify_pool(pool);
    close_pool(pool);
}

static void forge(const struct lmcs_root_df *root, uint64_t sequence, uint64_t *previous,
                  const struct lmcs_annotation_df *wanted, const char *text, uint32_t text_bytes)
{
    unsigned char slot[LMCS_RING_SLOT_BYTES] = {0};
    struct lmcs_annotation_df df = *wanted;
    uint64_t place = place_of(root, sequence);
    df.sequence = sequence;
    df.previous = *previous;
    df.text_bytes = text_bytes;
    memcpy(slot + sizeof df, text, text_bytes <= LMCS_ANNOTATION_TEXT ? text_bytes : 0);
    memcpy(slot, &df, sizeof df);
    df.check = lmc_hash64(slot + 8, sizeof df - 8 + (text_bytes <= LMCS_ANNOTATION_TEXT ? text_bytes : 0), place);
    memcpy(slot, &df, sizeof df);
    *previous = df.check;
    int fd = open(path, O_RDWR);
    EXPECT(fd >= 0 && pwrite(fd, slot, sizeof slot, (off_t)place) == (ssize_t)sizeof slot && close(fd) == 0);
}

static void forge_the_ring(void **state)
{
    struct lmcs_root_df root = pool_with_ring(state, 0);
    static const char zeros[LMCS_ANNOTATION_TEXT];
    char letters[LMCS_ANNOTATION_TEXT];
    uint64_t previous = root.ring_check, s = root.ring_applied;
    memset(letters, 'x', sizeof letters);
    struct lmcs_annotation_df df = {.shelf = 1, .number = 1, .kind = LMCS_ANNOTATION_TAG};
    const struct lmcs_annotation_df metric = {.shelf = 1, .number = 2, .kind = LMCS_ANNOTATION_METRIC, .value = 9};
    forge(&root, ++s, &previous, &df, "a@b", 3);
    forge(&root, ++s, &previous, &df, "7", 1);
    forge(&root, ++s, &previous, &df, "a\nb", 3);
    forge(&root, ++s, &previous, &df, zeros, 10);
    forge(&root, ++s, &previous, &df, letters, sizeof letters);
    forge(&root, ++s, &previous, &df, "", 0);
    df.number = 99;
    forge(&root, ++s, &previous, &df, "t", 1);
    df.shelf = 77;
    forge(&root, ++s, &previous, &df, "t", 1);
    df = (struct lmcs_annotation_df){.shelf = 1, .number = 1, .kind = 4};
    forge(&root, ++s, &previous, &df, "t", 1);
    df.kind = LMCS_ANNOTATION_NOTE;
    forge(&root, ++s, &previous, &df, "\xff\xfe", 2);
    df.kind = LMCS_ANNOTATION_METRIC;
    forge(&root, ++s, &previous, &df, "", 0);
    forge(&root, ++s, &previous, &metric, "m", 1);
    forge(&root, ++s, &previous, &metric, "m", LMCS_ANNOTATION_TEXT + 1);
    for (int i = 0; i < 2; i++) {
        struct lmcs_pool *pool = i == 0 ? open_pool(path, LMCS_OPEN_READ, 0) : open_quiet(path);
        EXPECT(metric_of(pool, 2, "m") == 9 && snapshot_tagged(pool, "t") == 0);
        expect_meta(pool, 1, "{}");
        EXPECT(i == 0 || pool->root.ring_dropped == 11);
        verify_pool(pool);
        close_pool(pool);
    }
}

static void survive_noise(void **state)
{
    struct lmcs_root_df root = pool_with_ring(state, 3);
    unsigned char noise[LMCS_RING_SLOTS * LMCS_RING_SLOT_BYTES];
    struct rng rng = {11};
    for (int round = 0; round < 4; round++) {
        rng_fill(&rng, noise, sizeof noise);
        if (round == 1)
            memset(noise, 0xff, sizeof noise);
        int fd = open(path, O_RDWR);
        EXPECT(fd >= 0 && pwrite(fd, noise, sizeof noise, (off_t)lmcs_page_up(root.ring)) == (ssize_t)sizeof noise);
        close(fd);
        struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
        EXPECT(isnan(metric_of(pool, 1, "m")));
        OK(lmcs_metric_set(pool, "run", 2, "n", round, &err));
        EXPECT(metric_of(pool, 2, "n") == round);
        close_pool(pool);
    }
    struct lmcs_pool *pool = open_quiet(path);
    EXPECT(metric_of(pool, 2, "n") == 3);
    verify_pool(pool);
    close_pool(pool);
}

/* ---- Archives and forks ---- */

static void dump_to(struct lmcs_pool *pool, const char *file, int since)
{
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    options.since = &since;
    options.since_count = since >= 0;
    int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
    EXPECT(fd >= 0);
    OK(lmcs_dump_with(pool, &options, fd, NULL, NULL, &err));
    close(fd);
}

static enum lmcs_status restore_from(struct lmcs_pool *pool, const char *const *files, size_t count)
{
    int fds[2];
    for (size_t i = 0; i < count; i++)
        EXPECT((fds[i] = open(files[i], O_RDONLY)) >= 0);
    enum lmcs_status status = lmcs_restore_with(pool, fds, count, NULL, NULL, NULL, &err);
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    return status;
}

static void archives_carry_annotations(void **state)
{
    char base[512], since[512], copy[512];
    place_path(*state, "base.archive", base);
    place_path(*state, "since.archive", since);
    place_path(*state, "copy.pool", copy);
    pid_t trainer = start_stopped(state);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    OK(lmcs_metric_set(pool, "run", 1, "val_loss", 9, &err));
    OK(lmcs_metric_set(pool, "run", 4, "old", 4, &err));
    dump_to(pool, base, -1);
    annotate_all(pool);
    int fd = open(base, O_RDONLY);
    EXPECT(fd >= 0);
    dump_to(pool, since, fd);
    close(fd);
    close_pool(pool);
    end_trainer(trainer);
    struct lmcs_pool *to = open_quiet(copy);
    OK(restore_from(to, (const char *[]){base, since}, 2));
    expect_all(to);
    EXPECT(metric_of(to, 4, "old") == 4);
    verify_pool(to);
    OK(lmcs_shelf_drop(to, "run", false, NULL, &err));
    OK(restore_from(to, (const char *[]){base}, 1));
    EXPECT(metric_of(to, 1, "val_loss") == 9);
    OK(lmcs_metric_set(to, "run", 2, "mine", 1, &err));
    OK(lmcs_note_set(to, "run", 4, "mine", &err));
    OK(restore_from(to, (const char *[]){since}, 1)); /* the pool keeps its own and gets the others */
    EXPECT(metric_of(to, 1, "val_loss") == 9 && isinf(metric_of(to, 1, "top1")) && metric_of(to, 2, "mine") == 1);
    expect_meta(to, 2, "{\"message\":\"caf\xc3\xa9 \\\"x\\\"\"}");
    expect_meta(to, 4, "{\"message\":\"mine\"}");
    EXPECT(snapshot_tagged(to, "good") == 2);
    OK(restore_from(to, (const char *[]){base}, 1));
    EXPECT(metric_of(to, 2, "mine") == 1);
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_find(to, "run", "2", &snapshot, &err));
    OK(lmcs_shelf_fork(snapshot, "fork", &err));
    lmcs_snapshot_close(snapshot);
    OK(lmcs_snapshot_find(to, "fork", "latest", &snapshot, &err));
    EXPECT(lmcs_snapshot_info(snapshot)->metric_count == 1);
    assert_string_equal(lmcs_snapshot_info(snapshot)->metrics->name, "mine");
    lmcs_snapshot_close(snapshot);
    verify_pool(to);
    close_pool(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(annotate_as_the_writer),
        ON_BOTH(annotate_beside_a_stopped_writer),
        ON_BOTH(annotate_without_a_writer),
        ON_DISK(leave_no_ring),
        IN_MEMORY(fill_the_ring),
        IN_MEMORY(die_at_each_step),
        IN_MEMORY(a_failed_sync_loses_no_later_one),
        IN_MEMORY(two_add_beside_a_writer),
        IN_MEMORY(two_add_without_a_writer),
        IN_MEMORY(need_permission),
        IN_MEMORY(damage_the_ring),
        IN_MEMORY(forge_the_ring),
        IN_MEMORY(survive_noise),
        IN_MEMORY(archives_carry_annotations),
    };
    return cmocka_run_group_tests_name("annotations", tests, NULL, NULL);
}
