/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/body.c - live variables in use.
 *
 * The table of names includes uncommitted changes, the tree does not: a record from the tree counts only if it has no
 * body.
 */
#include "live/body.h"

#include <stdlib.h>
#include <string.h>

#include "live/cell.h"
#include "live/map.h"
#include "live/txn.h"

static struct lmcs_live_body **id_bucket(const struct lmcs_live_store *live, uint64_t id)
{
    return &live->by_id[id * 0x9e3779b97f4a7c15u >> 20 & (live->bucket_count - 1)];
}

static struct lmcs_live_body **name_bucket(const struct lmcs_live_store *live, uint64_t shelf, const char *name)
{
    return &live->by_name[lmc_hash64(name, strlen(name), shelf) & (live->bucket_count - 1)];
}

/* Enlarges the tables. Without memory they stay: slower, not wrong. */
static void widen(struct lmcs_live_store *live)
{
    size_t count = live->bucket_count;
    struct lmcs_live_body **ids = live->by_id, **names = live->by_name;
    struct lmcs_live_body **more_ids = calloc(count * 4, sizeof *more_ids);
    struct lmcs_live_body **more_names = calloc(count * 4, sizeof *more_names);
    if (more_ids == NULL || more_names == NULL) {
        free(more_ids);
        free(more_names);
        return;
    }
    live->by_id = more_ids;
    live->by_name = more_names;
    live->bucket_count = count * 4;
    for (size_t i = 0; i < count; i++) {
        for (struct lmcs_live_body *body = ids[i], *next; body != NULL; body = next) {
            next = body->next_id;
            body->next_id = *id_bucket(live, body->id);
            *id_bucket(live, body->id) = body;
        }
        for (struct lmcs_live_body *body = names[i], *next; body != NULL; body = next) {
            next = body->next_name;
            struct lmcs_live_body **at = name_bucket(live, body->shelf->id, body->record->name);
            body->next_name = *at;
            *at = body;
        }
    }
    free(ids);
    free(names);
}

void lmcs_live_body_name(struct lmcs_live_body *body)
{
    struct lmcs_live_body **at = name_bucket(body->pool->live, body->shelf->id, body->record->name);
    if (body->named || body->record->name[0] == '\0')
        return;
    body->next_name = *at;
    *at = body;
    body->named = true;
}

void lmcs_live_body_unname(struct lmcs_live_body *body)
{
    if (!body->named)
        return;
    struct lmcs_live_body **at = name_bucket(body->pool->live, body->shelf->id, body->record->name);
    while (*at != body)
        at = &(*at)->next_name;
    *at = body->next_name;
    body->named = false;
}

void lmcs_live_body_forget_name(struct lmcs_live_body *body)
{
    lmcs_live_body_unname(body);
    pthread_mutex_lock(&body->lock);
    lmcs_live_record_unname(body->record);
    pthread_mutex_unlock(&body->lock);
}

static void enter_id(struct lmcs_live_body *body)
{
    struct lmcs_live_store *live = body->pool->live;
    if (++live->body_count > 2 * live->bucket_count)
        widen(live);
    struct lmcs_live_body **at = id_bucket(live, body->id);
    body->next_id = *at;
    *at = body;
}

static void leave_id(struct lmcs_live_body *body)
{
    struct lmcs_live_body **at = id_bucket(body->pool->live, body->id);
    while (*at != body)
        at = &(*at)->next_id;
    *at = body->next_id;
    body->pool->live->body_count--;
}

struct lmcs_live_body *lmcs_live_body_of_id(const struct lmcs_live_store *live, uint64_t shelf, uint64_t id)
{
    struct lmcs_live_body *body = *id_bucket(live, id);
    while (body != NULL && (body->id != id || body->shelf->id != shelf))
        body = body->next_id;
    return body;
}

static void free_body(struct lmcs_live_body *body)
{
    lmcs_live_unmap_all(body);
    pthread_mutex_destroy(&body->lock);
    free(body->pending);
    free(body->record);
    free(body);
}

static enum lmcs_status pin_parts(struct lmcs_live_body *body, bool pin, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    size_t i = 0;
    for (; status == LMCS_OK && pin && i < body->record->df.part_count; i++)
        status = lmcs_lease_pin(body->pool->lease, body->record->parts[i].offset, body->record->parts[i].bytes, error);
    if (pin && status == LMCS_OK)
        return LMCS_OK;
    for (size_t k = 0; k < (pin ? i - 1 : body->record->df.part_count); k++)
        lmcs_lease_unpin(body->pool->lease, body->record->parts[k].offset, body->record->parts[k].bytes);
    return status;
}

/* A copy of the pool may have holes where a tensor has zeros. On a full disk, a store to one would end the process. */
static enum lmcs_status back_holes(struct lmcs_pool *pool, const struct lmcs_live_record *record,
                                   struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    const uint64_t end = lmcs_page_up(record->df.bytes);
    if (pool->heap == NULL || record->df.form != LMCS_LIVE_TENSOR)
        return LMCS_OK;
    for (uint64_t n, at = 0; status == LMCS_OK && at < end; at += n) {
        n = end - at;
        uint64_t place = lmcs_live_place(record, at, &n);
        status = lmcs_heap_back(pool->heap, place, n, error);
    }
    return status;
}

enum lmcs_status lmcs_live_body_new(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf,
                                    struct lmcs_live_record *record, bool stored, struct lmcs_live_body **body,
                                    struct lmcs_error *error)
{
    struct lmcs_live_body *b = calloc(1, sizeof *b);
    if (b == NULL) {
        if (!stored)
            lmcs_live_give_difference(pool, record, NULL);
        free(record);
        return lmcs_fail_memory(error);
    }
    *b = (struct lmcs_live_body){
        .pool = pool, .shelf = shelf, .id = record->id, .references = 1, .stored = stored, .record = record};
    pthread_mutex_init(&b->lock, NULL);
    enum lmcs_status status = lmcs_cell_load(b, error);
    b->is_damaged = status == LMCS_DAMAGED && stored && pool->heap != NULL;
    if (status == LMCS_OK || b->is_damaged)
        status = stored ? back_holes(pool, record, error) : LMCS_OK;
    if (status == LMCS_OK)
        status = lmcs_live_map(b, record, 0, error);
    if (status == LMCS_OK)
        lmcs_live_move(b);
    if (status == LMCS_OK && pool->heap == NULL) {
        status = pin_parts(b, true, error);
        b->pinned = status == LMCS_OK;
    }
    if (status != LMCS_OK) {
        if (!stored)
            lmcs_live_give_difference(pool, record, NULL);
        free_body(b);
        return status;
    }
    enter_id(b);
    if (stored)
        lmcs_live_body_name(b);
    *body = b;
    return LMCS_OK;
}

void lmcs_live_body_release(struct lmcs_live_body *body)
{
    if (--body->references > 0)
        return;
    lmcs_live_body_unname(body);
    leave_id(body);
    lmcs_live_unmap_all(body);
    if (body->pinned)
        (void)!pin_parts(body, false, NULL);
    if (!body->stored && body->pool->heap != NULL)
        lmcs_live_give_difference(body->pool, body->record, NULL);
    free_body(body);
}

/* Hides a body from searches by name and id; its handles still use it. */
static void forget(struct lmcs_live_body *body)
{
    lmcs_live_body_unname(body);
    leave_id(body);
    body->id = 0;
    enter_id(body);
}

/* A found record with a body does not count: a transaction, or in a reader the writer, has renamed or erased it. */
static enum lmcs_status find_in_tree(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, const char *name,
                                     struct lmcs_live_body **body, struct lmcs_error *error)
{
    struct lmcs_live_record *record = NULL;
    struct lmcs_txn txn;
    bool found = false;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_record_find(&txn, shelf->id, name, &record, &found, error);
    struct lmcs_live_body *other =
        status == LMCS_OK && found ? lmcs_live_body_of_id(pool->live, shelf->id, record->id) : NULL;
    if (other != NULL && pool->heap == NULL) {
        forget(other);
    } else if (other != NULL) {
        free(record);
        found = false;
    }
    /* Before lmcs_txn_end ends a reader's lease. */
    if (status == LMCS_OK && found)
        status = lmcs_live_body_new(pool, shelf, record, true, body, error);
    lmcs_txn_end(&txn);
    return status;
}

/* Whether the writing process has changed a reader's record. */
static bool is_stale(struct lmcs_pool *pool, const struct lmcs_live_body *body)
{
    struct lmcs_live_record *record = NULL;
    struct lmcs_txn txn;
    bool found = false;
    if (pool->heap != NULL || lmcs_txn_read(pool, &txn, NULL) != LMCS_OK)
        return false;
    enum lmcs_status status = lmcs_live_record_get(&txn, body->shelf->id, body->id, &record, &found, NULL);
    lmcs_txn_end(&txn);
    bool same = status == LMCS_OK && found && record->value_bytes == body->record->value_bytes &&
                memcmp(record->value, body->record->value, record->value_bytes) == 0;
    if (status == LMCS_OK && found)
        free(record);
    return !same;
}

enum lmcs_status lmcs_live_body_find(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, const char *name,
                                     struct lmcs_live_body **found, struct lmcs_error *error)
{
    *found = NULL;
    struct lmcs_live_body *body = *name_bucket(pool->live, shelf->id, name);
    while (body != NULL && (body->shelf != shelf || strcmp(body->record->name, name) != 0))
        body = body->next_name;
    if (body != NULL && is_stale(pool, body)) {
        forget(body);
        body = NULL;
    }
    if (body != NULL) {
        body->references++;
        *found = body;
        return LMCS_OK;
    }
    enum lmcs_status status = find_in_tree(pool, shelf, name, found, error);
    if (status == LMCS_OK && *found != NULL)
        status = lmcs_transaction_join(*found, shelf->transaction, false, error);
    if (status != LMCS_OK && *found != NULL) {
        lmcs_live_body_release(*found);
        *found = NULL;
    }
    return status;
}

enum lmcs_status lmcs_live_body_get(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, const char *shelf_name,
                                    const char *name, struct lmcs_live_body **body, struct lmcs_error *error)
{
    *body = NULL;
    enum lmcs_status status = lmcs_live_check_name(name, error);
    if (status == LMCS_OK && shelf != NULL)
        status = lmcs_live_body_find(pool, shelf, name, body, error);
    if (status == LMCS_OK && *body == NULL)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: shelf \"%.200s\" has no live variable \"%.200s\"", pool->path,
                         shelf_name, name);
    return status;
}

enum lmcs_status lmcs_live_fail_in_use(struct lmcs_live_body *body, const char *action, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_IN_USE, 0,
                     "%s: live variable \"%.200s\" can't be %s: it is open (%u times) in this process; close it first",
                     body->pool->path, body->record->name, action, body->handles);
}
