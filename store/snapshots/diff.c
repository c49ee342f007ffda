/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * snapshots/diff.c - the differences between two snapshots.
 *
 * Both manifests are sorted by identity (name, dtype and shape) and walked side by side; an identity that only one has
 * is looked up in the other by its name. Equal contents and digests are not read. Blocks of others are decoded and
 * compared by any free thread; results are added in the order of blocks, so that the numbers are reproducible.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "records/manifest.h"
#include "records/relations.h"
#include "snapshots/elements.h"
#include "snapshots/snapshot.h"

/* ---- Entries ---- */

struct item {
    uint64_t identity;
    uint64_t content;
};

struct items {
    struct item *at; /* by identity */
    size_t count;
    size_t capacity;
};

static enum lmcs_status add_item(void *context, uint64_t identity, const struct lmcs_manifest_df *entry, bool *stop,
                                 struct lmcs_error *error)
{
    struct items *items = context;
    (void)stop;
    if (!lmcs_grow(&items->at, &items->capacity, items->count, sizeof *items->at))
        return lmcs_fail_memory(error);
    items->at[items->count++] = (struct item){identity, entry->content};
    return LMCS_OK;
}

/* Removes the store's own attachments. */
static enum lmcs_status drop_own(struct lmcs_txn *txn, const struct lmcs_record *record, struct items *items,
                                 struct lmcs_error *error)
{
    static const char *const names[] = {LMCS_META_NAME, LMCS_TAGS_NAME, LMCS_RELATIONS_NAME, LMCS_CONSTANTS_NAME};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        struct lmcs_identity identity;
        uint64_t content;
        bool found;
        size_t kept = 0;
        enum lmcs_status status =
            lmcs_manifest_find(txn, &record->df, LMCS_ATTACHMENT, names[k], &identity, &content, &found, error);
        if (status != LMCS_OK)
            return status;
        for (size_t i = 0; i < items->count; i++)
            if (!found || items->at[i].identity != identity.id)
                items->at[kept++] = items->at[i];
        items->count = kept;
    }
    return LMCS_OK;
}

static enum lmcs_status list_items(struct lmcs_snapshot *snapshot, struct items *items, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    enum lmcs_status status = lmcs_snapshot_enter(snapshot, &txn, &shelf, &record, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_manifest_each(&txn, &record.df, add_item, items, error);
    if (status == LMCS_OK)
        status = drop_own(&txn, &record, items, error);
    lmcs_txn_end(&txn);
    return status;
}

static const struct item *find_item(const struct items *items, uint64_t identity)
{
    size_t low = 0, high = items->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (items->at[middle].identity < identity)
            low = middle + 1;
        else
            high = middle;
    }
    return low < items->count && items->at[low].identity == identity ? &items->at[low] : NULL;
}

/* ---- A pair of tensors ---- */

struct side {
    struct lmcs_identity identity;
    struct lmcs_chain chain;
    struct lmcs_reader *reader;
    struct lmcs_tensor tensor;
};

struct diff {
    struct lmcs_pool *pool;
    struct lmcs_snapshot *snapshots[2];
    uint32_t flags;
    bool (*visit)(void *context, const struct lmcs_difference *difference);
    void *context;
    const struct lmcs_progress *progress;
    uint64_t total_bytes;
    struct lmcs_diff_report report;
    bool stopped;
    struct items items[2];
    struct side sides[2];
    bool is_there[2];
};

/* `pin`: for reading. */
static enum lmcs_status load_side(struct diff *diff, int which, const struct item *item, bool pin,
                                  struct lmcs_error *error)
{
    struct side *side = &diff->sides[which];
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    enum lmcs_status status = lmcs_snapshot_enter(diff->snapshots[which], &txn, &shelf, &record, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_identity_get(&txn, item->identity, &side->identity, error);
    if (status == LMCS_OK)
        status = lmcs_chain_load(&txn, item->content, &side->chain, error);
    if (status == LMCS_OK && pin)
        status = lmcs_chain_pin(diff->pool, &side->chain, error);
    lmcs_txn_end(&txn);
    side->reader = NULL;
    if (status == LMCS_OK)
        side->tensor = lmcs_identity_tensor(&side->identity);
    return status;
}

static enum lmcs_status open_side(struct diff *diff, int which, struct lmcs_error *error)
{
    struct side *side = &diff->sides[which];
    return lmcs_reader_open(diff->pool, &side->chain, &side->tensor, NULL, &side->reader, error);
}

static bool same_digest(const struct diff *diff)
{
    const struct lmcs_content_df *a = &diff->sides[0].chain.links[0].df, *b = &diff->sides[1].chain.links[0].df;
    return a->digest_low == b->digest_low && a->digest_high == b->digest_high;
}

/* ---- Comparing ---- */

struct comparing {
    const struct side *sides;
    uint32_t dtype;
    uint64_t raw_bytes;
    uint64_t first_block;        /* of this round */
    struct lmcs_compared *parts; /* of the blocks of this round */
};

#define BLOCKS_A_ROUND 256u

static enum lmcs_status compare_block(void *context, uint64_t i, struct lmcs_error *error)
{
    const struct comparing *c = context;
    uint64_t block = c->first_block + i;
    uint64_t left = c->raw_bytes - block * LMC_BLOCK_BYTES, bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES;
    unsigned char *both = aligned_alloc(64, 2 * ((bytes + 63) & ~(uint64_t)63));
    if (both == NULL)
        return lmcs_fail_memory(error);
    unsigned char *after = both + ((bytes + 63) & ~(uint64_t)63);
    enum lmcs_status status = lmcs_reader_block(c->sides[0].reader, block, both, error);
    if (status == LMCS_OK)
        status = lmcs_reader_block(c->sides[1].reader, block, after, error);
    if (status == LMCS_OK)
        lmcs_elements_compare(c->dtype, both, after, bytes, &c->parts[i]);
    free(both);
    return status;
}

static enum lmcs_status report_progress(struct diff *diff, struct lmcs_error *error)
{
    const struct lmcs_progress *progress = diff->progress;
    if (progress == NULL || progress->call == NULL ||
        progress->call(progress->context, "comparing", diff->report.bytes_compared, diff->total_bytes))
        return LMCS_OK;
    return lmcs_fail(error, LMCS_CANCELLED, 0, "%s: the comparison was stopped", diff->pool->path);
}

static enum lmcs_status compare_rounds(struct diff *diff, struct comparing *c, struct lmcs_compared *all,
                                       struct lmcs_error *error)
{
    uint64_t blocks = lmc_block_count(c->raw_bytes);
    enum lmcs_status status = LMCS_OK;
    for (c->first_block = 0; status == LMCS_OK && c->first_block < blocks; c->first_block += BLOCKS_A_ROUND) {
        uint64_t left = blocks - c->first_block, count = left < BLOCKS_A_ROUND ? left : BLOCKS_A_ROUND;
        memset(c->parts, 0, count * sizeof *c->parts);
        status = lmcs_workers_try(diff->pool->workers, compare_block, NULL, c, count, error);
        if (status != LMCS_OK)
            return status;
        for (uint64_t i = 0; i < count; i++)
            lmcs_compared_add(all, &c->parts[i]);
        uint64_t end = (c->first_block + count) * LMC_BLOCK_BYTES;
        diff->report.bytes_compared += (end < c->raw_bytes ? end : c->raw_bytes) - c->first_block * LMC_BLOCK_BYTES;
        status = report_progress(diff, error);
    }
    return status;
}

static enum lmcs_status compare_pair(struct diff *diff, struct lmcs_difference *difference, struct lmcs_error *error)
{
    struct comparing c = {.sides = diff->sides,
                          .dtype = diff->sides[0].identity.df.dtype,
                          .raw_bytes = diff->sides[0].chain.links[0].df.raw_bytes};
    struct lmcs_compared all = {0};
    c.parts = malloc(BLOCKS_A_ROUND * sizeof *c.parts);
    if (c.parts == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = open_side(diff, 0, error);
    if (status == LMCS_OK)
        status = open_side(diff, 1, error);
    if (status == LMCS_OK)
        status = compare_rounds(diff, &c, &all, error);
    if (status == LMCS_OK)
        lmcs_compared_numbers(&all, difference);
    lmcs_reader_close(diff->sides[0].reader);
    lmcs_reader_close(diff->sides[1].reader);
    free(c.parts);
    return status;
}

/* ---- Reporting ---- */

static void count_difference(struct lmcs_diff_report *report, enum lmcs_difference_kind kind)
{
    uint64_t *counts[] = {[LMCS_SAME] = &report->same,
                          [LMCS_CHANGED] = &report->changed,
                          [LMCS_RESHAPED] = &report->reshaped,
                          [LMCS_ADDED] = &report->added,
                          [LMCS_REMOVED] = &report->removed};
    ++*counts[kind];
}

static void report(struct diff *diff, enum lmcs_difference_kind kind, struct lmcs_difference *difference)
{
    struct side *sides = diff->sides;
    const struct side *named = &sides[diff->is_there[1] ? 1 : 0];
    count_difference(&diff->report, kind);
    if (kind == LMCS_SAME && (diff->flags & LMCS_DIFF_SAME) == 0)
        return;
    difference->name = named->identity.name;
    difference->kind = kind;
    difference->before = diff->is_there[0] ? &sides[0].tensor : NULL;
    difference->after = diff->is_there[1] ? &sides[1].tensor : NULL;
    difference->before_bytes = diff->is_there[0] ? sides[0].chain.links[0].df.raw_bytes : 0;
    difference->after_bytes = diff->is_there[1] ? sides[1].chain.links[0].df.raw_bytes : 0;
    if (kind == LMCS_SAME)
        difference->cosine = 1;
    if (diff->visit != NULL && !diff->visit(diff->context, difference))
        diff->stopped = true;
}

static enum lmcs_status diff_both(struct diff *diff, const struct item *before, const struct item *after,
                                  struct lmcs_error *error)
{
    struct lmcs_difference difference = {.cosine = NAN};
    bool same = before->content == after->content;
    if (same && (diff->flags & LMCS_DIFF_SAME) == 0) {
        diff->report.same++;
        return LMCS_OK;
    }
    diff->is_there[0] = diff->is_there[1] = true;
    bool reads = !same && (diff->flags & LMCS_DIFF_NAMES) == 0;
    enum lmcs_status status = load_side(diff, 0, before, reads, error);
    if (status != LMCS_OK)
        return status;
    status = load_side(diff, 1, after, reads, error);
    if (status == LMCS_OK) {
        same = same || same_digest(diff);
        if (!same && reads)
            status = compare_pair(diff, &difference, error);
        if (reads)
            lmcs_chain_unpin(diff->pool, &diff->sides[1].chain);
    }
    if (reads)
        lmcs_chain_unpin(diff->pool, &diff->sides[0].chain);
    if (status == LMCS_OK)
        report(diff, same ? LMCS_SAME : LMCS_CHANGED, &difference);
    return status;
}

/* Finds the entry of the other snapshot with the name and kind of sides[from]. */
static enum lmcs_status find_namesake(struct diff *diff, int from, const struct item **found, struct lmcs_error *error)
{
    enum { SOME = 64 };
    const struct lmcs_identity *identity = &diff->sides[from].identity;
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    uint64_t ids[SOME], first = 0;
    size_t count = SOME;
    *found = NULL;
    enum lmcs_status status = lmcs_snapshot_enter(diff->snapshots[!from], &txn, &shelf, &record, error);
    if (status != LMCS_OK)
        return status;
    while (status == LMCS_OK && *found == NULL && count == SOME) {
        status = lmcs_identity_named(&txn, identity->df.kind, identity->name, first, ids, SOME, &count, error);
        for (size_t i = 0; status == LMCS_OK && *found == NULL && i < count; i++)
            *found = find_item(&diff->items[!from], ids[i]);
        first = count > 0 ? ids[count - 1] + 1 : 0;
        if (first == 0) /* past the largest number */
            break;
    }
    lmcs_txn_end(&txn);
    return status;
}

/* The other snapshot may have the name: a reshaped pair is reported once, with `after`. */
static enum lmcs_status diff_one(struct diff *diff, int which, const struct item *item, struct lmcs_error *error)
{
    struct lmcs_difference difference = {.cosine = NAN};
    const struct item *other;
    enum lmcs_status status = load_side(diff, which, item, false, error);
    if (status == LMCS_OK)
        status = find_namesake(diff, which, &other, error);
    if (status != LMCS_OK || (other != NULL && which == 0))
        return status;
    diff->is_there[which] = true;
    diff->is_there[!which] = other != NULL;
    if (other != NULL)
        status = load_side(diff, !which, other, false, error);
    if (status == LMCS_OK)
        report(diff, other != NULL ? LMCS_RESHAPED : which == 1 ? LMCS_ADDED : LMCS_REMOVED, &difference);
    return status;
}

static enum lmcs_status diff_all(struct diff *diff, struct lmcs_error *error)
{
    const struct items *before = &diff->items[0], *after = &diff->items[1];
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && !diff->stopped && i < after->count; i++) {
        const struct item *old = find_item(before, after->at[i].identity);
        status = old != NULL ? diff_both(diff, old, &after->at[i], error) : diff_one(diff, 1, &after->at[i], error);
        if (status == LMCS_OK && i % 1024 == 0)
            status = report_progress(diff, error);
    }
    for (size_t i = 0; status == LMCS_OK && !diff->stopped && i < before->count; i++)
        if (find_item(after, before->at[i].identity) == NULL)
            status = diff_one(diff, 0, &before->at[i], error);
    return status;
}

enum lmcs_status lmcs_snapshot_diff(struct lmcs_snapshot *before, struct lmcs_snapshot *after, uint32_t flags,
                                    bool (*visit)(void *context, const struct lmcs_difference *difference),
                                    void *context, const struct lmcs_progress *progress,
                                    struct lmcs_diff_report *report, struct lmcs_error *error)
{
    if (before->pool != after->pool)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "both snapshots must be of one pool: dump the one, and restore it beside the other");
    struct diff *diff = calloc(1, sizeof *diff);
    if (diff == NULL)
        return lmcs_fail_memory(error);
    diff->pool = before->pool;
    diff->snapshots[0] = before;
    diff->snapshots[1] = after;
    diff->flags = flags;
    diff->visit = visit;
    diff->context = context;
    diff->progress = progress;
    diff->total_bytes = after->info.raw_bytes;
    enum lmcs_status status = list_items(before, &diff->items[0], error);
    if (status == LMCS_OK)
        status = list_items(after, &diff->items[1], error);
    if (status == LMCS_OK)
        status = diff_all(diff, error);
    if (status == LMCS_OK && report != NULL)
        *report = diff->report;
    free(diff->items[0].at);
    free(diff->items[1].at);
    free(diff);
    return status;
}
