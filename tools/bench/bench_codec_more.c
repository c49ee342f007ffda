/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_codec_more.c - two threads beside one, and many small tensors beside a large one. */
#include "bench_codec.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 2

static void *room_for(size_t count, size_t size)
{
    void *room = calloc(count, size);
    if (room == NULL)
        die("out of memory");
    return room;
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* One thread's blocks: from `first` up to `end`. */
struct share {
    const struct input *input;
    const struct lmc_encoder *encoder;
    const struct lmc_frame *frame;
    struct lmc_block *blocks;
    uint64_t first;
    uint64_t end;
    size_t at;
    size_t coded; /* their bytes */
};

typedef void *work(void *share);

static size_t share_bytes(const struct share *share)
{
    size_t from = share->first * LMC_BLOCK_BYTES;
    size_t to = share->end * LMC_BLOCK_BYTES;
    return (to < share->input->bytes ? to : share->input->bytes) - from;
}

static void *copy_share(void *argument)
{
    struct share *share = argument;
    size_t from = share->first * LMC_BLOCK_BYTES;
    memcpy(share->input->out + from, share->input->data + from, share_bytes(share));
    return NULL;
}

static void *encode_share(void *argument)
{
    struct share *share = argument;
    share->coded = 0;
    for (uint64_t i = share->first; i < share->end; ++i) {
        size_t at = share->at + share->coded;
        if (lmc_encode_block(share->encoder, i, share->input->frame + at, share->input->frame_room - at,
                             &share->blocks[i]) != LMC_OK)
            die("encoding a block failed");
        share->coded += share->blocks[i].coded_bytes;
    }
    return NULL;
}

static void *decode_share(void *argument)
{
    struct share *share = argument;
    const struct input *input = share->input;
    for (uint64_t i = share->first; i < share->end; ++i) {
        uint64_t offset = 0;
        size_t from = i * LMC_BLOCK_BYTES;
        size_t bytes = input->bytes - from < LMC_BLOCK_BYTES ? input->bytes - from : LMC_BLOCK_BYTES;
        struct lmc_block block = lmc_frame_block(share->frame, i, &offset);
        const void *bases[1] = {input->base == NULL ? NULL : input->base + from};
        const char *message = "";
        if (lmc_decode_block(share->frame, i, input->frame + offset, block.coded_bytes, bases, input->out + from, bytes,
                             &message) != LMC_OK)
            die("decoding: %s", message);
    }
    return NULL;
}

/* Runs the shares at once, one of them in this thread. */
static void together(work *what, struct share *shares, unsigned threads)
{
    pthread_t others[THREADS];
    for (unsigned i = 1; i < threads; ++i)
        if (pthread_create(&others[i], NULL, what, &shares[i]) != 0)
            die("no thread");
    what(&shares[0]);
    for (unsigned i = 1; i < threads; ++i)
        pthread_join(others[i], NULL);
}

/* Divides the blocks among threads, with room for coded blocks of any size. */
static void shares_make(struct share *shares, unsigned threads, const struct input *input)
{
    uint64_t count = lmc_block_count(input->bytes);
    for (unsigned i = 0; i < threads; ++i) {
        shares[i] = (struct share){.input = input, .first = count * i / threads, .end = count * (i + 1) / threads};
        shares[i].at = shares[i].first * lmc_block_bound(LMC_BLOCK_BYTES);
    }
}

/* Joins the shares to a frame. Not timed: a writer would use one writev. */
static void frame_join(const struct input *input, struct share *shares, unsigned threads,
                       const struct lmc_encoder *encoder, const struct lmc_block *blocks)
{
    size_t header = lmc_encoder_header_bytes(encoder);
    size_t to = header + shares[0].coded;
    memmove(input->frame + header, input->frame, shares[0].coded);
    for (unsigned i = 1; i < threads; ++i) {
        memmove(input->frame + to, input->frame + shares[i].at, shares[i].coded);
        to += shares[i].coded;
    }
    if (lmc_encode_header(encoder, blocks, input->frame, input->frame_room) != LMC_OK)
        die("no header");
}

static double encode_by(const struct input *input, struct share *shares, unsigned threads, struct lmc_block *blocks,
                        double *cpu)
{
    const char *message = "";
    struct lmc_encoder *encoder = NULL;
    struct lmc_params params = params_of(input, input->bytes, LMC_LEVEL_DEFAULT);
    *cpu -= cpu_s();
    double begin = now_s();
    if (lmc_encoder_new(&params, &encoder, &message) != LMC_OK)
        die("planning: %s", message);
    for (unsigned i = 0; i < threads; ++i) {
        shares[i].encoder = encoder;
        shares[i].blocks = blocks;
    }
    together(encode_share, shares, threads);
    double seconds = now_s() - begin;
    *cpu += cpu_s();
    frame_join(input, shares, threads, encoder, blocks);
    lmc_encoder_free(encoder);
    return seconds;
}

static double decode_by(const struct input *input, struct share *shares, unsigned threads, double *cpu)
{
    const char *message = "";
    struct lmc_frame frame;
    uint64_t header = 0;
    *cpu -= cpu_s();
    double begin = now_s();
    if (lmc_frame_header_bytes(input->frame, LMC_FRAME_PREFIX_BYTES, &header, &message) != LMC_OK ||
        lmc_frame_parse(input->frame, header, &frame, &message) != LMC_OK)
        die("decoding: %s", message);
    for (unsigned i = 0; i < threads; ++i)
        shares[i].frame = &frame;
    together(decode_share, shares, threads);
    double seconds = now_s() - begin;
    *cpu += cpu_s();
    return seconds;
}

void threads_start(struct input *input)
{
    size_t room = (lmc_block_count(input->bytes) + 1) * lmc_block_bound(LMC_BLOCK_BYTES);
    if (room > input->frame_room) {
        input->frame_room = room;
        input->frame = pages_new(room, input->huge);
    }
    printf("{\"bytes\": %zu, \"kernels\": \"%s\"}\n", input->bytes, lmc_kernels());
}

void threads_round(struct input *input)
{
    struct lmc_block *blocks = room_for(lmc_block_count(input->bytes), sizeof *blocks);
    const char *comma = "{";
    for (unsigned threads = 1; threads <= THREADS; ++threads) {
        struct share shares[THREADS];
        shares_make(shares, threads, input);
        double begin = now_s();
        together(copy_share, shares, threads);
        printf("%s\"memcpy_%u_s\": %.9f", comma, threads, now_s() - begin);
        check_and_clear(input, input->bytes);
        double cpu = 0;
        printf(", \"in_%u_s\": %.9f", threads, encode_by(input, shares, threads, blocks, &cpu));
        printf(", \"out_%u_s\": %.9f", threads, decode_by(input, shares, threads, &cpu));
        printf(", \"cpu_%u_s\": %.9f", threads, cpu);
        check_and_clear(input, input->bytes);
        comma = ", ";
    }
    printf("}\n");
    free(blocks);
}

/* ---- Small tensors ----------------------------------------------------------------------------------------------- */

#define SMALL ((size_t)64 << 10)

struct pieces {
    size_t piece; /* of each but the last */
    size_t room;  /* from one frame to the next */
    size_t *frame_bytes;
    size_t count;
    size_t total;
};

static struct pieces pieces_of(const struct input *input, size_t piece)
{
    struct pieces pieces = {.piece = piece, .room = lmc_frame_bound(piece)};
    pieces.count = (input->bytes + piece - 1) / piece;
    pieces.frame_bytes = room_for(pieces.count, sizeof *pieces.frame_bytes);
    return pieces;
}

static size_t piece_bytes(const struct input *input, const struct pieces *pieces, size_t i)
{
    size_t left = input->bytes - i * pieces->piece;
    return left < pieces->piece ? left : pieces->piece;
}

/* All are encoded like the first. */
static double encode_pieces(const struct input *input, struct pieces *pieces)
{
    struct lmc_encoder *first = NULL;
    double begin = cpu_s();
    pieces->total = 0;
    for (size_t i = 0; i < pieces->count; ++i) {
        const char *message = "";
        struct lmc_encoder *encoder = NULL;
        struct lmc_params params = params_of(input, piece_bytes(input, pieces, i), LMC_LEVEL_DEFAULT);
        params.data = input->data + i * pieces->piece;
        params.base = input->base == NULL ? NULL : input->base + i * pieces->piece;
        if (lmc_encoder_new_like(&params, first, &encoder, &message) != LMC_OK ||
            lmc_encode_frame(encoder, input->frame + i * pieces->room, pieces->room, &pieces->frame_bytes[i],
                             &message) != LMC_OK)
            die("encoding: %s", message);
        pieces->total += pieces->frame_bytes[i];
        if (first == NULL)
            first = encoder;
        else
            lmc_encoder_free(encoder);
    }
    lmc_encoder_free(first);
    return cpu_s() - begin;
}

static double decode_pieces(const struct input *input, const struct pieces *pieces)
{
    double begin = cpu_s();
    for (size_t i = 0; i < pieces->count; ++i) {
        const char *message = "";
        const void *bases[1] = {input->base == NULL ? NULL : input->base + i * pieces->piece};
        if (lmc_decompress(input->frame + i * pieces->room, pieces->frame_bytes[i], bases,
                           input->out + i * pieces->piece, piece_bytes(input, pieces, i), &message) != LMC_OK)
            die("decoding: %s", message);
    }
    return cpu_s() - begin;
}

void small_start(struct input *input)
{
    if (input->wanted != 0 && input->bytes > input->wanted)
        input->bytes = input->wanted;
    struct pieces pieces = pieces_of(input, SMALL);
    if (pieces.count * pieces.room > input->frame_room) {
        input->frame_room = pieces.count * pieces.room;
        input->frame = pages_new(input->frame_room, input->huge);
    }
    printf("{\"bytes\": %zu, \"tensors\": %zu, \"kernels\": \"%s\"}\n", input->bytes, pieces.count, lmc_kernels());
    free(pieces.frame_bytes);
}

void small_round(struct input *input)
{
    static const char *const names[] = {"large", "small"};
    const size_t sizes[] = {input->bytes, SMALL};
    for (int i = 0; i < 2; ++i) {
        struct pieces pieces = pieces_of(input, sizes[i]);
        printf("%s\"%s_in_s\": %.9f", i == 0 ? "{" : ", ", names[i], encode_pieces(input, &pieces));
        printf(", \"%s_out_s\": %.9f", names[i], decode_pieces(input, &pieces));
        printf(", \"%s_bytes\": %zu", names[i], pieces.total);
        check_and_clear(input, input->bytes);
        free(pieces.frame_bytes);
    }
    printf("}\n");
}
