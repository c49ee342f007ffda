/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * operations_links.c - steps of an optimizer, captured as links.
 *
 * Between the captures happens what a line must survive: removal of the newest snapshot, a capture that fails, raw
 * captures, compaction, forks, and another process. Lines are so short that captures soon write keyframes.
 */
#include "base/error.h"
#include "driver.h"
#include "sgd.h"

static void write_links(struct driver *d, const char *shelf)
{
    char policy[96];
    snprintf(policy, sizeof policy, "keep_raw=%d links=%d " WRITE_LINKS, 1 + (int)driver_below(d, 2),
             2 + (int)driver_below(d, 4));
    set_policy(d, shelf, policy);
}

static void capture_raw(struct driver *d, const char *shelf)
{
    set_policy(d, shelf, WRITE_RAW);
    capture_now_or_later(d, shelf, NULL);
    write_links(d, shelf);
}

static void remove_newest(struct driver *d, const char *shelf)
{
    const struct shelf_version *version = expected_newest(d->expected, shelf);
    if (version->snapshot_count > 0)
        remove_snapshot(d, shelf, version->snapshots[version->snapshot_count - 1]);
}

/* Its first captures share the line of the origin. */
static void fork_newest(struct driver *d, const char *shelf)
{
    const struct shelf_version *version = expected_newest(d->expected, shelf);
    if (version->snapshot_count == 0)
        return;
    const char *name = fork_shelf(d, shelf, version->snapshots[version->snapshot_count - 1]);
    if (name == NULL)
        return;
    write_links(d, name);
    capture_now_or_later(d, name, NULL);
}

static void disturb(struct driver *d, const char *shelf)
{
    switch (driver_below(d, 14)) {
    case 0:
    case 1:
        remove_newest(d, shelf);
        break;
    case 2:
        abort_capture(d, shelf);
        break;
    case 3:
        capture_raw(d, shelf);
        break;
    case 4:
    case 5:
        compact(d, driver_chance(d, 20));
        break;
    case 6:
        compact_a_little(d);
        break;
    case 7:
        fork_newest(d, shelf);
        break;
    case 8:
        open_again(d);
        break;
    default:
        break;
    }
}

void do_links(struct driver *d)
{
    const char *shelf = some_shelf(d);
    if (shelf == NULL || is_crowded(d, shelf))
        return;
    write_links(d, shelf);
    for (uint64_t i = 0, steps = 3 + driver_below(d, 5); i < steps && !is_crowded(d, shelf); i++) {
        struct later later = {.capture = NULL};
        capture_now_or_later(d, shelf, driver_chance(d, 40) ? &later : NULL);
        wait_for(d, &later);
        disturb(d, shelf);
    }
}

/* ---- After a power failure ---- */

#define AFTER_ELEMENTS 5000u

static enum lmcs_status take_step(struct lmcs_pool *pool, const float *buffer, const float *weight, uint64_t *number,
                                  struct lmcs_error *error)
{
    static const uint64_t shape = AFTER_ELEMENTS;
    static const struct lmcs_tensor tensors[] = {{.name = "after.m", .dtype = LMC_F32, .ndim = 1, .shape = &shape},
                                                 {.name = "after.w", .dtype = LMC_F32, .ndim = 1, .shape = &shape}};
    const struct lmcs_relation relation = sgd_relation("after.m", "after.w");
    const void *data[] = {buffer, weight};
    struct lmcs_capture *capture;
    enum lmcs_status status = lmcs_capture_begin(pool, "run", &capture, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_capture_relate(capture, &relation, 1, error);
    if (status == LMCS_OK)
        status = lmcs_capture_put(capture, tensors, data, 2, error);
    if (status == LMCS_OK)
        return lmcs_capture_commit(capture, NULL, number, error);
    lmcs_capture_abort(capture);
    return status;
}

static enum lmcs_status read_step(struct lmcs_pool *pool, uint64_t number, const float *buffer, const float *weight,
                                  bool *same, struct lmcs_error *error)
{
    static float read[2][AFTER_ELEMENTS];
    struct lmcs_snapshot *snapshot;
    char which[32];
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    enum lmcs_status status = lmcs_snapshot_find(pool, "run", which, &snapshot, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_snapshot_read(snapshot, LMCS_TENSOR, "after.m", read[0], sizeof read[0], error);
    if (status == LMCS_OK)
        status = lmcs_snapshot_read(snapshot, LMCS_TENSOR, "after.w", read[1], sizeof read[1], error);
    lmcs_snapshot_close(snapshot);
    *same = memcmp(read[0], buffer, sizeof read[0]) == 0 && memcmp(read[1], weight, sizeof read[1]) == 0;
    return status;
}

enum lmcs_status links_go_on(struct lmcs_pool *pool, uint64_t seed, struct lmcs_error *error)
{
    static float buffer[AFTER_ELEMENTS], weight[AFTER_ELEMENTS];
    struct rng rng = {seed};
    bool same = true;
    uint64_t number;
    enum lmcs_status status = lmcs_shelf_set_policy(pool, "run", WRITE_LINKS, error);
    memset(buffer, 0, sizeof buffer);
    memset(weight, 0, sizeof weight);
    for (size_t i = 0; i < 3 && status == LMCS_OK; i++) {
        sgd_step(&rng, buffer, weight, AFTER_ELEMENTS);
        status = take_step(pool, buffer, weight, &number, error);
    }
    if (status == LMCS_OK)
        status = read_step(pool, number, buffer, weight, &same, error);
    return same ? status : lmcs_fail(error, LMCS_DAMAGED, 0, "a step has other bytes");
}
