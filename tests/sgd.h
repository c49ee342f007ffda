/* SPDX-License-Identifier: BSD-3-Clause */
/* sgd.h - a parameter under SGD with momentum, whose steps are stored as links. */
#ifndef LMCS_TEST_SGD_H
#define LMCS_TEST_SGD_H

#include <math.h>

#include "support.h"

#define SGD_LR       0.05
#define SGD_MOMENTUM 0.9

/* Words of policies. */
#define WRITE_LINKS "write=link"
#define WRITE_RAW   "write=raw"

/* Gradients of few bits, like bf16. */
static inline void sgd_step(struct rng *rng, float *buffer, float *weight, uint64_t elements)
{
    for (uint64_t i = 0; i < elements; i++) {
        const float gradient = ((float)rng_below(rng, 256) - 128.0F) / 4096.0F, kept = buffer[i] * (float)SGD_MOMENTUM;
        buffer[i] = kept + gradient;
        weight[i] = fmaf((float)-SGD_LR, buffer[i], weight[i]);
    }
}

/* A parameter and its momentum at some steps, one after the other: `elements` of each. No step leads from the last to
 * the first. */
struct sgd_run {
    float *momenta, *weights;
    uint64_t elements;
};

static inline struct sgd_run sgd_run(uint64_t seed, uint64_t elements, size_t steps)
{
    struct sgd_run run = {calloc(steps * elements, sizeof(float)), calloc(steps * elements, sizeof(float)), elements};
    struct rng rng = {seed};
    EXPECT(run.momenta != NULL && run.weights != NULL);
    for (size_t i = 0; i < steps; i++) {
        float *momentum = run.momenta + i * elements, *weight = run.weights + i * elements;
        if (i > 0) {
            memcpy(momentum, momentum - elements, elements * sizeof *momentum);
            memcpy(weight, weight - elements, elements * sizeof *weight);
        }
        sgd_step(&rng, momentum, weight, elements);
    }
    return run;
}

static inline struct lmcs_relation sgd_relation(const char *buffer, const char *weight)
{
    return (struct lmcs_relation){
        .names = {buffer, weight}, .name_count = 2, .optimizer = LMC_SGD, .lr = SGD_LR, .momentum = SGD_MOMENTUM};
}

#endif
