/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_diff.c - lmc-store diff: differences between two snapshots. */
#include "folder.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct table {
    struct cli *cli;
    json_t *rows;
    bool has_head;
    uint64_t shown;
};

static const char *kind_name(enum lmcs_difference_kind kind)
{
    static const char *const names[] = {"same", "changed", "reshaped", "added", "removed"};
    return (unsigned)kind < 5 ? names[kind] : "unknown";
}

/* ---- Text ----------------------------------------------------------------------------------------------------- */

struct form {
    char text[1024];
};

/* Returns a text like "f32 768x3072". */
static struct form form_of(const struct lmcs_tensor *tensor)
{
    struct form form = {""};
    const char *dtype = lmc_dtype_name(tensor->dtype);
    size_t used = (size_t)snprintf(form.text, sizeof form.text, "%s ", dtype != NULL ? dtype : "?");
    for (uint32_t i = 0; i < tensor->ndim && used < sizeof form.text; i++)
        used += (size_t)snprintf(form.text + used, sizeof form.text - used, "%s%" PRIu64, i != 0 ? "x" : "",
                                 tensor->shape[i]);
    if (tensor->ndim == 0)
        snprintf(form.text + used, sizeof form.text - used, "scalar");
    return form;
}

static void print_numbers(const struct lmcs_difference *d)
{
    double share = d->elements != 0 ? 100.0 * (double)d->changed / (double)d->elements : 0;
    printf("%7.2f%% %10.3g %10.3g ", share, d->max_change, d->rms_change);
    if (d->rms_before > 0)
        printf("%10.3g ", d->rms_change / d->rms_before);
    else
        printf("%10s ", "-");
    if (isnan(d->cosine))
        printf("%11s  ", "-");
    else
        printf("%11.8f  ", d->cosine);
}

static void print_row(struct table *table, const struct lmcs_difference *d)
{
    if (!table->has_head)
        printf("CHANGED         MAX        RMS   RELATIVE      COSINE  NAME\n");
    table->has_head = true;
    if (d->kind == LMCS_CHANGED)
        print_numbers(d);
    else
        printf("%-53s  ", kind_name(d->kind));
    cli_print(stdout, d->name);
    printf("  %s", form_of(d->after != NULL ? d->after : d->before).text);
    if (d->kind == LMCS_RESHAPED)
        printf(" (was %s)", form_of(d->before).text);
    if ((d->after != NULL ? d->after : d->before)->kind == LMCS_ATTACHMENT)
        fputs(" (attachment)", stdout);
    if (d->not_finite_before != 0 || d->not_finite_after != 0)
        printf("  not finite: %" PRIu64 " before, %" PRIu64 " after", d->not_finite_before, d->not_finite_after);
    putchar('\n');
}

/* ---- JSON ----------------------------------------------------------------------------------------------------- */

static json_t *tensor_json(const struct lmcs_tensor *tensor, uint64_t bytes)
{
    if (tensor == NULL)
        return json_null();
    json_t *json = json_object();
    json_t *shape = json_array();
    const char *dtype = lmc_dtype_name(tensor->dtype);
    for (uint32_t i = 0; i < tensor->ndim; i++)
        json_array_append_new(shape, cli_json_u64(tensor->shape[i]));
    cli_json_set(json, "dtype", dtype != NULL ? cli_json_text(dtype) : NULL);
    cli_json_set(json, "shape", shape);
    cli_json_set(json, "raw_bytes", cli_json_u64(bytes));
    return json;
}

static json_t *difference_json(const struct lmcs_difference *d)
{
    const struct lmcs_tensor *tensor = d->after != NULL ? d->after : d->before;
    json_t *json = json_object();
    cli_json_set(json, "name", cli_json_text(d->name));
    cli_json_set(json, "kind", cli_json_text(kind_name(d->kind)));
    cli_json_set(json, "is_attachment", json_boolean(tensor->kind == LMCS_ATTACHMENT));
    cli_json_set(json, "before", tensor_json(d->before, d->before_bytes));
    cli_json_set(json, "after", tensor_json(d->after, d->after_bytes));
    if (d->kind != LMCS_CHANGED)
        return json;
    cli_json_set(json, "elements", cli_json_u64(d->elements));
    cli_json_set(json, "changed", cli_json_u64(d->changed));
    cli_json_set(json, "not_finite_before", cli_json_u64(d->not_finite_before));
    cli_json_set(json, "not_finite_after", cli_json_u64(d->not_finite_after));
    cli_json_set(json, "max_change", cli_json_real(d->max_change));
    cli_json_set(json, "rms_change", cli_json_real(d->rms_change));
    cli_json_set(json, "rms_before", cli_json_real(d->rms_before));
    cli_json_set(json, "rms_after", cli_json_real(d->rms_after));
    cli_json_set(json, "cosine", isnan(d->cosine) ? NULL : cli_json_real(d->cosine));
    return json;
}

/* ---- The command ---------------------------------------------------------------------------------------------- */

static bool visit(void *context, const struct lmcs_difference *difference)
{
    struct table *table = context;
    const struct cli_options *options = &table->cli->options;
    if (options->count != 0 && table->shown == options->count)
        return true;
    table->shown++;
    cli_progress_wipe(&table->cli->progress);
    if (options->json)
        json_array_append_new(table->rows, difference_json(difference));
    else
        print_row(table, difference);
    return ferror(stdout) == 0;
}

static void report_json(struct cli *cli, struct table *table, struct lmcs_snapshot *const pair[2],
                        const struct lmcs_diff_report *report)
{
    static const char *const sides[] = {"before", "after"};
    cli->json = json_object();
    cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
    for (size_t i = 0; i < 2; i++) {
        const struct lmcs_snapshot_info *info = lmcs_snapshot_info(pair[i]);
        json_t *side = json_object();
        cli_json_set(side, "shelf", cli_json_text(info->shelf));
        cli_json_set(side, "number", cli_json_u64(info->number));
        cli_json_set(side, "step", info->step == LMCS_NO_STEP ? NULL : json_integer(info->step));
        cli_json_set(cli->json, sides[i], side);
    }
    cli_json_set(cli->json, "same", cli_json_u64(report->same));
    cli_json_set(cli->json, "changed", cli_json_u64(report->changed));
    cli_json_set(cli->json, "reshaped", cli_json_u64(report->reshaped));
    cli_json_set(cli->json, "added", cli_json_u64(report->added));
    cli_json_set(cli->json, "removed", cli_json_u64(report->removed));
    cli_json_set(cli->json, "bytes_compared", cli_json_u64(report->bytes_compared));
    cli_json_set(cli->json, "tensors", json_incref(table->rows));
}

static void report_text(struct lmcs_snapshot *const pair[2], const struct lmcs_diff_report *report)
{
    for (size_t i = 0; i < 2; i++) {
        const struct lmcs_snapshot_info *info = lmcs_snapshot_info(pair[i]);
        fputs(i != 0 ? " to " : "", stdout);
        cli_print(stdout, info->shelf);
        printf("@%" PRIu64, info->number);
        if (info->step != LMCS_NO_STEP)
            printf(" (step %" PRId64 ")", info->step);
    }
    printf(": %" PRIu64 " changed, %" PRIu64 " reshaped, %" PRIu64 " added, %" PRIu64 " removed, %" PRIu64
           " the same\n",
           report->changed, report->reshaped, report->added, report->removed, report->same);
}

static enum lmcs_status compare(struct cli *cli, struct lmcs_snapshot *const pair[2])
{
    struct table table = {.cli = cli, .rows = json_array()};
    struct lmcs_diff_report report;
    struct lmcs_progress progress = cli_progress_start(cli);
    enum lmcs_status status =
        cli->folder != NULL ? cli_joined_diff(cli, pair, visit, &table, &progress, &report)
                            : lmcs_snapshot_diff(pair[0], pair[1], 0, visit, &table, &progress, &report, &cli->error);
    cli_progress_wipe(&cli->progress);
    if (status == LMCS_OK && cli->options.json)
        report_json(cli, &table, pair, &report);
    else if (status == LMCS_OK)
        report_text(pair, &report);
    json_decref(table.rows);
    return status;
}

static enum lmcs_status open_number(struct cli *cli, const char *shelf, uint64_t number,
                                    struct lmcs_snapshot **snapshot)
{
    char which[24];
    snprintf(which, sizeof which, "%" PRIu64, number);
    return lmcs_snapshot_find(cli->pool, shelf, which, snapshot, &cli->error);
}

/* Opens both ends of a range like "run@5..9". */
static enum lmcs_status open_range(struct cli *cli, const char *address, struct lmcs_snapshot *pair[2])
{
    char shelf[LMCS_MAX_NAME + 1];
    size_t length = strcspn(address, "@");
    uint64_t ends[2];
    if (length > LMCS_MAX_NAME)
        return cli_wrong_use(cli, "diff: the shelf's name is too long");
    memcpy(shelf, address, length);
    shelf[length] = '\0';
    enum lmcs_status status =
        lmcs_snapshot_range(cli->pool, shelf, address + length + 1, &ends[0], &ends[1], &cli->error);
    for (size_t i = 0; i < 2 && status == LMCS_OK; i++)
        status = open_number(cli, shelf, ends[i], &pair[i]);
    return status;
}

static enum lmcs_status open_parent(struct cli *cli, const char *address, struct lmcs_snapshot *pair[2])
{
    enum lmcs_status status = cli_snapshot(cli, address, false, &pair[1]);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(pair[1]);
    if (info->parent == 0)
        return cli_fail(cli, LMCS_NOT_FOUND, 0, "%s@%" PRIu64 " has no parent; name two snapshots", info->shelf,
                        info->number);
    return open_number(cli, info->shelf, info->parent, &pair[0]);
}

/* Opens two snapshots; "@9" is in the shelf of the first one. */
static enum lmcs_status open_two(struct cli *cli, const char *before, const char *after, struct lmcs_snapshot *pair[2])
{
    enum lmcs_status status = cli_snapshot(cli, before, false, &pair[0]);
    if (status != LMCS_OK)
        return status;
    return *after == '@'
               ? lmcs_snapshot_find(cli->pool, lmcs_snapshot_info(pair[0])->shelf, after + 1, &pair[1], &cli->error)
               : cli_snapshot(cli, after, false, &pair[1]);
}

static enum lmcs_status run(struct cli *cli)
{
    const char *before = cli->options.arguments[1];
    const char *after = cli->options.arguments[2];
    const char *at = strchr(before, '@');
    struct lmcs_snapshot *pair[2] = {NULL, NULL};
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_READ);
    if (status == LMCS_OK)
        status = after != NULL                                ? open_two(cli, before, after, pair)
                 : at != NULL && strstr(at + 1, "..") != NULL ? open_range(cli, before, pair)
                                                              : open_parent(cli, before, pair);
    if (status == LMCS_OK)
        status = compare(cli, pair);
    lmcs_snapshot_close(pair[0]);
    lmcs_snapshot_close(pair[1]);
    return status;
}

const struct cli_command cmd_diff = {
    .name = "diff",
    .synopsis = "POOL ADDRESS [ADDRESS|@WHICH] [-n N] [--json]",
    .summary = "Shows the differences between two snapshots",
    .help =
        "Lists tensors that were added, removed, given another dtype or shape, and changed, with the share of\n"
        "elements whose bytes differ, the largest and the root-mean-square change, the latter relative to the\n"
        "root-mean-square before, and the cosine between the two. @9 is of the first one's shelf; run@5..9 compares 5\n"
        "with 9; one snapshot alone is compared with its parent. NaN and infinities are counted, but not part of the\n"
        "figures. Tensors with equal contents are not read. Of the folder of a run, only tensors are compared, joined\n"
        "from the parts of its ranks, one at a time in memory.",
    .options = "n force-network json",
    .min_arguments = 2,
    .max_arguments = 3,
    .run = run,
};
