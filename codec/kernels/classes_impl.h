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

#define DEAL_PIECE     ((size_t)512)      /* elements; stay in the first-level cache from hashing to dealing */
#define JOIN_PIECE     ((size_t)16 << 10) /* elements; stay in the second-level cache from joining to hashing */
#define DEAL_AHEAD     ((size_t)4096)     /* bytes; memory is read while earlier pieces are dealt */
#define OUTLIERS_OFTEN 2u /* vectors of a piece with outliers; from there on, branches cost more than work */

#if defined(__AVX512VBMI2__)

#include "kernels/classes_avx512_impl.h"

#elif defined(__AVX2__) && defined(__BMI2__)

#include "kernels/classes_avx2_impl.h"

#elif defined(LMCI_NEON)

#include "kernels/classes_neon.h"

#endif

#if defined(FOR_CLASSES)

/* Joins whole vectors by a loop for each number of classes. */
static void join_whole(unsigned word, const unsigned char *base, size_t n, const struct lmci_classes *classes,
                       struct lmci_class_lists *lists, unsigned char *data)
{
    struct class_vectors v;
    struct lmci_class_lists own = *lists;
    class_vectors(word, classes, &v);
#define JOIN_2(count) join_vectors(2, count, base, n, &v, &own, data)
#define JOIN_4(count) join_vectors(4, count, base, n, &v, &own, data)
    if (word == 2) {
        FOR_CLASSES_OF_2(classes->count, JOIN_2);
    } else {
        FOR_CLASSES(classes->count, JOIN_4)
    }
    *lists = own;
}

#endif

#if defined(CLASS_VECTOR)

#if !defined(__AVX512VBMI2__)

/* Prefetches a piece's bytes at some distance. Addresses past the end are harmless. */
static inline void deal_prefetch(const unsigned char *from, size_t bytes)
{
    for (size_t k = 0; k < bytes; k += 64)
        __builtin_prefetch((const void *)((uintptr_t)from + DEAL_AHEAD + k));
}

#endif

/* Hashes and deals whole vectors. Returns how many elements. */
static size_t deal_pieces(unsigned word, const unsigned char *data, const unsigned char *base, size_t n,
                          const struct lmci_classes *classes, void *state, struct lmci_class_lists *lists)
{
    struct class_vectors v;
    const size_t whole = n - n % CLASS_VECTOR;
#if defined(__AVX512VBMI2__)
    if (short_deal_pieces(word, data, base, whole, classes, state, lists) != 0)
        return whole;
#endif
    class_vectors(word, classes, &v);
    for (size_t at = 0; at < whole; at += DEAL_PIECE) {
        const size_t some = whole - at < DEAL_PIECE ? whole - at : DEAL_PIECE;
#if !defined(__AVX512VBMI2__) /* its loops prefetch */
        deal_prefetch(data + word * at, word * some);
        deal_prefetch(base + word * at, word * some);
#endif
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
                       void *state, struct lmci_class_lists *lists, unsigned char *data)
{
    size_t done = 0;
#if defined(__AVX512VBMI2__)
    done = short_join_pieces(word, base, n - n % CLASS_VECTOR, classes, state, lists, data);
#endif
    for (size_t at = done; at < n; at += JOIN_PIECE) {
        const size_t some = n - at < JOIN_PIECE ? n - at : JOIN_PIECE;
        const unsigned char *from = base + word * at;
        unsigned char *to = data + word * at;
        size_t whole = 0;
#if defined(CLASS_VECTOR)
        whole = some - some % CLASS_VECTOR;
        if (whole != 0)
            join_whole(word, from, whole, classes, lists, to);
#endif
        join_plain(word, from, whole, some, classes, lists, to);
        if (state != NULL)
            hash_update(state, to, word * some);
    }
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
