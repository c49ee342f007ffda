/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * classes_short_impl.h - words of 2 bytes by AVX-512 VBMI2, for classes whose first keys are within 64.
 *
 * Loops are compiled for each number of classes and for the lists in use. Symbols are computed in bytes, not in words.
 * Words with outliers are few: a second loop over each piece puts them.
 */

#define SHORT_PIECE  ((size_t)2048) /* elements; stay in the first-level cache from hashing to outliers */
#define SHORT_KEYS   64u
#define SHORT_NIBBLE 0x40u /* flags of entries */
#define SHORT_LOW    0x80u

/* An entry is a class and its flags. */
struct short_classes {
    bool fits; /* otherwise unusable */
    unsigned count;
    bool low, nibbles;                 /* whether any class has them */
    __m512i before;                    /* the key before the second class's first, in every lane */
    __m512i table;                     /* entries by key, from `before` on */
    uint8_t entries[LMCI_MAX_CLASSES]; /* by class; of absent classes, too */
    uint64_t marked[SHORT_PIECE / 64]; /* outliers of each vector of a piece */
};

static void short_classes(unsigned word, const struct lmci_classes *classes, struct short_classes *v)
{
    uint8_t table[SHORT_KEYS] = {0};
    const unsigned last = classes->count - 1, before = last != 0 ? classes->first[1] - 1u : 0;
    v->fits = word == 2 && classes->first[last] < before + SHORT_KEYS;
    v->count = classes->count;
    v->low = v->nibbles = false;
    for (unsigned c = 0; v->fits && c < LMCI_MAX_CLASSES; c++) {
        const unsigned shift = c <= last ? classes->shift[c] : 0;
        const unsigned from = c != 0 && c <= last ? classes->first[c] - before : 0;
        v->entries[c] = (uint8_t)(c | (shift == 4 ? SHORT_NIBBLE : 0) | (shift == 8 ? SHORT_LOW : 0));
        v->low = v->low || shift == 8;
        v->nibbles = v->nibbles || shift == 4;
        if (c <= last)
            memset(table + from, v->entries[c], SHORT_KEYS - from);
    }
    v->before = _mm512_set1_epi8((char)before);
    v->table = _mm512_loadu_si512(table);
}

static inline __m512i short_entries(__m512i b0, __m512i b1, __m512i before, __m512i table)
{
    const __m512i raised[2] = {_mm512_slli_epi16(b0, 1), _mm512_slli_epi16(b1, 1)};
    const __m512i keys = _mm512_subs_epu8(word_bytes(2, raised, 1), before);
    return _mm512_permutexvar_epi8(_mm512_min_epu8(keys, _mm512_set1_epi8((char)(SHORT_KEYS - 1))), table);
}

/* Differences without their half byte (`half`), raised by 127. Outliers become 255. */
static inline __m512i short_raised(__m512i d, bool half)
{
    const __m512i above = _mm512_add_epi16(d, _mm512_set1_epi16((short)(half ? 127 << 4 : 127)));
    return _mm512_min_epu16(half ? _mm512_srli_epi16(above, 4) : above, _mm512_set1_epi16(255));
}

static inline __m512i short_symbols(const __m512i d[2], bool half)
{
    const __m512i raised[2] = {short_raised(d[0], half), short_raised(d[1], half)};
    return _mm512_sub_epi8(word_bytes(2, raised, 0), _mm512_set1_epi8(127));
}

/* Callers pass constants for `count`, `low` and `nibbles`; `n` is at most SHORT_PIECE. */
static inline __attribute__((always_inline)) void short_deal(unsigned count, bool low, bool nibbles,
                                                             const unsigned char *data, const unsigned char *base,
                                                             size_t n, struct short_classes *v,
                                                             struct lmci_class_lists *lists)
{
    const __m512i before = v->before, table = v->table;
    unsigned char *symbols[LMCI_MAX_CLASSES], *lows = lists->low[0], *halves = lists->nibbles;
    __m512i entries[LMCI_MAX_CLASSES];
    for (unsigned c = 0; c < count; c++) {
        symbols[c] = lists->symbols[c];
        entries[c] = _mm512_set1_epi8((char)v->entries[c]);
    }
    for (size_t at = 0; at < n; at += 64) {
        for (unsigned k = 0; k < 2; k++) {
            CLASS_AHEAD(data, 2, at, k);
            CLASS_AHEAD(base, 2, at, k);
        }
        const __m512i b0 = _mm512_loadu_si512(base + 2 * at), b1 = _mm512_loadu_si512(base + 2 * at + 64);
        const __m512i d[2] = {_mm512_sub_epi16(_mm512_loadu_si512(data + 2 * at), b0),
                              _mm512_sub_epi16(_mm512_loadu_si512(data + 2 * at + 64), b1)};
        const __m512i own = short_entries(b0, b1, before, table), below = word_bytes(2, d, 0);
        const uint64_t with_low = _mm512_movepi8_mask(own), with_nibble = class_has(own, SHORT_NIBBLE);
        __m512i s = short_symbols(d, false);
        if (nibbles)
            s = _mm512_mask_mov_epi8(s, with_nibble, short_symbols(d, true));
        if (low)
            s = _mm512_mask_mov_epi8(s, with_low, word_bytes(2, d, 1));
        const uint64_t marked = class_mask(s, LMCI_MARK);
        v->marked[at / 64] = marked;
        for (unsigned c = 0; c < count; c++)
            class_put(_mm512_cmpeq_epi8_mask(own, entries[c]), s, &symbols[c]);
        if (low)
            class_put(_kandn_mask64(marked, with_low), below, &lows);
        if (nibbles)
            class_put(_kandn_mask64(marked, with_nibble), _mm512_and_si512(below, _mm512_set1_epi8(15)), &halves);
    }
    for (unsigned c = 0; c < count; c++)
        lists->symbols[c] = symbols[c];
    lists->low[0] = lows;
    lists->nibbles = halves;
}

/* Returns a bit for each vector of the piece with outliers, from vector `first` on, at most 8. */
static inline unsigned short_marked(const struct short_classes *v, size_t first, size_t vectors)
{
    const __m512i marked = _mm512_loadu_si512(v->marked + first);
    const unsigned some = _mm512_test_epi64_mask(marked, marked);
    return vectors - first < 8 ? some & ((1u << (vectors - first)) - 1) : some;
}

static void short_put_outliers(const struct short_classes *v, const unsigned char *data, size_t n,
                               struct lmci_class_lists *lists)
{
    for (size_t first = 0; first < n / 64; first += 8)
        for (unsigned some = short_marked(v, first, n / 64); some != 0; some &= some - 1) {
            const size_t i = first + (unsigned)__builtin_ctz(some);
            class_put_outliers(2, v->marked[i], data + 128 * i, lists);
        }
}

static void short_deal_whole(const unsigned char *data, const unsigned char *base, size_t n, struct short_classes *v,
                             struct lmci_class_lists *lists)
{
#define DEAL_ALL(count)     short_deal(count, true, true, data, base, n, v, lists)
#define DEAL_NIBBLES(count) short_deal(count, false, true, data, base, n, v, lists)
#define DEAL_NONE(count)    short_deal(count, false, false, data, base, n, v, lists)
    if (v->low)
        FOR_CLASSES(v->count, DEAL_ALL)
    else if (v->nibbles)
        FOR_CLASSES(v->count, DEAL_NIBBLES)
    else
        FOR_CLASSES(v->count, DEAL_NONE)
    short_put_outliers(v, data, n, lists);
}

/* Hashes and deals all of `n` elements, a multiple of 64, if the classes fit. Returns how many. */
static size_t short_deal_pieces(unsigned word, const unsigned char *data, const unsigned char *base, size_t n,
                                const struct lmci_classes *classes, void *state, struct lmci_class_lists *lists)
{
    struct short_classes v;
    short_classes(word, classes, &v);
    for (size_t at = 0; v.fits && at < n; at += SHORT_PIECE) {
        const size_t some = n - at < SHORT_PIECE ? n - at : SHORT_PIECE;
        if (state != NULL)
            hash_update(state, data + 2 * at, 2 * some);
        short_deal_whole(data + 2 * at, base + 2 * at, some, &v, lists);
    }
    return v.fits ? n : 0;
}

/* ---- Joining --------------------------------------------------------------------------------------------------- */

/* The high bytes of differences without a half byte: signs; and with one. */
static inline __m512i short_signs(__m512i s)
{
    return _mm512_max_epi8(_mm512_min_epi8(s, _mm512_setzero_si512()), _mm512_set1_epi8(-1));
}

static inline __m512i short_sixteenths(__m512i s)
{
    const __m512i bits = _mm512_and_si512(_mm512_srli_epi16(s, 4), _mm512_set1_epi8(15));
    return _mm512_sub_epi8(_mm512_xor_si512(bits, _mm512_set1_epi8(8)), _mm512_set1_epi8(8));
}

/* Weaves low and high bytes to words. Within 16 bytes, unpacking is cheaper than a permutation of two vectors. */
static inline void short_weave(__m512i low, __m512i high, __m512i *v)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    low = _mm512_permutexvar_epi64(order, low);
    high = _mm512_permutexvar_epi64(order, high);
    v[0] = _mm512_unpacklo_epi8(low, high);
    v[1] = _mm512_unpackhi_epi8(low, high);
}

/* Takes the symbols of 64 elements. Fills of one vector wait for each other: there are two. */
static inline __attribute__((always_inline)) __m512i short_take(unsigned count, __m512i own, const __m512i *entries,
                                                                unsigned char **symbols)
{
    __m512i s[2] = {fresh_zero(), fresh_zero()};
    for (unsigned c = 0; c < count; c++)
        s[c % 2] = class_fill(s[c % 2], _mm512_cmpeq_epi8_mask(own, entries[c]), &symbols[c]);
    return _mm512_or_si512(s[0], s[1]);
}

/* Callers pass constants for `count`, `low` and `nibbles`. Each turn computes the entries of the next: a turn's steps
 * wait for each other, and processors look ahead by hardly two turns. */
static inline __attribute__((always_inline)) void short_join(unsigned count, bool low, bool nibbles,
                                                             const unsigned char *base, size_t n,
                                                             const struct short_classes *v,
                                                             struct lmci_class_lists *lists, unsigned char *data)
{
    const __m512i before = v->before, table = v->table;
    unsigned char *symbols[LMCI_MAX_CLASSES], *lows = lists->low[0], *halves = lists->nibbles;
    struct lmci_class_lists outliers = {.outliers = lists->outliers}; /* a copy that stores cannot alias */
    __m512i entries[LMCI_MAX_CLASSES];
    for (unsigned c = 0; c < count; c++) {
        symbols[c] = lists->symbols[c];
        entries[c] = _mm512_set1_epi8((char)v->entries[c]);
    }
    __m512i next = short_entries(_mm512_loadu_si512(base), _mm512_loadu_si512(base + 64), before, table);
    for (size_t at = 0; at < n; at += 64) {
        for (unsigned k = 0; k < 2; k++)
            CLASS_AHEAD(base, 2, at, k);
        const __m512i b0 = _mm512_loadu_si512(base + 2 * at), b1 = _mm512_loadu_si512(base + 2 * at + 64), own = next;
        const unsigned char *ahead = base + 2 * (at + 64 < n ? at + 64 : at);
        next = short_entries(_mm512_loadu_si512(ahead), _mm512_loadu_si512(ahead + 64), before, table);
        const __m512i s = short_take(count, own, entries, symbols);
        const uint64_t marked = class_mask(s, LMCI_MARK);
        __m512i x[2], below = s, above = short_signs(s);
        if (nibbles) {
            const uint64_t with = _kandn_mask64(marked, class_has(own, SHORT_NIBBLE));
            const __m512i high = _mm512_and_si512(_mm512_slli_epi16(s, 4), _mm512_set1_epi8((char)0xf0));
            below = _mm512_mask_mov_epi8(below, with, _mm512_or_si512(high, class_take(with, &halves)));
            above = _mm512_mask_mov_epi8(above, with, short_sixteenths(s));
        }
        if (low) {
            const uint64_t with = _kandn_mask64(marked, _mm512_movepi8_mask(own));
            below = class_fill(below, with, &lows);
            above = _mm512_mask_mov_epi8(above, with, s);
        }
        short_weave(below, above, x);
        x[0] = _mm512_add_epi16(b0, x[0]);
        x[1] = _mm512_add_epi16(b1, x[1]);
        class_take_outliers(2, marked, x, &outliers);
        _mm512_storeu_si512(data + 2 * at, x[0]);
        _mm512_storeu_si512(data + 2 * at + 64, x[1]);
    }
    for (unsigned c = 0; c < count; c++)
        lists->symbols[c] = symbols[c];
    lists->low[0] = lows;
    lists->nibbles = halves;
    lists->outliers = outliers.outliers;
}

static void short_join_whole(const unsigned char *base, size_t n, const struct short_classes *v,
                             struct lmci_class_lists *lists, unsigned char *data)
{
#define JOIN_ALL(count)     short_join(count, true, true, base, n, v, lists, data)
#define JOIN_NIBBLES(count) short_join(count, false, true, base, n, v, lists, data)
#define JOIN_NONE(count)    short_join(count, false, false, base, n, v, lists, data)
    if (v->low)
        FOR_CLASSES(v->count, JOIN_ALL)
    else if (v->nibbles)
        FOR_CLASSES(v->count, JOIN_NIBBLES)
    else
        FOR_CLASSES(v->count, JOIN_NONE)
}

/* Joins and hashes all of `n` elements, a multiple of 64, if the classes fit. Returns how many. */
static size_t short_join_pieces(unsigned word, const unsigned char *base, size_t n, const struct lmci_classes *classes,
                                void *state, struct lmci_class_lists *lists, unsigned char *data)
{
    struct short_classes v;
    short_classes(word, classes, &v);
    for (size_t at = 0; v.fits && at < n; at += SHORT_PIECE) {
        const size_t some = n - at < SHORT_PIECE ? n - at : SHORT_PIECE;
        short_join_whole(base + 2 * at, some, &v, lists, data + 2 * at);
        if (state != NULL)
            hash_update(state, data + 2 * at, 2 * some);
    }
    return v.fits ? n : 0;
}
