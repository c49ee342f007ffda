/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_concurrency.c - many threads on one pool.
 *
 * The bytes of a snapshot follow from its shelf and number, so each read is checked. The work is counted, not timed.
 * The thread sanitizer finds races.
 */
/* ctest: timeout=600 */
#include "support.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { TENSORS = 6, SHELVES = 2 };
static const uint64_t elements[TENSORS] = {30000, 16384, 9000, 700, 16368, 50};

struct stage {
    struct lmcs_pool *pool;
    const char *path;
    uint64_t snapshots;
    atomic_uint capturing;
    atomic_uint begun;
};

static const char *shelf_name(unsigned shelf)
{
    return shelf == 0 ? "left" : "right";
}

/* First tensors change with every snapshot, later ones more rarely: they are shared. */
static uint64_t version_of(size_t tensor, uint64_t number)
{
    return number >> (tensor / 2);
}

static uint32_t element(unsigned shelf, size_t tensor, uint64_t number, uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + shelf * 1000003 + tensor * 7919;
    z = (z ^ z >> 29) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(z >> 40) + (uint32_t)version_of(tensor, number) * 3 + (uint32_t)(i & 1);
}

static void fill(uint32_t *to, unsigned shelf, size_t tensor, uint64_t number)
{
    for (uint64_t i = 0; i < elements[tensor]; i++)
        to[i] = element(shelf, tensor, number, i);
}

static bool is_right(const uint32_t *data, unsigned shelf, size_t tensor, uint64_t number)
{
    for (uint64_t i = 0; i < elements[tensor]; i++)
        if (data[i] != element(shelf, tensor, number, i))
            return false;
    return true;
}

struct prepared {
    char names[TENSORS][8];
    struct lmcs_tensor tensors[TENSORS];
    uint32_t *data[TENSORS];
};

static void prepare(struct prepared *prepared)
{
    memset(prepared, 0, sizeof *prepared);
    for (size_t t = 0; t < TENSORS; t++) {
        snprintf(prepared->names[t], sizeof prepared->names[t], "t%zu", t);
        prepared->tensors[t] =
            (struct lmcs_tensor){.name = prepared->names[t], .dtype = LMC_U32, .ndim = 1, .shape = &elements[t]};
        prepared->data[t] = malloc(elements[t] * sizeof(uint32_t));
        EXPECT(prepared->data[t] != NULL);
    }
}

static void discard(struct prepared *prepared)
{
    for (size_t t = 0; t < TENSORS; t++)
        free(prepared->data[t]);
}

static void capture_one(struct lmcs_pool *pool, unsigned shelf, const char *name, uint64_t number,
                        struct prepared *prepared, bool asynchronous)
{
    struct lmcs_capture *capture;
    struct lmcs_commit_options options;
    uint64_t got = 0;
    for (size_t t = 0; t < TENSORS; t++)
        fill(prepared->data[t], shelf, t, number);
    OK(lmcs_capture_begin(pool, name, &capture, &err));
    OK(lmcs_capture_put(capture, prepared->tensors, (const void *const *)prepared->data, TENSORS, &err));
    lmcs_commit_options_init(&options);
    options.step = (int64_t)number;
    options.asynchronous = asynchronous;
    OK(lmcs_capture_commit(capture, &options, &got, &err));
    EXPECT(got == number);
    if (asynchronous && number % 2 == 0)
        OK(lmcs_capture_wait(capture, &err));
    else if (asynchronous)
        lmcs_capture_detach(capture);
}

/* False: the snapshot had been removed. */
static bool look(struct lmcs_pool *pool, unsigned shelf, const char *which, uint32_t flags)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    enum lmcs_status status = lmcs_snapshot_find(pool, shelf_name(shelf), which, &snapshot, &err);
    if (status == LMCS_NOT_FOUND)
        return false;
    OK(status);
    uint64_t number = lmcs_snapshot_info(snapshot)->number;
    status = lmcs_view_open(snapshot, NULL, NULL, 0, flags, &view, &err);
    lmcs_snapshot_close(snapshot);
    if (status == LMCS_NOT_FOUND)
        return false;
    OK(status);
    EXPECT(lmcs_view_count(view) == TENSORS);
    for (size_t i = 0; i < TENSORS; i++) {
        size_t t = (size_t)(lmcs_view_entry(view, i)->tensor.name[1] - '0');
        EXPECT(t < TENSORS && lmcs_view_entry(view, i)->raw_bytes == elements[t] * sizeof(uint32_t));
        EXPECT(is_right(lmcs_view_data(view, i), shelf, t, number));
        if ((flags & LMCS_VIEW_PRIVATE) != 0)
            memset(lmcs_view_data(view, i), 0x5a, lmcs_view_entry(view, i)->raw_bytes);
    }
    lmcs_view_close(view);
    return true;
}

static struct rng own_numbers(struct stage *stage)
{
    return (struct rng){atomic_fetch_add(&stage->begun, 1) + 1};
}

static void capture_shelf(struct stage *stage, unsigned shelf)
{
    struct prepared prepared;
    prepare(&prepared);
    for (uint64_t n = 1; n <= stage->snapshots; n++)
        capture_one(stage->pool, shelf, shelf_name(shelf), n, &prepared, shelf == 1);
    discard(&prepared);
    atomic_fetch_sub(&stage->capturing, 1);
}

static void *capture_left(void *argument)
{
    capture_shelf(argument, 0);
    return NULL;
}

static void *capture_right(void *argument)
{
    capture_shelf(argument, 1);
    return NULL;
}

static bool going_on(struct stage *stage)
{
    return atomic_load(&stage->capturing) > 0;
}

static void *keep_reading(void *argument)
{
    static const uint32_t flags[] = {0, LMCS_VIEW_PRIVATE, LMCS_VIEW_VERIFY, LMCS_VIEW_COPY};
    struct stage *stage = argument;
    struct rng rng = own_numbers(stage);
    uint64_t seen = 0;
    while (going_on(stage) || seen < 20) {
        char which[32];
        snprintf(which, sizeof which, "latest~%u", (unsigned)rng_below(&rng, 12));
        seen += look(stage->pool, (unsigned)rng_below(&rng, SHELVES), which, flags[rng_below(&rng, 4)]);
    }
    return NULL;
}

static void *keep_copying(void *argument)
{
    struct stage *stage = argument;
    struct rng rng = own_numbers(stage);
    uint32_t *buffer = malloc(elements[0] * sizeof *buffer);
    while (going_on(stage)) {
        struct lmcs_snapshot *snapshot;
        struct lmcs_snapshot_storage storage;
        struct lmc_hash digest;
        unsigned shelf = (unsigned)rng_below(&rng, SHELVES);
        size_t t = rng_below(&rng, TENSORS);
        char name[8];
        snprintf(name, sizeof name, "t%zu", t);
        enum lmcs_status status = lmcs_snapshot_find(stage->pool, shelf_name(shelf), "latest~3", &snapshot, &err);
        if (status == LMCS_NOT_FOUND)
            continue;
        OK(status);
        status = lmcs_snapshot_read(snapshot, LMCS_TENSOR, name, buffer, elements[t] * sizeof *buffer, &err);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
        if (status == LMCS_OK)
            EXPECT(is_right(buffer, shelf, t, lmcs_snapshot_info(snapshot)->number));
        status = lmcs_snapshot_storage(snapshot, &storage, &err);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
        status = lmcs_snapshot_digest(snapshot, &digest, &err);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
        lmcs_snapshot_close(snapshot);
    }
    free(buffer);
    return NULL;
}

static void *keep_removing(void *argument)
{
    struct stage *stage = argument;
    struct rng rng = own_numbers(stage);
    while (going_on(stage)) {
        const char *shelf = shelf_name((unsigned)rng_below(&rng, SHELVES));
        uint64_t numbers[64];
        size_t count;
        struct lmcs_removal removal;
        enum lmcs_status status = lmcs_snapshot_numbers(stage->pool, shelf, 0, numbers, 64, &count, &err);
        if (status == LMCS_NOT_FOUND || count < 8) {
            usleep(500);
            continue;
        }
        OK(status);
        uint64_t number = numbers[rng_below(&rng, count - 6)];
        OK(lmcs_snapshot_remove(stage->pool, shelf, number, rng_below(&rng, 3) == 0, &removal, &err));
    }
    return NULL;
}

static bool count_tag(void *context, const char *tag)
{
    (void)tag;
    ++*(unsigned *)context;
    return true;
}

static void *keep_tagging(void *argument)
{
    struct stage *stage = argument;
    struct rng rng = own_numbers(stage);
    while (going_on(stage)) {
        const char *shelf = shelf_name((unsigned)rng_below(&rng, SHELVES));
        char tag[16];
        struct lmcs_shelf_info info;
        struct lmcs_snapshot *snapshot;
        enum lmcs_status status = lmcs_shelf_info(stage->pool, shelf, &info, &err);
        snprintf(tag, sizeof tag, "tag%u", (unsigned)rng_below(&rng, 5));
        if (status == LMCS_NOT_FOUND || info.latest == 0)
            continue;
        OK(status);
        status = rng_below(&rng, 3) == 0 ? lmcs_tag_remove(stage->pool, shelf, tag, &err)
                                         : lmcs_tag_set(stage->pool, shelf, tag, info.latest, &err);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
        status = lmcs_snapshot_find(stage->pool, shelf, tag, &snapshot, &err);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
        if (status == LMCS_OK) {
            unsigned count = 0;
            status = lmcs_snapshot_tags(snapshot, count_tag, &count, &err);
            EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
            lmcs_snapshot_close(snapshot);
        }
    }
    return NULL;
}

static void *keep_compacting(void *argument)
{
    struct stage *stage = argument;
    struct rng rng = own_numbers(stage);
    while (going_on(stage)) {
        switch (rng_below(&rng, 5)) {
        case 0:
            OK(lmcs_compact(stage->pool, NULL, &err));
            break;
        case 1:
            lmcs_compactor_pause(stage->pool);
            usleep(2000);
            lmcs_compactor_resume(stage->pool);
            break;
        case 2:
            lmcs_compactor_stop(stage->pool);
            OK(lmcs_compactor_start(stage->pool, &err));
            break;
        case 3:
            OK(lmcs_shelf_set_keep_raw(stage->pool, "left", 1 + (uint32_t)rng_below(&rng, 5), &err));
            break;
        default:
            usleep(3000);
        }
    }
    return NULL;
}

static bool sum_shelf(void *context, const struct lmcs_shelf_info *info)
{
    *(uint64_t *)context += info->snapshot_count;
    return true;
}

static void *keep_asking(void *argument)
{
    struct stage *stage = argument;
    struct rng rng = own_numbers(stage);
    uint64_t epoch = 0;
    while (going_on(stage)) {
        struct lmcs_pool_info info;
        uint64_t snapshots = 0;
        OK(lmcs_pool_info(stage->pool, &info, &err));
        EXPECT(info.epoch >= epoch && info.live_bytes <= info.used_bytes && info.compaction_error[0] == '\0');
        epoch = info.epoch;
        OK(lmcs_shelf_list(stage->pool, sum_shelf, &snapshots, &err));
        EXPECT(snapshots <= SHELVES * stage->snapshots);
        if (rng_below(&rng, 3) == 0)
            OK(lmcs_pool_set_limit(stage->pool, info.used_bytes + ((1 + rng_below(&rng, 4)) << 28), &err));
        usleep(1000);
    }
    return NULL;
}

static void *keep_verifying(void *argument)
{
    struct stage *stage = argument;
    do {
        struct lmcs_verify_report report;
        OK(lmcs_verify(stage->pool, NULL, NULL, NULL, NULL, &report, &err));
        EXPECT(report.damages == 0);
        enum lmcs_status status = lmcs_verify(stage->pool, "left@latest~1", NULL, NULL, NULL, NULL, &err);
        EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
    } while (going_on(stage));
    return NULL;
}

static void run_threads(void *(*const *work)(void *), size_t count, struct stage *stage)
{
    pthread_t threads[32];
    for (size_t i = 0; i < count; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work[i], stage), 0);
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static void expect_all(struct lmcs_pool *pool, uint64_t least)
{
    for (unsigned shelf = 0; shelf < SHELVES; shelf++) {
        uint64_t numbers[512];
        size_t count;
        OK(lmcs_snapshot_numbers(pool, shelf_name(shelf), 0, numbers, 512, &count, &err));
        assert_true(count >= least);
        for (size_t i = 0; i < count; i++) {
            char which[32];
            snprintf(which, sizeof which, "%llu", (unsigned long long)numbers[i]);
            EXPECT(look(pool, shelf, which, i % 2 == 0 ? 0 : LMCS_VIEW_COPY));
        }
    }
}

static void everything_at_once(void **state)
{
    static void *(*const work[])(void *) = {capture_left, capture_right, keep_reading, keep_reading,
                                            keep_copying, keep_removing, keep_tagging, keep_compacting,
                                            keep_asking,  keep_verifying};
    struct place *place = *state;
    struct stage stage = {.path = place->pool, .snapshots = scaled("LMCS_TEST_SNAPSHOTS", 80)};
    stage.pool = open_pool(place->pool, LMCS_OPEN_CREATE, 0);
    atomic_init(&stage.capturing, 2);
    run_threads(work, sizeof work / sizeof work[0], &stage);
    check_pool(stage.pool);
    verify_pool(stage.pool);
    expect_all(stage.pool, 6);
    OK(lmcs_compact(stage.pool, NULL, &err));
    expect_all(stage.pool, 6);
    close_pool(stage.pool);
    stage.pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    verify_pool(stage.pool);
    expect_all(stage.pool, 6);
    assert_int_equal(shelf_info(stage.pool, "left").latest, stage.snapshots);
    assert_int_equal(shelf_info(stage.pool, "right").latest, stage.snapshots);
    close_pool(stage.pool);
}

static void *keep_pruning(void *argument)
{
    struct stage *stage = argument;
    while (going_on(stage))
        for (unsigned shelf = 0; shelf < SHELVES; shelf++) {
            uint64_t numbers[8];
            size_t count;
            if (lmcs_snapshot_numbers(stage->pool, shelf_name(shelf), 0, numbers, 8, &count, &err) != LMCS_OK)
                continue;
            for (size_t i = 0; i + 1 < count; i++)
                OK(lmcs_snapshot_remove(stage->pool, shelf_name(shelf), numbers[i], false, NULL, &err));
        }
    return NULL;
}

static void captures_while_their_space_is_freed(void **state)
{
    static void *(*const work[])(void *) = {capture_left, capture_right, keep_pruning, keep_reading};
    struct place *place = *state;
    struct stage stage = {.path = place->pool, .snapshots = scaled("LMCS_TEST_SNAPSHOTS", 250)};
    stage.pool = open_quiet(place->pool);
    atomic_init(&stage.capturing, 2);
    run_threads(work, sizeof work / sizeof work[0], &stage);
    verify_pool(stage.pool);
    expect_all(stage.pool, 1);
    close_pool(stage.pool);
}

static void *keep_restoring(void *argument)
{
    struct stage *stage = argument;
    int fd = open(stage->path, O_RDONLY | O_CLOEXEC);
    EXPECT(fd >= 0);
    for (uint64_t i = 0; i < stage->snapshots; i++) {
        EXPECT(lseek(fd, 0, SEEK_SET) == 0);
        OK(lmcs_restore(stage->pool, fd, NULL, NULL, &err));
        OK(lmcs_snapshot_remove(stage->pool, "left", 1 + i % 2, false, NULL, &err));
    }
    close(fd);
    stage->capturing--;
    return NULL;
}

static void *compact_at_once(void *argument)
{
    struct stage *stage = argument;
    while (going_on(stage))
        OK(lmcs_compact(stage->pool, NULL, &err));
    return NULL;
}

static void restores_beside_the_compactor(void **state)
{
    static void *(*const work[])(void *) = {keep_restoring, compact_at_once, compact_at_once};
    struct place *place = *state;
    struct rng rng = {3};
    struct state *weights = state_weights(&rng, 3, 1000);
    char archive[512];
    place_path(place, "an.archive", archive);
    struct stage stage = {.path = archive, .snapshots = scaled("LMCS_TEST_SNAPSHOTS", 250)};
    stage.pool = open_quiet(place->pool);
    for (int64_t step = 0; step < 2; step++) {
        take_snapshot(stage.pool, "left", weights, step);
        state_step(weights, &rng, 0, 3);
    }
    int fd = open(archive, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    OK(lmcs_dump(stage.pool, "left", fd, NULL, NULL, &err));
    close(fd);
    atomic_init(&stage.capturing, 1);
    run_threads(work, sizeof work / sizeof work[0], &stage);
    verify_pool(stage.pool);
    close_pool(stage.pool);
    state_free(weights);
}

static void *capture_same_shelf(void *argument)
{
    struct stage *stage = argument;
    struct rng rng = own_numbers(stage);
    uint64_t last = 0;
    for (uint64_t i = 0; i < stage->snapshots; i++) {
        struct lmcs_capture *capture;
        struct lmcs_commit_options options;
        uint64_t value[2] = {rng.state, i}, number = 0, shape = 2;
        const void *data = value;
        struct lmcs_tensor tensor = {.name = "value", .dtype = LMC_U64, .ndim = 1, .shape = &shape};
        lmcs_commit_options_init(&options);
        OK(lmcs_capture_begin(stage->pool, "shared", &capture, &err));
        OK(lmcs_capture_put(capture, &tensor, &data, 1, &err));
        if (rng_below(&rng, 5) == 0) {
            lmcs_capture_abort(capture);
            continue;
        }
        options.asynchronous = i % 2 == 0;
        OK(lmcs_capture_commit(capture, &options, &number, &err));
        EXPECT(number > last);
        last = number;
        if (options.asynchronous)
            OK(lmcs_capture_wait(capture, &err));
        char which[32];
        uint64_t got[2];
        struct lmcs_snapshot *snapshot;
        snprintf(which, sizeof which, "%llu", (unsigned long long)number);
        OK(lmcs_snapshot_find(stage->pool, "shared", which, &snapshot, &err));
        OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, "value", got, sizeof got, &err));
        EXPECT(memcmp(got, value, sizeof got) == 0);
        lmcs_snapshot_close(snapshot);
    }
    return NULL;
}

static void one_shelf_of_many_threads(void **state)
{
    static void *(*const work[])(void *) = {capture_same_shelf, capture_same_shelf, capture_same_shelf,
                                            capture_same_shelf};
    struct place *place = *state;
    struct stage stage = {.path = place->pool, .snapshots = 60};
    stage.pool = open_pool(place->pool, LMCS_OPEN_CREATE, 0);
    run_threads(work, 4, &stage);
    uint64_t numbers[512];
    size_t count;
    OK(lmcs_snapshot_numbers(stage.pool, "shared", 0, numbers, 512, &count, &err));
    for (size_t i = 0; i < count; i++)
        assert_int_equal(numbers[i], i + 1);
    verify_pool(stage.pool);
    close_pool(stage.pool);
}

static void *open_and_close(void *argument)
{
    struct stage *stage = argument;
    struct rng rng = own_numbers(stage);
    struct prepared prepared;
    char shelf[16];
    snprintf(shelf, sizeof shelf, "of-%llu", (unsigned long long)rng.state);
    prepare(&prepared);
    for (uint64_t n = 1; n <= stage->snapshots; n++) {
        struct lmcs_open_options options;
        struct lmcs_pool *pool = NULL;
        struct lmcs_snapshot *snapshot;
        struct lmcs_view *view;
        lmcs_open_options_init(&options);
        options.limit_bytes = (uint64_t)1 << 30;
        OK(lmcs_pool_open(stage->path, LMCS_OPEN_OR_CREATE, &options, &pool, &err));
        capture_one(pool, 0, shelf, n, &prepared, rng_below(&rng, 2) == 0);
        if (rng_below(&rng, 2) == 0)
            OK(lmcs_pool_close(pool, &err));
        else {
            struct lmcs_pool *again = NULL;
            OK(lmcs_pool_open(stage->path, LMCS_OPEN_READ, &options, &again, &err));
            EXPECT(again == pool);
            OK(lmcs_pool_close(pool, &err));
            enum lmcs_status status = lmcs_snapshot_find(again, shelf, NULL, &snapshot, &err);
            if (status == LMCS_NOT_FOUND && n == 1) {
                OK(lmcs_pool_close(again, &err));
                continue;
            }
            OK(status);
            uint64_t number = lmcs_snapshot_info(snapshot)->number;
            OK(lmcs_view_open(snapshot, NULL, NULL, 0, 0, &view, &err));
            lmcs_snapshot_close(snapshot);
            OK(lmcs_pool_close(again, &err));
            EXPECT(number == n || number + 1 == n);
            for (size_t t = 0; t < TENSORS; t++)
                EXPECT(is_right(lmcs_view_data(view, t), 0, t, number));
            lmcs_view_close(view);
        }
    }
    discard(&prepared);
    return NULL;
}

static void opened_and_closed_from_everywhere(void **state)
{
    static void *(*const work[])(void *) = {open_and_close, open_and_close, open_and_close, open_and_close};
    struct place *place = *state;
    struct stage stage = {.path = place->pool, .snapshots = scaled("LMCS_TEST_SNAPSHOTS", 40)};
    run_threads(work, 4, &stage);
    stage.pool = open_quiet(place->pool);
    verify_pool(stage.pool);
    assert_int_equal(pool_info(stage.pool).snapshot_count, 4 * stage.snapshots);
    close_pool(stage.pool);
}

static unsigned threads_of_this_process(void)
{
    unsigned threads = 0;
    char line[256];
    FILE *status = fopen("/proc/self/status", "re");
    EXPECT(status != NULL);
    while (fgets(line, sizeof line, status) != NULL)
        sscanf(line, "Threads: %u", &threads);
    fclose(status);
    return threads;
}

static void *keep_starting(void *argument)
{
    struct stage *stage = argument;
    while (going_on(stage))
        OK(lmcs_compactor_start(stage->pool, &err));
    return NULL;
}

static void *stop_again_and_again(void *argument)
{
    struct stage *stage = argument;
    for (uint64_t i = 0; i < stage->snapshots; i++) {
        OK(lmcs_compactor_start(stage->pool, &err));
        lmcs_compactor_stop(stage->pool);
    }
    atomic_fetch_sub(&stage->capturing, 1);
    return NULL;
}

/* A stop returns after the thread's end, even if another caller starts it meanwhile. */
static void compactor_started_and_stopped_from_everywhere(void **state)
{
    static void *(*const work[])(void *) = {stop_again_and_again, keep_starting, keep_starting};
    struct place *place = *state;
    struct stage stage = {.path = place->pool, .snapshots = scaled("LMCS_TEST_SNAPSHOTS", 2000)};
    stage.pool = open_pool(place->pool, LMCS_OPEN_CREATE, 0);
    lmcs_compactor_stop(stage.pool);
    unsigned threads = threads_of_this_process();
    alarm(100);
    atomic_init(&stage.capturing, 1);
    run_threads(work, 3, &stage);
    lmcs_compactor_stop(stage.pool);
    assert_int_equal(threads_of_this_process(), threads);
    close_pool(stage.pool);
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(everything_at_once),
        ON_BOTH(captures_while_their_space_is_freed),
        ON_BOTH(restores_beside_the_compactor),
        ON_BOTH(one_shelf_of_many_threads),
        ON_BOTH(opened_and_closed_from_everywhere),
        IN_MEMORY(compactor_started_and_stopped_from_everywhere),
    };
    return cmocka_run_group_tests_name("concurrency", tests, NULL, NULL);
}
