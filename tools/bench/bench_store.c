/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_store.c - runs one section of the C half of tools/bench.sh; tools/bench/store.py drives it. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct section {
    const char *name;
    void (*run)(const struct bench_options *options);
    const char *what;
} sections[] = {
    {"capture", bench_capture, "BYTES in 198 tensors, ROUNDS times, new and existing space, beside memcpy and pwrite"},
    {"first", bench_first, "the first ten captures of BYTES into a new pool, ROUNDS times"},
    {"commit", bench_commit, "1,000 small tensors, ROUNDS times, beside write + fdatasync"},
    {"memory", bench_memory, "anonymous memory that a capture of BYTES adds"},
    {"big", bench_big, "a capture of BYTES under the memory limit of CGROUP"},
    {"many", bench_many, "ROUNDS tensors of BYTES, of which none, ten and all changed"},
    {"churn", bench_churn, "ROUNDS of snapshot, compact and prune: space used over space live"},
    {"long", bench_long, "ROUNDS snapshots: the first beside the last, and opening"},
    {"view", bench_view, "latency of a view, after one snapshot and after ROUNDS"},
    {"names", bench_names, "ROUNDS snapshots: finding them by number, step, tag and time; leaves its pool"},
    {"fork", bench_fork, "a fork of a snapshot of ROUNDS tensors"},
    {"diff", bench_diff, "two snapshots of BYTES compared, raw and as a delta"},
    {"ages", bench_ages, "each version of the shelf \"gpt\" in the pool FOLDER, restored by one thread ROUNDS times"},
    {"live", bench_live, "live variables: ROUNDS updates of 8 bytes, and transactions on a tensor of BYTES"},
    {"decode", bench_decode, "a delta of BYTES by one thread and by two, ROUNDS times"},
};

int main(int argc, char **argv)
{
    if (argc < 6 || argc > 7) {
        fprintf(stderr, "usage: bench_store SECTION FOLDER BYTES ROUNDS THREADS [CGROUP]\n");
        for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
            fprintf(stderr, "  %-8s %s\n", sections[i].name, sections[i].what);
        return 2;
    }
    struct bench_options options = {.directory = argv[2],
                                    .bytes = strtoull(argv[3], NULL, 10),
                                    .rounds = strtoull(argv[4], NULL, 10),
                                    .threads = (unsigned)strtoul(argv[5], NULL, 10),
                                    .cgroup = argc == 7 ? argv[6] : NULL};
    if (options.threads == 0 || options.rounds == 0)
        bench_die("ROUNDS and THREADS are at least 1");
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        if (strcmp(argv[1], sections[i].name) == 0) {
            sections[i].run(&options);
            return 0;
        }
    }
    bench_die("no section '%s'", argv[1]);
}
