/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/change.c - making, erasing, naming and resizing live variables.
 *
 * Each of these makes a new record, with what it needs taken and written before, and puts it in place of the old one:
 * at once by a metadata transaction of its own, or, when the body is in a transaction, in memory alone until that
 * commits. The body then keeps a copy of the record that the pool has, `before`.
 */
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "live/live.h"
#include "records/content.h"

#define DOUBLE_FROM ((uint64_t)1 << 20) /* bytes: smaller tensors reserve nothing unless asked to */

/* ---- Changes ---- */

enum lmcs_status lmcs_live_commit_changes(struct lmcs_pool *pool, const struct lmcs_live_change *changes, size_t count,
                                          uint64_t sequence, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        txn.spends = txn.spends || changes[i].to != NULL;
    status = lmcs_live_change_put(&txn, changes, count, error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    txn.root.next_live = pool->live->next_id;
    if (sequence != 0)
        txn.root.live_committed = sequence;
    return lmcs_txn_commit(&txn, error);
}

struct lmcs_live_record *lmcs_live_body_set(struct lmcs_live_body *body, struct lmcs_live_record *record)
{
    struct lmcs_live_record *old = body->record;
    struct lmcs_error ignored;
    pthread_mutex_lock(&body->lock);
    body->record = record;
    if (record->df.cell != old->df.cell) {
        free(body->pending);
        body->pending = NULL;
        enum lmcs_status status = lmcs_cell_load(body, &ignored);
        body->is_unread = status != LMCS_OK;
        body->is_damaged = status == LMCS_DAMAGED;
    }
    lmcs_live_move(body);
    pthread_mutex_unlock(&body->lock);
    return old;
}

/* After a commit. */
static void apply(struct lmcs_live_body *body, struct lmcs_live_record *record)
{
    if (record == NULL) {
        lmcs_live_body_forget_name(body);
        body->stored = false; /* its space goes with its last holder */
        return;
    }
    lmcs_live_body_unname(body);
    struct lmcs_live_record *old = lmcs_live_body_set(body, record);
    lmcs_live_give_difference(body->pool, old, record); /* which nobody writes to any more */
    free(old);
    body->stored = record->name[0] != '\0';
    lmcs_live_body_name(body);
}

/* What only the transaction knows of, and it needs no longer. */
static void give_interim(struct lmcs_live_body *body, const struct lmcs_live_record *old)
{
    const struct lmcs_live_record *record = body->record, *before = body->before;
    bool kept = old->df.cell == record->df.cell || (before != NULL && old->df.cell == before->df.cell);
    if (!kept)
        lmcs_live_give_cell(body->pool, old->df.cell, old->df.cell_bytes);
    uint64_t from = before != NULL && before->df.bytes > record->df.bytes ? before->df.bytes : record->df.bytes, n;
    if (old->df.form != LMCS_LIVE_TENSOR)
        return;
    lmcs_live_unmap_tail(body, from, old->df.bytes); /* who still stores there must not reach the next one's pages */
    for (uint64_t at = lmcs_page_up(from), end = lmcs_page_up(old->df.bytes); at < end; at += n) {
        n = end - at;
        uint64_t place = lmcs_live_place(old, at, &n);
        lmcs_live_unback(body->pool, place, n);
    }
}

/* Until the commit of its transaction. */
static enum lmcs_status keep_for_later(struct lmcs_live_body *body, struct lmcs_live_record *record,
                                       struct lmcs_error *error)
{
    if (!body->changed && body->stored) {
        body->before = lmcs_live_record_new(body->record, error);
        if (body->before == NULL)
            return LMCS_NO_MEMORY;
    }
    body->changed = true;
    body->erased = record == NULL || record->name[0] == '\0';
    if (record == NULL) {
        lmcs_live_body_forget_name(body);
        return LMCS_OK;
    }
    lmcs_live_body_unname(body);
    struct lmcs_live_record *old = lmcs_live_body_set(body, record);
    give_interim(body, old);
    free(old);
    lmcs_live_body_name(body);
    return LMCS_OK;
}

static void give_up(struct lmcs_live_body *body, struct lmcs_live_record *record)
{
    if (record == NULL)
        return;
    struct lmcs_live_record kept = *body->record;
    if (body->before != NULL && body->before->df.bytes > kept.df.bytes)
        kept.df.bytes = body->before->df.bytes;
    lmcs_live_give_difference(body->pool, record, &kept);
    free(record);
}

enum lmcs_status lmcs_live_change_bodies(struct lmcs_live_body *const *bodies, struct lmcs_live_record *const *records,
                                         size_t count, struct lmcs_error *error)
{
    struct lmcs_live_change changes[2];
    enum lmcs_status status = LMCS_OK;
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        bool nameless = records[i] == NULL || records[i]->name[0] == '\0'; /* which are in no tree */
        changes[i] =
            (struct lmcs_live_change){bodies[i]->stored ? bodies[i]->record : NULL, nameless ? NULL : records[i]};
        any = any || changes[i].from != NULL || changes[i].to != NULL;
        if (bodies[i]->transaction != bodies[0]->transaction)
            status = lmcs_fail(error, LMCS_INVALID, 0,
                               "%s: live variable \"%.200s\" is in a transaction, and the other one is not",
                               bodies[0]->pool->path, bodies[i]->record->name);
    }
    bool later = bodies[0]->transaction != NULL;
    if (status == LMCS_OK && !later && any)
        status = lmcs_live_commit_changes(bodies[0]->pool, changes, count, 0, error);
    size_t done = 0;
    for (; status == LMCS_OK && done < count; done++)
        if (later)
            status = keep_for_later(bodies[done], records[done], error);
        else
            apply(bodies[done], records[done]);
    /* Without memory for the second one the first stays changed, in a transaction that can be aborted. */
    for (size_t i = status == LMCS_OK ? count : done > 0 ? done - 1 : 0; i < count; i++)
        give_up(bodies[i], records[i]);
    return status;
}

static enum lmcs_status change_one(struct lmcs_live_body *body, struct lmcs_live_record *record,
                                   struct lmcs_error *error)
{
    return lmcs_live_change_bodies(&body, &record, 1, error);
}

/* ---- Making ---- */

void lmcs_live_options_init(struct lmcs_live_options *options)
{
    *options = (struct lmcs_live_options){.form = LMCS_LIVE_TENSOR};
}

/* Stretches for `capacity` bytes, the first `bytes` of them with file space. */
static enum lmcs_status take_parts(struct lmcs_pool *pool, struct lmcs_live_df *df, struct lmcs_part_df *parts,
                                   uint64_t capacity, struct lmcs_error *error)
{
    uint64_t most = pool->part_bytes & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
    while (capacity > 0) {
        struct lmcs_part_df *part = &parts[df->part_count];
        if (df->part_count == LMCS_LIVE_MAX_EXTENTS)
            return lmcs_fail(
                error, LMCS_UNSUPPORTED, 0,
                "%s: a live tensor may lie in at most %u pieces of %llu bytes, and this one would need more; copy it "
                "to a new one that is as large, or reserves as much, and replace it by that",
                pool->path, LMCS_LIVE_MAX_EXTENTS, (unsigned long long)most);
        part->bytes = capacity < most ? capacity : most;
        enum lmcs_status status = lmcs_live_take(pool, part->bytes, &part->offset, error);
        if (status != LMCS_OK)
            return status;
        df->part_count++;
        capacity -= part->bytes;
    }
    return LMCS_OK;
}

/* File space for the pages from `from` on, up to those of all bytes. */
static enum lmcs_status back_pages(struct lmcs_pool *pool, const struct lmcs_live_record *record, uint64_t from,
                                   uint64_t *done, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    uint64_t n, end = lmcs_page_up(record->df.bytes);
    for (*done = from; status == LMCS_OK && *done < end; *done += status == LMCS_OK ? n : 0) {
        n = end - *done;
        uint64_t place = lmcs_live_place(record, *done, &n);
        status = lmcs_live_back(pool, place, n, error);
    }
    return status;
}

static uint64_t wanted_capacity(const struct lmcs_pool *pool, uint64_t bytes, uint64_t reserve_bytes)
{
    bool doubles = bytes >= DOUBLE_FROM && !lmcs_media_is_device(pool->media) && bytes < (uint64_t)1 << 60;
    uint64_t wanted = reserve_bytes != 0 ? reserve_bytes : doubles ? 2 * bytes : bytes;
    return lmcs_page_up(wanted > bytes ? wanted : bytes);
}

enum lmcs_status lmcs_live_make(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, struct lmcs_live_record *like,
                                uint64_t reserve_bytes, uint64_t version, const void *value, uint64_t value_bytes,
                                struct lmcs_live_record **record, struct lmcs_error *error)
{
    struct lmcs_part_df parts[LMCS_LIVE_MAX_EXTENTS];
    struct lmcs_live_record *made = NULL;
    uint64_t backed = 0;
    bool tensor = like->df.form == LMCS_LIVE_TENSOR;
    like->shelf = shelf->id;
    if (like->id == 0)
        like->id = pool->live->next_id++;
    like->parts = parts;
    like->df.part_count = 0;
    like->df.created_ns = lmcs_now_ns();
    like->df.cell_bytes = tensor ? sizeof(struct lmcs_cell_df) : lmcs_cell_room(like->df.slot_bytes);
    enum lmcs_status status = lmcs_live_take_cell(pool, like->df.cell_bytes, &like->df.cell, error);
    if (status != LMCS_OK)
        return status;
    if (tensor && (like->df.bytes > 0 || reserve_bytes > 0))
        status = take_parts(pool, &like->df, parts, wanted_capacity(pool, like->df.bytes, reserve_bytes), error);
    if (status == LMCS_OK && tensor)
        status = back_pages(pool, like, 0, &backed, error);
    if (status == LMCS_OK)
        status = lmcs_cell_init(pool, like, version, value, value_bytes, error);
    if (status == LMCS_OK && (made = lmcs_live_record_new(like, error)) == NULL)
        status = LMCS_NO_MEMORY;
    if (status != LMCS_OK) {
        like->df.bytes = backed;
        lmcs_live_give_difference(pool, like, NULL);
        return status;
    }
    *record = made;
    return LMCS_OK;
}

static enum lmcs_status check_new(const struct lmcs_tensor *tensor, const struct lmcs_live_options *options,
                                  struct lmcs_live_record *like, struct lmcs_error *error)
{
    uint64_t bytes;
    bool unnamed = (options->flags & LMCS_LIVE_UNNAMED) != 0;
    struct lmcs_tensor checked = *tensor;
    if (unnamed && checked.name == NULL)
        checked.name = "unnamed";
    enum lmcs_status status = lmcs_tensor_check_put(&checked, &bytes, error);
    if (status == LMCS_OK)
        status = lmcs_live_check_name(checked.name, error);
    if (status != LMCS_OK)
        return status;
    if (tensor->strides != NULL || tensor->global_shape != NULL || tensor->kind != LMCS_TENSOR ||
        options->form > LMCS_LIVE_VALUE || (options->flags & ~(uint32_t)LMCS_LIVE_UNNAMED) != 0)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "live variable \"%.200s\": it is a tensor or a value, row-major, and no part of another",
                         checked.name);
    if (options->note_bytes > LMCS_LIVE_MAX_NOTE)
        return lmcs_fail(error, LMCS_INVALID, 0, "live variable \"%.200s\": its note has %zu bytes; %u are allowed",
                         checked.name, options->note_bytes, LMCS_LIVE_MAX_NOTE);
    if (options->form == LMCS_LIVE_VALUE && bytes > LMCS_LIVE_MAX_VALUE)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "live variable \"%.200s\": a value has at most %u bytes, and this one would have %llu: make "
                         "it a tensor",
                         checked.name, LMCS_LIVE_MAX_VALUE, (unsigned long long)bytes);
    if (options->reserve_bytes > (uint64_t)1 << 55)
        return lmcs_fail(error, LMCS_INVALID, 0, "live variable \"%.200s\": %llu bytes can't be reserved", checked.name,
                         (unsigned long long)options->reserve_bytes);
    *like = (struct lmcs_live_record){.shape = tensor->shape, .note = options->note};
    like->name = unnamed ? "" : tensor->name;
    like->df = (struct lmcs_live_df){.bytes = bytes,
                                     .form = (uint8_t)options->form,
                                     .dtype = (uint8_t)tensor->dtype,
                                     .ndim = (uint8_t)tensor->ndim,
                                     .note_bytes = (uint16_t)options->note_bytes,
                                     .name_bytes = (uint16_t)strlen(like->name)};
    like->df.slot_bytes = options->form == LMCS_LIVE_VALUE ? lmcs_slot_room(bytes) : 0;
    return LMCS_OK;
}

/* A body for a new variable, and its record in the pool if it has a name. */
static enum lmcs_status make_body(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, struct lmcs_live_record *like,
                                  uint64_t reserve_bytes, const void *value, uint64_t value_bytes,
                                  struct lmcs_live_body **body, struct lmcs_error *error)
{
    struct lmcs_live_record *record = NULL;
    enum lmcs_status status = lmcs_live_make(pool, shelf, like, reserve_bytes, 1, value, value_bytes, &record, error);
    return status == LMCS_OK ? lmcs_live_body_new(pool, shelf, record, false, body, error) : status;
}

static enum lmcs_status create(struct lmcs_pool *pool, const char *shelf_name, struct lmcs_live_record *like,
                               uint64_t reserve_bytes, struct lmcs_live **live, struct lmcs_error *error)
{
    struct lmcs_live_shelf *shelf;
    struct lmcs_live_body *body = NULL, *other = NULL;
    struct lmcs_live *handle = NULL;
    bool named = like->name[0] != '\0';
    enum lmcs_status status = lmcs_live_shelf_find(pool, shelf_name, true, &shelf, error);
    if (status == LMCS_OK && named)
        status = lmcs_live_body_find(pool, shelf, like->name, &other, error);
    if (status == LMCS_OK && other != NULL) {
        lmcs_live_body_release(other);
        return lmcs_fail(error, LMCS_EXISTS, 0, "%s: shelf \"%.200s\" has a live variable \"%.200s\" already",
                         pool->path, shelf_name, like->name);
    }
    if (status == LMCS_OK)
        status = make_body(pool, shelf, like, reserve_bytes, NULL, like->df.bytes, &body, error);
    if (status != LMCS_OK)
        return status;
    if (live != NULL)
        status = lmcs_live_handle_new(body, &handle, error);
    struct lmcs_live_record *record = NULL;
    if (status == LMCS_OK && named && (record = lmcs_live_record_new(body->record, error)) == NULL)
        status = LMCS_NO_MEMORY;
    if (status == LMCS_OK && named)
        status = lmcs_transaction_join(body, shelf->transaction, true, error);
    if (status == LMCS_OK && named)
        status = change_one(body, record, error);
    lmcs_live_body_release(body);
    if (status == LMCS_OK && live != NULL)
        *live = handle;
    else if (handle != NULL) {
        handle->body->handles--;
        lmcs_live_body_release(handle->body);
        free(handle);
        (void)!lmcs_pool_close(pool, NULL);
    }
    return status;
}

enum lmcs_status lmcs_live_create(struct lmcs_pool *pool, const char *shelf, const struct lmcs_tensor *tensor,
                                  const struct lmcs_live_options *options, struct lmcs_live **live,
                                  struct lmcs_error *error)
{
    struct lmcs_live_options defaults;
    struct lmcs_live_record like;
    lmcs_live_options_init(&defaults);
    options = options != NULL ? options : &defaults;
    enum lmcs_status status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK)
        status = check_new(tensor, options, &like, error);
    if (status == LMCS_OK && like.name[0] == '\0' && live == NULL)
        status = lmcs_fail(error, LMCS_INVALID, 0, "an unnamed live variable needs a handle");
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->live->lock);
    status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK)
        status = create(pool, shelf, &like, options->reserve_bytes, live, error);
    pthread_mutex_unlock(&pool->live->lock);
    return status;
}

/* ---- Erasing and naming ---- */

typedef enum lmcs_status work_on_two(struct lmcs_live_body *first, struct lmcs_live_body *second,
                                     const char *second_name, struct lmcs_error *error);

/* Finds variables by their names (the second may be missing if `may_miss`), and works on them. */
static enum lmcs_status on_names(struct lmcs_pool *pool, const char *shelf_name, const char *first, const char *second,
                                 bool may_miss, work_on_two *work, struct lmcs_error *error)
{
    struct lmcs_live_shelf *shelf = NULL;
    struct lmcs_live_body *one = NULL, *two = NULL;
    enum lmcs_status status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK && second != NULL)
        status = lmcs_live_check_name(second, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->live->lock);
    status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_live_shelf_find(pool, shelf_name, false, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_live_body_get(pool, shelf, shelf_name, first, &one, error);
    if (status == LMCS_OK && second != NULL)
        status = may_miss ? lmcs_live_body_find(pool, shelf, second, &two, error)
                          : lmcs_live_body_get(pool, shelf, shelf_name, second, &two, error);
    if (status == LMCS_OK)
        status = work(one, two, second, error);
    if (one != NULL)
        lmcs_live_body_release(one);
    if (two != NULL)
        lmcs_live_body_release(two);
    pthread_mutex_unlock(&pool->live->lock);
    return status;
}

static enum lmcs_status erase(struct lmcs_live_body *body, struct lmcs_live_body *none, const char *no_name,
                              struct lmcs_error *error)
{
    (void)none;
    (void)no_name;
    return body->handles > 0 ? lmcs_live_fail_in_use(body, "erased", error) : change_one(body, NULL, error);
}

enum lmcs_status lmcs_live_erase(struct lmcs_pool *pool, const char *shelf, const char *name, struct lmcs_error *error)
{
    return on_names(pool, shelf, name, NULL, false, erase, error);
}

static struct lmcs_live_record *renamed(const struct lmcs_live_record *record, const char *name,
                                        struct lmcs_error *error)
{
    struct lmcs_live_record like = *record;
    like.name = name;
    like.df.name_bytes = (uint16_t)strlen(name);
    return lmcs_live_record_new(&like, error);
}

static enum lmcs_status rename_one(struct lmcs_live_body *body, struct lmcs_live_body *other, const char *name,
                                   struct lmcs_error *error)
{
    if (other == body)
        return LMCS_OK;
    if (other != NULL)
        return lmcs_fail(error, LMCS_EXISTS, 0, "%s: shelf \"%.200s\" has a live variable \"%.200s\" already",
                         body->pool->path, body->shelf->name, name);
    if (body->transaction == NULL && lmcs_transaction_gave_up(body->shelf->transaction, name))
        return lmcs_fail(error, LMCS_IN_USE, 0,
                         "%s: live variable \"%.200s\" can't be named \"%.200s\": a transaction that it is not in has "
                         "given that name up, and gets it back when it is aborted; commit or abort it before, or begin "
                         "one with both variables",
                         body->pool->path, body->record->name, name);
    struct lmcs_live_record *record = renamed(body->record, name, error);
    return record != NULL ? change_one(body, record, error) : LMCS_NO_MEMORY;
}

enum lmcs_status lmcs_live_rename(struct lmcs_pool *pool, const char *shelf, const char *from, const char *to,
                                  struct lmcs_error *error)
{
    return on_names(pool, shelf, from, to == NULL ? "" : to, true, rename_one, error);
}

static enum lmcs_status swap(struct lmcs_live_body *first, struct lmcs_live_body *second, const char *name,
                             struct lmcs_error *error)
{
    (void)name;
    struct lmcs_live_body *bodies[2] = {first, second};
    if (first == second)
        return LMCS_OK;
    struct lmcs_live_record *records[2] = {renamed(first->record, second->record->name, error),
                                           renamed(second->record, first->record->name, error)};
    if (records[0] != NULL && records[1] != NULL)
        return lmcs_live_change_bodies(bodies, records, 2, error);
    free(records[0]);
    free(records[1]);
    return LMCS_NO_MEMORY;
}

enum lmcs_status lmcs_live_swap(struct lmcs_pool *pool, const char *shelf, const char *first, const char *second,
                                struct lmcs_error *error)
{
    return on_names(pool, shelf, first, second == NULL ? "" : second, false, swap, error);
}

enum lmcs_status lmcs_live_persist_range(struct lmcs_live_body *body, uint64_t offset, uint64_t bytes,
                                         struct lmcs_error *error)
{
    return bytes == 0 || body->record->df.form != LMCS_LIVE_TENSOR
               ? LMCS_OK
               : lmcs_heap_persist(body->pool->heap, body->data + offset, bytes, error);
}

static enum lmcs_status replace(struct lmcs_live_body *body, const char *name, struct lmcs_error *error)
{
    struct lmcs_live_body *old = NULL;
    const struct lmcs_live_record *has = body->before != NULL ? body->before : body->record;
    if (body->stored || body->named)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "%s: live variable \"%.200s\" has a name; only an unnamed one replaces", body->pool->path,
                         has->name);
    enum lmcs_status status = lmcs_live_body_find(body->pool, body->shelf, name, &old, error);
    if (status == LMCS_OK)
        status = lmcs_live_persist_range(body, 0, body->record->df.bytes, error);
    struct lmcs_live_record *record = status == LMCS_OK ? renamed(body->record, name, error) : NULL;
    if (status == LMCS_OK && record == NULL)
        status = LMCS_NO_MEMORY;
    if (status == LMCS_OK) {
        status = lmcs_transaction_join(body, old != NULL ? old->transaction : body->shelf->transaction, true, error);
        struct lmcs_live_body *bodies[2] = {old != NULL ? old : body, body};
        struct lmcs_live_record *records[2] = {old != NULL ? NULL : record, record};
        if (status == LMCS_OK)
            status = lmcs_live_change_bodies(bodies, records, old != NULL ? 2 : 1, error);
        else
            free(record);
    }
    if (old != NULL)
        lmcs_live_body_release(old);
    return status;
}

enum lmcs_status lmcs_live_replace(struct lmcs_live *live, const char *name, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_check(live->pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_live_check_name(name, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&live->pool->live->lock);
    status = lmcs_live_check(live->pool, true, error);
    if (status == LMCS_OK)
        status = replace(live->body, name, error);
    pthread_mutex_unlock(&live->pool->live->lock);
    return status;
}

/* ---- Sizes ---- */

static enum lmcs_status fail_growth(struct lmcs_live_body *body, enum lmcs_status status, uint64_t bytes,
                                    const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, status, 0, "%s: live tensor \"%.200s\" can't grow to %llu bytes: %s", body->pool->path,
                     body->record->name, (unsigned long long)bytes, why);
}

/* Makes a record's parts enough for `bytes`: by what is free behind the last one, else by another one. */
static enum lmcs_status widen(struct lmcs_live_body *body, struct lmcs_live_record *like, struct lmcs_part_df *parts,
                              struct lmcs_error *error)
{
    struct lmcs_pool *pool = body->pool;
    uint64_t had = lmcs_live_capacity(body->record), bytes = like->df.bytes;
    uint64_t reserved = body->mappings != NULL ? body->mappings->bytes : 0;
    if (body->is_private && (bytes > had || bytes > reserved))
        return fail_growth(body, LMCS_UNSUPPORTED, bytes,
                           "it would need another address, which can't be within a transaction; resize it before, or "
                           "reserve more when it is made",
                           error);
    if (bytes <= had)
        return LMCS_OK;
    uint64_t wanted = wanted_capacity(pool, bytes, 0);
    wanted = (bytes <= reserved && wanted > reserved ? reserved : wanted) - had; /* to which its address stays */
    struct lmcs_part_df *last = like->df.part_count > 0 ? &parts[like->df.part_count - 1] : NULL;
    if (last != NULL && last->bytes + wanted <= pool->part_bytes &&
        lmcs_live_take_at(pool, last->offset + last->bytes, wanted)) {
        last->bytes += wanted;
        return LMCS_OK;
    }
    if (lmcs_media_is_device(pool->media) && last != NULL)
        return fail_growth(body, LMCS_UNSUPPORTED, bytes,
                           "the device has something else behind it; reserve more when "
                           "it is made",
                           error);
    return take_parts(pool, &like->df, parts, wanted, error);
}

/* Bytes behind the old end, on its last page and on pages that a transaction has kept, may be old ones. */
static enum lmcs_status zero_tail(struct lmcs_live_body *body, uint64_t from, uint64_t kept, uint64_t end,
                                  struct lmcs_error *error)
{
    char *data = body->moving != NULL ? body->moving->at : body->data;
    uint64_t last = lmcs_page_up(from > kept ? from : kept);
    last = last < end ? last : end;
    if (from >= last)
        return LMCS_OK;
    enum lmcs_status status = lmcs_transaction_will_store(body, from, last - from, error);
    if (status != LMCS_OK)
        return status;
    if (!lmcs_guard_store(data + from, NULL, last - from))
        return fail_growth(body, LMCS_IO, end, "the medium can't be written", error);
    return body->transaction == NULL ? lmcs_heap_persist(body->pool->heap, data + from, last - from, error) : LMCS_OK;
}

static enum lmcs_status grow(struct lmcs_live_body *body, struct lmcs_live_record *like, struct lmcs_part_df *parts,
                             struct lmcs_error *error)
{
    uint64_t old = body->record->df.bytes, kept = body->before != NULL ? body->before->df.bytes : 0, done;
    struct lmcs_live_record *record = NULL;
    enum lmcs_status status = widen(body, like, parts, error);
    uint64_t from = lmcs_page_up(old > kept ? old : kept);
    done = from;
    if (status == LMCS_OK)
        status = back_pages(body->pool, like, from, &done, error);
    if (status == LMCS_OK && (record = lmcs_live_record_new(like, error)) == NULL)
        status = LMCS_NO_MEMORY;
    if (status == LMCS_OK) /* pages that a transaction has kept are mapped already */
        status = lmcs_live_map(body, like, old > kept ? old : kept, error);
    if (status != LMCS_OK) {
        free(record);
        like->df.bytes = done;
        struct lmcs_live_record now = *body->record;
        now.df.bytes = old > kept ? old : kept;
        lmcs_live_give_difference(body->pool, like, &now);
        return status;
    }
    status = zero_tail(body, old, kept, like->df.bytes, error);
    if (status == LMCS_OK)
        status = change_one(body, record, error);
    else
        give_up(body, record);
    if (status != LMCS_OK)
        lmcs_live_unmap_growth(body, old > kept ? old : kept, like->df.bytes);
    return status;
}

static enum lmcs_status resize(struct lmcs_live_body *body, uint32_t ndim, const uint64_t *shape,
                               struct lmcs_error *error)
{
    struct lmcs_part_df parts[LMCS_LIVE_MAX_EXTENTS];
    struct lmcs_live_record like = *body->record;
    uint64_t bytes, old = like.df.bytes;
    if (like.df.form != LMCS_LIVE_TENSOR)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: live variable \"%.200s\" is a value: only tensors are resized",
                         body->pool->path, like.name);
    if (ndim > LMCS_MAX_DIMS || !lmcs_shape_bytes(like.df.dtype, ndim, shape, &bytes))
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: live tensor \"%.200s\": that is no shape that it can have",
                         body->pool->path, like.name);
    if (like.df.part_count > 0)
        memcpy(parts, like.parts, like.df.part_count * sizeof parts[0]);
    like.parts = parts;
    like.shape = shape;
    like.df.ndim = (uint8_t)ndim;
    like.df.bytes = bytes;
    if (bytes > old)
        return grow(body, &like, parts, error);
    if (bytes < old && body->handles > 1) /* where the others' addresses end, pages would go */
        return lmcs_fail(
            error, LMCS_IN_USE, 0,
            "%s: live tensor \"%.200s\" can't be made smaller: it is open %u times more in this process, and "
            "who has it open may look at what would be cut off; close those first",
            body->pool->path, like.name, body->handles - 1);
    struct lmcs_live_record *record = lmcs_live_record_new(&like, error);
    if (record == NULL)
        return LMCS_NO_MEMORY;
    /* In a transaction the pages that it found stay until it has committed. */
    enum lmcs_status status = change_one(body, record, error);
    if (status == LMCS_OK && body->transaction == NULL)
        lmcs_live_unmap_tail(body, bytes, old);
    return status;
}

enum lmcs_status lmcs_live_resize(struct lmcs_live *live, uint32_t ndim, const uint64_t *shape,
                                  struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_check(live->pool, true, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&live->pool->live->lock);
    status = lmcs_live_check(live->pool, true, error);
    if (status == LMCS_OK)
        status = resize(live->body, ndim, shape, error);
    pthread_mutex_unlock(&live->pool->live->lock);
    return status;
}

static enum lmcs_status set_note(struct lmcs_live_body *body, const void *note, size_t note_bytes,
                                 struct lmcs_error *error)
{
    struct lmcs_live_record like = *body->record;
    like.note = note;
    like.df.note_bytes = (uint16_t)note_bytes;
    struct lmcs_live_record *record = lmcs_live_record_new(&like, error);
    return record != NULL ? change_one(body, record, error) : LMCS_NO_MEMORY;
}

enum lmcs_status lmcs_live_set_note(struct lmcs_live *live, const void *note, size_t note_bytes,
                                    struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_check(live->pool, true, error);
    if (status == LMCS_OK && note_bytes > LMCS_LIVE_MAX_NOTE)
        status = lmcs_fail(error, LMCS_INVALID, 0, "a note has at most %u bytes, this one has %zu", LMCS_LIVE_MAX_NOTE,
                           note_bytes);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&live->pool->live->lock);
    status = lmcs_live_check(live->pool, true, error);
    if (status == LMCS_OK)
        status = set_note(live->body, note, note_bytes, error);
    pthread_mutex_unlock(&live->pool->live->lock);
    return status;
}
