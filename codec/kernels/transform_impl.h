/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * transform_impl.h - transforms words and groups their bytes into planes, and back.
 *
 * Words pass in chunks that fit the first-level cache: one loop transforms, another deals bytes. With AVX-512 VBMI and
 * NEON, words of 2 and 4 bytes stay in registers.
 */
#include "kernels/vbmi2_impl.h"

#define CHUNK 1024 /* words; 8 KiB at most */

/* forwardN: to words; backwardN: the inverse. Any alignment. */
#define DEFINE_WORD(bits)                                                                                              \
    typedef uint##bits##_t word##bits;                                                                                 \
    static inline word##bits get##bits(const unsigned char *from, size_t i)                                            \
    {                                                                                                                  \
        word##bits value;                                                                                              \
        memcpy(&value, from + i * sizeof value, sizeof value);                                                         \
        return value;                                                                                                  \
    }                                                                                                                  \
    static inline void put##bits(unsigned char *to, size_t i, word##bits value)                                        \
    {                                                                                                                  \
        memcpy(to + i * sizeof value, &value, sizeof value);                                                           \
    }                                                                                                                  \
    static inline word##bits zigzag##bits(word##bits d)                                                                \
    {                                                                                                                  \
        return (word##bits)((word##bits)(d << 1) ^ (word##bits)(0 - (word##bits)(d >> ((bits)-1))));                   \
    }                                                                                                                  \
    static inline word##bits unzigzag##bits(word##bits y)                                                              \
    {                                                                                                                  \
        return (word##bits)((word##bits)(y >> 1) ^ (word##bits)(0 - (word##bits)(y & 1)));                             \
    }                                                                                                                  \
    static void forward##bits(enum lmci_transform transform, const unsigned char *restrict x,                          \
                              const unsigned char *restrict b, size_t n, word##bits *restrict y)                       \
    {                                                                                                                  \
        if (transform == LMCI_KEEP)                                                                                    \
            memcpy(y, x, n * sizeof *y);                                                                               \
        else if (transform == LMCI_ROTATE)                                                                             \
            for (size_t i = 0; i < n; i++)                                                                             \
                y[i] = (word##bits)((word##bits)(get##bits(x, i) << 1) | (word##bits)(get##bits(x, i) >> ((bits)-1))); \
        else if (transform == LMCI_XOR)                                                                                \
            for (size_t i = 0; i < n; i++)                                                                             \
                y[i] = get##bits(x, i) ^ get##bits(b, i);                                                              \
        else if (transform == LMCI_SUBTRACT)                                                                           \
            for (size_t i = 0; i < n; i++)                                                                             \
                y[i] = (word##bits)(get##bits(x, i) - get##bits(b, i));                                                \
        else                                                                                                           \
            for (size_t i = 0; i < n; i++)                                                                             \
                y[i] = zigzag##bits((word##bits)(get##bits(x, i) - get##bits(b, i)));                                  \
    }                                                                                                                  \
    static void backward##bits(enum lmci_transform transform, const word##bits *restrict y,                            \
                               const unsigned char *restrict b, size_t n, unsigned char *restrict x)                   \
    {                                                                                                                  \
        if (transform == LMCI_KEEP)                                                                                    \
            memcpy(x, y, n * sizeof *y);                                                                               \
        else if (transform == LMCI_ROTATE)                                                                             \
            for (size_t i = 0; i < n; i++)                                                                             \
                put##bits(x, i, (word##bits)((word##bits)(y[i] >> 1) | (word##bits)(y[i] << ((bits)-1))));             \
        else if (transform == LMCI_XOR)                                                                                \
            for (size_t i = 0; i < n; i++)                                                                             \
                put##bits(x, i, y[i] ^ get##bits(b, i));                                                               \
        else if (transform == LMCI_SUBTRACT)                                                                           \
            for (size_t i = 0; i < n; i++)                                                                             \
                put##bits(x, i, (word##bits)(y[i] + get##bits(b, i)));                                                 \
        else                                                                                                           \
            for (size_t i = 0; i < n; i++)                                                                             \
                put##bits(x, i, (word##bits)(unzigzag##bits(y[i]) + get##bits(b, i)));                                 \
    }

DEFINE_WORD(8)
DEFINE_WORD(16)
DEFINE_WORD(32)
DEFINE_WORD(64)

static void deal2(const word16 *restrict y, size_t n, unsigned char *restrict p0, unsigned char *restrict p1)
{
    for (size_t i = 0; i < n; i++) {
        p0[i] = (unsigned char)y[i];
        p1[i] = (unsigned char)(y[i] >> 8);
    }
}

static void deal4(const word32 *restrict y, size_t n, unsigned char *restrict p0, unsigned char *restrict p1,
                  unsigned char *restrict p2, unsigned char *restrict p3)
{
    for (size_t i = 0; i < n; i++) {
        p0[i] = (unsigned char)y[i];
        p1[i] = (unsigned char)(y[i] >> 8);
        p2[i] = (unsigned char)(y[i] >> 16);
        p3[i] = (unsigned char)(y[i] >> 24);
    }
}

static void gather2(const unsigned char *restrict p0, const unsigned char *restrict p1, size_t n, word16 *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (word16)(p0[i] | p1[i] << 8);
}

static void gather4(const unsigned char *restrict p0, const unsigned char *restrict p1,
                    const unsigned char *restrict p2, const unsigned char *restrict p3, size_t n, word32 *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (word32)p0[i] | (word32)p1[i] << 8 | (word32)p2[i] << 16 | (word32)p3[i] << 24;
}

/* Deals words of 8 bytes by halves. */
static void deal8(const word64 *restrict y, size_t n, unsigned char *const *p, size_t at)
{
    word32 low[CHUNK], high[CHUNK];
    for (size_t i = 0; i < n; i++) {
        low[i] = (word32)y[i];
        high[i] = (word32)(y[i] >> 32);
    }
    deal4(low, n, p[0] + at, p[1] + at, p[2] + at, p[3] + at);
    deal4(high, n, p[4] + at, p[5] + at, p[6] + at, p[7] + at);
}

static void gather8(const unsigned char *const *p, size_t at, size_t n, word64 *restrict y)
{
    word32 low[CHUNK], high[CHUNK];
    gather4(p[0] + at, p[1] + at, p[2] + at, p[3] + at, n, low);
    gather4(p[4] + at, p[5] + at, p[6] + at, p[7] + at, n, high);
    for (size_t i = 0; i < n; i++)
        y[i] = low[i] | (word64)high[i] << 32;
}

static void split_chunk(enum lmci_transform transform, unsigned word, const unsigned char *x, const unsigned char *b,
                        size_t n, unsigned char *const *p, size_t at)
{
    union {
        word16 y16[CHUNK];
        word32 y32[CHUNK];
        word64 y64[CHUNK];
    } y;
    if (word == 1) {
        forward8(transform, x, b, n, p[0] + at);
    } else if (word == 2) {
        forward16(transform, x, b, n, y.y16);
        deal2(y.y16, n, p[0] + at, p[1] + at);
    } else if (word == 4) {
        forward32(transform, x, b, n, y.y32);
        deal4(y.y32, n, p[0] + at, p[1] + at, p[2] + at, p[3] + at);
    } else {
        forward64(transform, x, b, n, y.y64);
        deal8(y.y64, n, p, at);
    }
}

static void merge_chunk(enum lmci_transform transform, unsigned word, const unsigned char *const *p, size_t at,
                        const unsigned char *b, size_t n, unsigned char *x)
{
    union {
        word16 y16[CHUNK];
        word32 y32[CHUNK];
        word64 y64[CHUNK];
    } y;
    if (word == 1) {
        backward8(transform, p[0] + at, b, n, x);
    } else if (word == 2) {
        gather2(p[0] + at, p[1] + at, n, y.y16);
        backward16(transform, y.y16, b, n, x);
    } else if (word == 4) {
        gather4(p[0] + at, p[1] + at, p[2] + at, p[3] + at, n, y.y32);
        backward32(transform, y.y32, b, n, x);
    } else {
        gather8(p, at, n, y.y64);
        backward64(transform, y.y64, b, n, x);
    }
}

#if defined(__AVX512VBMI2__)

static inline __attribute__((always_inline)) __m512i forward_512(enum lmci_transform transform, unsigned word,
                                                                 __m512i x, const unsigned char *b)
{
    if (transform == LMCI_KEEP)
        return x;
    if (transform == LMCI_ROTATE)
        return word == 2 ? _mm512_shldi_epi16(x, x, 1) : _mm512_rol_epi32(x, 1);
    const __m512i base = _mm512_loadu_si512(b);
    if (transform == LMCI_XOR)
        return _mm512_xor_si512(x, base);
    const __m512i d = word == 2 ? _mm512_sub_epi16(x, base) : _mm512_sub_epi32(x, base);
    if (transform == LMCI_SUBTRACT)
        return d;
    return word == 2 ? _mm512_xor_si512(_mm512_slli_epi16(d, 1), _mm512_srai_epi16(d, 15))
                     : _mm512_xor_si512(_mm512_slli_epi32(d, 1), _mm512_srai_epi32(d, 31));
}

static inline __attribute__((always_inline)) __m512i backward_512(enum lmci_transform transform, unsigned word,
                                                                  __m512i y, const unsigned char *b)
{
    if (transform == LMCI_KEEP)
        return y;
    if (transform == LMCI_ROTATE)
        return word == 2 ? _mm512_shldi_epi16(y, y, 15) : _mm512_ror_epi32(y, 1);
    const __m512i base = _mm512_loadu_si512(b);
    if (transform == LMCI_XOR)
        return _mm512_xor_si512(y, base);
    if (transform == LMCI_SUBTRACT)
        return word == 2 ? _mm512_add_epi16(y, base) : _mm512_add_epi32(y, base);
    const __m512i zero = _mm512_setzero_si512();
    const __m512i one = word == 2 ? _mm512_set1_epi16(1) : _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(y, one);
    return word == 2 ? _mm512_add_epi16(base, _mm512_xor_si512(_mm512_srli_epi16(y, 1), _mm512_sub_epi16(zero, odd)))
                     : _mm512_add_epi32(base, _mm512_xor_si512(_mm512_srli_epi32(y, 1), _mm512_sub_epi32(zero, odd)));
}

/* Callers pass constants for `transform` and `word`. */
static inline __attribute__((always_inline)) void split_whole(enum lmci_transform transform, unsigned word,
                                                              const unsigned char *data, const unsigned char *base,
                                                              size_t count, unsigned char *const *planes)
{
    for (size_t at = 0; at < count; at += 64) {
        __m512i y[4];
        for (unsigned k = 0; k < word; k++) {
            const size_t from = at * word + 64 * k;
            y[k] = forward_512(transform, word, _mm512_loadu_si512(data + from), base != NULL ? base + from : NULL);
        }
        for (unsigned p = 0; p < word; p++)
            _mm512_storeu_si512(planes[p] + at, word_bytes(word, y, p));
    }
}

static inline __attribute__((always_inline)) void merge_whole(enum lmci_transform transform, unsigned word,
                                                              const unsigned char *const *planes,
                                                              const unsigned char *base, size_t count,
                                                              unsigned char *data)
{
    for (size_t at = 0; at < count; at += 64) {
        __m512i bytes[4], y[4];
        for (unsigned p = 0; p < word; p++)
            bytes[p] = _mm512_loadu_si512(planes[p] + at);
        word_weave(word, bytes, y);
        for (unsigned k = 0; k < word; k++) {
            const size_t to = at * word + 64 * k;
            _mm512_storeu_si512(data + to, backward_512(transform, word, y[k], base != NULL ? base + to : NULL));
        }
    }
}

#elif defined(LMCI_NEON)

#include "kernels/transform_neon.h"

#endif

#if defined(__AVX512VBMI2__) || defined(LMCI_NEON)

#define FOR_TRANSFORMS(transform, what) \
    switch (transform) {                \
    case LMCI_KEEP:                     \
        what(LMCI_KEEP);                \
        break;                          \
    case LMCI_ROTATE:                   \
        what(LMCI_ROTATE);              \
        break;                          \
    case LMCI_XOR:                      \
        what(LMCI_XOR);                 \
        break;                          \
    case LMCI_SUBTRACT:                 \
        what(LMCI_SUBTRACT);            \
        break;                          \
    default:                            \
        what(LMCI_ZIGZAG);              \
    }

static size_t split_vectors(enum lmci_transform transform, unsigned word, const unsigned char *data,
                            const unsigned char *base, size_t count, unsigned char *const *planes)
{
    const size_t whole = word == 2 || word == 4 ? count - count % 64 : 0;
#define SPLIT_2(t) split_whole(t, 2, data, base, whole, planes)
#define SPLIT_4(t) split_whole(t, 4, data, base, whole, planes)
    if (word == 2)
        FOR_TRANSFORMS(transform, SPLIT_2)
    else if (word == 4)
        FOR_TRANSFORMS(transform, SPLIT_4)
    return whole;
}

static size_t merge_vectors(enum lmci_transform transform, unsigned word, const unsigned char *const *planes,
                            const unsigned char *base, size_t count, unsigned char *data)
{
    const size_t whole = word == 2 || word == 4 ? count - count % 64 : 0;
#define MERGE_2(t) merge_whole(t, 2, planes, base, whole, data)
#define MERGE_4(t) merge_whole(t, 4, planes, base, whole, data)
    if (word == 2)
        FOR_TRANSFORMS(transform, MERGE_2)
    else if (word == 4)
        FOR_TRANSFORMS(transform, MERGE_4)
    return whole;
}

#else

static size_t split_vectors(enum lmci_transform transform, unsigned word, const unsigned char *data,
                            const unsigned char *base, size_t count, unsigned char *const *planes)
{
    (void)transform, (void)word, (void)data, (void)base, (void)count, (void)planes;
    return 0;
}

static size_t merge_vectors(enum lmci_transform transform, unsigned word, const unsigned char *const *planes,
                            const unsigned char *base, size_t count, unsigned char *data)
{
    (void)transform, (void)word, (void)planes, (void)base, (void)count, (void)data;
    return 0;
}

#endif

static void split(enum lmci_transform transform, unsigned word, const unsigned char *data, const unsigned char *base,
                  size_t count, unsigned char *const *planes)
{
    for (size_t at = split_vectors(transform, word, data, base, count, planes); at < count; at += CHUNK) {
        size_t n = count - at < CHUNK ? count - at : CHUNK;
        split_chunk(transform, word, data + at * word, base != NULL ? base + at * word : NULL, n, planes, at);
    }
}

static void merge(enum lmci_transform transform, unsigned word, const unsigned char *const *planes,
                  const unsigned char *base, size_t count, unsigned char *data)
{
    for (size_t at = merge_vectors(transform, word, planes, base, count, data); at < count; at += CHUNK) {
        size_t n = count - at < CHUNK ? count - at : CHUNK;
        merge_chunk(transform, word, planes, at, base != NULL ? base + at * word : NULL, n, data + at * word);
    }
}
