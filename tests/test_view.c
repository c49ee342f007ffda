/* SPDX-License-Identifier: BSD-3-Clause */
/* test_view.c - views under all flags, sizes and parts; writing to them; verification. */
/* ctest: timeout=600 */
#include "test_view_support.h"

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
        for (size_t t = 0; t < now->count; t++)
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
    struct held *note = state_add(now, "t3", LMC_U8, 1, &shape);
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
    /* The error names the first absent one; the others are released. */
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

/* 20,000 small tensors: all, then by name from the last to the first. */
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

/* Payloads in several parts that end at, before and behind pages and part limits. */
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
    struct lmcs_pool *pool = open_quiet(place->pool);
    pool->part_bytes = 2u << 20;
    struct state *now = state_of_sizes(&rng, sizes, COUNT), *states[SNAPSHOTS];
    for (int i = 0; i < SNAPSHOTS; i++) {
        for (size_t t = 0; t + 1 < now->count; t++)
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
    state_free(now);
}

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
    for (uint64_t n = 1; n <= 7; n += 6)
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

static void flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte = 0;
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    assert_true(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

/* Byte `at` of the tensor was flipped. */
static void expect_damage_in_copies(struct lmcs_snapshot *snapshot, const struct held *held, uint64_t at)
{
    unsigned char *buffer = malloc(held->bytes), byte;
    assert_non_null(buffer);
    FAILS(LMCS_DAMAGED, lmcs_snapshot_read(snapshot, LMCS_TENSOR, held->name, buffer, held->bytes, &err));
    assert_non_null(strstr(err.message, "run@1: repair it by lmc-store scrub --repair"));
    FAILS(LMCS_DAMAGED, lmcs_snapshot_read_range(snapshot, LMCS_TENSOR, held->name, at, &byte, 1, &err));
    lmcs_snapshot_set_verify(snapshot, false);
    OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, held->name, buffer, held->bytes, &err));
    OK(lmcs_snapshot_read_range(snapshot, LMCS_TENSOR, held->name, at, &byte, 1, &err));
    assert_true(byte == (held->data[at] ^ 0x10) && buffer[at] == byte);
    lmcs_snapshot_set_verify(snapshot, true);
    FAILS(LMCS_DAMAGED, lmcs_snapshot_read(snapshot, LMCS_TENSOR, held->name, buffer, held->bytes, &err));
    free(buffer);
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
            } else {
                assert_int_equal(status, LMCS_OK);
                assert_int_equal(((unsigned char *)lmcs_view_data(view, t))[at], held->data[at] ^ 0x10);
                lmcs_view_close(view);
            }
        }
        expect_damage_in_copies(snapshot, held, at);
        for (size_t other = 0; other < 4; other++) {
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
    /* Only the copy has it, and pins nothing. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(every_entry_with_every_flag),
        ON_BOTH(by_name),
        ON_BOTH(many_small_tensors),
        ON_BOTH(several_parts),
        ON_BOTH(read_only_ones_can_not_be_written_to),
        ON_BOTH(private_writes_are_seen_by_one_view_alone),
        ON_BOTH(verify_finds_a_flipped_bit),
        ON_BOTH(copies_leave_the_file_alone),
    };
    return cmocka_run_group_tests_name("view", tests, NULL, NULL);
}
