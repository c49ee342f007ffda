/* SPDX-License-Identifier: BSD-3-Clause */
/* contexts.h - classes of a plane's bytes by the bytes at a distance before (FORMAT.md, 5.3). */
#ifndef LMC_CONTEXTS_H
#define LMC_CONTEXTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LMCI_CONTEXT_CLASSES  16
#define LMCI_CONTEXT_DISTANCE 64                /* the least */
#define LMCI_CONTEXT_LEAST    ((size_t)1 << 16) /* shorter planes do not pay */

struct lmci_context {
    size_t distance;
    unsigned count;
    uint8_t first[LMCI_CONTEXT_CLASSES]; /* least bytes, ascending from 0 */
};

void lmci_context_map(const struct lmci_context *context, uint8_t classes[256]);

/* Neighbouring bytes share a class; counts are about equal. */
void lmci_context_classes(const uint32_t counts[256], unsigned most, struct lmci_context *context);

/* Fills *context, and returns true if it is enough smaller than `pieces` bits (0: unknown). */
bool lmci_context_choose(const unsigned char *plane, size_t bytes, const uint32_t counts[256], uint64_t pieces,
                         bool dense, struct lmci_context *context);

#endif
