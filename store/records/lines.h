/* SPDX-License-Identifier: BSD-3-Clause */
/* records/lines.h - the links that a line keeps only for steps that were removed. */
#ifndef LMCS_RECORDS_LINES_H
#define LMCS_RECORDS_LINES_H

#include "records/content.h"

/* The arrays of a step that snapshots still have, and the links below it that nothing else needs. */
struct lmcs_line_heir {
    uint64_t arrays[LMC_MAX_BASES]; /* the outputs of one link that still exist */
    size_t count;                   /* 0: there is no such step, or others need the links */
    uint64_t raw_bytes;             /* of all of them, decoded */
    uint64_t link_bytes;            /* of the links, as stored */
};

/*
 * Finds the heir of an array that no snapshot has but a link rests on: the next step above it in its line that a
 * snapshot has. Encoding that step alone would free everything counted.
 */
enum lmcs_status lmcs_line_find_heir(struct lmcs_txn *txn, uint64_t unused, struct lmcs_line_heir *heir,
                                     struct lmcs_error *error);

#endif
