/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * link.h - links: from an optimizer's state before a step to its state after it (FORMAT.md, 10).
 *
 * A block of a link is cut into pieces of LMCI_PIECE_ELEMENTS, each decoded by itself and in place: a piece's state and
 * all that decoding needs stay in the cache while a chain of links goes over it. A piece has the gradient, coded
 * against what the state before says of its scale, and for each array what the arithmetic missed.
 */
#ifndef LMC_LINK_H
#define LMC_LINK_H

#include "kernels/link_kernels.h"
#include "lmc.h"

#include <stdbool.h>

/* Elements that are decoded at once. */
#define LMCI_PIECE_ELEMENTS ((size_t)1 << 15)

/* ---- Blocks ---------------------------------------------------------------------------------------------------- */

/* The first byte of a coded block of a link. */
enum lmci_link_method {
    LMCI_LINK_DELTAS = 0, /* a coded block of an ordinary frame for each array, behind its size (u32) */
    LMCI_LINK_PIECES = 1  /* pieces, each behind its size (u24) */
};

/* What an array's arithmetic missed: two bits of a piece's second byte, the first array in the lowest. */
enum lmci_rest_kind {
    LMCI_REST_NONE = 0,
    LMCI_REST_LIST = 1,  /* places and differences */
    LMCI_REST_PLANE = 2, /* a plane of differences */
    LMCI_REST_DELTA = 3  /* the array as a coded block of an ordinary frame, behind its size (u24) */
};

/* The most that FULL's drop is moved by, to either side. */
#define LMCI_MOST_KAPPA 24

/* Hashes of a block's arrays, taken piece by piece while these are in the cache. */
struct lmci_state_hasher {
    struct lmc_hasher arrays[LMC_MAX_BASES];
    size_t bytes; /* of each that are hashed */
};

static inline void lmci_state_hasher_init(struct lmci_state_hasher *hasher)
{
    for (unsigned k = 0; k < LMC_MAX_BASES; k++)
        lmc_hasher_init(&hasher->arrays[k]);
    hasher->bytes = 0;
}

/* Goes on to byte `end` of the block, which may have been reached before. */
static inline void lmci_state_hash(struct lmci_state_hasher *hasher, unsigned arrays, const unsigned char *const *block,
                                   size_t end)
{
    for (unsigned k = 0; k < arrays && end > hasher->bytes; k++)
        lmc_hasher_update(&hasher->arrays[k], block[k] + hasher->bytes, end - hasher->bytes);
    hasher->bytes = end > hasher->bytes ? end : hasher->bytes;
}

/* Decodes the piece in place. `scratch`: lmci_link_decoder_bytes. */
size_t lmci_link_decoder_bytes(void);
enum lmc_status lmci_link_decode_piece(const struct lmc_link_rule *rule, const unsigned char *coded, size_t coded_bytes,
                                       size_t elements, unsigned char *const *state, unsigned char *scratch,
                                       const char **message);

/* How an encoder codes gradients, from a sample. */
struct lmci_link_plan {
    enum lmci_gradient_mode mode;
    enum lmci_gradient_mode other; /* of pieces where SHORT does not fit */
    int kappa;
};

size_t lmci_link_encoder_bytes(void);
/* The most that a coded piece takes. */
size_t lmci_link_piece_bound(uint32_t array_count, size_t elements);
/* The bytes written. LMC_NO_MEMORY is the only failure. */
enum lmc_status lmci_link_encode_piece(const struct lmc_link_rule *rule, const struct lmci_link_plan *plan,
                                       const struct lmci_link_view *view, size_t elements, unsigned char *scratch,
                                       unsigned char *dst, size_t *coded_bytes);
/* The plan that is smallest for some elements; `bytes` becomes what they take with it. */
enum lmc_status lmci_link_plan(const struct lmc_link_rule *rule, const struct lmci_link_view *view, size_t elements,
                               struct lmci_link_plan *plan, size_t *bytes);

/* ---- Rules ----------------------------------------------------------------------------------------------------- */

/* `base` to the power of a whole number. */
double lmci_power(double base, double exponent);

/* ---- Floating point -------------------------------------------------------------------------------------------- */

/* The caller's environment, while ours (to nearest, denormals kept, nothing trapped) is in force. */
struct lmci_float_environment {
    uint64_t control;
};
struct lmci_float_environment lmci_float_enter(void);
void lmci_float_leave(const struct lmci_float_environment *saved);

#endif
