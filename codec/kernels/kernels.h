/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * kernels.h - the hot loops, as a table for each instruction set.
 *
 * All tables produce the same bytes and differ in speed. Each kernels_*.c compiles kernels_impl.h, and cpu.c chooses a
 * table. Kernels trust the lengths that they are given. They do not trust contents: no kernel reads or
 * writes outside the buffers for any contents.
 */
#ifndef LMC_KERNELS_H
#define LMC_KERNELS_H

#include "kernels/class_lists.h"
#include "kernels/transform.h"
#include "lmc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One side of a merge: a list of symbols, or (list NULL) one symbol repeated. */
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

    /* Copies past the caches where the processor can. Another thread may read the copy after fence(). */
    void (*stream)(unsigned char *dst, const unsigned char *from, size_t bytes);
    void (*fence)(void);

    /* Transforms `count` words of `word` bytes and groups their bytes: planes[0] receives the lowest bytes. */
    void (*split)(enum lmci_transform transform, unsigned word, const unsigned char *data, const unsigned char *base,
                  size_t count, unsigned char *const *planes);
    /* The inverse of split. `data` overlaps no input. */
    void (*merge)(enum lmci_transform transform, unsigned word, const unsigned char *const *planes,
                  const unsigned char *base, size_t count, unsigned char *data);

    /* Counts all symbols, or (`every` above 1) one chunk of 64 in `every`. */
    void (*count)(const unsigned char *symbols, size_t count, size_t every, uint32_t counts[256]);
    /* Returns the sum of count * log2(count), with logarithms in units of 1/65536, for counts below 2^24. *seen: how
     * many counts are not 0. */
    uint64_t (*sum_logs)(const uint32_t *counts, unsigned symbols, unsigned *seen);
    void (*rename)(const uint8_t lut[256], const unsigned char *from, size_t count, unsigned char *to);

    /* Half bytes; the first of two is in the low half. */
    void (*pack_nibbles)(const unsigned char *nibbles, size_t count, unsigned char *packed);
    void (*unpack_nibbles)(const unsigned char *packed, size_t count, unsigned char *nibbles);

    /* The bits that differ among the bytes. `count` is at least 1. */
    unsigned (*bits_varying)(const unsigned char *bytes, size_t count);
    /* Packs the bits of `mask` (1 to 7 bits) of each byte into (count * bits + 7) / 8 bytes. */
    void (*bits_pack)(unsigned mask, const unsigned char *bytes, size_t count, unsigned char *packed);
    /* The inverse; other bits come from `value`. Writes up to 7 bytes past the end of `bytes`. */
    void (*bits_unpack)(unsigned mask, unsigned value, const unsigned char *packed, size_t count, unsigned char *bytes);

    /* The class of a byte is that of the byte `distance` (at least 64) before it, or of 0 at the start. Gathers the
     * bytes of one class and returns their number. Writes up to 64 bytes past the end of `list`. */
    size_t (*context_pick)(const uint8_t classes[256], unsigned class, const unsigned char *bytes, size_t count,
                           size_t distance, unsigned char *list);
    /* The inverse. The `class_count` lists together advance by `count` for any contents. */
    void (*context_join)(const uint8_t classes[256], unsigned class_count, size_t count, size_t distance,
                         const unsigned char **lists, unsigned char *bytes);

    /* Deals words to `lists`. */
    void (*class_deal)(unsigned word, const unsigned char *data, const unsigned char *base, size_t count,
                       const struct lmci_classes *classes, struct lmci_class_lists *lists);
    /* The inverse. The symbol lists together advance by `count` entries and every other list by at most as many,
     * for any lists and base. */
    void (*class_join)(unsigned word, const unsigned char *base, size_t count, const struct lmci_classes *classes,
                       struct lmci_class_lists *lists, unsigned char *data);
    /* Rotates words by one bit, to the left or back. `from` may equal `to`. */
    void (*class_rotate)(unsigned word, bool left, const unsigned char *from, size_t count, unsigned char *to);

    /* Computes the stand-in words of a base with words of 1 or 8 bytes (block/keyed.h). */
    void (*keyed_base)(unsigned word, const unsigned char *base, size_t count, unsigned char *to);
    /* Computes the stand-in words of the data. `against` holds those of the base. Words of 8 bytes also fill the
     * planes. */
    void (*keyed_split)(unsigned word, unsigned low, const unsigned char *data, const unsigned char *base,
                        const unsigned char *against, size_t count, unsigned char *const *planes, unsigned char *to);
    /* The inverse of keyed_split. */
    void (*keyed_join)(unsigned word, unsigned low, const unsigned char *const *planes, const unsigned char *from,
                       const unsigned char *against, const unsigned char *base, size_t count, unsigned char *data);

    /*
     * Lists of block/tree.c have at least one symbol. Kernels read up to 64 bytes past the end of a list, and write as
     * far past the end of an output. Bits are one a symbol, lowest first; kernels access (count + 7) / 8 bytes of them.
     */
    /* Sets the bit of each rank that is at least `pivot` and clears the rest of the last byte. Returns the number of
     * set bits. */
    size_t (*tree_bits)(const unsigned char *ranks, size_t count, unsigned char pivot, unsigned char *bits);
    /* Like tree_bits, and moves the symbols with a set bit to `ones` and the others to the start of `list`. */
    size_t (*tree_split)(unsigned char *list, size_t count, unsigned char pivot, unsigned char *bits,
                         unsigned char *ones);
    /* Like tree_bits, and moves the symbols whose bit equals `ones` to the start of `list`. */
    size_t (*tree_keep)(unsigned char *list, size_t count, unsigned char pivot, bool ones, unsigned char *bits);
    size_t (*tree_count)(const unsigned char *bits, size_t count);
    /* The inverse of a split: sides[0] has a symbol for each clear bit, sides[1] one for each set bit. */
    void (*tree_merge)(const unsigned char *bits, size_t count, const struct lmci_side sides[2], unsigned char *out);

    /* The kernels of links (link_kernels.h), compiled separately. */
    const struct lmci_link_kernels *link;
};

extern const struct lmci_kernels lmci_kernels_portable;
#if defined(__x86_64__)
extern const struct lmci_kernels lmci_kernels_avx2;
extern const struct lmci_kernels lmci_kernels_avx512;
#elif defined(__aarch64__)
extern const struct lmci_kernels lmci_kernels_neon;
#endif

/* The fastest table that this processor runs and that the environment variable LMC_KERNELS does not exclude. */
const struct lmci_kernels *lmci_kernels(void);

/* For tests: selects a table by name, ignoring LMC_KERNELS, or (NULL) the default again. Returns false and changes
 * nothing if the table does not exist or cannot run here. No other thread may encode or decode meanwhile. */
bool lmci_kernels_use(const char *name);

#endif
