/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * huffman_impl.h - counting, encoding and decoding of Huffman bit streams.
 *
 * Codes lie lowest bit first, so that a decoder masks the low bits of a word and shifts them out. A plane is cut into
 * four streams whose decoding the processor overlaps; each keeps a 64-bit word whose top bit marks how far it was
 * shifted: the leading zeros are the bits used, and no counter is needed. The overlapped loop runs as many rounds as
 * are safe for all streams; a careful loop, which never reads past a stream's end, does the rest of each.
 */
#define MARK (UINT64_C(1) << 63)

/* Four tables, for neighbouring symbols are often equal and would wait for each other's store. */
static void count_symbols(const unsigned char *symbols, size_t count, uint32_t counts[256])
{
    uint32_t part[4][256] = {{0}};
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t x = lmci_load64(symbols + i);
        part[0][x & 255]++;
        part[1][x >> 8 & 255]++;
        part[2][x >> 16 & 255]++;
        part[3][x >> 24 & 255]++;
        part[0][x >> 32 & 255]++;
        part[1][x >> 40 & 255]++;
        part[2][x >> 48 & 255]++;
        part[3][x >> 56]++;
    }
    for (; i < count; i++)
        part[0][symbols[i]]++;
    for (i = 0; i < 256; i++)
        counts[i] = part[0][i] + part[1][i] + part[2][i] + part[3][i];
}

struct bit_writer {
    uint64_t bits;
    unsigned used;
    unsigned char *at;
};

static inline void put_code(struct bit_writer *out, uint32_t code)
{
    out->bits |= (uint64_t)(code >> 8) << out->used;
    out->used += code & 255;
}

static inline void flush_whole_bytes(struct bit_writer *out)
{
    lmci_store64(out->at, out->bits);
    out->at += out->used >> 3;
    out->bits >>= out->used & 56;
    out->used &= 7;
}

/* Byte by byte, for the end of a buffer. */
static bool flush_careful(struct bit_writer *out, const unsigned char *end, unsigned keep_below)
{
    while (out->used > keep_below) {
        if (out->at == end)
            return false;
        *out->at++ = (unsigned char)out->bits;
        out->bits >>= 8;
        out->used = out->used < 8 ? 0 : out->used - 8;
    }
    return true;
}

/* The room is checked although the caller computed it, as the symbols may be memory that someone writes to. */
static size_t encode_stream(const uint32_t codes[256], const unsigned char *symbols, size_t count, unsigned char *dst,
                            size_t dst_bytes)
{
    struct bit_writer out = {0, 0, dst};
    const unsigned char *end = dst + dst_bytes;
    size_t i = 0;
    /* 7 bits left over and 5 codes of at most 11 fit 64. */
    static_assert(7 + 5 * LMCI_ENCODER_BITS <= 64, "five codes fit a flush");
    for (; i + 5 <= count && end - out.at >= 8; i += 5) {
        put_code(&out, codes[symbols[i]]);
        put_code(&out, codes[symbols[i + 1]]);
        put_code(&out, codes[symbols[i + 2]]);
        put_code(&out, codes[symbols[i + 3]]);
        put_code(&out, codes[symbols[i + 4]]);
        flush_whole_bytes(&out);
    }
    for (; i < count; i++) {
        put_code(&out, codes[symbols[i]]);
        if (!flush_careful(&out, end, 7))
            return SIZE_MAX;
    }
    return flush_careful(&out, end, 0) ? (size_t)(out.at - dst) : SIZE_MAX;
}

/* Where a stream's decoding is. `at` lags until the next refill: bits used since then are the zeros above the mark. */
struct bit_reader {
    uint64_t bits;
    const unsigned char *at;
    unsigned char *out;
};

static inline void refill(struct bit_reader *in)
{
    unsigned used = (unsigned)__builtin_clzll(in->bits);
    in->at += used >> 3;
    in->bits = (lmci_load64(in->at) | MARK) >> (used & 7);
}

static inline void decode_one(struct bit_reader *in, const uint16_t *table, uint64_t mask)
{
    uint32_t entry = table[in->bits & mask];
    *in->out++ = (unsigned char)(entry >> 8);
    in->bits >>= entry & 63;
}

static inline void decode_two(struct bit_reader *in, const uint32_t *table, uint64_t mask)
{
    uint32_t entry = table[in->bits & mask];
    lmci_store16(in->out, (uint16_t)(entry >> 16));
    in->out += entry >> 8 & 255;
    in->bits >>= entry & 63;
}

static uint64_t load_up_to_8(const unsigned char *from, size_t left)
{
    uint64_t bits = 0;
    if (left >= 8)
        return lmci_load64(from);
    memcpy(&bits, from, left);
    return bits;
}

/* Decodes what is left of a stream from bit `position`; false unless that uses it up, but for zero bits in a byte. */
static bool decode_rest(const struct lmci_decode_table *table, const struct lmci_stream *stream, size_t position,
                        unsigned char *out)
{
    const uint64_t mask = ((uint64_t)1 << table->bits) - 1;
    while (out < stream->out_end) {
        size_t byte = position >> 3;
        if (byte > stream->bytes)
            return false;
        uint64_t bits = load_up_to_8(stream->begin + byte, stream->bytes - byte) >> (position & 7);
        for (int k = 0; k < 4 && out < stream->out_end; k++) {
            uint32_t entry = table->one[bits & mask];
            *out++ = (unsigned char)(entry >> 8);
            bits >>= entry & 63;
            position += entry & 63;
        }
    }
    if ((position + 7) >> 3 != stream->bytes)
        return false;
    return (position & 7) == 0 || stream->begin[stream->bytes - 1] >> (position & 7) == 0;
}

/* Rounds of 5 lookups that no stream's input or output can be overrun by, `symbols` of them each at most. */
static size_t safe_rounds(const struct bit_reader *in, const struct lmci_stream *streams, size_t symbols)
{
    size_t rounds = SIZE_MAX;
    for (size_t k = 0; k < LMCI_STREAMS; k++) {
        size_t in_left = (size_t)(streams[k].begin + streams[k].bytes - in[k].at);
        size_t by_input = in_left < 8 ? 0 : (in_left - 8) / 7;
        size_t by_output = (size_t)(streams[k].out_end - in[k].out) / symbols;
        rounds = by_input < rounds ? by_input : rounds;
        rounds = by_output < rounds ? by_output : rounds;
    }
    return rounds;
}

/* Copies of the readers in local variables stay in registers; `in` could be written through any byte pointer. */
#define DEFINE_ROUNDS(name, step_one, type, lookups)                                                      \
    static void name(struct bit_reader in[LMCI_STREAMS], const type *table, uint64_t mask, size_t rounds) \
    {                                                                                                     \
        struct bit_reader a = in[0], b = in[1], c = in[2], d = in[3];                                     \
        for (; rounds; rounds--) {                                                                        \
            for (int i = 0; i < (lookups); i++) {                                                         \
                step_one(&a, table, mask);                                                                \
                step_one(&b, table, mask);                                                                \
                step_one(&c, table, mask);                                                                \
                step_one(&d, table, mask);                                                                \
            }                                                                                             \
            refill(&a);                                                                                   \
            refill(&b);                                                                                   \
            refill(&c);                                                                                   \
            refill(&d);                                                                                   \
        }                                                                                                 \
        in[0] = a;                                                                                        \
        in[1] = b;                                                                                        \
        in[2] = c;                                                                                        \
        in[3] = d;                                                                                        \
    }

/* A refilled word has 56 bits that are surely good: 5 codes of 11, or 4 of 12. */
DEFINE_ROUNDS(rounds_one_11, decode_one, uint16_t, 5)
DEFINE_ROUNDS(rounds_one_12, decode_one, uint16_t, 4)
DEFINE_ROUNDS(rounds_two_11, decode_two, uint32_t, 5)
DEFINE_ROUNDS(rounds_two_12, decode_two, uint32_t, 4)

static void run_rounds(const struct lmci_decode_table *table, struct bit_reader *in, size_t rounds)
{
    const uint64_t mask = ((uint64_t)1 << table->bits) - 1;
    if (table->has_two && table->bits <= 11)
        rounds_two_11(in, table->two, mask, rounds);
    else if (table->has_two)
        rounds_two_12(in, table->two, mask, rounds);
    else if (table->bits <= 11)
        rounds_one_11(in, table->one, mask, rounds);
    else
        rounds_one_12(in, table->one, mask, rounds);
}

static bool decode_streams(const struct lmci_decode_table *table, const struct lmci_stream streams[LMCI_STREAMS])
{
    struct bit_reader in[LMCI_STREAMS];
    bool whole = true;
    bool good = true;
    size_t rounds;
    for (size_t k = 0; k < LMCI_STREAMS; k++) {
        in[k] = (struct bit_reader){MARK, streams[k].begin, streams[k].out};
        whole = whole && streams[k].bytes >= 8;
    }
    for (size_t k = 0; whole && k < LMCI_STREAMS; k++)
        refill(&in[k]);
    while (whole && (rounds = safe_rounds(in, streams, table->has_two ? 10 : 5)) > 0)
        run_rounds(table, in, rounds);
    for (size_t k = 0; k < LMCI_STREAMS; k++) {
        size_t position = 8 * (size_t)(in[k].at - streams[k].begin) + (size_t)__builtin_clzll(in[k].bits);
        good = decode_rest(table, &streams[k], position, in[k].out) && good;
    }
    return good;
}
