/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/write.c - writing live variables through functions.
 *
 * Every write is atomic and durable: a value's other slot; one store for an aligned word of 1, 2, 4 or 8 bytes in a
 * tensor; else the redo journal.
 */
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "live/access.h"
#include "live/cell.h"
#include "live/journal.h"
#include "live/map.h"
#include "live/txn.h"

#define MOST_INTEGER 16u /* bytes */

static bool is_word(uint64_t offset, uint64_t bytes)
{
    return (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8) && offset % bytes == 0;
}

/* Only writes with a journal or in a transaction do. */
static bool needs_live_lock(const struct lmcs_live_body *body, uint64_t offset, uint64_t bytes)
{
    return body->transaction != NULL || (body->record->df.form == LMCS_LIVE_TENSOR && !is_word(offset, bytes));
}

enum lmcs_status lmcs_live_lock_body(struct lmcs_live_body *body, uint64_t offset, uint64_t bytes, bool *both,
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
    return status == LMCS_OK ? lmcs_live_refresh(body, error) : status;
}

void lmcs_live_unlock_body(struct lmcs_live_body *body, bool both)
{
    pthread_mutex_unlock(&body->lock);
    if (both)
        pthread_mutex_unlock(&body->pool->live->lock);
}

/* Persists stores from before the transaction at their places in the pool; its own wait for the commit. */
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
    if (status == LMCS_OK && (body->record->df.form != LMCS_LIVE_TENSOR || !lmcs_live_is_inside(body, offset, bytes)))
        status = lmcs_live_fail_range(live, offset, bytes, error);
    else if (status == LMCS_OK && bytes > 0 && !body->is_private) {
        lmcs_cell_stamp(body);
        status = lmcs_heap_persist(live->pool->heap, body->data + offset, bytes, error);
    } else if (status == LMCS_OK && bytes > 0) {
        status = persist_home(body, offset, bytes, error);
    }
    pthread_mutex_unlock(&body->lock);
    return status;
}

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

/* Restores the old word: a failed write changes neither the bytes in memory nor the pool. */
static void take_word_back(struct lmcs_live_body *body, struct storing *s, const uint64_t *before,
                           struct lmcs_error *error)
{
    struct lmcs_guarded range = {s->at, s->bytes};
    struct lmcs_error ignored;
    s->data = before;
    if (!lmcs_guard(&range, 1, store_guarded, s) ||
        lmcs_heap_persist(body->pool->heap, s->at, s->bytes, &ignored) != LMCS_OK)
        lmcs_live_doubt(body->pool, error);
}

/* Outside of transactions. Needs body->lock. */
static enum lmcs_status write_word(struct lmcs_live_body *body, uint64_t offset, const void *data, uint64_t bytes,
                                   struct lmcs_error *error)
{
    struct storing s = {body->data + offset, data, bytes};
    struct lmcs_guarded range = {s.at, bytes};
    uint64_t before = 0;
    if (!lmcs_guard_copy(&before, s.at, bytes) || !lmcs_guard(&range, 1, store_guarded, &s))
        return fail_store(body, error);
    lmcs_cell_stamp(body);
    struct lmcs_error local;
    error = error != NULL ? error : &local;
    enum lmcs_status status = lmcs_heap_persist(body->pool->heap, s.at, bytes, error);
    if (status != LMCS_OK)
        take_word_back(body, &s, &before, error);
    return status;
}

/* Needs both locks. */
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
        lmcs_error_prefix(error, "the write is durable, and is completed when the pool is opened again: ");
    }
    return status;
}

/* Needs both locks. */
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

/* Needs both locks. */
static enum lmcs_status write_part_of_value(struct lmcs_live_body *body, uint64_t offset, const void *data,
                                            uint64_t bytes, struct lmcs_error *error)
{
    uint64_t all_bytes = lmcs_live_bytes_of(body);
    unsigned char small[256], *all = all_bytes <= sizeof small ? small : malloc(all_bytes);
    enum lmcs_status status =
        all != NULL ? lmcs_live_read_bytes(body, 0, all, all_bytes, error) : lmcs_fail_memory(error);
    if (status == LMCS_OK) {
        memcpy(all + offset, data, bytes);
        status = lmcs_value_put(body, all, all_bytes, error);
    }
    if (all != small)
        free(all);
    return status;
}

/* `choose` computes the new bytes; false: don't write. */
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
    enum lmcs_status status = lmcs_live_read_bytes(body, update->offset, now, update->bytes, error);
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
                         "%llu bytes at %llu: an integer has 1, 2, 4, 8 or 16 bytes, aligned to its size",
                         (unsigned long long)bytes, (unsigned long long)update->offset);
    status = lmcs_live_lock_body(live->body, update->offset, bytes, &both, error);
    if (status == LMCS_OK)
        status = lmcs_live_is_inside(live->body, update->offset, bytes)
                     ? update_body(live->body, update, error)
                     : lmcs_live_fail_range(live, update->offset, bytes, error);
    lmcs_live_unlock_body(live->body, both);
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
    status = lmcs_live_lock_body(body, offset, bytes, &both, error);
    if (status == LMCS_OK && (!lmcs_live_is_inside(body, offset, bytes) || bytes > LMCS_LIVE_MAX_VALUE))
        status = lmcs_live_fail_range(live, offset, bytes, error);
    else if (status == LMCS_OK)
        status = body->record->df.form == LMCS_LIVE_TENSOR ? write_tensor(body, offset, data, bytes, error)
                                                           : write_part_of_value(body, offset, data, bytes, error);
    lmcs_live_unlock_body(body, both);
    return status;
}

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
