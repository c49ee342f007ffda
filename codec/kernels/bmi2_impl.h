/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bmi2_impl.h - compresses and expands 32 bytes with AVX2 and BMI2, under masks of whole bytes.
 *
 * Compress: a pext for each 8 bytes. Expand: a shuffle is twice as fast; the count of set mask bytes before a byte is
 * the index of its source.
 */
#ifndef LMC_BMI2_IMPL_H
#define LMC_BMI2_IMPL_H

#include "base/bytes.h"

#include <immintrin.h>

struct bytes_32 {
    uint64_t part[4];
};

static inline struct bytes_32 bytes_32(__m256i v)
{
    struct bytes_32 bytes;
    _mm256_storeu_si256((__m256i *)(void *)bytes.part, v);
    return bytes;
}

/* Spreads bits to bytes: byte i becomes all ones or all zeros. */
static inline __m256i spread_vector(uint32_t bits)
{
    const __m256i of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i own = _mm256_set1_epi64x((long long)UINT64_C(0x8040201008040201));
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), of);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, own), own);
}

static inline struct bytes_32 spread_32(uint32_t bits)
{
    return bytes_32(spread_vector(bits));
}

static inline uint32_t mask_bits(const struct bytes_32 *mask)
{
    return (uint32_t)_mm256_movemask_epi8(_mm256_loadu_si256((const __m256i *)(const void *)mask->part));
}

static inline unsigned mask_rank(uint32_t bits, unsigned k)
{
    return k != 0 ? (unsigned)__builtin_popcount(bits << (32 - 8 * k)) : 0;
}

/* Appends masked bytes. Writes up to 32 bytes past the new end. */
static inline void put_32(const struct bytes_32 *mask, const struct bytes_32 *bytes, unsigned char **list)
{
    const uint32_t bits = mask_bits(mask);
    unsigned char *at = *list;
    for (unsigned k = 0; k < 4; k++)
        lmci_store64(at + mask_rank(bits, k), _pext_u64(bytes->part[k], mask->part[k]));
    *list = at + mask_rank(bits, 4);
}

static inline void put_masked(__m256i mask, __m256i v, unsigned char **list)
{
    const struct bytes_32 bytes = bytes_32(v), masks = bytes_32(mask);
    put_32(&masks, &bytes, list);
}

/* Prefix sums of bytes, by halves. */
static inline __m256i sums_so_far(__m256i v)
{
    v = _mm256_add_epi8(v, _mm256_slli_si256(v, 1));
    v = _mm256_add_epi8(v, _mm256_slli_si256(v, 2));
    v = _mm256_add_epi8(v, _mm256_slli_si256(v, 4));
    return _mm256_add_epi8(v, _mm256_slli_si256(v, 8));
}

/* Loads the next bytes for each half of the mask. */
static inline __m256i halves_at(uint32_t bits, const unsigned char *list)
{
    const unsigned first = mask_rank(bits, 2);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)list)),
                                   _mm_loadu_si128((const __m128i *)(const void *)(list + first)), 1);
}

/* The inverse of put_32; fills zeros between. */
static inline __m256i take_masked(__m256i mask, unsigned char **list)
{
    const uint32_t bits = (uint32_t)_mm256_movemask_epi8(mask);
    const __m256i ones = _mm256_set1_epi8(-1);
    /* A mask byte is -1, and -1 - x equals ~x. */
    const __m256i index = _mm256_xor_si256(_mm256_and_si256(sums_so_far(mask), mask), ones);
    const __m256i v = _mm256_shuffle_epi8(halves_at(bits, *list), index);
    *list += mask_rank(bits, 4);
    return v;
}

/* Does take_masked for two masks and lists at once; one byte holds both sums. */
static inline __m256i take_either(__m256i mask0, __m256i mask1, unsigned char **list0, unsigned char **list1)
{
    const uint32_t bits0 = (uint32_t)_mm256_movemask_epi8(mask0), bits1 = (uint32_t)_mm256_movemask_epi8(mask1);
    const __m256i ones = _mm256_set1_epi8(-1), low = _mm256_set1_epi8(15);
    const __m256i own =
        _mm256_or_si256(_mm256_and_si256(mask0, _mm256_set1_epi8(1)), _mm256_and_si256(mask1, _mm256_set1_epi8(16)));
    const __m256i before = _mm256_sub_epi8(sums_so_far(own), own);
    const __m256i index0 = _mm256_blendv_epi8(ones, _mm256_and_si256(before, low), mask0);
    const __m256i index1 = _mm256_blendv_epi8(ones, _mm256_and_si256(_mm256_srli_epi16(before, 4), low), mask1);
    const __m256i v0 = _mm256_shuffle_epi8(halves_at(bits0, *list0), index0);
    const __m256i v1 = _mm256_shuffle_epi8(halves_at(bits1, *list1), index1);
    *list0 += mask_rank(bits0, 4);
    *list1 += mask_rank(bits1, 4);
    return _mm256_or_si256(v0, v1);
}

static inline void put_all(__m256i v, unsigned char **list)
{
    _mm256_storeu_si256((__m256i *)(void *)*list, v);
    *list += 32;
}

static inline __m256i take_all(unsigned char **list)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)*list);
    *list += 32;
    return v;
}

#endif
