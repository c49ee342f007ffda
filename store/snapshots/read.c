/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * snapshots/read.c - copies a tensor of a snapshot, or a part of it.
 *
 * A block of a raw payload is compared with its checksum once (payload/verified.h); then only the wanted bytes are
 * read.
 */
#include <stdlib.h>
#include <string.h>

#include "payload/verified.h"
#include "records/manifest.h"
#include "records/safety.h"
#include "snapshots/snapshot.h"

/* Finds a tensor and pins its chain. *any_lost: a scrub recorded blocks of it as lost. */
static enum lmcs_status find_tensor(struct lmcs_snapshot *snapshot, uint32_t kind, const char *name,
                                    struct lmcs_identity *identity, struct lmcs_chain *chain, bool *any_lost,
                                    struct lmcs_error *error)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    uint64_t content;
    bool found;
    enum lmcs_status status = lmcs_snapshot_enter(snapshot, &txn, &shelf, &record, error);
    if (status != LMCS_OK)
        return status;
    status = lmcs_manifest_find(&txn, &record.df, kind, name, identity, &content, &found, error);
    if (status == LMCS_OK && !found)
        status = lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: %s@%llu has no tensor \"%.200s\"", snapshot->pool->path,
                           snapshot->shelf, (unsigned long long)snapshot->info.number, name);
    if (status == LMCS_OK)
        status = lmcs_chain_load(&txn, content, chain, error);
    if (status == LMCS_OK)
        status = lmcs_lost_any(&txn, content, any_lost, error);
    if (status == LMCS_OK)
        status = lmcs_chain_pin(snapshot->pool, chain, error);
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
};

/* Whether to copy the bytes of a block without comparing them. */
static bool is_known(const struct range_reading *r, uint64_t block)
{
    return r->raw != NULL &&
           (r->snapshot->trusts_raw || lmcs_verified_has(r->snapshot->pool, r->raw->id, r->raw->parts, block));
}

/* Reads a whole block to its place; a block at an edge through a buffer. */
static enum lmcs_status read_range_block(const struct range_reading *r, uint64_t block, struct lmcs_error *error)
{
    uint64_t at = block * LMC_BLOCK_BYTES, end = r->first_byte + r->bytes;
    uint64_t block_end = r->raw_bytes - at < LMC_BLOCK_BYTES ? r->raw_bytes : at + LMC_BLOCK_BYTES;
    uint64_t from = at > r->first_byte ? at : r->first_byte, to = block_end < end ? block_end : end;
    unsigned char *target = r->buffer + (from - r->first_byte), *whole = NULL;
    if (r->is_known || is_known(r, block))
        return lmcs_payload_read(r->snapshot->pool->media, r->raw, from, target, to - from, error);
    if (from != at || to != block_end) {
        whole = malloc(block_end - at);
        if (whole == NULL)
            return lmcs_fail_memory(error);
    }
    enum lmcs_status status = lmcs_reader_block(r->reader, block, whole != NULL ? whole : target, error);
    if (status == LMCS_OK && whole != NULL)
        memcpy(target, whole + (from - at), to - from);
    if (status == LMCS_OK && r->raw != NULL)
        lmcs_verified_note(r->snapshot->pool, r->raw->id, r->raw->parts, block);
    free(whole);
    return status;
}

static enum lmcs_status read_range_job(void *context, uint64_t i, struct lmcs_error *error)
{
    struct range_reading *r = context;
    return read_range_block(r, r->first_block + i, error);
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
    struct lmcs_identity identity;
    struct lmcs_chain chain;
    struct range_reading r = {.snapshot = snapshot, .raw_bytes = buffer_bytes, .bytes = buffer_bytes, .buffer = buffer};
    enum lmcs_status status = find_tensor(snapshot, kind, name, &identity, &chain, &r.any_lost, error);
    if (status != LMCS_OK)
        return status;
    if (chain.links[0].df.raw_bytes != buffer_bytes)
        status = lmcs_fail(error, LMCS_INVALID, 0, "tensor \"%.200s\" has %llu bytes, the buffer %llu", name,
                           (unsigned long long)chain.links[0].df.raw_bytes, (unsigned long long)buffer_bytes);
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&identity);
    if (status == LMCS_OK && buffer_bytes > 0)
        range_init(&r, &chain);
    if (status == LMCS_OK && r.is_known)
        status = read_range(&r, error);
    else if (status == LMCS_OK)
        status = lmcs_chain_read(snapshot->pool, &chain, &tensor, buffer, NULL, error);
    if (status == LMCS_OK && r.raw != NULL && !r.is_known)
        lmcs_verified_note(snapshot->pool, r.raw->id, r.raw->parts, LMCS_ALL_BLOCKS);
    lmcs_chain_unpin(snapshot->pool, &chain);
    lmcs_snapshot_explain_damage(snapshot, status == LMCS_DAMAGED ? error : NULL);
    return status;
}

enum lmcs_status lmcs_snapshot_read_range(struct lmcs_snapshot *snapshot, uint32_t kind, const char *name,
                                          uint64_t first_byte, void *buffer, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_identity identity;
    struct lmcs_chain chain;
    struct range_reading r = {.snapshot = snapshot, .first_byte = first_byte, .bytes = bytes, .buffer = buffer};
    enum lmcs_status status = find_tensor(snapshot, kind, name, &identity, &chain, &r.any_lost, error);
    if (status != LMCS_OK)
        return status;
    r.raw_bytes = chain.links[0].df.raw_bytes;
    if (first_byte > r.raw_bytes || bytes > r.raw_bytes - first_byte)
        status = lmcs_fail(error, LMCS_INVALID, 0,
                           "tensor \"%.200s\" has %llu bytes: %llu from byte %llu on are more than there are", name,
                           (unsigned long long)r.raw_bytes, (unsigned long long)bytes, (unsigned long long)first_byte);
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&identity);
    if (status == LMCS_OK && bytes > 0)
        range_init(&r, &chain);
    if (status == LMCS_OK && !r.is_known)
        status = lmcs_reader_open(snapshot->pool, &chain, &tensor, &r.reader, error);
    if (status == LMCS_OK && bytes > 0)
        status = read_range(&r, error);
    lmcs_reader_close(r.reader);
    lmcs_chain_unpin(snapshot->pool, &chain);
    lmcs_snapshot_explain_damage(snapshot, status == LMCS_DAMAGED ? error : NULL);
    return status;
}
