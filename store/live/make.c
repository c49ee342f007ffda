/* SPDX-License-Identifier: BSD-3-Clause */
/* live/make.c - making live variables. */
#include <stdlib.h>
#include <string.h>

#include "live/cell.h"
#include "live/change.h"
#include "live/map.h"
#include "records/content.h"

#define DOUBLE_FROM ((uint64_t)1 << 20) /* bytes; smaller tensors reserve nothing by default */

enum lmcs_status lmcs_live_take_parts(struct lmcs_pool *pool, struct lmcs_live_df *df, struct lmcs_part_df *parts,
                                      uint64_t capacity, struct lmcs_error *error)
{
    uint64_t most = pool->part_bytes & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
    while (capacity > 0) {
        struct lmcs_part_df *part = &parts[df->part_count];
        if (df->part_count == LMCS_LIVE_MAX_EXTENTS)
            return lmcs_fail(
                error, LMCS_UNSUPPORTED, 0,
                "%s: a live tensor has at most %u parts of %llu bytes, and this one needs more; create a tensor of the "
                "full size, copy the bytes, and replace the old one by it",
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

enum lmcs_status lmcs_live_back_pages(struct lmcs_pool *pool, const struct lmcs_live_record *record, uint64_t from,
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

uint64_t lmcs_live_choose_capacity(const struct lmcs_pool *pool, uint64_t bytes, uint64_t reserve_bytes)
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
        status = lmcs_live_take_parts(pool, &like->df, parts,
                                      lmcs_live_choose_capacity(pool, like->df.bytes, reserve_bytes), error);
    if (status == LMCS_OK && tensor)
        status = lmcs_live_back_pages(pool, like, 0, &backed, error);
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

void lmcs_live_options_init(struct lmcs_live_options *options)
{
    *options = (struct lmcs_live_options){.form = LMCS_LIVE_TENSOR};
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
        return lmcs_fail(
            error, LMCS_INVALID, 0,
            "live variable \"%.200s\": must be a tensor or a value, row-major, and not a part of a larger one",
            checked.name);
    if (options->note_bytes > LMCS_LIVE_MAX_NOTE)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "live variable \"%.200s\": the note has %zu bytes; at most %u are allowed", checked.name,
                         options->note_bytes, LMCS_LIVE_MAX_NOTE);
    if (options->form == LMCS_LIVE_VALUE && bytes > LMCS_LIVE_MAX_VALUE)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "live variable \"%.200s\": a value has at most %u bytes, not %llu; create a tensor instead",
                         checked.name, LMCS_LIVE_MAX_VALUE, (unsigned long long)bytes);
    if (options->value != NULL && (options->form != LMCS_LIVE_VALUE || options->value_bytes != bytes))
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "live variable \"%.200s\": options.value is for values alone, and has %llu bytes, not %llu",
                         checked.name, (unsigned long long)bytes, (unsigned long long)options->value_bytes);
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

static enum lmcs_status make_body(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, struct lmcs_live_record *like,
                                  const struct lmcs_live_options *options, struct lmcs_live_body **body,
                                  struct lmcs_error *error)
{
    struct lmcs_live_record *record = NULL;
    enum lmcs_status status =
        lmcs_live_make(pool, shelf, like, options->reserve_bytes, 1, options->value, like->df.bytes, &record, error);
    return status == LMCS_OK ? lmcs_live_body_new(pool, shelf, record, false, body, error) : status;
}

static enum lmcs_status create(struct lmcs_pool *pool, const char *shelf_name, struct lmcs_live_record *like,
                               const struct lmcs_live_options *options, struct lmcs_live **live,
                               struct lmcs_error *error)
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
        status = make_body(pool, shelf, like, options, &body, error);
    if (status != LMCS_OK)
        return status;
    if (live != NULL)
        status = lmcs_live_handle_new(body, &handle, error);
    struct lmcs_live_record *record = NULL;
    if (status == LMCS_OK && named && (record = lmcs_live_record_new(body->record, error)) == NULL)
        status = LMCS_NO_MEMORY;
    if (status == LMCS_OK && named)
        status = lmcs_live_replace_body(NULL, body, record, error);
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
        status = lmcs_fail(error, LMCS_INVALID, 0, "an unnamed live variable needs a handle; pass `live`");
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->live->lock);
    status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK)
        status = create(pool, shelf, &like, options, live, error);
    pthread_mutex_unlock(&pool->live->lock);
    return status;
}
