/* SPDX-License-Identifier: BSD-3-Clause */
/* media/heap_private.h - a pool open for writing, for heap.c and heap_open.c alone. */
#ifndef LMCS_MEDIA_HEAP_PRIVATE_H
#define LMCS_MEDIA_HEAP_PRIVATE_H

#include <libpmemobj.h>
#include <pthread.h>
#include <stdatomic.h>

#include "media/heap.h"
#include "media/writeback.h"

struct lmcs_heap {
    PMEMobjpool *pool;
    struct lmcs_media *media; /* to see whether its files are cut short; NULL: being created */
    char *path;
    char *shown_path; /* NULL once shown */
    int fd;           /* for pwrite, fallocate; -1: poolset, device */
    int map_fd;       /* another description, for our mappings: errors are reported for each */
    uint64_t bytes;   /* mapped by libpmemobj; 0: unknown */
    uint64_t zones_start;
    uint64_t zones_backed; /* with file space for metadata */
    uint64_t highest;      /* our highest object */
    enum lmcs_write_method method;
    struct lmcs_writeback *writeback; /* with LMCS_WRITE_FILE */
    bool persistent;
    bool forced;
    bool dax; /* a file */
    atomic_bool can_punch;
    atomic_int failure;         /* errno of the first failed sync, or 0 */
    pthread_mutex_t syncing;    /* held during a sync of `fd` until its failure is recorded ... */
    pthread_mutex_t persisting; /* ... and during one of `map_fd` */
};

/* libpmemobj ends the process at an error of an earlier write. */
enum lmcs_status lmcs_heap_take_errors(struct lmcs_heap *heap, struct lmcs_error *error);

#endif
