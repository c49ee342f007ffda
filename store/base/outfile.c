/* SPDX-License-Identifier: BSD-3-Clause */
/* base/outfile.c - output files. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum lmcs_status lmcs_outfile_check(const char *path, struct lmcs_error *error)
{
    static const char file[] = "PMEMOBJ", set[] = "PMEMPOOLSET";
    char magic[sizeof set - 1];
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return LMCS_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT)
        return LMCS_OK;
    ssize_t got = fd >= 0 ? pread(fd, magic, sizeof magic, 0) : -1;
    int reason = errno;
    if (fd >= 0)
        close(fd);
    if (got < 0)
        return lmcs_fail_errno(error, reason, "%s: cannot read it to check whether it is a pool; remove it first",
                               path);
    if ((got >= (ssize_t)sizeof file - 1 && memcmp(magic, file, sizeof file - 1) == 0) ||
        (got == (ssize_t)sizeof magic && memcmp(magic, set, sizeof magic) == 0))
        return lmcs_fail(error, LMCS_INVALID, 0,
                         "%s is a pool or a poolset file and would be replaced; to replace it, remove it first", path);
    return LMCS_OK;
}

static enum lmcs_status open_in_place(const char *path, struct lmcs_outfile *file, struct lmcs_error *error)
{
    file->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    file->owns_fd = true;
    return file->fd >= 0 ? LMCS_OK : lmcs_fail_errno(error, errno, "%s can't be opened for writing", path);
}

#define RANDOM_LETTERS 6

/* Returns "x/.lmc-store-XXXXXX" for "x/y", for mkostemp. */
static char *temporary_name(const char *target)
{
    static const char name[] = ".lmc-store-XXXXXX";
    const char *slash = strrchr(target, '/');
    size_t directory_bytes = slash != NULL ? (size_t)(slash + 1 - target) : 0;
    char *temporary = malloc(directory_bytes + sizeof name);
    if (temporary != NULL) {
        memcpy(temporary, target, directory_bytes);
        memcpy(temporary + directory_bytes, name, sizeof name);
    }
    return temporary;
}

/* Returns the folder of a path, to be freed; NULL: no memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == path ? strdup("/") : slash != NULL ? strndup(path, (size_t)(slash - path)) : strdup(".");
}

/* A file system that can't reserve is no error. */
static enum lmcs_status take_space(struct lmcs_outfile *file, uint64_t bytes, struct lmcs_error *error)
{
    if (bytes == 0 || fallocate(file->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0)
        return LMCS_OK;
    int reason = errno;
    if (reason != ENOSPC && reason != EDQUOT && reason != EFBIG)
        return LMCS_OK;
    struct statvfs disk;
    uint64_t available = fstatvfs(file->fd, &disk) != 0 ? 0 : (uint64_t)disk.f_bavail * disk.f_frsize;
    return lmcs_fail_full(error, bytes, available, reason, "%s needs %llu bytes", file->shown,
                          (unsigned long long)bytes);
}

/* A descriptor's name in /proc, by which linkat names the file without a privilege. */
struct descriptor_path {
    char text[sizeof "/proc/self/fd/" + 3 * sizeof(int)];
};

static struct descriptor_path descriptor_path(int fd)
{
    struct descriptor_path path;
    snprintf(path.text, sizeof path.text, "/proc/self/fd/%d", fd);
    return path;
}

/* Opens a file without a name, which ends with the process. -1: the file system has none, or /proc is not mounted. */
static int open_unnamed(const char *target)
{
    char *folder = folder_of(target);
    int fd = folder != NULL ? open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
    struct stat file, shown;
    free(folder);
    if (fd >= 0 && (fstat(fd, &file) != 0 || stat(descriptor_path(fd).text, &shown) != 0 ||
                    file.st_dev != shown.st_dev || file.st_ino != shown.st_ino)) {
        close(fd);
        return -1;
    }
    return fd;
}

static enum lmcs_status open_temporary(const char *target, uint64_t bytes, struct lmcs_outfile *file,
                                       struct lmcs_error *error)
{
    file->target = strdup(target);
    file->temporary = temporary_name(target);
    if (file->target == NULL || file->temporary == NULL)
        return lmcs_fail_memory(error);
    file->fd = open_unnamed(target);
    if (file->fd < 0) {
        file->fd = mkostemp(file->temporary, O_CLOEXEC);
        file->is_named = file->fd >= 0;
    }
    if (file->fd < 0) {
        int reason = errno;
        return reason == ENOENT
                   ? lmcs_fail_no_folder(file->shown, error)
                   : lmcs_fail(error, LMCS_IO, reason, "%s: no file can be created in its folder", file->shown);
    }
    file->owns_fd = true;
    return take_space(file, bytes, error);
}

enum lmcs_status lmcs_outfile_open(const char *path, uint64_t expected_bytes, struct lmcs_outfile *file,
                                   struct lmcs_error *error)
{
    struct stat info;
    *file = (struct lmcs_outfile){.shown = path, .fd = -1};
    if (strcmp(path, "-") == 0) {
        *file = (struct lmcs_outfile){.shown = "standard output", .fd = STDOUT_FILENO};
        return LMCS_OK;
    }
    if (lstat(path, &info) != 0)
        return open_temporary(path, expected_bytes, file, error);
    char *target = realpath(path, NULL);
    if (target == NULL || stat(target, &info) != 0) {
        int reason = errno;
        free(target);
        return lmcs_fail_errno(error, reason, "%s can't be written", path);
    }
    enum lmcs_status status = lmcs_outfile_check(path, error);
    if (status == LMCS_OK)
        status = S_ISREG(info.st_mode)   ? open_temporary(target, expected_bytes, file, error)
                 : S_ISDIR(info.st_mode) ? lmcs_fail(error, LMCS_INVALID, 0, "%s is a directory", path)
                                         : open_in_place(path, file, error);
    free(target);
    return status;
}

enum lmcs_status lmcs_outfile_resume(const char *path, struct lmcs_outfile *file, struct lmcs_error *error)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
    *file = (struct lmcs_outfile){.shown = path, .fd = fd, .owns_fd = true};
    if (fd < 0)
        return errno == ENOENT ? lmcs_fail_no_folder(path, error)
                               : lmcs_fail_errno(error, errno, "%s can't be opened for writing", path);
    file->target = realpath(path, NULL);
    return file->target != NULL ? LMCS_OK : lmcs_fail_errno(error, errno, "%s can't be written", path);
}

enum lmcs_status lmcs_outfile_write_some(struct lmcs_outfile *file, const void *data, size_t data_bytes,
                                         size_t *written, struct lmcs_error *error)
{
    struct pollfd waited = {.fd = file->fd, .events = POLLOUT};
    int ready = poll(&waited, 1, 1000);
    *written = 0;
    if (ready == 0 || (ready < 0 && errno == EINTR))
        return LMCS_OK;
    ssize_t n = write(file->fd, data, data_bytes);
    if (n < 0 && errno != EINTR && errno != EAGAIN)
        return lmcs_fail_errno(error, errno, "%s can't be written", file->shown);
    *written = n > 0 ? (size_t)n : 0;
    return LMCS_OK;
}

enum lmcs_status lmcs_outfile_write(struct lmcs_outfile *file, const void *data, size_t data_bytes,
                                    struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t done = 0, written; status == LMCS_OK && done < data_bytes; done += written)
        status = lmcs_outfile_write_some(file, (const char *)data + done, data_bytes - done, &written, error);
    return status;
}

static int sync_directory(const char *target)
{
    char *directory = folder_of(target);
    int fd = directory != NULL ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int result = fd >= 0 ? fsync(fd) : -1;
    int reason = errno;
    if (fd >= 0)
        close(fd);
    free(directory);
    errno = reason;
    return result;
}

/* Gives the file a temporary name that is not taken. */
static int link_temporary(struct lmcs_outfile *file)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    char *end = file->temporary + strlen(file->temporary) - RANDOM_LETTERS;
    for (int tries = 0; tries < 100; tries++) {
        unsigned char random[RANDOM_LETTERS];
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
            return -1;
        for (int i = 0; i < RANDOM_LETTERS; i++)
            end[i] = letters[random[i] % (sizeof letters - 1)];
        if (linkat(AT_FDCWD, descriptor_path(file->fd).text, AT_FDCWD, file->temporary, AT_SYMLINK_FOLLOW) == 0) {
            file->is_named = true;
            return 0;
        }
        if (errno != EEXIST)
            return -1;
    }
    return -1;
}

/*
 * Names a synced file as its target. A file that had no name is synced again once it has one, and before it replaces
 * another: a sync by btrfs does not log a file without a name.
 */
static int give_name(struct lmcs_outfile *file)
{
    if (!file->is_named) {
        if (linkat(AT_FDCWD, descriptor_path(file->fd).text, AT_FDCWD, file->target, AT_SYMLINK_FOLLOW) == 0)
            return fsync(file->fd);
        if (errno != EEXIST || link_temporary(file) != 0 || fsync(file->fd) != 0)
            return -1;
    }
    if (rename(file->temporary, file->target) != 0)
        return -1;
    file->is_named = false;
    return 0;
}

enum lmcs_status lmcs_outfile_commit(struct lmcs_outfile *file, struct lmcs_error *error)
{
    if (file->target == NULL)
        return LMCS_OK;
    /* A pool may have been created there meanwhile. */
    enum lmcs_status status = file->temporary != NULL ? lmcs_outfile_check(file->target, error) : LMCS_OK;
    if (status != LMCS_OK)
        return status;
    if (fsync(file->fd) != 0 || (file->temporary != NULL && give_name(file) != 0))
        return lmcs_fail_errno(error, errno, "%s can't be written", file->shown);
    if (sync_directory(file->target) != 0)
        return lmcs_fail_errno(error, errno, "the directory of %s can't be synced", file->shown);
    return LMCS_OK;
}

void lmcs_outfile_close(struct lmcs_outfile *file)
{
    if (file->owns_fd && file->fd >= 0)
        close(file->fd);
    if (file->is_named)
        unlink(file->temporary);
    free(file->temporary);
    free(file->target);
    *file = (struct lmcs_outfile){.fd = -1};
}
