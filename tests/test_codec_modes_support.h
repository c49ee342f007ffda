/* SPDX-License-Identifier: BSD-3-Clause */
/* test_codec_modes_support.h - round trips with all kernels, and weights of several scales. */
#ifndef LMC_TEST_CODEC_MODES_SUPPORT_H
#define LMC_TEST_CODEC_MODES_SUPPORT_H

#include "test_codec_support.h"

enum { RAW, SAME, TREE, SPARSE_PLANE, PIECES, BITS, CONTEXTS };

#define KIB 1024

static const char *const tables[] = {"portable", "neon", "avx2", "avx512"};
enum { TABLES = sizeof tables / sizeof *tables };

static inline struct encoded encode_by_all(enum lmc_level level, uint32_t dtype, const void *data, const void *base,
                                           size_t bytes)
{
    struct encoded made = encode_at(level, dtype, data, base, bytes);
    assert_decodes(&made, data, base, bytes);
    for (unsigned k = 0; k < TABLES; k++) {
        if (!use_kernels(tables[k]))
            continue;
        struct encoded other = encode_at(level, dtype, data, base, bytes);
        assert_int_equal(other.frame_bytes, made.frame_bytes);
        assert_memory_equal(other.frame, made.frame, made.frame_bytes);
        assert_decodes(&other, data, base, bytes);
        free(other.frame);
    }
    if (lmci_kernels_use != 0)
        lmci_kernels_use(NULL);
    return made;
}

static inline size_t round_trip_by_all(enum lmc_level level, uint32_t dtype, const void *data, const void *base,
                                       size_t bytes)
{
    struct encoded made = encode_by_all(level, dtype, data, base, bytes);
    free(made.frame);
    return made.frame_bytes;
}

static inline size_t size_at(enum lmc_level level, uint32_t dtype, const void *data, size_t bytes)
{
    return round_trip_by_all(level, dtype, data, NULL, bytes);
}

static inline size_t usual_size(uint32_t dtype, const void *data, size_t bytes)
{
    return size_at(LMC_LEVEL_DEFAULT, dtype, data, bytes);
}

static const unsigned char *coded_block(const struct encoded *made, size_t index)
{
    struct lmc_frame frame;
    uint64_t at;
    assert_int_equal(lmc_frame_parse(made->frame, made->frame_bytes, &frame, NULL), LMC_OK);
    assert_true(index < frame.block_count);
    lmc_frame_block(&frame, index, &at);
    return made->frame + at;
}

/* The planes of n bytes before plane `p` are raw or constant. */
static inline unsigned plane_kind(const struct encoded *made, unsigned p, size_t n)
{
    const unsigned char *at = coded_block(made, 0);
    assert_int_equal(at[0], 1);
    at += 2;
    for (unsigned i = 0; i < p; i++) {
        assert_in_range(*at, RAW, SAME);
        at += *at == RAW ? 1 + n : 2;
    }
    return *at;
}

/* About normal, with variance 1. */
static inline float next_normal(uint64_t *state)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < 3; i++) {
        uint64_t random = next_random(state);
        sum += (random & 65535) + (random >> 16 & 65535) + (random >> 32 & 65535) + (random >> 48);
    }
    /* eight more bits, so that a mantissa's lowest bits are noise */
    return (float)(((int32_t)sum - 6 * 65535) * 256 + (int32_t)(next_random(state) & 255)) / 16777216.0f;
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline void put_float(uint32_t dtype, unsigned char *data, size_t i, float x)
{
    if (dtype == LMC_BF16)
        put_word(data + 2 * i, (bits_of(x) + 0x8000) >> 16, 2);
    else
        put_word(data + 4 * i, bits_of(x), 4);
}

static inline void put_weights(uint32_t dtype, unsigned char *data, size_t n, int (*scale)(size_t i, size_t n))
{
    uint64_t state = 99;
    for (size_t i = 0; i < n; i++)
        put_float(dtype, data, i, next_normal(&state) / (float)(1u << scale(i, n)));
}

static inline int no_scale(size_t i, size_t n)
{
    (void)i, (void)n;
    return 5;
}

static inline int scale_by_column(size_t i, size_t n)
{
    (void)n;
    return (int)(i % 64 * 37 % 64) / 6;
}

static inline int scale_by_quarter(size_t i, size_t n)
{
    return 4 * (int)(4 * i / n);
}

static inline void shuffle_words(size_t word, unsigned char *data, size_t n)
{
    uint64_t state = 5;
    for (size_t i = n; i > 1; i--) {
        size_t k = (size_t)(next_random(&state) % i);
        unsigned char held[16];
        memcpy(held, data + (i - 1) * word, word);
        memcpy(data + (i - 1) * word, data + k * word, word);
        memcpy(data + k * word, held, word);
    }
}

/* Parts in 1000 that shuffled words add to the size. */
static inline size_t gain_of_order(enum lmc_level level, uint32_t dtype, unsigned char *data, size_t n)
{
    const size_t word = (size_t)lmc_dtype_size(dtype), in_order = size_at(level, dtype, data, n * word);
    shuffle_words(word, data, n);
    const size_t shuffled = size_at(level, dtype, data, n * word);
    return shuffled > in_order ? 1000 * (shuffled - in_order) / shuffled : 0;
}

#endif
