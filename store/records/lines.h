/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/lines.h - what a line of links keeps for whom, after steps in it were removed.
 */
#ifndef LMCS_RECORDS_LINES_H
#define LMCS_RECORDS_LINES_H

#include "records/content.h"

/* The arrays of a step that snapshots still have, and the links below it that nothing but they need. */
struct lmcs_line_heir {
    uint64_t arrays[LMC_MAX_BASES]; /* as many as there still are of what one link leads to */
    size_t count;                   /* 0: there is no such step, or others need the links as well */
    uint64_t raw_bytes;             /* of all of them, decoded */
    uint64_t link_bytes;            /* of the links, as they are stored */
};

/*
 * Finds who inherits an array that no snapshot has any more, but on which a link rests: the next step above it in its
 * line that a snapshot has. Coded alone, that one would set free all that is counted.
 */
enum lmcs_status lmcs_line_find_heir(struct lmcs_txn *txn, uint64_t unused, struct lmcs_line_heir *heir,
                                     struct lmcs_error *error);

#endif
