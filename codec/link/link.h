/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * link.h - links, from an optimizer's state before a step to its state after it (FORMAT.md, 10).
 *
 * Pieces are decoded independently and in place, and stay in the cache through a chain of links.
 */
#ifndef LMC_LINK_H
#define LMC_LINK_H

#include "kernels/link_kernels.h"
#include "lmc.h"

#include <stdbool.h>

#define LMCI_PIECE_ELEMENTS ((size_t)1 << 15)

/* ---- Blocks ---------------------------------------------------------------------------------------------------- */

/* The first byte of a coded block. */
enum lmci_link_method {
    LMCI_LINK_DELTAS = 0, /* each array's size (u32) and ordinary coded block */
    LMCI_LINK_PIECES = 1  /* each piece's size (u24) and bytes */
};

/* Kind of an array's differences: two bits in a piece's second byte, the first array lowest. */
enum lmci_rest_kind {
    LMCI_REST_NONE = 0,
    LMCI_REST_LIST = 1, /* indexes and differences */
    LMCI_REST_PLANE = 2,
    LMCI_REST_DELTA = 3 /* size (u24) and an ordinary coded block */
};

#define LMCI_MOST_KAPPA 24

/* Hashes of a state, computed while its pieces are in the cache. */
struct lmci_state_hasher {
    struct lmc_hasher arrays[LMC_MAX_BASES];
    size_t bytes; /* of each array */
};

static inline void lmci_state_hasher_init(struct lmci_state_hasher *hasher)
{
    for (unsigned k = 0; k < LMC_MAX_BASES; k++)
        lmc_hasher_init(&hasher->arrays[k]);
    hasher->bytes = 0;
}

/* Continues the hashes to byte `end` of the block, unless they are past it. */
static inline void lmci_state_hash(struct lmci_state_hasher *hasher, unsigned arrays, const unsigned char *const *block,
                                   size_t end)
{
    for (unsigned k = 0; k < arrays && end > hasher->bytes; k++)
        lmc_hasher_update(&hasher->arrays[k], block[k] + hasher->bytes, end - hasher->bytes);
    hasher->bytes = end > hasher->bytes ? end : hasher->bytes;
}

/* Decodes a piece in place. `scratch`: lmci_link_decoder_bytes. */
size_t lmci_link_decoder_bytes(void);
enum lmc_status lmci_link_decode_piece(const struct lmc_link_rule *rule, const unsigned char *coded, size_t coded_bytes,
                                       size_t elements, unsigned char *const *state, unsigned char *scratch,
                                       const char **message);

/* How to encode gradients. */
struct lmci_link_plan {
    enum lmci_gradient_mode mode;
    enum lmci_gradient_mode other; /* mode of pieces where SHORT fails */
    int kappa;
    bool no_search; /* FULL: a search where guesses miss did not pay in the block's piece before */
};

size_t lmci_link_encoder_bytes(void);
size_t lmci_link_piece_bound(uint32_t array_count, size_t elements);
/* Encodes a piece, and updates plan->no_search. `scratch`: lmci_link_encoder_bytes. Fails only with LMC_NO_MEMORY. */
enum lmc_status lmci_link_encode_piece(const struct lmc_link_rule *rule, struct lmci_link_plan *plan,
                                       const struct lmci_link_view *view, size_t elements, unsigned char *scratch,
                                       unsigned char *dst, size_t *coded_bytes);
/* Finds the smallest plan for a sample, and its bytes. `like`: another parameter's plan, which is taken unless SHORT is
 * smaller; *bytes is then SIZE_MAX if it was not compared. NULL: none. */
enum lmc_status lmci_link_plan(const struct lmc_link_rule *rule, const struct lmci_link_view *view, size_t elements,
                               const struct lmci_link_plan *like, struct lmci_link_plan *plan, size_t *bytes);

/* ---- Rules ----------------------------------------------------------------------------------------------------- */

/* Returns base to the power of `exponent`, which is whole. */
double lmci_power(double base, double exponent);

/* ---- Floating point -------------------------------------------------------------------------------------------- */

/* The caller's environment, while the library's (round to nearest, keep denormals, no traps) is in force. */
struct lmci_float_environment {
    uint64_t control;
};
struct lmci_float_environment lmci_float_enter(void);
void lmci_float_leave(const struct lmci_float_environment *saved);

#endif
