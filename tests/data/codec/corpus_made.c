/* SPDX-License-Identifier: BSD-3-Clause */
/* corpus_made.c - assembles frames byte by byte, and their shared parts. */
#include "corpus.h"

#include <stdarg.h>

struct made made;

/* `raw_bytes`: below 2^20. Leaves room for the largest header. */
void begin(uint16_t dtype, uint64_t raw_bytes, unsigned bases, unsigned extensions)
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

void put(int count, ...)
{
    va_list list;
    va_start(list, count);
    while (count-- != 0)
        made.bytes[made.count++] = (unsigned char)va_arg(list, int);
    va_end(list);
}

/* Fills in sizes and the block's entry. `content`: decoded; NULL if irrelevant. */
void finish(const void *content)
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

void save(const char *name, const char *content, const char *base)
{
    finish(content);
    write_file(name, "lmc", made.bytes, made.count);
    if (content != NULL)
        write_file(name, "raw", content, (size_t)made.raw_bytes);
    if (base != NULL)
        write_file(name, "base", base, (size_t)made.raw_bytes);
}

/* Seals the frame. */
void save_changed(const char *name, size_t at, uint64_t value, size_t bytes)
{
    finish("abcd");
    seal_put(made.bytes + at, value, bytes);
    seal_frame(made.bytes, made.count);
    write_file(name, "lmc", made.bytes, made.count);
}

/* "abcd" as a raw block. */
void plain(void)
{
    begin(LMC_U8, 4, 0, 0);
    put(5, 0, 'a', 'b', 'c', 'd');
}

/* Lengths of 1 bit for symbols 0 and 1: half bytes 1, 1, then 255 = 19 + 12 + 16 * 14 zeros, 14 12 14; a 0. */
void put_two_symbols(void)
{
    put(3, 0x11, 0xce, 0x0e);
}

/* `n` u8 as a tree plane of them, in segments of 1024, up to the nodes. */
void two_symbols(uint64_t n)
{
    begin(LMC_U8, n, 0, 0);
    put(3, 1, 0, 2);
    put_two_symbols();
    put(1, 10);
}

/* 21 u8 in pairs, up to the inner plane. */
void begin_pairs(int escapes)
{
    begin(LMC_U8, 21, 0, 0);
    seal_put(made.bytes + 4, 2, 4);
    put(6, 1, 0, 7, escapes, 0, 0);
}

/* 0, 7, -7, -1, 1, an escape, 2, -2, 3, eleven times 0, 5. */
void put_pairs(void)
{
    put(12, 0, 0x70, 0xf9, 0x81, 0xe2, 0x03, 0, 0, 0, 0, 0, 5);
}

/*
 * 20 words of f32, two classes: keys below 120 shifted by 20, others not. Words 3 and 4 are in the first, with
 * differences 0x5612345 and -0x1000000: symbols 0x56 and 0xf0. Word 7 is an outlier; word 0 moved by -1.
 */
uint32_t class_base[20], class_content[20];

void fill_classes(void)
{
    for (int i = 0; i < 20; i++)
        class_base[i] = class_content[i] = (uint32_t)(i == 3 || i == 4 ? 0x3b000000 : 0x3d000000) + (uint32_t)i;
    class_content[0] -= 1;
    class_content[3] += 0x5612345;
    class_content[4] -= 0x1000000;
    class_content[7] = 0xdeadbeef;
}

/* Number of classes, first key of the second, shifts, words of each class. */
void begin_classes(int bases)
{
    fill_classes();
    begin(LMC_F32, sizeof class_base, (unsigned)bases, 0);
    put(11, 2, 2, 120, 20, 0, 2, 0, 0, 18, 0, 0);
    put(15, 2, 0, 0, 2, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0);
}

/* Low bytes: 0x12 and 0, 0x34 and 0, none; half bytes: 5 and 0. Symbols of both classes. */
void put_class_lists(void)
{
    put(3, 0, 0x12, 0x00);
    put(3, 0, 0x34, 0x00);
    put(2, 0, 0x05);
    put(3, 0, 0x56, 0xf0);
    put(19, 0, 0xff, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

/* One outlier, 0xdeadbeef, in four planes of the rotated word. */
void put_outlier(void)
{
    put(8, 1, 0xdf, 1, 0x7d, 1, 0x5b, 1, 0xbd);
}

/*
 * 20 words of f64, one byte below the classes: differences i * 257, except word 5, moved by 2^50 (only a plane above
 * shows it), and word 9, by 1000 * 256, an outlier.
 */
uint64_t keyed_base[20], keyed_content[20];

void begin_keyed(int low, int bases)
{
    for (unsigned i = 0; i < 20; i++) {
        const uint64_t moved = i == 5 ? (uint64_t)1 << 50 : i == 9 ? 1000 * 256 : i * 257;
        keyed_base[i] = 0x3f80000000000000u + i * 0x0001000000000000u;
        keyed_content[i] = keyed_base[i] + moved;
    }
    begin(LMC_F64, sizeof keyed_base, (unsigned)bases, 0);
    put(2, 4, low);
}

void put_keyed_planes(void)
{
    put(1, 0);
    for (int i = 0; i < 20; i++)
        put(1, i == 5 || i == 9 ? 0 : i);
    put(3, 1, 0, 0);
    for (int i = 0; i < 20; i++)
        put(1, i == 5 ? 4 : 0);
    put(2, 1, 0);
}

/* One class, no shift. Outlier: word 9's key, 0x3f8 + 9 / 16 - 831, in four bytes, plus 1000, rotated. */
void put_keyed_classes(void)
{
    const uint32_t outlier = (0x3f8u - 831) * 0x800000 + 1000;
    put(17, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    put(4, 1, 0, 0, 0);
    for (int i = 0; i < 20; i++)
        put(1, i == 9 ? 128 : i == 5 ? 0 : i);
    for (int k = 0; k < 4; k++)
        put(2, 1, (int)((outlier << 1 | outlier >> 31) >> 8 * k & 255));
}

void save_keyed(const char *name)
{
    save(name, NULL, NULL);
    write_file(name, "base", keyed_base, sizeof keyed_base);
}

/* Six lines and ten bytes. Lines 2 and 3 copy line 1, the second through the first; line 4 copies line 0. */
char copied[6 * 64 + 10];

void begin_copies(void)
{
    for (size_t i = 0; i < sizeof copied; i++)
        copied[i] = (char)(i * 7 + i / 64 * 3);
    memcpy(copied + 128, copied + 64, 64);
    memcpy(copied + 192, copied + 64, 64);
    memcpy(copied + 256, copied, 64);
    begin(LMC_U8, sizeof copied, 0, 0);
    put(15, 5, 2, 0, 2, 0, 2, 0, 1, 0, 4, 0, 1, 0, 0, 0);
}

void put_rest(int method)
{
    put(1, method);
    for (size_t i = 0; i < sizeof copied; i++)
        if (i < 128 || i >= 320)
            put(1, copied[i]);
}

/* 40 words of two bytes. Words 7 to 16 copy those from word 4 on, which overlap them, words 30 to 38 those from 0. */
char copied_words[80];

void begin_copies_of_words(void)
{
    for (size_t i = 0; i < sizeof copied_words; i++)
        copied_words[i] = (char)(i * 5 + i / 16);
    for (size_t i = 14; i < 34; i++)
        copied_words[i] = copied_words[i - 6];
    memcpy(copied_words + 60, copied_words, 18);
    begin(LMC_U16, sizeof copied_words, 0, 0);
    put(3, 6, 2, 0);
    put(9, 7, 0, 0, 10, 0, 0, 4, 0, 0);
    put(9, 30, 0, 0, 9, 0, 0, 0, 0, 0);
}

void put_rest_of_words(int method)
{
    put(1, method);
    for (size_t i = 0; i < sizeof copied_words; i++)
        if (i < 14 || (i >= 34 && i < 60) || i >= 78)
            put(1, copied_words[i]);
}

/* 70 bytes of 0, except 3 at index 2, so '!' at 66 is in class 1, which begins with 1; and 7 at the end. */
void begin_contexts(int distance, int classes, int first)
{
    begin(LMC_U8, 70, 0, 0);
    put(7, 1, 0, 6, distance, 0, classes, first);
}

void put_contexts(int of_class_0, int of_class_1)
{
    put(6, of_class_0, 0, 0, of_class_1, 0, 0);
    put(14, 3, 0, 0x04, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 3, 7);
    put(2, 0, '!');
}

/* 40 bf16 around 1.0 (0x7f00 rotated), by 8 + 4 bits: 1.05, -1.0, an outlier, 0.5, and ones. */
void begin_values(void)
{
    begin(LMC_BF16, 80, 0, 0);
    put(6, 3, 1, 0x00, 0x7f, 1, 4);
    put(18, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 39, 0, 0, 1, 0, 0);
    put(7, 3, 0, 0x01, 0, 0, 0, 0x1e);
    put(9, 3, 0, 0x0c, 0, 0, 0, 0, 0, 0x80);
    put(5, 0xf0, 1, 0xbe, 1, 0xfb);
}
