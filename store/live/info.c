/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/info.c - which live variables there are.
 *
 * Lists the tree's records, corrected by bodies that a transaction has made, erased or renamed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "live/cell.h"

static void fill_record(const struct lmcs_live_record *record, const struct lmcs_pool *pool,
                        struct lmcs_live_info *info)
{
    const struct lmcs_live_df *df = &record->df;
    memset(info, 0, sizeof *info);
    memcpy(info->name, record->name, df->name_bytes);
    info->form = df->form;
    info->dtype = df->dtype;
    info->ndim = df->ndim;
    memcpy(info->shape, record->shape, df->ndim * sizeof info->shape[0]);
    info->bytes = df->bytes;
    info->reserved_bytes = df->form == LMCS_LIVE_TENSOR ? lmcs_live_capacity(record) : LMCS_LIVE_MAX_VALUE;
    info->created_ns = df->created_ns;
    info->numa_node = pool->numa_node;
    memcpy(info->note, record->note, df->note_bytes);
    info->note_bytes = df->note_bytes;
}

static void fill_state(const struct lmcs_live_record *record, const struct lmcs_cell_state *state,
                       struct lmcs_live_info *info)
{
    info->version = state->version;
    info->written_ns = state->written_ns;
    if (!lmcs_live_is_variable_length(record))
        return;
    info->bytes = info->shape[0] = state->bytes;
}

/*
 * In a reader: the present name and value; a tensor's shape, and all fields of an erased variable, are from its
 * opening.
 */
static void fill_elsewhere(struct lmcs_live_body *body, struct lmcs_live_info *info)
{
    struct lmcs_live_record *now;
    struct lmcs_cell_state state = {body->version, body->written_ns, body->value_bytes, body->slot};
    struct lmcs_error ignored;
    enum lmcs_status status = lmcs_cell_follow(body, NULL, &state, &now, &ignored);
    const struct lmcs_live_record *shown = status == LMCS_OK && now->df.form == LMCS_LIVE_VALUE ? now : body->record;
    fill_record(shown, body->pool, info);
    fill_state(shown, &state, info);
    info->handles = body->handles;
    info->is_damaged = status == LMCS_DAMAGED;
    snprintf(info->name, sizeof info->name, "%s", now != NULL ? now->name : "");
    free(now);
}

static void fill_body(struct lmcs_live_body *body, struct lmcs_live_info *info)
{
    if (body->pool->heap == NULL) {
        fill_elsewhere(body, info);
        return;
    }
    pthread_mutex_lock(&body->lock);
    uint64_t bytes = body->pending != NULL ? body->pending_bytes : body->value_bytes;
    struct lmcs_cell_state state = {body->version, body->written_ns, bytes, body->slot};
    pthread_mutex_unlock(&body->lock);
    fill_record(body->record, body->pool, info);
    fill_state(body->record, &state, info);
    info->handles = body->handles;
    info->is_damaged = body->is_damaged;
    if (!body->named)
        info->name[0] = '\0';
}

enum lmcs_status lmcs_live_info(struct lmcs_live *live, struct lmcs_live_info *info, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(live->pool, false, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&live->pool->live->lock);
    fill_body(live->body, info);
    pthread_mutex_unlock(&live->pool->live->lock);
    return LMCS_OK;
}

struct listing {
    struct lmcs_pool *pool;
    const struct lmcs_live_filter *filter;
    uint64_t shelf;
    struct lmcs_live_info **infos;
    size_t count;
    size_t capacity;
};

static bool is_wanted(const struct lmcs_live_filter *filter, const struct lmcs_live_info *info)
{
    if (filter == NULL)
        return true;
    return (filter->prefix == NULL || strncmp(info->name, filter->prefix, strlen(filter->prefix)) == 0) &&
           (info->is_damaged || (info->written_ns >= filter->written_from_ns &&
                                 (filter->written_until_ns == 0 || info->written_ns < filter->written_until_ns)));
}

static enum lmcs_status add_info(struct listing *listing, const struct lmcs_live_info *info, struct lmcs_error *error)
{
    if (info->name[0] == '\0' || !is_wanted(listing->filter, info))
        return LMCS_OK;
    if (!lmcs_grow(&listing->infos, &listing->capacity, listing->count, sizeof *listing->infos))
        return lmcs_fail_memory(error);
    struct lmcs_live_info *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return lmcs_fail_memory(error);
    *copy = *info;
    listing->infos[listing->count++] = copy;
    return LMCS_OK;
}

static enum lmcs_status list_record(void *context, struct lmcs_live_record *record, struct lmcs_error *error)
{
    struct listing *listing = context;
    struct lmcs_cell_state state;
    struct lmcs_live_info info;
    enum lmcs_status status = LMCS_OK;
    bool has_body =
        listing->pool->heap != NULL && lmcs_live_body_of_id(listing->pool->live, record->shelf, record->id) != NULL;
    if (!has_body)
        status = lmcs_cell_read(listing->pool, record, NULL, &state, error);
    if (!has_body && (status == LMCS_OK || status == LMCS_DAMAGED)) {
        fill_record(record, listing->pool, &info);
        info.is_damaged = status == LMCS_DAMAGED;
        if (!info.is_damaged)
            fill_state(record, &state, &info);
        status = add_info(listing, &info, error);
    }
    free(record);
    return status;
}

static enum lmcs_status list_bodies(struct listing *listing, struct lmcs_error *error)
{
    const struct lmcs_live_store *live = listing->pool->live;
    struct lmcs_live_info info;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; listing->pool->heap != NULL && i < live->bucket_count; i++)
        for (struct lmcs_live_body *body = live->by_id[i]; body != NULL && status == LMCS_OK; body = body->next_id) {
            if (body->shelf->id != listing->shelf)
                continue;
            fill_body(body, &info);
            status = add_info(listing, &info, error);
        }
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct lmcs_live_info *const *)a)->name, (*(struct lmcs_live_info *const *)b)->name);
}

static enum lmcs_status collect(struct listing *listing, const char *shelf, struct lmcs_error *error)
{
    struct lmcs_pool *pool = listing->pool;
    struct lmcs_live_shelf *on;
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_live_shelf_find(pool, shelf, false, &on, error);
    if (status != LMCS_OK || on == NULL)
        return status;
    listing->shelf = on->id;
    status = lmcs_txn_read(pool, &txn, error);
    if (status == LMCS_OK) {
        status = lmcs_live_record_each(&txn, on->id, list_record, listing, error);
        lmcs_txn_end(&txn);
    }
    if (status == LMCS_OK)
        status = list_bodies(listing, error);
    if (status == LMCS_OK && listing->count > 0)
        qsort(listing->infos, listing->count, sizeof(struct lmcs_live_info *), by_name);
    return status;
}

static void free_listing(struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        free(listing->infos[i]);
    free(listing->infos);
}

enum lmcs_status lmcs_live_list(struct lmcs_pool *pool, const char *shelf, const struct lmcs_live_filter *filter,
                                bool (*visit)(void *context, const struct lmcs_live_info *info), void *context,
                                struct lmcs_error *error)
{
    struct listing listing = {.pool = pool, .filter = filter};
    enum lmcs_status status = lmcs_live_check(pool, false, error);
    if (status != LMCS_OK)
        return status == LMCS_UNSUPPORTED ? LMCS_OK : status;
    pthread_mutex_lock(&pool->live->lock);
    status = collect(&listing, shelf, error);
    pthread_mutex_unlock(&pool->live->lock);
    for (size_t i = 0; status == LMCS_OK && i < listing.count; i++)
        if (!visit(context, listing.infos[i]))
            break;
    free_listing(&listing);
    return status;
}

enum lmcs_status lmcs_live_count(struct lmcs_pool *pool, const char *shelf, uint64_t *variables, uint64_t *bytes,
                                 struct lmcs_error *error)
{
    struct listing listing = {.pool = pool};
    enum lmcs_status status = lmcs_live_check(pool, false, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->live->lock);
    status = collect(&listing, shelf, error);
    pthread_mutex_unlock(&pool->live->lock);
    *variables = listing.count;
    *bytes = 0;
    for (size_t i = 0; i < listing.count; i++)
        *bytes += listing.infos[i]->bytes;
    free_listing(&listing);
    return status;
}
