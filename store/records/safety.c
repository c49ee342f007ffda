/* SPDX-License-Identifier: BSD-3-Clause */
/* records/safety.c - lost blocks and parity. */
#include "records/safety.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pages/pool.h"
#include "pages/space.h"
#include "pages/tree.h"
#include "records/policy.h"

#define SAFETY      LMCS_TREE_SAFETY
#define ULL(n)      ((unsigned long long)(n))
#define MOST_LISTED 6u /* ranges in one message */

static size_t describe_range(struct lmcs_block_range range, uint32_t dtype, uint32_t ndim, const uint64_t *shape,
                             char *text, size_t room)
{
    uint64_t size = lmc_dtype_size(dtype), raw = 0, first = range.first * LMC_BLOCK_BYTES;
    uint64_t end = first + range.count * LMC_BLOCK_BYTES;
    if (size == 0 || !lmcs_shape_bytes(dtype, ndim, shape, &raw))
        return (size_t)snprintf(text, room, "bytes %llu to %llu", ULL(first), ULL(end - 1));
    end = end > raw ? raw : end;
    uint64_t from = first / size, to = end > first ? (end - 1) / size : from;
    uint64_t row = ndim > 1 && shape[0] > 0 ? raw / size / shape[0] : 0;
    if (first == 0 && end == raw)
        return (size_t)snprintf(text, room, "all of it (elements 0 to %llu)", ULL(to));
    if (row == 0)
        return (size_t)snprintf(text, room, "elements %llu to %llu of %llu", ULL(from), ULL(to), ULL(raw / size));
    return (size_t)snprintf(text, room, "rows %llu to %llu of %llu (elements %llu to %llu)", ULL(from / row),
                            ULL(to / row), ULL(shape[0]), ULL(from), ULL(to));
}

void lmcs_describe_blocks(const struct lmcs_block_range *ranges, size_t count, bool more, uint32_t dtype, uint32_t ndim,
                          const uint64_t *shape, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s", i > 0 ? ", " : "");
        if (used < text_bytes)
            used += describe_range(ranges[i], dtype, ndim, shape, text + used, text_bytes - used);
    }
    if (more && used < text_bytes)
        snprintf(text + used, text_bytes - used, ", and more");
}

/* ---- Losses ---- */

/* Lists up to `capacity` lost ranges, ascending; *more: there are others. */
static enum lmcs_status list_lost(struct lmcs_txn *txn, uint64_t content, struct lmcs_block_range *ranges,
                                  size_t capacity, size_t *count, bool *more, struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    *count = 0;
    *more = false;
    if (txn->root.trees[SAFETY].count == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_root_open(&cursor, txn, SAFETY, (struct lmcs_key_df){content, 1}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == content) {
        struct lmcs_lost_df df;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        if (*count == capacity) {
            *more = true;
            break;
        }
        if (bytes != sizeof df) {
            status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the lost blocks of content %llu",
                               txn->pool->path, ULL(content));
            break;
        }
        memcpy(&df, value, sizeof df);
        ranges[(*count)++] = (struct lmcs_block_range){lmcs_cursor_key(cursor).low - 1, df.blocks};
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_lost_any(struct lmcs_txn *txn, uint64_t content, bool *any, struct lmcs_error *error)
{
    struct lmcs_block_range range;
    size_t count = 0;
    bool more;
    enum lmcs_status status =
        txn->root.lost_contents == 0 ? LMCS_OK : list_lost(txn, content, &range, 1, &count, &more, error);
    *any = count > 0;
    return status;
}

enum lmcs_status lmcs_lost_check(struct lmcs_txn *txn, const struct lmcs_content *content, const char *name,
                                 const struct lmcs_identity *identity, struct lmcs_error *error)
{
    struct lmcs_block_range ranges[MOST_LISTED];
    size_t count = 0;
    bool more = false;
    char text[512];
    if (txn->root.lost_contents == 0)
        return LMCS_OK;
    enum lmcs_status status = list_lost(txn, content->id, ranges, MOST_LISTED, &count, &more, error);
    if (status != LMCS_OK || count == 0)
        return status;
    lmcs_describe_blocks(ranges, count, more, identity->df.dtype, identity->df.ndim, identity->shape, text,
                         sizeof text);
    return lmcs_fail(error, LMCS_DAMAGED, 0,
                     "%s: tensor \"%s\" is damaged: %s: lost, as a scrub found; the rest can be read", txn->pool->path,
                     name, text);
}

static enum lmcs_status delete_keys(struct lmcs_txn *txn, uint64_t content, uint64_t from, uint64_t *deleted,
                                    struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    *deleted = 0;
    if (txn->root.trees[SAFETY].count == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    while (status == LMCS_OK) {
        status = lmcs_root_seek(cursor, txn, SAFETY, (struct lmcs_key_df){content, from}, error);
        if (status != LMCS_OK || !lmcs_cursor_valid(cursor) || lmcs_cursor_key(cursor).high != content)
            break;
        status = lmcs_root_delete(txn, SAFETY, lmcs_cursor_key(cursor), NULL, error);
        ++*deleted;
    }
    lmcs_cursor_free(cursor);
    return status;
}

static enum lmcs_status put_lost(struct lmcs_txn *txn, uint64_t content, const unsigned char *bad, uint64_t blocks,
                                 uint64_t *put, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    struct lmcs_lost_df df = {.found_ns = lmcs_now_ns()};
    *put = 0;
    for (uint64_t i = 0; status == LMCS_OK && bad != NULL && i < blocks; i += df.blocks) {
        for (df.blocks = 0; i + df.blocks < blocks && bad[i + df.blocks] != 0; df.blocks++)
            continue;
        if (df.blocks == 0) {
            df.blocks = 1;
            continue;
        }
        status = lmcs_root_put(txn, SAFETY, (struct lmcs_key_df){content, 1 + i}, &df, sizeof df, error);
        ++*put;
    }
    return status;
}

/* Whether exactly these blocks are recorded. */
static enum lmcs_status is_noted(struct lmcs_txn *txn, uint64_t content, const unsigned char *bad, uint64_t blocks,
                                 bool *noted, struct lmcs_error *error)
{
    struct lmcs_block_range ranges[64];
    size_t count = 0;
    bool more = false;
    uint64_t at = 0;
    enum lmcs_status status = list_lost(txn, content, ranges, 64, &count, &more, error);
    *noted = !more;
    for (size_t i = 0; status == LMCS_OK && *noted && i < count; i++) {
        for (; at < ranges[i].first && at < blocks; at++)
            *noted &= bad == NULL || bad[at] == 0;
        for (uint64_t n = 0; n < ranges[i].count && *noted; n++, at++)
            *noted &= at < blocks && bad != NULL && bad[at] != 0;
    }
    for (; *noted && bad != NULL && at < blocks; at++)
        *noted &= bad[at] == 0;
    return status;
}

enum lmcs_status lmcs_lost_set(struct lmcs_txn *txn, uint64_t content, const unsigned char *bad, uint64_t blocks,
                               bool *changed, struct lmcs_error *error)
{
    uint64_t before = 0, now = 0;
    bool noted;
    enum lmcs_status status = is_noted(txn, content, bad, blocks, &noted, error);
    if (changed != NULL)
        *changed = !noted;
    if (status != LMCS_OK || noted)
        return status;
    status = delete_keys(txn, content, 1, &before, error);
    if (status == LMCS_OK)
        status = put_lost(txn, content, bad, blocks, &now, error);
    txn->root.lost_contents += (uint64_t)(now > 0);
    txn->root.lost_contents -= (uint64_t)(before > 0);
    return status;
}

enum lmcs_status lmcs_lost_list(struct lmcs_txn *txn, uint64_t **ids, size_t *count, struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    size_t most = txn->root.lost_contents < LMCS_MAX_TENSORS ? (size_t)txn->root.lost_contents : LMCS_MAX_TENSORS;
    *count = 0;
    *ids = calloc(most + 1, sizeof **ids);
    if (*ids == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_cursor_new(&cursor, error);
    if (status != LMCS_OK)
        return status;
    if (most > 0)
        status = lmcs_root_seek(cursor, txn, SAFETY, (struct lmcs_key_df){1, 0}, error);
    while (most > 0 && status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        struct lmcs_key_df key = lmcs_cursor_key(cursor);
        if (key.low != 0 && *count < most && (*count == 0 || (*ids)[*count - 1] != key.high))
            (*ids)[(*count)++] = key.high;
        status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_parity_find(struct lmcs_txn *txn, uint64_t content, struct lmcs_parity_record *parity,
                                  bool *found, struct lmcs_error *error)
{
    size_t bytes;
    const struct lmcs_parity_df *df = &parity->df;
    *found = false;
    if (txn->root.trees[SAFETY].count == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_root_get(txn, SAFETY, (struct lmcs_key_df){content, 0}, parity, sizeof parity->df,
                                            sizeof *parity, &bytes, found, error);
    if (status != LMCS_OK || !*found)
        return status;
    uint64_t end = lmcs_media_bytes(txn->pool->media);
    bool sound = df->part_count <= LMCS_MAX_PARTS &&
                 bytes == sizeof *df + df->part_count * sizeof(struct lmcs_part_df) && df->data > 0 &&
                 df->data <= LMCS_MAX_PARITY_DATA && df->parity > 0 && df->parity <= LMCS_MAX_PARITY &&
                 df->unit_bytes >= 64 && df->unit_bytes <= LMCS_PAGE_BYTES && df->unit_bytes % 64 == 0;
    for (size_t i = 0; sound && i < df->part_count; i++)
        sound = parity->parts[i].bytes > 0 && parity->parts[i].offset < end &&
                parity->parts[i].bytes <= end - parity->parts[i].offset;
    return sound ? LMCS_OK
                 : lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the parity of content %llu",
                             txn->pool->path, ULL(content));
}

enum lmcs_status lmcs_parity_drop(struct lmcs_txn *txn, uint64_t content, bool *found, struct lmcs_error *error)
{
    struct lmcs_parity_record old;
    enum lmcs_status status = lmcs_parity_find(txn, content, &old, found, error);
    if (status != LMCS_OK || !*found)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < old.df.part_count; i++) {
        txn->root.parity_bytes -= lmcs_room(old.parts[i].bytes);
        status = lmcs_space_retire(txn, old.parts[i].offset, old.parts[i].bytes, error);
    }
    return status == LMCS_OK ? lmcs_root_delete(txn, SAFETY, (struct lmcs_key_df){content, 0}, NULL, error) : status;
}

enum lmcs_status lmcs_parity_put(struct lmcs_txn *txn, uint64_t content, const struct lmcs_parity_record *parity,
                                 struct lmcs_error *error)
{
    bool found;
    enum lmcs_status status = lmcs_parity_drop(txn, content, &found, error);
    for (size_t i = 0; status == LMCS_OK && i < parity->df.part_count; i++) {
        txn->root.parity_bytes += lmcs_room(parity->parts[i].bytes);
        status =
            lmcs_space_add(txn, parity->parts[i].offset, parity->parts[i].bytes, content | LMCS_SPACE_PARITY, error);
    }
    return status == LMCS_OK ? lmcs_root_put(txn, SAFETY, (struct lmcs_key_df){content, 0}, parity,
                                             sizeof parity->df + parity->df.part_count * sizeof parity->parts[0], error)
                             : status;
}

/* Units that a bad page may touch; payloads begin at multiples of 64. */
static uint64_t touched_by_page(uint64_t unit)
{
    return (LMCS_PAGE_BYTES - 64) / unit + 2;
}

/*
 * Payloads of several stripes have units of a page: a bad page touches two, of different stripes. Smaller ones have one
 * stripe, and as many units of parity as a bad page touches; the cheapest of a few sizes of units is chosen.
 */
struct lmcs_wanted_df lmcs_parity_by_size(uint64_t stored_bytes)
{
    const uint64_t hashes = 2 * sizeof(uint64_t); /* of a unit, in both tables */
    if (stored_bytes > (uint64_t)LMCS_MAX_PARITY_DATA * LMCS_PAGE_BYTES)
        return (struct lmcs_wanted_df){LMCS_MAX_PARITY_DATA, 1};
    if (stored_bytes <= 64)
        return (struct lmcs_wanted_df){1, 1};
    struct lmcs_wanted_df best = {2, 2}; /* a copy */
    uint64_t least = stored_bytes + 2 * 64 + 4 * hashes;
    for (uint64_t most = 512; most <= LMCS_PAGE_BYTES; most *= 2) {
        uint64_t data = (stored_bytes + most - 1) / most;
        uint64_t unit = ((stored_bytes + data - 1) / data + 63) & ~(uint64_t)63, parity = touched_by_page(unit);
        uint64_t cost = parity * unit + (data + parity) * hashes;
        if (data <= LMCS_MAX_PARITY_DATA && parity <= LMCS_MAX_PARITY && cost < least) {
            best = (struct lmcs_wanted_df){(uint32_t)data, (uint32_t)parity};
            least = cost;
        }
    }
    return best;
}

static bool is_by_size(struct lmcs_wanted_df wanted, uint64_t stored_bytes)
{
    struct lmcs_wanted_df by_size = lmcs_parity_by_size(stored_bytes);
    return wanted.data == by_size.data && wanted.parity == by_size.parity;
}

enum lmcs_status lmcs_parity_want(struct lmcs_txn *txn, uint64_t content, uint32_t data, uint32_t parity,
                                  struct lmcs_error *error)
{
    struct lmcs_wanted_df df = {data, parity};
    struct lmcs_key_df key = {0, content};
    bool found;
    if (data > 0)
        return lmcs_root_put(txn, SAFETY, key, &df, sizeof df, error);
    return txn->root.trees[SAFETY].count == 0 ? LMCS_OK : lmcs_root_delete(txn, SAFETY, key, &found, error);
}

enum lmcs_status lmcs_parity_wanted(struct lmcs_txn *txn, uint64_t content, struct lmcs_wanted_df *wanted, bool *found,
                                    struct lmcs_error *error)
{
    *found = false;
    return txn->root.trees[SAFETY].count == 0 ? LMCS_OK
                                              : lmcs_root_get(txn, SAFETY, (struct lmcs_key_df){0, content}, wanted,
                                                              sizeof *wanted, sizeof *wanted, NULL, found, error);
}

/* Finds the geometry of a content's parity, or the one that it wants. */
static enum lmcs_status find_geometry(struct lmcs_txn *txn, uint64_t content, struct lmcs_wanted_df *geometry,
                                      bool *found, struct lmcs_error *error)
{
    struct lmcs_parity_record parity;
    enum lmcs_status status = lmcs_parity_wanted(txn, content, geometry, found, error);
    if (status != LMCS_OK || *found)
        return status;
    status = lmcs_parity_find(txn, content, &parity, found, error);
    if (status == LMCS_OK && *found)
        *geometry = (struct lmcs_wanted_df){parity.df.data, parity.df.parity};
    return status;
}

enum lmcs_status lmcs_safety_renew(struct lmcs_txn *txn, uint64_t content, uint64_t old_bytes, uint64_t new_bytes,
                                   struct lmcs_error *error)
{
    struct lmcs_wanted_df wanted;
    bool found, dropped;
    enum lmcs_status status = lmcs_lost_set(txn, content, NULL, 0, NULL, error);
    if (status == LMCS_OK)
        status = find_geometry(txn, content, &wanted, &found, error);
    if (status != LMCS_OK || !found)
        return status;
    if (is_by_size(wanted, old_bytes))
        wanted = lmcs_parity_by_size(new_bytes);
    status = lmcs_parity_drop(txn, content, &dropped, error);
    return status == LMCS_OK ? lmcs_parity_want(txn, content, wanted.data, wanted.parity, error) : status;
}

enum lmcs_status lmcs_parity_give_way(struct lmcs_txn *txn, uint64_t content, bool *gone, struct lmcs_error *error)
{
    struct lmcs_parity_record parity;
    enum lmcs_status status = lmcs_parity_find(txn, content, &parity, gone, error);
    if (status != LMCS_OK || !*gone)
        return status;
    const struct lmcs_wanted_df wanted = {parity.df.data, parity.df.parity};
    *gone = is_by_size(wanted, parity.df.stored_bytes);
    if (*gone)
        status = lmcs_parity_drop(txn, content, gone, error);
    return status == LMCS_OK && *gone ? lmcs_parity_want(txn, content, wanted.data, wanted.parity, error) : status;
}

enum lmcs_status lmcs_parity_hand_on(struct lmcs_txn *txn, const struct lmcs_content *content,
                                     const struct lmcs_content *heir, bool by_size, struct lmcs_error *error)
{
    struct lmcs_wanted_df wanted, known;
    bool found, has = false;
    enum lmcs_status status = find_geometry(txn, content->id, &wanted, &found, error);
    bool follows_size = status == LMCS_OK && found && is_by_size(wanted, content->df.stored_bytes);
    if (status != LMCS_OK || !found || (by_size && !follows_size))
        return status;
    if (follows_size)
        wanted = lmcs_parity_by_size(heir->df.stored_bytes);
    status = find_geometry(txn, heir->id, &known, &has, error);
    const bool suits = has && (follows_size || !is_by_size(known, heir->df.stored_bytes));
    return status == LMCS_OK && !suits ? lmcs_parity_want(txn, heir->id, wanted.data, wanted.parity, error) : status;
}

enum lmcs_status lmcs_safety_end(struct lmcs_txn *txn, uint64_t content, struct lmcs_error *error)
{
    bool found;
    if (txn->root.trees[SAFETY].count == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_lost_set(txn, content, NULL, 0, NULL, error);
    if (status == LMCS_OK)
        status = lmcs_parity_drop(txn, content, &found, error);
    return status == LMCS_OK ? lmcs_parity_want(txn, content, 0, 0, error) : status;
}
