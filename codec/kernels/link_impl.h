/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * link_impl.h - one table of the arithmetic of links, compiled by each link_kernels_*.c, which names it.
 *
 * Bits are equal at every vector width: no sum's order can change, operations are rounded as in IEEE 754, and only
 * products and sums that torch rounds once are fused (-ffp-contract=off). Without a fused instruction, doubles compute
 * the same: the product is exact, and the sum is rounded to odd, so that the second rounding is right.
 */
#include "base/bytes.h"
#include "kernels/link_kernels.h"

#include <math.h>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "links need IEEE arithmetic: compile without -ffast-math"
#endif

/* Iterations are independent; an output may be its own input. */
#if defined(__clang__)
#define EACH
#else
#define EACH _Pragma("GCC ivdep")
#endif

/* ---- Floats ---------------------------------------------------------------------------------------------------- */

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#if defined(__FMA__) || defined(__aarch64__)

static inline float fused(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

#else

static inline float fused(float a, float b, float c)
{
    const double product = (double)a * (double)b;
    const double sum = product + (double)c;
    const double part = sum - product;
    const double lost = (product - (sum - part)) + ((double)c - part);
    int64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    /* An inexact, finite sum with an even last bit becomes its neighbour toward the exact sum. */
    const int64_t away = (lost > 0) == (sum > 0) ? 1 : -1;
    bits += (lost > 0 || lost < 0) && (bits & 1) == 0 ? away : 0;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}

#endif

/* Replaces NaN by zero: NaNs differ between processors. */
static inline float known(float x)
{
    return x == x ? x : 0.0f;
}

/* ---- Bits ------------------------------------------------------------------------------------------------------ */

/* Bits that do not fill a byte yet. */
struct held {
    uint64_t bits;
    unsigned count;
};

/* Packs two gradients at a time, of at most 48 bits. Returns the end of the whole bytes. */
static inline unsigned char *pack_pairs(size_t n, const unsigned char *stored, const uint32_t *bits, struct held *held,
                                        unsigned char *at)
{
    for (size_t i = 0; i < n; i += 2) {
        uint64_t pair = bits[i];
        unsigned both = stored[i];
        if (i + 1 < n) {
            pair |= (uint64_t)bits[i + 1] << both;
            both += stored[i + 1];
        }
        held->bits |= pair << held->count;
        held->count += both;
        lmci_store64(at, held->bits);
        at += held->count >> 3;
        held->bits >>= held->count & ~7u;
        held->count &= 7;
    }
    return at;
}

/* ---- Steps of optimizers --------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void adam_moments(const struct lmc_link_rule *rule, bool l2, bool near,
                                                               size_t n, const float *gradient, const lmci_f32 *weight,
                                                               const lmci_f32 *first, const lmci_f32 *second,
                                                               lmci_f32 *to_first, lmci_f32 *to_second)
{
    const float gain = rule->gain, minus_rest = -(1.0f - gain), beta2 = rule->beta2, gain2 = rule->gain2;
    const float decay = rule->l2;
    EACH for (size_t i = 0; i < n; i++)
    {
        const float g = l2 ? fused(decay, weight[i], gradient[i]) : gradient[i];
        const float way = g - first[i];
        const float m = near ? fused(gain, way, first[i]) : fused(way, minus_rest, g);
        const float kept = second[i] * beta2;
        const float v = fused(gain2 * g, g, kept);
        to_first[i] = known(m);
        to_second[i] = known(v);
    }
}

static inline __attribute__((always_inline)) void sgd_moments(const struct lmc_link_rule *rule, bool l2, size_t n,
                                                              const float *gradient, const lmci_f32 *weight,
                                                              const lmci_f32 *first, lmci_f32 *to_first)
{
    const float gain = rule->gain, momentum = rule->momentum, decay = rule->l2;
    EACH for (size_t i = 0; i < n; i++)
    {
        const float g = l2 ? fused(decay, weight[i], gradient[i]) : gradient[i];
        const float kept = first[i] * momentum;
        to_first[i] = known(fused(gain, g, kept));
    }
}

static void link_moments(const struct lmc_link_rule *rule, size_t n, const float *gradient, const lmci_f32 *weight,
                         const lmci_f32 *first, const lmci_f32 *second, lmci_f32 *to_first, lmci_f32 *to_second)
{
    const bool l2 = rule->l2 != 0, near = rule->gain < 0.5f;
    if (rule->optimizer == LMC_SGD && l2)
        sgd_moments(rule, true, n, gradient, weight, first, to_first);
    else if (rule->optimizer == LMC_SGD)
        sgd_moments(rule, false, n, gradient, weight, first, to_first);
    else if (l2 && near)
        adam_moments(rule, true, true, n, gradient, weight, first, second, to_first, to_second);
    else if (l2)
        adam_moments(rule, true, false, n, gradient, weight, first, second, to_first, to_second);
    else if (near)
        adam_moments(rule, false, true, n, gradient, weight, first, second, to_first, to_second);
    else
        adam_moments(rule, false, false, n, gradient, weight, first, second, to_first, to_second);
}

static void link_most(size_t n, const lmci_f32 *second_after, const lmci_f32 *most, lmci_f32 *to)
{
    EACH for (size_t i = 0; i < n; i++) to[i] = known(most[i] > second_after[i] ? most[i] : second_after[i]);
}

#if defined(__AVX512VBMI2__)

#include "kernels/link_avx512_impl.h"

#else

static void adam_weights(const struct lmc_link_rule *rule, size_t n, const lmci_f32 *first, const lmci_f32 *second,
                         const lmci_f32 *weight, lmci_f32 *to)
{
    const float rate = rule->rate, root = rule->root, eps = rule->eps, decay = rule->decay;
    EACH for (size_t i = 0; i < n; i++)
    {
        const float scale = __builtin_sqrtf(second[i]) / root + eps;
        const float kept = weight[i] * decay;
        const float way = (rate * first[i]) / scale;
        to[i] = known(kept + way);
    }
}

#endif

static void sgd_weights(const struct lmc_link_rule *rule, size_t n, const lmci_f32 *first, const lmci_f32 *weight,
                        lmci_f32 *to)
{
    const float rate = rule->rate;
    EACH for (size_t i = 0; i < n; i++) to[i] = known(fused(rate, first[i], weight[i]));
}

static void nesterov_weights(const struct lmc_link_rule *rule, size_t n, const float *gradient, const lmci_f32 *first,
                             const lmci_f32 *weight, lmci_f32 *to)
{
    const float rate = rule->rate, momentum = rule->momentum, decay = rule->l2;
    const bool l2 = decay != 0;
    EACH for (size_t i = 0; i < n; i++)
    {
        const float g = l2 ? fused(decay, weight[i], gradient[i]) : gradient[i];
        to[i] = known(fused(rate, fused(momentum, first[i], g), weight[i]));
    }
}

static void link_weights(const struct lmc_link_rule *rule, size_t n, const float *gradient, const lmci_f32 *first,
                         const lmci_f32 *second, const lmci_f32 *weight, lmci_f32 *to)
{
    if (rule->optimizer == LMC_ADAM)
        adam_weights(rule, n, first, second, weight, to);
    else if ((rule->flags & LMC_LINK_NESTEROV) != 0)
        nesterov_weights(rule, n, gradient, first, weight, to);
    else
        sgd_weights(rule, n, first, weight, to);
}

/* ---- Decoding gradients ---------------------------------------------------------------------------------------- */

static inline uint32_t exponent_of(uint32_t bits)
{
    return bits >> 23 & 255;
}

/* Returns the symbol of an exponent; 255: it has none. */
static inline uint32_t symbol_of(uint32_t exponent, uint32_t reference, unsigned halved, int bias)
{
    const uint32_t symbol = exponent - (exponent_of(reference) >> halved) + (uint32_t)bias;
    return symbol - 1 < 254 ? symbol : LMCI_SYMBOL_RAW;
}

/* The inverse, for any symbol. */
static inline uint32_t exponent_for(uint32_t symbol, uint32_t reference, unsigned halved, int bias)
{
    return (symbol + (exponent_of(reference) >> halved) - (uint32_t)bias) & 255;
}

static void link_from_bytes(const struct lmc_link_rule *rule, size_t n, const struct lmci_reference *reference,
                            const struct lmci_gradients *gradients)
{
    const lmci_u32 *words = reference->words;
    const unsigned halved = reference->halved;
    const int bias = reference->bias;
    const float scale = rule->scale;
    const unsigned char *symbols = gradients->symbol, *bytes = gradients->byte;
    float *values = gradients->value;
    EACH for (size_t i = 0; i < n; i++)
    {
        const uint32_t symbol = symbols[i], byte = bytes[i];
        const uint32_t exponent = exponent_for(symbol, words[i], halved, bias);
        const uint32_t bits = (byte >> 7) << 31 | exponent << 23 | (byte & 127) << 16;
        values[i] = symbol != 0 ? float_of(bits) * scale : 0.0f;
    }
}

#if !defined(__AVX512VBMI2__)

static void link_short_moments(const struct lmc_link_rule *rule, size_t n, const struct lmci_reference *reference,
                               const struct lmci_gradients *gradients, const lmci_f32 *weight, lmci_f32 *first,
                               lmci_f32 *second)
{
    link_from_bytes(rule, n, reference, gradients);
    link_moments(rule, n, gradients->value, weight, first, second, first, second);
}

#endif

static inline __attribute__((always_inline)) void from_bits(bool variable, float scale, size_t n,
                                                            const struct lmci_reference *reference,
                                                            const struct lmci_gradients *gradients)
{
    const lmci_u32 *words = reference->words;
    const unsigned halved = reference->halved;
    const int bias = reference->bias;
    EACH for (size_t i = 0; i < n; i++)
    {
        const uint32_t symbol = gradients->symbol[i], bits = gradients->bits[i];
        const uint32_t exponent = exponent_for(symbol, words[i], halved, bias);
        const uint32_t length = variable ? gradients->length[i] : gradients->stored[i] - 1u;
        const uint32_t last = variable && length != 0 ? 1 : 0;
        const uint32_t digits = variable ? bits >> 1 << 1 | last : bits >> 1;
        const uint32_t mantissa = digits << ((23 - length) & 31) & 0x7fffff;
        const float value = float_of(bits << 31 | exponent << 23 | mantissa) * scale;
        gradients->value[i] = symbol != 0 ? value : 0.0f;
    }
}

static void link_from_bits(const struct lmc_link_rule *rule, enum lmci_gradient_mode mode, size_t n,
                           const struct lmci_reference *reference, const struct lmci_gradients *gradients)
{
    if (mode == LMCI_GRADIENT_VARIABLE)
        from_bits(true, rule->scale, n, reference, gradients);
    else
        from_bits(false, rule->scale, n, reference, gradients);
}

/* Returns the lowest bits that FULL drops: they are too small to change the first array. */
static inline uint32_t dropped_bits(uint32_t exponent, uint32_t first, int kappa)
{
    const int drop = (int)exponent_of(first) - (int)exponent + kappa;
    return (uint32_t)(drop < 0 ? 0 : drop > 23 ? 23 : drop);
}

static inline __attribute__((always_inline)) size_t stored_bits(bool variable, int kappa, size_t n,
                                                                const struct lmci_reference *reference,
                                                                const lmci_u32 *first,
                                                                const struct lmci_gradients *gradients)
{
    const lmci_u32 *words = reference->words;
    const unsigned halved = reference->halved;
    const int bias = reference->bias;
    const unsigned char *symbols = gradients->symbol, *lengths = gradients->length;
    unsigned char *to = gradients->stored;
    uint32_t sum = 0;
    EACH for (size_t i = 0; i < n; i++)
    {
        const uint32_t symbol = symbols[i];
        const bool none = symbol == LMCI_SYMBOL_ZERO || symbol == LMCI_SYMBOL_RAW;
        uint32_t stored;
        if (variable)
            stored = lengths[i] != 0 ? lengths[i] : 1;
        else
            stored = 24 - dropped_bits(exponent_for(symbol, words[i], halved, bias), first[i], kappa);
        stored = none ? 0 : stored;
        to[i] = (unsigned char)stored;
        sum += stored;
    }
    return sum;
}

static size_t link_stored(enum lmci_gradient_mode mode, int kappa, size_t n, const struct lmci_reference *reference,
                          const lmci_u32 *first, const struct lmci_gradients *gradients)
{
    if (mode == LMCI_GRADIENT_VARIABLE)
        return stored_bits(true, 0, n, reference, first, gradients);
    return stored_bits(false, kappa, n, reference, first, gradients);
}

#if !defined(__AVX512VBMI2__)

static size_t link_pack(size_t n, const struct lmci_gradients *gradients, unsigned char *dst)
{
    struct held held = {0, 0};
    const unsigned char *end = pack_pairs(n, gradients->stored, gradients->bits, &held, dst);
    return (size_t)(end - dst) + (held.count != 0);
}

static void link_unpack(size_t n, const struct lmci_gradients *gradients, const unsigned char *from, size_t bytes)
{
    const unsigned char *stored = gradients->stored;
    uint32_t *bits = gradients->bits;
    size_t at = 0, i = 0;
    for (; i < n && (at >> 3) + 8 <= bytes; i++) {
        bits[i] = (uint32_t)(lmci_load64(from + (at >> 3)) >> (at & 7)) & ((1u << stored[i]) - 1);
        at += stored[i];
    }
    for (; i < n; i++) {
        uint64_t left = 0;
        memcpy(&left, from + (at >> 3), bytes - (at >> 3) < 8 ? bytes - (at >> 3) : 8);
        bits[i] = (uint32_t)(left >> (at & 7)) & ((1u << stored[i]) - 1);
        at += stored[i];
    }
}

#endif

#if !defined(__AVX512VBMI2__)

static size_t link_full_moments(const struct lmc_link_rule *rule, int kappa, size_t n,
                                const struct lmci_reference *reference, const struct lmci_gradients *gradients,
                                const lmci_f32 *weight, lmci_f32 *first, lmci_f32 *second, const unsigned char *from,
                                size_t bytes)
{
    const lmci_u32 *words = (const lmci_u32 *)(const void *)first;
    const size_t bits = link_stored(LMCI_GRADIENT_FULL, kappa, n, reference, words, gradients);
    if ((bits + 7) / 8 > bytes)
        return bits;
    link_unpack(n, gradients, from, (bits + 7) / 8);
    link_from_bits(rule, LMCI_GRADIENT_FULL, n, reference, gradients);
    link_moments(rule, n, gradients->value, weight, first, second, first, second);
    return bits;
}

#endif

/* ---- Encoding gradients ---------------------------------------------------------------------------------------- */

/* Half the value of the last bit; zero for denormals. */
static inline float half_of(float x)
{
    return float_of(bits_of(x) & 0x7f800000) * 0x1p-24f;
}

/* Estimates the gradient from the change of the first array, in f32 precision. */
static inline float guess_of(const struct lmc_link_rule *rule, bool adam, float inverse, float before, float after)
{
    const float kept = before * rule->momentum;
    if (!adam)
        return (after - kept) * inverse;
    const float way = after - before;
    const float part = way - after;
    const float lost = (after - (way - part)) + (-before - part);
    return fused(way, inverse, fused(lost, inverse, before));
}

/* Returns the largest error of a guess; a smaller guess counts as zero. */
static inline float doubt_of(bool adam, float inverse, float before, float after)
{
    const float part = half_of(after) * inverse;
    return adam ? part + half_of(before) : part;
}

/* Returns the gradient without weight decay; zero if it may be zero. */
static inline float without_decay(const struct lmc_link_rule *rule, float guess, float doubt, float weight)
{
    const bool l2 = rule->l2 != 0;
    const float gradient = l2 ? fused(-rule->l2, weight, guess) : guess;
    return __builtin_fabsf(gradient) <= (l2 ? doubt + half_of(guess) : doubt) ? 0.0f : gradient;
}

static inline __attribute__((always_inline)) void to_bytes(const struct lmc_link_rule *rule, bool adam, size_t n,
                                                           const struct lmci_reference *reference,
                                                           const lmci_f32 *first, const lmci_f32 *first_after,
                                                           const lmci_f32 *weight,
                                                           const struct lmci_gradients *gradients)
{
    const lmci_u32 *words = reference->words;
    const unsigned halved = reference->halved;
    const int bias = reference->bias;
    const float inverse = 1.0f / rule->gain, scale = rule->scale, unscale = 1.0f / scale;
    unsigned char *symbols = gradients->symbol, *bytes = gradients->byte;
    float *values = gradients->value;
    EACH for (size_t i = 0; i < n; i++)
    {
        const float doubt = doubt_of(adam, inverse, first[i], first_after[i]);
        const float guess =
            without_decay(rule, guess_of(rule, adam, inverse, first[i], first_after[i]), doubt, weight[i]);
        const uint32_t near = bits_of(guess * unscale);
        uint32_t bits = (near + 0x7fff + (near >> 16 & 1)) & 0xffff0000;
        bits = exponent_of(bits) == 255 || bits << 1 == 0 ? 0 : bits;
        const uint32_t symbol = symbol_of(exponent_of(bits), words[i], halved, bias);
        symbols[i] = (unsigned char)(bits != 0 ? symbol : LMCI_SYMBOL_ZERO);
        bytes[i] = (unsigned char)((bits >> 31) << 7 | (bits >> 16 & 127));
        values[i] = bits != 0 ? float_of(bits) * scale : 0.0f;
    }
}

static void link_to_bytes(const struct lmc_link_rule *rule, size_t n, const struct lmci_reference *reference,
                          const lmci_f32 *first, const lmci_f32 *first_after, const lmci_f32 *weight,
                          const struct lmci_gradients *gradients)
{
    if (rule->optimizer == LMC_ADAM)
        to_bytes(rule, true, n, reference, first, first_after, weight, gradients);
    else
        to_bytes(rule, false, n, reference, first, first_after, weight, gradients);
}

#include "kernels/link_strip_impl.h"

/* ---- Differences ----------------------------------------------------------------------------------------------- */

static size_t link_rest(size_t n, const lmci_u32 *actual, const lmci_u32 *predicted, unsigned char *rest)
{
    uint32_t count = 0;
    EACH for (size_t i = 0; i < n; i++)
    {
        const uint32_t difference = actual[i] - predicted[i];
        rest[i] = (unsigned char)(difference + 127 < 255 ? difference : LMCI_REST_ESCAPE);
        count += difference != 0;
    }
    return count;
}

#if !defined(__AVX512VBMI2__)

static inline const lmci_f32 *floats_of(const unsigned char *array)
{
    return (const lmci_f32 *)(const void *)array;
}

static size_t missed_of(size_t n, const unsigned char *actual, const float *predicted, unsigned char *rest)
{
    return link_rest(n, (const lmci_u32 *)(const void *)actual, (const lmci_u32 *)(const void *)predicted, rest);
}

static void link_step(const struct lmc_link_rule *rule, size_t n, const float *gradient,
                      const struct lmci_link_view *view, unsigned char *const *rest, size_t *missed)
{
    const bool adam = rule->optimizer == LMC_ADAM;
    const unsigned weight_at = lmci_weight_of(rule);
    const lmci_f32 *weight = floats_of(view->before[weight_at]);
    float to[2][LMCI_CHUNK_ELEMENTS];
    unsigned second = LMCI_SECOND;
    link_moments(rule, n, gradient, weight, floats_of(view->before[LMCI_FIRST]), floats_of(view->before[second]), to[0],
                 to[1]);
    missed[LMCI_FIRST] += missed_of(n, view->after[LMCI_FIRST], to[0], rest[LMCI_FIRST]);
    if (adam)
        missed[second] += missed_of(n, view->after[second], to[1], rest[second]);
    if (adam && (rule->flags & LMC_LINK_AMSGRAD) != 0) {
        second = LMCI_ADAM_MOST;
        link_most(n, floats_of(view->after[LMCI_SECOND]), floats_of(view->before[second]), to[0]);
        missed[second] += missed_of(n, view->after[second], to[0], rest[second]);
    }
    link_weights(rule, n, gradient, floats_of(view->after[LMCI_FIRST]), floats_of(view->after[second]), weight, to[0]);
    missed[weight_at] += missed_of(n, view->after[weight_at], to[0], rest[weight_at]);
}

#endif

static void link_guess_step(const struct lmc_link_rule *rule, int kappa, size_t n,
                            const struct lmci_reference *reference, const struct lmci_link_view *view,
                            const struct lmci_gradients *gradients, unsigned char *const *rest, size_t *missed)
{
#if defined(__AVX512VBMI2__)
    if (rule->optimizer == LMC_ADAM && rule->flags == 0 && rule->l2 == 0 && rule->scale == 1 && rule->gain < 0.5f) {
        adam_guess_step(rule, kappa, n, view, gradients, rest, missed);
        return;
    }
#endif
    link_to_guesses(rule, kappa, n, reference, view, gradients);
    link_step(rule, n, gradients->value, view, rest, missed);
}

static void link_add_rest(size_t n, const unsigned char *rest, lmci_u32 *words)
{
    EACH for (size_t i = 0; i < n; i++)
    {
        const uint32_t word = words[i];
        const int32_t more = (int8_t)rest[i];
        words[i] = word + (uint32_t)more;
    }
}

const struct lmci_link_kernels LMCI_LINK_TABLE = {
    .moments = link_moments,
    .most = link_most,
    .weights = link_weights,
    .step = link_step,
    .from_bytes = link_from_bytes,
    .short_moments = link_short_moments,
    .from_bits = link_from_bits,
    .to_bytes = link_to_bytes,
    .to_bits = link_to_bits,
    .guess_step = link_guess_step,
    .stored = link_stored,
    .pack = link_pack,
    .unpack = link_unpack,
    .full_moments = link_full_moments,
    .rest = link_rest,
    .add_rest = link_add_rest,
};
