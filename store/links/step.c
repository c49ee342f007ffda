/* SPDX-License-Identifier: BSD-3-Clause */
/* links/step.c - the rule of an optimizer's step: from hints, from the group, or fitted to the parameter. */
#include "links/step.h"

#include "base/error.h"
#include "base/guard.h"
#include "links/search.h"

#define PAYS_PERCENT 60u  /* of the arrays' bytes */
#define MOST_FITS    4u   /* fits for a group's rule */
#define DOUBT        0.5F /* share of elements; if a rule explains fewer, relations may name the wrong tensor */

uint64_t lmcs_step_most_bytes(const struct lmcs_step *step)
{
    return step->raw_bytes * step->arrays / 100 * PAYS_PERCENT;
}

/* Runs `work` on the arrays. False: the medium does not deliver one. */
static bool guard(const struct lmcs_step *step, void (*work)(void *context), void *context)
{
    struct lmcs_guarded ranges[2 * LMC_MAX_BASES];
    for (uint32_t i = 0; i < step->arrays; i++) {
        ranges[2 * i] = (struct lmcs_guarded){step->before[i], step->raw_bytes};
        ranges[2 * i + 1] = (struct lmcs_guarded){step->after[i], step->raw_bytes};
    }
    return lmcs_guard(ranges, 2 * (size_t)step->arrays, work, context);
}

/* Whether 64 elements follow the rule. */
static bool explains(const struct lmcs_step *step, const struct lmc_link_rule *rule)
{
    struct lmcs_search_array arrays[LMC_MAX_BASES];
    for (uint32_t i = 0; i < step->arrays; i++)
        arrays[i] = (struct lmcs_search_array){step->before[i], step->after[i], step->raw_bytes / sizeof(float)};
    return lmcs_optimizer_explains(rule, arrays, step->arrays);
}

/* ---- Fitting ---- */

struct fitting {
    const struct lmcs_step *step;
    struct lmc_link_rule rule;
    struct lmc_link_fit fit;
    enum lmc_status result;
};

static bool is_likely(const struct lmcs_step *step, const struct lmc_link_hints *hints)
{
    struct lmc_link_rule rule;
    return lmc_link_rule(hints, &rule) == LMC_OK && explains(step, &rule);
}

/* Fits by the likelier hints, by both if they are equally likely, or by none. */
static void fit(void *context)
{
    struct fitting *f = context;
    const struct lmcs_step *step = f->step;
    bool likely[2] = {false, false};
    const char *why;
    for (uint32_t i = 0; step->hint_count == 2 && i < 2; i++)
        likely[i] = is_likely(step, &step->hints[i]);
    f->result = LMC_UNSUPPORTED;
    for (uint32_t i = 0; f->result != LMC_NO_MEMORY && (i == 0 || i < step->hint_count); i++) {
        struct lmc_link_rule rule;
        struct lmc_link_fit found;
        if (likely[1 - i] && !likely[i])
            continue;
        const enum lmc_status result = lmc_link_fit(step->hint_count == 0 ? NULL : &step->hints[i], step->arrays,
                                                    step->before, step->after, step->raw_bytes, &rule, &found, &why);
        if (result != LMC_NO_MEMORY && f->result == LMC_OK && !(result == LMC_OK && found.bits < f->fit.bits))
            continue;
        f->result = result;
        f->rule = rule;
        f->fit = found;
    }
}

/* Finds the rule from the data of this parameter. *found false: no rule explains them, or, if sceptical, the relations
 * are doubtful. */
static enum lmcs_status find_rule(const struct lmcs_step *step, bool sceptical, bool *doubtful,
                                  struct lmcs_step_rule *rule, bool *found, struct lmcs_error *error)
{
    struct fitting f = {.step = step};
    *found = false;
    rule->fits++;
    if (!guard(step, fit, &f))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: tensor \"%s\" is damaged: the medium can't be read",
                         step->pool_path, step->name);
    if (f.result == LMC_NO_MEMORY)
        return lmcs_fail_memory(error);
    float raw_bits = 32.0F * (float)step->arrays;
    *found = f.result == LMC_OK && f.fit.bits < raw_bits * PAYS_PERCENT / 100;
    if (*found && sceptical && f.fit.exact[step->arrays == 2 ? 1 : 2] < DOUBT) {
        *doubtful = true;
        *found = false;
    }
    if (*found) {
        rule->rule = f.rule;
        rule->known = true;
    }
    return LMCS_OK;
}

/* ---- Choosing ---- */

struct asking {
    const struct lmcs_step *step;
    const struct lmc_link_rule *rule;
    bool explains;
};

static void ask(void *context)
{
    struct asking *a = context;
    a->explains = explains(a->step, a->rule);
}

/* Whether the parameter needs a rule of its own: constants that are not known may differ in a group, and relations may
 * name a wrong tensor. */
static bool is_strange(const struct lmcs_step *step, const struct lmcs_step_rule *rule, bool sceptical)
{
    struct asking a = {.step = step, .rule = &rule->rule};
    if (!rule->known || step->has_rule || (rule->rule.flags & LMC_LINK_NESTEROV) != 0 ||
        (!sceptical && step->hint_count > 0))
        return false;
    return guard(step, ask, &a) && !a.explains; /* encoding reports damage */
}

enum lmcs_status lmcs_step_link(const struct lmcs_step *step, struct lmcs_step_rule *rule, bool sceptical,
                                bool *doubtful, lmcs_step_encode *encode, void *context, bool *worthwhile,
                                enum lmcs_links *verdict, struct lmcs_error *error)
{
    bool found = rule->known, fitted = false;
    enum lmcs_status status = LMCS_OK;
    struct lmcs_step_rule own = {.fits = 0};
    *worthwhile = false;
    if (is_strange(step, rule, sceptical)) {
        bool doubted = false;
        status = find_rule(step, sceptical, &doubted, &own, &found, error);
        fitted = found || doubted;
        rule = found ? &own : rule;
        found = !doubted;
        *doubtful |= doubted;
    }
    if (status == LMCS_OK && !found && !fitted && rule->fits < MOST_FITS) {
        status = find_rule(step, sceptical, doubtful, rule, &found, error);
        fitted = true;
    }
    if (status == LMCS_OK && found)
        status = encode(context, &rule->rule, worthwhile, error);
    if (status == LMCS_OK && found && !*worthwhile && !fitted && rule->fits < MOST_FITS) {
        struct lmcs_step_rule other = {.fits = rule->fits++};
        status = find_rule(step, sceptical, doubtful, &other, &found, error);
        if (status == LMCS_OK && found)
            status = encode(context, &other.rule, worthwhile, error);
    }
    *verdict = *worthwhile ? LMCS_LINKS_MADE : found ? LMCS_LINKS_LARGE : LMCS_LINKS_UNEXPLAINED;
    return status;
}
