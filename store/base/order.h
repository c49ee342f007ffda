/* SPDX-License-Identifier: BSD-3-Clause */
/* base/order.h - comparisons for qsort and bsearch. */
#ifndef LMCS_BASE_ORDER_H
#define LMCS_BASE_ORDER_H

#include <stdint.h>

/* -1, 0 or 1: `a` is less than, equal to or greater than `b`. */
#define LMCS_ORDER(a, b) (((a) > (b)) - ((a) < (b)))

/* Orders by a and b, and where they are equal by c and d. */
#define LMCS_ORDER2(a, b, c, d) ((a) != (b) ? LMCS_ORDER(a, b) : LMCS_ORDER(c, d))

/* Also for structs that begin with a uint64_t. */
static inline int lmcs_by_u64(const void *a, const void *b)
{
    const uint64_t *x = (const uint64_t *)a, *y = (const uint64_t *)b;
    return LMCS_ORDER(*x, *y);
}

#endif
