/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/policy_keep.c - which snapshots a policy keeps: pure functions.
 *
 * A snapshot is kept if any rule picks it. The first of a stretch of steps or time stays the first when more come:
 * pruning twice is like pruning once. A rule whose metric no snapshot has keeps all: the metric may be misspelled, or
 * come later.
 */
#include "base/order.h"
#include "records/policy.h"

#include <math.h>
#include <stdlib.h>

struct ranked {
    int64_t stretch; /* of steps or time: its number */
    int64_t within;  /* the step or time */
    double value;
    size_t index;
};

static int by_stretch(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->stretch != y->stretch)
        return LMCS_ORDER(x->stretch, y->stretch);
    return LMCS_ORDER2(x->within, y->within, y->index, x->index); /* of the same step, the newest first */
}

static int by_value(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return LMCS_ORDER2(x->value, y->value, y->index, x->index);
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static void keep(const char **kept, size_t i, const char *why)
{
    if (kept[i] == NULL)
        kept[i] = why;
}

static void keep_first_of_each_stretch(struct ranked *ranked, size_t count, const char **kept, const char *why)
{
    qsort(ranked, count, sizeof *ranked, by_stretch);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || ranked[i].stretch != ranked[i - 1].stretch)
            keep(kept, ranked[i].index, why);
}

static void keep_every(const struct lmcs_rule *rule, const struct lmcs_policy_facts *facts, size_t count,
                       struct ranked *ranked, const char **kept)
{
    size_t first = rule->within > 0 && rule->within < count ? count - rule->within : 0;
    for (size_t i = first; i < count; i++) {
        int64_t at = facts[i].step != LMCS_NO_STEP ? facts[i].step : (int64_t)facts[i].number;
        ranked[i - first] = (struct ranked){floor_div(at, (int64_t)rule->count), at, 0, i};
    }
    keep_first_of_each_stretch(ranked, count - first, kept, "one of a stretch of steps");
}

static void keep_each(const struct lmcs_rule *rule, const struct lmcs_policy_facts *facts, size_t count,
                      uint64_t now_ns, struct ranked *ranked, const char **kept)
{
    size_t n = 0;
    uint64_t within_ns = rule->within * 1000000000;
    for (size_t i = 0; i < count; i++) {
        uint64_t time = facts[i].time_ns;
        if (rule->within == 0 || time >= now_ns || now_ns - time <= within_ns)
            ranked[n++] = (struct ranked){(int64_t)(time / (rule->count * 1000000000)), (int64_t)(time / 2), 0, i};
    }
    keep_first_of_each_stretch(ranked, n, kept, "one of a stretch of time");
}

static void keep_best(const struct lmcs_rule *rule, size_t rule_index, const struct lmcs_policy_facts *facts,
                      size_t count, struct ranked *ranked, const char **kept)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        double value = facts[i].metrics[rule_index];
        if (!isnan(value))
            ranked[n++] = (struct ranked){.value = rule->greatest ? -value : value, .index = i};
    }
    for (size_t i = 0; n == 0 && i < count; i++)
        keep(kept, i, "no snapshot has the metric of a rule");
    qsort(ranked, n, sizeof *ranked, by_value);
    for (size_t i = 0; i < n && i < rule->count; i++)
        keep(kept, ranked[i].index, "among the best by a metric");
}

enum lmcs_status lmcs_policy_keeps(const struct lmcs_policy *policy, const struct lmcs_policy_facts *facts,
                                   size_t count, uint64_t now_ns, const char **kept, struct lmcs_error *error)
{
    struct ranked *ranked = malloc((count + 1) * sizeof *ranked);
    if (ranked == NULL)
        return lmcs_fail_memory(error);
    for (size_t i = 0; i < count; i++)
        kept[i] = facts[i].held ? "tagged or the latest" : policy->rule_count == 0 ? "everything is kept" : NULL;
    for (size_t r = 0; r < policy->rule_count; r++) {
        const struct lmcs_rule *rule = &policy->rules[r];
        switch (rule->kind) {
        case LMCS_RULE_LAST:
            for (size_t i = rule->count < count ? count - rule->count : 0; i < count; i++)
                keep(kept, i, "among the newest");
            break;
        case LMCS_RULE_EVERY:
            keep_every(rule, facts, count, ranked, kept);
            break;
        case LMCS_RULE_EACH:
            keep_each(rule, facts, count, now_ns, ranked, kept);
            break;
        case LMCS_RULE_BEST:
            keep_best(rule, r, facts, count, ranked, kept);
            break;
        }
    }
    free(ranked);
    return LMCS_OK;
}
