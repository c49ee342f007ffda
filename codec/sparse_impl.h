/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * sparse_impl.h - splits bytes that are mostly zero into flags and the rest, and back.
 *
 * Eight bytes at a time: a multiplication gathers eight flags into a byte, and one deposit (BMI2) spreads up to eight
 * bytes under them. The last bytes go one by one, so nothing is read past either input.
 */
#if defined(__BMI2__)
#include <immintrin.h>
#endif

/* One flag a byte of x, lowest first: set where the byte isn't zero. */
static inline unsigned flags_of(uint64_t x)
{
    const uint64_t low7 = UINT64_C(0x7f7f7f7f7f7f7f7f);
    uint64_t high = (((x & low7) + low7) | x) & ~low7;
    return (unsigned)(((high >> 7) * UINT64_C(0x0102040810204080)) >> 56);
}

static inline size_t keep_nonzero(uint64_t x, unsigned flags, unsigned char *to)
{
#if defined(__BMI2__)
    uint64_t mask = _pdep_u64(flags, UINT64_C(0x0101010101010101)) * 0xff;
    lmci_store64(to, _pext_u64(x, mask));
    return (size_t)__builtin_popcount(flags);
#else
    size_t kept = 0;
    for (unsigned rest = flags; rest; rest &= rest - 1)
        to[kept++] = (unsigned char)(x >> (8 * __builtin_ctz(rest)));
    return kept;
#endif
}

static size_t sparse_split(const unsigned char *bytes, size_t count, unsigned char *flags, unsigned char *nonzero)
{
    size_t kept = 0;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t x = lmci_load64(bytes + i);
        unsigned f = flags_of(x);
        flags[i / 8] = (unsigned char)f;
        if (f)
            kept += keep_nonzero(x, f, nonzero + kept);
    }
    if (i < count) {
        uint64_t x = 0;
        memcpy(&x, bytes + i, count - i);
        flags[i / 8] = (unsigned char)flags_of(x);
        kept += keep_nonzero(x, flags[i / 8], nonzero + kept);
    }
    return kept;
}

/* Up to `room` (at most 8) bytes under flags, from input that may end; bytes used. */
static size_t spread_careful(unsigned flags, const unsigned char *from, size_t left, unsigned char *to, size_t room)
{
    size_t used = 0;
    for (size_t i = 0; i < room; i++)
        to[i] = (flags >> i & 1) && used < left ? from[used++] : 0;
    return used;
}

static inline size_t spread8(unsigned flags, const unsigned char *from, unsigned char *to)
{
#if defined(__BMI2__)
    uint64_t mask = _pdep_u64(flags, UINT64_C(0x0101010101010101)) * 0xff;
    lmci_store64(to, _pdep_u64(lmci_load64(from), mask));
    return (size_t)__builtin_popcount(flags);
#else
    size_t used = 0;
    lmci_store64(to, 0);
    for (unsigned rest = flags; rest; rest &= rest - 1)
        to[__builtin_ctz(rest)] = from[used++];
    return used;
#endif
}

static void sparse_merge(const unsigned char *flags, const unsigned char *nonzero, size_t nonzero_count,
                         unsigned char *bytes, size_t count)
{
    size_t used = 0;
    size_t i = 0;
    for (; i + 8 <= count && nonzero_count - used >= 8; i += 8) {
        if (flags[i / 8])
            used += spread8(flags[i / 8], nonzero + used, bytes + i);
        else
            lmci_store64(bytes + i, 0);
    }
    for (; i < count; i += 8) {
        size_t room = count - i < 8 ? count - i : 8;
        used += spread_careful(flags[i / 8], nonzero + used, nonzero_count - used, bytes + i, room);
    }
}
