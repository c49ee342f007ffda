/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_live_txn.c - transactions: stores, functions, names and sizes change together or not at all.
 *
 * This program interposes pwrite, which notes the last journal that is sealed, and writes to a watched page, and can
 * store to a page that it writes.
 */
/* ctest: timeout=600 */
#include "test_live_txn_support.h"

#include "live/map.h"
#include <pthread.h>
#include <sys/syscall.h>

static struct {
    pthread_mutex_t lock; /* copies of a snapshot write with several threads */
    struct lmcs_journal_df header;
    off_t at;
    unsigned sealed;
    bool lost; /* its end is in the page cache only, in a page that counts as clean */
} journal = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct {
    uint64_t place;
    bool written;
} watched;

static float *stored_meanwhile; /* changes when its page is written */

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    struct lmcs_journal_df header = {.magic = 0};
    if (bytes >= sizeof header)
        memcpy(&header, data, sizeof header);
    pthread_mutex_lock(&journal.lock);
    if (header.magic == LMCS_JOURNAL_MAGIC && header.sequence != 0) {
        journal.header = header;
        journal.at = offset;
        journal.sealed++;
    }
    journal.lost = journal.lost && offset != journal.at;
    if ((uint64_t)offset <= watched.place && watched.place < (uint64_t)offset + bytes)
        watched.written = true;
    if ((uintptr_t)stored_meanwhile - (uintptr_t)data < bytes) {
        *stored_meanwhile = -2;
        stored_meanwhile = NULL;
    }
    pthread_mutex_unlock(&journal.lock);
    return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

#define LONG_TEXT "a much longer text than it was, which needs another place in the pool than it had"

static void expect_outcome(struct lmcs_pool *pool, struct lmcs_live *a, struct lmcs_live *b, struct lmcs_live *t,
                           bool commits)
{
    const float *at = lmcs_live_data(a), *bt = lmcs_live_data(b);
    for (uint64_t i = 0; i < 100000; i++)
        EXPECT(at[i] == (!commits || (i != 5 && i != 99999 && i != 10) ? (float)i : i == 5 ? -1 : i == 10 ? -4 : -2));
    EXPECT(bt[999] == (commits ? -3.0f : 1099.0f));
    EXPECT((memcmp((const char *)bt + 3, "odd", 3) == 0) == commits);
    expect_text(pool, "t", commits ? LONG_TEXT : "before");
    expect_handle_text(t, commits ? LONG_TEXT : "before");
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
        put_text(pool, "t", LONG_TEXT);
        put_text(pool, "new", "made in it");
        OK(lmcs_live_persist(a, 0, 100, &err));
        expect_text(pool, "t", LONG_TEXT);
        expect_names(pool, "a b new t");
        if (commits)
            OK(lmcs_transaction_commit(transaction, &err));
        else
            lmcs_transaction_abort(transaction);
        EXPECT(lmcs_live_data(a) == address);
        for (int again = 0; again < 2; again++) {
            expect_outcome(pool, a, b, t, commits);
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

static void change_all(struct lmcs_pool *pool, struct lmcs_live *w)
{
    uint64_t more = 1200;
    OK(lmcs_live_erase(pool, "run", "gone", &err));
    OK(lmcs_live_swap(pool, "run", "x", "y", &err));
    OK(lmcs_live_rename(pool, "run", "z", "gone", &err));
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
    EXPECT(pool_info(pool).used_bytes <= used + (2 << 20)); /* the journal, once */
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
    OK(lmcs_live_replace(made, "named", &err));
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
            const float *data = lmcs_live_data(w);
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
            OK(lmcs_live_rename(pool, "run", "b", given_up, &err));
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
    FAILS(LMCS_UNSUPPORTED, lmcs_live_resize(w, 1, &(uint64_t){10000000}, &err));
    expect_filled(w, 1);
    lmcs_transaction_abort(transaction);
    expect_filled(w, 1);
    lmcs_live_close(w);
    close_pool(pool);
}

/* The snapshot's tensor had a larger reservation than the open one has addresses for. */
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

/* A process that reads beyond a tensor's new end must not get a signal. */
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

static void restore_journal(const struct place *place)
{
    int fd = open(place->pool, O_RDWR | O_CLOEXEC);
    EXPECT(syscall(SYS_pwrite64, fd, &journal.header, sizeof journal.header, journal.at) == sizeof journal.header);
    close(fd);
}

/* A failed sync may leave a journal's end, or the journal, in the page cache only. */
static void a_journal_that_the_disk_has_otherwise(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 1000);
    fill(w, 1);
    struct lmcs_transaction *transaction = begin_with(pool, 0, 0);
    store(transaction, w, 5, -1);
    OK(lmcs_transaction_commit(transaction, &err));
    lmcs_live_close(w);
    close_pool(pool);
    EXPECT(journal.sealed > 0);
    restore_journal(place);
    journal.sealed = 0;
    pool = open_quiet(place->pool);
    EXPECT(journal.sealed == 1); /* before it is applied */
    close_pool(pool);
    journal.lost = true;
    pool = open_quiet(place->pool);
    w = open_live(pool, "w");
    fill(w, 2);
    lmcs_live_close(w);
    close_pool(pool);
    if (journal.lost) /* the power fails */
        restore_journal(place);
    pool = open_quiet(place->pool);
    w = open_live(pool, "w");
    expect_filled(w, 2);
    lmcs_live_close(w);
    verify_pool(pool);
    close_pool(pool);
}

/* A failed sync may leave a page of a tensor in the page cache only, where a later process finds what it stores. */
static void a_page_that_is_equal_is_written_again(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 4096);
    uint64_t bytes = 1;
    fill(w, 1);
    watched.place = lmcs_live_place(w->body->record, LMCS_PAGE_BYTES, &bytes);
    lmcs_live_close(w);
    close_pool(pool);
    pool = open_quiet(place->pool);
    w = open_live(pool, "w");
    const float same = ((const float *)lmcs_live_data(w))[1024 + 7];
    struct lmcs_transaction *transaction = begin_with(pool, 0, 0);
    store(transaction, w, 1024 + 7, same);
    watched.written = false;
    OK(lmcs_transaction_commit(transaction, &err));
    EXPECT(watched.written);
    watched.place = 0;
    expect_filled(w, 1);
    lmcs_live_close(w);
    verify_pool(pool);
    close_pool(pool);
}

/* Another thread stores to the shelf during the commit. It must not, but the pool stays sound, whatever follows. */
static void a_store_meanwhile_damages_no_journal(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *w = new_tensor(pool, "w", 1000);
    fill(w, 1);
    struct lmcs_transaction *transaction = begin_with(pool, 0, 0);
    store(transaction, w, 5, -1);
    stored_meanwhile = (float *)lmcs_live_data(w) + 6;
    OK(lmcs_transaction_commit(transaction, &err));
    EXPECT(stored_meanwhile == NULL);
    lmcs_live_close(w);
    close_pool(pool);
    restore_journal(place);
    pool = open_quiet(place->pool);
    w = open_live(pool, "w");
    EXPECT(((const float *)lmcs_live_data(w))[5] == -1);
    lmcs_live_close(w);
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
        ON_BOTH(checkout_keeps_addresses),
        ON_BOTH(what_is_cut_off_reads_as_zeros),
        ON_BOTH(what_was_larger_reaches_nobody),
        ON_DISK(a_journal_that_the_disk_has_otherwise),
        ON_DISK(a_page_that_is_equal_is_written_again),
        ON_DISK(a_store_meanwhile_damages_no_journal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
