/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_published.c - the size of LMC as published (arXiv 2505.09810), for comparison. */
#include "bench_codec.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK   ((size_t)64 << 10)
#define LONGEST 15
/* of a block: its size, and 4 bits for the length of each byte's code */
#define HEADER 4
#define TABLE  128

/* Replaces sorted counts by code lengths, in place (Moffat and Katajainen 1995). Needs n >= 2. */
static void code_lengths(uint32_t *a, int n)
{
    int root = 0;
    int leaf = 2;
    a[0] += a[1];
    for (int next = 1; next < n - 1; ++next) {
        uint32_t sum = 0;
        for (int i = 0; i < 2; ++i) {
            if (leaf >= n || (root < next && a[root] < a[leaf])) {
                sum += a[root];
                a[root++] = (uint32_t)next;
            } else {
                sum += a[leaf++];
            }
        }
        a[next] = sum;
    }
    a[n - 2] = 0;
    for (int next = n - 3; next >= 0; --next)
        a[next] = a[a[next]] + 1;
    int available = 1;
    int used = 0;
    uint32_t depth = 0;
    int next = n - 1;
    for (root = n - 2; available > 0; available = 2 * used, used = 0, ++depth) {
        for (; root >= 0 && a[root] == depth; --root)
            ++used;
        for (; available > used; --available)
            a[next--] = depth;
    }
}

/* Cuts lengths (longest first) to LONGEST and completes the code. */
static void limit_lengths(uint32_t *lengths, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; ++i) {
        if (lengths[i] > LONGEST)
            lengths[i] = LONGEST;
        sum += (uint64_t)1 << (LONGEST - lengths[i]);
    }
    for (int i = 0; sum > (uint64_t)1 << LONGEST;) {
        if (lengths[i] < LONGEST) {
            ++lengths[i];
            sum -= (uint64_t)1 << (LONGEST - lengths[i]);
        } else {
            ++i;
        }
    }
}

static int compare_counts(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static size_t block_bytes(const uint32_t *counts, size_t bytes)
{
    uint32_t sorted[256];
    uint32_t lengths[256];
    int n = 0;
    for (int i = 0; i < 256; ++i)
        if (counts[i] != 0)
            sorted[n++] = counts[i];
    if (n <= 1)
        return HEADER + 1;
    qsort(sorted, (size_t)n, sizeof *sorted, compare_counts);
    memcpy(lengths, sorted, sizeof lengths);
    code_lengths(lengths, n);
    limit_lengths(lengths, n);
    uint64_t bits = 0;
    for (int i = 0; i < n; ++i)
        bits += (uint64_t)sorted[i] * lengths[i];
    size_t coded = TABLE + (size_t)((bits + 7) / 8);
    return HEADER + (coded < bytes ? coded : bytes);
}

size_t published_bytes(const unsigned char *data, const unsigned char *base, size_t bytes, size_t width)
{
    size_t elements = bytes / width;
    size_t total = 0;
    for (size_t plane = 0; plane < width; ++plane) {
        for (size_t first = 0; first < elements; first += BLOCK) {
            size_t end = first + BLOCK < elements ? first + BLOCK : elements;
            uint32_t counts[256] = {0};
            for (size_t i = first; i < end; ++i) {
                size_t at = i * width + plane;
                ++counts[base == NULL ? data[at] : data[at] ^ base[at]];
            }
            total += block_bytes(counts, end - first);
        }
    }
    return total;
}
