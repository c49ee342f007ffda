/* SPDX-License-Identifier: BSD-3-Clause */
/* ctest: timeout=900 */
/* test_codec.c - guarantees of liblmc: round trips, sizes, hashes, and equal bytes from all kernels. */
#define _GNU_SOURCE
#include "test_codec_support.h"

static void test_dtypes(void **unused)
{
    (void)unused;
    for (uint32_t dtype = 1; dtype < LMC_DTYPE_END; dtype++) {
        assert_in_range(lmc_dtype_size(dtype), 1, 16);
        assert_non_null(lmc_dtype_name(dtype));
        assert_int_equal(lmc_dtype_from_name(lmc_dtype_name(dtype)), dtype);
    }
    assert_int_equal(lmc_dtype_size(0), 0);
    assert_int_equal(lmc_dtype_size(LMC_DTYPE_END), 0);
    assert_int_equal(lmc_dtype_size(UINT32_MAX), 0);
    assert_null(lmc_dtype_name(0));
    assert_int_equal(lmc_dtype_from_name("f33"), 0);
    assert_int_equal(lmc_dtype_from_name(NULL), 0);
    assert_string_equal(lmc_dtype_name(LMC_BF16), "bf16");
    assert_int_equal(lmc_dtype_size(LMC_C128), 16);
    assert_int_equal(lmc_dtype_size(LMC_F4_E2M1FN_X2), 1);
    assert_int_equal(lmc_dtype_numbers(LMC_F4_E2M1FN_X2), 2);
    assert_int_equal(lmc_dtype_numbers(LMC_F32), 1);
    assert_int_equal(lmc_dtype_numbers(0), 0);
    assert_int_equal(lmc_dtype_kind(LMC_C32), LMC_KIND_COMPLEX);
    assert_int_equal(lmc_dtype_kind(LMC_DTYPE_END), 0);
}

static void test_format_lists_dtypes(void **unused)
{
    (void)unused;
    static char text[1 << 16];
    char row[64];
    FILE *file = fopen(LMC_TEST_DATA "/../../../codec/FORMAT.md", "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    for (uint32_t dtype = 1; dtype < LMC_DTYPE_END; dtype++) {
        snprintf(row, sizeof row, "| %u | %s | %zu | ", dtype, lmc_dtype_name(dtype), lmc_dtype_size(dtype));
        assert_non_null(strstr(text, row));
    }
}

static void test_hash_values(void **unused)
{
    (void)unused;
    struct lmc_hash empty = lmc_hash128(NULL, 0);
    assert_true(empty.low == UINT64_C(0x6001c324468d497f) && empty.high == UINT64_C(0x99aa06d3014798d8));
    assert_true(lmc_hash64(NULL, 0, 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(lmc_hash64("a", 1, 0) != lmc_hash64("a", 1, 1));
}

static void test_hasher_in_pieces(void **unused)
{
    (void)unused;
    static unsigned char bytes[5000];
    uint64_t state = 7;
    fill(RANDOM, 3, bytes, sizeof bytes);
    for (size_t total = 0; total <= sizeof bytes; total += 1 + total / 7) {
        struct lmc_hash whole = lmc_hash128(bytes, total);
        struct lmc_hasher hasher;
        lmc_hasher_init(&hasher);
        for (size_t at = 0; at < total;) {
            size_t piece = next_random(&state) % 700;
            piece = piece < total - at ? piece : total - at;
            lmc_hasher_update(&hasher, bytes + at, piece);
            at += piece;
        }
        lmc_hasher_update(&hasher, NULL, 0);
        struct lmc_hash pieces = lmc_hasher_final(&hasher);
        assert_memory_equal(&whole, &pieces, sizeof whole);
    }
}

static void test_digest(void **unused)
{
    (void)unused;
    const size_t bytes = 2 * BLOCK + 40;
    unsigned char *data = malloc(bytes);
    uint64_t shape[2] = {2, (BLOCK + 20) / 4};
    struct lmc_hash hashes[3], digest;
    struct lmc_frame frame;
    fill(FLOATS, 5, data, bytes);
    for (size_t i = 0; i < 3; i++)
        hashes[i] = lmc_hash128(data + i * BLOCK, i < 2 ? BLOCK : 40);
    struct lmc_hash expected = lmc_digest(LMC_F32, 2, shape, hashes, 3);
    struct encoded made = encode(LMC_F32, data, NULL, bytes);
    assert_int_equal(lmc_frame_parse(made.frame, made.frame_bytes, &frame, NULL), LMC_OK);
    assert_int_equal(lmc_frame_digest(&frame, LMC_F32, 2, shape, &digest), LMC_OK);
    assert_memory_equal(&digest, &expected, sizeof digest);

    unsigned char flat[16 + sizeof shape + sizeof hashes] = {'L', 'M', 'C', 'D', LMC_F32, 0, 0, 0, 2};
    memcpy(flat + 16, shape, sizeof shape);
    memcpy(flat + 32, hashes, sizeof hashes);
    struct lmc_hash by_hand = lmc_hash128(flat, sizeof flat);
    assert_memory_equal(&by_hand, &expected, sizeof digest);

    shape[0] = 1;
    struct lmc_hash other = lmc_digest(LMC_F32, 2, shape, hashes, 3);
    assert_memory_not_equal(&other, &expected, sizeof other);
    assert_int_equal(lmc_frame_digest(&frame, LMC_F32, LMC_MAX_DIMS + 1, shape, &digest), LMC_INVALID);
    free(made.frame);
    free(data);
}

static void test_all_dtypes_and_patterns(void **unused)
{
    (void)unused;
    static unsigned char data[48000], base[48000];
    for (uint32_t dtype = 1; dtype < LMC_DTYPE_END; dtype++) {
        for (enum pattern pattern = 0; pattern < PATTERNS; pattern++) {
            fill(pattern, 1, data, sizeof data);
            round_trip(dtype, data, NULL, sizeof data);
            fill(pattern, 2, base, sizeof base);
            round_trip(dtype, data, base, sizeof data);
        }
    }
}

static void test_sizes(void **unused)
{
    (void)unused;
    static const size_t sizes[] = {0,  1,  2,  3,   4,   5,   7,    8,    9,    15,   16,    17,    31,    32,   33,
                                   63, 64, 65, 127, 128, 129, 1000, 1023, 1024, 1025, 16383, 16384, 16385, 50000};
    static unsigned char data[50000 * 16], base[50000 * 16];
    fill(SKEWED, 1, data, sizeof data);
    fill(SKEWED, 2, base, sizeof base);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (uint32_t dtype = 1; dtype < LMC_DTYPE_END; dtype++) {
            size_t bytes = sizes[i] * lmc_dtype_size(dtype);
            round_trip(dtype, sizes[i] != 0 ? data : NULL, NULL, bytes);
            round_trip(dtype, data, base, bytes);
        }
    }
}

static void test_block_edges(void **unused)
{
    (void)unused;
    unsigned char *data = malloc(3 * BLOCK + 16);
    unsigned char *base = malloc(3 * BLOCK + 16);
    fill(FLOATS, 1, data, 3 * BLOCK + 16);
    fill(SPARSE, 1, base, 3 * BLOCK + 16);
    for (size_t blocks = 1; blocks <= 3; blocks++) {
        for (int edge = -1; edge <= 1; edge++) {
            round_trip(LMC_U8, data, NULL, blocks * BLOCK + (size_t)edge);
            round_trip(LMC_U8, base, data, blocks * BLOCK + (size_t)edge);
            round_trip(LMC_F32, data, base, blocks * BLOCK + 4 * (size_t)edge);
            round_trip(LMC_C128, base, NULL, blocks * BLOCK + 16 * (size_t)edge);
        }
    }
    free(data);
    free(base);
}

static int first_method(const struct encoded *made)
{
    struct lmc_frame frame;
    uint64_t at;
    assert_int_equal(lmc_frame_parse(made->frame, made->frame_bytes, &frame, NULL), LMC_OK);
    lmc_frame_block(&frame, 0, &at);
    return made->frame[at];
}

static void test_steps_of_training(void **unused)
{
    (void)unused;
    static const unsigned noises[] = {0, 1, 3, 40, 127};
    static const unsigned flips[] = {0, 5000, 40, 2};
    static const size_t words[] = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 20011, 70001};
    unsigned char *before = malloc(2 * BLOCK + 100), *after = malloc(2 * BLOCK + 100);
    for (size_t word = 2; word <= 4; word += 2) {
        const uint32_t dtype = word == 2 ? LMC_BF16 : LMC_F32;
        int by_classes = 0;
        for (size_t k = 0; k < 5 * 4 * 13; k++) {
            const size_t bytes = words[k / 20] * word;
            take_step(word, k, noises[k % 5], flips[k / 5 % 4], before, after, bytes);
            struct encoded made = encode(dtype, after, before, bytes);
            assert_decodes(&made, after, before, bytes);
            by_classes += first_method(&made) == 2;
            free(made.frame);
        }
        assert_in_range(by_classes, 30, 200); /* classes were tried; smaller words have none */
        take_step(word, 9, 3, 0, before, after, 2 * BLOCK + 100);
        size_t frame_bytes = round_trip(dtype, after, before, 2 * BLOCK + 100);
        assert_true(frame_bytes <
                    (word == 2 ? 6 : 7) * (2 * BLOCK / word) / 8); /* log2(7) bits, and the bits below the shift */
        memcpy(after, before, 2 * BLOCK + 100);                    /* unordered values: signs, infinities, NaNs */
        fill(NANS, 1, before, 5000);
        fill(NANS, 2, after + 3000, 5000);
        round_trip(dtype, after, before, 2 * BLOCK + 100);
    }
    free(before);
    free(after);
}

/* A block that the sample missed shrinks even if the sample is noise. */
static void test_what_a_sample_misses(void **unused)
{
    (void)unused;
    enum { BLOCKS = 30, ODD = 10 };
    unsigned char *data = malloc(BLOCKS * BLOCK);
    fill(FLOATS, 1, data, BLOCKS * BLOCK);
    size_t noise = round_trip(LMC_F32, data, NULL, BLOCKS * BLOCK);
    for (size_t i = ODD * BLOCK + (64 << 10); i < (ODD + 1) * BLOCK - (64 << 10); i++)
        data[i] = i % 4 < 2 ? 0 : data[i];
    size_t some = round_trip(LMC_F32, data, NULL, BLOCKS * BLOCK);
    assert_in_range(noise - some, BLOCK / 3, BLOCK);
    free(data);
}

static void test_unaligned(void **unused)
{
    (void)unused;
    static unsigned char data[40007], base[40007];
    fill(FLOATS, 1, data, sizeof data);
    fill(FLOATS, 2, base, sizeof base);
    for (size_t shift = 0; shift < 7; shift++)
        round_trip(LMC_F64, data + shift, base + 7 - shift, 40000);
}

static void test_identical_base_costs_next_to_nothing(void **unused)
{
    (void)unused;
    unsigned char *data = malloc(4 * BLOCK);
    fill(RANDOM, 1, data, 4 * BLOCK);
    assert_in_range(round_trip(LMC_F32, data, data, 4 * BLOCK), 1, 500);
    free(data);
}

static void test_near_base(void **unused)
{
    (void)unused;
    const size_t n = BLOCK / 2;
    uint32_t *data = malloc(4 * n), *base = malloc(4 * n);
    uint64_t state = 9;
    fill(FLOATS, 1, (unsigned char *)base, 4 * n);
    for (size_t i = 0; i < n; i++)
        data[i] = base[i] + (uint32_t)(next_random(&state) % 16) - 8;
    assert_in_range(round_trip(LMC_F32, data, base, 4 * n), 1, n * 9 / 16);
    for (size_t i = 0; i < n; i++)
        data[i] = next_random(&state) % 1000 != 0 ? base[i] : ~base[i];
    assert_in_range(round_trip(LMC_F32, data, base, 4 * n), 1, n / 32);
    free(data);
    free(base);
}

static void test_useless_base_is_dropped(void **unused)
{
    (void)unused;
    static unsigned char data[100000], base[100000];
    struct lmc_frame frame;
    fill(FLOATS, 1, data, sizeof data);
    fill(RANDOM, 2, base, sizeof base);
    struct encoded made = encode(LMC_F32, data, base, sizeof data);
    assert_int_equal(lmc_frame_parse(made.frame, made.frame_bytes, &frame, NULL), LMC_OK);
    assert_int_equal(frame.base_count, 0);
    assert_decodes(&made, data, NULL, sizeof data);
    free(made.frame);
}

static void test_noise_does_not_grow(void **unused)
{
    (void)unused;
    unsigned char *data = malloc(5 * BLOCK);
    fill(RANDOM, 1, data, 5 * BLOCK);
    assert_in_range(round_trip(LMC_U8, data, NULL, 5 * BLOCK), 1, 5 * BLOCK + 5 + 72 + 5 * (size_t)32);
    free(data);
}

static void test_blocks_by_themselves(void **unused)
{
    (void)unused;
    const size_t bytes = 3 * BLOCK + 400;
    unsigned char *data = malloc(bytes), *base = malloc(bytes), *room = malloc(4 * lmc_block_bound(BLOCK));
    struct lmc_block blocks[4];
    struct lmc_encoder *encoder;
    fill(FLOATS, 1, data, bytes);
    memcpy(base, data, bytes);
    fill(SPARSE, 1, base, 1000);
    struct lmc_params params = {
        .dtype = LMC_F32, .raw_bytes = bytes, .data = data, .base = base, .base_digest = {1, 2}};
    assert_int_equal(lmc_encoder_new(&params, &encoder, NULL), LMC_OK);
    assert_int_equal(lmc_encoder_block_count(encoder), 4);
    assert_int_equal(lmc_encoder_base_count(encoder), 1);
    for (size_t i = 4; i-- > 0;)
        assert_int_equal(lmc_encode_block(encoder, i, room + i * lmc_block_bound(BLOCK),
                                          lmc_block_bound(i < 3 ? BLOCK : 400), &blocks[i]),
                         LMC_OK);
    struct encoded whole = encode(LMC_F32, data, base, bytes);
    size_t header_bytes = lmc_encoder_header_bytes(encoder);
    unsigned char *header = malloc(header_bytes);
    assert_int_equal(lmc_encode_header(encoder, blocks, header, header_bytes - 1), LMC_NO_SPACE);
    assert_int_equal(lmc_encode_header(encoder, blocks, header, header_bytes), LMC_OK);
    assert_memory_equal(header, whole.frame, header_bytes);
    size_t at = header_bytes;
    for (size_t i = 0; i < 4; i++) {
        assert_memory_equal(room + i * lmc_block_bound(BLOCK), whole.frame + at, blocks[i].coded_bytes);
        at += blocks[i].coded_bytes;
    }
    assert_int_equal(at, whole.frame_bytes);
    lmc_encoder_free(encoder);
    free(whole.frame);
    free(header);
    free(data);
    free(base);
    free(room);
}

static void test_blocks_decode_by_themselves(void **unused)
{
    (void)unused;
    const size_t bytes = 2 * BLOCK + 100;
    unsigned char *data = malloc(bytes), *base = malloc(bytes), *back = malloc(BLOCK);
    struct lmc_frame frame;
    uint64_t header_bytes, offset;
    fill(FLOATS, 1, data, bytes);
    memcpy(base, data, bytes);
    base[BLOCK + 3] ^= 1;
    struct encoded made = encode(LMC_F16, data, base, bytes);
    assert_int_equal(lmc_frame_header_bytes(made.frame, LMC_FRAME_PREFIX_BYTES, &header_bytes, NULL), LMC_OK);
    unsigned char *header = malloc((size_t)header_bytes);
    memcpy(header, made.frame, (size_t)header_bytes);
    assert_int_equal(lmc_frame_parse(header, (size_t)header_bytes, &frame, NULL), LMC_OK);
    assert_int_equal(frame.version, 2);
    assert_int_equal(frame.dtype, LMC_F16);
    assert_int_equal(frame.base_count, 1);
    assert_int_equal(frame.output_count, 1);
    assert_int_equal(frame.raw_bytes, bytes);
    assert_int_equal(frame.block_count, 3);
    assert_int_equal(frame.header_bytes, header_bytes);
    assert_int_equal(frame.frame_bytes, made.frame_bytes);
    assert_true(frame.base_digest[0].low == 1 && frame.base_digest[0].high == 2);
    for (uint64_t i = 3; i-- > 0;) {
        size_t block_bytes = i < 2 ? BLOCK : 100;
        const void *bases[1] = {base + i * BLOCK};
        struct lmc_block block = lmc_frame_block(&frame, i, &offset);
        const char *message = NULL;
        const unsigned char *coded = made.frame + offset;
        assert_int_equal(lmc_decode_block(&frame, i, coded, block.coded_bytes, bases, back, block_bytes, &message),
                         LMC_OK);
        assert_memory_equal(back, data + i * BLOCK, block_bytes);
        assert_int_equal(lmc_decode_block(&frame, i, coded, block.coded_bytes, bases, back, block_bytes - 1, &message),
                         LMC_NO_SPACE);
        assert_int_equal(lmc_decode_block(&frame, i, coded, block.coded_bytes - 1, bases, back, block_bytes, &message),
                         LMC_INVALID);
        assert_int_equal(lmc_decode_block(&frame, i, coded, block.coded_bytes, NULL, back, block_bytes, &message),
                         LMC_INVALID);
        memset(back, 0, block_bytes);
        assert_int_equal(lmc_decode_base(&frame, i, coded, block.coded_bytes, bases, back, block_bytes, &message),
                         LMC_OK);
        assert_memory_equal(back, data + i * BLOCK, block_bytes);
        base[i * BLOCK] ^= 1;
        assert_int_equal(lmc_decode_base(&frame, i, coded, block.coded_bytes, bases, back, block_bytes, &message),
                         LMC_OK);
        assert_int_equal(lmc_decode_block(&frame, i, coded, block.coded_bytes, bases, back, block_bytes, &message),
                         LMC_DAMAGED);
        base[i * BLOCK] ^= 1;
        assert_int_equal(lmc_decode_base(&frame, i, coded, block.coded_bytes - 1, bases, back, block_bytes, &message),
                         LMC_INVALID);
    }
    assert_int_equal(lmc_decode_block(&frame, 3, "", 0, NULL, back, BLOCK, NULL), LMC_INVALID);
    free(made.frame);
    free(header);
    free(data);
    free(base);
    free(back);
}

static void test_callers_mistakes(void **unused)
{
    (void)unused;
    unsigned char data[64] = {0}, frame[512];
    size_t frame_bytes;
    struct lmc_encoder *encoder;
    struct lmc_block block;
    const char *message = NULL;
    struct lmc_params good = {.dtype = LMC_F32, .raw_bytes = sizeof data, .data = data};
    struct lmc_params bad = good;
    bad.dtype = 0;
    assert_int_equal(lmc_encoder_new(&bad, &encoder, &message), LMC_INVALID);
    assert_non_null(message);
    assert_null(encoder);
    bad = good;
    bad.raw_bytes = 63;
    assert_int_equal(lmc_encoder_new(&bad, &encoder, &message), LMC_INVALID);
    bad = good;
    bad.raw_bytes = (uint64_t)1 << 63;
    assert_int_equal(lmc_encoder_new(&bad, &encoder, &message), LMC_INVALID);
    bad = good;
    bad.data = NULL;
    assert_int_equal(lmc_encoder_new(&bad, &encoder, &message), LMC_INVALID);
    bad = good;
    bad.level = (enum lmc_level)9;
    assert_int_equal(lmc_encoder_new(&bad, &encoder, &message), LMC_INVALID);
    assert_int_equal(lmc_encoder_new(&good, &encoder, &message), LMC_OK);
    assert_int_equal(lmc_encode_block(encoder, 1, frame, sizeof frame, &block), LMC_INVALID);
    assert_int_equal(lmc_encode_block(encoder, 0, frame, sizeof data, &block), LMC_NO_SPACE);
    assert_int_equal(lmc_encode_block(encoder, 0, frame, sizeof data + 1, &block), LMC_OK);
    block.coded_bytes = 0;
    assert_int_equal(lmc_encode_header(encoder, &block, frame, sizeof frame), LMC_INVALID);
    block.coded_bytes = sizeof data + 2;
    assert_int_equal(lmc_encode_header(encoder, &block, frame, sizeof frame), LMC_INVALID);
    lmc_encoder_free(encoder);
    lmc_encoder_free(NULL);
    for (size_t room = 0; room < lmc_frame_bound(sizeof data); room++) {
        int status = lmc_compress(&good, frame, room, &frame_bytes, &message);
        assert_true(status == LMC_NO_SPACE || (status == LMC_OK && frame_bytes <= room));
    }
    assert_int_equal(lmc_frame_bound(UINT64_MAX), UINT64_MAX);
    assert_int_equal(lmc_frame_bound((uint64_t)1 << 63), UINT64_MAX);
    assert_int_equal(lmc_block_count(UINT64_MAX), (uint64_t)1 << 44);
    assert_int_equal(lmc_block_count(0), 0);
}

static struct lmc_hash fingerprint(void)
{
    static unsigned char data[600000], base[600000];
    struct lmc_hasher hasher;
    lmc_hasher_init(&hasher);
    for (uint32_t dtype = 1; dtype < LMC_DTYPE_END; dtype++) {
        for (enum pattern pattern = 0; pattern < PATTERNS; pattern++) {
            size_t bytes = (10000 + 2999 * pattern) * lmc_dtype_size(dtype);
            fill(pattern, 1, data, bytes);
            fill(pattern, 2 - pattern % 2, base, bytes);
            base[bytes / 2] ^= 0x10;
            struct encoded alone = encode(dtype, data, NULL, bytes);
            struct encoded delta = encode(dtype, data, base, bytes);
            lmc_hasher_update(&hasher, alone.frame, alone.frame_bytes);
            lmc_hasher_update(&hasher, delta.frame, delta.frame_bytes);
            free(alone.frame);
            free(delta.frame);
        }
    }
    for (unsigned k = 0; k < 12; k++) {
        const size_t word = k % 2 != 0 ? 2 : 4, bytes = (70000 + 1111 * k) * word;
        take_step(word, k, 1 + 10 * k, k % 3 != 0 ? 300 : 0, base, data, bytes);
        struct encoded delta = encode(k % 2 != 0 ? LMC_BF16 : LMC_F32, data, base, bytes);
        lmc_hasher_update(&hasher, delta.frame, delta.frame_bytes);
        free(delta.frame);
    }
    return lmc_hasher_final(&hasher);
}

static void test_kernels_agree(void **unused)
{
    (void)unused;
    static const char *const names[] = {"portable", "avx2", "avx512"};
    struct lmc_hash here = fingerprint();
    char expected[40], found[40];
    snprintf(expected, sizeof expected, "%016llx%016llx\n", (unsigned long long)here.high,
             (unsigned long long)here.low);
    for (size_t i = 0; i < 3; i++) {
        char command[100];
        snprintf(command, sizeof command, "LMC_KERNELS=%s /proc/%ld/exe --fingerprint", names[i], (long)getpid());
        FILE *pipe = popen(command, "r"); /* NOLINT(cert-env33-c): no part of it is external */
        assert_non_null(pipe);
        assert_non_null(fgets(found, sizeof found, pipe));
        assert_int_equal(pclose(pipe), 0);
        assert_string_equal(found, expected);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--fingerprint") == 0) {
        struct lmc_hash hash = fingerprint();
        printf("%016llx%016llx\n", (unsigned long long)hash.high, (unsigned long long)hash.low);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_format_lists_dtypes),
        cmocka_unit_test(test_hash_values),
        cmocka_unit_test(test_hasher_in_pieces),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_all_dtypes_and_patterns),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_block_edges),
        cmocka_unit_test(test_steps_of_training),
        cmocka_unit_test(test_what_a_sample_misses),
        cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_identical_base_costs_next_to_nothing),
        cmocka_unit_test(test_near_base),
        cmocka_unit_test(test_useless_base_is_dropped),
        cmocka_unit_test(test_noise_does_not_grow),
        cmocka_unit_test(test_blocks_by_themselves),
        cmocka_unit_test(test_blocks_decode_by_themselves),
        cmocka_unit_test(test_callers_mistakes),
        cmocka_unit_test(test_kernels_agree),
    };
    return with_all_kernels(cmocka_run_group_tests(tests, NULL, NULL));
}
