/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_pool.c - pools as files: making and opening them, one writing process at a time, limits, and files that are
 * something else.
 */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static enum lmcs_status try_open(const char *path, enum lmcs_open_mode mode, uint32_t wait_ms, struct lmcs_pool **pool)
{
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    options.wait_ms = wait_ms;
    options.flags = LMCS_NO_BACKGROUND;
    *pool = NULL;
    return lmcs_pool_open(path, mode, &options, pool, &err);
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
    /* Nothing is left of the making. */
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

/* ---- Other processes ---- */

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
    for (int i = 0; i < 20000 && shared->stage < stage; i++)
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
    assert_true(now() - start >= 0.25 && now() - start < 5);
    char pid[32];
    snprintf(pid, sizeof pid, "%d", (int)child);
    if (strstr(err.message, pid) == NULL)
        fail_msg("the message does not name the holder: %s", err.message);
    /* Reading goes on beside it. */
    OK(try_open(place->pool, LMCS_OPEN_READ, 0, &pool));
    check_pool(pool);
    close_pool(pool);
    holder.shared->stage = 2;
    OK(try_open(place->pool, LMCS_OPEN_WRITE, 10000, &pool)); /* waits for it to go */
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
        /* All changes, so that the pool grows and libpmemobj's log is written to. */
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

/* What changes while one looks is no damage: whoever wants to write is told that somebody does. */
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

/* A process that is killed leaves libpmemobj's log as it was at that moment: with any capacity that a log may have. */
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

/* ---- Footers of libpmemobj's free ranges ---- */

/* libpmemobj's chunk headers, of the pool's first zone (store/heap_layout.h). */
enum { HEAP_AT = 5136, CHUNK_HEADERS = 1024 + 64, FOOTER = 1, FREE_RANGE = 2 };

struct chunk {
    uint16_t type;
    uint16_t flags;
    uint32_t count;
};

static off_t chunk_at(int fd, uint32_t i)
{
    uint64_t heap;
    EXPECT(pread(fd, &heap, sizeof heap, HEAP_AT) == sizeof heap);
    return (off_t)(heap + CHUNK_HEADERS + i * sizeof(struct chunk));
}

static struct chunk get_chunk(int fd, uint32_t i)
{
    struct chunk chunk;
    EXPECT(pread(fd, &chunk, sizeof chunk, chunk_at(fd, i)) == sizeof chunk);
    return chunk;
}

static void set_chunk(int fd, uint32_t i, uint16_t type, uint32_t count)
{
    const struct chunk chunk = {type, 0, count};
    EXPECT(pwrite(fd, &chunk, sizeof chunk, chunk_at(fd, i)) == sizeof chunk);
}

/*
 * As a process leaves it that dies while libpmemobj splits the free range at the end: the first part has its header,
 * and its footer is that of a range which once began further down, and of which another part is free again.
 */
static void leave_old_footer(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint32_t hole = 0, last = 0, i = 0;
    struct chunk chunk;
    EXPECT(fd >= 0);
    for (; (chunk = get_chunk(fd, i)).count > 0; i += chunk.count) {
        if (hole == 0 && chunk.type == FREE_RANGE && chunk.count > 10)
            hole = i;
        last = i;
    }
    chunk = get_chunk(fd, last);
    EXPECT(hole > 0 && hole < last && chunk.type == FREE_RANGE && chunk.count > 100);
    set_chunk(fd, last, FREE_RANGE, 12);
    set_chunk(fd, last + 12, FREE_RANGE, chunk.count - 12);
    set_chunk(fd, last + 11, FOOTER, last + 12 - hole);
    close(fd);
}

/* Else libpmemobj would take all between the two free ranges for free: what is there would be written over. */
static void old_footer_of_a_free_range(void **state)
{
    const struct place *place = *state;
    struct rng rng = {43};
    struct state *gone = state_weights(&rng, 1, 1300000), *kept = state_weights(&rng, 1, 700000),
                 *later = state_weights(&rng, 2, 1500000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "gone", gone, 1);
    take_snapshot(pool, "kept", kept, 1);
    OK(lmcs_snapshot_remove(pool, "gone", 1, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    close_pool(pool);
    leave_old_footer(place->pool);
    pool = open_quiet(place->pool);
    take_snapshot(pool, "later", later, 1);
    close_pool(pool);
    pool = open_quiet(place->pool);
    expect_snapshot(pool, "kept", 1, kept);
    expect_snapshot(pool, "later", 1, later);
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    state_free(gone);
    state_free(kept);
    state_free(later);
}

/* ---- What libpmemobj's log has yet to do ---- */

enum { LANES_AT = 5120, ROOT_AT = 6144, REDO_LOG = 256, LOG_HEADER = 64, CHUNKS_COMPARED = 4096 };

struct entry {
    uint64_t place;
    uint64_t value;
};

static uint64_t get_word(int fd, uint64_t at)
{
    uint64_t word;
    EXPECT(pread(fd, &word, sizeof word, (off_t)at) == sizeof word);
    return word;
}

static void set_word(int fd, uint64_t at, uint64_t word)
{
    EXPECT(pwrite(fd, &word, sizeof word, (off_t)at) == sizeof word);
}

/* A complete log in the first lane, as a process leaves it that is killed before it does what the log says. */
static void leave_log(int fd, const struct entry *entries, size_t count)
{
    uint32_t words[(LOG_HEADER + 640) / 4] = {0}, low = 0, high = 0;
    const uint64_t capacity = 640;
    EXPECT(count < 40);
    memcpy(words + 4, &capacity, sizeof capacity);
    memcpy(words + LOG_HEADER / 4, entries, count * sizeof *entries);
    for (size_t i = 0; i < LOG_HEADER / 4 + count * 4; i++) { /* Fletcher's checksum */
        low += words[i];
        high += low;
    }
    words[0] = low;
    words[1] = high;
    EXPECT(pwrite(fd, words, sizeof words, (off_t)(get_word(fd, LANES_AT) + REDO_LOG)) == sizeof words);
}

/* The words that a commit changes by libpmemobj's log: the reference to the root page, and headers of chunks. */
static size_t list_words(int fd, struct entry *words)
{
    words[0].place = get_word(fd, ROOT_AT) + offsetof(struct lmcs_superblock_df, root);
    for (uint64_t i = 0; i < CHUNKS_COMPARED; i++)
        words[i + 1].place = (uint64_t)chunk_at(fd, (uint32_t)i);
    for (size_t i = 0; i <= CHUNKS_COMPARED; i++)
        words[i].value = get_word(fd, words[i].place);
    return CHUNKS_COMPARED + 1;
}

/* It is done by who opens the pool for writing; mode r shows what was before. */
static void log_that_is_yet_to_be_done(void **state)
{
    struct place *place = *state;
    struct rng rng = {44};
    static struct entry before[CHUNKS_COMPARED + 1], after[CHUNKS_COMPARED + 1];
    struct entry entries[40];
    struct state *first = state_weights(&rng, 1, 1000), *second = state_copy(first);
    char path[512];
    size_t count = 0;
    place_path(place, "killed.pool", path);
    struct lmcs_pool *pool = open_quiet(place->pool);
    int fd = open(place->pool, O_RDONLY | O_CLOEXEC);
    take_snapshot(pool, "run", first, 1);
    size_t words = list_words(fd, before);
    state_step(second, &rng, 0, 1);
    take_snapshot(pool, "run", second, 2);
    list_words(fd, after);
    copy_file(place->pool, path);
    close(fd);
    close_pool(pool);
    fd = open(path, O_RDWR | O_CLOEXEC);
    for (size_t i = 0; i < words; i++)
        if (before[i].value != after[i].value) {
            EXPECT(count < 40);
            entries[count++] = after[i];
            set_word(fd, before[i].place, before[i].value);
        }
    EXPECT(count >= 1);
    leave_log(fd, entries, count);
    close(fd);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    assert_int_equal(shelf_info(pool, "run").latest, 1);
    expect_snapshot(pool, "run", 1, first);
    close_pool(pool);
    pool = open_quiet(path);
    assert_int_equal(shelf_info(pool, "run").latest, 2);
    expect_snapshot(pool, "run", 1, first);
    expect_snapshot(pool, "run", 2, second);
    verify_pool(pool);
    close_pool(pool);
    state_free(first);
    state_free(second);
}

/* One that would free what is in use, or put another root in the root's place, is refused before it is done. */
static void log_that_does_harm(void **state)
{
    struct place *place = *state;
    struct rng rng = {45};
    static struct entry words[CHUNKS_COMPARED + 1];
    struct state *weights = state_weights(&rng, 2, 3000000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    close_pool(pool);
    int fd = open(place->pool, O_RDWR | O_CLOEXEC);
    list_words(fd, words);
    size_t used = 1;
    struct chunk chunk;
    for (uint32_t i = 0; (chunk = get_chunk(fd, i)).count > 0; i += chunk.count)
        if (chunk.type == 3 && chunk.count > 10) /* in use */
            used = i + 1;
    const uint64_t set = 0, and = (uint64_t)1 << 61, or = (uint64_t)2 << 61;
    const struct entry cases[] = {
        {set | words[used].place, (words[used].value & ~(uint64_t)0xffff) | FREE_RANGE},
        {and | words[used].place, ~(uint64_t)1},
        { or | words[used].place, (uint64_t)1 << 40},
        {set | words[0].place, words[0].value + ((uint64_t)1 << 16)},
        {set | (words[0].place - 8), 0}, /* the superblock's checksum */
        {(uint64_t)3 << 61 | words[used].place, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        leave_log(fd, &cases[i], 1);
        FAILS(LMCS_DAMAGED, try_open(place->pool, LMCS_OPEN_WRITE, 0, &pool));
        assert_true(get_word(fd, words[0].place) == words[0].value);
        assert_true(get_word(fd, words[used].place) == words[used].value);
        pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        expect_snapshot(pool, "run", 1, weights);
        close_pool(pool);
    }
    leave_log(fd, cases, 0); /* an empty one */
    close(fd);
    pool = open_quiet(place->pool);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
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
    if (child == 0) { /* like a DataLoader's worker: it does nothing, and goes on for long */
        holder->shared->pid = getpid();
        pause();
        _exit(0);
    }
    while (holder->shared->pid == 0)
        usleep(1000);
    holder->shared->stage = 1;
    pause(); /* to be killed */
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
    assert_int_equal(kill(holder.shared->pid, 0), 0); /* its child lives */
    double start = now();
    OK(try_open(place->pool, LMCS_OPEN_WRITE, 2000, &pool));
    assert_true(now() - start < 1);
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
    /* The parent's pool is as it was, also after the child's close. */
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

/* While another thread opens a pool, for which it holds locks of the whole process; in the child it is not there. */
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

/* ---- Limits ---- */

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
    struct state *weights = state_weights(&rng, 4, 1 << 18); /* 4 MiB */
    uint64_t number, taken = 0;
    for (;;) {
        enum lmcs_status status = try_snapshot(pool, "run", weights, 0, &number, &err);
        check_pool(pool);
        if (status != LMCS_OK)
            break;
        taken++;
        assert_true(taken <= 6);
        for (size_t i = 0; i < weights->count; i++) /* random: it can't be compressed */
            rng_fill(&rng, weights->tensors[i].data, weights->tensors[i].bytes);
    }
    assert_int_equal(err.status, LMCS_FULL);
    assert_true(err.bytes_needed > 0);
    assert_true(taken >= 2);
    assert_true(pool_info(pool).used_bytes <= limit);
    assert_true(disk_bytes(place->pool) <= limit + ((uint64_t)5 << 20)); /* and what libpmemobj needs itself */
    FAILS(LMCS_INVALID, lmcs_pool_set_limit(pool, LMCS_MIN_POOL_BYTES, &err));
    OK(lmcs_pool_set_limit(pool, 2 * limit, &err));
    number = take_snapshot(pool, "run", weights, 0);
    expect_snapshot(pool, "run", number, weights);
    close_pool(pool);
    pool = open_quiet(place->pool);
    assert_int_equal(pool_info(pool).limit_bytes, 2 * limit);
    OK(lmcs_pool_set_limit(pool, 0, &err));
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

/* ---- Things that are no pools ---- */

static void write_bytes(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
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
    int fd = open(place->pool, O_RDONLY); /* and it was not touched */
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

/* ---- Poolsets ---- */

static void poolset_with_a_replica(void **state)
{
    struct place *place = *state;
    struct rng rng = {10};
    struct state *weights = state_weights(&rng, 3, 1 << 15);
    char path[512], text[2048];
    place_path(place, "pool.set", path);
    snprintf(text, sizeof text, "PMEMPOOLSET\n64M %s/part0\n64M %s/part1\nREPLICA\n128M %s/replica0\n", place->folder,
             place->folder, place->folder);
    write_bytes(path, text, strlen(text));
    struct lmcs_pool *pool = open_quiet(path);
    for (int i = 0; i < 8; i++) {
        take_snapshot(pool, "run", weights, i);
        check_pool(pool);
        state_step(weights, &rng, 0, weights->count);
    }
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
    pool = open_quiet(path);
    verify_pool(pool);
    take_snapshot(pool, "run", weights, 9);
    expect_state(pool, "run", "latest", weights);
    close_pool(pool);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    expect_state(pool, "run", "latest", weights);
    close_pool(pool);
    state_free(weights);
}

/* What a process that was killed while it made a pool has left goes when one is made there; what others do, stays. */
static void forgotten_beginnings(void **state)
{
    struct place *place = *state;
    static const struct {
        const char *name, *bytes;
        bool old, locked, gone;
    } beginnings[] = {
        {"a.pool.lmc-store-new-abcdef", "PMEMOBJ", true, false, true},
        {"a.pool.lmc-store-new-ghijkl", "\0\0\0\0\0\0\0", true, false, true},
        {"a.pool.lmc-store-new-mnopqr", NULL, true, false, true},
        {"a.pool.lmc-store-new-uvwxyz", "PMEMOBJ", true, true, false},   /* somebody is at it */
        {"a.pool.lmc-store-new-ABCDEF", "PMEMOBJ", false, false, false}, /* or will be soon */
        {"a.pool.lmc-store-new-GHIJKL", "a notes", true, false, false},  /* it was something else */
        {"a.pool.lmc-store-new-longer1", "PMEMOBJ", true, false, false},
        {"b.pool.lmc-store-new-abcdef", "PMEMOBJ", true, false, false},
        {"a.pool.new-backup", "PMEMOBJ", true, false, false},
    };
    enum { COUNT = sizeof beginnings / sizeof beginnings[0] };
    int locks[COUNT];
    char path[512];
    for (size_t i = 0; i < COUNT; i++) {
        const struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
        place_path(place, beginnings[i].name, path);
        write_bytes(path, beginnings[i].bytes, beginnings[i].bytes != NULL ? 8 : 0);
        locks[i] = open(path, O_RDWR | O_CLOEXEC);
        EXPECT(locks[i] >= 0 && (!beginnings[i].old || futimens(locks[i], old) == 0));
        EXPECT(!beginnings[i].locked || flock(locks[i], LOCK_EX | LOCK_NB) == 0);
    }
    close_pool(open_quiet(place->pool));
    for (size_t i = 0; i < COUNT; i++) {
        place_path(place, beginnings[i].name, path);
        EXPECT((access(path, F_OK) != 0) == beginnings[i].gone);
        close(locks[i]);
    }
    /* It got its name, and died before the other one was taken away: by which a deleted pool would go on. */
    place_path(place, beginnings[0].name, path);
    EXPECT(link(place->pool, path) == 0);
    close_pool(open_pool(place->pool, LMCS_OPEN_WRITE, 0));
    EXPECT(access(path, F_OK) != 0 && access(place->pool, F_OK) == 0);
}

/* A word of the first part of a poolset's replica, whose places are those in the pool. */
static uint64_t swap_word(const char *path, uint64_t at, uint64_t word)
{
    uint64_t old = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0 && pread(fd, &old, sizeof old, (off_t)at) == sizeof old);
    EXPECT(word == 0 || pwrite(fd, &word, sizeof word, (off_t)at) == sizeof word);
    close(fd);
    return old;
}

/* Power failed when one replica had the new root and the other did not: whoever opens it for writing makes them one. */
static void replicas_that_differ_by_a_commit(void **state)
{
    struct place *place = *state;
    struct rng rng = {12};
    struct state *weights = state_weights(&rng, 3, 1 << 12);
    char path[512], first[512], second[512], text[2048];
    place_path(place, "pool.set", path);
    place_path(place, "part0", first);
    place_path(place, "replica0", second);
    snprintf(text, sizeof text, "PMEMPOOLSET\n64M %s\nREPLICA\n64M %s\n", first, second);
    write_bytes(path, text, strlen(text));
    struct lmcs_pool *pool = open_quiet(path);
    uint64_t word_at = lmcs_media_superblock(pool->media) + offsetof(struct lmcs_superblock_df, root);
    take_snapshot(pool, "run", weights, 1);
    close_pool(pool);
    uint64_t old = swap_word(first, word_at, 0);
    pool = open_quiet(path);
    OK(lmcs_tag_set(pool, "run", "best", 1, &err));
    close_pool(pool);
    uint64_t new = swap_word(second, word_at, old);
    EXPECT(new != old &&swap_word(first, word_at, 0) == new);
    close_pool(open_quiet(path));
    EXPECT(swap_word(second, word_at, 0) == swap_word(first, word_at, 0));
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    expect_state(pool, "run", "best", weights);
    close_pool(pool);
    state_free(weights);
}

/* Writes a poolset file; an @ in its lines stands for the folder. */
static void write_poolset(const struct place *place, const char *name, const char *lines)
{
    char path[512], text[2048] = "PMEMPOOLSET\n";
    size_t used = strlen(text);
    for (const char *at = lines; *at != '\0' && used < sizeof text; at++)
        used += (size_t)snprintf(text + used, sizeof text - used, *at == '@' ? "%s" : "%.1s",
                                 *at == '@' ? place->folder : at);
    EXPECT(used < sizeof text);
    place_path(place, name, path);
    write_bytes(path, text, used);
}

/* What a poolset may hold that we can't keep is refused, and its parts are left as they are. */
static void poolsets_that_are_refused(void **state)
{
    struct place *place = *state;
    char path[512], part[512];
    struct lmcs_pool *pool;
    static const struct {
        const char *lines;
        enum lmcs_status status;
        const char *why;
    } cases[] = {
        {"OPTION SINGLEHDR\n32M @/part0\n", LMCS_UNSUPPORTED, "options"},
        {"32M @\n", LMCS_UNSUPPORTED, "folders"},
        {"32M @/part0\n1T @/short\n", LMCS_DAMAGED, "too small"},
        {"32M @/part0\n32M /dev/null\n", LMCS_UNSUPPORTED, "must be files"},
        {"32M @/part0\n32M @/nowhere\n", LMCS_NOT_FOUND, "there is no such pool"},
        {"# nothing\n", LMCS_DAMAGED, "no parts"},
    };
    write_poolset(place, "pool.set", "32M @/part0\n");
    place_path(place, "pool.set", path);
    close_pool(open_quiet(path));
    place_path(place, "short", part);
    write_bytes(part, "x", 1);
    place_path(place, "part0", part);
    uint64_t bytes = disk_bytes(part);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_poolset(place, "other.set", cases[i].lines);
        place_path(place, "other.set", path);
        for (int mode = LMCS_OPEN_READ; mode <= LMCS_OPEN_WRITE; mode++) {
            FAILS(cases[i].status, try_open(path, (enum lmcs_open_mode)mode, 0, &pool));
            EXPECT(strstr(err.message, cases[i].why) != NULL);
        }
        EXPECT(disk_bytes(part) == bytes);
    }
    place_path(place, "pool.set", path);
    close_pool(open_quiet(path));
}

static void fill_with_noise(struct state *state, struct rng *rng)
{
    for (size_t k = 0; k < state->count; k++)
        rng_fill(rng, state->tensors[k].data, state->tensors[k].bytes);
}

/* A capture that finds no room in a small pool ends with that, however the room there is was left by others; it does
 * not look for ever, and takes no address space that it can't fill. */
static void full_pool_of_tensors_of_all_sizes(void **state)
{
    static const uint64_t sizes[] = {1074864, 300000, 2000000, 70000, 1500000};
    struct place *place = *state;
    struct rng rng = {29};
    uint64_t oldest = 1, number, refused = 0;
    struct lmcs_pool *pool = open_limited(place->pool, LMCS_MIN_POOL_BYTES);
    for (uint64_t i = 0; i < 120; i++) {
        struct state *noise = calloc(1, sizeof *noise);
        char name[32];
        snprintf(name, sizeof name, "t%u", (unsigned)rng_below(&rng, 3));
        struct held *held = state_add(noise, name, LMC_U8, 1, &sizes[rng_below(&rng, 5)]);
        rng_fill(&rng, held->data, held->bytes);
        enum lmcs_status status = try_snapshot(pool, "run", noise, (int64_t)i, &number, &err);
        EXPECT(status == LMCS_OK || status == LMCS_FULL);
        refused += status == LMCS_FULL;
        if (status == LMCS_FULL && rng_below(&rng, 3) == 0)
            OK(lmcs_snapshot_remove(pool, "run", oldest++, false, NULL, &err));
        state_free(noise);
    }
    EXPECT(refused > 20);
    verify_pool(pool);
    assert_true(pool_info(pool).used_bytes <= LMCS_MIN_POOL_BYTES);
    close_pool(pool);
}

/* A poolset has a fixed size, as a device has. A full one can be compacted, and what is removed be used again. */
static void full_poolset_goes_on(void **state)
{
    struct place *place = *state;
    struct rng rng = {11};
    struct state *noise = state_weights(&rng, 4, 400000);
    char path[512], text[1024];
    uint64_t number = 0, taken = 0;
    enum lmcs_status status = LMCS_OK;
    place_path(place, "fixed.set", path);
    snprintf(text, sizeof text, "PMEMPOOLSET\n96M %s/part0\n", place->folder);
    write_bytes(path, text, strlen(text));
    struct lmcs_pool *pool = open_quiet(path);
    while (status == LMCS_OK && taken < 30) {
        fill_with_noise(noise, &rng);
        status = try_snapshot(pool, "run", noise, 1, &number, &err);
        taken += status == LMCS_OK;
    }
    EXPECT(status == LMCS_FULL && taken >= 8);
    OK(lmcs_compact(pool, NULL, &err));
    for (uint64_t i = 1; i <= 3; i++)
        OK(lmcs_snapshot_remove(pool, "run", i, false, NULL, &err));
    for (int i = 0; i < 2; i++)
        expect_snapshot(pool, "run", take_snapshot(pool, "run", noise, 2), noise);
    /* Room of one size serves for payloads of another. */
    state_free(noise);
    noise = state_weights(&rng, 1, 2500000);
    for (uint64_t i = 4; i <= taken; i++)
        OK(lmcs_snapshot_remove(pool, "run", i, false, NULL, &err));
    for (int i = 0; i < 5; i++) {
        fill_with_noise(noise, &rng);
        take_snapshot(pool, "other", noise, i);
    }
    verify_pool(pool);
    close_pool(pool);
    state_free(noise);
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
        ON_BOTH(old_footer_of_a_free_range),
        IN_MEMORY(log_that_is_yet_to_be_done),
        IN_MEMORY(log_that_does_harm),
        ON_BOTH(killed_parent_with_a_child_alive),
        ON_BOTH(forked_child_cannot_use_it),
        ON_DISK(forked_child_opens_it_anew_for_reading),
        ON_DISK(forked_child_of_one_that_opens_a_pool),
        ON_BOTH(limit_is_kept_and_can_be_changed),
        ON_BOTH(full_pool_of_tensors_of_all_sizes),
        ON_BOTH(info_adds_up),
        ON_DISK(foreign_files),
        ON_DISK(unreadable_file),
        ON_DISK(pools_of_newer_versions),
        ON_BOTH(poolset_with_a_replica),
        ON_DISK(replicas_that_differ_by_a_commit),
        ON_DISK(forgotten_beginnings),
        IN_MEMORY(poolsets_that_are_refused),
        IN_MEMORY(full_poolset_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
