/* SPDX-License-Identifier: BSD-3-Clause */
/* repair/verify.h - the structure check, followed by every byte. */
#ifndef LMCS_REPAIR_VERIFY_H
#define LMCS_REPAIR_VERIFY_H

#include "pages/pool.h"

/* Checks libpmemobj's part as a writer does; not called while the pool has a writer. */
typedef enum lmcs_status lmcs_check_look(const struct lmcs_pool *pool, struct lmcs_error *error);

/* LMCS_DAMAGED, LMCS_UNSUPPORTED: `look` says so, or the file was cut short since it was opened. */
enum lmcs_status lmcs_check_as_a_writer(struct lmcs_pool *pool, lmcs_check_look *look, struct lmcs_error *error);

/* Runs lmcs_verify; of the whole pool, with lmcs_check_as_a_writer. */
enum lmcs_status lmcs_verify_run(struct lmcs_pool *pool, const char *address, lmcs_check_look *look,
                                 void (*visit)(void *context, const struct lmcs_damage *damage), void *context,
                                 const struct lmcs_progress *progress, struct lmcs_verify_report *report,
                                 struct lmcs_error *error);

#endif
