/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cmd_log.c - lmc-store log: the history, newest first, with a graph of rewinds and forks.
 *
 * Reads each shelf from its newest snapshot, in pages, so the newest lines appear at once. Shelves are merged by time;
 * a snapshot waits until its forks have been shown.
 */
#include "cli.h"
#include "log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 256 };

struct line {
    struct lmcs_shelf_info info;
    uint64_t first; /* oldest snapshot to show */
    uint64_t numbers[PAGE];
    uint64_t new_bytes[PAGE];
    size_t count;
    size_t at;
    uint64_t before;                /* the next page has numbers below this */
    struct lmcs_snapshot *snapshot; /* next to show; NULL: none left */
    size_t origin;                  /* shelf of origin; its own index: not shown */
};

struct log {
    struct cli *cli;
    struct line **lines;
    size_t count;
    size_t capacity;
    bool is_out_of_memory;
    bool has_color;
    bool has_names;
    struct cli_passed passed;
    struct log_graph graph;
    json_t *rows;
};

/* ---- Lines ---------------------------------------------------------------------------------------------------- */

static bool add_line(void *context, const struct lmcs_shelf_info *info)
{
    struct log *log = context;
    if (log->count == log->capacity) {
        size_t capacity = log->capacity != 0 ? log->capacity * 2 : 8;
        struct line **lines = realloc(log->lines, capacity * sizeof *lines);
        if (lines != NULL) {
            log->lines = lines;
            log->capacity = capacity;
        }
    }
    struct line *line = log->count < log->capacity ? calloc(1, sizeof *line) : NULL;
    log->is_out_of_memory = line == NULL;
    if (line == NULL)
        return false;
    line->info = *info;
    line->first = 1;
    line->before = UINT64_MAX;
    log->lines[log->count++] = line;
    return true;
}

/* Opens the next older snapshot of a line. Skips snapshots that a writer removes meanwhile, and unreadable ones. */
static enum lmcs_status step(struct log *log, struct line *line)
{
    struct cli *cli = log->cli;
    lmcs_snapshot_close(line->snapshot);
    line->snapshot = NULL;
    for (;;) {
        if (line->at == line->count) {
            size_t wanted = cli->options.count != 0 && cli->options.count < PAGE ? (size_t)cli->options.count : PAGE;
            line->count = 0;
            enum lmcs_status status = lmcs_snapshot_newest(cli->pool, line->info.name, line->before, line->numbers,
                                                           wanted, &line->count, &cli->error);
            status = cli_pass(cli, &log->passed, status);
            if (status == LMCS_OK && line->count != 0)
                status = lmcs_snapshot_new_bytes(cli->pool, line->info.name, line->numbers, line->count,
                                                 line->new_bytes, &cli->error);
            if (status != LMCS_OK || line->count == 0)
                return status;
            line->at = 0;
            line->before = line->numbers[line->count - 1];
        }
        uint64_t number = line->numbers[line->at++];
        if (number < line->first)
            return LMCS_OK;
        char which[24];
        snprintf(which, sizeof which, "%" PRIu64, number);
        enum lmcs_status status = lmcs_snapshot_find(cli->pool, line->info.name, which, &line->snapshot, &cli->error);
        status = status == LMCS_NOT_FOUND ? LMCS_OK : cli_pass(cli, &log->passed, status);
        if (status != LMCS_OK || line->snapshot != NULL)
            return status;
    }
}

static void find_origins(struct log *log)
{
    for (size_t i = 0; i < log->count; i++) {
        struct line *line = log->lines[i];
        line->origin = i;
        for (size_t k = 0; k < log->count; k++)
            if (line->info.origin_is_there && strcmp(line->info.origin_shelf, log->lines[k]->info.name) == 0)
                line->origin = k;
    }
}

/* Whether a fork of the next snapshot is still to be shown. */
static bool must_wait(const struct log *log, size_t index)
{
    uint64_t number = lmcs_snapshot_info(log->lines[index]->snapshot)->number;
    for (size_t i = 0; i < log->count; i++) {
        const struct line *line = log->lines[i];
        if (i != index && line->snapshot != NULL && line->origin == index && line->info.origin_number == number)
            return true;
    }
    return false;
}

/* Returns the line with the newest snapshot that need not wait, or log->count at the end. If all wait, as forks of each
 * other in archives, the newest of all. */
static size_t newest_line(const struct log *log)
{
    size_t best = log->count;
    uint64_t best_ns = 0;
    bool best_waits = true;
    for (size_t i = 0; i < log->count; i++) {
        if (log->lines[i]->snapshot == NULL)
            continue;
        bool waits = must_wait(log, i);
        uint64_t time_ns = lmcs_snapshot_info(log->lines[i]->snapshot)->time_ns;
        if (best == log->count || (best_waits && !waits) || (best_waits == waits && time_ns > best_ns)) {
            best = i;
            best_ns = time_ns;
            best_waits = waits;
        }
    }
    return best;
}

/* ---- Rows ----------------------------------------------------------------------------------------------------- */

static void print_colored(FILE *out, const struct log *log, const char *color, const char *text)
{
    if (log->has_color)
        fputs(color, out);
    cli_print(out, text);
    if (log->has_color)
        fputs("\033[0m", out);
}

struct tags {
    const struct log *log;
    FILE *out;
    bool has_one;
};

static bool print_tag(void *context, const char *tag)
{
    struct tags *tags = context;
    fputs(tags->has_one ? ", " : "  (", tags->out);
    print_colored(tags->out, tags->log, "\033[32m", tag);
    tags->has_one = true;
    return true;
}

static enum lmcs_status print_tags(const struct log *log, const struct line *line)
{
    struct cli_held held;
    enum lmcs_status status = cli_hold(log->cli, &held);
    if (status != LMCS_OK)
        return status;
    struct tags tags = {log, held.stream, false};
    if (lmcs_snapshot_info(line->snapshot)->number == line->info.latest)
        print_tag(&tags, "latest");
    status = lmcs_snapshot_tags(line->snapshot, print_tag, &tags, &log->cli->error);
    if (tags.has_one)
        fputc(')', held.stream);
    return cli_show(log->cli, &held, status);
}

static enum lmcs_status print_text(struct log *log, const struct line *line, const struct cli_sizes *sizes,
                                   bool tells_origin)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(line->snapshot);
    char number[24];
    snprintf(number, sizeof number, "@%" PRIu64, info->number);
    if (log->has_names)
        print_colored(stdout, log, "\033[33m", info->shelf);
    print_colored(stdout, log, "\033[33m", log->has_names ? number : number + 1);
    printf("  step %s  %s  %s, %s new", cli_step(info->step).text, cli_time(info->time_ns).text,
           cli_bytes(sizes->raw_bytes).text, cli_new_bytes(sizes->new_bytes).text);
    if (*sizes->remote != '\0') {
        fputs(", at ", stdout);
        cli_print(stdout, sizes->remote);
    }
    enum lmcs_status status = print_tags(log, line);
    for (size_t i = 0; i < info->metric_count; i++) {
        fputs(i != 0 ? " " : "  ", stdout);
        cli_print(stdout, info->metrics[i].name);
        printf("=%.6g", info->metrics[i].value);
    }
    if (info->parent != 0 && info->parent + 1 != info->number)
        printf("  from %" PRIu64, info->parent);
    if (tells_origin) {
        fputs("  forked from ", stdout);
        cli_print(stdout, line->info.origin_shelf);
        printf("@%" PRIu64 "%s", line->info.origin_number, line->info.origin_is_there ? "" : ", which is gone");
    }
    if (strcmp(info->meta_json, "{}") != 0) {
        fputs("  ", stdout);
        cli_print(stdout, info->meta_json);
    }
    putchar('\n');
    return status;
}

static enum lmcs_status add_json(struct log *log, const struct line *line, const struct cli_sizes *sizes,
                                 bool tells_origin)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(line->snapshot);
    json_t *row = NULL;
    json_t *origin = NULL;
    enum lmcs_status status = cli_json_snapshot_head(log->cli, line->snapshot, sizes, &row);
    if (status != LMCS_OK)
        return status;
    cli_json_set(row, "new_bytes", cli_json_u64(sizes->new_bytes));
    cli_json_set(row, "is_rewind", json_boolean(info->parent && info->parent + 1 != info->number));
    if (tells_origin) {
        origin = json_object();
        cli_json_set(origin, "shelf", cli_json_text(line->info.origin_shelf));
        cli_json_set(origin, "number", cli_json_u64(line->info.origin_number));
        cli_json_set(origin, "is_there", json_boolean(line->info.origin_is_there));
    }
    cli_json_set(row, "origin", origin);
    json_array_append_new(log->rows, row);
    return LMCS_OK;
}

/* Finds the source to draw: the parent, else the nearest snapshot before it, or the origin of a fork. */
static enum lmcs_status find_source(struct log *log, size_t index, struct log_point *from, bool *found)
{
    struct line *line = log->lines[index];
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(line->snapshot);
    size_t count = 0;
    uint64_t number = 0;
    *found = false;
    if (info->parent == 0) {
        *found = info->number == 1 && line->origin != index;
        *from = (struct log_point){line->origin, line->info.origin_number, false};
        return LMCS_OK;
    }
    enum lmcs_status status =
        lmcs_snapshot_newest(log->cli->pool, line->info.name, info->parent + 1, &number, 1, &count, &log->cli->error);
    status = cli_pass(log->cli, &log->passed, status);
    *found = status == LMCS_OK && count == 1 && number < info->number;
    *from = (struct log_point){index, number, number != info->parent};
    return status;
}

static enum lmcs_status show(struct log *log, size_t index)
{
    struct line *line = log->lines[index];
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(line->snapshot);
    struct log_point point = {index, info->number, false};
    struct log_point from = point;
    bool has_source = false;
    bool is_first = info->number == 1 && line->info.origin_number != 0;
    struct cli_sizes sizes;
    enum lmcs_status status = cli_sizes_head(log->cli, line->snapshot, line->new_bytes[line->at - 1], &sizes);
    if (status != LMCS_OK) {
        status = cli_pass(log->cli, &log->passed, status);
    } else if (log->cli->options.json) {
        status = add_json(log, line, &sizes, is_first);
    } else {
        status = find_source(log, index, &from, &has_source);
        if (status == LMCS_OK && !log_graph_row(&log->graph, stdout, &point, has_source ? &from : NULL))
            status = cli_fail(log->cli, LMCS_NO_MEMORY, 0, "out of memory");
        if (status == LMCS_OK)
            status = print_text(log, line, &sizes, is_first);
    }
    status = cli_pass(log->cli, &log->passed, status);
    return status == LMCS_OK ? step(log, line) : status;
}

/* ---- Removed snapshots ---------------------------------------------------------------------------------------- */

struct removals {
    struct log *log;
    const struct line *line;
    json_t *list;
};

static void print_event(const struct removals *removals, const struct lmcs_prune_event *event)
{
    uint64_t spanned = 0;
    FILE *out = stdout;
    cli_print(out, removals->line->info.name);
    fputs(": ", out);
    cli_print(out, event->policy);
    for (size_t i = 0; i < event->range_count; i++)
        spanned += event->ranges[i].last - event->ranges[i].first + 1;
    fprintf(out, " removed %" PRIu64 "%s", event->count, event->count < spanned ? " of" : ":");
    for (size_t i = 0; i < event->range_count; i++) {
        fprintf(out, "%s %" PRIu64, i > 0 ? "," : "", event->ranges[i].first);
        if (event->ranges[i].last > event->ranges[i].first)
            fprintf(out, "..%" PRIu64, event->ranges[i].last);
    }
    if (event->first_ns / 1000000000 != event->last_ns / 1000000000)
        fprintf(out, ", from %s to %s\n", cli_time(event->first_ns).text, cli_time(event->last_ns).text);
    else
        fprintf(out, ", at %s\n", cli_time(event->last_ns).text);
}

static json_t *event_json(const struct removals *removals, const struct lmcs_prune_event *event)
{
    json_t *json = json_object();
    json_t *ranges = json_array();
    for (size_t i = 0; i < event->range_count; i++) {
        json_t *range = json_array();
        json_array_append_new(range, cli_json_u64(event->ranges[i].first));
        json_array_append_new(range, cli_json_u64(event->ranges[i].last));
        json_array_append_new(ranges, range);
    }
    cli_json_set(json, "shelf", cli_json_text(removals->line->info.name));
    cli_json_set(json, "policy", cli_json_text(event->policy));
    cli_json_set(json, "first_time", cli_json_text(cli_time(event->first_ns).text));
    cli_json_set(json, "last_time", cli_json_text(cli_time(event->last_ns).text));
    cli_json_set(json, "count", cli_json_u64(event->count));
    cli_json_set(json, "ranges", ranges);
    return json;
}

static bool show_event(void *context, const struct lmcs_prune_event *event)
{
    struct removals *removals = context;
    if (removals->log->cli->options.json)
        json_array_append_new(removals->list, event_json(removals, event));
    else
        print_event(removals, event);
    return true;
}

/* Shows the snapshots that policies removed, newest removal first, below those that exist. */
static enum lmcs_status show_removals(struct log *log, json_t *list)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; i < log->count && status == LMCS_OK; i++) {
        struct removals removals = {log, log->lines[i], list};
        status = lmcs_prune_log(log->cli->pool, log->lines[i]->info.name, show_event, &removals, &log->cli->error);
        status = status == LMCS_NOT_FOUND ? LMCS_OK : cli_pass(log->cli, &log->passed, status); /* removed meanwhile */
    }
    return status;
}

/* ---- The command ---------------------------------------------------------------------------------------------- */

static enum lmcs_status choose_one(struct log *log, const char *address)
{
    struct cli *cli = log->cli;
    struct lmcs_shelf_info info;
    char name[LMCS_MAX_NAME + 1];
    size_t length = strcspn(address, "@");
    if (length > LMCS_MAX_NAME)
        return cli_wrong_use(cli, "log: the shelf's name is too long");
    memcpy(name, address, length);
    name[length] = '\0';
    enum lmcs_status status = lmcs_shelf_info(cli->pool, name, &info, &cli->error);
    if (status == LMCS_OK && !add_line(log, &info))
        status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    if (status != LMCS_OK || address[length] == '\0')
        return status;
    uint64_t last = 0;
    struct line *line = log->lines[0];
    status = lmcs_snapshot_range_clip(cli->pool, name, address + length + 1, &line->first, &last, &cli->error);
    line->before = last + 1;
    return status;
}

static enum lmcs_status choose(struct log *log, const char *address)
{
    struct cli *cli = log->cli;
    if (address != NULL && cli->options.all)
        return cli_wrong_use(cli, "log: give a shelf or --all, not both");
    enum lmcs_status status = address != NULL
                                  ? choose_one(log, address)
                                  : cli_pass(cli, &log->passed, lmcs_shelf_list(cli->pool, add_line, log, &cli->error));
    if (status == LMCS_OK && log->is_out_of_memory)
        status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    log->has_names = log->count > 1;
    find_origins(log);
    for (size_t i = 0; i < log->count && status == LMCS_OK; i++)
        status = step(log, log->lines[i]);
    return status;
}

static void end_log(struct log *log)
{
    for (size_t i = 0; i < log->count; i++) {
        lmcs_snapshot_close(log->lines[i]->snapshot);
        free(log->lines[i]);
    }
    free(log->lines);
    log_graph_free(&log->graph);
    json_decref(log->rows);
}

static enum lmcs_status run(struct cli *cli)
{
    struct log log = {.cli = cli, .rows = json_array()};
    log.has_color = isatty(STDOUT_FILENO) != 0 && getenv("NO_COLOR") == NULL;
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_READ);
    if (status == LMCS_OK)
        status = choose(&log, cli->options.arguments[1]);
    uint64_t most = cli->options.count != 0 ? cli->options.count : UINT64_MAX;
    for (size_t i = 0; status == LMCS_OK && most != 0 && ferror(stdout) == 0 && (i = newest_line(&log)) < log.count;
         most--)
        status = show(&log, i);
    json_t *removed = json_array();
    if (status == LMCS_OK)
        status = show_removals(&log, removed);
    if (status == LMCS_OK && cli->options.json) {
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "snapshots", json_incref(log.rows));
        cli_json_set(cli->json, "removed", json_incref(removed));
    }
    json_decref(removed);
    end_log(&log);
    return cli_passed(cli, &log.passed, status);
}

const struct cli_command cmd_log = {
    .name = "log",
    .synopsis = "POOL [SHELF[@RANGE]] [-n N] [--all] [--json]",
    .summary = "Shows the history, newest first, as a graph",
    .help =
        "Without SHELF, or with --all: all shelves in one graph, newest first. A range, such as run@5..9,\n"
        "run@step:100.. or 'run@{2 hours ago}..', includes both ends; removed ones are passed over. A rewind is a\n"
        "line that branches off another one; a fork is a line that leads to the shelf of its origin. \":\" marks a\n"
        "removed parent: the line leads to the nearest snapshot before it. \"from N\" names a parent that is not the\n"
        "previous number. \"new\": bytes that the snapshot added, as in ls. \"~\" replaces branches beyond twenty.\n"
        "Below, newest first: which snapshots policies removed, and when; a bounded record. Works while another\n"
        "process writes to the pool.",
    .options = "n all force-network json",
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
