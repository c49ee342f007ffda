/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_create.c - lmc-store create: creates an empty pool. */
#include "cli.h"

static void report_json(struct cli *cli, const struct lmcs_pool_info *info)
{
    cli->json = json_object();
    cli_json_set(cli->json, "pool", cli_json_text(info->path));
    cli_json_set(cli->json, "file_system", cli_json_text(info->file_system));
    cli_json_set(cli->json, "limit_bytes", info->limit_bytes != 0 ? cli_json_u64(info->limit_bytes) : NULL);
    cli_json_set(cli->json, "free_bytes", cli_json_u64(info->free_bytes));
}

static enum lmcs_status run(struct cli *cli)
{
    struct lmcs_pool_info info;
    cli_catch_signals(); /* the pool's, under a temporary name */
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_CREATE);
    if (status == LMCS_OK)
        status = lmcs_pool_info(cli->pool, &info, &cli->error);
    if (status != LMCS_OK)
        return status;
    if (cli->options.json) {
        report_json(cli, &info);
        return LMCS_OK;
    }
    fputs("created ", stdout);
    cli_print(stdout, cli->options.arguments[0]);
    printf(" on %s; %s can be stored", info.file_system, cli_bytes(info.free_bytes).text);
    if (info.limit_bytes != 0)
        printf(" (limit %s)", cli_bytes(info.limit_bytes).text);
    putchar('\n');
    return LMCS_OK;
}

const struct cli_command cmd_create = {
    .name = "create",
    .synopsis = "POOL [--size 8GiB] [--json]",
    .summary = "Creates an empty pool",
    .help = "The file is sparse and has mode 0600; it takes disk space as snapshots arrive: ls -l shows the addresses\n"
            "that it reserves, such as 1 TiB, du and lmc-store info the space in use. POOL must not exist.",
    .no_folder = "the pools in it exist; a new pool needs another path",
    .options = "size force-network json",
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
