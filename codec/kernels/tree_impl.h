/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tree_impl.h - partitions and merges lists of a tree code by bits, 64 symbols at a time.
 *
 * AVX-512 VBMI2: a compress for each side, an expand. AVX2: a pext for 8 symbols, a shuffle for 32. NEON: lookups of 8.
 * Plain loops: one symbol.
 */
#include "kernels/vbmi2_impl.h"

#if defined(__BMI2__)
#include "kernels/bmi2_impl.h"
#endif

/* Loads at most 8 bytes, a number that compilers do not know. */
static inline uint64_t load_some(const unsigned char *from, size_t bytes)
{
#if defined(__AVX512VBMI2__)
    return (uint64_t)_mm_cvtsi128_si64(_mm_maskz_loadu_epi8((__mmask16)((1u << bytes) - 1), from));
#else
    uint64_t some = 0;
    for (size_t i = 0; i < bytes; i++)
        some |= (uint64_t)from[i] << 8 * i;
    return some;
#endif
}

static inline void store_some(unsigned char *to, uint64_t value, size_t bytes)
{
#if defined(__AVX512VBMI2__)
    _mm_mask_storeu_epi8(to, (__mmask16)((1u << bytes) - 1), _mm_cvtsi64_si128((long long)value));
#else
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> 8 * i);
#endif
}

/* Loads at most 64 bits, from symbol `i` of `n` on. */
static inline uint64_t load_bits(const unsigned char *bits, size_t i, size_t n)
{
    return n - i >= 64 ? lmci_load64(bits + i / 8) : load_some(bits + i / 8, (n - i + 7) / 8);
}

static inline void store_bits(unsigned char *bits, uint64_t some, size_t i, size_t n)
{
    if (n - i >= 64)
        lmci_store64(bits + i / 8, some);
    else
        store_some(bits + i / 8, some, (n - i + 7) / 8);
}

static inline uint64_t valid_bits(size_t i, size_t n)
{
    return n - i >= 64 ? UINT64_MAX : (UINT64_C(1) << (n - i)) - 1;
}

#if defined(__AVX512VBMI2__)

static inline uint64_t at_least(const unsigned char *ranks, unsigned char pivot)
{
    return _mm512_cmp_epu8_mask(_mm512_loadu_si512(ranks), _mm512_set1_epi8((char)pivot), _MM_CMPINT_NLT);
}

/* Gathers bytes of set bits. Writes 64 bytes. */
static inline size_t pick(const unsigned char *from, uint64_t bits, unsigned char *dst)
{
    _mm512_storeu_si512(dst, compress_bytes(bits, _mm512_loadu_si512(from)));
    return (size_t)__builtin_popcountll(bits);
}

/* Gathers both sides. `zeros` may begin at `from`. */
static inline void deal_bits(const unsigned char *from, uint64_t bits, uint64_t valid, unsigned char **zeros,
                             unsigned char **ones)
{
    __m512i x = _mm512_loadu_si512(from);
    _mm512_storeu_si512(*ones, compress_bytes(bits, x));
    _mm512_storeu_si512(*zeros, compress_bytes(~bits & valid, x));
    *ones += __builtin_popcountll(bits);
    *zeros += __builtin_popcountll(~bits & valid);
}

static inline void merge_at(uint64_t bits, const unsigned char *zeros, const unsigned char *ones, unsigned char *out)
{
    const __m512i x = expand_bytes(~bits, _mm512_loadu_si512(zeros));
    _mm512_storeu_si512(out, _mm512_mask_expand_epi8(x, bits, _mm512_loadu_si512(ones)));
}

static inline void merge_lists(uint64_t bits, const unsigned char **zeros, const unsigned char **ones,
                               unsigned char *out)
{
    merge_at(bits, *zeros, *ones, out);
    *ones += __builtin_popcountll(bits);
    *zeros += 64 - __builtin_popcountll(bits);
}

/* Merges by `n` bits, a multiple of 64. One count moves both lists; two vectors a turn, as the loop itself costs. */
static inline void merge_lists_whole(const unsigned char *bits, size_t n, const unsigned char **zeros,
                                     const unsigned char **ones, unsigned char *out)
{
    const unsigned char *zero = *zeros, *one = *ones;
    size_t set = 0, i = 0;
    for (; i + 128 <= n; i += 128) {
        const uint64_t first = lmci_load64(bits + i / 8), second = lmci_load64(bits + i / 8 + 8);
        const size_t then = set + (size_t)__builtin_popcountll(first);
        merge_at(first, zero + (i - set), one + set, out + i);
        merge_at(second, zero + (i + 64 - then), one + then, out + i + 64);
        set = then + (size_t)__builtin_popcountll(second);
    }
    if (i < n) {
        const uint64_t last = lmci_load64(bits + i / 8);
        merge_at(last, zero + (i - set), one + set, out + i);
        set += (size_t)__builtin_popcountll(last);
    }
    *zeros += n - set;
    *ones += set;
}

#define MERGE_LISTS_WHOLE

/* Writes the list's symbols where bits are set, `value` elsewhere. */
static inline void merge_value(uint64_t bits, const unsigned char **list, unsigned char value, unsigned char *out)
{
    __m512i x = _mm512_set1_epi8((char)value);
    _mm512_storeu_si512(out, _mm512_mask_expand_epi8(x, bits, _mm512_loadu_si512(*list)));
    *list += __builtin_popcountll(bits);
}

static inline void merge_values(uint64_t bits, unsigned char zero, unsigned char one, unsigned char *out)
{
    __m512i x = _mm512_set1_epi8((char)zero);
    _mm512_storeu_si512(out, _mm512_mask_blend_epi8(bits, x, _mm512_set1_epi8((char)one)));
}

static void rename_bytes(const uint8_t lut[256], const unsigned char *from, size_t n, unsigned char *to)
{
    const __m512i t0 = _mm512_loadu_si512(lut), t1 = _mm512_loadu_si512(lut + 64);
    const __m512i t2 = _mm512_loadu_si512(lut + 128), t3 = _mm512_loadu_si512(lut + 192);
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        __m512i x = _mm512_loadu_si512(from + i);
        __m512i low = _mm512_permutex2var_epi8(t0, x, t1);
        __m512i high = _mm512_permutex2var_epi8(t2, x, t3);
        _mm512_storeu_si512(to + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high));
    }
    for (; i < n; i++)
        to[i] = lut[from[i]];
}

#else

#if defined(__BMI2__)

/* Bit i becomes byte i, all ones or all zeros. */
static inline uint64_t spread(uint64_t bits)
{
    return _pdep_u64(bits, UINT64_C(0x0101010101010101)) * 255;
}

static inline uint64_t at_least(const unsigned char *ranks, unsigned char pivot)
{
    const __m256i p = _mm256_set1_epi8((char)pivot);
    __m256i low = _mm256_loadu_si256((const __m256i *)ranks);
    __m256i high = _mm256_loadu_si256((const __m256i *)(ranks + 32));
    uint32_t a = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(low, p), low));
    uint32_t b = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(high, p), high));
    return (uint64_t)b << 32 | a;
}

static inline void pick_32(const unsigned char *from, uint32_t bits, const struct bytes_32 *mask, unsigned char *dst)
{
    for (unsigned k = 0; k < 4; k++)
        lmci_store64(dst + mask_rank(bits, k), _pext_u64(lmci_load64(from + 8 * k), mask->part[k]));
}

static inline size_t pick(const unsigned char *from, uint64_t bits, unsigned char *dst)
{
    const struct bytes_32 low = spread_32((uint32_t)bits), high = spread_32((uint32_t)(bits >> 32));
    pick_32(from, (uint32_t)bits, &low, dst);
    pick_32(from + 32, (uint32_t)(bits >> 32), &high, dst + __builtin_popcount((uint32_t)bits));
    return (size_t)__builtin_popcountll(bits);
}

/* `zeros` may begin at `from`: stores never overtake loads. */
static inline void deal_bits(const unsigned char *from, uint64_t bits, uint64_t valid, unsigned char **zeros,
                             unsigned char **ones)
{
    for (unsigned half = 0; half < 64; half += 32) {
        const uint32_t some = (uint32_t)(bits >> half), others = (uint32_t)((~bits & valid) >> half);
        const struct bytes_32 one = spread_32(some), zero = spread_32(others);
        for (unsigned k = 0; k < 4; k++) {
            uint64_t x = lmci_load64(from + half + 8 * k);
            lmci_store64(*ones + mask_rank(some, k), _pext_u64(x, one.part[k]));
            lmci_store64(*zeros + mask_rank(others, k), _pext_u64(x, zero.part[k]));
        }
        *ones += __builtin_popcount(some);
        *zeros += __builtin_popcount(others);
    }
}

static inline void merge_lists(uint64_t bits, const unsigned char **zeros, const unsigned char **ones,
                               unsigned char *out)
{
    const __m256i places = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6,
                                            7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (unsigned half = 0; half < 64; half += 32) {
        const uint32_t some = (uint32_t)(bits >> half);
        const __m256i mask = spread_vector(some);
        const __m256i sums = sums_so_far(mask); /* sums of -1 */
        const __m256i one = _mm256_shuffle_epi8(halves_at(some, *ones), _mm256_sub_epi8(mask, sums));
        const __m256i zero = _mm256_shuffle_epi8(halves_at(~some, *zeros), _mm256_add_epi8(places, sums));
        _mm256_storeu_si256((__m256i *)(void *)(out + half), _mm256_blendv_epi8(zero, one, mask));
        *ones += __builtin_popcount(some);
        *zeros += 32 - __builtin_popcount(some);
    }
}

static inline void merge_value(uint64_t bits, const unsigned char **list, unsigned char value, unsigned char *out)
{
    for (unsigned half = 0; half < 64; half += 32) {
        const uint32_t some = (uint32_t)(bits >> half);
        const __m256i mask = spread_vector(some);
        const __m256i index = _mm256_sub_epi8(mask, sums_so_far(mask));
        const __m256i own = _mm256_shuffle_epi8(halves_at(some, *list), index);
        const __m256i all = _mm256_blendv_epi8(_mm256_set1_epi8((char)value), own, mask);
        _mm256_storeu_si256((__m256i *)(void *)(out + half), all);
        *list += __builtin_popcount(some);
    }
}

#elif defined(LMCI_NEON)

#include "kernels/tree_neon.h"

#else

/* Bit i becomes byte i, all ones or all zeros. */
static inline uint64_t spread(uint64_t bits)
{
    const uint64_t low7 = UINT64_C(0x7f7f7f7f7f7f7f7f);
    uint64_t own = bits * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
    return (((((own & low7) + low7) | own) & ~low7) >> 7) * 255;
}

static inline uint64_t at_least(const unsigned char *ranks, unsigned char pivot)
{
    uint64_t bits = 0;
    for (unsigned g = 0; g < 64; g += 8) {
        unsigned some = 0;
        for (unsigned i = 0; i < 8; i++)
            some |= (unsigned)(ranks[g + i] >= pivot) << i;
        bits |= (uint64_t)some << g;
    }
    return bits;
}

static inline size_t pick(const unsigned char *from, uint64_t bits, unsigned char *dst)
{
    size_t n = 0;
    for (unsigned i = 0; i < 64; i++) {
        dst[n] = from[i];
        n += bits >> i & 1;
    }
    return n;
}

static inline void deal_bits(const unsigned char *from, uint64_t bits, uint64_t valid, unsigned char **zeros,
                             unsigned char **ones)
{
    unsigned char *z = *zeros;
    unsigned char *o = *ones;
    for (unsigned i = 0; i < 64 && valid >> i != 0; i++) {
        unsigned char x = from[i];
        unsigned one = bits >> i & 1;
        *o = x;
        *z = x;
        o += one;
        z += 1 - one;
    }
    *zeros = z;
    *ones = o;
}

static inline void merge_lists(uint64_t bits, const unsigned char **zeros, const unsigned char **ones,
                               unsigned char *out)
{
    const unsigned char *z = *zeros;
    const unsigned char *o = *ones;
    for (unsigned i = 0; i < 64; i++) {
        unsigned one = bits >> i & 1;
        out[i] = (unsigned char)(*z ^ ((*z ^ *o) & (0 - one))); /* a branch would be mispredicted too often */
        o += one;
        z += 1 - one;
    }
    *zeros = z;
    *ones = o;
}

static inline void merge_value(uint64_t bits, const unsigned char **list, unsigned char value, unsigned char *out)
{
    const unsigned char *at = *list;
    for (unsigned i = 0; i < 64; i++) {
        unsigned one = bits >> i & 1;
        out[i] = (unsigned char)(value ^ ((value ^ *at) & (0 - one)));
        at += one;
    }
    *list = at;
}

#endif

static inline void merge_values(uint64_t bits, unsigned char zero, unsigned char one, unsigned char *out)
{
    const uint64_t zeros = zero * UINT64_C(0x0101010101010101);
    const uint64_t both = (zero ^ one) * UINT64_C(0x0101010101010101);
    for (unsigned g = 0; g < 64; g += 8)
        lmci_store64(out + g, zeros ^ (both & spread(bits >> g & 255)));
}

#if defined(__BMI2__)

/* Rows of 16 byte values with names other than the most frequent. */
struct rename_rows {
    unsigned count;
    uint8_t usual;
    __m256i row[16];   /* the high half of the row's values */
    __m256i names[16]; /* XORed with the most frequent name */
};

static void rename_rows(const uint8_t lut[256], struct rename_rows *rows)
{
    unsigned most = 0;
    for (unsigned r = 0; r < 16; r++) {
        unsigned same = 0;
        for (unsigned i = 0; i < 256; i++)
            same += lut[i] == lut[16 * r];
        rows->usual = same > most ? lut[16 * r] : rows->usual;
        most = same > most ? same : most;
    }
    rows->count = 0;
    for (unsigned r = 0; r < 16; r++) {
        uint8_t names[16], any = 0;
        for (unsigned i = 0; i < 16; i++)
            any |= names[i] = lut[16 * r + i] ^ rows->usual;
        if (any == 0)
            continue;
        rows->row[rows->count] = _mm256_set1_epi8((char)(16 * r));
        rows->names[rows->count++] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)names));
    }
}

static size_t rename_whole(const uint8_t lut[256], const unsigned char *from, size_t n, unsigned char *to)
{
    struct rename_rows rows = {.usual = lut[0]};
    size_t i = 0;
    if (n < 1024)
        return 0;
    rename_rows(lut, &rows);
    for (; i + 32 <= n; i += 32) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(from + i));
        __m256i all = _mm256_set1_epi8((char)rows.usual);
        for (unsigned r = 0; r < rows.count; r++) {
            /* Bytes outside the row give at least 128: the shuffle returns zero. */
            __m256i at = _mm256_adds_epu8(_mm256_xor_si256(x, rows.row[r]), _mm256_set1_epi8(112));
            all = _mm256_xor_si256(all, _mm256_shuffle_epi8(rows.names[r], at));
        }
        _mm256_storeu_si256((__m256i *)(void *)(to + i), all);
    }
    return i;
}

#elif !defined(LMCI_NEON)

static size_t rename_whole(const uint8_t lut[256], const unsigned char *from, size_t n, unsigned char *to)
{
    (void)lut, (void)from, (void)n, (void)to;
    return 0;
}

#endif

static void rename_bytes(const uint8_t lut[256], const unsigned char *from, size_t n, unsigned char *to)
{
    for (size_t i = rename_whole(lut, from, n, to); i < n; i++)
        to[i] = lut[from[i]];
}

#endif

static size_t tree_bits(const unsigned char *ranks, size_t n, unsigned char pivot, unsigned char *bits)
{
    size_t ones = 0;
    for (size_t i = 0; i < n; i += 64) {
        uint64_t some = at_least(ranks + i, pivot) & valid_bits(i, n);
        store_bits(bits, some, i, n);
        ones += (size_t)__builtin_popcountll(some);
    }
    return ones;
}

static size_t tree_split(unsigned char *list, size_t n, unsigned char pivot, unsigned char *bits, unsigned char *ones)
{
    unsigned char *zero = list;
    unsigned char *one = ones;
    for (size_t i = 0; i < n; i += 64) {
        uint64_t valid = valid_bits(i, n);
        uint64_t some = at_least(list + i, pivot) & valid;
        store_bits(bits, some, i, n);
        deal_bits(list + i, some, valid, &zero, &one);
    }
    return (size_t)(one - ones);
}

static size_t tree_keep(const unsigned char *list, size_t n, unsigned char pivot, bool ones, unsigned char *bits,
                        unsigned char *to)
{
    unsigned char *kept = to;
    for (size_t i = 0; i < n; i += 64) {
        uint64_t valid = valid_bits(i, n);
        uint64_t some = at_least(list + i, pivot) & valid;
        store_bits(bits, some, i, n);
        kept += pick(list + i, ones ? some : ~some & valid, kept);
    }
    return ones ? (size_t)(kept - to) : n - (size_t)(kept - to);
}

static size_t tree_count(const unsigned char *bits, size_t n)
{
    size_t ones = 0;
    size_t i = 0;
    for (; i + 256 <= n; i += 256)
        for (size_t k = 0; k < 32; k += 8)
            ones += (size_t)__builtin_popcountll(lmci_load64(bits + i / 8 + k));
    for (; i < n; i += 64)
        ones += (size_t)__builtin_popcountll(load_bits(bits, i, n));
    return ones;
}

#if !defined(MERGE_LISTS_WHOLE)

static inline void merge_lists_whole(const unsigned char *bits, size_t n, const unsigned char **zeros,
                                     const unsigned char **ones, unsigned char *out)
{
    for (size_t i = 0; i < n; i += 64)
        merge_lists(lmci_load64(bits + i / 8), zeros, ones, out + i);
}

#endif

static void tree_merge(const unsigned char *bits, size_t n, const struct lmci_side sides[2], unsigned char *out)
{
    const unsigned char *zeros = sides[0].list;
    const unsigned char *ones = sides[1].list;
    const unsigned char zero = sides[0].value, one = sides[1].value;
    const size_t whole = n & ~(size_t)63;
    size_t i = 0;
    if (zeros != NULL && ones != NULL) {
        merge_lists_whole(bits, whole, &zeros, &ones, out);
        if (whole < n)
            merge_lists(load_bits(bits, whole, n), &zeros, &ones, out + whole);
    } else if (ones != NULL) {
        for (; i < whole; i += 64)
            merge_value(lmci_load64(bits + i / 8), &ones, zero, out + i);
        if (i < n)
            merge_value(load_bits(bits, i, n), &ones, zero, out + i);
    } else if (zeros != NULL) {
        for (; i < whole; i += 64)
            merge_value(~lmci_load64(bits + i / 8), &zeros, one, out + i);
        if (i < n)
            merge_value(~load_bits(bits, i, n), &zeros, one, out + i);
    } else {
        for (; i < whole; i += 64)
            merge_values(lmci_load64(bits + i / 8), zero, one, out + i);
        if (i < n)
            merge_values(load_bits(bits, i, n), zero, one, out + i);
    }
}
