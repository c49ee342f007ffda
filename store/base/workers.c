/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * base/workers.c - the threads of a pool.
 *
 * A run is a job on a list. The caller works on its own, so that a run always progresses; idle threads join the first
 * job with items left. With a nice value, the caller works only if the system gives it no thread.
 */
#include "base/workers.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/guard.h"
#include "base/idle.h"
#include "base/topology.h"

struct job {
    struct job *next;
    void (*work)(void *context, uint64_t i);
    void (*finish)(void *context);
    void *context;
    uint64_t count;
    atomic_uint_fast64_t taken;
    uint32_t helpers; /* besides the caller; under the lock */
};

struct lmcs_workers {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_cond_t done;
    struct job *jobs;
    bool stop;
    int node;
    uint32_t nice;
    atomic_uint wanted; /* besides the caller; lowered when the system refuses one */
    uint32_t started;
    pthread_t *threads;
};

static void work_on(struct job *job)
{
    uint64_t i;
    while ((i = atomic_fetch_add(&job->taken, 1)) < job->count)
        job->work(job->context, i);
    if (job->finish != NULL)
        job->finish(job->context);
}

/* Raises the nice value of this thread alone: on Linux, each thread has its own. */
static void be_nice(int nice)
{
    if (getpriority(PRIO_PROCESS, 0) < nice)
        setpriority(PRIO_PROCESS, 0, nice);
}

static void *serve(void *argument)
{
    struct lmcs_workers *workers = argument;
    if (workers->node >= 0)
        lmcs_topology_bind_thread(workers->node);
    if (workers->nice > 0)
        be_nice((int)workers->nice);
    pthread_mutex_lock(&workers->lock);
    for (;;) {
        struct job *job = workers->jobs;
        while (job != NULL && atomic_load(&job->taken) >= job->count)
            job = job->next;
        if (job != NULL) {
            job->helpers++;
            pthread_mutex_unlock(&workers->lock);
            work_on(job);
            pthread_mutex_lock(&workers->lock);
            if (--job->helpers == 0)
                pthread_cond_broadcast(&workers->done);
        } else if (workers->stop) {
            break;
        } else {
            pthread_cond_wait(&workers->wake, &workers->lock);
        }
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

/* Signals are the application's. Too few threads are only slower. */
static void start_threads(struct lmcs_workers *workers)
{
    sigset_t all, old;
    lmcs_guard_signals(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (workers->started < workers->wanted &&
           pthread_create(&workers->threads[workers->started], NULL, serve, workers) == 0)
        workers->started++;
    workers->wanted = workers->started;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

enum lmcs_status lmcs_workers_new(uint32_t threads, uint32_t nice, int node, struct lmcs_workers **workers,
                                  struct lmcs_error *error)
{
    struct lmcs_workers *w = calloc(1, sizeof *w);
    if (w == NULL || (w->threads = calloc(threads, sizeof *w->threads)) == NULL) {
        free(w);
        return lmcs_fail_memory(error);
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    pthread_cond_init(&w->done, NULL);
    w->node = node;
    w->nice = nice;
    w->wanted = nice > 0 ? threads : threads - 1;
    *workers = w;
    return LMCS_OK;
}

void lmcs_workers_free(struct lmcs_workers *workers)
{
    if (workers == NULL)
        return;
    pthread_mutex_lock(&workers->lock);
    workers->stop = true;
    pthread_cond_broadcast(&workers->wake);
    pthread_mutex_unlock(&workers->lock);
    for (uint32_t i = 0; i < workers->started; i++)
        pthread_join(workers->threads[i], NULL);
    pthread_mutex_destroy(&workers->lock);
    pthread_cond_destroy(&workers->wake);
    pthread_cond_destroy(&workers->done);
    free(workers->threads);
    free(workers);
}

uint32_t lmcs_workers_count(const struct lmcs_workers *workers)
{
    return workers->wanted + 1;
}

void lmcs_workers_run(struct lmcs_workers *workers, void (*work)(void *context, uint64_t i),
                      void (*finish)(void *context), void *context, uint64_t count)
{
    struct job job = {.work = work, .finish = finish, .context = context, .count = count};
    atomic_init(&job.taken, 0);
    if (workers == NULL && count > 1) {
        lmcs_idle_run(work, context, count);
        atomic_store(&job.taken, count);
    }
    bool helps = workers == NULL || workers->nice == 0;
    bool shared = count > (helps ? 1 : 0) && workers != NULL && workers->wanted > 0;
    if (shared) {
        pthread_mutex_lock(&workers->lock);
        if (workers->started < workers->wanted)
            start_threads(workers);
        job.next = workers->jobs;
        workers->jobs = &job;
        pthread_cond_broadcast(&workers->wake);
        pthread_mutex_unlock(&workers->lock);
    }
    if (helps || !shared || workers->wanted == 0)
        work_on(&job);
    if (!shared)
        return;
    pthread_mutex_lock(&workers->lock);
    while (atomic_load(&job.taken) < count) /* the last helper ends only after that */
        pthread_cond_wait(&workers->done, &workers->lock);
    struct job **at = &workers->jobs;
    while (*at != &job)
        at = &(*at)->next;
    *at = job.next;
    while (job.helpers > 0)
        pthread_cond_wait(&workers->done, &workers->lock);
    pthread_mutex_unlock(&workers->lock);
}

struct trial {
    lmcs_workers_job *job;
    void (*finish)(void *context);
    void *context;
    atomic_bool failed;
    pthread_mutex_t lock; /* guards the first error */
    enum lmcs_status status;
    struct lmcs_error *error; /* the caller's, or NULL */
};

static void try_item(void *context, uint64_t i)
{
    struct trial *trial = context;
    struct lmcs_error error;
    if (atomic_load_explicit(&trial->failed, memory_order_relaxed))
        return;
    enum lmcs_status status = trial->job(trial->context, i, &error);
    if (status == LMCS_OK)
        return;
    pthread_mutex_lock(&trial->lock);
    if (trial->status == LMCS_OK) {
        trial->status = status;
        if (trial->error != NULL)
            *trial->error = error;
    }
    pthread_mutex_unlock(&trial->lock);
    atomic_store_explicit(&trial->failed, true, memory_order_relaxed);
}

static void finish_trial(void *context)
{
    struct trial *trial = context;
    if (trial->finish != NULL)
        trial->finish(trial->context);
}

enum lmcs_status lmcs_workers_try(struct lmcs_workers *workers, lmcs_workers_job *job, void (*finish)(void *context),
                                  void *context, uint64_t count, struct lmcs_error *error)
{
    struct trial trial = {.job = job, .finish = finish, .context = context, .error = error};
    pthread_mutex_init(&trial.lock, NULL);
    lmcs_workers_run(workers, try_item, finish_trial, &trial, count);
    pthread_mutex_destroy(&trial.lock);
    return trial.status;
}
