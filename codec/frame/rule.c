/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * rule.c - the rule of a link in a header, and bounds of its blocks.
 *
 * A rule has f32 constants instead of hyperparameters: math libraries round powers of beta differently.
 */
#include "frame/rule.h"

#include "base/bytes.h"

uint32_t lmc_link_arrays(uint32_t optimizer, uint32_t flags)
{
    if (optimizer == LMC_ADAM && (flags & ~(LMC_LINK_L2 | LMC_LINK_AMSGRAD)) == 0)
        return (flags & LMC_LINK_AMSGRAD) != 0 ? 4 : 3;
    return optimizer == LMC_SGD && (flags & ~LMC_LINK_NESTEROV) == 0 ? 2 : 0;
}

/* The arithmetic accepts any constant, but no optimizer has an infinite one. */
static bool is_finite(float x)
{
    return (lmci_load32(&x) & 0x7f800000u) != 0x7f800000u;
}

/* Above 0, for a finite number. */
static bool is_positive(float x)
{
    return lmci_load32(&x) - 1 < 0x7fffffffu;
}

/* Looks at bits: the caller's thread may compare denormals as zeros. */
bool lmci_rule_is_valid(const struct lmc_link_rule *rule)
{
    const bool finite = is_finite(rule->gain) && is_finite(rule->momentum) && is_finite(rule->beta2) &&
                        is_finite(rule->gain2) && is_finite(rule->decay) && is_finite(rule->l2) &&
                        is_finite(rule->rate) && is_finite(rule->root) && is_finite(rule->eps) &&
                        is_finite(rule->scale);
    return finite && lmc_link_arrays(rule->optimizer, rule->flags) != 0 && is_positive(rule->gain) &&
           is_positive(rule->scale);
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
    if (lmci_load32(from + 4) != 0 || lmci_load64(from + 8 + 4 * constants) != 0)
        return lmci_damaged(message, "a reserved field of the link's constants is not zero");
    if (lmc_link_arrays(rule->optimizer, rule->flags) == 0)
        return lmci_unsupported(message, "the link has a variant of an optimizer unknown to this version");
    if (lmc_link_arrays(rule->optimizer, rule->flags) != frame->output_count)
        return lmci_damaged(message, "the link has more or fewer arrays than its optimizer");
    if (!lmci_rule_is_valid(rule))
        return lmci_damaged(message, "the link has impossible constants");
    return LMC_OK;
}

enum lmc_status lmc_link_frame_rule(const struct lmc_frame *frame, struct lmc_link_rule *rule)
{
    const char *unused;
    return frame->header != NULL && frame->predictor != 0 ? lmci_rule_read(frame, rule, &unused) : LMC_INVALID;
}

/* The bound is the size as deltas: the method, then each array's size and coded block. */
size_t lmc_link_block_bound(uint32_t array_count, size_t raw_bytes)
{
    return 1 + array_count * (4 + lmc_block_bound(raw_bytes));
}

uint64_t lmci_link_blocks_bound(uint32_t array_count, uint64_t raw_bytes)
{
    return array_count * raw_bytes + lmc_block_count(raw_bytes) * (uint64_t)lmc_link_block_bound(array_count, 0);
}
