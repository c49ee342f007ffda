/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/usage.c - how much of a processor a thread gets.
 *
 * A thread that is ready, but not running, sees time pass without processor time: other threads have the processors, or
 * a container's quota is spent. No file of the system is read, which a container could hide.
 */
#include "base/usage.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"

#define SHORTEST_NS   ((uint64_t)2 * 1000000) /* a preemption takes about as long */
#define LONGEST_NS    ((uint64_t)1000 * 1000000)
#define ENOUGH_LOST   4  /* a quarter of the time */
#define BUSY_FRACTION 20 /* of a processor */

typedef void read_usage(struct lmcs_usage *usage);
static _Atomic(read_usage *) replacement;

void lmcs_usage_set(void (*read)(struct lmcs_usage *usage))
{
    atomic_store(&replacement, read);
}

void lmcs_usage_read(struct lmcs_usage *usage)
{
    read_usage *other = atomic_load_explicit(&replacement, memory_order_relaxed);
    struct rusage counts = {.ru_nvcsw = 0};
    struct timespec cpu = {.tv_sec = 0};
    if (other != NULL) {
        other(usage);
        return;
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    getrusage(RUSAGE_THREAD, &counts);
    *usage = (struct lmcs_usage){.wall_ns = lmcs_steady_ns(),
                                 .cpu_ns = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec,
                                 .waits = (uint64_t)counts.ru_nvcsw,
                                 .preemptions = (uint64_t)counts.ru_nivcsw};
}

static bool lacks_processor(const struct lmcs_usage *from, const struct lmcs_usage *to)
{
    uint64_t wall = to->wall_ns - from->wall_ns, cpu = to->cpu_ns - from->cpu_ns;
    bool waited_for_medium = to->waits != from->waits && to->preemptions == from->preemptions;
    return !waited_for_medium && wall > cpu && wall - cpu >= wall / ENOUGH_LOST;
}

uint64_t lmcs_yield_after(struct lmcs_yield *yield, const struct lmcs_usage *now)
{
    uint64_t wall = now->wall_ns - yield->since.wall_ns;
    uint64_t due = (now->cpu_ns - yield->since.cpu_ns) * BUSY_FRACTION;
    if (lacks_processor(&yield->since, now))
        yield->crowded = LMCS_YIELD_PIECES;
    else if (yield->crowded > 0)
        yield->crowded--;
    yield->since = *now;
    if (yield->crowded == 0 || wall >= due)
        return 0;
    return due - wall < LONGEST_NS ? due - wall : LONGEST_NS;
}

void lmcs_yield_begin(struct lmcs_yield *yield)
{
    lmcs_usage_read(&yield->since);
}

uint64_t lmcs_yield_ns(struct lmcs_yield *yield)
{
    struct lmcs_usage now;
    if (yield->since.wall_ns == 0) {
        lmcs_yield_begin(yield);
        return 0;
    }
    if (lmcs_steady_ns() - yield->since.wall_ns < SHORTEST_NS && atomic_load(&replacement) == NULL)
        return 0;
    lmcs_usage_read(&now);
    return lmcs_yield_after(yield, &now);
}
