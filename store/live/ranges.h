/* SPDX-License-Identifier: BSD-3-Clause */
/* live/ranges.h - sets of bytes of the pool: an array of ranges by offset, no two adjacent. */
#ifndef LMCS_LIVE_RANGES_H
#define LMCS_LIVE_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lmcs_range {
    uint64_t offset;
    uint64_t bytes;
};
struct lmcs_ranges {
    struct lmcs_range *all;
    size_t count;
    size_t capacity;
};

bool lmcs_ranges_reserve(struct lmcs_ranges *ranges);
/* Adds bytes not in the set; joins neighbours. False, unchanged: no memory. */
bool lmcs_ranges_add(struct lmcs_ranges *ranges, uint64_t offset, uint64_t bytes);
/* The range with all of these bytes, or NULL. */
struct lmcs_range *lmcs_ranges_find(const struct lmcs_ranges *ranges, uint64_t offset, uint64_t bytes);
/* Removes bytes that one range contains. False: none does, or no memory. */
bool lmcs_ranges_take(struct lmcs_ranges *ranges, uint64_t offset, uint64_t bytes);
/* Removes the first `bytes` of the smallest sufficient range. */
bool lmcs_ranges_take_best(struct lmcs_ranges *ranges, uint64_t bytes, uint64_t *offset);
/* The first run of the set between `offset` and `end`. */
bool lmcs_ranges_find_common(const struct lmcs_ranges *ranges, uint64_t offset, uint64_t end,
                             struct lmcs_range *common);
/* Removes those bytes that are in the set. After lmcs_ranges_reserve. */
void lmcs_ranges_cut(struct lmcs_ranges *ranges, uint64_t offset, uint64_t bytes);

#endif
