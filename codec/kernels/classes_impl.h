/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * classes_impl.h - deals differences to classes by the base's exponent, and joins them.
 *
 * AVX-512 VBMI2 compresses or expands 64 elements for each class, under its mask, and stores 64 bytes at a time: lists
 * have room past their ends. AVX2 with BMI2 takes 32 elements, NEON 64, plain loops one.
 */

#include "kernels/vbmi2_impl.h"

static inline uint32_t class_word(unsigned word, const unsigned char *from, size_t i)
{
    return word == 2 ? lmci_load16(from + 2 * i) : lmci_load32(from + 4 * i);
}

static inline void class_store(unsigned word, unsigned char *to, size_t i, uint32_t x)
{
    if (word == 2)
        lmci_store16(to + 2 * i, (uint16_t)x);
    else
        lmci_store32(to + 4 * i, x);
}

/* Values that depend on an element's key, in a table, so that loops need no branches. */
struct class_key {
    uint32_t least, span; /* differences from -`least` to below `span` above that are no outliers */
    uint32_t keep;        /* bits of a raised difference in whole bytes */
    uint32_t nibble;      /* 1 at the half byte's position; 0 without one */
    uint8_t class;
    uint8_t up;         /* moves the symbol to a word's highest byte */
    uint8_t nibble_at;  /* the half byte's position */
    uint8_t has_nibble; /* 1 or 0 */
    uint8_t has_low[3]; /* 1 or 0 */
};

/* The kinds of lists below symbols that any class uses. */
struct class_kinds {
    unsigned lows;
    bool nibbles;
};

static struct class_kinds class_keys_of(unsigned word, const struct lmci_classes *classes, struct class_key keys[256])
{
    struct class_kinds kinds = {0, false};
    unsigned class = 0;
    for (unsigned key = 0; key < 256; key++) {
        while (class + 1 < classes->count && key >= classes->first[class + 1])
            class ++;
        const unsigned shift = classes->shift[class];
        const bool half = shift % 8 != 0;
        const unsigned at = half ? 8 * word - 12 - shift / 8 * 8 : 0;
        keys[key] = (struct class_key){
            .least = UINT32_C(127) << shift,
            .span = UINT32_C(255) << shift,
            .keep = 0u - (UINT32_C(1) << (8 * word - 8 - shift / 8 * 8)),
            .nibble = half ? UINT32_C(1) << at : 0,
            .class = (uint8_t) class,
            .up = (uint8_t)(8 * word - 8 - shift),
            .nibble_at = (uint8_t)at,
            .has_nibble = half,
            .has_low = {shift >= 8, shift >= 16, shift >= 24},
        };
        kinds.lows = shift / 8 > kinds.lows ? shift / 8 : kinds.lows;
        kinds.nibbles = kinds.nibbles || half;
    }
    return kinds;
}

static inline uint32_t class_lowered(unsigned word, uint32_t raised, unsigned up)
{
    return word == 2 ? (uint32_t)((int16_t)raised >> up) : (uint32_t)((int32_t)raised >> up);
}

/* Writes one entry past each list. `word` and `kinds` are constants: unused lists cost nothing. */
static inline __attribute__((always_inline)) void deal_kinds(unsigned word, struct class_kinds kinds,
                                                             const unsigned char *data, const unsigned char *base,
                                                             size_t n, const struct class_key keys[256],
                                                             struct lmci_class_lists *lists)
{
    struct lmci_class_lists own = *lists; /* a copy that stores of bytes cannot alias */
    for (size_t i = 0; i < n; i++) {
        const uint32_t x = class_word(word, data, i), b = class_word(word, base, i);
        const struct class_key *key = &keys[lmci_class_key(word, b)];
        const uint32_t above = x - b + key->least;
        unsigned char *symbol = own.symbols[key->class]++;
        if ((word == 2 ? (uint16_t)above : above) >= key->span) {
            *symbol = LMCI_MARK;
            class_store(word, own.outliers, 0, x);
            own.outliers += word;
            continue;
        }
        const uint32_t raised = (x - b) << key->up;
        *symbol = (unsigned char)(raised >> (8 * word - 8));
        for (unsigned k = 0; k < kinds.lows; k++) {
            *own.low[k] = (unsigned char)(raised >> (8 * word - 16 - 8 * k));
            own.low[k] += key->has_low[k];
        }
        if (kinds.nibbles) {
            *own.nibbles = (unsigned char)(raised >> key->nibble_at & 15);
            own.nibbles += key->has_nibble;
        }
    }
    *lists = own;
}

static inline __attribute__((always_inline)) void join_kinds(unsigned word, struct class_kinds kinds,
                                                             const unsigned char *base, size_t n,
                                                             const struct class_key keys[256],
                                                             struct lmci_class_lists *lists, unsigned char *data)
{
    struct lmci_class_lists own = *lists;
    for (size_t i = 0; i < n; i++) {
        const uint32_t b = class_word(word, base, i);
        const struct class_key *key = &keys[lmci_class_key(word, b)];
        const unsigned symbol = *own.symbols[key->class]++;
        if (symbol == LMCI_MARK) {
            class_store(word, data, i, class_word(word, own.outliers, 0));
            own.outliers += word;
            continue;
        }
        uint32_t raised = symbol << (8 * word - 8);
        for (unsigned k = 0; k < kinds.lows; k++) {
            raised |= (uint32_t)*own.low[k] << (8 * word - 16 - 8 * k);
            own.low[k] += key->has_low[k];
        }
        raised &= key->keep;
        if (kinds.nibbles) {
            raised |= *own.nibbles * key->nibble;
            own.nibbles += key->has_nibble;
        }
        class_store(word, data, i, b + class_lowered(word, raised, key->up));
    }
    *lists = own;
}

/* Deals elements `from` to `to` - 1. */
static void deal_plain(unsigned word, const unsigned char *data, const unsigned char *base, size_t from, size_t to,
                       const struct lmci_classes *classes, struct lmci_class_lists *lists)
{
    struct class_key keys[256];
    if (from == to)
        return;
    const struct class_kinds kinds = class_keys_of(word, classes, keys);
    data += from * word;
    base += from * word;
    to -= from;
#define DEAL(size, ...) deal_kinds(size, (struct class_kinds){__VA_ARGS__}, data, base, to, keys, lists)
    if (word == 4 && kinds.lows < 2)
        DEAL(4, 1, true);
    else if (word == 4)
        DEAL(4, 3, true);
    else if (kinds.lows != 0)
        DEAL(2, 1, true);
    else if (kinds.nibbles)
        DEAL(2, 0, true);
    else
        DEAL(2, 0, false);
#undef DEAL
}

static void join_plain(unsigned word, const unsigned char *base, size_t from, size_t to,
                       const struct lmci_classes *classes, struct lmci_class_lists *lists, unsigned char *data)
{
    struct class_key keys[256];
    if (from == to)
        return;
    const struct class_kinds kinds = class_keys_of(word, classes, keys);
    base += from * word;
    data += from * word;
    to -= from;
#define JOIN(size, ...) join_kinds(size, (struct class_kinds){__VA_ARGS__}, base, to, keys, lists, data)
    if (word == 4 && kinds.lows < 2)
        JOIN(4, 1, true);
    else if (word == 4)
        JOIN(4, 3, true);
    else if (kinds.lows != 0)
        JOIN(2, 1, true);
    else if (kinds.nibbles)
        JOIN(2, 0, true);
    else
        JOIN(2, 0, false);
#undef JOIN
}

#define DEAL_PIECE     ((size_t)512)  /* elements; stay in the first-level cache from hashing to dealing */
#define DEAL_AHEAD     ((size_t)4096) /* bytes; memory is read while earlier pieces are dealt */
#define OUTLIERS_OFTEN 2u /* vectors of a piece with outliers; from there on, branches cost more than work */

#if defined(__AVX512VBMI2__)

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

static inline __m512i class_take(uint64_t mask, unsigned char **list)
{
    __m512i bytes = expand_bytes(mask, _mm512_loadu_si512(*list));
    *list += __builtin_popcountll(mask);
    return bytes;
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
        x[k] = word == 2 ? _mm512_mask_mov_epi16(x[k], (__mmask32)some,
                                                 _mm512_mask_expand_epi16(fresh_zero(), (__mmask32)some, kept))
                         : _mm512_mask_mov_epi32(x[k], (__mmask16)some,
                                                 _mm512_mask_expand_epi32(fresh_zero(), (__mmask16)some, kept));
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

/* Hardware prefetching stops at the end of a page. Addresses past the end are harmless. */
static inline void class_prefetch(unsigned word, const unsigned char *from, size_t at)
{
    for (unsigned k = 0; k < word; k++)
        _mm_prefetch((const char *)((uintptr_t)from + at * word + 64 * k + 2048), _MM_HINT_T0);
}

/* Callers pass constants for `word` and `count`; `n` is at most DEAL_PIECE. */
static inline __attribute__((always_inline)) void deal_vectors(unsigned word, unsigned count, const unsigned char *data,
                                                               const unsigned char *base, size_t n,
                                                               const struct class_vectors *v,
                                                               struct lmci_class_lists *lists)
{
    uint64_t marked[DEAL_PIECE / 64];
    unsigned with = 0;
    for (size_t at = 0; at < n; at += 64) {
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
    for (size_t at = 0; at < n; at += 64) {
        class_prefetch(word, base, at);
        join_64(word, count, base, at, v, lists, data);
    }
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

static void deal_whole(unsigned word, const unsigned char *data, const unsigned char *base, size_t n,
                       const struct class_vectors *v, struct lmci_class_lists *lists)
{
    struct lmci_class_lists own = *lists;
#define DEAL_2(count) deal_vectors(2, count, data, base, n, v, &own)
#define DEAL_4(count) deal_vectors(4, count, data, base, n, v, &own)
    if (word == 2)
        FOR_CLASSES(v->count, DEAL_2)
    else
        FOR_CLASSES(v->count, DEAL_4)
    *lists = own;
}

static void join_whole(unsigned word, const unsigned char *base, size_t n, const struct lmci_classes *classes,
                       struct lmci_class_lists *lists, unsigned char *data)
{
    struct class_vectors v;
    struct lmci_class_lists own = *lists;
    class_vectors(word, classes, &v);
#define JOIN_2(count) join_vectors(2, count, base, n, &v, &own, data)
#define JOIN_4(count) join_vectors(4, count, base, n, &v, &own, data)
    if (word == 2)
        FOR_CLASSES(classes->count, JOIN_2)
    else
        FOR_CLASSES(classes->count, JOIN_4)
    *lists = own;
}

#define CLASS_VECTOR 64

#elif defined(__AVX2__) && defined(__BMI2__)

#include "kernels/classes_avx2_impl.h"

#elif defined(LMCI_NEON)

#include "kernels/classes_neon.h"

#endif

#if defined(CLASS_VECTOR)

/* Prefetches a piece's bytes at some distance. Addresses past the end are harmless. */
static inline void deal_prefetch(const unsigned char *from, size_t bytes)
{
    for (size_t k = 0; k < bytes; k += 64)
        __builtin_prefetch((const void *)((uintptr_t)from + DEAL_AHEAD + k));
}

/* Hashes and deals whole vectors. Returns how many elements. */
static size_t deal_pieces(unsigned word, const unsigned char *data, const unsigned char *base, size_t n,
                          const struct lmci_classes *classes, void *state, struct lmci_class_lists *lists)
{
    struct class_vectors v;
    const size_t whole = n - n % CLASS_VECTOR;
    class_vectors(word, classes, &v);
    for (size_t at = 0; at < whole; at += DEAL_PIECE) {
        const size_t some = whole - at < DEAL_PIECE ? whole - at : DEAL_PIECE;
        deal_prefetch(data + word * at, word * some);
        deal_prefetch(base + word * at, word * some);
        if (state != NULL)
            hash_update(state, data + word * at, word * some);
        deal_whole(word, data + word * at, base + word * at, some, &v, lists);
    }
    return whole;
}

#endif

static void class_deal(unsigned word, const unsigned char *data, const unsigned char *base, size_t n,
                       const struct lmci_classes *classes, void *state, struct lmci_class_lists *lists)
{
    size_t done = 0;
#if defined(CLASS_VECTOR)
    done = deal_pieces(word, data, base, n, classes, state, lists);
#endif
    if (state != NULL && done < n)
        hash_update(state, data + word * done, word * (n - done));
    deal_plain(word, data, base, done, n, classes, lists);
}

static void class_join(unsigned word, const unsigned char *base, size_t n, const struct lmci_classes *classes,
                       struct lmci_class_lists *lists, unsigned char *data)
{
    size_t done = 0;
#if defined(CLASS_VECTOR)
    done = n - n % CLASS_VECTOR;
    join_whole(word, base, done, classes, lists, data);
#endif
    join_plain(word, base, done, n, classes, lists, data);
}

/* ---- Words without a base -------------------------------------------------------------------------------------- */

/* Rotates words by one bit; to the left, this separates a float's sign from its exponent. */
static void class_rotate(unsigned word, bool left, const unsigned char *from, size_t n, unsigned char *to)
{
    const unsigned by16 = left ? 1 : 15;
    const unsigned by32 = left ? 1 : 31;
    for (size_t i = 0; word == 2 && i < n; i++) {
        uint32_t x = lmci_load16(from + 2 * i);
        lmci_store16(to + 2 * i, (uint16_t)(x << by16 | x >> (16 - by16)));
    }
    for (size_t i = 0; word == 4 && i < n; i++) {
        uint32_t x = lmci_load32(from + 4 * i);
        lmci_store32(to + 4 * i, x << by32 | x >> (32 - by32));
    }
}

/* ---- Half bytes ------------------------------------------------------------------------------------------------ */

static void pack_nibbles(const unsigned char *restrict nibbles, size_t n, unsigned char *restrict packed)
{
    for (size_t i = 0; i < n / 2; i++)
        packed[i] = (unsigned char)(nibbles[2 * i] | nibbles[2 * i + 1] << 4);
    if (n % 2 != 0)
        packed[n / 2] = nibbles[n - 1];
}

static void unpack_nibbles(const unsigned char *restrict packed, size_t n, unsigned char *restrict nibbles)
{
    for (size_t i = 0; i < n / 2; i++) {
        nibbles[2 * i] = packed[i] & 15;
        nibbles[2 * i + 1] = packed[i] >> 4;
    }
    if (n % 2 != 0)
        nibbles[n - 1] = packed[n / 2] & 15;
}
