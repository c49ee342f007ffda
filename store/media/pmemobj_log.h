/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/pmemobj_log.h - what libpmemobj's logs will do to a pool when it is next opened for writing.
 */
#ifndef LMCS_MEDIA_PMEMOBJ_LOG_H
#define LMCS_MEDIA_PMEMOBJ_LOG_H

#include "base/error.h"

struct lmcs_media;
struct lmcs_pmemobj_log;

/*
 * Reads the logs, while nobody writes. LMCS_DAMAGED when they are not what libpmemobj leaves, or would change what no
 * commit of ours changes. *redo: to be freed; NULL when nothing is pending.
 */
enum lmcs_status lmcs_pmemobj_log_load(const struct lmcs_media *media, struct lmcs_pmemobj_log **redo,
                                       struct lmcs_error *error);
void lmcs_pmemobj_log_free(struct lmcs_pmemobj_log *redo);

/* Does to a copy of the pool's bytes from `offset` on what the logs will do to them. */
void lmcs_pmemobj_log_apply(const void *context, uint64_t offset, void *buffer, uint64_t bytes);

#endif
