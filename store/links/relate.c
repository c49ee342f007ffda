/* SPDX-License-Identifier: BSD-3-Clause */
/* links/relate.c - groups and hints of a step, from the relations before and after it. */
#include "links/relate.h"

#include <string.h>

#include "base/order.h"

uint32_t lmcs_relate_older(const struct lmcs_relations *older, const struct lmcs_related *item, size_t *at)
{
    for (size_t i = 0; i < older->count; i++, ++*at) {
        const struct lmcs_related *other = &older->items[*at % older->count];
        if (strcmp(other->names[0], item->names[0]) == 0)
            return other->group + 1;
    }
    return 0;
}

int lmcs_relate_order(const struct lmcs_step_group *a, uint64_t a_bytes, const struct lmcs_step_group *b,
                      uint64_t b_bytes)
{
    const int order = LMCS_ORDER2(a->newer, b->newer, a->older, b->older);
    return order != 0 ? order : LMCS_ORDER(b_bytes, a_bytes);
}

bool lmcs_relate_same(const struct lmcs_step_group *a, const struct lmcs_step_group *b)
{
    return a->newer == b->newer && a->older == b->older;
}

bool lmcs_relate_gap(const struct lmcs_relations *older, const struct lmcs_relations *newer)
{
    bool gap = false;
    for (size_t i = 0; i < older->group_count && older->group_count == newer->group_count; i++) {
        double before = older->groups[i].step, after = newer->groups[i].step;
        gap |= before > 0 && after > 0 && after != before && after != before + 1;
    }
    return gap;
}

/* The newer snapshot has the constants of the step, or of the next one: then the older one has them, but for the step's
 * number and the scale. */
void lmcs_relate_hints(const struct lmcs_relations *older, const struct lmcs_relations *newer,
                       const struct lmcs_step_group *group, struct lmcs_step *step)
{
    step->hint_count = 0;
    if (newer->groups[group->newer].lr == 0)
        return;
    step->hints[step->hint_count++] = newer->groups[group->newer];
    if (group->older == 0)
        return;
    struct lmc_link_hints *hints = &step->hints[1];
    *hints = older->groups[group->older - 1];
    hints->step = step->hints[0].step;
    hints->scale = step->hints[0].scale;
    if (lmc_link_arrays(hints->optimizer, hints->flags) == step->arrays &&
        memcmp(hints, &step->hints[0], sizeof *hints) != 0)
        step->hint_count++;
}
