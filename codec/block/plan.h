/* SPDX-License-Identifier: BSD-3-Clause */
/* plan.h - chooses from a sample how a tensor is encoded. */
#ifndef LMC_PLAN_H
#define LMC_PLAN_H

#include "block/scheme.h"
#include "lmc.h"

/* Chooses no base if that is as good. Allocates. */
enum lmc_status lmci_plan(const struct lmc_params *params, struct lmci_scheme *scheme);

#endif
