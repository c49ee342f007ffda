/* SPDX-License-Identifier: BSD-3-Clause */
/* snapshots/elements.h - statistics of the differences between two runs of elements of any dtype. */
#ifndef LMCS_SNAPSHOTS_ELEMENTS_H
#define LMCS_SNAPSHOTS_ELEMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "lmcstore.h"

struct lmcs_compared {
    uint64_t elements;
    uint64_t changed;           /* whose bytes differ */
    uint64_t finite;            /* in both runs; the sums below are over these */
    uint64_t not_finite_before; /* NaN or infinite */
    uint64_t not_finite_after;
    double most;      /* largest |after - before| */
    double change;    /* sum of |after - before|^2 */
    double before;    /* ... of |before|^2 */
    double after;     /* ... of |after|^2 */
    double in_common; /* sum of the products (of complex numbers, the real part) */
};

/* The elements in `bytes`; of a packed dtype, two a byte. */
uint64_t lmcs_elements(uint32_t dtype, uint64_t bytes);
/* Compares two runs of `bytes`, a multiple of the dtype's size, and adds the result to `compared`. */
void lmcs_elements_compare(uint32_t dtype, const void *before, const void *after, uint64_t bytes,
                           struct lmcs_compared *compared);
void lmcs_compared_add(struct lmcs_compared *sum, const struct lmcs_compared *part);
/* Sets the numbers of a changed tensor; its cosine, if either length is 0, stays. */
void lmcs_compared_numbers(const struct lmcs_compared *all, struct lmcs_difference *difference);
/* Compares two tensors of one form, and sets the kind and the numbers of their difference. */
void lmcs_elements_difference(uint32_t dtype, const void *before, const void *after, uint64_t bytes,
                              struct lmcs_difference *difference);

#endif
