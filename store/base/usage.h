/* SPDX-License-Identifier: BSD-3-Clause */
/* base/usage.h - how much of a processor a thread gets, and how long it rests while others need it. */
#ifndef LMCS_BASE_USAGE_H
#define LMCS_BASE_USAGE_H

#include <stdint.h>

/* Counters of a thread since it started. */
struct lmcs_usage {
    uint64_t wall_ns;
    uint64_t cpu_ns;
    uint64_t waits;       /* times that it gave the processor up */
    uint64_t preemptions; /* times that it lost the processor */
};

/* Reads the counters of this thread. */
void lmcs_usage_read(struct lmcs_usage *usage);
/* Replaces lmcs_usage_read in this process; NULL: back to the system's counters. For tests. */
void lmcs_usage_set(void (*read)(struct lmcs_usage *usage));

/* Of one thread; zeros: nothing is known yet. */
struct lmcs_yield {
    struct lmcs_usage since;
    uint32_t crowded; /* pieces of work that rests follow, although the thread had the processor */
};
/*
 * Returns the ns to rest after the work between yield->since and `now`, so that the thread uses a twentieth of a
 * processor, at most a second; 0: for LMCS_YIELD_PIECES pieces the thread had the processor, or waited for a medium.
 * Pure.
 */
#define LMCS_YIELD_PIECES 8u
uint64_t lmcs_yield_after(struct lmcs_yield *yield, const struct lmcs_usage *now);
/* The same for the work until now, once it is long enough to judge. The caller rests, then calls lmcs_yield_begin. */
uint64_t lmcs_yield_ns(struct lmcs_yield *yield);
void lmcs_yield_begin(struct lmcs_yield *yield);

#endif
