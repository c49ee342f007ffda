/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/delta.c - captures that write deltas, for media slower than the codec (store/POLICIES.md).
 *
 * The base of a delta is the newest raw content of the name: that of the base snapshot, or the one below its delta. So
 * no base needs decoding. After LMCS_DELTA_MOST_JUMP deltas a raw content is written. A tensor with the same digest as
 * the previous content shares that. Blocks are copied before they are encoded, since a tensor may change. Frames count
 * after decoding.
 */
#include <stdlib.h>

#include "capture/stages.h"
#include "payload/encode.h"

#define BATCH        256u                 /* tensors encoded at once */
#define SERIAL_BYTES ((uint64_t)16 << 20) /* a tensor up to this size takes one thread, a larger one all */

struct encoded {
    struct lmcs_delta *delta;
    bool possible;
    struct lmcs_chain base;
    struct lmcs_encoding encoding;
};

struct batch {
    struct lmcs_pool *pool;
    struct lmcs_workers *workers;
    struct lmcs_region *region;
    pthread_mutex_t region_lock;
    struct encoded *items;
    size_t count;
};

/* Describes the encoding of one tensor against its base. */
static void prepare(struct batch *batch, struct encoded *item, struct lmcs_delta *delta)
{
    const struct lmcs_source *source = delta->source;
    const struct lmcs_previous *previous = delta->previous;
    item->delta = delta;
    item->base.length = 1;
    item->base.line = 0;
    item->base.serial = item->base.is_timed = item->base.is_new = false;
    item->base.links[0] = *previous->base;
    item->encoding = (struct lmcs_encoding){.pool = batch->pool,
                                            .workers = batch->workers,
                                            .region = batch->region,
                                            .region_lock = &batch->region_lock,
                                            .serial = source->raw_bytes <= SERIAL_BYTES,
                                            .may_change = true,
                                            .tensor = *source->tensor,
                                            .raw_bytes = source->raw_bytes,
                                            .data = source->data,
                                            .base_chain = &item->base,
                                            .known = previous->is_lost ? NULL : &previous->content};
    item->encoding.made.df.raw_bytes = source->raw_bytes;
    item->encoding.made.df.place = previous->distance;
    item->encoding.base = lmcs_payload_at(batch->pool->media, &item->base.links[0], 0, source->raw_bytes);
    item->possible = item->encoding.base != NULL;
}

static enum lmcs_status encode_item(struct encoded *item, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_encoding_run(&item->encoding, error);
    if (!lmcs_is_unusable(status))
        return status;
    /* The tensor or its base is unreadable: copying the tensor reports that, or succeeds. */
    item->encoding.worthwhile = item->encoding.is_known = false;
    return LMCS_OK;
}

static enum lmcs_status encode_job(void *context, uint64_t i, struct lmcs_error *error)
{
    struct encoded *item = &((struct batch *)context)->items[i];
    return item->possible && item->encoding.serial ? encode_item(item, error) : LMCS_OK;
}

static void drain_thread(void *context)
{
    lmcs_heap_drain(((struct batch *)context)->pool->heap);
}

static void take_results(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        struct encoded *item = &batch->items[i];
        item->delta->is_equal = item->possible && item->encoding.is_known;
        item->delta->is_made = item->possible && !item->encoding.is_known && item->encoding.worthwhile;
        if (item->delta->is_made)
            item->delta->content = item->encoding.made;
    }
}

static enum lmcs_status encode_batch(struct batch *batch, struct lmcs_delta *deltas, struct lmcs_error *error)
{
    for (size_t i = 0; i < batch->count; i++)
        prepare(batch, &batch->items[i], &deltas[i]);
    enum lmcs_status status = lmcs_workers_try(batch->workers, encode_job, drain_thread, batch, batch->count, error);
    for (size_t i = 0; status == LMCS_OK && i < batch->count; i++)
        if (batch->items[i].possible && !batch->items[i].encoding.serial)
            status = encode_item(&batch->items[i], error);
    if (status == LMCS_OK)
        take_results(batch);
    return status;
}

enum lmcs_status lmcs_delta_write(struct lmcs_pool *pool, struct lmcs_workers *workers, struct lmcs_region *region,
                                  struct lmcs_delta *deltas, size_t count, struct lmcs_error *error)
{
    struct batch batch = {.pool = pool, .workers = workers, .region = region};
    enum lmcs_status status = LMCS_OK;
    size_t most = count < BATCH ? count : BATCH;
    batch.items = count > 0 ? malloc(most * sizeof *batch.items) : NULL;
    if (count == 0 || batch.items == NULL)
        return count == 0 ? LMCS_OK : lmcs_fail_memory(error);
    pthread_mutex_init(&batch.region_lock, NULL);
    for (size_t i = 0; status == LMCS_OK && i < count; i += batch.count) {
        batch.count = count - i < most ? count - i : most;
        status = encode_batch(&batch, &deltas[i], error);
    }
    lmcs_heap_drain(pool->heap);
    pthread_mutex_destroy(&batch.region_lock);
    free(batch.items);
    return status;
}

#define TRY_AGAIN_AFTER 200u /* captures */
#define LEAST_MEASURED  ((uint64_t)4 << 20)

bool lmcs_pace_codes(const struct lmcs_pace *pace, enum lmcs_write_as as, bool is_stored_to)
{
    if (as != LMCS_WRITE_AS_AUTO || is_stored_to)
        return as == LMCS_WRITE_AS_LINK;
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
