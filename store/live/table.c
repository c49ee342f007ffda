/* SPDX-License-Identifier: BSD-3-Clause */
/* live/table.c - lists and the attachment of records. */
#include "live/table.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "records/content.h"

static enum lmcs_status add_record(void *context, struct lmcs_live_record *record, struct lmcs_error *error)
{
    struct lmcs_live_list *list = context;
    if (!lmcs_grow(&list->records, &list->capacity, list->count, sizeof *list->records)) {
        free(record);
        return lmcs_fail_memory(error);
    }
    list->records[list->count++] = record;
    return LMCS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct lmcs_live_record *const *)a)->name, (*(struct lmcs_live_record *const *)b)->name);
}

enum lmcs_status lmcs_live_list_load(struct lmcs_pool *pool, uint64_t shelf, struct lmcs_live_list *list,
                                     struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_record_each(&txn, shelf, add_record, list, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && list->count > 0)
        qsort(list->records, list->count, sizeof(struct lmcs_live_record *), by_name);
    return status;
}

struct lmcs_live_record *lmcs_live_list_find(const struct lmcs_live_list *list, const char *name)
{
    const struct lmcs_live_record like = {.name = name}, *key = &like;
    struct lmcs_live_record **found =
        list->count == 0 ? NULL : bsearch(&key, list->records, list->count, sizeof(struct lmcs_live_record *), by_name);
    return found != NULL ? *found : NULL;
}

void lmcs_live_list_free(struct lmcs_live_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->records[i]);
    free(list->records);
    *list = (struct lmcs_live_list){0};
}

static size_t entry_bytes(const struct lmcs_live_df *df)
{
    return sizeof(struct lmcs_live_entry_df) + df->ndim * sizeof(uint64_t) + df->note_bytes + df->name_bytes;
}

unsigned char *lmcs_live_table_encode(const struct lmcs_live_list *list, size_t *bytes)
{
    *bytes = sizeof(struct lmcs_live_table_df);
    for (size_t i = 0; i < list->count; i++)
        *bytes += entry_bytes(&list->records[i]->df);
    unsigned char *table = malloc(*bytes), *at = table;
    if (table == NULL)
        return NULL;
    struct lmcs_live_table_df header = {LMCS_LIVE_MAGIC, 1, list->count};
    memcpy(at, &header, sizeof header);
    at += sizeof header;
    for (size_t i = 0; i < list->count; i++) {
        const struct lmcs_live_record *record = list->records[i];
        const struct lmcs_live_df *df = &record->df;
        struct lmcs_live_entry_df entry = {.reserve_bytes = lmcs_live_capacity(record),
                                           .form = df->form,
                                           .dtype = df->dtype,
                                           .ndim = df->ndim,
                                           .note_bytes = df->note_bytes,
                                           .name_bytes = df->name_bytes};
        memcpy(at, &entry, sizeof entry);
        memcpy(at + sizeof entry, record->shape, df->ndim * sizeof(uint64_t));
        memcpy(at + sizeof entry + df->ndim * sizeof(uint64_t), record->note, df->note_bytes);
        memcpy(at + entry_bytes(df) - df->name_bytes, record->name, df->name_bytes);
        at += entry_bytes(df);
    }
    return table;
}

enum lmcs_status lmcs_live_table_fail(const struct lmcs_snapshot *snapshot, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: %s@%llu: the attachment " LMCS_LIVE_NAME " is damaged",
                     snapshot->pool->path, snapshot->shelf, (unsigned long long)snapshot->info.number);
}

/* Decodes an entry of an untrusted table to a record without places; moves *at behind it. */
static enum lmcs_status decode_entry(const struct lmcs_snapshot *snapshot, const unsigned char **at, size_t *left,
                                     uint64_t *reserve_bytes, struct lmcs_live_record **record,
                                     struct lmcs_error *error)
{
    struct lmcs_live_entry_df entry;
    uint64_t shape[LMCS_MAX_DIMS];
    char name[LMCS_MAX_NAME + 1];
    if (*left < sizeof entry)
        return lmcs_live_table_fail(snapshot, error);
    memcpy(&entry, *at, sizeof entry);
    if (entry.form > LMCS_LIVE_VALUE || entry.dtype >= LMC_DTYPE_END)
        return lmcs_fail_newer(error, "%s: %s@%llu: a live variable of form %u and dtype %u", snapshot->pool->path,
                               snapshot->shelf, (unsigned long long)snapshot->info.number, entry.form, entry.dtype);
    struct lmcs_live_record like = {.shape = shape, .name = name};
    like.df = (struct lmcs_live_df){.form = entry.form,
                                    .dtype = entry.dtype,
                                    .ndim = entry.ndim,
                                    .note_bytes = entry.note_bytes,
                                    .name_bytes = entry.name_bytes};
    if (entry.ndim > LMCS_MAX_DIMS || entry.note_bytes > LMCS_LIVE_MAX_NOTE || entry.name_bytes > LMCS_MAX_NAME ||
        *left < entry_bytes(&like.df) || entry.reserve_bytes > (uint64_t)1 << 55)
        return lmcs_live_table_fail(snapshot, error);
    memcpy(shape, *at + sizeof entry, entry.ndim * sizeof(uint64_t));
    like.note = *at + sizeof entry + entry.ndim * sizeof(uint64_t);
    memcpy(name, like.note + entry.note_bytes, entry.name_bytes);
    name[entry.name_bytes] = '\0';
    struct lmcs_tensor tensor = {.name = name, .dtype = entry.dtype, .ndim = entry.ndim, .shape = shape};
    if (strlen(name) != entry.name_bytes || lmcs_live_check_name(name, error) != LMCS_OK ||
        lmcs_tensor_check(&tensor, &like.df.bytes, error) != LMCS_OK)
        return lmcs_live_table_fail(snapshot, error);
    *reserve_bytes = entry.reserve_bytes;
    *at += entry_bytes(&like.df);
    *left -= entry_bytes(&like.df);
    *record = lmcs_live_record_new(&like, error);
    return *record != NULL ? LMCS_OK : LMCS_NO_MEMORY;
}

enum lmcs_status lmcs_live_table_load(struct lmcs_snapshot *snapshot, struct lmcs_live_list *list, uint64_t **reserves,
                                      struct lmcs_error *error)
{
    static const char *const name = LMCS_LIVE_NAME;
    const uint32_t kind = LMCS_ATTACHMENT;
    struct lmcs_live_table_df header;
    struct lmcs_view *view;
    enum lmcs_status status = lmcs_view_open(snapshot, &name, &kind, 1, LMCS_VIEW_COPY, &view, error);
    if (status == LMCS_NOT_FOUND)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: %s@%llu is no snapshot of live variables", snapshot->pool->path,
                         snapshot->shelf, (unsigned long long)snapshot->info.number);
    if (status != LMCS_OK)
        return status;
    const unsigned char *at = lmcs_view_data(view, 0);
    size_t left = lmcs_view_entry(view, 0)->raw_bytes;
    if (left < sizeof header)
        status = lmcs_live_table_fail(snapshot, error);
    else
        memcpy(&header, at, sizeof header);
    if (status == LMCS_OK && header.magic == LMCS_LIVE_MAGIC && header.version > 1)
        status = lmcs_fail_newer(error, "%s: %s@%llu: version %u of its table of live variables", snapshot->pool->path,
                                 snapshot->shelf, (unsigned long long)snapshot->info.number, header.version);
    if (status == LMCS_OK && (header.magic != LMCS_LIVE_MAGIC || header.version != 1 ||
                              header.count > left / sizeof(struct lmcs_live_entry_df)))
        status = lmcs_live_table_fail(snapshot, error);
    if (status == LMCS_OK && (*reserves = calloc(header.count + 1, sizeof **reserves)) == NULL)
        status = lmcs_fail_memory(error);
    at += sizeof header;
    left -= sizeof header < left ? sizeof header : left;
    for (uint64_t i = 0; status == LMCS_OK && i < header.count; i++) {
        struct lmcs_live_record *record;
        status = decode_entry(snapshot, &at, &left, &(*reserves)[i], &record, error);
        if (status == LMCS_OK)
            status = add_record(list, record, error);
        /* Names ascend: none comes twice. */
        if (status == LMCS_OK && i > 0 && strcmp(list->records[i - 1]->name, list->records[i]->name) >= 0)
            status = lmcs_live_table_fail(snapshot, error);
    }
    lmcs_view_close(view);
    return status;
}
