/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_parts_support.h - a run, and archives of it in files. */
#ifndef LMCS_TEST_ARCHIVE_PARTS_SUPPORT_H
#define LMCS_TEST_ARCHIVE_PARTS_SUPPORT_H

#include "archive/format.h"
#include "records/shelf.h"
#include "support.h"
#include "test_archive_files.h"
#include "test_archive_seal.h"
#include <fcntl.h>
#include <fnmatch.h>
#include <time.h>
#include <unistd.h>

#define SNAPSHOTS 10u

struct run {
    struct rng rng;
    struct state *state;
    struct state *kept[64];
};

static inline void free_run(struct run *run)
{
    state_free(run->state);
    for (size_t i = 0; i < 64; i++)
        state_free(run->kept[i]);
}

static inline void take_more(struct lmcs_pool *pool, struct run *run, int from, int to)
{
    for (int step = from; step < to; step++) {
        state_step(run->state, &run->rng, (size_t)step % 2, 3);
        uint64_t number = take_snapshot(pool, "run", run->state, step);
        run->kept[number] = state_copy(run->state);
    }
}

static inline struct lmcs_pool *new_pool(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    unlink(path);
    return open_quiet(path);
}

static inline struct lmcs_pool *make_run(const struct place *place, struct run *run, size_t floats)
{
    struct lmcs_pool *pool = new_pool(place, "from.pool");
    *run = (struct run){.rng = {7}};
    run->state = state_weights(&run->rng, 5, floats);
    take_more(pool, run, 0, (int)SNAPSHOTS);
    take_snapshot(pool, "other", run->state, 3);
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_tag_set(pool, "run", "best", 4, &err));
    OK(lmcs_tag_set(pool, "other", "last", 1, &err));
    return pool;
}

static inline int new_file(const struct place *place, const char *name)
{
    char path[512];
    place_path(place, name, path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    return fd;
}

static inline int dump_to(const struct place *place, struct lmcs_pool *pool, const struct lmcs_dump_options *options,
                          const char *name, struct lmcs_transfer_report *report)
{
    int fd = new_file(place, name);
    OK(lmcs_dump_with(pool, options, fd, NULL, report, &err));
    EXPECT((uint64_t)lseek(fd, 0, SEEK_END) == report->bytes);
    rewind_to_start(fd);
    return fd;
}

static inline int dump_part(const struct place *place, struct lmcs_pool *pool, const char *address, const char *name,
                            struct lmcs_transfer_report *report)
{
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    options.addresses = &address;
    options.address_count = 1;
    return dump_to(place, pool, &options, name, report);
}

static inline int dump_since(const struct place *place, struct lmcs_pool *pool, const int *since, size_t count,
                             const char *name, struct lmcs_transfer_report *report)
{
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    options.since = since;
    options.since_count = count;
    return dump_to(place, pool, &options, name, report);
}

/* The shelf has exactly these snapshots, unchanged. */
static inline void expect_numbers(struct lmcs_pool *pool, const char *shelf, const struct run *run, uint64_t first,
                                  uint64_t last)
{
    uint64_t numbers[64];
    size_t count;
    OK(lmcs_snapshot_numbers(pool, shelf, 1, numbers, 64, &count, &err));
    EXPECT(count == last - first + 1);
    for (size_t i = 0; i < count; i++) {
        EXPECT(numbers[i] == first + i);
        expect_snapshot(pool, shelf, numbers[i], run->kept[numbers[i]]);
    }
    verify_pool(pool);
}

static inline enum lmcs_status restore_part(struct lmcs_pool *pool, int fd, const char *address, const char *only,
                                            const char *as, struct lmcs_transfer_report *report)
{
    struct lmcs_restore_options options;
    lmcs_restore_options_init(&options);
    options.addresses = &address;
    options.address_count = address != NULL;
    options.only = &only;
    options.only_count = only != NULL;
    options.as = as;
    rewind_to_start(fd);
    return lmcs_restore_with(pool, &fd, 1, &options, NULL, report, &err);
}

#endif
