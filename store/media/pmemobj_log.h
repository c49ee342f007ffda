/* SPDX-License-Identifier: BSD-3-Clause */
/* media/pmemobj_log.h - pending entries in libpmemobj's logs, applied by the next open for writing. */
#ifndef LMCS_MEDIA_PMEMOBJ_LOG_H
#define LMCS_MEDIA_PMEMOBJ_LOG_H

#include "base/error.h"

struct lmcs_media;
struct lmcs_pmemobj_log;

/*
 * Reads the logs while no process writes. LMCS_DAMAGED: they are not as libpmemobj leaves them, or change bytes that no
 * commit changes. *pending: to be freed, or NULL.
 */
enum lmcs_status lmcs_pmemobj_log_load(const struct lmcs_media *media, struct lmcs_pmemobj_log **pending,
                                       struct lmcs_error *error);
/* Writes the logs that were ever used to the pool's file again, as they are. */
enum lmcs_status lmcs_pmemobj_log_rewrite(const struct lmcs_media *media, int fd, struct lmcs_error *error);
void lmcs_pmemobj_log_free(struct lmcs_pmemobj_log *pending);

/*
 * Applies the entries to a copy of bytes from `offset` on (an overlay of media.h). `context`: struct lmcs_pmemobj_log.
 */
void lmcs_pmemobj_log_apply(const void *context, uint64_t offset, void *buffer, uint64_t bytes);

#endif
