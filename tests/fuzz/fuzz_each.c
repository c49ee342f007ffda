/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_each.c - fuzz target: each kernel does the same in all tables, and stays within its buffers.
 *
 * The input chooses kernel, amount and contents, possibly inconsistent. Buffers have exactly the room of kernels.h,
 * before or after an inaccessible page.
 */
#include "base/bytes.h"
#include "block/classes.h"
#include "block/keyed.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

#define REQUIRE(condition)                                                                             \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "line %d, kernels %s: not so: %s\n", __LINE__, lmc_kernels(), #condition); \
            abort();                                                                                   \
        }                                                                                              \
    } while (0)

#define MOST_ELEMENTS ((size_t)2048)
#define SLOTS         28
#define PAD           ((size_t)64)

/* The first is the reference. */
static const char *const tables[] = {"portable", "neon", "avx2", "avx512"};
enum { TABLES = sizeof tables / sizeof *tables };

/* ---- Buffers --------------------------------------------------------------------------------------------------- */

struct wishes {
    const uint8_t *at;
    size_t left;
    uint64_t random;
    size_t n;
    bool at_end; /* before an inaccessible page */
};

static uint8_t wish(struct wishes *wishes)
{
    if (wishes->left == 0)
        return 0;
    wishes->left--;
    return *wishes->at++;
}

static uint64_t next_random(struct wishes *wishes)
{
    wishes->random ^= wishes->random << 13;
    wishes->random ^= wishes->random >> 7;
    wishes->random ^= wishes->random << 17;
    return wishes->random * UINT64_C(0x2545f4914f6cdd1d);
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t slot_bytes(void)
{
    return (8 * MOST_ELEMENTS + PAD + page_bytes() - 1) / page_bytes() * page_bytes();
}

/* Directly before an inaccessible page, or after one. */
static unsigned char *slot(unsigned index, size_t bytes, const struct wishes *wishes)
{
    static unsigned char *memory[SLOTS];
    REQUIRE(index < SLOTS && bytes <= slot_bytes());
    if (memory[index] == NULL) {
        const size_t all = slot_bytes() + 2 * page_bytes();
        void *mapped = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(mapped != MAP_FAILED);
        memory[index] = (unsigned char *)mapped + page_bytes();
        REQUIRE(mprotect(memory[index], slot_bytes(), PROT_READ | PROT_WRITE) == 0);
    }
    return wishes->at_end ? memory[index] + slot_bytes() - bytes : memory[index];
}

/* `few`: of so many values. */
static unsigned char *filled(unsigned index, size_t bytes, unsigned few, struct wishes *wishes)
{
    unsigned char *at = slot(index, bytes, wishes);
    for (size_t i = 0; i < bytes; i++) {
        const uint64_t random = next_random(wishes) >> 32;
        at[i] = (unsigned char)(few != 0 ? random % few : random);
    }
    return at;
}

/* ---- Results --------------------------------------------------------------------------------------------------- */

struct made {
    unsigned char *bytes;
    size_t count;
};

static void made_bytes(struct made *made, const void *bytes, size_t count)
{
    if (count == 0)
        return;
    made->bytes = realloc(made->bytes, made->count + count);
    REQUIRE(made->bytes);
    memcpy(made->bytes + made->count, bytes, count);
    made->count += count;
}

static void made_number(struct made *made, size_t number)
{
    const uint64_t value = number;
    made_bytes(made, &value, sizeof value);
}

/* ---- Classes --------------------------------------------------------------------------------------------------- */

static struct lmci_classes wished_classes(unsigned word, struct wishes *wishes)
{
    struct lmci_classes classes = {.count = 1 + wish(wishes) % LMCI_MAX_CLASSES};
    const unsigned step = 1 + wish(wishes) % (255 / LMCI_MAX_CLASSES), from = wish(wishes) % 16, shifts = wish(wishes);
    for (unsigned c = 0; c < classes.count; c++) {
        classes.first[c] = (uint8_t)(c != 0 ? from + c * step : 0);
        /* One for all, or random ones. */
        const uint64_t shift = (shifts & 1) != 0 ? next_random(wishes) >> 32 : shifts >> 1;
        classes.shift[c] = (uint8_t)(4 * (shift % (2 * word - 1)));
    }
    return classes;
}

/* Keys mostly of the classes, else near them. */
static void fill_words(unsigned word, const struct lmci_classes *classes, struct wishes *wishes, unsigned char *data,
                       unsigned char *base)
{
    const unsigned rare = 1u << wish(wishes) % 12;
    for (size_t i = 0; i < wishes->n; i++) {
        const uint64_t random = next_random(wishes);
        const unsigned c = (unsigned)(random >> 40) % classes->count;
        const uint32_t key = classes->first[c] + (uint32_t)(random >> 56) % 3;
        const uint32_t rest = (uint32_t)random & (word == 2 ? 0x807f : 0x807fffff);
        const uint32_t b = rest | key << (word == 2 ? 7 : 23);
        const uint32_t span = UINT32_C(253) << classes->shift[c];
        uint32_t x = b + (uint32_t)(next_random(wishes) >> 32) % (span + 1) - span / 2;
        x = next_random(wishes) % rare == 0 ? (uint32_t)next_random(wishes) : x;
        if (word == 2) {
            lmci_store16(base + 2 * i, (uint16_t)b);
            lmci_store16(data + 2 * i, (uint16_t)x);
        } else {
            lmci_store32(base + 4 * i, b);
            lmci_store32(data + 4 * i, x);
        }
    }
}

enum { DATA, BASE, LIST, LOW = LIST + LMCI_MAX_CLASSES, NIBBLES = LOW + 3, OUTLIERS, NONE, OUT };

static struct lmci_class_lists list_starts(unsigned word, unsigned count, const struct wishes *wishes)
{
    struct lmci_class_lists lists;
    const size_t room = wishes->n + PAD;
    for (unsigned c = 0; c < LMCI_MAX_CLASSES; c++)
        lists.symbols[c] = slot(c < count ? LIST + c : NONE, room, wishes);
    for (unsigned k = 0; k < 3; k++)
        lists.low[k] = slot(LOW + k, room, wishes);
    lists.nibbles = slot(NIBBLES, room, wishes);
    lists.outliers = slot(OUTLIERS, word * wishes->n + PAD, wishes);
    return lists;
}

static void made_list(struct made *made, const unsigned char *start, const unsigned char *end, bool bytes)
{
    made_number(made, (size_t)(end - start));
    if (bytes)
        made_bytes(made, start, (size_t)(end - start));
}

static void made_lists(struct made *made, unsigned word, unsigned count, const struct lmci_class_lists *end, bool bytes,
                       const struct wishes *wishes)
{
    const struct lmci_class_lists start = list_starts(word, count, wishes);
    for (unsigned c = 0; c < count; c++)
        made_list(made, start.symbols[c], end->symbols[c], bytes);
    for (unsigned k = 0; k < 3; k++)
        made_list(made, start.low[k], end->low[k], bytes);
    made_list(made, start.nibbles, end->nibbles, bytes);
    made_list(made, start.outliers, end->outliers, bytes);
}

/* Also joins inconsistent lists. */
static void try_classes(struct wishes *wishes, struct made *made)
{
    const unsigned what = wish(wishes), word = (what & 1) != 0 ? 4 : 2;
    const bool dealt = (what & 2) != 0;
    const size_t n = wishes->n;
    const struct lmci_classes classes = wished_classes(word, wishes);
    unsigned char *data = slot(DATA, word * n, wishes), *base = slot(BASE, word * n, wishes);
    struct lmci_class_lists lists = list_starts(word, classes.count, wishes);
    fill_words(word, &classes, wishes, data, base);
    if (dealt) {
        struct lmc_hasher hasher;
        lmc_hasher_init(&hasher);
        lmci_kernels()->class_deal(word, data, base, n, &classes, hasher.opaque, &lists);
        const struct lmc_hash hash = lmc_hasher_final(&hasher), whole = lmc_hash128(data, word * n);
        REQUIRE(hash.low == whole.low && hash.high == whole.high);
        made_lists(made, word, classes.count, &lists, true, wishes);
    } else {
        for (unsigned k = LIST; k <= NIBBLES; k++)
            filled(k, n + PAD, k < LOW ? 0 : 16, wishes);
        filled(OUTLIERS, word * n + PAD, 0, wishes);
    }
    lists = list_starts(word, classes.count, wishes);
    unsigned char *out = slot(OUT, word * n, wishes);
    lmci_kernels()->class_join(word, base, n, &classes, NULL, &lists, out);
    REQUIRE(!dealt || n == 0 || memcmp(out, data, word * n) == 0);
    made_lists(made, word, classes.count, &lists, false, wishes);
    made_bytes(made, out, word * n);
    lmci_kernels()->class_rotate(word, what & 4, base, n, out);
    made_bytes(made, out, word * n);
}

/* ---- Contexts -------------------------------------------------------------------------------------------------- */

static void try_contexts(struct wishes *wishes, struct made *made)
{
    const struct lmci_classes firsts = wished_classes(2, wishes);
    const unsigned few = wish(wishes);
    const size_t n = wishes->n, distance = 64 + wish(wishes);
    const unsigned char *lists[LMCI_MAX_CLASSES], *starts[LMCI_MAX_CLASSES];
    const unsigned char *bytes = filled(DATA, n, few, wishes);
    unsigned char *out = slot(OUT, n, wishes);
    uint8_t classes[256] = {0};
    for (unsigned c = 1; c < firsts.count; c++)
        memset(classes + firsts.first[c], (int)c, 256u - firsts.first[c]);
    for (unsigned c = 0; c < firsts.count; c++) {
        unsigned char *list = slot(LIST + c, n + PAD, wishes);
        const size_t count = lmci_kernels()->context_pick(classes, c, bytes, n, distance, list);
        made_list(made, list, list + count, true);
        lists[c] = list;
    }
    lmci_kernels()->context_join(classes, firsts.count, n, distance, lists, out);
    REQUIRE(n == 0 || memcmp(out, bytes, n) == 0);
    for (unsigned c = 0; c < firsts.count; c++)
        lists[c] = starts[c] = filled(LIST + c, n + PAD, few, wishes);
    lmci_kernels()->context_join(classes, firsts.count, n, distance, lists, out);
    for (unsigned c = 0; c < firsts.count; c++)
        made_list(made, starts[c], lists[c], false);
    made_bytes(made, out, n);
}

/* ---- Trees ----------------------------------------------------------------------------------------------------- */

static void try_tree(struct wishes *wishes, struct made *made)
{
    const uint8_t pivot = wish(wishes), few = wish(wishes);
    const bool ones_kept = (wish(wishes) & 1) != 0;
    const size_t n = wishes->n + 1, bit_bytes = (n + 7) / 8; /* at least one symbol */
    unsigned char *list = filled(DATA, n + PAD, few, wishes), *bits = slot(BASE, bit_bytes, wishes);
    unsigned char *ones = slot(LIST, n + PAD, wishes), *whole = slot(LIST + 1, n, wishes), *out;
    memcpy(whole, list, n);
    made_number(made, lmci_kernels()->tree_bits(list, n, pivot, bits));
    made_bytes(made, bits, bit_bytes);
    const size_t count = lmci_kernels()->tree_split(list, n, pivot, bits, ones);
    made_list(made, ones, ones + count, true);
    made_list(made, list, list + n - count, true);
    made_bytes(made, bits, bit_bytes);
    REQUIRE(lmci_kernels()->tree_count(bits, n) == count);

    /* Only the symbols that the bits require. */
    const unsigned char *zero = memcpy(slot(LIST + 2, n - count + PAD, wishes), list, n - count);
    const unsigned char *one = memcpy(slot(LIST + 3, count + PAD, wishes), ones, count);
    struct lmci_side sides[2] = {{zero, 0}, {one, 0}};
    out = slot(OUT, n + PAD, wishes);
    lmci_kernels()->tree_merge(bits, n, sides, out);
    REQUIRE(memcmp(out, whole, n) == 0);
    for (unsigned missing = 1; missing < 4; missing++) {
        sides[0] = (struct lmci_side){(missing & 1) != 0 ? NULL : zero, few};
        sides[1] = (struct lmci_side){(missing & 2) != 0 ? NULL : one, pivot};
        lmci_kernels()->tree_merge(bits, n, sides, out);
        made_bytes(made, out, n);
    }
    list = memcpy(slot(DATA, n + PAD, wishes), whole, n);
    const size_t kept = lmci_kernels()->tree_keep(list, n, pivot, ones_kept, bits, list);
    REQUIRE(kept == count);
    made_list(made, list, list + (ones_kept ? count : n - count), true);
}

/* ---- Bytes ----------------------------------------------------------------------------------------------------- */

static void try_bytes(struct wishes *wishes, struct made *made)
{
    const uint8_t few = wish(wishes), wished = wish(wishes), every = 1 + wish(wishes) % 3;
    const unsigned mask = wished % 255 != 0 ? wished % 255 : 1; /* neither all nor none */
    const size_t n = wishes->n + 1, packed_bytes = (n * (size_t)__builtin_popcount(mask) + 7) / 8;
    const unsigned char *bytes = filled(DATA, n, few, wishes), *names = filled(BASE, 256, few, wishes);
    unsigned char *out = slot(OUT, n, wishes);
    uint32_t counts[256];
    const struct lmc_hash hash = lmci_kernels()->hash128(bytes, n);
    made_bytes(made, &hash, sizeof hash);
    made_number(made, lmci_kernels()->hash64(bytes, n, few));
    lmci_kernels()->stream(out, bytes, n);
    lmci_kernels()->fence();
    REQUIRE(memcmp(out, bytes, n) == 0);
    lmci_kernels()->rename(names, bytes, n, out);
    made_bytes(made, out, n);
    lmci_kernels()->count(bytes, n, every, counts);
    made_bytes(made, counts, sizeof counts);
    made_number(made, lmci_kernels()->bits_varying(bytes, n));

    unsigned char *packed = slot(LIST, packed_bytes, wishes), *apart = slot(LIST + 1, n + 7, wishes);
    lmci_kernels()->bits_pack(mask, bytes, n, packed);
    lmci_kernels()->bits_unpack(mask, 255 & ~mask, packed, n, apart);
    made_bytes(made, packed, packed_bytes);
    made_bytes(made, apart, n);

    unsigned char *nibbles = slot(LIST + 2, n, wishes), *pairs = slot(LIST + 3, (n + 1) / 2, wishes);
    for (size_t i = 0; i < n; i++)
        nibbles[i] = bytes[i] & 15;
    lmci_kernels()->pack_nibbles(nibbles, n, pairs);
    lmci_kernels()->unpack_nibbles(pairs, n, out);
    made_bytes(made, pairs, (n + 1) / 2);
    REQUIRE(memcmp(out, nibbles, n) == 0);
}

/* ---- Words ----------------------------------------------------------------------------------------------------- */

static void try_words(struct wishes *wishes, struct made *made)
{
    const unsigned word = 1u << wish(wishes) % 4;
    const enum lmci_transform transform = (enum lmci_transform)(wish(wishes) % LMCI_TRANSFORM_END);
    const size_t n = wishes->n;
    const unsigned char *data = filled(DATA, word * n, 0, wishes);
    const unsigned char *base = lmci_transform_needs_base(transform) != 0 ? filled(BASE, word * n, 0, wishes) : NULL;
    unsigned char *planes[LMCI_MAX_WORD], *out = slot(OUT, word * n, wishes);
    for (unsigned p = 0; p < word; p++)
        planes[p] = slot(LIST + p, n, wishes);
    lmci_kernels()->split(transform, word, data, base, n, planes);
    for (unsigned p = 0; p < word; p++)
        made_bytes(made, planes[p], n);
    lmci_kernels()->merge(transform, word, (const unsigned char *const *)planes, base, n, out);
    REQUIRE(n == 0 || memcmp(out, data, word * n) == 0);

    uint16_t *offsets = (void *)slot(LOW, sizeof *offsets * (n + 32), wishes);
    const size_t selected = lmci_kernels()->anchors(word, 2 + wish(wishes) % 8, data, word * n, offsets);
    made_bytes(made, offsets, sizeof *offsets * selected);
    made_number(made, selected);
}

/* Through their stand-ins. */
static void try_keyed(struct wishes *wishes, struct made *made)
{
    const unsigned word = (wish(wishes) & 1) != 0 ? 8 : 1, own = lmci_keyed_word(word);
    const unsigned low = wish(wishes) % (LMCI_KEYED_LOW_MOST + 1);
    const size_t n = wishes->n;
    const unsigned char *data = filled(DATA, word * n, 0, wishes), *base = filled(BASE, word * n, 0, wishes);
    unsigned char *against = slot(LOW, own * n, wishes), *to = slot(LOW + 1, own * n, wishes);
    unsigned char *planes[LMCI_KEYED_PLANES], *out = slot(OUT, word * n, wishes);
    for (unsigned p = 0; p < LMCI_KEYED_PLANES; p++)
        planes[p] = filled(LIST + p, n, 0, wishes);
    lmci_kernels()->keyed_base(word, base, n, against);
    lmci_kernels()->keyed_split(word, low, data, base, against, n, planes, to);
    made_bytes(made, against, own * n);
    made_bytes(made, to, own * n);
    for (unsigned p = 0; p < LMCI_KEYED_PLANES; p++)
        made_bytes(made, planes[p], n);
    lmci_kernels()->keyed_join(word, low, (const unsigned char *const *)planes, to, against, base, n, out);
    REQUIRE(n == 0 || memcmp(out, data, word * n) == 0);
}

/* ---------------------------------------------------------------------------------------------------------------- */

static struct made try_input(const uint8_t *bytes, size_t count)
{
    static void (*const tries[])(struct wishes *, struct made *) = {try_classes, try_contexts, try_tree,
                                                                    try_bytes,   try_words,    try_keyed};
    struct wishes wishes = {.at = bytes, .left = count, .random = 88172645463325252u};
    struct made made = {NULL, 0};
    const unsigned which = wish(&wishes);
    wishes.at_end = (which & 1) != 0;
    wishes.n = wish(&wishes);
    wishes.n = (wishes.n | (size_t)wish(&wishes) << 8) % MOST_ELEMENTS;
    for (size_t i = 0; i < wishes.left; i++)
        wishes.random = (wishes.random ^ wishes.at[i]) * UINT64_C(0x100000001b3);
    wishes.random |= 1;
    tries[(which >> 1) % (sizeof tries / sizeof *tries)](&wishes, &made);
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    REQUIRE(lmci_kernels_use(tables[0]));
    struct made first = try_input(bytes, count);
    for (unsigned k = 1; k < TABLES; k++) {
        if (!lmci_kernels_use(tables[k]))
            continue;
        struct made other = try_input(bytes, count);
        REQUIRE(other.count == first.count);
        REQUIRE(first.count == 0 || memcmp(other.bytes, first.bytes, first.count) == 0);
        free(other.bytes);
    }
    free(first.bytes);
    lmci_kernels_use(NULL);
    return 0;
}
