/* SPDX-License-Identifier: BSD-3-Clause */
/* holders.h - which tensors of which snapshots need a content: as it is, or as what they rest on. */
#ifndef LMCS_RECORDS_HOLDERS_H
#define LMCS_RECORDS_HOLDERS_H

#include "records/content.h"

/* One name in snapshots that follow one another. */
struct lmcs_found_holder {
    size_t root; /* index of the content that was asked for */
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
 * Looks through all manifests of one moment, each page once. What can't be read is passed over: then *whole is false.
 * The caller frees the holders in any case.
 */
enum lmcs_status lmcs_holders_find(struct lmcs_pool *pool, const uint64_t *contents, size_t count,
                                   struct lmcs_holders *holders, bool *whole, struct lmcs_error *error);
void lmcs_holders_free(struct lmcs_holders *holders);

#endif
