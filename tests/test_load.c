/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_load.c - libraries that are loaded when first used: present, absent, too old, used by threads at once.
 *
 * Includes load/load.c under other names and with its own dlopen, so that every build tests it, beside the libraries.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const char *absent_library;  /* dlopen fails */
static const char *absent_function; /* dlsym fails */
static atomic_int opened;
static atomic_int closed;

static void *open_library(const char *name, int flags)
{
    atomic_fetch_add(&opened, 1);
    return absent_library != NULL && strcmp(name, absent_library) == 0 ? NULL : dlopen(name, flags);
}

static void *find_function(void *handle, const char *name)
{
    return absent_function != NULL && strcmp(name, absent_function) == 0 ? NULL : dlsym(handle, name);
}

static int close_library(void *handle)
{
    atomic_fetch_add(&closed, 1);
    return dlclose(handle);
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#ifndef LMCS_LOAD_LIBRARIES
#define LMCS_LOAD_LIBRARIES
#endif
#define lmcs_load_has_ndctl loaded_has_ndctl
#define LMCS_LOADED(name)   loaded_##name
#define dlopen              open_library
#define dlsym               find_function
#define dlclose             close_library
#include "load/load.c"
#undef dlopen
#undef dlsym
#undef dlclose

#define ROWS (sizeof rows / sizeof rows[0])

/* As in a new process. */
static void start_again(const char *library, const char *function)
{
    absent_library = library;
    absent_function = function;
    atomic_store(&opened, 0);
    atomic_store(&closed, 0);
    memset(&functions, 0, sizeof functions);
    memset(is_there, 0, sizeof is_there);
    for (int i = 0; i < LIBRARIES; i++)
        once[i] = (pthread_once_t)PTHREAD_ONCE_INIT;
}

static void a_library_present_is_called(void **state)
{
    (void)state;
    start_again(NULL, NULL);
    assert_int_equal(loaded_numa_available(), numa_available());
    if (numa_available() >= 0) {
        assert_int_equal(loaded_numa_max_node(), numa_max_node());
        assert_int_equal(loaded_numa_distance(0, 0), numa_distance(0, 0));
        struct bitmask *cpus = loaded_numa_allocate_cpumask();
        assert_true(loaded_numa_sched_getaffinity(0, cpus) > 0);
        assert_int_equal(loaded_numa_sched_setaffinity(0, cpus), 0);
        assert_true(numa_bitmask_weight(cpus) > 0);
        assert_int_equal(loaded_numa_bitmask_weight(cpus), numa_bitmask_weight(cpus));
        loaded_numa_bitmask_free(cpus);
    }
    struct ndctl_ctx *ndctl = NULL;
    struct ndctl_ctx *linked = NULL;
    assert_true(loaded_has_ndctl());
    assert_int_equal(loaded_ndctl_new(&ndctl), 0);
    assert_int_equal(ndctl_new(&linked), 0);
    assert_int_equal(loaded_ndctl_bus_get_first(ndctl) != NULL, ndctl_bus_get_first(linked) != NULL);
    assert_null(loaded_ndctl_unref(ndctl));
    assert_null(ndctl_unref(linked));
    struct daxctl_ctx *daxctl = NULL;
    assert_int_equal(loaded_daxctl_new(&daxctl), 0);
    loaded_daxctl_unref(daxctl);
    assert_int_equal(atomic_load(&opened), LIBRARIES);
    assert_int_equal(atomic_load(&closed), 0);
}

static void no_function_of_an_absent_library_fails(void **state)
{
    (void)state;
    start_again("libnuma.so.1", NULL);
    assert_int_equal(loaded_numa_available(), -1);
    assert_null(loaded_numa_allocate_cpumask());
    assert_true(loaded_has_ndctl());

    struct ndctl_ctx *ndctl = NULL;
    start_again("libndctl.so.6", NULL);
    assert_false(loaded_has_ndctl());
    assert_int_equal(loaded_ndctl_new(&ndctl), 0); /* as a machine without NVDIMMs: libpmem needs a context */
    assert_non_null(ndctl);
    loaded_ndctl_set_log_fn(ndctl, NULL);
    assert_null(loaded_ndctl_bus_get_first(ndctl));
    assert_null(loaded_ndctl_unref(ndctl));
    assert_int_equal(loaded_numa_available(), numa_available());

    struct daxctl_ctx *daxctl = NULL;
    start_again("libdaxctl.so.1", NULL);
    assert_true(loaded_daxctl_new(&daxctl) < 0);
    assert_null(loaded_daxctl_region_get_first(daxctl));
    loaded_daxctl_unref(daxctl);
    assert_true(loaded_has_ndctl());
    assert_int_equal(atomic_load(&opened), 2);
}

static void a_library_without_one_function_is_absent(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        start_again(NULL, rows[i].name);
        for (enum library library = 0; library < LIBRARIES; library++)
            if (has(library) != (library != rows[i].library))
                fail_msg("%s without %s", names[library], absent_function);
        assert_int_equal(atomic_load(&closed), 1);
    }
}

enum { THREADS = 8 };
static pthread_barrier_t start;

static void *use_all(void *context)
{
    struct ndctl_ctx *ndctl = NULL;
    struct daxctl_ctx *daxctl = NULL;
    bool *good = context;
    pthread_barrier_wait(&start);
    *good = loaded_ndctl_new(&ndctl) == 0 && loaded_daxctl_new(&daxctl) == 0;
    *good = *good && loaded_numa_available() == numa_available();
    loaded_ndctl_unref(ndctl);
    loaded_daxctl_unref(daxctl);
    return NULL;
}

static void threads_load_a_library_once(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    bool good[THREADS] = {false};
    for (int round = 0; round < 20; round++) {
        start_again(NULL, NULL);
        assert_int_equal(pthread_barrier_init(&start, NULL, THREADS), 0);
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, use_all, &good[i]), 0);
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < THREADS; i++)
            assert_true(good[i]);
        assert_int_equal(atomic_load(&opened), LIBRARIES);
        pthread_barrier_destroy(&start);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_library_present_is_called),
        cmocka_unit_test(no_function_of_an_absent_library_fails),
        cmocka_unit_test(a_library_without_one_function_is_absent),
        cmocka_unit_test(threads_load_a_library_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
