/* SPDX-License-Identifier: BSD-3-Clause */
/* cmd_rm.c - lmc-store rm: removes a snapshot, a range of them, or a whole shelf permanently. */
#include "folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

struct removed {
    const char *shelf;
    uint64_t first; /* 0: the whole shelf */
    uint64_t last;
    uint64_t count;
    struct lmcs_removal sum;
    uint64_t compact_bytes; /* by which a compaction makes the file smaller, at most */
    bool is_estimated;      /* compact_bytes is known */
    struct cli_swept swept; /* of the folder of a run */
};

static void report_json(struct cli *cli, const struct removed *removed)
{
    cli->json = json_object();
    cli_json_set(cli->json, "pool", cli_json_text(cli->options.arguments[0]));
    cli_json_set(cli->json, "shelf", cli_json_text(removed->shelf));
    cli_json_set(cli->json, "number", removed->count == 1 && removed->first != 0 ? cli_json_u64(removed->first) : NULL);
    cli_json_set(cli->json, "snapshots", cli_json_u64(removed->count));
    cli_json_set(cli->json, "removed", json_boolean(!cli->options.dry_run));
    cli_json_set(cli->json, "freed_bytes", cli_json_u64(removed->sum.freed_bytes));
    cli_json_set(cli->json, "later_bytes", cli_json_u64(removed->sum.later_bytes));
    cli_json_set(cli->json, "kept_bytes", cli_json_u64(removed->sum.kept_bytes));
    cli_json_set(cli->json, "compact_bytes", removed->is_estimated ? cli_json_u64(removed->compact_bytes) : NULL);
    cli_json_set(cli->json, "removed_tags", cli_json_u64(removed->sum.removed_tags));
    if (cli->folder != NULL) {
        cli_json_set(cli->json, "parts", cli_json_u64(removed->swept.parts));
        cli_json_set(cli->json, "pools_left", cli_json_u64(removed->swept.left));
    }
}

static void report(struct cli *cli, const struct removed *removed)
{
    if (cli->options.json) {
        report_json(cli, removed);
        return;
    }
    fputs(cli->options.dry_run ? "would remove " : "removed ", stdout);
    if (removed->first == 0)
        fputs("shelf ", stdout);
    cli_print(stdout, removed->shelf);
    if (removed->first != 0)
        printf("@%" PRIu64, removed->first);
    if (removed->last != removed->first)
        printf("..%" PRIu64, removed->last);
    if (removed->count != 1 || removed->first == 0)
        printf(", %" PRIu64 " snapshot%s", removed->count, cli_s(removed->count));
    printf(": %s%s freed", cli->options.dry_run && removed->first != 0 && removed->count > 1 ? "at least " : "",
           cli_bytes(removed->sum.freed_bytes).text);
    if (removed->sum.later_bytes != 0)
        printf(", up to %s more after compaction", cli_bytes(removed->sum.later_bytes).text);
    if (removed->sum.kept_bytes != 0)
        printf(", %s stay%s as links that later steps need", cli_bytes(removed->sum.kept_bytes).text,
               cli->options.dry_run ? "" : "ed");
    if (removed->sum.removed_tags != 0)
        printf(", %" PRIu64 " tag%s gone", removed->sum.removed_tags, cli_s(removed->sum.removed_tags));
    if (removed->is_estimated)
        printf("; 'lmc-store compact' makes the file up to %s smaller", cli_bytes(removed->compact_bytes).text);
    putchar('\n');
}

/* Adds up the raw contents of the newest snapshots of all readable shelves. */
static enum lmcs_status add_raw(struct cli *cli, uint64_t *sum)
{
    struct cli_shelves shelves;
    enum lmcs_status status = cli_shelves(cli, &shelves);
    for (size_t i = 0; i < shelves.count; i++) {
        uint64_t raw_bytes = 0;
        if (lmcs_shelf_raw_bytes(cli->pool, shelves.infos[i].name, &raw_bytes, NULL) == LMCS_OK)
            *sum += raw_bytes;
    }
    free(shelves.infos);
    return status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED ? LMCS_OK : status;
}

/* Estimates from above how much smaller a compaction makes the file: free space in it, bases and links that only these
 * snapshots had, and, if snapshots wait for compaction, all raw contents. */
static enum lmcs_status estimate(struct cli *cli, struct removed *removed)
{
    struct lmcs_pool_info info;
    enum lmcs_status status = lmcs_pool_info(cli->pool, &info, &cli->error);
    if (status != LMCS_OK)
        return status;
    removed->compact_bytes = info.used_bytes > info.live_bytes ? info.used_bytes - info.live_bytes : 0;
    removed->compact_bytes += removed->sum.later_bytes + removed->sum.kept_bytes;
    removed->compact_bytes += cli->options.dry_run ? removed->sum.freed_bytes : 0;
    return info.compaction_backlog != 0 ? add_raw(cli, &removed->compact_bytes) : LMCS_OK;
}

static enum lmcs_status remove_one(struct cli *cli, const char *shelf, uint64_t number, struct removed *removed)
{
    struct lmcs_removal removal = {0};
    enum lmcs_status status =
        lmcs_snapshot_remove(cli->pool, shelf, number, cli->options.dry_run, &removal, &cli->error);
    removed->count += status == LMCS_OK;
    removed->sum.freed_bytes += removal.freed_bytes;
    removed->sum.later_bytes += removal.later_bytes;
    removed->sum.kept_bytes += removal.kept_bytes;
    removed->sum.removed_tags += removal.removed_tags;
    return status;
}

/* The numbers of a range, and the parts that their records name. */
struct range {
    uint64_t *numbers;
    size_t count;
    size_t capacity;
    struct cli_named_list parts;
};

static enum lmcs_status note(struct cli *cli, const char *shelf, uint64_t number, struct range *range)
{
    if (!lmcs_grow(&range->numbers, &range->capacity, range->count, sizeof *range->numbers))
        return cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    range->numbers[range->count++] = number;
    enum lmcs_status status = cli_named_add(cli, &range->parts, shelf, number);
    return status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED ? LMCS_OK : status; /* a damaged record may go */
}

/* Removes a range, one commit per snapshot, oldest first. After a failure, those removed earlier stay removed. */
static enum lmcs_status remove_range(struct cli *cli, const char *shelf, struct removed *removed, struct range *range)
{
    enum { SOME = 256 };
    uint64_t numbers[SOME];
    uint64_t from = removed->first;
    size_t got = SOME;
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && got == SOME && from <= removed->last) {
        status = lmcs_snapshot_numbers(cli->pool, shelf, from, numbers, SOME, &got, &cli->error);
        for (size_t i = 0; status == LMCS_OK && i < got && numbers[i] <= removed->last; i++) {
            if (cli->folder != NULL)
                status = note(cli, shelf, numbers[i], range);
            if (status == LMCS_OK)
                status = remove_one(cli, shelf, numbers[i], removed);
            from = numbers[i] + 1;
        }
    }
    return status;
}

/* The parts go when all records of the range are gone. */
static enum lmcs_status remove_with_parts(struct cli *cli, const char *shelf, struct removed *removed)
{
    struct range range = {.numbers = NULL};
    enum lmcs_status status = remove_range(cli, shelf, removed, &range);
    const struct cli_sweep_options options = {&range.parts, range.numbers, range.count, cli->options.dry_run};
    if (status == LMCS_OK && cli->folder != NULL) {
        status = cli_sweep(cli, shelf, &options, &removed->swept);
        removed->sum.freed_bytes += removed->swept.sum.freed_bytes;
        removed->sum.later_bytes += removed->swept.sum.later_bytes;
        removed->sum.kept_bytes += removed->swept.sum.kept_bytes;
    }
    free(range.numbers);
    free(range.parts.items);
    return status;
}

/* Removes what a removal that was killed has left of a run's snapshots, whose records are gone. Keeps the error. */
static void remove_left(struct cli *cli, const char *shelf)
{
    struct cli_named_list none = {.count = 0};
    const struct cli_sweep_options options = {.gone = &none};
    struct cli_swept swept;
    struct lmcs_error error = cli->error;
    if (cli->folder != NULL && !cli->options.dry_run && cli_sweep(cli, shelf, &options, &swept) == LMCS_OK)
        cli_swept_print(&swept);
    cli->error = error;
}

static enum lmcs_status remove_shelf(struct cli *cli, const char *shelf, struct removed *removed)
{
    struct lmcs_shelf_info info = {.snapshot_count = 0};
    enum lmcs_status status = lmcs_shelf_info(cli->pool, shelf, &info, &cli->error);
    if (cli->folder != NULL && (status == LMCS_OK || status == LMCS_NOT_FOUND))
        status = cli_run_drop(cli, shelf, &removed->sum);
    else if (status == LMCS_OK)
        status = lmcs_shelf_drop(cli->pool, shelf, cli->options.dry_run, &removed->sum, &cli->error);
    removed->shelf = shelf;
    removed->count = status == LMCS_OK ? info.snapshot_count : 0;
    return status;
}

static enum lmcs_status run(struct cli *cli)
{
    const char *address = cli->options.arguments[1];
    const char *at = strchr(address, '@');
    char shelf[LMCS_MAX_NAME + 1];
    struct removed removed = {.shelf = shelf};
    size_t length = at != NULL ? (size_t)(at - address) : strlen(address);
    if (cli->options.whole_shelf == (at != NULL))
        return cli_wrong_use(cli,
                             at != NULL
                                 ? "rm: --shelf removes a shelf; '%s' names snapshots"
                                 : "rm: '%s' is a shelf; name a snapshot, as in run@latest or run@5..9, or use --shelf "
                                   "to remove all of it",
                             address);
    /* run@ and run@..: left by an empty shell variable in run@$TAG or run@$FIRST..$LAST */
    if (at != NULL && (at[1] == '\0' || strcmp(at + 1, "..") == 0))
        return cli_wrong_use(cli, "rm: '%s' names no snapshot; for the newest of \"%.*s\" use %.*s@latest", address,
                             (int)length, address, (int)length, address);
    if (length > LMCS_MAX_NAME)
        return cli_wrong_use(cli, "rm: the shelf's name is too long");
    memcpy(shelf, address, length);
    shelf[length] = '\0';
    enum lmcs_status status = cli_open(cli, LMCS_OPEN_WRITE);
    if (status == LMCS_OK && at == NULL)
        status = remove_shelf(cli, shelf, &removed);
    if (status == LMCS_OK && at != NULL)
        status = lmcs_snapshot_range(cli->pool, shelf, at + 1, &removed.first, &removed.last, &cli->error);
    if (status == LMCS_OK && at != NULL)
        status = remove_with_parts(cli, shelf, &removed);
    if (status == LMCS_NOT_FOUND && at != NULL)
        remove_left(cli, shelf);
    if (status != LMCS_OK)
        return status;
    removed.is_estimated = cli->folder == NULL && estimate(cli, &removed) == LMCS_OK;
    report(cli, &removed);
    if (!cli->options.dry_run)
        cli_swept_print(&removed.swept);
    return LMCS_OK;
}

const struct cli_command cmd_rm = {
    .name = "rm",
    .synopsis = "POOL ADDRESS|SHELF@RANGE [--dry-run] [--json] | POOL SHELF --shelf ...",
    .summary = "Removes snapshots, or a shelf, for ever",
    .help =
        "ADDRESS must name a snapshot (run@7) or a range (run@5..9, both ends included). A shelf's name alone needs\n"
        "--shelf, which removes the whole shelf. Contents that other snapshots share or are encoded against stay.\n"
        "Reports the bytes freed now, which new snapshots reuse, and at most how much smaller 'compact' makes the\n"
        "file: it returns free space, and frees bases and links that only these snapshots had. Bases of earlier\n"
        "removals come on top, if no compaction followed. A range is removed one snapshot after the other. Of the\n"
        "folder of a run, the records go first, then the parts in the pools of the ranks; those in a pool to which\n"
        "another process writes go with the next removal.",
    .options = "shelf dry-run wait force-network json",
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run,
};
