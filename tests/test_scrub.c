/* SPDX-License-Identifier: BSD-3-Clause */
/* test_scrub.c - a scrub finds damage at its place and names everything affected. Only irreparable blocks are lost. */
/* ctest: timeout=600 */
#include "test_scrub_support.h"

#include "records/shelf.h"
#include "repair/scrub.h"

enum { COUNT = 9 };

static void nothing_is_found_in_a_sound_pool(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct state *states[COUNT], *mixed = state_mixed(&rng, 40, 9000);
    struct lmcs_pool *pool = open_quiet(place->pool);
    EXPECT(pool_info(pool).scrubbed_ns == 0);
    expect_clean(pool);
    take_rows(pool, states, COUNT, &rng);
    take_snapshot(pool, "mixed", mixed, 1);
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t before = lmcs_now_ns();
    expect_clean(pool);
    struct telling telling;
    OK(repair_from(pool, NULL, &telling));
    struct lmcs_pool_info info = pool_info(pool);
    EXPECT(telling.count == 0 && telling.report.contents == info.content_count);
    EXPECT(info.scrubbed_ns >= before && info.scrub_share == 0 && info.lost_contents == 0 && info.scrub_found == 0);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    EXPECT(pool_info(pool).scrubbed_ns == info.scrubbed_ns);
    expect_clean(pool);
    FAILS(LMCS_READ_ONLY, repair_from(pool, NULL, &telling));
    close_pool(pool);
    state_free(mixed);
    free_rows(states, COUNT);
}

static void all_that_share_it_are_named(void **state)
{
    struct place *place = *state;
    struct rng rng = {2};
    struct state *states[COUNT];
    struct telling telling;
    struct lmcs_snapshot *snapshot;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, COUNT, &rng);
    OK(lmcs_snapshot_open(pool, "run@4", &snapshot, &err));
    OK(lmcs_shelf_fork(snapshot, "fork", &err));
    lmcs_snapshot_close(snapshot);
    OK(lmcs_snapshot_remove(pool, "run", 6, false, NULL, &err));
    struct lmcs_content still = record_of(pool, "run", 1, "still");
    EXPECT(still.df.payload == LMCS_PAYLOAD_RAW);
    damage_content(place->pool, &still, (1 << 20) + 5000, 1);
    FAILS(LMCS_DAMAGED, scrub_with(pool, NULL, &telling));
    EXPECT(telling.count == 1 && telling.report.repaired == 0 && telling.report.lost == 0);
    const struct told *told = &telling.items[0];
    EXPECT(told->state == LMCS_DAMAGE_FOUND && strcmp(told->tensor, "still") == 0 && told->content == still.id);
    EXPECT(told->first_byte == 1 << 20 && told->byte_count == 1 << 20);
    EXPECT(told->first_element == 1 << 18 && told->element_count == 1 << 18);
    EXPECT(told->first_row == BLOCK_ROWS && told->row_count == BLOCK_ROWS);
    EXPECT(strcmp(told->holders, "run@1..9 still; fork@1..1 still; ") == 0);
    EXPECT(pool_info(pool).scrub_found == 1);
    const char *inside[] = {"fork", "run@5", "run@7..9"};
    for (size_t i = 0; i < 3; i++) {
        struct lmcs_scrub_options options;
        lmcs_scrub_options_init(&options);
        options.addresses = &inside[i];
        options.address_count = 1;
        FAILS(LMCS_DAMAGED, scrub_with(pool, &options, &telling));
        EXPECT(telling.count == 1);
    }
    close_pool(pool);
    free_rows(states, COUNT);
}

static void deltas_that_rest_on_it_are_named(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct state *states[COUNT];
    struct telling telling;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, COUNT, &rng);
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t number = 0;
    struct lmcs_content base, delta;
    for (uint64_t i = 1; number == 0 && i < COUNT; i++) {
        delta = record_of(pool, "run", i, "moving");
        number = delta.df.base_count > 0 ? i : 0;
    }
    EXPECT(number != 0);
    base = content_record(pool, delta.bases[0]);
    damage_content(place->pool, &base, base.df.payload == LMCS_PAYLOAD_RAW ? 10 : base.df.stored_bytes - 1, 1);
    FAILS(LMCS_DAMAGED, scrub_with(pool, NULL, &telling));
    EXPECT(telling.count == 1 && telling.items[0].content == base.id);
    size_t unreadable = 0;
    char named[512] = "";
    for (uint64_t i = 1; i <= COUNT; i++) {
        char address[32];
        snprintf(address, sizeof address, "run@%llu", (unsigned long long)i);
        const struct told *told = &telling.items[0];
        const struct held *held = &states[i - 1]->tensors[0];
        enum lmcs_status status = read_tensor(pool, address, held, told->first_byte, told->byte_count);
        EXPECT(status == LMCS_OK || status == LMCS_DAMAGED);
        unreadable += status == LMCS_DAMAGED;
        OK(read_tensor(pool, address, held, told->first_byte > 0 ? 0 : 2 << 20, 1000));
    }
    for (const char *at = telling.items[0].holders; *at != '\0'; at = strchr(at, ';') + 2) {
        unsigned long long first, last;
        EXPECT(sscanf(at, "run@%llu..%llu %511[^;]", &first, &last, named) == 3 && strcmp(named, "moving") == 0);
        EXPECT(unreadable >= last - first + 1);
        unreadable -= last - first + 1;
    }
    EXPECT(unreadable == 0);
    char address[32];
    const char *which = address;
    struct lmcs_scrub_options options;
    lmcs_scrub_options_init(&options);
    snprintf(address, sizeof address, "run@%llu", (unsigned long long)number);
    options.addresses = &which;
    options.address_count = 1;
    FAILS(LMCS_DAMAGED, scrub_with(pool, &options, &telling));
    close_pool(pool);
    free_rows(states, COUNT);
}

static void metadata_is_looked_at(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    struct state *states[3];
    struct telling telling;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, 3, &rng);
    struct lmcs_txn txn;
    OK(lmcs_txn_read(pool, &txn, &err));
    uint64_t page = txn.root.trees[LMCS_TREE_IDENTITY_COUNTS].ref.offset;
    lmcs_txn_end(&txn);
    close_pool(pool);
    turn_bytes(place->pool, page + 2000, 8);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    FAILS(LMCS_DAMAGED, scrub_with(pool, NULL, &telling));
    EXPECT(telling.count >= 1 && telling.items[0].tensor[0] == '\0');
    close_pool(pool);
    free_rows(states, 3);
}

/* A page that is unreadable may have more holders of a damaged content. */
static void holders_that_are_unknown_are_mentioned(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    struct state *states[3];
    struct telling telling;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    struct lmcs_txn txn;
    bool found;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, 3, &rng);
    struct lmcs_content still = record_of(pool, "run", 1, "still");
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_shelf_find(&txn, "run", &shelf, &found, &err));
    OK(lmcs_record_get(&txn, &shelf, 2, &record, &found, &err));
    lmcs_txn_end(&txn);
    damage_content(place->pool, &still, 5000, 1);
    FAILS(LMCS_DAMAGED, scrub_with(pool, NULL, &telling));
    EXPECT(telling.count == 1 && strstr(telling.items[0].what, "more snapshots") == NULL);
    EXPECT(strcmp(telling.items[0].holders, "run@1..3 still; ") == 0);
    close_pool(pool);
    turn_bytes(place->pool, record.df.manifest.offset + 2000, 8);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    FAILS(LMCS_DAMAGED, scrub_with(pool, NULL, &telling));
    const struct told *last = &telling.items[telling.count - 1];
    EXPECT(telling.count == 2 && strstr(last->what, "; more snapshots may need it") != NULL);
    EXPECT(strstr(last->holders, "run@1") != NULL && strcmp(last->holders, "run@1..3 still; ") != 0);
    close_pool(pool);
    free_rows(states, 3);
}

static void samples_cover_everything(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct state *states[COUNT];
    struct telling telling;
    struct lmcs_scrub_options options;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, COUNT, &rng);
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t contents = pool_info(pool).content_count, seen = 0, bytes = 0;
    lmcs_scrub_options_init(&options);
    options.sample_share = 0.1;
    unsigned runs = 0;
    do {
        OK(scrub_with(pool, &options, &telling));
        EXPECT(telling.report.contents > 0 && telling.report.contents < contents);
        seen += telling.report.contents;
        bytes += telling.report.bytes_read;
        runs++;
        if (!telling.report.is_whole)
            EXPECT(pool_info(pool).scrub_share > 0 && pool_info(pool).scrubbed_ns == 0);
        if (runs % 2 == 0) { /* the position is stored */
            close_pool(pool);
            pool = open_quiet(place->pool);
        }
    } while (!telling.report.is_whole && runs < 50);
    EXPECT(seen == contents && runs > 2 && runs <= 11);
    EXPECT(bytes < pool_info(pool).live_bytes);
    EXPECT(pool_info(pool).scrubbed_ns != 0 && pool_info(pool).scrub_share == 0);
    options.sample_share = 0;
    options.sample_bytes = 1;
    OK(scrub_with(pool, &options, &telling));
    EXPECT(telling.report.contents == 1);
    options.sample_share = 1.5;
    FAILS(LMCS_INVALID, scrub_with(pool, &options, &telling));
    lmcs_scrub_options_init(&options);
    const char *source = "nobody asks for it";
    options.from = &source;
    options.from_count = 1;
    FAILS(LMCS_INVALID, scrub_with(pool, &options, &telling));
    close_pool(pool);
    free_rows(states, COUNT);
}

static bool stop_at_once(void *context, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    EXPECT(done <= total);
    return ++*(int *)context < 1;
}

static void it_can_be_held_back_and_stopped(void **state)
{
    struct place *place = *state;
    struct rng rng = {6};
    struct state *states[3];
    struct lmcs_scrub_report report;
    struct lmcs_scrub_options options;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, 3, &rng);
    lmcs_scrub_options_init(&options);
    options.rate_bytes = 64 << 20;
    uint64_t begun = lmcs_now_ns();
    OK(lmcs_scrub(pool, &options, NULL, NULL, NULL, &report, &err));
    double seconds = (double)(lmcs_now_ns() - begun) / 1e9;
    EXPECT(report.bytes_read > 10 << 20 && seconds >= 0.9 * (double)report.bytes_read / (64 << 20));
    int calls = 0;
    struct lmcs_progress progress = {stop_at_once, &calls};
    options.rate_bytes = 1000;
    FAILS(LMCS_CANCELLED, lmcs_scrub(pool, &options, NULL, NULL, &progress, &report, &err));
    close_pool(pool);
    free_rows(states, 3);
}

static bool says(const char *words)
{
    return strstr(err.message, words) != NULL;
}

static void what_is_lost_is_said_and_the_rest_is_read(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct state *states[COUNT];
    struct telling telling;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, COUNT, &rng);
    struct lmcs_content still = record_of(pool, "run", 9, "still");
    const struct held *held = &states[8]->tensors[1];
    damage_content(place->pool, &still, (2 << 20) + 77, 3);
    OK(view_tensor(pool, "run@9", "still"));
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    EXPECT(telling.count == 1 && telling.items[0].state == LMCS_DAMAGE_LOST && telling.report.lost == 1);
    EXPECT(pool_info(pool).lost_contents == 1);
    check_pool(pool);
    for (int again = 0; again < 2; again++) {
        FAILS(LMCS_DAMAGED, view_tensor(pool, "run@9", "still"));
        EXPECT(says("\"still\"") && says("rows 512 to 575 of 576 (elements 524288 to 589823)"));
        FAILS(LMCS_DAMAGED, read_tensor(pool, "run@9", held, 0, held->bytes));
        EXPECT(says("rows 512 to 575 of 576"));
        FAILS(LMCS_DAMAGED, read_tensor(pool, "run@2", held, 560 * ROW_BYTES, ROW_BYTES));
        EXPECT(says("rows 512 to 575 of 576"));
        OK(read_tensor(pool, "run@9", held, 0, 512 * ROW_BYTES));
        OK(view_tensor(pool, "run@9", "moving"));
        OK(view_tensor(pool, "run@9", "small"));
        close_pool(pool);
        pool = open_pool(place->pool, again == 0 ? LMCS_OPEN_READ : LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
    }
    FAILS(LMCS_DAMAGED, scrub_with(pool, NULL, &telling));
    EXPECT(telling.count == 1 && telling.items[0].state == LMCS_DAMAGE_LOST);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    EXPECT(telling.report.lost == 1);
    EXPECT(take_snapshot(pool, "run", states[8], 9) == 10);
    EXPECT(content_of(pool, "run", 10, "still") != still.id);
    EXPECT(content_of(pool, "run", 10, "moving") == content_of(pool, "run", 9, "moving"));
    expect_snapshot(pool, "run", 10, states[8]);
    OK(repair_from(pool, NULL, &telling));
    EXPECT(telling.count == 1 && telling.items[0].state == LMCS_DAMAGE_REPAIRED && telling.report.lost == 0);
    expect_clean(pool);
    for (uint64_t i = 1; i <= COUNT; i++)
        expect_snapshot(pool, "run", i, states[i - 1]);
    close_pool(pool);
    free_rows(states, COUNT);
}

/* An archive has all other snapshots, or dump fails. */
static void dump_without_what_is_lost(struct place *place, struct lmcs_pool *pool, struct state **states)
{
    char path[512], restored[512];
    struct lmcs_dump_options options;
    struct lmcs_transfer_report report;
    place_path(place, "archive", path);
    place_path(place, "restored", restored);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    lmcs_dump_options_init(&options);
    FAILS(LMCS_DAMAGED, lmcs_dump_with(pool, &options, fd, NULL, NULL, &err));
    EXPECT(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    options.skip_lost = true;
    OK(lmcs_dump_with(pool, &options, fd, NULL, &report, &err));
    EXPECT(report.snapshots_lost == 2 && report.snapshots == shelf_info(pool, "run").snapshot_count - 2);
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    struct lmcs_pool *other = open_quiet(restored);
    OK(lmcs_restore(other, fd, NULL, NULL, &err));
    for (uint64_t i = 1; i <= COUNT; i++)
        if (i != 4 && i != 8)
            expect_snapshot(other, "run", i, states[i - 1]);
    verify_pool(other);
    close_pool(other);
    close(fd);
}

static void life_goes_on_around_it(void **state)
{
    struct place *place = *state;
    struct rng rng = {8};
    struct state *states[COUNT], *now;
    struct telling telling;
    struct lmcs_snapshot *snapshot;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, COUNT, &rng);
    struct lmcs_content lost = record_of(pool, "run", 4, "moving"), next = record_of(pool, "run", 8, "moving");
    damage_content(place->pool, &lost, 100, 1);
    damage_content(place->pool, &next, 1 << 20, 1);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    EXPECT(telling.count == 2 && pool_info(pool).lost_contents == 2);
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    EXPECT(content_record(pool, lost.id).df.payload == LMCS_PAYLOAD_RAW);
    EXPECT(content_record(pool, lost.id).df.base_uses == 0 && content_record(pool, next.id).df.base_uses == 0);
    now = state_copy(states[8]);
    for (int i = 10; i < 20; i++) {
        step_rows(now, &rng, i);
        take_snapshot(pool, "run", now, i);
        OK(lmcs_compact(pool, NULL, &err));
    }
    for (uint64_t i = 1; i <= COUNT; i++)
        if (i != 4 && i != 8)
            expect_snapshot(pool, "run", i, states[i - 1]);
    dump_without_what_is_lost(place, pool, states);
    OK(lmcs_snapshot_open(pool, "run@4", &snapshot, &err));
    OK(lmcs_shelf_fork(snapshot, "fork", &err));
    lmcs_snapshot_close(snapshot);
    check_pool(pool);
    FAILS(LMCS_DAMAGED, view_tensor(pool, "fork@1", "moving"));
    /* The record ends with the last snapshot of the content. */
    OK(lmcs_snapshot_remove(pool, "run", 8, false, NULL, &err));
    EXPECT(pool_info(pool).lost_contents == 1);
    OK(lmcs_snapshot_remove(pool, "run", 4, false, NULL, &err));
    EXPECT(pool_info(pool).lost_contents == 1);
    OK(lmcs_shelf_drop(pool, "fork", false, NULL, &err));
    EXPECT(pool_info(pool).lost_contents == 0);
    expect_clean(pool);
    close_pool(pool);
    state_free(now);
    free_rows(states, COUNT);
}

/* Blocks that were read before a scrub recorded them as lost, and a payload at the pool's first byte. */
static void lost_blocks_are_never_read(void **state)
{
    const struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct rng rng = {17};
    struct state *states[1];
    take_rows(pool, states, 1, &rng);
    const struct held *still = &states[0]->tensors[1];
    struct lmcs_content content = record_of(pool, "run", 1, "still");
    struct lmcs_snapshot *snapshot;
    struct lmcs_scrub_report report;
    struct lmcs_txn txn;
    unsigned char *read = malloc(still->bytes);
    EXPECT(read != NULL);
    OK(lmcs_snapshot_find(pool, "run", "1", &snapshot, &err));
    OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, "still", read, still->bytes, &err));
    turn_bytes(place->pool, content.parts[0].offset + 100, 64);
    struct lmcs_scrub_options options;
    lmcs_scrub_options_init(&options);
    options.repair = true;
    FAILS(LMCS_DAMAGED, lmcs_scrub(pool, &options, NULL, NULL, NULL, &report, &err));
    EXPECT(report.lost == 1);
    FAILS(LMCS_DAMAGED, lmcs_snapshot_read(snapshot, LMCS_TENSOR, "still", read, still->bytes, &err));
    FAILS(LMCS_DAMAGED, lmcs_snapshot_read_range(snapshot, LMCS_TENSOR, "still", 0, read, 4096, &err));
    uint64_t sound = (uint64_t)BLOCK_ROWS * ROW_BYTES;
    OK(lmcs_snapshot_read_range(snapshot, LMCS_TENSOR, "still", sound, read, 4096, &err));
    EXPECT(memcmp(read, still->data + sound, 4096) == 0);
    content = record_of(pool, "run", 1, "table");
    content.parts[0].offset = 0;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_content_put(&txn, &content, &err));
    OK(lmcs_txn_commit(&txn, &err));
    FAILS(LMCS_DAMAGED, lmcs_snapshot_read_range(snapshot, LMCS_TENSOR, "table", 0, read, 4096, &err));
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
    free(read);
    free_rows(states, 1);
}

/* The compactor must not use undetected damage as a base, nor give up raw bytes for it. */
static void the_compactor_rests_nothing_on_damage(void **state)
{
    struct place *place = *state;
    struct rng rng = {9};
    struct state *states[COUNT];
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, COUNT, &rng);
    uint64_t ids[COUNT];
    for (uint64_t i = 1; i <= COUNT; i++)
        ids[i - 1] = content_of(pool, "run", i, "moving");
    for (uint64_t i = 6; i <= 9; i++) { /* all possible bases of run@1 to run@5, with one sound block each */
        struct lmcs_content content = content_record(pool, ids[i - 1]);
        damage_content(place->pool, &content, 300, 1);
    }
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    for (uint64_t i = 6; i <= 9; i++)
        EXPECT(content_record(pool, ids[i - 1]).df.base_uses == 0);
    for (uint64_t i = 1; i <= 5; i++)
        expect_snapshot(pool, "run", i, states[i - 1]);
    EXPECT(pool_info(pool).lost_contents > 0);
    EXPECT(storage_of(pool, "run", 1).raw_contents == 0 || content_record(pool, ids[0]).df.payload != 0);
    close_pool(pool);
    free_rows(states, COUNT);
}

static bool wait_for(bool (*is_so)(struct lmcs_pool *pool), struct lmcs_pool *pool)
{
    for (int i = 0; i < 25000; i++) {
        if (is_so(pool))
            return true;
        usleep(10000);
    }
    return false;
}

static bool is_lost_noted(struct lmcs_pool *pool)
{
    struct lmcs_pool_info info = pool_info(pool);
    return info.lost_contents == 1 && info.scrub_found > 0;
}

static bool is_scrubbed(struct lmcs_pool *pool)
{
    return pool_info(pool).scrubbed_ns > 0;
}

static void the_background_scrubs_when_asked(void **state)
{
    struct place *place = *state;
    struct rng rng = {10};
    struct state *states[3];
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_rows(pool, states, 3, &rng);
    OK(lmcs_shelf_set_policy(pool, "run", "scrub=1s", &err));
    EXPECT(strstr(shelf_info(pool, "run").policy, "scrub=1s") != NULL);
    FAILS(LMCS_INVALID, lmcs_shelf_set_policy(pool, "run", "scrub=soon", &err));
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_WRITE, 0);
    EXPECT(wait_for(is_scrubbed, pool));
    struct lmcs_content still = record_of(pool, "run", 1, "still");
    damage_content(place->pool, &still, 1000, 1);
    EXPECT(wait_for(is_lost_noted, pool));
    FAILS(LMCS_DAMAGED, view_tensor(pool, "run@2", "still"));
    OK(lmcs_shelf_set_policy(pool, "run", "scrub=none", &err));
    close_pool(pool);
    free_rows(states, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(nothing_is_found_in_a_sound_pool),
        IN_MEMORY(all_that_share_it_are_named),
        IN_MEMORY(deltas_that_rest_on_it_are_named),
        ON_DISK(metadata_is_looked_at),
        IN_MEMORY(holders_that_are_unknown_are_mentioned),
        IN_MEMORY(samples_cover_everything),
        ON_DISK(it_can_be_held_back_and_stopped),
        IN_MEMORY(what_is_lost_is_said_and_the_rest_is_read),
        ON_BOTH(life_goes_on_around_it),
        IN_MEMORY(lost_blocks_are_never_read),
        IN_MEMORY(the_compactor_rests_nothing_on_damage),
        ON_BOTH(the_background_scrubs_when_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
