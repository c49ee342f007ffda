/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * count_instructions.c - runs one kernel, for an emulator that counts instructions (tests/run.sh).
 *
 * The count is that of `count_instructions KERNEL run` minus `KERNEL skip`, which only prepares. LMC_KERNELS chooses
 * the table. Without arguments it lists the kernels.
 */
#include "base/bytes.h"
#include "block/block.h"
#include "block/plan.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

#define ELEMENTS ((size_t)1 << 14)
#define ROOM     (4 * ELEMENTS + 64)

static unsigned char data[ROOM], base[ROOM], out[ROOM], coded[ROOM];
static unsigned char lists[LMCI_MAX_CLASSES + 5][ROOM];
static size_t coded_bytes;

static uint32_t next_random(void)
{
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 32);
}

static void take_step(unsigned word)
{
    for (size_t i = 0; i < ELEMENTS; i++) {
        const uint32_t random = next_random();
        const unsigned scale = (unsigned)__builtin_ctz(random | 1 << 12);
        const uint32_t before = (122 - scale) << 23 | (next_random() & 0x807fffff);
        const uint32_t step = word == 2 ? next_random() % 9 - 4 : next_random() % 60001 - 30000;
        if (word == 2) {
            lmci_store16(base + 2 * i, (uint16_t)(before >> 16));
            lmci_store16(data + 2 * i, (uint16_t)((before >> 16) + (step << scale)));
        } else {
            lmci_store32(base + 4 * i, before);
            lmci_store32(data + 4 * i, before + (step << scale));
        }
    }
}

/* Typical plans: six classes for bf16, seven for f32. */
static struct lmci_classes usual_classes(unsigned word)
{
    if (word == 2)
        return (struct lmci_classes){.count = 6, .first = {0, 117, 118, 119, 120, 121}, .shift = {4}};
    return (struct lmci_classes){
        .count = 7, .first = {0, 115, 117, 119, 120, 121, 122}, .shift = {20, 16, 16, 12, 12, 12, 8}};
}

static struct lmci_class_lists list_starts(void)
{
    struct lmci_class_lists starts = {
        .low = {lists[16], lists[17], lists[18]}, .nibbles = lists[19], .outliers = lists[20]};
    for (unsigned c = 0; c < LMCI_MAX_CLASSES; c++)
        starts.symbols[c] = lists[c];
    return starts;
}

static void run_deal(unsigned word)
{
    const struct lmci_classes classes = usual_classes(word);
    struct lmci_class_lists to = list_starts();
    lmci_kernels()->class_deal(word, data, base, ELEMENTS, &classes, NULL, &to);
}

static void prepare_join(unsigned word)
{
    take_step(word);
    run_deal(word);
}

static void run_join(unsigned word)
{
    const struct lmci_classes classes = usual_classes(word);
    struct lmci_class_lists from = list_starts();
    lmci_kernels()->class_join(word, base, ELEMENTS, &classes, NULL, &from, out);
}

static void prepare_bytes(unsigned mask)
{
    for (size_t i = 0; i < ELEMENTS; i++)
        data[i] = (unsigned char)(next_random() >> 8 & mask);
}

static void context_classes(uint8_t classes[256], unsigned count)
{
    for (unsigned k = 0; k < 256; k++)
        classes[k] = (uint8_t)(k * count / 256);
}

static void run_context_pick(unsigned count)
{
    uint8_t classes[256];
    context_classes(classes, count);
    for (unsigned c = 0; c < count; c++)
        lmci_kernels()->context_pick(classes, c, data, ELEMENTS, 64, lists[c]);
}

static void prepare_context_join(unsigned count)
{
    prepare_bytes(255);
    run_context_pick(count);
}

static void run_context_join(unsigned count)
{
    uint8_t classes[256];
    const unsigned char *from[LMCI_MAX_CLASSES];
    context_classes(classes, count);
    for (unsigned c = 0; c < count; c++)
        from[c] = lists[c];
    lmci_kernels()->context_join(classes, count, ELEMENTS, 64, from, out);
}

static void run_bits_pack(unsigned mask)
{
    lmci_kernels()->bits_pack(mask, data, ELEMENTS, coded);
}

static void prepare_bits_unpack(unsigned mask)
{
    prepare_bytes(mask);
    run_bits_pack(mask);
}

static void run_bits_unpack(unsigned mask)
{
    lmci_kernels()->bits_unpack(mask, 0, coded, ELEMENTS, out);
}

static void run_bits_varying(unsigned mask)
{
    if (lmci_kernels()->bits_varying(data, ELEMENTS) != mask)
        abort();
}

static void run_rename(unsigned step)
{
    uint8_t names[256];
    for (unsigned k = 0; k < 256; k++)
        names[k] = (uint8_t)(k * step);
    lmci_kernels()->rename(names, data, ELEMENTS, out);
}

static void run_count(unsigned every)
{
    uint32_t counts[256];
    lmci_kernels()->count(data, ELEMENTS, every, counts);
}

static void run_pack_nibbles(unsigned unused)
{
    (void)unused;
    lmci_kernels()->pack_nibbles(data, ELEMENTS, out);
}

static void run_unpack_nibbles(unsigned unused)
{
    (void)unused;
    lmci_kernels()->unpack_nibbles(data, ELEMENTS, out);
}

static void run_split(unsigned word)
{
    unsigned char *const planes[4] = {lists[0], lists[1], lists[2], lists[3]};
    lmci_kernels()->split(LMCI_ROTATE, word, data, NULL, ELEMENTS, planes);
}

static void run_merge(unsigned word)
{
    const unsigned char *const planes[4] = {lists[0], lists[1], lists[2], lists[3]};
    lmci_kernels()->merge(LMCI_ROTATE, word, planes, NULL, ELEMENTS, out);
}

static void run_rotate(unsigned word)
{
    lmci_kernels()->class_rotate(word, true, data, ELEMENTS, out);
}

#define PIVOT 6

static void run_tree_bits(unsigned pivot)
{
    lmci_kernels()->tree_bits(data, ELEMENTS, (unsigned char)pivot, coded);
}

static void run_tree_split(unsigned pivot)
{
    lmci_kernels()->tree_split(data, ELEMENTS, (unsigned char)pivot, coded, out);
}

static void run_tree_keep(unsigned pivot)
{
    lmci_kernels()->tree_keep(data, ELEMENTS, (unsigned char)pivot, true, coded, data);
}

static void prepare_tree_merge(unsigned pivot)
{
    prepare_bytes(15);
    run_tree_split(pivot);
}

static void run_tree_merge(unsigned sides)
{
    const struct lmci_side both[2] = {{sides != 0 ? data : NULL, 1}, {out, 0}};
    lmci_kernels()->tree_merge(coded, ELEMENTS, both, lists[0]);
}

static struct lmci_scheme scheme;

static struct lmci_block_shape prepare_shape(unsigned word)
{
    return (struct lmci_block_shape){.word = word, .bytes = ELEMENTS * word};
}

static void prepare_encode(unsigned word)
{
    const struct lmc_params params = {
        .dtype = word == 2 ? LMC_BF16 : LMC_F32, .raw_bytes = ELEMENTS * word, .data = data, .base = base};
    take_step(word);
    if (lmci_plan(&params, false, &scheme) != LMC_OK)
        abort();
}

static void run_encode(unsigned word)
{
    const struct lmci_block_shape shape = prepare_shape(word);
    struct lmc_hash hash;
    if (lmci_block_encode(&shape, &scheme, data, base, coded, &coded_bytes, &hash) != LMC_OK)
        abort();
}

static void prepare_decode(unsigned word)
{
    prepare_encode(word);
    run_encode(word);
}

static void run_decode(unsigned word)
{
    const struct lmci_block_shape shape = prepare_shape(word);
    struct lmc_hash hash;
    const char *message;
    if (lmci_block_decode(&shape, coded, coded_bytes, base, out, &hash, &message) != LMC_OK)
        abort();
}

static const struct {
    const char *name;
    void (*prepare)(unsigned);
    unsigned prepared;
    void (*run)(unsigned);
    unsigned with;
} kernels[] = {
    {"class_deal-bf16", take_step, 2, run_deal, 2},
    {"class_deal-f32", take_step, 4, run_deal, 4},
    {"class_join-bf16", prepare_join, 2, run_join, 2},
    {"class_join-f32", prepare_join, 4, run_join, 4},
    {"class_rotate-bf16", take_step, 2, run_rotate, 2},
    {"class_rotate-f32", take_step, 4, run_rotate, 4},
    {"context_pick-6", prepare_bytes, 255, run_context_pick, 6},
    {"context_join-6", prepare_context_join, 6, run_context_join, 6},
    {"tree_bits", prepare_bytes, 15, run_tree_bits, PIVOT},
    {"tree_split", prepare_bytes, 15, run_tree_split, PIVOT},
    {"tree_keep", prepare_bytes, 15, run_tree_keep, PIVOT},
    {"tree_merge-lists", prepare_tree_merge, PIVOT, run_tree_merge, 2},
    {"tree_merge-value", prepare_tree_merge, PIVOT, run_tree_merge, 0},
    {"rename", prepare_bytes, 255, run_rename, 7},
    {"count", prepare_bytes, 255, run_count, 1},
    {"bits_varying", prepare_bytes, 0xb9, run_bits_varying, 0xb9},
    {"bits_pack-5", prepare_bytes, 0xb9, run_bits_pack, 0xb9},
    {"bits_unpack-5", prepare_bits_unpack, 0xb9, run_bits_unpack, 0xb9},
    {"pack_nibbles", prepare_bytes, 15, run_pack_nibbles, 0},
    {"unpack_nibbles", prepare_bytes, 255, run_unpack_nibbles, 0},
    {"split-bf16", take_step, 2, run_split, 2},
    {"split-f32", take_step, 4, run_split, 4},
    {"merge-bf16", take_step, 2, run_merge, 2},
    {"merge-f32", take_step, 4, run_merge, 4},
    {"encode-bf16-delta", prepare_encode, 2, run_encode, 2},
    {"encode-f32-delta", prepare_encode, 4, run_encode, 4},
    {"decode-bf16-delta", prepare_decode, 2, run_decode, 2},
    {"decode-f32-delta", prepare_decode, 4, run_decode, 4},
};

int main(int argc, char **argv)
{
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        if (argc == 1)
            printf("%s %zu\n", kernels[k].name, ELEMENTS);
        if (argc != 3 || strcmp(argv[1], kernels[k].name) != 0)
            continue;
        kernels[k].prepare(kernels[k].prepared);
        if (strcmp(argv[2], "run") == 0)
            kernels[k].run(kernels[k].with);
    }
    return 0;
}
