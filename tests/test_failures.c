/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_failures.c - system failures: memory, file space, writes, syncs, libpmemobj's reservations and commits.
 *
 * refuse.h interposes libc and libpmemobj. Each call of the API is made with the first, second, ... call of one
 * function failing, once or from then on, until none fails. It must succeed or fail with a fitting status and message;
 * the pool must be usable; no memory may leak.
 *
 * LMCS_TEST_EVERY=1 fails every call; otherwise later ones are sampled.
 */
/* ctest: timeout=600 labels=no-asan,no-tsan */
#include <unistd.h>

#include "lmcstore_live.h"
#include "pages/space.h"
#include "refuse.h"
#include "sgd.h"

#define STEP_ELEMENTS 6000u

struct scene {
    struct place *place;
    struct lmcs_pool *pool;
    struct rng rng;
    struct state *now;
    struct state *next;
    struct lmcs_tensor tensors[32];
    const void *data[32];
    char other[512], archive[512], file[512], imported[512];
    float buffer[STEP_ELEMENTS], weight[STEP_ELEMENTS]; /* an optimizer's, in shelf "linked" */
    uint64_t number;
    int fd;
};

static void fill_tensors(struct scene *scene, const struct state *state)
{
    EXPECT(state->count <= 32);
    for (size_t i = 0; i < state->count; i++) {
        held_tensor(&state->tensors[i], &scene->tensors[i]);
        scene->data[i] = state->tensors[i].data;
    }
}

static void prepare_next(struct scene *scene)
{
    state_free(scene->next);
    scene->next = state_copy(scene->now);
    state_step(scene->next, &scene->rng, 0, scene->next->count - 1);
    rng_fill(&scene->rng, scene->next->tensors[scene->next->count - 1].data, 300000);
    fill_tensors(scene, scene->next);
}

static void keep_few(struct scene *scene)
{
    uint64_t numbers[64];
    size_t count = 0;
    OK(lmcs_snapshot_numbers(scene->pool, "run", 1, numbers, 64, &count, &err));
    for (size_t i = 1; i + 6 < count; i++)
        OK(lmcs_snapshot_remove(scene->pool, "run", numbers[i], false, NULL, &err));
}

static enum lmcs_status commit_with(struct scene *scene, struct lmcs_commit_options *options, bool reserve)
{
    struct lmcs_capture *capture;
    size_t count = scene->next->count;
    void *room;
    enum lmcs_status status = lmcs_capture_begin(scene->pool, "run", &capture, &err);
    if (status != LMCS_OK)
        return status;
    status = lmcs_capture_put(capture, scene->tensors, scene->data, reserve ? count - 1 : count, &err);
    if (status == LMCS_OK && reserve) {
        status = lmcs_capture_reserve(capture, &scene->tensors[count - 1], &room, &err);
        if (status == LMCS_OK)
            memcpy(room, scene->data[count - 1], scene->next->tensors[count - 1].bytes);
    }
    if (status != LMCS_OK) {
        lmcs_capture_abort(capture);
        return status;
    }
    status = lmcs_capture_commit(capture, options, &scene->number, &err);
    return status == LMCS_OK && options->asynchronous ? lmcs_capture_wait(capture, &err) : status;
}

static enum lmcs_status call_capture(struct scene *scene)
{
    static const char *const tags[] = {"best", "another"};
    static const struct lmcs_metric metrics[] = {{"loss", 2.5}, {"rate", 0.1}};
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.step = 7;
    options.tags = tags;
    options.tag_count = 2;
    options.metrics = metrics;
    options.metric_count = 2;
    options.meta_json = "{\"lr\": 0.1}";
    return commit_with(scene, &options, true);
}

static enum lmcs_status call_capture_async(struct scene *scene)
{
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.asynchronous = true;
    return commit_with(scene, &options, false);
}

static void check_captured(struct scene *scene)
{
    state_free(scene->now);
    scene->now = state_copy(scene->next);
    expect_snapshot(scene->pool, "run", scene->number, scene->now);
    keep_few(scene);
}

static const unsigned char group[16] = "one of a group";

static enum lmcs_status call_prepare(struct scene *scene)
{
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.prepare = true;
    memcpy(options.group, group, sizeof group);
    return commit_with(scene, &options, false);
}
static void check_prepared(struct scene *scene)
{
    OK(lmcs_group_resolve(scene->pool, group, false, &err));
}
static void prepare_resolve(struct scene *scene)
{
    struct lmcs_commit_options options;
    if (lmcs_group_resolve(scene->pool, group, false, &err) != LMCS_OK)
        EXPECT(err.status == LMCS_NOT_FOUND);
    prepare_next(scene);
    lmcs_commit_options_init(&options);
    options.prepare = true;
    memcpy(options.group, group, sizeof group);
    OK(commit_with(scene, &options, false));
}
static enum lmcs_status call_resolve(struct scene *scene)
{
    return lmcs_group_resolve(scene->pool, group, true, &err);
}

static enum lmcs_status call_tag(struct scene *scene)
{
    enum lmcs_status status = lmcs_tag_set(scene->pool, "run", "moving", scene->number, &err);
    return status == LMCS_OK ? lmcs_tag_remove(scene->pool, "run", "moving", &err) : status;
}
static void prepare_tag(struct scene *scene)
{
    scene->number = shelf_info(scene->pool, "run").latest;
    OK(lmcs_tag_set(scene->pool, "run", "moving", scene->number, &err));
}

static enum lmcs_status call_settings(struct scene *scene)
{
    enum lmcs_status status = lmcs_shelf_set_keep_raw(scene->pool, "another", 3, &err);
    if (status == LMCS_OK)
        status = lmcs_pool_set_limit(scene->pool, (uint64_t)8 << 30, &err);
    return status == LMCS_OK ? lmcs_pool_set_limit(scene->pool, 0, &err) : status;
}

/* ---- Steps of an optimizer, captured as links ---- */

static enum lmcs_status capture_step(struct scene *scene, bool asynchronous)
{
    const uint64_t shape = STEP_ELEMENTS;
    const struct lmcs_tensor tensors[] = {{.name = "m", .dtype = LMC_F32, .ndim = 1, .shape = &shape},
                                          {.name = "w", .dtype = LMC_F32, .ndim = 1, .shape = &shape}};
    const void *data[] = {scene->buffer, scene->weight};
    const struct lmcs_relation relation = sgd_relation("m", "w");
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    enum lmcs_status status = lmcs_capture_begin(scene->pool, "linked", &capture, &err);
    if (status != LMCS_OK)
        return status;
    status = lmcs_capture_relate(capture, &relation, 1, &err);
    if (status == LMCS_OK)
        status = lmcs_capture_put(capture, tensors, data, 2, &err);
    if (status != LMCS_OK) {
        lmcs_capture_abort(capture);
        return status;
    }
    lmcs_commit_options_init(&options);
    options.asynchronous = asynchronous;
    status = (asynchronous ? promise_and_commit : lmcs_capture_commit)(capture, &options, &scene->number, &err);
    return status == LMCS_OK && asynchronous ? lmcs_capture_wait(capture, &err) : status;
}

/* A line near its bound, whose newest snapshot was removed. */
static void prepare_step(struct scene *scene)
{
    OK(lmcs_shelf_set_policy(scene->pool, "linked", "keep_raw=1 links=3 " WRITE_LINKS, &err));
    for (int i = 0; i < 2; i++) {
        sgd_step(&scene->rng, scene->buffer, scene->weight, STEP_ELEMENTS);
        OK(capture_step(scene, false));
    }
    if (scene->number % 4 == 0)
        OK(lmcs_snapshot_remove(scene->pool, "linked", scene->number, false, NULL, &err));
    for (uint64_t old = 5; old < 8 && scene->number > old; old++)
        if (lmcs_snapshot_remove(scene->pool, "linked", scene->number - old, false, NULL, &err) != LMCS_OK)
            EXPECT(err.status == LMCS_NOT_FOUND);
    sgd_step(&scene->rng, scene->buffer, scene->weight, STEP_ELEMENTS);
}
static enum lmcs_status call_step(struct scene *scene)
{
    return capture_step(scene, false);
}
static enum lmcs_status call_step_async(struct scene *scene)
{
    return capture_step(scene, true);
}
static void check_step(struct scene *scene)
{
    static float read[2][STEP_ELEMENTS];
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(scene->pool, "linked@latest", &snapshot, &err));
    EXPECT(lmcs_snapshot_info(snapshot)->number == scene->number);
    OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, "m", read[0], sizeof read[0], &err));
    OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, "w", read[1], sizeof read[1], &err));
    EXPECT(memcmp(read[0], scene->buffer, sizeof read[0]) == 0 && memcmp(read[1], scene->weight, sizeof read[1]) == 0);
    lmcs_snapshot_close(snapshot);
}
static void prepare_cut(struct scene *scene)
{
    prepare_step(scene);
    OK(capture_step(scene, false));
}

static void prepare_compact(struct scene *scene)
{
    for (int i = 0; i < 2; i++) {
        prepare_next(scene);
        take_snapshot(scene->pool, "run", scene->next, i);
        state_free(scene->now);
        scene->now = state_copy(scene->next);
    }
    keep_few(scene);
}
static enum lmcs_status call_compact(struct scene *scene)
{
    return lmcs_compact(scene->pool, NULL, &err);
}

static void prepare_remove(struct scene *scene)
{
    prepare_next(scene);
    scene->number = take_snapshot(scene->pool, "run", scene->next, 1);
    OK(lmcs_tag_set(scene->pool, "run", "doomed", scene->number, &err));
    state_free(scene->now);
    scene->now = state_copy(scene->next);
    take_snapshot(scene->pool, "run", scene->now, 2);
    keep_few(scene);
}
static enum lmcs_status call_remove(struct scene *scene)
{
    return lmcs_snapshot_remove(scene->pool, "run", scene->number, false, NULL, &err);
}

static bool count_entry(void *context, const struct lmcs_entry *entry)
{
    *(size_t *)context += entry->raw_bytes > 0;
    return true;
}
static bool count_shelf(void *context, const struct lmcs_shelf_info *info)
{
    *(size_t *)context += info->snapshot_count > 0;
    return true;
}
static bool count_tag(void *context, const char *tag)
{
    *(size_t *)context += *tag != '\0';
    return true;
}

static enum lmcs_status call_ask(struct scene *scene)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_snapshot_storage storage;
    struct lmcs_pool_info info;
    struct lmc_hash digest;
    uint64_t numbers[8];
    size_t count;
    enum lmcs_status status = lmcs_snapshot_open(scene->pool, "run@latest~1", &snapshot, &err);
    if (status != LMCS_OK)
        return status;
    status = lmcs_snapshot_entries(snapshot, count_entry, &count, &err);
    if (status == LMCS_OK)
        status = lmcs_snapshot_storage(snapshot, &storage, &err);
    if (status == LMCS_OK)
        status = lmcs_snapshot_digest(snapshot, &digest, &err);
    if (status == LMCS_OK)
        status = lmcs_snapshot_tags(snapshot, count_tag, &count, &err);
    lmcs_snapshot_close(snapshot);
    if (status == LMCS_OK)
        status = lmcs_snapshot_numbers(scene->pool, "run", 1, numbers, 8, &count, &err);
    if (status == LMCS_OK)
        status = lmcs_snapshot_steps(scene->pool, "run", 1, 1, numbers, 8, &count, &err);
    if (status == LMCS_OK)
        status = lmcs_shelf_list(scene->pool, count_shelf, &count, &err);
    return status == LMCS_OK ? lmcs_pool_info(scene->pool, &info, &err) : status;
}

static enum lmcs_status call_read(struct scene *scene)
{
    static const uint32_t flags[] = {LMCS_VIEW_VERIFY, LMCS_VIEW_PRIVATE, LMCS_VIEW_COPY};
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    uint64_t number;
    size_t count;
    char which[32];
    enum lmcs_status status = lmcs_snapshot_numbers(scene->pool, "run", 1, &number, 1, &count, &err);
    if (status != LMCS_OK)
        return status;
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    status = lmcs_snapshot_find(scene->pool, "run", which, &snapshot, &err);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < 3; i++) {
        status = lmcs_view_open(snapshot, NULL, NULL, 0, flags[i], &view, &err);
        if (status == LMCS_OK)
            lmcs_view_close(view);
    }
    if (status == LMCS_OK)
        status = lmcs_snapshot_read(snapshot, LMCS_TENSOR, "t0", (void *)(uintptr_t)scene->data[0],
                                    scene->next->tensors[0].bytes, &err);
    lmcs_snapshot_close(snapshot);
    return status;
}

static enum lmcs_status call_verify(struct scene *scene)
{
    return lmcs_verify(scene->pool, NULL, NULL, NULL, NULL, NULL, &err);
}

static enum lmcs_status call_dump(struct scene *scene)
{
    EXPECT(lseek(scene->fd, 0, SEEK_SET) == 0);
    return lmcs_dump(scene->pool, "run", scene->fd, NULL, NULL, &err);
}
static void prepare_dump(struct scene *scene)
{
    if (scene->fd >= 0)
        close(scene->fd);
    scene->fd = open(scene->archive, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(scene->fd >= 0);
}

static void prepare_restore(struct scene *scene)
{
    uint64_t numbers[8];
    size_t count;
    for (int i = 0; i < 3; i++)
        prepare_compact(scene);
    prepare_dump(scene);
    OK(lmcs_dump(scene->pool, "run", scene->fd, NULL, NULL, &err));
    OK(lmcs_snapshot_numbers(scene->pool, "run", 1, numbers, 8, &count, &err));
    EXPECT(count > 3);
    for (size_t i = 1; i < 3; i++)
        OK(lmcs_snapshot_remove(scene->pool, "run", numbers[i], false, NULL, &err));
}
static enum lmcs_status call_restore(struct scene *scene)
{
    EXPECT(lseek(scene->fd, 0, SEEK_SET) == 0);
    return lmcs_restore(scene->pool, scene->fd, NULL, NULL, &err);
}

static enum lmcs_status call_export(struct scene *scene)
{
    struct lmcs_snapshot *snapshot;
    enum lmcs_status status = lmcs_snapshot_open(scene->pool, "run@latest", &snapshot, &err);
    if (status != LMCS_OK)
        return status;
    status = lmcs_export_safetensors(snapshot, NULL, scene->file, NULL, NULL, &err);
    lmcs_snapshot_close(snapshot);
    return status;
}
static void prepare_import(struct scene *scene)
{
    struct lmcs_shelf_info info = {0};
    OK(call_export(scene));
    if (lmcs_shelf_info(scene->pool, "imported", &info, &err) == LMCS_OK && info.snapshot_count > 2)
        OK(lmcs_snapshot_remove(scene->pool, "imported", info.latest - 2, false, NULL, &err));
}
static enum lmcs_status call_import(struct scene *scene)
{
    return lmcs_import_safetensors(scene->pool, "imported", scene->file, NULL, NULL, NULL, &err);
}

static enum lmcs_status open_and_close(const char *path, enum lmcs_open_mode mode)
{
    struct lmcs_open_options options;
    struct lmcs_pool *pool;
    lmcs_open_options_init(&options);
    options.threads = 2;
    enum lmcs_status status = lmcs_pool_open(path, mode, &options, &pool, &err);
    return status == LMCS_OK ? lmcs_pool_close(pool, &err) : status;
}
static enum lmcs_status call_create(struct scene *scene)
{
    return open_and_close(scene->other, LMCS_OPEN_CREATE);
}
static void prepare_create(struct scene *scene)
{
    unlink(scene->other);
}
static void prepare_open(struct scene *scene)
{
    if (access(scene->other, F_OK) == 0)
        return;
    struct lmcs_pool *pool = open_quiet(scene->other);
    take_snapshot(pool, "run", scene->now, 1);
    close_pool(pool);
}
static enum lmcs_status call_open(struct scene *scene)
{
    return open_and_close(scene->other, LMCS_OPEN_WRITE);
}
static enum lmcs_status call_open_to_read(struct scene *scene)
{
    return open_and_close(scene->other, LMCS_OPEN_READ);
}

static const struct step {
    const char *name;
    void (*prepare)(struct scene *scene);
    enum lmcs_status (*call)(struct scene *scene);
    void (*check)(struct scene *scene);
} steps[] = {
    {"create", prepare_create, call_create, NULL},
    {"open", prepare_open, call_open, NULL},
    {"open to read", prepare_open, call_open_to_read, NULL},
    {"capture", prepare_next, call_capture, check_captured},
    {"capture, asynchronous", prepare_next, call_capture_async, check_captured},
    {"prepare", prepare_next, call_prepare, check_prepared},
    {"resolve", prepare_resolve, call_resolve, check_captured},
    {"tags", prepare_tag, call_tag, NULL},
    {"settings", NULL, call_settings, NULL},
    {"compact", prepare_compact, call_compact, NULL},
    {"remove", prepare_remove, call_remove, NULL},
    {"ask", NULL, call_ask, NULL},
    {"read", prepare_next, call_read, NULL},
    {"verify", NULL, call_verify, NULL},
    {"dump", prepare_dump, call_dump, NULL},
    {"restore", prepare_restore, call_restore, NULL},
    {"export", NULL, call_export, NULL},
    {"import", prepare_import, call_import, NULL},
    {"capture of a step", prepare_step, call_step, check_step},
    {"capture of a step, asynchronous", prepare_step, call_step_async, check_step},
    {"compact steps", prepare_cut, call_compact, check_step},
};
enum { STEPS = sizeof steps / sizeof steps[0] };

/* A failed sync may lose all earlier writes, also of other calls, so nothing is acknowledged until the pool is opened
 * again. */
static void open_again_after_a_failed_sync(struct scene *scene)
{
    if (lmcs_heap_failure(scene->pool->heap) == 0)
        return;
    FAILS(LMCS_IO, lmcs_shelf_set_keep_raw(scene->pool, "after", 3, &err));
    EXPECT(strstr(err.message, "open it again") != NULL);
    close_pool(scene->pool);
    scene->pool = open_quiet(scene->place->pool);
}

static long fail_in_turn(struct scene *scene, const struct step *step, enum refusal refusal, bool all)
{
    bool every = scaled("LMCS_TEST_EVERY", 0) != 0;
    for (long n = 0, rounds = 0;; n += 1 + (every ? 0 : n / 64), rounds++) {
        EXPECT(rounds < 20000);
        if (step->prepare != NULL)
            step->prepare(scene);
        refuse(refusal, n, all);
        enum lmcs_status status = step->call(scene);
        refuse_no_more();
        bool any = failures > 0;
        if (status != LMCS_OK && !(any && fits(refusal, status) && strlen(err.message) > 10))
            fail_msg("%s, %s %ld%s: %s (%s)", step->name, refusal_names[refusal], n, all ? " and all further" : "",
                     lmcs_status_name(status), err.message);
        open_again_after_a_failed_sync(scene);
        if (status == LMCS_OK && step->check != NULL)
            step->check(scene);
        if (rounds % 8 == 7 || !any)
            check_pool(scene->pool);
        if (!any) {
            if (scaled("LMCS_TEST_VERBOSE", 0) != 0)
                printf("%s, %s%s: %ld calls, %ld refused in turn\n", step->name, refusal_names[refusal],
                       all ? " and all further" : "", n, rounds);
            return n;
        }
    }
}

static void fail_step_once(struct scene *scene, const struct step *step, enum refusal refusal, bool all)
{
    scene->pool = open_quiet(scene->place->pool);
    scene->fd = -1;
    scene->now = state_weights(&scene->rng, 4, 8000);
    state_add(scene->now, "last", LMC_U8, 1, &(uint64_t){300000});
    take_snapshot(scene->pool, "run", scene->now, 1);
    fail_in_turn(scene, step, refusal, all);
    prepare_compact(scene);
    close_pool(scene->pool);
    scene->pool = open_quiet(scene->place->pool);
    expect_state(scene->pool, "run", "latest", scene->now);
    verify_pool(scene->pool);
    close_pool(scene->pool);
    if (scene->fd >= 0)
        close(scene->fd);
    state_free(scene->next);
    state_free(scene->now);
    scene->now = scene->next = NULL;
}

/* Repeats a call that increased memory: libraries keep memory once, a leak grows again. */
static void fail_step(struct scene *scene, const struct step *step, enum refusal refusal, bool all)
{
    long leaked = 1;
    for (int pass = 0; leaked > 0 && pass < 3; pass++) {
        long before = blocks;
        fail_step_once(scene, step, refusal, all);
        leaked = blocks - before;
    }
    if (leaked > 0)
        fail_msg("%s, %s: %ld blocks of memory are lost", step->name, refusal_names[refusal], leaked);
}

static void refuse_each(struct place *place, enum refusal first, enum refusal last)
{
    struct scene scene = {.place = place, .rng = {1}, .fd = -1};
    place_path(place, "other.pool", scene.other);
    place_path(place, "an.archive", scene.archive);
    place_path(place, "a.safetensors", scene.file);
    for (int refusal = (int)first; refusal <= (int)last; refusal++)
        for (size_t i = 0; i < STEPS && refusal != THEIR_MEMORY; i++)
            fail_step(&scene, &steps[i], (enum refusal)refusal, i % 2 == 0);
}

static void each_call_refused(void **state)
{
    refuse_each(*state, MEMORY, MAPPING);
}

/* Limits memory to amounts from nothing to plenty. libpmemobj crashes on some failed allocations, so the store must not
 * call it then. */
static void memory_limited(void **state)
{
    static const struct step limited[] = {
        {"create", prepare_create, call_create, NULL},
        {"open", prepare_open, call_open, NULL},
        {"open to read", prepare_open, call_open_to_read, NULL},
    };
    struct place *place = *state;
    struct scene scene = {.place = place, .rng = {1}, .fd = -1};
    long step_bytes = scaled("LMCS_TEST_EVERY", 0) != 0 ? 16 << 10 : 512 << 10, went_well = 0;
    place_path(place, "other.pool", scene.other);
    scene.now = state_weights(&scene.rng, 2, 1000);
    for (size_t i = 0; i < sizeof limited / sizeof limited[0]; i++)
        for (long bytes = 0; bytes < 48 << 20; bytes += step_bytes) {
            limited[i].prepare(&scene);
            atomic_store(&most_bytes, atomic_load(&bytes_in_use) + bytes);
            refuse(MEMORY_BEYOND, 0, true);
            enum lmcs_status status = limited[i].call(&scene);
            refuse_no_more();
            if (status != LMCS_OK && (status != LMCS_NO_MEMORY || failures == 0))
                fail_msg("%s with %ld bytes: %s (%s)", limited[i].name, bytes, lmcs_status_name(status), err.message);
            went_well += status == LMCS_OK;
        }
    EXPECT(went_well > 0);
    state_free(scene.now);
}

static void writes_refused(void **state)
{
    refuse_each(*state, SPACE_TO, SYNCING);
}

/* Linux reports failed writeback once, to the first sync, and marks the pages clean. So a failed sync of one call fails
 * all earlier writers. */
static void a_failed_sync_is_everyones(void **state)
{
    struct place *place = *state;
    struct scene scene = {.place = place, .rng = {5}, .fd = -1};
    const struct lmcs_tensor tensor = {.name = "w", .dtype = LMC_U8, .ndim = 1, .shape = &(uint64_t){65536}};
    struct lmcs_live *live = NULL;
    struct lmcs_capture *capture = NULL;
    uint64_t number = 0;
    scene.pool = open_quiet(place->pool);
    scene.now = state_weights(&scene.rng, 4, 8000);
    state_add(scene.now, "last", LMC_U8, 1, &(uint64_t){300000});
    take_snapshot(scene.pool, "run", scene.now, 1);
    OK(lmcs_live_create(scene.pool, "run", &tensor, NULL, &live, &err));
    unsigned char *w = lmcs_live_data(live);
    OK(lmcs_capture_begin(scene.pool, "run", &capture, &err));
    prepare_next(&scene);
    OK(lmcs_capture_put(capture, scene.tensors, scene.data, scene.next->count, &err));
    memset(w, 7, 65536);
    refuse(SYNCING, 0, false);
    FAILS(LMCS_IO, lmcs_tag_set(scene.pool, "run", "best", 1, &err));
    refuse_no_more();
    EXPECT(failures == 1);
    FAILS(LMCS_IO, lmcs_live_persist(live, 4096, 64, &err));
    FAILS(LMCS_IO, lmcs_capture_commit(capture, NULL, &number, &err));
    FAILS(LMCS_IO, lmcs_tag_set(scene.pool, "run", "best", 1, &err));
    expect_state(scene.pool, "run", "latest", scene.now);
    lmcs_live_close(live);
    close_pool(scene.pool);
    scene.pool = open_quiet(place->pool);
    verify_pool(scene.pool);
    EXPECT(shelf_info(scene.pool, "run").latest == 1);
    OK(lmcs_tag_set(scene.pool, "run", "best", 1, &err));
    take_snapshot(scene.pool, "run", scene.next, 2);
    expect_state(scene.pool, "run", "latest", scene.next);
    close_pool(scene.pool);
    state_free(scene.next);
    state_free(scene.now);
}

static void mappings_refused_to_the_compactor(void **state)
{
    struct place *place = *state;
    struct scene scene = {.place = place, .rng = {6}, .fd = -1};
    scene.now = state_weights(&scene.rng, 4, 8000);
    bool any = true;
    for (long n = 0; any; n++) {
        unlink(place->pool);
        scene.pool = open_quiet(place->pool);
        for (int64_t step = 1; step <= 7; step++) {
            take_snapshot(scene.pool, "run", scene.now, step);
            state_step(scene.now, &scene.rng, 0, 4);
        }
        refuse(MAPPING, n, false);
        enum lmcs_status status = lmcs_compact(scene.pool, NULL, &err);
        refuse_no_more();
        any = failures > 0;
        EXPECT(status == LMCS_OK || any);
        OK(lmcs_compact(scene.pool, NULL, &err));
        EXPECT(pool_info(scene.pool).compacted_contents > 0);
        verify_pool(scene.pool);
        close_pool(scene.pool);
    }
    state_free(scene.now);
}

static void a_trim_that_fails_counts_nothing(void **state)
{
    static const enum refusal refusals[] = {MEMORY, PUBLISHING};
    const uint64_t bytes = (uint64_t)3 << 20;
    struct place *place = *state;
    struct rng rng = {8};
    struct state *small = state_weights(&rng, 2, 1000), *large = state_copy(small);
    rng_fill(&rng, state_add(large, "large", LMC_U8, 1, &bytes)->data, bytes);
    struct lmcs_pool *pool = open_quiet(place->pool);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct lmcs_txn txn;
        size_t released = 0;
        take_snapshot(pool, "run", large, 1);
        uint64_t number = shelf_info(pool, "run").latest, used;
        take_snapshot(pool, "run", small, 2);
        OK(lmcs_snapshot_remove(pool, "run", number, false, NULL, &err));
        OK(lmcs_txn_write(pool, &txn, &err));
        OK(lmcs_space_release(&txn, 1000, &released, &err));
        OK(lmcs_txn_commit(&txn, &err));
        bool any = true;
        long failed = 0;
        for (long n = 0; any; n++) {
            used = lmcs_space_used(pool);
            refuse(refusals[i], n, false);
            enum lmcs_status status = lmcs_space_trim(pool, 0, &err);
            refuse_no_more();
            any = failures > 0;
            failed += status != LMCS_OK;
            EXPECT(status == LMCS_OK || (any && fits(refusals[i], status)));
            if (status == LMCS_OK)
                continue;
            uint64_t counted = lmcs_space_used(pool);
            EXPECT(n > 0 || counted == used);
            take_snapshot(pool, "run", small, 3);
            counted = lmcs_space_used(pool);
            close_pool(pool);
            pool = open_quiet(place->pool);
            EXPECT(lmcs_space_used(pool) == counted);
        }
        EXPECT(failed > 0);
        check_pool(pool);
    }
    verify_pool(pool);
    close_pool(pool);
    state_free(large);
    state_free(small);
}

static void extents_that_a_poolset_keeps(void **state)
{
    char path[512];
    uint64_t number;
    struct rng rng = {6};
    struct state *small = state_weights(&rng, 1, 1000), *large = state_of_noise(7, LARGE_FOR_A_POOLSET);
    struct lmcs_pool *pool = poolset_of_free_extents(*state, path, small);
    long failed = 0;
    enum lmcs_status status;
    do {
        refuse(PUBLISHING, 0, false);
        status = try_snapshot(pool, "run", large, 1, &number, &err);
        bool any = failures > 0;
        refuse_no_more();
        EXPECT(status == LMCS_OK || (any && fits(PUBLISHING, status)));
        failed += status != LMCS_OK;
        take_snapshot(pool, "run", small, 2);
        pool = reopen_counted(pool, path);
    } while (status != LMCS_OK && failed < 3);
    EXPECT(failed > 0);
    expect_snapshot(pool, "run", take_snapshot(pool, "run", large, 1), large);
    verify_pool(pool);
    close_pool(pool);
    state_free(small);
    state_free(large);
}

/* libpmemobj ends the process when a sync fails, so the store tests the disk first. */
static void disks_that_fail_when_a_pool_is_opened(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct state *weights = state_weights(&rng, 4, 8000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    close_pool(pool);
    for (enum refusal refusal = WRITING; refusal <= SYNCING; refusal++) {
        refuse(refusal, 0, false);
        FAILS(LMCS_IO, lmcs_pool_open(place->pool, LMCS_OPEN_WRITE, NULL, &pool, &err));
        refuse_no_more();
        EXPECT(failures == 1 && strstr(err.message, "its disk does not take") != NULL);
    }
    pool = open_quiet(place->pool);
    expect_state(pool, "run", "latest", weights);
    close_pool(pool);
    state_free(weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {IN_MEMORY(memory_limited),
                                       IN_MEMORY(each_call_refused),
                                       ON_DISK(writes_refused),
                                       ON_DISK(a_failed_sync_is_everyones),
                                       ON_DISK(mappings_refused_to_the_compactor),
                                       ON_DISK(a_trim_that_fails_counts_nothing),
                                       IN_MEMORY(extents_that_a_poolset_keeps),
                                       ON_DISK(disks_that_fail_when_a_pool_is_opened)};
    return cmocka_run_group_tests_name("failures", tests, NULL, NULL);
}
