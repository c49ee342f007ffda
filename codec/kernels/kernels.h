/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * kernels.h - the hot loops, as a table that is compiled several times with different instruction sets.
 *
 * All tables give the same bytes; they differ in speed. kernels_impl.h is the one source; kernels_*.c compile it, and
 * cpu.c chooses. Everything here trusts its arguments: lengths were checked by the caller, but *contents* may be
 * hostile, and no kernel reads or writes outside its buffers whatever they hold.
 */
#ifndef LMC_KERNELS_H
#define LMC_KERNELS_H

#include "kernels/class_lists.h"
#include "kernels/transform.h"
#include "lmc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One side of a merge: a list of symbols, or (NULL) one symbol as often as it takes. */
struct lmci_side {
    const unsigned char *list;
    unsigned char value;
};

struct lmci_link_kernels;

struct lmci_kernels {
    const char *name;

    struct lmc_hash (*hash128)(const void *data, size_t bytes);
    uint64_t (*hash64)(const void *data, size_t bytes, uint64_t seed);
    void (*hash_update)(void *state, const void *data, size_t bytes);

    /* Copies past the caches, where a processor can. lmci_kernels()->fence() before anyone else may look. */
    void (*stream)(unsigned char *dst, const unsigned char *from, size_t bytes);
    void (*fence)(void);

    /* Transforms `count` words of `word` bytes and groups their bytes: planes[0] has the lowest bytes. */
    void (*split)(enum lmci_transform transform, unsigned word, const unsigned char *data, const unsigned char *base,
                  size_t count, unsigned char *const *planes);
    /* The inverse. `data` overlaps no input. */
    void (*merge)(enum lmci_transform transform, unsigned word, const unsigned char *const *planes,
                  const unsigned char *base, size_t count, unsigned char *data);

    /* Counts all symbols, or (`every` above 1) one chunk of 64 in so many. */
    void (*count)(const unsigned char *symbols, size_t count, size_t every, uint32_t counts[256]);
    /* The sum of count * log2(count), the logarithms in 1/65536, for counts below 2^24; and how many aren't 0. */
    uint64_t (*sum_logs)(const uint32_t *counts, unsigned symbols, unsigned *seen);
    void (*rename)(const uint8_t lut[256], const unsigned char *from, size_t count, unsigned char *to);

    /* Half bytes, the first of two in the low half. */
    void (*pack_nibbles)(const unsigned char *nibbles, size_t count, unsigned char *packed);
    void (*unpack_nibbles)(const unsigned char *packed, size_t count, unsigned char *nibbles);

    /* The bits that are not the same in all of at least one byte. */
    unsigned (*bits_varying)(const unsigned char *bytes, size_t count);
    /* Those bits (1 to 7, of `mask`) of each byte, side by side: (count * bits + 7) / 8 bytes. */
    void (*bits_pack)(unsigned mask, const unsigned char *bytes, size_t count, unsigned char *packed);
    /* The inverse, with the others from `value`; up to 7 bytes past the end of `bytes` are written. */
    void (*bits_unpack)(unsigned mask, unsigned value, const unsigned char *packed, size_t count, unsigned char *bytes);

    /*
     * The class of a byte is that of the byte `distance`, at least 64, before it, or of 0 where there is none. Puts the
     * bytes of one class side by side and returns how many those are; up to 64 bytes past their end are written.
     */
    size_t (*context_pick)(const uint8_t classes[256], unsigned class, const unsigned char *bytes, size_t count,
                           size_t distance, unsigned char *list);
    /* The inverse. `lists`, of which there are `class_count`, advance together by `count`, whatever they hold. */
    void (*context_join)(const uint8_t classes[256], unsigned class_count, size_t count, size_t distance,
                         const unsigned char **lists, unsigned char *bytes);

    /* Deals words to the lists. */
    void (*class_deal)(unsigned word, const unsigned char *data, const unsigned char *base, size_t count,
                       const struct lmci_classes *classes, struct lmci_class_lists *lists);
    /*
     * The inverse. The lists of symbols advance together by `count` entries, each other list by at most as many,
     * whatever they and the base hold.
     */
    void (*class_join)(unsigned word, const unsigned char *base, size_t count, const struct lmci_classes *classes,
                       struct lmci_class_lists *lists, unsigned char *data);
    /* Rotates words by one bit, to the left or back; `from` may be `to`. */
    void (*class_rotate)(unsigned word, bool left, const unsigned char *from, size_t count, unsigned char *to);

    /* The words that stand for those of a base, of 1 or of 8 bytes (keyed.h). */
    void (*keyed_base)(unsigned word, const unsigned char *base, size_t count, unsigned char *to);
    /* Those that stand for the data's, `against` what stands for its base; and the planes beside, for words of 8. */
    void (*keyed_split)(unsigned word, unsigned low, const unsigned char *data, const unsigned char *base,
                        const unsigned char *against, size_t count, unsigned char *const *planes, unsigned char *to);
    /* The inverse. */
    void (*keyed_join)(unsigned word, unsigned low, const unsigned char *const *planes, const unsigned char *from,
                       const unsigned char *against, const unsigned char *base, size_t count, unsigned char *data);

    /*
     * Lists of tree.c, of at least one symbol: memory up to 64 bytes past their end is read, and written in what is
     * an output. Bits: one a symbol, lowest first; they are never read past (count + 7) / 8 bytes.
     */
    /* Sets the bit of each rank that is at least `pivot`, clears what is left of the last byte; returns how many. */
    size_t (*tree_bits)(const unsigned char *ranks, size_t count, unsigned char pivot, unsigned char *bits);
    /* So does this; it moves the symbols whose bit is set to `ones`, and the others together. */
    size_t (*tree_split)(unsigned char *list, size_t count, unsigned char pivot, unsigned char *bits,
                         unsigned char *ones);
    /* And this; it keeps the symbols whose bit is set, or those whose bit is clear, and moves them together. */
    size_t (*tree_keep)(unsigned char *list, size_t count, unsigned char pivot, bool ones, unsigned char *bits);
    size_t (*tree_count)(const unsigned char *bits, size_t count);
    /* The inverse of a split: sides[0] has a symbol for each clear bit, sides[1] for each that is set. */
    void (*tree_merge)(const unsigned char *bits, size_t count, const struct lmci_side sides[2], unsigned char *out);

    /* Those of links, which are compiled for themselves (link_kernels.h). */
    const struct lmci_link_kernels *link;
};

extern const struct lmci_kernels lmci_kernels_portable;
#if defined(__x86_64__)
extern const struct lmci_kernels lmci_kernels_avx2;
extern const struct lmci_kernels lmci_kernels_avx512;
#elif defined(__aarch64__)
extern const struct lmci_kernels lmci_kernels_neon;
#endif

/* The best table that this processor can run and that LMC_KERNELS in the environment doesn't mask. */
const struct lmci_kernels *lmci_kernels(void);

/* For tests: from now on the table of that name, whatever LMC_KERNELS says, or (NULL) the best again. False, and
 * nothing changes, when there is none or this processor can't run it. No other thread may be coding. */
bool lmci_kernels_use(const char *name);

#endif
