/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/writeback.c - early writeback.
 *
 * sync_file_range waits while the disk's queue is full, and an asynchronous capture, whose bytes are safe once in the
 * page cache, must not.
 */
#include "media/writeback.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "base/guard.h"

#define RANGES 256u

struct range {
    uint64_t offset;
    uint64_t bytes;
};

struct lmcs_writeback {
    int fd;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool started;
    bool stop;
    size_t first;
    size_t count;
    struct range ranges[RANGES]; /* a ring buffer */
};

enum lmcs_status lmcs_writeback_new(int fd, struct lmcs_writeback **behind, struct lmcs_error *error)
{
    struct lmcs_writeback *b = calloc(1, sizeof *b);
    if (b == NULL)
        return lmcs_fail_memory(error);
    b->fd = fd;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->wake, NULL);
    *behind = b;
    return LMCS_OK;
}

void lmcs_writeback_free(struct lmcs_writeback *behind)
{
    if (behind == NULL)
        return;
    pthread_mutex_lock(&behind->lock);
    behind->stop = true;
    pthread_cond_signal(&behind->wake);
    pthread_mutex_unlock(&behind->lock);
    if (behind->started)
        pthread_join(behind->thread, NULL);
    pthread_mutex_destroy(&behind->lock);
    pthread_cond_destroy(&behind->wake);
    free(behind);
}

static void *serve(void *argument)
{
    struct lmcs_writeback *behind = argument;
    pthread_mutex_lock(&behind->lock);
    while (!behind->stop) {
        if (behind->count == 0) {
            pthread_cond_wait(&behind->wake, &behind->lock);
            continue;
        }
        struct range range = behind->ranges[behind->first];
        behind->first = (behind->first + 1) % RANGES;
        behind->count--;
        pthread_mutex_unlock(&behind->lock);
        sync_file_range(behind->fd, (off_t)range.offset, (off_t)range.bytes, SYNC_FILE_RANGE_WRITE);
        pthread_mutex_lock(&behind->lock);
    }
    pthread_mutex_unlock(&behind->lock);
    return NULL;
}

static bool start(struct lmcs_writeback *behind)
{
    sigset_t all, old;
    lmcs_guard_signals(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    behind->started = pthread_create(&behind->thread, NULL, serve, behind) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return behind->started;
}

void lmcs_writeback_add(struct lmcs_writeback *behind, uint64_t offset, uint64_t bytes)
{
    pthread_mutex_lock(&behind->lock);
    if (behind->started || start(behind)) {
        struct range *last = &behind->ranges[(behind->first + behind->count - 1) % RANGES];
        if (behind->count > 0 && last->offset + last->bytes == offset) {
            last->bytes += bytes;
        } else if (behind->count < RANGES) {
            behind->ranges[(behind->first + behind->count++) % RANGES] = (struct range){offset, bytes};
            pthread_cond_signal(&behind->wake);
        }
    }
    pthread_mutex_unlock(&behind->lock);
}
