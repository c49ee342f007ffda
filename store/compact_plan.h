/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact_plan.h - what to compact, decided from what is known and nothing else: pure functions.
 */
#ifndef LMCS_COMPACT_PLAN_H
#define LMCS_COMPACT_PLAN_H

#include <stdbool.h>
#include <stdint.h>

/* What the plan for a content depends on. */
struct lmcs_plan_facts {
    uint64_t raw_bytes;
    uint64_t stored_bytes;
    bool is_raw;
    bool is_settled;          /* a frame was tried and was no smaller */
    uint32_t height;          /* the longest chain of deltas that rests on it */
    bool has_successor;       /* the content that came after it under the same name, of the same size */
    uint32_t successor_depth; /* deltas to undo to read that one */
};

enum lmcs_plan_action {
    LMCS_PLAN_KEEP,     /* leave it as it is */
    LMCS_PLAN_KEYFRAME, /* compress it alone */
    LMCS_PLAN_DELTA     /* code it against its successor (the codec may find that alone is smaller) */
};

/* Contents below this are not worth a frame's header. */
#define LMCS_PLAN_LEAST_BYTES 1024u

/*
 * Deltas go from a content to the one after it, which is still raw when its turn comes, so nothing is decoded to
 * encode. A chain grows by one with each snapshot; when `chain_bound` deltas rest on a content it becomes a keyframe.
 */
enum lmcs_plan_action lmcs_plan_content(const struct lmcs_plan_facts *facts, uint32_t chain_bound);

/*
 * Whether to replace a delta against an unused base of `base_bytes`, on which `base_uses` deltas rest: the new frame
 * may be larger than the old one by its share of the base that can then go.
 */
bool lmcs_plan_rebase(uint64_t old_bytes, uint64_t new_bytes, uint64_t base_bytes, uint32_t base_uses);

/* File space of free extents to keep warm for captures: one snapshot's. */
uint64_t lmcs_plan_reserve(uint64_t last_snapshot_bytes);

#endif
