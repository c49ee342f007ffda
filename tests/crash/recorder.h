/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recorder.h - records stores, flushes, fences and syncs in their order.
 *
 * A shared library that precedes libpmem and libc in symbol lookup, so all their flushes and writes to the file pass
 * through it. It finds stores by comparison: a range when flushed, all of the file before each fence. Between
 * recorder_begin and recorder_end it also advances the clock a millisecond per reading, so one thread's calls repeat
 * exactly.
 */
#ifndef LMCS_CRASH_RECORDER_H
#define LMCS_CRASH_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_LINE 64u                  /* bytes of a cache line, the unit of stores */
#define RECORD_SPAN ((uint64_t)16 << 30) /* of a recorded file, at most */

enum record_medium {
    RECORD_DAX, /* libpmem's flushes and fences make lines durable; needs PMEM_IS_PMEM_FORCE=1 */
    RECORD_FILE /* msync, fdatasync and fsync make pages durable; the file seems to be on ext4 */
};

enum record_kind {
    RECORD_STORE, /* `data` was stored: whole lines */
    RECORD_FLUSH, /* by `thread`: the content is durable after its next fence */
    RECORD_FENCE,
    RECORD_SYNC,    /* the content is durable */
    RECORD_PUNCH,   /* file space is about to be returned; the changes follow as stores, then ... */
    RECORD_PUNCHED, /* ... it is gone */
    RECORD_BACK,    /* file space was allocated */
    RECORD_SHOWN,   /* the file got its requested path */
    RECORD_MARK     /* recorder_mark with arguments `offset` and `bytes` */
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

/* Records the next mapped file whose path begins with `path` (a pool is made under a longer name). */
void recorder_begin(const char *path, enum record_medium medium);
void recorder_mark(uint64_t what, uint64_t value);
/* Valid until the next recorder_begin. */
struct record recorder_end(void);

/* From the next recorder_begin on, omits every `every`th flush, fence or sync by a function of libpmemobj; 0: none. */
enum recorder_loss { RECORDER_LOSES_FLUSHES, RECORDER_LOSES_FENCES, RECORDER_LOSES_SYNCS };
void recorder_lose(enum recorder_loss what, uint64_t every);

#endif
