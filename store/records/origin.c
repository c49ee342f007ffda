/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/origin.c - origins of forks.
 *
 * A record's key is the fork's id; it contains the original's id, or, once that is removed, its last name.
 */
#include "records/origin.h"

#include <string.h>

#include "base/names.h"
#include "pages/pool.h"
#include "pages/tree.h"

struct origin_record {
    struct lmcs_origin_df df;
    char name[LMCS_MAX_NAME];
};

enum lmcs_status lmcs_origin_get(struct lmcs_txn *txn, uint64_t shelf, struct lmcs_origin *origin, bool *found,
                                 struct lmcs_error *error)
{
    struct origin_record record;
    size_t bytes;
    enum lmcs_status status = lmcs_root_get(txn, LMCS_TREE_ORIGINS, (struct lmcs_key_df){shelf, 0}, &record,
                                            sizeof record.df, sizeof record, &bytes, found, error);
    if (status != LMCS_OK || !*found)
        return status;
    origin->df = record.df;
    bool fits = bytes == sizeof record.df + record.df.name_bytes && record.df.name_bytes <= LMCS_MAX_NAME;
    if (fits) {
        memcpy(origin->name, record.name, record.df.name_bytes);
        origin->name[record.df.name_bytes] = '\0';
    }
    if (!fits || !lmcs_name_is_sound(origin->name) || origin->df.number == 0)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the record of where shelf %llu was forked from",
                         txn->pool->path, (unsigned long long)shelf);
    return LMCS_OK;
}

enum lmcs_status lmcs_origin_put(struct lmcs_txn *txn, uint64_t shelf, const struct lmcs_origin *origin,
                                 struct lmcs_error *error)
{
    struct origin_record record = {.df = origin->df};
    record.df.name_bytes = (uint32_t)strlen(origin->name);
    record.df.reserved = 0;
    memcpy(record.name, origin->name, record.df.name_bytes);
    return lmcs_root_put(txn, LMCS_TREE_ORIGINS, (struct lmcs_key_df){shelf, 0}, &record,
                         sizeof record.df + record.df.name_bytes, error);
}

/* Finds the next fork of `from`, from id `first` on; 0: none. */
static enum lmcs_status next_fork(struct lmcs_txn *txn, uint64_t from, uint64_t first, uint64_t *shelf,
                                  struct lmcs_origin *origin, struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    *shelf = 0;
    enum lmcs_status status = lmcs_root_open(&cursor, txn, LMCS_TREE_ORIGINS, (struct lmcs_key_df){first, 0}, error);
    while (status == LMCS_OK && *shelf == 0 && lmcs_cursor_valid(cursor)) {
        uint64_t id = lmcs_cursor_key(cursor).high;
        bool found;
        status = lmcs_origin_get(txn, id, origin, &found, error);
        if (status == LMCS_OK && found && origin->df.shelf == from)
            *shelf = id;
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_origin_forget(struct lmcs_txn *txn, uint64_t shelf, const char *name, struct lmcs_error *error)
{
    struct lmcs_origin origin;
    uint64_t fork = 0;
    bool found;
    enum lmcs_status status = LMCS_OK;
    do {
        status = next_fork(txn, shelf, fork + 1, &fork, &origin, error);
        if (status != LMCS_OK || fork == 0)
            break;
        origin.df.shelf = 0;
        memcpy(origin.name, name, strlen(name) + 1);
        status = lmcs_origin_put(txn, fork, &origin, error);
    } while (status == LMCS_OK);
    return status == LMCS_OK ? lmcs_root_delete(txn, LMCS_TREE_ORIGINS, (struct lmcs_key_df){shelf, 0}, &found, error)
                             : status;
}
