/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/links.h - makes the links from one snapshot to the next. */
#ifndef LMCS_COMPACT_LINKS_H
#define LMCS_COMPACT_LINKS_H

#include "records/content.h"

struct lmcs_links_turn {
    struct lmcs_pool *pool;
    uint64_t shelf;                                   /* id */
    uint64_t number;                                  /* older of the pair */
    uint32_t bound;                                   /* most links in a line; 0: make none */
    bool serial;                                      /* use only the caller's thread */
    bool (*go_on)(void *context, uint64_t bytes);     /* after each amount; false: stop with LMCS_CANCELLED */
    void (*suspect)(void *context, uint64_t content); /* contents that may be damaged */
    void *context;
    uint64_t made; /* output: links */
};

/* Makes links while both snapshots are raw; records the result at the newer one. Arrays after the step stay raw until
 * their turn, and record the link that can then store them. Both sides must match their hashes and digests. */
enum lmcs_status lmcs_links_make(struct lmcs_links_turn *turn, struct lmcs_error *error);

#endif
