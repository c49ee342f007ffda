/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/policy_grace.c - the grace period after a change of a policy: pure functions.
 *
 * During the period the background removes only snapshots that neither the rules nor those before the change keep. The
 * rules of several changes within one period add up.
 */
#include <string.h>

#include "records/policy.h"

uint64_t lmcs_policy_grace_end(const struct lmcs_policy *policy, uint64_t now_ns)
{
    uint64_t end_ns = 0;
    bool is_after = policy->since_seconds == 0 || policy->grace_seconds == 0;
    if (!is_after && (__builtin_add_overflow(policy->since_seconds, policy->grace_seconds, &end_ns) ||
                      __builtin_mul_overflow(end_ns, 1000000000, &end_ns)))
        end_ns = UINT64_MAX;
    return now_ns < end_ns ? end_ns : 0;
}

static uint64_t seconds_after(uint64_t now_ns)
{
    return now_ns / 1000000000 + (now_ns % 1000000000 != 0);
}

bool lmcs_policy_renew_grace(struct lmcs_policy *policy, uint64_t now_ns)
{
    if (policy->since_seconds <= seconds_after(now_ns))
        return false;
    policy->since_seconds = seconds_after(now_ns);
    return true;
}

void lmcs_policy_add_was(struct lmcs_policy *policy)
{
    bool fits = policy->was_count > 0 && policy->rule_count + policy->was_count <= LMCS_MAX_RULES;
    for (size_t i = 0; fits && policy->rule_count > 0 && i < policy->was_count; i++)
        policy->rules[policy->rule_count++] = policy->was[i];
    if (!fits)
        policy->rule_count = 0;
}

static bool is_same_rule(const struct lmcs_rule *a, const struct lmcs_rule *b)
{
    return a->kind == b->kind && a->greatest == b->greatest && a->count == b->count && a->within == b->within &&
           strcmp(a->metric, b->metric) == 0;
}

static bool has_rule(const struct lmcs_policy *policy, const struct lmcs_rule *rule)
{
    for (size_t i = 0; i < policy->rule_count; i++)
        if (is_same_rule(&policy->rules[i], rule))
            return true;
    return false;
}

void lmcs_policy_begin_grace(const struct lmcs_policy *before, struct lmcs_policy *policy, uint64_t now_ns)
{
    struct lmcs_policy due = *before; /* keeps all that was not due before */
    if (lmcs_policy_grace_end(before, now_ns) != 0)
        lmcs_policy_add_was(&due);
    else
        policy->since_seconds = policy->was_count = 0;
    bool is_due_by_budget =
        before->budget_bytes == policy->budget_bytes && before->budget_percent == policy->budget_percent;
    struct lmcs_policy changed = *policy;
    changed.was_count = 0;
    bool keeps_more = due.rule_count > 0 && is_due_by_budget; /* all rules from before */
    bool is_same = before->rule_count == policy->rule_count && is_due_by_budget;
    for (size_t i = 0; i < due.rule_count; i++)
        if (!has_rule(policy, &due.rules[i])) {
            changed.was[changed.was_count++] = due.rules[i];
            keeps_more = false;
        }
    for (size_t i = 0; i < before->rule_count; i++)
        is_same &= has_rule(policy, &before->rules[i]);
    if (is_same && policy->grace_seconds > 0)
        return;
    if (policy->grace_seconds == 0 || policy->rule_count == 0 || keeps_more) {
        policy->since_seconds = policy->was_count = 0;
        return;
    }
    if (!is_due_by_budget || due.rule_count == 0 || policy->rule_count + changed.was_count > LMCS_MAX_RULES)
        changed.was_count = 0;
    *policy = changed;
    policy->since_seconds = seconds_after(now_ns); /* the period is never shorter */
}
