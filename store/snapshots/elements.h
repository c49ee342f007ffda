/* SPDX-License-Identifier: BSD-3-Clause */
/* elements.h - elements of any dtype as numbers, and what two runs of them have in common. */
#ifndef LMCS_SNAPSHOTS_ELEMENTS_H
#define LMCS_SNAPSHOTS_ELEMENTS_H

#include <stdbool.h>
#include <stdint.h>

/* What two runs of elements of one dtype say of one another; sums over those that are finite in both. */
struct lmcs_compared {
    uint64_t elements;
    uint64_t changed;           /* whose bytes differ */
    uint64_t finite;            /* elements that are finite in both: what follows is of them */
    uint64_t not_finite_before; /* NaN or infinite */
    uint64_t not_finite_after;
    double most;      /* largest |after - before| */
    double change;    /* sum of |after - before|^2 */
    double before;    /* ... of |before|^2 */
    double after;     /* ... of |after|^2 */
    double in_common; /* sum of the products (of complex numbers, the real part) */
};

/* Elements that `bytes` of a dtype are: two a byte where it packs two. */
uint64_t lmcs_elements(uint32_t dtype, uint64_t bytes);
/* Compares `bytes` (a multiple of the dtype's size) with as many others, and adds to `compared`. */
void lmcs_elements_compare(uint32_t dtype, const void *before, const void *after, uint64_t bytes,
                           struct lmcs_compared *compared);
/* Adds one result to another. */
void lmcs_compared_add(struct lmcs_compared *sum, const struct lmcs_compared *part);

#endif
