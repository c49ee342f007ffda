/* SPDX-License-Identifier: BSD-3-Clause */
/* contexts.c - chooses contexts from a sample. */
#include "block/contexts.h"

#include "block/huffman.h"
#include "kernels/kernels.h"

#include <string.h>

#define COUNTED ((size_t)4 << 10) /* pairs; four times as many at the dense level */
#define CLASSES 6                 /* twice as many at the dense level */
#define SAVES   32                /* contexts must save one part in so many; 256 at the dense level */

void lmci_context_map(const struct lmci_context *context, uint8_t classes[256])
{
    memset(classes, 0, 256);
    for (unsigned c = 1; c < context->count; c++)
        memset(classes + context->first[c], (int)c, 256u - context->first[c]);
}

void lmci_context_classes(const uint32_t counts[256], unsigned most, struct lmci_context *context)
{
    uint64_t all = 0;
    uint64_t below = 0;
    for (unsigned s = 0; s < 256; s++)
        all += counts[s];
    context->count = 1;
    context->first[0] = 0;
    for (unsigned s = 0; s < 256; s++) {
        if (below * most >= all * context->count && below < all && context->count < most) {
            context->first[context->count] = (uint8_t)s;
            context->count += s > context->first[context->count - 1];
        }
        below += counts[s];
    }
}

#define DISTANCE_PLACES 16u
#define DISTANCE_MOST   4096u /* bytes: the rows of most matrices are shorter ... */
#define DISTANCE_STEP   64u   /* ... and multiples of this */
#define DISTANCE_CLOSER 32u   /* closer than the average by one part in so many */

static uint32_t sum_of_differences(const unsigned char *restrict a, const unsigned char *restrict b)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < 64; i++)
        sum += (uint32_t)(a[i] > b[i] ? a[i] - b[i] : b[i] - a[i]);
    return sum;
}

/* Finds the distance at which bytes are most alike: the length of a row, or the least distance. */
static size_t choose_distance(const unsigned char *plane, size_t bytes)
{
    const size_t stride = (bytes - DISTANCE_MOST - 64) / DISTANCE_PLACES;
    uint32_t sums[DISTANCE_MOST / DISTANCE_STEP] = {0};
    uint64_t all = 0;
    size_t best = 0;
    for (size_t place = 0; place < DISTANCE_PLACES; place++) {
        const unsigned char *at = plane + DISTANCE_MOST + place * stride;
        for (size_t k = 0; k < DISTANCE_MOST / DISTANCE_STEP; k++)
            sums[k] += sum_of_differences(at, at - (k + 1) * DISTANCE_STEP);
    }
    for (size_t k = 0; k < DISTANCE_MOST / DISTANCE_STEP; k++) {
        all += sums[k];
        best = sums[k] < sums[best] ? k : best;
    }
    const uint64_t average = all / (DISTANCE_MOST / DISTANCE_STEP);
    return sums[best] < average - average / DISTANCE_CLOSER ? (best + 1) * DISTANCE_STEP : LMCI_CONTEXT_DISTANCE;
}

/* Estimated bits with these contexts. *without: with one code for all. */
static uint64_t context_bits(const unsigned char *plane, size_t bytes, const struct lmci_context *context, bool dense,
                             uint64_t *without)
{
    uint32_t counts[LMCI_CONTEXT_CLASSES][256];
    uint32_t together[256] = {0};
    uint8_t classes[256];
    uint64_t bits = 0;
    uint64_t counted = 0;
    const size_t sample = dense ? 4 * COUNTED : COUNTED;
    const size_t every = (bytes + sample - 1) / sample * 64;
    lmci_context_map(context, classes);
    memset(counts, 0, context->count * sizeof *counts);
    for (size_t at = context->distance; at + 64 <= bytes; at += every)
        for (size_t i = at; i < at + 64; i++, counted++)
            counts[classes[plane[i - context->distance]]][plane[i]]++;
    for (unsigned c = 0; c < context->count; c++) {
        uint64_t words = 0;
        for (unsigned s = 0; s < 256; s++) {
            words += counts[c][s];
            together[s] += counts[c][s];
        }
        bits += words != 0 ? lmci_expected_bits(counts[c], words) : 0;
    }
    *without = lmci_expected_bits(together, counted) * bytes / counted;
    return bits * bytes / counted;
}

bool lmci_context_choose(const unsigned char *plane, size_t bytes, const uint32_t counts[256], uint64_t pieces,
                         bool dense, struct lmci_context *context)
{
    uint64_t without;
    lmci_context_classes(counts, dense ? 2 * CLASSES : CLASSES, context);
    if (context->count < 2)
        return false;
    context->distance = choose_distance(plane, bytes);
    uint64_t with = context_bits(plane, bytes, context, dense, &without);
    without = pieces != 0 && pieces < without ? pieces : without;
    return with < without - without / (dense ? 8 * SAVES : SAVES);
}
