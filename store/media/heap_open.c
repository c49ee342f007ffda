/* SPDX-License-Identifier: BSD-3-Clause */
/* media/heap_open.c - pools created, opened and closed by libpmemobj. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "media/files.h"
#include "media/heap_private.h"
#include "media/layout.h"
#include "media/media.h"
#include "media/pmemobj_layout.h"
#include "media/pmemobj_log.h"

#define HEAP_OFFSET_EXPECTED ((uint64_t)3153920) /* of libpmemobj 1.x with its 1024 lanes */
#define LIBRARY_BYTES        ((size_t)16 << 20)  /* for libpmemobj, and more */
#define RETRY_NS             2000000L            /* short: others may leave the pool free for moments only */

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

/* libpmemobj's settings are global, and read when a pool is created or opened. */
static void configure_library(void)
{
    int no = 0;
    pmemobj_ctl_set(NULL, "fallocate.at_create", &no);
}

static void choose_method(struct lmcs_heap *heap)
{
    const char *force = getenv("PMEM_IS_PMEM_FORCE");
    heap->forced = force != NULL && strcmp(force, "1") == 0;
    if (heap->fd < 0) {
        bool device = lmcs_path_is_device(heap->path);
        heap->method = device ? LMCS_WRITE_STORE : LMCS_WRITE_LIBRARY;
        heap->persistent = device || heap->forced;
        return;
    }
    heap->dax = lmcs_file_is_dax(heap->fd);
    if (heap->dax)
        heap->forced = false;
    heap->persistent = heap->dax || heap->forced;
    heap->method = heap->persistent || lmcs_file_is_in_memory(heap->fd) ? LMCS_WRITE_STORE : LMCS_WRITE_FILE;
}

/* Fills in a heap with its mapped pool. `door`: path of the file. */
static enum lmcs_status adopt(struct lmcs_heap *heap, const char *door, struct lmcs_error *error)
{
    const unsigned char *base = (const unsigned char *)heap->pool;
    uint64_t heap_offset;
    memcpy(&heap_offset, base + LMCS_POBJ_HEAP, sizeof heap_offset);
    heap->zones_start = heap_offset + LMCS_HEAP_HEADER_BYTES;
    atomic_init(&heap->can_punch, false);
    if (!lmcs_path_is_device(door) && !lmcs_path_is_poolset(door)) {
        heap->fd = open(door, O_RDWR | O_CLOEXEC);
        heap->map_fd = open(door, O_RDWR | O_CLOEXEC);
        struct stat st;
        if (heap->fd < 0 || heap->map_fd < 0 || fstat(heap->fd, &st) != 0)
            return lmcs_fail_errno(error, errno, "%s: can't open for writing", heap->path);
        heap->bytes = (uint64_t)st.st_size;
        atomic_store(&heap->can_punch, true);
        if (st.st_nlink > 1 && heap->shown_path == NULL)
            lmcs_remove_forgotten(heap->path); /* else the pool's deletion would go unnoticed */
    } else {
        heap->bytes = lmcs_media_device_bytes(heap->path);
    }
    /* The lock lasts as long as any mapping: a child must have none. */
    if (heap->bytes > 0)
        madvise(heap->pool, heap->bytes, MADV_DONTFORK);
    choose_method(heap);
    /* Metadata is touched in single pages: reading ahead would fill the holes around them with megabytes of zeros. */
    if (heap->bytes > 0 && !heap->dax)
        madvise(heap->pool, heap->bytes, MADV_RANDOM);
    return heap->method == LMCS_WRITE_FILE ? lmcs_writeback_new(heap->fd, &heap->writeback, error) : LMCS_OK;
}

void lmcs_heap_keep_place(const struct lmcs_heap *heap)
{
    if (heap->bytes > 0) /* fails if the addresses are used */
        mmap(heap->pool, heap->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1,
             0);
}

/*
 * libpmemobj takes some 12 MB for a pool in 10,000 pieces and may not survive a refusal: without its lanes' locks
 * (lane_boot of 1.12) it crashes; without room for an error's text it ends the process.
 */
static enum lmcs_status check_memory(struct lmcs_error *error)
{
    void *volatile room = malloc(LIBRARY_BYTES); /* volatile: a compiler may remove an unused allocation */
    if (room == NULL)
        return lmcs_fail_memory(error);
    free(room);
    return LMCS_OK;
}

/* Allocates what libpmemobj stores to without a reservation: header, lanes, the first zone's metadata and root. */
static enum lmcs_status back_begin(int fd, const char *path, uint64_t heap, struct lmcs_error *error)
{
    return lmcs_file_back(fd, path, 0, heap + LMCS_HEAP_HEADER_BYTES + LMCS_ZONE_META_BYTES + LMCS_CHUNK_BYTES, error);
}

/*
 * Allocates the parts that libpmemobj stores to as it creates a pool. The starts of zones are written: a fault would
 * read ahead, up to megabytes of zeros for each zone.
 */
static enum lmcs_status back_new_file(int fd, const char *path, uint64_t bytes, struct lmcs_error *error)
{
    static const char zeros[2 * LMCS_PAGE_BYTES];
    uint64_t first_zone = HEAP_OFFSET_EXPECTED + LMCS_HEAP_HEADER_BYTES;
    enum lmcs_status status = back_begin(fd, path, HEAP_OFFSET_EXPECTED, error);
    for (uint64_t at = first_zone + LMCS_ZONE_BYTES; status == LMCS_OK && at + sizeof zeros < bytes;
         at += LMCS_ZONE_BYTES) {
        const uint64_t start = at & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
        status = lmcs_file_back(fd, path, start, sizeof zeros, error);
        while (status == LMCS_OK && pwrite(fd, zeros, sizeof zeros, (off_t)start) < 0) /* fewer would do, too */
            if (errno != EINTR)
                status = lmcs_fail_errno(error, errno, "%s: can't write", path);
    }
    return status;
}

static enum lmcs_status make_file(struct lmcs_heap *heap, const char *path, uint64_t bytes, struct lmcs_error *error)
{
    size_t length = strlen(path) + 32;
    heap->shown_path = strdup(path);
    heap->path = malloc(length);
    if (heap->shown_path == NULL || heap->path == NULL)
        return lmcs_fail_memory(error);
    lmcs_remove_forgotten(path);
    snprintf(heap->path, length, "%s" LMCS_NEW_MARK "XXXXXX", path);
    int fd = mkostemp(heap->path, O_CLOEXEC); /* mode 0600 */
    if (fd < 0) {
        int failure = errno;
        free(heap->shown_path);
        heap->shown_path = NULL;
        return failure == ENOENT ? lmcs_fail_no_folder(path, error)
                                 : lmcs_fail_errno(error, failure, "%s: can't create", path);
    }
    enum lmcs_status status = LMCS_OK;
    while (ftruncate(fd, (off_t)bytes) != 0) {
        if (errno != EFBIG || bytes <= (uint64_t)1 << 30) {
            status = lmcs_fail_errno(error, errno, "%s: can't make a sparse file of %llu bytes", path,
                                     (unsigned long long)bytes);
            break;
        }
        bytes /= 2; /* the file system's limit */
    }
    if (status == LMCS_OK)
        status = back_new_file(fd, path, bytes, error);
    close(fd);
    return status;
}

static enum lmcs_status call_create(struct lmcs_heap *heap, uint64_t bytes, struct lmcs_error *error)
{
    enum lmcs_status status = check_memory(error);
    if (status != LMCS_OK)
        return status;
    configure_library();
    heap->pool = pmemobj_create(heap->path, LMCS_LAYOUT_NAME, 0, 0600);
    if (heap->pool == NULL && errno == ENOTSUP) {
        /* A DAX device may have no counter of unsafe shutdowns. */
        int no = 0;
        pmemobj_ctl_set(NULL, "sds.at_create", &no);
        heap->pool = pmemobj_create(heap->path, LMCS_LAYOUT_NAME, 0, 0600);
        int yes = 1;
        pmemobj_ctl_set(NULL, "sds.at_create", &yes);
    }
    if (heap->pool == NULL && errno == EAGAIN)
        return lmcs_fail_in_use(heap->path, error); /* a device, or parts of a poolset */
    if (heap->pool == NULL)
        return lmcs_fail_map(error, bytes, "%s: libpmemobj can't create the pool (%s)", heap->path, pmemobj_errormsg());
    return adopt(heap, heap->path, error);
}

enum lmcs_status lmcs_heap_create(const char *path, uint64_t virtual_bytes, struct lmcs_heap **heap,
                                  struct lmcs_error *error)
{
    struct lmcs_heap *h = new_heap();
    if (h == NULL)
        return lmcs_fail_memory(error);
    enum lmcs_status status = LMCS_OK;
    if (lmcs_path_is_device(path) || lmcs_path_is_poolset(path)) {
        h->path = strdup(path);
        if (h->path == NULL)
            status = lmcs_fail_memory(error);
    } else {
        status = make_file(h, path, virtual_bytes, error);
    }
    if (status == LMCS_OK)
        status = call_create(h, virtual_bytes, error);
    if (status != LMCS_OK) {
        lmcs_heap_close(h);
        return status;
    }
    *heap = h;
    return LMCS_OK;
}

enum lmcs_status lmcs_heap_show(struct lmcs_heap *heap, struct lmcs_error *error)
{
    if (heap->shown_path == NULL)
        return LMCS_OK;
    if (fsync(heap->fd) != 0)
        return lmcs_fail_errno(error, errno, "%s: can't make it durable", heap->shown_path);
    if (link(heap->path, heap->shown_path) != 0) {
        /* The file system has no links: a rename that replaces nothing. */
        if (errno == EEXIST)
            return lmcs_fail(error, LMCS_EXISTS, 0, "%s: exists already", heap->shown_path);
        if (renameat2(AT_FDCWD, heap->path, AT_FDCWD, heap->shown_path, RENAME_NOREPLACE) != 0)
            return errno == EEXIST ? lmcs_fail(error, LMCS_EXISTS, 0, "%s: exists already", heap->shown_path)
                                   : lmcs_fail_errno(error, errno, "%s: can't create", heap->shown_path);
    } else {
        unlink(heap->path);
    }
    free(heap->path);
    enum lmcs_status status = lmcs_sync_folder_of(heap->shown_path, error);
    if (status != LMCS_OK)
        unlink(heap->shown_path); /* so that another attempt starts anew */
    heap->path = heap->shown_path;
    heap->shown_path = NULL;
    return status;
}

static enum lmcs_status fail_open(const char *path, uint64_t bytes, int failure, struct lmcs_error *error)
{
    const char *said = pmemobj_errormsg();
    if (failure == EAGAIN)
        return lmcs_fail_in_use(path, error);
    /* The counter of unsafe shutdowns changed while the pool was open. */
    if (failure == EINVAL && strstr(said, "ADR failure") != NULL)
        return lmcs_fail(error, LMCS_DAMAGED, 0,
                         "%s: the power failed while it was open and the device may have lost writes (%s); check it "
                         "with 'lmc-store verify', which only reads, then 'pmempool feature -d SHUTDOWN_STATE %s'",
                         path, said, path);
    if (failure == EACCES || failure == EPERM || failure == EROFS)
        return lmcs_fail(error, LMCS_READ_ONLY, failure, "%s: can't be opened for writing; mode r reads it", path);
    if (failure == ENOMEM) {
        errno = failure;
        return lmcs_fail_map(error, bytes, "%s: libpmemobj can't map %llu bytes", path, (unsigned long long)bytes);
    }
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

/* The accepted file's path. By name: other users can't replace a device, and a poolset names other files. */
static void find_door(const struct lmcs_media *media, char *door, size_t bytes)
{
    if (lmcs_media_is_device(media) || lmcs_media_is_poolset(media))
        snprintf(door, bytes, "%s", lmcs_media_path(media));
    else
        lmcs_media_reopen_path(lmcs_media_fd(media), lmcs_media_path(media), door, bytes);
}

static void repair_footers_of_zone(struct lmcs_heap *heap, uint64_t at, uint32_t count)
{
    struct lmcs_chunk_df *chunks = lmcs_heap_at(heap, at + LMCS_ZONE_HEADER_BYTES);
    for (uint32_t i = 0, n; i < count; i += n) {
        n = chunks[i].chunks;
        if (n == 0 || n > count - i)
            return; /* can not happen after lmcs_check_heap */
        const struct lmcs_chunk_df right = {LMCS_CHUNK_FOOTER, 0, n};
        if (n > 1 && chunks[i].type == LMCS_CHUNK_FREE && memcmp(&chunks[i + n - 1], &right, sizeof right) != 0)
            pmemobj_memcpy_persist(heap->pool, &chunks[i + n - 1], &right, sizeof right);
    }
}

/*
 * libpmemobj writes the footer of a free range (FORMAT.md, section 2) without a flush, and opening rewrites those of
 * used ranges only. An old one may lead to a free range further down, and everything between would count as free.
 * libpmemobj reads footers when it is first asked for an object.
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
    const struct lmcs_media *media;
    const char *door;
    lmcs_heap_look *look;
    void *context;
};

/* Writes the same bytes again. Errors of reading are left to the look. */
static enum lmcs_status rewrite(const struct lmcs_media *media, int fd, uint64_t at, struct lmcs_error *error)
{
    unsigned char bytes[LMCS_SUPERBLOCK_BYTES];
    if (lmcs_media_read(media, at, bytes, sizeof bytes, NULL) != LMCS_OK ||
        pwrite(fd, bytes, sizeof bytes, (off_t)at) == (ssize_t)sizeof bytes)
        return LMCS_OK;
    return lmcs_fail_errno(error, errno, "%s: can't write", lmcs_media_path(media));
}

/*
 * libpmemobj ends the process if a sync fails, even because of a dead process's pages, so the disk is asked first. When
 * it ended one, what it had stored last may be in the page cache only, in a page that counts as clean (REPAIR.md): the
 * root's word, or a log. What follows would overwrite what the disk's root or log needs. Drops unwritable pages: the
 * next look reads the disk.
 */
static enum lmcs_status ask_disk(const struct first_look *first, struct lmcs_error *error)
{
    const char *path = lmcs_media_path(first->media);
    int fd = open(first->door, O_RDWR | O_CLOEXEC);
    if (fd < 0 || lmcs_file_is_in_memory(fd) || lmcs_file_is_dax(fd)) {
        if (fd >= 0)
            close(fd);
        return LMCS_OK; /* libpmemobj reports it */
    }
    struct lmcs_error why = {.system_errno = 0};
    enum lmcs_status status = rewrite(first->media, fd, 0, &why);
    if (status == LMCS_OK)
        status = rewrite(first->media, fd, lmcs_media_superblock(first->media), &why);
    if (status == LMCS_OK)
        status = lmcs_pmemobj_log_rewrite(first->media, fd, &why);
    if (lmcs_is_unusable(status))
        status = LMCS_OK; /* the look reports it */
    if (status == LMCS_OK && fdatasync(fd) != 0)
        status = lmcs_fail_errno(&why, errno, "%s: can't make it durable", path);
    if (status != LMCS_OK)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    if (status == LMCS_OK || status == LMCS_NO_MEMORY)
        return status == LMCS_OK ? LMCS_OK : lmcs_fail_memory(error);
    return lmcs_fail_errno(error, why.system_errno,
                           "%s: its disk does not take what is written, so it is not opened for writing", path);
}

/* A copy of the pool may have holes where the pool has zeros. */
static enum lmcs_status back_copy(const struct first_look *first, struct lmcs_error *error)
{
    int fd = open(first->door, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return LMCS_OK; /* libpmemobj reports it */
    enum lmcs_status status = back_begin(fd, lmcs_media_path(first->media), lmcs_media_heap(first->media), error);
    close(fd);
    return status;
}

static enum lmcs_status look_first(void *context, struct lmcs_error *error)
{
    struct first_look *first = context;
    enum lmcs_status status = ask_disk(first, error);
    if (status == LMCS_OK)
        status = first->look(first->context, error);
    return status == LMCS_OK ? back_copy(first, error) : status;
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
    struct first_look first = {media, door, look, context};
    const uint64_t start_ns = lmcs_steady_ns();
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
        if (pool != NULL || failure != EAGAIN || (lmcs_steady_ns() - start_ns) / 1000000 >= wait_ms)
            break;
        sleep_a_little();
    }
    if (pool == NULL)
        return fail_open(path, lmcs_media_bytes(media), failure, error);
    struct lmcs_heap *h = new_heap();
    if (h == NULL || (h->path = strdup(path)) == NULL) {
        free(h);
        pmemobj_close(pool);
        return lmcs_fail_memory(error);
    }
    h->pool = pool;
    h->media = lmcs_media_share((struct lmcs_media *)media);
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

void lmcs_heap_close(struct lmcs_heap *heap)
{
    if (heap == NULL)
        return;
    lmcs_writeback_free(heap->writeback);
    if (heap->pool != NULL) {
        (void)lmcs_heap_take_errors(heap, NULL);
        /* In a file that was cut short, closing would be SIGBUS: its mapping and lock stay. */
        if (heap->media == NULL || lmcs_media_missing(heap->media) == 0)
            pmemobj_close(heap->pool);
    }
    /* The next open must not read unwritten pages. */
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
    lmcs_media_release(heap->media);
    free(heap->shown_path);
    free(heap->path);
    free(heap);
}
