/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/snapshot.c - live variables into a snapshot, and back.
 *
 * Into one: tensors are put from where they lie, through the one mapping that there is of all the pool, and values as
 * copies; what has not changed is found by capture, which compares bytes. (What programs store through addresses leaves
 * no reliable trace that could tell earlier.) An attachment says which variables there were.
 *
 * Back: for each variable that differs its bytes are written to new places, and one commit gives all records those.
 * Then the addresses of what is held are mapped to the new places. The old ones are given back, so nothing is ever half
 * of one and half of the other.
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/guard.h"
#include "capture/capture.h"
#include "live/live.h"
#include "snapshots/snapshot.h"

/* ---- All variables of a shelf, as they are committed ---- */

struct live_list {
    struct lmcs_live_record **records;
    size_t count;
    size_t capacity;
};

static enum lmcs_status add_record(void *context, struct lmcs_live_record *record, struct lmcs_error *error)
{
    struct live_list *list = context;
    if (!lmcs_grow(&list->records, &list->capacity, list->count, sizeof *list->records)) {
        free(record);
        return lmcs_fail_memory(error);
    }
    list->records[list->count++] = record;
    return LMCS_OK;
}

static void free_list(struct live_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->records[i]);
    free(list->records);
    *list = (struct live_list){0};
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct lmcs_live_record *const *)a)->name, (*(struct lmcs_live_record *const *)b)->name);
}

static enum lmcs_status list_all(struct lmcs_pool *pool, uint64_t shelf, struct live_list *list,
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

static struct lmcs_live_record *find_record(const struct live_list *list, const char *name)
{
    const struct lmcs_live_record like = {.name = name}, *key = &like;
    struct lmcs_live_record **found =
        list->count == 0 ? NULL : bsearch(&key, list->records, list->count, sizeof(struct lmcs_live_record *), by_name);
    return found != NULL ? *found : NULL;
}

/* ---- The table ---- */

static size_t entry_bytes(const struct lmcs_live_df *df)
{
    return sizeof(struct lmcs_live_entry_df) + df->ndim * sizeof(uint64_t) + df->note_bytes + df->name_bytes;
}

static unsigned char *encode_table(const struct live_list *list, size_t *bytes)
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

static enum lmcs_status fail_table(const struct lmcs_snapshot *snapshot, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: %s@%llu: what it says of its live variables is damaged",
                     snapshot->pool->path, snapshot->shelf, (unsigned long long)snapshot->info.number);
}

/* One entry of a table that may be anybody's; *at is moved behind it. What it gives has no places yet. */
static enum lmcs_status decode_entry(const struct lmcs_snapshot *snapshot, const unsigned char **at, size_t *left,
                                     uint64_t *reserve_bytes, struct lmcs_live_record **record,
                                     struct lmcs_error *error)
{
    struct lmcs_live_entry_df entry;
    uint64_t shape[LMCS_MAX_DIMS];
    char name[LMCS_MAX_NAME + 1];
    if (*left < sizeof entry)
        return fail_table(snapshot, error);
    memcpy(&entry, *at, sizeof entry);
    struct lmcs_live_record like = {.shape = shape, .name = name};
    like.df = (struct lmcs_live_df){.form = entry.form,
                                    .dtype = entry.dtype,
                                    .ndim = entry.ndim,
                                    .note_bytes = entry.note_bytes,
                                    .name_bytes = entry.name_bytes};
    if (entry.ndim > LMCS_MAX_DIMS || entry.note_bytes > LMCS_LIVE_MAX_NOTE || entry.name_bytes > LMCS_MAX_NAME ||
        entry.form > LMCS_LIVE_VALUE || *left < entry_bytes(&like.df) || entry.reserve_bytes > (uint64_t)1 << 55)
        return fail_table(snapshot, error);
    memcpy(shape, *at + sizeof entry, entry.ndim * sizeof(uint64_t));
    like.note = *at + sizeof entry + entry.ndim * sizeof(uint64_t);
    memcpy(name, like.note + entry.note_bytes, entry.name_bytes);
    name[entry.name_bytes] = '\0';
    struct lmcs_tensor tensor = {.name = name, .dtype = entry.dtype, .ndim = entry.ndim, .shape = shape};
    if (strlen(name) != entry.name_bytes || lmcs_live_check_name(name, error) != LMCS_OK ||
        lmcs_tensor_check(&tensor, &like.df.bytes, error) != LMCS_OK)
        return fail_table(snapshot, error);
    *reserve_bytes = entry.reserve_bytes;
    *at += entry_bytes(&like.df);
    *left -= entry_bytes(&like.df);
    *record = lmcs_live_record_new(&like, error);
    return *record != NULL ? LMCS_OK : LMCS_NO_MEMORY;
}

/* ---- Into a snapshot ---- */

struct putting {
    struct lmcs_pool *pool;
    struct live_list list;
    struct lmcs_tensor *tensors;
    const void **data;
    void **copies; /* of values, and the table; to be freed */
    size_t copy_count;
    struct lmcs_live_body **bodies; /* of tensors in several parts; to be released */
    size_t body_count;
    size_t pinned;
    uint64_t *lengths;
};

static enum lmcs_status put_tensor(struct putting *putting, struct lmcs_live_shelf *shelf, size_t i,
                                   struct lmcs_error *error)
{
    const struct lmcs_live_record *record = putting->list.records[i];
    if (record->df.part_count <= 1) {
        putting->data[i] = record->df.bytes == 0
                               ? NULL
                               : lmcs_media_at(putting->pool->media, record->parts[0].offset, record->df.bytes);
        return LMCS_OK;
    }
    struct lmcs_live_body *body = NULL;
    enum lmcs_status status = lmcs_live_body_find(putting->pool, shelf, record->name, &body, error);
    if (status != LMCS_OK || body == NULL)
        return status;
    putting->bodies[putting->body_count++] = body;
    putting->data[i] = body->data;
    return LMCS_OK;
}

static enum lmcs_status put_value(struct putting *putting, size_t i, struct lmcs_error *error)
{
    const struct lmcs_live_record *record = putting->list.records[i];
    struct lmcs_cell_state state;
    void *copy = malloc(LMCS_LIVE_MAX_VALUE);
    if (copy == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_cell_read(putting->pool, record, copy, &state, error);
    void *fitting = status == LMCS_OK ? realloc(copy, state.bytes + 1) : NULL;
    putting->copies[putting->copy_count++] = fitting != NULL ? fitting : copy;
    putting->data[i] = putting->copies[putting->copy_count - 1];
    putting->lengths[i] = state.bytes;
    putting->tensors[i].kind = LMCS_ATTACHMENT;
    putting->tensors[i].dtype = LMC_U8;
    putting->tensors[i].ndim = 1;
    putting->tensors[i].shape = &putting->lengths[i];
    return status;
}

static enum lmcs_status pin_record(struct lmcs_pool *pool, const struct lmcs_live_record *record, bool pin,
                                   struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < record->df.part_count; i++)
        if (pin)
            status = lmcs_lease_pin(pool->lease, record->parts[i].offset, record->parts[i].bytes, error);
        else
            lmcs_lease_unpin(pool->lease, record->parts[i].offset, record->parts[i].bytes);
    return status;
}

/* Under live->lock. What is pinned stays where it is even if it is erased meanwhile. */
static enum lmcs_status prepare(struct putting *putting, struct lmcs_live_shelf *shelf, struct lmcs_error *error)
{
    struct live_list *list = &putting->list;
    enum lmcs_status status = shelf != NULL ? list_all(putting->pool, shelf->id, list, error) : LMCS_OK;
    if (status != LMCS_OK)
        return status;
    size_t room = list->count + 1;
    putting->tensors = calloc(room, sizeof *putting->tensors);
    putting->data = calloc(room, sizeof *putting->data);
    putting->copies = calloc(room, sizeof *putting->copies);
    putting->bodies = calloc(room, sizeof(struct lmcs_live_body *));
    putting->lengths = calloc(room, sizeof *putting->lengths);
    if (putting->tensors == NULL || putting->data == NULL || putting->copies == NULL || putting->bodies == NULL ||
        putting->lengths == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; status == LMCS_OK && i < list->count; i++) {
        const struct lmcs_live_record *record = list->records[i];
        putting->tensors[i] = (struct lmcs_tensor){
            .name = record->name, .dtype = record->df.dtype, .ndim = record->df.ndim, .shape = record->shape};
        status = pin_record(putting->pool, record, true, error);
        putting->pinned += status == LMCS_OK;
        if (status == LMCS_OK)
            status = record->df.form == LMCS_LIVE_TENSOR ? put_tensor(putting, shelf, i, error)
                                                         : put_value(putting, i, error);
    }
    if (status != LMCS_OK)
        return status;
    size_t bytes, last = list->count;
    void *table = encode_table(list, &bytes);
    if (table == NULL)
        return lmcs_fail_memory(error);
    putting->copies[putting->copy_count++] = table;
    putting->lengths[last] = bytes;
    putting->data[last] = table;
    putting->tensors[last] = (struct lmcs_tensor){
        .name = LMCS_LIVE_NAME, .kind = LMCS_ATTACHMENT, .dtype = LMC_U8, .ndim = 1, .shape = &putting->lengths[last]};
    return LMCS_OK;
}

/* Under live->lock. */
static void finish(struct putting *putting)
{
    for (size_t i = 0; i < putting->pinned; i++)
        (void)!pin_record(putting->pool, putting->list.records[i], false, NULL);
    for (size_t i = 0; i < putting->body_count; i++)
        lmcs_live_body_release(putting->bodies[i]);
    for (size_t i = 0; i < putting->copy_count; i++)
        free(putting->copies[i]);
    free(putting->tensors);
    free(putting->data);
    free(putting->copies);
    free(putting->bodies);
    free(putting->lengths);
    free_list(&putting->list);
}

enum lmcs_status lmcs_capture_put_live(struct lmcs_capture *capture, struct lmcs_error *error)
{
    struct lmcs_live_shelf *shelf = NULL;
    struct putting putting = {0};
    const char *name;
    enum lmcs_status status = lmcs_capture_place(capture, &putting.pool, &name, error);
    if (status == LMCS_OK)
        status = lmcs_live_check(putting.pool, true, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_live_store *live = putting.pool->live;
    lmcs_capture_waits(capture, true);
    pthread_mutex_lock(&live->lock);
    status = lmcs_live_check(putting.pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_live_shelf_find(putting.pool, name, false, &shelf, error);
    if (status == LMCS_OK && shelf != NULL)
        status = lmcs_live_hold(putting.pool, shelf, UINT32_MAX, error);
    bool held = status == LMCS_OK;
    if (held)
        status = prepare(&putting, shelf, error);
    pthread_mutex_unlock(&live->lock);
    lmcs_capture_waits(capture, false);
    if (!held)
        return status;
    if (status == LMCS_OK)
        status = lmcs_capture_put(capture, putting.tensors, putting.data, putting.list.count + 1, error);
    pthread_mutex_lock(&live->lock);
    finish(&putting);
    if (shelf != NULL)
        lmcs_live_let_go(putting.pool, shelf);
    pthread_mutex_unlock(&live->lock);
    return status;
}

enum lmcs_status lmcs_live_snapshot(struct lmcs_pool *pool, const char *shelf,
                                    const struct lmcs_commit_options *options, uint64_t *number,
                                    struct lmcs_error *error)
{
    struct lmcs_capture *capture;
    if (options != NULL && options->asynchronous)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "a snapshot in one call is synchronous: begin a capture, and lmcs_capture_put_live");
    enum lmcs_status status = lmcs_capture_begin(pool, shelf, &capture, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_capture_put_live(capture, error);
    if (status == LMCS_OK)
        return lmcs_capture_commit(capture, options, number, error);
    lmcs_capture_abort(capture);
    return status;
}

/* ---- Back ---- */

struct restoring {
    struct lmcs_pool *pool;
    struct lmcs_snapshot *snapshot;
    struct lmcs_live_shelf *shelf;
    struct live_list now;
    struct live_list wanted; /* of the table: without places */
    uint64_t *reserves;
    struct lmcs_live_change *changes; /* `to` is ours until it is committed */
    size_t count;
    bool has_equal; /* tensors that have been what the snapshot has already */
};

static enum lmcs_status load_table(struct restoring *r, struct lmcs_error *error)
{
    static const char *const name = LMCS_LIVE_NAME;
    const uint32_t kind = LMCS_ATTACHMENT;
    struct lmcs_live_table_df header;
    struct lmcs_view *view;
    enum lmcs_status status = lmcs_view_open(r->snapshot, &name, &kind, 1, LMCS_VIEW_COPY, &view, error);
    if (status == LMCS_NOT_FOUND)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: %s@%llu was not taken of live variables", r->pool->path,
                         r->snapshot->shelf, (unsigned long long)r->snapshot->info.number);
    if (status != LMCS_OK)
        return status;
    const unsigned char *at = lmcs_view_data(view, 0);
    size_t left = lmcs_view_entry(view, 0)->raw_bytes;
    if (left < sizeof header)
        status = fail_table(r->snapshot, error);
    else
        memcpy(&header, at, sizeof header);
    if (status == LMCS_OK && (header.magic != LMCS_LIVE_MAGIC || header.version != 1 ||
                              header.count > left / sizeof(struct lmcs_live_entry_df)))
        status = fail_table(r->snapshot, error);
    if (status == LMCS_OK && (r->reserves = calloc(header.count + 1, sizeof *r->reserves)) == NULL)
        status = lmcs_fail_memory(error);
    at += sizeof header;
    left -= sizeof header < left ? sizeof header : left;
    for (uint64_t i = 0; status == LMCS_OK && i < header.count; i++) {
        struct lmcs_live_record *record;
        status = decode_entry(r->snapshot, &at, &left, &r->reserves[i], &record, error);
        if (status == LMCS_OK)
            status = add_record(&r->wanted, record, error);
        /* By name, as they were written: so none comes twice. */
        if (status == LMCS_OK && i > 0 && strcmp(r->wanted.records[i - 1]->name, r->wanted.records[i]->name) >= 0)
            status = fail_table(r->snapshot, error);
    }
    lmcs_view_close(view);
    return status;
}

/* Those that are held must be able to stay. */
static enum lmcs_status check_held(struct restoring *r, struct lmcs_error *error)
{
    for (size_t i = 0; i < r->now.count; i++) {
        struct lmcs_live_body *body = lmcs_live_body_of_id(r->pool->live, r->shelf->id, r->now.records[i]->id);
        const struct lmcs_live_record *wanted = find_record(&r->wanted, r->now.records[i]->name);
        if (body == NULL || body->handles == 0 || (wanted != NULL && lmcs_live_same_kind(body->record, wanted)))
            continue;
        return lmcs_live_fail_in_use(body, wanted == NULL ? "erased, as the snapshot has it" : "given another shape",
                                     error);
    }
    return LMCS_OK;
}

static bool same_note(const struct lmcs_live_record *a, const struct lmcs_live_record *b)
{
    return a->df.note_bytes == b->df.note_bytes && memcmp(a->note, b->note, a->df.note_bytes) == 0;
}

/* Whether what is there is what the view shows. Views of raw tensors are not checked: they must be, if it is not. */
static bool is_unchanged(const struct restoring *r, const struct lmcs_live_record *now,
                         const struct lmcs_live_record *wanted, const void *data, uint64_t bytes)
{
    if (now == NULL || !lmcs_live_same_kind(now, wanted) || !same_note(now, wanted))
        return false;
    if (now->df.form == LMCS_LIVE_VALUE) {
        struct lmcs_cell_state state;
        unsigned char *copy = malloc(LMCS_LIVE_MAX_VALUE);
        bool same = copy != NULL && lmcs_cell_read(r->pool, now, copy, &state, NULL) == LMCS_OK &&
                    state.bytes == bytes && memcmp(copy, data, bytes) == 0;
        free(copy);
        return same;
    }
    const void *there = now->df.part_count == 1 ? lmcs_media_at(r->pool->media, now->parts[0].offset, bytes) : NULL;
    return bytes == 0 || (there != NULL && lmcs_guard_equal(there, data, bytes, 2));
}

/* Reads a tensor into its new place, by a mapping that nobody else knows. */
static enum lmcs_status fill_tensor(struct restoring *r, const struct lmcs_live_record *record,
                                    struct lmcs_error *error)
{
    struct lmcs_live_body body = {.pool = r->pool, .record = (struct lmcs_live_record *)(uintptr_t)record};
    if (record->df.bytes == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_live_map(&body, record, 0, error);
    if (status != LMCS_OK)
        return status;
    lmcs_live_move(&body);
    status = lmcs_snapshot_read(r->snapshot, LMCS_TENSOR, record->name, body.data, record->df.bytes, error);
    if (status == LMCS_OK)
        status = lmcs_live_persist_range(&body, 0, record->df.bytes, error);
    lmcs_live_unmap_all(&body);
    return status;
}

/* Not more than the addresses of what is open are for: those stay. */
static uint64_t choose_reserve(const struct restoring *r, const struct lmcs_live_record *now, uint64_t wanted)
{
    const struct lmcs_live_body *body = now != NULL ? lmcs_live_body_of_id(r->pool->live, r->shelf->id, now->id) : NULL;
    uint64_t most = body != NULL && body->mappings != NULL ? body->mappings->bytes : wanted;
    return wanted == 0 || wanted > most ? most : wanted;
}

/* A device is mapped as a whole, so a tensor in another place has another address, which its holders don't know. */
static enum lmcs_status check_address(const struct restoring *r, const struct lmcs_live_record *now,
                                      struct lmcs_error *error)
{
    if (now == NULL || now->df.form != LMCS_LIVE_TENSOR || !lmcs_media_is_device(r->pool->media))
        return LMCS_OK;
    struct lmcs_live_body *body = lmcs_live_body_of_id(r->pool->live, r->shelf->id, now->id);
    return body == NULL || body->handles == 0
               ? LMCS_OK
               : lmcs_live_fail_in_use(body, "given what the snapshot has, which on a device is another address",
                                       error);
}

/* Makes what a variable is to become, if that is something else than it is. */
static enum lmcs_status restore_one(struct restoring *r, size_t i, struct lmcs_error *error)
{
    struct lmcs_live_record like = *r->wanted.records[i], *now = find_record(&r->now, like.name), *made = NULL;
    bool tensor = like.df.form == LMCS_LIVE_TENSOR;
    uint32_t kind = tensor ? LMCS_TENSOR : LMCS_ATTACHMENT;
    struct lmcs_cell_state state = {.version = 0};
    struct lmcs_view *view;
    enum lmcs_status status =
        lmcs_view_open(r->snapshot, &like.name, &kind, 1, tensor ? 0 : LMCS_VIEW_COPY, &view, error);
    if (status != LMCS_OK)
        return status == LMCS_NOT_FOUND ? fail_table(r->snapshot, error) : status;
    const struct lmcs_entry *entry = lmcs_view_entry(view, 0);
    uint64_t bytes = entry->raw_bytes;
    bool varies = lmcs_live_is_variable_length(&like);
    if (!varies && bytes != like.df.bytes)
        status = fail_table(r->snapshot, error);
    bool same = status == LMCS_OK && is_unchanged(r, now, &like, lmcs_view_data(view, 0), bytes);
    if (status == LMCS_OK && !same)
        status = check_address(r, now, error);
    if (status == LMCS_OK && !same) {
        like.id = now != NULL ? now->id : 0;
        if (now != NULL && lmcs_cell_read(r->pool, now, NULL, &state, error) != LMCS_OK)
            state.version = 0;
        like.df.bytes = bytes;
        like.shape = varies ? &bytes : like.shape;
        like.df.slot_bytes = tensor ? 0 : varies ? lmcs_live_roomy_slot(bytes) : lmcs_slot_room(bytes);
        status = bytes > LMCS_LIVE_MAX_VALUE && !tensor
                     ? fail_table(r->snapshot, error)
                     : lmcs_live_make(r->pool, r->shelf, &like, choose_reserve(r, now, r->reserves[i]),
                                      state.version + 1, tensor ? NULL : lmcs_view_data(view, 0), bytes, &made, error);
    }
    lmcs_view_close(view);
    if (same && tensor && bytes > 0) { /* stored, and perhaps never persisted */
        lmcs_heap_flush(r->pool->heap, now->parts[0].offset, bytes);
        r->has_equal = true;
    }
    if (status != LMCS_OK || same)
        return status;
    r->changes[r->count++] = (struct lmcs_live_change){now, made};
    return tensor ? fill_tensor(r, made, error) : LMCS_OK;
}

/*
 * After the commit: what is open shows it. Where that can't be mapped, the addresses still lead to the space that it
 * had, which therefore nobody gets before the pool is opened again.
 */
static void show(struct restoring *r, const struct lmcs_live_change *change)
{
    struct lmcs_live_body *body =
        change->from != NULL ? lmcs_live_body_of_id(r->pool->live, r->shelf->id, change->from->id) : NULL;
    struct lmcs_live_record *record = (struct lmcs_live_record *)(uintptr_t)change->to;
    bool is_shown = true;
    if (body != NULL && record != NULL) {
        pthread_mutex_lock(&body->lock);
        is_shown = lmcs_live_share(body, record);
        pthread_mutex_unlock(&body->lock);
        lmcs_live_body_unname(body);
        free(lmcs_live_body_set(body, record));
        lmcs_live_body_name(body);
    }
    if (is_shown)
        lmcs_live_give_difference(r->pool, change->from, record);
    if (body == NULL)
        free(record);
}

/* Under live->lock, with the shelf held. */
static enum lmcs_status restore_all(struct restoring *r, struct lmcs_error *error)
{
    enum lmcs_status status = list_all(r->pool, r->shelf->id, &r->now, error);
    if (status == LMCS_OK)
        status = check_held(r, error);
    if (status == LMCS_OK && (r->changes = calloc(r->now.count + r->wanted.count + 1, sizeof *r->changes)) == NULL)
        status = lmcs_fail_memory(error);
    for (size_t i = 0; status == LMCS_OK && i < r->wanted.count; i++)
        status = restore_one(r, i, error);
    for (size_t i = 0; status == LMCS_OK && i < r->now.count; i++)
        if (find_record(&r->wanted, r->now.records[i]->name) == NULL)
            r->changes[r->count++] = (struct lmcs_live_change){r->now.records[i], NULL};
    if (status == LMCS_OK && r->count > 0)
        status = lmcs_live_commit_changes(r->pool, r->changes, r->count, 0, error);
    else if (status == LMCS_OK && r->has_equal)
        status = lmcs_heap_sync(r->pool->heap, error);
    for (size_t i = 0; i < r->count; i++)
        if (status == LMCS_OK) {
            show(r, &r->changes[i]);
        } else {
            lmcs_live_give_difference(r->pool, r->changes[i].to, NULL);
            free((void *)(uintptr_t)r->changes[i].to);
        }
    return status;
}

enum lmcs_status lmcs_live_checkout(struct lmcs_pool *pool, const char *shelf, const char *which,
                                    struct lmcs_error *error)
{
    struct restoring r = {.pool = pool};
    enum lmcs_status status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_snapshot_find(pool, shelf, which, &r.snapshot, error);
    if (status != LMCS_OK)
        return status;
    status = load_table(&r, error);
    if (status == LMCS_OK) {
        pthread_mutex_lock(&pool->live->lock);
        status = lmcs_live_check(pool, true, error);
        if (status == LMCS_OK)
            status = lmcs_live_shelf_find(pool, shelf, true, &r.shelf, error);
        bool held = false;
        if (status == LMCS_OK) {
            status = lmcs_live_hold(pool, r.shelf, UINT32_MAX, error);
            held = status == LMCS_OK;
        }
        if (status == LMCS_OK)
            status = restore_all(&r, error);
        if (held)
            lmcs_live_let_go(pool, r.shelf);
        pthread_mutex_unlock(&pool->live->lock);
    }
    lmcs_snapshot_close(r.snapshot);
    free_list(&r.now);
    free_list(&r.wanted);
    free(r.reserves);
    free(r.changes);
    return status;
}
