/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * make_support.h - folders, states and texts for both programs that make the pools.
 *
 * Includes internal headers of commit a088696 (make.sh).
 */
#ifndef LMCS_TEST_MAKE_SUPPORT_H
#define LMCS_TEST_MAKE_SUPPORT_H

#include "test_links_support.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "describe.h"
#include "lmcstore_live.h"

#define MIB ((uint64_t)1 << 20)

static const char *out_folder;

static inline char *path_in(const char *name, const char *file)
{
    static char paths[64][1024];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", out_folder, name);
    mkdir(path, 0700);
    snprintf(path, sizeof paths[0], "%s/%s/%s", out_folder, name, file);
    return path;
}

/* A limit gives the pool's file 16 GiB. */
static inline struct lmcs_pool *make_pool(const char *path)
{
    unlink(path);
    return open_limited(path, 256 * MIB);
}

static inline char *describe_open(const char *path, enum lmcs_open_mode mode)
{
    char *text = NULL;
    size_t bytes;
    struct lmcs_pool *pool = open_pool(path, mode, LMCS_NO_BACKGROUND);
    FILE *out = open_memstream(&text, &bytes);
    OK(describe_pool(out, pool, &err));
    fclose(out);
    close_pool(pool);
    return text;
}

static inline void write_text(const char *folder, const char *section, const char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.txt", out_folder, folder);
    FILE *out = fopen(path, "a");
    EXPECT(out != NULL && fprintf(out, "== %s\n%s", section, text) > 0 && fclose(out) == 0);
}

static inline void describe_as(const char *folder, const char *file, const char *what, const char *path,
                               enum lmcs_open_mode mode)
{
    char section[128];
    char *text = describe_open(path, mode);
    snprintf(section, sizeof section, "%s %s", file, what);
    write_text(folder, section, text);
    free(text);
}

/* As a reader finds it, and if different after a writer's open. */
static inline void describe_both(const char *folder, const char *file)
{
    char *path = path_in(folder, file), *copy = path_in("work", "copy.pool");
    char *reading = describe_open(path, LMCS_OPEN_READ);
    describe_as(folder, file, "reading", path, LMCS_OPEN_READ);
    copy_file(path, copy);
    char *writing = describe_open(copy, LMCS_OPEN_WRITE);
    if (strcmp(reading, writing) != 0)
        describe_as(folder, file, "writing", copy, LMCS_OPEN_WRITE);
    unlink(copy);
    free(reading);
    free(writing);
}

static inline int new_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    return fd;
}

/* ---- States ---- */

/* Bytes that compress well as a file, and differ between blocks. */
static inline void fill_pattern(unsigned char *data, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)((i / 4096 + seed) % 251);
}

static inline void fill_live(struct lmcs_live *live, uint64_t seed)
{
    struct lmcs_live_info info;
    struct rng rng = {seed};
    OK(lmcs_live_info(live, &info, &err));
    rng_fill(&rng, lmcs_live_data(live), info.bytes);
    OK(lmcs_live_persist(live, 0, info.bytes, &err));
}

static inline struct lmcs_live *new_live(struct lmcs_pool *pool, const char *shelf, const char *name, uint32_t dtype,
                                         uint32_t ndim, const uint64_t *shape)
{
    struct lmcs_tensor tensor = {.name = name, .dtype = dtype, .ndim = ndim, .shape = shape};
    struct lmcs_live *live;
    OK(lmcs_live_create(pool, shelf, &tensor, NULL, &live, &err));
    return live;
}

static inline void put_value(struct lmcs_pool *pool, const char *shelf, const char *name, const char *text)
{
    OK(lmcs_live_put(pool, shelf, name, text, strlen(text), "str", 3, &err));
}

/* Outside cmocka a failed OK ends the program. */
static inline void begin_program(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        exit(2);
    }
    out_folder = argv[1];
    mkdir(out_folder, 0700);
}

#endif
