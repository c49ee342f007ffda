/* SPDX-License-Identifier: BSD-3-Clause */
/* code.c - plans the code of a plane, and writes the plane by it. */
#include "block/code.h"

#include "block/plane.h"

/* Lists should fit the first-level cache, but a node costs half a byte a segment. */
static unsigned segment_log2(size_t bytes, size_t coded_bytes, unsigned leaves)
{
    unsigned log2 = LMCI_SEGMENT_LOG2_USUAL;
    while (log2 < LMCI_SEGMENT_LOG2_MOST && (bytes >> log2) * leaves * 500 > coded_bytes)
        log2++;
    return log2;
}

static size_t coded_bytes(const struct lmci_code *code, size_t bytes)
{
    return (size_t)(code->bits * bytes / code->counted / 8);
}

/* Rare bytes share the escape's code: fewer, larger nodes, and for a short plane a shorter table. The dense level
 * escapes only bytes with too long codes. */
#define RARE_LOG2   12
#define RARE_LEAST  2u /* counted no more often, a byte has no code ... */
#define RARE_ONE_IN 4  /* ... where one in so many was counted */

static uint32_t most_of_rare(size_t counted, size_t bytes, bool dense)
{
    const uint32_t part = (uint32_t)(counted >> (dense ? LMCI_MAX_BITS + 1 : RARE_LOG2));
    return dense || bytes / RARE_ONE_IN > counted || part > RARE_LEAST ? part : RARE_LEAST;
}

void lmci_code_plan(const uint32_t counts[256], size_t counted, size_t bytes, bool dense, bool seen,
                    struct lmci_code *code)
{
    uint32_t all[LMCI_SYMBOLS];
    const uint32_t most = most_of_rare(counted, bytes, dense);
    uint32_t rare = 0, leaves = 0;
    for (unsigned s = 0; s < 256; s++) { /* without branches, for vectors */
        all[s] = counts[s] > most ? counts[s] : 0;
        rare += counts[s] - all[s];
        leaves += all[s] != 0;
    }
    if (leaves == 0) /* all bytes are rare, and smaller raw, but a code has two symbols */
        all[0] = leaves = 1;
    all[LMCI_ESCAPE] = rare + ((!seen && leaves < 256) || leaves < 2);
    code->leaves = leaves;
    code->bits = 8 * (uint64_t)rare + lmci_huffman_lengths(all, code->lengths);
    code->table_bytes = lmci_huffman_put_lengths(code->lengths, code->table);
    code->counted = counted;
}

size_t lmci_code_estimate(const struct lmci_code *code, size_t bytes)
{
    const size_t coded = coded_bytes(code, bytes);
    const unsigned log2 = segment_log2(bytes, coded, code->leaves);
    return 2 + code->table_bytes + coded + ((bytes >> log2) + 1) * code->leaves / 2;
}

size_t lmci_code_put(const struct lmci_code *code, const struct lmci_tree *tree, const unsigned char *plane,
                     size_t bytes, unsigned char *scratch, unsigned char *dst, size_t room)
{
    if (room < 2 + LMCI_LENGTHS_BOUND)
        return 0;
    const unsigned log2 = segment_log2(bytes, coded_bytes(code, bytes), code->leaves);
    dst[0] = LMCI_PLANE_TREE;
    memcpy(dst + 1, code->table, code->table_bytes);
    size_t used = 1 + code->table_bytes;
    dst[used++] = (unsigned char)log2;
    const size_t segment = (size_t)1 << log2;
    for (size_t at = 0; at < bytes; at += segment) {
        size_t count = bytes - at < segment ? bytes - at : segment;
        size_t written = lmci_tree_encode(tree, plane + at, count, scratch, dst + used, room - used);
        if (written == 0)
            return 0;
        used += written;
    }
    return used;
}
