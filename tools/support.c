/* SPDX-License-Identifier: BSD-3-Clause */
/* support.c - errors, for all commands. */
#include "cli.h"

#include <stdarg.h>
#include <string.h>

__attribute__((format(printf, 4, 0))) static void fill(struct cli *cli, enum lmcs_status status, int system_errno,
                                                       const char *format, va_list arguments)
{
    struct lmcs_error *error = &cli->error;
    memset(error, 0, sizeof *error);
    error->status = status;
    error->system_errno = system_errno;
    int n = vsnprintf(error->message, sizeof error->message, format, arguments);
    if (system_errno != 0 && n >= 0 && (size_t)n < sizeof error->message)
        snprintf(error->message + n, sizeof error->message - (size_t)n, ": %s", strerror(system_errno));
}

enum lmcs_status cli_fail(struct cli *cli, enum lmcs_status status, int system_errno, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(cli, status, system_errno, format, arguments);
    va_end(arguments);
    return status;
}

enum lmcs_status cli_wrong_use(struct cli *cli, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fill(cli, LMCS_INVALID, 0, format, arguments);
    va_end(arguments);
    cli->shows_hint = true;
    return LMCS_INVALID;
}

enum lmcs_status cli_pass(struct cli *cli, struct cli_passed *passed, enum lmcs_status status)
{
    if (status != LMCS_DAMAGED && status != LMCS_UNSUPPORTED)
        return status;
    if (passed->status == LMCS_OK) {
        passed->status = status;
        passed->first = cli->error;
    }
    return LMCS_OK;
}

enum lmcs_status cli_passed(struct cli *cli, const struct cli_passed *passed, enum lmcs_status status)
{
    if (status != LMCS_OK || passed->status == LMCS_OK)
        return status;
    cli->error = passed->first;
    return passed->status;
}
