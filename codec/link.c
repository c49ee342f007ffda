/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * link.c - what an optimizer's step is made of: its rule from hyperparameters, and as a link stores it.
 *
 * A link stores the constants as the arithmetic takes them, in f32, not what they follow from: so that a decoder needs
 * no powers of beta, which math libraries round differently.
 */
#include "link.h"

#include "frame.h"

#include <float.h>

uint32_t lmc_link_arrays(uint32_t optimizer, uint32_t flags)
{
    if (optimizer == LMC_ADAM && !(flags & ~(LMC_LINK_L2 | LMC_LINK_AMSGRAD)))
        return flags & LMC_LINK_AMSGRAD ? 4 : 3;
    return optimizer == LMC_SGD && !(flags & ~LMC_LINK_NESTEROV) ? 2 : 0;
}

/* ---- Hints ----------------------------------------------------------------------------------------------------- */

/* Whole powers by squaring: their last bits are lost when they become f32. */
static double power(double base, double exponent)
{
    double result = 1;
    for (uint64_t n = (uint64_t)exponent; n; n >>= 1, base *= base)
        result *= n & 1 ? base : 1;
    return result;
}

/* A square root by Newton's steps, from above: no math library. */
static double root_of(double x)
{
    double root = x < 1 ? 1 : x;
    for (unsigned i = 0; i < 64 && root * root > x; i++)
        root = 0.5 * (root + x / root);
    return root;
}

static bool is_between(double x, double low, double high)
{
    return x >= low && x <= high; /* no NaN is */
}

static bool are_valid(const struct lmc_link_hints *hints)
{
    const bool common = lmc_link_arrays(hints->optimizer, hints->flags) && is_between(hints->lr, -FLT_MAX, FLT_MAX) &&
                        is_between(hints->weight_decay, -FLT_MAX, FLT_MAX) && is_between(hints->scale, 0, FLT_MAX);
    if (common && hints->optimizer == LMC_ADAM)
        return is_between(hints->beta1, 0, 0.9999999) && is_between(hints->beta2, 0, 0.9999999) &&
               is_between(hints->eps, 0, FLT_MAX) && is_between(hints->step, 1, 9007199254740992.0);
    return common && is_between(hints->momentum, 0, FLT_MAX) && is_between(hints->dampening, -FLT_MAX, 0.9999999);
}

static void adam_rule(const struct lmc_link_hints *hints, struct lmc_link_rule *rule)
{
    const double correction1 = 1 - power(hints->beta1, hints->step);
    const double correction2 = 1 - power(hints->beta2, hints->step);
    const bool l2 = hints->flags & LMC_LINK_L2;
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

enum lmc_status lmc_link_rule(const struct lmc_link_hints *hints, struct lmc_link_rule *rule)
{
    memset(rule, 0, sizeof *rule);
    if (!are_valid(hints))
        return LMC_INVALID;
    rule->optimizer = hints->optimizer;
    rule->flags = hints->flags;
    rule->scale = hints->scale > 0 ? (float)hints->scale : 1;
    if (hints->optimizer == LMC_ADAM)
        adam_rule(hints, rule);
    else
        sgd_rule(hints, rule);
    if (lmci_rule_is_valid(rule))
        return LMC_OK;
    memset(rule, 0, sizeof *rule);
    return LMC_INVALID;
}

/* ---- Rules ----------------------------------------------------------------------------------------------------- */

/* Finite: the arithmetic would do with any, but no optimizer has others. */
static bool is_finite(float x)
{
    return x >= -FLT_MAX && x <= FLT_MAX;
}

bool lmci_rule_is_valid(const struct lmc_link_rule *rule)
{
    const bool finite = is_finite(rule->gain) && is_finite(rule->momentum) && is_finite(rule->beta2) &&
                        is_finite(rule->gain2) && is_finite(rule->decay) && is_finite(rule->l2) &&
                        is_finite(rule->rate) && is_finite(rule->root) && is_finite(rule->eps) &&
                        is_finite(rule->scale);
    return finite && lmc_link_arrays(rule->optimizer, rule->flags) && rule->gain > 0 && rule->scale > 0;
}

static const size_t constants = 10;

static void list_constants(struct lmc_link_rule *rule, float **list)
{
    float *all[] = {&rule->gain, &rule->momentum, &rule->beta2, &rule->gain2, &rule->decay,
                    &rule->l2,   &rule->rate,     &rule->root,  &rule->eps,   &rule->scale};
    static_assert(sizeof all == 10 * sizeof *all, "all constants");
    memcpy(list, all, sizeof all);
}

void lmci_rule_write(const struct lmc_link_rule *rule, unsigned char *dst)
{
    struct lmc_link_rule copy = *rule;
    float *list[10];
    list_constants(&copy, list);
    memset(dst, 0, LMCI_RULE_BYTES);
    lmci_store32(dst, rule->flags);
    for (size_t i = 0; i < constants; i++)
        memcpy(dst + 8 + 4 * i, list[i], 4);
}

enum lmc_status lmci_rule_read(const struct lmc_frame *frame, struct lmc_link_rule *rule, const char **message)
{
    const unsigned char *from = frame->header + LMC_FRAME_PREFIX_BYTES + frame->base_count * sizeof(struct lmc_hash);
    float *list[10];
    memset(rule, 0, sizeof *rule);
    rule->optimizer = frame->predictor;
    rule->flags = lmci_load32(from);
    list_constants(rule, list);
    for (size_t i = 0; i < constants; i++)
        memcpy(list[i], from + 8 + 4 * i, 4);
    if (lmci_load32(from + 4) || lmci_load64(from + 8 + 4 * constants))
        return lmci_damaged(message, "a reserved field of the link's constants is not zero");
    if (!lmc_link_arrays(rule->optimizer, rule->flags)) {
        *message = "the link is of an optimizer's variant that this version does not know";
        return LMC_UNSUPPORTED;
    }
    if (lmc_link_arrays(rule->optimizer, rule->flags) != frame->output_count)
        return lmci_damaged(message, "the link has more or fewer arrays than its optimizer");
    if (!lmci_rule_is_valid(rule))
        return lmci_damaged(message, "the link has impossible constants");
    return LMC_OK;
}

enum lmc_status lmc_link_frame_rule(const struct lmc_frame *frame, struct lmc_link_rule *rule)
{
    const char *unused;
    return frame->header && frame->predictor ? lmci_rule_read(frame, rule, &unused) : LMC_INVALID;
}

/* ---- Sizes ----------------------------------------------------------------------------------------------------- */

/* As deltas: the method, and for each array its size and a coded block. */
size_t lmc_link_block_bound(uint32_t array_count, size_t raw_bytes)
{
    return 1 + array_count * (4 + lmc_block_bound(raw_bytes));
}

uint64_t lmci_link_blocks_bound(uint32_t array_count, uint64_t raw_bytes)
{
    return array_count * raw_bytes + lmc_block_count(raw_bytes) * (uint64_t)lmc_link_block_bound(array_count, 0);
}

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

/* Standard C can tell the rounding; nothing else is known to be changed here. */
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
