/* SPDX-License-Identifier: BSD-3-Clause */
/* make_captures.c - writes captures/a.pool: snapshots whose captures made links, deltas and raw contents; a keyframe in
 * a line (make_later.sh). */
#include "make_support.h"

static const size_t tiny[PARAMETERS] = {300, 1000, 2500};

static void train(struct lmcs_pool *pool, const char *shelf, struct lmc_link_hints hints, const char *policy,
                  size_t steps)
{
    struct run run;
    run_begin(&run, hints, BF16, tiny);
    set_policy(pool, shelf, policy);
    for (size_t i = 0; i < steps; i++) {
        run_step(&run);
        run_snapshot(&run, pool, shelf, i != 4, 0); /* one is not related, so it has no links */
    }
    run_end(&run);
}

int main(int argc, char **argv)
{
    EXPECT(argc == 2);
    out_folder = argv[1];
    mkdir(out_folder, 0700);
    const char *path = path_in("captures", "a.pool");
    struct lmcs_pool *pool = make_pool(path);
    train(pool, "adam", adamw_hints(), "write=link restore=none", 6);
    train(pool, "sgd", sgd_hints(), "write=link links=3 restore=2s", 6);
    OK(lmcs_compact(pool, NULL, &err)); /* a keyframe in the line of "sgd" */
    train(pool, "more", sgd_hints(), "write=link keep_raw=2", 3);
    close_pool(pool);
    describe_as("captures", "a.pool", "reading", path, LMCS_OPEN_READ);
    return 0;
}
