/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * make_corpus.c - writes the frames of good/, bad/ and unsupported/ (README.md).
 *
 * This file encodes with the library; corpus_good.c, corpus_bad.c and corpus_links.c assemble from FORMAT.md. A
 * difference in git after a run is a change of the format or the encoder. Run in this folder:
 *
 *   cc -I../../../codec *.c ../../../build/lib/liblmc.a -o make_corpus && ./make_corpus .
 */
#include "corpus.h"

#include <stdio.h>
#include <stdlib.h>

static const char *directory;
static const char *folder;

void write_file(const char *name, const char *suffix, const void *bytes, size_t count)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/%s.%s", directory, folder, name, suffix);
    FILE *file = fopen(path, "wb");
    if (file == NULL || (count != 0 && fwrite(bytes, 1, count, file) != count) || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static uint64_t state = 1;

static uint64_t random64(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = state ^ state >> 29;
    return (x * 0xbf58476d1ce4e5b9u) ^ x >> 32;
}

/* ---- Frames from the encoder ----------------------------------------------------------------------------------- */

static void compressed(const char *name, uint32_t dtype, const void *data, const void *base, size_t bytes,
                       int write_raw)
{
    size_t bound = (size_t)lmc_frame_bound(bytes);
    unsigned char *frame = malloc(bound);
    size_t frame_bytes;
    const char *message = "";
    struct lmc_params params = {.dtype = dtype, .raw_bytes = bytes, .data = data, .base = base};
    if (base != NULL) {
        uint64_t shape[1] = {bytes / lmc_dtype_size(dtype)};
        struct lmc_hash hash = lmc_hash128(base, bytes);
        params.base_digest = lmc_digest(dtype, 1, shape, &hash, 1);
    }
    if (lmc_compress(&params, frame, bound, &frame_bytes, &message) != LMC_OK) {
        fprintf(stderr, "%s: %s\n", name, message);
        exit(1);
    }
    write_file(name, "lmc", frame, frame_bytes);
    if (write_raw != 0)
        write_file(name, "raw", data, bytes);
    if (base != NULL)
        write_file(name, "base", base, bytes);
    free(frame);
}

float bell(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(random64() >> 40) * 0x1p-24f - 0.5f;
    return sum * 0.03f;
}

enum { N = 3000 };

static void good_from_encoder(void)
{
    static float f[N], g[N];
    static uint16_t h[N], k[N];
    static uint64_t wide[N];
    static unsigned char bytes[N], zeros[2 * (1 << 20) + 8];
    for (int i = 0; i < N; i++) {
        uint32_t bits;
        f[i] = bell();
        volatile float step = 0.001f * bell(); /* volatile: no contraction, so equal on all machines */
        g[i] = f[i] + step;
        memcpy(&bits, &f[i], 4);
        h[i] = (uint16_t)(bits >> 16);
        k[i] = (uint16_t)(random64() % 16 != 0 ? h[i] : h[i] + 1);
        wide[i] = (uint64_t)i * 1000;
        bytes[i] = (unsigned char)(random64() % 200 != 0 ? 0 : random64());
    }
    compressed("empty", LMC_F32, NULL, NULL, 0, 1);
    compressed("one-byte", LMC_U8, "x", NULL, 1, 1);
    compressed("f32", LMC_F32, f, NULL, sizeof f, 1);
    compressed("f32-delta", LMC_F32, g, f, sizeof f, 1);
    compressed("f32-same-as-base", LMC_F32, f, f, sizeof f, 1);
    compressed("bf16", LMC_BF16, h, NULL, sizeof h, 1);
    compressed("bf16-delta", LMC_BF16, k, h, sizeof h, 1);
    compressed("u64", LMC_U64, wide, NULL, sizeof wide, 1);
    compressed("u8-mostly-zero", LMC_U8, bytes, NULL, sizeof bytes, 1);
    zeros[0] = zeros[(1 << 20) - 1] = zeros[1 << 20] = zeros[sizeof zeros - 1] = 7;
    compressed("three-blocks", LMC_F64, zeros, NULL, sizeof zeros, 0);
}

/* Methods 4 and 6: moved floats of 8 bytes and of 1, repeated rows. */
static void good_keyed_and_rows(void)
{
    static double wide[N], moved[N];
    static uint8_t small[N], stepped[N];
    static uint16_t rows[64][128], next[64][128];
    for (int i = 0; i < N; i++) {
        volatile double step = 1e-6 * (double)bell();
        wide[i] = (double)bell() * 1.00000001;
        moved[i] = wide[i] + step;
        const uint64_t random = random64();
        const int exponent = 15 - __builtin_ctz((unsigned)(random >> 48) | 1 << 14);
        small[i] = (uint8_t)((random & 0x80) | (unsigned)exponent << 3 | (random >> 8 & 7));
        stepped[i] = (uint8_t)(small[i] + ((random >> 20 & ((1u << exponent / 2) - 1)) != 0 ? 0 : 1));
    }
    for (size_t i = 0; i < 64; i++)
        for (size_t k = 0; k < 128; k++) {
            const int repeats = i % 3 != 0 && i > 4;
            rows[i][k] = repeats != 0 ? rows[i % 2][k] : (uint16_t)(0x3c00 + random64() % 300);
            next[i][k] = repeats != 0 ? next[i % 2][k] : (uint16_t)(rows[i][k] + random64() % 3);
        }
    compressed("f64-delta", LMC_F64, moved, wide, sizeof moved, 1);
    compressed("f8-delta", LMC_F8_E4M3FN, stepped, small, sizeof stepped, 1);
    compressed("rows", LMC_F16, rows, NULL, sizeof rows, 1);
    compressed("rows-delta", LMC_F16, next, rows, sizeof next, 1);
}

/* Nine words of ten moved by an ulp, some by more than pairs have. */
static void good_pairs_from_encoder(void)
{
    static uint16_t before[5000], after[5000];
    for (int i = 0; i < 5000; i++) {
        before[i] = (uint16_t)(0x3f80 + random64() % 64);
        after[i] = (uint16_t)(before[i] + (i % 500 == 17 ? 50 : random64() % 10 != 0 ? 1 : 0));
    }
    compressed("bf16-pairs-delta", LMC_BF16, after, before, sizeof after, 1);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus DIRECTORY\n");
        return 2;
    }
    directory = argv[1];
    folder = "good";
    good_from_encoder();
    good_keyed_and_rows();
    good_by_hand();
    good_links();
    good_pairs_from_encoder(); /* last, so that the others' random numbers stay */
    folder = "bad";
    bad_by_hand();
    bad_links();
    folder = "unsupported";
    unsupported_by_hand();
    unsupported_links();
    return 0;
}
