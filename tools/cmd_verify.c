/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_verify.c - lmc-store verify: reads everything and checks every checksum. */
#include "cli.h"

#include <inttypes.h>

static json_t *damage_json(const struct lmcs_damage *damage)
{
    json_t *json = json_object();
    cli_json_set(json, "what", cli_json_text(damage->what));
    cli_json_set(json, "shelf", damage->shelf[0] != '\0' ? cli_json_text(damage->shelf) : NULL);
    cli_json_set(json, "number", damage->number != 0 ? cli_json_u64(damage->number) : NULL);
    cli_json_set(json, "tensor", damage->tensor[0] != '\0' ? cli_json_text(damage->tensor) : NULL);
    cli_json_set(json, "first_byte", cli_json_u64(damage->first_byte));
    cli_json_set(json, "byte_count", cli_json_u64(damage->byte_count));
    return json;
}

/* Prints the known parts of "run@7 model.weight, 4096 bytes from 1048576: ...". */
static void print_damage(const struct lmcs_damage *damage)
{
    fputs(damage->is_unsupported ? "newer version: " : "damaged: ", stdout);
    cli_print(stdout, damage->shelf);
    if (damage->number != 0)
        printf("@%" PRIu64, damage->number);
    if (damage->tensor[0] != '\0') {
        putchar(' ');
        cli_print(stdout, damage->tensor);
        printf(", %" PRIu64 " bytes from %" PRIu64, damage->byte_count, damage->first_byte);
    }
    if (damage->shelf[0] != '\0' || damage->tensor[0] != '\0')
        fputs(": ", stdout);
    cli_print(stdout, damage->what);
    putchar('\n');
}

static void visit(void *context, const struct lmcs_damage *damage)
{
    struct cli *cli = context;
    cli_progress_wipe(&cli->progress);
    if (cli->options.json)
        json_array_append_new(json_object_get(cli->json, damage->is_unsupported ? "newer" : "damages"),
                              damage_json(damage));
    else
        print_damage(damage);
}

static void report_json(struct cli *cli, enum lmcs_status status, const struct lmcs_verify_report *report)
{
    cli_json_set(cli->json, "ok", json_boolean(status == LMCS_OK));
    cli_json_set(cli->json, "snapshots", cli_json_u64(report->snapshots));
    cli_json_set(cli->json, "contents", cli_json_u64(report->contents));
    cli_json_set(cli->json, "bytes_read", cli_json_u64(report->bytes_read));
}

static enum lmcs_status run(struct cli *cli)
{
    struct lmcs_verify_report report = {0};
    if (cli_is_archive(cli->options.arguments[0]))
        return cli_archive_verify(cli);
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_READ);
    if (status != LMCS_OK)
        return status;
    if (cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "damages", json_array());
        cli_json_set(cli->json, "newer", json_array());
    }
    struct lmcs_progress progress = cli_progress_start(cli);
    status = lmcs_verify(cli->pool, cli->options.arguments[1], visit, cli, &progress, &report, &cli->error);
    cli_progress_wipe(&cli->progress);
    if (cli->options.json)
        report_json(cli, status, &report);
    else if (status == LMCS_OK)
        printf("no damage: %" PRIu64 " snapshot%s, %" PRIu64 " contents, %s read\n", report.snapshots,
               cli_s(report.snapshots), report.contents, cli_bytes(report.bytes_read).text);
    return status;
}

const struct cli_command cmd_verify = {
    .name = "verify",
    .synopsis = "POOL|ARCHIVE|- [ADDRESS] [--json]",
    .summary = "Reads everything and checks every checksum",
    .help =
        "With ADDRESS only a shelf (run) or one snapshot (run@7). Prints each damage with its snapshot and tensor;\n"
        "the exit code is then 1. Records of a newer lmc-store are no damage: they are printed apart, and the exit\n"
        "code is 1. Changes nothing, and works while another process writes. Of an archive, every content is decoded;\n"
        "of one from a pipe (-), only the records are checked. The first damage in an archive ends the check.",
    .options = "force-network json",
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
