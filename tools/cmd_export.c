/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_export.c - lmc-store export: writes a snapshot as a safetensors file. */
#include "folder.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "safetensors/safetensors.h"

static void print_left_out(const struct lmcs_transfer_report *report)
{
    if (report->left_out == 0)
        return;
    fprintf(stderr, "lmc-store: left out, because safetensors can't hold %s: ", report->left_out == 1 ? "it" : "them");
    cli_print(stderr, report->left_out_names);
    fputc('\n', stderr);
}

static json_t *report_json(struct cli *cli, const struct lmcs_snapshot_info *info,
                           const struct lmcs_transfer_report *report)
{
    json_t *json = json_object();
    cli_json_set(json, "pool", cli_json_text(cli->options.arguments[0]));
    cli_json_set(json, "shelf", cli_json_text(info->shelf));
    cli_json_set(json, "number", cli_json_u64(info->number));
    cli_json_set(json, "file", cli_json_text(cli->options.output));
    cli_json_set(json, "part", cli->options.part != NULL ? cli_json_text(cli->options.part) : NULL);
    cli_json_set(json, "tensors", cli_json_u64(report->contents));
    cli_json_set(json, "bytes", cli_json_u64(report->bytes));
    cli_json_set(json, "left_out", cli_json_u64(report->left_out));
    cli_json_set(json, "left_out_names", cli_json_text(report->left_out_names));
    return json;
}

static void print_report(struct cli *cli, const struct lmcs_snapshot_info *info,
                         const struct lmcs_transfer_report *report, uint64_t tensors)
{
    fputs("wrote ", stdout);
    cli_print(stdout, cli->options.output);
    fputs(" from ", stdout);
    cli_print(stdout, info->shelf);
    printf("@%" PRIu64 ": %" PRIu64 " of its %" PRIu64 " tensors, %s\n", info->number, report->contents, tensors,
           cli_bytes(report->bytes).text);
}

/* ---- Snapshots of runs ---------------------------------------------------------------------------------------- */

static enum lmcs_status visit_joined(void *context, bool (*visit)(void *to, const struct lmcs_entry *entry), void *to,
                                     struct lmcs_error *error)
{
    struct cli_joined *joined = context;
    struct cli_stored *stored = NULL;
    char lacks[1024];
    enum lmcs_status status = cli_joined_stored(joined, &stored, lacks);
    if (status != LMCS_OK)
        *error = joined->cli->error;
    bool goes_on = status == LMCS_OK;
    for (size_t i = 0; goes_on && i < joined->record.tensor_count; i++) {
        struct lmcs_entry entry = cli_joined_entry(joined, &joined->record.tensors[i], stored);
        goes_on = visit(to, &entry);
    }
    free(stored);
    return status;
}

static enum lmcs_status read_joined(void *context, const char *name, void *buffer, struct lmcs_error *error)
{
    struct cli_joined *joined = context;
    const struct cli_tensor *tensor = cli_record_find(&joined->record, name);
    enum lmcs_status status = cli_joined_read(joined, tensor, buffer);
    if (status != LMCS_OK && error != &joined->cli->error)
        *error = joined->cli->error;
    return status;
}

static enum lmcs_status export(struct cli *cli, struct lmcs_snapshot *snapshot, struct lmcs_transfer_report *report,
                               uint64_t *tensors) {
    struct lmcs_progress progress = cli_progress_start(cli); *tensors = lmcs_snapshot_info(snapshot)->tensor_count;
    if (cli->folder == NULL) return lmcs_export_safetensors(snapshot, cli->options.part, cli->options.output, &progress,
                                                            report, &cli->error);
    struct cli_joined joined;
    struct lmcs_st_source source = {lmcs_snapshot_info(snapshot), visit_joined, read_joined, &joined};
    enum lmcs_status status = cli_joined_open(cli, snapshot, &joined);
    if (status == LMCS_OK)
        status = lmcs_st_export(&source, cli->options.part, cli->options.output, &progress, report, &cli->error);
    *tensors = joined.record.tensor_count;
    cli_joined_close(&joined);
    return status;
}

/* ---- The command ---------------------------------------------------------------------------------------------- */

/* Opens a FIFO, which waits for a reader; signals are not caught yet, and end the wait. Returns -1 if the path is no
 * FIFO. */
static int open_fifo(const char *path)
{
    struct stat info;
    bool is_fifo = stat(path, &info) == 0 && S_ISFIFO(info.st_mode);
    return is_fifo ? open(path, O_WRONLY | O_CLOEXEC) : -1;
}

static enum lmcs_status check_options(struct cli *cli)
{
    const struct cli_options *options = &cli->options;
    if (options->output == NULL)
        return cli_wrong_use(cli, "export: -o %s is missing", options->metrics != NULL ? "DIR" : "FILE");
    if (options->metrics == NULL)
        return options->arguments[1] != NULL ? LMCS_OK : cli_wrong_use(cli, "export: ADDRESS is missing");
    if (strcmp(options->metrics, "tensorboard") != 0)
        return cli_wrong_use(cli, "export: --metrics: '%s' is not tensorboard", options->metrics);
    if (options->part != NULL)
        return cli_wrong_use(cli, "export: --part is of tensors; --metrics writes none");
    return cli_output_is_stdout(cli) ? cli_wrong_use(cli, "export: --metrics needs a folder: -o DIR") : LMCS_OK;
}

static enum lmcs_status run(struct cli *cli)
{
    struct lmcs_snapshot *snapshot = NULL;
    struct lmcs_transfer_report report;
    enum lmcs_status checked = check_options(cli);
    if (checked != LMCS_OK || cli->options.metrics != NULL)
        return checked == LMCS_OK ? cli_export_tensorboard(cli) : checked;
    enum lmcs_status status = cli_output_check(cli, "a safetensors file", cli->options.arguments[0], "the pool");
    if (status == LMCS_OK)
        status = cli_output_check_new(cli);
    if (status == LMCS_OK)
        status = cli_open(cli, LMCS_OPEN_READ);
    if (status == LMCS_OK)
        status = cli_snapshot(cli, cli->options.arguments[1], false, &snapshot);
    if (status != LMCS_OK)
        return status;
    /* Keeps the FIFO open until the end: the library's own open must not wait while signals are caught. */
    int fifo = cli_output_is_stdout(cli) ? -1 : open_fifo(cli->options.output);
    uint64_t tensors = 0;
    status = export(cli, snapshot, &report, &tensors);
    cli_progress_wipe(&cli->progress);
    if (status == LMCS_OK) {
        print_left_out(&report);
        if (cli->options.json)
            cli->json = report_json(cli, lmcs_snapshot_info(snapshot), &report);
        else if (!cli_output_is_stdout(cli))
            print_report(cli, lmcs_snapshot_info(snapshot), &report, tensors);
    }
    if (fifo >= 0)
        close(fifo);
    lmcs_snapshot_close(snapshot);
    return status;
}

const struct cli_command cmd_export = {
    .name = "export",
    .synopsis = "POOL ADDRESS -o FILE [--part P] [--metrics FORM]",
    .summary = "Writes a snapshot as a safetensors file, or metrics",
    .help =
        "Every checksum is verified. FILE has mode 0600 and appears whole or not at all; -: standard output. --part\n"
        "model writes the tensors under \"model.\", without that prefix, as load_state_dict and transformers expect.\n"
        "Entries that safetensors can't hold (c32, c128, attachments such as Python's scalars, parts of larger\n"
        "tensors) are left out and named. NumPy arrays of the other byte order, of text, times or records are written\n"
        "as they are stored and listed: as u8, with one more dimension for the bytes of an item. Works while another\n"
        "process writes to the pool. Of the folder of a run, the tensors are joined from the parts that its ranks\n"
        "have stored, one at a time in memory.\n\n"
        "--metrics tensorboard writes an event file for TensorBoard into the folder of -o instead. It has the metrics\n"
        "of a shelf (run) or a range (run@5..9); if there is one shelf, ADDRESS may be left out. A later export\n"
        "replaces the file. A snapshot without a step has its number as the step.",
    .options = "output force part metrics force-network json",
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
