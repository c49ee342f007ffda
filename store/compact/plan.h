/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/plan.h - decides how contents are stored: pure functions. */
#ifndef LMCS_COMPACT_PLAN_H
#define LMCS_COMPACT_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "records/policy.h"

#define LMCS_PLAN_MOST_GROUP 32u /* most contents from one keyframe to the next */

/*
 * How the contents of a name are encoded, from one keyframe to the next, oldest first. The content with place i is a
 * delta to the content that came jumps[i] contents later. 0: a keyframe, which ends the group.
 */
struct lmcs_plan_pattern {
    uint32_t length;
    uint8_t jumps[LMCS_PLAN_MOST_GROUP];
};

/*
 * Computes the pattern that makes contents smallest on average, with chains of at most `chain` deltas (0: keyframes
 * only) and jumps of at most `jump` (1 or more): a base must still be raw when the delta is made.
 *
 * A longer jump saves less. In measured histories (tools/bench.sh history) the saving, as a share of that of a jump of
 * 1, falls with the logarithm of the jump, nearly the same for weights and moments, bf16 and fp32. One pattern
 * therefore serves all.
 */
void lmcs_plan_pattern(uint32_t chain, uint32_t jump, struct lmcs_plan_pattern *pattern);

/* Input of the plan for a content. */
struct lmcs_plan_facts {
    uint64_t raw_bytes;
    bool is_raw;
    bool is_settled; /* a frame was tried and was no smaller */
    uint32_t height; /* longest chain of deltas that rest on it */
    uint32_t place;  /* contents of its name encoded since the last keyframe */
    /* Contents that came after it under the same name, of the same size: */
    uint32_t successor_count;
    uint32_t successor_depths[LMCS_PLAN_MOST_JUMP]; /* deltas to undo to read each */
};

enum lmcs_plan_action {
    LMCS_PLAN_KEEP,     /* leave as it is */
    LMCS_PLAN_KEYFRAME, /* compress alone */
    LMCS_PLAN_DELTA     /* encode against a successor (the codec may find that alone is smaller) */
};

struct lmcs_plan {
    enum lmcs_plan_action action;
    uint32_t jump;       /* LMCS_PLAN_DELTA: 1 is the next content */
    uint32_t next_place; /* of the next content */
};

/*
 * Plans for a content whose turn it is. Deltas refer to newer contents, which are still raw, so nothing is decoded to
 * encode. If the pattern's base is missing or its chain would exceed `chain`, the plan takes a nearer base, or else a
 * keyframe.
 */
struct lmcs_plan lmcs_plan_content(const struct lmcs_plan_facts *facts, const struct lmcs_plan_pattern *pattern,
                                   uint32_t chain);

/*
 * Whether to replace a delta against an unused base of `base_bytes`, which `base_uses` deltas share: the new frame may
 * be larger than the old one by its share of the base.
 */
bool lmcs_plan_rebase(uint64_t old_bytes, uint64_t new_bytes, uint64_t base_bytes, uint32_t base_uses);

/*
 * Whether a step whose line has lost the steps below it begins a line of its own: if the links kept only for it take
 * more than its arrays do raw, and so more than its keyframes.
 */
bool lmcs_plan_restart(uint64_t link_bytes, uint64_t raw_bytes);

/* Bytes of free extents to keep for captures: one snapshot's. */
uint64_t lmcs_plan_reserve(uint64_t last_snapshot_bytes);

#endif
