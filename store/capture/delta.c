/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/delta.c - captures that write deltas, for media that are slower than the codec.
 *
 * What changed is coded against the newest raw content of its name: that of the snapshot before, or the one which that
 * snapshot's own delta rests on. So bases are raw and chains short, nothing is decoded, and only what the codec makes
 * is written. After a few deltas a content is written raw again: the next base. What is found equal to the content
 * before, by its digest, is shared.
 *
 * Each block is copied before it is encoded, since a tensor may change meanwhile, and each frame is read back and
 * decoded before it counts, as the compactor's are.
 */
#include <stdlib.h>
#include <string.h>

#include "capture/capture.h"
#include "pages/tree.h"
#include "payload/encode.h"
#include "records/policy.h"
#include "records/safety.h"
#include "records/shelf.h"

#define BATCH_SOURCES 256u
#define SERIAL_BYTES  ((uint64_t)16 << 20) /* smaller tensors are one thread's each, larger ones all threads' */

struct coded {
    struct lmcs_source *source;
    bool possible;
    bool is_lost;               /* `before`, in part: it can't be shared */
    struct lmcs_content before; /* what the snapshot before has */
    struct lmcs_chain base;     /* of one: a raw content */
    struct lmcs_encoding encoding;
    enum lmcs_status status;
    struct lmcs_error error;
};

struct batch {
    struct lmcs_pool *pool;
    struct lmcs_region *region;
    pthread_mutex_t region_lock;
    struct coded *items;
    size_t count;
};

/* ---- Finding bases ---- */

/* The raw content that a delta of this one may rest on, if there is one that is near enough. */
static enum lmcs_status find_base(struct lmcs_txn *txn, struct coded *item, struct lmcs_error *error)
{
    const struct lmcs_content *before = &item->before;
    struct lmcs_content *base = &item->base.links[0];
    enum lmcs_status status = LMCS_OK;
    *base = *before;
    if (before->df.payload == LMCS_PAYLOAD_FRAME && before->df.base_count == 1)
        status = lmcs_content_get(txn, before->bases[0], base, error);
    uint32_t distance = base->id == before->id ? 1 : before->df.place + 1;
    item->base.length = 1;
    item->possible = status == LMCS_OK && base->df.payload == LMCS_PAYLOAD_RAW && base->link == 0 &&
                     base->df.part_count == 1 && base->df.raw_bytes == item->source->entry->raw_bytes &&
                     distance <= LMCS_PLAN_MOST_JUMP && base->df.raw_bytes >= LMCS_PLAN_LEAST_BYTES;
    item->encoding.made.df.place = distance;
    return status;
}

static enum lmcs_status look_up(struct lmcs_txn *txn, const struct lmcs_code_from *from, struct batch *batch,
                                struct lmcs_error *error)
{
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found;
    enum lmcs_status status = lmcs_shelf_get(txn, from->shelf, &shelf, error);
    if (status == LMCS_OK)
        status = lmcs_record_get(txn, &shelf, from->number, &record, &found, error);
    if (status != LMCS_OK || !found)
        return status;
    struct lmcs_root_tree_df manifest = {.ref = record.df.manifest, .count = record.df.entry_count};
    for (size_t i = 0; status == LMCS_OK && i < batch->count; i++) {
        struct coded *item = &batch->items[i];
        struct lmcs_manifest_df entry;
        if (!item->source->entry->in_base || item->source->strides != NULL)
            continue;
        status =
            lmcs_tree_get(txn, LMCS_TREE_MANIFEST, &manifest, (struct lmcs_key_df){item->source->entry->identity, 0},
                          &entry, sizeof entry, sizeof entry, NULL, &found, error);
        if (status == LMCS_OK && found)
            status = lmcs_content_get(txn, entry.content, &item->before, error);
        if (status == LMCS_OK && found)
            status = lmcs_lost_any(txn, item->before.id, &item->is_lost, error);
        if (status == LMCS_OK && found)
            status = find_base(txn, item, error);
    }
    return status;
}

/* ---- Coding ---- */

static void prepare(struct batch *batch, struct coded *item)
{
    const struct lmcs_captured *entry = item->source->entry;
    uint32_t place = item->encoding.made.df.place;
    item->encoding = (struct lmcs_encoding){.pool = batch->pool,
                                            .region = batch->region,
                                            .region_lock = &batch->region_lock,
                                            .serial = entry->raw_bytes <= SERIAL_BYTES,
                                            .may_change = true,
                                            .tensor = entry->tensor,
                                            .raw_bytes = entry->raw_bytes,
                                            .data = item->source->data,
                                            .base_chain = &item->base,
                                            .known = item->is_lost ? NULL : &item->before};
    item->encoding.made.df.raw_bytes = entry->raw_bytes;
    item->encoding.made.df.place = place;
    item->encoding.base = lmcs_payload_at(batch->pool->media, &item->base.links[0], 0, entry->raw_bytes);
    item->possible = item->encoding.base != NULL;
}

static void code_item(struct coded *item)
{
    item->status = lmcs_encoding_run(&item->encoding, &item->error);
    if (item->status == LMCS_DAMAGED) /* it or its base can't be read: it is copied, or that says so */
        item->encoding.worthwhile = item->encoding.is_known = false;
}

static void code_job(void *context, uint64_t i)
{
    struct batch *batch = context;
    if (batch->items[i].possible && batch->items[i].encoding.serial)
        code_item(&batch->items[i]);
}

static void drain_thread(void *context)
{
    lmcs_heap_drain(((struct batch *)context)->pool->heap);
}

static enum lmcs_status take_results(struct batch *batch, struct lmcs_error *error)
{
    for (size_t i = 0; i < batch->count; i++) {
        struct coded *item = &batch->items[i];
        struct lmcs_captured *entry = item->source->entry;
        if (item->status != LMCS_OK && item->status != LMCS_DAMAGED) {
            if (error != NULL)
                *error = item->error;
            return item->status;
        }
        if (item->possible && item->encoding.is_known) {
            entry->shared = item->before.id;
        } else if (item->possible && item->encoding.worthwhile) {
            entry->content = item->encoding.made;
            entry->is_coded = true;
        }
    }
    return LMCS_OK;
}

static enum lmcs_status code_batch(struct batch *batch, const struct lmcs_code_from *from, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(batch->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    uint64_t epoch = txn.root.epoch;
    status = look_up(&txn, from, batch, error);
    enum lmcs_status leased = status == LMCS_OK ? lmcs_lease_epoch(batch->pool->lease, epoch, error) : LMCS_INVALID;
    lmcs_txn_end(&txn);
    if (status == LMCS_OK && leased == LMCS_IN_USE) /* a stranger's lock keeps nobody from saving: all is copied then */
        return LMCS_OK;
    if (status != LMCS_OK || leased != LMCS_OK)
        return status != LMCS_OK ? status : leased;
    for (size_t i = 0; i < batch->count; i++)
        if (batch->items[i].possible)
            prepare(batch, &batch->items[i]);
    lmcs_workers_run(batch->pool->workers, code_job, drain_thread, batch, batch->count);
    for (size_t i = 0; i < batch->count; i++)
        if (batch->items[i].possible && !batch->items[i].encoding.serial)
            code_item(&batch->items[i]);
    lmcs_lease_epoch_end(batch->pool->lease, epoch);
    return take_results(batch, error);
}

enum lmcs_status lmcs_code_sources(const struct lmcs_code_from *from, struct lmcs_region *region,
                                   struct lmcs_source *sources, size_t count, struct lmcs_error *error)
{
    struct batch batch = {.pool = from->pool, .region = region};
    enum lmcs_status status = LMCS_OK;
    batch.items = malloc(BATCH_SOURCES * sizeof *batch.items);
    if (batch.items == NULL)
        return lmcs_fail_memory(error);
    pthread_mutex_init(&batch.region_lock, NULL);
    for (size_t i = 0; status == LMCS_OK && i < count; i += batch.count) {
        batch.count = count - i < BATCH_SOURCES ? count - i : BATCH_SOURCES;
        memset(batch.items, 0, batch.count * sizeof *batch.items);
        for (size_t k = 0; k < batch.count; k++)
            batch.items[k].source = &sources[i + k];
        status = code_batch(&batch, from, error);
    }
    lmcs_heap_drain(from->pool->heap);
    pthread_mutex_destroy(&batch.region_lock);
    free(batch.items);
    return status;
}

/* ---- Whether to ---- */

#define TRY_AGAIN_AFTER 200u /* captures */
#define LEAST_MEASURED  ((uint64_t)4 << 20)

bool lmcs_pace_codes(const struct lmcs_pace *pace, enum lmcs_encode_on_capture when, bool is_stored_to)
{
    if (when != LMCS_ENCODE_AUTO || is_stored_to)
        return when == LMCS_ENCODE_ALWAYS;
    if (pace->raw == 0)
        return false;
    bool is_faster = pace->coded == 0 || pace->coded > pace->raw;
    return pace->since >= TRY_AGAIN_AFTER ? !is_faster : is_faster;
}

void lmcs_pace_measured(struct lmcs_pace *pace, bool coded, uint64_t bytes, uint64_t ns)
{
    double *mean = coded ? &pace->coded : &pace->raw;
    bool was_faster = pace->coded > pace->raw;
    if (bytes < LEAST_MEASURED || ns == 0)
        return;
    double now = (double)bytes * 1e9 / (double)ns;
    *mean = *mean == 0 ? now : (*mean + now) / 2;
    pace->since = coded == was_faster ? pace->since + 1 : 0;
}
