/* SPDX-License-Identifier: BSD-3-Clause */
/* copies.c - finds, removes and restores repeated lines. */
#include "block/copies.h"

#include "base/memory.h"

/* ---- Runs ------------------------------------------------------------------------------------------------------ */

/* Copies the lines outside of runs: from the block to the rest (`out`), or back. */
static void pass_rest(const struct lmci_copies *copies, size_t bytes, bool out, unsigned char *rest,
                      unsigned char *block)
{
    size_t at = 0;
    for (size_t i = 0; i <= copies->count; i++) {
        const size_t end = i < copies->count ? copies->runs[i].first * LMCI_LINE : bytes;
        if (out)
            memcpy(rest, block + at, end - at);
        else
            memcpy(block + at, rest, end - at);
        rest += end - at;
        at = i < copies->count ? end + copies->runs[i].lines * LMCI_LINE : end;
    }
}

static void take_rest(const struct lmci_copies *copies, const unsigned char *block, size_t bytes, unsigned char *rest)
{
    pass_rest(copies, bytes, true, rest, (unsigned char *)(uintptr_t)block); /* only read */
}

/* ---- Finding --------------------------------------------------------------------------------------------------- */

#define LOOKED_AT  ((size_t)2048) /* lines in the sample, about */
#define REPEATED   32u            /* one line in so many must repeat */
#define LEAST_LIKE 3u

static inline uint64_t mix(uint64_t x)
{
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 32;
}

bool lmci_copies_likely(const unsigned char *data, const unsigned char *base, size_t bytes)
{
    uint32_t seen[2 * LOOKED_AT] = {0};
    const size_t lines = bytes / LMCI_LINE;
    const size_t stride = lines > LOOKED_AT ? lines / LOOKED_AT : 1;
    unsigned looked = 0, like = 0;
    for (size_t i = 0; i < lines; i += stride) {
        const uint64_t first = lmci_load64(data + i * LMCI_LINE), h = mix(first);
        if (base != NULL && first == lmci_load64(base + i * LMCI_LINE))
            continue;
        uint32_t *slot = &seen[(h >> 32) % (2 * LOOKED_AT)];
        const uint32_t tag = (uint32_t)h | 1;
        like += *slot == tag;
        looked++;
        *slot = tag;
    }
    return like >= LEAST_LIKE && like >= looked / REPEATED;
}

#define TABLE_LOG2  15
#define LEAST_LINES 4u /* a shorter run saves little */

struct search {
    const unsigned char *data;
    const unsigned char *base; /* lines equal to the base's are skipped */
    size_t lines;
    uint16_t *table; /* by the hash of a line: its last index plus 1 */
};

static uint64_t hash_line(const unsigned char *line)
{
    uint64_t h = 0;
    for (unsigned k = 0; k < 64; k += 8)
        h = mix(h ^ lmci_load64(line + k)) + k;
    return h >> (32 - TABLE_LOG2) & (((uint64_t)1 << TABLE_LOG2) - 1);
}

static bool same_line(const struct search *search, size_t i, size_t j)
{
    return memcmp(search->data + i * LMCI_LINE, search->data + j * LMCI_LINE, LMCI_LINE) == 0;
}

static bool is_bases(const struct search *search, size_t i)
{
    return search->base != NULL && memcmp(search->data + i * LMCI_LINE, search->base + i * LMCI_LINE, LMCI_LINE) == 0;
}

/* Length of the run of equal lines from i and j on, up to a line equal to the base's. */
static size_t run_of(const struct search *search, size_t i, size_t j)
{
    size_t n = 0;
    while (i + n < search->lines && same_line(search, i + n, j + n) && !is_bases(search, i + n))
        n++;
    return n;
}

static size_t find_runs(const struct search *search, struct lmci_copies *copies)
{
    size_t copied = 0;
    copies->count = 0;
    memset(search->table, 0, sizeof *search->table << TABLE_LOG2);
    for (size_t i = 0; i < search->lines;) {
        uint16_t *slot = &search->table[hash_line(search->data + i * LMCI_LINE)];
        const size_t run = *slot != 0 ? run_of(search, i, *slot - 1u) : 0;
        if (run >= LEAST_LINES) {
            copies->runs[copies->count++] = (struct lmci_copy){(uint16_t)i, (uint16_t)run, (uint16_t)(*slot - 1u)};
            copied += run;
            i += run;
        } else {
            *slot = (uint16_t)(i + 1);
            i++;
        }
    }
    return copied;
}

enum lmc_status lmci_copies_take(const unsigned char *data, const unsigned char *base, size_t bytes,
                                 struct lmci_copies *copies)
{
    const size_t runs_bytes = bytes / LMCI_LINE / LEAST_LINES * sizeof(struct lmci_copy);
    const size_t table_bytes = sizeof(uint16_t) << TABLE_LOG2;
    struct search search = {.data = data, .base = base, .lines = bytes / LMCI_LINE};
    *copies = (struct lmci_copies){.memory = lmci_allocate(runs_bytes + table_bytes + (base != NULL ? 2 : 1) * bytes)};
    if (copies->memory == NULL)
        return LMC_NO_MEMORY;
    search.table = (void *)copies->memory;
    copies->runs = (void *)(copies->memory + table_bytes);
    copies->rest = copies->memory + table_bytes + runs_bytes;
    copies->base = base != NULL ? copies->rest + bytes : NULL;
    copies->rest_bytes = bytes - LMCI_LINE * find_runs(&search, copies);
    take_rest(copies, data, bytes, copies->rest);
    if (base != NULL)
        take_rest(copies, base, bytes, copies->base);
    return LMC_OK;
}

void lmci_copies_put(const struct lmci_copies *copies, unsigned char *dst)
{
    lmci_store16(dst, (uint16_t)copies->count);
    for (size_t i = 0; i < copies->count; i++) {
        unsigned char *run = dst + 2 + LMCI_COPY_BYTES * i;
        lmci_store16(run, copies->runs[i].first);
        lmci_store16(run + 2, copies->runs[i].lines);
        lmci_store16(run + 4, copies->runs[i].source);
    }
}

/* ---- Restoring ------------------------------------------------------------------------------------------------- */

enum lmc_status lmci_copies_get(struct lmci_reader *in, const unsigned char *base, size_t bytes,
                                struct lmci_copies *copies, const char **message)
{
    size_t end = 0, copied = 0;
    const unsigned char *count = lmci_take(in, 2);
    *copies = (struct lmci_copies){.count = count != NULL ? lmci_load16(count) : 0};
    const unsigned char *runs = lmci_take(in, LMCI_COPY_BYTES * copies->count);
    if (runs == NULL || copies->count == 0 || copies->count > bytes / LMCI_LINE)
        return lmci_damaged(message, "a block's copies are not well formed");
    for (size_t i = 0; i < copies->count; i++) {
        const unsigned char *run = runs + LMCI_COPY_BYTES * i;
        const size_t first = lmci_load16(run), lines = lmci_load16(run + 2), source = lmci_load16(run + 4);
        if (first < end || lines == 0 || source >= first || first + lines > bytes / LMCI_LINE)
            return lmci_damaged(message, "a block's copies are not well formed");
        end = first + lines;
        copied += lines;
    }
    copies->rest_bytes = bytes - copied * LMCI_LINE;
    copies->memory = lmci_allocate(copies->count * sizeof *copies->runs + (base != NULL ? 2 : 1) * copies->rest_bytes);
    if (copies->memory == NULL)
        return lmci_fail(LMC_NO_MEMORY, message, "no memory to decode a block");
    copies->runs = (void *)copies->memory;
    for (size_t i = 0; i < copies->count; i++)
        copies->runs[i] =
            (struct lmci_copy){lmci_load16(runs + LMCI_COPY_BYTES * i), lmci_load16(runs + LMCI_COPY_BYTES * i + 2),
                               lmci_load16(runs + LMCI_COPY_BYTES * i + 4)};
    copies->rest = copies->memory + copies->count * sizeof *copies->runs;
    copies->base = base != NULL ? copies->rest + copies->rest_bytes : NULL;
    if (base != NULL)
        take_rest(copies, base, bytes, copies->base);
    return LMC_OK;
}

void lmci_copies_fill(const struct lmci_copies *copies, unsigned char *dst, size_t bytes)
{
    pass_rest(copies, bytes, false, copies->rest, dst);
    for (size_t i = 0; i < copies->count; i++) {
        const struct lmci_copy *run = &copies->runs[i];
        unsigned char *to = dst + run->first * LMCI_LINE;
        const unsigned char *from = dst + run->source * LMCI_LINE;
        for (size_t k = 0; k < run->lines; k++) /* line by line: a run may overlap its source */
            memcpy(to + k * LMCI_LINE, from + k * LMCI_LINE, LMCI_LINE);
    }
}
