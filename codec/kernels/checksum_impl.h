/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * checksum_impl.h - XXH3 with each table's vectors.
 *
 * XXH_INLINE_ALL makes xxhash static, for the including file's instruction set. Without XXH_NO_PREFETCH, XXH3 loses a
 * sixth of its speed on sequential input.
 */
#define XXH_NO_PREFETCH
#define XXH_INLINE_ALL
#include <xxhash.h>

static struct lmc_hash hash128(const void *data, size_t bytes)
{
    XXH128_hash_t hash = XXH3_128bits(data, bytes);
    return (struct lmc_hash){hash.low64, hash.high64};
}

static uint64_t hash64(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

static void hash_update(void *state, const void *data, size_t bytes)
{
    XXH3_128bits_update(state, data, bytes);
}
