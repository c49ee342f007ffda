/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/policy_log.c - the record of the snapshots that a shelf's policies removed: pure functions.
 *
 * The record is a list of entries, newest first, with spaces between them: FIRST-LAST:COUNT:RANGE,...:RULE,... (seconds
 * since 1970, snapshots, their numbers, the rules). Removals by the same rules in turn share an entry. An entry has at
 * most LMCS_PRUNE_RANGES ranges: the nearest are joined. As many entries are kept as fit into the shelf's record.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "records/policy.h"

#define SECOND 1000000000u

static bool take_number(const char **at, uint64_t *number)
{
    if (!isdigit((unsigned char)**at))
        return false;
    for (*number = 0; isdigit((unsigned char)**at); ++*at)
        if (__builtin_mul_overflow(*number, 10, number) || __builtin_add_overflow(*number, **at - '0', number))
            return false;
    return true;
}

static bool take(const char **at, char letter)
{
    bool taken = **at == letter;
    *at += taken;
    return taken;
}

static bool take_range(const char **at, struct lmcs_prune_event *event)
{
    struct lmcs_number_range *range = &event->ranges[event->range_count];
    if (event->range_count == LMCS_PRUNE_RANGES || !take_number(at, &range->first))
        return false;
    range->last = range->first;
    if (take(at, '-') && !take_number(at, &range->last))
        return false;
    event->range_count++;
    return range->first > 0 && range->last >= range->first;
}

static bool take_seconds(const char **at, uint64_t *ns)
{
    return take_number(at, ns) && !__builtin_mul_overflow(*ns, SECOND, ns);
}

bool lmcs_policy_log_next(const char **at, struct lmcs_prune_event *event)
{
    *event = (struct lmcs_prune_event){.count = 0};
    while (take(at, ' '))
        ;
    if (!take_seconds(at, &event->first_ns) || !take(at, '-') || !take_seconds(at, &event->last_ns) || !take(at, ':') ||
        !take_number(at, &event->count) || !take(at, ':'))
        return false;
    do {
        if (!take_range(at, event))
            return false;
    } while (take(at, ','));
    size_t length = strcspn(*at, " ");
    if (**at != ':' || length > LMCS_MAX_POLICY - 5)
        return false;
    snprintf(event->policy, sizeof event->policy, "keep=%.*s", (int)length - 1, *at + 1);
    *at += length;
    return length > 1;
}

static int by_first(const void *a, const void *b)
{
    const struct lmcs_number_range *x = a, *y = b;
    return LMCS_ORDER(x->first, y->first);
}

/* Adds a range to sorted ones, and joins neighbours: adjacent ones, or the nearest if there are too many. */
static void add_number(struct lmcs_prune_event *event, uint64_t number)
{
    struct lmcs_number_range ranges[LMCS_PRUNE_RANGES + 1];
    size_t count = event->range_count;
    memcpy(ranges, event->ranges, count * sizeof *ranges);
    ranges[count++] = (struct lmcs_number_range){number, number};
    qsort(ranges, count, sizeof *ranges, by_first);
    for (;;) {
        size_t nearest = 0;
        uint64_t least = UINT64_MAX;
        for (size_t i = 0; i + 1 < count; i++) {
            uint64_t gap = ranges[i + 1].first > ranges[i].last ? ranges[i + 1].first - ranges[i].last : 0;
            nearest = gap < least ? i : nearest;
            least = gap < least ? gap : least;
        }
        if (least > 1 && count <= LMCS_PRUNE_RANGES)
            break;
        if (ranges[nearest].last < ranges[nearest + 1].last)
            ranges[nearest].last = ranges[nearest + 1].last;
        count--;
        memmove(&ranges[nearest + 1], &ranges[nearest + 2], (count - nearest - 1) * sizeof *ranges);
    }
    memcpy(event->ranges, ranges, count * sizeof *ranges);
    event->range_count = count;
}

/* False: too long. */
static bool print(const struct lmcs_prune_event *event, char text[LMCS_MAX_POLICY + 1])
{
    size_t room = LMCS_MAX_POLICY + 1;
    size_t used = (size_t)snprintf(text, room, "%" PRIu64 "-%" PRIu64 ":%" PRIu64 ":", event->first_ns / SECOND,
                                   event->last_ns / SECOND, event->count);
    for (size_t i = 0; used < room && i < event->range_count; i++) {
        const struct lmcs_number_range *range = &event->ranges[i];
        used += (size_t)snprintf(text + used, room - used, "%s%" PRIu64, i > 0 ? "," : "", range->first);
        if (used < room && range->last > range->first)
            used += (size_t)snprintf(text + used, room - used, "-%" PRIu64, range->last);
    }
    if (used < room)
        used += (size_t)snprintf(text + used, room - used, ":%s", event->policy + strlen("keep="));
    return used < room;
}

void lmcs_policy_log_add(struct lmcs_policy *policy, const char *rules, const uint64_t *numbers, size_t count,
                         uint64_t now_ns)
{
    struct lmcs_prune_event event;
    char entry[LMCS_MAX_POLICY + 1];
    char all[2 * LMCS_MAX_POLICY + 2];
    const char *rest = policy->log;
    if (!lmcs_policy_log_next(&rest, &event) || strcmp(event.policy, rules) != 0) {
        rest = policy->log;
        event = (struct lmcs_prune_event){.first_ns = now_ns};
        snprintf(event.policy, sizeof event.policy, "%s", rules);
    }
    event.last_ns = now_ns;
    event.count += count;
    for (size_t i = 0; i < count; i++)
        add_number(&event, numbers[i]);
    if (!print(&event, entry))
        return;
    rest += *rest == ' ';
    size_t used = (size_t)snprintf(all, sizeof all, "%s%s%s", entry, *rest != '\0' ? " " : "", rest);
    while (used > LMCS_MAX_POLICY) /* the oldest entry goes */
        used = (size_t)((char *)memrchr(all, ' ', used) - all);
    memcpy(policy->log, all, used);
    policy->log[used] = '\0';
}
