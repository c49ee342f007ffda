/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/media.h - the bytes of a pool, read without libpmemobj. The face of media/.
 *
 * media/ is the bytes of a pool on any medium, with and without libpmemobj: media.h reads, heap.h writes, lease.h keeps
 * bytes for readers, layout.h is the format. It uses base/.
 *
 * A pool's address space consists of segments: one for a file or a devdax device, one for each part of a poolset's
 * first replica. Every access is checked against the real size of the files.
 */
#ifndef LMCS_MEDIA_MEDIA_H
#define LMCS_MEDIA_MEDIA_H

#include "base/error.h"

struct lmcs_media;

/*
 * Opens for reading. LMCS_NOT_FOUND, LMCS_DAMAGED (not a pool of ours), LMCS_INVALID, LMCS_UNSUPPORTED, LMCS_IO. Shared
 * by reference count; lmcs_media_release drops one.
 */
enum lmcs_status lmcs_media_open(const char *path, struct lmcs_media **media, struct lmcs_error *error);
/* Opens the same file again, even if its path leads to another by now. (Parts of poolsets are found by path.) */
enum lmcs_status lmcs_media_open_again(const struct lmcs_media *media, struct lmcs_media **again,
                                       struct lmcs_error *error);
/* Writes a path that reopens the file of fd: /proc/self/fd/N for fd, or `path` if /proc is not mounted. */
void lmcs_media_reopen_path(int fd, const char *path, char *door, size_t door_bytes);
struct lmcs_media *lmcs_media_share(struct lmcs_media *media);
void lmcs_media_release(struct lmcs_media *media);

/* Size of a devdax device; 0: not one. */
uint64_t lmcs_media_device_bytes(const char *path);
/* Whether it is a devdax device without a pool. */
bool lmcs_media_is_blank_device(const char *path);

const char *lmcs_media_path(const struct lmcs_media *media);
/* A descriptor of the file at the path, for locks and queries of the file system. */
int lmcs_media_fd(const struct lmcs_media *media);
/* A descriptor of the file whose flock libpmemobj uses: of a poolset, its first part. */
int lmcs_media_lock_fd(const struct lmcs_media *media);
bool lmcs_media_is_device(const struct lmcs_media *media);
bool lmcs_media_is_poolset(const struct lmcs_media *media);
/* The other replicas of a poolset, for lmcs_media_read: they may have bytes that the first one lost. */
size_t lmcs_media_replicas(const struct lmcs_media *media);
const struct lmcs_media *lmcs_media_replica(const struct lmcs_media *media, size_t i);
/* Whether the path still leads to the file that was opened. */
bool lmcs_media_is_in_place(const struct lmcs_media *media);
uint64_t lmcs_media_bytes(const struct lmcs_media *media);
/* Offsets of the superblock and the heap from libpmemobj's header, checked to be inside. */
uint64_t lmcs_media_superblock(const struct lmcs_media *media);
uint64_t lmcs_media_heap(const struct lmcs_media *media);

/* Copies bytes. LMCS_DAMAGED: they are outside of the pool or unreadable. Never raises SIGBUS on a file. */
enum lmcs_status lmcs_media_read(const struct lmcs_media *media, uint64_t offset, void *buffer, uint64_t bytes,
                                 struct lmcs_error *error);
/*
 * Copies bytes that were just written through the page cache. Never causes readahead, which would fill the unused space
 * after them with as many pages of zeros.
 */
enum lmcs_status lmcs_media_read_back(const struct lmcs_media *media, uint64_t offset, void *buffer, uint64_t bytes,
                                      struct lmcs_error *error);
/*
 * Makes lmcs_media_read pass bytes to `overlay`, which changes them to their future values. `context` NULL: no longer.
 */
typedef void lmcs_media_overlay_fn(const void *context, uint64_t offset, void *buffer, uint64_t bytes);
void lmcs_media_overlay(struct lmcs_media *media, lmcs_media_overlay_fn *overlay, const void *context);
/* Address of bytes in a shared read-only mapping of the pool; NULL: outside of the pool. */
const void *lmcs_media_at(const struct lmcs_media *media, uint64_t offset, uint64_t bytes);
/*
 * Announces access to mapped bytes (some blocks of the codec at most): bytes that are not in memory are read at once
 * instead of page by page.
 */
void lmcs_media_bring(const void *at, uint64_t bytes);
/*
 * Maps a page-aligned range privately (writable, copy on write) at `where`, in address space that the caller reserved
 * (MAP_FIXED). Not for devices.
 */
enum lmcs_status lmcs_media_map_private(const struct lmcs_media *media, uint64_t offset, uint64_t bytes, void *where,
                                        struct lmcs_error *error);
/* Maps it likewise, shared and read-only. */
enum lmcs_status lmcs_media_map_shared(const struct lmcs_media *media, uint64_t offset, uint64_t bytes, void *where,
                                       struct lmcs_error *error);

#endif
