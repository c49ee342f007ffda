/* SPDX-License-Identifier: BSD-3-Clause */
/* ctest: timeout=900 */
/*
 * test_codec_modes.c - each method is chosen where it pays, saves its share, and is equal in all kernels.
 *
 * Bounds on sizes follow from the construction of the data, not from the codec's output.
 */
#define _GNU_SOURCE
#include "test_codec_modes_support.h"

static void test_kernels_can_be_chosen(void **unused)
{
    (void)unused;
    if (lmci_kernels_use == 0)
        skip();
    const char *usual = lmc_kernels();
    assert_true(use_kernels("portable"));
    assert_string_equal(lmc_kernels(), "portable");
    assert_false(use_kernels("mmx"));
    assert_string_equal(lmc_kernels(), "portable");
    assert_true(lmci_kernels_use(NULL));
    assert_string_equal(lmc_kernels(), usual);
}

#if defined(__x86_64__)
/* `flags`: from /proc/cpuinfo, where the kernel lists what programs may use. */
static bool has_flags(const char *flags, const char *const *wanted, size_t count)
{
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        char word[32];
        snprintf(word, sizeof word, " %s ", wanted[i]);
        all = all && strstr(flags, word) != NULL;
    }
    return all;
}
#endif

static void test_the_best_kernels_run(void **unused)
{
    (void)unused;
    const char *best = "portable";
    if (getenv("LMC_KERNELS") != NULL)
        skip();
#if defined(__x86_64__)
    static const char *const avx2[] = {"avx2", "bmi1", "bmi2", "fma"};
    static const char *const avx512[] = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vbmi", "avx512_vbmi2"};
    char *line = NULL;
    size_t room = 0;
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL)
        skip();
    while (getline(&line, &room, file) > 0 && strncmp(line, "flags", 5) != 0)
        ;
    fclose(file);
    line[strcspn(line, "\n")] = ' ';
    best = !has_flags(line, avx2, 4) ? "portable" : has_flags(line, avx512, 6) ? "avx512" : "avx2";
    free(line);
#elif defined(__aarch64__)
    best = "neon";
#endif
    assert_string_equal(lmc_kernels(), best);
}

static void test_any_bits_of_a_byte(void **unused)
{
    (void)unused;
    static unsigned char data[5000];
    for (unsigned mask = 1; mask < 255; mask++) {
        const size_t n = 4000 + mask % 17, bits = (size_t)__builtin_popcount(mask);
        fill(RANDOM, mask, data, n);
        for (size_t i = 0; i < n; i++)
            data[i] = (unsigned char)((data[i] & mask) | (0x5a & ~mask));
        struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, LMC_U8, data, NULL, n);
        assert_int_equal(plane_kind(&made, 0, n), BITS);
        assert_int_equal(made.frame_bytes, 64 + 32 + 8 + 2 + 3 + (n * bits + 7) / 8);
        free(made.frame);
    }
}

/* Pieces of a whole block's plane would not be shorter. */
static void test_bits_of_a_whole_block(void **unused)
{
    (void)unused;
    unsigned char *data = malloc(BLOCK);
    fill(RANDOM, 1, data, BLOCK);
    for (size_t i = 0; i < BLOCK; i++)
        data[i] &= 0x3c;
    struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, LMC_U8, data, NULL, BLOCK);
    assert_int_equal(plane_kind(&made, 0, BLOCK), BITS);
    assert_int_equal(made.frame_bytes, 64 + 32 + 8 + 2 + 3 + BLOCK / 2);
    free(made.frame);
    free(data);
}

/* Codes of few symbols have no escape: three take 1.67 bits instead of 2. */
static void test_few_symbols(void **unused)
{
    (void)unused;
    static const unsigned expected[] = {0, 0, 0, 1667, 0, 2400, 2667, 2858, 0, 3223};
    const size_t n = 600000;
    unsigned char *data = malloc(n);
    for (unsigned symbols = 3; symbols < 10; symbols++) {
        fill(RANDOM, symbols, data, n);
        for (size_t i = 0; i < n; i++)
            data[i] = (unsigned char)(data[i] % symbols * 28 + 1);
        if (expected[symbols] == 0)
            continue;
        const size_t usual = usual_size(LMC_U8, data, n);
        assert_in_range(usual, 0, n / 8 * expected[symbols] / 1000 + n / 800);
        data[n - 12345] = 2;
        assert_in_range(usual_size(LMC_U8, data, n), 0, n / 8 * (expected[symbols] + 600) / 1000);
    }
    free(data);
}

/* A bit that varies once is never missed. */
static void test_bits_that_vary_rarely(void **unused)
{
    (void)unused;
    static const size_t places[] = {0, 1, 63, 64, 777, 50000, 69997, 69998};
    static unsigned char data[69999];
    for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
        fill(RANDOM, k, data, sizeof data);
        for (size_t i = 0; i < sizeof data; i++)
            data[i] &= 0x1f;
        data[places[k]] ^= 0x80;
        assert_in_range(usual_size(LMC_U8, data, sizeof data), sizeof data * 5 / 8, sizeof data * 27 / 40);
    }
}

static void test_short_mantissas(void **unused)
{
    (void)unused;
    const size_t n = 200000;
    unsigned char *data = malloc(4 * n);
    uint64_t state = 3;
    for (size_t i = 0; i < n; i++)
        put_word(data + 4 * i, (uint32_t)next_random(&state) & 0xffffe000, 4);
    assert_in_range(usual_size(LMC_F32, data, 4 * n), n * 19 / 8, n * 19 / 8 + n / 100);
    for (size_t i = 0; i < n; i++) /* weights: a sign, 10 bits, and less than 3 bits of an exponent */
        put_word(data + 4 * i, bits_of(next_normal(&state)) & 0xffffe000, 4);
    assert_in_range(usual_size(LMC_F32, data, 4 * n), n * 12 / 8, n * 14 / 8);
    for (size_t i = 0; i < n; i++)
        put_word(data + 4 * i, bits_of(next_normal(&state)) & 0xffff0000, 4);
    size_t wide = usual_size(LMC_F32, data, 4 * n);
    for (size_t i = 0; i < n; i++)
        memmove(data + 2 * i, data + 4 * i + 2, 2);
    size_t narrow = usual_size(LMC_BF16, data, 2 * n);
    assert_in_range(wide, 0, narrow + narrow / 200 + 100);
    free(data);
}

static void test_signs(void **unused)
{
    (void)unused;
    const size_t n = 200000;
    unsigned char *data = malloc(4 * n);
    for (uint32_t dtype = LMC_BF16; dtype <= LMC_F32; dtype++) {
        const size_t word = dtype == LMC_F32 ? 4 : 2;
        put_weights(dtype, data, n, no_scale);
        size_t with = usual_size(dtype, data, word * n);
        for (size_t i = 0; i < n; i++)
            data[word * i + word - 1] &= 0x7f;
        size_t without = usual_size(dtype, data, word * n);
        assert_in_range(without, 0, with - n / 8 * 19 / 20);
        for (size_t i = 0; i < n; i++)
            data[word * i + word - 1] |= 0x80;
        assert_in_range(usual_size(dtype, data, word * n), without - n / 800, without + n / 800);
    }
    free(data);
}

static void test_scales_by_column(void **unused)
{
    (void)unused;
    const size_t n = 300000;
    unsigned char *data = malloc(4 * n);
    for (uint32_t dtype = LMC_BF16; dtype <= LMC_F32; dtype++) {
        for (enum lmc_level level = LMC_LEVEL_DEFAULT; level <= LMC_LEVEL_DENSE; level++) {
            put_weights(dtype, data, n, scale_by_column);
            size_t gain = gain_of_order(level, dtype, data, n);
            assert_in_range(gain, dtype == LMC_BF16 ? 45 : 20, 200);
        }
    }
    for (size_t i = 0; i < n; i++)
        data[i] = (unsigned char)(i % 64 * 3 + (data[i] & 3)); /* two bits, given the byte 64 before */
    struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, LMC_U8, data, NULL, n);
    assert_int_equal(plane_kind(&made, 0, n), CONTEXTS);
    assert_in_range(made.frame_bytes, n * 2 / 8, n * 13 / 20);
    free(made.frame);
    for (size_t some = 64 * KIB - 1; some <= 64 * KIB; some++) {
        made = encode_by_all(LMC_LEVEL_DEFAULT, LMC_U8, data, NULL, some);
        assert_int_equal(plane_kind(&made, 0, some) == CONTEXTS, some == 64 * KIB);
        free(made.frame);
    }
    free(data);
}

static void test_scales_by_quarter(void **unused)
{
    (void)unused;
    const size_t n = 512 * KIB;
    unsigned char *data = malloc(2 * n);
    put_weights(LMC_BF16, data, n, scale_by_quarter);
    struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, LMC_BF16, data, NULL, 2 * n);
    assert_int_equal(plane_kind(&made, 1, n), PIECES);
    free(made.frame);
    assert_in_range(gain_of_order(LMC_LEVEL_DEFAULT, LMC_BF16, data, n), 80, 200);
    put_weights(LMC_BF16, data, 64 * KIB, scale_by_quarter); /* quarters of 16 KiB: dense only */
    assert_in_range(gain_of_order(LMC_LEVEL_DENSE, LMC_BF16, data, 64 * KIB), 80, 200);
    free(data);
}

static void test_pieces_unlike(void **unused)
{
    (void)unused;
    const size_t n = 64 * KIB;
    unsigned char *data = malloc(6 * n);
    fill(RANDOM, 1, data, 6 * n);
    memset(data, 7, n);
    for (size_t i = 2 * n; i < 3 * n; i++)
        data[i] &= 0x18;
    fill(SPARSE, 2, data + 3 * n, n);
    for (size_t i = 4 * n; i < 5 * n; i++)
        data[i] = (unsigned char)(data[i] % 16);
    const size_t words = 5 * n + 12345;
    unsigned char *beside = malloc(2 * words); /* adjacent noise, so that no line repeats */
    fill(RANDOM, 3, beside, 2 * words);
    for (size_t i = 0; i < words; i++)
        beside[2 * i] = data[i];
    struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, LMC_U16, beside, NULL, 2 * words);
    assert_int_equal(plane_kind(&made, 0, words), PIECES);
    /* 8 bits + 2 + about 0.1 + 4, and the last piece 8 */
    assert_in_range(made.frame_bytes - words, n * 14 / 8 + 12345, n * 29 / 16 + 12345);
    free(made.frame);
    free(beside);
    free(data);
}

/* The dense level uses values whose first bits are related: normal ones, of the shortest floats. */
static void test_values(void **unused)
{
    (void)unused;
    const size_t n = 400000;
    unsigned char *data = malloc(2 * n);
    put_weights(LMC_BF16, data, n, no_scale);
    struct encoded usual = encode_by_all(LMC_LEVEL_DEFAULT, LMC_BF16, data, NULL, 2 * n);
    struct encoded dense = encode_by_all(LMC_LEVEL_DENSE, LMC_BF16, data, NULL, 2 * n);
    assert_int_equal(coded_block(&usual, 0)[0], 1);
    assert_int_equal(coded_block(&dense, 0)[0], 3);
    assert_in_range(usual.frame_bytes - dense.frame_bytes, n / 400, n / 8); /* at least two hundredths of a bit */
    free(usual.frame);
    free(dense.frame);
    free(data);
}

/* Changed signs are outliers: each takes its word and a mark, which turns a code of seven symbols into one of eight. */
static void test_signs_that_turn(void **unused)
{
    (void)unused;
    const size_t n = 250000;
    unsigned char *before = malloc(4 * n), *after = malloc(4 * n);
    for (uint32_t dtype = LMC_BF16; dtype <= LMC_F32; dtype++) {
        const size_t word = dtype == LMC_F32 ? 4 : 2;
        take_step(word, 1, 3, 0, before, after, word * n);
        size_t none = round_trip_by_all(LMC_LEVEL_DEFAULT, dtype, after, before, word * n);
        for (unsigned flips = 1000; flips >= 20; flips = flips * 2 / 5) {
            take_step(word, 1, 3, flips, before, after, word * n);
            struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, dtype, after, before, word * n);
            assert_int_equal(coded_block(&made, 0)[0], 2);
            assert_in_range(made.frame_bytes, none, none + n / 8 / 6 + n / flips * (word + 1) + 600);
            free(made.frame);
        }
    }
    free(before);
    free(after);
}

/* Words moved by 1, or by 0, 2 or -1 with `often` in 64; one in `far` moved by 40. */
static void take_small_steps(unsigned often, size_t far, const uint16_t *before, uint16_t *after, size_t n)
{
    uint64_t state = often;
    for (size_t i = 0; i < n; i++) {
        static const int others[] = {0, 2, -1, 0};
        const uint64_t random = next_random(&state);
        const int step = random % 64 < often ? others[random >> 6 & 3] : 1;
        after[i] = (uint16_t)(before[i] + (far != 0 && i % far == 0 ? 40 : step));
    }
}

/* A code gives each word a bit at least; pairs take less. Only deltas are of version 2. */
static void test_pairs(void **unused)
{
    (void)unused;
    const size_t n = 200001;
    uint16_t *before = malloc(2 * n), *after = malloc(2 * n);
    for (size_t i = 0; i < n; i++)
        before[i] = (uint16_t)(0x3f80 + i % 61);
    static const struct {
        unsigned often;
        size_t far;
        double bits; /* at most, each */
    } cases[] = {{6, 0, 0.8}, {6, 1000, 0.84}, {6, 150, 1.0}, {6, 20, 1.9}, {12, 0, 1.1}, {24, 0, 1.6}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        take_small_steps(cases[i].often, cases[i].far, before, after, n);
        for (enum lmc_level level = LMC_LEVEL_DEFAULT; level <= LMC_LEVEL_DENSE; level++) {
            struct encoded made = encode_by_all(level, LMC_BF16, after, before, 2 * n);
            assert_in_range(made.frame_bytes, 0, (uintmax_t)(cases[i].bits * (double)n / 8));
            assert_int_equal(made.frame[4], 2);
            free(made.frame);
        }
    }
    struct encoded alone = encode_by_all(LMC_LEVEL_DEFAULT, LMC_BF16, after, NULL, 2 * n);
    assert_int_equal(alone.frame[4], 1);
    free(alone.frame);
    free(before);
    free(after);
}

/* Words of which one in `one_in` moves, by about as much as 2^log2. */
static void move(uint64_t seed, unsigned one_in, unsigned log2, const uint16_t *before, uint16_t *after, size_t n)
{
    uint64_t state = seed;
    for (size_t i = 0; i < n; i++) {
        const uint64_t random = next_random(&state);
        const unsigned far = (unsigned)__builtin_ctzll(random | 1 << 16) << log2 | (random >> 20 & ((1u << log2) - 1));
        after[i] = (uint16_t)(before[i] + (random >> 32) % one_in / (one_in - 1) * (random >> 60 & 1 ? far : 0 - far));
    }
}

/* Blocks of a long delta share codes where they are alike; those of a short one have their own. */
static void test_blocks_alike_and_others(void **unused)
{
    (void)unused;
    const size_t n = 6 * BLOCK / 2 + 1001, block = BLOCK / 2;
    static const struct {
        unsigned one_in, log2; /* of all blocks but one; 1: each word moves */
        unsigned other_in, other_log2;
    } cases[] = {{2, 0, 2, 3}, {2, 1, 30, 0}, {3, 0, 2, 2}, {12, 0, 2, 1}, {60, 1, 12, 0}};
    uint16_t *before = malloc(2 * n), *after = malloc(2 * n);
    for (size_t i = 0; i < n; i++)
        before[i] = (uint16_t)(0x3f80 + i % 61);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t apart = 0;
        move(i + 1, cases[i].one_in, cases[i].log2, before, after, n);
        move(i + 1, cases[i].other_in, cases[i].other_log2, before + 4 * block, after + 4 * block, block);
        for (size_t at = 0; at < n; at += block) {
            struct encoded one = encode(LMC_BF16, after + at, before + at, 2 * (n - at < block ? n - at : block));
            apart += one.frame_bytes;
            free(one.frame);
        }
        assert_in_range(round_trip_by_all(LMC_LEVEL_DEFAULT, LMC_BF16, after, before, 2 * n), 0, apart + apart / 100);
    }
    free(before);
    free(after);
}

static double next_double(uint64_t *state)
{
    const double x = (double)next_normal(state);
    return x + x * (double)(next_random(state) >> 11) / 18014398509481984.0 / 16777216.0;
}

/* f64 words, moved by about 2^-`less` at any size. */
static void put_doubles(unsigned less, uint64_t *base, uint64_t *data, size_t n)
{
    uint64_t state = less + 1;
    for (size_t i = 0; i < n; i++) {
        const double x = next_double(&state), moved = x + next_double(&state) / (double)((uint64_t)1 << less);
        memcpy(&base[i], &x, 8);
        memcpy(&data[i], &moved, 8);
    }
}

static void test_doubles_by_keys(void **unused)
{
    (void)unused;
    const size_t n = 200000;
    uint64_t *base = malloc(8 * n), *data = malloc(8 * n);
    for (unsigned less = 0; less <= 50; less += 10) {
        put_doubles(less, base, data, n);
        for (enum lmc_level level = LMC_LEVEL_DEFAULT; level <= LMC_LEVEL_DENSE; level++) {
            struct encoded by_keys = encode_by_all(level, LMC_F64, data, base, 8 * n);
            const size_t as_integers = round_trip_by_all(level, LMC_U64, data, base, 8 * n);
            if (less >= 10)
                assert_int_equal(coded_block(&by_keys, 0)[0], 4);
            /* at least a thirteenth of a bit of each, because the last planes of differences are counted less */
            const size_t saves = level == LMC_LEVEL_DEFAULT ? n / 100 : 0;
            assert_in_range(by_keys.frame_bytes, 0,
                            less >= 10 ? as_integers * 1001 / 1000 - saves : as_integers * 101 / 100);
            free(by_keys.frame);
        }
    }
    for (size_t i = 0; i < n; i += 97)
        data[i] = i % 3 != 0 ? data[i] ^ UINT64_C(1) << 63 : i * UINT64_C(0x9e3779b97f4a7c15);
    data[5] = UINT64_C(0x7ff8000000000001), base[6] = UINT64_C(0xfff0000000000000), data[7] = UINT64_C(1) << 63;
    const size_t odd = round_trip_by_all(LMC_LEVEL_DEFAULT, LMC_F64, data, base, 8 * n);
    assert_in_range(odd, 0, round_trip_by_all(LMC_LEVEL_DEFAULT, LMC_U64, data, base, 8 * n));
    round_trip_by_all(LMC_LEVEL_DEFAULT, LMC_C128, data, base, 8 * n);
    free(data);
    free(base);
}

/* f8 words: the probability of moving by one doubles with each smaller exponent. */
static void test_bytes_by_keys(void **unused)
{
    (void)unused;
    const size_t n = 500000;
    unsigned char *base = malloc(n), *data = malloc(n);
    uint64_t state = 11;
    for (size_t i = 0; i < n; i++) {
        const uint64_t random = next_random(&state);
        const unsigned less = (unsigned)__builtin_ctzll(random >> 40 | 1 << 9);
        base[i] = (unsigned char)((random & 0x80) | (14 - less) << 3 | (random & 7));
        data[i] = (unsigned char)(base[i] + ((random >> 8 & ((1u << (less > 6 ? 0 : 6 - less)) - 1)) != 0 ? 0
                                             : (random >> 62 & 1) != 0                                    ? 1
                                                                                                          : -1));
    }
    for (uint32_t dtype = LMC_F8_E4M3FN; dtype <= LMC_F8_E5M2FNUZ; dtype++) {
        struct encoded by_keys = encode_by_all(LMC_LEVEL_DEFAULT, dtype, data, base, n);
        assert_int_equal(coded_block(&by_keys, 0)[0], 4);
        const size_t as_integers = round_trip_by_all(LMC_LEVEL_DEFAULT, LMC_U8, data, base, n);
        assert_in_range(by_keys.frame_bytes, 0, as_integers * 9 / 10);
        free(by_keys.frame);
    }
    for (size_t i = 0; i < n; i++)
        base[i] = (unsigned char)i, data[i] = (unsigned char)(i >> 8);
    round_trip_by_all(LMC_LEVEL_DEFAULT, LMC_F8_E5M2, data, base, n);
    free(data);
    free(base);
}

/* `same` of 16 rows of `row` bytes repeat one of the first four. */
static void repeat_rows(unsigned char *data, size_t rows, size_t row, unsigned same)
{
    uint64_t state = 17;
    for (size_t i = 4; i < rows; i++) {
        const uint64_t random = next_random(&state);
        if (random % 16 < same)
            memcpy(data + i * row, data + (random >> 8) % 4 * row, row);
    }
}

static void test_rows(void **unused)
{
    (void)unused;
    static const size_t widths[] = {256, 768, 1024, 1536, 3072};
    const size_t bytes = BLOCK + 100 * KIB + 6;
    unsigned char *data = malloc(bytes), *base = malloc(bytes);
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
        fill(RANDOM, k, data, bytes);
        fill(RANDOM, k + 100, base, bytes);
        repeat_rows(data, BLOCK / widths[k], widths[k], 8);
        for (uint32_t dtype = LMC_BF16; dtype <= LMC_F32; dtype++) {
            struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, dtype, data, NULL, bytes - bytes % 4);
            assert_int_equal(coded_block(&made, 0)[0], 6);
            assert_int_equal(made.frame[4], 2);
            assert_in_range(made.frame_bytes, 0, bytes * 5 / 8);
            free(made.frame);
            round_trip_by_all(LMC_LEVEL_DENSE, dtype, data, base, bytes - bytes % 4);
        }
    }
    fill(RANDOM, 1, base, bytes);
    repeat_rows(base, BLOCK / 1024, 1024, 12);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(base[i] + base[i ^ 1] % 5);
    struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, LMC_U8, data, base, bytes);
    assert_int_equal(coded_block(&made, 0)[0], 6);
    free(made.frame);
    /* Rows equal to the base's are no copies: they take less than runs. */
    fill(RANDOM, 5, data, bytes);
    for (size_t i = 0; i + 512 <= bytes; i += 512)
        memset(data + i, 0, i % 1024 != 0 ? 512 : 256);
    memcpy(base, data, bytes);
    for (size_t i = 0; i < 20000; i += 1024)
        data[i + 300] ^= 1;
    assert_in_range(round_trip_by_all(LMC_LEVEL_DEFAULT, LMC_U8, data, base, bytes), 0, 2500);
    free(data);
    free(base);
}

/* Rows of any length at any place cost a twentieth of their bytes at most, whether one repeats often or many rarely. */
static void test_rows_of_any_length(void **unused)
{
    (void)unused;
    static const size_t widths[] = {1000, 500, 332, 2050};
    const size_t bytes = 1000 * KIB;
    unsigned char *data = malloc(bytes), *base = malloc(bytes);
    fill(RANDOM, 2, base, bytes);
    for (size_t k = 0; k < 2 * sizeof widths / sizeof *widths; k++) {
        const size_t width = widths[k / 2], rows = bytes / width;
        const uint32_t dtypes[] = {LMC_BF16, LMC_F32, LMC_U8, LMC_I16};
        uint64_t state = k + 5;
        size_t repeated = 0;
        fill(RANDOM, k + 60, data, bytes);
        for (size_t i = 20; i < rows; i++) {
            const uint64_t random = next_random(&state);
            if (random % 10 != 0)
                continue;
            memcpy(data + i * width, data + (k % 2 != 0 ? 3 : (random >> 8) % 20) * width, width);
            repeated += width;
        }
        struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, dtypes[k / 2], data, k % 4 < 2 ? NULL : base, bytes);
        assert_in_range(made.frame_bytes, 0, bytes + 200 - repeated + repeated / 20);
        free(made.frame);
    }
    free(base);
    free(data);
}

/* Runs of equal bytes, too short for copies, do not hide the rows that follow them, nor those between them. */
static void test_rows_among_short_repeats(void **unused)
{
    (void)unused;
    enum { ROW = 600 };
    const size_t bytes = 1000 * KIB;
    unsigned char *data = malloc(bytes);
    for (unsigned between = 0; between < 2; between++) {
        uint64_t state = 7;
        size_t repeated = 0;
        fill(RANDOM, 60, data, bytes);
        for (size_t i = 2; i < bytes / ROW; i++) {
            unsigned char *row = data + i * ROW;
            if (between == 0 ? i > bytes / ROW / 2 : i % 3 == 0) {
                memcpy(row, data, ROW);
                repeated += ROW;
                continue;
            }
            for (size_t at = 0, some; at < ROW; at += some) {
                some = 20 + next_random(&state) % 80;
                memset(row + at, (int)(15 + i % 4 * 60), ROW - at < some ? ROW - at : some); /* anchors */
                row[at] = (unsigned char)next_random(&state);
            }
        }
        struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, LMC_U8, data, NULL, bytes);
        assert_int_equal(coded_block(&made, 0)[0], 6);
        assert_in_range(made.frame_bytes, 0, (bytes - repeated) / 5 + repeated / 20);
        free(made.frame);
    }
    free(data);
}

static void test_rows_of_zeros(void **unused)
{
    (void)unused;
    const size_t n = 256 * KIB, row = 384;
    unsigned char *data = malloc(4 * n);
    uint64_t state = 7;
    size_t zeros = 0;
    put_weights(LMC_F32, data, n, no_scale);
    const size_t all = usual_size(LMC_F32, data, 4 * n);
    for (size_t i = 0; i + row <= n; i += row) {
        if (next_random(&state) % 4 == 0)
            continue;
        memset(data + 4 * i, 0, 4 * row);
        zeros += row;
    }
    assert_in_range(usual_size(LMC_F32, data, 4 * n), 0, all - all / n * zeros + n / 64);
    free(data);
}

/* Columns of different scales: the byte a row before predicts more than the one 64 before. */
static void test_scales_by_column_of_wide_rows(void **unused)
{
    (void)unused;
    static const size_t widths[] = {192, 384, 1536, 4096};
    const size_t n = 512 * KIB;
    unsigned char *data = malloc(n);
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
        uint64_t state = k + 1;
        unsigned char scales[4096];
        fill(RANDOM, k + 50, scales, sizeof scales);
        for (size_t i = 0; i < n; i++) /* six of 8 bits depend on the column */
            data[i] = (unsigned char)((scales[i % widths[k]] & 0xfc) + next_random(&state) % 4);
        struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, LMC_U8, data, NULL, n);
        assert_int_equal(plane_kind(&made, 0, n), CONTEXTS);
        assert_int_equal((coded_block(&made, 0)[3] | (size_t)coded_block(&made, 0)[4] << 8) % widths[k], 0);
        assert_in_range(made.frame_bytes, n * 2 / 8, n * 6 / 8);
        free(made.frame);
    }
    free(data);
}

static void test_rows_that_do_not_repeat(void **unused)
{
    (void)unused;
    const size_t bytes = 512 * KIB;
    unsigned char *data = malloc(bytes);
    fill(RANDOM, 1, data, bytes);
    for (size_t i = 0; i + 512 <= bytes; i += 512)
        memcpy(data + i, data, 64);
    assert_in_range(usual_size(LMC_U8, data, bytes), 0, bytes + 64 + 32 + 8 + 1);
    memset(data, 0, bytes); /* a bit in 500 bytes, ideal for a sparse plane */
    uint64_t state = 3;
    for (size_t i = 0; i < bytes; i += 1 + next_random(&state) % 1000)
        data[i] = 1;
    assert_in_range(usual_size(LMC_U8, data, bytes), 0, bytes / 500 * 2 + 200);
    memset(data, 0, bytes); /* a byte in 2,000: 12.4 bits for its position, and 8; lines of zeros are no copies here */
    for (size_t i = 0; i < bytes; i += 1 + next_random(&state) % 4000)
        data[i] = (unsigned char)next_random(&state);
    assert_in_range(usual_size(LMC_U8, data, bytes), 0, bytes / 2000 * 30 / 8 + 300);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_can_be_chosen),
        cmocka_unit_test(test_the_best_kernels_run),
        cmocka_unit_test(test_any_bits_of_a_byte),
        cmocka_unit_test(test_bits_of_a_whole_block),
        cmocka_unit_test(test_few_symbols),
        cmocka_unit_test(test_bits_that_vary_rarely),
        cmocka_unit_test(test_short_mantissas),
        cmocka_unit_test(test_signs),
        cmocka_unit_test(test_scales_by_column),
        cmocka_unit_test(test_scales_by_quarter),
        cmocka_unit_test(test_pieces_unlike),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_blocks_alike_and_others),
        cmocka_unit_test(test_doubles_by_keys),
        cmocka_unit_test(test_bytes_by_keys),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rows_of_any_length),
        cmocka_unit_test(test_rows_among_short_repeats),
        cmocka_unit_test(test_rows_of_zeros),
        cmocka_unit_test(test_scales_by_column_of_wide_rows),
        cmocka_unit_test(test_rows_that_do_not_repeat),
        cmocka_unit_test(test_signs_that_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
