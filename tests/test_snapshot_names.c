/* SPDX-License-Identifier: BSD-3-Clause */
/* test_snapshot_names.c - tags, names, metadata and parents of snapshots. */
/* ctest: timeout=600 */
#include "test_snapshot_support.h"

static void wrong_tags(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    char too_long[LMCS_MAX_NAME + 2];
    memset(too_long, 'x', sizeof too_long);
    too_long[sizeof too_long - 1] = '\0';
    const char *bad[] = {"",     "7",    "0123", "latest", "a@b",          "a~1",      "step:1",   "a..b",   "\n",
                         "a\tb", "\x7f", "\xc3", "a\xff",  "\xed\xa0\x80", "\xc0\xaf", "\xc2\x85", too_long, NULL};
    take_step(pool, "run", 1);
    uint64_t epoch = pool_info(pool).epoch;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        FAILS(LMCS_INVALID, lmcs_tag_set(pool, "run", bad[i], 1, &err));
        FAILS(LMCS_INVALID, lmcs_tag_remove(pool, "run", bad[i], &err));
        struct lmcs_commit_options options;
        lmcs_commit_options_init(&options);
        options.tags = &bad[i];
        options.tag_count = 1;
        struct lmcs_capture *capture;
        uint64_t number = 77;
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        FAILS(LMCS_INVALID, lmcs_capture_commit(capture, &options, &number, &err));
        assert_int_equal(number, 77);
    }
    FAILS(LMCS_NOT_FOUND, lmcs_tag_set(pool, "walk", "good", 1, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_tag_set(pool, NULL, "good", 1, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_tag_set(pool, "run", "good", 0, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_tag_set(pool, "run", "good", 2, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_tag_remove(pool, "run", "good", &err));
    assert_int_equal(pool_info(pool).epoch, epoch);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 1);
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    OK(lmcs_tag_set(pool, "run", "good", 1, &err));
    OK(lmcs_tag_remove(pool, "run", "good", &err));
    FAILS(LMCS_READ_ONLY, lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    close_pool(pool);
}

/* LMCS_MAX_NAME bytes, in characters of 1 to 4 bytes. */
static void long_name(char name[LMCS_MAX_NAME + 1], unsigned seed)
{
    static const char *const characters[] = {"a",
                                             "\xc3\xa9",
                                             "\xe6\xbc\xa2",
                                             "\xf0\x9f\xa7\xa0",
                                             "\xc2\xa0",
                                             "\xed\x9f\xbf",
                                             "\xef\xbf\xbd",
                                             "\xf4\x8f\xbf\xbf",
                                             " ",
                                             "/",
                                             "\"",
                                             "\\",
                                             "%s",
                                             "'"};
    size_t length = (size_t)snprintf(name, 16, "n%u", seed);
    for (size_t i = seed; length + 4 <= LMCS_MAX_NAME; i++) {
        const char *next = characters[i * 5 % (sizeof characters / sizeof characters[0])];
        memcpy(name + length, next, strlen(next));
        length += strlen(next);
    }
    memset(name + length, 'z', LMCS_MAX_NAME - length);
    name[LMCS_MAX_NAME] = '\0';
}

static bool stop_at_once(void *context, const char *tag)
{
    count_tag(context, tag);
    return false;
}

static bool note_shelf(void *context, const struct lmcs_shelf_info *info)
{
    char(*names)[LMCS_MAX_NAME + 1] = context;
    size_t i = 0;
    while (names[i][0] != '\0')
        i++;
    strcpy(names[i], info->name);
    return true;
}

static void expect_long_names(struct lmcs_pool *pool, const char *shelf, const char *name, uint32_t kind)
{
    struct lmcs_snapshot *snapshot;
    uint64_t got = 0;
    OK(lmcs_snapshot_find(pool, shelf, name, &snapshot, &err));
    assert_string_equal(lmcs_snapshot_info(snapshot)->shelf, shelf);
    OK(lmcs_snapshot_read(snapshot, kind, name, &got, sizeof got, &err));
    assert_int_equal(got, 7);
    size_t count = 0;
    OK(lmcs_snapshot_tags(snapshot, count_tag, &count, &err));
    assert_int_equal(count, 40);
    count = 0;
    OK(lmcs_snapshot_tags(snapshot, stop_at_once, &count, &err));
    assert_int_equal(count, 1);
    lmcs_snapshot_close(snapshot);
}

static void names_of_a_kibibyte(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    static char names[40][LMCS_MAX_NAME + 1];
    uint64_t value = 7;
    const void *data = &value;
    struct lmcs_commit_options options;
    for (unsigned i = 0; i < 40; i++)
        long_name(names[i], i);
    struct lmcs_capture *capture;
    lmcs_commit_options_init(&options);
    const char *tags[40];
    for (size_t i = 0; i < 40; i++)
        tags[i] = names[i];
    options.tags = tags;
    options.tag_count = 40;
    OK(lmcs_capture_begin(pool, names[0], &capture, &err));
    for (size_t i = 0; i < 40; i++) {
        struct lmcs_tensor tensor = {.name = names[i], .kind = i % 2, .dtype = i % 2 == 0 ? LMC_U64 : LMC_U8};
        uint64_t shape = 8;
        tensor.ndim = i % 2;
        tensor.shape = &shape;
        OK(lmcs_capture_put(capture, &tensor, &data, 1, &err));
    }
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    take_step(pool, names[1], 5);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < 40; i++)
            expect_long_names(pool, names[0], names[i], i % 2);
        char address[2 * LMCS_MAX_NAME + 8];
        snprintf(address, sizeof address, "%s@%s~0", names[0], names[39]);
        assert_int_equal(at(pool, address), 1);
        static char shelves[4][LMCS_MAX_NAME + 1];
        memset(shelves, 0, sizeof shelves);
        OK(lmcs_shelf_list(pool, note_shelf, shelves, &err));
        assert_string_equal(shelves[strcmp(names[0], names[1]) < 0 ? 0 : 1], names[0]);
        assert_string_equal(shelves[strcmp(names[0], names[1]) < 0 ? 1 : 0], names[1]);
        assert_int_equal(shelves[2][0], '\0');
        OK(lmcs_compact(pool, NULL, &err));
        close_pool(pool);
        pool = open_quiet(place->pool);
    }
    struct lmcs_removal removal;
    OK(lmcs_snapshot_remove(pool, names[0], 1, false, &removal, &err));
    assert_int_equal(removal.removed_tags, 40);
    verify_pool(pool);
    close_pool(pool);
}

static void shelves_of_wrong_names(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    char too_long[LMCS_MAX_NAME + 2];
    memset(too_long, 'x', sizeof too_long);
    too_long[sizeof too_long - 1] = '\0';
    const char *bad[] = {"", "a@b", "\n", "\xff", "ab\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", too_long, NULL};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct lmcs_capture *capture = NULL;
        struct lmcs_shelf_info info;
        FAILS(LMCS_INVALID, lmcs_shelf_set_keep_raw(pool, bad[i], 2, &err));
        enum lmcs_status status = lmcs_capture_begin(pool, bad[i], &capture, &err);
        if (status == LMCS_OK)
            status = lmcs_capture_commit(capture, NULL, NULL, &err);
        assert_int_equal(status, LMCS_INVALID);
        status = lmcs_shelf_info(pool, bad[i], &info, &err);
        assert_true(status == LMCS_NOT_FOUND || status == LMCS_INVALID);
        status = lmcs_snapshot_remove(pool, bad[i], 1, false, NULL, &err);
        assert_true(status == LMCS_NOT_FOUND || status == LMCS_INVALID);
    }
    assert_int_equal(pool_info(pool).shelf_count, 0);
    close_pool(pool);
}

static bool same_double(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void expect_kept(struct lmcs_pool *pool, size_t i, const char *meta, const struct lmcs_metric *metrics,
                        char (*names)[LMCS_MAX_NAME + 1], size_t count)
{
    char which[32];
    snprintf(which, sizeof which, "%zu", i + 1);
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
    const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
    assert_string_equal(info->meta_json, meta == NULL ? "{}" : meta);
    assert_int_equal(info->metric_count, count);
    for (size_t k = 0; k < count; k++) {
        size_t found = 0;
        while (found < count && strcmp(info->metrics[found].name, names[k]) != 0)
            found++;
        assert_true(found < count && same_double(info->metrics[found].value, metrics[k].value));
    }
    assert_true(i == 1 ? info->time_ns == 1234567890123456789u : info->time_ns > 1600000000000000000u);
    assert_int_equal(info->tensor_count, 1);
    assert_true(info->step == LMCS_NO_STEP);
    lmcs_snapshot_close(snapshot);
}

static void metrics_and_metadata(void **state)
{
    struct place *place = *state;
    struct rng rng = {2};
    struct lmcs_pool *pool = open_quiet(place->pool);
    enum { METRICS = 300 };
    static struct lmcs_metric metrics[METRICS];
    static char names[METRICS][LMCS_MAX_NAME + 1];
    static const double odd[] = {
        0.0, -0.0, 1.0, 0.1, 1e308, 5e-324, NAN, INFINITY, -INFINITY, 1.0 / 3, 123456789012345680.0};
    for (size_t i = 0; i < METRICS; i++) {
        snprintf(names[i], sizeof names[i], "loss/%zu \xe6\xbc\xa2 \"%zu\" \\", i, i);
        if (i == 5)
            long_name(names[i], 3);
        uint64_t bits = rng_next(&rng);
        memcpy(&metrics[i].value, &bits, sizeof bits);
        if (i < sizeof odd / sizeof odd[0])
            metrics[i].value = odd[i];
        metrics[i].name = names[i];
    }
    char *large = malloc(3000000);
    strcpy(large, "{\"text\": \"");
    memset(large + 10, 'y', 2900000);
    strcpy(large + 10 + 2900000, "\"}");
    const char *metas[] = {NULL,
                           "{}",
                           " { \"a\" : [1, 2.50, null, true, \"\\u00e9\\n\"] ,\n \"b\": {\"c\": -0.0} } ",
                           "{\"metrics\": {}, \"meta\": {}}",
                           "{\"\\\",\\\"meta\\\":\": 1}",
                           "{\"long\": 12345678901234567}",
                           large};
    enum { METAS = sizeof metas / sizeof metas[0] };
    static const size_t counts[] = {0, 3, METRICS, 1, 11, 2, METRICS};
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.metrics = metrics;
    for (size_t i = 0; i < METAS; i++) {
        options.meta_json = metas[i];
        options.metric_count = counts[i];
        options.time_ns = i == 1 ? 1234567890123456789u : 0;
        options.group[i] = i == 3;
        assert_int_equal(take(pool, "run", i, &options), i + 1);
    }
    for (int pass = 0; pass < 3; pass++) {
        for (size_t i = 0; i < METAS; i++)
            expect_kept(pool, i, metas[i], metrics, names, counts[i]);
        if (pass == 0)
            OK(lmcs_compact(pool, NULL, &err));
        if (pass == 1) {
            close_pool(pool);
            pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        }
    }
    verify_pool(pool);
    close_pool(pool);
    free(large);
}

static void wrong_metrics_and_metadata(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    static const char *const bad[] = {"",
                                      "[]",
                                      "1",
                                      "null",
                                      "{",
                                      "{\"a\": 1} x",
                                      "{\"a\": 01}",
                                      "x",
                                      "{\"a\": }",
                                      "{a: 1}",
                                      "{\"a\": 1, \"a\": 2}",
                                      "{\"a\": \"\xff\"}",
                                      "{\"a\": NaN}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0] + 4; i++) {
        struct lmcs_metric metrics[2] = {{"a", 1}, {"b", 2}};
        struct lmcs_commit_options options;
        lmcs_commit_options_init(&options);
        options.metrics = metrics;
        options.metric_count = 2;
        size_t more = i - sizeof bad / sizeof bad[0];
        if (i < sizeof bad / sizeof bad[0])
            options.meta_json = bad[i];
        else
            metrics[1].name = more == 0 ? "a" : more == 1 ? "" : more == 2 ? "\xff" : NULL;
        struct lmcs_capture *capture;
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        FAILS(LMCS_INVALID, lmcs_capture_commit(capture, &options, NULL, &err));
    }
    absent(pool, "run");
    check_pool(pool);
    close_pool(pool);
}

static uint64_t parent_of(struct lmcs_pool *pool, uint64_t number)
{
    char address[64];
    struct lmcs_snapshot *snapshot;
    snprintf(address, sizeof address, "run@%llu", (unsigned long long)number);
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    uint64_t parent = lmcs_snapshot_info(snapshot)->parent;
    lmcs_snapshot_close(snapshot);
    return parent;
}

static void parents(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_commit_options options;
    struct lmcs_snapshot *snapshot;
    lmcs_commit_options_init(&options);
    assert_int_equal(parent_of(pool, take(pool, "run", 1, &options)), 0);
    assert_int_equal(parent_of(pool, take(pool, "run", 2, &options)), 1);
    options.parent = 1;
    assert_int_equal(parent_of(pool, take(pool, "run", 3, &options)), 1);
    options.parent = UINT64_MAX;
    assert_int_equal(parent_of(pool, take(pool, "run", 4, &options)), 0);
    options.parent = 0;
    assert_int_equal(parent_of(pool, take(pool, "run", 5, &options)), 4);
    OK(lmcs_snapshot_open(pool, "run@2", &snapshot, &err));
    lmcs_snapshot_mark_loaded(snapshot);
    lmcs_snapshot_close(snapshot);
    assert_int_equal(parent_of(pool, take(pool, "run", 6, &options)), 2);
    assert_int_equal(parent_of(pool, take(pool, "run", 7, &options)), 6);
    close_pool(pool);
    pool = open_quiet(place->pool);
    assert_int_equal(parent_of(pool, take(pool, "run", 8, &options)), 7);
    OK(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    assert_int_equal(parent_of(pool, 6), 2);
    check_pool(pool);
    close_pool(pool);
}

/* A rewind during a commit: the commit's parent is the snapshot before it, the next one's is the loaded one. */
static void loaded_while_a_commit_is_under_way(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    uint64_t before = take(pool, "run", 1, &options);
    for (int64_t i = 0; i < 20; i++) {
        struct rng rng = {(uint64_t)i};
        struct state *weights = state_weights(&rng, 8, 20000);
        struct lmcs_capture *capture;
        struct lmcs_snapshot *first;
        uint64_t number;
        options.asynchronous = true;
        OK(lmcs_snapshot_open(pool, "run@1", &first, &err));
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        put_state(capture, weights);
        OK(lmcs_capture_commit(capture, &options, &number, &err));
        lmcs_snapshot_mark_loaded(first);
        OK(lmcs_capture_wait(capture, &err));
        assert_int_equal(parent_of(pool, number), before);
        options.asynchronous = false;
        before = take(pool, "run", i, &options);
        assert_int_equal(parent_of(pool, before), 1);
        lmcs_snapshot_close(first);
        state_free(weights);
    }
    close_pool(pool);
}

static uint64_t take_prepared(struct lmcs_pool *pool, struct lmcs_commit_options *options)
{
    options->prepare = true;
    options->group[0]++;
    uint64_t number = take(pool, "run", options->group[0], options);
    options->prepare = false;
    return number;
}

static void mark(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    lmcs_snapshot_mark_loaded(snapshot);
    lmcs_snapshot_close(snapshot);
}

/* A committed group is the parent of this process's next snapshots, unless one was loaded meanwhile. */
static void parents_of_groups(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    assert_int_equal(take_prepared(pool, &options), 1);
    OK(lmcs_group_resolve(pool, options.group, true, &err));
    for (uint64_t expected = 2; expected < 5; expected++) {
        assert_int_equal(take_prepared(pool, &options), expected);
        OK(lmcs_group_resolve(pool, options.group, true, &err));
        assert_int_equal(parent_of(pool, expected), expected - 1);
    }
    assert_int_equal(parent_of(pool, take(pool, "run", 5, &options)), 4);
    mark(pool, "run@2");
    assert_int_equal(take_prepared(pool, &options), 6);
    OK(lmcs_group_resolve(pool, options.group, true, &err));
    assert_int_equal(parent_of(pool, 6), 2);
    assert_int_equal(take_prepared(pool, &options), 7);
    OK(lmcs_group_resolve(pool, options.group, false, &err));
    assert_int_equal(parent_of(pool, take(pool, "run", 8, &options)), 6);
    assert_int_equal(take_prepared(pool, &options), 9);
    mark(pool, "run@3");
    OK(lmcs_group_resolve(pool, options.group, true, &err));
    assert_int_equal(parent_of(pool, take(pool, "run", 10, &options)), 3);
    assert_int_equal(take_prepared(pool, &options), 11);
    close_pool(pool);
    pool = open_quiet(place->pool);
    OK(lmcs_group_resolve(pool, options.group, true, &err));
    assert_int_equal(parent_of(pool, take(pool, "run", 12, &options)), 11);
    check_pool(pool);
    close_pool(pool);
}

/* A handle survives the renaming or removal of its shelf; the old name belongs to another shelf. */
static void loaded_from_a_shelf_that_was_renamed(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_commit_options options;
    struct lmcs_snapshot *second, *latest;
    lmcs_commit_options_init(&options);
    for (uint64_t i = 1; i < 5; i++)
        take(pool, "run", i, &options);
    OK(lmcs_snapshot_open(pool, "run@2", &second, &err));
    OK(lmcs_shelf_rename(pool, "run", "moved", &err));
    lmcs_snapshot_mark_loaded(second);
    assert_int_equal(take(pool, "moved", 5, &options), 5);
    OK(lmcs_snapshot_open(pool, "moved@5", &latest, &err));
    assert_int_equal(lmcs_snapshot_info(latest)->parent, 2);
    lmcs_snapshot_close(latest);
    assert_int_equal(parent_of(pool, take(pool, "run", 1, &options)), 0);
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    OK(lmcs_shelf_rename(pool, "moved", "run", &err));
    OK(lmcs_shelf_drop(pool, "run", false, NULL, &err));
    lmcs_snapshot_mark_loaded(second);
    assert_int_equal(parent_of(pool, take(pool, "run", 1, &options)), 0);
    lmcs_snapshot_close(second);
    check_pool(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(wrong_tags),
        ON_BOTH(names_of_a_kibibyte),
        IN_MEMORY(shelves_of_wrong_names),
        ON_BOTH(metrics_and_metadata),
        IN_MEMORY(wrong_metrics_and_metadata),
        ON_BOTH(parents),
        ON_BOTH(loaded_while_a_commit_is_under_way),
        ON_BOTH(parents_of_groups),
        IN_MEMORY(loaded_from_a_shelf_that_was_renamed),
    };
    return cmocka_run_group_tests_name("snapshot names", tests, NULL, NULL);
}
