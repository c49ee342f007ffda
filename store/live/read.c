/* SPDX-License-Identifier: BSD-3-Clause */
/* live/read.c - reading live variables through functions. */
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "live/access.h"
#include "live/cell.h"

enum lmcs_status lmcs_live_fail_range(const struct lmcs_live *live, uint64_t offset, uint64_t bytes,
                                      struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_INVALID, 0,
                     "%s: live variable \"%.200s\": %llu bytes at %llu are out of range or too many for one call",
                     live->pool->path, live->body->record->name, (unsigned long long)bytes, (unsigned long long)offset);
}

uint64_t lmcs_live_bytes_of(const struct lmcs_live_body *body)
{
    if (body->record->df.form == LMCS_LIVE_TENSOR)
        return body->record->df.bytes;
    return body->pending != NULL ? body->pending_bytes : body->value_bytes;
}

bool lmcs_live_is_inside(const struct lmcs_live_body *body, uint64_t offset, uint64_t bytes)
{
    uint64_t all = lmcs_live_bytes_of(body);
    return offset <= all && bytes <= all - offset;
}

enum lmcs_status lmcs_live_refresh(struct lmcs_live_body *body, struct lmcs_error *error)
{
    return body->is_unread && body->record->df.form == LMCS_LIVE_VALUE ? lmcs_cell_load(body, error) : LMCS_OK;
}

enum lmcs_status lmcs_live_read_bytes(struct lmcs_live_body *body, uint64_t offset, void *buffer, uint64_t bytes,
                                      struct lmcs_error *error)
{
    if (bytes == 0)
        return LMCS_OK;
    if (body->record->df.form == LMCS_LIVE_TENSOR)
        return lmcs_guard_copy(buffer, body->data + offset, bytes)
                   ? LMCS_OK
                   : lmcs_fail(error, LMCS_DAMAGED, 0, "%s: live tensor \"%.200s\": the medium can't be read",
                               body->pool->path, body->record->name);
    if (offset == 0 && bytes == lmcs_live_bytes_of(body))
        return lmcs_value_read(body, buffer, error);
    unsigned char *all = malloc(LMCS_LIVE_MAX_VALUE);
    enum lmcs_status status = all != NULL ? lmcs_value_read(body, all, error) : lmcs_fail_memory(error);
    if (status == LMCS_OK)
        memcpy(buffer, all + offset, bytes);
    free(all);
    return status;
}

/* In a reader the body may be outdated: finds the value's present place. */
static enum lmcs_status read_elsewhere(struct lmcs_live *live, unsigned char **all, uint64_t *bytes,
                                       struct lmcs_error *error)
{
    struct lmcs_cell_state state;
    *all = malloc(LMCS_LIVE_MAX_VALUE);
    if (*all == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_cell_follow(live->body, *all, &state, NULL, error);
    if (status == LMCS_OK)
        *bytes = state.bytes;
    return status;
}

static bool is_elsewhere(const struct lmcs_live *live)
{
    return live->pool->heap == NULL && !live->is_tensor;
}

static enum lmcs_status read_part_elsewhere(struct lmcs_live *live, uint64_t offset, void *buffer, uint64_t bytes,
                                            struct lmcs_error *error)
{
    unsigned char *all;
    uint64_t there = 0;
    enum lmcs_status status = read_elsewhere(live, &all, &there, error);
    if (status == LMCS_OK && (offset > there || bytes > there - offset))
        status = lmcs_live_fail_range(live, offset, bytes, error);
    else if (status == LMCS_OK && bytes > 0)
        memcpy(buffer, all + offset, bytes);
    free(all);
    return status;
}

enum lmcs_status lmcs_live_read(struct lmcs_live *live, uint64_t offset, void *buffer, uint64_t bytes,
                                struct lmcs_error *error)
{
    struct lmcs_live_body *body = live->body;
    enum lmcs_status status = lmcs_live_check(live->pool, false, error);
    if (status != LMCS_OK)
        return status;
    if (is_elsewhere(live))
        return read_part_elsewhere(live, offset, buffer, bytes, error);
    pthread_mutex_lock(&body->lock);
    status = lmcs_live_refresh(body, error);
    if (status == LMCS_OK)
        status = lmcs_live_is_inside(body, offset, bytes) ? lmcs_live_read_bytes(body, offset, buffer, bytes, error)
                                                          : lmcs_live_fail_range(live, offset, bytes, error);
    pthread_mutex_unlock(&body->lock);
    return status;
}

static enum lmcs_status get_elsewhere(struct lmcs_live *live, void *buffer, uint64_t capacity, uint64_t *bytes,
                                      struct lmcs_error *error)
{
    unsigned char *all;
    enum lmcs_status status = read_elsewhere(live, &all, bytes, error);
    if (status == LMCS_OK && *bytes > capacity)
        status = lmcs_live_fail_range(live, 0, capacity, error);
    else if (status == LMCS_OK && *bytes > 0)
        memcpy(buffer, all, *bytes);
    free(all);
    return status;
}

enum lmcs_status lmcs_live_get(struct lmcs_live *live, void *buffer, uint64_t capacity, uint64_t *bytes,
                               struct lmcs_error *error)
{
    struct lmcs_live_body *body = live->body;
    enum lmcs_status status = lmcs_live_check(live->pool, false, error);
    if (status != LMCS_OK)
        return status;
    if (is_elsewhere(live))
        return get_elsewhere(live, buffer, capacity, bytes, error);
    pthread_mutex_lock(&body->lock);
    status = lmcs_live_refresh(body, error);
    *bytes = lmcs_live_bytes_of(body);
    if (status == LMCS_OK && *bytes <= capacity)
        status = lmcs_live_read_bytes(body, 0, buffer, *bytes, error);
    if (status == LMCS_OK && *bytes > capacity)
        status = lmcs_live_fail_range(live, 0, capacity, error);
    pthread_mutex_unlock(&body->lock);
    return status;
}
