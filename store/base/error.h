/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/error.h - filling in the caller's struct lmcs_error. The face of base/.
 *
 * base/ is helpers for every room, without knowledge of pools: errors, threads, time, the SIGBUS guard, names and
 * shapes, tables. It uses no other room.
 */
#ifndef LMCS_BASE_ERROR_H
#define LMCS_BASE_ERROR_H

#include "lmcstore.h"

/* Stores status, message and errno (0: none; else its text is appended). Returns the status. `error` may be NULL. */
enum lmcs_status lmcs_fail(struct lmcs_error *error, enum lmcs_status status, int system_errno, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
enum lmcs_status lmcs_fail_full(struct lmcs_error *error, uint64_t needed, uint64_t available, int system_errno,
                                const char *format, ...) __attribute__((format(printf, 5, 6)));
enum lmcs_status lmcs_fail_memory(struct lmcs_error *error);
/*
 * Chooses the status for an errno of a file operation: LMCS_FULL for ENOSPC, EDQUOT and EFBIG, LMCS_NO_MEMORY, else
 * LMCS_IO.
 */
enum lmcs_status lmcs_fail_errno(struct lmcs_error *error, int system_errno, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/*
 * Skips damage of one item, so that the others are still handled. lmcs_pass_over returns LMCS_OK for LMCS_DAMAGED and
 * keeps the first. lmcs_passed_over returns that one at the end, if nothing else failed.
 */
struct lmcs_passed {
    bool any;
    struct lmcs_error first;
};
enum lmcs_status lmcs_pass_over(struct lmcs_passed *passed, enum lmcs_status status, const struct lmcs_error *error);
enum lmcs_status lmcs_passed_over(const struct lmcs_passed *passed, enum lmcs_status status, struct lmcs_error *error);
/* Adds text after or before the message, as far as there is room. */
void lmcs_error_append(struct lmcs_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lmcs_error_prefix(struct lmcs_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
