/* SPDX-License-Identifier: BSD-3-Clause */
/* scrub.h - what the rest of the store knows of scrubbing: the background does it a little at a time. */
#ifndef LMCS_REPAIR_SCRUB_H
#define LMCS_REPAIR_SCRUB_H

#include "pages/pool.h"

/* The part of lmcs_pool_info. */
void lmcs_scrub_state(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_pool_info *info);

/* The background's own place in a pass. */
struct lmcs_scrub_turn {
    bool is_loaded;
    uint64_t next;     /* content */
    uint64_t begun_ns; /* of the pass */
    uint64_t bytes;
    uint64_t found;
    uint64_t repaired;
    uint64_t at_ns;    /* when it last had its turn ... */
    uint64_t saved_ns; /* ... and when its place was last saved */
    double due_bytes;
};

/*
 * Reads what is due since the last turn, when a shelf's policy asks for it, and repairs what it can. `go_on` is asked now
 * and then; false: stop soon.
 */
enum lmcs_status lmcs_scrub_turn(struct lmcs_pool *pool, struct lmcs_scrub_turn *turn,
                                 bool (*go_on)(void *context, uint64_t bytes), void *context, struct lmcs_error *error);
/* Looks at what a content rests on, which somebody found damaged: repairs it, or enters what is lost. */
enum lmcs_status lmcs_scrub_chain(struct lmcs_pool *pool, uint64_t content, struct lmcs_error *error);

#endif
