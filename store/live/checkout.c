/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/checkout.c - makes live variables those of a snapshot.
 *
 * Differing variables are written to new places; one commit changes all records; then open variables are mapped there.
 * So none is ever half old and half new.
 */
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "live/cell.h"
#include "live/change.h"
#include "live/map.h"
#include "live/table.h"

struct restoring {
    struct lmcs_pool *pool;
    struct lmcs_snapshot *snapshot;
    struct lmcs_live_shelf *shelf;
    struct lmcs_live_list now;
    struct lmcs_live_list wanted; /* from the snapshot, without places */
    uint64_t *reserves;
    struct lmcs_live_change *changes; /* owns `to` until the commit */
    size_t count;
    bool has_equal;
};

/* Each open variable must be in the snapshot with the same dtype and shape. */
static enum lmcs_status check_held(struct restoring *r, struct lmcs_error *error)
{
    for (size_t i = 0; i < r->now.count; i++) {
        struct lmcs_live_body *body = lmcs_live_body_of_id(r->pool->live, r->shelf->id, r->now.records[i]->id);
        const struct lmcs_live_record *wanted = lmcs_live_list_find(&r->wanted, r->now.records[i]->name);
        if (body == NULL || body->handles == 0 || (wanted != NULL && lmcs_live_same_kind(body->record, wanted)))
            continue;
        return lmcs_live_fail_in_use(
            body, wanted == NULL ? "erased (the snapshot does not have it)" : "given another shape", error);
    }
    return LMCS_OK;
}

static bool same_note(const struct lmcs_live_record *a, const struct lmcs_live_record *b)
{
    return a->df.note_bytes == b->df.note_bytes && memcmp(a->note, b->note, a->df.note_bytes) == 0;
}

/* `data` of a raw tensor is not verified; if it differs, it is read again, verified. */
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

/* An open tensor's addresses bound its capacity. */
static uint64_t choose_reserve(const struct restoring *r, const struct lmcs_live_record *now, uint64_t wanted)
{
    const struct lmcs_live_body *body = now != NULL ? lmcs_live_body_of_id(r->pool->live, r->shelf->id, now->id) : NULL;
    uint64_t most = body != NULL && body->mappings != NULL ? body->mappings->bytes : wanted;
    return wanted == 0 || wanted > most ? most : wanted;
}

/* A device is mapped as a whole: open handles would not know a new place's addresses. */
static enum lmcs_status check_address(const struct restoring *r, const struct lmcs_live_record *now,
                                      struct lmcs_error *error)
{
    if (now == NULL || now->df.form != LMCS_LIVE_TENSOR || !lmcs_media_is_device(r->pool->media))
        return LMCS_OK;
    struct lmcs_live_body *body = lmcs_live_body_of_id(r->pool->live, r->shelf->id, now->id);
    return body == NULL || body->handles == 0
               ? LMCS_OK
               : lmcs_live_fail_in_use(body, "checked out (on a device its address would change)", error);
}

static enum lmcs_status restore_one(struct restoring *r, size_t i, struct lmcs_error *error)
{
    struct lmcs_live_record like = *r->wanted.records[i], *now = lmcs_live_list_find(&r->now, like.name), *made = NULL;
    bool tensor = like.df.form == LMCS_LIVE_TENSOR;
    uint32_t kind = tensor ? LMCS_TENSOR : LMCS_ATTACHMENT;
    struct lmcs_cell_state state = {.version = 0};
    struct lmcs_view *view;
    enum lmcs_status status =
        lmcs_view_open(r->snapshot, &like.name, &kind, 1, tensor ? 0 : LMCS_VIEW_COPY, &view, error);
    if (status != LMCS_OK)
        return status == LMCS_NOT_FOUND ? lmcs_live_table_fail(r->snapshot, error) : status;
    const struct lmcs_entry *entry = lmcs_view_entry(view, 0);
    uint64_t bytes = entry->raw_bytes;
    bool varies = lmcs_live_is_variable_length(&like);
    if (!varies && bytes != like.df.bytes)
        status = lmcs_live_table_fail(r->snapshot, error);
    bool same = status == LMCS_OK && is_unchanged(r, now, &like, lmcs_view_data(view, 0), bytes);
    if (status == LMCS_OK && !same)
        status = check_address(r, now, error);
    if (status == LMCS_OK && !same) {
        like.id = now != NULL ? now->id : 0;
        if (now != NULL && lmcs_cell_read(r->pool, now, NULL, &state, error) != LMCS_OK)
            state.version = 0;
        like.df.bytes = bytes;
        like.shape = varies ? &bytes : like.shape;
        like.df.slot_bytes = tensor ? 0 : varies ? lmcs_slot_roomy(bytes) : lmcs_slot_room(bytes);
        status = bytes > LMCS_LIVE_MAX_VALUE && !tensor
                     ? lmcs_live_table_fail(r->snapshot, error)
                     : lmcs_live_make(r->pool, r->shelf, &like, choose_reserve(r, now, r->reserves[i]),
                                      state.version + 1, tensor ? NULL : lmcs_view_data(view, 0), bytes, &made, error);
    }
    lmcs_view_close(view);
    if (same && tensor && bytes > 0) { /* perhaps stored and never persisted */
        lmcs_heap_flush(r->pool->heap, now->parts[0].offset, bytes);
        r->has_equal = true;
    }
    if (status != LMCS_OK || same)
        return status;
    r->changes[r->count++] = (struct lmcs_live_change){now, made};
    return tensor ? fill_tensor(r, made, error) : LMCS_OK;
}

/* Maps an open variable to its new places. If that fails, the old ones are not reused until the next open. */
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

/* Needs live->lock and the shelf held. */
static enum lmcs_status restore_all(struct restoring *r, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_list_load(r->pool, r->shelf->id, &r->now, error);
    if (status == LMCS_OK)
        status = check_held(r, error);
    if (status == LMCS_OK && (r->changes = calloc(r->now.count + r->wanted.count + 1, sizeof *r->changes)) == NULL)
        status = lmcs_fail_memory(error);
    for (size_t i = 0; status == LMCS_OK && i < r->wanted.count; i++)
        status = restore_one(r, i, error);
    for (size_t i = 0; status == LMCS_OK && i < r->now.count; i++)
        if (lmcs_live_list_find(&r->wanted, r->now.records[i]->name) == NULL)
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
    return lmcs_live_checkout_within(pool, shelf, which, UINT32_MAX, error);
}

enum lmcs_status lmcs_live_checkout_within(struct lmcs_pool *pool, const char *shelf, const char *which,
                                           uint32_t wait_ms, struct lmcs_error *error)
{
    struct restoring r = {.pool = pool};
    enum lmcs_status status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_snapshot_find(pool, shelf, which, &r.snapshot, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_table_load(r.snapshot, &r.wanted, &r.reserves, error);
    if (status == LMCS_OK) {
        pthread_mutex_lock(&pool->live->lock);
        status = lmcs_live_check(pool, true, error);
        if (status == LMCS_OK)
            status = lmcs_live_shelf_find(pool, shelf, true, &r.shelf, error);
        bool held = false;
        if (status == LMCS_OK) {
            status = lmcs_live_shelf_hold(pool, r.shelf, wait_ms, error);
            held = status == LMCS_OK;
        }
        if (status == LMCS_OK)
            status = restore_all(&r, error);
        if (held)
            lmcs_live_shelf_release(pool, r.shelf);
        pthread_mutex_unlock(&pool->live->lock);
    }
    lmcs_snapshot_close(r.snapshot);
    lmcs_live_list_free(&r.now);
    lmcs_live_list_free(&r.wanted);
    free(r.reserves);
    free(r.changes);
    return status;
}
