/* SPDX-License-Identifier: BSD-3-Clause */
/* test_repair_room.c - repair and parity with little room. */
/* ctest: timeout=600 */
#include "test_repair_support.h"

static void no_room_to_repair_in(void **state)
{
    struct place *place = *state;
    struct rng rng = {10};
    struct state *first = make_rows(&rng), *filler = calloc(1, sizeof *filler);
    struct telling telling;
    const uint64_t bytes = 1 << 20;
    struct lmcs_pool *pool = open_limited(place->pool, 24 << 20);
    struct held *held = state_add(filler, "filler", LMC_U8, 1, &bytes);
    take_snapshot(pool, "run", first, 0);
    uint64_t number = 0;
    do
        rng_fill(&rng, held->data, held->bytes);
    while (try_snapshot(pool, "filler", filler, 0, &number, &err) == LMCS_OK);
    struct lmcs_content still = record_of(pool, "run", 1, "still");
    damage_content(place->pool, &still, (uint64_t)ROWS * ROW_BYTES + 3, 1);
    enum lmcs_status status = repair_from(pool, NULL, &telling);
    EXPECT(status == LMCS_FULL || status == LMCS_OK); /* the compactor's share may just do */
    check_pool(pool);
    OK(lmcs_shelf_drop(pool, "filler", false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    if (status == LMCS_FULL)
        expect_repaired(pool, NULL, "its own blocks");
    expect_snapshot(pool, "run", 1, first);
    close_pool(pool);
    state_free(first);
    state_free(filler);
}

static struct state *make_noise(struct rng *rng)
{
    const uint64_t shape = (uint64_t)2 << 20;
    struct state *noise = calloc(1, sizeof *noise);
    rng_fill(rng, state_add(noise, "noise", LMC_U8, 1, &shape)->data, shape);
    return noise;
}

static void take_noise(struct lmcs_pool *pool, int count, uint64_t seed)
{
    struct rng rng = {seed};
    for (int i = 0; i < count; i++) {
        struct state *noise = make_noise(&rng);
        take_snapshot(pool, "run", noise, i);
        state_free(noise);
    }
}

static uint64_t taken_bytes(struct lmcs_pool *pool)
{
    struct lmcs_txn txn;
    OK(lmcs_txn_read(pool, &txn, &err));
    uint64_t slabs = txn.root.slab_bytes;
    lmcs_txn_end(&txn);
    return slabs + lmcs_space_used(pool);
}

/* Snapshots over a budget go before parity is made; parity leaves the compactor its share. */
static void parity_and_a_budget(void **state)
{
    struct place *place = *state;
    const uint64_t limit = (uint64_t)48 << 20;
    struct lmcs_pool *pool = open_limited(place->pool, limit);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=last:4 budget=50% parity=1+1 grace=none", &err));
    take_noise(pool, 14, 1);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(shelf_info(pool, "run").snapshot_count < 12 && pool_info(pool).live_bytes <= limit / 2);
    EXPECT(pool_info(pool).parity_bytes > 0);
    OK(lmcs_shelf_set_policy(pool, "run", "keep=all budget=none", &err));
    take_noise(pool, 8, 2);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(!has_parity(pool, content_of(pool, "run", 21, "noise")));
    EXPECT(taken_bytes(pool) <= limit - limit / 64);
    verify_pool(pool);
    close_pool(pool);
}

static void no_room_for_parity(void **state)
{
    struct place *place = *state;
    struct telling telling;
    bool found;
    struct lmcs_pool *pool = open_limited(place->pool, (uint64_t)48 << 20);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=1+1 keep_raw=1", &err));
    take_noise(pool, 4, 3);
    OK(lmcs_compact(pool, NULL, &err));
    struct lmcs_parity_record parity = parity_of(pool, content_of(pool, "run", 1, "noise"), &found);
    struct lmcs_content last = record_of(pool, "run", 4, "noise");
    EXPECT(found);
    uint64_t charged = 0;
    for (uint64_t bytes = (uint64_t)32 << 20; bytes >= 4096; bytes /= 2)
        while (lmcs_space_charge(pool, bytes, &err) == LMCS_OK)
            charged += bytes;
    turn_bytes(place->pool, parity.parts[0].offset + 100000, 10);
    damage_content(place->pool, &last, 5, 1);
    FAILS(LMCS_FULL, repair_from(pool, NULL, &telling));
    EXPECT(telling.count == 2 && telling.report.contents == 4);
    EXPECT(telling.items[0].state == LMCS_DAMAGE_FOUND && telling.items[1].state != LMCS_DAMAGE_REPAIRED);
    lmcs_space_count(pool, -(int64_t)charged);
    damage_content(place->pool, &last, 5, 1);
    OK(repair_from(pool, NULL, &telling));
    EXPECT(telling.count == 1 && telling.items[0].state == LMCS_DAMAGE_REPAIRED);
    expect_clean(pool);
    close_pool(pool);
}

struct asked {
    unsigned calls;
    uint64_t bytes;
};

static bool count_asked(void *context, uint64_t bytes)
{
    struct asked *asked = context;
    asked->calls++;
    asked->bytes += bytes;
    return true;
}

/* A content too large for its parity neither delays smaller ones nor is read; it is tried again when there is room. */
static void parity_that_finds_no_room(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct lmcs_parity_wait wait = {.wait_ns = 0};
    struct asked asked = {.calls = 0};
    const struct lmcs_parity_turn turn = {.all = true, .go_on = count_asked, .context = &asked, .wait = &wait};
    const uint64_t bytes[] = {(uint64_t)8 << 20, 100000, (uint64_t)9 << 20, 200000};
    static const char *const names[] = {"large", "small", "larger", "middle"};
    struct state *noise = calloc(1, sizeof *noise);
    for (int i = 0; i < 4; i++)
        rng_fill(&rng, state_add(noise, names[i], LMC_U8, 1, &bytes[i])->data, bytes[i]);
    struct lmcs_pool *pool = open_limited(place->pool, (uint64_t)64 << 20);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=1+1", &err));
    take_snapshot(pool, "run", noise, 1);
    uint64_t charged = 0;
    for (uint64_t step = (uint64_t)1 << 20; lmcs_space_free_bytes(pool) > (uint64_t)6 << 20; charged += step)
        OK(lmcs_space_charge(pool, step, &err));
    bool worked;
    FAILS(LMCS_FULL, lmcs_parity_turn(pool, &turn, &worked, &err));
    EXPECT(worked && asked.bytes < 400000 && err.bytes_needed > 0);
    for (int i = 0; i < 4; i++)
        EXPECT(has_parity(pool, content_of(pool, "run", 1, names[i])) == (i % 2 == 1));
    asked = (struct asked){.calls = 0};
    OK(lmcs_parity_turn(pool, &turn, &worked, &err));
    EXPECT(!worked && asked.calls == 0);
    uint64_t waits = wait.wait_ns;
    wait.since_ns -= waits;
    FAILS(LMCS_FULL, lmcs_parity_turn(pool, &turn, &worked, &err));
    EXPECT(!worked && asked.calls > 0 && asked.bytes == 0 && wait.wait_ns == 2 * waits);
    check_pool(pool);
    lmcs_space_count(pool, -(int64_t)charged);
    OK(lmcs_parity_turn(pool, &turn, &worked, &err));
    EXPECT(worked && wait.wait_ns == 0);
    for (int i = 0; i < 4; i++)
        EXPECT(has_parity(pool, content_of(pool, "run", 1, names[i])));
    expect_clean(pool);
    close_pool(pool);
    state_free(noise);
}

static void parity_of_what_is_damaged(void **state)
{
    struct place *place = *state;
    struct lmcs_parity_wait wait = {.wait_ns = 0};
    struct asked asked = {.calls = 0};
    const struct lmcs_parity_turn turn = {.all = true, .go_on = count_asked, .context = &asked, .wait = &wait};
    bool worked;
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=1+1", &err));
    take_noise(pool, 2, 6);
    struct lmcs_content first = record_of(pool, "run", 1, "noise"), second = record_of(pool, "run", 2, "noise");
    damage_content(place->pool, &first, 5, 1);
    OK(lmcs_parity_turn(pool, &turn, &worked, &err));
    EXPECT(worked && !has_parity(pool, first.id) && has_parity(pool, second.id) && wait.wait_ns > 0);
    asked = (struct asked){.calls = 0};
    OK(lmcs_parity_turn(pool, &turn, &worked, &err));
    EXPECT(!worked && asked.bytes == 0);
    take_noise(pool, 1, 7); /* the wait delays no links */
    uint64_t third = content_of(pool, "run", 3, "noise");
    const uint64_t waits = wait.wait_ns;
    wait.free_bytes = UINT64_MAX;
    OK(lmcs_parity_before(pool, &turn, &(struct lmcs_policy){.parity_of_bases = true}, &third, 1, &err));
    EXPECT(!has_parity(pool, third)); /* all parity gave way */
    wait.free_bytes = lmcs_space_free_bytes(pool);
    OK(lmcs_parity_before(pool, &turn, &(struct lmcs_policy){.parity_of_bases = true}, &third, 1, &err));
    EXPECT(has_parity(pool, third) && wait.wait_ns == waits);
    damage_content(place->pool, &first, 5, 1);
    wait.since_ns -= wait.wait_ns;
    OK(lmcs_parity_turn(pool, &turn, &worked, &err));
    EXPECT(worked && has_parity(pool, first.id) && wait.wait_ns == 0);
    expect_clean(pool);
    close_pool(pool);
}

/* Parity of more bytes than a batch reads, of contents given twice. */
static void parity_before_of_many_bytes(void **state)
{
    struct place *place = *state;
    struct rng rng = {8};
    struct asked asked = {.calls = 0};
    const struct lmcs_parity_turn turn = {.go_on = count_asked, .context = &asked};
    const struct lmcs_policy policy = {.parity_of_bases = true};
    const uint64_t bytes[] = {(uint64_t)64 << 20, 100000, 200000};
    static const char *const names[] = {"large", "small", "middle"};
    uint64_t contents[6];
    struct state *noise = calloc(1, sizeof *noise);
    for (int i = 0; i < 3; i++)
        rng_fill(&rng, state_add(noise, names[i], LMC_U8, 1, &bytes[i])->data, bytes[i]);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", noise, 1);
    for (int i = 0; i < 6; i++)
        contents[i] = content_of(pool, "run", 1, names[i % 3]);
    EXPECT(contents[0] < contents[1] && contents[0] < contents[2]);
    OK(lmcs_parity_before(pool, &turn, &policy, contents, 6, &err));
    for (int i = 0; i < 6; i++)
        EXPECT(has_parity(pool, contents[i]));
    EXPECT(asked.calls == 3);
    expect_clean(pool);
    close_pool(pool);
    state_free(noise);
}

static void parity_waits_for_repair(void **state)
{
    struct place *place = *state;
    struct telling telling;
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_shelf_set_policy(pool, "run", "parity=1+1 keep_raw=1", &err));
    take_noise(pool, 3, 4);
    struct lmcs_content first = record_of(pool, "run", 1, "noise"), second = record_of(pool, "run", 2, "noise");
    damage_content(place->pool, &first, 5, 1);
    OK(lmcs_compact(pool, NULL, &err));
    EXPECT(!has_parity(pool, first.id) && has_parity(pool, second.id) && pool_info(pool).lost_contents == 1);
    damage_content(place->pool, &first, 5, 1);
    OK(repair_from(pool, NULL, &telling));
    EXPECT(pool_info(pool).lost_contents == 0 && has_parity(pool, first.id));
    expect_clean(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_DISK(no_room_to_repair_in),          IN_MEMORY(parity_and_a_budget),
        IN_MEMORY(no_room_for_parity),          IN_MEMORY(parity_that_finds_no_room),
        IN_MEMORY(parity_of_what_is_damaged),   IN_MEMORY(parity_waits_for_repair),
        IN_MEMORY(parity_before_of_many_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
