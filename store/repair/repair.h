/* SPDX-License-Identifier: BSD-3-Clause */
/* repair.h - giving a damaged content its bytes again, from wherever they still are. */
#ifndef LMCS_REPAIR_REPAIR_H
#define LMCS_REPAIR_REPAIR_H

#include "pages/pool.h"
#include "payload/scan.h"
#include "repair/sources.h"

struct lmcs_repairer;

/*
 * Opens the sources (archives and pools, by path) that may be asked besides what the pool itself has. A pool that is
 * this one itself is an error; what can't be read is one when nothing else can, else see lmcs_repairer_unread.
 */
enum lmcs_status lmcs_repairer_open(struct lmcs_pool *pool, const char *const *from, size_t from_count,
                                    struct lmcs_repairer **repairer, struct lmcs_error *error);
void lmcs_repairer_close(struct lmcs_repairer *repairer);
/* Sources that could not be read. */
const struct lmcs_unread *lmcs_repairer_unread(const struct lmcs_repairer *repairer);

#define LMCS_SOURCE_TEXT 200

struct lmcs_repaired {
    bool is_whole;                 /* nothing of it is damaged any more, or it has gone */
    char source[LMCS_SOURCE_TEXT]; /* "" when nothing was repaired */
    uint64_t blocks;
    unsigned char *lost; /* 1 for each block that is; to be freed; NULL: none */
};

/*
 * Looks at a content's payload again, repairs what can be, commits that, and enters what is lost. Not to be able to
 * repair
 * is no failure; LMCS_FULL: there was no room for what could have been.
 */
enum lmcs_status lmcs_repair(struct lmcs_repairer *repairer, uint64_t content, struct lmcs_repaired *repaired,
                             struct lmcs_error *error);

#endif
