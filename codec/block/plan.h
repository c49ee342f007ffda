/* SPDX-License-Identifier: BSD-3-Clause */
/* plan.h - chooses from a sample how a tensor is encoded. */
#ifndef LMC_PLAN_H
#define LMC_PLAN_H

#include "block/scheme.h"
#include "lmc.h"

/* Chooses no base if that is as good. `model`: for a small tensor and others like it, from more words. Allocates. */
enum lmc_status lmci_plan(const struct lmc_params *params, bool model, struct lmci_scheme *scheme);

/* Takes over the scheme of a tensor of the same dtype. False: the tensor needs a plan of its own. */
bool lmci_plan_like(const struct lmc_params *params, const struct lmci_scheme *like, struct lmci_scheme *scheme);

#endif
