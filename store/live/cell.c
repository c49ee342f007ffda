/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/cell.c - cells: the data that changes in place.
 *
 * The cell records, perhaps late, the *acknowledged* sequence of a durable value, because a torn slot and a damaged one
 * are alike: if no whole slot is as new, a value was lost. See LIVE.md.
 */
#include "live/cell.h"

#include <stdlib.h>
#include <string.h>

#include "base/guard.h"

#define TRIES 100

static uint64_t identity_of(uint64_t shelf, uint64_t id, uint64_t place)
{
    uint64_t words[2] = {shelf, id};
    return lmc_hash64(words, sizeof words, place);
}

static uint64_t slot_place(const struct lmcs_live_record *record, uint32_t slot)
{
    return record->df.cell + sizeof(struct lmcs_cell_df) + (uint64_t)slot * record->df.slot_bytes;
}

static uint64_t slot_check(const void *slot, uint64_t bytes, uint64_t place)
{
    return lmc_hash64((const char *)slot + 8, sizeof(struct lmcs_value_df) - 8 + bytes, place);
}

static void fill_slot(unsigned char *image, uint64_t place, uint64_t sequence, uint64_t now_ns, const void *data,
                      uint64_t bytes)
{
    struct lmcs_value_df slot = {.sequence = sequence, .written_ns = now_ns, .bytes = (uint32_t)bytes};
    memcpy(image, &slot, sizeof slot);
    if (data != NULL && bytes > 0)
        memcpy(image + sizeof slot, data, bytes);
    else
        memset(image + sizeof slot, 0, bytes);
    slot.check = slot_check(image, bytes, place);
    memcpy(image, &slot.check, sizeof slot.check);
}

/* A quarter more, from 64 bytes on. */
uint32_t lmcs_slot_roomy(uint64_t bytes)
{
    uint64_t room = bytes < 64 ? bytes : bytes + bytes / 4;
    return lmcs_slot_room(room < LMCS_LIVE_MAX_VALUE ? room : LMCS_LIVE_MAX_VALUE);
}

enum lmcs_status lmcs_cell_init(struct lmcs_pool *pool, const struct lmcs_live_record *record, uint64_t version,
                                const void *value, uint64_t bytes, struct lmcs_error *error)
{
    unsigned char *image = calloc(1, record->df.cell_bytes);
    if (image == NULL)
        return lmcs_fail_memory(error);
    struct lmcs_cell_df cell = {.identity = identity_of(record->shelf, record->id, record->df.cell),
                                .version = version};
    cell.acknowledged = record->df.form == LMCS_LIVE_VALUE ? version : 0;
    memcpy(image, &cell, sizeof cell);
    if (record->df.form == LMCS_LIVE_VALUE)
        fill_slot(image + sizeof cell, slot_place(record, 0), version, lmcs_now_ns(), value, bytes);
    enum lmcs_status status = lmcs_heap_write(pool->heap, record->df.cell, image, record->df.cell_bytes, error);
    free(image);
    return status;
}

static bool slot_is_whole(const struct lmcs_live_record *record, const unsigned char *image, uint32_t slot,
                          struct lmcs_value_df *df)
{
    const unsigned char *at = image + sizeof(struct lmcs_cell_df) + (size_t)slot * record->df.slot_bytes;
    memcpy(df, at, sizeof *df);
    return df->bytes <= record->df.slot_bytes - sizeof *df && df->bytes <= LMCS_LIVE_MAX_VALUE &&
           df->check == slot_check(at, df->bytes, slot_place(record, slot));
}

static enum lmcs_status fail_cell(const struct lmcs_pool *pool, const struct lmcs_live_record *record, const char *what,
                                  struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: live variable \"%.200s\" is damaged: %s (at offset %llu)", pool->path,
                     record->name, what, (unsigned long long)record->df.cell);
}

static enum lmcs_status decode_cell(const struct lmcs_pool *pool, const struct lmcs_live_record *record,
                                    const unsigned char *image, void *buffer, struct lmcs_cell_state *state,
                                    struct lmcs_error *error)
{
    struct lmcs_cell_df cell;
    memcpy(&cell, image, sizeof cell);
    if (cell.identity != identity_of(record->shelf, record->id, record->df.cell))
        return fail_cell(pool, record, "its cell belongs to another variable", error);
    *state = (struct lmcs_cell_state){cell.version, cell.written_ns, record->df.bytes, 0};
    if (record->df.form != LMCS_LIVE_VALUE)
        return LMCS_OK;
    struct lmcs_value_df slots[2];
    bool whole[2] = {slot_is_whole(record, image, 0, &slots[0]), slot_is_whole(record, image, 1, &slots[1])};
    uint32_t best = !whole[0] || (whole[1] && slots[1].sequence > slots[0].sequence) ? 1 : 0;
    if (!whole[best] || slots[best].sequence < cell.acknowledged)
        return fail_cell(pool, record, "the checksum of its newest value is wrong", error);
    if (!lmcs_live_is_variable_length(record) && slots[best].bytes != record->df.bytes)
        return fail_cell(pool, record, "the size of its value does not fit its shape", error);
    *state = (struct lmcs_cell_state){slots[best].sequence, slots[best].written_ns, slots[best].bytes, best};
    if (buffer != NULL)
        memcpy(buffer, image + sizeof cell + (size_t)best * record->df.slot_bytes + sizeof slots[0], slots[best].bytes);
    return LMCS_OK;
}

enum lmcs_status lmcs_cell_read(struct lmcs_pool *pool, const struct lmcs_live_record *record, void *buffer,
                                struct lmcs_cell_state *state, struct lmcs_error *error)
{
    unsigned char *image = malloc(record->df.cell_bytes);
    enum lmcs_status status = image != NULL ? LMCS_DAMAGED : lmcs_fail_memory(error);
    /* A writer may change both slots during one read. */
    for (int tries = 0; status == LMCS_DAMAGED && tries < TRIES; tries++) {
        status = lmcs_media_read(pool->media, record->df.cell, image, record->df.cell_bytes, error);
        if (status == LMCS_OK)
            status = decode_cell(pool, record, image, buffer, state, error);
    }
    free(image);
    return status;
}

enum lmcs_status lmcs_cell_follow(const struct lmcs_live_body *body, void *buffer, struct lmcs_cell_state *state,
                                  struct lmcs_live_record **now, struct lmcs_error *error)
{
    const struct lmcs_live_record *opened = body->record;
    struct lmcs_live_record *record = NULL;
    struct lmcs_txn txn;
    bool found = false;
    enum lmcs_status status = lmcs_txn_read(body->pool, &txn, error);
    if (now != NULL)
        *now = NULL;
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_record_get(&txn, opened->shelf, opened->id, &record, &found, error);
    bool is_gone = status == LMCS_OK && (!found || record->df.form != opened->df.form ||
                                         (opened->df.form == LMCS_LIVE_VALUE && !lmcs_live_same_kind(record, opened)));
    if (is_gone)
        status = lmcs_fail(
            error, LMCS_NOT_FOUND, 0,
            "%s: the writing process has erased or replaced live variable \"%.200s\"; close it here, and open the name "
            "again",
            body->pool->path, opened->name);
    else if (status == LMCS_OK) /* the lease keeps the place from reuse */
        status = lmcs_cell_read(body->pool, record, buffer, state, error);
    lmcs_txn_end(&txn);
    if (now != NULL && !is_gone)
        *now = record;
    else
        free(record);
    return status;
}

enum lmcs_status lmcs_cell_load(struct lmcs_live_body *body, struct lmcs_error *error)
{
    struct lmcs_cell_state state;
    enum lmcs_status status = lmcs_cell_read(body->pool, body->record, NULL, &state, error);
    if (status != LMCS_OK)
        return status;
    body->version = state.version;
    body->written_ns = state.written_ns;
    body->value_bytes = state.bytes;
    body->slot = state.slot;
    body->is_unread = false;
    return LMCS_OK;
}

void lmcs_slot_image(const struct lmcs_live_body *body, const void *data, uint64_t bytes, uint64_t now_ns,
                     unsigned char *image, uint64_t *place, uint64_t *image_bytes)
{
    *place = slot_place(body->record, !body->slot);
    *image_bytes = sizeof(struct lmcs_value_df) + bytes;
    fill_slot(image, *place, body->version + 1, now_ns, data, bytes);
}

void lmcs_slot_switch(struct lmcs_live_body *body, uint64_t bytes, uint64_t now_ns)
{
    body->slot = !body->slot;
    body->version++;
    body->written_ns = now_ns;
    body->value_bytes = bytes;
    struct lmcs_error ignored; /* the acknowledgement may be late or missing */
    uint64_t place = body->record->df.cell + offsetof(struct lmcs_cell_df, acknowledged);
    (void)!lmcs_heap_write(body->pool->heap, place, &body->version, sizeof body->version, &ignored);
}

/* Destroys a slot that may be whole but is not durable. */
static void take_back(struct lmcs_live_body *body, uint64_t place, struct lmcs_error *error)
{
    struct lmcs_value_df none = {.check = 0};
    struct lmcs_error ignored;
    if (lmcs_heap_write(body->pool->heap, place, &none, sizeof none, &ignored) != LMCS_OK ||
        lmcs_heap_sync(body->pool->heap, &ignored) != LMCS_OK)
        lmcs_live_doubt(body->pool, error);
}

static enum lmcs_status write_value(struct lmcs_live_body *body, const void *data, uint64_t bytes,
                                    struct lmcs_error *error)
{
    _Alignas(64) unsigned char small[512];
    uint64_t now_ns = lmcs_now_ns(), place, image_bytes;
    unsigned char *image = bytes + sizeof(struct lmcs_value_df) <= sizeof small ? small : malloc(lmcs_slot_room(bytes));
    if (image == NULL)
        return lmcs_fail_memory(error);
    lmcs_slot_image(body, data, bytes, now_ns, image, &place, &image_bytes);
    struct lmcs_error local;
    error = error != NULL ? error : &local;
    enum lmcs_status status = lmcs_heap_write(body->pool->heap, place, image, image_bytes, error);
    if (status == LMCS_OK) {
        status = lmcs_heap_sync(body->pool->heap, error);
        if (status != LMCS_OK)
            take_back(body, place, error);
    }
    if (status == LMCS_OK)
        lmcs_slot_switch(body, bytes, now_ns);
    if (image != small)
        free(image);
    return status;
}

enum lmcs_status lmcs_value_put(struct lmcs_live_body *body, const void *data, uint64_t bytes, struct lmcs_error *error)
{
    if (body->transaction == NULL)
        return write_value(body, data, bytes, error);
    unsigned char *pending = malloc(bytes + 1);
    if (pending == NULL)
        return lmcs_fail_memory(error);
    memcpy(pending, data, bytes);
    free(body->pending);
    body->pending = pending;
    body->pending_bytes = bytes;
    return LMCS_OK;
}

enum lmcs_status lmcs_value_read(struct lmcs_live_body *body, void *buffer, struct lmcs_error *error)
{
    if (body->pending != NULL) {
        memcpy(buffer, body->pending, body->pending_bytes);
        return LMCS_OK;
    }
    const char *at = lmcs_heap_at(body->pool->heap, slot_place(body->record, body->slot));
    return lmcs_guard_copy(buffer, at + sizeof(struct lmcs_value_df), body->value_bytes)
               ? LMCS_OK
               : fail_cell(body->pool, body->record, "the medium can't be read", error);
}

void lmcs_cell_stamp(struct lmcs_live_body *body)
{
    struct lmcs_error ignored;
    uint64_t words[2] = {++body->version, body->written_ns = lmcs_now_ns()};
    uint64_t place = body->record->df.cell + offsetof(struct lmcs_cell_df, version);
    (void)!lmcs_heap_write(body->pool->heap, place, words, sizeof words, &ignored);
}
