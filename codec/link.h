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

#include "bytes.h"
#include "lmc.h"

#include <stdbool.h>

/* Places of arrays in a state. */
enum lmci_link_array { LMCI_FIRST = 0, LMCI_SECOND = 1, LMCI_ADAM_WEIGHT = 2, LMCI_ADAM_MOST = 3, LMCI_SGD_WEIGHT = 1 };

static inline unsigned lmci_weight_of(const struct lmc_link_rule *rule)
{
    return rule->optimizer == LMC_ADAM ? LMCI_ADAM_WEIGHT : LMCI_SGD_WEIGHT;
}

/* Elements that are decoded at once, and of these the ones that go through the arithmetic at once. */
#define LMCI_PIECE_ELEMENTS ((size_t)1 << 15)
#define LMCI_CHUNK_ELEMENTS ((size_t)1 << 11)

/* ---- Rules in a header ----------------------------------------------------------------------------------------- */

/* u32 flags, u32 0, twelve f32 of which the last two are 0. */
#define LMCI_RULE_BYTES 56u

bool lmci_rule_is_valid(const struct lmc_link_rule *rule);
void lmci_rule_write(const struct lmc_link_rule *rule, unsigned char *dst);
enum lmc_status lmci_rule_read(const struct lmc_frame *frame, struct lmc_link_rule *rule, const char **message);

/* The most that the coded blocks of a link take together. */
uint64_t lmci_link_blocks_bound(uint32_t array_count, uint64_t raw_bytes);

/* ---- Blocks ---------------------------------------------------------------------------------------------------- */

/* The first byte of a coded block of a link. */
enum lmci_link_method {
    LMCI_LINK_DELTAS = 0, /* a coded block of an ordinary frame for each array, behind its size (u32) */
    LMCI_LINK_PIECES = 1  /* pieces, each behind its size (u24) */
};

/* How the gradients of a piece are coded: its first byte. */
enum lmci_gradient_mode {
    LMCI_GRADIENT_SHORT = 1,    /* the upper half of an f32: what bf16 has */
    LMCI_GRADIENT_VARIABLE = 2, /* as many bits of the mantissa as each has */
    LMCI_GRADIENT_FULL = 3      /* as many as the states need, as these say themselves */
};

/* What an array's arithmetic missed: two bits of a piece's second byte, the first array in the lowest. */
enum lmci_rest_kind {
    LMCI_REST_NONE = 0,
    LMCI_REST_LIST = 1,  /* places and differences */
    LMCI_REST_PLANE = 2, /* a plane of differences */
    LMCI_REST_DELTA = 3  /* the array as a coded block of an ordinary frame, behind its size (u24) */
};

/* A symbol of a gradient: its exponent, less what the state says of it; and two of their own. */
#define LMCI_SYMBOL_ZERO 0
#define LMCI_SYMBOL_RAW  255
/* A difference that stands for a word of its own. */
#define LMCI_REST_ESCAPE 0x80

/* The most that FULL's drop is moved by, to either side. */
#define LMCI_MOST_KAPPA 24

/* The state of a piece or a block, each array of `elements` f32 at any alignment. */
struct lmci_link_view {
    const unsigned char *before[LMC_MAX_BASES];
    const unsigned char *after[LMC_MAX_BASES];
};

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

/* ---- Floating point -------------------------------------------------------------------------------------------- */

/* The caller's environment, while ours (to nearest, denormals kept, nothing trapped) is in force. */
struct lmci_float_environment {
    uint64_t control;
};
struct lmci_float_environment lmci_float_enter(void);
void lmci_float_leave(const struct lmci_float_environment *saved);

#endif
