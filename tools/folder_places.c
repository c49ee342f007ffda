/* SPDX-License-Identifier: BSD-3-Clause */
/* folder_places.c - the parts of an address of a run, by the pools of its ranks. */
#include "folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

struct adding {
    struct cli *cli;
    const char *shelf;
    struct cli_places *places;
    struct cli_passed *passed;
};

static enum lmcs_status add(struct adding *adding, size_t file, uint64_t number)
{
    struct cli_places *places = adding->places;
    if (!lmcs_grow(&places->items, &places->capacity, places->count, sizeof *places->items))
        return cli_fail(adding->cli, LMCS_NO_MEMORY, 0, "out of memory");
    struct cli_place *place = &places->items[places->count++];
    place->file = file;
    if (number == 0)
        snprintf(place->address, sizeof place->address, "%s", adding->shelf);
    else
        snprintf(place->address, sizeof place->address, "%s@%" PRIu64, adding->shelf, number);
    return LMCS_OK;
}

static enum lmcs_status add_shelf(struct adding *adding)
{
    struct cli *cli = adding->cli;
    struct lmcs_pool *pool;
    struct lmcs_shelf_info info;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && cli_folder_file(cli->folder, i) != NULL; i++) {
        status = cli_folder_pool(cli, i, &pool);
        if (status == LMCS_OK)
            status = lmcs_shelf_info(pool, adding->shelf, &info, &cli->error);
        if (status == LMCS_OK)
            status = add(adding, i, 0);
        else
            status = status == LMCS_NOT_FOUND ? LMCS_OK : cli_pass(cli, adding->passed, status);
    }
    return status;
}

static enum lmcs_status add_part(struct adding *adding, const struct cli_record *record, const struct cli_part *part)
{
    struct cli *cli = adding->cli;
    struct lmcs_pool *pool;
    struct lmcs_snapshot *snapshot = NULL, *committed = NULL;
    struct lmcs_error error;
    char which[24];
    size_t file = 0;
    enum lmcs_status status = cli_part_find(cli, record->shelf, part, &file);
    if (status == LMCS_OK)
        status = cli_part_open(cli, record, part, &pool, &snapshot);
    if (status != LMCS_OK)
        return cli_pass(cli, adding->passed, status);
    uint64_t number = lmcs_snapshot_info(snapshot)->number;
    lmcs_snapshot_close(snapshot);
    snprintf(which, sizeof which, "%" PRIu64, number);
    if (lmcs_snapshot_find(pool, record->shelf, which, &committed, &error) == LMCS_NOT_FOUND) {
        const char *name = cli_folder_file(cli->folder, file);
        return cli_fail(cli, LMCS_IN_USE, 0,
                        "%.200s has only prepared its part of %.200s: scrub it after the next save", name,
                        record->address);
    }
    lmcs_snapshot_close(committed);
    return add(adding, file, number);
}

static enum lmcs_status add_snapshot(struct adding *adding, uint64_t number)
{
    struct cli *cli = adding->cli;
    struct cli_record record = {.parts = NULL};
    enum lmcs_status status = cli_record_at(cli, adding->shelf, number, &record);
    if (status == LMCS_OK)
        for (size_t i = 0; status == LMCS_OK && i < record.part_count; i++)
            status = add_part(adding, &record, &record.parts[i]);
    else if (status == LMCS_NOT_FOUND)
        status = LMCS_OK; /* removed meanwhile */
    else
        status = cli_pass(cli, adding->passed, status);
    cli_record_free(&record);
    return status;
}

static enum lmcs_status add_range(struct adding *adding, const char *range)
{
    enum { SOME = 256 };
    struct cli *cli = adding->cli;
    uint64_t numbers[SOME], first = 0, last = 0;
    enum lmcs_status status = lmcs_snapshot_range(cli->pool, adding->shelf, range, &first, &last, &cli->error);
    for (size_t got = SOME; status == LMCS_OK && got == SOME && first <= last;) {
        status = lmcs_snapshot_numbers(cli->pool, adding->shelf, first, numbers, SOME, &got, &cli->error);
        status = cli_pass(cli, adding->passed, status);
        for (size_t i = 0; status == LMCS_OK && i < got && numbers[i] <= last; i++)
            status = add_snapshot(adding, numbers[i]);
        first = got > 0 ? numbers[got - 1] + 1 : last + 1;
    }
    return status;
}

enum lmcs_status cli_places_add(struct cli *cli, const char *address, struct cli_places *places,
                                struct cli_passed *passed)
{
    char shelf[LMCS_MAX_NAME + 1];
    const char *at = strchr(address, '@');
    size_t length = at != NULL ? (size_t)(at - address) : strlen(address);
    if (length >= sizeof shelf)
        return cli_fail(cli, LMCS_INVALID, 0, "%.100s...: no shelf has so long a name", address);
    memcpy(shelf, address, length);
    shelf[length] = '\0';
    struct adding adding = {.cli = cli, .shelf = shelf, .places = places, .passed = passed};
    return at != NULL ? add_range(&adding, at + 1) : add_shelf(&adding);
}
