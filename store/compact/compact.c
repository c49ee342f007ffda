/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/compact.c - rounds of the compactor.
 *
 * One round runs at a time. Kinds of work, in order; "last" ones run only when the others found nothing.
 *   prepare   space for the next capture, in the background (pages/prepare.c); also between contents of a round
 *   let go    snapshots that are safe at a URL
 *   prune     by policies without a budget
 *   release   retired ranges (move.c)
 *   encode    the oldest snapshot of each shelf that is not to stay raw (encode.c)
 *   rebase    bases that no snapshot has (rebase.c)
 *   move      contents of nearly dead extents (move.c)
 *   prune     last: by exceeded budgets
 *   parity    last: as policies ask (parity_turn.c)
 *   trim      last: file space of free extents, beyond a reserve for the next capture
 */
#include "compact/compact.h"

#include <errno.h>
#include <stdlib.h>

#include "base/idle.h"
#include "compact/round.h"
#include "pages/space.h"
#include "shelves/shelves.h"

#define PARITY_RATE ((uint64_t)256 << 20) /* stored bytes a second that the background reads for parity */
#define PARITY_TURN ((uint64_t)64 << 20)  /* and before it looks for other work */

static bool parity_may_go_on(void *context, uint64_t bytes)
{
    struct lmcs_round *round = context;
    struct lmcs_error ignored;
    uint64_t rate = round->outlook.rate_bytes;
    if (round->background)
        lmcs_throttle_hold(&round->throttle, rate == 0 || rate > PARITY_RATE ? PARITY_RATE : rate, bytes);
    round->parity_bytes += bytes;
    return round->compactor->waiting == 0 && (!round->background || round->parity_bytes < PARITY_TURN) &&
           lmcs_round_go_on(round, 0, 1, &ignored) == LMCS_OK;
}

static enum lmcs_status make_parity(struct lmcs_round *round, struct lmcs_error *error)
{
    const struct lmcs_parity_turn turn = {.go_on = parity_may_go_on,
                                          .suspect = lmcs_round_suspect,
                                          .context = round,
                                          .wait = round->background ? &round->compactor->parity : NULL,
                                          .leave_bytes = round->keep};
    bool worked = false;
    round->parity_bytes = 0;
    enum lmcs_status status = lmcs_parity_turn(round->pool, &turn, &worked, error);
    round->worked |= worked;
    return status;
}

/* LMCS_IN_USE: this thread runs a round, whose progress function made this call (from a signal handler, say). */
static enum lmcs_status begin_round(struct lmcs_round *round, struct lmcs_error *error)
{
    if (round->background) {
        pthread_mutex_lock(&round->compactor->round);
        return LMCS_OK;
    }
    round->compactor->waiting++;
    lmcs_idle_hurry(round->pool->idle, true);
    int failure = pthread_mutex_lock(&round->compactor->round);
    lmcs_idle_hurry(round->pool->idle, false);
    round->compactor->waiting--;
    if (failure == EDEADLK)
        return lmcs_fail(error, LMCS_IN_USE, 0, "%s: a compaction can't begin from inside a compaction's progress call",
                         round->pool->path);
    return LMCS_OK;
}

static void end_round(struct lmcs_round *round)
{
    pthread_mutex_unlock(&round->compactor->round);
    free(round->candidates);
    free(round->links);
    round->candidates = NULL;
    round->links = NULL;
    round->link_count = round->link_capacity = 0;
    round->count = round->capacity = 0;
}

static enum lmcs_status run_round(struct lmcs_round *round, struct lmcs_error *error)
{
    enum lmcs_status status = begin_round(round, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_round_pass_over(round, lmcs_round_release(round, error), error);
    if (status == LMCS_OK)
        status = lmcs_round_encode_shelves(round, error);
    if (status == LMCS_OK)
        status = lmcs_round_rebase(round, error);
    if (status == LMCS_OK && !round->worked)
        status = lmcs_unless_full(lmcs_round_move(round, error));
    if (status == LMCS_OK)
        status = lmcs_round_repair(round, error);
    end_round(round);
    return status;
}

/* Prunes by budgets before it makes parity, so that no parity is made for removed contents. */
static enum lmcs_status run_last_round(struct lmcs_round *round, struct lmcs_error *error)
{
    enum lmcs_status status = begin_round(round, error);
    if (status != LMCS_OK)
        return status;
    if (!round->urgent)
        status = lmcs_unless_full(lmcs_round_pass_over(round, make_parity(round, error), error));
    if (status == LMCS_OK)
        status = lmcs_round_repair(round, error);
    if (status == LMCS_OK && !round->worked && lmcs_space_waste(round->pool, round->keep) > 0)
        status = lmcs_round_pass_over(round, lmcs_space_trim(round->pool, round->keep, error), error);
    end_round(round);
    return status;
}

/* The caller does not hold compactor->round: shelves are acquired before it. */
static enum lmcs_status prune(struct lmcs_round *round, enum lmcs_prune_when when, struct lmcs_error *error)
{
    uint64_t removed;
    enum lmcs_status status =
        lmcs_prune_pool(round->pool, round->urgent ? LMCS_PRUNE_ALL : when, round->held, &removed, error);
    round->worked |= removed > 0;
    return lmcs_round_pass_over(round, status, error);
}

static enum lmcs_status let_go(struct lmcs_round *round, struct lmcs_error *error)
{
    uint64_t count = 0;
    enum lmcs_status status = lmcs_unless_full(lmcs_let_go(round->pool, round->held, &count, error));
    round->worked |= count > 0;
    return lmcs_round_pass_over(round, status, error);
}

/* A caller's compaction gives all free space back, and keeps none for the next capture. */
static enum lmcs_status prepare(struct lmcs_round *round, struct lmcs_error *error)
{
    struct lmcs_pool *pool = round->pool;
    if (!round->background) {
        lmcs_space_expect(pool, 0);
        return LMCS_OK;
    }
    uint64_t expected = lmcs_space_expected(pool);
    pthread_rwlock_rdlock(&pool->meta);
    uint64_t last = pool->root.last_snapshot_bytes;
    pthread_rwlock_unlock(&pool->meta);
    round->keep = lmcs_plan_reserve(last > expected ? last : expected);
    return lmcs_round_prepare(round, error);
}

static enum lmcs_status run_until_idle(struct lmcs_round *round, struct lmcs_error *error)
{
    enum lmcs_status status;
    round->compactor = round->pool->compactor;
    round->throttle.pool = round->pool;
    round->since_ns = lmcs_steady_ns();
    do {
        round->worked = false;
        status = prepare(round, error);
        if (status == LMCS_OK)
            status = let_go(round, error);
        if (status == LMCS_OK && !round->urgent)
            status = prune(round, LMCS_PRUNE_SURPLUS, error);
        if (status == LMCS_OK)
            status = run_round(round, error);
        if (status == LMCS_OK && !round->worked)
            status = prune(round, LMCS_PRUNE_BUDGETS, error);
        if (status == LMCS_OK && !round->worked)
            status = run_last_round(round, error);
        if (status == LMCS_OK)
            status = lmcs_round_go_on(round, 1, 1, error);
    } while (status == LMCS_OK && round->worked);
    return lmcs_passed_over(&round->passed, status, error);
}

enum lmcs_status lmcs_compact(struct lmcs_pool *pool, const struct lmcs_progress *progress, struct lmcs_error *error)
{
    struct lmcs_round round = {.pool = pool, .progress = progress};
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    return status == LMCS_OK ? run_until_idle(&round, error) : status;
}

enum lmcs_status lmcs_compact_finished(struct lmcs_pool *pool, const char *shelf, const struct lmcs_progress *progress,
                                       struct lmcs_error *error)
{
    struct lmcs_round round = {.pool = pool, .progress = progress};
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_round_finish(&round, shelf, error);
    return status == LMCS_OK ? run_until_idle(&round, error) : status;
}

/* Before snapshots are pruned: they are worth more. */
static enum lmcs_status give_parity_up(struct lmcs_round *round, struct lmcs_error *error)
{
    round->compactor = round->pool->compactor;
    enum lmcs_status status = begin_round(round, error);
    if (status != LMCS_OK)
        return status;
    lmcs_parity_make_way(round->pool, &round->compactor->parity);
    end_round(round);
    return LMCS_OK;
}

bool lmcs_compact_for_space(struct lmcs_pool *pool, const char *held)
{
    struct lmcs_error error;
    struct lmcs_round round = {.pool = pool, .urgent = true, .held = held};
    uint64_t free_before = lmcs_space_free_bytes(pool), used_before = lmcs_space_used(pool);
    if (give_parity_up(&round, &error) != LMCS_OK)
        return false;
    run_until_idle(&round, &error);
    /* Small trimmed extents join. */
    return lmcs_space_free_bytes(pool) > free_before || lmcs_space_used(pool) < used_before;
}

enum lmcs_status lmcs_compact_in_background(struct lmcs_pool *pool, bool (*must_stop)(void *context), void *context,
                                            struct lmcs_error *error)
{
    struct lmcs_round round = {
        .pool = pool, .background = true, .throttle = {.must_stop = must_stop, .context = context}};
    return run_until_idle(&round, error);
}

enum lmcs_status lmcs_compactor_new(struct lmcs_pool *pool, lmcs_repair_content_fn *repair, struct lmcs_error *error)
{
    pool->compactor = calloc(1, sizeof *pool->compactor);
    if (pool->compactor == NULL)
        return lmcs_fail_memory(error);
    pool->compactor->repair = repair;
    pthread_mutexattr_t checked;
    pthread_mutexattr_init(&checked);
    pthread_mutexattr_settype(&checked, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&pool->compactor->round, &checked);
    pthread_mutexattr_destroy(&checked);
    return LMCS_OK;
}

void lmcs_compactor_free(struct lmcs_pool *pool)
{
    if (pool->compactor == NULL)
        return;
    pthread_mutex_destroy(&pool->compactor->round);
    free(pool->compactor);
    pool->compactor = NULL;
}

uint64_t lmcs_compactor_replaced(const struct lmcs_pool *pool)
{
    return pool->compactor->replaced;
}
