/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/journal.c - how several places of the pool change together, in place.
 *
 * The *redo* journal has bytes and where they belong. It is written and made durable; then its first page gets a header
 * that seals it, and when that is durable what it says is committed (or when the root names its sequence: if records
 * change by the same step). Then the bytes are written where they belong, made durable, and the header is cleared,
 * durably, before anyone is told: it must not be applied a second time over what is stored there next. A crash leaves
 * a sealed journal, which is applied again, or one that is not, which is nothing.
 *
 * The *undo* journal is for media whose pages can't be private: what is about to be stored to is copied there first,
 * entry by entry, each with a checksum and durable before the store may be made. A crash leaves entries, which are put
 * back, the last one first. Commit makes the stores durable and clears the header.
 *
 * Damage in a sealed journal keeps a pool from being written to: what it would have completed is half done. So does one
 * that leads to anything but live variables, which only somebody who means harm has written.
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "live/live.h"
#include "pages/space.h"

#define LEAST_JOURNAL ((uint64_t)64 << 10)
#define KEPT_BYTES    ((uint64_t)1 << 20) /* of file space, when it is done with */
#define MOST_ENTRIES  ((uint64_t)1 << 30)
#define MOST_SEQUENCE ((uint64_t)1 << 62)

static uint64_t up(uint64_t bytes)
{
    return (bytes + LMCS_CELL_ALIGN - 1) & ~(uint64_t)(LMCS_CELL_ALIGN - 1);
}

static struct lmcs_page_range_df range_of(const struct lmcs_pool *pool, enum lmcs_journal_kind kind)
{
    return pool->live->journals[kind];
}

static uint64_t entry_check(const struct lmcs_journal_entry_df *entry, const void *data)
{
    return lmc_hash64(data, entry->bytes, lmc_hash64(entry, 3 * sizeof(uint64_t), 0));
}

/* ---- Room ---- */

/* A larger range, entered in the root; the old one is given back. */
static enum lmcs_status widen(struct lmcs_pool *pool, enum lmcs_journal_kind kind, uint64_t bytes,
                              struct lmcs_error *error)
{
    struct lmcs_live_store *live = pool->live;
    struct lmcs_page_range_df old = range_of(pool, kind);
    uint64_t room = LEAST_JOURNAL, offset;
    while (room < bytes)
        room *= 2;
    if (room > pool->part_bytes)
        return lmcs_fail_full(error, bytes, pool->part_bytes, 0, "%s: a transaction can't write %llu bytes of pages",
                              pool->path, (unsigned long long)bytes);
    enum lmcs_status status = lmcs_live_take(pool, room, &offset, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_txn txn;
    status = lmcs_live_back(pool, offset, LMCS_PAGE_BYTES, error);
    uint64_t backed = status == LMCS_OK ? LMCS_PAGE_BYTES : 0;
    if (status == LMCS_OK)
        status = lmcs_txn_write(pool, &txn, error);
    if (status == LMCS_OK) {
        txn.spends = true;
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

/* Room for `bytes`, with file space. */
static enum lmcs_status make_room(struct lmcs_pool *pool, enum lmcs_journal_kind kind, uint64_t bytes,
                                  struct lmcs_error *error)
{
    struct lmcs_live_store *live = pool->live;
    struct lmcs_page_range_df range = range_of(pool, kind);
    enum lmcs_status status = range.end - range.next < bytes ? widen(pool, kind, bytes, error) : LMCS_OK;
    uint64_t wanted = lmcs_page_up(bytes < LEAST_JOURNAL ? LEAST_JOURNAL : bytes), had = live->journal_backed[kind];
    if (status != LMCS_OK || had >= wanted)
        return status;
    status = lmcs_live_back(pool, range_of(pool, kind).next + had, wanted - had, error);
    if (status == LMCS_OK)
        live->journal_backed[kind] = wanted;
    return status;
}

static void trim(struct lmcs_pool *pool, enum lmcs_journal_kind kind)
{
    uint64_t *backed = &pool->live->journal_backed[kind];
    if (*backed <= KEPT_BYTES || !lmcs_heap_can_punch(pool->heap))
        return;
    lmcs_live_unback(pool, range_of(pool, kind).next + KEPT_BYTES, *backed - KEPT_BYTES);
    *backed = KEPT_BYTES;
}

/* ---- The header ---- */

static enum lmcs_status write_header(struct lmcs_pool *pool, enum lmcs_journal_kind kind,
                                     struct lmcs_journal_df *header, struct lmcs_error *error)
{
    uint64_t place = range_of(pool, kind).next;
    header->magic = LMCS_JOURNAL_MAGIC;
    header->last = pool->live->sequence;
    header->check = lmc_hash64(header, offsetof(struct lmcs_journal_df, check), place);
    enum lmcs_status status = lmcs_heap_write(pool->heap, place, header, sizeof *header, error);
    return status == LMCS_OK ? lmcs_heap_sync(pool->heap, error) : status;
}

enum lmcs_status lmcs_journal_clear(struct lmcs_pool *pool, enum lmcs_journal_kind kind, struct lmcs_error *error)
{
    struct lmcs_journal_df header = {.sequence = 0};
    enum lmcs_status status = write_header(pool, kind, &header, error);
    if (status == LMCS_OK)
        trim(pool, kind);
    return status;
}

/* ---- Redo ---- */

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
        table[i].check = entry_check(&table[i], entries[i].data);
        status = lmcs_heap_write(pool->heap, at, entries[i].data, entries[i].bytes, error);
        at += up(entries[i].bytes);
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
        bytes += up(entries[i].bytes);
    enum lmcs_status status = make_room(pool, LMCS_JOURNAL_REDO, bytes, error);
    if (status != LMCS_OK)
        return status;
    if (*sequence == 0)
        *sequence = ++pool->live->sequence;
    struct lmcs_journal_df header = {
        .flags = with_root ? LMCS_JOURNAL_ROOT : 0, .sequence = *sequence, .entries = count};
    uint64_t place = range_of(pool, LMCS_JOURNAL_REDO).next + LMCS_PAGE_BYTES;
    status = write_entries(pool, place, entries, count, *sequence, &header, error);
    if (status == LMCS_OK)
        status = lmcs_heap_sync(pool->heap, error);
    return status == LMCS_OK ? write_header(pool, LMCS_JOURNAL_REDO, &header, error) : status;
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

/* ---- Undo ---- */

enum lmcs_status lmcs_undo_begin(struct lmcs_pool *pool, uint64_t limit_bytes, uint64_t *sequence,
                                 struct lmcs_error *error)
{
    struct lmcs_page_range_df range = range_of(pool, LMCS_JOURNAL_UNDO);
    enum lmcs_status status = LMCS_OK;
    if (range.end - range.next < limit_bytes)
        status = widen(pool, LMCS_JOURNAL_UNDO, limit_bytes, error);
    /* Behind the last entry stands what is no entry of this sequence: also where nothing was yet. */
    if (status == LMCS_OK)
        status = make_room(pool, LMCS_JOURNAL_UNDO, LEAST_JOURNAL, error);
    if (status != LMCS_OK)
        return status;
    *sequence = ++pool->live->sequence;
    struct lmcs_journal_df header = {.sequence = *sequence};
    return write_header(pool, LMCS_JOURNAL_UNDO, &header, error);
}

enum lmcs_status lmcs_undo_add(struct lmcs_pool *pool, uint64_t sequence, const struct lmcs_journaled *entry,
                               uint64_t *at, struct lmcs_error *error)
{
    struct lmcs_page_range_df range = range_of(pool, LMCS_JOURNAL_UNDO);
    struct lmcs_journal_entry_df df = {entry->place, entry->bytes, sequence, 0};
    uint64_t room = up(sizeof df + entry->bytes), used = LMCS_PAGE_BYTES + *at;
    if (room > range.end - range.next - used)
        return lmcs_fail_full(error, entry->bytes, range.end - range.next - used, 0,
                              "%s: the transaction's limit of %llu bytes is reached: %llu more were declared",
                              pool->path, (unsigned long long)(range.end - range.next),
                              (unsigned long long)entry->bytes);
    enum lmcs_status status = make_room(pool, LMCS_JOURNAL_UNDO, used + room, error);
    df.check = entry_check(&df, entry->data);
    if (status == LMCS_OK)
        status = lmcs_heap_write(pool->heap, range.next + used, &df, sizeof df, error);
    if (status == LMCS_OK)
        status = lmcs_heap_write(pool->heap, range.next + used + sizeof df, entry->data, entry->bytes, error);
    if (status == LMCS_OK)
        status = lmcs_heap_sync(pool->heap, error);
    if (status == LMCS_OK)
        *at += room;
    return status;
}

/* Where the entries of a sequence are; the first that is none ends them. */
static enum lmcs_status find_entries(struct lmcs_pool *pool, uint64_t sequence, uint64_t **places, size_t *count,
                                     struct lmcs_error *error)
{
    struct lmcs_page_range_df range = range_of(pool, LMCS_JOURNAL_UNDO);
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
        bool whole = status == LMCS_OK && df.check == entry_check(&df, data);
        free(data);
        if (status != LMCS_OK || !whole)
            return status;
        if (!lmcs_grow(places, &capacity, *count, sizeof **places))
            return lmcs_fail_memory(error);
        (*places)[(*count)++] = at;
        at += up(sizeof df + df.bytes);
    }
    return LMCS_OK;
}

static enum lmcs_status fail_journal(const struct lmcs_pool *pool, uint64_t at, const char *what,
                                     struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0,
                     "%s: the journal of live variables is damaged (at offset %llu: %s), and the last transaction on "
                     "them was cut short: nothing can be written; mode r reads the snapshots",
                     pool->path, (unsigned long long)at, what);
}

/* The bytes of an entry, which stand at `from`; malloced. */
static enum lmcs_status load_data(const struct lmcs_pool *pool, const struct lmcs_journal_entry_df *df, uint64_t from,
                                  void **loaded, struct lmcs_error *error)
{
    void *data = malloc(df->bytes + 1);
    if (data == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_media_read(pool->media, from, data, df->bytes, error);
    if (status == LMCS_OK && df->check != entry_check(df, data))
        status = fail_journal(pool, from, "it has other bytes than were written", error);
    if (status != LMCS_OK)
        free(data);
    else
        *loaded = data;
    return status;
}

/* Copies the bytes that stand at `from` to where they belong. */
static enum lmcs_status put_back(struct lmcs_pool *pool, const struct lmcs_journal_entry_df *df, uint64_t from,
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

enum lmcs_status lmcs_undo_roll_back(struct lmcs_pool *pool, uint64_t sequence, struct lmcs_error *error)
{
    uint64_t *places;
    size_t count;
    enum lmcs_status status = find_entries(pool, sequence, &places, &count, error);
    for (size_t i = count; status == LMCS_OK && i-- > 0;) {
        struct lmcs_journal_entry_df df;
        status = lmcs_media_read(pool->media, places[i], &df, sizeof df, error);
        if (status == LMCS_OK)
            status = put_back(pool, &df, places[i] + sizeof df, error);
    }
    free(places);
    if (status == LMCS_OK)
        status = lmcs_heap_sync(pool->heap, error);
    return status == LMCS_OK ? lmcs_journal_clear(pool, LMCS_JOURNAL_UNDO, error) : status;
}

typedef enum lmcs_status work_on_entry(struct lmcs_pool *pool, const struct lmcs_journal_entry_df *df, uint64_t from,
                                       struct lmcs_error *error);

/* Works on the entries of a sealed redo journal, until it fails. */
static enum lmcs_status each_redone(struct lmcs_pool *pool, const struct lmcs_journal_df *header, work_on_entry *work,
                                    struct lmcs_error *error)
{
    static const char wrong[] = "its table is not what was written";
    struct lmcs_page_range_df range = range_of(pool, LMCS_JOURNAL_REDO);
    uint64_t place = range.next + LMCS_PAGE_BYTES, room = range.end - place;
    uint64_t table_bytes = header->entries * sizeof(struct lmcs_journal_entry_df);
    if (header->entries > MOST_ENTRIES || table_room(header->entries) > room)
        return fail_journal(pool, place, wrong, error);
    struct lmcs_journal_entry_df *table = malloc(table_bytes + 1);
    if (table == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_media_read(pool->media, place, table, table_bytes, error);
    if (status == LMCS_OK && header->table_check != lmc_hash64(table, table_bytes, header->sequence))
        status = fail_journal(pool, place, wrong, error);
    uint64_t at = place + table_room(header->entries);
    for (uint64_t i = 0; status == LMCS_OK && i < header->entries; i++) {
        status = at > range.end || table[i].bytes > range.end - at ? fail_journal(pool, place, wrong, error)
                                                                   : work(pool, &table[i], at, error);
        at += up(table[i].bytes);
    }
    free(table);
    return status;
}

static enum lmcs_status redo(struct lmcs_pool *pool, const struct lmcs_journal_df *header, struct lmcs_error *error)
{
    enum lmcs_status status = each_redone(pool, header, put_back, error);
    if (status == LMCS_OK)
        status = lmcs_heap_sync(pool->heap, error);
    return status == LMCS_OK ? lmcs_journal_clear(pool, LMCS_JOURNAL_REDO, error) : status;
}

/* ---- What a journal may say ---- */

static bool overlaps(const struct lmcs_page_range_df *range, uint64_t place, uint64_t bytes)
{
    return place < range->end && range->next < place + bytes;
}

/*
 * Checksums don't tell who made them. So whatever a journal says, it is written only where live variables may lie: in
 * an object of theirs, which the check of the heap has found to be no part of libpmemobj's own, and in no journal.
 */
static enum lmcs_status check_entry(struct lmcs_pool *pool, const struct lmcs_journal_entry_df *df, uint64_t from,
                                    struct lmcs_error *error)
{
    const struct lmcs_page_range_df *journals = pool->live->journals;
    if (!lmcs_live_space_has(pool, df->place, df->bytes) ||
        overlaps(&journals[LMCS_JOURNAL_REDO], df->place, df->bytes) ||
        overlaps(&journals[LMCS_JOURNAL_UNDO], df->place, df->bytes))
        return fail_journal(pool, from, "it leads to where no live variable lies", error);
    void *data = NULL;
    enum lmcs_status status = load_data(pool, df, from, &data, error);
    if (status == LMCS_OK)
        free(data);
    return status;
}

static enum lmcs_status check_undo(struct lmcs_pool *pool, uint64_t sequence, struct lmcs_error *error)
{
    uint64_t *places;
    size_t count;
    enum lmcs_status status = find_entries(pool, sequence, &places, &count, error);
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        struct lmcs_journal_entry_df df;
        status = lmcs_media_read(pool->media, places[i], &df, sizeof df, error);
        if (status == LMCS_OK)
            status = check_entry(pool, &df, places[i] + sizeof df, error);
    }
    free(places);
    return status;
}

/* A journal's own place obeys the same rule, or there is none. */
static bool range_is_sound(const struct lmcs_pool *pool, enum lmcs_journal_kind kind)
{
    struct lmcs_page_range_df range = range_of(pool, kind);
    if (range.end == 0 && range.next == 0)
        return true;
    return range.next < range.end && range.end - range.next >= LEAST_JOURNAL && range.next % LMCS_PAGE_BYTES == 0 &&
           range.end % LMCS_PAGE_BYTES == 0 && lmcs_live_space_has(pool, range.next, range.end - range.next) &&
           (kind == LMCS_JOURNAL_REDO ||
            !overlaps(&pool->live->journals[LMCS_JOURNAL_REDO], range.next, range.end - range.next));
}

static enum lmcs_status load_header(struct lmcs_pool *pool, enum lmcs_journal_kind kind, struct lmcs_journal_df *header,
                                    bool *sealed, struct lmcs_error *error)
{
    struct lmcs_page_range_df range = range_of(pool, kind);
    *header = (struct lmcs_journal_df){.sequence = 0};
    *sealed = false;
    if (range.end == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_media_read(pool->media, range.next, header, sizeof *header, error);
    *sealed = status == LMCS_OK && header->magic == LMCS_JOURNAL_MAGIC && header->sequence != 0 &&
              header->check == lmc_hash64(header, offsetof(struct lmcs_journal_df, check), range.next);
    return status;
}

enum lmcs_status lmcs_journal_check(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error)
{
    struct lmcs_journal_df header;
    bool sealed;
    memcpy(pool->live->journals, root->journals, sizeof pool->live->journals);
    if (!range_is_sound(pool, LMCS_JOURNAL_REDO) || !range_is_sound(pool, LMCS_JOURNAL_UNDO))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: the place of a journal", pool->path);
    enum lmcs_status status = load_header(pool, LMCS_JOURNAL_REDO, &header, &sealed, error);
    if (status == LMCS_OK && sealed &&
        ((header.flags & LMCS_JOURNAL_ROOT) == 0 || root->live_committed == header.sequence))
        status = each_redone(pool, &header, check_entry, error);
    if (status == LMCS_OK)
        status = load_header(pool, LMCS_JOURNAL_UNDO, &header, &sealed, error);
    if (status == LMCS_OK && sealed && root->live_committed != header.sequence)
        status = check_undo(pool, header.sequence, error);
    return status;
}

/* ---- After a crash ---- */

/* A header that is torn was being written: it had not sealed anything, or there was nothing left to do. */
static enum lmcs_status recover(struct lmcs_pool *pool, enum lmcs_journal_kind kind, struct lmcs_error *error)
{
    struct lmcs_journal_df header;
    bool sealed;
    enum lmcs_status status = load_header(pool, kind, &header, &sealed, error);
    if (status != LMCS_OK)
        return status;
    if (pool->live->sequence < header.last && header.last < MOST_SEQUENCE)
        pool->live->sequence = header.last; /* no sequence comes twice, whatever is torn */
    bool committed = pool->root.live_committed == header.sequence;
    if (sealed && kind == LMCS_JOURNAL_UNDO && !committed)
        return lmcs_undo_roll_back(pool, header.sequence, error);
    if (sealed && kind == LMCS_JOURNAL_REDO && (committed || (header.flags & LMCS_JOURNAL_ROOT) == 0))
        return redo(pool, &header, error);
    return sealed ? lmcs_journal_clear(pool, kind, error) : LMCS_OK;
}

/* Nothing is written before all that is to be written has been looked at. */
enum lmcs_status lmcs_journal_recover(struct lmcs_pool *pool, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_journal_check(pool, &pool->root, error);
    pool->live->sequence = pool->root.live_committed;
    if (status == LMCS_OK)
        status = recover(pool, LMCS_JOURNAL_REDO, error);
    return status == LMCS_OK ? recover(pool, LMCS_JOURNAL_UNDO, error) : status;
}
