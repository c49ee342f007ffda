/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plan.c - chooses from a sample how a tensor is encoded.
 *
 * The transform with the smallest sum of the planes' order-0 entropies wins; a tie goes to the faster decoder. A delta
 * must win by one part in 64, since decoding needs its base. Deltas of floats are dealt to classes: neighbouring
 * exponents share one while the lengths of their differences are distributed alike. A second sample, of whole lines,
 * shows whether lines repeat.
 */
#include "block/plan.h"

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/memory.h"
#include "block/block.h"
#include "block/classes.h"
#include "block/copies.h"
#include "block/huffman.h"
#include "block/keyed.h"
#include "block/plane.h"
#include "block/shifts.h"
#include "kernels/kernels.h"

#define PIECES        64
#define SAMPLE_LEAST  ((size_t)1024) /* words; a smaller tensor is sampled whole */
#define SAMPLE_MOST   ((size_t)16384)
#define SAMPLE_ONE_IN 32 /* words, between these */
#define SMALL_BYTES   ((size_t)128 << 10)

/* An encoded plane must save one bit in so many words. */
#define PLANE_COST       8
#define PLANE_COST_DENSE 64

struct sample {
    unsigned word;
    bool dense;
    size_t words;
    size_t plane_cost;
    size_t block_words; /* of a whole block, or of a smaller tensor */
    bool small;         /* the sample fits each block */
    bool model;         /* of tensors that take over the plan, too */
    unsigned char *memory;
    unsigned char *data;
    unsigned char *base; /* or NULL */
    unsigned char *planes[LMCI_MAX_WORD];
};

static bool sample_init(struct sample *sample, const struct lmc_params *params, bool model)
{
    uint64_t all = params->raw_bytes / lmci_dtype_word(params->dtype);
    sample->word = lmci_dtype_word(params->dtype);
    sample->words = all / SAMPLE_ONE_IN < SAMPLE_MOST ? (size_t)all / SAMPLE_ONE_IN / PIECES * PIECES : SAMPLE_MOST;
    if (sample->words < SAMPLE_LEAST)
        sample->words = all < SAMPLE_LEAST ? (size_t)all : SAMPLE_LEAST;
    if (model)
        sample->words = all < SAMPLE_MOST ? (size_t)all : SAMPLE_MOST;
    sample->block_words = all < LMC_BLOCK_BYTES / sample->word ? (size_t)all : LMC_BLOCK_BYTES / sample->word;
    sample->small = params->raw_bytes <= SMALL_BYTES;
    sample->model = model;
    sample->dense = params->level == LMC_LEVEL_DENSE;
    sample->plane_cost = sample->dense ? PLANE_COST_DENSE : PLANE_COST;
    size_t bytes = sample->words * sample->word;
    sample->memory = lmci_allocate(3 * bytes);
    if (sample->memory == NULL)
        return false;
    sample->data = sample->memory;
    sample->base = params->base != NULL ? sample->memory + bytes : NULL;
    for (unsigned p = 0; p < sample->word; p++)
        sample->planes[p] = sample->memory + 2 * bytes + p * sample->words;
    return true;
}

/* Prefetches what gather() copies, all at once. */
static void gather_ahead(const struct sample *sample, const unsigned char *from, uint64_t raw_bytes)
{
    const size_t piece_bytes = sample->words / PIECES * sample->word;
    if (raw_bytes <= sample->words * sample->word)
        return;
    const uint64_t stride_words = (raw_bytes - piece_bytes) / sample->word / (PIECES - 1);
    for (uint64_t piece = 0; piece < PIECES; piece++)
        __builtin_prefetch(from + piece * stride_words * sample->word);
}

/* Copies evenly spaced pieces, or all. Returns bytes. */
static size_t gather(const struct sample *sample, const unsigned char *from, uint64_t raw_bytes, unsigned char *to)
{
    size_t piece_bytes = sample->words / PIECES * sample->word;
    if (raw_bytes <= sample->words * sample->word) {
        memcpy(to, from, (size_t)raw_bytes);
        return (size_t)raw_bytes;
    }
    const uint64_t stride_words = (raw_bytes - piece_bytes) / sample->word / (PIECES - 1);
    for (uint64_t piece = 0; piece < PIECES; piece++)
        memcpy(to + piece * piece_bytes, from + piece * stride_words * sample->word, piece_bytes);
    return PIECES * piece_bytes;
}

/* Copies whole lines, which show repeated rows, but fewer columns. A sample with pieces of a line or less stays. */
static size_t gather_lines(const struct sample *sample, const unsigned char *from, uint64_t raw_bytes,
                           unsigned char *to)
{
    const size_t piece_bytes = sample->words * sample->word / PIECES, piece_lines = piece_bytes / LMCI_LINE;
    const uint64_t lines = raw_bytes / LMCI_LINE;
    if (raw_bytes <= sample->words * sample->word || piece_bytes <= LMCI_LINE)
        return sample->words * sample->word;
    const uint64_t stride = lines / PIECES;
    for (uint64_t piece = 0; piece < PIECES; piece++) {
        const uint64_t at = piece * stride + lmci_copies_moved(piece, stride - piece_lines);
        memcpy(to + piece * piece_lines * LMCI_LINE, from + at * LMCI_LINE, piece_lines * LMCI_LINE);
    }
    return PIECES * piece_lines * LMCI_LINE;
}

#define COUNTED ((size_t)512) /* enough of a plane of the sample */

/* Estimated bits of a plane, raw or encoded. */
static uint64_t plane_bits(const struct sample *sample, const unsigned char *plane)
{
    uint32_t counts[256];
    const bool half = !sample->dense && sample->words >= 2 * COUNTED;
    const size_t words = half ? sample->words / 2 : sample->words;
    lmci_kernels()->count(plane, sample->words, half ? 2 : 1, counts);
    const unsigned mask = lmci_plane_bits(counts, words);
    uint64_t raw = (mask != 0 ? (unsigned)__builtin_popcount(mask) : 8) * (uint64_t)words;
    uint64_t coded = lmci_expected_bits(counts, words) + words / sample->plane_cost;
    return (coded < raw ? coded : raw) * (half ? 2 : 1);
}

/* Estimated bits of the sample with a transform. *noise: how many of the lowest planes are noise. If it is NULL, the
 * first `raw` planes count as raw. */
static uint64_t cost_bits(const struct sample *sample, enum lmci_transform transform, unsigned raw, unsigned *noise)
{
    uint64_t bits = 0;
    lmci_kernels()->split(transform, sample->word, sample->data, sample->base, sample->words, sample->planes);
    for (unsigned p = 0; p < sample->word; p++) {
        if (noise != NULL && raw == p)
            raw += lmci_plane_is_noise(sample->planes[p], sample->words);
        bits += p < raw ? 8 * (uint64_t)sample->words : plane_bits(sample, sample->planes[p]);
    }
    if (noise != NULL)
        *noise = raw;
    return bits;
}

/* ---- Classes --------------------------------------------------------------------------------------------------- */

#define USUAL_CLASSES_2 7u /* for 2-byte words: more cost time and save little */
#define USUAL_CLASSES_4 8u
#define DENSE_CLASSES   LMCI_MAX_CLASSES
#define GROUP_LEAST     200u  /* a rarer key joins the keys below it */
#define FEW_OUTLIERS    64u   /* one word in so many */
#define CLASS_BITS      4000u /* a class must save this in a block */
#define MODEL_BITS      1000u /* ... and so many for small tensors that share codes, up to so many classes */
#define MODEL_CLASSES_2 3u
#define MODEL_CLASSES_4 2u

struct group {
    unsigned first;
    struct lmci_bit_lengths lengths;
    uint64_t entropy;
    uint64_t loss; /* bits lost by joining the next group */
};

/* Counts lengths of differences for each key of the base; clears only the keys that occur. */
static void count_lengths(const struct sample *sample, bool occurs[256], uint32_t counts[256][LMCI_BIT_LENGTHS])
{
    memset(occurs, 0, 256 * sizeof *occurs);
    for (size_t i = 0; i < sample->words; i++) {
        const uint32_t b = lmci_word_at(sample->word, sample->base, i);
        const unsigned key = lmci_class_key(sample->word, b);
        if (!occurs[key])
            memset(counts[key], 0, sizeof counts[key]);
        occurs[key] = true;
        counts[key][lmci_bit_length(lmci_difference_at(sample->word, sample->data, i, b))]++;
    }
}

static void join_groups(struct group *into, const struct group *from)
{
    into->lengths.words += from->lengths.words;
    for (unsigned k = 0; k < LMCI_BIT_LENGTHS; k++)
        into->lengths.words_of[k] += from->lengths.words_of[k];
}

static uint64_t group_entropy(const struct group *group)
{
    return lmci_entropy_bits(group->lengths.words_of, LMCI_BIT_LENGTHS, group->lengths.words);
}

static unsigned make_groups(const struct sample *sample, struct group groups[256])
{
    uint32_t counts[256][LMCI_BIT_LENGTHS];
    bool occurs[256];
    unsigned n = 0;
    count_lengths(sample, occurs, counts);
    for (unsigned key = 0; key < 256; key++) {
        if (!occurs[key])
            continue;
        struct group group = {.first = key};
        memcpy(group.lengths.words_of, counts[key], sizeof group.lengths.words_of);
        for (unsigned k = 0; k < LMCI_BIT_LENGTHS; k++)
            group.lengths.words += counts[key][k];
        if (n > 0 && group.lengths.words < sample->words / GROUP_LEAST + 1)
            join_groups(&groups[n - 1], &group);
        else
            groups[n++] = group;
    }
    return n;
}

/* Computes the loss of joining group i with the next. */
static void find_loss(struct group *groups, unsigned i)
{
    struct group both = groups[i];
    join_groups(&both, &groups[i + 1]);
    uint64_t together = group_entropy(&both);
    uint64_t apart = groups[i].entropy + groups[i + 1].entropy;
    groups[i].loss = together > apart ? together - apart : 0;
}

/* Joins the neighbours that lose least, down to `most` groups that are each worth their cost. */
static unsigned reduce_groups(const struct sample *sample, struct group groups[256], unsigned n, unsigned most)
{
    const unsigned few = sample->word == 2 ? MODEL_CLASSES_2 : MODEL_CLASSES_4;
    for (unsigned i = 0; i < n; i++)
        groups[i].entropy = group_entropy(&groups[i]);
    for (unsigned i = 0; i + 1 < n; i++)
        find_loss(groups, i);
    while (n > 1) {
        unsigned best = 0;
        for (unsigned i = 1; i + 1 < n; i++)
            if (groups[i].loss < groups[best].loss)
                best = i;
        const uint64_t least = sample->model && n <= few ? MODEL_BITS : CLASS_BITS;
        if (n <= most && groups[best].loss > least * sample->words / sample->block_words)
            break;
        join_groups(&groups[best], &groups[best + 1]);
        groups[best].entropy = group_entropy(&groups[best]);
        memmove(&groups[best + 1], &groups[best + 2], (n - best - 2) * sizeof *groups);
        n--;
        if (best > 0)
            find_loss(groups, best - 1);
        if (best + 1 < n)
            find_loss(groups, best);
    }
    return n;
}

/* Estimated bits of the sample dealt to these classes. */
static uint64_t dealt_bits(const struct sample *sample, const struct lmci_classes *classes, size_t *outliers)
{
    uint32_t counts[LMCI_MAX_CLASSES][256];
    uint8_t class_of[256];
    uint64_t bits = 0;
    *outliers = 0;
    memset(counts, 0, classes->count * sizeof *counts);
    for (unsigned key = 0, class = 0; key < 256; key++) {
        class += class + 1 < classes->count && key >= classes->first[class + 1];
        class_of[key] = (uint8_t) class;
    }
    for (size_t i = 0; i < sample->words; i++) {
        uint32_t b = lmci_word_at(sample->word, sample->base, i);
        int32_t difference = lmci_difference_at(sample->word, sample->data, i, b);
        unsigned class = class_of[lmci_class_key(sample->word, b)];
        int32_t symbol = difference >> classes->shift[class];
        bool outlier = symbol != (int8_t)symbol || symbol == (int8_t)LMCI_MARK;
        counts[class][outlier ? LMCI_MARK : symbol & 255]++;
        bits += outlier ? 8 * sample->word - LMCI_OUTLIER_SAVES : classes->shift[class];
        *outliers += outlier;
    }
    for (unsigned c = 0; c < classes->count; c++) {
        uint64_t words = 0;
        for (unsigned s = 0; s < 256; s++)
            words += counts[c][s];
        bits += lmci_expected_bits(counts[c], words);
    }
    return bits;
}

#define MORE_OUTLIERS 256u /* a smaller shift may add one outlier in so many words */

/* Tries smaller shifts: lmci_choose_shift assumes that bits below symbols are uniform, and where they are not, a
 * smaller shift saves bits. */
static uint64_t refine_shifts(const struct sample *sample, uint64_t bits, size_t outliers, struct lmci_classes *classes)
{
    for (unsigned c = 0; c < classes->count; c++) {
        while (classes->shift[c] >= 4) {
            struct lmci_classes finer = *classes;
            size_t finer_outliers;
            finer.shift[c] = (uint8_t)(finer.shift[c] - 4);
            finer.finer[c] = (uint8_t)(finer.finer[c] + 4);
            uint64_t finer_bits = dealt_bits(sample, &finer, &finer_outliers);
            if (finer_bits >= bits || finer_outliers > outliers + sample->words / MORE_OUTLIERS)
                break;
            bits = finer_bits;
            *classes = finer;
        }
    }
    return bits;
}

/* Returns bits as lengths suggest, without outliers. */
static uint64_t plan_classes(const struct sample *sample, unsigned most, struct lmci_classes *classes)
{
    struct group groups[256];
    uint64_t bits = 0;
    unsigned n = reduce_groups(sample, groups, make_groups(sample, groups), most);
    classes->count = n;
    classes->fitted = sample->small && !sample->dense;
    groups[0].first = 0;
    for (unsigned c = 0; c < n; c++) {
        classes->finer[c] = 0;
        classes->first[c] = (uint8_t)groups[c].first;
        classes->shift[c] = lmci_choose_shift(&groups[c].lengths, sample->word, &bits);
    }
    return bits;
}

/* Returns the bits of planned classes, whose shifts the dense level refines. */
static uint64_t classes_bits(const struct sample *sample, struct lmci_classes *classes)
{
    size_t outliers;
    const uint64_t bits = dealt_bits(sample, classes, &outliers);
    return sample->dense ? refine_shifts(sample, bits, outliers, classes) : bits;
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

#define VALUE_BITS 12 /* the bits of a symbol and of the half byte below it */

/* The highest VALUE_BITS of a word. */
static unsigned first_bits(const struct sample *sample, bool rotate, size_t i)
{
    const unsigned bits = 8 * sample->word;
    uint32_t x = lmci_word_at(sample->word, sample->data, i);
    if (rotate)
        x = sample->word == 2 ? (uint16_t)(x << 1 | x >> 15) : x << 1 | x >> 31;
    return x >> (bits - VALUE_BITS);
}

/* Finds the middle of the window of 255 values with the most words. */
static unsigned find_center(const uint32_t counts[1 << VALUE_BITS])
{
    uint32_t inside = 0, most = 0;
    unsigned center = 127;
    for (unsigned end = 0; end < 1 << VALUE_BITS; end++) {
        inside += counts[end] - (end >= 255 ? counts[end - 255] : 0);
        if (inside > most && end >= 254) {
            most = inside;
            center = end - 127;
        }
    }
    return center;
}

/* One class around the most frequent values. Returns bits. */
static uint64_t plan_values(const struct sample *sample, bool rotate, struct lmci_classes *classes)
{
    uint32_t counts[1 << VALUE_BITS] = {0};
    uint32_t symbols[256] = {0};
    const unsigned shift = 8 * sample->word - VALUE_BITS;
    uint64_t bits = 0;
    for (size_t i = 0; i < sample->words; i++)
        counts[first_bits(sample, rotate, i)]++;
    const unsigned center = find_center(counts);
    for (unsigned v = 0; v < 1 << VALUE_BITS; v++) {
        bool outlier = v + 127 < center || v > center + 127;
        symbols[outlier ? LMCI_MARK : (v - center) & 255] += counts[v];
        bits += counts[v] * (uint64_t)(outlier ? 8 * sample->word - LMCI_OUTLIER_SAVES : shift);
    }
    *classes = (struct lmci_classes){
        .count = 1, .shift = {(uint8_t)shift}, .center = (uint32_t)center << shift, .rotate = rotate};
    return bits + lmci_expected_bits(symbols, sample->words);
}

/* ---- Keys ------------------------------------------------------------------------------------------------------ */

/* Chooses the bytes of an f64 difference below the middle: the fewest that leave few differences with bits above. */
static unsigned choose_low(const struct sample *sample)
{
    size_t above[LMCI_KEYED_LOW_MOST] = {0};
    unsigned low = 0;
    for (size_t i = 0; i < sample->words; i++) {
        const uint64_t d = lmci_load64(sample->data + 8 * i) - lmci_load64(sample->base + 8 * i);
        const uint64_t size = d >> 63 != 0 ? 0 - d : d;
        for (unsigned k = 0; k < LMCI_KEYED_LOW_MOST; k++)
            above[k] += size >> (8 * k + 31) != 0;
    }
    while (low < LMCI_KEYED_LOW_MOST && above[low] > sample->words / FEW_OUTLIERS)
        low++;
    return low;
}

/* Chooses keys only if smaller than `least`. */
static enum lmc_status choose_keyed(const struct sample *sample, unsigned most, uint64_t least,
                                    struct lmci_scheme *scheme)
{
    struct sample stands = *sample;
    struct lmci_classes classes = {0};
    const unsigned low = sample->word == 8 ? choose_low(sample) : 0;
    uint64_t bits = 0;
    stands.word = lmci_keyed_word(sample->word);
    stands.memory = lmci_allocate(2 * stands.word * sample->words);
    if (stands.memory == NULL)
        return LMC_NO_MEMORY;
    stands.data = stands.memory;
    stands.base = stands.memory + stands.word * sample->words;
    lmci_kernels()->keyed_base(sample->word, sample->base, sample->words, stands.base);
    lmci_kernels()->keyed_split(sample->word, low, sample->data, sample->base, stands.base, sample->words,
                                sample->planes, stands.data);
    for (unsigned p = 0; sample->word == 8 && p < LMCI_KEYED_PLANES; p++)
        bits += plane_bits(sample, sample->planes[p]);
    plan_classes(&stands, most, &classes);
    bits += classes_bits(&stands, &classes);
    lmci_release(stands.memory);
    if (bits >= least)
        return LMC_OK;
    scheme->method = LMCI_METHOD_KEYED;
    scheme->classes = classes;
    scheme->low = low;
    return LMC_OK;
}

/* ---- Choosing -------------------------------------------------------------------------------------------------- */

/* `rotated`: bits as rotated floats, whose lowest `noise` planes are noise. They are about noise without rotation, too:
 * it moves one bit from a plane to the next. Returns bits. */
static uint64_t choose_alone(const struct sample *sample, uint64_t rotated, unsigned noise, struct lmci_scheme *scheme)
{
    const uint64_t least = cost_bits(sample, LMCI_KEEP, noise, NULL);
    scheme->transform = rotated < least ? LMCI_ROTATE : LMCI_KEEP;
    return rotated < least ? rotated : least;
}

/* Chooses a delta if it takes fewer bits than `least`. Returns the fewest bits. */
static uint64_t choose_delta(const struct sample *sample, uint64_t least, struct lmci_scheme *scheme)
{
    static const enum lmci_transform deltas[] = {LMCI_ZIGZAG, LMCI_XOR, LMCI_SUBTRACT};
    for (size_t i = 0; i < sizeof deltas / sizeof *deltas; i++) {
        uint64_t bits = cost_bits(sample, deltas[i], 0, NULL);
        if (bits < least) {
            scheme->transform = deltas[i];
            least = bits;
        }
    }
    return least;
}

/* Chooses values only if this saves one part in 1024: it takes twice the time. */
static void choose_values(const struct sample *sample, bool possible, uint64_t alone, struct lmci_scheme *scheme)
{
    struct lmci_classes values;
    bool tried = possible && scheme->method == LMCI_METHOD_PLANES && lmci_has_classes(sample->word);
    if (!tried || plan_values(sample, scheme->transform == LMCI_ROTATE, &values) >= alone - alone / 1024)
        return;
    scheme->method = LMCI_METHOD_VALUES;
    scheme->classes = values;
}

#define CLEARLY 3 /* bits a word by which a delta surely wins without rotation */
#define SURELY  4 /* ... by which lengths suffice to show that */

/* *bits: estimate of a delta by classes; otherwise unchanged. */
static enum lmc_status choose(const struct sample *sample, const struct lmc_params *params, struct lmci_scheme *scheme,
                              uint64_t *bits)
{
    enum lmc_status status = LMC_OK;
    const bool is_float = lmci_dtype_is_float(params->dtype);
    const unsigned usual = sample->word <= 2 ? USUAL_CLASSES_2 : USUAL_CLASSES_4;
    const unsigned most = sample->dense ? DENSE_CLASSES : usual;
    const bool dealt = sample->base != NULL && is_float && lmci_has_classes(sample->word);
    const uint64_t about = dealt ? plan_classes(sample, most, &scheme->classes) : UINT64_MAX;
    unsigned noise = 0;
    const uint64_t rotated = is_float ? cost_bits(sample, LMCI_ROTATE, 0, &noise) : UINT64_MAX;
    const bool surely = dealt && !sample->dense && about + SURELY * (uint64_t)sample->words < rotated;
    const uint64_t classes = surely ? about : dealt ? classes_bits(sample, &scheme->classes) : UINT64_MAX;
    scheme->transform = LMCI_ROTATE;
    if (dealt && classes + CLEARLY * (uint64_t)sample->words < rotated) {
        scheme->method = LMCI_METHOD_CLASSES;
        *bits = classes;
        return LMC_OK;
    }
    const uint64_t alone = choose_alone(sample, rotated, noise, scheme);
    const uint64_t least = alone - alone / 64;
    if (dealt) {
        if (classes < least)
            scheme->method = LMCI_METHOD_CLASSES;
    } else if (sample->base != NULL) {
        const uint64_t smallest = choose_delta(sample, least, scheme);
        if (lmci_dtype_has_exponent(params->dtype))
            status = choose_keyed(sample, most, smallest, scheme);
    }
    choose_values(sample, params->level == LMC_LEVEL_DENSE && is_float, alone, scheme);
    if (scheme->method == LMCI_METHOD_PLANES && scheme->transform != LMCI_ROTATE)
        (void)cost_bits(sample, scheme->transform, 0, &noise);
    scheme->noise = scheme->method == LMCI_METHOD_PLANES ? noise : 0;
    scheme->noisy = sample->small && !sample->dense;
    return status;
}

/* Where words take fewer bits in the mean than one in so many, runs take about as many as the words that they
 * replace. */
#define FEW_BITS 4

/* Whether lines seem to repeat. Overwrites the sample. */
static bool lines_repeat(const struct sample *sample, const struct lmc_params *params, bool needs_base)
{
    const size_t bytes = gather_lines(sample, params->data, params->raw_bytes, sample->data);
    if (needs_base)
        gather_lines(sample, params->base, params->raw_bytes, sample->base);
    return lmci_lines_likely(sample->data, needs_base ? sample->base : NULL, bytes);
}

/* Samples for few rows that are frequent: short pieces, most of whose words are anchors of rows. */
#define ROW_BYTES   ((size_t)1 << 10)
#define ROW_ONE_IN  24                  /* of a large tensor */
#define ROW_FEW_IN  64                  /* of a smaller one */
#define ROW_LEAST   ((size_t)512 << 10) /* a smaller tensor is sampled once */
#define FEW_PIECES  32
#define MANY_PIECES 64
#define MANY_BLOCKS 8
/* For many rows that repeat rarely: a block in so many, of fewer blocks a quarter of one. */
#define ONE_BLOCK    32
#define MOST         8
#define PARTS        16
#define SMALL_PARTS  4
#define SMALL_ONE_IN 64

/* Whether words selected by their content repeat with those around them. */
static bool words_repeat(const struct lmci_searched *in)
{
    const uint64_t blocks = lmc_block_count(in->bytes);
    const unsigned log2 = lmci_rarely(in->word);
    const size_t pieces = in->bytes < ROW_LEAST ? SMALL_PARTS : blocks < MANY_BLOCKS ? FEW_PIECES : MANY_PIECES;
    const size_t stride = in->bytes / pieces / 8 * 8;
    if (in->bytes < ROW_LEAST)
        return lmci_words_likely(in, pieces, stride / 4, stride, log2 - 2, SMALL_ONE_IN);
    if (lmci_words_likely(in, pieces, ROW_BYTES, stride, log2 - 2, blocks < MANY_BLOCKS ? ROW_FEW_IN : ROW_ONE_IN))
        return true;
    const uint64_t some = blocks < ONE_BLOCK ? 1 : blocks / ONE_BLOCK < MOST ? blocks / ONE_BLOCK : MOST;
    for (uint64_t i = 0; i < some; i++) {
        const size_t at = (size_t)((2 * i + 1) * (blocks - 1) / (2 * some)) * LMC_BLOCK_BYTES;
        const struct lmci_searched block = {in->data + at, in->base != NULL ? in->base + at : NULL,
                                            lmci_block_bytes(in->bytes, at / LMC_BLOCK_BYTES), in->word};
        const size_t part = block.bytes / PARTS / 8 * 8;
        if (lmci_words_likely(&block, PARTS, blocks < ONE_BLOCK ? part / 4 : part, part, log2, LMCI_WORDS_OF))
            return true;
    }
    return false;
}

static bool repeats(const struct sample *sample, const struct lmc_params *params, bool needs_base)
{
    const struct lmci_searched in = {params->data, needs_base ? params->base : NULL, (size_t)params->raw_bytes,
                                     sample->word};
    return lines_repeat(sample, params, needs_base) || words_repeat(&in);
}

enum lmc_status lmci_plan(const struct lmc_params *params, bool model, struct lmci_scheme *scheme)
{
    struct sample sample;
    *scheme = (struct lmci_scheme){.method = LMCI_METHOD_PLANES, .transform = LMCI_KEEP};
    if (params->raw_bytes == 0)
        return LMC_OK;
    if (!sample_init(&sample, params, model))
        return LMC_NO_MEMORY;
    gather_ahead(&sample, params->data, params->raw_bytes);
    if (sample.base != NULL)
        gather_ahead(&sample, params->base, params->raw_bytes);
    gather(&sample, params->data, params->raw_bytes, sample.data);
    if (sample.base != NULL)
        gather(&sample, params->base, params->raw_bytes, sample.base);
    uint64_t bits = UINT64_MAX;
    enum lmc_status status = choose(&sample, params, scheme, &bits);
    scheme->copies = bits > sample.words / FEW_BITS && repeats(&sample, params, lmci_scheme_needs_base(scheme));
    lmci_release(sample.memory);
    return status;
}

bool lmci_plan_like(const struct lmc_params *params, const struct lmci_scheme *like, struct lmci_scheme *scheme)
{
    const enum lmci_method usual = params->base != NULL ? LMCI_METHOD_CLASSES : LMCI_METHOD_PLANES;
    const bool fits_others = like->method != LMCI_METHOD_CLASSES || like->classes.count > 1;
    if (like->method != usual || lmci_scheme_needs_base(like) != (params->base != NULL) || !fits_others ||
        like->copies || !lmci_dtype_is_float(params->dtype))
        return false;
    *scheme = *like;
    scheme->noisy = scheme->classes.fitted = false;
    return true;
}
