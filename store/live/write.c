/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/write.c - reading and writing live variables through functions.
 *
 * Every write is atomic and durable. A value's goes to its other slot. A tensor's aligned word of 1, 2, 4 or 8 bytes is
 * one store; anything longer goes through the redo journal. In a transaction a tensor's is a store to its address, and
 * a value's is kept until the commit.
 */
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "live/live.h"

#define MOST_INTEGER 16u

static enum lmcs_status fail_range(const struct lmcs_live *live, uint64_t offset, uint64_t bytes,
                                   struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_INVALID, 0,
                     "%s: live variable \"%.200s\" has not the %llu bytes from %llu on, or they are too many at once",
                     live->pool->path, live->body->record->name, (unsigned long long)bytes, (unsigned long long)offset);
}

/* Under body->lock. */
static uint64_t bytes_of(const struct lmcs_live_body *body)
{
    if (body->record->df.form == LMCS_LIVE_TENSOR)
        return body->record->df.bytes;
    return body->pending != NULL ? body->pending_bytes : body->value_bytes;
}

static bool is_inside(const struct lmcs_live_body *body, uint64_t offset, uint64_t bytes)
{
    uint64_t all = bytes_of(body);
    return offset <= all && bytes <= all - offset;
}

/* Under body->lock. */
static enum lmcs_status refresh(struct lmcs_live_body *body, struct lmcs_error *error)
{
    return body->is_unread && body->record->df.form == LMCS_LIVE_VALUE ? lmcs_cell_load(body, error) : LMCS_OK;
}

/* ---- Locks ---- */

static bool is_word(uint64_t offset, uint64_t bytes)
{
    return (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8) && offset % bytes == 0;
}

/* Only what needs a journal, or a transaction, needs the lock of all variables. */
static bool needs_live_lock(const struct lmcs_live_body *body, uint64_t offset, uint64_t bytes)
{
    return body->transaction != NULL || (body->record->df.form == LMCS_LIVE_TENSOR && !is_word(offset, bytes));
}

/* To write: takes body->lock, and live->lock before it if need be; *both: it was. They are to be let go in any case. */
static enum lmcs_status lock_for(struct lmcs_live_body *body, uint64_t offset, uint64_t bytes, bool *both,
                                 struct lmcs_error *error)
{
    pthread_mutex_lock(&body->lock);
    *both = needs_live_lock(body, offset, bytes);
    if (*both) {
        pthread_mutex_unlock(&body->lock);
        pthread_mutex_lock(&body->pool->live->lock);
        pthread_mutex_lock(&body->lock);
    }
    enum lmcs_status status = lmcs_live_check(body->pool, true, error);
    return status == LMCS_OK ? refresh(body, error) : status;
}

static void unlock(struct lmcs_live_body *body, bool both)
{
    pthread_mutex_unlock(&body->lock);
    if (both)
        pthread_mutex_unlock(&body->pool->live->lock);
}

/* ---- Persist ---- */

/* What the transaction has stored is durable with it; what was stored before it lies where the pool has it. */
static enum lmcs_status persist_home(const struct lmcs_live_body *body, uint64_t offset, uint64_t bytes,
                                     struct lmcs_error *error)
{
    struct lmcs_heap *heap = body->pool->heap;
    for (uint64_t n; bytes > 0; offset += n, bytes -= n) {
        n = bytes;
        uint64_t place = lmcs_live_place(body->record, offset, &n);
        lmcs_heap_flush(heap, place, n);
    }
    return lmcs_heap_sync(heap, error);
}

enum lmcs_status lmcs_live_persist(struct lmcs_live *live, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_live_body *body = live->body;
    enum lmcs_status status = lmcs_live_check(live->pool, true, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&body->lock);
    status = lmcs_live_check(live->pool, true, error);
    if (status == LMCS_OK && (body->record->df.form != LMCS_LIVE_TENSOR || !is_inside(body, offset, bytes)))
        status = fail_range(live, offset, bytes, error);
    else if (status == LMCS_OK && bytes > 0 && !body->is_private) {
        lmcs_cell_stamp(body); /* the fence below is for both */
        status = lmcs_heap_persist(live->pool->heap, body->data + offset, bytes, error);
    } else if (status == LMCS_OK && bytes > 0) {
        status = persist_home(body, offset, bytes, error);
    }
    pthread_mutex_unlock(&body->lock);
    return status;
}

/* ---- Values ---- */

/* Puts the value's bytes: now, or with the transaction, and then under both locks. Under body->lock; it fits. */
static enum lmcs_status put_value(struct lmcs_live_body *body, const void *data, uint64_t bytes,
                                  struct lmcs_error *error)
{
    if (body->transaction == NULL)
        return lmcs_value_write(body, data, bytes, error);
    unsigned char *pending = malloc(bytes + 1);
    if (pending == NULL)
        return lmcs_fail_memory(error);
    memcpy(pending, data, bytes);
    free(body->pending);
    body->pending = pending;
    body->pending_bytes = bytes;
    return LMCS_OK;
}

static bool value_fits(const struct lmcs_live_body *body, uint64_t bytes)
{
    return sizeof(struct lmcs_value_df) + bytes <= body->record->df.slot_bytes;
}

/* A value that changes in length grows a little further than it must. */
uint32_t lmcs_live_roomy_slot(uint64_t bytes)
{
    uint64_t room = bytes < 64 ? bytes : bytes + bytes / 4;
    return lmcs_slot_room(room < LMCS_LIVE_MAX_VALUE ? room : LMCS_LIVE_MAX_VALUE);
}

/* Moves a value to a cell that has room, and gives it another note, by one step. Under live->lock. */
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
    like.df.slot_bytes = lmcs_live_roomy_slot(bytes);
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
    return lmcs_live_change_bodies(&body, &record, 1, error);
}

static bool has_note(const struct lmcs_live_record *record, const void *note, size_t note_bytes)
{
    return record->df.note_bytes == note_bytes && (note_bytes == 0 || memcmp(record->note, note, note_bytes) == 0);
}

/* All of a value of variable length. Under live->lock. */
static enum lmcs_status set_value(struct lmcs_live_body *body, const void *data, uint64_t bytes, const void *note,
                                  size_t note_bytes, struct lmcs_error *error)
{
    if (!value_fits(body, bytes) || !has_note(body->record, note, note_bytes))
        return put_elsewhere(body, data, bytes, note, note_bytes, error);
    pthread_mutex_lock(&body->lock);
    enum lmcs_status status = refresh(body, error);
    if (status == LMCS_OK)
        status = put_value(body, data, bytes, error);
    pthread_mutex_unlock(&body->lock);
    return status;
}

static enum lmcs_status fail_long(const struct lmcs_pool *pool, const char *name, uint64_t bytes,
                                  struct lmcs_error *error)
{
    return lmcs_fail(
        error, LMCS_INVALID, 0,
        "%s: live variable \"%.200s\": a value has at most %u bytes, and this one would have %llu: make it "
        "a tensor",
        pool->path, name, LMCS_LIVE_MAX_VALUE, (unsigned long long)bytes);
}

static enum lmcs_status set_slowly(struct lmcs_live_body *body, const void *data, uint64_t bytes,
                                   struct lmcs_error *error)
{
    pthread_mutex_lock(&body->pool->live->lock);
    enum lmcs_status status = lmcs_live_check(body->pool, true, error);
    /* A copy: the record goes with the change. */
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
    status = lock_for(body, 0, bytes, &both, error);
    bool varies = lmcs_live_is_variable_length(body->record);
    bool is_value = body->record->df.form == LMCS_LIVE_VALUE && (varies || bytes == body->record->df.bytes);
    bool fits = value_fits(body, bytes);
    if (status == LMCS_OK && !is_value)
        status = fail_range(live, 0, bytes, error);
    else if (status == LMCS_OK && bytes > LMCS_LIVE_MAX_VALUE)
        status = fail_long(live->pool, body->record->name, bytes, error);
    else if (status == LMCS_OK && fits)
        status = put_value(body, data, bytes, error);
    unlock(body, both);
    return status == LMCS_OK && !fits ? set_slowly(body, data, bytes, error) : status;
}

/* Under live->lock: a value where there was none, or something else. */
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
                                    .slot_bytes = lmcs_live_roomy_slot(bytes),
                                    .note_bytes = (uint16_t)note_bytes,
                                    .name_bytes = (uint16_t)strlen(name)};
    enum lmcs_status status =
        lmcs_live_make(pool, shelf, &like, 0, old != NULL ? old->version + 1 : 1, data, bytes, &record, error);
    if (status == LMCS_OK)
        status = lmcs_live_body_new(pool, shelf, record, false, &body, error);
    if (status != LMCS_OK)
        return status;
    record = lmcs_live_record_new(body->record, error);
    status = record == NULL
                 ? LMCS_NO_MEMORY
                 : lmcs_transaction_join(body, old != NULL ? old->transaction : shelf->transaction, true, error);
    struct lmcs_live_body *bodies[2] = {old != NULL ? old : body, body};
    struct lmcs_live_record *records[2] = {old != NULL ? NULL : record, record};
    if (status == LMCS_OK)
        status = lmcs_live_change_bodies(bodies, records, old != NULL ? 2 : 1, error);
    else
        free(record);
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

/* ---- Reading ---- */

/* Under body->lock, of bytes that are there. */
static enum lmcs_status read_bytes(struct lmcs_live_body *body, uint64_t offset, void *buffer, uint64_t bytes,
                                   struct lmcs_error *error)
{
    if (bytes == 0)
        return LMCS_OK;
    if (body->record->df.form == LMCS_LIVE_TENSOR)
        return lmcs_guard_copy(buffer, body->data + offset, bytes)
                   ? LMCS_OK
                   : lmcs_fail(error, LMCS_DAMAGED, 0, "%s: live tensor \"%.200s\": the medium can't be read",
                               body->pool->path, body->record->name);
    if (offset == 0 && bytes == bytes_of(body))
        return lmcs_value_read(body, buffer, error);
    unsigned char *all = malloc(LMCS_LIVE_MAX_VALUE);
    enum lmcs_status status = all != NULL ? lmcs_value_read(body, all, error) : lmcs_fail_memory(error);
    if (status == LMCS_OK)
        memcpy(buffer, all + offset, bytes);
    free(all);
    return status;
}

/*
 * A value of a pool that another process writes: its bytes, and how many, by one look at where it is by now. A reader's
 * copies are behind what the writer does.
 */
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
        status = fail_range(live, offset, bytes, error);
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
    status = refresh(body, error);
    if (status == LMCS_OK)
        status = is_inside(body, offset, bytes) ? read_bytes(body, offset, buffer, bytes, error)
                                                : fail_range(live, offset, bytes, error);
    pthread_mutex_unlock(&body->lock);
    return status;
}

static enum lmcs_status get_elsewhere(struct lmcs_live *live, void *buffer, uint64_t capacity, uint64_t *bytes,
                                      struct lmcs_error *error)
{
    unsigned char *all;
    enum lmcs_status status = read_elsewhere(live, &all, bytes, error);
    if (status == LMCS_OK && *bytes > capacity)
        status = fail_range(live, 0, capacity, error);
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
    status = refresh(body, error);
    *bytes = bytes_of(body);
    if (status == LMCS_OK && *bytes <= capacity)
        status = read_bytes(body, 0, buffer, *bytes, error);
    if (status == LMCS_OK && *bytes > capacity)
        status = fail_range(live, 0, capacity, error);
    pthread_mutex_unlock(&body->lock);
    return status;
}

/* ---- Writing bytes ---- */

static void store_word(void *at, const void *data, uint64_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, data, bytes);
    switch (bytes) {
    case 1:
        __atomic_store_n((uint8_t *)at, (uint8_t)word, __ATOMIC_RELEASE);
        break;
    case 2:
        __atomic_store_n((uint16_t *)at, (uint16_t)word, __ATOMIC_RELEASE);
        break;
    case 4:
        __atomic_store_n((uint32_t *)at, (uint32_t)word, __ATOMIC_RELEASE);
        break;
    default:
        __atomic_store_n((uint64_t *)at, word, __ATOMIC_RELEASE);
    }
}

struct storing {
    void *at;
    const void *data;
    uint64_t bytes;
};

static void store_guarded(void *context)
{
    const struct storing *s = context;
    store_word(s->at, s->data, s->bytes);
}

static enum lmcs_status fail_store(const struct lmcs_live_body *body, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_IO, 0, "%s: live tensor \"%.200s\": the medium can't be written", body->pool->path,
                     body->record->name);
}

/* What fails has changed nothing: also not what is seen through an address, or would be durable some time. */
static void take_word_back(struct lmcs_live_body *body, struct storing *s, const uint64_t *before,
                           struct lmcs_error *error)
{
    struct lmcs_guarded range = {s->at, s->bytes};
    struct lmcs_error ignored;
    s->data = before;
    if (before == NULL || !lmcs_guard(&range, 1, store_guarded, s) ||
        lmcs_heap_persist(body->pool->heap, s->at, s->bytes, &ignored) != LMCS_OK)
        lmcs_live_doubt(body->pool, error);
}

/* Outside of a transaction, under body->lock. */
static enum lmcs_status write_word(struct lmcs_live_body *body, uint64_t offset, const void *data, uint64_t bytes,
                                   struct lmcs_error *error)
{
    struct storing s = {body->data + offset, data, bytes};
    struct lmcs_guarded range = {s.at, bytes};
    uint64_t before = 0;
    bool readable = lmcs_guard_copy(&before, s.at, bytes);
    if (!lmcs_guard(&range, 1, store_guarded, &s))
        return fail_store(body, error);
    lmcs_cell_stamp(body);
    struct lmcs_error local;
    error = error != NULL ? error : &local;
    enum lmcs_status status = lmcs_heap_persist(body->pool->heap, s.at, bytes, error);
    if (status != LMCS_OK)
        take_word_back(body, &s, readable ? &before : NULL, error);
    return status;
}

/* Under live->lock and body->lock. */
static enum lmcs_status write_journaled(struct lmcs_live_body *body, uint64_t offset, const void *data, uint64_t bytes,
                                        struct lmcs_error *error)
{
    struct lmcs_journaled entries[LMCS_LIVE_MAX_EXTENTS];
    size_t count = 0;
    uint64_t sequence = 0;
    for (uint64_t done = 0, n; done < bytes; done += n) {
        n = bytes - done;
        uint64_t place = lmcs_live_place(body->record, offset + done, &n);
        entries[count++] = (struct lmcs_journaled){place, n, (const char *)data + done};
    }
    struct lmcs_error local;
    error = error != NULL ? error : &local;
    enum lmcs_status status = lmcs_journal_write(body->pool, entries, count, false, &sequence, error);
    if (status != LMCS_OK) {
        lmcs_journal_take_back(body->pool, error);
        return status;
    }
    lmcs_cell_stamp(body);
    status = lmcs_journal_finish(body->pool, entries, count, error);
    if (status != LMCS_OK) {
        lmcs_live_break(body->pool, error);
        lmcs_error_prefix(error, "it is durable, and is completed when the pool is opened again: ");
    }
    return status;
}

/* Under both locks. */
static enum lmcs_status write_tensor(struct lmcs_live_body *body, uint64_t offset, const void *data, uint64_t bytes,
                                     struct lmcs_error *error)
{
    if (bytes == 0)
        return LMCS_OK;
    if (body->transaction == NULL)
        return is_word(offset, bytes) ? write_word(body, offset, data, bytes, error)
                                      : write_journaled(body, offset, data, bytes, error);
    enum lmcs_status status = lmcs_transaction_will_store(body, offset, bytes, error);
    return status != LMCS_OK || lmcs_guard_store(body->data + offset, data, bytes) ? status : fail_store(body, error);
}

/* Under both locks. */
static enum lmcs_status write_part_of_value(struct lmcs_live_body *body, uint64_t offset, const void *data,
                                            uint64_t bytes, struct lmcs_error *error)
{
    uint64_t all_bytes = bytes_of(body);
    unsigned char small[256], *all = all_bytes <= sizeof small ? small : malloc(all_bytes);
    enum lmcs_status status = all != NULL ? read_bytes(body, 0, all, all_bytes, error) : lmcs_fail_memory(error);
    if (status == LMCS_OK) {
        memcpy(all + offset, data, bytes);
        status = put_value(body, all, all_bytes, error);
    }
    if (all != small)
        free(all);
    return status;
}

/* What a function reads and writes in one step; `choose` says whether there is anything to write. */
struct update {
    uint64_t offset;
    uint64_t bytes;
    bool (*choose)(const struct update *update, const void *now, void *then);
    const void *operand;
    const void *expected;
    void *before;
    bool chosen;
};

static enum lmcs_status update_body(struct lmcs_live_body *body, struct update *update, struct lmcs_error *error)
{
    unsigned char now[MOST_INTEGER], then[MOST_INTEGER];
    enum lmcs_status status = read_bytes(body, update->offset, now, update->bytes, error);
    if (status != LMCS_OK)
        return status;
    update->chosen = update->choose(update, now, then);
    if (update->chosen)
        status = body->record->df.form == LMCS_LIVE_TENSOR
                     ? write_tensor(body, update->offset, then, update->bytes, error)
                     : write_part_of_value(body, update->offset, then, update->bytes, error);
    if (status == LMCS_OK && update->before != NULL)
        memcpy(update->before, now, update->bytes);
    return status;
}

static enum lmcs_status run_update(struct lmcs_live *live, struct update *update, struct lmcs_error *error)
{
    uint64_t bytes = update->bytes;
    bool both;
    enum lmcs_status status = lmcs_live_check(live->pool, true, error);
    if (status != LMCS_OK)
        return status;
    if (bytes == 0 || bytes > MOST_INTEGER || (bytes & (bytes - 1)) != 0 || update->offset % bytes != 0)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "%llu bytes at %llu: an integer has 1, 2, 4, 8 or 16 bytes, and is aligned to its size",
                         (unsigned long long)bytes, (unsigned long long)update->offset);
    status = lock_for(live->body, update->offset, bytes, &both, error);
    if (status == LMCS_OK)
        status = is_inside(live->body, update->offset, bytes) ? update_body(live->body, update, error)
                                                              : fail_range(live, update->offset, bytes, error);
    unlock(live->body, both);
    return status;
}

enum lmcs_status lmcs_live_write(struct lmcs_live *live, uint64_t offset, const void *data, uint64_t bytes,
                                 struct lmcs_error *error)
{
    struct lmcs_live_body *body = live->body;
    bool both;
    enum lmcs_status status = lmcs_live_check(live->pool, true, error);
    if (status != LMCS_OK)
        return status;
    status = lock_for(body, offset, bytes, &both, error);
    if (status == LMCS_OK && (!is_inside(body, offset, bytes) || bytes > LMCS_LIVE_MAX_VALUE))
        status = fail_range(live, offset, bytes, error);
    else if (status == LMCS_OK)
        status = body->record->df.form == LMCS_LIVE_TENSOR ? write_tensor(body, offset, data, bytes, error)
                                                           : write_part_of_value(body, offset, data, bytes, error);
    unlock(body, both);
    return status;
}

/* ---- Integers ---- */

static bool choose_sum(const struct update *update, const void *now, void *then)
{
    unsigned __int128 a = 0, b = 0;
    memcpy(&a, now, update->bytes);
    memcpy(&b, update->operand, update->bytes);
    a += b;
    memcpy(then, &a, update->bytes);
    return true;
}

enum lmcs_status lmcs_live_add(struct lmcs_live *live, uint64_t offset, uint64_t bytes, const void *operand,
                               void *before, struct lmcs_error *error)
{
    struct update update = {
        .offset = offset, .bytes = bytes, .choose = choose_sum, .operand = operand, .before = before};
    return run_update(live, &update, error);
}

static bool choose_if_expected(const struct update *update, const void *now, void *then)
{
    memcpy(then, update->operand, update->bytes);
    return memcmp(now, update->expected, update->bytes) == 0;
}

enum lmcs_status lmcs_live_compare_and_swap(struct lmcs_live *live, uint64_t offset, uint64_t bytes,
                                            const void *expected, const void *desired, void *found, bool *swapped,
                                            struct lmcs_error *error)
{
    struct update update = {.offset = offset,
                            .bytes = bytes,
                            .choose = choose_if_expected,
                            .operand = desired,
                            .expected = expected,
                            .before = found};
    enum lmcs_status status = run_update(live, &update, error);
    if (status == LMCS_OK)
        *swapped = update.chosen;
    return status;
}
