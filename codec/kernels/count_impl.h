/* SPDX-License-Identifier: BSD-3-Clause */
/* count_impl.h - counts bytes, and sums logarithms of counts. */

#define COUNT_CHUNK ((size_t)64)

/* Counts into eight tables: in one, an increment would wait for the store of an equal neighbour. */
static inline void count_some(const unsigned char *symbols, size_t count, uint16_t part[8][256])
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t x = lmci_load64(symbols + i);
        part[0][x & 255]++;
        part[1][x >> 8 & 255]++;
        part[2][x >> 16 & 255]++;
        part[3][x >> 24 & 255]++;
        part[4][x >> 32 & 255]++;
        part[5][x >> 40 & 255]++;
        part[6][x >> 48 & 255]++;
        part[7][x >> 56]++;
    }
    for (; i < count; i++)
        part[0][symbols[i]]++;
}

static inline void add_counts(uint16_t part[8][256], uint32_t counts[256])
{
    for (size_t s = 0; s < 256; s++)
        for (size_t k = 0; k < 8; k++)
            counts[s] += part[k][s];
}

/* For fewer symbols, that wait is shorter than clearing and adding tables. */
#define COUNT_FEW ((size_t)512)
/* So many symbols overflow no 16-bit counter. */
#define COUNT_MANY ((size_t)1 << 15)

#if defined(__AVX512VBMI2__)

#include "kernels/vbmi2_impl.h"

/* Counts in tables once there are more than a few symbols. */
struct counter {
    size_t held; /* symbols in the tables; 0: these are not clear */
    uint16_t part[8][256];
};

static void count_held(const unsigned char *symbols, size_t count, struct counter *counter, uint32_t counts[256])
{
    if (counter->held == 0 && count <= COUNT_FEW) {
        for (size_t i = 0; i < count; i++)
            counts[symbols[i]]++;
        return;
    }
    if (counter->held == 0)
        memset(counter->part, 0, sizeof counter->part);
    count_some(symbols, count, counter->part);
    counter->held += count;
    if (counter->held >= COUNT_MANY) {
        add_counts(counter->part, counts);
        counter->held = 0;
    }
}

#define COUNT_KEPT ((size_t)4096)

/* Zeros are often most symbols: others are gathered first, and only these are counted one by one. */
static void count_symbols(const unsigned char *symbols, size_t count, size_t every, uint32_t counts[256])
{
    unsigned char kept[COUNT_KEPT + COUNT_CHUNK];
    struct counter counter;
    every = count <= COUNT_FEW ? 1 : every;
    counter.held = 0;
    const size_t ahead = 8 * every * COUNT_CHUNK;
    size_t zeros = 0, n = 0;
    memset(counts, 0, 256 * sizeof *counts);
    for (size_t i = 0; i < count; i += every * COUNT_CHUNK) {
        const size_t some = count - i < COUNT_CHUNK ? count - i : COUNT_CHUNK;
        if (every != 1 && some < COUNT_CHUNK)
            break;
        if (every != 1 && count - i > ahead)
            __builtin_prefetch(symbols + i + ahead);
        const __m512i x = _mm512_maskz_loadu_epi8(UINT64_MAX >> (COUNT_CHUNK - some), symbols + i);
        const uint64_t others = _mm512_test_epi8_mask(x, x);
        _mm512_storeu_si512(kept + n, compress_bytes(others, x));
        n += (size_t)__builtin_popcountll(others);
        zeros += some - (size_t)__builtin_popcountll(others);
        if (n >= COUNT_KEPT) {
            count_held(kept, COUNT_KEPT, &counter, counts);
            n -= COUNT_KEPT;
            memcpy(kept, kept + COUNT_KEPT, COUNT_CHUNK);
        }
    }
    count_held(kept, n, &counter, counts);
    if (counter.held != 0)
        add_counts(counter.part, counts);
    counts[0] += (uint32_t)zeros;
}

#else

static void count_symbols(const unsigned char *symbols, size_t count, size_t every, uint32_t counts[256])
{
    uint16_t part[8][256];
    size_t ahead = 8 * every * COUNT_CHUNK;
    memset(counts, 0, 256 * sizeof *counts);
    for (size_t i = 0; count <= COUNT_FEW && i < count; i++)
        counts[symbols[i]]++;
    for (size_t i = 0; count > COUNT_FEW && i < count;) {
        memset(part, 0, sizeof part);
        if (every == 1) {
            size_t some = count - i < COUNT_MANY ? count - i : COUNT_MANY;
            count_some(symbols + i, some, part);
            i += some;
        } else {
            for (size_t most = i + every * COUNT_MANY; i < count && i < most; i += every * COUNT_CHUNK) {
                if (count - i > ahead)
                    __builtin_prefetch(symbols + i + ahead);
                if (count - i >= COUNT_CHUNK)
                    count_some(symbols + i, COUNT_CHUNK, part);
            }
        }
        add_counts(part, counts);
    }
}

#endif

/* Returns log2(x) in 1/65536: the exponent of x as a float, and a parabola of its mantissa. x is not 0. */
static inline uint32_t log2_of_count(uint32_t x)
{
    const float exact = (float)(int32_t)x;
    uint32_t bits;
    memcpy(&bits, &exact, sizeof bits);
    const uint32_t fraction = bits >> 7 & 65535;
    return ((bits >> 23) - 127) * 65536 + fraction + (((fraction * (65536 - fraction)) >> 16) * 22517 >> 16);
}

static uint64_t sum_logs(const uint32_t *counts, unsigned symbols, unsigned *seen)
{
    uint64_t sum = 0;
    uint32_t some = 0;
    for (unsigned s = 0; s < symbols; s++) {
        sum += counts[s] * (uint64_t)log2_of_count(counts[s]);
        some += counts[s] != 0;
    }
    *seen = some;
    return sum;
}
