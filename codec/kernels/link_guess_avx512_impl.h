/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * link_guess_avx512_impl.h - guesses AdamW's gradients and steps with them in one loop of AVX-512, with the same bits
 * as strip_guesses, strip_enough, strip_out and link_step.
 *
 * A division and a square root take long, but occupy a unit of their own: the guess's operations pass beside them.
 */
#ifndef LMC_LINK_GUESS_AVX512_IMPL_H
#define LMC_LINK_GUESS_AVX512_IMPL_H

struct guess_rule {
    __m512 inverse, half_inverse;
    __m512i kappa;
};

static inline __m512 power_lanes(__m512 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), vector_bits(0x7f800000)));
}

/* An estimate, bounds as offsets from it, and the lanes where it is not zero. */
struct estimate {
    __m512 near, low, high;
    __mmask16 some;
};

static inline struct estimate first_estimate(const struct rule_lanes *rule, const struct guess_rule *guess,
                                             __m512 before, __m512 after)
{
    const __m512 change = _mm512_sub_ps(after, before), part = _mm512_sub_ps(change, after);
    const __m512 minus = _mm512_sub_ps(_mm512_setzero_ps(), before);
    const __m512 lost = _mm512_add_ps(_mm512_sub_ps(after, _mm512_sub_ps(change, part)), _mm512_sub_ps(minus, part));
    const __m512 way = _mm512_mul_ps(change, guess->inverse);
    const __m512 more = _mm512_mul_ps(_mm512_add_ps(_mm512_fnmadd_ps(rule->gain, way, change), lost), guess->inverse);
    const __m512 power = power_lanes(way), half = _mm512_mul_ps(power, vector(0x1p-24f));
    const __m512 shift = _mm512_mul_ps(power, vector(1.5f));
    const __m512 reach = _mm512_mul_ps(power_lanes(after), guess->half_inverse), inside = _mm512_sub_ps(reach, half);
    const __m512 least = _mm512_sub_ps(_mm512_add_ps(_mm512_sub_ps(more, inside), shift), shift);
    const __m512 greatest = _mm512_sub_ps(_mm512_add_ps(_mm512_add_ps(more, inside), shift), shift);
    const __mmask16 any = _mm512_cmp_ps_mask(least, greatest, _CMP_NGT_UQ);
    const __m512 near = _mm512_add_ps(before, way), most = _mm512_sub_ps(near, before);
    const __m512 offset = _mm512_add_ps(_mm512_sub_ps(before, _mm512_sub_ps(near, most)), _mm512_sub_ps(way, most));
    return (struct estimate){near, _mm512_add_ps(_mm512_sub_ps(offset, half), _mm512_maskz_mov_ps(any, least)),
                             _mm512_add_ps(_mm512_add_ps(offset, half), _mm512_maskz_mov_ps(any, greatest)),
                             _mm512_cmp_ps_mask(_mm512_abs_ps(near), _mm512_add_ps(reach, half), _CMP_GT_OQ)};
}

/* `kept`: the second array before the step, times beta2. */
static inline __m512 both_estimate(const struct rule_lanes *rule, const struct estimate *from, __m512 kept,
                                   __m512 after)
{
    const __m512 near = from->near, slope = _mm512_mul_ps(rule->gain2, near), twice_slope = _mm512_add_ps(slope, slope);
    const __m512 rough =
        _mm512_castsi512_ps(_mm512_sub_epi32(vector_bits(0x7ef311c3), _mm512_castps_si512(twice_slope)));
    const __m512 upright = _mm512_mul_ps(_mm512_fnmadd_ps(twice_slope, rough, vector(2.0f)), rough);
    const __m512 miss = _mm512_fnmadd_ps(slope, near, _mm512_sub_ps(after, kept));
    const __m512 offset = _mm512_mul_ps(miss, upright);
    const __m512 reach = _mm512_mul_ps(_mm512_mul_ps(power_lanes(after), vector(0x1p-24f)), _mm512_abs_ps(upright));
    const __m512 low = _mm512_max_ps(_mm512_sub_ps(offset, reach), from->low);
    const __m512 high = _mm512_min_ps(_mm512_add_ps(offset, reach), from->high);
    const __mmask16 both = _mm512_cmp_ps_mask(low, high, _CMP_LE_OQ);
    const __m512 twice = _mm512_mask_add_ps(_mm512_add_ps(from->low, from->high), both, low, high);
    return _mm512_maskz_fmadd_ps(from->some, vector(0.5f), twice, near);
}

/* Stores a gradient in the way of strip_enough and strip_out; returns its value. */
static inline __m512 put_lanes(__mmask16 lanes, const struct guess_rule *guess, __m512 gradient, __m512 first,
                               __m512 second, const struct lmci_gradients *to, size_t at)
{
    const __m512i one = vector_bits(1), middle = _mm512_castps_si512(gradient);
    const __m512i size = _mm512_and_si512(middle, vector_bits(0x7fffffff));
    const __m512i most = _mm512_add_epi32(exponent_lanes(_mm512_castps_si512(first)), guess->kappa);
    const __m512i low = dropped_lanes(_mm512_srli_epi32(size, 23), most);
    const __m512i half = _mm512_srli_epi32(_mm512_sllv_epi32(one, low), 1);
    const __m512i bits = _mm512_and_si512(_mm512_add_epi32(size, half), _mm512_sllv_epi32(vector_bits(~0u), low));
    const __mmask16 some =
        _mm512_mask_cmplt_epu32_mask(_mm512_test_epi32_mask(size, size), bits, vector_bits(0x7f800000)) &
        _mm512_test_epi32_mask(bits, bits);
    const __m512i exponent = _mm512_srli_epi32(bits, 23), drop = dropped_lanes(exponent, most);
    const __m512i expected = _mm512_srli_epi32(exponent_lanes(_mm512_castps_si512(second)), 1);
    const __m512i less = _mm512_sub_epi32(exponent, expected); /* the symbol less 65 */
    const __mmask16 coded =
        _mm512_mask_cmplt_epu32_mask(some, _mm512_add_epi32(less, vector_bits(64)), vector_bits(254));
    const __m512i symbol = _mm512_mask_add_epi32(vector_bits(LMCI_SYMBOL_RAW), coded, less, vector_bits(65));
    const __m512i digits = _mm512_srlv_epi32(_mm512_and_si512(bits, vector_bits(0x7fffff)), drop);
    const __m512i signed_digits = _mm512_or_si512(_mm512_add_epi32(digits, digits), _mm512_srli_epi32(middle, 31));
    const __m512i sign = _mm512_andnot_si512(vector_bits(0x7fffffff), middle);
    const __m512 value = _mm512_castsi512_ps(_mm512_maskz_or_epi32(some, bits, sign));
    _mm_mask_storeu_epi8(to->symbol + at, lanes, _mm512_maskz_cvtepi32_epi8(some, symbol));
    _mm_mask_storeu_epi8(to->stored + at, lanes,
                         _mm512_maskz_cvtepi32_epi8(coded, _mm512_sub_epi32(vector_bits(24), drop)));
    _mm512_mask_storeu_epi32(to->bits + at, lanes, _mm512_maskz_mov_epi32(coded, signed_digits));
    _mm512_mask_storeu_ps(to->value + at, lanes, value);
    return value;
}

/* miss_lanes for results that are mostly right. */
static inline unsigned few_misses(__mmask16 lanes, __m512 actual, __m512 predicted, unsigned char *rest)
{
    const __m512i a = _mm512_castps_si512(actual), p = _mm512_castps_si512(predicted);
    if (__builtin_expect(_mm512_mask_cmpneq_epi32_mask(lanes, a, p) != 0, 0))
        return (unsigned)__builtin_popcount(miss_lanes(lanes, actual, predicted, rest));
    _mm_mask_storeu_epi8(rest, lanes, _mm_setzero_si128());
    return 0;
}

struct guess_arrays {
    struct lmci_link_view from;
    struct lmci_gradients gradients;
    unsigned char *rest[3];
    unsigned missed[3];
};

/* Passes two vectors through each stage: the operations of one depend on each other. */
#define TOGETHER 2

static inline __attribute__((always_inline)) void guess_some(const __mmask16 *lanes, const struct rule_lanes *rule,
                                                             const struct guess_rule *guess,
                                                             struct guess_arrays *arrays, size_t i)
{
    const struct lmci_link_view *from = &arrays->from;
    __m512 g[TOGETHER], next[TOGETHER];
    struct estimate estimate[TOGETHER];
    for (size_t k = 0; k < TOGETHER; k++) {
        const size_t at = i + k * LANES;
        const __m512 first_after = load_lanes(lanes[k], from->after[LMCI_FIRST] + 4 * at);
        const __m512 second_after = load_lanes(lanes[k], from->after[LMCI_SECOND] + 4 * at);
        const __m512 weight = load_lanes(lanes[k], from->before[LMCI_ADAM_WEIGHT] + 4 * at);
        const __m512 scale = _mm512_add_ps(_mm512_div_ps(_mm512_sqrt_ps(second_after), rule->root.value), rule->eps);
        const __m512 change = _mm512_div_ps(_mm512_mul_ps(rule->rate, first_after), scale);
        next[k] = _mm512_add_ps(_mm512_mul_ps(weight, rule->decay), change);
    }
    for (size_t k = 0; k < TOGETHER; k++) {
        const size_t at = i + k * LANES;
        const __m512 first = load_lanes(lanes[k], from->before[LMCI_FIRST] + 4 * at);
        const __m512 first_after = load_lanes(lanes[k], from->after[LMCI_FIRST] + 4 * at);
        estimate[k] = first_estimate(rule, guess, first, first_after);
    }
    for (size_t k = 0; k < TOGETHER; k++) {
        const size_t at = i + k * LANES;
        const __m512 kept = _mm512_mul_ps(load_lanes(lanes[k], from->before[LMCI_SECOND] + 4 * at), rule->beta2);
        const __m512 second_after = load_lanes(lanes[k], from->after[LMCI_SECOND] + 4 * at);
        g[k] = both_estimate(rule, &estimate[k], kept, second_after);
    }
    for (size_t k = 0; k < TOGETHER; k++) {
        const size_t at = i + k * LANES;
        const __m512 first = load_lanes(lanes[k], from->before[LMCI_FIRST] + 4 * at);
        const __m512 second = load_lanes(lanes[k], from->before[LMCI_SECOND] + 4 * at);
        g[k] = put_lanes(lanes[k], guess, g[k], first, second, &arrays->gradients, at);
    }
    for (size_t k = 0; k < TOGETHER; k++) {
        const size_t at = i + k * LANES;
        const __m512 first = load_lanes(lanes[k], from->before[LMCI_FIRST] + 4 * at);
        const __m512 kept = _mm512_mul_ps(load_lanes(lanes[k], from->before[LMCI_SECOND] + 4 * at), rule->beta2);
        const __m512 first_after = load_lanes(lanes[k], from->after[LMCI_FIRST] + 4 * at);
        const __m512 second_after = load_lanes(lanes[k], from->after[LMCI_SECOND] + 4 * at);
        const __m512 weight_after = load_lanes(lanes[k], from->after[LMCI_ADAM_WEIGHT] + 4 * at);
        __m512 to_first = _mm512_fmadd_ps(rule->gain, _mm512_sub_ps(g[k], first), first);
        __m512 to_second = _mm512_fmadd_ps(_mm512_mul_ps(rule->gain2, g[k]), g[k], kept);
        if (__builtin_expect((_mm512_cmp_ps_mask(to_first, to_second, _CMP_UNORD_Q) |
                              _mm512_cmp_ps_mask(next[k], next[k], _CMP_UNORD_Q)) != 0,
                             0)) {
            to_first = known_lanes(to_first);
            to_second = known_lanes(to_second);
            next[k] = known_lanes(next[k]);
        }
        arrays->missed[0] +=
            (unsigned)__builtin_popcount(miss_lanes(lanes[k], first_after, to_first, arrays->rest[LMCI_FIRST] + at));
        arrays->missed[1] += few_misses(lanes[k], second_after, to_second, arrays->rest[LMCI_SECOND] + at);
        arrays->missed[2] += few_misses(lanes[k], weight_after, next[k], arrays->rest[LMCI_ADAM_WEIGHT] + at);
    }
}

/* For AdamW with a small gain, without amsgrad and factors. */
static void adam_guess_step(const struct lmc_link_rule *rule, int kappa, size_t n, const struct lmci_link_view *view,
                            const struct lmci_gradients *gradients, unsigned char *const *rest, size_t *missed)
{
    const struct rule_lanes constants = rule_lanes(rule);
    const float inverse = 1.0f / rule->gain;
    const struct guess_rule guess = {vector(inverse), vector(inverse * 0x1p-24f), vector_bits((uint32_t)kappa)};
    struct guess_arrays arrays = {*view, *gradients, {rest[0], rest[1], rest[2]}, {0}};
    const __mmask16 all[TOGETHER] = {ALL_LANES, ALL_LANES};
    size_t i = 0;
    for (; i + TOGETHER * LANES <= n; i += TOGETHER * LANES) {
        for (unsigned k = 0; k < 3; k++) {
            fetch_next_chunk(arrays.from.before[k] + 4 * i);
            fetch_next_chunk(arrays.from.before[k] + 4 * i + 64);
            fetch_next_chunk(arrays.from.after[k] + 4 * i);
            fetch_next_chunk(arrays.from.after[k] + 4 * i + 64);
        }
        guess_some(all, &constants, &guess, &arrays, i);
    }
    if (i < n) {
        const __mmask16 some[TOGETHER] = {IN_LANES(n - i), n - i > LANES ? IN_LANES(n - i - LANES) : 0};
        guess_some(some, &constants, &guess, &arrays, i);
    }
    for (unsigned k = 0; k < 3; k++)
        missed[k] += arrays.missed[k];
}

#endif
