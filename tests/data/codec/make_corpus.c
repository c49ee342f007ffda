/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * make_corpus.c - writes the frames of good/, bad/ and unsupported/; README.md says what each is for.
 *
 * Some come from the library's encoder. The others are put together by hand from FORMAT.md, byte by byte: an encoder
 * makes neither damage nor all that the format allows. Files that exist are written again and should not change: a
 * difference in git is a change of the format, or of the encoder.
 *
 * Build and run, from the repository's root:
 *   cc -Icodec tests/data/codec/make_corpus.c build/lib/liblmc.a -o make_corpus && ./make_corpus tests/data/codec
 */
#include "lmc.h"
#include "seal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const char *directory;
static const char *folder;

static void write_file(const char *name, const char *suffix, const void *bytes, size_t count)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/%s.%s", directory, folder, name, suffix);
    FILE *file = fopen(path, "wb");
    if (file == NULL || (count != 0 && fwrite(bytes, 1, count, file) != count) || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static uint64_t state = 1;

static uint64_t random64(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = state ^ state >> 29;
    return (x * 0xbf58476d1ce4e5b9u) ^ x >> 32;
}

/* ---- Frames from the encoder ----------------------------------------------------------------------------------- */

static void compressed(const char *name, uint32_t dtype, const void *data, const void *base, size_t bytes,
                       int write_raw)
{
    size_t bound = (size_t)lmc_frame_bound(bytes);
    unsigned char *frame = malloc(bound);
    size_t frame_bytes;
    const char *message = "";
    struct lmc_params params = {.dtype = dtype, .raw_bytes = bytes, .data = data, .base = base};
    if (base != NULL) {
        uint64_t shape[1] = {bytes / lmc_dtype_size(dtype)};
        struct lmc_hash hash = lmc_hash128(base, bytes);
        params.base_digest = lmc_digest(dtype, 1, shape, &hash, 1);
    }
    if (lmc_compress(&params, frame, bound, &frame_bytes, &message) != LMC_OK) {
        fprintf(stderr, "%s: %s\n", name, message);
        exit(1);
    }
    write_file(name, "lmc", frame, frame_bytes);
    if (write_raw != 0)
        write_file(name, "raw", data, bytes);
    if (base != NULL)
        write_file(name, "base", base, bytes);
    free(frame);
}

static float bell(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(random64() >> 40) * 0x1p-24f - 0.5f;
    return sum * 0.03f;
}

enum { N = 3000 };

static void good_from_encoder(void)
{
    static float f[N], g[N];
    static uint16_t h[N], k[N];
    static uint64_t wide[N];
    static unsigned char bytes[N], zeros[2 * (1 << 20) + 8];
    for (int i = 0; i < N; i++) {
        uint32_t bits;
        f[i] = bell();
        volatile float step = 0.001f * bell(); /* never contracted with the sum: the same on all machines */
        g[i] = f[i] + step;
        memcpy(&bits, &f[i], 4);
        h[i] = (uint16_t)(bits >> 16);
        k[i] = (uint16_t)(random64() % 16 != 0 ? h[i] : h[i] + 1);
        wide[i] = (uint64_t)i * 1000;
        bytes[i] = (unsigned char)(random64() % 200 != 0 ? 0 : random64());
    }
    compressed("empty", LMC_F32, NULL, NULL, 0, 1);
    compressed("one-byte", LMC_U8, "x", NULL, 1, 1);
    compressed("f32", LMC_F32, f, NULL, sizeof f, 1);
    compressed("f32-delta", LMC_F32, g, f, sizeof f, 1);
    compressed("f32-same-as-base", LMC_F32, f, f, sizeof f, 1);
    compressed("bf16", LMC_BF16, h, NULL, sizeof h, 1);
    compressed("bf16-delta", LMC_BF16, k, h, sizeof h, 1);
    compressed("u64", LMC_U64, wide, NULL, sizeof wide, 1);
    compressed("u8-mostly-zero", LMC_U8, bytes, NULL, sizeof bytes, 1);
    zeros[0] = zeros[(1 << 20) - 1] = zeros[1 << 20] = zeros[sizeof zeros - 1] = 7;
    compressed("three-blocks", LMC_F64, zeros, NULL, sizeof zeros, 0);
}

/* What methods 4 and 5 are for: floats of 8 bytes and of 1 that moved, and rows that repeat. */
static void good_keyed_and_rows(void)
{
    static double wide[N], moved[N];
    static uint8_t small[N], stepped[N];
    static uint16_t rows[64][128], next[64][128];
    for (int i = 0; i < N; i++) {
        volatile double step = 1e-6 * (double)bell();
        wide[i] = (double)bell() * 1.00000001;
        moved[i] = wide[i] + step;
        const uint64_t random = random64();
        const int exponent = 15 - __builtin_ctz((unsigned)(random >> 48) | 1 << 14);
        small[i] = (uint8_t)((random & 0x80) | (unsigned)exponent << 3 | (random >> 8 & 7));
        stepped[i] = (uint8_t)(small[i] + ((random >> 20 & ((1u << exponent / 2) - 1)) != 0 ? 0 : 1));
    }
    for (size_t i = 0; i < 64; i++)
        for (size_t k = 0; k < 128; k++) {
            const int repeats = i % 3 != 0 && i > 4;
            rows[i][k] = repeats != 0 ? rows[i % 2][k] : (uint16_t)(0x3c00 + random64() % 300);
            next[i][k] = repeats != 0 ? next[i % 2][k] : (uint16_t)(rows[i][k] + random64() % 3);
        }
    compressed("f64-delta", LMC_F64, moved, wide, sizeof moved, 1);
    compressed("f8-delta", LMC_F8_E4M3FN, stepped, small, sizeof stepped, 1);
    compressed("rows", LMC_F16, rows, NULL, sizeof rows, 1);
    compressed("rows-delta", LMC_F16, next, rows, sizeof next, 1);
}

/* ---- Frames by hand -------------------------------------------------------------------------------------------- */

/* A frame of one block that is being put together. */
struct made {
    unsigned char bytes[4096];
    size_t count;
    size_t header_bytes;
    uint64_t raw_bytes;
};

static struct made made;

/* Starts a frame of `raw_bytes` (below 2^20) with room for everything that a header can hold. */
static void begin(uint16_t dtype, uint64_t raw_bytes, unsigned bases, unsigned extensions)
{
    memset(&made, 0, sizeof made);
    memcpy(made.bytes, "LMCF", 4);
    seal_put(made.bytes + 4, 1, 4);
    seal_put(made.bytes + 16, raw_bytes, 8);
    seal_put(made.bytes + 32, dtype, 2);
    made.bytes[36] = (unsigned char)bases;
    made.bytes[37] = 1;
    made.bytes[38] = 20;
    seal_put(made.bytes + 48, extensions, 4);
    made.raw_bytes = raw_bytes;
    made.header_bytes = 64 + 16 * bases + extensions + (raw_bytes != 0 ? 32 : 0) + 8;
    made.count = made.header_bytes;
}

/* Appends `count` bytes to the block. */
static void put(int count, ...)
{
    va_list list;
    va_start(list, count);
    while (count-- != 0)
        made.bytes[made.count++] = (unsigned char)va_arg(list, int);
    va_end(list);
}

/* Fills in sizes and the block's entry; `content` is what it decodes to, NULL where that does not matter. */
static void end(const void *content)
{
    seal_put(made.bytes + 24, made.count, 8);
    if (made.raw_bytes != 0) {
        unsigned char *entry = made.bytes + made.header_bytes - 40;
        struct lmc_hash hash = lmc_hash128(content, content != NULL ? (size_t)made.raw_bytes : 0);
        seal_put(entry, made.header_bytes, 8);
        seal_put(entry + 16, hash.low, 8);
        seal_put(entry + 24, hash.high, 8);
    }
    seal_frame(made.bytes, made.count);
}

static void save(const char *name, const char *content, const char *base)
{
    end(content);
    write_file(name, "lmc", made.bytes, made.count);
    if (content != NULL)
        write_file(name, "raw", content, (size_t)made.raw_bytes);
    if (base != NULL)
        write_file(name, "base", base, (size_t)made.raw_bytes);
}

/* A one-byte field of the prefix is changed and the frame sealed again. */
static void save_changed(const char *name, size_t at, uint64_t value, size_t bytes)
{
    end("abcd");
    seal_put(made.bytes + at, value, bytes);
    seal_frame(made.bytes, made.count);
    write_file(name, "lmc", made.bytes, made.count);
}

/* "abcd" as a raw block. */
static void plain(void)
{
    begin(LMC_U8, 4, 0, 0);
    put(5, 0, 'a', 'b', 'c', 'd');
}

/* Lengths with 1 bit for symbols 0 and 1: half bytes 1, 1, then 255 = 19 + 12 + 16 * 14 zeros, 14 12 14; a 0. */
static void put_two_symbols(void)
{
    put(3, 0x11, 0xce, 0x0e);
}

/* A block of `n` u8 as one tree plane with the two symbols, in segments of 1024, up to their nodes. */
static void two_symbols(uint64_t n)
{
    begin(LMC_U8, n, 0, 0);
    put(3, 1, 0, 2);
    put_two_symbols();
    put(1, 10);
}

/* A block's size is at most its content's and one, so contents here are larger than what they are to show. */
static void good_codes(void)
{
    /* Lengths 1 to 11 for symbols 0 to 10, 12 for 11 and 12; 244 = 19 + 1 + 16 * 14 zeros. The tree goes right: the
     * root, the node of symbol 1, nine that both 11 and 12 pass, and the last. */
    char content[2000] = {0};
    begin(LMC_U8, 40, 0, 0);
    put(12, 1, 0, 2, 0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xec, 0xe1, 10);
    put(16, 0x01, 0, 0x10, 0x40, 0, 0x03, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0x01);
    content[0] = 12;
    content[20] = 11;
    content[30] = 1;
    save("twelve-bit-codes", content, NULL);

    /* Length 8 for 0 to 127 (one, seven repeats of 18, one), 1 for 128; 128 = 19 + 13 + 16 * 6 zeros. */
    memset(content, 128, sizeof content);
    content[0] = 'a';
    begin(LMC_U8, 100, 0, 0);
    put(14, 1, 0, 2, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x8f, 0xe1, 0x6d, 10);
    put(20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1);
    save("repeated-lengths", content, NULL);

    /* 1 for symbol 0, 255 = 19 + 12 + 16 * 14 zeros, 1 for the escape, which stands for 'x' and for another 0. */
    memset(content, 0, sizeof content);
    content[3] = 'x';
    begin(LMC_U8, 40, 0, 0);
    put(7, 1, 0, 2, 0xe1, 0xec, 0x01, 10);
    put(7, 0x08, 0x04, 0, 0, 0, 'x', 0);
    save("escapes", content, NULL);

    /* Two segments, of 1024 and 976 symbols, 0 and 1 in turn. */
    for (size_t i = 0; i < sizeof content; i++)
        content[i] = i % 2;
    two_symbols(2000);
    for (size_t i = 0; i < 128 + 122; i++)
        put(1, 0xaa);
    save("two-segments", content, NULL);
}

static void good_sparse(void)
{
    char content[100] = {0};
    /* Three flags are set; their bytes are a tree plane of symbols 0, 1 and 0. */
    content[9] = 1;
    begin(LMC_U8, 100, 0, 0);
    put(17, 1, 0, 3, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    put(1, 2);
    put_two_symbols();
    put(2, 10, 0x02);
    save("sparse-tree", content, NULL);

    /* 100 bytes; flags of 13 bytes are sparse: flags of 2 bytes say that bytes 0 and 12 aren't zero. */
    content[1] = 5;
    content[9] = 0;
    content[99] = 6;
    begin(LMC_I8, 100, 0, 0);
    put(10, 1, 0, 3, 3, 0, 0x01, 0x10, 0, 0x02, 0x08);
    put(3, 0, 5, 6);
    save("nested-sparse", content, NULL);

    /* 20000 bytes, of which one isn't zero; so is a byte of each of 2500, 313, 40 and 5 bytes of flags. */
    static char many[20000];
    many[12345] = 7;
    begin(LMC_U8, sizeof many, 0, 0);
    put(12, 1, 0, 3, 3, 3, 3, 0, 0, 0, 0, 1, 0);
    put(8, 1, 1 << 12345 / 64 % 8, 1, 1 << 12345 / 8 % 8, 1, 1 << 12345 % 8, 1, 7);
    save("deepest-sparse", many, NULL);
}

/*
 * 20 words of f32 in two classes: keys below 120, with a shift of 20, and from 120 on, with none. Words 3 and 4 are of
 * the first class. Their differences are 0x5612345 and -0x1000000, of which the symbols are 0x56 and 0xf0; word 7 is an
 * outlier, and word 0 moved by -1.
 */
static uint32_t class_base[20], class_content[20];

static void fill_classes(void)
{
    for (int i = 0; i < 20; i++)
        class_base[i] = class_content[i] = (uint32_t)(i == 3 || i == 4 ? 0x3b000000 : 0x3d000000) + (uint32_t)i;
    class_content[0] -= 1;
    class_content[3] += 0x5612345;
    class_content[4] -= 0x1000000;
    class_content[7] = 0xdeadbeef;
}

/* Up to the lists: the number of classes, the first key of the second, shifts, and how many words each has. */
static void begin_classes(int bases)
{
    fill_classes();
    begin(LMC_F32, sizeof class_base, (unsigned)bases, 0);
    put(11, 2, 2, 120, 20, 0, 2, 0, 0, 18, 0, 0);
    put(15, 2, 0, 0, 2, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0);
}

/* Low bytes: 0x12 and 0, 0x34 and 0, none; half bytes: 5 and 0. Symbols of both classes. */
static void put_class_lists(void)
{
    put(3, 0, 0x12, 0x00);
    put(3, 0, 0x34, 0x00);
    put(2, 0, 0x05);
    put(3, 0, 0x56, 0xf0);
    put(19, 0, 0xff, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

/* One outlier, 0xdeadbeef, in four planes of the word rotated. */
static void put_outlier(void)
{
    put(8, 1, 0xdf, 1, 0x7d, 1, 0x5b, 1, 0xbd);
}

/*
 * 20 words of f64 with a byte below those that are dealt to classes: differences of i * 256 + i, but word 5 moved by
 * 2^50, of which only a plane above knows, and word 9 by 1000 * 256, an outlier.
 */
static uint64_t keyed_base[20], keyed_content[20];

static void begin_keyed(int low, int bases)
{
    for (unsigned i = 0; i < 20; i++) {
        const uint64_t moved = i == 5 ? (uint64_t)1 << 50 : i == 9 ? 1000 * 256 : i * 257;
        keyed_base[i] = 0x3f80000000000000 + i * 0x0001000000000000;
        keyed_content[i] = keyed_base[i] + moved;
    }
    begin(LMC_F64, sizeof keyed_base, (unsigned)bases, 0);
    put(2, 4, low);
}

static void put_keyed_planes(void)
{
    put(1, 0);
    for (int i = 0; i < 20; i++)
        put(1, i == 5 || i == 9 ? 0 : i);
    put(3, 1, 0, 0);
    for (int i = 0; i < 20; i++)
        put(1, i == 5 ? 4 : 0);
    put(2, 1, 0);
}

/* One class without a shift. Key of word 9: 0x3f8 + 9 / 16 - 831, in a word of four bytes moved by 1000, rotated. */
static void put_keyed_classes(void)
{
    const uint32_t outlier = (0x3f8u - 831) * 0x800000 + 1000;
    put(17, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    put(4, 1, 0, 0, 0);
    for (int i = 0; i < 20; i++)
        put(1, i == 9 ? 128 : i == 5 ? 0 : i);
    for (int k = 0; k < 4; k++)
        put(2, 1, (int)((outlier << 1 | outlier >> 31) >> 8 * k & 255));
}

static void save_keyed(const char *name)
{
    save(name, NULL, NULL);
    write_file(name, "base", keyed_base, sizeof keyed_base);
}

static void good_keyed(void)
{
    begin_keyed(1, 1);
    put_keyed_planes();
    put_keyed_classes();
    save("keyed-f64", (const char *)keyed_content, (const char *)keyed_base);

    /* Three classes, keys 0, 1 to 254, and 255, at whose ends exponents are cut: each class moves by its own. */
    static const unsigned exponents[20] = {0, 831, 832, 1085, 1086, 2047};
    for (unsigned i = 0; i < 20; i++) {
        keyed_base[i] = (uint64_t)(i < 6 ? exponents[i] : 1016) << 52 | i;
        keyed_content[i] = keyed_base[i] + (i < 2 ? 1 : i == 4 || i == 5 ? 3 : 2);
    }
    begin(LMC_F64, sizeof keyed_base, 1, 0);
    put(10, 4, 0, 1, 0, 1, 0, 1, 0, 1, 0);
    put(6, 3, 1, 255, 0, 0, 0);
    put(9, 2, 0, 0, 16, 0, 0, 2, 0, 0);
    put(15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    put(6, 1, 1, 1, 2, 1, 3);
    save("keyed-f64-keys", (const char *)keyed_content, (const char *)keyed_base);

    /* 80 words of f8 in two classes, keys of 0x38 and more in the second: +2 there, and -1 in the first, but word 3,
     * in the first, moved by -128: its key in a word of 2 bytes, less 128, rotated. */
    char base[80], content[80];
    for (int i = 0; i < 80; i++) {
        base[i] = (char)(i % 2 != 0 ? 0xb0 : 0x39);
        content[i] = (char)(base[i] + (i == 3 ? -128 : i % 2 != 0 ? -1 : 2));
    }
    const unsigned outlier = (0x30 << 7) - 128;
    begin(LMC_F8_E5M2, sizeof base, 1, 0);
    put(2, 4, 0);
    put(11, 2, 0x38, 0, 0, 40, 0, 0, 40, 0, 0, 0);
    put(11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    put(3, 1, 0, 0);
    put(5, 0, 0xff, 128, 0xff, 0xff);
    for (int i = 4; i < 40; i++)
        put(1, 0xff);
    put(2, 1, 2);
    put(4, 1, (int)(outlier << 1 & 255), 1, (int)(outlier >> 7 & 255));
    save("keyed-f8", content, base);
}

/* Six lines and ten bytes: lines 2 and 3 are as 1, the second by way of the first, and 4 as 0. */
static char copied[6 * 64 + 10];

static void begin_copies(void)
{
    for (size_t i = 0; i < sizeof copied; i++)
        copied[i] = (char)(i * 7 + i / 64 * 3);
    memcpy(copied + 128, copied + 64, 64);
    memcpy(copied + 192, copied + 64, 64);
    memcpy(copied + 256, copied, 64);
    begin(LMC_U8, sizeof copied, 0, 0);
    put(15, 5, 2, 0, 2, 0, 2, 0, 1, 0, 4, 0, 1, 0, 0, 0);
}

static void put_rest(int method)
{
    put(1, method);
    for (size_t i = 0; i < sizeof copied; i++)
        if (i < 128 || i >= 320)
            put(1, copied[i]);
}

static void good_copies(void)
{
    begin_copies();
    put_rest(0);
    save("copies", copied, NULL);
}

/* A piece of 7, and one of 5 bytes as they are. */
static void good_pieces(void)
{
    static char content[(1 << 16) + 5];
    memset(content, 7, sizeof content);
    memcpy(content + (1 << 16), "12345", 5);
    begin(LMC_U8, sizeof content, 0, 0);
    put(6, 1, 0, 4, 16, 1, 7);
    put(6, 0, '1', '2', '3', '4', '5');
    end(content);
    write_file("pieces", "lmc", made.bytes, made.count);
}

/* 11 bytes that are 0x40 but for bits 0 and 5; the bits of byte i are those of i % 4. */
static void good_bits(void)
{
    char content[11];
    for (int i = 0; i < 11; i++)
        content[i] = (char)(0x40 | (i & 1) | (i & 2) << 4);
    begin(LMC_U8, sizeof content, 0, 0);
    put(8, 1, 0, 5, 0x40, 0x21, 0xe4, 0xe4, 0x24);
    save("bits", content, NULL);
}

/* 70 bytes, 0 but for 3 at place 2, so that '!' at place 66 is of class 1, which begins with 1, and 7 at the end. */
static void begin_contexts(int distance, int classes, int first)
{
    begin(LMC_U8, 70, 0, 0);
    put(7, 1, 0, 6, distance, 0, classes, first);
}

static void put_contexts(int of_class_0, int of_class_1)
{
    put(6, of_class_0, 0, 0, of_class_1, 0, 0);
    put(14, 3, 0, 0x04, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 3, 7);
    put(2, 0, '!');
}

static void good_contexts(void)
{
    char content[70] = {0};
    content[2] = 3;
    content[66] = '!';
    content[69] = 7;
    begin_contexts(64, 2, 1);
    put_contexts(69, 1);
    save("contexts", content, NULL);
}

/* 40 bf16 around 1.0, which is 0x7f00 when rotated, by 8 + 4 bits: 1.05, -1.0, one that is marked, 0.5, and ones. */
static void begin_values(void)
{
    begin(LMC_BF16, 80, 0, 0);
    put(6, 3, 1, 0x00, 0x7f, 1, 4);
    put(18, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 39, 0, 0, 1, 0, 0);
    put(7, 3, 0, 0x01, 0, 0, 0, 0x1e);
    put(9, 3, 0, 0x0c, 0, 0, 0, 0, 0, 0x80);
    put(5, 0xf0, 1, 0xbe, 1, 0xfb);
}

static void good_values(void)
{
    uint16_t content[40];
    for (int i = 0; i < 40; i++)
        content[i] = 0x3f80;
    content[0] = 0x3f87;
    content[1] = 0xbf80;
    content[2] = 0xbeef;
    content[3] = 0x3f00;
    begin_values();
    save("values", (const char *)content, NULL);
}

static void good_classes(void)
{
    begin_classes(1);
    put_class_lists();
    put_outlier();
    save("classes", (const char *)class_content, (const char *)class_base);
}

/* Words 0x8103, 0x8102, 0x8100, 0x81ff after the transform, from bases 1, 0xffff, 0x8000, 0x0100. */
static void good_transforms(void)
{
    static const char *const names[] = {"keep", "rotate", "xor", "subtract", "zigzag"};
    static const uint16_t y[4] = {0x8103, 0x8102, 0x8100, 0x81ff};
    static const uint16_t b[4] = {1, 0xffff, 0x8000, 0x0100};
    for (int t = 0; t < 5; t++) {
        char name[64];
        uint16_t x[4];
        for (int i = 0; i < 4; i++) {
            uint16_t all[5] = {y[i], (uint16_t)(y[i] >> 1 | y[i] << 15), (uint16_t)(y[i] ^ b[i]),
                               (uint16_t)(y[i] + b[i]),
                               (uint16_t)((y[i] >> 1 ^ ((y[i] & 1) != 0 ? 0xffff : 0)) + b[i])};
            x[i] = all[t];
        }
        snprintf(name, sizeof name, "transform-%s", names[t]);
        begin(LMC_I16, 8, 1, 0);
        put(9, 1, t, 0, 0x03, 0x02, 0x00, 0xff, 1, 0x81);
        save(name, (const char *)x, (const char *)b);
    }
}

static void good_by_hand(void)
{
    good_codes();
    good_sparse();
    good_pieces();
    good_bits();
    good_contexts();
    good_values();
    good_classes();
    good_transforms();
    begin(LMC_U8, 4, 0, 16);
    put(5, 0, 'a', 'b', 'c', 'd');
    memset(made.bytes + 64, 0xee, 16);
    seal_put(made.bytes + 12, 0x80000001, 4);
    save("extensions-and-compatible-flags", "abcd", NULL);
}

/* ---- Bad ones -------------------------------------------------------------------------------------------------- */

static void bad_headers(void)
{
    plain();
    save_changed("version-0", 4, 0, 4);
    plain();
    save_changed("reserved-8", 39, 1, 1);
    plain();
    save_changed("reserved-32", 52, 1, 4);
    plain();
    save_changed("no-output", 37, 0, 1);
    plain();
    save_changed("no-dtype", 32, 0, 2);
    plain();
    save_changed("half-an-element", 32, LMC_F64, 2);
    plain();
    save_changed("raw-bytes-2-63", 16, (uint64_t)1 << 63, 8);
    plain();
    save_changed("raw-bytes-2-64", 16, UINT64_MAX, 8);
    plain();
    save_changed("frame-bytes-2-64", 24, UINT64_MAX, 8);
    plain();
    save_changed("frame-bytes-0", 24, 0, 8);
    plain();
    save_changed("extensions-4", 48, 4, 4);
    plain();
    save_changed("extensions-huge", 48, 0xfffffff8, 4);
    plain();
    save_changed("content-without-blocks", 16, 0, 8);
    plain();
    end("abcd");
    made.bytes[0] = 'l';
    seal_frame(made.bytes, made.count);
    write_file("magic", "lmc", made.bytes, made.count);
}

static void bad_checksums(void)
{
    static const struct {
        const char *name;
        size_t at;
    } flips[] = {{"checksum-prefix", 56}, {"checksum-header", 96}, {"checksum-coded", 72}, {"checksum-decoded", 80}};
    for (size_t i = 0; i < 4; i++) {
        plain();
        end("abcd");
        made.bytes[flips[i].at] ^= 1;
        if (flips[i].at == 80)
            seal_frame(made.bytes, made.count);
        else if (flips[i].at == 72)
            seal_put(made.bytes + 96, lmc_hash64(made.bytes, 96, 0), 8);
        write_file(flips[i].name, "lmc", made.bytes, made.count);
    }
}

static void bad_lengths_of_frames(void)
{
    plain();
    end("abcd");
    write_file("cut-to-nothing", "lmc", made.bytes, 0);
    write_file("cut-in-prefix", "lmc", made.bytes, 63);
    write_file("cut-in-header", "lmc", made.bytes, made.header_bytes - 1);
    write_file("cut-in-block", "lmc", made.bytes, made.count - 1);
    write_file("bytes-follow", "lmc", made.bytes, made.count + 1);
    plain();
    save_changed("block-place", 64, made.header_bytes + 1, 8);
    plain();
    put(1, 'e');
    save("block-too-long", NULL, NULL);
    begin(LMC_U8, 4, 0, 0);
    save("block-missing", NULL, NULL);
}

static void bad_blocks(void)
{
    begin(LMC_U8, 4, 0, 0);
    put(4, 0, 'a', 'b', 'c');
    save("raw-block-short", NULL, NULL);
    begin(LMC_U8, 4, 0, 0);
    put(1, 1);
    save("no-transform", NULL, NULL);
    begin(LMC_U8, 4, 0, 0);
    put(4, 1, 2, 1, 9);
    save("delta-without-base", NULL, NULL);
    begin(LMC_U16, 4, 0, 0);
    put(4, 1, 0, 1, 9);
    save("plane-missing", NULL, NULL);
    begin(LMC_U8, 4, 0, 0);
    put(5, 1, 0, 1, 9, 0);
    save("bytes-after-planes", NULL, NULL);
    begin(LMC_U8, 4, 0, 0);
    put(3, 1, 0, 1);
    save("constant-without-value", NULL, NULL);
    begin(LMC_U8, 40, 0, 0);
    put(13, 1, 0, 3, 3, 3, 3, 3, 0, 1, 0, 1, 0, 1);
    save("sparse-too-deep", NULL, NULL);
    begin(LMC_U8, 9, 0, 0);
    put(9, 1, 0, 3, 0, 0x01, 0x02, 0, 5, 6);
    save("sparse-flags-past-end", NULL, NULL);
    begin(LMC_U8, 9, 0, 0);
    put(5, 1, 0, 3, 1, 0);
    save("sparse-empty", NULL, NULL);
    begin(LMC_U8, 9, 0, 0);
    put(8, 1, 0, 3, 0, 0x01, 0x01, 0, 5);
    save("sparse-byte-missing", NULL, NULL);
    begin(LMC_U8, 9, 0, 0);
    put(10, 1, 0, 3, 0, 0x01, 0x00, 3, 1, 1, 5);
    save("sparse-second-plane-sparse", NULL, NULL);
}

static void bad_pieces(void)
{
    static const char *const names[] = {"pieces-13", "pieces-21"};
    for (int i = 0; i < 2; i++) {
        begin(LMC_U8, 40, 0, 0);
        put(6, 1, 0, 4, i != 0 ? 21 : 13, 1, 9);
        save(names[i], NULL, NULL);
    }
    begin(LMC_U8, (1 << 16) + 1, 0, 0);
    put(6, 1, 0, 4, 16, 1, 9);
    save("pieces-cut", NULL, NULL);
    begin(LMC_U8, 4, 0, 0);
    put(3, 1, 0, 4);
    save("pieces-without-size", NULL, NULL);
}

static void bad_bits(void)
{
    static const struct {
        const char *name;
        int value, mask, packed;
    } cases[] = {
        {"bits-mask-0", 0x40, 0, 0},
        {"bits-mask-255", 0, 255, 0},
        {"bits-twice", 0x41, 1, 0},
        {"bits-past-end", 0, 1, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(LMC_U8, 13, 0, 0);
        put(7, 1, 0, 5, cases[i].value, cases[i].mask, 0, cases[i].packed << 4);
        save(cases[i].name, NULL, NULL);
    }
}

static void bad_contexts(void)
{
    begin_contexts(63, 2, 1);
    put_contexts(69, 1);
    save("contexts-distance-63", NULL, NULL);
    begin_contexts(64, 0, 1);
    put_contexts(69, 1);
    save("contexts-none", NULL, NULL);
    begin_contexts(64, 17, 1);
    put_contexts(69, 1);
    save("contexts-17", NULL, NULL);
    begin_contexts(64, 2, 0);
    put_contexts(69, 1);
    save("contexts-not-ascending", NULL, NULL);
    begin_contexts(64, 2, 1);
    put_contexts(70, 1);
    save("contexts-more-bytes", NULL, NULL);
    begin_contexts(64, 2, 1);
    put_contexts(68, 1);
    save("contexts-fewer-bytes", NULL, NULL);
    /* Class 1 begins with 4, so that '!' is of class 0: the lists do not come out even. */
    begin_contexts(64, 2, 4);
    put_contexts(69, 1);
    save("contexts-uneven", NULL, NULL);
    begin_contexts(64, 2, 1);
    put(3, 69, 0, 0);
    save("contexts-cut", NULL, NULL);
    begin_contexts(64, 2, 1);
    put(6, 69, 0, 0, 1, 0, 0);
    save("contexts-lists-cut", NULL, NULL);
}

static void bad_values(void)
{
    begin(LMC_U8, 80, 0, 0);
    put(4, 3, 0, 0, 1);
    save("values-of-bytes", NULL, NULL);
    begin(LMC_BF16, 80, 0, 0);
    put(3, 3, 1, 0);
    save("values-cut", NULL, NULL);
    begin_values();
    made.bytes[made.count - 6] = 0; /* the outlier is not marked */
    save("values-unmarked", NULL, NULL);
}

static void bad_trees(void)
{
    two_symbols(40);
    put(4, 1, 0, 1, 0);
    save("nodes-cut", NULL, NULL);
    two_symbols(40);
    put(6, 1, 0, 1, 0, 1, 0);
    save("nodes-left-over", NULL, NULL);
    two_symbols(36);
    put(5, 1, 0, 1, 0, 0x10);
    save("nodes-bits-past-end", NULL, NULL);
    two_symbols(2000);
    for (size_t i = 0; i < 128 + 121; i++)
        put(1, 0xaa);
    save("nodes-of-last-segment-cut", NULL, NULL);
    begin(LMC_U8, 40, 0, 0);
    put(13, 1, 0, 2, 0xe1, 0xec, 0x01, 10, 0x08, 0x04, 0, 0, 0, 'x');
    save("escapes-cut", NULL, NULL);
    static const struct {
        const char *name;
        int log2;
    } segments[] = {{"segments-small", 9}, {"segments-large", 21}, {"segments-huge", 255}};
    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++) {
        begin(LMC_U8, 40, 0, 0);
        put(3, 1, 0, 2);
        put_two_symbols();
        put(6, segments[i].log2, 1, 0, 1, 0, 1);
        save(segments[i].name, NULL, NULL);
    }
    begin(LMC_U8, 40, 0, 0);
    put(3, 1, 0, 2);
    put_two_symbols();
    save("segments-missing", NULL, NULL);

    static const struct {
        const char *name;
        unsigned char bytes[4];
    } tables[] = {
        {"lengths-one-symbol", {0xe1, 0xed, 0, 0}},      /* 1, then 256 = 19 + 13 + 16 * 14 zeros */
        {"lengths-incomplete", {0x21, 0xce, 0x0e, 0}},   /* 1, 2 */
        {"lengths-too-many", {0x11, 0xb1, 0xbe, 0x0e}},  /* 1, 1, 1, ... over-full and then a run too far */
        {"lengths-run-too-far", {0x11, 0xde, 0x0e, 0}},  /* 1, 1, then 256 zeros */
        {"lengths-repeat-first", {0x0f, 0x11, 0xee, 0}}, /* nothing to repeat */
        {"lengths-half-left", {0x11, 0xce, 0x1e, 0}},    /* the half byte left over is 1 */
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        begin(LMC_U8, 60, 0, 0);
        put(3, 1, 0, 2);
        for (int k = 0; k < (i == 2 ? 4 : 3); k++)
            put(1, tables[i].bytes[k]);
        put(9, 10, 1, 0, 1, 0, 1, 0, 1, 0);
        save(tables[i].name, NULL, NULL);
    }
    begin(LMC_U8, 60, 0, 0);
    put(5, 1, 0, 2, 0x11, 0xce);
    save("lengths-cut", NULL, NULL);
}

static void save_bad_classes(const char *name)
{
    save(name, NULL, (const char *)class_base);
}

static void bad_list_lengths(void)
{
    begin_classes(1);
    put_class_lists();
    made.bytes[made.count - 13] = 0;
    put_outlier();
    save_bad_classes("outliers-unmarked");
    fill_classes();
    begin(LMC_F32, sizeof class_base, 1, 0);
    put(11, 2, 2, 120, 20, 0, 2, 0, 0, 18, 0, 0);
    put(15, 3, 0, 0, 2, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0);
    put(4, 0, 0x12, 0x00, 0x00);
    put(3, 0, 0x34, 0x00);
    put(2, 0, 0x05);
    put(3, 0, 0x56, 0xf0);
    put(19, 0, 0xff, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    put_outlier();
    save_bad_classes("classes-low-left");
    fill_classes();
    begin(LMC_F32, sizeof class_base, 1, 0);
    put(11, 2, 2, 120, 20, 0, 2, 0, 0, 18, 0, 0);
    put(15, 2, 0, 0, 2, 0, 0, 0, 0, 0, 3, 0, 0, 1, 0, 0);
    put(3, 0, 0x12, 0x00);
    put(3, 0, 0x34, 0x00);
    put(3, 0, 0x05, 0x00);
    put(3, 0, 0x56, 0xf0);
    put(19, 0, 0xff, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    put_outlier();
    save_bad_classes("classes-halves-left");
}

static void bad_classes(void)
{
    static const struct {
        const char *name;
        int at, value; /* a byte behind the method, and what it becomes */
    } changes[] = {
        {"classes-none", 0, 0},           {"classes-17", 0, 17},
        {"classes-not-ascending", 1, 0},  {"classes-shift-18", 2, 18},
        {"classes-shift-28", 2, 28},      {"classes-more-words", 4, 3},
        {"classes-fewer-words", 7, 17},   {"outliers-too-many", 22, 3},
        {"classes-low-too-many", 10, 21}, {"classes-halves-too-many", 19, 21},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        begin_classes(1);
        put_class_lists();
        put_outlier();
        made.bytes[made.header_bytes + 1 + (size_t)changes[i].at] = (unsigned char)changes[i].value;
        save_bad_classes(changes[i].name);
    }
    begin_classes(0);
    put_class_lists();
    put_outlier();
    save_bad_classes("classes-without-base");
    begin(LMC_I8, 8, 1, 0);
    put(8, 2, 1, 0, 8, 0, 0, 1, 0);
    save_bad_classes("classes-of-bytes");
    begin_classes(1);
    save_bad_classes("classes-lists-cut");
    begin(LMC_F32, sizeof class_base, 1, 0);
    put(4, 2, 2, 120, 20);
    save_bad_classes("classes-cut");
    begin_classes(1);
    put_class_lists();
    save_bad_classes("outliers-missing");
    begin_classes(1);
    put_class_lists();
    put_outlier();
    put(1, 0);
    save_bad_classes("classes-bytes-left");
    /* One word in the class with half bytes: the high half is left over. */
    begin(LMC_F32, sizeof class_base, 1, 0);
    put(11, 2, 2, 120, 20, 0, 1, 0, 0, 19, 0, 0);
    put(15, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0);
    put(8, 0, 0x12, 0, 0x34, 0, 0x15, 0, 0x56);
    put(2, 1, 0);
    save_bad_classes("classes-half-left");
    /* Key 123 instead of 119: word 3 is in the other class. */
    begin_classes(1);
    put_class_lists();
    put_outlier();
    class_base[3] = 0x3d800000;
    save_bad_classes("classes-wrong-base");
    /* Lists that don't come out even, though the classes do: a mark less, a low byte more, a half byte more. */
    bad_list_lengths();
}

static void bad_keyed(void)
{
    begin_keyed(5, 1);
    put_keyed_planes();
    put_keyed_classes();
    save_keyed("keyed-low-5");
    begin_keyed(1, 0);
    put_keyed_planes();
    put_keyed_classes();
    save("keyed-without-base", NULL, NULL);
    begin_keyed(1, 1);
    put(1, 0);
    save_keyed("keyed-planes-cut");
    begin_keyed(1, 1);
    put_keyed_planes();
    save_keyed("keyed-classes-cut");
    begin_keyed(1, 1);
    put_keyed_planes();
    put_keyed_classes();
    put(1, 0);
    save_keyed("keyed-bytes-left");
    begin(LMC_U8, 80, 1, 0);
    put(2, 4, 1);
    save("keyed-bytes-low-1", NULL, NULL);
    write_file("keyed-bytes-low-1", "base", copied, 80);
    begin(LMC_F32, 80, 1, 0);
    put(2, 4, 0);
    save("keyed-f32", NULL, NULL);
    write_file("keyed-f32", "base", copied, 80);
}

static void bad_copies(void)
{
    static const struct {
        const char *name;
        int at, value; /* a byte behind the method, and what it becomes */
    } changes[] = {{"copies-none", 0, 0},      {"copies-more", 1, 1},       {"copies-no-lines", 4, 0},
                   {"copies-of-itself", 6, 2}, {"copies-of-later", 12, 5},  {"copies-overlap", 8, 3},
                   {"copies-past-end", 10, 3}, {"copies-rest-short", 4, 1}, {"copies-of-copies", 14, 5}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        begin_copies();
        put_rest(0);
        made.bytes[made.header_bytes + 1 + (size_t)changes[i].at] = (unsigned char)changes[i].value;
        save(changes[i].name, NULL, NULL);
    }
    begin_copies();
    made.count = made.header_bytes + 2;
    save("copies-cut", NULL, NULL);
    begin_copies();
    save("copies-without-rest", NULL, NULL);
    begin_copies();
    put_rest(0);
    put(1, 0);
    save("copies-bytes-left", NULL, NULL);
}

/* The right base is four zeros. */
static void bad_bases(void)
{
    begin(LMC_U8, 4, 1, 0);
    put(4, 1, 2, 1, 7);
    end("\7\7\7\7");
    write_file("checksum-wrong-base", "lmc", made.bytes, made.count);
    write_file("checksum-wrong-base", "base", "\0\0\0\1", 4);
}

/* ---- Unsupported ones ------------------------------------------------------------------------------------------ */

static void unsupported(void)
{
    plain();
    save_changed("version-2", 4, 2, 4);
    plain();
    save_changed("incompatible-flag", 8, 0x80000000, 4);
    plain();
    save_changed("dtype-new", 32, LMC_DTYPE_END, 2);
    plain();
    save_changed("predictor", 34, 3, 2);
    plain();
    save_changed("two-bases", 36, 2, 1);
    plain();
    save_changed("two-outputs", 37, 2, 1);
    plain();
    save_changed("block-size", 38, 16, 1);
    plain();
    save_changed("constants", 40, 8, 4);
    plain();
    save_changed("tables", 44, 8, 4);
    plain();
    save_changed("block-mode", 71, 1, 1);
    begin(LMC_U8, 4, 0, 0);
    put(2, 6, 0);
    save("block-method", NULL, NULL);
    begin(LMC_U8, 4, 0, 0);
    put(4, 1, 5, 1, 9);
    save("block-transform", NULL, NULL);
    begin(LMC_U8, 4, 0, 0);
    put(4, 1, 0, 7, 9);
    save("plane-kind", NULL, NULL);
    begin(LMC_U8, 40, 0, 0);
    put(8, 1, 0, 4, 16, 4, 16, 1, 9);
    save("pieces-of-pieces", NULL, NULL);
    begin_contexts(64, 1, 6);
    made.bytes[made.count - 1] = 70;
    put(4, 0, 0, 6, 64);
    save("contexts-of-contexts", NULL, NULL);
    begin(LMC_U8, 40, 0, 0);
    put(8, 1, 0, 4, 16, 6, 64, 0, 1);
    save("pieces-of-contexts", NULL, NULL);
    begin(LMC_BF16, 80, 0, 0);
    put(4, 3, 2, 0, 0);
    save("values-transform", NULL, NULL);
    begin(LMC_U8, 9, 0, 0);
    put(10, 1, 0, 3, 0, 0x01, 0x00, 4, 16, 1, 5);
    save("sparse-second-plane-pieces", NULL, NULL);
}

/* ---- Links ----------------------------------------------------------------------------------------------------- */

enum { LINKED = 300 };

/* Arrays before a step and after it, one behind the other. */
static float linked[2][4 * LINKED];

/* Rounded to f32, never contracted: the same on all machines. (Not quite what torch does: a link stores the rest.) */
static float f32_of(double x)
{
    volatile float rounded = (float)x;
    return rounded;
}

static double root_of(double x)
{
    volatile double root = x < 1 ? 1 : x;
    for (int i = 0; i < 60; i++)
        root = 0.5 * (root + x / root);
    return root;
}

/* A gradient of bf16 (0), a sum of four (1), any (2), or mostly none (3). */
static float gradient_of(int kind, int i)
{
    double sum = 0;
    for (int k = 0; k < (kind == 1 ? 4 : 1); k++) {
        float g = bell();
        uint32_t bits;
        memcpy(&bits, &g, 4);
        bits &= kind == 2 ? UINT32_MAX : 0xffff0000;
        memcpy(&g, &bits, 4);
        sum += (double)g;
    }
    return kind == 3 && i % 5 != 0 ? 0 : f32_of(sum);
}

static void adam_states(int kind, const struct lmc_link_rule *rule)
{
    for (int i = 0; i < LINKED; i++) {
        const float m = bell(), v = f32_of((double)bell() * (double)bell()), w = bell(), g = gradient_of(kind, i);
        const float second = v < 0 ? -v : v, kept = f32_of((double)second * (double)rule->beta2);
        const float e = f32_of((double)rule->l2 * (double)w + (double)g), way = f32_of((double)e - (double)m);
        const float m1 = f32_of((double)rule->gain * (double)way + (double)m);
        const float v1 = f32_of((double)f32_of((double)rule->gain2 * (double)e) * (double)e + (double)kept);
        const float below = f32_of(root_of((double)v1) / (double)rule->root + (double)rule->eps);
        const float step = f32_of((double)f32_of((double)rule->rate * (double)m1) / (double)below);
        const float before[4] = {m, second, w, v1}, after[4] = {m1, v1, f32_of((double)w + (double)step), v1};
        for (int k = 0; k < 4; k++) {
            linked[0][k * LINKED + i] = before[k];
            linked[1][k * LINKED + i] = after[k];
        }
    }
}

static void sgd_states(const struct lmc_link_rule *rule)
{
    for (int i = 0; i < LINKED; i++) {
        const float m = bell(), w = bell(), g = gradient_of(0, i);
        const float m1 = f32_of((double)g + (double)f32_of((double)m * (double)rule->momentum));
        const float u = f32_of((double)rule->momentum * (double)m1 + (double)g);
        linked[0][i] = m;
        linked[1][i] = m1;
        linked[0][LINKED + i] = w;
        linked[1][LINKED + i] = f32_of((double)rule->rate * (double)u + (double)w);
    }
}

static struct lmc_link_params linked_params(const struct lmc_link_rule *rule, size_t elements)
{
    struct lmc_link_params params = {.rule = *rule, .raw_bytes = 4 * elements};
    for (uint32_t k = 0; k < lmc_link_arrays(rule->optimizer, rule->flags); k++) {
        const uint64_t shape[1] = {elements};
        params.before[k] = linked[0] + k * elements;
        params.after[k] = linked[1] + k * elements;
        const struct lmc_hash hash = lmc_hash128(params.before[k], 4 * elements);
        params.before_digest[k] = lmc_digest(LMC_F32, 1, shape, &hash, elements != 0);
    }
    return params;
}

static void save_link(const char *name, const struct lmc_link_rule *rule, size_t elements)
{
    static unsigned char room[1 << 16];
    const struct lmc_link_params params = linked_params(rule, elements);
    const size_t bytes = 4 * elements * lmc_link_arrays(rule->optimizer, rule->flags);
    size_t frame_bytes;
    const char *message = "";
    if (lmc_link_compress(&params, room, sizeof room, &frame_bytes, &message) != LMC_OK) {
        fprintf(stderr, "%s: %s\n", name, message);
        exit(1);
    }
    write_file(name, "lmc", room, frame_bytes);
    write_file(name, "raw", linked[1], bytes);
    write_file(name, "base", linked[0], bytes);
}

static struct lmc_link_rule adam_rule(uint32_t flags)
{
    return (struct lmc_link_rule){.optimizer = LMC_ADAM,
                                  .flags = flags,
                                  .gain = 0.1f,
                                  .beta2 = 0.95f,
                                  .gain2 = 0.05f,
                                  .decay = 1,
                                  .l2 = (flags & LMC_LINK_L2) != 0 ? 0.01f : 0,
                                  .rate = -0.001f,
                                  .root = 0.9f,
                                  .eps = 1e-8f,
                                  .scale = 1};
}

static void good_links(void)
{
    static const char *const names[] = {"link-short", "link-variable", "link-full", "link-zeros"};
    static const uint32_t special[] = {0x7fc00001, 0x7f800000, 0xff800000, 1, 0x80000000, 0x7f7fffff};
    struct lmc_link_rule rule = adam_rule(0);
    for (int kind = 0; kind < 4; kind++) {
        adam_states(kind, &rule);
        save_link(names[kind], &rule, LINKED);
    }
    for (int i = 0; i < 48; i++)
        memcpy(&linked[i % 2][(i / 2 % 3) * LINKED + 6 * i], &special[i % 6], 4);
    save_link("link-special", &rule, LINKED);
    for (int i = 0; i < 3 * LINKED; i++)
        linked[1][i] = bell();
    save_link("link-deltas", &rule, LINKED);
    save_link("link-empty", &rule, 0);
    rule = adam_rule(LMC_LINK_L2 | LMC_LINK_AMSGRAD);
    rule.gain = 0.7f;
    adam_states(1, &rule);
    save_link("link-amsgrad", &rule, LINKED);
    rule = (struct lmc_link_rule){.optimizer = LMC_SGD,
                                  .flags = LMC_LINK_NESTEROV,
                                  .gain = 1,
                                  .momentum = 0.9f,
                                  .decay = 1,
                                  .rate = -0.01f,
                                  .scale = 1};
    sgd_states(&rule);
    save_link("link-sgd", &rule, LINKED);
}

/* A good link of one element, with something else in its header. */
static void save_changed_link(const char *name, size_t at, uint64_t value, size_t bytes)
{
    unsigned char room[1024];
    const struct lmc_link_rule rule = adam_rule(0);
    size_t frame_bytes;
    const struct lmc_link_params params = linked_params(&rule, 1);
    if (lmc_link_compress(&params, room, sizeof room, &frame_bytes, NULL) != LMC_OK)
        exit(1);
    seal_put(room + at, value, bytes);
    seal_frame(room, frame_bytes);
    write_file(name, "lmc", room, frame_bytes);
    write_file(name, "base", linked[0], 12);
}

static void bad_links(void)
{
    save_changed_link("link-bases", 36, 2, 1);
    save_changed_link("link-no-constants", 40, 0, 4);
    save_changed_link("link-arrays", 112, LMC_LINK_AMSGRAD, 4);
    save_changed_link("link-reserved", 116, 1, 4);
    save_changed_link("link-gain-0", 120, 0, 4);
    save_changed_link("link-rate-nan", 144, 0x7fc00000, 4);
}

static void unsupported_links(void)
{
    save_changed_link("link-bf16", 32, LMC_BF16, 2);
    save_changed_link("link-variant", 112, 8, 4);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus DIRECTORY\n");
        return 2;
    }
    directory = argv[1];
    folder = "good";
    good_from_encoder();
    good_by_hand();
    good_keyed();
    good_copies();
    good_keyed_and_rows();
    good_links(); /* last: what is random in the others does not change */
    folder = "bad";
    bad_headers();
    bad_checksums();
    bad_lengths_of_frames();
    bad_blocks();
    bad_pieces();
    bad_bits();
    bad_contexts();
    bad_values();
    bad_trees();
    bad_classes();
    bad_keyed();
    bad_copies();
    bad_bases();
    bad_links();
    folder = "unsupported";
    unsupported();
    unsupported_links();
    return 0;
}
