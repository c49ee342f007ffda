/* SPDX-License-Identifier: BSD-3-Clause */
/* records/holders.h - the tensors and snapshots that need a content, directly or through deltas and links. */
#ifndef LMCS_RECORDS_HOLDERS_H
#define LMCS_RECORDS_HOLDERS_H

#include "records/content.h"

/* One name in consecutive snapshots. */
struct lmcs_found_holder {
    size_t root; /* index of the requested content */
    uint32_t shelf;
    uint64_t identity;
    uint64_t first; /* numbers */
    uint64_t last;
    uint64_t count;
    uint64_t ordinal; /* of the last one among the snapshots of its shelf */
};

struct lmcs_holders {
    struct lmcs_found_holder *items; /* by root, shelf, name and number */
    size_t count;
    size_t capacity;
    char **shelf_names;
    size_t shelf_count;
};

/*
 * Walks all manifests at one moment, each page once. *whole false: unreadable pages were skipped. Always free the
 * holders.
 */
enum lmcs_status lmcs_holders_find(struct lmcs_pool *pool, const uint64_t *contents, size_t count,
                                   struct lmcs_holders *holders, bool *whole, struct lmcs_error *error);
void lmcs_holders_free(struct lmcs_holders *holders);

#endif
