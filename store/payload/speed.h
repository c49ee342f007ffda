/* SPDX-License-Identifier: BSD-3-Clause */
/* payload/speed.h - how fast this machine decodes, and so how long lines may be. */
#ifndef LMCS_PAYLOAD_SPEED_H
#define LMCS_PAYLOAD_SPEED_H

#include "pages/pool.h"

enum lmcs_decoded { LMCS_DECODED_LINK, LMCS_DECODED_KEYFRAME };

/* Measures in processor time: a thread of low priority waits for a processor, too. */
uint64_t lmcs_speed_ns(void);
/* Counts decoded bytes, all arrays of a link; `since`: lmcs_speed_ns at the beginning, in this thread. */
void lmcs_speed_add(struct lmcs_pool *pool, enum lmcs_decoded what, uint64_t bytes, uint64_t since);

/*
 * The most links, on average over its bytes, behind a state that all of the pool's threads restore in `restore_seconds`
 * per GiB: keyframes, new memory for them, then the links. At most LMCS_LINK_BOUND, which it is for 0 seconds (no
 * limit); 0: not even keyframes alone.
 *
 * Speeds are those of payloads that this process has written and verified; before the first, of one thread of a slow
 * machine (0.45 s per GiB for a keyframe, 0.1 s for a link; tools/bench.sh links --only restore).
 */
double lmcs_links_within(const struct lmcs_pool *pool, uint64_t restore_seconds);

#endif
