/* SPDX-License-Identifier: BSD-3-Clause */
/* test_view_cut.c - views of cut files report an error instead of a signal. */
/* ctest: timeout=600 */
#include "test_view_support.h"

#include "lmcstore_live.h"
#include "media/media.h"
#include "pages/pool.h"

struct cut {
    const char *path;
    const struct state *state;
    off_t length;
    enum lmcs_open_mode mode;
    const char *part; /* the file that is cut */
};

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
            struct cut cut = {path, now, lengths[i], (enum lmcs_open_mode)mode, path};
            int status = run_child(read_cut_file, &cut, 120);
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                print_error("cut at %lld of %lld, mode %d: status %x\n", (long long)lengths[i], (long long)st.st_size,
                            mode, (unsigned)status);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
    }
    state_free(now);
}

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
        struct cut cut = {path, now, last + (i == 0 ? 0 : i == 1 ? 12345 : 2999999), LMCS_OPEN_READ, path};
        expect_child(start_child(cut_under_reader, &cut));
    }
    state_free(now);
}

/* Every kind of work of a writer after the cut: errors, no signals. */
static int cut_under_writer(void *argument)
{
    const struct cut *cut = argument;
    struct lmcs_pool *pool = open_pool(cut->path, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND);
    struct lmcs_scrub_options options;
    struct lmcs_scrub_report report;
    struct lmcs_capture *capture;
    struct lmcs_live *live = NULL;
    uint32_t value = 1;
    const uint64_t shape = 100000;
    const struct lmcs_tensor tensor = {.name = "x", .dtype = LMC_U8, .ndim = 1, .shape = &shape};
    const bool has_live = lmcs_live_create(pool, "run", &tensor, NULL, &live, &err) == LMCS_OK;
    EXPECT(has_live || lmcs_media_is_poolset(pool->media));
    EXPECT(truncate(cut->part, cut->length) == 0);
    lmcs_scrub_options_init(&options);
    for (int repair = 0; repair < 2; repair++) {
        options.repair = repair == 1;
        FAILS(LMCS_IO, lmcs_scrub(pool, &options, NULL, NULL, NULL, &report, &err));
        EXPECT(strstr(err.message, "cut short") != NULL && report.damages > 0);
    }
    FAILS(LMCS_DAMAGED, lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &err));
    (void)!lmcs_compact(pool, NULL, &err);
    EXPECT(lmcs_tag_set(pool, "run", "tag", 1, &err) != LMCS_OK);
    EXPECT(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err) != LMCS_OK);
    if (lmcs_capture_begin(pool, "other", &capture, &err) == LMCS_OK) {
        const void *data = cut->state->tensors[0].data;
        struct lmcs_tensor other = {.name = "t", .dtype = LMC_U8, .ndim = 1, .shape = cut->state->tensors[0].shape};
        if (lmcs_capture_put(capture, &other, &data, 1, &err) == LMCS_OK)
            EXPECT(lmcs_capture_commit(capture, NULL, NULL, &err) != LMCS_OK);
        else
            lmcs_capture_abort(capture);
    }
    if (has_live) {
        EXPECT(lmcs_live_persist(live, 0, shape, &err) != LMCS_OK || cut->length > 0);
        (void)!lmcs_live_write(live, 0, &value, sizeof value, &err);
        (void)!lmcs_live_snapshot(pool, "run", NULL, NULL, &err);
    }
    lmcs_live_close(live);
    (void)!lmcs_pool_close(pool, &err);
    struct lmcs_open_options now;
    lmcs_open_options_init(&now);
    now.wait_ms = 0;
    EXPECT(lmcs_pool_open(cut->path, LMCS_OPEN_WRITE, &now, &pool, &err) != LMCS_OK);
    return 0;
}

static void a_file_that_is_cut_under_a_writer(void **state)
{
    struct place *place = *state;
    struct rng rng = {17};
    const uint64_t sizes[] = {5000, 700000, 3000000};
    const off_t lengths[] = {0, 4096, 3 << 20, 4 << 20, 5 << 20, 8 << 20, 20 << 20};
    struct state *now = state_of_sizes(&rng, sizes, 3);
    char set[512], file[512], other[512], text[2048];
    place_path(place, "pool.set", set);
    place_path(place, "part0", file);
    place_path(place, "part1", other);
    snprintf(text, sizeof text, "PMEMPOOLSET\n32M %s\n32M %s\n", file, other);
    FILE *lines = fopen(set, "we");
    EXPECT(lines != NULL && fputs(text, lines) >= 0 && fclose(lines) == 0);
    for (int parts = 0; parts < 2; parts++) {
        const char *path = parts ? set : place->pool;
        struct lmcs_pool *pool = open_quiet(path);
        take_snapshot(pool, "run", now, 0);
        close_pool(pool);
        const char *cuts[] = {parts ? file : place->pool, other};
        for (int which = 0; which <= parts; which++)
            for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
                char whole[512];
                place_path(place, "whole", whole);
                copy_file(cuts[which], whole);
                struct cut cut = {path, now, lengths[i], LMCS_OPEN_WRITE, cuts[which]};
                int status = run_child(cut_under_writer, &cut, 120);
                if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                    print_error("%s cut at %lld: status %x\n", cuts[which], (long long)lengths[i], (unsigned)status);
                assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
                copy_file(whole, cuts[which]);
            }
    }
    state_free(now);
}

/* All data are there: a scrub reports the cut as verify does. */
static void a_scrub_reports_a_cut_without_loss(void **state)
{
    struct place *place = *state;
    struct rng rng = {18};
    const uint64_t sizes[] = {5000, 700000};
    struct state *now = state_of_sizes(&rng, sizes, 2);
    struct lmcs_scrub_report report;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", now, 0);
    close_pool(pool);
    assert_int_equal(truncate(place->pool, 64 << 20), 0);
    FAILS(LMCS_DAMAGED, lmcs_pool_open(place->pool, LMCS_OPEN_WRITE, NULL, &pool, &err));
    assert_non_null(strstr(err.message, "cut short"));
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    expect_state(pool, "run", "latest", now);
    FAILS(LMCS_DAMAGED, lmcs_verify(pool, NULL, NULL, NULL, NULL, NULL, &err));
    FAILS(LMCS_DAMAGED, lmcs_scrub(pool, NULL, NULL, NULL, NULL, &report, &err));
    assert_int_equal(report.damages, 1);
    close_pool(pool);
    state_free(now);
}

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
        ON_BOTH(names_of_one_content_have_memory_of_their_own),
        ON_BOTH(a_file_that_was_cut),
        ON_BOTH(a_file_that_is_cut_while_it_is_read),
        ON_BOTH(a_file_that_is_cut_under_a_writer),
        ON_BOTH(a_scrub_reports_a_cut_without_loss),
    };
    return cmocka_run_group_tests_name("view cut", tests, NULL, NULL);
}
