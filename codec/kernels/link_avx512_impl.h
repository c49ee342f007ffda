/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * link_avx512_impl.h - loops of link_impl.h that AVX-512 intrinsics make faster, with the same bits.
 *
 * Divisions and a square root dominate a step. With a divisor that all elements share, a product with its inverse is
 * close to the quotient; where the remainder does not prove it the nearest float, the processor divides.
 */
#ifndef LMC_LINK_AVX512_IMPL_H
#define LMC_LINK_AVX512_IMPL_H

#include <immintrin.h>

#define LANES       ((size_t)16)
#define ALL_LANES   ((__mmask16)0xffff)
#define IN_LANES(n) ((n) < LANES ? (__mmask16)((1u << (n)) - 1) : ALL_LANES)

static inline __m512 vector(float x)
{
    return _mm512_set1_ps(x);
}

static inline __m512i vector_bits(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

static inline __m512 load_lanes(__mmask16 lanes, const void *from)
{
    return _mm512_maskz_loadu_ps(lanes, from);
}

static inline __m512 known_lanes(__m512 x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
}

/* Fetches a cache line of the next chunk. The processor's own prefetching hardly runs ahead of so many arrays. */
static inline __attribute__((always_inline)) void fetch_next_chunk(const void *line)
{
    _mm_prefetch((const char *)((uintptr_t)line + 4 * LMCI_CHUNK_ELEMENTS), _MM_HINT_T0);
}

/* ---- Quotients ------------------------------------------------------------------------------------------------- */

/* Returns the lanes from 2^-100 to below 2^101 in absolute value, where remainders are exact. */
static inline __mmask16 is_moderate(__m512 x)
{
    const __m512i exponent = _mm512_and_si512(_mm512_castps_si512(x), vector_bits(0x7f800000));
    const __m512i above = _mm512_sub_epi32(exponent, vector_bits(27u << 23));
    return _mm512_cmple_epu32_mask(above, vector_bits(200u << 23));
}

static inline __m512 magnitude(__m512 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), vector_bits(0x7fffffff)));
}

/* A divisor with its approximate inverse, and half the value of its last bit. */
struct divisor {
    __m512 value, inverse, half;
    __mmask16 moderate;
};

static inline struct divisor divisor_of(float x)
{
    const __m512 value = vector(x);
    return (struct divisor){value, vector(1.0f / x), _mm512_mul_ps(magnitude(value), vector(0x1p-24f)),
                            is_moderate(value)};
}

/* A quotient q, no power of two, is nearest to a / b if its remainder, exact in a float, is less than half the value of
 * q's last bit times b. */
static inline __m512 quotient(__m512 a, const struct divisor *b)
{
    __m512 q = _mm512_mul_ps(a, b->inverse);
    q = _mm512_fmadd_ps(_mm512_fnmadd_ps(b->value, q, a), b->inverse, q);
    const __m512i bits = _mm512_castps_si512(q);
    const __m512 left = magnitude(_mm512_fnmadd_ps(b->value, q, a));
    const __m512 power = _mm512_castsi512_ps(_mm512_and_si512(bits, vector_bits(0x7f800000)));
    __mmask16 good = _mm512_mask_test_epi32_mask(b->moderate, bits, vector_bits(0x007fffff));
    good = _mm512_mask_cmp_ps_mask(good, left, _mm512_mul_ps(power, b->half), _CMP_LT_OQ) & is_moderate(a);
    if (__builtin_expect(good != ALL_LANES, 0))
        q = _mm512_div_ps(a, b->value);
    return q;
}

/* ---- The step -------------------------------------------------------------------------------------------------- */

struct rule_lanes {
    __m512 gain, minus_rest, momentum, beta2, gain2, l2, decay, rate, eps;
    struct divisor root;
};

static inline struct rule_lanes rule_lanes(const struct lmc_link_rule *rule)
{
    return (struct rule_lanes){
        .gain = vector(rule->gain),
        .minus_rest = vector(-(1.0f - rule->gain)),
        .momentum = vector(rule->momentum),
        .beta2 = vector(rule->beta2),
        .gain2 = vector(rule->gain2),
        .l2 = vector(rule->l2),
        .decay = vector(rule->decay),
        .rate = vector(rule->rate),
        .eps = vector(rule->eps),
        .root = divisor_of(rule->root),
    };
}

static inline __m512 first_lanes(const struct rule_lanes *rule, bool near, __m512 gradient, __m512 first)
{
    const __m512 way = _mm512_sub_ps(gradient, first);
    return known_lanes(near ? _mm512_fmadd_ps(rule->gain, way, first)
                            : _mm512_fmadd_ps(way, rule->minus_rest, gradient));
}

static inline __m512 second_lanes(const struct rule_lanes *rule, __m512 gradient, __m512 second)
{
    const __m512 kept = _mm512_mul_ps(second, rule->beta2);
    return known_lanes(_mm512_fmadd_ps(_mm512_mul_ps(rule->gain2, gradient), gradient, kept));
}

static inline __m512 weight_lanes(const struct rule_lanes *rule, __m512 first, __m512 second, __m512 weight)
{
    const __m512 scale = _mm512_add_ps(quotient(_mm512_sqrt_ps(second), &rule->root), rule->eps);
    const __m512 kept = _mm512_mul_ps(weight, rule->decay);
    return known_lanes(_mm512_add_ps(kept, _mm512_div_ps(_mm512_mul_ps(rule->rate, first), scale)));
}

static void adam_weights(const struct lmc_link_rule *rule, size_t n, const lmci_f32 *first, const lmci_f32 *second,
                         const lmci_f32 *weight, lmci_f32 *to)
{
    const struct rule_lanes constants = rule_lanes(rule);
    for (size_t i = 0; i < n; i += LANES) {
        const __mmask16 lanes = IN_LANES(n - i);
        fetch_next_chunk(weight + i);
        const __m512 next = weight_lanes(&constants, load_lanes(lanes, first + i), load_lanes(lanes, second + i),
                                         load_lanes(lanes, weight + i));
        _mm512_mask_storeu_ps(to + i, lanes, next);
    }
}

/* Returns the lanes where differences are not zero. */
static inline __mmask16 miss_lanes(__mmask16 lanes, __m512 actual, __m512 predicted, unsigned char *rest)
{
    const __m512i miss = _mm512_sub_epi32(_mm512_castps_si512(actual), _mm512_castps_si512(predicted));
    const __m512i moved = _mm512_add_epi32(miss, vector_bits(127));
    const __mmask16 escapes = _mm512_cmpge_epu32_mask(moved, vector_bits(255));
    const __m512i bytes = _mm512_mask_mov_epi32(miss, escapes, vector_bits(LMCI_REST_ESCAPE));
    _mm_mask_storeu_epi8(rest, lanes, _mm512_cvtepi32_epi8(bytes));
    return _mm512_mask_test_epi32_mask(lanes, miss, miss);
}

static inline __attribute__((always_inline)) void adam_step(const struct lmc_link_rule *rule, bool l2, bool near,
                                                            bool most, size_t n, const float *gradient,
                                                            const struct lmci_link_view *view,
                                                            unsigned char *const *rest, size_t *missed)
{
    const struct rule_lanes constants = rule_lanes(rule);
    const struct lmci_link_view from = *view; /* a copy that stores of bytes cannot alias */
    unsigned char *const to[LMC_MAX_BASES] = {rest[0], rest[1], rest[2], most ? rest[3] : NULL};
    size_t count[LMC_MAX_BASES] = {0};
    for (size_t i = 0; i < n; i += LANES) {
        const __mmask16 lanes = IN_LANES(n - i);
        for (unsigned k = 0; k < 3; k++) {
            fetch_next_chunk(from.before[k] + 4 * i);
            fetch_next_chunk(from.after[k] + 4 * i);
        }
        const __m512 weight = load_lanes(lanes, from.before[LMCI_ADAM_WEIGHT] + 4 * i);
        const __m512 first_after = load_lanes(lanes, from.after[LMCI_FIRST] + 4 * i);
        __m512 second_after = load_lanes(lanes, from.after[LMCI_SECOND] + 4 * i);
        __m512 g = load_lanes(lanes, gradient + i);
        g = l2 ? _mm512_fmadd_ps(constants.l2, weight, g) : g;
        const __m512 first = first_lanes(&constants, near, g, load_lanes(lanes, from.before[LMCI_FIRST] + 4 * i));
        const __m512 second = second_lanes(&constants, g, load_lanes(lanes, from.before[LMCI_SECOND] + 4 * i));
        count[0] += (unsigned)__builtin_popcount(miss_lanes(lanes, first_after, first, to[LMCI_FIRST] + i));
        count[1] += (unsigned)__builtin_popcount(miss_lanes(lanes, second_after, second, to[LMCI_SECOND] + i));
        if (most) {
            const __m512 before = load_lanes(lanes, from.before[LMCI_ADAM_MOST] + 4 * i);
            const __m512 after = load_lanes(lanes, from.after[LMCI_ADAM_MOST] + 4 * i);
            const __mmask16 stays = _mm512_cmp_ps_mask(before, second_after, _CMP_GT_OQ);
            const __m512 greatest = known_lanes(_mm512_mask_mov_ps(second_after, stays, before));
            count[3] += (unsigned)__builtin_popcount(miss_lanes(lanes, after, greatest, to[LMCI_ADAM_MOST] + i));
            second_after = after;
        }
        const __m512 next = weight_lanes(&constants, first_after, second_after, weight);
        const __m512 after = load_lanes(lanes, from.after[LMCI_ADAM_WEIGHT] + 4 * i);
        count[2] += (unsigned)__builtin_popcount(miss_lanes(lanes, after, next, to[LMCI_ADAM_WEIGHT] + i));
    }
    for (unsigned k = 0; k < 3u + most; k++)
        missed[k] += count[k];
}

static inline __attribute__((always_inline)) void sgd_step(const struct lmc_link_rule *rule, bool l2, bool nesterov,
                                                           size_t n, const float *gradient,
                                                           const struct lmci_link_view *view,
                                                           unsigned char *const *rest, size_t *missed)
{
    const struct rule_lanes constants = rule_lanes(rule);
    const struct lmci_link_view from = *view;
    unsigned char *const to[2] = {rest[0], rest[1]};
    size_t count[2] = {0};
    for (size_t i = 0; i < n; i += LANES) {
        const __mmask16 lanes = IN_LANES(n - i);
        const __m512 weight = load_lanes(lanes, from.before[LMCI_SGD_WEIGHT] + 4 * i);
        const __m512 first_after = load_lanes(lanes, from.after[LMCI_FIRST] + 4 * i);
        const __m512 after = load_lanes(lanes, from.after[LMCI_SGD_WEIGHT] + 4 * i);
        __m512 g = load_lanes(lanes, gradient + i);
        g = l2 ? _mm512_fmadd_ps(constants.l2, weight, g) : g;
        const __m512 kept = _mm512_mul_ps(load_lanes(lanes, from.before[LMCI_FIRST] + 4 * i), constants.momentum);
        const __m512 first = known_lanes(_mm512_fmadd_ps(constants.gain, g, kept));
        const __m512 way = nesterov ? _mm512_fmadd_ps(constants.momentum, first_after, g) : first_after;
        const __m512 next = known_lanes(_mm512_fmadd_ps(constants.rate, way, weight));
        count[0] += (unsigned)__builtin_popcount(miss_lanes(lanes, first_after, first, to[LMCI_FIRST] + i));
        count[1] += (unsigned)__builtin_popcount(miss_lanes(lanes, after, next, to[LMCI_SGD_WEIGHT] + i));
    }
    missed[LMCI_FIRST] += count[0];
    missed[LMCI_SGD_WEIGHT] += count[1];
}

static void link_step(const struct lmc_link_rule *rule, size_t n, const float *gradient,
                      const struct lmci_link_view *view, unsigned char *const *rest, size_t *missed)
{
    const bool l2 = rule->l2 != 0, near = rule->gain < 0.5f, most = (rule->flags & LMC_LINK_AMSGRAD) != 0;
    if (rule->optimizer == LMC_SGD && (rule->flags & LMC_LINK_NESTEROV) != 0)
        sgd_step(rule, l2, true, n, gradient, view, rest, missed);
    else if (rule->optimizer == LMC_SGD && l2)
        sgd_step(rule, true, false, n, gradient, view, rest, missed);
    else if (rule->optimizer == LMC_SGD)
        sgd_step(rule, false, false, n, gradient, view, rest, missed);
    else if (!l2 && near && !most)
        adam_step(rule, false, true, false, n, gradient, view, rest, missed);
    else if (most)
        adam_step(rule, l2, near, true, n, gradient, view, rest, missed);
    else
        adam_step(rule, l2, near, false, n, gradient, view, rest, missed);
}

/* ---- Short gradients ------------------------------------------------------------------------------------------- */

static inline __m512i load_bytes(__mmask16 lanes, const unsigned char *from)
{
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, from));
}

static inline __m512 short_lanes(__m512i symbol, __m512i byte, __m512 reference, unsigned halved, __m512i bias,
                                 __m512 scale)
{
    const __m512i expected = _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(reference), 23), vector_bits(255));
    const __m512i near = _mm512_sub_epi32(halved != 0 ? _mm512_srli_epi32(expected, 1) : expected, bias);
    const __m512i exponent = _mm512_and_si512(_mm512_add_epi32(symbol, near), vector_bits(255));
    const __m512i sign = _mm512_slli_epi32(_mm512_srli_epi32(byte, 7), 31);
    const __m512i mantissa = _mm512_slli_epi32(_mm512_and_si512(byte, vector_bits(127)), 16);
    const __m512i bits = _mm512_or_si512(_mm512_or_si512(sign, mantissa), _mm512_slli_epi32(exponent, 23));
    return _mm512_maskz_mul_ps(_mm512_test_epi32_mask(symbol, symbol), _mm512_castsi512_ps(bits), scale);
}

static inline __attribute__((always_inline)) void short_moments(const struct lmc_link_rule *rule, bool adam, bool l2,
                                                                bool near, bool keep, size_t n, int bias,
                                                                const struct lmci_gradients *gradients,
                                                                const lmci_f32 *weight, lmci_f32 *first,
                                                                lmci_f32 *second)
{
    const struct rule_lanes constants = rule_lanes(rule);
    const __m512i biases = vector_bits((uint32_t)bias);
    const __m512 scale = vector(rule->scale);
    const unsigned char *symbols = gradients->symbol, *bytes = gradients->byte;
    float *values = gradients->value;
    for (size_t i = 0; i < n; i += LANES) {
        const __mmask16 lanes = IN_LANES(n - i);
        fetch_next_chunk(first + i);
        if (adam)
            fetch_next_chunk(second + i);
        const __m512 m = load_lanes(lanes, first + i), v = adam ? load_lanes(lanes, second + i) : m;
        __m512 g = short_lanes(load_bytes(lanes, symbols + i), load_bytes(lanes, bytes + i), v, adam, biases, scale);
        if (keep)
            _mm512_mask_storeu_ps(values + i, lanes, g);
        g = l2 ? _mm512_fmadd_ps(constants.l2, load_lanes(lanes, weight + i), g) : g;
        const __m512 kept = _mm512_mul_ps(m, constants.momentum);
        const __m512 next =
            adam ? first_lanes(&constants, near, g, m) : known_lanes(_mm512_fmadd_ps(constants.gain, g, kept));
        _mm512_mask_storeu_ps(first + i, lanes, next);
        if (adam)
            _mm512_mask_storeu_ps(second + i, lanes, second_lanes(&constants, g, v));
    }
}

static void link_short_moments(const struct lmc_link_rule *rule, size_t n, const struct lmci_reference *reference,
                               const struct lmci_gradients *gradients, const lmci_f32 *weight, lmci_f32 *first,
                               lmci_f32 *second)
{
    const bool l2 = rule->l2 != 0, near = rule->gain < 0.5f, keep = (rule->flags & LMC_LINK_NESTEROV) != 0;
    const int bias = reference->bias;
    if (rule->optimizer == LMC_SGD)
        short_moments(rule, false, l2, near, keep, n, bias, gradients, weight, first, second);
    else if (!l2 && near)
        short_moments(rule, true, false, true, false, n, bias, gradients, weight, first, second);
    else
        short_moments(rule, true, l2, near, false, n, bias, gradients, weight, first, second);
}

/* ---- Bits ------------------------------------------------------------------------------------------------------ */

/* Exclusive prefix sums. */
static inline __m512i sums_before(__m512i x)
{
    const __m512i zero = _mm512_setzero_si512();
    __m512i sums = _mm512_alignr_epi32(x, zero, 15);
    sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 15));
    sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 14));
    sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 12));
    return _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 8));
}

/* 16 numbers of at most 24 bits start within 48 bytes, each within four bytes. */
static void link_unpack(size_t n, const struct lmci_gradients *gradients, const unsigned char *from, size_t bytes)
{
    const __m512i each = vector_bits(0x03020100), one = vector_bits(1);
    const __m512i of_lane = _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    size_t at = 0;
    for (size_t i = 0; i < n; i += LANES) {
        const __mmask16 lanes = IN_LANES(n - i);
        const size_t left = bytes - (at >> 3);
        const __m512i window =
            _mm512_maskz_loadu_epi8(left < 64 ? ((uint64_t)1 << left) - 1 : ~(uint64_t)0, from + (at >> 3));
        const __m128i stored = _mm_maskz_loadu_epi8(lanes, gradients->stored + i);
        const __m512i counts = _mm512_cvtepu8_epi32(stored);
        const __m512i begin = _mm512_add_epi32(sums_before(counts), vector_bits(at & 7));
        const __m512i first = _mm512_shuffle_epi8(_mm512_srli_epi32(begin, 3), of_lane);
        const __m512i words = _mm512_permutexvar_epi8(_mm512_add_epi8(first, each), window);
        const __m512i bits = _mm512_srlv_epi32(words, _mm512_and_si512(begin, vector_bits(7)));
        const __m512i mask = _mm512_sub_epi32(_mm512_sllv_epi32(one, counts), one);
        _mm512_mask_storeu_epi32(gradients->bits + i, lanes, _mm512_and_si512(bits, mask));
        const __m128i sums = _mm_sad_epu8(stored, _mm_setzero_si128());
        at += (size_t)_mm_cvtsi128_si64(sums) + (size_t)_mm_extract_epi64(sums, 1);
    }
}

static inline __m512i exponent_lanes(__m512i x)
{
    return _mm512_and_si512(_mm512_srli_epi32(x, 23), vector_bits(255));
}

/* dropped_bits of numbers without sign; `most`: the first array's exponents, and kappa. */
static inline __m512i dropped_lanes(__m512i exponent, __m512i most)
{
    const __m512i drop = _mm512_max_epi32(_mm512_sub_epi32(most, exponent), _mm512_setzero_si512());
    return _mm512_min_epi32(drop, vector_bits(23));
}

/* Gradients of FULL whose bits begin at bit `at` of `from`. */
struct full_lanes {
    __m512i exponent, drop, counts;
    __mmask16 some;
    size_t at;
};

static inline struct full_lanes full_lanes(__m512i symbol, __m512 first, __m512 second, __m512i kappa, __m512i bias,
                                           size_t at)
{
    const __m512i expected = _mm512_srli_epi32(exponent_lanes(_mm512_castps_si512(second)), 1);
    const __m512i sum = _mm512_add_epi32(symbol, _mm512_sub_epi32(expected, bias));
    const __m512i exponent = _mm512_and_si512(sum, vector_bits(255));
    const __m512i drop = dropped_lanes(exponent, _mm512_add_epi32(exponent_lanes(_mm512_castps_si512(first)), kappa));
    const __mmask16 some = _mm512_test_epi32_mask(symbol, symbol);
    return (struct full_lanes){exponent, drop, _mm512_maskz_sub_epi32(some, vector_bits(24), drop), some, at};
}

static inline size_t bits_of_lanes(const struct full_lanes *lanes)
{
    const __m128i sums = _mm_sad_epu8(_mm512_cvtepi32_epi8(lanes->counts), _mm_setzero_si128());
    return (size_t)_mm_cvtsi128_si64(sums) + (size_t)_mm_extract_epi64(sums, 1);
}

static inline __m512 unpack_lanes(const struct full_lanes *lanes, __m512 scale, const unsigned char *from, size_t bytes)
{
    const __m512i each = vector_bits(0x03020100);
    const __m512i of_lane = _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    const size_t byte = lanes->at >> 3, left = bytes > byte ? bytes - byte : 0;
    const __m512i window =
        left >= 64 ? _mm512_loadu_si512(from + byte) : _mm512_maskz_loadu_epi8(((uint64_t)1 << left) - 1, from + byte);
    const __m512i begin = _mm512_add_epi32(sums_before(lanes->counts), vector_bits(lanes->at & 7));
    const __m512i begin_byte = _mm512_shuffle_epi8(_mm512_srli_epi32(begin, 3), of_lane);
    const __m512i words = _mm512_permutexvar_epi8(_mm512_add_epi8(begin_byte, each), window);
    const __m512i bits = _mm512_srlv_epi32(words, _mm512_and_si512(begin, vector_bits(7)));
    const __m512i mantissa = _mm512_sllv_epi32(_mm512_srli_epi32(bits, 1), lanes->drop);
    const __m512i high = _mm512_or_si512(_mm512_slli_epi32(bits, 31), _mm512_slli_epi32(lanes->exponent, 23));
    const __m512i all = _mm512_or_si512(_mm512_and_si512(mantissa, vector_bits(0x7fffff)), high);
    return _mm512_maskz_mul_ps(lanes->some, _mm512_castsi512_ps(all), scale);
}

struct full_arrays {
    const unsigned char *symbols;
    const lmci_f32 *weight;
    lmci_f32 *first, *second;
    const unsigned char *from;
    size_t bytes;
};

/* Passes two vectors through each stage: the operations of one depend on each other. Returns the bit after them. */
static inline __attribute__((always_inline)) size_t full_some(const __mmask16 *lanes, const struct rule_lanes *rule,
                                                              bool l2, bool near, __m512i kappa, __m512i bias,
                                                              __m512 scale, const struct full_arrays *arrays, size_t i,
                                                              size_t bits)
{
    struct full_lanes full[2];
    __m512 g[2];
    for (size_t k = 0; k < 2; k++) {
        const size_t at = i + k * LANES;
        const __m512 first = load_lanes(lanes[k], arrays->first + at);
        const __m512 second = load_lanes(lanes[k], arrays->second + at);
        full[k] = full_lanes(load_bytes(lanes[k], arrays->symbols + at), first, second, kappa, bias, bits);
        bits += bits_of_lanes(&full[k]);
    }
    for (size_t k = 0; k < 2; k++)
        g[k] = unpack_lanes(&full[k], scale, arrays->from, arrays->bytes);
    for (size_t k = 0; k < 2; k++) {
        const size_t at = i + k * LANES;
        g[k] = l2 ? _mm512_fmadd_ps(rule->l2, load_lanes(lanes[k], arrays->weight + at), g[k]) : g[k];
        const __m512 m = first_lanes(rule, near, g[k], load_lanes(lanes[k], arrays->first + at));
        const __m512 v = second_lanes(rule, g[k], load_lanes(lanes[k], arrays->second + at));
        _mm512_mask_storeu_ps(arrays->first + at, lanes[k], m);
        _mm512_mask_storeu_ps(arrays->second + at, lanes[k], v);
    }
    return bits;
}

static inline __attribute__((always_inline)) size_t full_moments(const struct lmc_link_rule *rule, bool l2, bool near,
                                                                 int kappa, size_t n, int bias,
                                                                 const struct full_arrays *arrays)
{
    const struct rule_lanes constants = rule_lanes(rule);
    const __m512i kappas = vector_bits((uint32_t)kappa), biases = vector_bits((uint32_t)bias);
    const __m512 scale = vector(rule->scale);
    const __mmask16 all[2] = {ALL_LANES, ALL_LANES};
    size_t bits = 0, i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        fetch_next_chunk(arrays->first + i);
        fetch_next_chunk(arrays->first + i + LANES);
        fetch_next_chunk(arrays->second + i);
        fetch_next_chunk(arrays->second + i + LANES);
        bits = full_some(all, &constants, l2, near, kappas, biases, scale, arrays, i, bits);
    }
    if (i < n) {
        const __mmask16 some[2] = {IN_LANES(n - i), n - i > LANES ? IN_LANES(n - i - LANES) : 0};
        bits = full_some(some, &constants, l2, near, kappas, biases, scale, arrays, i, bits);
    }
    return bits;
}

static size_t link_full_moments(const struct lmc_link_rule *rule, int kappa, size_t n,
                                const struct lmci_reference *reference, const struct lmci_gradients *gradients,
                                const lmci_f32 *weight, lmci_f32 *first, lmci_f32 *second, const unsigned char *from,
                                size_t bytes)
{
    const bool l2 = rule->l2 != 0, near = rule->gain < 0.5f;
    const struct full_arrays arrays = {gradients->symbol, weight, first, second, from, bytes};
    if (!l2 && near)
        return full_moments(rule, false, true, kappa, n, reference->bias, &arrays);
    return full_moments(rule, l2, near, kappa, n, reference->bias, &arrays);
}

/* Exclusive prefix sums of 64-bit lanes. */
static inline __m512i sums_of_pairs_before(__m512i x)
{
    const __m512i zero = _mm512_setzero_si512();
    __m512i sums = _mm512_alignr_epi64(x, zero, 7);
    sums = _mm512_add_epi64(sums, _mm512_alignr_epi64(sums, zero, 7));
    sums = _mm512_add_epi64(sums, _mm512_alignr_epi64(sums, zero, 6));
    return _mm512_add_epi64(sums, _mm512_alignr_epi64(sums, zero, 4));
}

static inline uint64_t last_lane(__m512i x)
{
    return (uint64_t)_mm_extract_epi64(_mm512_extracti64x2_epi64(x, 3), 1);
}

/* A lane has the bits of two gradients, from their place in the first byte on. Its last byte, if not whole, moves into
 * the next lane, and whole bytes are joined. Lanes without a whole byte are left to pack_pairs. */
static size_t link_pack(size_t n, const struct lmci_gradients *gradients, unsigned char *dst)
{
    const __m512i low = _mm512_set1_epi64(0xffffffff), seven = _mm512_set1_epi64(7);
    const __m512i place = _mm512_set1_epi64(0x0706050403020100);
    const __m512i of_pair = _mm512_set4_epi32(0x08080808, 0x08080808, 0, 0);
    const struct lmci_gradients from = *gradients;
    __m512i left = _mm512_setzero_si512(); /* its last lane has the held bits */
    struct held held = {0, 0};
    unsigned char *at = dst;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m512i bits = _mm512_loadu_si512(from.bits + i);
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(from.stored + i));
        const __m512i stored = _mm512_cvtepu8_epi32(bytes), even = _mm512_and_si512(stored, low);
        const __m512i counts = _mm512_add_epi64(even, _mm512_srli_epi64(stored, 32));
        const __m512i pairs =
            _mm512_or_si512(_mm512_and_si512(bits, low), _mm512_sllv_epi64(_mm512_srli_epi64(bits, 32), even));
        const __m512i begin = _mm512_add_epi64(sums_of_pairs_before(counts), _mm512_set1_epi64(held.count));
        const __m512i shift = _mm512_and_si512(begin, seven);
        const __m512i whole = _mm512_srli_epi64(_mm512_add_epi64(shift, counts), 3);
        if (_mm512_test_epi64_mask(whole, whole) != 0xff) {
            held.bits = last_lane(left);
            at = pack_pairs(LANES, from.stored + i, from.bits + i, &held, at);
            left = _mm512_set1_epi64((long long)held.bits);
            continue;
        }
        const __m512i words = _mm512_sllv_epi64(pairs, shift), before = left;
        left = _mm512_srlv_epi64(words, _mm512_slli_epi64(whole, 3));
        const __mmask64 kept = _mm512_cmplt_epu8_mask(place, _mm512_shuffle_epi8(whole, of_pair));
        const __m512i joined = _mm512_or_si512(words, _mm512_alignr_epi64(left, before, 7));
        _mm512_storeu_si512(at, _mm512_maskz_compress_epi8(kept, joined));
        const __m128i sums = _mm_sad_epu8(bytes, _mm_setzero_si128());
        const unsigned count = held.count + (unsigned)_mm_cvtsi128_si64(sums) + (unsigned)_mm_extract_epi64(sums, 1);
        at += count >> 3;
        held.count = count & 7;
    }
    held.bits = last_lane(left);
    lmci_store64(at, held.bits);
    at = pack_pairs(n - i, from.stored + i, from.bits + i, &held, at);
    return (size_t)(at - dst) + (held.count != 0);
}

#endif
