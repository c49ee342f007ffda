/* SPDX-License-Identifier: BSD-3-Clause */
/* test_policy_support.h - policies and the shelves that they prune. */
#ifndef LMCS_TEST_POLICY_SUPPORT_H
#define LMCS_TEST_POLICY_SUPPORT_H

#include "pages/tree.h"
#include "records/busy.h"
#include "records/policy.h"
#include "records/shelf.h"
#include "shelves/shelves.h"
#include "support.h"
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define HOUR ((uint64_t)3600 * 1000000000)

#define MOST 400

struct history {
    struct lmcs_policy_facts facts[MOST];
    const char *kept[MOST];
    size_t count;
    uint64_t now_ns;
};

static inline void add(struct history *history, int64_t step)
{
    struct lmcs_policy_facts *fact = &history->facts[history->count];
    *fact = (struct lmcs_policy_facts){
        .number = history->count > 0 ? fact[-1].number + 1 : 1, .step = step, .time_ns = history->now_ns};
    for (size_t i = 0; i < LMCS_MAX_RULES; i++)
        fact->metrics[i] = NAN;
    history->count++;
    history->now_ns += HOUR / 2;
}

static inline struct history steps(size_t count)
{
    struct history history = {.now_ns = 400 * HOUR};
    for (size_t i = 0; i < count; i++)
        add(&history, (int64_t)i);
    return history;
}

#endif
