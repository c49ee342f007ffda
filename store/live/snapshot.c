/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/snapshot.c - puts live variables into a snapshot.
 *
 * Tensors are put from the mapping of the whole pool, or one of their own if they have several parts: those of handles
 * may have advice that is wrong for reading all. Values are put as copies.
 */
#include <stdlib.h>

#include "capture/capture.h"
#include "live/cell.h"
#include "live/map.h"
#include "live/table.h"

struct putting {
    struct lmcs_pool *pool;
    struct lmcs_live_list list;
    struct lmcs_tensor *tensors;
    const void **data;
    void **copies; /* values, attachment; owned */
    size_t copy_count;
    struct lmcs_live_body **bodies; /* mappings of tensors in several parts; owned */
    size_t body_count;
    size_t pinned;
    uint64_t *lengths;
};

static enum lmcs_status put_tensor(struct putting *putting, size_t i, struct lmcs_error *error)
{
    struct lmcs_live_record *record = putting->list.records[i];
    if (record->df.part_count <= 1) {
        putting->data[i] = record->df.bytes == 0
                               ? NULL
                               : lmcs_media_at(putting->pool->media, record->parts[0].offset, record->df.bytes);
        return LMCS_OK;
    }
    struct lmcs_live_body *body = calloc(1, sizeof *body);
    if (body == NULL)
        return lmcs_fail_memory(error);
    body->pool = putting->pool;
    body->record = record;
    putting->bodies[putting->body_count++] = body;
    enum lmcs_status status = lmcs_live_map(body, record, 0, error);
    if (status == LMCS_OK)
        lmcs_live_move(body);
    putting->data[i] = body->data;
    return status;
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

/* Lists, pins and copies the variables to put: pinned tensors stay even if erased. Needs live->lock. */
static enum lmcs_status prepare(struct putting *putting, struct lmcs_live_shelf *shelf, struct lmcs_error *error)
{
    struct lmcs_live_list *list = &putting->list;
    enum lmcs_status status = shelf != NULL ? lmcs_live_list_load(putting->pool, shelf->id, list, error) : LMCS_OK;
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
            status = record->df.form == LMCS_LIVE_TENSOR ? put_tensor(putting, i, error) : put_value(putting, i, error);
    }
    if (status != LMCS_OK)
        return status;
    size_t bytes, last = list->count;
    void *table = lmcs_live_table_encode(list, &bytes);
    if (table == NULL)
        return lmcs_fail_memory(error);
    putting->copies[putting->copy_count++] = table;
    putting->lengths[last] = bytes;
    putting->data[last] = table;
    putting->tensors[last] = (struct lmcs_tensor){
        .name = LMCS_LIVE_NAME, .kind = LMCS_ATTACHMENT, .dtype = LMC_U8, .ndim = 1, .shape = &putting->lengths[last]};
    return LMCS_OK;
}

/* Releases all. Needs live->lock. */
static void finish(struct putting *putting)
{
    for (size_t i = 0; i < putting->pinned; i++)
        (void)!pin_record(putting->pool, putting->list.records[i], false, NULL);
    for (size_t i = 0; i < putting->body_count; i++) {
        lmcs_live_unmap_all(putting->bodies[i]);
        free(putting->bodies[i]);
    }
    for (size_t i = 0; i < putting->copy_count; i++)
        free(putting->copies[i]);
    free(putting->tensors);
    free(putting->data);
    free(putting->copies);
    free(putting->bodies);
    free(putting->lengths);
    lmcs_live_list_free(&putting->list);
}

enum lmcs_status lmcs_capture_put_live(struct lmcs_capture *capture, struct lmcs_error *error)
{
    return lmcs_capture_put_live_within(capture, UINT32_MAX, error);
}

enum lmcs_status lmcs_capture_put_live_within(struct lmcs_capture *capture, uint32_t wait_ms, struct lmcs_error *error)
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
        status = lmcs_live_shelf_hold(putting.pool, shelf, wait_ms, error);
    bool held = status == LMCS_OK;
    if (held && shelf != NULL)
        shelf->is_read = true;
    if (held)
        status = prepare(&putting, shelf, error);
    pthread_mutex_unlock(&live->lock);
    lmcs_capture_waits(capture, false);
    if (!held)
        return status;
    if (status == LMCS_OK)
        status = lmcs_capture_put_copies(capture, putting.tensors, putting.data, putting.list.count + 1, error);
    pthread_mutex_lock(&live->lock);
    finish(&putting);
    if (shelf != NULL) {
        shelf->is_read = false;
        lmcs_live_shelf_release(putting.pool, shelf);
    }
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
                         "lmcs_live_snapshot can't be asynchronous; use lmcs_capture_begin and lmcs_capture_put_live");
    enum lmcs_status status = lmcs_capture_begin(pool, shelf, &capture, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_capture_put_live(capture, error);
    if (status == LMCS_OK)
        return lmcs_capture_commit(capture, options, number, error);
    lmcs_capture_abort(capture);
    return status;
}
