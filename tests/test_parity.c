/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_parity.c - parity=bases, the default: parity of contents that others rest on.
 *
 * This program interposes pread, which counts the bytes of one payload that are read.
 */
/* ctest: timeout=600 */
#include "test_links_support.h"
#include "test_repair_support.h"

#include <sys/syscall.h>

#define PAGE 4096u

static struct {
    const struct lmcs_content *content;
    _Atomic uint64_t read;
} counted;

ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    const uint64_t from = (uint64_t)offset, end = from + bytes;
    for (size_t i = 0; counted.content != NULL && i < counted.content->df.part_count; i++) {
        const struct lmcs_part_df *part = &counted.content->parts[i];
        const uint64_t first = from > part->offset ? from : part->offset;
        const uint64_t last = end < part->offset + part->bytes ? end : part->offset + part->bytes;
        counted.read += last > first ? last - first : 0;
    }
    return syscall(SYS_pread64, fd, data, bytes, offset);
}

enum { STEPS = 14 };

/* A link to arrays that are still raw is not needed yet. */
static bool is_needed(struct lmcs_txn *txn, const struct lmcs_content *base)
{
    bool needed = base->df.payload != LMCS_PAYLOAD_LINK;
    for (uint64_t id = 1; !needed && id < txn->root.next_content; id++) {
        struct lmcs_content content;
        bool found;
        OK(lmcs_content_find(txn, id, &content, &found, &err));
        needed = found && content.df.payload == LMCS_PAYLOAD_LINKED && content.link == base->id;
    }
    return needed;
}

/* Returns the contents with a payload that others rest on; *bare counts those without parity. */
static size_t bases_of(struct lmcs_pool *pool, struct lmcs_content *bases, size_t capacity, size_t *bare)
{
    struct lmcs_txn txn;
    size_t count = 0;
    *bare = 0;
    OK(lmcs_txn_read(pool, &txn, &err));
    for (uint64_t id = 1; id < txn.root.next_content; id++) {
        struct lmcs_content content;
        struct lmcs_parity_record parity;
        bool found;
        OK(lmcs_content_find(&txn, id, &content, &found, &err));
        if (!found || content.df.base_uses == 0 || content.df.stored_bytes == 0 || !is_needed(&txn, &content))
            continue;
        OK(lmcs_parity_find(&txn, id, &parity, &found, &err));
        *bare += !found;
        if (count < capacity)
            bases[count++] = content;
    }
    lmcs_txn_end(&txn);
    return count;
}

static void expect_bases_have_parity(struct lmcs_pool *pool)
{
    struct lmcs_content bases[256];
    size_t bare;
    EXPECT(bases_of(pool, bases, 256, &bare) > 0);
    EXPECT(bare == 0);
}

static void expect_states(struct lmcs_pool *pool, struct state **states, int count)
{
    for (int i = 0; i < count; i++)
        expect_snapshot(pool, "run", (uint64_t)i + 1, states[i]);
}

/* Turns the bytes of the payload in the page of the device that has its byte `at`. */
static void damage_page(const char *path, const struct lmcs_content *content, uint64_t at)
{
    const struct lmcs_part_df *part = &content->parts[0];
    uint64_t first = (part->offset + at) / PAGE * PAGE, end = first + PAGE, last = part->offset + part->bytes;
    first = first < part->offset ? part->offset : first;
    turn_bytes(path, first, (end < last ? end : last) - first);
}

/* Frames, raw bytes, small contents: a bit, then a page of each base, all at once. */
static void damaged_bases_are_repaired(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct state *states[STEPS];
    struct lmcs_content bases[256];
    size_t bare, smallest = SIZE_MAX, largest = 0;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, STEPS, &rng);
    OK(lmcs_compact(pool, NULL, &err));
    for (int round = 0; round < 3; round++) {
        size_t count = bases_of(pool, bases, 256, &bare);
        EXPECT(count >= 8 && bare == 0);
        for (size_t i = 0; i < count; i++) {
            uint64_t bytes = bases[i].df.stored_bytes;
            smallest = bytes < smallest ? bytes : smallest;
            largest = bytes > largest ? bytes : largest;
            if (round == 0)
                damage_content(place->pool, &bases[i], bytes / 2, 1);
            else
                damage_page(place->pool, &bases[i], round == 1 ? 0 : bytes - 1);
        }
        expect_repaired(pool, NULL, "parity");
        expect_states(pool, states, STEPS);
        OK(lmcs_compact(pool, NULL, &err));
    }
    EXPECT(smallest < 256 << 10 && largest > 1 << 20);
    close_pool(pool);
    free_rows(states, STEPS);
}

/* The bytes that are checked are those that are encoded. */
static void each_byte_is_read_once(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct state *states[STEPS];
    struct lmcs_content bases[256];
    size_t bare;
    bool made;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, STEPS, &rng);
    OK(lmcs_compact(pool, NULL, &err));
    const size_t count = bases_of(pool, bases, 256, &bare);
    EXPECT(count >= 8);
    for (size_t i = 0; i < count; i++) {
        const struct lmcs_wanted_df wanted = lmcs_parity_by_size(bases[i].df.stored_bytes);
        counted.read = 0;
        counted.content = &bases[i];
        OK(lmcs_parity_make(pool, bases[i].id, wanted.data, wanted.parity, &made, &err));
        counted.content = NULL;
        EXPECT(made && counted.read == bases[i].df.stored_bytes);
        damage_content(place->pool, &bases[i], bases[i].df.stored_bytes / 2, 1);
        (void)lmcs_parity_make(pool, bases[i].id, wanted.data, wanted.parity, &made, &err);
        EXPECT(!made);
    }
    expect_repaired(pool, NULL, "parity");
    expect_states(pool, states, STEPS);
    close_pool(pool);
    free_rows(states, STEPS);
}

static void none_means_none(void **state)
{
    struct place *place = *state;
    struct rng rng = {2};
    struct state *states[STEPS];
    struct lmcs_content bases[256];
    struct telling telling;
    size_t bare;
    struct lmcs_pool *pool = open_quiet(place->pool);
    set_policy(pool, "run", "parity=none");
    EXPECT(strstr(shelf_info(pool, "run").policy, "parity=none") != NULL);
    take_rows(pool, states, STEPS, &rng);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(pool_info(pool).parity_bytes == 0 && bases_of(pool, bases, 256, &bare) >= 8);
    set_policy(pool, "run", "parity=bases");
    EXPECT(strstr(shelf_info(pool, "run").policy, "parity") == NULL);
    OK(lmcs_compact(pool, NULL, &err));
    expect_bases_have_parity(pool);
    set_policy(pool, "run", "parity=none");
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(pool_info(pool).parity_bytes > 0); /* it stays */
    close_pool(pool);
    EXPECT(unlink(place->pool) == 0);
    pool = open_quiet(place->pool);
    set_policy(pool, "run", "parity=none");
    for (int i = 0; i < STEPS; i++)
        take_snapshot(pool, "run", states[i], i);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_content content = record_of(pool, "run", 1, "moving");
    while (content.df.base_count > 0)
        content = content_record(pool, content.bases[0]);
    damage_content(place->pool, &content, content.df.stored_bytes / 2, 1);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    EXPECT(telling.count == 1 && telling.items[0].state == LMCS_DAMAGE_LOST && telling.report.lost == 1);
    FAILS(LMCS_DAMAGED, read_tensor(pool, "run@1", &states[0]->tensors[0], 0, states[0]->tensors[0].bytes));
    EXPECT(strstr(err.message, "\"moving\" is damaged") != NULL);
    close_pool(pool);
    free_rows(states, STEPS);
}

/* Bases whose snapshots are gone are left for others, which were examined before; so with forks. */
static void later_dependents(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct state *states[STEPS];
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, STEPS, &rng);
    OK(lmcs_compact(pool, NULL, &err));
    expect_bases_have_parity(pool);
    struct lmcs_snapshot *third;
    OK(lmcs_snapshot_open(pool, "run@3", &third, &err));
    OK(lmcs_shelf_fork(third, "fork", &err));
    lmcs_snapshot_close(third);
    for (uint64_t n = 2; n < STEPS; n += 1 + n % 2) {
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        OK(lmcs_compact(pool, NULL, &err));
        expect_bases_have_parity(pool);
        check_pool(pool);
    }
    expect_snapshot(pool, "run", 1, states[0]);
    expect_snapshot(pool, "run", STEPS, states[STEPS - 1]);
    expect_clean(pool);
    close_pool(pool);
    free_rows(states, STEPS);
}

/* A scrub with repair examines snapshots that are still raw: their contents become bases later. */
static void bases_after_a_scrub(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    struct state *states[STEPS];
    struct telling telling;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, STEPS, &rng);
    OK(repair_from(pool, NULL, &telling));
    EXPECT(pool_info(pool).parity_bytes == 0);
    OK(lmcs_compact(pool, NULL, &err));
    expect_bases_have_parity(pool);
    close_pool(pool);
    free_rows(states, STEPS);
}

static void lines_of_links(void **state)
{
    static const size_t sizes[PARAMETERS] = {300, 5000, LMC_BLOCK_BYTES / 4 + 5000};
    struct place *place = *state;
    struct run run;
    struct lmcs_content bases[256];
    size_t bare, links = 0;
    struct lmcs_pool *pool = open_quiet(place->pool);
    run_begin(&run, adamw_hints(), BF16, sizes);
    set_policy(pool, "run", "keep_raw=2");
    run_on(&run, pool, "run", 6);
    OK(lmcs_compact(pool, NULL, &err));
    run_on(&run, pool, "run", 4);
    OK(lmcs_compact(pool, NULL, &err));
    size_t count = bases_of(pool, bases, 256, &bare);
    EXPECT(bare == 0);
    for (size_t i = 0; i < count; i++) {
        links += bases[i].df.payload == LMCS_PAYLOAD_LINK;
        damage_page(place->pool, &bases[i], bases[i].df.stored_bytes / 3);
    }
    EXPECT(links >= 8);
    expect_repaired(pool, NULL, "parity");
    expect_run(&run, pool, "run");
    for (uint64_t n = 1; n <= 5; n++) {
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        OK(lmcs_compact(pool, NULL, &err));
        expect_bases_have_parity(pool);
    }
    check_pool(pool);
    close_pool(pool);
    run_end(&run);
}

/* By arithmetic: wherever a page begins, it touches no more units of a stripe than there are units of parity. */
static void geometry_by_size(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 3 << 20; n += n < 20480 ? 1 : 256) {
        struct lmcs_wanted_df by = lmcs_parity_by_size(n);
        EXPECT(by.data >= 1 && by.data <= 128 && by.parity >= 1 && by.parity <= 16);
        uint64_t share = ((n + by.data - 1) / by.data + 63) & ~(uint64_t)63, unit = share < PAGE ? share : PAGE;
        uint64_t units = (n + unit - 1) / unit, stripes = (units + by.data - 1) / by.data;
        uint64_t cost = 2 * 8 * (units + by.parity * stripes) + by.parity * stripes * unit;
        if (n % 4096 == 0 && ((n / 4096) & (n / 4096 - 1)) == 0)
            printf("%llu bytes: %u+%u, %.1f %%\n", (unsigned long long)n, by.data, by.parity,
                   100.0 * (double)cost / (double)n);
        EXPECT(cost <= n + 256 && (n < 64 << 10 || cost < n / 8) && (n < 1 << 20 || cost < n / 50));
        for (uint64_t skew = 0; skew < PAGE; skew += 64) /* in the page, of the payload's first byte */
            for (uint64_t page = 0; page <= (n + skew) / PAGE; page += 1 + page / 8) {
                uint64_t from = page * PAGE < skew ? 0 : page * PAGE - skew, end = (page + 1) * PAGE - skew;
                end = end < n ? end : n;
                if (from >= end)
                    continue;
                uint64_t touched = (end - 1) / unit - from / unit + 1;
                EXPECT((touched + stripes - 1) / stripes <= by.parity);
            }
    }
}

/* Takes snapshots of small tensors until the pool is full; parity is a large share of those. */
static int fill_pool(const char *path, const char *policy, uint64_t *parity_bytes)
{
    struct rng rng = {5};
    const uint64_t elements = 4096;
    char name[16];
    struct state *now = calloc(1, sizeof *now);
    struct lmcs_pool *pool = open_limited(path, (uint64_t)48 << 20);
    uint64_t number;
    int count = 0;
    set_policy(pool, "run", policy);
    for (int i = 0; i < 64; i++) {
        snprintf(name, sizeof name, "w%d", i);
        struct held *held = state_add(now, name, LMC_F32, 1, &elements);
        rng_fill(&rng, held->data, held->bytes);
    }
    *parity_bytes = 0;
    for (;; count++) {
        for (size_t i = 0; i < now->count; i++)
            for (size_t k = 0; k < now->tensors[i].bytes; k += 4)
                rng_fill(&rng, now->tensors[i].data + k, 2);
        if (try_snapshot(pool, "run", now, count, &number, &err) != LMCS_OK)
            break;
        OK(lmcs_compact(pool, NULL, &err));
        uint64_t parity = pool_info(pool).parity_bytes;
        *parity_bytes = parity > *parity_bytes ? parity : *parity_bytes;
    }
    assert_int_equal(err.status, LMCS_FULL);
    check_pool(pool);
    verify_pool(pool);
    close_pool(pool);
    EXPECT(unlink(path) == 0);
    state_free(now);
    return count;
}

static void parity_gives_way(void **state)
{
    struct place *place = *state;
    uint64_t without, with;
    int least = fill_pool(place->pool, "parity=none keep_raw=1", &without);
    int count = fill_pool(place->pool, "keep_raw=1", &with);
    printf("%d snapshots without parity, %d with at most %llu bytes of it\n", least, count, (unsigned long long)with);
    EXPECT(without == 0 && with > (uint64_t)4 << 20);
    EXPECT(least > 20 && count >= least - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(damaged_bases_are_repaired), ON_BOTH(each_byte_is_read_once), IN_MEMORY(none_means_none),
        IN_MEMORY(later_dependents),         IN_MEMORY(bases_after_a_scrub),  IN_MEMORY(lines_of_links),
        IN_MEMORY(geometry_by_size),         IN_MEMORY(parity_gives_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
