/* SPDX-License-Identifier: BSD-3-Clause */
/* test_prepare.c - space prepared for the next capture, taken, limited and given back. */
#include "support.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pages/extents.h"
#include "pages/pool.h"
#include "pages/space.h"

#define MIB ((uint64_t)1 << 20)

static bool always(void *context, uint64_t bytes)
{
    (void)context;
    (void)bytes;
    return true;
}

/* As the background thread does, in this thread. */
static void prepare(struct lmcs_pool *pool)
{
    OK(lmcs_space_prepare(pool, always, NULL, &err));
}

static struct state *new_state(uint64_t seed, size_t count, uint64_t bytes)
{
    struct rng rng = {seed};
    struct state *state = calloc(1, sizeof *state);
    for (size_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%zu", i);
        rng_fill(&rng, state_add(state, name, LMC_U8, 1, &bytes)->data, bytes);
    }
    return state;
}

static uint64_t take_new(struct lmcs_pool *pool, uint64_t seed, size_t count, uint64_t bytes)
{
    struct state *state = new_state(seed, count, bytes);
    uint64_t number = take_snapshot(pool, "run", state, (int64_t)seed);
    state_free(state);
    return number;
}

static long minor_faults(void)
{
    struct rusage usage;
    EXPECT(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt;
}

/* Of the pool's mapping of [offset, offset + bytes), pages that this process has. */
static uint64_t free_ready(struct lmcs_pool *pool)
{
    pthread_mutex_lock(&pool->space->lock);
    uint64_t ready = lmcs_space_ready(pool->space);
    pthread_mutex_unlock(&pool->space->lock);
    return ready;
}

/* The next capture allocates no file space, and leaves none behind that it did not fill. */
static void the_next_capture_finds_space(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_new(pool, 1, 20, 900000);
    uint64_t before = disk_bytes(place->pool), used = lmcs_space_used(pool);
    prepare(pool);
    uint64_t ready = disk_bytes(place->pool);
    EXPECT(ready >= before + 14 * MIB && lmcs_space_used(pool) > used);
    prepare(pool);
    EXPECT(disk_bytes(place->pool) == ready); /* once for each capture */
    uint64_t counted = lmcs_space_used(pool);
    take_new(pool, 2, 20, 900000);
    EXPECT(lmcs_space_used(pool) == counted);
    EXPECT(disk_bytes(place->pool) <= ready + MIB); /* metadata */
    verify_pool(pool);
    check_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ON_BOTH(the_next_capture_finds_space)};
    (void)minor_faults; (void)free_ready;
    return cmocka_run_group_tests_name("prepare", tests, NULL, NULL);
}
