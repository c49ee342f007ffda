/* SPDX-License-Identifier: BSD-3-Clause */
/* shelves/facts.c - gathers facts about all snapshots of a shelf in one transaction. */
#include "shelves/facts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/tree.h"
#include "payload/attachment.h"
#include "records/meta.h"

void lmcs_facts_free(struct lmcs_facts *facts)
{
    for (size_t i = 0; i < facts->named_count; i++)
        free(facts->named[i].name);
    free(facts->named);
    free(facts->list);
    free(facts->kept);
}

bool lmcs_policy_needs_metrics(const struct lmcs_policy *policy)
{
    bool needs = false;
    for (size_t r = 0; r < policy->rule_count; r++)
        needs |= lmcs_rule_needs_metric(&policy->rules[r]);
    return needs;
}

/* Snapshots have alike metrics in the same order, so the name after the last one found is compared first. */
static enum lmcs_status count_name(struct lmcs_facts *facts, const char *name, size_t *next, struct lmcs_error *error)
{
    for (size_t i = 0; i < facts->named_count; i++) {
        size_t at = (*next + i) % facts->named_count;
        if (strcmp(facts->named[at].name, name) == 0) {
            facts->named[at].count++;
            *next = at + 1;
            return LMCS_OK;
        }
    }
    if (facts->named_count == LMCS_MOST_METRICS)
        return LMCS_OK;
    if (!lmcs_grow(&facts->named, &facts->named_capacity, facts->named_count, sizeof *facts->named))
        return lmcs_fail_memory(error);
    struct lmcs_named_metric *named = &facts->named[facts->named_count];
    *named = (struct lmcs_named_metric){.name = strdup(name), .count = 1};
    if (named->name == NULL)
        return lmcs_fail_memory(error);
    *next = ++facts->named_count;
    return LMCS_OK;
}

static enum lmcs_status take_metrics(struct lmcs_facts *facts, const struct lmcs_meta *meta,
                                     struct lmcs_policy_facts *fact, struct lmcs_error *error)
{
    const struct lmcs_policy *policy = &facts->policy;
    enum lmcs_status status = LMCS_OK;
    size_t next = 0;
    for (size_t r = 0; r < policy->rule_count; r++)
        for (size_t i = 0; lmcs_rule_needs_metric(&policy->rules[r]) && i < meta->metric_count; i++)
            if (strcmp(meta->metrics[i].name, policy->rules[r].metric) == 0)
                fact->metrics[r] = meta->metrics[i].value;
    for (size_t i = 0; facts->names_metrics && status == LMCS_OK && i < meta->metric_count; i++)
        status = count_name(facts, meta->metrics[i].name, &next, error);
    return status;
}

/* Reads metrics, also from an attachment. Unreadable metrics are absent, so no rule finds them. */
static enum lmcs_status read_metrics(struct lmcs_txn *txn, const struct lmcs_record *record, struct lmcs_facts *facts,
                                     struct lmcs_policy_facts *fact, struct lmcs_error *error)
{
    struct lmcs_meta meta;
    char *text = NULL;
    enum lmcs_status status =
        record->df.meta_bytes == UINT32_MAX ? lmcs_record_long_meta(txn, record, &text, error) : LMCS_OK;
    if (status == LMCS_OK)
        status = lmcs_meta_decode(text != NULL ? text : record->meta, &meta, error);
    free(text);
    if (status != LMCS_OK) {
        fact->held |= lmcs_is_unusable(status); /* a snapshot with unreadable metadata stays */
        return lmcs_is_unusable(status) ? LMCS_OK : status;
    }
    status = take_metrics(facts, &meta, fact, error);
    lmcs_meta_free(&meta);
    return status;
}

static enum lmcs_status add_fact(struct lmcs_txn *txn, const struct lmcs_shelf *shelf, struct lmcs_facts *facts,
                                 const struct lmcs_record *record, struct lmcs_error *error)
{
    static const unsigned char no_group[sizeof record->df.group];
    if (!lmcs_record_is_committed(record))
        return LMCS_OK;
    if (!lmcs_grow(&facts->list, &facts->capacity, facts->count, sizeof *facts->list))
        return lmcs_fail_memory(error);
    struct lmcs_policy_facts *fact = &facts->list[facts->count++];
    *fact = (struct lmcs_policy_facts){.number = record->df.number,
                                       .step = record->df.step,
                                       .time_ns = record->df.time_ns,
                                       .held = record->df.number == shelf->df.latest,
                                       .is_part = memcmp(record->df.group, no_group, sizeof no_group) != 0};
    for (size_t i = 0; i < LMCS_MAX_RULES; i++)
        fact->metrics[i] = NAN;
    return lmcs_policy_needs_metrics(&facts->policy) ? read_metrics(txn, record, facts, fact, error) : LMCS_OK;
}

static enum lmcs_status gather_records(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_cursor *cursor,
                                       struct lmcs_facts *facts, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_cursor_seek(
        cursor, txn, LMCS_TREE_NUMBERS, lmcs_shelf_tree(shelf, LMCS_TREE_NUMBERS), (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        struct lmcs_record record;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        status = lmcs_record_read(txn, shelf, lmcs_cursor_key(cursor).high, value, bytes, &record, error);
        if (status == LMCS_OK)
            status = add_fact(txn, shelf, facts, &record, error);
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    return status;
}

static enum lmcs_status hold_tagged(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_cursor *cursor,
                                    struct lmcs_facts *facts, struct lmcs_error *error)
{
    size_t i = 0;
    enum lmcs_status status = lmcs_cursor_seek(cursor, txn, LMCS_TREE_TAGGED, lmcs_shelf_tree(shelf, LMCS_TREE_TAGGED),
                                               (struct lmcs_key_df){0, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        while (i < facts->count && facts->list[i].number < lmcs_cursor_key(cursor).high)
            i++;
        if (i < facts->count && facts->list[i].number == lmcs_cursor_key(cursor).high)
            facts->list[i].held = true;
        status = lmcs_cursor_next(cursor, error);
    }
    return status;
}

enum lmcs_status lmcs_facts_gather(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_facts *facts,
                                   struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    status = gather_records(txn, shelf, cursor, facts, error);
    if (status == LMCS_OK)
        status = hold_tagged(txn, shelf, cursor, facts, error);
    lmcs_cursor_free(cursor);
    if (status != LMCS_OK)
        return status;
    facts->kept = calloc(facts->count + 1, sizeof *facts->kept);
    if (facts->kept == NULL)
        return lmcs_fail_memory(error);
    return lmcs_policy_keeps(&facts->policy, facts->list, facts->count, lmcs_now_ns(), facts->kept, error);
}
