/* SPDX-License-Identifier: BSD-3-Clause */
/* ctest: timeout=900 */
/* test_codec_link.c - guarantees of links: round trips, sizes, chains, fitted constants. */
#define _GNU_SOURCE
#include "test_codec_link_support.h"

#include <fenv.h>

static const struct lmc_link_hints *variants(size_t *count)
{
    static struct lmc_link_hints all[10];
    for (size_t i = 0; i < 10; i++)
        all[i] = i < 6 ? adamw_hints() : sgd_hints();
    all[1].flags = LMC_LINK_L2;
    all[2].flags = LMC_LINK_AMSGRAD;
    all[3].flags = LMC_LINK_L2 | LMC_LINK_AMSGRAD;
    all[3].weight_decay = 0;
    all[4].beta1 = 0.3; /* the other form of torch's lerp */
    all[5].weight_decay = 0;
    all[5].beta2 = 0.999;
    all[7].flags = LMC_LINK_NESTEROV;
    all[8].dampening = 0.1;
    all[9].weight_decay = 0;
    all[9].flags = LMC_LINK_NESTEROV;
    *count = 10;
    return all;
}

static void test_all_variants_and_gradients(void **unused)
{
    (void)unused;
    size_t count;
    const struct lmc_link_hints *all = variants(&count);
    for (size_t i = 0; i < count; i++) {
        for (enum gradients kind = 0; kind < GRADIENTS; kind++) {
            struct lmc_link_hints hints = all[i];
            struct lmc_link_rule rule;
            struct state before = trained(&hints, 5000, kind, 3);
            struct state after = state_copy(&before);
            optimizer_step(&after, &hints, kind, 0.3f, 5);
            hints.scale = kind == CLIPPED || kind == CLIPPED_SUM ? (double)0.3f : 0;
            assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
            const double bits = link_bits(&rule, &before, &after);
            const double most = kind == NONE ? 2 : kind == SPARSE_ROWS ? 6 : kind == BF16 || kind == CLIPPED ? 13 : 31;
            if (bits > most)
                fail_msg("variant %zu, gradients %d: %f bits", i, kind, bits);
            state_free(&before);
            state_free(&after);
        }
    }
}

static void test_sizes(void **unused)
{
    (void)unused;
    static const size_t sizes[] = {0,
                                   1,
                                   2,
                                   3,
                                   7,
                                   8,
                                   15,
                                   16,
                                   17,
                                   31,
                                   33,
                                   63,
                                   64,
                                   65,
                                   100,
                                   255,
                                   256,
                                   257,
                                   2047,
                                   2048,
                                   2049,
                                   4097,
                                   32767,
                                   32768,
                                   32769,
                                   65537,
                                   BLOCK / 4 - 1,
                                   BLOCK / 4,
                                   BLOCK / 4 + 1,
                                   BLOCK / 4 + 40000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (enum gradients kind = BF16; kind <= ANY; kind++) {
            if (sizes[i] > 5000 && kind != (enum gradients)(i % 3) && !(kind == ANY && i % 3 == 1))
                continue;
            struct lmc_link_hints hints = i % 4 != 0 ? adamw_hints() : sgd_hints();
            struct lmc_link_rule rule;
            struct state before = trained(&hints, sizes[i], kind, 2);
            struct state after = state_copy(&before);
            optimizer_step(&after, &hints, kind, 0.3f, 5);
            assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
            (void)link_bits(&rule, &before, &after);
            state_free(&before);
            state_free(&after);
        }
    }
}

static void fill_state(struct state *state, enum pattern pattern, uint64_t seed)
{
    for (unsigned k = 0; k < state->arrays; k++)
        fill(pattern, seed + k, (unsigned char *)state->array[k], 4 * state->elements);
}

static void test_any_states(void **unused)
{
    (void)unused;
    size_t count;
    const struct lmc_link_hints *all = variants(&count);
    for (enum pattern a = 0; a < PATTERNS; a++) {
        for (enum pattern b = 0; b < PATTERNS; b++) {
            const struct lmc_link_hints *hints = &all[(7 * (size_t)a + b) % count];
            struct lmc_link_rule rule;
            assert_int_equal(lmc_link_rule(hints, &rule), LMC_OK);
            struct state before = state_new(lmc_link_arrays(hints->optimizer, hints->flags), 3001);
            struct state after = state_copy(&before);
            fill_state(&before, a, 1);
            fill_state(&after, b, 50);
            (void)link_bits(&rule, &before, &after);
            (void)link_bits(&rule, &before, &before);
            state_free(&before);
            state_free(&after);
        }
    }
}

static void test_special_values(void **unused)
{
    (void)unused;
    static const uint32_t special[] = {0x7fc00000, 0xffc00001, 0x7f800001, 0x7f800000, 0xff800000, 0x00000001,
                                       0x80000001, 0x007fffff, 0x80000000, 0x7f7fffff, 0x00800000, 0xff7fffff};
    const size_t kinds = sizeof special / sizeof *special;
    for (unsigned where = 0; where < 8; where++) {
        struct lmc_link_hints hints = adamw_hints();
        struct lmc_link_rule rule;
        hints.flags = LMC_LINK_AMSGRAD;
        struct state before = trained(&hints, 3 * PIECE, where % 2 != 0 ? ANY : BF16, 2);
        for (size_t i = 0; where < 4 && i < before.elements; i += 501)
            memcpy(&before.array[where][i], &special[i / 501 % kinds], 4);
        struct state after = state_copy(&before);
        optimizer_step(&after, &hints, where % 2 != 0 ? ANY : BF16, 1, 5);
        for (size_t i = 0; where >= 4 && i < before.elements; i += 501)
            memcpy(&after.array[where - 4][i], &special[i / 501 % kinds], 4);
        assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
        assert_true(link_bits(&rule, &before, &after) < (where % 2 ? 29 : 13));
        state_free(&before);
        state_free(&after);
    }
}

static double bits_of_kind(enum gradients kind, const struct lmc_link_hints *asked)
{
    struct lmc_link_hints hints = *asked;
    struct lmc_link_rule rule;
    struct lmc_link_fit fit;
    const char *message = "";
    struct state before = trained(&hints, 300000, kind, 12);
    struct state after = state_copy(&before);
    optimizer_step(&after, &hints, kind, 0.3f, 5);
    assert_int_equal(lmc_link_fit(&hints, before.arrays, (const void *const *)before.array,
                                  (const void *const *)after.array, 4 * before.elements, &rule, &fit, &message),
                     LMC_OK);
    const double bits = link_bits(&rule, &before, &after);
    assert_true(fit.bits > 0.8 * bits - 1 && fit.bits < 1.2 * bits + 1);
    state_free(&before);
    state_free(&after);
    return bits;
}

static void test_bits(void **unused)
{
    (void)unused;
    const struct lmc_link_hints adam = adamw_hints(), sgd = sgd_hints();
    assert_true(bits_of_kind(BF16, &adam) < 11.5);
    assert_true(bits_of_kind(CLIPPED, &adam) < 11.5);
    assert_true(bits_of_kind(SUMMED, &adam) < 16.5);
    assert_true(bits_of_kind(CLIPPED_SUM, &adam) < 16.8);
    assert_true(bits_of_kind(ANY, &adam) < 26.7);
    assert_true(bits_of_kind(SPARSE_ROWS, &adam) < 4);
    assert_true(bits_of_kind(NONE, &adam) < 0.1);
    assert_true(bits_of_kind(BF16, &sgd) < 12.5);
    assert_true(bits_of_kind(ANY, &sgd) < 27);
}

static double delta_bits(const struct state *before, const struct state *after)
{
    double bits = 0;
    for (unsigned k = 0; k < before->arrays; k++)
        bits += 8.0 * (double)round_trip(LMC_F32, after->array[k], before->array[k], 4 * before->elements) /
                (double)before->elements;
    return bits;
}

static void assert_no_larger(const struct lmc_link_rule *rule, const struct state *before, const struct state *after)
{
    const double link = link_bits(rule, before, after), deltas = delta_bits(before, after);
    if (link > deltas * 1.001 + 0.01)
        fail_msg("a link of %f bits, deltas of %f", link, deltas);
}

/* A link exceeds ordinary deltas by at most a thousandth. */
static void test_never_larger_than_deltas(void **unused)
{
    (void)unused;
    struct lmc_link_hints hints = adamw_hints();
    struct lmc_link_rule rule;
    struct state before = trained(&hints, BLOCK / 4 + 70000, ANY, 3), after = state_copy(&before);
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
    assert_no_larger(&rule, &before, &after);
    for (size_t i = 0; i < after.elements; i += 100)
        after.array[2][i] += 1e-3f;
    assert_no_larger(&rule, &before, &after);
    for (unsigned k = 0; k < 10; k++)
        optimizer_step(&after, &hints, ANY, 1, k);
    assert_no_larger(&rule, &before, &after);
    rule.beta2 = 0.5f;
    assert_no_larger(&rule, &before, &after);
    fill_state(&after, RANDOM, 3);
    assert_no_larger(&rule, &before, &after);
    state_free(&before);
    state_free(&after);
}

enum { LINKS = 40 };

struct chain {
    struct state first, last;
    struct link link[LINKS];
    struct lmc_frame frame[LINKS];
    struct lmc_link_step step[LINKS];
};

static void make_chain(struct chain *chain, size_t elements)
{
    struct lmc_link_hints hints = adamw_hints();
    chain->first = trained(&hints, elements, BF16, 2);
    chain->last = state_copy(&chain->first);
    for (unsigned t = 0; t < LINKS; t++, hints.step++) {
        struct lmc_link_rule rule;
        struct state before = state_copy(&chain->last);
        optimizer_step(&chain->last, &hints, t % 3 != 0 ? BF16 : ANY, 1, t);
        if (t == 7 || t == 30)
            fill_state(&chain->last, FLOATS, t);
        assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
        chain->link[t] = make_link(&rule, &before, &chain->last);
        assert_int_equal(lmc_frame_parse(chain->link[t].frame, chain->link[t].frame_bytes, &chain->frame[t], NULL),
                         LMC_OK);
        state_free(&before);
    }
}

static void point_at_block(struct chain *chain, uint64_t index)
{
    for (unsigned t = 0; t < LINKS; t++) {
        uint64_t offset;
        const struct lmc_block block = lmc_frame_block(&chain->frame[t], index, &offset);
        chain->step[t] = (struct lmc_link_step){&chain->frame[t], chain->link[t].frame + offset, block.coded_bytes};
    }
}

static void free_chain(struct chain *chain)
{
    for (unsigned t = 0; t < LINKS; t++)
        free(chain->link[t].frame);
    state_free(&chain->first);
    state_free(&chain->last);
}

static void test_chain(void **unused)
{
    (void)unused;
    struct chain chain;
    const char *message = "";
    make_chain(&chain, BLOCK / 4 + 40001);
    struct state now = state_copy(&chain.first);
    for (uint64_t i = 2; i-- > 0;) { /* any order: a slice needs no other blocks */
        void *state[3];
        const size_t left = 4 * now.elements - i * BLOCK, bytes = left < BLOCK ? left : BLOCK;
        point_at_block(&chain, i);
        for (unsigned k = 0; k < 3; k++)
            state[k] = (unsigned char *)now.array[k] + i * BLOCK;
        assert_int_equal(lmc_link_decode_block(chain.step, LINKS, i, state, bytes, NULL, &message), LMC_OK);
    }
    assert_true(state_equal(&now, &chain.last));
    state_free(&now);
    free_chain(&chain);
}

static void test_chain_finds_damage(void **unused)
{
    (void)unused;
    struct chain chain;
    const char *message = "";
    size_t failed;
    make_chain(&chain, 3000);
    struct state now = state_copy(&chain.first);
    void *const *state = (void *const *)now.array;
    point_at_block(&chain, 0);
    assert_int_equal(lmc_link_decode_block(chain.step, 0, 0, state, 12000, &failed, &message), LMC_INVALID);
    assert_int_equal(lmc_link_decode_block(chain.step, LINKS, 1, state, 12000, &failed, &message), LMC_INVALID);
    assert_int_equal(lmc_link_decode_block(chain.step, LINKS, 0, state, 11999, &failed, &message), LMC_NO_SPACE);
    chain.link[12].frame[chain.link[12].frame_bytes - 5] ^= 1;
    assert_int_equal(lmc_link_decode_block(chain.step, LINKS, 0, state, 12000, &failed, &message), LMC_DAMAGED);
    assert_int_equal(failed, 12);
    chain.link[12].frame[chain.link[12].frame_bytes - 5] ^= 1;
    now.array[2][17] += 1;
    assert_int_equal(lmc_link_decode_block(chain.step, 5, 0, state, 12000, &failed, &message), LMC_DAMAGED);
    assert_non_null(strstr(message, "state before may be wrong"));
    state_free(&now);
    free_chain(&chain);
}

static void test_header(void **unused)
{
    (void)unused;
    struct lmc_link_hints hints = adamw_hints();
    struct lmc_link_rule rule, back;
    struct lmc_frame frame;
    struct lmc_hash digest;
    uint64_t header_bytes;
    const uint64_t shape[2] = {2, 1500};
    struct state before = trained(&hints, 3000, BF16, 2), after = state_copy(&before);
    optimizer_step(&after, &hints, BF16, 1, 5);
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
    struct link link = make_link(&rule, &before, &after);
    assert_int_equal(lmc_frame_header_bytes(link.frame, 64, &header_bytes, NULL), LMC_OK);
    assert_int_equal(lmc_frame_parse(link.frame, (size_t)header_bytes, &frame, NULL), LMC_OK);
    assert_int_equal(frame.predictor, LMC_ADAM);
    assert_int_equal(frame.base_count, 3);
    assert_int_equal(frame.output_count, 3);
    assert_int_equal(frame.raw_bytes, 12000);
    assert_int_equal(frame.base_digest[2].low, 3);
    assert_int_equal(lmc_link_frame_rule(&frame, &back), LMC_OK);
    assert_memory_equal(&rule, &back, sizeof rule);
    for (uint32_t k = 0; k < 3; k++) {
        const struct lmc_hash hash = lmc_hash128(after.array[k], 12000);
        const struct lmc_hash expected = lmc_digest(LMC_F32, 2, shape, &hash, 1);
        assert_int_equal(lmc_link_digest(&frame, k, 2, shape, &digest), LMC_OK);
        assert_memory_equal(&digest, &expected, sizeof digest);
    }
    assert_int_equal(lmc_link_digest(&frame, 3, 2, shape, &digest), LMC_INVALID);
    assert_int_equal(lmc_frame_digest(&frame, LMC_F32, 2, shape, &digest), LMC_INVALID);
    const void *bases[4] = {before.array[0], before.array[1], before.array[2]};
    float *room = malloc(12000);
    assert_int_equal(lmc_decompress(link.frame, link.frame_bytes, bases, room, 12000, NULL), LMC_UNSUPPORTED);
    struct encoded ordinary = encode(LMC_F32, before.array[0], NULL, 12000);
    assert_int_equal(
        lmc_link_decompress(ordinary.frame, ordinary.frame_bytes, (void *const *)before.array, 12000, NULL),
        LMC_INVALID);
    free(ordinary.frame);
    free(room);
    free(link.frame);
    state_free(&before);
    state_free(&after);
}

static struct lmc_link_rule fitted(const struct lmc_link_hints *hints, const struct state *before,
                                   const struct state *after, struct lmc_link_fit *fit)
{
    struct lmc_link_rule rule;
    const char *message = "";
    enum lmc_status status =
        lmc_link_fit(hints, before->arrays, (const void *const *)before->array, (const void *const *)after->array,
                     4 * before->elements, &rule, fit, &message);
    assert_string_equal(message, "");
    assert_int_equal(status, LMC_OK);
    return rule;
}

static void test_fit_finds_what_moved(void **unused)
{
    (void)unused;
    for (unsigned kind = 0; kind < 4; kind++) {
        struct lmc_link_hints hints = kind == 3 ? sgd_hints() : adamw_hints();
        hints.flags = kind == 2 ? LMC_LINK_AMSGRAD : 0;
        struct lmc_link_rule expected;
        struct lmc_link_fit fit;
        struct state before = trained(&hints, 100000, CLIPPED, 5), after = state_copy(&before);
        hints.lr *= 0.73519;
        optimizer_step(&after, &hints, CLIPPED, 0.2718281f, 5);
        assert_int_equal(lmc_link_rule(&hints, &expected), LMC_OK);
        hints.lr *= 1.37;
        const struct lmc_link_rule rule = fitted(&hints, &before, &after, &fit);
        assert_true(rule.rate == expected.rate);
        assert_true(rule.decay == expected.decay);
        const float ratio = rule.scale / 0.2718281f;
        assert_true(ratio == 1.0f || ratio == 2.0f || ratio == 4.0f);
        assert_true(fit.exact[before.arrays - 1] > 0.99f && fit.sampled <= 4096);
        assert_true(link_bits(&rule, &before, &after) < 13);
        state_free(&before);
        state_free(&after);
    }
}

static void test_fit_without_hints(void **unused)
{
    (void)unused;
    const double beta1[] = {0.9, 0.9, 0.85, 0.8734567891, 0.9412345678, 0.8571428571};
    for (unsigned kind = 0; kind < 6; kind++) {
        struct lmc_link_hints hints = adamw_hints();
        struct lmc_link_rule expected;
        struct lmc_link_fit fit;
        hints.beta2 = kind % 2 != 0 ? 0.999 : 0.95;
        hints.beta1 = beta1[kind];
        struct state before = trained(&hints, 100000, BF16, 40), after = state_copy(&before);
        optimizer_step(&after, &hints, BF16, 1, 5);
        assert_int_equal(lmc_link_rule(&hints, &expected), LMC_OK);
        const struct lmc_link_rule rule = fitted(NULL, &before, &after, &fit);
        assert_true(rule.gain == expected.gain && rule.beta2 == expected.beta2 && rule.gain2 == expected.gain2);
        assert_true(rule.decay == expected.decay);
        assert_true(rule.root == expected.root && rule.rate == expected.rate);
        assert_true(link_bits(&rule, &before, &after) < 13);
        state_free(&before);
        state_free(&after);
    }
}

/* A clip of sums is found in each step, although few are as short as a bf16 gradient. */
static void test_fit_finds_clipped_sums(void **unused)
{
    (void)unused;
    struct lmc_link_hints hints = adamw_hints();
    struct state before = trained(&hints, 100000, CLIPPED_SUM, 5);
    for (unsigned round = 0; round < 24; round++) {
        struct lmc_link_fit fit;
        struct state after = state_copy(&before);
        optimizer_step(&after, &hints, CLIPPED_SUM, 0.13f + 0.037f * (float)round, round);
        const struct lmc_link_rule rule = fitted(&hints, &before, &after, &fit);
        assert_true(link_bits(&rule, &before, &after) < 18);
        state_free(&after);
    }
    state_free(&before);
}

/* From a few hundred gradients, up to a power of two. */
static void test_scale_of_gradients(void **unused)
{
    (void)unused;
    float gradients[3000];
    uint64_t seed = 3;
    double scale;
    for (enum gradients kind = BF16; kind <= NONE; kind++) {
        for (unsigned round = 0; round < 24; round++) {
            const float clip = 0.13f + 0.037f * (float)round;
            const size_t count = round % 2 != 0 ? 3000 : 300;
            for (size_t i = 0; i < count; i++)
                gradients[i] = gradient_at(kind, clip, i, &seed);
            gradients[7] = NAN;
            gradients[8] = INFINITY;
            gradients[9] = -0.0f;
            gradients[10] = 1e-42f;
            assert_int_equal(lmc_link_gradient_scale(gradients, count, &scale), LMC_OK);
            if (kind == BF16 || kind == SUMMED)
                assert_true(scale == 1);
            else if (kind == CLIPPED || kind == CLIPPED_SUM)
                assert_true(frexp(scale, &(int){0}) == frexp((double)clip, &(int){0}));
            else if (kind == ANY || kind == NONE)
                assert_true(scale == 0);
        }
    }
    for (size_t count = 0; count < 10; count++) {
        assert_int_equal(lmc_link_gradient_scale(gradients, count, &scale), LMC_OK);
        assert_true(scale == 0);
    }
}

static void test_fit_says_no(void **unused)
{
    (void)unused;
    struct lmc_link_hints hints = adamw_hints();
    struct lmc_link_rule rule;
    const char *message = "";
    struct state before = trained(&hints, 20000, BF16, 3), after = state_copy(&before);
    const void *const *a = (const void *const *)before.array, *const *b = (const void *const *)after.array;
    fill_state(&after, FLOATS, 5);
    assert_int_equal(lmc_link_fit(&hints, 3, a, b, 80000, &rule, NULL, &message), LMC_UNSUPPORTED);
    assert_non_null(strstr(message, "no known optimizer"));
    assert_int_equal(lmc_link_fit(NULL, 3, a, b, 80000, &rule, NULL, NULL), LMC_UNSUPPORTED);
    assert_true(rule.optimizer == LMC_ADAM);
    (void)link_bits(&rule, &before, &after);
    assert_int_equal(lmc_link_fit(&hints, 4, a, b, 80000, &rule, NULL, NULL), LMC_INVALID);
    assert_int_equal(lmc_link_fit(&hints, 3, a, b, 79999, &rule, NULL, NULL), LMC_INVALID);
    assert_int_equal(lmc_link_fit(&hints, 3, a, b, 0, &rule, NULL, NULL), LMC_INVALID);
    assert_int_equal(lmc_link_fit(&hints, 5, a, b, 80000, &rule, NULL, NULL), LMC_INVALID);
    hints.beta1 = 1;
    assert_int_equal(lmc_link_fit(&hints, 3, a, b, 80000, &rule, NULL, NULL), LMC_INVALID);
    hints.beta1 = (double)NAN;
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_INVALID);
    hints = adamw_hints();
    hints.flags = 8;
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_INVALID);
    hints = adamw_hints();
    hints.optimizer = 3;
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_INVALID);
    state_free(&before);
    state_free(&after);
}

static void test_invalid_arguments(void **unused)
{
    (void)unused;
    struct lmc_link_hints hints = adamw_hints();
    struct lmc_link_rule rule;
    struct lmc_link_encoder *encoder;
    struct lmc_link_block block;
    unsigned char room[16];
    const char *message;
    struct state before = trained(&hints, 1000, BF16, 2);
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
    struct lmc_link_params params = params_of(&rule, &before, &before);
    params.raw_bytes--;
    assert_int_equal(lmc_link_encoder_new(&params, &encoder, &message), LMC_INVALID);
    params = params_of(&rule, &before, &before);
    params.after[2] = NULL;
    assert_int_equal(lmc_link_encoder_new(&params, &encoder, &message), LMC_INVALID);
    params = params_of(&rule, &before, &before);
    params.rule.rate = NAN;
    assert_int_equal(lmc_link_encoder_new(&params, &encoder, &message), LMC_INVALID);
    params.rule.rate = 0;
    params.rule.gain = 0;
    assert_int_equal(lmc_link_encoder_new(&params, &encoder, &message), LMC_INVALID);
    params = params_of(&rule, &before, &before);
    assert_int_equal(lmc_link_encoder_new(&params, &encoder, &message), LMC_OK);
    assert_int_equal(lmc_link_encoder_block_count(encoder), 1);
    assert_int_equal(lmc_link_encode_block(encoder, 1, room, sizeof room, &block), LMC_INVALID);
    assert_int_equal(lmc_link_encode_block(encoder, 0, room, sizeof room, &block), LMC_NO_SPACE);
    assert_int_equal(lmc_link_encode_header(encoder, &block, room, sizeof room), LMC_NO_SPACE);
    lmc_link_encoder_free(encoder);
    state_free(&before);
}

static const char *const kernels[] = {"portable", "avx2", "avx512", "neon"};

static void test_kernels_agree(void **unused)
{
    (void)unused;
    size_t count;
    const struct lmc_link_hints *all = variants(&count);
    for (size_t i = 0; i < count * GRADIENTS; i++) {
        struct lmc_link_hints hints = all[i % count];
        const enum gradients kind = (enum gradients)(i / count);
        struct lmc_link_rule rule;
        struct state before = trained(&hints, 40000, kind, 2), after = state_copy(&before);
        optimizer_step(&after, &hints, kind, 0.3f, 5);
        for (size_t k = 0; k < 40000; k += 999) {
            after.array[0][k] = (float)k;
            after.array[1][k + 1] = k % 2 != 0 ? NAN : INFINITY;
        }
        assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
        struct link first = {NULL, 0};
        for (size_t n = 0; n < sizeof kernels / sizeof *kernels; n++) {
            if (!use_kernels(kernels[n]))
                continue;
            struct link link = make_link(&rule, &before, &after);
            assert_leads(&link, &before, &after);
            if (first.frame != NULL) {
                assert_int_equal(link.frame_bytes, first.frame_bytes);
                assert_memory_equal(link.frame, first.frame, first.frame_bytes);
                free(link.frame);
            } else {
                first = link;
            }
        }
        (void)use_kernels(NULL);
        free(first.frame);
        state_free(&before);
        state_free(&after);
    }
}

static float any_scale(uint64_t *seed)
{
    const uint64_t random = next_random(seed);
    const uint32_t exponent =
        (random >> 32 & 1) != 0 ? (uint32_t)(random >> 33 & 255) : 100 + (uint32_t)(random >> 33 & 31);
    uint32_t bits = (uint32_t)random & 0x807fffff;
    bits = random >> 60 == 0 ? bits & 0x80000000 : random >> 60 < 8 ? bits & 0xffff0000 : bits;
    bits |= (exponent < 254 ? exponent : 0) << 23;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* All kernels round quotients and roots alike, although some do not divide: weights that follow from their moments have
 * no differences. */
static void test_quotients_agree(void **unused)
{
    (void)unused;
    const size_t n = 20001;
    float *gradient = malloc(4 * n);
    assert_non_null(gradient);
    for (unsigned round = 0; round < 12; round++) {
        struct lmc_link_hints hints = adamw_hints();
        hints.step = 1 + 9 * round * round;
        hints.beta2 = round % 2 != 0 ? 0.95 : 0.999 + 1e-6 * round;
        hints.eps = round % 3 != 0 ? 1e-8 : 0;
        struct lmc_link_rule rule;
        struct state before = state_new(3, n);
        uint64_t seed = round + 1;
        for (size_t i = 0; i < n; i++) {
            gradient[i] = to_bf16(any_scale(&seed));
            before.array[0][i] = round % 4 != 0 ? gradient[i] * uniform(&seed) : any_scale(&seed);
            before.array[1][i] = round % 4 != 0 ? gradient[i] * gradient[i] : fabsf(any_scale(&seed));
            before.array[2][i] = any_scale(&seed);
        }
        struct state after = state_copy(&before);
        adam_step(&after, &hints, gradient);
        assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
        struct link first = {NULL, 0};
        for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
            if (!use_kernels(kernels[k]))
                continue;
            struct link link = make_link(&rule, &before, &after);
            assert_leads(&link, &before, &after);
            if (first.frame == NULL)
                first = link;
            assert_int_equal(link.frame_bytes, first.frame_bytes);
            assert_memory_equal(link.frame, first.frame, first.frame_bytes);
            if (link.frame != first.frame)
                free(link.frame);
        }
        (void)use_kernels(NULL);
        free(first.frame);
        state_free(&before);
        state_free(&after);
    }
    free(gradient);
}

/* The caller's rounding mode and flushed denormals stay, and change no bit. */
static void test_float_environment(void **unused)
{
    (void)unused;
    struct lmc_link_hints hints = adamw_hints();
    struct lmc_link_rule rule;
    struct state before = trained(&hints, 40000, ANY, 2);
    for (size_t i = 0; i < before.elements; i += 3)
        before.array[1][i] *= 1e-33f;
    struct state after = state_copy(&before);
    optimizer_step(&after, &hints, ANY, 1, 5);
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
    struct link plain = make_link(&rule, &before, &after);
    fesetround(FE_UPWARD);
    FLUSH();
    const unsigned control = CONTROL() & ~0x3fu;
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
    struct link other = make_link(&rule, &before, &after);
    assert_leads(&plain, &before, &after);
    hints.scale = 1e-40; /* a denormal counts as positive */
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
    assert_int_equal(CONTROL() & ~0x3fu, control);
    fesetenv(FE_DFL_ENV);
    assert_int_equal(plain.frame_bytes, other.frame_bytes);
    assert_memory_equal(plain.frame, other.frame, plain.frame_bytes);
    free(plain.frame);
    free(other.frame);
    state_free(&before);
    state_free(&after);
}

static void test_unaligned(void **unused)
{
    (void)unused;
    struct lmc_link_hints hints = adamw_hints();
    struct lmc_link_rule rule;
    struct state before = trained(&hints, 5000, ANY, 2), after = state_copy(&before);
    unsigned char *moved[6];
    optimizer_step(&after, &hints, ANY, 1, 5);
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
    struct lmc_link_params params = params_of(&rule, &before, &after);
    for (unsigned k = 0; k < 6; k++) {
        moved[k] = malloc(20000 + k + 1);
        memcpy(moved[k] + k + 1, k < 3 ? before.array[k] : after.array[k - 3], 20000);
        (k < 3 ? params.before : params.after)[k % 3] = moved[k] + k + 1;
    }
    size_t frame_bytes, bound = (size_t)lmc_link_bound(3, 20000);
    unsigned char *frame = malloc(bound + 1);
    assert_int_equal(lmc_link_compress(&params, frame + 1, bound, &frame_bytes, NULL), LMC_OK);
    void *state[3] = {moved[0] + 1, moved[1] + 2, moved[2] + 3};
    assert_int_equal(lmc_link_decompress(frame + 1, frame_bytes, state, 20000, NULL), LMC_OK);
    for (unsigned k = 0; k < 3; k++)
        assert_memory_equal(state[k], after.array[k], 20000);
    free(frame);
    for (unsigned k = 0; k < 6; k++)
        free(moved[k]);
    state_free(&before);
    state_free(&after);
}

/* Another parameter's plan costs no bytes where gradients are alike, or bf16; a number that is no plan is not used. */
static void test_shared_plans(void **unused)
{
    (void)unused;
    struct lmc_link_hints hints = adamw_hints();
    struct lmc_link_rule rule;
    const enum gradients kinds[] = {ANY, BF16};
    uint32_t plans[2];
    for (unsigned i = 0; i < 2; i++) {
        struct state before = trained(&hints, 40000, kinds[i], 2), after = state_copy(&before);
        struct lmc_link_encoder *encoder;
        size_t alone, shared;
        optimizer_step(&after, &hints, kinds[i], 1, 5);
        assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
        struct lmc_link_params params = params_of(&rule, &before, &after);
        assert_int_equal(lmc_link_encoder_new(&params, &encoder, NULL), LMC_OK);
        plans[i] = lmc_link_encoder_plan(encoder);
        lmc_link_encoder_free(encoder);
        const size_t bound = (size_t)lmc_link_bound(3, params.raw_bytes);
        unsigned char *frame = malloc(bound);
        assert_int_equal(lmc_link_compress(&params, frame, bound, &alone, NULL), LMC_OK);
        const uint32_t others[] = {plans[0], plans[i], UINT32_MAX, 1};
        for (unsigned k = 0; k < 4; k++) {
            params.like = others[k];
            assert_int_equal(lmc_link_compress(&params, frame, bound, &shared, NULL), LMC_OK);
            assert_true(shared == alone);
        }
        free(frame);
        state_free(&before);
        state_free(&after);
    }
    assert_int_not_equal(plans[0], plans[1]);
}

/* Known hashes give the same block, and wrong ones a frame that does not decode. */
static void test_known_hashes(void **unused)
{
    (void)unused;
    struct lmc_link_hints hints = adamw_hints();
    struct lmc_link_rule rule;
    struct state before = trained(&hints, 40000, ANY, 2), after = state_copy(&before);
    optimizer_step(&after, &hints, ANY, 1, 5);
    assert_int_equal(lmc_link_rule(&hints, &rule), LMC_OK);
    const struct lmc_link_params params = params_of(&rule, &before, &after);
    const size_t room = lmc_link_block_bound(3, params.raw_bytes);
    unsigned char *blocks[2] = {malloc(room), malloc(room)};
    struct lmc_link_block made[2];
    struct lmc_link_encoder *encoder;
    struct lmc_hash hashes[3];
    for (unsigned k = 0; k < 3; k++)
        hashes[k] = lmc_hash128(after.array[k], params.raw_bytes);
    assert_int_equal(lmc_link_encoder_new(&params, &encoder, NULL), LMC_OK);
    assert_int_equal(lmc_link_encode_block(encoder, 0, blocks[0], room, &made[0]), LMC_OK);
    assert_int_equal(lmc_link_encode_block_hashed(encoder, 0, hashes, blocks[1], room, &made[1]), LMC_OK);
    assert_memory_equal(&made[0], &made[1], sizeof *made);
    assert_memory_equal(blocks[0], blocks[1], made[0].coded_bytes);
    hashes[1].low ^= 1;
    const size_t header_bytes = lmc_link_encoder_header_bytes(encoder);
    assert_int_equal(lmc_link_encode_block_hashed(encoder, 0, hashes, blocks[1], room, &made[1]), LMC_OK);
    unsigned char *frame = malloc(header_bytes + room);
    assert_int_equal(lmc_link_encode_header(encoder, &made[1], frame, header_bytes), LMC_OK);
    memcpy(frame + header_bytes, blocks[1], made[1].coded_bytes);
    assert_int_equal(lmc_link_decompress(frame, header_bytes + made[1].coded_bytes, (void *const *)before.array,
                                         params.raw_bytes, NULL),
                     LMC_DAMAGED);
    lmc_link_encoder_free(encoder);
    free(frame);
    free(blocks[0]);
    free(blocks[1]);
    state_free(&before);
    state_free(&after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_variants_and_gradients),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_any_states),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_never_larger_than_deltas),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_chain_finds_damage),
        cmocka_unit_test(test_header),
        cmocka_unit_test(test_fit_finds_what_moved),
        cmocka_unit_test(test_fit_without_hints),
        cmocka_unit_test(test_fit_finds_clipped_sums),
        cmocka_unit_test(test_scale_of_gradients),
        cmocka_unit_test(test_fit_says_no),
        cmocka_unit_test(test_invalid_arguments),
        cmocka_unit_test(test_kernels_agree),
        cmocka_unit_test(test_quotients_agree),
        cmocka_unit_test(test_float_environment),
        cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_known_hashes),
        cmocka_unit_test(test_shared_plans),
    };
    return with_all_kernels(cmocka_run_group_tests(tests, NULL, NULL));
}
