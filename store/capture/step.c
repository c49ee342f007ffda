/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/step.c - writes the links of a capture: from the arrays of the base snapshot, in the memory state or raw in
 * the pool, to the copies of this one. Parameters whose turn it is get no links, and become keyframes (delta.c).
 *
 * The largest parameter of a group finds the group's rule and its links' plan; the others then use them in parallel. A
 * parameter that a rule does not explain finds its own. Without relations, groups and rules come from a search of the
 * data (search.c).
 */
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/order.h"
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
    uint32_t pinned;           /* of `before` */
    bool in_place;             /* no other job uses `before`, which is the memory state's */
    bool is_lent;              /* `after` are the caller's bytes */
    struct lmc_link_rule rule; /* step.has_rule */
    bool serial;
    bool worthwhile;
    enum lmcs_links verdict;
    uint32_t links; /* to undo for the arrays, with that of the step */
    struct lmcs_content made;
    uint32_t plan; /* of the link */
};

struct linking {
    struct lmcs_capture *capture;
    struct lmcs_relations older; /* of the base snapshot */
    bool due;                    /* steps that lead from it are likely */
    struct job *jobs;
    size_t count, capacity;
    uint64_t unchanged_bytes, unchanged_to_undo; /* of parameters, as in lmcs_turns */
    const struct lmcs_step_rule *rule;           /* of the group */
    uint32_t plan;                               /* of its first link; 0: unknown */
    size_t first;                                /* job of the parallel run */
    pthread_mutex_t region_lock;
};

/* ---- The jobs ---- */

static void put_down(struct linking *l, struct job *job)
{
    for (uint32_t i = 0; i < LMC_MAX_BASES; i++)
        if ((job->pinned & 1u << i) != 0)
            lmcs_payload_unpin(l->capture->pool->lease, &job->before[i]);
    job->pinned = 0;
}

/* Whether the entries after the step are different tensors of one shape. */
static bool are_alike(const struct job *job)
{
    const struct lmcs_captured *first = job->after[0];
    for (uint32_t i = 0; i < job->step.arrays; i++) {
        const struct lmcs_captured *entry = job->after[i];
        if (entry->raw_bytes != first->raw_bytes || entry->tensor.ndim != first->tensor.ndim ||
            memcmp(entry->tensor.shape, first->tensor.shape, entry->tensor.ndim * sizeof(uint64_t)) != 0)
            return false;
        for (uint32_t k = 0; k < i; k++)
            if (job->after[k] == entry || job->after[k]->previous == entry->previous)
                return false;
    }
    return true;
}

/* No link may lead from deltas, and none from tensors that are new or whose bytes before are not at hand. */
static void begin_line(const struct job *job)
{
    for (uint32_t i = 0; i < job->step.arrays; i++)
        job->after[i]->is_keyframe = true;
}

/* Finds the arrays before the step. *all false: neither the memory state nor the pool has one. */
static enum lmcs_status find_before(struct linking *l, struct job *job, bool *all, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    *all = true;
    for (uint32_t i = 0; status == LMCS_OK && *all && i < job->step.arrays; i++) {
        bool pinned;
        status = lmcs_capture_before(l->capture, &job->after[i]->tensor, &job->before[i], &job->step.before[i], &pinned,
                                     error);
        job->pinned |= pinned ? 1u << i : 0;
        *all = job->step.before[i] != NULL;
    }
    if (status != LMCS_OK || !*all)
        put_down(l, job);
    return status;
}

/* Adds a job, of which `after` and the step's arrays are set, unless they may not be linked. */
static enum lmcs_status add(struct linking *l, struct lmcs_txn *txn, struct job *job, struct lmcs_error *error)
{
    struct lmcs_capture *capture = l->capture;
    struct lmcs_step *step = &job->step;
    uint64_t before[LMC_MAX_BASES];
    struct lmcs_line_end end;
    bool all = true;
    step->raw_bytes = job->after[0]->raw_bytes;
    step->pool_path = capture->pool->path;
    step->name = job->after[0]->tensor.name;
    for (uint32_t i = 0; i < step->arrays; i++) {
        before[i] = job->after[i]->previous;
        step->after[i] = lmcs_captured_bytes(job->after[i]);
    }
    enum lmcs_status status = lmcs_capture_may_link(capture, txn, before, step->arrays, step->raw_bytes, job->before,
                                                    &end, &job->verdict, error);
    const bool is_full = job->verdict == LMCS_LINKS_FIRST;
    if (status != LMCS_OK || (job->verdict != LMCS_LINKS_MADE && !is_full)) {
        capture->note = job->verdict;
        if (status == LMCS_OK && job->verdict == LMCS_LINKS_NOT_RAW && l->due)
            begin_line(job);
        return status;
    }
    job->links = is_full ? capture->line_bound + 1 : end.links;
    if (!is_full)
        status = find_before(l, job, &all, error);
    if (status != LMCS_OK)
        return status;
    if (!all) {
        capture->note = LMCS_LINKS_NOT_RAW;
        begin_line(job);
        return LMCS_OK;
    }
    if (!lmcs_grow(&l->jobs, &l->capacity, l->count, sizeof *l->jobs)) {
        put_down(l, job);
        return lmcs_fail_memory(error);
    }
    l->jobs[l->count++] = *job;
    for (uint32_t i = 0; i < step->arrays; i++)
        job->after[i]->is_array = true;
    return LMCS_OK;
}

/* Counts the line of a parameter that has not changed. */
static enum lmcs_status add_unchanged(struct linking *l, struct lmcs_txn *txn, const struct job *job,
                                      struct lmcs_error *error)
{
    const uint64_t bytes = job->after[0]->raw_bytes;
    struct lmcs_content before[LMC_MAX_BASES];
    uint64_t shared[LMC_MAX_BASES];
    struct lmcs_line_end end;
    enum lmcs_links verdict;
    for (uint32_t i = 0; i < job->step.arrays; i++)
        shared[i] = job->after[i]->shared;
    enum lmcs_status status =
        lmcs_capture_may_link(l->capture, txn, shared, job->step.arrays, bytes, before, &end, &verdict, error);
    if (status != LMCS_OK || verdict == LMCS_LINKS_NOT_RAW)
        return status;
    l->unchanged_bytes += job->step.arrays * bytes;
    l->unchanged_to_undo += job->step.arrays * bytes * (end.links - 1);
    return LMCS_OK;
}

/* Adds the job of one relation. */
static enum lmcs_status add_related(struct linking *l, struct lmcs_txn *txn, const struct lmcs_related *item,
                                    size_t *at, struct lmcs_error *error)
{
    struct lmcs_capture *capture = l->capture;
    struct job job = {.group = {item->group, lmcs_relate_older(&l->older, item, at)}};
    bool may = true, is_new = false, has_changed = false, is_taken = false;
    job.step.arrays = item->name_count;
    for (uint32_t i = 0; i < item->name_count; i++) {
        const size_t found = lmcs_entries_find(&capture->entries, LMCS_TENSOR, item->names[i]);
        job.after[i] = found != 0 ? capture->entries.items[found - 1] : NULL;
        if (job.after[i] == NULL || job.after[i]->tensor.dtype != LMC_F32) {
            capture->note = LMCS_LINKS_UNFIT;
            return LMCS_OK;
        }
        may &= lmcs_capture_may_step(job.after[i]); /* not so if small, unchanged, or without room in memory */
        is_new |= job.after[i]->previous == 0;
        has_changed |= job.after[i]->shared == 0;
        is_taken |= job.after[i]->is_array;
    }
    if (is_new)
        begin_line(&job);
    if (!may)
        return has_changed ? LMCS_OK : add_unchanged(l, txn, &job, error);
    if (is_taken || !are_alike(&job)) { /* an array has one link */
        capture->note = LMCS_LINKS_UNFIT;
        return LMCS_OK;
    }
    lmcs_relate_hints(&l->older, &capture->relations, &job.group, &job.step);
    return add(l, txn, &job, error);
}

static enum lmcs_status add_found(struct linking *l, struct lmcs_txn *txn, const struct lmcs_search_match *match,
                                  uint32_t *group, struct lmcs_error *error)
{
    struct job job = {.step = {.arrays = match->count, .has_rule = true}, .rule = match->rule};
    for (uint32_t i = 0; i < match->count; i++)
        job.after[i] = l->capture->entries.items[match->arrays[i]];
    if (!are_alike(&job))
        return LMCS_OK;
    if (l->count > 0 && memcmp(&l->jobs[l->count - 1].rule, &match->rule, sizeof match->rule) != 0)
        ++*group;
    job.group.newer = *group;
    return add(l, txn, &job, error);
}

/* Takes the parameters whose turn it is out of the jobs: their arrays become keyframes. */
static enum lmcs_status take_turns(struct linking *l, struct lmcs_error *error)
{
    struct lmcs_capture *capture = l->capture;
    const struct lmcs_turns all = {.bound = capture->line_bound,
                                   .mean = capture->line_mean,
                                   .unchanged_bytes = l->unchanged_bytes,
                                   .unchanged_to_undo = l->unchanged_to_undo};
    struct lmcs_turn *turns = malloc((l->count + 1) * sizeof *turns);
    size_t kept = 0;
    if (turns == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < l->count; i++)
        turns[i] = (struct lmcs_turn){
            .bytes = l->jobs[i].step.arrays * l->jobs[i].step.raw_bytes, .links = l->jobs[i].links, .job = i};
    lmcs_turns_choose(turns, l->count, &all);
    for (size_t i = 0; i < l->count; i++) {
        struct job *job = &l->jobs[turns[i].job];
        if (!turns[i].is_due)
            continue;
        put_down(l, job);
        for (uint32_t k = 0; k < job->step.arrays; k++)
            job->after[k]->is_keyframe = true;
        job->step.arrays = 0;
        capture->note = LMCS_LINKS_FIRST;
    }
    for (size_t i = 0; i < l->count; i++)
        if (l->jobs[i].step.arrays > 0)
            l->jobs[kept++] = l->jobs[i];
    l->count = kept;
    free(turns);
    return LMCS_OK;
}

static bool occurs_twice(const uint64_t *sorted, size_t count, uint64_t id)
{
    const uint64_t *at = bsearch(&id, sorted, count, sizeof *sorted, lmcs_by_u64);
    return (at > sorted && at[-1] == id) || (at + 1 < sorted + count && at[1] == id);
}

/* Whether the link is encoded from the caller's bytes: the verification makes their copy. */
static bool stays_lent(const struct job *job)
{
    bool stays = job->in_place;
    for (uint32_t k = 0; k < job->step.arrays; k++)
        stays = stays && job->after[k]->lent != NULL && job->after[k]->memory == NULL;
    return stays;
}

/* Lets the verification of links change the memory state to the new one, which saves copies. Tensors that had one
 * content in the base snapshot have their bytes there once, and a tensor that did not change still needs them. */
static enum lmcs_status choose_places(struct linking *l, struct lmcs_error *error)
{
    const struct lmcs_entries *entries = &l->capture->entries;
    size_t count = 0;
    uint64_t *ids = malloc((l->count * LMC_MAX_BASES + entries->count + 1) * sizeof *ids);
    if (ids == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < entries->count; i++)
        if (entries->items[i]->shared != 0)
            ids[count++] = entries->items[i]->shared;
    for (size_t i = 0; i < l->count; i++)
        for (uint32_t k = 0; k < l->jobs[i].step.arrays; k++)
            ids[count++] = l->jobs[i].before[k].id;
    qsort(ids, count, sizeof *ids, lmcs_by_u64);
    for (size_t i = 0; i < l->count; i++) {
        struct job *job = &l->jobs[i];
        job->in_place = job->pinned == 0;
        for (uint32_t k = 0; k < job->step.arrays; k++)
            job->in_place = job->in_place && !occurs_twice(ids, count, job->before[k].id);
        l->capture->has_changed_memory = l->capture->has_changed_memory || job->in_place;
        job->is_lent = stays_lent(job);
        for (uint32_t k = 0; k < job->step.arrays; k++)
            job->after[k]->links_lent = job->is_lent;
    }
    free(ids);
    return LMCS_OK;
}

/* Copies what is lent, but for links that need no copy. Gives up jobs whose arrays find no room in memory: they are raw
 * in the pool now. */
static enum lmcs_status take_others(struct linking *l, struct lmcs_error *error)
{
    size_t kept = 0;
    enum lmcs_status status = lmcs_capture_take_lent(l->capture, false, error);
    for (size_t i = 0; status == LMCS_OK && i < l->count; i++) {
        struct job *job = &l->jobs[i];
        bool all = true;
        for (uint32_t k = 0; k < job->step.arrays; k++) {
            job->step.after[k] = lmcs_captured_bytes(job->after[k]);
            all = all && job->step.after[k] != NULL;
        }
        if (all)
            l->jobs[kept++] = *job;
        else
            put_down(l, job);
    }
    if (status == LMCS_OK)
        l->count = kept;
    return status;
}

static int by_group(const void *a, const void *b)
{
    const struct job *x = a, *y = b;
    return lmcs_relate_order(&x->group, x->step.raw_bytes, &y->group, y->step.raw_bytes);
}

/* Loads the relations of the base snapshot. */
static enum lmcs_status load_base(struct linking *l, struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record base;
    struct lmcs_relations older;
    bool found = false;
    enum lmcs_status status = lmcs_shelf_find(txn, l->capture->busy->name, &shelf, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_record_get(txn, &shelf, l->capture->ticket.base, &base, &found, error);
    if (status != LMCS_OK || !found)
        return status;
    l->due = lmcs_search_is_due(base.df.links, l->capture->ticket.number);
    status = lmcs_relations_load(txn, &base, &older, &found, error);
    if (status == LMCS_OK && found)
        l->older = older;
    return status;
}

/* Searches the data for steps, and adds their jobs. */
static enum lmcs_status collect_found(struct linking *l, struct lmcs_error *error)
{
    struct lmcs_search_match *matches = NULL;
    struct lmcs_txn txn;
    size_t found = 0;
    uint32_t group = 0;
    enum lmcs_status status = lmcs_capture_search(l->capture, &matches, &found, error);
    if (status == LMCS_OK && found > 0 && (status = lmcs_txn_read(l->capture->pool, &txn, error)) == LMCS_OK) {
        for (size_t i = 0; status == LMCS_OK && i < found; i++)
            status = add_found(l, &txn, &matches[i], &group, error);
        lmcs_txn_end(&txn);
    }
    free(matches);
    return status;
}

static enum lmcs_status collect(struct linking *l, struct lmcs_error *error)
{
    struct lmcs_capture *capture = l->capture;
    struct lmcs_txn txn;
    size_t at = 0;
    for (size_t i = 0; i < capture->entries.count; i++) /* of a try before */
        capture->entries.items[i]->is_array = false;
    enum lmcs_status status = lmcs_txn_read(capture->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = load_base(l, &txn, error);
    if (lmcs_is_unusable(status)) /* the constants of the newer relations suffice */
        status = LMCS_OK;
    const bool gap = lmcs_relate_gap(&l->older, &capture->relations);
    if (gap)
        capture->note = LMCS_LINKS_GAP;
    for (size_t i = 0; status == LMCS_OK && !gap && i < capture->relations.count; i++)
        status = add_related(l, &txn, &capture->relations.items[i], &at, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && capture->relations.count == 0) {
        capture->note = LMCS_LINKS_NOT_FOUND;
        status = l->due ? collect_found(l, error) : LMCS_OK;
    }
    if (status == LMCS_OK)
        status = take_turns(l, error);
    if (l->count > 1)
        qsort(l->jobs, l->count, sizeof *l->jobs, by_group);
    if (status == LMCS_OK)
        status = choose_places(l, error);
    return status == LMCS_OK ? take_others(l, error) : status;
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
    struct lmc_link_params params = {.rule = *rule, .raw_bytes = job->step.raw_bytes, .like = e->linking->plan};
    struct lmc_hash after[LMC_MAX_BASES];
    struct lmcs_encoding encoding = {.pool = capture->pool,
                                     .region = &capture->region,
                                     .region_lock = &e->linking->region_lock,
                                     .workers = capture->workers,
                                     .write_behind = true,
                                     .serial = job->serial,
                                     .tensor = job->after[0]->tensor,
                                     .raw_bytes = job->step.raw_bytes,
                                     .link = &params,
                                     .after_digests = after,
                                     .finds_digests = job->is_lent,
                                     .in_place = job->in_place,
                                     .most_bytes = lmcs_step_most_bytes(&job->step)};
    encoding.made.df = (struct lmcs_content_df){.raw_bytes = job->step.raw_bytes,
                                                .identity = job->after[0]->identity,
                                                .payload = LMCS_PAYLOAD_LINK,
                                                .base_count = (uint8_t)job->step.arrays};
    for (uint32_t i = 0; i < job->step.arrays; i++) {
        params.before[i] = job->step.before[i];
        params.after[i] = job->step.after[i];
        encoding.after_hashes[i] = job->after[i]->hashes;
        after[i] = (struct lmc_hash){job->after[i]->content.df.digest_low, job->after[i]->content.df.digest_high};
        params.before_digest[i] = (struct lmc_hash){job->before[i].df.digest_low, job->before[i].df.digest_high};
        encoding.made.bases[i] = job->before[i].id;
    }
    enum lmcs_status status = lmcs_encoding_run(&encoding, error);
    for (uint32_t i = 0; status == LMCS_OK && job->is_lent && i < job->step.arrays; i++) {
        job->after[i]->content.df.digest_low = after[i].low;
        job->after[i]->content.df.digest_high = after[i].high;
    }
    job->made = encoding.made;
    job->plan = encoding.link_plan;
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
    struct lmcs_step_rule rule = {.rule = l->jobs[first].rule, .known = l->jobs[first].step.has_rule};
    size_t i = first;
    l->plan = 0;
    enum lmcs_status status = do_job(l, &l->jobs[i++], &rule, error);
    l->plan = l->jobs[first].worthwhile ? l->jobs[first].plan : 0;
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
            if (job->is_lent) { /* the verification has made the bytes before the step those after it */
                job->after[k]->memory = lmcs_memory_steal(capture->busy, job->before[k].id);
                job->after[k]->lent = NULL;
            }
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
    const bool searches = capture->searches && capture->ticket.base != 0;
    if ((capture->relations.count == 0 && !searches) || capture->line_bound == 0)
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
