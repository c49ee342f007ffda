/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/link_jobs.h - which arrays of two neighbouring snapshots one step of an optimizer changed together.
 */
#ifndef LMCS_COMPACT_LINK_JOBS_H
#define LMCS_COMPACT_LINK_JOBS_H

#include "records/relations.h"

/* The arrays of one parameter, before and after the step. */
struct lmcs_link_job {
    uint32_t group; /* of constants: jobs of a group are neighbours; related ones the largest first */
    uint32_t arrays;
    uint64_t raw_bytes; /* of each */
    uint64_t identity;  /* of the first array */
    uint64_t before[LMC_MAX_BASES], after[LMC_MAX_BASES];
    bool has_rule; /* it was found by its data, and with it this: */
    struct lmc_link_rule rule;
};

struct lmcs_link_jobs {
    struct lmcs_link_job *items;
    size_t count, capacity;
    struct lmcs_relations relations; /* of the newer snapshot; when it has none, all jobs have rules */
    uint64_t newer;                  /* the number of the snapshot that they lead to; 0: there is none */
    enum lmcs_links why;             /* there are not more; LMCS_LINKS_UNKNOWN: nothing is to be said of that */
};

/*
 * Collects them for the step from snapshot `number` to the one after it: what the newer one's relations say, or, where
 * it has none, what is found in the data of the tensors that changed (triples.h). That is looked for at each step while
 * there is something, and at one in LMCS_LINK_SEARCH_EVERY when there was nothing the time before.
 *
 * bound     links in a line, at most; 0: none are wanted, and nothing is looked for
 * by_data   whatever its relations say: they have led to nothing
 * jobs      to be freed with lmcs_link_jobs_free, also on failure
 */
#define LMCS_LINK_SEARCH_EVERY 16u
enum lmcs_status lmcs_link_jobs_collect(struct lmcs_pool *pool, uint64_t shelf, uint64_t number, uint32_t bound,
                                        bool by_data, struct lmcs_link_jobs *jobs, struct lmcs_error *error);
void lmcs_link_jobs_free(struct lmcs_link_jobs *jobs);

#endif
