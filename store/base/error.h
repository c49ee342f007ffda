/* SPDX-License-Identifier: BSD-3-Clause */
/* error.h - filling in the caller's struct lmcs_error. */
#ifndef LMCS_BASE_ERROR_H
#define LMCS_BASE_ERROR_H

#include "lmcstore.h"

/* Stores status, errno (0: none; otherwise its text is appended) and the sentence; gives the status back. */
enum lmcs_status lmcs_fail(struct lmcs_error *error, enum lmcs_status status, int system_errno, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
enum lmcs_status lmcs_fail_full(struct lmcs_error *error, uint64_t needed, uint64_t available, int system_errno,
                                const char *format, ...) __attribute__((format(printf, 5, 6)));
enum lmcs_status lmcs_fail_memory(struct lmcs_error *error);
/* The status for an errno of a file operation: LMCS_FULL for ENOSPC and EDQUOT, LMCS_NO_MEMORY, else LMCS_IO. */
enum lmcs_status lmcs_fail_errno(struct lmcs_error *error, int system_errno, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/*
 * Damage of one among many, which is passed over so that the others have their turn. lmcs_pass_over: LMCS_OK for
 * LMCS_DAMAGED, of which the first is kept; lmcs_passed_over: that one, if all else went well.
 */
struct lmcs_passed {
    bool any;
    struct lmcs_error first;
};
enum lmcs_status lmcs_pass_over(struct lmcs_passed *passed, enum lmcs_status status, const struct lmcs_error *error);
enum lmcs_status lmcs_passed_over(const struct lmcs_passed *passed, enum lmcs_status status, struct lmcs_error *error);
/* Puts text behind or before a message that is there already, as much as there is room for. */
void lmcs_error_append(struct lmcs_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lmcs_error_prefix(struct lmcs_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
