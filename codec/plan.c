/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plan.c - chooses, from a sample, how a tensor is coded.
 *
 * Pieces from all over the tensor are transformed in each way that is possible; the sum of the planes' order-0
 * entropies decides. A delta costs a reader its base, so it must win by one part in 64. A sample costs about as much
 * as encoding half a block; the choice holds for all blocks, each of which may still store planes raw.
 */
#include "plan.h"

#include "bytes.h"
#include "dtype.h"
#include "huffman.h"
#include "kernels.h"
#include "memory.h"

#define PIECES       16
#define PIECE_WORDS  ((size_t)1024)
#define SAMPLE_WORDS (PIECES * PIECE_WORDS)

struct sample {
    unsigned word;
    size_t words; /* at most SAMPLE_WORDS */
    unsigned char *memory;
    unsigned char *data;
    unsigned char *base; /* NULL without one */
    unsigned char *planes[LMCI_MAX_WORD];
};

static bool sample_init(struct sample *sample, const struct lmc_params *params)
{
    uint64_t all = params->raw_bytes / lmci_dtype_word(params->dtype);
    sample->word = lmci_dtype_word(params->dtype);
    sample->words = all < SAMPLE_WORDS ? (size_t)all : SAMPLE_WORDS;
    size_t bytes = sample->words * sample->word;
    sample->memory = lmci_allocate(3 * bytes);
    if (!sample->memory)
        return false;
    sample->data = sample->memory;
    sample->base = params->base ? sample->memory + bytes : NULL;
    for (unsigned p = 0; p < sample->word; p++)
        sample->planes[p] = sample->memory + 2 * bytes + p * sample->words;
    return true;
}

/* Copies all of a small tensor, and PIECES pieces at even distances of a larger one. */
static void gather(const struct sample *sample, const unsigned char *from, uint64_t raw_bytes, unsigned char *to)
{
    size_t piece_bytes = PIECE_WORDS * sample->word;
    if (sample->words < SAMPLE_WORDS) {
        memcpy(to, from, (size_t)raw_bytes);
        return;
    }
    uint64_t stride_words = (raw_bytes - piece_bytes) / sample->word / (PIECES - 1);
    for (uint64_t piece = 0; piece < PIECES; piece++)
        memcpy(to + piece * piece_bytes, from + piece * stride_words * sample->word, piece_bytes);
}

static uint64_t cost_bits(const struct sample *sample, enum lmci_transform transform)
{
    uint64_t bits = 0;
    const struct lmci_kernels *kernels = lmci_kernels();
    kernels->split(transform, sample->word, sample->data, sample->base, sample->words, sample->planes);
    for (unsigned p = 0; p < sample->word; p++) {
        uint32_t counts[256];
        kernels->count(sample->planes[p], sample->words, 1, counts);
        bits += lmci_entropy_bits(counts, sample->words);
    }
    return bits;
}

static enum lmci_transform choose(const struct sample *sample, bool is_float)
{
    static const enum lmci_transform deltas[] = {LMCI_ZIGZAG, LMCI_XOR, LMCI_SUBTRACT};
    enum lmci_transform best = LMCI_KEEP;
    uint64_t least = cost_bits(sample, LMCI_KEEP);
    uint64_t rotated = is_float ? cost_bits(sample, LMCI_ROTATE) : UINT64_MAX;
    if (rotated < least) {
        best = LMCI_ROTATE;
        least = rotated;
    }
    least -= least / 64;
    for (size_t i = 0; sample->base && i < sizeof deltas / sizeof *deltas; i++) {
        uint64_t bits = cost_bits(sample, deltas[i]);
        if (bits < least) {
            best = deltas[i];
            least = bits;
        }
    }
    return best;
}

enum lmc_status lmci_plan(const struct lmc_params *params, enum lmci_transform *transform)
{
    struct sample sample;
    *transform = LMCI_KEEP;
    if (params->raw_bytes == 0)
        return LMC_OK;
    if (!sample_init(&sample, params))
        return LMC_NO_MEMORY;
    gather(&sample, params->data, params->raw_bytes, sample.data);
    if (sample.base)
        gather(&sample, params->base, params->raw_bytes, sample.base);
    *transform = choose(&sample, lmci_dtype_is_float(params->dtype));
    lmci_release(sample.memory);
    return LMC_OK;
}
