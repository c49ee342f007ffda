/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/arrive.c - writes and verifies the payloads that arrive, in a thread, while the archive is read on. */
#include "transfer/arrive.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "base/guard.h"
#include "payload/layout.h"
#include "payload/read.h"

/* Smaller pieces are written at once: handing one over takes as long. They wait for the sync. */
#define LEAST_BYTES ((size_t)64 << 10)

struct lmcs_arrivals {
    struct lmcs_pool *pool;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started;
    bool stop;
    enum { IDLE, GIVEN, DONE } state;
    /* the thread's, while GIVEN: */
    struct lmcs_arrival arrival;
    const struct lmcs_tensor *tensor;
    unsigned char *memory;
    enum lmcs_status status;
    struct lmcs_error error;
};

enum lmcs_status lmcs_arrivals_new(struct lmcs_pool *pool, struct lmcs_arrivals **arrivals, struct lmcs_error *error)
{
    struct lmcs_arrivals *made = calloc(1, sizeof *made);
    if (made == NULL || (made->memory = malloc(LMCS_ARCHIVE_PIECE_BYTES + 1)) == NULL) {
        free(made);
        return lmcs_fail_memory(error);
    }
    made->pool = pool;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    *arrivals = made;
    return LMCS_OK;
}

void lmcs_arrivals_free(struct lmcs_arrivals *arrivals)
{
    if (arrivals == NULL)
        return;
    pthread_mutex_lock(&arrivals->lock);
    arrivals->stop = true;
    pthread_cond_broadcast(&arrivals->changed);
    pthread_mutex_unlock(&arrivals->lock);
    if (arrivals->started)
        pthread_join(arrivals->thread, NULL);
    pthread_mutex_destroy(&arrivals->lock);
    pthread_cond_destroy(&arrivals->changed);
    free(arrivals->memory);
    free(arrivals);
}

static enum lmcs_status write_piece(struct lmcs_arrivals *a, const struct lmcs_arrival *arrival, const void *bytes,
                                    const struct lmcs_tensor *tensor, struct lmcs_error *error)
{
    struct lmcs_chain chain = {.length = 1};
    enum lmcs_status status =
        lmcs_payload_write(a->pool->heap, &arrival->content, arrival->at, bytes, arrival->bytes, error);
    if (status != LMCS_OK)
        return status;
    if (arrival->bytes >= LEAST_BYTES)
        lmcs_payload_start_writeback(a->pool->heap, &arrival->content, arrival->at, arrival->bytes);
    if (!arrival->is_last)
        return LMCS_OK;
    chain.links[0] = arrival->content;
    lmcs_heap_drain(a->pool->heap);
    return lmcs_chain_read(a->pool, &chain, tensor, NULL, NULL, error);
}

static void *serve(void *argument)
{
    struct lmcs_arrivals *a = argument;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        if (a->state == GIVEN) {
            pthread_mutex_unlock(&a->lock);
            a->status = write_piece(a, &a->arrival, a->memory, a->tensor, &a->error);
            lmcs_heap_drain(a->pool->heap); /* the caller may write the last piece, and can't drain this thread's */
            pthread_mutex_lock(&a->lock);
            a->state = DONE;
            pthread_cond_broadcast(&a->changed);
        } else if (a->stop) {
            break;
        } else {
            pthread_cond_wait(&a->changed, &a->lock);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static bool start(struct lmcs_arrivals *a)
{
    sigset_t all, old;
    lmcs_guard_signals(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    a->started = pthread_create(&a->thread, NULL, serve, a) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return a->started;
}

enum lmcs_status lmcs_arrivals_wait(struct lmcs_arrivals *a, struct lmcs_stage *stage, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    pthread_mutex_lock(&a->lock);
    while (a->state == GIVEN)
        pthread_cond_wait(&a->changed, &a->lock);
    const bool is_done = a->state == DONE;
    a->state = IDLE;
    pthread_mutex_unlock(&a->lock);
    if (!is_done)
        return LMCS_OK;
    status = a->status;
    if (status != LMCS_OK && error != NULL)
        *error = a->error;
    return a->arrival.is_last || status != LMCS_OK ? lmcs_stage_verified(stage, a->arrival.pending, status, error)
                                                   : LMCS_OK;
}

enum lmcs_status lmcs_arrivals_add(struct lmcs_arrivals *a, struct lmcs_stage *stage,
                                   const struct lmcs_arrival *arrival, unsigned char **payload,
                                   struct lmcs_error *error)
{
    const struct lmcs_tensor *tensor = lmcs_stage_tensor(stage, arrival->pending);
    enum lmcs_status status = lmcs_arrivals_wait(a, stage, error);
    if (status != LMCS_OK)
        return status;
    if (arrival->bytes < LEAST_BYTES || (!a->started && !start(a))) {
        status = write_piece(a, arrival, *payload, tensor, error);
        return arrival->is_last ? lmcs_stage_verified(stage, arrival->pending, status, error) : status;
    }
    unsigned char *memory = *payload;
    pthread_mutex_lock(&a->lock);
    *payload = a->memory;
    a->memory = memory;
    a->arrival = *arrival;
    a->tensor = tensor;
    a->state = GIVEN;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return LMCS_OK;
}
