/* SPDX-License-Identifier: BSD-3-Clause */
/* link_range_avx512_impl.h - strip_ranges of link_impl.h for AVX-512: the same operations on the same doubles. */
#ifndef LMC_LINK_RANGE_AVX512_IMPL_H
#define LMC_LINK_RANGE_AVX512_IMPL_H

#include <immintrin.h>

#define DOUBLES ((size_t)8)
#define UP      (_MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)
#define DOWN    (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)

struct ranges {
    __m512d low, high;
};

static inline __m512d doubles(double x)
{
    return _mm512_set1_pd(x);
}

static inline __m256 load_floats(const strip_f32 *from)
{
    return _mm256_loadu_ps((const float *)(const void *)from);
}

/* Returns the value of a float's last bit, times 2^23. */
static inline __m512d powers_of(__m256 x)
{
    const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7f800000));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_max_epu32(exponent, _mm256_set1_epi32(0x00800000))));
}

static inline __m512d middles_of(const struct ranges *range)
{
    return _mm512_mul_pd(doubles(0.5), _mm512_add_pd(range->low, range->high));
}

static inline struct ranges rounded_to_lanes(const struct ranges *range)
{
    const __m256 up = _mm512_cvt_roundpd_ps(range->low, UP), down = _mm512_cvt_roundpd_ps(range->high, DOWN);
    const __mmask8 any = _mm256_cmp_ps_mask(up, down, _CMP_LE_OQ);
    const __m256 near = _mm512_cvtpd_ps(middles_of(range));
    const __m256 low = _mm256_mask_mov_ps(near, any, up), high = _mm256_mask_mov_ps(near, any, down);
    return (struct ranges){_mm512_fnmadd_pd(powers_of(low), doubles(0x1p-24), _mm512_cvtps_pd(low)),
                           _mm512_fmadd_pd(powers_of(high), doubles(0x1p-24), _mm512_cvtps_pd(high))};
}

static inline struct ranges around(__m512d middle, __m512d reach)
{
    return (struct ranges){_mm512_sub_pd(middle, reach), _mm512_add_pd(middle, reach)};
}

struct range_rule {
    __m512d inverse, half_inverse, twice_gain2, decay, unscale;
    __m256 momentum, beta2;
};

static inline struct ranges sgd_ranges(const struct range_rule *rule, __m256 first, __m256 first_after)
{
    const __m512d kept = _mm512_cvtps_pd(_mm256_mul_ps(first, rule->momentum));
    const __m512d middle = _mm512_mul_pd(_mm512_sub_pd(_mm512_cvtps_pd(first_after), kept), rule->inverse);
    return around(middle, _mm512_mul_pd(powers_of(first_after), rule->half_inverse));
}

/* The ranges of Adam's gradients that yield the first array. */
static inline struct ranges first_ranges(const struct range_rule *rule, __m256 first, __m256 first_after)
{
    const __m512d before = _mm512_cvtps_pd(first);
    const __m512d way = _mm512_mul_pd(_mm512_sub_pd(_mm512_cvtps_pd(first_after), before), rule->inverse);
    const struct ranges unrounded = around(way, _mm512_mul_pd(powers_of(first_after), rule->half_inverse));
    const struct ranges rounded = rounded_to_lanes(&unrounded);
    return (struct ranges){_mm512_add_pd(before, rounded.low), _mm512_add_pd(before, rounded.high)};
}

/* The part of each range that also yields the second array; the whole range if there is none. */
static inline struct ranges both_ranges(const struct range_rule *rule, const struct ranges *range, __m256 second,
                                        __m256 second_after)
{
    const __m512d middle = middles_of(range);
    const __m512d slope = _mm512_mul_pd(rule->twice_gain2, middle);
    const __m512d kept = _mm512_cvtps_pd(_mm256_mul_ps(second, rule->beta2));
    const __m512d square = _mm512_mul_pd(_mm512_mul_pd(doubles(0.5), slope), middle);
    const __m512d miss = _mm512_sub_pd(_mm512_cvtps_pd(second_after), _mm512_add_pd(kept, square));
    const __m512d upright = _mm512_cvtps_pd(_mm256_div_ps(_mm256_set1_ps(1), _mm512_cvtpd_ps(slope)));
    const __m512d half = _mm512_mul_pd(powers_of(second_after), doubles(0x1p-24));
    const __m512d reach = _mm512_mul_pd(half, _mm512_abs_pd(upright));
    const struct ranges other = around(_mm512_add_pd(middle, _mm512_mul_pd(miss, upright)), reach);
    const __m512d low = _mm512_max_pd(range->low, other.low), high = _mm512_min_pd(range->high, other.high);
    const __mmask8 both = _mm512_cmp_pd_mask(low, high, _CMP_LE_OQ);
    return (struct ranges){_mm512_mask_mov_pd(range->low, both, low), _mm512_mask_mov_pd(range->high, both, high)};
}

static inline void store_ranges(const struct ranges *range, struct strip *strip, size_t at)
{
    const __m512d low = _mm512_abs_pd(range->low), high = _mm512_abs_pd(range->high);
    const __m256i middle = _mm256_castps_si256(_mm512_cvtpd_ps(middles_of(range)));
    const __m256i near = _mm256_and_si256(middle, _mm256_set1_epi32(0x7fffffff));
    const __m256i up = _mm256_castps_si256(_mm512_cvt_roundpd_ps(_mm512_min_pd(low, high), UP));
    const __m256i down = _mm256_castps_si256(_mm512_cvt_roundpd_ps(_mm512_max_pd(low, high), DOWN));
    const __mmask8 around_zero =
        _mm512_cmp_pd_mask(_mm512_mul_pd(range->low, range->high), _mm512_setzero_pd(), _CMP_LE_OQ);
    const __mmask8 none = _mm256_cmpgt_epu32_mask(up, down);
    const __m256i from = _mm256_mask_mov_epi32(up, around_zero, _mm256_setzero_si256());
    _mm256_storeu_si256((__m256i *)(void *)(strip->middle + at), middle);
    _mm256_storeu_si256((__m256i *)(void *)(strip->from + at), _mm256_mask_mov_epi32(from, none, near));
    _mm256_storeu_si256((__m256i *)(void *)(strip->to + at), _mm256_mask_mov_epi32(down, none, near));
}

static inline __attribute__((always_inline)) void strip_ranges(const struct lmc_link_rule *rule, bool adam, bool l2,
                                                               bool scaled, struct strip *strip)
{
    const double inverse = 1 / (double)rule->gain;
    const struct range_rule constants = {
        .inverse = doubles(inverse),
        .half_inverse = doubles(0x1p-24 * inverse),
        .twice_gain2 = doubles(2 * (double)rule->gain2),
        .decay = doubles((double)rule->l2),
        .unscale = doubles(1 / (double)rule->scale),
        .momentum = _mm256_set1_ps(rule->momentum),
        .beta2 = _mm256_set1_ps(rule->beta2),
    };
    /* Interleaves two vectors: the operations of one depend on each other. */
    for (size_t i = 0; i < STRIP; i += 2 * DOUBLES) {
        struct ranges range[2];
        for (size_t k = 0; k < 2; k++) {
            const __m256 first = load_floats(strip->first + i + k * DOUBLES);
            const __m256 first_after = load_floats(strip->first_after + i + k * DOUBLES);
            range[k] = adam ? first_ranges(&constants, first, first_after) : sgd_ranges(&constants, first, first_after);
        }
        for (size_t k = 0; k < 2 && adam; k++)
            range[k] = both_ranges(&constants, &range[k], load_floats(strip->second + i + k * DOUBLES),
                                   load_floats(strip->second_after + i + k * DOUBLES));
        for (size_t k = 0; k < 2 && l2; k++) {
            const __m512d weight = _mm512_cvtps_pd(load_floats(strip->weight + i + k * DOUBLES));
            const __m512d shift = _mm512_mul_pd(constants.decay, weight);
            const struct ranges rounded = rounded_to_lanes(&range[k]);
            range[k] = (struct ranges){_mm512_sub_pd(rounded.low, shift), _mm512_sub_pd(rounded.high, shift)};
        }
        for (size_t k = 0; k < 2 && scaled; k++) {
            const struct ranges rounded = rounded_to_lanes(&range[k]);
            range[k] = (struct ranges){_mm512_mul_pd(rounded.low, constants.unscale),
                                       _mm512_mul_pd(rounded.high, constants.unscale)};
        }
        for (size_t k = 0; k < 2; k++)
            store_ranges(&range[k], strip, i + k * DOUBLES);
    }
}

#endif
