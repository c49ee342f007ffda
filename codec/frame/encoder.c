/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * encoder.c - encodes a tensor as a frame. An encoder never changes. The header has a fixed size and is written last.
 */
#include "base/bytes.h"
#include "base/dtype.h"
#include "base/memory.h"
#include "block/block.h"
#include "block/codes.h"
#include "block/plan.h"
#include "frame/frame.h"

struct lmc_encoder {
    struct lmc_params params;
    struct lmci_scheme scheme;
    const struct lmci_codes *codes; /* or NULL */
    struct lmci_codes *own_codes;   /* the same, unless they are those of a like tensor */
    bool is_model;
    uint32_t base_count;
    uint64_t block_count;
    size_t header_bytes;
};

static enum lmc_status check_params(const struct lmc_params *params, const char **message)
{
    size_t size = lmc_dtype_size(params->dtype);
    if (size == 0)
        return lmci_fail(LMC_INVALID, message, "unknown dtype");
    if (params->raw_bytes % size != 0)
        return lmci_fail(LMC_INVALID, message, "the size is not a multiple of the dtype's");
    if (params->raw_bytes > LMCI_MAX_RAW_BYTES || params->raw_bytes > PTRDIFF_MAX)
        return lmci_fail(LMC_INVALID, message, "the tensor is too large for a frame");
    if (params->raw_bytes != 0 && params->data == NULL)
        return lmci_fail(LMC_INVALID, message, "data is NULL");
    if (params->level != LMC_LEVEL_DEFAULT && params->level != LMC_LEVEL_DENSE)
        return lmci_fail(LMC_INVALID, message, "unknown level");
    if ((params->flags & ~LMC_FRAME_CONTINUES) != 0)
        return lmci_fail(LMC_INVALID, message, "unknown flag");
    return LMC_OK;
}

#define LIKE_LEAST ((uint64_t)16 << 10) /* tables of codes take much of a smaller tensor: a plan of its own pays */
#define LIKE_MOST  ((uint64_t)64 << 10) /* a larger tensor profits from more classes */
#define LIKE_TIMES 4u                   /* sizes may differ by this factor */

static bool is_small(const struct lmc_params *params)
{
    return params->level == LMC_LEVEL_DEFAULT && params->raw_bytes >= LIKE_LEAST && params->raw_bytes <= LIKE_MOST;
}

static bool takes_over(const struct lmc_params *params, const struct lmc_encoder *like, struct lmci_scheme *scheme)
{
    if (!is_small(params) || !like->is_model)
        return false;
    const struct lmc_params *other = &like->params;
    return params->dtype == other->dtype && params->raw_bytes <= LIKE_TIMES * other->raw_bytes &&
           other->raw_bytes <= LIKE_TIMES * params->raw_bytes && lmci_plan_like(params, &like->scheme, scheme);
}

/* Plans by itself. `model`: for others, too. */
static enum lmc_status plan(struct lmc_encoder *encoder, bool model)
{
    encoder->is_model = model && is_small(&encoder->params);
    enum lmc_status status = lmci_plan(&encoder->params, encoder->is_model, &encoder->scheme);
    if (status == LMC_OK)
        status = lmci_codes_make(&encoder->params, &encoder->scheme, encoder->is_model, &encoder->own_codes);
    encoder->codes = encoder->own_codes;
    return status;
}

static enum lmc_status make(const struct lmc_params *params, const struct lmc_encoder *like, bool model,
                            struct lmc_encoder **encoder, const char **message)
{
    const char *unused;
    message = message != NULL ? message : &unused;
    *encoder = NULL;
    enum lmc_status status = check_params(params, message);
    if (status != LMC_OK)
        return status;
    struct lmc_encoder *made = lmci_allocate(sizeof *made);
    if (made != NULL)
        *made = (struct lmc_encoder){.params = *params, .block_count = lmc_block_count(params->raw_bytes)};
    if (made != NULL && like != NULL && takes_over(params, like, &made->scheme))
        made->codes = like->codes;
    else
        status = made != NULL ? plan(made, model) : LMC_NO_MEMORY;
    if (status != LMC_OK) {
        *message = "no memory to plan a frame";
        lmci_release(made);
        return status;
    }
    made->base_count = lmci_scheme_needs_base(&made->scheme) ? 1 : 0;
    made->header_bytes = (size_t)lmci_header_bytes(made->base_count, made->block_count);
    *encoder = made;
    return LMC_OK;
}

enum lmc_status lmc_encoder_new(const struct lmc_params *params, struct lmc_encoder **encoder, const char **message)
{
    return make(params, NULL, false, encoder, message);
}

enum lmc_status lmc_encoder_new_like(const struct lmc_params *params, const struct lmc_encoder *like,
                                     struct lmc_encoder **encoder, const char **message)
{
    return make(params, like, like == NULL, encoder, message);
}

void lmc_encoder_free(struct lmc_encoder *encoder)
{
    if (encoder != NULL)
        lmci_release(encoder->own_codes);
    lmci_release(encoder);
}

uint64_t lmc_encoder_block_count(const struct lmc_encoder *encoder)
{
    return encoder->block_count;
}

uint32_t lmc_encoder_base_count(const struct lmc_encoder *encoder)
{
    return encoder->base_count;
}

/* Deltas, and tensors that repeat: all other frames are for any version. */
static bool is_newest(const struct lmc_encoder *encoder)
{
    return encoder->base_count != 0 || encoder->scheme.copies;
}

enum lmc_status lmc_encode_block_of(const struct lmc_encoder *encoder, uint64_t index, const void *data,
                                    const void *base, void *dst, size_t dst_bytes, struct lmc_block *block)
{
    const struct lmc_params *params = &encoder->params;
    size_t coded_bytes;
    if (index >= encoder->block_count || (encoder->base_count != 0 && base == NULL))
        return LMC_INVALID;
    struct lmci_block_shape shape = {lmci_dtype_word(params->dtype), lmci_block_bytes(params->raw_bytes, index),
                                     .dense = params->level == LMC_LEVEL_DENSE, .pairs = is_newest(encoder),
                                     .codes = encoder->codes};
    if (dst_bytes < lmc_block_bound(shape.bytes))
        return LMC_NO_SPACE;
    enum lmc_status status = lmci_block_encode(&shape, &encoder->scheme, data, encoder->base_count != 0 ? base : NULL,
                                               dst, &coded_bytes, &block->raw_hash);
    if (status != LMC_OK)
        return status;
    block->coded_bytes = (uint32_t)coded_bytes;
    block->mode = 0;
    block->coded_hash = lmc_hash64(dst, coded_bytes, index);
    return LMC_OK;
}

enum lmc_status lmc_encode_block(const struct lmc_encoder *encoder, uint64_t index, void *dst, size_t dst_bytes,
                                 struct lmc_block *block)
{
    const struct lmc_params *params = &encoder->params;
    if (index >= encoder->block_count)
        return LMC_INVALID;
    size_t offset = (size_t)index * LMC_BLOCK_BYTES;
    const unsigned char *data = (const unsigned char *)params->data + offset;
    const unsigned char *base = encoder->base_count != 0 ? (const unsigned char *)params->base + offset : NULL;
    return lmc_encode_block_of(encoder, index, data, base, dst, dst_bytes, block);
}

size_t lmc_encoder_header_bytes(const struct lmc_encoder *encoder)
{
    return encoder->header_bytes;
}

enum lmc_status lmc_encode_header(const struct lmc_encoder *encoder, const struct lmc_block *blocks, void *dst,
                                  size_t dst_bytes)
{
    const struct lmc_params *params = &encoder->params;
    if (dst_bytes < encoder->header_bytes)
        return LMC_NO_SPACE;
    for (uint64_t i = 0; i < encoder->block_count; i++)
        if (blocks[i].mode != 0 || blocks[i].coded_bytes == 0 ||
            blocks[i].coded_bytes > lmc_block_bound(lmci_block_bytes(params->raw_bytes, i)))
            return LMC_INVALID;
    struct lmci_header header = {
        .version = is_newest(encoder) ? LMCI_VERSION : LMCI_VERSION_FIRST,
        .dtype = params->dtype,
        .flags = params->flags,
        .base_count = encoder->base_count,
        .raw_bytes = params->raw_bytes,
        .base_digest = &params->base_digest,
        .block_count = encoder->block_count,
        .blocks = blocks,
    };
    lmci_header_write(&header, dst);
    return LMC_OK;
}

uint64_t lmc_frame_bound(uint64_t raw_bytes)
{
    if (raw_bytes > LMCI_MAX_RAW_BYTES)
        return UINT64_MAX;
    uint64_t blocks = lmc_block_count(raw_bytes);
    return lmci_header_bytes(LMC_MAX_BASES, blocks) + raw_bytes + blocks;
}

/* ---- Whole frames ---------------------------------------------------------------------------------------------- */

static_assert(offsetof(struct lmc_block, coded_bytes) == 0, "entries begin with coded_bytes");
static_assert(offsetof(struct lmc_link_block, coded_bytes) == 0, "entries begin with coded_bytes");

static enum lmc_status compress(const struct lmci_frame_encoder *frame, unsigned char *entries, unsigned char *dst,
                                size_t dst_bytes, size_t *frame_bytes)
{
    size_t used = frame->header_bytes;
    if (dst_bytes < used)
        return LMC_NO_SPACE;
    for (uint64_t i = 0; i < frame->block_count; i++) {
        void *entry = entries + i * frame->entry_bytes;
        enum lmc_status status = frame->encode_block(frame->encoder, i, dst + used, dst_bytes - used, entry);
        if (status != LMC_OK)
            return status;
        used += *(const uint32_t *)entry;
    }
    *frame_bytes = used;
    return frame->encode_header(frame->encoder, entries, dst, dst_bytes);
}

enum lmc_status lmci_compress(const struct lmci_frame_encoder *frame, unsigned char *dst, size_t dst_bytes,
                              size_t *frame_bytes, const char **message)
{
    unsigned char *entries = lmci_allocate((size_t)frame->block_count * frame->entry_bytes + 1);
    enum lmc_status status = entries == NULL ? LMC_NO_MEMORY : compress(frame, entries, dst, dst_bytes, frame_bytes);
    if (status == LMC_NO_MEMORY)
        *message = "no memory to encode a frame";
    if (status == LMC_NO_SPACE)
        *message = "the destination is too small for the frame";
    lmci_release(entries);
    return status;
}

static enum lmc_status encode_block(const void *encoder, uint64_t index, void *dst, size_t dst_bytes, void *entry)
{
    return lmc_encode_block(encoder, index, dst, dst_bytes, entry);
}

static enum lmc_status encode_header(const void *encoder, const void *entries, void *dst, size_t dst_bytes)
{
    return lmc_encode_header(encoder, entries, dst, dst_bytes);
}

enum lmc_status lmc_encode_frame(const struct lmc_encoder *encoder, void *dst, size_t dst_bytes, size_t *frame_bytes,
                                 const char **message)
{
    const char *unused;
    const struct lmci_frame_encoder frame = {
        encoder, encoder->block_count, encoder->header_bytes, sizeof(struct lmc_block), encode_block, encode_header};
    return lmci_compress(&frame, dst, dst_bytes, frame_bytes, message != NULL ? message : &unused);
}

enum lmc_status lmc_compress(const struct lmc_params *params, void *dst, size_t dst_bytes, size_t *frame_bytes,
                             const char **message)
{
    const char *unused;
    struct lmc_encoder *encoder;
    message = message != NULL ? message : &unused;
    enum lmc_status status = lmc_encoder_new(params, &encoder, message);
    if (status != LMC_OK)
        return status;
    status = lmc_encode_frame(encoder, dst, dst_bytes, frame_bytes, message);
    lmc_encoder_free(encoder);
    return status;
}
