/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * capture/memory.h - the memory state: the bytes of a shelf's newest snapshot in this process's memory.
 *
 * A capture that makes links copies tensors into buffers, and keeps these after its commit, so that the next capture
 * has the arrays before its step. Only the thread that holds the shelf, or the commit of its capture, uses the shelf's
 * memory state.
 */
#ifndef LMCS_CAPTURE_MEMORY_H
#define LMCS_CAPTURE_MEMORY_H

#include "records/busy.h"

struct lmcs_memory_item {
    uint64_t content; /* id */
    uint64_t bytes;
    void *data;
};

struct lmcs_memory {
    struct lmcs_memory_item *items; /* ascending by content */
    size_t count;
    struct lmcs_memory_item *spare; /* buffers of an earlier state, for the next capture */
    size_t spare_count, spare_capacity;
};

/* Takes a buffer, aligned to 64 bytes. NULL: beyond the pool's bound of memory (other shelves' states are freed first),
 * or no memory. */
void *lmcs_memory_take(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy, uint64_t bytes);
void lmcs_memory_give(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy, void *data, uint64_t bytes);
/* The bytes of a content in the shelf's memory state; NULL: not there. */
const void *lmcs_memory_find(const struct lmcs_busy_shelf *busy, uint64_t content, uint64_t bytes);
/* Takes the buffer of a content, which must be there, out of the memory state. Threads may take different ones. */
void *lmcs_memory_steal(struct lmcs_busy_shelf *busy, uint64_t content);
/* Replaces the shelf's memory state by `items`, whose buffers it owns then; buffers of the old state that are not among
 * them become spare. Several items may have one content. Without memory for the list, all are freed. */
void lmcs_memory_set(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy, const struct lmcs_memory_item *items,
                     size_t count);
void lmcs_memory_drop(struct lmcs_pool *pool, struct lmcs_busy_shelf *busy);
/* Frees all memory states, at close. */
void lmcs_memory_free(struct lmcs_pool *pool);
/* Bytes of all buffers. */
uint64_t lmcs_memory_bytes(struct lmcs_pool *pool);

#endif
