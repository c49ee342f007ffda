/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/redo.c - the redo journal: bytes, and the places where they belong.
 *
 * The entries, the header, the bytes in their places and the cleared header become durable in this order (LIVE.md). The
 * header commits, or, if records change in the same step, the root that names its sequence.
 */
#include <stdlib.h>

#include "live/journal.h"

#define MOST_ENTRIES ((uint64_t)1 << 30)

static uint64_t table_room(size_t count)
{
    return lmcs_page_up(count * sizeof(struct lmcs_journal_entry_df));
}

static enum lmcs_status write_entries(struct lmcs_pool *pool, uint64_t place, const struct lmcs_journaled *entries,
                                      size_t count, uint64_t sequence, struct lmcs_journal_df *header,
                                      struct lmcs_error *error)
{
    uint64_t table_bytes = count * sizeof(struct lmcs_journal_entry_df), at = place + table_room(count);
    struct lmcs_journal_entry_df *table = malloc(table_bytes + 1);
    enum lmcs_status status = table == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        table[i] = (struct lmcs_journal_entry_df){entries[i].place, entries[i].bytes, sequence, 0};
        status = lmcs_heap_write(pool->heap, at, entries[i].data, entries[i].bytes, error);
        if (status == LMCS_OK) /* of the copy: another thread may store to the page by mistake */
            table[i].check = lmcs_journal_entry_check(&table[i], lmcs_heap_at(pool->heap, at));
        at += lmcs_journal_entry_room(entries[i].bytes);
    }
    if (status == LMCS_OK)
        status = lmcs_heap_write(pool->heap, place, table, table_bytes, error);
    if (status == LMCS_OK)
        header->table_check = lmc_hash64(table, table_bytes, sequence);
    free(table);
    return status;
}

enum lmcs_status lmcs_journal_write(struct lmcs_pool *pool, const struct lmcs_journaled *entries, size_t count,
                                    bool with_root, uint64_t *sequence, struct lmcs_error *error)
{
    uint64_t bytes = LMCS_PAGE_BYTES + table_room(count);
    for (size_t i = 0; i < count; i++)
        bytes += lmcs_journal_entry_room(entries[i].bytes);
    enum lmcs_status status = lmcs_journal_make_room(pool, LMCS_JOURNAL_REDO, bytes, error);
    if (status != LMCS_OK)
        return status;
    if (*sequence == 0)
        *sequence = ++pool->live->sequence;
    struct lmcs_journal_df header = {
        .flags = with_root ? LMCS_JOURNAL_ROOT : 0, .sequence = *sequence, .entries = count};
    uint64_t place = lmcs_journal_range(pool, LMCS_JOURNAL_REDO).next + LMCS_PAGE_BYTES;
    status = write_entries(pool, place, entries, count, *sequence, &header, error);
    if (status == LMCS_OK)
        status = lmcs_heap_sync(pool->heap, error);
    return status == LMCS_OK ? lmcs_journal_write_header(pool, LMCS_JOURNAL_REDO, &header, error) : status;
}

enum lmcs_status lmcs_journal_finish(struct lmcs_pool *pool, const struct lmcs_journaled *entries, size_t count,
                                     struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = lmcs_heap_write(pool->heap, entries[i].place, entries[i].data, entries[i].bytes, error);
    if (status == LMCS_OK)
        status = lmcs_heap_sync(pool->heap, error);
    return status == LMCS_OK ? lmcs_journal_clear(pool, LMCS_JOURNAL_REDO, error) : status;
}

void lmcs_journal_take_back(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_error ignored;
    if (pool->live->journals[LMCS_JOURNAL_REDO].end != 0 &&
        lmcs_journal_clear(pool, LMCS_JOURNAL_REDO, &ignored) != LMCS_OK)
        lmcs_live_doubt(pool, error);
}

enum lmcs_status lmcs_journal_each(struct lmcs_pool *pool, const struct lmcs_journal_df *header,
                                   lmcs_journal_work *work, struct lmcs_error *error)
{
    static const char wrong[] = "wrong checksum of its table";
    struct lmcs_page_range_df range = lmcs_journal_range(pool, LMCS_JOURNAL_REDO);
    uint64_t place = range.next + LMCS_PAGE_BYTES, room = range.end - place;
    uint64_t table_bytes = header->entries * sizeof(struct lmcs_journal_entry_df);
    if (header->entries > MOST_ENTRIES || table_room(header->entries) > room)
        return lmcs_journal_fail(pool, place, wrong, error);
    struct lmcs_journal_entry_df *table = malloc(table_bytes + 1);
    if (table == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_media_read(pool->media, place, table, table_bytes, error);
    if (status == LMCS_OK && header->table_check != lmc_hash64(table, table_bytes, header->sequence))
        status = lmcs_journal_fail(pool, place, wrong, error);
    uint64_t at = place + table_room(header->entries);
    for (uint64_t i = 0; status == LMCS_OK && i < header->entries; i++) {
        status = at > range.end || table[i].bytes > range.end - at ? lmcs_journal_fail(pool, place, wrong, error)
                                                                   : work(pool, &table[i], at, error);
        at += lmcs_journal_entry_room(table[i].bytes);
    }
    free(table);
    return status;
}

static enum lmcs_status rewrite(struct lmcs_pool *pool, uint64_t at, uint64_t bytes, struct lmcs_error *error)
{
    unsigned char piece[LMCS_PAGE_BYTES];
    enum lmcs_status status = LMCS_OK;
    for (uint64_t n; status == LMCS_OK && bytes > 0; at += n, bytes -= n) {
        n = bytes < sizeof piece ? bytes : sizeof piece;
        status = lmcs_media_read(pool->media, at, piece, n, error);
        if (status == LMCS_OK)
            status = lmcs_heap_write(pool->heap, at, piece, n, error);
    }
    return status;
}

static enum lmcs_status rewrite_entry(struct lmcs_pool *pool, const struct lmcs_journal_entry_df *df, uint64_t from,
                                      struct lmcs_error *error)
{
    return rewrite(pool, from, df->bytes, error);
}

enum lmcs_status lmcs_journal_write_again(struct lmcs_pool *pool, const struct lmcs_journal_df *header,
                                          struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_journal_each(pool, header, rewrite_entry, error);
    if (status == LMCS_OK)
        status = rewrite(pool, lmcs_journal_range(pool, LMCS_JOURNAL_REDO).next,
                         LMCS_PAGE_BYTES + header->entries * sizeof(struct lmcs_journal_entry_df), error);
    return status == LMCS_OK ? lmcs_heap_sync(pool->heap, error) : status;
}
