/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * copies_find.c - finds repeated bytes.
 *
 * Anchors are lines and words selected by their content, which are the same in every copy of a row. A table has the
 * last anchor with each hash of the bytes that follow it. Equal bytes around two anchors are a run.
 */
#include "base/memory.h"
#include "block/copies.h"
#include "kernels/kernels.h"

#define ANCHORED ((size_t)32) /* bytes from an anchor on that its hash covers */
#define PIECE    ((size_t)4 << 10)
#define NEAR     8u /* bytes: an anchor so close behind another one is left out; equal words have many */

static inline uint64_t mix(uint64_t x)
{
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 32;
}

static inline uint64_t hash_at(const unsigned char *at)
{
    const uint64_t low = mix(lmci_load64(at) + mix(lmci_load64(at + 8)));
    return mix(low + mix(lmci_load64(at + 16) ^ mix(lmci_load64(at + 24))));
}

/* Whether the bytes at `at` equal the base's. */
static inline bool is_bases(const struct lmci_searched *in, size_t at, size_t bytes)
{
    return in->base != NULL && memcmp(in->data + at, in->base + at, bytes) == 0;
}

/* Equal bytes from both places on, in units, up to a line equal to the base's. */
static size_t equal_after(const struct lmci_searched *in, unsigned unit, size_t source, size_t at, size_t most)
{
    const unsigned char *a = in->data + source, *b = in->data + at;
    size_t n = 0;
    while (n + LMCI_LINE <= most && memcmp(a + n, b + n, LMCI_LINE) == 0 && !is_bases(in, at + n, LMCI_LINE))
        n += LMCI_LINE;
    if (unit == LMCI_LINE)
        return n;
    const size_t end = most - n < LMCI_LINE ? most : n + LMCI_LINE;
    for (uint64_t differ = 0; differ == 0 && n + 8 <= end; n += differ == 0 ? 8 : (size_t)__builtin_ctzll(differ) / 8)
        differ = lmci_load64(a + n) ^ lmci_load64(b + n);
    while (n < end && a[n] == b[n])
        n++;
    return n / unit * unit;
}

/* ... before both, at most `most`. */
static size_t equal_before(const struct lmci_searched *in, unsigned unit, size_t source, size_t at, size_t most)
{
    const unsigned char *a = in->data + source, *b = in->data + at;
    size_t n = 0;
    for (uint64_t differ = 0; differ == 0 && n + 8 <= most; n += differ == 0 ? 8 : (size_t)__builtin_clzll(differ) / 8)
        differ = lmci_load64(a - n - 8) ^ lmci_load64(b - n - 8);
    while (n < most && a[-(ptrdiff_t)n - 1] == b[-(ptrdiff_t)n - 1])
        n++;
    return n / unit * unit;
}

/* ---- Samples --------------------------------------------------------------------------------------------------- */

size_t lmci_copies_moved(size_t piece, size_t free)
{
    return (size_t)(mix(mix(piece)) % (free + 1));
}

#define LOOKED_AT  ((size_t)2048) /* lines in the sample, about */
#define REPEATED   32u            /* one line in so many must repeat */
#define LEAST_LIKE 3u

bool lmci_lines_likely(const unsigned char *data, const unsigned char *base, size_t bytes)
{
    uint32_t seen[2 * LOOKED_AT];
    const size_t lines = bytes / LMCI_LINE;
    const size_t stride = lines > LOOKED_AT ? lines / LOOKED_AT : 1;
    size_t slots = 2 * LOOKED_AT;
    while (slots / 4 >= lines + 1)
        slots /= 2;
    memset(seen, 0, slots * sizeof *seen);
    unsigned looked = 0, like = 0;
    for (size_t i = 0; i < lines; i += stride) {
        const unsigned char *line = data + i * LMCI_LINE;
        const uint64_t first = lmci_load64(line), h = mix(first ^ mix(lmci_load64(line + LMCI_LINE - 8)));
        if (base != NULL && first == lmci_load64(base + i * LMCI_LINE))
            continue;
        uint32_t *slot = &seen[(h >> 32) % slots];
        const uint32_t tag = (uint32_t)h | 1;
        like += *slot == tag;
        looked++;
        *slot = tag;
    }
    return like >= LEAST_LIKE && like >= looked / REPEATED;
}

#define SLOTS_LOG2 11
#define WORDS_LIKE 2u
#define PLACE_LOG2 16 /* of a place: the piece, and the offset in it */
#define TAG_LOG2   24 /* of a slot: a place plus 1; above: more bits of the hash */
/* Equal hashes that may be of shorter repeats: with more, others are not compared, so that time is bounded. */
#define MISSED_LEAST 64u
#define MISSED_OF    2u

struct sample {
    const struct lmci_searched *in;
    size_t stride, free; /* bytes from a piece to the next, and those of them that no piece takes */
    unsigned looked, like, missed;
    uint32_t slots[1 << SLOTS_LOG2]; /* by hash: the last place */
};

static size_t start_of(const struct sample *sample, size_t piece)
{
    return piece * sample->stride + lmci_copies_moved(piece, sample->free) / 8 * 8;
}

/* Keeps those of ascending places that are not near the one before; returns how many. */
static size_t keep_apart(uint16_t *places, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0, last = 0; i < n; i++) {
        const size_t at = places[i];
        places[kept] = (uint16_t)at;
        kept += i == 0 || at - last >= NEAR;
        last = at;
    }
    return kept;
}

static void look_at(struct sample *sample, size_t piece, size_t offset)
{
    const struct lmci_searched *in = sample->in;
    const size_t at = start_of(sample, piece) + offset;
    if (at + LMCI_LEAST_COPY > in->bytes)
        return;
    const uint64_t h = hash_at(in->data + at);
    const uint32_t tag = (uint32_t)h << TAG_LOG2;
    uint32_t *slot = &sample->slots[h >> (64 - SLOTS_LOG2)];
    const bool may_like = sample->missed <= MISSED_LEAST + sample->looked / MISSED_OF;
    if (may_like && (*slot ^ tag) >> TAG_LOG2 == 0 && *slot != tag && !is_bases(in, at, ANCHORED)) {
        const uint32_t place = (*slot ^ tag) - 1;
        const size_t source = start_of(sample, place >> PLACE_LOG2) + (place & ((1u << PLACE_LOG2) - 1));
        const size_t most = source < LMCI_LEAST_COPY ? source : LMCI_LEAST_COPY;
        const size_t after = equal_after(in, in->word, source, at, LMCI_LEAST_COPY);
        const bool like = after != 0 && after + equal_before(in, in->word, source, at, most) >= LMCI_LEAST_COPY;
        sample->like += like;
        sample->missed += !like;
    }
    sample->looked++;
    *slot = tag | (((uint32_t)piece << PLACE_LOG2 | (uint32_t)offset) + 1);
}

bool lmci_words_likely(const struct lmci_searched *in, size_t pieces, size_t piece_bytes, size_t stride, unsigned log2,
                       unsigned one_in)
{
    struct sample sample = {.in = in, .stride = stride, .free = stride - piece_bytes};
    uint16_t at[PIECE + 32];
    for (size_t piece = 0; piece < pieces; piece++) {
        const size_t start = start_of(&sample, piece);
        for (size_t done = 0; done < piece_bytes && start + done < in->bytes; done += PIECE) {
            size_t some = in->bytes - start - done < PIECE ? in->bytes - start - done : PIECE;
            some = piece_bytes - done < some ? piece_bytes - done : some;
            const size_t n = keep_apart(at, lmci_kernels()->anchors(in->word, log2, in->data + start + done, some, at));
            for (size_t i = 0; i < n; i++)
                look_at(&sample, piece, done + at[i]);
        }
    }
    return sample.like >= WORDS_LIKE && sample.like >= sample.looked / one_in;
}

unsigned lmci_rarely(unsigned word)
{
    return word == 1 ? 9 : word == 2 ? 8 : word == 4 ? 7 : 6;
}

bool lmci_copies_likely(const struct lmci_searched *in, unsigned unit)
{
    if (lmci_lines_likely(in->data, in->base, in->bytes))
        return true;
    const size_t piece = (size_t)1 << PLACE_LOG2;
    return unit != LMCI_LINE &&
           lmci_words_likely(in, in->bytes / piece + 1, piece, piece, lmci_rarely(in->word) - 1, LMCI_WORDS_OF);
}

/* ---- Search ---------------------------------------------------------------------------------------------------- */

#define SHORT_PIECE ((size_t)2 << 10)
#define TABLE_LOG2  15
#define OFTEN       3  /* bits of the hash fewer than for samples: one word in about 64 bytes */
#define AT_LOG2     21 /* of an entry: the anchor plus 1; above: more bits of the hash */
/* Repeats that are too short may be found in so many bytes, and in so many of runs; then others are not compared. */
#define SHORT_LEAST   64u
#define SHORT_OF      64u
#define SHORT_OF_RUNS 32u

struct search {
    const struct lmci_searched *in;
    unsigned unit;
    uint32_t *table;
    struct lmci_copy *runs;
    size_t count;
    size_t end;               /* of the last run */
    size_t copied, too_short; /* bytes of runs; shorter repeats */
};

static void visit(struct search *search, size_t at, uint64_t h)
{
    const struct lmci_searched *in = search->in;
    const unsigned unit = search->unit;
    uint32_t *entry = &search->table[h >> (64 - TABLE_LOG2)];
    const uint32_t old = *entry, more = (uint32_t)h << AT_LOG2;
    if (at < search->end)
        return;
    *entry = more | (uint32_t)(at + 1);
    if ((old ^ more) >> AT_LOG2 != 0 || old == 0 || is_bases(in, at, ANCHORED))
        return;
    const size_t source = (old & ((1u << AT_LOG2) - 1)) - 1;
    if (source >= at) /* lines come after the words of their piece */
        return;
    if (search->too_short > SHORT_LEAST + at / SHORT_OF + search->copied / SHORT_OF_RUNS)
        return;
    size_t before = source < at - search->end ? source : at - search->end;
    if (in->base != NULL && before > LMCI_LINE)
        before = LMCI_LINE;
    before = equal_before(in, unit, source, at, before);
    const size_t run = before + equal_after(in, unit, source, at, in->bytes - at);
    if (run < (unit == LMCI_LINE ? LMCI_LEAST_LINES : LMCI_LEAST_COPY)) {
        search->too_short++;
        return;
    }
    search->copied += run;
    search->runs[search->count++] =
        (struct lmci_copy){(uint32_t)(at - before), (uint32_t)run, (uint32_t)(source - before)};
    search->end = at - before + run;
}

/* Visits places of a piece; hashes them all first, to fetch entries of the table. */
static void visit_all(struct search *search, size_t start, const uint16_t *places, size_t n)
{
    uint64_t hashes[SHORT_PIECE];
    while (n > 0 && start + places[n - 1] + LMCI_LINE > search->in->bytes)
        n--;
    for (size_t i = 0; i < n; i++) {
        hashes[i] = hash_at(search->in->data + start + places[i]);
        __builtin_prefetch(&search->table[hashes[i] >> (64 - TABLE_LOG2)], 1);
    }
    for (size_t i = 0; i < n; i++)
        visit(search, start + places[i], hashes[i]);
}

enum lmc_status lmci_copies_find(const struct lmci_searched *in, unsigned unit, struct lmci_copy *runs, size_t *count)
{
    uint16_t words[SHORT_PIECE + 32], lines[SHORT_PIECE / LMCI_LINE];
    const size_t table_bytes = sizeof(uint32_t) << TABLE_LOG2;
    struct search search = {.in = in, .unit = unit, .table = lmci_allocate(table_bytes), .runs = runs};
    if (search.table == NULL)
        return LMC_NO_MEMORY;
    memset(search.table, 0, table_bytes);
    for (size_t i = 0; i < SHORT_PIECE / LMCI_LINE; i++)
        lines[i] = (uint16_t)(i * LMCI_LINE);
    for (size_t done = 0; done < in->bytes; done += SHORT_PIECE) {
        const size_t some = in->bytes - done < SHORT_PIECE ? in->bytes - done : SHORT_PIECE;
        if (unit != LMCI_LINE) {
            const unsigned log2 = lmci_rarely(in->word) - OFTEN;
            visit_all(&search, done, words,
                      keep_apart(words, lmci_kernels()->anchors(in->word, log2, in->data + done, some, words)));
        }
        visit_all(&search, done, lines, (some + LMCI_LINE - 1) / LMCI_LINE);
    }
    lmci_release(search.table);
    *count = search.count;
    return LMC_OK;
}
