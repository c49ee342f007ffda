/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/link_jobs.h - finds the arrays of two neighbouring snapshots that one optimizer step changed together. */
#ifndef LMCS_COMPACT_LINK_JOBS_H
#define LMCS_COMPACT_LINK_JOBS_H

#include "links/relate.h"

/* The arrays of one parameter, before and after a step. */
struct lmcs_link_job {
    struct lmcs_step_group group; /* jobs of equal groups are adjacent, related ones largest first */
    uint32_t arrays;
    uint64_t raw_bytes; /* of each array */
    uint64_t identity;  /* of the first array */
    uint64_t before[LMC_MAX_BASES], after[LMC_MAX_BASES];
    bool has_rule; /* found from the data, with this rule: */
    struct lmc_link_rule rule;
};

struct lmcs_link_jobs {
    struct lmcs_link_job *items;
    size_t count, capacity;
    struct lmcs_relations relations; /* of the newer snapshot; none: all jobs have rules */
    struct lmcs_relations older;     /* where a scheduler changed constants after a step, they are in the older one */
    uint64_t newer;                  /* number; 0: none */
    enum lmcs_links why;             /* why there are no more jobs; LMCS_LINKS_UNKNOWN: no reason */
};

/*
 * Collects the jobs for the step from snapshot `number` to the next, from the relations of the newer one, else from the
 * data of the changed tensors (links/search.h), where a search is due.
 *
 * bound     most links in a line; 0: no jobs, no search
 * by_data   search the data although there are relations, which led to nothing
 * jobs      free with lmcs_link_jobs_free, also on failure
 */
enum lmcs_status lmcs_link_jobs_collect(struct lmcs_pool *pool, uint64_t shelf, uint64_t number, uint32_t bound,
                                        bool by_data, struct lmcs_link_jobs *jobs, struct lmcs_error *error);
void lmcs_link_jobs_free(struct lmcs_link_jobs *jobs);

#endif
