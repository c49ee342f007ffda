/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/dump_snapshot.c - sends one snapshot: all entries, or the changes to the one before. */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "records/annotation.h"
#include "records/manifest.h"
#include "transfer/dump.h"

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

static enum lmcs_status visit_all(void *context, uint64_t identity, const struct lmcs_manifest_df *entry, bool *stop,
                                  struct lmcs_error *error)
{
    const struct lmcs_dump_walk *walk = context;
    (void)stop;
    return walk->entry(walk->dump, identity, entry->content, error);
}

static enum lmcs_status visit_gone(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                   uint64_t successor, struct lmcs_error *error)
{
    const struct lmcs_dump_walk *walk = context;
    (void)entry;
    return successor != 0 ? LMCS_OK : walk->entry(walk->dump, identity, 0, error);
}

static enum lmcs_status visit_new(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                  uint64_t successor, struct lmcs_error *error)
{
    const struct lmcs_dump_walk *walk = context;
    (void)successor;
    return walk->entry(walk->dump, identity, entry->content, error);
}

/* Finds the previous snapshot: if it still exists, only changes to it are sent. */
static enum lmcs_status find_previous(struct lmcs_dump *dump, struct lmcs_shelf *shelf,
                                      const struct lmcs_record *record, const struct lmcs_snapshot_df *previous,
                                      bool *related, struct lmcs_error *error)
{
    struct lmcs_record still;
    *related = false;
    if (previous->number == 0 || previous->lineage != record->df.lineage)
        return LMCS_OK;
    enum lmcs_status status = lmcs_record_get(&dump->txn, shelf, previous->number, &still, related, error);
    *related = *related && still.df.epoch == previous->epoch; /* else it was replaced, or let go */
    return status;
}

enum lmcs_status lmcs_dump_walk_manifest(struct lmcs_dump_walk *walk, const struct lmcs_record *record,
                                         const struct lmcs_snapshot_df *previous, bool related,
                                         struct lmcs_error *error)
{
    struct lmcs_txn *txn = &walk->dump->txn;
    if (!related)
        return lmcs_manifest_each(txn, &record->df, visit_all, walk, error);
    enum lmcs_status status = lmcs_manifest_own(txn, previous, NULL, &record->df, false, visit_gone, walk, error);
    return status == LMCS_OK ? lmcs_manifest_own(txn, &record->df, previous, NULL, false, visit_new, walk, error)
                             : status;
}

struct sorted_entry {
    uint64_t identity; /* of the pool */
    uint64_t content;  /* of the pool; later of the archive */
    const char *name;  /* kind, then name */
};

static enum lmcs_status name_of(struct lmcs_dump *dump, struct lmcs_dump_order *order, uint64_t id, const char **name,
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
    struct lmcs_dump_order *order;
};

static enum lmcs_status add_sorted(void *context, uint64_t identity, const struct lmcs_manifest_df *entry, bool *stop,
                                   struct lmcs_error *error)
{
    struct sorting *sorting = context;
    struct lmcs_dump_order *order = sorting->order;
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

static enum lmcs_status send_sorted_gone(struct lmcs_dump *dump, const struct lmcs_dump_order *order,
                                         struct lmcs_error *error)
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

/* Sends new entries by name, and replaces their contents' ids by the archive's. */
static enum lmcs_status send_sorted_new(struct lmcs_dump *dump, struct lmcs_dump_order *order, bool related,
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

static enum lmcs_status send_canonical(struct lmcs_dump *dump, struct lmcs_dump_order *order,
                                       const struct lmcs_record *record, bool related, struct lmcs_error *error)
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
    struct lmcs_dump_order swapped = *order;
    order->before = swapped.now;
    order->before_count = swapped.count;
    order->before_capacity = swapped.capacity;
    order->now = swapped.before;
    order->capacity = swapped.before_capacity;
    return status;
}

void lmcs_dump_order_end(struct lmcs_dump_order *order)
{
    for (size_t i = 0; i < order->name_count; i++)
        free(order->names[i]);
    free(order->names);
    free(order->now);
    free(order->before);
    lmcs_id_free(&order->by_identity);
}

/* ---- One snapshot ---- */
enum lmcs_status lmcs_dump_send(struct lmcs_dump *dump, struct lmcs_dump_order *order, const struct lmcs_record *record,
                                const struct lmcs_snapshot_df *previous, bool related, struct lmcs_error *error)
{
    struct lmcs_dump_walk walk = {dump, send_entry};
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
        status = lmcs_dump_walk_manifest(&walk, record, previous, related, error);
    if (status == LMCS_OK)
        status = flush_pairs(dump, error);
    if (status == LMCS_OK)
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_SNAPSHOT_END, &end, sizeof end, NULL, 0, error);
    dump->end.snapshots++;
    return status;
}

enum lmcs_status lmcs_dump_visit(struct lmcs_dump *dump, struct lmcs_dump_shelf *plan, struct lmcs_dump_order *order,
                                 uint64_t *number, struct lmcs_snapshot_df *previous, lmcs_dump_snapshot_fn visit,
                                 struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found = false, related = false;
    enum lmcs_status status = lmcs_annotated_hold(dump->pool, &dump->txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&dump->txn, plan->df.id, &shelf, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_record_get(&dump->txn, &shelf, *number, &record, &found, error);
    if (status == LMCS_OK && !found)
        *number = 0;
    if (status == LMCS_OK && found && visit != NULL)
        status = lmcs_record_check_local(&dump->txn, &shelf, &record, error);
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
