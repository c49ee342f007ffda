/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/guard.h - access to mapped bytes that the medium may fail to deliver.
 *
 * Failed persistent memory, or a file truncated under its mapping, raises SIGBUS on access. Within a guard it returns
 * false.
 */
#ifndef LMCS_BASE_GUARD_H
#define LMCS_BASE_GUARD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct lmcs_guarded {
    const void *at;
    size_t bytes;
};

/*
 * Runs `work`. False: it touched a byte of the ranges that the medium did not deliver, and was abandoned there, so it
 * must hold no lock.
 */
bool lmcs_guard(const struct lmcs_guarded *ranges, size_t count, void (*work)(void *context), void *context);
/* Whether our handler is first and SIGBUS is not blocked. Otherwise callers avoid risky accesses where they can. */
bool lmcs_guard_holds(void);
/* memcpy with a guarded source; after a failure `to` is unspecified. */
bool lmcs_guard_copy(void *to, const void *from, size_t bytes);
/* The first `guarded` (1 or 2) sides may be unreadable, and then are unequal. */
bool lmcs_guard_equal(const void *one, const void *other, size_t bytes, size_t guarded);
/* memcpy with a guarded target; `from` NULL: zeros. Touches all of it before it changes any. */
bool lmcs_guard_store(void *to, const void *from, size_t bytes);

/* Puts our handler before any later one of SIGBUS. */
void lmcs_guard_install(void);

/* The signals that our threads block: all but SIGBUS. */
void lmcs_guard_signals(sigset_t *blocked);

#endif
