/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/error.c - struct lmcs_error.
 *
 * Messages contain names as stored: a terminal program escapes control characters, which only forged names
 * contain.
 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

const char *lmcs_status_name(enum lmcs_status status)
{
    static const char *const names[] = {"ok",        "invalid",   "not found",   "exists",    "in use",
                                        "full",      "damaged",   "unsupported", "read-only", "system error",
                                        "no memory", "cancelled", "remote"};
    return (unsigned)status < sizeof names / sizeof names[0] ? names[status] : "unknown";
}

__attribute__((format(printf, 4, 0))) static enum lmcs_status fill(struct lmcs_error *error, enum lmcs_status status,
                                                                   int system_errno, const char *format,
                                                                   va_list arguments)
{
    if (error == NULL)
        return status;
    memset(error, 0, offsetof(struct lmcs_error, message));
    error->status = status;
    error->system_errno = system_errno;
    int n = vsnprintf(error->message, sizeof error->message, format, arguments);
    if (system_errno != 0 && n >= 0 && (size_t)n < sizeof error->message - 1) {
        char text[128];
        const char *s = strerror_r(system_errno, text, sizeof text);
        snprintf(error->message + n, sizeof error->message - (size_t)n, ": %s", s);
    }
    return status;
}

enum lmcs_status lmcs_fail(struct lmcs_error *error, enum lmcs_status status, int system_errno, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(error, status, system_errno, format, arguments);
    va_end(arguments);
    return status;
}

enum lmcs_status lmcs_fail_full(struct lmcs_error *error, uint64_t needed, uint64_t available, int system_errno,
                                const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(error, LMCS_FULL, system_errno, format, arguments);
    va_end(arguments);
    if (error != NULL) {
        error->bytes_needed = needed;
        error->bytes_free = available;
    }
    return LMCS_FULL;
}

enum lmcs_status lmcs_fail_newer(struct lmcs_error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(error, LMCS_UNSUPPORTED, 0, format, arguments);
    va_end(arguments);
    if (error != NULL)
        lmcs_error_append(error, " is unknown to this version; a newer lmc-store wrote it; upgrade to read it");
    return LMCS_UNSUPPORTED;
}

enum lmcs_status lmcs_fail_memory(struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_NO_MEMORY, 0, "out of memory");
}

static enum lmcs_status status_of(int system_errno)
{
    bool is_full = system_errno == ENOSPC || system_errno == EDQUOT || system_errno == EFBIG;
    return is_full ? LMCS_FULL : system_errno == ENOMEM ? LMCS_NO_MEMORY : LMCS_IO;
}

/* Names the setting that refuses a mapping. */
static void explain_refusal(struct lmcs_error *error, uint64_t bytes)
{
    struct rlimit addresses;
    if (getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY)
        lmcs_error_append(error,
                          "; it needs %llu bytes of addresses, and this process may have %llu: raise 'ulimit -v', or "
                          "set it to unlimited and limit memory by a cgroup",
                          (unsigned long long)bytes, (unsigned long long)addresses.rlim_cur);
    else
        lmcs_error_append(error, "; 'ulimit -v' is unlimited: see vm.overcommit_memory and vm.max_map_count");
}

enum lmcs_status lmcs_fail_errno(struct lmcs_error *error, int system_errno, const char *format, ...)
{
    enum lmcs_status status = status_of(system_errno);
    va_list arguments;
    va_start(arguments, format);
    fill(error, status, system_errno, format, arguments);
    va_end(arguments);
    return status;
}

enum lmcs_status lmcs_fail_map(struct lmcs_error *error, uint64_t bytes, const char *format, ...)
{
    int reason = errno;
    va_list arguments;
    enum lmcs_status status = status_of(reason);
    va_start(arguments, format);
    fill(error, status, reason, format, arguments);
    va_end(arguments);
    if (status == LMCS_NO_MEMORY)
        explain_refusal(error, bytes);
    return status;
}

enum lmcs_status lmcs_fail_no_folder(const char *path, struct lmcs_error *error)
{
    struct stat info;
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] != '/')
        length--;
    char *folder = length > 0 ? strndup(path, length) : strdup(".");
    bool is_there = folder != NULL && stat(folder, &info) == 0;
    free(folder);
    if (!is_there)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: its folder does not exist", path);
    return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                     "%s: no file can be created in its folder, which was deleted, or is of the kernel, such as /proc",
                     path);
}

void lmcs_error_prefix(struct lmcs_error *error, const char *format, ...)
{
    if (error == NULL)
        return;
    char prefix[sizeof error->message];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    if (n < 0)
        return;
    size_t length = (size_t)n < sizeof prefix ? (size_t)n : sizeof prefix - 1;
    size_t rest = sizeof error->message - length;
    memmove(error->message + length, error->message, rest);
    memcpy(error->message, prefix, length);
    error->message[sizeof error->message - 1] = '\0';
}

enum lmcs_status lmcs_pass_over(struct lmcs_passed *passed, enum lmcs_status status, const struct lmcs_error *error)
{
    if (!lmcs_is_unusable(status))
        return status;
    if (!passed->any || (status == LMCS_DAMAGED && passed->status != LMCS_DAMAGED)) {
        passed->status = status;
        if (error != NULL)
            passed->first = *error;
    }
    passed->any = true;
    return LMCS_OK;
}

enum lmcs_status lmcs_passed_over(const struct lmcs_passed *passed, enum lmcs_status status, struct lmcs_error *error)
{
    if (status != LMCS_OK || !passed->any)
        return status;
    if (error != NULL)
        *error = passed->first;
    return passed->status;
}

void lmcs_error_append(struct lmcs_error *error, const char *format, ...)
{
    if (error == NULL)
        return;
    va_list arguments;
    size_t used = strnlen(error->message, sizeof error->message - 1);
    va_start(arguments, format);
    vsnprintf(error->message + used, sizeof error->message - used, format, arguments);
    va_end(arguments);
}
