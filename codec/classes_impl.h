/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * classes_impl.h - deals the differences of a block to classes by the base's exponent, and puts them together again.
 *
 * With AVX-512 VBMI2, 64 elements at a time: a compress, or an expand, for each class under the mask of its elements.
 * Lists are written 64 bytes at a time, so they have that much room past their ends. The plain loops take an element
 * at a time.
 */

#if defined(__AVX512VBMI2__)
#include <immintrin.h>
#endif

static inline uint32_t class_word(unsigned word, const unsigned char *from, size_t i)
{
    return word == 2 ? lmci_load16(from + 2 * i) : lmci_load32(from + 4 * i);
}

static inline unsigned class_key(unsigned word, uint32_t base)
{
    return (word == 2 ? base >> 7 : base >> 23) & 255;
}

static void class_table(const struct lmci_classes *classes, uint8_t class_of[256])
{
    unsigned class = 0;
    for (unsigned key = 0; key < 256; key++) {
        while (class + 1 < classes->count && key >= classes->first[class + 1])
            class ++;
        class_of[key] = (uint8_t) class;
    }
}

static inline int32_t class_difference(unsigned word, uint32_t x, uint32_t b)
{
    return word == 2 ? (int16_t)(uint16_t)(x - b) : (int32_t)(x - b);
}

/* Elements `from` to `to` - 1, one by one; false when there are too many outliers. */
static inline bool deal_plain(unsigned word, const unsigned char *data, const unsigned char *base, size_t from,
                              size_t to, const struct lmci_classes *classes, struct lmci_class_lists *lists,
                              size_t *outliers)
{
    uint8_t class_of[256];
    class_table(classes, class_of);
    for (size_t i = from; i < to; i++) {
        uint32_t b = class_word(word, base, i);
        int32_t d = class_difference(word, class_word(word, data, i), b);
        unsigned class = class_of[class_key(word, b)];
        unsigned shift = classes->shift[class];
        int32_t symbol = d >> shift;
        *lists->symbols[class]++ = (unsigned char)symbol;
        for (unsigned k = 0; 8 * k + 8 <= shift; k++)
            *lists->low[k]++ = (unsigned char)(d >> 8 * k);
        if (shift % 8)
            *lists->nibbles++ = (unsigned char)(d >> (shift & 24) & 15);
        if (symbol != (int8_t)symbol) {
            if (*outliers == lists->most_outliers)
                return false;
            lists->outliers[(*outliers)++] = (uint32_t)i;
        }
    }
    return true;
}

static inline void join_plain(unsigned word, const unsigned char *base, size_t from, size_t to,
                              const struct lmci_classes *classes, struct lmci_class_lists *lists, unsigned char *data)
{
    uint8_t class_of[256];
    class_table(classes, class_of);
    for (size_t i = from; i < to; i++) {
        uint32_t b = class_word(word, base, i);
        unsigned class = class_of[class_key(word, b)];
        unsigned shift = classes->shift[class];
        uint32_t d = (uint32_t)(int32_t)(int8_t)*lists->symbols[class]++ << shift;
        for (unsigned k = 0; 8 * k + 8 <= shift; k++)
            d |= (uint32_t)*lists->low[k]++ << 8 * k;
        if (shift % 8)
            d |= (uint32_t)*lists->nibbles++ << (shift & 24);
        if (word == 2)
            lmci_store16(data + 2 * i, (uint16_t)(b + d));
        else
            lmci_store32(data + 4 * i, b + d);
    }
}

#if defined(__AVX512VBMI2__)

/* Byte `which` of each of the 64 words in v. */
static inline __m512i class_bytes(unsigned word, const __m512i *v, unsigned which)
{
    const __m512i count =
        _mm512_set_epi8(63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41, 40,
                        39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,
                        15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    if (word == 2) {
        const __m512i index = _mm512_add_epi8(_mm512_add_epi8(count, count), _mm512_set1_epi8((char)which));
        return _mm512_permutex2var_epi8(v[0], index, v[1]);
    }
    const __m512i twice = _mm512_add_epi8(count, count);
    const __m512i index = _mm512_add_epi8(_mm512_add_epi8(twice, twice), _mm512_set1_epi8((char)which));
    __m512i low = _mm512_permutex2var_epi8(v[0], index, v[1]);
    __m512i high = _mm512_permutex2var_epi8(v[2], index, v[3]);
    return _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1);
}

/* The keys of 64 words. */
static inline __m512i class_keys(unsigned word, const __m512i *base)
{
    __m512i v[4];
    for (unsigned k = 0; k < word; k++)
        v[k] = word == 2 ? _mm512_slli_epi16(base[k], 1) : _mm512_slli_epi32(base[k], 1);
    return class_bytes(word, v, word - 1);
}

/* Words from bytes, extended by their sign or by zeros. */
static inline void class_widen(unsigned word, __m512i bytes, bool sign, __m512i *v)
{
    const __m256i half[2] = {_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64(bytes, 1)};
    if (word == 2) {
        for (unsigned k = 0; k < 2; k++)
            v[k] = sign ? _mm512_cvtepi8_epi16(half[k]) : _mm512_cvtepu8_epi16(half[k]);
        return;
    }
    for (unsigned k = 0; k < 4; k++) {
        __m128i part = k % 2 ? _mm256_extracti128_si256(half[k / 2], 1) : _mm256_castsi256_si128(half[k / 2]);
        v[k] = sign ? _mm512_cvtepi8_epi32(part) : _mm512_cvtepu8_epi32(part);
    }
}

/* Classes as vectors, up to a number that the loops below are unrolled for; those too many never have an element. */
struct class_vectors {
    __m512i before[LMCI_MAX_CLASSES]; /* the greatest key of the class before */
    __m512i shift[LMCI_MAX_CLASSES];
    bool low[3]; /* whether any has such a byte */
    bool nibble;
};

static void class_vectors(const struct lmci_classes *classes, struct class_vectors *v)
{
    memset(v, 0, sizeof *v);
    for (unsigned c = 0; c < LMCI_MAX_CLASSES; c++) {
        bool there = c < classes->count;
        v->before[c] = _mm512_set1_epi8((char)(there ? classes->first[c] - 1 : 255));
        v->shift[c] = _mm512_set1_epi8((char)(there ? classes->shift[c] : 0));
        v->nibble = v->nibble || (there && classes->shift[c] % 8);
        for (unsigned k = 0; k < 3; k++)
            v->low[k] = v->low[k] || (there && classes->shift[c] >= 8 * k + 8);
    }
}

/* The elements of each class, and all their shifts. */
struct class_masks {
    uint64_t of[LMCI_MAX_CLASSES];
    __m512i shift;
};

static inline __attribute__((always_inline)) void class_masks(__m512i keys, const struct class_vectors *v,
                                                              unsigned count, struct class_masks *m)
{
    uint64_t above = 0;
    m->shift = v->shift[0];
    for (unsigned c = count; c-- > 1;) {
        uint64_t from = _mm512_cmp_epu8_mask(keys, v->before[c], _MM_CMPINT_NLE);
        m->of[c] = from & ~above;
        above = from;
        m->shift = _mm512_mask_mov_epi8(m->shift, m->of[c], v->shift[c]);
    }
    m->of[0] = ~above;
}

static inline uint64_t class_has_low(__m512i shift, unsigned k)
{
    return _mm512_cmp_epu8_mask(shift, _mm512_set1_epi8((char)(8 * k + 8)), _MM_CMPINT_NLT);
}

static inline uint64_t class_has_nibble(__m512i shift)
{
    return _mm512_test_epi8_mask(shift, _mm512_set1_epi8(4));
}

static inline void class_put(uint64_t mask, __m512i bytes, unsigned char **list)
{
    _mm512_storeu_si512(*list, _mm512_maskz_compress_epi8(mask, bytes));
    *list += __builtin_popcountll(mask);
}

static inline __m512i class_take(__m512i into, uint64_t mask, unsigned char **list)
{
    __m512i bytes = _mm512_mask_expand_epi8(into, mask, _mm512_loadu_si512(*list));
    *list += __builtin_popcountll(mask);
    return bytes;
}

/* Those of 64 symbols that don't fit a byte. */
static inline uint64_t class_too_large(unsigned word, const __m512i *symbols)
{
    uint64_t large = 0;
    for (unsigned k = 0; k < word; k++) {
        uint64_t some;
        if (word == 2)
            some =
                _mm512_cmpge_epu16_mask(_mm512_add_epi16(symbols[k], _mm512_set1_epi16(128)), _mm512_set1_epi16(256));
        else
            some =
                _mm512_cmpge_epu32_mask(_mm512_add_epi32(symbols[k], _mm512_set1_epi32(128)), _mm512_set1_epi32(256));
        large |= some << (64 / word * k);
    }
    return large;
}

static inline __attribute__((always_inline)) bool deal_64(unsigned word, unsigned count, const unsigned char *data,
                                                          const unsigned char *base, size_t at,
                                                          const struct class_vectors *v, struct lmci_class_lists *lists,
                                                          size_t *outliers)
{
    __m512i b[4], d[4], wide[4];
    struct class_masks m;
    for (unsigned k = 0; k < word; k++) {
        __m512i x = _mm512_loadu_si512(data + at * word + 64 * k);
        b[k] = _mm512_loadu_si512(base + at * word + 64 * k);
        d[k] = word == 2 ? _mm512_sub_epi16(x, b[k]) : _mm512_sub_epi32(x, b[k]);
    }
    class_masks(class_keys(word, b), v, count, &m);
    for (unsigned k = 0; k < 3 && k + 1 < word; k++)
        if (v->low[k])
            class_put(class_has_low(m.shift, k), class_bytes(word, d, k), &lists->low[k]);
    if (v->nibble) {
        __m512i s[4];
        class_widen(word, _mm512_and_si512(m.shift, _mm512_set1_epi8(24)), false, wide);
        for (unsigned k = 0; k < word; k++)
            s[k] = word == 2 ? _mm512_srlv_epi16(d[k], wide[k]) : _mm512_srlv_epi32(d[k], wide[k]);
        __m512i nibbles = _mm512_and_si512(class_bytes(word, s, 0), _mm512_set1_epi8(15));
        class_put(class_has_nibble(m.shift), nibbles, &lists->nibbles);
    }
    class_widen(word, m.shift, false, wide);
    for (unsigned k = 0; k < word; k++)
        d[k] = word == 2 ? _mm512_srav_epi16(d[k], wide[k]) : _mm512_srav_epi32(d[k], wide[k]);
    __m512i symbols = class_bytes(word, d, 0);
    for (unsigned c = 0; c < count; c++)
        class_put(m.of[c], symbols, &lists->symbols[c]);
    for (uint64_t large = class_too_large(word, d); __builtin_expect(large != 0, 0); large &= large - 1) {
        if (*outliers == lists->most_outliers)
            return false;
        lists->outliers[(*outliers)++] = (uint32_t)(at + (size_t)__builtin_ctzll(large));
    }
    return true;
}

static inline __attribute__((always_inline)) void join_64(unsigned word, unsigned count, const unsigned char *base,
                                                          size_t at, const struct class_vectors *v,
                                                          struct lmci_class_lists *lists, unsigned char *data)
{
    __m512i b[4], d[4], part[4], wide[4];
    struct class_masks m;
    for (unsigned k = 0; k < word; k++)
        b[k] = _mm512_loadu_si512(base + at * word + 64 * k);
    class_masks(class_keys(word, b), v, count, &m);
    __m512i symbols = _mm512_setzero_si512();
    for (unsigned c = 0; c < count; c++)
        symbols = class_take(symbols, m.of[c], &lists->symbols[c]);
    class_widen(word, symbols, true, d);
    class_widen(word, m.shift, false, wide);
    for (unsigned k = 0; k < word; k++)
        d[k] = word == 2 ? _mm512_sllv_epi16(d[k], wide[k]) : _mm512_sllv_epi32(d[k], wide[k]);
    for (unsigned i = 0; i < 3 && i + 1 < word; i++) {
        if (!v->low[i])
            continue;
        class_widen(word, class_take(_mm512_setzero_si512(), class_has_low(m.shift, i), &lists->low[i]), false, part);
        for (unsigned k = 0; k < word; k++)
            d[k] = _mm512_or_si512(d[k], word == 2 ? part[k] : _mm512_slli_epi32(part[k], 8 * i));
    }
    if (v->nibble) {
        class_widen(word, class_take(_mm512_setzero_si512(), class_has_nibble(m.shift), &lists->nibbles), false, part);
        class_widen(word, _mm512_and_si512(m.shift, _mm512_set1_epi8(24)), false, wide);
        for (unsigned k = 0; k < word; k++)
            d[k] = _mm512_or_si512(d[k], word == 2 ? _mm512_sllv_epi16(part[k], wide[k])
                                                   : _mm512_sllv_epi32(part[k], wide[k]));
    }
    for (unsigned k = 0; k < word; k++)
        _mm512_storeu_si512(data + at * word + 64 * k,
                            word == 2 ? _mm512_add_epi16(b[k], d[k]) : _mm512_add_epi32(b[k], d[k]));
}

/* All whole vectors; `word` and `count` are constants where this is called. */
static inline __attribute__((always_inline)) bool deal_vectors(unsigned word, unsigned count, const unsigned char *data,
                                                               const unsigned char *base, size_t n,
                                                               const struct class_vectors *v,
                                                               struct lmci_class_lists *lists, size_t *outliers)
{
    for (size_t at = 0; at + 64 <= n; at += 64)
        if (!deal_64(word, count, data, base, at, v, lists, outliers))
            return false;
    return true;
}

static inline __attribute__((always_inline)) void join_vectors(unsigned word, unsigned count, const unsigned char *base,
                                                               size_t n, const struct class_vectors *v,
                                                               struct lmci_class_lists *lists, unsigned char *data)
{
    for (size_t at = 0; at + 64 <= n; at += 64)
        join_64(word, count, base, at, v, lists, data);
}

static bool deal_whole(unsigned word, const unsigned char *data, const unsigned char *base, size_t n,
                       const struct lmci_classes *classes, struct lmci_class_lists *lists, size_t *outliers)
{
    struct class_vectors v;
    struct lmci_class_lists own = *lists;
    bool fine;
    class_vectors(classes, &v);
    if (word == 2)
        fine = classes->count <= 4   ? deal_vectors(2, 4, data, base, n, &v, &own, outliers)
               : classes->count <= 8 ? deal_vectors(2, 8, data, base, n, &v, &own, outliers)
                                     : deal_vectors(2, 16, data, base, n, &v, &own, outliers);
    else
        fine = classes->count <= 4   ? deal_vectors(4, 4, data, base, n, &v, &own, outliers)
               : classes->count <= 8 ? deal_vectors(4, 8, data, base, n, &v, &own, outliers)
                                     : deal_vectors(4, 16, data, base, n, &v, &own, outliers);
    *lists = own;
    return fine;
}

static void join_whole(unsigned word, const unsigned char *base, size_t n, const struct lmci_classes *classes,
                       struct lmci_class_lists *lists, unsigned char *data)
{
    struct class_vectors v;
    struct lmci_class_lists own = *lists;
    class_vectors(classes, &v);
    if (word == 2 && classes->count <= 4)
        join_vectors(2, 4, base, n, &v, &own, data);
    else if (word == 2 && classes->count <= 8)
        join_vectors(2, 8, base, n, &v, &own, data);
    else if (word == 2)
        join_vectors(2, 16, base, n, &v, &own, data);
    else if (classes->count <= 4)
        join_vectors(4, 4, base, n, &v, &own, data);
    else if (classes->count <= 8)
        join_vectors(4, 8, base, n, &v, &own, data);
    else
        join_vectors(4, 16, base, n, &v, &own, data);
    *lists = own;
}

#endif

static size_t class_deal(unsigned word, const unsigned char *data, const unsigned char *base, size_t n,
                         const struct lmci_classes *classes, struct lmci_class_lists *lists)
{
    size_t outliers = 0;
    size_t done = 0;
#if defined(__AVX512VBMI2__)
    done = n - n % 64;
    if (!deal_whole(word, data, base, n, classes, lists, &outliers))
        return SIZE_MAX;
#endif
    bool dealt = word == 2 ? deal_plain(2, data, base, done, n, classes, lists, &outliers)
                           : deal_plain(4, data, base, done, n, classes, lists, &outliers);
    return dealt ? outliers : SIZE_MAX;
}

static void class_join(unsigned word, const unsigned char *base, size_t n, const struct lmci_classes *classes,
                       struct lmci_class_lists *lists, unsigned char *data)
{
    size_t done = 0;
#if defined(__AVX512VBMI2__)
    done = n - n % 64;
    join_whole(word, base, n, classes, lists, data);
#endif
    if (word == 2)
        join_plain(2, base, done, n, classes, lists, data);
    else
        join_plain(4, base, done, n, classes, lists, data);
}

/* ---- Half bytes ------------------------------------------------------------------------------------------------ */

static void pack_nibbles(const unsigned char *restrict nibbles, size_t n, unsigned char *restrict packed)
{
    for (size_t i = 0; i < n / 2; i++)
        packed[i] = (unsigned char)(nibbles[2 * i] | nibbles[2 * i + 1] << 4);
    if (n % 2)
        packed[n / 2] = nibbles[n - 1];
}

static void unpack_nibbles(const unsigned char *restrict packed, size_t n, unsigned char *restrict nibbles)
{
    for (size_t i = 0; i < n / 2; i++) {
        nibbles[2 * i] = packed[i] & 15;
        nibbles[2 * i + 1] = packed[i] >> 4;
    }
    if (n % 2)
        nibbles[n - 1] = packed[n / 2] & 15;
}
