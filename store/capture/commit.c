/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/commit.c - commits a capture: options, background commits, waits (CAPTURES.md).
 *
 * One thread commits the asynchronous captures of a shelf in the order of their begins. A failure is reported by the
 * wait for its capture, and else once, by the next operation that takes the shelf or by the pool's close.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "capture/state.h"
#include "records/meta.h"
#include "records/relations.h"
#include "records/shelf.h"

#define ENTRY_BYTES 256u /* of memory, about, for a tensor of a capture in flight */

void lmcs_commit_options_init(struct lmcs_commit_options *options)
{
    *options = (struct lmcs_commit_options){.step = LMCS_NO_STEP};
}

/* Puts an attachment of the store into the capture. */
static enum lmcs_status attach(struct lmcs_capture *capture, const char *name, const void *data, uint64_t bytes,
                               struct lmcs_error *error)
{
    struct lmcs_tensor tensor = {.name = name, .kind = LMCS_ATTACHMENT, .dtype = LMC_U8, .ndim = 1, .shape = &bytes};
    return lmcs_capture_put(capture, &tensor, &data, 1, error);
}

static enum lmcs_status attach_relations(struct lmcs_capture *capture, struct lmcs_error *error)
{
    void *grouping, *constants;
    uint64_t grouping_bytes, constants_bytes;
    enum lmcs_status status =
        lmcs_relations_encode(&capture->relations, &grouping, &grouping_bytes, &constants, &constants_bytes, error);
    if (status != LMCS_OK)
        return status;
    status = attach(capture, LMCS_RELATIONS_NAME, grouping, grouping_bytes, error);
    if (status == LMCS_OK)
        status = attach(capture, LMCS_CONSTANTS_NAME, constants, constants_bytes, error);
    free(grouping);
    free(constants);
    return status;
}

/* Keeps the tags of a prepared snapshot for its group's decision: each with its NUL. */
static enum lmcs_status attach_tags(struct lmcs_capture *capture, struct lmcs_error *error)
{
    size_t bytes = 0;
    for (size_t i = 0; i < capture->options.tag_count; i++)
        bytes += strlen(capture->tags[i]) + 1;
    if (bytes > LMCS_TAGS_MOST)
        return lmcs_fail(error, LMCS_INVALID, 0, "the tags of a prepared snapshot take more than %u bytes",
                         LMCS_TAGS_MOST);
    char *text = malloc(bytes), *end = text;
    if (text == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < capture->options.tag_count; i++)
        end = stpcpy(end, capture->tags[i]) + 1;
    enum lmcs_status status = attach(capture, LMCS_TAGS_NAME, text, bytes, error);
    free(text);
    return status;
}

/* Copies the options of the commit, and attaches long metadata, relations, and the tags of a prepared snapshot. */
static enum lmcs_status take_options(struct lmcs_capture *capture, const struct lmcs_commit_options *options,
                                     struct lmcs_error *error)
{
    static const unsigned char no_group[16];
    capture->options = *options;
    capture->options.tag_count = 0;
    if (options->prepare && memcmp(options->group, no_group, sizeof no_group) == 0)
        return lmcs_fail(error, LMCS_INVALID, 0, "a prepared snapshot needs a group, which decides on it");
    if (options->parent >= LMCS_LARGEST_NUMBER && options->parent != UINT64_MAX)
        return lmcs_fail(error, LMCS_INVALID, 0, "parent %llu: no snapshot has such a number",
                         (unsigned long long)options->parent);
    capture->tags = calloc(options->tag_count + 1, sizeof *capture->tags);
    if (capture->tags == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < options->tag_count; i++) {
        enum lmcs_status status = lmcs_tag_check(options->tags[i], error);
        if (status == LMCS_OK && (capture->tags[i] = strdup(options->tags[i])) == NULL)
            status = lmcs_fail_memory(error);
        if (status != LMCS_OK)
            return status;
        capture->options.tag_count++;
    }
    enum lmcs_status status = lmcs_meta_encode(options, &capture->meta, error);
    if (status == LMCS_OK && strlen(capture->meta) > LMCS_META_INLINE)
        status = attach(capture, LMCS_META_NAME, capture->meta, strlen(capture->meta), error);
    if (status == LMCS_OK && options->prepare && options->tag_count > 0)
        status = attach_tags(capture, error);
    return status == LMCS_OK && capture->relations.count > 0 ? attach_relations(capture, error) : status;
}

/* Keeps an asynchronous failure for a caller. Under pool->captures. */
static void report_later(struct lmcs_capture *capture)
{
    struct lmcs_busy_shelf *busy = capture->busy;
    struct lmcs_failure **last = &busy->failures;
    while (*last != NULL)
        last = &(*last)->next;
    *last = capture->to_report;
    capture->to_report = NULL;
    (*last)->error = capture->result;
    (*last)->id = capture->failure = ++busy->failed;
}

/* Ends what the capture holds outside of pool->captures. */
static void release(struct lmcs_capture *capture)
{
    lmcs_region_end(&capture->region);
    lmcs_capture_keep_memory(capture, false); /* unless the commit did */
}

/* Records the result, and ends the capture's place in the order. The caller holds pool->captures. */
static void record(struct lmcs_capture *capture, enum lmcs_status status, const struct lmcs_error *error)
{
    struct lmcs_busy_shelf *busy = capture->busy;
    capture->result.status = status;
    if (status != LMCS_OK) {
        capture->result = *error;
        capture->result.status = status;
        if (capture->asynchronous || capture->promised)
            report_later(capture);
    }
    capture->done = true;
    lmcs_ticket_end(busy, &capture->ticket);
    if (!capture->hands_on)
        busy->busy = busy->has_owner = false;
    pthread_cond_broadcast(&capture->pool->captures_changed);
}

/* Ends a commit. Returns the next capture to commit, or NULL. */
static struct lmcs_capture *finish(struct lmcs_capture *capture, enum lmcs_status status,
                                   const struct lmcs_error *error)
{
    struct lmcs_pool *pool = capture->pool;
    release(capture);
    if (status == LMCS_OK)
        lmcs_pool_wake(pool);
    pthread_mutex_lock(&pool->captures);
    struct lmcs_busy_shelf *busy = capture->busy;
    bool free_it = capture->detached;
    record(capture, status, error);
    struct lmcs_ticket *next = busy->tickets;
    if (next != NULL && !next->is_queued)
        next = NULL;
    if (capture->asynchronous)
        busy->committing = next != NULL;
    pthread_mutex_unlock(&pool->captures);
    if (free_it)
        lmcs_capture_free(capture);
    return (struct lmcs_capture *)next;
}

static enum lmcs_status enter(struct lmcs_capture *capture, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_capture_enter(capture, error);
    if (status == LMCS_FULL)
        lmcs_pool_explain_full(capture->pool, capture->busy->name, error);
    return status;
}

/* Commits the captures that are queued on a shelf. The pool may be closed when none is left. */
static void *commit_thread(void *argument)
{
    for (struct lmcs_capture *capture = argument; capture != NULL;) {
        struct lmcs_error error;
        enum lmcs_status status = enter(capture, &error);
        capture = finish(capture, status, &error);
    }
    return NULL;
}

static enum lmcs_status start_thread(struct lmcs_capture *capture, struct lmcs_error *error)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, old;
    lmcs_guard_signals(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failure = pthread_create(&thread, &attributes, commit_thread, capture);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return failure == 0 ? LMCS_OK : lmcs_fail_errno(error, failure, "can't start a thread");
}

/* Queues the capture, and starts the thread unless it runs. Afterwards the thread may have ended its ticket. */
static enum lmcs_status queue(struct lmcs_capture *capture, struct lmcs_error *error)
{
    struct lmcs_pool *pool = capture->pool;
    struct lmcs_busy_shelf *busy = capture->busy;
    bool hands_on = !capture->makes_links;
    pthread_mutex_lock(&pool->captures);
    bool runs = busy->committing;
    busy->committing = true;
    busy->has_owner = false;
    capture->asynchronous = true;
    capture->workers = pool->later_workers;
    capture->hands_on = hands_on;
    capture->ticket.bytes = capture->written_bytes + capture->memory_bytes + capture->entries.count * ENTRY_BYTES;
    capture->ticket.is_queued = true;
    pthread_mutex_unlock(&pool->captures);
    enum lmcs_status status = runs ? LMCS_OK : start_thread(capture, error);
    pthread_mutex_lock(&pool->captures);
    if (status != LMCS_OK)
        busy->committing = capture->asynchronous = capture->hands_on = capture->ticket.is_queued = false;
    else if (hands_on)
        busy->busy = false;
    pthread_cond_broadcast(&pool->captures_changed);
    pthread_mutex_unlock(&pool->captures);
    return status;
}

/* Promises the number and chooses the parent, at the call of commit. A predecessor in flight may become the parent. */
static enum lmcs_status expect_number(struct lmcs_capture *capture, struct lmcs_error *error)
{
    struct lmcs_pool *pool = capture->pool;
    struct lmcs_ticket *own = &capture->ticket;
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    bool found;
    pthread_mutex_lock(&pool->captures); /* first: a predecessor that has ended meanwhile is in the shelf */
    uint64_t number = 1;
    for (const struct lmcs_ticket *before = capture->busy->tickets; before != own; before = before->next)
        number = before->number + 1;
    pthread_mutex_unlock(&pool->captures);
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_find(&txn, capture->busy->name, &shelf, &found, error);
    found = status == LMCS_OK && found;
    lmcs_txn_end(&txn);
    pthread_mutex_lock(&pool->captures);
    struct lmcs_loaded *loaded = found ? lmcs_loaded_find(pool, shelf.df.id) : NULL;
    own->number = found && shelf.df.next_number > number ? shelf.df.next_number : number;
    own->loaded = loaded != NULL ? loaded->number : 0;
    own->loads = loaded != NULL ? loaded->loads : 0;
    pthread_mutex_unlock(&pool->captures);
    return status;
}

/* Commits in this thread, or queues the capture for the shelf's. *queued: it is no longer this thread's. */
static enum lmcs_status commit(struct lmcs_capture *capture, bool asynchronous, bool *queued, struct lmcs_error *error)
{
    enum lmcs_status status;
    *queued = false;
    if (asynchronous) {
        capture->state = LMCS_CAPTURE_COMMITTING;
        if (!capture->promised && (status = lmcs_capture_encode(capture, error)) != LMCS_OK)
            return status;
        *queued = queue(capture, error) == LMCS_OK;
        if (*queued)
            return LMCS_OK;
        lmcs_ticket_wait(capture->pool, capture->busy, &capture->ticket); /* no thread could be started */
    }
    return enter(capture, error);
}

/* Decides all that is decided at the call: options, number, parent. */
static enum lmcs_status decide(struct lmcs_capture *capture, const struct lmcs_commit_options *options,
                               bool asynchronous, struct lmcs_error *error)
{
    struct lmcs_commit_options defaults;
    lmcs_commit_options_init(&defaults);
    enum lmcs_status status = lmcs_capture_check(capture, error);
    if (status == LMCS_OK && capture->promised)
        return lmcs_fail(error, LMCS_INVALID, 0, "the capture has its options and its number already");
    if (status == LMCS_OK)
        status = take_options(capture, options != NULL ? options : &defaults, error);
    if (status == LMCS_OK && !asynchronous)
        lmcs_ticket_wait(capture->pool, capture->busy, &capture->ticket);
    return status == LMCS_OK ? expect_number(capture, error) : status;
}

static enum lmcs_status commit_promised(struct lmcs_capture *capture, struct lmcs_error *error)
{
    bool queued = false;
    enum lmcs_status status = lmcs_capture_check(capture, error);
    if (status != LMCS_OK) {
        lmcs_capture_fail(capture, error);
        return status;
    }
    status = commit(capture, true, &queued, error);
    if (!queued)
        (void)finish(capture, status, error);
    return status;
}

enum lmcs_status lmcs_capture_commit(struct lmcs_capture *capture, const struct lmcs_commit_options *options,
                                     uint64_t *number, struct lmcs_error *error)
{
    struct lmcs_error local;
    bool asynchronous = options != NULL && options->asynchronous, queued = false;
    if (capture->promised)
        return commit_promised(capture, error != NULL ? error : &local);
    enum lmcs_status status = decide(capture, options, asynchronous, &local);
    uint64_t expected = capture->ticket.number;
    if (status == LMCS_OK)
        status = commit(capture, asynchronous, &queued, &local);
    if (!queued) {
        if (lmcs_pool_check(capture->pool, true, NULL) == LMCS_OK)
            (void)finish(capture, status, &local);
        lmcs_capture_free(capture);
    }
    if (status == LMCS_OK && number != NULL)
        *number = expected;
    if (status != LMCS_OK && error != NULL)
        *error = local;
    return status;
}

enum lmcs_status lmcs_capture_promise(struct lmcs_capture *capture, const struct lmcs_commit_options *options,
                                      uint64_t *number, struct lmcs_error *error)
{
    enum lmcs_status status = decide(capture, options, true, error);
    capture->lends = false;
    if (status == LMCS_OK) /* the commit comes after the call */
        status = lmcs_capture_take_lent(capture, true, error);
    if (status == LMCS_FULL && lmcs_capture_make_room(capture))
        status = lmcs_capture_take_lent(capture, true, error);
    if (status == LMCS_FULL)
        lmcs_capture_explain_full(capture, error);
    if (status != LMCS_OK) {
        capture->state = LMCS_CAPTURE_BROKEN;
        return status;
    }
    pthread_mutex_lock(&capture->pool->captures);
    capture->promised = true;
    capture->workers = capture->pool->later_workers;
    capture->busy->has_owner = false; /* this thread may wait for the shelf, which another one gives back */
    pthread_mutex_unlock(&capture->pool->captures);
    if (number != NULL)
        *number = capture->ticket.number;
    return LMCS_OK;
}

void lmcs_capture_fail(struct lmcs_capture *capture, const struct lmcs_error *reason)
{
    struct lmcs_pool *pool = capture->pool;
    if (lmcs_pool_check(pool, true, NULL) != LMCS_OK)
        return; /* a forked child */
    release(capture);
    pthread_mutex_lock(&pool->captures);
    bool free_it = capture->detached;
    record(capture, reason->status != LMCS_OK ? reason->status : LMCS_INVALID, reason);
    pthread_mutex_unlock(&pool->captures);
    if (free_it)
        lmcs_capture_free(capture);
}

bool lmcs_capture_would_wait(struct lmcs_pool *pool, const char *shelf)
{
    return lmcs_pool_check(pool, true, NULL) == LMCS_OK && lmcs_shelf_is_full(pool, shelf);
}

enum lmcs_status lmcs_capture_wait(struct lmcs_capture *capture, struct lmcs_error *error)
{
    struct lmcs_pool *pool = capture->pool;
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status != LMCS_OK)
        return status;
    pthread_mutex_lock(&pool->captures);
    while (!capture->done)
        pthread_cond_wait(&pool->captures_changed, &pool->captures);
    status = capture->result.status;
    if (status != LMCS_OK) {
        lmcs_failure_take(capture->busy, capture->failure);
        if (error != NULL)
            *error = capture->result;
    }
    pthread_mutex_unlock(&pool->captures);
    lmcs_capture_free(capture);
    return status;
}

bool lmcs_capture_done(struct lmcs_capture *capture)
{
    if (lmcs_pool_check(capture->pool, true, NULL) != LMCS_OK)
        return true; /* in a forked child, waits fail at once, and the lock may be held for ever */
    pthread_mutex_lock(&capture->pool->captures);
    bool done = capture->done;
    pthread_mutex_unlock(&capture->pool->captures);
    return done;
}

void lmcs_capture_detach(struct lmcs_capture *capture)
{
    struct lmcs_pool *pool = capture->pool;
    if (lmcs_pool_check(pool, true, NULL) != LMCS_OK)
        return;
    pthread_mutex_lock(&pool->captures);
    bool free_it = capture->done;
    capture->detached = true;
    pthread_mutex_unlock(&pool->captures);
    if (free_it)
        lmcs_capture_free(capture);
}
