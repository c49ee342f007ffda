/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * folder_shelf.c - forks and removes shelves of a run.
 *
 * A fork makes the parts first, and the record last. A removal begins with the record. So a shelf of the records has
 * all parts at any time, and the same command finishes one that was killed.
 */
#include "folder.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

/* Whether a shelf is a fork of the part, and nothing else. */
static bool is_fork(struct lmcs_pool *pool, const char *name, const struct cli_part *part)
{
    struct lmcs_snapshot *snapshot = NULL;
    uint64_t numbers[2];
    size_t count = 0;
    bool is_there = lmcs_group_open(pool, name, part->group, &snapshot, NULL) == LMCS_OK &&
                    lmcs_snapshot_numbers(pool, name, 0, numbers, 2, &count, NULL) == LMCS_OK;
    lmcs_snapshot_close(snapshot);
    return is_there && count == 1;
}

static enum lmcs_status fork_part(struct cli *cli, const struct cli_record *record, const struct cli_part *part,
                                  const struct cli_writers *writers, const char *name)
{
    struct lmcs_snapshot *snapshot = NULL;
    size_t file = 0;
    enum lmcs_status status = cli_part_find(cli, record->shelf, part, &file);
    if (status != LMCS_OK)
        return status;
    struct lmcs_pool *pool = writers->pools[file];
    status = lmcs_group_resolve(pool, part->group, true, &cli->error); /* its record is there */
    if (status == LMCS_OK || status == LMCS_NOT_FOUND)
        status = lmcs_group_open(pool, record->shelf, part->group, &snapshot, &cli->error);
    if (status == LMCS_OK)
        status = lmcs_shelf_fork(snapshot, name, &cli->error);
    lmcs_snapshot_close(snapshot);
    return status == LMCS_EXISTS && is_fork(pool, name, part) ? LMCS_OK : status;
}

/* LMCS_REMOTE: a part has left its pool. One that is missing is no failure yet. */
static enum lmcs_status check_part(struct cli *cli, const struct cli_record *record, const struct cli_part *part)
{
    struct lmcs_snapshot *snapshot = NULL;
    struct lmcs_pool *pool = NULL;
    enum lmcs_status status = cli_part_open(cli, record, part, &pool, &snapshot);
    if (status == LMCS_OK)
        status = cli_part_local(cli, record->address, snapshot);
    lmcs_snapshot_close(snapshot);
    return status == LMCS_NOT_FOUND ? LMCS_OK : status;
}

enum lmcs_status cli_run_fork(struct cli *cli, struct lmcs_snapshot *snapshot, const char *name)
{
    struct lmcs_shelf_info info;
    struct lmcs_error missing;
    struct cli_record record = {.parts = NULL};
    struct cli_writers writers = {.pools = NULL};
    if (lmcs_shelf_info(cli->pool, name, &info, &missing) == LMCS_OK)
        return lmcs_shelf_fork(snapshot, name, &cli->error); /* fails */
    enum lmcs_status status = cli_record_head(cli, snapshot, &record);
    for (size_t i = 0; status == LMCS_OK && i < record.part_count; i++)
        status = check_part(cli, &record, &record.parts[i]);
    if (status == LMCS_OK)
        status = cli_writers_open(cli, &writers);
    for (size_t i = 0; status == LMCS_OK && i < record.part_count; i++)
        status = fork_part(cli, &record, &record.parts[i], &writers, name);
    status = cli_writers_close(cli, &writers, status);
    cli_record_free(&record);
    return status == LMCS_OK ? lmcs_shelf_fork(snapshot, name, &cli->error) : status;
}

/* The prepared snapshots of a shelf. */
struct prepared {
    const char *shelf;
    unsigned char (*groups)[16];
    size_t count;
    size_t capacity;
    bool is_full; /* no memory */
};

static bool note_prepared(void *context, const struct lmcs_prepared *one)
{
    struct prepared *prepared = context;
    if (strcmp(one->shelf, prepared->shelf) != 0)
        return true;
    prepared->is_full = !lmcs_grow(&prepared->groups, &prepared->capacity, prepared->count, sizeof *prepared->groups);
    if (!prepared->is_full)
        memcpy(prepared->groups[prepared->count++], one->group, sizeof *prepared->groups);
    return !prepared->is_full;
}

/* Drops the prepared snapshots of a shelf, which would keep it. */
static enum lmcs_status drop_prepared(struct cli *cli, struct lmcs_pool *pool, const char *shelf)
{
    struct prepared prepared = {.shelf = shelf};
    enum lmcs_status status = lmcs_group_list(pool, note_prepared, &prepared, &cli->error);
    if (prepared.is_full)
        status = cli_fail(cli, LMCS_NO_MEMORY, 0, "out of memory");
    for (size_t i = 0; status == LMCS_OK && !cli->options.dry_run && i < prepared.count; i++)
        status = lmcs_group_resolve(pool, prepared.groups[i], false, &cli->error);
    free(prepared.groups);
    return status;
}

static void add(struct lmcs_removal *sum, const struct lmcs_removal *removal)
{
    sum->freed_bytes += removal->freed_bytes;
    sum->later_bytes += removal->later_bytes;
    sum->kept_bytes += removal->kept_bytes;
    sum->removed_tags += removal->removed_tags;
}

enum lmcs_status cli_run_drop(struct cli *cli, const char *shelf, struct lmcs_removal *sum)
{
    struct cli_writers writers;
    struct lmcs_removal removal = {0};
    enum lmcs_status status = cli_writers_open(cli, &writers);
    bool is_there = false;
    if (status == LMCS_OK) {
        status = lmcs_shelf_drop(cli->pool, shelf, cli->options.dry_run, &removal, &cli->error);
        is_there = status == LMCS_OK;
    }
    add(sum, &removal);
    struct lmcs_error absent = cli->error;
    for (size_t i = 0; (status == LMCS_OK || status == LMCS_NOT_FOUND) && i < writers.count; i++) {
        removal = (struct lmcs_removal){0};
        status = drop_prepared(cli, writers.pools[i], shelf);
        if (status != LMCS_OK)
            break;
        status = lmcs_shelf_drop(writers.pools[i], shelf, cli->options.dry_run, &removal, &cli->error);
        if (status == LMCS_IN_USE && cli->options.dry_run)
            status = LMCS_OK; /* by a prepared snapshot, which would be dropped before */
        is_there = is_there || status == LMCS_OK;
        add(sum, &removal);
    }
    if (status == LMCS_NOT_FOUND) {
        cli->error = absent;
        status = is_there ? LMCS_OK : LMCS_NOT_FOUND;
    }
    return cli_writers_close(cli, &writers, status);
}
