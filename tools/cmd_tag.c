/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_tag.c - lmc-store tag: puts a tag on a snapshot, or removes it. */
#include "cli.h"

#include <inttypes.h>
#include <string.h>

struct search {
    const char *tag;
    bool is_found;
};

static bool compare_tag(void *context, const char *tag)
{
    struct search *search = context;
    search->is_found = strcmp(search->tag, tag) == 0;
    return !search->is_found;
}

/* Removes a tag from the named snapshot only. A tag that has moved stays. */
static enum lmcs_status take_off(struct cli *cli, struct lmcs_snapshot *snapshot, const char *tag)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    struct search search = {tag, false};
    enum lmcs_status status = lmcs_snapshot_tags(snapshot, compare_tag, &search, &cli->error);
    if (status != LMCS_OK)
        return status;
    if (!search.is_found)
        return cli_fail(cli, LMCS_NOT_FOUND, 0, "%s@%" PRIu64 " has no tag '%s'", info->shelf, info->number, tag);
    return lmcs_tag_remove(cli->pool, info->shelf, tag, &cli->error);
}

static enum lmcs_status put_on(struct cli *cli, struct lmcs_snapshot *snapshot, const char *tag)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    const char *expect = cli->options.expect;
    struct lmcs_tag_change change = {tag, info->number, LMCS_TAG_ANYWHERE};
    uint64_t last = 0;
    enum lmcs_status status = LMCS_OK;
    if (expect != NULL && strcmp(expect, "none") == 0)
        change.expected = 0;
    else if (expect != NULL)
        status = lmcs_snapshot_range(cli->pool, info->shelf, expect, &change.expected, &last, &cli->error);
    if (status == LMCS_OK && expect != NULL && last > change.expected)
        return cli_wrong_use(cli, "tag: --expect needs one snapshot, not the range %s", expect);
    return status == LMCS_OK ? lmcs_tags_change(cli->pool, info->shelf, &change, 1, &cli->error) : status;
}

/* Returns the number of the snapshot that has the tag; 0: none has. */
static uint64_t tagged(struct cli *cli, const struct lmcs_snapshot_info *info, const char *tag)
{
    struct lmcs_error ignored;
    uint64_t first = 0, last = 0;
    return lmcs_snapshot_range(cli->pool, info->shelf, tag, &first, &last, &ignored) == LMCS_OK ? first : 0;
}

/* `was`: the number of the snapshot that had the tag before; 0: none had. */
static enum lmcs_status report(struct cli *cli, struct lmcs_snapshot *snapshot, const char *tag, uint64_t was)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    if (cli->options.json) {
        json_t *json = NULL;
        enum lmcs_status status = cli_json_snapshot(cli, snapshot, &json);
        cli->json = json_object();
        cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
        cli_json_set(cli->json, "snapshot", json);
        cli_json_set(cli->json, "was", was != 0 ? json_integer((json_int_t)was) : json_null());
        return status;
    }
    cli_print(stdout, info->shelf);
    printf("@%" PRIu64 " is %s tagged ", info->number, cli->options.delete_tag ? "no longer" : "now");
    cli_print(stdout, tag);
    if (was != 0 && was != info->number) {
        printf(" (before: ");
        cli_print(stdout, info->shelf);
        printf("@%" PRIu64 ")", was);
    }
    putchar('\n');
    return LMCS_OK;
}

static enum lmcs_status run(struct cli *cli)
{
    const char *tag = cli->options.arguments[2];
    struct lmcs_snapshot *snapshot = NULL;
    uint64_t was = 0;
    enum lmcs_status status = cli_open(cli, cli->options.expect != NULL ? LMCS_OPEN_WRITE : LMCS_OPEN_READ);
    if (status == LMCS_OK)
        status = cli_snapshot(cli, cli->options.arguments[1], false, &snapshot);
    if (status == LMCS_OK)
        was = tagged(cli, lmcs_snapshot_info(snapshot), tag);
    if (status == LMCS_OK)
        status = cli->options.delete_tag ? take_off(cli, snapshot, tag) : put_on(cli, snapshot, tag);
    if (status == LMCS_OK)
        status = report(cli, snapshot, tag, was);
    lmcs_snapshot_close(snapshot);
    return status;
}

const struct cli_command cmd_tag = {
    .name = "tag",
    .synopsis = "POOL ADDRESS NAME [--expect WHICH] [--delete] [--json]",
    .summary = "Puts a tag on a snapshot, or removes it",
    .help =
        "A tag is on at most one snapshot of its shelf; a tag on another snapshot moves, and the command names that\n"
        "one. It can't be a number or \"latest\", and contains none of @ ~ : { } nor .. . Works beside a process that\n"
        "writes to the pool, also a stopped one, and needs permission to write to the file. With --expect it moves\n"
        "only from the given snapshot, so that two programs don't undo each other's moves; this needs the pool for\n"
        "itself (--wait).",
    .options = "expect delete wait force-network json",
    .min_arguments = 3,
    .max_arguments = 3,
    .run = run,
};
