/* SPDX-License-Identifier: BSD-3-Clause */
/* context_neon.h - contexts with NEON, 64 bytes at a time. */

/* Finds each class's least byte. False: the classes do not ascend. */
static bool context_firsts(const uint8_t classes[256], unsigned count, uint8_t first[LMCI_MAX_CLASSES])
{
    unsigned class = 0;
    first[0] = 0;
    if (classes[0] != 0 || count > LMCI_MAX_CLASSES)
        return false;
    for (unsigned k = 1; k < 256; k++) {
        if (classes[k] == class)
            continue;
        if (classes[k] != class + 1 || class + 1 == count)
            return false;
        first[++class] = (uint8_t)k;
    }
    return class + 1 == count;
}

static size_t context_pick_whole(const uint8_t classes[256], unsigned class, const unsigned char *bytes, size_t n,
                                 size_t distance, size_t i, unsigned char **list)
{
    uint8_t first[LMCI_MAX_CLASSES];
    const unsigned count = classes[255] + 1u;
    if (class >= count || !context_firsts(classes, count, first))
        return i;
    const unsigned end = class + 1 < count ? first[class + 1] : 256;
    const uint8x16_t least = vdupq_n_u8(first[class]), most = vdupq_n_u8((uint8_t)(end - 1 - first[class]));
    unsigned char *at = *list;
    for (; i + 64 <= n; i += 64) {
        uint8x16_t own[4], mask[4];
        bytes_load(bytes + i - distance, mask, 64);
        bytes_load(bytes + i, own, 64);
        for (unsigned g = 0; g < 4; g++)
            mask[g] = vcleq_u8(vsubq_u8(mask[g], least), most);
        put_bytes(bits_of(mask), own, &at);
    }
    *list = at;
    return i;
}

/* Callers pass a constant for `pairs`. */
static inline __attribute__((always_inline)) size_t context_join_pairs(const uint8_t *first, unsigned count,
                                                                       unsigned pairs, size_t n, size_t distance,
                                                                       size_t i, unsigned char **lists,
                                                                       unsigned char *bytes)
{
    struct class_pairs v;
    uint8x16_t firsts[LMCI_MAX_CLASSES];
    class_pairs(&v);
    for (unsigned c = 0; c < count; c++)
        firsts[c] = vdupq_n_u8(first[c]);
    for (; i + 64 <= n; i += 64) {
        uint8x16_t keys[4], class[4], symbols[4];
        bytes_load(bytes + i - distance, keys, 64);
        classes_of_keys(keys, count, firsts, class);
        join_symbols(class, pairs, &v, lists, symbols);
        bytes_store(bytes + i, symbols, 64);
    }
    return i;
}

static size_t context_join_whole(const uint8_t classes[256], unsigned count, size_t n, size_t distance, size_t i,
                                 const unsigned char **lists, unsigned char *bytes)
{
    uint8_t first[LMCI_MAX_CLASSES];
    unsigned char *own[LMCI_MAX_CLASSES];
    if (!context_firsts(classes, count, first))
        return i;
    for (unsigned c = 0; c < LMCI_MAX_CLASSES; c++)
        own[c] = (unsigned char *)(uintptr_t)lists[c < count ? c : 0]; /* only read */
#define JOIN_CONTEXTS(pairs) i = context_join_pairs(first, count, pairs, n, distance, i, own, bytes)
    FOR_PAIRS(count, JOIN_CONTEXTS)
    for (unsigned c = 0; c < count; c++)
        lists[c] = own[c];
    return i;
}
