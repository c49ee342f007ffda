/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pool/background.c - the background thread of a pool that is open for writing: it compacts, prunes and scrubs.
 *
 * A commit wakes the thread; else it runs every RETRY_SECONDS, since readers release leases and views without a sign
 * and scrubs are due by time. It stops and pauses between contents, waits while a capture copies, and ends its round
 * when a caller waits for one.
 *
 * background->lock guards the fields of struct lmcs_background from `thread` on. No other lock is acquired under it.
 */
#include "pool/background.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/guard.h"
#include "base/idle.h"
#include "compact/compact.h"
#include "repair/scrub.h"
#include "shelves/shelves.h"

#define RETRY_SECONDS 1
#define SCRUB_RATE    ((uint64_t)256 << 20) /* bytes a second within a content; on average far fewer */

struct lmcs_background {
    struct lmcs_pool *pool;
    struct lmcs_scrub_turn scrub; /* used by the thread alone */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool started;
    bool stop; /* a caller waits for the thread's end; others that start or stop it wait for that */
    bool notified;
    bool running;
    unsigned paused;
    char error[256];
};

static bool must_stop(void *context)
{
    struct lmcs_background *background = context;
    pthread_mutex_lock(&background->lock);
    bool stop = background->stop || background->paused > 0;
    pthread_mutex_unlock(&background->lock);
    return stop;
}

static bool scrub_may_go_on(void *context, uint64_t bytes)
{
    struct lmcs_throttle *throttle = context;
    lmcs_throttle_hold(throttle, SCRUB_RATE, bytes);
    return lmcs_throttle_go_on(throttle);
}

/* Without the round lock, so that callers of lmcs_compact do not wait for a scrub. */
static enum lmcs_status scrub_a_little(struct lmcs_background *background, struct lmcs_error *error)
{
    struct lmcs_throttle throttle = {.pool = background->pool, .must_stop = must_stop, .context = background};
    enum lmcs_status status = lmcs_scrub_turn(background->pool, &background->scrub, scrub_may_go_on, &throttle, error);
    return status == LMCS_FULL ? LMCS_OK : status; /* only a scrub on request reports missing room */
}

static enum lmcs_status work(struct lmcs_background *background, struct lmcs_error *error)
{
    enum lmcs_status status = background->pool->fold(background->pool, error);
    if (status != LMCS_OK && !lmcs_is_unusable(status))
        return status;
    lmcs_idle_own(background->pool->idle);
    status = lmcs_compact_in_background(background->pool, must_stop, background, error);
    lmcs_idle_own(NULL); /* a scrub keeps to a rate by the block */
    if (status != LMCS_OK && !lmcs_is_unusable(status))
        return status;
    struct lmcs_error other = {.message = ""}; /* a scrub may succeed where compaction found damage */
    enum lmcs_status scrubbed = scrub_a_little(background, &other);
    if (status == LMCS_OK)
        *error = other;
    return status == LMCS_OK ? scrubbed : status;
}

static void *background_main(void *argument)
{
    struct lmcs_background *background = argument;
    pthread_mutex_lock(&background->lock);
    while (!background->stop) {
        struct lmcs_error error = {.message = ""};
        if (background->paused > 0) {
            pthread_cond_wait(&background->wake, &background->lock);
            continue;
        }
        background->notified = false;
        background->running = true;
        pthread_mutex_unlock(&background->lock);
        enum lmcs_status status = work(background, &error);
        pthread_mutex_lock(&background->lock);
        background->running = false;
        bool failed = status != LMCS_OK && status != LMCS_CANCELLED;
        snprintf(background->error, sizeof background->error, "%.250s", failed ? error.message : "");
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += RETRY_SECONDS;
        while (!background->stop && !background->notified)
            if (pthread_cond_timedwait(&background->wake, &background->lock, &until) == ETIMEDOUT)
                break;
    }
    pthread_mutex_unlock(&background->lock);
    return NULL;
}

static void wake(struct lmcs_pool *pool)
{
    struct lmcs_background *background = pool->background;
    pthread_mutex_lock(&background->lock);
    background->notified = true;
    pthread_cond_broadcast(&background->wake);
    pthread_mutex_unlock(&background->lock);
}

void lmcs_compactor_pause(struct lmcs_pool *pool)
{
    if (lmcs_pool_check(pool, true, NULL) != LMCS_OK)
        return;
    pthread_mutex_lock(&pool->background->lock);
    pool->background->paused++;
    pthread_mutex_unlock(&pool->background->lock);
}

void lmcs_compactor_resume(struct lmcs_pool *pool)
{
    if (lmcs_pool_check(pool, true, NULL) != LMCS_OK)
        return;
    pthread_mutex_lock(&pool->background->lock);
    if (pool->background->paused > 0)
        pool->background->paused--;
    pthread_cond_broadcast(&pool->background->wake);
    pthread_mutex_unlock(&pool->background->lock);
}

/* Under the lock: waits for another caller that stops the thread. */
static void wait_stopped(struct lmcs_background *background)
{
    while (background->stop)
        pthread_cond_wait(&background->wake, &background->lock);
}

enum lmcs_status lmcs_compactor_start(struct lmcs_pool *pool, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_background *background = pool->background;
    pthread_mutex_lock(&background->lock);
    wait_stopped(background);
    if (!background->started) {
        sigset_t all, old;
        lmcs_guard_signals(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        int failure = pthread_create(&background->thread, NULL, background_main, background);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        background->started = failure == 0;
        background->error[0] = '\0'; /* left by an earlier thread */
        if (failure != 0)
            status = lmcs_fail_errno(error, failure, "%s: can't start the compactor's thread", pool->path);
    }
    pthread_mutex_unlock(&background->lock);
    return status;
}

void lmcs_compactor_stop(struct lmcs_pool *pool)
{
    struct lmcs_background *background = pool->background;
    if (background == NULL || lmcs_pool_check(pool, true, NULL) != LMCS_OK)
        return;
    pthread_mutex_lock(&background->lock);
    wait_stopped(background);
    if (background->started) {
        background->stop = true;
        pthread_cond_broadcast(&background->wake);
        pthread_mutex_unlock(&background->lock);
        lmcs_idle_hurry(pool->idle, true);
        pthread_join(background->thread, NULL);
        lmcs_idle_hurry(pool->idle, false);
        pthread_mutex_lock(&background->lock);
        background->stop = background->started = false;
        pthread_cond_broadcast(&background->wake);
    }
    pthread_mutex_unlock(&background->lock);
}

enum lmcs_status lmcs_background_new(struct lmcs_pool *pool, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_compactor_new(pool, lmcs_scrub_chain, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_idle_new(&pool->copying, &pool->idle, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_background *background = calloc(1, sizeof *background);
    if (background == NULL)
        return lmcs_fail_memory(error);
    background->pool = pool;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&background->lock, NULL);
    pthread_cond_init(&background->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    pool->background = background;
    pool->wake = wake;
    pool->make_room = lmcs_compact_for_space;
    pool->explain_full = lmcs_policy_warn_full;
    return (pool->options.flags & LMCS_NO_BACKGROUND) != 0 ? LMCS_OK : lmcs_compactor_start(pool, error);
}

void lmcs_background_free(struct lmcs_pool *pool)
{
    struct lmcs_background *background = pool->background;
    if (background != NULL) {
        lmcs_compactor_stop(pool);
        pool->wake = NULL;
        pool->make_room = NULL;
        pool->explain_full = NULL;
        pool->background = NULL;
        pthread_mutex_destroy(&background->lock);
        pthread_cond_destroy(&background->wake);
        free(background);
    }
    lmcs_compactor_free(pool);
    lmcs_idle_free(pool->idle);
    pool->idle = NULL;
}

void lmcs_background_state(const struct lmcs_pool *pool, struct lmcs_pool_info *info)
{
    struct lmcs_background *background = pool->background;
    if (background == NULL)
        return;
    pthread_mutex_lock(&background->lock);
    info->compaction_running = background->running;
    info->compaction_paused = background->paused > 0;
    info->compacted_contents = lmcs_compactor_replaced(pool);
    snprintf(info->compaction_error, sizeof info->compaction_error, "%s", background->error);
    pthread_mutex_unlock(&background->lock);
}
