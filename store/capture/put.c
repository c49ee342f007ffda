/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/put.c - begins a capture and puts tensors into it.
 *
 * A put compares in batches, which bounds the memory of look-ups, then copies all differing tensors at once. A failed
 * put breaks the capture: it can only be aborted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/names.h"
#include "capture/capture.h"
#include "capture/memory.h"
#include "capture/state.h"
#include "records/shelf.h"

#define COMPARE_BATCH 512

/* ---- Begin and end ---- */

/* Finds the newest snapshot, prepared ones included, as the base. *again: it may have been dropped meanwhile. */
static enum lmcs_status try_to_find_base(struct lmcs_capture *capture, const char *name, bool *again,
                                         struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    uint64_t base = 0;
    bool found;
    const uint64_t drops = lmcs_base_drops(capture->pool, capture->busy, &capture->ticket);
    pthread_mutex_lock(&capture->pool->captures);
    const bool behind = capture->busy->tickets != &capture->ticket;
    pthread_mutex_unlock(&capture->pool->captures);
    capture->makes_links = false;
    enum lmcs_status status = lmcs_txn_read(capture->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_shelf_find(&txn, name, &shelf, &found, error);
    if (status == LMCS_OK && found)
        status = lmcs_record_before(&txn, &shelf, UINT64_MAX, &base, error);
    if (status == LMCS_OK && base != 0)
        status = lmcs_record_get(&txn, &shelf, base, &record, &found, error);
    if (status == LMCS_OK && found) /* its policy */
        status = lmcs_capture_choose(capture, &txn, &shelf, base != 0 ? &record : NULL, error);
    lmcs_txn_end(&txn);
    capture->began_behind = behind;
    if (status != LMCS_OK)
        return status;
    /* pruning keeps it, and has not begun while this thread holds the shelf */
    *again = !lmcs_base_take(capture->pool, capture->busy, &capture->ticket, base, drops);
    if (base != 0)
        capture->base = (struct lmcs_root_tree_df){.ref = record.df.manifest, .count = record.df.entry_count};
    return LMCS_OK;
}

static enum lmcs_status find_base_snapshot(struct lmcs_capture *capture, const char *name, struct lmcs_error *error)
{
    enum lmcs_status status;
    bool again = false;
    do
        status = try_to_find_base(capture, name, &again, error);
    while (status == LMCS_OK && again);
    return status;
}

/* Gives up the capture's place in the order, and the shelf. */
static void give(struct lmcs_capture *capture)
{
    pthread_mutex_lock(&capture->pool->captures);
    lmcs_ticket_end(capture->busy, &capture->ticket);
    pthread_mutex_unlock(&capture->pool->captures);
    lmcs_shelf_give(capture->pool, capture->busy);
}

enum lmcs_status lmcs_capture_begin(struct lmcs_pool *pool, const char *shelf, struct lmcs_capture **capture,
                                    struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(pool, true, error);
    if (status == LMCS_OK)
        status = lmcs_shelf_check_name(shelf, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_capture *c = calloc(1, sizeof *c);
    if (c == NULL || (c->to_report = calloc(1, sizeof *c->to_report)) == NULL) {
        free(c);
        return lmcs_fail_memory(error);
    }
    c->pool = pool;
    c->workers = pool->workers;
    lmcs_region_init(&c->region, pool, 0);
    status = lmcs_shelf_take_for(pool, shelf, &c->ticket, &c->busy, error);
    if (status == LMCS_OK) {
        status = find_base_snapshot(c, shelf, error);
        if (status == LMCS_OK && c->makes_links) { /* links lead from the newest snapshot */
            const bool waited = lmcs_ticket_wait(pool, c->busy, &c->ticket);
            if (waited || c->began_behind)
                status = find_base_snapshot(c, shelf, error);
        }
        if (status != LMCS_OK)
            give(c);
    }
    if (status != LMCS_OK) {
        lmcs_capture_free(c);
        return status;
    }
    *capture = c;
    return LMCS_OK;
}

void lmcs_capture_free(struct lmcs_capture *capture)
{
    lmcs_entries_free(&capture->entries);
    lmcs_relations_free(&capture->relations);
    free(capture->meta);
    for (size_t i = 0; i < capture->options.tag_count && capture->tags != NULL; i++)
        free(capture->tags[i]);
    free(capture->tags);
    free(capture->to_report);
    free(capture->links);
    free(capture);
}

void lmcs_capture_abort(struct lmcs_capture *capture)
{
    if (capture == NULL)
        return;
    if (lmcs_pool_check(capture->pool, true, NULL) == LMCS_OK) {
        lmcs_capture_keep_memory(capture, false);
        lmcs_region_end(&capture->region);
        give(capture);
    }
    lmcs_capture_free(capture);
}

void lmcs_capture_stats(const struct lmcs_capture *capture, uint64_t *written_bytes, uint64_t *shared_bytes)
{
    *written_bytes = capture->written_bytes + (capture->has_encoded ? 0 : capture->memory_bytes);
    *shared_bytes = capture->shared_bytes;
}

enum lmcs_status lmcs_capture_check(const struct lmcs_capture *capture, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_pool_check(capture->pool, true, error);
    if (status == LMCS_OK && capture->state != LMCS_CAPTURE_OPEN)
        return lmcs_fail(error, LMCS_INVALID, 0, "the capture has failed or was committed: it can only be ended");
    return status;
}

enum lmcs_status lmcs_capture_place(struct lmcs_capture *capture, struct lmcs_pool **pool, const char **shelf,
                                    struct lmcs_error *error)
{
    *pool = capture->pool;
    *shelf = capture->busy->name;
    return lmcs_capture_check(capture, error);
}

void lmcs_capture_waits(struct lmcs_capture *capture, bool waits)
{
    pthread_mutex_lock(&capture->pool->captures);
    capture->busy->waits = waits;
    pthread_cond_broadcast(&capture->pool->captures_changed);
    pthread_mutex_unlock(&capture->pool->captures);
}

/* ---- A put: describe, compare, copy ---- */

struct put {
    struct lmcs_capture *capture;
    struct lmcs_captured **entries; /* of this put, one per source */
    struct lmcs_source *sources;
    size_t count;
};

static enum lmcs_status add_entry(struct lmcs_capture *capture, const struct lmcs_tensor *tensor,
                                  struct lmcs_captured **added, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_entries_add(&capture->entries, tensor, added, error);
    if (status == LMCS_OK)
        capture->raw_bytes += (*added)->raw_bytes;
    return status;
}

/* Adds the entries of a put and describes their memory. */
static enum lmcs_status describe(struct put *put, const struct lmcs_tensor *tensors, const void *const *data,
                                 struct lmcs_error *error)
{
    size_t first = put->capture->entries.count;
    for (size_t i = 0; i < put->count; i++) {
        struct lmcs_captured *entry;
        enum lmcs_status status = add_entry(put->capture, &tensors[i], &entry, error);
        if (status != LMCS_OK)
            return status;
        if (data[i] == NULL && entry->raw_bytes > 0)
            return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\": no data", tensors[i].name);
        bool plain = entry->raw_bytes == 0 || lmcs_strides_are_plain(&tensors[i], tensors[i].strides);
        put->sources[i] = (struct lmcs_source){.tensor = &entry->tensor,
                                               .data = data[i],
                                               .strides = plain ? NULL : tensors[i].strides,
                                               .raw_bytes = entry->raw_bytes};
    }
    put->entries = &put->capture->entries.items[first];
    return LMCS_OK;
}

/* Compares a batch. The caller leases the epoch of the look-up. */
static enum lmcs_status settle(struct put *put, size_t first, size_t count, const struct lmcs_previous *previous,
                               struct lmcs_error *error)
{
    bool equal[COMPARE_BATCH];
    enum lmcs_status status = lmcs_compare_sources(put->capture->pool, put->capture->workers, &put->sources[first],
                                                   previous, count, equal, error);
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        struct lmcs_captured *entry = put->entries[first + i];
        entry->differs = !equal[i];
        if (equal[i])
            entry->shared = entry->previous;
    }
    return status;
}

static enum lmcs_status compare_batch(struct put *put, size_t first, size_t count, struct lmcs_previous *previous,
                                      struct lmcs_error *error)
{
    struct lmcs_pool *pool = put->capture->pool;
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    uint64_t epoch = txn.root.epoch;
    status = lmcs_previous_find(&txn, &put->capture->base, &put->sources[first], count, previous, error);
    enum lmcs_status leased = status == LMCS_OK ? lmcs_lease_epoch(pool->lease, epoch, error) : LMCS_INVALID;
    lmcs_txn_end(&txn);
    if (status != LMCS_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        struct lmcs_captured *entry = put->entries[first + i];
        const struct lmcs_content *content = &previous[i].content;
        entry->identity = previous[i].identity;
        entry->previous = previous[i].identity != 0 ? content->id : 0;
        entry->may_share = entry->previous != 0 && !previous[i].is_lost && content->df.raw_bytes == entry->raw_bytes;
        entry->previous_digest = (struct lmc_hash){content->df.digest_low, content->df.digest_high};
        if (put->capture->makes_links) /* else a raw capture in flight may drop the memory state */
            previous[i].memory = lmcs_memory_find(put->capture->busy, entry->previous, entry->raw_bytes);
    }
    if (leased == LMCS_IN_USE) /* another program holds a lock: copy all, so that it does not stop the capture */
        return LMCS_OK;
    if (leased != LMCS_OK)
        return leased;
    status = settle(put, first, count, previous, error);
    lmcs_lease_epoch_end(pool->lease, epoch);
    return status;
}

static enum lmcs_status compare(struct put *put, struct lmcs_error *error)
{
    struct lmcs_capture *capture = put->capture;
    size_t batch = put->count < COMPARE_BATCH ? put->count : COMPARE_BATCH;
    if (capture->ticket.base == 0)
        return LMCS_OK;
    struct lmcs_previous *previous = calloc(batch, sizeof *previous);
    enum lmcs_status status = previous == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < put->count; i += batch)
        status = compare_batch(put, i, put->count - i < batch ? put->count - i : batch, previous, error);
    free(previous);
    return status;
}

static void explain_full(struct lmcs_capture *capture, struct lmcs_error *error)
{
    lmcs_capture_explain_full(capture, error);
    lmcs_pool_explain_full(capture->pool, capture->busy->name, error);
}

static enum lmcs_status copy_all(struct lmcs_capture *capture, const struct lmcs_copy *copies, size_t count,
                                 struct lmcs_error *error)
{
    struct lmcs_error first;
    enum lmcs_status status =
        lmcs_copy_sources(capture->pool, capture->workers, &capture->region, copies, count, &first);
    if (status == LMCS_FULL && capture->written_bytes == 0) {
        lmcs_region_end(&capture->region); /* lets the compactor use the region's room */
        lmcs_region_init(&capture->region, capture->pool, 0);
    }
    if (status == LMCS_FULL && lmcs_capture_make_room(capture))
        status = lmcs_copy_sources(capture->pool, capture->workers, &capture->region, copies, count, &first);
    if (status == LMCS_FULL)
        explain_full(capture, &first);
    if (status != LMCS_OK && error != NULL)
        *error = first;
    return status;
}

/* Takes memory for a tensor that the commit may encode. False: it is to be copied to the pool. */
static bool take_memory(struct lmcs_capture *capture, struct lmcs_captured *entry)
{
    if (!capture->makes_links || entry->tensor.kind != LMCS_TENSOR || entry->raw_bytes < LMCS_DELTA_LEAST_BYTES)
        return false;
    entry->memory = lmcs_memory_take(capture->pool, capture->busy, entry->raw_bytes);
    return entry->memory != NULL;
}

/* Counts a copied tensor. One that equals a content of the base which is not raw shares it. */
static void count_copied(struct lmcs_capture *capture, struct lmcs_captured *entry)
{
    const struct lmcs_content_df *df = &entry->content.df;
    const bool is_equal = entry->memory != NULL && entry->may_share && df->digest_low == entry->previous_digest.low &&
                          df->digest_high == entry->previous_digest.high;
    if (is_equal) {
        entry->shared = entry->previous;
        capture->shared_bytes += entry->raw_bytes;
        return;
    }
    *(entry->memory != NULL ? &capture->memory_bytes : &capture->written_bytes) += entry->raw_bytes;
    capture->new_bytes += entry->raw_bytes;
}

static struct lmcs_content content_of_lent(const struct lmcs_captured *entry)
{
    return (struct lmcs_content){.df = {.raw_bytes = entry->raw_bytes, .payload = LMCS_PAYLOAD_RAW}};
}

/* Keeps the caller's bytes, from which the commit may encode a link: those before the step are in memory. */
static bool borrow(struct lmcs_capture *capture, struct lmcs_captured *entry, const struct lmcs_source *source)
{
    if (!capture->lends || !capture->makes_links || !entry->differs || !entry->may_share ||
        entry->tensor.kind != LMCS_TENSOR || entry->tensor.dtype != LMC_F32 || source->strides != NULL ||
        (uintptr_t)source->data % sizeof(float) != 0 || entry->raw_bytes < LMCS_DELTA_LEAST_BYTES ||
        lmcs_memory_find(capture->busy, entry->previous, entry->raw_bytes) == NULL)
        return false;
    entry->lent = source->data;
    entry->content = content_of_lent(entry);
    capture->memory_bytes += entry->raw_bytes;
    capture->new_bytes += entry->raw_bytes;
    return true;
}

static enum lmcs_status copy_changed(struct put *put, struct lmcs_error *error)
{
    struct lmcs_capture *capture = put->capture;
    uint64_t began = lmcs_steady_ns();
    size_t count = 0;
    struct lmcs_copy *copies = malloc(put->count * sizeof *copies);
    if (copies == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < put->count; i++) {
        struct lmcs_captured *entry = put->entries[i];
        if (entry->shared != 0) {
            capture->shared_bytes += entry->raw_bytes;
            continue;
        }
        if (borrow(capture, entry, &put->sources[i]))
            continue;
        take_memory(capture, entry);
        copies[count++] = (struct lmcs_copy){&put->sources[i], &entry->content, entry->memory, &entry->hashes};
    }
    enum lmcs_status status = copy_all(capture, copies, count, error);
    free(copies);
    for (size_t i = 0; status == LMCS_OK && i < put->count; i++)
        if (put->entries[i]->shared == 0 && put->entries[i]->lent == NULL)
            count_copied(capture, put->entries[i]);
    capture->spent_ns += lmcs_steady_ns() - began;
    return status;
}

void lmcs_capture_lend(struct lmcs_capture *capture, bool lends)
{
    capture->lends = lends && !capture->promised; /* the commit comes after a promise's call */
}

enum lmcs_status lmcs_capture_put_copies(struct lmcs_capture *capture, const struct lmcs_tensor *tensors,
                                         const void *const *data, size_t count, struct lmcs_error *error)
{
    const bool lends = capture->lends;
    capture->lends = false;
    enum lmcs_status status = lmcs_capture_put(capture, tensors, data, count, error);
    capture->lends = lends;
    return status;
}

static enum lmcs_status copy_lent(struct lmcs_capture *capture, struct lmcs_captured *const *entries,
                                  struct lmcs_source *sources, struct lmcs_copy *copies, size_t count,
                                  struct lmcs_error *error)
{
    for (size_t i = 0; i < count; i++) {
        struct lmcs_captured *entry = entries[i];
        if (entry->memory == NULL) /* else taken before a copy that failed */
            take_memory(capture, entry);
        entry->content = (struct lmcs_content){.id = 0};
        sources[i] = (struct lmcs_source){&entry->tensor, entry->lent, NULL, entry->raw_bytes};
        copies[i] = (struct lmcs_copy){&sources[i], &entry->content, entry->memory, &entry->hashes};
    }
    enum lmcs_status status =
        lmcs_copy_sources(capture->pool, capture->workers, &capture->region, copies, count, error);
    for (size_t i = 0; i < count; i++) {
        struct lmcs_captured *entry = entries[i];
        if (status != LMCS_OK) {
            entry->content = content_of_lent(entry);
            continue;
        }
        entry->lent = NULL;
        if (entry->memory != NULL)
            continue;
        capture->memory_bytes -= entry->raw_bytes;
        capture->written_bytes += entry->raw_bytes;
    }
    return status;
}

enum lmcs_status lmcs_capture_take_lent(struct lmcs_capture *capture, bool all, struct lmcs_error *error)
{
    const size_t most = capture->entries.count;
    struct lmcs_captured **entries = malloc((most + 1) * sizeof *entries);
    struct lmcs_source *sources = malloc((most + 1) * sizeof *sources);
    struct lmcs_copy *copies = malloc((most + 1) * sizeof *copies);
    enum lmcs_status status = entries == NULL || sources == NULL || copies == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    size_t count = 0;
    for (size_t i = 0; status == LMCS_OK && i < most; i++) {
        struct lmcs_captured *entry = capture->entries.items[i];
        if (entry->lent != NULL && (all || !entry->links_lent))
            entries[count++] = entry;
    }
    if (status == LMCS_OK && count > 0)
        status = copy_lent(capture, entries, sources, copies, count, error);
    free(entries);
    free(sources);
    free(copies);
    return status;
}

enum lmcs_status lmcs_capture_put(struct lmcs_capture *capture, const struct lmcs_tensor *tensors,
                                  const void *const *data, size_t count, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_capture_check(capture, error);
    if (status != LMCS_OK || count == 0)
        return status;
    struct put put = {.capture = capture, .sources = malloc(count * sizeof *put.sources), .count = count};
    status = put.sources == NULL ? lmcs_fail_memory(error) : describe(&put, tensors, data, error);
    if (status == LMCS_OK)
        status = compare(&put, error);
    if (status == LMCS_OK)
        status = copy_changed(&put, error);
    free(put.sources);
    if (status != LMCS_OK)
        capture->state = LMCS_CAPTURE_BROKEN;
    return status;
}

/* ---- Other ways to put ---- */

enum lmcs_status lmcs_capture_relate(struct lmcs_capture *capture, const struct lmcs_relation *relations, size_t count,
                                     struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_capture_check(capture, error);
    size_t before = capture->relations.count;
    for (size_t i = 0; status == LMCS_OK && i < count; i++)
        status = lmcs_relations_add(&capture->relations, &relations[i], error);
    if (status != LMCS_OK)
        capture->relations.count = before;
    return status;
}

enum lmcs_status lmcs_capture_put_same(struct lmcs_capture *capture, const struct lmcs_tensor *tensor,
                                       const char *existing_name, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_capture_check(capture, error);
    if (status != LMCS_OK)
        return status;
    size_t index = existing_name == NULL ? 0 : lmcs_entries_find(&capture->entries, tensor->kind, existing_name);
    if (index == 0)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "tensor \"%s\" is not in the capture",
                         existing_name == NULL ? "" : existing_name);
    const struct lmcs_captured *existing = capture->entries.items[index - 1];
    if (existing->tensor.dtype != tensor->dtype || existing->tensor.ndim != tensor->ndim ||
        (tensor->ndim > 0 && memcmp(existing->tensor.shape, tensor->shape, tensor->ndim * sizeof(uint64_t)) != 0))
        return lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%s\" has another dtype or shape than \"%s\"", tensor->name,
                         existing_name);
    struct lmcs_captured *entry;
    status = add_entry(capture, tensor, &entry, error);
    if (status != LMCS_OK)
        return status;
    entry->same_as = existing->same_as != 0 ? existing->same_as : index;
    capture->shared_bytes += entry->raw_bytes;
    return LMCS_OK;
}

enum lmcs_status lmcs_capture_reserve(struct lmcs_capture *capture, const struct lmcs_tensor *tensor, void **data,
                                      struct lmcs_error *error)
{
    struct lmcs_captured *entry;
    enum lmcs_status status = lmcs_capture_check(capture, error);
    if (status == LMCS_OK)
        status = add_entry(capture, tensor, &entry, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_reserve(&capture->region, entry, error);
    if (status == LMCS_FULL && lmcs_capture_make_room(capture))
        status = lmcs_reserve(&capture->region, entry, error);
    if (status == LMCS_FULL)
        explain_full(capture, error);
    if (status != LMCS_OK) {
        capture->state = LMCS_CAPTURE_BROKEN;
        return status;
    }
    capture->written_bytes += entry->raw_bytes;
    *data = entry->reserved.data;
    return LMCS_OK;
}
