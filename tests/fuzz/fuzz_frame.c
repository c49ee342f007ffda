/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_frame.c - fuzz target for frames: parsing and decoding of any bytes, and round trips of any tensor.
 *
 * The first byte chooses. Even: the rest is a frame; it is tried as it is, and with its checksums made right, as no
 * fuzzer guesses those. Then its first block's coding is exercised by itself too: the rest becomes the one coded block
 * of a frame that we make, so that every input reaches the decoder. Odd: the second byte gives the dtype and the third
 * the way to a base; the rest is encoded, decoded and compared.
 */
#include "lmc.h"

#include "../data/codec/seal.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

#define MOST_RAW_BYTES ((uint64_t)4 << 20)

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes + 1); /* a size of 0 is fine */
    if (!memory)
        abort();
    return memory;
}

static void decode(const unsigned char *frame, size_t frame_bytes)
{
    struct lmc_frame parsed;
    const char *message = NULL;
    enum lmc_status status = lmc_frame_parse(frame, frame_bytes, &parsed, &message);
    if (status != LMC_OK) {
        if (!message)
            abort();
        return;
    }
    if (parsed.raw_bytes > MOST_RAW_BYTES)
        return;
    unsigned char *base = allocate((size_t)parsed.raw_bytes);
    for (size_t i = 0; i < parsed.raw_bytes; i++) /* exponents from all over */
        base[i] = (unsigned char)(i % 3 ? 37 * i : 60 + i % 8);
    unsigned char *back = allocate((size_t)parsed.raw_bytes);
    const void *bases[LMC_MAX_BASES] = {base, base, base, base};
    status = lmc_decompress(frame, frame_bytes, bases, back, (size_t)parsed.raw_bytes, &message);
    if (status == LMC_INVALID || status == LMC_NO_SPACE)
        abort();
    free(base);
    free(back);
}

static void try_frame(const uint8_t *bytes, size_t count)
{
    unsigned char *copy = allocate(count);
    memcpy(copy, bytes, count);
    decode(copy, count);
    seal_frame(copy, count);
    decode(copy, count);
    free(copy);
}

/* bytes: dtype, base or none, the content's size less what the block surely needs (u16), then the coded block. */
static void try_block(const uint8_t *bytes, size_t count)
{
    if (count < 5)
        return;
    size_t coded_bytes = count - 4;
    uint32_t dtype = 1 + bytes[0] % (LMC_DTYPE_END - 1);
    uint64_t raw_bytes = coded_bytes + seal_get(bytes + 2, 2) % 8192;
    raw_bytes += lmc_dtype_size(dtype) - raw_bytes % lmc_dtype_size(dtype);
    size_t bases = bytes[1] & 1;
    size_t header_bytes = 64 + 16 * bases + 32 + 8;
    if (raw_bytes > LMC_BLOCK_BYTES)
        return;
    unsigned char *frame = calloc(1, header_bytes + coded_bytes);
    if (!frame)
        abort();
    memcpy(frame, "LMCF", 4);
    seal_put(frame + 4, 1, 4);
    seal_put(frame + 16, raw_bytes, 8);
    seal_put(frame + 24, header_bytes + coded_bytes, 8);
    frame[32] = (unsigned char)dtype;
    frame[36] = (unsigned char)bases;
    frame[37] = 1;
    frame[38] = 20;
    seal_put(frame + header_bytes - 40, header_bytes, 8);
    memcpy(frame + header_bytes, bytes + 4, coded_bytes);
    seal_frame(frame, header_bytes + coded_bytes);
    decode(frame, header_bytes + coded_bytes);
    free(frame);
}

/* A base that differs from the data in a way that `kind` gives: not at all, rarely, by small steps, or wholly. */
static unsigned char *make_base(const uint8_t *data, size_t bytes, unsigned kind)
{
    unsigned char *base = allocate(bytes);
    for (size_t i = 0; i < bytes; i++) {
        unsigned change = kind % 4 == 0 ? 0 : kind % 4 == 1 ? i % 97 == kind : kind % 4 == 2 ? i % 4 == 0 : 31 * i;
        base[i] = (unsigned char)(data[i] + change);
    }
    return base;
}

static void try_round_trip(const uint8_t *bytes, size_t count)
{
    if (count < 3)
        return;
    uint32_t dtype = 1 + bytes[0] % (LMC_DTYPE_END - 1);
    unsigned times = bytes[2] % 16 ? 1 + bytes[2] % 4 : 40; /* longer than what a fuzzer likes to make */
    size_t piece = count - 3;
    size_t raw_bytes = piece * times;
    raw_bytes -= raw_bytes % lmc_dtype_size(dtype);
    unsigned char *data = allocate(piece * times);
    for (unsigned i = 0; i < times; i++)
        memcpy(data + i * piece, bytes + 3, piece);
    unsigned char *base = bytes[1] & 1 ? make_base(data, raw_bytes, bytes[1] >> 1) : NULL;
    size_t bound = (size_t)lmc_frame_bound(raw_bytes);
    unsigned char *frame = allocate(bound);
    unsigned char *back = allocate(raw_bytes);
    struct lmc_params params = {.dtype = dtype, .raw_bytes = raw_bytes, .data = data, .base = base};
    const void *bases[1] = {base};
    size_t frame_bytes = 0;
    if (lmc_compress(&params, frame, bound, &frame_bytes, NULL) != LMC_OK || frame_bytes > bound)
        abort();
    if (lmc_decompress(frame, frame_bytes, bases, back, raw_bytes, NULL) != LMC_OK)
        abort();
    if (raw_bytes && memcmp(back, data, raw_bytes) != 0)
        abort();
    free(data);
    free(base);
    free(frame);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count == 0)
        return 0;
    if (bytes[0] % 2) {
        try_round_trip(bytes + 1, count - 1);
    } else {
        try_frame(bytes + 1, count - 1);
        try_block(bytes + 1, count - 1);
    }
    return 0;
}
