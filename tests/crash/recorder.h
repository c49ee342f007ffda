/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * recorder.h - records stores, flushes, fences and syncs in order.
 *
 * A library before libpmem and libc in symbol lookup. It finds stores by comparison: a range when flushed, all of the
 * file before each fence. While recording, its clock advances a millisecond per reading, so one thread's calls repeat
 * exactly.
 */
#ifndef LMCS_CRASH_RECORDER_H
#define LMCS_CRASH_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_LINE 64u                  /* unit of stores */
#define RECORD_SPAN ((uint64_t)16 << 30) /* of a recorded file, at most */

enum record_medium {
    RECORD_DAX, /* libpmem's flushes and fences, by line; needs PMEM_IS_PMEM_FORCE=1 */
    RECORD_FILE /* msync, fdatasync and fsync, by page; the file seems to be on ext4 */
};

enum record_kind {
    RECORD_STORE, /* `data`: whole lines */
    RECORD_FLUSH, /* durable after the thread's next fence */
    RECORD_FENCE,
    RECORD_SYNC,    /* durable */
    RECORD_PUNCH,   /* space is to be returned; changes follow as stores, then ... */
    RECORD_PUNCHED, /* ... it is gone */
    RECORD_BACK,    /* space was allocated */
    RECORD_SHOWN,   /* the file got its requested path */
    RECORD_MARK     /* `offset` and `bytes`: arguments of recorder_mark */
};

struct record_event {
    uint32_t kind;
    uint32_t thread;
    uint64_t offset;
    uint64_t bytes;
    uint64_t data; /* RECORD_STORE: in struct record's data */
};

struct record {
    const struct record_event *events;
    size_t count;
    const unsigned char *data;
};

/* Records the next mapped file whose path begins with `path` (creation uses a longer name). */
void recorder_begin(const char *path, enum record_medium medium);
void recorder_mark(uint64_t what, uint64_t value);
/* Valid until the next recorder_begin. */
struct record recorder_end(void);

/* Omits every `every`th flush, fence or sync by libpmemobj in later recordings; 0: none. */
enum recorder_loss { RECORDER_LOSES_FLUSHES, RECORDER_LOSES_FENCES, RECORDER_LOSES_SYNCS };
void recorder_lose(enum recorder_loss what, uint64_t every);

#endif
