/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_compact.c - lmc-store compact: encodes older snapshots as deltas. */
#include "folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void add(struct lmcs_pool_info *sum, const struct lmcs_pool_info *info)
{
    sum->used_bytes += info->used_bytes;
    sum->live_bytes += info->live_bytes;
    sum->free_bytes = info->free_bytes; /* of one disk */
    sum->compaction_backlog += info->compaction_backlog;
}

/* Compacts a pool, and adds up what it used before and uses after. */
static enum lmcs_status compact(struct cli *cli, struct lmcs_pool *pool, struct lmcs_pool_info *before,
                                struct lmcs_pool_info *after)
{
    struct lmcs_pool_info info;
    enum lmcs_status status = lmcs_pool_info(pool, &info, &cli->error);
    if (status != LMCS_OK)
        return status;
    add(before, &info);
    struct lmcs_progress progress = cli_progress_start(cli);
    status = cli->options.finished ? lmcs_compact_finished(pool, cli->options.arguments[1], &progress, &cli->error)
                                   : lmcs_compact(pool, &progress, &cli->error);
    cli_progress_wipe(&cli->progress);
    if (status == LMCS_OK)
        status = lmcs_pool_info(pool, &info, &cli->error);
    if (status == LMCS_OK)
        add(after, &info);
    return status;
}

/* Compacts the pools of a run's ranks. */
static enum lmcs_status compact_ranks(struct cli *cli, struct lmcs_pool_info *before, struct lmcs_pool_info *after)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && cli_folder_file(cli->folder, i) != NULL; i++) {
        struct lmcs_pool *pool = NULL;
        struct lmcs_error error;
        status = cli_folder_writable(cli, i, &pool);
        if (status == LMCS_OK)
            status = compact(cli, pool, before, after);
        if (status == LMCS_NOT_FOUND && pool != NULL)
            status = LMCS_OK; /* it has nothing of the shelf */
        if (pool != NULL && lmcs_pool_close(pool, &error) != LMCS_OK && status == LMCS_OK) {
            cli->error = error;
            status = error.status;
        }
    }
    return status;
}

/* Removes parts whose records are gone. */
static enum lmcs_status sweep(struct cli *cli, const char *shelf)
{
    struct cli_named_list none = {.count = 0};
    const struct cli_sweep_options options = {.gone = &none};
    struct cli_swept swept;
    enum lmcs_status status = cli_sweep(cli, shelf, &options, &swept);
    if (status == LMCS_OK)
        cli_swept_print(&swept);
    return status;
}

/* Removes some records if all pools exceed the budget of a shelf. */
static enum lmcs_status prune_budget(struct cli *cli, const char *shelf, uint64_t *removed)
{
    struct lmcs_pool_info info;
    struct lmcs_pool *pool;
    uint64_t others = 0;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && cli_folder_file(cli->folder, i) != NULL; i++) {
        status = cli_folder_pool(cli, i, &pool);
        if (status == LMCS_OK)
            status = lmcs_pool_info(pool, &info, &cli->error);
        if (status == LMCS_OK)
            others += info.live_bytes + info.last_snapshot_bytes;
    }
    return status == LMCS_OK ? lmcs_prune_budget(cli->pool, shelf, others, removed, &cli->error) : status;
}

/* Compacts the pools of a run's ranks after its records, which lack some that their rules did not keep. Then keeps the
 * budget of each shelf. */
static enum lmcs_status compact_run(struct cli *cli, struct lmcs_pool_info *before, struct lmcs_pool_info *after)
{
    struct cli_shelves shelves;
    struct lmcs_pool_info first, of_records = *after;
    enum lmcs_status status = cli_shelves(cli, &shelves);
    for (size_t i = 0; status == LMCS_OK && i < shelves.count; i++)
        status = sweep(cli, shelves.infos[i].name);
    if (status == LMCS_OK)
        status = compact_ranks(cli, before, after);
    for (size_t i = 0; status == LMCS_OK && i < shelves.count; i++) {
        uint64_t removed = strstr(shelves.infos[i].policy, " budget=") != NULL;
        while (status == LMCS_OK && removed > 0) {
            status = prune_budget(cli, shelves.infos[i].name, &removed);
            if (status != LMCS_OK || removed == 0)
                continue;
            *after = of_records;
            memset(&first, 0, sizeof first);
            status = sweep(cli, shelves.infos[i].name);
            if (status == LMCS_OK)
                status = compact_ranks(cli, &first, after);
        }
    }
    free(shelves.infos);
    return status;
}

static void report_json(struct cli *cli, const struct lmcs_pool_info *before, const struct lmcs_pool_info *after,
                        uint64_t removed)
{
    cli->json = json_object();
    cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
    cli_json_set(cli->json, "used_bytes_before", cli_json_u64(before->used_bytes));
    cli_json_set(cli->json, "used_bytes", cli_json_u64(after->used_bytes));
    cli_json_set(cli->json, "live_bytes", cli_json_u64(after->live_bytes));
    cli_json_set(cli->json, "free_bytes", cli_json_u64(after->free_bytes));
    cli_json_set(cli->json, "backlog", cli_json_u64(after->compaction_backlog));
    cli_json_set(cli->json, "removed", cli_json_u64(removed));
}

static enum lmcs_status run(struct cli *cli)
{
    struct lmcs_pool_info before, after, first, last;
    memset(&before, 0, sizeof before);
    memset(&after, 0, sizeof after);
    if (cli->options.arguments[1] != NULL && !cli->options.finished)
        return cli_wrong_use(cli, "compact: it compacts the whole pool; a shelf needs --finished");
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_WRITE);
    if (status == LMCS_OK)
        status = lmcs_pool_info(cli->pool, &first, &cli->error);
    if (status == LMCS_OK)
        status = compact(cli, cli->pool, &before, &after);
    if (status == LMCS_OK && cli->folder != NULL)
        status = compact_run(cli, &before, &after);
    if (status == LMCS_OK)
        status = lmcs_pool_info(cli->pool, &last, &cli->error);
    if (status != LMCS_OK)
        return status;
    /* No other process removes any meanwhile: this one writes. */
    uint64_t removed = first.snapshot_count > last.snapshot_count ? first.snapshot_count - last.snapshot_count : 0;
    if (cli->options.json) {
        report_json(cli, &before, &after, removed);
        return LMCS_OK;
    }
    printf("compacted: %s used before, %s now, %s free", cli_bytes(before.used_bytes).text,
           cli_bytes(after.used_bytes).text, cli_bytes(after.free_bytes).text);
    if (removed > 0)
        printf("; %" PRIu64 " snapshot%s removed by the policy", removed, cli_s(removed));
    putchar('\n');
    return LMCS_OK;
}

const struct cli_command cmd_compact = {
    .name = "compact",
    .synopsis = "POOL [--finished [SHELF]] [--json]",
    .summary = "Encodes older snapshots as deltas and frees space",
    .help =
        "The newest snapshots of each shelf stay raw. Snapshots that the policy does not keep are removed, as in the\n"
        "background: a process that has the pool open for writing does all this there. Ctrl-C keeps the work that is\n"
        "done. --finished encodes the newest snapshots too, of SHELF or of all shelves, once: use it when a run is\n"
        "finished. If it goes on, later snapshots stay raw again, and the next one is stored in full. Of the folder\n"
        "of a run: all pools; if they exceed the budget of a policy together, snapshots that its rules do not keep\n"
        "are removed, oldest first.",
    .options = "finished wait force-network json",
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
