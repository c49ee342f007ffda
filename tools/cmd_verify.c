/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_verify.c - lmc-store verify: reads everything and checks every checksum. */
#include "folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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

/* A pool of a folder that is verified; `file` NULL: the only one, or the records. */
struct checked {
    struct cli *cli;
    const char *file;
    struct lmcs_verify_report sum;
    uint64_t missing;
    struct cli_passed passed;
};

static void visit(void *context, const struct lmcs_damage *damage)
{
    const struct checked *checked = context;
    struct cli *cli = checked->cli;
    cli_progress_wipe(&cli->progress);
    if (cli->options.json) {
        json_t *json = damage_json(damage);
        if (cli->folder != NULL)
            cli_json_set(json, "file", checked->file != NULL ? cli_json_text(checked->file) : NULL);
        json_array_append_new(json_object_get(cli->json, damage->is_unsupported ? "newer" : "damages"), json);
        return;
    }
    if (checked->file != NULL) {
        cli_print(stdout, checked->file);
        fputs(", ", stdout);
    }
    print_damage(damage);
}

/* Reports what the store could not tell as damage: that a pool can't be opened, or a part be read. */
static enum lmcs_status visit_error(struct checked *checked, enum lmcs_status status, const char *file)
{
    const struct lmcs_error *error = &checked->cli->error;
    checked->file = file;
    if (status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED)
        visit(checked,
              &(struct lmcs_damage){
                  .what = error->message, .shelf = "", .tensor = "", .is_unsupported = status == LMCS_UNSUPPORTED});
    checked->sum.damages += status == LMCS_DAMAGED;
    return cli_pass(checked->cli, &checked->passed, status);
}

/* Verifies a pool, or a part of it. `file`: of the pool. */
static enum lmcs_status verify(struct checked *checked, struct lmcs_pool *pool, const char *address, const char *file)
{
    struct cli *cli = checked->cli;
    struct lmcs_verify_report report = {0};
    checked->file = file;
    struct lmcs_progress progress = cli_progress_start(cli);
    enum lmcs_status status = lmcs_verify(pool, address, visit, checked, &progress, &report, &cli->error);
    cli_progress_wipe(&cli->progress);
    checked->sum.snapshots += file == NULL ? report.snapshots : 0; /* of a run: its records */
    checked->sum.remote += file == NULL ? report.remote : 0;
    checked->sum.contents += report.contents;
    checked->sum.bytes_read += report.bytes_read;
    return cli_pass(cli, &checked->passed, status);
}

/* ---- Folders -------------------------------------------------------------------------------------------------- */

static void visit_missing(struct checked *checked, const struct cli_record *record)
{
    struct cli *cli = checked->cli;
    cli_progress_wipe(&cli->progress);
    checked->missing++;
    if (cli->options.json) {
        json_t *json = json_object();
        cli_json_set(json, "snapshot", cli_json_text(record->address));
        cli_json_set(json, "what", cli_json_text(cli->error.message));
        json_array_append_new(json_object_get(cli->json, "missing"), json);
        return;
    }
    fputs("missing: ", stdout);
    cli_print(stdout, record->address);
    fputs(": ", stdout);
    cli_print(stdout, cli->error.message);
    putchar('\n');
}

/* Verifies a part of its own. A part that is prepared has no address: its contents are read. */
static enum lmcs_status verify_part(struct checked *checked, const struct cli_record *record,
                                    const struct cli_part *part, struct lmcs_pool *pool, struct lmcs_snapshot *snapshot)
{
    struct lmcs_snapshot *found = NULL;
    struct lmcs_view *view = NULL;
    struct lmcs_error error;
    char which[24], address[sizeof record->address];
    uint64_t number = lmcs_snapshot_info(snapshot)->number;
    snprintf(which, sizeof which, "%" PRIu64, number);
    snprintf(address, sizeof address, "%s@%" PRIu64, record->shelf, number);
    if (lmcs_snapshot_find(pool, record->shelf, which, &found, &error) == LMCS_OK) {
        lmcs_snapshot_close(found);
        return verify(checked, pool, address, part->file);
    }
    enum lmcs_status status = lmcs_view_open(snapshot, NULL, NULL, 0, LMCS_VIEW_VERIFY, &view, &checked->cli->error);
    if (view != NULL)
        lmcs_view_close(view);
    return visit_error(checked, status, part->file);
}

/* Checks that the parts of a snapshot are there; `reads`: verifies them, too. */
static enum lmcs_status verify_parts(struct checked *checked, struct lmcs_snapshot *snapshot, bool reads)
{
    struct cli *cli = checked->cli;
    struct cli_record record;
    char url[LMCS_MAX_URL + 1];
    bool is_remote = false;
    enum lmcs_status status = cli_record_read(cli, snapshot, &record);
    if (status != LMCS_OK) {
        cli_record_free(&record);
        return visit_error(checked, status, NULL);
    }
    for (size_t i = 0; status == LMCS_OK && i < record.part_count; i++) {
        struct lmcs_pool *pool = NULL;
        struct lmcs_snapshot *part = NULL;
        status = cli_part_open(cli, &record, &record.parts[i], &pool, &part);
        if (status == LMCS_NOT_FOUND) {
            visit_missing(checked, &record);
            status = LMCS_OK;
        } else if (status != LMCS_OK) {
            status =
                reads ? visit_error(checked, status, record.parts[i].file) : cli_pass(cli, &checked->passed, status);
        } else {
            cli_part_url(part, url);
            is_remote = is_remote || *url != '\0';
            if (reads)
                status = verify_part(checked, &record, &record.parts[i], pool, part);
        }
        lmcs_snapshot_close(part);
    }
    cli_record_free(&record);
    checked->sum.remote += is_remote;
    checked->sum.snapshots -= is_remote && checked->sum.snapshots > 0;
    return status;
}

static enum lmcs_status verify_snapshot(struct checked *checked, const char *shelf, uint64_t number, bool reads)
{
    struct cli *cli = checked->cli;
    struct lmcs_snapshot *snapshot = NULL;
    char which[24];
    snprintf(which, sizeof which, "%" PRIu64, number);
    enum lmcs_status status = lmcs_snapshot_find(cli->pool, shelf, which, &snapshot, &cli->error);
    if (status == LMCS_OK)
        status = verify_parts(checked, snapshot, reads);
    lmcs_snapshot_close(snapshot);
    return status == LMCS_NOT_FOUND ? LMCS_OK : cli_pass(cli, &checked->passed, status); /* removed meanwhile */
}

static enum lmcs_status verify_shelf(struct checked *checked, const char *shelf, bool reads)
{
    enum { SOME = 256 };
    uint64_t numbers[SOME], from = 0;
    struct cli *cli = checked->cli;
    enum lmcs_status status = LMCS_OK;
    for (size_t got = SOME; status == LMCS_OK && got == SOME; from = got > 0 ? numbers[got - 1] + 1 : 0) {
        status = lmcs_snapshot_numbers(cli->pool, shelf, from, numbers, SOME, &got, &cli->error);
        status = cli_pass(cli, &checked->passed, status);
        for (size_t i = 0; status == LMCS_OK && i < got; i++)
            status = verify_snapshot(checked, shelf, numbers[i], reads);
    }
    return status;
}

/* Verifies the ranks' pools, or what they have of an address. */
static enum lmcs_status verify_ranks(struct checked *checked, const char *address)
{
    struct cli *cli = checked->cli;
    struct lmcs_snapshot *snapshot = NULL;
    struct lmcs_pool *pool;
    const char *file;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; address == NULL && status == LMCS_OK && (file = cli_folder_file(cli->folder, i)) != NULL; i++) {
        status = cli_folder_pool(cli, i, &pool);
        status = status == LMCS_OK ? verify(checked, pool, NULL, file) : visit_error(checked, status, file);
    }
    if (address != NULL && strchr(address, '@') == NULL)
        return verify_shelf(checked, address, true);
    if (address != NULL) {
        status = cli_snapshot(cli, address, true, &snapshot);
        if (status == LMCS_OK)
            status = verify_parts(checked, snapshot, true);
        lmcs_snapshot_close(snapshot);
        return status;
    }
    struct cli_shelves shelves = {.count = 0};
    if (status == LMCS_OK)
        status = cli_pass(cli, &checked->passed, cli_shelves(cli, &shelves));
    for (size_t i = 0; status == LMCS_OK && i < shelves.count; i++)
        status = verify_shelf(checked, shelves.infos[i].name, false);
    free(shelves.infos);
    return status;
}

/* ---- The command ---------------------------------------------------------------------------------------------- */

static void report_json(struct cli *cli, enum lmcs_status status, const struct lmcs_verify_report *report)
{
    cli_json_set(cli->json, "ok", json_boolean(status == LMCS_OK));
    cli_json_set(cli->json, "snapshots", cli_json_u64(report->snapshots));
    cli_json_set(cli->json, "remote", cli_json_u64(report->remote));
    cli_json_set(cli->json, "contents", cli_json_u64(report->contents));
    cli_json_set(cli->json, "bytes_read", cli_json_u64(report->bytes_read));
}

static enum lmcs_status run(struct cli *cli)
{
    const char *address = cli->options.arguments[1];
    struct checked checked = {.cli = cli, .passed = {.status = LMCS_OK}};
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
        if (cli->folder != NULL)
            cli_json_set(cli->json, "missing", json_array());
    }
    status = verify(&checked, cli->pool, address, NULL);
    if (status == LMCS_OK && cli->folder != NULL)
        status = verify_ranks(&checked, address);
    status = cli_passed(cli, &checked.passed, status);
    if (status == LMCS_OK && checked.missing > 0)
        status = cli_fail(cli, LMCS_NOT_FOUND, 0, "%s: %" PRIu64 " part%s of snapshots %s missing",
                          cli->options.arguments[0], checked.missing, cli_s(checked.missing),
                          checked.missing == 1 ? "is" : "are");
    if (cli->options.json)
        report_json(cli, status, &checked.sum);
    else if (status == LMCS_OK)
        printf("no damage: %" PRIu64 " snapshot%s, %" PRIu64 " contents, %s read%s\n", checked.sum.snapshots,
               cli_s(checked.sum.snapshots), checked.sum.contents, cli_bytes(checked.sum.bytes_read).text,
               cli_remote(checked.sum.remote).text);
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
        "of one from a pipe (-), only the records are checked. The first damage in an archive ends the check. Of the\n"
        "folder of a run, all its pools; also prints the parts of snapshots that are missing.",
    .options = "force-network json",
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
