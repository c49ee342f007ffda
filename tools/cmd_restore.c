/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cmd_restore.c - lmc-store restore: reads an archive, from a file or a pipe, into a pool.
 *
 * Creates a missing pool, and removes it if the archive is unusable (remove_made).
 */
#include "folder.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns the pool's path, the last argument: archives precede it. */
static const char *pool_path(const struct cli *cli)
{
    return cli->options.arguments[cli->options.argument_count - 1];
}

static void report_done(struct cli *cli, const struct lmcs_transfer_report *report, bool is_new)
{
    if (cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(pool_path(cli)));
        cli_json_set(cli->json, "snapshots", cli_json_u64(report->snapshots));
        cli_json_set(cli->json, "snapshots_skipped", cli_json_u64(report->snapshots_skipped));
        cli_json_set(cli->json, "contents", cli_json_u64(report->contents));
        cli_json_set(cli->json, "contents_found", cli_json_u64(report->contents_found));
        cli_json_set(cli->json, "bytes", cli_json_u64(report->bytes));
        cli_json_set(cli->json, "warnings", cli_json_lines(report->warnings));
        return;
    }
    printf("restored into %s", is_new ? "the new pool " : "");
    cli_print(stdout, pool_path(cli));
    printf(": %" PRIu64 " snapshot%s, %" PRIu64 " contents", report->snapshots, cli_s(report->snapshots),
           report->contents);
    if (report->snapshots_skipped != 0)
        printf("; %" PRIu64 " snapshot%s there already", report->snapshots_skipped,
               report->snapshots_skipped == 1 ? " was" : "s were");
    if (report->contents_found != 0)
        printf("; %" PRIu64 " of the contents %s in the pool already", report->contents_found,
               report->contents_found == 1 ? "was" : "were");
    putchar('\n');
}

/* Values of --only with an @ are parts, others are tensors. */
static void set_options(const struct cli *cli, struct lmcs_restore_options *options, const char **addresses,
                        const char **only)
{
    lmcs_restore_options_init(options);
    options->addresses = addresses;
    options->only = only;
    for (size_t i = 0; i < cli->options.only.count; i++)
        if (strchr(cli->options.only.items[i], '@') != NULL)
            addresses[options->address_count++] = cli->options.only.items[i];
        else
            only[options->only_count++] = cli->options.only.items[i];
    options->as = cli->options.as;
    options->move_tags = cli->options.move_tags;
    options->resume = cli->options.resume;
}

static bool note_shelf(void *context, const struct lmcs_shelf_info *info)
{
    (void)info;
    *(bool *)context = true;
    return false;
}

/*
 * Removes the pool that this command created, if it is empty. It may have contents: another process may have written
 * before it is opened here, and --resume needs the arrived data. While it is open here, no other process can write to
 * it; one that waits gets an error.
 */
static void remove_made(struct cli *cli, const char *path)
{
    struct lmcs_error error;
    struct lmcs_pool_info info;
    bool has_shelf = false, has_arrived = false;
    if (cli->options.resume)
        has_arrived = lmcs_pool_info(cli->pool, &info, &error) != LMCS_OK || info.content_count > 0;
    if (!has_arrived && lmcs_shelf_list(cli->pool, note_shelf, &has_shelf, &error) == LMCS_OK && !has_shelf)
        unlink(path);
}

static enum lmcs_status restore(struct cli *cli, const int *fds, size_t count)
{
    const char *addresses[CLI_MAX_LIST], *only[CLI_MAX_LIST];
    struct lmcs_restore_options options;
    const char *path = pool_path(cli);
    struct lmcs_transfer_report report;
    struct stat info;
    bool is_new = lstat(path, &info) != 0;
    if (!is_new && cli->options.size_bytes != 0)
        fprintf(stderr, "lmc-store: the pool exists; --size is ignored\n");
    struct lmcs_progress progress = cli_progress_start(cli);
    enum lmcs_status status = cli_open_path(cli, path, is_new ? LMCS_OPEN_CREATE : LMCS_OPEN_OR_CREATE);
    if (status != LMCS_OK)
        return status;
    cli->progress.is_bytes = true;
    set_options(cli, &options, addresses, only);
    status = lmcs_restore_with(cli->pool, fds, count, &options, &progress, &report, &cli->error);
    if (status != LMCS_OK && status != LMCS_CANCELLED && count == 1 && strstr(cli->error.message, path) == NULL)
        cli_archive_name(cli, cli->options.arguments[0]);
    cli_progress_wipe(&cli->progress);
    if (status != LMCS_OK && is_new)
        remove_made(cli, path);
    status = cli_close(cli, status);
    if (status == LMCS_OK) {
        cli_warn_lines(report.warnings);
        report_done(cli, &report, is_new);
    }
    return status;
}

static enum lmcs_status run(struct cli *cli)
{
    int fds[CLI_MAX_ARGUMENTS] = {0};
    struct stat info;
    if (stat(cli->options.arguments[0], &info) == 0 && S_ISDIR(info.st_mode))
        return cli_folder_restore(cli);
    size_t count = 0, wanted = cli->options.argument_count - 1;
    enum lmcs_status status = LMCS_OK;
    for (; status == LMCS_OK && count < wanted; count++)
        status = cli_archive_open(cli, cli->options.arguments[count], &fds[count]);
    if (status == LMCS_OK)
        status = restore(cli, fds, count);
    while (count-- > 0)
        cli_archive_close(fds[count]);
    return status;
}

const struct cli_command cmd_restore = {
    .name = "restore",
    .synopsis = "ARCHIVE...|- POOL [--only PART] [--as SHELF] [--json]",
    .summary = "Reads archives, or parts of one, into a pool",
    .help =
        "Every checksum is verified before the commit; on failure the pool is as it was. A missing POOL is created\n"
        "(--size: its limit). Snapshots that a shelf of the pool already has are skipped; a number with other content\n"
        "is refused, and so is a shelf that only has the name of the pool's. An archive made with --since comes after\n"
        "those it needs; one commit shows all of them, each shelf with the name and the tags of its last archive.\n"
        "--only with an @ names a part (run@7, run@5..9, run@..), else tensors; the archive must then be a file, and\n"
        "nothing else of it is read. A later restore of other tensors, or of all, completes the snapshots. With\n"
        "--resume, contents that have arrived stay in the pool, hidden, if the restore is cut short; the same command\n"
        "finds them, and a restore without --resume frees their space.\n"
        "Dumps of a run, which are folders, are restored into a new folder POOL. Its pool of records gets its name\n"
        "last; if the restore is cut short, the same command continues it.",
    .no_folder = "an archive is of one pool. Restore it into another one",
    .options = "size wait force-network json only as move-tags resume allow-missing",
    .min_arguments = 2,
    .max_arguments = CLI_MAX_ARGUMENTS,
    .other_paths = UINT64_MAX,
    .run = run,
};
