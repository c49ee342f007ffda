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

static inline struct lmcs_relation sgd_relation(const char *buffer, const char *weight)
{
    return (struct lmcs_relation){
        .names = {buffer, weight}, .name_count = 2, .optimizer = LMC_SGD, .lr = SGD_LR, .momentum = SGD_MOMENTUM};
}

#endif
