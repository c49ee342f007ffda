/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * kernels.h - the hot loops, as a table for each instruction set.
 *
 * All tables produce the same bytes. Kernels trust lengths, not contents: no contents cause access outside the buffers.
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

    /* Copies past the caches where possible. Another thread may read the copy after fence(). */
    void (*stream)(unsigned char *dst, const unsigned char *from, size_t bytes);
    void (*fence)(void);

    /* Transforms and groups bytes: the lowest go to planes[0]. */
    void (*split)(enum lmci_transform transform, unsigned word, const unsigned char *data, const unsigned char *base,
                  size_t count, unsigned char *const *planes);
    /* The inverse. `data` overlaps no input. */
    void (*merge)(enum lmci_transform transform, unsigned word, const unsigned char *const *planes,
                  const unsigned char *base, size_t count, unsigned char *data);

    /* Counts all symbols, or (`every` above 1) one chunk of 64 in `every`. */
    void (*count)(const unsigned char *symbols, size_t count, size_t every, uint32_t counts[256]);
    /* Sum of count * log2(count), in 1/65536, for counts below 2^24. *seen: nonzero counts. */
    uint64_t (*sum_logs)(const uint32_t *counts, unsigned symbols, unsigned *seen);
    void (*rename)(const uint8_t lut[256], const unsigned char *from, size_t count, unsigned char *to);

    /* Packs half bytes: the first of two is in the low half. */
    void (*pack_nibbles)(const unsigned char *nibbles, size_t count, unsigned char *packed);
    void (*unpack_nibbles)(const unsigned char *packed, size_t count, unsigned char *nibbles);

    /* Selects one word in 2^log2 (2 to 15) by its content alone, of at most 64 KiB. Writes offsets, and up to 32
     * entries past them; returns how many. Words of 1 byte depend on the next, too. */
    size_t (*anchors)(unsigned word, unsigned log2, const unsigned char *data, size_t bytes, uint16_t *at);

    /* Returns the bits that differ among the bytes, of which there is at least one. */
    unsigned (*bits_varying)(const unsigned char *bytes, size_t count);
    /* Packs the bits of `mask` (1 to 7) into (count * bits + 7) / 8 bytes. */
    void (*bits_pack)(unsigned mask, const unsigned char *bytes, size_t count, unsigned char *packed);
    /* The inverse; other bits from `value`. Writes up to 7 bytes past `bytes`. */
    void (*bits_unpack)(unsigned mask, unsigned value, const unsigned char *packed, size_t count, unsigned char *bytes);

    /* A byte's class is that of the byte `distance` (at least 64) before, or of 0 at the start. Gathers one class and
     * returns its bytes. Writes up to 64 bytes past `list`. */
    size_t (*context_pick)(const uint8_t classes[256], unsigned class, const unsigned char *bytes, size_t count,
                           size_t distance, unsigned char *list);
    /* The inverse. The `class_count` lists together advance by `count` for any contents. */
    void (*context_join)(const uint8_t classes[256], unsigned class_count, size_t count, size_t distance,
                         const unsigned char **lists, unsigned char *bytes);

    /* Deals words to `lists`, and hashes them into `state`, a hasher's, unless it is NULL. */
    void (*class_deal)(unsigned word, const unsigned char *data, const unsigned char *base, size_t count,
                       const struct lmci_classes *classes, void *state, struct lmci_class_lists *lists);
    /* The inverse; hashes the data. For any lists and base, the symbol lists together advance by `count`, every other
     * list by at most that. */
    void (*class_join)(unsigned word, const unsigned char *base, size_t count, const struct lmci_classes *classes,
                       void *state, struct lmci_class_lists *lists, unsigned char *data);
    /* Rotates words by one bit, left or back. `from` may equal `to`. */
    void (*class_rotate)(unsigned word, bool left, const unsigned char *from, size_t count, unsigned char *to);

    /* Stand-ins of a base with words of 1 or 8 bytes (block/keyed.h). */
    void (*keyed_base)(unsigned word, const unsigned char *base, size_t count, unsigned char *to);
    /* Stand-ins of data, given the base's (`against`). Words of 8 bytes also fill the planes. */
    void (*keyed_split)(unsigned word, unsigned low, const unsigned char *data, const unsigned char *base,
                        const unsigned char *against, size_t count, unsigned char *const *planes, unsigned char *to);
    /* The inverse of keyed_split. */
    void (*keyed_join)(unsigned word, unsigned low, const unsigned char *const *planes, const unsigned char *from,
                       const unsigned char *against, const unsigned char *base, size_t count, unsigned char *data);

    /* Lists of block/tree.c, not empty. Kernels read up to 64 bytes past lists and write as far past outputs. Bits:
     * one a symbol, lowest first, in (count + 7) / 8 bytes. */
    /* Sets the bits of ranks of at least `pivot`; clears the rest of the last byte. Returns the set bits. */
    size_t (*tree_bits)(const unsigned char *ranks, size_t count, unsigned char pivot, unsigned char *bits);
    /* Like tree_bits; moves symbols with a set bit to `ones`, others to the start of `list`. */
    size_t (*tree_split)(unsigned char *list, size_t count, unsigned char pivot, unsigned char *bits,
                         unsigned char *ones);
    /* Like tree_bits; copies symbols whose bit equals `ones` to `to`, which may be `list`. */
    size_t (*tree_keep)(const unsigned char *list, size_t count, unsigned char pivot, bool ones, unsigned char *bits,
                        unsigned char *to);
    size_t (*tree_count)(const unsigned char *bits, size_t count);
    /* The inverse of tree_split: sides[0] for clear bits, sides[1] for set ones. */
    void (*tree_merge)(const unsigned char *bits, size_t count, const struct lmci_side sides[2], unsigned char *out);

    const struct lmci_link_kernels *link;
};

extern const struct lmci_kernels lmci_kernels_portable;
#if defined(__x86_64__)
extern const struct lmci_kernels lmci_kernels_avx2;
extern const struct lmci_kernels lmci_kernels_avx512;
#elif defined(__aarch64__)
extern const struct lmci_kernels lmci_kernels_neon;
#endif

/* Returns the fastest kernels that this processor runs and LMC_KERNELS does not exclude. */
const struct lmci_kernels *lmci_kernels(void);

/* For tests: selects by name, ignoring LMC_KERNELS, or (NULL) the default. False: the table is unknown or cannot run
 * here, and nothing changes. No other thread may encode or decode meanwhile. */
bool lmci_kernels_use(const char *name);

#endif
