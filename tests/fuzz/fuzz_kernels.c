/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_kernels.c - fuzz target: all tables of kernels that this processor can run behave alike.
 *
 * First byte even: a tensor (tensor.h), whose frame the last bytes then damage. Odd: a coded block. Frames, errors and
 * contents must be equal, the content also if only its hash is wrong.
 */
#include "tensor.h"

#include <stdbool.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
bool lmci_kernels_use(const char *name);

#define REQUIRE(condition)                                                                             \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "line %d, kernels %s: not so: %s\n", __LINE__, lmc_kernels(), #condition); \
            abort();                                                                                   \
        }                                                                                              \
    } while (0)

#define MOST_TENSOR_BYTES ((size_t)320 << 10)
#define MOST_DAMAGES      4

/* The first is the reference. */
static const char *const tables[] = {"portable", "neon", "avx2", "avx512"};
enum { TABLES = sizeof tables / sizeof *tables };

struct decoded {
    enum lmc_status status;
    const char *message;
    unsigned char *content;
};

static struct decoded decode(const unsigned char *frame, size_t frame_bytes, const void *base, size_t raw_bytes)
{
    struct decoded decoded = {.message = "", .content = allocate(raw_bytes)};
    memset(decoded.content, 0x5a, raw_bytes);
    decoded.status = lmc_decompress(frame, frame_bytes, &base, decoded.content, raw_bytes, &decoded.message);
    return decoded;
}

/* Defined if all was decoded. */
static bool is_whole(const struct decoded *decoded)
{
    return decoded->status == LMC_OK || strncmp(decoded->message, "a decoded block is not", 22) == 0;
}

static void decode_by_all(const unsigned char *frame, size_t frame_bytes, const void *base, size_t raw_bytes)
{
    REQUIRE(lmci_kernels_use(tables[0]));
    struct decoded first = decode(frame, frame_bytes, base, raw_bytes);
    for (unsigned k = 1; k < TABLES; k++) {
        if (!lmci_kernels_use(tables[k]))
            continue;
        struct decoded other = decode(frame, frame_bytes, base, raw_bytes);
        REQUIRE(other.status == first.status);
        REQUIRE(strcmp(other.message, first.message) == 0);
        REQUIRE(!is_whole(&first) || memcmp(other.content, first.content, raw_bytes) == 0);
        free(other.content);
    }
    free(first.content);
}

/* `like`: like the tensor's larger part, with data and base exchanged. */
static size_t encode(const struct tensor *tensor, bool like, unsigned char *frame, size_t room)
{
    struct lmc_encoder *model = NULL, *encoder;
    struct lmc_params part = tensor->params;
    size_t frame_bytes;
    part.raw_bytes -= part.raw_bytes / 4 / 16 * 16;
    part.data = part.base != NULL ? tensor->base : tensor->data;
    part.base = part.base != NULL ? tensor->data : NULL;
    if (like)
        REQUIRE(lmc_encoder_new_like(&part, NULL, &model, NULL) == LMC_OK);
    REQUIRE((like ? lmc_encoder_new_like(&tensor->params, model, &encoder, NULL)
                  : lmc_encoder_new(&tensor->params, &encoder, NULL)) == LMC_OK);
    REQUIRE(lmc_encode_frame(encoder, frame, room, &frame_bytes, NULL) == LMC_OK);
    lmc_encoder_free(encoder);
    lmc_encoder_free(model);
    return frame_bytes;
}

static unsigned char *encode_by_all(const struct tensor *tensor, bool like, size_t *frame_bytes)
{
    const size_t raw_bytes = (size_t)tensor->params.raw_bytes, bound = (size_t)lmc_frame_bound(raw_bytes);
    unsigned char *first = allocate(bound);
    REQUIRE(lmci_kernels_use(tables[0]));
    *frame_bytes = encode(tensor, like, first, bound);
    for (unsigned k = 1; k < TABLES; k++) {
        if (!lmci_kernels_use(tables[k]))
            continue;
        unsigned char *other = allocate(bound);
        const size_t bytes = encode(tensor, like, other, bound);
        REQUIRE(bytes == *frame_bytes && memcmp(other, first, bytes) == 0);
        free(other);
    }
    for (unsigned k = 0; k < TABLES; k++) {
        if (!lmci_kernels_use(tables[k]))
            continue;
        struct decoded back = decode(first, *frame_bytes, tensor->base, raw_bytes);
        REQUIRE(back.status == LMC_OK);
        REQUIRE(memcmp(back.content, tensor->data, raw_bytes) == 0);
        free(back.content);
    }
    return first;
}

/* Three of the input's last bytes: offset from the header's end, value. */
static void try_damages(unsigned char *frame, size_t frame_bytes, const struct tensor *tensor, struct source end)
{
    uint64_t header_bytes;
    REQUIRE(lmc_frame_header_bytes(frame, frame_bytes, &header_bytes, NULL) == LMC_OK);
    for (unsigned i = 0; i < MOST_DAMAGES && end.left >= 3 && frame_bytes > header_bytes; i++, end.left -= 3) {
        const uint8_t *damage = end.at + end.left - 3;
        const size_t room = frame_bytes - (size_t)header_bytes;
        /* A block's first bytes matter most. */
        const size_t where = (damage[0] & 1) != 0 ? damage[1] : (size_t)damage[0] << 7 | damage[1];
        frame[header_bytes + where % room] ^= damage[2];
    }
    seal_frame(frame, frame_bytes);
    decode_by_all(frame, frame_bytes, tensor->base, (size_t)tensor->params.raw_bytes);
}

static void try_tensor(const uint8_t *bytes, size_t count)
{
    struct source from = {bytes, count};
    const struct tensor tensor = cook_params(&from, MOST_TENSOR_BYTES);
    size_t frame_bytes;
    free(encode_by_all(&tensor, true, &frame_bytes));
    unsigned char *frame = encode_by_all(&tensor, false, &frame_bytes);
    try_damages(frame, frame_bytes, &tensor, from);
    free(frame);
    free(tensor.data);
    free(tensor.base);
}

static void try_block(const uint8_t *bytes, size_t count)
{
    size_t frame_bytes;
    unsigned char *frame = frame_of_input(bytes, count, &frame_bytes);
    if (frame == NULL)
        return;
    const size_t raw_bytes = (size_t)seal_get(frame + 16, 8);
    unsigned char *base = allocate(raw_bytes);
    for (size_t i = 0; i < raw_bytes; i++) /* all exponents */
        base[i] = (unsigned char)(i % 3 != 0 ? 37 * i : 60 + i % 8);
    decode_by_all(frame, frame_bytes, base, raw_bytes);
    free(base);
    free(frame);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count == 0)
        return 0;
    if (bytes[0] % 2 != 0)
        try_block(bytes + 1, count - 1);
    else
        try_tensor(bytes + 1, count - 1);
    lmci_kernels_use(NULL);
    return 0;
}
