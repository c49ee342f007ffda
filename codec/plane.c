/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plane.c - codes one plane of bytes.
 *
 * The encoder looks at a small sample first: mantissas are mostly noise, and noise is copied at the speed of memory
 * without being counted. Where more than half of a plane is zero, a Huffman code spends a whole bit on each zero, so
 * flags with a code of their own are tried. All sizes are known from counts before a bit is written.
 *
 * The decoder takes nothing from its input without asking how much is left; a plane's size comes from the block, and
 * the sizes inside a plane are checked against it.
 */
#include "plane.h"

#include "huffman.h"

/* ---- Encoding -------------------------------------------------------------------------------------------------- */

#define SAMPLE_PIECES      ((size_t)8)
#define SAMPLE_PIECE_BYTES ((size_t)512)

/* Whether a sample of the plane has at least 7.9 bits of entropy a byte: nothing to gain. */
static bool looks_like_noise(const unsigned char *plane, size_t bytes)
{
    uint32_t counts[256] = {0};
    size_t stride = bytes / SAMPLE_PIECES;
    if (stride < SAMPLE_PIECE_BYTES)
        return false;
    for (size_t piece = 0; piece < SAMPLE_PIECES; piece++)
        for (size_t i = 0; i < SAMPLE_PIECE_BYTES; i++)
            counts[plane[piece * stride + i]]++;
    uint64_t total = SAMPLE_PIECES * SAMPLE_PIECE_BYTES;
    return 10 * lmci_entropy_bits(counts, total) >= 79 * total;
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

struct huffman_plan {
    uint8_t lengths[256];
    size_t bytes; /* the most that the coded plane takes */
};

static void plan_huffman(const uint32_t counts[256], struct huffman_plan *plan)
{
    unsigned char written[LMCI_LENGTHS_BOUND];
    uint64_t bits = 0;
    lmci_huffman_lengths(counts, plan->lengths);
    for (int s = 0; s < 256; s++)
        bits += (uint64_t)counts[s] * plan->lengths[s];
    plan->bytes =
        1 + lmci_huffman_put_lengths(plan->lengths, written) + 4 * LMCI_STREAMS + (size_t)(bits / 8) + LMCI_STREAMS;
}

/* Kind, code lengths, the sizes of the streams, the streams. Stream k has symbols from n*k/4 to n*(k+1)/4. */
static size_t put_huffman(const struct huffman_plan *plan, const unsigned char *plane, size_t bytes, unsigned char *dst,
                          size_t room)
{
    uint32_t codes[256];
    if (room < 1 + LMCI_LENGTHS_BOUND + 4 * LMCI_STREAMS)
        return 0;
    lmci_huffman_codes(plan->lengths, codes);
    dst[0] = LMCI_PLANE_HUFFMAN;
    unsigned char *sizes = dst + 1 + lmci_huffman_put_lengths(plan->lengths, dst + 1);
    unsigned char *at = sizes + 4 * LMCI_STREAMS;
    for (size_t k = 0; k < LMCI_STREAMS; k++) {
        size_t first = bytes * k / LMCI_STREAMS;
        size_t count = bytes * (k + 1) / LMCI_STREAMS - first;
        size_t written = lmci_kernels()->encode(codes, plane + first, count, at, room - (size_t)(at - dst));
        if (written == SIZE_MAX)
            return 0;
        lmci_store32(sizes + 4 * k, (uint32_t)written);
        at += written;
    }
    return (size_t)(at - dst);
}

/* An estimate of a sparse plane's size: its flags and its nonzero bytes at their entropies, and two tables. */
static size_t sparse_estimate(const uint32_t counts[256], size_t bytes)
{
    uint32_t flags[256] = {counts[0], (uint32_t)bytes - counts[0]};
    uint32_t rest[256];
    memcpy(rest, counts, sizeof rest);
    rest[0] = 0;
    return (size_t)((lmci_entropy_bits(flags, bytes) + lmci_entropy_bits(rest, flags[1])) / 8) + 200;
}

static size_t encode_at_depth(const unsigned char *plane, size_t bytes, unsigned depth, unsigned char *scratch,
                              unsigned char *dst, size_t room);

/* Kind, then the flags and the nonzero bytes as planes. `scratch` holds both; deeper planes use what is behind. */
static size_t put_sparse(const unsigned char *plane, size_t bytes, unsigned depth, unsigned char *scratch,
                         unsigned char *dst, size_t room)
{
    size_t flag_bytes = (bytes + 7) / 8;
    unsigned char *flags = scratch;
    unsigned char *nonzero = flags + flag_bytes;
    size_t kept = lmci_kernels()->sparse_split(plane, bytes, flags, nonzero);
    unsigned char *deeper = nonzero + kept;
    if (room < 1)
        return 0;
    dst[0] = LMCI_PLANE_SPARSE;
    size_t first = encode_at_depth(flags, flag_bytes, depth + 1, deeper, dst + 1, room - 1);
    if (!first)
        return 0;
    size_t second = encode_at_depth(nonzero, kept, LMCI_MAX_SPARSE_DEPTH, deeper, dst + 1 + first, room - 1 - first);
    return second ? 1 + first + second : 0;
}

static size_t encode_counted(const unsigned char *plane, size_t bytes, const uint32_t counts[256], unsigned depth,
                             unsigned char *scratch, unsigned char *dst, size_t room)
{
    struct huffman_plan plan;
    plan_huffman(counts, &plan);
    size_t most = plan.bytes < 1 + bytes ? plan.bytes : 1 + bytes;
    if (depth < LMCI_MAX_SPARSE_DEPTH && counts[0] > bytes / 2 && sparse_estimate(counts, bytes) < most) {
        size_t written = put_sparse(plane, bytes, depth, scratch, dst, room);
        if (written && written < most)
            return written;
    }
    if (plan.bytes < 1 + bytes) {
        size_t written = put_huffman(&plan, plane, bytes, dst, room);
        if (written)
            return written;
    }
    return put_raw(plane, bytes, dst, room);
}

static size_t encode_at_depth(const unsigned char *plane, size_t bytes, unsigned depth, unsigned char *scratch,
                              unsigned char *dst, size_t room)
{
    uint32_t counts[256];
    if (plane[0] == plane[bytes - 1] && memcmp(plane, plane + 1, bytes - 1) == 0)
        return put_constant(plane[0], dst, room);
    if (looks_like_noise(plane, bytes))
        return put_raw(plane, bytes, dst, room);
    lmci_kernels()->count(plane, bytes, counts);
    return encode_counted(plane, bytes, counts, depth, scratch, dst, room);
}

size_t lmci_plane_encode(const unsigned char *plane, size_t bytes, unsigned char *scratch, unsigned char *dst,
                         size_t room)
{
    return encode_at_depth(plane, bytes, 0, scratch, dst, room);
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

static enum lmc_status damaged(const char **message, const char *sentence)
{
    *message = sentence;
    return LMC_DAMAGED;
}

static enum lmc_status get_raw(struct lmci_reader *in, size_t bytes, const unsigned char **plane, const char **message)
{
    *plane = lmci_take(in, bytes);
    return *plane ? LMC_OK : damaged(message, "a block ends inside a raw plane");
}

static enum lmc_status get_constant(struct lmci_reader *in, size_t bytes, unsigned char *own, const char **message)
{
    const unsigned char *value = lmci_take(in, 1);
    if (!value)
        return damaged(message, "a block ends inside a constant plane");
    memset(own, *value, bytes);
    return LMC_OK;
}

/* Cuts the streams out of the input; false if they don't fit there. */
static bool get_streams(struct lmci_reader *in, size_t bytes, unsigned char *own,
                        struct lmci_stream streams[LMCI_STREAMS], size_t *coded_bytes)
{
    const unsigned char *sizes = lmci_take(in, 4 * LMCI_STREAMS);
    *coded_bytes = 0;
    for (size_t k = 0; sizes && k < LMCI_STREAMS; k++) {
        size_t stream_bytes = lmci_load32(sizes + 4 * k);
        streams[k].begin = lmci_take(in, stream_bytes);
        streams[k].bytes = stream_bytes;
        streams[k].out = own + bytes * k / LMCI_STREAMS;
        streams[k].out_end = own + bytes * (k + 1) / LMCI_STREAMS;
        *coded_bytes += stream_bytes;
        if (!streams[k].begin)
            return false;
    }
    return sizes != NULL;
}

static enum lmc_status get_huffman(struct lmci_reader *in, size_t bytes, unsigned char *own, const char **message)
{
    uint8_t lengths[256];
    struct lmci_stream streams[LMCI_STREAMS];
    struct lmci_decode_table table;
    size_t coded_bytes;
    if (!lmci_huffman_get_lengths(in, lengths))
        return damaged(message, "a table of code lengths is not well formed");
    if (!get_streams(in, bytes, own, streams, &coded_bytes))
        return damaged(message, "a block ends inside a Huffman plane");
    /* Looking up two symbols at once pays while two codes usually fit the table: below about 5.5 bits each. */
    bool want_two = 16 * coded_bytes < 11 * bytes;
    lmci_huffman_table(lengths, want_two, &table);
    if (!lmci_kernels()->decode(&table, streams))
        return damaged(message, "a Huffman stream does not end where it should");
    return LMC_OK;
}

static enum lmc_status decode_at_depth(struct lmci_reader *in, size_t bytes, unsigned depth, unsigned char *scratch,
                                       unsigned char *own, const unsigned char **plane, const char **message);

static size_t count_flags(const unsigned char *flags, size_t bytes)
{
    size_t set = 0;
    for (size_t i = 0; i < (bytes + 7) / 8; i++)
        set += (size_t)__builtin_popcount(flags[i]);
    return set;
}

static enum lmc_status get_sparse(struct lmci_reader *in, size_t bytes, unsigned depth, unsigned char *scratch,
                                  unsigned char *own, const char **message)
{
    const unsigned char *flags;
    const unsigned char *nonzero;
    size_t flag_bytes = (bytes + 7) / 8;
    if (depth >= LMCI_MAX_SPARSE_DEPTH)
        return damaged(message, "sparse planes are nested too deeply");
    enum lmc_status status = decode_at_depth(in, flag_bytes, depth + 1, scratch + flag_bytes, scratch, &flags, message);
    if (status != LMC_OK)
        return status;
    if (bytes % 8 && flags[flag_bytes - 1] >> (bytes % 8))
        return damaged(message, "a sparse plane has flags past its end");
    size_t kept = count_flags(flags, bytes);
    if (kept == 0)
        return damaged(message, "a sparse plane is empty");
    unsigned char *room = scratch + flag_bytes;
    status = decode_at_depth(in, kept, LMCI_MAX_SPARSE_DEPTH, room + kept, room, &nonzero, message);
    if (status != LMC_OK)
        return status;
    lmci_kernels()->sparse_merge(flags, nonzero, kept, own, bytes);
    return LMC_OK;
}

static enum lmc_status decode_at_depth(struct lmci_reader *in, size_t bytes, unsigned depth, unsigned char *scratch,
                                       unsigned char *own, const unsigned char **plane, const char **message)
{
    const unsigned char *kind = lmci_take(in, 1);
    *plane = own;
    if (!kind)
        return damaged(message, "a block ends before its last plane");
    switch (*kind) {
    case LMCI_PLANE_RAW:
        return get_raw(in, bytes, plane, message);
    case LMCI_PLANE_CONSTANT:
        return get_constant(in, bytes, own, message);
    case LMCI_PLANE_HUFFMAN:
        return get_huffman(in, bytes, own, message);
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
    return decode_at_depth(in, bytes, 0, scratch, own, plane, message);
}
