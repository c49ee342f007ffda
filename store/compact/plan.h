/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/plan.h - what to compact, decided from what is known and nothing else: pure functions.
 */
#ifndef LMCS_COMPACT_PLAN_H
#define LMCS_COMPACT_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "records/policy.h"

#define LMCS_PLAN_MOST_GROUP 32u /* contents from one keyframe to the next, at most */

/*
 * How a name's contents are coded, from one keyframe to the next, the oldest first. jumps[i] says against which the
 * content with place i goes: against the one that came jumps[i] contents later; 0: it is the keyframe, which ends the
 * group.
 */
struct lmcs_plan_pattern {
    uint32_t length;
    uint8_t jumps[LMCS_PLAN_MOST_GROUP];
};

/*
 * The pattern that makes contents smallest on average, of those in which no delta's chain is longer than `chain` (0:
 * keyframes only) and no jump longer than `jump` (1 or more): what is newer than that may not be raw any more, and a
 * base has to be raw when a delta is made.
 *
 * The longer a jump, the less a delta saves. In measured histories (tools/bench.sh history) what is saved, as a share
 * of what a jump of 1 saves, falls with the logarithm of the jump, and at nearly the same rate for weights and
 * moments, bf16 and fp32; so one pattern serves all.
 */
void lmcs_plan_pattern(uint32_t chain, uint32_t jump, struct lmcs_plan_pattern *pattern);

/* What the plan for a content depends on. */
struct lmcs_plan_facts {
    uint64_t raw_bytes;
    bool is_raw;
    bool is_settled; /* a frame was tried and was no smaller */
    uint32_t height; /* the longest chain of deltas that rests on it */
    uint32_t place;  /* contents of its name that were coded since the last keyframe */
    /* The contents that came after it under the same name, of the same size: */
    uint32_t successor_count;
    uint32_t successor_depths[LMCS_PLAN_MOST_JUMP]; /* deltas to undo to read them */
};

enum lmcs_plan_action {
    LMCS_PLAN_KEEP,     /* leave it as it is */
    LMCS_PLAN_KEYFRAME, /* compress it alone */
    LMCS_PLAN_DELTA     /* code it against a successor (the codec may find that alone is smaller) */
};

struct lmcs_plan {
    enum lmcs_plan_action action;
    uint32_t jump;       /* LMCS_PLAN_DELTA: 1 is the next content */
    uint32_t next_place; /* of the content that came after it */
};

/*
 * What to do with a content, whose turn has come. Deltas go to newer contents, which are still raw then, so nothing is
 * decoded to encode. Where the pattern's base is not there, or the chain would become longer than `chain`, it is a
 * nearer one; and when there is none, a keyframe.
 */
struct lmcs_plan lmcs_plan_content(const struct lmcs_plan_facts *facts, const struct lmcs_plan_pattern *pattern,
                                   uint32_t chain);

/*
 * Whether to replace a delta against an unused base of `base_bytes`, on which `base_uses` deltas rest: the new frame
 * may be larger than the old one by its share of the base that can then go.
 */
bool lmcs_plan_rebase(uint64_t old_bytes, uint64_t new_bytes, uint64_t base_bytes, uint32_t base_uses);

/*
 * Whether a step whose line lost the steps below it is to begin a line of its own: links that nothing else needs take
 * more than its arrays do raw, and so more than its keyframes.
 */
bool lmcs_plan_restart(uint64_t link_bytes, uint64_t raw_bytes);

/* File space of free extents to keep warm for captures: one snapshot's. */
uint64_t lmcs_plan_reserve(uint64_t last_snapshot_bytes);

#endif
