/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * frames_work.c - threads that share work, and its result.
 *
 * Jobs are taken in order, so any number of threads report the same first failure.
 */
#include "frames.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#define TOUCH_BYTES ((size_t)32 << 20)
#define PAGE_BYTES  4096

double frames_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint32_t processors(void)
{
    cpu_set_t set;
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        count = CPU_COUNT(&set);
    return count < 1 ? 1 : count > CLI_MAX_THREADS ? CLI_MAX_THREADS : (uint32_t)count;
}

enum lmcs_status frames_work_init(struct cli *cli, struct frames_work *work)
{
    uint32_t threads = cli->options.threads != 0 ? cli->options.threads : processors();
    *work = (struct frames_work){.cli = cli, .caller = pthread_self(), .failed_at = UINT64_MAX};
    work->progress = cli_progress_start(cli);
    pthread_mutex_init(&work->lock, NULL);
    return lmcs_workers_new(threads, 0, -1, &work->workers, &cli->error);
}

void frames_work_free(struct frames_work *work)
{
    if (work->cli == NULL)
        return;
    lmcs_workers_free(work->workers);
    pthread_mutex_destroy(&work->lock);
}

bool frames_work_step(struct frames_work *work, uint64_t bytes)
{
    uint64_t done = atomic_fetch_add(&work->done_bytes, bytes) + bytes;
    if (pthread_equal(pthread_self(), work->caller) != 0 &&
        !work->progress.call(work->progress.context, work->label, done, work->total_bytes))
        atomic_store(&work->is_over, true);
    return !atomic_load(&work->is_over);
}

void frames_work_fail(struct frames_work *work, uint64_t i, enum lmc_status status, const char *message)
{
    pthread_mutex_lock(&work->lock);
    if (i < work->failed_at) {
        work->failed_at = i;
        work->failure = status;
        work->message = message;
    }
    pthread_mutex_unlock(&work->lock);
    atomic_store(&work->is_over, true);
}

struct run {
    struct frames_work *work;
    frames_job job;
    void *context;
};

static void run_job(void *context, uint64_t i)
{
    const struct run *run = context;
    const char *message = NULL;
    uint64_t bytes = 0;
    if (atomic_load(&run->work->is_over))
        return;
    enum lmc_status status = run->job(run->context, i, &bytes, &message);
    if (status == LMC_OK)
        frames_work_step(run->work, bytes);
    else
        frames_work_fail(run->work, i, status, message);
}

bool frames_work_run(struct frames_work *work, const char *label, uint64_t total_bytes, frames_job job, void *context,
                     uint64_t count)
{
    struct run run = {work, job, context};
    work->label = label;
    work->total_bytes = total_bytes;
    atomic_store(&work->done_bytes, 0);
    lmcs_workers_run(work->workers, run_job, NULL, &run, count);
    return !atomic_load(&work->is_over);
}

enum lmcs_status frames_work_error(const struct frames_work *work, const char *about)
{
    static const enum lmcs_status statuses[] = {
        [LMC_INVALID] = LMCS_INVALID,  [LMC_DAMAGED] = LMCS_DAMAGED,     [LMC_UNSUPPORTED] = LMCS_UNSUPPORTED,
        [LMC_NO_SPACE] = LMCS_INVALID, [LMC_NO_MEMORY] = LMCS_NO_MEMORY,
    };
    struct cli *cli = work->cli;
    if (work->failed_at == UINT64_MAX)
        return cli_fail(cli, LMCS_CANCELLED, 0, "%s was cancelled; nothing was changed", cli->command->name);
    return cli_fail(cli, statuses[work->failure], 0, "%s: %s", about,
                    work->message != NULL ? work->message : "out of memory");
}

/* ---- Pages ---------------------------------------------------------------------------------------------------- */

static enum lmc_status touch(void *context, uint64_t i, uint64_t *bytes, const char **message)
{
    const struct frames_memory *memory = context;
    size_t at = (size_t)i * TOUCH_BYTES;
    *message = NULL;
    *bytes = memory->bytes - at < TOUCH_BYTES ? memory->bytes - at : TOUCH_BYTES;
    for (size_t page = 0; page < *bytes; page += PAGE_BYTES)
        *(volatile unsigned char *)(memory->data + at + page) = 0;
    return LMC_OK;
}

bool frames_work_touch(struct frames_work *work, struct frames_memory *memory)
{
    return frames_work_run(work, "memory", memory->bytes, touch, memory,
                           memory->bytes / TOUCH_BYTES + (memory->bytes % TOUCH_BYTES != 0));
}
