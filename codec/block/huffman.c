/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * huffman.c - code lengths for bytes.
 *
 * Huffman's lengths are cut to the limit; the Kraft sum is repaired from the least frequent symbol up, filled from the
 * most frequent down. Integer entropy: frames are the same on every machine.
 */
#include "block/huffman.h"

#include "kernels/kernels.h"

/* ---- Entropy --------------------------------------------------------------------------------------------------- */

/* log2(x) in 1/65536, for x > 0: the top bit and a parabola (error at most 0.008). */
static uint64_t log2_q16(uint64_t x)
{
    unsigned top = 63 - (unsigned)__builtin_clzll(x);
    uint64_t fraction = (x << (63 - top) << 1) >> 48;
    return ((uint64_t)top << 16) + fraction + (((fraction * (65536 - fraction)) >> 16) * 22517 >> 16);
}

uint64_t lmci_entropy_bits(const uint32_t *counts, unsigned symbols, uint64_t total)
{
    unsigned seen;
    const uint64_t whole = total != 0 ? total * log2_q16(total) : 0;
    const uint64_t parts = lmci_kernels()->sum_logs(counts, symbols, &seen);
    return whole > parts ? (whole - parts) >> 16 : 0;
}

uint64_t lmci_expected_bits(const uint32_t counts[256], uint64_t total)
{
    unsigned seen;
    const uint64_t whole = total != 0 ? total * log2_q16(total) : 0;
    const uint64_t parts = lmci_kernels()->sum_logs(counts, 256, &seen);
    return (whole > parts ? (whole - parts) >> 16 : 0) + (seen != 0 ? (seen - 1) * 3 / 2 : 0);
}

uint16_t lmci_cost(uint32_t count, uint64_t total)
{
    return (uint16_t)((log2_q16(2 * total + 256) - log2_q16(2 * (uint64_t)count + 1)) / (65536 / LMCI_COST_BIT));
}

/* ---- Code lengths ---------------------------------------------------------------------------------------------- */

/* Counts up to 63 have a bucket each; greater ones share one by length and the three bits below the first. */
#define BUCKETS (64 + 8 * 26)

static inline unsigned bucket_of(uint32_t count)
{
    if (count < 64)
        return count;
    unsigned length = 31 - (unsigned)__builtin_clz(count);
    return 64 + 8 * (length - 6) + (count >> (length - 3) & 7);
}

#define GROUP 8u  /* symbols, often all absent */
#define FEW   48u /* keys that are sorted faster by counting the smaller ones */

/* Stores count << 9 | symbol of occurring symbols; returns their number. Counts are below 2^23. */
static unsigned find_symbols(const uint32_t counts[LMCI_SYMBOLS], uint32_t found[LMCI_SYMBOLS])
{
    unsigned n = 0;
    for (uint32_t first = 0; first < LMCI_ESCAPE; first += GROUP) {
        uint32_t any = 0;
        for (uint32_t s = first; s < first + GROUP; s++)
            any |= counts[s];
        for (uint32_t s = first; any != 0 && s < first + GROUP; s++) {
            found[n] = counts[s] << 9 | s;
            n += counts[s] != 0;
        }
    }
    found[n] = counts[LMCI_ESCAPE] << 9 | LMCI_ESCAPE;
    return n + (counts[LMCI_ESCAPE] != 0);
}

static void sort_few(uint32_t *found, unsigned n, uint32_t *keys)
{
    for (unsigned i = n; i % GROUP != 0; i++)
        found[i] = UINT32_MAX;
    for (unsigned i = 0; i < n; i++) {
        unsigned smaller = 0;
        for (unsigned k = 0; k < n; k += GROUP)
            for (unsigned j = k; j < k + GROUP; j++)
                smaller += found[j] < found[i];
        keys[smaller] = found[i];
    }
}

/* Sorts what find_symbols finds; returns how many. */
static unsigned sort_symbols(const uint32_t counts[LMCI_SYMBOLS], uint32_t keys[LMCI_SYMBOLS])
{
    uint32_t found[LMCI_SYMBOLS];
    uint16_t start[BUCKETS + 1] = {0}; /* few counts share a bucket */
    const unsigned n = find_symbols(counts, found);
    if (n <= FEW) {
        sort_few(found, n, keys);
        return n;
    }
    for (unsigned i = 0; i < n; i++)
        start[bucket_of(found[i] >> 9) + 1]++;
    for (unsigned i = 1; i < BUCKETS; i++)
        start[i + 1] = (uint16_t)(start[i + 1] + start[i]);
    for (unsigned i = 0; i < n; i++)
        keys[start[bucket_of(found[i] >> 9)]++] = found[i];
    for (unsigned i = 1; i < n; i++) {
        uint32_t key = keys[i];
        unsigned at = i;
        for (; at > 0 && keys[at - 1] > key; at--)
            keys[at] = keys[at - 1];
        keys[at] = key;
    }
    return n;
}

/* Two queues, with ends greater than all weights: leaves by ascending weight, then inner nodes as created, also
 * ascending. Parents follow children. Branch-free, since either queue may be next: a parent takes two leaves, two nodes
 * or one of each. */
static void tree_depths(const uint32_t *keys, unsigned n, uint8_t *depths)
{
    uint32_t leaves[LMCI_SYMBOLS + 2], nodes[LMCI_SYMBOLS + 1];
    uint16_t parent[2 * LMCI_SYMBOLS - 1];
    uint8_t depth[2 * LMCI_SYMBOLS - 1];
    unsigned leaf = 0;
    unsigned node = 0;
    for (unsigned i = 0; i < n; i++)
        leaves[i] = keys[i] >> 9;
    leaves[n] = leaves[n + 1] = nodes[0] = nodes[1] = UINT32_MAX;
    for (unsigned made = 0; made < n - 1; made++) {
        const bool two_leaves = leaves[leaf + 1] <= nodes[node], two_nodes = leaves[leaf] > nodes[node + 1];
        const uint32_t weight = two_leaves ? leaves[leaf + 1] : nodes[node];
        nodes[made] = weight + (two_nodes ? nodes[node + 1] : leaves[leaf]);
        nodes[made + 2] = UINT32_MAX;
        parent[two_leaves ? leaf + 1 : n + node] = (uint16_t)(n + made);
        parent[two_nodes ? n + node + 1 : leaf] = (uint16_t)(n + made);
        leaf += 1u + two_leaves - two_nodes;
        node += 1u + two_nodes - two_leaves;
    }
    depth[2 * n - 2] = 0;
    for (unsigned i = 2 * n - 2; i-- > 0;)
        depth[i] = (uint8_t)(depth[parent[i]] + 1);
    memcpy(depths, depth, n);
}

/* Cuts the lengths of symbols with ascending counts to the limit, and completes the code. */
static void limit_depths(uint8_t *depths, unsigned n)
{
    const uint32_t one = 1u << LMCI_MAX_BITS;
    uint32_t sum = 0;
    for (unsigned i = 0; i < n; i++) {
        depths[i] = depths[i] > LMCI_MAX_BITS ? LMCI_MAX_BITS : depths[i];
        sum += one >> depths[i];
    }
    for (unsigned i = 0; sum > one && i < n; i++) {
        while (sum > one && depths[i] < LMCI_MAX_BITS) {
            depths[i]++;
            sum -= one >> depths[i];
        }
    }
    for (unsigned i = n; sum < one && i-- > 0;) {
        while (depths[i] > 1 && sum + (one >> depths[i]) <= one) {
            sum += one >> depths[i];
            depths[i]--;
        }
    }
    assert(sum == one);
}

uint64_t lmci_huffman_lengths(const uint32_t counts[LMCI_SYMBOLS], uint8_t lengths[LMCI_SYMBOLS])
{
    uint32_t keys[LMCI_SYMBOLS];
    uint8_t depths[LMCI_SYMBOLS];
    uint64_t bits = 0;
    unsigned n = sort_symbols(counts, keys);
    assert(n >= 2);
    tree_depths(keys, n, depths);
    limit_depths(depths, n);
    memset(lengths, 0, LMCI_SYMBOLS);
    for (unsigned i = 0; i < n; i++) {
        lengths[keys[i] & 511] = depths[i];
        bits += (uint64_t)(keys[i] >> 9) * depths[i];
    }
    return bits;
}

/* ---- Lengths as bytes ------------------------------------------------------------------------------------------ */

/* Half bytes that describe runs of lengths (FORMAT.md, 5.4). */
enum { SHORT_ZEROS = 13, LONG_ZEROS = 14, REPEAT = 15, SHORT_LEAST = 3, LONG_LEAST = 19 };

struct nibble_writer {
    unsigned char nibbles[2 * LMCI_LENGTHS_BOUND];
    size_t count;
};

static void put_nibble(struct nibble_writer *out, unsigned value)
{
    out->nibbles[out->count++] = (unsigned char)value;
}

/* Writes a run or its first part; returns its length. */
static unsigned put_run(struct nibble_writer *out, unsigned length, unsigned run)
{
    if (length == 0 && run >= LONG_LEAST) {
        put_nibble(out, LONG_ZEROS);
        put_nibble(out, (run - LONG_LEAST) & 15);
        put_nibble(out, (run - LONG_LEAST) >> 4);
        return run;
    }
    if (length == 0 && run >= SHORT_LEAST) {
        put_nibble(out, SHORT_ZEROS);
        put_nibble(out, run - SHORT_LEAST);
        return run;
    }
    put_nibble(out, length);
    if (length == 0 || run <= SHORT_LEAST)
        return 1;
    unsigned again = run - 1 > SHORT_LEAST + 15 ? SHORT_LEAST + 15 : run - 1;
    put_nibble(out, REPEAT);
    put_nibble(out, again - SHORT_LEAST);
    return 1 + again;
}

size_t lmci_huffman_put_lengths(const uint8_t lengths[LMCI_SYMBOLS], unsigned char *dst)
{
    struct nibble_writer out;
    out.count = 0;
    for (unsigned s = 0; s < LMCI_SYMBOLS;) {
        unsigned run = 1;
        uint64_t others = 0;
        while (others == 0 && s + run + 8 <= LMCI_SYMBOLS) {
            others = lmci_load64(lengths + s + run) ^ lengths[s] * UINT64_C(0x0101010101010101);
            run += others != 0 ? (unsigned)__builtin_ctzll(others) / 8 : 8;
        }
        while (others == 0 && s + run < LMCI_SYMBOLS && lengths[s + run] == lengths[s])
            run++;
        s += put_run(&out, lengths[s], run);
    }
    lmci_kernels()->pack_nibbles(out.nibbles, out.count, dst);
    return (out.count + 1) / 2;
}

struct nibble_reader {
    struct lmci_reader *in;
    unsigned high; /* the half byte not yet read, with bit 4 set; 0: none */
    bool bad;
};

static unsigned get_nibble(struct nibble_reader *from)
{
    if (from->high != 0) {
        unsigned value = from->high & 15;
        from->high = 0;
        return value;
    }
    const unsigned char *byte = lmci_take(from->in, 1);
    if (byte == NULL) {
        from->bad = true;
        return 0;
    }
    from->high = 16u | *byte >> 4;
    return *byte & 15;
}

static unsigned get_run(struct nibble_reader *from, unsigned *length, unsigned s)
{
    unsigned code = get_nibble(from);
    unsigned run = 1;
    if (code <= LMCI_MAX_BITS) {
        *length = code;
    } else if (code == SHORT_ZEROS) {
        *length = 0;
        run = SHORT_LEAST + get_nibble(from);
    } else if (code == LONG_ZEROS) {
        *length = 0;
        run = LONG_LEAST + get_nibble(from);
        run += get_nibble(from) << 4;
    } else {
        from->bad = from->bad || s == 0;
        run = SHORT_LEAST + get_nibble(from);
    }
    return run;
}

bool lmci_huffman_get_lengths(struct lmci_reader *in, uint8_t lengths[LMCI_SYMBOLS])
{
    struct nibble_reader from = {in, 0, false};
    unsigned length = 0;
    uint32_t sum = 0;
    for (unsigned s = 0; s < LMCI_SYMBOLS && !from.bad;) {
        unsigned run = get_run(&from, &length, s);
        if (run > LMCI_SYMBOLS - s)
            return false;
        memset(lengths + s, (int)length, run);
        sum += length != 0 ? run << (LMCI_MAX_BITS - length) : 0;
        s += run;
    }
    return !from.bad && (from.high & 15) == 0 && sum == 1u << LMCI_MAX_BITS;
}
