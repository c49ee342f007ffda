/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/plan.h - decides how contents are stored: pure functions. */
#ifndef LMCS_COMPACT_PLAN_H
#define LMCS_COMPACT_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "records/policy.h"

#define LMCS_PLAN_MOST_GROUP 32u /* contents from one keyframe to the next */

/* Oldest content first. Place i is a delta to the content jumps[i] later; 0: a keyframe, which ends the group. */
struct lmcs_plan_pattern {
    uint32_t length;
    uint8_t jumps[LMCS_PLAN_MOST_GROUP];
};

/* Finds the pattern of least mean size with chains of at most `chain` deltas (0: keyframes only) and jumps of at most
 * `jump` (1 or more), since a base must still be raw. One pattern serves all tensors (store/LINKS.md). */
void lmcs_plan_pattern(uint32_t chain, uint32_t jump, struct lmcs_plan_pattern *pattern);

struct lmcs_plan_facts {
    uint64_t raw_bytes;
    bool is_raw;
    bool is_settled; /* a frame was no smaller than the raw bytes */
    uint32_t height; /* longest chain of deltas that rests on it */
    uint32_t place;  /* contents of its name since the last keyframe */
    /* Later contents of its name and size: */
    uint32_t successor_count;
    uint32_t successor_depths[LMCS_DELTA_MOST_JUMP]; /* deltas to undo */
};

enum lmcs_plan_action {
    LMCS_PLAN_KEEP,
    LMCS_PLAN_KEYFRAME, /* compress alone */
    LMCS_PLAN_DELTA     /* against a successor, if the codec finds no keyframe smaller */
};

struct lmcs_plan {
    enum lmcs_plan_action action;
    uint32_t jump;       /* of a delta; 1: to the next content */
    uint32_t next_place; /* of the next content */
};

/* Plans one content by the pattern; with a nearer base, or else a keyframe, if the pattern's base is missing or its
 * chain would exceed `chain`. */
struct lmcs_plan lmcs_plan_content(const struct lmcs_plan_facts *facts, const struct lmcs_plan_pattern *pattern,
                                   uint32_t chain);

/* Whether to replace a delta against an unused base of `base_bytes` with `base_uses` deltas: the frame may grow by its
 * share of the base. */
bool lmcs_plan_rebase(uint64_t old_bytes, uint64_t new_bytes, uint64_t base_bytes, uint32_t base_uses);

/* Whether a step whose line lost its earlier steps should begin a new line: if the links kept for it are larger than
 * its raw bytes, and so than keyframes. */
bool lmcs_plan_restart(uint64_t link_bytes, uint64_t raw_bytes);

/* Bytes of free extents to keep for captures: one snapshot. */
uint64_t lmcs_plan_reserve(uint64_t last_snapshot_bytes);

#endif
