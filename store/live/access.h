/* SPDX-License-Identifier: BSD-3-Clause */
/* live/access.h - checks and locks of functions that read and write variables (read.c, write.c, value.c). */
#ifndef LMCS_LIVE_ACCESS_H
#define LMCS_LIVE_ACCESS_H

#include "live/body.h"

/* ---- Reading (read.c); under body->lock ---- */

/* Size, that of the pending value if any. */
uint64_t lmcs_live_bytes_of(const struct lmcs_live_body *body);
bool lmcs_live_is_inside(const struct lmcs_live_body *body, uint64_t offset, uint64_t bytes);
/* Reads a value's cell again if the last attempt failed. */
enum lmcs_status lmcs_live_refresh(struct lmcs_live_body *body, struct lmcs_error *error);
enum lmcs_status lmcs_live_read_bytes(struct lmcs_live_body *body, uint64_t offset, void *buffer, uint64_t bytes,
                                      struct lmcs_error *error);
enum lmcs_status lmcs_live_fail_range(const struct lmcs_live *live, uint64_t offset, uint64_t bytes,
                                      struct lmcs_error *error);

/* ---- Writing (write.c) ---- */

/* Locks body->lock, and live->lock before it (*both) if the write needs that. Unlock also after a failure. */
enum lmcs_status lmcs_live_lock_body(struct lmcs_live_body *body, uint64_t offset, uint64_t bytes, bool *both,
                                     struct lmcs_error *error);
void lmcs_live_unlock_body(struct lmcs_live_body *body, bool both);

#endif
