/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_verify.c - the scope of verify, its reports, and verify beside a writer. (damage/damage.c tests its
 * completeness.)
 */
/* ctest: timeout=600 labels=no-tsan */
#include "subject.h"
#include "test_live_support.h"

#include <fcntl.h>
#include <unistd.h>

#include "pages/tree.h"
#include "records/content.h"
#include "records/shelf.h"

struct found {
    const char *tensor;
    uint64_t at;
    unsigned damages, of_tensor, covering;
};

static void note_damage(void *context, const struct lmcs_damage *damage)
{
    struct found *found = context;
    EXPECT(damage->what != NULL && damage->what[0] != '\0' && damage->shelf != NULL && damage->tensor != NULL);
    found->damages++;
    if (found->tensor == NULL || strcmp(damage->tensor, found->tensor) != 0)
        return;
    found->of_tensor++;
    found->covering += found->at >= damage->first_byte && found->at < damage->first_byte + damage->byte_count;
}

static enum lmcs_status verify_file(const char *path, const char *address, struct found *found)
{
    struct lmcs_pool *pool;
    struct lmcs_verify_report report;
    enum lmcs_status status = lmcs_pool_open(path, LMCS_OPEN_READ, NULL, &pool, &err);
    if (status != LMCS_OK)
        return status;
    status = lmcs_verify(pool, address, note_damage, found, NULL, &report, &err);
    EXPECT(status == LMCS_OK || status == LMCS_DAMAGED);
    EXPECT(report.damages == found->damages && (status == LMCS_DAMAGED) == (found->damages > 0));
    close_pool(pool);
    return status;
}

/* A sealed root page lists impossible pages, which a writer would allocate. */
static void impossible_ranges_of_pages(void **state)
{
    struct subject *subject = make_subject(((struct place *)*state)->pool);
    struct lmcs_root_df root, forged;
    file_read(subject->path, subject->root, &root, sizeof root);
    const struct lmcs_page_range_df ranges[] = {{root.fresh.end, root.fresh.next - LMCS_PAGE_BYTES},
                                                {0, UINT64_MAX - LMCS_PAGE_BYTES + 1},
                                                {0, LMCS_PAGE_RANGE_MOST + LMCS_PAGE_BYTES},
                                                {root.fresh.next + 1, root.fresh.end + 1},
                                                {root.fresh.next, root.fresh.end - 8}};
    for (size_t i = 0; i < 2 * sizeof ranges / sizeof ranges[0]; i++) {
        struct lmcs_pool *pool;
        forged = root;
        *(i % 2 ? &forged.spare : &forged.fresh) = ranges[i / 2];
        forged.check = lmc_hash64(&forged, offsetof(struct lmcs_root_df, check), subject->root);
        file_write(subject->path, subject->root, &forged, sizeof forged);
        FAILS(LMCS_DAMAGED, lmcs_pool_open(subject->path, LMCS_OPEN_READ, NULL, &pool, &err));
        FAILS(LMCS_DAMAGED, lmcs_pool_open(subject->path, LMCS_OPEN_WRITE, NULL, &pool, &err));
    }
    file_write(subject->path, subject->root, &root, sizeof root);
    struct found found = {.tensor = NULL};
    assert_int_equal(verify_file(subject->path, NULL, &found), LMCS_OK);
    /* Only verify compares the number of free pages with the record. */
    forged = root;
    forged.free_pages++;
    forged.check = lmc_hash64(&forged, offsetof(struct lmcs_root_df, check), subject->root);
    file_write(subject->path, subject->root, &forged, sizeof forged);
    assert_int_equal(verify_file(subject->path, NULL, &found), LMCS_DAMAGED);
    free_subject(subject);
}

/* Enters pages as free, as a commit does, with valid checksums. */
static void forge_free_pages(const char *path, uint64_t offset, uint64_t count)
{
    struct lmcs_txn txn;
    struct lmcs_pool *pool = open_quiet(path);
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_root_put(&txn, LMCS_TREE_FREE_PAGES, (struct lmcs_key_df){0, offset}, &count, sizeof count, &err));
    txn.root.free_pages += count;
    OK(lmcs_txn_commit(&txn, &err));
    close_pool(pool);
}

/* A writer takes no page outside of slabs, which would overwrite tensors or leave the mapping. */
static void free_pages_that_are_none(void **state)
{
    const struct place *place = *state;
    struct rng rng = {1};
    struct state *weights = state_weights(&rng, 2, 300000);
    struct lmcs_content content;
    struct lmcs_root_df root, forged;
    struct lmcs_txn txn;
    char path[512];
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", weights, 1);
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_content_get(&txn, content_of(pool, "run", 1, "t0"), &content, &err));
    uint64_t end = lmcs_media_bytes(pool->media), tensor = lmcs_page_up(content.parts[0].offset), slab = txn.root.self;
    lmcs_txn_end(&txn);
    close_pool(pool);
    const struct lmcs_page_range_df ranges[] = {{0, LMCS_PAGE_BYTES},
                                                {tensor, tensor + LMCS_PAGE_BYTES},
                                                {end, end + 2 * LMCS_PAGE_BYTES},
                                                {(uint64_t)1 << 55, ((uint64_t)1 << 55) + LMCS_PAGE_BYTES},
                                                {slab, slab + ((uint64_t)64 << 20)}};
    place_path(place, "forged.pool", path);
    for (size_t i = 0; i < 3 * sizeof ranges / sizeof ranges[0]; i++) {
        const struct lmcs_page_range_df *range = &ranges[i / 3];
        uint64_t number;
        copy_file(place->pool, path);
        if (i % 3 == 0) {
            forge_free_pages(path, range->next, (range->end - range->next) / LMCS_PAGE_BYTES);
            pool = open_quiet(path);
            FAILS(LMCS_DAMAGED, try_snapshot(pool, "run", weights, 2, &number, &err));
            close_pool(pool);
        } else {
            root = forged = closed_root(path);
            *(i % 3 == 1 ? &forged.spare : &forged.fresh) = *range;
            forged.check = lmc_hash64(&forged, offsetof(struct lmcs_root_df, check), root.self);
            file_write(path, root.self, &forged, sizeof forged);
            FAILS(LMCS_DAMAGED, lmcs_pool_open(path, LMCS_OPEN_WRITE, NULL, &pool, &err));
        }
        pool = open_pool(path, LMCS_OPEN_READ, 0);
        expect_snapshot(pool, "run", 1, weights);
        close_pool(pool);
    }
    state_free(weights);
}

static bool stop_at_once(void *context, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    assert_true(done <= total);
    return ++*(int *)context < 1;
}

static struct lmcs_pool *begin_forging(const struct place *place, struct state **weights)
{
    struct rng rng = {1};
    struct lmcs_pool *pool = open_quiet(place->pool);
    *weights = state_weights(&rng, 2, 300000);
    take_snapshot(pool, "run", *weights, 1);
    put_text(pool, "v", "first");
    lmcs_live_close(new_tensor(pool, "a", 1000));
    return pool;
}

static void expect_refused(const char *path, const struct state *weights, const char *why)
{
    struct found found = {.tensor = NULL};
    struct lmcs_pool *pool;
    FAILS(LMCS_DAMAGED, lmcs_pool_open(path, LMCS_OPEN_WRITE, NULL, &pool, &err));
    if (strstr(err.message, why) == NULL)
        fprintf(stderr, "%s\n", err.message);
    EXPECT(strstr(err.message, why) != NULL);
    assert_int_equal(verify_file(path, NULL, &found), LMCS_DAMAGED);
    pool = open_pool(path, LMCS_OPEN_READ, 0);
    expect_snapshot(pool, "run", 1, weights);
    expect_text(pool, "v", "first");
    close_pool(pool);
}

/* The next number would replace an existing record. */
static void a_root_that_counts_too_low(void **state)
{
    const struct place *place = *state;
    struct state *weights;
    struct lmcs_pool *pool = begin_forging(place, &weights);
    close_pool(pool);
    const struct lmcs_root_df root = closed_root(place->pool);
    EXPECT(root.next_live == 3 && root.next_content > 2 && root.next_identity > 2 && root.next_shelf == 2);
    for (int which = 0; which < 4; which++) {
        struct lmcs_root_df forged = root;
        uint64_t *const counters[] = {&forged.next_shelf, &forged.next_identity, &forged.next_content,
                                      &forged.next_live};
        static const char *const names[] = {"shelf", "identity", "content", "live variable"};
        const uint64_t right = *counters[which], wrong[] = {right - 1, 1, 0};
        for (int i = 0; i < 3; i++) {
            *counters[which] = wrong[i];
            forged.check = lmc_hash64(&forged, offsetof(struct lmcs_root_df, check), root.self);
            file_write(place->pool, root.self, &forged, sizeof forged);
            expect_refused(place->pool, weights, wrong[i] > 0 || which == 3 ? names[which] : "impossible next ids");
        }
    }
    file_write(place->pool, root.self, &root, sizeof root);
    pool = open_quiet(place->pool);
    verify_pool(pool);
    close_pool(pool);
    state_free(weights);
}

static void a_shelf_that_counts_too_low(void **state)
{
    const struct place *place = *state;
    struct state *weights;
    struct lmcs_shelf shelf;
    struct lmcs_txn txn;
    uint64_t number;
    struct lmcs_pool *pool = begin_forging(place, &weights);
    take_snapshot(pool, "run", weights, 2);
    for (uint64_t next = 0; next < 3; next++) {
        OK(lmcs_txn_write(pool, &txn, &err));
        OK(lmcs_shelf_get(&txn, "run", &shelf, &err));
        shelf.df.next_number = next;
        OK(lmcs_shelf_save(&txn, &shelf, &err));
        OK(lmcs_txn_commit(&txn, &err));
        weights->tensors[0].data[next] ^= 1;
        FAILS(LMCS_DAMAGED, try_snapshot(pool, "run", weights, 3, &number, &err));
        EXPECT(strstr(err.message, "next snapshot of shelf \"run\"") != NULL);
        weights->tensors[0].data[next] ^= 1;
        expect_snapshot(pool, "run", 1, weights);
        expect_snapshot(pool, "run", 2, weights);
    }
    close_pool(pool);
    state_free(weights);
}

static void forge_objects(struct lmcs_pool *pool, uint32_t kind, void (*change)(struct lmcs_object_df *df))
{
    struct lmcs_root_tree_df *tree;
    struct lmcs_object_df all[64];
    struct lmcs_key_df keys[64];
    size_t count = 0;
    struct lmcs_cursor *cursor;
    struct lmcs_txn txn;
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_txn_write(pool, &txn, &err));
    tree = &txn.root.trees[LMCS_TREE_OBJECTS];
    OK(lmcs_cursor_seek(cursor, &txn, LMCS_TREE_OBJECTS, tree, (struct lmcs_key_df){0, 0}, &err));
    for (; lmcs_cursor_valid(cursor); OK(lmcs_cursor_next(cursor, &err))) {
        struct lmcs_object_df df;
        memcpy(&df, lmcs_cursor_value(cursor, NULL), sizeof df);
        if (df.kind != kind || (kind == LMCS_OBJECT_EXTENT && df.live_bytes == 0))
            continue;
        EXPECT(count < 64);
        keys[count] = lmcs_cursor_key(cursor);
        all[count++] = df;
    }
    lmcs_cursor_free(cursor);
    EXPECT(count > 0);
    for (size_t i = 0; i < count; i++) {
        change(&all[i]);
        OK(lmcs_tree_put(&txn, LMCS_TREE_OBJECTS, tree, keys[i], &all[i], sizeof all[i], &err));
    }
    OK(lmcs_txn_commit(&txn, &err));
}

static void call_live(struct lmcs_object_df *df)
{
    df->kind = LMCS_OBJECT_LIVE;
}

static void call_empty(struct lmcs_object_df *df)
{
    df->live_bytes = 0;
    df->cursor = df->first;
}

static void cut_cursor(struct lmcs_object_df *df)
{
    df->cursor = df->first;
}

static void cut_payload(struct lmcs_object_df *df)
{
    df->cursor -= LMCS_PAGE_BYTES;
}

static void call_unbacked(struct lmcs_object_df *df)
{
    df->backed = df->first;
}

/* Opening a pool punches the free space of live variables. */
static void objects_that_are_not_of_live_variables(void **state)
{
    const struct place *place = *state;
    static const uint32_t kinds[] = {LMCS_OBJECT_EXTENT, LMCS_OBJECT_SLAB};
    static const char *const whys[] = {"a payload is at", "objects for pages"};
    for (int i = 0; i < 2; i++) {
        struct state *weights;
        char path[512];
        unlink(place->pool);
        struct lmcs_pool *pool = begin_forging(place, &weights);
        forge_objects(pool, kinds[i], call_live);
        place_path(place, "forged.pool", path);
        unlink(path);
        copy_file(place->pool, path);
        close_pool(pool);
        expect_refused(path, weights, whys[i]);
        state_free(weights);
    }
}

static void extents_that_are_not_empty(void **state)
{
    const struct place *place = *state;
    static void (*const changes[])(struct lmcs_object_df * df) = {call_empty, cut_cursor, cut_payload, call_unbacked};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        for (int trims = 0; trims < 2; trims++) {
            struct state *weights;
            uint64_t number;
            unlink(place->pool);
            struct lmcs_pool *pool = begin_forging(place, &weights);
            forge_objects(pool, LMCS_OBJECT_EXTENT, changes[i]);
            close_pool(pool);
            pool = open_quiet(place->pool);
            struct rng rng = {2};
            struct state *other = state_weights(&rng, 2, 100000);
            if (trims)
                FAILS(LMCS_DAMAGED, lmcs_compact(pool, NULL, &err));
            else if (changes[i] != call_unbacked)
                FAILS(LMCS_DAMAGED, try_snapshot(pool, "run", other, 2, &number, &err));
            EXPECT(changes[i] == call_unbacked || strstr(err.message, "a payload is at offset") != NULL);
            expect_snapshot(pool, "run", 1, weights);
            close_pool(pool);
            state_free(weights);
            state_free(other);
        }
}

static void parts_of_a_pool(void **state)
{
    struct subject *subject = make_subject(((struct place *)*state)->pool);
    struct lmcs_pool *pool = open_pool(subject->path, LMCS_OPEN_READ, 0);
    struct lmcs_verify_report all, one, shelf;
    OK(lmcs_verify(pool, NULL, NULL, NULL, NULL, &all, &err));
    OK(lmcs_verify(pool, "run", NULL, NULL, NULL, &shelf, &err));
    OK(lmcs_verify(pool, "run@7", NULL, NULL, NULL, &one, &err));
    assert_int_equal(all.snapshots, SNAPSHOTS + TRAINED + 2);
    assert_int_equal(shelf.snapshots, SNAPSHOTS);
    assert_int_equal(one.snapshots, 1);
    assert_int_equal(one.contents, subject->states[6]->count);
    assert_true(one.contents < shelf.contents && shelf.contents < all.contents);
    assert_true(one.bytes_read < shelf.bytes_read && shelf.bytes_read < all.bytes_read);
    FAILS(LMCS_NOT_FOUND, lmcs_verify(pool, "run@8", NULL, NULL, NULL, &one, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_verify(pool, "walk", NULL, NULL, NULL, &one, &err));
    FAILS(LMCS_INVALID, lmcs_verify(pool, "run@latest~x", NULL, NULL, NULL, &one, &err));
    int calls = 0;
    struct lmcs_progress progress = {stop_at_once, &calls};
    FAILS(LMCS_CANCELLED, lmcs_verify(pool, NULL, NULL, NULL, &progress, &one, &err));
    close_pool(pool);
    size_t i = 0;
    uint64_t content;
    pool = open_pool(subject->path, LMCS_OPEN_READ, 0);
    content = content_of(pool, "run", 7, "several");
    assert_true(content != content_of(pool, "run", 6, "several"));
    struct lmcs_txn txn;
    struct lmcs_content found_content;
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_content_get(&txn, content, &found_content, &err));
    lmcs_txn_end(&txn);
    close_pool(pool);
    while (subject->payloads[i].offset != found_content.parts[0].offset)
        i++;
    file_flip(subject->path, subject->payloads[i].offset + 1100000, 0);
    static const struct {
        const char *address;
        enum lmcs_status expected;
    } looks[] = {{NULL, LMCS_DAMAGED},         {"run", LMCS_DAMAGED}, {"run@7", LMCS_DAMAGED},
                 {"run@latest", LMCS_DAMAGED}, {"run@4", LMCS_OK},    {"run@5", LMCS_OK},
                 {"run@6", LMCS_OK},           {"other", LMCS_OK},    {"trained", LMCS_OK}};
    for (size_t k = 0; k < sizeof looks / sizeof looks[0]; k++) {
        struct found found = {.tensor = "several", .at = 1100000};
        assert_int_equal(verify_file(subject->path, looks[k].address, &found), looks[k].expected);
        assert_true((looks[k].expected == LMCS_OK) == (found.covering == 0));
    }
    free_subject(subject);
}

struct beside {
    const char *path;
    int to_child[2];
};

static int keep_verifying(void *argument)
{
    struct beside *beside = argument;
    unsigned rounds = 0;
    char byte;
    close(beside->to_child[1]);
    struct lmcs_pool *kept = open_pool(beside->path, LMCS_OPEN_READ, 0);
    do {
        struct lmcs_pool *pool = rounds % 2 == 0 ? kept : open_pool(beside->path, LMCS_OPEN_READ, 0);
        struct lmcs_snapshot *snapshot;
        verify_pool(pool);
        check_pool(pool);
        if (lmcs_snapshot_find(pool, "run", "latest~1", &snapshot, &err) == LMCS_OK) {
            struct lmcs_view *view;
            enum lmcs_status status = lmcs_view_open(snapshot, NULL, NULL, 0, LMCS_VIEW_VERIFY, &view, &err);
            EXPECT(status == LMCS_OK || status == LMCS_NOT_FOUND);
            if (status == LMCS_OK)
                lmcs_view_close(view);
            lmcs_snapshot_close(snapshot);
        }
        if (rounds % 2 == 1)
            close_pool(pool);
        rounds++;
    } while (rounds < 4 || read(beside->to_child[0], &byte, 1) != 0); /* EAGAIN until the parent closes its end */
    close_pool(kept);
    return 0;
}

static void none_beside_a_writer(void **state)
{
    struct place *place = *state;
    struct rng rng = {7};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_mixed(&rng, 30, 20000), *weights = state_weights(&rng, 4, 30000);
    take_snapshot(pool, "run", weights, 0);
    close_pool(pool);
    struct beside beside = {.path = place->pool};
    assert_int_equal(pipe2(beside.to_child, O_CLOEXEC | O_NONBLOCK), 0);
    pid_t child = start_child(keep_verifying, &beside);
    close(beside.to_child[0]);
    pool = open_pool(place->pool, LMCS_OPEN_WRITE, 0);
    for (uint64_t i = 0; i < scaled("LMCS_TEST_SNAPSHOTS", 150); i++) {
        state_step(weights, &rng, 0, 3);
        take_snapshot(pool, "run", weights, (int64_t)i);
        if (i % 5 == 0) {
            rng_fill(&rng, now->tensors[i % 30].data, now->tensors[i % 30].bytes);
            take_snapshot(pool, "mixed", now, (int64_t)i);
        }
        struct lmcs_shelf_info info = shelf_info(pool, "run");
        uint64_t oldest;
        size_t count;
        OK(lmcs_snapshot_numbers(pool, "run", 1 + rng_below(&rng, info.latest), &oldest, 1, &count, &err));
        if (info.snapshot_count > 8)
            OK(lmcs_snapshot_remove(pool, "run", oldest, false, NULL, &err));
        if (i % 20 == 10)
            OK(lmcs_compact(pool, NULL, &err));
        OK(lmcs_tag_set(pool, "run", "newest", shelf_info(pool, "run").latest, &err));
    }
    close(beside.to_child[1]);
    expect_child(child);
    verify_pool(pool);
    close_pool(pool);
    state_free(now);
    state_free(weights);
}

static void none_in_healthy_pools(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_verify_report report;
    OK(lmcs_verify(pool, NULL, NULL, NULL, NULL, &report, &err));
    assert_int_equal(report.snapshots + report.contents + report.bytes_read + report.damages, 0);
    OK(lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, NULL));
    OK(lmcs_shelf_set_keep_raw(pool, "run", 3, &err));
    verify_pool(pool);
    OK(lmcs_verify(pool, "run", NULL, NULL, NULL, &report, &err));
    assert_int_equal(report.snapshots, 0);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(impossible_ranges_of_pages),
        ON_BOTH(free_pages_that_are_none),
        ON_BOTH(a_root_that_counts_too_low),
        ON_BOTH(a_shelf_that_counts_too_low),
        ON_BOTH(objects_that_are_not_of_live_variables),
        ON_BOTH(extents_that_are_not_empty),
        ON_BOTH(parts_of_a_pool),
        ON_BOTH(none_beside_a_writer),
        ON_BOTH(none_in_healthy_pools),
    };
    return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}
