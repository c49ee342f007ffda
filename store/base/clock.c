/* SPDX-License-Identifier: BSD-3-Clause */
/* base/clock.c - the time of day, which tests can set. */
#include "base/clock.h"

#include <stdatomic.h>
#include <time.h>

static _Atomic uint64_t shift_ns; /* wraps around for a clock set back */

static uint64_t system_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t lmcs_now_ns(void)
{
    return system_ns() + atomic_load_explicit(&shift_ns, memory_order_relaxed);
}

void lmcs_clock_set(uint64_t now_ns)
{
    atomic_store_explicit(&shift_ns, now_ns == 0 ? 0 : now_ns - system_ns(), memory_order_relaxed);
}
