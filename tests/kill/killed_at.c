/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * killed_at.c - for LD_PRELOAD: kills a process before one of its calls that make a file or a folder durable, or change
 * it. LMCS_KILLED_AT: the number of the call, from 1; LMCS_KILLED_COUNT: a file to which the calls are counted instead.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long calls;

static void count(void)
{
    const char *at = getenv("LMCS_KILLED_AT");
    if (atomic_fetch_add(&calls, 1) + 1 == (at != NULL ? atol(at) : 0))
        kill(getpid(), SIGKILL);
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("LMCS_KILLED_COUNT");
    FILE *file = path != NULL ? fopen(path, "w") : NULL;
    if (file == NULL)
        return;
    fprintf(file, "%ld\n", atomic_load(&calls));
    fclose(file);
}

/* Defines a function that is counted. */
#define COUNTED(result, name, parameters, arguments)               \
    __attribute__((visibility("default"))) result name parameters; \
    result name parameters                                         \
    {                                                              \
        result(*real) parameters = NULL;                           \
        *(void **)&real = dlsym(RTLD_NEXT, #name);                 \
        count();                                                   \
        return real arguments;                                     \
    }

COUNTED(int, msync, (void *data, size_t bytes, int flags), (data, bytes, flags))
COUNTED(int, fsync, (int fd), (fd))
COUNTED(int, fdatasync, (int fd), (fd))
COUNTED(int, fallocate, (int fd, int mode, off_t offset, off_t bytes), (fd, mode, offset, bytes))
COUNTED(int, fallocate64, (int fd, int mode, off64_t offset, off64_t bytes), (fd, mode, offset, bytes))
COUNTED(int, posix_fallocate, (int fd, off_t offset, off_t bytes), (fd, offset, bytes))
COUNTED(int, posix_fallocate64, (int fd, off64_t offset, off64_t bytes), (fd, offset, bytes))
COUNTED(int, ftruncate, (int fd, off_t bytes), (fd, bytes))
COUNTED(int, ftruncate64, (int fd, off64_t bytes), (fd, bytes))
COUNTED(ssize_t, pwrite, (int fd, const void *data, size_t bytes, off_t offset), (fd, data, bytes, offset))
COUNTED(ssize_t, pwrite64, (int fd, const void *data, size_t bytes, off64_t offset), (fd, data, bytes, offset))
COUNTED(int, rename, (const char *from, const char *to), (from, to))
COUNTED(int, linkat, (int from_fd, const char *from, int to_fd, const char *to, int flags),
        (from_fd, from, to_fd, to, flags))
COUNTED(int, unlink, (const char *path), (path))
COUNTED(int, mkdir, (const char *path, mode_t mode), (path, mode))
COUNTED(int, rmdir, (const char *path), (path))
