/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * folder_sweep.c - removes the parts of a run's snapshots whose records are gone.
 *
 * The record goes first, then the parts (tests/models/runs.pml). What an earlier removal has left, since it was killed
 * or a rank had its pool open, goes with the next one: a committed part without a record, older than one that has a
 * record in the same pool. A newer one stays: its record may be missing only from this copy of the records.
 */
#include "folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

/* A part that a record names, or that a pool has. */
struct cli_named {
    unsigned char group[16];
    uint64_t number;
};

struct sweep {
    struct cli *cli;
    const char *shelf;
    struct cli_named_list kept;
    struct cli_named_list found; /* in the pool that is swept */
    bool is_incomplete;          /* a record is unreadable: others than those in `gone` stay */
    const struct cli_sweep_options *options;
    struct cli_swept *swept;
};

static int by_group(const void *left, const void *right)
{
    return memcmp(((const struct cli_named *)left)->group, ((const struct cli_named *)right)->group, 16);
}

static bool has_group(const struct cli_named_list *list, const unsigned char group[16])
{
    struct cli_named key;
    memcpy(key.group, group, sizeof key.group);
    return list->count > 0 && bsearch(&key, list->items, list->count, sizeof *list->items, by_group) != NULL;
}

static void sort(struct cli_named_list *list)
{
    if (list->count > 0)
        qsort(list->items, list->count, sizeof *list->items, by_group);
}

enum lmcs_status cli_named_add(struct cli *cli, struct cli_named_list *list, const char *shelf, uint64_t number)
{
    struct cli_record record = {.parts = NULL};
    enum lmcs_status status = cli_record_at(cli, shelf, number, &record);
    for (size_t i = 0; status == LMCS_OK && i < record.part_count; i++) {
        const struct cli_part *part = &record.parts[i];
        if (!lmcs_grow(&list->items, &list->capacity, list->count, sizeof *list->items)) {
            status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
            break;
        }
        struct cli_named *named = &list->items[list->count++];
        named->number = part->number;
        memcpy(named->group, part->group, sizeof named->group);
    }
    cli_record_free(&record);
    return status;
}

/* Calls `each` for the snapshots of a shelf, until it fails. */
static enum lmcs_status each_number(struct sweep *sweep, struct lmcs_pool *pool,
                                    enum lmcs_status (*each)(struct sweep *sweep, struct lmcs_pool *pool,
                                                             uint64_t number))
{
    enum { SOME = 256 };
    uint64_t numbers[SOME], from = 0;
    struct cli *cli = sweep->cli;
    enum lmcs_status status = LMCS_OK;
    for (size_t got = SOME; status == LMCS_OK && got == SOME; from = got > 0 ? numbers[got - 1] + 1 : 0) {
        status = lmcs_snapshot_numbers(pool, sweep->shelf, from, numbers, SOME, &got, &cli->error);
        if (status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED) {
            sweep->is_incomplete |= pool == cli->pool;
            status = LMCS_OK;
        }
        for (size_t i = 0; status == LMCS_OK && i < got; i++)
            status = each(sweep, pool, numbers[i]);
    }
    return status == LMCS_NOT_FOUND ? LMCS_OK : status; /* the pool has nothing of the shelf */
}

static enum lmcs_status keep_record(struct sweep *sweep, struct lmcs_pool *pool, uint64_t number)
{
    (void)pool;
    const struct cli_sweep_options *options = sweep->options;
    for (size_t i = 0; options->dry_run && i < options->number_count; i++)
        if (options->numbers[i] == number)
            return LMCS_OK;
    enum lmcs_status status = cli_named_add(sweep->cli, &sweep->kept, sweep->shelf, number);
    sweep->is_incomplete |= status == LMCS_DAMAGED || status == LMCS_UNSUPPORTED;
    return status == LMCS_NO_MEMORY || status == LMCS_IO ? status : LMCS_OK;
}

/* ---- A rank's pool -------------------------------------------------------------------------------------------- */

static void add_removal(struct lmcs_removal *sum, const struct lmcs_removal *removal)
{
    sum->freed_bytes += removal->freed_bytes;
    sum->later_bytes += removal->later_bytes;
    sum->kept_bytes += removal->kept_bytes;
}

static enum lmcs_status note_part(struct sweep *sweep, struct lmcs_pool *pool, uint64_t number)
{
    static const unsigned char none[16];
    struct cli *cli = sweep->cli;
    struct cli_named_list *found = &sweep->found;
    struct lmcs_snapshot *snapshot = NULL;
    char which[24];
    snprintf(which, sizeof which, "%" PRIu64, number);
    enum lmcs_status status = lmcs_snapshot_find(pool, sweep->shelf, which, &snapshot, &cli->error);
    if (status != LMCS_OK)
        return status == LMCS_NOT_FOUND || status == LMCS_DAMAGED ? LMCS_OK : status;
    const unsigned char *group = lmcs_snapshot_info(snapshot)->group;
    if (memcmp(group, none, sizeof none) != 0) {
        if (lmcs_grow(&found->items, &found->capacity, found->count, sizeof *found->items)) {
            struct cli_named *named = &found->items[found->count++];
            named->number = number;
            memcpy(named->group, group, sizeof named->group);
        } else {
            status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
        }
    }
    lmcs_snapshot_close(snapshot);
    return status;
}

/* The greatest number of a noted part that has a record. */
static uint64_t newest_kept(const struct sweep *sweep)
{
    uint64_t newest = 0;
    for (size_t i = 0; i < sweep->found.count; i++)
        if (has_group(&sweep->kept, sweep->found.items[i].group))
            newest = sweep->found.items[i].number; /* they ascend */
    return newest;
}

static enum lmcs_status remove_noted(struct sweep *sweep, struct lmcs_pool *pool)
{
    enum lmcs_status status = LMCS_OK;
    uint64_t newest = newest_kept(sweep);
    for (size_t i = 0; status == LMCS_OK && i < sweep->found.count; i++) {
        const struct cli_named *part = &sweep->found.items[i];
        struct lmcs_removal removal = {0};
        bool is_left = sweep->is_incomplete || part->number >= newest;
        if (has_group(&sweep->kept, part->group) || (is_left && !has_group(sweep->options->gone, part->group)))
            continue;
        status = lmcs_snapshot_remove(pool, sweep->shelf, part->number, sweep->options->dry_run, &removal,
                                      &sweep->cli->error);
        sweep->swept->parts += status == LMCS_OK;
        add_removal(&sweep->swept->sum, &removal);
    }
    return status;
}

struct prepared {
    const struct sweep *sweep;
    struct cli_named_list found;
};

static bool visit_prepared(void *context, const struct lmcs_prepared *one)
{
    struct prepared *prepared = context;
    struct cli_named_list *found = &prepared->found;
    if (strcmp(one->shelf, prepared->sweep->shelf) == 0 && has_group(prepared->sweep->options->gone, one->group) &&
        lmcs_grow(&found->items, &found->capacity, found->count, sizeof *found->items))
        memcpy(found->items[found->count++].group, one->group, 16);
    return true;
}

/* Drops parts that are still prepared. */
static enum lmcs_status drop_prepared(struct sweep *sweep, struct lmcs_pool *pool)
{
    struct prepared prepared = {.sweep = sweep};
    enum lmcs_status status = lmcs_group_list(pool, visit_prepared, &prepared, &sweep->cli->error);
    for (size_t i = 0; status == LMCS_OK && i < prepared.found.count; i++) {
        if (!sweep->options->dry_run)
            status = lmcs_group_resolve(pool, prepared.found.items[i].group, false, &sweep->cli->error);
        sweep->swept->parts += status == LMCS_OK;
    }
    free(prepared.found.items);
    return status;
}

static enum lmcs_status sweep_file(struct sweep *sweep, size_t i)
{
    struct cli *cli = sweep->cli;
    struct cli_swept *swept = sweep->swept;
    struct lmcs_pool *pool = NULL;
    struct lmcs_error error;
    enum lmcs_status status = cli_folder_writable(cli, i, &pool);
    if (status == LMCS_OK)
        status = drop_prepared(sweep, pool);
    if (status == LMCS_OK)
        status = each_number(sweep, pool, note_part);
    if (status == LMCS_OK)
        status = remove_noted(sweep, pool);
    sweep->found.count = 0;
    if (pool != NULL && lmcs_pool_close(pool, &error) != LMCS_OK && status == LMCS_OK) {
        cli->error = error;
        status = error.status;
    }
    if (status == LMCS_OK)
        return LMCS_OK;
    if (swept->left++ == 0)
        snprintf(swept->why, sizeof swept->why, "%s", cli->error.message);
    return LMCS_OK;
}

enum lmcs_status cli_sweep(struct cli *cli, const char *shelf, const struct cli_sweep_options *options,
                           struct cli_swept *swept)
{
    struct sweep sweep = {.cli = cli, .shelf = shelf, .options = options, .swept = swept};
    *swept = (struct cli_swept){.parts = 0};
    sort(options->gone);
    enum lmcs_status status = each_number(&sweep, cli->pool, keep_record);
    sort(&sweep.kept);
    for (size_t i = 0; status == LMCS_OK && cli_folder_file(cli->folder, i) != NULL; i++)
        status = sweep_file(&sweep, i);
    free(sweep.kept.items);
    free(sweep.found.items);
    return status;
}

void cli_swept_print(const struct cli_swept *swept)
{
    if (swept->left == 0)
        return;
    fprintf(stderr, "lmc-store: parts stay in %" PRIu64 " pool%s, and go with the next removal: ", swept->left,
            cli_s(swept->left));
    cli_print(stderr, swept->why);
    fputc('\n', stderr);
}
