/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tensor.h - tensors described by a few bytes, since much of the codec needs large ones; frames around one block.
 *
 * In each section of a tensor, the bytes at one position of the words follow a recipe of four bytes: a kind and three
 * parameters. Recipes may read the rest of the input.
 */
#ifndef LMC_FUZZ_TENSOR_H
#define LMC_FUZZ_TENSOR_H

#include "lmc.h"

#include "../data/codec/seal.h"

#include <stdlib.h>

static inline void *allocate(size_t bytes)
{
    void *memory = malloc(bytes + 1); /* allows a size of 0 */
    if (memory == NULL)
        abort();
    return memory;
}

/* By bits; zeros after the end. */
struct source {
    const uint8_t *at;
    size_t left;
};

static inline uint8_t take_byte(struct source *from)
{
    if (from->left == 0)
        return 0;
    from->left--;
    return *from->at++;
}

struct recipe {
    uint8_t kind, a, b, c;
};

enum {
    NOISE,
    SAME,
    SOME_BITS,
    OF_BEFORE,
    SCALED,
    RARE,
    GEOMETRIC,
    LITERAL,
    RUNS,
    FEW_OF_MANY,
    STEPS,
    OF_BELOW,
    RECIPES
};

static inline uint64_t tensor_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

/* Byte i of a plane. `before`: the byte 64 before, or 0. `below`: the word's next lower byte. */
static inline uint8_t cook(const struct recipe *r, size_t i, uint8_t before, uint8_t below, uint64_t random,
                           const struct source *in)
{
    const uint8_t low = (uint8_t)(random >> 24);
    const unsigned zeros = (unsigned)__builtin_ctzll(random >> 16 | UINT64_C(1) << 40);
    switch (r->kind % RECIPES) {
    case SAME:
        return r->a;
    case SOME_BITS:
        return (uint8_t)((low & r->a) | (r->b & ~r->a));
    case OF_BEFORE:
        return (uint8_t)((before > r->a ? r->b : r->b ^ 0x5a) + low % (1 + r->c % 64) + before / 8);
    case SCALED: /* by position in a row of `b` */
        return (uint8_t)(r->a + low % (1 + (i % (1 + r->b)) * r->c / 64));
    case RARE:
        return (random >> 32 & (((uint64_t)1 << r->a % 16) - 1)) != 0 ? r->b : low;
    case GEOMETRIC:
        return (uint8_t)(r->a + zeros * (1 + r->b % 8));
    case LITERAL:
        return in->left != 0 ? in->at[(i + r->a) % in->left] : r->b;
    case RUNS:
        return (uint8_t)((i >> r->a % 16) * (r->b | 1));
    case FEW_OF_MANY: /* all values, some rare */
        return (uint8_t)(low % ((random & 63) != 0 ? 1 + r->a : 256));
    case STEPS:
        return (uint8_t)(i * r->a + (i >> 8) * r->b);
    case OF_BELOW: /* like a float's exponent and mantissa, with or without signs */
        return (uint8_t)(r->a + zeros + (below > r->b ? r->c : 0)) ^ (uint8_t)(random >> 56 & r->kind & 0x80);
    default:
        return low;
    }
}

/* A recipe for each byte of a word and each section. */
static inline void cook_tensor(struct source *from, size_t word, unsigned sections, unsigned char *data, size_t bytes)
{
    struct recipe recipes[4][16];
    const size_t words = bytes / word;
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15);
    for (unsigned s = 0; s < sections; s++)
        for (size_t p = 0; p < word; p++)
            recipes[s][p] = (struct recipe){take_byte(from), take_byte(from), take_byte(from), take_byte(from)};
    for (size_t i = 0; i < words; i++) {
        uint64_t random = tensor_random(&state);
        for (size_t p = 0; p < word; p++, random = random * 0x9e3779b97f4a7c15 ^ random >> 29) {
            const uint8_t before = i < 64 ? 0 : data[(i - 64) * word + p];
            const uint8_t below = p > 0 ? data[i * word + p - 1] : 0;
            data[i * word + p] = cook(&recipes[i * sections / words][p], i, before, below, random, from);
        }
    }
}

/* Repeats rows of 64 to 1024 bytes. */
static inline void repeat_rows(unsigned kind, unsigned char *data, size_t bytes)
{
    const size_t row = (size_t)64 << kind % 5;
    uint64_t state = kind;
    for (size_t at = row; at + row <= bytes; at += row) {
        const uint64_t random = tensor_random(&state);
        if (random % 64 < kind / 4)
            memcpy(data + at, data + (random >> 8) % (at / row) * row, row);
    }
}

/* `kind`: equal, a few units away in some words, with changed signs, or unrelated. */
static inline unsigned char *cook_base(const unsigned char *data, size_t word, size_t bytes, unsigned kind)
{
    unsigned char *base = allocate(bytes);
    uint64_t state = kind + 1;
    memcpy(base, data, bytes);
    for (size_t i = 0; i + word <= bytes; i += word) {
        const uint64_t random = tensor_random(&state);
        uint64_t x = seal_get(data + i, word < 8 ? word : 8);
        if ((kind & 1) != 0 && random % 3 == 0)
            x += (random >> 8) % (2u << kind / 8 % 16) - ((uint64_t)1 << kind / 8 % 16);
        if ((kind & 2) != 0 && (random >> 20 & 0x3f) != 0)
            x = x * 5 + i;
        if ((kind & 4) != 0 && (random >> 30) % ((kind & 8) != 0 ? 9 : 400) == 0)
            x ^= (uint64_t)1 << (word < 8 ? 8 * word - 1 : 63);
        seal_put(base + i, x, word < 8 ? word : 8);
    }
    return base;
}

struct tensor {
    struct lmc_params params;
    unsigned char *data;
    unsigned char *base; /* NULL: none */
};

/* Reads eight bytes, the recipes and their bytes; at most `most` bytes. */
static inline struct tensor cook_params(struct source *from, size_t most)
{
    struct tensor tensor = {.params = {.dtype = 1 + take_byte(from) % (LMC_DTYPE_END - 1u)}};
    const unsigned flags = take_byte(from), base_kind = take_byte(from), sections = 1 + take_byte(from) % 4;
    const size_t element = (size_t)lmc_dtype_size(tensor.params.dtype);
    size_t bytes = take_byte(from);
    bytes = (bytes | (size_t)take_byte(from) << 8) * (1 + flags / 4 % 8) + take_byte(from);
    bytes = bytes > most ? most : bytes;
    bytes -= bytes % element;
    const unsigned repeats = take_byte(from);
    tensor.data = allocate(bytes);
    cook_tensor(from, element, sections, tensor.data, bytes);
    if (repeats != 0)
        repeat_rows(repeats, tensor.data, bytes);
    tensor.base = (flags & 2) != 0 ? cook_base(tensor.data, element, bytes, base_kind) : NULL;
    tensor.params.level = (flags & 1) != 0 ? LMC_LEVEL_DENSE : LMC_LEVEL_DEFAULT;
    tensor.params.raw_bytes = bytes;
    tensor.params.data = tensor.data;
    tensor.params.base = tensor.base;
    return tensor;
}

/* `raw_bytes`: at most one block. */
static inline unsigned char *frame_of_block(uint32_t dtype, size_t bases, uint64_t raw_bytes, const uint8_t *coded,
                                            size_t coded_bytes, size_t *frame_bytes)
{
    const size_t header_bytes = 64 + 16 * bases + 32 + 8;
    unsigned char *frame = calloc(1, header_bytes + coded_bytes);
    if (frame == NULL)
        abort();
    *frame_bytes = header_bytes + coded_bytes;
    memcpy(frame, "LMCF", 4);
    seal_put(frame + 4, 1, 4);
    seal_put(frame + 16, raw_bytes, 8);
    seal_put(frame + 24, *frame_bytes, 8);
    frame[32] = (unsigned char)dtype;
    frame[36] = (unsigned char)bases;
    frame[37] = 1;
    frame[38] = 20;
    seal_put(frame + header_bytes - 40, header_bytes, 8);
    memcpy(frame + header_bytes, coded, coded_bytes);
    seal_frame(frame, *frame_bytes);
    return frame;
}

/*
 * Reads dtype, whether there is a base, the size above its minimum (u16, and three bits of the second byte), a coded
 * block. NULL: impossible.
 */
static inline unsigned char *frame_of_input(const uint8_t *bytes, size_t count, size_t *frame_bytes)
{
    if (count < 5)
        return NULL;
    const uint32_t dtype = 1 + bytes[0] % (LMC_DTYPE_END - 1);
    const size_t coded_bytes = count - 4;
    uint64_t raw_bytes = coded_bytes + (seal_get(bytes + 2, 2) % 8192 << (bytes[1] >> 1 & 7));
    raw_bytes += lmc_dtype_size(dtype) - raw_bytes % lmc_dtype_size(dtype);
    if (raw_bytes > LMC_BLOCK_BYTES)
        return NULL;
    return frame_of_block(dtype, bytes[1] & 1, raw_bytes, bytes + 4, coded_bytes, frame_bytes);
}

#endif
