/* SPDX-License-Identifier: BSD-3-Clause */
/* ctest: timeout=900 */
/* test_codec_limits.c - sizes at thresholds, incompressible content, blocks by threads, streaming stores. */
#define _GNU_SOURCE
#include "test_codec_modes_support.h"

#include "kernels/kernels.h"

#include <pthread.h>

/* NULL if the library is shared. */
const struct lmci_kernels *lmci_kernels(void) __attribute__((weak));

/* For any data, wrong estimates lose at most one part in 20. */
static void test_dense_is_hardly_ever_larger(void **unused)
{
    (void)unused;
    static const uint32_t dtypes[] = {LMC_U8, LMC_I16, LMC_BF16, LMC_F16, LMC_F32, LMC_F64};
    const size_t bytes = 300000;
    unsigned char *data = malloc(bytes);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        for (enum pattern pattern = 0; pattern < PATTERNS; pattern++) {
            fill(pattern, 1, data, bytes);
            size_t usual = usual_size(dtypes[d], data, bytes);
            assert_in_range(size_at(LMC_LEVEL_DENSE, dtypes[d], data, bytes), 0, usual + usual / 20);
        }
    }
    free(data);
}

/* Estimates decide, so typical tensors may be slightly larger where contexts or values pay anyway. */
static void test_dense_is_not_larger(void **unused)
{
    (void)unused;
    const size_t n = 300000;
    unsigned char *data = malloc(4 * n), *base = malloc(4 * n);
    int (*const scales[])(size_t, size_t) = {no_scale, scale_by_quarter, scale_by_column};
    for (uint32_t dtype = LMC_BF16; dtype <= LMC_F32; dtype++) {
        const size_t word = dtype == LMC_F32 ? 4 : 2;
        for (unsigned k = 0; k < 3; k++) {
            put_weights(dtype, data, n, scales[k]);
            size_t usual = usual_size(dtype, data, word * n);
            assert_in_range(size_at(LMC_LEVEL_DENSE, dtype, data, word * n), 0, usual + (k == 2 ? usual / 200 : 0));
            take_step(word, k, 3 + 50 * k, k != 0 ? 100 : 0, base, data, word * n);
            usual = round_trip_by_all(LMC_LEVEL_DEFAULT, dtype, data, base, word * n);
            assert_in_range(round_trip_by_all(LMC_LEVEL_DENSE, dtype, data, base, word * n), 0, usual);
        }
    }
    free(data);
    free(base);
}

/* Bytes depend on those 64 before, in dissimilar pieces, so that every method has a use. */
static void fill_planes(size_t word, unsigned char *data, size_t bytes)
{
    uint64_t state = word;
    for (size_t i = 0; i < bytes; i++) {
        uint64_t random = next_random(&state);
        unsigned zeros = (unsigned)__builtin_ctzll(random | 1 << 20);
        size_t place = i / word, p = i % word;
        if (p == word - 1)
            data[i] = (unsigned char)(place % 64 * 2 + zeros + (place >> 14) % 3 * 20);
        else if (p == 0)
            data[i] = (unsigned char)(random >> 30);
        else
            data[i] = (unsigned char)(p % 2 != 0 ? random >> 30 & 0xf0 : zeros << (place >> 14) % 4);
    }
}

static void test_sizes_at_thresholds(void **unused)
{
    (void)unused;
    static const size_t sizes[] = {128,          16 * KIB,  32 * KIB,  48 * KIB,  64 * KIB,  80 * KIB,
                                   96 * KIB + 8, 112 * KIB, 128 * KIB, 144 * KIB, 192 * KIB, 256 * KIB};
    static const struct {
        uint32_t dtype;
        size_t word;
    } types[] = {{LMC_U8, 1}, {LMC_BF16, 2}, {LMC_F32, 4}};
    unsigned char *data = malloc(5 * 256 * KIB), *base = malloc(5 * 256 * KIB);
    for (size_t t = 0; t < 3; t++) {
        const size_t word = types[t].word;
        fill_planes(word, data, 5 * 256 * KIB);
        memcpy(base, data, 5 * 256 * KIB);
        for (size_t i = 0; i < 4 * 256 * KIB; i += 7 * word)
            base[i] ^= 1;
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            for (size_t words = sizes[k] - 1; words <= sizes[k] + 1; words++) {
                round_trip_by_all(LMC_LEVEL_DEFAULT, types[t].dtype, data, NULL, words * word);
                round_trip_by_all(LMC_LEVEL_DENSE, types[t].dtype, data, NULL, words * word);
            }
            round_trip_by_all(k % 2, types[t].dtype, data, base, (sizes[k] + 1) * word);
        }
    }
    free(data);
    free(base);
}

static void test_all_dtypes_at_both_levels(void **unused)
{
    (void)unused;
    const size_t words = 64 * KIB + 3;
    unsigned char *data = malloc(16 * words), *base = malloc(16 * words);
    for (uint32_t dtype = 1; dtype < LMC_DTYPE_END; dtype++) {
        const size_t word = (size_t)lmc_dtype_size(dtype), bytes = words * word;
        fill_planes(word, data, bytes);
        memcpy(base, data, bytes);
        for (size_t i = 0; i < bytes; i += 5 * word)
            base[i] = (unsigned char)(base[i] + 3);
        round_trip_by_all(LMC_LEVEL_DEFAULT, dtype, data, NULL, bytes);
        round_trip_by_all(LMC_LEVEL_DENSE, dtype, data, NULL, bytes);
        round_trip_by_all(dtype % 2, dtype, data, base, bytes);
    }
    free(data);
    free(base);
}

static void assert_not_larger(uint32_t dtype, const void *data, const void *base, size_t bytes)
{
    const size_t blocks = (bytes + BLOCK - 1) / BLOCK;
    for (enum lmc_level level = LMC_LEVEL_DEFAULT; level <= LMC_LEVEL_DENSE; level++)
        assert_in_range(round_trip_by_all(level, dtype, data, base, bytes), 0, 72 + 16 + 33 * blocks + bytes);
}

static void test_almost_noise(void **unused)
{
    (void)unused;
    const size_t n = 200000;
    unsigned char *data = malloc(n);
    for (unsigned rare = 0; rare <= 64; rare += 8) {
        for (unsigned one_in = 1; one_in <= 4; one_in *= 2) {
            fill(RANDOM, rare, data, n);
            for (size_t i = 0; i + 4 < n; i += one_in) /* the highest `rare` bytes are half as frequent */
                data[i] =
                    (unsigned char)(data[i] >= 256 - rare && (data[i + 1] & 1) != 0 ? data[i + 2] % 128 : data[i]);
            assert_not_larger(LMC_U8, data, NULL, n);
            assert_not_larger(LMC_BF16, data, NULL, n);
            assert_not_larger(LMC_F32, data, NULL, 4000);
        }
    }
    free(data);
}

static void test_symbols_that_a_sample_misses(void **unused)
{
    (void)unused;
    const size_t n = 600000;
    unsigned char *data = malloc(n);
    for (unsigned known = 2; known <= 250; known += known / 2 + 1) {
        uint64_t state = known;
        for (size_t i = 0; i < n; i++) {
            uint64_t random = next_random(&state);
            bool odd = i / 64 % 37 == 5 || i == n - 70;
            data[i] = (unsigned char)(odd ? random >> 8 : (random >> 8) % known);
        }
        assert_not_larger(LMC_U8, data, NULL, n);
        assert_not_larger(LMC_F16, data, NULL, n);
        for (size_t i = 0; i < n; i++)
            data[i] = (unsigned char)(data[i] % known);
        data[n - 70] = 255;
        assert_not_larger(LMC_U8, data, NULL, n);
    }
    free(data);
}

/* The largest number of outliers, one more, and one less. All words of the base have the same exponent. */
static void test_outliers_at_their_most(void **unused)
{
    (void)unused;
    const size_t n = 80000;
    unsigned char *before = malloc(4 * n), *after = malloc(4 * n);
    for (uint32_t dtype = LMC_BF16; dtype <= LMC_F32; dtype++) {
        const size_t word = dtype == LMC_F32 ? 4 : 2;
        for (size_t most = n / 8 - 1; most <= n / 8 + 1; most++) {
            uint64_t state = most;
            for (size_t i = 0; i < n; i++) {
                uint64_t random = next_random(&state);
                uint32_t b = 0x3f800000 + (uint32_t)(random % 100 + 10) * 0x10001, d = (uint32_t)(random >> 40) % 7 - 3;
                bool odd = i % 8 == 7 && i / 8 < most;
                odd = odd || (most > n / 8 && i == 6);
                put_word(before + i * word, word == 2 ? b >> 16 : b, word);
                put_word(after + i * word, (word == 2 ? b >> 16 : b) + d + (odd ? 1u << (8 * word - 1) : 0), word);
            }
            struct encoded made = encode_by_all(LMC_LEVEL_DEFAULT, dtype, after, before, word * n);
            assert_int_equal(coded_block(&made, 0)[0] == 2, most <= n / 8);
            free(made.frame);
            assert_not_larger(dtype, after, before, word * n);
        }
    }
    free(before);
    free(after);
}

static void test_blocks_unlike_the_sample(void **unused)
{
    (void)unused;
    const size_t bytes = 40 * BLOCK / 8;
    unsigned char *data = malloc(bytes), *base = malloc(bytes);
    take_step(2, 3, 3, 0, base, data, bytes);
    fill(RANDOM, 1, data + BLOCK, BLOCK);
    fill(RANDOM, 2, data + 3 * BLOCK + 1000, BLOCK / 2);
    fill(NANS, 3, base + 2 * BLOCK, BLOCK / 3);
    assert_not_larger(LMC_BF16, data, base, bytes);
    assert_not_larger(LMC_F32, data, base, bytes);
    assert_not_larger(LMC_BF16, data, NULL, bytes);
    put_weights(LMC_F32, base, bytes / 4, scale_by_quarter);
    memcpy(base + BLOCK, data, 2 * BLOCK);
    assert_not_larger(LMC_F32, base, NULL, bytes);
    free(data);
    free(base);
}

struct job {
    struct lmc_encoder *encoder;
    unsigned char *room;
    struct lmc_block *blocks;
    size_t first, step, count;
};

static void *encode_some(void *of)
{
    const struct job *job = of;
    const size_t bound = lmc_block_bound(BLOCK);
    for (size_t i = job->first; i < job->count; i += job->step)
        if (lmc_encode_block(job->encoder, i, job->room + i * bound, bound, &job->blocks[i]) != LMC_OK)
            abort();
    return NULL;
}

static void assert_by_threads(enum lmc_level level, uint32_t dtype, const unsigned char *data,
                              const unsigned char *base, size_t bytes)
{
    enum { THREADS = 3 };
    struct lmc_params params = {
        .dtype = dtype, .level = level, .raw_bytes = bytes, .data = data, .base = base, .base_digest = {1, 2}};
    struct lmc_block blocks[8];
    struct lmc_frame frame;
    struct lmc_encoder *encoder;
    struct job jobs[THREADS];
    pthread_t threads[THREADS];
    struct encoded whole = encode_at(level, dtype, data, base, bytes);
    const size_t count = (size_t)lmc_block_count(bytes), bound = lmc_block_bound(BLOCK);
    unsigned char *room = malloc(count * bound), *back = malloc(BLOCK);
    assert_true(count <= 8);
    assert_int_equal(lmc_encoder_new(&params, &encoder, NULL), LMC_OK);
    for (size_t t = 0; t < THREADS; t++) {
        jobs[t] = (struct job){encoder, room, blocks, THREADS - 1 - t, THREADS, count};
        assert_int_equal(pthread_create(&threads[t], NULL, encode_some, &jobs[t]), 0);
    }
    for (size_t t = 0; t < THREADS; t++)
        assert_int_equal(pthread_join(threads[t], NULL), 0);
    assert_int_equal(lmc_frame_parse(whole.frame, whole.frame_bytes, &frame, NULL), LMC_OK);
    for (size_t i = count; i-- > 0;) {
        uint64_t at;
        const void *bases[1] = {frame.base_count != 0 ? base + i * BLOCK : NULL};
        const size_t block_bytes = i + 1 < count ? BLOCK : bytes - i * BLOCK;
        struct lmc_block block = lmc_frame_block(&frame, i, &at);
        assert_int_equal(block.coded_bytes, blocks[i].coded_bytes);
        assert_memory_equal(whole.frame + at, room + i * bound, block.coded_bytes);
        assert_int_equal(
            lmc_decode_block(&frame, i, room + i * bound, block.coded_bytes, bases, back, block_bytes, NULL), LMC_OK);
        assert_memory_equal(back, data + i * BLOCK, block_bytes);
    }
    lmc_encoder_free(encoder);
    free(whole.frame);
    free(room);
    free(back);
}

static void test_blocks_by_threads(void **unused)
{
    (void)unused;
    const size_t bytes = 4 * BLOCK + 4004;
    unsigned char *data = malloc(bytes), *base = malloc(bytes);
    for (enum lmc_level level = LMC_LEVEL_DEFAULT; level <= LMC_LEVEL_DENSE; level++) {
        put_weights(LMC_BF16, data, bytes / 2, scale_by_column);
        assert_by_threads(level, LMC_BF16, data, NULL, bytes);
        put_weights(LMC_F32, data, bytes / 4, scale_by_quarter);
        assert_by_threads(level, LMC_F32, data, NULL, bytes);
        fill_planes(1, data, bytes);
        assert_by_threads(level, LMC_U8, data, NULL, bytes);
        take_step(2, 1, 3, 50, base, data, bytes);
        assert_by_threads(level, LMC_BF16, data, base, bytes);
    }
    free(data);
    free(base);
}

static void test_streams(void **unused)
{
    (void)unused;
    static const size_t shifts[] = {0, 1, 33, 63};
    const size_t bytes = 16 * BLOCK + 4 * 37;
    unsigned char *data = malloc(bytes), *base = malloc(bytes);
    fill_planes(4, data, bytes);
    for (size_t i = 0; i < bytes; i += 4)
        memcpy(base + i, data + bytes - 4 - i, 4);
    for (uint32_t dtype = LMC_F32; dtype <= LMC_F64 && bytes % 8 == 4; dtype++) {
        const size_t some = bytes - (dtype == LMC_F64 ? 4 : 0);
        for (size_t k = 0; k < TABLES; k++) {
            if (!use_kernels(tables[k]) && (lmci_kernels_use != 0 || k != 0))
                continue;
            struct encoded made = encode(dtype, data, k % 2 != 0 ? base : NULL, some);
            for (size_t s = 0; s < sizeof shifts / sizeof *shifts; s++) {
                unsigned char *room = malloc(some + shifts[s] + (s < 2)), *back = room + shifts[s];
                const void *bases[1] = {base};
                memset(room, 0x5a, some + shifts[s] + (s < 2));
                assert_int_equal(lmc_decompress(made.frame, made.frame_bytes, bases, back, some, NULL), LMC_OK);
                assert_true(memcmp(back, data, some) == 0);
                assert_true(s >= 2 || back[some] == 0x5a);
                assert_true(shifts[s] == 0 || back[-1] == 0x5a);
                free(room);
            }
            free(made.frame);
        }
    }
    if (lmci_kernels_use != 0)
        lmci_kernels_use(NULL);
    free(data);
    free(base);
}

/* Counts of `n` symbols, or of whole chunks of 64, one in `every`. */
static void count_plainly(const unsigned char *symbols, size_t n, size_t every, uint32_t counts[256])
{
    memset(counts, 0, 256 * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        counts[symbols[i]] += every == 1 || (i / 64 % every == 0 && i / 64 < n / 64);
}

/* All kernels count the same, around the lengths where their ways of counting change. */
static void test_counts(void **unused)
{
    (void)unused;
    static const size_t lengths[] = {0, 1, 511, 512, 4095, 4096, 8192, 32768, 100000};
    static const unsigned zeros_in[] = {1, 2, 100, 5000}; /* one byte in so many is not zero */
    unsigned char *symbols = malloc(100200);
    uint64_t state = 1;
    for (size_t z = 0; z < sizeof zeros_in / sizeof *zeros_in && lmci_kernels_use != 0; z++) {
        for (size_t i = 0; i < 100200; i++)
            symbols[i] = next_random(&state) % zeros_in[z] == 0 ? (unsigned char)(next_random(&state) >> 56) : 0;
        for (size_t t = 0; t < TABLES; t++) {
            for (size_t k = 0; k < sizeof lengths / sizeof *lengths * 66 && use_kernels(tables[t]); k++) {
                uint32_t counts[256], plain[256];
                const size_t n = lengths[k / 66] + k % 66, every = n <= 600 ? 1 : 1 + k % 3;
                unsigned char *exact = malloc(n + 1); /* for sanitizers */
                memcpy(exact + 1, symbols, n);
                lmci_kernels()->count(exact + 1, n, every, counts);
                count_plainly(symbols, n, every, plain);
                assert_memory_equal(counts, plain, sizeof counts);
                free(exact);
            }
        }
    }
    if (lmci_kernels_use != 0)
        lmci_kernels_use(NULL);
    free(symbols);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_dense_is_hardly_ever_larger),
        cmocka_unit_test(test_dense_is_not_larger),
        cmocka_unit_test(test_sizes_at_thresholds),
        cmocka_unit_test(test_all_dtypes_at_both_levels),
        cmocka_unit_test(test_almost_noise),
        cmocka_unit_test(test_symbols_that_a_sample_misses),
        cmocka_unit_test(test_outliers_at_their_most),
        cmocka_unit_test(test_blocks_unlike_the_sample),
        cmocka_unit_test(test_blocks_by_threads),
        cmocka_unit_test(test_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
