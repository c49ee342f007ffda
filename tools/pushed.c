/* SPDX-License-Identifier: BSD-3-Clause */
/* pushed.c - up to where a push has brought a pool, by the note that it leaves beside it. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { AT_ONCE = 256 };

/* Of a shelf and a URL. */
struct pushed {
    const char *url, *shelf;
    uint64_t number, behind, oldest_ns; /* the snapshots that the URL lacks, and the time of their first */
    json_int_t missing;                 /* older ones that it lacks */
    json_t *step;
};

static bool time_of(struct cli *cli, const char *shelf, uint64_t number, uint64_t *time_ns)
{
    struct lmcs_snapshot *snapshot = NULL;
    struct lmcs_error ignored = {.status = LMCS_OK};
    char which[24];
    snprintf(which, sizeof which, "%" PRIu64, number);
    if (lmcs_snapshot_find(cli->pool, shelf, which, &snapshot, &ignored) != LMCS_OK)
        return false;
    *time_ns = lmcs_snapshot_info(snapshot)->time_ns;
    lmcs_snapshot_close(snapshot);
    return true;
}

/* Counts what the URL lacks; false: the note is of another pool, or the shelf is gone. */
static bool compare(struct cli *cli, struct pushed *pushed, uint64_t noted_ns)
{
    uint64_t numbers[AT_ONCE], time_ns, first = pushed->number + 1;
    struct lmcs_error ignored = {.status = LMCS_OK};
    size_t count = AT_ONCE;
    if (time_of(cli, pushed->shelf, pushed->number, &time_ns) && time_ns != noted_ns)
        return false;
    while (count == AT_ONCE) {
        if (lmcs_snapshot_numbers(cli->pool, pushed->shelf, first, numbers, AT_ONCE, &count, &ignored) != LMCS_OK)
            return false;
        if (pushed->behind == 0 && count > 0)
            (void)time_of(cli, pushed->shelf, numbers[0], &pushed->oldest_ns);
        pushed->behind += count;
        first = count > 0 ? numbers[count - 1] + 1 : first;
    }
    return true;
}

static void print(const struct pushed *pushed)
{
    printf("%-13s", "pushed");
    cli_print(stdout, pushed->shelf);
    printf("@%" PRIu64, pushed->number);
    if (json_is_integer(pushed->step))
        printf(" (step %" JSON_INTEGER_FORMAT ")", json_integer_value(pushed->step));
    fputs(" to ", stdout);
    cli_print(stdout, pushed->url);
    if (pushed->behind > 0)
        printf("; %" PRIu64 " snapshot%s behind, the first of %s", pushed->behind, cli_s(pushed->behind),
               cli_time(pushed->oldest_ns).text);
    if (pushed->missing > 0)
        printf("; %" JSON_INTEGER_FORMAT " older snapshot%s not there", pushed->missing,
               pushed->missing == 1 ? " of the pool is" : "s of the pool are");
    putchar('\n');
}

static json_t *pushed_json(const struct pushed *pushed)
{
    json_t *json = json_object();
    cli_json_set(json, "url", cli_json_text(pushed->url));
    cli_json_set(json, "shelf", cli_json_text(pushed->shelf));
    cli_json_set(json, "number", cli_json_u64(pushed->number));
    cli_json_set(json, "step", json_is_integer(pushed->step) ? json_incref(pushed->step) : NULL);
    cli_json_set(json, "missing", json_integer(pushed->missing));
    cli_json_set(json, "behind", cli_json_u64(pushed->behind));
    cli_json_set(json, "oldest_time", pushed->behind > 0 ? json_real((double)pushed->oldest_ns / 1e9) : NULL);
    return json;
}

void cli_show_pushed(struct cli *cli, const char *path)
{
    char file[PATH_MAX];
    json_t *list = cli->options.json ? json_array() : NULL, *note, *shelves, *place;
    const char *url, *shelf;
    bool fits = snprintf(file, sizeof file, "%s.pushed", path) < (int)sizeof file;
    note = fits ? json_load_file(file, JSON_REJECT_DUPLICATES, NULL) : NULL;
    json_object_foreach(note, url, shelves) json_object_foreach(shelves, shelf, place)
    {
        json_int_t number = json_integer_value(json_array_get(place, 0));
        struct pushed pushed = {.url = url, .shelf = shelf, .number = (uint64_t)number};
        pushed.step = json_array_get(place, 2);
        pushed.missing = json_integer_value(json_array_get(place, 3));
        if (number <= 0 || !compare(cli, &pushed, (uint64_t)json_integer_value(json_array_get(place, 1))))
            continue;
        if (list == NULL)
            print(&pushed);
        else
            json_array_append_new(list, pushed_json(&pushed));
    }
    json_decref(note);
    if (list != NULL)
        cli_json_set(cli->json, "pushed", list);
}
