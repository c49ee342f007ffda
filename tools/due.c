/* SPDX-License-Identifier: BSD-3-Clause */
/* due.c - the snapshots that a policy is about to remove, and when: for policy and info. */
#include "cli.h"

#include <inttypes.h>
#include <string.h>

enum { MOST_RANGES = 8 };

struct cli_due cli_due_new(const struct lmcs_shelf_info *info)
{
    return (struct cli_due){
        .now = json_array(), .later = json_array(), .has_budget = strstr(info->policy, " budget=") != NULL};
}

void cli_due_free(struct cli_due *due)
{
    json_decref(due->now);
    json_decref(due->later);
}

bool cli_due_note(void *context, const struct lmcs_pruned *snapshot)
{
    struct cli_due *due = context;
    if (snapshot->why != NULL)
        return true;
    json_array_append_new(snapshot->due_ns != 0 ? due->later : due->now, cli_json_u64(snapshot->number));
    due->at_ns = snapshot->due_ns != 0 ? snapshot->due_ns : due->at_ns;
    return true;
}

bool cli_due_is_empty(const struct cli_due *due)
{
    return json_array_size(due->now) + json_array_size(due->later) == 0;
}

static uint64_t number_at(const json_t *numbers, size_t i)
{
    return (uint64_t)json_integer_value(json_array_get(numbers, i));
}

/* Prints " 3 snapshots: 1..2, 5". */
static void print_numbers(const json_t *numbers)
{
    size_t count = json_array_size(numbers), ranges = 0, i = 0;
    printf(" %zu snapshot%s:", count, cli_s(count));
    for (; i < count && ranges < MOST_RANGES; ranges++) {
        size_t last = i;
        while (last + 1 < count && number_at(numbers, last + 1) == number_at(numbers, last) + 1)
            last++;
        printf("%s %" PRIu64, ranges > 0 ? "," : "", number_at(numbers, i));
        if (last > i)
            printf("..%" PRIu64, number_at(numbers, last));
        i = last + 1;
    }
    if (i < count)
        printf(" and %zu more", count - i);
    putchar('\n');
}

void cli_due_print(const struct cli_due *due, const char *before)
{
    if (json_array_size(due->now) > 0) {
        printf("%s%s", before, due->has_budget ? "due when the budget is exceeded:" : "due now:");
        print_numbers(due->now);
    }
    if (json_array_size(due->later) > 0) {
        printf("%sdue %s %s, unless tagged or kept by another policy:", before, due->has_budget ? "after" : "at",
               cli_time(due->at_ns).text);
        print_numbers(due->later);
    }
}

json_t *cli_due_json(const struct cli_due *due)
{
    json_t *json = json_object();
    cli_json_set(json, "now", json_incref(due->now));
    cli_json_set(json, "later", json_incref(due->later));
    cli_json_set(json, "at", due->at_ns != 0 ? cli_json_text(cli_time(due->at_ns).text) : NULL);
    return json;
}
