/* SPDX-License-Identifier: BSD-3-Clause */
/* test_archive_files.h - whole archives in files. */
#ifndef LMCS_TEST_ARCHIVE_FILES_H
#define LMCS_TEST_ARCHIVE_FILES_H

#include <unistd.h>

#include "support.h"

static inline void rewind_to_start(int fd)
{
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
}

/* The caller frees the bytes. */
static inline unsigned char *bytes_of(int fd, size_t *bytes)
{
    *bytes = (size_t)lseek(fd, 0, SEEK_END);
    unsigned char *data = malloc(*bytes + 1);
    EXPECT(data != NULL && pread(fd, data, *bytes, 0) == (ssize_t)*bytes);
    rewind_to_start(fd);
    return data;
}

static inline void set_bytes(int fd, const void *data, size_t bytes)
{
    EXPECT(ftruncate(fd, 0) == 0 && pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    rewind_to_start(fd);
}

static inline bool same_files(int a, int b)
{
    size_t bytes, others;
    unsigned char *x = bytes_of(a, &bytes), *y = bytes_of(b, &others);
    bool same = bytes == others && memcmp(x, y, bytes) == 0;
    free(x);
    free(y);
    return same;
}

#endif
