/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/step.c - writes the links of a capture: from the arrays of the base snapshot, in the memory state or raw in the
 * pool, to the copies of this one.
 *
 * The largest parameter of a group finds the group's rule; the others then use it in parallel. A parameter that a rule
 * does not explain finds its own.
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "capture/memory.h"
#include "capture/state.h"
#include "links/relate.h"
#include "links/step.h"
#include "payload/attachment.h"
#include "payload/encode.h"

#define SERIAL_BYTES ((uint64_t)16 << 20) /* arrays up to this size take one thread, larger ones all */

struct job {
    struct lmcs_step step;
    struct lmcs_step_group group;
    struct lmcs_captured *after[LMC_MAX_BASES];
    struct lmcs_content before[LMC_MAX_BASES];
    uint32_t pinned; /* of `before` */
    bool serial;
    bool worthwhile;
    enum lmcs_links verdict;
    struct lmcs_content made;
};

struct linking {
    struct lmcs_capture *capture;
    struct lmcs_relations older; /* of the base snapshot */
    struct job *jobs;
    size_t count, capacity;
    const struct lmcs_step_rule *rule; /* of the group */
    size_t first;                      /* job of the parallel run */
    pthread_mutex_t region_lock;
};

/* ---- The jobs ---- */

/* Finds the bytes of the content before the step. False: they are neither in memory nor raw in one part. */
static enum lmcs_status find_before(struct linking *l, struct job *job, uint32_t i, const void **data,
                                    struct lmcs_error *error)
{
    struct lmcs_capture *capture = l->capture;
    struct lmcs_content *content = &job->before[i];
    *data = lmcs_memory_find(capture->busy, content->id, job->step.raw_bytes);
    if (*data != NULL || content->df.payload != LMCS_PAYLOAD_RAW)
        return LMCS_OK;
    *data = lmcs_payload_at(capture->pool->media, content, 0, job->step.raw_bytes);
    if (*data == NULL)
        return LMCS_OK;
    enum lmcs_status status = lmcs_payload_pin(capture->pool->lease, content, error);
    if (status == LMCS_IN_USE) { /* another program holds a lock */
        *data = NULL;
        return LMCS_OK;
    }
    job->pinned |= status == LMCS_OK ? 1u << i : 0;
    return status;
}

static void put_down(struct linking *l, struct job *job)
{
    for (uint32_t i = 0; i < LMC_MAX_BASES; i++)
        if ((job->pinned & 1u << i) != 0)
            lmcs_payload_unpin(l->capture->pool->lease, &job->before[i]);
    job->pinned = 0;
}

/* Finds the entries of a relation. False: one is not there, not in memory, unchanged, or unlike the first. */
static bool find_entries(const struct linking *l, const struct lmcs_related *item, struct job *job)
{
    const struct lmcs_entries *entries = &l->capture->entries;
    for (uint32_t i = 0; i < item->name_count; i++) {
        const size_t found = lmcs_entries_find(entries, LMCS_TENSOR, item->names[i]);
        struct lmcs_captured *entry = found != 0 ? entries->items[found - 1] : NULL;
        job->after[i] = entry;
        if (entry == NULL || !lmcs_captured_waits(entry) || entry->previous == 0 || entry->tensor.dtype != LMC_F32 ||
            entry->raw_bytes != job->after[0]->raw_bytes || entry->tensor.ndim != job->after[0]->tensor.ndim ||
            memcmp(entry->tensor.shape, job->after[0]->tensor.shape, entry->tensor.ndim * sizeof(uint64_t)) != 0)
            return false;
        for (uint32_t k = 0; k < i; k++)
            if (job->after[k] == entry || job->after[k]->previous == entry->previous)
                return false;
    }
    return true;
}

/* Adds the job of one relation, unless its arrays may not be linked. */
static enum lmcs_status add(struct linking *l, struct lmcs_txn *txn, const struct lmcs_related *item, size_t *at,
                            struct lmcs_error *error)
{
    struct lmcs_capture *capture = l->capture;
    struct job job = {.group = {item->group, lmcs_relate_older(&l->older, item, at)}};
    uint64_t before[LMC_MAX_BASES];
    struct lmcs_line_end end;
    if (!find_entries(l, item, &job)) {
        capture->note = LMCS_LINKS_UNFIT;
        return LMCS_OK;
    }
    job.step = (struct lmcs_step){.arrays = item->name_count,
                                  .raw_bytes = job.after[0]->raw_bytes,
                                  .pool_path = capture->pool->path,
                                  .name = job.after[0]->tensor.name};
    for (uint32_t i = 0; i < item->name_count; i++) {
        before[i] = job.after[i]->previous;
        job.step.after[i] = job.after[i]->memory;
    }
    enum lmcs_status status = lmcs_capture_may_link(capture, txn, before, item->name_count, job.step.raw_bytes,
                                                    job.before, &end, &job.verdict, error);
    if (status != LMCS_OK || job.verdict != LMCS_LINKS_MADE) {
        capture->note = job.verdict;
        return status;
    }
    for (uint32_t i = 0; status == LMCS_OK && i < item->name_count; i++) {
        status = find_before(l, &job, i, &job.step.before[i], error);
        if (status == LMCS_OK && job.step.before[i] == NULL) {
            capture->note = LMCS_LINKS_NOT_RAW;
            put_down(l, &job);
            return LMCS_OK;
        }
    }
    lmcs_relate_hints(&l->older, &capture->relations, &job.group, &job.step);
    if (status == LMCS_OK && !lmcs_grow(&l->jobs, &l->capacity, l->count, sizeof *l->jobs))
        status = lmcs_fail_memory(error);
    if (status != LMCS_OK)
        put_down(l, &job);
    else
        l->jobs[l->count++] = job;
    return status;
}

static int by_group(const void *a, const void *b)
{
    const struct job *x = a, *y = b;
    return lmcs_relate_order(&x->group, x->step.raw_bytes, &y->group, y->step.raw_bytes);
}

static enum lmcs_status collect(struct linking *l, struct lmcs_error *error)
{
    struct lmcs_capture *capture = l->capture;
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record base;
    bool found = false;
    size_t at = 0;
    enum lmcs_status status = lmcs_txn_read(capture->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_find(&txn, capture->busy->name, &shelf, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_record_get(&txn, &shelf, capture->ticket.base, &base, &found, error);
    if (status == LMCS_OK && found) {
        struct lmcs_relations older;
        status = lmcs_relations_load(&txn, &base, &older, &found, error);
        if (status == LMCS_OK && found)
            l->older = older;
    }
    if (lmcs_is_unusable(status)) /* the constants of the newer relations suffice */
        status = LMCS_OK;
    const bool gap = lmcs_relate_gap(&l->older, &capture->relations);
    if (gap)
        capture->note = LMCS_LINKS_GAP;
    for (size_t i = 0; status == LMCS_OK && !gap && i < capture->relations.count; i++)
        status = add(l, &txn, &capture->relations.items[i], &at, error);
    lmcs_txn_end(&txn);
    if (l->count > 1)
        qsort(l->jobs, l->count, sizeof *l->jobs, by_group);
    return status;
}

/* ---- Encoding ---- */

struct encoding {
    struct linking *linking;
    struct job *job;
};

static enum lmcs_status encode(void *context, const struct lmc_link_rule *rule, bool *worthwhile,
                               struct lmcs_error *error)
{
    const struct encoding *e = context;
    struct lmcs_capture *capture = e->linking->capture;
    struct job *job = e->job;
    struct lmc_link_params params = {.rule = *rule, .raw_bytes = job->step.raw_bytes};
    struct lmcs_encoding encoding = {.pool = capture->pool,
                                     .region = &capture->region,
                                     .region_lock = &e->linking->region_lock,
                                     .workers = capture->workers,
                                     .write_behind = true,
                                     .serial = job->serial,
                                     .tensor = job->after[0]->tensor,
                                     .raw_bytes = job->step.raw_bytes,
                                     .link = &params,
                                     .most_bytes = lmcs_step_most_bytes(&job->step)};
    encoding.made.df = (struct lmcs_content_df){.raw_bytes = job->step.raw_bytes,
                                                .identity = job->after[0]->identity,
                                                .payload = LMCS_PAYLOAD_LINK,
                                                .base_count = (uint8_t)job->step.arrays};
    for (uint32_t i = 0; i < job->step.arrays; i++) {
        params.before[i] = job->step.before[i];
        params.after[i] = job->step.after[i];
        params.before_digest[i] = (struct lmc_hash){job->before[i].df.digest_low, job->before[i].df.digest_high};
        encoding.made.bases[i] = job->before[i].id;
    }
    enum lmcs_status status = lmcs_encoding_run(&encoding, error);
    job->made = encoding.made;
    *worthwhile = encoding.worthwhile;
    return status;
}

static enum lmcs_status do_job(struct linking *l, struct job *job, struct lmcs_step_rule *rule,
                               struct lmcs_error *error)
{
    struct encoding e = {l, job};
    bool doubtful = false;
    enum lmcs_status status =
        lmcs_step_link(&job->step, rule, false, &doubtful, encode, &e, &job->worthwhile, &job->verdict, error);
    if (lmcs_is_unusable(status)) { /* raw bytes of the base snapshot are damaged: scrub reports them */
        job->worthwhile = false;
        job->verdict = LMCS_LINKS_NOT_RAW;
        return LMCS_OK;
    }
    return status;
}

static enum lmcs_status parallel_job(void *context, uint64_t i, struct lmcs_error *error)
{
    struct linking *l = context;
    struct lmcs_step_rule rule = *l->rule;
    struct job *job = &l->jobs[l->first + i];
    job->serial = true;
    return do_job(l, job, &rule, error);
}

/* Encodes the jobs of one group: large ones one by one with all threads, then the others with a thread each. */
static enum lmcs_status do_group(struct linking *l, size_t first, size_t end, struct lmcs_error *error)
{
    struct lmcs_step_rule rule = {.known = false};
    size_t i = first;
    enum lmcs_status status = do_job(l, &l->jobs[i++], &rule, error);
    while (status == LMCS_OK && i < end && l->jobs[i].step.raw_bytes > SERIAL_BYTES)
        status = do_job(l, &l->jobs[i++], &rule, error);
    l->rule = &rule;
    l->first = i;
    return status == LMCS_OK ? lmcs_workers_try(l->capture->workers, parallel_job, NULL, l, end - i, error) : status;
}

/* Gives the arrays of the links that were made their form. */
static enum lmcs_status take_results(struct linking *l, struct lmcs_error *error)
{
    struct lmcs_capture *capture = l->capture;
    capture->links = calloc(l->count + 1, sizeof *capture->links);
    if (capture->links == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < l->count; i++) {
        const struct job *job = &l->jobs[i];
        struct lmcs_made_link *link = &capture->links[capture->link_count];
        if (!job->worthwhile) {
            capture->note = capture->note != LMCS_LINKS_MADE ? job->verdict : capture->note;
            continue;
        }
        *link = (struct lmcs_made_link){.arrays = job->step.arrays, .made = job->made};
        for (uint32_t k = 0; k < job->step.arrays; k++) {
            link->before[k] = job->before[k].id;
            link->after[k] = job->after[k];
            job->after[k]->form = LMCS_FORM_LINKED;
            job->after[k]->link = capture->link_count;
            job->after[k]->content.df.output = (uint8_t)k;
        }
        capture->written_bytes += job->made.df.stored_bytes;
        capture->note = LMCS_LINKS_MADE;
        capture->link_count++;
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_capture_write_links(struct lmcs_capture *capture, struct lmcs_error *error)
{
    struct linking l = {.capture = capture};
    if (capture->relations.count == 0 || capture->line_bound == 0 || capture->ticket.base == 0)
        return LMCS_OK;
    pthread_mutex_init(&l.region_lock, NULL);
    enum lmcs_status status = collect(&l, error);
    for (size_t i = 0, end; status == LMCS_OK && i < l.count; i = end) {
        for (end = i + 1; end < l.count && lmcs_relate_same(&l.jobs[end].group, &l.jobs[i].group);)
            end++;
        status = do_group(&l, i, end, error);
    }
    if (status == LMCS_OK)
        status = take_results(&l, error);
    for (size_t i = 0; i < l.count; i++)
        put_down(&l, &l.jobs[i]);
    lmcs_relations_free(&l.older);
    pthread_mutex_destroy(&l.region_lock);
    free(l.jobs);
    return status;
}
