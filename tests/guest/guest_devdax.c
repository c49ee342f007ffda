/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * guest_devdax.c - pools on a devdax device, which has no file system, read or write.
 *
 *   guest_devdax DEVICE [long]
 */
#include "test_live_support.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "records/content.h"

#define BLANK_BYTES ((size_t)16 << 20)

static const char *device;

/* The device has no write. */
static unsigned char *map_device(void)
{
    int fd = open(device, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0);
    void *at = mmap(NULL, BLANK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT(at != MAP_FAILED);
    close(fd);
    return at;
}

static int blank(void **state)
{
    unsigned char *at = map_device();
    memset(at, 0, BLANK_BYTES);
    munmap(at, BLANK_BYTES);
    /* Also returns a folder for archives. */
    return set_up_in_memory(state);
}

static void whole_life(void **state)
{
    (void)state;
    struct rng rng = {1};
    struct state *states[5];
    struct lmcs_pool *pool = open_quiet(device);
    struct lmcs_pool_info info = pool_info(pool);
    EXPECT(info.medium == LMCS_MEDIUM_DEVDAX && info.is_persistent_memory && !info.forced);
    EXPECT(strcmp(info.file_system, "devdax") == 0 && info.nvdimm_namespace[0] != '\0' && info.numa_node == 1);
    EXPECT(info.snapshot_count == 0 && info.free_bytes > (uint64_t)200 << 20 && info.free_bytes < (uint64_t)400 << 20);
    OK(lmcs_shelf_set_keep_raw(pool, "run", 2, &err));
    states[0] = state_weights(&rng, 4, 400000);
    for (size_t i = 0; i < 5; i++) {
        if (i > 0) {
            states[i] = state_copy(states[i - 1]);
            state_step(states[i], &rng, i % 4, 2);
        }
        EXPECT(take_snapshot(pool, "run", states[i], (int64_t)i) == i + 1);
    }
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(storage_of(pool, "run", 1).delta_contents > 0);
    verify_pool(pool);
    close_pool(pool);
    FAILS(LMCS_EXISTS, lmcs_pool_open(device, LMCS_OPEN_CREATE, NULL, &pool, &err));
    pool = open_pool(device, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
    verify_pool(pool);
    OK(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    EXPECT(take_snapshot(pool, "run", states[0], 9) == 6);
    for (size_t i = 0; i < 5; i++) {
        if (i != 1)
            expect_snapshot(pool, "run", i + 1, states[i]);
        if (i > 0)
            state_free(states[i]);
    }
    expect_snapshot(pool, "run", 6, states[0]);
    check_pool(pool);
    close_pool(pool);
    state_free(states[0]);
}

static void all_kinds_of_views(void **state)
{
    (void)state;
    struct rng rng = {2};
    struct state *weights = state_weights(&rng, 3, 300000);
    struct lmcs_pool *pool = open_quiet(device);
    take_snapshot(pool, "run", weights, 1);
    static const uint32_t kinds[] = {0, LMCS_VIEW_PRIVATE, LMCS_VIEW_COPY, LMCS_VIEW_VERIFY};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct lmcs_snapshot *snapshot;
        struct lmcs_view *view;
        OK(lmcs_snapshot_find(pool, "run", NULL, &snapshot, &err));
        OK(lmcs_view_open(snapshot, NULL, NULL, 0, kinds[i], &view, &err));
        for (size_t k = 0; k < lmcs_view_count(view); k++) {
            EXPECT(memcmp(lmcs_view_data(view, k), weights->tensors[k].data, weights->tensors[k].bytes) == 0);
            if (kinds[i] == LMCS_VIEW_PRIVATE)
                memset(lmcs_view_data(view, k), 1, weights->tensors[k].bytes);
        }
        lmcs_view_close(view);
        lmcs_snapshot_close(snapshot);
    }
    expect_state(pool, "run", "latest", weights);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

static int read_beside(void *weights)
{
    struct lmcs_pool *pool = open_pool(device, LMCS_OPEN_READ, 0);
    expect_state(pool, "run", "latest", weights);
    verify_pool(pool);
    struct lmcs_pool_info info = pool_info(pool);
    EXPECT(info.free_bytes > (uint64_t)200 << 20 && info.free_bytes < (uint64_t)400 << 20);
    struct lmcs_open_options options;
    struct lmcs_pool *second;
    lmcs_open_options_init(&options);
    options.wait_ms = 0;
    FAILS(LMCS_IN_USE, lmcs_pool_open(device, LMCS_OPEN_WRITE, &options, &second, &err));
    char pid[32];
    snprintf(pid, sizeof pid, "process %d", (int)getppid());
    EXPECT(strstr(err.message, pid) != NULL);
    close_pool(pool);
    return 0;
}

static void others_read_and_may_not_write(void **state)
{
    (void)state;
    struct rng rng = {3};
    struct state *weights = state_weights(&rng, 3, 300000);
    struct lmcs_pool *pool = open_quiet(device), *again = open_quiet(device);
    EXPECT(pool == again);
    close_pool(again);
    take_snapshot(pool, "run", weights, 1);
    expect_child(start_child(read_beside, weights));
    close_pool(pool);
    state_free(weights);
}

static void leases_hold(void **state)
{
    (void)state;
    struct rng rng = {4};
    struct state *first = state_weights(&rng, 2, 300000), *other = state_weights(&rng, 2, 300000);
    struct lmcs_pool *pool = open_quiet(device);
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    take_snapshot(pool, "run", first, 1);
    OK(lmcs_snapshot_find(pool, "run", NULL, &snapshot, &err));
    OK(lmcs_view_open(snapshot, NULL, NULL, 0, 0, &view, &err));
    lmcs_snapshot_close(snapshot);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    for (int i = 0; i < 20; i++) {
        uint64_t number = take_snapshot(pool, "run", other, i);
        OK(lmcs_snapshot_remove(pool, "run", number, false, NULL, &err));
        state_step(other, &rng, 0, 2);
    }
    for (size_t k = 0; k < 2; k++)
        EXPECT(memcmp(lmcs_view_data(view, k), first->tensors[k].data, first->tensors[k].bytes) == 0);
    lmcs_view_close(view);
    close_pool(pool);
    state_free(first);
    state_free(other);
}

/* Incompressible: compaction would make room. */
static void fill_with_noise(struct state *state, struct rng *rng)
{
    for (size_t k = 0; k < state->count; k++)
        rng_fill(rng, state->tensors[k].data, state->tensors[k].bytes);
}

static void full_device_is_an_error(void **state)
{
    (void)state;
    struct rng rng = {5};
    struct state *noise = state_weights(&rng, 4, 2000000); /* 32 MB */
    struct lmcs_pool *pool = open_quiet(device);
    enum lmcs_status status = LMCS_OK;
    uint64_t number = 0, taken = 0;
    while (status == LMCS_OK && taken < 20) {
        fill_with_noise(noise, &rng);
        status = try_snapshot(pool, "run", noise, 1, &number, &err);
        taken += status == LMCS_OK;
    }
    print_message("%llu snapshots, then: %s\n", (unsigned long long)taken, err.message);
    EXPECT(status == LMCS_FULL && taken >= 8);
    check_pool(pool);
    /* Captures leave room to the compactor. */
    OK(lmcs_compact(pool, NULL, &err));
    for (uint64_t i = 1; i <= 2; i++)
        OK(lmcs_snapshot_remove(pool, "run", i, false, NULL, &err));
    number = take_snapshot(pool, "run", noise, 2);
    expect_snapshot(pool, "run", number, noise);
    close_pool(pool);
    state_free(noise);
}

static void room_is_joined(void **state)
{
    (void)state;
    struct rng rng = {8};
    struct lmcs_pool *pool = open_quiet(device);
    static const size_t floats[] = {400000, 5000000, 1000000, 9000000};
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        size_t count = 50000000 / floats[i]; /* 200 MB: no room for two of these sizes */
        struct state *noise = state_weights(&rng, 1, floats[i]);
        for (size_t k = 1; k <= count; k++) {
            char shelf[32];
            snprintf(shelf, sizeof shelf, "size %zu, %zu", i, k);
            rng_fill(&rng, noise->tensors[0].data, 65536);
            take_snapshot(pool, shelf, noise, 1);
        }
        for (size_t k = 1; k <= count; k++) {
            char shelf[32];
            snprintf(shelf, sizeof shelf, "size %zu, %zu", i, k);
            OK(lmcs_snapshot_remove(pool, shelf, 1, false, NULL, &err));
        }
        state_free(noise);
    }
    check_pool(pool);
    close_pool(pool);
}

static void through_an_archive_and_back(void **state)
{
    struct rng rng = {6};
    struct lmcs_transfer_report report;
    struct state *weights = state_weights(&rng, 3, 300000);
    struct lmcs_pool *pool = open_quiet(device);
    const struct place *place = *state;
    char path[512];
    place_path(place, "archive", path);
    take_snapshot(pool, "run", weights, 1);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    OK(lmcs_dump(pool, NULL, fd, NULL, &report, &err));
    close_pool(pool);
    unsigned char *at = map_device();
    memset(at, 0, BLANK_BYTES);
    munmap(at, BLANK_BYTES);
    pool = open_quiet(device);
    EXPECT(pool_info(pool).snapshot_count == 0);
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    OK(lmcs_restore(pool, fd, NULL, &report, &err));
    expect_state(pool, "run", "latest", weights);
    verify_pool(pool);
    close_pool(pool);
    close(fd);
    state_free(weights);
}

static void foreign_bytes_are_left_alone(void **state)
{
    (void)state;
    unsigned char *at = map_device();
    struct lmcs_pool *pool;
    static const enum lmcs_open_mode modes[] = {LMCS_OPEN_READ, LMCS_OPEN_WRITE, LMCS_OPEN_OR_CREATE, LMCS_OPEN_CREATE};
    memcpy(at, "somebody else's", 16);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        enum lmcs_status status = lmcs_pool_open(device, modes[i], NULL, &pool, &err);
        EXPECT(status != LMCS_OK && err.message[0] != '\0');
        print_message("mode %d: %s\n", (int)modes[i], err.message);
        EXPECT(memcmp(at, "somebody else's", 16) == 0);
    }
    munmap(at, BLANK_BYTES);
}

struct shared {
    pid_t pid;
};

static int fork_and_outlive(void *argument)
{
    struct shared *shared = argument;
    struct lmcs_pool *pool = open_quiet(device);
    (void)pool;
    pid_t child = fork();
    if (child == 0) {
        shared->pid = getpid();
        pause();
        _exit(0);
    }
    pause(); /* to be killed */
    return 0;
}

/* A mapping keeps a device locked: none may be inherited. */
static void killed_parent_with_a_child_alive(void **state)
{
    (void)state;
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(shared != MAP_FAILED);
    pid_t parent = start_child(fork_and_outlive, shared);
    while (*(volatile pid_t *)&shared->pid == 0)
        usleep(10000);
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    struct lmcs_open_options options;
    struct lmcs_pool *pool;
    lmcs_open_options_init(&options);
    options.wait_ms = 1000;
    enum lmcs_status status = lmcs_pool_open(device, LMCS_OPEN_WRITE, &options, &pool, &err);
    kill(shared->pid, SIGKILL);
    EXPECT(status == LMCS_OK);
    close_pool(pool);
    munmap(shared, sizeof *shared);
}

/* Tensors change in place: transactions are declared, open tensors can't move. */
static void live_variables(void **state)
{
    (void)state;
    struct lmcs_pool *pool = open_quiet(device);
    struct lmcs_transaction *transaction;
    struct lmcs_live *live = new_tensor(pool, "w", 5000);
    put_text(pool, "word", "first");
    fill(live, 1);
    OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
    for (int commits = 0; commits < 2; commits++) {
        OK(lmcs_transaction_begin(pool, "run", NULL, 0, NULL, &transaction, &err));
        OK(lmcs_transaction_declare(transaction, live, 0, 5000 * sizeof(float), &err));
        float *w = lmcs_live_data(live);
        for (int i = 0; i < 5000; i++)
            w[i] = 7 + (float)i;
        put_text(pool, "word", "second");
        if (commits)
            OK(lmcs_transaction_commit(transaction, &err));
        else
            lmcs_transaction_abort(transaction);
        expect_filled(live, commits ? 7 : 1);
        expect_text(pool, "word", commits ? "second" : "first");
    }
    FAILS(LMCS_IN_USE, lmcs_live_checkout(pool, "run", "1", &err));
    EXPECT(strstr(err.message, "its address would change") != NULL);
    expect_filled(live, 7);
    lmcs_live_close(live);
    close_pool(pool);
    pool = open_pool(device, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
    OK(lmcs_live_open(pool, "run", "w", &live, &err));
    expect_filled(live, 7);
    lmcs_live_close(live);
    OK(lmcs_live_checkout(pool, "run", "1", &err));
    OK(lmcs_live_open(pool, "run", "w", &live, &err));
    expect_filled(live, 1);
    expect_text(pool, "word", "first");
    lmcs_live_close(live);
    verify_pool(pool);
    close_pool(pool);
}

/* An incomplete device is visible; the message says how to continue. */
static void creation_that_was_cut_short(void **state)
{
    (void)state;
    struct lmcs_pool *pool;
    close_pool(open_quiet(device));
    unsigned char *at = map_device();
    memset(at + 4096 + 2048, 0, 8); /* libpmemobj's offset of the root object */
    munmap(at, BLANK_BYTES);
    FAILS(LMCS_DAMAGED, lmcs_pool_open(device, LMCS_OPEN_WRITE, NULL, &pool, &err));
    EXPECT(strstr(err.message, "creation was cut short") != NULL && strstr(err.message, "pmempool rm") != NULL);
    EXPECT(lmcs_pool_open(device, LMCS_OPEN_OR_CREATE, NULL, &pool, &err) != LMCS_OK);
    print_message("%s\n", err.message);
    EXPECT(strstr(err.message, "pmempool rm") != NULL);
    char command[256];
    snprintf(command, sizeof command, "pmempool rm %s", device);
    EXPECT(system(command) == 0);
    close_pool(open_pool(device, LMCS_OPEN_OR_CREATE, LMCS_NO_BACKGROUND));
}

#define ON_DEVICE(test)                                 \
    {                                                   \
#test " (devdax)", test, blank, tear_down, NULL \
    }

/* As in test_pool.c for poolsets; here they take a minute. */
static int run_long_ones(void)
{
    const struct CMUnitTest tests[] = {
        ON_DEVICE(full_device_is_an_error),
        ON_DEVICE(room_is_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_DEVICE(whole_life),
        ON_DEVICE(all_kinds_of_views),
        ON_DEVICE(others_read_and_may_not_write),
        ON_DEVICE(leases_hold),
        ON_DEVICE(through_an_archive_and_back),
        ON_DEVICE(foreign_bytes_are_left_alone),
        ON_DEVICE(killed_parent_with_a_child_alive),
        ON_DEVICE(live_variables),
        ON_DEVICE(creation_that_was_cut_short),
    };
    if (argc < 2)
        return fprintf(stderr, "usage: guest_devdax DEVICE [long]\n"), 2;
    device = argv[1];
    if (argc == 3 && strcmp(argv[2], "long") == 0 && run_long_ones() != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
