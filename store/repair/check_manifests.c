/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * repair/check_manifests.c - the structure check: manifests.
 *
 * Each shared page is checked once, and its summary kept for other snapshots. A run (the consecutive snapshots in which
 * a name keeps a content) is counted at its first snapshot, where its birth is later than the older neighbour
 * (records/manifest.c).
 */
#include "repair/checking.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/origin.h"
#include "records/safety.h"
#include "records/shelf.h"

/* A checked page of a manifest, with sums over all pages below it. */
struct lmcs_checked_page {
    uint64_t offset; /* 0: empty place */
    uint64_t check;
    uint64_t shelf;
    uint64_t epoch;
    uint64_t low; /* identities */
    uint64_t high;
    uint64_t entries;
    uint64_t tensors;
    uint64_t raw_bytes;
    uint8_t level;
};

/* NULL: not checked yet. */
static const struct lmcs_checked_page *find_summary(const struct lmcs_checking *c, uint64_t offset)
{
    uint64_t place = lmcs_map_get(&c->manifest_places, offset);
    return place != 0 ? &c->manifest_pages[place - 1] : NULL;
}

static enum lmcs_status remember(struct lmcs_checking *c, const struct lmcs_checked_page *summary)
{
    uint64_t place = lmcs_map_get(&c->manifest_places, summary->offset);
    if (place == 0) {
        place = c->manifest_page_count + 1;
        if (!lmcs_grow(&c->manifest_pages, &c->manifest_page_capacity, c->manifest_page_count, sizeof *summary) ||
            !lmcs_map_put(&c->manifest_places, summary->offset, place))
            return lmcs_fail_memory(c->error);
        c->manifest_page_count++;
    }
    c->manifest_pages[place - 1] = *summary;
    return LMCS_OK;
}

struct manifest_walk {
    struct lmcs_checking *c;
    const struct lmcs_snapshot_df *of;
    const struct lmcs_snapshot_df *older; /* neighbour; NULL: none */
    bool wanted;
};

static void report_entry(struct manifest_walk *walk, uint64_t identity, const char *problem)
{
    struct lmcs_checking *c = walk->c;
    struct lmcs_identity named;
    struct lmcs_error ignored;
    bool known = lmcs_identity_get(&c->txn, identity, &named, &ignored) == LMCS_OK;
    lmcs_check_report(c, c->shelf->name, walk->of->number, known ? named.name : "", "%s", problem);
}

/* Checks that an inherited entry equals the older neighbour's. */
static enum lmcs_status check_inherited(struct manifest_walk *walk, uint64_t identity,
                                        const struct lmcs_manifest_df *entry)
{
    struct lmcs_checking *c = walk->c;
    struct lmcs_root_tree_df tree = {.ref = walk->older->manifest, .count = walk->older->entry_count};
    struct lmcs_manifest_df before = {0, 0};
    bool found;
    enum lmcs_status status = lmcs_check_has_key(c, LMCS_TREE_MANIFEST, &tree, (struct lmcs_key_df){identity, 0},
                                                 &before, sizeof before, &found);
    if (status == LMCS_OK && !c->incomplete &&
        (!found || before.content != entry->content || before.birth != entry->birth))
        report_entry(walk, identity, "a manifest's entry is newer than its recorded birth");
    return status;
}

static enum lmcs_status check_entry(struct manifest_walk *walk, uint64_t identity, const struct lmcs_manifest_df *entry,
                                    struct lmcs_checked_page *sum)
{
    struct lmcs_checking *c = walk->c;
    struct lmcs_checked_identity *name = lmcs_check_find_identity(c, identity);
    struct lmcs_known_content *content = lmcs_check_find_content(c, entry->content);
    if (name == NULL || content == NULL) {
        if (!c->incomplete)
            report_entry(walk, identity,
                         name == NULL ? "a manifest has an entry without a name" : "a tensor's content does not exist");
        return LMCS_OK;
    }
    if (name->raw_bytes != content->raw_bytes)
        report_entry(walk, identity, "a tensor and its content differ in size");
    if (entry->birth == 0 || entry->birth > walk->of->number)
        report_entry(walk, identity, "a manifest's entry comes from a later snapshot");
    sum->tensors += name->is_tensor;
    sum->raw_bytes += name->raw_bytes;
    content->wanted |= walk->wanted;
    if (content->number == 0 || walk->wanted) {
        content->number = walk->of->number;
        content->shelf = c->shelf_index;
    }
    if (walk->older != NULL && entry->birth <= walk->older->number)
        return check_inherited(walk, identity, entry);
    if (content->runs == 0)
        report_entry(walk, identity, "a content has more runs than are recorded");
    else
        content->runs--;
    name->uses += identity != content->identity;
    return LMCS_OK;
}

static enum lmcs_status check_manifest_leaf(struct manifest_walk *walk, const struct lmcs_node_df *node,
                                            struct lmcs_checked_page *sum)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < node->count; i++) {
        struct lmcs_key_df key = lmcs_node_key(node, i);
        struct lmcs_manifest_df entry;
        if (node->slots[i].value_bytes != sizeof entry || key.low != 0 || (i > 0 && key.high <= sum->high)) {
            report_entry(walk, key.high, "a manifest's entry is damaged");
            continue;
        }
        memcpy(&entry, lmcs_node_value(node, i), sizeof entry);
        if (i == 0)
            sum->low = key.high;
        sum->high = key.high;
        sum->entries++;
        status = check_entry(walk, key.high, &entry, sum);
    }
    return status;
}

/* Checks that the snapshot may share a page with the snapshots before it. */
static void check_shared(struct manifest_walk *walk, struct lmcs_ref_df ref, int level,
                         const struct lmcs_checked_page *known)
{
    struct lmcs_checking *c = walk->c;
    if (known->check != ref.check || (level >= 0 && known->level != level) || known->shelf != c->shelf->df.id)
        REPORT(c, "the page at offset %llu is used twice", ULL(ref.offset));
    else if (walk->older == NULL || known->epoch > walk->older->epoch)
        lmcs_check_report(c, c->shelf->name, walk->of->number, "",
                          "the page at offset %llu is shared by snapshots that may not share it", ULL(ref.offset));
}

static enum lmcs_status walk_manifest(struct manifest_walk *walk, struct lmcs_ref_df ref, int level,
                                      struct lmcs_checked_page *sum)
{
    _Alignas(8) unsigned char buffer[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *node;
    struct lmcs_checking *c = walk->c;
    const struct lmcs_checked_page *known = find_summary(c, ref.offset);
    if (known != NULL) {
        *sum = *known;
        check_shared(walk, ref, level, sum);
        return LMCS_OK;
    }
    *sum = (struct lmcs_checked_page){.offset = ref.offset, .check = ref.check, .shelf = c->shelf->df.id};
    if (!lmcs_check_use_page(c, ref.offset, LMCS_PAGE_REACHED))
        return LMCS_OK;
    enum lmcs_status status = lmcs_check_read_page(c, LMCS_TREE_MANIFEST, ref, walk->of->number, level, buffer, &node);
    if (status != LMCS_OK || node == NULL)
        return status;
    sum->level = node->level;
    sum->epoch = node->epoch;
    if (node->epoch > walk->of->epoch || (walk->older != NULL && node->epoch <= walk->older->epoch))
        lmcs_check_report(c, c->shelf->name, walk->of->number, "", "the page at offset %llu has the wrong epoch",
                          ULL(ref.offset));
    if (node->level == 0)
        status = check_manifest_leaf(walk, node, sum);
    for (size_t i = 0; status == LMCS_OK && node->level > 0 && i < node->count; i++) {
        struct lmcs_checked_page below;
        struct lmcs_key_df key = lmcs_node_key(node, i);
        status = walk_manifest(walk, lmcs_node_child(node, i), node->level - 1, &below);
        if (below.entries == 0)
            continue;
        if (i > 0 && (key.high > below.low || key.high <= sum->high))
            lmcs_check_report(c, c->shelf->name, walk->of->number, "", "the page at offset %llu has a key out of order",
                              ULL(ref.offset));
        sum->low = sum->entries == 0 ? below.low : sum->low;
        sum->high = below.high;
        sum->entries += below.entries;
        sum->tensors += below.tensors;
        sum->raw_bytes += below.raw_bytes;
    }
    return status == LMCS_OK ? remember(c, sum) : status;
}

/* Marks the contents of a snapshot in the scope; the walk omits pages that it shares. */
static enum lmcs_status mark_snapshot(struct lmcs_checking *c, const struct lmcs_snapshot_df *df)
{
    struct lmcs_root_tree_df tree = {.ref = df->manifest, .count = df->entry_count};
    struct lmcs_cursor *cursor;
    enum lmcs_status status =
        lmcs_cursor_open(&cursor, &c->txn, LMCS_TREE_MANIFEST, &tree, (struct lmcs_key_df){0, 0}, c->error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        struct lmcs_manifest_df entry;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        struct lmcs_known_content *content = NULL;
        if (bytes == sizeof entry) {
            memcpy(&entry, value, sizeof entry);
            content = lmcs_check_find_content(c, entry.content);
        }
        if (content != NULL) {
            content->wanted = true;
            content->number = df->number;
            content->shelf = c->shelf_index;
        }
        status = lmcs_cursor_next(cursor, c->error);
    }
    lmcs_cursor_free(cursor);
    return lmcs_check_absorb(c, status, c->shelf->name, df->number);
}

enum lmcs_status lmcs_check_manifest(struct lmcs_checking *c, const struct lmcs_record *record)
{
    const struct lmcs_snapshot_df *df = &record->df;
    struct lmcs_record older;
    bool has_older, in_scope = c->want_shelf == 0 || c->shelf->df.id == c->want_shelf;
    if (df->state == LMCS_SNAPSHOT_REMOTE) {
        c->out->remote += in_scope && (c->want_number == 0 || df->number == c->want_number);
        return LMCS_OK;
    }
    enum lmcs_status status = lmcs_record_neighbour(&c->txn, c->shelf, df, false, &older, &has_older, c->error);
    if (status != LMCS_OK)
        return status;
    struct manifest_walk walk = {.c = c,
                                 .of = df,
                                 .older = has_older ? &older.df : NULL,
                                 .wanted = in_scope && c->want_shelf != 0 && c->want_number == 0};
    struct lmcs_checked_page sum = {0};
    if (df->manifest.offset != 0)
        status = walk_manifest(&walk, df->manifest, -1, &sum);
    if (status == LMCS_OK && !c->incomplete &&
        (sum.entries != df->entry_count || sum.tensors != df->tensor_count || sum.raw_bytes != df->raw_bytes))
        lmcs_check_report(c, c->shelf->name, df->number, "",
                          "it has %llu entries, %llu tensors and %llu bytes, but %llu, %llu and %llu are recorded",
                          ULL(sum.entries), ULL(sum.tensors), ULL(sum.raw_bytes), ULL(df->entry_count),
                          ULL(df->tensor_count), ULL(df->raw_bytes));
    if (in_scope && (c->want_number == 0 || df->number == c->want_number) && df->state == LMCS_SNAPSHOT_COMMITTED)
        c->out->snapshots++;
    if (status == LMCS_OK && in_scope && c->want_number != 0 && df->number == c->want_number)
        status = mark_snapshot(c, df);
    return status;
}
