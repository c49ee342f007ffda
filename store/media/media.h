/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/media.h - the bytes of a pool, read without libpmemobj. The face of media/.
 *
 * media/ is the bytes of a pool on any medium, with and without libpmemobj: media.h reads, heap.h writes, lease.h keeps
 * bytes for readers, layout.h is the format. It uses base/.
 *
 * A pool's address space is segments: a file or a devdax device, or the parts of a poolset's first replica. Accesses
 * are checked against the files' real size.
 */
#ifndef LMCS_MEDIA_MEDIA_H
#define LMCS_MEDIA_MEDIA_H

#include "base/error.h"

struct lmcs_media;

/*
 * LMCS_NOT_FOUND, LMCS_DAMAGED (not a pool of ours), LMCS_INVALID, LMCS_UNSUPPORTED, LMCS_IO. Counted references;
 * lmcs_media_release drops one.
 */
enum lmcs_status lmcs_media_open(const char *path, struct lmcs_media **media, struct lmcs_error *error);
/* Opens the same file, even if its path leads to another by now. (Parts of poolsets are found by path.) */
enum lmcs_status lmcs_media_open_again(const struct lmcs_media *media, struct lmcs_media **again,
                                       struct lmcs_error *error);
/* The path that reopens the file of fd: /proc/self/fd/N, or `path` without /proc. */
void lmcs_media_reopen_path(int fd, const char *path, char *door, size_t door_bytes);
struct lmcs_media *lmcs_media_share(struct lmcs_media *media);
void lmcs_media_release(struct lmcs_media *media);

/* 0: no devdax device. */
uint64_t lmcs_media_device_bytes(const char *path);
/* A devdax device without a pool. */
bool lmcs_media_is_blank_device(const char *path);

const char *lmcs_media_path(const struct lmcs_media *media);
/* The file at the path, for locks and queries. */
int lmcs_media_fd(const struct lmcs_media *media);
/* The file with libpmemobj's flock: of a poolset, its first part. */
int lmcs_media_lock_fd(const struct lmcs_media *media);
bool lmcs_media_is_device(const struct lmcs_media *media);
bool lmcs_media_is_poolset(const struct lmcs_media *media);
/* A poolset's other replicas, for lmcs_media_read: they may have bytes that the first lost. */
size_t lmcs_media_replicas(const struct lmcs_media *media);
const struct lmcs_media *lmcs_media_replica(const struct lmcs_media *media, size_t i);
/* Whether the path still leads to the opened file. */
bool lmcs_media_is_in_place(const struct lmcs_media *media);
uint64_t lmcs_media_bytes(const struct lmcs_media *media);
/* Bytes that its files, those of other replicas included, have lost since they were opened. 0: a device. */
uint64_t lmcs_media_missing(const struct lmcs_media *media);
/*
 * Makes what readers see durable, also from a descriptor for reading: a writer in another process may have stored it,
 * and wait for its own sync. LMCS_IO.
 */
enum lmcs_status lmcs_media_sync(const struct lmcs_media *media, struct lmcs_error *error);
/* Offsets from libpmemobj's header, checked to be inside. */
uint64_t lmcs_media_superblock(const struct lmcs_media *media);
uint64_t lmcs_media_heap(const struct lmcs_media *media);

/* LMCS_DAMAGED: outside of the pool, or unreadable. Never raises SIGBUS on a file. */
enum lmcs_status lmcs_media_read(const struct lmcs_media *media, uint64_t offset, void *buffer, uint64_t bytes,
                                 struct lmcs_error *error);
/*
 * Copies bytes just written through the page cache. No readahead, which would fill the unused space after them with
 * zero pages.
 */
enum lmcs_status lmcs_media_read_back(const struct lmcs_media *media, uint64_t offset, void *buffer, uint64_t bytes,
                                      struct lmcs_error *error);
/* lmcs_media_read passes bytes to `overlay`, which changes them to future values. `context` NULL: ends that. */
typedef void lmcs_media_overlay_fn(const void *context, uint64_t offset, void *buffer, uint64_t bytes);
void lmcs_media_overlay(struct lmcs_media *media, lmcs_media_overlay_fn *overlay, const void *context);
/* Bytes in a shared read-only mapping of the pool; NULL: outside. */
const void *lmcs_media_at(const struct lmcs_media *media, uint64_t offset, uint64_t bytes);
/* Announces access to mapped bytes (at most some codec blocks): missing ones are read at once, not page by page. */
void lmcs_media_bring(const void *at, uint64_t bytes);
/* Maps a page-aligned range, writable and copy on write, at reserved addresses `where`. Not for devices. */
enum lmcs_status lmcs_media_map_private(const struct lmcs_media *media, uint64_t offset, uint64_t bytes, void *where,
                                        struct lmcs_error *error);
/* Likewise, shared and read-only. */
enum lmcs_status lmcs_media_map_shared(const struct lmcs_media *media, uint64_t offset, uint64_t bytes, void *where,
                                       struct lmcs_error *error);

#endif
