/* SPDX-License-Identifier: BSD-3-Clause */
/* test_codec_like.c - small tensors, also with the plan and the codes of another one. */
#include "test_codec_modes_support.h"

#define SMALL ((size_t)64 * KIB)

struct tensor {
    uint32_t dtype;
    enum lmc_level level;
    size_t bytes;
    unsigned char *data, *base; /* base: or NULL */
};

static struct tensor tensor_new(uint32_t dtype, size_t bytes, bool with_base)
{
    struct tensor tensor = {dtype, LMC_LEVEL_DEFAULT, bytes, calloc(1, bytes + 1), NULL};
    tensor.base = with_base ? calloc(1, bytes + 1) : NULL;
    assert_true(tensor.data != NULL && (!with_base || tensor.base != NULL));
    return tensor;
}

static void tensor_free(struct tensor *tensor)
{
    free(tensor->data);
    free(tensor->base);
}

/* A step of updates with this deviation, in units in the last place of the greatest base. */
static struct tensor step_new(uint32_t dtype, size_t bytes, uint64_t seed, float deviation)
{
    struct tensor tensor = tensor_new(dtype, bytes, true);
    const size_t word = lmc_dtype_size(dtype);
    uint64_t state = seed;
    for (size_t i = 0; i + word <= bytes; i += word) {
        const uint64_t random = next_random(&state);
        const unsigned low = (unsigned)__builtin_ctzll(random | 1 << 12);
        const uint32_t b = (uint32_t)((122 - low) << 23 | (random >> 24 & 0x807fffff)) >> (word == 2 ? 16 : 0);
        const int32_t d = (int32_t)(next_normal(&state) * deviation * (float)(1u << low));
        put_word(tensor.base + i, b, word);
        put_word(tensor.data + i, b + (uint32_t)d, word);
    }
    return tensor;
}

static struct lmc_encoder *encoder_like(const struct tensor *tensor, const struct lmc_encoder *like)
{
    const struct lmc_params params = {.dtype = tensor->dtype,
                                      .level = tensor->level,
                                      .raw_bytes = tensor->bytes,
                                      .data = tensor->data,
                                      .base = tensor->base,
                                      .base_digest = {1, 2}};
    struct lmc_encoder *encoder;
    assert_int_equal(lmc_encoder_new_like(&params, like, &encoder, NULL), LMC_OK);
    return encoder;
}

static struct encoded encode_by(const struct tensor *tensor, const struct lmc_encoder *encoder)
{
    struct encoded made = {NULL, 0, (size_t)lmc_frame_bound(tensor->bytes)};
    made.frame = malloc(made.capacity);
    assert_non_null(made.frame);
    assert_int_equal(lmc_encode_frame(encoder, made.frame, made.capacity, &made.frame_bytes, NULL), LMC_OK);
    assert_true(made.frame_bytes <= tensor->bytes + tensor->bytes / 1000 + 128);
    made.frame = realloc(made.frame, made.frame_bytes);
    assert_non_null(made.frame);
    assert_decodes(&made, tensor->data, tensor->base, tensor->bytes);
    return made;
}

/* Encodes a tensor like another one, by all kernels. */
static struct encoded encode_like(const struct tensor *model, const struct tensor *tensor)
{
    struct encoded made = {NULL, 0, 0};
    for (unsigned k = 0; k <= TABLES; k++) {
        if (k < TABLES && !use_kernels(tables[k]))
            continue;
        if (k == TABLES && lmci_kernels_use != 0)
            lmci_kernels_use(NULL);
        struct lmc_encoder *first = encoder_like(model, NULL), *encoder = encoder_like(tensor, first);
        struct encoded other = encode_by(tensor, encoder);
        assert_true(made.frame == NULL ||
                    (other.frame_bytes == made.frame_bytes && memcmp(other.frame, made.frame, made.frame_bytes) == 0));
        lmc_encoder_free(encoder);
        lmc_encoder_free(first);
        free(made.frame);
        made = other;
    }
    return made;
}

static struct encoded encode_first(const struct tensor *tensor)
{
    struct lmc_encoder *encoder = encoder_like(tensor, NULL);
    struct encoded made = encode_by(tensor, encoder);
    lmc_encoder_free(encoder);
    return made;
}

static struct encoded encode_alone(const struct tensor *tensor)
{
    return encode_at(tensor->level, tensor->dtype, tensor->data, tensor->base, tensor->bytes);
}

#define TABLE 24 /* bytes of a table of lengths that no other table has */

/* Whether two frames have a table in common. */
static bool share_a_table(const struct encoded *a, const struct encoded *b)
{
    const size_t from = coded_block(a, 0) - a->frame;
    for (size_t i = from; i + TABLE <= a->frame_bytes; i++)
        if (memmem(b->frame + from, b->frame_bytes - from, a->frame + i, TABLE) != NULL)
            return true;
    return false;
}

static bool are_equal(const struct encoded *a, const struct encoded *b)
{
    return a->frame_bytes == b->frame_bytes && memcmp(a->frame, b->frame, a->frame_bytes) == 0;
}

/* The method, the number of classes and their bounds. */
static bool have_equal_classes(const struct encoded *a, const struct encoded *b)
{
    const unsigned char *first = coded_block(a, 0), *second = coded_block(b, 0);
    assert_int_equal(first[0], 2);
    return memcmp(first, second, 1 + first[1]) == 0;
}

static void test_steps_share_plans_and_codes(void **unused)
{
    (void)unused;
    const struct {
        uint32_t dtype;
        float deviation;
    } kinds[] = {{LMC_BF16, 3}, {LMC_F16, 3}, {LMC_F32, 2e5f}};
    for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct tensor model = step_new(kinds[k].dtype, SMALL, 7, kinds[k].deviation);
        struct encoded first = encode_first(&model);
        size_t like_bytes = 0, own_bytes = 0;
        for (uint64_t seed = 100; seed < 104; seed++) {
            struct tensor tensor = step_new(kinds[k].dtype, SMALL - 4096 * (seed % 2), seed, kinds[k].deviation);
            struct encoded like = encode_like(&model, &tensor), own = encode_alone(&tensor);
            assert_true(have_equal_classes(&first, &like));
            assert_true(share_a_table(&first, &like));
            assert_false(share_a_table(&first, &own));
            like_bytes += like.frame_bytes;
            own_bytes += own.frame_bytes;
            free(like.frame);
            free(own.frame);
            tensor_free(&tensor);
        }
        assert_in_range(like_bytes, 0, own_bytes + own_bytes * 3 / 1000);
        free(first.frame);
        tensor_free(&model);
    }
}

/* Updates of another size have other shifts, and codes of their own. */
static void test_other_updates(void **unused)
{
    (void)unused;
    struct tensor model = step_new(LMC_BF16, SMALL, 7, 3);
    const float deviations[] = {0.5f, 1, 9, 30, 400};
    for (unsigned k = 0; k < sizeof deviations / sizeof *deviations; k++) {
        struct tensor tensor = step_new(LMC_BF16, SMALL, 50 + k, deviations[k]);
        struct encoded like = encode_like(&model, &tensor), own = encode_alone(&tensor);
        assert_in_range(like.frame_bytes, 0, own.frame_bytes + own.frame_bytes * 3 / 1000);
        free(like.frame);
        free(own.frame);
        tensor_free(&tensor);
    }
    tensor_free(&model);
}

/* Without a base, tensors share the plan only. */
static void test_tensors_alone(void **unused)
{
    (void)unused;
    struct tensor model = tensor_new(LMC_F32, SMALL, false), noisy = tensor_new(LMC_F32, SMALL, false),
                  short_floats = tensor_new(LMC_F32, SMALL, false);
    fill(FLOATS, 1, model.data, SMALL);
    fill(FLOATS, 2, noisy.data, SMALL);
    fill(FLOATS, 3, short_floats.data, SMALL);
    for (size_t i = 0; i < SMALL; i += 4) /* the planes that are noise in the model */
        memset(short_floats.data + i, 0, 2);
    struct encoded like = encode_like(&model, &noisy), own = encode_alone(&noisy);
    assert_true(are_equal(&like, &own));
    free(like.frame);
    free(own.frame);
    like = encode_like(&model, &short_floats);
    own = encode_alone(&short_floats);
    assert_in_range(like.frame_bytes, 0, own.frame_bytes + own.frame_bytes / 100);
    free(like.frame);
    free(own.frame);
    tensor_free(&model);
    tensor_free(&noisy);
    tensor_free(&short_floats);
}

/* What differs from the model is planned by itself. */
static void test_others_are_planned_by_themselves(void **unused)
{
    (void)unused;
    struct tensor model = step_new(LMC_BF16, SMALL, 7, 3), moments = tensor_new(LMC_BF16, SMALL, true);
    fill(RANDOM, 1, moments.data, SMALL); /* smaller alone: a model that needs no base */
    fill(RANDOM, 2, moments.base, SMALL);
    struct tensor tensors[] = {
        step_new(LMC_F16, SMALL, 1, 3),      step_new(LMC_F32, SMALL, 2, 2e5f),     step_new(LMC_BF16, SMALL / 8, 3, 3),
        step_new(LMC_BF16, SMALL + 2, 4, 3), step_new(LMC_BF16, 5 * BLOCK, 5, 3),   step_new(LMC_BF16, SMALL, 6, 3),
        tensor_new(LMC_BF16, SMALL, false),  tensor_new(LMC_I64, SMALL, true),      tensor_new(LMC_BF16, 0, true),
        tensor_new(LMC_F64, SMALL, true),    tensor_new(LMC_F8_E4M3FN, SMALL, true)};
    tensors[5].level = LMC_LEVEL_DENSE;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        struct encoded like = encode_like(&model, &tensors[i]), own = encode_alone(&tensors[i]);
        assert_true(are_equal(&like, &own));
        free(like.frame);
        free(own.frame);
        tensor_free(&tensors[i]);
    }
    struct tensor flat = step_new(LMC_BF16, SMALL, 8, 3); /* one exponent: a model without classes */
    for (size_t i = 0; i < SMALL; i += 2) {
        const unsigned byte = flat.base[i] & 63;
        put_word(flat.base + i, 0x3f80 + byte, 2);
        put_word(flat.data + i, 0x3f80 + byte + flat.data[i] % 8, 2);
    }
    const struct tensor *models[] = {&moments, &flat};
    for (unsigned m = 0; m < 2; m++) {
        struct encoded like = encode_like(models[m], &model), own = encode_alone(&model);
        assert_true(are_equal(&like, &own));
        free(like.frame);
        free(own.frame);
    }
    tensor_free(&model);
    tensor_free(&moments);
    tensor_free(&flat);
}

/* Tensors whose model has repeated rows are searched for such themselves. */
static void test_repeated_rows(void **unused)
{
    (void)unused;
    struct tensor tensors[3];
    for (uint64_t t = 0; t < 3; t++) {
        tensors[t] = tensor_new(LMC_BF16, SMALL, false);
        fill(FLOATS, 8 + t, tensors[t].data, SMALL);
        for (size_t at = 512; t < 2 && at < SMALL; at += 1024)
            memcpy(tensors[t].data + at, tensors[t].data, 512);
    }
    for (unsigned t = 1; t < 3; t++) {
        struct encoded like = encode_like(&tensors[0], &tensors[t]), own = encode_alone(&tensors[t]);
        assert_true(are_equal(&like, &own));
        free(like.frame);
        free(own.frame);
    }
    for (unsigned t = 0; t < 3; t++)
        tensor_free(&tensors[t]);
}

/* Any contents decode, against any model, and no frame exceeds the guaranteed size. */
static void test_any_contents(void **unused)
{
    (void)unused;
    const uint32_t dtypes[] = {LMC_BF16, LMC_F16, LMC_F32};
    for (unsigned k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
        struct tensor models[] = {step_new(dtypes[k], SMALL, 7, 3), step_new(dtypes[k], 16 * KIB, 8, 1),
                                  step_new(dtypes[k], 48 * KIB, 9, 2e5f)};
        struct tensor tensor = tensor_new(dtypes[k], 40 * KIB + 4, true);
        for (unsigned m = 0; m < sizeof models / sizeof *models; m++)
            for (int pattern = 0; pattern < PATTERNS * PATTERNS; pattern++) {
                fill((enum pattern)(pattern % PATTERNS), 3, tensor.data, tensor.bytes);
                fill((enum pattern)(pattern / PATTERNS), pattern % 2 != 0 ? 3 : 4, tensor.base, tensor.bytes);
                free(encode_like(&models[m], &tensor).frame);
            }
        tensor_free(&tensor);
        for (unsigned m = 0; m < sizeof models / sizeof *models; m++)
            tensor_free(&models[m]);
    }
}

/* A table has no codes for rare bytes, which took 2.5 % more. */
static void test_short_tables(void **unused)
{
    (void)unused;
    size_t sum = 0;
    for (unsigned d = 1; d < 4; d++)
        for (size_t bytes = KIB; bytes <= 8 * KIB; bytes *= 2) {
            struct tensor tensor = step_new(LMC_BF16, bytes, 20 + d, 3 * (float)d);
            struct encoded made = encode_alone(&tensor);
            sum += made.frame_bytes;
            free(made.frame);
            tensor_free(&tensor);
        }
    assert_in_range(sum, 0, 20200);
}

/* Bytes that occur once or twice are all rare: the plane is raw. */
static void test_only_rare_bytes(void **unused)
{
    (void)unused;
    for (unsigned times = 1; times <= 3; times++)
        for (size_t bytes = 1; bytes <= (size_t)256 * times; bytes++) {
            struct tensor tensor = tensor_new(LMC_U8, bytes, false);
            for (size_t i = 0; i < bytes; i++)
                tensor.data[i] = (unsigned char)(37 * (i / times));
            free(encode_by_all(LMC_LEVEL_DEFAULT, LMC_U8, tensor.data, NULL, bytes).frame);
            tensor_free(&tensor);
        }
}

/* A model of f64 that is a delta by planes cannot plan a tensor without a base. */
static void test_model_that_needs_a_base(void **unused)
{
    (void)unused;
    const size_t bytes = 32 * KIB;
    struct tensor model = tensor_new(LMC_F64, bytes, true), alone = tensor_new(LMC_F64, bytes, false);
    uint64_t state = 1;
    fill(RANDOM, 1, model.base, bytes);
    memcpy(model.data, model.base, bytes);
    for (size_t i = 7; i < bytes; i += 8) /* only signs differ */
        model.data[i] ^= (unsigned char)(next_random(&state) >> 63 << 7);
    fill(FLOATS, 2, alone.data, bytes);
    struct encoded made = encode_first(&model);
    assert_int_equal(coded_block(&made, 0)[0], 1);
    struct encoded like = encode_like(&model, &alone), own = encode_alone(&alone);
    assert_true(are_equal(&like, &own));
    free(made.frame);
    free(like.frame);
    free(own.frame);
    tensor_free(&model);
    tensor_free(&alone);
}

static void test_wrong_arguments(void **unused)
{
    (void)unused;
    struct tensor model = step_new(LMC_BF16, SMALL, 7, 3);
    struct lmc_encoder *first = encoder_like(&model, NULL), *encoder = first;
    const struct lmc_params odd = {.dtype = LMC_BF16, .raw_bytes = SMALL - 1, .data = model.data};
    const char *message = NULL;
    unsigned char few[16];
    size_t frame_bytes;
    assert_int_equal(lmc_encoder_new_like(&odd, first, &encoder, &message), LMC_INVALID);
    assert_null(encoder);
    assert_non_null(message);
    message = NULL;
    assert_int_equal(lmc_encode_frame(first, few, sizeof few, &frame_bytes, &message), LMC_NO_SPACE);
    assert_non_null(message);
    lmc_encoder_free(first);
    tensor_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_share_plans_and_codes),
        cmocka_unit_test(test_other_updates),
        cmocka_unit_test(test_tensors_alone),
        cmocka_unit_test(test_others_are_planned_by_themselves),
        cmocka_unit_test(test_repeated_rows),
        cmocka_unit_test(test_any_contents),
        cmocka_unit_test(test_short_tables),
        cmocka_unit_test(test_only_rare_bytes),
        cmocka_unit_test(test_model_that_needs_a_base),
        cmocka_unit_test(test_wrong_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
