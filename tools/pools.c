/* SPDX-License-Identifier: BSD-3-Clause */
/* pools.c - opening of pools, shelves and snapshots, for all commands. */
#include "folder.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum lmcs_status cli_open_path(struct cli *cli, const char *path, enum lmcs_open_mode mode)
{
    struct lmcs_open_options options;
    if (cli_is_folder(path) && cli->command->no_folder != NULL)
        return cli_fail(cli, LMCS_UNSUPPORTED, 0, "%s: %.300s is the folder of a run of many ranks: %s",
                        cli->command->name, path, cli->command->no_folder);
    if (cli_is_folder(path))
        return cli_folder_open(cli, path, mode);
    lmcs_open_options_init(&options);
    options.limit_bytes = cli->options.size_bytes;
    options.wait_ms = cli->options.wait_ms;
    options.flags = LMCS_NO_BACKGROUND | (cli->options.force_network ? LMCS_FORCE_NETWORK : 0u);
    enum lmcs_status status = lmcs_pool_open(path, mode, &options, &cli->pool, &cli->error);
    if (status == LMCS_NOT_FOUND && (mode == LMCS_OPEN_READ || mode == LMCS_OPEN_WRITE))
        return cli_fail(cli, status, 0, "%s: no such pool; 'lmc-store create' creates one", path);
    char *advice = status == LMCS_IN_USE ? strstr(cli->error.message, "; end it, or open the pool ") : NULL;
    if (advice == NULL)
        return status;
    *advice = '\0'; /* it is for programs that train */
    char in_use[sizeof cli->error.message];
    memcpy(in_use, cli->error.message, sizeof in_use);
    return cli_fail(cli, status, 0,
                    "%s; end it, or do this in it (store or run.shelf in Python). Commands that read, and tag, metric, "
                    "note, dump and push, work beside it",
                    in_use);
}

enum lmcs_status cli_open(struct cli *cli, enum lmcs_open_mode mode)
{
    return cli_open_path(cli, cli->options.arguments[0], mode);
}

enum lmcs_status cli_open_any(struct cli *cli)
{
    cli->options.wait_ms = 0;
    if (cli_open(cli, LMCS_OPEN_WRITE) == LMCS_OK)
        return LMCS_OK;
    cli_folder_close(cli->folder);
    cli->folder = NULL;
    cli->error = (struct lmcs_error){.status = LMCS_OK};
    return cli_open(cli, LMCS_OPEN_READ);
}

enum lmcs_status cli_close(struct cli *cli, enum lmcs_status status)
{
    struct lmcs_error error;
    struct lmcs_pool *pool = cli->pool;
    cli->pool = NULL;
    cli_folder_close(cli->folder);
    cli->folder = NULL;
    if (pool == NULL)
        return status;
    enum lmcs_status closed = lmcs_pool_close(pool, &error);
    if (closed == LMCS_OK || status != LMCS_OK)
        return status;
    cli->error = error;
    return closed;
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
