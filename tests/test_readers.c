/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_readers.c - processes that die, stop, lock, or write foreign bytes, beside a working one.
 *
 * A reader's space is held until it is dead. Foreign locks, writes, cuts and deletions make calls fail with a reason;
 * wrong bytes are never accepted, and the rest stays readable.
 */
/* ctest: timeout=600 labels=no-tsan */
#include "support.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT ((uint64_t)64 << 20)

struct shared {
    volatile int stage;
    volatile int pid;
};

struct scene {
    const char *path;
    struct shared *shared;
    const struct state *state;
    const struct state *other;
};

static void end_with_the_test(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(200);
}

static struct shared *share(void)
{
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    return shared;
}

static void wait_stage(const struct shared *shared, int stage)
{
    for (int i = 0; i < 250000 && shared->stage < stage; i++)
        usleep(1000);
    EXPECT(shared->stage >= stage);
}

static void wait_stopped(pid_t child)
{
    int status;
    EXPECT(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
}

static void end_by(pid_t child, int number)
{
    int status;
    EXPECT(kill(child, number) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
}

static struct lmcs_snapshot *find(struct lmcs_pool *pool, const char *which)
{
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
    return snapshot;
}

static struct lmcs_view *view_of(struct lmcs_pool *pool, const char *which, uint32_t flags)
{
    struct lmcs_snapshot *snapshot = find(pool, which);
    struct lmcs_view *view;
    OK(lmcs_view_open(snapshot, NULL, NULL, 0, flags, &view, &err));
    lmcs_snapshot_close(snapshot);
    return view;
}

static bool shows(const struct lmcs_view *view, const struct state *state)
{
    EXPECT(lmcs_view_count(view) == state->count);
    for (size_t i = 0; i < state->count; i++)
        if (memcmp(lmcs_view_data(view, i), state->tensors[i].data, state->tensors[i].bytes) != 0)
            return false;
    return true;
}

static void change(struct state *state, struct rng *rng)
{
    for (size_t i = 0; i < state->count; i++)
        rng_fill(rng, state->tensors[i].data, state->tensors[i].bytes);
}

static void churn(struct lmcs_pool *pool, const struct state *like, int rounds)
{
    struct rng rng = {77};
    struct state *state = state_copy(like);
    for (int i = 0; i < rounds; i++) {
        change(state, &rng);
        uint64_t number = take_snapshot(pool, "churn", state, i);
        OK(lmcs_tag_set(pool, "churn", "newest", number, &err));
        if (i > 0)
            OK(lmcs_snapshot_remove(pool, "churn", number - 1, false, NULL, &err));
        enum lmcs_status status = i % 4 == 3 ? lmcs_compact(pool, NULL, &err) : LMCS_OK;
        if (status != LMCS_IN_USE)
            OK(status);
    }
    state_free(state);
    OK(lmcs_snapshot_remove(pool, "churn", shelf_info(pool, "churn").latest, false, NULL, &err));
}

static struct lmcs_pool *begin(const char *path, struct state **one, struct state **two)
{
    struct rng rng = {5};
    struct lmcs_pool *pool = open_limited(path, LIMIT);
    *one = state_weights(&rng, 12, 50000);
    state_add(*one, "small", LMC_U8, 1, (const uint64_t[]){900});
    *two = state_copy(*one);
    change(*two, &rng);
    take_snapshot(pool, "run", *one, 1);
    take_snapshot(pool, "run", *two, 2);
    return pool;
}

static void end(struct lmcs_pool *pool, struct state *one, struct state *two)
{
    verify_pool(pool);
    close_pool(pool);
    state_free(one);
    state_free(two);
}

struct walk {
    size_t seen;
    uint64_t bytes;
};

/* In a walk through a snapshot's entries: its root is leased. */
static bool stop_in_between(void *context, const struct lmcs_entry *entry)
{
    struct walk *walk = context;
    walk->bytes += entry->raw_bytes;
    if (++walk->seen == 5)
        raise(SIGSTOP);
    return true;
}

static int walk_and_stop(void *argument)
{
    end_with_the_test();
    const struct scene *scene = argument;
    struct lmcs_pool *pool = open_pool(scene->path, LMCS_OPEN_READ, 0);
    struct lmcs_view *views[2] = {view_of(pool, "1", 0), view_of(pool, "2", LMCS_VIEW_PRIVATE)};
    struct lmcs_snapshot *snapshot = find(pool, "1");
    struct walk walk = {0, 0};
    OK(lmcs_snapshot_entries(snapshot, stop_in_between, &walk, &err));
    EXPECT(walk.seen == scene->state->count && walk.bytes == 12 * 200000 + 900);
    EXPECT(shows(views[0], scene->state) && shows(views[1], scene->other));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_entries(snapshot, stop_in_between, &walk, &err));
    lmcs_snapshot_close(snapshot);
    for (int i = 0; i < 2; i++)
        lmcs_view_close(views[i]);
    close_pool(pool);
    return 0;
}

/* Other work continues while the reader is stopped. Then its walk ends consistently, and its views are unchanged. */
static void a_stopped_reader_keeps_what_it_sees(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    struct lmcs_pool *pool = begin(place->pool, &one, &two);
    struct scene scene = {place->pool, NULL, one, two};
    pid_t child = start_child(walk_and_stop, &scene);
    wait_stopped(child);
    alarm(200); /* instead of blocking for ever */
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    OK(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    churn(pool, one, 12);
    verify_pool(pool);
    close_pool(pool);
    pool = open_limited(place->pool, 0);
    churn(pool, one, 4);
    EXPECT(kill(child, SIGCONT) == 0);
    expect_child(child);
    alarm(0);
    end(pool, one, two);
}

static uint64_t used_when_compacted(struct lmcs_pool *pool)
{
    OK(lmcs_compact(pool, NULL, &err));
    return pool_info(pool).used_bytes;
}

static void what_a_killed_reader_held_comes_back(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    struct lmcs_pool *pool = begin(place->pool, &one, &two);
    churn(pool, one, 8);
    uint64_t before = used_when_compacted(pool);
    struct scene scene = {place->pool, NULL, one, two};
    pid_t child = start_child(walk_and_stop, &scene);
    wait_stopped(child);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    OK(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    churn(pool, one, 12);
    assert_true(used_when_compacted(pool) >= before + ((uint64_t)12 << 20));
    end_by(child, SIGKILL);
    assert_true(used_when_compacted(pool) <= before);
    end(pool, one, two);
}

static int outlive(void *argument)
{
    end_with_the_test();
    const struct scene *scene = argument;
    struct lmcs_pool *pool = open_pool(scene->path, LMCS_OPEN_WRITE, 0);
    struct lmcs_view *view = view_of(pool, "1", 0);
    pid_t parent = getpid();
    pid_t child = fork();
    if (child > 0) {
        scene->shared->pid = child;
        pause();
    }
    scene->shared->stage = 1;
    while (getppid() == parent)
        usleep(1000);
    wait_stage(scene->shared, 2);
    struct lmcs_capture *capture;
    struct lmcs_snapshot *snapshot;
    FAILS(LMCS_INVALID, lmcs_capture_begin(pool, "run", &capture, &err));
    FAILS(LMCS_INVALID, lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    FAILS(LMCS_INVALID, lmcs_tag_set(pool, "run", "mine", 2, &err));
    FAILS(LMCS_INVALID, lmcs_compact(pool, NULL, &err));
    FAILS(LMCS_INVALID, lmcs_snapshot_find(pool, "run", NULL, &snapshot, &err));
    bool right = shows(view, scene->state);
    lmcs_view_close(view);
    (void)lmcs_pool_close(pool, &err);
    scene->shared->stage = right ? 3 : 4;
    _exit(0);
}

static void a_child_that_outlives_its_parent(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    close_pool(begin(place->pool, &one, &two));
    struct scene scene = {place->pool, share(), one, two};
    pid_t parent = start_child(outlive, &scene);
    wait_stage(scene.shared, 1);
    end_by(parent, SIGKILL);
    struct lmcs_pool *pool = open_limited(place->pool, 0);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    churn(pool, one, 12);
    scene.shared->stage = 2;
    wait_stage(scene.shared, 3);
    assert_int_equal(scene.shared->stage, 3);
    expect_snapshot(pool, "run", 2, two);
    munmap(scene.shared, sizeof *scene.shared);
    end(pool, one, two);
}

static int write_to_another(void *argument)
{
    const struct scene *scene = argument;
    end_with_the_test();
    for (int i = 0; i < 3; i++) {
        struct lmcs_pool *pool = open_pool(scene->path, LMCS_OPEN_WRITE, 0);
        take_snapshot(pool, "run", scene->state, i);
        verify_pool(pool);
        close_pool(pool);
    }
    return 0;
}

static void a_child_writes_to_another_pool(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    char more[3][512], other[512];
    struct lmcs_pool *pool = begin(place->pool, &one, &two), *mores[3];
    for (int i = 0; i < 3; i++) {
        snprintf(other, sizeof other, "more-%d.pool", i);
        place_path(place, other, more[i]);
        mores[i] = open_limited(more[i], LIMIT);
    }
    place_path(place, "other.pool", other);
    struct lmcs_pool *another = open_limited(other, LIMIT);
    take_snapshot(another, "run", one, 0);
    close_pool(another);
    struct scene scene = {other, NULL, one, two};
    expect_child(start_child(write_to_another, &scene));
    assert_int_equal(take_snapshot(pool, "run", two, 3), 3);
    for (int i = 0; i < 3; i++)
        close_pool(mores[i]);
    end(pool, one, two);
}

/* libpmemobj cannot open a pool and its copy in one process; that is no damage. */
static void a_pool_and_its_copy(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    char other[512];
    struct lmcs_pool *pool = begin(place->pool, &one, &two), *copy;
    place_path(place, "other.pool", other);
    copy_file(place->pool, other);
    FAILS(LMCS_UNSUPPORTED, lmcs_pool_open(other, LMCS_OPEN_WRITE, NULL, &copy, &err));
    assert_non_null(strstr(err.message, "copy"));
    copy = open_pool(other, LMCS_OPEN_READ, 0);
    expect_snapshot(copy, "run", 1, one);
    close_pool(copy);
    end(pool, one, two);
}

enum lock { POSIX_WRITE, POSIX_READ, OFD_WRITE, OFD_READ, FLOCK_EXCLUSIVE, FLOCK_SHARED };

static void lock_file(int fd, enum lock kind)
{
    struct flock lock = {.l_type = kind == POSIX_WRITE || kind == OFD_WRITE ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET};
    int result = kind >= FLOCK_EXCLUSIVE ? flock(fd, kind == FLOCK_EXCLUSIVE ? LOCK_EX : LOCK_SH)
                 : kind >= OFD_WRITE     ? fcntl(fd, F_OFD_SETLK, &lock)
                                         : fcntl(fd, F_SETLK, &lock);
    EXPECT(result == 0);
}

struct locking {
    const char *path;
    struct shared *shared;
    enum lock kind;
};

static int lock_and_wait(void *argument)
{
    end_with_the_test();
    const struct locking *locking = argument;
    int fd = open(locking->path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0);
    lock_file(fd, locking->kind);
    locking->shared->stage = 1;
    pause();
    return 0;
}

static pid_t lock_elsewhere(struct locking *locking)
{
    locking->shared->stage = 0;
    pid_t child = start_child(lock_and_wait, locking);
    wait_stage(locking->shared, 1);
    return child;
}

static void expect_named(pid_t pid)
{
    char text[32];
    snprintf(text, sizeof text, "%d", (int)pid);
    if (strstr(err.message, text) == NULL)
        fail_msg("the message does not name process %s: %s", text, err.message);
}

/* A write lock on the whole file: views fail and name the owner; other work continues. */
static void a_stranger_locks_the_whole_file(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    struct lmcs_pool *pool = begin(place->pool, &one, &two);
    struct locking locking = {place->pool, share(), POSIX_WRITE};
    for (int i = 0; i < 2; i++) {
        locking.kind = i == 0 ? POSIX_WRITE : OFD_WRITE;
        pid_t child = lock_elsewhere(&locking);
        struct lmcs_snapshot *snapshot = find(pool, "1");
        struct lmcs_view *view;
        alarm(100);
        FAILS(LMCS_IN_USE, lmcs_view_open(snapshot, NULL, NULL, 0, 0, &view, &err));
        if (locking.kind == POSIX_WRITE) /* the kernel hides the owner of the other kind */
            expect_named(child);
        assert_non_null(strstr(err.message, "lock"));
        lmcs_snapshot_close(snapshot);
        churn(pool, one, 4);
        FAILS(LMCS_IN_USE, lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &err));
        alarm(0);
        end_by(child, SIGKILL);
        expect_snapshot(pool, "run", 1, one);
    }
    munmap(locking.shared, sizeof *locking.shared);
    end(pool, one, two);
}

/* A read lock on the whole file is a lease of everything: no space is reused; other work continues. */
static void a_stranger_holds_a_read_lock(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    struct lmcs_pool *pool = begin(place->pool, &one, &two);
    struct locking locking = {place->pool, share(), POSIX_READ};
    uint64_t before = used_when_compacted(pool);
    for (int i = 0; i < 2; i++) {
        locking.kind = i == 0 ? POSIX_READ : OFD_READ;
        pid_t child = lock_elsewhere(&locking);
        alarm(100);
        churn(pool, one, 8);
        expect_snapshot(pool, "run", 1, one);
        assert_true(used_when_compacted(pool) > before + ((uint64_t)10 << 20));
        verify_pool(pool);
        alarm(0);
        end_by(child, SIGKILL);
        assert_true(used_when_compacted(pool) <= before + ((uint64_t)1 << 20));
    }
    munmap(locking.shared, sizeof *locking.shared);
    end(pool, one, two);
}

/* libpmemobj's own lock is a flock: its owner is named; it blocks writers, not readers. */
static void a_stranger_has_an_flock(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    close_pool(begin(place->pool, &one, &two));
    struct locking locking = {place->pool, share(), FLOCK_EXCLUSIVE};
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    options.wait_ms = 50;
    for (int i = 0; i < 2; i++) {
        locking.kind = i == 0 ? FLOCK_EXCLUSIVE : FLOCK_SHARED;
        pid_t child = lock_elsewhere(&locking);
        struct lmcs_pool *pool;
        FAILS(LMCS_IN_USE, lmcs_pool_open(place->pool, LMCS_OPEN_WRITE, &options, &pool, &err));
        expect_named(child);
        pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        expect_snapshot(pool, "run", 2, two);
        close_pool(pool);
        end_by(child, SIGKILL);
    }
    munmap(locking.shared, sizeof *locking.shared);
    end(open_limited(place->pool, 0), one, two);
}

static off_t place_of(const char *path, const void *wanted, size_t bytes)
{
    enum { STEP = 1 << 20 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    unsigned char *buffer = malloc(STEP + bytes);
    off_t found = -1;
    assert_true(fd >= 0);
    for (off_t at = 0; found < 0 && (at = lseek(fd, at, SEEK_DATA)) >= 0; at += STEP) {
        ssize_t got = pread(fd, buffer, STEP + bytes, at);
        unsigned char *hit = got < (ssize_t)bytes ? NULL : memmem(buffer, (size_t)got, wanted, bytes);
        if (hit != NULL)
            found = at + (hit - buffer);
    }
    free(buffer);
    close(fd);
    assert_true(found >= 0);
    return found;
}

struct scribbling {
    const char *path;
    off_t at;
    size_t bytes;
};

static int scribble(void *argument)
{
    end_with_the_test();
    const struct scribbling *s = argument;
    struct rng rng = {123};
    unsigned char noise[4096];
    int fd = open(s->path, O_WRONLY | O_CLOEXEC);
    rng_fill(&rng, noise, sizeof noise);
    EXPECT(fd >= 0 && pwrite(fd, noise, s->bytes, s->at) == (ssize_t)s->bytes);
    close(fd);
    return 0;
}

static void scribble_at(const char *path, off_t at, size_t bytes)
{
    struct scribbling s = {path, at, bytes};
    expect_child(start_child(scribble, &s));
}

static enum lmcs_status read_tensor(struct lmcs_pool *pool, const char *which, const struct held *held, void *buffer)
{
    struct lmcs_snapshot *snapshot = find(pool, which);
    enum lmcs_status status = lmcs_snapshot_read(snapshot, LMCS_TENSOR, held->name, buffer, held->bytes, &err);
    lmcs_snapshot_close(snapshot);
    return status;
}

/* Noise in a tensor of an open pool: damage with its name; a capture of the same bytes writes them again. */
static void noise_in_a_payload_while_it_is_open(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    struct lmcs_pool *pool = begin(place->pool, &one, &two);
    const struct held *held = &two->tensors[7];
    unsigned char *buffer = malloc(held->bytes);
    scribble_at(place->pool, place_of(place->pool, held->data, 4096) + 8192, 4096);
    FAILS(LMCS_DAMAGED, read_tensor(pool, "2", held, buffer));
    assert_non_null(strstr(err.message, held->name));
    OK(read_tensor(pool, "2", &two->tensors[6], buffer));
    assert_memory_equal(buffer, two->tensors[6].data, two->tensors[6].bytes);
    FAILS(LMCS_DAMAGED, lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &err));
    assert_int_equal(take_snapshot(pool, "run", two, 3), 3);
    expect_snapshot(pool, "run", 3, two);
    OK(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    free(buffer);
    end(pool, one, two);
}

static int read_word_and_fail(void *argument)
{
    struct lmcs_pool *pool;
    FAILS(LMCS_DAMAGED, lmcs_pool_open(argument, LMCS_OPEN_READ, NULL, &pool, &err));
    return 0;
}

/* Noise in the root word: readers report damage; the next commit repairs it. */
static void noise_in_the_root_word_while_it_is_open(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    struct lmcs_pool *pool = begin(place->pool, &one, &two);
    off_t word = (off_t)(lmcs_media_superblock(pool->media) + offsetof(struct lmcs_superblock_df, root));
    scribble_at(place->pool, word, 8);
    assert_int_equal(run_child(read_word_and_fail, place->pool, 100), 0);
    expect_snapshot(pool, "run", 1, one);
    assert_int_equal(take_snapshot(pool, "run", two, 3), 3);
    close_pool(pool);
    pool = open_limited(place->pool, 0);
    expect_snapshot(pool, "run", 3, two);
    end(pool, one, two);
}

static int read_all_or_say_why(void *argument)
{
    const struct scene *scene = argument;
    struct lmcs_pool *pool;
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    if (lmcs_pool_open(scene->path, LMCS_OPEN_READ, NULL, &pool, &err) != LMCS_OK)
        return 1;
    int wrong = 0;
    for (int i = 0; i < 2; i++) {
        if (lmcs_snapshot_find(pool, "run", i == 0 ? "1" : "2", &snapshot, &err) != LMCS_OK) {
            wrong++;
            continue;
        }
        if (lmcs_view_open(snapshot, NULL, NULL, 0, LMCS_VIEW_VERIFY, &view, &err) == LMCS_OK) {
            EXPECT(shows(view, i == 0 ? scene->state : scene->other));
            lmcs_view_close(view);
        } else {
            EXPECT(err.status == LMCS_DAMAGED && err.message[0] != '\0');
            wrong++;
        }
        lmcs_snapshot_close(snapshot);
    }
    close_pool(pool);
    return wrong > 0;
}

/* Noise in each of the last pages of metadata: reads are right or an error, and no process ends. */
static void noise_in_metadata_while_it_is_open(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    struct lmcs_pool *pool = begin(place->pool, &one, &two);
    struct scene scene = {place->pool, NULL, one, two};
    uint64_t root = pool->root.self;
    unsigned char before[LMCS_PAGE_BYTES];
    int damaged = 0, fd = open(place->pool, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    for (int i = 0; i < 24; i++) {
        off_t at = (off_t)root - i * LMCS_PAGE_BYTES;
        EXPECT(pread(fd, before, sizeof before, at) == sizeof before);
        scribble_at(place->pool, at, LMCS_PAGE_BYTES);
        int status = run_child(read_all_or_say_why, &scene, 100);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
        damaged += WEXITSTATUS(status);
        EXPECT(pwrite(fd, before, sizeof before, at) == sizeof before);
    }
    assert_true(damaged > 5);
    close(fd);
    end(pool, one, two);
}

static void expect_no_commit(struct lmcs_pool *pool, const struct state *state)
{
    uint64_t number;
    FAILS(LMCS_IO, try_snapshot(pool, "run", state, 9, &number, &err));
    assert_non_null(strstr(err.message, "deleted"));
    FAILS(LMCS_IO, lmcs_tag_set(pool, "run", "tag", 1, &err));
    FAILS(LMCS_IO, lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
}

/* A file without a name gets no acknowledged snapshots, but can be read and dumped. */
static void a_pool_that_is_deleted_while_it_is_open(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    char archive[512];
    struct lmcs_pool *pool = begin(place->pool, &one, &two);
    struct lmcs_view *view = view_of(pool, "1", 0);
    assert_int_equal(unlink(place->pool), 0);
    expect_no_commit(pool, one);
    expect_snapshot(pool, "run", 2, two);
    place_path(place, "rescued.archive", archive);
    int fd = open(archive, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    OK(lmcs_dump(pool, NULL, fd, NULL, NULL, &err));
    assert_true(shows(view, one));
    close_pool(pool);
    pool = open_limited(place->pool, LIMIT);
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    OK(lmcs_restore(pool, fd, NULL, NULL, &err));
    close(fd);
    expect_snapshot(pool, "run", 1, one);
    assert_true(shows(view, one));
    lmcs_view_close(view);
    end(pool, one, two);
}

static void a_pool_that_is_replaced_while_it_is_open(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    char other[512];
    struct lmcs_pool *pool = begin(place->pool, &one, &two);
    place_path(place, "other.pool", other);
    struct lmcs_pool *another = open_limited(other, LIMIT);
    take_snapshot(another, "run", two, 1);
    close_pool(another);
    assert_int_equal(rename(other, place->pool), 0);
    expect_no_commit(pool, one);
    expect_snapshot(pool, "run", 1, one);
    close_pool(pool);
    pool = open_limited(place->pool, 0);
    expect_snapshot(pool, "run", 1, two);
    end(pool, one, two);
}

static void a_pool_that_is_renamed_while_it_is_open(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    char other[512];
    struct lmcs_pool *pool = begin(place->pool, &one, &two);
    place_path(place, "other.pool", other);
    assert_int_equal(rename(place->pool, other), 0);
    assert_int_equal(take_snapshot(pool, "run", two, 3), 3);
    close_pool(pool);
    pool = open_limited(other, 0);
    expect_snapshot(pool, "run", 3, two);
    end(pool, one, two);
}

/* Nothing is acknowledged, and the process does not end by libpmemobj's mapping. */
static int write_while_it_is_cut(void *argument)
{
    end_with_the_test();
    const struct scene *scene = argument;
    struct lmcs_pool *pool = open_pool(scene->path, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
    scene->shared->stage = 1;
    wait_stage(scene->shared, 2);
    uint64_t number;
    if (try_snapshot(pool, "run", scene->other, 3, &number, &err) == LMCS_OK)
        scene->shared->stage = 3;
    (void)!lmcs_pool_close(pool, &err);
    return 0;
}

static void a_pool_that_is_cut_while_it_is_written_to(void **state)
{
    struct place *place = *state;
    struct state *one, *two;
    char path[512];
    close_pool(begin(place->pool, &one, &two));
    off_t end_of_data = place_of(place->pool, two->tensors[11].data, 4096) + 200000;
    const off_t lengths[] = {0, 4096, 300000, end_of_data / 2, end_of_data, end_of_data + (4 << 20)};
    place_path(place, "cut.pool", path);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct scene scene = {path, share(), one, two};
        int status;
        copy_file(place->pool, path);
        pid_t child = start_child(write_while_it_is_cut, &scene);
        wait_stage(scene.shared, 1);
        assert_int_equal(truncate(path, lengths[i]), 0);
        scene.shared->stage = 2;
        EXPECT(waitpid(child, &status, 0) == child);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0 && scene.shared->stage == 2);
        munmap(scene.shared, sizeof *scene.shared);
        unlink(path);
    }
    state_free(one);
    state_free(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(a_stopped_reader_keeps_what_it_sees),
        ON_BOTH(what_a_killed_reader_held_comes_back),
        ON_BOTH(a_child_that_outlives_its_parent),
        ON_BOTH(a_child_writes_to_another_pool),
        ON_BOTH(a_pool_and_its_copy),
        ON_BOTH(a_stranger_locks_the_whole_file),
        ON_BOTH(a_stranger_holds_a_read_lock),
        ON_BOTH(a_stranger_has_an_flock),
        ON_BOTH(noise_in_a_payload_while_it_is_open),
        ON_BOTH(noise_in_the_root_word_while_it_is_open),
        ON_BOTH(noise_in_metadata_while_it_is_open),
        ON_BOTH(a_pool_that_is_deleted_while_it_is_open),
        ON_BOTH(a_pool_that_is_replaced_while_it_is_open),
        ON_BOTH(a_pool_that_is_renamed_while_it_is_open),
        ON_BOTH(a_pool_that_is_cut_while_it_is_written_to),
    };
    return cmocka_run_group_tests_name("readers", tests, NULL, NULL);
}
