/* SPDX-License-Identifier: BSD-3-Clause */
/* test_snapshot.c - addresses, lists, removal, and random changes against a model. */
/* ctest: timeout=600 */
#include "test_snapshot_support.h"

static void wrong(struct lmcs_pool *pool, const char *address)
{
    struct lmcs_snapshot *snapshot = NULL;
    FAILS(LMCS_INVALID, lmcs_snapshot_open(pool, address, &snapshot, &err));
    assert_null(snapshot);
    assert_true(err.message[0] != '\0');
}

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

static void expect_addresses(struct lmcs_pool *pool)
{
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
    assert_int_equal(at(pool, "run@step:10"), 4);
    assert_int_equal(at(pool, "run@step:10~1"), 3);
    assert_int_equal(at(pool, "run@step:9223372036854775807"), 5);
    assert_int_equal(at(pool, "run@step:-9223372036854775807"), 6);
}

static void addresses(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    static const int64_t steps[] = {0, -5, 10, 10, INT64_MAX, INT64_MIN + 1, LMCS_NO_STEP, 7};
    absent(pool, "run");
    OK(lmcs_shelf_set_keep_raw(pool, "run", 2, &err));
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
        expect_addresses(pool);
        for (size_t i = 0; i < sizeof no_such / sizeof no_such[0]; i++)
            absent(pool, no_such[i]);
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

static void lists_come_in_pages(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    enum { COUNT = 60 };
    uint64_t numbers[COUNT + 5];
    size_t count;
    for (int64_t i = 1; i <= COUNT; i++)
        take_step(pool, "run", i % 3 == 0 ? LMCS_NO_STEP : i % 3 - 2);
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

enum { SLOTS = 400, TAGS = 12, ROUNDS = 700 };

struct model {
    bool there[SLOTS];
    int64_t step[SLOTS];
    uint64_t next;
    uint64_t tag[TAGS]; /* its snapshot; 0: none */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(addresses),
        ON_BOTH(addresses_after_removal),
        ON_BOTH(lists_come_in_pages),
        ON_BOTH(random_changes_against_a_model),
    };
    return cmocka_run_group_tests_name("snapshot", tests, NULL, NULL);
}
