/* SPDX-License-Identifier: BSD-3-Clause */
/* live/undo.c - the undo journal of declared transactions, for media whose pages can't be private. */
#include <stdlib.h>

#include "base/grow.h"
#include "live/journal.h"

enum lmcs_status lmcs_undo_begin(struct lmcs_pool *pool, uint64_t limit_bytes, uint64_t *sequence,
                                 struct lmcs_error *error)
{
    struct lmcs_page_range_df range = lmcs_journal_range(pool, LMCS_JOURNAL_UNDO);
    enum lmcs_status status = LMCS_OK;
    if (range.end - range.next < limit_bytes)
        status = lmcs_journal_reserve(pool, LMCS_JOURNAL_UNDO, limit_bytes, error);
    /* find_entries must find its end within file space. */
    if (status == LMCS_OK)
        status = lmcs_journal_make_room(pool, LMCS_JOURNAL_UNDO, LMCS_LEAST_JOURNAL, error);
    if (status != LMCS_OK)
        return status;
    *sequence = ++pool->live->sequence;
    struct lmcs_journal_df header = {.sequence = *sequence};
    return lmcs_journal_write_header(pool, LMCS_JOURNAL_UNDO, &header, error);
}

enum lmcs_status lmcs_undo_add(struct lmcs_pool *pool, uint64_t sequence, const struct lmcs_journaled *entry,
                               uint64_t *at, struct lmcs_error *error)
{
    struct lmcs_page_range_df range = lmcs_journal_range(pool, LMCS_JOURNAL_UNDO);
    struct lmcs_journal_entry_df df = {entry->place, entry->bytes, sequence, 0};
    uint64_t room = lmcs_journal_entry_room(sizeof df + entry->bytes), used = LMCS_PAGE_BYTES + *at;
    if (room > range.end - range.next - used)
        return lmcs_fail_full(error, entry->bytes, range.end - range.next - used, 0,
                              "%s: the transaction can't save another %llu bytes: its limit is %llu", pool->path,
                              (unsigned long long)entry->bytes, (unsigned long long)(range.end - range.next));
    uint64_t place = range.next + used;
    enum lmcs_status status = lmcs_journal_make_room(pool, LMCS_JOURNAL_UNDO, used + room, error);
    if (status == LMCS_OK)
        status = lmcs_heap_write(pool->heap, place + sizeof df, entry->data, entry->bytes, error);
    if (status == LMCS_OK) { /* of the copy, as in redo.c */
        df.check = lmcs_journal_entry_check(&df, lmcs_heap_at(pool->heap, place + sizeof df));
        status = lmcs_heap_write(pool->heap, place, &df, sizeof df, error);
    }
    if (status == LMCS_OK)
        status = lmcs_heap_sync(pool->heap, error);
    if (status == LMCS_OK)
        *at += room;
    return status;
}

/* Lists the entries; the first bytes that are no entry of the sequence end them. */
static enum lmcs_status find_entries(struct lmcs_pool *pool, uint64_t sequence, uint64_t **places, size_t *count,
                                     struct lmcs_error *error)
{
    struct lmcs_page_range_df range = lmcs_journal_range(pool, LMCS_JOURNAL_UNDO);
    size_t capacity = 0;
    uint64_t at = range.next + LMCS_PAGE_BYTES;
    struct lmcs_journal_entry_df df;
    *count = 0;
    *places = NULL;
    while (range.end - at >= sizeof df) {
        enum lmcs_status status = lmcs_media_read(pool->media, at, &df, sizeof df, error);
        if (status != LMCS_OK)
            return status;
        if (df.sequence != sequence || df.bytes > range.end - at - sizeof df)
            return LMCS_OK;
        void *data = malloc(df.bytes + 1);
        if (data == NULL)
            return lmcs_fail_memory(error);
        status = lmcs_media_read(pool->media, at + sizeof df, data, df.bytes, error);
        bool whole = status == LMCS_OK && df.check == lmcs_journal_entry_check(&df, data);
        free(data);
        if (status != LMCS_OK || !whole)
            return status;
        if (!lmcs_grow(places, &capacity, *count, sizeof **places))
            return lmcs_fail_memory(error);
        (*places)[(*count)++] = at;
        at += lmcs_journal_entry_room(sizeof df + df.bytes);
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_undo_roll_back(struct lmcs_pool *pool, uint64_t sequence, struct lmcs_error *error)
{
    uint64_t *places;
    size_t count;
    enum lmcs_status status = find_entries(pool, sequence, &places, &count, error);
    for (size_t i = count; status == LMCS_OK && i-- > 0;) {
        struct lmcs_journal_entry_df df;
        status = lmcs_media_read(pool->media, places[i], &df, sizeof df, error);
        if (status == LMCS_OK)
            status = lmcs_journal_apply_entry(pool, &df, places[i] + sizeof df, error);
    }
    free(places);
    if (status == LMCS_OK)
        status = lmcs_heap_sync(pool->heap, error);
    return status == LMCS_OK ? lmcs_journal_clear(pool, LMCS_JOURNAL_UNDO, error) : status;
}

enum lmcs_status lmcs_undo_check(struct lmcs_pool *pool, uint64_t sequence, struct lmcs_error *error)
{
    uint64_t *places;
    size_t count;
    enum lmcs_status status = find_entries(pool, sequence, &places, &count, error);
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        struct lmcs_journal_entry_df df;
        status = lmcs_media_read(pool->media, places[i], &df, sizeof df, error);
        if (status == LMCS_OK)
            status = lmcs_journal_check_entry(pool, &df, places[i] + sizeof df, error);
    }
    free(places);
    return status;
}
