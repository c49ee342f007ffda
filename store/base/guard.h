/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/guard.h - work on mapped bytes that the medium may fail to give.
 *
 * A page of persistent memory that failed, or a file that was cut short under its mapping, is a SIGBUS for whoever
 * touches it. Within a guard it is an answer instead.
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
 * Runs `work`; false when it touched a byte of the ranges that the medium does not give: it was left there and then,
 * so it must hold no locks. A SIGBUS that has nothing to do with the ranges goes to whoever handled it before.
 */
bool lmcs_guard(const struct lmcs_guarded *ranges, size_t count, void (*work)(void *context), void *context);
/*
 * Whether a guard of this thread would be asked first: nobody has put a handler of his own on top since, and SIGBUS is
 * not blocked. For work that can as well be done without touching what may fail.
 */
bool lmcs_guard_holds(void);
/* memcpy whose source is guarded; what it leaves in `to` when it fails is unspecified. */
bool lmcs_guard_copy(void *to, const void *from, size_t bytes);
/* Whether bytes are the same; the first side, or both (`guarded`: 1, 2), may be unreadable, and equals nothing then. */
bool lmcs_guard_equal(const void *one, const void *other, size_t bytes, size_t guarded);
/* memcpy whose target is guarded, or zeros (NULL). All of it is touched before any of it changes. */
bool lmcs_guard_store(void *to, const void *from, size_t bytes);

/* Puts the handler of SIGBUS on top of one that was installed since. */
void lmcs_guard_install(void);

/* The signals that threads of ours block: those that are for the application, and not SIGBUS, which we must see. */
void lmcs_guard_signals(sigset_t *blocked);

#endif
