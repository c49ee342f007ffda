/* SPDX-License-Identifier: BSD-3-Clause */
/* test_children.c - forked children keep views of their parent unchanged until they end. */
/* ctest: timeout=600 labels=no-tsan */
#include "test_children_support.h"

static void a_view_that_its_parent_closes(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *shown = large_state(1);
    struct sight sight = {.shown = NULL};
    struct child child;
    churn(pool);
    uint64_t empty = used_when_compacted(pool);
    take_snapshot(pool, "run", shown, 0);
    see_views(&sight, pool, shown);
    start_looking(&child, &sight);
    close_views(&sight);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    churn(pool);
    expect_right(&child);
    assert_true(used_when_compacted(pool) >= empty + 3 * MIB);
    close_pool(pool);
    pool = open_quiet(place->pool);
    churn(pool);
    expect_right(&child);
    end_child(&child);
    assert_true(used_when_compacted(pool) <= empty + MIB / 2);
    verify_pool(pool);
    close_pool(pool);
    state_free(shown);
}

static void a_view_that_its_parent_keeps(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *shown = large_state(1);
    struct sight sight = {.shown = NULL};
    struct child child;
    take_snapshot(pool, "run", shown, 0);
    see_views(&sight, pool, shown);
    if (!make_child(&child)) {
        close_views(&sight);
        _exit(0);
    }
    end_child(&child);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    churn(pool);
    EXPECT(is_right(&sight));
    uint64_t held = used_when_compacted(pool);
    close_views(&sight);
    assert_true(used_when_compacted(pool) + 3 * MIB <= held);
    close_pool(pool);
    state_free(shown);
}

static void what_is_pinned_after_the_fork(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *shown = large_state(1);
    struct sight sight = {.shown = NULL};
    struct child child;
    take_snapshot(pool, "run", shown, 0);
    see_views(&sight, pool, shown);
    start_looking(&child, &sight);
    close_views(&sight);
    churn(pool);
    uint64_t before = used_when_compacted(pool);
    for (uint64_t i = 0; i < 12; i++) {
        struct state *later = large_state(1000 + i);
        uint64_t number = take_snapshot(pool, "run", later, 0);
        struct lmcs_view *view = view_of(pool, "latest", 0);
        EXPECT(memcmp(lmcs_view_data(view, 3), later->tensors[3].data, later->tensors[3].bytes) == 0);
        OK(lmcs_snapshot_remove(pool, "run", number, false, NULL, &err));
        lmcs_view_close(view);
        state_free(later);
        assert_true(used_when_compacted(pool) <= before + 8 * MIB);
    }
    assert_true(used_when_compacted(pool) <= before + MIB / 2);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    churn(pool);
    expect_right(&child);
    end_child(&child);
    close_pool(pool);
    state_free(shown);
}

static void a_grandchild(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *shown = large_state(1);
    struct child child;
    churn(pool);
    uint64_t empty = used_when_compacted(pool);
    for (int by_reader = 0; by_reader < 2; by_reader++) {
        struct sight sight = {.shown = NULL};
        struct lmcs_live *live = new_tensor(pool, "w", 50000), *seen = live;
        uint64_t number = take_snapshot(pool, "run", shown, 0);
        struct lmcs_pool *looks = by_reader ? open_pool(place->pool, LMCS_OPEN_READ, LMCS_NO_BACKGROUND) : pool;
        fill(live, 3);
        sight.views[0] = view_of(looks, "latest", 0);
        sight.shown = shown;
        if (by_reader)
            OK(lmcs_live_open(looks, "run", "w", &seen, &err));
        sight.lives[0] = lmcs_live_data(seen);
        sight.floats[0] = 50000;
        sight.firsts[0] = 3;
        if (!make_child(&child)) {
            if (fork() == 0) {
                end_in_time();
                look_when_told(&child, &sight);
            }
            _exit(0);
        }
        expect_child(child.pid);
        lmcs_view_close(sight.views[0]);
        if (by_reader) {
            lmcs_live_close(seen);
            close_pool(looks);
        }
        lmcs_live_close(live);
        OK(lmcs_live_erase(pool, "run", "w", &err));
        OK(lmcs_snapshot_remove(pool, "run", number, false, NULL, &err));
        churn(pool);
        churn_live(pool);
        expect_right(&child);
        let_go(&child);
        uint64_t used = UINT64_MAX;
        for (int i = 0; i < 25000 && used > empty + MIB; i++) {
            usleep(10000);
            churn_live(pool);
            used = used_when_compacted(pool);
        }
        assert_true(used <= empty + MIB);
    }
    close_pool(pool);
    state_free(shown);
}

static void another_program(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *shown = large_state(1);
    struct sight sight = {.shown = NULL};
    struct child child;
    churn(pool);
    churn_live(pool);
    uint64_t empty = used_when_compacted(pool);
    take_snapshot(pool, "run", shown, 0);
    see_views(&sight, pool, shown);
    struct lmcs_live *live = new_tensor(pool, "w", 300000);
    if (!make_child(&child)) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execlp("sleep", "sleep", "200", (char *)NULL);
        _exit(1);
    }
    EXPECT(wait_byte(child.answers) == '\0');
    close_views(&sight);
    lmcs_live_close(live);
    OK(lmcs_live_erase(pool, "run", "w", &err));
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    assert_true(used_when_compacted(pool) <= empty + MIB / 2);
    EXPECT(kill(child.pid, 0) == 0);
    EXPECT(kill(child.pid, SIGKILL) == 0 && waitpid(child.pid, NULL, 0) == child.pid);
    let_go(&child);
    close_pool(pool);
    state_free(shown);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(a_view_that_its_parent_closes),
        IN_MEMORY(a_view_that_its_parent_keeps),
        ON_BOTH(what_is_pinned_after_the_fork),
        IN_MEMORY(a_grandchild),
        IN_MEMORY(another_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
