/* SPDX-License-Identifier: BSD-3-Clause */
/* shifts.c - lengths of differences, and shifts from them. */
#include "block/shifts.h"

#include "block/huffman.h"

#define OUTLIER_MARK 6u  /* bits */
#define FEW_OUTLIERS 64u /* at most one word in so many is an outlier */

/* Estimated bits of a class: entropy of the symbols' lengths, bits below the symbols' first ones, and shifted bits. */
static uint64_t shifted_bits(const struct lmci_bit_lengths *class, unsigned word, unsigned shift)
{
    uint32_t lengths[LMCI_BIT_LENGTHS] = {0};
    uint64_t bits = 0;
    for (unsigned k = 0; k < LMCI_BIT_LENGTHS; k++) {
        unsigned length = k > shift ? k - shift : 0;
        lengths[length] += class->words_of[k];
        unsigned below = (length != 0 ? length - 1 : 0) + (k > 0 || shift > 0);
        bool outlier = length > 7 && shift < 8 * word - 8;
        bits +=
            (uint64_t) class->words_of[k] * (outlier ? 8 * word + OUTLIER_MARK - LMCI_OUTLIER_SAVES : below + shift);
    }
    return bits + lmci_entropy_bits(lengths, LMCI_BIT_LENGTHS, class->words);
}

uint8_t lmci_choose_shift(const struct lmci_bit_lengths *class, unsigned word, uint64_t *bits)
{
    uint64_t least = UINT64_MAX;
    uint8_t shift = 0;
    for (unsigned s = 0; s <= 8 * word - 8; s += 4) {
        const uint64_t some = shifted_bits(class, word, s);
        if (some < least) {
            least = some;
            shift = (uint8_t)s;
        }
    }
    *bits += least;
    return shift;
}

/* Whether the shift less 4 leaves few outliers. */
static bool few_outliers(const struct lmci_bit_lengths *class, unsigned shift)
{
    uint32_t outliers = 0;
    for (unsigned k = shift + 4; k < LMCI_BIT_LENGTHS; k++)
        outliers += class->words_of[k];
    return shift >= 4 && outliers <= class->words / FEW_OUTLIERS;
}

/* Words of a block's sample, in chunks of 64: a share of the block, within bounds. */
#define BLOCK_ONE_IN 64
#define BLOCK_LEAST  ((size_t)512)
#define BLOCK_MOST   ((size_t)2048)

static void count_block(unsigned word, const unsigned char *data, const unsigned char *base, size_t words,
                        const struct lmci_classes *classes, struct lmci_bit_lengths *lengths)
{
    uint8_t class_of[256] = {0};
    const size_t some = words / BLOCK_ONE_IN < BLOCK_LEAST  ? BLOCK_LEAST
                        : words / BLOCK_ONE_IN > BLOCK_MOST ? BLOCK_MOST
                                                            : words / BLOCK_ONE_IN;
    const size_t stride = words > some ? words / (some / 64) : 64;
    for (size_t at = 0; at < words; at += stride) { /* all at once, not one after another */
        const size_t bytes = word * (words - at < 64 ? words - at : 64);
        for (size_t i = 0; i < bytes; i += 64) {
            __builtin_prefetch(data + at * word + i);
            __builtin_prefetch(base + at * word + i);
        }
    }
    uint32_t words_of[2][LMCI_MAX_CLASSES][LMCI_BIT_LENGTHS]; /* of even and odd words: neighbours have one length */
    for (unsigned c = 0; c < classes->count; c++) {
        memset(words_of[0][c], 0, sizeof words_of[0][c]);
        memset(words_of[1][c], 0, sizeof words_of[1][c]);
    }
    for (unsigned c = 1; c < classes->count; c++)
        memset(class_of + classes->first[c], (int)c, 256u - classes->first[c]);
    for (size_t at = 0; at < words; at += stride) {
        const size_t end = words - at < 64 ? words : at + 64;
        for (size_t i = at; i < end; i++) {
            const uint32_t b = lmci_word_at(word, base, i);
            words_of[i % 2][class_of[lmci_class_key(word, b)]][lmci_bit_length(lmci_difference_at(word, data, i, b))]++;
        }
    }
    for (unsigned c = 0; c < classes->count; c++) {
        lengths[c].words = 0;
        for (unsigned k = 0; k < LMCI_BIT_LENGTHS; k++)
            lengths[c].words += lengths[c].words_of[k] = words_of[0][c][k] + words_of[1][c][k];
    }
}

void lmci_plan_shifts(unsigned word, const unsigned char *data, const unsigned char *base, size_t bytes,
                      struct lmci_classes *classes)
{
    struct lmci_bit_lengths lengths[LMCI_MAX_CLASSES];
    uint64_t unused = 0;
    count_block(word, data, base, bytes / word, classes, lengths);
    for (unsigned c = 0; c < classes->count; c++) {
        if (lengths[c].words < BLOCK_MOST / 64)
            continue;
        classes->shift[c] = lmci_choose_shift(&lengths[c], word, &unused);
        for (unsigned finer = 4; finer <= classes->finer[c] && few_outliers(&lengths[c], classes->shift[c]); finer += 4)
            classes->shift[c] = (uint8_t)(classes->shift[c] - 4);
    }
}
