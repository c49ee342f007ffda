/* SPDX-License-Identifier: BSD-3-Clause */
/* records/lines.h - the links of a line: places, and links kept only for removed steps. */
#ifndef LMCS_RECORDS_LINES_H
#define LMCS_RECORDS_LINES_H

#include "records/content.h"

/* Arrays of a step that snapshots have, and links below that nothing else needs. */
struct lmcs_line_heir {
    uint64_t arrays[LMC_MAX_BASES]; /* one link's outputs that still exist */
    size_t count;                   /* 0: no such step, or others need the links */
    uint64_t raw_bytes;             /* decoded */
    uint64_t link_bytes;            /* of the links, stored */
};

/*
 * For an array without snapshots that a link rests on: the next step above in its line that a snapshot has. Encoding
 * that step alone would free everything counted.
 */
enum lmcs_status lmcs_line_find_heir(struct lmcs_txn *txn, uint64_t unused, struct lmcs_line_heir *heir,
                                     struct lmcs_error *error);

/* The link that rests on an array; 0: none. */
enum lmcs_status lmcs_link_on(struct lmcs_txn *txn, uint64_t array, uint64_t *link, struct lmcs_error *error);
/* Lowers the places of the links above an array that was stored by a link and no longer is. */
enum lmcs_status lmcs_line_renumber(struct lmcs_txn *txn, uint64_t array, struct lmcs_error *error);

#endif
