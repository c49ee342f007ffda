/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * checksum.c - hashes of bytes, and digests.
 *
 * A hasher's state is xxhash's, laid out alike for all instruction sets. Empty input never reaches xxhash: NULL is
 * valid.
 */
#include "kernels/checksum.h"

#include "base/bytes.h"
#include "kernels/kernels.h"
#include "lmc.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static_assert(sizeof(struct lmc_hasher) >= sizeof(XXH3_state_t), "a hasher holds xxhash's state");
static_assert(_Alignof(struct lmc_hasher) >= 64, "xxhash wants its state aligned");
static_assert(sizeof(struct lmc_hash) == 16, "hashes are hashed as they lie in memory");

struct lmc_hash lmc_hash128(const void *data, size_t bytes)
{
    return lmci_kernels()->hash128(bytes != 0 ? data : "", bytes);
}

uint64_t lmc_hash64(const void *data, size_t bytes, uint64_t seed)
{
    return lmci_kernels()->hash64(bytes != 0 ? data : "", bytes, seed);
}

void lmc_hasher_init(struct lmc_hasher *hasher)
{
    memset(hasher, 0, sizeof *hasher);
    XXH3_128bits_reset((XXH3_state_t *)(void *)hasher->opaque);
}

void lmc_hasher_update(struct lmc_hasher *hasher, const void *data, size_t bytes)
{
    if (bytes != 0)
        lmci_kernels()->hash_update(hasher->opaque, data, bytes);
}

struct lmc_hash lmc_hasher_final(const struct lmc_hasher *hasher)
{
    XXH128_hash_t hash = XXH3_128bits_digest((const XXH3_state_t *)(const void *)hasher->opaque);
    return (struct lmc_hash){hash.low64, hash.high64};
}

void lmci_digest_begin(struct lmc_hasher *hasher, uint32_t dtype, uint32_t ndim, const uint64_t *shape)
{
    unsigned char head[16] = {'L', 'M', 'C', 'D'};
    lmci_store32(head + 4, dtype);
    lmci_store32(head + 8, ndim);
    lmc_hasher_init(hasher);
    lmc_hasher_update(hasher, head, sizeof head);
    lmc_hasher_update(hasher, shape, ndim * sizeof *shape);
}

struct lmc_hash lmc_digest(uint32_t dtype, uint32_t ndim, const uint64_t *shape, const struct lmc_hash *block_hashes,
                           uint64_t block_count)
{
    struct lmc_hasher hasher;
    lmci_digest_begin(&hasher, dtype, ndim, shape);
    lmc_hasher_update(&hasher, block_hashes, (size_t)block_count * sizeof *block_hashes);
    return lmc_hasher_final(&hasher);
}
