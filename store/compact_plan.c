/* SPDX-License-Identifier: BSD-3-Clause */
/* compact_plan.c - what to compact, decided from what is known and nothing else. */
#include "compact_plan.h"

enum lmcs_plan_action lmcs_plan_content(const struct lmcs_plan_facts *facts, uint32_t chain_bound)
{
    if (!facts->is_raw || facts->is_settled || facts->raw_bytes < LMCS_PLAN_LEAST_BYTES)
        return LMCS_PLAN_KEEP;
    if (facts->has_successor && facts->successor_depth + 1 + facts->height <= chain_bound)
        return LMCS_PLAN_DELTA;
    return LMCS_PLAN_KEYFRAME;
}

bool lmcs_plan_rebase(uint64_t old_bytes, uint64_t new_bytes, uint64_t base_bytes, uint32_t base_uses)
{
    uint64_t share = base_uses == 0 ? 0 : base_bytes / base_uses;
    return new_bytes <= old_bytes || new_bytes - old_bytes < share;
}

uint64_t lmcs_plan_reserve(uint64_t last_snapshot_bytes)
{
    return last_snapshot_bytes + last_snapshot_bytes / 4;
}
