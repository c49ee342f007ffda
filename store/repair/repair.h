/* SPDX-License-Identifier: BSD-3-Clause */
/* repair/repair.h - restores the bytes of a damaged content from any sound copy. */
#ifndef LMCS_REPAIR_REPAIR_H
#define LMCS_REPAIR_REPAIR_H

#include "pages/pool.h"
#include "payload/scan.h"
#include "repair/sources.h"

#define LMCS_SOURCE_TEXT 200

struct lmcs_repaired {
    bool is_whole;                 /* the content is sound now, or was freed */
    char source[LMCS_SOURCE_TEXT]; /* "": nothing was repaired */
    uint64_t blocks;
    unsigned char *lost; /* 1 for each lost block; caller frees; NULL: none */
};

/* Scans the payload again, commits every possible repair, and records lost blocks. An impossible repair is no error.
 * LMCS_FULL: a possible repair lacked room. */
enum lmcs_status lmcs_repair(struct lmcs_pool *pool, struct lmcs_sources *sources, uint64_t content,
                             struct lmcs_repaired *repaired, struct lmcs_error *error);

#endif
