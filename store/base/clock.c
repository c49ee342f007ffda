/* SPDX-License-Identifier: BSD-3-Clause */
/* base/clock.c - the time of day, and durations. */
#include "base/clock.h"

#include <stdatomic.h>
#include <time.h>

static _Atomic uint64_t shift_ns; /* wraps around for a clock set back */

static uint64_t read_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t lmcs_now_ns(void)
{
    return read_ns(CLOCK_REALTIME) + atomic_load_explicit(&shift_ns, memory_order_relaxed);
}

void lmcs_clock_set(uint64_t now_ns)
{
    atomic_store_explicit(&shift_ns, now_ns == 0 ? 0 : now_ns - read_ns(CLOCK_REALTIME), memory_order_relaxed);
}

uint64_t lmcs_steady_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}
