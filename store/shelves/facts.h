/* SPDX-License-Identifier: BSD-3-Clause */
/* shelves/facts.h - facts about all snapshots of a shelf, on which a policy's rules decide. */
#ifndef LMCS_SHELVES_FACTS_H
#define LMCS_SHELVES_FACTS_H

#include "records/shelf.h"

#define LMCS_MOST_METRICS 256u /* names that lmcs_facts_gather counts; it ignores further ones */

/* A name that metrics of the shelf have. */
struct lmcs_named_metric {
    char *name;
    uint64_t count; /* snapshots with it, NaN or a number */
};

struct lmcs_facts {
    struct lmcs_policy policy;      /* set by the caller */
    bool names_metrics;             /* set by the caller: fills `named` if a rule needs metrics */
    struct lmcs_policy_facts *list; /* of committed snapshots, ascending by number */
    size_t count;
    size_t capacity;
    const char **kept; /* by index: the reason, or NULL */
    struct lmcs_named_metric *named;
    size_t named_count;
    size_t named_capacity;
};

bool lmcs_policy_needs_metrics(const struct lmcs_policy *policy);
/* Gathers facts about all committed snapshots, and those that facts->policy keeps. */
enum lmcs_status lmcs_facts_gather(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_facts *facts,
                                   struct lmcs_error *error);
void lmcs_facts_free(struct lmcs_facts *facts);

/* ---- warning.c ---- */

/* Writes a warning about rules whose metric no snapshot has, or only some; "": none. Needs facts->named. */
void lmcs_facts_warn(const struct lmcs_facts *facts, char text[LMCS_MAX_WARNING + 1]);

#endif
