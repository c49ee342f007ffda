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

/* Stores message and errno (0: none; else its text is appended) and returns the status. `error` may be NULL. */
enum lmcs_status lmcs_fail(struct lmcs_error *error, enum lmcs_status status, int system_errno, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
enum lmcs_status lmcs_fail_full(struct lmcs_error *error, uint64_t needed, uint64_t available, int system_errno,
                                const char *format, ...) __attribute__((format(printf, 5, 6)));
enum lmcs_status lmcs_fail_memory(struct lmcs_error *error);
/* For a file operation: LMCS_FULL for ENOSPC, EDQUOT and EFBIG, LMCS_NO_MEMORY, else LMCS_IO. */
enum lmcs_status lmcs_fail_errno(struct lmcs_error *error, int system_errno, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/*
 * LMCS_UNSUPPORTED for a sound record or payload with an unknown value ("content 12: payload kind 9"). Appends reason
 * and remedy.
 */
enum lmcs_status lmcs_fail_newer(struct lmcs_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Whether one record or payload among many is at fault: damaged or of a newer version. It is left as it is. */
static inline bool lmcs_is_unusable(enum lmcs_status status)
{
    return status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED;
}
/*
 * Skips unusable records. lmcs_pass_over: LMCS_OK for LMCS_DAMAGED and LMCS_UNSUPPORTED; keeps the first error,
 * preferably damage. lmcs_passed_over: that error, if all else went well.
 */
struct lmcs_passed {
    bool any;
    enum lmcs_status status;
    struct lmcs_error first;
};
enum lmcs_status lmcs_pass_over(struct lmcs_passed *passed, enum lmcs_status status, const struct lmcs_error *error);
enum lmcs_status lmcs_passed_over(const struct lmcs_passed *passed, enum lmcs_status status, struct lmcs_error *error);
/* For a refused mapping of `bytes`, by errno: after ENOMEM, LMCS_NO_MEMORY and the limit that refused it. */
enum lmcs_status lmcs_fail_map(struct lmcs_error *error, uint64_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* For a file that can't be created because of ENOENT. */
enum lmcs_status lmcs_fail_no_folder(const char *path, struct lmcs_error *error);
/* Add text after or before the message, as far as it fits. */
void lmcs_error_append(struct lmcs_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lmcs_error_prefix(struct lmcs_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
