/* SPDX-License-Identifier: BSD-3-Clause */
/* links/relate.h - what the relations of two neighbouring snapshots say about the step between them. */
#ifndef LMCS_LINKS_RELATE_H
#define LMCS_LINKS_RELATE_H

#include "links/step.h"
#include "records/relations.h"

/* The constants of a parameter's step. Parameters of the same two groups share a rule. */
struct lmcs_step_group {
    uint32_t newer; /* group in the relations of the newer snapshot */
    uint32_t older; /* of the same tensors in those of the older one, plus 1; 0: unknown */
};

/* Finds `older` of a relation of the newer snapshot. *at: where to begin, first 0, as relations keep their order. */
uint32_t lmcs_relate_older(const struct lmcs_relations *older, const struct lmcs_related *item, size_t *at);

/* Orders parameters by their groups, the largest arrays first: these determine the constants best. For qsort. */
int lmcs_relate_order(const struct lmcs_step_group *a, uint64_t a_bytes, const struct lmcs_step_group *b,
                      uint64_t b_bytes);
bool lmcs_relate_same(const struct lmcs_step_group *a, const struct lmcs_step_group *b);

/* Whether steps are missing between the snapshots, so that a link would cost more than a delta. False if the older step
 * is unknown. */
bool lmcs_relate_gap(const struct lmcs_relations *older, const struct lmcs_relations *newer);

/* Sets the hints of a step; its arrays are counted. None, if the relations have no rate: they name tensors only. */
void lmcs_relate_hints(const struct lmcs_relations *older, const struct lmcs_relations *newer,
                       const struct lmcs_step_group *group, struct lmcs_step *step);

#endif
