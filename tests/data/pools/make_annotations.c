/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * make_annotations.c - writes annotations/a.pool: annotations in the records, and others that wait in the ring that a
 * killed writer left (make_later.sh).
 */
#include "make_support.h"

#include <unistd.h>

#include "base/clock.h"

#define BEGUN (1800000000 * (uint64_t)1000000000) /* 2027-01-15, UTC */

static const char *path;

/* Takes five snapshots and annotates two; then waits for its end. */
static int train(void *argument)
{
    const int *ready = argument;
    struct rng rng = {1};
    struct state *state = state_weights(&rng, 2, 300);
    struct lmcs_pool *pool = make_pool(path);
    lmcs_clock_set(BEGUN);
    for (int step = 0; step < 5; step++) {
        take_snapshot(pool, "run", state, step);
        state_step(state, &rng, 0, state->count);
    }
    OK(lmcs_metric_set(pool, "run", 1, "loss", 0.5, &err));
    OK(lmcs_note_set(pool, "run", 2, "by the writer", &err));
    OK(lmcs_tag_set(pool, "run", "moved", 1, &err));
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
    path = path_in("annotations", "a.pool");
    EXPECT(pipe(ready) == 0);
    pid_t trainer = start_child(train, ready);
    EXPECT(read(ready[0], &byte, 1) == 1);
    lmcs_clock_set(BEGUN);
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    for (int i = 0; i < 100; i++)
        OK(lmcs_metric_set(pool, "run", 1, "val_loss", 1.0 / (i + 1), &err));
    OK(lmcs_metric_set(pool, "run", 1, "loss", 0.25, &err));
    OK(lmcs_note_set(pool, "run", 3, "beside the writer", &err));
    OK(lmcs_tag_set(pool, "run", "moved", 4, &err));
    OK(lmcs_tag_set(pool, "run", "gone", 5, &err));
    OK(lmcs_tag_remove(pool, "run", "gone", &err));
    close_pool(pool);
    EXPECT(kill(trainer, SIGKILL) == 0 && waitpid(trainer, NULL, 0) == trainer);
    describe_both("annotations", "a.pool");
    return 0;
}
