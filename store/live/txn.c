/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/txn.c - transactions on live variables (LIVE.md).
 *
 * The moment of commit is the sealed redo journal of private pages and value slots, or, if records change too, the
 * switch to a root that names it. A declared transaction's commit makes its stores durable and ends the undo journal by
 * its header, or by the root.
 */
#include "live/txn.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "live/cell.h"
#include "live/change.h"
#include "live/journal.h"
#include "live/map.h"

#define DEFAULT_LIMIT ((uint64_t)1 << 30) /* bytes of pages */
#define LEAST_LIMIT   ((uint64_t)64 << 10)
#define RUN_BYTES     ((uint64_t)1 << 20) /* of a redo entry */

void lmcs_transaction_options_init(struct lmcs_transaction_options *options)
{
    *options = (struct lmcs_transaction_options){.wait_ms = UINT32_MAX};
}

static enum lmcs_status enter_all(struct lmcs_transaction *transaction, struct lmcs_error *error)
{
    struct lmcs_live_store *live = transaction->pool->live;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; i < live->bucket_count; i++)
        for (struct lmcs_live_body *body = live->by_id[i]; body != NULL && status == LMCS_OK; body = body->next_id)
            if (body->shelf == transaction->shelf && body->stored)
                status = lmcs_transaction_enter(transaction, body, false, error);
    return status;
}

static enum lmcs_status enter_some(struct lmcs_transaction *transaction, struct lmcs_live *const *lives, size_t count,
                                   struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        struct lmcs_live_body *body = lives[i]->body;
        if (body->pool != transaction->pool || body->shelf != transaction->shelf || !body->stored)
            return lmcs_fail(error, LMCS_INVALID, 0,
                             "%s: a transaction on shelf \"%.200s\" can have only named live variables of that shelf",
                             transaction->pool->path, transaction->shelf->name);
        status = lmcs_transaction_enter(transaction, body, false, error);
    }
    return status;
}

/* Begins the pool's one undo journal; waiting for it releases live->lock. */
static enum lmcs_status begin_undo(struct lmcs_transaction *transaction, uint32_t wait_ms, struct lmcs_error *error)
{
    struct lmcs_live_store *live = transaction->pool->live;
    struct timespec until = lmcs_live_deadline(wait_ms);
    while (live->undoing != NULL)
        if (!lmcs_live_wait(live, &until, wait_ms))
            return lmcs_fail(error, LMCS_IN_USE, 0,
                             "%s: a declared transaction on another shelf has not ended within %u ms",
                             transaction->pool->path, wait_ms);
    enum lmcs_status status = lmcs_live_check(transaction->pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_undo_begin(transaction->pool, transaction->limit_bytes, &transaction->sequence, error);
    if (status == LMCS_OK)
        live->undoing = transaction;
    return status;
}

static uint64_t limit_of(struct lmcs_pool *pool)
{
    pthread_rwlock_rdlock(&pool->meta);
    uint64_t limit = pool->root.limit_bytes;
    pthread_rwlock_unlock(&pool->meta);
    return limit;
}

static uint64_t choose_limit(struct lmcs_pool *pool, uint64_t wanted)
{
    uint64_t most = pool->part_bytes / 2, limit = wanted != 0 ? wanted : DEFAULT_LIMIT;
    uint64_t of_pool = limit_of(pool);
    if (wanted == 0 && of_pool != 0 && limit > of_pool / 4)
        limit = of_pool / 4;
    if (wanted == 0 && lmcs_media_is_device(pool->media) && limit > lmcs_media_bytes(pool->media) / 16)
        limit = lmcs_media_bytes(pool->media) / 16;
    limit = limit < LEAST_LIMIT ? LEAST_LIMIT : limit;
    return limit < most ? limit : most;
}

static void end(struct lmcs_transaction *transaction)
{
    struct lmcs_pool *pool = transaction->pool;
    if (pool->live->undoing == transaction)
        pool->live->undoing = NULL;
    transaction->shelf->transaction = NULL;
    while (transaction->bodies != NULL) {
        struct lmcs_live_body *body = transaction->bodies;
        transaction->bodies = body->next_in;
        body->next_in = NULL;
        body->changed = body->erased = false;
        free(body->before);
        body->before = NULL;
        pthread_mutex_lock(&body->lock);
        body->transaction = NULL;
        pthread_mutex_unlock(&body->lock);
        lmcs_live_body_release(body);
    }
    lmcs_live_shelf_release(pool, transaction->shelf);
    free(transaction->declared);
    free(transaction);
    (void)!lmcs_pool_close(pool, NULL);
}

/* Maps members shared again, at their addresses. */
static void share_again(struct lmcs_transaction *transaction)
{
    for (struct lmcs_live_body *body = transaction->bodies; body != NULL; body = body->next_in) {
        const struct lmcs_live_record *longer = body->record;
        if (body->before != NULL && body->before->df.bytes > longer->df.bytes)
            longer = body->before;
        pthread_mutex_lock(&body->lock);
        if (body->is_private)
            (void)lmcs_live_share(body, longer);
        body->is_private = false;
        pthread_mutex_unlock(&body->lock);
    }
}

static enum lmcs_status begin(struct lmcs_pool *pool, const char *shelf_name, struct lmcs_live *const *lives,
                              size_t count, const struct lmcs_transaction_options *options,
                              struct lmcs_transaction **begun, struct lmcs_error *error)
{
    struct lmcs_live_shelf *shelf;
    enum lmcs_status status = lmcs_live_shelf_find(pool, shelf_name, true, &shelf, error);
    struct lmcs_transaction *transaction = status == LMCS_OK ? calloc(1, sizeof *transaction) : NULL;
    if (status == LMCS_OK && transaction == NULL)
        status = lmcs_fail_memory(error);
    if (status == LMCS_OK)
        status = lmcs_live_shelf_hold(pool, shelf, options->wait_ms, error);
    if (status != LMCS_OK) {
        free(transaction);
        return status;
    }
    *transaction = (struct lmcs_transaction){.pool = pool, .shelf = shelf, .all = lives == NULL};
    transaction->limit_bytes = choose_limit(pool, options->limit_bytes);
    transaction->is_declared = (options->flags & LMCS_TRANSACTION_DECLARED) != 0 || lmcs_media_is_device(pool->media);
    lmcs_pool_keep(pool);
    if (transaction->is_declared)
        status = begin_undo(transaction, options->wait_ms, error);
    /* Set only now: changes by other threads during the wait are in no transaction, because it may fail. */
    shelf->transaction = transaction;
    if (status == LMCS_OK)
        status = lives == NULL ? enter_all(transaction, error) : enter_some(transaction, lives, count, error);
    if (status != LMCS_OK) {
        struct lmcs_error ignored;
        if (pool->live->undoing == transaction)
            (void)!lmcs_journal_clear(pool, LMCS_JOURNAL_UNDO, &ignored);
        share_again(transaction);
        end(transaction);
        return status;
    }
    *begun = transaction;
    return LMCS_OK;
}

enum lmcs_status lmcs_transaction_begin(struct lmcs_pool *pool, const char *shelf, struct lmcs_live *const *lives,
                                        size_t count, const struct lmcs_transaction_options *options,
                                        struct lmcs_transaction **transaction, struct lmcs_error *error)
{
    struct lmcs_transaction_options defaults;
    lmcs_transaction_options_init(&defaults);
    enum lmcs_status status = lmcs_live_check(pool, true, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->live->lock);
    status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK)
        status = begin(pool, shelf, lives, count, options != NULL ? options : &defaults, transaction, error);
    pthread_mutex_unlock(&pool->live->lock);
    return status;
}

enum lmcs_status lmcs_transaction_declare(struct lmcs_transaction *transaction, struct lmcs_live *live, uint64_t offset,
                                          uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_pool *pool = transaction->pool;
    struct lmcs_live_body *body = live->body;
    enum lmcs_status status = lmcs_live_check(pool, true, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->live->lock);
    status = lmcs_live_check(pool, true, error);
    const struct lmcs_live_df *df = &body->record->df;
    if (status == LMCS_OK && (body->transaction != transaction || df->form != LMCS_LIVE_TENSOR || offset > df->bytes ||
                              bytes > df->bytes - offset))
        status = lmcs_fail(
            error, LMCS_INVALID, 0, "%s: \"%.200s\" is not a live tensor of this transaction with bytes %llu to %llu",
            pool->path, body->record->name, (unsigned long long)offset, (unsigned long long)(offset + bytes));
    else if (status == LMCS_OK)
        status = lmcs_transaction_will_store(body, offset, bytes, error);
    pthread_mutex_unlock(&pool->live->lock);
    return status;
}

struct gathering {
    struct lmcs_transaction *transaction;
    struct lmcs_live_body *body;
    struct lmcs_journaled *entries;
    size_t count;
    size_t capacity;
    unsigned char **images;
    size_t image_count;
    uint64_t bytes;
    bool only_count;
    bool has_equal; /* some written pages equal the pool's */
};

static enum lmcs_status add_entry(struct gathering *gathering, uint64_t place, uint64_t bytes, const void *data,
                                  struct lmcs_error *error)
{
    gathering->bytes += bytes;
    if (gathering->only_count)
        return LMCS_OK;
    if (!lmcs_grow(&gathering->entries, &gathering->capacity, gathering->count, sizeof *gathering->entries))
        return lmcs_fail_memory(error);
    gathering->entries[gathering->count++] = (struct lmcs_journaled){place, bytes, data};
    return LMCS_OK;
}

static enum lmcs_status add_pages(void *context, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    struct gathering *gathering = context;
    struct lmcs_live_body *body = gathering->body;
    enum lmcs_status status = LMCS_OK;
    for (uint64_t n; status == LMCS_OK && bytes > 0; offset += n, bytes -= n) {
        n = bytes < RUN_BYTES ? bytes : RUN_BYTES;
        uint64_t place = lmcs_live_place(body->record, offset, &n);
        status = add_entry(gathering, place, n, body->data + offset, error);
    }
    return status;
}

static enum lmcs_status add_value(struct gathering *gathering, struct lmcs_live_body *body, uint64_t now_ns,
                                  struct lmcs_error *error)
{
    unsigned char **grown = realloc(gathering->images, (gathering->image_count + 1) * sizeof *grown);
    if (grown == NULL)
        return lmcs_fail_memory(error);
    gathering->images = grown;
    unsigned char *image = malloc(lmcs_slot_room(body->pending_bytes));
    if (image == NULL)
        return lmcs_fail_memory(error);
    gathering->images[gathering->image_count++] = image;
    uint64_t place, bytes;
    lmcs_slot_image(body, body->pending, body->pending_bytes, now_ns, image, &place, &bytes);
    return add_entry(gathering, place, bytes, image, error);
}

/* Open handles keep the bytes of an erased variable. */
static bool is_kept(const struct lmcs_live_body *body)
{
    return !body->erased || body->handles > 0;
}

/* Lists private pages and pending values. */
static enum lmcs_status gather(struct gathering *gathering, uint64_t now_ns, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    struct lmcs_live_body *body = gathering->transaction->bodies;
    for (; status == LMCS_OK && body != NULL; body = body->next_in) {
        gathering->body = body;
        if (!is_kept(body))
            continue;
        if (body->is_private)
            status = lmcs_live_private_pages(body, add_pages, gathering, &gathering->has_equal, error);
        if (status == LMCS_OK && body->pending != NULL)
            status = add_value(gathering, body, now_ns, error);
    }
    return status;
}

static void free_gathering(struct gathering *gathering)
{
    for (size_t i = 0; i < gathering->image_count; i++)
        free(gathering->images[i]);
    free(gathering->images);
    free(gathering->entries);
}

static size_t list_changes(const struct lmcs_transaction *transaction, struct lmcs_live_change *changes)
{
    size_t count = 0;
    for (const struct lmcs_live_body *body = transaction->bodies; body != NULL; body = body->next_in) {
        if (!body->changed || (body->before == NULL && body->erased))
            continue;
        if (changes != NULL)
            changes[count] = (struct lmcs_live_change){body->before, body->erased ? NULL : body->record};
        count++;
    }
    return count;
}

/* Persists new, grown and declared tensors, which need no redo journal. */
static enum lmcs_status persist_in_place(const struct lmcs_transaction *transaction, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    const struct lmcs_live_body *body = transaction->bodies;
    for (; status == LMCS_OK && body != NULL; body = body->next_in) {
        uint64_t bytes = body->record->df.bytes, had = body->before != NULL ? body->before->df.bytes : 0;
        had = body->is_private ? lmcs_page_up(had) : had & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
        if (body->changed && !body->erased && bytes > had)
            status = lmcs_live_persist_range((struct lmcs_live_body *)(uintptr_t)body, had, bytes - had, error);
    }
    for (size_t i = 0; status == LMCS_OK && i < transaction->declared_count; i++) {
        const struct lmcs_declared *declared = &transaction->declared[i];
        uint64_t bytes = declared->body->record->df.bytes;
        bytes = bytes > declared->offset ? bytes - declared->offset : 0;
        status = lmcs_live_persist_range(declared->body, declared->offset,
                                         bytes < declared->bytes ? bytes : declared->bytes, error);
    }
    return status;
}

/* Runs the commit up to its moment: the sealed journal or the new root. */
static enum lmcs_status reach_commit(struct lmcs_transaction *transaction, const struct gathering *gathering,
                                     struct lmcs_error *error)
{
    struct lmcs_pool *pool = transaction->pool;
    size_t count = list_changes(transaction, NULL);
    bool with_root = count > 0 || (transaction->is_declared && gathering->count > 0);
    uint64_t sequence = transaction->sequence;
    struct lmcs_live_change *changes = malloc((count + 1) * sizeof *changes);
    if (changes == NULL)
        return lmcs_fail_memory(error);
    list_changes(transaction, changes);
    enum lmcs_status status = persist_in_place(transaction, error);
    if (status == LMCS_OK && gathering->count > 0)
        status = lmcs_journal_write(pool, gathering->entries, gathering->count, with_root, &sequence, error);
    if (status == LMCS_OK && with_root)
        status = lmcs_live_commit_changes(pool, changes, count, sequence, error);
    if (status == LMCS_OK && gathering->has_equal && gathering->count == 0 && !with_root)
        status = lmcs_heap_sync(pool->heap, error); /* else the journal or the root syncs */
    free(changes);
    if (status != LMCS_OK && gathering->count > 0)
        lmcs_journal_take_back(pool, error);
    return status;
}

/* Completes the commit; after a failure, the next open does. */
static enum lmcs_status complete(struct lmcs_transaction *transaction, const struct gathering *gathering,
                                 struct lmcs_error *error)
{
    struct lmcs_pool *pool = transaction->pool;
    for (struct lmcs_live_body *body = transaction->bodies; body != NULL; body = body->next_in)
        if (body->is_private || (transaction->is_declared && body->record->df.form == LMCS_LIVE_TENSOR)) {
            pthread_mutex_lock(&body->lock);
            lmcs_cell_stamp(body);
            pthread_mutex_unlock(&body->lock);
        }
    enum lmcs_status status =
        gathering->count > 0 ? lmcs_journal_finish(pool, gathering->entries, gathering->count, error) : LMCS_OK;
    if (status == LMCS_OK && transaction->is_declared)
        status = lmcs_journal_clear(pool, LMCS_JOURNAL_UNDO, error);
    if (status != LMCS_OK) {
        lmcs_live_break(pool, error);
        lmcs_error_prefix(error, gathering->count > 0
                                     ? "the transaction is committed, and is completed when the pool is opened again: "
                                     : "whether the transaction is committed is known when the pool is opened again: ");
    }
    return status;
}

/* Makes a committed body's pending state final. */
static void settle_body(struct lmcs_live_body *body, uint64_t now_ns)
{
    pthread_mutex_lock(&body->lock);
    if (body->pending != NULL && is_kept(body))
        lmcs_slot_switch(body, body->pending_bytes, now_ns);
    free(body->pending);
    body->pending = NULL;
    pthread_mutex_unlock(&body->lock);
    if (!body->changed)
        return;
    uint64_t had = body->before != NULL ? body->before->df.bytes : 0;
    if (body->record->df.bytes < had)
        lmcs_live_unmap_tail(body, body->record->df.bytes, had);
    lmcs_live_give_difference(body->pool, body->before, body->record);
    body->stored = !body->erased;
}

static enum lmcs_status commit(struct lmcs_transaction *transaction, struct lmcs_error *error)
{
    struct lmcs_pool *pool = transaction->pool;
    struct gathering gathering = {.transaction = transaction};
    uint64_t now_ns = lmcs_now_ns();
    enum lmcs_status status = gather(&gathering, now_ns, error);
    if (status == LMCS_OK && gathering.bytes > transaction->limit_bytes)
        status = lmcs_fail_full(
            error, gathering.bytes, transaction->limit_bytes, 0,
            "%s: the transaction has written to %llu bytes of pages, and its limit is %llu; abort it, "
            "and begin one with a higher limit, or several",
            pool->path, (unsigned long long)gathering.bytes, (unsigned long long)transaction->limit_bytes);
    if (status == LMCS_OK)
        status = reach_commit(transaction, &gathering, error);
    if (status == LMCS_OK)
        status = complete(transaction, &gathering, error);
    free_gathering(&gathering);
    if (status != LMCS_OK)
        return status;
    share_again(transaction);
    for (struct lmcs_live_body *body = transaction->bodies; body != NULL; body = body->next_in)
        settle_body(body, now_ns);
    end(transaction);
    return LMCS_OK;
}

enum lmcs_status lmcs_transaction_commit(struct lmcs_transaction *transaction, struct lmcs_error *error)
{
    struct lmcs_pool *pool = transaction->pool;
    struct lmcs_error local;
    enum lmcs_status status = lmcs_live_check(pool, true, error);
    if (status != LMCS_OK)
        return status;
    lmcs_pool_keep(pool); /* the transaction's own open ends in commit; the lock is needed longer */
    pthread_mutex_lock(&pool->live->lock);
    status = lmcs_live_check(pool, true, &local);
    if (status == LMCS_OK)
        status = commit(transaction, &local);
    pthread_mutex_unlock(&pool->live->lock);
    (void)!lmcs_pool_close(pool, NULL);
    if (status != LMCS_OK && error != NULL)
        *error = local;
    return status;
}

enum lmcs_status lmcs_transaction_bytes(struct lmcs_transaction *transaction, uint64_t *bytes, struct lmcs_error *error)
{
    struct lmcs_pool *pool = transaction->pool;
    enum lmcs_status status = lmcs_live_check(pool, true, error);
    if (status != LMCS_OK)
        return status;
    struct gathering gathering = {.transaction = transaction, .only_count = true};
    pthread_mutex_lock(&pool->live->lock);
    status = gather(&gathering, 0, error);
    *bytes = gathering.bytes + transaction->undo_at;
    pthread_mutex_unlock(&pool->live->lock);
    free_gathering(&gathering);
    return status;
}

static void revert_body(struct lmcs_live_body *body)
{
    pthread_mutex_lock(&body->lock);
    free(body->pending);
    body->pending = NULL;
    pthread_mutex_unlock(&body->lock);
    if (!body->changed)
        return;
    uint64_t now = body->record->df.bytes;
    if (body->before == NULL) {
        lmcs_live_body_forget_name(body);
        body->stored = false;
        return;
    }
    lmcs_live_body_unname(body);
    struct lmcs_live_record *before = body->before;
    body->before = NULL;
    struct lmcs_live_record *old = lmcs_live_body_set(body, before);
    if (now > before->df.bytes)
        lmcs_live_unmap_tail(body, before->df.bytes, now);
    lmcs_live_give_difference(body->pool, old, before);
    free(old);
    lmcs_live_body_name(body);
}

static void abort_now(struct lmcs_transaction *transaction)
{
    struct lmcs_pool *pool = transaction->pool;
    struct lmcs_error error; /* the next write fails with it */
    if (!atomic_load(&pool->live->is_broken) && transaction->is_declared &&
        lmcs_undo_roll_back(pool, transaction->sequence, &error) != LMCS_OK)
        lmcs_live_break(pool, &error);
    share_again(transaction);
    /* Frees all taken names before any body gets its old name back. */
    for (struct lmcs_live_body *body = transaction->bodies; body != NULL; body = body->next_in)
        if (body->changed)
            lmcs_live_body_unname(body);
    for (struct lmcs_live_body *body = transaction->bodies; body != NULL; body = body->next_in)
        revert_body(body);
    end(transaction);
}

void lmcs_transaction_abort(struct lmcs_transaction *transaction)
{
    if (transaction == NULL || lmcs_pool_check(transaction->pool, true, NULL) != LMCS_OK)
        return;
    struct lmcs_pool *pool = transaction->pool;
    lmcs_pool_keep(pool);
    pthread_mutex_lock(&pool->live->lock);
    abort_now(transaction);
    pthread_mutex_unlock(&pool->live->lock);
    (void)!lmcs_pool_close(pool, NULL);
}
