/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transfer/dump.c - lmcs_dump: what of a pool goes into an archive, and in which order.
 *
 * One look at the pool says which snapshots there are. Then each is written by itself: its root is held by a lease of
 * its epoch, as a reader in another process holds it, so that no lock is held while a pipe is slow, and everything
 * that the snapshot refers to, pages and payloads, stays in place until it is written. A snapshot that was removed
 * before its turn is left out. What neighbours share is written once: a snapshot has its whole list of entries, or
 * the changes against the one before it, and a content travels with the first snapshot that needs it.
 *
 * Of a part, a walk through its manifests beforehand says which contents it has, and so which bases would travel for
 * its sake alone. A canonical archive is made of names and bytes alone: entries by name, payloads raw, each digest
 * once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grow.h"
#include "pages/tree.h"
#include "payload/layout.h"
#include "records/manifest.h"
#include "records/origin.h"
#include "records/safety.h"
#include "snapshots/snapshot.h"
#include "transfer/write.h"

/* ---- Snapshots ---- */

static enum lmcs_status flush_pairs(struct lmcs_dump *dump, struct lmcs_error *error)
{
    size_t count = dump->pair_count;
    dump->pair_count = 0;
    return count == 0
               ? LMCS_OK
               : lmcs_dump_record(dump, LMCS_ARCHIVE_ENTRIES, dump->pairs, count * sizeof *dump->pairs, NULL, 0, error);
}

static enum lmcs_status add_pair(struct lmcs_dump *dump, uint64_t identity, uint64_t content, struct lmcs_error *error)
{
    dump->pairs[dump->pair_count++] = (struct lmcs_archive_entry_df){identity, content};
    return dump->pair_count == LMCS_ARCHIVE_PAIRS ? flush_pairs(dump, error) : LMCS_OK;
}

static enum lmcs_status send_entry(struct lmcs_dump *dump, uint64_t identity, uint64_t content,
                                   struct lmcs_error *error)
{
    uint64_t sent_identity = 0, sent_content = 0;
    if (content == 0)
        return add_pair(dump, lmcs_id_get(&dump->identities, identity), 0, error);
    enum lmcs_status status = lmcs_dump_identity(dump, identity, &sent_identity, error);
    if (status == LMCS_OK)
        status = lmcs_dump_content(dump, content, &sent_content, error);
    return status == LMCS_OK ? add_pair(dump, sent_identity, sent_content, error) : status;
}

/* What is done with each entry that is new, or gone (content 0). */
struct walk {
    struct lmcs_dump *dump;
    enum lmcs_status (*entry)(struct lmcs_dump *dump, uint64_t identity, uint64_t content, struct lmcs_error *error);
};

static enum lmcs_status visit_all(void *context, uint64_t identity, const struct lmcs_manifest_df *entry, bool *stop,
                                  struct lmcs_error *error)
{
    const struct walk *walk = context;
    (void)stop;
    return walk->entry(walk->dump, identity, entry->content, error);
}

static enum lmcs_status visit_gone(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                   uint64_t successor, struct lmcs_error *error)
{
    const struct walk *walk = context;
    (void)entry;
    return successor != 0 ? LMCS_OK : walk->entry(walk->dump, identity, 0, error);
}

static enum lmcs_status visit_new(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                  uint64_t successor, struct lmcs_error *error)
{
    const struct walk *walk = context;
    (void)successor;
    return walk->entry(walk->dump, identity, entry->content, error);
}

/* The record of the snapshot that was sent before, if it is still there: then only changes need be sent. */
static enum lmcs_status find_previous(struct lmcs_dump *dump, struct lmcs_shelf *shelf,
                                      const struct lmcs_record *record, const struct lmcs_snapshot_df *previous,
                                      bool *related, struct lmcs_error *error)
{
    struct lmcs_record still;
    *related = false;
    if (previous->number == 0 || previous->lineage != record->df.lineage)
        return LMCS_OK;
    enum lmcs_status status = lmcs_record_get(&dump->txn, shelf, previous->number, &still, related, error);
    *related = *related && still.df.epoch == previous->epoch;
    return status;
}

/* Walks through the manifest, or what differs from the one before it. */
static enum lmcs_status walk_manifest(struct walk *walk, const struct lmcs_record *record,
                                      const struct lmcs_snapshot_df *previous, bool related, struct lmcs_error *error)
{
    struct lmcs_txn *txn = &walk->dump->txn;
    if (!related)
        return lmcs_manifest_each(txn, &record->df, visit_all, walk, error);
    enum lmcs_status status = lmcs_manifest_own(txn, previous, NULL, &record->df, false, visit_gone, walk, error);
    return status == LMCS_OK ? lmcs_manifest_own(txn, &record->df, previous, NULL, false, visit_new, walk, error)
                             : status;
}

/* ---- Canonical lists ---- */

struct sorted_entry {
    uint64_t identity; /* of the pool */
    uint64_t content;  /* of the pool; then of the archive */
    const char *name;  /* its kind, then its name */
};

/* The lists of a canonical archive: by kind and name, compared as bytes. */
struct order {
    char **names; /* of identities: so that each is looked up once */
    size_t name_count;
    size_t name_capacity;
    struct lmcs_id_map by_identity; /* index + 1 */
    struct sorted_entry *now;
    size_t count;
    size_t capacity;
    struct sorted_entry *before; /* of the snapshot before */
    size_t before_count;
    size_t before_capacity;
};

static enum lmcs_status name_of(struct lmcs_dump *dump, struct order *order, uint64_t id, const char **name,
                                struct lmcs_error *error)
{
    struct lmcs_identity identity;
    uint64_t index = lmcs_id_get(&order->by_identity, id);
    if (index != 0) {
        *name = order->names[index - 1];
        return LMCS_OK;
    }
    enum lmcs_status status = lmcs_identity_get(&dump->txn, id, &identity, error);
    if (status != LMCS_OK)
        return status;
    if (!lmcs_grow(&order->names, &order->name_capacity, order->name_count, sizeof *order->names))
        return lmcs_fail_memory(error);
    size_t bytes = strlen(identity.name) + 2;
    char *copy = malloc(bytes);
    if (copy == NULL)
        return lmcs_fail_memory(error);
    copy[0] = (char)('0' + identity.df.kind);
    memcpy(copy + 1, identity.name, bytes - 1);
    order->names[order->name_count++] = copy;
    *name = copy;
    return lmcs_id_put(&order->by_identity, id, order->name_count, error);
}

struct sorting {
    struct lmcs_dump *dump;
    struct order *order;
};

static enum lmcs_status add_sorted(void *context, uint64_t identity, const struct lmcs_manifest_df *entry, bool *stop,
                                   struct lmcs_error *error)
{
    struct sorting *sorting = context;
    struct order *order = sorting->order;
    struct sorted_entry made = {identity, entry->content, NULL};
    (void)stop;
    if (!lmcs_grow(&order->now, &order->capacity, order->count, sizeof *order->now))
        return lmcs_fail_memory(error);
    enum lmcs_status status = name_of(sorting->dump, order, identity, &made.name, error);
    if (status == LMCS_OK)
        order->now[order->count++] = made;
    return status;
}

static int by_sorted_name(const void *a, const void *b)
{
    return strcmp(((const struct sorted_entry *)a)->name, ((const struct sorted_entry *)b)->name);
}

/* What the snapshot before had and this one has not. */
static enum lmcs_status send_sorted_gone(struct lmcs_dump *dump, const struct order *order, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0, k = 0; status == LMCS_OK && i < order->before_count; i++) {
        while (k < order->count && strcmp(order->now[k].name, order->before[i].name) < 0)
            k++;
        if (k == order->count || order->now[k].identity != order->before[i].identity)
            status = add_pair(dump, lmcs_id_get(&dump->identities, order->before[i].identity), 0, error);
    }
    return status;
}

/* Sends what is new to the list, and puts the archive's ids into it. */
static enum lmcs_status send_sorted_new(struct lmcs_dump *dump, struct order *order, bool related,
                                        struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0, k = 0; status == LMCS_OK && i < order->count; i++) {
        struct sorted_entry *entry = &order->now[i];
        uint64_t identity = 0, content = 0;
        dump->name = entry->identity;
        status = lmcs_dump_identity(dump, entry->identity, &identity, error);
        if (status == LMCS_OK)
            status = lmcs_dump_content(dump, entry->content, &content, error);
        entry->content = content;
        while (related && k < order->before_count && strcmp(order->before[k].name, entry->name) < 0)
            k++;
        bool same = related && k < order->before_count && order->before[k].identity == entry->identity &&
                    order->before[k].content == content;
        if (status == LMCS_OK && !same)
            status = add_pair(dump, identity, content, error);
    }
    return status;
}

static enum lmcs_status send_canonical(struct lmcs_dump *dump, struct order *order, const struct lmcs_record *record,
                                       bool related, struct lmcs_error *error)
{
    struct sorting sorting = {dump, order};
    order->count = 0;
    enum lmcs_status status = lmcs_manifest_each(&dump->txn, &record->df, add_sorted, &sorting, error);
    if (status == LMCS_OK && order->count > 1)
        qsort(order->now, order->count, sizeof *order->now, by_sorted_name);
    if (status == LMCS_OK && related)
        status = send_sorted_gone(dump, order, error);
    if (status == LMCS_OK)
        status = send_sorted_new(dump, order, related, error);
    struct order swapped = *order;
    order->before = swapped.now;
    order->before_count = swapped.count;
    order->before_capacity = swapped.capacity;
    order->now = swapped.before;
    order->capacity = swapped.before_capacity;
    return status;
}

static void end_order(struct order *order)
{
    for (size_t i = 0; i < order->name_count; i++)
        free(order->names[i]);
    free(order->names);
    free(order->now);
    free(order->before);
    lmcs_id_free(&order->by_identity);
}

/* ---- One snapshot ---- */
static enum lmcs_status send_snapshot(struct lmcs_dump *dump, struct order *order, const struct lmcs_record *record,
                                      const struct lmcs_snapshot_df *previous, bool related, struct lmcs_error *error)
{
    struct walk walk = {dump, send_entry};
    const struct lmcs_snapshot_df *from = &record->df;
    bool attached = from->meta_bytes == UINT32_MAX;
    struct lmcs_archive_snapshot_df df = {.number = from->number,
                                          .step = from->step,
                                          .time_ns = from->time_ns,
                                          .parent = from->parent,
                                          .flags = (related ? LMCS_ARCHIVE_CHANGES : 0) |
                                                   (attached ? LMCS_ARCHIVE_META_ATTACHED : 0),
                                          .meta_bytes = attached ? 0 : from->meta_bytes};
    struct lmcs_archive_snapshot_end_df end = {from->entry_count};
    memcpy(df.group, from->group, sizeof df.group);
    enum lmcs_status status =
        lmcs_dump_record(dump, LMCS_ARCHIVE_SNAPSHOT, &df, sizeof df, record->meta, df.meta_bytes, error);
    if (status == LMCS_OK && dump->options->canonical)
        status = send_canonical(dump, order, record, related, error);
    else if (status == LMCS_OK)
        status = walk_manifest(&walk, record, previous, related, error);
    if (status == LMCS_OK)
        status = flush_pairs(dump, error);
    if (status == LMCS_OK)
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_SNAPSHOT_END, &end, sizeof end, NULL, 0, error);
    dump->end.snapshots++;
    return status;
}

/* ---- Shelves ---- */

struct shelf_plan {
    struct lmcs_shelf_df df;
    bool was_forked;
    struct lmcs_origin origin;
    char *name;
    uint64_t *numbers; /* of the snapshots to be sent; 0: it is gone */
    size_t count;
    size_t capacity;
    uint64_t *older; /* of those that older archives have: their tags are sent */
    size_t older_count;
    size_t older_capacity;
    bool has_origin; /* its origin was sent before the dump was taken up again */
    bool is_begun;   /* its record was sent before the dump was taken up again ... */
    bool is_sent;    /* ... and everything of it */
    uint64_t last;   /* the last snapshot that was sent then; 0: none */
    uint64_t last_time_ns;
    uint64_t end; /* numbers from here on are not sent: the shelf's record, which is written, ends before them */
};

/* What is done with each snapshot that is planned. */
typedef enum lmcs_status (*snapshot_fn)(struct lmcs_dump *dump, struct order *order, const struct lmcs_record *record,
                                        const struct lmcs_snapshot_df *previous, bool related,
                                        struct lmcs_error *error);

/* Sees to the snapshot `index` unless it is gone; *previous is that of the one before, and becomes this one's. */
static enum lmcs_status visit_snapshot(struct lmcs_dump *dump, struct shelf_plan *plan, struct order *order,
                                       uint64_t *number, struct lmcs_snapshot_df *previous, snapshot_fn visit,
                                       struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found = false, related = false;
    enum lmcs_status status = lmcs_txn_hold(dump->pool, &dump->txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&dump->txn, plan->df.id, &shelf, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_record_get(&dump->txn, &shelf, *number, &record, &found, error);
    if (status == LMCS_OK && !found)
        *number = 0;
    if (status == LMCS_OK && found && dump->options->canonical)
        related = previous->number != 0;
    else if (status == LMCS_OK && found)
        status = find_previous(dump, &shelf, &record, previous, &related, error);
    if (status == LMCS_OK && found && visit != NULL)
        status = visit(dump, order, &record, previous, related, error);
    if (status == LMCS_OK && found)
        *previous = record.df;
    lmcs_txn_end(&dump->txn);
    return status;
}

struct tag {
    uint64_t number;
    char *text;
};

struct tags {
    struct tag *items;
    size_t count;
    size_t capacity;
    uint64_t number;
    bool failed;
};

static bool add_tag(void *context, const char *text)
{
    struct tags *tags = context;
    tags->failed = !lmcs_grow(&tags->items, &tags->capacity, tags->count, sizeof *tags->items);
    if (tags->failed)
        return false;
    char *copy = strdup(text);
    tags->failed = copy == NULL;
    if (copy != NULL)
        tags->items[tags->count++] = (struct tag){tags->number, copy};
    return copy != NULL;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct tag *)a)->text, ((const struct tag *)b)->text);
}

/* The tags of the snapshots that were sent, all as they are at one moment. */
static enum lmcs_status collect_tags(struct lmcs_dump *dump, const struct shelf_plan *plan, struct tags *tags,
                                     struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    bool found = false;
    enum lmcs_status status = lmcs_txn_hold(dump->pool, &dump->txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&dump->txn, plan->df.id, &shelf, &found, error);
    bool any = status == LMCS_OK && found && lmcs_shelf_tree(&shelf, LMCS_TREE_TAGGED)->count > 0;
    for (size_t i = 0; any && status == LMCS_OK && i < plan->count + plan->older_count; i++) {
        tags->number = i < plan->count ? plan->numbers[i] : plan->older[i - plan->count];
        if (tags->number != 0)
            status = lmcs_tags_of(&dump->txn, &shelf, tags->number, add_tag, tags, error);
        if (status == LMCS_OK && tags->failed)
            status = lmcs_fail_memory(error);
    }
    lmcs_txn_end(&dump->txn);
    return status;
}

static enum lmcs_status dump_tags(struct lmcs_dump *dump, const struct shelf_plan *plan, struct lmcs_error *error)
{
    struct tags tags = {0};
    enum lmcs_status status = collect_tags(dump, plan, &tags, error);
    if (status == LMCS_OK && tags.count > 1)
        qsort(tags.items, tags.count, sizeof *tags.items, by_text);
    for (size_t i = 0; status == LMCS_OK && i < tags.count; i++) {
        struct lmcs_archive_tag_df df = {tags.items[i].number, (uint32_t)strlen(tags.items[i].text), 0};
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_TAG, &df, sizeof df, tags.items[i].text, df.tag_bytes, error);
        dump->end.tags++;
    }
    for (size_t i = 0; i < tags.count; i++)
        free(tags.items[i].text);
    free(tags.items);
    return status;
}

static enum lmcs_status send_origin(struct lmcs_dump *dump, const struct lmcs_origin *origin, struct lmcs_error *error)
{
    struct lmcs_archive_origin_df df = {
        .number = origin->df.number, .time_ns = origin->df.time_ns, .name_bytes = (uint32_t)strlen(origin->name)};
    return lmcs_dump_record(dump, LMCS_ARCHIVE_ORIGIN, &df, sizeof df, origin->name, df.name_bytes, error);
}

static enum lmcs_status dump_shelf(struct lmcs_dump *dump, struct shelf_plan *plan, struct order *order,
                                   struct lmcs_error *error)
{
    struct lmcs_archive_shelf_df df = {plan->df.next_number, plan->df.keep_raw, (uint32_t)strlen(plan->name)};
    struct lmcs_snapshot_df previous = {0};
    enum lmcs_status status = LMCS_OK;
    if (!plan->is_begun) {
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_SHELF, &df, sizeof df, plan->name, df.name_bytes, error);
        dump->end.shelves++;
    }
    if (status == LMCS_OK && plan->was_forked && !plan->has_origin)
        status = send_origin(dump, &plan->origin, error);
    uint64_t last = plan->last; /* what comes next may be given as changes to it, if it is there still */
    if (status == LMCS_OK && last != 0)
        status = visit_snapshot(dump, plan, order, &last, &previous, NULL, error);
    if (previous.time_ns != plan->last_time_ns)
        previous = (struct lmcs_snapshot_df){0};
    for (size_t i = 0; status == LMCS_OK && i < plan->count; i++)
        if (plan->numbers[i] > plan->last)
            status = visit_snapshot(dump, plan, order, &plan->numbers[i], &previous, send_snapshot, error);
    return status == LMCS_OK ? dump_tags(dump, plan, error) : status;
}

/* ---- What there is, and what of it is wanted ---- */

struct plans {
    struct shelf_plan *items;
    size_t count;
    size_t capacity;
    struct lmcs_parts parts;
    struct lmcs_index *older; /* older archives */
    size_t older_count;
    struct lmcs_archive_since_df *since; /* what they are called */
    struct lmcs_index begun;             /* what is there of this one ... */
    bool is_whole;                       /* ... which is all of it */
};

static void end_plans(struct plans *plans)
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

/* The numbers that addresses stand for now. */
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
            status = lmcs_shelf_resolve_range(&dump->txn, &shelf, at + 1, &part->first, &part->last, error);
    }
    return status;
}

static bool is_same(const struct lmcs_index_snapshot *there, const struct lmcs_snapshot_df *df)
{
    return there->df.time_ns == df->time_ns && there->df.step == df->step && there->df.parent == df->parent &&
           there->entries == df->entry_count && there->raw_bytes == df->raw_bytes;
}

/* Whether an older archive has this snapshot. */
static bool is_older(const struct plans *plans, const char *name, const struct lmcs_snapshot_df *df)
{
    for (size_t i = 0; i < plans->older_count; i++) {
        const struct lmcs_index_shelf *shelf = lmcs_index_find(&plans->older[i], name);
        const struct lmcs_index_snapshot *found = shelf != NULL ? lmcs_index_number(shelf, df->number) : NULL;
        if (found != NULL && is_same(found, df))
            return true;
    }
    return false;
}

/* How far the shelf came before the dump was taken up again. */
static void note_begun(const struct plans *plans, struct shelf_plan *plan)
{
    const struct lmcs_index *begun = &plans->begun;
    const struct lmcs_index_shelf *shelf = lmcs_index_find(begun, plan->name);
    plan->is_begun = shelf != NULL;
    plan->has_origin = shelf != NULL && (shelf->has_origin || shelf->snapshot_count > 0);
    plan->end = shelf != NULL ? shelf->df.next_number : plan->df.next_number;
    plan->is_sent = plans->is_whole || (shelf != NULL && shelf != &begun->shelves[begun->shelf_count - 1]);
    if (shelf != NULL && shelf->snapshot_count > 0) {
        plan->last = shelf->snapshots[shelf->snapshot_count - 1].df.number;
        plan->last_time_ns = shelf->snapshots[shelf->snapshot_count - 1].df.time_ns;
    }
    /* It belongs before where the dump is by now. */
    plan->is_sent = plan->is_sent || (shelf == NULL && begun->shelf_count > 0 &&
                                      strcmp(plan->name, begun->shelves[begun->shelf_count - 1].name) < 0);
}

static enum lmcs_status fail_begun(const char *name, uint64_t number, const char *what, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_INVALID, 0,
                     "the archive that was begun can't be gone on with: it %s %.200s@%llu: begin it anew", what, name,
                     (unsigned long long)number);
}

/* What was sent is what is to be sent, as far as it goes: the order of an archive leaves no place for what it lacks. */
static enum lmcs_status check_begun(const struct plans *plans, const struct shelf_plan *plan,
                                    const struct lmcs_snapshot_df *df, struct lmcs_error *error)
{
    const struct lmcs_index_shelf *shelf = lmcs_index_find(&plans->begun, plan->name);
    if (shelf == NULL || (df->number > plan->last && !plan->is_sent))
        return LMCS_OK;
    const struct lmcs_index_snapshot *found = lmcs_index_number(shelf, df->number);
    if (found == NULL)
        return fail_begun(plan->name, df->number, "has what comes after, and was begun without", error);
    return is_same(found, df) ? LMCS_OK : fail_begun(plan->name, df->number, "has another", error);
}

/* The same of a whole shelf. Whether it was there when the dump was begun, nobody knows. */
static enum lmcs_status check_left_out(const struct plans *plans, struct lmcs_error *error)
{
    for (size_t i = 0; i < plans->count; i++)
        if (plans->items[i].is_sent && !plans->items[i].is_begun && plans->items[i].count > 0)
            return lmcs_fail(error, LMCS_INVALID, 0,
                             "the archive that was begun can't be gone on with: it was begun without shelf \"%.200s\": "
                             "name those that it is to have, or begin it anew",
                             plans->items[i].name);
    return LMCS_OK;
}

static enum lmcs_status plan_snapshot(struct plans *plans, struct shelf_plan *plan, const struct lmcs_snapshot_df *df,
                                      struct lmcs_error *error)
{
    bool older = is_older(plans, plan->name, df);
    bool fits = older ? lmcs_grow(&plan->older, &plan->older_capacity, plan->older_count, sizeof *plan->older)
                      : lmcs_grow(&plan->numbers, &plan->capacity, plan->count, sizeof *plan->numbers);
    if (!fits)
        return lmcs_fail_memory(error);
    if (older)
        plan->older[plan->older_count++] = df->number;
    else
        plan->numbers[plan->count++] = df->number;
    return older ? LMCS_OK : check_begun(plans, plan, df, error);
}

/* Finds the snapshots that need what is lost. */
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

/* The origin under the current name of its shelf. */
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

static enum lmcs_status plan_shelf(struct lmcs_dump *dump, struct plans *plans, const struct lmcs_shelf *from,
                                   struct lmcs_error *error)
{
    struct lmcs_shelf shelf = *from;
    if (!lmcs_grow(&plans->items, &plans->capacity, plans->count, sizeof *plans->items))
        return lmcs_fail_memory(error);
    struct shelf_plan *plan = &plans->items[plans->count++];
    *plan = (struct shelf_plan){.df = shelf.df, .name = strdup(shelf.name)};
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
        if (status == LMCS_OK && found && record.df.state == LMCS_SNAPSHOT_COMMITTED && number < plan->end &&
            lmcs_parts_have(&plans->parts, plan->name, number)) {
            bool lost = is_lost(dump, plan->name, number);
            dump->lost_snapshots += lost;
            if (!lost)
                status = plan_snapshot(plans, plan, &record.df, error);
        }
    }
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct shelf_plan *)a)->name, ((const struct shelf_plan *)b)->name);
}

/* What there is at one moment: the shelves by name, with the numbers of their committed snapshots. */
static enum lmcs_status make_plans(struct lmcs_dump *dump, struct plans *plans, struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    size_t got = 1;
    uint64_t id = 0;
    enum lmcs_status status = resolve_parts(dump, &plans->parts, error);
    if (status == LMCS_OK && dump->options->skip_lost)
        status = find_lost(dump, error);
    while (status == LMCS_OK && got > 0 && id < UINT64_MAX) {
        status = lmcs_shelf_ids(&dump->txn, id + 1, &id, 1, &got, error);
        if (status == LMCS_OK && got > 0)
            status = lmcs_shelf_load(&dump->txn, id, &shelf, error);
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

/* ---- What a part would take along ---- */

static enum lmcs_status note_inside(struct lmcs_dump *dump, uint64_t identity, uint64_t content,
                                    struct lmcs_error *error)
{
    (void)identity;
    return content == 0 ? LMCS_OK : lmcs_id_put(&dump->inside, content, 1, error);
}

static enum lmcs_status note_snapshot(struct lmcs_dump *dump, struct order *order, const struct lmcs_record *record,
                                      const struct lmcs_snapshot_df *previous, bool related, struct lmcs_error *error)
{
    struct walk walk = {dump, note_inside};
    (void)order;
    return walk_manifest(&walk, record, previous, related && !dump->options->canonical, error);
}

static bool all_inside(const struct lmcs_dump *dump, const struct lmcs_content *link)
{
    bool all = true;
    for (size_t i = 0; i < link->df.base_count; i++)
        all = all && lmcs_id_get(&dump->inside, link->bases[i]) != 0;
    return all;
}

/* What a base takes that nothing selected has, with what it rests on. */
static uint64_t outside_bytes(const struct lmcs_dump *dump, const struct lmcs_chain *chain)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < chain->length && lmcs_id_get(&dump->inside, chain->links[i].id) == 0; i++) {
        bytes += chain->links[i].df.stored_bytes;
        if (chain->links[i].df.payload == LMCS_PAYLOAD_LINK && all_inside(dump, &chain->links[i]))
            break;
    }
    return bytes;
}

/* What a content rests on that travels for its sake alone; 0: nothing. */
static enum lmcs_status find_outside(struct lmcs_dump *dump, const struct lmcs_content *content, uint64_t *base,
                                     struct lmcs_error *error)
{
    struct lmcs_content link;
    *base = content->df.base_count > 0 ? content->bases[0] : 0;
    if (content->df.payload != LMCS_PAYLOAD_LINKED) {
        *base = lmcs_id_get(&dump->inside, *base) == 0 ? *base : 0;
        return LMCS_OK;
    }
    enum lmcs_status status = lmcs_content_get(&dump->txn, content->link, &link, error);
    *base = status == LMCS_OK && !all_inside(dump, &link) ? link.id : 0;
    return status;
}

/* Adds a content to what rests on its base, or its link, if that is outside. */
static enum lmcs_status note_base(struct lmcs_dump *dump, const struct lmcs_content *content, struct lmcs_error *error)
{
    struct lmcs_chain chain;
    uint64_t base;
    enum lmcs_status status = find_outside(dump, content, &base, error);
    if (status != LMCS_OK || base == 0)
        return status;
    uint64_t index = lmcs_id_get(&dump->outside, base);
    if (index == 0) {
        status = lmcs_chain_load(&dump->txn, base, &chain, error);
        if (status != LMCS_OK)
            return status;
        struct lmcs_outside cost = {.base_bytes = outside_bytes(dump, &chain)};
        if (!lmcs_grow(&dump->costs, &dump->cost_capacity, dump->cost_count, sizeof cost))
            return lmcs_fail_memory(error);
        dump->costs[dump->cost_count++] = cost;
        index = dump->cost_count;
        status = lmcs_id_put(&dump->outside, base, index, error);
    }
    dump->costs[index - 1].delta_bytes += content->df.stored_bytes;
    dump->costs[index - 1].whole_bytes += lmcs_raw_stored_bytes(content->df.raw_bytes);
    return status;
}

static enum lmcs_status add_known(struct lmcs_dump *dump, const struct lmcs_known *known, struct lmcs_error *error)
{
    if (!lmcs_grow(&dump->known, &dump->known_capacity, dump->known_count, sizeof *known))
        return lmcs_fail_memory(error);
    dump->known[dump->known_count++] = *known;
    return LMCS_OK;
}

/* All contents inside, once: their bases, or, for a canonical archive, their digests. */
static enum lmcs_status note_contents(struct lmcs_dump *dump, struct lmcs_error *error)
{
    uint64_t *ids;
    size_t count;
    enum lmcs_status status = lmcs_id_list(&dump->inside, &ids, &count, error);
    if (status == LMCS_OK)
        status = lmcs_txn_hold(dump->pool, &dump->txn, error);
    if (status != LMCS_OK) {
        free(ids);
        return status;
    }
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        struct lmcs_content content;
        bool found = false;
        status = lmcs_content_find(&dump->txn, ids[i], &content, &found, error);
        const struct lmcs_known known = {.digest = {content.df.digest_low, content.df.digest_high}, .is_new = true};
        if (status == LMCS_OK && found)
            status = dump->options->canonical ? add_known(dump, &known, error) : note_base(dump, &content, error);
    }
    free(ids);
    lmcs_txn_end(&dump->txn);
    return status;
}

static enum lmcs_status look_ahead(struct lmcs_dump *dump, struct plans *plans, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < plans->count; i++) {
        struct shelf_plan *plan = &plans->items[i];
        struct lmcs_snapshot_df previous = {0};
        for (size_t k = 0; status == LMCS_OK && k < plan->count; k++) {
            uint64_t number = plan->numbers[k];
            status = visit_snapshot(dump, plan, NULL, &number, &previous, note_snapshot, error);
        }
    }
    return status == LMCS_OK ? note_contents(dump, error) : status;
}

/* ---- Older archives, and this one's beginning ---- */

/* Notes how a content was sent. */
static enum lmcs_status note_form(struct lmcs_dump *dump, const struct lmcs_archive_reader *reader, size_t index,
                                  struct lmcs_error *error)
{
    const struct lmcs_archive_content *content = &reader->contents[index];
    uint64_t form = content->is_known ? LMCS_FORM_KNOWN : 0;
    if (content->payload == LMCS_PAYLOAD_LINKED)
        form = lmcs_form_linked(content->bases[0], reader->contents[content->bases[0] - 1].base_count, content->output);
    return form == 0 ? LMCS_OK : lmcs_id_put(&dump->forms, index + 1, form, error);
}

/* Notes the contents of an archive that has been read. */
static enum lmcs_status note_digests(struct lmcs_dump *dump, const struct lmcs_archive_reader *reader, size_t count,
                                     bool is_own, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        const struct lmcs_archive_content *content = &reader->contents[i];
        uint8_t depth = content->line > 0 ? (uint8_t)(LMCS_SENT_LINE + content->line) : content->depth;
        const struct lmcs_known known = {
            .digest = content->digest, .sent = is_own ? (i + 1) << LMCS_SENT_BITS | depth : 0, .depth = depth};
        if (is_own || content->payload != LMCS_PAYLOAD_LINK) /* a link is never only named */
            status = add_known(dump, &known, error);
        if (status == LMCS_OK && is_own)
            status = note_form(dump, reader, i, error);
    }
    return status;
}

static enum lmcs_status read_older(struct lmcs_dump *dump, int fd, struct lmcs_index *index,
                                   struct lmcs_archive_since_df *since, struct lmcs_error *error)
{
    struct lmcs_archive_reader reader;
    struct stat info;
    off_t start = lseek(fd, 0, SEEK_CUR);
    if (start < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return lmcs_fail(error, LMCS_INVALID, 0, "an older archive must be a file, for its payloads are passed over");
    enum lmcs_status status = lmcs_archive_reader_init(&reader, fd, error);
    if (status == LMCS_OK) {
        reader.source.passes_data = true;
        reader.visitor = &lmcs_index_visitor;
        reader.context = index;
        index->reader = &reader;
        status = lmcs_archive_reader_run(&reader, error);
        if (status == LMCS_OK)
            status = note_digests(dump, &reader, reader.content_count, false, error);
        *since = (struct lmcs_archive_since_df){reader.hash.low, reader.hash.high};
        lmcs_archive_reader_fini(&reader);
    }
    if (lseek(fd, start, SEEK_SET) < 0 && status == LMCS_OK)
        status = lmcs_fail_errno(error, errno, "an older archive can't be read");
    if (status != LMCS_OK)
        lmcs_error_prefix(error, "the older archive: ");
    return status;
}

/* Where everything before is whole: at the end of a snapshot, or of a shelf's record. */
struct checkpoint {
    uint64_t offset; /* 0: none yet */
    uint64_t records;
    struct lmc_hasher headers;
    uint64_t shelves, snapshots, identities, contents, tags;
};

static void note_checkpoint(const struct lmcs_archive_reader *reader, struct checkpoint *point)
{
    *point =
        (struct checkpoint){reader->source.offset,  reader->source.number,  reader->source.headers, reader->shelf_count,
                            reader->snapshot_count, reader->identity_count, reader->content_count,  reader->tag_count};
}

/* Reads what is there of an archive, as far as it is whole. */
static enum lmcs_status read_begun(struct lmcs_archive_reader *reader, struct checkpoint *point,
                                   struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    note_checkpoint(reader, point);
    while (status == LMCS_OK && reader->place != LMCS_ARCHIVE_AT_END) {
        status = lmcs_archive_reader_next(reader, error);
        if (status == LMCS_OK && (reader->place == LMCS_ARCHIVE_IN_SHELF || reader->place == LMCS_ARCHIVE_AT_START))
            note_checkpoint(reader, point);
    }
    return status == LMCS_DAMAGED ? LMCS_OK : status;
}

/* Finds the pool's ids of what was sent. */
static enum lmcs_status map_identities(struct lmcs_dump *dump, const struct lmcs_archive_reader *reader, size_t count,
                                       struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        uint64_t id;
        status = lmcs_identity_find(&dump->txn, &reader->identities[i]->tensor, &id, error);
        if (status == LMCS_OK && id != 0)
            status = lmcs_id_put(&dump->identities, id, i + 1, error);
    }
    return status;
}

static enum lmcs_status go_on_at(struct lmcs_dump *dump, const struct lmcs_archive_reader *reader,
                                 const struct checkpoint *point, struct lmcs_error *error)
{
    dump->end.shelves = point->shelves;
    dump->end.snapshots = point->snapshots;
    dump->end.identities = point->identities;
    dump->end.contents = point->contents;
    dump->end.tags = point->tags;
    dump->end.records = point->records;
    dump->headers = point->headers;
    dump->bytes = point->offset;
    enum lmcs_status status = note_digests(dump, reader, point->contents, true, error);
    if (status == LMCS_OK)
        status = map_identities(dump, reader, point->identities, error);
    if (status == LMCS_OK &&
        (ftruncate(dump->fd, (off_t)point->offset) != 0 || lseek(dump->fd, 0, SEEK_END) != (off_t)point->offset))
        status = lmcs_fail_errno(error, errno, "the archive that was begun can't be gone on with");
    return status;
}

static enum lmcs_status fail_other(const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_INVALID, 0, "the archive that was begun can't be gone on with: %s", why);
}

/* Of what is shorter than an archive's head. */
static bool begins_as_archive(int fd, off_t bytes)
{
    unsigned char there[sizeof LMCS_ARCHIVE_MAGIC - 1];
    size_t most = (size_t)bytes < sizeof there ? (size_t)bytes : sizeof there;
    return pread(fd, there, most, 0) == (ssize_t)most && memcmp(there, LMCS_ARCHIVE_MAGIC, most) == 0;
}

/* What follows the end of an archive that is complete goes, as what is damaged at the end of another does. */
static enum lmcs_status cut_behind(const struct lmcs_dump *dump, struct lmcs_error *error)
{
    struct stat info;
    if (fstat(dump->fd, &info) != 0 ||
        (info.st_size > (off_t)dump->bytes && ftruncate(dump->fd, (off_t)dump->bytes) != 0))
        return lmcs_fail_errno(error, errno, "what follows the end of the archive can't be cut off");
    return LMCS_OK;
}

/* Takes up the archive that is in the descriptor's file; *is_done: it is complete. */
static enum lmcs_status take_up(struct lmcs_dump *dump, struct plans *plans, bool *is_done, struct lmcs_error *error)
{
    struct lmcs_archive_reader reader;
    struct checkpoint point;
    struct stat info;
    *is_done = false;
    if (fstat(dump->fd, &info) != 0 || !S_ISREG(info.st_mode) || lseek(dump->fd, 0, SEEK_SET) != 0)
        return fail_other("it is not a file", error);
    if (info.st_size < (off_t)sizeof(struct lmcs_archive_head_df) && !begins_as_archive(dump->fd, info.st_size))
        return fail_other("it is no archive", error);
    if (info.st_size < (off_t)sizeof(struct lmcs_archive_head_df))
        return ftruncate(dump->fd, 0) == 0 ? LMCS_OK : lmcs_fail_errno(error, errno, "the archive can't be written");
    enum lmcs_status status = lmcs_archive_reader_init(&reader, dump->fd, error);
    if (status != LMCS_OK)
        return status;
    reader.visitor = &lmcs_index_visitor;
    reader.context = &plans->begun;
    reader.progress = dump->progress;
    reader.doing = "checking";
    plans->begun.reader = &reader;
    status = read_begun(&reader, &point, error);
    bool same = plans->begun.since_count == dump->options->since_count &&
                (plans->begun.since_count == 0 ||
                 memcmp(plans->begun.since, plans->since, plans->begun.since_count * sizeof *plans->since) == 0);
    *is_done = plans->is_whole = status == LMCS_OK && reader.place == LMCS_ARCHIVE_AT_END;
    if (status == LMCS_OK && point.offset > sizeof(struct lmcs_archive_head_df) && !same)
        status = fail_other("it was made since other archives", error);
    if (status == LMCS_OK && !*is_done)
        status = go_on_at(dump, &reader, &point, error);
    if (*is_done) {
        dump->end = (struct lmcs_archive_end_df){.snapshots = reader.snapshot_count, .contents = reader.content_count};
        dump->bytes = reader.source.offset;
    }
    lmcs_archive_reader_fini(&reader);
    return status;
}

/* ---- The whole ---- */

static enum lmcs_status put_end(struct lmcs_dump *dump, struct lmcs_error *error)
{
    struct lmc_hash hash = lmc_hasher_final(&dump->headers);
    struct lmcs_archive_end_df end = dump->end;
    end.hash_low = hash.low;
    end.hash_high = hash.high;
    enum lmcs_status status = lmcs_dump_record(dump, LMCS_ARCHIVE_END, &end, sizeof end, NULL, 0, error);
    return status == LMCS_OK ? lmcs_dump_flush(dump, error) : status;
}

static enum lmcs_status put_beginning(struct lmcs_dump *dump, const struct lmcs_archive_since_df *since,
                                      struct lmcs_error *error)
{
    enum lmcs_status status = dump->bytes > 0 ? LMCS_OK : lmcs_dump_head(dump, error);
    for (size_t i = dump->end.records; status == LMCS_OK && i < dump->options->since_count; i++)
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_SINCE, &since[i], sizeof since[i], NULL, 0, error);
    return status;
}

static enum lmcs_status plan_all(struct lmcs_dump *dump, struct plans *plans, bool *is_done, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_txn_hold(dump->pool, &dump->txn, error);
    if (status != LMCS_OK)
        return status;
    if (dump->options->resume)
        status = take_up(dump, plans, is_done, error);
    if (status == LMCS_OK) /* also of one that is complete: it may be of another part */
        status = make_plans(dump, plans, error);
    if (status == LMCS_OK && *is_done)
        status = cut_behind(dump, error);
    if (dump->options->address_count == 0 && dump->options->since_count == 0 && !dump->options->canonical)
        dump->total = dump->txn.root.live_bytes;
    lmcs_txn_end(&dump->txn);
    dump->is_part = dump->options->since_count > 0;
    for (size_t i = 0; i < dump->options->address_count; i++) /* of a whole shelf all deltas travel as they are */
        dump->is_part = dump->is_part || strchr(dump->options->addresses[i], '@') != NULL;
    lmcs_dump_sort_known(dump);
    if (status == LMCS_OK && !*is_done && (dump->is_part || dump->options->canonical))
        status = look_ahead(dump, plans, error);
    lmcs_dump_sort_known(dump);
    return status;
}

static enum lmcs_status dump_all(struct lmcs_dump *dump, struct plans *plans, struct lmcs_error *error)
{
    struct order order = {.count = 0};
    bool is_done = false;
    enum lmcs_status status = LMCS_OK;
    for (; status == LMCS_OK && plans->older_count < dump->options->since_count; plans->older_count++) {
        size_t i = plans->older_count;
        status = read_older(dump, dump->options->since[i], &plans->older[i], &plans->since[i], error);
    }
    if (status == LMCS_OK)
        status = plan_all(dump, plans, &is_done, error);
    if (status != LMCS_OK || is_done)
        return status;
    status = put_beginning(dump, plans->since, error);
    for (size_t i = 0; status == LMCS_OK && i < plans->count; i++) {
        order.before_count = 0;
        if (!plans->items[i].is_sent)
            status = dump_shelf(dump, &plans->items[i], &order, error);
    }
    end_order(&order);
    return status == LMCS_OK ? put_end(dump, error) : status;
}

static enum lmcs_status begin_and_dump(struct lmcs_dump *dump, struct lmcs_error *error)
{
    size_t older = dump->options->since_count;
    struct plans plans = {.older = calloc(older + 1, sizeof *plans.older),
                          .since = calloc(older + 1, sizeof *plans.since)};
    dump->buffer = malloc(LMCS_DUMP_BUFFER);
    dump->piece = malloc(LMCS_ARCHIVE_PIECE_BYTES);
    enum lmcs_status status = LMCS_OK;
    if (plans.older == NULL || plans.since == NULL || dump->buffer == NULL || dump->piece == NULL)
        status = lmcs_fail_memory(error);
    if (status == LMCS_OK)
        status = dump_all(dump, &plans, error);
    end_plans(&plans);
    return status;
}

static void free_dump(struct lmcs_dump *dump)
{
    lmcs_id_free(&dump->identities);
    lmcs_id_free(&dump->contents);
    lmcs_id_free(&dump->forms);
    lmcs_id_free(&dump->inside);
    lmcs_id_free(&dump->outside);
    lmcs_holders_free(&dump->lost);
    free(dump->known);
    free(dump->costs);
    free(dump->piece);
    free(dump->buffer);
    free(dump);
}

void lmcs_dump_options_init(struct lmcs_dump_options *options)
{
    memset(options, 0, sizeof *options);
}

/* Whether two descriptors are of one file, which what is written through the one changes for the other. */
static bool is_same_file(int left, int right)
{
    struct stat l, r;
    return fstat(left, &l) == 0 && fstat(right, &r) == 0 && S_ISREG(l.st_mode) && l.st_dev == r.st_dev &&
           l.st_ino == r.st_ino;
}

static enum lmcs_status check_output(const struct lmcs_pool *pool, const struct lmcs_dump_options *options, int fd,
                                     struct lmcs_error *error)
{
    if (is_same_file(fd, lmcs_media_fd(pool->media)))
        return lmcs_fail(error, LMCS_INVALID, 0, "the archive would be written over the pool itself");
    for (size_t i = 0; options != NULL && i < options->since_count; i++)
        if (is_same_file(fd, options->since[i]))
            return lmcs_fail(error, LMCS_INVALID, 0,
                             "the archive would be written over one that it is made since, and is needed with it");
    return LMCS_OK;
}

enum lmcs_status lmcs_dump_with(struct lmcs_pool *pool, const struct lmcs_dump_options *options, int fd,
                                const struct lmcs_progress *progress, struct lmcs_transfer_report *report,
                                struct lmcs_error *error)
{
    static const struct lmcs_dump_options defaults;
    enum lmcs_status status = lmcs_pool_check(pool, false, error);
    if (status != LMCS_OK)
        return status;
    if (options != NULL && options->canonical && (options->since_count > 0 || options->resume))
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "a canonical archive is whole: it is neither made since others nor taken up again");
    status = check_output(pool, options, fd, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_dump *dump = aligned_alloc(64, (sizeof *dump + 63) & ~(size_t)63);
    if (dump == NULL)
        return lmcs_fail_memory(error);
    memset(dump, 0, sizeof *dump);
    dump->pool = pool;
    dump->options = options != NULL ? options : &defaults;
    dump->fd = fd;
    dump->progress = progress;
    status = begin_and_dump(dump, error);
    if (status == LMCS_OK && report != NULL)
        *report = (struct lmcs_transfer_report){.snapshots = dump->end.snapshots,
                                                .snapshots_lost = dump->lost_snapshots,
                                                .contents = dump->end.contents,
                                                .contents_found = dump->known_sent,
                                                .bytes = dump->bytes};
    free_dump(dump);
    return status;
}

enum lmcs_status lmcs_dump(struct lmcs_pool *pool, const char *shelf, int fd, const struct lmcs_progress *progress,
                           struct lmcs_transfer_report *report, struct lmcs_error *error)
{
    const struct lmcs_dump_options options = {.addresses = &shelf, .address_count = shelf != NULL};
    return lmcs_dump_with(pool, &options, fd, progress, report, error);
}
