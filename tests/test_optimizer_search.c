/* SPDX-License-Identifier: BSD-3-Clause */
/* test_optimizer_search.c - finds tensors of one optimizer step in states without relations. */
#include "links/search.h"
#include "test_codec_link_support.h"

#define MOST 64u

struct heap {
    struct lmcs_search_array arrays[MOST];
    size_t count;
    struct state before[MOST], after[MOST];
    size_t states;
};

static void put(struct heap *heap, const void *before, const void *after, size_t elements)
{
    assert_true(heap->count < MOST);
    heap->arrays[heap->count++] = (struct lmcs_search_array){before, after, elements};
}

static void put_state(struct heap *heap, struct lmc_link_hints hints, size_t elements, enum gradients kind,
                      unsigned seed)
{
    struct state state = trained(&hints, elements, kind, 2 + seed % 3);
    optimizer_step(&state, &hints, kind, 0.3f, 77 + seed);
    hints.step++;
    heap->before[heap->states] = state_copy(&state);
    optimizer_step(&state, &hints, kind, 0.3f, 177 + seed);
    heap->after[heap->states] = state;
    const struct state *before = &heap->before[heap->states++];
    for (unsigned k = 0; k < state.arrays; k++) /* the weights first, then v, then m */
        put(heap, before->array[state.arrays - 1 - k], state.array[state.arrays - 1 - k], elements);
}

static void shuffle(struct heap *heap, uint64_t seed)
{
    for (size_t i = heap->count; i > 1; i--) {
        const size_t other = (size_t)(next_random(&seed) % i);
        const struct lmcs_search_array array = heap->arrays[i - 1];
        heap->arrays[i - 1] = heap->arrays[other];
        heap->arrays[other] = array;
    }
}

static void drop(struct heap *heap)
{
    for (size_t i = 0; i < heap->states; i++) {
        state_free(&heap->before[i]);
        state_free(&heap->after[i]);
    }
}

static bool is_right(const struct heap *heap, const struct lmcs_search_match *match)
{
    for (size_t i = 0; i < heap->states; i++) {
        bool same = heap->before[i].arrays == match->count;
        for (unsigned k = 0; same && k < match->count; k++)
            same = heap->arrays[match->arrays[k]].after == heap->after[i].array[k];
        if (same)
            return true;
    }
    return false;
}

static struct lmcs_search_match *find(const struct lmcs_search_array *arrays, size_t count, size_t *found)
{
    struct lmcs_search_match *matches;
    struct lmcs_error error;
    assert_int_equal(lmcs_optimizer_search(arrays, count, &matches, found, &error), LMCS_OK);
    return matches;
}

static void assert_all_found(struct heap *heap, uint64_t seed)
{
    struct lmcs_search_match *matches;
    size_t found;
    shuffle(heap, seed);
    matches = find(heap->arrays, heap->count, &found);
    assert_int_equal(found, heap->states);
    for (size_t i = 0; i < found; i++)
        assert_true(is_right(heap, &matches[i]));
    free(matches);
}

static void adams_are_found(void **state)
{
    struct lmc_link_hints l2 = adamw_hints(), usual = adamw_hints(), scheduled = adamw_hints();
    struct heap heap = {.count = 0};
    (void)state;
    l2.flags = LMC_LINK_L2;
    l2.weight_decay = 0;
    usual.beta2 = 0.999;
    for (unsigned i = 0; i < 4; i++)
        put_state(&heap, adamw_hints(), 5000, BF16, i);
    put_state(&heap, l2, 5000, ANY, 4);
    put_state(&heap, usual, 5000, CLIPPED, 5);
    for (unsigned i = 0; i < 2; i++)
        put_state(&heap, adamw_hints(), 70000, SUMMED, 6 + i);
    for (unsigned i = 0; i < 4; i++) {
        scheduled.beta1 = 0.85 + 0.0234567891 * (i + 1);
        scheduled.beta2 = i % 2 != 0 ? 0.999 : 0.95;
        put_state(&heap, scheduled, 5000, i < 2 ? BF16 : ANY, 8 + i);
    }
    for (uint64_t seed = 1; seed < 4; seed++)
        assert_all_found(&heap, seed);
    drop(&heap);
}

static void momenta_are_found(void **state)
{
    struct lmc_link_hints nesterov = sgd_hints();
    struct heap heap = {.count = 0};
    (void)state;
    nesterov.flags = LMC_LINK_NESTEROV;
    for (unsigned i = 0; i < 3; i++)
        put_state(&heap, sgd_hints(), 9000, BF16, i);
    put_state(&heap, nesterov, 9000, BF16, 3);
    for (uint64_t seed = 1; seed < 4; seed++)
        assert_all_found(&heap, seed);
    drop(&heap);
}

static void nothing_is_made_up(void **state)
{
    enum { COUNT = 8192, ARRAYS = 12 };
    static float values[2 * ARRAYS][COUNT];
    struct heap heap = {.count = 0};
    struct lmcs_search_match *matches;
    uint64_t seed = 5;
    size_t found;
    (void)state;
    for (size_t k = 0; k < 2 * ARRAYS; k++)
        for (size_t i = 0; i < COUNT; i++)
            values[k][i] = k % 6 < 3 ? bell(&seed) : fabsf(bell(&seed));
    for (size_t k = 0; k < ARRAYS - 3; k++)
        put(&heap, values[k], values[k + ARRAYS], COUNT);
    put(&heap, values[0], values[0], COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        values[ARRAYS - 1][i] = i % 2 ? NAN : INFINITY;
        values[ARRAYS - 2][i] = 0;
    }
    put(&heap, values[ARRAYS - 1], values[ARRAYS - 1], COUNT);
    put(&heap, values[ARRAYS - 2], values[ARRAYS - 1], COUNT);
    put_state(&heap, adamw_hints(), LMCS_SEARCH_LEAST_ELEMENTS - 1, BF16, 0);
    matches = find(heap.arrays, heap.count, &found);
    assert_int_equal(found, 0);
    assert_null(matches);
    assert_null(find(NULL, 0, &found));
    assert_int_equal(found, 0);
    drop(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adams_are_found),
        cmocka_unit_test(momenta_are_found),
        cmocka_unit_test(nothing_is_made_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
