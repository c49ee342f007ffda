/* SPDX-License-Identifier: BSD-3-Clause */
/* checksum.h - the start of a tensor's digest, for callers that add hashes of blocks one by one. */
#ifndef LMC_CHECKSUM_H
#define LMC_CHECKSUM_H

#include "lmc.h"

/* Hashes the bytes before the hashes of blocks. */
void lmci_digest_begin(struct lmc_hasher *hasher, uint32_t dtype, uint32_t ndim, const uint64_t *shape);

#endif
