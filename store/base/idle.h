/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/idle.h - a thread of the lowest priority, in which a background thread, its owner, computes.
 *
 * A priority once lowered cannot be raised without privilege, and a thread that holds a lock while it waits for a
 * processor delays all that want the lock. So the owner keeps its priority, acquires the locks and only waits for the
 * idle thread, whose jobs hold no lock that another thread needs. While a caller is in a hurry for the owner's work,
 * the owner does the remaining items itself, and the idle thread takes none after its present one.
 */
#ifndef LMCS_BASE_IDLE_H
#define LMCS_BASE_IDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct lmcs_idle;

/* Takes no item while *pause is above 0, unless hurried. The thread starts with the first run. */
enum lmcs_status lmcs_idle_new(const atomic_uint *pause, struct lmcs_idle **idle, struct lmcs_error *error);
/* No run may be under way. */
void lmcs_idle_free(struct lmcs_idle *idle);
/* Makes this thread the owner; NULL: no longer. */
void lmcs_idle_own(struct lmcs_idle *idle);
/* Calls work(context, i) for each i below `count`: in the idle thread that this thread owns, else in this thread. */
void lmcs_idle_run(void (*work)(void *context, uint64_t i), void *context, uint64_t count);
/* Likewise, and the owner does some itself. */
void lmcs_idle_help(void (*work)(void *context, uint64_t i), void *context, uint64_t count);

/* Begins or ends a caller's hurry; any number of callers. `idle` may be NULL. */
void lmcs_idle_hurry(struct lmcs_idle *idle, bool begin);
bool lmcs_idle_is_hurried(const struct lmcs_idle *idle);
/* Sleeps for `ns`, at most until a hurry begins or `stop` (may be NULL) returns true. */
void lmcs_idle_sleep(const struct lmcs_idle *idle, uint64_t ns, bool (*stop)(const void *context), const void *context);

#endif
