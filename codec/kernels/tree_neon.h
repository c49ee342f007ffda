/* SPDX-License-Identifier: BSD-3-Clause */
/* tree_neon.h - partitions and merges by bits with NEON. */
#include "kernels/neon_impl.h"

/* Spreads 8 bits to bytes: byte i becomes all ones or all zeros. */
static inline uint64_t spread(uint64_t bits)
{
    const uint8x8_t own = vcreate_u8(UINT64_C(0x8040201008040201));
    return vget_lane_u64(vreinterpret_u64_u8(vtst_u8(vdup_n_u8((uint8_t)bits), own)), 0);
}

static inline uint64_t at_least(const unsigned char *ranks, unsigned char pivot)
{
    const uint8x16_t p = vdupq_n_u8(pivot);
    uint8x16_t mask[4];
    for (unsigned k = 0; k < 4; k++)
        mask[k] = vcgeq_u8(vld1q_u8(ranks + 16 * k), p);
    return bits_of(mask);
}

/* `dst` may be at or before `from`: each store follows the load of its eight bytes. */
static inline size_t pick(const unsigned char *from, uint64_t bits, unsigned char *dst)
{
    const uint64_t ends = rank_ends(bits);
    UNROLLED
    for (unsigned k = 0; k < 8; k++) {
        const uint8x8_t row = vld1_u8(ones_rows[mask_byte(bits, k)]);
        vst1_u8(dst + rank_at(ends, k), vqtbl1_u8(eight_bytes(from + 8 * k), row));
    }
    return (size_t)(ends >> 56);
}

static inline void deal_bits(const unsigned char *from, uint64_t bits, uint64_t valid, unsigned char **zeros,
                             unsigned char **ones)
{
    const uint64_t ends = rank_ends(bits);
    UNROLLED
    for (unsigned k = 0; k < 8; k++) {
        const uint8x16_t both = vqtbl1q_u8(eight_bytes(from + 8 * k), vld1q_u8(deal_rows[mask_byte(bits, k)]));
        vst1_u8(*ones + rank_at(ends, k), vget_low_u8(both));
        vst1_u8(*zeros + 8 * k - rank_at(ends, k), vget_high_u8(both));
    }
    *ones += ends >> 56;
    *zeros += __builtin_popcountll(~bits & valid);
}

static inline void merge_lists(uint64_t bits, const unsigned char **zeros, const unsigned char **ones,
                               unsigned char *out)
{
    const uint64_t ends = rank_ends(bits);
    UNROLLED
    for (unsigned k = 0; k < 8; k++) {
        const unsigned char *zero = *zeros + 8 * k - rank_at(ends, k), *one = *ones + rank_at(ends, k);
        uint8x16_t both = vcombine_u8(vld1_u8(zero), vld1_u8(one));
        vst1_u8(out + 8 * k, vqtbl1_u8(both, vld1_u8(merge_rows[mask_byte(bits, k)])));
    }
    *ones += ends >> 56;
    *zeros += 64 - (ends >> 56);
}

static inline void merge_value(uint64_t bits, const unsigned char **list, unsigned char value, unsigned char *out)
{
    const uint64_t ends = rank_ends(bits);
    const uint8x8_t values = vdup_n_u8(value);
    UNROLLED
    for (unsigned k = 0; k < 8; k++) {
        uint8x16_t both = vcombine_u8(values, vld1_u8(*list + rank_at(ends, k)));
        vst1_u8(out + 8 * k, vqtbl1_u8(both, vld1_u8(merge_rows[mask_byte(bits, k)])));
    }
    *list += ends >> 56;
}

static size_t rename_whole(const uint8_t lut[256], const unsigned char *from, size_t n, unsigned char *to)
{
    const uint8x16x4_t first = vld1q_u8_x4(lut), second = vld1q_u8_x4(lut + 64);
    const uint8x16x4_t third = vld1q_u8_x4(lut + 128), fourth = vld1q_u8_x4(lut + 192);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const uint8x16_t x = vld1q_u8(from + i);
        /* An index outside of a table changes nothing. */
        uint8x16_t names = vqtbl4q_u8(first, x);
        names = vqtbx4q_u8(names, second, vsubq_u8(x, vdupq_n_u8(64)));
        names = vqtbx4q_u8(names, third, vsubq_u8(x, vdupq_n_u8(128)));
        names = vqtbx4q_u8(names, fourth, vsubq_u8(x, vdupq_n_u8(192)));
        vst1q_u8(to + i, names);
    }
    return i;
}
