/* SPDX-License-Identifier: BSD-3-Clause */
/* live/value.c - giving values other contents, of any length. */
#include <stdlib.h>
#include <string.h>

#include "live/access.h"
#include "live/cell.h"
#include "live/change.h"

static bool value_fits(const struct lmcs_live_body *body, uint64_t bytes)
{
    return sizeof(struct lmcs_value_df) + bytes <= body->record->df.slot_bytes;
}

/* Moves a value, with its note, to a new cell in one step. Needs live->lock. */
static enum lmcs_status put_elsewhere(struct lmcs_live_body *body, const void *data, uint64_t bytes, const void *note,
                                      size_t note_bytes, struct lmcs_error *error)
{
    struct lmcs_live_record like = *body->record;
    struct lmcs_live_record *record = NULL;
    uint64_t shape = bytes, version;
    pthread_mutex_lock(&body->lock);
    version = body->version + 1;
    pthread_mutex_unlock(&body->lock);
    like.note = note;
    like.df.note_bytes = (uint16_t)note_bytes;
    like.shape = &shape;
    like.df.bytes = bytes;
    like.df.slot_bytes = lmcs_slot_roomy(bytes);
    like.df.cell_bytes = lmcs_cell_room(like.df.slot_bytes);
    enum lmcs_status status = lmcs_live_take_cell(body->pool, like.df.cell_bytes, &like.df.cell, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_cell_init(body->pool, &like, version, data, bytes, error);
    if (status == LMCS_OK && (record = lmcs_live_record_new(&like, error)) == NULL)
        status = LMCS_NO_MEMORY;
    if (status != LMCS_OK) {
        lmcs_live_give_cell(body->pool, like.df.cell, like.df.cell_bytes);
        return status;
    }
    return lmcs_live_change_body(body, record, error);
}

static bool has_note(const struct lmcs_live_record *record, const void *note, size_t note_bytes)
{
    return record->df.note_bytes == note_bytes && (note_bytes == 0 || memcmp(record->note, note, note_bytes) == 0);
}

/* Sets a value of variable length and its note. Needs live->lock. */
static enum lmcs_status set_value(struct lmcs_live_body *body, const void *data, uint64_t bytes, const void *note,
                                  size_t note_bytes, struct lmcs_error *error)
{
    if (!value_fits(body, bytes) || !has_note(body->record, note, note_bytes))
        return put_elsewhere(body, data, bytes, note, note_bytes, error);
    pthread_mutex_lock(&body->lock);
    enum lmcs_status status = lmcs_live_refresh(body, error);
    if (status == LMCS_OK)
        status = lmcs_value_put(body, data, bytes, error);
    pthread_mutex_unlock(&body->lock);
    return status;
}

static enum lmcs_status fail_long(const struct lmcs_pool *pool, const char *name, uint64_t bytes,
                                  struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_INVALID, 0,
                     "%s: live variable \"%.200s\": a value has at most %u bytes, not %llu; create a tensor instead",
                     pool->path, name, LMCS_LIVE_MAX_VALUE, (unsigned long long)bytes);
}

/* Locks live->lock and keeps the note. */
static enum lmcs_status set_slowly(struct lmcs_live_body *body, const void *data, uint64_t bytes,
                                   struct lmcs_error *error)
{
    pthread_mutex_lock(&body->pool->live->lock);
    enum lmcs_status status = lmcs_live_check(body->pool, true, error);
    /* A copy: the change frees the record. */
    unsigned char note[LMCS_LIVE_MAX_NOTE];
    size_t note_bytes = body->record->df.note_bytes;
    memcpy(note, body->record->note, note_bytes);
    if (status == LMCS_OK)
        status = set_value(body, data, bytes, note, note_bytes, error);
    pthread_mutex_unlock(&body->pool->live->lock);
    return status;
}

enum lmcs_status lmcs_live_set(struct lmcs_live *live, const void *data, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_live_body *body = live->body;
    bool both;
    enum lmcs_status status = lmcs_live_check(live->pool, true, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_lock_body(body, 0, bytes, &both, error);
    bool varies = lmcs_live_is_variable_length(body->record);
    bool is_value = body->record->df.form == LMCS_LIVE_VALUE && (varies || bytes == body->record->df.bytes);
    bool fits = value_fits(body, bytes);
    if (status == LMCS_OK && !is_value)
        status = lmcs_live_fail_range(live, 0, bytes, error);
    else if (status == LMCS_OK && bytes > LMCS_LIVE_MAX_VALUE)
        status = fail_long(live->pool, body->record->name, bytes, error);
    else if (status == LMCS_OK && fits)
        status = lmcs_value_put(body, data, bytes, error);
    lmcs_live_unlock_body(body, both);
    return status == LMCS_OK && !fits ? set_slowly(body, data, bytes, error) : status;
}

/* Makes a value in place of `old` (or NULL). Needs live->lock. */
static enum lmcs_status put_new(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, struct lmcs_live_body *old,
                                const char *name, const void *data, uint64_t bytes, const void *note, size_t note_bytes,
                                struct lmcs_error *error)
{
    struct lmcs_live_record like = {.shape = &bytes, .note = note, .name = name};
    struct lmcs_live_record *record = NULL;
    struct lmcs_live_body *body = NULL;
    like.df = (struct lmcs_live_df){.bytes = bytes,
                                    .form = LMCS_LIVE_VALUE,
                                    .dtype = LMC_U8,
                                    .ndim = 1,
                                    .slot_bytes = lmcs_slot_roomy(bytes),
                                    .note_bytes = (uint16_t)note_bytes,
                                    .name_bytes = (uint16_t)strlen(name)};
    enum lmcs_status status =
        lmcs_live_make(pool, shelf, &like, 0, old != NULL ? old->version + 1 : 1, data, bytes, &record, error);
    if (status == LMCS_OK)
        status = lmcs_live_body_new(pool, shelf, record, false, &body, error);
    if (status != LMCS_OK)
        return status;
    record = lmcs_live_record_new(body->record, error);
    status = record != NULL ? lmcs_live_replace_body(old, body, record, error) : LMCS_NO_MEMORY;
    lmcs_live_body_release(body);
    return status;
}

static enum lmcs_status put(struct lmcs_pool *pool, const char *shelf_name, const char *name, const void *data,
                            uint64_t bytes, const void *note, size_t note_bytes, struct lmcs_error *error)
{
    struct lmcs_live_shelf *shelf;
    struct lmcs_live_body *body = NULL;
    enum lmcs_status status = lmcs_live_shelf_find(pool, shelf_name, true, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_live_body_find(pool, shelf, name, &body, error);
    if (status != LMCS_OK)
        return status;
    status = body != NULL && lmcs_live_is_variable_length(body->record) && !body->is_damaged
                 ? set_value(body, data, bytes, note, note_bytes, error)
                 : put_new(pool, shelf, body, name, data, bytes, note, note_bytes, error);
    if (body != NULL)
        lmcs_live_body_release(body);
    return status;
}

enum lmcs_status lmcs_live_put(struct lmcs_pool *pool, const char *shelf, const char *name, const void *data,
                               uint64_t bytes, const void *note, size_t note_bytes, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_live_check_name(name, error);
    if (status == LMCS_OK && bytes > LMCS_LIVE_MAX_VALUE)
        status = fail_long(pool, name, bytes, error);
    if (status == LMCS_OK && note_bytes > LMCS_LIVE_MAX_NOTE)
        status = lmcs_fail(error, LMCS_INVALID, 0, "a note has at most %u bytes, this one has %zu", LMCS_LIVE_MAX_NOTE,
                           note_bytes);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->live->lock);
    status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK)
        status = put(pool, shelf, name, data, bytes, note, note_bytes, error);
    pthread_mutex_unlock(&pool->live->lock);
    return status;
}
