/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * make_remote.c - writes remote/a.pool: snapshots that left for a URL, and a request to let others go that waits in the
 * ring that a killed writer left (make_later.sh).
 */
#include "make_support.h"

#include <unistd.h>

#include "base/clock.h"

#define BEGUN (1800000000 * (uint64_t)1000000000) /* 2027-01-15, UTC */
#define URL   "s3://bucket/run"

static const char *path;

static int train(void *argument)
{
    const int *ready = argument;
    struct rng rng = {1};
    struct state *state = state_weights(&rng, 2, 300);
    struct lmcs_pool *pool = make_pool(path);
    lmcs_clock_set(BEGUN);
    OK(lmcs_shelf_set_policy(pool, "run", "keep_raw=2 local=last:3", &err));
    for (int step = 0; step < 9; step++) {
        take_snapshot(pool, "run", state, step);
        state_step(state, &rng, 0, state->count);
    }
    OK(lmcs_tag_set(pool, "run", "kept", 2, &err));
    OK(lmcs_metric_set(pool, "run", 3, "loss", 0.5, &err));
    OK(lmcs_snapshots_safe(pool, "run", 1, 4, pool_info(pool).epoch, URL, &err));
    OK(lmcs_tag_set(pool, "run", "late", 3, &err));
    OK(lmcs_note_set(pool, "run", 4, "it left", &err));
    EXPECT(write(ready[1], "r", 1) == 1);
    while (true)
        pause();
    return 0;
}

int main(int argc, char **argv)
{
    int ready[2];
    char byte;
    begin_program(argc, argv);
    path = path_in("remote", "a.pool");
    EXPECT(pipe(ready) == 0);
    pid_t trainer = start_child(train, ready);
    EXPECT(read(ready[0], &byte, 1) == 1);
    lmcs_clock_set(BEGUN);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    OK(lmcs_snapshots_safe(pool, "run", 5, 6, pool_info(pool).epoch, URL, &err));
    OK(lmcs_metric_set(pool, "run", 1, "loss", 0.25, &err));
    close_pool(pool);
    EXPECT(kill(trainer, SIGKILL) == 0 && waitpid(trainer, NULL, 0) == trainer);
    describe_both("remote", "a.pool");
    return 0;
}
