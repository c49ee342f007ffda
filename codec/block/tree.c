/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * tree.c - walks the tree of a code, a list of symbols at a time.
 *
 * Kernels write whole vectors, which destroys up to LMCI_TREE_PAD - 1 bytes past a list. Encoding: the left list
 * replaces its parent, and the right one goes onto a stack. Once the left list is finished, its place becomes the
 * stack, so two buffers suffice. Decoding makes the left list first; the right one follows it.
 */
#include "block/tree.h"

#include "kernels/kernels.h"

/* ---- Building -------------------------------------------------------------------------------------------------- */

struct maker {
    struct lmci_tree *tree;
    unsigned nodes;
    unsigned leaves;
    uint16_t code[LMCI_SYMBOLS];      /* of each leaf, aligned at the top */
    uint16_t first[LMCI_SYMBOLS + 1]; /* rank of each leaf */
};

/* Orders by length, then symbol. */
static void order_leaves(const uint8_t lengths[LMCI_SYMBOLS], struct maker *maker)
{
    unsigned of_length[LMCI_MAX_BITS + 2] = {0};
    unsigned next[LMCI_MAX_BITS + 2] = {0};
    uint16_t coded[LMCI_SYMBOLS];
    unsigned count = 0;
    uint32_t code = 0;
    for (unsigned s = 0; s < 256; s++) {
        if (s % 8 == 0 && lmci_load64(lengths + s) == 0) {
            s += 7;
            continue;
        }
        coded[count] = (uint16_t)s;
        count += lengths[s] != 0;
    }
    coded[count] = LMCI_ESCAPE;
    count += lengths[LMCI_ESCAPE] != 0;
    for (unsigned i = 0; i < count; i++)
        of_length[lengths[coded[i]]]++;
    for (unsigned length = 1; length <= LMCI_MAX_BITS; length++)
        next[length + 1] = next[length] + of_length[length];
    maker->leaves = next[LMCI_MAX_BITS + 1];
    for (unsigned i = 0; i < count; i++)
        maker->tree->symbol[next[lengths[coded[i]]]++] = coded[i];
    for (unsigned leaf = 0; leaf < maker->leaves; leaf++) {
        maker->code[leaf] = (uint16_t)code;
        code += 1u << (LMCI_MAX_BITS - lengths[maker->tree->symbol[leaf]]);
    }
}

/* Numbers bytes without a code from `rank` on, and others as the next: branches would be mispredicted. Returns the next
 * rank. */
static unsigned number_escaped(const uint8_t lengths[LMCI_SYMBOLS], unsigned rank, struct lmci_tree *tree)
{
    for (unsigned s = 0; s < 256; s++) {
        tree->byte[rank] = (uint8_t)s;
        tree->rank[s] = (uint8_t)rank;
        rank += lengths[s] == 0;
    }
    return rank;
}

static void number_ranks(const uint8_t lengths[LMCI_SYMBOLS], struct maker *maker)
{
    struct lmci_tree *tree = maker->tree;
    unsigned rank = 0;
    for (unsigned leaf = 0; leaf < maker->leaves; leaf++) {
        maker->first[leaf] = (uint16_t)rank;
        rank = tree->symbol[leaf] == LMCI_ESCAPE ? number_escaped(lengths, rank, tree) : rank + 1;
    }
    for (unsigned leaf = 0; leaf < maker->leaves; leaf++) {
        const unsigned symbol = tree->symbol[leaf];
        if (symbol == LMCI_ESCAPE)
            continue;
        tree->byte[maker->first[leaf]] = (uint8_t)symbol;
        tree->rank[symbol] = (uint8_t)maker->first[leaf];
    }
}

/* Makes the node above leaves `low` to `high` - 1, whose codes agree above `bit`. */
static int16_t make_node(struct maker *maker, unsigned low, unsigned high, uint32_t bit)
{
    if (high - low == 1)
        return (int16_t)~low;
    struct lmci_tree_node *node = &maker->tree->nodes[maker->nodes];
    int16_t number = (int16_t)maker->nodes++;
    unsigned middle = low;
    while ((maker->code[middle] & bit) == 0)
        middle++;
    node->pivot = (uint8_t)maker->first[middle];
    node->child[0] = make_node(maker, low, middle, bit >> 1);
    node->child[1] = make_node(maker, middle, high, bit >> 1);
    return number;
}

void lmci_tree_make(const uint8_t lengths[LMCI_SYMBOLS], bool with_ranks, struct lmci_tree *tree)
{
    struct maker maker = {.tree = tree};
    order_leaves(lengths, &maker);
    assert(maker.leaves >= 2);
    if (with_ranks)
        number_ranks(lengths, &maker);
    make_node(&maker, 0, maker.leaves, 1u << (LMCI_MAX_BITS - 1));
}

static bool is_escape(const struct lmci_tree *tree, int child)
{
    return child < 0 && tree->symbol[~child] == LMCI_ESCAPE;
}

/* Whether a child has a list: every node; among leaves, only the escape. */
static bool has_list(const struct lmci_tree *tree, int child)
{
    return child >= 0 || is_escape(tree, child);
}

/* ---- Encoding -------------------------------------------------------------------------------------------------- */

struct writer {
    const struct lmci_tree *tree;
    const struct lmci_kernels *kernels;
    unsigned char *at;
    unsigned char *end;
};

static bool write_escapes(struct writer *out, const unsigned char *ranks, size_t count)
{
    if ((size_t)(out->end - out->at) < count)
        return false;
    for (size_t i = 0; i < count; i++)
        *out->at++ = out->tree->byte[ranks[i]];
    return true;
}

/* Writes the child's list and destroys it. `stack`: room for `count` symbols and a pad a level. */
static bool write_list(struct writer *out, int child, unsigned char *list, size_t count, unsigned char *stack)
{
    if (count == 0)
        return true;
    if (child < 0)
        return write_escapes(out, list, count);
    const struct lmci_tree_node *node = &out->tree->nodes[child];
    unsigned char *bits = out->at;
    size_t bit_bytes = (count + 7) / 8;
    if ((size_t)(out->end - out->at) < bit_bytes)
        return false;
    out->at += bit_bytes;
    bool left = has_list(out->tree, node->child[0]);
    bool right = has_list(out->tree, node->child[1]);
    size_t ones = left && right   ? out->kernels->tree_split(list, count, node->pivot, bits, stack)
                  : left || right ? out->kernels->tree_keep(list, count, node->pivot, right, bits, list)
                                  : out->kernels->tree_bits(list, count, node->pivot, bits);
    if (left && !write_list(out, node->child[0], list, count - ones, right ? stack + ones + LMCI_TREE_PAD : stack))
        return false;
    if (!right)
        return true;
    return left ? write_list(out, node->child[1], stack, ones, list)
                : write_list(out, node->child[1], list, ones, stack);
}

size_t lmci_tree_encode(const struct lmci_tree *tree, const unsigned char *symbols, size_t count,
                        unsigned char *scratch, unsigned char *dst, size_t room)
{
    struct writer out = {tree, lmci_kernels(), dst, dst + room};
    out.kernels->rename(tree->rank, symbols, count, scratch);
    return write_list(&out, 0, scratch, count, scratch + lmci_tree_scratch(count) / 2) ? (size_t)(out.at - dst) : 0;
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

struct merger {
    const struct lmci_tree *tree;
    const struct lmci_kernels *kernels;
    struct lmci_reader *in;
};

static bool read_list(struct merger *from, int child, size_t count, unsigned char *out, unsigned char *scratch);

static bool read_side(struct merger *from, int child, size_t count, unsigned char *out, unsigned char *scratch,
                      struct lmci_side *side)
{
    side->list = out;
    if (has_list(from->tree, child))
        return read_list(from, child, count, out, scratch);
    side->list = NULL;
    side->value = (unsigned char)from->tree->symbol[~child];
    return true;
}

static bool read_list(struct merger *from, int child, size_t count, unsigned char *out, unsigned char *scratch)
{
    if (count == 0)
        return true;
    if (child < 0) {
        const unsigned char *bytes = lmci_take(from->in, count);
        if (bytes != NULL)
            memcpy(out, bytes, count);
        return bytes != NULL;
    }
    const struct lmci_tree_node *node = &from->tree->nodes[child];
    const unsigned char *bits = lmci_take(from->in, (count + 7) / 8);
    struct lmci_side sides[2];
    if (bits == NULL || (count % 8 != 0 && bits[count / 8] >> count % 8 != 0))
        return false;
    const bool lists = has_list(from->tree, node->child[0]) || has_list(from->tree, node->child[1]);
    size_t ones = lists ? from->kernels->tree_count(bits, count) : 0; /* without lists, nothing depends on it */
    size_t zeros = count - ones;
    if (!read_side(from, node->child[0], zeros, scratch, out, &sides[0]) ||
        !read_side(from, node->child[1], ones, scratch + zeros, out + zeros, &sides[1]))
        return false;
    from->kernels->tree_merge(bits, count, sides, out);
    return true;
}

bool lmci_tree_decode(const struct lmci_tree *tree, struct lmci_reader *in, size_t count, unsigned char *scratch,
                      unsigned char *out)
{
    struct merger from = {tree, lmci_kernels(), in};
    return read_list(&from, 0, count, out, scratch);
}
