/* SPDX-License-Identifier: BSD-3-Clause */
/* test_poolset.c - poolsets: replicas, unfinished creation, refusals, and full ones. */
#include "test_pool_support.h"

static void poolset_with_a_replica(void **state)
{
    struct place *place = *state;
    struct rng rng = {10};
    struct state *weights = state_weights(&rng, 3, 1 << 15);
    char path[512], text[2048];
    place_path(place, "pool.set", path);
    snprintf(text, sizeof text, "PMEMPOOLSET\n64M %s/part0\n64M %s/part1\nREPLICA\n128M %s/replica0\n", place->folder,
             place->folder, place->folder);
    write_bytes(path, text, strlen(text));
    struct lmcs_pool *pool = open_quiet(path);
    for (int i = 0; i < 8; i++) {
        take_snapshot(pool, "run", weights, i);
        check_pool(pool);
        state_step(weights, &rng, 0, weights->count);
    }
    OK(lmcs_compact(pool, NULL, &err));
    verify_pool(pool);
    close_pool(pool);
    pool = open_quiet(path);
    verify_pool(pool);
    take_snapshot(pool, "run", weights, 9);
    expect_state(pool, "run", "latest", weights);
    close_pool(pool);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    expect_state(pool, "run", "latest", weights);
    close_pool(pool);
    state_free(weights);
}

/* Creation removes the remains of a killed creation; files of a running one stay. */
static void forgotten_beginnings(void **state)
{
    struct place *place = *state;
    static const struct {
        const char *name, *bytes;
        bool old, locked, gone;
    } beginnings[] = {
        {"a.pool.lmc-store-new-abcdef", "PMEMOBJ", true, false, true},
        {"a.pool.lmc-store-new-ghijkl", "\0\0\0\0\0\0\0", true, false, true},
        {"a.pool.lmc-store-new-mnopqr", NULL, true, false, true},
        {"a.pool.lmc-store-new-uvwxyz", "PMEMOBJ", true, true, false},
        {"a.pool.lmc-store-new-ABCDEF", "PMEMOBJ", false, false, false},
        {"a.pool.lmc-store-new-GHIJKL", "a notes", true, false, false},
        {"a.pool.lmc-store-new-longer1", "PMEMOBJ", true, false, false},
        {"b.pool.lmc-store-new-abcdef", "PMEMOBJ", true, false, false},
        {"a.pool.new-backup", "PMEMOBJ", true, false, false},
    };
    enum { COUNT = sizeof beginnings / sizeof beginnings[0] };
    int locks[COUNT];
    char path[512];
    for (size_t i = 0; i < COUNT; i++) {
        const struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
        place_path(place, beginnings[i].name, path);
        write_bytes(path, beginnings[i].bytes, beginnings[i].bytes != NULL ? 8 : 0);
        locks[i] = open(path, O_RDWR | O_CLOEXEC);
        EXPECT(locks[i] >= 0 && (!beginnings[i].old || futimens(locks[i], old) == 0));
        EXPECT(!beginnings[i].locked || flock(locks[i], LOCK_EX | LOCK_NB) == 0);
    }
    close_pool(open_quiet(place->pool));
    for (size_t i = 0; i < COUNT; i++) {
        place_path(place, beginnings[i].name, path);
        EXPECT((access(path, F_OK) != 0) == beginnings[i].gone);
        close(locks[i]);
    }
    /* Named, but its maker died before it unlinked the other name: a deleted pool must not return. */
    place_path(place, beginnings[0].name, path);
    EXPECT(link(place->pool, path) == 0);
    close_pool(open_pool(place->pool, LMCS_OPEN_WRITE, 0));
    EXPECT(access(path, F_OK) != 0 && access(place->pool, F_OK) == 0);
}

static uint64_t swap_word(const char *path, uint64_t at, uint64_t word)
{
    uint64_t old = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(fd >= 0 && pread(fd, &old, sizeof old, (off_t)at) == sizeof old);
    EXPECT(word == 0 || pwrite(fd, &word, sizeof word, (off_t)at) == sizeof word);
    close(fd);
    return old;
}

/* As after a power failure between two replicas' new roots: a writer makes them equal. */
static void replicas_that_differ_by_a_commit(void **state)
{
    struct place *place = *state;
    struct rng rng = {12};
    struct state *weights = state_weights(&rng, 3, 1 << 12);
    char path[512], first[512], second[512], text[2048];
    place_path(place, "pool.set", path);
    place_path(place, "part0", first);
    place_path(place, "replica0", second);
    snprintf(text, sizeof text, "PMEMPOOLSET\n64M %s\nREPLICA\n64M %s\n", first, second);
    write_bytes(path, text, strlen(text));
    struct lmcs_pool *pool = open_quiet(path);
    uint64_t word_at = lmcs_media_superblock(pool->media) + offsetof(struct lmcs_superblock_df, root);
    take_snapshot(pool, "run", weights, 1);
    close_pool(pool);
    uint64_t old = swap_word(first, word_at, 0);
    pool = open_quiet(path);
    OK(lmcs_tag_set(pool, "run", "best", 1, &err));
    close_pool(pool);
    uint64_t new = swap_word(second, word_at, old);
    EXPECT(new != old &&swap_word(first, word_at, 0) == new);
    close_pool(open_quiet(path));
    EXPECT(swap_word(second, word_at, 0) == swap_word(first, word_at, 0));
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    expect_state(pool, "run", "best", weights);
    close_pool(pool);
    state_free(weights);
}

/* Writes a poolset file; @ stands for the folder. */
static void write_poolset(const struct place *place, const char *name, const char *lines)
{
    char path[512], text[2048] = "PMEMPOOLSET\n";
    size_t used = strlen(text);
    for (const char *at = lines; *at != '\0' && used < sizeof text; at++)
        used += (size_t)snprintf(text + used, sizeof text - used, *at == '@' ? "%s" : "%.1s",
                                 *at == '@' ? place->folder : at);
    EXPECT(used < sizeof text);
    place_path(place, name, path);
    write_bytes(path, text, used);
}

static void poolsets_that_are_refused(void **state)
{
    struct place *place = *state;
    char path[512], part[512];
    struct lmcs_pool *pool;
    static const struct {
        const char *lines;
        enum lmcs_status status;
        const char *why;
    } cases[] = {
        {"OPTION SINGLEHDR\n32M @/part0\n", LMCS_UNSUPPORTED, "options"},
        {"32M @\n", LMCS_UNSUPPORTED, "folders"},
        {"32M @/part0\n1T @/short\n", LMCS_DAMAGED, "too small"},
        {"32M @/part0\n32M /dev/null\n", LMCS_UNSUPPORTED, "must be files"},
        {"32M @/part0\n32M @/nowhere\n", LMCS_NOT_FOUND, "there is no such pool"},
        {"# nothing\n", LMCS_DAMAGED, "no parts"},
    };
    write_poolset(place, "pool.set", "32M @/part0\n");
    place_path(place, "pool.set", path);
    close_pool(open_quiet(path));
    place_path(place, "short", part);
    write_bytes(part, "x", 1);
    place_path(place, "part0", part);
    uint64_t bytes = disk_bytes(part);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_poolset(place, "other.set", cases[i].lines);
        place_path(place, "other.set", path);
        for (int mode = LMCS_OPEN_READ; mode <= LMCS_OPEN_WRITE; mode++) {
            FAILS(cases[i].status, try_open(path, (enum lmcs_open_mode)mode, 0, &pool));
            EXPECT(strstr(err.message, cases[i].why) != NULL);
        }
        EXPECT(disk_bytes(part) == bytes);
    }
    place_path(place, "pool.set", path);
    close_pool(open_quiet(path));
}

static void fill_with_noise(struct state *state, struct rng *rng)
{
    for (size_t k = 0; k < state->count; k++)
        rng_fill(rng, state->tensors[k].data, state->tensors[k].bytes);
}

/* A capture without room in a fragmented small pool fails soon, and takes no address space that it can't fill. */
static void full_pool_of_tensors_of_all_sizes(void **state)
{
    static const uint64_t sizes[] = {1074864, 300000, 2000000, 70000, 1500000};
    struct place *place = *state;
    struct rng rng = {29};
    uint64_t oldest = 1, number, refused = 0;
    struct lmcs_pool *pool = open_limited(place->pool, LMCS_MIN_POOL_BYTES);
    for (uint64_t i = 0; i < 120; i++) {
        struct state *noise = calloc(1, sizeof *noise);
        char name[32];
        snprintf(name, sizeof name, "t%u", (unsigned)rng_below(&rng, 3));
        struct held *held = state_add(noise, name, LMC_U8, 1, &sizes[rng_below(&rng, 5)]);
        rng_fill(&rng, held->data, held->bytes);
        enum lmcs_status status = try_snapshot(pool, "run", noise, (int64_t)i, &number, &err);
        EXPECT(status == LMCS_OK || status == LMCS_FULL);
        refused += status == LMCS_FULL;
        if (status == LMCS_FULL && rng_below(&rng, 3) == 0)
            OK(lmcs_snapshot_remove(pool, "run", oldest++, false, NULL, &err));
        state_free(noise);
    }
    EXPECT(refused > 20);
    verify_pool(pool);
    assert_true(pool_info(pool).used_bytes <= LMCS_MIN_POOL_BYTES);
    close_pool(pool);
}

static void full_poolset_goes_on(void **state)
{
    struct place *place = *state;
    struct rng rng = {11};
    struct state *noise = state_weights(&rng, 4, 400000);
    char path[512], text[1024];
    uint64_t number = 0, taken = 0;
    enum lmcs_status status = LMCS_OK;
    place_path(place, "fixed.set", path);
    snprintf(text, sizeof text, "PMEMPOOLSET\n96M %s/part0\n", place->folder);
    write_bytes(path, text, strlen(text));
    struct lmcs_pool *pool = open_quiet(path);
    while (status == LMCS_OK && taken < 30) {
        fill_with_noise(noise, &rng);
        status = try_snapshot(pool, "run", noise, 1, &number, &err);
        taken += status == LMCS_OK;
    }
    EXPECT(status == LMCS_FULL && taken >= 8);
    OK(lmcs_compact(pool, NULL, &err));
    for (uint64_t i = 1; i <= 3; i++)
        OK(lmcs_snapshot_remove(pool, "run", i, false, NULL, &err));
    for (int i = 0; i < 2; i++)
        expect_snapshot(pool, "run", take_snapshot(pool, "run", noise, 2), noise);
    state_free(noise);
    noise = state_weights(&rng, 1, 2500000);
    for (uint64_t i = 4; i <= taken; i++)
        OK(lmcs_snapshot_remove(pool, "run", i, false, NULL, &err));
    for (int i = 0; i < 5; i++) {
        fill_with_noise(noise, &rng);
        take_snapshot(pool, "other", noise, i);
    }
    verify_pool(pool);
    close_pool(pool);
    state_free(noise);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(full_pool_of_tensors_of_all_sizes), ON_BOTH(poolset_with_a_replica),
        ON_DISK(replicas_that_differ_by_a_commit),  ON_DISK(forgotten_beginnings),
        IN_MEMORY(poolsets_that_are_refused),       IN_MEMORY(full_poolset_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
