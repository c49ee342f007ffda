/* SPDX-License-Identifier: BSD-3-Clause */
/* test_repair.c - repair from the pool itself, archives, other pools, parity and replicas. */
/* ctest: timeout=600 */
#include "test_repair_support.h"

#include <sys/syscall.h>

enum { COUNT = 7 };

static void expect_all(struct lmcs_pool *pool, struct state **states, int count)
{
    for (int i = 0; i < count; i++)
        expect_snapshot(pool, "run", (uint64_t)i + 1, states[i]);
}

static void hashes_from_the_blocks(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct state *states[2] = {NULL};
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, 2, &rng);
    struct lmcs_content still = record_of(pool, "run", 1, "still");
    uint64_t table = (uint64_t)ROWS * ROW_BYTES;
    damage_content(place->pool, &still, table + 16, 20);
    FAILS(LMCS_DAMAGED, read_tensor(pool, "run@1", &states[0]->tensors[1], 0, 10));
    expect_repaired(pool, NULL, "its own blocks");
    EXPECT(record_of(pool, "run", 1, "still").parts[0].offset != still.parts[0].offset);
    expect_all(pool, states, 2);
    /* One hash, and another block: the digest decides. */
    struct telling telling;
    still = record_of(pool, "run", 1, "still");
    damage_content(place->pool, &still, table + 1, 1);
    damage_content(place->pool, &still, (2 << 20) + 100, 1);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    EXPECT(telling.count == 2 && telling.items[0].state == LMCS_DAMAGE_REPAIRED);
    EXPECT(telling.items[1].state == LMCS_DAMAGE_LOST && telling.items[1].first_row == 2 * BLOCK_ROWS);
    OK(read_tensor(pool, "run@1", &states[0]->tensors[1], 0, 2 << 20));
    FAILS(LMCS_DAMAGED, read_tensor(pool, "run@1", &states[0]->tensors[1], 0, (2 << 20) + 1));
    check_pool(pool);
    close_pool(pool);
    free_rows(states, 2);
}

static void the_same_tensor_stored_twice(void **state)
{
    struct place *place = *state;
    struct rng rng = {2};
    struct state *states[COUNT] = {NULL};
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, COUNT, &rng);
    take_snapshot(pool, "twin", states[1], 0);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_content coded = record_of(pool, "run", 2, "moving"), twin = record_of(pool, "twin", 1, "moving");
    EXPECT(coded.id != twin.id && coded.df.payload == LMCS_PAYLOAD_FRAME && twin.df.payload == LMCS_PAYLOAD_RAW);
    damage_content(place->pool, &coded, coded.df.stored_bytes - 1000, 500);
    expect_repaired(pool, NULL, "a copy in the pool");
    struct lmcs_content now = record_of(pool, "run", 2, "moving");
    EXPECT(now.df.payload == LMCS_PAYLOAD_FRAME && now.df.base_count == coded.df.base_count);
    damage_content(place->pool, &now, 3, 40);
    expect_repaired(pool, NULL, "a copy in the pool");
    damage_content(place->pool, &twin, 100, (2 << 20) + 200000);
    expect_repaired(pool, NULL, "a copy in the pool");
    struct lmcs_content small = record_of(pool, "run", 2, "small"), small_twin = record_of(pool, "twin", 1, "small");
    EXPECT(small.id != small_twin.id);
    damage_content(place->pool, &small_twin, 0, 1); /* one block: the digest is its only checksum */
    expect_repaired(pool, NULL, "a copy in the pool");
    expect_all(pool, states, COUNT);
    expect_snapshot(pool, "twin", 1, states[1]);
    close_pool(pool);
    free_rows(states, COUNT);
}

/* "table" changes in its first block only. */
static void a_block_that_a_neighbour_has(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct state *states[COUNT] = {NULL};
    struct telling telling;
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=none", &err)); /* other sources */
    take_rows(pool, states, COUNT, &rng);
    struct lmcs_content raw = record_of(pool, "run", 7, "table");
    damage_content(place->pool, &raw, (1 << 20) + 10, 1);
    expect_repaired(pool, NULL, "neighbour");
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_content coded = record_of(pool, "run", 2, "table");
    EXPECT(coded.df.payload == LMCS_PAYLOAD_FRAME);
    raw = record_of(pool, "run", 7, "table");
    damage_content(place->pool, &raw, 10, 1);
    damage_content(place->pool, &raw, (2 << 20) + 10, 1);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    EXPECT(telling.count == 2 && telling.items[0].state == LMCS_DAMAGE_LOST && telling.items[0].row_count == 256 &&
           telling.items[1].state == LMCS_DAMAGE_REPAIRED);
    EXPECT(strstr(telling.items[0].holders, "..7 table") != NULL || strstr(telling.items[0].holders, "@7..") != NULL);
    check_pool(pool);
    for (int i = 0; i < COUNT; i++) {
        char address[32];
        snprintf(address, sizeof address, "run@%d", i + 1);
        OK(read_tensor(pool, address, &states[i]->tensors[2], 1 << 20, 320 * ROW_BYTES));
        OK(read_tensor(pool, address, &states[i]->tensors[0], 0, ROWS * ROW_BYTES));
    }
    close_pool(pool);
    free_rows(states, COUNT);
}

static void dump_to(struct lmcs_pool *pool, const char *path, bool canonical)
{
    struct lmcs_dump_options options;
    lmcs_dump_options_init(&options);
    options.canonical = canonical;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    OK(lmcs_dump_with(pool, &options, fd, NULL, NULL, &err));
    close(fd);
}

static unsigned damage_some(struct lmcs_pool *pool, const char *path)
{
    unsigned raw = 0, frames = 0;
    for (uint64_t i = 1; i <= COUNT; i++) {
        struct lmcs_content content = record_of(pool, "run", i, "moving");
        bool is_raw = content.df.payload == LMCS_PAYLOAD_RAW;
        damage_content(path, &content, is_raw || i % 3 == 0 ? 20 : content.df.stored_bytes / 2, 1 + i);
        raw += is_raw;
        frames += !is_raw;
    }
    EXPECT(raw > 1 && frames > 1);
    return raw + frames;
}

static void from_an_archive(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    struct state *states[COUNT] = {NULL};
    struct telling telling;
    char early[512], late[512], canonical[512];
    struct lmcs_pool *pool = open_quiet(place->pool);
    place_path(place, "early", early);
    place_path(place, "late", late);
    place_path(place, "canonical", canonical);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=none", &err)); /* other sources */
    take_rows(pool, states, COUNT, &rng);
    dump_to(pool, early, false);
    OK(lmcs_compact(pool, NULL, &err));
    dump_to(pool, late, false);
    dump_to(pool, canonical, true);
    const char *archives[] = {early, late, canonical};
    for (int i = 0; i < 3; i++) {
        unsigned damages = damage_some(pool, place->pool);
        FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
        EXPECT(telling.report.lost == damages);
        expect_repaired(pool, archives[i], archives[i]);
        EXPECT(pool_info(pool).lost_contents == 0);
        expect_all(pool, states, COUNT);
    }
    struct stat info;
    damage_some(pool, place->pool);
    EXPECT(stat(early, &info) == 0);
    turn_bytes(early, (uint64_t)info.st_size / 2, 1 << 20);
    enum lmcs_status status = repair_from(pool, early, &telling);
    EXPECT(status == LMCS_DAMAGED || status == LMCS_OK);
    check_pool(pool);
    expect_repaired(pool, canonical, "");
    expect_all(pool, states, COUNT);
    FAILS(LMCS_NOT_FOUND, repair_from(pool, "/nowhere/at all", &telling));
    FAILS(LMCS_INVALID, repair_from(pool, place->pool, &telling));
    close_pool(pool);
    free_rows(states, COUNT);
}

static void past_a_bad_source(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct state *states[COUNT] = {NULL};
    struct telling telling;
    struct lmcs_scrub_options options;
    char good[512], cut[512];
    struct lmcs_pool *pool = open_quiet(place->pool);
    place_path(place, "good", good);
    place_path(place, "cut", cut);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=none", &err)); /* other sources */
    take_rows(pool, states, COUNT, &rng);
    dump_to(pool, good, false);
    dump_to(pool, cut, false);
    EXPECT(truncate(cut, 100000) == 0);
    OK(lmcs_compact(pool, NULL, &err));
    damage_some(pool, place->pool);
    lmcs_scrub_options_init(&options);
    options.repair = true;
    options.from = (const char *[]){cut, "/nowhere/at all", good};
    options.from_count = 2;
    FAILS(LMCS_DAMAGED, scrub_with(pool, &options, &telling));
    EXPECT(telling.report.contents == 0 && pool_info(pool).lost_contents == 0);
    options.from_count = 3;
    FAILS(LMCS_DAMAGED, scrub_with(pool, &options, &telling));
    EXPECT(telling.report.sources_unread == 2 && telling.report.is_whole);
    EXPECT(telling.report.damages > 0 && telling.report.repaired == telling.report.damages);
    EXPECT(strstr(err.message, cut) != NULL && strstr(err.message, "/nowhere/at all") != NULL);
    expect_clean(pool);
    expect_all(pool, states, COUNT);
    options.from = (const char *[]){"/nowhere/at all", good};
    options.from_count = 2;
    FAILS(LMCS_NOT_FOUND, scrub_with(pool, &options, &telling));
    EXPECT(telling.report.sources_unread == 1 && telling.report.damages == 0);
    options.from = (const char *[]){place->folder, "/dev/null", good};
    options.from_count = 3;
    FAILS(LMCS_INVALID, scrub_with(pool, &options, &telling));
    EXPECT(telling.report.sources_unread == 2 && telling.report.is_whole);
    options.from = (const char *[]){good, place->pool};
    FAILS(LMCS_INVALID, scrub_with(pool, &options, &telling));
    close_pool(pool);
    free_rows(states, COUNT);
}

static void from_another_pool(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct state *states[COUNT] = {NULL};
    char other[512], archive[512];
    struct lmcs_pool *pool = open_quiet(place->pool);
    place_path(place, "other", other);
    place_path(place, "archive", archive);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=none", &err)); /* other sources */
    take_rows(pool, states, COUNT, &rng);
    OK(lmcs_compact(pool, NULL, &err));
    dump_to(pool, archive, false);
    struct lmcs_pool *copy = open_quiet(other);
    int fd = open(archive, O_RDONLY | O_CLOEXEC);
    OK(lmcs_restore(copy, fd, NULL, NULL, &err));
    close(fd);
    close_pool(copy);
    damage_some(pool, place->pool);
    expect_repaired(pool, other, other);
    expect_all(pool, states, COUNT);
    close_pool(pool);
    free_rows(states, COUNT);
}

/* A hash and its own block: only another copy shows the right bytes. Copies have hashes behind a raw payload or in a
 * frame's header, in this pool, another, or an archive. */
static void hashes_from_elsewhere(void **state)
{
    struct place *place = *state;
    struct rng rng = {11};
    struct state *states[2] = {NULL};
    struct telling telling;
    char raw[512], coded[512], other[512];
    struct lmcs_pool *pool = open_quiet(place->pool);
    place_path(place, "raw", raw);
    place_path(place, "coded", coded);
    place_path(place, "other", other);
    take_rows(pool, states, 2, &rng);
    dump_to(pool, raw, false);
    struct lmcs_pool *copy = open_quiet(other);
    int fd = open(raw, O_RDONLY | O_CLOEXEC);
    OK(lmcs_restore(copy, fd, NULL, NULL, &err));
    close(fd);
    OK(lmcs_shelf_set_keep_raw(copy, "run", 1, &err));
    OK(lmcs_compact(copy, NULL, &err));
    EXPECT(record_of(copy, "run", 1, "moving").df.payload == LMCS_PAYLOAD_FRAME);
    dump_to(copy, coded, false);
    close_pool(copy);
    const char *sources[] = {NULL, raw, coded, other};
    for (int i = 0; i < 4; i++) {
        struct lmcs_content moving = record_of(pool, "run", 1, "moving");
        EXPECT(moving.df.payload == LMCS_PAYLOAD_RAW);
        damage_content(place->pool, &moving, (uint64_t)ROWS * ROW_BYTES + 16, 1);
        damage_content(place->pool, &moving, (1 << 20) + 5, 1);
        if (sources[i] != NULL) {
            expect_repaired(pool, sources[i], sources[i]);
        } else { /* nothing shows which bytes are right */
            FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
            EXPECT(telling.report.lost == 1 && telling.items[0].byte_count == states[0]->tensors[0].bytes);
            take_snapshot(pool, "twin", states[0], 0);
            expect_repaired(pool, NULL, "a copy in the pool");
            OK(lmcs_shelf_drop(pool, "twin", false, NULL, &err));
            OK(lmcs_compact(pool, NULL, &err));
        }
        expect_all(pool, states, 2);
    }
    close_pool(pool);
    free_rows(states, 2);
}

/* Writes of this size and larger ones arrive with a wrong byte. */
static size_t wrong_from = SIZE_MAX;

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    ssize_t written = syscall(SYS_pwrite64, fd, bytes, count, offset);
    if (count >= wrong_from && written > 1000) {
        const unsigned char wrong = ((const unsigned char *)bytes)[1000] ^ 1;
        syscall(SYS_pwrite64, fd, &wrong, 1, offset + 1000);
    }
    return written;
}

/* A delta can't be restored without its base; a keyframe of noise is stored raw, which takes more room. */
static void stored_raw_without_its_base(void **state)
{
    struct place *place = *state;
    struct rng rng = {12};
    struct state *first = calloc(1, sizeof *first);
    char archive[512];
    const uint64_t bytes = 1500000;
    struct lmcs_pool *pool = open_quiet(place->pool);
    place_path(place, "archive", archive);
    rng_fill(&rng, state_add(first, "noise", LMC_U8, 1, &bytes)->data, bytes);
    struct state *second = state_copy(first);
    rng_fill(&rng, second->tensors[0].data, 1000);
    OK(lmcs_shelf_set_keep_raw(pool, "run", 1, &err));
    take_snapshot(pool, "run", first, 1);
    dump_to(pool, archive, false);
    take_snapshot(pool, "run", second, 2);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_content delta = record_of(pool, "run", 1, "noise"), base = record_of(pool, "run", 2, "noise");
    EXPECT(delta.df.payload == LMCS_PAYLOAD_FRAME && delta.df.base_count == 1 && delta.bases[0] == base.id);
    damage_content(place->pool, &base, 0, 1 << 20);
    damage_content(place->pool, &delta, delta.df.stored_bytes / 2, 100);
    struct telling telling;
    /* What arrives wrong replaces nothing. */
    wrong_from = 1 << 20;
    EXPECT(repair_from(pool, archive, &telling) != LMCS_OK && telling.report.repaired == 0);
    wrong_from = SIZE_MAX;
    EXPECT(record_of(pool, "run", 1, "noise").df.payload == LMCS_PAYLOAD_FRAME);
    FAILS(LMCS_DAMAGED, repair_from(pool, archive, &telling));
    EXPECT(telling.report.lost == 1 && telling.report.repaired == 1);
    delta = record_of(pool, "run", 1, "noise");
    EXPECT(delta.df.payload == LMCS_PAYLOAD_RAW && delta.df.base_count == 0);
    expect_snapshot(pool, "run", 1, first);
    check_pool(pool);
    FAILS(LMCS_DAMAGED, scrub_with(pool, NULL, &telling));
    EXPECT(telling.count == 1 && telling.items[0].content == base.id);
    close_pool(pool);
    state_free(first);
    state_free(second);
}

static void what_parity_repairs(void **state)
{
    struct place *place = *state;
    struct rng rng = {6};
    struct state *states[COUNT] = {NULL};
    struct telling telling;
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=10+2", &err));
    take_rows(pool, states, COUNT, &rng);
    OK(repair_from(pool, NULL, &telling));
    check_pool(pool);
    struct lmcs_content moving = record_of(pool, "run", COUNT, "moving");
    EXPECT(moving.df.payload == LMCS_PAYLOAD_RAW && has_parity(pool, moving.id));
    EXPECT(pool_info(pool).parity_bytes > pool_info(pool).live_bytes / 8 &&
           pool_info(pool).parity_bytes < pool_info(pool).live_bytes / 4);
    /* Adjacent bytes up to two tenths, and the hashes at the end. */
    damage_content(place->pool, &moving, 333, moving.df.stored_bytes / 10);
    expect_repaired(pool, NULL, "parity");
    moving = record_of(pool, "run", COUNT, "moving");
    EXPECT(has_parity(pool, moving.id));
    damage_content(place->pool, &moving, moving.df.stored_bytes - 300000, 300000);
    expect_repaired(pool, NULL, "parity");
    /* Spread damage: one unit in a hundred, at most two of a stripe. */
    moving = record_of(pool, "run", COUNT, "moving");
    for (uint64_t at = 100; at < moving.df.stored_bytes; at += 101 * 4096)
        damage_content(place->pool, &moving, at, 2);
    expect_repaired(pool, NULL, "parity");
    bool found;
    struct lmcs_parity_record parity = parity_of(pool, moving.id, &found);
    EXPECT(found);
    moving = record_of(pool, "run", COUNT, "moving");
    turn_bytes(place->pool, parity.parts[0].offset + 8, 4);
    turn_bytes(place->pool, parity.parts[0].offset + parity.parts[0].bytes / 2, 4096);
    damage_content(place->pool, &moving, 2000, 10);
    OK(repair_from(pool, NULL, &telling));
    EXPECT(telling.count == 2 && telling.report.repaired == 2);
    EXPECT(strstr(telling.items[0].source, "parity") != NULL && strcmp(telling.items[1].source, "the tensor") == 0);
    check_pool(pool);
    expect_clean(pool);
    moving = record_of(pool, "run", COUNT, "moving");
    damage_content(place->pool, &moving, 0, moving.df.stored_bytes / 2);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    EXPECT(telling.report.lost == 1 && telling.items[0].state == LMCS_DAMAGE_LOST);
    check_pool(pool);
    for (int i = 0; i + 1 < COUNT; i++)
        expect_snapshot(pool, "run", (uint64_t)i + 1, states[i]);
    close_pool(pool);
    free_rows(states, COUNT);
}

static bool all_have_parity(struct lmcs_pool *pool, uint64_t first, uint64_t last)
{
    static const char *const names[] = {"moving", "still", "table", "small"};
    for (uint64_t i = first; i <= last; i++)
        for (int k = 0; k < 4; k++)
            if (!has_parity(pool, content_of(pool, "run", i, names[k])))
                return false;
    return true;
}

/* Parity is made after compaction, follows contents that are stored again, and goes with them. */
static void parity_follows_the_contents(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct state *states[COUNT], *now;
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=none", &err));
    take_rows(pool, states, COUNT, &rng);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(pool_info(pool).parity_bytes == 0);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=16+2", &err));
    FAILS(LMCS_INVALID, lmcs_shelf_set_policy(pool, "run", "parity=16", &err));
    FAILS(LMCS_INVALID, lmcs_shelf_set_policy(pool, "run", "parity=200+2", &err));
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    EXPECT(all_have_parity(pool, 1, COUNT - 4) && !all_have_parity(pool, COUNT - 3, COUNT));
    EXPECT(pool_info(pool).parity_bytes > 0);
    now = state_copy(states[COUNT - 1]);
    for (int i = COUNT; i < COUNT + 6; i++) {
        step_rows(now, &rng, i);
        take_snapshot(pool, "run", now, i);
        OK(lmcs_compact(pool, NULL, &err));
        check_pool(pool);
    }
    EXPECT(all_have_parity(pool, 1, COUNT + 2));
    for (uint64_t i = 1; i <= COUNT; i++) {
        struct lmcs_content content = record_of(pool, "run", i, "moving");
        damage_content(place->pool, &content, i % 2 ? 0 : content.df.stored_bytes - 2000, 2000);
    }
    expect_repaired(pool, NULL, "parity");
    expect_all(pool, states, COUNT);
    for (uint64_t i = 1; i <= COUNT + 1; i++) {
        OK(lmcs_snapshot_remove(pool, "run", i, false, NULL, &err));
        OK(lmcs_compact(pool, NULL, &err));
        check_pool(pool);
    }
    expect_clean(pool);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(pool_info(pool).parity_bytes == 0);
    check_pool(pool);
    close_pool(pool);
    state_free(now);
    free_rows(states, COUNT);
}

static void parity_of_all_sizes(void **state)
{
    struct place *place = *state;
    struct rng rng = {8};
    struct state *now = calloc(1, sizeof *now);
    static const uint64_t sizes[] = {1,     63,    64,    65,     127,     129,     1023,    1024,    1025,
                                     4095,  4096,  4097,  12288,  12289,   65535,   65536,   65537,   100000,
                                     49152, 49153, 49151, 262144, 1048576, 1048577, 1100000, 3145728, 3200001};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    for (int i = 0; i < SIZES; i++) {
        char name[32];
        snprintf(name, sizeof name, "s%d", i);
        struct held *held = state_add(now, name, LMC_U8, 1, &sizes[i]);
        rng_fill(&rng, held->data, held->bytes);
    }
    static const char *const policies[] = {"parity=3+1", "parity=12+3", "parity=128+16"};
    for (int p = 0; p < 3; p++) {
        struct telling telling;
        char path[512];
        place_path(place, policies[p], path);
        struct lmcs_pool *pool = open_quiet(path);
        take_snapshot(pool, "run", now, 0);
        OK(lmcs_shelf_set_policy(pool, "run", policies[p], &err));
        OK(repair_from(pool, NULL, &telling));
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < SIZES; i++) {
                char name[32];
                snprintf(name, sizeof name, "s%d", i);
                struct lmcs_content content = record_of(pool, "run", 1, name);
                uint64_t last = content.df.stored_bytes - 1;
                damage_content(path, &content, round == 0 ? last : rng_below(&rng, last + 1), 1);
            }
            expect_repaired(pool, NULL, "parity");
            expect_snapshot(pool, "run", 1, now);
        }
        close_pool(pool);
    }
    state_free(now);
}

static void from_the_other_replica(void **state)
{
    struct place *place = *state;
    struct rng rng = {9};
    struct state *states[COUNT] = {NULL};
    char set[512], first[512], second[512];
    place_path(place, "set", set);
    place_path(place, "first", first);
    place_path(place, "second", second);
    FILE *file = fopen(set, "w");
    fprintf(file, "PMEMPOOLSET\n160M %s\nREPLICA\n160M %s\n", first, second);
    fclose(file);
    struct lmcs_pool *pool = open_pool(set, LMCS_OPEN_CREATE, LMCS_NO_BACKGROUND);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=none", &err)); /* other sources */
    take_rows(pool, states, COUNT, &rng);
    OK(lmcs_compact(pool, NULL, &err));
    damage_some(pool, first);
    expect_repaired(pool, NULL, "the other replica");
    expect_all(pool, states, COUNT);
    /* Pages of metadata are read from the replica, and then repaired. */
    struct lmcs_txn txn;
    struct telling telling;
    OK(lmcs_txn_read(pool, &txn, &err));
    uint64_t pages[] = {txn.root.trees[LMCS_TREE_CONTENTS].ref.offset, txn.root.trees[LMCS_TREE_SPACE].ref.offset};
    lmcs_txn_end(&txn);
    close_pool(pool);
    for (int i = 0; i < 2; i++)
        turn_bytes(first, pages[i] + 1000, 3000);
    pool = open_pool(set, LMCS_OPEN_READ, 0);
    expect_all(pool, states, COUNT);
    FAILS(LMCS_DAMAGED, scrub_with(pool, NULL, &telling));
    close_pool(pool);
    pool = open_pool(set, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
    expect_all(pool, states, COUNT);
    OK(repair_from(pool, NULL, &telling));
    EXPECT(telling.count == 1 && telling.items[0].state == LMCS_DAMAGE_REPAIRED && telling.items[0].tensor[0] == '\0');
    expect_clean(pool);
    struct lmcs_content still = record_of(pool, "run", 1, "still");
    damage_content(first, &still, 100, 10);
    damage_content(second, &still, 1 << 20, 10);
    expect_repaired(pool, NULL, "the other replica");
    expect_all(pool, states, COUNT);
    close_pool(pool);
    free_rows(states, COUNT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(hashes_from_the_blocks),
        IN_MEMORY(the_same_tensor_stored_twice),
        IN_MEMORY(a_block_that_a_neighbour_has),
        IN_MEMORY(from_an_archive),
        IN_MEMORY(past_a_bad_source),
        IN_MEMORY(from_another_pool),
        IN_MEMORY(hashes_from_elsewhere),
        ON_DISK(stored_raw_without_its_base),
        ON_BOTH(what_parity_repairs),
        IN_MEMORY(parity_follows_the_contents),
        IN_MEMORY(parity_of_all_sizes),
        ON_DISK(from_the_other_replica),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
