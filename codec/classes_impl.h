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

/* What an element's key says of its difference, so that the loops below need not branch. */
struct class_key {
    uint8_t class;
    uint8_t up;         /* by how much it is raised: its symbol is then the highest byte of a word */
    uint8_t has_low[3]; /* 1 or 0 */
    uint8_t has_nibble; /* 1 or 0 */
    uint8_t nibble_at;  /* its place in the raised difference */
};

static void class_keys_of(unsigned word, const struct lmci_classes *classes, struct class_key keys[256])
{
    unsigned class = 0;
    for (unsigned key = 0; key < 256; key++) {
        while (class + 1 < classes->count && key >= classes->first[class + 1])
            class ++;
        unsigned shift = classes->shift[class];
        keys[key] = (struct class_key){
            .class = (uint8_t) class,
            .up = (uint8_t)(8 * word - 8 - shift),
            .has_low = {shift >= 8, shift >= 16, shift >= 24},
            .has_nibble = shift % 8 != 0,
            .nibble_at = (uint8_t)(shift % 8 ? 8 * word - 12 - shift / 8 * 8 : 0),
        };
    }
}

/* The difference with its symbol in the highest byte of a word, and the bits below it. */
static inline uint32_t class_raised(unsigned word, uint32_t x, uint32_t b, unsigned up)
{
    return word == 2 ? (uint16_t)((x - b) << up) : (x - b) << up;
}

static inline uint32_t class_lowered(unsigned word, uint32_t raised, unsigned up)
{
    return word == 2 ? (uint16_t)((int16_t)raised >> up) : (uint32_t)((int32_t)raised >> up);
}

/* Elements `from` to `to` - 1, one by one; false when there are too many outliers. Lists are written a byte past their
 * ends. */
static inline bool deal_plain(unsigned word, const unsigned char *data, const unsigned char *base, size_t from,
                              size_t to, const struct lmci_classes *classes, struct lmci_class_lists *lists)
{
    struct class_key keys[256];
    struct lmci_class_lists own = *lists; /* which stores of bytes can't change */
    bool fine = true;
    if (from < to)
        class_keys_of(word, classes, keys);
    for (size_t i = from; fine && i < to; i++) {
        uint32_t x = class_word(word, data, i);
        uint32_t b = class_word(word, base, i);
        const struct class_key *key = &keys[lmci_class_key(word, b)];
        uint32_t raised = class_raised(word, x, b, key->up);
        *own.symbols[key->class]++ = (unsigned char)(raised >> (8 * word - 8));
        for (unsigned k = 0; k + 1 < word; k++) {
            *own.low[k] = (unsigned char)(raised >> (8 * word - 16 - 8 * k));
            own.low[k] += key->has_low[k];
        }
        *own.nibbles = (unsigned char)(raised >> key->nibble_at & 15);
        own.nibbles += key->has_nibble;
        if (class_lowered(word, raised, key->up) != class_raised(word, x, b, 0)) {
            fine = own.outlier_count < own.most_outliers;
            if (fine)
                own.outliers[own.outlier_count++] = (uint32_t)i;
        }
    }
    *lists = own;
    return fine;
}

static inline void join_plain(unsigned word, const unsigned char *base, size_t from, size_t to,
                              const struct lmci_classes *classes, struct lmci_class_lists *lists, unsigned char *data)
{
    struct class_key keys[256];
    struct lmci_class_lists own = *lists;
    if (from < to)
        class_keys_of(word, classes, keys);
    for (size_t i = from; i < to; i++) {
        uint32_t b = class_word(word, base, i);
        const struct class_key *key = &keys[lmci_class_key(word, b)];
        uint32_t raised = (uint32_t)*own.symbols[key->class]++ << (8 * word - 8);
        for (unsigned k = 0; k + 1 < word; k++) {
            raised |= (uint32_t)(*own.low[k] & (0u - key->has_low[k])) << (8 * word - 16 - 8 * k);
            own.low[k] += key->has_low[k];
        }
        raised |= (uint32_t)(*own.nibbles & (0u - key->has_nibble)) << key->nibble_at;
        own.nibbles += key->has_nibble;
        uint32_t x = b + class_lowered(word, raised, key->up);
        if (word == 2)
            lmci_store16(data + 2 * i, (uint16_t)x);
        else
            lmci_store32(data + 4 * i, x);
    }
    *lists = own;
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

/* Words from bytes: planes[0] has the lowest of each. */
static inline void class_weave(unsigned word, const __m512i *planes, __m512i *v)
{
    const __m512i bytes0 =
        _mm512_set_epi8(95, 31, 94, 30, 93, 29, 92, 28, 91, 27, 90, 26, 89, 25, 88, 24, 87, 23, 86, 22, 85, 21, 84, 20,
                        83, 19, 82, 18, 81, 17, 80, 16, 79, 15, 78, 14, 77, 13, 76, 12, 75, 11, 74, 10, 73, 9, 72, 8,
                        71, 7, 70, 6, 69, 5, 68, 4, 67, 3, 66, 2, 65, 1, 64, 0);
    const __m512i bytes1 = _mm512_add_epi8(bytes0, _mm512_set1_epi8(32));
    __m512i low[2] = {_mm512_permutex2var_epi8(planes[0], bytes0, planes[1]),
                      _mm512_permutex2var_epi8(planes[0], bytes1, planes[1])};
    if (word == 2) {
        v[0] = low[0];
        v[1] = low[1];
        return;
    }
    const __m512i words0 = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                            37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i words1 = _mm512_add_epi16(words0, _mm512_set1_epi16(16));
    for (unsigned k = 0; k < 2; k++) {
        __m512i high = _mm512_permutex2var_epi8(planes[2], k ? bytes1 : bytes0, planes[3]);
        v[2 * k] = _mm512_permutex2var_epi16(low[k], words0, high);
        v[2 * k + 1] = _mm512_permutex2var_epi16(low[k], words1, high);
    }
}

/* Each byte as a word. */
static inline void class_widen(unsigned word, __m512i bytes, __m512i *v)
{
    const __m256i half[2] = {_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64(bytes, 1)};
    for (unsigned k = 0; k < word; k++) {
        if (word == 2)
            v[k] = _mm512_cvtepu8_epi16(half[k]);
        else
            v[k] = _mm512_cvtepu8_epi32(k % 2 ? _mm256_extracti128_si256(half[k / 2], 1)
                                              : _mm256_castsi256_si128(half[k / 2]));
    }
}

/* Classes as vectors, up to a number that the loops below are unrolled for; those too many never have an element. */
struct class_vectors {
    __m512i before[LMCI_MAX_CLASSES]; /* the greatest key of the class before */
    __m512i shift[LMCI_MAX_CLASSES];
    bool low[3];    /* whether any has such a byte */
    bool nibble[3]; /* ... or half of it */
};

static void class_vectors(const struct lmci_classes *classes, struct class_vectors *v)
{
    memset(v, 0, sizeof *v);
    for (unsigned c = 0; c < LMCI_MAX_CLASSES; c++) {
        bool there = c < classes->count;
        v->before[c] = _mm512_set1_epi8((char)(there ? classes->first[c] - 1 : 255));
        v->shift[c] = _mm512_set1_epi8((char)(there ? classes->shift[c] : 0));
        for (unsigned k = 0; there && k < 3; k++) {
            v->low[k] = v->low[k] || classes->shift[c] >= 8 * k + 8;
            v->nibble[k] = v->nibble[k] || classes->shift[c] == 8 * k + 4;
        }
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

static inline uint64_t class_has_nibble(__m512i shift, unsigned k)
{
    return _mm512_cmpeq_epi8_mask(shift, _mm512_set1_epi8((char)(8 * k + 4)));
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

/* By how much the differences are raised. */
static inline void class_ups(unsigned word, __m512i shift, __m512i *up)
{
    class_widen(word, _mm512_sub_epi8(_mm512_set1_epi8((char)(8 * word - 8)), shift), up);
}

static inline __attribute__((always_inline)) bool deal_64(unsigned word, unsigned count, const unsigned char *data,
                                                          const unsigned char *base, size_t at,
                                                          const struct class_vectors *v, struct lmci_class_lists *lists)
{
    __m512i b[4], up[4], raised[4];
    struct class_masks m;
    uint64_t large = 0;
    for (unsigned k = 0; k < word; k++)
        b[k] = _mm512_loadu_si512(base + at * word + 64 * k);
    class_masks(class_keys(word, b), v, count, &m);
    class_ups(word, m.shift, up);
    for (unsigned k = 0; k < word; k++) {
        __m512i x = _mm512_loadu_si512(data + at * word + 64 * k);
        if (word == 2) {
            __m512i d = _mm512_sub_epi16(x, b[k]);
            raised[k] = _mm512_sllv_epi16(d, up[k]);
            large |= (uint64_t)_mm512_cmpneq_epi16_mask(d, _mm512_srav_epi16(raised[k], up[k])) << 32 * k;
        } else {
            __m512i d = _mm512_sub_epi32(x, b[k]);
            raised[k] = _mm512_sllv_epi32(d, up[k]);
            large |= (uint64_t)_mm512_cmpneq_epi32_mask(d, _mm512_srav_epi32(raised[k], up[k])) << 16 * k;
        }
    }
    __m512i symbols = class_bytes(word, raised, word - 1);
    for (unsigned c = 0; c < count; c++)
        class_put(m.of[c], symbols, &lists->symbols[c]);
    __m512i nibbles = _mm512_setzero_si512();
    uint64_t with_nibble = 0;
    for (unsigned k = 0; k + 1 < word; k++) {
        if (!v->low[k] && !v->nibble[k])
            continue;
        __m512i low = class_bytes(word, raised, word - 2 - k);
        if (v->low[k])
            class_put(class_has_low(m.shift, k), low, &lists->low[k]);
        if (v->nibble[k]) {
            uint64_t mask = class_has_nibble(m.shift, k);
            nibbles = _mm512_mask_mov_epi8(nibbles, mask, low);
            with_nibble |= mask;
        }
    }
    if (v->nibble[0] || v->nibble[1] || v->nibble[2])
        class_put(with_nibble, _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), _mm512_set1_epi8(15)), &lists->nibbles);
    for (; __builtin_expect(large != 0, 0); large &= large - 1) {
        if (lists->outlier_count == lists->most_outliers)
            return false;
        lists->outliers[lists->outlier_count++] = (uint32_t)(at + (size_t)__builtin_ctzll(large));
    }
    return true;
}

static inline __attribute__((always_inline)) void join_64(unsigned word, unsigned count, const unsigned char *base,
                                                          size_t at, const struct class_vectors *v,
                                                          struct lmci_class_lists *lists, unsigned char *data)
{
    __m512i b[4], up[4], raised[4], planes[4];
    struct class_masks m;
    for (unsigned k = 0; k < word; k++)
        b[k] = _mm512_loadu_si512(base + at * word + 64 * k);
    class_masks(class_keys(word, b), v, count, &m);
    __m512i symbols = _mm512_setzero_si512();
    for (unsigned c = 0; c < count; c++)
        symbols = class_take(symbols, m.of[c], &lists->symbols[c]);
    planes[word - 1] = symbols;
    __m512i nibbles = _mm512_setzero_si512();
    if (v->nibble[0] || v->nibble[1] || v->nibble[2]) {
        uint64_t mask = _mm512_test_epi8_mask(m.shift, _mm512_set1_epi8(4));
        nibbles = _mm512_slli_epi16(class_take(nibbles, mask, &lists->nibbles), 4);
    }
    for (unsigned k = 0; k + 1 < word; k++) {
        __m512i low = _mm512_setzero_si512();
        if (v->low[k])
            low = class_take(low, class_has_low(m.shift, k), &lists->low[k]);
        if (v->nibble[k])
            low = _mm512_mask_mov_epi8(low, class_has_nibble(m.shift, k), nibbles);
        planes[word - 2 - k] = low;
    }
    class_weave(word, planes, raised);
    class_ups(word, m.shift, up);
    for (unsigned k = 0; k < word; k++) {
        __m512i x = word == 2 ? _mm512_add_epi16(b[k], _mm512_srav_epi16(raised[k], up[k]))
                              : _mm512_add_epi32(b[k], _mm512_srav_epi32(raised[k], up[k]));
        _mm512_storeu_si512(data + at * word + 64 * k, x);
    }
}

/* The hardware's own prefetching stops at the end of each page. Nothing is read, so it may be past the end. */
static inline void class_prefetch(unsigned word, const unsigned char *from, size_t at)
{
    for (unsigned k = 0; k < word; k++)
        _mm_prefetch((const char *)((uintptr_t)from + at * word + 64 * k + 2048), _MM_HINT_T0);
}

/* All whole vectors; `word` and `count` are constants where this is called. */
static inline __attribute__((always_inline)) bool deal_vectors(unsigned word, unsigned count, const unsigned char *data,
                                                               const unsigned char *base, size_t from, size_t to,
                                                               const struct class_vectors *v,
                                                               struct lmci_class_lists *lists)
{
    for (size_t at = from; at < to; at += 64) {
        class_prefetch(word, data, at);
        class_prefetch(word, base, at);
        if (!deal_64(word, count, data, base, at, v, lists))
            return false;
    }
    return true;
}

static inline __attribute__((always_inline)) void join_vectors(unsigned word, unsigned count, const unsigned char *base,
                                                               size_t n, const struct class_vectors *v,
                                                               struct lmci_class_lists *lists, unsigned char *data)
{
    for (size_t at = 0; at + 64 <= n; at += 64) {
        class_prefetch(word, base, at);
        join_64(word, count, base, at, v, lists, data);
    }
}

static bool deal_whole(unsigned word, const unsigned char *data, const unsigned char *base, size_t from, size_t to,
                       const struct lmci_classes *classes, struct lmci_class_lists *lists)
{
    struct class_vectors v;
    struct lmci_class_lists own = *lists;
    bool fine;
    class_vectors(classes, &v);
    if (word == 2)
        fine = classes->count <= 4   ? deal_vectors(2, 4, data, base, from, to, &v, &own)
               : classes->count <= 8 ? deal_vectors(2, 8, data, base, from, to, &v, &own)
                                     : deal_vectors(2, 16, data, base, from, to, &v, &own);
    else
        fine = classes->count <= 4   ? deal_vectors(4, 4, data, base, from, to, &v, &own)
               : classes->count <= 8 ? deal_vectors(4, 8, data, base, from, to, &v, &own)
                                     : deal_vectors(4, 16, data, base, from, to, &v, &own);
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

static bool class_deal(unsigned word, const unsigned char *data, const unsigned char *base, size_t first, size_t n,
                       const struct lmci_classes *classes, struct lmci_class_lists *lists)
{
    size_t done = first;
#if defined(__AVX512VBMI2__)
    done += n - n % 64;
    if (!deal_whole(word, data, base, first, done, classes, lists))
        return false;
#endif
    return word == 2 ? deal_plain(2, data, base, done, first + n, classes, lists)
                     : deal_plain(4, data, base, done, first + n, classes, lists);
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
