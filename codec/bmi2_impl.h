/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bmi2_impl.h - compress and expand of 32 bytes, eight by eight with pext and pdep.
 *
 * Masks are of whole bytes. They go through memory: as operands there they cost nothing.
 */
#ifndef LMC_BMI2_IMPL_H
#define LMC_BMI2_IMPL_H

#include "bytes.h"

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

static inline __m256i vector_32(const struct bytes_32 *bytes)
{
    return _mm256_set_epi64x((long long)bytes->part[3], (long long)bytes->part[2], (long long)bytes->part[1],
                             (long long)bytes->part[0]);
}

/* Bit i becomes byte i, all ones or all zeros. */
static inline struct bytes_32 spread_32(uint32_t bits)
{
    const __m256i of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i own = _mm256_set1_epi64x((long long)UINT64_C(0x8040201008040201));
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), of);
    return bytes_32(_mm256_cmpeq_epi8(_mm256_and_si256(v, own), own));
}

static inline uint32_t mask_bits(const struct bytes_32 *mask)
{
    return (uint32_t)_mm256_movemask_epi8(_mm256_loadu_si256((const __m256i *)(const void *)mask->part));
}

/* How many of the first 8 * k bytes a mask has. */
static inline unsigned mask_rank(uint32_t bits, unsigned k)
{
    return k ? (unsigned)__builtin_popcount(bits << (32 - 8 * k)) : 0;
}

/* The bytes that a mask has, to the end of a list; up to 32 bytes past that are written. */
static inline void put_32(const struct bytes_32 *mask, const struct bytes_32 *bytes, unsigned char **list)
{
    const uint32_t bits = mask_bits(mask);
    unsigned char *at = *list;
    for (unsigned k = 0; k < 4; k++)
        lmci_store64(at + mask_rank(bits, k), _pext_u64(bytes->part[k], mask->part[k]));
    *list = at + mask_rank(bits, 4);
}

/* The inverse: a list's next bytes, added to bytes that are zero where the mask is set. */
static inline void take_32(const struct bytes_32 *mask, unsigned char **list, struct bytes_32 *bytes)
{
    const uint32_t bits = mask_bits(mask);
    unsigned char *at = *list;
    for (unsigned k = 0; k < 4; k++)
        bytes->part[k] |= _pdep_u64(lmci_load64(at + mask_rank(bits, k)), mask->part[k]);
    *list = at + mask_rank(bits, 4);
}

static inline void put_masked(__m256i mask, __m256i v, unsigned char **list)
{
    const struct bytes_32 bytes = bytes_32(v), masks = bytes_32(mask);
    put_32(&masks, &bytes, list);
}

static inline __m256i take_masked(__m256i mask, unsigned char **list)
{
    struct bytes_32 bytes = {{0, 0, 0, 0}};
    const struct bytes_32 masks = bytes_32(mask);
    take_32(&masks, list, &bytes);
    return vector_32(&bytes);
}

/* The same where a mask has all of them. */
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
