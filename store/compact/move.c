/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/move.c - returns space: releases retired ranges, and empties nearly dead extents. */
#include <stdlib.h>
#include <string.h>

#include "compact/round.h"
#include "pages/space.h"
#include "pages/tree.h"

#define RELEASE_AT_ONCE 4096u

enum lmcs_status lmcs_round_release(struct lmcs_round *round, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    size_t done = 0;
    enum lmcs_status status = lmcs_txn_write(round->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_space_release(&txn, RELEASE_AT_ONCE, &done, error);
    if (status == LMCS_OK && done > 0)
        status = lmcs_txn_commit(&txn, error);
    else
        lmcs_txn_end(&txn);
    round->worked |= status == LMCS_OK && done > 0;
    return status;
}

static enum lmcs_status collect_living(struct lmcs_round *round, uint64_t first, uint64_t end, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    round->count = 0;
    enum lmcs_status status = lmcs_txn_read(round->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_root_open(&cursor, &txn, LMCS_TREE_SPACE, (struct lmcs_key_df){first, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high < end) {
        struct lmcs_space_df df;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        if (bytes != sizeof df) {
            status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the payload at offset %llu",
                               round->pool->path, (unsigned long long)lmcs_cursor_key(cursor).high);
            break;
        }
        memcpy(&df, value, sizeof df);
        status = lmcs_round_add(round, &(struct lmcs_candidate){.content = df.content}, error);
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return status;
}

/* Moves a content only if its payload is in the extent: with a wrong entry in the map of space, it would be moved again
 * and again. */
static enum lmcs_status move_one(struct lmcs_round *round, struct lmcs_batch *batch, uint64_t content, uint64_t first,
                                 uint64_t end, struct lmcs_error *error)
{
    struct lmcs_replace *replace = calloc(1, sizeof *replace);
    if (replace == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status =
        lmcs_replace_begin(replace, round->pool, &batch->region, content, 0, round->background, error);
    bool begun = status == LMCS_OK;
    /* moving a payload of several parts would leave other extents sparse */
    bool movable = begun && replace->chain.links[0].df.part_count == 1 &&
                   replace->chain.links[0].parts[0].offset >= first && replace->chain.links[0].parts[0].offset < end;
    if (movable)
        status = lmcs_replace_copy(replace, error);
    if (!movable || status != LMCS_OK) {
        if (begun)
            lmcs_replace_end(replace);
        free(replace);
        return lmcs_round_skips(round, content, status) ? LMCS_OK : status;
    }
    batch->items[batch->count++] = replace;
    return LMCS_OK;
}

static enum lmcs_status empty_extent(struct lmcs_round *round, uint64_t first, uint64_t end, size_t *moved,
                                     struct lmcs_error *error)
{
    enum lmcs_status status = collect_living(round, first, end, error);
    struct lmcs_batch batch = {.count = 0};
    *moved = 0;
    for (size_t i = 0; status == LMCS_OK && i < round->count;) {
        lmcs_region_init(&batch.region, round->pool, 1);
        for (; status == LMCS_OK && i < round->count && batch.count < LMCS_BATCH_CONTENTS; i++) {
            uint64_t content = round->candidates[i].content;
            status = (content & LMCS_SPACE_PARITY) != 0
                         ? lmcs_parity_move(round->pool, content & ~LMCS_SPACE_PARITY, first, end, moved, error)
                         : move_one(round, &batch, content, first, end, error);
        }
        const uint64_t before = round->swapped;
        if (status == LMCS_OK && batch.count > 0)
            status = lmcs_batch_swap(round, &batch, false, error);
        *moved += round->swapped - before;
        lmcs_batch_end(&batch);
        lmcs_throttle_hold(&round->throttle, 0, 0);
    }
    return status;
}

enum lmcs_status lmcs_round_move(struct lmcs_round *round, struct lmcs_error *error)
{
    uint64_t first, end = 0;
    size_t moved = 0;
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && moved == 0 && lmcs_space_sparse(round->pool, end, &first, &end))
        status = lmcs_round_pass_over(round, empty_extent(round, first, end, &moved, error), error);
    round->worked |= status == LMCS_OK && moved > 0;
    return status;
}
