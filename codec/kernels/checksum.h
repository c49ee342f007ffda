/* SPDX-License-Identifier: BSD-3-Clause */
/* checksum.h - starts a tensor's digest, for callers that add hashes one by one. */
#ifndef LMC_CHECKSUM_H
#define LMC_CHECKSUM_H

#include "lmc.h"

void lmci_digest_begin(struct lmc_hasher *hasher, uint32_t dtype, uint32_t ndim, const uint64_t *shape);

#endif
