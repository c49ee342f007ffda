/* SPDX-License-Identifier: BSD-3-Clause */
/* spans.c - see spans.h. */
#include "spans.h"

const char *span_name(enum span span)
{
    static const char *const names[SPANS] = {"capture", "commit",      "find",          "view",
                                             "read",    "restore_new", "restore_aging", "restore_old"};
    return names[span];
}

/* Exact below 16. */
static unsigned bucket_of(uint64_t ns)
{
    if (ns < 16)
        return (unsigned)ns;
    unsigned top = 63u - (unsigned)__builtin_clzll(ns);
    return (top - 3) * 16 + (unsigned)(ns >> (top - 4) & 15);
}

static uint64_t end_of(unsigned bucket)
{
    if (bucket < 16)
        return bucket;
    unsigned top = bucket / 16 + 3;
    return (((uint64_t)16 + bucket % 16 + 1) << (top - 4)) - 1;
}

void spans_add(struct spans *spans, enum span span, uint64_t ns)
{
    spans->count[span][bucket_of(ns)]++;
}

void spans_merge(struct spans *into, const struct spans *from)
{
    for (unsigned span = 0; span < SPANS; span++)
        for (unsigned bucket = 0; bucket < SPAN_BUCKETS; bucket++)
            into->count[span][bucket] += from->count[span][bucket];
}

uint64_t spans_quantile(const struct spans *spans, enum span span, double share)
{
    uint64_t all = 0, below = 0;
    for (unsigned bucket = 0; bucket < SPAN_BUCKETS; bucket++)
        all += spans->count[span][bucket];
    for (unsigned bucket = 0; bucket < SPAN_BUCKETS; bucket++) {
        below += spans->count[span][bucket];
        if (all > 0 && (double)below >= share * (double)all)
            return end_of(bucket);
    }
    return 0;
}
