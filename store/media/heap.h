/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/heap.h - the pool as libpmemobj has it: the one door to that library.
 *
 * The store asks it for large objects (slabs of pages, extents of payloads), writes into them, and switches its root
 * word together with what it reserved and freed: pmemobj_publish makes that one atomic step.
 */
#ifndef LMCS_MEDIA_HEAP_H
#define LMCS_MEDIA_HEAP_H

#include "base/error.h"

struct lmcs_media;
struct lmcs_heap; /* a pool open for writing */

/* Something that publish will do; libpmemobj's own words. */
struct lmcs_action {
    uint64_t opaque[16];
};
#define LMCS_MAX_ACTIONS 32 /* of a publish: what fits libpmemobj's log without growing it */

enum lmcs_write_method {
    LMCS_WRITE_FILE,   /* pwrite, then fdatasync */
    LMCS_WRITE_STORE,  /* non-temporal stores, then a fence: persistent memory, and files in memory */
    LMCS_WRITE_LIBRARY /* libpmemobj copies, into every replica: poolsets */
};

/*
 * Makes a pool. A file is made under a name beside `path` and appears there with lmcs_heap_show; poolsets and
 * devices are made in place. `virtual_bytes`: the size that a sparse file gets.
 */
enum lmcs_status lmcs_heap_create(const char *path, uint64_t virtual_bytes, struct lmcs_heap **heap,
                                  struct lmcs_error *error);
enum lmcs_status lmcs_heap_show(struct lmcs_heap *heap, struct lmcs_error *error);
/*
 * Calls `look` while nobody writes, and gives what it gives; *busy: somebody has libpmemobj's lock, and it was not
 * called. `lock_fd`: of the file whose flock that is.
 */
typedef enum lmcs_status lmcs_heap_look(void *context, struct lmcs_error *error);
enum lmcs_status lmcs_heap_look_first(int lock_fd, lmcs_heap_look *look, void *context, bool *busy,
                                      struct lmcs_error *error);
/*
 * Opens the pool of `media` for writing, waiting up to wait_ms for another writer to go. libpmemobj sees it if the look
 * is well, and then the very file that was looked at, even if another stands in its place by now.
 */
enum lmcs_status lmcs_heap_open(const struct lmcs_media *media, uint32_t wait_ms, lmcs_heap_look *look, void *context,
                                struct lmcs_heap **heap, struct lmcs_error *error);
/* Ends it; a pool that was created and never shown is removed. */
void lmcs_heap_close(struct lmcs_heap *heap);
/*
 * In a forked child, of its parent's: keeps the addresses empty. libpmemobj still knows that pool by its address, and
 * refuses another one that the kernel would map there.
 */
void lmcs_heap_keep_place(const struct lmcs_heap *heap);
/* Fails when the file has no name any more: what is written to it is lost when it is closed. */
enum lmcs_status lmcs_heap_check_name(const struct lmcs_heap *heap, struct lmcs_error *error);

/* Where it can be opened for reading now: its path, or until it is shown the temporary one. */
const char *lmcs_heap_path(const struct lmcs_heap *heap);
enum lmcs_write_method lmcs_heap_method(const struct lmcs_heap *heap);
bool lmcs_heap_is_persistent(const struct lmcs_heap *heap); /* stores reach a persistence domain, truly or forced */
bool lmcs_heap_is_forced(const struct lmcs_heap *heap);
bool lmcs_heap_can_punch(const struct lmcs_heap *heap);
/* Bytes that may still be allocated on the disk below (UINT64_MAX: not a matter of the disk). */
uint64_t lmcs_heap_disk_free(const struct lmcs_heap *heap);
/* Offset of the root object, made if need be. */
enum lmcs_status lmcs_heap_superblock(struct lmcs_heap *heap, uint64_t *offset, struct lmcs_error *error);
void *lmcs_heap_at(struct lmcs_heap *heap, uint64_t offset);

/* Tells of an object that is there, so that the heap's own metadata near it is known to be in use. */
void lmcs_heap_note(struct lmcs_heap *heap, uint64_t offset);
/* Reserves an object of about `bytes` (exactly what fills whole chunks: see *got); nothing is durable until publish. */
enum lmcs_status lmcs_heap_reserve(struct lmcs_heap *heap, uint64_t bytes, struct lmcs_action *action, uint64_t *offset,
                                   uint64_t *got, struct lmcs_error *error);
/* `bytes`: what reserve gave as *got. */
void lmcs_heap_free(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, struct lmcs_action *action);
void lmcs_heap_cancel(struct lmcs_heap *heap, struct lmcs_action *actions, size_t count);
/* All the actions and *(u64 at word_offset) = word, atomically and durably. At most LMCS_MAX_ACTIONS actions. */
enum lmcs_status lmcs_heap_publish(struct lmcs_heap *heap, struct lmcs_action *actions, size_t count,
                                   uint64_t word_offset, uint64_t word, struct lmcs_error *error);

/* Backs a range with file space: a write to it can't fail for lack of it. LMCS_FULL when the disk has none. */
enum lmcs_status lmcs_heap_back(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
/*
 * Gives the file space of whole pages back, which then are zeros; where that can never be done (lmcs_heap_can_punch)
 * nothing happens. False: it was refused this time, as file systems do when they are full, and the bytes may still be
 * there.
 */
bool lmcs_heap_punch(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes);

/* Writes bytes; durable after lmcs_heap_drain (of the thread that wrote) and lmcs_heap_sync. */
enum lmcs_status lmcs_heap_write(struct lmcs_heap *heap, uint64_t offset, const void *data, uint64_t bytes,
                                 struct lmcs_error *error);
void lmcs_heap_drain(struct lmcs_heap *heap);
/* Starts writing a range to the disk, without waiting. */
void lmcs_heap_start_writeback(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes);
/* What was stored to lmcs_heap_at by someone else (reserve and fill) becomes durable with the next sync. */
void lmcs_heap_flush(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes);
/* Maps whole pages, writable, at an address that the caller has reserved: shared, or copy on write. Files only. */
enum lmcs_status lmcs_heap_map(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, void *where, bool private_pages,
                               struct lmcs_error *error);
/* Makes what was stored to such an address, or to lmcs_heap_at, durable. */
enum lmcs_status lmcs_heap_persist(struct lmcs_heap *heap, const void *at, uint64_t bytes, struct lmcs_error *error);
enum lmcs_status lmcs_heap_sync(struct lmcs_heap *heap, struct lmcs_error *error);
/*
 * After a sync that failed each further one fails, as does publish, whoever makes it: what was written before it may be
 * lost, and the kernel does not say so twice. To write again, the pool is closed and opened. errno of it, or 0.
 */
int lmcs_heap_failure(const struct lmcs_heap *heap);
enum lmcs_status lmcs_heap_check_syncs(const struct lmcs_heap *heap, struct lmcs_error *error);

#endif
