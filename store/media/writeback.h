/* SPDX-License-Identifier: BSD-3-Clause */
/* media/writeback.h - starts writeback of stored ranges while more is being stored. */
#ifndef LMCS_MEDIA_WRITEBACK_H
#define LMCS_MEDIA_WRITEBACK_H

#include "base/error.h"

struct lmcs_writeback;

/* Creates no thread yet. `fd` must outlive it. */
enum lmcs_status lmcs_writeback_new(int fd, struct lmcs_writeback **behind, struct lmcs_error *error);
void lmcs_writeback_free(struct lmcs_writeback *behind);
/* Returns at once. The sync that makes bytes durable writes any range not queued or begun. */
void lmcs_writeback_add(struct lmcs_writeback *behind, uint64_t offset, uint64_t bytes);

#endif
