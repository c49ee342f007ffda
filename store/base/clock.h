/* SPDX-License-Identifier: BSD-3-Clause */
/* base/clock.h - the time of day, which tests can set. */
#ifndef LMCS_BASE_CLOCK_H
#define LMCS_BASE_CLOCK_H

#include <stdint.h>

/* ns since 1970, UTC, for moments on the medium, ages, schedules. Jumps when the system's clock is set. */
uint64_t lmcs_now_ns(void);
/* For tests: this process's clock runs on from `now_ns`; 0: the system's again. Waits use it, too, and still end. */
void lmcs_clock_set(uint64_t now_ns);

#endif
