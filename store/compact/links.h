/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/links.h - making the links from one snapshot to the next: the part of the compactor that knows optimizers.
 */
#ifndef LMCS_COMPACT_LINKS_H
#define LMCS_COMPACT_LINKS_H

#include "records/content.h"

struct lmcs_links_turn {
    struct lmcs_pool *pool;
    uint64_t shelf;                               /* its id ... */
    uint64_t number;                              /* ... and the snapshot from which they lead to the one after it */
    uint32_t bound;                               /* links in a line, at most; 0: none are wanted */
    bool serial;                                  /* in the caller's thread alone */
    bool (*go_on)(void *context, uint64_t bytes); /* so much was coded; false: stop, with LMCS_CANCELLED */
    void (*suspect)(void *context, uint64_t content); /* it may be damaged */
    void *context;
    uint64_t made; /* on output: links */
};

/*
 * Makes what links can be made, while both snapshots are raw, and notes at the newer one what came of it. The arrays
 * after the step stay raw for now: each knows the link that it can be stored by when its own turn has come. A link is
 * made only between bytes that are still what was written, on both sides of the step.
 */
enum lmcs_status lmcs_links_make(struct lmcs_links_turn *turn, struct lmcs_error *error);

#endif
