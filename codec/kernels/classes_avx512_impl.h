/* SPDX-License-Identifier: BSD-3-Clause */
/* classes_avx512_impl.h - 64 elements by AVX-512 VBMI2: each class is compressed or expanded under its mask. */

static inline __m512i class_keys(unsigned word, const __m512i *base)
{
    __m512i v[4];
    for (unsigned k = 0; k < word; k++)
        v[k] = word == 2 ? _mm512_slli_epi16(base[k], 1) : _mm512_slli_epi32(base[k], 1);
    return word_bytes(word, v, word - 1);
}

static inline void class_widen(unsigned word, __m512i bytes, __m512i *v)
{
    const __m256i half[2] = {_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64(bytes, 1)};
    for (unsigned k = 0; k < word; k++) {
        if (word == 2)
            v[k] = _mm512_cvtepu8_epi16(half[k]);
        else
            v[k] = _mm512_cvtepu8_epi32(k % 2 != 0 ? _mm256_extracti128_si256(half[k / 2], 1)
                                                   : _mm256_castsi256_si128(half[k / 2]));
    }
}

struct class_vectors {
    unsigned count;
    __m512i class[4]; /* of each key */
    __m512i up;       /* by class, in every lane: class_key's `up` */
    __m512i below;    /* by class: lists below symbols */
    bool low[3];      /* whether any class has it */
    bool nibble[3];   /* ... or half of it */
};

/* Flags of `below`: bit k for low byte k, bit 4 + k for half of it. */
#define CLASS_LOW(k)    (1u << (k))
#define CLASS_NIBBLE(k) (16u << (k))

static void class_vectors(unsigned word, const struct lmci_classes *classes, struct class_vectors *v)
{
    uint8_t class[256] = {0}, up[16] = {0}, below[16] = {0};
    for (unsigned c = 1; c < classes->count; c++)
        memset(class + classes->first[c], (int)c, 256u - classes->first[c]);
    memset(v, 0, sizeof *v);
    v->count = classes->count;
    for (unsigned c = 0; c < classes->count; c++) {
        const unsigned shift = classes->shift[c];
        up[c] = (uint8_t)(8 * word - 8 - shift);
        for (unsigned k = 0; k < 3; k++) {
            below[c] |= (uint8_t)(shift >= 8 * k + 8 ? CLASS_LOW(k) : shift == 8 * k + 4 ? CLASS_NIBBLE(k) : 0);
            v->low[k] = v->low[k] || shift >= 8 * k + 8;
            v->nibble[k] = v->nibble[k] || shift == 8 * k + 4;
        }
    }
    for (unsigned k = 0; k < 4; k++)
        v->class[k] = _mm512_loadu_si512(class + 64 * k);
    v->up = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)up));
    v->below = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)below));
}

static inline __m512i classes_of(__m512i keys, const struct class_vectors *v)
{
    __m512i low = _mm512_permutex2var_epi8(v->class[0], keys, v -> class[1]);
    __m512i high = _mm512_permutex2var_epi8(v->class[2], keys, v -> class[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(keys), low, high);
}

static inline uint64_t class_mask(__m512i classes, unsigned c)
{
    return _mm512_cmpeq_epi8_mask(classes, _mm512_set1_epi8((char)c));
}

static inline uint64_t class_has(__m512i below, unsigned flag)
{
    return _mm512_test_epi8_mask(below, _mm512_set1_epi8((char)flag));
}

static inline void class_put(uint64_t mask, __m512i bytes, unsigned char **list)
{
    _mm512_storeu_si512(*list, compress_bytes(mask, bytes));
    *list += __builtin_popcountll(mask);
}

/* Fills set bits with the list's next bytes. */
static inline __m512i class_fill(__m512i bytes, uint64_t mask, unsigned char **list)
{
    bytes = _mm512_mask_expand_epi8(bytes, mask, _mm512_loadu_si512(*list));
    *list += __builtin_popcountll(mask);
    return bytes;
}

static inline __m512i class_take(uint64_t mask, unsigned char **list)
{
    return class_fill(fresh_zero(), mask, list);
}

static inline void class_put_outliers(unsigned word, uint64_t marked, const unsigned char *data,
                                      struct lmci_class_lists *lists)
{
    for (unsigned k = 0; k < word; k++) {
        const uint64_t some = word == 2 ? marked >> 32 * k & 0xffffffff : marked >> 16 * k & 0xffff;
        const __m512i x = _mm512_loadu_si512(data + 64 * k);
        __m512i kept = word == 2 ? _mm512_mask_compress_epi16(fresh_zero(), (__mmask32)some, x)
                                 : _mm512_mask_compress_epi32(fresh_zero(), (__mmask16)some, x);
        _mm512_storeu_si512(lists->outliers, kept);
        lists->outliers += word * (size_t)__builtin_popcountll(some);
    }
}

static inline void class_take_outliers(unsigned word, uint64_t marked, __m512i *x, struct lmci_class_lists *lists)
{
    for (unsigned k = 0; k < word; k++) {
        const uint64_t some = word == 2 ? marked >> 32 * k & 0xffffffff : marked >> 16 * k & 0xffff;
        __m512i kept = _mm512_loadu_si512(lists->outliers);
        x[k] = word == 2 ? _mm512_mask_expand_epi16(x[k], (__mmask32)some, kept)
                         : _mm512_mask_expand_epi32(x[k], (__mmask16)some, kept);
        lists->outliers += word * (size_t)__builtin_popcountll(some);
    }
}

/* Returns the outliers, whose words it does not put. */
static inline __attribute__((always_inline)) uint64_t deal_64(unsigned word, unsigned count, const unsigned char *data,
                                                              const unsigned char *base, size_t at,
                                                              const struct class_vectors *v,
                                                              struct lmci_class_lists *lists)
{
    __m512i b[4], up[4], raised[4];
    const __m512i mark =
        word == 2 ? _mm512_set1_epi16((short)(LMCI_MARK << 8)) : _mm512_set1_epi32((int)(LMCI_MARK << 24));
    for (unsigned k = 0; k < word; k++)
        b[k] = _mm512_loadu_si512(base + at * word + 64 * k);
    const __m512i classes = classes_of(class_keys(word, b), v);
    const __m512i below = _mm512_shuffle_epi8(v->below, classes);
    class_widen(word, _mm512_shuffle_epi8(v->up, classes), up);
    for (unsigned k = 0; k < word; k++) {
        const __m512i x = _mm512_loadu_si512(data + at * word + 64 * k);
        if (word == 2) {
            __m512i d = _mm512_sub_epi16(x, b[k]);
            raised[k] = _mm512_sllv_epi16(d, up[k]);
            __mmask32 large = _mm512_cmpneq_epi16_mask(d, _mm512_srav_epi16(raised[k], up[k]));
            raised[k] = _mm512_mask_mov_epi16(raised[k], large, mark);
        } else {
            __m512i d = _mm512_sub_epi32(x, b[k]);
            raised[k] = _mm512_sllv_epi32(d, up[k]);
            __mmask16 large = _mm512_cmpneq_epi32_mask(d, _mm512_srav_epi32(raised[k], up[k]));
            raised[k] = _mm512_mask_mov_epi32(raised[k], large, mark);
        }
    }
    const __m512i symbols = word_bytes(word, raised, word - 1);
    const uint64_t marked = class_mask(symbols, LMCI_MARK);
    for (unsigned c = 0; c < count; c++)
        class_put(class_mask(classes, c), symbols, &lists->symbols[c]);
    __m512i nibbles = _mm512_setzero_si512();
    uint64_t with_nibble = 0;
    for (unsigned k = 0; k + 1 < word; k++) {
        if (!v->low[k] && !v->nibble[k])
            continue;
        __m512i low = word_bytes(word, raised, word - 2 - k);
        if (v->low[k])
            class_put(class_has(below, CLASS_LOW(k)) & ~marked, low, &lists->low[k]);
        if (v->nibble[k]) {
            uint64_t mask = class_has(below, CLASS_NIBBLE(k)) & ~marked;
            nibbles = _mm512_mask_mov_epi8(nibbles, mask, low);
            with_nibble |= mask;
        }
    }
    if (v->nibble[0] || v->nibble[1] || v->nibble[2])
        class_put(with_nibble, _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), _mm512_set1_epi8(15)), &lists->nibbles);
    return marked;
}

static inline __attribute__((always_inline)) void join_64(unsigned word, unsigned count, const unsigned char *base,
                                                          size_t at, const struct class_vectors *v,
                                                          struct lmci_class_lists *lists, unsigned char *data)
{
    __m512i x[4], b[4], up[4], raised[4], planes[4];
    for (unsigned k = 0; k < word; k++)
        b[k] = _mm512_loadu_si512(base + at * word + 64 * k);
    const __m512i classes = classes_of(class_keys(word, b), v);
    const __m512i below = _mm512_shuffle_epi8(v->below, classes);
    __m512i symbols = _mm512_setzero_si512();
    for (unsigned c = 0; c < count; c++)
        symbols = _mm512_or_si512(symbols, class_take(class_mask(classes, c), &lists->symbols[c]));
    planes[word - 1] = symbols;
    const uint64_t marked = class_mask(symbols, LMCI_MARK);
    __m512i nibbles = _mm512_setzero_si512();
    if (v->nibble[0] || v->nibble[1] || v->nibble[2]) {
        uint64_t mask = class_has(below, CLASS_NIBBLE(0) | CLASS_NIBBLE(1) | CLASS_NIBBLE(2)) & ~marked;
        nibbles = _mm512_slli_epi16(class_take(mask, &lists->nibbles), 4);
    }
    for (unsigned k = 0; k + 1 < word; k++) {
        __m512i low = _mm512_setzero_si512();
        if (v->low[k])
            low = class_take(class_has(below, CLASS_LOW(k)) & ~marked, &lists->low[k]);
        if (v->nibble[k])
            low = _mm512_mask_mov_epi8(low, class_has(below, CLASS_NIBBLE(k)), nibbles);
        planes[word - 2 - k] = low;
    }
    word_weave(word, planes, raised);
    class_widen(word, _mm512_shuffle_epi8(v->up, classes), up);
    for (unsigned k = 0; k < word; k++)
        x[k] = word == 2 ? _mm512_add_epi16(b[k], _mm512_srav_epi16(raised[k], up[k]))
                         : _mm512_add_epi32(b[k], _mm512_srav_epi32(raised[k], up[k]));
    if (word == 2 || marked != 0) /* so often in short words that the branch would be mispredicted */
        class_take_outliers(word, marked, x, lists);
    for (unsigned k = 0; k < word; k++)
        _mm512_storeu_si512(data + at * word + 64 * k, x[k]);
}

/* Prefetches line `k` of a vector at some distance: hardware stops at the end of a page. Addresses past the end are
 * harmless. A macro, since gcc removes calls of functions that only prefetch. */
#define CLASS_AHEAD(from, word, at, k) \
    _mm_prefetch((const char *)((uintptr_t)(from) + (at) * (word) + 64 * (k) + DEAL_AHEAD), _MM_HINT_T0)

/* Callers pass constants for `word` and `count`; `n` is at most DEAL_PIECE. */
static inline __attribute__((always_inline)) void deal_vectors(unsigned word, unsigned count, const unsigned char *data,
                                                               const unsigned char *base, size_t n,
                                                               const struct class_vectors *v,
                                                               struct lmci_class_lists *lists)
{
    uint64_t marked[DEAL_PIECE / 64];
    unsigned with = 0;
    for (size_t at = 0; at < n; at += 64) {
        for (unsigned k = 0; k < word; k++) {
            CLASS_AHEAD(data, word, at, k);
            CLASS_AHEAD(base, word, at, k);
        }
        marked[at / 64] = deal_64(word, count, data, base, at, v, lists);
        with += marked[at / 64] != 0;
    }
    for (size_t at = 0; with != 0 && at < n; at += 64)
        if (with >= OUTLIERS_OFTEN || marked[at / 64] != 0)
            class_put_outliers(word, marked[at / 64], data + at * word, lists);
}

static inline __attribute__((always_inline)) void join_vectors(unsigned word, unsigned count, const unsigned char *base,
                                                               size_t n, const struct class_vectors *v,
                                                               struct lmci_class_lists *lists, unsigned char *data)
{
    for (size_t at = 0; at < n; at += 64)
        join_64(word, count, base, at, v, lists, data);
}

/* Unrolls for usual numbers of classes; extra classes are empty. */
#define FOR_CLASSES(how_many, what) \
    switch (how_many) {             \
    case 1:                         \
    case 2:                         \
        what(2);                    \
        break;                      \
    case 3:                         \
        what(3);                    \
        break;                      \
    case 4:                         \
        what(4);                    \
        break;                      \
    case 5:                         \
        what(5);                    \
        break;                      \
    case 6:                         \
        what(6);                    \
        break;                      \
    case 7:                         \
        what(7);                    \
        break;                      \
    case 8:                         \
        what(8);                    \
        break;                      \
    default:                        \
        what(16);                   \
    }

/* The same for words of 2 bytes, of which few are not dealt by classes_short_impl.h. */
#define FOR_CLASSES_OF_2(how_many, what) \
    if ((how_many) <= 4)                 \
        what(4);                         \
    else if ((how_many) <= 8)            \
        what(8);                         \
    else                                 \
        what(16)

#include "kernels/classes_short_impl.h"

static void deal_whole(unsigned word, const unsigned char *data, const unsigned char *base, size_t n,
                       const struct class_vectors *v, struct lmci_class_lists *lists)
{
    struct lmci_class_lists own = *lists;
#define DEAL_2(count) deal_vectors(2, count, data, base, n, v, &own)
#define DEAL_4(count) deal_vectors(4, count, data, base, n, v, &own)
    if (word == 2) {
        FOR_CLASSES_OF_2(v->count, DEAL_2);
    } else {
        FOR_CLASSES(v->count, DEAL_4)
    }
    *lists = own;
}

#define CLASS_VECTOR 64
