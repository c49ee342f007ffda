/* SPDX-License-Identifier: BSD-3-Clause */
/* records/origin.h - the snapshot that a shelf was forked from. */
#ifndef LMCS_RECORDS_ORIGIN_H
#define LMCS_RECORDS_ORIGIN_H

#include "pages/txn.h"

struct lmcs_origin {
    struct lmcs_origin_df df;
    char name[LMCS_MAX_NAME + 1]; /* the original's, when it was removed; df.shelf is then 0 */
};

/* *found false: no fork. */
enum lmcs_status lmcs_origin_get(struct lmcs_txn *txn, uint64_t shelf, struct lmcs_origin *origin, bool *found,
                                 struct lmcs_error *error);
enum lmcs_status lmcs_origin_put(struct lmcs_txn *txn, uint64_t shelf, const struct lmcs_origin *origin,
                                 struct lmcs_error *error);
/* For a shelf being removed; its forks get its name in place of its id. */
enum lmcs_status lmcs_origin_forget(struct lmcs_txn *txn, uint64_t shelf, const char *name, struct lmcs_error *error);

#endif
