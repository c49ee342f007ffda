/* SPDX-License-Identifier: BSD-3-Clause */
/* count_impl.h - counts bytes, all or a sample of them. */

#define COUNT_CHUNK ((size_t)64)

/* Four tables, for neighbouring symbols are often equal and would wait for each other's store. */
static inline void count_some(const unsigned char *symbols, size_t count, uint32_t part[4][256])
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t x = lmci_load64(symbols + i);
        part[0][x & 255]++;
        part[1][x >> 8 & 255]++;
        part[2][x >> 16 & 255]++;
        part[3][x >> 24 & 255]++;
        part[0][x >> 32 & 255]++;
        part[1][x >> 40 & 255]++;
        part[2][x >> 48 & 255]++;
        part[3][x >> 56]++;
    }
    for (; i < count; i++)
        part[0][symbols[i]]++;
}

/* So few that clearing and adding up four tables takes longer than waiting for stores. */
#define COUNT_FEW ((size_t)1024)

static void count_symbols(const unsigned char *symbols, size_t count, size_t every, uint32_t counts[256])
{
    uint32_t part[4][256];
    if (count <= COUNT_FEW) {
        memset(counts, 0, 256 * sizeof *counts);
        for (size_t i = 0; i < count; i++)
            counts[symbols[i]]++;
        return;
    }
    memset(part, 0, sizeof part);
    if (every == 1)
        count_some(symbols, count, part);
    else
        for (size_t i = 0; i + COUNT_CHUNK <= count; i += every * COUNT_CHUNK)
            count_some(symbols + i, COUNT_CHUNK, part);
    for (size_t i = 0; i < 256; i++)
        counts[i] = part[0][i] + part[1][i] + part[2][i] + part[3][i];
}
