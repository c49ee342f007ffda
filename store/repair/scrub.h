/* SPDX-License-Identifier: BSD-3-Clause */
/* repair/scrub.h - scrubs on request and, a little at a time, in the background. */
#ifndef LMCS_REPAIR_SCRUB_H
#define LMCS_REPAIR_SCRUB_H

#include "pages/pool.h"
#include "repair/verify.h"

struct lmcs_sources;

/* Runs lmcs_scrub with checked options. `sources`: owned by the caller; NULL: no repair. `look`: of a whole
 * pass (lmcs_check_as_a_writer). *report is set also on errors.
 * LMCS_DAMAGED: unrepaired damage. LMCS_FULL: a repair lacked room. */
enum lmcs_status lmcs_scrub_run(struct lmcs_pool *pool, const struct lmcs_scrub_options *options,
                                struct lmcs_sources *sources, lmcs_check_look *look,
                                void (*visit)(void *context, const struct lmcs_scrub_damage *damage), void *context,
                                const struct lmcs_progress *progress, struct lmcs_scrub_report *report,
                                struct lmcs_error *error);

/* Fills the scrub's part of the pool's info. */
void lmcs_scrub_state(const struct lmcs_root_df *root, struct lmcs_pool_info *info);

/* Position of the background scrub in a pass. */
struct lmcs_scrub_turn {
    bool is_loaded;
    uint64_t next;     /* content */
    uint64_t begun_ns; /* of the pass */
    uint64_t bytes;
    uint64_t found;
    uint64_t repaired;
    uint64_t at_ns;    /* last turn */
    uint64_t saved_ns; /* last save of this position */
    double due_bytes;
};

/* Reads the bytes due since the last turn, if a policy asks for scrubs, and repairs. `go_on`: between blocks; false:
 * stop. */
enum lmcs_status lmcs_scrub_turn(struct lmcs_pool *pool, struct lmcs_scrub_turn *turn,
                                 bool (*go_on)(void *context, uint64_t bytes), void *context, struct lmcs_error *error);
/* Scrubs a damaged content and its bases: repairs them, or records lost blocks. */
enum lmcs_status lmcs_scrub_chain(struct lmcs_pool *pool, uint64_t content, struct lmcs_error *error);

#endif
