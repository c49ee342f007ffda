/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * records/ring.c - the bytes and locks of the ring of annotations. tests/models/annotations.pml models them.
 *
 * The annotations after the last that the root has applied are those with the next sequences, each with a right
 * checksum and the checksum of the one before it. The last rule makes one that a killed process left unfinished
 * invisible for ever, as soon as another takes its sequence.
 */
#include "records/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/grow.h"
#include "pages/pool.h"
#include "pages/tree.h"

#define RING_BYTES   ((uint64_t)LMCS_RING_SLOTS * LMCS_RING_SLOT_BYTES)
#define MOST_WAIT_MS 5000
#define NAP_MS       10

union slot {
    struct lmcs_annotation_df df;
    unsigned char bytes[LMCS_RING_SLOT_BYTES];
};

static uint64_t slot_place(uint64_t ring, uint64_t sequence)
{
    return lmcs_page_up(ring) + sequence % LMCS_RING_SLOTS * LMCS_RING_SLOT_BYTES;
}

static uint64_t check_of(const union slot *slot, uint64_t place)
{
    return lmc_hash64(slot->bytes + sizeof slot->df.check,
                      sizeof slot->df - sizeof slot->df.check + slot->df.text_bytes, place);
}

/* ---- The object ---- */

enum lmcs_status lmcs_ring_check(struct lmcs_txn *txn, struct lmcs_error *error)
{
    struct lmcs_object_df df;
    uint64_t ring = txn->root.ring;
    size_t bytes;
    bool found;
    enum lmcs_status status = lmcs_root_get(txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){ring, 0}, &df, sizeof df,
                                            sizeof df, &bytes, &found, error);
    if (status == LMCS_OK && (!found || df.kind != LMCS_OBJECT_RING || df.first != lmcs_page_up(ring) ||
                              df.bytes < LMCS_PAGE_BYTES + RING_BYTES))
        return lmcs_fail(error, LMCS_DAMAGED, 0, "%s: damaged metadata: there is no ring of annotations at offset %llu",
                         txn->pool->path, (unsigned long long)ring);
    return status;
}

static enum lmcs_status make_in(struct lmcs_txn *txn, struct lmcs_error *error)
{
    uint64_t offset, got;
    enum lmcs_status status = lmcs_txn_reserve(txn, RING_BYTES + 2 * (uint64_t)LMCS_PAGE_BYTES, &offset, &got, error);
    if (status != LMCS_OK)
        return status;
    struct lmcs_object_df df = {.kind = LMCS_OBJECT_RING, .bytes = got, .first = lmcs_page_up(offset)};
    df.cursor = df.backed = df.first;
    txn->root.ring = offset;
    lmcs_heap_punch(txn->pool->heap, df.first, ((offset + got) & ~(uint64_t)(LMCS_PAGE_BYTES - 1)) - df.first);
    return lmcs_root_put(txn, LMCS_TREE_OBJECTS, (struct lmcs_key_df){offset, 0}, &df, sizeof df, error);
}

enum lmcs_status lmcs_ring_make(struct lmcs_pool *pool, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    bool exists = pool->root.ring != 0;
    if (!exists && (lmcs_media_is_device(pool->media) || lmcs_media_is_poolset(pool->media)))
        return LMCS_OK; /* other processes can't write to these without libpmemobj */
    enum lmcs_status status = exists ? lmcs_txn_read(pool, &txn, error) : lmcs_txn_write(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    if (exists) {
        status = lmcs_ring_check(&txn, error);
        lmcs_txn_end(&txn);
        return status;
    }
    txn.only_allocates = true;
    status = lmcs_txn_finish(&txn, make_in(&txn, error), error);
    return status == LMCS_FULL || lmcs_is_unusable(status) ? LMCS_OK : status;
}

/* ---- Reading ---- */

enum lmcs_status lmcs_ring_read(struct lmcs_txn *txn, uint64_t sequence, struct lmcs_annotation *annotation,
                                bool *is_sound, struct lmcs_error *error)
{
    union slot slot;
    uint64_t place = slot_place(txn->root.ring, sequence);
    enum lmcs_status status = lmcs_media_read(txn->pool->media, place, &slot, sizeof slot, error);
    if (status != LMCS_OK)
        return status;
    *is_sound = slot.df.text_bytes <= LMCS_ANNOTATION_TEXT && slot.df.check == check_of(&slot, place);
    annotation->df = slot.df;
    if (*is_sound) {
        memcpy(annotation->text, slot.bytes + sizeof slot.df, slot.df.text_bytes);
        annotation->text[slot.df.text_bytes] = '\0';
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_ring_load(struct lmcs_txn *txn, struct lmcs_annotation **list, size_t *count, bool *is_old,
                                struct lmcs_error *error)
{
    uint64_t sequence = txn->root.ring_applied, check = txn->root.ring_check;
    struct lmcs_annotation annotation;
    size_t capacity = 0;
    enum lmcs_status status = LMCS_OK;
    bool goes_on = txn->root.ring != 0;
    *list = NULL;
    *count = 0;
    *is_old = false;
    while (goes_on && *count < LMCS_RING_SLOTS) {
        bool is_sound;
        status = lmcs_ring_read(txn, ++sequence, &annotation, &is_sound, error);
        if (status != LMCS_OK)
            break;
        goes_on = is_sound && annotation.df.sequence == sequence && annotation.df.previous == check;
        if (!goes_on)
            break;
        if (!lmcs_grow(list, &capacity, *count, sizeof **list)) {
            status = lmcs_fail_memory(error);
            break;
        }
        (*list)[(*count)++] = annotation;
        check = annotation.df.check;
    }
    if (lmcs_is_unusable(status))
        status = LMCS_OK;
    /* If the writer has applied more, an adder may have reused the slot, or the writer has removed the ring. */
    if (status == LMCS_OK && *count < LMCS_RING_SLOTS && txn->leased && txn->root.ring != 0) {
        struct lmcs_root_df now;
        status = lmcs_root_read(txn->pool, &now, error); /* two commits meanwhile may have reused its page */
        *is_old = lmcs_is_unusable(status) || (status == LMCS_OK && now.ring_applied != txn->root.ring_applied);
        status = *is_old ? LMCS_OK : status;
    }
    if (status != LMCS_OK) {
        free(*list);
        *list = NULL;
        *count = 0;
    }
    return status;
}

/* ---- Locks ---- */

static int set_lock(int fd, short type, uint64_t place, uint64_t bytes)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)place, .l_len = (off_t)bytes};
    return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

static bool find_lock(int fd, uint64_t place, struct flock *lock)
{
    *lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)place, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, lock) != 0 || lock->l_type != F_UNLCK;
}

static enum lmcs_status fail_locked(struct lmcs_pool *pool, int fd, struct lmcs_error *error)
{
    struct flock lock;
    if (find_lock(fd, LMCS_LOCK_ADDING, &lock) && (uint64_t)lock.l_start == LMCS_LOCK_ADDING && lock.l_len > 1)
        return lmcs_fail(error, LMCS_IN_USE, 0,
                         "%s: process %lld has been adding a tag, metric or note for seconds (is it stopped?): let it "
                         "go on or end it, and try again",
                         pool->path, (long long)lock.l_len - 1);
    return lmcs_fail(error, LMCS_IN_USE, 0,
                     "%s: another process has locked the file, so no tag, metric or note can be added beside the "
                     "writer (/proc/locks names it)",
                     pool->path);
}

/* The holder's process id is in the length of its lock, where waiting processes find it. */
static enum lmcs_status lock_adding(struct lmcs_pool *pool, int fd, struct lmcs_error *error)
{
    for (int waited = 0;; waited += NAP_MS) {
        int failure = set_lock(fd, F_WRLCK, LMCS_LOCK_ADDING, 1 + (uint64_t)getpid());
        if (failure == 0)
            return LMCS_OK;
        if (failure != EAGAIN && failure != EACCES)
            return lmcs_fail_errno(error, failure, "%s: can't lock", pool->path);
        if (waited >= MOST_WAIT_MS)
            return fail_locked(pool, fd, error);
        usleep(NAP_MS * 1000);
    }
}

static enum lmcs_status open_file(struct lmcs_pool *pool, int flags, int *fd, struct lmcs_error *error)
{
    char door[4096];
    lmcs_media_reopen_path(lmcs_media_fd(pool->media), pool->path, door, sizeof door);
    *fd = open(door, flags | O_CLOEXEC);
    if (*fd < 0 && (errno == EACCES || errno == EPERM || errno == EROFS))
        return lmcs_fail(error, LMCS_READ_ONLY, errno,
                         "%s: adding a tag, metric or note needs permission to write to the file", pool->path);
    return *fd < 0 ? lmcs_fail_errno(error, errno, "%s: can't open again", pool->path) : LMCS_OK;
}

enum lmcs_status lmcs_ring_begin(struct lmcs_pool *pool, int *fd, struct lmcs_error *error)
{
    enum lmcs_status status = open_file(pool, O_RDWR, fd, error);
    if (status != LMCS_OK)
        return status;
    status = lock_adding(pool, *fd, error);
    if (status != LMCS_OK)
        close(*fd);
    return status;
}

void lmcs_ring_end(int fd)
{
    set_lock(fd, F_UNLCK, LMCS_LOCK_ADDING, 1 + (uint64_t)getpid()); /* a forked child may have the description, too */
    close(fd);
}

enum lmcs_status lmcs_ring_wait_pruning(struct lmcs_pool *pool, int fd, struct lmcs_error *error)
{
    struct flock lock;
    for (int waited = 0; find_lock(fd, LMCS_LOCK_PRUNING, &lock); waited += NAP_MS) {
        if (waited >= MOST_WAIT_MS)
            return lmcs_fail(error, LMCS_IN_USE, 0,
                             "%s: the process that writes to the pool has been pruning for seconds (is it stopped?), "
                             "so it is not certain that the snapshot stays: look for it once that process goes on",
                             pool->path);
        usleep(NAP_MS * 1000);
    }
    return LMCS_OK;
}

enum lmcs_status lmcs_ring_begin_pruning(struct lmcs_pool *pool, int *fd, struct lmcs_error *error)
{
    struct lmcs_txn txn;
    *fd = -1;
    enum lmcs_status status = lmcs_txn_read(pool, &txn, error);
    if (status != LMCS_OK)
        return status;
    const bool exists = txn.root.ring != 0;
    lmcs_txn_end(&txn);
    if (!exists)
        return LMCS_OK;
    status = open_file(pool, O_RDONLY, fd, error);
    int failure = status == LMCS_OK ? set_lock(*fd, F_RDLCK, LMCS_LOCK_PRUNING, 1) : 0;
    if (failure != 0) {
        close(*fd);
        *fd = -1;
        status = lmcs_fail(error, LMCS_IN_USE, failure,
                           "%s: another process has locked the file, so a policy can't prune (/proc/locks names it)",
                           pool->path);
    }
    return status;
}

void lmcs_ring_end_pruning(int fd)
{
    if (fd < 0)
        return;
    set_lock(fd, F_UNLCK, LMCS_LOCK_PRUNING, 1);
    close(fd);
}

/* ---- Adding ---- */

static enum lmcs_status sync_file(struct lmcs_pool *pool, int fd, struct lmcs_error *error)
{
    return fdatasync(fd) == 0 ? LMCS_OK : lmcs_fail_errno(error, errno, "%s: can't make it durable", pool->path);
}

static void fill_slot(union slot *slot, const struct lmcs_annotation *annotation)
{
    slot->df = annotation->df;
    memcpy(slot->bytes + sizeof slot->df, annotation->text, slot->df.text_bytes);
}

static enum lmcs_status write_slot(const struct lmcs_txn *txn, int fd, const union slot *slot, struct lmcs_error *error)
{
    const uint64_t place = slot_place(txn->root.ring, slot->df.sequence);
    size_t done = 0, bytes = sizeof slot->df + slot->df.text_bytes;
    while (done < bytes) {
        ssize_t n = pwrite(fd, slot->bytes + done, bytes - done, (off_t)(place + done));
        if (n < 0 && errno != EINTR)
            return lmcs_fail_errno(error, errno, "%s: can't write", txn->pool->path);
        done += n > 0 ? (size_t)n : 0;
    }
    return LMCS_OK;
}

/*
 * After a failed sync of another adder, only the page cache has its annotation, in a page that counts as clean
 * (REPAIR.md). The new one would be lost with it. Those that are written again are part of this addition's sync.
 */
static enum lmcs_status write_again(const struct lmcs_txn *txn, int fd, const struct lmcs_annotation *list,
                                    size_t count, struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    for (size_t i = 0; status == LMCS_OK && i < count; i++) {
        union slot slot;
        fill_slot(&slot, &list[i]);
        status = write_slot(txn, fd, &slot, error);
    }
    return status;
}

enum lmcs_status lmcs_ring_add(int fd, struct lmcs_txn *txn, const struct lmcs_annotation *list, size_t pending,
                               struct lmcs_annotation *annotation, struct lmcs_error *error)
{
    struct lmcs_pool *pool = txn->pool;
    union slot slot = {.bytes = {0}};
    uint64_t sequence = txn->root.ring_applied + pending + 1, place = slot_place(txn->root.ring, sequence);
    if (pending >= LMCS_RING_SLOTS)
        return lmcs_fail(error, LMCS_FULL, 0,
                         "%s: %u tags, metrics and notes wait for the process that writes to the pool, and no more "
                         "can: let it go on, or end it",
                         pool->path, LMCS_RING_SLOTS);
    enum lmcs_status status = lmcs_ring_check(txn, error);
    if (status != LMCS_OK)
        return status;
    fill_slot(&slot, annotation);
    slot.df.sequence = sequence;
    slot.df.previous = pending > 0 ? list[pending - 1].df.check : txn->root.ring_check;
    slot.df.check = check_of(&slot, place);
    annotation->df = slot.df;
    /* The slot's annotation is in the root that we read; that root must be durable before the slot changes. */
    if (sequence > LMCS_RING_SLOTS)
        status = sync_file(pool, fd, error);
    if (status == LMCS_OK)
        status = write_again(txn, fd, list, pending, error);
    if (status == LMCS_OK)
        status = write_slot(txn, fd, &slot, error);
    if (status == LMCS_OK)
        status = sync_file(pool, fd, error);
    if (status == LMCS_OK && !lmcs_media_is_in_place(pool->media))
        status = lmcs_fail(error, LMCS_IO, 0, "%s: the pool was replaced or removed meanwhile", pool->path);
    return status;
}

/* ---- Removing ---- */

static enum lmcs_status remove_in(struct lmcs_txn *txn, struct lmcs_object_df *df, struct lmcs_error *error)
{
    const struct lmcs_key_df key = {txn->root.ring, 0};
    struct lmcs_annotation *list = NULL;
    size_t count = 0, bytes;
    bool is_old, found;
    enum lmcs_status status = lmcs_ring_load(txn, &list, &count, &is_old, error);
    free(list);
    if (status == LMCS_OK && count > 0)
        return lmcs_fail(error, LMCS_IN_USE, 0, "%s: annotations wait", txn->pool->path);
    if (status == LMCS_OK)
        status = lmcs_ring_check(txn, error);
    if (status == LMCS_OK)
        status = lmcs_root_get(txn, LMCS_TREE_OBJECTS, key, df, sizeof *df, sizeof *df, &bytes, &found, error);
    if (status == LMCS_OK)
        status = lmcs_root_delete(txn, LMCS_TREE_OBJECTS, key, NULL, error);
    if (status == LMCS_OK)
        status = lmcs_txn_free(txn, key.high, df->bytes, error);
    txn->root.ring = 0;
    return status;
}

void lmcs_ring_remove(struct lmcs_pool *pool)
{
    struct lmcs_txn txn;
    struct lmcs_object_df df;
    int fd;
    const uint64_t ring = pool->root.ring;
    if (ring == 0 || open_file(pool, O_RDWR, &fd, NULL) != LMCS_OK)
        return;
    if (set_lock(fd, F_WRLCK, LMCS_LOCK_ADDING, 1 + (uint64_t)getpid()) == 0 &&
        lmcs_txn_write(pool, &txn, NULL) == LMCS_OK &&
        lmcs_txn_finish(&txn, remove_in(&txn, &df, NULL), NULL) == LMCS_OK)
        lmcs_heap_punch(pool->heap, df.first, ((ring + df.bytes) & ~(uint64_t)(LMCS_PAGE_BYTES - 1)) - df.first);
    lmcs_ring_end(fd);
}
