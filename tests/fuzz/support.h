/* SPDX-License-Identifier: BSD-3-Clause */
/* support.h - a pool in memory for fuzz targets, remade after a change. */
#ifndef LMCS_FUZZ_SUPPORT_H
#define LMCS_FUZZ_SUPPORT_H

#include "lmcstore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* libpmemobj's pointers are in the pool's mapping. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libpmemobj\n";
}

#define FUZZ_LIMIT_BYTES          ((uint64_t)16 << 20)

#define REQUIRE(condition, error) require((condition), #condition, __LINE__, (error))

static inline void require(bool condition, const char *what, int line, const struct lmcs_error *error)
{
    if (condition)
        return;
    fprintf(stderr, "line %d: not so: %s; %s\n", line, what, error != NULL ? error->message : "");
    abort();
}

struct fuzz_place {
    char folder[64];
    char pool[96];
    char file[96];
};

static struct fuzz_place fuzz_place; /* one target per process */

static void fuzz_tidy(void)
{
    unlink(fuzz_place.pool);
    unlink(fuzz_place.file);
    rmdir(fuzz_place.folder);
}

static inline void fuzz_place_init(void)
{
    if (fuzz_place.folder[0] != '\0')
        return;
    strcpy(fuzz_place.folder, access("/dev/shm", W_OK) == 0 ? "/dev/shm/lmcs_fuzz.XXXXXX" : "/tmp/lmcs_fuzz.XXXXXX");
    REQUIRE(mkdtemp(fuzz_place.folder) != NULL, NULL);
    snprintf(fuzz_place.pool, sizeof fuzz_place.pool, "%s/pool", fuzz_place.folder);
    snprintf(fuzz_place.file, sizeof fuzz_place.file, "%s/file", fuzz_place.folder);
    atexit(fuzz_tidy);
}

static inline struct lmcs_pool *fuzz_open(enum lmcs_open_mode mode)
{
    struct lmcs_open_options options;
    struct lmcs_error error;
    struct lmcs_pool *pool = NULL;
    lmcs_open_options_init(&options);
    options.limit_bytes = FUZZ_LIMIT_BYTES;
    options.threads = 1;
    options.flags = LMCS_NO_BACKGROUND;
    REQUIRE(lmcs_pool_open(fuzz_place.pool, mode, &options, &pool, &error) == LMCS_OK, &error);
    return pool;
}

static inline struct lmcs_pool *fuzz_new_pool(void)
{
    fuzz_place_init();
    unlink(fuzz_place.pool);
    return fuzz_open(LMCS_OPEN_CREATE);
}

static inline void fuzz_close(struct lmcs_pool *pool)
{
    struct lmcs_error error;
    REQUIRE(lmcs_pool_close(pool, &error) == LMCS_OK, &error);
}

static inline void fuzz_verify(struct lmcs_pool *pool)
{
    struct lmcs_verify_report report;
    struct lmcs_error error;
    REQUIRE(lmcs_verify(pool, NULL, NULL, NULL, NULL, &report, &error) == LMCS_OK, &error);
}

#endif
