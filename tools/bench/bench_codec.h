/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_codec.h - shared by the parts of bench_codec.
 *
 * bench_codec is the C half of tools/bench.sh codec: it holds one tensor (and its base) in memory and measures liblmc
 * on it through its public header. It answers in lines of JSON: one with sizes when it has started, then one with the
 * seconds of a round for each line that it reads, so that its rounds can take turns with those of other programs.
 */
#ifndef BENCH_CODEC_H
#define BENCH_CODEC_H

#include "lmc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct input {
    uint32_t dtype;
    size_t once;         /* bytes of the tensor; sizes are measured on these */
    size_t wanted;       /* bytes that were asked for */
    size_t bytes;        /* the same, repeated until there is enough to measure speed on */
    unsigned char *data; /* `bytes` each */
    unsigned char *base; /* NULL: none */
    unsigned char *out;  /* the output of memcpy and decoding */
    unsigned char *frame;
    size_t frame_room;
    bool huge; /* ask for huge pages, for all buffers; otherwise none has any */
};

/* ---- bench_codec.c ---------------------------------------------------------------------------------------------- */

_Noreturn __attribute__((format(printf, 1, 2))) void die(const char *format, ...);
double now_s(void);
double cpu_s(void); /* that this process has had */
/* Memory of its own, touched. */
unsigned char *pages_new(size_t bytes, bool huge);
struct lmc_params params_of(const struct input *input, size_t bytes, enum lmc_level level);
/* Ends the program if the decoded bytes differ from the tensor, then overwrites them. */
void check_and_clear(const struct input *input, size_t bytes);

/* ---- The modes: `start` prints the first line, `round` one line of seconds --------------------------------------- */

struct mode {
    const char *name;
    void (*start)(struct input *input);
    void (*round)(struct input *input);
};

void row_start(struct input *input); /* bench_codec.c: one tensor, one thread, both levels */
void row_round(struct input *input);
void threads_start(struct input *input); /* bench_codec_more.c: one and two threads */
void threads_round(struct input *input);
void small_start(struct input *input); /* bench_codec_more.c: as tensors of 64 KiB, and as one */
void small_round(struct input *input);

/* ---- bench_published.c ------------------------------------------------------------------------------------------- */

/*
 * Bytes that LMC as published makes of a tensor: planes of bytes, XORed with the base's, each cut into blocks of
 * 64 KiB and coded by a Huffman code of its own, which is counted, or kept as it is where that is smaller.
 */
size_t published_bytes(const unsigned char *data, const unsigned char *base, size_t bytes, size_t width);

#endif
