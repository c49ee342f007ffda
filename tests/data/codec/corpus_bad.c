/* SPDX-License-Identifier: BSD-3-Clause */
/* corpus_bad.c - frames of bad/ and of unsupported/, assembled by hand. */
#include "corpus.h"

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
    finish("abcd");
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
        finish("abcd");
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
    finish("abcd");
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

static void bad_pairs(void)
{
    begin(LMC_U8, 21, 0, 0);
    put(4, 1, 0, 7, 0);
    save("pairs-cut", NULL, NULL);
    begin_pairs(12);
    put_pairs();
    save("pairs-too-many-escapes", NULL, NULL);
    begin_pairs(0);
    put_pairs();
    save("pairs-escapes-missing", NULL, NULL);
    begin_pairs(2);
    put_pairs();
    put(3, 0, 9, 9);
    save("pairs-escapes-left", NULL, NULL);
    begin_pairs(1);
    put_pairs();
    put(1, 0);
    save("pairs-escapes-cut", NULL, NULL);
    begin_pairs(1);
    put_pairs();
    made.bytes[made.count - 1] |= 0x10;
    put(2, 0, 9);
    save("pairs-half-left", NULL, NULL);
    begin_pairs(0);
    put(4, 7, 0, 0, 0);
    save("pairs-of-pairs", NULL, NULL);
    begin_pairs(0);
    put(3, 3, 0, 1);
    save("pairs-of-sparse", NULL, NULL);
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
    /* Class 1 begins with 4: '!' is in class 0, and the lists don't match. */
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
    made.bytes[made.count - 6] = 0; /* outlier not marked */
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
        {"lengths-too-many", {0x11, 0xb1, 0xbe, 0x0e}},  /* too many codes, then too long a run */
        {"lengths-run-too-far", {0x11, 0xde, 0x0e, 0}},  /* 1, 1, then 256 zeros */
        {"lengths-repeat-first", {0x0f, 0x11, 0xee, 0}}, /* nothing to repeat */
        {"lengths-half-left", {0x11, 0xce, 0x1e, 0}},    /* the unused half byte is 1 */
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
        int at, value; /* offset after the method, new value */
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
    /* One word in the class with half bytes: the high half is unused. */
    begin(LMC_F32, sizeof class_base, 1, 0);
    put(11, 2, 2, 120, 20, 0, 1, 0, 0, 19, 0, 0);
    put(15, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0);
    put(8, 0, 0x12, 0, 0x34, 0, 0x15, 0, 0x56);
    put(2, 1, 0);
    save_bad_classes("classes-half-left");
    /* Key 123, not 119: word 3 is in the other class. */
    begin_classes(1);
    put_class_lists();
    put_outlier();
    class_base[3] = 0x3d800000;
    save_bad_classes("classes-wrong-base");
    /* Wrong lists: a missing mark, an extra low byte, an extra half byte. */
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

static void bad_copies_of_words(void)
{
    static const struct {
        const char *name;
        int at, value;
    } changes[] = {{"words-none", 0, 0},       {"words-more", 1, 1},       {"words-empty", 5, 0},
                   {"words-of-itself", 8, 7},  {"words-of-later", 9, 1},   {"words-overlap", 11, 16},
                   {"words-past-end", 14, 11}, {"words-rest-short", 5, 9}, {"words-of-lines", 20, 5},
                   {"words-of-words", 20, 6}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        begin_copies_of_words();
        put_rest_of_words(0);
        made.bytes[made.header_bytes + 1 + (size_t)changes[i].at] = (unsigned char)changes[i].value;
        save(changes[i].name, NULL, NULL);
    }
    begin_copies_of_words();
    save("words-without-rest", NULL, NULL);
    begin_copies();
    put_rest(6);
    save("copies-of-words", NULL, NULL);
}

static void bad_copies(void)
{
    static const struct {
        const char *name;
        int at, value;
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
    finish("\7\7\7\7");
    write_file("checksum-wrong-base", "lmc", made.bytes, made.count);
    write_file("checksum-wrong-base", "base", "\0\0\0\1", 4);
}

void bad_by_hand(void)
{
    bad_headers();
    bad_checksums();
    bad_lengths_of_frames();
    bad_blocks();
    bad_pieces();
    bad_bits();
    bad_pairs();
    bad_contexts();
    bad_values();
    bad_trees();
    bad_classes();
    bad_keyed();
    bad_copies();
    bad_copies_of_words();
    bad_bases();
}

/* ---- Unsupported ones ------------------------------------------------------------------------------------------ */

void unsupported_by_hand(void)
{
    plain();
    save_changed("version-3", 4, 3, 4);
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
    put(2, 77, 0);
    save("block-method", NULL, NULL);
    begin(LMC_U8, 4, 0, 0);
    put(4, 1, 5, 1, 9);
    save("block-transform", NULL, NULL);
    begin(LMC_U8, 4, 0, 0);
    put(4, 1, 0, 8, 9);
    save("plane-kind", NULL, NULL);
    begin_pairs(1);
    put(5, 4, 16, 1, 9, 0);
    save("pairs-of-pieces", NULL, NULL);
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
