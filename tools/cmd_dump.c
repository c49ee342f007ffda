/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cmd_dump.c - lmc-store dump: writes shelves as an archive, to a file or a pipe.
 */
#include "cli.h"

#include <inttypes.h>

static void report_done(struct cli *cli, const struct lmcs_transfer_report *report)
{
    if (cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "file", cli_json_text(cli->options.output));
        cli_json_set(cli->json, "snapshots", cli_json_u64(report->snapshots));
        cli_json_set(cli->json, "contents", cli_json_u64(report->contents));
        cli_json_set(cli->json, "bytes", cli_json_u64(report->bytes));
        return;
    }
    fputs("wrote ", stdout);
    cli_print(stdout, cli->options.output);
    printf(": %" PRIu64 " snapshot%s, %" PRIu64 " contents, %s\n", report->snapshots, cli_s(report->snapshots),
           report->contents, cli_bytes(report->bytes).text);
}

static enum lmcs_status dump(struct cli *cli, struct cli_output *output)
{
    struct lmcs_transfer_report report;
    struct lmcs_progress progress = cli_progress_start(cli);
    enum lmcs_status status =
        lmcs_dump(cli->pool, cli->options.arguments[1], output->fd, &progress, &report, &cli->error);
    if (status == LMCS_OK)
        status = cli_output_commit(cli, output);
    cli_progress_wipe(&cli->progress);
    if (status == LMCS_OK && !cli_output_is_stdout(cli))
        report_done(cli, &report);
    return status;
}

static enum lmcs_status run(struct cli *cli)
{
    struct cli_output output = {.fd = -1};
    enum lmcs_status status = cli_output_check(cli, "an archive", cli->options.arguments[0], "the pool");
    if (status == LMCS_OK)
        status = cli_open(cli, LMCS_OPEN_READ);
    if (status == LMCS_OK)
        status = cli_output_open(cli, cli->options.output, &output);
    if (status == LMCS_OK)
        status = dump(cli, &output);
    cli_output_close(&output);
    return status;
}

const struct cli_command cmd_dump = {
    .name = "dump",
    .synopsis = "POOL [SHELF] [-o FILE|-] [--json]",
    .summary = "Writes a shelf, or all of them, as an archive",
    .help =
        "Without -o, or with -o -, the archive goes to standard output, for a pipe. FILE has mode 0600 and appears\n"
        "whole, or not at all. Deltas travel as they are stored. Works while another process writes to the pool.",
    .options = "ofj",
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
