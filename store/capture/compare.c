/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/compare.c - finds the tensors that have not changed since the base snapshot.
 *
 * Unreadable bytes equal nothing, so the tensor is written again. Contents with lost blocks are not compared: their
 * checksums may be the damage.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/guard.h"
#include "capture/stages.h"
#include "pages/tree.h"
#include "payload/read.h"

#define SMALL_AT_ONCE 64 /* sources below LMCS_ALIGNED_BYTES compared in one job */

/* *lost: something of the content, or of one that it rests on, is recorded as lost. */
static enum lmcs_status is_lost(struct lmcs_txn *txn, const struct lmcs_content *content, bool *lost,
                                struct lmcs_error *error)
{
    struct lmcs_chain chain;
    *lost = false;
    if (txn->root.lost_contents == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_chain_load(txn, content->id, &chain, error);
    if (status == LMCS_OK)
        return lmcs_chain_lost(txn, &chain, lost, error);
    *lost = true;
    return lmcs_is_unusable(status) ? LMCS_OK : status;
}

enum lmcs_status lmcs_previous_find(struct lmcs_txn *txn, const struct lmcs_root_tree_df *manifest,
                                    const struct lmcs_source *sources, size_t count, struct lmcs_previous *previous,
                                    struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        struct lmcs_previous *at = &previous[i];
        struct lmcs_manifest_df entry;
        bool found = false;
        at->is_lost = false;
        status = lmcs_identity_find(txn, sources[i].tensor, &at->identity, error);
        if (status == LMCS_OK && at->identity != 0)
            status = lmcs_tree_get(txn, LMCS_TREE_MANIFEST, manifest, (struct lmcs_key_df){at->identity, 0}, &entry,
                                   sizeof entry, sizeof entry, NULL, &found, error);
        if (!found) {
            at->identity = 0; /* no snapshot of this shelf keeps the identity: it may be freed */
            continue;
        }
        status = lmcs_content_get(txn, entry.content, &at->content, error);
        if (status == LMCS_OK)
            status = is_lost(txn, &at->content, &at->is_lost, error);
    }
    return status;
}

struct comparing {
    struct lmcs_jobs jobs;
    const struct lmcs_source *sources;
    const struct lmcs_previous *previous;
    atomic_bool *differs;
};

static bool block_equals(const struct comparing *comparing, size_t i, uint64_t block)
{
    _Alignas(64) unsigned char piece[LMCS_PIECE_BYTES];
    const struct lmcs_source *source = &comparing->sources[i];
    uint64_t at = block * LMC_BLOCK_BYTES, bytes = lmcs_source_block_bytes(source, block);
    for (uint64_t done = 0; done < bytes; done += LMCS_PIECE_BYTES) {
        size_t n = bytes - done < LMCS_PIECE_BYTES ? (size_t)(bytes - done) : LMCS_PIECE_BYTES;
        const void *now = (const char *)source->data + at + done;
        const struct lmcs_previous *previous = &comparing->previous[i];
        const void *stored = previous->memory != NULL
                                 ? (const char *)previous->memory + at + done
                                 : lmcs_payload_at(comparing->jobs.pool->media, &previous->content, at + done, n);
        if (source->strides != NULL) {
            if (!lmcs_source_read_guarded(source, at + done, n, piece)) /* copying reports unreadable memory */
                return false;
            now = piece;
        }
        if (stored == NULL || !lmcs_guard_equal(stored, now, n, 2))
            return false;
    }
    return true;
}

static enum lmcs_status compare_job(void *context, uint64_t i, struct lmcs_error *error)
{
    (void)error;
    const struct comparing *comparing = context;
    const struct lmcs_job *job = &comparing->jobs.items[i];
    for (size_t s = job->first; s < job->first + (job->count == 0 ? 1 : job->count); s++)
        if (!atomic_load_explicit(&comparing->differs[s], memory_order_relaxed) &&
            !block_equals(comparing, s, job->block))
            atomic_store_explicit(&comparing->differs[s], true, memory_order_relaxed);
    return LMCS_OK;
}

/* Plans jobs for the first blocks, several small ones in a job; then for the other blocks of sources still equal. */
static bool plan_compare(struct comparing *comparing, size_t count, bool first_blocks)
{
    struct lmcs_jobs *jobs = &comparing->jobs;
    jobs->count = 0;
    for (size_t i = 0; i < count; i++) {
        const struct lmcs_source *source = &comparing->sources[i];
        uint64_t blocks = lmc_block_count(source->raw_bytes);
        if (atomic_load_explicit(&comparing->differs[i], memory_order_relaxed))
            continue;
        if (!first_blocks) {
            for (uint64_t block = 1; block < blocks; block++)
                if (!lmcs_jobs_add(jobs, (struct lmcs_job){i, 0, block}))
                    return false;
            continue;
        }
        struct lmcs_job *last = jobs->count > 0 ? &jobs->items[jobs->count - 1] : NULL;
        if (last != NULL && last->first + last->count == i && last->count < SMALL_AT_ONCE &&
            source->raw_bytes < LMCS_ALIGNED_BYTES)
            last->count++;
        else if (!lmcs_jobs_add(jobs, (struct lmcs_job){i, 1, 0}))
            return false;
    }
    return true;
}

enum lmcs_status lmcs_compare_sources(struct lmcs_pool *pool, struct lmcs_workers *workers,
                                      const struct lmcs_source *sources, const struct lmcs_previous *previous,
                                      size_t count, bool *equal, struct lmcs_error *error)
{
    struct comparing comparing = {.jobs = {.pool = pool, .workers = workers}, .sources = sources, .previous = previous};
    comparing.differs = calloc(count + 1, sizeof *comparing.differs);
    enum lmcs_status status = comparing.differs == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        const struct lmcs_previous *at = &previous[i];
        bool comparable = at->identity != 0 && !at->is_lost && at->content.df.raw_bytes == sources[i].raw_bytes &&
                          (at->memory != NULL || at->content.df.payload == LMCS_PAYLOAD_RAW);
        atomic_init(&comparing.differs[i], !comparable);
    }
    for (int pass = 0; status == LMCS_OK && pass < 2; pass++) {
        if (!plan_compare(&comparing, count, pass == 0))
            status = lmcs_fail_memory(error);
        else if (comparing.jobs.count > 0)
            status = lmcs_jobs_run(&comparing.jobs, compare_job, NULL, &comparing, error);
    }
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        equal[i] = !atomic_load(&comparing.differs[i]);
    free(comparing.differs);
    free(comparing.jobs.items);
    return status;
}
