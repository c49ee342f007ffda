/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/throttle.c - makes background work wait for captures, keep to a rate, and yield busy processors. */
#include <time.h>

#include "base/idle.h"
#include "compact/round.h"

static bool must_stop(const struct lmcs_throttle *throttle)
{
    return throttle->must_stop != NULL && throttle->must_stop(throttle->context);
}

static bool yields(const struct lmcs_throttle *throttle)
{
    return throttle->must_stop != NULL && (lmcs_idle_is_hurried(throttle->pool->idle) || must_stop(throttle));
}

bool lmcs_throttle_go_on(struct lmcs_throttle *throttle)
{
    while (throttle->must_stop != NULL && atomic_load(&throttle->pool->copying) > 0 && !yields(throttle))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return !yields(throttle);
}

static bool is_stopped(const void *context)
{
    return must_stop(context);
}

void lmcs_throttle_hold(struct lmcs_throttle *throttle, uint64_t rate, uint64_t bytes)
{
    uint64_t now = lmcs_steady_ns(), until = now;
    if (throttle->must_stop != NULL)
        until += lmcs_yield_ns(&throttle->yield);
    if (rate > 0) {
        throttle->next_ns = throttle->next_ns < now ? now : throttle->next_ns;
        throttle->next_ns += (uint64_t)((double)bytes / (double)rate * 1e9);
        until = until < throttle->next_ns ? throttle->next_ns : until;
    }
    if (until == now)
        return;
    lmcs_idle_sleep(throttle->pool->idle, until - now, is_stopped, throttle);
    lmcs_yield_begin(&throttle->yield);
}
