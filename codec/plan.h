/* SPDX-License-Identifier: BSD-3-Clause */
/* plan.h - chooses, from a sample, how a tensor is coded. */
#ifndef LMC_PLAN_H
#define LMC_PLAN_H

#include "lmc.h"
#include "transform.h"

/* The transform that makes the sampled words smallest; one without a base when that is as good. */
enum lmc_status lmci_plan(const struct lmc_params *params, enum lmci_transform *transform);

#endif
