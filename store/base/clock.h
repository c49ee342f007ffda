/* SPDX-License-Identifier: BSD-3-Clause */
/* base/clock.h - the time of day, which tests can set, and durations. */
#ifndef LMCS_BASE_CLOCK_H
#define LMCS_BASE_CLOCK_H

#include <stdint.h>

/* ns since 1970, UTC, for moments on the medium, ages, schedules. Jumps when the system's clock is set. */
uint64_t lmcs_now_ns(void);
/* Sets lmcs_now_ns of this process, which runs on from there; 0: back to the system's time. For tests. */
void lmcs_clock_set(uint64_t now_ns);
/* ns since the machine started: waits, rates and durations. Never set, and the same in all processes. */
uint64_t lmcs_steady_ns(void);

#endif
