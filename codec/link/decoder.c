/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * decoder.c - applies a chain of links to a state.
 *
 * A piece of the state passes through all links that are stored in pieces before the next one does, so memory is read
 * and written once. Blocks of deltas are decoded between such runs. Only the last state is hashed; it depends on all
 * others.
 */
#include "base/bytes.h"
#include "base/memory.h"
#include "block/block.h"
#include "frame/frame.h"
#include "frame/rule.h"
#include "kernels/kernels.h"
#include "link/link.h"

struct chain {
    const struct lmc_link_step *steps;
    uint64_t index; /* of the block */
    unsigned arrays;
    size_t bytes; /* of each array's block */
    unsigned char *state[LMC_MAX_BASES];
    unsigned char *scratch; /* lmci_link_decoder_bytes */
    size_t failed;
    struct lmci_state_hasher hasher; /* of the last state */
};

/* ---- Checks ---------------------------------------------------------------------------------------------------- */

static enum lmc_status check_step(const struct chain *chain, const struct lmc_link_step *step, const char **message)
{
    const struct lmc_frame *frame = step->frame, *first = chain->steps[0].frame;
    if (frame->header == NULL || frame->predictor == 0)
        return lmci_fail(LMC_INVALID, message, "a frame of the chain is not a link");
    if (chain->index >= frame->block_count)
        return lmci_fail(LMC_INVALID, message, "the link has no such block");
    if (frame->raw_bytes != first->raw_bytes || frame->output_count != first->output_count)
        return lmci_fail(LMC_INVALID, message, "the links of the chain differ in their arrays");
    const struct lmc_block block = lmc_frame_block(frame, chain->index, NULL);
    if (step->coded_bytes != block.coded_bytes)
        return lmci_fail(LMC_INVALID, message, "the number of coded bytes differs from the header");
    if (lmc_hash64(step->coded, step->coded_bytes, chain->index) != block.coded_hash)
        return lmci_damaged(message, "the checksum of a coded block does not match");
    if (*(const unsigned char *)step->coded > LMCI_LINK_PIECES)
        return lmci_unsupported(message, "a block has a method unknown to this version");
    return LMC_OK;
}

static void hash_state(struct chain *chain, size_t end)
{
    lmci_state_hash(&chain->hasher, chain->arrays, (const unsigned char *const *)chain->state, end);
}

static enum lmc_status check_state(struct chain *chain, const struct lmc_frame *last, const char **message)
{
    hash_state(chain, chain->bytes);
    for (unsigned k = 0; k < chain->arrays; k++) {
        const struct lmc_hash expected = lmci_frame_raw_hash(last, chain->index, k);
        const struct lmc_hash content = lmc_hasher_final(&chain->hasher.arrays[k]);
        if (content.low != expected.low || content.high != expected.high)
            return lmci_damaged(message, "a decoded block differs from the encoded one: the state before may be wrong");
    }
    return LMC_OK;
}

/* ---- Blocks of deltas ------------------------------------------------------------------------------------------ */

static enum lmc_status decode_delta(const struct chain *chain, struct lmci_reader *in, unsigned array,
                                    unsigned char *room, const char **message)
{
    const struct lmci_block_shape shape = {.word = 4, .bytes = chain->bytes};
    const unsigned char *size = lmci_take(in, 4);
    const size_t bytes = size != NULL ? lmci_load32(size) : 0;
    const unsigned char *coded = size != NULL ? lmci_take(in, bytes) : NULL;
    if (coded == NULL)
        return lmci_damaged(message, "a block of a link ends inside its deltas");
    enum lmc_status status = lmci_block_decode(&shape, coded, bytes, chain->state[array], room, NULL, message);
    if (status == LMC_OK)
        memcpy(chain->state[array], room, chain->bytes);
    return status;
}

static enum lmc_status decode_deltas(const struct chain *chain, const struct lmc_link_step *step, const char **message)
{
    struct lmci_reader in = {(const unsigned char *)step->coded + 1,
                             (const unsigned char *)step->coded + step->coded_bytes};
    unsigned char *room = lmci_allocate(chain->bytes);
    enum lmc_status status = LMC_OK;
    if (room == NULL)
        return lmci_fail(LMC_NO_MEMORY, message, "no memory to decode a link");
    for (unsigned k = 0; status == LMC_OK && k < chain->arrays; k++)
        status = decode_delta(chain, &in, k, room, message);
    lmci_release(room);
    if (status == LMC_OK && lmci_left(&in) != 0)
        return lmci_damaged(message, "bytes follow the last delta of a link's block");
    return status;
}

/* ---- Blocks in pieces ------------------------------------------------------------------------------------------ */

static enum lmc_status decode_piece(const struct chain *chain, const struct lmc_link_rule *rule, struct lmci_reader *in,
                                    size_t from, size_t bytes, const char **message)
{
    unsigned char *state[LMC_MAX_BASES] = {NULL};
    const unsigned char *size = lmci_take(in, 3);
    const size_t coded_bytes = size != NULL ? size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 : 0;
    const unsigned char *coded = size != NULL ? lmci_take(in, coded_bytes) : NULL;
    if (coded == NULL)
        return lmci_damaged(message, "a block of a link ends inside its pieces");
    for (unsigned k = 0; k < chain->arrays; k++)
        state[k] = chain->state[k] + from;
    enum lmc_status status =
        lmci_link_decode_piece(rule, coded, coded_bytes, bytes / 4, state, chain->scratch, message);
    if (status == LMC_OK && from + bytes == chain->bytes && lmci_left(in) != 0)
        return lmci_damaged(message, "bytes follow the last piece of a link's block");
    return status;
}

/* Links applied together: so many keep a piece in the cache, and fit the stack. */
#define TOGETHER 32

/* Applies consecutive steps stored in pieces. `last`: no steps follow. */
static enum lmc_status decode_run(struct chain *chain, size_t first, size_t count, bool last, const char **message)
{
    struct lmc_link_rule rules[TOGETHER];
    struct lmci_reader in[TOGETHER];
    enum lmc_status status = LMC_OK;
    for (size_t i = 0; status == LMC_OK && i < count; i++) {
        const unsigned char *coded = chain->steps[first + i].coded;
        in[i] = (struct lmci_reader){coded + 1, coded + chain->steps[first + i].coded_bytes};
        status = lmci_rule_read(chain->steps[first + i].frame, &rules[i], message);
    }
    for (size_t from = 0; status == LMC_OK && from < chain->bytes; from += 4 * LMCI_PIECE_ELEMENTS) {
        const size_t left = chain->bytes - from;
        const size_t bytes = left < 4 * LMCI_PIECE_ELEMENTS ? left : 4 * LMCI_PIECE_ELEMENTS;
        for (size_t i = 0; status == LMC_OK && i < count; i++) {
            chain->failed = first + i;
            status = decode_piece(chain, &rules[i], &in[i], from, bytes, message);
        }
        if (status == LMC_OK && last)
            hash_state(chain, from + bytes);
    }
    return status;
}

/* ---- Chains ---------------------------------------------------------------------------------------------------- */

static bool is_in_pieces(const struct lmc_link_step *step)
{
    return *(const unsigned char *)step->coded == LMCI_LINK_PIECES;
}

static enum lmc_status decode_steps(struct chain *chain, size_t step_count, const char **message)
{
    enum lmc_status status = LMC_OK;
    size_t run = 1;
    for (size_t at = 0; status == LMC_OK && at < step_count; at += run) {
        run = 0;
        while (at + run < step_count && run < TOGETHER && is_in_pieces(&chain->steps[at + run]))
            run++;
        chain->failed = at;
        status = run != 0 ? decode_run(chain, at, run, at + run == step_count, message)
                          : decode_deltas(chain, &chain->steps[at], message);
        run = run != 0 ? run : 1;
    }
    return status;
}

static enum lmc_status check_steps(struct chain *chain, size_t step_count, const char **message)
{
    enum lmc_status status = LMC_OK;
    for (size_t i = 0; status == LMC_OK && i < step_count; i++) {
        chain->failed = i;
        status = check_step(chain, &chain->steps[i], message);
    }
    return status;
}

static enum lmc_status decode_chain(struct chain *chain, size_t step_count, const char **message)
{
    chain->scratch = lmci_allocate(lmci_link_decoder_bytes());
    if (chain->scratch == NULL)
        return lmci_fail(LMC_NO_MEMORY, message, "no memory to decode a link");
    lmci_state_hasher_init(&chain->hasher);
    const struct lmci_float_environment saved = lmci_float_enter();
    enum lmc_status status = decode_steps(chain, step_count, message);
    lmci_float_leave(&saved);
    lmci_release(chain->scratch);
    return status == LMC_OK ? check_state(chain, chain->steps[step_count - 1].frame, message) : status;
}

enum lmc_status lmc_link_decode_block(const struct lmc_link_step *steps, size_t step_count, uint64_t index,
                                      void *const *state, size_t state_bytes, size_t *failed_step, const char **message)
{
    const char *unused;
    struct chain chain = {.steps = steps, .index = index};
    message = message != NULL ? message : &unused;
    if (failed_step != NULL)
        *failed_step = 0;
    if (step_count == 0)
        return lmci_fail(LMC_INVALID, message, "the chain has no links");
    enum lmc_status status = check_steps(&chain, step_count, message);
    if (status == LMC_OK) {
        chain.arrays = steps[0].frame->output_count;
        chain.bytes = lmci_block_bytes(steps[0].frame->raw_bytes, index);
        for (unsigned k = 0; k < chain.arrays; k++)
            chain.state[k] = state[k];
        if (state_bytes < chain.bytes)
            status = lmci_fail(LMC_NO_SPACE, message, "the state is smaller than the block");
        else
            status = decode_chain(&chain, step_count, message);
    }
    if (failed_step != NULL && status != LMC_OK)
        *failed_step = chain.failed;
    return status;
}

static enum lmc_status decompress_block(const struct lmc_frame *frame, uint64_t index, const unsigned char *bytes,
                                        void *const *state, const char **message)
{
    uint64_t offset;
    const struct lmc_block block = lmc_frame_block(frame, index, &offset);
    const struct lmc_link_step step = {frame, bytes + offset, block.coded_bytes};
    void *own[LMC_MAX_BASES] = {NULL};
    for (uint32_t k = 0; k < frame->output_count; k++)
        own[k] = (unsigned char *)state[k] + index * LMC_BLOCK_BYTES;
    return lmc_link_decode_block(&step, 1, index, own, lmci_block_bytes(frame->raw_bytes, index), NULL, message);
}

enum lmc_status lmc_link_decompress(const void *frame, size_t frame_bytes, void *const *state, size_t state_bytes,
                                    const char **message)
{
    const char *unused;
    struct lmc_frame parsed;
    message = message != NULL ? message : &unused;
    enum lmc_status status = lmc_frame_parse(frame, frame_bytes, &parsed, message);
    if (status != LMC_OK)
        return status;
    if (parsed.predictor == 0)
        return lmci_fail(LMC_INVALID, message, "the frame is not a link");
    if (frame_bytes != parsed.frame_bytes)
        return lmci_damaged(message, "the frame's length differs from its header");
    if (state_bytes < parsed.raw_bytes)
        return lmci_fail(LMC_NO_SPACE, message, "the state is smaller than the link's arrays");
    for (uint64_t i = 0; i < parsed.block_count && status == LMC_OK; i++)
        status = decompress_block(&parsed, i, frame, state, message);
    return status;
}

/* ---- Digests --------------------------------------------------------------------------------------------------- */

enum lmc_status lmc_link_digest(const struct lmc_frame *frame, uint32_t output, uint32_t ndim, const uint64_t *shape,
                                struct lmc_hash *digest)
{
    if (frame->header == NULL || frame->predictor == 0 || output >= frame->output_count)
        return LMC_INVALID;
    return lmci_frame_digest(frame, output, LMC_F32, ndim, shape, digest);
}
