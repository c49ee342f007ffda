/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bits_neon.h - packs and unpacks the bits of eight bytes with NEON.
 *
 * Lookups by half bytes pack each byte; neighbours then join three times. A word's high half moves from position 8 (16)
 * to count (2 * count) by subtracting it times the difference of these powers of two; unpacking adds.
 */
#include "kernels/neon_impl.h"

struct bits_map {
    unsigned count;
    /* Tables by half bytes. */
    uint8x16_t together_low, together_high, apart_low, apart_high;
    uint16x4_t moves8;  /* 2^8 - 2^count */
    uint32x2_t moves16; /* 2^16 - 2^(2 count) */
    int16x4_t down8;    /* right shift by count */
    int32x2_t down16;   /* right shift by 2 * count */
};

static uint8_t byte_together(unsigned mask, unsigned byte)
{
    unsigned bits = 0;
    for (unsigned bit = 0, at = 0; bit < 8; at += mask >> bit++ & 1)
        bits |= (byte & mask) >> bit << at & 1u << at;
    return (uint8_t)bits;
}

static uint8_t byte_apart(unsigned mask, unsigned bits)
{
    unsigned byte = 0;
    for (unsigned bit = 0, at = 0; bit < 8; at += mask >> bit++ & 1)
        byte |= (bits >> at & mask >> bit & 1u) << bit;
    return (uint8_t)byte;
}

static struct bits_map bits_map(unsigned mask)
{
    uint8_t together[2][16], apart[2][16];
    const unsigned count = (unsigned)__builtin_popcount(mask);
    for (unsigned k = 0; k < 16; k++) {
        together[0][k] = byte_together(mask, k);
        together[1][k] = byte_together(mask, k << 4);
        apart[0][k] = byte_apart(mask, k);
        apart[1][k] = byte_apart(mask, k << 4);
    }
    return (struct bits_map){
        .count = count,
        .together_low = vld1q_u8(together[0]),
        .together_high = vld1q_u8(together[1]),
        .apart_low = vld1q_u8(apart[0]),
        .apart_high = vld1q_u8(apart[1]),
        .moves8 = vdup_n_u16((uint16_t)((1u << 8) - (1u << count))),
        .moves16 = vdup_n_u32((UINT32_C(1) << 16) - (UINT32_C(1) << 2 * count)),
        .down8 = vdup_n_s16((int16_t)(0 - (int)count)),
        .down16 = vdup_n_s32(-2 * (int32_t)count),
    };
}

static inline uint8x8_t by_halves(uint8x16_t low, uint8x16_t high, uint8x8_t bytes)
{
    return vorr_u8(vqtbl1_u8(low, vand_u8(bytes, vdup_n_u8(15))), vqtbl1_u8(high, vshr_n_u8(bytes, 4)));
}

static inline uint64_t bits_together(const struct bits_map *map, uint64_t bytes)
{
    const uint8x8_t x1 = by_halves(map->together_low, map->together_high, vcreate_u8(bytes));
    uint16x4_t x2 = vreinterpret_u16_u8(x1);
    x2 = vmls_u16(x2, vshr_n_u16(x2, 8), map->moves8);
    uint32x2_t x4 = vreinterpret_u32_u16(x2);
    x4 = vmls_u32(x4, vshr_n_u32(x4, 16), map->moves16);
    const uint64_t x8 = vget_lane_u64(vreinterpret_u64_u32(x4), 0);
    return (x8 & UINT32_MAX) | x8 >> 32 << 4 * map->count;
}

static inline uint64_t bits_apart(const struct bits_map *map, uint64_t bits)
{
    /* Bits above four bytes' stay above the last byte, where no lookup reads them. */
    const uint64_t halves = (uint32_t)bits | bits >> 4 * map->count << 32;
    uint32x2_t x4 = vreinterpret_u32_u64(vcreate_u64(halves));
    x4 = vmla_u32(x4, vshl_u32(x4, map->down16), map->moves16);
    uint16x4_t x2 = vreinterpret_u16_u32(x4);
    x2 = vmla_u16(x2, vshl_u16(x2, map->down8), map->moves8);
    const uint8x8_t x1 = by_halves(map->apart_low, map->apart_high, vreinterpret_u8_u16(x2));
    return vget_lane_u64(vreinterpret_u64_u8(x1), 0);
}
