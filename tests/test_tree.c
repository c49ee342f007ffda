/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_tree.c - B+ trees and their transactions against a plain table: committed entries stay, in order; aborted ones
 * are absent; no page is lost or used twice.
 *
 * The trees use spare places of the root page.
 */
/* ctest: timeout=600 labels=no-tsan */
#include "support.h"

#include <unistd.h>

#include "pages/tree.h"

enum { SPARE = LMCS_ROOT_TREES - 1, SPARE_TREES = 1, KEYS = 3000 };

/* The version of each key's value; 0: absent. */
struct model {
    uint32_t version[SPARE_TREES][KEYS];
    uint64_t count[SPARE_TREES];
};

/* Keys that share high words, and use all of both. */
static struct lmcs_key_df key_of(size_t i)
{
    return (struct lmcs_key_df){(uint64_t)(i / 7) * 0x00ffffffffffff1u, (uint64_t)(i % 7) * 0x2492492492492492u};
}

static size_t bytes_of(size_t i, uint32_t version, size_t most)
{
    return (i * 31 + version * 977u) % (most + 1);
}

static size_t value_of(size_t i, uint32_t version, size_t most, unsigned char value[LMCS_MAX_VALUE])
{
    size_t bytes = bytes_of(i, version, most);
    for (size_t k = 0; k < bytes; k++)
        value[k] = (unsigned char)(i * 7 + version * 13 + k);
    return bytes;
}

static struct lmcs_root_tree_df *spare(struct lmcs_txn *txn, size_t tree)
{
    return &txn->root.trees[SPARE + tree];
}

static uint8_t kind_of(size_t tree)
{
    return (uint8_t)(SPARE + tree);
}

static void commit(struct lmcs_txn *txn)
{
    OK(lmcs_txn_commit(txn, &err));
}

static void expect_bytes(const void *got, size_t bytes, size_t i, uint32_t version, size_t most)
{
    unsigned char value[LMCS_MAX_VALUE];
    assert_int_equal(bytes, value_of(i, version, most, value));
    if (bytes > 0)
        assert_memory_equal(got, value, bytes);
}

static void expect_key(struct lmcs_txn *txn, const struct model *model, size_t tree, size_t i, size_t most)
{
    unsigned char got[LMCS_MAX_VALUE];
    size_t bytes = 0;
    bool found;
    OK(lmcs_tree_get(txn, kind_of(tree), spare(txn, tree), key_of(i), got, 0, sizeof got, &bytes, &found, &err));
    assert_int_equal(found, model->version[tree][i] != 0);
    if (found)
        expect_bytes(got, bytes, i, model->version[tree][i], most);
}

static size_t next_key(const struct model *model, size_t tree, size_t i)
{
    while (i < KEYS && model->version[tree][i] == 0)
        i++;
    return i;
}

/* Seeks, perhaps an absent key, then steps forward and one back. */
static void expect_seek(struct lmcs_txn *txn, const struct model *model, size_t tree, size_t i, size_t steps,
                        size_t most)
{
    struct lmcs_cursor *cursor;
    struct lmcs_key_df before, key = key_of(i);
    bool found;
    OK(lmcs_tree_before(txn, kind_of(tree), spare(txn, tree), key, &before, &found, &err));
    size_t earlier = i;
    while (earlier > 0 && model->version[tree][earlier - 1] == 0)
        earlier--;
    assert_int_equal(found, earlier > 0);
    if (found)
        assert_int_equal(lmcs_key_compare(before, key_of(earlier - 1)), 0);
    if (i > 0 && i % 3 == 0) {
        key = key_of(i - 1);
        key.low++;
    }
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_cursor_seek(cursor, txn, kind_of(tree), spare(txn, tree), key, &err));
    size_t expected = next_key(model, tree, i);
    for (size_t k = 0; k < steps; k++, expected = next_key(model, tree, expected + 1)) {
        assert_int_equal(lmcs_cursor_valid(cursor), expected < KEYS);
        if (expected >= KEYS)
            break;
        size_t bytes;
        assert_int_equal(lmcs_key_compare(lmcs_cursor_key(cursor), key_of(expected)), 0);
        const void *value = lmcs_cursor_value(cursor, &bytes);
        expect_bytes(value, bytes, expected, model->version[tree][expected], most);
        OK(lmcs_cursor_next(cursor, &err));
    }
    lmcs_cursor_free(cursor);
}

static void expect_model(struct lmcs_txn *txn, const struct model *model, size_t most)
{
    for (size_t tree = 0; tree < SPARE_TREES; tree++) {
        assert_int_equal(spare(txn, tree)->count, model->count[tree]);
        assert_int_equal(spare(txn, tree)->ref.offset == 0, model->count[tree] == 0);
        expect_seek(txn, model, tree, 0, KEYS + 1, most);
    }
}

static void change(struct lmcs_txn *txn, struct model *model, struct rng *rng, size_t most, uint64_t puts_of_ten)
{
    size_t tree = rng_below(rng, SPARE_TREES), i = rng_below(rng, KEYS);
    uint32_t *version = &model->version[tree][i];
    if (rng_below(rng, 10) < puts_of_ten) {
        unsigned char value[LMCS_MAX_VALUE];
        model->count[tree] += *version == 0;
        *version = 1 + (uint32_t)rng_below(rng, 1000);
        size_t bytes = value_of(i, *version, most, value);
        OK(lmcs_tree_put(txn, kind_of(tree), spare(txn, tree), key_of(i), value, bytes, &err));
    } else {
        bool found;
        OK(lmcs_tree_delete(txn, kind_of(tree), spare(txn, tree), key_of(i), &found, &err));
        assert_int_equal(found, *version != 0);
        model->count[tree] -= found;
        *version = 0;
    }
}

static void random_changes(void **state)
{
    static const size_t sizes[] = {0, 24, 300, LMCS_MAX_VALUE};
    struct place *place = *state;
    static struct model model, kept;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct rng rng = {s + 1};
        struct lmcs_pool *pool = open_quiet(place->pool);
        memset(&model, 0, sizeof model);
        for (int round = 0; round < 150; round++) {
            struct lmcs_txn txn;
            uint64_t puts = round % 50 < 25 ? 7 : round % 50 < 45 ? 4 : 1;
            kept = model;
            OK(lmcs_txn_write(pool, &txn, &err));
            for (uint64_t n = rng_below(&rng, 300); n > 0; n--) {
                change(&txn, &model, &rng, sizes[s], puts);
                if (n % 16 == 0) {
                    size_t i = rng_below(&rng, KEYS);
                    expect_key(&txn, &model, n % 2, i, sizes[s]);
                    expect_seek(&txn, &model, n / 2 % 2, i, 5, sizes[s]);
                }
            }
            if (round % 10 == 0)
                expect_model(&txn, &model, sizes[s]);
            if (rng_below(&rng, 4) == 0) {
                lmcs_txn_end(&txn);
                model = kept;
            } else {
                commit(&txn);
            }
            if (round % 40 == 39) {
                close_pool(pool);
                pool = open_quiet(place->pool);
            }
            OK(lmcs_txn_read(pool, &txn, &err));
            if (round % 5 == 0)
                expect_model(&txn, &model, sizes[s]);
            for (int k = 0; k < 10; k++) {
                expect_key(&txn, &model, (size_t)k % SPARE_TREES, rng_below(&rng, KEYS), sizes[s]);
                expect_seek(&txn, &model, (size_t)k % SPARE_TREES, rng_below(&rng, KEYS), 3, sizes[s]);
            }
            lmcs_txn_end(&txn);
        }
        struct lmcs_txn txn;
        OK(lmcs_txn_write(pool, &txn, &err));
        for (size_t tree = 0; tree < SPARE_TREES; tree++)
            OK(lmcs_tree_clear(&txn, kind_of(tree), spare(&txn, tree), &err));
        commit(&txn);
        check_pool(pool);
        close_pool(pool);
    }
}

enum order { ASCENDING, DESCENDING, SHUFFLED };

static uint64_t *keys_in_order(enum order order, size_t count, struct rng *rng)
{
    uint64_t *keys = malloc(count * sizeof *keys);
    for (size_t i = 0; i < count; i++)
        keys[i] = order == DESCENDING ? count - 1 - i : i;
    for (size_t i = count; order == SHUFFLED && i > 1; i--) {
        size_t k = rng_below(rng, i);
        uint64_t key = keys[k];
        keys[k] = keys[i - 1];
        keys[i - 1] = key;
    }
    return keys;
}

static void expect_range(struct lmcs_txn *txn, uint64_t first, uint64_t count, uint64_t add)
{
    struct lmcs_cursor *cursor;
    assert_int_equal(spare(txn, 0)->count, count);
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_cursor_seek(cursor, txn, SPARE, spare(txn, 0), (struct lmcs_key_df){0, 0}, &err));
    for (uint64_t i = first; i < first + count; i++) {
        uint64_t value;
        size_t bytes;
        assert_true(lmcs_cursor_valid(cursor));
        assert_true(lmcs_cursor_key(cursor).high == i && lmcs_cursor_key(cursor).low == ~i);
        const void *at = lmcs_cursor_value(cursor, &bytes);
        assert_int_equal(bytes, sizeof value);
        memcpy(&value, at, sizeof value);
        assert_int_equal(value, i + add);
        OK(lmcs_cursor_next(cursor, &err));
    }
    assert_false(lmcs_cursor_valid(cursor));
    lmcs_cursor_free(cursor);
}

static void hundred_thousand_keys(void **state)
{
    struct place *place = *state;
    const size_t count = scaled("LMCS_TEST_KEYS", 100000);
    struct rng rng = {9};
    struct lmcs_pool *pool = open_quiet(place->pool);
    uint64_t metadata_bytes = 0;
    for (int round = 0; round < 6; round++) {
        const int order = round % 3;
        uint64_t *keys = keys_in_order((enum order)order, count, &rng);
        struct lmcs_txn txn;
        for (uint64_t add = 0; add < 2; add++) {
            for (size_t i = 0; i < count;) {
                OK(lmcs_txn_write(pool, &txn, &err));
                for (size_t n = 0; n < 9000 && i < count; n++, i++) {
                    uint64_t value = keys[i] + add;
                    OK(lmcs_tree_put(&txn, SPARE, spare(&txn, 0), (struct lmcs_key_df){keys[i], ~keys[i]}, &value,
                                     sizeof value, &err));
                }
                commit(&txn);
            }
            if (add == 1) {
                close_pool(pool);
                pool = open_quiet(place->pool);
            }
            OK(lmcs_txn_read(pool, &txn, &err));
            expect_range(&txn, 0, count, add);
            lmcs_txn_end(&txn);
        }
        free(keys);
        keys = keys_in_order((enum order)((order + 1) % 3), count, &rng);
        const uint64_t first = count / 3, left = count / 10;
        for (size_t i = 0; i < count;) {
            OK(lmcs_txn_write(pool, &txn, &err));
            for (size_t n = 0; n < 9000 && i < count; n++, i++)
                if (keys[i] < first || keys[i] >= first + left)
                    OK(lmcs_tree_delete(&txn, SPARE, spare(&txn, 0), (struct lmcs_key_df){keys[i], ~keys[i]}, NULL,
                                        &err));
            commit(&txn);
        }
        OK(lmcs_txn_read(pool, &txn, &err));
        expect_range(&txn, first, left, 1);
        lmcs_txn_end(&txn);
        OK(lmcs_txn_write(pool, &txn, &err));
        OK(lmcs_tree_clear(&txn, SPARE, spare(&txn, 0), &err));
        expect_range(&txn, 0, 0, 0);
        commit(&txn);
        check_pool(pool);
        free(keys);
        if (round == 2)
            metadata_bytes = pool_info(pool).metadata_bytes;
    }
    const struct lmcs_pool_info info = pool_info(pool);
    assert_int_equal(info.metadata_bytes, metadata_bytes);
    /* All but a few, and the list's own, are free. */
    assert_in_range(info.metadata_bytes - info.metadata_free_bytes, LMCS_PAGE_BYTES, info.metadata_bytes / 10);
    close_pool(pool);
}

/* A page of leaves has PAGE keys with the longest values, and a page of such pages PARENT. */
enum { WIDE = 112, LEAF = 2, PAGE = WIDE * LEAF, PARENT = WIDE * PAGE };

static void put_keys(struct lmcs_txn *txn, uint64_t first, uint64_t end)
{
    static const unsigned char value[LMCS_MAX_VALUE];
    for (uint64_t i = first; i < end; i++)
        OK(lmcs_tree_put(txn, SPARE, spare(txn, 0), (struct lmcs_key_df){i, 0}, value, sizeof value, &err));
}

static void delete_keys(struct lmcs_txn *txn, uint64_t first, uint64_t end)
{
    for (uint64_t i = first; i < end; i++)
        OK(lmcs_tree_delete(txn, SPARE, spare(txn, 0), (struct lmcs_key_df){i, 0}, NULL, &err));
}

static void expect_keys_and_clear(struct lmcs_pool *pool, struct lmcs_txn *txn, uint64_t first, uint64_t count)
{
    unsigned char value[LMCS_MAX_VALUE];
    bool found;
    commit(txn);
    OK(lmcs_txn_read(pool, txn, &err));
    for (uint64_t i = first; i < first + count; i++) {
        OK(lmcs_tree_get(txn, SPARE, spare(txn, 0), (struct lmcs_key_df){i, 0}, value, 0, sizeof value, NULL, &found,
                         &err));
        assert_true(found);
    }
    lmcs_txn_end(txn);
    OK(lmcs_txn_write(pool, txn, &err));
    OK(lmcs_tree_clear(txn, SPARE, spare(txn, 0), &err));
    commit(txn);
    check_pool(pool);
    close_pool(pool);
}

/* Removes a whole page below the first keys of its parent and adds one of these keys again: it goes to the next page,
 * whose own first key is greater. Then that page's entries join those of another parent on its left. */
static void keys_where_a_page_was(void **state)
{
    const uint64_t back = PARENT + 2;
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_txn txn;
    OK(lmcs_txn_write(pool, &txn, &err));
    put_keys(&txn, 0, 2 * PARENT + 1);
    const struct lmcs_node_df *root = lmcs_page_dirty(&txn, spare(&txn, 0)->ref.offset);
    assert_true(root != NULL && root->level == 3 && root->count == 2 && lmcs_node_key(root, 1).high == PARENT);
    delete_keys(&txn, PARENT, PARENT + PAGE);
    delete_keys(&txn, PARENT + PAGE + 1, PARENT + PAGE + 2);
    put_keys(&txn, back, back + 1);
    delete_keys(&txn, 60 * PAGE, PARENT);
    delete_keys(&txn, PARENT + 28 * PAGE, 2 * PARENT + 1);
    root = lmcs_page_dirty(&txn, spare(&txn, 0)->ref.offset);
    assert_true(root != NULL && root->level == 2);
    delete_keys(&txn, PARENT + PAGE + 100, PARENT + 2 * PAGE);
    delete_keys(&txn, 59 * PAGE + 50, 60 * PAGE);
    expect_keys_and_clear(pool, &txn, back, 1);
}

/* The next page is the last, and later keys begin a tail before the page's own first key. */
static void a_tail_where_a_page_was(void **state)
{
    enum { MORE = 20 };
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_txn txn;
    OK(lmcs_txn_write(pool, &txn, &err));
    put_keys(&txn, 0, 2 * PARENT + 1);
    delete_keys(&txn, PARENT, PARENT + PAGE);
    delete_keys(&txn, PARENT + PAGE + 1, PARENT + PAGE + 2);
    put_keys(&txn, PARENT, PARENT + 1);
    delete_keys(&txn, PARENT + PAGE + 2, 2 * PARENT + 1);
    delete_keys(&txn, PARENT + PAGE, PARENT + PAGE + 1);
    put_keys(&txn, PARENT + 1, PARENT + MORE);
    expect_keys_and_clear(pool, &txn, PARENT, MORE);
}

static void begin_much(struct lmcs_pool *pool, struct lmcs_txn *txn)
{
    OK(lmcs_txn_write(pool, txn, &err));
    put_keys(txn, 0, 5000);
}

static int die_in_the_middle(void *path)
{
    struct lmcs_txn txn;
    begin_much(open_quiet(path), &txn);
    _exit(0);
}

/* Uncommitted space returns at the end, or at the next opening. */
static void room_of_what_is_not_committed(void **state)
{
    const uint64_t much = (uint64_t)8 << 20, little = (uint64_t)1 << 20;
    struct place *place = *state;
    struct lmcs_txn txn;
    struct lmcs_pool *pool = open_quiet(place->pool);
    const uint64_t before = disk_bytes(place->pool), used = pool_info(pool).used_bytes;
    begin_much(pool, &txn);
    assert_true(disk_bytes(place->pool) > before + much);
    lmcs_txn_end(&txn);
    assert_true(disk_bytes(place->pool) < before + little && pool_info(pool).used_bytes == used);
    close_pool(pool);
    expect_child(start_child(die_in_the_middle, place->pool));
    assert_true(disk_bytes(place->pool) > before + much);
    pool = open_quiet(place->pool);
    assert_true(disk_bytes(place->pool) < before + little && pool_info(pool).used_bytes == used);
    begin_much(pool, &txn);
    expect_keys_and_clear(pool, &txn, 0, 5000);
}

static void one_commit_may_be_large(void **state)
{
    enum { PAGES = 93000 };
    struct place *place = *state;
    struct lmcs_txn txn;
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_txn_write(pool, &txn, &err));
    put_keys(&txn, 0, LEAF * PAGES);
    const uint64_t taken = txn.root.slab_bytes;
    assert_in_range(taken, (uint64_t)PAGES * LMCS_PAGE_BYTES, (uint64_t)PAGES * LMCS_PAGE_BYTES * 3 / 2 + (1 << 20));
    expect_keys_and_clear(pool, &txn, 0, LEAF * PAGES);
}

static void appending_spares_the_tree(void **state)
{
    enum { OLD = 30000, NEW = 1000 };
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_txn txn;
    OK(lmcs_txn_write(pool, &txn, &err));
    for (uint64_t i = 0; i < OLD; i++)
        OK(lmcs_tree_put(&txn, SPARE, spare(&txn, 0), (struct lmcs_key_df){i, ~i}, &i, sizeof i, &err));
    commit(&txn);
    int rewritten = 0;
    for (uint64_t i = OLD; i < OLD + NEW; i++) {
        uint64_t before = pool->root.trees[SPARE].ref.offset;
        OK(lmcs_txn_write(pool, &txn, &err));
        OK(lmcs_tree_put(&txn, SPARE, spare(&txn, 0), (struct lmcs_key_df){i, ~i}, &i, sizeof i, &err));
        commit(&txn);
        rewritten += pool->root.trees[SPARE].ref.offset != before;
    }
    assert_in_range(rewritten, 1, NEW / 100);
    OK(lmcs_txn_read(pool, &txn, &err));
    expect_range(&txn, 0, OLD + NEW, 0);
    lmcs_txn_end(&txn);
    /* The last entries go one by one, past their page; so do the first ones. */
    OK(lmcs_txn_write(pool, &txn, &err));
    for (uint64_t i = OLD + NEW; i-- > OLD;)
        OK(lmcs_tree_delete(&txn, SPARE, spare(&txn, 0), (struct lmcs_key_df){i, ~i}, NULL, &err));
    expect_range(&txn, 0, OLD, 0);
    for (uint64_t i = OLD; i < OLD + NEW; i++)
        OK(lmcs_tree_put(&txn, SPARE, spare(&txn, 0), (struct lmcs_key_df){i, ~i}, &i, sizeof i, &err));
    for (uint64_t i = 0; i < OLD + NEW - 1; i++)
        OK(lmcs_tree_delete(&txn, SPARE, spare(&txn, 0), (struct lmcs_key_df){i, ~i}, NULL, &err));
    expect_range(&txn, OLD + NEW - 1, 1, 0);
    OK(lmcs_tree_clear(&txn, SPARE, spare(&txn, 0), &err));
    commit(&txn);
    check_pool(pool);
    close_pool(pool);
}

static void put_many(struct lmcs_txn *txn, uint64_t seed, size_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = seed;
        OK(lmcs_tree_put(txn, SPARE, spare(txn, 0), (struct lmcs_key_df){i * 3, 0}, &value, sizeof value, &err));
    }
}

static void aborts_leave_nothing(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_txn txn;
    OK(lmcs_txn_write(pool, &txn, &err));
    put_many(&txn, 1, 2000);
    commit(&txn);
    const struct lmcs_root_df before = pool->root;
    const struct lmcs_pool_info info = pool_info(pool);
    for (int round = 0; round < 300; round++) {
        OK(lmcs_txn_write(pool, &txn, &err));
        if (round % 3 == 0)
            OK(lmcs_tree_clear(&txn, SPARE, spare(&txn, 0), &err));
        put_many(&txn, 2, round % 3 == 2 ? 10 : 3000);
        lmcs_txn_end(&txn);
    }
    assert_memory_equal(&pool->root, &before, sizeof before);
    assert_int_equal(pool_info(pool).metadata_bytes, info.metadata_bytes);
    assert_int_equal(pool_info(pool).used_bytes, info.used_bytes);
    for (int pass = 0; pass < 2; pass++) {
        uint64_t value;
        bool found;
        OK(lmcs_txn_read(pool, &txn, &err));
        assert_int_equal(spare(&txn, 0)->count, 2000);
        for (uint64_t i = 0; i < 6000; i++) {
            OK(lmcs_tree_get(&txn, SPARE, spare(&txn, 0), (struct lmcs_key_df){i, 0}, &value, 8, 8, NULL, &found,
                             &err));
            assert_true(found == (i % 3 == 0));
            assert_true(!found || value == 1);
        }
        lmcs_txn_end(&txn);
        close_pool(pool);
        pool = open_quiet(place->pool);
    }
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_tree_clear(&txn, SPARE, spare(&txn, 0), &err));
    commit(&txn);
    check_pool(pool);
    close_pool(pool);
}

/* Pages are reused: an ever-changing pool does not grow for ever. */
static void pages_are_used_again(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    uint64_t after_some = 0;
    for (uint64_t round = 0; round < 400; round++) {
        struct lmcs_txn txn;
        OK(lmcs_txn_write(pool, &txn, &err));
        if (round % 7 == 3)
            OK(lmcs_tree_clear(&txn, SPARE, spare(&txn, 0), &err));
        put_many(&txn, round, 100 + round * 37 % 900);
        if (round % 5 == 1)
            lmcs_txn_end(&txn);
        else
            commit(&txn);
        if (round % 50 == 49) {
            close_pool(pool);
            pool = open_quiet(place->pool);
        }
        if (round == 60)
            after_some = pool_info(pool).metadata_bytes;
    }
    assert_int_equal(pool_info(pool).metadata_bytes, after_some);
    close_pool(pool);
}

/* A reader in another process (here: another opening) walks its root during later commits. */
static void readers_see_one_moment(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    static struct model model, old;
    memset(&model, 0, sizeof model);
    struct lmcs_txn txn, reading;
    struct lmcs_pool *pool = open_quiet(place->pool);
    OK(lmcs_txn_write(pool, &txn, &err));
    for (int i = 0; i < 3000; i++)
        change(&txn, &model, &rng, 200, 8);
    commit(&txn);
    close_pool(pool);
    struct lmcs_pool *reader = open_pool(place->pool, LMCS_OPEN_READ, 0);
    pool = open_quiet(place->pool);
    assert_ptr_not_equal(reader, pool);
    for (int round = 0; round < 30; round++) {
        OK(lmcs_txn_read(reader, &reading, &err));
        old = model;
        for (int commits = 0; commits < 12; commits++) {
            OK(lmcs_txn_write(pool, &txn, &err));
            for (int i = 0; i < 150; i++)
                change(&txn, &model, &rng, 200, 5);
            commit(&txn);
            if (commits % 4 == 3)
                expect_model(&reading, &old, 200);
        }
        lmcs_txn_end(&reading);
        OK(lmcs_txn_read(reader, &reading, &err));
        expect_model(&reading, &model, 200);
        lmcs_txn_end(&reading);
    }
    close_pool(reader);
    close_pool(pool);
}

static void wrong_use_of_trees(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_txn txn;
    unsigned char value[LMCS_MAX_VALUE + 1] = {0};
    const struct lmcs_key_df key = {1, 2}, other = {1, 3};
    bool found = true;
    OK(lmcs_txn_write(pool, &txn, &err));
    assert_int_not_equal(lmcs_tree_put(&txn, SPARE, spare(&txn, 0), key, value, LMCS_MAX_VALUE + 1, &err), LMCS_OK);
    OK(lmcs_tree_put(&txn, SPARE, spare(&txn, 0), key, value, LMCS_MAX_VALUE, &err));
    FAILS(LMCS_DAMAGED, lmcs_tree_get(&txn, SPARE, spare(&txn, 0), key, value, 0, 8, NULL, &found, &err));
    OK(lmcs_tree_get(&txn, SPARE, spare(&txn, 0), other, value, 0, 8, NULL, &found, &err));
    assert_false(found);
    FAILS(LMCS_DAMAGED, lmcs_tree_delete(&txn, SPARE, spare(&txn, 0), other, NULL, &err));
    OK(lmcs_tree_delete(&txn, SPARE, spare(&txn, 0), other, &found, &err));
    assert_false(found);
    OK(lmcs_tree_delete(&txn, SPARE, spare(&txn, 0), key, &found, &err));
    assert_true(found && spare(&txn, 0)->count == 0 && spare(&txn, 0)->ref.offset == 0);
    OK(lmcs_tree_delete(&txn, SPARE, spare(&txn, 0), key, &found, &err));
    assert_false(found);
    commit(&txn);
    check_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(random_changes),
        IN_MEMORY(hundred_thousand_keys),
        IN_MEMORY(appending_spares_the_tree),
        ON_BOTH(aborts_leave_nothing),
        ON_BOTH(pages_are_used_again),
        ON_BOTH(readers_see_one_moment),
        IN_MEMORY(wrong_use_of_trees),
        IN_MEMORY(keys_where_a_page_was),
        ON_BOTH(room_of_what_is_not_committed),
        IN_MEMORY(one_commit_may_be_large),
        IN_MEMORY(a_tail_where_a_page_was),
    };
    return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}
