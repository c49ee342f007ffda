/* SPDX-License-Identifier: BSD-3-Clause */
/* test_pool_support.h - pools as files. */
#ifndef LMCS_TEST_POOL_SUPPORT_H
#define LMCS_TEST_POOL_SUPPORT_H

#include "support.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static inline enum lmcs_status try_open(const char *path, enum lmcs_open_mode mode, uint32_t wait_ms,
                                        struct lmcs_pool **pool)
{
    struct lmcs_open_options options;
    lmcs_open_options_init(&options);
    options.wait_ms = wait_ms;
    options.flags = LMCS_NO_BACKGROUND;
    *pool = NULL;
    return lmcs_pool_open(path, mode, &options, pool, &err);
}

static inline void write_bytes(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
}

#endif
