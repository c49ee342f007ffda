/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plane.c - codes one plane of bytes.
 *
 * The encoder counts a sample of a long plane: mantissas are mostly noise, and noise is copied at the speed of memory.
 * Where more than half of a plane is zero, a Huffman code spends a whole bit on each zero, so flags with a code of
 * their own are tried. Sizes are estimated from counts; a plane that outgrows its estimate, and itself, is stored raw.
 *
 * The decoder takes nothing from its input without asking how much is left; a plane's size comes from the block, and
 * the sizes inside a plane are checked against it.
 */
#include "plane.h"

#include "kernels.h"

/* ---- Encoding -------------------------------------------------------------------------------------------------- */

/* At least 7.94 bits of entropy a byte: nothing to gain. Any sample of noise seems to have some 184 bits less. */
static bool is_noise(const uint32_t counts[256], size_t counted)
{
    return 100 * (lmci_entropy_bits(counts, 256, counted) + 184) >= 794 * (uint64_t)counted;
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

struct tree_plan {
    uint8_t lengths[LMCI_SYMBOLS];
    unsigned segment_log2;
    size_t bytes; /* an estimate */
};

/* Symbols that are counted of a long plane: a code for more is hardly better, and counting all takes long. */
#define COUNTED       ((size_t)4 << 10)
#define PIECE_COUNTED ((size_t)2 << 10) /* of each piece, to see whether they differ */
#define DENSE_ONE_IN  4                 /* at the dense level, unless that is less */

/* Lists of a segment should stay in the first-level cache, but each node of each costs half a byte. */
static unsigned segment_log2(size_t bytes, size_t coded_bytes, unsigned leaves)
{
    unsigned log2 = LMCI_SEGMENT_LOG2_USUAL;
    while (log2 < LMCI_SEGMENT_LOG2_MOST && (bytes >> log2) * leaves * 500 > coded_bytes)
        log2++;
    return log2;
}

/* `counts` add up to `counted` of the plane's bytes; without a count, and not all counted, a byte is escaped. */
static void plan_tree(const uint32_t counts[256], size_t counted, size_t bytes, struct tree_plan *plan)
{
    uint32_t all[LMCI_SYMBOLS] = {0};
    unsigned char written[LMCI_LENGTHS_BOUND];
    uint64_t bits = 0;
    unsigned leaves = 0;
    uint32_t rare = 0;
    memcpy(all, counts, 256 * sizeof *counts);
    for (int s = 0; s < 256; s++) {
        if ((uint64_t)counts[s] << (LMCI_ENCODER_BITS + 1) <=
            counted) { /* a code would be too long: it isn't worth one */
            rare += counts[s];
            all[s] = 0;
        }
        leaves += all[s] != 0;
    }
    all[LMCI_ESCAPE] = rare + ((counted < bytes && leaves < 256) || leaves < 2);
    lmci_huffman_lengths(all, plan->lengths);
    for (int s = 0; s < LMCI_SYMBOLS; s++)
        bits += (uint64_t)all[s] * plan->lengths[s];
    bits += 8 * (uint64_t)rare;
    size_t coded = (size_t)(bits * bytes / counted / 8);
    plan->segment_log2 = segment_log2(bytes, coded, leaves);
    plan->bytes =
        2 + lmci_huffman_put_lengths(plan->lengths, written) + coded + ((bytes >> plan->segment_log2) + 1) * leaves / 2;
}

/* Kind, code lengths, the segments' size, the segments. */
static size_t put_tree(const struct tree_plan *plan, const unsigned char *plane, size_t bytes, unsigned char *scratch,
                       unsigned char *dst, size_t room)
{
    struct lmci_tree tree;
    if (room < 2 + LMCI_LENGTHS_BOUND)
        return 0;
    lmci_tree_make(plan->lengths, true, &tree);
    dst[0] = LMCI_PLANE_TREE;
    size_t used = 1 + lmci_huffman_put_lengths(plan->lengths, dst + 1);
    dst[used++] = (unsigned char)plan->segment_log2;
    const size_t segment = (size_t)1 << plan->segment_log2;
    for (size_t at = 0; at < bytes; at += segment) {
        size_t count = bytes - at < segment ? bytes - at : segment;
        size_t written = lmci_tree_encode(&tree, plane + at, count, scratch, dst + used, room - used);
        if (!written)
            return 0;
        used += written;
    }
    return used;
}

/* An estimate of a sparse plane's size: its flags and its nonzero bytes at their entropies, and two tables. */
static size_t sparse_estimate(const uint32_t counts[256], size_t counted, size_t bytes)
{
    uint32_t flags[2] = {counts[0], (uint32_t)counted - counts[0]};
    uint32_t rest[256];
    memcpy(rest, counts, sizeof rest);
    rest[0] = 0;
    uint64_t bits = lmci_entropy_bits(flags, 2, counted) + lmci_entropy_bits(rest, 256, flags[1]);
    return (size_t)(bits * bytes / counted / 8) + 200;
}

static size_t encode_at_depth(const unsigned char *plane, size_t bytes, unsigned depth,
                              const struct lmci_plane_coder *coder, unsigned char *dst, size_t room);

/* Kind, then the flags and the nonzero bytes as planes. Scratch holds both; deeper planes use what is behind. */
static size_t put_sparse(const unsigned char *plane, size_t bytes, unsigned depth, const struct lmci_plane_coder *coder,
                         unsigned char *dst, size_t room)
{
    size_t flag_bytes = (bytes + 7) / 8;
    unsigned char *nonzero = coder->scratch;
    unsigned char *flags = nonzero + bytes + LMCI_PLANE_PAD;
    const struct lmci_plane_coder deeper = {flags + flag_bytes + LMCI_PLANE_PAD, coder->dense};
    memcpy(nonzero, plane, bytes);
    size_t kept = lmci_kernels()->tree_keep(nonzero, bytes, 1, true, flags);
    if (room < 1 || kept == 0)
        return 0;
    dst[0] = LMCI_PLANE_SPARSE;
    size_t first = encode_at_depth(flags, flag_bytes, depth + 1, &deeper, dst + 1, room - 1);
    if (!first)
        return 0;
    size_t second = encode_at_depth(nonzero, kept, LMCI_MAX_SPARSE_DEPTH, &deeper, dst + 1 + first, room - 1 - first);
    return second ? 1 + first + second : 0;
}

static size_t encode_counted(const unsigned char *plane, size_t bytes, const uint32_t counts[256], size_t counted,
                             unsigned depth, const struct lmci_plane_coder *coder, unsigned char *dst, size_t room)
{
    struct tree_plan plan;
    plan_tree(counts, counted, bytes, &plan);
    size_t most = plan.bytes < 1 + bytes ? plan.bytes : 1 + bytes;
    size_t written = 0;
    if (depth < LMCI_MAX_SPARSE_DEPTH && counts[0] > counted / 2 && sparse_estimate(counts, counted, bytes) < most)
        written = put_sparse(plane, bytes, depth, coder, dst, room);
    if (!written && plan.bytes < 1 + bytes)
        written = put_tree(&plan, plane, bytes, coder->scratch, dst, room < bytes ? room : bytes);
    return written ? written : put_raw(plane, bytes, dst, room);
}

/* Counts about `most` symbols; returns how many those were. */
static size_t count_about(const unsigned char *plane, size_t bytes, size_t most, uint32_t counts[256])
{
    size_t counted = 0;
    lmci_kernels()->count(plane, bytes, bytes < 2 * most ? 1 : bytes / most, counts);
    for (int s = 0; s < 256; s++)
        counted += counts[s];
    return counted;
}

/* How many of so many symbols to count, when usually it is `usual`. */
static size_t counted_of(size_t symbols, bool dense, size_t usual)
{
    return dense && symbols / DENSE_ONE_IN > usual ? symbols / DENSE_ONE_IN : usual;
}

/* Flags have many symbols. */
static size_t count_plane(const unsigned char *plane, size_t bytes, unsigned depth, bool dense, uint32_t counts[256])
{
    return count_about(plane, bytes, counted_of(bytes, dense, depth > 0 ? 3 * COUNTED : COUNTED), counts);
}

#define NOISE_COUNTED ((size_t)2 << 10) /* enough to tell noise */

bool lmci_plane_is_noise(const unsigned char *plane, size_t bytes)
{
    uint32_t counts[256];
    return is_noise(counts, count_about(plane, bytes, NOISE_COUNTED, counts));
}

static size_t encode_at_depth(const unsigned char *plane, size_t bytes, unsigned depth,
                              const struct lmci_plane_coder *coder, unsigned char *dst, size_t room)
{
    uint32_t counts[256];
    size_t counted = count_plane(plane, bytes, depth, coder->dense, counts);
    if (counts[plane[0]] == counted && memcmp(plane, plane + 1, bytes - 1) == 0)
        return put_constant(plane[0], dst, room);
    if (is_noise(counts, counted))
        return put_raw(plane, bytes, dst, room);
    return encode_counted(plane, bytes, counts, counted, depth, coder, dst, room);
}

/* ---- Pieces ---------------------------------------------------------------------------------------------------- */

#define MOST_PIECES      16
#define PIECES_SAVE      256 /* one part in so many, or else one code serves all */
#define SYMBOL_BITS      6   /* what a symbol of a code takes in its table, about ... */
#define SYMBOL_NODE_BITS 4   /* ... and in the last bytes of nodes */

/* The bits of pieces `from` to `to` - 1 with one code. */
static uint64_t joint_bits(uint32_t counts[][256], size_t from, size_t to, size_t bytes)
{
    uint32_t all[256] = {0};
    uint64_t counted = 0;
    uint64_t seen = 0;
    for (size_t i = from; i < to; i++)
        for (unsigned s = 0; s < 256; s++)
            all[s] += counts[i][s];
    for (unsigned s = 0; s < 256; s++) {
        counted += all[s];
        seen += all[s] != 0;
    }
    return lmci_expected_bits(all, counted) * bytes / counted + seen * (SYMBOL_BITS + SYMBOL_NODE_BITS);
}

/* The size of pieces, as a power of two, with which a plane is smallest: its own, or more, if one code is best. */
static unsigned choose_pieces(const unsigned char *plane, size_t bytes, bool dense)
{
    uint32_t counts[MOST_PIECES][256];
    const size_t piece = (size_t)1 << LMCI_PIECE_LOG2_LEAST;
    const size_t pieces = (bytes + piece - 1) / piece;
    uint64_t least = 0;
    unsigned best = LMCI_PIECE_LOG2_MOST;
    for (size_t i = 0; i < pieces; i++) {
        size_t some = bytes - i * piece < piece ? bytes - i * piece : piece;
        count_about(plane + i * piece, some, counted_of(some, dense, PIECE_COUNTED), counts[i]);
    }
    for (unsigned log2 = LMCI_PIECE_LOG2_MOST; log2 >= LMCI_PIECE_LOG2_LEAST; log2--) {
        const size_t group = (size_t)1 << (log2 - LMCI_PIECE_LOG2_LEAST);
        uint64_t bits = 0;
        for (size_t i = 0; i < pieces; i += group) {
            size_t end = i + group < pieces ? i + group : pieces;
            size_t last = end * piece < bytes ? end * piece : bytes;
            bits += joint_bits(counts, i, end, last - i * piece);
        }
        if (log2 == LMCI_PIECE_LOG2_MOST) {
            least = dense ? bits : bits - bits / PIECES_SAVE;
        } else if (bits < least) {
            least = bits;
            best = log2;
        }
    }
    return best;
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
        if (!written)
            return 0;
        used += written;
    }
    return used;
}

size_t lmci_plane_encode(const unsigned char *plane, size_t bytes, const struct lmci_plane_coder *coder,
                         unsigned char *dst, size_t room)
{
    if (bytes >= (size_t)2 << LMCI_PIECE_LOG2_LEAST) {
        unsigned log2 = choose_pieces(plane, bytes, coder->dense);
        if ((size_t)1 << log2 < bytes)
            return put_pieces(plane, bytes, log2, coder, dst, room);
    }
    return encode_at_depth(plane, bytes, 0, coder, dst, room);
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

static enum lmc_status get_raw(struct lmci_reader *in, size_t bytes, const unsigned char **plane, const char **message)
{
    *plane = lmci_take(in, bytes);
    return *plane ? LMC_OK : lmci_damaged(message, "a block ends inside a raw plane");
}

static enum lmc_status get_constant(struct lmci_reader *in, size_t bytes, unsigned char *own, const char **message)
{
    const unsigned char *value = lmci_take(in, 1);
    if (!value)
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
    if (!log2 || *log2 < LMCI_SEGMENT_LOG2_LEAST || *log2 > LMCI_SEGMENT_LOG2_MOST)
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
    const unsigned char *flags;
    const unsigned char *nonzero;
    size_t flag_bytes = (bytes + 7) / 8;
    unsigned char *room = scratch + flag_bytes + LMCI_PLANE_PAD;
    if (depth >= LMCI_MAX_SPARSE_DEPTH)
        return lmci_damaged(message, "sparse planes are nested too deeply");
    enum lmc_status status = decode_at_depth(in, flag_bytes, depth + 1, room, scratch, &flags, message);
    if (status != LMC_OK)
        return status;
    if (bytes % 8 && flags[flag_bytes - 1] >> (bytes % 8))
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

/* Planes one behind the other, each of which is no plane of pieces. */
static enum lmc_status get_pieces(struct lmci_reader *in, size_t bytes, unsigned char *scratch, unsigned char *own,
                                  const char **message)
{
    const unsigned char *log2 = lmci_take(in, 1);
    if (!log2 || *log2 < LMCI_PIECE_LOG2_LEAST || *log2 > LMCI_PIECE_LOG2_MOST)
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
    if (!kind)
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
    default:
        *message = "a block has a kind of plane that this version does not know";
        return LMC_UNSUPPORTED;
    }
}

enum lmc_status lmci_plane_decode(struct lmci_reader *in, size_t bytes, unsigned char *scratch, unsigned char *own,
                                  const unsigned char **plane, const char **message)
{
    if (lmci_left(in) == 0 || *in->at != LMCI_PLANE_PIECES)
        return decode_at_depth(in, bytes, 0, scratch, own, plane, message);
    *plane = own;
    (void)lmci_take(in, 1);
    return get_pieces(in, bytes, scratch, own, message);
}
