/* SPDX-License-Identifier: BSD-3-Clause */
/* make_policies.c - writes policies/a.pool: a grace period that runs, and a record of removals (make_later.sh). */
#include "make_support.h"

#include "base/clock.h"

#define SECOND ((uint64_t)1000000000)
#define BEGUN  (1800000000 * SECOND) /* 2027-01-15, UTC */

static void grow(struct lmcs_pool *pool, const char *shelf, int count)
{
    struct rng rng = {(uint64_t)count};
    struct state *state = state_weights(&rng, 2, 300);
    for (int step = 0; step < count; step++) {
        take_snapshot(pool, shelf, state, step);
        state_step(state, &rng, 0, state->count);
    }
    state_free(state);
}

int main(int argc, char **argv)
{
    EXPECT(argc == 2);
    out_folder = argv[1];
    mkdir(out_folder, 0700);
    const char *path = path_in("policies", "a.pool");
    struct lmcs_pool *pool = make_pool(path);
    lmcs_clock_set(BEGUN);
    grow(pool, "removed", 20);
    OK(lmcs_shelf_set_policy(pool, "removed", "keep=last:9 grace=none", &err));
    OK(lmcs_compact(pool, NULL, &err));
    lmcs_clock_set(BEGUN + 100 * SECOND);
    OK(lmcs_prune(pool, "removed", "keep=every:5", false, NULL, NULL, NULL, NULL, &err));
    grow(pool, "waiting", 20);
    OK(lmcs_shelf_set_policy(pool, "waiting", "keep=last:12 grace=none", &err));
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_shelf_set_policy(pool, "waiting", "keep=last:3 grace=1h", &err));
    close_pool(pool);
    describe_as("policies", "a.pool", "reading", path, LMCS_OPEN_READ);
    return 0;
}
