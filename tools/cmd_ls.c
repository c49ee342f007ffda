/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cmd_ls.c - lmc-store ls: lists shelves with their snapshots and live variables, or the tensors of one snapshot.
 *
 * Texts of any length are last, so scripts can cut the output.
 */
#include "folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lmcstore_live.h"

/* ---- Shapes --------------------------------------------------------------------------------------------------- */

struct shape_text {
    char text[LMCS_MAX_DIMS * 21];
};

static struct shape_text shape_text(const uint64_t *shape, uint32_t ndim)
{
    struct shape_text made = {"scalar"};
    size_t used = 0;
    for (uint32_t i = 0; i < ndim && used < sizeof made.text; i++)
        used += (size_t)snprintf(made.text + used, sizeof made.text - used, "%s%" PRIu64, i != 0 ? "x" : "", shape[i]);
    return made;
}

static json_t *integers_json(const uint64_t *values, uint32_t count)
{
    json_t *json = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(json, cli_json_u64(values[i]));
    return json;
}

/* ---- Live variables ------------------------------------------------------------------------------------------- */

struct variables {
    json_t *rows; /* NULL: print them */
    uint64_t count;
};

static void print_variable(const struct lmcs_live_info *info)
{
    const char *dtype = lmc_dtype_name(info->dtype);
    printf("  %-12s %-18s %10s ", dtype != NULL ? dtype : "?", shape_text(info->shape, info->ndim).text,
           info->is_damaged && info->form == LMCS_LIVE_VALUE ? "?" : cli_bytes(info->bytes).text);
    if (info->is_damaged)
        printf("%8s  %-19s  ", "?", "DAMAGED");
    else
        printf("%8" PRIu64 "  %-19s  ", info->version, info->written_ns != 0 ? cli_time(info->written_ns).text : "-");
    cli_print(stdout, info->name);
    putchar('\n');
}

static json_t *variable_json(const struct lmcs_live_info *info)
{
    const char *dtype = lmc_dtype_name(info->dtype);
    json_t *json = json_object();
    cli_json_set(json, "name", cli_json_text(info->name));
    cli_json_set(json, "form", cli_json_text(info->form == LMCS_LIVE_TENSOR ? "tensor" : "value"));
    cli_json_set(json, "dtype", dtype != NULL ? cli_json_text(dtype) : NULL);
    cli_json_set(json, "shape", integers_json(info->shape, info->ndim));
    cli_json_set(json, "bytes", cli_json_u64(info->bytes));
    cli_json_set(json, "reserved_bytes", cli_json_u64(info->reserved_bytes));
    cli_json_set(json, "version", info->is_damaged ? NULL : cli_json_u64(info->version));
    cli_json_set(json, "written", info->written_ns != 0 ? json_real((double)info->written_ns / 1e9) : NULL);
    cli_json_set(json, "is_damaged", json_boolean(info->is_damaged));
    return json;
}

static bool visit_variable(void *context, const struct lmcs_live_info *info)
{
    struct variables *variables = context;
    if (variables->rows != NULL)
        json_array_append_new(variables->rows, variable_json(info));
    else if (variables->count == 0)
        printf("  DTYPE        SHAPE                   BYTES  VERSION  WRITTEN              LIVE VARIABLE\n");
    if (variables->rows == NULL)
        print_variable(info);
    variables->count++;
    return ferror(stdout) == 0;
}

/* Lists live variables; `rows` NULL: prints them. */
static enum lmcs_status list_variables(struct cli *cli, const char *shelf, json_t *rows)
{
    struct variables variables = {.rows = rows};
    return lmcs_live_list(cli->pool, shelf, NULL, visit_variable, &variables, &cli->error);
}

/* ---- Shelves -------------------------------------------------------------------------------------------------- */

/* Lists the newest numbers, ascending; without -n all. The caller frees them. Leaves unreadable ones out. */
static enum lmcs_status newest_numbers(struct cli *cli, struct cli_passed *passed, const char *shelf,
                                       uint64_t **numbers, size_t *first, size_t *count)
{
    enum { CHUNK = 4096 };
    uint64_t from = 0;
    size_t got = CHUNK;
    *numbers = NULL;
    *count = 0;
    while (got == CHUNK) {
        uint64_t *grown = realloc(*numbers, (*count + CHUNK) * sizeof **numbers);
        if (grown == NULL)
            return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
        *numbers = grown;
        got = 0;
        enum lmcs_status status =
            lmcs_snapshot_numbers(cli->pool, shelf, from, grown + *count, CHUNK, &got, &cli->error);
        status = cli_pass(cli, passed, status);
        if (status != LMCS_OK)
            return status;
        *count += got;
        from = got != 0 ? grown[*count - 1] + 1 : 0;
    }
    *first = cli->options.count != 0 && cli->options.count < *count ? *count - (size_t)cli->options.count : 0;
    return LMCS_OK;
}

/* Counts the bytes that each snapshot added. The caller frees them. */
static enum lmcs_status find_new_bytes(struct cli *cli, const char *shelf, const uint64_t *numbers, size_t count,
                                       uint64_t **new_bytes)
{
    *new_bytes = malloc((count + 1) * sizeof **new_bytes);
    if (*new_bytes == NULL)
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    return lmcs_snapshot_new_bytes(cli->pool, shelf, numbers, count, *new_bytes, &cli->error);
}

/* Texts printed with commas, as one word for awk. */
struct list {
    FILE *out;
    bool has_one;
};

static void print_one(struct list *list, const char *text)
{
    if (list->has_one)
        fputc(',', list->out);
    cli_print(list->out, text);
    list->has_one = true;
}

static bool print_tag(void *context, const char *tag)
{
    print_one(context, tag);
    return true;
}

static void print_metrics(const struct lmcs_snapshot_info *info)
{
    struct list list = {stdout, false};
    for (size_t i = 0; i < info->metric_count; i++) {
        print_one(&list, info->metrics[i].name);
        printf("=%.6g", info->metrics[i].value);
    }
    if (!list.has_one)
        putchar('-');
}

static enum lmcs_status print_tags(struct cli *cli, struct lmcs_snapshot *snapshot)
{
    struct cli_held held;
    enum lmcs_status status = cli_hold(cli, &held);
    if (status != LMCS_OK)
        return status;
    struct list list = {held.stream, false};
    status = lmcs_snapshot_tags(snapshot, print_tag, &list, &cli->error);
    if (!list.has_one)
        fputc('-', held.stream);
    return cli_show(cli, &held, status);
}

/* Prints how the snapshot is stored, with the longest chain, like "links 7". */
static void print_how(const struct lmcs_snapshot_storage *storage, bool is_remote)
{
    const char *how = is_remote                                                     ? "remote"
                      : storage->link_contents != 0 && storage->delta_contents != 0 ? "links+deltas"
                      : storage->link_contents != 0                                 ? "links"
                      : storage->delta_contents != 0                                ? "deltas"
                      : storage->keyframe_contents != 0                             ? "keyframe"
                                                                                    : "raw";
    uint32_t most = storage->longest_line > storage->longest_chain ? storage->longest_line : storage->longest_chain;
    char text[32];
    snprintf(text, sizeof text, most != 0 ? "%s %" PRIu32 : "%s", how, most);
    printf("%-14s  ", text);
}

#define NO_LINK "no link to"

/* Sentences about snapshots, each once: why they have no links, or what they lack. */
struct reasons {
    struct reason {
        char why[1024];
        const char *what; /* before the number */
        uint64_t count, first, last;
    } all[8];
    size_t count;
};

static void add_reason(struct reasons *reasons, const char *what, const char *why, uint64_t number)
{
    size_t i = 0;
    if (why == NULL || *why == '\0')
        return;
    while (i < reasons->count && strcmp(reasons->all[i].why, why) != 0)
        i++;
    if (i == sizeof reasons->all / sizeof *reasons->all)
        return;
    struct reason *reason = &reasons->all[i];
    if (i == reasons->count) {
        reasons->count++;
        *reason = (struct reason){.what = what, .first = number};
        snprintf(reason->why, sizeof reason->why, "%s", why);
    }
    reason->count++;
    reason->last = number;
}

static void print_reasons(const struct reasons *reasons)
{
    for (size_t i = 0; i < reasons->count; i++) {
        const struct reason *reason = &reasons->all[i];
        printf("  %s %" PRIu64, reason->what, reason->first);
        if (reason->count > 1)
            printf(" and %s%" PRIu64 " more up to %" PRIu64, strcmp(reason->what, NO_LINK) == 0 ? "to " : "",
                   reason->count - 1, reason->last);
        fputs(": ", stdout);
        cli_print(stdout, reason->why);
        putchar('\n');
    }
}

static enum lmcs_status print_row(struct cli *cli, struct lmcs_snapshot *snapshot, const struct cli_sizes *sizes,
                                  struct reasons *reasons)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    uint64_t stored_bytes = sizes->storage.stored_bytes;
    printf("%8" PRIu64 " %10s  %s  %10s %10s %10s %8s  ", info->number, cli_step(info->step).text,
           cli_time(info->time_ns).text, cli_bytes(sizes->raw_bytes).text, cli_new_bytes(sizes->new_bytes).text,
           cli_bytes(stored_bytes).text, cli_ratio(sizes->raw_bytes, stored_bytes).text);
    print_how(&sizes->storage, *sizes->remote != '\0');
    add_reason(reasons, NO_LINK, sizes->storage.links_note, info->number);
    add_reason(reasons, "incomplete:", sizes->lacks, info->number);
    enum lmcs_status status = print_tags(cli, snapshot);
    fputs("  ", stdout);
    print_metrics(info);
    putchar('\n');
    return status;
}

static enum lmcs_status add_row(struct cli *cli, struct lmcs_snapshot *snapshot, uint64_t new_bytes, json_t *rows,
                                struct reasons *reasons)
{
    json_t *row = NULL;
    struct cli_sizes sizes;
    enum lmcs_status status = cli_sizes(cli, snapshot, new_bytes, &sizes);
    if (status == LMCS_OK && !cli->options.json)
        return print_row(cli, snapshot, &sizes, reasons);
    if (status == LMCS_OK)
        status = cli_json_sized(cli, snapshot, &sizes, &row);
    if (status != LMCS_OK)
        return status;
    cli_json_set(row, "new_bytes", cli_json_u64(sizes.new_bytes));
    json_array_append_new(rows, row);
    return LMCS_OK;
}

/* Lists a snapshot. Skips one that a writer removes meanwhile. */
static enum lmcs_status list_snapshot(struct cli *cli, const char *shelf, uint64_t number, uint64_t new_bytes,
                                      json_t *rows, struct reasons *reasons)
{
    struct lmcs_snapshot *snapshot = NULL;
    char which[24];
    snprintf(which, sizeof which, "%" PRIu64, number);
    enum lmcs_status status = lmcs_snapshot_find(cli->pool, shelf, which, &snapshot, &cli->error);
    if (status == LMCS_OK)
        status = add_row(cli, snapshot, new_bytes, rows, reasons);
    lmcs_snapshot_close(snapshot);
    return status == LMCS_NOT_FOUND ? LMCS_OK : status;
}

static void print_shelf(const struct lmcs_shelf_info *info, size_t shown)
{
    cli_print(stdout, info->name);
    printf(": %" PRIu64 " snapshot%s; the newest %" PRIu32 " stay raw\n", info->snapshot_count,
           cli_s(info->snapshot_count), info->keep_raw);
    if (shown != 0)
        printf("  NUMBER       STEP  TIME                         RAW        NEW     STORED    RATIO  HOW             "
               "TAGS  METRICS\n");
}

static json_t *shelf_json(const struct lmcs_shelf_info *info, json_t *rows, json_t *variables)
{
    json_t *json = json_object();
    cli_json_set(json, "name", cli_json_text(info->name));
    cli_json_set(json, "snapshot_count", cli_json_u64(info->snapshot_count));
    cli_json_set(json, "latest", info->latest != 0 ? cli_json_u64(info->latest) : NULL);
    cli_json_set(json, "next_number", cli_json_u64(info->next_number));
    cli_json_set(json, "keep_raw", cli_json_u64(info->keep_raw));
    cli_json_set(json, "snapshots", rows);
    cli_json_set(json, "live", variables);
    return json;
}

static enum lmcs_status list_shelf(struct cli *cli, const struct lmcs_shelf_info *info, json_t *shelves)
{
    uint64_t *numbers = NULL, *new_bytes = NULL;
    size_t first = 0;
    size_t count = 0;
    struct reasons reasons;
    struct cli_passed passed = {.status = LMCS_OK};
    json_t *rows = json_array(), *variables = json_array();
    reasons.count = 0;
    enum lmcs_status status = newest_numbers(cli, &passed, info->name, &numbers, &first, &count);
    if (status == LMCS_OK)
        status = find_new_bytes(cli, info->name, numbers + first, count - first, &new_bytes);
    if (status == LMCS_OK && !cli->options.json)
        print_shelf(info, count - first);
    for (size_t i = first; i < count && status == LMCS_OK && ferror(stdout) == 0; i++)
        status =
            cli_pass(cli, &passed, list_snapshot(cli, info->name, numbers[i], new_bytes[i - first], rows, &reasons));
    if (!cli->options.json)
        print_reasons(&reasons);
    if (status == LMCS_OK && ferror(stdout) == 0)
        status = cli_pass(cli, &passed, list_variables(cli, info->name, cli->options.json ? variables : NULL));
    if (status == LMCS_OK && cli->options.json)
        json_array_append_new(shelves, shelf_json(info, json_incref(rows), json_incref(variables)));
    json_decref(variables);
    json_decref(rows);
    free(new_bytes);
    free(numbers);
    return cli_passed(cli, &passed, status);
}

static enum lmcs_status list_all(struct cli *cli, json_t *json)
{
    struct cli_shelves shelves;
    struct cli_passed passed = {.status = LMCS_OK};
    enum lmcs_status status = cli_pass(cli, &passed, cli_shelves(cli, &shelves));
    if (status == LMCS_OK && passed.status == LMCS_OK && shelves.count == 0 && !cli->options.json)
        printf("the pool is empty: no shelves yet\n");
    for (size_t i = 0; i < shelves.count && status == LMCS_OK; i++) { /* damage is reported after all shelves */
        if (i != 0 && !cli->options.json)
            putchar('\n');
        status = cli_pass(cli, &passed, list_shelf(cli, &shelves.infos[i], json));
    }
    free(shelves.infos);
    return cli_passed(cli, &passed, status);
}

static enum lmcs_status list_shelves(struct cli *cli, const char *shelf)
{
    json_t *json = json_array();
    struct lmcs_shelf_info info;
    enum lmcs_status status = shelf != NULL ? lmcs_shelf_info(cli->pool, shelf, &info, &cli->error) : LMCS_OK;
    if (status == LMCS_OK)
        status = shelf != NULL ? list_shelf(cli, &info, json) : list_all(cli, json);
    if ((status == LMCS_OK || status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED) && cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "shelves", json_incref(json));
    }
    json_decref(json);
    return status;
}

/* ---- One snapshot --------------------------------------------------------------------------------------------- */

struct tensors {
    const struct cli_options *options;
    FILE *out;
    json_t *tensors;
    json_t *attachments;
    uint64_t shown;
    uint64_t attachment_count;
    uint64_t attachment_bytes;
    uint64_t values; /* of a run's snapshot, and its pickles */
    uint64_t opaque;
};

static const char *stored_name(enum lmcs_stored_as stored_as)
{
    static const char *const names[] = {"raw", "keyframe", "delta", "link"};
    return (unsigned)stored_as < sizeof names / sizeof names[0] ? names[stored_as] : "unknown";
}

static void print_tensor(FILE *out, const struct lmcs_entry *entry)
{
    const char *dtype = lmc_dtype_name(entry->tensor.dtype);
    fprintf(out, "%-12s %-18s %10s %10s %8s  %-8s  ", dtype != NULL ? dtype : "?",
            shape_text(entry->tensor.shape, entry->tensor.ndim).text, cli_bytes(entry->raw_bytes).text,
            cli_bytes(entry->stored_bytes).text, cli_ratio(entry->raw_bytes, entry->stored_bytes).text,
            stored_name(entry->stored_as));
    cli_print(out, entry->tensor.name);
    fputc('\n', out);
}

/* Zero, of tensors that are joined: null. */
static json_t *digest_json(struct lmc_hash digest)
{
    char text[33];
    if (digest.high == 0 && digest.low == 0)
        return NULL;
    snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, digest.high, digest.low);
    return json_string(text);
}

static json_t *tensor_json(const struct lmcs_entry *entry)
{
    const struct lmcs_tensor *tensor = &entry->tensor;
    const char *dtype = lmc_dtype_name(tensor->dtype);
    json_t *json = json_object();
    cli_json_set(json, "name", cli_json_text(tensor->name));
    cli_json_set(json, "dtype", dtype != NULL ? cli_json_text(dtype) : NULL);
    cli_json_set(json, "shape", integers_json(tensor->shape, tensor->ndim));
    if (tensor->global_shape != NULL && tensor->offsets != NULL) {
        cli_json_set(json, "global_shape", integers_json(tensor->global_shape, tensor->ndim));
        cli_json_set(json, "offsets", integers_json(tensor->offsets, tensor->ndim));
    }
    cli_json_set(json, "raw_bytes", cli_json_u64(entry->raw_bytes));
    cli_json_set(json, "stored_bytes", cli_json_u64(entry->stored_bytes));
    cli_json_set(json, "stored_as", cli_json_text(stored_name(entry->stored_as)));
    cli_json_set(json, "chain", cli_json_u64(entry->chain));
    cli_json_set(json, "content", entry->content != 0 ? cli_json_u64(entry->content) : NULL);
    cli_json_set(json, "digest", digest_json(entry->digest));
    return json;
}

static bool visit_entry(void *context, const struct lmcs_entry *entry)
{
    struct tensors *tensors = context;
    bool is_attachment = entry->tensor.kind == LMCS_ATTACHMENT;
    if (is_attachment) {
        tensors->attachment_count++;
        tensors->attachment_bytes += entry->raw_bytes;
    } else if (tensors->options->count != 0 && tensors->shown == tensors->options->count) {
        return true;
    }
    tensors->shown += !is_attachment;
    if (tensors->options->json)
        json_array_append_new(is_attachment ? tensors->attachments : tensors->tensors, tensor_json(entry));
    else if (!is_attachment)
        print_tensor(tensors->out, entry);
    return true;
}

static enum lmcs_status print_head(struct cli *cli, struct lmcs_snapshot *snapshot)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    struct cli_sizes sizes;
    const struct lmcs_snapshot_storage *storage = &sizes.storage;
    uint64_t new_bytes = LMCS_BYTES_UNKNOWN;
    enum lmcs_status status =
        lmcs_snapshot_new_bytes(cli->pool, info->shelf, &info->number, 1, &new_bytes, &cli->error);
    if (status == LMCS_OK)
        status = cli_sizes(cli, snapshot, new_bytes, &sizes);
    if (status != LMCS_OK)
        return status;
    cli_print(stdout, info->shelf);
    printf("@%" PRIu64 "  step %s  %s  ", info->number, cli_step(info->step).text, cli_time(info->time_ns).text);
    if (info->parent != 0)
        printf("parent %" PRIu64 "\n", info->parent);
    else
        printf("no parent\n");
    printf("%" PRIu64 " tensors, raw %s, new %s, stored %s", sizes.tensor_count, cli_bytes(sizes.raw_bytes).text,
           cli_new_bytes(sizes.new_bytes).text, cli_bytes(storage->stored_bytes).text);
    printf(" (%s), longest chain %" PRIu32, cli_ratio(sizes.raw_bytes, storage->stored_bytes).text,
           storage->longest_chain);
    if (storage->link_contents != 0)
        printf(", %" PRIu64 " by links, at most %" PRIu32 " to undo", storage->link_contents, storage->longest_line);
    if (storage->links_note != NULL)
        printf("\nlinks: %s", storage->links_note);
    if (*sizes.lacks != '\0') {
        fputs("\nincomplete: ", stdout);
        cli_print(stdout, sizes.lacks);
    }
    fputs("\ntags ", stdout);
    status = print_tags(cli, snapshot);
    printf("\nmetrics ");
    print_metrics(info);
    printf("\nmeta ");
    cli_print(stdout, info->meta_json);
    printf("\n\nDTYPE        SHAPE                     RAW     STORED    RATIO  HOW       NAME\n");
    return status;
}

/* Visits the tensors of a run's snapshot. */
static enum lmcs_status visit_joined(struct cli *cli, struct lmcs_snapshot *snapshot, struct tensors *tensors)
{
    struct cli_joined joined;
    struct cli_stored *stored = NULL;
    char lacks[1024];
    enum lmcs_status status = cli_joined_open(cli, snapshot, &joined);
    if (status == LMCS_OK)
        status = cli_joined_stored(&joined, &stored, lacks);
    for (size_t i = 0; status == LMCS_OK && i < joined.record.tensor_count; i++) {
        struct lmcs_entry entry = cli_joined_entry(&joined, &joined.record.tensors[i], stored);
        visit_entry(tensors, &entry);
    }
    tensors->values = joined.record.values;
    tensors->opaque = joined.record.opaque;
    free(stored);
    cli_joined_close(&joined);
    return status;
}

static enum lmcs_status visit_tensors(struct cli *cli, struct lmcs_snapshot *snapshot, struct tensors *tensors)
{
    return cli->folder != NULL ? visit_joined(cli, snapshot, tensors)
                               : lmcs_snapshot_entries(snapshot, visit_entry, tensors, &cli->error);
}

static enum lmcs_status print_tensors(struct cli *cli, struct lmcs_snapshot *snapshot)
{
    struct cli_held held;
    enum lmcs_status status = print_head(cli, snapshot);
    if (status == LMCS_OK)
        status = cli_hold(cli, &held);
    if (status != LMCS_OK)
        return status;
    struct tensors tensors = {.options = &cli->options, .out = held.stream};
    status = visit_tensors(cli, snapshot, &tensors);
    status = cli_show(cli, &held, status);
    if (status == LMCS_OK && tensors.values + tensors.opaque != 0)
        printf("and %" PRIu64 " value%s, %" PRIu64 " pickle%s\n", tensors.values, cli_s(tensors.values), tensors.opaque,
               cli_s(tensors.opaque));
    if (status == LMCS_OK && tensors.attachment_count != 0)
        printf("and %" PRIu64 " attachment%s of %s\n", tensors.attachment_count, cli_s(tensors.attachment_count),
               cli_bytes(tensors.attachment_bytes).text);
    return status;
}

static enum lmcs_status tensors_json(struct cli *cli, struct lmcs_snapshot *snapshot)
{
    struct tensors tensors = {.options = &cli->options, .tensors = json_array(), .attachments = json_array()};
    json_t *json = NULL;
    enum lmcs_status status = cli_json_snapshot(cli, snapshot, &json);
    if (status == LMCS_OK)
        status = visit_tensors(cli, snapshot, &tensors);
    if (status == LMCS_OK && cli->folder != NULL) {
        cli_json_set(json, "values", cli_json_u64(tensors.values));
        cli_json_set(json, "opaque", cli_json_u64(tensors.opaque));
    }
    if (status == LMCS_OK) {
        cli_json_set(json, "entries", json_incref(tensors.tensors));
        cli_json_set(json, "attachments", json_incref(tensors.attachments));
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "snapshot", json_incref(json));
    }
    json_decref(json);
    json_decref(tensors.tensors);
    json_decref(tensors.attachments);
    return status;
}

static enum lmcs_status list_tensors(struct cli *cli, const char *address)
{
    struct lmcs_snapshot *snapshot = NULL;
    enum lmcs_status status = cli_snapshot(cli, address, true, &snapshot);
    if (status == LMCS_OK)
        status = cli->options.json ? tensors_json(cli, snapshot) : print_tensors(cli, snapshot);
    lmcs_snapshot_close(snapshot);
    return status;
}

static enum lmcs_status run(struct cli *cli)
{
    const char *address = cli->options.arguments[1];
    if (cli_is_archive(cli->options.arguments[0]))
        return cli_archive_ls(cli);
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_READ);
    if (status != LMCS_OK)
        return status;
    return address != NULL && strchr(address, '@') != NULL ? list_tensors(cli, address) : list_shelves(cli, address);
}

const struct cli_command cmd_ls = {
    .name = "ls",
    .synopsis = "POOL|ARCHIVE|- [ADDRESS] [-n N] [--json]",
    .summary = "Lists shelves, snapshots and live variables, or a snapshot's tensors",
    .help =
        "Without ADDRESS: every shelf with its snapshots, oldest first, and its live variables (VERSION counts\n"
        "writes). With a shelf's name: that shelf. With a snapshot's address, such as run@7 or run@latest: its\n"
        "tensors. NEW: bytes that the snapshot added, as stored now: of contents that no earlier one references.\n"
        "STORED counts contents that other snapshots share in full. HOW: raw, keyframe (encoded alone), deltas or\n"
        "links (from the optimizer's previous step), and the most of them that a read undoes; the line below gives\n"
        "reasons for missing links. Works while another process writes to the pool. Of an archive (-:\n"
        "standard input): its snapshots, and the contents that came with each.",
    .options = "n force-network json",
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
