/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/alone.c - sends a content as a frame of its own, which needs no other content (store/ARCHIVE.md, 11.2). */
#include "transfer/alone.h"

#include <stdlib.h>
#include <string.h>

#include "lmc.h"
#include "payload/layout.h"

#define LEAST_BYTES ((uint64_t)4 << 10)
#define MOST_BYTES  ((uint64_t)1 << 30) /* larger ones are sent raw: memory */

struct coding {
    struct lmc_encoder *encoder;
    struct lmc_block *blocks;
    unsigned char *frame; /* the header, and a slot for each block */
    size_t header_bytes, slot_bytes;
    struct lmc_frame parsed;
};

static enum lmcs_status encode_block(void *context, uint64_t i, struct lmcs_error *error)
{
    struct coding *coding = context;
    unsigned char *slot = coding->frame + coding->header_bytes + i * coding->slot_bytes;
    enum lmc_status made = lmc_encode_block(coding->encoder, i, slot, coding->slot_bytes, &coding->blocks[i]);
    return made == LMC_OK ? LMCS_OK : lmcs_fail_memory(error);
}

/* Closes the gaps between the slots; returns the size of the frame. */
static uint64_t join_blocks(struct coding *coding, uint64_t count)
{
    uint64_t at = coding->header_bytes;
    for (uint64_t i = 0; i < count; i++) {
        const unsigned char *slot = coding->frame + coding->header_bytes + i * coding->slot_bytes;
        memmove(coding->frame + at, slot, coding->blocks[i].coded_bytes);
        at += coding->blocks[i].coded_bytes;
    }
    return at;
}

static enum lmcs_status verify_block(void *context, uint64_t i, struct lmcs_error *error)
{
    const struct coding *coding = context;
    uint64_t offset;
    const char *why;
    const struct lmc_block block = lmc_frame_block(&coding->parsed, i, &offset);
    const uint64_t left = coding->parsed.raw_bytes - i * LMC_BLOCK_BYTES;
    const size_t bytes = left < LMC_BLOCK_BYTES ? (size_t)left : LMC_BLOCK_BYTES;
    void *decoded = malloc(bytes);
    if (decoded == NULL)
        return lmcs_fail_memory(error);
    enum lmc_status status =
        lmc_decode_block(&coding->parsed, i, coding->frame + offset, block.coded_bytes, NULL, decoded, bytes, &why);
    free(decoded);
    return status == LMC_OK ? LMCS_OK : lmcs_fail(error, LMCS_INVALID, 0, "a new frame can't be decoded: %s", why);
}

/* The hashes in the frame, with which the codec compares decoded blocks, are those of the raw bytes. */
static enum lmcs_status verify(struct lmcs_dump *dump, struct coding *coding, uint64_t bytes, struct lmcs_error *error)
{
    const char *why;
    if (lmc_frame_parse(coding->frame, bytes, &coding->parsed, &why) != LMC_OK)
        return lmcs_fail(error, LMCS_INVALID, 0, "a new frame can't be decoded: %s", why);
    return lmcs_workers_try(dump->pool->workers, verify_block, NULL, coding, coding->parsed.block_count, error);
}

/* *bytes: of the frame. */
static enum lmcs_status encode(struct lmcs_dump *dump, struct coding *coding, const struct lmc_params *params,
                               uint64_t *bytes, struct lmcs_error *error)
{
    const char *why;
    enum lmc_status made = lmc_encoder_new(params, &coding->encoder, &why);
    if (made != LMC_OK)
        return made == LMC_NO_MEMORY ? lmcs_fail_memory(error) : lmcs_fail(error, LMCS_INVALID, 0, "codec: %s", why);
    uint64_t count = lmc_encoder_block_count(coding->encoder);
    coding->header_bytes = lmc_encoder_header_bytes(coding->encoder);
    coding->slot_bytes = lmc_block_bound(params->raw_bytes < LMC_BLOCK_BYTES ? params->raw_bytes : LMC_BLOCK_BYTES);
    coding->blocks = calloc(count, sizeof *coding->blocks);
    coding->frame = malloc(coding->header_bytes + count * coding->slot_bytes);
    if (coding->blocks == NULL || coding->frame == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = lmcs_workers_try(dump->pool->workers, encode_block, NULL, coding, count, error);
    if (status != LMCS_OK)
        return status;
    *bytes = join_blocks(coding, count);
    if (lmc_encode_header(coding->encoder, coding->blocks, coding->frame, coding->header_bytes) != LMC_OK)
        return lmcs_fail_memory(error);
    return verify(dump, coding, *bytes, error);
}

static enum lmcs_status send_frame(struct lmcs_dump *dump, const struct lmcs_content *content,
                                   const unsigned char *frame, uint64_t bytes, struct lmcs_error *error)
{
    struct lmcs_archive_content_df df = {.digest_low = content->df.digest_low,
                                         .digest_high = content->df.digest_high,
                                         .raw_bytes = content->df.raw_bytes,
                                         .stored_bytes = bytes,
                                         .payload = LMCS_PAYLOAD_FRAME};
    enum lmcs_status status = lmcs_dump_identity(dump, content->df.identity, &df.identity, error);
    if (status == LMCS_OK)
        status = lmcs_id_put(&dump->contents, content->id, ++dump->end.contents << LMCS_SENT_BITS, error);
    if (status == LMCS_OK)
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_CONTENT, &df, sizeof df, NULL, 0, error);
    for (uint64_t at = 0; status == LMCS_OK && at < bytes; at += LMCS_ARCHIVE_PIECE_BYTES) {
        uint64_t left = bytes - at;
        size_t n = left < LMCS_ARCHIVE_PIECE_BYTES ? (size_t)left : LMCS_ARCHIVE_PIECE_BYTES;
        status = lmcs_dump_record(dump, LMCS_ARCHIVE_DATA, frame + at, n, NULL, 0, error);
    }
    return status;
}

enum lmcs_status lmcs_dump_alone(struct lmcs_dump *dump, const struct lmcs_chain *chain, bool *is_sent,
                                 struct lmcs_error *error)
{
    const struct lmcs_content *content = &chain->links[0];
    const uint64_t raw_bytes = content->df.raw_bytes;
    struct lmcs_identity identity;
    *is_sent = false;
    if (raw_bytes < LEAST_BYTES || raw_bytes > MOST_BYTES)
        return LMCS_OK;
    enum lmcs_status status = lmcs_identity_get(&dump->txn, content->df.identity, &identity, error);
    if (status != LMCS_OK)
        return status;
    const struct lmcs_tensor tensor = lmcs_identity_tensor(&identity);
    struct coding coding = {.encoder = NULL};
    uint64_t bytes = 0;
    void *raw = malloc(raw_bytes);
    const struct lmc_params params = {.dtype = tensor.dtype, .raw_bytes = raw_bytes, .data = raw};
    status = raw == NULL ? lmcs_fail_memory(error) : lmcs_chain_read(dump->pool, chain, &tensor, raw, NULL, error);
    if (status == LMCS_OK)
        status = encode(dump, &coding, &params, &bytes, error);
    *is_sent = status == LMCS_OK && bytes < raw_bytes - raw_bytes / 64;
    if (*is_sent)
        status = send_frame(dump, content, coding.frame, bytes, error);
    lmc_encoder_free(coding.encoder);
    free(coding.blocks);
    free(coding.frame);
    free(raw);
    return status;
}
