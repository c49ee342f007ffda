/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/lease.c - bytes kept for readers. See LOCKS.md.
 *
 * A process's leases on a pool share one description, so pins are counted here. The writer queries through the media's
 * description, for which even its own process's leases are foreign.
 *
 * Small payloads are locked by MiB, in a lock space of their own; larger ones exactly, up to their neighbour's first
 * page, whose lock the kernel then joins. A payload's constant size determines the kind of lock. A live tensor changes
 * size, and its free pages are joined to others: for those both spaces are queried (lmcs_lease_find_pin), and pins that
 * begin at one offset may end at different ones.
 */
#include "media/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grow.h"
#include "base/order.h"
#include "media/layout.h"

struct pin {
    struct pin *next;
    uint64_t key; /* epoch, or offset with RANGE_KEY, or block number with BLOCK_KEY */
    uint64_t bytes;
    uint64_t count;
};

struct span { /* to lock */
    uint64_t start;
    uint64_t bytes;
};

struct lmcs_lease {
    struct lmcs_lease *next; /* under all_lock */
    struct lmcs_lease **at;
    atomic_int references;
    struct lmcs_media *media;
    int fd;
    pthread_mutex_t lock;
    struct pin **buckets;
    size_t bucket_count; /* a power of two */
    size_t pin_count;
    struct span *spans; /* for the child */
    size_t span_count;
    size_t span_capacity;
    int child_fd;      /* description that locks them; -1: none */
    bool is_lost;      /* the spans could not be locked */
    bool is_inherited; /* by a fork: this process reads by another description */
};

#define RANGE_KEY ((uint64_t)1 << 63)
#define BLOCK_KEY ((uint64_t)3 << 62)

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER; /* before a lease's own */
static struct lmcs_lease *all;

static void enter(struct lmcs_lease *lease)
{
    pthread_mutex_lock(&all_lock);
    lease->next = all;
    lease->at = &all;
    if (all != NULL)
        all->at = &lease->next;
    all = lease;
    pthread_mutex_unlock(&all_lock);
}

static void leave(struct lmcs_lease *lease)
{
    pthread_mutex_lock(&all_lock);
    *lease->at = lease->next;
    if (lease->next != NULL)
        lease->next->at = lease->at;
    pthread_mutex_unlock(&all_lock);
}

/* Opens the media's file, even if another has its name by now. */
static int open_again(struct lmcs_media *media)
{
    char path[64];
    struct stat now, before;
    snprintf(path, sizeof path, "/proc/self/fd/%d", lmcs_media_fd(media));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fd = open(lmcs_media_path(media), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || (fstat(fd, &now) == 0 && fstat(lmcs_media_fd(media), &before) == 0 && now.st_dev == before.st_dev &&
                   now.st_ino == before.st_ino))
        return fd;
    close(fd);
    errno = ESTALE;
    return -1;
}

enum lmcs_status lmcs_lease_new(struct lmcs_media *media, struct lmcs_lease **lease, struct lmcs_error *error)
{
    struct lmcs_lease *l = calloc(1, sizeof *l);
    if (l == NULL || (l->buckets = calloc(256, sizeof(struct pin *))) == NULL) {
        free(l);
        return lmcs_fail_memory(error);
    }
    l->bucket_count = 256;
    l->fd = open_again(media);
    if (l->fd < 0) {
        int failure = errno;
        free(l->buckets);
        free(l);
        return lmcs_fail_errno(error, failure, "%s: can't open again", lmcs_media_path(media));
    }
    atomic_init(&l->references, 1);
    pthread_mutex_init(&l->lock, NULL);
    l->media = lmcs_media_share(media);
    l->child_fd = -1;
    enter(l);
    *lease = l;
    return LMCS_OK;
}

struct lmcs_lease *lmcs_lease_share(struct lmcs_lease *lease)
{
    atomic_fetch_add_explicit(&lease->references, 1, memory_order_relaxed);
    return lease;
}

void lmcs_lease_release(struct lmcs_lease *lease)
{
    if (lease == NULL || atomic_fetch_sub(&lease->references, 1) != 1)
        return;
    leave(lease);
    for (size_t i = 0; i < lease->bucket_count; i++)
        for (struct pin *pin = lease->buckets[i], *next; pin != NULL; pin = next) {
            next = pin->next;
            free(pin);
        }
    free(lease->buckets);
    free(lease->spans);
    close(lease->fd); /* drops every lock */
    pthread_mutex_destroy(&lease->lock);
    lmcs_media_release(lease->media);
    free(lease);
}

static struct pin **bucket_of(struct lmcs_lease *lease, uint64_t key)
{
    return &lease->buckets[(key * 0x9e3779b97f4a7c15u >> 32) & (lease->bucket_count - 1)];
}

static struct pin **find(struct lmcs_lease *lease, uint64_t key, uint64_t bytes)
{
    struct pin **at = bucket_of(lease, key);
    while (*at != NULL && ((*at)->key != key || (*at)->bytes != bytes))
        at = &(*at)->next;
    return at;
}

static void widen(struct lmcs_lease *lease)
{
    size_t count = lease->bucket_count * 4;
    struct pin **buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL)
        return; /* without it, queries are slower */
    struct pin **old = lease->buckets;
    size_t old_count = lease->bucket_count;
    lease->buckets = buckets;
    lease->bucket_count = count;
    for (size_t i = 0; i < old_count; i++)
        for (struct pin *pin = old[i], *next; pin != NULL; pin = next) {
            next = pin->next;
            struct pin **at = bucket_of(lease, pin->key);
            pin->next = *at;
            *at = pin;
        }
    free(old);
}

static int set_lock(int fd, short type, uint64_t start, uint64_t bytes)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)bytes};
    return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

/* Only a foreign write lock conflicts; the store takes none. */
static enum lmcs_status fail_lock(struct lmcs_lease *lease, int failure, uint64_t start, uint64_t bytes,
                                  struct lmcs_error *error)
{
    const char *path = lmcs_media_path(lease->media);
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)bytes};
    if (failure != EAGAIN && failure != EACCES)
        return lmcs_fail_errno(error, failure, "%s: can't lease", path);
    if (fcntl(lease->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid > 0)
        return lmcs_fail(error, LMCS_IN_USE, failure,
                         "%s: process %d has locked the whole file, so what is to be read can't be kept in place: "
                         "have it let go of its lock",
                         path, (int)lock.l_pid);
    return lmcs_fail(error, LMCS_IN_USE, failure,
                     "%s: another process has locked the whole file, so what is to be read can't be kept in place: "
                     "have it let go of its lock (/proc/locks names it)",
                     path);
}

/* Counts a pin; the first locks its bytes. */
static enum lmcs_status take(struct lmcs_lease *lease, uint64_t key, uint64_t start, uint64_t bytes,
                             struct lmcs_error *error)
{
    enum lmcs_status status = LMCS_OK;
    pthread_mutex_lock(&lease->lock);
    struct pin **at = find(lease, key, bytes), *pin = *at;
    if (pin == NULL) {
        pin = calloc(1, sizeof *pin);
        int failure = pin == NULL ? ENOMEM : set_lock(lease->fd, F_RDLCK, start, bytes);
        if (failure != 0) {
            free(pin);
            status = fail_lock(lease, failure, start, bytes, error);
        } else {
            pin->key = key;
            pin->bytes = bytes;
            pin->count = 1;
            *at = pin;
            if (++lease->pin_count > lease->bucket_count * 2)
                widen(lease);
        }
    } else {
        pin->count++;
    }
    pthread_mutex_unlock(&lease->lock);
    return status;
}

/* Ends a pin; the last unlocks bytes that no other pin keeps. */
static void drop(struct lmcs_lease *lease, uint64_t key, uint64_t start, uint64_t bytes)
{
    pthread_mutex_lock(&lease->lock);
    struct pin **at = find(lease, key, bytes), *pin = *at;
    if (pin != NULL && --pin->count == 0) {
        uint64_t kept = 0; /* by other pins that begin there */
        for (const struct pin *other = *bucket_of(lease, key); other != NULL; other = other->next)
            if (other != pin && other->key == key && other->bytes > kept)
                kept = other->bytes;
        if (kept < bytes)
            set_lock(lease->fd, F_UNLCK, start + kept, bytes - kept);
        *at = pin->next;
        lease->pin_count--;
        free(pin);
    }
    pthread_mutex_unlock(&lease->lock);
}

enum lmcs_status lmcs_lease_epoch(struct lmcs_lease *lease, uint64_t epoch, struct lmcs_error *error)
{
    return take(lease, epoch, LMCS_LEASE_EPOCHS + epoch, 1, error);
}

void lmcs_lease_epoch_end(struct lmcs_lease *lease, uint64_t epoch)
{
    drop(lease, epoch, LMCS_LEASE_EPOCHS + epoch, 1);
}

static bool is_small(uint64_t bytes)
{
    return lmcs_room(bytes) < LMCS_ALIGNED_BYTES;
}

static enum lmcs_status take_block(struct lmcs_lease *lease, uint64_t block, struct lmcs_error *error)
{
    return take(lease, block | BLOCK_KEY, LMCS_LEASE_BLOCKS + block, 1, error);
}

static void drop_block(struct lmcs_lease *lease, uint64_t block)
{
    drop(lease, block | BLOCK_KEY, LMCS_LEASE_BLOCKS + block, 1);
}

enum lmcs_status lmcs_lease_pin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes, struct lmcs_error *error)
{
    if (bytes == 0)
        return LMCS_OK;
    if (!is_small(bytes))
        return take(lease, offset | RANGE_KEY, LMCS_LEASE_RANGES + offset, lmcs_room(bytes), error);
    uint64_t first = offset / LMCS_LEASE_BLOCK, last = (offset + bytes - 1) / LMCS_LEASE_BLOCK;
    enum lmcs_status status = take_block(lease, first, error);
    if (status == LMCS_OK && last != first) {
        status = take_block(lease, last, error);
        if (status != LMCS_OK)
            drop_block(lease, first);
    }
    return status;
}

void lmcs_lease_unpin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes)
{
    if (bytes == 0)
        return;
    if (!is_small(bytes)) {
        drop(lease, offset | RANGE_KEY, LMCS_LEASE_RANGES + offset, lmcs_room(bytes));
        return;
    }
    uint64_t first = offset / LMCS_LEASE_BLOCK, last = (offset + bytes - 1) / LMCS_LEASE_BLOCK;
    drop_block(lease, first);
    if (last != first)
        drop_block(lease, last);
}

/* Whether another description locks a byte of the range. *start and *end: one such lock. */
static bool find_lock(struct lmcs_lease *lease, uint64_t from, uint64_t bytes, uint64_t *start, uint64_t *end)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)from, .l_len = (off_t)bytes};
    if (fcntl(lmcs_media_fd(lease->media), F_OFD_GETLK, &lock) != 0) {
        *start = from;
        *end = from + bytes;
        return true; /* unknown: nothing is reused */
    }
    *start = (uint64_t)lock.l_start;
    *end = lock.l_len != 0 ? *start + (uint64_t)lock.l_len : UINT64_MAX; /* 0: to the end of the file */
    return lock.l_type != F_UNLCK;
}

static bool is_locked(struct lmcs_lease *lease, uint64_t from, uint64_t bytes, uint64_t *start)
{
    uint64_t end;
    return find_lock(lease, from, bytes, start, &end);
}

uint64_t lmcs_lease_safe_epoch(struct lmcs_lease *lease, uint64_t current)
{
    uint64_t start;
    while (current > 0 && is_locked(lease, LMCS_LEASE_EPOCHS, current, &start))
        current = start > LMCS_LEASE_EPOCHS ? start - LMCS_LEASE_EPOCHS : 0;
    return current;
}

bool lmcs_lease_is_pinned(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes)
{
    uint64_t start;
    if (bytes == 0)
        return false;
    if (!is_small(bytes))
        return is_locked(lease, LMCS_LEASE_RANGES + offset, bytes, &start);
    uint64_t first = offset / LMCS_LEASE_BLOCK, last = (offset + bytes - 1) / LMCS_LEASE_BLOCK;
    return is_locked(lease, LMCS_LEASE_BLOCKS + first, last - first + 1, &start);
}

bool lmcs_lease_find_pin(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes, uint64_t *first, uint64_t *end)
{
    uint64_t last = offset + bytes, start, behind;
    if (bytes == 0)
        return false;
    if (find_lock(lease, LMCS_LEASE_RANGES + offset, bytes, &start, &behind)) {
        *first = start > LMCS_LEASE_RANGES ? start - LMCS_LEASE_RANGES : 0;
        *end = behind - LMCS_LEASE_RANGES;
    } else {
        uint64_t block = offset / LMCS_LEASE_BLOCK, blocks = (last - 1) / LMCS_LEASE_BLOCK - block + 1;
        if (!find_lock(lease, LMCS_LEASE_BLOCKS + block, blocks, &start, &behind))
            return false;
        *first = start > LMCS_LEASE_BLOCKS ? (start - LMCS_LEASE_BLOCKS) * LMCS_LEASE_BLOCK : 0;
        *end = behind - LMCS_LEASE_BLOCKS < UINT64_MAX / LMCS_LEASE_BLOCK
                   ? (behind - LMCS_LEASE_BLOCKS) * LMCS_LEASE_BLOCK
                   : UINT64_MAX;
    }
    *first = *first < offset ? offset : *first & ~(uint64_t)(LMCS_PAGE_BYTES - 1);
    *end = *end > last ? last : lmcs_page_up(*end);
    return true;
}

static void add_span(struct lmcs_lease *lease, uint64_t start, uint64_t bytes)
{
    if (!lmcs_grow(&lease->spans, &lease->span_capacity, lease->span_count, sizeof *lease->spans))
        lease->is_lost = true;
    else
        lease->spans[lease->span_count++] = (struct span){start, bytes};
}

/* A child has no walks, so no leased epochs. */
static void add_pins(struct lmcs_lease *lease)
{
    for (size_t i = 0; i < lease->bucket_count; i++)
        for (const struct pin *pin = lease->buckets[i]; pin != NULL; pin = pin->next)
            if ((pin->key & BLOCK_KEY) == BLOCK_KEY)
                add_span(lease, LMCS_LEASE_BLOCKS + (pin->key & ~BLOCK_KEY), pin->bytes);
            else if ((pin->key & RANGE_KEY) != 0)
                add_span(lease, LMCS_LEASE_RANGES + (pin->key & ~RANGE_KEY), pin->bytes);
}

void lmcs_lease_before_fork(void)
{
    pthread_mutex_lock(&all_lock);
    for (struct lmcs_lease *lease = all; lease != NULL; lease = lease->next) {
        pthread_mutex_lock(&lease->lock);
        lease->span_count = 0;
        lease->is_lost = false;
        add_pins(lease);
    }
}

void lmcs_lease_bequeath(struct lmcs_lease *lease, uint64_t offset, uint64_t bytes)
{
    if (!lease->is_inherited)
        add_span(lease, LMCS_LEASE_RANGES + offset, bytes);
}

static int by_start(const void *a, const void *b)
{
    uint64_t x = ((const struct span *)a)->start, y = ((const struct span *)b)->start;
    return LMCS_ORDER(x, y);
}

/* Joins neighbours: the cost of each lock grows with their number. */
static bool lock_spans(const struct lmcs_lease *lease)
{
    qsort(lease->spans, lease->span_count, sizeof *lease->spans, by_start);
    for (size_t i = 0, next; i < lease->span_count; i = next) {
        uint64_t start = lease->spans[i].start, end = start + lease->spans[i].bytes;
        for (next = i + 1; next < lease->span_count && lease->spans[next].start <= end; next++)
            if (lease->spans[next].start + lease->spans[next].bytes > end)
                end = lease->spans[next].start + lease->spans[next].bytes;
        if (set_lock(lease->child_fd, F_RDLCK, start, end - start) != 0)
            return false;
    }
    return true;
}

/* Pins once more, without an end: without a description for the child, the present pins last until the lease ends. */
static void keep_pins(struct lmcs_lease *lease)
{
    for (size_t i = 0; i < lease->bucket_count; i++)
        for (struct pin *pin = lease->buckets[i]; pin != NULL; pin = pin->next)
            if ((pin->key & RANGE_KEY) != 0)
                pin->count++;
}

void lmcs_lease_hand_over(void)
{
    for (struct lmcs_lease *lease = all; lease != NULL; lease = lease->next) {
        if (lease->span_count > 0 && !lease->is_lost) {
            lease->child_fd = open_again(lease->media);
            lease->is_lost = lease->child_fd < 0 || !lock_spans(lease);
        }
        if (lease->is_lost)
            keep_pins(lease);
    }
}

void lmcs_lease_after_fork(void)
{
    for (struct lmcs_lease *lease = all; lease != NULL; lease = lease->next) {
        if (lease->child_fd >= 0)
            close(lease->child_fd);
        lease->child_fd = -1;
        pthread_mutex_unlock(&lease->lock);
    }
    pthread_mutex_unlock(&all_lock);
}

void lmcs_lease_in_child(void)
{
    for (struct lmcs_lease *lease = all; lease != NULL; lease = lease->next) {
        lease->is_inherited = true;
        if (!lease->is_lost) {
            close(lease->fd);
            lease->fd = -1;
        }
        pthread_mutex_unlock(&lease->lock);
    }
    all = NULL;
    pthread_mutex_unlock(&all_lock);
}

bool lmcs_lease_is_lost(const struct lmcs_lease *lease)
{
    return lease->is_lost;
}
