/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * media/heap.h - a pool open for writing: the interface to libpmemobj.
 *
 * pmemobj_publish switches the root word together with the objects reserved and freed, in one atomic step.
 */
#ifndef LMCS_MEDIA_HEAP_H
#define LMCS_MEDIA_HEAP_H

#include "base/error.h"

struct lmcs_media;
struct lmcs_heap;

/* An action of a publish; opaque. */
struct lmcs_action {
    uint64_t opaque[16];
};
#define LMCS_MAX_ACTIONS 32 /* fits libpmemobj's log without growing it */

enum lmcs_write_method {
    LMCS_WRITE_FILE,   /* pwrite, then fdatasync */
    LMCS_WRITE_STORE,  /* non-temporal stores, then a fence: persistent memory, files in memory */
    LMCS_WRITE_LIBRARY /* libpmemobj copies, into every replica: poolsets */
};

/*
 * A file has a temporary name beside `path` until lmcs_heap_show; poolsets and devices are created in place.
 * `virtual_bytes`: size of the sparse file.
 */
enum lmcs_status lmcs_heap_create(const char *path, uint64_t virtual_bytes, struct lmcs_heap **heap,
                                  struct lmcs_error *error);
enum lmcs_status lmcs_heap_show(struct lmcs_heap *heap, struct lmcs_error *error);
/*
 * Returns the status of `look`, called while no process has the pool open for writing. *busy: another one has
 * libpmemobj's lock; not called. `lock_fd`: the file with that flock.
 */
typedef enum lmcs_status lmcs_heap_look(void *context, struct lmcs_error *error);
enum lmcs_status lmcs_heap_look_first(int lock_fd, lmcs_heap_look *look, void *context, bool *busy,
                                      struct lmcs_error *error);
/*
 * Opens for writing; waits up to wait_ms for another writer. Opens the very file that `look` accepted, even if another
 * has its name by now.
 */
enum lmcs_status lmcs_heap_open(const struct lmcs_media *media, uint32_t wait_ms, lmcs_heap_look *look, void *context,
                                struct lmcs_heap **heap, struct lmcs_error *error);
/* Removes a created pool that was not shown. */
void lmcs_heap_close(struct lmcs_heap *heap);
/* In a forked child: keeps the parent's addresses unused, because libpmemobj knows pools by address. */
void lmcs_heap_keep_place(const struct lmcs_heap *heap);
/* LMCS_IO: the file has no name any more, and ends with its last user, or it was cut short: a store there is SIGBUS. */
enum lmcs_status lmcs_heap_check_file(const struct lmcs_heap *heap, struct lmcs_error *error);

/* The path for reading: the pool's own, or the temporary one until shown. */
const char *lmcs_heap_path(const struct lmcs_heap *heap);
enum lmcs_write_method lmcs_heap_method(const struct lmcs_heap *heap);
bool lmcs_heap_is_persistent(const struct lmcs_heap *heap); /* stores reach a persistence domain, truly or forced */
bool lmcs_heap_is_forced(const struct lmcs_heap *heap);
bool lmcs_heap_can_punch(const struct lmcs_heap *heap);
/* UINT64_MAX: a device or a poolset. */
uint64_t lmcs_heap_disk_free(const struct lmcs_heap *heap);
/* *offset: the root object, created if needed. */
enum lmcs_status lmcs_heap_superblock(struct lmcs_heap *heap, uint64_t *offset, struct lmcs_error *error);
void *lmcs_heap_at(struct lmcs_heap *heap, uint64_t offset);

/* Announces an existing object: zone metadata near it is in use. */
void lmcs_heap_note(struct lmcs_heap *heap, uint64_t offset);
/* Reserves an object of at least `bytes`; *got: its size, whole chunks. Durable with publish. */
enum lmcs_status lmcs_heap_reserve(struct lmcs_heap *heap, uint64_t bytes, struct lmcs_action *action, uint64_t *offset,
                                   uint64_t *got, struct lmcs_error *error);
/* `bytes`: *got of its reservation. */
enum lmcs_status lmcs_heap_free(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, struct lmcs_action *action,
                                struct lmcs_error *error);
void lmcs_heap_cancel(struct lmcs_heap *heap, struct lmcs_action *actions, size_t count);
/* Performs at most LMCS_MAX_ACTIONS actions and *(u64 at word_offset) = word in one atomic, durable step. */
enum lmcs_status lmcs_heap_publish(struct lmcs_heap *heap, struct lmcs_action *actions, size_t count,
                                   uint64_t word_offset, uint64_t word, struct lmcs_error *error);

/* Allocates file space, so that stores can't fail. LMCS_FULL: disk. */
enum lmcs_status lmcs_heap_back(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
/*
 * Makes the first stores to whole, backed pages that hold nothing of value cheap: pages come into the mapping. Writes
 * to a file need nothing more than its blocks. False: impossible.
 */
bool lmcs_heap_warm(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes);
/*
 * Turns whole pages into holes of zeros, or does nothing where impossible (lmcs_heap_can_punch). False: refused this
 * time, as by full file systems; the bytes may remain.
 */
bool lmcs_heap_punch(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes);

/* Durable after lmcs_heap_drain (by the same thread) and lmcs_heap_sync. */
enum lmcs_status lmcs_heap_write(struct lmcs_heap *heap, uint64_t offset, const void *data, uint64_t bytes,
                                 struct lmcs_error *error);
void lmcs_heap_drain(struct lmcs_heap *heap);
/* Does not wait. */
void lmcs_heap_start_writeback(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes);
/* Bytes stored to lmcs_heap_at (reserve and fill) become durable with the next sync. */
void lmcs_heap_flush(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes);
/* Maps whole pages, writable, at reserved addresses: shared, or copy on write. Files only. */
enum lmcs_status lmcs_heap_map(struct lmcs_heap *heap, uint64_t offset, uint64_t bytes, void *where, bool private_pages,
                               struct lmcs_error *error);
/* Makes stores to such addresses or to lmcs_heap_at durable. */
enum lmcs_status lmcs_heap_persist(struct lmcs_heap *heap, const void *at, uint64_t bytes, struct lmcs_error *error);
enum lmcs_status lmcs_heap_sync(struct lmcs_heap *heap, struct lmcs_error *error);
/* errno of the first failed sync, or 0. Every later sync and publish fails; to write again, reopen the pool. */
int lmcs_heap_failure(const struct lmcs_heap *heap);
enum lmcs_status lmcs_heap_check_syncs(const struct lmcs_heap *heap, struct lmcs_error *error);

#endif
