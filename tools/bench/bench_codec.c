/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_codec MODE DTYPE DATA BASE BYTES PAGES
 *
 * DATA and BASE are files of elements ("-": no base), repeated to at least BYTES. PAGES is "small" or "huge".
 */
#include "bench_codec.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("bench_codec: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static double clock_s(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double now_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

double cpu_s(void)
{
    return clock_s(CLOCK_PROCESS_CPUTIME_ID);
}

unsigned char *pages_new(size_t bytes, bool huge)
{
    const size_t huge_page = (size_t)2 << 20;
    unsigned char *all =
        mmap(NULL, bytes + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        die("no memory for %zu bytes", bytes);
    unsigned char *aligned = (unsigned char *)(((uintptr_t)all + huge_page - 1) & ~(uintptr_t)(huge_page - 1));
    /* A kernel without huge pages rejects this and uses small ones. */
    (void)madvise(aligned, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(aligned, 0x55, bytes);
    return aligned;
}

struct lmc_params params_of(const struct input *input, size_t bytes, enum lmc_level level)
{
    return (struct lmc_params){
        .dtype = input->dtype, .level = level, .raw_bytes = bytes, .data = input->data, .base = input->base};
}

void check_and_clear(const struct input *input, size_t bytes)
{
    if (memcmp(input->data, input->out, bytes) != 0)
        die("what was decoded differs from what was encoded");
    memset(input->out, 0x55, bytes);
}

/* ---- Loading ---------------------------------------------------------------------------------------------------- */

static size_t file_bytes(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        die("can't read %s", path);
    long bytes = ftell(file);
    fclose(file);
    return bytes < 0 ? 0 : (size_t)bytes;
}

/* The file's contents, repeated up to `bytes`. */
static unsigned char *load(const char *path, size_t once, size_t bytes, bool huge)
{
    unsigned char *data = pages_new(bytes, huge);
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(data, 1, once, file) != once)
        die("can't read %s", path);
    fclose(file);
    for (size_t at = once; at < bytes; at += once)
        memcpy(data + at, data, once < bytes - at ? once : bytes - at);
    return data;
}

static struct input input_new(char **words)
{
    struct input input = {.dtype = lmc_dtype_from_name(words[0]), .huge = strcmp(words[4], "huge") == 0};
    size_t width = lmc_dtype_size(input.dtype);
    input.wanted = strtoull(words[3], NULL, 10);
    if (width == 0)
        die("no dtype %s", words[0]);
    input.once = file_bytes(words[1]) / width * width;
    if (input.once == 0)
        die("%s is empty", words[1]);
    size_t times = input.once >= input.wanted ? 1 : (input.wanted + input.once - 1) / input.once;
    input.bytes = input.once * times;
    input.data = load(words[1], input.once, input.bytes, input.huge);
    if (strcmp(words[2], "-") != 0)
        input.base = load(words[2], input.once, input.bytes, input.huge);
    input.out = pages_new(input.bytes, input.huge);
    input.frame_room = lmc_frame_bound(input.bytes);
    input.frame = pages_new(input.frame_room, input.huge);
    return input;
}

/* ---- One tensor, one thread ------------------------------------------------------------------------------------- */

static size_t encode(const struct input *input, size_t bytes, enum lmc_level level)
{
    const char *message = "";
    size_t frame_bytes = 0;
    struct lmc_params params = params_of(input, bytes, level);
    if (lmc_compress(&params, input->frame, input->frame_room, &frame_bytes, &message) != LMC_OK)
        die("encoding: %s", message);
    return frame_bytes;
}

static void decode(const struct input *input, size_t bytes, size_t frame_bytes)
{
    const char *message = "";
    const void *bases[1] = {input->base};
    if (lmc_decompress(input->frame, frame_bytes, bases, input->out, bytes, &message) != LMC_OK)
        die("decoding: %s", message);
}

static uint32_t base_count(const struct input *input)
{
    const char *message = "";
    struct lmc_encoder *encoder = NULL;
    struct lmc_params params = params_of(input, input->once, LMC_LEVEL_DEFAULT);
    if (lmc_encoder_new(&params, &encoder, &message) != LMC_OK)
        die("planning: %s", message);
    uint32_t count = lmc_encoder_base_count(encoder);
    lmc_encoder_free(encoder);
    return count;
}

void row_start(struct input *input)
{
    size_t published = published_bytes(input->data, input->base, input->once, lmc_dtype_size(input->dtype));
    printf("{\"once\": %zu, \"bytes\": %zu, \"kernels\": \"%s\", \"bases\": %u, \"published_bytes\": %zu", input->once,
           input->bytes, lmc_kernels(), base_count(input), published);
    printf(", \"default_bytes\": %zu", encode(input, input->once, LMC_LEVEL_DEFAULT));
    printf(", \"dense_bytes\": %zu}\n", encode(input, input->once, LMC_LEVEL_DENSE));
}

void row_round(struct input *input)
{
    static const char *const names[] = {"default", "dense"};
    double begin = cpu_s();
    memcpy(input->out, input->data, input->bytes);
    printf("{\"memcpy_s\": %.9f", cpu_s() - begin);
    check_and_clear(input, input->bytes);
    for (int level = LMC_LEVEL_DEFAULT; level <= LMC_LEVEL_DENSE; ++level) {
        begin = cpu_s();
        size_t frame_bytes = encode(input, input->bytes, level);
        double encoded = cpu_s();
        decode(input, input->bytes, frame_bytes);
        double decoded = cpu_s();
        check_and_clear(input, input->bytes);
        printf(", \"%s_in_s\": %.9f, \"%s_out_s\": %.9f", names[level], encoded - begin, names[level],
               decoded - encoded);
    }
    printf("}\n");
}

int main(int argc, char **argv)
{
    static const struct mode modes[] = {
        {"row", row_start, row_round}, {"threads", threads_start, threads_round}, {"small", small_start, small_round}};
    const struct mode *mode = NULL;
    for (size_t i = 0; argc == 7 && i < sizeof modes / sizeof *modes; ++i)
        if (strcmp(argv[1], modes[i].name) == 0)
            mode = &modes[i];
    if (mode == NULL)
        die("usage: bench_codec row|threads|small DTYPE DATA BASE|- BYTES small|huge");
    struct input input = input_new(argv + 2);
    mode->start(&input);
    fflush(stdout);
    for (int c = getchar(); c != EOF; c = getchar()) {
        if (c != '\n')
            continue;
        mode->round(&input);
        fflush(stdout);
    }
    return 0;
}
