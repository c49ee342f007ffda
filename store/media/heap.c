/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/heap.c - objects and bytes of a pool.
 *
 * heap.c and heap_open.c alone use libpmemobj. Everything stored through a mapping, libpmemobj's metadata included,
 * gets file space first. On page-cached files payloads are written by pwrite: as fast as to a plain file, and errors
 * are reported. The mapping is kept out of forked children: libpmemobj's flock lasts as long as any mapping.
 */
#include "media/heap.h"

#include <errno.h>
#include <fcntl.h>
#include <libpmem.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/guard.h"
#include "media/files.h"
#include "media/heap_private.h"
#include "media/layout.h"
#include "media/media.h"
#include "media/pmemobj_layout.h"

#define HEADROOM_BYTES ((uint64_t)64 << 10) /* of the disk, for pages that can't be allocated in advance */
#define SHORT_STORE    256u                 /* bytes */

static_assert(sizeof(struct lmcs_action) >= sizeof(struct pobj_action), "room for libpmemobj's action");

/*
 * Linux reports unwritable pages once for each open file description, at its next sync (REPAIR.md). So after a failed
 * sync every later sync and publish fails. A lock for each description covers a sync and the record of its failure.
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

/* Consumes the error of libpmemobj's mapping (its own description), at which libpmemobj would end the process. */
static int take_error(struct lmcs_heap *heap)
{
    return heap->method == LMCS_WRITE_FILE && msync(heap->pool, LMCS_PAGE_BYTES, MS_SYNC) != 0 ? errno : 0;
}

/* `failure`: errno of the sync under the lock, or 0. */
static enum lmcs_status end_sync(struct lmcs_heap *heap, pthread_mutex_t *lock, int failure, struct lmcs_error *error)
{
    int none = 0;
    enum lmcs_status status;
    if (failure != 0 && atomic_compare_exchange_strong(&heap->failure, &none, failure)) {
        (void)take_error(heap);
        status = lmcs_fail_errno(error, failure, "%s: can't make it durable", heap->path);
    } else { /* the other lock's holder may have recorded a failure meanwhile */
        status = lmcs_heap_check_syncs(heap, error);
    }
    pthread_mutex_unlock(lock);
    return status;
}

enum lmcs_status lmcs_heap_take_errors(struct lmcs_heap *heap, struct lmcs_error *error)
{
    pthread_mutex_lock(&heap->syncing);
    return end_sync(heap, &heap->syncing, take_error(heap), error);
}

enum lmcs_status lmcs_heap_check_file(const struct lmcs_heap *heap, struct lmcs_error *error)
{
    struct stat st;
    uint64_t missing = heap->media != NULL ? lmcs_media_missing(heap->media) : 0;
    if (missing > 0)
        return lmcs_fail(error, LMCS_IO, 0,
                         "%s: the file was cut short while it was open: %llu bytes are missing, so nothing can be "
                         "saved in it: dump what it still holds, or close it and put back a copy",
                         heap->path, (unsigned long long)missing);
    if (heap->fd < 0 || fstat(heap->fd, &st) != 0 || st.st_nlink > 0)
        return LMCS_OK;
    return lmcs_fail(error, LMCS_IO, ENOENT,
                     "%s: the pool was deleted or replaced while it was open, so nothing can be saved in it: dump what "
                     "it holds while it is open, close it, and restore that into a new pool",
                     heap->path);
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

void lmcs_heap_note(struct lmcs_heap *heap, uint64_t offset)
{
    if (heap->highest < offset)
        heap->highest = offset;
}

/*
 * Allocates file space for zone metadata that libpmemobj may write when it allocates `bytes`: of zones in use, and of
 * the next one if the object is large or the last zone half full.
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
            enum lmcs_status status = lmcs_file_back(heap->fd, heap->path, at, LMCS_ZONE_META_BYTES, error);
            if (status != LMCS_OK)
                return status;
        }
        heap->zones_backed++;
    }
    return LMCS_OK;
}

/*
 * libpmemobj writes an object's header through its mapping, to a page that could not be allocated in advance. A quota
 * shows only when space is taken: it is, for a moment, behind the last chunk.
 */
static enum lmcs_status check_headroom(struct lmcs_heap *heap, uint64_t bytes, struct lmcs_error *error)
{
    uint64_t left = lmcs_heap_disk_free(heap);
    if (left < HEADROOM_BYTES)
        return lmcs_fail_full(error, bytes, left, ENOSPC, "%s: the disk is full", heap->path);
    uint64_t behind = heap->fd >= 0 ? (heap->bytes - heap->zones_start) % LMCS_CHUNK_BYTES : 0;
    if (behind < HEADROOM_BYTES + LMCS_PAGE_BYTES)
        return LMCS_OK;
    uint64_t at = heap->bytes - HEADROOM_BYTES;
    enum lmcs_status status = lmcs_file_back(heap->fd, heap->path, at, HEADROOM_BYTES, error);
    (void)lmcs_heap_punch(heap, at, HEADROOM_BYTES);
    return status;
}

enum lmcs_status lmcs_heap_reserve(struct lmcs_heap *heap, uint64_t bytes, struct lmcs_action *action, uint64_t *offset,
                                   uint64_t *got, struct lmcs_error *error)
{
    uint64_t chunks = (bytes + LMCS_OBJECT_HEADER_BYTES + LMCS_CHUNK_BYTES - 1) / LMCS_CHUNK_BYTES;
    if (chunks > LMCS_ZONE_CHUNKS)
        return lmcs_fail(error, LMCS_INVALID, 0, "%s: no object is as large as %llu bytes", heap->path,
                         (unsigned long long)bytes);
    enum lmcs_status status = lmcs_heap_check_file(heap, error);
    if (status == LMCS_OK)
        status = back_zones(heap, bytes, error);
    if (status == LMCS_OK)
        status = check_headroom(heap, bytes, error);
    if (status == LMCS_OK)
        status = lmcs_heap_take_errors(heap, error);
    if (status != LMCS_OK)
        return status;
    /* The header's page would be huge: 2 MiB of disk that are not counted. */
    if (heap->dax)
        madvise(heap->pool, heap->bytes, MADV_NOHUGEPAGE);
    PMEMoid object = pmemobj_reserve(heap->pool, (struct pobj_action *)action,
                                     chunks * LMCS_CHUNK_BYTES - LMCS_OBJECT_HEADER_BYTES, LMCS_OBJECT_TYPE);
    if (heap->dax)
        madvise(heap->pool, heap->bytes, MADV_HUGEPAGE);
    if (OID_IS_NULL(object)) {
        if (errno == ENOMEM || errno == ENOSPC)
            return lmcs_fail_full(error, bytes, 0, 0,
                                  "%s: the pool's address space is used up: no room for %llu bytes; compact it, remove "
                                  "snapshots ('lmc-store rm'), or dump it and restore it into a new pool of a larger "
                                  "size",
                                  heap->path, (unsigned long long)bytes);
        return lmcs_fail_errno(error, errno, "%s: libpmemobj can't allocate %llu bytes (%s)", heap->path,
                               (unsigned long long)bytes, pmemobj_errormsg());
    }
    lmcs_heap_note(heap, object.off);
    *offset = object.off;
    *got = pmemobj_alloc_usable_size(object);
    return LMCS_OK;
}

/* No checksum covers this header, by which libpmemobj frees. Its value is known, and the chunk's header was checked. */
static void repair_header(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes)
{
    const struct lmcs_object_header_df right = {bytes + LMCS_OBJECT_HEADER_BYTES, LMCS_OBJECT_TYPE};
    void *header = lmcs_heap_at(heap, offset - LMCS_OBJECT_HEADER_BYTES);
    if (memcmp(header, &right, sizeof right) != 0)
        pmemobj_memcpy_persist(heap->pool, header, &right, sizeof right);
}

enum lmcs_status lmcs_heap_free(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, struct lmcs_action *action,
                                struct lmcs_error *error)
{
    enum lmcs_status status = lmcs_heap_check_file(heap, error);
    if (status != LMCS_OK)
        return status;
    repair_header(heap, offset, bytes);
    PMEMoid object = pmemobj_oid(lmcs_heap_at(heap, offset));
    pmemobj_defer_free(heap->pool, object, (struct pobj_action *)action);
    return LMCS_OK;
}

void lmcs_heap_cancel(struct lmcs_heap *heap, struct lmcs_action *actions, size_t count)
{
    if (count > 0 && heap->media != NULL && lmcs_media_missing(heap->media) > 0)
        return; /* nothing is saved in this pool any more */
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
    if (status == LMCS_OK)
        status = lmcs_heap_check_file(heap, error);
    if (status != LMCS_OK)
        return status;
    pmemobj_set_value(heap->pool, &all[count], lmcs_heap_at(heap, word_offset), word);
    if (pmemobj_publish(heap->pool, all, count + 1) != 0)
        return lmcs_fail_errno(error, errno, "%s: libpmemobj can't commit (%s)", heap->path, pmemobj_errormsg());
    return LMCS_OK;
}

enum lmcs_status lmcs_heap_back(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    return heap->fd < 0 || bytes == 0 ? LMCS_OK : lmcs_file_back(heap->fd, heap->path, offset, bytes, error);
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
    PMEMobjpool *pool; /* LMCS_WRITE_LIBRARY */
    void *to;
    const void *from;
    size_t bytes;
};

static void store_bytes(void *context)
{
    const struct storing *s = context;
    /* Short data leave the cache fastest by a flush. */
    unsigned way = s->bytes < SHORT_STORE ? 0 : PMEM_F_MEM_NONTEMPORAL;
    if (s->pool != NULL)
        pmemobj_memcpy(s->pool, s->to, s->from, s->bytes, PMEMOBJ_F_MEM_NONTEMPORAL);
    else
        pmem_memcpy(s->to, s->from, s->bytes, way | PMEM_F_MEM_NODRAIN);
}

static void flush_bytes(void *context)
{
    const struct storing *s = context;
    if (s->pool != NULL)
        pmemobj_persist(s->pool, s->to, s->bytes);
    else
        pmem_flush(s->to, s->bytes);
}

/* Failed persistent memory can't be stored to until the kernel has repaired it, nor a file behind its end. */
static bool guarded(struct lmcs_heap *heap, void *at, const void *from, uint64_t bytes, void (*work)(void *context))
{
    struct storing s = {heap->method == LMCS_WRITE_LIBRARY ? heap->pool : NULL, at, from, bytes};
    struct lmcs_guarded range = {at, bytes};
    return lmcs_guard(&range, 1, work, &s);
}

enum lmcs_status lmcs_heap_write(struct lmcs_heap *heap, uint64_t offset, const void *data, uint64_t bytes,
                                 struct lmcs_error *error)
{
    if (heap->method == LMCS_WRITE_FILE)
        return write_file(heap, offset, data, bytes, error);
    return guarded(heap, lmcs_heap_at(heap, offset), data, bytes, store_bytes)
               ? LMCS_OK
               : lmcs_fail(error, LMCS_IO, EIO, "%s: the medium can't be written at offset %llu or after it",
                           heap->path, (unsigned long long)offset);
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static void touch_pages(void *context)
{
    const struct storing *s = context;
    for (size_t at = 0; at < s->bytes; at += LMCS_PAGE_BYTES) {
        volatile unsigned char *byte = (volatile unsigned char *)s->to + at;
        *byte = *byte;
    }
}

/* In small pieces: the kernel locks the address space during a piece. */
static bool fault_in(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes)
{
    enum { PIECE = 1 << 16 };
    for (uint64_t done = 0; done < bytes; done += PIECE) {
        size_t n = bytes - done < PIECE ? (size_t)(bytes - done) : PIECE;
        char *at = (char *)lmcs_heap_at(heap, offset + done);
        int result;
        do
            result = madvise(at, n, MADV_POPULATE_WRITE);
        while (result != 0 && (errno == EINTR || errno == EAGAIN));
        if (result != 0 && (errno != EINVAL || !guarded(heap, at, NULL, n, touch_pages)))
            return false;
    }
    return true;
}

bool lmcs_heap_warm(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes)
{
    if (heap->method == LMCS_WRITE_LIBRARY || lmcs_heap_check_file(heap, NULL) != LMCS_OK)
        return false;
    return heap->method == LMCS_WRITE_FILE || fault_in(heap, offset, bytes);
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
    if (heap->writeback != NULL)
        lmcs_writeback_add(heap->writeback, offset, bytes);
}

void lmcs_heap_flush(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes)
{
    if (heap->method != LMCS_WRITE_FILE) /* an unreadable part is found by the commit or by its reader */
        (void)guarded(heap, lmcs_heap_at(heap, offset), NULL, bytes, flush_bytes);
}

enum lmcs_status lmcs_heap_map(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, void *where, bool private_pages,
                               struct lmcs_error *error)
{
    /* A mapping through libpmemobj's descriptor would keep the lock. */
    int flags = private_pages ? MAP_PRIVATE | MAP_NORESERVE : heap->dax ? MAP_SHARED_VALIDATE | MAP_SYNC : MAP_SHARED;
    void *at = mmap(where, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, heap->map_fd, (off_t)offset);
    return at != MAP_FAILED
               ? LMCS_OK
               : lmcs_fail_map(error, bytes, "%s: can't map %llu bytes", heap->path, (unsigned long long)bytes);
}

enum lmcs_status lmcs_heap_persist(struct lmcs_heap *heap, const void *at, uint64_t bytes, struct lmcs_error *error)
{
    if (heap->method != LMCS_WRITE_FILE) {
        bool whole = guarded(heap, (void *)(uintptr_t)at, NULL, bytes, flush_bytes);
        pmem_drain();
        return whole ? LMCS_OK
                     : lmcs_fail(error, LMCS_IO, EIO, "%s: the medium can't be written, or its file was cut short",
                                 heap->path);
    }
    enum lmcs_status status = lmcs_heap_check_file(heap, error); /* msync accepts pages behind the end */
    if (status != LMCS_OK)
        return status;
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
