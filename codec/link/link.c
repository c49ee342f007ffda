/* SPDX-License-Identifier: BSD-3-Clause */
/* link.c - rules from hyperparameters, and the floating-point environment. */
#include "link/link.h"

#include "frame/frame.h"
#include "frame/rule.h"

#include <float.h>
#include <string.h>

/* ---- Hints ----------------------------------------------------------------------------------------------------- */

/* Rounding to f32 removes errors. */
double lmci_power(double base, double exponent)
{
    double power = 1;
    for (uint64_t n = exponent > 0 ? (uint64_t)exponent : 0; n != 0; n >>= 1) {
        power = (n & 1) != 0 ? power * base : power;
        base *= base;
    }
    return power;
}

/* Newton's iteration from above; needs no math library. */
static double root_of(double x)
{
    double root = x < 1 ? 1 : x;
    for (unsigned i = 0; i < 64 && root * root > x; i++)
        root = 0.5 * (root + x / root);
    return root;
}

static bool is_between(double x, double low, double high)
{
    return x >= low && x <= high; /* false for NaN */
}

static bool are_valid(const struct lmc_link_hints *hints)
{
    const bool common = lmc_link_arrays(hints->optimizer, hints->flags) != 0 &&
                        is_between(hints->lr, -FLT_MAX, FLT_MAX) &&
                        is_between(hints->weight_decay, -FLT_MAX, FLT_MAX) && is_between(hints->scale, 0, FLT_MAX);
    if (common && hints->optimizer == LMC_ADAM)
        return is_between(hints->beta1, 0, 0.9999999) && is_between(hints->beta2, 0, 0.9999999) &&
               is_between(hints->eps, 0, FLT_MAX) && is_between(hints->step, 1, 9007199254740992.0);
    return common && is_between(hints->momentum, 0, FLT_MAX) && is_between(hints->dampening, -FLT_MAX, 0.9999999);
}

static void adam_rule(const struct lmc_link_hints *hints, struct lmc_link_rule *rule)
{
    const double correction1 = 1 - lmci_power(hints->beta1, hints->step);
    const double correction2 = 1 - lmci_power(hints->beta2, hints->step);
    const bool l2 = (hints->flags & LMC_LINK_L2) != 0;
    rule->gain = (float)(1 - hints->beta1);
    rule->beta2 = (float)hints->beta2;
    rule->gain2 = (float)(1 - hints->beta2);
    rule->decay = l2 ? 1 : (float)(1 - hints->lr * hints->weight_decay);
    rule->l2 = l2 ? (float)hints->weight_decay : 0;
    rule->rate = (float)(-hints->lr / correction1);
    rule->root = (float)root_of(correction2);
    rule->eps = (float)hints->eps;
}

static void sgd_rule(const struct lmc_link_hints *hints, struct lmc_link_rule *rule)
{
    rule->gain = (float)(1 - hints->dampening);
    rule->momentum = (float)hints->momentum;
    rule->decay = 1;
    rule->l2 = (float)hints->weight_decay;
    rule->rate = (float)-hints->lr;
}

/* Compilers may move arithmetic across a change of its environment, but not reads and writes of memory across this. */
#define STAY_BETWEEN() __asm__ volatile("" : : : "memory")

enum lmc_status lmc_link_rule(const struct lmc_link_hints *hints, struct lmc_link_rule *rule)
{
    memset(rule, 0, sizeof *rule);
    if (!are_valid(hints))
        return LMC_INVALID;
    const struct lmci_float_environment saved = lmci_float_enter();
    STAY_BETWEEN();
    rule->optimizer = hints->optimizer;
    rule->flags = hints->flags;
    rule->scale = hints->scale > 0 ? (float)hints->scale : 1;
    if (hints->optimizer == LMC_ADAM)
        adam_rule(hints, rule);
    else
        sgd_rule(hints, rule);
    STAY_BETWEEN();
    lmci_float_leave(&saved);
    if (lmci_rule_is_valid(rule))
        return LMC_OK;
    memset(rule, 0, sizeof *rule);
    return LMC_INVALID;
}

/* ---- Sizes ----------------------------------------------------------------------------------------------------- */

uint64_t lmc_link_bound(uint32_t array_count, uint64_t raw_bytes)
{
    if (array_count > LMC_MAX_BASES || raw_bytes > LMCI_MAX_RAW_BYTES / LMC_MAX_BASES)
        return UINT64_MAX;
    return lmci_link_header_bytes(array_count, lmc_block_count(raw_bytes)) +
           lmci_link_blocks_bound(array_count, raw_bytes);
}

/* ---- Floating point -------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)

#include <xmmintrin.h>

struct lmci_float_environment lmci_float_enter(void)
{
    const struct lmci_float_environment saved = {_mm_getcsr()};
    _mm_setcsr(0x1f80);
    return saved;
}

void lmci_float_leave(const struct lmci_float_environment *saved)
{
    _mm_setcsr((unsigned)saved->control);
}

#elif defined(__aarch64__)

struct lmci_float_environment lmci_float_enter(void)
{
    struct lmci_float_environment saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved.control));
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)));
    return saved;
}

void lmci_float_leave(const struct lmci_float_environment *saved)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(saved->control));
}

#else

#include <fenv.h>

/* Standard C can set only the rounding mode. */
struct lmci_float_environment lmci_float_enter(void)
{
    const struct lmci_float_environment saved = {(uint64_t)fegetround()};
    fesetround(FE_TONEAREST);
    return saved;
}

void lmci_float_leave(const struct lmci_float_environment *saved)
{
    fesetround((int)saved->control);
}

#endif
