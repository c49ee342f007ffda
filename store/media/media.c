/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/media.c - reading without libpmemobj.
 *
 * Offsets are mapped to places in the parts of a poolset as libpmemobj maps them (FORMAT.md, section 1). Reads use
 * pread: a truncated file is an error, not a signal. Only views and devices use mappings.
 */
#include "media/media.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/guard.h"
#include "media/files.h"
#include "media/layout.h"
#include "media/pmemobj_layout.h"

#define MAX_SEGMENTS   1024
#define MAX_REPLICAS   8
#define POOL_SIGNATURE "PMEMOBJ"
#define HEADER_BYTES   4096u /* of a part */
#define PART_ALIGN     ((uint64_t)2 << 20)

struct segment {
    int fd;
    atomic_int back; /* for lmcs_media_read_back; 0: not yet, -1: impossible */
    uint64_t pool_offset;
    uint64_t file_offset;
    uint64_t bytes;
};

struct lmcs_media {
    atomic_int references;
    char *path;
    int fd;
    bool is_device;
    bool is_poolset;
    struct segment *segments;
    size_t segment_count;
    uint64_t bytes;
    uint64_t superblock;
    uint64_t heap;
    void *map;
    lmcs_media_overlay_fn *overlay;
    const void *overlay_context;               /* NULL: no overlay */
    struct lmcs_media *replicas[MAX_REPLICAS]; /* of a poolset, for lmcs_media_read only */
    size_t replica_count;
};

static uint64_t device_bytes(const struct stat *st)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/dev/char/%u:%u/size", major(st->st_rdev), minor(st->st_rdev));
    FILE *file = fopen(path, "re");
    unsigned long long bytes = 0;
    if (file != NULL) {
        if (fscanf(file, "%llu", &bytes) != 1)
            bytes = 0;
        fclose(file);
    }
    return bytes;
}

uint64_t lmcs_media_device_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISCHR(st.st_mode) ? device_bytes(&st) : 0;
}

bool lmcs_media_is_blank_device(const char *path)
{
    unsigned char header[LMCS_POBJ_END], zeros[LMCS_POBJ_END] = {0};
    uint64_t bytes = lmcs_media_device_bytes(path);
    int fd = bytes >= sizeof header ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return false;
    bool blank = lmcs_guard_copy(header, map, sizeof header) && memcmp(header, zeros, sizeof header) == 0;
    munmap(map, bytes);
    return blank;
}

void lmcs_media_reopen_path(int fd, const char *path, char *door, size_t door_bytes)
{
    snprintf(door, door_bytes, "/proc/self/fd/%d", fd);
    struct stat behind, at;
    if (stat(door, &at) != 0 || fstat(fd, &behind) != 0 || at.st_dev != behind.st_dev || at.st_ino != behind.st_ino)
        snprintf(door, door_bytes, "%s", path);
}

/* `door`: the path to open; `path`: for messages. */
static enum lmcs_status open_file(const char *path, const char *door, int *fd, struct stat *st,
                                  struct lmcs_error *error)
{
    /* a FIFO must not block us */
    *fd = open(door, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? lmcs_fail(error, LMCS_NOT_FOUND, 0, "%s: there is no such pool", path)
                   : lmcs_fail_errno(error, errno, "%s: can't open", path);
    if (fstat(*fd, st) != 0)
        return lmcs_fail_errno(error, errno, "%s: can't stat", path);
    if (S_ISDIR(st->st_mode))
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: is a folder, not a pool", path);
    if (!S_ISREG(st->st_mode) && !S_ISCHR(st->st_mode))
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: is neither a file nor a devdax device", path);
    return LMCS_OK;
}

static enum lmcs_status add_segment(struct lmcs_media *media, int fd, uint64_t file_offset, uint64_t bytes,
                                    struct lmcs_error *error)
{
    struct segment *grown = realloc(media->segments, (media->segment_count + 1) * sizeof *grown);
    if (grown == NULL)
        return lmcs_fail_memory(error);
    media->segments = grown;
    grown[media->segment_count++] = (struct segment){fd, 0, media->bytes, file_offset, bytes};
    media->bytes += bytes;
    return LMCS_OK;
}

static enum lmcs_status add_part(struct lmcs_media *media, const char *path, struct lmcs_error *error)
{
    int fd = -1;
    struct stat st;
    enum lmcs_status status = open_file(path, path, &fd, &st, error);
    if (status == LMCS_OK && (!S_ISREG(st.st_mode) || media->segment_count >= MAX_SEGMENTS))
        status = lmcs_fail(error, LMCS_UNSUPPORTED, 0, "%s: parts must be files, at most %d", path, MAX_SEGMENTS);
    if (status == LMCS_OK) {
        uint64_t skip = media->segment_count == 0 ? 0 : HEADER_BYTES;
        uint64_t usable = (uint64_t)st.st_size & ~(PART_ALIGN - 1);
        if ((uint64_t)st.st_size < PART_ALIGN)
            status =
                lmcs_fail(error, LMCS_DAMAGED, 0, "%s: part is too small (%lld bytes)", path, (long long)st.st_size);
        else
            status = add_segment(media, fd, skip, usable - skip, error);
    }
    if (status != LMCS_OK && fd >= 0)
        close(fd);
    return status;
}

static struct lmcs_media *new_replica(const struct lmcs_media *of)
{
    struct lmcs_media *replica = calloc(1, sizeof *replica);
    if (replica == NULL)
        return NULL;
    atomic_init(&replica->references, 1);
    replica->fd = -1;
    replica->path = strdup(of->path);
    if (replica->path != NULL)
        return replica;
    free(replica);
    return NULL;
}

/* Opens replicas on this machine whose parts all open; they are read only for bytes that the first lost. */
static void parse_replicas(struct lmcs_media *media, FILE *file)
{
    char line[PATH_MAX + 256];
    struct lmcs_media *replica = new_replica(media);
    bool usable = true;
    for (bool more = true; more;) {
        struct lmcs_error ignored;
        char size[64], path[PATH_MAX + 1];
        more = fgets(line, sizeof line, file) != NULL;
        if (more)
            line[strcspn(line, "\r\n#")] = '\0';
        if (more && strncmp(line, "REPLICA", 7) != 0) {
            if (replica != NULL && usable && sscanf(line, "%63s %4096s", size, path) == 2)
                usable = add_part(replica, path, &ignored) == LMCS_OK;
            continue;
        }
        if (replica != NULL && usable && replica->segment_count > 0 && media->replica_count < MAX_REPLICAS)
            media->replicas[media->replica_count++] = replica;
        else
            lmcs_media_release(replica);
        replica = more ? new_replica(media) : NULL;
        usable = more && sscanf(line, "REPLICA %63s", size) != 1; /* else on another machine */
    }
    lmcs_media_release(replica);
}

/* "SIZE PATH" lines: the first replica's, then the others'. */
static enum lmcs_status parse_poolset(struct lmcs_media *media, struct lmcs_error *error)
{
    int fd = fcntl(media->fd, F_DUPFD_CLOEXEC, 0);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (file == NULL) {
        enum lmcs_status failed = lmcs_fail_errno(error, errno, "%s: can't open", media->path);
        if (fd >= 0)
            close(fd);
        return failed;
    }
    char line[PATH_MAX + 256];
    enum lmcs_status status = LMCS_OK;
    while (status == LMCS_OK && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\r\n#")] = '\0';
        char size[64], path[PATH_MAX + 1];
        if (strncmp(line, "REPLICA", 7) == 0) {
            parse_replicas(media, file);
            break;
        }
        if (strncmp(line, "OPTION", 6) == 0) {
            status = lmcs_fail(error, LMCS_UNSUPPORTED, 0, "%s: poolset options are not supported", media->path);
            break;
        }
        if (strncmp(line, "PMEMPOOLSET", 11) == 0 || sscanf(line, "%63s %4096s", size, path) != 2)
            continue;
        struct stat st;
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
            status = lmcs_fail(error, LMCS_UNSUPPORTED, 0,
                               "%s: parts that are folders (%s) are not supported; use a sparse pool file, it grows",
                               media->path, path);
            break;
        }
        status = add_part(media, path, error);
    }
    fclose(file);
    if (status == LMCS_OK && media->segment_count == 0)
        status = lmcs_fail(error, LMCS_DAMAGED, 0, "%s: poolset file names no parts", media->path);
    return status;
}

static enum lmcs_status map_all(const struct lmcs_media *media, void **made, struct lmcs_error *error)
{
    void *map = mmap(NULL, media->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (media->is_device && map != MAP_FAILED) { /* the kernel chooses a device's alignment */
        munmap(map, media->bytes);
        map = mmap(NULL, media->bytes, PROT_READ, MAP_SHARED, media->segments[0].fd, 0);
    } else if (map != MAP_FAILED) {
        *made = map;
        return lmcs_media_map_shared(media, 0, media->bytes, map, error);
    }
    if (map == MAP_FAILED)
        return lmcs_fail_map(error, media->bytes, "%s: can't map %llu bytes", media->path,
                             (unsigned long long)media->bytes);
    *made = map;
    return LMCS_OK;
}

/* Checks the words that we use; libpmemobj checks checksums. */
static enum lmcs_status read_header(struct lmcs_media *media, struct lmcs_error *error)
{
    unsigned char page[LMCS_POBJ_END];
    if (media->bytes < sizeof page)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: not a pool: only %llu bytes long", media->path,
                         (unsigned long long)media->bytes);
    enum lmcs_status status = lmcs_media_read(media, 0, page, sizeof page, error);
    if (status != LMCS_OK)
        return status;
    if (memcmp(page, POOL_SIGNATURE, sizeof POOL_SIGNATURE) != 0 ||
        strncmp((const char *)page + LMCS_POBJ_LAYOUT_NAME, LMCS_LAYOUT_NAME, 1024) != 0)
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: not a pool of lmc-store: its header is foreign or damaged",
                         media->path);
    memcpy(&media->superblock, page + LMCS_POBJ_ROOT, 8);
    memcpy(&media->heap, page + LMCS_POBJ_HEAP, 8);
    if (media->superblock == 0)
        return lmcs_fail(error, LMCS_DAMAGED, 0,
                         media->is_device
                             ? "%s: its creation was cut short; clear it with 'pmempool rm %s' and start again"
                             : "%s: its creation was cut short; remove %s and start again",
                         media->path, media->path);
    if (media->superblock % 8 != 0 || media->superblock > media->bytes - LMCS_SUPERBLOCK_BYTES ||
        media->heap < LMCS_POBJ_END || media->heap >= media->bytes)
        return lmcs_fail(error, LMCS_DAMAGED, 0,
                         "%s: damaged: the header points outside the file, or the file was cut short", media->path);
    return LMCS_OK;
}

static enum lmcs_status find_segments(struct lmcs_media *media, const char *door, struct lmcs_error *error)
{
    struct stat st;
    enum lmcs_status status = open_file(media->path, door, &media->fd, &st, error);
    if (status != LMCS_OK)
        return status;
    media->is_device = S_ISCHR(st.st_mode);
    char magic[12] = "";
    if (!media->is_device && pread(media->fd, magic, 11, 0) == 11 && memcmp(magic, "PMEMPOOLSET", 11) == 0) {
        media->is_poolset = true;
        return parse_poolset(media, error);
    }
    int fd = fcntl(media->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return lmcs_fail_errno(error, errno, "%s: can't duplicate a descriptor", media->path);
    uint64_t bytes = media->is_device ? device_bytes(&st) : (uint64_t)st.st_size;
    status = add_segment(media, fd, 0, bytes, error);
    if (status != LMCS_OK)
        close(fd);
    return status;
}

static enum lmcs_status open_door(const char *path, const char *door, struct lmcs_media **media,
                                  struct lmcs_error *error)
{
    struct lmcs_media *m = calloc(1, sizeof *m);
    if (m == NULL)
        return lmcs_fail_memory(error);
    atomic_init(&m->references, 1);
    m->fd = -1;
    m->path = strdup(path);
    enum lmcs_status status = m->path == NULL ? lmcs_fail_memory(error) : find_segments(m, door, error);
    if (status == LMCS_OK && m->bytes == 0)
        status = lmcs_fail(error, LMCS_DAMAGED, 0,
                           "%s: not a pool: it is empty; a new pool needs a path without a file", path);
    if (status == LMCS_OK && m->is_device)
        status = map_all(m, &m->map, error); /* reads of a device use it */
    if (status == LMCS_OK)
        status = read_header(m, error);
    if (status == LMCS_OK && m->map == NULL)
        status = map_all(m, &m->map, error);
    if (status != LMCS_OK) {
        lmcs_media_release(m);
        return status;
    }
    *media = m;
    return LMCS_OK;
}

enum lmcs_status lmcs_media_open(const char *path, struct lmcs_media **media, struct lmcs_error *error)
{
    return open_door(path, path, media, error);
}

enum lmcs_status lmcs_media_open_again(const struct lmcs_media *media, struct lmcs_media **again,
                                       struct lmcs_error *error)
{
    char door[PATH_MAX];
    lmcs_media_reopen_path(media->fd, media->path, door, sizeof door);
    return open_door(media->path, door, again, error);
}

struct lmcs_media *lmcs_media_share(struct lmcs_media *media)
{
    atomic_fetch_add_explicit(&media->references, 1, memory_order_relaxed);
    return media;
}

void lmcs_media_release(struct lmcs_media *media)
{
    if (media == NULL || atomic_fetch_sub(&media->references, 1) != 1)
        return;
    for (size_t i = 0; i < media->replica_count; i++)
        lmcs_media_release(media->replicas[i]);
    if (media->map != NULL)
        munmap(media->map, media->bytes);
    for (size_t i = 0; i < media->segment_count; i++) {
        if (media->segments[i].back > 0)
            close(media->segments[i].back);
        close(media->segments[i].fd);
    }
    free(media->segments);
    if (media->fd >= 0)
        close(media->fd);
    free(media->path);
    free(media);
}

const char *lmcs_media_path(const struct lmcs_media *media)
{
    return media->path;
}
int lmcs_media_fd(const struct lmcs_media *media)
{
    return media->fd;
}
int lmcs_media_lock_fd(const struct lmcs_media *media)
{
    return media->segments[0].fd;
}
bool lmcs_media_is_device(const struct lmcs_media *media)
{
    return media->is_device;
}
bool lmcs_media_is_poolset(const struct lmcs_media *media)
{
    return media->is_poolset;
}
bool lmcs_media_is_in_place(const struct lmcs_media *media)
{
    struct stat st, now;
    return fstat(media->fd, &st) == 0 && stat(media->path, &now) == 0 && st.st_dev == now.st_dev &&
           st.st_ino == now.st_ino;
}
size_t lmcs_media_replicas(const struct lmcs_media *media)
{
    return media->replica_count;
}
const struct lmcs_media *lmcs_media_replica(const struct lmcs_media *media, size_t i)
{
    return media->replicas[i];
}
uint64_t lmcs_media_bytes(const struct lmcs_media *media)
{
    return media->bytes;
}
uint64_t lmcs_media_missing(const struct lmcs_media *media)
{
    struct stat st;
    uint64_t missing = 0;
    for (size_t i = 0; !media->is_device && i < media->segment_count; i++) {
        const struct segment *segment = &media->segments[i];
        uint64_t end = segment->file_offset + segment->bytes;
        if (fstat(segment->fd, &st) == 0 && (uint64_t)st.st_size < end)
            missing += end - (uint64_t)st.st_size;
    }
    for (size_t i = 0; i < media->replica_count; i++)
        missing += lmcs_media_missing(media->replicas[i]);
    return missing;
}

enum lmcs_status lmcs_media_sync(const struct lmcs_media *media, struct lmcs_error *error)
{
    for (size_t i = 0; !media->is_device && i < media->segment_count; i++) {
        const int fd = media->segments[i].fd;
        if (lmcs_file_is_in_memory(fd) || lmcs_file_is_dax(fd))
            continue;
        /* EINVAL, EROFS: the file system has no sync, or takes no writes */
        if (fdatasync(fd) != 0 && errno != EINVAL && errno != EROFS)
            return lmcs_fail_errno(error, errno, "%s: it is not certain that what it holds has reached the disk",
                                   media->path);
    }
    return LMCS_OK;
}

uint64_t lmcs_media_superblock(const struct lmcs_media *media)
{
    return media->superblock;
}
uint64_t lmcs_media_heap(const struct lmcs_media *media)
{
    return media->heap;
}

static bool inside(const struct lmcs_media *media, uint64_t offset, uint64_t bytes)
{
    return offset <= media->bytes && bytes <= media->bytes - offset;
}

static struct segment *segment_of(const struct lmcs_media *media, uint64_t offset)
{
    size_t i = media->segment_count - 1;
    while (i > 0 && media->segments[i].pool_offset > offset)
        i--;
    return &media->segments[i];
}

static enum lmcs_status read_segment(const struct lmcs_media *media, const struct segment *segment, int fd, uint64_t at,
                                     unsigned char *out, uint64_t bytes, struct lmcs_error *error)
{
    while (bytes > 0) {
        size_t want = bytes < ((size_t)1 << 30) ? (size_t)bytes : (size_t)1 << 30;
        ssize_t got = pread(fd, out, want, (off_t)(segment->file_offset + at));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno == EIO ? lmcs_fail(error, LMCS_DAMAGED, errno, "%s: the medium can't be read at offset %llu",
                                            media->path, (unsigned long long)(segment->pool_offset + at))
                                : lmcs_fail_errno(error, errno, "%s: can't read", media->path);
        if (got == 0)
            return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: the file was cut short: nothing at offset %llu", media->path,
                             (unsigned long long)(segment->pool_offset + at));
        out += got;
        at += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return LMCS_OK;
}

static enum lmcs_status read_segments(const struct lmcs_media *media, uint64_t offset, void *buffer, uint64_t bytes,
                                      struct lmcs_error *error)
{
    if (media->is_device) {
        return lmcs_guard_copy(buffer, (const char *)media->map + offset, bytes)
                   ? LMCS_OK
                   : lmcs_fail(error, LMCS_DAMAGED, EIO, "%s: the medium can't be read at offset %llu or after it",
                               media->path, (unsigned long long)offset);
    }
    unsigned char *out = buffer;
    while (bytes > 0) {
        const struct segment *segment = segment_of(media, offset);
        uint64_t at = offset - segment->pool_offset;
        uint64_t n = bytes < segment->bytes - at ? bytes : segment->bytes - at;
        enum lmcs_status status = read_segment(media, segment, segment->fd, at, out, n, error);
        if (status != LMCS_OK)
            return status;
        out += n;
        offset += n;
        bytes -= n;
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_media_read(const struct lmcs_media *media, uint64_t offset, void *buffer, uint64_t bytes,
                                 struct lmcs_error *error)
{
    if (!inside(media, offset, bytes))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: a reference points outside the pool (offset %llu)", media->path,
                         (unsigned long long)offset);
    enum lmcs_status status = read_segments(media, offset, buffer, bytes, error);
    if (status == LMCS_OK && media->overlay_context != NULL)
        media->overlay(media->overlay_context, offset, buffer, bytes);
    return status;
}

/* A descriptor of its own, without readahead, made at the first use; below 1: impossible. */
static int fd_to_read_back(struct segment *segment)
{
    char path[sizeof "/proc/self/fd/" + 3 * sizeof(int)];
    int fd = atomic_load_explicit(&segment->back, memory_order_acquire), other = 0;
    if (fd != 0)
        return fd;
    snprintf(path, sizeof path, "/proc/self/fd/%d", segment->fd);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd == 0 || (fd > 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM) != 0)) {
        close(fd);
        fd = -1;
    }
    if (atomic_compare_exchange_strong(&segment->back, &other, fd))
        return fd;
    if (fd > 0)
        close(fd);
    return other;
}

enum lmcs_status lmcs_media_read_back(const struct lmcs_media *media, uint64_t offset, void *buffer, uint64_t bytes,
                                      struct lmcs_error *error)
{
    if (media->is_device || bytes == 0 || !inside(media, offset, bytes))
        return lmcs_media_read(media, offset, buffer, bytes, error);
    struct segment *segment = segment_of(media, offset);
    const uint64_t at = offset - segment->pool_offset;
    const int fd = at + bytes <= segment->bytes ? fd_to_read_back(segment) : -1;
    return fd > 0 ? read_segment(media, segment, fd, at, buffer, bytes, error)
                  : lmcs_media_read(media, offset, buffer, bytes, error);
}

void lmcs_media_overlay(struct lmcs_media *media, lmcs_media_overlay_fn *overlay, const void *context)
{
    media->overlay = overlay;
    media->overlay_context = context;
}

const void *lmcs_media_at(const struct lmcs_media *media, uint64_t offset, uint64_t bytes)
{
    return inside(media, offset, bytes) ? (const char *)media->map + offset : NULL;
}

void lmcs_media_bring(const void *at, uint64_t bytes)
{
    unsigned char there[4096];
    const uintptr_t first = (uintptr_t)at & ~(uintptr_t)(LMCS_PAGE_BYTES - 1), end = (uintptr_t)at + bytes;
    for (uintptr_t from = first; from < end; from += sizeof there * LMCS_PAGE_BYTES) {
        const size_t pages = (size_t)((end - from + LMCS_PAGE_BYTES - 1) / LMCS_PAGE_BYTES);
        const size_t some = pages < sizeof there ? pages : sizeof there;
        if (mincore((void *)from, some * LMCS_PAGE_BYTES, there) != 0)
            return;
        for (size_t i = 0; i < some; i++)
            if ((there[i] & 1) == 0) {
                madvise((void *)from, (size_t)(end - from), MADV_WILLNEED);
                return;
            }
    }
}

static enum lmcs_status map_fixed(const struct lmcs_media *media, uint64_t offset, uint64_t bytes, void *where,
                                  int protection, int flags, struct lmcs_error *error)
{
    if (!inside(media, offset, bytes))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: a payload lies outside the pool (offset %llu)", media->path,
                         (unsigned long long)offset);
    char *at = where;
    while (bytes > 0) {
        const struct segment *segment = segment_of(media, offset);
        uint64_t inner = offset - segment->pool_offset;
        uint64_t n = bytes < segment->bytes - inner ? bytes : segment->bytes - inner;
        if (mmap(at, n, protection, flags | MAP_FIXED, segment->fd, (off_t)(segment->file_offset + inner)) ==
            MAP_FAILED)
            return lmcs_fail_map(error, n, "%s: can't map %llu bytes", media->path, (unsigned long long)n);
        at += n;
        offset += n;
        bytes -= n;
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_media_map_private(const struct lmcs_media *media, uint64_t offset, uint64_t bytes, void *where,
                                        struct lmcs_error *error)
{
    return map_fixed(media, offset, bytes, where, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, error);
}

enum lmcs_status lmcs_media_map_shared(const struct lmcs_media *media, uint64_t offset, uint64_t bytes, void *where,
                                       struct lmcs_error *error)
{
    return map_fixed(media, offset, bytes, where, PROT_READ, MAP_SHARED, error);
}
