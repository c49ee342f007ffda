/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_codec_kernels.c - the kernels that deal words to classes and join them, beside the portable ones.
 *
 * All lengths around vectors and pieces, odd addresses, numbers of classes, and kinds of lists. Tensors end where their
 * memory ends, for AddressSanitizer.
 */
#include "kernels/kernels.h"
#include "test_codec_modes_support.h"

const struct lmci_kernels *lmci_kernels(void) __attribute__((weak)); /* hidden in a shared library */

#define LEAST_MANY 2040 /* elements, near the end of a piece of 2048 */
#define MOST       4200
#define LISTS      (LMCI_MAX_CLASSES + 5)
#define ROOM       (4 * MOST + LMCI_CLASS_PAD)

/* All lists of a block, each with room for all elements. */
struct lists {
    unsigned char bytes[LISTS][ROOM];
    struct lmci_class_lists begin, end;
};

static void lists_start(struct lists *lists)
{
    for (unsigned c = 0; c < LMCI_MAX_CLASSES; c++)
        lists->begin.symbols[c] = lists->bytes[c];
    for (unsigned k = 0; k < 3; k++)
        lists->begin.low[k] = lists->bytes[LMCI_MAX_CLASSES + k];
    lists->begin.nibbles = lists->bytes[LMCI_MAX_CLASSES + 3];
    lists->begin.outliers = lists->bytes[LMCI_MAX_CLASSES + 4];
    lists->end = lists->begin;
}

static size_t list_bytes(const struct lists *lists, unsigned which)
{
    const unsigned char *end = which < LMCI_MAX_CLASSES       ? lists->end.symbols[which]
                               : which < LMCI_MAX_CLASSES + 3 ? lists->end.low[which - LMCI_MAX_CLASSES]
                               : which == LISTS - 2           ? lists->end.nibbles
                                                              : lists->end.outliers;
    return (size_t)(end - lists->bytes[which]);
}

static void assert_same_ends(const struct lists *one, const struct lists *other)
{
    for (unsigned k = 0; k < LISTS; k++)
        assert_int_equal(list_bytes(one, k), list_bytes(other, k));
}

/* Classes of `apart` keys each, in the middle of all keys. `shifts`: a hexadecimal digit for each class, in fours. */
static struct lmci_classes classes_of(unsigned count, unsigned apart, uint64_t shifts)
{
    struct lmci_classes classes = {.count = count};
    for (unsigned c = 0; c < count; c++) {
        classes.first[c] = (uint8_t)(c == 0 ? 0 : 100 + apart * c);
        classes.shift[c] = (uint8_t)(4 * (shifts >> 4 * c & 15));
    }
    return classes;
}

static uint32_t random_word(unsigned word, const struct lmci_classes *classes, uint64_t *random, uint32_t *base)
{
    const uint64_t some = next_random(random);
    const unsigned c = (unsigned)(some % classes->count), key = classes->first[c] + (unsigned)(some >> 8 & 1);
    const uint32_t below = (uint32_t)(some >> 16), sign = (uint32_t)(some >> 63);
    *base = word == 2 ? (sign << 15 | key << 7 | (below & 0x7f)) : (sign << 31 | key << 23 | (below & 0x7fffff));
    if ((some >> 40 & 31) == 0)
        return *base ^ (uint32_t)next_random(random); /* mostly an outlier */
    const int64_t reach = INT64_C(130) << classes->shift[c];
    return *base + (uint32_t)((int64_t)(next_random(random) % (uint64_t)(2 * reach)) - reach);
}

struct block {
    unsigned word;
    size_t n;
    unsigned char *data, *base, *out; /* at odd addresses, at the end of their memory */
    void *memory[3];
};

static struct block block_new(unsigned word, size_t n, size_t shift, const struct lmci_classes *classes,
                              uint64_t *random)
{
    struct block block = {.word = word, .n = n};
    for (unsigned k = 0; k < 3; k++)
        block.memory[k] = malloc(shift + k + word * n + (n == 0));
    block.data = (unsigned char *)block.memory[0] + shift;
    block.base = (unsigned char *)block.memory[1] + shift + 1;
    block.out = (unsigned char *)block.memory[2] + shift + 2;
    for (size_t i = 0; i < n; i++) {
        uint32_t base, x = random_word(word, classes, random, &base);
        memcpy(block.data + i * word, &x, word); /* little-endian */
        memcpy(block.base + i * word, &base, word);
    }
    return block;
}

static void block_free(struct block *block)
{
    for (unsigned k = 0; k < 3; k++)
        free(block->memory[k]);
}

static struct lmc_hash deal(const struct block *block, const struct lmci_classes *classes, struct lists *lists)
{
    struct lmc_hasher hasher;
    lists_start(lists);
    lmc_hasher_init(&hasher);
    lmci_kernels()->class_deal(block->word, block->data, block->base, block->n, classes, hasher.opaque, &lists->end);
    return lmc_hasher_final(&hasher);
}

static struct lmc_hash join(const struct block *block, const struct lmci_classes *classes, struct lists *lists)
{
    struct lmc_hasher hasher;
    lists->end = lists->begin;
    memset(block->out, 0x5a, block->word * block->n);
    lmc_hasher_init(&hasher);
    lmci_kernels()->class_join(block->word, block->base, block->n, classes, hasher.opaque, &lists->end, block->out);
    return lmc_hasher_final(&hasher);
}

static void assert_same_hash(struct lmc_hash hash, const void *data, size_t bytes)
{
    const struct lmc_hash whole = lmc_hash128(data, bytes);
    assert_true(hash.low == whole.low && hash.high == whole.high);
}

/* Joins lists that no dealing made: their symbols are random. */
static void check_wrong_lists(const struct block *block, const struct lmci_classes *classes, const char *table,
                              uint64_t *random)
{
    static struct lists own, portable;
    unsigned char *expected = malloc(block->word * block->n + 1);
    lists_start(&own);
    lists_start(&portable);
    for (unsigned k = 0; k < LISTS; k++)
        for (size_t i = 0; i < block->word * block->n; i++)
            own.bytes[k][i] = (unsigned char)(next_random(random) & (k == LISTS - 2 ? 15 : 255));
    memcpy(portable.bytes, own.bytes, sizeof own.bytes);
    assert_true(use_kernels("portable"));
    join(block, classes, &portable);
    memcpy(expected, block->out, block->word * block->n);
    assert_true(use_kernels(table));
    assert_same_hash(join(block, classes, &own), block->out, block->word * block->n);
    assert_memory_equal(block->out, expected, block->word * block->n);
    assert_same_ends(&own, &portable);
    free(expected);
}

static void check(unsigned word, size_t n, size_t shift, const struct lmci_classes *classes, uint64_t *random)
{
    static struct lists own, portable;
    struct block block = block_new(word, n, shift, classes, random);
    assert_true(use_kernels("portable"));
    assert_same_hash(deal(&block, classes, &portable), block.data, word * n);
    for (size_t t = 1; t < TABLES; t++) {
        if (!use_kernels(tables[t]))
            continue;
        assert_same_hash(deal(&block, classes, &own), block.data, word * n);
        assert_same_ends(&own, &portable);
        for (unsigned k = 0; k < LISTS; k++)
            assert_memory_equal(own.bytes[k], portable.bytes[k], list_bytes(&own, k));
        assert_same_hash(join(&block, classes, &own), block.data, word * n);
        assert_memory_equal(block.out, block.data, word * n);
        assert_same_ends(&own, &portable);
        if (n % 16 == 1)
            check_wrong_lists(&block, classes, tables[t], random);
    }
    block_free(&block);
}

static const struct {
    unsigned word, count, apart;
    uint64_t shifts;
} kinds[] = {
    {2, 1, 1, 0x0},        {2, 2, 1, 0x12},        {2, 3, 2, 0x000},      {2, 4, 1, 0x0011},   {2, 5, 3, 0x00112},
    {2, 6, 1, 0x000001},   {2, 7, 1, 0x1112222},   {2, 8, 9, 0x00000012}, {2, 16, 4, 0x12010}, {2, 7, 12, 0x0011122},
    {2, 16, 8, 0x0122210}, {2, 8, 1, 0x222222222}, {4, 1, 1, 0x3},        {4, 6, 2, 0x012345}, {4, 8, 9, 0x66554321},
    {4, 16, 4, 0x6543210}, {4, 3, 1, 0x246},       {4, 7, 1, 0x1133551},
};

static void test_lengths(void **state)
{
    static const size_t shifts[] = {0, 1, 2, 63};
    uint64_t random = 7;
    (void)state;
    if (lmci_kernels_use == 0)
        skip();
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const struct lmci_classes classes = classes_of(kinds[k].count, kinds[k].apart, kinds[k].shifts);
        for (size_t n = 0; n <= 200; n++)
            check(kinds[k].word, n, shifts[n % 4], &classes, &random);
        for (size_t n = LEAST_MANY; n < LEAST_MANY + 80; n += 1 + n % 7)
            check(kinds[k].word, n, shifts[n % 4], &classes, &random);
        for (size_t n = 2 * 2048 - 1; n <= 2 * 2048 + 65; n += 11)
            check(kinds[k].word, n, shifts[n % 4], &classes, &random);
    }
    assert_true(use_kernels(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lengths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
