/* SPDX-License-Identifier: BSD-3-Clause */
/* test_capture_lend.c - captures that write links from the caller's bytes, without a copy of their own. */
#include "test_links_support.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "capture/memory.h"
#include "capture/state.h"

/* The codec's memory is lost where unreadable bytes end its work. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:lmcs_guard\n";
}

/* Of the tensors that links may store. */
static uint64_t linked_bytes(const struct run *run)
{
    uint64_t bytes = 0;
    for (size_t p = 0; p < PARAMETERS; p++)
        bytes += run->parameters[p].arrays * run->parameters[p].elements * sizeof(float);
    return bytes;
}

/* Begins a capture of `now`, which it lends. */
static struct lmcs_capture *lend_as(const struct run *run, struct lmcs_pool *pool, const struct state *now,
                                    bool related)
{
    struct lmcs_capture *capture;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    if (related)
        relate(capture, run, 0);
    lmcs_capture_lend(capture, true);
    put_state(capture, now);
    return capture;
}

static struct lmcs_capture *lend(const struct run *run, struct lmcs_pool *pool, const struct state *now)
{
    return lend_as(run, pool, now, true);
}

static size_t lent_entries(const struct lmcs_capture *capture)
{
    size_t count = 0;
    for (size_t i = 0; i < capture->entries.count; i++)
        count += capture->entries.items[i]->lent != NULL;
    return count;
}

static uint64_t add(struct run *run, struct state *now, uint64_t number)
{
    run->states[number] = now;
    run->there[number] = true;
    run->count = number;
    return number;
}

static uint64_t snapshot_as(struct run *run, struct lmcs_pool *pool, bool related)
{
    struct state *now = state_of_run(run);
    uint64_t number;
    struct lmcs_capture *capture = lend_as(run, pool, now, related);
    OK(lmcs_capture_commit(capture, NULL, &number, &err));
    return add(run, now, number);
}

static uint64_t snapshot_lent(struct run *run, struct lmcs_pool *pool)
{
    return snapshot_as(run, pool, true);
}

static struct lmcs_pool *begin_run(const struct place *place, struct run *run, const size_t *sizes, const char *policy)
{
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(run, adamw_hints(), BF16, sizes);
    set_policy(pool, "run", policy);
    return pool;
}

static void end_run(struct run *run, struct lmcs_pool *pool)
{
    expect_run(run, pool, "run");
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    run_end(run);
}

/* Memory holds the state once, also where steps are found in the data. */
static void links_need_no_copy(void **state)
{
    struct run run;
    struct lmcs_pool *pool = begin_run(*state, &run, large, "write=link restore=none");
    for (uint64_t n = 1; n <= 8; n++) {
        run_step(&run);
        snapshot_as(&run, pool, n <= 4);
        assert_int_equal(storage_of(pool, "run", n).link_contents, n == 1 ? 0 : 3 * PARAMETERS);
        assert_in_range(lmcs_memory_bytes(pool), linked_bytes(&run), linked_bytes(&run) + 12000);
    }
    end_run(&run, pool);
}

/* Of parameters whose turn it is, the commit makes a copy. */
static void keyframes_are_copied(void **state)
{
    struct run run;
    struct lmcs_pool *pool = begin_run(*state, &run, small, "write=link restore=none links=3");
    for (uint64_t n = 1; n <= 20; n++) {
        run_step(&run);
        snapshot_lent(&run, pool);
        assert_true(storage_of(pool, "run", n).longest_line <= 3);
    }
    end_run(&run, pool);
}

/* After an asynchronous commit, and after a promise. */
static void bytes_may_change_after_the_call(void **state)
{
    struct run run;
    struct lmcs_pool *pool = begin_run(*state, &run, large, "write=link restore=none");
    run_on(&run, pool, "run", 2);
    for (int i = 0; i < 6; i++) {
        struct lmcs_commit_options options;
        uint64_t number;
        run_step(&run);
        struct state *now = state_of_run(&run), *lent = state_copy(now);
        struct lmcs_capture *capture = lend(&run, pool, lent);
        assert_int_equal(lent_entries(capture), 3 * PARAMETERS);
        lmcs_commit_options_init(&options);
        options.asynchronous = true;
        if (i % 2 == 0)
            OK(lmcs_capture_promise(capture, &options, &number, &err));
        else
            OK(lmcs_capture_commit(capture, &options, &number, &err));
        for (size_t t = 0; t < lent->count; t++)
            memset(lent->tensors[t].data, 0x55, lent->tensors[t].bytes);
        state_free(lent);
        if (i % 2 == 0)
            OK(lmcs_capture_commit(capture, NULL, NULL, &err));
        OK(lmcs_capture_wait(capture, &err));
        add(&run, now, number);
        assert_int_equal(storage_of(pool, "run", number).link_contents, 3 * PARAMETERS);
    }
    end_run(&run, pool);
}

/* What changes before the commit is in the snapshot as it is at the commit. */
static void bytes_are_read_by_the_commit(void **state)
{
    struct run run;
    struct lmcs_pool *pool = begin_run(*state, &run, large, "write=link restore=none");
    run_on(&run, pool, "run", 2);
    run_step(&run);
    struct state *now = state_of_run(&run);
    struct lmcs_capture *capture = lend(&run, pool, now);
    for (size_t t = 0; t < now->count; t++)
        if (strstr(now->tensors[t].name, "weight") != NULL)
            now->tensors[t].data[5] ^= 1;
    uint64_t number;
    OK(lmcs_capture_commit(capture, NULL, &number, &err));
    add(&run, now, number);
    end_run(&run, pool);
}

/* A promise copies later puts, too. */
static void a_promise_ends_the_loan(void **state)
{
    struct run run;
    struct lmcs_pool *pool = begin_run(*state, &run, large, "write=link restore=none");
    run_on(&run, pool, "run", 2);
    run_step(&run);
    struct state *now = state_of_run(&run), *lent = state_copy(now);
    struct lmcs_capture *capture;
    uint64_t number;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    relate(capture, &run, 0);
    OK(lmcs_capture_promise(capture, NULL, &number, &err));
    lmcs_capture_lend(capture, true);
    put_state(capture, lent);
    assert_int_equal(lent_entries(capture), 0);
    state_free(lent);
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    OK(lmcs_capture_wait(capture, &err));
    add(&run, now, number);
    end_run(&run, pool);
}

/* Tensors that find no room in memory are written raw: the copy of `twin` had the bytes before the step. */
static void copies_without_room(void **state)
{
    enum { COUNT = 20000 };
    struct place *place = *state;
    struct lmcs_open_options options;
    struct lmcs_pool *pool;
    const uint64_t shape = COUNT;
    static float before[COUNT], got[COUNT];
    struct lmc_link_hints hints = sgd_hints();
    struct trained_state trained_now = trained(&hints, COUNT, BF16, 2);
    const void *data[] = {trained_now.array[0], trained_now.array[1], before};
    const struct lmcs_relation relation = {.names = {"momentum_buffer", "weight"},
                                           .name_count = 2,
                                           .optimizer = hints.optimizer,
                                           .lr = hints.lr,
                                           .weight_decay = hints.weight_decay,
                                           .momentum = hints.momentum,
                                           .dampening = hints.dampening};
    struct lmcs_tensor tensors[3];
    const char *const names[] = {"momentum_buffer", "weight", "twin"};
    lmcs_open_options_init(&options);
    options.flags = LMCS_NO_BACKGROUND;
    options.memory_bytes = 2 * sizeof before;
    OK(lmcs_pool_open(place->pool, LMCS_OPEN_CREATE, &options, &pool, &err));
    set_policy(pool, "run", "write=link restore=none");
    for (size_t k = 0; k < 3; k++)
        tensors[k] = (struct lmcs_tensor){.name = names[k], .dtype = LMC_F32, .ndim = 1, .shape = &shape};
    for (int i = 0; i < 4; i++) {
        struct lmcs_capture *capture;
        memcpy(before, data[1], sizeof before);
        if (i % 2 == 1)
            optimizer_step(&trained_now, &hints, BF16, 0.3f, (uint64_t)i);
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        OK(lmcs_capture_relate(capture, &relation, 1, &err));
        lmcs_capture_lend(capture, true);
        OK(lmcs_capture_put(capture, tensors, data, i % 2 == 1 ? 3 : 2, &err));
        if (i % 2 == 0)
            OK(lmcs_capture_put_same(capture, &tensors[2], "weight", &err));
        OK(lmcs_capture_commit(capture, NULL, NULL, &err));
        for (size_t k = 0; k < 3; k++) {
            struct lmcs_snapshot *snapshot;
            OK(lmcs_snapshot_find(pool, "run", NULL, &snapshot, &err));
            OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, names[k], got, sizeof got, &err));
            assert_memory_equal(got, i % 2 == 0 && k == 2 ? data[1] : data[k], sizeof got);
            lmcs_snapshot_close(snapshot);
        }
        assert_true(lmcs_memory_bytes(pool) <= options.memory_bytes);
    }
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    trained_free(&trained_now);
}

/* Two tensors had one content, or a tensor has two names. */
static void shared_contents(void **state)
{
    struct place *place = *state;
    const uint64_t shape = 20000;
    const char *const names[] = {"exp_avg", "exp_avg_sq", "weight", "twin"};
    struct lmc_link_hints hints = adamw_hints();
    struct trained_state trained_now = trained(&hints, shape, BF16, 2);
    struct lmcs_pool *pool = open_quiet(place->pool);
    set_policy(pool, "run", "write=link restore=none");
    for (int i = 0; i < 6; i++) {
        struct lmcs_capture *capture;
        struct lmcs_tensor tensors[4];
        const void *data[4] = {trained_now.array[0], trained_now.array[1], trained_now.array[2], trained_now.array[2]};
        const struct lmcs_tensor tied = {.name = "tied", .dtype = LMC_F32, .ndim = 1, .shape = &shape};
        struct lmcs_relation relation = {.names = {names[0], names[1], names[2]},
                                         .name_count = 3,
                                         .optimizer = hints.optimizer,
                                         .step = hints.step - 1,
                                         .lr = hints.lr,
                                         .weight_decay = hints.weight_decay,
                                         .beta1 = hints.beta1,
                                         .beta2 = hints.beta2,
                                         .eps = hints.eps};
        for (size_t k = 0; k < 4; k++)
            tensors[k] = (struct lmcs_tensor){.name = names[k], .dtype = LMC_F32, .ndim = 1, .shape = &shape};
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        OK(lmcs_capture_relate(capture, &relation, 1, &err));
        lmcs_capture_lend(capture, true);
        OK(lmcs_capture_put(capture, tensors, data, 4, &err));
        OK(lmcs_capture_put_same(capture, &tied, "weight", &err));
        OK(lmcs_capture_commit(capture, NULL, NULL, &err));
        struct lmcs_snapshot *snapshot;
        float *got = malloc(shape * sizeof *got);
        OK(lmcs_snapshot_find(pool, "run", NULL, &snapshot, &err));
        for (size_t k = 0; k < 5; k++) {
            OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, k < 4 ? names[k] : "tied", got, shape * sizeof *got, &err));
            assert_memory_equal(got, data[k < 4 ? k : 2], shape * sizeof *got);
        }
        lmcs_snapshot_close(snapshot);
        free(got);
        optimizer_step(&trained_now, &hints, BF16, 0.3f, (uint64_t)i);
        hints.step++;
    }
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    trained_free(&trained_now);
}

/* The verification has changed the memory state: the next capture has none. */
static void an_abort_ends_the_loan(void **state)
{
    struct run run;
    struct lmcs_pool *pool = begin_run(*state, &run, small, "write=link restore=none");
    run_on(&run, pool, "run", 3);
    for (int encoded = 0; encoded < 2; encoded++) {
        run_step(&run);
        struct state *now = state_of_run(&run);
        struct lmcs_capture *capture = lend(&run, pool, now);
        if (encoded) {
            OK(lmcs_capture_encode(capture, &err));
            assert_int_equal(capture->link_count, PARAMETERS);
            assert_int_equal(lent_entries(capture), 0);
        }
        lmcs_capture_abort(capture);
        state_free(now);
        snapshot_lent(&run, pool);
    }
    snapshot_lent(&run, pool);
    run_on(&run, pool, "run", 2);
    assert_int_equal(storage_of(pool, "run", run.count).link_contents, 3 * PARAMETERS);
    end_run(&run, pool);
}

/* Between its encoding and its transaction a loss is recorded below the link's base. */
static void a_refused_link_is_written_raw(void **state)
{
    struct place *place = *state;
    struct run run;
    struct telling telling;
    uint64_t number;
    struct lmcs_pool *pool = begin_run(place, &run, small, "write=link restore=none parity=none");
    run_on(&run, pool, "run", 2);
    run_step(&run);
    struct state *now = state_of_run(&run), *lent = state_copy(now);
    struct lmcs_capture *capture = lend(&run, pool, lent);
    OK(lmcs_capture_encode(capture, &err));
    state_free(lent);
    const struct lmcs_content link = content_record(pool, record_of(pool, "run", 2, "p2.weight").link);
    damage_content(place->pool, &link, link.df.stored_bytes - 20, 1);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    OK(lmcs_capture_commit(capture, NULL, &number, &err));
    expect_snapshot(pool, "run", 3, now);
    assert_int_equal(record_of(pool, "run", 3, "p2.weight").df.payload, LMCS_PAYLOAD_RAW);
    check_pool(pool);
    state_free(now);
    close_pool(pool);
    run_end(&run);
}

/* A lent file was cut: the commit names the tensor, and the shelf goes on. */
static void lend_unreadable(struct place *place, bool related)
{
    struct run run;
    struct lmcs_pool *pool = begin_run(place, &run, large, "write=link restore=none");
    char path[PATH_MAX];
    run_on(&run, pool, "run", 2);
    run_step(&run);
    struct state *now = state_of_run(&run);
    struct held *held = NULL;
    for (size_t t = 0; t < now->count; t++)
        if (strcmp(now->tensors[t].name, "p2.weight") == 0)
            held = &now->tensors[t];
    assert_non_null(held);
    snprintf(path, sizeof path, "%s.lent", place->pool);
    const int fd = open(path, O_CREAT | O_RDWR, 0600);
    assert_int_equal(write(fd, held->data, held->bytes), held->bytes);
    void *map = mmap(NULL, held->bytes, PROT_READ, MAP_SHARED, fd, 0), *own = held->data;
    assert_ptr_not_equal(map, MAP_FAILED);
    held->data = map;
    struct lmcs_capture *capture = lend_as(&run, pool, now, related);
    assert_int_equal(ftruncate(fd, 4096), 0);
    FAILS(LMCS_IO, lmcs_capture_commit(capture, NULL, NULL, &err));
    assert_non_null(strstr(err.message, "p2.weight"));
    munmap(map, held->bytes);
    close(fd);
    unlink(path);
    held->data = own;
    state_free(now);
    snapshot_lent(&run, pool);
    run_on(&run, pool, "run", 2);
    assert_int_equal(storage_of(pool, "run", run.count).link_contents, 3 * PARAMETERS);
    end_run(&run, pool);
}

static void unreadable_bytes(void **state)
{
    lend_unreadable(*state, true);
}

static void unreadable_bytes_without_relations(void **state)
{
    lend_unreadable(*state, false);
}

struct scribbling {
    struct state *state;
    atomic_bool stop;
};

static void *scribble(void *argument)
{
    struct scribbling *s = argument;
    struct rng rng = {5};
    while (!atomic_load(&s->stop)) {
        struct held *held = &s->state->tensors[rng_below(&rng, 3 * PARAMETERS)];
        uint32_t *word = (uint32_t *)(void *)held->data + rng_below(&rng, held->bytes / 4);
        __atomic_store_n(word, (uint32_t)rng_next(&rng), __ATOMIC_RELAXED);
    }
    return NULL;
}

/* A caller that breaks its promise gets torn tensors, and neither a crash nor damage. */
static void a_broken_promise(void **state)
{
#if UNDER_THREAD_SANITIZER
    skip();
#endif
    struct run run;
    struct lmcs_pool *pool = begin_run(*state, &run, large, "write=link restore=none");
    struct state *now = state_of_run(&run);
    struct scribbling s = {.state = now};
    pthread_t thread;
    run_on(&run, pool, "run", 2);
    assert_int_equal(pthread_create(&thread, NULL, scribble, &s), 0);
    for (int i = 0; i < 12; i++) {
        struct lmcs_capture *capture = lend(&run, pool, now);
        OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    }
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    state_free(now);
    run_step(&run);
    snapshot_lent(&run, pool);
    end_run(&run, pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(links_need_no_copy),
        IN_MEMORY(keyframes_are_copied),
        ON_BOTH(bytes_may_change_after_the_call),
        IN_MEMORY(bytes_are_read_by_the_commit),
        IN_MEMORY(a_promise_ends_the_loan),
        IN_MEMORY(copies_without_room),
        IN_MEMORY(shared_contents),
        IN_MEMORY(an_abort_ends_the_loan),
        IN_MEMORY(a_refused_link_is_written_raw),
        IN_MEMORY(unreadable_bytes),
        IN_MEMORY(unreadable_bytes_without_relations),
        IN_MEMORY(a_broken_promise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
