/* SPDX-License-Identifier: BSD-3-Clause */
/* test_children_support.h - children that check their parent's memory. */
#ifndef LMCS_TEST_CHILDREN_SUPPORT_H
#define LMCS_TEST_CHILDREN_SUPPORT_H

#include "live/map.h"
#include "test_live_support.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

/* Children obey commands of one byte and end when the pipe closes. */
struct child {
    pid_t pid;
    int orders; /* -1: none */
    int answers;
};

static inline void end_in_time(void)
{
    alarm(200);
}

static inline void answer(const struct child *child, char byte)
{
    EXPECT(write(child->answers, &byte, 1) == 1);
}

static inline char wait_byte(int fd)
{
    char byte;
    return read(fd, &byte, 1) == 1 ? byte : '\0';
}

/* True in the parent; the child keeps the other ends of the pipes. */
static inline bool make_child(struct child *child)
{
    int orders[2], answers[2];
    EXPECT(pipe2(orders, O_CLOEXEC) == 0 && pipe2(answers, O_CLOEXEC) == 0);
    fflush(NULL);
    child->pid = fork();
    EXPECT(child->pid >= 0);
    bool parent = child->pid > 0;
    child->orders = orders[parent];
    child->answers = answers[!parent];
    close(orders[!parent]);
    close(answers[parent]);
    if (!parent)
        end_in_time();
    return parent;
}

static inline void expect_right(const struct child *child)
{
    EXPECT(write(child->orders, "?", 1) == 1);
    assert_int_equal(wait_byte(child->answers), 'y');
}

static inline void let_go(const struct child *child)
{
    close(child->orders);
    close(child->answers);
}

static inline void end_child(struct child *child)
{
    let_go(child);
    expect_child(child->pid);
}

enum { LIVES = 4 };

struct sight {
    struct lmcs_view *views[2];
    const struct state *shown;
    const float *lives[LIVES]; /* NULL: none */
    uint64_t floats[LIVES];
    float firsts[LIVES];
};

static inline bool is_right(const struct sight *sight)
{
    for (int v = 0; v < 2; v++)
        for (size_t i = 0; sight->views[v] != NULL && i < sight->shown->count; i++)
            if (memcmp(lmcs_view_data(sight->views[v], i), sight->shown->tensors[i].data,
                       sight->shown->tensors[i].bytes) != 0)
                return false;
    for (int i = 0; i < LIVES; i++)
        for (uint64_t k = 0; sight->lives[i] != NULL && k < sight->floats[i]; k++)
            if (sight->lives[i][k] != sight->firsts[i] + (float)k)
                return false;
    return true;
}

static inline void look_when_told(const struct child *child, const struct sight *sight)
{
    while (wait_byte(child->orders) == '?')
        answer(child, is_right(sight) ? 'y' : 'n');
}

static inline void start_looking(struct child *child, const struct sight *sight)
{
    if (make_child(child))
        return;
    look_when_told(child, sight);
    _exit(0);
}

static inline struct lmcs_view *view_of(struct lmcs_pool *pool, const char *which, uint32_t flags)
{
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
    OK(lmcs_view_open(snapshot, NULL, NULL, 0, flags, &view, &err));
    lmcs_snapshot_close(snapshot);
    return view;
}

static inline void see_views(struct sight *sight, struct lmcs_pool *pool, const struct state *shown)
{
    sight->views[0] = view_of(pool, "1", 0);
    sight->views[1] = view_of(pool, "1", LMCS_VIEW_PRIVATE);
    sight->shown = shown;
}

static inline void close_views(struct sight *sight)
{
    for (int i = 0; i < 2; i++) {
        lmcs_view_close(sight->views[i]);
        sight->views[i] = NULL;
    }
}

static inline struct state *large_state(uint64_t seed)
{
    struct rng rng = {seed};
    struct state *state = state_weights(&rng, 8, 130000);
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "small%d", i);
        struct held *held = state_add(state, name, LMC_U8, 1, (const uint64_t[]){900});
        rng_fill(&rng, held->data, held->bytes);
    }
    return state;
}

static inline uint64_t used_when_compacted(struct lmcs_pool *pool)
{
    OK(lmcs_compact(pool, NULL, &err));
    return pool_info(pool).used_bytes;
}

/* Overwrites reusable space; the shelf ends as it began. */
static inline void churn(struct lmcs_pool *pool)
{
    for (uint64_t i = 0; i < 10; i++) {
        struct state *state = large_state(100 + i);
        uint64_t number = take_snapshot(pool, "churn", state, 0);
        state_free(state);
        OK(lmcs_snapshot_remove(pool, "churn", number, false, NULL, &err));
        if (i % 3 == 2)
            OK(lmcs_compact(pool, NULL, &err));
    }
}

/* The same with live variables of many sizes. */
static inline void churn_live(struct lmcs_pool *pool)
{
    static const uint64_t sizes[] = {1000, 60000, 3000, 16384, 120000, 1024, 40000, 7};
    for (int round = 0; round < 4; round++) {
        struct lmcs_live *lives[24];
        for (int i = 0; i < 24; i++) {
            char name[16];
            snprintf(name, sizeof name, "churn%d", i);
            lives[i] = new_tensor(pool, name, sizes[(i + round) % 8]);
            fill(lives[i], -7777);
        }
        for (int i = 0; i < 24; i++) {
            char name[16];
            snprintf(name, sizeof name, "churn%d", i);
            expect_filled(lives[i], -7777);
            lmcs_live_close(lives[i]);
            OK(lmcs_live_erase(pool, "run", name, &err));
        }
    }
}

#endif
