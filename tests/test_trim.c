/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_trim.c - trims while other callers take space between their steps.
 *
 * This program interposes pthread_rwlock_unlock: when a trim has released the metadata lock, a test acts in the same
 * thread, which then holds no lock.
 */
/* ctest: labels=no-tsan */
#include "support.h"

#include <dlfcn.h>
#include <pthread.h>

#include "pages/space.h"
#include "pages/tree.h"

#define LARGE ((uint64_t)6 << 20) /* its own extent, of an unusual size */

static struct scene {
    struct lmcs_pool *pool;
    uint64_t freed;
    struct lmcs_capture *capture;
    unsigned char *room;
    uint64_t taken;
    bool busy;
} scene;

static uint64_t extent_of_size(struct lmcs_pool *pool, uint64_t least)
{
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    uint64_t offset = 0;
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_txn_read(pool, &txn, &err));
    OK(lmcs_root_seek(cursor, &txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){0, 0}, &err));
    for (; lmcs_cursor_valid(cursor); OK(lmcs_cursor_next(cursor, &err))) {
        struct lmcs_object_df df;
        memcpy(&df, lmcs_cursor_value(cursor, NULL), sizeof df);
        if (df.kind == LMCS_OBJECT_EXTENT && df.bytes >= least)
            offset = lmcs_cursor_key(cursor).high;
    }
    lmcs_txn_end(&txn);
    lmcs_cursor_free(cursor);
    return offset;
}

static void take_room_when_it_has_gone(void)
{
    if (scene.busy || scene.capture != NULL || scene.freed == 0)
        return;
    scene.busy = true;
    if (extent_of_size(scene.pool, LARGE) == 0) {
        uint64_t bytes = LARGE;
        struct lmcs_tensor tensor = {.name = "large", .dtype = LMC_U8, .ndim = 1, .shape = &bytes};
        void *room;
        OK(lmcs_capture_begin(scene.pool, "run", &scene.capture, &err));
        OK(lmcs_capture_reserve(scene.capture, &tensor, &room, &err));
        scene.room = room;
        scene.taken = extent_of_size(scene.pool, LARGE);
    }
    scene.busy = false;
}

/* Visible to shared libraries. */
#pragma GCC visibility push(default)
int pthread_rwlock_unlock(pthread_rwlock_t *lock)
{
    static int (*real)(pthread_rwlock_t *);
    if (real == NULL)
        real = (int (*)(pthread_rwlock_t *))dlsym(RTLD_NEXT, "pthread_rwlock_unlock");
    int result = real(lock);
    if (scene.pool != NULL && lock == &scene.pool->meta)
        take_room_when_it_has_gone();
    return result;
}
#pragma GCC visibility pop

/* A trim returns an extent of an unusual size to libpmemobj. Before it releases its claims, a capture gets another
 * extent at the same place. The next trim must leave that one alone. */
static void an_extent_that_follows_another_is_not_trimmed(void **state)
{
    struct place *place = *state;
    struct rng rng = {1};
    struct state *small = state_weights(&rng, 2, 1000), *large = state_copy(small);
    rng_fill(&rng, state_add(large, "large", LMC_U8, 1, &(uint64_t){LARGE})->data, LARGE);
    struct lmcs_pool *pool = open_quiet(place->pool);
    take_snapshot(pool, "run", large, 1);
    take_snapshot(pool, "run", small, 2);
    OK(lmcs_snapshot_remove(pool, "run", 1, false, NULL, &err));
    scene = (struct scene){.freed = extent_of_size(pool, LARGE)};
    EXPECT(scene.freed != 0);
    scene.pool = pool;
    OK(lmcs_compact(pool, NULL, &err));
    scene.pool = NULL;
    EXPECT(scene.capture != NULL && scene.taken == scene.freed); /* otherwise nothing was tested */
    memcpy(scene.room, large->tensors[large->count - 1].data, LARGE);
    OK(lmcs_space_trim(pool, 0, &err));
    put_state(scene.capture, small);
    OK(lmcs_capture_commit(scene.capture, NULL, NULL, &err));
    expect_snapshot(pool, "run", 3, large);
    verify_pool(pool);
    check_pool(pool);
    close_pool(pool);
    state_free(small);
    state_free(large);
}

/* Records live bytes in the first dead extents; returns their number. */
static size_t forge_payloads(struct lmcs_pool *pool, size_t most)
{
    const struct lmcs_space_df payload = {.bytes = LMCS_PAGE_BYTES, .content = 1};
    uint64_t places[64];
    size_t count = 0;
    struct lmcs_txn txn;
    struct lmcs_cursor *cursor;
    OK(lmcs_cursor_new(&cursor, &err));
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_root_seek(cursor, &txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){0, 0}, &err));
    for (; lmcs_cursor_valid(cursor) && count < most; OK(lmcs_cursor_next(cursor, &err))) {
        struct lmcs_object_df df;
        memcpy(&df, lmcs_cursor_value(cursor, NULL), sizeof df);
        if (df.kind == LMCS_OBJECT_EXTENT && df.live_bytes + df.retired_bytes == 0 && df.backed > df.first)
            places[count++] = df.first;
    }
    lmcs_cursor_free(cursor);
    for (size_t i = 0; i < count; i++)
        OK(lmcs_root_put(&txn, LMCS_TREE_SPACE, (struct lmcs_key_df){places[i], 0}, &payload, sizeof payload, &err));
    OK(lmcs_txn_commit(&txn, &err));
    return count;
}

/* More unsound extents than one transaction trims do not keep later ones from being trimmed. */
static void unsound_extents_keep_no_other(void **state)
{
    enum { COUNT = 24, UNSOUND = 18 };
    const uint64_t bytes = (uint64_t)2 << 20, limit = (uint64_t)100 << 20;
    struct place *place = *state;
    struct rng rng = {2};
    struct lmcs_pool *pool = open_limited(place->pool, limit);
    struct state *small = state_weights(&rng, 1, 1000);
    for (int i = 0; i < COUNT; i++) {
        struct state *one = calloc(1, sizeof *one);
        rng_fill(&rng, state_add(one, "t", LMC_U8, 1, &bytes)->data, bytes);
        take_snapshot(pool, "run", one, i);
        state_free(one);
    }
    take_snapshot(pool, "run", small, COUNT);
    for (uint64_t i = 1; i <= COUNT; i++)
        OK(lmcs_snapshot_remove(pool, "run", i, false, NULL, &err));
    struct lmcs_txn txn;
    size_t released = 0;
    OK(lmcs_txn_write(pool, &txn, &err));
    OK(lmcs_space_release(&txn, 1000, &released, &err));
    uint64_t slabs = txn.root.slab_bytes;
    OK(lmcs_txn_commit(&txn, &err));
    EXPECT(released >= COUNT && forge_payloads(pool, UNSOUND) == UNSOUND);
    uint64_t used = lmcs_space_used(pool), left = limit - used - slabs;
    EXPECT(left < limit && lmcs_space_waste(pool, 0) >= COUNT * bytes);
    OK(lmcs_space_charge(pool, left, &err));
    EXPECT(lmcs_space_used(pool) <= used + left - 2 * bytes);
    lmcs_space_count(pool, -(int64_t)left);
    EXPECT(lmcs_space_waste(pool, 0) >= UNSOUND * bytes);
    FAILS(LMCS_DAMAGED, lmcs_space_trim(pool, 0, &err));
    EXPECT(lmcs_space_used(pool) >= UNSOUND * bytes);
    FAILS(LMCS_DAMAGED, lmcs_compact(pool, NULL, &err));
    EXPECT(strstr(err.message, "a payload is at") != NULL);
    expect_snapshot(pool, "run", COUNT + 1, small);
    close_pool(pool);
    state_free(small);
}

/* Where punching is impossible, sound extents go to libpmemobj for larger requests. */
static void unsound_extents_of_a_poolset(void **state)
{
    char path[512];
    struct rng rng = {5};
    struct state *small = state_weights(&rng, 1, 1000), *large = state_of_noise(7, LARGE_FOR_A_POOLSET);
    struct lmcs_pool *pool = poolset_of_free_extents(*state, path, small);
    EXPECT(forge_payloads(pool, 1) == 1);
    uint64_t used = lmcs_space_used(pool);
    expect_snapshot(pool, "run", take_snapshot(pool, "run", large, 1), large);
    EXPECT(lmcs_space_used(pool) < used);
    pool = reopen_counted(pool, path);
    expect_snapshot(pool, "run", FREE_EXTENTS + 1, small);
    expect_snapshot(pool, "run", FREE_EXTENTS + 2, large);
    close_pool(pool);
    state_free(small);
    state_free(large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ON_BOTH(an_extent_that_follows_another_is_not_trimmed),
                                       ON_BOTH(unsound_extents_keep_no_other), IN_MEMORY(unsound_extents_of_a_poolset)};
    return cmocka_run_group_tests_name("trim", tests, NULL, NULL);
}
