/* SPDX-License-Identifier: BSD-3-Clause */
/* sample.h - samples elements of two states, for planning and fitting. */
#ifndef LMC_LINK_SAMPLE_H
#define LMC_LINK_SAMPLE_H

#include "link/link.h"

#include <string.h>

#define LMCI_SAMPLE_RUNS     ((size_t)16)
#define LMCI_SAMPLE_RUN      ((size_t)256)
#define LMCI_SAMPLE_ELEMENTS (LMCI_SAMPLE_RUNS * LMCI_SAMPLE_RUN)

struct lmci_link_sample {
    struct lmci_link_view view;
    size_t elements;
    float values[2][LMC_MAX_BASES][LMCI_SAMPLE_ELEMENTS];
};

/* Copies at most `most` elements (LMCI_SAMPLE_RUNS to LMCI_SAMPLE_ELEMENTS). */
static inline void lmci_link_sample(unsigned arrays, const void *const *before, const void *const *after,
                                    uint64_t raw_bytes, size_t most, struct lmci_link_sample *sample)
{
    const size_t elements = (size_t)(raw_bytes / 4);
    const bool all = elements <= most;
    const size_t runs = all ? 1 : LMCI_SAMPLE_RUNS, run = all ? elements : most / LMCI_SAMPLE_RUNS;
    const size_t stride = all ? 0 : (elements - run) / (runs - 1);
    sample->elements = runs * run;
    for (unsigned k = 0; k < arrays; k++) {
        for (size_t i = 0; i < runs; i++) {
            memcpy(sample->values[0][k] + i * run, (const unsigned char *)before[k] + 4 * i * stride, 4 * run);
            memcpy(sample->values[1][k] + i * run, (const unsigned char *)after[k] + 4 * i * stride, 4 * run);
        }
        sample->view.before[k] = (const unsigned char *)sample->values[0][k];
        sample->view.after[k] = (const unsigned char *)sample->values[1][k];
    }
}

#endif
