/* SPDX-License-Identifier: BSD-3-Clause */
/* support.c - shared helpers of the store's tests. */
#include "support.h"
#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pages/space.h"
#include "pages/txn.h"

_Thread_local struct lmcs_error err;

static pid_t test_pid;
static pthread_t test_thread;

/* cmocka fails by longjmp, which works only in the test's thread and process. */
static bool in_test(void)
{
    return test_pid == getpid() && pthread_equal(test_thread, pthread_self());
}

static void give_up(const char *file, int line, const char *text)
{
    if (in_test()) {
        print_error("%s\n", text);
        _fail(file, line);
    }
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
    fflush(stderr);
    if (test_pid != getpid())
        _exit(99);
    abort();
}

void expect_status(const char *file, int line, const char *call, enum lmcs_status got, enum lmcs_status expected)
{
    if (got == expected)
        return;
    char text[2048];
    snprintf(text, sizeof text, "%s: got \"%s\" (%.1200s), expected \"%s\"", call, lmcs_status_name(got),
             got == LMCS_OK ? "" : err.message, lmcs_status_name(expected));
    give_up(file, line, text);
}

void expect_true(const char *file, int line, const char *what, bool is_true)
{
    if (!is_true)
        give_up(file, line, what);
}

/* LMCS_TEST_ONLY selects tests by a part of their name. */
__attribute__((constructor)) static void choose_tests(void)
{
    static char pattern[128];
    const char *only = getenv("LMCS_TEST_ONLY");
    if (only != NULL && *only != '\0') {
        snprintf(pattern, sizeof pattern, "*%.100s*", only);
        cmocka_set_test_filter(pattern);
    }
}

static int set_up(void **state, const char *base)
{
    struct place *place = calloc(1, sizeof *place);
    test_pid = getpid();
    test_thread = pthread_self();
    if (place == NULL)
        return -1;
    snprintf(place->folder, sizeof place->folder, "%.200s/lmcs-test-XXXXXX", base);
    if (mkdtemp(place->folder) == NULL) {
        print_error("%s: %s\n", place->folder, strerror(errno));
        free(place);
        return -1;
    }
    snprintf(place->pool, sizeof place->pool, "%s/a.pool", place->folder);
    *state = place;
    return 0;
}

int set_up_on_disk(void **state)
{
    const char *base = getenv("TMPDIR");
    return set_up(state, base != NULL && *base != '\0' ? base : "/tmp");
}

int set_up_in_memory(void **state)
{
    return set_up(state, "/dev/shm");
}

int tear_down(void **state)
{
    struct place *place = *state;
    lmcs_clock_set(0);
    DIR *folder = opendir(place->folder);
    if (folder != NULL) {
        for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
                unlinkat(dirfd(folder), entry->d_name, entry->d_type == DT_DIR ? AT_REMOVEDIR : 0);
        }
        closedir(folder);
    }
    rmdir(place->folder);
    free(place);
    return 0;
}

void place_path(const struct place *place, const char *name, char path[512])
{
    snprintf(path, 512, "%s/%.200s", place->folder, name);
}

uint64_t disk_bytes(const char *path)
{
    struct stat st;
    EXPECT(stat(path, &st) == 0);
    return (uint64_t)st.st_blocks * 512;
}

static void copy_range(int in, int out, off_t at, off_t end)
{
    static char buffer[1 << 16];
    while (at < end) {
        size_t want = end - at < (off_t)sizeof buffer ? (size_t)(end - at) : sizeof buffer;
        ssize_t n = pread(in, buffer, want, at);
        EXPECT(n > 0 && pwrite(out, buffer, (size_t)n, at) == n);
        at += n;
    }
}

void copy_file(const char *from, const char *to)
{
    struct stat st;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(in >= 0 && out >= 0 && fstat(in, &st) == 0 && ftruncate(out, st.st_size) == 0);
    for (off_t at = 0, end; (at = lseek(in, at, SEEK_DATA)) >= 0; at = end) {
        end = lseek(in, at, SEEK_HOLE);
        EXPECT(end > at);
        copy_range(in, out, at, end);
    }
    close(in);
    close(out);
}

uint64_t scaled(const char *variable, uint64_t normally)
{
    const char *text = getenv(variable);
    return text != NULL && *text != '\0' ? strtoull(text, NULL, 10) : normally;
}

/* The thread sanitizer leaves little address space, and a pool with a limit has a smaller file. */
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define LIMIT_OF_NEW_POOLS ((uint64_t)8 << 30)
#endif
#endif
#ifndef LIMIT_OF_NEW_POOLS
#define LIMIT_OF_NEW_POOLS 0
#endif

/* Captures of write=auto write raw, as if measured: on a disk the form would depend on its speed. */
static struct lmcs_pool *with_raw_captures(struct lmcs_pool *pool)
{
    pthread_mutex_lock(&pool->captures);
    pool->pace = (struct lmcs_pace){.raw = 1e30, .linked = 1};
    pthread_mutex_unlock(&pool->captures);
    return pool;
}

struct lmcs_pool *open_pool(const char *path, enum lmcs_open_mode mode, uint32_t flags)
{
    struct lmcs_open_options options;
    struct lmcs_pool *pool = NULL;
    lmcs_open_options_init(&options);
    options.flags = flags;
    options.limit_bytes = LIMIT_OF_NEW_POOLS;
    OK(lmcs_pool_open(path, mode, &options, &pool, &err));
    return with_raw_captures(pool);
}

struct lmcs_pool *open_quiet(const char *path)
{
    return open_pool(path, LMCS_OPEN_OR_CREATE, LMCS_NO_BACKGROUND);
}

struct lmcs_pool *open_limited(const char *path, uint64_t limit_bytes)
{
    struct lmcs_open_options options;
    struct lmcs_pool *pool = NULL;
    lmcs_open_options_init(&options);
    options.flags = LMCS_NO_BACKGROUND;
    options.limit_bytes = limit_bytes;
    OK(lmcs_pool_open(path, LMCS_OPEN_OR_CREATE, &options, &pool, &err));
    return with_raw_captures(pool);
}

struct lmcs_pool *poolset_of_free_extents(struct place *place, char path[static 512], const struct state *last)
{
    const uint64_t bytes = 4000000;
    struct rng rng = {3};
    place_path(place, "fixed.set", path);
    FILE *file = fopen(path, "w");
    EXPECT(file != NULL && fprintf(file, "PMEMPOOLSET\n96M %s/part0\n", place->folder) > 0 && fclose(file) == 0);
    struct lmcs_pool *pool = open_quiet(path);
    struct state *one = calloc(1, sizeof *one);
    unsigned char *data = state_add(one, "t", LMC_U8, 1, &bytes)->data;
    for (int i = 0; i < FREE_EXTENTS; i++) {
        rng_fill(&rng, data, bytes);
        take_snapshot(pool, "run", one, i);
    }
    state_free(one);
    take_snapshot(pool, "run", last, FREE_EXTENTS);
    for (uint64_t i = 1; i <= FREE_EXTENTS; i++)
        OK(lmcs_snapshot_remove(pool, "run", i, false, NULL, &err));
    struct lmcs_txn txn;
    size_t released = 0;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_space_release(&txn, 1000, &released, &err));
    OK(lmcs_txn_commit(&txn, &err));
    EXPECT(released >= FREE_EXTENTS);
    return pool;
}

struct lmcs_pool *reopen_counted(struct lmcs_pool *pool, const char *path)
{
    uint64_t used = lmcs_space_used(pool);
    close_pool(pool);
    pool = open_quiet(path);
    EXPECT(lmcs_space_used(pool) == used);
    return pool;
}

struct lmcs_root_df closed_root(const char *path)
{
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    struct lmcs_root_df root = pool->root;
    close_pool(pool);
    return root;
}

void close_pool(struct lmcs_pool *pool)
{
    OK(lmcs_pool_close(pool, &err));
}

static void show_damage(void *context, const struct lmcs_damage *damage)
{
    unsigned *shown = context;
    if ((*shown)++ < 20)
        fprintf(stderr, "damage: %s@%llu %s: %s\n", damage->shelf, (unsigned long long)damage->number, damage->tensor,
                damage->what);
}

void check_pool(struct lmcs_pool *pool)
{
    unsigned shown = 0;
    OK(lmcs_check_structure(pool, show_damage, &shown, &err));
}

void verify_pool(struct lmcs_pool *pool)
{
    struct lmcs_verify_report report;
    unsigned shown = 0;
    OK(lmcs_verify(pool, NULL, show_damage, &shown, NULL, &report, &err));
    EXPECT(report.damages == 0);
}

struct lmcs_pool_info pool_info(struct lmcs_pool *pool)
{
    struct lmcs_pool_info info;
    OK(lmcs_pool_info(pool, &info, &err));
    return info;
}

struct lmcs_shelf_info shelf_info(struct lmcs_pool *pool, const char *shelf)
{
    struct lmcs_shelf_info info;
    OK(lmcs_shelf_info(pool, shelf, &info, &err));
    return info;
}

uint64_t rng_next(struct rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t rng_below(struct rng *rng, uint64_t bound)
{
    return rng_next(rng) % bound;
}

void rng_fill(struct rng *rng, void *data, size_t bytes)
{
    unsigned char *out = data;
    while (bytes > 0) {
        uint64_t word = rng_next(rng);
        size_t n = bytes < sizeof word ? bytes : sizeof word;
        memcpy(out, &word, n);
        out += n;
        bytes -= n;
    }
}

static float rng_weight(struct rng *rng)
{
    double sum = 0;
    uint64_t word = rng_next(rng);
    for (int i = 0; i < 4; i++, word >>= 16)
        sum += (double)(word & 0xffff) / 65536.0 - 0.5;
    return (float)(sum * 0.05);
}

struct held *state_add(struct state *state, const char *name, uint32_t dtype, uint32_t ndim, const uint64_t *shape)
{
    struct held *grown = realloc(state->tensors, (state->count + 1) * sizeof *grown);
    EXPECT(grown != NULL && ndim <= 4);
    state->tensors = grown;
    struct held *held = &grown[state->count++];
    *held = (struct held){.dtype = dtype, .ndim = ndim, .bytes = lmc_dtype_size(dtype)};
    snprintf(held->name, sizeof held->name, "%s", name);
    for (uint32_t i = 0; i < ndim; i++) {
        held->shape[i] = shape[i];
        held->bytes *= shape[i];
    }
    held->data = calloc(1, held->bytes + 1);
    EXPECT(held->data != NULL);
    return held;
}

struct state *state_weights(struct rng *rng, size_t count, size_t floats)
{
    struct state *state = calloc(1, sizeof *state);
    for (size_t i = 0; i < count; i++) {
        char name[64];
        uint64_t shape = floats;
        snprintf(name, sizeof name, "t%zu", i);
        struct held *held = state_add(state, name, LMC_F32, 1, &shape);
        for (size_t k = 0; k < floats; k++) {
            float value = rng_weight(rng);
            memcpy(held->data + k * sizeof value, &value, sizeof value);
        }
    }
    return state;
}

struct state *state_mixed(struct rng *rng, size_t count, size_t most_bytes)
{
    struct state *state = calloc(1, sizeof *state);
    for (size_t i = 0; i < count; i++) {
        char name[64];
        uint32_t dtype = 1 + (uint32_t)(i % (LMC_DTYPE_END - 1)), ndim = (uint32_t)rng_below(rng, 4);
        uint64_t shape[4] = {0, 0, 0, 0}, elements = rng_below(rng, most_bytes / lmc_dtype_size(dtype) + 1);
        for (uint32_t d = 0; d < ndim; d++) {
            shape[d] = d + 1 == ndim ? elements : 1 + rng_below(rng, 3);
            elements /= shape[d] > 0 ? shape[d] : 1;
        }
        snprintf(name, sizeof name, "layer.%zu.%s", i, lmc_dtype_name(dtype));
        struct held *held = state_add(state, name, dtype, ndim, shape);
        rng_fill(rng, held->data, held->bytes);
    }
    return state;
}

struct state *state_of_noise(uint64_t seed, uint64_t bytes)
{
    struct rng rng = {seed};
    struct state *state = calloc(1, sizeof *state);
    rng_fill(&rng, state_add(state, "t", LMC_U8, 1, &bytes)->data, bytes);
    return state;
}

struct state *state_copy(const struct state *state)
{
    struct state *copy = calloc(1, sizeof *copy);
    copy->count = state->count;
    copy->tensors = malloc((state->count + 1) * sizeof *copy->tensors);
    for (size_t i = 0; i < state->count; i++) {
        copy->tensors[i] = state->tensors[i];
        copy->tensors[i].data = malloc(state->tensors[i].bytes + 1);
        memcpy(copy->tensors[i].data, state->tensors[i].data, state->tensors[i].bytes);
    }
    return copy;
}

void state_step(struct state *state, struct rng *rng, size_t first, size_t count)
{
    for (size_t i = first; i < first + count && i < state->count; i++) {
        struct held *held = &state->tensors[i];
        EXPECT(held->dtype == LMC_F32);
        for (size_t k = 0; k + sizeof(float) <= held->bytes; k += sizeof(float)) {
            float value;
            memcpy(&value, held->data + k, sizeof value);
            value += rng_weight(rng) * 0.001f;
            memcpy(held->data + k, &value, sizeof value);
        }
    }
}

void state_free(struct state *state)
{
    if (state == NULL)
        return;
    for (size_t i = 0; i < state->count; i++)
        free(state->tensors[i].data);
    free(state->tensors);
    free(state);
}

void held_tensor(const struct held *held, struct lmcs_tensor *tensor)
{
    *tensor = (struct lmcs_tensor){
        .name = held->name, .kind = held->kind, .dtype = held->dtype, .ndim = held->ndim, .shape = held->shape};
}

static enum lmcs_status try_put(struct lmcs_capture *capture, const struct state *state, struct lmcs_error *error)
{
    struct lmcs_tensor *tensors = calloc(state->count + 1, sizeof *tensors);
    const void **data = calloc(state->count + 1, sizeof *data);
    for (size_t i = 0; i < state->count; i++) {
        held_tensor(&state->tensors[i], &tensors[i]);
        data[i] = state->tensors[i].data;
    }
    enum lmcs_status status = lmcs_capture_put(capture, tensors, data, state->count, error);
    free(tensors);
    free(data);
    return status;
}

void put_state(struct lmcs_capture *capture, const struct state *state)
{
    OK(try_put(capture, state, &err));
}

enum lmcs_status try_snapshot(struct lmcs_pool *pool, const char *shelf, const struct state *state, int64_t step,
                              uint64_t *number, struct lmcs_error *error)
{
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.step = step;
    enum lmcs_status status = lmcs_capture_begin(pool, shelf, &capture, error);
    if (status != LMCS_OK)
        return status;
    status = try_put(capture, state, error);
    if (status != LMCS_OK) {
        lmcs_capture_abort(capture);
        return status;
    }
    return lmcs_capture_commit(capture, &options, number, error);
}

enum lmcs_status promise_and_commit(struct lmcs_capture *capture, const struct lmcs_commit_options *options,
                                    uint64_t *number, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_capture_promise(capture, options, number, error);
    if (status != LMCS_OK) {
        lmcs_capture_abort(capture);
        return status;
    }
    status = lmcs_capture_commit(capture, NULL, NULL, error);
    if (status != LMCS_OK)
        (void)!lmcs_capture_wait(capture, NULL);
    return status;
}

uint64_t take_snapshot(struct lmcs_pool *pool, const char *shelf, const struct state *state, int64_t step)
{
    uint64_t number = 0;
    OK(try_snapshot(pool, shelf, state, step, &number, &err));
    return number;
}

struct seen {
    const struct state *state;
    size_t count;
    bool right;
};

static bool same_entry(void *context, const struct lmcs_entry *entry)
{
    struct seen *seen = context;
    seen->count++;
    if (seen->count > seen->state->count)
        return false;
    const struct held *held = NULL;
    for (size_t i = 0; i < seen->state->count && held == NULL; i++) {
        const struct held *candidate = &seen->state->tensors[(seen->count - 1 + i) % seen->state->count];
        if (strcmp(candidate->name, entry->tensor.name) == 0 && candidate->kind == entry->tensor.kind)
            held = candidate;
    }
    seen->right = seen->right && held != NULL && held->dtype == entry->tensor.dtype &&
                  held->ndim == entry->tensor.ndim && held->bytes == entry->raw_bytes &&
                  memcmp(held->shape, entry->tensor.shape, held->ndim * sizeof(uint64_t)) == 0;
    return seen->right;
}

void expect_state(struct lmcs_pool *pool, const char *shelf, const char *which, const struct state *state)
{
    struct lmcs_snapshot *snapshot;
    struct seen seen = {state, 0, true};
    OK(lmcs_snapshot_find(pool, shelf, which, &snapshot, &err));
    OK(lmcs_snapshot_entries(snapshot, same_entry, &seen, &err));
    EXPECT(seen.right);
    EXPECT(seen.count == state->count);
    for (size_t i = 0; i < state->count; i++) {
        const struct held *held = &state->tensors[i];
        unsigned char *bytes = malloc(held->bytes + 1);
        EXPECT(bytes != NULL);
        memset(bytes, 0xa5, held->bytes + 1);
        OK(lmcs_snapshot_read(snapshot, held->kind, held->name, bytes, held->bytes, &err));
        EXPECT(memcmp(bytes, held->data, held->bytes) == 0);
        EXPECT(bytes[held->bytes] == 0xa5);
        free(bytes);
    }
    lmcs_snapshot_close(snapshot);
}

void expect_snapshot(struct lmcs_pool *pool, const char *shelf, uint64_t number, const struct state *state)
{
    char which[32];
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    expect_state(pool, shelf, which, state);
}

struct wanted_content {
    const char *name;
    uint64_t content;
};

static bool find_content(void *context, const struct lmcs_entry *entry)
{
    struct wanted_content *wanted = context;
    if (strcmp(entry->tensor.name, wanted->name) == 0)
        wanted->content = entry->content;
    return wanted->content == 0;
}

static struct lmcs_snapshot *find_snapshot(struct lmcs_pool *pool, const char *shelf, uint64_t number)
{
    struct lmcs_snapshot *snapshot;
    char which[32];
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(pool, shelf, which, &snapshot, &err));
    return snapshot;
}

uint64_t snapshot_tagged(struct lmcs_pool *pool, const char *tag)
{
    struct lmcs_snapshot *snapshot;
    if (lmcs_snapshot_find(pool, "run", tag, &snapshot, &err) != LMCS_OK)
        return 0;
    uint64_t number = lmcs_snapshot_info(snapshot)->number;
    lmcs_snapshot_close(snapshot);
    return number;
}

uint64_t content_of(struct lmcs_pool *pool, const char *shelf, uint64_t number, const char *tensor)
{
    struct wanted_content wanted = {tensor, 0};
    struct lmcs_snapshot *snapshot = find_snapshot(pool, shelf, number);
    OK(lmcs_snapshot_entries(snapshot, find_content, &wanted, &err));
    lmcs_snapshot_close(snapshot);
    EXPECT(wanted.content != 0);
    return wanted.content;
}

struct lmcs_snapshot_storage storage_of(struct lmcs_pool *pool, const char *shelf, uint64_t number)
{
    struct lmcs_snapshot_storage storage;
    struct lmcs_snapshot *snapshot = find_snapshot(pool, shelf, number);
    OK(lmcs_snapshot_storage(snapshot, &storage, &err));
    lmcs_snapshot_close(snapshot);
    return storage;
}

pid_t start_child(int (*work)(void *argument), void *argument)
{
    fflush(NULL);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0)
        _exit(work(argument));
    return child;
}

void expect_child(pid_t child)
{
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status))
        fprintf(stderr, "the child was ended by signal %d\n", WTERMSIG(status));
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int run_child(int (*work)(void *argument), void *argument, unsigned seconds)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        alarm(seconds);
        _exit(work(argument));
    }
    EXPECT(waitpid(child, &status, 0) == child);
    return status;
}
