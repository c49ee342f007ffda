/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * context_impl.h - bytes dealt to classes by the byte that lies a distance before each, and joined again.
 *
 * The distance is at least 64, so that the decoder has all that a vector of 64 needs when it comes to it. Before the
 * first byte there are zeros.
 */
#include "vbmi2_impl.h"

#if defined(__AVX512VBMI2__)

struct context_vectors {
    __m512i class[4];
};

static inline struct context_vectors context_vectors(const uint8_t classes[256])
{
    struct context_vectors v;
    for (unsigned k = 0; k < 4; k++)
        v.class[k] = _mm512_loadu_si512(classes + 64 * k);
    return v;
}

static inline __m512i context_classes(const struct context_vectors *v, const unsigned char *before)
{
    const __m512i keys = _mm512_loadu_si512(before);
    __m512i low = _mm512_permutex2var_epi8(v->class[0], keys, v -> class[1]);
    __m512i high = _mm512_permutex2var_epi8(v->class[2], keys, v -> class[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(keys), low, high);
}

/* From `i` on, as far as whole vectors reach; returns where that is. */
static size_t context_pick_whole(const uint8_t classes[256], unsigned class, const unsigned char *bytes, size_t n,
                                 size_t distance, size_t i, unsigned char **list)
{
    const struct context_vectors v = context_vectors(classes);
    const __m512i wanted = _mm512_set1_epi8((char)class);
    unsigned char *at = *list;
    for (; i + 64 <= n; i += 64) {
        uint64_t mask = _mm512_cmpeq_epi8_mask(context_classes(&v, bytes + i - distance), wanted);
        _mm512_storeu_si512(at, compress_bytes(mask, _mm512_loadu_si512(bytes + i)));
        at += __builtin_popcountll(mask);
    }
    *list = at;
    return i;
}

static size_t context_join_whole(const uint8_t classes[256], unsigned count, size_t n, size_t distance, size_t i,
                                 const unsigned char **lists, unsigned char *bytes)
{
    const struct context_vectors v = context_vectors(classes);
    for (; i + 64 <= n; i += 64) {
        const __m512i of = context_classes(&v, bytes + i - distance);
        __m512i all = _mm512_setzero_si512();
        for (unsigned c = 0; c < count; c++) {
            uint64_t mask = _mm512_cmpeq_epi8_mask(of, _mm512_set1_epi8((char)c));
            all = _mm512_or_si512(all, expand_bytes(mask, _mm512_loadu_si512(lists[c])));
            lists[c] += __builtin_popcountll(mask);
        }
        _mm512_storeu_si512(bytes + i, all);
    }
    return i;
}

#else

static size_t context_pick_whole(const uint8_t classes[256], unsigned class, const unsigned char *bytes, size_t n,
                                 size_t distance, size_t i, unsigned char **list)
{
    (void)classes, (void)class, (void)bytes, (void)n, (void)distance, (void)list;
    return i;
}

static size_t context_join_whole(const uint8_t classes[256], unsigned count, size_t n, size_t distance, size_t i,
                                 const unsigned char **lists, unsigned char *bytes)
{
    (void)classes, (void)count, (void)n, (void)distance, (void)lists, (void)bytes;
    return i;
}

#endif

/* Bytes of one class, side by side; returns how many. Up to 64 bytes past their end are written. */
static size_t context_pick(const uint8_t classes[256], unsigned class, const unsigned char *bytes, size_t n,
                           size_t distance, unsigned char *list)
{
    unsigned char *at = list;
    size_t i = 0;
    for (; i < n && i < distance; i++) {
        *at = bytes[i];
        at += classes[0] == class;
    }
    i = context_pick_whole(classes, class, bytes, n, distance, i, &at);
    for (; i < n; i++) {
        *at = bytes[i];
        at += classes[bytes[i - distance]] == class;
    }
    return (size_t)(at - list);
}

/* The inverse: `lists` advance together by n, whatever they hold. */
static void context_join(const uint8_t classes[256], unsigned count, size_t n, size_t distance,
                         const unsigned char **lists, unsigned char *bytes)
{
    size_t i = 0;
    for (; i < n && i < distance; i++)
        bytes[i] = *lists[classes[0]]++;
    i = context_join_whole(classes, count, n, distance, i, lists, bytes);
    for (; i < n; i++)
        bytes[i] = *lists[classes[bytes[i - distance]]]++;
}
