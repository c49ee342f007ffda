/* SPDX-License-Identifier: BSD-3-Clause */
/* behind.h - a thread that has the kernel begin to write what was stored in a file, while more is being stored. */
#ifndef LMCS_BEHIND_H
#define LMCS_BEHIND_H

#include "error.h"

struct lmcs_behind;

/* Starts no thread yet. `fd` is to stay open until lmcs_behind_free. */
enum lmcs_status lmcs_behind_new(int fd, struct lmcs_behind **behind, struct lmcs_error *error);
void lmcs_behind_free(struct lmcs_behind *behind);
/* Notes a range and returns at once. What is not begun so is written by the sync that makes it durable. */
void lmcs_behind_add(struct lmcs_behind *behind, uint64_t offset, uint64_t bytes);

#endif
