/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * snapshots/read.c - copies tensors of a snapshot, or parts of them.
 *
 * A block of a raw payload is compared with its checksum once (payload/verified.h); then only the wanted bytes are
 * read. Arrays of one link are decoded together.
 */
#include <stdlib.h>
#include <string.h>

#include "payload/verified.h"
#include "records/manifest.h"
#include "records/safety.h"
#include "snapshots/snapshot.h"

struct found {
    struct lmcs_identity identity;
    struct lmcs_chain chain;                       /* pinned */
    bool any_lost;                                 /* a scrub recorded blocks of it as lost */
    size_t count;                                  /* of ranges to read at once */
    struct lmcs_content arrays[LMC_MAX_BASES - 1]; /* the others' contents, outputs of the same link */
};

static bool is_array(const struct lmcs_content *content, const struct lmcs_identity *identity)
{
    return content->df.payload == LMCS_PAYLOAD_LINKED && content->df.output < LMC_MAX_BASES &&
           identity->df.dtype == LMC_F32;
}

static bool has_shape(const struct lmcs_identity *identity, const struct lmcs_identity *other)
{
    return identity->df.ndim == other->df.ndim &&
           memcmp(identity->shape, other->shape, identity->df.ndim * sizeof identity->shape[0]) == 0;
}

/* Finds out how many of the ranges are of arrays of the link that leads to the first one. */
static void find_arrays(struct lmcs_txn *txn, const struct lmcs_record *record, uint32_t kind,
                        const struct lmcs_tensor_range *ranges, size_t count, struct found *found)
{
    const struct lmcs_content *top = &found->chain.links[0];
    struct lmcs_error ignored; /* the turn of the range comes, if it is not read now */
    if (!is_array(top, &found->identity))
        return;
    uint32_t seen = 1u << top->df.output;
    for (; found->count < count && found->count < LMC_MAX_BASES; found->count++) {
        const struct lmcs_tensor_range *range = &ranges[found->count];
        struct lmcs_content *content = &found->arrays[found->count - 1];
        struct lmcs_identity identity;
        uint64_t id;
        bool is_there;
        if (range->first_byte != ranges[0].first_byte || range->bytes != ranges[0].bytes ||
            lmcs_manifest_find(txn, &record->df, kind, range->name, &identity, &id, &is_there, &ignored) != LMCS_OK ||
            !is_there || lmcs_content_get(txn, id, content, &ignored) != LMCS_OK)
            return;
        if (!is_array(content, &identity) || content->link != top->link || !has_shape(&identity, &found->identity) ||
            (seen & 1u << content->df.output) != 0)
            return;
        seen |= 1u << content->df.output;
    }
}

/* Finds the tensor of the first range, and those that are decoded with it. */
static enum lmcs_status find_tensor(struct lmcs_snapshot *snapshot, uint32_t kind,
                                    const struct lmcs_tensor_range *ranges, size_t count, struct found *found,
                                    struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    uint64_t content;
    bool is_there;
    enum lmcs_status status = lmcs_snapshot_enter(snapshot, &txn, &shelf, &record, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_manifest_find(&txn, &record.df, kind, ranges[0].name, &found->identity, &content, &is_there, error);
    if (status == LMCS_OK && !is_there)
        status = lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: %s@%llu has no tensor \"%.200s\"", snapshot->pool->path,
                           snapshot->shelf, (unsigned long long)snapshot->info.number, ranges[0].name);
    if (status == LMCS_OK)
        status = lmcs_chain_load(&txn, content, &found->chain, error);
    if (status == LMCS_OK)
        status = lmcs_lost_any(&txn, content, &found->any_lost, error);
    if (status == LMCS_OK)
        status = lmcs_chain_pin(snapshot->pool, &found->chain, error);
    found->count = 1;
    if (status == LMCS_OK)
        find_arrays(&txn, &record, kind, ranges, count, found);
    lmcs_txn_end(&txn);
    return status;
}

void lmcs_snapshot_set_verify(struct lmcs_snapshot *snapshot, bool verify)
{
    snapshot->trusts_raw = !verify;
}

void lmcs_snapshot_explain_damage(struct lmcs_snapshot *snapshot, struct lmcs_error *error)
{
    uint64_t number = snapshot->info.number, before;
    size_t count = 0;
    struct lmcs_error ignored;
    if (error == NULL || error->status != LMCS_DAMAGED)
        return;
    lmcs_error_append(error, "; snapshot %s@%llu: repair it by lmc-store scrub --repair (--from ARCHIVE)",
                      snapshot->shelf, (unsigned long long)number);
    if (lmcs_snapshot_newest(snapshot->pool, snapshot->shelf, number, &before, 1, &count, &ignored) == LMCS_OK &&
        count == 1)
        lmcs_error_append(error, ", or take the snapshot before it, %s@%llu", snapshot->shelf,
                          (unsigned long long)before);
}

struct range_reading {
    const struct lmcs_snapshot *snapshot;
    bool any_lost;
    const struct lmcs_content *raw; /* NULL: each read compares or decodes it */
    bool is_known;                  /* no block needs the reader */
    struct lmcs_reader *reader;
    uint64_t raw_bytes;
    uint64_t first_byte;
    uint64_t bytes;
    uint64_t first_block;
    uint64_t block_count;
    unsigned char *buffer;
    unsigned char *buffers[LMC_MAX_BASES]; /* of arrays that are decoded together, instead */
};

/* Whether to copy the bytes of a block without comparing them. */
static bool is_known(const struct range_reading *r, uint64_t block)
{
    return r->raw != NULL &&
           (r->snapshot->trusts_raw || lmcs_verified_has(r->snapshot->pool, r->raw->id, r->raw->parts, block));
}

/* The part of a block that is wanted. */
struct stretch {
    uint64_t at, end; /* of the block */
    uint64_t from, to;
};

static struct stretch stretch_of(const struct range_reading *r, uint64_t block)
{
    uint64_t at = block * LMC_BLOCK_BYTES, end = r->first_byte + r->bytes;
    uint64_t block_end = r->raw_bytes - at < LMC_BLOCK_BYTES ? r->raw_bytes : at + LMC_BLOCK_BYTES;
    return (struct stretch){at, block_end, at > r->first_byte ? at : r->first_byte, block_end < end ? block_end : end};
}

/* Reads a whole block to its place; a block at an edge through a buffer. */
static enum lmcs_status read_range_block(const struct range_reading *r, uint64_t block, struct lmcs_error *error)
{
    const struct stretch s = stretch_of(r, block);
    unsigned char *target = r->buffer + (s.from - r->first_byte), *whole = NULL;
    if (r->is_known || is_known(r, block))
        return lmcs_payload_read(r->snapshot->pool->media, r->raw, s.from, target, s.to - s.from, error);
    if (s.from != s.at || s.to != s.end) {
        whole = malloc(s.end - s.at);
        if (whole == NULL)
            return lmcs_fail_memory(error);
    }
    enum lmcs_status status = lmcs_reader_block(r->reader, block, whole != NULL ? whole : target, error);
    if (status == LMCS_OK && whole != NULL)
        memcpy(target, whole + (s.from - s.at), s.to - s.from);
    if (status == LMCS_OK && r->raw != NULL)
        lmcs_verified_note(r->snapshot->pool, r->raw->id, r->raw->parts, block);
    free(whole);
    return status;
}

/* The same for several arrays. */
static enum lmcs_status read_arrays_block(const struct range_reading *r, uint64_t block, struct lmcs_error *error)
{
    const struct stretch s = stretch_of(r, block);
    const bool is_edge = s.from != s.at || s.to != s.end;
    void *to[LMC_MAX_BASES] = {NULL};
    unsigned char *whole = is_edge ? malloc(LMC_MAX_BASES * (s.end - s.at)) : NULL;
    if (is_edge && whole == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < LMC_MAX_BASES; i++)
        if (r->buffers[i] != NULL)
            to[i] = is_edge ? whole + i * (s.end - s.at) : r->buffers[i] + (s.from - r->first_byte);
    enum lmcs_status status = lmcs_reader_arrays(r->reader, block, to, error);
    for (size_t i = 0; status == LMCS_OK && is_edge && i < LMC_MAX_BASES; i++)
        if (to[i] != NULL)
            memcpy(r->buffers[i] + (s.from - r->first_byte), (unsigned char *)to[i] + (s.from - s.at), s.to - s.from);
    free(whole);
    return status;
}

static enum lmcs_status read_range_job(void *context, uint64_t i, struct lmcs_error *error)
{
    struct range_reading *r = context;
    return (r->buffer != NULL ? read_range_block : read_arrays_block)(r, r->first_block + i, error);
}

/* Chooses the blocks of a range of at least one byte. */
static void range_init(struct range_reading *r, const struct lmcs_chain *chain)
{
    const struct lmcs_content *top = &chain->links[0];
    r->raw = top->df.payload == LMCS_PAYLOAD_RAW && !r->any_lost ? top : NULL;
    r->first_block = r->first_byte / LMC_BLOCK_BYTES;
    r->block_count = (r->first_byte + r->bytes - 1) / LMC_BLOCK_BYTES - r->first_block + 1;
    r->is_known = true;
    for (uint64_t i = 0; r->is_known && i < r->block_count; i++)
        r->is_known = is_known(r, r->first_block + i);
}

static enum lmcs_status read_range(struct range_reading *r, struct lmcs_error *error)
{
    return lmcs_workers_try(r->snapshot->pool->workers, read_range_job, NULL, r, r->block_count, error);
}

enum lmcs_status lmcs_snapshot_read(struct lmcs_snapshot *snapshot, uint32_t kind, const char *name, void *buffer,
                                    uint64_t buffer_bytes, struct lmcs_error *error)
{
    struct found found;
    struct range_reading r = {.snapshot = snapshot, .raw_bytes = buffer_bytes, .bytes = buffer_bytes, .buffer = buffer};
    const struct lmcs_tensor_range range = {.name = name};
    enum lmcs_status status = find_tensor(snapshot, kind, &range, 1, &found, error);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_chain *chain = &found.chain;
    r.any_lost = found.any_lost;
    if (chain->links[0].df.raw_bytes != buffer_bytes)
        status = lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%.200s\" has %llu bytes, the buffer %llu", name,
                           (unsigned long long)chain->links[0].df.raw_bytes, (unsigned long long)buffer_bytes);
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&found.identity);
    if (status == LMCS_OK && buffer_bytes > 0)
        range_init(&r, chain);
    if (status == LMCS_OK && r.is_known)
        status = read_range(&r, error);
    else if (status == LMCS_OK)
        status = lmcs_chain_read(snapshot->pool, chain, &tensor, buffer, NULL, error);
    if (status == LMCS_OK && r.raw != NULL && !r.is_known)
        lmcs_verified_note(snapshot->pool, r.raw->id, r.raw->parts, LMCS_ALL_BLOCKS);
    lmcs_chain_unpin(snapshot->pool, chain);
    lmcs_snapshot_explain_damage(snapshot, status == LMCS_DAMAGED ? error : NULL);
    return status;
}

/* Reads the first range, and those that are decoded with it. *done: their number. */
static enum lmcs_status read_some(struct lmcs_snapshot *snapshot, uint32_t kind, const struct lmcs_tensor_range *ranges,
                                  size_t count, size_t *done, struct lmcs_error *error)
{
    struct found found;
    const uint64_t first_byte = ranges[0].first_byte, bytes = ranges[0].bytes;
    struct range_reading r = {.snapshot = snapshot, .first_byte = first_byte, .bytes = bytes};
    const struct lmcs_content *contents[LMC_MAX_BASES] = {NULL};
    enum lmcs_status status = find_tensor(snapshot, kind, ranges, count, &found, error);
    *done = 1;
    if (status != LMCS_OK)
        return status;
    const struct lmcs_content *top = &found.chain.links[0];
    r.any_lost = found.any_lost;
    r.raw_bytes = top->df.raw_bytes;
    if (first_byte > r.raw_bytes || bytes > r.raw_bytes - first_byte)
        status = lmcs_fail(
            error, LMCS_INVALID, 0, "tensor \"%.200s\" has %llu bytes: %llu from byte %llu on are more than there are",
            ranges[0].name, (unsigned long long)r.raw_bytes, (unsigned long long)bytes, (unsigned long long)first_byte);
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&found.identity);
    if (status == LMCS_OK && bytes > 0)
        range_init(&r, &found.chain);
    *done = found.count;
    if (found.count == 1)
        r.buffer = ranges[0].buffer;
    for (size_t i = 0; found.count > 1 && i < found.count; i++) {
        const struct lmcs_content *content = i == 0 ? top : &found.arrays[i - 1];
        contents[content->df.output] = content;
        r.buffers[content->df.output] = ranges[i].buffer;
    }
    if (status == LMCS_OK && !r.is_known)
        status = lmcs_reader_open(snapshot->pool, &found.chain, &tensor, contents, &r.reader, error);
    if (status == LMCS_OK && bytes > 0)
        status = read_range(&r, error);
    lmcs_reader_close(r.reader);
    lmcs_chain_unpin(snapshot->pool, &found.chain);
    lmcs_snapshot_explain_damage(snapshot, status == LMCS_DAMAGED ? error : NULL);
    return status;
}

enum lmcs_status lmcs_snapshot_read_ranges(struct lmcs_snapshot *snapshot, uint32_t kind,
                                           const struct lmcs_tensor_range *ranges, size_t count,
                                           struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0, done; status == LMCS_OK && i < count; i += done) {
        size_t ignored;
        status = read_some(snapshot, kind, ranges + i, count - i, &done, error);
        if (status != LMCS_DAMAGED || done == 1)
            continue;
        status = LMCS_OK; /* which one is it? */
        for (size_t k = i; status == LMCS_OK && k < i + done; k++)
            status = read_some(snapshot, kind, ranges + k, 1, &ignored, error);
    }
    return status;
}

enum lmcs_status lmcs_snapshot_read_range(struct lmcs_snapshot *snapshot, uint32_t kind, const char *name,
                                          uint64_t first_byte, void *buffer, uint64_t bytes, struct lmcs_error *error)
{
    const struct lmcs_tensor_range range = {name, first_byte, bytes, buffer};
    return lmcs_snapshot_read_ranges(snapshot, kind, &range, 1, error);
}
