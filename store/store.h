/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * store.h - an open pool: what the modules of the store share.
 *
 * Locks, in the order in which they are taken (a thread that holds a later one takes no earlier one):
 *   shelf->busy    a capture has its shelf from begin until it is durable
 *   meta           the root and the volatile tables of space: read, compute and publish are one step under it
 *   pins           what views hold in place (lease.c)
 *   page cache     a few instructions
 * Copying, hashing, encoding and decoding happen outside of all of them but `busy`.
 */
#ifndef LMCS_STORE_H
#define LMCS_STORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "error.h"
#include "layout.h"
#include "lease.h"
#include "media.h"
#include "pool.h"
#include "txn.h"
#include "workers.h"

struct lmcs_space;
struct lmcs_compactor;
struct lmcs_busy_shelf;

/* A page that may be written to again. */
struct lmcs_free_page {
    uint64_t epoch; /* from which on nothing reaches it */
    uint64_t offset;
    uint64_t left; /* pages of its range, which is an entry of the tree of free pages, from this one on */
};

struct lmcs_pool {
    struct lmcs_pool *next; /* in the registry of this process */
    unsigned opens;
    pid_t pid;
    dev_t device;
    ino_t inode;
    char *path;
    bool writable;
    uint32_t flags;
    uint32_t thread_count;
    struct lmcs_media *media;
    struct lmcs_heap *heap; /* NULL: reading only */
    struct lmcs_lease *lease;
    struct lmcs_page_cache *cache;
    struct lmcs_workers *workers;

    pthread_rwlock_t meta;
    struct lmcs_root_df root; /* the newest committed, of a writer */
    struct lmcs_superblock_df superblock;
    struct lmcs_free_page *avail; /* the first ones of the tree of free pages, one by one */
    size_t avail_count;
    size_t avail_capacity;
    struct lmcs_space *space; /* of a writer */
    uint64_t lineage;         /* for the next restore */

    pthread_mutex_t captures; /* guards the list and what hangs on it */
    pthread_cond_t captures_changed;
    struct lmcs_busy_shelf *busy; /* shelves that this process has used */
    struct lmcs_compactor *compactor;
    atomic_uint copying; /* captures that copy at this moment: the compactor holds still */
    uint64_t part_bytes; /* the largest part of a payload; less than libpmemobj's 16 GiB */
};

/* Fails in a forked child, whose pool is its parent's. */
enum lmcs_status lmcs_pool_check(const struct lmcs_pool *pool, bool to_write, struct lmcs_error *error);
/* Whether a writer that opened the pool now would be let in; LMCS_OK also while somebody else writes. */
enum lmcs_status lmcs_pool_look(const char *path, struct lmcs_error *error);

uint64_t lmcs_now_ns(void);

#endif
