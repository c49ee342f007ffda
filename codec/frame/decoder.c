/* SPDX-License-Identifier: BSD-3-Clause */
/* decoder.c - decodes frames. Coded bytes are checked before decoding; only the check of decoded bytes detects a wrong
 * base. */
#include "base/bytes.h"
#include "base/dtype.h"
#include "block/block.h"
#include "frame/frame.h"
#include "kernels/checksum.h"

static enum lmc_status check_decoded(const struct lmc_frame *frame, const struct lmc_block *block,
                                     const struct lmc_hash *content, const char **message)
{
    if (content->low == block->raw_hash.low && content->high == block->raw_hash.high)
        return LMC_OK;
    if (frame->base_count != 0)
        return lmci_damaged(message, "a decoded block differs from the encoded one: the base may be wrong");
    return lmci_damaged(message, "a decoded block differs from the encoded one");
}

/* `is_base`: the block is the base of the one decoded next, whose checks cover both; it stays in the cache. */
static enum lmc_status decode(const struct lmc_frame *frame, uint64_t index, const void *coded, size_t coded_bytes,
                              const void *const *bases, bool is_base, void *dst, size_t dst_bytes, const char **message)
{
    const char *unused;
    message = message != NULL ? message : &unused;
    if (frame->header == NULL || index >= frame->block_count)
        return lmci_fail(LMC_INVALID, message, "the frame has no such block");
    if (frame->predictor != 0)
        return lmci_unsupported(message, "the frame is a link: decode it as one");
    if (frame->base_count != 0 && (bases == NULL || bases[0] == NULL))
        return lmci_fail(LMC_INVALID, message, "the frame needs a base, but none was given");
    struct lmc_block block = lmc_frame_block(frame, index, NULL);
    struct lmci_block_shape shape = {lmci_dtype_word(frame->dtype), lmci_block_bytes(frame->raw_bytes, index),
                                     .stream = !is_base && frame->raw_bytes >= LMCI_STREAM_LEAST};
    if (coded_bytes != block.coded_bytes)
        return lmci_fail(LMC_INVALID, message, "the number of coded bytes differs from the header");
    if (dst_bytes < shape.bytes)
        return lmci_fail(LMC_NO_SPACE, message, "the destination is too small for the block");
    if (!is_base && lmc_hash64(coded, coded_bytes, index) != block.coded_hash)
        return lmci_damaged(message, "the checksum of a coded block does not match");
    const unsigned char *base = frame->base_count != 0 ? bases[0] : NULL;
    struct lmc_hash content;
    enum lmc_status status =
        lmci_block_decode(&shape, coded, coded_bytes, base, dst, is_base ? NULL : &content, message);
    return status == LMC_OK && !is_base ? check_decoded(frame, &block, &content, message) : status;
}

enum lmc_status lmc_decode_block(const struct lmc_frame *frame, uint64_t index, const void *coded, size_t coded_bytes,
                                 const void *const *bases, void *dst, size_t dst_bytes, const char **message)
{
    return decode(frame, index, coded, coded_bytes, bases, false, dst, dst_bytes, message);
}

enum lmc_status lmc_decode_base(const struct lmc_frame *frame, uint64_t index, const void *coded, size_t coded_bytes,
                                const void *const *bases, void *dst, size_t dst_bytes, const char **message)
{
    return decode(frame, index, coded, coded_bytes, bases, true, dst, dst_bytes, message);
}

enum lmc_status lmci_frame_digest(const struct lmc_frame *frame, uint32_t output, uint32_t dtype, uint32_t ndim,
                                  const uint64_t *shape, struct lmc_hash *digest)
{
    struct lmc_hasher hasher;
    if (ndim > LMC_MAX_DIMS || (ndim != 0 && shape == NULL))
        return LMC_INVALID;
    lmci_digest_begin(&hasher, dtype, ndim, shape);
    for (uint64_t i = 0; i < frame->block_count; i++) {
        const struct lmc_hash hash = lmci_frame_raw_hash(frame, i, output);
        lmc_hasher_update(&hasher, &hash, sizeof hash);
    }
    *digest = lmc_hasher_final(&hasher);
    return LMC_OK;
}

enum lmc_status lmc_frame_digest(const struct lmc_frame *frame, uint32_t dtype, uint32_t ndim, const uint64_t *shape,
                                 struct lmc_hash *digest)
{
    if (frame->header == NULL || frame->predictor != 0)
        return LMC_INVALID;
    return lmci_frame_digest(frame, 0, dtype, ndim, shape, digest);
}

static enum lmc_status decompress_block(const struct lmc_frame *frame, uint64_t index, const unsigned char *bytes,
                                        const void *const *bases, unsigned char *dst, const char **message)
{
    uint64_t offset;
    struct lmc_block block = lmc_frame_block(frame, index, &offset);
    size_t at = (size_t)index * LMC_BLOCK_BYTES;
    const void *base[LMC_MAX_BASES] = {NULL};
    for (uint32_t i = 0; i < frame->base_count; i++)
        base[i] = (const unsigned char *)bases[i] + at;
    return lmc_decode_block(frame, index, bytes + offset, block.coded_bytes, base, dst + at,
                            lmci_block_bytes(frame->raw_bytes, index), message);
}

enum lmc_status lmc_decompress(const void *frame, size_t frame_bytes, const void *const *bases, void *dst,
                               size_t dst_bytes, const char **message)
{
    const char *unused;
    struct lmc_frame parsed;
    message = message != NULL ? message : &unused;
    enum lmc_status status = lmc_frame_parse(frame, frame_bytes, &parsed, message);
    if (status != LMC_OK)
        return status;
    if (frame_bytes != parsed.frame_bytes)
        return lmci_damaged(message, "the frame's length differs from its header");
    if (parsed.predictor != 0)
        return lmci_unsupported(message, "the frame is a link: decode it as one");
    if (dst_bytes < parsed.raw_bytes)
        return lmci_fail(LMC_NO_SPACE, message, "the destination is too small for the tensor");
    for (uint32_t i = 0; i < parsed.base_count; i++)
        if (parsed.raw_bytes != 0 && (bases == NULL || bases[i] == NULL))
            return lmci_fail(LMC_INVALID, message, "the frame needs a base, but none was given");
    for (uint64_t i = 0; i < parsed.block_count && status == LMC_OK; i++)
        status = decompress_block(&parsed, i, frame, bases, dst, message);
    return status;
}
