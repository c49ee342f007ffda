/* SPDX-License-Identifier: BSD-3-Clause */
/* media/files.c - files that are, or become, pools. */
#include "media/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "media/layout.h"

#define FORGOTTEN_S 60

bool lmcs_path_is_device(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISCHR(st.st_mode);
}

bool lmcs_path_is_poolset(const char *path)
{
    char magic[11];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool yes = fd >= 0 && pread(fd, magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
               memcmp(magic, "PMEMPOOLSET", sizeof magic) == 0;
    if (fd >= 0)
        close(fd);
    return yes;
}

bool lmcs_file_is_dax(int fd)
{
    void *at = mmap(NULL, LMCS_PAGE_BYTES, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
    if (at == MAP_FAILED)
        return false;
    munmap(at, LMCS_PAGE_BYTES);
    return true;
}

bool lmcs_file_is_in_memory(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

/*
 * On DAX, each first store to never-written file space would be a transaction of the file system, because the mapping
 * is synchronous; zeros take few. A bad block is then an error, not a SIGBUS later.
 */
static enum lmcs_status fill_holes(int fd, const char *path, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    static const char zeros[1 << 16];
    off_t end = (off_t)(offset + bytes), at = lseek(fd, (off_t)offset, SEEK_HOLE);
    while (at >= 0 && at < end) {
        off_t data = lseek(fd, at, SEEK_DATA), stop = data < 0 || data > end ? end : data;
        while (at < stop) {
            size_t want = stop - at < (off_t)sizeof zeros ? (size_t)(stop - at) : sizeof zeros;
            ssize_t n = pwrite(fd, zeros, want, at);
            if (n < 0 && errno != EINTR)
                return lmcs_fail_errno(error, errno, "%s: can't write", path);
            at += n < 0 ? 0 : n;
        }
        at = at < end ? lseek(fd, at, SEEK_HOLE) : at;
    }
    return fdatasync(fd) == 0 ? LMCS_OK : lmcs_fail_errno(error, errno, "%s: can't make it durable", path);
}

/*
 * File systems use up all space before they refuse, and other writes fail meanwhile. (One without blocks has no limit.)
 */
static bool can_not_fit(int fd, uint64_t offset, uint64_t bytes)
{
    struct statvfs fs;
    if (fstatvfs(fd, &fs) != 0 || fs.f_blocks == 0 || bytes / fs.f_frsize <= fs.f_bavail)
        return false;
    off_t data = lseek(fd, (off_t)offset, SEEK_DATA);
    return data < 0 ? errno == ENXIO : (uint64_t)data >= offset + bytes;
}

/* Whether all of it has file space. A full XFS refuses to allocate that again. */
static bool is_allocated(int fd, uint64_t offset, uint64_t bytes)
{
    const uint64_t end = offset + bytes;
    struct fiemap *map = calloc(1, sizeof *map + sizeof *map->fm_extents);
    while (map != NULL && offset < end) {
        *map = (struct fiemap){.fm_start = offset, .fm_length = end - offset, .fm_extent_count = 1};
        if (ioctl(fd, FS_IOC_FIEMAP, map) != 0 || map->fm_mapped_extents == 0 ||
            map->fm_extents[0].fe_logical > offset || (map->fm_extents[0].fe_flags & FIEMAP_EXTENT_UNKNOWN) != 0)
            break;
        offset = map->fm_extents[0].fe_logical + map->fm_extents[0].fe_length;
    }
    free(map);
    return offset >= end;
}

enum lmcs_status lmcs_file_back(int fd, const char *path, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    int failure = can_not_fit(fd, offset, bytes) ? ENOSPC : 0;
    while (failure == 0 && fallocate(fd, 0, (off_t)offset, (off_t)bytes) != 0)
        failure = errno == EINTR ? 0 : errno;
    if (failure == EOPNOTSUPP)
        failure = posix_fallocate(fd, (off_t)offset, (off_t)bytes);
    if ((failure == ENOSPC || failure == EDQUOT) && is_allocated(fd, offset, bytes))
        failure = 0;
    if (failure == 0)
        return lmcs_file_is_dax(fd) ? fill_holes(fd, path, offset, bytes, error) : LMCS_OK;
    if (failure == EDQUOT)
        return lmcs_fail_full(error, bytes, 0, failure, "%s: the disk quota is used up: %llu bytes are needed", path,
                              (unsigned long long)bytes);
    struct statvfs fs;
    uint64_t available = fstatvfs(fd, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : 0;
    if (failure == ENOSPC || failure == EFBIG)
        return lmcs_fail_full(error, bytes, available, failure,
                              "%s: the disk is full: %llu bytes are needed and %llu are free", path,
                              (unsigned long long)bytes, (unsigned long long)available);
    return lmcs_fail_errno(error, failure, "%s: can't allocate %llu bytes", path, (unsigned long long)bytes);
}

enum lmcs_status lmcs_sync_folder_of(const char *path, struct lmcs_error *error)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        snprintf(folder, sizeof folder, ".");
    else
        slash[slash == folder] = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return LMCS_OK; /* a folder may be writable but not readable */
    /* some file systems can't sync folders */
    int failure = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : errno;
    close(fd);
    return failure == 0 ? LMCS_OK : lmcs_fail_errno(error, failure, "%s: can't make it durable", folder);
}

/* Whether a file is empty, zeros, or begins like a pool: as an unfinished pool does. */
static bool begins_as_pool(int fd)
{
    unsigned char begin[8];
    ssize_t n = pread(fd, begin, sizeof begin, 0);
    return n == 0 || (n == (ssize_t)sizeof begin && (memcmp(begin, "PMEMOBJ", sizeof begin) == 0 ||
                                                     memcmp(begin, "\0\0\0\0\0\0\0", sizeof begin) == 0));
}

/*
 * Removes unfinished pools, unopened and unchanged for a while, and second names of the pool at `path`, left by killed
 * creators.
 */
static void remove_if_forgotten(int folder, const char *name, const char *path)
{
    struct stat st, shown, now;
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid()) {
        bool is_shown =
            st.st_nlink == 2 && stat(path, &shown) == 0 && shown.st_dev == st.st_dev && shown.st_ino == st.st_ino;
        bool is_left = st.st_nlink == 1 && time(NULL) - st.st_mtime > FORGOTTEN_S && begins_as_pool(fd) &&
                       flock(fd, LOCK_EX | LOCK_NB) == 0; /* until it is removed */
        if ((is_shown || is_left) && fstatat(folder, name, &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_dev == st.st_dev &&
            now.st_ino == st.st_ino)
            unlinkat(folder, name, 0);
    }
    if (fd >= 0)
        close(fd);
}

void lmcs_remove_forgotten(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    const char *base = slash == NULL ? path : path + (slash - folder) + 1;
    if (slash != NULL)
        slash[slash == folder] = '\0';
    DIR *dir = opendir(slash == NULL ? "." : folder);
    size_t n = strlen(base), mark = strlen(LMCS_NEW_MARK);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
        if (strncmp(entry->d_name, base, n) == 0 && strncmp(entry->d_name + n, LMCS_NEW_MARK, mark) == 0 &&
            strlen(entry->d_name) == n + mark + 6)
            remove_if_forgotten(dirfd(dir), entry->d_name, path);
    if (dir != NULL)
        closedir(dir);
}

/* The lock's holder in the kernel's list of locks; 0: not listed. */
static int listed_holder(const struct stat *st)
{
    FILE *file = fopen("/proc/locks", "re");
    char line[256];
    int holder = 0;
    while (file != NULL && holder == 0 && fgets(line, sizeof line, file) != NULL) {
        int pid;
        unsigned major_number, minor_number;
        unsigned long inode;
        if (strstr(line, "FLOCK") != NULL &&
            sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%lu", &pid, &major_number, &minor_number, &inode) == 4 &&
            inode == st->st_ino && makedev(major_number, minor_number) == st->st_dev)
            holder = pid;
    }
    if (file != NULL)
        fclose(file);
    return holder;
}

static int lock_holder(const char *path)
{
    enum { TIMES = 5 }; /* the list is read page by page, and omits locks that move between pages */
    struct stat st;
    int holder = 0;
    for (int i = 0; i < TIMES && holder == 0 && stat(path, &st) == 0; i++)
        holder = listed_holder(&st);
    return holder;
}

static void process_name(int pid, char *name, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, name, bytes - 1) : -1;
    if (fd >= 0)
        close(fd);
    name[n > 0 ? n : 0] = '\0';
    for (ssize_t i = 0; i + 1 < n; i++)
        if ((unsigned char)name[i] < ' ')
            name[i] = ' ';
}

/* The variable in which the launcher of a distributed run states this process's rank, a number; NULL: none. The rank on
 * this machine is the last choice: other machines have the same one. */
static const char *rank_variable(void)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        size_t digits = value == NULL ? 0 : strspn(value, "0123456789");
        if (digits > 0 && digits < 10 && value[digits] == '\0')
            return names[i];
    }
    return NULL;
}

/* Names the pools that ranks can open instead: "run.0.pool" for "run.pool". */
static void explain_ranks(const char *path, char *text, size_t bytes)
{
    const char *slash = strrchr(path, '/'), *base = slash == NULL ? path : slash + 1, *dot = strrchr(base, '.');
    const char *variable = rank_variable();
    int stem = dot == NULL || dot == base ? (int)strlen(base) : (int)(dot - base);
    const char *rest = base + stem;
    if (variable != NULL)
        snprintf(text, bytes, "this one, %s=%s, can open %.*s.%s%s", variable, getenv(variable), stem, base,
                 getenv(variable), rest);
    else
        snprintf(text, bytes, "such as %.*s.0%s and %.*s.1%s", stem, base, rest, stem, base, rest);
}

enum lmcs_status lmcs_fail_in_use(const char *path, struct lmcs_error *error)
{
    char name[128] = "", ranks[300], holder[160] = "another process";
    int pid = lock_holder(path);
    if (pid > 0) {
        process_name(pid, name, sizeof name);
        snprintf(holder, sizeof holder, "process %d (%s)", pid, name);
    }
    explain_ranks(path, ranks, sizeof ranks);
    return lmcs_fail(error, LMCS_IN_USE, 0,
                     "%s: in use by %s; end it, or open the pool for reading only. Each rank of a distributed run "
                     "needs its own pool: %s. If all ranks have the same state, let one of them write",
                     path, holder, ranks);
}
