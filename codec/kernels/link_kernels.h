/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * link_kernels.h - the arithmetic of links, as a table for each instruction set.
 *
 * All tables produce the same bits: IEEE 754 operations, rounded once, in written order. NaN is predicted as zero: its
 * bits differ between processors. Arrays have any alignment. An output may be the input of its name.
 */
#ifndef LMC_LINK_KERNELS_H
#define LMC_LINK_KERNELS_H

#include "lmc.h"

#include <stddef.h>
#include <stdint.h>

enum lmci_link_array { LMCI_FIRST = 0, LMCI_SECOND = 1, LMCI_ADAM_WEIGHT = 2, LMCI_ADAM_MOST = 3, LMCI_SGD_WEIGHT = 1 };

static inline unsigned lmci_weight_of(const struct lmc_link_rule *rule)
{
    return rule->optimizer == LMC_ADAM ? LMCI_ADAM_WEIGHT : LMCI_SGD_WEIGHT;
}

/* Elements that pass through the arithmetic together. */
#define LMCI_CHUNK_ELEMENTS ((size_t)1 << 11)

/* A piece's first byte. */
enum lmci_gradient_mode {
    LMCI_GRADIENT_SHORT = 1,    /* the upper half of an f32, as bf16 */
    LMCI_GRADIENT_VARIABLE = 2, /* as many mantissa bits as each has */
    LMCI_GRADIENT_FULL = 3      /* as many bits as the states require */
};

/* Symbols. All others are a gradient's exponent less one that the state gives. */
#define LMCI_SYMBOL_ZERO 0
#define LMCI_SYMBOL_RAW  255
/* Marks a difference whose word is stored in full. */
#define LMCI_REST_ESCAPE 0x80

/* The f32 arrays before and after a step. */
struct lmci_link_view {
    const unsigned char *before[LMC_MAX_BASES];
    const unsigned char *after[LMC_MAX_BASES];
};

/* Floats and words at any alignment. */
typedef float lmci_f32 __attribute__((aligned(1), may_alias));
typedef uint32_t lmci_u32 __attribute__((aligned(1), may_alias));

/* The array before the step that predicts exponents. */
struct lmci_reference {
    const lmci_u32 *words;
    unsigned halved; /* 1: it holds squares of gradients */
    int bias;        /* symbol = exponent - (exponent of the reference >> halved) + bias */
};

static inline struct lmci_reference lmci_reference_of(const struct lmc_link_rule *rule,
                                                      const unsigned char *const *before)
{
    if (rule->optimizer == LMC_ADAM)
        return (struct lmci_reference){(const lmci_u32 *)(const void *)before[LMCI_SECOND], 1, 65};
    return (struct lmci_reference){(const lmci_u32 *)(const void *)before[LMCI_FIRST], 0, 128};
}

struct lmci_gradients {
    float *value; /* inputs of the arithmetic */
    unsigned char *symbol;
    unsigned char *byte;   /* SHORT: sign and the first 7 bits of the mantissa */
    unsigned char *length; /* VARIABLE: mantissa bits up to the last set one */
    unsigned char *stored; /* VARIABLE, FULL: number of stored bits */
    uint32_t *bits;        /* VARIABLE, FULL: these bits, sign first */
};

struct lmci_link_kernels {
    /* Moments after the step. SGD leaves `second` and `to_second` unused. */
    void (*moments)(const struct lmc_link_rule *rule, size_t n, const float *gradient, const lmci_f32 *weight,
                    const lmci_f32 *first, const lmci_f32 *second, lmci_f32 *to_first, lmci_f32 *to_second);
    void (*most)(size_t n, const lmci_f32 *second_after, const lmci_f32 *most, lmci_f32 *to);
    /* Weights from the moments after the step; with amsgrad, `second` is the greatest second moment. */
    void (*weights)(const struct lmc_link_rule *rule, size_t n, const float *gradient, const lmci_f32 *first,
                    const lmci_f32 *second, const lmci_f32 *weight, lmci_f32 *to);
    /* Does all of the above for at most one chunk and compares the result with the state after. Fills `rest` (below) of
     * each array; adds nonzero entries to `missed`. */
    void (*step)(const struct lmc_link_rule *rule, size_t n, const float *gradient, const struct lmci_link_view *view,
                 unsigned char *const *rest, size_t *missed);

    /* Values from symbols and bytes, or from symbols and bits. */
    void (*from_bytes)(const struct lmc_link_rule *rule, size_t n, const struct lmci_reference *reference,
                       const struct lmci_gradients *gradients);
    void (*from_bits)(const struct lmc_link_rule *rule, enum lmci_gradient_mode mode, size_t n,
                      const struct lmci_reference *reference, const struct lmci_gradients *gradients);

    /* Moments from symbols and bytes, in one pass, in place. Writes values only if the weights need them. */
    void (*short_moments)(const struct lmc_link_rule *rule, size_t n, const struct lmci_reference *reference,
                          const struct lmci_gradients *gradients, const lmci_f32 *weight, lmci_f32 *first,
                          lmci_f32 *second);

    /* Finds the bf16 gradients from state to state: values, symbols, bytes. */
    void (*to_bytes)(const struct lmc_link_rule *rule, size_t n, const struct lmci_reference *reference,
                     const lmci_f32 *first, const lmci_f32 *first_after, const lmci_f32 *weight,
                     const struct lmci_gradients *gradients);
    /* Finds gradients with the fewest bits (VARIABLE) or those FULL keeps: everything but bytes. */
    void (*to_bits)(const struct lmc_link_rule *rule, enum lmci_gradient_mode mode, int kappa, size_t n,
                    const struct lmci_reference *reference, const struct lmci_link_view *view,
                    const struct lmci_gradients *gradients);
    /* Guesses those of FULL, which may miss a moment: everything but bytes and lengths. Then the same as `step`. */
    void (*guess_step)(const struct lmc_link_rule *rule, int kappa, size_t n, const struct lmci_reference *reference,
                       const struct lmci_link_view *view, const struct lmci_gradients *gradients,
                       unsigned char *const *rest, size_t *missed);
    /* Stored bits, from symbols and lengths, or symbols and the first array before the step. Returns the sum. */
    size_t (*stored)(enum lmci_gradient_mode mode, int kappa, size_t n, const struct lmci_reference *reference,
                     const lmci_u32 *first, const struct lmci_gradients *gradients);
    /* Packs bits. Returns bytes; writes up to 64 bytes past them. */
    size_t (*pack)(size_t n, const struct lmci_gradients *gradients, unsigned char *dst);
    /* The inverse. `bytes`: as the sum of `stored` requires. */
    void (*unpack)(size_t n, const struct lmci_gradients *gradients, const unsigned char *from, size_t bytes);

    /* Adam's moments from symbols, none of which is 255, and packed bits (FULL), in place: what stored, unpack,
     * from_bits and moments do. Returns the number of bits; if these exceed `bytes`, the moments are undefined. */
    size_t (*full_moments)(const struct lmc_link_rule *rule, int kappa, size_t n,
                           const struct lmci_reference *reference, const struct lmci_gradients *gradients,
                           const lmci_f32 *weight, lmci_f32 *first, lmci_f32 *second, const unsigned char *from,
                           size_t bytes);

    /* Computes differences as bytes; returns how many are not zero. add_rest adds them; the caller handles escapes. */
    size_t (*rest)(size_t n, const lmci_u32 *actual, const lmci_u32 *predicted, unsigned char *rest);
    void (*add_rest)(size_t n, const unsigned char *rest, lmci_u32 *words);
};

extern const struct lmci_link_kernels lmci_link_kernels_portable;
#if defined(__x86_64__)
extern const struct lmci_link_kernels lmci_link_kernels_avx2;
extern const struct lmci_link_kernels lmci_link_kernels_avx512;
#elif defined(__aarch64__)
extern const struct lmci_link_kernels lmci_link_kernels_neon;
#endif

const struct lmci_link_kernels *lmci_link_kernels(void);

#endif
