/* SPDX-License-Identifier: BSD-3-Clause */
/* support.c - errors, and opening of pools, shelves and snapshots, for all commands. */
#include "cli.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
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

enum lmcs_status cli_open_path(struct cli *cli, const char *path, enum lmcs_open_mode mode)
{
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    options.limit_bytes = cli->options.size_bytes;
    options.wait_ms = cli->options.wait_ms;
    options.flags = LMCS_NO_BACKGROUND | (cli->options.force_network ? LMCS_FORCE_NETWORK : 0u);
    enum lmcs_status status = lmcs_pool_open(path, mode, &options, &cli->pool, &cli->error);
    if (status == LMCS_NOT_FOUND && (mode == LMCS_OPEN_READ || mode == LMCS_OPEN_WRITE))
        return cli_fail(cli, status, 0, "%s: no such pool; 'lmc-store create' creates one", path);
    char *advice = status == LMCS_IN_USE ? strstr(cli->error.message, ". Each rank of a distributed run ") : NULL;
    if (advice != NULL)
        *advice = '\0'; /* it is for programs that train */
    return status;
}

enum lmcs_status cli_open(struct cli *cli, enum lmcs_open_mode mode)
{
    return cli_open_path(cli, cli->options.arguments[0], mode);
}

enum lmcs_status cli_close(struct cli *cli, enum lmcs_status status)
{
    struct lmcs_error error;
    struct lmcs_pool *pool = cli->pool;
    cli->pool = NULL;
    if (pool == NULL)
        return status;
    enum lmcs_status closed = lmcs_pool_close(pool, &error);
    if (closed == LMCS_OK || status != LMCS_OK)
        return status;
    cli->error = error;
    return closed;
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

static bool add_shelf(void *context, const struct lmcs_shelf_info *info)
{
    struct cli_shelves *shelves = context;
    if (shelves->count == shelves->capacity) {
        size_t capacity = shelves->capacity != 0 ? shelves->capacity * 2 : 8;
        struct lmcs_shelf_info *infos = realloc(shelves->infos, capacity * sizeof *infos);
        shelves->is_out_of_memory = infos == NULL;
        if (infos == NULL)
            return false;
        shelves->infos = infos;
        shelves->capacity = capacity;
    }
    shelves->infos[shelves->count++] = *info;
    return true;
}

enum lmcs_status cli_shelves(struct cli *cli, struct cli_shelves *shelves)
{
    memset(shelves, 0, sizeof *shelves);
    enum lmcs_status status = lmcs_shelf_list(cli->pool, add_shelf, shelves, &cli->error);
    return status == LMCS_OK && shelves->is_out_of_memory ? cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory") : status;
}

enum lmcs_status cli_snapshot(struct cli *cli, const char *address, bool is_explicit, struct lmcs_snapshot **snapshot)
{
    const char *at = strchr(address, '@');
    if (is_explicit && (at == NULL || at[1] == '\0'))
        return cli_wrong_use(cli, "'%s' names a shelf, not a snapshot; for its newest use %.*s@latest", address,
                             (int)(at != NULL ? at - address : (ptrdiff_t)strlen(address)), address);
    return lmcs_snapshot_open(cli->pool, address, snapshot, &cli->error);
}
