/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_failures_live.c - system failures under live variables.
 *
 * As in test_failures.c. A *digest* represents all variables: a failed call leaves the old one, a successful call makes
 * that of a run without failures. A failure after the commit of a transaction refuses all changes until the pool is
 * opened again; then the digest is either. No other call may fail.
 */
/* ctest: timeout=600 labels=no-asan,no-tsan */
#include "live/body.h"
#include "refuse.h"
#include "test_failures_live_calls.h"

#include <pthread.h>

static void begin_again(struct scene *scene)
{
    if (digest_of(scene->pool) != scene->kept)
        OK(lmcs_live_checkout(scene->pool, "run", "1", &err));
    EXPECT(digest_of(scene->pool) == scene->kept);
}

/* Handles a failure that only opening the pool completes; the message says so. */
static bool must_be_opened_again(struct scene *scene)
{
    if (lmcs_live_put(scene->pool, "other", "any", "thing", 5, NULL, 0, &err) == LMCS_OK)
        return false;
    EXPECT(err.status == LMCS_IO && strstr(err.message, "open it again") != NULL);
    (void)lmcs_pool_close(scene->pool, &err);
    scene->pool = open_quiet(scene->place->pool);
    return true;
}

static bool fail_once(struct scene *scene, const struct step *step, enum refusal refusal, long n, bool all,
                      uint64_t changed)
{
    begin_again(scene);
    refuse(refusal, n, all);
    enum lmcs_status status = step->call(scene);
    refuse_no_more();
    bool any = failures > 0;
    if (status != LMCS_OK && !(any && fits(refusal, status) && strlen(err.message) > 10))
        fail_msg("%s, %s %ld%s: %s (%s)", step->name, refusal_names[refusal], n, all ? " and all further" : "",
                 lmcs_status_name(status), err.message);
    bool again = any && must_be_opened_again(scene);
    uint64_t digest = digest_of(scene->pool);
    bool right =
        again ? digest == changed || digest == scene->kept : digest == (status == LMCS_OK ? changed : scene->kept);
    if (!right)
        fail_msg("%s, %s %ld%s: %s, and the variables are neither what they were nor what they should be%s", step->name,
                 refusal_names[refusal], n, all ? " and all further" : "", lmcs_status_name(status),
                 again ? " after the pool was opened again" : "");
    return any;
}

static void fail_step(struct scene *scene, const struct step *step, enum refusal refusal, bool all)
{
    bool every = scaled("LMCS_TEST_EVERY", 0) != 0;
    begin_again(scene);
    OK(step->call(scene));
    uint64_t changed = digest_of(scene->pool);
    long n = 0, rounds = 0;
    for (; fail_once(scene, step, refusal, n, all, changed); n += 1 + (every ? 0 : n / 8))
        EXPECT(++rounds < 20000);
    check_pool(scene->pool);
    if (scaled("LMCS_TEST_VERBOSE", 0) != 0)
        printf("%s, %s%s: %ld calls, %ld refused in turn\n", step->name, refusal_names[refusal],
               all ? " and all further" : "", n, rounds);
}

static void make_variables(struct scene *scene)
{
    scene->pool = open_quiet(scene->place->pool);
    struct lmcs_live *weights = new_tensor(scene->pool, "weights", 30000), *bias = new_tensor(scene->pool, "bias", 100);
    fill(weights, 1);
    fill(bias, 2);
    put_text(scene->pool, "short", "twelve bytes");
    OK(lmcs_live_snapshot(scene->pool, "run", NULL, NULL, &err));
    scene->kept = digest_of(scene->pool);
    fill(weights, 7);
    put_text(scene->pool, "another", "that is made by a checkout");
    lmcs_live_close(weights);
    lmcs_live_close(bias);
    OK(lmcs_live_erase(scene->pool, "run", "bias", &err));
    OK(lmcs_live_snapshot(scene->pool, "run", NULL, NULL, &err));
    close_pool(scene->pool);
}

static void refuse_each(struct place *place, enum refusal first, enum refusal last)
{
    struct scene scene = {.place = place};
    unlink(place->pool);
    make_variables(&scene);
    for (int refusal = (int)first; refusal <= (int)last; refusal++)
        for (size_t i = 0; i < STEPS && refusal != THEIR_MEMORY; i++) {
            long leaked = 1;
            for (int pass = 0; leaked > 0 && pass < 3; pass++) {
                long before = blocks;
                scene.pool = open_quiet(place->pool);
                fail_step(&scene, &steps[i], (enum refusal)refusal, (i + (size_t)refusal) % 2 == 0);
                verify_pool(scene.pool);
                close_pool(scene.pool);
                leaked = blocks - before;
            }
            if (leaked > 0)
                fail_msg("%s, %s: %ld blocks of memory are lost", steps[i].name, refusal_names[refusal], leaked);
        }
}

static void each_call_refused(void **state)
{
    refuse_each(*state, MEMORY, MAPPING);
}

static void writes_refused(void **state)
{
    refuse_each(*state, SPACE_TO, SYNCING);
    refuse_each(*state, MSYNCING, MSYNCING);
}

static void growth_refused(void **state)
{
    struct place *place = *state;
    const uint64_t floats = 3000, more = 80000;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", floats);
    long times = 0;
    fill(live, 1);
    for (long n = 0;; n++) {
        const float *w = lmcs_live_data(live);
        refuse(MAPPING, n, true);
        enum lmcs_status status = lmcs_live_resize(live, 1, &more, &err);
        refuse_no_more();
        if (status == LMCS_OK)
            break;
        times++;
        EXPECT(status == LMCS_NO_MEMORY && lmcs_live_data(live) == w && float_count(live) == floats);
        expect_filled(live, 1);
        fill(live, 1);
        OK(lmcs_live_persist(live, 0, floats * sizeof(float), &err));
    }
    EXPECT(times > 1 && float_count(live) == more);
    lmcs_live_close(live);
    close_pool(pool);
}

static void expect_zeros(struct lmcs_live *live, uint64_t from, uint64_t end)
{
    for (uint64_t i = from; i < end; i++)
        EXPECT(((const float *)lmcs_live_data(live))[i] == 0);
}

static void holes_refused(void **state)
{
    const uint64_t floats = 100000, few = 1000;
    struct place *place = *state;
    for (int i = 0; i < 3; i++) {
        unlink(place->pool);
        struct lmcs_pool *pool = open_quiet(place->pool);
        uint64_t empty = disk_bytes(place->pool);
        struct lmcs_live *live = new_tensor(pool, "w", floats), *other = new_tensor(pool, "v", floats);
        fill(live, 1);
        fill(other, 1);
        refuse(PUNCHING, 0, true);
        OK(lmcs_live_resize(live, 1, &few, &err));
        lmcs_live_close(other);
        OK(lmcs_live_erase(pool, "run", "v", &err));
        EXPECT(failures > 0);
        if (i == 1) {
            lmcs_live_close(live);
            pool = reopen(pool, place);
            OK(lmcs_live_open(pool, "run", "w", &live, &err));
        }
        if (i == 2) {
            EXPECT(disk_bytes(place->pool) > empty + 2 * floats);
            refuse_no_more();
            lmcs_live_close(new_tensor(pool, "t", few));
            OK(lmcs_live_erase(pool, "run", "t", &err));
            EXPECT(disk_bytes(place->pool) < empty + floats);
        }
        OK(lmcs_live_resize(live, 1, &floats, &err));
        other = new_tensor(pool, "u", 2 * floats);
        refuse_no_more();
        expect_zeros(live, few, floats);
        expect_zeros(other, 0, 2 * floats);
        fill(live, 2);
        fill(other, 3);
        lmcs_live_close(new_tensor(pool, "t", few)); /* a retried punch excludes space in use */
        OK(lmcs_live_erase(pool, "run", "t", &err));
        expect_filled(live, 2);
        expect_filled(other, 3);
        lmcs_live_close(live);
        lmcs_live_close(other);
        verify_pool(pool);
        close_pool(pool);
    }
}

static void what_is_not_known_is_said(void **state)
{
    static const struct step asked[] = {
        {"write", call_write}, {"add", call_add}, {"set", call_set}, {"transaction", call_transaction}};
    struct scene scene = {.place = *state};
    make_variables(&scene);
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++)
        for (int sync = 0; sync < 2; sync++)
            for (long n = 0;; n++) {
                scene.pool = open_quiet(scene.place->pool);
                begin_again(&scene);
                OK(asked[i].call(&scene));
                begin_again(&scene);
                refuse(sync == 0 ? SYNCING : MSYNCING, n, false);
                enum lmcs_status status = asked[i].call(&scene);
                refuse_no_more();
                bool broken = scene.pool->live->is_broken;
                (void)lmcs_pool_close(scene.pool, NULL);
                if (failures == 0)
                    break;
                if (status != LMCS_OK && broken && strstr(err.message, "when the pool is opened again") == NULL)
                    fail_msg("%s, %ld: %s", asked[i].name, n, err.message);
            }
}

struct holder {
    struct lmcs_live *live;
    atomic_bool stop;
};

static void *read_and_persist(void *argument)
{
    struct holder *holder = argument;
    struct lmcs_error error;
    float number;
    while (!atomic_load(&holder->stop)) {
        OK(lmcs_live_read(holder->live, 0, &number, sizeof number, &error));
        EXPECT(number == 1);
        OK(lmcs_live_persist(holder->live, 0, 4096, &error));
    }
    return NULL;
}

static void growth_refused_while_in_use(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct holder holder = {.live = new_tensor(pool, "w", 1024)};
    pthread_t thread;
    fill(holder.live, 1);
    EXPECT(pthread_create(&thread, NULL, read_and_persist, &holder) == 0);
    for (int k = 0; k < 2000; k++) {
        refuse(PUBLISHING, 0, true);
        FAILS(LMCS_NO_MEMORY, lmcs_live_resize(holder.live, 1, &(uint64_t){4096}, &err));
        refuse_no_more();
    }
    atomic_store(&holder.stop, true);
    pthread_join(thread, NULL);
    fill(holder.live, 1);
    lmcs_live_close(holder.live);
    close_pool(pool);
}

enum ending { COMMITTED, ABORTED, CHECKED_OUT, ENDINGS };

static void end_unmapped(struct place *place, enum ending ending)
{
    const uint64_t floats = 3000;
    unlink(place->pool);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", floats);
    struct lmcs_transaction *transaction = NULL;
    float *w = lmcs_live_data(live);
    fill(live, 1);
    OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
    if (ending == CHECKED_OUT)
        fill(live, 9);
    else
        OK(lmcs_transaction_begin(pool, "run", NULL, 0, NULL, &transaction, &err));
    for (uint64_t i = 0; ending != CHECKED_OUT && i < floats; i++)
        w[i] = 5 + (float)i;
    long n = 0;
    enum lmcs_status status = LMCS_OK;
    if (ending == ABORTED) {
        refuse(MAPPING, 0, true);
        lmcs_transaction_abort(transaction);
        refuse_no_more();
        EXPECT(failures > 0);
        for (uint64_t i = 0; i < floats; i++)
            EXPECT(w[i] == 1 + (float)i);
    }
    if (ending == COMMITTED) {
        refuse(MAPPING, 0, true);
        OK(lmcs_transaction_commit(transaction, &err));
        refuse_no_more();
        EXPECT(failures > 0);
    }
    for (; ending == CHECKED_OUT; n++) {
        refuse(MAPPING, n, true);
        status = lmcs_live_checkout(pool, "run", "1", &err);
        refuse_no_more();
        if (status == LMCS_OK)
            break;
        expect_filled(live, 9);
    }
    if (failures > 0) {
        w[0] = -7;
        FAILS(LMCS_IO, lmcs_live_persist(live, 0, 4, &err));
        FAILS(LMCS_IO, lmcs_live_write(live, 0, &(float){3}, 4, &err));
        EXPECT(strstr(err.message, "open it again") != NULL);
    }
    lmcs_live_close(live);
    pool = reopen(pool, place);
    verify_pool(pool);
    OK(lmcs_live_open(pool, "run", "w", &live, &err));
    expect_filled(live, ending == COMMITTED ? 5 : 1);
    fill(live, 2);
    lmcs_live_close(live);
    close_pool(pool);
}

static void ends_unmapped(void **state)
{
    for (enum ending ending = COMMITTED; ending < ENDINGS; ending++)
        end_unmapped(*state, ending);
}

/* Unpersisted bytes are in the page cache only. A call that finds equal bytes writes nothing, but still syncs them
 * before it acknowledges durability. */
static void what_is_there_already_is_synced(void **state)
{
    struct place *place = *state;
    struct lmcs_transaction *transaction;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 1024);
    float *w = lmcs_live_data(live);
    fill(live, 1);
    OK(lmcs_live_snapshot(pool, "run", NULL, NULL, &err));
    fill(live, 9);
    fill(live, 1);
    refuse(SYNCING, 1000, false);
    OK(lmcs_live_checkout(pool, "run", "1", &err));
    EXPECT(1000 - calls_left > 0);
    w[0] = 42;
    OK(lmcs_transaction_begin(pool, "run", NULL, 0, NULL, &transaction, &err));
    w[0] = 43;
    w[0] = 42;
    refuse(SYNCING, 1000, false);
    OK(lmcs_live_persist(live, 0, 4096, &err));
    EXPECT(1000 - calls_left > 0);
    refuse(SYNCING, 1000, false);
    OK(lmcs_transaction_commit(transaction, &err));
    EXPECT(1000 - calls_left > 0);
    w[0] = 2;
    refuse(MSYNCING, 0, false);
    FAILS(LMCS_IO, lmcs_live_persist(live, 0, 4, &err));
    refuse_no_more();
    FAILS(LMCS_IO, lmcs_transaction_begin(pool, "run", NULL, 0, NULL, &transaction, &err));
    FAILS(LMCS_IO, lmcs_live_checkout(pool, "run", "1", &err));
    lmcs_live_close(live);
    close_pool(pool);
}

static void aborts_of_what_is_committed(void **state)
{
    struct place *place = *state;
    bool met = false;
    for (long n = 0; n < 100; n++) {
        struct lmcs_transaction *transaction;
        struct lmcs_live *old, *new;
        unlink(place->pool);
        struct lmcs_pool *pool = open_quiet(place->pool);
        old = new_tensor(pool, "old", 1024);
        fill(old, 1);
        OK(lmcs_transaction_begin(pool, "run", NULL, 0, NULL, &transaction, &err));
        fill(old, 5);
        new = new_tensor(pool, "new", 100000);
        fill(new, 3);
        refuse(WRITING, n, false);
        enum lmcs_status status = lmcs_transaction_commit(transaction, &err);
        refuse_no_more();
        bool committed = status != LMCS_OK && strstr(err.message, "the transaction is committed") != NULL;
        if (status != LMCS_OK)
            lmcs_transaction_abort(transaction);
        lmcs_live_close(new);
        lmcs_live_close(old);
        pool = reopen(pool, place);
        if (committed) {
            OK(lmcs_live_open(pool, "run", "new", &new, &err));
            expect_filled(new, 3);
            lmcs_live_close(new);
        }
        close_pool(pool);
        met |= committed;
        if (failures == 0)
            break;
    }
    EXPECT(met);
}

/* A failed sync may cover another caller's bytes; its own may be present after opening. */
static void what_may_be_durable_is_said(void **state)
{
    struct place *place = *state;
    const float two[2] = {7, 8};
    for (int what = 0; what < 3; what++) {
        struct lmcs_transaction *transaction = NULL;
        unlink(place->pool);
        struct lmcs_pool *pool = open_quiet(place->pool);
        struct lmcs_live *live = new_tensor(pool, "w", 4096);
        fill(live, 1);
        put_text(pool, "t", "text");
        if (what == 2) {
            OK(lmcs_transaction_begin(pool, "run", &live, 1, NULL, &transaction, &err));
            ((float *)lmcs_live_data(live))[0] = 2;
        }
        refuse(SYNCING, what == 0 ? 0 : 1, true); /* the value's; of a journal that of its seal */
        enum lmcs_status status = what == 0   ? lmcs_live_put(pool, "run", "t", "next", 4, "str", 3, &err)
                                  : what == 1 ? lmcs_live_write(live, 4092, two, sizeof two, &err)
                                              : lmcs_transaction_commit(transaction, &err);
        refuse_no_more();
        FAILS(LMCS_IO, status);
        EXPECT(strstr(err.message, "known when the pool is opened again") != NULL);
        if (transaction != NULL)
            lmcs_transaction_abort(transaction);
        lmcs_live_close(live);
        close_pool(pool);
    }
}

static struct {
    struct lmcs_live *live;
    const void *data;
    uint64_t offset;
    uint64_t bytes;
    enum lmcs_status status;
    struct lmcs_error error;
    pthread_t thread;
    bool runs;
} other;

static void *write_there(void *argument)
{
    (void)argument;
    other.status = other.data != NULL ? lmcs_live_write(other.live, other.offset, other.data, other.bytes, &other.error)
                                      : lmcs_live_persist(other.live, other.offset, other.bytes, &other.error);
    return NULL;
}

static void start_other(void)
{
    other.runs = pthread_create(&other.thread, NULL, write_there, NULL) == 0;
    usleep(50000);
}

static void use_while_unshared(struct place *place, const void *data)
{
    unlink(place->pool);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_live *live = new_tensor(pool, "w", 3000);
    struct lmcs_transaction *transaction;
    fill(live, 1);
    other.live = live;
    other.data = data;
    other.offset = 0;
    other.bytes = sizeof(float);
    for (int i = 0; i < 2; i++) { /* the first makes the journal, which maps as well */
        OK(lmcs_transaction_begin(pool, "run", NULL, 0, NULL, &transaction, &err));
        ((float *)lmcs_live_data(live))[1] = 4 + (float)i;
        on_failure = start_other;
        refuse(i == 0 ? NOTHING : MAPPING, 0, false);
        OK(lmcs_transaction_commit(transaction, &err));
        refuse_no_more();
    }
    EXPECT(failures == 1 && other.runs);
    pthread_join(other.thread, NULL);
    EXPECT(other.status == LMCS_IO && strstr(other.error.message, "open it again") != NULL);
    lmcs_live_close(live);
    pool = reopen(pool, place);
    OK(lmcs_live_open(pool, "run", "w", &live, &err));
    const float *w = lmcs_live_data(live);
    EXPECT(w[0] == 1 && w[1] == 5);
    lmcs_live_close(live);
    close_pool(pool);
}

static void word_while_unshared(void **state)
{
    use_while_unshared(*state, &(float){3});
    use_while_unshared(*state, NULL);
}

static void journal_while_pending(void **state)
{
    struct place *place = *state;
    static unsigned char ours[9000], theirs[9000], before[9000], got[9000];
    long times = 0;
    memset(ours, 'o', sizeof ours);
    memset(theirs, 't', sizeof theirs);
    for (long n = 0;; n++) {
        unlink(place->pool);
        struct lmcs_pool *pool = open_quiet(place->pool);
        struct lmcs_live *live = new_tensor(pool, "w", 10000);
        fill(live, 1);
        OK(lmcs_live_persist(live, 0, 10000 * sizeof(float), &err));
        OK(lmcs_live_read(live, 100, before, sizeof before, &err));
        other.live = live;
        other.data = theirs;
        other.offset = 20000;
        other.bytes = sizeof theirs;
        on_failure = start_other;
        refuse(WRITING, n, false);
        enum lmcs_status status = lmcs_live_write(live, 100, ours, sizeof ours, &err);
        refuse_no_more();
        bool failed = failures > 0;
        on_failure = NULL;
        bool there = status == LMCS_OK || strstr(err.message, "the write is durable") != NULL;
        if (failed) {
            EXPECT(other.runs);
            pthread_join(other.thread, NULL);
        }
        lmcs_live_close(live);
        (void)lmcs_pool_close(pool, &err);
        if (!failed)
            break;
        times += status != LMCS_OK && there;
        pool = open_quiet(place->pool);
        OK(lmcs_live_open(pool, "run", "w", &live, &err));
        OK(lmcs_live_read(live, 100, got, sizeof got, &err));
        EXPECT(memcmp(got, there ? ours : before, sizeof got) == 0);
        OK(lmcs_live_read(live, 20000, got, sizeof got, &err));
        EXPECT((memcmp(got, theirs, sizeof got) == 0) == (other.status == LMCS_OK));
        lmcs_live_close(live);
        close_pool(pool);
    }
    EXPECT(times > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {IN_MEMORY(each_call_refused),
                                       ON_DISK(writes_refused),
                                       ON_BOTH(growth_refused),
                                       ON_BOTH(growth_refused_while_in_use),
                                       ON_BOTH(ends_unmapped),
                                       ON_DISK(what_is_there_already_is_synced),
                                       ON_DISK(aborts_of_what_is_committed),
                                       ON_DISK(what_may_be_durable_is_said),
                                       ON_BOTH(word_while_unshared),
                                       ON_DISK(journal_while_pending),
                                       ON_BOTH(holes_refused),
                                       ON_DISK(what_is_not_known_is_said)};
    return cmocka_run_group_tests_name("failures of live variables", tests, NULL, NULL);
}
