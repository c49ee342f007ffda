/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_snapshot.c - finding, listing, tagging, describing and removing snapshots: against a model where much can be
 * combined, and one by one where something is refused.
 */
/* ctest: timeout=600 */
#include "support.h"

#include <math.h>
#include <unistd.h>

/* A snapshot of one small tensor of its own. */
static uint64_t take(struct lmcs_pool *pool, const char *shelf, uint64_t value,
                     const struct lmcs_commit_options *options)
{
    struct lmcs_capture *capture;
    struct lmcs_tensor tensor = {.name = "value", .dtype = LMC_U64};
    const void *data = &value;
    uint64_t number = 0;
    OK(lmcs_capture_begin(pool, shelf, &capture, &err));
    OK(lmcs_capture_put(capture, &tensor, &data, 1, &err));
    OK(lmcs_capture_commit(capture, options, &number, &err));
    return number;
}

static uint64_t take_step(struct lmcs_pool *pool, const char *shelf, int64_t step)
{
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    options.step = step;
    return take(pool, shelf, (uint64_t)step, &options);
}

/* The number that an address stands for. */
static uint64_t at(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot;
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    uint64_t number = lmcs_snapshot_info(snapshot)->number;
    lmcs_snapshot_close(snapshot);
    return number;
}

static void absent(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot = NULL;
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_open(pool, address, &snapshot, &err));
    assert_null(snapshot);
    assert_true(err.message[0] != '\0');
}

static void wrong(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot = NULL;
    FAILS(LMCS_INVALID, lmcs_snapshot_open(pool, address, &snapshot, &err));
    assert_null(snapshot);
    assert_true(err.message[0] != '\0');
}

/* ---- Addresses ---- */

static void addresses(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    static const int64_t steps[] = {0, -5, 10, 10, INT64_MAX, INT64_MIN + 1, LMCS_NO_STEP, 7};
    absent(pool, "run");
    OK(lmcs_shelf_set_keep_raw(pool, "run", 2, &err)); /* which makes it, empty */
    absent(pool, "run");
    absent(pool, "run@latest");
    absent(pool, "run@latest~0");
    absent(pool, "run@1");
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(take_step(pool, "run", steps[i]), i + 1);
    OK(lmcs_tag_set(pool, "run", "best", 4, &err));
    OK(lmcs_tag_set(pool, "run", "step", 3, &err));
    OK(lmcs_tag_set(pool, "run", "latest2", 2, &err));
    OK(lmcs_tag_set(pool, "run", "1.5 of -3", 1, &err));
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(at(pool, "run"), 8);
        assert_int_equal(at(pool, "run@"), 8);
        assert_int_equal(at(pool, "run@latest"), 8);
        assert_int_equal(at(pool, "run@latest~0"), 8);
        assert_int_equal(at(pool, "run@latest~"), 7);
        assert_int_equal(at(pool, "run@latest~1"), 7);
        assert_int_equal(at(pool, "run@latest~7"), 1);
        assert_int_equal(at(pool, "run@latest~007"), 1);
        assert_int_equal(at(pool, "run@3"), 3);
        assert_int_equal(at(pool, "run@003"), 3);
        assert_int_equal(at(pool, "run@3~2"), 1);
        assert_int_equal(at(pool, "run@best"), 4);
        assert_int_equal(at(pool, "run@best~3"), 1);
        assert_int_equal(at(pool, "run@step"), 3);
        assert_int_equal(at(pool, "run@latest2"), 2);
        assert_int_equal(at(pool, "run@1.5 of -3"), 1);
        assert_int_equal(at(pool, "run@step:0"), 1);
        assert_int_equal(at(pool, "run@step:-0"), 1);
        assert_int_equal(at(pool, "run@step:-5"), 2);
        assert_int_equal(at(pool, "run@step:10"), 4); /* the newest of them */
        assert_int_equal(at(pool, "run@step:10~1"), 3);
        assert_int_equal(at(pool, "run@step:9223372036854775807"), 5);
        assert_int_equal(at(pool, "run@step:-9223372036854775807"), 6);
        static const char *const no_such[] = {"other",
                                              "other@latest",
                                              "run@0",
                                              "run@9",
                                              "run@18446744073709551615",
                                              "run@best~4",
                                              "run@latest~8",
                                              "run@1~1",
                                              "run@nobody",
                                              "run@99999999999999999999999999",
                                              "run@Best",
                                              "run@step:1",
                                              "run@step:-1",
                                              "run@step:11",
                                              "run@step:9223372036854775808",
                                              "run@nobody~1",
                                              "run@step:99~1",
                                              "ru",
                                              "run ",
                                              "run@step:-9223372036854775808",
                                              "run@latest~18446744073709551616",
                                              "run@bes",
                                              "run@best ",
                                              "run@latest~99999999999999999999999"};
        for (size_t i = 0; i < sizeof no_such / sizeof no_such[0]; i++)
            absent(pool, no_such[i]);
        static const char *const no_address[] = {"",
                                                 "@",
                                                 "@1",
                                                 "@latest",
                                                 "run@step:",
                                                 "run@step:x",
                                                 "run@step:1x",
                                                 "run@step: 1",
                                                 "run@step:+1",
                                                 "run@step:--1",
                                                 "run@step:1.0",
                                                 "run@step:-",
                                                 "run@latest~x",
                                                 "run@latest~-1",
                                                 "run@latest~1~1",
                                                 "run@latest~ 1",
                                                 "run@best~1x",
                                                 "run@a:b",
                                                 "run@a@b",
                                                 "run@\x01",
                                                 "run@\xff",
                                                 "run@a..b"};
        for (size_t i = 0; i < sizeof no_address / sizeof no_address[0]; i++)
            wrong(pool, no_address[i]);
        wrong(pool, NULL);
        if (pass == 0) {
            close_pool(pool);
            pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
        }
    }
    char longest[2 * LMCS_MAX_NAME + 10];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    wrong(pool, longest);
    memcpy(longest, "run@", 4);
    wrong(pool, longest);
    close_pool(pool);
}

/* Numbers are never used again, and addresses go by what is there. */
static void addresses_after_removal(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    for (int64_t i = 1; i <= 6; i++)
        take_step(pool, "run", i / 2);
    OK(lmcs_tag_set(pool, "run", "best", 5, &err));
    OK(lmcs_snapshot_remove(pool, "run", 6, false, NULL, &err));
    OK(lmcs_snapshot_remove(pool, "run", 4, false, NULL, &err));
    OK(lmcs_snapshot_remove(pool, "run", 3, false, NULL, &err));
    assert_int_equal(at(pool, "run"), 5);
    assert_int_equal(at(pool, "run@latest~1"), 2);
    assert_int_equal(at(pool, "run@best~2"), 1);
    assert_int_equal(at(pool, "run@step:2"), 5);
    absent(pool, "run@step:3");
    absent(pool, "run@6");
    absent(pool, "run@4~1");
    absent(pool, "run@best~3");
    close_pool(pool);
    pool = open_quiet(place->pool);
    assert_int_equal(take_step(pool, "run", 9), 7);
    assert_int_equal(at(pool, "run@latest~1"), 5);
    for (uint64_t n = 1; n <= 7; n++)
        if (n != 3 && n != 4 && n != 6)
            OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    absent(pool, "run");
    absent(pool, "run@best");
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 0);
    assert_int_equal(shelf_info(pool, "run").latest, 0);
    assert_int_equal(take_step(pool, "run", 9), 8);
    check_pool(pool);
    close_pool(pool);
}

/* ---- Lists ---- */

static void lists_come_in_pages(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    enum { COUNT = 60 };
    uint64_t numbers[COUNT + 5];
    size_t count;
    for (int64_t i = 1; i <= COUNT; i++)
        take_step(pool, "run", i % 3 == 0 ? LMCS_NO_STEP : i % 3 - 2); /* -1, 0 and none */
    for (uint64_t n = 10; n < 20; n++)
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
    for (size_t page = 1; page <= COUNT + 5; page += page < 5 ? 1 : 15) {
        uint64_t first = 0, expected = 1, seen = 0;
        do {
            OK(lmcs_snapshot_numbers(pool, "run", first, numbers, page, &count, &err));
            for (size_t i = 0; i < count; i++) {
                expected = expected == 10 ? 20 : expected;
                assert_int_equal(numbers[i], expected++);
            }
            seen += count;
            first = expected;
        } while (count == page);
        assert_int_equal(seen, COUNT - 10);
        for (int64_t step = -1; step <= 0; step++) {
            uint64_t of_step = 0;
            first = 0;
            expected = step == -1 ? 1 : 2;
            do {
                OK(lmcs_snapshot_steps(pool, "run", step, first, numbers, page, &count, &err));
                for (size_t i = 0; i < count; i++) {
                    while (expected >= 10 && expected < 20)
                        expected += 3;
                    assert_int_equal(numbers[i], expected);
                    expected += 3;
                }
                of_step += count;
                first = count > 0 ? numbers[count - 1] + 1 : 0;
            } while (count == page);
            assert_int_equal(of_step, step == -1 ? 16 : 17);
        }
    }
    OK(lmcs_snapshot_numbers(pool, "run", 15, numbers, 1, &count, &err));
    assert_true(count == 1 && numbers[0] == 20);
    OK(lmcs_snapshot_numbers(pool, "run", COUNT, numbers, 5, &count, &err));
    assert_true(count == 1 && numbers[0] == COUNT);
    OK(lmcs_snapshot_numbers(pool, "run", COUNT + 1, numbers, 5, &count, &err));
    assert_int_equal(count, 0);
    OK(lmcs_snapshot_numbers(pool, "run", UINT64_MAX, numbers, 5, &count, &err));
    assert_int_equal(count, 0);
    OK(lmcs_snapshot_numbers(pool, "run", 0, numbers, 0, &count, &err));
    assert_int_equal(count, 0);
    OK(lmcs_snapshot_steps(pool, "run", 1, 0, numbers, 5, &count, &err));
    assert_int_equal(count, 0);
    OK(lmcs_snapshot_steps(pool, "run", -1, 50, numbers, 5, &count, &err));
    assert_true(count == 3 && numbers[0] == 52 && numbers[2] == 58);
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_numbers(pool, "walk", 0, numbers, 5, &count, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_steps(pool, NULL, 0, 0, numbers, 5, &count, &err));
    close_pool(pool);
}

/* ---- Everything at once, against a model ---- */

enum { SLOTS = 400, TAGS = 12, ROUNDS = 700 };

struct model {
    bool there[SLOTS];
    int64_t step[SLOTS];
    uint64_t next;
    uint64_t tag[TAGS]; /* the snapshot that has it; 0: none */
};

static const char *tag_name(size_t tag, char buffer[32])
{
    snprintf(buffer, 32, "tag-%zu", tag);
    return buffer;
}

static uint64_t model_latest(const struct model *model, uint64_t back, uint64_t from)
{
    for (uint64_t n = from; n > 0; n--)
        if (model->there[n] && back-- == 0)
            return n;
    return 0;
}

static void expect_address(struct lmcs_pool *pool, const char *address, uint64_t number)
{
    if (number == 0)
        absent(pool, address);
    else
        assert_int_equal(at(pool, address), number);
}

struct tags_seen {
    const struct model *model;
    uint64_t number;
    size_t count;
    bool right;
};

static bool see_tag(void *context, const char *tag)
{
    struct tags_seen *seen = context;
    size_t i = strtoull(tag + 4, NULL, 10);
    seen->count++;
    seen->right = seen->right && strncmp(tag, "tag-", 4) == 0 && i < TAGS && seen->model->tag[i] == seen->number;
    return true;
}

static void expect_model(struct lmcs_pool *pool, const struct model *model)
{
    char address[64], name[32];
    uint64_t numbers[SLOTS], count = 0;
    size_t got;
    for (uint64_t n = 1; n < model->next; n++)
        count += model->there[n];
    OK(lmcs_snapshot_numbers(pool, "run", 0, numbers, SLOTS, &got, &err));
    assert_int_equal(got, count);
    for (size_t i = 0; i < got; i++)
        assert_true(model->there[numbers[i]]);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, count);
    assert_int_equal(shelf_info(pool, "run").latest, model_latest(model, 0, model->next - 1));
    assert_int_equal(shelf_info(pool, "run").next_number, model->next);
    for (uint64_t back = 0; back < 4; back++) {
        snprintf(address, sizeof address, "run@latest~%llu", (unsigned long long)back);
        expect_address(pool, address, model_latest(model, back, model->next - 1));
    }
    for (size_t tag = 0; tag < TAGS; tag++) {
        snprintf(address, sizeof address, "run@%s", tag_name(tag, name));
        expect_address(pool, address, model->tag[tag]);
        snprintf(address, sizeof address, "run@%s~1", name);
        expect_address(pool, address, model->tag[tag] == 0 ? 0 : model_latest(model, 1, model->tag[tag]));
    }
    for (int64_t step = -4; step < 4; step++) {
        uint64_t newest = 0, of_step = 0;
        for (uint64_t n = 1; n < model->next; n++)
            if (model->there[n] && model->step[n] == step) {
                newest = n;
                of_step++;
            }
        snprintf(address, sizeof address, "run@step:%lld", (long long)step);
        expect_address(pool, address, newest);
        OK(lmcs_snapshot_steps(pool, "run", step, 0, numbers, SLOTS, &got, &err));
        assert_int_equal(got, of_step);
        for (size_t i = 0; i < got; i++)
            assert_true(model->there[numbers[i]] && model->step[numbers[i]] == step);
    }
    for (uint64_t n = model->next > 20 ? model->next - 20 : 1; n < model->next; n++) {
        struct tags_seen seen = {model, n, 0, true};
        struct lmcs_snapshot *snapshot;
        snprintf(address, sizeof address, "%llu", (unsigned long long)n);
        if (!model->there[n])
            continue;
        OK(lmcs_snapshot_find(pool, "run", address, &snapshot, &err));
        assert_true(lmcs_snapshot_info(snapshot)->step == model->step[n]);
        OK(lmcs_snapshot_tags(snapshot, see_tag, &seen, &err));
        lmcs_snapshot_close(snapshot);
        for (size_t tag = 0; tag < TAGS; tag++)
            seen.count -= model->tag[tag] == n;
        assert_true(seen.right && seen.count == 0);
    }
}

static void change_tags(struct lmcs_pool *pool, struct model *model, struct rng *rng)
{
    char name[32];
    size_t tag = rng_below(rng, TAGS);
    uint64_t number = rng_below(rng, model->next + 2);
    tag_name(tag, name);
    if (rng_below(rng, 4) > 0) {
        if (number < model->next && model->there[number]) {
            OK(lmcs_tag_set(pool, "run", name, number, &err));
            model->tag[tag] = number;
        } else {
            FAILS(LMCS_NOT_FOUND, lmcs_tag_set(pool, "run", name, number, &err));
        }
    } else if (model->tag[tag] != 0) {
        OK(lmcs_tag_remove(pool, "run", name, &err));
        model->tag[tag] = 0;
    } else {
        FAILS(LMCS_NOT_FOUND, lmcs_tag_remove(pool, "run", name, &err));
    }
}

static void remove_one(struct lmcs_pool *pool, struct model *model, struct rng *rng)
{
    uint64_t number = rng_below(rng, model->next + 2), tags = 0;
    struct lmcs_removal wished, done;
    if (number >= model->next || !model->there[number]) {
        FAILS(LMCS_NOT_FOUND, lmcs_snapshot_remove(pool, "run", number, false, NULL, &err));
        return;
    }
    OK(lmcs_snapshot_remove(pool, "run", number, true, &wished, &err));
    expect_model(pool, model);
    OK(lmcs_snapshot_remove(pool, "run", number, false, &done, &err));
    model->there[number] = false;
    for (size_t tag = 0; tag < TAGS; tag++)
        if (model->tag[tag] == number) {
            model->tag[tag] = 0;
            tags++;
        }
    assert_int_equal(done.removed_tags, tags);
    assert_memory_equal(&wished, &done, sizeof done);
}

static void take_with_tags(struct lmcs_pool *pool, struct model *model, struct rng *rng)
{
    struct lmcs_commit_options options;
    char names[2][32];
    const char *tags[2] = {names[0], names[1]};
    lmcs_commit_options_init(&options);
    options.step = rng_below(rng, 5) == 0 ? LMCS_NO_STEP : (int64_t)rng_below(rng, 8) - 4;
    options.tags = tags;
    options.tag_count = rng_below(rng, 3);
    size_t first = rng_below(rng, TAGS), which[2] = {first, (first + 1) % TAGS};
    for (size_t i = 0; i < 2; i++)
        tag_name(which[i], names[i]);
    uint64_t number = take(pool, "run", rng_next(rng), &options);
    assert_int_equal(number, model->next);
    model->next++;
    model->there[number] = true;
    model->step[number] = options.step;
    for (size_t i = 0; i < options.tag_count; i++)
        model->tag[which[i]] = number;
}

static void random_changes_against_a_model(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    static struct model model;
    memset(&model, 0, sizeof model);
    model.next = 1;
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_with_tags(pool, &model, &rng);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t what = rng_below(&rng, 10);
        if (what < 4 && model.next < SLOTS - 2)
            take_with_tags(pool, &model, &rng);
        else if (what < 7)
            change_tags(pool, &model, &rng);
        else
            remove_one(pool, &model, &rng);
        if (round % 20 == 0)
            expect_model(pool, &model);
        if (round % 100 == 99) {
            check_pool(pool);
            if (round % 200 == 99)
                OK(lmcs_compact(pool, NULL, &err));
            close_pool(pool);
            pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
            expect_model(pool, &model);
            close_pool(pool);
            pool = open_quiet(place->pool);
        }
    }
    expect_model(pool, &model);
    verify_pool(pool);
    close_pool(pool);
}

/* ---- Tags and names ---- */

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
    FAILS(LMCS_READ_ONLY, lmcs_tag_set(pool, "run", "good", 1, &err));
    FAILS(LMCS_READ_ONLY, lmcs_tag_remove(pool, "run", "good", &err));
    FAILS(LMCS_READ_ONLY, lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    close_pool(pool);
}

/* A name of exactly LMCS_MAX_NAME bytes, of characters of 1 to 4 bytes. */
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

static bool count_tag(void *context, const char *tag)
{
    (void)tag;
    ++*(size_t *)context;
    return true;
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

static void names_of_a_kibibyte(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    static char names[40][LMCS_MAX_NAME + 1];
    uint64_t value = 7;
    const void *data = &value;
    struct lmcs_commit_options options;
    struct lmcs_snapshot *snapshot;
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
        for (size_t i = 0; i < 40; i++) {
            uint64_t got = 0;
            OK(lmcs_snapshot_find(pool, names[0], names[i], &snapshot, &err));
            assert_string_equal(lmcs_snapshot_info(snapshot)->shelf, names[0]);
            OK(lmcs_snapshot_read(snapshot, i % 2, names[i], &got, sizeof got, &err));
            assert_int_equal(got, 7);
            size_t count = 0;
            OK(lmcs_snapshot_tags(snapshot, count_tag, &count, &err));
            assert_int_equal(count, 40);
            count = 0;
            OK(lmcs_snapshot_tags(snapshot, stop_at_once, &count, &err));
            assert_int_equal(count, 1);
            lmcs_snapshot_close(snapshot);
        }
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

/* ---- What is kept with a snapshot ---- */

static bool same_double(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
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
        for (size_t i = 0; i < METAS; i++) {
            char which[32];
            snprintf(which, sizeof which, "%zu", i + 1);
            struct lmcs_snapshot *snapshot;
            OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
            const struct lmcs_snapshot_info *info = lmcs_snapshot_info(snapshot);
            assert_string_equal(info->meta_json, metas[i] == NULL ? "{}" : metas[i]);
            assert_int_equal(info->metric_count, counts[i]);
            for (size_t k = 0; k < counts[i]; k++) {
                size_t found = 0;
                while (found < counts[i] && strcmp(info->metrics[found].name, names[k]) != 0)
                    found++;
                assert_true(found < counts[i] && same_double(info->metrics[found].value, metrics[k].value));
            }
            assert_true(i == 1 ? info->time_ns == 1234567890123456789u : info->time_ns > 1600000000000000000u);
            assert_int_equal(info->tensor_count, 1);
            assert_true(info->step == LMCS_NO_STEP);
            lmcs_snapshot_close(snapshot);
        }
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
    /* Training goes on from an older one. */
    OK(lmcs_snapshot_open(pool, "run@2", &snapshot, &err));
    lmcs_snapshot_mark_loaded(snapshot);
    lmcs_snapshot_close(snapshot);
    assert_int_equal(parent_of(pool, take(pool, "run", 6, &options)), 2);
    assert_int_equal(parent_of(pool, take(pool, "run", 7, &options)), 6);
    close_pool(pool);
    pool = open_quiet(place->pool);
    assert_int_equal(parent_of(pool, take(pool, "run", 8, &options)), 7); /* the latest, to another process */
    /* A parent that has gone is still named. */
    OK(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    assert_int_equal(parent_of(pool, 6), 2);
    check_pool(pool);
    close_pool(pool);
}

/* A rewind while a commit is under way: that one follows from what came before it, the next from what was loaded. */
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

/* What a group has committed is what this process goes on from, unless something was loaded meanwhile. */
static void parents_of_groups(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_commit_options options;
    lmcs_commit_options_init(&options);
    assert_int_equal(take_prepared(pool, &options), 1); /* of a shelf that is not there yet */
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
    OK(lmcs_group_resolve(pool, options.group, false, &err)); /* it never was */
    assert_int_equal(parent_of(pool, take(pool, "run", 8, &options)), 6);
    assert_int_equal(take_prepared(pool, &options), 9);
    mark(pool, "run@3");
    OK(lmcs_group_resolve(pool, options.group, true, &err));
    assert_int_equal(parent_of(pool, take(pool, "run", 10, &options)), 3);
    /* Committed by another process than the one that prepared it. */
    assert_int_equal(take_prepared(pool, &options), 11);
    close_pool(pool);
    pool = open_quiet(place->pool);
    OK(lmcs_group_resolve(pool, options.group, true, &err));
    assert_int_equal(parent_of(pool, take(pool, "run", 12, &options)), 11);
    check_pool(pool);
    close_pool(pool);
}

/* A handle goes on when its shelf gets another name, or none; whoever has the old name is another shelf. */
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

/* ---- Handles ---- */

static bool see_entry(void *context, const struct lmcs_entry *entry)
{
    (void)entry;
    ++*(size_t *)context;
    return false;
}

static void handles_of_removed_snapshots(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_snapshot *snapshot;
    struct lmcs_snapshot_storage storage = {.stored_bytes = 42};
    struct lmc_hash digest;
    uint64_t value = 0;
    size_t count = 0;
    take_step(pool, "run", 1);
    take_step(pool, "run", 2);
    OK(lmcs_snapshot_open(pool, "run@1", &snapshot, &err));
    OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, "value", &value, sizeof value, &err));
    assert_int_equal(value, 1);
    FAILS(LMCS_INVALID, lmcs_snapshot_read(snapshot, LMCS_TENSOR, "value", &value, 7, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_read(snapshot, LMCS_TENSOR, "Value", &value, sizeof value, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_read(snapshot, LMCS_ATTACHMENT, "value", &value, sizeof value, &err));
    OK(lmcs_snapshot_entries(snapshot, see_entry, &count, &err));
    assert_int_equal(count, 1);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    value = 99;
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_read(snapshot, LMCS_TENSOR, "value", &value, sizeof value, &err));
    assert_int_equal(value, 99);
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_entries(snapshot, see_entry, &count, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_storage(snapshot, &storage, &err));
    assert_int_equal(storage.stored_bytes, 42);
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_digest(snapshot, &digest, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_tags(snapshot, count_tag, &count, &err));
    assert_int_equal(count, 1);
    assert_int_equal(lmcs_snapshot_info(snapshot)->number, 1); /* what it knew it still knows */
    assert_int_equal(lmcs_snapshot_info(snapshot)->step, 1);
    lmcs_snapshot_close(snapshot);
    close_pool(pool);
}

static struct lmc_hash digest_of(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot;
    struct lmc_hash digest;
    OK(lmcs_snapshot_open(pool, address, &snapshot, &err));
    OK(lmcs_snapshot_digest(snapshot, &digest, &err));
    lmcs_snapshot_close(snapshot);
    return digest;
}

static bool same_hash(struct lmc_hash a, struct lmc_hash b)
{
    return a.low == b.low && a.high == b.high;
}

static void digests_tell_what_not_how(void **state)
{
    struct place *place = *state;
    struct rng rng = {3};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 5, 20000), *backwards;
    struct lmc_hash digests[12];
    char address[32];
    for (size_t i = 0; i < 12; i++) {
        take_snapshot(pool, "run", now, (int64_t)i);
        state_step(now, &rng, 0, 4);
    }
    for (size_t i = 0; i < 12; i++) {
        snprintf(address, sizeof address, "run@%zu", i + 1);
        digests[i] = digest_of(pool, address);
        for (size_t k = 0; k < i; k++)
            assert_false(same_hash(digests[i], digests[k]));
    }
    OK(lmcs_compact(pool, NULL, &err));
    OK(lmcs_tag_set(pool, "run", "best", 3, &err)); /* what can be changed is no part of it */
    assert_true(storage_of(pool, "run", 1).raw_contents < 5);
    OK(lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    OK(lmcs_compact(pool, NULL, &err));
    for (size_t i = 0; i < 12; i++) {
        snprintf(address, sizeof address, "run@%zu", i + 1);
        if (i != 1)
            assert_true(same_hash(digests[i], digest_of(pool, address)));
    }
    /* It is of what is in it, in whatever order it was put, under whatever number, on whatever shelf. */
    backwards = state_copy(now);
    for (size_t i = 0; i < 2; i++) {
        struct held held = backwards->tensors[i];
        backwards->tensors[i] = backwards->tensors[4 - i];
        backwards->tensors[4 - i] = held;
    }
    struct lmcs_commit_options options;
    struct lmcs_capture *capture;
    lmcs_commit_options_init(&options);
    options.parent = UINT64_MAX;
    options.time_ns = 5;
    const struct state *orders[2] = {now, backwards};
    const char *shelves[2] = {"first", "second"};
    for (int i = 0; i < 2; i++) {
        OK(lmcs_capture_begin(pool, shelves[i], &capture, &err));
        put_state(capture, orders[i]);
        OK(lmcs_capture_commit(capture, &options, NULL, &err));
    }
    assert_true(same_hash(digest_of(pool, "first"), digest_of(pool, "second")));
    options.time_ns = 6;
    OK(lmcs_capture_begin(pool, "second", &capture, &err));
    put_state(capture, now);
    OK(lmcs_capture_commit(capture, &options, NULL, &err));
    assert_false(same_hash(digest_of(pool, "first"), digest_of(pool, "second")));
    /* A bit of one tensor, or its name, makes another. */
    options.time_ns = 5;
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            now->tensors[2].data[17] ^= 1;
        else
            snprintf(now->tensors[2].name, sizeof now->tensors[2].name, "T2");
        OK(lmcs_capture_begin(pool, "second", &capture, &err));
        put_state(capture, now);
        OK(lmcs_capture_commit(capture, &options, NULL, &err));
        assert_false(same_hash(digest_of(pool, "first"), digest_of(pool, "second")));
        if (i == 0)
            now->tensors[2].data[17] ^= 1;
    }
    close_pool(pool);
    state_free(backwards);
    state_free(now);
}

static void storage_counts_a_content_once(void **state)
{
    struct place *place = *state;
    struct rng rng = {4};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 3, 50000);
    struct lmcs_capture *capture;
    OK(lmcs_capture_begin(pool, "run", &capture, &err));
    put_state(capture, now);
    char names[20][16];
    for (size_t i = 0; i < 20; i++) {
        struct lmcs_tensor tensor;
        held_tensor(&now->tensors[i % 2], &tensor);
        snprintf(names[i], sizeof names[i], "alias%zu", i);
        tensor.name = names[i];
        OK(lmcs_capture_put_same(capture, &tensor, now->tensors[i % 2].name, &err));
    }
    OK(lmcs_capture_commit(capture, NULL, NULL, &err));
    struct lmcs_snapshot_storage storage = storage_of(pool, "run", 1);
    assert_int_equal(storage.raw_contents, 3);
    assert_int_equal(storage.stored_bytes, 3 * 200000);
    assert_int_equal(storage.delta_contents + storage.keyframe_contents + storage.longest_chain, 0);
    /* All that the next one shares counts in full for both. */
    state_step(now, &rng, 2, 1);
    take_snapshot(pool, "run", now, 1);
    assert_int_equal(storage_of(pool, "run", 2).stored_bytes, 3 * 200000);
    assert_int_equal(pool_info(pool).content_count, 4);
    for (int i = 0; i < 6; i++) {
        state_step(now, &rng, 0, 3);
        take_snapshot(pool, "run", now, i);
    }
    OK(lmcs_compact(pool, NULL, &err));
    storage = storage_of(pool, "run", 1);
    assert_int_equal(storage.raw_contents + storage.delta_contents + storage.keyframe_contents, 3);
    assert_true(storage.stored_bytes < 3 * 200000 && storage.stored_bytes > 0);
    check_pool(pool);
    close_pool(pool);
    state_free(now);
}

/* ---- Removal ---- */

static void removal_says_what_it_frees(void **state)
{
    struct place *place = *state;
    struct rng rng = {5};
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct state *now = state_weights(&rng, 4, 100000), *first;
    const uint64_t tensor = 400000;
    struct lmcs_removal removal, wished;
    take_snapshot(pool, "run", now, 0);
    first = state_copy(now);
    state_step(now, &rng, 0, 1); /* shares three */
    take_snapshot(pool, "run", now, 1);
    OK(lmcs_snapshot_remove(pool, "run", 1, true, &wished, &err));
    assert_true(wished.freed_bytes >= tensor && wished.freed_bytes < tensor + 65536);
    assert_int_equal(wished.later_bytes, 0);
    expect_snapshot(pool, "run", 1, first); /* nothing was done */
    OK(lmcs_snapshot_remove(pool, "run", 1, false, &removal, &err));
    assert_memory_equal(&removal, &wished, sizeof removal);
    expect_snapshot(pool, "run", 2, now);
    OK(lmcs_snapshot_remove(pool, "run", 2, false, &removal, &err)); /* the last one */
    assert_true(removal.freed_bytes >= 4 * tensor && removal.freed_bytes < 4 * tensor + 4 * 65536);
    assert_int_equal(pool_info(pool).content_count, 0);
    assert_int_equal(pool_info(pool).snapshot_count, 0);
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_remove(pool, "run", 2, false, NULL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_remove(pool, "run", 2, true, &removal, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_remove(pool, "run", 0, false, NULL, &err));
    FAILS(LMCS_NOT_FOUND, lmcs_snapshot_remove(pool, "walk", 1, false, NULL, &err));
    check_pool(pool);
    /* What others rest on comes free later, and no sooner than they say. */
    for (int i = 0; i < 10; i++) {
        state_step(now, &rng, 0, 4);
        take_snapshot(pool, "run", now, i);
    }
    OK(lmcs_compact(pool, NULL, &err));
    uint64_t freed = 0, later = 0, live = pool_info(pool).live_bytes;
    for (uint64_t n = 12; n > 3; n--) { /* the newest first: they are the bases */
        OK(lmcs_snapshot_remove(pool, "run", n, false, &removal, &err));
        freed += removal.freed_bytes;
        later += removal.later_bytes;
        check_pool(pool);
    }
    assert_true(later > 0);
    assert_true(pool_info(pool).live_bytes <= live - freed + 1000000);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, 1);
    OK(lmcs_snapshot_remove(pool, "run", 3, false, &removal, &err));
    assert_int_equal(removal.later_bytes, 0);
    assert_int_equal(pool_info(pool).content_count, 0);
    OK(lmcs_compact(pool, NULL, &err));
    check_pool(pool);
    close_pool(pool);
    state_free(now);
    state_free(first);
}

/* A shelf with thousands of snapshots, of which most are removed again. */
static void thousands_of_snapshots(void **state)
{
    struct place *place = *state;
    struct rng rng = {6};
    const uint64_t count = scaled("LMCS_TEST_SNAPSHOTS", 2500);
    struct lmcs_pool *pool = open_quiet(place->pool);
    uint64_t values[4] = {0, 0, 0, 0};
    for (uint64_t n = 1; n <= count; n++) {
        struct lmcs_capture *capture;
        struct lmcs_commit_options options;
        lmcs_commit_options_init(&options);
        options.step = (int64_t)(n / 2);
        OK(lmcs_capture_begin(pool, "run", &capture, &err));
        for (uint64_t i = 0; i < 4; i++) {
            char name[8];
            snprintf(name, sizeof name, "t%llu", (unsigned long long)i);
            struct lmcs_tensor tensor = {.name = name, .dtype = LMC_U64};
            const void *data = &values[i];
            values[i] = n >> (2 * i); /* each changes more rarely than the one before */
            OK(lmcs_capture_put(capture, &tensor, &data, 1, &err));
        }
        OK(lmcs_capture_commit(capture, &options, NULL, &err));
    }
    check_pool(pool);
    assert_int_equal(at(pool, "run@latest~1000"), count - 1000);
    assert_int_equal(at(pool, "run@step:777"), 1555);
    bool *there = calloc(count + 1, 1);
    memset(there + 1, 1, count);
    for (uint64_t i = 0; i < count - count / 10; i++) {
        uint64_t n = 1 + rng_below(&rng, count);
        while (!there[n])
            n = n % count + 1;
        there[n] = false;
        OK(lmcs_snapshot_remove(pool, "run", n, false, NULL, &err));
        if (i % 700 == 699)
            check_pool(pool);
    }
    OK(lmcs_compact(pool, NULL, &err));
    close_pool(pool);
    pool = open_pool(place->pool, LMCS_OPEN_READ, 0);
    verify_pool(pool);
    uint64_t numbers[97], first = 0, expected = 0;
    size_t got;
    do {
        OK(lmcs_snapshot_numbers(pool, "run", first, numbers, 97, &got, &err));
        for (size_t i = 0; i < got; i++) {
            do
                expected++;
            while (!there[expected]);
            assert_int_equal(numbers[i], expected);
            struct lmcs_snapshot *snapshot;
            char which[32];
            snprintf(which, sizeof which, "%llu", (unsigned long long)expected);
            OK(lmcs_snapshot_find(pool, "run", which, &snapshot, &err));
            for (uint64_t t = 0; t < 4; t++) {
                uint64_t value;
                snprintf(which, sizeof which, "t%llu", (unsigned long long)t);
                OK(lmcs_snapshot_read(snapshot, LMCS_TENSOR, which, &value, sizeof value, &err));
                assert_int_equal(value, expected >> (2 * t));
            }
            lmcs_snapshot_close(snapshot);
        }
        first = expected + 1;
    } while (got == 97);
    assert_int_equal(shelf_info(pool, "run").snapshot_count, count / 10);
    close_pool(pool);
    free(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(addresses),
        ON_BOTH(addresses_after_removal),
        ON_BOTH(lists_come_in_pages),
        ON_BOTH(random_changes_against_a_model),
        ON_BOTH(wrong_tags),
        ON_BOTH(names_of_a_kibibyte),
        IN_MEMORY(shelves_of_wrong_names),
        ON_BOTH(metrics_and_metadata),
        IN_MEMORY(wrong_metrics_and_metadata),
        ON_BOTH(parents),
        ON_BOTH(loaded_while_a_commit_is_under_way),
        ON_BOTH(parents_of_groups),
        IN_MEMORY(loaded_from_a_shelf_that_was_renamed),
        ON_BOTH(handles_of_removed_snapshots),
        ON_BOTH(digests_tell_what_not_how),
        ON_BOTH(storage_counts_a_content_once),
        ON_BOTH(removal_says_what_it_frees),
        ON_BOTH(thousands_of_snapshots),
    };
    return cmocka_run_group_tests_name("snapshot", tests, NULL, NULL);
}
