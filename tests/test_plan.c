/* SPDX-License-Identifier: BSD-3-Clause */
/* test_plan.c - the compactor's plans: patterns of bases, and random histories against invariants. */
#include "support.h"

#include "compact/plan.h"

/* Returns the most deltas to undo; checks that jumps stay in the group. */
static uint32_t deepest(const struct lmcs_plan_pattern *pattern, uint32_t most_jump)
{
    uint32_t depths[LMCS_PLAN_MOST_GROUP] = {0}, deepest = 0;
    assert_in_range(pattern->length, 1, LMCS_PLAN_MOST_GROUP);
    assert_int_equal(pattern->jumps[pattern->length - 1], 0);
    for (uint32_t i = pattern->length - 1; i-- > 0;) {
        assert_in_range(pattern->jumps[i], 1, most_jump);
        assert_true(i + pattern->jumps[i] < pattern->length);
        depths[i] = depths[i + pattern->jumps[i]] + 1;
        deepest = depths[i] > deepest ? depths[i] : deepest;
    }
    return deepest;
}

/* The average size of a content: 1000 alone; a delta by its jump, as measured for bf16. */
static double cost(const struct lmcs_plan_pattern *pattern)
{
    static const double delta[] = {1000, 274, 352, 402, 436, 464, 487, 506, 523};
    double sum = 0;
    for (uint32_t i = 0; i < pattern->length; i++)
        sum += delta[pattern->jumps[i]];
    return sum / pattern->length;
}

static void patterns_keep_the_bound(void **state)
{
    (void)state;
    struct lmcs_plan_pattern pattern;
    for (uint32_t chain = 0; chain <= LMCS_CHAIN_BOUND; chain++)
        for (uint32_t jump = 1; jump <= LMCS_DELTA_MOST_JUMP; jump++) {
            lmcs_plan_pattern(chain, jump, &pattern);
            assert_int_equal(deepest(&pattern, jump), chain);
        }
    lmcs_plan_pattern(0, 4, &pattern);
    assert_int_equal(pattern.length, 1);
    lmcs_plan_pattern(3, 1, &pattern);
    assert_int_equal(pattern.length, 4); /* a chain, where only the next is raw */
}

static void longer_chains_and_jumps_are_smaller(void **state)
{
    (void)state;
    for (uint32_t chain = 1; chain <= LMCS_CHAIN_BOUND; chain++) {
        struct lmcs_plan_pattern near, far, deep;
        lmcs_plan_pattern(chain, 1, &near);
        lmcs_plan_pattern(chain, 4, &far);
        lmcs_plan_pattern(chain - 1, 4, &deep);
        assert_true(cost(&far) < cost(&near));
        assert_true(cost(&far) < cost(&deep));
    }
    struct lmcs_plan_pattern pattern;
    lmcs_plan_pattern(3, 4, &pattern);
    assert_true(cost(&pattern) < 400); /* a chain of 4, which is slower to read, has 419 */
}

static void what_is_not_worth_it_is_kept(void **state)
{
    (void)state;
    struct lmcs_plan_pattern pattern;
    lmcs_plan_pattern(3, 4, &pattern);
    const struct lmcs_plan_facts sound = {.raw_bytes = 1 << 20, .is_raw = true, .successor_count = 4};
    struct lmcs_plan_facts facts = sound;
    assert_int_equal(lmcs_plan_content(&facts, &pattern, 3).action, LMCS_PLAN_DELTA);
    facts.is_raw = false;
    assert_int_equal(lmcs_plan_content(&facts, &pattern, 3).action, LMCS_PLAN_KEEP);
    facts = sound;
    facts.is_settled = true;
    assert_int_equal(lmcs_plan_content(&facts, &pattern, 3).action, LMCS_PLAN_KEEP);
    facts = sound;
    facts.raw_bytes = LMCS_DELTA_LEAST_BYTES - 1;
    assert_int_equal(lmcs_plan_content(&facts, &pattern, 3).action, LMCS_PLAN_KEEP);
}

static void bases_are_what_is_there(void **state)
{
    (void)state;
    static const struct {
        uint32_t place, height, successors, depth, chain;
        uint32_t jump;
        uint32_t next_place;
    } cases[] = {
        {0, 0, 4, 0, 3, 2, 1}, /* the pattern: 2 1 4 2 1 1 4 1 1 1 0 */
        {2, 2, 4, 0, 3, 4, 3},  {2, 2, 1, 0, 3, 1, 3},  {2, 2, 0, 0, 3, 0, 0},
        {10, 3, 4, 0, 3, 0, 0}, /* the last place is the keyframe's */
        {1, 3, 4, 0, 3, 0, 0},  /* another history: it has the most dependent deltas already */
        {0, 0, 4, 3, 3, 0, 0},  /* the next is too deep */
        {0, 0, 4, 2, 3, 2, 1},  {11, 0, 4, 0, 3, 2, 1}, {0, 0, 4, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lmcs_plan_pattern pattern;
        lmcs_plan_pattern(cases[i].chain, 4, &pattern);
        struct lmcs_plan_facts facts = {.raw_bytes = 1 << 20,
                                        .is_raw = true,
                                        .height = cases[i].height,
                                        .place = cases[i].place,
                                        .successor_count = cases[i].successors};
        for (size_t k = 0; k < LMCS_DELTA_MOST_JUMP; k++)
            facts.successor_depths[k] = cases[i].depth;
        struct lmcs_plan plan = lmcs_plan_content(&facts, &pattern, cases[i].chain);
        assert_int_equal(plan.action, cases[i].jump > 0 ? LMCS_PLAN_DELTA : LMCS_PLAN_KEYFRAME);
        assert_int_equal(plan.jump, cases[i].jump);
        assert_int_equal(plan.next_place, cases[i].next_place);
    }
}

#define CONTENTS 400

struct simulated {
    uint32_t base; /* index; UINT32_MAX: none */
    uint32_t height;
    uint32_t place;
    bool coded;
};

static uint32_t depth_of(const struct simulated *contents, uint32_t i)
{
    uint32_t depth = 0;
    for (; contents[i].base != UINT32_MAX; i = contents[i].base)
        depth++;
    return depth;
}

static void raise(struct simulated *contents, uint32_t i, uint32_t height)
{
    for (; i != UINT32_MAX && contents[i].height < height; i = contents[i].base, height++)
        contents[i].height = height;
}

/* Encodes contents in order, with random counts of raw successors and changes of policy. */
static void every_history_keeps_the_bound(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct rng rng = {seed};
        struct simulated contents[CONTENTS];
        uint32_t chain = (uint32_t)rng_below(&rng, LMCS_CHAIN_BOUND + 1), window = 1 + (uint32_t)rng_below(&rng, 8);
        uint32_t most = chain;
        size_t coded = 0;
        for (uint32_t i = 0; i < CONTENTS; i++)
            contents[i] = (struct simulated){.base = UINT32_MAX};
        for (uint32_t i = 0; i < CONTENTS; i++) {
            struct lmcs_plan_pattern pattern;
            if (rng_below(&rng, 50) == 0) {
                chain = (uint32_t)rng_below(&rng, LMCS_CHAIN_BOUND + 1);
                window = 1 + (uint32_t)rng_below(&rng, 8);
            }
            most = chain > most ? chain : most;
            lmcs_plan_pattern(chain, window, &pattern);
            struct lmcs_plan_facts facts = {
                .raw_bytes = 1 << 20, .is_raw = true, .height = contents[i].height, .place = contents[i].place};
            uint64_t there = 1 + rng_below(&rng, window);
            while (facts.successor_count < there && i + 1 + facts.successor_count < CONTENTS)
                facts.successor_count++;
            struct lmcs_plan plan = lmcs_plan_content(&facts, &pattern, chain);
            assert_int_not_equal(plan.action, LMCS_PLAN_KEEP);
            assert_true(plan.jump <= facts.successor_count && plan.jump <= window);
            contents[i].coded = true;
            coded++;
            if (plan.jump > 0) {
                contents[i].base = i + plan.jump;
                raise(contents, i + plan.jump, contents[i].height + 1);
                assert_true(contents[i].height + depth_of(contents, i) <= chain);
            }
            if (i + 1 < CONTENTS)
                contents[i + 1].place = plan.next_place;
        }
        assert_int_equal(coded, CONTENTS);
        for (uint32_t i = 0; i < CONTENTS; i++)
            assert_true(depth_of(contents, i) <= most);
    }
}

static void histories_follow_the_pattern(void **state)
{
    (void)state;
    struct simulated contents[CONTENTS];
    struct lmcs_plan_pattern pattern;
    uint32_t keyframes = 0;
    lmcs_plan_pattern(3, 4, &pattern);
    for (uint32_t i = 0; i < CONTENTS; i++)
        contents[i] = (struct simulated){.base = UINT32_MAX};
    for (uint32_t i = 0; i + 4 < CONTENTS; i++) {
        struct lmcs_plan_facts facts = {.raw_bytes = 1 << 20,
                                        .is_raw = true,
                                        .height = contents[i].height,
                                        .place = contents[i].place,
                                        .successor_count = 4};
        struct lmcs_plan plan = lmcs_plan_content(&facts, &pattern, 3);
        assert_int_equal(plan.jump, pattern.jumps[i % pattern.length]);
        keyframes += plan.action == LMCS_PLAN_KEYFRAME;
        if (plan.jump > 0) {
            contents[i].base = i + plan.jump;
            raise(contents, i + plan.jump, contents[i].height + 1);
        }
        contents[i + 1].place = plan.next_place;
    }
    assert_int_equal(keyframes, (CONTENTS - 4) / pattern.length);
}

static void rebasing_pays_for_itself(void **state)
{
    (void)state;
    assert_true(lmcs_plan_rebase(100, 100, 0, 1));
    assert_true(lmcs_plan_rebase(100, 140, 50, 1));
    assert_false(lmcs_plan_rebase(100, 150, 50, 1));
    assert_false(lmcs_plan_rebase(100, 130, 50, 2));
    assert_true(lmcs_plan_rebase(100, 120, 50, 2));
    assert_false(lmcs_plan_restart(100, 100));
    assert_true(lmcs_plan_restart(101, 100));
    assert_true(lmcs_plan_reserve(100) >= 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_keep_the_bound),       cmocka_unit_test(longer_chains_and_jumps_are_smaller),
        cmocka_unit_test(what_is_not_worth_it_is_kept),  cmocka_unit_test(bases_are_what_is_there),
        cmocka_unit_test(every_history_keeps_the_bound), cmocka_unit_test(histories_follow_the_pattern),
        cmocka_unit_test(rebasing_pays_for_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
