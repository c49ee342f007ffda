/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_codec_bench.c - speeds and ratios on synthetic training state, one thread.
 *
 * Weights move as by AdamW (lr 3e-4). Prints bits an element and GB/s of decoded bytes, best of five. Usage:
 * test_codec_bench [MiB a tensor, 2].
 */
#define _GNU_SOURCE
#include "lmc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t state = 0x9e3779b97f4a7c15;

static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 11) + 0.5) * 0x1p-53;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static int failures;

static void measure(const char *name, uint32_t dtype, const void *data, const void *base, size_t bytes)
{
    size_t bound = (size_t)lmc_frame_bound(bytes);
    unsigned char *frame = malloc(bound);
    unsigned char *back = malloc(bytes);
    struct lmc_params params = {.dtype = dtype, .raw_bytes = bytes, .data = data, .base = base};
    double in = 1e9, out = 1e9, copy = 1e9;
    size_t frame_bytes = 0;
    const char *message = "";
    for (int i = 0; i < 5; i++) {
        double t0 = now();
        if (lmc_compress(&params, frame, bound, &frame_bytes, &message) != 0)
            failures++;
        double t1 = now();
        if (lmc_decompress(frame, frame_bytes, &base, back, bytes, &message) != 0)
            failures++;
        double t2 = now();
        if (memcmp(back, data, bytes) != 0)
            failures++;
        double t3 = now();
        memcpy(back, data, bytes);
        double t4 = now();
        in = t1 - t0 < in ? t1 - t0 : in;
        out = t2 - t1 < out ? t2 - t1 : out;
        copy = t4 - t3 < copy ? t4 - t3 : copy;
    }
    double size = (double)lmc_dtype_size(dtype);
    printf("%-26s %7.3f bits  %6.3fx  in %6.2f GB/s  out %6.2f GB/s  memcpy %5.1f\n", name,
           8 * size * (double)frame_bytes / (double)bytes, (double)bytes / (double)frame_bytes,
           (double)bytes / in / 1e9, (double)bytes / out / 1e9, (double)bytes / copy / 1e9);
    free(frame);
    free(back);
}

int main(int argc, char **argv)
{
    size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 2) << 20;
    size_t n = bytes / 4;
    float *w = malloc(bytes), *w1 = malloc(bytes), *w100 = malloc(bytes), *v = malloc(bytes), *v1 = malloc(bytes);
    uint16_t *b = malloc(bytes / 2), *b1 = malloc(bytes / 2), *b100 = malloc(bytes / 2), *sparse = malloc(bytes / 2);
    uint64_t *noise = malloc(bytes);
    double spread = 0.02;
    for (size_t i = 0; i < n; i++) {
        if (i % 768 == 0)
            spread = 0.02 * exp(0.3 * normal());
        w[i] = (float)(spread * normal());
        double g = 1e-4 * normal();
        v[i] = (float)(1e-8 * exp(normal()));
        v1[i] = (float)(0.999 * v[i] + 0.001 * g * g);
        w1[i] = w[i] - (float)(1e-5 * normal());
        w100[i] = w[i] - (float)(1e-3 * normal());
        b[i] = to_bf16(w[i]);
        b1[i] = to_bf16(w1[i]);
        b100[i] = to_bf16(w100[i]);
        sparse[i] = (uint16_t)(uniform() < 0.99 ? b[i] : b[i] + 1 - 2 * (uniform() < 0.5));
    }
    for (size_t i = 0; i < n / 2; i++)
        noise[i] = (uniform(), state * 0x2545f4914f6cdd1d);
    printf("kernels: %s\n", lmc_kernels());
    measure("f32 weights, alone", LMC_F32, w, NULL, bytes);
    measure("f32 weights, small step", LMC_F32, w1, w, bytes);
    measure("f32 weights, large step", LMC_F32, w100, w, bytes);
    measure("f32 Adam v, alone", LMC_F32, v, NULL, bytes);
    measure("f32 Adam v, 1 step", LMC_F32, v1, v, bytes);
    measure("bf16 weights, alone", LMC_BF16, b, NULL, bytes / 2);
    measure("bf16 weights, small step", LMC_BF16, b1, b, bytes / 2);
    measure("bf16 weights, large step", LMC_BF16, b100, b, bytes / 2);
    measure("bf16, 1 % changed", LMC_BF16, sparse, b, bytes / 2);
    measure("f32, unchanged", LMC_F32, w, w, bytes);
    measure("noise", LMC_U64, noise, NULL, bytes);
    free(w), free(w1), free(w100), free(v), free(v1), free(b), free(b1), free(b100), free(sparse), free(noise);
    return failures != 0;
}
