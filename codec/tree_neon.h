/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tree_neon.h - partition and merge by bits with NEON: eight symbols at a time, by a table lookup in a vector.
 *
 * The tables say for each byte of bits which symbol goes where; the compiler makes them from the macros.
 */
#include <arm_neon.h>

#define BIT(m, i) ((m) >> (i)&1)

/* How many bits below i are set. */
#define RANK0(m) 0
#define RANK1(m) (RANK0(m) + BIT(m, 0))
#define RANK2(m) (RANK1(m) + BIT(m, 1))
#define RANK3(m) (RANK2(m) + BIT(m, 2))
#define RANK4(m) (RANK3(m) + BIT(m, 3))
#define RANK5(m) (RANK4(m) + BIT(m, 4))
#define RANK6(m) (RANK5(m) + BIT(m, 5))
#define RANK7(m) (RANK6(m) + BIT(m, 6))

/* Merging: symbol i comes from the zeros (0 to 7) or from the ones (8 to 15). */
#define MERGED(m, i) (BIT(m, i) ? 8 + RANK##i(m) : (i)-RANK##i(m))
#define MERGE_ROW(m)                                                                                                   \
    {                                                                                                                  \
        MERGED(m, 0), MERGED(m, 1), MERGED(m, 2), MERGED(m, 3), MERGED(m, 4), MERGED(m, 5), MERGED(m, 6), MERGED(m, 7) \
    }

/* Dealing: the k-th symbol whose bit is set, in the first half of a row; whose bit is clear, in the second. */
#define IS_ONE(m, i, k)  (BIT(m, i) && RANK##i(m) == (k) ? (i) : 0)
#define IS_ZERO(m, i, k) (!BIT(m, i) && (i)-RANK##i(m) == (k) ? (i) : 0)
#define SEARCH(is, m, k) \
    (is(m, 0, k) + is(m, 1, k) + is(m, 2, k) + is(m, 3, k) + is(m, 4, k) + is(m, 5, k) + is(m, 6, k) + is(m, 7, k))
#define DEAL_HALF(is, m)                                                                                        \
    SEARCH(is, m, 0), SEARCH(is, m, 1), SEARCH(is, m, 2), SEARCH(is, m, 3), SEARCH(is, m, 4), SEARCH(is, m, 5), \
        SEARCH(is, m, 6), SEARCH(is, m, 7)
#define DEAL_ROW(m)                                 \
    {                                               \
        DEAL_HALF(IS_ONE, m), DEAL_HALF(IS_ZERO, m) \
    }

#define ROWS_4(row, m)  row(m), row((m) + 1), row((m) + 2), row((m) + 3)
#define ROWS_16(row, m) ROWS_4(row, m), ROWS_4(row, (m) + 4), ROWS_4(row, (m) + 8), ROWS_4(row, (m) + 12)
#define ROWS_64(row, m) ROWS_16(row, m), ROWS_16(row, (m) + 16), ROWS_16(row, (m) + 32), ROWS_16(row, (m) + 48)
#define ROWS_256(row)   ROWS_64(row, 0), ROWS_64(row, 64), ROWS_64(row, 128), ROWS_64(row, 192)

static const uint8_t merge_rows[256][8] = {ROWS_256(MERGE_ROW)};
static const uint8_t deal_rows[256][16] = {ROWS_256(DEAL_ROW)};

/* Bit i becomes byte i, all ones or all zeros. */
static inline uint64_t spread(uint64_t bits)
{
    const uint8x8_t own = vcreate_u8(UINT64_C(0x8040201008040201));
    return vget_lane_u64(vreinterpret_u64_u8(vtst_u8(vdup_n_u8((uint8_t)bits), own)), 0);
}

static inline uint64_t at_least(const unsigned char *ranks, unsigned char pivot)
{
    const uint8x16_t own = vreinterpretq_u8_u64(vdupq_n_u64(UINT64_C(0x8040201008040201)));
    const uint8x16_t p = vdupq_n_u8(pivot);
    uint8x16_t part[4];
    for (unsigned k = 0; k < 4; k++)
        part[k] = vandq_u8(vcgeq_u8(vld1q_u8(ranks + 16 * k), p), own);
    uint8x16_t sum = vpaddq_u8(vpaddq_u8(part[0], part[1]), vpaddq_u8(part[2], part[3]));
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sum, sum)), 0);
}

/* Eight symbols: those whose bit is set in the low half, the others in the high half. */
static inline uint8x16_t dealt(const unsigned char *from, uint64_t bits)
{
    uint8x8_t x = vld1_u8(from);
    return vqtbl1q_u8(vcombine_u8(x, x), vld1q_u8(deal_rows[bits & 255]));
}

static inline size_t pick(const unsigned char *from, uint64_t bits, unsigned char *dst)
{
    unsigned char *at = dst;
    for (unsigned g = 0; g < 64; g += 8) {
        vst1_u8(at, vget_low_u8(dealt(from + g, bits >> g)));
        at += __builtin_popcountll(bits >> g & 255);
    }
    return (size_t)(at - dst);
}

static inline void deal_bits(const unsigned char *from, uint64_t bits, uint64_t valid, unsigned char **zeros,
                             unsigned char **ones)
{
    for (unsigned g = 0; g < 64; g += 8) {
        uint8x16_t both = dealt(from + g, bits >> g);
        vst1_u8(*ones, vget_low_u8(both));
        vst1_u8(*zeros, vget_high_u8(both));
        *ones += __builtin_popcountll(bits >> g & 255);
        *zeros += __builtin_popcountll((~bits & valid) >> g & 255);
    }
}

static inline void merge_lists(uint64_t bits, const unsigned char **zeros, const unsigned char **ones,
                               unsigned char *out)
{
    for (unsigned g = 0; g < 64; g += 8) {
        uint64_t some = bits >> g & 255;
        uint8x16_t both = vcombine_u8(vld1_u8(*zeros), vld1_u8(*ones));
        vst1_u8(out + g, vqtbl1_u8(both, vld1_u8(merge_rows[some])));
        *ones += __builtin_popcountll(some);
        *zeros += 8 - __builtin_popcountll(some);
    }
}

static inline void merge_value(uint64_t bits, const unsigned char **list, unsigned char value, unsigned char *out)
{
    const uint8x8_t values = vdup_n_u8(value);
    for (unsigned g = 0; g < 64; g += 8) {
        uint64_t some = bits >> g & 255;
        uint8x16_t both = vcombine_u8(values, vld1_u8(*list));
        vst1_u8(out + g, vqtbl1_u8(both, vld1_u8(merge_rows[some])));
        *list += __builtin_popcountll(some);
    }
}

#undef BIT
