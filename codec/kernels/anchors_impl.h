/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * anchors_impl.h - selects words by their content: a hash, the low bits of a product, is near the least number.
 *
 * Zero is never selected. Words of 1 byte are hashed together with the next one.
 */

#define ANCHOR_BYTES  ((size_t)64)
#define ANCHOR_FACTOR UINT64_C(0x9e3779b97f4a7c15)

static inline int16_t anchor_hash16(const unsigned char *at)
{
    return (int16_t)(lmci_load16(at) * (uint32_t)(uint16_t)ANCHOR_FACTOR);
}

static inline int32_t anchor_hash32(const unsigned char *at)
{
    return (int32_t)(lmci_load32(at) * (uint32_t)ANCHOR_FACTOR);
}

static inline int32_t anchor_hash64(const unsigned char *at)
{
    const uint64_t product = lmci_load64(at) * ANCHOR_FACTOR;
    return (int32_t)(product >> 32);
}

struct anchor_limits {
    int16_t of16;
    int32_t of32;
};

static inline bool anchor_selects(unsigned word, const unsigned char *at, const struct anchor_limits *limits)
{
    if (word <= 2)
        return anchor_hash16(at) < limits->of16;
    return (word == 4 ? anchor_hash32(at) : anchor_hash64(at)) < limits->of32;
}

#if defined(__AVX512VBMI2__)

/* Adds the offsets of selected words of 64 bytes, which begin at `offset`. Words of 1 byte read one byte more. */
static inline size_t anchor_64(unsigned word, const unsigned char *at, size_t offset,
                               const struct anchor_limits *limits, uint16_t *to)
{
    const __m512i x = _mm512_loadu_si512(at);
    if (word == 4) {
        const __m512i fours = _mm512_set_epi32(60, 56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0);
        const __m512i h = _mm512_mullo_epi32(x, _mm512_set1_epi32((int)(uint32_t)ANCHOR_FACTOR));
        const __mmask16 some = _mm512_cmplt_epi32_mask(h, _mm512_set1_epi32(limits->of32));
        const __m512i kept = _mm512_maskz_compress_epi32(some, _mm512_add_epi32(fours, _mm512_set1_epi32((int)offset)));
        _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(kept));
        return (size_t)__builtin_popcount(some);
    }
    const __m512i factor = _mm512_set1_epi16((short)(uint16_t)ANCHOR_FACTOR), limit = _mm512_set1_epi16(limits->of16);
    const __m512i twos = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                                          24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __mmask32 even = _mm512_cmplt_epi16_mask(_mm512_mullo_epi16(x, factor), limit);
    if (word == 2) {
        const __m512i offsets = _mm512_add_epi16(twos, _mm512_set1_epi16((short)offset));
        _mm512_storeu_si512(to, _mm512_maskz_compress_epi16(even, offsets));
        return (size_t)__builtin_popcount(even);
    }
    const __mmask32 odd = _mm512_cmplt_epi16_mask(_mm512_mullo_epi16(_mm512_loadu_si512(at + 1), factor), limit);
    size_t n = 0;
    for (uint64_t bits = _pdep_u64(even, UINT64_C(0x5555555555555555)) | _pdep_u64(odd, UINT64_C(0xaaaaaaaaaaaaaaaa));
         bits != 0; bits &= bits - 1)
        to[n++] = (uint16_t)(offset + (size_t)__builtin_ctzll(bits));
    return n;
}

#define ANCHOR_VECTOR

#elif defined(__AVX2__)

static inline size_t anchor_64(unsigned word, const unsigned char *at, size_t offset,
                               const struct anchor_limits *limits, uint16_t *to)
{
    const __m256i factor =
        word == 4 ? _mm256_set1_epi32((int)(uint32_t)ANCHOR_FACTOR) : _mm256_set1_epi16((short)(uint16_t)ANCHOR_FACTOR);
    const __m256i limit = word == 4 ? _mm256_set1_epi32(limits->of32) : _mm256_set1_epi16(limits->of16);
    uint64_t bits = 0;
    for (unsigned k = 0; k < 64; k += 32) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(at + k));
        if (word == 4) {
            const __m256i below = _mm256_cmpgt_epi32(limit, _mm256_mullo_epi32(x, factor));
            bits |= (uint64_t)((uint32_t)_mm256_movemask_epi8(below) & 0x11111111u) << k;
            continue;
        }
        const __m256i even = _mm256_cmpgt_epi16(limit, _mm256_mullo_epi16(x, factor));
        bits |= (uint64_t)((uint32_t)_mm256_movemask_epi8(even) & 0x55555555u) << k;
        if (word == 1) {
            const __m256i next = _mm256_loadu_si256((const __m256i *)(const void *)(at + k + 1));
            const __m256i odd = _mm256_cmpgt_epi16(limit, _mm256_mullo_epi16(next, factor));
            bits |= (uint64_t)((uint32_t)_mm256_movemask_epi8(odd) & 0xaaaaaaaau) << k;
        }
    }
    size_t n = 0;
    for (; bits != 0; bits &= bits - 1)
        to[n++] = (uint16_t)(offset + (size_t)__builtin_ctzll(bits));
    return n;
}

#define ANCHOR_VECTOR

#endif

/* Whether any of 64 bytes may be selected. */
static inline __attribute__((always_inline)) bool anchor_any(unsigned word, const unsigned char *at,
                                                             const struct anchor_limits *limits)
{
    unsigned any = 0;
    if (word == 2)
        for (unsigned i = 0; i < 64; i += 2)
            any |= anchor_hash16(at + i) < limits->of16;
    else if (word == 4)
        for (unsigned i = 0; i < 64; i += 4)
            any |= anchor_hash32(at + i) < limits->of32;
    else
        any = 1;
    return any != 0;
}

static inline __attribute__((always_inline)) size_t anchors_of(unsigned word, const unsigned char *data, size_t bytes,
                                                               const struct anchor_limits *limits, uint16_t *at)
{
    const size_t reach = word == 1 ? 2 : word; /* bytes that one hash reads */
    size_t i = 0, n = 0;
    for (; i + ANCHOR_BYTES + reach - word <= bytes; i += ANCHOR_BYTES) {
#if defined(ANCHOR_VECTOR)
        if (word != 8) {
            n += anchor_64(word, data + i, i, limits, at + n);
            continue;
        }
#endif
        if (!anchor_any(word, data + i, limits))
            continue;
        for (size_t k = i; k < i + ANCHOR_BYTES; k += word) {
            at[n] = (uint16_t)k;
            n += anchor_selects(word, data + k, limits);
        }
    }
    for (; i + reach <= bytes; i += word) {
        at[n] = (uint16_t)i;
        n += anchor_selects(word, data + i, limits);
    }
    return n;
}

static size_t anchors(unsigned word, unsigned log2, const unsigned char *data, size_t bytes, uint16_t *at)
{
    const struct anchor_limits limits = {(int16_t)(INT16_MIN + (1 << (16 - log2))),
                                         INT32_MIN + (INT32_C(1) << (32 - log2))};
    switch (word) {
    case 1:
        return anchors_of(1, data, bytes, &limits, at);
    case 2:
        return anchors_of(2, data, bytes, &limits, at);
    case 4:
        return anchors_of(4, data, bytes, &limits, at);
    default:
        return anchors_of(8, data, bytes, &limits, at);
    }
}
