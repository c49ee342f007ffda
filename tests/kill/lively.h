/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * lively.h - live variables of a process that is killed, and their required state afterwards.
 *
 * One thread changes one shelf's variables. A step's number determines its changes and the state after it; a kill must
 * leave the state after the last acknowledged or the interrupted step.
 */
#ifndef LMCS_TEST_KILL_LIVELY_H
#define LMCS_TEST_KILL_LIVELY_H

#include "support.h"

#define LIVE_SHELF "live"

/* Steps that filled them. */
struct lively_variables {
    uint64_t floats; /* of the tensor "weights" */
    uint64_t weights;
    uint64_t bytes;
    uint64_t value;
    uint64_t counter;
    bool swapped; /* "a" and "b" */
};

struct lively {
    uint64_t step; /* last begun */
    struct lively_variables now;
    struct lively_variables saved; /* in the newest snapshot */
    bool has_saved;
};

void lively_set_up(struct lmcs_pool *pool, struct lively *lively);
/* LMCS_FULL: nothing changed. */
enum lmcs_status lively_step(struct lmcs_pool *pool, const struct lively *lively, uint64_t n);
void lively_apply(struct lively *lively, uint64_t n);
bool lively_is_right(struct lmcs_pool *pool, const struct lively *lively);
void lively_print(FILE *file, const char *what, const struct lively *lively);

#endif
