/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/plan.c - the pattern of deltas and keyframes, and the plan for one content. */
#include "compact/plan.h"

#include <string.h>

/* A jump of 1 saves 1000, a keyframe 0, others 1000 - 150 ln(jump), as measured. */
static const uint32_t savings[LMCS_DELTA_MOST_JUMP + 1] = {0, 1000, 896, 835, 792, 759, 731, 708, 688};

/*
 * best[d][n]: greatest saving of the n contents before a base, with chains of at most d deltas. first[d][n]: distance
 * from the base of the oldest content that rests on it directly. Older contents rest on that one (with d - 1), those
 * between on the base.
 */
struct search {
    uint32_t best[LMCS_PLAN_MOST_GROUP][LMCS_PLAN_MOST_GROUP];
    uint8_t first[LMCS_PLAN_MOST_GROUP][LMCS_PLAN_MOST_GROUP];
};

#define IMPOSSIBLE 0u /* a saving of 0 is possible only for no contents */

static void search_one(struct search *search, uint32_t d, uint32_t n, uint32_t jump)
{
    for (uint32_t k = 1; k <= jump && k <= n; k++) {
        uint32_t between = search->best[d][k - 1], beyond = search->best[d - 1][n - k];
        bool possible = (k == 1 || between != IMPOSSIBLE) && (n == k || beyond != IMPOSSIBLE);
        if (possible && savings[k] + between + beyond > search->best[d][n]) {
            search->best[d][n] = savings[k] + between + beyond;
            search->first[d][n] = (uint8_t)k;
        }
    }
}

/* Sets the jumps of the contents at distances `from` + 1 to `from` + n of the keyframe at place `last`. */
static void lay_out(const struct search *search, uint32_t d, uint32_t n, uint32_t from, uint32_t last, uint8_t *jumps)
{
    while (n > 0) {
        uint32_t k = search->first[d][n];
        jumps[last - from - k] = (uint8_t)k;
        lay_out(search, d - 1, n - k, from + k, last, jumps);
        n = k - 1;
    }
}

void lmcs_plan_pattern(uint32_t chain, uint32_t jump, struct lmcs_plan_pattern *pattern)
{
    struct search search;
    uint32_t best = 0;
    memset(&search, 0, sizeof search);
    *pattern = (struct lmcs_plan_pattern){.length = 1};
    chain = chain < LMCS_PLAN_MOST_GROUP ? chain : LMCS_PLAN_MOST_GROUP - 1;
    jump = jump < LMCS_DELTA_MOST_JUMP ? jump : LMCS_DELTA_MOST_JUMP;
    for (uint32_t d = 1; d <= chain; d++)
        for (uint32_t n = 1; n < LMCS_PLAN_MOST_GROUP; n++)
            search_one(&search, d, n, jump);
    for (uint32_t n = 1; n < LMCS_PLAN_MOST_GROUP; n++)
        if (search.best[chain][n] * pattern->length > best * (n + 1)) {
            best = search.best[chain][n];
            pattern->length = n + 1;
        }
    lay_out(&search, chain, pattern->length - 1, 0, pattern->length - 1, pattern->jumps);
}

/* Returns the pattern's jump, or else the longest possible shorter one; 0: none. */
static uint32_t choose_jump(const struct lmcs_plan_facts *facts, uint32_t wanted, uint32_t chain)
{
    uint32_t jump = wanted < facts->successor_count ? wanted : facts->successor_count;
    while (jump > 0 && facts->successor_depths[jump - 1] + 1 + facts->height > chain)
        jump--;
    return jump;
}

struct lmcs_plan lmcs_plan_content(const struct lmcs_plan_facts *facts, const struct lmcs_plan_pattern *pattern,
                                   uint32_t chain)
{
    struct lmcs_plan plan = {.action = LMCS_PLAN_KEEP};
    if (!facts->is_raw || facts->is_settled || facts->raw_bytes < LMCS_DELTA_LEAST_BYTES)
        return plan;
    plan.jump = choose_jump(facts, pattern->jumps[facts->place % pattern->length], chain);
    plan.action = plan.jump > 0 ? LMCS_PLAN_DELTA : LMCS_PLAN_KEYFRAME;
    plan.next_place = plan.jump > 0 ? (facts->place + 1) % pattern->length : 0;
    return plan;
}

bool lmcs_plan_rebase(uint64_t old_bytes, uint64_t new_bytes, uint64_t base_bytes, uint32_t base_uses)
{
    uint64_t share = base_uses == 0 ? 0 : base_bytes / base_uses;
    return new_bytes <= old_bytes || new_bytes - old_bytes < share;
}

bool lmcs_plan_restart(uint64_t link_bytes, uint64_t raw_bytes)
{
    return link_bytes > raw_bytes;
}

uint64_t lmcs_plan_reserve(uint64_t last_snapshot_bytes)
{
    return last_snapshot_bytes + last_snapshot_bytes / 4;
}
