/* SPDX-License-Identifier: BSD-3-Clause */
/* frames_report.c - reports of compress and decompress, for people and as JSON. */
#include "frames.h"

#include <inttypes.h>

/* Decoded GB (10^9 bytes) per second. */
static double speed(const struct frames_report *report)
{
    return report->seconds > 0 ? (double)report->raw_bytes / report->seconds / 1e9 : 0;
}

json_t *frames_report_json(const struct cli *cli, const struct frames_report *report)
{
    double stored = (double)report->stored_bytes;
    json_t *json = json_object();
    cli_json_set(json, "input", cli_json_text(cli->options.arguments[0]));
    cli_json_set(json, "file", cli_json_text(cli->options.output));
    cli_json_set(json, "base", cli->options.base != NULL ? cli_json_text(cli->options.base) : NULL);
    cli_json_set(json, "raw_bytes", cli_json_u64(report->raw_bytes));
    cli_json_set(json, "stored_bytes", cli_json_u64(report->stored_bytes));
    cli_json_set(json, "ratio", cli_json_real((double)report->raw_bytes / stored));
    cli_json_set(json, "seconds", cli_json_real(report->seconds));
    cli_json_set(json, "base_seconds", cli_json_real(report->base_seconds));
    cli_json_set(json, "gb_per_second", cli_json_real(speed(report)));
    cli_json_set(json, "threads", cli_json_u64(report->threads));
    cli_json_set(json, "frames", cli_json_u64(report->frame_count));
    cli_json_set(json, "deltas", cli_json_u64(report->delta_count));
    return json;
}

void frames_report_print(const struct cli *cli, const struct frames_report *report, const char *parts,
                         uint64_t part_count, uint64_t from_bytes, uint64_t to_bytes)
{
    fputs("wrote ", stdout);
    cli_print(stdout, cli->options.output);
    printf(": %s from %s (%s)", cli_bytes(to_bytes).text, cli_bytes(from_bytes).text,
           cli_ratio(report->raw_bytes, report->stored_bytes).text);
    if (cli->options.base != NULL)
        printf(", %zu of %" PRIu64 " %s%s against the base", report->delta_count, part_count, parts, cli_s(part_count));
    printf(", %.2f GB/s on %" PRIu32 " thread%s\n", speed(report), report->threads, cli_s(report->threads));
}
