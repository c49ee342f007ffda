/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/dump_plan.c - plans a dump: the selected snapshots that no older archive has. */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "records/safety.h"
#include "transfer/dump.h"
#include "transfer/warn.h"

void lmcs_dump_plans_end(struct lmcs_dump_plans *plans)
{
    for (size_t i = 0; i < plans->count; i++) {
        free(plans->items[i].name);
        free(plans->items[i].numbers);
        free(plans->items[i].older);
    }
    for (size_t i = 0; i < plans->older_count; i++)
        lmcs_index_free(&plans->older[i]);
    free(plans->older);
    free(plans->since);
    free(plans->items);
    lmcs_index_free(&plans->begun);
    lmcs_parts_free(&plans->parts);
}

static enum lmcs_status resolve_parts(struct lmcs_dump *dump, struct lmcs_parts *parts, struct lmcs_error *error)
{
    size_t count = dump->options->address_count;
    enum lmcs_status status = LMCS_OK;
    if (count > 0 && (parts->items = calloc(count, sizeof *parts->items)) == NULL)
        return lmcs_fail_memory(error);
    for (; status == LMCS_OK && parts->count < count; parts->count++) {
        const char *address = dump->options->addresses[parts->count], *at = strchr(address, '@');
        struct lmcs_part *part = &parts->items[parts->count];
        struct lmcs_shelf shelf;
        *part = (struct lmcs_part){.shelf = at == NULL ? strdup(address) : strndup(address, (size_t)(at - address)),
                                   .last = UINT64_MAX};
        status = part->shelf == NULL ? lmcs_fail_memory(error) : lmcs_shelf_get(&dump->txn, part->shelf, &shelf, error);
        if (status == LMCS_OK && at != NULL)
            status = lmcs_shelf_resolve_range(&dump->txn, &shelf, at + 1, false, &part->first, &part->last, error);
    }
    return status;
}

static bool is_same(const struct lmcs_index_snapshot *there, const struct lmcs_snapshot_df *df)
{
    return there->df.time_ns == df->time_ns && there->df.step == df->step && there->df.parent == df->parent &&
           there->entries == df->entry_count && there->raw_bytes == df->raw_bytes;
}

/* Whether an older archive contains the snapshot, the last of them with the same metrics and note. */
static bool is_older(const struct lmcs_dump_plans *plans, const struct lmcs_dump_shelf *plan,
                     const struct lmcs_record *record)
{
    const struct lmcs_snapshot_df *df = &record->df;
    for (size_t i = plans->older_count; i-- > 0;) {
        const struct lmcs_index_shelf *shelf = lmcs_index_find(&plans->older[i], plan->name);
        if (shelf != NULL && lmcs_shelf_differs(shelf->id.identity, plan->df.identity))
            continue;
        const struct lmcs_index_snapshot *found = shelf != NULL ? lmcs_index_number(shelf, df->number) : NULL;
        if (found != NULL && is_same(found, df))
            return df->meta_bytes == UINT32_MAX || found->meta_check == lmc_hash64(record->meta, df->meta_bytes, 0);
    }
    return false;
}

/* Records how far the continued archive has sent the shelf. */
static void note_begun(const struct lmcs_dump_plans *plans, struct lmcs_dump_shelf *plan)
{
    const struct lmcs_index *begun = &plans->begun;
    const struct lmcs_index_shelf *shelf = lmcs_index_find(begun, plan->name);
    plan->is_begun = shelf != NULL;
    plan->has_origin = shelf != NULL && (shelf->has_origin || shelf->snapshot_count > 0);
    plan->has_id = shelf != NULL && (shelf->has_id || shelf->snapshot_count > 0);
    plan->says_all_tags = shelf != NULL && (shelf->id.flags & LMCS_ARCHIVE_ALL_TAGS) != 0;
    plan->end = shelf != NULL ? shelf->df.next_number : plan->df.next_number;
    plan->is_sent = plans->is_whole || (shelf != NULL && shelf != &begun->shelves[begun->shelf_count - 1]);
    if (shelf != NULL && shelf->snapshot_count > 0) {
        plan->last = shelf->snapshots[shelf->snapshot_count - 1].df.number;
        plan->last_time_ns = shelf->snapshots[shelf->snapshot_count - 1].df.time_ns;
    }
    /* the archive is past this shelf's place, in order of names */
    plan->is_sent = plan->is_sent || (shelf == NULL && begun->shelf_count > 0 &&
                                      strcmp(plan->name, begun->shelves[begun->shelf_count - 1].name) < 0);
}

static enum lmcs_status fail_begun(const char *name, uint64_t number, const char *what, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_INVALID, 0,
                     "the incomplete archive can't be continued: it %s %.200s@%llu; write a new one", what, name,
                     (unsigned long long)number);
}

/* Fails if a snapshot to send is missing from the part of the shelf that the continued archive has. */
static enum lmcs_status check_begun(const struct lmcs_dump_plans *plans, const struct lmcs_dump_shelf *plan,
                                    const struct lmcs_snapshot_df *df, struct lmcs_error *error)
{
    const struct lmcs_index_shelf *shelf = lmcs_index_find(&plans->begun, plan->name);
    if (shelf != NULL && lmcs_shelf_differs(shelf->id.identity, plan->df.identity))
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "the incomplete archive can't be continued: its shelf \"%.200s\" was dropped or renamed, and "
                         "another has its name; write a new one",
                         plan->name);
    if (shelf == NULL || (df->number > plan->last && !plan->is_sent))
        return LMCS_OK;
    const struct lmcs_index_snapshot *found = lmcs_index_number(shelf, df->number);
    if (found == NULL)
        return fail_begun(plan->name, df->number, "has later snapshots, but not", error);
    return is_same(found, df) ? LMCS_OK : fail_begun(plan->name, df->number, "has another", error);
}

/* Fails if a shelf belongs before the last one sent: it is unknown whether it existed when the dump began. */
static enum lmcs_status check_left_out(const struct lmcs_dump_plans *plans, struct lmcs_error *error)
{
    for (size_t i = 0; i < plans->count; i++)
        if (plans->items[i].is_sent && !plans->items[i].is_begun && plans->items[i].count > 0)
            return lmcs_fail(error, LMCS_INVALID, 0,
                             "the incomplete archive can't be continued: it has no shelf \"%.200s\"; "
                             "name its shelves, or write a new one",
                             plans->items[i].name);
    return LMCS_OK;
}

static enum lmcs_status add_number(uint64_t **numbers, size_t *count, size_t *capacity, uint64_t number,
                                   struct lmcs_error *error)
{
    if (!lmcs_grow(numbers, capacity, *count, sizeof number))
        return lmcs_fail_memory(error);
    (*numbers)[(*count)++] = number;
    return LMCS_OK;
}

/* Finds the snapshots with lost contents. */
static enum lmcs_status find_lost(struct lmcs_dump *dump, struct lmcs_error *error)
{
    uint64_t *ids = NULL;
    size_t count = 0;
    bool whole;
    enum lmcs_status status = lmcs_lost_list(&dump->txn, &ids, &count, error);
    if (status == LMCS_OK && count > 0)
        status = lmcs_holders_find(dump->pool, ids, count, &dump->lost, &whole, error);
    free(ids);
    return status;
}

static bool is_lost(const struct lmcs_dump *dump, const char *shelf, uint64_t number)
{
    for (size_t i = 0; i < dump->lost.count; i++) {
        const struct lmcs_found_holder *holder = &dump->lost.items[i];
        if (holder->first <= number && number <= holder->last &&
            strcmp(dump->lost.shelf_names[holder->shelf], shelf) == 0)
            return true;
    }
    return false;
}

/* Reads the origin of a shelf, with the current name of the source shelf if this still exists. */
static enum lmcs_status origin_named(struct lmcs_txn *txn, uint64_t shelf, struct lmcs_origin *origin, bool *found,
                                     struct lmcs_error *error)
{
    struct lmcs_shelf from;
    bool is_there = false;
    enum lmcs_status status = lmcs_origin_get(txn, shelf, origin, found, error);
    if (status != LMCS_OK || !*found || origin->df.shelf == 0)
        return status;
    status = lmcs_shelf_load_if(txn, origin->df.shelf, &from, &is_there, error);
    if (status == LMCS_OK && is_there)
        memcpy(origin->name, from.name, sizeof origin->name);
    return status;
}

/* Sends the snapshot, or only its tags. */
static enum lmcs_status plan_snapshot(struct lmcs_dump *dump, struct lmcs_dump_plans *plans,
                                      struct lmcs_dump_shelf *plan, const struct lmcs_shelf *shelf,
                                      const struct lmcs_record *record, struct lmcs_error *error)
{
    const struct lmcs_snapshot_df *df = &record->df;
    bool is_wanted = lmcs_parts_have(&plans->parts, plan->name, df->number);
    bool lost = is_wanted && is_lost(dump, plan->name, df->number), older = is_older(plans, plan, record);
    dump->lost_snapshots += lost;
    plan->has_all_tags = plan->has_all_tags && (plans->older_count > 0 || (is_wanted && !lost));
    if (is_wanted && !lost && !older) {
        enum lmcs_status status = lmcs_record_check_local(&dump->txn, shelf, record, error);
        if (status == LMCS_OK)
            status = add_number(&plan->numbers, &plan->count, &plan->capacity, df->number, error);
        return status == LMCS_OK ? check_begun(plans, plan, df, error) : status;
    }
    plan->matches += older;
    return plans->older_count == 0
               ? LMCS_OK
               : add_number(&plan->older, &plan->older_count, &plan->older_capacity, df->number, error);
}

/* Reports older archives whose shelf of that name is another, or may be. */
static void warn_others(struct lmcs_dump *dump, const struct lmcs_dump_plans *plans, const struct lmcs_dump_shelf *plan)
{
    const uint64_t *own = plan->df.identity;
    for (size_t i = 0; i < plans->older_count && plan->count > 0; i++) {
        const struct lmcs_index_shelf *shelf = lmcs_index_find(&plans->older[i], plan->name);
        bool is_known = shelf != NULL && lmcs_shelf_is_known(shelf->id.identity) && lmcs_shelf_is_known(own);
        if (shelf != NULL && lmcs_shelf_differs(shelf->id.identity, own))
            lmcs_transfer_warn(&dump->warned,
                               "shelf \"%.200s\" of an older archive was dropped or renamed, and another has its name: "
                               "all snapshots of the new one are sent; a restore of both archives together omits the "
                               "old one, unless it has a new name",
                               plan->name);
        else if (shelf != NULL && shelf->snapshot_count > 0 && !is_known && plan->matches == 0)
            lmcs_transfer_warn(
                &dump->warned,
                "shelf \"%.200s\" and that of an older archive have no snapshot in common, and an earlier "
                "version, which records no identity of shelves, wrote one of them: they may be two "
                "shelves of one name",
                plan->name);
    }
}

static enum lmcs_status plan_shelf(struct lmcs_dump *dump, struct lmcs_dump_plans *plans, const struct lmcs_shelf *from,
                                   struct lmcs_error *error)
{
    struct lmcs_shelf shelf = *from;
    if (!lmcs_grow(&plans->items, &plans->capacity, plans->count, sizeof *plans->items))
        return lmcs_fail_memory(error);
    struct lmcs_dump_shelf *plan = &plans->items[plans->count++];
    *plan = (struct lmcs_dump_shelf){.df = shelf.df, .name = strdup(shelf.name), .has_all_tags = true};
    enum lmcs_status status = plan->name == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    if (status == LMCS_OK)
        note_begun(plans, plan);
    if (status == LMCS_OK)
        status = origin_named(&dump->txn, shelf.df.id, &plan->origin, &plan->was_forked, error);
    for (uint64_t number = 0; status == LMCS_OK;) {
        struct lmcs_record record;
        bool found = false;
        status = lmcs_record_after(&dump->txn, &shelf, number, &number, error);
        if (status != LMCS_OK || number == 0)
            break;
        status = lmcs_record_get(&dump->txn, &shelf, number, &record, &found, error);
        if (status == LMCS_OK && found && lmcs_record_is_committed(&record) && number < plan->end)
            status = plan_snapshot(dump, plans, plan, &shelf, &record, error);
    }
    if (status == LMCS_OK)
        warn_others(dump, plans, plan);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct lmcs_dump_shelf *)a)->name, ((const struct lmcs_dump_shelf *)b)->name);
}

enum lmcs_status lmcs_dump_plans_make(struct lmcs_dump *dump, struct lmcs_dump_plans *plans, struct lmcs_error *error)
{
    size_t got = 1;
    uint64_t id = 0;
    enum lmcs_status status = resolve_parts(dump, &plans->parts, error);
    if (status == LMCS_OK && dump->options->skip_lost)
        status = find_lost(dump, error);
    while (status == LMCS_OK && got > 0 && id < UINT64_MAX) {
        status = lmcs_shelf_ids(&dump->txn, id + 1, &id, 1, &got, error);
        struct lmcs_shelf shelf = {.df = {.flags = LMCS_SHELF_STAGING}};
        if (status == LMCS_OK && got > 0) {
            status = lmcs_shelf_load(&dump->txn, id, &shelf, error);
            if (lmcs_is_unusable(status) && plans->parts.count > 0) /* the named shelves could be loaded */
                status = LMCS_OK;
        }
        if (status == LMCS_OK && got > 0 && (shelf.df.flags & LMCS_SHELF_STAGING) == 0 &&
            lmcs_parts_have_shelf(&plans->parts, shelf.name))
            status = plan_shelf(dump, plans, &shelf, error);
    }
    if (status == LMCS_OK)
        status = check_left_out(plans, error);
    if (status == LMCS_OK && plans->count > 0)
        qsort(plans->items, plans->count, sizeof *plans->items, by_name);
    return status;
}
