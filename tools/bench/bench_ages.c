/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * bench_ages.c - the time to restore each version of a history, beside the decoding of one delta.
 *
 * One thread's processor time, the least of some rounds: the pool is in the page cache, and other processes can only
 * add time.
 */
#include "bench.h"
#include "lmc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SHELF       "gpt"
#define MOST_ROUNDS 32
#define MOST_PLACES 4 /* where the codec alone makes deltas */

static double thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double least(const double *seconds, size_t rounds)
{
    double found = seconds[0];
    for (size_t i = 1; i < rounds; i++)
        found = seconds[i] < found ? seconds[i] : found;
    return found;
}

/* ---- One version ---------------------------------------------------------------------------------------------- */

struct tensor {
    char *name;
    uint32_t kind;
    uint32_t dtype;
    uint64_t raw_bytes;
    uint64_t offset;
};

struct version {
    struct lmcs_snapshot *snapshot;
    struct tensor *tensors;
    size_t count;
    uint64_t raw_bytes;
    uint64_t stored_bytes;
    uint64_t stored_as[LMCS_STORED_LINK + 1]; /* raw bytes by enum lmcs_stored_as */
    uint32_t chain;
    double seconds[MOST_ROUNDS];
};

static bool note_tensor(void *context, const struct lmcs_entry *entry)
{
    struct version *version = context;
    struct tensor *grown = realloc(version->tensors, (version->count + 1) * sizeof *grown);
    if (grown == NULL)
        bench_die("out of memory");
    version->tensors = grown;
    grown[version->count++] = (struct tensor){.name = strdup(entry->tensor.name),
                                              .kind = entry->tensor.kind,
                                              .dtype = entry->tensor.dtype,
                                              .raw_bytes = entry->raw_bytes,
                                              .offset = version->raw_bytes};
    version->raw_bytes += (entry->raw_bytes + 63) & ~(uint64_t)63;
    version->stored_bytes += entry->stored_bytes;
    version->stored_as[entry->stored_as] += entry->raw_bytes;
    version->chain = entry->chain > version->chain ? entry->chain : version->chain;
    return true;
}

static struct version open_version(struct lmcs_pool *pool, uint64_t number)
{
    struct version version = {0};
    struct lmcs_error error;
    char which[32];
    snprintf(which, sizeof which, "%" PRIu64, number);
    bench_check(lmcs_snapshot_find(pool, SHELF, which, &version.snapshot, &error), &error, which);
    bench_check(lmcs_snapshot_entries(version.snapshot, note_tensor, &version, &error), &error, "entries");
    return version;
}

static void read_version(const struct version *version, unsigned char *buffer)
{
    struct lmcs_error error;
    for (size_t i = 0; i < version->count; i++) {
        const struct tensor *tensor = &version->tensors[i];
        bench_check(lmcs_snapshot_read(version->snapshot, tensor->kind, tensor->name, buffer + tensor->offset,
                                       tensor->raw_bytes, &error),
                    &error, tensor->name);
    }
}

/* ---- By the codec alone --------------------------------------------------------------------------------------- */

/* Frames of a version, and their bases. */
struct frames {
    const struct version *version;
    unsigned char *base;
    unsigned char **data;
    size_t *bytes;
    uint64_t total;
    double seconds[MOST_ROUNDS];
};

/* Returns the next version's tensor as a base; NULL: it has another size. */
static const unsigned char *base_of(const struct version *version, size_t i, const unsigned char *base)
{
    const struct version *next = version + 1;
    bool fits = base != NULL && i < next->count && next->tensors[i].raw_bytes == version->tensors[i].raw_bytes;
    return fits ? base + next->tensors[i].offset : NULL;
}

static struct frames encode_version(const struct version *version, const unsigned char *data, unsigned char *base)
{
    struct frames frames = {.version = version, .base = base};
    frames.data = calloc(version->count, sizeof *frames.data);
    frames.bytes = calloc(version->count, sizeof *frames.bytes);
    for (size_t i = 0; frames.data != NULL && frames.bytes != NULL && i < version->count; i++) {
        const struct tensor *tensor = &version->tensors[i];
        struct lmc_params params = {.dtype = tensor->dtype,
                                    .raw_bytes = tensor->raw_bytes,
                                    .data = data + tensor->offset,
                                    .base = base_of(version, i, base)};
        size_t room = lmc_frame_bound(tensor->raw_bytes);
        unsigned char *frame = malloc(room);
        const char *why = "";
        if (frame == NULL || lmc_compress(&params, frame, room, &frames.bytes[i], &why) != LMC_OK)
            bench_die("ages: %s: %s", tensor->name, why);
        frames.data[i] = realloc(frame, frames.bytes[i]);
        frames.total += frames.bytes[i];
    }
    return frames;
}

static double timed_decode(const struct frames *frames, unsigned char *buffer)
{
    double start = thread_s();
    for (size_t i = 0; i < frames->version->count; i++) {
        const struct tensor *tensor = &frames->version->tensors[i];
        const void *bases[1] = {base_of(frames->version, i, frames->base)};
        const char *why = "";
        if (lmc_decompress(frames->data[i], frames->bytes[i], bases, buffer + tensor->offset, tensor->raw_bytes,
                           &why) != LMC_OK)
            bench_die("ages: %s: %s", tensor->name, why);
    }
    return thread_s() - start;
}

static double median_of(const struct frames *frames, size_t count, size_t rounds)
{
    double each[MOST_PLACES];
    for (size_t i = 0; i < count; i++)
        each[i] = least(frames[i].seconds, rounds);
    return bench_median(each, count);
}

/* ---- The history ---------------------------------------------------------------------------------------------- */

static struct version *open_all(struct lmcs_pool *pool, size_t *count)
{
    enum { MOST = 4096 };
    static uint64_t numbers[MOST];
    struct lmcs_error error;
    bench_check(lmcs_snapshot_numbers(pool, SHELF, 1, numbers, MOST, count, &error), &error, SHELF);
    struct version *versions = calloc(*count, sizeof *versions);
    if (versions == NULL || *count < 8)
        bench_die("ages: a history has 8 versions or more");
    for (size_t i = 0; i < *count; i++)
        versions[i] = open_version(pool, numbers[i]);
    return versions;
}

/* Encodes some versions against the next one, as the store does, and alone. */
static void encode_places(const struct version *versions, size_t count, struct frames *deltas, struct frames *alone)
{
    for (size_t i = 0; i < MOST_PLACES; i++) {
        const struct version *version = &versions[(2 * i + 1) * count / (2 * MOST_PLACES)];
        unsigned char *data = malloc(version->raw_bytes), *base = malloc(version[1].raw_bytes);
        if (data == NULL || base == NULL)
            bench_die("out of memory");
        read_version(version, data);
        read_version(version + 1, base);
        deltas[i] = encode_version(version, data, base);
        alone[i] = encode_version(version, data, NULL);
        free(data);
    }
}

static void print_version(const struct version *version, size_t rounds)
{
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(version->snapshot);
    printf("{\"number\": %" PRIu64 ", \"raw_bytes\": %" PRIu64 ", \"stored_bytes\": %" PRIu64 ", \"chain\": %u, "
           "\"raw\": %" PRIu64 ", \"keyframe\": %" PRIu64 ", \"delta\": %" PRIu64 ", \"read_s\": %.6f}",
           info->number, version->raw_bytes, version->stored_bytes, version->chain, version->stored_as[LMCS_STORED_RAW],
           version->stored_as[LMCS_STORED_KEYFRAME], version->stored_as[LMCS_STORED_DELTA],
           least(version->seconds, rounds));
}

/* Reads shelf "gpt" of the pool `directory` `rounds` times, alternating with single deltas. */
void bench_ages(const struct bench_options *options)
{
    size_t count, rounds = options->rounds < MOST_ROUNDS ? options->rounds : MOST_ROUNDS;
    static struct frames deltas[MOST_PLACES], alone[MOST_PLACES];
    struct lmcs_pool *pool = bench_open(options->directory, LMCS_OPEN_READ, 1);
    struct version *versions = open_all(pool, &count);
    uint64_t most = 0;
    for (size_t i = 0; i < count; i++)
        most = versions[i].raw_bytes > most ? versions[i].raw_bytes : most;
    unsigned char *buffer = malloc(most);
    if (buffer == NULL)
        bench_die("out of memory");
    encode_places(versions, count, deltas, alone);
    for (size_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < count; i++) {
            double start = thread_s();
            read_version(&versions[i], buffer);
            versions[i].seconds[round] = thread_s() - start;
            if (i % (count / MOST_PLACES) == 0 && i / (count / MOST_PLACES) < MOST_PLACES) {
                size_t place = i / (count / MOST_PLACES);
                deltas[place].seconds[round] = timed_decode(&deltas[place], buffer);
                alone[place].seconds[round] = timed_decode(&alone[place], buffer);
            }
        }
    printf("{\"delta_s\": %.6f, \"keyframe_s\": %.6f, \"delta_bytes\": %" PRIu64 ", \"keyframe_bytes\": %" PRIu64
           ", \"versions\": [",
           median_of(deltas, MOST_PLACES, rounds), median_of(alone, MOST_PLACES, rounds), deltas[1].total,
           alone[1].total);
    for (size_t i = 0; i < count; i++) {
        printf("%s", i > 0 ? ", " : "");
        print_version(&versions[i], rounds);
        lmcs_snapshot_close(versions[i].snapshot);
    }
    printf("]}\n");
    bench_close(pool);
}
