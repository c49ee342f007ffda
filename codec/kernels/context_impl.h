/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * context_impl.h - deals bytes to classes by the byte at a distance before each, and joins them.
 *
 * At distances of at least 64, a vector of bytes depends only on bytes that are already decoded. Zeros precede the
 * first byte.
 */
#include "kernels/vbmi2_impl.h"

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

/* Gathers one class, by whole vectors. Returns the index of the first byte left. */
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

#elif defined(__AVX2__) && defined(__BMI2__)

/* Stores the last byte before each class, less 128. False: the classes do not ascend. */
static bool context_bounds(const uint8_t classes[256], unsigned count, __m256i last[LMCI_MAX_CLASSES + 1])
{
    unsigned class = 0;
    if (classes[0] != 0 || count > LMCI_MAX_CLASSES)
        return false;
    for (unsigned k = 1; k < 256; k++) {
        const bool next = classes[k] != class;
        if (next && (classes[k] != class + 1 || class + 1 == count))
            return false;
        if (next)
            last[++class] = _mm256_set1_epi8((char)(uint8_t)(k - 129));
    }
    last[class + 1] = _mm256_set1_epi8(127);
    return class + 1 == count;
}

static inline __m256i context_keys(const unsigned char *before)
{
    __m256i keys = _mm256_loadu_si256((const __m256i *)(const void *)before);
    return _mm256_xor_si256(keys, _mm256_set1_epi8(-128));
}

static size_t context_pick_whole(const uint8_t classes[256], unsigned class, const unsigned char *bytes, size_t n,
                                 size_t distance, size_t i, unsigned char **list)
{
    __m256i last[LMCI_MAX_CLASSES + 1];
    const unsigned count = classes[255] + 1u;
    if (class >= count || !context_bounds(classes, count, last))
        return i;
    const __m256i first = class > 0 ? last[class] : _mm256_setzero_si256(), all = _mm256_set1_epi8(class > 0 ? 0 : -1);
    unsigned char *at = *list;
    for (; i + 32 <= n; i += 32) {
        const __m256i keys = context_keys(bytes + i - distance);
        const __m256i reach = _mm256_or_si256(all, _mm256_cmpgt_epi8(keys, first));
        put_masked(_mm256_andnot_si256(_mm256_cmpgt_epi8(keys, last[class + 1]), reach),
                   _mm256_loadu_si256((const __m256i *)(const void *)(bytes + i)), &at);
    }
    *list = at;
    return i;
}

static size_t context_join_whole(const uint8_t classes[256], unsigned count, size_t n, size_t distance, size_t i,
                                 const unsigned char **lists, unsigned char *bytes)
{
    __m256i last[LMCI_MAX_CLASSES + 1], class;
    unsigned char *own[LMCI_MAX_CLASSES];
    if (!context_bounds(classes, count, last))
        return i;
    for (unsigned c = 0; c < count; c++)
        own[c] = (unsigned char *)(uintptr_t)lists[c]; /* only read */
    for (; i + 32 <= n; i += 32) {
        __m256i v = join_symbols(context_keys(bytes + i - distance), count, last, own, &class);
        _mm256_storeu_si256((__m256i *)(void *)(bytes + i), v);
    }
    for (unsigned c = 0; c < count; c++)
        lists[c] = own[c];
    return i;
}

#elif defined(LMCI_NEON)

#include "kernels/context_neon.h"

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

static size_t context_pick(const uint8_t classes[256], unsigned class, const unsigned char *bytes, size_t n,
                           size_t distance, unsigned char *list)
{
    size_t i = distance < n ? distance : n;
    unsigned char *at = list;
    if (classes[0] == class) {
        memcpy(list, bytes, i);
        at += i;
    }
    i = context_pick_whole(classes, class, bytes, n, distance, i, &at);
    for (; i < n; i++) {
        *at = bytes[i];
        at += classes[bytes[i - distance]] == class;
    }
    return (size_t)(at - list);
}

static void context_join(const uint8_t classes[256], unsigned count, size_t n, size_t distance,
                         const unsigned char **lists, unsigned char *bytes)
{
    size_t i = distance < n ? distance : n;
    memcpy(bytes, lists[classes[0]], i);
    lists[classes[0]] += i;
    i = context_join_whole(classes, count, n, distance, i, lists, bytes);
    for (; i < n; i++)
        bytes[i] = *lists[classes[bytes[i - distance]]]++;
}
