/* SPDX-License-Identifier: BSD-3-Clause */
/* corpus_good.c - frames of good/, assembled by hand. */
#include "corpus.h"

#include <stdio.h>

/* Contents are longer than the feature needs: a block exceeds them by at most one byte. */
static void good_codes(void)
{
    /* Lengths 1 to 11 for symbols 0 to 10, 12 for 11 and 12; 244 = 19 + 1 + 16 * 14 zeros. The tree: root, node of
     * symbol 1, nine nodes that 11 and 12 pass, the last. */
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

    /* 1 for symbol 0, 255 = 19 + 12 + 16 * 14 zeros, 1 for the escape, which encodes 'x' and another 0. */
    memset(content, 0, sizeof content);
    content[3] = 'x';
    begin(LMC_U8, 40, 0, 0);
    put(7, 1, 0, 2, 0xe1, 0xec, 0x01, 10);
    put(7, 0x08, 0x04, 0, 0, 0, 'x', 0);
    save("escapes", content, NULL);

    /* Two segments, 1024 and 976 symbols, alternating 0 and 1. */
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
    /* Three flags, in a tree plane of symbols 0, 1 and 0. */
    content[9] = 1;
    begin(LMC_U8, 100, 0, 0);
    put(17, 1, 0, 3, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    put(1, 2);
    put_two_symbols();
    put(2, 10, 0x02);
    save("sparse-tree", content, NULL);

    /* 100 bytes; the 13 bytes of flags are sparse: 2 bytes for bytes 0 and 12. */
    content[1] = 5;
    content[9] = 0;
    content[99] = 6;
    begin(LMC_I8, 100, 0, 0);
    put(10, 1, 0, 3, 3, 0, 0x01, 0x10, 0, 0x02, 0x08);
    put(3, 0, 5, 6);
    save("nested-sparse", content, NULL);

    /* One of 20000 bytes is not zero, as of 2500, 313, 40 and 5 bytes of flags. */
    static char many[20000];
    many[12345] = 7;
    begin(LMC_U8, sizeof many, 0, 0);
    put(12, 1, 0, 3, 3, 3, 3, 0, 0, 0, 0, 1, 0);
    put(8, 1, 1 << 12345 / 64 % 8, 1, 1 << 12345 / 8 % 8, 1, 1 << 12345 % 8, 1, 7);
    save("deepest-sparse", many, NULL);
}

static void good_keyed(void)
{
    begin_keyed(1, 1);
    put_keyed_planes();
    put_keyed_classes();
    save("keyed-f64", (const char *)keyed_content, (const char *)keyed_base);

    /* Three classes, keys 0, 1 to 254, and 255, between which exponents are clamped. */
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

    /* 80 words of f8, two classes: +2 for keys from 0x38 on, -1 below, except word 3, moved by -128: its key in a word
     * of 2 bytes, less 128, rotated. */
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

static void good_copies(void)
{
    begin_copies();
    put_rest(0);
    save("copies", copied, NULL);
    begin_copies_of_words();
    put_rest_of_words(0);
    save("copies-of-words", copied_words, NULL);
}

/* A piece of constant 7, and a raw piece of 5 bytes. */
static void good_pieces(void)
{
    static char content[(1 << 16) + 5];
    memset(content, 7, sizeof content);
    memcpy(content + (1 << 16), "12345", 5);
    begin(LMC_U8, sizeof content, 0, 0);
    put(6, 1, 0, 4, 16, 1, 7);
    put(6, 0, '1', '2', '3', '4', '5');
    finish(content);
    write_file("pieces", "lmc", made.bytes, made.count);
}

/* 11 bytes of 0x40 with varying bits 0 and 5, as of i % 4. */
static void good_bits(void)
{
    char content[11];
    for (int i = 0; i < 11; i++)
        content[i] = (char)(0x40 | (i & 1) | (i & 2) << 4);
    begin(LMC_U8, sizeof content, 0, 0);
    put(8, 1, 0, 5, 0x40, 0x21, 0xe4, 0xe4, 0x24);
    save("bits", content, NULL);
}

static void good_pairs(void)
{
    begin_pairs(1);
    put_pairs();
    put(2, 0, 0xf8);
    save("pairs", "\x00\x07\xf9\xff\x01\xf8\x02\xfe\x03\0\0\0\0\0\0\0\0\0\0\0\x05", NULL);
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

void good_by_hand(void)
{
    good_codes();
    good_keyed();
    good_copies();
    good_sparse();
    good_pieces();
    good_bits();
    good_pairs();
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
