/* SPDX-License-Identifier: BSD-3-Clause */
/* shape.c - sizes and delivery of blocks. */
#include "block/shape.h"

#include "kernels/kernels.h"

#include <string.h>

uint64_t lmc_block_count(uint64_t raw_bytes)
{
    return raw_bytes / LMC_BLOCK_BYTES + (raw_bytes % LMC_BLOCK_BYTES != 0);
}

size_t lmci_block_bytes(uint64_t raw_bytes, uint64_t index)
{
    uint64_t left = raw_bytes - index * LMC_BLOCK_BYTES;
    return left < LMC_BLOCK_BYTES ? (size_t)left : LMC_BLOCK_BYTES;
}

size_t lmc_block_bound(size_t raw_bytes)
{
    return raw_bytes + 1;
}

void lmci_hash_decoded(struct lmc_hasher *hasher, const void *data, size_t bytes)
{
    if (hasher != NULL)
        lmc_hasher_update(hasher, data, bytes);
}

void lmci_deliver(const struct lmci_block_shape *shape, const unsigned char *piece, size_t bytes, unsigned char *dst,
                  struct lmc_hasher *hasher)
{
    lmci_hash_decoded(hasher, piece, bytes);
    if (shape->stream)
        lmci_kernels()->stream(dst, piece, bytes);
    else
        memcpy(dst, piece, bytes);
}
