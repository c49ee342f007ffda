/* SPDX-License-Identifier: BSD-3-Clause */
/* behind.h - a thread that has the kernel begin to write what was stored in a file, while more is being stored. */
#ifndef LMCS_MEDIA_WRITEBACK_H
#define LMCS_MEDIA_WRITEBACK_H

#include "base/error.h"

struct lmcs_writeback;

/* Starts no thread yet. `fd` is to stay open until lmcs_writeback_free. */
enum lmcs_status lmcs_writeback_new(int fd, struct lmcs_writeback **behind, struct lmcs_error *error);
void lmcs_writeback_free(struct lmcs_writeback *behind);
/* Notes a range and returns at once. What is not begun so is written by the sync that makes it durable. */
void lmcs_writeback_add(struct lmcs_writeback *behind, uint64_t offset, uint64_t bytes);

#endif
