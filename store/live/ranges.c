/* SPDX-License-Identifier: BSD-3-Clause */
/* live/ranges.c - sets of bytes of the pool. */
#include "live/ranges.h"

#include <string.h>

#include "base/grow.h"

static size_t first_behind(const struct lmcs_ranges *ranges, uint64_t offset)
{
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges->all[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool lmcs_ranges_reserve(struct lmcs_ranges *ranges)
{
    return lmcs_grow(&ranges->all, &ranges->capacity, ranges->count, sizeof *ranges->all);
}

bool lmcs_ranges_add(struct lmcs_ranges *ranges, uint64_t offset, uint64_t bytes)
{
    size_t i = first_behind(ranges, offset);
    bool joins_before = i > 0 && ranges->all[i - 1].offset + ranges->all[i - 1].bytes == offset;
    bool joins_after = i < ranges->count && offset + bytes == ranges->all[i].offset;
    if (joins_before && joins_after) {
        ranges->all[i - 1].bytes += bytes + ranges->all[i].bytes;
        memmove(&ranges->all[i], &ranges->all[i + 1], (ranges->count - i - 1) * sizeof *ranges->all);
        ranges->count--;
    } else if (joins_before) {
        ranges->all[i - 1].bytes += bytes;
    } else if (joins_after) {
        ranges->all[i].offset = offset;
        ranges->all[i].bytes += bytes;
    } else {
        if (!lmcs_ranges_reserve(ranges))
            return false;
        memmove(&ranges->all[i + 1], &ranges->all[i], (ranges->count - i) * sizeof *ranges->all);
        ranges->all[i] = (struct lmcs_range){offset, bytes};
        ranges->count++;
    }
    return true;
}

struct lmcs_range *lmcs_ranges_find(const struct lmcs_ranges *ranges, uint64_t offset, uint64_t bytes)
{
    size_t i = first_behind(ranges, offset);
    struct lmcs_range *range = i > 0 ? &ranges->all[i - 1] : NULL;
    return range != NULL && offset - range->offset <= range->bytes && bytes <= range->bytes - (offset - range->offset)
               ? range
               : NULL;
}

/* Removes bytes from a range; needs memory for one more range. */
static void cut_range(struct lmcs_ranges *ranges, struct lmcs_range *range, uint64_t offset, uint64_t bytes)
{
    uint64_t before = offset - range->offset, after = range->bytes - before - bytes;
    size_t i = (size_t)(range - ranges->all);
    if (before == 0 && after == 0) {
        memmove(range, range + 1, (ranges->count - i - 1) * sizeof *range);
        ranges->count--;
    } else if (before == 0) {
        *range = (struct lmcs_range){offset + bytes, after};
    } else {
        range->bytes = before;
        if (after == 0)
            return;
        memmove(range + 2, range + 1, (ranges->count - i - 1) * sizeof *range);
        range[1] = (struct lmcs_range){offset + bytes, after};
        ranges->count++;
    }
}

bool lmcs_ranges_take(struct lmcs_ranges *ranges, uint64_t offset, uint64_t bytes)
{
    if (!lmcs_ranges_reserve(ranges))
        return false;
    struct lmcs_range *range = lmcs_ranges_find(ranges, offset, bytes);
    if (range == NULL)
        return false;
    cut_range(ranges, range, offset, bytes);
    return true;
}

bool lmcs_ranges_find_common(const struct lmcs_ranges *ranges, uint64_t offset, uint64_t end, struct lmcs_range *common)
{
    size_t i = first_behind(ranges, offset);
    if (i > 0 && offset - ranges->all[i - 1].offset < ranges->all[i - 1].bytes)
        i--;
    if (offset >= end || i == ranges->count || ranges->all[i].offset >= end)
        return false;
    uint64_t from = ranges->all[i].offset > offset ? ranges->all[i].offset : offset;
    uint64_t last = ranges->all[i].offset + ranges->all[i].bytes;
    *common = (struct lmcs_range){from, (last < end ? last : end) - from};
    return true;
}

void lmcs_ranges_cut(struct lmcs_ranges *ranges, uint64_t offset, uint64_t bytes)
{
    struct lmcs_range common;
    while (lmcs_ranges_find_common(ranges, offset, offset + bytes, &common))
        cut_range(ranges, lmcs_ranges_find(ranges, common.offset, common.bytes), common.offset, common.bytes);
}

bool lmcs_ranges_take_best(struct lmcs_ranges *ranges, uint64_t bytes, uint64_t *offset)
{
    const struct lmcs_range *best = NULL;
    for (size_t i = 0; i < ranges->count; i++)
        if (ranges->all[i].bytes >= bytes && (best == NULL || ranges->all[i].bytes < best->bytes))
            best = &ranges->all[i];
    if (best == NULL)
        return false;
    *offset = best->offset;
    return lmcs_ranges_take(ranges, best->offset, bytes);
}
