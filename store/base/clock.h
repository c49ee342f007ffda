/* SPDX-License-Identifier: BSD-3-Clause */
/* base/clock.h - the time of day, which tests can set. */
#ifndef LMCS_BASE_CLOCK_H
#define LMCS_BASE_CLOCK_H

#include <stdint.h>

/* The time of day in ns since 1970, UTC: moments on the medium, ages, schedules. It jumps when the system's is set. */
uint64_t lmcs_now_ns(void);
/*
 * Sets the clock of this process to `now_ns`, from where it runs on at the usual pace; 0: back to the system's. For
 * tests: waits and rates use it, too, so a long age passes at once but a wait still ends.
 */
void lmcs_clock_set(uint64_t now_ns);

#endif
