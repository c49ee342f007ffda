/* SPDX-License-Identifier: BSD-3-Clause */
/* rule.h - the rule of a link in a header, and bounds of its blocks (FORMAT.md, 10.3, 10.5). */
#ifndef LMC_RULE_H
#define LMC_RULE_H

#include "lmc.h"

#include <stdbool.h>

/* A stored rule: u32 flags, u32 0, twelve f32, the last two 0. */
#define LMCI_RULE_BYTES 56u

bool lmci_rule_is_valid(const struct lmc_link_rule *rule);
void lmci_rule_write(const struct lmc_link_rule *rule, unsigned char *dst);
enum lmc_status lmci_rule_read(const struct lmc_frame *frame, struct lmc_link_rule *rule, const char **message);

/* Most bytes of all coded blocks together. */
uint64_t lmci_link_blocks_bound(uint32_t array_count, uint64_t raw_bytes);

#endif
