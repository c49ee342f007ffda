/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recode.c - giving a content another payload: encode aside, verify by decoding, switch.
 *
 * The raw bytes are encoded where they lie, through a mapping; a content or base that is itself coded is decoded into
 * memory first. Coded blocks are made a window at a time, in parallel, and written one behind the other; the header,
 * which needs them all, comes last, at the front. Then the new payload is read back and decoded as any reader would.
 * The frame's digest must be the content's: bytes that rotted while they were raw are found here, and left alone.
 */
#include "recode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "guard.h"

#define WHOLE_BYTES   ((uint64_t)64 << 20) /* of tensors whose frames are made in memory */
#define WINDOW_BLOCKS 16u

/* ---- Begin and end ---- */

static enum lmcs_status load(struct lmcs_recode *recode, struct lmcs_txn *txn, uint64_t content, uint64_t base,
                             struct lmcs_error *error)
{
    struct lmcs_content found_content;
    bool found;
    enum lmcs_status status = lmcs_content_find(txn, content, &found_content, &found, error);
    if (status == LMCS_OK && !found)
        return lmcs_fail(error, LMCS_NOT_FOUND, 0, "content %llu has gone", (unsigned long long)content);
    if (status == LMCS_OK)
        status = lmcs_chain_load(txn, content, &recode->chain, error);
    if (status == LMCS_OK)
        status = lmcs_identity_get(txn, recode->chain.links[0].df.identity, &recode->identity, error);
    if (status == LMCS_OK && base != 0)
        status = lmcs_content_find(txn, base, &found_content, &found, error);
    if (status == LMCS_OK && base != 0 && found) {
        status = lmcs_chain_load(txn, base, &recode->base, error);
        const struct lmcs_content_df *df = &recode->chain.links[0].df;
        /* Coded alone, then, if the chain of those that rest on it would become too long. */
        recode->has_base = status == LMCS_OK && recode->base.links[0].df.raw_bytes == df->raw_bytes &&
                           recode->base.length + df->height <= LMCS_CHAIN_BOUND;
    }
    if (status == LMCS_OK)
        status = lmcs_chain_pin(recode->pool, &recode->chain, error);
    if (status == LMCS_OK && recode->has_base) {
        status = lmcs_chain_pin(recode->pool, &recode->base, error);
        if (status != LMCS_OK)
            lmcs_chain_unpin(recode->pool, &recode->chain);
    }
    return status;
}

enum lmcs_status lmcs_recode_begin(struct lmcs_recode *recode, struct lmcs_pool *pool, struct lmcs_region *region,
                                   uint64_t content, uint64_t base, bool serial, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    recode->pool = pool;
    recode->region = region;
    recode->serial = serial;
    recode->has_base = recode->worthwhile = false;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    status = load(recode, &txn, content, base, error);
    lmcs_txn_end(&txn);
    recode->chain.serial = recode->base.serial = serial;
    return status;
}

void lmcs_recode_end(struct lmcs_recode *recode)
{
    lmcs_chain_unpin(recode->pool, &recode->chain);
    if (recode->has_base)
        lmcs_chain_unpin(recode->pool, &recode->base);
}

/* ---- The decoded bytes of a chain, at an address ---- */

struct bytes_at {
    const void *data;
    void *map;
    size_t map_bytes;
};

static enum lmcs_status stitch(struct lmcs_recode *recode, const struct lmcs_content *content, struct bytes_at *at,
                               struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    uint64_t done = 0;
    at->map_bytes = (content->df.stored_bytes + LMCS_PAGE_BYTES - 1) & ~(size_t)(LMCS_PAGE_BYTES - 1);
    at->map = mmap(NULL, at->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at->map == MAP_FAILED) {
        at->map = NULL;
        return lmcs_fail_memory(error);
    }
    for (size_t i = 0; status == LMCS_OK && i < content->df.part_count; i++) {
        status = lmcs_media_map_shared(recode->pool->media, content->parts[i].offset, content->parts[i].bytes,
                                       (char *)at->map + done, error);
        done += content->parts[i].bytes;
    }
    at->data = at->map;
    return status;
}

static enum lmcs_status get_bytes(struct lmcs_recode *recode, const struct lmcs_chain *chain, struct bytes_at *at,
                                  struct lmcs_error *error)
{
    const struct lmcs_content *top = &chain->links[0];
    const struct lmcs_identity *identity = &recode->identity;
    *at = (struct bytes_at){NULL, NULL, 0};
    if (top->df.payload == LMCS_PAYLOAD_RAW) {
        at->data = lmcs_payload_at(recode->pool->media, top, 0, top->df.raw_bytes);
        return at->data != NULL ? LMCS_OK : stitch(recode, top, at, error);
    }
    at->map_bytes = top->df.raw_bytes;
    at->map = mmap(NULL, at->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at->map == MAP_FAILED) {
        at->map = NULL;
        return lmcs_fail_memory(error);
    }
    at->data = at->map;
    return lmcs_chain_read(recode->pool, chain, identity->name, identity->df.dtype, identity->df.ndim, identity->shape,
                           at->map, NULL, error);
}

static void put_bytes(struct bytes_at *at)
{
    if (at->map != NULL)
        munmap(at->map, at->map_bytes);
}

/* ---- Encoding ---- */

struct encoding {
    struct lmcs_recode *recode;
    struct lmc_encoder *encoder;
    struct lmc_block *blocks;
    uint64_t block_count;
    uint64_t first; /* block of the window */
    size_t slot_bytes;
    unsigned char *slots; /* room for a window's coded blocks */
    _Atomic int failure;  /* enum lmc_status */
    struct lmcs_guarded sources[2];
    _Atomic bool unreadable;
};

/* The codec reads where the bytes lie, so what the medium can't give any more is met within it. */
static enum lmcs_status fail_unreadable(const struct lmcs_recode *recode, struct lmcs_error *error)
{
    return lmcs_fail(error, LMCS_DAMAGED, EIO, "%s: tensor \"%s\" is damaged: the medium can't be read",
                     recode->pool->path, recode->identity.name);
}

struct block_job {
    struct encoding *encoding;
    uint64_t slot;
};

static void encode_block(void *context)
{
    const struct block_job *job = context;
    struct encoding *e = job->encoding;
    uint64_t block = e->first + job->slot;
    enum lmc_status status =
        lmc_encode_block(e->encoder, block, e->slots + job->slot * e->slot_bytes, e->slot_bytes, &e->blocks[block]);
    if (status != LMC_OK)
        e->failure = (int)status;
}

static void encode_job(void *context, uint64_t i)
{
    struct encoding *e = context;
    struct block_job job = {e, i};
    if (!lmcs_guard(e->sources, 2, encode_block, &job))
        e->unreadable = true;
}

static enum lmcs_status encode_window(struct encoding *e, uint64_t count, struct lmcs_error *error)
{
    if (e->recode->serial)
        for (uint64_t i = 0; i < count; i++)
            encode_job(e, i);
    else
        lmcs_workers_run(e->recode->pool->workers, encode_job, NULL, e, count);
    if (e->unreadable)
        return fail_unreadable(e->recode, error);
    if (e->failure == LMC_NO_MEMORY)
        return lmcs_fail_memory(error);
    return e->failure == LMC_OK ? LMCS_OK
                                : lmcs_fail(error, LMCS_INVALID, 0, "the codec refused a block (%d)", e->failure);
}

static enum lmcs_status write_window(struct encoding *e, uint64_t count, uint64_t *at, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (uint64_t i = 0; status == LMCS_OK && i < count; i++) {
        uint32_t bytes = e->blocks[e->first + i].coded_bytes;
        status = lmcs_payload_write(e->recode->pool->heap, &e->recode->made, *at, e->slots + i * e->slot_bytes, bytes,
                                    error);
        *at += bytes;
    }
    return status;
}

static uint64_t window_bytes(const struct encoding *e, uint64_t first, uint64_t count)
{
    uint64_t sum = 0;
    for (uint64_t i = first; i < first + count; i++)
        sum += e->blocks[i].coded_bytes;
    return sum;
}

static enum lmcs_status write_header(struct encoding *e, struct lmcs_error *error)
{
    size_t bytes = lmc_encoder_header_bytes(e->encoder);
    void *header = malloc(bytes);
    if (header == NULL)
        return lmcs_fail_memory(error);
    enum lmc_status made = lmc_encode_header(e->encoder, e->blocks, header, bytes);
    enum lmcs_status status =
        made != LMC_OK ? lmcs_fail(error, LMCS_INVALID, 0, "the codec can't make a header (%d)", (int)made)
                       : lmcs_payload_write(e->recode->pool->heap, &e->recode->made, 0, header, bytes, error);
    free(header);
    return status;
}

/* Small enough to be held in memory: the room is taken when the size is known. */
static enum lmcs_status encode_whole(struct encoding *e, struct lmcs_error *error)
{
    struct lmcs_recode *recode = e->recode;
    uint64_t raw = lmcs_raw_stored_bytes(recode->chain.links[0].df.raw_bytes);
    uint64_t at = lmc_encoder_header_bytes(e->encoder);
    enum lmcs_status status = encode_window(e, e->block_count, error);
    if (status != LMCS_OK)
        return status;
    uint64_t total = at + window_bytes(e, 0, e->block_count);
    recode->worthwhile = total < raw - raw / 64;
    if (!recode->worthwhile)
        return LMCS_OK;
    status = lmcs_payload_take(recode->region, total, &recode->made, error);
    if (status == LMCS_OK)
        status = write_window(e, e->block_count, &at, error);
    return status == LMCS_OK ? write_header(e, error) : status;
}

static void shrink_made(struct lmcs_recode *recode, uint64_t total)
{
    struct lmcs_content *made = &recode->made;
    uint64_t left = total;
    uint16_t count = 0;
    for (uint16_t i = 0; i < made->df.part_count; i++) {
        struct lmcs_part_df *part = &made->parts[i];
        uint64_t bytes = left < part->bytes ? left : part->bytes;
        if (bytes < part->bytes)
            lmcs_region_shrink(recode->region, part->offset, bytes);
        part->bytes = bytes;
        count += bytes > 0;
        left -= bytes;
    }
    made->df.part_count = count;
    made->df.stored_bytes = total;
}

/* A window at a time, into room that is cut to size afterwards. */
static enum lmcs_status encode_by_windows(struct encoding *e, struct lmcs_error *error)
{
    struct lmcs_recode *recode = e->recode;
    uint64_t raw = lmcs_raw_stored_bytes(recode->chain.links[0].df.raw_bytes), most = raw - raw / 64;
    uint64_t at = lmc_encoder_header_bytes(e->encoder);
    enum lmcs_status status = lmcs_payload_take(recode->region, most, &recode->made, error);
    recode->worthwhile = true;
    for (e->first = 0; status == LMCS_OK && recode->worthwhile && e->first < e->block_count;
         e->first += WINDOW_BLOCKS) {
        uint64_t left = e->block_count - e->first, count = left < WINDOW_BLOCKS ? left : WINDOW_BLOCKS;
        status = encode_window(e, count, error);
        if (status == LMCS_OK && at + window_bytes(e, e->first, count) > most)
            recode->worthwhile = false;
        else if (status == LMCS_OK)
            status = write_window(e, count, &at, error);
    }
    if (status == LMCS_OK && recode->worthwhile)
        status = write_header(e, error);
    if (status == LMCS_OK)
        shrink_made(recode, recode->worthwhile ? at : 0);
    return status;
}

/* Reads the new payload back and decodes it. */
static enum lmcs_status verify(struct lmcs_recode *recode, struct lmcs_error *error)
{
    const struct lmcs_identity *identity = &recode->identity;
    size_t bases = recode->made.df.base_count > 0 ? recode->base.length : 0;
    if (bases > LMCS_CHAIN_BOUND)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: the chain of a delta would be too long", recode->pool->path);
    struct lmcs_chain *chain = malloc(sizeof *chain);
    if (chain == NULL)
        return lmcs_fail_memory(error);
    lmcs_heap_drain(recode->pool->heap);
    chain->length = 1;
    chain->serial = recode->serial;
    chain->links[0] = recode->made;
    for (size_t i = 0; i < bases; i++)
        chain->links[chain->length++] = recode->base.links[i];
    enum lmcs_status status = lmcs_chain_read(recode->pool, chain, identity->name, identity->df.dtype,
                                              identity->df.ndim, identity->shape, NULL, NULL, error);
    free(chain);
    return status;
}

struct planning {
    struct encoding *encoding;
    const struct lmc_params *params;
    const char *why;
    enum lmc_status made;
};

static void plan(void *context)
{
    struct planning *p = context;
    p->made = lmc_encoder_new(p->params, &p->encoding->encoder, &p->why);
}

static enum lmcs_status encode(struct encoding *e, const void *data, const void *base, struct lmcs_error *error)
{
    struct lmcs_recode *recode = e->recode;
    const struct lmcs_content_df *df = &recode->chain.links[0].df, *base_df = &recode->base.links[0].df;
    struct lmc_params params = {
        .dtype = recode->identity.df.dtype, .raw_bytes = df->raw_bytes, .data = data, .base = base};
    struct planning planning = {e, &params, "", LMC_OK};
    e->sources[0] = (struct lmcs_guarded){data, df->raw_bytes};
    e->sources[1] = (struct lmcs_guarded){base, base != NULL ? df->raw_bytes : 0};
    if (base != NULL)
        params.base_digest = (struct lmc_hash){base_df->digest_low, base_df->digest_high};
    if (!lmcs_guard(e->sources, 2, plan, &planning))
        return fail_unreadable(recode, error);
    if (planning.made != LMC_OK)
        return planning.made == LMC_NO_MEMORY ? lmcs_fail_memory(error)
                                              : lmcs_fail(error, LMCS_INVALID, 0, "codec: %s", planning.why);
    e->block_count = lmc_encoder_block_count(e->encoder);
    e->slot_bytes =
        (lmc_block_bound(df->raw_bytes < LMC_BLOCK_BYTES ? df->raw_bytes : LMC_BLOCK_BYTES) + 63) & ~(size_t)63;
    bool whole = df->raw_bytes <= WHOLE_BYTES;
    e->blocks = calloc(e->block_count + 1, sizeof *e->blocks);
    e->slots = malloc((whole ? e->block_count + 1 : WINDOW_BLOCKS) * e->slot_bytes);
    if (e->blocks == NULL || e->slots == NULL)
        return lmcs_fail_memory(error);
    recode->made.df.payload = LMCS_PAYLOAD_FRAME;
    recode->made.df.base_count = base != NULL && lmc_encoder_base_count(e->encoder) > 0;
    recode->made.bases[0] = recode->made.df.base_count > 0 ? recode->base.links[0].id : 0;
    return whole ? encode_whole(e, error) : encode_by_windows(e, error);
}

enum lmcs_status lmcs_recode_encode(struct lmcs_recode *recode, struct lmcs_error *error)
{
    struct encoding e = {.recode = recode};
    struct bytes_at data = {0}, base = {0};
    recode->made = recode->chain.links[0];
    enum lmcs_status status = get_bytes(recode, &recode->chain, &data, error);
    if (status == LMCS_OK && recode->has_base)
        status = get_bytes(recode, &recode->base, &base, error);
    if (status == LMCS_OK)
        status = encode(&e, data.data, recode->has_base ? base.data : NULL, error);
    lmc_encoder_free(e.encoder);
    free(e.blocks);
    free(e.slots);
    put_bytes(&data);
    put_bytes(&base);
    if (status == LMCS_OK && recode->worthwhile)
        status = verify(recode, error);
    return status;
}

enum lmcs_status lmcs_recode_copy(struct lmcs_recode *recode, struct lmcs_error *error)
{
    const struct lmcs_content *from = &recode->chain.links[0];
    enum { PIECE = 1 << 20 };
    void *piece = malloc(PIECE);
    if (piece == NULL)
        return lmcs_fail_memory(error);
    recode->made = *from;
    recode->worthwhile = true;
    enum lmcs_status status = lmcs_payload_take(recode->region, from->df.stored_bytes, &recode->made, error);
    for (uint64_t at = 0; status == LMCS_OK && at < from->df.stored_bytes; at += PIECE) {
        uint64_t n = from->df.stored_bytes - at < PIECE ? from->df.stored_bytes - at : PIECE;
        status = lmcs_payload_read(recode->pool->media, from, at, piece, n, error);
        if (status == LMCS_OK)
            status = lmcs_payload_write(recode->pool->heap, &recode->made, at, piece, n, error);
    }
    free(piece);
    if (status != LMCS_OK)
        return status;
    if (from->df.base_count > 0) { /* to verify, its base is wanted */
        recode->base.length = recode->chain.length - 1;
        memcpy(recode->base.links, recode->chain.links + 1, recode->base.length * sizeof recode->base.links[0]);
    }
    return verify(recode, error);
}

/* ---- Switching ---- */

static bool same_payload(const struct lmcs_content *a, const struct lmcs_content *b)
{
    return a->df.part_count == b->df.part_count && a->df.payload == b->df.payload &&
           memcmp(a->parts, b->parts, a->df.part_count * sizeof a->parts[0]) == 0;
}

enum lmcs_status lmcs_recode_swap(struct lmcs_txn *txn, struct lmcs_recode *recode, bool *done,
                                  struct lmcs_error *error)
{
    struct lmcs_content now, base;
    uint32_t depth = 0;
    bool found, has_base = recode->made.df.base_count > 0;
    *done = false;
    enum lmcs_status status = lmcs_content_find(txn, recode->made.id, &now, &found, error);
    if (status != LMCS_OK || !found || !same_payload(&now, &recode->chain.links[0]))
        return status;
    if (!recode->worthwhile) {
        now.df.flags |= LMCS_CONTENT_SETTLED;
        *done = true;
        return lmcs_content_put(txn, &now, error);
    }
    if (has_base && recode->made.bases[0] != (now.df.base_count > 0 ? now.bases[0] : 0)) {
        status = lmcs_content_find(txn, recode->made.bases[0], &base, &found, error);
        if (status != LMCS_OK || !found)
            return status;
        status = lmcs_content_depth(txn, &base, &depth, error);
        if (status != LMCS_OK || depth + 1 + now.df.height > LMCS_CHAIN_BOUND)
            return status;
    }
    recode->made.df.flags = now.df.flags;
    *done = true;
    return lmcs_content_swap(txn, now.id, &recode->made, error);
}
