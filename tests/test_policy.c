/* SPDX-License-Identifier: BSD-3-Clause */
/* test_policy.c - the text of policies, and the snapshots that their rules keep. */
#include "test_policy_support.h"

static void expect_text(const char *words, const char *expected)
{
    struct lmcs_policy policy, again;
    char text[LMCS_MAX_POLICY + 1], twice[LMCS_MAX_POLICY + 1];
    lmcs_policy_init(&policy);
    OK(lmcs_policy_parse(words, &policy, &err));
    OK(lmcs_policy_format(&policy, text, &err));
    assert_string_equal(text, expected);
    lmcs_policy_init(&again);
    OK(lmcs_policy_parse(text, &again, &err));
    OK(lmcs_policy_format(&again, twice, &err));
    assert_string_equal(twice, text);
}

static void text_comes_back(void **state)
{
    (void)state;
    expect_text("", "keep_raw=4 chain=3 keep=all");
    expect_text("  keep_raw=2  chain=0 ", "keep_raw=2 chain=0 keep=all");
    expect_text("keep=last:100,every:10/1000,every:100", "keep_raw=4 chain=3 keep=last:100,every:10/1000,every:100");
    expect_text("keep=best:loss,best:acc:3:max,best:f1:min",
                "keep_raw=4 chain=3 keep=best:loss:1,best:acc:3:max,best:f1:1");
    expect_text("keep=each:90s/3600s,each:24h/14d,each:2w", "keep_raw=4 chain=3 keep=each:90s/1h,each:1d/2w,each:2w");
    expect_text("budget=50% rate=100M write=link", "keep_raw=4 chain=3 keep=all budget=50% rate=100M write=link");
    expect_text("budget=1536MiB", "keep_raw=4 chain=3 keep=all budget=1536M");
    expect_text("scrub=30d parity=16+2", "keep_raw=4 chain=3 keep=all scrub=30d parity=16+2");
    expect_text("scrub=90s parity=4+1", "keep_raw=4 chain=3 keep=all scrub=90s parity=4+1");
    expect_text("scrub=none parity=bases budget=none rate=none write=auto restore=1s links=auto keep=all",
                "keep_raw=4 chain=3 keep=all");
    expect_text("parity=none", "keep_raw=4 chain=3 keep=all parity=none");
    expect_text("write=raw restore=90s links=24", "keep_raw=4 chain=3 keep=all links=24 write=raw restore=90s");
    expect_text("restore=60m links=0", "keep_raw=4 chain=3 keep=all links=off restore=1h");
    expect_text("restore=none", "keep_raw=4 chain=3 keep=all restore=none");
}

static struct lmcs_policy parsed(const char *words)
{
    struct lmcs_policy policy;
    lmcs_policy_init(&policy);
    OK(lmcs_policy_parse(words, &policy, &err));
    return policy;
}

static void links_bound_lines(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        uint32_t compactor, captures;
    } cases[] = {{"", 24, 64},        {"links=24", 24, 24}, {"links=64", 64, 64},  {"links=8", 8, 8},
                 {"links=off", 0, 0}, {"links=0", 0, 0},    {"links=auto", 24, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lmcs_policy policy = parsed(cases[i].words);
        assert_int_equal(lmcs_policy_links(&policy), cases[i].compactor);
        assert_int_equal(lmcs_policy_line_bound(&policy), cases[i].captures);
    }
    struct lmcs_policy policy = parsed("links=8");
    OK(lmcs_policy_parse("links=auto", &policy, &err));
    assert_int_equal(lmcs_policy_line_bound(&policy), 64);
}

/* Earlier versions stored encode=; for users the error names its successor. */
static void encode_became_write(void **state)
{
    (void)state;
    static const struct {
        const char *stored;
        enum lmcs_write_as write;
        const char *again;
    } cases[] = {{"keep_raw=2 chain=3 keep=all encode=never scrub=1d", LMCS_WRITE_AS_RAW,
                  "keep_raw=2 chain=3 keep=all write=raw scrub=1d"},
                 {"keep_raw=2 chain=3 keep=all encode=auto scrub=1d", LMCS_WRITE_AS_AUTO,
                  "keep_raw=2 chain=3 keep=all scrub=1d"},
                 {"keep_raw=2 chain=3 keep=all encode=always scrub=1d", LMCS_WRITE_AS_LINK,
                  "keep_raw=2 chain=3 keep=all write=link scrub=1d"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lmcs_policy policy;
        char text[LMCS_MAX_POLICY + 1];
        lmcs_policy_init(&policy);
        OK(lmcs_policy_parse_stored(cases[i].stored, &policy, &err));
        assert_int_equal(policy.write, cases[i].write);
        OK(lmcs_policy_format_stored(&policy, text, &err));
        assert_string_equal(text, cases[i].again);
        FAILS(LMCS_INVALID, lmcs_policy_parse(cases[i].stored, &policy, &err));
        assert_non_null(strstr(err.message, "for encode=always write=link"));
    }
    struct lmcs_policy policy = parsed("");
    FAILS(LMCS_INVALID, lmcs_policy_parse_stored("encode=sometimes", &policy, &err));
}

static const char *const wrong_words[] = {
    "keep",
    "keep=",
    "keep=,",
    "keep=last:1,",
    "keep=last",
    "keep=last:0",
    "keep=last:-1",
    "keep=last:99999999999999999999",
    "keep=every:0",
    "keep=every:5/0",
    "keep=every:9223372036854775808",
    "keep=each:5",
    "keep=each:0s",
    "keep=each:1y",
    "keep=each:1h/",
    "keep=each:99999999999d",
    "keep=best:",
    "keep=best::3",
    "keep=best:loss:0",
    "keep=best:loss:least",
    "keep=all,last:3",
    "keep_raw=0",
    "keep_raw=",
    "keep_raw=4294967296",
    "keep_raw=2x",
    "chain=8",
    "links=65",
    "links=on",
    "write=",
    "write=raw,link",
    "budget=",
    "budget=0",
    "budget=0%",
    "budget=101%",
    "budget=5X",
    "budget=99999999999T",
    "rate=0",
    "rate=fast",
    "write=sometimes",
    "encode=always",
    "restore=0s",
    "restore=1",
    "restore=61m",
    "restore=99999999999d",
    "scrub=0s",
    "scrub=30",
    "parity=16",
    "parity=0+1",
    "parity=16+0",
    "parity=129+1",
    "parity=16+17",
    "parity=16+2+1",
    "colour=blue",
    "keep_raw=9",
    "keep=last:1,last:1,last:1,last:1,last:1,last:1,last:1,last:1,last:1,last:1,last:1,last:1,last:1"};

static void wrong_words_change_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong_words / sizeof *wrong_words; i++) {
        struct lmcs_policy policy, before;
        char words[300];
        lmcs_policy_init(&policy);
        before = policy;
        snprintf(words, sizeof words, "keep_raw=9 %s", wrong_words[i]);
        FAILS(LMCS_INVALID, lmcs_policy_parse(words, &policy, &err));
        assert_non_null(strstr(err.message, wrong_words[i]));
        assert_memory_equal(&policy, &before, sizeof policy);
    }
}

/* The message shows the right form. */
static void a_repeated_key_is_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"keep=last:10 keep=every:5", "keep=last:10,every:5"},
        {"keep=last:3 chain=2 keep=all", "keep is there twice"},
        {"scrub=1w parity=1+1 scrub=none", "scrub is there twice"},
        {"budget=2048G budget=none", "budget is there twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lmcs_policy policy;
        lmcs_policy_init(&policy);
        FAILS(LMCS_INVALID, lmcs_policy_parse(cases[i][0], &policy, &err));
        assert_non_null(strstr(err.message, cases[i][1]));
    }
}

static void words_change_a_text(void **state)
{
    (void)state;
    char text[LMCS_MAX_POLICY + 1] = "keep_raw=4 chain=3 keep=last:10 rate=100M";
    OK(lmcs_policy_change(text, "keep=all chain=0", &err));
    assert_string_equal(text, "keep_raw=4 chain=0 keep=all rate=100M");
    FAILS(LMCS_INVALID, lmcs_policy_change(text, "keep_raw=2 nonsense=1", &err));
    assert_string_equal(text, "keep_raw=4 chain=0 keep=all rate=100M");
}

static void any_text_is_safe(void **state)
{
    (void)state;
    static const char letters[] = "keplastvryhbudgeincod_w=:,/%0123456789MGmaxins -";
    struct rng rng = {1};
    for (int i = 0; i < 200000; i++) {
        char text[LMCS_MAX_POLICY + 1], out[LMCS_MAX_POLICY + 1];
        size_t length = rng_below(&rng, 40);
        static const char *const starts[] = {
            "",     "keep=",    "keep=best:",   "budget=", "keep=each:", "keep=every:1",
            "was=", "log=1-2:", "log=1-2:3:4,", "encode="};
        size_t at = (size_t)snprintf(text, sizeof text, "%s", starts[rng_below(&rng, 10)]);
        for (size_t k = 0; k < length; k++)
            text[at++] = letters[rng_below(&rng, sizeof letters - 1)];
        text[at] = '\0';
        struct lmcs_policy policy;
        lmcs_policy_init(&policy);
        if (lmcs_policy_parse(text, &policy, &err) == LMCS_OK)
            OK(lmcs_policy_format(&policy, out, &err));
        lmcs_policy_init(&policy);
        if (lmcs_policy_parse_stored(text, &policy, &err) == LMCS_OK)
            OK(lmcs_policy_format_stored(&policy, out, &err));
    }
}

static void judge(struct history *history, const char *rules)
{
    struct lmcs_policy policy;
    char words[200];
    lmcs_policy_init(&policy);
    snprintf(words, sizeof words, "keep=%s", rules);
    OK(lmcs_policy_parse(words, &policy, &err));
    OK(lmcs_policy_keeps(&policy, history->facts, history->count, history->now_ns, history->kept, &err));
}

static void expect_kept(struct history *history, const char *rules, const char *expected)
{
    char kept[4096] = "";
    judge(history, rules);
    for (size_t i = 0; i < history->count; i++)
        if (history->kept[i] != NULL)
            snprintf(kept + strlen(kept), sizeof kept - strlen(kept), "%s%lld", *kept != '\0' ? " " : "",
                     (long long)history->facts[i].step);
    assert_string_equal(kept, expected);
}

static void rules_keep_what_they_say(void **state)
{
    (void)state;
    struct history h = steps(20);
    expect_kept(&h, "all", "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19");
    expect_kept(&h, "last:3", "17 18 19");
    expect_kept(&h, "last:100", "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19");
    expect_kept(&h, "every:5", "0 5 10 15");
    expect_kept(&h, "every:5/8", "12 15"); /* 12 is the first of its stretch among the newest 8 */
    expect_kept(&h, "last:2,every:4/10,every:10", "0 10 12 16 18 19");
    expect_kept(&h, "each:2h", "0 4 8 12 16");
    expect_kept(&h, "each:2h/4h", "12 16");
    h.facts[3].held = true;
    expect_kept(&h, "last:1", "3 19");
    h.facts[5].metrics[0] = 0.5;
    h.facts[6].metrics[0] = 0.25;
    h.facts[9].metrics[0] = 0.25;
    h.facts[11].metrics[0] = INFINITY;
    expect_kept(&h, "best:loss", "3 9");
    expect_kept(&h, "best:loss:3", "3 5 6 9");
    expect_kept(&h, "best:loss:1:max", "3 11");
    expect_kept(&h, "best:loss:9", "3 5 6 9 11");
}

/* A rule whose metric no snapshot has keeps every snapshot, beside any other rules. */
static void rules_without_their_metric_keep_all(void **state)
{
    (void)state;
    static const char all[] = "0 1 2 3 4 5 6 7", why[] = "no snapshot has the metric of a rule";
    struct history h = steps(8);
    expect_kept(&h, "best:los:3", all);
    assert_string_equal(h.kept[0], why);
    expect_kept(&h, "last:2,best:los", all);
    expect_kept(&h, "best:los:2:max,every:4", all);
    h.facts[3].metrics[0] = 1;
    expect_kept(&h, "best:loss,best:acc:1:max", all);
    expect_kept(&h, "best:loss", "3");
    h.facts[3].metrics[0] = -INFINITY;
    expect_kept(&h, "best:loss", "3");
    h.facts[3].metrics[0] = NAN;
    h.facts[7].held = true;
    expect_kept(&h, "best:loss", all);
    assert_string_equal(h.kept[3], why);
    assert_string_not_equal(h.kept[7], why);
    struct history empty = steps(0);
    expect_kept(&empty, "best:loss", "");
}

static void steps_may_be_anything(void **state)
{
    (void)state;
    struct history h = steps(0);
    static const int64_t odd[] = {-11, -10, -1, 0, 7, 17, 27, 107, 20, 27, 30};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        add(&h, odd[i]);
    /* After a rewind to 20, the later 27 replaces the earlier one, and 20 is the first of its stretch. */
    expect_kept(&h, "every:10", "-11 -10 0 17 107 20 30");
    struct history without = steps(0);
    for (size_t i = 0; i < 12; i++)
        add(&without, LMCS_NO_STEP);
    judge(&without, "every:5");
    for (size_t i = 0; i < 12; i++)
        assert_true((without.kept[i] != NULL) == (i == 0 || i == 4 || i == 9));
}

static void drop(struct history *h, struct rng *rng, bool all)
{
    size_t left = 0;
    for (size_t i = 0; i < h->count; i++)
        if (h->kept[i] != NULL || (!all && rng_below(rng, 2) == 0))
            h->facts[left++] = h->facts[i];
    h->count = left;
}

static void pruning_again_agrees(void **state)
{
    (void)state;
    static const char *const rules[] = {"last:7",  "every:10",          "last:5,every:7", "every:3/50,every:30",
                                        "each:3h", "each:1h/20h,last:2"};
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct rng rng = {seed}, steps_rng = {seed};
        const char *rule = rules[seed % 6];
        struct history often = steps(0), once = steps(0);
        int64_t step = 0;
        for (int i = 0; i < MOST; i++) {
            step += 1 + (int64_t)rng_below(&steps_rng, 3);
            add(&often, step);
            add(&once, step);
            often.facts[often.count - 1].number = once.facts[once.count - 1].number;
            judge(&often, rule);
            drop(&often, &rng, rng_below(&rng, 3) == 0);
        }
        judge(&often, rule);
        drop(&often, &rng, true);
        judge(&once, rule);
        drop(&once, &rng, true);
        /* The far end of a window of the newest depends on the snapshots that existed when it passed. */
        if (strchr(rule, '/') == NULL) {
            assert_int_equal(often.count, once.count);
            for (size_t i = 0; i < once.count; i++)
                assert_int_equal(often.facts[i].number, once.facts[i].number);
        }
        judge(&often, rule);
        for (size_t i = 0; i < often.count && strchr(rule, '/') == NULL; i++)
            assert_non_null(often.kept[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_comes_back),           cmocka_unit_test(wrong_words_change_nothing),
        cmocka_unit_test(a_repeated_key_is_refused), cmocka_unit_test(any_text_is_safe),
        cmocka_unit_test(links_bound_lines),         cmocka_unit_test(encode_became_write),
        cmocka_unit_test(rules_keep_what_they_say),  cmocka_unit_test(rules_without_their_metric_keep_all),
        cmocka_unit_test(steps_may_be_anything),     cmocka_unit_test(pruning_again_agrees),
        cmocka_unit_test(words_change_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
