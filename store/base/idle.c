/* SPDX-License-Identifier: BSD-3-Clause */
/* base/idle.c - a thread of the lowest priority. Its owner and callers in a hurry wait for it by semaphores only: it
 * may lose the processor at any place. */
#include "base/idle.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/guard.h"
#include "base/usage.h"

#define LOWEST_NICE 19
#define NAP_NS      ((uint64_t)5 * 1000000) /* longest delay of a hurry */

/* On the heap: the idle thread may hold one without an item after the run has ended. */
struct job {
    void (*work)(void *context, uint64_t i);
    void *context;
    uint64_t count;
    atomic_uint_fast64_t taken;
    atomic_uint_fast64_t done;
    atomic_uint users; /* threads; the last one frees it */
};

struct lmcs_idle {
    const atomic_uint *pause;
    atomic_uint hurries;
    _Atomic(struct job *) offered; /* not yet taken by the idle thread */
    sem_t offer;
    sem_t news; /* for the owner: the last item is done, or a hurry began */
    atomic_bool stop;
    bool started; /* the owner's */
    pthread_t thread;
    struct lmcs_yield yield; /* the idle thread's */
};

static _Thread_local struct lmcs_idle *owned;

void lmcs_idle_own(struct lmcs_idle *idle)
{
    owned = idle;
}

void lmcs_idle_hurry(struct lmcs_idle *idle, bool begin)
{
    if (idle == NULL)
        return;
    if (!begin) {
        atomic_fetch_sub(&idle->hurries, 1);
        return;
    }
    atomic_fetch_add(&idle->hurries, 1);
    sem_post(&idle->news);
}

bool lmcs_idle_is_hurried(const struct lmcs_idle *idle)
{
    return idle != NULL && atomic_load(&idle->hurries) > 0;
}

void lmcs_idle_sleep(const struct lmcs_idle *idle, uint64_t ns, bool (*stop)(const void *context), const void *context)
{
    const uint64_t until = lmcs_steady_ns() + ns;
    for (uint64_t now; !lmcs_idle_is_hurried(idle) && (now = lmcs_steady_ns()) < until;) {
        if (stop != NULL && stop(context))
            return;
        nanosleep(&(struct timespec){.tv_nsec = (long)(until - now < NAP_NS ? until - now : NAP_NS)}, NULL);
    }
}

/* Lowers the priority of this thread for the processor and, if the disk's scheduler supports it, for the disk. */
static void lower_priority(void)
{
    enum { WHO_PROCESS = 1, BEST_EFFORT_LAST = 2 << 13 | 7 }; /* linux/ioprio.h is not everywhere */
    const pid_t thread = (pid_t)syscall(SYS_gettid);
    sched_setscheduler(thread, SCHED_BATCH, &(struct sched_param){.sched_priority = 0});
    setpriority(PRIO_PROCESS, (id_t)thread, LOWEST_NICE);
    syscall(SYS_ioprio_set, WHO_PROCESS, thread, BEST_EFFORT_LAST);
}

/* Waits while a capture copies, and while other threads need the processors. */
static void make_way(struct lmcs_idle *idle)
{
    while (atomic_load(idle->pause) > 0 && !lmcs_idle_is_hurried(idle))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    const uint64_t rest = lmcs_yield_ns(&idle->yield);
    if (rest == 0)
        return;
    lmcs_idle_sleep(idle, rest, NULL, NULL);
    lmcs_yield_begin(&idle->yield);
}

static void work_on(struct job *job, struct lmcs_idle *idle)
{
    for (;;) {
        if (idle != NULL)
            make_way(idle);
        uint64_t i = atomic_fetch_add(&job->taken, 1);
        if (i >= job->count)
            return;
        job->work(job->context, i);
        if (atomic_fetch_add(&job->done, 1) + 1 == job->count && idle != NULL)
            sem_post(&idle->news);
    }
}

static void leave(struct job *job)
{
    if (atomic_fetch_sub(&job->users, 1) == 1)
        free(job);
}

static void *serve(void *argument)
{
    struct lmcs_idle *idle = argument;
    lower_priority();
    for (;;) {
        while (sem_wait(&idle->offer) != 0)
            ;
        if (atomic_load(&idle->stop))
            return NULL;
        struct job *job = atomic_exchange(&idle->offered, NULL);
        if (job == NULL) /* the owner did it */
            continue;
        work_on(job, idle);
        leave(job);
    }
}

static bool start(struct lmcs_idle *idle)
{
    sigset_t all, old;
    if (idle->started)
        return true;
    lmcs_guard_signals(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    idle->started = pthread_create(&idle->thread, NULL, serve, idle) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return idle->started;
}

static void run(void (*work)(void *context, uint64_t i), void *context, uint64_t count, bool helps)
{
    struct lmcs_idle *idle = owned;
    struct job *job = idle != NULL && start(idle) ? calloc(1, sizeof *job) : NULL, *untaken = job;
    if (job == NULL) {
        for (uint64_t i = 0; i < count; i++)
            work(context, i);
        return;
    }
    job->work = work;
    job->context = context;
    job->count = count;
    job->users = 2;
    atomic_store(&idle->offered, job);
    sem_post(&idle->offer);
    while (atomic_load(&job->done) < count) {
        if ((helps || lmcs_idle_is_hurried(idle)) && atomic_load(&job->taken) < count)
            work_on(job, NULL);
        else
            sem_wait(&idle->news);
    }
    if (atomic_compare_exchange_strong(&idle->offered, &untaken, NULL))
        leave(job);
    leave(job);
}

void lmcs_idle_run(void (*work)(void *context, uint64_t i), void *context, uint64_t count)
{
    run(work, context, count, false);
}

void lmcs_idle_help(void (*work)(void *context, uint64_t i), void *context, uint64_t count)
{
    run(work, context, count, true);
}

enum lmcs_status lmcs_idle_new(const atomic_uint *pause, struct lmcs_idle **idle, struct lmcs_error *error)
{
    *idle = calloc(1, sizeof **idle);
    if (*idle == NULL)
        return lmcs_fail_memory(error);
    (*idle)->pause = pause;
    sem_init(&(*idle)->offer, 0, 0);
    sem_init(&(*idle)->news, 0, 0);
    return LMCS_OK;
}

void lmcs_idle_free(struct lmcs_idle *idle)
{
    if (idle == NULL)
        return;
    if (idle->started) {
        atomic_store(&idle->stop, true);
        atomic_fetch_add(&idle->hurries, 1); /* ends a rest */
        sem_post(&idle->offer);
        pthread_join(idle->thread, NULL);
    }
    sem_destroy(&idle->offer);
    sem_destroy(&idle->news);
    free(idle);
}
