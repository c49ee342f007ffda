/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_note.c - lmc-store note and lmc-store metric: add a note or metrics to a snapshot. */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct found {
    char shelf[LMCS_MAX_NAME + 1];
    uint64_t number;
};

/* Opens the snapshot anew, as the change left it. */
static enum lmcs_status report(struct cli *cli, const struct found *found,
                               void (*show)(const struct lmcs_snapshot_info *info))
{
    struct lmcs_snapshot *snapshot = NULL;
    char which[24];
    snprintf(which, sizeof which, "%" PRIu64, found->number);
    enum lmcs_status status = lmcs_snapshot_find(cli->pool, found->shelf, which, &snapshot, &cli->error);
    if (status == LMCS_OK && cli->options.json) {
        json_t *json = NULL;
        status = cli_json_snapshot(cli, snapshot, &json);
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "snapshot", json);
    } else if (status == LMCS_OK) {
        show(lmcs_snapshot_info(snapshot));
    }
    lmcs_snapshot_close(snapshot);
    return status;
}

static void show_note(const struct lmcs_snapshot_info *info)
{
    json_t *meta = json_loads(info->meta_json, 0, NULL);
    const char *note = json_string_value(json_object_get(meta, "message"));
    cli_print(stdout, info->shelf);
    printf("@%" PRIu64 "%s", info->number, note != NULL ? ": " : " has no note");
    if (note != NULL)
        cli_print(stdout, note);
    putchar('\n');
    json_decref(meta);
}

static void show_metrics(const struct lmcs_snapshot_info *info)
{
    cli_print(stdout, info->shelf);
    printf("@%" PRIu64 "%s", info->number, info->metric_count > 0 ? ": " : " has no metrics");
    for (size_t i = 0; i < info->metric_count; i++) {
        printf("%s", i > 0 ? ", " : "");
        cli_print(stdout, info->metrics[i].name);
        printf("=%.6g", info->metrics[i].value);
    }
    putchar('\n');
}

static enum lmcs_status find(struct cli *cli, struct found *found)
{
    struct lmcs_snapshot *snapshot = NULL;
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_READ);
    if (status == LMCS_OK)
        status = cli_snapshot(cli, cli->options.arguments[1], false, &snapshot);
    if (status == LMCS_OK) {
        const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
        snprintf(found->shelf, sizeof found->shelf, "%s", info->shelf);
        found->number = info->number;
    }
    lmcs_snapshot_close(snapshot);
    return status;
}

static enum lmcs_status run_note(struct cli *cli)
{
    struct found found = {.number = 0};
    const char *note = cli->options.delete_tag ? "" : cli->options.arguments[2];
    if (cli->options.delete_tag && cli->options.arguments[2] != NULL)
        return cli_wrong_use(cli, "note: give a text or --delete, not both");
    enum lmcs_status status = find(cli, &found);
    if (status == LMCS_OK && note != NULL)
        status = lmcs_note_set(cli->pool, found.shelf, found.number, note, &cli->error);
    return status == LMCS_OK ? report(cli, &found, show_note) : status;
}

/* Splits NAME=VALUE at the last '='. The caller frees *name. */
static enum lmcs_status parse_metric(struct cli *cli, const char *word, char **name, double *value)
{
    const char *at = strrchr(word, '=');
    char *end = NULL;
    *value = at != NULL ? strtod(at + 1, &end) : 0;
    if (at == NULL || at == word || end == at + 1 || *end != '\0')
        return cli_wrong_use(cli, "metric: '%s' is not NAME=VALUE with a number as the value", word);
    *name = strndup(word, (size_t)(at - word));
    return *name != NULL ? LMCS_OK : cli_fail(cli, LMCS_NO_MEMORY, 0, "no memory");
}

static enum lmcs_status run_metric(struct cli *cli)
{
    struct found found = {.number = 0};
    const char *const *words = cli->options.arguments + 2;
    enum lmcs_status status = LMCS_OK;
    for (int pass = 0; status == LMCS_OK && pass < 2; pass++) { /* all words are checked before the first change */
        if (pass == 1)
            status = find(cli, &found);
        for (size_t i = 0; status == LMCS_OK && i + 2 < CLI_MAX_ARGUMENTS && words[i] != NULL; i++) {
            char *name = NULL;
            double value;
            status = parse_metric(cli, words[i], &name, &value);
            if (status == LMCS_OK && pass == 1)
                status = lmcs_metric_set(cli->pool, found.shelf, found.number, name, value, &cli->error);
            free(name);
        }
    }
    return status == LMCS_OK ? report(cli, &found, show_metrics) : status;
}

const struct cli_command cmd_note = {
    .name = "note",
    .synopsis = "POOL ADDRESS [TEXT | --delete] [--json]",
    .summary = "Sets or shows the note of a snapshot",
    .help =
        "The note is \"message\" in the snapshot's metadata. Without TEXT it is shown. Works beside a process that\n"
        "writes to the pool, also a stopped one, and needs permission to write to the file.",
    .options = "delete force-network json",
    .min_arguments = 2,
    .max_arguments = 3,
    .run = run_note,
};

const struct cli_command cmd_metric = {
    .name = "metric",
    .synopsis = "POOL ADDRESS [NAME=VALUE...] [--json]",
    .summary = "Sets or shows the metrics of a snapshot",
    .help =
        "Adds metrics to a snapshot, or changes them; rules such as best:NAME use them. Works beside a process that\n"
        "writes to the pool, also a stopped one, and needs permission to write to the file. Several are set one\n"
        "after the other.",
    .options = "force-network json",
    .min_arguments = 2,
    .max_arguments = CLI_MAX_ARGUMENTS,
    .run = run_metric,
};
