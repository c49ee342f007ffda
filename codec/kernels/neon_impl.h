/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * neon_impl.h - compresses and expands 64 bytes with NEON; splits 16 words into bytes and back.
 *
 * Compress, expand and merge handle 8 bytes with one table lookup. For each byte of a mask, a row has the source of
 * each byte; macros generate the rows. The start of each group of 8 in a list is the number of set bits below it. One
 * multiplication sums the counts of all mask bytes.
 */
#ifndef LMC_NEON_IMPL_H
#define LMC_NEON_IMPL_H

#if defined(LMCI_NEON)

#include <arm_neon.h>

/* Unrolls a short loop. gcc does so without a pragma. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif

#define BIT(m, i) ((m) >> (i)&1)

/* Number of set bits below bit i. */
#define RANK0(m) 0
#define RANK1(m) (RANK0(m) + BIT(m, 0))
#define RANK2(m) (RANK1(m) + BIT(m, 1))
#define RANK3(m) (RANK2(m) + BIT(m, 2))
#define RANK4(m) (RANK3(m) + BIT(m, 3))
#define RANK5(m) (RANK4(m) + BIT(m, 4))
#define RANK6(m) (RANK5(m) + BIT(m, 5))
#define RANK7(m) (RANK6(m) + BIT(m, 6))

/* Merge: symbol i comes from the zeros (0 to 7) or from the ones (8 to 15). */
#define MERGED(m, i) (BIT(m, i) ? 8 + RANK##i(m) : (i)-RANK##i(m))
#define MERGE_ROW(m)                                                                                                   \
    {                                                                                                                  \
        MERGED(m, 0), MERGED(m, 1), MERGED(m, 2), MERGED(m, 3), MERGED(m, 4), MERGED(m, 5), MERGED(m, 6), MERGED(m, 7) \
    }

/* Deal: the first half of a row has the k-th symbol with a set bit, the second half the k-th with a clear bit. */
#define IS_ONE(m, i, k)  (BIT(m, i) && RANK##i(m) == (k) ? (i) : 0)
#define IS_ZERO(m, i, k) (!BIT(m, i) && (i)-RANK##i(m) == (k) ? (i) : 0)
#define SEARCH(is, m, k) \
    (is(m, 0, k) + is(m, 1, k) + is(m, 2, k) + is(m, 3, k) + is(m, 4, k) + is(m, 5, k) + is(m, 6, k) + is(m, 7, k))
#define DEAL_HALF(is, m)                                                                                        \
    SEARCH(is, m, 0), SEARCH(is, m, 1), SEARCH(is, m, 2), SEARCH(is, m, 3), SEARCH(is, m, 4), SEARCH(is, m, 5), \
        SEARCH(is, m, 6), SEARCH(is, m, 7)
#define ONES_ROW(m)          \
    {                        \
        DEAL_HALF(IS_ONE, m) \
    }
#define DEAL_ROW(m)                                 \
    {                                               \
        DEAL_HALF(IS_ONE, m), DEAL_HALF(IS_ZERO, m) \
    }

#define ROWS_4(row, m)  row(m), row((m) + 1), row((m) + 2), row((m) + 3)
#define ROWS_16(row, m) ROWS_4(row, m), ROWS_4(row, (m) + 4), ROWS_4(row, (m) + 8), ROWS_4(row, (m) + 12)
#define ROWS_64(row, m) ROWS_16(row, m), ROWS_16(row, (m) + 16), ROWS_16(row, (m) + 32), ROWS_16(row, (m) + 48)
#define ROWS_256(row)   ROWS_64(row, 0), ROWS_64(row, 64), ROWS_64(row, 128), ROWS_64(row, 192)

static const uint8_t merge_rows[256][8] = {ROWS_256(MERGE_ROW)};
static const uint8_t ones_rows[256][8] = {ROWS_256(ONES_ROW)};
static const uint8_t deal_rows[256][16] = {ROWS_256(DEAL_ROW)};

#undef BIT

/* ---- Masks ----------------------------------------------------------------------------------------------------- */

/* Returns a bit for each of 64 bytes, which are all ones or all zeros. */
static inline uint64_t bits_of(const uint8x16_t mask[4])
{
    const uint8x16_t own = vreinterpretq_u8_u64(vdupq_n_u64(UINT64_C(0x8040201008040201)));
    uint8x16_t part[4];
    for (unsigned k = 0; k < 4; k++)
        part[k] = vandq_u8(mask[k], own);
    uint8x16_t sum = vpaddq_u8(vpaddq_u8(part[0], part[1]), vpaddq_u8(part[2], part[3]));
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sum, sum)), 0);
}

/* Byte k of the result: number of set bits in bytes 0 to k. */
static inline uint64_t rank_ends(uint64_t bits)
{
    uint64_t counts = vget_lane_u64(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(bits))), 0);
    return counts * UINT64_C(0x0101010101010101);
}

/* Number of set bits below byte k. */
static inline size_t rank_at(uint64_t ends, unsigned k)
{
    return k ? (size_t)(ends >> 8 * (k - 1) & 255) : 0;
}

static inline uint8_t mask_byte(uint64_t bits, unsigned k)
{
    return (uint8_t)(bits >> 8 * k & 255);
}

/* ---- Vectors in memory ----------------------------------------------------------------------------------------- */

static inline void bytes_load(const unsigned char *from, uint8x16_t *v, size_t bytes)
{
    for (size_t k = 0; k < bytes / 16; k++)
        v[k] = vld1q_u8(from + 16 * k);
}

static inline void bytes_store(unsigned char *to, const uint8x16_t *v, size_t bytes)
{
    for (size_t k = 0; k < bytes / 16; k++)
        vst1q_u8(to + 16 * k, v[k]);
}

/* ---- Compress and expand --------------------------------------------------------------------------------------- */

static inline uint8x16_t eight_bytes(const unsigned char *from)
{
    return vcombine_u8(vld1_u8(from), vdup_n_u8(0));
}

/* Appends those of 64 bytes whose bit is set to a list. Writes up to 64 bytes past its new end. */
static inline void put_bytes(uint64_t bits, const uint8x16_t bytes[4], unsigned char **list)
{
    const uint64_t ends = rank_ends(bits);
    if (bits == UINT64_MAX) {
        bytes_store(*list, bytes, 64);
        *list += 64;
        return;
    }
    UNROLLED
    for (unsigned k = 0; k < 8; k++) {
        const uint8x16_t own = k % 2 ? vcombine_u8(vget_high_u8(bytes[k / 2]), vdup_n_u8(0)) : bytes[k / 2];
        vst1_u8(*list + rank_at(ends, k), vqtbl1_u8(own, vld1_u8(ones_rows[mask_byte(bits, k)])));
    }
    *list += ends >> 56;
}

/* Moves the next bytes of a list to the positions of set bits, with zeros between. Reads up to 64 bytes. */
static inline void take_bytes(uint64_t bits, unsigned char **list, uint8x16_t bytes[4])
{
    const uint64_t ends = rank_ends(bits);
    uint8x8_t half[8];
    if (bits == UINT64_MAX) {
        bytes_load(*list, bytes, 64);
        *list += 64;
        return;
    }
    UNROLLED
    for (unsigned k = 0; k < 8; k++) {
        /* The row of the inverted mask takes set positions from the first half of the table. */
        const uint8x8_t row = vld1_u8(merge_rows[mask_byte(~bits, k)]);
        half[k] = vqtbl1_u8(eight_bytes(*list + rank_at(ends, k)), row);
    }
    for (unsigned g = 0; g < 4; g++)
        bytes[g] = vcombine_u8(half[2 * g], half[2 * g + 1]);
    *list += ends >> 56;
}

/* ---- Words and bytes ------------------------------------------------------------------------------------------- */

#define U16(v) vreinterpretq_u16_u8(v)
#define S16(v) vreinterpretq_s16_u8(v)
#define U32(v) vreinterpretq_u32_u8(v)
#define S32(v) vreinterpretq_s32_u8(v)

/* Splits 16 words of 2 or 4 bytes: planes[0] has the lowest byte of each. */
static inline void word_split(unsigned word, const uint8x16_t *v, uint8x16_t *planes)
{
    if (word == 2) {
        planes[0] = vuzp1q_u8(v[0], v[1]);
        planes[1] = vuzp2q_u8(v[0], v[1]);
        return;
    }
    const uint8x16_t even[2] = {vuzp1q_u8(v[0], v[1]), vuzp1q_u8(v[2], v[3])};
    const uint8x16_t odd[2] = {vuzp2q_u8(v[0], v[1]), vuzp2q_u8(v[2], v[3])};
    planes[0] = vuzp1q_u8(even[0], even[1]);
    planes[1] = vuzp1q_u8(odd[0], odd[1]);
    planes[2] = vuzp2q_u8(even[0], even[1]);
    planes[3] = vuzp2q_u8(odd[0], odd[1]);
}

/* The inverse. */
static inline void word_weave(unsigned word, const uint8x16_t *planes, uint8x16_t *v)
{
    const uint16x8_t low[2] = {U16(vzip1q_u8(planes[0], planes[1])), U16(vzip2q_u8(planes[0], planes[1]))};
    for (unsigned k = 0; k < 2; k++) {
        if (word == 2) {
            v[k] = vreinterpretq_u8_u16(low[k]);
            continue;
        }
        const uint16x8_t high = U16(k ? vzip2q_u8(planes[2], planes[3]) : vzip1q_u8(planes[2], planes[3]));
        v[2 * k] = vreinterpretq_u8_u16(vzip1q_u16(low[k], high));
        v[2 * k + 1] = vreinterpretq_u8_u16(vzip2q_u16(low[k], high));
    }
}

static inline uint8x16_t word_add(unsigned word, uint8x16_t a, uint8x16_t b)
{
    return word == 2 ? vreinterpretq_u8_u16(vaddq_u16(U16(a), U16(b)))
                     : vreinterpretq_u8_u32(vaddq_u32(U32(a), U32(b)));
}

static inline uint8x16_t word_sub(unsigned word, uint8x16_t a, uint8x16_t b)
{
    return word == 2 ? vreinterpretq_u8_u16(vsubq_u16(U16(a), U16(b)))
                     : vreinterpretq_u8_u32(vsubq_u32(U32(a), U32(b)));
}

/* Shifts words left by the lowest byte of each word of `by`, or right where it is negative. */
static inline uint8x16_t word_shift(unsigned word, uint8x16_t a, uint8x16_t by)
{
    return word == 2 ? vreinterpretq_u8_s16(vshlq_s16(S16(a), S16(by)))
                     : vreinterpretq_u8_s32(vshlq_s32(S32(a), S32(by)));
}

/* All ones where words are equal, all zeros elsewhere. */
static inline uint8x16_t word_equal(unsigned word, uint8x16_t a, uint8x16_t b)
{
    return word == 2 ? vreinterpretq_u8_u16(vceqq_u16(U16(a), U16(b)))
                     : vreinterpretq_u8_u32(vceqq_u32(U32(a), U32(b)));
}

static inline uint8x16_t bytes_negative(uint8x16_t v)
{
    return vreinterpretq_u8_s8(vnegq_s8(vreinterpretq_s8_u8(v)));
}

#endif

#endif
