/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * links/step.h - face of links/, the room that finds the rule by which an optimizer's step changed one parameter.
 *
 * Uses base, media, pages, records, payload.
 */
#ifndef LMCS_LINKS_STEP_H
#define LMCS_LINKS_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "lmc.h"
#include "lmcstore.h"
#include "media/layout.h"

/* The arrays of one parameter before and after an optimizer's step. */
struct lmcs_step {
    uint32_t arrays;
    uint64_t raw_bytes; /* of each array */
    const void *before[LMC_MAX_BASES], *after[LMC_MAX_BASES];
    struct lmc_link_hints hints[2]; /* constants of the newer relations, then, if they differ, of the older ones */
    uint32_t hint_count;            /* 0: none are known; they are found in the data */
    bool has_rule;                  /* found by a search (links/search.h): the group's rule begins with it, known */
    const char *pool_path, *name;   /* for messages; name: of the first array */
};

/* Of parameters that share their constants, one after the other; the largest first, since it determines them best.
 * Begins with zeros, or with the rule of a search. */
struct lmcs_step_rule {
    struct lmc_link_rule rule;
    bool known;
    uint32_t fits; /* tried so far */
};

/* Encodes a link by `rule`. *worthwhile false: it exceeds lmcs_step_most_bytes, and nothing was made. */
typedef enum lmcs_status lmcs_step_encode(void *context, const struct lmc_link_rule *rule, bool *worthwhile,
                                          struct lmcs_error *error);

/*
 * Encodes by the group's rule or, if that does not pay, by a rule fitted to this parameter.
 *
 * sceptical    relations may name a wrong tensor: links nothing of which a rule explains less than half
 * *doubtful    set, never cleared, where it did so
 * *worthwhile  a link was made
 * *verdict     LMCS_LINKS_MADE, LMCS_LINKS_LARGE or LMCS_LINKS_UNEXPLAINED
 * errors       LMCS_NO_MEMORY; LMCS_DAMAGED: the medium does not deliver an array; those of `encode`
 */
enum lmcs_status lmcs_step_link(const struct lmcs_step *step, struct lmcs_step_rule *rule, bool sceptical,
                                bool *doubtful, lmcs_step_encode *encode, void *context, bool *worthwhile,
                                enum lmcs_links *verdict, struct lmcs_error *error);

/* Of a link that pays. Above, a delta saves as much and reads faster. */
uint64_t lmcs_step_most_bytes(const struct lmcs_step *step);

#endif
