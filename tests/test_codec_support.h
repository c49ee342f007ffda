/* SPDX-License-Identifier: BSD-3-Clause */
/* test_codec_support.h - synthetic tensors, round trips, and a run for each set of kernels. */
#ifndef LMC_TEST_CODEC_SUPPORT_H
#define LMC_TEST_CODEC_SUPPORT_H

#include "lmc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define BLOCK LMC_BLOCK_BYTES

static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

enum pattern { RANDOM, CONSTANT, ZEROS, FEW, FLOATS, NANS, SPARSE, COUNTING, SKEWED, PATTERNS };

static inline uint32_t patterned_word(enum pattern pattern, uint64_t random, size_t i)
{
    switch (pattern) {
    case RANDOM:
        return (uint32_t)random;
    case CONSTANT:
        return 0xa5a5a5a5;
    case FEW:
        return (uint32_t)(random % 3) * 0x01010101;
    case FLOATS:
        return (uint32_t)((120 + (random & random >> 8 & 7)) << 23 | (random >> 16 & 0x807fffff));
    case NANS:
        return (uint32_t)(0x7f800000 | (random & 0x807fffff));
    case SPARSE:
        return random % 100 != 0 ? 0 : (uint32_t)(random >> 32);
    case COUNTING:
        return (uint32_t)i;
    case SKEWED: /* byte b is half as frequent as byte b - 1, for the longest codes */
        return (uint32_t)__builtin_ctzll(random | UINT64_C(1) << 40) * 0x01000001;
    default:
        return 0;
    }
}

static inline void fill(enum pattern pattern, uint64_t seed, unsigned char *bytes, size_t count)
{
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (size_t i = 0; i < count; i += 4) {
        uint32_t word = patterned_word(pattern, next_random(&state), i / 4);
        memcpy(bytes + i, &word, count - i < 4 ? count - i : 4);
    }
}

static inline void put_word(unsigned char *at, uint32_t word, size_t bytes)
{
    memcpy(at, &word, bytes);
}

/* Weights before and after a training step (bf16 or f32). Each moves by about `noise` units in the last place of the
 * greatest. One in `flips` changes its sign; 0: none. */
static inline void take_step(size_t word, uint64_t seed, unsigned noise, unsigned flips, unsigned char *before,
                             unsigned char *after, size_t count)
{
    uint64_t state = seed;
    for (size_t i = 0; i + word <= count; i += word) {
        uint64_t random = next_random(&state);
        unsigned low = (unsigned)__builtin_ctzll(random | 1 << 12);
        uint32_t b = (uint32_t)((122 - low) << 23 | (random >> 24 & 0x807fffff));
        uint32_t d = (uint32_t)((random >> 56) % (2 * noise + 1) - noise) << low;
        if (word == 2) {
            uint16_t x = (uint16_t)((b >> 16) + d);
            put_word(before + i, b >> 16, 2);
            put_word(after + i, flips != 0 && (random >> 20) % flips == 0 ? x ^ 0x8000u : x, 2);
        } else {
            put_word(before + i, b, 4);
            put_word(after + i, flips != 0 && (random >> 20) % flips == 0 ? (b + d) ^ 0x80000000u : b + d, 4);
        }
    }
}

struct encoded {
    unsigned char *frame;
    size_t frame_bytes;
    size_t capacity;
};

/* Checks the guaranteed sizes; memory of exactly the frame's size (for sanitizers). */
static inline struct encoded encode_at(enum lmc_level level, uint32_t dtype, const void *data, const void *base,
                                       size_t bytes)
{
    struct lmc_params params = {
        .dtype = dtype, .level = level, .raw_bytes = bytes, .data = data, .base = base, .base_digest = {1, 2}};
    struct encoded made = {NULL, 0, (size_t)lmc_frame_bound(bytes)};
    const char *message = "";
    made.frame = malloc(made.capacity);
    assert_non_null(made.frame);
    assert_int_equal(lmc_compress(&params, made.frame, made.capacity, &made.frame_bytes, &message), LMC_OK);
    assert_true(made.frame_bytes <= bytes + bytes / 1000 + 128);
    made.frame = realloc(made.frame, made.frame_bytes);
    assert_non_null(made.frame);
    return made;
}

static inline struct encoded encode(uint32_t dtype, const void *data, const void *base, size_t bytes)
{
    return encode_at(LMC_LEVEL_DEFAULT, dtype, data, base, bytes);
}

static inline void assert_decodes(const struct encoded *made, const void *data, const void *base, size_t bytes)
{
    unsigned char *back = malloc(bytes + 1);
    const char *message = "";
    assert_non_null(back);
    back[bytes] = 0x5a;
    assert_int_equal(lmc_decompress(made->frame, made->frame_bytes, &base, back, bytes, &message), LMC_OK);
    assert_true(bytes == 0 || memcmp(back, data, bytes) == 0);
    assert_int_equal(back[bytes], 0x5a);
    free(back);
}

static inline size_t round_trip(uint32_t dtype, const void *data, const void *base, size_t bytes)
{
    struct encoded made = encode(dtype, data, base, bytes);
    assert_decodes(&made, data, base, bytes);
    free(made.frame);
    return made.frame_bytes;
}

/* From codec/kernels/kernels.h; NULL if the library is shared. */
bool lmci_kernels_use(const char *name) __attribute__((weak));

static inline bool use_kernels(const char *name)
{
    return lmci_kernels_use != 0 && lmci_kernels_use(name);
}

static inline int rerun_with_kernels(const char *kernels)
{
    int status = 1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("LMC_KERNELS", kernels, 1);
        execl("/proc/self/exe", "again", (char *)NULL);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return 1;
    return status;
}

/* The exit status of main: this run's and, unless the caller chose the kernels, one for each lesser set. */
static inline int with_all_kernels(int failed)
{
    printf("kernels: %s\n", lmc_kernels());
    if (getenv("LMC_KERNELS") != NULL)
        return failed;
    return failed != 0 || rerun_with_kernels("avx2") != 0 || rerun_with_kernels("portable") != 0;
}

#endif
