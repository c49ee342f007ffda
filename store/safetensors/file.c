/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * safetensors/file.c - a new file that appears whole, durable and under its name, or not at all.
 *
 * It is written under a temporary name in the same directory (mode 0600), synced, renamed, and the directory synced.
 * Pipes and devices can't be replaced like that and are written in place; a symbolic link is followed, not replaced.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "safetensors/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static enum lmcs_status open_in_place(const char *path, struct lmcs_st_file *file, struct lmcs_error *error)
{
    file->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    file->owns_fd = true;
    return file->fd >= 0 ? LMCS_OK : lmcs_fail_errno(error, errno, "%s can't be opened for writing", path);
}

/* "x/y" -> "x/.lmc-store-XXXXXX", for mkostemp. */
static char *temporary_name(const char *target)
{
    static const char name[] = ".lmc-store-XXXXXX";
    const char *slash = strrchr(target, '/');
    size_t directory_bytes = slash ? (size_t)(slash + 1 - target) : 0;
    char *temporary = malloc(directory_bytes + sizeof name);
    if (temporary) {
        memcpy(temporary, target, directory_bytes);
        memcpy(temporary + directory_bytes, name, sizeof name);
    }
    return temporary;
}

/* Takes the space now, so that a full disk is known before the work; a file system that can't is no error. */
static enum lmcs_status take_space(struct lmcs_st_file *file, uint64_t bytes, struct lmcs_error *error)
{
    if (bytes == 0 || fallocate(file->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0)
        return LMCS_OK;
    int reason = errno;
    if (reason != ENOSPC && reason != EDQUOT && reason != EFBIG)
        return LMCS_OK;
    struct statvfs disk;
    uint64_t available = fstatvfs(file->fd, &disk) ? 0 : (uint64_t)disk.f_bavail * disk.f_frsize;
    return lmcs_fail_full(error, bytes, available, reason, "%s needs %llu bytes", file->shown,
                          (unsigned long long)bytes);
}

static enum lmcs_status open_temporary(const char *target, uint64_t bytes, struct lmcs_st_file *file,
                                       struct lmcs_error *error)
{
    file->target = strdup(target);
    file->temporary = temporary_name(target);
    if (!file->target || !file->temporary)
        return lmcs_fail_memory(error);
    file->fd = mkostemp(file->temporary, O_CLOEXEC);
    if (file->fd < 0) {
        int reason = errno;
        file->temporary[0] = '\0';
        return lmcs_fail(error, reason == ENOENT ? LMCS_NOT_FOUND : LMCS_IO, reason,
                         "no file can be made in the directory of %s", file->shown);
    }
    file->owns_fd = true;
    return take_space(file, bytes, error);
}

/* A pool that is replaced is lost, with all its history: whoever means that removes it first. */
static enum lmcs_status refuse_pool(const char *target, const char *path, struct lmcs_error *error)
{
    static const char file[] = "PMEMOBJ", set[] = "PMEMPOOLSET";
    char magic[sizeof set - 1];
    int fd = open(target, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT)
        return LMCS_OK;
    ssize_t got = fd >= 0 ? pread(fd, magic, sizeof magic, 0) : -1;
    int reason = errno;
    if (fd >= 0)
        close(fd);
    if (got < 0)
        return lmcs_fail_errno(error, reason, "whether %s is a pool can't be seen; remove it first", path);
    if ((got >= (ssize_t)sizeof file - 1 && memcmp(magic, file, sizeof file - 1) == 0) ||
        (got == (ssize_t)sizeof magic && memcmp(magic, set, sizeof magic) == 0))
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "%s is a pool, or a poolset file, and would be replaced; remove it first if that is meant",
                         path);
    return LMCS_OK;
}

enum lmcs_status lmcs_st_file_open(const char *path, uint64_t expected_bytes, struct lmcs_st_file *file,
                                   struct lmcs_error *error)
{
    struct stat info;
    *file = (struct lmcs_st_file){.shown = path, .fd = -1};
    if (strcmp(path, "-") == 0) {
        *file = (struct lmcs_st_file){.shown = "standard output", .fd = STDOUT_FILENO};
        return LMCS_OK;
    }
    if (lstat(path, &info))
        return open_temporary(path, expected_bytes, file, error);
    char *target = realpath(path, NULL);
    if (!target || stat(target, &info)) {
        int reason = errno;
        free(target);
        return lmcs_fail_errno(error, reason, "%s can't be written", path);
    }
    enum lmcs_status status = S_ISREG(info.st_mode) ? refuse_pool(target, path, error) : LMCS_OK;
    if (status == LMCS_OK)
        status = S_ISREG(info.st_mode)   ? open_temporary(target, expected_bytes, file, error)
                 : S_ISDIR(info.st_mode) ? lmcs_fail(error, LMCS_INVALID, 0, "%s is a directory", path)
                                         : open_in_place(path, file, error);
    free(target);
    return status;
}

enum lmcs_status lmcs_st_file_write(struct lmcs_st_file *file, const void *data, size_t data_bytes,
                                    struct lmcs_error *error)
{
    const char *at = data;
    while (data_bytes > 0) {
        ssize_t n = write(file->fd, at, data_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return lmcs_fail_errno(error, errno, "%s can't be written", file->shown);
        at += n;
        data_bytes -= (size_t)n;
    }
    return LMCS_OK;
}

/* The rename is durable once its directory is. */
static int sync_directory(const char *target)
{
    const char *slash = strrchr(target, '/');
    char *directory = slash == target ? strdup("/") : slash ? strndup(target, (size_t)(slash - target)) : strdup(".");
    int fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int result = fd >= 0 ? fsync(fd) : -1;
    int reason = errno;
    if (fd >= 0)
        close(fd);
    free(directory);
    errno = reason;
    return result;
}

enum lmcs_status lmcs_st_file_commit(struct lmcs_st_file *file, struct lmcs_error *error)
{
    if (!file->target)
        return LMCS_OK;
    enum lmcs_status status = refuse_pool(file->target, file->shown, error); /* one may have been made meanwhile */
    if (status != LMCS_OK)
        return status;
    if (fsync(file->fd) || rename(file->temporary, file->target))
        return lmcs_fail_errno(error, errno, "%s can't be written", file->shown);
    file->temporary[0] = '\0';
    if (sync_directory(file->target))
        return lmcs_fail_errno(error, errno, "the directory of %s can't be synced", file->shown);
    return LMCS_OK;
}

void lmcs_st_file_close(struct lmcs_st_file *file)
{
    if (file->owns_fd && file->fd >= 0)
        close(file->fd);
    if (file->temporary && file->temporary[0])
        unlink(file->temporary);
    free(file->temporary);
    free(file->target);
    *file = (struct lmcs_st_file){.fd = -1};
}
