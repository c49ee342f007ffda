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

#include "lmc.h"
#include "transform.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LMCI_STREAMS      ((size_t)4) /* bit streams of a Huffman plane */
#define LMCI_MAX_BITS     12          /* longest code that the format allows */
#define LMCI_ENCODER_BITS 11          /* longest code that our encoder makes: five codes fit a refill, tables fit L1 */

/*
 * Decoding tables, indexed by the next `bits` bits. `one`: length | symbol << 8. `two`, when it is filled: total
 * length | number of symbols << 8 | symbols << 16, and both symbols are valid bytes to store whatever the number.
 */
struct lmci_decode_table {
    unsigned bits;
    bool has_two;
    uint16_t one[1 << LMCI_MAX_BITS];
    uint32_t two[1 << LMCI_MAX_BITS];
};

/* One bit stream and the place of its symbols. */
struct lmci_stream {
    const unsigned char *begin;
    size_t bytes;
    unsigned char *out;
    unsigned char *out_end;
};

struct lmci_kernels {
    const char *name;

    struct lmc_hash (*hash128)(const void *data, size_t bytes);
    uint64_t (*hash64)(const void *data, size_t bytes, uint64_t seed);
    void (*hash_update)(void *state, const void *data, size_t bytes);

    /* Transforms `count` words of `word` bytes and groups their bytes: planes[0] has the lowest bytes. */
    void (*split)(enum lmci_transform transform, unsigned word, const unsigned char *data, const unsigned char *base,
                  size_t count, unsigned char *const *planes);
    /* The inverse. `data` overlaps no input. */
    void (*merge)(enum lmci_transform transform, unsigned word, const unsigned char *const *planes,
                  const unsigned char *base, size_t count, unsigned char *data);

    void (*count)(const unsigned char *symbols, size_t count, uint32_t counts[256]);
    /* Codes (length | code << 8, lowest bit first) of `count` symbols into dst; bytes written, or SIZE_MAX: no room. */
    size_t (*encode)(const uint32_t codes[256], const unsigned char *symbols, size_t count, unsigned char *dst,
                     size_t dst_bytes);
    /* False when a stream isn't used up exactly by its symbols. */
    bool (*decode)(const struct lmci_decode_table *table, const struct lmci_stream streams[LMCI_STREAMS]);

    /* One flag a byte, lowest bit first, set where the byte isn't zero; those bytes follow each other in `nonzero`.
     * Returns their number. `nonzero` has room for count bytes and 8 more. */
    size_t (*sparse_split)(const unsigned char *bytes, size_t count, unsigned char *flags, unsigned char *nonzero);
    /* The inverse. `nonzero_count` flags are set, none of them past the end. */
    void (*sparse_merge)(const unsigned char *flags, const unsigned char *nonzero, size_t nonzero_count,
                         unsigned char *bytes, size_t count);
};

extern const struct lmci_kernels lmci_kernels_portable;
#if defined(__x86_64__)
extern const struct lmci_kernels lmci_kernels_avx2;
extern const struct lmci_kernels lmci_kernels_avx512;
#endif

/* The best table that this processor can run and that LMC_KERNELS in the environment doesn't mask. */
const struct lmci_kernels *lmci_kernels(void);

#endif
