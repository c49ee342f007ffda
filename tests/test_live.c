/* SPDX-License-Identifier: BSD-3-Clause */
/* test_live.c - live variables persist at the promised addresses; refused calls change nothing. */
/* ctest: timeout=600 */
#include "test_live_support.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void tensors_stay(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 300000), *again;
    float *w = lmcs_live_data(live);
    struct lmcs_live_info info;
    for (size_t i = 0; i < 300000; i++)
        EXPECT(w[i] == 0);
    for (size_t i = 0; i < 300000; i++)
        w[i] = (float)i;
    OK(lmcs_live_persist(live, 0, 300000 * sizeof *w, &err));
    OK(lmcs_live_open(pool, "run", "w", &again, &err));
    EXPECT(lmcs_live_data(again) == w);
    OK(lmcs_live_info(again, &info, &err));
    EXPECT(strcmp(info.name, "w") == 0 && info.form == LMCS_LIVE_TENSOR && info.dtype == LMC_F32 && info.ndim == 1 &&
           info.shape[0] == 300000 && info.bytes == 1200000 && info.handles == 2 && info.version == 2 &&
           info.written_ns >= info.created_ns && info.reserved_bytes >= info.bytes);
    lmcs_live_close(again);
    lmcs_live_close(live);
    check_pool(pool);
    pool = reopen(pool, place);
    OK(lmcs_live_open(pool, "run", "w", &live, &err));
    w = lmcs_live_data(live);
    for (size_t i = 0; i < 300000; i++)
        EXPECT(w[i] == (float)i);
    OK(lmcs_live_info(live, &info, &err));
    EXPECT(info.version == 2);
    lmcs_live_close(live);
    verify_pool(pool);
    close_pool(pool);
}

static void every_shape(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    static const uint64_t shapes[][3] = {{0, 4, 5}, {1, 1, 1}, {3, 5, 7}, {1, 4096, 1}};
    char name[64];
    struct lmcs_live *live;
    struct lmcs_live_info info;
    for (uint32_t dtype = 1; dtype < LMC_DTYPE_END; dtype++)
        for (uint32_t ndim = 0; ndim <= 3; ndim++)
            for (size_t i = 0; i < 4; i++) {
                snprintf(name, sizeof name, "%s.%u.%zu", lmc_dtype_name(dtype), ndim, i);
                struct lmcs_tensor tensor = {.name = name, .dtype = dtype, .ndim = ndim, .shape = shapes[i]};
                OK(lmcs_live_create(pool, "run", &tensor, NULL, &live, &err));
                EXPECT(lmcs_live_data(live) != NULL);
                lmcs_live_close(live);
            }
    pool = reopen(pool, place);
    for (uint32_t dtype = 1; dtype < LMC_DTYPE_END; dtype++)
        for (uint32_t ndim = 0; ndim <= 3; ndim++)
            for (size_t i = 0; i < 4; i++) {
                snprintf(name, sizeof name, "%s.%u.%zu", lmc_dtype_name(dtype), ndim, i);
                OK(lmcs_live_open(pool, "run", name, &live, &err));
                OK(lmcs_live_info(live, &info, &err));
                uint64_t bytes = lmc_dtype_size(dtype);
                for (uint32_t d = 0; d < ndim; d++) {
                    EXPECT(info.shape[d] == shapes[i][d]);
                    bytes *= shapes[i][d];
                }
                EXPECT(info.dtype == dtype && info.ndim == ndim && info.bytes == bytes);
                lmcs_live_close(live);
            }
    check_pool(pool);
    close_pool(pool);
}

static void wrong_calls_are_refused(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 10), *other;
    static const uint64_t shape[] = {10}, long_shape[] = {LMCS_LIVE_MAX_VALUE / 4 + 1}, huge[] = {UINT64_MAX / 2};
    struct lmcs_tensor tensor = {.name = "w", .dtype = LMC_F32, .ndim = 1, .shape = shape};
    struct lmcs_live_options options;
    char word[16];
    lmcs_live_options_init(&options);
    FAILS(LMCS_EXISTS, lmcs_live_create(pool, "run", &tensor, NULL, &other, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_live_open(pool, "run", "v", &other, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_live_open(pool, "no such shelf", "w", &other, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_live_erase(pool, "run", "v", &err));
    FAILS(LMCS_NOT_FOUND, lmcs_live_swap(pool, "run", "w", "v", &err));
    FAILS(LMCS_NOT_FOUND, lmcs_live_rename(pool, "run", "v", "u", &err));
    FAILS(LMCS_INVALID, lmcs_live_rename(pool, "run", "w", "", &err));
    FAILS(LMCS_INVALID, lmcs_live_put(pool, "run", "lmcstore.live", "x", 1, NULL, 0, &err));
    FAILS(LMCS_INVALID, lmcs_live_put(pool, "run", "big", "x", LMCS_LIVE_MAX_VALUE + 1, NULL, 0, &err));
    FAILS(LMCS_INVALID, lmcs_live_put(pool, "a@b", "x", "x", 1, NULL, 0, &err));
    FAILS(LMCS_INVALID, lmcs_live_put(pool, "run", "x", "x", 1, word, LMCS_LIVE_MAX_NOTE + 1, &err));
    tensor.name = "x";
    tensor.shape = huge;
    FAILS(LMCS_INVALID, lmcs_live_create(pool, "run", &tensor, NULL, &other, &err));
    tensor.shape = shape;
    options.flags = LMCS_LIVE_UNNAMED;
    FAILS(LMCS_INVALID, lmcs_live_create(pool, "run", &tensor, &options, NULL, &err));
    options.flags = 64;
    FAILS(LMCS_INVALID, lmcs_live_create(pool, "run", &tensor, &options, &other, &err));
    lmcs_live_options_init(&options);
    options.note_bytes = LMCS_LIVE_MAX_NOTE + 1;
    FAILS(LMCS_INVALID, lmcs_live_create(pool, "run", &tensor, &options, &other, &err));
    lmcs_live_options_init(&options);
    options.reserve_bytes = UINT64_MAX / 4;
    FAILS(LMCS_INVALID, lmcs_live_create(pool, "run", &tensor, &options, &other, &err));
    lmcs_live_options_init(&options);
    options.form = LMCS_LIVE_VALUE;
    tensor.shape = long_shape;
    FAILS(LMCS_INVALID, lmcs_live_create(pool, "run", &tensor, &options, &other, &err));
    FAILS(LMCS_INVALID, lmcs_live_set_note(live, word, LMCS_LIVE_MAX_NOTE + 1, &err));
    FAILS(LMCS_INVALID, lmcs_live_persist(live, 40, 1, &err));
    FAILS(LMCS_INVALID, lmcs_live_persist(live, 1, UINT64_MAX, &err));
    FAILS(LMCS_INVALID, lmcs_live_write(live, 33, word, 8, &err));
    FAILS(LMCS_INVALID, lmcs_live_read(live, 41, word, 0, &err));
    FAILS(LMCS_INVALID, lmcs_live_add(live, 0, 3, word, NULL, &err));
    FAILS(LMCS_INVALID, lmcs_live_add(live, 4, 8, word, NULL, &err));
    FAILS(LMCS_INVALID, lmcs_live_set(live, word, 4, &err));
    FAILS(LMCS_INVALID, lmcs_live_replace(live, "y", &err));
    FAILS(LMCS_INVALID, lmcs_live_unlock(live, &err));
    FAILS(LMCS_INVALID, lmcs_live_resize(live, 1, huge, &err));
    uint64_t bytes;
    FAILS(LMCS_INVALID, lmcs_live_get(live, word, 4, &bytes, &err));
    EXPECT(bytes == 40);
    lmcs_live_close(live);
    expect_names(pool, "w");
    pool = reopen(pool, place);
    expect_names(pool, "w");
    check_pool(pool);
    close_pool(pool);
}

static void many_at_once(void **state)
{
    enum { MANY = 700 };
    struct place *place = *state;
    static struct lmcs_live *lives[MANY];
    struct lmcs_pool *pool = open_quiet(place->pool);
    char name[32], text[32];
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "v%d", i);
        put_text(pool, name, name);
        OK(lmcs_live_open(pool, "run", name, &lives[i], &err));
    }
    OK(lmcs_live_rename(pool, "run", "v7", "seven", &err));
    OK(lmcs_live_swap(pool, "run", "v8", "v9", &err));
    OK(lmcs_live_swap(pool, "run", "v10", "v10", &err));
    for (int i = 0; i < MANY; i++) {
        struct lmcs_live *again;
        struct lmcs_live_info info;
        snprintf(name, sizeof name, "v%d", i);
        OK(lmcs_live_open(pool, "run", i == 7 ? "seven" : name, &again, &err));
        OK(lmcs_live_info(again, &info, &err));
        EXPECT(info.handles == 2);
        snprintf(text, sizeof text, "changed %d", i);
        OK(lmcs_live_set(again, text, strlen(text), &err));
        expect_handle_text(lives[i == 8 ? 9 : i == 9 ? 8 : i], text);
        lmcs_live_close(again);
    }
    FAILS(LMCS_NOT_FOUND, lmcs_live_open(pool, "run", "v7", &lives[7], &err));
    for (int i = 0; i < MANY; i++)
        lmcs_live_close(lives[i]);
    pool = reopen(pool, place);
    expect_text(pool, "v699", "changed 699");
    check_pool(pool);
    close_pool(pool);
}

static void names_change(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    put_text(pool, "a", "first");
    put_text(pool, "b", "second");
    struct lmcs_live *a;
    OK(lmcs_live_open(pool, "run", "a", &a, &err));
    OK(lmcs_live_swap(pool, "run", "a", "b", &err));
    expect_text(pool, "a", "second");
    expect_text(pool, "b", "first");
    expect_handle_text(a, "first");
    OK(lmcs_live_rename(pool, "run", "b", "c", &err));
    struct lmcs_live_info info;
    OK(lmcs_live_info(a, &info, &err));
    EXPECT(strcmp(info.name, "c") == 0);
    FAILS(LMCS_EXISTS, lmcs_live_rename(pool, "run", "c", "a", &err));
    FAILS(LMCS_IN_USE, lmcs_live_erase(pool, "run", "c", &err));
    expect_text(pool, "c", "first");
    expect_names(pool, "a c");
    lmcs_live_close(a);
    OK(lmcs_live_erase(pool, "run", "c", &err));
    expect_names(pool, "a");
    pool = reopen(pool, place);
    expect_names(pool, "a");
    expect_text(pool, "a", "second");
    check_pool(pool);
    close_pool(pool);
}

static void replacing(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *old = new_tensor(pool, "w", 100000), *new = new_unnamed(pool, 50);
    fill(old, 1);
    fill(new, 2);
    expect_names(pool, "w");
    OK(lmcs_live_replace(new, "w", &err));
    expect_filled(old, 1);
    struct lmcs_live_info info;
    OK(lmcs_live_info(old, &info, &err));
    EXPECT(info.name[0] == '\0');
    expect_names(pool, "w");
    lmcs_live_close(old);
    lmcs_live_close(new);
    pool = reopen(pool, place);
    OK(lmcs_live_open(pool, "run", "w", &new, &err));
    OK(lmcs_live_info(new, &info, &err));
    EXPECT(info.shape[0] == 50);
    expect_filled(new, 2);
    lmcs_live_close(new);
    uint64_t used = pool_info(pool).used_bytes;
    for (int i = 0; i < 20; i++) {
        new = new_unnamed(pool, 500000);
        fill(new, 3);
        lmcs_live_close(new);
    }
    EXPECT(pool_info(pool).used_bytes <= used + (3 << 20));
    check_pool(pool);
    close_pool(pool);
}

static void what_was_replaced_stays_without_its_name(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *old = new_tensor(pool, "w", 1000), *new = new_unnamed(pool, 50), *other = new_unnamed(pool, 70);
    fill(old, 1);
    fill(new, 2);
    fill(other, 3);
    OK(lmcs_live_replace(new, "w", &err));
    for (int i = 0; i < 2; i++) {
        OK(lmcs_live_resize(old, 1, &(uint64_t){900}, &err));
        expect_filled(old, 1);
        OK(lmcs_live_resize(old, 1, &(uint64_t){200000}, &err));
        EXPECT(((float *)lmcs_live_data(old))[199999] == 0);
        OK(lmcs_live_set_note(old, "note", 4, &err));
        OK(lmcs_live_resize(new, 1, &(uint64_t){40}, &err));
        expect_names(pool, "w");
        if (i == 0)
            put_text(pool, "w", "put over it");
    }
    OK(lmcs_live_replace(other, "w", &err));
    OK(lmcs_live_replace(old, "old", &err));
    lmcs_live_close(old);
    lmcs_live_close(new);
    lmcs_live_close(other);
    pool = reopen(pool, place);
    expect_names(pool, "old w");
    OK(lmcs_live_open(pool, "run", "w", &other, &err));
    EXPECT(float_count(other) == 70);
    expect_filled(other, 3);
    lmcs_live_close(other);
    OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
}

static void nobody_loses_the_end_of_what_is_open(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 100000), *other;
    fill(live, 7);
    OK(lmcs_live_open(pool, "run", "w", &other, &err));
    FAILS(LMCS_IN_USE, lmcs_live_resize(live, 1, &(uint64_t){10}, &err));
    EXPECT(strstr(err.message, "\"w\" can't be made smaller: other handles in this process (1)") != NULL);
    expect_filled(other, 7);
    OK(lmcs_live_resize(live, 2, (const uint64_t[]){1000, 100}, &err));
    OK(lmcs_live_resize(live, 1, &(uint64_t){100001}, &err));
    lmcs_live_close(other);
    OK(lmcs_live_resize(live, 1, &(uint64_t){10}, &err));
    EXPECT(float_count(live) == 10);
    lmcs_live_close(live);
    check_pool(pool);
    close_pool(pool);
}

static void sizes_change(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 1000);
    uint64_t count = 1000;
    fill(live, 7);
    struct rng rng = {3};
    for (int i = 0; i < 40; i++) {
        uint64_t wanted = rng_below(&rng, i % 4 == 0 ? 900000 : 5000);
        float *before = lmcs_live_data(live);
        struct lmcs_live_info info;
        OK(lmcs_live_info(live, &info, &err));
        OK(lmcs_live_resize(live, 1, &wanted, &err));
        float *w = lmcs_live_data(live);
        if (wanted * 4 <= info.reserved_bytes && count > 0)
            EXPECT(w == before);
        for (uint64_t k = 0; k < wanted; k++)
            EXPECT(w[k] == (k < count ? 7.0f + (float)k : 0));
        fill(live, 7);
        count = wanted;
        if (i % 10 == 9) {
            lmcs_live_close(live);
            pool = reopen(pool, place);
            OK(lmcs_live_open(pool, "run", "w", &live, &err));
            expect_filled(live, 7);
            check_pool(pool);
        }
    }
    lmcs_live_close(live);
    close_pool(pool);
}

static void old_addresses_show_the_same(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 1024);
    uint64_t more = 4000000;
    float *before = lmcs_live_data(live);
    fill(live, 1);
    OK(lmcs_live_resize(live, 1, &more, &err));
    float *after = lmcs_live_data(live);
    EXPECT(after != before);
    after[5] = 55;
    EXPECT(before[5] == 55);
    before[6] = 66;
    EXPECT(after[6] == 66);
    lmcs_live_close(live);
    close_pool(pool);
}

static void space_comes_back(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_limited(place->pool, (uint64_t)32 << 20);
    for (int i = 0; i < 30; i++) {
        struct lmcs_live *live = new_tensor(pool, "w", 4 << 20);
        fill(live, (float)i);
        struct lmcs_live *other = NULL;
        static const uint64_t shape[] = {6 << 20};
        struct lmcs_tensor tensor = {.name = "v", .dtype = LMC_F32, .ndim = 1, .shape = shape};
        FAILS(LMCS_FULL, lmcs_live_create(pool, "run", &tensor, NULL, &other, &err));
        EXPECT(err.bytes_needed > err.bytes_free);
        lmcs_live_close(live);
        OK(lmcs_live_erase(pool, "run", "w", &err));
    }
    EXPECT(pool_info(pool).used_bytes < (uint64_t)4 << 20);
    for (int i = 0; i < 3000; i++) {
        char name[32];
        snprintf(name, sizeof name, "n%d", i % 50);
        put_text(pool, name, "a text that is neither long nor short, but has to lie somewhere");
        if (i % 3 == 0)
            OK(lmcs_live_erase(pool, "run", name, &err));
    }
    check_pool(pool);
    EXPECT(pool_info(pool).used_bytes < (uint64_t)4 << 20);
    EXPECT(disk_bytes(place->pool) < (uint64_t)12 << 20);
    close_pool(pool);
}

static void locks_exclude(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *one = new_tensor(pool, "w", 10), *two, *three;
    OK(lmcs_live_open(pool, "run", "w", &two, &err));
    OK(lmcs_live_open(pool, "run", "w", &three, &err));
    OK(lmcs_live_lock(one, LMCS_LOCK_SHARED, 0, &err));
    OK(lmcs_live_lock(two, LMCS_LOCK_SHARED, 0, &err));
    FAILS(LMCS_IN_USE, lmcs_live_lock(three, LMCS_LOCK_EXCLUSIVE, 0, &err));
    FAILS(LMCS_IN_USE, lmcs_live_lock(three, LMCS_LOCK_EXCLUSIVE, 30, &err));
    FAILS(LMCS_INVALID, lmcs_live_lock(one, LMCS_LOCK_EXCLUSIVE, 0, &err));
    OK(lmcs_live_unlock(one, &err));
    lmcs_live_close(two);
    OK(lmcs_live_lock(three, LMCS_LOCK_EXCLUSIVE, 0, &err));
    FAILS(LMCS_IN_USE, lmcs_live_lock(one, LMCS_LOCK_SHARED, 10, &err));
    OK(lmcs_live_unlock(three, &err));
    OK(lmcs_live_lock(one, LMCS_LOCK_SHARED, 10, &err));
    lmcs_live_close(one);
    lmcs_live_close(three);
    close_pool(pool);
}

struct waiter {
    struct lmcs_live *live;
    int64_t *count;
};

static void *count_under_lock(void *argument)
{
    struct waiter *waiter = argument;
    for (int i = 0; i < 2000; i++) {
        OK(lmcs_live_lock(waiter->live, LMCS_LOCK_EXCLUSIVE, UINT32_MAX, &err));
        ++*waiter->count;
        OK(lmcs_live_unlock(waiter->live, &err));
    }
    return NULL;
}

static void locks_wait(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct waiter waiters[3];
    pthread_t threads[3];
    int64_t count = 0;
    lmcs_live_close(new_tensor(pool, "w", 10));
    for (int i = 0; i < 3; i++) {
        OK(lmcs_live_open(pool, "run", "w", &waiters[i].live, &err));
        waiters[i].count = &count;
        EXPECT(pthread_create(&threads[i], NULL, count_under_lock, &waiters[i]) == 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        lmcs_live_close(waiters[i].live);
    }
    EXPECT(count == 6000);
    close_pool(pool);
}

static bool count_visit(void *context, const struct lmcs_live_info *info)
{
    (void)info;
    ++*(unsigned *)context;
    return true;
}

static void lists_are_filtered(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    put_text(pool, "opt.b", "x");
    put_text(pool, "model.a", "x");
    put_text(pool, "model.c", "xyz");
    lmcs_live_close(new_tensor(pool, "zeros", 100));
    OK(lmcs_live_put(pool, "other", "elsewhere", "y", 1, NULL, 0, &err));
    expect_names(pool, "model.a model.c opt.b zeros");
    unsigned count = 0;
    struct lmcs_live_filter filter = {.prefix = "model."};
    OK(lmcs_live_list(pool, "run", &filter, count_visit, &count, &err));
    EXPECT(count == 2);
    usleep(2000);
    uint64_t moment = lmcs_now_ns();
    usleep(2000);
    put_text(pool, "opt.b", "changed");
    filter = (struct lmcs_live_filter){.written_from_ns = moment};
    count = 0;
    OK(lmcs_live_list(pool, "run", &filter, count_visit, &count, &err));
    EXPECT(count == 1);
    filter = (struct lmcs_live_filter){.written_from_ns = 1, .written_until_ns = moment};
    count = 0;
    OK(lmcs_live_list(pool, "run", &filter, count_visit, &count, &err));
    EXPECT(count == 2);
    count = 0;
    OK(lmcs_live_list(pool, "nobody", NULL, count_visit, &count, &err));
    EXPECT(count == 0);
    struct lmcs_live_usage usage;
    OK(lmcs_live_usage(pool, "run", &usage, &err));
    EXPECT(usage.variables == 4 && usage.bytes == 7 + 1 + 3 + 400 && usage.pool_percent > 0 &&
           usage.pool_percent < 100);
    close_pool(pool);
}

/* Handles keep the pool open; the last one releases the lock. */
static int try_to_open(void *path)
{
    struct lmcs_open_options options;
    struct lmcs_pool *pool;
    lmcs_open_options_init(&options);
    options.wait_ms = 0;
    return lmcs_pool_open(path, LMCS_OPEN_WRITE, &options, &pool, &err) == LMCS_OK ? 0 : 1;
}

static void handles_keep_the_pool(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 1000);
    close_pool(pool);
    fill(live, 4);
    EXPECT(WEXITSTATUS(run_child(try_to_open, place->pool, 20)) == 1);
    lmcs_live_close(live);
    EXPECT(WEXITSTATUS(run_child(try_to_open, place->pool, 20)) == 0);
    pool = open_quiet(place->pool);
    OK(lmcs_live_open(pool, "run", "w", &live, &err));
    expect_filled(live, 4);
    lmcs_live_close(live);
    close_pool(pool);
}

static int in_a_child(void *argument)
{
    struct lmcs_live *live = argument;
    const float *w = lmcs_live_data(live);
    if (w[10] != 14)
        return 1;
    if (lmcs_live_persist(live, 0, 4, &err) != LMCS_INVALID)
        return 2;
    lmcs_live_close(live);
    return 0;
}

static int store_in_a_child(void *argument)
{
    signal(SIGSEGV, SIG_DFL); /* cmocka's would continue the tests */
    ((float *)lmcs_live_data(argument))[10] = 1;
    return 0;
}

static void children_only_read(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 1000);
    fill(live, 4);
    EXPECT(run_child(in_a_child, live, 20) == 0);
    int status = run_child(store_in_a_child, live, 20);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    expect_filled(live, 4);
    fill(live, 5);
    lmcs_live_close(live);
    close_pool(pool);
}

static int read_beside(void *path)
{
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    struct lmcs_live *live, *value;
    char text[32];
    uint64_t bytes;
    OK(lmcs_live_open(pool, "run", "w", &live, &err));
    expect_filled(live, 9);
    OK(lmcs_live_open(pool, "run", "t", &value, &err));
    OK(lmcs_live_get(value, text, sizeof text, &bytes, &err));
    EXPECT(bytes == 5 && memcmp(text, "hello", 5) == 0);
    FAILS(LMCS_READ_ONLY, lmcs_live_persist(live, 0, 4, &err));
    FAILS(LMCS_READ_ONLY, lmcs_live_set(value, "x", 1, &err));
    FAILS(LMCS_READ_ONLY, lmcs_live_put(pool, "run", "u", "x", 1, NULL, 0, &err));
    FAILS(LMCS_READ_ONLY, lmcs_live_erase(pool, "run", "w", &err));
    expect_names(pool, "t w");
    lmcs_live_close(value);
    lmcs_live_close(live);
    close_pool(pool);
    return 0;
}

static void readers_look_on(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 100000);
    fill(live, 9);
    put_text(pool, "t", "hello");
    EXPECT(run_child(read_beside, place->pool, 20) == 0);
    lmcs_live_close(live);
    struct lmcs_pool *reader;
    struct lmcs_live *seen;
    close_pool(pool);
    OK(lmcs_pool_open(place->pool, LMCS_OPEN_READ, NULL, &reader, &err));
    OK(lmcs_live_open(reader, "run", "w", &seen, &err));
    pool = open_quiet(place->pool);
    OK(lmcs_live_erase(pool, "run", "w", &err));
    struct lmcs_live *next = new_tensor(pool, "x", 100000);
    fill(next, 1);
    expect_filled(seen, 9);
    FAILS(LMCS_NOT_FOUND, lmcs_live_open(reader, "run", "w", &live, &err));
    lmcs_live_close(seen);
    close_pool(reader);
    lmcs_live_close(next);
    check_pool(pool);
    close_pool(pool);
}

/* A tensor "a" amid free space, and a reader in this process that acts as another process. */
static struct lmcs_pool *with_reader(const struct place *place, uint64_t floats, struct lmcs_pool **reader,
                                     struct lmcs_live **seen)
{
    struct lmcs_pool *pool = open_quiet(place->pool);
    lmcs_live_close(new_tensor(pool, "large", 1 << 20));
    OK(lmcs_live_erase(pool, "run", "large", &err));
    struct lmcs_live *a = new_tensor(pool, "a", floats);
    fill(a, 1);
    lmcs_live_close(a);
    close_pool(pool);
    OK(lmcs_pool_open(place->pool, LMCS_OPEN_READ, NULL, reader, &err));
    OK(lmcs_live_open(*reader, "run", "a", seen, &err));
    return open_quiet(place->pool);
}

static void make_many(struct lmcs_pool *pool, const char *prefix, int count, uint64_t floats)
{
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s%d", prefix, i);
        struct lmcs_live *live = new_tensor(pool, name, floats);
        fill(live, 7000000);
        lmcs_live_close(live);
    }
}

static void grow_in_place(struct lmcs_pool *pool, uint64_t floats, uint64_t *reserved)
{
    struct lmcs_live *a;
    struct lmcs_live_info info;
    OK(lmcs_live_open(pool, "run", "a", &a, &err));
    uint64_t had = float_count(a);
    OK(lmcs_live_resize(a, 1, &floats, &err));
    for (uint64_t i = had; i < floats; i++)
        ((float *)lmcs_live_data(a))[i] = 1 + (float)i;
    OK(lmcs_live_persist(a, 0, floats * sizeof(float), &err));
    OK(lmcs_live_info(a, &info, &err));
    *reserved = info.reserved_bytes;
    lmcs_live_close(a);
}

/* Free pages around a small tensor, or its larger size at the erasure, do not free it. */
static void a_small_one_that_is_read_stays(void **state)
{
    struct place *place = *state;
    for (int grows = 0; grows < 2; grows++) {
        struct lmcs_pool *reader, *pool;
        struct lmcs_live *seen;
        uint64_t reserved = 0;
        unlink(place->pool);
        pool = with_reader(place, 1000, &reader, &seen);
        if (grows)
            grow_in_place(pool, 50000, &reserved);
        OK(lmcs_live_erase(pool, "run", "a", &err));
        make_many(pool, "m", 150, 1000);
        expect_filled(seen, 1);
        pool = reopen(pool, place);
        EXPECT(pool_info(pool).used_bytes < (uint64_t)4 << 20);
        make_many(pool, "n", 300, 1000);
        expect_filled(seen, 1);
        lmcs_live_close(seen);
        close_pool(reader);
        check_pool(pool);
        close_pool(pool);
    }
}

/* Two readers, one of which has seen the growth, keep their views, in either order of closing. */
static void what_grew_while_it_was_read_stays(void **state)
{
    struct place *place = *state;
    for (int larger_first = 0; larger_first < 2; larger_first++) {
        struct lmcs_pool *reader, *pool;
        struct lmcs_live *seen[2];
        uint64_t reserved = 0;
        unlink(place->pool);
        pool = with_reader(place, 50000, &reader, &seen[0]);
        grow_in_place(pool, 200000, &reserved);
        EXPECT(reserved >= 800000);
        OK(lmcs_live_open(reader, "run", "a", &seen[1], &err));
        EXPECT(float_count(seen[0]) == 50000 && float_count(seen[1]) == 200000);
        OK(lmcs_live_erase(pool, "run", "a", &err));
        make_many(pool, "m", 60, 20000);
        expect_filled(seen[0], 1);
        expect_filled(seen[1], 1);
        lmcs_live_close(seen[larger_first]);
        make_many(pool, "n", 60, 20000);
        expect_filled(seen[!larger_first], 1);
        lmcs_live_close(seen[!larger_first]);
        close_pool(reader);
        check_pool(pool);
        close_pool(pool);
    }
}

static void names_change_beside_a_reader(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *reader, *pool;
    struct lmcs_live *seen, *other, *again;
    struct lmcs_live_info info;
    pool = with_reader(place, 1000, &reader, &seen);
    struct lmcs_live *b = new_tensor(pool, "b", 20);
    fill(b, 5);
    lmcs_live_close(b);
    OK(lmcs_live_rename(pool, "run", "a", "c", &err));
    OK(lmcs_live_open(reader, "run", "c", &again, &err));
    expect_filled(again, 1);
    OK(lmcs_live_info(seen, &info, &err));
    EXPECT(strcmp(info.name, "c") == 0 && info.bytes == 4000 && info.handles == 1);
    FAILS(LMCS_NOT_FOUND, lmcs_live_open(reader, "run", "a", &other, &err));
    lmcs_live_close(again);
    OK(lmcs_live_open(reader, "run", "c", &again, &err));
    OK(lmcs_live_swap(pool, "run", "b", "c", &err));
    OK(lmcs_live_open(reader, "run", "b", &other, &err));
    expect_filled(other, 1);
    lmcs_live_close(other);
    OK(lmcs_live_open(reader, "run", "c", &other, &err));
    EXPECT(float_count(other) == 20);
    expect_filled(other, 5);
    OK(lmcs_live_erase(pool, "run", "b", &err));
    OK(lmcs_live_info(seen, &info, &err));
    EXPECT(info.name[0] == '\0' && info.bytes == 4000);
    make_many(pool, "m", 100, 1000);
    expect_filled(seen, 1);
    expect_filled(again, 1);
    lmcs_live_close(seen);
    lmcs_live_close(again);
    lmcs_live_close(other);
    close_pool(reader);
    check_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(tensors_stay),
        ON_MEMORY_ONLY(every_shape),
        ON_BOTH(wrong_calls_are_refused),
        ON_BOTH(names_change),
        IN_MEMORY(many_at_once),
        ON_BOTH(replacing),
        ON_BOTH(what_was_replaced_stays_without_its_name),
        ON_BOTH(nobody_loses_the_end_of_what_is_open),
        ON_BOTH(sizes_change),
        ON_BOTH(old_addresses_show_the_same),
        ON_BOTH(space_comes_back),
        ON_MEMORY_ONLY(locks_exclude),
        ON_MEMORY_ONLY(locks_wait),
        ON_BOTH(lists_are_filtered),
        ON_BOTH(handles_keep_the_pool),
        ON_BOTH(children_only_read),
        ON_BOTH(readers_look_on),
        ON_BOTH(a_small_one_that_is_read_stays),
        ON_BOTH(what_grew_while_it_was_read_stays),
        ON_BOTH(names_change_beside_a_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
