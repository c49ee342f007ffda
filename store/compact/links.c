/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * compact/links.c - makes the links from one snapshot to the next, by the rules of store/LINKS.md.
 *
 * The transaction that enters a link checks them again. Raw bytes may have rotted: so the arrays before the step must
 * match their hashes, and the link must yield the digests of the arrays after it.
 */
#include "compact/links.h"

#include <stdlib.h>
#include <string.h>

#include "compact/link_jobs.h"
#include "compact/replace.h"
#include "links/line.h"
#include "links/step.h"
#include "pages/tree.h"
#include "payload/encode.h"
#include "payload/scan.h"
#include "records/safety.h"
#include "records/shelf.h"

#define BATCH_LINKS 32u
#define BATCH_BYTES ((uint64_t)64 << 20)

struct making {
    struct linking *linking;
    const struct lmcs_link_job *job;
    struct lmcs_content before[LMC_MAX_BASES], after[LMC_MAX_BASES];
    struct lmcs_bytes_at data[2 * LMC_MAX_BASES];
    size_t pinned;
    struct lmcs_identity identity;
    struct lmcs_step step;
    struct lmcs_content made;
};

struct linking {
    struct lmcs_links_turn *turn;
    struct lmcs_link_jobs jobs;
    bool sceptical; /* set `doubtful` where relations explain too little */
    bool doubtful;
    enum lmcs_links note;
    struct lmcs_region region;
    struct making *batch[BATCH_LINKS];
    size_t batch_count;
    uint64_t batch_bytes;
};

/* Records why no link was made; ignored once one was made. */
static void note(struct linking *l, enum lmcs_links why)
{
    if (l->note != LMCS_LINKS_MADE)
        l->note = why;
}

/* ---- Whether a link may be ---- */

/* Checks whether the arrays of a job may be linked: raw on both sides, nothing rests on those after the step, and the
 * line is not too long. *verdict: LMCS_LINKS_MADE, or why not. */
static enum lmcs_status may_link(struct lmcs_txn *txn, const struct lmcs_link_job *job, uint32_t bound,
                                 struct lmcs_content *before, struct lmcs_content *after, struct lmcs_line_end *end,
                                 enum lmcs_links *verdict, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    bool found = true, lost = false;
    *verdict = LMCS_LINKS_NOT_RAW;
    for (uint32_t i = 0; status == LMCS_OK && found && !lost && i < 2 * job->arrays; i++) {
        uint32_t k = i / 2;
        struct lmcs_content *content = i % 2 == 0 ? &before[k] : &after[k];
        status = lmcs_content_find(txn, i % 2 == 0 ? job->before[k] : job->after[k], content, &found, error);
        if (status == LMCS_OK && found && i % 2 != 0)
            status = lmcs_lost_any(txn, content->id, &lost, error);
        found = found && status == LMCS_OK && content->df.payload == LMCS_PAYLOAD_RAW &&
                content->df.raw_bytes == job->raw_bytes;
        if (found && i % 2 != 0)
            found = content->link == 0 && content->df.base_uses == 0;
    }
    if (status != LMCS_OK || !found || lost)
        return status;
    status = lmcs_line_find(txn, before, job->arrays, end, verdict, error);
    if (status == LMCS_OK && *verdict == LMCS_LINKS_MADE && end->place > bound)
        *verdict = LMCS_LINKS_FIRST;
    return status;
}

/* ---- Making one ---- */

/* Unmaps, unpins and frees the arrays of a job. */
static void put_down(struct linking *l, struct making *m)
{
    if (m == NULL)
        return;
    for (size_t i = 0; i < m->pinned; i++) {
        lmcs_bytes_unmap(&m->data[i]);
        lmcs_payload_unpin(l->turn->pool->lease, i % 2 == 0 ? &m->before[i / 2] : &m->after[i / 2]);
    }
    free(m);
}

/* Pins and maps the arrays of a job. *possible false: they may not be linked. */
static enum lmcs_status take_up(struct linking *l, struct making *m, bool *possible, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_links verdict;
    struct lmcs_line_end end;
    *possible = false;
    enum lmcs_status status = lmcs_txn_read(l->turn->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = may_link(&txn, m->job, l->turn->bound, m->before, m->after, &end, &verdict, error);
    if (status == LMCS_OK && verdict == LMCS_LINKS_MADE)
        status = lmcs_identity_get(&txn, m->job->identity, &m->identity, error);
    *possible = status == LMCS_OK && verdict == LMCS_LINKS_MADE;
    while (*possible && status == LMCS_OK && m->pinned < 2 * m->job->arrays) {
        size_t i = m->pinned;
        status = lmcs_payload_pin(l->turn->pool->lease, i % 2 == 0 ? &m->before[i / 2] : &m->after[i / 2], error);
        m->pinned += status == LMCS_OK;
    }
    lmcs_txn_end(&txn);
    for (size_t i = 0; *possible && status == LMCS_OK && i < m->pinned; i++)
        status = lmcs_bytes_map(l->turn->pool, i % 2 == 0 ? &m->before[i / 2] : &m->after[i / 2], &m->data[i], error);
    if (status == LMCS_OK && !*possible)
        note(l, verdict);
    return status;
}

/* Encodes the link of a job by a rule. */
static enum lmcs_status encode(void *context, const struct lmc_link_rule *rule, bool *worthwhile,
                               struct lmcs_error *error)
{
    struct making *m = context;
    struct linking *l = m->linking;
    struct lmc_link_params params = {.rule = *rule, .raw_bytes = m->job->raw_bytes};
    struct lmcs_encoding encoding = {.pool = l->turn->pool,
                                     .region = &l->region,
                                     .serial = l->turn->serial,
                                     .raw_bytes = m->job->raw_bytes,
                                     .link = &params,
                                     .before = m->before,
                                     .after = m->after,
                                     .most_bytes = lmcs_step_most_bytes(&m->step)};
    encoding.made.df = (struct lmcs_content_df){.raw_bytes = m->job->raw_bytes,
                                                .identity = m->job->identity,
                                                .payload = LMCS_PAYLOAD_LINK,
                                                .base_count = (uint8_t)m->job->arrays};
    for (uint32_t i = 0; i < m->job->arrays; i++) {
        params.before[i] = m->step.before[i];
        params.after[i] = m->step.after[i];
        params.before_digest[i] = (struct lmc_hash){m->before[i].df.digest_low, m->before[i].df.digest_high};
        encoding.made.bases[i] = m->before[i].id;
    }
    encoding.tensor = lmcs_identity_tensor(&m->identity);
    enum lmcs_status status = lmcs_encoding_run(&encoding, error);
    m->made = encoding.made;
    *worthwhile = encoding.worthwhile;
    return status;
}

static enum lmcs_status make(struct linking *l, struct making *m, struct lmcs_step_rule *rule, bool *worthwhile,
                             struct lmcs_error *error)
{
    const struct lmcs_link_job *job = m->job;
    enum lmcs_links verdict;
    m->step = (struct lmcs_step){.arrays = job->arrays,
                                 .raw_bytes = job->raw_bytes,
                                 .has_rule = job->has_rule,
                                 .pool_path = l->turn->pool->path,
                                 .name = m->identity.name};
    for (uint32_t i = 0; i < job->arrays; i++) {
        m->step.before[i] = m->data[2 * i].data;
        m->step.after[i] = m->data[2 * i + 1].data;
    }
    if (!job->has_rule)
        lmcs_relate_hints(&l->jobs.older, &l->jobs.relations, &job->group, &m->step);
    enum lmcs_status status =
        lmcs_step_link(&m->step, rule, l->sceptical, &l->doubtful, encode, m, worthwhile, &verdict, error);
    if (status == LMCS_OK && !*worthwhile)
        note(l, verdict);
    return status;
}

/* Reports every array of the job as a suspect. */
static enum lmcs_status report_damaged(struct linking *l, const struct making *m, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; (status == LMCS_OK || lmcs_is_unusable(status)) && i < m->pinned; i++) {
        const struct lmcs_content *content = i % 2 == 0 ? &m->before[i / 2] : &m->after[i / 2];
        const struct lmcs_bytes bytes = lmcs_bytes_of_pool(l->turn->pool->media, content);
        struct lmcs_scan scan = {.blocks = 0};
        status =
            lmcs_scan(&bytes, content, &m->identity, l->turn->serial ? NULL : l->turn->pool->workers, &scan, error);
        if (status == LMCS_OK && !lmcs_scan_is_clean(&scan))
            l->turn->suspect(l->turn->context, content->id);
        lmcs_scan_free(&scan);
    }
    return lmcs_is_unusable(status) ? LMCS_OK : status;
}

/* ---- Entering them ---- */

/* Enters a link, if all its arrays are still stored as they were read. */
static enum lmcs_status enter(struct linking *l, struct lmcs_txn *txn, struct making *m, struct lmcs_error *error)
{
    struct lmcs_content before[LMC_MAX_BASES], after[LMC_MAX_BASES];
    enum lmcs_links verdict;
    struct lmcs_line_end end;
    bool same = true;
    enum lmcs_status status = may_link(txn, m->job, l->turn->bound, before, after, &end, &verdict, error);
    if (status != LMCS_OK || verdict != LMCS_LINKS_MADE)
        return status;
    for (uint32_t i = 0; i < m->job->arrays; i++)
        same = same && lmcs_same_payload(&before[i], &m->before[i]) && lmcs_same_payload(&after[i], &m->after[i]);
    if (same && end.breaks)
        status = lmcs_line_break(txn, before, m->job->arrays, error);
    if (status != LMCS_OK || !same)
        return status;
    m->made.df.place = end.place;
    status = lmcs_content_add(txn, &m->made, error);
    for (uint32_t i = 0; status == LMCS_OK && i < m->job->arrays; i++)
        status = lmcs_content_set_link(txn, after[i].id, m->made.id, (uint8_t)i, error);
    if (status == LMCS_OK) {
        l->note = LMCS_LINKS_MADE;
        l->turn->made++;
    }
    return status;
}

static enum lmcs_status commit_batch(struct linking *l, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_heap_sync(l->turn->pool->heap, error);
    if (status == LMCS_OK)
        status = lmcs_txn_write(l->turn->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; status == LMCS_OK && i < l->batch_count; i++)
        status = enter(l, &txn, l->batch[i], error);
    if (status == LMCS_OK)
        status = lmcs_region_commit(&txn, &l->region, error);
    return lmcs_txn_finish(&txn, status, error);
}

/* A batch ended by LMCS_FULL or LMCS_CANCELLED is committed too: its links are written and verified. */
static enum lmcs_status end_batch(struct linking *l, enum lmcs_status status, struct lmcs_error *error)
{
    struct lmcs_error ignored;
    if (l->batch_count > 0 && status == LMCS_OK)
        status = commit_batch(l, error);
    else if (l->batch_count > 0 && (status == LMCS_FULL || status == LMCS_CANCELLED))
        (void)commit_batch(l, &ignored);
    for (size_t i = 0; i < l->batch_count; i++)
        put_down(l, l->batch[i]);
    l->batch_count = 0;
    l->batch_bytes = 0;
    lmcs_region_end(&l->region);
    return status;
}

static enum lmcs_status do_job(struct linking *l, const struct lmcs_link_job *job, struct lmcs_step_rule *rule,
                               struct lmcs_error *error)
{
    bool possible, worthwhile = false;
    struct making *m = calloc(1, sizeof *m);
    if (m == NULL)
        return lmcs_fail_memory(error);
    m->linking = l;
    m->job = job;
    enum lmcs_status status = take_up(l, m, &possible, error);
    if (status == LMCS_OK && possible)
        status = make(l, m, rule, &worthwhile, error);
    if (status == LMCS_OK && possible && !l->turn->go_on(l->turn->context, job->raw_bytes * job->arrays))
        status =
            lmcs_fail(error, LMCS_CANCELLED, 0, "%s: compaction was stopped; finished work stays", l->turn->pool->path);
    if (status == LMCS_OK && worthwhile) {
        l->batch[l->batch_count++] = m;
        l->batch_bytes += job->raw_bytes * job->arrays;
        return LMCS_OK;
    }
    if (status == LMCS_DAMAGED) {
        note(l, LMCS_LINKS_NOT_RAW);
        status = report_damaged(l, m, error);
    }
    put_down(l, m);
    return status;
}

static enum lmcs_status do_jobs(struct linking *l, struct lmcs_error *error)
{
    const struct lmcs_link_job *jobs = l->jobs.items;
    struct lmcs_step_rule rule;
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < l->jobs.count;) {
        lmcs_region_init(&l->region, l->turn->pool, 1);
        for (; status == LMCS_OK && i < l->jobs.count && l->batch_count < BATCH_LINKS && l->batch_bytes < BATCH_BYTES;
             i++) {
            if (i == 0 || !lmcs_relate_same(&jobs[i].group, &jobs[i - 1].group))
                rule = (struct lmcs_step_rule){.rule = jobs[i].rule, .known = jobs[i].has_rule};
            status = do_job(l, &jobs[i], &rule, error);
        }
        status = end_batch(l, status, error);
    }
    return status;
}

/* Records at the newer snapshot whether links were made, or why not. */
static enum lmcs_status save_note(struct linking *l, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found = false;
    enum lmcs_status status = lmcs_txn_write(l->turn->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_load_if(&txn, l->turn->shelf, &shelf, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_record_get(&txn, &shelf, l->jobs.newer, &record, &found, error);
    found = found && record.df.links != (uint32_t)l->note && record.df.links != LMCS_LINKS_MADE;
    if (status == LMCS_OK && found) {
        record.df.links = l->note;
        status = lmcs_record_put(&txn, &shelf, &record, error);
    }
    if (status == LMCS_OK && found)
        status = lmcs_shelf_save(&txn, &shelf, error);
    if (status == LMCS_OK && found)
        return lmcs_txn_commit(&txn, error);
    lmcs_txn_end(&txn);
    return status;
}

/* Replaces the arrays of related jobs by those found from the data with the same first array; constants stay. */
static void put_right(struct lmcs_link_jobs *related, const struct lmcs_link_jobs *found)
{
    for (size_t f = 0; f < found->count; f++) {
        const struct lmcs_link_job *one = &found->items[f];
        for (size_t i = 0; i < related->count; i++) {
            struct lmcs_link_job *other = &related->items[i];
            if (other->after[0] == one->after[0] && other->arrays == one->arrays) {
                memcpy(other->before, one->before, sizeof one->before);
                memcpy(other->after, one->after, sizeof one->after);
                break;
            }
        }
    }
}

/* Searches the data for parameters that relations do not explain: they may name another tensor, such as an average.
 * Jobs not found are linked as related if that pays, for their moments. */
static enum lmcs_status try_again(struct linking *l, struct lmcs_error *error)
{
    struct lmcs_links_turn *turn = l->turn;
    struct linking by_data = {.turn = turn};
    enum lmcs_status status =
        lmcs_link_jobs_collect(turn->pool, turn->shelf, turn->number, turn->bound, true, &by_data.jobs, error);
    if (status == LMCS_OK && by_data.jobs.count > 0) {
        put_right(&l->jobs, &by_data.jobs);
        status = do_jobs(l, error);
        by_data.note = l->note;
        if (status == LMCS_OK)
            status = do_jobs(&by_data, error);
        l->note = by_data.note;
    }
    lmcs_link_jobs_free(&by_data.jobs);
    l->sceptical = false;
    if (status == LMCS_OK && l->doubtful)
        status = do_jobs(l, error);
    return status;
}

static bool is_unexplained(const struct linking *l)
{
    return l->jobs.relations.count > 0 && (l->doubtful || l->note == LMCS_LINKS_UNEXPLAINED ||
                                           l->note == LMCS_LINKS_LARGE || l->note == LMCS_LINKS_UNFIT);
}

enum lmcs_status lmcs_links_make(struct lmcs_links_turn *turn, struct lmcs_error *error)
{
    struct linking l = {.turn = turn, .sceptical = true};
    turn->made = 0;
    enum lmcs_status status =
        lmcs_link_jobs_collect(turn->pool, turn->shelf, turn->number, turn->bound, false, &l.jobs, error);
    l.note = l.jobs.why;
    if (lmcs_is_unusable(status)) /* unreadable relations must not stop the rest */
        status = LMCS_OK;
    else if (status == LMCS_OK)
        status = do_jobs(&l, error);
    if (status == LMCS_OK && is_unexplained(&l))
        status = try_again(&l, error);
    if (status == LMCS_FULL) /* encoding frees space */
        status = LMCS_OK;
    if (status == LMCS_OK && l.jobs.newer != 0 && l.note != LMCS_LINKS_UNKNOWN)
        status = save_note(&l, error);
    lmcs_link_jobs_free(&l.jobs);
    return status;
}
