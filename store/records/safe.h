/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/safe.h - requests to let snapshots go that are safe at a URL (REMOTE.md). In memory: a pusher repeats one
 * that was lost with its process.
 */
#ifndef LMCS_RECORDS_SAFE_H
#define LMCS_RECORDS_SAFE_H

#include "pages/pool.h"

struct lmcs_safe {
    struct lmcs_safe *next;
    uint64_t shelf; /* its id */
    uint64_t first; /* numbers */
    uint64_t last;
    uint64_t epoch; /* later snapshots are others than those at the URL */
    char url[LMCS_MAX_URL + 1];
};

/* The text of an annotation: "FIRST EPOCH URL". False: another text. */
bool lmcs_safe_parse(const char *text, struct lmcs_safe *safe);
/* Adds a copy; drops the oldest if there are many. */
enum lmcs_status lmcs_safe_add(struct lmcs_pool *pool, const struct lmcs_safe *safe, struct lmcs_error *error);
/* Takes all, oldest first, for the caller to free. */
struct lmcs_safe *lmcs_safe_take(struct lmcs_pool *pool);
/* Frees a list. */
void lmcs_safe_free(struct lmcs_safe *list);

#endif
