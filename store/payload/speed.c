/* SPDX-License-Identifier: BSD-3-Clause */
/* payload/speed.c - measured speeds of decoding. */
#include "payload/speed.h"

#include <time.h>

#define GIB         ((double)((uint64_t)1 << 30))
#define KEYFRAME_NS 0.45e9 /* per GiB and thread */
#define LINK_NS     0.10e9
#define MEMORY_NS   0.30e9              /* per GiB and thread: new memory, and pages of the pool's mapping */
#define PER_DECODED 1.25                /* a link is also found and copied */
#define ENOUGH      ((uint64_t)4 << 20) /* measured bytes that count */

uint64_t lmcs_speed_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void lmcs_speed_add(struct lmcs_pool *pool, enum lmcs_decoded what, uint64_t bytes, uint64_t since)
{
    struct lmcs_speed *speed = &pool->speeds[what];
    atomic_fetch_add_explicit(&speed->bytes, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&speed->ns, lmcs_speed_ns() - since, memory_order_relaxed);
}

/* Returns ns per GiB and thread. */
static double time_of(const struct lmcs_pool *pool, enum lmcs_decoded what, double otherwise)
{
    const uint64_t bytes = atomic_load_explicit(&pool->speeds[what].bytes, memory_order_relaxed);
    const uint64_t ns = atomic_load_explicit(&pool->speeds[what].ns, memory_order_relaxed);
    return bytes < ENOUGH || ns == 0 ? otherwise : (double)ns / (double)bytes * GIB;
}

double lmcs_links_within(const struct lmcs_pool *pool, uint64_t restore_seconds)
{
    const double threads = pool->options.threads;
    const double beginning = time_of(pool, LMCS_DECODED_KEYFRAME, KEYFRAME_NS) + MEMORY_NS;
    const double left = (double)restore_seconds * 1e9 * threads - beginning;
    const double links = left / (PER_DECODED * time_of(pool, LMCS_DECODED_LINK, LINK_NS));
    if (restore_seconds == 0 || links >= LMCS_LINK_BOUND)
        return LMCS_LINK_BOUND;
    return links < 0 ? 0 : links;
}
