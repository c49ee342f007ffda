/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/delta.c - writes tensors that have no link as keyframes and deltas, from their copies in memory.
 *
 * Keyframes are of parameters that begin a line. The base of a delta is the newest raw content of the name: that of the
 * base snapshot, or the one below its delta. So no base needs decoding. After LMCS_DELTA_MOST_JUMP deltas the tensor is
 * written raw. Frames count after decoding.
 */
#include <stdlib.h>

#include "capture/state.h"
#include "payload/encode.h"
#include "records/safety.h"

#define BATCH        64u                  /* tensors encoded at once */
#define SERIAL_BYTES ((uint64_t)16 << 20) /* a tensor up to this size takes one thread, a larger one all */

struct item {
    struct lmcs_captured *entry;
    struct lmcs_chain base; /* pinned; of length 0: a keyframe */
    uint32_t distance;      /* contents from the new one to the base */
    struct lmcs_encoding encoding;
};

struct batch {
    struct lmcs_capture *capture;
    pthread_mutex_t region_lock;
    struct item *items;
    size_t count;
};

enum lmcs_status lmcs_delta_may_rest(struct lmcs_txn *txn, const struct lmcs_captured *entry, uint64_t id,
                                     struct lmcs_content *base, bool *may, struct lmcs_error *error)
{
    bool found = false, bad = false;
    enum lmcs_status status = lmcs_content_find(txn, id, base, &found, error);
    *may = status == LMCS_OK && found && base->df.payload == LMCS_PAYLOAD_RAW && base->link == 0 &&
           base->df.raw_bytes == entry->raw_bytes;
    if (*may) {
        status = lmcs_content_bears_links(txn, base, &bad, error);
        *may = status == LMCS_OK && !bad;
    }
    if (*may) {
        status = lmcs_lost_any(txn, id, &bad, error);
        *may = status == LMCS_OK && !bad;
    }
    return status;
}

/* Finds and pins the base. *may false: there is none. */
static enum lmcs_status find_base(struct lmcs_txn *txn, struct item *item, bool *may, struct lmcs_error *error)
{
    struct lmcs_content previous;
    bool found = false;
    *may = false;
    if (item->entry->previous == 0)
        return LMCS_OK;
    enum lmcs_status status = lmcs_content_find(txn, item->entry->previous, &previous, &found, error);
    if (status != LMCS_OK || !found || previous.df.payload > LMCS_PAYLOAD_FRAME)
        return status;
    bool is_delta = previous.df.payload == LMCS_PAYLOAD_FRAME && previous.df.base_count == 1;
    item->distance = is_delta ? previous.df.place + 1 : 1;
    if (item->distance > LMCS_DELTA_MOST_JUMP)
        return LMCS_OK;
    item->base.length = 1;
    status = lmcs_delta_may_rest(txn, item->entry, is_delta ? previous.bases[0] : previous.id, &item->base.links[0],
                                 may, error);
    if (status == LMCS_OK && *may)
        status = lmcs_chain_pin(txn->pool, &item->base, error);
    if (status == LMCS_IN_USE) { /* another program holds a lock */
        *may = false;
        return LMCS_OK;
    }
    return status;
}

static void put_down(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        lmcs_chain_unpin(batch->capture->pool, &batch->items[i].base);
    batch->count = 0;
}

/* Lists the entries that are to become keyframes or may become deltas. */
static enum lmcs_status collect(struct batch *batch, size_t *next, struct lmcs_error *error)
{
    struct lmcs_capture *capture = batch->capture;
    struct lmcs_txn txn;
    enum lmcs_status status = lmcs_txn_read(capture->pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    for (batch->count = 0; status == LMCS_OK && *next < capture->entries.count && batch->count < BATCH; ++*next) {
        struct lmcs_captured *entry = capture->entries.items[*next];
        struct item *item = &batch->items[batch->count];
        bool may = entry->is_keyframe;
        if (!lmcs_captured_waits(entry))
            continue;
        *item = (struct item){.entry = entry};
        if (!may)
            status = find_base(&txn, item, &may, error);
        if (lmcs_is_unusable(status))
            status = LMCS_OK;
        batch->count += status == LMCS_OK && may;
    }
    lmcs_txn_end(&txn);
    if (status != LMCS_OK)
        put_down(batch);
    return status;
}

static enum lmcs_status encode(struct batch *batch, struct item *item, struct lmcs_error *error)
{
    struct lmcs_capture *capture = batch->capture;
    struct lmcs_captured *entry = item->entry;
    item->encoding = (struct lmcs_encoding){.pool = capture->pool,
                                            .region = &capture->region,
                                            .region_lock = &batch->region_lock,
                                            .workers = capture->workers,
                                            .serial = entry->raw_bytes <= SERIAL_BYTES,
                                            .write_behind = true,
                                            .tensor = entry->tensor,
                                            .raw_bytes = entry->raw_bytes,
                                            .data = entry->memory,
                                            .base_chain = &item->base,
                                            .made = entry->content};
    item->encoding.made.df.place = item->distance;
    if (!entry->is_keyframe) {
        item->encoding.base = lmcs_payload_at(capture->pool->media, &item->base.links[0], 0, entry->raw_bytes);
        if (item->encoding.base == NULL)
            return LMCS_OK;
    }
    enum lmcs_status status = lmcs_encoding_run(&item->encoding, error);
    if (!lmcs_is_unusable(status))
        return status;
    item->encoding.worthwhile = false; /* the base is unreadable: the tensor is written raw */
    return LMCS_OK;
}

static enum lmcs_status encode_job(void *context, uint64_t i, struct lmcs_error *error)
{
    struct batch *batch = context;
    return batch->items[i].entry->raw_bytes <= SERIAL_BYTES ? encode(batch, &batch->items[i], error) : LMCS_OK;
}

static enum lmcs_status encode_batch(struct batch *batch, struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_workers_try(batch->capture->workers, encode_job, NULL, batch, batch->count, error);
    for (size_t i = 0; status == LMCS_OK && i < batch->count; i++)
        if (batch->items[i].entry->raw_bytes > SERIAL_BYTES)
            status = encode(batch, &batch->items[i], error);
    for (size_t i = 0; i < batch->count; i++) {
        struct item *item = &batch->items[i];
        if (status != LMCS_OK || !item->encoding.worthwhile)
            continue;
        item->entry->content = item->encoding.made;
        item->entry->form = LMCS_FORM_FRAME;
        batch->capture->written_bytes += item->encoding.made.df.stored_bytes;
    }
    put_down(batch);
    return status;
}

enum lmcs_status lmcs_capture_write_frames(struct lmcs_capture *capture, struct lmcs_error *error)
{
    struct batch batch = {.capture = capture, .items = malloc(BATCH * sizeof *batch.items)};
    enum lmcs_status status = batch.items == NULL ? lmcs_fail_memory(error) : LMCS_OK;
    pthread_mutex_init(&batch.region_lock, NULL);
    for (size_t next = 0; status == LMCS_OK && next < capture->entries.count;) {
        status = collect(&batch, &next, error);
        if (status == LMCS_OK && batch.count > 0)
            status = encode_batch(&batch, error);
    }
    pthread_mutex_destroy(&batch.region_lock);
    free(batch.items);
    return status;
}
