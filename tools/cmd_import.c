/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_import.c - lmc-store import: makes a snapshot of a safetensors file. */
#include "cli.h"

#include <inttypes.h>

static enum lmcs_status report(struct cli *cli, const char *shelf, uint64_t number)
{
    struct lmcs_snapshot *snapshot = NULL;
    char which[24];
    snprintf(which, sizeof which, "%" PRIu64, number);
    enum lmcs_status status = lmcs_snapshot_find(cli->pool, shelf, which, &snapshot, &cli->error);
    if (status == LMCS_OK && cli->options.json) {
        json_t *json = NULL;
        status = cli_json_snapshot(cli, snapshot, &json);
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "snapshot", json);
    } else if (status == LMCS_OK) {
        const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
        fputs("imported ", stdout);
        cli_print(stdout, cli->options.arguments[2]);
        fputs(" as ", stdout);
        cli_print(stdout, shelf);
        printf("@%" PRIu64 "%s: %" PRIu64 " tensor%s, %s\n", number, number == 1 ? ", the first of its shelf" : "",
               info->tensor_count, cli_s(info->tensor_count), cli_bytes(info->raw_bytes).text);
    }
    lmcs_snapshot_close(snapshot);
    return status;
}

static enum lmcs_status run(struct cli *cli)
{
    const char *shelf = cli->options.arguments[1];
    uint64_t number = 0;
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.step = cli->options.step;
    options.tags = cli->options.tags.items;
    options.tag_count = cli->options.tags.count;
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_WRITE);
    if (status != LMCS_OK)
        return status;
    struct lmcs_progress progress = cli_progress_start(cli);
    status =
        lmcs_import_safetensors(cli->pool, shelf, cli->options.arguments[2], &options, &progress, &number, &cli->error);
    cli_progress_wipe(&cli->progress);
    return status == LMCS_OK ? report(cli, shelf, number) : status;
}

const struct cli_command cmd_import = {
    .name = "import",
    .synopsis = "POOL SHELF FILE [--step N] [--tag T] [--json]",
    .summary = "Makes a snapshot of a safetensors file",
    .help =
        "FILE is checked completely before anything is stored. A missing shelf is created. The file's own metadata is\n"
        "stored in the snapshot's, under \"safetensors\".",
    .no_folder = "import into a pool of its own",
    .options = "step tag wait force-network json",
    .min_arguments = 3,
    .max_arguments = 3,
    .other_paths = 1 << 2,
    .run = run,
};
