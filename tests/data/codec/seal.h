/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * seal.h - corrects the checksums of a changed frame, as far as its fields make sense.
 *
 * Fuzzers hardly guess checksums. Hashes of decoded blocks are unknown and stay unchanged.
 */
#ifndef LMC_TEST_SEAL_H
#define LMC_TEST_SEAL_H

#include "lmc.h"

#include <string.h>

static inline uint64_t seal_get(const unsigned char *from, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, from, bytes);
    return value;
}

static inline void seal_put(unsigned char *to, uint64_t value, size_t bytes)
{
    memcpy(to, &value, bytes);
}

static inline void seal_frame(unsigned char *frame, size_t bytes)
{
    const uint64_t place_mask = ((uint64_t)1 << 56) - 1;
    if (bytes < 64)
        return;
    seal_put(frame + 56, lmc_hash64(frame, 56, 0), 8);
    uint64_t blocks = lmc_block_count(seal_get(frame + 16, 8));
    uint64_t table =
        64 + 16 * (uint64_t)frame[36] + seal_get(frame + 40, 4) + seal_get(frame + 44, 4) + seal_get(frame + 48, 4);
    const uint64_t size = seal_get(frame + 34, 2) != 0 ? 16 + 16 * (uint64_t)frame[37] : 32; /* bytes of an entry */
    if (table > bytes || blocks > (bytes - table) / size)
        return;
    uint64_t end = table + size * blocks;
    for (uint64_t i = 0; i < blocks; i++) {
        unsigned char *entry = frame + table + size * i;
        uint64_t from = seal_get(entry, 8) & place_mask;
        uint64_t to = i + 1 < blocks ? seal_get(entry + size, 8) & place_mask : seal_get(frame + 24, 8);
        if (from <= to && to <= bytes)
            seal_put(entry + 8, lmc_hash64(frame + from, (size_t)(to - from), i), 8);
    }
    if (bytes - end >= 8)
        seal_put(frame + end, lmc_hash64(frame, (size_t)end, 0), 8);
}

#endif
