/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/record.c - records of live variables.
 *
 * A record ends with a copy of its tree value and points into it.
 */
#include "live/record.h"

#include <stdlib.h>
#include <string.h>

#include "pages/tree.h"
#include "records/content.h"

#define RESERVED_NAMES "lmcstore." /* of a snapshot's own attachments */

static_assert(sizeof(struct lmcs_live_df) + LMCS_MAX_DIMS * sizeof(uint64_t) +
                      LMCS_LIVE_MAX_EXTENTS * sizeof(struct lmcs_part_df) + LMCS_LIVE_MAX_NOTE + LMCS_MAX_NAME <=
                  LMCS_MAX_VALUE,
              "room for the largest record");

static size_t value_bytes(const struct lmcs_live_df *df)
{
    return sizeof *df + df->ndim * sizeof(uint64_t) + df->part_count * sizeof(struct lmcs_part_df) + df->note_bytes +
           df->name_bytes;
}

static void point_into(struct lmcs_live_record *record)
{
    unsigned char *at = record->value + sizeof record->df;
    record->shape = (const uint64_t *)(const void *)at;
    at += record->df.ndim * sizeof(uint64_t);
    record->parts = (const struct lmcs_part_df *)(const void *)at;
    at += record->df.part_count * sizeof(struct lmcs_part_df);
    record->note = at;
    record->name = (const char *)at + record->df.note_bytes;
    record->value[record->value_bytes] = '\0';
}

struct lmcs_live_record *lmcs_live_record_new(const struct lmcs_live_record *like, struct lmcs_error *error)
{
    size_t bytes = value_bytes(&like->df);
    struct lmcs_live_record *record = malloc(sizeof *record + bytes + 1);
    if (record == NULL) {
        lmcs_fail_memory(error);
        return NULL;
    }
    record->shelf = like->shelf;
    record->id = like->id;
    record->df = like->df;
    record->value_bytes = bytes;
    memcpy(record->value, &like->df, sizeof like->df);
    point_into(record);
    unsigned char *at = record->value + sizeof record->df;
    if (like->df.ndim > 0)
        memcpy(at, like->shape, like->df.ndim * sizeof(uint64_t));
    if (like->df.part_count > 0)
        memcpy(at + like->df.ndim * sizeof(uint64_t), like->parts, like->df.part_count * sizeof *like->parts);
    if (like->df.note_bytes > 0)
        memcpy((void *)(uintptr_t)record->note, like->note, like->df.note_bytes);
    memcpy((void *)(uintptr_t)record->name, like->name, like->df.name_bytes);
    return record;
}

void lmcs_live_record_unname(struct lmcs_live_record *record)
{
    record->df.name_bytes = 0;
    record->value_bytes = value_bytes(&record->df);
    memcpy(record->value, &record->df, sizeof record->df);
    point_into(record);
}

uint64_t lmcs_live_capacity(const struct lmcs_live_record *record)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < record->df.part_count; i++)
        bytes += record->parts[i].bytes;
    return bytes;
}

bool lmcs_live_is_variable_length(const struct lmcs_live_record *record)
{
    return record->df.form == LMCS_LIVE_VALUE && record->df.dtype == LMC_U8 && record->df.ndim == 1;
}

bool lmcs_live_same_kind(const struct lmcs_live_record *a, const struct lmcs_live_record *b)
{
    if (a->df.form != b->df.form || a->df.dtype != b->df.dtype || a->df.ndim != b->df.ndim)
        return false;
    return lmcs_live_is_variable_length(a) ||
           (a->df.bytes == b->df.bytes && memcmp(a->shape, b->shape, a->df.ndim * sizeof(uint64_t)) == 0);
}

enum lmcs_status lmcs_live_check_name(const char *name, struct lmcs_error *error)
{
    if (!lmcs_name_is_sound(name) || strncmp(name, RESERVED_NAMES, strlen(RESERVED_NAMES)) == 0)
        return lmcs_fail(
            error, LMCS_INVALID, 0,
            "live variable \"%.64s\": a name has 1 to %d bytes of UTF-8, no control characters, and does not "
            "begin with " RESERVED_NAMES,
            name == NULL ? "" : name, LMCS_MAX_NAME);
    return LMCS_OK;
}

static bool parts_are_sound(const struct lmcs_pool *pool, const struct lmcs_live_record *record)
{
    uint64_t end = lmcs_media_bytes(pool->media), total = 0;
    for (size_t i = 0; i < record->df.part_count; i++) {
        const struct lmcs_part_df *part = &record->parts[i];
        if (part->offset == 0 || part->bytes == 0 || part->offset % LMCS_PAGE_BYTES != 0 ||
            part->bytes % LMCS_PAGE_BYTES != 0 || part->offset >= end || part->bytes > end - part->offset)
            return false;
        total += part->bytes;
    }
    return record->df.bytes <= total;
}

static bool cell_is_sound(const struct lmcs_pool *pool, const struct lmcs_live_df *df)
{
    uint64_t end = lmcs_media_bytes(pool->media);
    uint32_t room = df->form == LMCS_LIVE_VALUE ? lmcs_cell_room(df->slot_bytes) : sizeof(struct lmcs_cell_df);
    if (df->form == LMCS_LIVE_VALUE &&
        (df->slot_bytes < sizeof(struct lmcs_value_df) || df->slot_bytes > lmcs_slot_room(LMCS_LIVE_MAX_VALUE) ||
         df->slot_bytes % LMCS_CELL_ALIGN != 0))
        return false;
    return df->cell != 0 && df->cell % LMCS_CELL_ALIGN == 0 && df->cell < end && df->cell_bytes <= end - df->cell &&
           df->cell_bytes == room;
}

static bool is_sound(const struct lmcs_pool *pool, const struct lmcs_live_record *record)
{
    const struct lmcs_live_df *df = &record->df;
    uint64_t bytes;
    return df->form <= LMCS_LIVE_VALUE && df->name_bytes > 0 && strlen(record->name) == df->name_bytes &&
           lmcs_name_is_sound(record->name) && lmcs_shape_bytes(df->dtype, df->ndim, record->shape, &bytes) &&
           bytes == df->bytes && cell_is_sound(pool, df) &&
           (df->form == LMCS_LIVE_VALUE ? df->part_count == 0 && bytes <= LMCS_LIVE_MAX_VALUE
                                        : df->slot_bytes == 0 && parts_are_sound(pool, record));
}

static enum lmcs_status fail_record(struct lmcs_pool *pool, uint64_t shelf, uint64_t id, const char *name,
                                    struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0,
                     "%s: damaged metadata: the record of live variable %llu%s%.200s%s of shelf %llu", pool->path,
                     (unsigned long long)id, *name != '\0' ? " (\"" : "", name, *name != '\0' ? "\")" : "",
                     (unsigned long long)shelf);
}

enum lmcs_status lmcs_live_record_read(struct lmcs_pool *pool, struct lmcs_key_df key, const void *value, size_t bytes,
                                       struct lmcs_live_record **record, struct lmcs_error *error)
{
    struct lmcs_live_df df;
    if (bytes >= sizeof df) {
        memcpy(&df, value, sizeof df);
        if (df.form > LMCS_LIVE_VALUE)
            return lmcs_fail_newer(error, "%s: live variable %llu of shelf %llu: form %u", pool->path,
                                   (unsigned long long)key.low, (unsigned long long)key.high, df.form);
        if (df.dtype >= LMC_DTYPE_END)
            return lmcs_fail_newer(error, "%s: live variable %llu of shelf %llu: dtype %u", pool->path,
                                   (unsigned long long)key.low, (unsigned long long)key.high, df.dtype);
    }
    if (bytes < sizeof df || df.ndim > LMCS_MAX_DIMS || df.part_count > LMCS_LIVE_MAX_EXTENTS ||
        df.note_bytes > LMCS_LIVE_MAX_NOTE || df.name_bytes > LMCS_MAX_NAME || bytes != value_bytes(&df))
        return fail_record(pool, key.high, key.low, "", error);
    struct lmcs_live_record *read = malloc(sizeof *read + bytes + 1);
    if (read == NULL)
        return lmcs_fail_memory(error);
    read->shelf = key.high;
    read->id = key.low;
    read->df = df;
    read->value_bytes = bytes;
    memcpy(read->value, value, bytes);
    point_into(read);
    if (!is_sound(pool, read)) {
        enum lmcs_status status =
            fail_record(pool, key.high, key.low, lmcs_name_is_sound(read->name) ? read->name : "", error);
        free(read);
        return status;
    }
    *record = read;
    return LMCS_OK;
}

static uint64_t hash_of(uint64_t shelf, const char *name)
{
    return lmc_hash64(name, strlen(name), shelf);
}

enum lmcs_status lmcs_live_record_get(struct lmcs_txn *txn, uint64_t shelf, uint64_t id,
                                      struct lmcs_live_record **record, bool *found, struct lmcs_error *error)
{
    _Alignas(8) unsigned char value[LMCS_MAX_VALUE];
    size_t bytes;
    struct lmcs_key_df key = {shelf, id};
    enum lmcs_status status = lmcs_root_get(txn, LMCS_TREE_LIVE, key, value, 0, sizeof value, &bytes, found, error);
    return status == LMCS_OK && *found ? lmcs_live_record_read(txn->pool, key, value, bytes, record, error) : status;
}

enum lmcs_status lmcs_live_record_find(struct lmcs_txn *txn, uint64_t shelf, const char *name,
                                       struct lmcs_live_record **record, bool *found, struct lmcs_error *error)
{
    uint64_t hash = hash_of(shelf, name);
    struct lmcs_cursor *cursor;
    *found = false;
    enum lmcs_status status = lmcs_root_open(&cursor, txn, LMCS_TREE_LIVE_NAMES, (struct lmcs_key_df){hash, 0}, error);
    while (status == LMCS_OK && !*found && lmcs_cursor_valid(cursor) && lmcs_cursor_key(cursor).high == hash) {
        bool there;
        status = lmcs_live_record_get(txn, shelf, lmcs_cursor_key(cursor).low, record, &there, error);
        if (status != LMCS_OK)
            break;
        *found = there && strcmp((*record)->name, name) == 0;
        if (there && !*found)
            free(*record);
        if (!*found)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

enum lmcs_status lmcs_live_record_each(struct lmcs_txn *txn, uint64_t shelf,
                                       enum lmcs_status (*visit)(void *context, struct lmcs_live_record *record,
                                                                 struct lmcs_error *error),
                                       void *context, struct lmcs_error *error)
{
    struct lmcs_cursor *cursor;
    enum lmcs_status status = lmcs_root_open(&cursor, txn, LMCS_TREE_LIVE, (struct lmcs_key_df){shelf, 0}, error);
    while (status == LMCS_OK && lmcs_cursor_valid(cursor)) {
        struct lmcs_key_df key = lmcs_cursor_key(cursor);
        struct lmcs_live_record *record = NULL;
        size_t bytes;
        const void *value = lmcs_cursor_value(cursor, &bytes);
        if (shelf != 0 && key.high != shelf)
            break;
        status = lmcs_live_record_read(txn->pool, key, value, bytes, &record, error);
        if (status == LMCS_OK)
            status = visit(context, record, error);
        if (status == LMCS_OK)
            status = lmcs_cursor_next(cursor, error);
    }
    lmcs_cursor_free(cursor);
    return status;
}

static enum lmcs_status put_name(struct lmcs_txn *txn, const struct lmcs_live_record *record, bool put,
                                 struct lmcs_error *error)
{
    struct lmcs_key_df key = {hash_of(record->shelf, record->name), record->id};
    return put ? lmcs_root_put(txn, LMCS_TREE_LIVE_NAMES, key, NULL, 0, error)
               : lmcs_root_delete(txn, LMCS_TREE_LIVE_NAMES, key, NULL, error);
}

enum lmcs_status lmcs_live_change_put(struct lmcs_txn *txn, const struct lmcs_live_change *changes, size_t count,
                                      struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        const struct lmcs_live_record *from = changes[i].from, *to = changes[i].to;
        bool renamed = from == NULL || to == NULL || strcmp(from->name, to->name) != 0;
        if (from != NULL && renamed)
            status = put_name(txn, from, false, error);
        if (status == LMCS_OK && to != NULL && renamed)
            status = put_name(txn, to, true, error);
        if (status == LMCS_OK && to != NULL)
            status = lmcs_root_put(txn, LMCS_TREE_LIVE, (struct lmcs_key_df){to->shelf, to->id}, to->value,
                                   to->value_bytes, error);
        else if (status == LMCS_OK && from != NULL)
            status = lmcs_root_delete(txn, LMCS_TREE_LIVE, (struct lmcs_key_df){from->shelf, from->id}, NULL, error);
    }
    return status;
}
