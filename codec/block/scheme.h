/* SPDX-License-Identifier: BSD-3-Clause */
/* scheme.h - how the blocks of a tensor are coded. */
#ifndef LMC_SCHEME_H
#define LMC_SCHEME_H

#include "kernels/class_lists.h"
#include "kernels/transform.h"

#include <stdbool.h>

/* The methods of FORMAT.md, 5.1. */
enum lmci_method {
    LMCI_METHOD_RAW = 0,
    LMCI_METHOD_PLANES = 1,
    LMCI_METHOD_CLASSES = 2,
    LMCI_METHOD_VALUES = 3,
    LMCI_METHOD_KEYED = 4,
    LMCI_METHOD_LINES = 5,
    LMCI_METHOD_COPIES = 6
};

/* A block for which the method fails is encoded by transform and planes. */
struct lmci_scheme {
    enum lmci_method method;
    enum lmci_transform transform;
    unsigned noise; /* number of lowest planes to store raw in blocks where they are noise */
    bool noisy;     /* they are, in all blocks */
    struct lmci_classes classes;
    bool copies;  /* search for repeated bytes */
    unsigned low; /* METHOD_KEYED: planes below the difference */
};

static inline bool lmci_scheme_needs_base(const struct lmci_scheme *scheme)
{
    return scheme->method == LMCI_METHOD_CLASSES || scheme->method == LMCI_METHOD_KEYED ||
           lmci_transform_needs_base(scheme->transform) != 0;
}

#endif
