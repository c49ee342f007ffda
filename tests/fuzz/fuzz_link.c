/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * fuzz_link.c - fuzz target for links: decodes any bytes, and round-trips any states.
 *
 * First byte even: a frame, tried unchanged, with valid checksums, and as the only coded block of a generated link.
 * Odd: two states to link. Each set of kernels must give the same.
 */
#include "tensor.h"

#include <stdbool.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
bool lmci_kernels_use(const char *name);

#define REQUIRE(condition)                                                                             \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "line %d, kernels %s: not so: %s\n", __LINE__, lmc_kernels(), #condition); \
            abort();                                                                                   \
        }                                                                                              \
    } while (0)

#define MOST_ELEMENTS ((size_t)70000)

static const char *const tables[] = {"portable", "neon", "avx2", "avx512"};
enum { TABLES = sizeof tables / sizeof *tables };

struct state {
    unsigned char *memory;
    void *array[LMC_MAX_BASES];
    size_t bytes; /* of each array */
};

static struct state state_new(size_t bytes)
{
    struct state state = {.memory = allocate(LMC_MAX_BASES * bytes), .bytes = bytes};
    for (size_t k = 0; k < LMC_MAX_BASES; k++)
        state.array[k] = state.memory + k * bytes;
    memset(state.memory, 0, LMC_MAX_BASES * bytes);
    return state;
}

/* Mostly typical of training. */
static void fill_state(struct state *state, const uint8_t *bytes, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < LMC_MAX_BASES * state->bytes; i += 4) {
        uint32_t word = (uint32_t)tensor_random(&seed);
        word = (word & 0x807fffff) | (100 + (word >> 23 & 15)) << 23;
        if (count != 0 && i / 4 % 64 < 8)
            word ^= (uint32_t)bytes[i / 4 % count] << i % 25;
        memcpy(state->memory + i, &word, 4);
    }
}

struct decoded {
    enum lmc_status status;
    const char *message;
    struct state state;
};

static struct decoded decode(const unsigned char *frame, size_t frame_bytes, const struct state *before)
{
    struct decoded decoded = {.message = "", .state = state_new(before->bytes)};
    memcpy(decoded.state.memory, before->memory, LMC_MAX_BASES * before->bytes);
    decoded.status = lmc_link_decompress(frame, frame_bytes, decoded.state.array, before->bytes, &decoded.message);
    REQUIRE(decoded.status != LMC_NO_SPACE && (decoded.status == LMC_OK || decoded.message));
    return decoded;
}

static bool is_whole(const struct decoded *decoded)
{
    return decoded->status == LMC_OK || strncmp(decoded->message, "a decoded block is not", 22) == 0;
}

static void decode_by_all(const unsigned char *frame, size_t frame_bytes, const struct state *before)
{
    REQUIRE(lmci_kernels_use(tables[0]));
    struct decoded first = decode(frame, frame_bytes, before);
    for (unsigned k = 1; k < TABLES; k++) {
        if (!lmci_kernels_use(tables[k]))
            continue;
        struct decoded other = decode(frame, frame_bytes, before);
        REQUIRE(other.status == first.status && strcmp(other.message, first.message) == 0);
        if (is_whole(&first))
            REQUIRE(memcmp(first.state.memory, other.state.memory, LMC_MAX_BASES * before->bytes) == 0);
        free(other.state.memory);
    }
    free(first.state.memory);
    REQUIRE(lmci_kernels_use(NULL));
}

static void try_frame(const uint8_t *bytes, size_t count)
{
    struct lmc_frame parsed;
    unsigned char *copy = allocate(count);
    memcpy(copy, bytes, count);
    for (unsigned sealed = 0; sealed < 2; sealed++) {
        if (sealed != 0)
            seal_frame(copy, count);
        if (lmc_frame_parse(copy, count, &parsed, NULL) != LMC_OK || parsed.raw_bytes > 4 * MOST_ELEMENTS)
            continue;
        struct state before = state_new((size_t)parsed.raw_bytes);
        fill_state(&before, bytes, count, 1);
        decode_by_all(copy, count, &before);
        free(before.memory);
    }
    free(copy);
}

static struct lmc_link_rule rule_of(unsigned kind)
{
    struct lmc_link_hints hints = {.optimizer = (kind & 1) != 0 ? LMC_SGD : LMC_ADAM,
                                   .step = 1 + kind % 50,
                                   .lr = 1e-3,
                                   .weight_decay = (kind & 16) != 0 ? 0.1 : 0,
                                   .beta1 = (kind & 32) != 0 ? 0.4 : 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .momentum = 0.9,
                                   .dampening = (kind & 64) != 0 ? 0.1 : 0,
                                   .scale = (kind & 128) != 0 ? 0.3 : 0};
    struct lmc_link_rule rule;
    hints.flags =
        (kind & 1) != 0 ? ((kind & 2) != 0 ? LMC_LINK_NESTEROV : 0) : kind >> 1 & (LMC_LINK_L2 | LMC_LINK_AMSGRAD);
    REQUIRE(lmc_link_rule(&hints, &rule) == LMC_OK);
    return rule;
}

static struct lmc_link_params params_of(const struct lmc_link_rule *rule, const struct state *before,
                                        const struct state *after)
{
    struct lmc_link_params params = {.rule = *rule, .raw_bytes = before->bytes};
    for (unsigned k = 0; k < LMC_MAX_BASES; k++) {
        params.before[k] = before->array[k];
        params.after[k] = after->array[k];
    }
    return params;
}

static void try_block(const uint8_t *bytes, size_t count)
{
    if (count < 3)
        return;
    const struct lmc_link_rule rule = rule_of(bytes[0]);
    struct state before = state_new(4 * (size_t)(1 + bytes[1] % 40 * ((bytes[1] & 128) != 0 ? 100 : 1)));
    struct lmc_frame parsed;
    size_t frame_bytes;
    fill_state(&before, NULL, 0, 1 + bytes[0]);
    const struct lmc_link_params params = params_of(&rule, &before, &before);
    const uint32_t arrays = lmc_link_arrays(rule.optimizer, rule.flags);
    const size_t bound = (size_t)lmc_link_bound(arrays, before.bytes) + count;
    unsigned char *frame = allocate(bound);
    REQUIRE(lmc_link_compress(&params, frame, bound, &frame_bytes, NULL) == LMC_OK);
    REQUIRE(lmc_frame_parse(frame, frame_bytes, &parsed, NULL) == LMC_OK);
    frame_bytes = (size_t)parsed.header_bytes + count - 2;
    unsigned char *whole = allocate(frame_bytes);
    memcpy(whole, frame, (size_t)parsed.header_bytes);
    memcpy(whole + parsed.header_bytes, bytes + 2, count - 2);
    seal_put(whole + 24, frame_bytes, 8);
    seal_frame(whole, frame_bytes);
    decode_by_all(whole, frame_bytes, &before);
    free(whole);
    free(frame);
    free(before.memory);
}

/* Roughly a step with gradients from the input. */
static void make_step(const struct lmc_link_rule *rule, const struct state *before, struct state *after,
                      const uint8_t *bytes, size_t count)
{
    const float *m = before->array[0], *v = before->array[1], *w = before->array[rule->optimizer == LMC_ADAM ? 2 : 1];
    float *to_m = after->array[0], *to_v = after->array[1], *to_w = after->array[rule->optimizer == LMC_ADAM ? 2 : 1];
    for (size_t i = 0; i < before->bytes / 4; i++) {
        uint32_t word = (uint32_t)bytes[i % count] << 24 | (uint32_t)bytes[(3 * i + 1) % count] << 16;
        word |= (bytes[0] & 1) != 0 ? 0 : (uint32_t)(i * 40503 & 0xffff);
        float g;
        memcpy(&g, &word, 4);
        g *= (bytes[0] & 4) != 0 ? rule->scale : 1;
        to_m[i] = rule->optimizer == LMC_ADAM ? m[i] + rule->gain * (g - m[i]) : rule->gain * g + m[i] * rule->momentum;
        if (rule->optimizer == LMC_ADAM)
            to_v[i] = rule->gain2 * g * g + v[i] * rule->beta2;
        to_w[i] = w[i] + rule->rate * to_m[i];
    }
}

static void try_states(const uint8_t *bytes, size_t count)
{
    if (count < 4)
        return;
    const struct lmc_link_rule rule = rule_of(bytes[0]);
    const uint32_t arrays = lmc_link_arrays(rule.optimizer, rule.flags);
    const size_t elements = (bytes[1] | (size_t)bytes[2] << 8) % MOST_ELEMENTS;
    struct state before = state_new(4 * elements), after = state_new(4 * elements);
    fill_state(&before, bytes, count, 7);
    fill_state(&after, bytes, count, (bytes[3] & 1) != 0 ? 7 : 8);
    if ((bytes[3] & 2) != 0)
        make_step(&rule, &before, &after, bytes + 3, count - 3);
    const struct lmc_link_params params = params_of(&rule, &before, &after);
    const size_t bound = (size_t)lmc_link_bound(arrays, before.bytes);
    unsigned char *frame = allocate(bound), *first = allocate(bound);
    size_t frame_bytes, first_bytes = 0;
    for (unsigned k = 0; k < TABLES; k++) {
        if (!lmci_kernels_use(tables[k]))
            continue;
        REQUIRE(lmc_link_compress(&params, frame, bound, &frame_bytes, NULL) == LMC_OK && frame_bytes <= bound);
        if (first_bytes == 0) {
            memcpy(first, frame, frame_bytes);
            first_bytes = frame_bytes;
        }
        REQUIRE(frame_bytes == first_bytes && memcmp(frame, first, frame_bytes) == 0);
        struct decoded decoded = decode(frame, frame_bytes, &before);
        REQUIRE(decoded.status == LMC_OK);
        REQUIRE(memcmp(decoded.state.memory, after.memory, arrays * after.bytes) == 0);
        free(decoded.state.memory);
    }
    REQUIRE(lmci_kernels_use(NULL));
    struct lmc_link_rule found;
    if (elements != 0)
        REQUIRE(lmc_link_fit(NULL, arrays, params.before, params.after, params.raw_bytes, &found, NULL, NULL) !=
                LMC_INVALID);
    free(first);
    free(frame);
    free(before.memory);
    free(after.memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count == 0)
        return 0;
    if (bytes[0] % 2 != 0) {
        try_states(bytes + 1, count - 1);
    } else {
        try_frame(bytes + 1, count - 1);
        try_block(bytes + 1, count - 1);
    }
    return 0;
}
