/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_nvdimm.c - pools on persistent memory while libndctl is absent: readable, not writable.
 *
 * The linker replaces (--wrap) the two functions that know: whether libndctl is there, and what a path lies on. Real
 * devices: tests/guest.
 */
#include "base/topology.h"
#include "load/load.h"
#include "test_pool_support.h"

static bool has_ndctl;

bool __wrap_lmcs_load_has_ndctl(void);
bool __wrap_lmcs_load_has_ndctl(void)
{
    return has_ndctl;
}

/* Names with "fsdax" or "devdax" are on such media. */
void __real_lmcs_topology_detect(const char *path, struct lmcs_topology *topology);
void __wrap_lmcs_topology_detect(const char *path, struct lmcs_topology *topology);
void __wrap_lmcs_topology_detect(const char *path, struct lmcs_topology *topology)
{
    __real_lmcs_topology_detect(path, topology);
    topology->is_dax = strstr(path, "fsdax") != NULL;
    topology->is_nvdimm = strstr(path, "devdax") != NULL || strstr(path, "paged") != NULL;
}

static void expect_refused(const char *path, enum lmcs_open_mode mode)
{
    struct lmcs_pool *pool = NULL;
    FAILS(LMCS_UNSUPPORTED, lmcs_pool_open(path, mode, NULL, &pool, &err));
    EXPECT(strstr(err.message, path) != NULL && strstr(err.message, "Debian: libndctl6, Fedora: ndctl-libs") != NULL);
}

static void nothing_is_made_without_ndctl(void **state)
{
    struct place *place = *state;
    char path[512];
    has_ndctl = false;
    place_path(place, "fsdax.pool", path);
    expect_refused(path, LMCS_OPEN_CREATE);
    expect_refused(path, LMCS_OPEN_OR_CREATE);
    EXPECT(rmdir(place->folder) == 0 && mkdir(place->folder, 0700) == 0); /* it is empty */
    has_ndctl = true;
    close_pool(open_quiet(path));
}

static void a_pool_is_read_and_not_changed(void **state)
{
    struct place *place = *state;
    static const char *const names[] = {"fsdax.pool", "paged.pool", "devdax.pool"};
    struct rng rng = {1};
    struct state *weights = state_weights(&rng, 2, 1000);
    for (size_t i = 0; i < 3; i++) {
        char path[512];
        struct stat before, after;
        has_ndctl = true;
        place_path(place, names[i], path);
        struct lmcs_pool *pool = open_quiet(path);
        take_snapshot(pool, "run", weights, 0);
        close_pool(pool);
        EXPECT(stat(path, &before) == 0);
        has_ndctl = false;
        expect_refused(path, LMCS_OPEN_WRITE);
        expect_refused(path, LMCS_OPEN_OR_CREATE);
        EXPECT(stat(path, &after) == 0 && memcmp(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim) == 0);
        pool = open_pool(path, LMCS_OPEN_READ, 0);
        expect_state(pool, "run", "latest", weights);
        verify_pool(pool);
        close_pool(pool);
        has_ndctl = true;
        close_pool(open_pool(path, LMCS_OPEN_WRITE, LMCS_NO_BACKGROUND));
    }
    state_free(weights);
}

static void one_part_of_a_poolset_decides(void **state)
{
    struct place *place = *state;
    char path[512], text[2048];
    place_path(place, "pool.set", path);
    snprintf(text, sizeof text, "PMEMPOOLSET\n64M %s/part0\nREPLICA\n64M %s/fsdax # comment\n", place->folder,
             place->folder);
    write_bytes(path, text, strlen(text));
    has_ndctl = false;
    expect_refused(path, LMCS_OPEN_CREATE);
    snprintf(text, sizeof text, "PMEMPOOLSET\n64M %s/part0\n64M %s/part1 # not fsdax\n", place->folder, place->folder);
    write_bytes(path, text, strlen(text));
    close_pool(open_quiet(path));
}

static void other_media_need_no_ndctl(void **state)
{
    struct place *place = *state;
    char path[512];
    has_ndctl = false;
    place_path(place, "usual.pool", path);
    close_pool(open_quiet(path));
    setenv("PMEM_IS_PMEM_FORCE", "1", 1); /* for tests on tmpfs; libpmem has read it, our code reads it again */
    close_pool(open_quiet(path));
    unsetenv("PMEM_IS_PMEM_FORCE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_MEMORY(nothing_is_made_without_ndctl),
        IN_MEMORY(a_pool_is_read_and_not_changed),
        IN_MEMORY(one_part_of_a_poolset_decides),
        IN_MEMORY(other_media_need_no_ndctl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
