/* SPDX-License-Identifier: BSD-3-Clause */
/* test_view_lifetime.c - views that outlive pool, snapshot and processes, and the space that they hold. */
/* ctest: timeout=600 */
#include "test_view_support.h"

static void outlives_pool_and_snapshot(void **state)
{
    struct place *place = *state;
    struct rng rng = {9};
    struct state *states[5];
    struct lmcs_view *views[FLAG_SETS][5];
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 40, 4000);
    for (int i = 0; i < 5; i++) {
        states[i] = state_copy(now);
        take_snapshot(pool, "run", now, i);
        state_step(now, &rng, 0, 30);
    }
    OK(lmcs_compact(pool, NULL, &err));
    for (size_t f = 0; f < FLAG_SETS; f++) {
        if (f == FLAG_SETS / 2) {
            close_pool(pool);
            pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        }
        for (uint64_t n = 1; n <= 5; n++)
            views[f][n - 1] = view_of(pool, n, all_flags[f]);
    }
    close_pool(pool);
    pool = open_quiet(place->pool);
    for (uint64_t n = 1; n <= 5; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    write_over(pool, &rng, 50, 20000, 20);
    close_pool(pool);
    pool = open_quiet(place->pool);
    write_over(pool, &rng, 7, 150000, 20);
    for (size_t f = 0; f < FLAG_SETS; f++)
        for (int i = 0; i < 5; i++)
            expect_view(views[f][i], states[i]);
    close_pool(pool);
    for (size_t f = 0; f < FLAG_SETS; f++)
        for (int i = 0; i < 5; i++) {
            expect_view(views[f][i], states[i]);
            lmcs_view_close(views[f][i]);
        }
    pool = open_quiet(place->pool);
    verify_pool(pool);
    close_pool(pool);
    for (int i = 0; i < 5; i++)
        state_free(states[i]);
    state_free(now);
}

static int close_inherited_view(void *argument)
{
    lmcs_view_close(argument);
    return 0;
}

static void child_can_not_let_go_of_its_parents(void **state)
{
    struct place *place = *state;
    struct rng rng = {10};
    const uint64_t sizes[] = {300, 70000, 800000, 5000};
    struct state *now = state_of_sizes(&rng, sizes, 4);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", now, 0);
    for (uint32_t flags = 0; flags < 2; flags++) {
        struct lmcs_view *view = view_of(pool, 1 + flags, flags);
        expect_child(start_child(close_inherited_view, view));
        OK(lmcs_snapshot_remove(pool, "run", 1 + flags, false, NULL, &err));
        write_over(pool, &rng, 4, 300000, 8);
        expect_view(view, now);
        lmcs_view_close(view);
        if (flags == 0)
            take_snapshot(pool, "run", now, 1);
    }
    close_pool(pool);
    state_free(now);
}

struct watcher {
    const char *path;
    struct state **states;
    uint64_t first, last;
    int to_child[2], to_parent[2];
};

enum { COMPARE = 'c', END = 'e' };

static void say(int fd, char what)
{
    EXPECT(write(fd, &what, 1) == 1);
}

static void hear(int fd)
{
    char byte;
    EXPECT(read(fd, &byte, 1) == 1);
}

/* Opens the pool, views snapshots, and compares on each request until the end. */
static int watch(void *argument)
{
    struct watcher *watcher = argument;
    struct lmcs_view *views[64];
    struct lmcs_pool *pool = open_pool(watcher->path, LMCS_OPEN_READ, 0);
    size_t count = 0;
    for (uint64_t n = watcher->first; n <= watcher->last; n++)
        views[count++] = view_of(pool, n, all_flags[n % FLAG_SETS]);
    close(watcher->to_child[1]);
    say(watcher->to_parent[1], COMPARE);
    bool closed = false;
    char order;
    while (read(watcher->to_child[0], &order, 1) == 1 && order == COMPARE) {
        for (size_t i = 0; i < count; i++)
            expect_view(views[i], watcher->states[watcher->first - 1 + i]);
        if (!closed)
            close_pool(pool);
        closed = true;
        say(watcher->to_parent[1], COMPARE);
    }
    for (size_t i = 0; i < count; i++) {
        expect_view(views[i], watcher->states[watcher->first - 1 + i]);
        lmcs_view_close(views[i]);
    }
    return 0;
}

static pid_t start_watcher(struct watcher *watcher)
{
    assert_true(pipe2(watcher->to_child, O_CLOEXEC) == 0 && pipe2(watcher->to_parent, O_CLOEXEC) == 0);
    pid_t child = start_child(watch, watcher);
    close(watcher->to_child[0]);
    close(watcher->to_parent[1]);
    hear(watcher->to_parent[0]);
    return child;
}

static void end_watcher(struct watcher *watcher, pid_t child)
{
    say(watcher->to_child[1], END);
    close(watcher->to_child[1]);
    expect_child(child);
    close(watcher->to_parent[0]);
}

/* Another process views old snapshots while the writer removes, compacts and overwrites. */
static void watched_by_another_process(void **state)
{
    enum { SNAPSHOTS = 14 };
    struct place *place = *state;
    struct rng rng = {11};
    struct state *states[SNAPSHOTS];
    uint64_t sizes[40];
    for (size_t i = 0; i < 40; i++)
        sizes[i] = i < 6 ? 65536 * i + 65472 + i % 2 : i < 8 ? 1500000 : rng_below(&rng, 9000);
    struct state *now = state_of_sizes(&rng, sizes, 40);
    struct lmcs_pool *pool = open_limited(place->pool, 160 << 20);
    for (int i = 0; i < SNAPSHOTS; i++) {
        states[i] = state_copy(now);
        take_snapshot(pool, "run", now, i);
        for (size_t t = 0; t < now->count; t++)
            if (t % 3 != 0)
                rng_fill(&rng, now->tensors[t].data, now->tensors[t].bytes / (1 + t % 5 * 20));
    }
    close_pool(pool);
    struct watcher watchers[2] = {{.path = place->pool, .states = states, .first = 1, .last = SNAPSHOTS - 4},
                                  {.path = place->pool, .states = states, .first = 5, .last = SNAPSHOTS}};
    pid_t children[2] = {start_watcher(&watchers[0]), start_watcher(&watchers[1])};
    pool = open_limited(place->pool, 0);
    for (int round = 0; round < 4; round++) {
        if (round == 0)
            OK(lmcs_compact(pool, NULL, &err));
        for (uint64_t n = 1; round == 1 && n <= SNAPSHOTS; n++)
            OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        write_over(pool, &rng, 30, 100000, 10);
        write_over(pool, &rng, 200, 3000, 4);
        check_pool(pool);
        for (int i = 0; i < 2; i++) {
            if (children[i] == 0)
                continue;
            say(watchers[i].to_child[1], COMPARE);
            hear(watchers[i].to_parent[0]);
        }
        if (round == 2) {
            end_watcher(&watchers[0], children[0]);
            children[0] = 0;
        }
    }
    end_watcher(&watchers[1], children[1]);
    struct state *last = state_weights(&rng, 4, 1 << 20);
    take_snapshot(pool, "last", last, 0);
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(disk_bytes(place->pool) < (uint64_t)48 << 20);
    verify_pool(pool);
    close_pool(pool);
    for (int i = 0; i < SNAPSHOTS; i++)
        state_free(states[i]);
    state_free(now);
    state_free(last);
}

/* A dead process's viewed space is free. */
static int view_and_die(void *argument)
{
    struct watcher *watcher = argument;
    struct lmcs_pool *pool = open_pool(watcher->path, LMCS_OPEN_READ, 0);
    view_of(pool, 1, 0);
    close(watcher->to_child[1]);
    say(watcher->to_parent[1], COMPARE);
    hear(watcher->to_child[0]);
    return 0;
}

static void killed_readers_hold_nothing(void **state)
{
    struct place *place = *state;
    struct rng rng = {12};
    struct lmcs_pool *pool = open_limited(place->pool, 40 << 20);
    struct state *now = state_weights(&rng, 4, 1500000);
    take_snapshot(pool, "run", now, 0);
    struct watcher watcher = {.path = place->pool};
    assert_true(pipe2(watcher.to_child, O_CLOEXEC) == 0 && pipe2(watcher.to_parent, O_CLOEXEC) == 0);
    pid_t child = start_child(view_and_die, &watcher);
    hear(watcher.to_parent[0]);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    uint64_t number;
    FAILS(LMCS_FULL, try_snapshot(pool, "run", now, 1, &number, &err));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    number = take_snapshot(pool, "run", now, 2);
    expect_snapshot(pool, "run", number, now);
    close_pool(pool);
    for (int i = 0; i < 2; i++) {
        close(watcher.to_child[i]);
        close(watcher.to_parent[i]);
    }
    state_free(now);
}

static const uint64_t edge_sizes[] = {1,     64,    4096,  60000, 65471,  65472, 65473,
                                      65535, 65536, 65537, 69632, 131072, 300001};

#define EDGES (sizeof edge_sizes / sizeof edge_sizes[0])

/* Two overlapping views hold every third tensor; the snapshot is removed and its space overwritten. */
static void held_by_one_of_two_views(void **state)
{
    enum { COUNT = 6 * EDGES };
    struct place *place = *state;
    struct rng rng = {13};
    uint64_t sizes[COUNT];
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < COUNT; i++)
            sizes[i] = edge_sizes[rng_below(&rng, EDGES)];
        struct state *now = state_of_sizes(&rng, sizes, COUNT);
        struct lmcs_pool *pool = open_quiet(place->pool);
        uint64_t number = take_snapshot(pool, "run", now, round);
        const char *names[2][COUNT];
        size_t which[2][COUNT], count[2] = {0, 0};
        for (size_t i = 0; i < COUNT; i++)
            for (size_t v = 0; v < 2; v++)
                for (size_t times = rng_below(&rng, 6) == 0 ? 2 : 1; rng_below(&rng, 3) == 0 && times > 0; times--) {
                    if (count[v] == COUNT)
                        continue;
                    which[v][count[v]] = i;
                    names[v][count[v]++] = now->tensors[i].name;
                }
        struct lmcs_view *views[2];
        for (size_t v = 0; v < 2; v++)
            views[v] = view_named(pool, number, names[v], count[v], v == 0 ? 0 : LMCS_VIEW_PRIVATE);
        OK(lmcs_snapshot_remove(pool, "run", number, false, NULL, &err));
        write_over(pool, &rng, 60, 30000, 8);
        write_over(pool, &rng, 8, 70000, 8);
        for (size_t v = 0; v < 2; v++)
            for (size_t i = 0; i < count[v]; i++)
                expect_item(views[v], i, &now->tensors[which[v][i]]);
        lmcs_view_close(views[round % 2]);
        write_over(pool, &rng, 60, 30000, 8);
        write_over(pool, &rng, 8, 70000, 8);
        const size_t other = 1 - (size_t)(round % 2);
        for (size_t i = 0; i < count[other]; i++)
            expect_item(views[other], i, &now->tensors[which[other][i]]);
        lmcs_view_close(views[other]);
        verify_pool(pool);
        close_pool(pool);
        state_free(now);
    }
}

static bool is_large(uint64_t bytes)
{
    return bytes > 65472;
}

static bool expected_pinned(const struct pinned *pins, size_t count, uint64_t offset, uint64_t bytes)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t a = offset, b = offset + bytes, c = pins[i].offset, d = c + pins[i].bytes;
        if (is_large(pins[i].bytes) != is_large(bytes))
            continue;
        if (!is_large(bytes)) {
            a >>= 20;
            b = ((b - 1) >> 20) + 1;
            c >>= 20;
            d = ((d - 1) >> 20) + 1;
        }
        if (a < d && c < b)
            return true;
    }
    return false;
}

static void leases_against_a_model(void **state)
{
    enum { PLACES = 400, MOST = 300 };
    struct place *place = *state;
    struct rng rng = {14};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_lease *leases[2];
    for (int i = 0; i < 2; i++)
        OK(lmcs_lease_new(pool->media, &leases[i], &err));
    /* Adjacent payloads of an extent: small and odd sizes at multiples of 64, large ones on pages. */
    uint64_t offsets[PLACES], sizes[PLACES], at = (1 << 20) - 5000 * 64;
    for (size_t i = 0; i < PLACES; i++) {
        sizes[i] = edge_sizes[rng_below(&rng, EDGES)];
        at = sizes[i] >= 65536 ? (at + 4095) & ~(uint64_t)4095 : at;
        offsets[i] = at;
        at += sizes[i] >= 65536 ? (sizes[i] + 4095) & ~(uint64_t)4095 : (sizes[i] + 63) & ~(uint64_t)63;
    }
    struct pinned pins[MOST];
    size_t count = 0;
    for (int step = 0; step < 6000; step++) {
        if (count < MOST && rng_below(&rng, (uint64_t)(step / 1000 % 2 == 0 ? 3 : 5)) < 2) {
            size_t i = rng_below(&rng, PLACES);
            pins[count] = (struct pinned){(unsigned)rng_below(&rng, 2), offsets[i], sizes[i]};
            OK(lmcs_lease_pin(leases[pins[count].holder], offsets[i], sizes[i], &err));
            count++;
        } else if (count > 0) {
            size_t i = rng_below(&rng, count);
            lmcs_lease_unpin(leases[pins[i].holder], pins[i].offset, pins[i].bytes);
            pins[i] = pins[--count];
        }
        for (size_t k = step % 100 == 0 ? 0 : PLACES - 4; k < PLACES; k++) {
            size_t i = step % 100 == 0 ? k : rng_below(&rng, PLACES);
            bool expected = expected_pinned(pins, count, offsets[i], sizes[i]);
            assert_int_equal(lmcs_lease_is_pinned(pool->lease, offsets[i], sizes[i]), expected);
            assert_int_equal(lmcs_lease_is_pinned(pool->lease, offsets[i], lmcs_room(sizes[i])), expected);
        }
    }
    OK(lmcs_lease_pin(leases[0], offsets[0], 0, &err));
    lmcs_lease_unpin(leases[0], offsets[0], 0);
    lmcs_lease_release(leases[0]);
    size_t left = 0;
    for (size_t i = 0; i < count; i++)
        if (pins[i].holder == 1)
            pins[left++] = pins[i];
    for (size_t i = 0; i < PLACES; i++)
        assert_int_equal(lmcs_lease_is_pinned(pool->lease, offsets[i], sizes[i]),
                         expected_pinned(pins, left, offsets[i], sizes[i]));
    lmcs_lease_release(leases[1]);
    for (size_t i = 0; i < PLACES; i++)
        assert_false(lmcs_lease_is_pinned(pool->lease, offsets[i], sizes[i]));
    close_pool(pool);
}

static void many_leases(void **state)
{
    enum { MANY = 1500, EPOCHS = 100 };
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_lease *lease;
    OK(lmcs_lease_new(pool->media, &lease, &err));
    for (uint64_t i = 0; i < MANY; i++)
        OK(lmcs_lease_pin(lease, i << 20, 65536, &err));
    for (uint64_t i = 0; i < EPOCHS; i++)
        OK(lmcs_lease_epoch(lease, 1000 + i, &err));
    for (uint64_t i = 0; i < MANY; i += 2) {
        OK(lmcs_lease_pin(lease, i << 20, 65536, &err));
        lmcs_lease_unpin(lease, i << 20, 65536);
        lmcs_lease_unpin(lease, (i + 1) << 20, 65536);
    }
    for (uint64_t i = 0; i < MANY; i++)
        EXPECT(lmcs_lease_is_pinned(pool->lease, i << 20, 65536) == (i % 2 == 0));
    for (uint64_t i = 0; i < EPOCHS; i++) {
        EXPECT(lmcs_lease_safe_epoch(pool->lease, 5000) == 1000 + i);
        lmcs_lease_epoch_end(lease, 1000 + i);
    }
    for (uint64_t i = 0; i < MANY; i += 2) {
        lmcs_lease_unpin(lease, i << 20, 65536);
        EXPECT(!lmcs_lease_is_pinned(pool->lease, i << 20, 65536));
    }
    EXPECT(lmcs_lease_safe_epoch(pool->lease, 5000) == 5000);
    lmcs_lease_release(lease);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(outlives_pool_and_snapshot),
        ON_BOTH(child_can_not_let_go_of_its_parents),
        ON_BOTH(watched_by_another_process),
        ON_BOTH(killed_readers_hold_nothing),
        ON_BOTH(held_by_one_of_two_views),
        ON_BOTH(leases_against_a_model),
        IN_MEMORY(many_leases),
    };
    return cmocka_run_group_tests_name("view lifetime", tests, NULL, NULL);
}
