/* SPDX-License-Identifier: BSD-3-Clause */
/* corpus_links.c - links, and links with a changed header. */
#include "corpus.h"

#include <stdio.h>
#include <stdlib.h>

enum { LINKED = 300 };

/* Concatenated arrays before and after a step. */
static float linked[2][4 * LINKED];

/* Rounds to f32 without contraction: equal on all machines. */
static float f32_of(double x)
{
    volatile float rounded = (float)x;
    return rounded;
}

static double root_of(double x)
{
    volatile double root = x < 1 ? 1 : x;
    for (int i = 0; i < 60; i++)
        root = 0.5 * (root + x / root);
    return root;
}

/* bf16 (0), a sum of four (1), any float (2), mostly zero (3). */
static float gradient_of(int kind, int i)
{
    double sum = 0;
    for (int k = 0; k < (kind == 1 ? 4 : 1); k++) {
        float g = bell();
        uint32_t bits;
        memcpy(&bits, &g, 4);
        bits &= kind == 2 ? UINT32_MAX : 0xffff0000;
        memcpy(&g, &bits, 4);
        sum += (double)g;
    }
    return kind == 3 && i % 5 != 0 ? 0 : f32_of(sum);
}

static void adam_states(int kind, const struct lmc_link_rule *rule)
{
    for (int i = 0; i < LINKED; i++) {
        const float m = bell(), v = f32_of((double)bell() * (double)bell()), w = bell(), g = gradient_of(kind, i);
        const float second = v < 0 ? -v : v, kept = f32_of((double)second * (double)rule->beta2);
        const float e = f32_of((double)rule->l2 * (double)w + (double)g), way = f32_of((double)e - (double)m);
        const float m1 = f32_of((double)rule->gain * (double)way + (double)m);
        const float v1 = f32_of((double)f32_of((double)rule->gain2 * (double)e) * (double)e + (double)kept);
        const float below = f32_of(root_of((double)v1) / (double)rule->root + (double)rule->eps);
        const float step = f32_of((double)f32_of((double)rule->rate * (double)m1) / (double)below);
        const float before[4] = {m, second, w, v1}, after[4] = {m1, v1, f32_of((double)w + (double)step), v1};
        for (int k = 0; k < 4; k++) {
            linked[0][k * LINKED + i] = before[k];
            linked[1][k * LINKED + i] = after[k];
        }
    }
}

static void sgd_states(const struct lmc_link_rule *rule)
{
    for (int i = 0; i < LINKED; i++) {
        const float m = bell(), w = bell(), g = gradient_of(0, i);
        const float m1 = f32_of((double)g + (double)f32_of((double)m * (double)rule->momentum));
        const float u = f32_of((double)rule->momentum * (double)m1 + (double)g);
        linked[0][i] = m;
        linked[1][i] = m1;
        linked[0][LINKED + i] = w;
        linked[1][LINKED + i] = f32_of((double)rule->rate * (double)u + (double)w);
    }
}

static struct lmc_link_params linked_params(const struct lmc_link_rule *rule, size_t elements)
{
    struct lmc_link_params params = {.rule = *rule, .raw_bytes = 4 * elements};
    for (uint32_t k = 0; k < lmc_link_arrays(rule->optimizer, rule->flags); k++) {
        const uint64_t shape[1] = {elements};
        params.before[k] = linked[0] + k * elements;
        params.after[k] = linked[1] + k * elements;
        const struct lmc_hash hash = lmc_hash128(params.before[k], 4 * elements);
        params.before_digest[k] = lmc_digest(LMC_F32, 1, shape, &hash, elements != 0);
    }
    return params;
}

static void save_link(const char *name, const struct lmc_link_rule *rule, size_t elements)
{
    static unsigned char room[1 << 16];
    const struct lmc_link_params params = linked_params(rule, elements);
    const size_t bytes = 4 * elements * lmc_link_arrays(rule->optimizer, rule->flags);
    size_t frame_bytes;
    const char *message = "";
    if (lmc_link_compress(&params, room, sizeof room, &frame_bytes, &message) != LMC_OK) {
        fprintf(stderr, "%s: %s\n", name, message);
        exit(1);
    }
    write_file(name, "lmc", room, frame_bytes);
    write_file(name, "raw", linked[1], bytes);
    write_file(name, "base", linked[0], bytes);
}

static struct lmc_link_rule adam_rule(uint32_t flags)
{
    return (struct lmc_link_rule){.optimizer = LMC_ADAM,
                                  .flags = flags,
                                  .gain = 0.1f,
                                  .beta2 = 0.95f,
                                  .gain2 = 0.05f,
                                  .decay = 1,
                                  .l2 = (flags & LMC_LINK_L2) != 0 ? 0.01f : 0,
                                  .rate = -0.001f,
                                  .root = 0.9f,
                                  .eps = 1e-8f,
                                  .scale = 1};
}

void good_links(void)
{
    static const char *const names[] = {"link-short", "link-variable", "link-full", "link-zeros"};
    static const uint32_t special[] = {0x7fc00001, 0x7f800000, 0xff800000, 1, 0x80000000, 0x7f7fffff};
    struct lmc_link_rule rule = adam_rule(0);
    for (int kind = 0; kind < 4; kind++) {
        adam_states(kind, &rule);
        save_link(names[kind], &rule, LINKED);
    }
    for (int i = 0; i < 48; i++)
        memcpy(&linked[i % 2][(i / 2 % 3) * LINKED + 6 * i], &special[i % 6], 4);
    save_link("link-special", &rule, LINKED);
    for (int i = 0; i < 3 * LINKED; i++)
        linked[1][i] = bell();
    save_link("link-deltas", &rule, LINKED);
    save_link("link-empty", &rule, 0);
    rule = adam_rule(LMC_LINK_L2 | LMC_LINK_AMSGRAD);
    rule.gain = 0.7f;
    adam_states(1, &rule);
    save_link("link-amsgrad", &rule, LINKED);
    rule = (struct lmc_link_rule){.optimizer = LMC_SGD,
                                  .flags = LMC_LINK_NESTEROV,
                                  .gain = 1,
                                  .momentum = 0.9f,
                                  .decay = 1,
                                  .rate = -0.01f,
                                  .scale = 1};
    sgd_states(&rule);
    save_link("link-sgd", &rule, LINKED);
}

/* A valid link of one element with a changed header. */
static void save_changed_link(const char *name, size_t at, uint64_t value, size_t bytes)
{
    unsigned char room[1024];
    const struct lmc_link_rule rule = adam_rule(0);
    size_t frame_bytes;
    const struct lmc_link_params params = linked_params(&rule, 1);
    if (lmc_link_compress(&params, room, sizeof room, &frame_bytes, NULL) != LMC_OK)
        exit(1);
    seal_put(room + at, value, bytes);
    seal_frame(room, frame_bytes);
    write_file(name, "lmc", room, frame_bytes);
    write_file(name, "base", linked[0], 12);
}

void bad_links(void)
{
    save_changed_link("link-bases", 36, 2, 1);
    save_changed_link("link-no-constants", 40, 0, 4);
    save_changed_link("link-arrays", 112, LMC_LINK_AMSGRAD, 4);
    save_changed_link("link-reserved", 116, 1, 4);
    save_changed_link("link-gain-0", 120, 0, 4);
    save_changed_link("link-rate-nan", 144, 0x7fc00000, 4);
}

void unsupported_links(void)
{
    save_changed_link("link-bf16", 32, LMC_BF16, 2);
    save_changed_link("link-variant", 112, 8, 4);
}
