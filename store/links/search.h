/* SPDX-License-Identifier: BSD-3-Clause */
/* links/search.h - finds the tensors that an optimizer step changed together, from the data alone. */
#ifndef LMCS_LINKS_SEARCH_H
#define LMCS_LINKS_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lmc.h"
#include "lmcstore.h"

/* Smaller arrays are skipped: a small part of a state, and too few samples. */
#define LMCS_SEARCH_LEAST_ELEMENTS 1024u
/* Searched together: the work grows with the square. */
#define LMCS_SEARCH_MOST_ARRAYS 1024u

/* f32, in two neighbouring snapshots */
struct lmcs_search_array {
    const void *before, *after;
    uint64_t elements;
};

/* Indices of the searched arrays, in the order of the optimizer's roles (lmc.h). */
struct lmcs_search_match {
    size_t arrays[LMC_MAX_BASES];
    uint32_t count;            /* 3: Adam; 2: SGD */
    struct lmc_link_rule rule; /* of the step */
};

/*
 * Finds moments and parameter of each step of Adam, AdamW or SGD with momentum among `count` arrays, by the arithmetic
 * of 64 elements of each; lmc_link_fit confirms those that the last rule does not explain. No array is in two matches.
 * amsgrad's maximum is not searched.
 *
 * matches   array of *found; free with free(); NULL: none
 * errors    LMCS_NO_MEMORY
 */
enum lmcs_status lmcs_optimizer_search(const struct lmcs_search_array *arrays, size_t count,
                                       struct lmcs_search_match **matches, size_t *found, struct lmcs_error *error);

/* Whether the step to snapshot `number` is searched; `note` (enum lmcs_links) is that of the snapshot before. After a
 * search that led to no links, each 16th is. */
bool lmcs_search_is_due(uint32_t note, uint64_t number);

/* Whether 64 elements of a step's arrays follow a rule. False for Nesterov. */
bool lmcs_optimizer_explains(const struct lmc_link_rule *rule, const struct lmcs_search_array *arrays, uint32_t count);

#endif
