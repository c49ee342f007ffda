/* SPDX-License-Identifier: BSD-3-Clause */
/* test_live_shelf.c - renamed and removed shelves, and interrupted removals. */
/* ctest: timeout=600 */
#include "test_live_support.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t names_on(struct lmcs_pool *pool, const char *shelf)
{
    struct lmcs_live_usage usage;
    OK(lmcs_live_usage(pool, shelf, &usage, &err));
    return usage.variables;
}

static void expect_text_on(struct lmcs_pool *pool, const char *shelf, const char *name, const char *text)
{
    struct lmcs_live *live;
    OK(lmcs_live_open(pool, shelf, name, &live, &err));
    expect_handle_text(live, text);
    lmcs_live_close(live);
}

static void a_name_changes(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 5000);
    struct lmcs_transaction *transaction;
    fill(live, 3);
    put_text(pool, "t", "hello");
    FAILS(LMCS_IN_USE, lmcs_shelf_rename(pool, "run", "other", &err));
    EXPECT(strstr(err.message, "\"w\"") != NULL && strstr(err.message, "\"run\"") != NULL);
    lmcs_live_close(live);
    OK(lmcs_transaction_begin(pool, "run", NULL, 0, NULL, &transaction, &err));
    FAILS(LMCS_IN_USE, lmcs_shelf_rename(pool, "run", "other", &err));
    FAILS(LMCS_IN_USE, lmcs_shelf_drop(pool, "run", false, NULL, &err));
    lmcs_transaction_abort(transaction);

    OK(lmcs_shelf_rename(pool, "run", "other", &err));
    FAILS(LMCS_NOT_FOUND, lmcs_live_open(pool, "run", "t", &live, &err));
    expect_names(pool, "");
    expect_text_on(pool, "other", "t", "hello");
    put_text(pool, "t", "another shelf");
    pool = reopen(pool, place);
    expect_text(pool, "t", "another shelf");
    expect_text_on(pool, "other", "t", "hello");
    OK(lmcs_live_open(pool, "other", "w", &live, &err));
    expect_filled(live, 3);
    FAILS(LMCS_EXISTS, lmcs_shelf_rename(pool, "run", "other", &err));
    OK(lmcs_shelf_rename(pool, "run", "third", &err));
    lmcs_live_close(live);
    check_pool(pool);
    close_pool(pool);
}

static void a_name_is_used_again(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    put_text(pool, "t", "first");
    OK(lmcs_live_erase(pool, "run", "t", &err));
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    put_text(pool, "t", "second");
    pool = reopen(pool, place);
    expect_text(pool, "t", "second");
    OK(lmcs_live_erase(pool, "run", "t", &err));
    OK(lmcs_shelf_rename(pool, "run", "kept", &err));
    put_text(pool, "t", "third");
    EXPECT(names_on(pool, "kept") == 0);
    pool = reopen(pool, place);
    expect_text(pool, "t", "third");
    EXPECT(names_on(pool, "kept") == 0);
    check_pool(pool);
    close_pool(pool);
}

static void a_reader_follows(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool), *reader;
    struct lmcs_live *seen, *none;
    lmcs_live_close(new_tensor(pool, "w", 1000));
    put_text(pool, "t", "hello");
    close_pool(pool);
    OK(lmcs_pool_open(place->pool, LMCS_OPEN_READ, NULL, &reader, &err)); /* first, so that it is a separate pool */
    OK(lmcs_live_open(reader, "run", "w", &seen, &err));
    pool = open_quiet(place->pool);
    expect_text(reader, "t", "hello");
    OK(lmcs_shelf_rename(pool, "run", "other", &err));
    FAILS(LMCS_NOT_FOUND, lmcs_live_open(reader, "run", "t", &none, &err));
    expect_text_on(reader, "other", "t", "hello");
    put_text(pool, "t", "another shelf");
    expect_text(reader, "t", "another shelf");
    OK(lmcs_shelf_drop(pool, "other", false, NULL, &err));
    put_text(pool, "t", "and more, so that what is free is used");
    struct lmcs_live *next = new_tensor(pool, "next", 1000);
    fill(next, 7);
    lmcs_live_close(next);
    const float *data = lmcs_live_data(seen);
    for (size_t i = 0; i < 1000; i++)
        EXPECT(data[i] == 0);
    FAILS(LMCS_NOT_FOUND, lmcs_live_open(reader, "other", "t", &none, &err));
    lmcs_live_close(seen);
    close_pool(reader);
    check_pool(pool);
    close_pool(pool);
}

static void put_many(struct lmcs_pool *pool, unsigned count)
{
    char name[32];
    for (unsigned i = 0; i < count; i++) {
        snprintf(name, sizeof name, "v%u", i);
        put_text(pool, name, "a value");
    }
    struct lmcs_live *live = new_tensor(pool, "w", 1 << 20);
    fill(live, 1);
    lmcs_live_close(live);
    OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
}

static void a_shelf_is_removed(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_removal dry, wet;
    struct lmcs_live *live;
    put_many(pool, 200);
    OK(lmcs_live_put(pool, "beside", "t", "stays", 5, NULL, 0, &err));
    OK(lmcs_live_open(pool, "run", "v7", &live, &err));
    FAILS(LMCS_IN_USE, lmcs_shelf_drop(pool, "run", false, NULL, &err));
    EXPECT(strstr(err.message, "\"v7\"") != NULL);
    FAILS(LMCS_IN_USE, lmcs_shelf_drop(pool, "run", true, NULL, &err));
    lmcs_live_close(live);
    EXPECT(names_on(pool, "run") == 201);
    uint64_t used = pool_info(pool).used_bytes;
    OK(lmcs_shelf_drop(pool, "run", true, &dry, &err));
    EXPECT(names_on(pool, "run") == 201 && pool_info(pool).used_bytes >= used);
    OK(lmcs_shelf_drop(pool, "run", false, &wet, &err));
    EXPECT(dry.freed_bytes == wet.freed_bytes && wet.freed_bytes > (uint64_t)8 << 20);
    EXPECT(names_on(pool, "run") == 0);
    verify_pool(pool);
    put_many(pool, 3);
    EXPECT(names_on(pool, "run") == 4);
    pool = reopen(pool, place);
    EXPECT(names_on(pool, "run") == 4);
    expect_text_on(pool, "beside", "t", "stays");
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    pool = reopen(pool, place);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(pool_info(pool).used_bytes < (uint64_t)4 << 20);
    check_pool(pool);
    close_pool(pool);
}

static void a_removal_is_cut_short(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    unsigned whole = 0, gone = 0;
    for (int i = 0; i < 30; i++) {
        struct lmcs_pool *pool = open_quiet(place->pool);
        if (names_on(pool, "run") == 0)
            put_many(pool, 300);
        close_pool(pool);
        int ready[2];
        char byte;
        EXPECT(pipe(ready) == 0);
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            pool = open_quiet(place->pool);
            EXPECT(write(ready[1], "x", 1) == 1);
            OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
            _exit(0);
        }
        EXPECT(read(ready[0], &byte, 1) == 1);
        usleep((useconds_t)rng_below(&rng, 1500));
        EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        close(ready[0]);
        close(ready[1]);
        struct lmcs_pool *reader = open_pool(place->pool, LMCS_OPEN_READ, LMCS_NO_BACKGROUND);
        uint64_t left = names_on(reader, "run");
        EXPECT(left == 0 || left == 301);
        close_pool(reader);
        pool = open_quiet(place->pool);
        EXPECT(names_on(pool, "run") == left);
        whole += left != 0;
        gone += left == 0;
        verify_pool(pool);
        OK(lmcs_compact(pool, NULL, &err));
        EXPECT(pool_info(pool).used_bytes < (uint64_t)(left == 0 ? 4 : 20) << 20);
        check_pool(pool);
        close_pool(pool);
    }
    printf("%u times whole, %u times gone\n", whole, gone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(a_name_changes),     ON_BOTH(a_name_is_used_again),          ON_BOTH(a_reader_follows),
        ON_BOTH(a_shelf_is_removed), ON_MEMORY_ONLY(a_removal_is_cut_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
