/* SPDX-License-Identifier: BSD-3-Clause */
/* mend.h - giving a damaged content its bytes again, from wherever they still are. */
#ifndef LMCS_MEND_H
#define LMCS_MEND_H

#include "donors.h"
#include "scan.h"
#include "store.h"

struct lmcs_mender;

/*
 * Opens the sources (archives and pools, by path) that may be asked besides what the pool itself has. A pool that is
 * this one itself is an error; what can't be read is one when nothing else can, else see lmcs_mender_unread.
 */
enum lmcs_status lmcs_mender_open(struct lmcs_pool *pool, const char *const *from, size_t from_count,
                                  struct lmcs_mender **mender, struct lmcs_error *error);
void lmcs_mender_close(struct lmcs_mender *mender);
/* Sources that could not be read. */
const struct lmcs_unread *lmcs_mender_unread(const struct lmcs_mender *mender);

#define LMCS_SOURCE_TEXT 200

struct lmcs_mended {
    bool is_whole;                 /* nothing of it is damaged any more, or it has gone */
    char source[LMCS_SOURCE_TEXT]; /* "" when nothing was mended */
    uint64_t blocks;
    unsigned char *lost; /* 1 for each block that is; to be freed; NULL: none */
};

/*
 * Looks at a content's payload again, mends what can be, commits that, and enters what is lost. Not to be able to mend
 * is no failure; LMCS_FULL: there was no room for what could have been.
 */
enum lmcs_status lmcs_mend(struct lmcs_mender *mender, uint64_t content, struct lmcs_mended *mended,
                           struct lmcs_error *error);

#endif
