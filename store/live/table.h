/* SPDX-License-Identifier: BSD-3-Clause */
/* live/table.h - lists of a shelf's records, and the attachment that describes them in a snapshot. */
#ifndef LMCS_LIVE_TABLE_H
#define LMCS_LIVE_TABLE_H

#include "live/record.h"
#include "snapshots/snapshot.h"

/* Owns its records, sorted by name. */
struct lmcs_live_list {
    struct lmcs_live_record **records;
    size_t count;
    size_t capacity;
};

/* Loads the committed variables of a shelf. */
enum lmcs_status lmcs_live_list_load(struct lmcs_pool *pool, uint64_t shelf, struct lmcs_live_list *list,
                                     struct lmcs_error *error);
struct lmcs_live_record *lmcs_live_list_find(const struct lmcs_live_list *list, const char *name);
void lmcs_live_list_free(struct lmcs_live_list *list);

/* Encodes the attachment, malloced; NULL: no memory. */
unsigned char *lmcs_live_table_encode(const struct lmcs_live_list *list, size_t *bytes);
/*
 * Decodes the attachment into records without places. *reserves (malloced): bytes that each may grow to. LMCS_INVALID:
 * no live variables in the snapshot; LMCS_DAMAGED.
 */
enum lmcs_status lmcs_live_table_load(struct lmcs_snapshot *snapshot, struct lmcs_live_list *list, uint64_t **reserves,
                                      struct lmcs_error *error);
enum lmcs_status lmcs_live_table_fail(const struct lmcs_snapshot *snapshot, struct lmcs_error *error);

#endif
