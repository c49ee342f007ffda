/* SPDX-License-Identifier: BSD-3-Clause */
/* plan.h - chooses, from a sample, how a tensor is coded. */
#ifndef LMC_PLAN_H
#define LMC_PLAN_H

#include "block.h"
#include "classes.h"

/* How the blocks of a tensor are coded: by classes, and where that fails, or else, by a transform and planes. */
struct lmci_scheme {
    enum lmci_method method;
    enum lmci_transform transform;
    unsigned noise; /* so many planes, from the lowest on, are stored raw when they look like it in a block, too */
    struct lmci_classes classes;
    bool copies;  /* lines seem to repeat: it is worth looking for them in each block */
    unsigned low; /* of a method of keys: how many planes are below the differences */
};

static inline bool lmci_scheme_needs_base(const struct lmci_scheme *scheme)
{
    return scheme->method == LMCI_METHOD_CLASSES || scheme->method == LMCI_METHOD_KEYED ||
           lmci_transform_needs_base(scheme->transform);
}

/* The scheme that makes the sampled words smallest; one without a base when that is as good. */
enum lmc_status lmci_plan(const struct lmc_params *params, struct lmci_scheme *scheme);

/* Chooses the shifts of one block again, from a sample of it. */
void lmci_plan_shifts(unsigned word, const unsigned char *data, const unsigned char *base, size_t bytes,
                      struct lmci_classes *classes);

#endif
