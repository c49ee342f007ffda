/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shifts.h - chooses shifts from the lengths of differences (bits of the absolute value).
 *
 * Scale varies within a tensor, so each block samples itself.
 */
#ifndef LMC_SHIFTS_H
#define LMC_SHIFTS_H

#include "base/bytes.h"
#include "kernels/class_lists.h"

#define LMCI_BIT_LENGTHS   33u /* 0 to 32 */
#define LMCI_OUTLIER_SAVES 4u  /* an outlier costs so many bits less than its size */

/* Differences of each length. */
struct lmci_bit_lengths {
    uint32_t words; /* sum of `words_of` */
    uint32_t words_of[LMCI_BIT_LENGTHS];
};

static inline uint32_t lmci_word_at(unsigned word, const unsigned char *from, size_t i)
{
    return word == 2 ? lmci_load16(from + 2 * i) : lmci_load32(from + 4 * i);
}

/* Wraps at the size of a word (2 or 4 bytes). */
static inline int32_t lmci_difference_at(unsigned word, const unsigned char *data, size_t i, uint32_t base)
{
    const uint32_t d = lmci_word_at(word, data, i) - base;
    return word == 2 ? (int16_t)(uint16_t)d : (int32_t)d;
}

/* Branch-free: a branch would be mispredicted. */
static inline unsigned lmci_bit_length(int32_t difference)
{
    const uint32_t sign = 0 - ((uint32_t)difference >> 31);
    const uint32_t size = ((uint32_t)difference ^ sign) - sign;
    return 63 - (unsigned)__builtin_clzll((uint64_t)size << 1 | 1);
}

/* Returns the shift with the fewest bits, and adds these to *bits. */
uint8_t lmci_choose_shift(const struct lmci_bit_lengths *class, unsigned word, uint64_t *bits);

/* Chooses for one block; keeps shifts of classes with few words in its sample. */
void lmci_plan_shifts(unsigned word, const unsigned char *data, const unsigned char *base, size_t bytes,
                      struct lmci_classes *classes);

#endif
