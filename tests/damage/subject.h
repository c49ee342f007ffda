/* SPDX-License-Identifier: BSD-3-Clause */
/* subject.h - the pool to damage, and the place of everything. */
#ifndef LMCS_TEST_SUBJECT_H
#define LMCS_TEST_SUBJECT_H

#include "pages/txn.h"
#include "support.h"

enum { SNAPSHOTS = 7, MOST_PAYLOADS = 200, MOST_PAGES = 400, MOST_OBJECTS = 64 };
enum { TRAINED = 7, STEPS = 13, ARRAYS = 4 }; /* of the shelf "trained": snapshots, known steps, tensors */

struct payload {
    char tensor[64];
    uint64_t content;
    uint64_t offset, bytes; /* of a part */
    uint64_t at;            /* in the payload */
    uint64_t raw_bytes;     /* of the tensor */
    bool is_raw;
};

struct subject {
    char path[512];
    struct state *states[SNAPSHOTS]; /* run@1 to run@7; other@2 is states[3], other@1 was removed */
    struct state *big;               /* big@1: one tensor in an extent of its own */
    struct state *steps[STEPS];      /* trained@1 to trained@7 are the first ones */
    struct payload payloads[MOST_PAYLOADS];
    size_t payload_count;
    uint64_t pages[MOST_PAGES]; /* reachable */
    uint8_t kinds[MOST_PAGES];  /* enum lmcs_tree_kind */
    size_t page_count;
    uint64_t objects[MOST_OBJECTS]; /* ours of libpmemobj's */
    size_t object_count;
    uint64_t root, superblock, heap;
};

/*
 * Has shared, raw, compressed and delta contents, of one block and several, tags and metadata; and captured links, to
 * the newest snapshot, too: trained@4 is a keyframe in the line.
 */
struct subject *make_subject(const char *path);
void free_subject(struct subject *subject);

void file_read(const char *path, uint64_t at, void *data, size_t bytes);
void file_write(const char *path, uint64_t at, const void *data, size_t bytes);
void file_flip(const char *path, uint64_t at, unsigned bit);

extern const char *const array_names[ARRAYS];
/* Commits a step on the shelf "trained", half of them promised before the tensors are put. */
enum lmcs_status take_step(struct lmcs_pool *pool, const struct state *step, int64_t number);
/* Whether reading a content needs the payload of another one, or of its own. */
bool rests_on(struct lmcs_txn *txn, uint64_t content, uint64_t payload);

enum lmcs_status try_open(const char *path, enum lmcs_open_mode mode, struct lmcs_pool **pool);
/*
 * Reads run@first to run@7, other@2, trained@1 to trained@7, and big@1 if first is 1; readable bytes must be right.
 * Returns the unreadable tensors; UINT64_MAX: not opened.
 */
uint64_t read_tensor(struct lmcs_snapshot *snapshot, const struct held *held); /* 1: unreadable */
uint64_t read_what_is_left(const struct subject *subject, const char *path, uint64_t first);

#endif
