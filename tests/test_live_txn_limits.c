/* SPDX-License-Identifier: BSD-3-Clause */
/* test_live_txn_limits.c - limits of transactions, foreign threads and processes, and processes that die in one. */
/* ctest: timeout=600 */
#include "test_live_txn_support.h"

static void limits_are_told(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 1 << 20);
    fill(w, 1);
    struct lmcs_transaction *transaction = begin_with(pool, 0, 256 << 10);
    uint64_t bytes;
    ((float *)lmcs_live_data(w))[70000] = 1;
    OK(lmcs_transaction_bytes(transaction, &bytes, &err));
    EXPECT(bytes == 4096);
    memset(lmcs_live_data(w), 0, 1 << 20);
    FAILS(LMCS_FULL, lmcs_transaction_commit(transaction, &err));
    EXPECT(err.bytes_needed == (1 << 20) && err.bytes_free == (256 << 10));
    lmcs_transaction_abort(transaction);
    expect_filled(w, 1);
    transaction = begin_with(pool, LMCS_TRANSACTION_DECLARED, 256 << 10);
    FAILS(LMCS_FULL, lmcs_transaction_declare(transaction, w, 0, 1 << 20, &err));
    FAILS(LMCS_INVALID, lmcs_transaction_declare(transaction, w, 4 << 20, 1, &err));
    lmcs_transaction_abort(transaction);
    expect_filled(w, 1);
    transaction = begin_with(pool, 0, 0);
    FAILS(LMCS_INVALID, lmcs_transaction_begin(pool, "run", NULL, 0, NULL, &(struct lmcs_transaction *){NULL}, &err));
    FAILS(LMCS_INVALID, lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
    lmcs_transaction_abort(transaction);
    lmcs_live_close(w);
    close_pool(pool);
}

static void *begin_elsewhere(void *argument)
{
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction;
    lmcs_transaction_options_init(&options);
    options.wait_ms = 30;
    FAILS(LMCS_IN_USE, lmcs_transaction_begin(argument, "run", NULL, 0, &options, &transaction, &err));
    OK(lmcs_transaction_begin(argument, "other", NULL, 0, &options, &transaction, &err));
    lmcs_transaction_abort(transaction);
    return NULL;
}

static void one_at_a_time(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 100), *v = new_tensor(pool, "v", 100);
    fill(w, 1);
    fill(v, 1);
    struct lmcs_transaction *transaction = NULL;
    pthread_t thread;
    OK(lmcs_transaction_begin(pool, "run", &w, 1, NULL, &transaction, &err));
    EXPECT(pthread_create(&thread, NULL, begin_elsewhere, pool) == 0);
    pthread_join(thread, NULL);
    ((float *)lmcs_live_data(w))[0] = 50;
    ((float *)lmcs_live_data(v))[0] = 60;
    OK(lmcs_live_persist(v, 0, 4, &err));
    FAILS(LMCS_INVALID, lmcs_live_swap(pool, "run", "w", "v", &err));
    lmcs_transaction_abort(transaction);
    EXPECT(((float *)lmcs_live_data(w))[0] == 1 && ((float *)lmcs_live_data(v))[0] == 60);
    transaction = begin_with(pool, 0, 0);
    lmcs_live_close(v);
    close_pool(pool);
    ((float *)lmcs_live_data(w))[0] = 2;
    OK(lmcs_transaction_commit(transaction, &err));
    lmcs_live_close(w);
    pool = open_quiet(place->pool);
    w = open_live(pool, "w");
    EXPECT(((float *)lmcs_live_data(w))[0] == 2);
    lmcs_live_close(w);
    close_pool(pool);
}

static void *begin_declared(void *pool)
{
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction;
    lmcs_transaction_options_init(&options);
    options.wait_ms = 30;
    options.flags = LMCS_TRANSACTION_DECLARED;
    FAILS(LMCS_IN_USE, lmcs_transaction_begin(pool, "other", NULL, 0, &options, &transaction, &err));
    options.flags = 0;
    OK(lmcs_transaction_begin(pool, "other", NULL, 0, &options, &transaction, &err));
    lmcs_transaction_abort(transaction);
    return NULL;
}

/* The pool has one place for old bytes. */
static void one_declared_in_a_pool(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 100);
    pthread_t thread;
    fill(w, 1);
    struct lmcs_transaction *transaction = begin_with(pool, LMCS_TRANSACTION_DECLARED, 0);
    OK(lmcs_transaction_declare(transaction, w, 0, 4, &err));
    ((float *)lmcs_live_data(w))[0] = 50;
    EXPECT(pthread_create(&thread, NULL, begin_declared, pool) == 0);
    pthread_join(thread, NULL);
    lmcs_transaction_abort(transaction);
    expect_filled(w, 1);
    lmcs_live_close(w);
    close_pool(pool);
}

static void *begin_in_vain(void *pool)
{
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction;
    lmcs_transaction_options_init(&options);
    options.wait_ms = 2000;
    options.flags = LMCS_TRANSACTION_DECLARED;
    FAILS(LMCS_IN_USE, lmcs_transaction_begin(pool, "run", NULL, 0, &options, &transaction, &err));
    return NULL;
}

static void wait_until_held(struct lmcs_pool *pool, const char *shelf)
{
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction;
    lmcs_transaction_options_init(&options);
    options.wait_ms = 0;
    while (lmcs_transaction_begin(pool, shelf, NULL, 0, &options, &transaction, &err) == LMCS_OK) {
        lmcs_transaction_abort(transaction);
        sched_yield();
    }
    EXPECT(err.status == LMCS_IN_USE);
}

static void one_that_never_begins_has_nothing(void **state)
{
    static const char longer[] = "a much longer text than there was, so that it moves to another cell of the pool";
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_tensor tensor = {.name = "a", .dtype = LMC_F32, .ndim = 1, .shape = &(uint64_t){10}};
    struct lmcs_transaction_options options;
    struct lmcs_transaction *other;
    pthread_t thread;
    put_text(pool, "held", "first");
    put_text(pool, "put", "first");
    OK(lmcs_live_create(pool, "other", &tensor, NULL, NULL, &err));
    lmcs_transaction_options_init(&options);
    options.flags = LMCS_TRANSACTION_DECLARED;
    OK(lmcs_transaction_begin(pool, "other", NULL, 0, &options, &other, &err));
    EXPECT(pthread_create(&thread, NULL, begin_in_vain, pool) == 0);
    wait_until_held(pool, "run");
    struct lmcs_live *held = open_live(pool, "held"), *made = new_tensor(pool, "made", 1000);
    OK(lmcs_live_set(held, longer, sizeof longer - 1, &err));
    put_text(pool, "put", longer);
    fill(made, 3);
    pthread_join(thread, NULL);
    lmcs_transaction_abort(other);
    OK(lmcs_live_set(held, "after all of that", 17, &err));
    lmcs_live_close(held);
    lmcs_live_close(made);
    pool = reopen(pool, place);
    expect_names(pool, "held made put");
    expect_text(pool, "held", "after all of that");
    expect_text(pool, "put", longer);
    made = open_live(pool, "made");
    expect_filled(made, 3);
    lmcs_live_close(made);
    verify_pool(pool);
    close_pool(pool);
}

static void strangers_are_refused(void **state)
{
    struct place *place = *state;
    char path[512];
    const uint64_t floats = 100;
    const struct lmcs_tensor tensor = {.name = "w", .dtype = LMC_F32, .ndim = 1, .shape = &floats};
    place_path(place, "other", path);
    struct lmcs_pool *pool = open_quiet(place->pool), *other = open_quiet(path);
    struct lmcs_live *w = new_tensor(pool, "w", 100);
    struct lmcs_live *strangers[3] = {NULL, new_tensor(other, "w", 100), new_unnamed(pool, 100)};
    OK(lmcs_live_create(pool, "shelf", &tensor, NULL, &strangers[0], &err));
    fill(w, 1);
    for (int i = 0; i < 3; i++) {
        struct lmcs_live *lives[] = {w, strangers[i]};
        struct lmcs_transaction *transaction = NULL;
        FAILS(LMCS_INVALID, lmcs_transaction_begin(pool, "run", lives, 2, NULL, &transaction, &err));
        ((float *)lmcs_live_data(w))[0] = 2;
        OK(lmcs_live_persist(w, 0, 4, &err));
        OK(lmcs_transaction_begin(pool, "run", lives, 1, NULL, &transaction, &err));
        EXPECT(((float *)lmcs_live_data(w))[0] == 2);
        ((float *)lmcs_live_data(w))[0] = 1;
        OK(lmcs_transaction_commit(transaction, &err));
        lmcs_live_close(strangers[i]);
    }
    expect_filled(w, 1);
    lmcs_live_close(w);
    check_pool(pool);
    close_pool(other);
    close_pool(pool);
}

/* Memory follows the written pages, not the tensor's size. */
static uint64_t anonymous_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "RssAnon: %llu", &kib) == 1)
            break;
    fclose(file);
    return kib << 10;
}

static void costs_follow_the_pages(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 16 << 20);
    fill(w, 0);
    uint64_t before = anonymous_bytes(), used = pool_info(pool).used_bytes, bytes;
    struct lmcs_transaction *transaction = begin_with(pool, 0, 0);
    float *data = lmcs_live_data(w), sum = 0;
    for (size_t i = 0; i < 16 << 20; i += 1024)
        sum += data[i];
    for (size_t i = 0; i < 100; i++)
        data[i * 100000] = sum;
    OK(lmcs_transaction_bytes(transaction, &bytes, &err));
    EXPECT(bytes == 100 * 4096);
    EXPECT(anonymous_bytes() < before + (4 << 20));
    OK(lmcs_transaction_commit(transaction, &err));
    EXPECT(pool_info(pool).used_bytes < used + (4 << 20));
    EXPECT(data[100000] == sum);
    lmcs_live_close(w);
    close_pool(pool);
}

static void system_calls_write_too(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 100000);
    fill(w, 0);
    struct lmcs_transaction *transaction = begin_with(pool, 0, 0);
    int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    EXPECT(read(fd, lmcs_live_data(w), 400000) == 400000);
    close(fd);
    OK(lmcs_transaction_commit(transaction, &err));
    for (int i = 0; i < 100000; i++)
        EXPECT(((float *)lmcs_live_data(w))[i] == 0);
    lmcs_live_close(w);
    close_pool(pool);
}

struct death {
    const char *path;
    uint32_t flags;
    bool commits;
};

static int die_within(void *argument)
{
    const struct death *death = argument;
    struct lmcs_pool *pool = open_quiet(death->path);
    struct lmcs_live *w = open_live(pool, "w");
    struct lmcs_transaction *transaction = begin_with(pool, death->flags, 0);
    for (uint64_t i = 0; i < 100000; i += 100)
        store(transaction, w, i, -1);
    put_text(pool, "t", "after");
    if (death->commits)
        OK(lmcs_transaction_commit(transaction, &err));
    raise(SIGKILL);
    return 0;
}

static void the_dead_leave_all_or_nothing(void **state)
{
    struct place *place = *state;
    for (int i = 0; i < 4; i++) {
        struct death death = {place->pool, i % 2 == 0 ? 0 : LMCS_TRANSACTION_DECLARED, i >= 2};
        if (i == 0) {
            struct lmcs_pool *pool = open_quiet(place->pool);
            struct lmcs_live *w = new_tensor(pool, "w", 100000);
            fill(w, 0);
            lmcs_live_close(w);
            put_text(pool, "t", "before");
            close_pool(pool);
        }
        EXPECT(WTERMSIG(run_child(die_within, &death, 60)) == SIGKILL);
        struct lmcs_pool *pool = open_quiet(place->pool);
        struct lmcs_live *w = open_live(pool, "w");
        for (uint64_t k = 0; k < 100000; k++)
            EXPECT(((float *)lmcs_live_data(w))[k] == (death.commits && k % 100 == 0 ? -1 : (float)k));
        expect_text(pool, "t", death.commits ? "after" : "before");
        fill(w, 0);
        put_text(pool, "t", "before");
        lmcs_live_close(w);
        verify_pool(pool);
        close_pool(pool);
    }
}

static int die_grown(void *argument)
{
    const struct death *death = argument;
    struct lmcs_pool *pool = open_quiet(death->path);
    struct lmcs_live *w = open_live(pool, "w");
    (void)!begin_with(pool, death->flags, 0);
    OK(lmcs_live_resize(w, 1, &(uint64_t){100000}, &err));
    float *data = lmcs_live_data(w);
    for (uint64_t k = 10000; k < 100000; k++)
        data[k] = 5;
    raise(SIGKILL);
    return 0;
}

/* Bytes stored behind a tensor's restored end do not return when it grows. */
static void the_dead_leave_nothing_behind_the_end(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_tensor tensor = {.name = "w", .dtype = LMC_F32, .ndim = 1, .shape = &(uint64_t){10000}};
    struct lmcs_live_options options;
    struct lmcs_live *w = NULL;
    lmcs_live_options_init(&options);
    options.reserve_bytes = (uint64_t)1 << 20;
    OK(lmcs_live_create(pool, "run", &tensor, &options, &w, &err));
    fill(w, 1);
    lmcs_live_close(w);
    close_pool(pool);
    uint64_t disk = disk_bytes(place->pool);
    for (int i = 0; i < 2; i++) {
        struct death death = {place->pool, i == 0 ? 0 : LMCS_TRANSACTION_DECLARED, false};
        EXPECT(WTERMSIG(run_child(die_grown, &death, 60)) == SIGKILL);
        pool = open_quiet(place->pool);
        EXPECT(disk_bytes(place->pool) < disk + 300000); /* a journal, without the aborted 360,000 bytes */
        w = open_live(pool, "w");
        EXPECT(float_count(w) == 10000);
        OK(lmcs_live_resize(w, 1, &(uint64_t){100000}, &err));
        for (uint64_t k = 0; k < 100000; k++)
            EXPECT(((const float *)lmcs_live_data(w))[k] == (k < 10000 ? 1.0f + (float)k : 0));
        OK(lmcs_live_resize(w, 1, &(uint64_t){10000}, &err));
        lmcs_live_close(w);
        verify_pool(pool);
        close_pool(pool);
    }
}

struct user {
    struct lmcs_live *live;
    atomic_bool stops;
    bool sets;
    long wrong;
};

static void *use_value(void *argument)
{
    struct user *user = argument;
    unsigned char *text = malloc(LMCS_LIVE_MAX_VALUE), *got = malloc(LMCS_LIVE_MAX_VALUE);
    struct lmcs_error error;
    uint64_t count = 0, bytes = 0;
    for (int i = 0; !user->stops; i++) {
        bytes = 30000 + (uint64_t)(i % 7) * 1000;
        memset(text, 'A' + i % 26, bytes);
        if (user->sets)
            user->wrong += lmcs_live_set(user->live, text, bytes, &error) != LMCS_OK;
        user->wrong += lmcs_live_get(user->live, got, LMCS_LIVE_MAX_VALUE, &count, &error) != LMCS_OK;
        user->wrong += user->sets && (count != bytes || memcmp(got, text, bytes) != 0);
        user->wrong += got[0] < 'A' || got[0] > 'Z' || memcmp(got, got + 1, count - 1) != 0;
    }
    free(text);
    free(got);
    return NULL;
}

static void values_in_use_while_transactions_end(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    static unsigned char text[36000];
    memset(text, 'A', sizeof text);
    OK(lmcs_live_put(pool, "run", "v", text, sizeof text, NULL, 0, &err));
    struct user users[] = {{.live = open_live(pool, "v"), .sets = true}, {.live = open_live(pool, "v")}};
    pthread_t threads[2];
    mallopt(M_PERTURB, 0xa5);
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_create(&threads[i], NULL, use_value, &users[i]) == 0);
    for (int i = 0; i < 1500; i++) {
        struct lmcs_transaction *transaction = begin_with(pool, i % 2 == 0 ? 0 : LMCS_TRANSACTION_DECLARED, 0);
        sched_yield();
        OK(lmcs_transaction_commit(transaction, &err));
    }
    users[0].stops = true;
    pthread_join(threads[0], NULL);
    for (int i = 0; i < 500; i++) {
        struct lmcs_transaction *transaction = begin_with(pool, 0, 0);
        memset(text, 'A' + i % 26, sizeof text);
        OK(lmcs_live_set(users[0].live, text, sizeof text, &err));
        lmcs_transaction_abort(transaction);
    }
    users[1].stops = true;
    pthread_join(threads[1], NULL);
    mallopt(M_PERTURB, 0);
    EXPECT(users[0].wrong == 0 && users[1].wrong == 0);
    lmcs_live_close(users[0].live);
    lmcs_live_close(users[1].live);
    pool = reopen(pool, place);
    verify_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(limits_are_told),
        ON_BOTH(one_at_a_time),
        IN_MEMORY(one_declared_in_a_pool),
        IN_MEMORY(one_that_never_begins_has_nothing),
        IN_MEMORY(strangers_are_refused),
        ON_BOTH(costs_follow_the_pages),
        ON_BOTH(system_calls_write_too),
        ON_BOTH(the_dead_leave_all_or_nothing),
        ON_BOTH(the_dead_leave_nothing_behind_the_end),
        ON_MEMORY_ONLY(values_in_use_while_transactions_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
