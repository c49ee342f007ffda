/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plane.c - encodes and decodes one plane of bytes.
 *
 * The encoder counts a sample and estimates sizes. Noise is copied. A Huffman code spends a bit on each zero, so where
 * most bytes are zero, a bit for each byte (flags) and the nonzero bytes are tried. Planes larger than estimated and
 * than raw are stored raw.
 *
 * The decoder checks remaining input before each read, and inner sizes against the plane's, known from the block.
 */
#include "block/plane.h"

#include "block/contexts.h"
#include "block/pairs.h"
#include "kernels/kernels.h"

#define INSIDE_PAIRS (LMCI_MAX_SPARSE_DEPTH + 1) /* a depth without sparse planes and pairs */

/* ---- Encoding -------------------------------------------------------------------------------------------------- */

/* Noise has at least 7.94 bits a byte. Samples measure about 184 bits too few. */
static bool is_noise(const uint32_t counts[256], size_t counted)
{
    return 100 * (lmci_entropy_bits(counts, 256, counted) + 184) >= 794 * (uint64_t)counted;
}

unsigned lmci_plane_bits(const uint32_t counts[256], size_t counted)
{
    unsigned any = 0, every = 255;
    for (unsigned s = 0; s < 256; s++) {
        any |= counts[s] != 0 ? s : 0;
        every &= counts[s] != 0 ? s : 255;
    }
    const unsigned bits = (unsigned)__builtin_popcount(any & ~every);
    if (bits == 8)
        return 0;
    const uint64_t sampled = lmci_entropy_bits(counts, 256, counted) + (1u << bits);
    return 100 * sampled >= 99 * (uint64_t)bits * counted ? any & ~every : 0;
}

static size_t put_raw(const unsigned char *plane, size_t bytes, unsigned char *dst, size_t room)
{
    if (room < 1 + bytes)
        return 0;
    dst[0] = LMCI_PLANE_RAW;
    memcpy(dst + 1, plane, bytes);
    return 1 + bytes;
}

static size_t put_constant(unsigned char value, unsigned char *dst, size_t room)
{
    if (room < 2)
        return 0;
    dst[0] = LMCI_PLANE_CONSTANT;
    dst[1] = value;
    return 2;
}

static size_t put_bits(const unsigned char *plane, size_t bytes, unsigned mask, unsigned char *dst, size_t room)
{
    const size_t packed = (bytes * (size_t)__builtin_popcount(mask) + 7) / 8;
    if (room < 3 + packed)
        return 0;
    dst[0] = LMCI_PLANE_BITS;
    dst[1] = (unsigned char)(plane[0] & ~mask);
    dst[2] = (unsigned char)mask;
    lmci_kernels()->bits_pack(mask, plane, bytes, dst + 3);
    return 3 + packed;
}

/* Symbols counted of a long plane: more hardly improve the code. */
#define COUNTED       ((size_t)4 << 10)
#define COUNTED_LEAST ((size_t)1 << 10) /* of a short plane: half, but at least so many */
#define PIECE_COUNTED ((size_t)2 << 10) /* of each piece, to compare pieces */
#define DENSE_ONE_IN  4                 /* at the dense level, if that is more */

static size_t put_tree(const struct lmci_code *code, const unsigned char *plane, size_t bytes, unsigned char *scratch,
                       unsigned char *dst, size_t room)
{
    struct lmci_tree tree;
    lmci_tree_make(code->lengths, true, &tree);
    return lmci_code_put(code, &tree, plane, bytes, scratch, dst, room);
}

/* Encodes by a shared code. Returns 0 if there is none, or no room. */
static size_t put_shared(const struct lmci_shared_code *shared, const unsigned char *plane, size_t bytes,
                         unsigned char *scratch, unsigned char *dst, size_t room)
{
    if (shared == NULL || shared->code.counted == 0)
        return 0;
    return lmci_code_put(&shared->code, &shared->tree, plane, bytes, scratch, dst, room);
}

/* Estimated bytes as flags and nonzero bytes. *tree: at least so many in a tree, whose codes take a bit for zero. */
static size_t sparse_estimate(const uint32_t counts[256], size_t counted, size_t bytes, size_t *tree)
{
    uint32_t flags[2] = {counts[0], (uint32_t)counted - counts[0]};
    uint32_t rest[256];
    memcpy(rest, counts, sizeof rest);
    rest[0] = 0;
    const uint64_t flag_bits = lmci_entropy_bits(flags, 2, counted), bits = lmci_entropy_bits(rest, 256, flags[1]);
    *tree = (size_t)((counted + bits) * bytes / counted / 8);
    return (size_t)((flag_bits + bits) * bytes / counted / 8) + 100;
}

static size_t encode_at_depth(const unsigned char *plane, size_t bytes, unsigned depth,
                              const struct lmci_plane_coder *coder, unsigned char *dst, size_t room);

/* Writes flags and nonzero bytes as two planes, by `shared` codes (or NULL). The scratch has room for both and for
 * deeper planes. */
static size_t put_sparse(const unsigned char *plane, size_t bytes, unsigned depth, const struct lmci_plane_coder *coder,
                         const struct lmci_shared *shared, unsigned char *dst, size_t room)
{
    size_t flag_bytes = (bytes + 7) / 8;
    unsigned char *nonzero = coder->scratch;
    unsigned char *flags = nonzero + bytes + LMCI_PLANE_PAD;
    const struct lmci_plane_coder deeper = {flags + flag_bytes + LMCI_PLANE_PAD, coder->dense, false, coder->pairs};
    size_t kept = lmci_kernels()->tree_keep(plane, bytes, 1, true, flags, nonzero);
    if (room < 1 || kept == 0)
        return 0;
    dst[0] = LMCI_PLANE_SPARSE;
    size_t used = 1, written = put_shared(shared != NULL ? &shared->first : NULL, flags, flag_bytes, deeper.scratch,
                                          dst + used, room - used);
    if (written == 0)
        written = encode_at_depth(flags, flag_bytes, depth + 1, &deeper, dst + used, room - used);
    if (written == 0)
        return 0;
    used += written;
    written =
        put_shared(shared != NULL ? &shared->second : NULL, nonzero, kept, deeper.scratch, dst + used, room - used);
    if (written == 0)
        written = encode_at_depth(nonzero, kept, LMCI_MAX_SPARSE_DEPTH, &deeper, dst + used, room - used);
    return written != 0 ? used + written : 0;
}

/* Writes the number of escapes, pairs, and escapes. */
static size_t put_pairs(const unsigned char *plane, size_t bytes, const struct lmci_plane_coder *coder,
                        const struct lmci_shared *shared, unsigned char *dst, size_t room)
{
    const size_t half = (bytes + 1) / 2, head = 4;
    unsigned char *pairs = coder->scratch;
    unsigned char *escapes = pairs + half + LMCI_PLANE_PAD;
    const struct lmci_plane_coder deeper = {escapes + half + LMCI_PLANE_PAD, coder->dense, false, false};
    const size_t count = lmci_pairs_pack(plane, bytes, pairs, escapes, half);
    if (count == SIZE_MAX || room < head)
        return 0;
    dst[0] = LMCI_PLANE_PAIRS;
    for (unsigned k = 0; k < 3; k++)
        dst[1 + k] = (unsigned char)(count >> 8 * k);
    size_t first =
        put_shared(shared != NULL ? &shared->first : NULL, pairs, half, deeper.scratch, dst + head, room - head);
    if (first == 0)
        first = encode_at_depth(pairs, half, INSIDE_PAIRS, &deeper, dst + head, room - head);
    if (first == 0 || count == 0)
        return first != 0 ? head + first : 0;
    const size_t second =
        encode_at_depth(escapes, count, INSIDE_PAIRS, &deeper, dst + head + first, room - head - first);
    return second != 0 ? head + first + second : 0;
}

#define SHARP 256 /* one symbol in so many: an escape costs each a bit */

/* Whether counts include every symbol. If all are frequent, checks the whole plane. */
static bool all_seen(const unsigned char *plane, size_t bytes, const uint32_t counts[256], size_t counted)
{
    uint8_t unseen[256];
    unsigned char some[4096];
    uint32_t few = 0;
    for (unsigned s = 0; s < 256; s++) { /* without branches, for vectors */
        unseen[s] = counts[s] == 0;
        few |= counts[s] - 1 < (uint32_t)(counted / SHARP);
    }
    bool seen = counted == bytes || few == 0;
    for (size_t at = 0; counted < bytes && seen && at < bytes; at += sizeof some) {
        size_t n = bytes - at < sizeof some ? bytes - at : sizeof some;
        lmci_kernels()->rename(unseen, plane + at, n, some);
        seen = memchr(some, 1, n) == NULL;
    }
    return seen;
}

#define PAIRS_SAVE 64 /* pairs must save one part in so many */

/* Encodes a counted plane by the smallest estimate: sparse, in pairs, with a tree, or raw. */
static size_t encode_counted(const unsigned char *plane, size_t bytes, const uint32_t counts[256], size_t counted,
                             unsigned depth, const struct lmci_plane_coder *coder, unsigned char *dst, size_t room)
{
    struct lmci_code code;
    size_t sparse = SIZE_MAX, tree = 0, written = 0;
    if (depth < LMCI_MAX_SPARSE_DEPTH && counts[0] > counted / 2)
        sparse = sparse_estimate(counts, counted, bytes, &tree);
    if (sparse < tree && sparse < 1 + bytes)
        written = put_sparse(plane, bytes, depth, coder, NULL, dst, room);
    if (written != 0)
        return written;
    lmci_code_plan(counts, counted, bytes, coder->dense, all_seen(plane, bytes, counts, counted), &code);
    const size_t by_tree = lmci_code_estimate(&code, bytes), most = by_tree < 1 + bytes ? by_tree : 1 + bytes;
    if (sparse >= tree && sparse < most)
        written = put_sparse(plane, bytes, depth, coder, NULL, dst, room);
    if (written == 0 && coder->pairs && lmci_pairs_estimate(counts, counted, bytes) < most - most / PAIRS_SAVE)
        written = put_pairs(plane, bytes, coder, NULL, dst, room < most ? room : most);
    if (written == 0 && by_tree < 1 + bytes)
        written = put_tree(&code, plane, bytes, coder->scratch, dst, room < bytes ? room : bytes);
    return written != 0 ? written : put_raw(plane, bytes, dst, room);
}

/* Counts about `most` bytes of the plane. Returns how many. */
static size_t count_about(const unsigned char *plane, size_t bytes, size_t most, uint32_t counts[256])
{
    size_t counted = 0;
    lmci_kernels()->count(plane, bytes, bytes < 2 * most ? 1 : bytes / most, counts);
    for (int s = 0; s < 256; s++)
        counted += counts[s];
    return counted;
}

static size_t counted_of(size_t symbols, bool dense, size_t usual)
{
    return dense && symbols / DENSE_ONE_IN > usual ? symbols / DENSE_ONE_IN : usual;
}

/* Flags have many symbols, a long plane time for more. */
static size_t count_plane(const unsigned char *plane, size_t bytes, unsigned depth, bool dense, uint32_t counts[256])
{
    size_t usual = depth > 0 && depth != LMCI_MAX_SPARSE_DEPTH ? 3 * COUNTED
                   : bytes / 32 > COUNTED                      ? bytes / 32
                                                               : COUNTED;
    if (depth == 0 && !dense && bytes / 2 < usual)
        usual = bytes / 2 > COUNTED_LEAST ? bytes / 2 : COUNTED_LEAST;
    if (depth > 0 && !dense && bytes / 2 < usual && bytes / 2 >= COUNTED)
        usual = bytes / 2;
    return count_about(plane, bytes, counted_of(bytes, dense, usual), counts);
}

#define NOISE_COUNTED       ((size_t)2 << 10)
#define NOISE_COUNTED_SHORT ((size_t)1 << 10)
#define NOISE_SHORT         ((size_t)16 << 10)

bool lmci_plane_is_noise(const unsigned char *plane, size_t bytes)
{
    uint32_t counts[256];
    const size_t most = bytes <= NOISE_SHORT ? NOISE_COUNTED_SHORT : NOISE_COUNTED;
    return is_noise(counts, count_about(plane, bytes, most, counts));
}

static size_t encode_by_counts(const unsigned char *plane, size_t bytes, const uint32_t counts[256], size_t counted,
                               unsigned depth, const struct lmci_plane_coder *coder, unsigned char *dst, size_t room)
{
    if (counts[plane[0]] == counted && memcmp(plane, plane + 1, bytes - 1) == 0)
        return put_constant(plane[0], dst, room);
    if (is_noise(counts, counted))
        return put_raw(plane, bytes, dst, room);
    const unsigned mask = lmci_plane_bits(counts, counted);
    if (mask != 0 && lmci_kernels()->bits_varying(plane, bytes) == mask)
        return put_bits(plane, bytes, mask, dst, room);
    return encode_counted(plane, bytes, counts, counted, depth, coder, dst, room);
}

static size_t encode_at_depth(const unsigned char *plane, size_t bytes, unsigned depth,
                              const struct lmci_plane_coder *coder, unsigned char *dst, size_t room)
{
    uint32_t counts[256];
    const size_t counted = count_plane(plane, bytes, depth, coder->dense, counts);
    return encode_by_counts(plane, bytes, counts, counted, depth, coder, dst, room);
}

/* ---- Pieces ---------------------------------------------------------------------------------------------------- */

#define USUAL_PIECE_LOG2 16  /* the least; LMCI_PIECE_LOG2_LEAST at the dense level */
#define PIECES_SAVE      256 /* pieces must save one part in so many */
#define SYMBOL_BITS      6   /* in a code's table, approximately */
#define SYMBOL_NODE_BITS 4   /* in the last bytes of nodes */

/* Estimated bits of pieces `from` to `to` with one code, with its table. */
static uint64_t joint_bits(uint32_t counts[][256], size_t from, size_t to, size_t bytes)
{
    uint32_t all[256] = {0};
    uint64_t counted = 0, seen = 0;
    for (size_t i = from; i < to; i++)
        for (unsigned s = 0; s < 256; s++)
            all[s] += counts[i][s];
    for (unsigned s = 0; s < 256; s++) {
        counted += all[s];
        seen += all[s] != 0;
    }
    return lmci_expected_bits(all, counted) * bytes / counted + seen * (SYMBOL_BITS + SYMBOL_NODE_BITS);
}

/* Estimated bits if each `group` pieces share a code. */
static uint64_t grouped_bits(uint32_t counts[][256], size_t bytes, size_t piece, size_t group)
{
    const size_t pieces = (bytes + piece - 1) / piece;
    uint64_t bits = 0;
    for (size_t i = 0; i < pieces; i += group) {
        size_t end = i + group < pieces ? i + group : pieces;
        bits += joint_bits(counts, i, end, (end * piece < bytes ? end * piece : bytes) - i * piece);
    }
    return bits;
}

struct pieces {
    unsigned log2;        /* of the size; LMCI_PIECE_LOG2_MOST: one piece */
    uint64_t bits;        /* estimate; 0: too short for pieces */
    size_t counted;       /* sum of `counts` */
    uint32_t counts[256]; /* of all pieces, if `counted` */
};

static void choose_pieces(const unsigned char *plane, size_t bytes, const struct lmci_plane_coder *coder,
                          struct pieces *best)
{
    uint32_t(*counts)[256] = (void *)(((uintptr_t)coder->scratch + 3) & ~(uintptr_t)3);
    const unsigned least_log2 = coder->dense ? LMCI_PIECE_LOG2_LEAST : USUAL_PIECE_LOG2;
    const size_t piece = (size_t)1 << least_log2;
    best->log2 = LMCI_PIECE_LOG2_MOST;
    best->bits = best->counted = 0;
    if (bytes < 2 * piece)
        return;
    memset(best->counts, 0, sizeof best->counts);
    for (size_t at = 0; at < bytes; at += piece) {
        size_t some = bytes - at < piece ? bytes - at : piece;
        best->counted +=
            count_about(plane + at, some, counted_of(some, coder->dense, PIECE_COUNTED), counts[at / piece]);
        for (unsigned s = 0; s < 256; s++)
            best->counts[s] += counts[at / piece][s];
    }
    for (unsigned log2 = LMCI_PIECE_LOG2_MOST; log2 >= least_log2; log2--) {
        uint64_t bits = grouped_bits(counts, bytes, piece, (size_t)1 << (log2 - least_log2));
        if (log2 == LMCI_PIECE_LOG2_MOST) {
            best->bits = coder->dense ? bits : bits - bits / PIECES_SAVE;
        } else if (bits < best->bits) {
            best->log2 = log2;
            best->bits = bits;
        }
    }
}

static size_t put_pieces(const unsigned char *plane, size_t bytes, unsigned log2, const struct lmci_plane_coder *coder,
                         unsigned char *dst, size_t room)
{
    const size_t piece = (size_t)1 << log2;
    size_t used = 2;
    if (room < used)
        return 0;
    dst[0] = LMCI_PLANE_PIECES;
    dst[1] = (unsigned char)log2;
    for (size_t at = 0; at < bytes; at += piece) {
        size_t some = bytes - at < piece ? bytes - at : piece;
        size_t written = encode_at_depth(plane + at, some, 0, coder, dst + used, room - used);
        if (written == 0)
            return 0;
        used += written;
    }
    return used;
}

/* Estimates of pieces and contexts ignore sparse planes. Below so many bits a symbol, a sparse plane may be smaller:
 * both are tried. */
#define SPARSE_BITS_DENSE 2
#define SPARSE_ONE_IN     16 /* bits */

static bool is_uncertain(const struct pieces *pieces, size_t bytes, const struct lmci_plane_coder *coder)
{
    return pieces->bits < (coder->dense ? SPARSE_BITS_DENSE * (uint64_t)bytes : bytes / SPARSE_ONE_IN);
}

static size_t encode_pieces(const unsigned char *plane, size_t bytes, const struct pieces *pieces,
                            const struct lmci_plane_coder *coder, unsigned char *dst, size_t room)
{
    size_t by_pieces = 0;
    if ((size_t)1 << pieces->log2 < bytes)
        by_pieces = put_pieces(plane, bytes, pieces->log2, coder, dst, room);
    if (by_pieces != 0 && !is_uncertain(pieces, bytes, coder))
        return by_pieces;
    const size_t least = by_pieces != 0 ? by_pieces - 1 : room;
    const size_t whole = pieces->counted != 0
                             ? encode_by_counts(plane, bytes, pieces->counts, pieces->counted, 0, coder, dst, least)
                             : encode_at_depth(plane, bytes, 0, coder, dst, least);
    return whole != 0 || by_pieces == 0 ? whole : put_pieces(plane, bytes, pieces->log2, coder, dst, room);
}

/* ---- Contexts -------------------------------------------------------------------------------------------------- */

static size_t put_context(const unsigned char *plane, size_t bytes, const struct lmci_context *context,
                          const struct lmci_plane_coder *coder, unsigned char *dst, size_t room)
{
    uint8_t classes[256];
    unsigned char *list = coder->scratch;
    const struct lmci_plane_coder deeper = {list + bytes + LMCI_PLANE_PAD, coder->dense, false, coder->pairs};
    size_t used = 4 + context->count - 1;
    const size_t amounts = used;
    used += 3 * context->count;
    if (room < used)
        return 0;
    lmci_context_map(context, classes);
    dst[0] = LMCI_PLANE_CONTEXT;
    lmci_store16(dst + 1, (uint16_t)context->distance);
    dst[3] = (unsigned char)context->count;
    memcpy(dst + 4, context->first + 1, context->count - 1);
    for (unsigned c = 0; c < context->count; c++) {
        size_t count = lmci_kernels()->context_pick(classes, c, plane, bytes, context->distance, list);
        for (unsigned k = 0; k < 3; k++)
            dst[amounts + 3 * c + k] = (unsigned char)(count >> 8 * k);
        if (count == 0)
            continue;
        struct pieces pieces;
        choose_pieces(list, count, &deeper, &pieces);
        size_t written = encode_pieces(list, count, &pieces, &deeper, dst + used, room - used);
        if (written == 0)
            return 0;
        used += written;
    }
    return used;
}

#define HALVES_CLASSES 5
#define HALVES_LEAST   ((size_t)1 << 12) /* shorter halves do not pay */

/* One class for zero and the first half; others with about equal counts of that half's bytes. */
static void halves_classes(const uint32_t counts[256], struct lmci_context *context)
{
    uint32_t others[256];
    memcpy(others, counts, sizeof others);
    others[0] = 0;
    lmci_context_classes(others, HALVES_CLASSES - 1, context);
    memmove(context->first + 1, context->first, context->count++);
    for (unsigned c = 1; c < context->count; c++)
        context->first[c] = context->first[c] != 0 ? context->first[c] : 1;
    for (unsigned c = 1; c + 1 < context->count; c++)
        if (context->first[c + 1] <= context->first[c])
            context->count = c + 1;
}

size_t lmci_plane_encode_halves(const unsigned char *plane, size_t half, const struct lmci_plane_coder *coder,
                                unsigned char *dst, size_t room)
{
    uint32_t counts[256];
    struct lmci_context context = {.distance = half};
    if (half < HALVES_LEAST || half > UINT16_MAX)
        return encode_at_depth(plane, 2 * half, 0, coder, dst, room);
    count_about(plane, half, PIECE_COUNTED, counts);
    halves_classes(counts, &context);
    context.distance = half;
    size_t written = put_context(plane, 2 * half, &context, coder, dst, room);
    return written != 0 ? written : put_raw(plane, 2 * half, dst, room);
}

size_t lmci_plane_encode_sparse(const unsigned char *plane, size_t bytes, const struct lmci_plane_coder *coder,
                                unsigned char *dst, size_t room)
{
    return put_sparse(plane, bytes, 0, coder, NULL, dst, room);
}

size_t lmci_plane_encode_symbols(const unsigned char *symbols, size_t count, const struct lmci_plane_coder *coder,
                                 unsigned char *dst, size_t room)
{
    struct pieces pieces;
    choose_pieces(symbols, count, coder, &pieces);
    return encode_pieces(symbols, count, &pieces, coder, dst, room);
}

size_t lmci_plane_encode(const unsigned char *plane, size_t bytes, const struct lmci_plane_coder *coder,
                         unsigned char *dst, size_t room)
{
    struct lmci_context context;
    uint32_t counts[256];
    if (bytes >= LMCI_CONTEXT_LEAST && is_noise(counts, count_about(plane, bytes, PIECE_COUNTED, counts)))
        return put_raw(plane, bytes, dst, room);
    struct pieces pieces;
    choose_pieces(plane, bytes, coder, &pieces);
    if (!coder->contexts || bytes < LMCI_CONTEXT_LEAST ||
        !lmci_context_choose(plane, bytes, counts, pieces.bits, coder->dense, &context))
        return encode_pieces(plane, bytes, &pieces, coder, dst, room);
    size_t by_context = put_context(plane, bytes, &context, coder, dst, room);
    if (!is_uncertain(&pieces, bytes, coder))
        return by_context;
    size_t without = encode_pieces(plane, bytes, &pieces, coder, dst, by_context != 0 ? by_context - 1 : room);
    return without != 0 || by_context == 0 ? without : put_context(plane, bytes, &context, coder, dst, room);
}

/* ---- Shared codes ----------------------------------------------------------------------------------------------- */

#define SHARED_LEAST  ((size_t)2 << 10) /* bytes of a plane; of a shorter one a table is cheap */
#define SAMPLED_LEAST ((size_t)2 << 10) /* bytes from which a code is made */
#define FIT_COUNTED   ((size_t)1 << 10)

static void share(const unsigned char *plane, size_t bytes, size_t expected, struct lmci_shared_code *shared)
{
    uint32_t counts[256];
    shared->code.counted = 0;
    lmci_kernels()->count(plane, bytes, 1, counts);
    if (bytes < SAMPLED_LEAST || is_noise(counts, bytes))
        return;
    lmci_code_plan(counts, bytes, expected, false, false, &shared->code);
    lmci_tree_make(shared->code.lengths, true, &shared->tree);
}

/* Makes the codes of flags, unless these are sparse again, and of nonzero bytes. */
static void share_sparse(const unsigned char *plane, size_t bytes, size_t expected, unsigned char *scratch,
                         struct lmci_shared *shared)
{
    unsigned char *flags = scratch + bytes + LMCI_PLANE_PAD;
    const size_t kept = lmci_kernels()->tree_keep(plane, bytes, 1, true, flags, scratch);
    shared->kind = LMCI_PLANE_SPARSE;
    share(flags, bytes / 8, expected / 8, &shared->first);
    if (shared->first.code.counted != 0 && shared->first.code.lengths[0] == 1)
        shared->first.code.counted = 0;
    share(scratch, kept, expected * kept / bytes, &shared->second);
}

void lmci_plane_share(const unsigned char *plane, size_t bytes, size_t expected, unsigned char *scratch,
                      struct lmci_shared *shared)
{
    uint32_t counts[256];
    size_t sparse = SIZE_MAX, tree = 0;
    bool sharp = true;
    shared->kind = LMCI_PLANE_RAW;
    if (bytes < SAMPLED_LEAST)
        return;
    lmci_kernels()->count(plane, bytes, 1, counts);
    for (unsigned s = 0; s < 256; s++) {
        sharp = sharp && (counts[s] == 0 || SHARP * (uint64_t)counts[s] > bytes);
        shared->cost[s] = lmci_cost(counts[s], bytes);
    }
    if (sharp || is_noise(counts, bytes) || lmci_plane_bits(counts, bytes) != 0)
        return;
    share(plane, bytes, expected, &shared->first);
    if (counts[0] > bytes / 2)
        sparse = sparse_estimate(counts, bytes, expected, &tree);
    const size_t by_tree = lmci_code_estimate(&shared->first.code, expected);
    if (sparse < by_tree) {
        share_sparse(plane, bytes, expected, scratch, shared);
    } else if (lmci_pairs_estimate(counts, bytes, expected) < by_tree - by_tree / PAIRS_SAVE) {
        unsigned char *escapes = scratch + bytes;
        if (lmci_pairs_pack(plane, bytes, scratch, escapes, bytes) == SIZE_MAX)
            return;
        shared->kind = LMCI_PLANE_PAIRS;
        share(scratch, bytes / 2, expected / 2, &shared->first);
    } else if (by_tree < expected) {
        shared->kind = LMCI_PLANE_TREE;
    }
}

/* Whether a sample of the plane has about the distribution of the shared codes. */
static bool fits(const unsigned char *plane, size_t bytes, const struct lmci_shared *shared)
{
    uint32_t counts[256];
    uint64_t cost = 0;
    const size_t counted = count_about(plane, bytes, FIT_COUNTED, counts);
    const uint64_t own = lmci_expected_bits(counts, counted);
    for (unsigned s = 0; s < 256; s++)
        cost += (uint64_t)counts[s] * shared->cost[s];
    const uint64_t loss = own / shared->part, most = counted / shared->one_in;
    return cost / LMCI_COST_BIT <= own + (loss < most ? loss : most);
}

size_t lmci_plane_encode_shared(const unsigned char *plane, size_t bytes, const struct lmci_shared *shared,
                                const struct lmci_plane_coder *coder, unsigned char *dst, size_t room)
{
    room = room < bytes ? room : bytes;
    if (shared->kind == LMCI_PLANE_RAW || bytes < SHARED_LEAST || !fits(plane, bytes, shared))
        return 0;
    if (shared->kind == LMCI_PLANE_SPARSE)
        return put_sparse(plane, bytes, 0, coder, shared, dst, room);
    if (shared->kind == LMCI_PLANE_PAIRS)
        return put_pairs(plane, bytes, coder, shared, dst, room);
    return put_shared(&shared->first, plane, bytes, coder->scratch, dst, room);
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

static enum lmc_status get_raw(struct lmci_reader *in, size_t bytes, const unsigned char **plane, const char **message)
{
    *plane = lmci_take(in, bytes);
    return *plane != NULL ? LMC_OK : lmci_damaged(message, "a block ends inside a raw plane");
}

static enum lmc_status get_constant(struct lmci_reader *in, size_t bytes, unsigned char *own, const char **message)
{
    const unsigned char *value = lmci_take(in, 1);
    if (value == NULL)
        return lmci_damaged(message, "a block ends inside a constant plane");
    memset(own, *value, bytes);
    return LMC_OK;
}

static enum lmc_status get_tree(struct lmci_reader *in, size_t bytes, unsigned char *scratch, unsigned char *own,
                                const char **message)
{
    uint8_t lengths[LMCI_SYMBOLS];
    struct lmci_tree tree;
    if (!lmci_huffman_get_lengths(in, lengths))
        return lmci_damaged(message, "a table of code lengths is not well formed");
    const unsigned char *log2 = lmci_take(in, 1);
    if (log2 == NULL || *log2 < LMCI_SEGMENT_LOG2_LEAST || *log2 > LMCI_SEGMENT_LOG2_MOST)
        return lmci_damaged(message, "the segments of a tree plane have an impossible size");
    lmci_tree_make(lengths, false, &tree);
    const size_t segment = (size_t)1 << *log2;
    for (size_t at = 0; at < bytes; at += segment)
        if (!lmci_tree_decode(&tree, in, bytes - at < segment ? bytes - at : segment, scratch, own + at))
            return lmci_damaged(message, "the nodes of a tree plane are not well formed");
    return LMC_OK;
}

static enum lmc_status decode_at_depth(struct lmci_reader *in, size_t bytes, unsigned depth, unsigned char *scratch,
                                       unsigned char *own, const unsigned char **plane, const char **message);

static enum lmc_status get_sparse(struct lmci_reader *in, size_t bytes, unsigned depth, unsigned char *scratch,
                                  unsigned char *own, const char **message)
{
    const unsigned char *flags, *nonzero;
    size_t flag_bytes = (bytes + 7) / 8;
    unsigned char *room = scratch + flag_bytes + LMCI_PLANE_PAD;
    if (depth >= LMCI_MAX_SPARSE_DEPTH)
        return lmci_damaged(message, "sparse planes are nested too deeply");
    enum lmc_status status = decode_at_depth(in, flag_bytes, depth + 1, room, scratch, &flags, message);
    if (status != LMC_OK)
        return status;
    if (bytes % 8 != 0 && flags[flag_bytes - 1] >> (bytes % 8) != 0)
        return lmci_damaged(message, "a sparse plane has flags past its end");
    size_t kept = lmci_kernels()->tree_count(flags, bytes);
    if (kept == 0)
        return lmci_damaged(message, "a sparse plane is empty");
    status = decode_at_depth(in, kept, LMCI_MAX_SPARSE_DEPTH, room + kept + LMCI_PLANE_PAD, room, &nonzero, message);
    if (status != LMC_OK)
        return status;
    if (nonzero != room)
        memcpy(room, nonzero, kept);
    const struct lmci_side sides[2] = {{NULL, 0}, {room, 0}};
    lmci_kernels()->tree_merge(flags, bytes, sides, own);
    return LMC_OK;
}

/* Decodes pairs, and escapes into a list, from which at most as many are read as it has. */
static enum lmc_status get_pairs(struct lmci_reader *in, size_t bytes, unsigned depth, unsigned char *scratch,
                                 unsigned char *own, const char **message)
{
    const size_t half = (bytes + 1) / 2;
    const unsigned char *pairs, *escapes = NULL;
    unsigned char *list = scratch + half + LMCI_PLANE_PAD;
    const unsigned char *head = lmci_take(in, 3);
    if (depth >= INSIDE_PAIRS)
        return lmci_damaged(message, "pairs consist of pairs");
    if (head == NULL)
        return lmci_damaged(message, "a block ends inside a plane of pairs");
    const size_t count = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16;
    if (count > half)
        return lmci_damaged(message, "a plane of pairs has too many escapes");
    unsigned char *deeper = list + half + LMCI_PLANE_PAD;
    enum lmc_status status = decode_at_depth(in, half, INSIDE_PAIRS, deeper, scratch, &pairs, message);
    if (status == LMC_OK && count != 0)
        status = decode_at_depth(in, count, INSIDE_PAIRS, deeper, list, &escapes, message);
    if (status == LMC_OK && !lmci_pairs_unpack(pairs, bytes, escapes, count, own))
        status = lmci_damaged(message, "a plane of pairs is not well formed");
    return status;
}

static enum lmc_status get_bits(struct lmci_reader *in, size_t bytes, unsigned char *own, const char **message)
{
    const unsigned char *head = lmci_take(in, 2);
    if (head == NULL || head[1] == 0 || head[1] == 255 || (head[0] & head[1]) != 0)
        return lmci_damaged(message, "a plane of bits is not well formed");
    const size_t each = (size_t)__builtin_popcount(head[1]);
    const unsigned char *packed = lmci_take(in, (bytes * each + 7) / 8);
    if (packed == NULL)
        return lmci_damaged(message, "a block ends inside a plane of bits");
    if (bytes * each % 8 != 0 && packed[bytes * each / 8] >> bytes * each % 8 != 0)
        return lmci_damaged(message, "a plane of bits has bits past its end");
    lmci_kernels()->bits_unpack(head[1], head[0], packed, bytes, own);
    return LMC_OK;
}

/* Reads consecutive planes; none of these consists of pieces. */
static enum lmc_status get_pieces(struct lmci_reader *in, size_t bytes, unsigned char *scratch, unsigned char *own,
                                  const char **message)
{
    const unsigned char *log2 = lmci_take(in, 1);
    if (log2 == NULL || *log2 < LMCI_PIECE_LOG2_LEAST || *log2 > LMCI_PIECE_LOG2_MOST)
        return lmci_damaged(message, "the pieces of a plane have an impossible size");
    const size_t piece = (size_t)1 << *log2;
    for (size_t at = 0; at < bytes; at += piece) {
        const unsigned char *plane;
        size_t some = bytes - at < piece ? bytes - at : piece;
        enum lmc_status status = decode_at_depth(in, some, 0, scratch, own + at, &plane, message);
        if (status != LMC_OK)
            return status;
        if (plane != own + at)
            memcpy(own + at, plane, some);
    }
    return LMC_OK;
}

static enum lmc_status decode_at_depth(struct lmci_reader *in, size_t bytes, unsigned depth, unsigned char *scratch,
                                       unsigned char *own, const unsigned char **plane, const char **message)
{
    const unsigned char *kind = lmci_take(in, 1);
    *plane = own;
    if (kind == NULL)
        return lmci_damaged(message, "a block ends before its last plane");
    switch (*kind) {
    case LMCI_PLANE_RAW:
        return get_raw(in, bytes, plane, message);
    case LMCI_PLANE_CONSTANT:
        return get_constant(in, bytes, own, message);
    case LMCI_PLANE_TREE:
        return get_tree(in, bytes, scratch, own, message);
    case LMCI_PLANE_SPARSE:
        return get_sparse(in, bytes, depth, scratch, own, message);
    case LMCI_PLANE_BITS:
        return get_bits(in, bytes, own, message);
    case LMCI_PLANE_PAIRS:
        return get_pairs(in, bytes, depth, scratch, own, message);
    default:
        return lmci_unsupported(message, "a block has a kind of plane unknown to this version");
    }
}

static enum lmc_status decode_pieces(struct lmci_reader *in, size_t bytes, unsigned char *scratch, unsigned char *own,
                                     const unsigned char **plane, const char **message)
{
    if (lmci_left(in) == 0 || *in->at != LMCI_PLANE_PIECES)
        return decode_at_depth(in, bytes, 0, scratch, own, plane, message);
    *plane = own;
    (void)lmci_take(in, 1);
    return get_pieces(in, bytes, scratch, own, message);
}

static enum lmc_status get_context(struct lmci_reader *in, size_t bytes, struct lmci_context *context, size_t *distance,
                                   size_t amounts[LMCI_CONTEXT_CLASSES], const char **message)
{
    size_t all = 0;
    const unsigned char *head = lmci_take(in, 3);
    if (head == NULL || head[2] == 0 || head[2] > LMCI_CONTEXT_CLASSES || lmci_load16(head) < LMCI_CONTEXT_DISTANCE)
        return lmci_damaged(message, "a plane of contexts is not well formed");
    *distance = lmci_load16(head);
    *context = (struct lmci_context){.count = head[2]};
    const unsigned char *first = lmci_take(in, context->count - 1);
    const unsigned char *said = lmci_take(in, 3 * context->count);
    if (first == NULL || said == NULL)
        return lmci_damaged(message, "a block ends inside a plane of contexts");
    memcpy(context->first + 1, first, context->count - 1);
    for (unsigned c = 0; c < context->count; c++) {
        amounts[c] = said[3 * c] | (size_t)said[3 * c + 1] << 8 | (size_t)said[3 * c + 2] << 16;
        if ((c > 0 && context->first[c] <= context->first[c - 1]) || amounts[c] > bytes - all)
            return lmci_damaged(message, "a plane of contexts is not well formed");
        all += amounts[c];
    }
    return all == bytes ? LMC_OK : lmci_damaged(message, "a plane of contexts is not well formed");
}

/* Reads the lists of contexts, one after another: each has room for all bytes of the plane. */
static enum lmc_status get_lists(struct lmci_reader *in, size_t bytes, unsigned char *scratch, unsigned char *own,
                                 const char **message)
{
    struct lmci_context context;
    size_t distance;
    size_t amounts[LMCI_CONTEXT_CLASSES];
    uint8_t classes[256];
    const unsigned char *lists[LMCI_CONTEXT_CLASSES];
    unsigned char *at = scratch;
    enum lmc_status status = get_context(in, bytes, &context, &distance, amounts, message);
    for (unsigned c = 0; status == LMC_OK && c < context.count; at += amounts[c++]) {
        const unsigned char *plane = at;
        lists[c] = at;
        if (amounts[c] != 0)
            status = decode_pieces(in, amounts[c], scratch + 2 * (bytes + LMCI_PLANE_PAD), at, &plane, message);
        if (status == LMC_OK && plane != at)
            memcpy(at, plane, amounts[c]);
    }
    if (status != LMC_OK)
        return status;
    memset(at, 0, bytes + LMCI_PLANE_PAD); /* read only if the plane is damaged */
    lmci_context_map(&context, classes);
    lmci_kernels()->context_join(classes, context.count, bytes, distance, lists, own);
    at = scratch;
    for (unsigned c = 0; c < context.count; c++)
        if (lists[c] != (at += amounts[c]))
            return lmci_damaged(message, "the lists of a plane of contexts do not end with its bytes");
    return LMC_OK;
}

enum lmc_status lmci_plane_decode(struct lmci_reader *in, size_t bytes, unsigned char *scratch, unsigned char *own,
                                  const unsigned char **plane, const char **message)
{
    if (lmci_left(in) == 0 || *in->at != LMCI_PLANE_CONTEXT)
        return decode_pieces(in, bytes, scratch, own, plane, message);
    *plane = own;
    (void)lmci_take(in, 1);
    return get_lists(in, bytes, scratch, own, message);
}
