/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/throttle.c - makes background work wait for captures and keep to a rate. */
#include <time.h>

#include "compact/round.h"

static bool must_stop(const struct lmcs_throttle *throttle)
{
    return throttle->must_stop != NULL && throttle->must_stop(throttle->context);
}

bool lmcs_throttle_go_on(struct lmcs_throttle *throttle)
{
    while (throttle->must_stop != NULL && atomic_load(&throttle->pool->copying) > 0 && !must_stop(throttle))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return !must_stop(throttle);
}

void lmcs_throttle_hold(struct lmcs_throttle *throttle, uint64_t rate, uint64_t bytes)
{
    uint64_t now = lmcs_steady_ns();
    if (rate == 0)
        return;
    if (throttle->next_ns < now)
        throttle->next_ns = now;
    throttle->next_ns += (uint64_t)((double)bytes / (double)rate * 1e9);
    while (lmcs_steady_ns() < throttle->next_ns && !must_stop(throttle) && throttle->pool->compactor->waiting == 0)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}
