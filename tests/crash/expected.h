/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * expected.h - the state that a pool must have after a power failure.
 *
 * Each numbered operation takes a shelf (a restore: several) to its next version, or changes nothing visible.
 * Afterwards each shelf must have, bit for bit, its version after the last acknowledged operation or a later begun one.
 * The pool's limit is a shelf named "".
 */
#ifndef LMCS_CRASH_EXPECTED_H
#define LMCS_CRASH_EXPECTED_H

#include "support.h"

#define MOST_SNAPSHOTS 40
#define MOST_TAGS      12
#define MOST_TENSORS   10
#define MOST_SHELVES   10
#define MOST_PREPARED  3
#define MOST_LIVE      6
#define LIVE_SHELF     "vars"  /* the shelf with live variables ... */
#define LIVE_STATE     "=vars" /* ... whose state is a shelf of its own */

/* Immutable; never freed: versions share them. */
struct expected_tensor {
    char name[24];
    uint32_t kind;
    uint32_t dtype;
    uint32_t ndim;
    uint64_t shape[2];
    uint64_t bytes;
    const unsigned char *data;
    struct lmc_hash digest;
};

struct expected_snapshot {
    uint64_t number;
    int64_t step;
    uint64_t time_ns;
    uint64_t parent;
    double loss; /* negative: no metric */
    char meta[1600];
    unsigned char group[16];
    char tag[16]; /* of a prepared one, for its group's decision; "": none */
    struct expected_tensor tensors[MOST_TENSORS];
    size_t count;
};

struct expected_tag {
    char tag[16];
    uint64_t number;
};

/*
 * Immutable, never freed; a tensor is f32 in one dimension. `mixed` is stored, not persisted: each word of 8 bytes may
 * be of either.
 */
struct expected_live {
    char name[12];
    bool is_value;
    uint64_t bytes;
    const unsigned char *data;
    const unsigned char *mixed;
};

struct shelf_version {
    uint64_t operation; /* 0: present at the beginning */
    bool exists;
    uint32_t keep_raw;
    uint64_t next_number;
    uint64_t limit;         /* of the pool: "" only */
    uint64_t origin_number; /* snapshot of origin; 0: no fork */
    char origin_shelf[16];
    const struct expected_snapshot *snapshots[MOST_SNAPSHOTS];
    size_t snapshot_count;
    uint64_t remote; /* the snapshot that left the pool; 0: none */
    const struct expected_snapshot *prepared[MOST_PREPARED];
    size_t prepared_count;
    struct expected_tag tags[MOST_TAGS];
    size_t tag_count;
    struct expected_live live[MOST_LIVE]; /* of LIVE_STATE only */
    size_t live_count;
};

struct expected_shelf {
    char name[16];
    struct shelf_version *versions;
    size_t count;
    size_t capacity;
};

/* Operations that may leave repairable damage until acknowledged. */
#define EXPECTED_REPAIR      "scrub repair"
#define EXPECTED_REPAIR_LEFT "scrub repair of what is left"

struct expected_operation {
    char words[160];
    bool begun; /* as of a point: */
    bool acknowledged;
};

struct expected {
    struct expected_shelf shelves[MOST_SHELVES];
    size_t shelf_count;
    struct expected_operation *operations;
    size_t operation_count;
    size_t operation_capacity;
};

struct expected *expected_new(void);
void expected_free(struct expected *expected);
uint64_t expected_operation(struct expected *expected, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The first version has no shelf. */
struct shelf_version *expected_newest(struct expected *expected, const char *shelf);
struct shelf_version *expected_next(struct expected *expected, const char *shelf, uint64_t operation);
void expected_least(const struct expected *expected, size_t least[MOST_SHELVES]);
/*
 * For a run from an image with these versions after recovery: until operation 1, the open, is acknowledged, a reader
 * may see older ones.
 */
struct expected *expected_from(const struct expected *expected, const size_t least[MOST_SHELVES],
                               const size_t found[MOST_SHELVES]);

void expected_digest(struct expected_tensor *tensor);
/* In the order of numbers. */
void expected_add(struct shelf_version *version, const struct expected_snapshot *snapshot);
void expected_put_tag(struct shelf_version *version, const char *tag, uint64_t number);
void expected_drop_tag(struct shelf_version *version, const char *tag);

/*
 * Checks structure, all bytes, then the shelves, whose versions go to `found`. False: `why` describes the error.
 * Resolves prepared snapshots if open for writing.
 */
bool expected_check(const struct expected *expected, struct lmcs_pool *pool, size_t found[MOST_SHELVES], char *why,
                    size_t why_bytes);
/* Compares file space with the records of extents and slabs; `exactly`: no more. */
bool expected_space(struct lmcs_pool *pool, bool exactly, char *why, size_t why_bytes);

#endif
