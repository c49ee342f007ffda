/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_live_txn.c - transactions on live variables: all of it, or nothing, for stores, functions and names alike; after
 * an abort, after a process that died, and for who looks from elsewhere. Both ways, private pages and declared ranges.
 */
/* ctest: timeout=600 */
#include "test_live_support.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static struct lmcs_transaction *begin_with(struct lmcs_pool *pool, uint32_t flags, uint64_t limit_bytes)
{
    struct lmcs_transaction_options options;
    struct lmcs_transaction *transaction = NULL;
    lmcs_transaction_options_init(&options);
    options.flags = flags;
    options.limit_bytes = limit_bytes;
    OK(lmcs_transaction_begin(pool, "run", NULL, 0, &options, &transaction, &err));
    return transaction;
}

static struct lmcs_live *open_live(struct lmcs_pool *pool, const char *name)
{
    struct lmcs_live *live;
    OK(lmcs_live_open(pool, "run", name, &live, &err));
    return live;
}

static void store(struct lmcs_transaction *transaction, struct lmcs_live *live, uint64_t i, float value)
{
    OK(lmcs_transaction_declare(transaction, live, i * sizeof(float), sizeof(float), &err));
    ((float *)lmcs_live_data(live))[i] = value;
}

static void commit_and_abort(struct place *place, uint32_t flags)
{
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *a = new_tensor(pool, "a", 100000), *b = new_tensor(pool, "b", 1000);
    fill(a, 0);
    fill(b, 100);
    put_text(pool, "t", "before");
    struct lmcs_live *t = open_live(pool, "t");
    float *address = lmcs_live_data(a);
    for (int round = 0; round < 2; round++) {
        bool commits = round == 1;
        struct lmcs_transaction *transaction = begin_with(pool, flags, 0);
        EXPECT(lmcs_live_data(a) == address);
        store(transaction, a, 5, -1);
        store(transaction, a, 99999, -2);
        store(transaction, b, 999, -3);
        OK(lmcs_live_write(a, 40, &(float){-4}, 4, &err));
        OK(lmcs_live_write(b, 3, "odd", 3, &err));
        uint64_t five = 5;
        OK(lmcs_live_add(b, 80, 8, &five, NULL, &err));
        put_text(pool, "t", "a much longer text than it was, which needs another place in the pool than it had");
        put_text(pool, "new", "made in it");
        OK(lmcs_live_persist(a, 0, 100, &err));
        expect_text(pool, "t", "a much longer text than it was, which needs another place in the pool than it had");
        expect_names(pool, "a b new t");
        if (commits)
            OK(lmcs_transaction_commit(transaction, &err));
        else
            lmcs_transaction_abort(transaction);
        EXPECT(lmcs_live_data(a) == address);
        for (int again = 0; again < 2; again++) {
            const float *at = lmcs_live_data(a), *bt = lmcs_live_data(b);
            for (uint64_t i = 0; i < 100000; i++)
                EXPECT(at[i] == (!commits || (i != 5 && i != 99999 && i != 10) ? (float)i
                                 : i == 5                                      ? -1
                                 : i == 10                                     ? -4
                                                                               : -2));
            EXPECT(bt[999] == (commits ? -3.0f : 1099.0f));
            EXPECT((memcmp((const char *)bt + 3, "odd", 3) == 0) == commits);
            expect_text(pool, "t",
                        commits ? "a much longer text than it was, which needs another place in the pool than it had"
                                : "before");
            expect_handle_text(
                t, commits ? "a much longer text than it was, which needs another place in the pool than it had"
                           : "before");
            expect_names(pool, commits ? "a b new t" : "a b t");
            check_pool(pool);
            if (again == 1)
                break;
            lmcs_live_close(a);
            lmcs_live_close(b);
            lmcs_live_close(t);
            pool = reopen(pool, place);
            a = open_live(pool, "a");
            b = open_live(pool, "b");
            t = open_live(pool, "t");
            address = lmcs_live_data(a);
        }
    }
    lmcs_live_close(a);
    lmcs_live_close(b);
    lmcs_live_close(t);
    verify_pool(pool);
    close_pool(pool);
}

static void private_pages(void **state)
{
    commit_and_abort(*state, 0);
}

static void declared_ranges(void **state)
{
    commit_and_abort(*state, LMCS_TRANSACTION_DECLARED);
}

/* ---- Names and sizes ---- */

static void change_all(struct lmcs_pool *pool, struct lmcs_live *w)
{
    uint64_t more = 1200;
    OK(lmcs_live_erase(pool, "run", "gone", &err));
    OK(lmcs_live_swap(pool, "run", "x", "y", &err));
    OK(lmcs_live_rename(pool, "run", "z", "gone", &err)); /* a name that has just become free */
    OK(lmcs_live_resize(w, 1, &more, &err));
    float *data = lmcs_live_data(w);
    for (uint64_t i = 1000; i < 1200; i++) {
        EXPECT(data[i] == 0);
        data[i] = (float)i + 7;
    }
    struct lmcs_live *made = new_tensor(pool, "made", 3000), *other = new_unnamed(pool, 20);
    for (int i = 0; i < 3000; i++)
        ((float *)lmcs_live_data(made))[i] = (float)i + 3;
    for (int i = 0; i < 20; i++)
        ((float *)lmcs_live_data(other))[i] = (float)i + 4;
    OK(lmcs_live_replace(other, "old", &err));
    expect_names(pool, "gone made old w x y");
    expect_text(pool, "gone", "zzz");
    expect_text(pool, "x", "yyy");
    lmcs_live_close(made);
    lmcs_live_close(other);
}

static void expect_before(struct lmcs_pool *pool)
{
    struct lmcs_live *w = open_live(pool, "w"), *old = open_live(pool, "old");
    expect_names(pool, "gone old w x y z");
    expect_text(pool, "gone", "ggg");
    expect_text(pool, "x", "xxx");
    expect_text(pool, "y", "yyy");
    expect_text(pool, "z", "zzz");
    EXPECT(float_count(w) == 1000 && float_count(old) == 10);
    expect_filled(w, 7);
    expect_filled(old, 5);
    lmcs_live_close(w);
    lmcs_live_close(old);
}

static void expect_after(struct lmcs_pool *pool)
{
    struct lmcs_live *w = open_live(pool, "w"), *old = open_live(pool, "old"), *made = open_live(pool, "made");
    expect_names(pool, "gone made old w x y");
    expect_text(pool, "gone", "zzz");
    expect_text(pool, "x", "yyy");
    expect_text(pool, "y", "xxx");
    EXPECT(float_count(w) == 1200 && float_count(old) == 20);
    expect_filled(w, 7);
    expect_filled(old, 4);
    expect_filled(made, 3);
    lmcs_live_close(w);
    lmcs_live_close(old);
    lmcs_live_close(made);
}

static void names_and_sizes_with(struct place *place, uint32_t flags)
{
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_tensor tensor = {.name = "w", .dtype = LMC_F32, .ndim = 1, .shape = (uint64_t[]){1000}};
    struct lmcs_live_options options;
    struct lmcs_live *w, *old = new_tensor(pool, "old", 10);
    lmcs_live_options_init(&options);
    options.reserve_bytes = 100000;
    OK(lmcs_live_create(pool, "run", &tensor, &options, &w, &err));
    fill(w, 7);
    fill(old, 5);
    lmcs_live_close(old);
    put_text(pool, "gone", "ggg");
    put_text(pool, "x", "xxx");
    put_text(pool, "y", "yyy");
    put_text(pool, "z", "zzz");
    uint64_t used = pool_info(pool).used_bytes;
    for (int i = 0; i < 10; i++) {
        struct lmcs_transaction *transaction = begin_with(pool, flags, 1 << 20);
        change_all(pool, w);
        lmcs_transaction_abort(transaction);
        expect_before(pool);
        check_pool(pool);
    }
    EXPECT(pool_info(pool).used_bytes <= used + (2 << 20)); /* the journal, and nothing more each time */
    lmcs_live_close(w);
    pool = reopen(pool, place);
    expect_before(pool);
    w = open_live(pool, "w");
    struct lmcs_transaction *transaction = begin_with(pool, flags, 1 << 20);
    change_all(pool, w);
    OK(lmcs_transaction_commit(transaction, &err));
    lmcs_live_close(w);
    expect_after(pool);
    check_pool(pool);
    pool = reopen(pool, place);
    expect_after(pool);
    verify_pool(pool);
    close_pool(pool);
}

static void names_and_sizes(void **state)
{
    names_and_sizes_with(*state, 0);
}

static void names_and_sizes_declared(void **state)
{
    names_and_sizes_with(*state, LMCS_TRANSACTION_DECLARED);
}

/* What an aborted transaction made has no name any more, and what one has replaced has none once it is committed. */
static void who_has_lost_its_name_with(struct place *place, uint32_t flags)
{
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 1000), *t;
    fill(w, 1);
    put_text(pool, "t", "short");
    t = open_live(pool, "t");
    struct lmcs_transaction *transaction = begin_with(pool, 0, 0);
    struct lmcs_live *made = new_tensor(pool, "made", 10);
    lmcs_transaction_abort(transaction);
    OK(lmcs_live_set_note(made, "note", 4, &err));
    OK(lmcs_live_resize(made, 1, &(uint64_t){20000}, &err));
    expect_names(pool, "t w");
    OK(lmcs_live_replace(made, "named", &err)); /* it is an unnamed one */
    lmcs_live_close(made);
    for (int commits = 0; commits < 2; commits++) {
        transaction = begin_with(pool, flags, 0);
        struct lmcs_live *other = new_unnamed(pool, 20);
        if (commits == 1)
            OK(lmcs_live_set(t, "its holder's", 12, &err));
        OK(lmcs_live_replace(other, "t", &err));
        lmcs_live_close(other);
        store(transaction, w, 5, -1);
        put_text(pool, "w", "instead of it");
        store(transaction, w, 6, -2);
        FAILS(LMCS_INVALID, lmcs_live_replace(w, "x", &err));
        EXPECT(strstr(err.message, "\"w\"") != NULL);
        OK(lmcs_live_resize(w, 1, &(uint64_t){900}, &err));
        OK(lmcs_live_set_note(w, "note", 4, &err));
        if (commits == 0)
            OK(lmcs_live_set(t, "a longer text, that has to move elsewhere, and so needs another record", 70, &err));
        expect_names(pool, "named t w");
        if (commits == 0) {
            lmcs_transaction_abort(transaction);
            EXPECT(float_count(w) == 1000);
            expect_filled(w, 1);
            expect_text(pool, "t", "short");
        } else {
            OK(lmcs_transaction_commit(transaction, &err));
            const float *data = lmcs_live_data(w); /* its holder's */
            EXPECT(float_count(w) == 900 && data[4] == 5 && data[5] == -1 && data[6] == -2 && data[7] == 8);
            expect_handle_text(t, "its holder's");
        }
        expect_names(pool, "named t w");
    }
    OK(lmcs_live_resize(w, 1, &(uint64_t){30000}, &err));
    OK(lmcs_live_set(t, "short again, and in no transaction", 34, &err));
    expect_handle_text(t, "short again, and in no transaction");
    lmcs_live_close(w);
    lmcs_live_close(t);
    pool = reopen(pool, place);
    expect_names(pool, "named t w");
    expect_text(pool, "w", "instead of it");
    OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
}

static void who_has_lost_its_name(void **state)
{
    who_has_lost_its_name_with(*state, 0);
}

static void who_has_lost_its_name_declared(void **state)
{
    who_has_lost_its_name_with(*state, LMCS_TRANSACTION_DECLARED);
}

/* A name that a transaction has given up is its variable's again when it is aborted. */
static void names_given_up_are_kept(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *lives[] = {new_tensor(pool, "a", 10), new_tensor(pool, "b", 20)};
    struct lmcs_transaction *transaction = NULL;
    put_text(pool, "c", "text");
    for (int i = 0; i < 3; i++) {
        bool erases = i == 1, both = i == 2;
        fill(lives[0], 1);
        if (erases)
            lmcs_live_close(lives[0]);
        struct lmcs_live *c = open_live(pool, "c");
        struct lmcs_live *in_it[] = {erases ? c : lives[0], lives[1]};
        OK(lmcs_transaction_begin(pool, "run", in_it, both ? 2 : 1, NULL, &transaction, &err));
        lmcs_live_close(c);
        const char *given_up = erases ? "c" : "a";
        if (erases)
            OK(lmcs_live_erase(pool, "run", "c", &err));
        else
            OK(lmcs_live_rename(pool, "run", "a", "z", &err));
        if (both) {
            OK(lmcs_live_rename(pool, "run", "b", given_up, &err)); /* by the same transaction */
            OK(lmcs_transaction_commit(transaction, &err));
            expect_names(pool, "a c z");
            break;
        }
        FAILS(LMCS_IN_USE, lmcs_live_rename(pool, "run", "b", given_up, &err));
        OK(lmcs_live_rename(pool, "run", "b", "free", &err));
        OK(lmcs_live_rename(pool, "run", "free", "b", &err));
        lmcs_transaction_abort(transaction);
        expect_names(pool, "a b c");
        if (erases)
            lives[0] = open_live(pool, "a");
        FAILS(LMCS_EXISTS, lmcs_live_rename(pool, "run", "b", given_up, &err));
    }
    lmcs_live_close(lives[0]);
    lmcs_live_close(lives[1]);
    pool = reopen(pool, place);
    expect_names(pool, "a c z");
    verify_pool(pool);
    close_pool(pool);
}

static void sizes_back_and_forth(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 20000);
    fill(w, 1);
    struct rng rng = {12};
    for (int round = 0; round < 30; round++) {
        uint64_t count = float_count(w), kept = count, all;
        struct lmcs_transaction *transaction = begin_with(pool, round % 3 == 2 ? LMCS_TRANSACTION_DECLARED : 0, 0);
        for (int i = 0; i < 5; i++) {
            all = rng_below(&rng, 20480) + 1;
            OK(lmcs_live_resize(w, 1, &all, &err));
            kept = all < kept ? all : kept;
            const float *data = lmcs_live_data(w);
            for (uint64_t k = 0; k < all; k++)
                EXPECT(data[k] == (k < kept ? 1.0f + (float)k : 0));
        }
        if (round % 2 == 0) {
            lmcs_transaction_abort(transaction);
            EXPECT(float_count(w) == count);
            expect_filled(w, 1);
        } else {
            OK(lmcs_transaction_commit(transaction, &err));
            EXPECT(float_count(w) == all);
            for (uint64_t k = 0; k < all; k++)
                EXPECT(((float *)lmcs_live_data(w))[k] == (k < kept ? 1.0f + (float)k : 0));
            fill(w, 1);
        }
        check_pool(pool);
    }
    struct lmcs_transaction *transaction = begin_with(pool, 0, 0);
    FAILS(LMCS_UNSUPPORTED, lmcs_live_resize(w, 1, &(uint64_t){10000000}, &err)); /* would need another address */
    expect_filled(w, 1);
    lmcs_transaction_abort(transaction);
    expect_filled(w, 1);
    lmcs_live_close(w);
    close_pool(pool);
}

/* A snapshot of a tensor that had more reserved than the one that is open has addresses for. */
static void checkout_keeps_addresses(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_tensor tensor = {.name = "w", .dtype = LMC_F32, .ndim = 1, .shape = &(uint64_t){1024}};
    struct lmcs_live_options options;
    struct lmcs_live_info info;
    struct lmcs_live *w = NULL;
    lmcs_live_options_init(&options);
    for (options.reserve_bytes = 1 << 16; options.reserve_bytes >= 4096; options.reserve_bytes >>= 4) {
        OK(lmcs_live_create(pool, "run", &tensor, &options, &w, &err));
        if (options.reserve_bytes == 4096)
            break;
        fill(w, 1);
        OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
        lmcs_live_close(w);
        OK(lmcs_live_erase(pool, "run", "w", &err));
    }
    float *data = lmcs_live_data(w);
    fill(w, 9);
    OK(lmcs_live_checkout(pool, "run", "1", &err));
    expect_filled(w, 1);
    OK(lmcs_live_info(w, &info, &err));
    EXPECT(info.reserved_bytes == 4096 && lmcs_live_data(w) == data);
    struct lmcs_transaction *transaction = begin_with(pool, 0, 0);
    data[0] = 777;
    FAILS(LMCS_UNSUPPORTED, lmcs_live_resize(w, 1, &(uint64_t){2048}, &err));
    EXPECT(lmcs_live_data(w) == data && data[0] == 777);
    OK(lmcs_transaction_commit(transaction, &err));
    OK(lmcs_live_resize(w, 1, &(uint64_t){2048}, &err));
    lmcs_live_close(w);
    pool = reopen(pool, place);
    OK(lmcs_live_open(pool, "run", "w", &w, &err));
    data = lmcs_live_data(w);
    EXPECT(float_count(w) == 2048 && data[0] == 777 && data[1] == 2 && data[1024] == 0);
    lmcs_live_close(w);
    close_pool(pool);
}

/* Whoever still looks where a tensor was larger must not be ended by a signal. */
static void what_is_cut_off_reads_as_zeros(void **state)
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
    volatile float *data = lmcs_live_data(w);
    struct lmcs_transaction *transaction = begin_with(pool, 0, 0);
    OK(lmcs_live_resize(w, 1, &(uint64_t){20000}, &err));
    data[19999] = 5;
    lmcs_transaction_abort(transaction);
    EXPECT(data[19999] == 0);
    OK(lmcs_live_resize(w, 1, &(uint64_t){1}, &err));
    EXPECT(data[0] == 1 && data[9999] == 0);
    data[9999] = 7;
    OK(lmcs_live_resize(w, 1, &(uint64_t){10000}, &err));
    EXPECT(data[9999] == 0);
    lmcs_live_close(w);
    close_pool(pool);
}

/* What a tensor was while its transaction was under way is nobody's after it: others get these pages. */
static void what_was_larger_reaches_nobody(void **state)
{
    enum { OTHERS = 200 };
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 1000), *others[OTHERS];
    fill(w, 1);
    for (int i = 0; i < 4; i++) {
        struct lmcs_transaction *transaction = begin_with(pool, LMCS_TRANSACTION_DECLARED, 0);
        struct lmcs_live *made = new_tensor(pool, "made", 1000);
        OK(lmcs_live_resize(w, 1, &(uint64_t){50000}, &err));
        OK(lmcs_live_resize(made, 1, &(uint64_t){50000}, &err));
        volatile float *was_larger[] = {lmcs_live_data(w), lmcs_live_data(made)};
        OK(lmcs_live_resize(w, 1, &(uint64_t){2000}, &err));
        OK(lmcs_live_resize(made, 1, &(uint64_t){2000}, &err));
        if (i % 2 == 0)
            lmcs_transaction_abort(transaction);
        else
            OK(lmcs_transaction_commit(transaction, &err));
        for (int k = 0; k < OTHERS; k++) {
            others[k] = new_unnamed(pool, 1000);
            fill(others[k], (float)k);
        }
        for (size_t k = 2048; k < 50000; k++)
            was_larger[0][k] = was_larger[1][k] = -1;
        for (int k = 0; k < OTHERS; k++) {
            expect_filled(others[k], (float)k);
            lmcs_live_close(others[k]);
        }
        OK(lmcs_live_resize(w, 1, &(uint64_t){10000}, &err));
        OK(lmcs_live_resize(made, 1, &(uint64_t){10000}, &err));
        for (size_t k = 2048; k < 10000; k++)
            EXPECT(((float *)lmcs_live_data(w))[k] == 0 && ((float *)lmcs_live_data(made))[k] == 0);
        OK(lmcs_live_resize(w, 1, &(uint64_t){1000}, &err));
        expect_filled(w, 1);
        lmcs_live_close(made);
        if (i % 2 != 0)
            OK(lmcs_live_erase(pool, "run", "made", &err));
    }
    lmcs_live_close(w);
    verify_pool(pool);
    close_pool(pool);
}

/* ---- Limits, and who may ---- */

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
    ((float *)lmcs_live_data(w))[0] = 50; /* v is not in it */
    ((float *)lmcs_live_data(v))[0] = 60;
    OK(lmcs_live_persist(v, 0, 4, &err));
    FAILS(LMCS_INVALID, lmcs_live_swap(pool, "run", "w", "v", &err));
    lmcs_transaction_abort(transaction);
    EXPECT(((float *)lmcs_live_data(w))[0] == 1 && ((float *)lmcs_live_data(v))[0] == 60);
    /* A pool that is closed within one. */
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
    options.flags = 0; /* of these each shelf has its own, also after that */
    OK(lmcs_transaction_begin(pool, "other", NULL, 0, &options, &transaction, &err));
    lmcs_transaction_abort(transaction);
    return NULL;
}

/* What was there is kept in one place of the pool. */
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

/* Until somebody has a shelf to himself. */
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

/* What others change while a transaction waits for its turn is in none, and so it is when that never comes. */
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

/* Variables of another shelf, of another pool, or without a name are refused, and the shelf is free then. */
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
        ((float *)lmcs_live_data(w))[0] = 2; /* in no transaction: it stays */
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

/* Memory follows what is written to, not the tensor. */
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
    struct lmcs_live *w = new_tensor(pool, "w", 16 << 20); /* 64 MiB */
    fill(w, 0);
    uint64_t before = anonymous_bytes(), used = pool_info(pool).used_bytes, bytes;
    struct lmcs_transaction *transaction = begin_with(pool, 0, 0);
    float *data = lmcs_live_data(w), sum = 0;
    for (size_t i = 0; i < 16 << 20; i += 1024)
        sum += data[i]; /* all pages are read, ... */
    for (size_t i = 0; i < 100; i++)
        data[i * 100000] = sum; /* ... and a hundred written to */
    OK(lmcs_transaction_bytes(transaction, &bytes, &err));
    EXPECT(bytes == 100 * 4096);
    EXPECT(anonymous_bytes() < before + (4 << 20));
    OK(lmcs_transaction_commit(transaction, &err));
    EXPECT(pool_info(pool).used_bytes < used + (4 << 20));
    EXPECT(data[100000] == sum);
    lmcs_live_close(w);
    close_pool(pool);
}

/* ---- What is read into, and who dies ---- */

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
        data[k] = 5; /* in the pool at once: before the commit nobody can see it */
    raise(SIGKILL);
    return 0;
}

/* What was stored behind the end that a tensor has again is not what it grows by. */
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
        EXPECT(disk_bytes(place->pool) < disk + 300000); /* a journal, and not 360,000 bytes of the dead */
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

/* ---- Values that are set and got while transactions begin and end ---- */

struct user {
    struct lmcs_live *live;
    atomic_bool stops;
    bool sets; /* and nobody else does: what it has set it gets */
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
    mallopt(M_PERTURB, 0xa5); /* what is freed is not what it was */
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
        ON_BOTH(private_pages),
        ON_BOTH(declared_ranges),
        ON_BOTH(names_and_sizes),
        ON_BOTH(names_and_sizes_declared),
        ON_BOTH(who_has_lost_its_name),
        ON_BOTH(who_has_lost_its_name_declared),
        IN_MEMORY(names_given_up_are_kept),
        ON_BOTH(sizes_back_and_forth),
        ON_BOTH(limits_are_told),
        ON_BOTH(one_at_a_time),
        IN_MEMORY(one_declared_in_a_pool),
        IN_MEMORY(one_that_never_begins_has_nothing),
        IN_MEMORY(strangers_are_refused),
        ON_BOTH(costs_follow_the_pages),
        ON_BOTH(system_calls_write_too),
        ON_BOTH(the_dead_leave_all_or_nothing),
        ON_BOTH(the_dead_leave_nothing_behind_the_end),
        ON_BOTH(checkout_keeps_addresses),
        ON_BOTH(what_is_cut_off_reads_as_zeros),
        ON_BOTH(what_was_larger_reaches_nobody),
        ON_MEMORY_ONLY(values_in_use_while_transactions_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
