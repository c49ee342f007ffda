/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recorder.h - a record of the stores, flushes, fences, syncs, in their order.
 *
 * A shared library that stands before libpmem and libc where symbols are looked up, so that every call of libpmem's by
 * the store and by libpmemobj, and every system call that writes to the file, passes through it. Stores are seen as
 * differences: a flushed range is compared with its last content at once, all of the file before each fence.
 * Between recorder_begin and recorder_end the clock is its own too (a millisecond later with each look), so that the
 * same calls by one thread make the same record.
 */
#ifndef LMCS_CRASH_RECORDER_H
#define LMCS_CRASH_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_LINE 64u                  /* bytes; stores are recorded by lines of the cache */
#define RECORD_SPAN ((uint64_t)16 << 30) /* of a file that is recorded, at most */

enum record_medium {
    RECORD_DAX, /* libpmem's flushes and fences make durable, by line (PMEM_IS_PMEM_FORCE=1 must be set) */
    RECORD_FILE /* msync, fdatasync and fsync make durable, by page; the file seems to lie on ext4 */
};

enum record_kind {
    RECORD_STORE,   /* `data` is there now: at least one line, whole lines */
    RECORD_FLUSH,   /* by `thread`: its content now is durable after that thread's next fence */
    RECORD_FENCE,   /* by `thread` */
    RECORD_SYNC,    /* its content now is durable */
    RECORD_PUNCH,   /* file space is about to be given back; the changes follow as stores, and then ... */
    RECORD_PUNCHED, /* ... it is gone */
    RECORD_BACK,    /* file space was allocated */
    RECORD_SHOWN,   /* the file got the path that was asked for */
    RECORD_MARK     /* recorder_mark: `offset` and `bytes` are its arguments */
};

struct record_event {
    uint32_t kind;
    uint32_t thread;
    uint64_t offset;
    uint64_t bytes;
    uint64_t data; /* RECORD_STORE: offset in struct record's data */
};

struct record {
    const struct record_event *events;
    size_t count;
    const unsigned char *data;
};

/* Recorded is the file whose path begins with `path` (a pool is made under a longer name) and that is mapped next. */
void recorder_begin(const char *path, enum record_medium medium);
void recorder_mark(uint64_t what, uint64_t value);
/* The record is valid until the next recorder_begin. */
struct record recorder_end(void);

/*
 * Loses durability on purpose, to see that it is missed: from the next recorder_begin on every `every`th flush, fence
 * or sync by a function of libpmemobj is not recorded. 0: none.
 */
enum recorder_loss { RECORDER_LOSES_FLUSHES, RECORDER_LOSES_FENCES, RECORDER_LOSES_SYNCS };
void recorder_lose(enum recorder_loss what, uint64_t every);

#endif
