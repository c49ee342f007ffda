/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * link_kernels.h - the arithmetic of links, as a table that is compiled with different instruction sets.
 *
 * All tables give the same bits: each operation is one of IEEE 754, rounded once, in the order that is written;
 * nothing is contracted. What is no number is predicted as zero, for its bits differ between processors. Arrays may
 * lie at any alignment; an output may be the input of the same name.
 */
#ifndef LMC_LINK_KERNELS_H
#define LMC_LINK_KERNELS_H

#include "lmc.h"

#include <stddef.h>
#include <stdint.h>

/* Places of arrays in a state. */
enum lmci_link_array { LMCI_FIRST = 0, LMCI_SECOND = 1, LMCI_ADAM_WEIGHT = 2, LMCI_ADAM_MOST = 3, LMCI_SGD_WEIGHT = 1 };

static inline unsigned lmci_weight_of(const struct lmc_link_rule *rule)
{
    return rule->optimizer == LMC_ADAM ? LMCI_ADAM_WEIGHT : LMCI_SGD_WEIGHT;
}

/* Elements of a piece that go through the arithmetic at once. */
#define LMCI_CHUNK_ELEMENTS ((size_t)1 << 11)

/* How the gradients of a piece are coded: its first byte. */
enum lmci_gradient_mode {
    LMCI_GRADIENT_SHORT = 1,    /* the upper half of an f32: what bf16 has */
    LMCI_GRADIENT_VARIABLE = 2, /* as many bits of the mantissa as each has */
    LMCI_GRADIENT_FULL = 3      /* as many as the states need, as these say themselves */
};

/* A symbol of a gradient: its exponent, less what the state says of it; and two of their own. */
#define LMCI_SYMBOL_ZERO 0
#define LMCI_SYMBOL_RAW  255
/* A difference that stands for a word of its own. */
#define LMCI_REST_ESCAPE 0x80

/* The state of a piece or a block, each array of `elements` f32 at any alignment. */
struct lmci_link_view {
    const unsigned char *before[LMC_MAX_BASES];
    const unsigned char *after[LMC_MAX_BASES];
};

/* Floats and words of a state, wherever they lie. */
typedef float lmci_f32 __attribute__((aligned(1), may_alias));
typedef uint32_t lmci_u32 __attribute__((aligned(1), may_alias));

/* What tells the exponent of a gradient: an array of the state before. */
struct lmci_reference {
    const lmci_u32 *words;
    unsigned halved; /* 1: its square is expected there */
    int bias;        /* symbol = exponent - (the reference's >> halved) + bias */
};

static inline struct lmci_reference lmci_reference_of(const struct lmc_link_rule *rule,
                                                      const unsigned char *const *before)
{
    if (rule->optimizer == LMC_ADAM)
        return (struct lmci_reference){(const lmci_u32 *)(const void *)before[LMCI_SECOND], 1, 65};
    return (struct lmci_reference){(const lmci_u32 *)(const void *)before[LMCI_FIRST], 0, 128};
}

/* Gradients on their way into a link, or out of it. */
struct lmci_gradients {
    float *value; /* as the arithmetic takes them */
    unsigned char *symbol;
    unsigned char *byte;   /* SHORT: the sign, and the seven first bits of the mantissa */
    unsigned char *length; /* VARIABLE: bits of the mantissa up to the last that is set */
    unsigned char *stored; /* of the others: how many bits are stored, */
    uint32_t *bits;        /* and those: the sign, then the mantissa's that are not known */
};

struct lmci_link_kernels {
    /* The moments after the step, SGD's buffer: `second` and `to_second` are unused then. */
    void (*moments)(const struct lmc_link_rule *rule, size_t n, const float *gradient, const lmci_f32 *weight,
                    const lmci_f32 *first, const lmci_f32 *second, lmci_f32 *to_first, lmci_f32 *to_second);
    /* The greatest second moments. */
    void (*most)(size_t n, const lmci_f32 *second_after, const lmci_f32 *most, lmci_f32 *to);
    /* The weights, from the moments after the step; `second` of Adam with amsgrad: the greatest. */
    void (*weights)(const struct lmc_link_rule *rule, size_t n, const float *gradient, const lmci_f32 *first,
                    const lmci_f32 *second, const lmci_f32 *weight, lmci_f32 *to);
    /* All of them against the state after the step, for at most a chunk: `rest` of each array as below; to `missed` is
     * added how many aren't zero. */
    void (*step)(const struct lmc_link_rule *rule, size_t n, const float *gradient, const struct lmci_link_view *view,
                 unsigned char *const *rest, size_t *missed);

    /* Values from symbols and bytes, or bits. */
    void (*from_bytes)(const struct lmc_link_rule *rule, size_t n, const struct lmci_reference *reference,
                       const struct lmci_gradients *gradients);
    void (*from_bits)(const struct lmc_link_rule *rule, enum lmci_gradient_mode mode, size_t n,
                      const struct lmci_reference *reference, const struct lmci_gradients *gradients);

    /* The moments after the step from symbols and bytes of gradients in one go, in place; values only where the weights
     * need them, too. */
    void (*short_moments)(const struct lmc_link_rule *rule, size_t n, const struct lmci_reference *reference,
                          const struct lmci_gradients *gradients, const lmci_f32 *weight, lmci_f32 *first,
                          lmci_f32 *second);

    /* The gradients that made a state of another, as bf16: values, symbols, bytes. */
    void (*to_bytes)(const struct lmc_link_rule *rule, size_t n, const struct lmci_reference *reference,
                     const lmci_f32 *first, const lmci_f32 *first_after, const lmci_f32 *weight,
                     const struct lmci_gradients *gradients);
    /* Those with the fewest bits (VARIABLE), or with as many as FULL leaves them: all but bytes. */
    void (*to_bits)(const struct lmc_link_rule *rule, enum lmci_gradient_mode mode, int kappa, size_t n,
                    const struct lmci_reference *reference, const struct lmci_link_view *view,
                    const struct lmci_gradients *gradients);
    /* How many bits are stored of each: from symbols and lengths, or symbols and the first array before; the sum. */
    size_t (*stored)(enum lmci_gradient_mode mode, int kappa, size_t n, const struct lmci_reference *reference,
                     const lmci_u32 *first, const struct lmci_gradients *gradients);
    /* Those bits side by side; returns how many bytes, and writes up to 8 past them. */
    size_t (*pack)(size_t n, const struct lmci_gradients *gradients, unsigned char *dst);
    /* The inverse, of so many bytes as the sum of `stored` asks for. */
    void (*unpack)(size_t n, const struct lmci_gradients *gradients, const unsigned char *from, size_t bytes);

    /* Differences of bits, as bytes; returns how many aren't zero. Adding them; escapes are left to the caller. */
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

/* Those that belong to the kernels in use. */
const struct lmci_link_kernels *lmci_link_kernels(void);

#endif
