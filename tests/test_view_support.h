/* SPDX-License-Identifier: BSD-3-Clause */
/* test_view_support.h - views and their contents. */
#ifndef LMCS_TEST_VIEW_SUPPORT_H
#define LMCS_TEST_VIEW_SUPPORT_H

#include "media/lease.h"
#include "support.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint32_t all_flags[] = {0,
                                     LMCS_VIEW_PRIVATE,
                                     LMCS_VIEW_VERIFY,
                                     LMCS_VIEW_COPY,
                                     LMCS_VIEW_PRIVATE | LMCS_VIEW_VERIFY,
                                     LMCS_VIEW_PRIVATE | LMCS_VIEW_COPY,
                                     LMCS_VIEW_VERIFY | LMCS_VIEW_COPY};

#define FLAG_SETS (sizeof all_flags / sizeof all_flags[0])

static inline struct lmcs_snapshot *find(struct lmcs_pool *pool, uint64_t number)
{
    struct lmcs_snapshot *snapshot;
    char which[32];
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
    return snapshot;
}

static inline struct lmcs_view *view_of(struct lmcs_pool *pool, uint64_t number, uint32_t flags)
{
    struct lmcs_view *view;
    struct lmcs_snapshot *snapshot = find(pool, number);
    OK(lmcs_view_open(snapshot, NULL, NULL, 0, flags, &view, &err));
    lmcs_snapshot_close(snapshot);
    return view;
}

static inline struct lmcs_view *view_named(struct lmcs_pool *pool, uint64_t number, const char *const *names,
                                           size_t count, uint32_t flags)
{
    struct lmcs_view *view;
    struct lmcs_snapshot *snapshot = find(pool, number);
    OK(lmcs_view_open(snapshot, names, NULL, count, flags, &view, &err));
    lmcs_snapshot_close(snapshot);
    return view;
}

static inline void expect_item(const struct lmcs_view *view, size_t i, const struct held *held)
{
    const struct lmcs_entry *entry = lmcs_view_entry(view, i);
    const void *data = lmcs_view_data(view, i);
    EXPECT(strcmp(entry->tensor.name, held->name) == 0);
    EXPECT(entry->tensor.kind == held->kind && entry->tensor.dtype == held->dtype);
    EXPECT(entry->tensor.ndim == held->ndim && entry->tensor.strides == NULL);
    EXPECT(memcmp(entry->tensor.shape, held->shape, held->ndim * sizeof(uint64_t)) == 0);
    EXPECT(entry->raw_bytes == held->bytes);
    EXPECT(data != NULL && (uintptr_t)data % 64 == 0);
    EXPECT(memcmp(data, held->data, held->bytes) == 0);
}

static inline void expect_view(const struct lmcs_view *view, const struct state *state)
{
    EXPECT(lmcs_view_count(view) == state->count);
    for (size_t i = 0; i < state->count; i++)
        expect_item(view, i, &state->tensors[i]);
}

/* u8 tensors of given sizes, named t0, t1, ... */
static inline struct state *state_of_sizes(struct rng *rng, const uint64_t *sizes, size_t count)
{
    struct state *state = calloc(1, sizeof *state);
    for (size_t i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "t%zu", i);
        struct held *held = state_add(state, name, LMC_U8, 1, &sizes[i]);
        rng_fill(rng, held->data, held->bytes);
    }
    return state;
}

static inline void new_bytes(struct state *state, struct rng *rng)
{
    for (size_t i = 0; i < state->count; i++)
        rng_fill(rng, state->tensors[i].data, state->tensors[i].bytes);
}

/* Takes snapshots and keeps the newest: all free space is overwritten. */
static inline void write_over(struct lmcs_pool *pool, struct rng *rng, size_t tensors, size_t bytes, size_t rounds)
{
    struct state *other = state_weights(rng, tensors, bytes / 4);
    for (size_t i = 0; i < rounds; i++) {
        new_bytes(other, rng);
        uint64_t number = take_snapshot(pool, "over", other, (int64_t)i);
        if (number > 1)
            OK(lmcs_snapshot_remove(pool, "over", number - 1, false, NULL, &err));
        if (i % 3 == 1)
            OK(lmcs_compact(pool, NULL, &err));
    }
    expect_state(pool, "over", NULL, other);
    state_free(other);
}

static inline off_t place_of(const char *path, const void *wanted, size_t bytes)
{
    enum { STEP = 1 << 20 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    unsigned char *buffer = malloc(STEP + bytes);
    off_t found = -1;
    assert_true(fd >= 0);
    for (off_t at = 0; found < 0 && (at = lseek(fd, at, SEEK_DATA)) >= 0; at += STEP) {
        ssize_t got = pread(fd, buffer, STEP + bytes, at);
        unsigned char *hit = got < (ssize_t)bytes ? NULL : memmem(buffer, (size_t)got, wanted, bytes);
        if (hit != NULL)
            found = at + (hit - buffer);
    }
    free(buffer);
    close(fd);
    assert_true(found >= 0);
    return found;
}

/* Leases of two holders against a list: exact for 64 KiB and more, by blocks of 1 MiB below. */
struct pinned {
    unsigned holder;
    uint64_t offset, bytes;
};

#endif
