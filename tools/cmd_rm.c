/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cmd_rm.c - lmc-store rm: removes one snapshot for ever.
 */
#include "cli.h"

#include <inttypes.h>

static void report(struct cli *cli, const struct lmcs_snapshot_info *info, const struct lmcs_removal *removal)
{
    bool is_dry = cli->options.dry_run;
    if (cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "shelf", cli_json_text(info->shelf));
        cli_json_set(cli->json, "number", cli_json_u64(info->number));
        cli_json_set(cli->json, "removed", json_boolean(!is_dry));
        cli_json_set(cli->json, "freed_bytes", cli_json_u64(removal->freed_bytes));
        cli_json_set(cli->json, "later_bytes", cli_json_u64(removal->later_bytes));
        cli_json_set(cli->json, "removed_tags", cli_json_u64(removal->removed_tags));
        return;
    }
    fputs(is_dry ? "would remove " : "removed ", stdout);
    cli_print(stdout, info->shelf);
    printf("@%" PRIu64 ": %s freed", info->number, cli_bytes(removal->freed_bytes).text);
    if (removal->later_bytes)
        printf(", %s more after compaction", cli_bytes(removal->later_bytes).text);
    if (removal->removed_tags)
        printf(", %" PRIu64 " tag%s gone", removal->removed_tags, cli_s(removal->removed_tags));
    putchar('\n');
}

static enum lmcs_status run(struct cli *cli)
{
    struct lmcs_snapshot *snapshot = NULL;
    struct lmcs_removal removal;
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_WRITE);
    if (status == LMCS_OK)
        status = cli_snapshot(cli, cli->options.arguments[1], true, &snapshot);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    status = lmcs_snapshot_remove(cli->pool, info->shelf, info->number, cli->options.dry_run, &removal, &cli->error);
    if (status == LMCS_OK)
        report(cli, info, &removal);
    lmcs_snapshot_close(snapshot);
    return status;
}

const struct cli_command cmd_rm = {
    .name = "rm",
    .synopsis = "POOL ADDRESS [--dry-run] [--json]",
    .summary = "Removes one snapshot for ever",
    .help = "ADDRESS must name a snapshot (run@7); a shelf's name alone is refused. What other snapshots share or are\n"
            "coded against stays; it says what is freed now and what after compaction.",
    .options = "Dwfj",
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run,
};
