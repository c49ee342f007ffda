/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * payload/encode.c - writes a tensor as a frame in the pool and verifies it by decoding.
 *
 * Coded blocks are made a window at a time, in parallel. The header, which needs all of them, is written last, at the
 * front.
 */
#include "payload/encode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "base/workers.h"
#include "payload/speed.h"

#define WHOLE_BYTES   ((uint64_t)64 << 20) /* largest payload encoded in memory as a whole */
#define WINDOW_BLOCKS 16u

struct encoding {
    struct lmcs_encoding *encoding;
    struct lmc_encoder *encoder;
    struct lmc_block *blocks;
    struct lmc_link_encoder *link_encoder; /* links use the next two instead */
    struct lmc_link_block *link_blocks;
    uint64_t block_count;
    uint64_t first; /* first block of the window */
    size_t slot_bytes;
    unsigned char *slots; /* for a window's coded blocks */
    struct lmcs_guarded sources[2 * LMC_MAX_BASES];
    size_t source_count;
};

/* Fails because the medium failed under mapped bytes that the codec read. */
static enum lmcs_status fail_unreadable(const struct lmcs_encoding *encoding, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, EIO, "%s: tensor \"%s\" is damaged: the medium can't be read",
                     encoding->pool->path, encoding->tensor.name);
}

static uint32_t coded_bytes(const struct encoding *e, uint64_t block)
{
    return e->link_blocks != NULL ? e->link_blocks[block].coded_bytes : e->blocks[block].coded_bytes;
}

static size_t header_bytes(const struct encoding *e)
{
    return e->link_encoder != NULL ? lmc_link_encoder_header_bytes(e->link_encoder)
                                   : lmc_encoder_header_bytes(e->encoder);
}

static uint64_t decoded_bytes(const struct lmcs_encoding *encoding)
{
    return encoding->link != NULL ? encoding->raw_bytes * encoding->made.df.base_count : encoding->raw_bytes;
}

static uint64_t most_bytes(const struct lmcs_encoding *encoding)
{
    uint64_t raw = lmcs_raw_stored_bytes(decoded_bytes(encoding));
    return encoding->most_bytes != 0 ? encoding->most_bytes : raw - raw / 64;
}

/* NULL: this thread alone. */
static struct lmcs_workers *workers_of(const struct lmcs_encoding *encoding)
{
    if (encoding->serial)
        return NULL;
    return encoding->workers != NULL ? encoding->workers : encoding->pool->workers;
}

/* ---- Blocks ---- */

struct block_job {
    struct encoding *encoding;
    uint64_t slot;
    enum lmc_status made;
};

/* Whether the hashes of a block after the step are known. */
static bool known_hashes(const struct lmcs_encoding *encoding, uint64_t block, struct lmc_hash *hashes)
{
    for (size_t i = 0; i < encoding->made.df.base_count; i++) {
        if (encoding->after_hashes[i] == NULL)
            return false;
        hashes[i] = encoding->after_hashes[i][block];
    }
    return true;
}

static void encode_block(void *context)
{
    struct block_job *job = context;
    struct encoding *e = job->encoding;
    const struct lmcs_encoding *encoding = e->encoding;
    uint64_t block = e->first + job->slot, at = block * LMC_BLOCK_BYTES;
    unsigned char *slot = e->slots + job->slot * e->slot_bytes;
    if (e->link_encoder != NULL) {
        struct lmc_hash hashes[LMC_MAX_BASES];
        const bool known = known_hashes(encoding, block, hashes);
        job->made = lmc_link_encode_block_hashed(e->link_encoder, block, known ? hashes : NULL, slot, e->slot_bytes,
                                                 &e->link_blocks[block]);
        return;
    }
    const unsigned char *data = (const unsigned char *)encoding->data + at;
    job->made =
        lmc_encode_block_of(e->encoder, block, data, encoding->base != NULL ? (const char *)encoding->base + at : NULL,
                            slot, e->slot_bytes, &e->blocks[block]);
}

static enum lmcs_status encode_job(void *context, uint64_t i, struct lmcs_error *error)
{
    struct encoding *e = context;
    struct block_job job = {e, i, LMC_OK};
    if (!lmcs_guard(e->sources, e->source_count, encode_block, &job))
        return fail_unreadable(e->encoding, error);
    if (job.made == LMC_NO_MEMORY)
        return lmcs_fail_memory(error);
    return job.made == LMC_OK ? LMCS_OK
                              : lmcs_fail(error, LMCS_INVALID, 0, "the codec refused a block (%d)", (int)job.made);
}

static enum lmcs_status encode_window(struct encoding *e, uint64_t count, struct lmcs_error *error)
{
    return lmcs_workers_try(workers_of(e->encoding), encode_job, NULL, e, count, error);
}

/* ---- Writing ---- */

/* Allocates from the region, under its lock if threads share it. */
static enum lmcs_status take_room(struct lmcs_encoding *encoding, uint64_t bytes, struct lmcs_error *error)
{
    if (encoding->region_lock != NULL)
        pthread_mutex_lock(encoding->region_lock);
    enum lmcs_status status = lmcs_payload_take(encoding->region, bytes, &encoding->made, error);
    if (encoding->region_lock != NULL)
        pthread_mutex_unlock(encoding->region_lock);
    return status;
}

static enum lmcs_status write_window(struct encoding *e, uint64_t count, uint64_t *at, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint64_t i = 0; status == LMCS_OK && i < count; i++) {
        uint32_t bytes = coded_bytes(e, e->first + i);
        status = lmcs_payload_write(e->encoding->pool->heap, &e->encoding->made, *at, e->slots + i * e->slot_bytes,
                                    bytes, error);
        *at += bytes;
    }
    return status;
}

static void write_behind(const struct lmcs_encoding *encoding)
{
    for (uint32_t i = 0; encoding->write_behind && i < encoding->made.df.part_count; i++)
        lmcs_heap_start_writeback(encoding->pool->heap, encoding->made.parts[i].offset, encoding->made.parts[i].bytes);
}

static uint64_t window_bytes(const struct encoding *e, uint64_t first, uint64_t count)
{
    uint64_t sum = 0;
    for (uint64_t i = first; i < first + count; i++)
        sum += coded_bytes(e, i);
    return sum;
}

/* Records the digest of a link from its encoded header. */
static enum lmc_status take_link_digest(struct lmcs_encoding *encoding, const void *header, size_t bytes)
{
    struct lmc_frame frame;
    struct lmc_hash digest;
    const char *why;
    enum lmc_status status = lmc_frame_parse(header, bytes, &frame, &why);
    if (status == LMC_OK && !lmcs_link_digest(&frame, encoding->tensor.ndim, encoding->tensor.shape, &digest))
        return LMC_INVALID;
    if (status == LMC_OK) {
        encoding->made.df.digest_low = digest.low;
        encoding->made.df.digest_high = digest.high;
    }
    return status;
}

static enum lmcs_status write_header(struct encoding *e, struct lmcs_error *error)
{
    size_t bytes = header_bytes(e);
    void *header = malloc(bytes);
    if (header == NULL)
        return lmcs_fail_memory(error);
    enum lmc_status made = e->link_encoder != NULL
                               ? lmc_link_encode_header(e->link_encoder, e->link_blocks, header, bytes)
                               : lmc_encode_header(e->encoder, e->blocks, header, bytes);
    if (made == LMC_OK && e->link_encoder != NULL)
        made = take_link_digest(e->encoding, header, bytes);
    enum lmcs_status status =
        made != LMC_OK ? lmcs_fail(error, LMCS_INVALID, 0, "the codec can't make a header (%d)", (int)made)
                       : lmcs_payload_write(e->encoding->pool->heap, &e->encoding->made, 0, header, bytes, error);
    free(header);
    return status;
}

static enum lmcs_status encode_whole(struct encoding *e, struct lmcs_error *error)
{
    struct lmcs_encoding *encoding = e->encoding;
    uint64_t at = header_bytes(e);
    enum lmcs_status status = encode_window(e, e->block_count, error);
    if (status != LMCS_OK)
        return status;
    uint64_t total = at + window_bytes(e, 0, e->block_count);
    encoding->worthwhile = total < most_bytes(encoding);
    if (!encoding->worthwhile)
        return status;
    status = take_room(encoding, total, error);
    if (status == LMCS_OK)
        status = write_window(e, e->block_count, &at, error);
    return status == LMCS_OK ? write_header(e, error) : status;
}

/* Returns the room beyond `total` bytes. */
static void shrink_made(struct lmcs_encoding *encoding, uint64_t total)
{
    struct lmcs_content *made = &encoding->made;
    uint64_t left = total;
    uint16_t count = 0;
    for (uint16_t i = 0; i < made->df.part_count; i++) {
        struct lmcs_part_df *part = &made->parts[i];
        uint64_t bytes = left < part->bytes ? left : part->bytes;
        if (bytes < part->bytes)
            lmcs_region_shrink(encoding->region, part->offset, bytes);
        part->bytes = bytes;
        count += bytes > 0;
        left -= bytes;
    }
    made->df.part_count = count;
    made->df.stored_bytes = total;
}

static enum lmcs_status encode_by_windows(struct encoding *e, struct lmcs_error *error)
{
    struct lmcs_encoding *encoding = e->encoding;
    uint64_t most = most_bytes(encoding), at = header_bytes(e);
    enum lmcs_status status = take_room(encoding, most, error);
    encoding->worthwhile = true;
    for (e->first = 0; status == LMCS_OK && encoding->worthwhile && e->first < e->block_count;
         e->first += WINDOW_BLOCKS) {
        uint64_t left = e->block_count - e->first, count = left < WINDOW_BLOCKS ? left : WINDOW_BLOCKS;
        status = encode_window(e, count, error);
        if (status == LMCS_OK && at + window_bytes(e, e->first, count) > most)
            encoding->worthwhile = false;
        else if (status == LMCS_OK)
            status = write_window(e, count, &at, error);
    }
    if (status == LMCS_OK && encoding->worthwhile)
        status = write_header(e, error);
    shrink_made(encoding, status == LMCS_OK && encoding->worthwhile ? at : 0);
    return status;
}

/* ---- All of it ---- */

struct planning {
    struct encoding *encoding;
    const struct lmc_params *params;
    const char *why;
    enum lmc_status made;
};

static void plan(void *context)
{
    struct planning *p = context;
    struct encoding *e = p->encoding;
    p->made = e->encoding->link != NULL ? lmc_link_encoder_new(e->encoding->link, &e->link_encoder, &p->why)
                                        : lmc_encoder_new(p->params, &e->encoder, &p->why);
}

static void guard_sources(struct encoding *e)
{
    const struct lmcs_encoding *encoding = e->encoding;
    if (encoding->link == NULL) {
        e->sources[0] = (struct lmcs_guarded){encoding->data, encoding->raw_bytes};
        e->sources[1] = (struct lmcs_guarded){encoding->base, encoding->base != NULL ? encoding->raw_bytes : 0};
        e->source_count = 2;
        return;
    }
    for (size_t i = 0; i < encoding->made.df.base_count; i++) {
        e->sources[e->source_count++] = (struct lmcs_guarded){encoding->link->before[i], encoding->raw_bytes};
        e->sources[e->source_count++] = (struct lmcs_guarded){encoding->link->after[i], encoding->raw_bytes};
    }
}

/* Allocates the blocks' entries and slots for their coded bytes. */
static enum lmcs_status make_room(struct encoding *e, struct lmcs_error *error)
{
    const struct lmcs_encoding *encoding = e->encoding;
    bool whole = decoded_bytes(encoding) <= WHOLE_BYTES;
    size_t block = encoding->raw_bytes < LMC_BLOCK_BYTES ? (size_t)encoding->raw_bytes : LMC_BLOCK_BYTES;
    bool room;
    if (encoding->link != NULL) {
        e->block_count = lmc_link_encoder_block_count(e->link_encoder);
        e->slot_bytes = lmc_link_block_bound(encoding->made.df.base_count, block);
        e->link_blocks = calloc(e->block_count + 1, sizeof *e->link_blocks);
        room = e->link_blocks != NULL;
    } else {
        e->block_count = lmc_encoder_block_count(e->encoder);
        e->slot_bytes = lmc_block_bound(block);
        e->blocks = calloc(e->block_count + 1, sizeof *e->blocks);
        room = e->blocks != NULL;
    }
    e->slot_bytes = (e->slot_bytes + 63) & ~(size_t)63;
    e->slots = malloc((whole ? e->block_count + 1 : WINDOW_BLOCKS) * e->slot_bytes);
    return room && e->slots != NULL ? LMCS_OK : lmcs_fail_memory(error);
}

static enum lmcs_status prepare(struct encoding *e, struct lmcs_error *error)
{
    struct lmcs_encoding *encoding = e->encoding;
    struct lmc_params params = {.dtype = encoding->tensor.dtype,
                                .raw_bytes = encoding->raw_bytes,
                                .data = encoding->data,
                                .base = encoding->base};
    struct planning planning = {e, &params, "", LMC_OK};
    guard_sources(e);
    if (encoding->base != NULL)
        params.base_digest = (struct lmc_hash){encoding->base_chain->links[0].df.digest_low,
                                               encoding->base_chain->links[0].df.digest_high};
    if (!lmcs_guard(e->sources, e->source_count, plan, &planning))
        return fail_unreadable(encoding, error);
    if (planning.made != LMC_OK)
        return planning.made == LMC_NO_MEMORY ? lmcs_fail_memory(error)
                                              : lmcs_fail(error, LMCS_INVALID, 0, "codec: %s", planning.why);
    enum lmcs_status status = make_room(e, error);
    if (status != LMCS_OK || encoding->link != NULL)
        return status;
    bool needs_base = encoding->base != NULL && lmc_encoder_base_count(e->encoder) > 0;
    encoding->made.df.payload = LMCS_PAYLOAD_FRAME;
    encoding->made.df.base_count = needs_base;
    encoding->made.bases[0] = needs_base ? encoding->base_chain->links[0].id : 0;
    return LMCS_OK;
}

/* ---- Verifying ---- */

/* A link whose arrays are in memory, read back and applied to them, or to copies of their blocks. */
struct applying {
    const struct lmcs_encoding *encoding;
    unsigned char *header;
    struct lmc_frame frame;
};

static enum lmcs_status read_back(const struct lmcs_encoding *encoding, uint64_t at, void *to, uint64_t bytes,
                                  struct lmcs_error *error)
{
    return (lmcs_heap_is_persistent(encoding->pool->heap) ? lmcs_payload_read : lmcs_payload_read_back)(
        encoding->pool->media, &encoding->made, at, to, bytes, error);
}

static enum lmcs_status fail_wrong(const struct lmcs_encoding *encoding, const char *why, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: tensor \"%s\": the link that was just written is wrong: %s",
                     encoding->pool->path, encoding->tensor.name, why);
}

static enum lmcs_status apply(const struct applying *a, uint64_t block, unsigned char *coded, void *const *state,
                              uint64_t bytes, struct lmcs_error *error)
{
    const struct lmcs_encoding *encoding = a->encoding;
    const uint64_t at = block * LMC_BLOCK_BYTES;
    const char *why = "";
    uint64_t place;
    const struct lmc_block entry = lmc_frame_block(&a->frame, block, &place);
    const struct lmc_link_step step = {&a->frame, coded, entry.coded_bytes};
    if (entry.coded_bytes > lmc_link_block_bound(encoding->made.df.base_count, bytes))
        return fail_wrong(encoding, "a coded block is impossibly long", error);
    enum lmcs_status status = read_back(encoding, place, coded, entry.coded_bytes, error);
    if (status != LMCS_OK)
        return status;
    for (uint32_t i = 0; i < encoding->made.df.base_count && !encoding->in_place; i++)
        memcpy(state[i], (const char *)encoding->link->before[i] + at, bytes);
    const uint64_t since = lmcs_speed_ns();
    if (lmc_link_decode_block(&step, 1, block, state, bytes, NULL, &why) != LMC_OK)
        return fail_wrong(encoding, why, error);
    lmcs_speed_add(encoding->pool, LMCS_DECODED_LINK, bytes * encoding->made.df.base_count, since);
    return LMCS_OK;
}

static enum lmcs_status apply_job(void *context, uint64_t block, struct lmcs_error *error)
{
    const struct applying *a = context;
    const uint64_t at = block * LMC_BLOCK_BYTES, left = a->encoding->raw_bytes - at;
    const uint64_t bytes = left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES, room = (bytes + 63) & ~(uint64_t)63;
    const bool in_place = a->encoding->in_place;
    const uint32_t count = a->encoding->made.df.base_count, copies = in_place ? 0 : count;
    const size_t coded = (lmc_link_block_bound(count, bytes) + 63) & ~(size_t)63;
    void *state[LMC_MAX_BASES];
    unsigned char *buffer = aligned_alloc(64, copies * room + coded);
    if (buffer == NULL)
        return lmcs_fail_memory(error);
    for (uint32_t i = 0; i < count; i++)
        state[i] = in_place ? (unsigned char *)(uintptr_t)a->encoding->link->before[i] + at : buffer + i * room;
    enum lmcs_status status = apply(a, block, buffer + copies * room, state, bytes, error);
    free(buffer);
    return status;
}

/* The codec compares decoded blocks with the hashes in the frame, of which these are the digests. */
static enum lmcs_status check_digests(const struct applying *a, struct lmcs_error *error)
{
    const struct lmcs_encoding *encoding = a->encoding;
    for (uint32_t i = 0; i < encoding->made.df.base_count; i++) {
        struct lmc_hash digest;
        bool known = lmc_link_digest(&a->frame, i, encoding->tensor.ndim, encoding->tensor.shape, &digest) == LMC_OK;
        if (known && encoding->finds_digests)
            encoding->after_digests[i] = digest;
        else if (!known || digest.low != encoding->after_digests[i].low ||
                 digest.high != encoding->after_digests[i].high)
            return fail_wrong(encoding, "it leads to other bytes", error);
    }
    return LMCS_OK;
}

static enum lmcs_status verify_in_memory(const struct lmcs_encoding *encoding, struct lmcs_error *error)
{
    struct applying a = {.encoding = encoding};
    unsigned char prefix[LMC_FRAME_PREFIX_BYTES];
    const char *why = "";
    uint64_t bytes, stored = encoding->made.df.stored_bytes;
    enum lmcs_status status = read_back(encoding, 0, prefix, stored < sizeof prefix ? stored : sizeof prefix, error);
    if (status != LMCS_OK)
        return status;
    if (lmc_frame_header_bytes(prefix, stored < sizeof prefix ? stored : sizeof prefix, &bytes, &why) != LMC_OK ||
        bytes > stored)
        return fail_wrong(encoding, why, error);
    a.header = malloc(bytes);
    if (a.header == NULL)
        return lmcs_fail_memory(error);
    status = read_back(encoding, 0, a.header, bytes, error);
    if (status == LMCS_OK &&
        (lmc_frame_parse(a.header, bytes, &a.frame, &why) != LMC_OK || a.frame.frame_bytes != stored ||
         a.frame.block_count != lmc_block_count(encoding->raw_bytes)))
        status = fail_wrong(encoding, why, error);
    if (status == LMCS_OK)
        status = check_digests(&a, error);
    if (status == LMCS_OK)
        status = lmcs_workers_try(workers_of(encoding), apply_job, NULL, &a, a.frame.block_count, error);
    free(a.header);
    return status;
}

enum lmcs_status lmcs_encoding_verify(const struct lmcs_encoding *encoding, struct lmcs_error *error)
{
    bool is_link = encoding->link != NULL;
    if (is_link && encoding->before == NULL) {
        lmcs_heap_drain(encoding->pool->heap);
        return verify_in_memory(encoding, error);
    }
    size_t bases = is_link                            ? encoding->made.df.base_count
                   : encoding->made.df.base_count > 0 ? encoding->base_chain->length
                                                      : 0;
    if (bases > LMCS_CHAIN_BOUND)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: the chain of a delta would be too long", encoding->pool->path);
    struct lmcs_chain *chain = malloc(sizeof *chain);
    if (chain == NULL)
        return lmcs_fail_memory(error);
    lmcs_heap_drain(encoding->pool->heap);
    chain->length = 1 + bases;
    chain->line = is_link;
    chain->serial = encoding->serial;
    chain->is_timed = true;
    chain->is_new = !lmcs_heap_is_persistent(encoding->pool->heap);
    chain->links[0] = encoding->made;
    for (size_t i = 0; i < bases; i++)
        chain->links[1 + i] = is_link ? encoding->before[i] : encoding->base_chain->links[i];
    const struct lmcs_tensor *tensor = &encoding->tensor;
    const struct lmcs_content *after[LMC_MAX_BASES] = {NULL};
    void *const nowhere[LMC_MAX_BASES] = {NULL};
    for (size_t i = 0; is_link && i < bases; i++)
        after[i] = &encoding->after[i];
    enum lmcs_status status = is_link ? lmcs_chain_read_arrays(encoding->pool, chain, tensor, after, nowhere, error)
                                      : lmcs_chain_read(encoding->pool, chain, tensor, NULL, NULL, error);
    free(chain);
    return status;
}

enum lmcs_status lmcs_encoding_run(struct lmcs_encoding *encoding, struct lmcs_error *error)
{
    struct encoding e = {.encoding = encoding};
    encoding->worthwhile = false;
    enum lmcs_status status = prepare(&e, error);
    if (status == LMCS_OK)
        status = decoded_bytes(encoding) <= WHOLE_BYTES ? encode_whole(&e, error) : encode_by_windows(&e, error);
    encoding->link_plan = e.link_encoder != NULL ? lmc_link_encoder_plan(e.link_encoder) : 0;
    lmc_encoder_free(e.encoder);
    lmc_link_encoder_free(e.link_encoder);
    free(e.blocks);
    free(e.link_blocks);
    free(e.slots);
    if (status != LMCS_OK || !encoding->worthwhile)
        return status;
    write_behind(encoding);
    return lmcs_encoding_verify(encoding, error);
}
