/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_view.c - views: whatever flags, sizes and parts, they show what was captured; they go on showing it when the
 * pool is closed and the snapshot is removed, compacted and overwritten, by this process or another; what nobody views
 * is free; and a file that was cut short is an error and not a signal.
 */
/* ctest: timeout=600 */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "media/lease.h"

static const uint32_t all_flags[] = {0,
                                     LMCS_VIEW_PRIVATE,
                                     LMCS_VIEW_VERIFY,
                                     LMCS_VIEW_COPY,
                                     LMCS_VIEW_PRIVATE | LMCS_VIEW_VERIFY,
                                     LMCS_VIEW_PRIVATE | LMCS_VIEW_COPY,
                                     LMCS_VIEW_VERIFY | LMCS_VIEW_COPY};
#define FLAG_SETS (sizeof all_flags / sizeof all_flags[0])

static struct lmcs_snapshot *find(struct lmcs_pool *pool, uint64_t number)
{
    struct lmcs_snapshot *snapshot;
    char which[32];
    snprintf(which, sizeof which, "%llu", (unsigned long long)number);
    OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
    return snapshot;
}

static struct lmcs_view *view_of(struct lmcs_pool *pool, uint64_t number, uint32_t flags)
{
    struct lmcs_view *view;
    struct lmcs_snapshot *snapshot = find(pool, number);
    OK(lmcs_view_open(snapshot, NULL, NULL, 0, flags, &view, &err));
    lmcs_snapshot_close(snapshot);
    return view;
}

static struct lmcs_view *view_named(struct lmcs_pool *pool, uint64_t number, const char *const *names, size_t count,
                                    uint32_t flags)
{
    struct lmcs_view *view;
    struct lmcs_snapshot *snapshot = find(pool, number);
    OK(lmcs_view_open(snapshot, names, NULL, count, flags, &view, &err));
    lmcs_snapshot_close(snapshot);
    return view;
}

static void expect_item(const struct lmcs_view *view, size_t i, const struct held *held)
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

static void expect_view(const struct lmcs_view *view, const struct state *state)
{
    EXPECT(lmcs_view_count(view) == state->count);
    for (size_t i = 0; i < state->count; i++)
        expect_item(view, i, &state->tensors[i]);
}

/* A state of u8 tensors of given sizes, named t0, t1, ... */
static struct state *state_of_sizes(struct rng *rng, const uint64_t *sizes, size_t count)
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

static void new_bytes(struct state *state, struct rng *rng)
{
    for (size_t i = 0; i < state->count; i++)
        rng_fill(rng, state->tensors[i].data, state->tensors[i].bytes);
}

/* Snapshots of other bytes, of which only the newest is kept: whatever is free is written to. */
static void write_over(struct lmcs_pool *pool, struct rng *rng, size_t tensors, size_t bytes, size_t rounds)
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

/* ---- What a view shows ---- */

static void every_entry_with_every_flag(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *states[8], *now = state_mixed(&rng, 150, 9000);
    uint64_t empty[2] = {0, 7}, big[2] = {3, 1000003};
    struct held *held = state_add(now, "zero-dimensional", LMC_F64, 0, NULL);
    rng_fill(&rng, held->data, held->bytes);
    state_add(now, "empty", LMC_F32, 2, empty);
    state_add(now, "big", LMC_BF16, 2, big);
    held = state_add(now, "notes", LMC_U8, 1, &big[0]);
    held->kind = LMCS_ATTACHMENT;
    for (int i = 0; i < 8; i++) {
        for (size_t t = 0; t < now->count; t++) /* a part of each, so that deltas come about */
            rng_fill(&rng, now->tensors[t].data, now->tensors[t].bytes / (t % 2 == 0 ? 1 : 50));
        states[i] = state_copy(now);
        take_snapshot(pool, "run", now, i);
    }
    for (int pass = 0; pass < 3; pass++) {
        for (uint64_t n = 1; n <= 8; n += pass == 0 ? 3 : 1)
            for (size_t f = 0; f < FLAG_SETS; f++) {
                struct lmcs_view *view = view_of(pool, n, all_flags[f]);
                expect_view(view, states[n - 1]);
                lmcs_view_close(view);
            }
        if (pass == 0)
            OK(lmcs_compact(pool, NULL, &err));
        if (pass == 1) {
            close_pool(pool);
            pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        }
    }
    close_pool(pool);
    for (int i = 0; i < 8; i++)
        state_free(states[i]);
    state_free(now);
}

static void by_name(void **state)
{
    struct place *place = *state;
    struct rng rng = {2};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 10, 3000);
    uint64_t shape = 77;
    struct held *note = state_add(now, "t3", LMC_U8, 1, &shape); /* an attachment of a tensor's name */
    note->kind = LMCS_ATTACHMENT;
    rng_fill(&rng, note->data, note->bytes);
    take_snapshot(pool, "run", now, 0);
    const char *names[] = {"t7", "t3", "t3", "t0", "t7"};
    const uint32_t kinds[] = {LMCS_TENSOR, LMCS_ATTACHMENT, LMCS_TENSOR, LMCS_TENSOR, LMCS_TENSOR};
    const size_t expected[] = {7, 10, 3, 0, 7};
    struct lmcs_snapshot *snapshot = find(pool, 1);
    struct lmcs_view *view;
    for (size_t f = 0; f < FLAG_SETS; f++) {
        OK(lmcs_view_open(snapshot, names, kinds, 5, all_flags[f], &view, &err));
        assert_int_equal(lmcs_view_count(view), 5);
        for (size_t i = 0; i < 5; i++)
            expect_item(view, i, &now->tensors[expected[i]]);
        lmcs_view_close(view);
    }
    OK(lmcs_view_open(snapshot, names, NULL, 0, 0, &view, &err));
    assert_int_equal(lmcs_view_count(view), 0);
    lmcs_view_close(view);
    /* The first that is not there is named; the others are let go of again. */
    const char *absent[] = {"t1", "t2", "no such tensor", "nor this", "t3"};
    view = (struct lmcs_view *)&shape;
    FAILS(LMCS_NOT_FOUND, lmcs_view_open(snapshot, absent, NULL, 5, 0, &view, &err));
    assert_non_null(strstr(err.message, "no such tensor"));
    assert_ptr_equal(view, &shape);
    const char *only_tensor[] = {"t4"};
    const uint32_t as_attachment[] = {LMCS_ATTACHMENT};
    FAILS(LMCS_NOT_FOUND, lmcs_view_open(snapshot, only_tensor, as_attachment, 1, 0, &view, &err));
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_view_open(snapshot, NULL, NULL, 0, 0, &view, &err));
    lmcs_snapshot_close(snapshot);
    OK(lmcs_compact(pool, NULL, &err));
    assert_int_equal(pool_info(pool).content_count, 0);
    close_pool(pool);
    state_free(now);
}

/* 20,000 tensors of all small sizes: all of them, then by name from the last to the first. */
static void many_small_tensors(void **state)
{
    enum { COUNT = UNDER_SANITIZER ? 3000 : 20000 };
    struct place *place = *state;
    struct rng rng = {3};
    struct lmcs_pool *pool = open_quiet(place->pool);
    uint64_t *sizes = malloc(COUNT * sizeof *sizes);
    const char **names = malloc(COUNT * sizeof *names);
    for (size_t i = 0; i < COUNT; i++)
        sizes[i] = rng_below(&rng, 2500);
    struct state *now = state_of_sizes(&rng, sizes, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        names[i] = now->tensors[COUNT - 1 - i].name;
    take_snapshot(pool, "run", now, 0);
    for (int pass = 0; pass < 2; pass++) {
        struct lmcs_view *all = view_of(pool, 1, LMCS_VIEW_PRIVATE), *shared = view_of(pool, 1, 0);
        struct lmcs_view *named = view_named(pool, 1, names, COUNT, pass == 0 ? 0 : LMCS_VIEW_PRIVATE);
        expect_view(all, now);
        expect_view(shared, now);
        lmcs_view_close(shared);
        for (size_t i = 0; i < COUNT; i++)
            expect_item(named, i, &now->tensors[COUNT - 1 - i]);
        lmcs_view_close(all);
        expect_item(named, 17, &now->tensors[COUNT - 18]);
        lmcs_view_close(named);
        if (pass == 0) {
            close_pool(pool);
            pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        }
    }
    close_pool(pool);
    /* A view of a few of them keeps what it shows, while all the others go. */
    pool = open_quiet(place->pool);
    struct lmcs_view *few = view_named(pool, 1, names, 40, 0);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    write_over(pool, &rng, 500, 2000, 15);
    for (size_t i = 0; i < 40; i++)
        expect_item(few, i, &now->tensors[COUNT - 1 - i]);
    lmcs_view_close(few);
    close_pool(pool);
    state_free(now);
    free(names);
    free(sizes);
}

/* Payloads in several parts, whose ends fall where they are awkward: at, before and behind pages and part limits. */
static void several_parts(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    const uint64_t mib = 1 << 20;
    const uint64_t sizes[] = {2 * mib - 1,      2 * mib,
                              2 * mib + 1,      2 * mib + 4096,
                              2 * mib + 9000,   2 * mib + 20001,
                              2 * mib + 33000,  2 * mib + 65472,
                              2 * mib + 65500,  2 * mib + 65536,
                              4 * mib - 65,     4 * mib - 32,
                              4 * mib + 1,      100,
                              31 * mib + 524288};
    enum { COUNT = sizeof sizes / sizeof sizes[0], SNAPSHOTS = UNDER_THREAD_SANITIZER ? 2 : 5 };
    setenv("LMCS_TEST_PART_BYTES", "2097152", 1);
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_of_sizes(&rng, sizes, COUNT), *states[SNAPSHOTS];
    for (int i = 0; i < SNAPSHOTS; i++) {
        for (size_t t = 0; t + 1 < now->count; t++) /* the largest stays */
            rng_fill(&rng, now->tensors[t].data, now->tensors[t].bytes / 30);
        states[i] = state_copy(now);
        take_snapshot(pool, "run", now, i);
    }
    struct lmcs_view *kept[SNAPSHOTS];
    for (uint64_t n = 1; n <= SNAPSHOTS; n++)
        kept[n - 1] = view_of(pool, n, n % 2 == 0 ? LMCS_VIEW_PRIVATE : 0);
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t n = 1; n <= SNAPSHOTS; n += 1 + (uint64_t)(pass == 0))
            for (size_t f = 0; f < FLAG_SETS; f++) {
                struct lmcs_view *view = view_of(pool, n, all_flags[f]);
                expect_view(view, states[n - 1]);
                lmcs_view_close(view);
            }
        OK(lmcs_compact(pool, NULL, &err));
    }
    for (uint64_t n = 1; n <= SNAPSHOTS; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    write_over(pool, &rng, 3, 7 * mib, 6);
    for (int i = 0; i < SNAPSHOTS; i++) {
        expect_view(kept[i], states[i]);
        lmcs_view_close(kept[i]);
        state_free(states[i]);
    }
    verify_pool(pool);
    close_pool(pool);
    unsetenv("LMCS_TEST_PART_BYTES");
    state_free(now);
}

/* ---- Writing to views ---- */

static int write_to_view(void *argument)
{
    volatile unsigned char *byte = argument;
    signal(SIGSEGV, SIG_DFL);
    *byte ^= 1;
    return 0;
}

static void expect_read_only(struct lmcs_view *view)
{
    for (size_t i = 0; i < lmcs_view_count(view); i += 7) {
        if (lmcs_view_entry(view, i)->raw_bytes == 0)
            continue;
        int status = run_child(write_to_view, lmcs_view_data(view, i), 60);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    }
}

static void read_only_ones_can_not_be_written_to(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 15, 20000);
    for (int i = 0; i < 7; i++) {
        take_snapshot(pool, "run", now, i);
        state_step(now, &rng, 0, 15);
    }
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(storage_of(pool, "run", 1).delta_contents + storage_of(pool, "run", 1).keyframe_contents > 0);
    for (uint64_t n = 1; n <= 7; n += 6) /* decoded, raw */
        for (size_t f = 0; f < FLAG_SETS; f++) {
            if ((all_flags[f] & LMCS_VIEW_PRIVATE) != 0)
                continue;
            struct lmcs_view *view = view_of(pool, n, all_flags[f]);
            expect_read_only(view);
            lmcs_view_close(view);
        }
    close_pool(pool);
    state_free(now);
}

static void scribble(struct lmcs_view *view, struct rng *rng)
{
    for (size_t i = 0; i < lmcs_view_count(view); i++)
        rng_fill(rng, lmcs_view_data(view, i), lmcs_view_entry(view, i)->raw_bytes);
}

static void private_writes_are_seen_by_one_view_alone(void **state)
{
    struct place *place = *state;
    struct rng rng = {6};
    struct lmcs_pool *pool = open_quiet(place->pool);
    uint64_t sizes[] = {1, 63, 64, 65, 100, 5000, 4096, 65535, 65536, 65537, 200000, 3000000, 12, 0};
    struct state *now = state_of_sizes(&rng, sizes, 14), *states[6];
    for (int i = 0; i < 6; i++) {
        for (size_t t = 0; t < now->count; t++)
            rng_fill(&rng, now->tensors[t].data, now->tensors[t].bytes / 20);
        states[i] = state_copy(now);
        take_snapshot(pool, "run", now, i);
    }
    OK(lmcs_compact(pool, NULL, &err));
    for (uint64_t n = 1; n <= 6; n++) {
        struct lmcs_view *shared = view_of(pool, n, 0), *first = view_of(pool, n, LMCS_VIEW_PRIVATE);
        struct lmcs_view *second = view_of(pool, n, LMCS_VIEW_PRIVATE | (n % 2 == 0 ? LMCS_VIEW_COPY : 0));
        /* One tensor of a view is written to: its neighbours, which share its pages, stay. */
        struct held *fifth = &states[n - 1]->tensors[4];
        memset(lmcs_view_data(first, 4), 0x5a, fifth->bytes);
        for (size_t i = 0; i < states[n - 1]->count; i++)
            if (i != 4)
                expect_item(first, i, &states[n - 1]->tensors[i]);
        unsigned char *written = lmcs_view_data(first, 4);
        for (size_t k = 0; k < fifth->bytes; k++)
            assert_int_equal(written[k], 0x5a);
        expect_view(second, states[n - 1]);
        scribble(first, &rng);
        expect_view(second, states[n - 1]);
        scribble(second, &rng);
        expect_view(shared, states[n - 1]);
        expect_snapshot(pool, "run", n, states[n - 1]);
        struct lmcs_view *third = view_of(pool, n, LMCS_VIEW_PRIVATE);
        expect_view(third, states[n - 1]);
        lmcs_view_close(third);
        lmcs_view_close(first);
        lmcs_view_close(shared);
        lmcs_view_close(second);
    }
    verify_pool(pool);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    struct lmcs_view *view = view_of(pool, 6, LMCS_VIEW_PRIVATE);
    scribble(view, &rng);
    lmcs_view_close(view);
    verify_pool(pool);
    for (uint64_t n = 1; n <= 6; n++) {
        expect_snapshot(pool, "run", n, states[n - 1]);
        state_free(states[n - 1]);
    }
    close_pool(pool);
    state_free(now);
}

/* ---- Verifying and copying ---- */

/* Where the file has these bytes; there must be one such place. */
static off_t place_of(const char *path, const void *wanted, size_t bytes)
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

static void flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte = 0;
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    assert_true(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

static void verify_finds_a_flipped_bit(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    const uint64_t sizes[] = {40, 5000, 70000, 2500000};
    struct state *now = state_of_sizes(&rng, sizes, 4);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", now, 0);
    close_pool(pool);
    for (size_t t = 0; t < 4; t++) {
        struct held *held = &now->tensors[t];
        uint64_t at = rng_below(&rng, held->bytes);
        off_t in_file = place_of(place->pool, held->data, held->bytes < 4096 ? held->bytes : 4096) + (off_t)at;
        flip(place->pool, in_file);
        pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        struct lmcs_snapshot *snapshot = find(pool, 1);
        struct lmcs_view *view;
        for (size_t f = 0; f < FLAG_SETS; f++) {
            bool checked = (all_flags[f] & (LMCS_VIEW_VERIFY | LMCS_VIEW_COPY)) != 0;
            enum lmcs_status status = lmcs_view_open(snapshot, NULL, NULL, 0, all_flags[f], &view, &err);
            if (checked) {
                assert_int_equal(status, LMCS_DAMAGED);
                assert_non_null(strstr(err.message, held->name));
            } else { /* mapped, and not looked at */
                assert_int_equal(status, LMCS_OK);
                assert_int_equal(((unsigned char *)lmcs_view_data(view, t))[at], held->data[at] ^ 0x10);
                lmcs_view_close(view);
            }
        }
        for (size_t other = 0; other < 4; other++) { /* the others can be read */
            const char *name = now->tensors[other].name;
            if (other == t)
                continue;
            OK(lmcs_view_open(snapshot, &name, NULL, 1, LMCS_VIEW_VERIFY, &view, &err));
            expect_item(view, 0, &now->tensors[other]);
            lmcs_view_close(view);
        }
        lmcs_snapshot_close(snapshot);
        close_pool(pool);
        flip(place->pool, in_file);
    }
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
}

/* Whether an address lies in a mapping of a file of that name. */
static bool is_of_file(const void *address, const char *path)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[1024];
    bool found = false;
    assert_non_null(maps);
    while (!found && fgets(line, sizeof line, maps) != NULL) {
        unsigned long long from, to;
        found = sscanf(line, "%llx-%llx", &from, &to) == 2 && (uintptr_t)address >= from && (uintptr_t)address < to &&
                strstr(line, path) != NULL;
    }
    fclose(maps);
    return found;
}

static void copies_leave_the_file_alone(void **state)
{
    struct place *place = *state;
    struct rng rng = {8};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 6, 500000), *small = state_weights(&rng, 1, 10);
    take_snapshot(pool, "run", now, 0);
    struct lmcs_view *copy = view_of(pool, 1, LMCS_VIEW_COPY), *mapped = view_of(pool, 1, 0);
    for (size_t i = 0; i < 6; i++) {
        assert_false(is_of_file(lmcs_view_data(copy, i), place->pool));
        assert_true(is_of_file(lmcs_view_data(mapped, i), place->pool));
    }
    take_snapshot(pool, "run", small, 1);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t pinned = disk_bytes(place->pool);
    assert_true(pinned > 12000000);
    expect_view(mapped, now);
    lmcs_view_close(mapped);
    /* Nobody but the copy has it now, and the copy holds nothing. */
    take_snapshot(pool, "run", now, 2);
    OK(lmcs_snapshot_remove(pool, "run", 3, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(disk_bytes(place->pool) < pinned / 2);
    expect_view(copy, now);
    lmcs_view_close(copy);
    close_pool(pool);
    state_free(now);
    state_free(small);
}

/* ---- Views that stay ---- */

static void outlives_pool_and_snapshot(void **state)
{
    struct place *place = *state;
    struct rng rng = {9};
    struct state *states[5];
    struct lmcs_view *views[FLAG_SETS][5];
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 40, 4000);
    for (int i = 0; i < 5; i++) {
        states[i] = state_copy(now);
        take_snapshot(pool, "run", now, i);
        state_step(now, &rng, 0, 30);
    }
    OK(lmcs_compact(pool, NULL, &err));
    for (size_t f = 0; f < FLAG_SETS; f++) {
        if (f == FLAG_SETS / 2) { /* half of them of a pool that only reads */
            close_pool(pool);
            pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        }
        for (uint64_t n = 1; n <= 5; n++)
            views[f][n - 1] = view_of(pool, n, all_flags[f]);
    }
    close_pool(pool);
    pool = open_quiet(place->pool);
    for (uint64_t n = 1; n <= 5; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    write_over(pool, &rng, 50, 20000, 20);
    close_pool(pool);
    pool = open_quiet(place->pool); /* with nothing in memory of what was pinned */
    write_over(pool, &rng, 7, 150000, 20);
    for (size_t f = 0; f < FLAG_SETS; f++)
        for (int i = 0; i < 5; i++)
            expect_view(views[f][i], states[i]);
    close_pool(pool);
    for (size_t f = 0; f < FLAG_SETS; f++)
        for (int i = 0; i < 5; i++) {
            expect_view(views[f][i], states[i]);
            lmcs_view_close(views[f][i]);
        }
    pool = open_quiet(place->pool);
    verify_pool(pool);
    close_pool(pool);
    for (int i = 0; i < 5; i++)
        state_free(states[i]);
    state_free(now);
}

static int close_inherited_view(void *argument)
{
    lmcs_view_close(argument);
    return 0;
}

static void child_can_not_let_go_of_its_parents(void **state)
{
    struct place *place = *state;
    struct rng rng = {10};
    const uint64_t sizes[] = {300, 70000, 800000, 5000};
    struct state *now = state_of_sizes(&rng, sizes, 4);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", now, 0);
    for (uint32_t flags = 0; flags < 2; flags++) {
        struct lmcs_view *view = view_of(pool, 1 + flags, flags);
        expect_child(start_child(close_inherited_view, view));
        OK(lmcs_snapshot_remove(pool, "run", 1 + flags, false, NULL, &err));
        write_over(pool, &rng, 4, 300000, 8);
        expect_view(view, now);
        lmcs_view_close(view);
        if (flags == 0)
            take_snapshot(pool, "run", now, 1);
    }
    close_pool(pool);
    state_free(now);
}

struct watcher {
    const char *path;
    struct state **states;
    uint64_t first, last; /* snapshots */
    int to_child[2], to_parent[2];
};

enum { COMPARE = 'c', END = 'e' };

static void say(int fd, char what)
{
    EXPECT(write(fd, &what, 1) == 1);
}

static void hear(int fd)
{
    char byte;
    EXPECT(read(fd, &byte, 1) == 1);
}

/* Views snapshots from its own opening of the pool, says so, and compares whenever it is asked, until told to end. */
static int watch(void *argument)
{
    struct watcher *watcher = argument;
    struct lmcs_view *views[64];
    struct lmcs_pool *pool = open_pool(watcher->path, LMCS_OPEN_READ, 0);
    size_t count = 0;
    for (uint64_t n = watcher->first; n <= watcher->last; n++)
        views[count++] = view_of(pool, n, all_flags[n % FLAG_SETS]);
    close(watcher->to_child[1]);
    say(watcher->to_parent[1], COMPARE);
    bool closed = false;
    char order;
    while (read(watcher->to_child[0], &order, 1) == 1 && order == COMPARE) {
        for (size_t i = 0; i < count; i++)
            expect_view(views[i], watcher->states[watcher->first - 1 + i]);
        if (!closed)
            close_pool(pool);
        closed = true;
        say(watcher->to_parent[1], COMPARE);
    }
    for (size_t i = 0; i < count; i++) {
        expect_view(views[i], watcher->states[watcher->first - 1 + i]);
        lmcs_view_close(views[i]);
    }
    return 0;
}

static pid_t start_watcher(struct watcher *watcher)
{
    assert_true(pipe2(watcher->to_child, O_CLOEXEC) == 0 && pipe2(watcher->to_parent, O_CLOEXEC) == 0);
    pid_t child = start_child(watch, watcher);
    close(watcher->to_child[0]);
    close(watcher->to_parent[1]);
    hear(watcher->to_parent[0]);
    return child;
}

static void end_watcher(struct watcher *watcher, pid_t child)
{
    say(watcher->to_child[1], END);
    close(watcher->to_child[1]);
    expect_child(child);
    close(watcher->to_parent[0]);
}

/* Another process views the old snapshots, while the writer removes, compacts and writes over what is free. */
static void watched_by_another_process(void **state)
{
    enum { SNAPSHOTS = 14 };
    struct place *place = *state;
    struct rng rng = {11};
    struct state *states[SNAPSHOTS];
    uint64_t sizes[40];
    for (size_t i = 0; i < 40; i++)
        sizes[i] = i < 6 ? 65536 * i + 65472 + i % 2 : i < 8 ? 1500000 : rng_below(&rng, 9000);
    struct state *now = state_of_sizes(&rng, sizes, 40);
    struct lmcs_pool *pool = open_limited(place->pool, 160 << 20);
    for (int i = 0; i < SNAPSHOTS; i++) {
        states[i] = state_copy(now);
        take_snapshot(pool, "run", now, i);
        for (size_t t = 0; t < now->count; t++)
            if (t % 3 != 0)
                rng_fill(&rng, now->tensors[t].data, now->tensors[t].bytes / (1 + t % 5 * 20));
    }
    close_pool(pool); /* the child opens it before its parent does again: nothing is inherited */
    struct watcher watchers[2] = {{.path = place->pool, .states = states, .first = 1, .last = SNAPSHOTS - 4},
                                  {.path = place->pool, .states = states, .first = 5, .last = SNAPSHOTS}};
    pid_t children[2] = {start_watcher(&watchers[0]), start_watcher(&watchers[1])};
    pool = open_limited(place->pool, 0);
    for (int round = 0; round < 4; round++) {
        if (round == 0)
            OK(lmcs_compact(pool, NULL, &err));
        for (uint64_t n = 1; round == 1 && n <= SNAPSHOTS; n++)
            OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        write_over(pool, &rng, 30, 100000, 10);
        write_over(pool, &rng, 200, 3000, 4);
        check_pool(pool);
        for (int i = 0; i < 2; i++) {
            if (children[i] == 0)
                continue;
            say(watchers[i].to_child[1], COMPARE);
            hear(watchers[i].to_parent[0]);
        }
        if (round == 2) { /* what they have in common stays for the other one */
            end_watcher(&watchers[0], children[0]);
            children[0] = 0;
        }
    }
    end_watcher(&watchers[1], children[1]);
    /* Now nothing is watched: all of it can be written over. */
    struct state *last = state_weights(&rng, 4, 1 << 20);
    take_snapshot(pool, "last", last, 0);
    OK(lmcs_compact(pool, NULL, &err));
    assert_true(disk_bytes(place->pool) < (uint64_t)48 << 20);
    verify_pool(pool);
    close_pool(pool);
    for (int i = 0; i < SNAPSHOTS; i++)
        state_free(states[i]);
    state_free(now);
    state_free(last);
}

/* Space that a dead process had viewed is free. */
static int view_and_die(void *argument)
{
    struct watcher *watcher = argument;
    struct lmcs_pool *pool = open_pool(watcher->path, LMCS_OPEN_READ, 0);
    view_of(pool, 1, 0);
    close(watcher->to_child[1]);
    say(watcher->to_parent[1], COMPARE);
    hear(watcher->to_child[0]); /* never: it is killed here */
    return 0;
}

static void killed_readers_hold_nothing(void **state)
{
    struct place *place = *state;
    struct rng rng = {12};
    struct lmcs_pool *pool = open_limited(place->pool, 40 << 20);
    struct state *now = state_weights(&rng, 4, 1500000); /* 24 of 40 MB: there is no room for two */
    take_snapshot(pool, "run", now, 0);
    struct watcher watcher = {.path = place->pool};
    assert_true(pipe2(watcher.to_child, O_CLOEXEC) == 0 && pipe2(watcher.to_parent, O_CLOEXEC) == 0);
    pid_t child = start_child(view_and_die, &watcher);
    hear(watcher.to_parent[0]);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    uint64_t number;
    FAILS(LMCS_FULL, try_snapshot(pool, "run", now, 1, &number, &err));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    number = take_snapshot(pool, "run", now, 2);
    expect_snapshot(pool, "run", number, now);
    close_pool(pool);
    for (int i = 0; i < 2; i++) {
        close(watcher.to_child[i]);
        close(watcher.to_parent[i]);
    }
    state_free(now);
}

/* ---- What is held in place ---- */

static const uint64_t edge_sizes[] = {1,     64,    4096,  60000, 65471,  65472, 65473,
                                      65535, 65536, 65537, 69632, 131072, 300001};
#define EDGES (sizeof edge_sizes / sizeof edge_sizes[0])

/* Every third of a snapshot is viewed, by two views that overlap; all of it is removed and written over. */
static void held_by_one_of_two_views(void **state)
{
    enum { COUNT = 6 * EDGES };
    struct place *place = *state;
    struct rng rng = {13};
    uint64_t sizes[COUNT];
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < COUNT; i++)
            sizes[i] = edge_sizes[rng_below(&rng, EDGES)];
        struct state *now = state_of_sizes(&rng, sizes, COUNT);
        struct lmcs_pool *pool = open_quiet(place->pool);
        uint64_t number = take_snapshot(pool, "run", now, round);
        const char *names[2][COUNT];
        size_t which[2][COUNT], count[2] = {0, 0};
        for (size_t i = 0; i < COUNT; i++)
            for (size_t v = 0; v < 2; v++)
                for (size_t times = rng_below(&rng, 6) == 0 ? 2 : 1; rng_below(&rng, 3) == 0 && times > 0; times--) {
                    if (count[v] == COUNT)
                        continue;
                    which[v][count[v]] = i;
                    names[v][count[v]++] = now->tensors[i].name;
                }
        struct lmcs_view *views[2];
        for (size_t v = 0; v < 2; v++)
            views[v] = view_named(pool, number, names[v], count[v], v == 0 ? 0 : LMCS_VIEW_PRIVATE);
        OK(lmcs_snapshot_remove(pool, "run", number, false, NULL, &err));
        write_over(pool, &rng, 60, 30000, 8);
        write_over(pool, &rng, 8, 70000, 8);
        for (size_t v = 0; v < 2; v++)
            for (size_t i = 0; i < count[v]; i++)
                expect_item(views[v], i, &now->tensors[which[v][i]]);
        lmcs_view_close(views[round % 2]);
        write_over(pool, &rng, 60, 30000, 8);
        write_over(pool, &rng, 8, 70000, 8);
        const size_t other = 1 - (size_t)(round % 2);
        for (size_t i = 0; i < count[other]; i++)
            expect_item(views[other], i, &now->tensors[which[other][i]]);
        lmcs_view_close(views[other]);
        verify_pool(pool);
        close_pool(pool);
        state_free(now);
    }
}

/* Leases alone, of two holders, against a list: exact for 64 KiB and more, by blocks of 1 MiB for what is smaller. */
struct pinned {
    unsigned holder;
    uint64_t offset, bytes;
};

static bool is_large(uint64_t bytes)
{
    return bytes > 65472;
}

static bool expected_pinned(const struct pinned *pins, size_t count, uint64_t offset, uint64_t bytes)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t a = offset, b = offset + bytes, c = pins[i].offset, d = c + pins[i].bytes;
        if (is_large(pins[i].bytes) != is_large(bytes))
            continue;
        if (!is_large(bytes)) {
            a >>= 20;
            b = ((b - 1) >> 20) + 1;
            c >>= 20;
            d = ((d - 1) >> 20) + 1;
        }
        if (a < d && c < b)
            return true;
    }
    return false;
}

static void leases_against_a_model(void **state)
{
    enum { PLACES = 400, MOST = 300 };
    struct place *place = *state;
    struct rng rng = {14};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_lease *leases[2];
    for (int i = 0; i < 2; i++)
        OK(lmcs_lease_new(pool->media, &leases[i], &err));
    /* Payloads side by side, as an extent has them: small ones and the odd sizes at multiples of 64, large on pages. */
    uint64_t offsets[PLACES], sizes[PLACES], at = (1 << 20) - 5000 * 64;
    for (size_t i = 0; i < PLACES; i++) {
        sizes[i] = edge_sizes[rng_below(&rng, EDGES)];
        at = sizes[i] >= 65536 ? (at + 4095) & ~(uint64_t)4095 : at;
        offsets[i] = at;
        at += sizes[i] >= 65536 ? (sizes[i] + 4095) & ~(uint64_t)4095 : (sizes[i] + 63) & ~(uint64_t)63;
    }
    struct pinned pins[MOST];
    size_t count = 0;
    for (int step = 0; step < 6000; step++) {
        if (count < MOST && rng_below(&rng, (uint64_t)(step / 1000 % 2 == 0 ? 3 : 5)) < 2) {
            size_t i = rng_below(&rng, PLACES);
            pins[count] = (struct pinned){(unsigned)rng_below(&rng, 2), offsets[i], sizes[i]};
            OK(lmcs_lease_pin(leases[pins[count].holder], offsets[i], sizes[i], &err));
            count++;
        } else if (count > 0) {
            size_t i = rng_below(&rng, count);
            lmcs_lease_unpin(leases[pins[i].holder], pins[i].offset, pins[i].bytes);
            pins[i] = pins[--count];
        }
        for (size_t k = step % 100 == 0 ? 0 : PLACES - 4; k < PLACES; k++) {
            size_t i = step % 100 == 0 ? k : rng_below(&rng, PLACES);
            bool expected = expected_pinned(pins, count, offsets[i], sizes[i]);
            assert_int_equal(lmcs_lease_is_pinned(pool->lease, offsets[i], sizes[i]), expected);
            /* A writer asks with what it has noted, the room of the payload. */
            assert_int_equal(lmcs_lease_is_pinned(pool->lease, offsets[i], lmcs_room(sizes[i])), expected);
        }
    }
    OK(lmcs_lease_pin(leases[0], offsets[0], 0, &err)); /* empty ones hold nothing */
    lmcs_lease_unpin(leases[0], offsets[0], 0);
    lmcs_lease_release(leases[0]); /* which lets go of all that it holds */
    size_t left = 0;
    for (size_t i = 0; i < count; i++)
        if (pins[i].holder == 1)
            pins[left++] = pins[i];
    for (size_t i = 0; i < PLACES; i++)
        assert_int_equal(lmcs_lease_is_pinned(pool->lease, offsets[i], sizes[i]),
                         expected_pinned(pins, left, offsets[i], sizes[i]));
    lmcs_lease_release(leases[1]);
    for (size_t i = 0; i < PLACES; i++)
        assert_false(lmcs_lease_is_pinned(pool->lease, offsets[i], sizes[i]));
    close_pool(pool);
}

/* However many a process has, each is there until it is let go of. */
static void many_leases(void **state)
{
    enum { MANY = 1500, EPOCHS = 100 };
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_lease *lease;
    OK(lmcs_lease_new(pool->media, &lease, &err));
    for (uint64_t i = 0; i < MANY; i++)
        OK(lmcs_lease_pin(lease, i << 20, 65536, &err));
    for (uint64_t i = 0; i < EPOCHS; i++)
        OK(lmcs_lease_epoch(lease, 1000 + i, &err));
    for (uint64_t i = 0; i < MANY; i += 2) {
        OK(lmcs_lease_pin(lease, i << 20, 65536, &err)); /* once more, which takes as many to let go of */
        lmcs_lease_unpin(lease, i << 20, 65536);
        lmcs_lease_unpin(lease, (i + 1) << 20, 65536);
    }
    for (uint64_t i = 0; i < MANY; i++)
        EXPECT(lmcs_lease_is_pinned(pool->lease, i << 20, 65536) == (i % 2 == 0));
    for (uint64_t i = 0; i < EPOCHS; i++) {
        EXPECT(lmcs_lease_safe_epoch(pool->lease, 5000) == 1000 + i);
        lmcs_lease_epoch_end(lease, 1000 + i);
    }
    for (uint64_t i = 0; i < MANY; i += 2) {
        lmcs_lease_unpin(lease, i << 20, 65536);
        EXPECT(!lmcs_lease_is_pinned(pool->lease, i << 20, 65536));
    }
    EXPECT(lmcs_lease_safe_epoch(pool->lease, 5000) == 5000);
    lmcs_lease_release(lease);
    close_pool(pool);
}

/* ---- Files that were cut short ---- */

struct cut {
    const char *path;
    const struct state *state;
    off_t length;
    enum lmcs_open_mode mode;
};

/* Whatever is said, it is an error or the right bytes. */
static int read_cut_file(void *argument)
{
    const struct cut *cut = argument;
    struct lmcs_open_options options;
    struct lmcs_pool *pool;
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    lmcs_open_options_init(&options);
    options.flags = LMCS_NO_BACKGROUND;
    if (lmcs_pool_open(cut->path, cut->mode, &options, &pool, &err) != LMCS_OK) {
        EXPECT(err.message[0] != '\0');
        return 0;
    }
    int shown = 0;
    if (lmcs_snapshot_find(pool, "run", NULL, &snapshot, &err) == LMCS_OK) {
        for (size_t f = 0; f < FLAG_SETS; f++) {
            if (lmcs_view_open(snapshot, NULL, NULL, 0, all_flags[f], &view, &err) == LMCS_OK) {
                expect_view(view, cut->state);
                lmcs_view_close(view);
                shown++;
            }
            for (size_t i = 0; i < cut->state->count; i++) {
                const char *name = cut->state->tensors[i].name;
                if (lmcs_view_open(snapshot, &name, NULL, 1, all_flags[f], &view, &err) != LMCS_OK)
                    continue;
                expect_item(view, 0, &cut->state->tensors[i]);
                lmcs_view_close(view);
            }
        }
        lmcs_snapshot_close(snapshot);
    }
    enum lmcs_status verified = lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &err);
    EXPECT(verified != LMCS_OK || shown == FLAG_SETS);
    EXPECT(lmcs_pool_close(pool, &err) == LMCS_OK);
    return 0;
}

static void a_file_that_was_cut(void **state)
{
    struct place *place = *state;
    struct rng rng = {15};
    const uint64_t sizes[] = {40, 5000, 70000, 1300000, 3000000, 64, 5000000};
    struct state *now = state_of_sizes(&rng, sizes, 7);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", now, 0);
    close_pool(pool);
    struct stat st;
    assert_int_equal(stat(place->pool, &st), 0);
    off_t last = place_of(place->pool, now->tensors[6].data, 4096), end = last + 5000000;
    off_t first = place_of(place->pool, now->tensors[4].data, 4096);
    off_t lengths[64] = {0,
                         1,
                         511,
                         4095,
                         4096,
                         8191,
                         8192,
                         100000,
                         first,
                         first + 1,
                         last,
                         last + 4999999,
                         end - 64,
                         end + 100,
                         end + 5000,
                         end + (8 << 20),
                         st.st_size / 2,
                         st.st_size - 1,
                         st.st_size - (2 << 20)};
    size_t count = 19;
    while (count < scaled("LMCS_TEST_CUTS", 30))
        lengths[count++] = (off_t)rng_below(&rng, (uint64_t)end + 100000);
    char path[512];
    place_path(place, "cut.pool", path);
    for (size_t i = 0; i < count; i++) {
        copy_file(place->pool, path);
        assert_int_equal(truncate(path, lengths[i]), 0);
        for (int mode = LMCS_OPEN_READ; mode <= LMCS_OPEN_WRITE; mode++) {
            struct cut cut = {path, now, lengths[i], (enum lmcs_open_mode)mode};
            int status = run_child(read_cut_file, &cut, 120);
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                print_error("cut at %lld of %lld, mode %d: status %x\n", (long long)lengths[i], (long long)st.st_size,
                            mode, (unsigned)status);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
    }
    state_free(now);
}

/* It is cut while a process reads it: what is asked for afterwards is an error. */
static int cut_under_reader(void *argument)
{
    const struct cut *cut = argument;
    struct lmcs_view *view;
    struct lmcs_pool *pool = open_pool(cut->path, LMCS_OPEN_READ, 0);
    struct lmcs_snapshot *snapshot = find(pool, 1);
    const char *names[] = {"t0", "t1"};
    EXPECT(truncate(cut->path, cut->length) == 0);
    for (size_t f = 0; f < FLAG_SETS; f++) {
        EXPECT(lmcs_view_open(snapshot, NULL, NULL, 0, all_flags[f], &view, &err) == LMCS_DAMAGED);
        EXPECT(strstr(err.message, "cut short") != NULL);
        OK(lmcs_view_open(snapshot, names, NULL, 2, all_flags[f], &view, &err));
        for (size_t i = 0; i < 2; i++)
            expect_item(view, i, &cut->state->tensors[i]);
        lmcs_view_close(view);
    }
    unsigned char *buffer = malloc(cut->state->tensors[2].bytes);
    FAILS(LMCS_DAMAGED, lmcs_snapshot_read(snapshot, LMCS_TENSOR, "t2", buffer, cut->state->tensors[2].bytes, &err));
    free(buffer);
    FAILS(LMCS_DAMAGED, lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &err));
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
    return 0;
}

static void a_file_that_is_cut_while_it_is_read(void **state)
{
    struct place *place = *state;
    struct rng rng = {16};
    const uint64_t sizes[] = {5000, 700000, 3000000};
    struct state *now = state_of_sizes(&rng, sizes, 3);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", now, 0);
    close_pool(pool);
    off_t last = place_of(place->pool, now->tensors[2].data, 4096);
    char path[512];
    place_path(place, "cut.pool", path);
    for (int i = 0; i < 3; i++) {
        copy_file(place->pool, path);
        struct cut cut = {path, now, last + (i == 0 ? 0 : i == 1 ? 12345 : 2999999), LMCS_OPEN_READ};
        expect_child(start_child(cut_under_reader, &cut));
    }
    state_free(now);
}

/* Names of one content, small and large: writing under one is not seen under another. */
static void names_of_one_content_have_memory_of_their_own(void **state)
{
    struct place *place = *state;
    const uint64_t sizes[] = {40, 3000, 70000, 3000000};
    enum { SIZES = 4, NAMES = 3, ALL = SIZES * NAMES };
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_capture *capture;
    struct rng rng = {31};
    struct state *held = state_of_sizes(&rng, sizes, SIZES);
    char names[ALL][16];
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    for (size_t i = 0; i < ALL; i++) {
        const struct held *of = &held->tensors[i / NAMES];
        struct lmcs_tensor tensor = {.name = names[i], .dtype = LMC_U8, .ndim = 1, .shape = of->shape};
        const void *data = of->data;
        snprintf(names[i], sizeof names[i], "%zu.%zu", i / NAMES, i % NAMES);
        if (i % NAMES == 0)
            OK(lmcs_capture_put(capture, &tensor, &data, 1, &err));
        else
            OK(lmcs_capture_put_same(capture, &tensor, names[i / NAMES * NAMES], &err));
    }
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    for (int twice = 0; twice < 2; twice++) {
        struct lmcs_view *view = view_of(pool, 1, LMCS_VIEW_PRIVATE | (twice ? LMCS_VIEW_VERIFY : 0));
        EXPECT(lmcs_view_count(view) == ALL);
        for (size_t i = 0; i < ALL; i++) {
            size_t of = (size_t)(lmcs_view_entry(view, i)->tensor.name[0] - '0');
            EXPECT((uintptr_t)lmcs_view_data(view, i) % 64 == 0);
            EXPECT(memcmp(lmcs_view_data(view, i), held->tensors[of].data, sizes[of]) == 0);
            memset(lmcs_view_data(view, i), (int)i + 1, sizes[of]);
        }
        for (size_t i = 0; i < ALL; i++) {
            size_t of = (size_t)(lmcs_view_entry(view, i)->tensor.name[0] - '0');
            const unsigned char *data = lmcs_view_data(view, i);
            EXPECT(data[0] == i + 1 && memcmp(data, data + 1, sizes[of] - 1) == 0);
        }
        lmcs_view_close(view);
    }
    state_free(held);
    verify_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(every_entry_with_every_flag),
        ON_BOTH(by_name),
        ON_BOTH(many_small_tensors),
        ON_BOTH(several_parts),
        ON_BOTH(read_only_ones_can_not_be_written_to),
        ON_BOTH(private_writes_are_seen_by_one_view_alone),
        ON_BOTH(names_of_one_content_have_memory_of_their_own),
        ON_BOTH(verify_finds_a_flipped_bit),
        ON_BOTH(copies_leave_the_file_alone),
        ON_BOTH(outlives_pool_and_snapshot),
        ON_BOTH(child_can_not_let_go_of_its_parents),
        ON_BOTH(watched_by_another_process),
        ON_BOTH(killed_readers_hold_nothing),
        ON_BOTH(held_by_one_of_two_views),
        ON_BOTH(leases_against_a_model),
        IN_MEMORY(many_leases),
        ON_BOTH(a_file_that_was_cut),
        ON_BOTH(a_file_that_is_cut_while_it_is_read),
    };
    return cmocka_run_group_tests_name("view", tests, NULL, NULL);
}
