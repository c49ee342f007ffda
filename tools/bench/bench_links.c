/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_links.c - links of one training, measured: size, speed as a share of memcpy's, and whether all came back.
 *
 *   bench_links adam|sgd STEPS STEP LR WEIGHT_DECAY BETA1_OR_MOMENTUM BETA2 EPS FILE...
 *
 * The files have one array each, raw f32: those of the first state, then those of the next, and so on, STEPS + 1
 * states. STEP is the number of the first step. One line: elements, bits an element with hints and without, the same
 * of ordinary deltas, the shares of each array that come out exactly, GB/s of memcpy, in, out, and of a link of the
 * whole chain.
 * All in one thread; speeds are by the thread's own clock, the best of some rounds.
 */
#include "lmc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_STEPS = 64, ROUNDS = 5 };

struct training {
    struct lmc_link_hints hints;
    uint32_t arrays;
    unsigned steps;
    size_t bytes; /* of an array */
    void *state[MOST_STEPS + 1][LMC_MAX_BASES];
    void *now[LMC_MAX_BASES]; /* what is decoded */
    unsigned char *frame[MOST_STEPS];
    size_t frame_bytes[MOST_STEPS];
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "bench_links: %s: %s\n", what, why);
    exit(1);
}

static void *room_of(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!memory)
        fail("memory", "there is none");
    memset(memory, 0, bytes);
    return memory;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        fail(path, "cannot be read");
    *bytes = (size_t)ftell(file);
    void *memory = room_of(*bytes);
    rewind(file);
    if (fread(memory, 1, *bytes, file) != *bytes)
        fail(path, "cannot be read");
    fclose(file);
    return memory;
}

static struct lmc_link_params params_of(const struct training *training, unsigned step)
{
    struct lmc_link_params params = {.raw_bytes = training->bytes};
    for (uint32_t k = 0; k < training->arrays; k++) {
        params.before[k] = training->state[step][k];
        params.after[k] = training->state[step + 1][k];
    }
    return params;
}

static double encode(struct training *training, unsigned step, const struct lmc_link_params *params)
{
    const size_t room = (size_t)lmc_link_bound(training->arrays, training->bytes);
    const char *message = "";
    if (!training->frame[step])
        training->frame[step] = room_of(room);
    const double begin = now();
    if (lmc_link_compress(params, training->frame[step], room, &training->frame_bytes[step], &message) != LMC_OK)
        fail("encoding", message);
    return now() - begin;
}

static double bits_of(const struct training *training, size_t bytes)
{
    return 8.0 * (double)bytes / (double)(training->bytes / 4);
}

static double delta_bits(const struct training *training)
{
    const size_t room = (size_t)lmc_frame_bound(training->bytes);
    unsigned char *frame = room_of(room);
    size_t all = 0, some;
    for (uint32_t k = 0; k < training->arrays; k++) {
        const struct lmc_params params = {.dtype = LMC_F32,
                                          .raw_bytes = training->bytes,
                                          .data = training->state[1][k],
                                          .base = training->state[0][k]};
        if (lmc_compress(&params, frame, room, &some, NULL) != LMC_OK)
            fail("encoding", "a delta");
        all += some;
    }
    free(frame);
    return bits_of(training, all);
}

static double copy(const struct training *training, unsigned step)
{
    const double begin = now();
    for (uint32_t k = 0; k < training->arrays; k++)
        memcpy(training->now[k], training->state[step][k], training->bytes);
    return now() - begin;
}

static void compare(const struct training *training, unsigned step)
{
    for (uint32_t k = 0; k < training->arrays; k++)
        if (memcmp(training->now[k], training->state[step][k], training->bytes) != 0)
            fail("decoding", "another state came back");
}

/* All blocks of the first `steps` links, as a chain. */
static double decode(const struct training *training, unsigned steps)
{
    struct lmc_frame frames[MOST_STEPS];
    struct lmc_link_step chain[MOST_STEPS];
    const char *message = "";
    const double begin = now();
    for (unsigned t = 0; t < steps; t++)
        if (lmc_frame_parse(training->frame[t], training->frame_bytes[t], &frames[t], &message) != LMC_OK)
            fail("decoding", message);
    for (uint64_t i = 0; i < frames[0].block_count; i++) {
        void *state[LMC_MAX_BASES] = {NULL};
        const size_t at = (size_t)i * LMC_BLOCK_BYTES, left = training->bytes - at;
        for (uint32_t k = 0; k < training->arrays; k++)
            state[k] = (unsigned char *)training->now[k] + at;
        for (unsigned t = 0; t < steps; t++) {
            uint64_t offset;
            const struct lmc_block block = lmc_frame_block(&frames[t], i, &offset);
            chain[t] = (struct lmc_link_step){&frames[t], training->frame[t] + offset, block.coded_bytes};
        }
        if (lmc_link_decode_block(chain, steps, i, state, left < LMC_BLOCK_BYTES ? left : LMC_BLOCK_BYTES, NULL,
                                  &message) != LMC_OK)
            fail("decoding", message);
    }
    return now() - begin;
}

static struct lmc_link_params fitted(const struct training *training, const struct lmc_link_hints *hints, unsigned step,
                                     struct lmc_link_fit *fit)
{
    struct lmc_link_params params = params_of(training, step);
    if (lmc_link_fit(hints, training->arrays, params.before, params.after, params.raw_bytes, &params.rule, fit, NULL) >
        LMC_UNSUPPORTED)
        fail("fitting", "no memory");
    return params;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static void measure(struct training *training)
{
    struct lmc_link_fit fit;
    const double gigabytes = 1e-9 * (double)training->bytes * training->arrays;
    double in = 1e9, out = 1e9, chain = 1e9, copied = 1e9;
    struct lmc_link_params params = fitted(training, NULL, 0, &fit);
    (void)encode(training, 0, &params);
    const double without_hints = bits_of(training, training->frame_bytes[0]);
    struct lmc_link_hints hints = training->hints;
    for (unsigned t = 0; t < training->steps; t++, hints.step++) {
        params = fitted(training, &hints, t, &fit);
        (void)encode(training, t, &params);
    }
    params = fitted(training, &training->hints, 0, &fit);
    for (unsigned r = 0; r < ROUNDS; r++) {
        in = least(in, encode(training, 0, &params));
        copied = least(copied, copy(training, 0));
        out = least(out, decode(training, 1));
        compare(training, 1);
        (void)copy(training, 0);
        chain = least(chain, decode(training, training->steps));
        compare(training, training->steps);
    }
    printf("%zu %.3f %.3f %.3f", training->bytes / 4, bits_of(training, training->frame_bytes[0]), without_hints,
           delta_bits(training));
    for (uint32_t k = 0; k < training->arrays; k++)
        printf(" %.5f", (double)fit.exact[k]);
    printf(" %.2f %.2f %.2f %.2f\n", gigabytes / copied, gigabytes / in, gigabytes / out,
           gigabytes * training->steps / chain);
}

int main(int argc, char **argv)
{
    static struct training training;
    if (argc < 10)
        fail("usage", "adam|sgd STEPS STEP LR WEIGHT_DECAY BETA1_OR_MOMENTUM BETA2 EPS FILE...");
    training.hints = (struct lmc_link_hints){.optimizer = strcmp(argv[1], "sgd") == 0 ? LMC_SGD : LMC_ADAM,
                                             .step = atof(argv[3]),
                                             .lr = atof(argv[4]),
                                             .weight_decay = atof(argv[5]),
                                             .beta1 = atof(argv[6]),
                                             .momentum = atof(argv[6]),
                                             .beta2 = atof(argv[7]),
                                             .eps = atof(argv[8])};
    training.arrays = lmc_link_arrays(training.hints.optimizer, 0);
    training.steps = (unsigned)atoi(argv[2]);
    if (!training.steps || training.steps > MOST_STEPS || (unsigned)argc != 9 + (training.steps + 1) * training.arrays)
        fail("usage", "as many files as the states have arrays");
    for (unsigned t = 0; t <= training.steps; t++)
        for (uint32_t k = 0; k < training.arrays; k++)
            training.state[t][k] = read_file(argv[9 + t * training.arrays + k], &training.bytes);
    for (uint32_t k = 0; k < training.arrays; k++)
        training.now[k] = room_of(training.bytes);
    measure(&training);
    return 0;
}
