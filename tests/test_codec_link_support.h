/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_codec_link_support.h - optimizer steps in scalar C, to make states for links.
 *
 * They follow torch, not the codec: one element at a time, with libm's fmaf and sqrtf.
 */
#ifndef LMC_TEST_CODEC_LINK_SUPPORT_H
#define LMC_TEST_CODEC_LINK_SUPPORT_H

#include "test_codec_support.h"

#include <math.h>

/* Sets the thread to read and round denormals as zeros, and reads its control word. */
#if defined(__x86_64__)
#include <xmmintrin.h>
#define FLUSH()   _mm_setcsr(_mm_getcsr() | 0x8040)
#define CONTROL() _mm_getcsr()
#else
#define FLUSH()   ((void)0)
#define CONTROL() 0u
#endif

#define PIECE ((size_t)1 << 15)

enum gradients { BF16, CLIPPED, SUMMED, CLIPPED_SUM, ANY, SPARSE_ROWS, NONE, GRADIENTS };

struct state {
    unsigned arrays;
    size_t elements;
    float *array[4]; /* Adam: m, v, w, greatest v; SGD: buffer, w */
};

static inline struct state state_new(unsigned arrays, size_t elements)
{
    struct state state = {.arrays = arrays, .elements = elements};
    for (unsigned k = 0; k < arrays; k++) {
        state.array[k] = calloc(elements + 1, 4);
        assert_non_null(state.array[k]);
    }
    return state;
}

static inline struct state state_copy(const struct state *from)
{
    struct state state = state_new(from->arrays, from->elements);
    for (unsigned k = 0; k < from->arrays; k++)
        memcpy(state.array[k], from->array[k], 4 * from->elements);
    return state;
}

static inline void state_free(struct state *state)
{
    for (unsigned k = 0; k < state->arrays && k < 4; k++)
        free(state->array[k]);
    memset(state, 0, sizeof *state);
}

static inline bool state_equal(const struct state *a, const struct state *b)
{
    bool equal = a->arrays == b->arrays && a->elements == b->elements;
    for (unsigned k = 0; equal && k < a->arrays; k++)
        equal = memcmp(a->array[k], b->array[k], 4 * a->elements) == 0;
    return equal;
}

static inline float uniform(uint64_t *seed)
{
    return (float)(next_random(seed) >> 40) * 0x1p-23f - 1.0f;
}

static inline float bell(uint64_t *seed)
{
    return uniform(seed) + uniform(seed) + uniform(seed) + uniform(seed);
}

static inline float to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, 4);
    return x;
}

static inline float scale_at(size_t i)
{
    uint64_t seed = i / 7 * UINT64_C(0x9e3779b97f4a7c15) + 5;
    return ldexpf(1.0f + uniform(&seed) * 0.5f, -12 + (int)(next_random(&seed) % 5));
}

static inline float gradient_at(enum gradients kind, float clip, size_t i, uint64_t *seed)
{
    const float scale = scale_at(i);
    float sum = 0;
    switch (kind) {
    case BF16:
        return to_bf16(bell(seed) * scale);
    case CLIPPED:
        return to_bf16(bell(seed) * scale) * clip;
    case SUMMED:
    case CLIPPED_SUM:
        for (int k = 0; k < 4; k++)
            sum += to_bf16(bell(seed) * scale);
        return kind == SUMMED ? sum : sum * clip;
    case ANY:
        return bell(seed) * scale;
    case SPARSE_ROWS:
        return i / 256 % 4 != 0 ? 0.0f : to_bf16(bell(seed) * scale);
    default:
        return 0;
    }
}

static inline void adam_step(struct state *state, const struct lmc_link_hints *hints, const float *gradient)
{
    const bool l2 = (hints->flags & LMC_LINK_L2) != 0, greatest = (hints->flags & LMC_LINK_AMSGRAD) != 0;
    const float gain = (float)(1 - hints->beta1), gain2 = (float)(1 - hints->beta2);
    const float rate = (float)(-hints->lr / (1 - pow(hints->beta1, hints->step)));
    const float root = (float)sqrt(1 - pow(hints->beta2, hints->step)), eps = (float)hints->eps;
    const float decay = (float)(1 - hints->lr * hints->weight_decay);
    for (size_t i = 0; i < state->elements; i++) {
        float *m = &state->array[0][i], *v = &state->array[1][i], *w = &state->array[2][i];
        const float g =
            l2 && hints->weight_decay != 0 ? fmaf((float)hints->weight_decay, *w, gradient[i]) : gradient[i];
        *m = gain < 0.5f ? fmaf(gain, g - *m, *m) : fmaf(g - *m, -(1.0f - gain), g);
        const float kept = *v * (float)hints->beta2;
        *v = fmaf(gain2 * g, g, kept);
        float second = *v;
        if (greatest)
            second = state->array[3][i] = state->array[3][i] > *v ? state->array[3][i] : *v;
        const float below = sqrtf(second) / root + eps;
        const float way = rate * *m / below;
        *w = (l2 ? *w : *w * decay) + way;
    }
}

static inline void sgd_step(struct state *state, const struct lmc_link_hints *hints, const float *gradient)
{
    const float momentum = (float)hints->momentum, gain = (float)(1 - hints->dampening);
    for (size_t i = 0; i < state->elements; i++) {
        float *buffer = &state->array[0][i], *w = &state->array[1][i];
        const float g = hints->weight_decay != 0 ? fmaf((float)hints->weight_decay, *w, gradient[i]) : gradient[i];
        const float kept = *buffer * momentum;
        *buffer = fmaf(gain, g, kept);
        const float way = (hints->flags & LMC_LINK_NESTEROV) != 0 ? fmaf(momentum, *buffer, g) : *buffer;
        *w = fmaf((float)-hints->lr, way, *w);
    }
}

static inline void optimizer_step(struct state *state, const struct lmc_link_hints *hints, enum gradients kind,
                                  float clip, uint64_t seed)
{
    float *gradient = malloc(4 * state->elements + 4);
    assert_non_null(gradient);
    uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15) + 3;
    for (size_t i = 0; i < state->elements; i++)
        gradient[i] = gradient_at(kind, clip, i, &random);
    if (hints->optimizer == LMC_ADAM)
        adam_step(state, hints, gradient);
    else
        sgd_step(state, hints, gradient);
    free(gradient);
}

static inline struct lmc_link_hints adamw_hints(void)
{
    return (struct lmc_link_hints){
        .optimizer = LMC_ADAM, .step = 1, .lr = 3e-4, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
}

static inline struct lmc_link_hints sgd_hints(void)
{
    return (struct lmc_link_hints){.optimizer = LMC_SGD, .step = 1, .lr = 0.05, .weight_decay = 1e-4, .momentum = 0.9};
}

static inline struct state trained(struct lmc_link_hints *hints, size_t elements, enum gradients kind, unsigned steps)
{
    struct state state = state_new(lmc_link_arrays(hints->optimizer, hints->flags), elements);
    uint64_t seed = 99;
    float *w = state.array[hints->optimizer == LMC_ADAM ? 2 : 1];
    for (size_t i = 0; i < elements; i++)
        w[i] = bell(&seed) * 0.02f;
    for (unsigned t = 0; t < steps; t++, hints->step++)
        optimizer_step(&state, hints, kind, 0.3f, 1000 + t);
    return state;
}

struct link {
    unsigned char *frame;
    size_t frame_bytes;
};

static inline struct lmc_link_params params_of(const struct lmc_link_rule *rule, const struct state *before,
                                               const struct state *after)
{
    struct lmc_link_params params = {.rule = *rule, .raw_bytes = 4 * before->elements};
    for (unsigned k = 0; k < before->arrays; k++) {
        params.before[k] = before->array[k];
        params.after[k] = after->array[k];
        params.before_digest[k] = (struct lmc_hash){k + 1, 7};
    }
    return params;
}

static inline struct link make_link(const struct lmc_link_rule *rule, const struct state *before,
                                    const struct state *after)
{
    const struct lmc_link_params params = params_of(rule, before, after);
    const size_t bound = (size_t)lmc_link_bound(before->arrays, params.raw_bytes);
    const char *message = "";
    struct link link = {malloc(bound), 0};
    assert_non_null(link.frame);
    assert_int_equal(lmc_link_compress(&params, link.frame, bound, &link.frame_bytes, &message), LMC_OK);
    assert_true(link.frame_bytes <= bound);
    link.frame = realloc(link.frame, link.frame_bytes);
    assert_non_null(link.frame);
    return link;
}

static inline void assert_leads(const struct link *link, const struct state *before, const struct state *after)
{
    struct state now = state_copy(before);
    const char *message = "";
    enum lmc_status status =
        lmc_link_decompress(link->frame, link->frame_bytes, (void *const *)now.array, 4 * before->elements, &message);
    assert_string_equal(message, "");
    assert_int_equal(status, LMC_OK);
    assert_true(state_equal(&now, after));
    state_free(&now);
}

/* Returns bits an element of all arrays; checks the round trip. */
static inline double link_bits(const struct lmc_link_rule *rule, const struct state *before, const struct state *after)
{
    struct link link = make_link(rule, before, after);
    assert_leads(&link, before, after);
    free(link.frame);
    return 8.0 * (double)link.frame_bytes / (double)before->elements;
}

#endif
