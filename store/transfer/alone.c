/* SPDX-License-Identifier: BSD-3-Clause */
/* transfer/alone.c - codes a content as a frame that needs no other content (store/ARCHIVE.md, 11.2). */
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
static enum lmcs_status verify(struct lmcs_workers *workers, struct coding *coding, uint64_t bytes,
                               struct lmcs_error *error)
{
    const char *why;
    if (lmc_frame_parse(coding->frame, bytes, &coding->parsed, &why) != LMC_OK)
        return lmcs_fail(error, LMCS_INVALID, 0, "a new frame can't be decoded: %s", why);
    return lmcs_workers_try(workers, verify_block, NULL, coding, coding->parsed.block_count, error);
}

/* *bytes: of the frame. */
static enum lmcs_status encode(struct lmcs_workers *workers, struct coding *coding, const struct lmc_params *params,
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
    enum lmcs_status status = lmcs_workers_try(workers, encode_block, NULL, coding, count, error);
    if (status != LMCS_OK)
        return status;
    *bytes = join_blocks(coding, count);
    if (lmc_encode_header(coding->encoder, coding->blocks, coding->frame, coding->header_bytes) != LMC_OK)
        return lmcs_fail_memory(error);
    return verify(workers, coding, *bytes, error);
}

enum lmcs_status lmcs_alone_encode(struct lmcs_pool *pool, const struct lmcs_chain *chain,
                                   const struct lmcs_tensor *tensor, unsigned char **frame, uint64_t *bytes,
                                   struct lmcs_error *error)
{
    const uint64_t raw_bytes = chain->links[0].df.raw_bytes;
    *frame = NULL;
    if (raw_bytes < LEAST_BYTES || raw_bytes > MOST_BYTES)
        return LMCS_OK;
    struct coding coding = {.encoder = NULL};
    void *raw = malloc(raw_bytes);
    const struct lmc_params params = {.dtype = tensor->dtype, .raw_bytes = raw_bytes, .data = raw};
    enum lmcs_status status =
        raw == NULL ? lmcs_fail_memory(error) : lmcs_chain_read(pool, chain, tensor, raw, NULL, error);
    if (status == LMCS_OK)
        status = encode(pool->workers, &coding, &params, bytes, error);
    if (status == LMCS_OK && *bytes < raw_bytes - raw_bytes / 64) {
        *frame = coding.frame;
        coding.frame = NULL;
    }
    lmc_encoder_free(coding.encoder);
    free(coding.blocks);
    free(coding.frame);
    free(raw);
    return status;
}
