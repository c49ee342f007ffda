/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_fork.c - lmc-store fork and mv: make a shelf from a snapshot, and rename a shelf. */
#include "folder.h"

#include <inttypes.h>

static void set_shelf(struct cli *cli, const char *name)
{
    cli->json = json_object();
    cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
    cli_json_set(cli->json, "shelf", cli_json_text(name));
}

static void report_fork(struct cli *cli, const struct lmcs_snapshot_info *info, const char *name)
{
    if (cli->options.json) {
        json_t *origin = json_object();
        set_shelf(cli, name);
        cli_json_set(origin, "shelf", cli_json_text(info->shelf));
        cli_json_set(origin, "number", cli_json_u64(info->number));
        cli_json_set(cli->json, "origin", origin);
        return;
    }
    cli_print(stdout, name);
    fputs("@1 is ", stdout);
    cli_print(stdout, info->shelf);
    printf("@%" PRIu64 ": all tensors are shared\n", info->number);
}

static enum lmcs_status run_fork(struct cli *cli)
{
    const char *name = cli->options.arguments[2];
    struct lmcs_snapshot *snapshot = NULL;
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_WRITE);
    if (status == LMCS_OK)
        status = cli_snapshot(cli, cli->options.arguments[1], false, &snapshot);
    if (status == LMCS_OK)
        status = cli->folder != NULL ? cli_run_fork(cli, snapshot, name) : lmcs_shelf_fork(snapshot, name, &cli->error);
    if (status == LMCS_OK)
        report_fork(cli, lmcs_snapshot_info(snapshot), name);
    lmcs_snapshot_close(snapshot);
    return status;
}

const struct cli_command cmd_fork = {
    .name = "fork",
    .synopsis = "POOL ADDRESS NEWSHELF [--json]",
    .summary = "Makes a shelf that continues from a snapshot",
    .help =
        "NEWSHELF@1 is the snapshot: its tensors, step, time, tags, metrics and metadata. Nothing is copied; shared\n"
        "contents stay until both shelves have removed them. NEWSHELF records its origin. Of the folder of a run, the\n"
        "parts in the pools of the ranks are forked, too; no rank may write to them.",
    .options = "wait force-network json",
    .min_arguments = 3,
    .max_arguments = 3,
    .run = run_fork,
};

static enum lmcs_status run_mv(struct cli *cli)
{
    const char *from = cli->options.arguments[1];
    const char *to = cli->options.arguments[2];
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_WRITE);
    if (status == LMCS_OK)
        status = lmcs_shelf_rename(cli->pool, from, to, &cli->error);
    if (status != LMCS_OK)
        return status;
    if (cli->options.json) {
        set_shelf(cli, to);
        return LMCS_OK;
    }
    cli_print(stdout, from);
    fputs(" is now ", stdout);
    cli_print(stdout, to);
    putchar('\n');
    return LMCS_OK;
}

const struct cli_command cmd_mv = {
    .name = "mv",
    .synopsis = "POOL SHELF NEWNAME [--json]",
    .summary = "Renames a shelf",
    .help =
        "Its snapshots, tags and numbers stay as they are, and its forks refer to the new name. A name that another\n"
        "shelf has is refused.",
    .no_folder = "its shelves keep their names, by which the ranks find their parts",
    .options = "wait force-network json",
    .min_arguments = 3,
    .max_arguments = 3,
    .run = run_mv,
};
