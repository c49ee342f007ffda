/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fit.c - finds the constants of a step from a sample of the states before and after it.
 *
 * Hints are tried first. Weights are linear in the rate and in Adam's decay, so least squares approximate both. Each
 * weight limits the rate to an interval that rounds to it; the value in most intervals is the rate, to the last bit.
 * The betas follow from the moments: v' - beta2 * v is proportional to (m' - beta1 * m)^2. Both have few digits, or
 * beta1 is in most intervals. The scale is the number that makes gradients short.
 */
#include "base/bytes.h"
#include "base/memory.h"
#include "kernels/link_kernels.h"
#include "link/sample.h"

#include <math.h>
#include <stdlib.h>

struct room {
    struct lmci_link_sample sample;
    struct lmci_gradients gradients;
    float value[LMCI_SAMPLE_ELEMENTS];
    uint32_t bits[LMCI_SAMPLE_ELEMENTS];
    unsigned char symbol[LMCI_SAMPLE_ELEMENTS], byte[LMCI_SAMPLE_ELEMENTS], length[LMCI_SAMPLE_ELEMENTS],
        stored[LMCI_SAMPLE_ELEMENTS], rest[LMCI_SAMPLE_ELEMENTS];
    float predicted[2][LMCI_SAMPLE_ELEMENTS];
    double ends[2 * LMCI_SAMPLE_ELEMENTS]; /* interval starts, then ends */
};

/* ---- Quality of a rule ----------------------------------------------------------------------------------------- */

static const lmci_f32 *array_of(const struct room *room, bool after, unsigned k)
{
    return (const lmci_f32 *)room->sample.values[after][k];
}

/* Share of array k's elements that are predicted exactly. */
static double share(struct room *room, unsigned k, const float *predicted)
{
    const size_t n = room->sample.elements;
    const size_t missed = lmci_link_kernels()->rest(n, (const lmci_u32 *)room->sample.view.after[k],
                                                    (const lmci_u32 *)(const void *)predicted, room->rest);
    return (double)(n - missed) / (double)n;
}

static void find_gradients(struct room *room, const struct lmc_link_rule *rule)
{
    const struct lmci_reference reference = lmci_reference_of(rule, room->sample.view.before);
    lmci_link_kernels()->to_bits(rule, LMCI_GRADIENT_VARIABLE, 0, room->sample.elements, &reference, &room->sample.view,
                                 &room->gradients);
}

/* Recomputes the gradients, then the shares of exact elements of both moments. */
static void share_moments(struct room *room, const struct lmc_link_rule *rule, float shares[2])
{
    const bool adam = rule->optimizer == LMC_ADAM;
    find_gradients(room, rule);
    lmci_link_kernels()->moments(rule, room->sample.elements, room->value, array_of(room, false, lmci_weight_of(rule)),
                                 array_of(room, false, LMCI_FIRST), array_of(room, false, LMCI_SECOND),
                                 (lmci_f32 *)room->predicted[0], (lmci_f32 *)room->predicted[1]);
    shares[0] = (float)share(room, LMCI_FIRST, room->predicted[0]);
    if (adam)
        shares[1] = (float)share(room, LMCI_SECOND, room->predicted[1]);
}

/* Share of exact weights, with the gradients found last. */
static double share_weights(struct room *room, const struct lmc_link_rule *rule)
{
    const unsigned second = (rule->flags & LMC_LINK_AMSGRAD) != 0 ? LMCI_ADAM_MOST : LMCI_SECOND;
    const unsigned weight = lmci_weight_of(rule);
    lmci_link_kernels()->weights(rule, room->sample.elements, room->value, array_of(room, true, LMCI_FIRST),
                                 array_of(room, true, second), array_of(room, false, weight),
                                 (lmci_f32 *)room->predicted[0]);
    return share(room, weight, room->predicted[0]);
}

/* Share of exact elements of amsgrad's maximum. */
static double share_most(struct room *room)
{
    lmci_link_kernels()->most(room->sample.elements, array_of(room, true, LMCI_SECOND),
                              array_of(room, false, LMCI_ADAM_MOST), (lmci_f32 *)room->predicted[0]);
    return share(room, LMCI_ADAM_MOST, room->predicted[0]);
}

/* ---- Intervals ------------------------------------------------------------------------------------------------- */

static bool is_usable(double x)
{
    return x > -1e300 && x < 1e300;
}

static double half_ulp(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits &= 0x7f800000;
    bits = bits != 0 ? bits : 0x00800000;
    memcpy(&x, &bits, 4);
    return (double)x * 0x1p-24;
}

/* The float `ulps` places after x. */
static float moved(float x, int ulps)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits += (uint32_t)ulps;
    memcpy(&x, &bits, 4);
    return x;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns a number in most intervals. Sorts starts and ends separately. */
static double suits_most(double *begins, double *ends, size_t count)
{
    size_t open = 0, most = 0, e = 0;
    double best = 0;
    qsort(begins, count, sizeof *begins, ascending);
    qsort(ends, count, sizeof *ends, ascending);
    for (size_t b = 0; b < count; b++) {
        while (e < count && ends[e] < begins[b]) {
            e++;
            open--;
        }
        if (++open > most) {
            most = open;
            best = 0.5 * (begins[b] + ends[e]);
        }
    }
    return best;
}

/* ---- The rate and the decay ------------------------------------------------------------------------------------ */

/* Returns the factor of the rate in a weight's change. */
static double way_of(const struct room *room, const struct lmc_link_rule *rule, size_t i)
{
    const double first = (double)array_of(room, true, LMCI_FIRST)[i];
    const unsigned second = (rule->flags & LMC_LINK_AMSGRAD) != 0 ? LMCI_ADAM_MOST : LMCI_SECOND;
    if (rule->optimizer == LMC_ADAM) {
        const double scale = __builtin_sqrt((double)array_of(room, true, second)[i]) / (double)rule->root;
        return first / (scale + (double)rule->eps);
    }
    if ((rule->flags & LMC_LINK_NESTEROV) == 0)
        return first;
    const double g = (double)room->value[i] + (double)rule->l2 * (double)array_of(room, false, LMCI_SGD_WEIGHT)[i];
    return (double)rule->momentum * first + g;
}

/* Solves w' - w = (decay - 1) * w + rate * way by least squares, weighted by precision. Returns the sum of squared
 * residuals. */
static double near_rate(const struct room *room, const struct lmc_link_rule *rule, bool decays, double *decay,
                        double *rate)
{
    const unsigned weight = lmci_weight_of(rule);
    double ww = 0, wx = 0, xx = 0, wy = 0, xy = 0, yy = 0;
    for (size_t i = 0; i < room->sample.elements; i++) {
        const float before = array_of(room, false, weight)[i], after = array_of(room, true, weight)[i];
        const double part = 1 / half_ulp(after), x = way_of(room, rule, i) * part;
        const double w = decays ? (double)before * part : 0, y = ((double)after - (double)before) * part;
        if (!is_usable(x) || !is_usable(y) || !is_usable(w) || before == 0)
            continue;
        ww += w * w;
        wx += w * x;
        xx += x * x;
        wy += w * y;
        xy += x * y;
        yy += y * y;
    }
    const double all = ww * xx - wx * wx;
    *decay = 1 + (decays && all > 0 ? (wy * xx - xy * wx) / all : 0);
    *rate = decays && all > 0 ? (xy * ww - wy * wx) / all : xx > 0 ? xy / xx : 0;
    return yy - *rate * xy - (*decay - 1) * wy;
}

/* Finds the rate from the intervals of weights, given the decay. */
static double exact_rate(struct room *room, const struct lmc_link_rule *rule, double near)
{
    const unsigned weight = lmci_weight_of(rule);
    double *begins = room->ends, *ends = room->ends + LMCI_SAMPLE_ELEMENTS;
    size_t count = 0;
    for (size_t i = 0; i < room->sample.elements; i++) {
        const float before = array_of(room, false, weight)[i], after = array_of(room, true, weight)[i];
        const float kept = rule->optimizer == LMC_ADAM ? before * rule->decay : before;
        const double x = way_of(room, rule, i), change = (double)after - (double)kept;
        const double a = (change - half_ulp(after)) / x, b = (change + half_ulp(after)) / x;
        if (!is_usable(a) || !is_usable(b))
            continue;
        begins[count] = a < b ? a : b;
        ends[count++] = a < b ? b : a;
    }
    return count != 0 ? suits_most(begins, ends, count) : near;
}

/* Sets a constant to the float within `reach` places that yields most exact weights. Returns their share. */
static double best_neighbour(struct room *room, struct lmc_link_rule *rule, float *constant, int reach)
{
    const float middle = *constant;
    float best = middle;
    double most = share_weights(room, rule);
    for (int ulps = -reach; ulps <= reach; ulps++) {
        *constant = moved(middle, ulps);
        const double now = share_weights(room, rule);
        if (now > most) {
            most = now;
            best = *constant;
        }
    }
    *constant = best;
    return most;
}

/* Users write betas with few digits. */
static double as_written(double x, double digits)
{
    return (double)(int64_t)(x * digits + 0.5) / digits;
}

/* The decimal number behind a constant: torch computes powers before rounding. */
static double before_rounding(float constant)
{
    for (double digits = 10; digits < 1e7; digits *= 10)
        if ((float)as_written((double)constant, digits) == constant)
            return as_written((double)constant, digits);
    return (double)constant;
}

/* If the step is unknown, finds Adam's root, which determines the effect of eps, by least squares over steps, denser
 * where the root changes faster. Returns beta2^step. */
static double fit_root(const struct room *room, struct lmc_link_rule *rule, bool decays)
{
    const double beta2 = before_rounding(rule->beta2);
    double decay, rate, kept = beta2, best = 0;
    rule->root = 1;
    double least = near_rate(room, rule, decays, &decay, &rate);
    for (double steps = 1, more; kept > 0x1p-26; steps += more) {
        rule->root = (float)__builtin_sqrt(1 - kept);
        const double left = near_rate(room, rule, decays, &decay, &rate);
        if (left < least) {
            least = left;
            best = kept;
        }
        more = steps < 64 ? 1 : (double)(int64_t)(steps / 64);
        for (double i = 0; i < more; i++)
            kept *= beta2;
    }
    rule->root = (float)__builtin_sqrt(1 - best);
    return best;
}

#define GOOD \
    0.9 /* a share: torch rounds some square roots incorrectly, and the tails of its arrays differ from its vectors */

/* Finds the rate, and AdamW's decay, for the rule's root. Returns the share of exact weights. */
static double fit_rate(struct room *room, struct lmc_link_rule *rule, bool decays)
{
    double decay, rate;
    (void)near_rate(room, rule, decays, &decay, &rate);
    rule->decay = decays ? (float)decay : 1;
    rule->rate = (float)exact_rate(room, rule, rate);
    double found = best_neighbour(room, rule, &rule->rate, 2);
    for (int ulps = -2; ulps <= 2 && found < GOOD && decays; ulps++) {
        struct lmc_link_rule other = *rule;
        other.decay = moved((float)decay, ulps);
        other.rate = (float)exact_rate(room, &other, rate);
        const double now = best_neighbour(room, &other, &other.rate, 2);
        if (now > found) {
            found = now;
            *rule = other;
        }
    }
    return found;
}

#define ROOTS_BESIDE 16 /* steps: noise shifts least squares, not the share of exact weights */

#define EXACT        0.99 /* below this share, try neighbours of the root */

static double fit_root_beside(struct room *room, struct lmc_link_rule *rule, bool decays, double found)
{
    const struct lmc_link_rule middle = *rule;
    for (int ulps = -2; ulps <= 2; ulps++) {
        struct lmc_link_rule other = middle;
        other.root = moved(middle.root, ulps);
        const double now = ulps != 0 ? fit_rate(room, &other, decays) : 0;
        if (now > found) {
            found = now;
            *rule = other;
        }
    }
    return found;
}

/* If eps is negligible against the second moments, least squares do not determine the root: searches for the most exact
 * weights, with halving strides. */
static double fit_root_by_roundings(struct room *room, struct lmc_link_rule *rule, bool decays, double found)
{
    const double beta2 = before_rounding(rule->beta2);
    const double kept = 1 - (double)rule->root * (double)rule->root;
    double steps = 1;
    while (steps < 0x1p30 && lmci_power(beta2, 2 * steps) > (kept > 0x1p-26 ? kept : 0x1p-26))
        steps *= 2;
    for (double stride = (double)(int64_t)(steps / 2 + 1); stride >= 1; stride = (double)(int64_t)(stride / 2)) {
        for (int way = -1; way <= 1; way += 2) {
            struct lmc_link_rule other = *rule;
            const double tried = steps + way * stride;
            other.root = (float)__builtin_sqrt(1 - lmci_power(beta2, tried));
            const double now = tried < 1 ? 0 : fit_rate(room, &other, decays);
            if (now <= found)
                continue;
            found = now;
            *rule = other;
            steps = tried;
            stride *= 2; /* repeat the same stride */
            break;
        }
    }
    return found;
}

/* Starts at the root of least squares; continues while the share improves. */
static double fit_root_and_rate(struct room *room, struct lmc_link_rule *rule, bool decays)
{
    const double beta2 = before_rounding(rule->beta2), near = fit_root(room, rule, decays);
    double found = fit_rate(room, rule, decays);
    const double first = found;
    for (int way = 0; way < 2 && found > 0.5 && (way == 0 || found == first); way++) {
        double kept = near;
        for (int i = 0; i < ROOTS_BESIDE; i++) {
            struct lmc_link_rule other = *rule;
            kept = way == 0 ? kept * beta2 : kept / beta2;
            other.root = (float)__builtin_sqrt(1 - kept);
            const double now = kept > 0 && kept < 1 ? fit_rate(room, &other, decays) : 0;
            if (now <= found)
                break;
            found = now;
            *rule = other;
        }
    }
    if (found > 0.5 && found < GOOD)
        found = fit_root_by_roundings(room, rule, decays, found);
    return found > 0.5 && found < EXACT ? fit_root_beside(room, rule, decays, found) : found;
}

static double fit_weights(struct room *room, struct lmc_link_rule *rule, bool hinted)
{
    const bool decays = rule->optimizer == LMC_ADAM && (rule->flags & LMC_LINK_L2) == 0;
    const struct lmc_link_rule before = *rule;
    const double with_hints = share_weights(room, rule);
    if (with_hints >= GOOD)
        return with_hints;
    const double found =
        !hinted && rule->optimizer == LMC_ADAM ? fit_root_and_rate(room, rule, decays) : fit_rate(room, rule, decays);
    if (found <= with_hints || !is_usable((double)rule->rate) || !is_usable((double)rule->decay)) {
        *rule = before;
        return with_hints;
    }
    return found;
}

/* ---- The betas ------------------------------------------------------------------------------------------------- */

#define TERMS 4

/* Solves linear equations by elimination; the last column is the right side. False: they are singular. */
static bool solve(double a[TERMS][TERMS + 1], double x[TERMS])
{
    for (unsigned k = 0; k < TERMS; k++) {
        unsigned pivot = k;
        for (unsigned r = k + 1; r < TERMS; r++)
            pivot = fabs(a[r][k]) > fabs(a[pivot][k]) ? r : pivot;
        if (!(fabs(a[pivot][k]) > 0))
            return false;
        for (unsigned c = 0; c <= TERMS; c++) {
            const double kept = a[k][c];
            a[k][c] = a[pivot][c];
            a[pivot][c] = kept;
        }
        for (unsigned r = k + 1; r < TERMS; r++)
            for (unsigned c = TERMS + 1; c-- > k;)
                a[r][c] -= a[k][c] * (a[r][k] / a[k][k]);
    }
    for (unsigned k = TERMS; k-- > 0;) {
        x[k] = a[k][TERMS];
        for (unsigned c = k + 1; c < TERMS; c++)
            x[k] -= a[k][c] * x[c];
        x[k] /= a[k][k];
    }
    return true;
}

/* Solves v' = beta2 * v + k * (m'^2 - 2 * beta1 * m * m' + beta1^2 * m^2) by least squares relative to v'. */
static bool near_betas(const struct room *room, double *beta1, double *beta2)
{
    double a[TERMS][TERMS + 1] = {{0}}, x[TERMS];
    for (size_t i = 0; i < room->sample.elements; i++) {
        const double m = (double)array_of(room, false, LMCI_FIRST)[i],
                     v = (double)array_of(room, false, LMCI_SECOND)[i];
        const double m1 = (double)array_of(room, true, LMCI_FIRST)[i],
                     v1 = (double)array_of(room, true, LMCI_SECOND)[i];
        const double term[TERMS + 1] = {v / v1, m1 * m1 / v1, m * m1 / v1, m * m / v1, 1};
        bool usable = v1 > 1e-30;
        for (unsigned t = 0; t < TERMS; t++)
            usable = usable && term[t] > -1e12 && term[t] < 1e12;
        for (unsigned r = 0; usable && r < TERMS; r++)
            for (unsigned c = 0; c <= TERMS; c++)
                a[r][c] += term[r] * term[c];
    }
    if (!solve(a, x) || !(x[1] > 0))
        return false;
    *beta1 = -x[2] / (2 * x[1]);
    *beta2 = x[0];
    return *beta1 >= -0.001 && *beta1 < 1 && *beta2 > 0 && *beta2 < 1;
}

/* Finds 1 - beta1 from the intervals of moments, given beta2. */
static float exact_gain(struct room *room, const struct lmc_link_rule *rule, double beta1)
{
    double *begins = room->ends, *ends = room->ends + LMCI_SAMPLE_ELEMENTS;
    size_t count = 0;
    for (size_t i = 0; i < room->sample.elements; i++) {
        const float v1 = array_of(room, true, LMCI_SECOND)[i],
                    kept = array_of(room, false, LMCI_SECOND)[i] * rule->beta2;
        const double m = (double)array_of(room, false, LMCI_FIRST)[i], m1 = (double)array_of(room, true, LMCI_FIRST)[i];
        const double square = (double)v1 - (double)kept, reach = half_ulp(v1) + square * 0x1p-23;
        const double sign = m1 < beta1 * m ? -1 : 1, change = m1 - m;
        const double low = sign * __builtin_sqrt((square - reach) / (double)rule->gain2) - m;
        const double high = sign * __builtin_sqrt((square + reach) / (double)rule->gain2) - m;
        const double a = change / low, b = change / high, more = fabs(half_ulp((float)m1) / low) + fabs(a) * 0x1p-23;
        if (!is_usable(a) || !is_usable(b) || !is_usable(more) || low * high <= 0)
            continue;
        begins[count] = (a < b ? a : b) - more;
        ends[count++] = (a < b ? b : a) + more;
    }
    return count != 0 ? (float)suits_most(begins, ends, count) : rule->gain;
}

static bool fit_betas(struct room *room, struct lmc_link_rule *rule, float shares[2])
{
    static const double digits[] = {100, 1000, 10000, 100000, 1000000};
    double beta1, beta2;
    if (!near_betas(room, &beta1, &beta2))
        return false;
    const size_t ways = sizeof digits / sizeof *digits;
    for (size_t i = 0; i <= ways; i++)
        for (size_t k = 0; k < ways; k++) {
            struct lmc_link_rule other = *rule;
            float now[2];
            const double b1 = i < ways ? as_written(beta1, digits[i]) : beta1, b2 = as_written(beta2, digits[k]);
            if (fabs(b1 - beta1) > 0.002 || fabs(b2 - beta2) > 0.1 * (1 - beta2) || b1 >= 1 || b2 >= 1)
                continue;
            other.beta2 = (float)b2;
            other.gain2 = (float)(1 - b2);
            other.gain = i < ways ? (float)(1 - b1) : exact_gain(room, &other, beta1);
            share_moments(room, &other, now);
            if (now[1] > shares[1] && other.gain > 0) {
                *rule = other;
                shares[0] = now[0];
                shares[1] = now[1];
            }
            if (shares[1] >= (i < 3 ? (float)GOOD : (float)EXACT)) /* more digits come near any number */
                return true;
        }
    return shares[1] > 0.5f;
}

/* ---- Scale of gradients ---------------------------------------------------------------------------------------- */

#define SCALE_TRIES 8  /* elements tried as short without scale */
#define SCALE_ASKED 64 /* elements that vote on a scale */
#define SCALE_FIRST 16 /* of these vote first */
#define SCALE_SHARE 4  /* one in so many must be short */

struct interval {
    double low, high; /* bounds of a gradient's absolute value */
};

/* Rounds x, which is positive, to `bits` bits, including the leading one. */
static double shortened(double x, unsigned bits)
{
    const uint64_t last = UINT64_C(1) << (53 - bits);
    uint64_t word;
    memcpy(&word, &x, 8);
    word = (word + last / 2) & ~(last - 1);
    memcpy(&x, &word, 8);
    return x;
}

/* Whether a number of `bits` bits, *whole, is in the interval over the scale. */
static bool is_short(const struct interval *at, double unscale, unsigned bits, double *whole)
{
    const double low = at->low * unscale, high = at->high * unscale;
    *whole = shortened(0.5 * (low + high), bits);
    return *whole >= low && *whole <= high;
}

/* Lists the intervals of gradients that the first arrays allow; keeps narrow ones. */
static size_t scale_intervals(const struct room *room, const struct lmc_link_rule *rule, struct interval *list,
                              size_t most)
{
    const double inverse = 1 / (double)rule->gain;
    const bool adam = rule->optimizer == LMC_ADAM;
    size_t count = 0;
    const size_t step = room->sample.elements > 4 * most ? room->sample.elements / (4 * most) : 1;
    for (size_t i = 0; i < room->sample.elements && count < most; i += step) {
        const double m = (double)array_of(room, false, LMCI_FIRST)[i], m1 = (double)array_of(room, true, LMCI_FIRST)[i];
        const double w = (double)array_of(room, false, lmci_weight_of(rule))[i];
        const double kept = adam ? m : (double)((float)m * rule->momentum);
        const double way = (m1 - kept) * inverse;
        const double g = (adam ? way + m : way) - (double)rule->l2 * w;
        const double reach = half_ulp((float)m1) * inverse + half_ulp((float)way) + half_ulp((float)g);
        const double size = fabs(g);
        if (is_usable(size) && size > 1e-30 && reach < size * 0x1p-20)
            list[count++] = (struct interval){size - reach, size + reach};
    }
    return count;
}

static size_t count_short(const struct interval *list, size_t count, double scale, unsigned bits)
{
    const double unscale = 1 / scale;
    size_t found = 0;
    double unused;
    for (size_t i = 0; i < count; i++) {
        found += is_short(&list[i], unscale, bits, &unused);
        if (i == SCALE_FIRST - 1 && found * SCALE_SHARE * 2 < SCALE_FIRST)
            return 0;
    }
    return found;
}

static double mantissa_of(double x)
{
    uint64_t word;
    memcpy(&word, &x, 8);
    word = (word & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1023) << 52;
    memcpy(&x, &word, 8);
    return x;
}

/* Finds the scale, between 1/2 and 1, with most short gradients; 0: too few. */
static double near_scale(const struct interval *list, size_t count, unsigned bits)
{
    double best = 0;
    size_t most = count / SCALE_SHARE;
    for (size_t k = 0; k < SCALE_TRIES && k < count; k++) {
        const double mantissa = mantissa_of(0.5 * (list[k].low + list[k].high));
        for (unsigned s = 1u << (bits - 1); s < 1u << bits; s++) {
            double scale = mantissa / (double)s * (double)(1u << (bits - 1));
            scale = scale > 1 ? scale / 2 : scale;
            const size_t found = count_short(list, count, scale, bits);
            if (found > most) {
                most = found;
                best = scale;
            }
        }
    }
    return best;
}

/* Returns the mean bits of gradients; a missed one counts 23. */
static double length_with(struct room *room, const struct lmc_link_rule *rule)
{
    float shares[2] = {1, 1};
    double sum = 0;
    share_moments(room, rule, shares);
    for (size_t i = 0; i < room->sample.elements; i++)
        sum += room->length[i];
    return sum / (double)room->sample.elements + 23 * (2 - (double)shares[0] - (double)shares[1]);
}

/* Fits the scale for gradients of `bits` bits; keeps the best neighbour. */
static void fit_scale(struct room *room, struct lmc_link_rule *rule, unsigned bits)
{
    struct interval list[SCALE_ASKED * 4];
    double *begins = room->ends, *ends = room->ends + LMCI_SAMPLE_ELEMENTS;
    size_t used = 0;
    const size_t count = scale_intervals(room, rule, list, sizeof list / sizeof *list);
    const double near = near_scale(list, count < SCALE_ASKED ? count : SCALE_ASKED, bits);
    if (!(near > 0))
        return;
    for (size_t i = 0; i < count; i++) {
        double whole;
        if (is_short(&list[i], 1 / near, bits, &whole)) {
            begins[used] = list[i].low / whole;
            ends[used++] = list[i].high / whole;
        }
    }
    struct lmc_link_rule other = *rule;
    const float middle = (float)(used != 0 ? suits_most(begins, ends, used) : near);
    double least = length_with(room, rule);
    for (int ulps = -3; ulps <= 3; ulps++) {
        other.scale = moved(middle, ulps);
        const double now = length_with(room, &other);
        if (now < least) {
            least = now;
            rule->scale = other.scale;
        }
    }
}

#define SHORT_LENGTH 9.0 /* mean bits: shorter gradients need no scale */

/* Tries bf16 before sums: with a wrong scale, some sums are as short as bf16. */
static void fit_scales(struct room *room, struct lmc_link_rule *rule)
{
    const float hinted = rule->scale;
    rule->scale = 1;
    fit_scale(room, rule, 8);
    if (length_with(room, rule) > SHORT_LENGTH)
        fit_scale(room, rule, 12);
    if (rule->scale != 1 || hinted == 1)
        return;
    const double without = length_with(room, rule);
    rule->scale = hinted;
    rule->scale = length_with(room, rule) < without ? hinted : 1;
}

/* Counts gradients that are, in f32, a number of `bits` bits times the scale. */
static size_t count_scaled(const float *gradients, size_t count, float scale, unsigned bits)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        found += (float)shortened((double)gradients[i] / (double)scale, bits) * scale == gradients[i];
    return found;
}

/* Returns the best scale near the one that intervals yield; 0: too few gradients are short. */
static float known_scale(const float *gradients, const struct interval *list, size_t count, double *room, unsigned bits)
{
    const size_t unscaled = count_scaled(gradients, count, 1, bits);
    size_t used = 0, most = count / SCALE_SHARE;
    float best = unscaled > most ? 1 : 0;
    const bool sure = unscaled > count - count / 8; /* a third of gradients scaled by 1/3 are short, too */
    const double near = sure ? 0 : near_scale(list, count < SCALE_ASKED ? count : SCALE_ASKED, bits);
    if (!(near > 0))
        return best;
    most = unscaled > most ? unscaled : most;
    for (size_t i = 0; i < count; i++) {
        double whole;
        if (is_short(&list[i], 1 / near, bits, &whole)) {
            room[used] = list[i].low / whole;
            room[LMCI_SAMPLE_ELEMENTS + used++] = list[i].high / whole;
        }
    }
    const float middle = (float)(used != 0 ? suits_most(room, room + LMCI_SAMPLE_ELEMENTS, used) : near);
    for (int ulps = -3; ulps <= 3; ulps++) {
        const size_t found = count_scaled(gradients, count, moved(middle, ulps), bits);
        if (found > most) {
            most = found;
            best = moved(middle, ulps);
        }
    }
    return best;
}

enum lmc_status lmc_link_gradient_scale(const float *gradients, size_t elements, double *scale)
{
    struct room *room = lmci_allocate(sizeof *room);
    struct interval *list = lmci_allocate(LMCI_SAMPLE_ELEMENTS * sizeof *list);
    *scale = 0;
    if (room == NULL || list == NULL) {
        lmci_release(room);
        lmci_release(list);
        return LMC_NO_MEMORY;
    }
    const struct lmci_float_environment saved = lmci_float_enter();
    const size_t step = elements > LMCI_SAMPLE_ELEMENTS ? elements / LMCI_SAMPLE_ELEMENTS : 1;
    size_t count = 0;
    for (size_t i = 0; i < elements && count < LMCI_SAMPLE_ELEMENTS; i += step) {
        const double size = fabs((double)gradients[i]), reach = half_ulp(gradients[i]);
        if (is_usable(size) && size > 1e-30) {
            room->value[count] = (float)size;
            list[count++] = (struct interval){size - reach, size + reach};
        }
    }
    if (count >= SCALE_FIRST)
        *scale = (double)known_scale(room->value, list, count, room->ends, 8);
    if (count >= SCALE_FIRST && *scale == 0)
        *scale = (double)known_scale(room->value, list, count, room->ends, 12);
    lmci_float_leave(&saved);
    lmci_release(room);
    lmci_release(list);
    return LMC_OK;
}

/* ---- The whole fit --------------------------------------------------------------------------------------------- */

/* Makes the rule of usual hyperparameters; the number of arrays determines the optimizer. */
static bool unhinted(uint32_t array_count, struct lmc_link_rule *rule)
{
    struct lmc_link_hints hints = {.optimizer = array_count == 2 ? LMC_SGD : LMC_ADAM,
                                   .flags = array_count == 4 ? LMC_LINK_AMSGRAD : 0,
                                   .step = 1e6,
                                   .beta1 = 0.9,
                                   .beta2 = 0.999,
                                   .eps = 1e-8,
                                   .momentum = 0.9};
    return lmc_link_rule(&hints, rule) == LMC_OK;
}

/* Finds SGD's momentum: the one that makes gradients shortest. */
static void fit_momentum(struct room *room, struct lmc_link_rule *rule)
{
    static const double momenta[] = {0.9, 0.95, 0.99, 0.98, 0.85, 0.8, 0.5};
    struct lmc_link_rule other = *rule;
    double least = length_with(room, rule);
    for (size_t i = 0; i < sizeof momenta / sizeof *momenta; i++) {
        other.momentum = (float)momenta[i];
        const double now = length_with(room, &other);
        if (now < least - 1) {
            least = now;
            rule->momentum = other.momentum;
        }
    }
}

static enum lmc_status fit_sample(struct room *room, bool hinted, struct lmc_link_rule *rule, struct lmc_link_fit *fit)
{
    const bool adam = rule->optimizer == LMC_ADAM;
    const unsigned weight = lmci_weight_of(rule);
    struct lmci_link_plan plan;
    size_t bytes = 0;
    fit->exact[1] = 1;
    share_moments(room, rule, fit->exact);
    if (adam && fit->exact[LMCI_SECOND] < 0.5f && (rule->flags & LMC_LINK_L2) == 0)
        (void)fit_betas(room, rule, fit->exact);
    if (!hinted && !adam)
        fit_momentum(room, rule);
    if (length_with(room, rule) > SHORT_LENGTH && (!adam || fit->exact[LMCI_SECOND] > 0.5f))
        fit_scales(room, rule);
    share_moments(room, rule, fit->exact);
    fit->exact[weight] = (float)fit_weights(room, rule, hinted);
    if ((rule->flags & LMC_LINK_AMSGRAD) != 0 && adam)
        fit->exact[LMCI_ADAM_MOST] = (float)share_most(room);
    enum lmc_status status = lmci_link_plan(rule, &room->sample.view, room->sample.elements, NULL, &plan, &bytes);
    fit->bits = (float)(8 * (double)bytes / (double)room->sample.elements);
    fit->sampled = (uint32_t)room->sample.elements;
    return status;
}

/* Above this share, deltas are about as small, and faster. */
#define WORTH 0.6f

static enum lmc_status fit_room(struct room *room, bool hinted, unsigned arrays, struct lmc_link_rule *rule,
                                struct lmc_link_fit *fit, const char **message)
{
    room->gradients =
        (struct lmci_gradients){room->value, room->symbol, room->byte, room->length, room->stored, room->bits};
    const struct lmci_float_environment saved = lmci_float_enter();
    enum lmc_status status = fit_sample(room, hinted, rule, fit);
    lmci_float_leave(&saved);
    if (status != LMC_OK)
        return lmci_fail(status, message, "no memory to fit a link");
    if (fit->bits > WORTH * 32 * (float)arrays)
        return lmci_unsupported(message, "no known optimizer leads from one state to the other");
    return LMC_OK;
}

enum lmc_status lmc_link_fit(const struct lmc_link_hints *hints, uint32_t array_count, const void *const *before,
                             const void *const *after, uint64_t raw_bytes, struct lmc_link_rule *rule,
                             struct lmc_link_fit *fit, const char **message)
{
    const char *unused;
    struct lmc_link_fit own;
    message = message != NULL ? message : &unused;
    fit = fit != NULL ? fit : &own;
    memset(fit, 0, sizeof *fit);
    memset(rule, 0, sizeof *rule);
    if (array_count < 2 || array_count > LMC_MAX_BASES || raw_bytes % 4 != 0 || raw_bytes == 0 ||
        raw_bytes > PTRDIFF_MAX)
        return lmci_fail(LMC_INVALID, message, "a state must have 2 to 4 arrays of f32 that are not empty");
    if (hints != NULL ? lmc_link_rule(hints, rule) != LMC_OK : !unhinted(array_count, rule))
        return lmci_fail(LMC_INVALID, message, "a hyperparameter in the hints is out of range");
    if (lmc_link_arrays(rule->optimizer, rule->flags) != array_count)
        return lmci_fail(LMC_INVALID, message, "the state has more or fewer arrays than the hints' optimizer");
    struct room *room = lmci_allocate(sizeof *room);
    if (room == NULL)
        return lmci_fail(LMC_NO_MEMORY, message, "no memory to fit a link");
    memset(room, 0, sizeof *room);
    lmci_link_sample(array_count, before, after, raw_bytes, LMCI_SAMPLE_ELEMENTS, &room->sample);
    enum lmc_status status = fit_room(room, hints != NULL, array_count, rule, fit, message);
    lmci_release(room);
    return status;
}
