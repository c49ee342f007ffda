/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cmd_dump.c - lmc-store dump: writes shelves as an archive, to a file or a pipe; those of a run as a folder.
 */
#include "folder.h"

#include <inttypes.h>
#include <string.h>

static void report_done(struct cli *cli, const struct lmcs_transfer_report *report)
{
    if (cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "file", cli_json_text(cli->options.output));
        cli_json_set(cli->json, "snapshots", cli_json_u64(report->snapshots));
        cli_json_set(cli->json, "snapshots_lost", cli_json_u64(report->snapshots_lost));
        cli_json_set(cli->json, "contents", cli_json_u64(report->contents));
        cli_json_set(cli->json, "bytes", cli_json_u64(report->bytes));
        cli_json_set(cli->json, "warnings", cli_json_lines(report->warnings));
        return;
    }
    fputs("wrote ", stdout);
    cli_print(stdout, cli->options.output);
    printf(": %" PRIu64 " snapshot%s, %" PRIu64 " contents, %s\n", report->snapshots, cli_s(report->snapshots),
           report->contents, cli_bytes(report->bytes).text);
    if (report->snapshots_lost > 0)
        printf("left out: %" PRIu64 " snapshot%s with lost contents\n", report->snapshots_lost,
               cli_s(report->snapshots_lost));
}

/*
 * Opens the archives of --since. Refuses an output that is one of them, since a restore needs it, or that would be
 * replaced. Signals are not caught yet, so the first one ends a wait for a FIFO.
 */
static enum lmcs_status open_older(struct cli *cli, int *fds)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; !cli_output_is_stdout(cli) && status == LMCS_OK && i < cli->options.since.count; i++)
        status = cli_output_check_path(cli, "-o", cli->options.output, cli->options.since.items[i],
                                       "the archive of --since");
    if (status == LMCS_OK && !cli->options.resume)
        status = cli_output_check_new(cli);
    for (size_t i = 0; status == LMCS_OK && i < cli->options.since.count; i++)
        status = cli_archive_open(cli, cli->options.since.items[i], &fds[i]);
    return status;
}

static enum lmcs_status dump(struct cli *cli, const int *since, struct lmcs_outfile *output)
{
    struct lmcs_transfer_report report;
    struct lmcs_dump_options options;
    struct lmcs_progress progress = cli_progress_start(cli);
    cli->progress.is_bytes = true;
    lmcs_dump_options_init(&options);
    options.addresses = cli->options.arguments + 1;
    options.address_count = cli->options.argument_count - 1;
    options.since = since;
    options.since_count = cli->options.since.count;
    options.canonical = cli->options.canonical;
    options.resume = cli->options.resume;
    options.skip_lost = cli->options.skip_lost;
    enum lmcs_status status = lmcs_dump_with(cli->pool, &options, output->fd, &progress, &report, &cli->error);
    if (status == LMCS_OK)
        status = lmcs_outfile_commit(output, &cli->error);
    if (status != LMCS_OK && status != LMCS_CANCELLED && options.resume &&
        strstr(cli->error.message, cli->options.arguments[0]) == NULL &&
        strstr(cli->error.message, cli->options.output) == NULL)
        cli_archive_name(cli, cli->options.output);
    cli_progress_wipe(&cli->progress);
    if (status == LMCS_OK)
        cli_warn_lines(report.warnings);
    if (status == LMCS_OK && !cli_output_is_stdout(cli))
        report_done(cli, &report);
    return status;
}

static enum lmcs_status run(struct cli *cli)
{
    int since[CLI_MAX_LIST];
    struct lmcs_outfile output = {.fd = -1};
    if (cli_is_folder(cli->options.arguments[0]))
        return cli_folder_dump(cli);
    enum lmcs_status status = cli_output_check(cli, "an archive", cli->options.arguments[0], "the pool");
    for (size_t i = 0; i < cli->options.since.count; i++)
        since[i] = -1;
    if (status == LMCS_OK)
        status = open_older(cli, since);
    if (status == LMCS_OK)
        status = cli_open(cli, LMCS_OPEN_READ);
    if (status == LMCS_OK && cli->options.resume && cli->options.force)
        status = cli_wrong_use(cli, "dump: --resume continues FILE, and --force replaces it: give one of them");
    if (status == LMCS_OK && cli->options.resume && cli_output_is_stdout(cli))
        status = cli_wrong_use(cli, "dump: --resume needs -o FILE");
    if (status == LMCS_OK)
        status = cli->options.resume ? lmcs_outfile_resume(cli->options.output, &output, &cli->error)
                                     : cli_output_open(cli, &output);
    if (status == LMCS_OK)
        status = dump(cli, since, &output);
    for (size_t i = 0; i < cli->options.since.count; i++)
        cli_archive_close(since[i]);
    lmcs_outfile_close(&output);
    return status;
}

const struct cli_command cmd_dump = {
    .name = "dump",
    .synopsis = "POOL [ADDRESS...] [-o FILE|-] [--since ARCHIVE] [--json]",
    .summary = "Writes shelves, or parts of them, as an archive",
    .help =
        "Without -o, or with -o -, the archive goes to standard output, for a pipe. FILE has mode 0600 and appears\n"
        "whole or not at all. Deltas are written as they are stored. Works while another process writes to the pool.\n"
        "ADDRESS is a shelf (run), a snapshot (run@7, run@best), or a range (run@5..9, run@best..); default: all.\n"
        "--since leaves out the contents of older archives, which a restore then needs, too; it warns if one has\n"
        "another shelf of the name. --resume writes FILE in place and keeps it if the dump is cut short; the same\n"
        "command checks it and continues, but leaves a complete FILE that is damaged as it is. --skip-lost leaves out\n"
        "snapshots with contents that a scrub found lost; otherwise they fail the dump.\n"
        "Of the folder of a run, FILE becomes a folder with an archive for each pool, and --since takes such folders.\n"
        "Ranks may save meanwhile. It has no records.archive if the dump was cut short.",
    .options = "output force force-network json since canonical resume skip-lost allow-missing",
    .min_arguments = 1,
    .max_arguments = CLI_MAX_ARGUMENTS,
    .run = run,
};
