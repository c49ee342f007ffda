/* SPDX-License-Identifier: BSD-3-Clause */
/* spans.h - durations of calls: counts in steps of a sixteenth of a power of two. */
#ifndef LMCS_STRESS_SPANS_H
#define LMCS_STRESS_SPANS_H

#include <stddef.h>
#include <stdint.h>

enum span {
    SPAN_CAPTURE,       /* from begin until durable */
    SPAN_COMMIT,        /* a synchronous commit alone */
    SPAN_FIND,          /* a snapshot by its address */
    SPAN_VIEW,          /* all of a snapshot, without copies of raw data */
    SPAN_READ,          /* one tensor into a buffer */
    SPAN_RESTORE_NEW,   /* a snapshot into memory: one of the newest four */
    SPAN_RESTORE_AGING, /* of the eight before */
    SPAN_RESTORE_OLD,   /* older */
    SPANS
};

enum { SPAN_BUCKETS = 64 * 16 };

struct spans {
    uint32_t count[SPANS][SPAN_BUCKETS];
};

const char *span_name(enum span span);
void spans_add(struct spans *spans, enum span span, uint64_t ns);
void spans_merge(struct spans *into, const struct spans *from);
/* The longest time of the fastest `share` (0 to 1), to a sixteenth; 0: no calls. */
uint64_t spans_quantile(const struct spans *spans, enum span span, double share);

#endif
