/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * classes_avx2_impl.h - classes with AVX2 and BMI2, 32 elements at a time.
 *
 * Halves of a vector of words are 16 elements apart, so packing to bytes preserves order.
 */
#include "kernels/bmi2_impl.h"

struct class_vectors {
    unsigned count;
    __m256i last[LMCI_MAX_CLASSES + 1]; /* last key before each class, then the last of all; as lane_keys() */
    __m256i up;                         /* class_key's `up` */
    __m256i low[3];                     /* by class, all ones or zeros: has low byte k */
    __m256i nibble[3];                  /* ... or only half of that byte */
    __m256i half;                       /* any of these three */
    bool any_low[3], any_nibble[3], any_half;
    bool all_low[3], all_half; /* whether all classes have it, so that no mask is needed */
};

static inline __m256i class_table(const uint8_t table[16])
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
}

static void class_vectors(unsigned word, const struct lmci_classes *classes, struct class_vectors *v)
{
    uint8_t up[16] = {0}, half[16] = {0}, low[3][16] = {{0}}, nibble[3][16] = {{0}};
    *v = (struct class_vectors){.count = classes->count, .all_low = {true, true, true}, .all_half = true};
    for (unsigned c = 0; c < classes->count; c++) {
        const unsigned shift = classes->shift[c];
        v->last[c] = _mm256_set1_epi8((char)(uint8_t)(classes->first[c] - 129));
        up[c] = (uint8_t)(8 * word - 8 - shift);
        half[c] = shift % 8 != 0 ? 255 : 0;
        v->any_half = v->any_half || half[c] != 0;
        v->all_half = v->all_half && half[c] != 0;
        for (unsigned k = 0; k < 3; k++) {
            low[k][c] = shift >= 8 * k + 8 ? 255 : 0;
            nibble[k][c] = shift == 8 * k + 4 ? 255 : 0;
            v->any_low[k] = v->any_low[k] || low[k][c] != 0;
            v->all_low[k] = v->all_low[k] && low[k][c] != 0;
            v->any_nibble[k] = v->any_nibble[k] || nibble[k][c] != 0;
        }
    }
    v->last[classes->count] = _mm256_set1_epi8(127);
    v->up = class_table(up);
    v->half = class_table(half);
    for (unsigned k = 0; k < 3; k++) {
        v->low[k] = class_table(low[k]);
        v->nibble[k] = class_table(nibble[k]);
    }
}

/* ---- Words and bytes ------------------------------------------------------------------------------------------- */

static inline void lane_load(unsigned word, const unsigned char *from, __m256i *v)
{
    for (unsigned k = 0; k < word; k++) {
        const __m128i *at = (const __m128i *)(const void *)(from + 16 * k);
        v[k] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(at)), _mm_loadu_si128(at + word), 1);
    }
}

static inline void lane_store(unsigned word, unsigned char *to, const __m256i *v)
{
    for (unsigned k = 0; k < word; k++) {
        __m128i *at = (__m128i *)(void *)(to + 16 * k);
        _mm_storeu_si128(at, _mm256_castsi256_si128(v[k]));
        _mm_storeu_si128(at + word, _mm256_extracti128_si256(v[k], 1));
    }
}

/* Returns keys less 128, since comparisons are of signed bytes. */
static inline __m256i lane_keys(unsigned word, const __m256i *base)
{
    __m256i keys;
    if (word == 2) {
        const __m256i byte = _mm256_set1_epi16(255);
        keys = _mm256_packus_epi16(_mm256_and_si256(_mm256_srli_epi16(base[0], 7), byte),
                                   _mm256_and_si256(_mm256_srli_epi16(base[1], 7), byte));
    } else {
        __m256i k[4];
        for (unsigned i = 0; i < 4; i++)
            k[i] = _mm256_srli_epi32(_mm256_slli_epi32(base[i], 1), 24);
        keys = _mm256_packus_epi16(_mm256_packus_epi32(k[0], k[1]), _mm256_packus_epi32(k[2], k[3]));
    }
    return _mm256_xor_si256(keys, _mm256_set1_epi8(-128));
}

/* Packs words that are all ones or all zeros. */
static inline __m256i lane_flags(unsigned word, const __m256i *v)
{
    if (word == 2)
        return _mm256_packs_epi16(v[0], v[1]);
    return _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
}

/* 4-byte words: planes[0] has the lowest bytes. */
static inline void lane_split(const __m256i *v, __m256i *planes)
{
    const __m256i together = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5,
                                              9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256i t[4];
    for (unsigned k = 0; k < 4; k++)
        t[k] = _mm256_shuffle_epi8(v[k], together);
    for (unsigned k = 0; k < 2; k++) {
        __m256i low = k != 0 ? _mm256_unpackhi_epi32(t[0], t[1]) : _mm256_unpacklo_epi32(t[0], t[1]);
        __m256i high = k != 0 ? _mm256_unpackhi_epi32(t[2], t[3]) : _mm256_unpacklo_epi32(t[2], t[3]);
        planes[2 * k] = _mm256_unpacklo_epi64(low, high);
        planes[2 * k + 1] = _mm256_unpackhi_epi64(low, high);
    }
}

static inline void lane_weave(const __m256i *planes, __m256i *v)
{
    for (unsigned k = 0; k < 2; k++) {
        __m256i low = k != 0 ? _mm256_unpackhi_epi8(planes[0], planes[1]) : _mm256_unpacklo_epi8(planes[0], planes[1]);
        __m256i high = k != 0 ? _mm256_unpackhi_epi8(planes[2], planes[3]) : _mm256_unpacklo_epi8(planes[2], planes[3]);
        v[2 * k] = _mm256_unpacklo_epi16(low, high);
        v[2 * k + 1] = _mm256_unpackhi_epi16(low, high);
    }
}

static inline void lane_widen(__m256i bytes, __m256i *v)
{
    const __m256i planes[4] = {bytes, _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    lane_weave(planes, v);
}

/* ---- Dealing --------------------------------------------------------------------------------------------------- */

#define CLASS_CHUNK 16 /* vectors of 32 elements, for the first-level cache */

struct class_chunk {
    struct bytes_32 masks[LMCI_MAX_CLASSES][CLASS_CHUNK]; /* elements of each class */
    struct bytes_32 symbols[CLASS_CHUNK];
};

static inline __m256i chunk_classes(__m256i keys, const struct class_vectors *v, struct class_chunk *chunk, size_t i)
{
    __m256i class = _mm256_setzero_si256();
    __m256i reach = _mm256_set1_epi8(-1); /* classes from this one on */
    for (unsigned c = 1; c < v->count; c++) {
        __m256i next = _mm256_cmpgt_epi8(keys, v->last[c]);
        chunk->masks[c - 1][i] = bytes_32(_mm256_andnot_si256(next, reach));
        class = _mm256_sub_epi8(class, next);
        reach = next;
    }
    chunk->masks[v->count - 1][i] = bytes_32(reach);
    return class;
}

static inline void lane_pair(__m256i low, __m256i high, __m256i v[2])
{
    v[0] = _mm256_unpacklo_epi8(low, high);
    v[1] = _mm256_unpackhi_epi8(low, high);
}

/* Returns symbols, bytes below (planes[0] first), and the mask of elements that are no outliers. */
static inline __m256i symbols_2(const __m256i *x, const __m256i *b, const struct class_vectors *v, __m256i class,
                                __m256i *planes)
{
    const __m256i byte = _mm256_set1_epi16(255);
    __m256i has[2], d[2], s[2], flags[2];
    for (unsigned k = 0; k < 2; k++)
        s[k] = d[k] = _mm256_sub_epi16(x[k], b[k]);
    if (v->any_half) {
        lane_pair(_mm256_shuffle_epi8(v->half, class), _mm256_shuffle_epi8(v->half, class), has);
        for (unsigned k = 0; k < 2; k++)
            s[k] = _mm256_blendv_epi8(s[k], _mm256_srai_epi16(d[k], 4), has[k]);
    }
    if (v->any_low[0]) {
        lane_pair(_mm256_shuffle_epi8(v->low[0], class), _mm256_shuffle_epi8(v->low[0], class), has);
        for (unsigned k = 0; k < 2; k++)
            s[k] = _mm256_blendv_epi8(s[k], _mm256_srai_epi16(d[k], 8), has[k]);
    }
    for (unsigned k = 0; k < 2; k++) {
        __m256i moved = _mm256_add_epi16(s[k], _mm256_set1_epi16(127));
        flags[k] = _mm256_cmpeq_epi16(_mm256_min_epu16(moved, _mm256_set1_epi16(254)), moved);
    }
    planes[0] = _mm256_packus_epi16(_mm256_and_si256(d[0], byte), _mm256_and_si256(d[1], byte));
    planes[1] = _mm256_packs_epi16(s[0], s[1]);
    return lane_flags(2, flags);
}

static inline __m256i symbols_4(const __m256i *x, const __m256i *b, const struct class_vectors *v, __m256i class,
                                __m256i *planes)
{
    __m256i up[4], raised[4], flags[4];
    lane_widen(_mm256_shuffle_epi8(v->up, class), up);
    for (unsigned k = 0; k < 4; k++) {
        __m256i d = _mm256_sub_epi32(x[k], b[k]);
        raised[k] = _mm256_sllv_epi32(d, up[k]);
        flags[k] = _mm256_cmpeq_epi32(d, _mm256_srav_epi32(raised[k], up[k]));
    }
    lane_split(raised, planes);
    return _mm256_andnot_si256(_mm256_cmpeq_epi8(planes[3], _mm256_set1_epi8((char)LMCI_MARK)), lane_flags(4, flags));
}

static inline void deal_low(unsigned word, const __m256i *planes, __m256i usual, const struct class_vectors *v,
                            __m256i class, struct lmci_class_lists *lists)
{
    const bool whole = _mm256_movemask_epi8(usual) == -1;
    __m256i nibbles = _mm256_setzero_si256();
    for (unsigned k = 0; k + 1 < word; k++) {
        const __m256i plane = planes[word - 2 - k];
        if (whole && v->all_low[k])
            put_all(plane, &lists->low[k]);
        else if (v->any_low[k])
            put_masked(_mm256_and_si256(usual, _mm256_shuffle_epi8(v->low[k], class)), plane, &lists->low[k]);
        if (v->any_nibble[k])
            nibbles = _mm256_blendv_epi8(nibbles, plane, _mm256_shuffle_epi8(v->nibble[k], class));
    }
    if (!v->any_half)
        return;
    /* Differences of two bytes were not raised. */
    nibbles = _mm256_and_si256(word == 2 ? nibbles : _mm256_srli_epi16(nibbles, 4), _mm256_set1_epi8(15));
    if (whole && v->all_half)
        put_all(nibbles, &lists->nibbles);
    else
        put_masked(_mm256_and_si256(usual, _mm256_shuffle_epi8(v->half, class)), nibbles, &lists->nibbles);
}

static inline __attribute__((always_inline)) void deal_32(unsigned word, const unsigned char *data,
                                                          const unsigned char *base, const struct class_vectors *v,
                                                          struct class_chunk *chunk, size_t i,
                                                          struct lmci_class_lists *lists)
{
    __m256i x[4], b[4], planes[4];
    lane_load(word, data, x);
    lane_load(word, base, b);
    const __m256i class = chunk_classes(lane_keys(word, b), v, chunk, i);
    const __m256i usual = word == 2 ? symbols_2(x, b, v, class, planes) : symbols_4(x, b, v, class, planes);
    const __m256i mark = _mm256_set1_epi8((char)LMCI_MARK);
    chunk->symbols[i] = bytes_32(_mm256_blendv_epi8(mark, planes[word - 1], usual));
    deal_low(word, planes, usual, v, class, lists);
    for (uint32_t large = ~(uint32_t)_mm256_movemask_epi8(usual); large != 0; large &= large - 1) {
        class_store(word, lists->outliers, 0, class_word(word, data, (size_t)__builtin_ctz(large)));
        lists->outliers += word;
    }
}

static inline void deal_symbols(size_t vectors, unsigned count, const struct class_chunk *chunk,
                                struct lmci_class_lists *lists)
{
    unsigned c = 0;
    for (; c + 1 < count; c += 2) {
        unsigned char *first = lists->symbols[c], *second = lists->symbols[c + 1];
        for (size_t i = 0; i < vectors; i++) {
            const struct bytes_32 symbols = chunk->symbols[i];
            put_32(&chunk->masks[c][i], &symbols, &first);
            put_32(&chunk->masks[c + 1][i], &symbols, &second);
        }
        lists->symbols[c] = first;
        lists->symbols[c + 1] = second;
    }
    for (size_t i = 0; c < count && i < vectors; i++)
        put_32(&chunk->masks[c][i], &chunk->symbols[i], &lists->symbols[c]);
}

static inline __attribute__((always_inline)) void deal_chunk(unsigned word, const unsigned char *data,
                                                             const unsigned char *base, size_t vectors,
                                                             const struct class_vectors *v, struct class_chunk *chunk,
                                                             struct lmci_class_lists *lists)
{
    for (size_t i = 0; i < vectors; i++)
        deal_32(word, data + 32 * word * i, base + 32 * word * i, v, chunk, i, lists);
    deal_symbols(vectors, v->count, chunk, lists);
}

/* ---- Joining --------------------------------------------------------------------------------------------------- */

static inline void join_low(unsigned word, __m256i *planes, __m256i usual, const struct class_vectors *v, __m256i class,
                            struct lmci_class_lists *lists)
{
    const bool whole = _mm256_movemask_epi8(usual) == -1;
    __m256i nibbles = _mm256_setzero_si256();
    if (v->any_half) {
        nibbles = whole && v->all_half
                      ? take_all(&lists->nibbles)
                      : take_masked(_mm256_and_si256(usual, _mm256_shuffle_epi8(v->half, class)), &lists->nibbles);
        nibbles = _mm256_slli_epi16(nibbles, 4);
    }
    for (unsigned k = 0; k + 1 < word; k++) {
        __m256i low = _mm256_setzero_si256();
        if (whole && v->all_low[k])
            low = take_all(&lists->low[k]);
        else if (v->any_low[k])
            low = take_masked(_mm256_and_si256(usual, _mm256_shuffle_epi8(v->low[k], class)), &lists->low[k]);
        if (v->any_nibble[k])
            low = _mm256_or_si256(low, _mm256_and_si256(nibbles, _mm256_shuffle_epi8(v->nibble[k], class)));
        planes[word - 2 - k] = low;
    }
}

static inline void sums_2(const __m256i *planes, const __m256i *b, const struct class_vectors *v, __m256i class,
                          __m256i *x)
{
    __m256i raised[2], has[2];
    lane_pair(planes[0], planes[1], raised);
    for (unsigned k = 0; k < 2; k++)
        x[k] = _mm256_srai_epi16(raised[k], 8);
    if (v->any_half) {
        lane_pair(_mm256_shuffle_epi8(v->half, class), _mm256_shuffle_epi8(v->half, class), has);
        for (unsigned k = 0; k < 2; k++)
            x[k] = _mm256_blendv_epi8(x[k], _mm256_srai_epi16(raised[k], 4), has[k]);
    }
    if (v->any_low[0]) {
        lane_pair(_mm256_shuffle_epi8(v->low[0], class), _mm256_shuffle_epi8(v->low[0], class), has);
        for (unsigned k = 0; k < 2; k++)
            x[k] = _mm256_blendv_epi8(x[k], raised[k], has[k]);
    }
    for (unsigned k = 0; k < 2; k++)
        x[k] = _mm256_add_epi16(x[k], b[k]);
}

static inline void sums_4(const __m256i *planes, const __m256i *b, const struct class_vectors *v, __m256i class,
                          __m256i *x)
{
    __m256i up[4], raised[4];
    lane_weave(planes, raised);
    lane_widen(_mm256_shuffle_epi8(v->up, class), up);
    for (unsigned k = 0; k < 4; k++)
        x[k] = _mm256_add_epi32(_mm256_srav_epi32(raised[k], up[k]), b[k]);
}

/* Takes symbols from the lists of their classes. Also computes classes: keys above last[class] up to last[class + 1],
 * signed. */
static inline __m256i join_symbols(__m256i keys, unsigned count, const __m256i *last, unsigned char **lists,
                                   __m256i *class)
{
    __m256i symbols = _mm256_setzero_si256();
    __m256i reach = _mm256_set1_epi8(-1); /* classes from this one on */
    unsigned c = 0;
    *class = symbols;
    for (; c + 1 < count; c += 2) {
        const __m256i second = _mm256_cmpgt_epi8(keys, last[c + 1]), third = _mm256_cmpgt_epi8(keys, last[c + 2]);
        symbols = _mm256_or_si256(symbols, take_either(_mm256_andnot_si256(second, reach),
                                                       _mm256_andnot_si256(third, second), &lists[c], &lists[c + 1]));
        *class = _mm256_sub_epi8(_mm256_sub_epi8(*class, second), third);
        reach = third;
    }
    if (c < count)
        symbols = _mm256_or_si256(symbols, take_masked(reach, &lists[c]));
    return symbols;
}

static inline __attribute__((always_inline)) void join_32(unsigned word, const unsigned char *base,
                                                          const struct class_vectors *v, struct lmci_class_lists *lists,
                                                          unsigned char *data)
{
    __m256i x[4], b[4], planes[4], class;
    lane_load(word, base, b);
    planes[word - 1] = join_symbols(lane_keys(word, b), v->count, v->last, lists->symbols, &class);
    const __m256i marked = _mm256_cmpeq_epi8(planes[word - 1], _mm256_set1_epi8((char)LMCI_MARK));
    join_low(word, planes, _mm256_xor_si256(marked, _mm256_set1_epi8(-1)), v, class, lists);
    if (word == 2)
        sums_2(planes, b, v, class, x);
    else
        sums_4(planes, b, v, class, x);
    lane_store(word, data, x);
    for (uint32_t large = (uint32_t)_mm256_movemask_epi8(marked); large != 0; large &= large - 1) {
        class_store(word, data, (size_t)__builtin_ctz(large), class_word(word, lists->outliers, 0));
        lists->outliers += word;
    }
}

/* ---- All whole vectors ----------------------------------------------------------------------------------------- */

#define CLASS_VECTOR 32

static inline size_t chunk_vectors(size_t at, size_t n)
{
    return n - at < 32 * CLASS_CHUNK ? (n - at) / 32 : CLASS_CHUNK;
}

static void deal_whole(unsigned word, const unsigned char *data, const unsigned char *base, size_t n,
                       const struct class_vectors *v, struct lmci_class_lists *lists)
{
    struct class_chunk chunk;
    struct lmci_class_lists own = *lists;
    for (size_t at = 0; word == 2 && at < n; at += 32 * CLASS_CHUNK)
        deal_chunk(2, data + 2 * at, base + 2 * at, chunk_vectors(at, n), v, &chunk, &own);
    for (size_t at = 0; word == 4 && at < n; at += 32 * CLASS_CHUNK)
        deal_chunk(4, data + 4 * at, base + 4 * at, chunk_vectors(at, n), v, &chunk, &own);
    *lists = own;
}

static void join_whole(unsigned word, const unsigned char *base, size_t n, const struct lmci_classes *classes,
                       struct lmci_class_lists *lists, unsigned char *data)
{
    struct class_vectors v;
    struct lmci_class_lists own = *lists;
    class_vectors(word, classes, &v);
    for (size_t at = 0; word == 2 && at < n; at += 32)
        join_32(2, base + 2 * at, &v, &own, data + 2 * at);
    for (size_t at = 0; word == 4 && at < n; at += 32)
        join_32(4, base + 4 * at, &v, &own, data + 4 * at);
    *lists = own;
}
