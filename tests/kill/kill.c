/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * kill.c - kills a busy process again and again, and checks the pool each time (README.md).
 *
 * kill [--kills N] [--seed S] [--in FOLDER]
 *
 * SIGKILL comes within a fifth of a second of the opening. A finding prints the command that repeats its calls.
 */
/* ctest: timeout=600 labels=no-asan,no-tsan */
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lively.h"
#include "model.h"

#define LEAST_LIMIT     ((uint64_t)48 << 20)
#define MOST_LIMIT      ((uint64_t)96 << 20)
#define MOST_DISK_BYTES (MOST_LIMIT + ((uint64_t)16 << 20)) /* with libpmemobj's metadata */
#define CHECK_SECONDS   120u
#define SNAPSHOTS_KEPT  7u
#define ULL(n)          ((unsigned long long)(n))

struct shared {
    struct model models[SHELVES];
    struct lively lively;
    struct record open[SHELVES + 1]; /* begun and not ended; CALLS: none */
    uint64_t used_bytes;
    uint64_t linked; /* snapshots read through links */
    uint32_t longest_line;
};

struct driver {
    char folder[300];
    char pool[320];
    char archive[330];
    char log[64]; /* in memory: survives the worker */
    uint64_t seed;
    uint64_t round;
    off_t read_to;
    struct shared *shared;
    uint64_t calls[CALLS]; /* acknowledged */
    uint64_t open_calls;   /* by a kill */
    uint64_t took_place;   /* of those */
    uint64_t failed_calls;
    uint64_t most_disk_bytes;
    unsigned longest_check_ms;
};

/* ---- The worker ---- */

struct work {
    const struct driver *driver;
    struct lmcs_pool *pool;
    int log;
    uint32_t shelf;
    char name[16];
    struct rng rng;
    struct model model; /* of a writer */
    struct lively lively;
};

static uint32_t record_check(const struct record *record)
{
    return (uint32_t)lmc_hash64(record, offsetof(struct record, check), 7);
}

static void tell(struct work *work, struct record *record, enum phase phase)
{
    record->shelf = work->shelf;
    record->phase = phase;
    record->check = record_check(record);
    EXPECT(write(work->log, record, sizeof *record) == (ssize_t)sizeof *record);
    if (phase == DONE && record->call != LIVE)
        model_apply(&work->model, record);
}

/* Any failure other than a full pool is a finding. */
static bool went_well(struct work *work, struct record *record, enum lmcs_status status)
{
    if (status != LMCS_OK && status != LMCS_FULL) {
        fprintf(stderr, "%s of %s@%llu: %s (%s)\n", call_names[record->call], work->name, ULL(record->number),
                lmcs_status_name(status), err.message);
        _exit(1);
    }
    tell(work, record, status == LMCS_OK ? DONE : FAILED);
    return status == LMCS_OK;
}

/* A capture under way. */
struct taking {
    struct lmcs_capture *capture;
    const struct lmcs_commit_options *promise; /* NULL: an ordinary capture */
    bool promised;
};

/* Puts the first half, promises the snapshot, and puts the rest, as a lazy one does. */
static enum lmcs_status put_lazily(struct taking *taking, const struct lmcs_tensor *tensors, const void *const *data,
                                   size_t count)
{
    uint64_t number;
    const size_t half = count / 2;
    enum lmcs_status status = lmcs_capture_put(taking->capture, tensors, data, half, &err);
    if (status == LMCS_OK)
        status = lmcs_capture_promise(taking->capture, taking->promise, &number, &err);
    taking->promised = status == LMCS_OK;
    return status == LMCS_OK ? lmcs_capture_put(taking->capture, tensors + half, data + half, count - half, &err)
                             : status;
}

static enum lmcs_status put_all(struct work *work, struct taking *taking, const struct state *state)
{
    struct lmcs_tensor tensors[16];
    const void *data[16];
    size_t by_value = state->count - (rng_below(&work->rng, 4) == 0);
    enum lmcs_status status = LMCS_OK;
    void *room;
    EXPECT(state->count <= 16);
    lmcs_capture_lend(taking->capture, rng_below(&work->rng, 2) == 0);
    for (size_t i = 0; i < state->count; i++) {
        held_tensor(&state->tensors[i], &tensors[i]);
        data[i] = state->tensors[i].data;
    }
    for (unsigned p = 0; status == LMCS_OK && p < PARAMETERS; p++) {
        struct lmcs_relation relation;
        relation_of(p, &relation);
        status = lmcs_capture_relate(taking->capture, &relation, 1, &err);
    }
    if (status == LMCS_OK && taking->promise != NULL)
        status = put_lazily(taking, tensors, data, by_value);
    else if (status == LMCS_OK)
        status = lmcs_capture_put(taking->capture, tensors, data, by_value, &err);
    if (status == LMCS_OK && by_value < state->count) {
        status = lmcs_capture_reserve(taking->capture, &tensors[by_value], &room, &err);
        if (status == LMCS_OK)
            memcpy(room, data[by_value], state->tensors[by_value].bytes);
    }
    return status;
}

/* Ends a capture that leaves nothing. */
static enum lmcs_status give_up(struct taking *taking, enum lmcs_status status)
{
    const struct lmcs_error reason = {.status = status};
    if (!taking->promised) {
        lmcs_capture_abort(taking->capture);
        return status;
    }
    lmcs_capture_fail(taking->capture, &reason);
    return lmcs_capture_wait(taking->capture, &err);
}

static enum lmcs_status commit(struct taking *taking, const struct lmcs_commit_options *options, uint64_t expected)
{
    uint64_t number = expected;
    enum lmcs_status status = lmcs_capture_commit(taking->capture, options, &number, &err);
    if (taking->promised || (options->asynchronous && status == LMCS_OK))
        status = lmcs_capture_wait(taking->capture, &err);
    EXPECT(status != LMCS_OK || number == expected);
    return status;
}

static enum lmcs_status capture(struct work *work, struct record *record, bool prepare)
{
    struct taking taking = {.promised = false};
    struct lmcs_commit_options options;
    char tag[16];
    const char *tags[] = {tag};
    const struct lmcs_metric metric = {"loss", (double)record->number};
    lmcs_commit_options_init(&options);
    options.step = (int64_t)record->number;
    options.metrics = &metric;
    options.metric_count = 1;
    options.asynchronous = !prepare && rng_below(&work->rng, 2) == 0;
    options.prepare = prepare;
    if (options.asynchronous && rng_below(&work->rng, 2) == 0)
        taking.promise = &options;
    if (prepare)
        group_of(work->shelf, record->number, options.group);
    if (record->tag != NO_TAG) {
        tag_name(record->tag, tag);
        options.tags = tags;
        options.tag_count = 1;
    }
    enum lmcs_status status = lmcs_capture_begin(work->pool, work->name, &taking.capture, &err);
    if (status != LMCS_OK)
        return status;
    struct state *state = state_of(work->shelf, record->number);
    status = put_all(work, &taking, state);
    if (status != LMCS_OK || rng_below(&work->rng, 20) == 0)
        status = give_up(&taking, status != LMCS_OK ? status : LMCS_FULL);
    else
        status = commit(&taking, &options, record->number);
    state_free(state); /* it may be lent */
    return status;
}

static void take(struct work *work, bool prepare)
{
    struct lmcs_shelf_info info = {.next_number = 1};
    enum lmcs_status status = lmcs_shelf_info(work->pool, work->name, &info, &err);
    EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
    struct record record = {.call = prepare ? PREPARE : CAPTURE, .number = info.next_number, .tag = NO_TAG};
    if (!prepare && rng_below(&work->rng, 3) == 0)
        record.tag = (uint32_t)rng_below(&work->rng, TAGS);
    tell(work, &record, BEGUN);
    went_well(work, &record, capture(work, &record, prepare));
}

static void resolve(struct work *work)
{
    struct record record = {.call = RESOLVE, .number = work->model.prepared, .tag = NO_TAG};
    unsigned char group[16];
    group_of(work->shelf, work->model.prepared, group);
    record.commit = rng_below(&work->rng, 2) == 0;
    tell(work, &record, BEGUN);
    went_well(work, &record, lmcs_group_resolve(work->pool, group, record.commit, &err));
}

static void retag(struct work *work)
{
    char tag[16];
    struct record record = {.call = TAG, .tag = (uint32_t)rng_below(&work->rng, TAGS)};
    tag_name(record.tag, tag);
    if (work->model.tags[record.tag] != 0 && rng_below(&work->rng, 2) == 0)
        record.call = UNTAG;
    else
        record.number = work->model.numbers[rng_below(&work->rng, work->model.count)];
    tell(work, &record, BEGUN);
    went_well(work, &record,
              record.call == TAG ? lmcs_tag_set(work->pool, work->name, tag, record.number, &err)
                                 : lmcs_tag_remove(work->pool, work->name, tag, &err));
}

static void take_one_away(struct work *work)
{
    struct record record = {.call = REMOVE, .tag = NO_TAG};
    record.number = work->model.numbers[rng_below(&work->rng, 1 + rng_below(&work->rng, work->model.count))];
    tell(work, &record, BEGUN);
    went_well(work, &record, lmcs_snapshot_remove(work->pool, work->name, record.number, false, NULL, &err));
}

static void change_policy(struct work *work)
{
    struct record record = {.call = SET_POLICY, .tag = (uint32_t)rng_below(&work->rng, POLICIES)};
    tell(work, &record, BEGUN);
    went_well(work, &record, lmcs_shelf_set_policy(work->pool, work->name, policies[record.tag], &err));
}

static void *write_on(void *argument)
{
    struct work *work = argument;
    for (;;) {
        uint64_t what = rng_below(&work->rng, 32);
        if (work->model.prepared != 0)
            resolve(work);
        else if (work->model.count > SNAPSHOTS_KEPT + rng_below(&work->rng, 4))
            take_one_away(work);
        else if (what < 6 && work->model.count > 0)
            retag(work);
        else if (what == 6)
            change_policy(work);
        else
            take(work, what < 9);
    }
    return NULL;
}

static void *restore_on(void *argument)
{
    struct work *work = argument;
    for (;;) {
        if (work->model.count > rng_below(&work->rng, ARCHIVE_SNAPSHOTS)) {
            take_one_away(work);
            continue;
        }
        struct record record = {.call = RESTORE, .tag = NO_TAG};
        int fd = open(work->driver->archive, O_RDONLY | O_CLOEXEC);
        EXPECT(fd >= 0);
        tell(work, &record, BEGUN);
        went_well(work, &record, lmcs_restore(work->pool, fd, NULL, NULL, &err));
        close(fd);
        usleep(5000);
    }
    return NULL;
}

static void *live_on(void *argument)
{
    struct work *work = argument;
    for (uint64_t n = work->lively.step + 1;; n++) {
        struct record record = {.call = LIVE, .number = n, .tag = NO_TAG};
        tell(work, &record, BEGUN);
        if (went_well(work, &record, lively_step(work->pool, &work->lively, n)))
            lively_apply(&work->lively, n);
    }
    return NULL;
}

/* Snapshots may be removed meanwhile. */
static void *read_on(void *argument)
{
    struct work *work = argument;
    for (;;) {
        uint32_t shelf = (uint32_t)rng_below(&work->rng, SHELVES);
        char name[16], which[32];
        uint64_t numbers[MOST_SNAPSHOTS];
        size_t count = 0;
        struct lmcs_snapshot *snapshot;
        shelf_name(shelf, name);
        enum lmcs_status status = lmcs_snapshot_numbers(work->pool, name, 1, numbers, MOST_SNAPSHOTS, &count, &err);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
        if (count == 0)
            continue;
        uint64_t number = numbers[rng_below(&work->rng, count)];
        snprintf(which, sizeof which, "%llu", ULL(number));
        status = lmcs_snapshot_find(work->pool, name, which, &snapshot, &err);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
        if (status != LMCS_OK)
            continue;
        struct state *state = state_of(shelf, number);
        const struct held *held = &state->tensors[rng_below(&work->rng, state->count)];
        unsigned char *bytes = malloc(held->bytes + 1);
        status = lmcs_snapshot_read(snapshot, held->kind, held->name, bytes, held->bytes, &err);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
        EXPECT(status != LMCS_OK || memcmp(bytes, held->data, held->bytes) == 0);
        free(bytes);
        state_free(state);
        lmcs_snapshot_close(snapshot);
    }
    return NULL;
}

static void *maintain(void *argument)
{
    struct work *work = argument;
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    EXPECT(nowhere >= 0);
    for (;;) {
        uint64_t what = rng_below(&work->rng, 8);
        enum lmcs_status status = LMCS_OK;
        if (what < 3)
            status = lmcs_compact(work->pool, NULL, &err);
        else if (what < 5)
            status =
                lmcs_pool_set_limit(work->pool, LEAST_LIMIT + rng_below(&work->rng, MOST_LIMIT - LEAST_LIMIT), &err);
        else if (what == 5)
            status = lmcs_dump(work->pool, NULL, nowhere, NULL, NULL, &err);
        else if (what == 6)
            status = lmcs_verify(work->pool, NULL, NULL, NULL, NULL, NULL, &err);
        else
            usleep((useconds_t)rng_below(&work->rng, 20000));
        /* Full, or a limit below the used space. */
        if (status != LMCS_OK && status != LMCS_FULL && !(what >= 3 && what < 5 && status == LMCS_INVALID)) {
            fprintf(stderr, "maintenance %llu: %s (%s)\n", ULL(what), lmcs_status_name(status), err.message);
            _exit(1);
        }
    }
    return NULL;
}

/* Ends by a kill. */
static void work_until_killed(const struct driver *driver)
{
    static struct work works[SHELVES + 3];
    void *(*const roles[SHELVES + 3])(void *) = {write_on, write_on, restore_on, live_on, read_on, maintain};
    pthread_t threads[SHELVES + 3];
    int log = open(driver->log, O_WRONLY | O_APPEND | O_CLOEXEC);
    EXPECT(log >= 0);
    struct lmcs_pool *pool = open_pool(driver->pool, LMCS_OPEN_WRITE, 0);
    for (uint32_t i = 0; i < SHELVES + 3; i++) {
        works[i] = (struct work){.driver = driver, .pool = pool, .log = log, .shelf = i};
        works[i].rng.state = (driver->seed * 1000003 + driver->round) * 64 + i;
        if (i < SHELVES) {
            shelf_name(i, works[i].name);
            works[i].model = driver->shared->models[i];
        }
        works[i].lively = driver->shared->lively;
        EXPECT(pthread_create(&threads[i], NULL, roles[i], &works[i]) == 0);
    }
    pause();
}

/* ---- Checking the pool ---- */

/* Returns whether there was one. */
static bool resolve_left(struct lmcs_pool *pool, uint32_t shelf, uint64_t number, bool commit)
{
    unsigned char group[16];
    group_of(shelf, number, group);
    enum lmcs_status status = lmcs_group_resolve(pool, group, commit, &err);
    EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
    return status == LMCS_OK;
}

/* Before or after the interrupted call; returns whether it took place. */
static bool check_shelf(struct lmcs_pool *pool, struct model *model, const struct record *open, uint32_t shelf,
                        bool commit)
{
    struct model candidates[2] = {*model, *model}, seen;
    bool has_open = open->call != CALLS;
    if (has_open)
        model_apply(&candidates[1], open);
    uint64_t prepared = candidates[0].prepared != 0 ? candidates[0].prepared : candidates[1].prepared;
    bool resolved = prepared != 0 && resolve_left(pool, shelf, prepared, commit);
    model_of_pool(pool, shelf, &seen);
    for (size_t i = 0; i < (has_open ? 2 : 1); i++) {
        struct model candidate = candidates[i];
        if ((candidate.prepared != 0) != resolved)
            continue;
        if (resolved)
            model_apply(&candidate, &(struct record){.call = RESOLVE, .commit = commit});
        if (model_same(&candidate, &seen)) {
            *model = seen;
            return i == 1;
        }
    }
    model_print(stderr, "acknowledged", model);
    if (has_open)
        fprintf(stderr, "interrupted: %s of %llu\n", call_names[open->call], ULL(open->number));
    model_print(stderr, "there is", &seen);
    fprintf(stderr, "shelf %u is neither as it was nor as it should be\n", shelf);
    _exit(1);
}

static bool check_live(struct lmcs_pool *pool, struct lively *lively, const struct record *open)
{
    struct lively after = *lively;
    bool has_open = open->call != CALLS;
    if (has_open) {
        lively_apply(&after, open->number);
        after.step = lively->step = open->number;
    }
    if (lively_is_right(pool, lively))
        return false;
    if (has_open && lively_is_right(pool, &after)) {
        *lively = after;
        return true;
    }
    lively_print(stderr, "acknowledged", lively);
    if (has_open)
        lively_print(stderr, "or, with what was interrupted", &after);
    fprintf(stderr, "the live variables are neither as they were nor as they should be\n");
    _exit(1);
}

/* Bit for bit. */
static void read_all(struct lmcs_pool *pool, struct shared *shared, uint32_t shelf)
{
    const struct model *model = &shared->models[shelf];
    char name[16];
    shelf_name(shelf, name);
    for (size_t i = 0; i < model->count; i++) {
        struct state *state = state_of(shelf, model->numbers[i]);
        expect_snapshot(pool, name, model->numbers[i], state);
        state_free(state);
        const uint32_t line = storage_of(pool, name, model->numbers[i]).longest_line;
        EXPECT(line <= MOST_LINKS);
        shared->linked += line > 0;
        shared->longest_line = line > shared->longest_line ? line : shared->longest_line;
    }
}

static int check_what_is_left(void *argument)
{
    struct driver *driver = argument;
    struct shared *shared = driver->shared;
    struct rng rng = {driver->seed + driver->round};
    struct lmcs_pool *pool = open_pool(driver->pool, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
    check_pool(pool);
    for (uint32_t i = 0; i < SHELVES; i++) {
        bool took_place = check_shelf(pool, &shared->models[i], &shared->open[i], i, rng_below(&rng, 2) == 0);
        shared->open[i].commit = took_place;
        read_all(pool, shared, i);
    }
    shared->open[LIVELY].commit = check_live(pool, &shared->lively, &shared->open[LIVELY]);
    if (driver->round % 10 == 9) {
        verify_pool(pool);
        OK(lmcs_pool_set_limit(pool, MOST_LIMIT, &err));
        OK(lmcs_compact(pool, NULL, &err));
        check_pool(pool);
    }
    shared->used_bytes = pool_info(pool).used_bytes;
    close_pool(pool);
    return 0;
}

/* ---- The driver ---- */

static void read_log(struct driver *driver)
{
    struct shared *shared = driver->shared;
    struct record record;
    int fd = open(driver->log, O_RDONLY | O_CLOEXEC);
    EXPECT(fd >= 0);
    for (size_t i = 0; i <= LIVELY; i++)
        shared->open[i].call = CALLS;
    while (pread(fd, &record, sizeof record, driver->read_to) == (ssize_t)sizeof record) {
        EXPECT(record.check == record_check(&record) && record.shelf <= LIVELY && record.call < CALLS);
        driver->read_to += (off_t)sizeof record;
        if (record.phase == BEGUN) {
            EXPECT(shared->open[record.shelf].call == CALLS);
            shared->open[record.shelf] = record;
            continue;
        }
        EXPECT(shared->open[record.shelf].call == record.call);
        shared->open[record.shelf].call = CALLS;
        if (record.shelf == LIVELY)
            shared->lively.step = record.number;
        if (record.phase == DONE) {
            if (record.shelf == LIVELY)
                lively_apply(&shared->lively, record.number);
            else
                model_apply(&shared->models[record.shelf], &record);
            driver->calls[record.call]++;
        } else {
            driver->failed_calls++;
        }
    }
    close(fd);
}

static off_t log_bytes(const struct driver *driver)
{
    struct stat st;
    EXPECT(stat(driver->log, &st) == 0);
    return st.st_size;
}

/* Held across the worker's life and death. */
struct witness {
    struct lmcs_pool *pool;
    struct lmcs_view *view;
    struct state *state;
};

static void begin_witness(struct driver *driver, struct witness *witness, struct rng *rng)
{
    uint32_t shelf = (uint32_t)rng_below(rng, SHELVES);
    const struct model *model = &driver->shared->models[shelf];
    struct lmcs_snapshot *snapshot;
    char name[16], which[32];
    *witness = (struct witness){0};
    if (model->count == 0)
        return;
    uint64_t number = model->numbers[rng_below(rng, model->count)];
    shelf_name(shelf, name);
    snprintf(which, sizeof which, "%llu", ULL(number));
    witness->pool = open_pool(driver->pool, LMCS_OPEN_READ, 0);
    witness->state = state_of(shelf, number);
    OK(lmcs_snapshot_find(witness->pool, name, which, &snapshot, &err));
    OK(lmcs_view_open(snapshot, NULL, NULL, 0, 0, &witness->view, &err));
    lmcs_snapshot_close(snapshot);
}

static bool witness_is_right(struct witness *witness)
{
    bool right = true;
    if (witness->pool == NULL)
        return true;
    for (size_t i = 0; i < lmcs_view_count(witness->view); i++) {
        const struct held *held = NULL;
        for (size_t k = 0; k < witness->state->count; k++)
            if (strcmp(witness->state->tensors[k].name, lmcs_view_entry(witness->view, i)->tensor.name) == 0)
                held = &witness->state->tensors[k];
        right = right && held != NULL && memcmp(held->data, lmcs_view_data(witness->view, i), held->bytes) == 0;
    }
    lmcs_view_close(witness->view);
    close_pool(witness->pool);
    state_free(witness->state);
    return right;
}

static unsigned now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned)(now.tv_sec * 1000 + now.tv_nsec / 1000000);
}

/* Some during the open, most at work. */
static bool run_and_kill(struct driver *driver, useconds_t delay, bool early)
{
    off_t before = log_bytes(driver);
    fflush(NULL);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        work_until_killed(driver);
        _exit(0);
    }
    for (int i = 0; !early && i < 60000 && log_bytes(driver) == before; i++)
        usleep(500);
    usleep(delay);
    kill(child, SIGKILL);
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    fprintf(stderr, "the worker ended by itself (status %x)\n", (unsigned)status);
    return false;
}

static bool one_round(struct driver *driver, struct rng *rng)
{
    static const uint64_t most_delay[] = {2000, 20000, 60000, 200000};
    useconds_t delay = (useconds_t)rng_below(rng, most_delay[rng_below(rng, 4)]);
    struct witness witness;
    begin_witness(driver, &witness, rng);
    bool well = run_and_kill(driver, delay, rng_below(rng, 12) == 0);
    if (!witness_is_right(&witness)) {
        fprintf(stderr, "a view that was held has changed\n");
        well = false;
    }
    if (!well)
        return false;
    read_log(driver);
    unsigned start = now_ms();
    int status = run_child(check_what_is_left, driver, CHECK_SECONDS);
    if (now_ms() - start > driver->longest_check_ms)
        driver->longest_check_ms = now_ms() - start;
    if (status != 0) {
        fprintf(stderr, "the check after the kill ended with status %x%s\n", (unsigned)status,
                WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? ": it hung" : "");
        return false;
    }
    for (size_t i = 0; i <= LIVELY; i++)
        if (driver->shared->open[i].call != CALLS) {
            driver->open_calls++;
            driver->took_place += driver->shared->open[i].commit;
        }
    uint64_t bytes = disk_bytes(driver->pool);
    if (bytes > driver->most_disk_bytes)
        driver->most_disk_bytes = bytes;
    if (bytes > MOST_DISK_BYTES)
        fprintf(stderr, "the pool takes %llu bytes of the disk: something leaks\n", ULL(bytes));
    return bytes <= MOST_DISK_BYTES;
}

static void make_archive(const struct driver *driver)
{
    char path[340], name[16];
    shelf_name(ARCHIVED, name);
    snprintf(path, sizeof path, "%s/archived.pool", driver->folder);
    struct lmcs_pool *pool = open_quiet(path);
    for (uint64_t n = 1; n <= ARCHIVE_SNAPSHOTS; n++) {
        struct state *state = state_of(ARCHIVED, n);
        EXPECT(take_snapshot(pool, name, state, (int64_t)n) == n);
        state_free(state);
    }
    int fd = open(driver->archive, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    OK(lmcs_dump(pool, name, fd, NULL, NULL, &err));
    close(fd);
    close_pool(pool);
    unlink(path);
}

static void set_up(struct driver *driver, const char *in, uint64_t seed)
{
    driver->seed = seed;
    snprintf(driver->folder, sizeof driver->folder, "%.250s/lmcs-kill-XXXXXX", in);
    EXPECT(mkdtemp(driver->folder) != NULL);
    snprintf(driver->pool, sizeof driver->pool, "%s/a.pool", driver->folder);
    snprintf(driver->archive, sizeof driver->archive, "%s/an.archive", driver->folder);
    snprintf(driver->log, sizeof driver->log, "/dev/shm/lmcs-kill-log-%d", (int)getpid());
    int log = open(driver->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(log >= 0);
    close(log);
    driver->shared = mmap(NULL, sizeof *driver->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(driver->shared != MAP_FAILED);
    make_archive(driver);
    struct lmcs_pool *pool = open_limited(driver->pool, LEAST_LIMIT);
    for (uint32_t i = 0; i < SHELVES; i++) {
        char name[16];
        shelf_name(i, name);
        OK(lmcs_shelf_set_policy(pool, name, policies[0], &err));
    }
    lively_set_up(pool, &driver->shared->lively);
    close_pool(pool);
}

static void tear_down_all(const struct driver *driver)
{
    unlink(driver->pool);
    unlink(driver->archive);
    unlink(driver->log);
    rmdir(driver->folder);
}

static void print_figures(const struct driver *driver, uint64_t kills, unsigned seconds)
{
    uint64_t calls = 0;
    for (size_t i = 0; i < CALLS; i++)
        calls += driver->calls[i];
    printf("%llu kills in %u s, seed %llu, in %s; %llu calls acknowledged (", ULL(kills), seconds, ULL(driver->seed),
           driver->folder, ULL(calls));
    for (size_t i = 0; i < CALLS; i++)
        printf("%s%llu %s", i > 0 ? ", " : "", ULL(driver->calls[i]), call_names[i]);
    printf(
        "), %llu aborted or full, %llu interrupted, of which %llu had taken place; %llu snapshots read through links, "
        "%u at most; at most %llu MiB on the disk; longest check %u ms\n",
        ULL(driver->failed_calls), ULL(driver->open_calls), ULL(driver->took_place), ULL(driver->shared->linked),
        driver->shared->longest_line, ULL(driver->most_disk_bytes >> 20), driver->longest_check_ms);
    fflush(stdout);
}

static int kill_loop(const char *in, uint64_t kills, uint64_t seed)
{
    static struct driver driver;
    struct rng rng = {seed};
    set_up(&driver, in, seed);
    unsigned start = now_ms(), shown = start;
    for (driver.round = 0; driver.round < kills; driver.round++) {
        if (!one_round(&driver, &rng)) {
            printf("FINDING at kill %llu: again with --seed %llu --in %s; the pool is left in %s, the log in %s\n",
                   ULL(driver.round), ULL(seed), in, driver.folder, driver.log);
            return 1;
        }
        if (now_ms() - shown > 20000) {
            shown = now_ms();
            print_figures(&driver, driver.round + 1, (now_ms() - start) / 1000);
        }
    }
    print_figures(&driver, kills, (now_ms() - start) / 1000);
    printf("no findings\n");
    tear_down_all(&driver);
    return 0;
}

/* libpmem reads the variable when loaded. */
static void force_in_memory(const char *in, char **words)
{
    struct statfs fs;
    if (statfs(in, &fs) != 0 || fs.f_type != TMPFS_MAGIC || getenv("PMEM_IS_PMEM_FORCE") != NULL)
        return;
    setenv("PMEM_IS_PMEM_FORCE", "1", 1);
    execv("/proc/self/exe", words);
}

int main(int count, char **words)
{
    const char *in = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    uint64_t kills = 5000, seed = 1;
    for (int i = 1; i < count; i += 2) {
        const char *value = i + 1 < count ? words[i + 1] : NULL;
        if (value != NULL && strcmp(words[i], "--kills") == 0)
            kills = strtoull(value, NULL, 10);
        else if (value != NULL && strcmp(words[i], "--seed") == 0)
            seed = strtoull(value, NULL, 10);
        else if (value != NULL && strcmp(words[i], "--in") == 0)
            in = value;
        else
            return fprintf(stderr, "usage: kill [--kills N] [--seed S] [--in FOLDER]\n"), 2;
    }
    force_in_memory(in, words);
    return kill_loop(in, kills, seed);
}
