/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * snapshots/elements.c - statistics of the differences between two runs of elements of any dtype.
 *
 * Elements become doubles, some hundred at a time (integers above 2^53 are rounded; bytes decide which changed).
 * Complex numbers are pairs. Sums are kept in several lanes, which fit one register, and are added in a fixed order:
 * the same bytes give the same numbers with any number of threads.
 */
#include "snapshots/elements.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "lmc.h"

enum { LANES = 8, AT_ONCE = 512 };

/* ---- Numbers ---- */

static double small_float(unsigned bits, unsigned exponent_bits, unsigned mantissa_bits, int bias)
{
    unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
    unsigned exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
    double value = exponent == 0 ? ldexp(mantissa, 1 - bias - (int)mantissa_bits)
                                 : ldexp(mantissa + (1u << mantissa_bits), (int)exponent - bias - (int)mantissa_bits);
    return bits >> (exponent_bits + mantissa_bits) & 1 ? -value : value;
}

static double e4m3fn_value(unsigned bits)
{
    return (bits & 0x7f) == 0x7f ? NAN : small_float(bits, 4, 3, 7);
}

static double e4m3fnuz_value(unsigned bits)
{
    return bits == 0x80 ? NAN : small_float(bits, 4, 3, 8);
}

static double e5m2_value(unsigned bits)
{
    return (bits & 0x7f) > 0x7c ? NAN : (bits & 0x7f) == 0x7c ? INFINITY : small_float(bits, 5, 2, 15);
}

static double e5m2fnuz_value(unsigned bits)
{
    return bits == 0x80 ? NAN : small_float(bits, 5, 2, 16);
}

static double e8m0fnu_value(unsigned bits)
{
    return bits == 0xff ? NAN : ldexp(1, (int)bits - 127);
}

static double e2m1fn_value(unsigned bits)
{
    return small_float(bits & 15, 2, 1, 1);
}

static double half_value(uint16_t bits)
{
    if ((bits & 0x7c00) == 0x7c00)
        return bits & 0x3ff ? NAN : INFINITY;
    /* Exponent and mantissa at the places of a float's. The product corrects the bias, also of subnormals. */
    uint32_t word = (uint32_t)(bits & 0x8000) << 16 | (uint32_t)(bits & 0x7fff) << 13;
    float value;
    memcpy(&value, &word, sizeof value);
    return (double)value * 0x1p112;
}

static double bfloat_value(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

#define WIDEN(name, type, expression)                               \
    static void name(const void *from, uint64_t count, double *to)  \
    {                                                               \
        const unsigned char *bytes = from;                          \
        for (uint64_t i = 0; i < count; i++) {                      \
            type value;                                             \
            memcpy(&value, bytes + i * sizeof value, sizeof value); \
            to[i] = (expression);                                   \
        }                                                           \
    }

WIDEN(widen_u8, uint8_t, (double)value)
WIDEN(widen_u16, uint16_t, (double)value)
WIDEN(widen_u32, uint32_t, (double)value)
WIDEN(widen_u64, uint64_t, (double)value)
WIDEN(widen_i8, int8_t, (double)value)
WIDEN(widen_i16, int16_t, (double)value)
WIDEN(widen_i32, int32_t, (double)value)
WIDEN(widen_i64, int64_t, (double)value)
WIDEN(widen_f16, uint16_t, half_value(value))
WIDEN(widen_bf16, uint16_t, bfloat_value(value))
WIDEN(widen_f32, float, (double)value)
WIDEN(widen_f64, double, value)

/* How the numbers of a dtype become doubles: by one of these. */
struct numbers {
    void (*widen)(const void *from, uint64_t count, double *to);
    double (*value)(unsigned bits); /* of a byte, or of each half of one */
};

/* No default: the compiler rejects a missing dtype. */
static struct numbers numbers_of(uint32_t dtype)
{
    switch ((enum lmc_dtype)dtype) {
    case LMC_BOOL:
    case LMC_U8:
        return (struct numbers){.widen = widen_u8};
    case LMC_U16:
        return (struct numbers){.widen = widen_u16};
    case LMC_U32:
        return (struct numbers){.widen = widen_u32};
    case LMC_U64:
        return (struct numbers){.widen = widen_u64};
    case LMC_I8:
        return (struct numbers){.widen = widen_i8};
    case LMC_I16:
        return (struct numbers){.widen = widen_i16};
    case LMC_I32:
        return (struct numbers){.widen = widen_i32};
    case LMC_I64:
        return (struct numbers){.widen = widen_i64};
    case LMC_F16:
    case LMC_C32:
        return (struct numbers){.widen = widen_f16};
    case LMC_BF16:
        return (struct numbers){.widen = widen_bf16};
    case LMC_F32:
    case LMC_C64:
        return (struct numbers){.widen = widen_f32};
    case LMC_F64:
    case LMC_C128:
        return (struct numbers){.widen = widen_f64};
    case LMC_F8_E4M3FN:
        return (struct numbers){.value = e4m3fn_value};
    case LMC_F8_E4M3FNUZ:
        return (struct numbers){.value = e4m3fnuz_value};
    case LMC_F8_E5M2:
        return (struct numbers){.value = e5m2_value};
    case LMC_F8_E5M2FNUZ:
        return (struct numbers){.value = e5m2fnuz_value};
    case LMC_F8_E8M0FNU:
        return (struct numbers){.value = e8m0fnu_value};
    case LMC_F4_E2M1FN_X2:
        return (struct numbers){.value = e2m1fn_value};
    }
    return (struct numbers){0}; /* no dtype: the identity was checked when it was read */
}

/* Whether two numbers share a byte. */
static bool is_packed(uint32_t dtype)
{
    return lmc_dtype_numbers(dtype) == 2 && lmc_dtype_kind(dtype) != LMC_KIND_COMPLEX;
}

uint64_t lmcs_elements(uint32_t dtype, uint64_t bytes)
{
    return is_packed(dtype) ? 2 * bytes : bytes / lmc_dtype_size(dtype);
}

/* ---- Sums ---- */

struct sums {
    double change[LANES], before[LANES], after[LANES], in_common[LANES], most[LANES];
    uint64_t finite[LANES], wild_before[LANES], wild_after[LANES];
};

static bool is_wild(double value)
{
    return !(fabs(value) <= DBL_MAX);
}

static void add_lane(struct sums *sums, size_t lane, double x, double y)
{
    bool wild_x = is_wild(x), wild_y = is_wild(y), wild = wild_x | wild_y;
    x = wild ? 0 : x;
    y = wild ? 0 : y;
    double d = fabs(y - x);
    sums->change[lane] += d * d;
    sums->before[lane] += x * x;
    sums->after[lane] += y * y;
    sums->in_common[lane] += x * y;
    sums->most[lane] = d > sums->most[lane] ? d : sums->most[lane];
    sums->finite[lane] += !wild;
    sums->wild_before[lane] += wild_x;
    sums->wild_after[lane] += wild_y;
}

/* Adds a complex number. It is finite when both halves are. */
static void add_pair(struct sums *sums, size_t lane, const double *x, const double *y)
{
    bool wild_x = is_wild(x[0]) || is_wild(x[1]), wild_y = is_wild(y[0]) || is_wild(y[1]);
    sums->wild_before[lane] += wild_x;
    sums->wild_after[lane] += wild_y;
    if (wild_x || wild_y)
        return;
    double d = hypot(y[0] - x[0], y[1] - x[1]);
    sums->change[lane] += d * d;
    sums->before[lane] += x[0] * x[0] + x[1] * x[1];
    sums->after[lane] += y[0] * y[0] + y[1] * y[1];
    sums->in_common[lane] += x[0] * y[0] + x[1] * y[1];
    sums->most[lane] = d > sums->most[lane] ? d : sums->most[lane];
    sums->finite[lane]++;
}

static void add_numbers(struct sums *sums, const double *x, const double *y, uint64_t count)
{
    uint64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            add_lane(sums, lane, x[i + lane], y[i + lane]);
    for (; i < count; i++)
        add_lane(sums, i % LANES, x[i], y[i]);
}

static void add_sums(const struct sums *sums, struct lmcs_compared *compared)
{
    for (size_t lane = 0; lane < LANES; lane++) {
        compared->change += sums->change[lane];
        compared->before += sums->before[lane];
        compared->after += sums->after[lane];
        compared->in_common += sums->in_common[lane];
        compared->most = sums->most[lane] > compared->most ? sums->most[lane] : compared->most;
        compared->finite += sums->finite[lane];
        compared->not_finite_before += sums->wild_before[lane];
        compared->not_finite_after += sums->wild_after[lane];
    }
}

void lmcs_compared_add(struct lmcs_compared *sum, const struct lmcs_compared *part)
{
    sum->elements += part->elements;
    sum->changed += part->changed;
    sum->finite += part->finite;
    sum->not_finite_before += part->not_finite_before;
    sum->not_finite_after += part->not_finite_after;
    sum->most = part->most > sum->most ? part->most : sum->most;
    sum->change += part->change;
    sum->before += part->before;
    sum->after += part->after;
    sum->in_common += part->in_common;
}

/* ---- Bytes ---- */

#define COUNT_DIFFERENT(type)                            \
    for (uint64_t i = 0; i < bytes; i += sizeof(type)) { \
        type a, b;                                       \
        memcpy(&a, x + i, sizeof a);                     \
        memcpy(&b, y + i, sizeof b);                     \
        changed += a != b;                               \
    }

static uint64_t count_changed(uint32_t dtype, const unsigned char *x, const unsigned char *y, uint64_t bytes)
{
    uint64_t changed = 0;
    size_t size = lmc_dtype_size(dtype);
    if (memcmp(x, y, bytes) == 0)
        return 0;
    if (is_packed(dtype))
        for (uint64_t i = 0; i < bytes; i++)
            changed += ((x[i] ^ y[i]) & 0x0f) != 0, changed += ((x[i] ^ y[i]) & 0xf0) != 0;
    else if (size == 1)
        COUNT_DIFFERENT(uint8_t)
    else if (size == 2)
        COUNT_DIFFERENT(uint16_t)
    else if (size == 4)
        COUNT_DIFFERENT(uint32_t)
    else if (size == 8)
        COUNT_DIFFERENT(uint64_t)
    else
        for (uint64_t i = 0; i < bytes; i += size)
            changed += memcmp(x + i, y + i, size) != 0;
    return changed;
}

static void compare_tabled(double (*value)(unsigned bits), bool packed, const unsigned char *x, const unsigned char *y,
                           uint64_t bytes, struct sums *sums)
{
    double table[256];
    for (unsigned i = 0; i < 256; i++)
        table[i] = value(i);
    for (uint64_t i = 0; i < bytes; i++) {
        add_lane(sums, i % LANES, table[packed ? x[i] & 15 : x[i]], table[packed ? y[i] & 15 : y[i]]);
        if (packed)
            add_lane(sums, i % LANES, table[x[i] >> 4], table[y[i] >> 4]);
    }
}

void lmcs_elements_compare(uint32_t dtype, const void *before, const void *after, uint64_t bytes,
                           struct lmcs_compared *compared)
{
    const unsigned char *x = before, *y = after;
    const struct numbers read = numbers_of(dtype);
    struct sums sums = {0};
    bool pairs = lmc_dtype_kind(dtype) == LMC_KIND_COMPLEX;
    compared->elements += lmcs_elements(dtype, bytes);
    compared->changed += count_changed(dtype, x, y, bytes);
    if (read.value != NULL)
        compare_tabled(read.value, is_packed(dtype), x, y, bytes, &sums);
    size_t size = lmc_dtype_size(dtype) / (pairs ? 2 : 1);
    uint64_t numbers = read.widen == NULL ? 0 : bytes / size;
    for (uint64_t i = 0; i < numbers; i += AT_ONCE) {
        double a[AT_ONCE], b[AT_ONCE];
        uint64_t count = numbers - i < AT_ONCE ? numbers - i : AT_ONCE;
        read.widen(x + i * size, count, a);
        read.widen(y + i * size, count, b);
        if (!pairs)
            add_numbers(&sums, a, b, count);
        for (uint64_t k = 0; pairs && k < count; k += 2)
            add_pair(&sums, k / 2 % LANES, a + k, b + k);
    }
    add_sums(&sums, compared);
}

void lmcs_compared_numbers(const struct lmcs_compared *all, struct lmcs_difference *difference)
{
    double count = (double)all->finite;
    difference->elements = all->elements;
    difference->changed = all->changed;
    difference->not_finite_before = all->not_finite_before;
    difference->not_finite_after = all->not_finite_after;
    difference->max_change = all->most;
    if (all->finite > 0) {
        difference->rms_change = sqrt(all->change / count);
        difference->rms_before = sqrt(all->before / count);
        difference->rms_after = sqrt(all->after / count);
    }
    double lengths = sqrt(all->before) * sqrt(all->after);
    if (lengths > 0) {
        double cosine = all->in_common / lengths; /* may exceed 1 by rounding */
        difference->cosine = cosine > 1 ? 1 : cosine < -1 ? -1 : cosine;
    }
}

void lmcs_elements_difference(uint32_t dtype, const void *before, const void *after, uint64_t bytes,
                              struct lmcs_difference *difference)
{
    const unsigned char *x = before, *y = after;
    struct lmcs_compared all = {0};
    bool same = bytes == 0 || memcmp(x, y, bytes) == 0;
    for (uint64_t at = 0; !same && at < bytes; at += LMC_BLOCK_BYTES) {
        struct lmcs_compared part = {0};
        lmcs_elements_compare(dtype, x + at, y + at, bytes - at < LMC_BLOCK_BYTES ? bytes - at : LMC_BLOCK_BYTES,
                              &part);
        lmcs_compared_add(&all, &part);
    }
    difference->kind = same ? LMCS_SAME : LMCS_CHANGED;
    if (!same)
        lmcs_compared_numbers(&all, difference);
}
