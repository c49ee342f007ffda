/* SPDX-License-Identifier: BSD-3-Clause */
/* subject.h - the pool to damage, and the place of everything. */
#ifndef LMCS_TEST_SUBJECT_H
#define LMCS_TEST_SUBJECT_H

#include "support.h"

enum { SNAPSHOTS = 7, MOST_PAYLOADS = 200, MOST_PAGES = 400, MOST_OBJECTS = 64 };

struct payload {
    char tensor[64];
    uint64_t offset, bytes; /* of a part */
    uint64_t at;            /* in the payload */
    uint64_t raw_bytes;     /* of the tensor */
    bool is_raw;
};

struct subject {
    char path[512];
    struct state *states[SNAPSHOTS]; /* run@1 to run@7; other@2 is states[3], other@1 was removed */
    struct state *big;               /* big@1: one tensor in an extent of its own */
    struct payload payloads[MOST_PAYLOADS];
    size_t payload_count;
    uint64_t pages[MOST_PAGES]; /* reachable */
    uint8_t kinds[MOST_PAGES];  /* enum lmcs_tree_kind */
    size_t page_count;
    uint64_t objects[MOST_OBJECTS]; /* ours of libpmemobj's */
    size_t object_count;
    uint64_t root, superblock, heap;
};

/* Has shared, raw, compressed and delta contents, of one block and several, tags and metadata. */
struct subject *make_subject(const char *path);
void free_subject(struct subject *subject);

void file_read(const char *path, uint64_t at, void *data, size_t bytes);
void file_write(const char *path, uint64_t at, const void *data, size_t bytes);
void file_flip(const char *path, uint64_t at, unsigned bit);

enum lmcs_status try_open(const char *path, enum lmcs_open_mode mode, struct lmcs_pool **pool);
/*
 * Reads run@first to run@7, other@2, and big@1 if first is 1; readable bytes must be right. Returns the unreadable
 * tensors; UINT64_MAX: not opened.
 */
uint64_t read_what_is_left(const struct subject *subject, const char *path, uint64_t first);

#endif
