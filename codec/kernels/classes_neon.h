/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * classes_neon.h - classes with NEON, 64 elements at a time, in vectors of 16.
 *
 * Dealing compresses symbols once a class. Joining looks up all classes at once, by prefix sums; one byte holds the
 * sums of two classes. Vectors are reversed, since NEON accumulates right shifts only.
 */
#include "kernels/neon_impl.h"

#define CLASS_VECTOR 64
#define CLASS_PAIRS  (LMCI_MAX_CLASSES / 2)

/* Counters of two classes in the halves of a byte. Tables by class, one for each pair of classes. */
struct class_pairs {
    uint8x16_t one[CLASS_PAIRS];  /* 1 for the pair's first class, 16 for its second, 0 for others */
    uint8x16_t half[CLASS_PAIRS]; /* all ones in the class's half */
};

static void class_pairs(struct class_pairs *pairs)
{
    for (unsigned p = 0; p < CLASS_PAIRS; p++) {
        uint8_t one[16] = {0}, half[16] = {0};
        one[2 * p] = 1;
        one[2 * p + 1] = 16;
        half[2 * p] = 15;
        half[2 * p + 1] = 240;
        pairs->one[p] = vld1q_u8(one);
        pairs->half[p] = vld1q_u8(half);
    }
}

struct class_vectors {
    unsigned count;
    uint8x16_t first[LMCI_MAX_CLASSES]; /* each class's least key */
    uint8x16_t up;                      /* by class: class_key's `up` */
    uint8x16_t below;                   /* by class: lists below symbols */
    struct class_pairs pairs;
    bool any_low[3], any_nibble[3], any_half; /* whether any class has it */
    bool all_low[3], all_half;                /* whether all classes have it */
};

/* Bit k: low byte k, bit 4 + k: half of it. */
#define CLASS_LOW(k)    (1u << (k))
#define CLASS_NIBBLE(k) (16u << (k))
#define CLASS_HALF      (CLASS_NIBBLE(0) | CLASS_NIBBLE(1) | CLASS_NIBBLE(2))

static void class_vectors(unsigned word, const struct lmci_classes *classes, struct class_vectors *v)
{
    uint8_t up[16] = {0}, below[16] = {0};
    *v = (struct class_vectors){.count = classes->count, .all_low = {true, true, true}, .all_half = true};
    for (unsigned c = 0; c < classes->count; c++) {
        const unsigned shift = classes->shift[c];
        v->first[c] = vdupq_n_u8(classes->first[c]);
        up[c] = (uint8_t)(8 * word - 8 - shift);
        v->any_half = v->any_half || shift % 8;
        v->all_half = v->all_half && shift % 8;
        for (unsigned k = 0; k < 3; k++) {
            const bool low = shift >= 8 * k + 8, nibble = shift == 8 * k + 4;
            below[c] |= (uint8_t)(low ? CLASS_LOW(k) : nibble ? CLASS_NIBBLE(k) : 0);
            v->any_low[k] = v->any_low[k] || low;
            v->all_low[k] = v->all_low[k] && low;
            v->any_nibble[k] = v->any_nibble[k] || nibble;
        }
    }
    v->up = vld1q_u8(up);
    v->below = vld1q_u8(below);
    class_pairs(&v->pairs);
}

/* ---- Vectors --------------------------------------------------------------------------------------------------- */

/* Bytes above a word's lowest are undefined. */
static inline void words_of(unsigned word, uint8x16_t bytes, uint8x16_t *v)
{
    const uint8x16_t planes[4] = {bytes, bytes, bytes, bytes};
    word_weave(word, planes, v);
}

static inline uint8x16_t class_keys(unsigned word, const uint8x16_t *base)
{
    uint16x8_t high[2];
    for (unsigned k = 0; k < 2; k++)
        high[k] = word == 2 ? U16(base[k]) : vuzp2q_u16(U16(base[2 * k]), U16(base[2 * k + 1]));
    return vshrn_high_n_u16(vshrn_n_u16(high[0], 7), high[1], 7);
}

static inline __attribute__((always_inline)) void classes_of_keys(const uint8x16_t keys[4], unsigned count,
                                                                  const uint8x16_t *first, uint8x16_t class[4])
{
    for (unsigned g = 0; g < 4; g++)
        class[g] = vdupq_n_u8(0);
    for (unsigned c = 1; c < count; c++)
        for (unsigned g = 0; g < 4; g++)
            class[g] = vsubq_u8(class[g], vcgeq_u8(keys[g], first[c]));
}

static inline __attribute__((always_inline)) void classes_of(unsigned word, const unsigned char *base,
                                                             const struct class_vectors *v, uint8x16_t class[4])
{
    uint8x16_t keys[4], b[4];
    for (unsigned g = 0; g < 4; g++) {
        bytes_load(base + 16 * word * g, b, 16 * word);
        keys[g] = class_keys(word, b);
    }
    classes_of_keys(keys, v->count, v->first, class);
}

static inline __attribute__((always_inline)) uint64_t bits_equal(const uint8x16_t bytes[4], uint8_t value)
{
    uint8x16_t mask[4];
    for (unsigned g = 0; g < 4; g++)
        mask[g] = vceqq_u8(bytes[g], vdupq_n_u8(value));
    return bits_of(mask);
}

/* All ones where the class has a flag. */
static inline uint8x16_t class_has(const struct class_vectors *v, uint8x16_t class, unsigned flags)
{
    return vtstq_u8(vqtbl1q_u8(v->below, class), vdupq_n_u8((uint8_t)flags));
}

static inline __attribute__((always_inline)) uint64_t bits_below(const struct class_vectors *v,
                                                                 const uint8x16_t class[4], unsigned flags)
{
    uint8x16_t mask[4];
    for (unsigned g = 0; g < 4; g++)
        mask[g] = class_has(v, class[g], flags);
    return bits_of(mask);
}

/* ---- Dealing --------------------------------------------------------------------------------------------------- */

/* of[word - 1]: symbols of 64 elements; of[word - 2]: bytes below; and so on. */
struct class_planes {
    uint8x16_t of[4][4];
};

/* Computes symbols and the bytes below; marks outliers. */
static inline __attribute__((always_inline)) void deal_planes(unsigned word, const unsigned char *data,
                                                              const unsigned char *base, const struct class_vectors *v,
                                                              const uint8x16_t class[4], struct class_planes *planes)
{
    uint8x16_t x[4], b[4], up[4], raised[4], usual[4], bytes[4], flags[4];
    for (unsigned g = 0; g < 4; g++) {
        bytes_load(data + 16 * word * g, x, 16 * word);
        bytes_load(base + 16 * word * g, b, 16 * word);
        words_of(word, vqtbl1q_u8(v->up, class[g]), up);
        for (unsigned k = 0; k < word; k++) {
            const uint8x16_t d = word_sub(word, x[k], b[k]);
            raised[k] = word_shift(word, d, up[k]);
            usual[k] = word_equal(word, word_shift(word, raised[k], bytes_negative(up[k])), d);
        }
        word_split(word, raised, bytes);
        word_split(word, usual, flags);
        bytes[word - 1] = vbslq_u8(flags[0], bytes[word - 1], vdupq_n_u8(LMCI_MARK));
        for (unsigned k = 0; k < word; k++)
            planes->of[k][g] = bytes[k];
    }
}

/* Appends the bytes below symbols whose bits are set. */
static inline __attribute__((always_inline)) void deal_below(unsigned word, const struct class_planes *planes,
                                                             uint64_t usual, const struct class_vectors *v,
                                                             const uint8x16_t class[4], struct lmci_class_lists *lists)
{
    uint8x16_t nibbles[4] = {planes->of[0][0], planes->of[0][1], planes->of[0][2], planes->of[0][3]};
    for (unsigned k = 0; k + 1 < word; k++) {
        const uint8x16_t *plane = planes->of[word - 2 - k];
        if (v->any_low[k])
            put_bytes(usual & (v->all_low[k] ? UINT64_MAX : bits_below(v, class, CLASS_LOW(k))), plane, &lists->low[k]);
        for (unsigned g = 0; word > 2 && v->any_nibble[k] && g < 4; g++)
            nibbles[g] = vbslq_u8(class_has(v, class[g], CLASS_NIBBLE(k)), plane[g], nibbles[g]);
    }
    if (!v->any_half)
        return;
    for (unsigned g = 0; g < 4; g++)
        nibbles[g] = vshrq_n_u8(nibbles[g], 4);
    put_bytes(usual & (v->all_half ? UINT64_MAX : bits_below(v, class, CLASS_HALF)), nibbles, &lists->nibbles);
}

static inline __attribute__((always_inline)) void deal_64(unsigned word, const unsigned char *data,
                                                          const unsigned char *base, const struct class_vectors *v,
                                                          struct lmci_class_lists *lists)
{
    uint8x16_t class[4];
    struct class_planes planes;
    classes_of(word, base, v, class);
    deal_planes(word, data, base, v, class, &planes);
    const uint8x16_t *symbols = planes.of[word - 1];
    const uint64_t marked = bits_equal(symbols, LMCI_MARK);
    for (unsigned c = 0; c < v->count; c++)
        put_bytes(bits_equal(class, (uint8_t)c), symbols, &lists->symbols[c]);
    deal_below(word, &planes, ~marked, v, class, lists);
    for (uint64_t large = marked; large; large &= large - 1) {
        class_store(word, lists->outliers, 0, class_word(word, data, (size_t)__builtin_ctzll(large)));
        lists->outliers += word;
    }
}

/* ---- Joining --------------------------------------------------------------------------------------------------- */

/* Counts 16 elements by class, a byte each, from sums of pairs. */
static inline uint64_t class_counts(const uint8x16_t *sums, unsigned pairs)
{
    uint64x2_t all = vreinterpretq_u64_u8(sums[pairs - 1]);
    for (unsigned p = pairs - 1; p-- > 0;)
        all = vsliq_n_u64(vreinterpretq_u64_u8(sums[p]), all, 8);
    const uint8x16_t low = vandq_u8(vreinterpretq_u8_u64(all), vdupq_n_u8(15));
    const uint8x16_t high = vshrq_n_u8(vreinterpretq_u8_u64(all), 4);
    const uint8x8_t counts =
        vadd_u8(vzip1_u8(vget_low_u8(low), vget_low_u8(high)), vzip1_u8(vget_high_u8(low), vget_high_u8(high)));
    return vget_lane_u64(vreinterpret_u64_u8(counts), 0);
}

/* Adds to each byte those above it in its half of the vector. */
static inline uint8x16_t sums_from(uint8x16_t v)
{
    uint64x2_t sums = vreinterpretq_u64_u8(v);
    sums = vsraq_n_u64(sums, sums, 8);
    sums = vsraq_n_u64(sums, sums, 16);
    return vreinterpretq_u8_u64(vsraq_n_u64(sums, sums, 32));
}

/* Returns the next entry of list c. `before`: entries used so far, a byte for each class. */
static inline const unsigned char *list_at(unsigned char *const *lists, unsigned c, const uint64_t before[2])
{
    return lists[c] + (before[c / 8] >> c % 8 * 8 & 255);
}

/* Joins and counts symbols of 16 elements from pairs of lists. Four bits suffice: half a vector sums to at most 8, and
 * a position, including the first half's sum, to 15. */
static inline __attribute__((always_inline)) uint8x16_t join_16(uint8x16_t class, unsigned pairs,
                                                                const struct class_pairs *v,
                                                                unsigned char *const *lists, uint64_t before[2])
{
    const uint8x16_t first_half = vcombine_u8(vdup_n_u8(255), vdup_n_u8(0)); /* adds its sum to the second half */
    const uint8x16_t reversed = vrev64q_u8(class);
    uint8x16_t sums[CLASS_PAIRS], place = vdupq_n_u8(0), symbols = vdupq_n_u8(0);
    for (unsigned p = 0; p < pairs; p++) {
        const uint8x16_t own = vqtbl1q_u8(v->one[p], reversed);
        sums[p] = sums_from(own);
        const uint8x16_t earlier = vaddq_u8(vsubq_u8(sums[p], own), vqtbl1q_u8(sums[p], first_half));
        place = vbslq_u8(vqtbl1q_u8(v->half[p], reversed), earlier, place);
    }
    /* 16 times the class plus the position, from either half of its byte. */
    const uint8x16_t index = vrev64q_u8(vsliq_n_u8(vsraq_n_u8(place, place, 4), reversed, 4));
    for (unsigned p = 0; p < pairs; p++) {
        const uint8x16x2_t table = {
            {vld1q_u8(list_at(lists, 2 * p, before)), vld1q_u8(list_at(lists, 2 * p + 1, before))}};
        symbols = vorrq_u8(symbols, vqtbl2q_u8(table, vsubq_u8(index, vdupq_n_u8((uint8_t)(32 * p)))));
    }
    for (unsigned p = 0; p < pairs; p += 4)
        before[p / 4] += class_counts(sums + p, pairs - p < 4 ? pairs - p : 4);
    return symbols;
}

static inline __attribute__((always_inline)) void join_symbols(const uint8x16_t class[4], unsigned pairs,
                                                               const struct class_pairs *v, unsigned char **lists,
                                                               uint8x16_t symbols[4])
{
    uint64_t before[2] = {0, 0};
    for (unsigned g = 0; g < 4; g++)
        symbols[g] = join_16(class[g], pairs, v, lists, before);
    for (unsigned c = 0; c < 2 * pairs; c++)
        lists[c] += before[c / 8] >> c % 8 * 8 & 255;
}

/* Expands the bytes below symbols whose bits are set; zeros elsewhere. */
static inline __attribute__((always_inline)) void join_below(unsigned word, struct class_planes *planes, uint64_t usual,
                                                             const struct class_vectors *v, const uint8x16_t class[4],
                                                             struct lmci_class_lists *lists)
{
    const uint8x16_t none = vdupq_n_u8(0);
    uint8x16_t nibbles[4] = {none, none, none, none};
    if (v->any_half)
        take_bytes(usual & (v->all_half ? UINT64_MAX : bits_below(v, class, CLASS_HALF)), &lists->nibbles, nibbles);
    for (unsigned g = 0; g < 4 && v->any_half; g++)
        nibbles[g] = vshlq_n_u8(nibbles[g], 4);
    for (unsigned k = 0; k + 1 < word; k++) {
        uint8x16_t *plane = planes->of[word - 2 - k];
        if (v->any_low[k])
            take_bytes(usual & (v->all_low[k] ? UINT64_MAX : bits_below(v, class, CLASS_LOW(k))), &lists->low[k],
                       plane);
        for (unsigned g = 0; g < 4 && !v->any_low[k]; g++)
            plane[g] = none;
        for (unsigned g = 0; g < 4 && v->any_nibble[k]; g++)
            plane[g] = vorrq_u8(plane[g],
                                word == 2 ? nibbles[g] : vandq_u8(nibbles[g], class_has(v, class[g], CLASS_NIBBLE(k))));
    }
}

static inline __attribute__((always_inline)) void join_64(unsigned word, unsigned pairs, const unsigned char *base,
                                                          const struct class_vectors *v, struct lmci_class_lists *lists,
                                                          unsigned char *data)
{
    uint8x16_t class[4];
    struct class_planes planes;
    classes_of(word, base, v, class);
    join_symbols(class, pairs, &v->pairs, lists->symbols, planes.of[word - 1]);
    const uint64_t marked = bits_equal(planes.of[word - 1], LMCI_MARK);
    join_below(word, &planes, ~marked, v, class, lists);
    for (unsigned g = 0; g < 4; g++) {
        uint8x16_t bytes[4], raised[4], b[4], down[4], x[4];
        for (unsigned k = 0; k < word; k++)
            bytes[k] = planes.of[k][g];
        bytes_load(base + 16 * word * g, b, 16 * word);
        word_weave(word, bytes, raised);
        words_of(word, bytes_negative(vqtbl1q_u8(v->up, class[g])), down);
        for (unsigned k = 0; k < word; k++)
            x[k] = word_add(word, b[k], word_shift(word, raised[k], down[k]));
        bytes_store(data + 16 * word * g, x, 16 * word);
    }
    for (uint64_t large = marked; large; large &= large - 1) {
        class_store(word, data, (size_t)__builtin_ctzll(large), class_word(word, lists->outliers, 0));
        lists->outliers += word;
    }
}

/* ---- All whole vectors ----------------------------------------------------------------------------------------- */

static void deal_whole(unsigned word, const unsigned char *data, const unsigned char *base, size_t n,
                       const struct class_vectors *v, struct lmci_class_lists *lists)
{
    struct lmci_class_lists own = *lists;
    for (size_t at = 0; word == 2 && at < n; at += 64)
        deal_64(2, data + 2 * at, base + 2 * at, v, &own);
    for (size_t at = 0; word == 4 && at < n; at += 64)
        deal_64(4, data + 4 * at, base + 4 * at, v, &own);
    *lists = own;
}

/* Callers pass constants for `word` and `pairs`. */
static inline __attribute__((always_inline)) void join_vectors(unsigned word, unsigned pairs, const unsigned char *base,
                                                               size_t n, const struct class_vectors *v,
                                                               struct lmci_class_lists *lists, unsigned char *data)
{
    for (size_t at = 0; at < n; at += 64)
        join_64(word, pairs, base + word * at, v, lists, data + word * at);
}

/* Unrolls for each number of pairs; extra classes are empty. */
#define FOR_PAIRS(how_many, what)   \
    switch (((how_many) + 1) / 2) { \
    case 1:                         \
        what(1);                    \
        break;                      \
    case 2:                         \
        what(2);                    \
        break;                      \
    case 3:                         \
        what(3);                    \
        break;                      \
    case 4:                         \
        what(4);                    \
        break;                      \
    default:                        \
        what(8);                    \
    }

#define FOR_CLASSES      FOR_PAIRS
#define FOR_CLASSES_OF_2 FOR_PAIRS
