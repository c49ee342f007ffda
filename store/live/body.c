/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/body.c - live variables in use: bodies and handles, shelves and who holds them, locks, and what is told of them.
 *
 * A body is made when a variable is first opened, and freed when nobody refers to it any more. Two tables find it: by
 * the number of its variable, and by its name. The second follows transactions (a name that one has given or taken
 * counts at once), the tree of names follows their commits; so a name is looked for in the table first, and what the
 * tree has then counts only if no body says otherwise.
 */
#include "live/live.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pages/space.h"
#include "pages/tree.h"
#include "records/content.h"
#include "records/shelf.h"

#define FIRST_BUCKETS  256u
#define RESERVED_NAMES "lmcstore." /* attachments of snapshots */

/* ---- The store's part ---- */

enum lmcs_status lmcs_live_store_new(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_live_store *live = calloc(1, sizeof *live);
    if (live == NULL)
        return lmcs_fail_memory(error);
    pool->live = live;
    live->forks = lmcs_live_forks();
    live->by_id = calloc(FIRST_BUCKETS, sizeof(struct lmcs_live_body *));
    live->by_name = calloc(FIRST_BUCKETS, sizeof(struct lmcs_live_body *));
    live->bucket_count = FIRST_BUCKETS;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&live->lock, NULL);
    pthread_cond_init(&live->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return live->by_id != NULL && live->by_name != NULL ? LMCS_OK : lmcs_fail_memory(error);
}

void lmcs_live_store_free(struct lmcs_pool *pool)
{
    struct lmcs_live_store *live = pool->live;
    if (live == NULL)
        return;
    for (struct lmcs_live_shelf *shelf = live->shelves, *next; shelf != NULL; shelf = next) {
        next = shelf->next;
        free(shelf);
    }
    lmcs_live_space_free(&live->space);
    free(live->by_id);
    free(live->by_name);
    pthread_mutex_destroy(&live->lock);
    pthread_cond_destroy(&live->changed);
    free(live);
    pool->live = NULL;
}

/* With another number than was ever given out, one that is made would take its place, or be on a shelf's that is. */
static enum lmcs_status use_record(void *context, struct lmcs_live_record *record, struct lmcs_error *error)
{
    const struct lmcs_txn *txn = context;
    enum lmcs_status status = LMCS_OK;
    if (record->id >= txn->root.next_live || record->shelf >= txn->root.next_shelf)
        status = lmcs_root_fail_number(txn->pool, "live variable", record->id, error);
    if (status == LMCS_OK)
        status = lmcs_live_space_use(txn->pool, record, error);
    free(record);
    return status;
}

static enum lmcs_status use_journals(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < LMCS_JOURNALS; i++) {
        struct lmcs_page_range_df range = root->journals[i];
        uint64_t bytes = range.end - range.next;
        if (bytes == 0)
            continue;
        /* How much of it has file space is not known: it gets its first page back, and the rest when it is needed. */
        status = lmcs_live_space_use_pages(pool, range.next, bytes, bytes, error);
        if (status == LMCS_OK && pool->heap != NULL)
            lmcs_live_unback(pool, range.next + LMCS_PAGE_BYTES, bytes - LMCS_PAGE_BYTES);
        pool->live->journal_backed[i] = LMCS_PAGE_BYTES;
    }
    return status;
}

static enum lmcs_status use_records(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_live_record_each(&txn, 0, use_record, &txn, error);
    lmcs_txn_end(&txn);
    return status;
}

enum lmcs_status lmcs_live_store_look(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_live_space_begin(pool, error);
    if (status == LMCS_OK)
        status = lmcs_journal_check(pool, root, error);
    /* What lies where something else does is found before anything behind an end is punched. */
    if (status == LMCS_OK)
        status = use_journals(pool, root, error);
    if (status == LMCS_OK)
        status = use_records(pool, error);
    lmcs_live_space_free(&pool->live->space);
    return status;
}

enum lmcs_status lmcs_live_store_load(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_live_store *live = pool->live;
    live->next_id = pool->root.next_live > 0 ? pool->root.next_live : 1;
    enum lmcs_status status = lmcs_live_space_begin(pool, error);
    if (status == LMCS_OK)
        status = lmcs_journal_recover(pool, error);
    if (status == LMCS_OK)
        status = use_journals(pool, &pool->root, error);
    if (status == LMCS_OK)
        status = use_records(pool, error);
    return status == LMCS_OK ? lmcs_live_space_end(pool, error) : status;
}

enum lmcs_status lmcs_live_check(struct lmcs_pool *pool, bool to_write, struct lmcs_error *error)
{
    /* Asking the kernel who we are takes longer than many a write. */
    bool known = pool->live->forks == lmcs_live_forks() && (!to_write || pool->heap != NULL);
    enum lmcs_status status = known ? LMCS_OK : lmcs_pool_check(pool, to_write, error);
    if (status == LMCS_OK && lmcs_media_is_poolset(pool->media))
        return lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                         "%s: live variables are not kept in poolsets: use a pool that is a file, or a device",
                         pool->path);
    if (status == LMCS_OK && to_write && atomic_load(&pool->live->is_broken))
        return lmcs_fail(
            error, LMCS_IO, 0,
            "%s: a change of live variables could neither be completed nor taken back (%s): close the pool, and open "
            "it again",
            pool->path, pool->live->broken);
    /* What did not reach the disk looks as if it had: who finds nothing to write must not acknowledge that. */
    return status == LMCS_OK && to_write && pool->heap != NULL ? lmcs_heap_check_syncs(pool->heap, error) : status;
}

void lmcs_live_break(struct lmcs_pool *pool, const struct lmcs_error *why)
{
    if (atomic_exchange(&pool->live->is_breaking, true))
        return;
    snprintf(pool->live->broken, sizeof pool->live->broken, "%.200s", why->message);
    atomic_store(&pool->live->is_broken, true);
}

void lmcs_live_doubt(struct lmcs_pool *pool, struct lmcs_error *error)
{
    lmcs_live_break(pool, error);
    lmcs_error_prefix(error, "whether it took place is known when the pool is opened again: ");
}

enum lmcs_status lmcs_live_check_name(const char *name, struct lmcs_error *error)
{
    if (!lmcs_name_is_sound(name) || strncmp(name, RESERVED_NAMES, strlen(RESERVED_NAMES)) == 0)
        return lmcs_fail(
            error, LMCS_INVALID, 0,
            "live variable \"%.64s\": names are 1 to %d bytes of UTF-8 without control characters, and don't "
            "begin with " RESERVED_NAMES,
            name == NULL ? "" : name, LMCS_MAX_NAME);
    return LMCS_OK;
}

/* ---- Shelves ---- */

/* Its id; 0: there is none. */
static enum lmcs_status find_shelf_id(struct lmcs_pool *pool, const char *name, uint64_t *id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    bool found = false;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_find(&txn, name, &shelf, &found, error);
    lmcs_txn_end(&txn);
    *id = found ? shelf.df.id : 0;
    return status;
}

static enum lmcs_status make_shelf(struct lmcs_pool *pool, const char *name, uint64_t *id, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    enum lmcs_status status = lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    txn.spends = true;
    status = lmcs_shelf_make(&txn, name, 0, &shelf, error);
    if (status != LMCS_OK) {
        lmcs_txn_end(&txn);
        return status;
    }
    *id = shelf.df.id;
    return lmcs_txn_commit(&txn, error);
}

enum lmcs_status lmcs_live_shelf_find(struct lmcs_pool *pool, const char *name, bool make,
                                      struct lmcs_live_shelf **found, struct lmcs_error *error)
{
    struct lmcs_live_shelf *shelf = pool->live->shelves;
    uint64_t id = 0;
    enum lmcs_status status = LMCS_OK;
    *found = NULL;
    if (pool->heap == NULL) /* the process that writes may have given the name to another shelf */
        status = find_shelf_id(pool, name, &id, error);
    if (status != LMCS_OK || (pool->heap == NULL && id == 0))
        return status;
    while (shelf != NULL && (name == NULL || strcmp(shelf->name, name) != 0 || (id != 0 && shelf->id != id)))
        shelf = shelf->next;
    *found = shelf;
    if (shelf != NULL)
        return LMCS_OK;
    if (id == 0)
        status = find_shelf_id(pool, name, &id, error);
    if (status == LMCS_OK && id == 0 && make)
        status = make_shelf(pool, name, &id, error);
    if (status != LMCS_OK || id == 0)
        return status;
    shelf = calloc(1, sizeof *shelf + strlen(name) + 1);
    if (shelf == NULL)
        return lmcs_fail_memory(error);
    shelf->id = id;
    memcpy(shelf->name, name, strlen(name) + 1);
    shelf->next = pool->live->shelves;
    pool->live->shelves = shelf;
    *found = shelf;
    return LMCS_OK;
}

struct timespec lmcs_live_deadline(uint32_t wait_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return until;
}

bool lmcs_live_wait(struct lmcs_live_store *live, const struct timespec *until, uint32_t wait_ms)
{
    if (wait_ms == UINT32_MAX)
        return pthread_cond_wait(&live->changed, &live->lock) == 0;
    return pthread_cond_timedwait(&live->changed, &live->lock, until) == 0;
}

enum lmcs_status lmcs_live_hold(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, uint32_t wait_ms,
                                struct lmcs_error *error)
{
    struct timespec until = lmcs_live_deadline(wait_ms);
    bool waited = shelf->held;
    while (shelf->held) {
        if (pthread_equal(shelf->holder, pthread_self()))
            return lmcs_fail(error, LMCS_INVALID, 0,
                             "%s: this thread has a transaction on shelf \"%.200s\" that is neither committed nor "
                             "aborted; they don't nest",
                             pool->path, shelf->name);
        shelf->waiting++; /* so it stays what it is */
        bool in_time = lmcs_live_wait(pool->live, &until, wait_ms);
        shelf->waiting--;
        if (!in_time)
            return lmcs_fail(error, LMCS_IN_USE, 0,
                             "%s: shelf \"%.200s\" has a transaction, a snapshot or a checkout of its live variables "
                             "under way, which has not ended within %u ms",
                             pool->path, shelf->name, wait_ms);
    }
    enum lmcs_status status = waited ? lmcs_live_check(pool, true, error) : LMCS_OK; /* by now */
    if (status != LMCS_OK)
        return status;
    shelf->held = true;
    shelf->holder = pthread_self();
    return LMCS_OK;
}

size_t lmcs_live_held(struct lmcs_pool *pool, const char **names, size_t most)
{
    size_t count = 0;
    pthread_mutex_lock(&pool->live->lock);
    for (const struct lmcs_live_shelf *shelf = pool->live->shelves; shelf != NULL && count < most; shelf = shelf->next)
        if (shelf->held && pthread_equal(shelf->holder, pthread_self()))
            names[count++] = shelf->name;
    pthread_mutex_unlock(&pool->live->lock);
    return count;
}

void lmcs_live_let_go(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf)
{
    shelf->held = false;
    pthread_cond_broadcast(&pool->live->changed);
}

/* ---- Tables ---- */

static struct lmcs_live_body **id_bucket(const struct lmcs_live_store *live, uint64_t id)
{
    return &live->by_id[id * 0x9e3779b97f4a7c15u >> 20 & (live->bucket_count - 1)];
}

static struct lmcs_live_body **name_bucket(const struct lmcs_live_store *live, uint64_t shelf, const char *name)
{
    return &live->by_name[lmc_hash64(name, strlen(name), shelf) & (live->bucket_count - 1)];
}

/* Slower without memory for it, and not wrong. */
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

/* ---- Bodies ---- */

static void free_body(struct lmcs_live_body *body)
{
    lmcs_live_unmap_all(body);
    pthread_mutex_destroy(&body->lock);
    free(body->pending);
    free(body->record);
    free(body);
}

/* What a reader looks at stays in place until it lets go. */
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

/* Neither a name nor a number finds it any more. */
static void forget(struct lmcs_live_body *body)
{
    lmcs_live_body_unname(body);
    leave_id(body);
    body->id = 0;
    enter_id(body);
}

/*
 * By a record of the tree: one that a transaction has erased or renamed is not what the tree says. A reader has no
 * transactions: there the writer has given another name to what was opened by its old one.
 */
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
    /* A reader's pins must be there before its lease on the root goes. */
    if (status == LMCS_OK && found)
        status = lmcs_live_body_new(pool, shelf, record, true, body, error);
    lmcs_txn_end(&txn);
    return status;
}

/* Another process may have changed what a reader has open: a name stands for what the pool says now. */
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

enum lmcs_status lmcs_live_fail_in_use(struct lmcs_live_body *body, const char *what, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_IN_USE, 0,
                     "%s: live variable \"%.200s\" can't be %s: it is open (%u times) in this process; close it first",
                     body->pool->path, body->record->name, what, body->handles);
}

/* ---- Handles ---- */

enum lmcs_status lmcs_live_handle_new(struct lmcs_live_body *body, struct lmcs_live **live, struct lmcs_error *error)
{
    struct lmcs_live *handle = calloc(1, sizeof *handle);
    if (handle == NULL)
        return lmcs_fail_memory(error);
    handle->pool = body->pool;
    handle->body = body;
    handle->is_tensor = body->record->df.form == LMCS_LIVE_TENSOR;
    body->references++;
    body->handles++;
    lmcs_pool_keep(body->pool);
    *live = handle;
    return LMCS_OK;
}

enum lmcs_status lmcs_live_open(struct lmcs_pool *pool, const char *shelf, const char *name, struct lmcs_live **live,
                                struct lmcs_error *error)
{
    struct lmcs_live_shelf *on = NULL;
    struct lmcs_live_body *body = NULL;
    enum lmcs_status status = lmcs_live_check(pool, false, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->live->lock);
    status = lmcs_live_shelf_find(pool, shelf, false, &on, error);
    if (status == LMCS_OK)
        status = lmcs_live_body_get(pool, on, shelf, name, &body, error);
    if (status == LMCS_OK) {
        if (body->is_damaged) {
            pthread_mutex_lock(&body->lock);
            status = lmcs_cell_load(body, error); /* says how */
            pthread_mutex_unlock(&body->lock);
        }
        if (status == LMCS_OK)
            status = lmcs_live_handle_new(body, live, error);
        lmcs_live_body_release(body);
    }
    pthread_mutex_unlock(&pool->live->lock);
    return status;
}

static void drop_lock(struct lmcs_live *live)
{
    struct lmcs_live_body *body = live->body;
    if (live->shares)
        body->sharers--;
    if (body->owner == live)
        body->owner = NULL;
    live->shares = false;
    pthread_cond_broadcast(&live->pool->live->changed);
}

void lmcs_live_close(struct lmcs_live *live)
{
    if (live == NULL)
        return;
    struct lmcs_pool *pool = live->pool;
    if (lmcs_pool_check(pool, false, NULL) != LMCS_OK) { /* a child's copy */
        free(live);
        return;
    }
    pthread_mutex_lock(&pool->live->lock);
    drop_lock(live);
    live->body->handles--;
    lmcs_live_body_release(live->body);
    pthread_mutex_unlock(&pool->live->lock);
    free(live);
    (void)!lmcs_pool_close(pool, NULL);
}

/* ---- Locks ---- */

static bool may_lock(const struct lmcs_live *live, enum lmcs_live_lock lock)
{
    return live->body->owner == NULL && (lock == LMCS_LOCK_SHARED || live->body->sharers == 0);
}

static enum lmcs_status wait_for_lock(struct lmcs_live *live, enum lmcs_live_lock lock, uint32_t wait_ms,
                                      struct lmcs_error *error)
{
    struct timespec until = lmcs_live_deadline(wait_ms);
    while (!may_lock(live, lock))
        if (wait_ms == 0 || !lmcs_live_wait(live->pool->live, &until, wait_ms)) {
            if (may_lock(live, lock))
                break;
            return lmcs_fail(error, LMCS_IN_USE, 0, "%s: live variable \"%.200s\" is locked by another handle",
                             live->pool->path, live->body->record->name);
        }
    return LMCS_OK;
}

enum lmcs_status lmcs_live_lock(struct lmcs_live *live, enum lmcs_live_lock lock, uint32_t wait_ms,
                                struct lmcs_error *error)
{
    struct lmcs_live_body *body = live->body;
    enum lmcs_status status = lmcs_pool_check(live->pool, false, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&live->pool->live->lock);
    if (live->shares || body->owner == live)
        status = lmcs_fail(error, LMCS_INVALID, 0, "%s: this handle of live variable \"%.200s\" has locked it already",
                           live->pool->path, body->record->name);
    if (status == LMCS_OK)
        status = wait_for_lock(live, lock, wait_ms, error);
    if (status == LMCS_OK && lock == LMCS_LOCK_SHARED) {
        live->shares = true;
        body->sharers++;
    } else if (status == LMCS_OK) {
        body->owner = live;
    }
    pthread_mutex_unlock(&live->pool->live->lock);
    return status;
}

enum lmcs_status lmcs_live_unlock(struct lmcs_live *live, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(live->pool, false, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&live->pool->live->lock);
    if (!live->shares && live->body->owner != live)
        status = lmcs_fail(error, LMCS_INVALID, 0, "%s: this handle of live variable \"%.200s\" has not locked it",
                           live->pool->path, live->body->record->name);
    drop_lock(live);
    pthread_mutex_unlock(&live->pool->live->lock);
    return status;
}
