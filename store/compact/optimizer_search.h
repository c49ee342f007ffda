/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/optimizer_search.h - finds the tensors that an optimizer step changed together, from the data alone. */
#ifndef LMCS_COMPACT_OPTIMIZER_SEARCH_H
#define LMCS_COMPACT_OPTIMIZER_SEARCH_H

#include <stddef.h>
#include <stdint.h>

#include "lmc.h"
#include "lmcstore.h"

/* Smaller arrays are skipped: they are a small part of a state, and a sample of them proves little. */
#define LMCS_SEARCH_LEAST_ELEMENTS 1024u
/* The work grows with the square, so arrays of one size are searched in portions, in their order. */
#define LMCS_SEARCH_MOST_ARRAYS 1024u

/* An f32 tensor in two snapshots, one step apart. */
struct lmcs_search_array {
    const void *before, *after;
    uint64_t elements;
};

/* An optimizer's arrays in the order of its roles (lmc.h), as indices of the searched arrays. */
struct lmcs_search_match {
    size_t arrays[LMC_MAX_BASES];
    uint32_t count;            /* 3: Adam; 2: SGD */
    struct lmc_link_rule rule; /* the rule that the step follows */
};

/*
 * Finds the moments and the parameter of each step of Adam, AdamW or SGD with momentum among `count` arrays. Samples 64
 * elements of each array and tests the arithmetic, not names. lmc_link_fit confirms on a few thousand elements those
 * that the rule found last does not explain. No array is in two matches. The maximum of amsgrad is not searched.
 *
 * matches   *matches is an array of *found; free with free(); NULL: none
 * errors    LMCS_NO_MEMORY
 */
enum lmcs_status lmcs_optimizer_search(const struct lmcs_search_array *arrays, size_t count,
                                       struct lmcs_search_match **matches, size_t *found, struct lmcs_error *error);

#endif
