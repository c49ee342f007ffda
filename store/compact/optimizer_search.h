/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/optimizer_search.h - which tensors of a state an optimizer's step changed together, found from the data
 * alone.
 */
#ifndef LMCS_COMPACT_OPTIMIZER_SEARCH_H
#define LMCS_COMPACT_OPTIMIZER_SEARCH_H

#include <stddef.h>
#include <stdint.h>

#include "lmc.h"
#include "lmcstore.h"

/* Arrays with fewer elements are not looked at: they are little of any state, and a sample of them says little. */
#define LMCS_TRIPLES_LEAST_ELEMENTS 1024u
/* More arrays of one size are looked through so many at a time, in their order: the work grows with the square. */
#define LMCS_TRIPLES_MOST_ARRAYS 1024u

/* A tensor of f32 in two snapshots, one step apart. */
struct lmcs_triples_array {
    const void *before, *after;
    uint64_t elements;
};

/* An optimizer's arrays, in the order of its roles (lmc.h), as numbers of what was looked through. */
struct lmcs_triple {
    size_t arrays[LMC_MAX_BASES];
    uint32_t count;            /* 3: Adam; 2: SGD */
    struct lmc_link_rule rule; /* by which the step can be coded */
};

/*
 * Finds, among `count` arrays, which are the moments and the parameter of one step of Adam, AdamW or SGD with momentum.
 * Looks at 64 elements of each array to tell what may belong together, by the arithmetic and not by names; what is not
 * explained by the rule that was found last, lmc_link_fit has to confirm on a few thousand. No array is in two triples.
 * What amsgrad keeps is not looked for.
 *
 * triples   *triples is an array of *found, to be freed with free(); NULL when there are none
 * errors    LMCS_NO_MEMORY
 */
enum lmcs_status lmcs_triples_find(const struct lmcs_triples_array *arrays, size_t count, struct lmcs_triple **triples,
                                   size_t *found, struct lmcs_error *error);

#endif
