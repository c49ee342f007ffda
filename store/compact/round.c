/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/round.c - shared by the kinds of work of a round: stopping, skipping damage, batches. */
#include "compact/round.h"

#include <stdlib.h>

#include "base/grow.h"
#include "pages/space.h"

enum lmcs_status lmcs_round_go_on(struct lmcs_round *round, uint64_t done, uint64_t total, struct lmcs_error *error)
{
    const struct lmcs_progress *progress = round->progress;
    if (!lmcs_throttle_go_on(&round->throttle))
        return LMCS_CANCELLED;
    if (progress != NULL && progress->call != NULL && !progress->call(progress->context, "compacting", done, total))
        return lmcs_fail(error, LMCS_CANCELLED, 0, "%s: compaction was stopped; finished work stays",
                         round->pool->path);
    return LMCS_OK;
}

void lmcs_round_hold(struct lmcs_round *round, uint64_t bytes)
{
    lmcs_throttle_hold(&round->throttle, round->outlook.rate_bytes, bytes);
}

/* Without rests: the next capture would do the same work, and its caller would wait. */
static bool prepare_may_go_on(void *context)
{
    struct lmcs_round *round = context;
    return lmcs_throttle_go_on(&round->throttle);
}

enum lmcs_status lmcs_round_prepare(struct lmcs_round *round, struct lmcs_error *error)
{
    return round->background ? lmcs_space_prepare(round->pool, prepare_may_go_on, round, error) : LMCS_OK;
}

void lmcs_round_suspect(void *context, uint64_t content)
{
    struct lmcs_round *round = context;
    for (size_t i = 0; i < round->suspect_count; i++)
        if (round->suspects[i] == content)
            return;
    if (round->suspect_count < LMCS_MOST_SUSPECTS)
        round->suspects[round->suspect_count++] = content;
}

enum lmcs_status lmcs_round_repair(struct lmcs_round *round, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < round->suspect_count; i++) {
        status = round->compactor->repair(round->pool, round->suspects[i], error);
        if (lmcs_is_unusable(status) || status == LMCS_FULL)
            status = LMCS_OK;
    }
    round->suspect_count = 0;
    return status;
}

bool lmcs_round_skips(struct lmcs_round *round, uint64_t content, enum lmcs_status status)
{
    if (status == LMCS_DAMAGED)
        lmcs_round_suspect(round, content);
    return lmcs_is_unusable(status) || status == LMCS_NOT_FOUND;
}

enum lmcs_status lmcs_round_pass_over(struct lmcs_round *round, enum lmcs_status status, const struct lmcs_error *error)
{
    return lmcs_pass_over(&round->passed, status, error);
}

enum lmcs_status lmcs_round_pass_over_shelf(struct lmcs_round *round, uint64_t shelf_id, enum lmcs_status status,
                                            struct lmcs_error *error)
{
    return lmcs_shelf_pass_over(round->pool, shelf_id, &round->passed, status, error);
}

enum lmcs_status lmcs_unless_full(enum lmcs_status status)
{
    return status == LMCS_FULL ? LMCS_OK : status;
}

enum lmcs_status lmcs_round_add(struct lmcs_round *round, const struct lmcs_candidate *candidate,
                                struct lmcs_error *error)
{
    if (!lmcs_grow(&round->candidates, &round->capacity, round->count, sizeof *round->candidates))
        return lmcs_fail_memory(error);
    round->candidates[round->count++] = *candidate;
    return LMCS_OK;
}

void lmcs_batch_end(struct lmcs_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        lmcs_replace_end(batch->items[i]);
        free(batch->items[i]);
    }
    batch->count = 0;
    batch->bytes = 0;
    lmcs_region_end(&batch->region);
}

/* Switches all items in one transaction. LMCS_DAMAGED, LMCS_UNSUPPORTED: *bad is the item with unusable records, or
 * SIZE_MAX. */
static enum lmcs_status try_swap(struct lmcs_round *round, struct lmcs_batch *batch, size_t *bad,
                                 struct lmcs_error *error)
{
    struct lmcs_txn txn;
    uint64_t swapped = 0;
    enum lmcs_status status = lmcs_txn_write(round->pool, &txn, error);
    *bad = SIZE_MAX;
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < batch->count; i++) {
        bool done;
        status = lmcs_replace_swap(&txn, batch->items[i], &done, error);
        swapped += done && batch->items[i]->worthwhile;
        if (lmcs_is_unusable(status))
            *bad = i;
    }
    if (status == LMCS_OK)
        status = lmcs_region_commit(&txn, &batch->region, error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    status = lmcs_txn_commit(&txn, error);
    round->swapped += status == LMCS_OK ? swapped : 0;
    round->compactor->replaced += status == LMCS_OK ? swapped : 0;
    return status;
}

enum lmcs_status lmcs_batch_swap(struct lmcs_round *round, struct lmcs_batch *batch, bool whole,
                                 struct lmcs_error *error)
{
    size_t bad = SIZE_MAX;
    enum lmcs_status status = lmcs_heap_sync(round->pool->heap, error);
    if (status == LMCS_OK)
        status = try_swap(round, batch, &bad, error);
    while (lmcs_is_unusable(status) && bad != SIZE_MAX) {
        (void)lmcs_round_skips(round, batch->items[bad]->made.id, status);
        if (whole)
            return LMCS_OK;
        lmcs_replace_end(batch->items[bad]);
        free(batch->items[bad]);
        batch->items[bad] = batch->items[--batch->count];
        status = try_swap(round, batch, &bad, error);
    }
    return status;
}

/* Makes the two newest links suspects: the newest one is freed once no content is stored by it; the repair of the other
 * scans the payloads below. */
static void suspect_line(struct lmcs_round *round, const struct lmcs_chain *line)
{
    const size_t count = line->line > 1 ? 2 : line->length;
    for (size_t i = 0; i < count; i++)
        lmcs_round_suspect(round, line->links[i].id);
}

enum lmcs_status lmcs_batch_encode(struct lmcs_round *round, struct lmcs_batch *batch,
                                   const struct lmcs_candidate *candidate, struct lmcs_error *error)
{
    struct lmcs_replace *replace = calloc(1, sizeof *replace);
    if (replace == NULL)
        return lmcs_fail_memory(error);
    replace->chain_bound = candidate->chain;
    replace->successor = candidate->successor;
    replace->place = candidate->place;
    replace->known = &round->compactor->known_lines;
    replace->known_since_ns = round->since_ns;
    enum lmcs_status status = lmcs_replace_begin(replace, round->pool, &batch->region, candidate->content,
                                                 candidate->base, round->background, error);
    if (status != LMCS_OK) {
        free(replace);
        return lmcs_round_skips(round, candidate->content, status) ? LMCS_OK : status;
    }
    bool linked = false;
    status = replace->has_base ? LMCS_OK : lmcs_replace_linked(replace, &linked, error);
    if (replace->line_is_damaged)
        suspect_line(round, &replace->base);
    if (status == LMCS_OK && !linked)
        status = lmcs_replace_encode(replace, error);
    if (lmcs_is_unusable(status) && replace->has_base) { /* the damage may be the base's: encode without it */
        (void)lmcs_round_skips(round, candidate->base, status);
        lmcs_replace_alone(replace);
        status = lmcs_replace_encode(replace, error);
    }
    if (status != LMCS_OK) {
        lmcs_replace_end(replace);
        free(replace);
        return lmcs_round_skips(round, candidate->content, status) ? LMCS_OK : status;
    }
    batch->items[batch->count++] = replace;
    batch->bytes += replace->made.df.raw_bytes;
    return LMCS_OK;
}

/* Adds the contents of the batch that the swap refused, to encode them alone. */
static enum lmcs_status add_refused(struct lmcs_round *round, const struct lmcs_batch *batch, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < batch->count; i++) {
        const struct lmcs_replace *replace = batch->items[i];
        const struct lmcs_candidate alone = {.content = replace->made.id,
                                             .successor = replace->successor,
                                             .place = replace->place,
                                             .chain = replace->chain_bound};
        if (replace->is_refused && replace->made.df.base_count > 0)
            status = lmcs_round_add(round, &alone, error);
    }
    return status;
}

enum lmcs_status lmcs_round_encode(struct lmcs_round *round, struct lmcs_error *error)
{
    struct lmcs_batch batch = {.count = 0};
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < round->count;) {
        lmcs_region_init(&batch.region, round->pool, 1);
        while (status == LMCS_OK && i < round->count && batch.count < LMCS_BATCH_CONTENTS &&
               batch.bytes < LMCS_BATCH_BYTES) {
            status = lmcs_round_go_on(round, i, round->count, error);
            if (status == LMCS_OK)
                status = lmcs_round_prepare(round, error);
            if (status == LMCS_OK)
                status = lmcs_batch_encode(round, &batch, &round->candidates[i], error);
            if (status == LMCS_OK && batch.count > 0)
                lmcs_round_hold(round, batch.items[batch.count - 1]->made.df.raw_bytes);
            i += status == LMCS_OK;
        }
        if (status == LMCS_FULL && batch.count > 0)
            status = LMCS_OK; /* swapping frees room for the next batch */
        if (batch.count > 0 && (status == LMCS_OK || status == LMCS_CANCELLED)) {
            const uint64_t before = round->swapped;
            enum lmcs_status swapped = lmcs_batch_swap(round, &batch, false, error);
            round->worked |= round->swapped > before;
            if (swapped == LMCS_OK)
                swapped = add_refused(round, &batch, error);
            status = swapped != LMCS_OK ? swapped : status;
        }
        lmcs_batch_end(&batch);
    }
    return status;
}
