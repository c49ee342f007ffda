/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * load/load.c - defines the functions of libnuma, libndctl and libdaxctl, which forward to the libraries.
 *
 * For builds with LMCS_LOAD_LIBRARIES, which run where these libraries may be absent. A library that is absent, or too
 * old to have all functions, behaves as one that finds nothing. libpmem and libpmemobj, linked statically, call these
 * functions too: all are in this object file, which base/topology.c brings into every program. They are hidden, so that
 * the libraries keep calling their own.
 */
#include "load/load.h"

#ifndef LMCS_LOAD_LIBRARIES

bool lmcs_load_has_ndctl(void)
{
    return true; /* linked */
}

#else

#include "load/functions.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* A test defines the functions a second time, beside the libraries. */
#ifndef LMCS_LOADED
#define LMCS_LOADED(name) name
#endif

enum library { NUMA, NDCTL, DAXCTL, LIBRARIES };

static const char *const names[LIBRARIES] = {"libnuma.so.1", "libndctl.so.6", "libdaxctl.so.1"};

static struct functions {
#define VALUE(library, type, without, name, ...) __typeof__(name) *name;
#define VOID(library, name, ...)                 __typeof__(name) *name;
    LMCS_LOADED_FUNCTIONS(VALUE, VOID)
#undef VALUE
#undef VOID
} functions;

static const struct row {
    enum library library;
    const char *name;
    size_t offset; /* in struct functions */
} rows[] = {
#define VALUE(library, type, without, name, ...) {library, #name, offsetof(struct functions, name)},
#define VOID(library, name, ...)                 {library, #name, offsetof(struct functions, name)},
    LMCS_LOADED_FUNCTIONS(VALUE, VOID)
#undef VALUE
#undef VOID
};

static bool is_there[LIBRARIES];

static bool find_all(void *handle, enum library library)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].library == library) {
            void *found = dlsym(handle, rows[i].name);
            if (found == NULL)
                return false;
            memcpy((char *)&functions + rows[i].offset, &found, sizeof found);
        }
    }
    return true;
}

static void load(enum library library)
{
    void *handle = dlopen(names[library], RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return;
    is_there[library] = find_all(handle, library);
    if (!is_there[library])
        dlclose(handle);
}

static void load_numa(void)
{
    load(NUMA);
}

static void load_ndctl(void)
{
    load(NDCTL);
}

static void load_daxctl(void)
{
    load(DAXCTL);
}

static pthread_once_t once[LIBRARIES] = {PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT};

static bool has(enum library library)
{
    static void (*const loaders[LIBRARIES])(void) = {load_numa, load_ndctl, load_daxctl};
    pthread_once(&once[library], loaders[library]);
    return is_there[library];
}

bool lmcs_load_has_ndctl(void)
{
    return has(NDCTL);
}

/* libpmem takes a context without a bus for a machine without NVDIMMs, and no context for an error. */
static int lmcs_no_ndctl(struct ndctl_ctx **ctx)
{
    static char without;
    *ctx = (struct ndctl_ctx *)(void *)&without;
    return 0;
}

#define VALUE(library, type, without, name, parameters, arguments) \
    type LMCS_LOADED(name) parameters                              \
    {                                                              \
        return has(library) ? functions.name arguments : without;  \
    }
#define VOID(library, name, parameters, arguments) \
    void LMCS_LOADED(name) parameters              \
    {                                              \
        if (has(library))                          \
            functions.name arguments;              \
    }
LMCS_LOADED_FUNCTIONS(VALUE, VOID)

#endif
