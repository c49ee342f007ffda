/* SPDX-License-Identifier: BSD-3-Clause */
/* live/resize.c - giving live tensors other shapes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "live/change.h"
#include "live/map.h"
#include "live/txn.h"
#include "records/content.h"

static enum lmcs_status fail_growth(struct lmcs_live_body *body, enum lmcs_status status, uint64_t bytes,
                                    const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, status, 0, "%s: live tensor \"%.200s\" can't grow to %llu bytes: %s", body->pool->path,
                     body->record->name, (unsigned long long)bytes, why);
}

/* Extends the last part if the pages behind it are free, else adds parts. */
static enum lmcs_status widen(struct lmcs_live_body *body, struct lmcs_live_record *like, struct lmcs_part_df *parts,
                              struct lmcs_error *error)
{
    struct lmcs_pool *pool = body->pool;
    uint64_t had = lmcs_live_capacity(body->record), bytes = like->df.bytes;
    uint64_t reserved = body->mappings != NULL ? body->mappings->bytes : 0;
    if (body->is_private && (bytes > had || bytes > reserved))
        return fail_growth(body, LMCS_UNSUPPORTED, bytes,
                           "its address would change, which a transaction does not allow; resize it before the "
                           "transaction, or reserve more when you create it",
                           error);
    if (bytes <= had)
        return LMCS_OK;
    uint64_t wanted = lmcs_live_choose_capacity(pool, bytes, 0);
    wanted = (bytes <= reserved && wanted > reserved ? reserved : wanted) - had; /* within its addresses */
    struct lmcs_part_df *last = like->df.part_count > 0 ? &parts[like->df.part_count - 1] : NULL;
    if (last != NULL && last->bytes + wanted <= pool->part_bytes &&
        lmcs_live_take_at(pool, last->offset + last->bytes, wanted)) {
        last->bytes += wanted;
        return LMCS_OK;
    }
    if (lmcs_media_is_device(pool->media) && last != NULL)
        return fail_growth(body, LMCS_UNSUPPORTED, bytes,
                           "the space behind it on the device is in use; reserve more when you create it", error);
    return lmcs_live_take_parts(pool, &like->df, parts, wanted, error);
}

/* The old last page and pages kept by the transaction may have old contents behind the old end. */
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
        status = lmcs_live_back_pages(body->pool, like, from, &done, error);
    if (status == LMCS_OK && (record = lmcs_live_record_new(like, error)) == NULL)
        status = LMCS_NO_MEMORY;
    if (status == LMCS_OK) /* pages kept by a transaction are mapped */
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
        status = lmcs_live_change_body(body, record, error);
    else
        lmcs_live_record_discard(body, record);
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
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: live variable \"%.200s\" is a value; only tensors can be resized",
                         body->pool->path, like.name);
    if (ndim > LMCS_MAX_DIMS || !lmcs_shape_bytes(like.df.dtype, ndim, shape, &bytes))
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: live tensor \"%.200s\": invalid shape", body->pool->path,
                         like.name);
    if (like.df.part_count > 0)
        memcpy(parts, like.parts, like.df.part_count * sizeof parts[0]);
    like.parts = parts;
    like.shape = shape;
    like.df.ndim = (uint8_t)ndim;
    like.df.bytes = bytes;
    if (bytes > old)
        return grow(body, &like, parts, error);
    if (bytes < old && body->handles > 1) /* other handles may use the pages */
        return lmcs_fail(
            error, LMCS_IN_USE, 0,
            "%s: live tensor \"%.200s\" can't be made smaller: other handles in this process (%u) may use the bytes "
            "that would be cut off; close them first",
            body->pool->path, like.name, body->handles - 1);
    struct lmcs_live_record *record = lmcs_live_record_new(&like, error);
    if (record == NULL)
        return LMCS_NO_MEMORY;
    /* A transaction keeps the pages until its commit. */
    enum lmcs_status status = lmcs_live_change_body(body, record, error);
    if (status == LMCS_OK && body->transaction == NULL)
        lmcs_live_unmap_tail(body, bytes, old);
    return status;
}

/* A snapshot reads the bytes of its records. */
static enum lmcs_status wait_for_snapshot(struct lmcs_live_body *body, uint32_t wait_ms, struct lmcs_error *error)
{
    struct lmcs_live_shelf *shelf = body->shelf;
    struct timespec until = lmcs_live_deadline(wait_ms);
    while (shelf->is_read) {
        if (pthread_equal(shelf->holder.thread, pthread_self()))
            return lmcs_fail(error, LMCS_INVALID, 0,
                             "%s: live tensor \"%.200s\" can't be resized by the thread whose snapshot reads it",
                             body->pool->path, body->record->name);
        shelf->waiting++; /* prevents renaming and removal */
        bool in_time = lmcs_live_wait(body->pool->live, &until, wait_ms);
        shelf->waiting--;
        if (!in_time)
            return lmcs_fail(
                error, LMCS_IN_USE, ETIMEDOUT,
                "%s: live tensor \"%.200s\" can't be resized: a snapshot that reads it has not ended within "
                "%u ms",
                body->pool->path, body->record->name, wait_ms);
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_live_resize(struct lmcs_live *live, uint32_t ndim, const uint64_t *shape,
                                  struct lmcs_error *error)
{
    return lmcs_live_resize_within(live, ndim, shape, UINT32_MAX, error);
}

enum lmcs_status lmcs_live_resize_within(struct lmcs_live *live, uint32_t ndim, const uint64_t *shape, uint32_t wait_ms,
                                         struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_check(live->pool, true, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&live->pool->live->lock);
    status = wait_for_snapshot(live->body, wait_ms, error);
    if (status == LMCS_OK)
        status = lmcs_live_check(live->pool, true, error);
    if (status == LMCS_OK)
        status = resize(live->body, ndim, shape, error);
    pthread_mutex_unlock(&live->pool->live->lock);
    return status;
}
