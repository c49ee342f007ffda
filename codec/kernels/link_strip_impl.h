/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * link_strip_impl.h - the gradients of VARIABLE and FULL, a part of link_impl.h.
 *
 * VARIABLE searches all gradients that lead to the next state for the shortest. FULL needs one of them: a guess from
 * the first array mostly is one, and the caller searches where it is not.
 */
#ifndef LMC_LINK_STRIP_IMPL_H
#define LMC_LINK_STRIP_IMPL_H

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

/* VARIABLE takes the shortest possible gradient, FULL the middle one or a guess. */
enum strip_way { STRIP_SHORTEST, STRIP_MIDDLE, STRIP_GUESS };

struct strip {
    const strip_f32 *first, *first_after, *second, *second_after, *weight;
    const strip_u32 *reference;
    uint32_t from[STRIP], to[STRIP]; /* bounds of possible gradients, without sign */
    uint32_t middle[STRIP];          /* their middle, with the sign */
    uint32_t bits[STRIP];            /* the encoded gradient */
    uint32_t digits[STRIP], stored[STRIP];
    float near[STRIP], low[STRIP], high[STRIP]; /* an estimate, and bounds as offsets from it */
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

/* Returns the value of the first bit; zero for denormals. */
static inline float power_of(float x)
{
    return float_of(bits_of(x) & 0x7f800000);
}

/* Returns 1 / x within 1/300: a difference of bits, improved once. */
static inline float about_inverse(float x)
{
    const float y = float_of(0x7ef311c3 - bits_of(x));
    return fused(-x, y, 2.0f) * y;
}

/* Estimates Adam's gradient from the first array in f32, or zero if it may be zero. Bounds are offsets from the
 * estimate, of what leads to this array: a whole number of units of the last place of the difference between both. */
static inline void strip_first(const struct lmc_link_rule *rule, float inverse, struct strip *strip)
{
    const strip_f32 *first = strip->first, *first_after = strip->first_after;
    const float half_inverse = inverse * 0x1p-24f;
    EACH for (size_t i = 0; i < STRIP; i++)
    {
        const float before = first[i], after = first_after[i];
        const float change = after - before, part = change - after;
        const float lost = (after - (change - part)) + (-before - part);
        const float way = change * inverse, more = (fused(-rule->gain, way, change) + lost) * inverse;
        const float power = power_of(way), half = power * 0x1p-24f, shift = power * 1.5f;
        const float reach = power_of(after) * half_inverse, inside = reach - half;
        const float least = ((more - inside) + shift) - shift, greatest = ((more + inside) + shift) - shift;
        const bool none = least > greatest;
        const float near = before + way, most = near - before;
        const float offset = (before - (near - most)) + (way - most);
        strip->near[i] = __builtin_fabsf(near) > reach + half ? near : 0.0f;
        strip->low[i] = (offset - half) + (none ? 0.0f : least);
        strip->high[i] = (offset + half) + (none ? 0.0f : greatest);
    }
}

/* Moves the estimate to the middle of what leads to both moments. */
static inline void strip_second(const struct lmc_link_rule *rule, struct strip *strip)
{
    const strip_f32 *second = strip->second, *second_after = strip->second_after;
    EACH for (size_t i = 0; i < STRIP; i++)
    {
        const float near = strip->near[i], slope = rule->gain2 * near, upright = about_inverse(slope + slope);
        const float miss = fused(-slope, near, second_after[i] - second[i] * rule->beta2);
        const float offset = miss * upright;
        const float reach = (power_of(second_after[i]) * 0x1p-24f) * __builtin_fabsf(upright);
        const float low1 = strip->low[i], low2 = offset - reach, high1 = strip->high[i], high2 = offset + reach;
        const float low = low2 > low1 ? low2 : low1, high = high2 < high1 ? high2 : high1;
        const float twice = low <= high ? low + high : low1 + high1;
        strip->near[i] = near != 0 ? fused(0.5f, twice, near) : 0.0f;
    }
}

/* Guesses a gradient that leads to the next state, as the middle and both bounds. */
static inline __attribute__((always_inline)) void strip_guesses(const struct lmc_link_rule *rule, bool adam,
                                                                struct strip *strip)
{
    const float inverse = 1.0f / rule->gain, unscale = 1.0f / rule->scale;
    const strip_f32 *first = strip->first, *first_after = strip->first_after, *weight = strip->weight;
    const bool l2 = rule->l2 != 0;
    if (adam) {
        strip_first(rule, inverse, strip);
        strip_second(rule, strip);
    }
    EACH for (size_t i = 0; i < STRIP; i++)
    {
        const float guess = adam ? strip->near[i] : guess_of(rule, false, inverse, first[i], first_after[i]);
        const float doubt = adam && !l2 ? 0.0f : doubt_of(adam, inverse, first[i], first_after[i]);
        const uint32_t bits = bits_of(without_decay(rule, guess, doubt, weight[i]) * unscale);
        strip->middle[i] = bits;
        strip->from[i] = bits & 0x7fffffff;
    }
}

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
        bits = bits >= 0x7f800000 ? 0 : bits;
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

static inline __attribute__((always_inline)) void to_bits(const struct lmc_link_rule *rule, bool adam,
                                                          enum strip_way way, int kappa, size_t n,
                                                          const struct lmci_reference *reference,
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
        if (way == STRIP_GUESS)
            strip_guesses(rule, adam, &strip);
        else if (rule->l2 == 0 && rule->scale == 1)
            strip_ranges(rule, adam, false, false, &strip);
        else if (rule->l2 == 0)
            strip_ranges(rule, adam, false, true, &strip);
        else
            strip_ranges(rule, adam, true, true, &strip);
        if (way == STRIP_SHORTEST)
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
        to_bits(rule, true, STRIP_SHORTEST, 0, n, reference, view, gradients);
    else if (rule->optimizer == LMC_ADAM)
        to_bits(rule, true, STRIP_MIDDLE, kappa, n, reference, view, gradients);
    else if (variable)
        to_bits(rule, false, STRIP_SHORTEST, 0, n, reference, view, gradients);
    else
        to_bits(rule, false, STRIP_MIDDLE, kappa, n, reference, view, gradients);
}

static void link_to_guesses(const struct lmc_link_rule *rule, int kappa, size_t n,
                            const struct lmci_reference *reference, const struct lmci_link_view *view,
                            const struct lmci_gradients *gradients)
{
    if (rule->optimizer == LMC_ADAM)
        to_bits(rule, true, STRIP_GUESS, kappa, n, reference, view, gradients);
    else
        to_bits(rule, false, STRIP_GUESS, kappa, n, reference, view, gradients);
}

#if defined(__AVX512VBMI2__)

#include "kernels/link_guess_avx512_impl.h"

#endif

#endif
