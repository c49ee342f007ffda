/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/parity_batch.h - making parity for several contents in one commit (private to compact/). */
#ifndef LMCS_COMPACT_PARITY_BATCH_H
#define LMCS_COMPACT_PARITY_BATCH_H

#include "compact/parity.h"

#define LMCS_PARITY_BATCH 512u

struct lmcs_parity_batch {
    uint64_t contents[LMCS_PARITY_BATCH];
    struct lmcs_wanted_df wanted[LMCS_PARITY_BATCH];
    size_t count;
    bool leaves_share; /* leaves the compactor's share of room free */
    size_t done;       /* output: contents tried; a batch ends after some bytes */
    bool is_stopped;   /* output: go_on returned false */
    size_t entered;
    uint64_t too_large; /* smallest parity that found no room; UINT64_MAX: none */
    struct lmcs_error full;
    bool is_damaged[LMCS_PARITY_BATCH];
    bool has_no_room[LMCS_PARITY_BATCH];
    bool is_any_left; /* a content of this or an earlier batch got no parity */
};

enum lmcs_status lmcs_parity_make_batch(struct lmcs_pool *pool, struct lmcs_parity_batch *batch,
                                        bool (*go_on)(void *context, uint64_t bytes), void *context,
                                        struct lmcs_error *error);
/* Returns LMCS_FULL instead of LMCS_OK if a parity found no room. */
enum lmcs_status lmcs_parity_unless_full(const struct lmcs_parity_batch *batch, enum lmcs_status status,
                                         struct lmcs_error *error);

#endif
