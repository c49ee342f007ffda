/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_forged.c - pools with valid checksums and wrong records, forged by the store's own transactions.
 *
 * Reading, opening and writing end soon, with LMCS_DAMAGED or the stored bytes, and stay in bounds.
 */
#include "test_scrub_support.h"

#include <sys/wait.h>

#include "compact/parity.h"
#include "pages/tree.h"
#include "records/holders.h"
#include "records/shelf.h"
#include "repair/scrub.h"
#include "shelves/shelves.h"

enum { SECONDS = UNDER_SANITIZER ? 60 : 20 };

static uint64_t save(struct lmcs_pool *pool, const char *const *names, const uint64_t *bytes, size_t count,
                     unsigned char first)
{
    struct lmcs_capture *capture;
    uint64_t number;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    for (size_t i = 0; i < count; i++) {
        struct lmcs_tensor tensor = {.name = names[i], .dtype = LMC_U8, .ndim = 1, .shape = &bytes[i]};
        unsigned char *data = calloc(1, bytes[i] + 1);
        const void *from = data;
        EXPECT(data != NULL);
        data[0] = (unsigned char)(first + i);
        OK(lmcs_capture_put(capture, &tensor, &from, 1, &err));
        free(data);
    }
    OK(lmcs_capture_commit(capture, NULL, &number, &err));
    return number;
}

static uint64_t save_one(struct lmcs_pool *pool, unsigned char first)
{
    const char *name = "t";
    const uint64_t bytes = 1;
    return save(pool, &name, &bytes, 1, first);
}

static void expect_soon(int (*work)(void *argument), void *argument)
{
    int status = run_child(work, argument, SECONDS);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Moves a tensor's payload onto another's, plus some bytes. */
static void lay_upon(struct lmcs_pool *pool, const char *name, const char *upon, uint64_t bytes_on)
{
    struct lmcs_content content, below;
    struct lmcs_txn txn;
    uint64_t id = content_of(pool, "run", 1, name), below_id = content_of(pool, "run", 1, upon);
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_content_get(&txn, id, &content, &err));
    OK(lmcs_content_get(&txn, below_id, &below, &err));
    content.parts[0].offset = below.parts[0].offset + bytes_on;
    OK(lmcs_content_put(&txn, &content, &err));
    OK(lmcs_txn_commit(&txn, &err));
}

static int view_them(void *path)
{
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    struct lmcs_snapshot *snapshot;
    struct lmcs_view *view;
    OK(lmcs_snapshot_open(pool, "run@1", &snapshot, &err));
    OK(lmcs_view_open(snapshot, NULL, NULL, 0, LMCS_VIEW_PRIVATE, &view, &err));
    for (size_t i = 0; i < lmcs_view_count(view); i++)
        memset(lmcs_view_data(view, i), (int)i + 1, lmcs_view_entry(view, i)->raw_bytes);
    for (size_t i = 0; i < lmcs_view_count(view); i++) {
        const unsigned char *data = lmcs_view_data(view, i);
        for (uint64_t k = 0; k < lmcs_view_entry(view, i)->raw_bytes; k++)
            EXPECT(data[k] == i + 1);
    }
    lmcs_view_close(view);
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
    return 0;
}

static void payloads_that_overlap(void **state)
{
    static const char *const names[] = {"big", "small", "middle"};
    static const uint64_t bytes[] = {8 << 20, 100, 700000};
    static const uint64_t places[][2] = {{64, 4096}, {0, 0}, {0, 64}, {(8 << 20) - 64, (8 << 20) - 4096}, {4096, 64}};
    struct place *place = *state;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char path[512];
        place_path(place, "overlap.pool", path);
        remove(path);
        struct lmcs_pool *pool = open_quiet(path);
        save(pool, names, bytes, 3, 0);
        lay_upon(pool, "small", "big", places[i][0]);
        lay_upon(pool, "middle", "big", places[i][1]);
        close_pool(pool);
        expect_soon(view_them, path);
    }
}

static void counts_of_names(void **state)
{
    static const uint64_t counts[] = {0, 1, 2, 4, ((uint64_t)1 << 61) - 4, UINT64_MAX};
    static const char *const names[] = {"a", "b", "c"};
    static const uint64_t bytes[] = {1, 1, 1};
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    save(pool, names, bytes, 3, 0);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct lmcs_txn txn;
        struct lmcs_shelf shelf;
        struct lmcs_record record;
        struct lmcs_capture *capture;
        struct lmcs_tensor tensor = {.name = "d", .dtype = LMC_U8, .ndim = 1, .shape = bytes};
        const void *data = names[0];
        bool found;
        OK(lmcs_txn_write(pool, &txn, &err));
        OK(lmcs_shelf_get(&txn, "run", &shelf, &err));
        OK(lmcs_record_get(&txn, &shelf, 1, &record, &found, &err));
        record.df.entry_count = counts[i];
        OK(lmcs_record_put(&txn, &shelf, &record, &err));
        OK(lmcs_shelf_save(&txn, &shelf, &err));
        OK(lmcs_txn_commit(&txn, &err));
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        OK(lmcs_capture_put(capture, &tensor, &data, 1, &err));
        FAILS(counts[i] == 0 ? LMCS_OK : LMCS_DAMAGED, lmcs_capture_commit(capture, NULL, NULL, &err));
        if (counts[i] == 0)
            OK(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    }
    close_pool(pool);
}

/* An unsealed page whose keys, with high words from `first`, all lead to one page. */
static struct lmcs_ref_df many(struct lmcs_txn *txn, uint8_t kind, uint8_t level, struct lmcs_ref_df below,
                               uint64_t first)
{
    enum { WAYS = 100 };
    struct lmcs_ref_df ref;
    struct lmcs_node_df *node;
    OK(lmcs_page_new(txn, kind, level, &ref, &node, &err));
    for (uint64_t i = 0; i < WAYS; i++) {
        struct lmcs_key_df key = {first, i};
        node->low = (uint16_t)(node->low - sizeof key - sizeof below);
        node->slots[node->count++] = (struct lmcs_slot_df){node->low, sizeof below};
        memcpy((char *)node + node->low, &key, sizeof key);
        memcpy((char *)node + node->low + sizeof key, &below, sizeof below);
    }
    return ref;
}

/* The highest tree on an existing page; each page is sealed before the next refers to it. */
static struct lmcs_ref_df raise_upon(struct lmcs_txn *txn, uint8_t kind, struct lmcs_ref_df ref, uint64_t first)
{
    for (uint8_t level = 1; level <= LMCS_MAX_LEVEL; level++) {
        struct lmcs_root_tree_df tree = {.ref = many(txn, kind, level, ref, first), .count = 1};
        struct lmcs_node_df *node = lmcs_page_dirty(txn, tree.ref.offset);
        node->check = lmcs_page_check(node, node->self);
        ref = (struct lmcs_ref_df){tree.ref.offset, node->check};
    }
    return ref;
}

/* Needs its own transaction: a new page cannot be met again while a tree is sealed. */
static struct lmcs_ref_df raise_and_commit(struct lmcs_pool *pool, uint8_t kind, struct lmcs_ref_df ref, uint64_t first)
{
    struct lmcs_txn txn;
    OK(lmcs_txn_write(pool, &txn, &err));
    ref = raise_upon(&txn, kind, ref, first);
    OK(lmcs_txn_commit(&txn, &err));
    return ref;
}

static void load_shelf(struct lmcs_pool *pool, struct lmcs_shelf *shelf)
{
    struct lmcs_txn txn;
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, "run", shelf, &err));
    lmcs_txn_end(&txn);
}

static void save_shelf(struct lmcs_pool *pool, struct lmcs_shelf *shelf)
{
    struct lmcs_txn txn;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_shelf_save(&txn, shelf, &err));
    OK(lmcs_txn_commit(&txn, &err));
}

static int look_before(void *path)
{
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    struct lmcs_snapshot *snapshot;
    FAILS(LMCS_DAMAGED, lmcs_snapshot_open(pool, "run@latest~1", &snapshot, &err));
    close_pool(pool);
    return 0;
}

static int list_newest(void *path)
{
    struct lmcs_pool *pool = open_pool(path, LMCS_OPEN_READ, 0);
    uint64_t numbers[4];
    size_t count;
    FAILS(LMCS_DAMAGED, lmcs_snapshot_newest(pool, "run", UINT64_MAX, numbers, 4, &count, &err));
    close_pool(pool);
    return 0;
}

static int capture_more(void *path)
{
    struct lmcs_pool *pool = open_quiet(path);
    struct lmcs_capture *capture;
    enum lmcs_status status = lmcs_capture_begin(pool, "run", &capture, &err);
    if (status == LMCS_OK)
        lmcs_capture_abort(capture);
    EXPECT(status == LMCS_OK || status == LMCS_DAMAGED);
    close_pool(pool);
    return 0;
}

static void an_index_of_shared_pages(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_shelf shelf;
    save_one(pool, 1);
    load_shelf(pool, &shelf);
    struct lmcs_ref_df *numbers = &lmcs_shelf_tree(&shelf, LMCS_TREE_NUMBERS)->ref;
    *numbers = raise_and_commit(pool, LMCS_TREE_NUMBERS, *numbers, 0);
    save_shelf(pool, &shelf);
    close_pool(pool);
    expect_soon(look_before, place->pool);
    expect_soon(list_newest, place->pool);
    expect_soon(capture_more, place->pool);
}

static int open_to_write(void *path)
{
    close_pool(open_quiet(path)); /* the shelf stays: nothing of it is freed */
    return 0;
}

static void a_staging_shelf_of_shared_pages(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_shelf shelf;
    save_one(pool, 1);
    load_shelf(pool, &shelf);
    struct lmcs_ref_df *times = &lmcs_shelf_tree(&shelf, LMCS_TREE_TIMES)->ref;
    *times = raise_and_commit(pool, LMCS_TREE_TIMES, *times, 0);
    *lmcs_shelf_tree(&shelf, LMCS_TREE_NUMBERS) = (struct lmcs_root_tree_df){.count = 0};
    shelf.df.flags |= LMCS_SHELF_STAGING;
    shelf.df.latest = shelf.df.snapshot_count = 0;
    save_shelf(pool, &shelf);
    close_pool(pool);
    expect_soon(open_to_write, place->pool);
}

static void forge_manifest(struct lmcs_pool *pool, uint64_t number)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool found;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, "run", &shelf, &err));
    OK(lmcs_record_get(&txn, &shelf, number, &record, &found, &err));
    record.df.manifest = raise_upon(&txn, LMCS_TREE_MANIFEST, record.df.manifest, 0);
    OK(lmcs_record_put(&txn, &shelf, &record, &err));
    OK(lmcs_shelf_save(&txn, &shelf, &err));
    OK(lmcs_txn_commit(&txn, &err));
}

static int remove_first(void *path)
{
    struct lmcs_pool *pool = open_quiet(path);
    FAILS(LMCS_DAMAGED, lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    close_pool(pool);
    return 0;
}

static int remove_second(void *path)
{
    struct lmcs_pool *pool = open_quiet(path);
    FAILS(LMCS_DAMAGED, lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    close_pool(pool);
    return 0;
}

static int find_holders(void *path)
{
    struct lmcs_pool *pool = open_quiet(path);
    struct lmcs_holders holders;
    const uint64_t content = 1;
    bool whole;
    OK(lmcs_holders_find(pool, &content, 1, &holders, &whole, &err));
    EXPECT(!whole);
    lmcs_holders_free(&holders);
    close_pool(pool);
    return 0;
}

static void a_manifest_of_shared_pages(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    save_one(pool, 1);
    save_one(pool, 2);
    EXPECT(content_of(pool, "run", 1, "t") == 1);
    forge_manifest(pool, 2);
    close_pool(pool);
    expect_soon(remove_second, place->pool);
    expect_soon(remove_first, place->pool);
    pool = open_quiet(place->pool);
    forge_manifest(pool, 1);
    close_pool(pool);
    expect_soon(find_holders, place->pool);
}

static int seal_new_pages(void *path)
{
    struct lmcs_pool *pool = open_quiet(path);
    struct lmcs_txn txn;
    struct lmcs_root_tree_df tree = {.count = 1};
    uint64_t value = 1;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_tree_put(&txn, LMCS_TREE_TIMES, &tree, (struct lmcs_key_df){0, 0}, &value, sizeof value, &err));
    for (uint8_t level = 1; level <= LMCS_MAX_LEVEL; level++)
        tree.ref = many(&txn, LMCS_TREE_TIMES, level, tree.ref, 0);
    FAILS(LMCS_DAMAGED, lmcs_tree_seal(&txn, LMCS_TREE_TIMES, &tree, &err));
    lmcs_txn_end(&txn);
    close_pool(pool);
    return 0;
}

static void new_pages_that_are_shared(void **state)
{
    struct place *place = *state;
    close_pool(open_quiet(place->pool));
    expect_soon(seal_new_pages, place->pool);
}

static const char *const shelves[] = {"a", "b", "c"};

static void fill_shelves(struct lmcs_pool *pool, const char *policy, int count)
{
    const uint64_t bytes = 100000;
    struct rng rng = {1};
    for (size_t i = 0; i < 3; i++)
        for (int k = 0; k < count; k++) {
            struct state *one = calloc(1, sizeof *one);
            rng_fill(&rng, state_add(one, "t", LMC_U8, 1, &bytes)->data, bytes);
            take_snapshot(pool, shelves[i], one, k);
            state_free(one);
        }
    for (size_t i = 0; i < 3; i++)
        OK(lmcs_shelf_set_policy(pool, shelves[i], policy, &err));
}

/* Replaces an index of the first shelf, or falsifies its record's lengths. */
static void break_first_shelf(struct lmcs_pool *pool, bool record)
{
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, shelves[0], &shelf, &err));
    lmcs_shelf_tree(&shelf, LMCS_TREE_NUMBERS)->ref = lmcs_shelf_tree(&shelf, LMCS_TREE_TIMES)->ref;
    OK(lmcs_shelf_save(&txn, &shelf, &err));
    shelf.df.policy_bytes = LMCS_MAX_POLICY + 1;
    if (record)
        OK(lmcs_root_put(&txn, LMCS_TREE_SHELVES, (struct lmcs_key_df){shelf.df.id, 0}, &shelf.df, sizeof shelf.df,
                         &err));
    OK(lmcs_txn_commit(&txn, &err));
}

static bool has_parity(struct lmcs_pool *pool, uint64_t content)
{
    struct lmcs_txn txn;
    struct lmcs_parity_record parity;
    bool found;
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_parity_find(&txn, content, &parity, &found, &err));
    lmcs_txn_end(&txn);
    return found;
}

static void a_damaged_shelf_is_pruned_past(void **state)
{
    struct place *place = *state;
    uint64_t removed;
    struct lmcs_pool *pool = open_quiet(place->pool);
    fill_shelves(pool, "keep=last:2", 6);
    break_first_shelf(pool, false);
    FAILS(LMCS_DAMAGED, lmcs_prune_pool(pool, LMCS_PRUNE_ALL, NULL, &removed, &err));
    EXPECT(strstr(err.message, "shelf \"a\"") != NULL);
    EXPECT(removed == 8 && shelf_info(pool, "b").snapshot_count == 2 && shelf_info(pool, "c").snapshot_count == 2);
    FAILS(LMCS_DAMAGED, lmcs_compact(pool, NULL, &err));
    EXPECT(strstr(err.message, "shelf \"a\"") != NULL);
    close_pool(pool);
}

static void a_damaged_shelf_keeps_none_from_parity(void **state)
{
    struct place *place = *state;
    const struct lmcs_parity_turn turn = {.all = true};
    bool worked;
    struct lmcs_pool *pool = open_quiet(place->pool);
    fill_shelves(pool, "parity=1+1", 3);
    break_first_shelf(pool, false);
    FAILS(LMCS_DAMAGED, lmcs_parity_turn(pool, &turn, &worked, &err));
    EXPECT(strstr(err.message, "shelf \"a\"") != NULL && worked);
    for (uint64_t i = 1; i <= 3; i++)
        EXPECT(has_parity(pool, content_of(pool, "b", i, "t")) && has_parity(pool, content_of(pool, "c", i, "t")));
    FAILS(LMCS_DAMAGED, lmcs_parity_turn(pool, &turn, &worked, &err));
    EXPECT(!worked);
    close_pool(pool);
}

static void a_damaged_snapshot_keeps_none_from_parity(void **state)
{
    struct place *place = *state;
    const struct lmcs_parity_turn turn = {.all = true};
    const char noise[64] = "not what was written";
    struct lmcs_txn txn;
    struct lmcs_shelf shelf;
    struct lmcs_record record;
    bool worked, found;
    struct lmcs_pool *pool = open_quiet(place->pool);
    fill_shelves(pool, "parity=1+1", 5);
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_shelf_get(&txn, "a", &shelf, &err));
    OK(lmcs_record_get(&txn, &shelf, 3, &record, &found, &err));
    lmcs_txn_end(&txn);
    EXPECT(found && record.df.manifest.offset != 0);
    close_pool(pool);
    int file = open(place->pool, O_WRONLY | O_CLOEXEC);
    EXPECT(file >= 0 && pwrite(file, noise, sizeof noise, (off_t)record.df.manifest.offset + 64) == sizeof noise);
    close(file);
    pool = open_quiet(place->pool);
    FAILS(LMCS_DAMAGED, lmcs_parity_turn(pool, &turn, &worked, &err));
    EXPECT(strstr(err.message, "a@3: ") != NULL && worked);
    for (uint64_t i = 1; i <= 5; i++) {
        EXPECT(i == 3 || has_parity(pool, content_of(pool, "a", i, "t")));
        EXPECT(has_parity(pool, content_of(pool, "c", i, "t")));
    }
    OK(lmcs_parity_turn(pool, &turn, &worked, &err));
    EXPECT(!worked);
    close_pool(pool);
}

static void a_damaged_shelf_hides_no_findings(void **state)
{
    struct place *place = *state;
    struct telling telling;
    bool told = false;
    struct lmcs_pool *pool = open_quiet(place->pool);
    fill_shelves(pool, "parity=1+1", 3);
    struct lmcs_content content = record_of(pool, "c", 2, "t");
    break_first_shelf(pool, false);
    damage_content(place->pool, &content, 5, 1);
    FAILS(LMCS_DAMAGED, repair_from(pool, NULL, &telling));
    for (size_t i = 0; i < telling.count; i++)
        told |= telling.items[i].content == content.id && strcmp(telling.items[i].holders, "c@2..2 t; ") == 0;
    EXPECT(told && telling.report.lost == 1 && strstr(err.message, "shelf \"a\"") != NULL);
    close_pool(pool);
}

static bool append_name(void *context, const struct lmcs_shelf_info *info)
{
    strcat(strcat(context, info->name), " ");
    return true;
}

static void a_damaged_shelf_keeps_nothing_else_from_being_told(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    fill_shelves(pool, "", 2);
    EXPECT(pool_info(pool).damaged_shelves == 0 && pool_info(pool).damage[0] == '\0');
    break_first_shelf(pool, true);
    struct lmcs_pool_info info = pool_info(pool);
    EXPECT(info.shelf_count == 2 && info.damaged_shelves == 1 && info.snapshot_count == 6 && info.used_bytes > 0);
    EXPECT(strstr(info.damage, "the record of shelf") != NULL);
    char names[64] = "";
    FAILS(LMCS_DAMAGED, lmcs_shelf_list(pool, append_name, names, &err));
    EXPECT(strcmp(names, "b c ") == 0 && strstr(err.message, "the record of shelf") != NULL);
    close_pool(pool);
    OK(lmcs_pool_open(place->pool, LMCS_OPEN_READ, NULL, &pool, &err));
    EXPECT(pool_info(pool).shelf_count == 2 && pool_info(pool).damaged_shelves == 1);
    close_pool(pool);
}

/* Damages a child of a tree's root page; `last`: the tail, too. Returns the keys below it: low..high-1. */
static struct lmcs_bounds damage_child(const char *path, const struct lmcs_root_tree_df *tree, size_t child, bool last)
{
    const char noise[64] = "not what was written";
    _Alignas(8) unsigned char page[LMCS_PAGE_BYTES];
    const struct lmcs_node_df *node = (const void *)page;
    int file = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(file >= 0 && pread(file, page, sizeof page, (off_t)tree->ref.offset) == sizeof page);
    EXPECT(node->level == 1 && node->count > child + 1 && tree->tail.offset != 0);
    EXPECT(pwrite(file, noise, sizeof noise, (off_t)lmcs_node_child(node, child).offset + 2000) == sizeof noise);
    if (last)
        EXPECT(pwrite(file, noise, sizeof noise, (off_t)tree->tail.offset + 2000) == sizeof noise);
    close(file);
    return lmcs_child_bounds(node, child, &(struct lmcs_bounds){{0, 0}, tree->tail_from, true});
}

enum { HISTORY = 150 };

static void expect_list(struct lmcs_pool *pool, struct lmcs_bounds lost, uint64_t end, size_t page)
{
    uint64_t numbers[HISTORY], first = 0, expected = 1, before = UINT64_MAX;
    size_t got = page, damaged = 0;
    while (got == page) {
        got = HISTORY;
        enum lmcs_status status = lmcs_snapshot_numbers(pool, "run", first, numbers, page, &got, &err);
        EXPECT((status == LMCS_OK || status == LMCS_DAMAGED) && got <= page);
        EXPECT(status == LMCS_OK || strstr(err.message, "shelf \"run\": not all snapshots") != NULL);
        damaged += status == LMCS_DAMAGED;
        for (size_t i = 0; i < got; i++) {
            expected = expected == lost.low.high ? lost.high.high : expected;
            EXPECT(numbers[i] == expected++);
        }
        first = got > 0 ? numbers[got - 1] + 1 : first;
    }
    EXPECT(expected == end && damaged > 0);
    for (got = page; got == page; before = got > 0 ? numbers[got - 1] : before) {
        got = HISTORY;
        EXPECT(lmcs_snapshot_newest(pool, "run", before, numbers, page, &got, &err) != LMCS_NO_MEMORY && got <= page);
        for (size_t i = 0; i < got; i++) {
            expected = expected == lost.high.high ? lost.low.high : expected;
            EXPECT(numbers[i] == --expected);
        }
    }
    EXPECT(expected == (lost.low.high <= 1 ? lost.high.high : 1));
}

static void a_damaged_page_of_numbers_is_listed_past(void **state)
{
    struct place *place = *state;
    for (int i = 0; i < 4; i++) {
        char path[sizeof place->pool + 16];
        struct lmcs_shelf shelf;
        snprintf(path, sizeof path, "%s.%d", place->pool, i);
        struct lmcs_pool *pool = open_quiet(path);
        for (int k = 0; k < HISTORY; k++)
            save_one(pool, (unsigned char)k);
        load_shelf(pool, &shelf);
        close_pool(pool);
        struct lmcs_root_tree_df *tree = lmcs_shelf_tree(&shelf, LMCS_TREE_NUMBERS);
        struct lmcs_bounds lost = damage_child(path, tree, i == 0 ? 0 : (size_t)i, i == 3);
        lost.low.high = i == 0 ? 1 : lost.low.high;
        OK(lmcs_pool_open(path, LMCS_OPEN_READ, NULL, &pool, &err));
        for (size_t page = 1; page <= HISTORY; page = 3 * page + 1)
            expect_list(pool, lost, i == 3 ? tree->tail_from.high : HISTORY + 1, page);
        expect_list(pool, lost, i == 3 ? tree->tail_from.high : HISTORY + 1, HISTORY);
        close_pool(pool);
        unlink(path);
    }
}

static bool count_shelf(void *context, const struct lmcs_shelf_info *info)
{
    (void)info;
    ++*(size_t *)context;
    return true;
}

static void a_damaged_page_of_shelves_is_listed_past(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_txn txn;
    size_t count = 0;
    for (int i = 0; i < HISTORY; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%d", i);
        OK(lmcs_shelf_set_keep_raw(pool, name, 2, &err));
    }
    OK(lmcs_txn_read(pool, &txn, &err));
    struct lmcs_root_tree_df tree = txn.root.trees[LMCS_TREE_SHELVES];
    lmcs_txn_end(&txn);
    close_pool(pool);
    struct lmcs_bounds lost = damage_child(place->pool, &tree, 1, false);
    OK(lmcs_pool_open(place->pool, LMCS_OPEN_READ, NULL, &pool, &err));
    FAILS(LMCS_DAMAGED, lmcs_shelf_list(pool, count_shelf, &count, &err));
    EXPECT(count == HISTORY - (lost.high.high - lost.low.high) && count < HISTORY);
    struct lmcs_pool_info info = pool_info(pool);
    EXPECT(info.damaged_shelves == 1 && info.shelf_count == count);
    close_pool(pool);
}

static void a_damaged_shelf_is_scrubbed_past(void **state)
{
    struct place *place = *state;
    struct lmcs_scrub_turn turn = {.is_loaded = false};
    struct lmcs_pool *pool = open_quiet(place->pool);
    fill_shelves(pool, "scrub=100s", 2);
    struct lmcs_content content = record_of(pool, "c", 2, "t");
    break_first_shelf(pool, true);
    damage_content(place->pool, &content, 5, 1);
    FAILS(LMCS_DAMAGED, lmcs_scrub_turn(pool, &turn, NULL, NULL, &err));
    turn.at_ns -= (uint64_t)100 * 1000000000;
    FAILS(LMCS_DAMAGED, lmcs_scrub_turn(pool, &turn, NULL, NULL, &err));
    EXPECT(strstr(err.message, "the record of shelf") != NULL);
    EXPECT(pool->root.scrub_done_ns > 0 && pool->root.lost_contents == 1);
    close_pool(pool);
}

static void numbers_that_come_back(void **state)
{
    enum { STEPS = 200 };
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_root_tree_df first = {.count = 0}, second = first, tree = first;
    static const unsigned char value[600];
    struct lmcs_shelf shelf = {.df = {.id = 1}};
    struct lmcs_node_df *node;
    struct lmcs_txn txn;
    uint64_t number = 0, steps = 0;
    enum lmcs_status status = LMCS_OK;
    OK(lmcs_txn_write(pool, &txn, &err));
    for (uint64_t i = 5; i < 7; i++)
        OK(lmcs_tree_put(&txn, LMCS_TREE_NUMBERS, &first, (struct lmcs_key_df){i, 0}, value, sizeof value, &err));
    for (uint64_t i = 3; i < 5; i++)
        OK(lmcs_tree_put(&txn, LMCS_TREE_NUMBERS, &second, (struct lmcs_key_df){i, 0}, value, sizeof value, &err));
    tree.ref = many(&txn, LMCS_TREE_NUMBERS, 1, first.ref, 100);
    node = lmcs_page_dirty(&txn, tree.ref.offset);
    memcpy((char *)node + node->slots[1].offset + sizeof(struct lmcs_key_df), &second.ref, sizeof second.ref);
    *lmcs_shelf_tree(&shelf, LMCS_TREE_NUMBERS) = tree;
    while (status == LMCS_OK && steps++ < STEPS) {
        status = lmcs_record_after(&txn, &shelf, number, &number, &err);
        if (status == LMCS_OK && number == 0)
            break;
    }
    EXPECT(status == LMCS_DAMAGED);
    lmcs_txn_end(&txn);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(payloads_that_overlap),
        IN_MEMORY(counts_of_names),
        IN_MEMORY(an_index_of_shared_pages),
        ON_BOTH(a_staging_shelf_of_shared_pages),
        IN_MEMORY(a_manifest_of_shared_pages),
        IN_MEMORY(new_pages_that_are_shared),
        IN_MEMORY(numbers_that_come_back),
        IN_MEMORY(a_damaged_shelf_is_pruned_past),
        IN_MEMORY(a_damaged_shelf_keeps_none_from_parity),
        IN_MEMORY(a_damaged_snapshot_keeps_none_from_parity),
        IN_MEMORY(a_damaged_shelf_hides_no_findings),
        IN_MEMORY(a_damaged_shelf_is_scrubbed_past),
        IN_MEMORY(a_damaged_page_of_numbers_is_listed_past),
        IN_MEMORY(a_damaged_page_of_shelves_is_listed_past),
        IN_MEMORY(a_damaged_shelf_keeps_nothing_else_from_being_told),
    };
    return cmocka_run_group_tests_name("forged", tests, NULL, NULL);
}
