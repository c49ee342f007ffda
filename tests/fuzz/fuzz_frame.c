/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_frame.c - fuzz target for frames: decodes any bytes, and round-trips any tensor.
 *
 * First byte even: a frame, tried unchanged, with valid checksums, and as the only coded block of a generated frame, so
 * that every input reaches the decoder. Odd: a tensor (above 127: described, tensor.h).
 */
#include "tensor.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

#define MOST_RAW_BYTES    ((uint64_t)4 << 20)
#define MOST_TENSOR_BYTES ((size_t)80 << 10)

static void decode(const unsigned char *frame, size_t frame_bytes)
{
    struct lmc_frame parsed;
    const char *message = NULL;
    enum lmc_status status = lmc_frame_parse(frame, frame_bytes, &parsed, &message);
    if (status != LMC_OK) {
        if (message == NULL)
            abort();
        return;
    }
    if (parsed.raw_bytes > MOST_RAW_BYTES)
        return;
    unsigned char *base = allocate((size_t)parsed.raw_bytes);
    for (size_t i = 0; i < parsed.raw_bytes; i++) /* all exponents */
        base[i] = (unsigned char)(i % 3 != 0 ? 37 * i : 60 + i % 8);
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

static void try_block(const uint8_t *bytes, size_t count)
{
    size_t frame_bytes;
    unsigned char *frame = frame_of_input(bytes, count, &frame_bytes);
    if (frame != NULL)
        decode(frame, frame_bytes);
    free(frame);
}

/* `kind`: differs from the data not at all, rarely, by small steps, or completely. */
static unsigned char *make_base(const uint8_t *data, size_t bytes, unsigned kind)
{
    unsigned char *base = allocate(bytes);
    for (size_t i = 0; i < bytes; i++) {
        unsigned change = kind % 4 == 0 ? 0 : kind % 4 == 1 ? i % 97 == kind : kind % 4 == 2 ? i % 4 == 0 : 31 * i;
        base[i] = (unsigned char)(data[i] + change);
    }
    return base;
}

static void try_params(const struct lmc_params *params)
{
    const size_t raw_bytes = (size_t)params->raw_bytes, bound = (size_t)lmc_frame_bound(raw_bytes);
    unsigned char *frame = allocate(bound);
    unsigned char *back = allocate(raw_bytes);
    size_t frame_bytes = 0;
    if (lmc_compress(params, frame, bound, &frame_bytes, NULL) != LMC_OK || frame_bytes > bound)
        abort();
    if (lmc_decompress(frame, frame_bytes, &params->base, back, raw_bytes, NULL) != LMC_OK)
        abort();
    if (raw_bytes != 0 && memcmp(back, params->data, raw_bytes) != 0)
        abort();
    free(frame);
    free(back);
}

/* Reads the dtype, the kind of base, repetitions of the rest (four bits), the level (one). */
static void try_round_trip(const uint8_t *bytes, size_t count)
{
    if (count < 3)
        return;
    unsigned times = bytes[2] % 16 != 0 ? 1 + bytes[2] % 4 : 40;
    size_t piece = count - 3;
    struct lmc_params params = {.dtype = 1 + bytes[0] % (LMC_DTYPE_END - 1)};
    params.raw_bytes = piece * times - piece * times % lmc_dtype_size(params.dtype);
    params.level = (bytes[2] & 16) != 0 ? LMC_LEVEL_DENSE : LMC_LEVEL_DEFAULT;
    unsigned char *data = allocate(piece * times);
    for (unsigned i = 0; i < times; i++)
        memcpy(data + i * piece, bytes + 3, piece);
    unsigned char *base = (bytes[1] & 1) != 0 ? make_base(data, (size_t)params.raw_bytes, bytes[1] >> 1) : NULL;
    params.data = data;
    params.base = base;
    try_params(&params);
    free(data);
    free(base);
}

static void try_tensor(const uint8_t *bytes, size_t count)
{
    struct source from = {bytes, count};
    const struct tensor tensor = cook_params(&from, MOST_TENSOR_BYTES);
    try_params(&tensor.params);
    free(tensor.data);
    free(tensor.base);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count == 0)
        return 0;
    if (bytes[0] % 2 != 0 && bytes[0] > 127) {
        try_tensor(bytes + 1, count - 1);
    } else if (bytes[0] % 2 != 0) {
        try_round_trip(bytes + 1, count - 1);
    } else {
        try_frame(bytes + 1, count - 1);
        try_block(bytes + 1, count - 1);
    }
    return 0;
}
