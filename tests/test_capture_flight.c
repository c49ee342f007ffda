/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_capture_flight.c - several asynchronous captures of a shelf in flight: order, bound, failures, pruning, close.
 *
 * A gate in the hook that follows a commit stops the committer: the first snapshot is durable but still in flight, and
 * the next ones are queued.
 */
/* ctest: timeout=600 */
#include "capture/state.h"
#include "shelves/shelves.h"
#include "test_capture_support.h"

#define FLOATS 100u
#define NOISE  (3u << 20)
#define MOST   LMCS_MOST_IN_FLIGHT

static struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned arrived; /* commits */
    unsigned open;    /* those that may go on: the first ones, and ... */
    unsigned stops;   /* ... all but the first ones that arrive */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void at_gate(struct lmcs_pool *pool)
{
    (void)pool;
    pthread_mutex_lock(&gate.lock);
    unsigned mine = ++gate.arrived;
    pthread_cond_broadcast(&gate.changed);
    while (mine > gate.open && mine <= gate.stops)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

/* Stops the next `stops` commits, each until open_gate counts it. */
static void close_gate(struct lmcs_pool *pool, unsigned stops)
{
    gate.arrived = gate.open = 0;
    gate.stops = stops;
    pool->wake = at_gate;
}

static void open_gate(unsigned open)
{
    pthread_mutex_lock(&gate.lock);
    gate.open = open;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

static void wait_at_gate(unsigned arrived)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.arrived < arrived)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

/* State `i`: "same" never changes, "new" always does, "once" is new at 3 and old again at 4, "late" changes at 3. */
static struct state *state_number(unsigned i)
{
    static const uint64_t shape[] = {FLOATS};
    static const char *const names[] = {"same", "new", "once", "late"};
    const unsigned values[] = {7, i, i == 3 ? 9 : 8, i >= 3};
    struct state *state = calloc(1, sizeof *state);
    for (size_t t = 0; t < 4; t++) {
        float *data = (float *)state_add(state, names[t], LMC_F32, 1, shape)->data;
        for (size_t f = 0; f < FLOATS; f++)
            data[f] = (float)(values[t] * 1000 + f);
    }
    return state;
}

static struct lmcs_capture *fly(struct lmcs_pool *pool, const char *shelf, unsigned i, uint64_t *number)
{
    struct state *state = state_number(i);
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.asynchronous = true;
    options.step = i;
    struct lmcs_capture *capture = begin(pool, shelf);
    put_state(capture, state);
    OK(lmcs_capture_commit(capture, &options, number, &err));
    state_free(state);
    return capture;
}

/* Makes the queued capture fail at its turn: as if the group of "other" had a snapshot there already. */
static void sabotage(struct lmcs_capture *capture)
{
    capture->options.prepare = true;
    memcpy(capture->options.group, "a group with it!", 16);
}

static void prepare_group(struct lmcs_pool *pool)
{
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.prepare = true;
    memcpy(options.group, "a group with it!", 16);
    OK(lmcs_capture_commit(begin(pool, "other"), &options, NULL, &err));
}

static void expect_number(struct lmcs_pool *pool, unsigned number, uint64_t parent)
{
    struct lmcs_snapshot *snapshot;
    struct state *state = state_number(number);
    char which[16];
    expect_snapshot(pool, "run", number, state);
    snprintf(which, sizeof which, "%u", number);
    OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
    assert_int_equal(lmcs_snapshot_info(snapshot)->step, number);
    assert_int_equal(lmcs_snapshot_info(snapshot)->parent, parent);
    lmcs_snapshot_close(snapshot);
    state_free(state);
}

static size_t count_tickets(const struct lmcs_busy_shelf *busy)
{
    size_t count = 0;
    for (const struct lmcs_ticket *ticket = busy->tickets; ticket != NULL; ticket = ticket->next)
        count++;
    return count;
}

/* Waits until a thread has the shelf "run", and returns how many captures are in flight then. */
static size_t wait_until_held(struct lmcs_pool *pool)
{
    for (;; usleep(100)) {
        pthread_mutex_lock(&pool->captures);
        const struct lmcs_busy_shelf *busy = lmcs_busy_find(pool, "run", NULL);
        size_t count = count_tickets(busy);
        bool held = busy->busy;
        pthread_mutex_unlock(&pool->captures);
        if (held)
            return count;
    }
}

static void *begin_and_abort(void *pool)
{
    lmcs_capture_abort(begin(pool, "run"));
    return NULL;
}

static void expect_the_next_waits(struct lmcs_pool *pool, size_t in_flight)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, begin_and_abort, pool), 0);
    assert_int_equal(wait_until_held(pool), in_flight);
    open_gate(MOST);
    pthread_join(thread, NULL);
}

static void in_order_up_to_a_bound(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *captures[MOST];
    uint64_t number;
    close_gate(pool, MOST);
    for (unsigned i = 0; i < MOST; i++) {
        captures[i] = fly(pool, "run", i + 1, &number);
        assert_int_equal(number, i + 1);
        if (i == 0)
            wait_at_gate(1);
    }
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 1);
    open_gate(3);
    wait_at_gate(4);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 4);
    assert_int_equal(shelf_info(pool, "run").latest, 4);
    for (unsigned i = 0; i < 3; i++)
        OK(lmcs_capture_wait(captures[i], &err));
    for (unsigned i = 3; i < MOST; i++)
        assert_false(lmcs_capture_done(captures[i]));
    for (unsigned i = MOST; i < MOST + 3; i++)
        lmcs_capture_detach(fly(pool, "run", i + 1, NULL));
    expect_the_next_waits(pool, MOST);
    for (unsigned i = 3; i < MOST; i++)
        OK(lmcs_capture_wait(captures[i], &err));
    close_pool(pool);
    pool = open_quiet(place->pool);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, MOST + 3);
    for (unsigned i = 1; i <= MOST + 3; i++)
        expect_number(pool, i, i - 1);
    for (unsigned i = 2; i <= MOST + 3; i++)
        assert_int_equal(content_of(pool, "run", i, "same"), content_of(pool, "run", 1, "same"));
    for (unsigned i = 4; i <= MOST + 3; i++) /* equal to the predecessor's, which was not committed at the put */
        assert_int_equal(content_of(pool, "run", i, "late"), content_of(pool, "run", 3, "late"));
    assert_int_equal(content_of(pool, "run", 2, "once"), content_of(pool, "run", 1, "once"));
    verify_pool(pool);
    close_pool(pool);
}

static void a_large_one_is_alone(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *large = state_of_noise(1, LMCS_MOST_BYTES_IN_FLIGHT);
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.asynchronous = true;
    close_gate(pool, MOST);
    struct lmcs_capture *capture = begin(pool, "run");
    put_state(capture, large);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    expect_the_next_waits(pool, 1);
    OK(lmcs_capture_wait(capture, &err));
    expect_snapshot(pool, "run", 1, large);
    close_pool(pool);
    state_free(large);
}

static void a_failure_is_of_one(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *captures[6];
    prepare_group(pool);
    close_gate(pool, 1);
    for (unsigned i = 1; i < 6; i++) {
        captures[i] = fly(pool, "run", i, NULL);
        if (i == 1)
            wait_at_gate(1);
    }
    sabotage(captures[3]);
    open_gate(1);
    for (unsigned i = 5; i > 0; i--)
        if (i == 3)
            FAILS(LMCS_EXISTS, lmcs_capture_wait(captures[i], &err));
        else
            OK(lmcs_capture_wait(captures[i], &err));
    lmcs_capture_abort(begin(pool, "run"));
    check_pool(pool);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 4);
    for (unsigned i = 1; i < 6; i++)
        if (i != 3)
            expect_number(pool, i, i == 4 ? 2 : i - 1);
    assert_int_equal(content_of(pool, "run", 5, "late"), content_of(pool, "run", 4, "late"));
    uint64_t number;
    OK(lmcs_capture_wait(fly(pool, "run", 6, &number), &err));
    assert_int_equal(number, 6);
    expect_number(pool, 6, 5);
    verify_pool(pool);
    close_pool(pool);
}

/* The next capture, or close, reports the first failure that no wait has reported, and the number of all. */
static void failures_are_reported_once(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *captures[5], *refused;
    prepare_group(pool);
    for (unsigned round = 0; round < 3; round++) {
        close_gate(pool, 1);
        for (unsigned i = 0; i < 5; i++) {
            captures[i] = fly(pool, "run", 1, NULL);
            if (i == 0)
                wait_at_gate(1);
            else
                sabotage(captures[i]);
        }
        open_gate(1);
        OK(lmcs_capture_wait(captures[0], &err));
        FAILS(LMCS_EXISTS, lmcs_capture_wait(captures[3], &err));
        if (round == 1)
            FAILS(LMCS_EXISTS, lmcs_capture_wait(captures[1], &err));
        for (unsigned i = 1; i < 5; i++)
            while (i != 3 && (round != 1 || i != 1) && !lmcs_capture_done(captures[i]))
                usleep(100);
        if (round == 2)
            break;
        FAILS(LMCS_EXISTS, lmcs_capture_begin(pool, "run", &refused, &err));
        assert_non_null(strstr(err.message, round == 0 ? "3 snapshots before" : "2 snapshots before"));
        if (round == 0)
            FAILS(LMCS_EXISTS, lmcs_capture_wait(captures[1], &err));
        FAILS(LMCS_EXISTS, lmcs_capture_wait(captures[2], &err));
        lmcs_capture_detach(captures[4]);
    }
    for (unsigned i = 1; i < 5; i++)
        if (i != 3)
            lmcs_capture_detach(captures[i]);
    FAILS(LMCS_EXISTS, lmcs_pool_close(pool, &err));
}

/* Number 4 shares "once" with 2, which only the capture in flight keeps. */
static void pruning_keeps_the_base(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *captures[5];
    uint64_t removed = 0;
    OK(lmcs_capture_wait(fly(pool, "run", 1, NULL), &err));
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:1", &err));
    close_gate(pool, 2);
    for (unsigned i = 2; i < 5; i++) {
        captures[i] = fly(pool, "run", i, NULL);
        if (i == 2)
            wait_at_gate(1);
    }
    open_gate(1);
    wait_at_gate(2);
    assert_int_equal(shelf_info(pool, "run").latest, 3);
    OK(lmcs_prune_pool(pool, LMCS_PRUNE_ALL, NULL, &removed, &err));
    assert_int_equal(removed, 1);
    open_gate(2);
    for (unsigned i = 2; i < 5; i++)
        OK(lmcs_capture_wait(captures[i], &err));
    assert_int_equal(content_of(pool, "run", 4, "once"), content_of(pool, "run", 2, "once"));
    OK(lmcs_prune_pool(pool, LMCS_PRUNE_ALL, NULL, &removed, &err));
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 1);
    expect_number(pool, 4, 3);
    verify_pool(pool);
    close_pool(pool);
}

static void *remove_the_first(void *pool)
{
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    return NULL;
}

/* Removal waits for those in flight; a capture of another shelf does not. A synchronous one comes last. */
static void others_wait_or_do_not(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    pthread_t thread;
    uint64_t number;
    close_gate(pool, 1);
    lmcs_capture_detach(fly(pool, "run", 1, NULL));
    wait_at_gate(1);
    lmcs_capture_detach(fly(pool, "run", 2, NULL));
    OK(lmcs_capture_wait(fly(pool, "another", 1, NULL), &err));
    assert_int_equal(commit(begin(pool, "another")), 2);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 1);
    assert_int_equal(pthread_create(&thread, NULL, remove_the_first, pool), 0);
    assert_int_equal(wait_until_held(pool), 2);
    open_gate(1);
    pthread_join(thread, NULL);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 1);
    close_gate(pool, 0);
    for (unsigned i = 3; i < 9; i++)
        lmcs_capture_detach(fly(pool, "run", i, NULL));
    number = commit(begin(pool, "run"));
    assert_int_equal(number, 9);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 8);
    expect_number(pool, 8, 7);
    verify_pool(pool);
    close_pool(pool);
}

/* A snapshot loaded after a call of commit is the parent of later captures only. */
static void loaded_in_between(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_snapshot *snapshot;
    OK(lmcs_capture_wait(fly(pool, "run", 1, NULL), &err));
    close_gate(pool, 1);
    lmcs_capture_detach(fly(pool, "run", 2, NULL));
    wait_at_gate(1);
    lmcs_capture_detach(fly(pool, "run", 3, NULL));
    OK(lmcs_snapshot_find(pool, "run", "1", &snapshot, &err));
    lmcs_snapshot_mark_loaded(snapshot);
    lmcs_snapshot_close(snapshot);
    lmcs_capture_detach(fly(pool, "run", 4, NULL));
    struct lmcs_capture *last = fly(pool, "run", 5, NULL);
    open_gate(1);
    OK(lmcs_capture_wait(last, &err));
    expect_number(pool, 3, 2);
    expect_number(pool, 4, 1);
    expect_number(pool, 5, 4);
    close_pool(pool);
}

static void *open_it(void *argument)
{
    (void)argument;
    open_gate(MOST);
    return NULL;
}

static void close_commits_all(void **state)
{
    struct place *place = *state;
    for (unsigned round = 1; round <= 5; round++) {
        struct lmcs_pool *pool = open_quiet(place->pool);
        pthread_t thread;
        close_gate(pool, MOST);
        for (unsigned i = 1; i <= MOST; i++)
            lmcs_capture_detach(fly(pool, "run", i, NULL));
        assert_int_equal(pthread_create(&thread, NULL, open_it, NULL), 0);
        OK(lmcs_pool_close(pool, &err));
        pthread_join(thread, NULL);
        pool = open_quiet(place->pool);
        assert_int_equal(shelf_info(pool, "run").snapshot_count, round * MOST);
        close_pool(pool);
    }
}

static void *read_prefixes(void *argument)
{
    struct lmcs_pool *pool = argument;
    struct lmcs_shelf_info info = {.latest = 0};
    for (uint64_t last = 0; last < 300; last = info.latest) {
        info = shelf_info(pool, "run");
        EXPECT(info.latest >= last && info.latest == info.snapshot_count);
    }
    return NULL;
}

static void a_reader_sees_a_prefix(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    pthread_t thread;
    OK(lmcs_capture_wait(fly(pool, "run", 1, NULL), &err));
    assert_int_equal(pthread_create(&thread, NULL, read_prefixes, pool), 0);
    for (unsigned i = 2; i <= 300; i++)
        lmcs_capture_detach(fly(pool, "run", i, NULL));
    pthread_join(thread, NULL);
    expect_number(pool, 300, 299);
    verify_pool(pool);
    close_pool(pool);
}

static void *open_it_later(void *argument)
{
    usleep(100000); /* while the put waits; but any moment is right */
    return open_it(argument);
}

static struct lmcs_capture *fly_noise(struct lmcs_pool *pool, unsigned i)
{
    struct state *noise = state_of_noise(i, NOISE);
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.asynchronous = true;
    struct lmcs_capture *capture = begin(pool, "run");
    put_state(capture, noise);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    state_free(noise);
    return capture;
}

/* The put waits for those in flight. Pruning then removes also its base, with which it shares nothing. */
static void a_full_pool(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_limited(place->pool, (uint64_t)10 << 20);
    struct lmcs_capture *captures[3];
    pthread_t thread;
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:1", &err));
    close_gate(pool, 1);
    captures[0] = fly_noise(pool, 1);
    wait_at_gate(1);
    captures[1] = fly_noise(pool, 2);
    assert_int_equal(pthread_create(&thread, NULL, open_it_later, NULL), 0);
    captures[2] = fly_noise(pool, 3);
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < 3; i++)
        OK(lmcs_capture_wait(captures[i], &err));
    struct state *last = state_of_noise(3, NOISE);
    expect_snapshot(pool, "run", 3, last);
    verify_pool(pool);
    close_pool(pool);
    state_free(last);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(in_order_up_to_a_bound),   IN_MEMORY(a_large_one_is_alone),
        ON_BOTH(a_failure_is_of_one),      IN_MEMORY(failures_are_reported_once),
        IN_MEMORY(pruning_keeps_the_base), ON_BOTH(others_wait_or_do_not),
        IN_MEMORY(loaded_in_between),      ON_BOTH(close_commits_all),
        ON_BOTH(a_reader_sees_a_prefix),   IN_MEMORY(a_full_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
