/* SPDX-License-Identifier: BSD-3-Clause */
/* live/journal.c - room, headers and entries of journals. */
#include "live/journal.h"

#include <stdlib.h>
#include <string.h>

#include "live/space.h"

#define KEPT_BYTES ((uint64_t)1 << 20) /* of file space */

enum lmcs_status lmcs_journal_reserve(struct lmcs_pool *pool, enum lmcs_journal_kind kind, uint64_t bytes,
                                      struct lmcs_error *error)
{
    struct lmcs_live_store *live = pool->live;
    struct lmcs_page_range_df old = lmcs_journal_range(pool, kind);
    uint64_t room = LMCS_LEAST_JOURNAL, offset;
    while (room < bytes)
        room *= 2;
    if (room > pool->part_bytes)
        return lmcs_fail_full(error, bytes, pool->part_bytes, 0,
                              "%s: a transaction of %llu bytes of pages does not fit the journal", pool->path,
                              (unsigned long long)bytes);
    enum lmcs_status status = lmcs_live_take(pool, room, &offset, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_txn txn;
    status = lmcs_live_back(pool, offset, LMCS_PAGE_BYTES, error);
    uint64_t backed = status == LMCS_OK ? LMCS_PAGE_BYTES : 0;
    if (status == LMCS_OK)
        status = lmcs_txn_write(pool, &txn, error);
    if (status == LMCS_OK) {
        txn.only_allocates = true;
        txn.root.journals[kind] = (struct lmcs_page_range_df){offset, offset + room};
        status = lmcs_txn_commit(&txn, error);
    }
    if (status != LMCS_OK) {
        lmcs_live_give(pool, offset, room, backed);
        return status;
    }
    live->journals[kind] = (struct lmcs_page_range_df){offset, offset + room};
    lmcs_live_give(pool, old.next, old.end - old.next, live->journal_backed[kind]);
    live->journal_backed[kind] = backed;
    return LMCS_OK;
}

enum lmcs_status lmcs_journal_make_room(struct lmcs_pool *pool, enum lmcs_journal_kind kind, uint64_t bytes,
                                        struct lmcs_error *error)
{
    struct lmcs_live_store *live = pool->live;
    struct lmcs_page_range_df range = lmcs_journal_range(pool, kind);
    enum lmcs_status status = range.end - range.next < bytes ? lmcs_journal_reserve(pool, kind, bytes, error) : LMCS_OK;
    uint64_t wanted = lmcs_page_up(bytes < LMCS_LEAST_JOURNAL ? LMCS_LEAST_JOURNAL : bytes),
             had = live->journal_backed[kind];
    if (status != LMCS_OK || had >= wanted)
        return status;
    status = lmcs_live_back(pool, lmcs_journal_range(pool, kind).next + had, wanted - had, error);
    if (status == LMCS_OK)
        live->journal_backed[kind] = wanted;
    return status;
}

/* Frees a cleared journal's file space beyond KEPT_BYTES. */
static void trim(struct lmcs_pool *pool, enum lmcs_journal_kind kind)
{
    uint64_t *backed = &pool->live->journal_backed[kind];
    if (*backed <= KEPT_BYTES || !lmcs_heap_can_punch(pool->heap))
        return;
    lmcs_live_unback(pool, lmcs_journal_range(pool, kind).next + KEPT_BYTES, *backed - KEPT_BYTES);
    *backed = KEPT_BYTES;
}

enum lmcs_status lmcs_journal_write_header(struct lmcs_pool *pool, enum lmcs_journal_kind kind,
                                           struct lmcs_journal_df *header, struct lmcs_error *error)
{
    uint64_t place = lmcs_journal_range(pool, kind).next;
    header->magic = LMCS_JOURNAL_MAGIC;
    header->last = pool->live->sequence;
    header->check = lmc_hash64(header, offsetof(struct lmcs_journal_df, check), place);
    enum lmcs_status status = lmcs_heap_write(pool->heap, place, header, sizeof *header, error);
    return status == LMCS_OK ? lmcs_heap_sync(pool->heap, error) : status;
}

enum lmcs_status lmcs_journal_load_header(struct lmcs_pool *pool, enum lmcs_journal_kind kind,
                                          struct lmcs_journal_df *header, bool *sealed, struct lmcs_error *error)
{
    struct lmcs_page_range_df range = lmcs_journal_range(pool, kind);
    *header = (struct lmcs_journal_df){.sequence = 0};
    *sealed = false;
    if (range.end == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_media_read(pool->media, range.next, header, sizeof *header, error);
    *sealed = status == LMCS_OK && header->magic == LMCS_JOURNAL_MAGIC && header->sequence != 0 &&
              header->check == lmc_hash64(header, offsetof(struct lmcs_journal_df, check), range.next);
    const uint32_t flags = header->flags & ~LMCS_JOURNAL_ROOT;
    return *sealed && flags != 0 ? lmcs_fail_newer(error, "%s: a journal of live variables: flag %u", pool->path, flags)
                                 : status;
}

enum lmcs_status lmcs_journal_clear(struct lmcs_pool *pool, enum lmcs_journal_kind kind, struct lmcs_error *error)
{
    struct lmcs_journal_df header = {.sequence = 0};
    enum lmcs_status status = lmcs_journal_write_header(pool, kind, &header, error);
    if (status == LMCS_OK)
        trim(pool, kind);
    return status;
}

uint64_t lmcs_journal_entry_check(const struct lmcs_journal_entry_df *entry, const void *data)
{
    return lmc_hash64(data, entry->bytes, lmc_hash64(entry, 3 * sizeof(uint64_t), 0));
}

enum lmcs_status lmcs_journal_fail(const struct lmcs_pool *pool, uint64_t at, const char *what,
                                   struct lmcs_error *error)
{
    return lmcs_fail(
        error, LMCS_DAMAGED, 0,
        "%s: the journal of live variables is damaged (at offset %llu: %s), and the last change of them is "
        "incomplete; the pool can't be opened for writing; open it with mode r to read its snapshots",
        pool->path, (unsigned long long)at, what);
}

/* *loaded is malloced. */
static enum lmcs_status load_data(const struct lmcs_pool *pool, const struct lmcs_journal_entry_df *df, uint64_t from,
                                  void **loaded, struct lmcs_error *error)
{
    void *data = malloc(df->bytes + 1);
    if (data == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_media_read(pool->media, from, data, df->bytes, error);
    if (status == LMCS_OK && df->check != lmcs_journal_entry_check(df, data))
        status = lmcs_journal_fail(pool, from, "wrong checksum", error);
    if (status != LMCS_OK)
        free(data);
    else
        *loaded = data;
    return status;
}

enum lmcs_status lmcs_journal_apply_entry(struct lmcs_pool *pool, const struct lmcs_journal_entry_df *df, uint64_t from,
                                          struct lmcs_error *error)
{
    void *data = NULL;
    enum lmcs_status status = load_data(pool, df, from, &data, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_heap_write(pool->heap, df->place, data, df->bytes, error);
    free(data);
    return status;
}

static bool overlaps(const struct lmcs_page_range_df *range, uint64_t place, uint64_t bytes)
{
    return place < range->end && range->next < place + bytes;
}

/*
 * A checksum does not prove origin: entries apply only inside objects of live variables (checked by lmcs_check_heap),
 * and never inside a journal.
 */
enum lmcs_status lmcs_journal_check_entry(struct lmcs_pool *pool, const struct lmcs_journal_entry_df *df, uint64_t from,
                                          struct lmcs_error *error)
{
    const struct lmcs_page_range_df *journals = pool->live->journals;
    if (!lmcs_live_space_has(pool, df->place, df->bytes) ||
        overlaps(&journals[LMCS_JOURNAL_REDO], df->place, df->bytes) ||
        overlaps(&journals[LMCS_JOURNAL_UNDO], df->place, df->bytes))
        return lmcs_journal_fail(pool, from, "an entry leads outside of live variables", error);
    void *data = NULL;
    enum lmcs_status status = load_data(pool, df, from, &data, error);
    if (status == LMCS_OK)
        free(data);
    return status;
}

bool lmcs_journal_range_is_sound(const struct lmcs_pool *pool, enum lmcs_journal_kind kind)
{
    struct lmcs_page_range_df range = lmcs_journal_range(pool, kind);
    if (range.end == 0 && range.next == 0)
        return true;
    return range.next < range.end && range.end - range.next >= LMCS_LEAST_JOURNAL &&
           range.next % LMCS_PAGE_BYTES == 0 && range.end % LMCS_PAGE_BYTES == 0 &&
           lmcs_live_space_has(pool, range.next, range.end - range.next) &&
           (kind == LMCS_JOURNAL_REDO ||
            !overlaps(&pool->live->journals[LMCS_JOURNAL_REDO], range.next, range.end - range.next));
}
