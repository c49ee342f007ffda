/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/heap.c - the pool as libpmemobj has it: the one file that knows that library.
 *
 * Three things are done around libpmemobj rather than by it. Files are sparse, so space is allocated before anything,
 * libpmemobj's own heap metadata included, is stored through a mapping: a full disk is then an error and never a
 * SIGBUS. On page-cached files payloads are written with pwrite, which is as fast as a plain file and reports errors.
 * And the mapping is kept out of forked children (MADV_DONTFORK): libpmemobj's lock is a flock that lives as long as
 * any mapping of the file does, and a child that outlives its parent must not keep the pool locked.
 */
#include "media/heap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libpmem.h>
#include <libpmemobj.h>
#include <limits.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/guard.h"
#include "media/layout.h"
#include "media/media.h"
#include "media/pmemobj_layout.h"
#include "media/writeback.h"

#define HEAP_OFFSET_EXPECTED ((uint64_t)3153920)  /* of libpmemobj 1.x with its 1024 lanes */
#define HEADROOM_BYTES       ((uint64_t)64 << 10) /* of the disk, for pages that can't be allocated first */
#define LIBRARY_BYTES        ((size_t)16 << 20)   /* of memory that libpmemobj takes for a pool, and some more */
#define RETRY_NS             20000000L
#define SHORT_STORE          256u              /* bytes */
#define NEW_MARK             ".lmc-store-new-" /* and six letters: a pool that is being made */
#define FORGOTTEN_S          60

static_assert(sizeof(struct lmcs_action) >= sizeof(struct pobj_action), "room for libpmemobj's action");

struct lmcs_heap {
    PMEMobjpool *pool;
    char *path;
    char *shown_path; /* NULL once it stands there */
    int fd;           /* for pwrite, fallocate; -1 for poolsets and devices */
    int map_fd;       /* the same file opened once more, for mappings of ours: the kernel tells it of errors apart */
    uint64_t bytes;   /* mapped by libpmemobj; 0 when not known */
    uint64_t zones_start;
    uint64_t zones_backed; /* the metadata of so many zones has file space */
    uint64_t highest;      /* offset of our highest object */
    enum lmcs_write_method method;
    struct lmcs_writeback *behind; /* with LMCS_WRITE_FILE */
    bool persistent;
    bool forced;
    bool dax; /* a file */
    atomic_bool can_punch;
    atomic_int failure;         /* errno of the first sync that failed; 0: none has */
    pthread_mutex_t syncing;    /* held from a sync of `fd` until its failure is noted ... */
    pthread_mutex_t persisting; /* ... and from one of `map_fd` */
};

static struct lmcs_heap *new_heap(void)
{
    struct lmcs_heap *heap = calloc(1, sizeof *heap);
    if (heap == NULL)
        return NULL;
    heap->fd = heap->map_fd = -1;
    pthread_mutex_init(&heap->syncing, NULL);
    pthread_mutex_init(&heap->persisting, NULL);
    return heap;
}

static void sleep_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
}

/* libpmemobj's settings are global and read when a pool is made or opened. */
static void configure_library(void)
{
    int no = 0;
    pmemobj_ctl_set(NULL, "fallocate.at_create", &no);
}

static bool is_device(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISCHR(st.st_mode);
}

static bool is_poolset(const char *path)
{
    char magic[11];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool yes = fd >= 0 && pread(fd, magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
               memcmp(magic, "PMEMPOOLSET", sizeof magic) == 0;
    if (fd >= 0)
        close(fd);
    return yes;
}

/* A file lies on DAX when the kernel grants a synchronous mapping of it. */
static bool file_is_dax(int fd)
{
    void *at = mmap(NULL, LMCS_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
    if (at == MAP_FAILED)
        return false;
    munmap(at, LMCS_PAGE_BYTES);
    return true;
}

static bool file_is_in_memory(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

static void choose_method(struct lmcs_heap *heap)
{
    const char *force = getenv("PMEM_IS_PMEM_FORCE");
    heap->forced = force != NULL && strcmp(force, "1") == 0;
    if (heap->fd < 0) {
        bool device = is_device(heap->path);
        heap->method = device ? LMCS_WRITE_STORE : LMCS_WRITE_LIBRARY;
        heap->persistent = device || heap->forced;
        return;
    }
    heap->dax = file_is_dax(heap->fd);
    if (heap->dax)
        heap->forced = false;
    heap->persistent = heap->dax || heap->forced;
    heap->method = heap->persistent || file_is_in_memory(heap->fd) ? LMCS_WRITE_STORE : LMCS_WRITE_FILE;
}

/* Nothing yet, zeros, or the first bytes of a pool: what a file has that was to become one. */
static bool begins_as_pool(int fd)
{
    unsigned char begin[8];
    ssize_t n = pread(fd, begin, sizeof begin, 0);
    return n == 0 || (n == (ssize_t)sizeof begin && (memcmp(begin, "PMEMOBJ", sizeof begin) == 0 ||
                                                     memcmp(begin, "\0\0\0\0\0\0\0", sizeof begin) == 0));
}

/*
 * Removes a file of that folder that was to become a pool, that nobody has open, and that has not been touched for a
 * while. Or it is the pool at `path`: whoever gave it that name did not live to take the other one away.
 */
static void remove_if_forgotten(int folder, const char *name, const char *path)
{
    struct stat st, shown, now;
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid()) {
        bool is_shown =
            st.st_nlink == 2 && stat(path, &shown) == 0 && shown.st_dev == st.st_dev && shown.st_ino == st.st_ino;
        bool is_left = st.st_nlink == 1 && time(NULL) - st.st_mtime > FORGOTTEN_S && begins_as_pool(fd) &&
                       flock(fd, LOCK_EX | LOCK_NB) == 0; /* until it has gone */
        if ((is_shown || is_left) && fstatat(folder, name, &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_dev == st.st_dev &&
            now.st_ino == st.st_ino)
            unlinkat(folder, name, 0);
    }
    if (fd >= 0)
        close(fd);
}

/* Removes what processes that were killed while they made a pool at this path have left beside it. */
static void remove_forgotten(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    const char *base = slash == NULL ? path : path + (slash - folder) + 1;
    if (slash != NULL)
        slash[slash == folder] = '\0';
    DIR *dir = opendir(slash == NULL ? "." : folder);
    size_t n = strlen(base), mark = strlen(NEW_MARK);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
        if (strncmp(entry->d_name, base, n) == 0 && strncmp(entry->d_name + n, NEW_MARK, mark) == 0 &&
            strlen(entry->d_name) == n + mark + 6)
            remove_if_forgotten(dirfd(dir), entry->d_name, path);
    if (dir != NULL)
        closedir(dir);
}

/* Learns what can be learned once libpmemobj has the pool mapped; a file is at `door`. */
static enum lmcs_status adopt(struct lmcs_heap *heap, const char *door, struct lmcs_error *error)
{
    const unsigned char *base = (const unsigned char *)heap->pool;
    uint64_t heap_offset;
    memcpy(&heap_offset, base + LMCS_POBJ_HEAP, sizeof heap_offset);
    heap->zones_start = heap_offset + LMCS_HEAP_HEADER_BYTES;
    atomic_init(&heap->can_punch, false);
    if (!is_device(door) && !is_poolset(door)) {
        heap->fd = open(door, O_RDWR | O_CLOEXEC);
        heap->map_fd = open(door, O_RDWR | O_CLOEXEC);
        struct stat st;
        if (heap->fd < 0 || heap->map_fd < 0 || fstat(heap->fd, &st) != 0)
            return lmcs_fail_errno(error, errno, "%s: can't open for writing", heap->path);
        heap->bytes = (uint64_t)st.st_size;
        atomic_store(&heap->can_punch, true);
        if (st.st_nlink > 1 && heap->shown_path == NULL)
            remove_forgotten(heap->path); /* or a pool that is deleted would not be noticed */
    } else {
        heap->bytes = lmcs_media_device_bytes(heap->path);
    }
    /* Kept out of children, so that they can't hold the lock: it lives as long as any mapping does. */
    if (heap->bytes > 0)
        madvise(heap->pool, heap->bytes, MADV_DONTFORK);
    choose_method(heap);
    return heap->method == LMCS_WRITE_FILE ? lmcs_writeback_new(heap->fd, &heap->behind, error) : LMCS_OK;
}

void lmcs_heap_keep_place(const struct lmcs_heap *heap)
{
    if (heap->bytes > 0) /* it fails where something is there already */
        mmap(heap->pool, heap->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1,
             0);
}

enum lmcs_status lmcs_heap_check_name(const struct lmcs_heap *heap, struct lmcs_error *error)
{
    struct stat st;
    if (heap->fd < 0 || fstat(heap->fd, &st) != 0 || st.st_nlink > 0)
        return LMCS_OK;
    return lmcs_fail(error, LMCS_IO, ENOENT,
                     "%s: the pool was deleted or replaced while it was open, so nothing can be saved in it: dump what "
                     "it holds while it is open, close it, and restore that into a new pool",
                     heap->path);
}

/*
 * libpmemobj takes some 12 MB for a pool, in 10,000 pieces, and not every piece may be refused: when its lanes' locks
 * are (lane_boot of 1.12), it goes on without them and crashes, and without room for an error's text it ends the
 * process. So that there is room is seen first.
 */
static enum lmcs_status check_memory(struct lmcs_error *error)
{
    void *volatile room = malloc(LIBRARY_BYTES); /* volatile: a compiler may leave out what is freed unused */
    if (room == NULL)
        return lmcs_fail_memory(error);
    free(room);
    return LMCS_OK;
}

/* ---- Who has it ---- */

/* The process that holds the flock of the file, as the kernel's list of locks says; 0: it does not. */
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

/* The process that holds the flock of the file at `path`; 0: not known. */
static int lock_holder(const char *path)
{
    enum { TIMES = 5 }; /* the list is given page by page, and what moves between two of them is left out */
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

static enum lmcs_status fail_in_use(const char *path, struct lmcs_error *error)
{
    int pid = lock_holder(path);
    if (pid <= 0)
        return lmcs_fail(error, LMCS_IN_USE, 0,
                         "%s: in use by another process; end it, or open the pool for reading only", path);
    char name[128];
    process_name(pid, name, sizeof name);
    return lmcs_fail(error, LMCS_IN_USE, 0, "%s: in use by process %d (%s); end it, or open the pool for reading only",
                     path, pid, name);
}

/* ---- Creation ---- */

/*
 * On DAX, file space that was allocated and never written to costs a transaction of the file system with each page, or
 * huge page, that is first stored to, for the mapping is a synchronous one. So zeros are written to it, by as few
 * transactions as it takes, where the file has holes; and a bad block in it is an error here, and no SIGBUS later.
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
 * Whether a range that has nothing yet is larger than what is free. Asked before, for file systems take all that there
 * is before they say so, and meanwhile everybody else's writes fail. (One without any blocks has no limit.)
 */
static bool can_not_fit(int fd, uint64_t offset, uint64_t bytes)
{
    struct statvfs fs;
    if (fstatvfs(fd, &fs) != 0 || fs.f_blocks == 0 || bytes / fs.f_frsize <= fs.f_bavail)
        return false;
    off_t data = lseek(fd, (off_t)offset, SEEK_DATA);
    return data < 0 ? errno == ENXIO : (uint64_t)data >= offset + bytes;
}

static enum lmcs_status back_range(int fd, const char *path, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    int failure = can_not_fit(fd, offset, bytes) ? ENOSPC : 0;
    while (failure == 0 && fallocate(fd, 0, (off_t)offset, (off_t)bytes) != 0)
        failure = errno == EINTR ? 0 : errno;
    if (failure == EOPNOTSUPP)
        failure = posix_fallocate(fd, (off_t)offset, (off_t)bytes);
    if (failure == 0)
        return file_is_dax(fd) ? fill_holes(fd, path, offset, bytes, error) : LMCS_OK;
    struct statvfs fs;
    uint64_t available = fstatvfs(fd, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : 0;
    if (failure == ENOSPC || failure == EDQUOT || failure == EFBIG)
        return lmcs_fail_full(error, bytes, available, failure,
                              "%s: the disk is full: %llu bytes are needed and %llu are free", path,
                              (unsigned long long)bytes, (unsigned long long)available);
    return lmcs_fail_errno(error, failure, "%s: can't allocate %llu bytes", path, (unsigned long long)bytes);
}

/* What libpmemobj touches while it makes a pool: its header, its lanes, the start of each zone. */
static enum lmcs_status back_new_file(int fd, const char *path, uint64_t bytes, struct lmcs_error *error)
{
    uint64_t first_zone = HEAP_OFFSET_EXPECTED + LMCS_HEAP_HEADER_BYTES;
    enum lmcs_status status = back_range(fd, path, 0, first_zone + LMCS_ZONE_META_BYTES + LMCS_CHUNK_BYTES, error);
    for (uint64_t at = first_zone + LMCS_ZONE_BYTES; status == LMCS_OK && at + LMCS_PAGE_BYTES * 2 < bytes;
         at += LMCS_ZONE_BYTES)
        status = back_range(fd, path, at & ~(uint64_t)(LMCS_PAGE_BYTES - 1), 2 * LMCS_PAGE_BYTES, error);
    return status;
}

static enum lmcs_status make_file(struct lmcs_heap *heap, const char *path, uint64_t bytes, struct lmcs_error *error)
{
    size_t length = strlen(path) + 32;
    heap->shown_path = strdup(path);
    heap->path = malloc(length);
    if (heap->shown_path == NULL || heap->path == NULL)
        return lmcs_fail_memory(error);
    remove_forgotten(path);
    snprintf(heap->path, length, "%s" NEW_MARK "XXXXXX", path);
    int fd = mkostemp(heap->path, O_CLOEXEC); /* mode 0600 */
    if (fd < 0) {
        int failure = errno;
        free(heap->shown_path);
        heap->shown_path = NULL; /* nothing to remove */
        return failure == ENOENT ? lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: its folder does not exist", path)
                                 : lmcs_fail_errno(error, failure, "%s: can't create", path);
    }
    enum lmcs_status status = LMCS_OK;
    while (ftruncate(fd, (off_t)bytes) != 0) {
        if (errno != EFBIG || bytes <= (uint64_t)1 << 30) {
            status = lmcs_fail_errno(error, errno, "%s: can't make a sparse file of %llu bytes", path,
                                     (unsigned long long)bytes);
            break;
        }
        bytes /= 2; /* the file system's largest file */
    }
    if (status == LMCS_OK)
        status = back_new_file(fd, path, bytes, error);
    close(fd);
    return status;
}

static enum lmcs_status call_create(struct lmcs_heap *heap, struct lmcs_error *error)
{
    enum lmcs_status status = check_memory(error);
    if (status != LMCS_OK)
        return status;
    configure_library();
    heap->pool = pmemobj_create(heap->path, LMCS_LAYOUT_NAME, 0, 0600);
    if (heap->pool == NULL && errno == ENOTSUP) {
        /* A DAX device without a counter of unsafe shutdowns: they can't be told apart there. `info` says so. */
        int no = 0;
        pmemobj_ctl_set(NULL, "sds.at_create", &no);
        heap->pool = pmemobj_create(heap->path, LMCS_LAYOUT_NAME, 0, 0600);
        int yes = 1;
        pmemobj_ctl_set(NULL, "sds.at_create", &yes);
    }
    if (heap->pool == NULL && errno == EAGAIN)
        return fail_in_use(heap->path, error); /* a device, or the parts of a poolset */
    if (heap->pool == NULL)
        return lmcs_fail_errno(error, errno, "%s: libpmemobj can't create the pool (%s)", heap->path,
                               pmemobj_errormsg());
    return adopt(heap, heap->path, error);
}

enum lmcs_status lmcs_heap_create(const char *path, uint64_t virtual_bytes, struct lmcs_heap **heap,
                                  struct lmcs_error *error)
{
    struct lmcs_heap *h = new_heap();
    if (h == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = LMCS_OK;
    if (is_device(path) || is_poolset(path)) {
        h->path = strdup(path);
        if (h->path == NULL)
            status = lmcs_fail_memory(error);
    } else {
        status = make_file(h, path, virtual_bytes, error);
    }
    if (status == LMCS_OK)
        status = call_create(h, error);
    if (status != LMCS_OK) {
        lmcs_heap_close(h);
        return status;
    }
    *heap = h;
    return LMCS_OK;
}

static enum lmcs_status sync_folder_of(const char *path, struct lmcs_error *error)
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
        return LMCS_OK; /* one may be allowed to make files in it and not to read it */
    /* Some file systems can't do it with folders. */
    int failure = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : errno;
    close(fd);
    return failure == 0 ? LMCS_OK : lmcs_fail_errno(error, failure, "%s: can't make it durable", folder);
}

enum lmcs_status lmcs_heap_show(struct lmcs_heap *heap, struct lmcs_error *error)
{
    if (heap->shown_path == NULL)
        return LMCS_OK;
    if (fsync(heap->fd) != 0)
        return lmcs_fail_errno(error, errno, "%s: can't make it durable", heap->shown_path);
    if (link(heap->path, heap->shown_path) != 0) {
        /* Some file systems have no links; there, a rename that replaces nothing. */
        if (errno == EEXIST)
            return lmcs_fail(error, LMCS_EXISTS, 0, "%s: is there already", heap->shown_path);
        if (renameat2(AT_FDCWD, heap->path, AT_FDCWD, heap->shown_path, RENAME_NOREPLACE) != 0)
            return errno == EEXIST ? lmcs_fail(error, LMCS_EXISTS, 0, "%s: is there already", heap->shown_path)
                                   : lmcs_fail_errno(error, errno, "%s: can't create", heap->shown_path);
    } else {
        unlink(heap->path);
    }
    free(heap->path);
    enum lmcs_status status = sync_folder_of(heap->shown_path, error);
    if (status != LMCS_OK)
        unlink(heap->shown_path); /* who tries again begins again */
    heap->path = heap->shown_path;
    heap->shown_path = NULL;
    return status;
}

/* ---- Opening ---- */

static enum lmcs_status fail_open(const char *path, int failure, struct lmcs_error *error)
{
    const char *said = pmemobj_errormsg();
    if (failure == EAGAIN)
        return fail_in_use(path, error);
    /* "An ADR failure was detected": the counter of unsafe shutdowns has moved while the pool was open. */
    if (failure == EINVAL && strstr(said, "ADR failure") != NULL)
        return lmcs_fail(error, LMCS_DAMAGED, 0,
                         "%s: the power failed while it was open and the device may have lost writes (%s); check it "
                         "with 'lmc-store verify', which only reads, then 'pmempool feature -d SHUTDOWN_STATE %s'",
                         path, said, path);
    if (failure == EACCES || failure == EPERM || failure == EROFS)
        return lmcs_fail(error, LMCS_READ_ONLY, failure, "%s: can't be opened for writing; mode r reads it", path);
    if (failure == ENOMEM)
        return lmcs_fail_memory(error);
    if (failure == EEXIST)
        return lmcs_fail(error, LMCS_UNSUPPORTED, failure,
                         "%s: this process, or the one that it was forked from, has a pool with the same identity open "
                         "(of a copy?): libpmemobj can't have both; open it in a process of its own",
                         path);
    return lmcs_fail(error, LMCS_DAMAGED, failure, "%s: libpmemobj can't open the pool (%s); mode r may read it", path,
                     said);
}

enum lmcs_status lmcs_heap_look_first(int lock_fd, lmcs_heap_look *look, void *context, bool *busy,
                                      struct lmcs_error *error)
{
    *busy = flock(lock_fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (*busy)
        return LMCS_OK;
    enum lmcs_status status = look(context, error);
    flock(lock_fd, LOCK_UN);
    return status;
}

/* Devices and poolsets are opened by their names: a device is no file of a stranger's, and a poolset names others. */
static void find_door(const struct lmcs_media *media, char *door, size_t bytes)
{
    if (lmcs_media_is_device(media) || lmcs_media_is_poolset(media))
        snprintf(door, bytes, "%s", lmcs_media_path(media));
    else
        lmcs_media_door(lmcs_media_fd(media), lmcs_media_path(media), door, bytes);
}

static void repair_footers_of_zone(struct lmcs_heap *heap, uint64_t at, uint32_t count)
{
    struct lmcs_chunk_df *chunks = lmcs_heap_at(heap, at + LMCS_ZONE_HEADER_BYTES);
    for (uint32_t i = 0, n; i < count; i += n) {
        n = chunks[i].chunks;
        if (n == 0 || n > count - i)
            return; /* not after lmcs_check_heap */
        const struct lmcs_chunk_df right = {LMCS_CHUNK_FOOTER, 0, n};
        if (n > 1 && chunks[i].type == LMCS_CHUNK_FREE && memcmp(&chunks[i + n - 1], &right, sizeof right) != 0)
            pmemobj_memcpy_persist(heap->pool, &chunks[i + n - 1], &right, sizeof right);
    }
}

/*
 * The last chunk of a free range has a footer, by which libpmemobj finds the range when what is behind it becomes free.
 * It is written after the range's header, and not flushed; the next open makes those of used ranges anew, but not of
 * free ones. So when a process or the power fails between the two, an old footer may lead to a free range further down,
 * and all between the two would be taken for free. The footers are made right before libpmemobj looks, which it does
 * when it is first asked for an object.
 */
static enum lmcs_status repair_footers(struct lmcs_heap *heap, const struct lmcs_media *media, struct lmcs_error *error)
{
    uint64_t at = lmcs_media_heap(media), left = lmcs_media_bytes(media) - at, skip = LMCS_HEAP_HEADER_BYTES;
    enum lmcs_status status = LMCS_OK;
    for (; status == LMCS_OK && left > skip; skip = LMCS_ZONE_BYTES) {
        uint32_t header[2]; /* magic, chunks */
        at += skip;
        left -= skip;
        if (left <= LMCS_ZONE_META_BYTES)
            break;
        status = lmcs_media_read(media, at, header, sizeof header, error);
        if (status == LMCS_OK && header[0] == LMCS_ZONE_MAGIC && header[1] <= LMCS_ZONE_CHUNKS)
            repair_footers_of_zone(heap, at, header[1]);
    }
    return status;
}

struct first_look {
    const char *door;
    const char *path;
    lmcs_heap_look *look;
    void *context;
};

/*
 * libpmemobj ends the process when its first sync fails, be it of pages that another process wrote, which died before
 * the disk failed. So the disk is asked before, with the lock: by writing what the first page has. What could not be
 * written is let go of, for the next look to see what is there.
 */
static enum lmcs_status ask_disk(const char *door, const char *path, struct lmcs_error *error)
{
    unsigned char page[LMCS_PAGE_BYTES];
    int fd = open(door, O_RDWR | O_CLOEXEC);
    if (fd < 0 || file_is_in_memory(fd) || file_is_dax(fd)) {
        if (fd >= 0)
            close(fd);
        return LMCS_OK; /* who may not write is told by libpmemobj */
    }
    ssize_t n = pread(fd, page, sizeof page, 0);
    bool written = n <= 0 || pwrite(fd, page, (size_t)n, 0) == n;
    int failure = n < 0 || !written || fdatasync(fd) != 0 ? errno : 0;
    if (failure != 0)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return failure == 0
               ? LMCS_OK
               : lmcs_fail_errno(error, failure,
                                 "%s: its disk does not take what is written, so it is not opened for writing", path);
}

static enum lmcs_status look_first(void *context, struct lmcs_error *error)
{
    struct first_look *first = context;
    enum lmcs_status status = ask_disk(first->door, first->path, error);
    return status == LMCS_OK ? first->look(first->context, error) : status;
}

enum lmcs_status lmcs_heap_open(const struct lmcs_media *media, uint32_t wait_ms, lmcs_heap_look *look, void *context,
                                struct lmcs_heap **heap, struct lmcs_error *error)
{
    const char *path = lmcs_media_path(media);
    int lock_fd = lmcs_media_lock_fd(media);
    char door[PATH_MAX];
    find_door(media, door, sizeof door);
    configure_library();
    bool is_file = !lmcs_media_is_device(media) && !lmcs_media_is_poolset(media);
    struct first_look first = {door, path, look, context};
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    PMEMobjpool *pool = NULL;
    int failure = EAGAIN;
    for (;;) {
        bool busy;
        enum lmcs_status status = is_file ? lmcs_heap_look_first(lock_fd, look_first, &first, &busy, error)
                                          : lmcs_heap_look_first(lock_fd, look, context, &busy, error);
        if (status == LMCS_OK && !busy)
            status = check_memory(error);
        if (status != LMCS_OK)
            return status;
        if (!busy) {
            pool = pmemobj_open(door, LMCS_LAYOUT_NAME);
            failure = errno;
        }
        if (pool != NULL || failure != EAGAIN)
            break;
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t waited_ms = (uint64_t)(now.tv_sec - start.tv_sec) * 1000 +
                             (uint64_t)((now.tv_nsec - start.tv_nsec) / 1000000 + 1000) - 1000;
        if (waited_ms >= wait_ms)
            break;
        sleep_a_little();
    }
    if (pool == NULL)
        return fail_open(path, failure, error);
    struct lmcs_heap *h = new_heap();
    if (h == NULL || (h->path = strdup(path)) == NULL) {
        free(h);
        pmemobj_close(pool);
        return lmcs_fail_memory(error);
    }
    h->pool = pool;
    enum lmcs_status status = adopt(h, door, error);
    if (status == LMCS_OK)
        status = repair_footers(h, media, error);
    if (status != LMCS_OK) {
        lmcs_heap_close(h);
        return status;
    }
    *heap = h;
    return LMCS_OK;
}

/* ---- Syncs that fail ---- */

/*
 * Linux tells of pages that could not be written once for each opening of the file, at its next sync, and then calls
 * them clean: another sync would succeed without them. So whoever syncs after one that failed is told, too, whatever
 * he has written himself; one lock for each opening sees to it that he does not get between the error and its note.
 * (What PostgreSQL learned in 2018, https://wiki.postgresql.org/wiki/Fsync_Errors.)
 */
int lmcs_heap_failure(const struct lmcs_heap *heap)
{
    return atomic_load(&heap->failure);
}

enum lmcs_status lmcs_heap_check_syncs(const struct lmcs_heap *heap, struct lmcs_error *error)
{
    int failure = lmcs_heap_failure(heap);
    return failure == 0
               ? LMCS_OK
               : lmcs_fail(error, LMCS_IO, failure,
                           "%s: an earlier write did not reach the disk (%s), so nothing more is written; what "
                           "was acknowledged is there: close the pool and open it again",
                           heap->path, strerror(failure));
}

/* libpmemobj's mapping is an opening of its own, and libpmemobj ends the process at an error: it is taken first. */
static int take_error(struct lmcs_heap *heap)
{
    return heap->method == LMCS_WRITE_FILE && msync(heap->pool, LMCS_PAGE_BYTES, MS_SYNC) != 0 ? errno : 0;
}

/* Lets go of the lock; `failure`: errno of the sync that was made under it, or 0. */
static enum lmcs_status end_sync(struct lmcs_heap *heap, pthread_mutex_t *lock, int failure, struct lmcs_error *error)
{
    int none = 0;
    enum lmcs_status status;
    if (failure != 0 && atomic_compare_exchange_strong(&heap->failure, &none, failure)) {
        (void)take_error(heap);
        status = lmcs_fail_errno(error, failure, "%s: can't make it durable", heap->path);
    } else { /* asked after the exchange: who has the other lock may have noted his failure in between */
        status = lmcs_heap_check_syncs(heap, error);
    }
    pthread_mutex_unlock(lock);
    return status;
}

/* Before libpmemobj syncs something while others write: what they could not write is no reason to end the process. */
static enum lmcs_status look_for_errors(struct lmcs_heap *heap, struct lmcs_error *error)
{
    pthread_mutex_lock(&heap->syncing);
    return end_sync(heap, &heap->syncing, take_error(heap), error);
}

void lmcs_heap_close(struct lmcs_heap *heap)
{
    if (heap == NULL)
        return;
    lmcs_writeback_free(heap->behind);
    if (heap->pool != NULL) {
        (void)look_for_errors(heap, NULL);
        pmemobj_close(heap->pool);
    }
    /* What could not be written is still in the page cache, as if it had been. Who opens it next shall not see it. */
    if (heap->fd >= 0 && lmcs_heap_failure(heap) != 0)
        posix_fadvise(heap->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (heap->map_fd >= 0)
        close(heap->map_fd);
    if (heap->fd >= 0)
        close(heap->fd);
    pthread_mutex_destroy(&heap->syncing);
    pthread_mutex_destroy(&heap->persisting);
    if (heap->shown_path != NULL && heap->path != NULL)
        unlink(heap->path);
    free(heap->shown_path);
    free(heap->path);
    free(heap);
}

const char *lmcs_heap_path(const struct lmcs_heap *heap)
{
    return heap->path;
}
enum lmcs_write_method lmcs_heap_method(const struct lmcs_heap *heap)
{
    return heap->method;
}
bool lmcs_heap_is_persistent(const struct lmcs_heap *heap)
{
    return heap->persistent;
}
bool lmcs_heap_is_forced(const struct lmcs_heap *heap)
{
    return heap->forced;
}
bool lmcs_heap_can_punch(const struct lmcs_heap *heap)
{
    return atomic_load(&heap->can_punch);
}
void *lmcs_heap_at(struct lmcs_heap *heap, uint64_t offset)
{
    return (char *)heap->pool + offset;
}

uint64_t lmcs_heap_disk_free(const struct lmcs_heap *heap)
{
    struct statvfs fs;
    if (heap->fd < 0 || fstatvfs(heap->fd, &fs) != 0)
        return UINT64_MAX;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

enum lmcs_status lmcs_heap_superblock(struct lmcs_heap *heap, uint64_t *offset, struct lmcs_error *error)
{
    PMEMoid root = pmemobj_root(heap->pool, LMCS_SUPERBLOCK_BYTES);
    if (OID_IS_NULL(root))
        return lmcs_fail_errno(error, errno, "%s: libpmemobj has no room for the root (%s)", heap->path,
                               pmemobj_errormsg());
    *offset = root.off;
    return LMCS_OK;
}

/* ---- Objects ---- */

void lmcs_heap_note(struct lmcs_heap *heap, uint64_t offset)
{
    if (heap->highest < offset)
        heap->highest = offset;
}

/*
 * Allocates file space for the zone metadata that libpmemobj may write to when it allocates `bytes`: of the zones in
 * use, and of the next one when the object is large or the last zone half full.
 */
static enum lmcs_status back_zones(struct lmcs_heap *heap, uint64_t bytes, struct lmcs_error *error)
{
    uint64_t used = heap->highest > heap->zones_start ? heap->highest - heap->zones_start : 0;
    uint64_t zones = used / LMCS_ZONE_BYTES + 1;
    if (bytes > (uint64_t)1 << 20 || used % LMCS_ZONE_BYTES > LMCS_ZONE_BYTES / 2)
        zones++;
    while (heap->fd >= 0 && heap->zones_backed < zones) {
        uint64_t at = heap->zones_start + heap->zones_backed * LMCS_ZONE_BYTES;
        if (at + LMCS_ZONE_META_BYTES < heap->bytes) {
            enum lmcs_status status = back_range(heap->fd, heap->path, at, LMCS_ZONE_META_BYTES, error);
            if (status != LMCS_OK)
                return status;
        }
        heap->zones_backed++;
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_heap_reserve(struct lmcs_heap *heap, uint64_t bytes, struct lmcs_action *action, uint64_t *offset,
                                   uint64_t *got, struct lmcs_error *error)
{
    uint64_t chunks = (bytes + LMCS_OBJECT_HEADER_BYTES + LMCS_CHUNK_BYTES - 1) / LMCS_CHUNK_BYTES;
    if (chunks > LMCS_ZONE_CHUNKS)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: no object is as large as %llu bytes", heap->path,
                         (unsigned long long)bytes);
    enum lmcs_status status = back_zones(heap, bytes, error);
    if (status == LMCS_OK)
        status = look_for_errors(heap, error);
    if (status != LMCS_OK)
        return status;
    /* libpmemobj writes the object's header through its mapping, to a page that nobody could allocate before. */
    uint64_t left = lmcs_heap_disk_free(heap);
    if (left < HEADROOM_BYTES)
        return lmcs_fail_full(error, bytes, left, ENOSPC, "%s: the disk is full", heap->path);
    /* On DAX that page would be a huge one, 2 MiB of the disk that nobody counts. */
    if (heap->dax)
        madvise(heap->pool, heap->bytes, MADV_NOHUGEPAGE);
    PMEMoid object = pmemobj_reserve(heap->pool, (struct pobj_action *)action,
                                     chunks * LMCS_CHUNK_BYTES - LMCS_OBJECT_HEADER_BYTES, LMCS_OBJECT_TYPE);
    if (heap->dax)
        madvise(heap->pool, heap->bytes, MADV_HUGEPAGE);
    if (OID_IS_NULL(object)) {
        if (errno == ENOMEM || errno == ENOSPC)
            return lmcs_fail_full(error, bytes, 0, 0, "%s: the pool's address space is used up: no room for %llu bytes",
                                  heap->path, (unsigned long long)bytes);
        return lmcs_fail_errno(error, errno, "%s: libpmemobj can't allocate %llu bytes (%s)", heap->path,
                               (unsigned long long)bytes, pmemobj_errormsg());
    }
    lmcs_heap_note(heap, object.off);
    *offset = object.off;
    *got = pmemobj_alloc_usable_size(object);
    return LMCS_OK;
}

/*
 * libpmemobj takes from an object's own header how much it frees, and nothing vouches for that header. But what it says
 * is known, and the chunk's header was checked: so a damaged one is repaired.
 */
static void repair_header(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes)
{
    const struct lmcs_object_header_df right = {bytes + LMCS_OBJECT_HEADER_BYTES, LMCS_OBJECT_TYPE};
    void *header = lmcs_heap_at(heap, offset - LMCS_OBJECT_HEADER_BYTES);
    if (memcmp(header, &right, sizeof right) != 0)
        pmemobj_memcpy_persist(heap->pool, header, &right, sizeof right);
}

void lmcs_heap_free(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, struct lmcs_action *action)
{
    repair_header(heap, offset, bytes);
    PMEMoid object = pmemobj_oid(lmcs_heap_at(heap, offset));
    pmemobj_defer_free(heap->pool, object, (struct pobj_action *)action);
}

void lmcs_heap_cancel(struct lmcs_heap *heap, struct lmcs_action *actions, size_t count)
{
    for (size_t i = 0; i < count; i++)
        pmemobj_cancel(heap->pool, (struct pobj_action *)&actions[i], 1);
}

enum lmcs_status lmcs_heap_publish(struct lmcs_heap *heap, struct lmcs_action *actions, size_t count,
                                   uint64_t word_offset, uint64_t word, struct lmcs_error *error)
{
    struct pobj_action all[LMCS_MAX_ACTIONS + 1];
    if (count > LMCS_MAX_ACTIONS)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: too many objects in one commit", heap->path);
    for (size_t i = 0; i < count; i++)
        memcpy(&all[i], &actions[i], sizeof all[i]);
    enum lmcs_status status = lmcs_heap_check_syncs(heap, error);
    if (status != LMCS_OK)
        return status;
    pmemobj_set_value(heap->pool, &all[count], lmcs_heap_at(heap, word_offset), word);
    if (pmemobj_publish(heap->pool, all, count + 1) != 0)
        return lmcs_fail_errno(error, errno, "%s: libpmemobj can't commit (%s)", heap->path, pmemobj_errormsg());
    return LMCS_OK;
}

/* ---- Bytes ---- */

enum lmcs_status lmcs_heap_back(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    return heap->fd < 0 || bytes == 0 ? LMCS_OK : back_range(heap->fd, heap->path, offset, bytes, error);
}

bool lmcs_heap_punch(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes)
{
    uint64_t first = (offset + LMCS_PAGE_BYTES - 1) & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
    uint64_t end = (offset + bytes) & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
    if (first >= end || !lmcs_heap_can_punch(heap))
        return true;
    int failure;
    do
        failure = fallocate(heap->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first, (off_t)(end - first));
    while (failure != 0 && errno == EINTR);
    if (failure != 0 && errno == EOPNOTSUPP)
        atomic_store(&heap->can_punch, false);
    return failure == 0 || !lmcs_heap_can_punch(heap);
}

static enum lmcs_status write_file(struct lmcs_heap *heap, uint64_t offset, const void *data, uint64_t bytes,
                                   struct lmcs_error *error)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = pwrite(heap->fd, from, bytes < (1u << 30) ? bytes : 1u << 30, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return lmcs_fail_errno(error, errno, "%s: can't write", heap->path);
        from += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return LMCS_OK;
}

struct storing {
    void *to;
    const void *from;
    size_t bytes;
};

static void store_bytes(void *context)
{
    const struct storing *s = context;
    /* What fits some lines is soonest out of the cache; what is longer goes past it. */
    unsigned way = s->bytes < SHORT_STORE ? 0 : PMEM_F_MEM_NONTEMPORAL;
    pmem_memcpy(s->to, s->from, s->bytes, way | PMEM_F_MEM_NODRAIN);
}

/* Persistent memory that has failed can't be stored to either, until the kernel has repaired it. */
static enum lmcs_status store(struct lmcs_heap *heap, uint64_t offset, const void *data, uint64_t bytes,
                              struct lmcs_error *error)
{
    struct storing s = {lmcs_heap_at(heap, offset), data, bytes};
    struct lmcs_guarded range = {s.to, bytes};
    return lmcs_guard(&range, 1, store_bytes, &s)
               ? LMCS_OK
               : lmcs_fail(error, LMCS_IO, EIO, "%s: the medium can't be written at offset %llu or after it",
                           heap->path, (unsigned long long)offset);
}

enum lmcs_status lmcs_heap_write(struct lmcs_heap *heap, uint64_t offset, const void *data, uint64_t bytes,
                                 struct lmcs_error *error)
{
    switch (heap->method) {
    case LMCS_WRITE_FILE:
        return write_file(heap, offset, data, bytes, error);
    case LMCS_WRITE_STORE:
        return store(heap, offset, data, bytes, error);
    default:
        pmemobj_memcpy(heap->pool, lmcs_heap_at(heap, offset), data, bytes, PMEMOBJ_F_MEM_NONTEMPORAL);
        return LMCS_OK;
    }
}

void lmcs_heap_drain(struct lmcs_heap *heap)
{
    if (heap->method == LMCS_WRITE_STORE)
        pmem_drain();
    else if (heap->method == LMCS_WRITE_LIBRARY)
        pmemobj_drain(heap->pool);
}

void lmcs_heap_start_writeback(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes)
{
    if (heap->behind != NULL)
        lmcs_writeback_add(heap->behind, offset, bytes);
}

void lmcs_heap_flush(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes)
{
    if (heap->method == LMCS_WRITE_STORE)
        pmem_flush(lmcs_heap_at(heap, offset), bytes);
    else if (heap->method == LMCS_WRITE_LIBRARY)
        pmemobj_persist(heap->pool, lmcs_heap_at(heap, offset), bytes);
}

enum lmcs_status lmcs_heap_map(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, void *where, bool private_pages,
                               struct lmcs_error *error)
{
    /* Not libpmemobj's descriptor: a mapping by that one would keep its lock. */
    int flags = private_pages ? MAP_PRIVATE | MAP_NORESERVE : heap->dax ? MAP_SHARED_VALIDATE | MAP_SYNC : MAP_SHARED;
    void *at = mmap(where, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, heap->map_fd, (off_t)offset);
    return at != MAP_FAILED
               ? LMCS_OK
               : lmcs_fail_errno(error, errno, "%s: can't map %llu bytes", heap->path, (unsigned long long)bytes);
}

enum lmcs_status lmcs_heap_persist(struct lmcs_heap *heap, const void *at, uint64_t bytes, struct lmcs_error *error)
{
    if (heap->method != LMCS_WRITE_FILE) {
        pmem_persist(at, bytes);
        return LMCS_OK;
    }
    uintptr_t first = (uintptr_t)at & ~(uintptr_t)(LMCS_PAGE_BYTES - 1);
    int result;
    pthread_mutex_lock(&heap->persisting);
    do
        result = msync((void *)first, (uintptr_t)at - first + bytes, MS_SYNC);
    while (result != 0 && errno == EINTR);
    return end_sync(heap, &heap->persisting, result == 0 ? 0 : errno, error);
}

enum lmcs_status lmcs_heap_sync(struct lmcs_heap *heap, struct lmcs_error *error)
{
    lmcs_heap_drain(heap);
    if (heap->method != LMCS_WRITE_FILE)
        return LMCS_OK;
    int result;
    pthread_mutex_lock(&heap->syncing);
    do
        result = fdatasync(heap->fd);
    while (result != 0 && errno == EINTR);
    return end_sync(heap, &heap->syncing, result == 0 ? 0 : errno, error);
}
