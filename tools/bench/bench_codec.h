/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_codec.h - shared by the parts of bench_codec, the C half of tools/bench.sh codec.
 *
 * Measures one tensor (and its base) in memory. Prints JSON lines: first the sizes, then the seconds of a round for
 * each line of input, so that rounds alternate with other programs'.
 */
#ifndef BENCH_CODEC_H
#define BENCH_CODEC_H

#include "lmc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct input {
    uint32_t dtype;
    size_t once;         /* bytes of the tensor, for sizes */
    size_t wanted;       /* requested bytes */
    size_t bytes;        /* the same, repeated up to `wanted`, for speeds */
    unsigned char *data; /* `bytes` each */
    unsigned char *base; /* NULL without one */
    unsigned char *out;  /* the output of memcpy and decoding */
    unsigned char *frame;
    size_t frame_room;
    bool huge; /* huge pages for all buffers; otherwise none */
};

/* ---- bench_codec.c ---------------------------------------------------------------------------------------------- */

_Noreturn __attribute__((format(printf, 1, 2))) void die(const char *format, ...);
double now_s(void);
double cpu_s(void); /* of this process */
/* Allocates pages and touches them. */
unsigned char *pages_new(size_t bytes, bool huge);
struct lmc_params params_of(const struct input *input, size_t bytes, enum lmc_level level);
/* Exits if the decoded bytes differ, then overwrites them. */
void check_and_clear(const struct input *input, size_t bytes);

/* ---- The modes: `start` prints the first line, `round` one line of seconds --------------------------------------- */

struct mode {
    const char *name;
    void (*start)(struct input *input);
    void (*round)(struct input *input);
};

void row_start(struct input *input); /* bench_codec.c: both levels */
void row_round(struct input *input);
void threads_start(struct input *input); /* bench_codec_more.c */
void threads_round(struct input *input);
void small_start(struct input *input); /* bench_codec_more.c: as tensors of 64 KiB, and as one */
void small_round(struct input *input);

/* ---- bench_published.c ------------------------------------------------------------------------------------------- */

/* Returns the size of LMC as published: byte planes, XORed with the base's, in blocks of 64 KiB with counted Huffman
 * codes, or raw where smaller. */
size_t published_bytes(const unsigned char *data, const unsigned char *base, size_t bytes, size_t width);

#endif
