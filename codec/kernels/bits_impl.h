/* SPDX-License-Identifier: BSD-3-Clause */
/* bits_impl.h - packs the bits that vary among bytes. */

static unsigned bits_varying(const unsigned char *bytes, size_t n)
{
    unsigned char varying = 0;
    for (size_t i = 0; i < n; i++)
        varying |= bytes[i] ^ bytes[0];
    return varying;
}

#if defined(__BMI2__)

struct bits_map {
    uint64_t mask;
};

static struct bits_map bits_map(unsigned mask)
{
    return (struct bits_map){mask * UINT64_C(0x0101010101010101)};
}

static inline uint64_t bits_together(const struct bits_map *map, uint64_t bytes)
{
    return _pext_u64(bytes, map->mask);
}

static inline uint64_t bits_apart(const struct bits_map *map, uint64_t bits)
{
    return _pdep_u64(bits, map->mask);
}

#elif defined(LMCI_NEON)

#include "kernels/bits_neon.h"

#else

struct bits_map {
    unsigned count;
    unsigned char together[256]; /* a byte's selected bits, packed */
    unsigned char apart[256];    /* the inverse */
};

static struct bits_map bits_map(unsigned mask)
{
    struct bits_map map = {0};
    for (unsigned bit = 0; bit < 8; bit++)
        map.count += mask >> bit & 1;
    for (unsigned byte = 0; byte < 256; byte++) {
        unsigned bits = 0;
        for (unsigned bit = 0, at = 0; bit < 8; at += mask >> bit++ & 1)
            bits |= (byte & mask) >> bit << at & 1u << at;
        map.together[byte] = (unsigned char)bits;
        map.apart[bits] = (unsigned char)(byte & mask);
    }
    return map;
}

static inline uint64_t bits_together(const struct bits_map *map, uint64_t bytes)
{
    uint64_t bits = 0;
    for (unsigned i = 0; i < 8; i++)
        bits |= (uint64_t)map->together[bytes >> 8 * i & 255] << map->count * i;
    return bits;
}

static inline uint64_t bits_apart(const struct bits_map *map, uint64_t bits)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < 8; i++)
        bytes |= (uint64_t)map->apart[bits >> map->count * i & ((1u << map->count) - 1)] << 8 * i;
    return bytes;
}

#endif

/* Packs the bits of `mask`. Writes (n * bits + 7) / 8 bytes. */
static void bits_pack(unsigned mask, const unsigned char *bytes, size_t n, unsigned char *packed)
{
    const struct bits_map map = bits_map(mask);
    const size_t each = (size_t)__builtin_popcount(mask);
    const size_t all = (n * each + 7) / 8;
    for (size_t i = 0, at = 0; i < n; i += 8, at += each) {
        const size_t left = all - at;
        uint64_t bits = bits_together(&map, n - i >= 8 ? lmci_load64(bytes + i) : load_some(bytes + i, n - i));
        if (left >= 8)
            lmci_store64(packed + at, bits);
        else
            store_some(packed + at, bits, left < each ? left : each);
    }
}

/* The inverse of bits_pack. `value`: the bits outside `mask`. Writes up to 7 bytes past `bytes`. */
static void bits_unpack(unsigned mask, unsigned value, const unsigned char *packed, size_t n, unsigned char *bytes)
{
    const struct bits_map map = bits_map(mask);
    const uint64_t values = value * UINT64_C(0x0101010101010101);
    const size_t each = (size_t)__builtin_popcount(mask);
    const size_t all = (n * each + 7) / 8;
    for (size_t i = 0, at = 0; i < n; i += 8, at += each) {
        const size_t left = all - at;
        uint64_t bits = left >= 8 ? lmci_load64(packed + at) : load_some(packed + at, left);
        lmci_store64(bytes + i, bits_apart(&map, bits) | values);
    }
}
