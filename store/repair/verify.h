/* SPDX-License-Identifier: BSD-3-Clause */
/* repair/verify.h - the structure check, followed by every byte. */
#ifndef LMCS_REPAIR_VERIFY_H
#define LMCS_REPAIR_VERIFY_H

#include "pages/pool.h"

/*
 * Runs lmcs_verify. `look` checks libpmemobj's part as a writer does, if the whole pool is verified and has no writer.
 */
enum lmcs_status lmcs_verify_run(struct lmcs_pool *pool, const char *address,
                                 enum lmcs_status (*look)(const struct lmcs_pool *pool, struct lmcs_error *error),
                                 void (*visit)(void *context, const struct lmcs_damage *damage), void *context,
                                 const struct lmcs_progress *progress, struct lmcs_verify_report *report,
                                 struct lmcs_error *error);

#endif
