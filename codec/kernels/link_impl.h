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

/* Packs two gradients at a time: at most 48 bits, and 7 left over from before. */
static size_t link_pack(size_t n, const struct lmci_gradients *gradients, unsigned char *dst)
{
    const unsigned char *stored = gradients->stored;
    const uint32_t *bits = gradients->bits;
    uint64_t held = 0;
    unsigned count = 0;
    unsigned char *at = dst;
    for (size_t i = 0; i < n; i += 2) {
        uint64_t pair = bits[i];
        unsigned both = stored[i];
        if (i + 1 < n) {
            pair |= (uint64_t)bits[i + 1] << both;
            both += stored[i + 1];
        }
        held |= pair << count;
        count += both;
        lmci_store64(at, held);
        at += count >> 3;
        held >>= count & ~7u;
        count &= 7;
    }
    return (size_t)(at - dst) + (count != 0);
}

#if !defined(__AVX512VBMI2__)

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

/* ---- Encoding gradients ---------------------------------------------------------------------------------------- */

/* Estimates the gradient from the change of the first array, in f32 precision. */
static inline float guess_of(const struct lmc_link_rule *rule, bool adam, float inverse, float before, float after)
{
    if (!adam)
        return fused(-rule->momentum, before, after) * inverse;
    const float way = after - before;
    const float part = way - after;
    const float lost = (after - (way - part)) + (-before - part);
    return fused(way, inverse, fused(lost, inverse, before));
}

/* Returns the largest error of a guess; a smaller guess counts as zero. */
static inline float doubt_of(bool adam, float inverse, float before, float after)
{
    const float part = float_of(bits_of(after) & 0x7f800000) * inverse;
    return (adam ? part + float_of(bits_of(before) & 0x7f800000) : part) * 0x1p-24f;
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
    const float inverse = 1.0f / rule->gain, scale = rule->scale, unscale = 1.0f / scale, decay = -rule->l2;
    const bool l2 = decay != 0;
    unsigned char *symbols = gradients->symbol, *bytes = gradients->byte;
    float *values = gradients->value;
    EACH for (size_t i = 0; i < n; i++)
    {
        float guess = guess_of(rule, adam, inverse, first[i], first_after[i]);
        guess = l2 ? fused(decay, weight[i], guess) : guess;
        guess = __builtin_fabsf(guess) <= doubt_of(adam, inverse, first[i], first_after[i]) ? 0.0f : guess;
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

/* Elements converted at once. Plain loops copy them: compilers do not vectorize doubles from unaligned floats. AVX-512
 * copies only at an array's end. */
#define STRIP ((size_t)256)

#if defined(__AVX512VBMI2__)
#define STRIP_IN_PLACE true
typedef lmci_f32 strip_f32;
typedef lmci_u32 strip_u32;
#else
#define STRIP_IN_PLACE false
typedef float strip_f32;
typedef uint32_t strip_u32;
#endif

struct strip {
    const strip_f32 *first, *first_after, *second, *second_after, *weight;
    const strip_u32 *reference;
    uint32_t from[STRIP], to[STRIP]; /* bounds of possible gradients, without sign */
    uint32_t middle[STRIP];          /* their middle, with the sign */
    uint32_t bits[STRIP];            /* the encoded gradient */
    uint32_t digits[STRIP], stored[STRIP];
    uint32_t copies[6][STRIP];
};

/* Fills the bounds of possible gradients. If none leads to the next state, both bounds are the nearest one. */
static inline void strip_ranges(const struct lmc_link_rule *rule, bool adam, bool l2, bool scaled, struct strip *strip);

#if defined(__AVX512VBMI2__)

#include "kernels/link_range_avx512_impl.h"

#else

/* Half the value of the last bit. */
static inline double half_ulp(float x)
{
    const uint32_t exponent = bits_of(x) & 0x7f800000;
    return (double)float_of(exponent != 0 ? exponent : 0x00800000) * 0x1p-24;
}

/* Compares as vector instructions do: fmin and fmax would check for NaN. */
static inline double lesser(double a, double b)
{
    return a < b ? a : b;
}

static inline double greater(double a, double b)
{
    return a > b ? a : b;
}

struct range {
    double low, high;
};

/* These two return the float at, or next above or below, a double. */
static inline float not_below(double x)
{
    const float near = (float)x;
    const uint32_t step = bits_of(near) >> 31 != 0 ? UINT32_MAX : 1;
    return float_of(bits_of(near) + ((double)near < x ? step : 0));
}

static inline float not_above(double x)
{
    const float near = (float)x;
    const uint32_t step = bits_of(near) >> 31 != 0 ? 1 : UINT32_MAX;
    return float_of(bits_of(near) + ((double)near > x ? step : 0));
}

/* The interval that rounds to `range`, or, if empty, to the float nearest to its middle. */
static inline struct range rounded_to(struct range range)
{
    const float up = not_below(range.low), down = not_above(range.high), near = (float)(0.5 * (range.low + range.high));
    const float low = up <= down ? up : near, high = up <= down ? down : near;
    return (struct range){(double)low - half_ulp(low), (double)high + half_ulp(high)};
}

/* The range of Adam's gradients that yield the first array. The difference between gradient and array is rounded, too,
 * which usually dominates. */
static inline struct range way_range(double inverse, float before, float after)
{
    const double way = ((double)after - (double)before) * inverse, reach = half_ulp(after) * inverse;
    const struct range range = rounded_to((struct range){way - reach, way + reach});
    return (struct range){(double)before + range.low, (double)before + range.high};
}

/* The range of gradients that yield the first array and, if any of these do, also the second. */
static inline struct range range_of(const struct lmc_link_rule *rule, bool adam, double inverse, float before,
                                    float after, float second, float second_after)
{
    if (!adam) {
        const double middle = ((double)after - (double)(before * rule->momentum)) * inverse;
        const double reach = half_ulp(after) * inverse;
        return (struct range){middle - reach, middle + reach};
    }
    const struct range range = way_range(inverse, before, after);
    const double middle = 0.5 * (range.low + range.high);
    const double slope = 2 * (double)rule->gain2 * middle;
    const double miss = (double)second_after - ((double)(second * rule->beta2) + 0.5 * slope * middle);
    const double upright = (double)(1.0f / (float)slope); /* f32 suffices: it scales a small correction */
    const double reach2 = half_ulp(second_after) * fabs(upright);
    const double middle2 = middle + miss * upright;
    const double low = greater(range.low, middle2 - reach2), high = lesser(range.high, middle2 + reach2);
    const struct range both = {low <= high ? low : range.low, low <= high ? high : range.high};
    return both;
}

/* The nearest float not closer to zero (up) or not farther (down); x is positive. */
static inline uint32_t bits_up(double x)
{
    const float near = (float)x;
    return bits_of(near) + ((double)near < x ? 1 : 0);
}

static inline uint32_t bits_down(double x)
{
    const float near = (float)x;
    return bits_of(near) - ((double)near > x ? 1 : 0);
}

static inline __attribute__((always_inline)) void strip_ranges(const struct lmc_link_rule *rule, bool adam, bool l2,
                                                               bool scaled, struct strip *strip)
{
    const double inverse = 1 / (double)rule->gain, unscale = 1 / (double)rule->scale, decay = (double)rule->l2;
    const float *first = strip->first, *first_after = strip->first_after, *weight = strip->weight;
    const float *second = strip->second, *second_after = strip->second_after;
    EACH for (size_t i = 0; i < STRIP; i++)
    {
        struct range range = range_of(rule, adam, inverse, first[i], first_after[i], second[i], second_after[i]);
        if (l2) {
            const double shift = decay * (double)weight[i];
            range = rounded_to(range);
            range = (struct range){range.low - shift, range.high - shift};
        }
        if (scaled) {
            range = rounded_to(range);
            range = (struct range){range.low * unscale, range.high * unscale};
        }
        const double low = range.low, high = range.high;
        const double least = lesser(fabs(low), fabs(high)), greatest = greater(fabs(low), fabs(high));
        const float middle = (float)(0.5 * (low + high));
        const uint32_t near = bits_of(middle) & 0x7fffffff;
        const uint32_t up = bits_up(least), down = bits_down(greatest);
        const uint32_t from = low * high <= 0 ? 0 : up;
        strip->middle[i] = bits_of(middle);
        strip->from[i] = up > down ? near : from;
        strip->to[i] = up > down ? near : down;
    }
}

#endif

/* Returns the number in [from, to], not both 0, with most trailing zeros. *place: its last set bit. */
static inline uint32_t shortest(uint32_t from, uint32_t to, uint32_t *place)
{
    uint32_t differ = (from - 1) ^ to;
    differ |= differ >> 1;
    differ |= differ >> 2;
    differ |= differ >> 4;
    differ |= differ >> 8;
    differ |= differ >> 16;
    const uint32_t below = differ >> 1;
    *place = exponent_of(bits_of((float)(int32_t)(differ ^ below))) - 127;
    return to & ~below;
}

/* Chooses the gradient with the fewest mantissa bits (VARIABLE). */
static inline void strip_shortest(struct strip *strip, unsigned char *lengths)
{
    EACH for (size_t i = 0; i < STRIP; i++)
    {
        uint32_t place;
        const uint32_t bits = shortest(strip->from[i], strip->to[i], &place);
        const uint32_t length = place < 23 ? 23 - place : 0;
        strip->bits[i] = strip->from[i] != 0 ? bits : 0;
        strip->stored[i] = length != 0 ? length : 1;
        strip->digits[i] = (bits & 0x7fffff) >> ((24 - length) & 31); /* 0 if there is no bit */
        lengths[i] = (unsigned char)length;
    }
}

/* Chooses the middle, without the bits that FULL drops. */
static inline void strip_enough(int kappa, struct strip *strip)
{
    const strip_f32 *before = strip->first;
    EACH for (size_t i = 0; i < STRIP; i++)
    {
        const uint32_t middle = strip->middle[i] & 0x7fffffff, first = bits_of(before[i]);
        const uint32_t some = dropped_bits(exponent_of(middle), first, kappa);
        const uint32_t bits = (middle + (1u << some >> 1)) >> some << some;
        const uint32_t drop = dropped_bits(exponent_of(bits), first, kappa);
        strip->bits[i] = strip->from[i] != 0 ? bits : 0;
        strip->stored[i] = 24 - drop;
        strip->digits[i] = (bits & 0x7fffff) >> drop;
    }
}

/* Writes symbols, lengths, bits and values of the chosen gradients. */
static inline void strip_out(float scale, size_t n, const struct lmci_reference *reference, const struct strip *strip,
                             const unsigned char *lengths, const struct lmci_gradients *gradients)
{
    const unsigned halved = reference->halved;
    const int bias = reference->bias;
    const strip_u32 *words = strip->reference;
    unsigned char *symbols = gradients->symbol, *lengths_to = gradients->length, *storeds = gradients->stored;
    uint32_t *bits_to = gradients->bits;
    float *values = gradients->value;
    EACH for (size_t i = 0; i < n; i++)
    {
        const uint32_t sign = strip->middle[i] >> 31;
        uint32_t bits = strip->bits[i];
        bits = exponent_of(bits) == 255 ? 0 : bits;
        const uint32_t some = 0 - (uint32_t)(bits != 0);
        const uint32_t symbol = exponent_of(bits) - (exponent_of(words[i]) >> halved) + (uint32_t)bias;
        const uint32_t coded = (0 - (uint32_t)(symbol - 1 < 254)) & some;
        symbols[i] = (unsigned char)((symbol | ~coded) & some); /* 255 if not coded */
        lengths_to[i] = (unsigned char)(lengths[i] & coded);
        storeds[i] = (unsigned char)(strip->stored[i] & coded);
        bits_to[i] = (strip->digits[i] << 1 | sign) & coded;
        values[i] = float_of(bits | (sign << 31 & some)) * scale;
    }
}

/* Returns `some` words of an array from `at` on: in place, or a copy. */
static inline const void *strip_words(struct strip *strip, unsigned copy, const void *array, size_t at, size_t some)
{
    const unsigned char *from = (const unsigned char *)array + 4 * at;
    if (STRIP_IN_PLACE && some == STRIP)
        return from;
    if (some == STRIP)
        memcpy(strip->copies[copy], from, sizeof strip->copies[copy]);
    else
        memcpy(strip->copies[copy], from, 4 * some);
    return strip->copies[copy];
}

static inline __attribute__((always_inline)) void to_bits(const struct lmc_link_rule *rule, bool adam, bool variable,
                                                          int kappa, size_t n, const struct lmci_reference *reference,
                                                          const struct lmci_link_view *view,
                                                          const struct lmci_gradients *gradients)
{
    struct strip strip;
    unsigned char lengths[STRIP] = {0};
    memset(strip.copies, 0, sizeof strip.copies);
    strip.second = strip.second_after = (const strip_f32 *)(const void *)strip.copies[0];
    for (size_t at = 0; at < n; at += STRIP) {
        const size_t some = n - at < STRIP ? n - at : STRIP;
        const struct lmci_gradients there = {gradients->value + at,  gradients->symbol + at, NULL,
                                             gradients->length + at, gradients->stored + at, gradients->bits + at};
        strip.first = strip_words(&strip, 0, view->before[LMCI_FIRST], at, some);
        strip.first_after = strip_words(&strip, 1, view->after[LMCI_FIRST], at, some);
        strip.weight = strip_words(&strip, 2, view->before[adam ? LMCI_ADAM_WEIGHT : LMCI_SGD_WEIGHT], at, some);
        strip.reference = strip_words(&strip, 3, reference->words, at, some);
        if (adam) {
            strip.second = strip_words(&strip, 4, view->before[LMCI_SECOND], at, some);
            strip.second_after = strip_words(&strip, 5, view->after[LMCI_SECOND], at, some);
        }
        if (rule->l2 == 0 && rule->scale == 1)
            strip_ranges(rule, adam, false, false, &strip);
        else if (rule->l2 == 0)
            strip_ranges(rule, adam, false, true, &strip);
        else
            strip_ranges(rule, adam, true, true, &strip);
        if (variable)
            strip_shortest(&strip, lengths);
        else
            strip_enough(kappa, &strip);
        strip_out(rule->scale, some, reference, &strip, lengths, &there);
    }
}

static void link_to_bits(const struct lmc_link_rule *rule, enum lmci_gradient_mode mode, int kappa, size_t n,
                         const struct lmci_reference *reference, const struct lmci_link_view *view,
                         const struct lmci_gradients *gradients)
{
    const bool variable = mode == LMCI_GRADIENT_VARIABLE;
    if (rule->optimizer == LMC_ADAM && variable)
        to_bits(rule, true, true, 0, n, reference, view, gradients);
    else if (rule->optimizer == LMC_ADAM)
        to_bits(rule, true, false, kappa, n, reference, view, gradients);
    else if (variable)
        to_bits(rule, false, true, 0, n, reference, view, gradients);
    else
        to_bits(rule, false, false, kappa, n, reference, view, gradients);
}

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
    .stored = link_stored,
    .pack = link_pack,
    .unpack = link_unpack,
    .rest = link_rest,
    .add_rest = link_add_rest,
};
