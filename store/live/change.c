/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/change.c - erasing, naming and replacing live variables.
 *
 * Each function replaces a record by one whose space is already written: by a metadata transaction, or in memory until
 * the transaction's commit; `before` is then the pool's record.
 */
#include "live/change.h"

#include <stdlib.h>
#include <string.h>

#include "live/map.h"
#include "live/txn.h"

/* Gives a body its record after the commit; NULL: erased. */
static void apply(struct lmcs_live_body *body, struct lmcs_live_record *record)
{
    if (record == NULL) {
        lmcs_live_body_forget_name(body);
        body->stored = false; /* space is given back with the last handle */
        return;
    }
    lmcs_live_body_unname(body);
    struct lmcs_live_record *old = lmcs_live_body_set(body, record);
    lmcs_live_give_difference(body->pool, old, record); /* no handle writes there any more */
    free(old);
    body->stored = record->name[0] != '\0';
    lmcs_live_body_name(body);
}

/* Gives back space of `old` that neither the new record nor `before` has. */
static void give_interim(struct lmcs_live_body *body, const struct lmcs_live_record *old)
{
    const struct lmcs_live_record *record = body->record, *before = body->before;
    bool kept = old->df.cell == record->df.cell || (before != NULL && old->df.cell == before->df.cell);
    if (!kept)
        lmcs_live_give_cell(body->pool, old->df.cell, old->df.cell_bytes);
    uint64_t from = before != NULL && before->df.bytes > record->df.bytes ? before->df.bytes : record->df.bytes, n;
    if (old->df.form != LMCS_LIVE_TENSOR)
        return;
    lmcs_live_unmap_tail(body, from, old->df.bytes); /* late stores must not reach the next owner's pages */
    for (uint64_t at = lmcs_page_up(from), end = lmcs_page_up(old->df.bytes); at < end; at += n) {
        n = end - at;
        uint64_t place = lmcs_live_place(old, at, &n);
        lmcs_live_unback(body->pool, place, n);
    }
}

/* Changes a body in memory; the transaction's commit writes it. */
static enum lmcs_status keep_for_later(struct lmcs_live_body *body, struct lmcs_live_record *record,
                                       struct lmcs_error *error)
{
    if (!body->changed && body->stored) {
        body->before = lmcs_live_record_new(body->record, error);
        if (body->before == NULL)
            return LMCS_NO_MEMORY;
    }
    body->changed = true;
    body->erased = record == NULL || record->name[0] == '\0';
    if (record == NULL) {
        lmcs_live_body_forget_name(body);
        return LMCS_OK;
    }
    lmcs_live_body_unname(body);
    struct lmcs_live_record *old = lmcs_live_body_set(body, record);
    give_interim(body, old);
    free(old);
    lmcs_live_body_name(body);
    return LMCS_OK;
}

void lmcs_live_record_discard(struct lmcs_live_body *body, struct lmcs_live_record *record)
{
    if (record == NULL)
        return;
    struct lmcs_live_record kept = *body->record;
    if (body->before != NULL && body->before->df.bytes > kept.df.bytes)
        kept.df.bytes = body->before->df.bytes;
    lmcs_live_give_difference(body->pool, record, &kept);
    free(record);
}

enum lmcs_status lmcs_live_change_bodies(struct lmcs_live_body *const *bodies, struct lmcs_live_record *const *records,
                                         size_t count, struct lmcs_error *error)
{
    struct lmcs_live_change changes[2];
    enum lmcs_status status = LMCS_OK;
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        bool nameless = records[i] == NULL || records[i]->name[0] == '\0';
        changes[i] =
            (struct lmcs_live_change){bodies[i]->stored ? bodies[i]->record : NULL, nameless ? NULL : records[i]};
        any = any || bodies[i]->stored || !nameless;
        if (bodies[i]->transaction != bodies[0]->transaction)
            status = lmcs_fail(error, LMCS_INVALID, 0,
                               "%s: live variable \"%.200s\" and the other one are not in the same transaction",
                               bodies[0]->pool->path, bodies[i]->record->name);
    }
    bool later = bodies[0]->transaction != NULL;
    if (status == LMCS_OK && !later && any)
        status = lmcs_live_commit_changes(bodies[0]->pool, changes, count, 0, error);
    size_t done = 0;
    for (; status == LMCS_OK && done < count; done++)
        if (later)
            status = keep_for_later(bodies[done], records[done], error);
        else
            apply(bodies[done], records[done]);
    /* Without memory for the second, the first stays changed, in a transaction that can be aborted. */
    for (size_t i = status == LMCS_OK ? count : done > 0 ? done - 1 : 0; i < count; i++)
        lmcs_live_record_discard(bodies[i], records[i]);
    return status;
}

enum lmcs_status lmcs_live_change_body(struct lmcs_live_body *body, struct lmcs_live_record *record,
                                       struct lmcs_error *error)
{
    return lmcs_live_change_bodies(&body, &record, 1, error);
}

enum lmcs_status lmcs_live_replace_body(struct lmcs_live_body *old, struct lmcs_live_body *body,
                                        struct lmcs_live_record *record, struct lmcs_error *error)
{
    struct lmcs_transaction *transaction = old != NULL ? old->transaction : body->shelf->transaction;
    enum lmcs_status status = lmcs_transaction_join(body, transaction, true, error);
    if (status != LMCS_OK) {
        free(record);
        return status;
    }
    if (old == NULL)
        return lmcs_live_change_body(body, record, error);
    struct lmcs_live_body *bodies[2] = {old, body};
    struct lmcs_live_record *records[2] = {NULL, record};
    return lmcs_live_change_bodies(bodies, records, 2, error);
}

typedef enum lmcs_status work_on_two(struct lmcs_live_body *first, struct lmcs_live_body *second,
                                     const char *second_name, struct lmcs_error *error);

/* Runs `work` on the bodies of one or two names. `may_miss`: the second may be missing. */
static enum lmcs_status on_names(struct lmcs_pool *pool, const char *shelf_name, const char *first, const char *second,
                                 bool may_miss, work_on_two *work, struct lmcs_error *error)
{
    struct lmcs_live_shelf *shelf = NULL;
    struct lmcs_live_body *one = NULL, *two = NULL;
    enum lmcs_status status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK && second != NULL)
        status = lmcs_live_check_name(second, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->live->lock);
    status = lmcs_live_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_live_shelf_find(pool, shelf_name, false, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_live_body_get(pool, shelf, shelf_name, first, &one, error);
    if (status == LMCS_OK && second != NULL)
        status = may_miss ? lmcs_live_body_find(pool, shelf, second, &two, error)
                          : lmcs_live_body_get(pool, shelf, shelf_name, second, &two, error);
    if (status == LMCS_OK)
        status = work(one, two, second, error);
    if (one != NULL)
        lmcs_live_body_release(one);
    if (two != NULL)
        lmcs_live_body_release(two);
    pthread_mutex_unlock(&pool->live->lock);
    return status;
}

static enum lmcs_status erase(struct lmcs_live_body *body, struct lmcs_live_body *none, const char *no_name,
                              struct lmcs_error *error)
{
    (void)none;
    (void)no_name;
    return body->handles > 0 ? lmcs_live_fail_in_use(body, "erased", error) : lmcs_live_change_body(body, NULL, error);
}

enum lmcs_status lmcs_live_erase(struct lmcs_pool *pool, const char *shelf, const char *name, struct lmcs_error *error)
{
    return on_names(pool, shelf, name, NULL, false, erase, error);
}

static struct lmcs_live_record *renamed(const struct lmcs_live_record *record, const char *name,
                                        struct lmcs_error *error)
{
    struct lmcs_live_record like = *record;
    like.name = name;
    like.df.name_bytes = (uint16_t)strlen(name);
    return lmcs_live_record_new(&like, error);
}

static enum lmcs_status rename_one(struct lmcs_live_body *body, struct lmcs_live_body *other, const char *name,
                                   struct lmcs_error *error)
{
    if (other == body)
        return LMCS_OK;
    if (other != NULL)
        return lmcs_fail(error, LMCS_EXISTS, 0, "%s: shelf \"%.200s\" has a live variable \"%.200s\" already",
                         body->pool->path, body->shelf->name, name);
    if (body->transaction == NULL && lmcs_transaction_gave_up(body->shelf->transaction, name))
        return lmcs_fail(
            error, LMCS_IN_USE, 0,
            "%s: live variable \"%.200s\" can't be named \"%.200s\": a transaction without it has given up "
            "that name, and gets it back on abort; commit or abort that transaction first, or begin one with both "
            "variables",
            body->pool->path, body->record->name, name);
    struct lmcs_live_record *record = renamed(body->record, name, error);
    return record != NULL ? lmcs_live_change_body(body, record, error) : LMCS_NO_MEMORY;
}

enum lmcs_status lmcs_live_rename(struct lmcs_pool *pool, const char *shelf, const char *from, const char *to,
                                  struct lmcs_error *error)
{
    return on_names(pool, shelf, from, to == NULL ? "" : to, true, rename_one, error);
}

static enum lmcs_status swap(struct lmcs_live_body *first, struct lmcs_live_body *second, const char *name,
                             struct lmcs_error *error)
{
    (void)name;
    struct lmcs_live_body *bodies[2] = {first, second};
    if (first == second)
        return LMCS_OK;
    struct lmcs_live_record *records[2] = {renamed(first->record, second->record->name, error),
                                           renamed(second->record, first->record->name, error)};
    if (records[0] != NULL && records[1] != NULL)
        return lmcs_live_change_bodies(bodies, records, 2, error);
    free(records[0]);
    free(records[1]);
    return LMCS_NO_MEMORY;
}

enum lmcs_status lmcs_live_swap(struct lmcs_pool *pool, const char *shelf, const char *first, const char *second,
                                struct lmcs_error *error)
{
    return on_names(pool, shelf, first, second == NULL ? "" : second, false, swap, error);
}

static enum lmcs_status replace(struct lmcs_live_body *body, const char *name, struct lmcs_error *error)
{
    struct lmcs_live_body *old = NULL;
    const struct lmcs_live_record *has = body->before != NULL ? body->before : body->record;
    if (body->stored || body->named)
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "%s: live variable \"%.200s\" has a name; only an unnamed one can replace another",
                         body->pool->path, has->name);
    enum lmcs_status status = lmcs_live_body_find(body->pool, body->shelf, name, &old, error);
    if (status == LMCS_OK)
        status = lmcs_live_persist_range(body, 0, body->record->df.bytes, error);
    struct lmcs_live_record *record = status == LMCS_OK ? renamed(body->record, name, error) : NULL;
    if (status == LMCS_OK && record == NULL)
        status = LMCS_NO_MEMORY;
    if (status == LMCS_OK)
        status = lmcs_live_replace_body(old, body, record, error);
    if (old != NULL)
        lmcs_live_body_release(old);
    return status;
}

enum lmcs_status lmcs_live_replace(struct lmcs_live *live, const char *name, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_check(live->pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_live_check_name(name, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&live->pool->live->lock);
    status = lmcs_live_check(live->pool, true, error);
    if (status == LMCS_OK)
        status = replace(live->body, name, error);
    pthread_mutex_unlock(&live->pool->live->lock);
    return status;
}

static enum lmcs_status set_note(struct lmcs_live_body *body, const void *note, size_t note_bytes,
                                 struct lmcs_error *error)
{
    struct lmcs_live_record like = *body->record;
    like.note = note;
    like.df.note_bytes = (uint16_t)note_bytes;
    struct lmcs_live_record *record = lmcs_live_record_new(&like, error);
    return record != NULL ? lmcs_live_change_body(body, record, error) : LMCS_NO_MEMORY;
}

enum lmcs_status lmcs_live_set_note(struct lmcs_live *live, const void *note, size_t note_bytes,
                                    struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_check(live->pool, true, error);
    if (status == LMCS_OK && note_bytes > LMCS_LIVE_MAX_NOTE)
        status = lmcs_fail(error, LMCS_INVALID, 0, "a note has at most %u bytes, this one has %zu", LMCS_LIVE_MAX_NOTE,
                           note_bytes);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&live->pool->live->lock);
    status = lmcs_live_check(live->pool, true, error);
    if (status == LMCS_OK)
        status = set_note(live->body, note, note_bytes, error);
    pthread_mutex_unlock(&live->pool->live->lock);
    return status;
}
