/* SPDX-License-Identifier: BSD-3-Clause */
/* plan.h - chooses, from a sample, how a tensor is coded. */
#ifndef LMC_PLAN_H
#define LMC_PLAN_H

#include "block/scheme.h"
#include "lmc.h"

/* The scheme that makes the sampled words smallest; one without a base when that is as good. */
enum lmc_status lmci_plan(const struct lmc_params *params, struct lmci_scheme *scheme);

#endif
