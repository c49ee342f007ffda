/* SPDX-License-Identifier: BSD-3-Clause */
/* codes.c - makes codes that blocks share. */
#include "block/codes.h"

#include "base/dtype.h"
#include "base/memory.h"
#include "block/shape.h"
#include "kernels/kernels.h"

#define LEAST_BLOCKS  4
#define SAMPLE_ONE_IN 16                 /* words */
#define SAMPLE_MOST   ((size_t)64 << 10) /* words */
#define PIECE         ((size_t)512)      /* words */
/* A plane uses a shared code unless one of its own saves one part, or a bit of symbols, in so many. */
#define PART         40
#define ONE_IN       20
#define PART_SMALL   12 /* of small tensors, which have more classes then: both together make them smaller */
#define ONE_IN_SMALL 2

struct lists {
    unsigned char *memory;
    unsigned char *scratch;
    struct lmci_class_lists begin, end;
};

/* Deals evenly spaced pieces of the tensor. Returns their words. */
static size_t deal_sample(const struct lmc_params *params, const struct lmci_classes *classes, size_t pieces,
                          struct lists *lists)
{
    const unsigned word = lmci_dtype_word(params->dtype);
    const unsigned char *data = params->data, *base = params->base;
    const uint64_t stride = (params->raw_bytes / word - PIECE) / pieces;
    lists->end = lists->begin;
    for (size_t i = 0; i < pieces; i++) {
        const size_t at = (size_t)(i * stride) * word;
        lmci_kernels()->class_deal(word, data + at, base + at, PIECE, classes, NULL, &lists->end);
    }
    return pieces * PIECE;
}

static bool lists_init(struct lists *lists, unsigned word, unsigned classes, size_t words)
{
    const size_t each = words + LMCI_CLASS_PAD;
    lists->memory = lmci_allocate((classes + 4 + word + 4) * each + 8 * LMCI_PLANE_PAD);
    if (lists->memory == NULL)
        return false;
    unsigned char *at = lists->memory;
    lists->scratch = at + (classes + 4 + word) * each;
    for (unsigned c = 0; c < LMCI_MAX_CLASSES; c++)
        lists->begin.symbols[c] = c < classes ? at + c * each : lists->scratch;
    at += classes * each;
    for (unsigned k = 0; k < 3; k++, at += each)
        lists->begin.low[k] = at;
    lists->begin.nibbles = at;
    lists->begin.outliers = at + each;
    return true;
}

enum lmc_status lmci_codes_make(const struct lmc_params *params, const struct lmci_scheme *scheme, bool model,
                                struct lmci_codes **codes)
{
    const struct lmci_classes *classes = &scheme->classes;
    const unsigned word = lmci_dtype_word(params->dtype);
    struct lists lists;
    *codes = NULL;
    if (scheme->method != LMCI_METHOD_CLASSES || params->level != LMC_LEVEL_DEFAULT)
        return LMC_OK;
    if (!model && (word != 2 || params->raw_bytes < LEAST_BLOCKS * LMC_BLOCK_BYTES))
        return LMC_OK;
    const uint64_t some = params->raw_bytes / word / (model ? 1 : SAMPLE_ONE_IN);
    const size_t most = some < SAMPLE_MOST ? (size_t)some / PIECE * PIECE : SAMPLE_MOST;
    struct lmci_codes *made = lmci_allocate(sizeof *made + classes->count * sizeof *made->shared);
    if (made == NULL || !lists_init(&lists, word, classes->count, most)) {
        lmci_release(made);
        return LMC_NO_MEMORY;
    }
    const size_t block = lmci_block_bytes(params->raw_bytes, 0) / word;
    const size_t words = deal_sample(params, classes, most / PIECE, &lists);
    made->count = classes->count;
    memcpy(made->shift, classes->shift, sizeof made->shift);
    for (unsigned c = 0; c < classes->count; c++) {
        const size_t count = (size_t)(lists.end.symbols[c] - lists.begin.symbols[c]);
        lmci_plane_share(lists.begin.symbols[c], count, count * block / words, lists.scratch, &made->shared[c]);
        made->shared[c].part = model ? PART_SMALL : PART;
        made->shared[c].one_in = model ? ONE_IN_SMALL : ONE_IN;
    }
    lmci_release(lists.memory);
    *codes = made;
    return LMC_OK;
}
