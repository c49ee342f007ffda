/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shelves/warning.c - warns of rules that may not mean what the user wants: their metric is absent from all snapshots
 * or from some.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/names.h"
#include "pages/pool.h"
#include "records/annotation.h"
#include "shelves/facts.h"
#include "shelves/shelves.h"

#define SHOWN_BYTES 64u /* of a metric's name */
#define SHOWN_NAMES 8u

struct text {
    char *text; /* LMCS_MAX_WARNING + 1 bytes */
    size_t used;
};

/* Adds all of it or, if there is no room, nothing. */
__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
    va_list arguments;
    size_t room = LMCS_MAX_WARNING + 1 - text->used;
    va_start(arguments, format);
    int written = vsnprintf(text->text + text->used, room, format, arguments);
    va_end(arguments);
    if (written > 0 && (size_t)written < room)
        text->used += (size_t)written;
    text->text[text->used] = '\0';
}

/* A long name is cut between two characters. */
static void add_name(struct text *text, const char *before, const char *name)
{
    size_t length = strlen(name), shown = length;
    if (length > SHOWN_BYTES)
        for (shown = SHOWN_BYTES; shown > 0 && (name[shown] & 0xc0) == 0x80;)
            shown--;
    add(text, "%s\"%.*s%s\"", before, (int)shown, name, shown < length ? "..." : "");
}

/* A name that contains the other, such as val_loss for loss. */
static const char *related(const struct lmcs_facts *facts, const char *metric)
{
    for (size_t i = 0; i < facts->named_count; i++)
        if (strcmp(facts->named[i].name, metric) != 0 &&
            (strcasestr(facts->named[i].name, metric) != NULL || strcasestr(metric, facts->named[i].name) != NULL))
            return facts->named[i].name;
    return NULL;
}

/* Names another metric that may be meant, and (`all`) those that exist. */
static void add_others(struct text *text, const struct lmcs_facts *facts, const char *metric, bool all)
{
    const char *names[LMCS_MOST_METRICS];
    size_t count = 0;
    for (size_t i = 0; i < facts->named_count; i++)
        if (strcmp(facts->named[i].name, metric) != 0)
            names[count++] = facts->named[i].name;
    const char *near = lmcs_nearest(metric, names, count);
    near = near != NULL ? near : related(facts, metric);
    if (near != NULL) {
        add_name(text, "; did you mean ", near);
        add(text, "?");
    }
    if (all && count == 0)
        add(text, "; they have no %smetrics", facts->named_count > 0 ? "other " : "");
    for (size_t i = 0; all && i < count && i < SHOWN_NAMES; i++)
        add_name(text, i > 0 ? ", " : near != NULL ? " Metrics: " : "; metrics: ", names[i]);
    if (all && count > SHOWN_NAMES)
        add(text, " and %zu more", count - SHOWN_NAMES);
}

static uint64_t named(const struct lmcs_facts *facts, const char *metric)
{
    for (size_t i = 0; i < facts->named_count; i++)
        if (strcmp(facts->named[i].name, metric) == 0)
            return facts->named[i].count;
    return 0;
}

static void warn_of_rule(struct text *text, const struct lmcs_facts *facts, size_t rule_index)
{
    const char *metric = facts->policy.rules[rule_index].metric;
    size_t with = 0;
    for (size_t i = 0; i < facts->count; i++)
        with += !isnan(facts->list[i].metrics[rule_index]);
    if (with == facts->count)
        return;
    const char *it = named(facts, metric) > with ? "a number for the metric" : "the metric";
    add(text, text->used > 0 ? "; " : "");
    if (with == 0)
        add(text, "the rule best:%s keeps all snapshots, because 0 of %zu have %s", metric, facts->count, it);
    else
        add(text, "the rule best:%s ignores %zu of %zu snapshots, which do not have %s", metric, facts->count - with,
            facts->count, it);
    add_name(text, " ", metric);
    add_others(text, facts, metric, with == 0);
}

/* Whether an earlier rule has the same metric. */
static bool is_repeated(const struct lmcs_policy *policy, size_t rule_index)
{
    for (size_t r = 0; r < rule_index; r++)
        if (lmcs_rule_needs_metric(&policy->rules[r]) &&
            strcmp(policy->rules[r].metric, policy->rules[rule_index].metric) == 0)
            return true;
    return false;
}

void lmcs_facts_warn(const struct lmcs_facts *facts, char warning[LMCS_MAX_WARNING + 1])
{
    struct text text = {.text = warning};
    warning[0] = '\0';
    for (size_t r = 0; r < facts->policy.rule_count; r++)
        if (lmcs_rule_needs_metric(&facts->policy.rules[r]) && !is_repeated(&facts->policy, r))
            warn_of_rule(&text, facts, r);
}

static enum lmcs_status warn_of_shelf(struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                      char warning[LMCS_MAX_WARNING + 1], struct lmcs_error *error)
{
    struct lmcs_facts facts = {.names_metrics = true};
    enum lmcs_status status = LMCS_OK;
    warning[0] = '\0';
    lmcs_shelf_policy(shelf, &facts.policy);
    if (lmcs_policy_needs_metrics(&facts.policy)) {
        status = lmcs_facts_gather(txn, shelf, &facts, error);
        if (status == LMCS_OK)
            lmcs_facts_warn(&facts, warning);
    }
    lmcs_facts_free(&facts);
    return status;
}

enum lmcs_status lmcs_policy_warning(struct lmcs_pool *pool, const char *shelf, char warning[LMCS_MAX_WARNING + 1],
                                     struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf loaded;
    enum lmcs_status status = lmcs_shelf_read(pool, shelf, &txn, &loaded, error);
    if (status != LMCS_OK)
        return status;
    status = warn_of_shelf(&txn, &loaded, warning, error);
    lmcs_txn_end(&txn);
    return status;
}

/* ---- A full pool ---- */

/* Appends the shelf's warning if it is, or is not, `held`. Unreadable shelves are passed over. */
static void append(struct lmcs_pool *pool, uint64_t id, const char *held, bool is_held, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    char warning[LMCS_MAX_WARNING + 1] = "";
    bool found;
    if (lmcs_annotated_read(pool, &txn, NULL) != LMCS_OK)
        return;
    if (lmcs_shelf_load_if(&txn, id, &shelf, &found, NULL) == LMCS_OK && found &&
        (shelf.df.flags & LMCS_SHELF_STAGING) == 0 && (held != NULL && strcmp(shelf.name, held) == 0) == is_held &&
        warn_of_shelf(&txn, &shelf, warning, NULL) == LMCS_OK && *warning != '\0')
        lmcs_error_append(error, "; by the policy of \"%.100s\", %s", shelf.name, warning);
    lmcs_txn_end(&txn);
}

void lmcs_policy_warn_full(struct lmcs_pool *pool, const char *held, struct lmcs_error *error)
{
    for (int others = held == NULL; others < 2; others++)
        for (uint64_t id = 0; lmcs_shelf_next(pool, &id, NULL) == LMCS_OK && id != 0;)
            append(pool, id, held, others == 0, error);
}
