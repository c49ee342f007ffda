/* SPDX-License-Identifier: BSD-3-Clause */
/* encoder.c - encodes two states as a link. A block that is not clearly smaller is encoded as deltas, too; the smaller
 * form is kept. */
#include "base/bytes.h"
#include "base/memory.h"
#include "block/block.h"
#include "block/plan.h"
#include "frame/frame.h"
#include "frame/rule.h"
#include "kernels/kernels.h"
#include "link/sample.h"

struct lmc_link_encoder {
    struct lmc_link_params params;
    unsigned arrays;
    struct lmci_link_plan plan;
    uint64_t block_count;
    size_t header_bytes;
};

/* ---- Planning -------------------------------------------------------------------------------------------------- */

/* Returns the elements to sample: few, since planning encodes the sample several times. */
static size_t sample_of(uint64_t raw_bytes)
{
    const uint64_t some = raw_bytes / 4 / 32;
    return some < LMCI_SAMPLE_ELEMENTS / 4 ? LMCI_SAMPLE_ELEMENTS / 4
           : some < LMCI_SAMPLE_ELEMENTS   ? (size_t)some
                                           : LMCI_SAMPLE_ELEMENTS;
}

#define KAPPA_ZERO 128u /* in a plan as a number */

uint32_t lmc_link_encoder_plan(const struct lmc_link_encoder *encoder)
{
    const struct lmci_link_plan *plan = &encoder->plan;
    return (uint32_t)plan->mode | (uint32_t)plan->other << 8 | ((uint32_t)plan->kappa + KAPPA_ZERO) << 16;
}

/* Reads a plan with long gradients. SHORT is found as fast without one. */
static bool read_plan(uint32_t number, struct lmci_link_plan *plan)
{
    const uint32_t mode = number & 255, other = number >> 8 & 255;
    const int kappa = (int)(number >> 16) - (int)KAPPA_ZERO;
    *plan = (struct lmci_link_plan){(enum lmci_gradient_mode)mode, (enum lmci_gradient_mode)other, kappa, false};
    return (mode == LMCI_GRADIENT_VARIABLE || mode == LMCI_GRADIENT_FULL) &&
           (other == LMCI_GRADIENT_VARIABLE || other == LMCI_GRADIENT_FULL) && kappa >= -LMCI_MOST_KAPPA &&
           kappa <= LMCI_MOST_KAPPA;
}

static enum lmc_status make_plan(struct lmc_link_encoder *encoder)
{
    const struct lmc_link_params *params = &encoder->params;
    struct lmci_link_plan like;
    const bool has_like = read_plan(params->like, &like);
    size_t bytes;
    encoder->plan = (struct lmci_link_plan){LMCI_GRADIENT_FULL, LMCI_GRADIENT_FULL, 0, false};
    if (params->raw_bytes == 0)
        return LMC_OK;
    struct lmci_link_sample *sample = lmci_allocate(sizeof *sample);
    if (sample == NULL)
        return LMC_NO_MEMORY;
    lmci_link_sample(encoder->arrays, params->before, params->after, params->raw_bytes, sample_of(params->raw_bytes),
                     sample);
    const struct lmci_float_environment saved = lmci_float_enter();
    enum lmc_status status =
        lmci_link_plan(&params->rule, &sample->view, sample->elements, has_like ? &like : NULL, &encoder->plan, &bytes);
    lmci_float_leave(&saved);
    lmci_release(sample);
    return status;
}

static enum lmc_status check_params(const struct lmc_link_params *params, const char **message)
{
    const unsigned arrays = lmc_link_arrays(params->rule.optimizer, params->rule.flags);
    if (arrays == 0 || !lmci_rule_is_valid(&params->rule))
        return lmci_fail(LMC_INVALID, message, "the rule has impossible constants or an unknown optimizer");
    if (params->raw_bytes % 4 != 0)
        return lmci_fail(LMC_INVALID, message, "the size is not a multiple of an f32's");
    if (params->raw_bytes > LMCI_MAX_RAW_BYTES / LMC_MAX_BASES || params->raw_bytes > PTRDIFF_MAX)
        return lmci_fail(LMC_INVALID, message, "the arrays are too large for a frame");
    for (unsigned k = 0; k < arrays; k++)
        if (params->raw_bytes != 0 && (params->before[k] == NULL || params->after[k] == NULL))
            return lmci_fail(LMC_INVALID, message, "an array of the state is missing");
    return LMC_OK;
}

enum lmc_status lmc_link_encoder_new(const struct lmc_link_params *params, struct lmc_link_encoder **encoder,
                                     const char **message)
{
    const char *unused;
    message = message != NULL ? message : &unused;
    *encoder = NULL;
    enum lmc_status status = check_params(params, message);
    if (status != LMC_OK)
        return status;
    struct lmc_link_encoder *made = lmci_allocate(sizeof *made);
    if (made == NULL)
        return lmci_fail(LMC_NO_MEMORY, message, "no memory to plan a link");
    memset(made, 0, sizeof *made);
    made->params = *params;
    made->arrays = lmc_link_arrays(params->rule.optimizer, params->rule.flags);
    made->block_count = lmc_block_count(params->raw_bytes);
    made->header_bytes = (size_t)lmci_link_header_bytes(made->arrays, made->block_count);
    status = make_plan(made);
    if (status != LMC_OK) {
        lmci_release(made);
        return lmci_fail(status, message, "no memory to plan a link");
    }
    *encoder = made;
    return LMC_OK;
}

void lmc_link_encoder_free(struct lmc_link_encoder *encoder)
{
    lmci_release(encoder);
}

uint64_t lmc_link_encoder_block_count(const struct lmc_link_encoder *encoder)
{
    return encoder->block_count;
}

size_t lmc_link_encoder_header_bytes(const struct lmc_link_encoder *encoder)
{
    return encoder->header_bytes;
}

/* ---- Blocks ---------------------------------------------------------------------------------------------------- */

/* A block, and room for a coded piece, which may exceed the room that the block has left. */
struct work {
    const struct lmc_link_encoder *encoder;
    struct lmci_link_view view;
    size_t bytes;                     /* of each array */
    struct lmci_state_hasher *hasher; /* NULL: hashes are known */
    unsigned char *scratch;
    unsigned char *piece;
};

static struct lmci_link_view view_at(const struct work *work, size_t at)
{
    struct lmci_link_view view = {{NULL}, {NULL}};
    for (unsigned k = 0; k < work->encoder->arrays; k++) {
        view.before[k] = work->view.before[k] + at;
        view.after[k] = work->view.after[k] + at;
    }
    return view;
}

/* Encodes the block in pieces. *used: bytes, or 0 if they exceed `room`. */
static enum lmc_status encode_pieces(const struct work *work, unsigned char *dst, size_t room, size_t *used)
{
    const struct lmc_link_encoder *encoder = work->encoder;
    const struct lmci_float_environment saved = lmci_float_enter();
    struct lmci_link_plan plan = encoder->plan;
    enum lmc_status status = LMC_OK;
    size_t at = 1;
    dst[0] = LMCI_LINK_PIECES;
    *used = 0;
    for (size_t from = 0; status == LMC_OK && from < work->bytes; from += 4 * LMCI_PIECE_ELEMENTS) {
        const size_t left = work->bytes - from;
        const size_t bytes = left < 4 * LMCI_PIECE_ELEMENTS ? left : 4 * LMCI_PIECE_ELEMENTS;
        const struct lmci_link_view view = view_at(work, from);
        const bool fits = room - at >= 3 + lmci_link_piece_bound(encoder->arrays, bytes / 4);
        unsigned char *piece = fits ? dst + at + 3 : work->piece;
        size_t written;
        status = lmci_link_encode_piece(&encoder->params.rule, &plan, &view, bytes / 4, work->scratch, piece, &written);
        if (work->hasher != NULL)
            lmci_state_hash(work->hasher, encoder->arrays, work->view.after, from + bytes);
        if (status != LMC_OK || written + 3 > room - at)
            break;
        for (unsigned k = 0; k < 3; k++)
            dst[at + k] = (unsigned char)(written >> 8 * k);
        if (!fits)
            memcpy(dst + at + 3, piece, written);
        at += 3 + written;
        *used = from + bytes == work->bytes ? at : 0;
    }
    lmci_float_leave(&saved);
    return status;
}

/* Encodes the arrays as deltas, which always fit the bound of a block. A delta reads its data several times, so `copy`
 * gets them: another thread may change the array. */
static enum lmc_status encode_deltas(const struct work *work, unsigned char *copy, unsigned char *dst, size_t *used)
{
    const struct lmci_block_shape shape = {.word = 4, .bytes = work->bytes};
    enum lmc_status status = LMC_OK;
    size_t at = 1;
    dst[0] = LMCI_LINK_DELTAS;
    for (unsigned k = 0; status == LMC_OK && k < work->encoder->arrays; k++) {
        const struct lmc_params params = {
            .dtype = LMC_F32, .raw_bytes = work->bytes, .data = copy, .base = work->view.before[k]};
        struct lmci_scheme scheme;
        struct lmc_hash unused;
        size_t written = 0;
        memcpy(copy, work->view.after[k], work->bytes);
        status = lmci_plan(&params, false, &scheme);
        if (status == LMC_OK)
            status = lmci_block_encode(&shape, &scheme, params.data, params.base, dst + at + 4, &written, &unused);
        lmci_store32(dst + at, (uint32_t)written);
        at += 4 + written;
    }
    *used = at;
    return status;
}

#define DELTAS_FROM_BITS 30 /* bits an element: deltas are hardly smaller */
#define SAME_FROM_BITS   2  /* the same if much did not change */
#define SAME_LEAST       8  /* one part in so many */

/* Whether many nonzero words of the first array are unchanged: then no step was made. */
static bool is_unchanged(const struct work *work)
{
    size_t same = 0, seen = 0;
    for (size_t at = 0; at + 4 <= work->bytes; at += work->bytes / 64 / 4 * 4 + 4, seen++) {
        const uint32_t before = lmci_load32(work->view.before[0] + at);
        same += before != 0 && before == lmci_load32(work->view.after[0] + at);
    }
    return same * SAME_LEAST > seen;
}

static enum lmc_status encode_smaller(const struct work *work, unsigned char *dst, size_t room, size_t *used)
{
    size_t as_deltas;
    enum lmc_status status = encode_pieces(work, dst, room, used);
    const size_t elements = work->bytes / 4;
    const bool doubtful = *used == 0 || 8 * *used > DELTAS_FROM_BITS * elements ||
                          (8 * *used > SAME_FROM_BITS * elements && is_unchanged(work));
    if (status != LMC_OK || !doubtful)
        return status;
    unsigned char *other = lmci_allocate(lmc_link_block_bound(work->encoder->arrays, work->bytes) + work->bytes);
    if (other == NULL)
        return LMC_NO_MEMORY;
    status = encode_deltas(work, other + lmc_link_block_bound(work->encoder->arrays, work->bytes), other, &as_deltas);
    if (status == LMC_OK && (*used == 0 || as_deltas < *used)) {
        memcpy(dst, other, as_deltas);
        *used = as_deltas;
    }
    lmci_release(other);
    return status;
}

enum lmc_status lmc_link_encode_block_hashed(const struct lmc_link_encoder *encoder, uint64_t index,
                                             const struct lmc_hash *hashes, void *dst, size_t dst_bytes,
                                             struct lmc_link_block *block)
{
    const struct lmc_link_params *params = &encoder->params;
    struct lmci_state_hasher hasher;
    struct work work = {.encoder = encoder, .hasher = hashes == NULL ? &hasher : NULL};
    size_t used;
    if (index >= encoder->block_count)
        return LMC_INVALID;
    work.bytes = lmci_block_bytes(params->raw_bytes, index);
    const size_t bound = lmc_link_block_bound(encoder->arrays, work.bytes);
    if (dst_bytes < bound)
        return LMC_NO_SPACE;
    memset(block, 0, sizeof *block);
    for (unsigned k = 0; k < encoder->arrays; k++) {
        work.view.before[k] = (const unsigned char *)params->before[k] + index * LMC_BLOCK_BYTES;
        work.view.after[k] = (const unsigned char *)params->after[k] + index * LMC_BLOCK_BYTES;
    }
    const size_t most = work.bytes / 4 < LMCI_PIECE_ELEMENTS ? work.bytes / 4 : LMCI_PIECE_ELEMENTS;
    work.scratch = lmci_allocate(lmci_link_encoder_bytes() + lmci_link_piece_bound(encoder->arrays, most));
    if (work.scratch == NULL)
        return LMC_NO_MEMORY;
    work.piece = work.scratch + lmci_link_encoder_bytes();
    lmci_state_hasher_init(&hasher);
    enum lmc_status status = encode_smaller(&work, dst, bound, &used);
    lmci_release(work.scratch);
    if (status != LMC_OK)
        return status;
    if (hashes == NULL)
        lmci_state_hash(&hasher, encoder->arrays, work.view.after, work.bytes);
    for (unsigned k = 0; k < encoder->arrays; k++)
        block->raw_hash[k] = hashes != NULL ? hashes[k] : lmc_hasher_final(&hasher.arrays[k]);
    block->coded_bytes = (uint32_t)used;
    block->coded_hash = lmc_hash64(dst, used, index);
    return LMC_OK;
}

enum lmc_status lmc_link_encode_block(const struct lmc_link_encoder *encoder, uint64_t index, void *dst,
                                      size_t dst_bytes, struct lmc_link_block *block)
{
    return lmc_link_encode_block_hashed(encoder, index, NULL, dst, dst_bytes, block);
}

/* ---- Frames ---------------------------------------------------------------------------------------------------- */

enum lmc_status lmc_link_encode_header(const struct lmc_link_encoder *encoder, const struct lmc_link_block *blocks,
                                       void *dst, size_t dst_bytes)
{
    const struct lmc_link_params *params = &encoder->params;
    if (dst_bytes < encoder->header_bytes)
        return LMC_NO_SPACE;
    for (uint64_t i = 0; i < encoder->block_count; i++) {
        const size_t bound = lmc_link_block_bound(encoder->arrays, lmci_block_bytes(params->raw_bytes, i));
        if (blocks[i].coded_bytes == 0 || blocks[i].coded_bytes > bound)
            return LMC_INVALID;
    }
    const struct lmci_header header = {
        .version = LMCI_VERSION_FIRST,
        .dtype = LMC_F32,
        .base_count = encoder->arrays,
        .raw_bytes = params->raw_bytes,
        .base_digest = params->before_digest,
        .block_count = encoder->block_count,
        .rule = &params->rule,
        .link_blocks = blocks,
    };
    lmci_header_write(&header, dst);
    return LMC_OK;
}

static enum lmc_status encode_block(const void *encoder, uint64_t index, void *dst, size_t dst_bytes, void *entry)
{
    return lmc_link_encode_block(encoder, index, dst, dst_bytes, entry);
}

static enum lmc_status encode_header(const void *encoder, const void *entries, void *dst, size_t dst_bytes)
{
    return lmc_link_encode_header(encoder, entries, dst, dst_bytes);
}

enum lmc_status lmc_link_compress(const struct lmc_link_params *params, void *dst, size_t dst_bytes,
                                  size_t *frame_bytes, const char **message)
{
    const char *unused;
    struct lmc_link_encoder *encoder;
    message = message != NULL ? message : &unused;
    enum lmc_status status = lmc_link_encoder_new(params, &encoder, message);
    if (status != LMC_OK)
        return status;
    const struct lmci_frame_encoder frame = {
        encoder,      encoder->block_count, encoder->header_bytes, sizeof(struct lmc_link_block),
        encode_block, encode_header};
    status = lmci_compress(&frame, dst, dst_bytes, frame_bytes, message);
    lmc_link_encoder_free(encoder);
    return status;
}
