/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/media.h - the bytes of a pool, read without libpmemobj.
 *
 * A pool's address space is made of segments: one for a file or a devdax device, one a part for a poolset (its first
 * replica). Everything is bounds-checked against what the files really have.
 */
#ifndef LMCS_MEDIA_MEDIA_H
#define LMCS_MEDIA_MEDIA_H

#include "base/error.h"

struct lmcs_media;

/* Opens for reading and refuses what is no pool of ours. Shared by reference count. */
enum lmcs_status lmcs_media_open(const char *path, struct lmcs_media **media, struct lmcs_error *error);
/* Opens the same file anew, whatever stands at its path by now. (Parts of poolsets are found by their paths.) */
enum lmcs_status lmcs_media_open_again(const struct lmcs_media *media, struct lmcs_media **again,
                                       struct lmcs_error *error);
/* A path that leads to the file of a descriptor itself and not to what has its name now; its own where /proc is not. */
void lmcs_media_door(int fd, const char *path, char *door, size_t door_bytes);
struct lmcs_media *lmcs_media_share(struct lmcs_media *media);
void lmcs_media_release(struct lmcs_media *media);

/* Size of a devdax device; 0: it is none. */
uint64_t lmcs_media_device_bytes(const char *path);
/* A devdax device on which nobody has made anything yet. */
bool lmcs_media_is_blank_device(const char *path);

const char *lmcs_media_path(const struct lmcs_media *media);
/* A descriptor of the file at the path (for locks and questions to the file system). */
int lmcs_media_fd(const struct lmcs_media *media);
/* A descriptor of the file whose flock is libpmemobj's: of a poolset, its first part. */
int lmcs_media_lock_fd(const struct lmcs_media *media);
bool lmcs_media_is_device(const struct lmcs_media *media);
bool lmcs_media_is_poolset(const struct lmcs_media *media);
/* The other replicas of a poolset, for lmcs_media_read: what the first one has lost may be there. */
size_t lmcs_media_replicas(const struct lmcs_media *media);
const struct lmcs_media *lmcs_media_replica(const struct lmcs_media *media, size_t i);
/* Whether its path still leads to the file that was opened. */
bool lmcs_media_is_in_place(const struct lmcs_media *media);
uint64_t lmcs_media_bytes(const struct lmcs_media *media);
/* Where the superblock and the heap lie, as libpmemobj's header says, checked to be inside; 0: not there. */
uint64_t lmcs_media_superblock(const struct lmcs_media *media);
uint64_t lmcs_media_heap(const struct lmcs_media *media);

/* Copies bytes out; LMCS_DAMAGED when they are not inside the pool. Never raises SIGBUS on a file. */
enum lmcs_status lmcs_media_read(const struct lmcs_media *media, uint64_t offset, void *buffer, uint64_t bytes,
                                 struct lmcs_error *error);
/*
 * The same of bytes that were written through the page cache just now. It never makes the kernel read ahead, which
 * would fill the space behind them, as it is not used yet, with pages of zeros: as many as are written.
 */
enum lmcs_status lmcs_media_read_back(const struct lmcs_media *media, uint64_t offset, void *buffer, uint64_t bytes,
                                      struct lmcs_error *error);
/*
 * Has lmcs_media_read pass the bytes that it has read to `overlay`, which changes them to what they are about to become.
 * `context` NULL: no longer.
 */
typedef void lmcs_media_overlay_fn(const void *context, uint64_t offset, void *buffer, uint64_t bytes);
void lmcs_media_overlay(struct lmcs_media *media, lmcs_media_overlay_fn *overlay, const void *context);
/* Address of bytes in a read-only shared mapping of the whole pool; NULL when they are not inside. */
const void *lmcs_media_at(const struct lmcs_media *media, uint64_t offset, uint64_t bytes);
/*
 * Mapped bytes, some blocks of the codec at most, will be looked at: what is not in memory is read at once, instead of
 * a little at each fault.
 */
void lmcs_media_bring(const void *at, uint64_t bytes);
/*
 * Maps a page-aligned piece of the pool privately (writable, copy on write) at `where` (MAP_FIXED, in address space
 * that the caller has reserved). Not on devices.
 */
enum lmcs_status lmcs_media_map_private(const struct lmcs_media *media, uint64_t offset, uint64_t bytes, void *where,
                                        struct lmcs_error *error);
/* The same, shared and read-only. */
enum lmcs_status lmcs_media_map_shared(const struct lmcs_media *media, uint64_t offset, uint64_t bytes, void *where,
                                       struct lmcs_error *error);

#endif
