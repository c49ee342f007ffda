/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_links.c - links of one training: sizes, speeds, and whether all were restored.
 *
 *   bench_links adam|sgd STEPS STEP LR WEIGHT_DECAY BETA1_OR_MOMENTUM BETA2 EPS FILE...
 *
 * Each file is one array, raw f32: all of the first state, then of the next, and so on, STEPS + 1 states; STEP is the
 * first step. Prints one JSON object. One thread by its own clock, the best of some rounds.
 */
#include "lmc.h"

#include <stdbool.h>
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
    char *const *files;
    void *state[MOST_STEPS + 1][LMC_MAX_BASES]; /* the first two, the last, and the current ones */
    void *now[LMC_MAX_BASES];                   /* decoded arrays */
    unsigned char *room;                        /* the frame */
    size_t room_bytes;
    unsigned char *frame[MOST_STEPS];
    size_t frame_bytes[MOST_STEPS];
};

/* Costs of links made with hints or without. */
struct made {
    double bits;  /* per element, mean */
    double fit_s; /* longest search for constants */
    struct lmc_link_fit first;
};

struct seconds {
    double copy, in, out, chain, delta_in, delta_out;
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "bench_links: %s: %s\n", what, why);
    exit(1);
}

static void *room_of(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (memory == NULL)
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

static void least(double *best, double seconds)
{
    if (*best == 0 || seconds < *best)
        *best = seconds;
}

/* ---- States ----------------------------------------------------------------------------------------------------- */

static void *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END))
        fail(path, "cannot be read");
    *bytes = (size_t)ftell(file);
    void *memory = room_of(*bytes);
    rewind(file);
    if (fread(memory, 1, *bytes, file) != *bytes)
        fail(path, "cannot be read");
    fclose(file);
    return memory;
}

static void load(struct training *training, unsigned step)
{
    for (uint32_t k = 0; k < training->arrays && !training->state[step][k]; k++)
        training->state[step][k] = read_file(training->files[step * training->arrays + k], &training->bytes);
}

static void unload(struct training *training, unsigned step)
{
    for (uint32_t k = 0; k < training->arrays; k++) {
        free(training->state[step][k]);
        training->state[step][k] = NULL;
    }
}

static double copy(const struct training *training)
{
    const double begin = now();
    for (uint32_t k = 0; k < training->arrays; k++)
        memcpy(training->now[k], training->state[0][k], training->bytes);
    return now() - begin;
}

static void compare(const struct training *training, unsigned step)
{
    for (uint32_t k = 0; k < training->arrays; k++)
        if (memcmp(training->now[k], training->state[step][k], training->bytes) != 0)
            fail("decoding", "another state came back");
}

/* ---- Links ------------------------------------------------------------------------------------------------------ */

static struct lmc_link_params fitted(const struct training *training, const struct lmc_link_hints *hints, unsigned step,
                                     struct lmc_link_fit *fit)
{
    struct lmc_link_params params = {.raw_bytes = training->bytes};
    for (uint32_t k = 0; k < training->arrays; k++) {
        params.before[k] = training->state[step][k];
        params.after[k] = training->state[step + 1][k];
    }
    if (lmc_link_fit(hints, training->arrays, params.before, params.after, params.raw_bytes, &params.rule, fit, NULL) >
        LMC_UNSUPPORTED)
        fail("fitting", "no memory");
    return params;
}

/* Encodes one link; returns its size. */
static size_t encode(struct training *training, const struct lmc_link_params *params, double *seconds)
{
    const char *message = "";
    size_t bytes = 0;
    const double begin = now();
    if (lmc_link_compress(params, training->room, training->room_bytes, &bytes, &message) != LMC_OK)
        fail("encoding", message);
    *seconds = now() - begin;
    return bytes;
}

static struct made make_all(struct training *training, bool with_hints)
{
    struct made made = {0};
    struct lmc_link_hints hints = training->hints;
    double seconds;
    for (unsigned t = 0; t < training->steps; t++, hints.step++) {
        struct lmc_link_fit fit;
        load(training, t);
        load(training, t + 1);
        const double begin = now();
        const struct lmc_link_params params = fitted(training, with_hints ? &hints : NULL, t, &fit);
        seconds = now() - begin;
        made.fit_s = seconds > made.fit_s ? seconds : made.fit_s;
        made.first = t == 0 ? fit : made.first;
        const size_t bytes = encode(training, &params, &seconds);
        made.bits += 8.0 * (double)bytes / ((double)training->bytes / 4 * training->steps);
        if (with_hints) {
            training->frame[t] = room_of(bytes);
            memcpy(training->frame[t], training->room, bytes);
            training->frame_bytes[t] = bytes;
        }
        if (t > 1)
            unload(training, t);
    }
    return made;
}

/* Decodes the first `steps` links as a chain; returns seconds. */
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

/* ---- Ordinary deltas -------------------------------------------------------------------------------------------- */

/* Encodes deltas of the arrays against the first state; returns bytes. */
static size_t deltas(struct training *training, struct seconds *best)
{
    double in = 0, out = 0;
    size_t all = 0, some = 0;
    for (uint32_t k = 0; k < training->arrays; k++) {
        const void *bases[] = {training->state[0][k]};
        const struct lmc_params params = {
            .dtype = LMC_F32, .raw_bytes = training->bytes, .data = training->state[1][k], .base = bases[0]};
        const double begin = now();
        if (lmc_compress(&params, training->room, training->room_bytes, &some, NULL) != LMC_OK)
            fail("encoding", "a delta");
        const double encoded = now();
        if (lmc_decompress(training->room, some, bases, training->now[k], training->bytes, NULL) != LMC_OK)
            fail("decoding", "a delta");
        in += encoded - begin;
        out += now() - encoded;
        all += some;
    }
    compare(training, 1);
    least(&best->delta_in, in);
    least(&best->delta_out, out);
    return all;
}

static void measure(struct training *training)
{
    struct seconds best = {0};
    struct lmc_link_fit fit;
    double seconds;
    size_t delta_bytes = 0;
    const struct made made = make_all(training, true), blind = make_all(training, false);
    const struct lmc_link_params first = fitted(training, &training->hints, 0, &fit);
    for (unsigned r = 0; r < ROUNDS; r++) {
        (void)encode(training, &first, &seconds);
        least(&best.in, seconds);
        least(&best.copy, copy(training));
        least(&best.out, decode(training, 1));
        compare(training, 1);
        (void)copy(training);
        least(&best.chain, decode(training, training->steps));
        compare(training, training->steps);
        delta_bytes = deltas(training, &best);
    }
    const double elements = (double)training->bytes / 4, gigabytes = 1e-9 * (double)training->bytes * training->arrays;
    printf(
        "{\"elements\": %.0f, \"links\": %u, \"bits\": %.4f, \"bits_without_hints\": %.4f, \"bits_of_deltas\": %.4f, ",
        elements, training->steps, made.bits, blind.bits, 8.0 * (double)delta_bytes / elements);
    printf("\"fit_s\": %.6f, \"blind_fit_s\": %.6f, \"sampled\": %u, \"exact\": [", made.fit_s, blind.fit_s,
           blind.first.sampled);
    for (uint32_t k = 0; k < training->arrays; k++)
        printf("%s%.5f", k > 0 ? ", " : "", (double)made.first.exact[k]);
    printf("], \"memcpy_gbs\": %.3f, \"in_gbs\": %.3f, \"out_gbs\": %.3f, \"chain_gbs\": %.3f, ", gigabytes / best.copy,
           gigabytes / best.in, gigabytes / best.out, gigabytes * training->steps / best.chain);
    printf("\"delta_in_gbs\": %.3f, \"delta_out_gbs\": %.3f}\n", gigabytes / best.delta_in, gigabytes / best.delta_out);
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
    training.files = argv + 9;
    if (!training.steps || training.steps > MOST_STEPS || (unsigned)argc != 9 + (training.steps + 1) * training.arrays)
        fail("usage", "as many files as the states have arrays");
    load(&training, 0);
    for (uint32_t k = 0; k < training.arrays; k++)
        training.now[k] = room_of(training.bytes);
    training.room_bytes = (size_t)lmc_link_bound(training.arrays, training.bytes);
    training.room = room_of(training.room_bytes);
    measure(&training);
    return 0;
}
