/* SPDX-License-Identifier: BSD-3-Clause */
/* ctest: timeout=900 */
/* test_codec_damage.c - damaged, hostile and newer frames, and failing allocations. */
#define _GNU_SOURCE
#include "test_codec_support.h"

#include "data/codec/seal.h"

#include <dirent.h>
#include <stdbool.h>

#ifndef LMC_TEST_DATA
#define LMC_TEST_DATA "tests/data/codec"
#endif

/* Replace codec/base/memory.c's in a static library. */
void *lmci_allocate(size_t bytes);
void lmci_release(void *memory);

static long allocations, releases, fail_at = -1;

void *lmci_allocate(size_t bytes)
{
    if (allocations == fail_at)
        return NULL;
    allocations++;
    return malloc(bytes);
}

void lmci_release(void *memory)
{
    releases += memory != NULL;
    free(memory);
}

/* Each allocation fails in turn. Returns their number. */
static long fail_each_allocation(const struct lmc_params *params)
{
    const size_t bytes = (size_t)params->raw_bytes;
    const size_t room = (size_t)lmc_frame_bound(bytes);
    unsigned char *frame = malloc(room), *back = malloc(bytes);
    bool finished = false;
    for (fail_at = 0; fail_at < 100 && !finished; fail_at++) {
        size_t frame_bytes = 0;
        const char *message = NULL;
        allocations = releases = 0;
        enum lmc_status status = lmc_compress(params, frame, room, &frame_bytes, &message);
        if (status == LMC_OK)
            status = lmc_decompress(frame, frame_bytes, &params->base, back, bytes, &message);
        assert_true(status == LMC_OK || (status == LMC_NO_MEMORY && message != NULL));
        assert_int_equal(allocations, releases);
        finished = status == LMC_OK;
    }
    assert_true(finished);
    assert_memory_equal(back, params->data, bytes);
    fail_at = -1;
    free(frame);
    free(back);
    return allocations;
}

static void test_memory_runs_out(void **unused)
{
    (void)unused;
    const size_t bytes = BLOCK + 4000;
    unsigned char *base = calloc(1, bytes), *data = malloc(bytes);
    struct lmc_params params = {.dtype = LMC_F32, .raw_bytes = bytes, .data = data, .base = base};
    fill(SPARSE, 1, data, bytes);
    long planes = fail_each_allocation(&params);
    take_step(4, 1, 3, 2000, base, data, bytes);
    long classes = fail_each_allocation(&params);
    if (planes != 0 || classes != 0) {
        assert_in_range(planes, 6, 10);
        assert_in_range(classes, 6, 10);
    }
    free(base);
    free(data);
}

static unsigned method_of(const struct lmc_params *params)
{
    struct encoded made =
        encode_at(params->level, params->dtype, params->data, params->base, (size_t)params->raw_bytes);
    struct lmc_frame frame;
    uint64_t at;
    assert_int_equal(lmc_frame_parse(made.frame, made.frame_bytes, &frame, NULL), LMC_OK);
    lmc_frame_block(&frame, 0, &at);
    const unsigned method = made.frame[at];
    free(made.frame);
    return method;
}

static void test_memory_runs_out_elsewhere(void **unused)
{
    (void)unused;
    const size_t bytes = BLOCK + 4096;
    unsigned char *base = malloc(bytes), *data = malloc(bytes);
    uint64_t state = 5;
    struct lmc_params params = {.dtype = LMC_F64, .raw_bytes = bytes, .data = data, .base = base};
    for (size_t i = 0; i < bytes; i += 8) {
        const uint64_t random = next_random(&state), less = (uint64_t)__builtin_ctzll(random | 1 << 9);
        const uint64_t word = (UINT64_C(1020) - less) << 52 | random >> 12;
        const uint64_t next = word + (next_random(&state) >> 40 << less);
        memcpy(base + i, &word, 8);
        memcpy(data + i, &next, 8);
    }
    assert_int_equal(method_of(&params), 4);
    fail_each_allocation(&params);
    params.dtype = LMC_F8_E4M3FN;
    for (size_t i = 0; i < bytes; i++) {
        const uint64_t random = next_random(&state);
        base[i] = (unsigned char)(random & 0x7f);
        data[i] =
            (unsigned char)(base[i] + ((random >> 8 & 0x7f) != 0 ? base[i] < 0x20 && (random >> 20 & 1) != 0 : 1));
    }
    assert_int_equal(method_of(&params), 4);
    fail_each_allocation(&params);
    fill(RANDOM, 1, data, bytes);
    for (size_t i = 4096; i + 1024 <= bytes; i += 1024)
        if (next_random(&state) % 2 != 0)
            memcpy(data + i, data + i % 4096, 1024);
    assert_int_equal(method_of(&params), 6);
    fail_each_allocation(&params);
    memset(data, 0, bytes); /* may shrink without copies */
    for (size_t i = 0; i < bytes; i += 1 + next_random(&state) % 4000)
        data[i] = 1;
    params.base = NULL;
    fail_each_allocation(&params);
    free(base);
    free(data);
}

enum { SMALL = 6000 };

static unsigned char small_data[SMALL], small_base[SMALL];

static struct encoded small_frame(void)
{
    uint64_t state = 3;
    fill(FLOATS, 1, small_data, SMALL);
    memcpy(small_base, small_data, SMALL);
    for (size_t i = 0; i < SMALL; i += 4) {
        uint64_t random = next_random(&state);
        small_base[i] ^= (unsigned char)(random & random >> 8 & 7);
        small_base[i + 2] ^= (unsigned char)((random >> 24) % 40 != 0 ? 0 : random >> 16);
    }
    return encode(LMC_F32, small_data, small_base, SMALL);
}

static enum lmc_status try_decode(const unsigned char *frame, size_t frame_bytes, const void *base, unsigned char *back,
                                  const char **message)
{
    unsigned char *copy = malloc(frame_bytes + (frame_bytes == 0));
    memcpy(copy, frame, frame_bytes);
    enum lmc_status status = lmc_decompress(copy, frame_bytes, &base, back, SMALL, message);
    free(copy);
    return status;
}

static void test_every_bit_flipped(void **unused)
{
    (void)unused;
    struct encoded made = small_frame();
    unsigned char back[SMALL];
    for (size_t bit = 0; bit < 8 * made.frame_bytes; bit++) {
        const char *message = NULL;
        made.frame[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_int_equal(try_decode(made.frame, made.frame_bytes, small_base, back, &message), LMC_DAMAGED);
        assert_non_null(message);
        made.frame[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    free(made.frame);
}

/* A flipped bit without a meaning may leave the decoded bytes; any other must fail. */
static void test_every_bit_flipped_and_sealed(void **unused)
{
    (void)unused;
    struct encoded made = small_frame();
    unsigned char *copy = malloc(made.frame_bytes), back[SMALL];
    int decoded = 0;
    for (size_t bit = 0; bit < 8 * made.frame_bytes; bit++) {
        const char *message = NULL;
        memcpy(copy, made.frame, made.frame_bytes);
        copy[bit / 8] ^= (unsigned char)(1 << bit % 8);
        seal_frame(copy, made.frame_bytes);
        enum lmc_status status = try_decode(copy, made.frame_bytes, small_base, back, &message);
        /* LMC_NO_SPACE: raw_bytes grew. */
        assert_true(status == LMC_OK || status == LMC_DAMAGED || status == LMC_UNSUPPORTED || status == LMC_NO_SPACE);
        if (status == LMC_OK) {
            assert_memory_equal(back, small_data, SMALL);
            decoded++;
        } else {
            assert_non_null(message);
        }
    }
    assert_in_range(decoded, 32, 32 + 128 + 16 + 3 * 64);
    free(copy);
    free(made.frame);
}

static void test_every_truncation(void **unused)
{
    (void)unused;
    struct encoded made = small_frame();
    unsigned char back[SMALL];
    for (size_t bytes = 0; bytes < made.frame_bytes; bytes++) {
        const char *message = NULL;
        assert_int_equal(try_decode(made.frame, bytes, small_base, back, &message), LMC_DAMAGED);
        assert_non_null(message);
    }
    free(made.frame);
}

static void test_every_block_length(void **unused)
{
    (void)unused;
    struct encoded made = small_frame();
    unsigned char *copy = calloc(1, made.frame_bytes + 8), back[SMALL];
    uint64_t header_bytes;
    assert_int_equal(lmc_frame_header_bytes(made.frame, made.frame_bytes, &header_bytes, NULL), LMC_OK);
    for (size_t bytes = (size_t)header_bytes; bytes < made.frame_bytes + 8; bytes++) {
        const char *message = NULL;
        if (bytes == made.frame_bytes)
            continue;
        memcpy(copy, made.frame, made.frame_bytes);
        seal_put(copy + 24, bytes, 8);
        seal_frame(copy, bytes);
        assert_int_equal(try_decode(copy, bytes, small_base, back, &message), LMC_DAMAGED);
    }
    free(copy);
    free(made.frame);
}

static void test_wrong_base(void **unused)
{
    (void)unused;
    struct encoded made = small_frame();
    unsigned char back[SMALL];
    const char *message = "";
    small_base[100] ^= 1;
    assert_int_equal(try_decode(made.frame, made.frame_bytes, small_base, back, &message), LMC_DAMAGED);
    assert_non_null(strstr(message, "base"));
    assert_int_equal(try_decode(made.frame, made.frame_bytes, NULL, back, &message), LMC_INVALID);
    free(made.frame);
}

/* Only the index reveals swapped blocks. */
static void test_swapped_blocks(void **unused)
{
    (void)unused;
    unsigned char *data = malloc(2 * BLOCK);
    fill(RANDOM, 1, data, 2 * BLOCK);
    struct encoded made = encode(LMC_U8, data, NULL, 2 * BLOCK);
    unsigned char *first = made.frame + 64 + 64 + 8, *copy = malloc(BLOCK + 1), entry[24];
    assert_int_equal(made.frame_bytes, 64 + 64 + 8 + 2 * (BLOCK + 1));
    memcpy(copy, first, BLOCK + 1);
    memcpy(first, first + BLOCK + 1, BLOCK + 1);
    memcpy(first + BLOCK + 1, copy, BLOCK + 1);
    memcpy(entry, made.frame + 72, 24);
    memcpy(made.frame + 72, made.frame + 104, 24);
    memcpy(made.frame + 104, entry, 24);
    seal_put(made.frame + 128, lmc_hash64(made.frame, 128, 0), 8);
    assert_int_equal(lmc_decompress(made.frame, made.frame_bytes, NULL, data, 2 * BLOCK, NULL), LMC_DAMAGED);
    free(made.frame);
    free(copy);
    free(data);
}

enum { WORDS = 30, DELTA_HEADER = 64 + 16 + 32 + 8 };

/* Decodes a handmade frame of one block that equals its base, in memory of exactly its size. */
static enum lmc_status decode_delta(uint32_t dtype, const unsigned char *coded, size_t coded_bytes,
                                    const unsigned char *base, size_t bytes, const char **message)
{
    unsigned char *frame = calloc(1, DELTA_HEADER + coded_bytes), back[4 * WORDS];
    const void *bases[1] = {base};
    const struct lmc_hash content = lmc_hash128(base, bytes);
    memcpy(frame, "LMCF", 4);
    seal_put(frame + 4, 1, 4);
    seal_put(frame + 16, bytes, 8);
    seal_put(frame + 24, DELTA_HEADER + coded_bytes, 8);
    seal_put(frame + 32, dtype, 2);
    frame[36] = frame[37] = 1;
    frame[38] = 20;
    seal_put(frame + 80, DELTA_HEADER, 8);
    memcpy(frame + 96, &content, sizeof content);
    memcpy(frame + DELTA_HEADER, coded, coded_bytes);
    seal_frame(frame, DELTA_HEADER + coded_bytes);
    enum lmc_status status = lmc_decompress(frame, DELTA_HEADER + coded_bytes, bases, back, bytes, message);
    free(frame);
    return status;
}

static void put_words(size_t word, uint32_t x, unsigned char *base, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        put_word(base + i * word, x, word);
}

/* All symbols are 0, so a word in the wrong class keeps the content. */
static void test_classes_that_dont_come_out_even(void **unused)
{
    (void)unused;
    static const unsigned char amounts[][3] = {{10, 10, 10}, {11, 9, 10}, {10, 11, 9}, {9, 10, 11}, {10, 9, 11}};
    unsigned char base[2 * WORDS];
    for (unsigned c = 0; c < 3; c++)
        put_words(2, (30 * c + 30) << 7, base, 10 * c, 10 * c + 10);
    for (size_t k = 0; k < sizeof amounts / sizeof *amounts; k++) {
        unsigned char coded[31 + 3 * 2] = {2, 3, 50, 80};
        const char *message = "";
        for (size_t c = 0; c < 3; c++) {
            coded[7 + 3 * c] = amounts[k][c];
            coded[31 + 2 * c] = 1;
        }
        assert_int_equal(decode_delta(LMC_BF16, coded, sizeof coded, base, sizeof base, &message),
                         k ? LMC_DAMAGED : LMC_OK);
        assert_true(k == 0 || strstr(message, "another base"));
    }
}

/* One class with each shift. Each list below the symbols is one entry too short, or superfluous. */
static void test_lists_that_dont_come_out_even(void **unused)
{
    (void)unused;
    unsigned char base[4 * WORDS];
    put_words(4, 0x3f800000, base, 0, WORDS);
    for (unsigned shift = 0; shift <= 24; shift += 4) {
        for (unsigned wrong = 0; wrong <= 4; wrong++) {
            unsigned char coded[21 + 5 * 2] = {2, 1, (unsigned char)shift, WORDS};
            size_t used = 21;
            const char *message = "";
            for (unsigned list = 0; list < 4; list++) { /* three lists of low bytes, and the half bytes */
                unsigned entries = (list < 3 ? shift / 8 > list : shift % 8 != 0) ? WORDS : 0;
                entries = list != wrong ? entries : entries != 0 ? entries - 1 : 1;
                coded[6 + 3 * list] = (unsigned char)entries;
                coded[used] = 1;
                used += entries != 0 ? 2 : 0;
            }
            coded[used] = 1;
            assert_int_equal(decode_delta(LMC_F32, coded, used + 2, base, sizeof base, &message),
                             wrong < 4 ? LMC_DAMAGED : LMC_OK);
            assert_true(wrong == 4 || strstr(message, "another base"));
        }
    }
}

/* All words use one list with a single raw entry at the frame's end: reads stay inside. */
static void test_lists_shorter_than_what_is_asked(void **unused)
{
    (void)unused;
    unsigned char base[4 * WORDS];
    const char *message = "";
    put_words(4, 0x3f800000, base, 0, WORDS);
    const unsigned char symbols[26 + 2 * 2] = {2, 2, 200, [5] = 1, [8] = WORDS - 1, [28] = 1};
    assert_int_equal(decode_delta(LMC_F32, symbols, sizeof symbols, base, sizeof base, &message), LMC_DAMAGED);
    assert_non_null(strstr(message, "another base"));
    for (unsigned k = 0; k < 3; k++) {
        unsigned char low[21 + 5 * 2] = {2, 1, 24, WORDS};
        size_t used = 21;
        for (unsigned list = 0; list < 3; list++, used += 2) {
            low[6 + 3 * list] = list == k ? 1 : WORDS;
            low[used] = list != k;
        }
        low[used] = 1;
        assert_int_equal(decode_delta(LMC_F32, low, used + 2, base, sizeof base, &message), LMC_DAMAGED);
        assert_non_null(strstr(message, "another base"));
    }
}

/* Fields of the prefix at their extremes, in pairs: sizes do not overflow. */
static void test_extreme_prefixes(void **unused)
{
    (void)unused;
    static const struct {
        size_t at, bytes;
    } fields[] = {{4, 4},  {8, 4},  {16, 8}, {24, 8}, {32, 2}, {34, 2},
                  {36, 1}, {37, 1}, {38, 1}, {40, 4}, {44, 4}, {48, 4}};
    static const uint64_t values[] = {0,
                                      1,
                                      8,
                                      UINT32_MAX - 7,
                                      UINT32_MAX,
                                      (uint64_t)1 << 55,
                                      ((uint64_t)1 << 55) + 1,
                                      (uint64_t)1 << 56,
                                      ((uint64_t)1 << 63) - 1,
                                      (uint64_t)1 << 63,
                                      UINT64_MAX - 63,
                                      UINT64_MAX};
    struct encoded made = small_frame();
    const size_t nf = sizeof fields / sizeof *fields, nv = sizeof values / sizeof *values;
    for (size_t k = 0; k < nf * nv * nf * nv; k++) {
        unsigned char copy[180];
        struct lmc_frame frame;
        uint64_t header_bytes = 1;
        const char *message = NULL;
        memcpy(copy, made.frame, sizeof copy);
        seal_put(copy + fields[k % nf].at, values[k / nf % nv], fields[k % nf].bytes);
        seal_put(copy + fields[k / nf / nv % nf].at, values[k / nf / nv / nf], fields[k / nf / nv % nf].bytes);
        seal_frame(copy, sizeof copy);
        enum lmc_status status = lmc_frame_header_bytes(copy, 64, &header_bytes, &message);
        assert_true(status == LMC_OK ? header_bytes >= 72 : header_bytes == 0 && message != NULL);
        if (status == LMC_OK && lmc_frame_parse(copy, sizeof copy, &frame, &message) == LMC_OK)
            assert_true(frame.header_bytes <= sizeof copy && frame.header_bytes <= frame.frame_bytes);
    }
    free(made.frame);
}

/* Only the caller's sizes are used. */
static void test_huge_claims(void **unused)
{
    (void)unused;
    unsigned char prefix[64] = "LMCF";
    uint64_t raw_bytes = (uint64_t)1 << 55;
    uint64_t header_bytes;
    struct lmc_frame frame;
    seal_put(prefix + 4, 1, 4);
    seal_put(prefix + 16, raw_bytes, 8);
    seal_put(prefix + 24, raw_bytes + raw_bytes / 1024, 8);
    prefix[32] = LMC_U8;
    prefix[37] = 1;
    prefix[38] = 20;
    seal_put(prefix + 56, lmc_hash64(prefix, 56, 0), 8);
    assert_int_equal(lmc_frame_header_bytes(prefix, 64, &header_bytes, NULL), LMC_DAMAGED);
    seal_put(prefix + 24, raw_bytes + 64, 8);
    seal_put(prefix + 56, lmc_hash64(prefix, 56, 0), 8);
    assert_int_equal(lmc_frame_header_bytes(prefix, 64, &header_bytes, NULL), LMC_OK);
    assert_true(header_bytes == 64 + (raw_bytes >> 20) * 32 + 8);
    assert_int_equal(lmc_frame_parse(prefix, 64, &frame, NULL), LMC_DAMAGED);
}

static const char *corpus(void)
{
    static char path[800];
    const char *data = getenv("LMCS_TEST_DATA");
    if (data == NULL)
        return LMC_TEST_DATA;
    snprintf(path, sizeof path, "%s/codec", data);
    return path;
}

struct bytes {
    unsigned char *at;
    size_t count;
};

static struct bytes read_file(const char *path)
{
    struct bytes bytes = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return bytes;
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    bytes.count = (size_t)ftell(file);
    bytes.at = malloc(bytes.count + (bytes.count == 0));
    rewind(file);
    assert_int_equal(fread(bytes.at, 1, bytes.count, file), bytes.count);
    fclose(file);
    return bytes;
}

static struct bytes read_part(const char *folder, const char *name, const char *suffix)
{
    char path[1600];
    snprintf(path, sizeof path, "%s/%s/%s.%s", corpus(), folder, name, suffix);
    return read_file(path);
}

static void assert_told(const char *name, const char *message)
{
    char path[900], row[400];
    snprintf(path, sizeof path, "%s/README.md", corpus());
    snprintf(row, sizeof row, "| %s | %s |", name, message);
    struct bytes readme = read_file(path);
    int told = readme.at != NULL && memmem(readme.at, readme.count, row, strlen(row)) != NULL;
    if (told == 0)
        print_error("not in README.md: %s\n", row);
    assert_true(told);
    free(readme.at);
}

/* Decodes a link in place, in the concatenated arrays of the base. */
static enum lmc_status decode_link(const struct bytes *frame, const struct bytes *base, unsigned char *back,
                                   const char **message)
{
    const size_t arrays = frame->at[37] != 0 ? frame->at[37] : 1;
    void *state[LMC_MAX_BASES] = {NULL};
    memcpy(back, base->at, base->count);
    for (size_t k = 0; k < arrays && k < LMC_MAX_BASES; k++)
        state[k] = back + k * (base->count / arrays);
    return lmc_link_decompress(frame->at, frame->count, state, base->count / arrays, message);
}

static void replay(const char *folder, const char *name, enum lmc_status expected)
{
    struct bytes frame = read_part(folder, name, "lmc");
    struct bytes base = read_part(folder, name, "base");
    struct bytes raw = read_part(folder, name, "raw");
    const void *bases[1] = {base.at};
    const size_t room = expected == LMC_OK && raw.at != NULL ? raw.count : 3 * BLOCK;
    unsigned char *back = malloc(room + 1);
    const char *message = "";
    enum lmc_status status = strncmp(name, "link-", 5) == 0
                                 ? decode_link(&frame, &base, back, &message)
                                 : lmc_decompress(frame.at, frame.count, bases, back, room, &message);
    if (status != expected)
        print_error("%s/%s: %d %s\n", folder, name, (int)status, message);
    assert_int_equal(status, expected);
    if (expected == LMC_OK && raw.at != NULL)
        assert_memory_equal(back, raw.at, raw.count);
    if (expected != LMC_OK)
        assert_told(name, message);
    free(frame.at);
    free(base.at);
    free(raw.at);
    free(back);
}

static void replay_folder(const char *folder, enum lmc_status expected, int at_least)
{
    char path[1000], name[256];
    int replayed = 0;
    snprintf(path, sizeof path, "%s/%s", corpus(), folder);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        size_t length = strlen(entry->d_name);
        if (length < 5 || strcmp(entry->d_name + length - 4, ".lmc") != 0)
            continue;
        memcpy(name, entry->d_name, length - 4);
        name[length - 4] = 0;
        replay(folder, name, expected);
        replayed++;
    }
    closedir(directory);
    assert_in_range(replayed, at_least, 10000);
}

static void test_good_corpus(void **unused)
{
    (void)unused;
    replay_folder("good", LMC_OK, 20);
}

static void test_bad_corpus(void **unused)
{
    (void)unused;
    replay_folder("bad", LMC_DAMAGED, 50);
}

static void test_unsupported_corpus(void **unused)
{
    (void)unused;
    replay_folder("unsupported", LMC_UNSUPPORTED, 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_memory_runs_out_elsewhere),
        cmocka_unit_test(test_every_bit_flipped),
        cmocka_unit_test(test_every_bit_flipped_and_sealed),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_block_length),
        cmocka_unit_test(test_wrong_base),
        cmocka_unit_test(test_swapped_blocks),
        cmocka_unit_test(test_classes_that_dont_come_out_even),
        cmocka_unit_test(test_lists_that_dont_come_out_even),
        cmocka_unit_test(test_lists_shorter_than_what_is_asked),
        cmocka_unit_test(test_extreme_prefixes),
        cmocka_unit_test(test_huge_claims),
        cmocka_unit_test(test_good_corpus),
        cmocka_unit_test(test_bad_corpus),
        cmocka_unit_test(test_unsupported_corpus),
    };
    return with_all_kernels(cmocka_run_group_tests(tests, NULL, NULL));
}
