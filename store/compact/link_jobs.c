/* SPDX-License-Identifier: BSD-3-Clause */
/* compact/link_jobs.c - finds the arrays that one optimizer step changed together: by relations, or from the data. */
#include "compact/link_jobs.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/guard.h"
#include "compact/plan.h"
#include "compact/replace.h"
#include "links/search.h"
#include "pages/tree.h"
#include "payload/attachment.h"
#include "records/manifest.h"
#include "records/safety.h"
#include "records/shelf.h"

struct pair {
    struct lmcs_txn *txn;
    struct lmcs_record older, newer;
};

static bool same_shape(const struct lmcs_identity *a, const struct lmcs_identity *b)
{
    return a->df.ndim == b->df.ndim && memcmp(a->shape, b->shape, a->df.ndim * sizeof a->shape[0]) == 0;
}

/* Whether all arrays of the job have changed and none equals another. */
static bool are_distinct(const struct lmcs_link_job *job)
{
    for (uint32_t i = 0; i < job->arrays; i++)
        for (uint32_t k = 0; k < job->arrays; k++)
            if (job->before[i] == job->after[k] ||
                (i < k && (job->before[i] == job->before[k] || job->after[i] == job->after[k])))
                return false;
    return true;
}

static enum lmcs_status add(struct lmcs_link_jobs *jobs, const struct lmcs_link_job *job, struct lmcs_error *error)
{
    if (!are_distinct(job))
        return LMCS_OK;
    if (!lmcs_grow(&jobs->items, &jobs->capacity, jobs->count, sizeof *job))
        return lmcs_fail_memory(error);
    jobs->items[jobs->count++] = *job;
    return LMCS_OK;
}

static int by_group(const void *a, const void *b)
{
    const struct lmcs_link_job *x = a, *y = b;
    return lmcs_relate_order(&x->group, x->raw_bytes, &y->group, y->raw_bytes);
}

/* ---- By relations ---- */

/* Finds an array in both snapshots. *found false: a snapshot lacks it, or it is no f32 tensor. */
static enum lmcs_status find_array(const struct pair *pair, const char *name, struct lmcs_identity *identity,
                                   uint64_t *before, uint64_t *after, bool *found, struct lmcs_error *error)
{
    struct lmcs_root_tree_df older = {.ref = pair->older.df.manifest, .count = pair->older.df.entry_count};
    struct lmcs_manifest_df entry;
    enum lmcs_status status =
        lmcs_manifest_find(pair->txn, &pair->newer.df, LMCS_TENSOR, name, identity, after, found, error);
    if (status != LMCS_OK || !*found || identity->df.dtype != LMC_F32) {
        *found = false;
        return status;
    }
    status = lmcs_tree_get(pair->txn, LMCS_TREE_MANIFEST, &older, (struct lmcs_key_df){identity->id, 0}, &entry,
                           sizeof entry, sizeof entry, NULL, found, error);
    *before = status == LMCS_OK && *found ? entry.content : 0;
    return status;
}

static enum lmcs_status add_related(struct lmcs_link_jobs *jobs, const struct pair *pair,
                                    const struct lmcs_related *item, size_t *at, struct lmcs_error *error)
{
    struct lmcs_link_job job = {.group = {item->group, lmcs_relate_older(&jobs->older, item, at)},
                                .arrays = item->name_count};
    struct lmcs_identity first, identity;
    bool found = true;
    enum lmcs_status status = LMCS_OK;
    for (uint32_t i = 0; status == LMCS_OK && i < item->name_count; i++) {
        status =
            find_array(pair, item->names[i], i == 0 ? &first : &identity, &job.before[i], &job.after[i], &found, error);
        if (status == LMCS_OK && (!found || (i > 0 && !same_shape(&first, &identity)))) {
            jobs->why = LMCS_LINKS_UNFIT;
            return LMCS_OK;
        }
    }
    if (status != LMCS_OK || !lmcs_shape_bytes(first.df.dtype, first.df.ndim, first.shape, &job.raw_bytes) ||
        job.raw_bytes < LMCS_DELTA_LEAST_BYTES)
        return status;
    job.identity = first.id;
    return add(jobs, &job, error);
}

static enum lmcs_status collect_related(struct lmcs_link_jobs *jobs, const struct pair *pair, struct lmcs_error *error)
{
    struct lmcs_relations older;
    bool found = false;
    size_t at = 0;
    enum lmcs_status status = lmcs_relations_load(pair->txn, &pair->older, &older, &found, error);
    if (status == LMCS_OK && found)
        jobs->older = older;
    const bool gap = lmcs_relate_gap(&jobs->older, &jobs->relations);
    if (gap)
        jobs->why = LMCS_LINKS_GAP;
    for (size_t i = 0; status == LMCS_OK && !gap && i < jobs->relations.count; i++)
        status = add_related(jobs, pair, &jobs->relations.items[i], &at, error);
    if (jobs->count > 1)
        qsort(jobs->items, jobs->count, sizeof *jobs->items, by_group);
    return status;
}

/* ---- By the data ---- */

/* A changed tensor: contents before and after, first pinned, then mapped. */
struct changed {
    struct lmcs_identity identity;
    struct lmcs_content sides[2];
    struct lmcs_bytes_at data[2];
    unsigned pinned;
};

struct search {
    struct lmcs_pool *pool;
    struct lmcs_txn *txn;
    struct lmcs_link_jobs *jobs;
    struct changed **items;
    size_t count, capacity;
    struct lmcs_search_array *arrays;
    struct lmcs_search_match *matches;
    size_t found;
    enum lmcs_status status;
    struct lmcs_error error;
};

/* Unmaps, unpins and frees the changed tensors. */
static void put_down(struct search *s)
{
    for (size_t i = 0; i < s->count; i++) {
        for (unsigned side = 0; side < 2; side++)
            lmcs_bytes_unmap(&s->items[i]->data[side]);
        for (unsigned side = 0; side < s->items[i]->pinned; side++)
            lmcs_payload_unpin(s->pool->lease, &s->items[i]->sides[side]);
        free(s->items[i]);
    }
    free(s->items);
    free(s->arrays);
    free(s->matches);
}

/* *suits: both contents are raw and sound, and nothing rests on the later one. */
static enum lmcs_status look_at(struct search *s, const uint64_t ids[2], struct changed *item, bool *suits,
                                struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    *suits = true;
    for (unsigned side = 0; status == LMCS_OK && *suits && side < 2; side++) {
        struct lmcs_content *content = &item->sides[side];
        bool lost = false;
        status = lmcs_content_find(s->txn, ids[side], content, suits, error);
        if (status == LMCS_OK && *suits)
            status = lmcs_lost_any(s->txn, content->id, &lost, error);
        *suits = *suits && !lost && content->df.payload == LMCS_PAYLOAD_RAW &&
                 content->df.raw_bytes == item->sides[0].df.raw_bytes &&
                 (side == 0 || (content->link == 0 && content->df.base_uses == 0));
    }
    return status;
}

/* Adds a changed tensor and pins its contents. */
static enum lmcs_status take_up(struct search *s, struct changed *item, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    if (!lmcs_grow(&s->items, &s->capacity, s->count, sizeof(struct changed *))) {
        free(item);
        return lmcs_fail_memory(error);
    }
    s->items[s->count++] = item;
    while (status == LMCS_OK && item->pinned < 2) {
        status = lmcs_payload_pin(s->pool->lease, &item->sides[item->pinned], error);
        item->pinned += status == LMCS_OK;
    }
    return status;
}

static enum lmcs_status consider(void *context, uint64_t identity, const struct lmcs_manifest_df *entry,
                                 uint64_t successor, struct lmcs_error *error)
{
    struct search *s = context;
    const uint64_t sides[2] = {entry->content, successor};
    uint64_t bytes;
    bool suits = false;
    if (successor == 0 || successor == entry->content)
        return LMCS_OK;
    struct changed *item = calloc(1, sizeof *item);
    if (item == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_identity_get(s->txn, identity, &item->identity, error);
    const struct lmcs_identity_df *df = &item->identity.df;
    if (status == LMCS_OK && df->kind == LMCS_TENSOR && df->dtype == LMC_F32 &&
        lmcs_shape_bytes(df->dtype, df->ndim, item->identity.shape, &bytes) &&
        bytes >= LMCS_SEARCH_LEAST_ELEMENTS * sizeof(float))
        status = look_at(s, sides, item, &suits, error);
    if (status == LMCS_OK && suits)
        return take_up(s, item, error);
    free(item);
    return status;
}

static void find(void *context)
{
    struct search *s = context;
    s->status = lmcs_optimizer_search(s->arrays, s->count, &s->matches, &s->found, &s->error);
}

static enum lmcs_status find_matches(struct search *s, struct lmcs_error *error)
{
    struct lmcs_guarded *ranges = calloc(2 * s->count, sizeof *ranges);
    s->arrays = calloc(s->count, sizeof *s->arrays);
    enum lmcs_status status = ranges == NULL || s->arrays == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < s->count; i++) {
        struct changed *item = s->items[i];
        for (unsigned side = 0; status == LMCS_OK && side < 2; side++) {
            status = lmcs_bytes_map(s->pool, &item->sides[side], &item->data[side], error);
            ranges[2 * i + side] = (struct lmcs_guarded){item->data[side].data, item->sides[side].df.raw_bytes};
        }
        s->arrays[i] = (struct lmcs_search_array){item->data[0].data, item->data[1].data,
                                                  item->sides[0].df.raw_bytes / sizeof(float)};
    }
    if (status == LMCS_OK && !lmcs_guard(ranges, 2 * s->count, find, s))
        s->found = 0; /* encoding the tensors reports the damaged one */
    else if (status == LMCS_OK && s->status != LMCS_OK) {
        *error = s->error;
        status = s->status;
    }
    free(ranges);
    return status;
}

static enum lmcs_status add_match(struct search *s, const struct lmcs_search_match *match, struct lmcs_error *error)
{
    const struct changed *first = s->items[match->arrays[0]];
    const struct lmcs_link_job *last = s->jobs->count > 0 ? &s->jobs->items[s->jobs->count - 1] : NULL;
    struct lmcs_link_job job = {.arrays = match->count,
                                .raw_bytes = first->sides[0].df.raw_bytes,
                                .identity = first->identity.id,
                                .has_rule = true,
                                .rule = match->rule};
    for (uint32_t k = 0; k < match->count; k++) {
        const struct changed *item = s->items[match->arrays[k]];
        if (!same_shape(&item->identity, &first->identity))
            return LMCS_OK;
        job.before[k] = item->sides[0].id;
        job.after[k] = item->sides[1].id;
    }
    if (last != NULL)
        job.group.newer = last->group.newer + (memcmp(&last->rule, &job.rule, sizeof job.rule) != 0);
    return add(s->jobs, &job, error);
}

static enum lmcs_status search_data(struct search *s, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    if (s->count < 2)
        return LMCS_OK;
    status = find_matches(s, error);
    for (size_t i = 0; status == LMCS_OK && i < s->found; i++)
        status = add_match(s, &s->matches[i], error);
    if (s->jobs->count == 0)
        s->jobs->why = LMCS_LINKS_NOT_FOUND;
    return status;
}

/* ---- Both ---- */

/* Loads the records of snapshot `number` and of the next one. *found false: one is missing. */
static enum lmcs_status find_pair(struct pair *pair, uint64_t shelf_id, uint64_t number, bool *found,
                                  struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    enum lmcs_status status = lmcs_shelf_load_if(pair->txn, shelf_id, &shelf, found, error);
    if (status == LMCS_OK && *found)
        status = lmcs_record_get(pair->txn, &shelf, number, &pair->older, found, error);
    if (status == LMCS_OK && *found)
        status = lmcs_record_neighbour(pair->txn, &shelf, &pair->older.df, true, &pair->newer, found, error);
    return status;
}

static enum lmcs_status collect(struct search *s, uint64_t shelf, uint64_t number, uint32_t bound, bool by_data,
                                struct lmcs_error *error)
{
    struct lmcs_link_jobs *jobs = s->jobs;
    struct pair pair = {.txn = s->txn};
    struct lmcs_relations relations;
    bool found, related = false;
    enum lmcs_status status = find_pair(&pair, shelf, number, &found, error);
    if (status != LMCS_OK || !found)
        return status;
    jobs->newer = pair.newer.df.number;
    status = lmcs_relations_load(s->txn, &pair.newer, &relations, &related, error);
    if (status != LMCS_OK)
        return status;
    if (related)
        jobs->relations = relations;
    if (bound == 0) {
        jobs->why = related ? LMCS_LINKS_OFF : LMCS_LINKS_UNKNOWN;
        return LMCS_OK;
    }
    if (related && !by_data)
        return collect_related(jobs, &pair, error);
    if (!lmcs_search_is_due(pair.older.df.links, jobs->newer)) {
        jobs->why = LMCS_LINKS_NOT_FOUND;
        return LMCS_OK;
    }
    return lmcs_manifest_own(s->txn, &pair.older.df, NULL, &pair.newer.df, false, consider, s, error);
}

enum lmcs_status lmcs_link_jobs_collect(struct lmcs_pool *pool, uint64_t shelf, uint64_t number, uint32_t bound,
                                        bool by_data, struct lmcs_link_jobs *jobs, struct lmcs_error *error)
{
    struct search s = {.pool = pool, .jobs = jobs};
    struct lmcs_txn txn;
    *jobs = (struct lmcs_link_jobs){.why = LMCS_LINKS_UNKNOWN};
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    s.txn = &txn;
    status = collect(&s, shelf, number, bound, by_data, error);
    lmcs_txn_end(&txn);
    if (status == LMCS_OK)
        status = search_data(&s, error);
    put_down(&s);
    return status;
}

void lmcs_link_jobs_free(struct lmcs_link_jobs *jobs)
{
    lmcs_relations_free(&jobs->relations);
    lmcs_relations_free(&jobs->older);
    free(jobs->items);
}
