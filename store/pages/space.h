/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/space.h - extents: the places of payloads (SPACE.md).
 *
 * A *region* is a writer's own set of open extents: bytes captured together die together.
 */
#ifndef LMCS_PAGES_SPACE_H
#define LMCS_PAGES_SPACE_H

#include "pages/txn.h"

struct lmcs_space;

#define LMCS_REGION_EXTENTS 8
struct lmcs_region {
    struct lmcs_pool *pool;
    uint32_t purpose;
    bool leaves_share;            /* the compactor's share of space: set for purpose 0 */
    bool prepares;                /* lmcs_space_prepare's own */
    bool is_counted;              /* in space->taking */
    struct lmcs_extent **extents; /* claimed */
    size_t count;
    size_t capacity;
    uint64_t largest;  /* as far as known */
    uint64_t expected; /* bytes still to be taken, as far as known */
};

/* Reads a record from its tree value. LMCS_UNSUPPORTED: kind or purpose of a newer version. */
enum lmcs_status lmcs_object_read(struct lmcs_pool *pool, uint64_t offset, const void *value, size_t bytes,
                                  struct lmcs_object_df *df, struct lmcs_error *error);
enum lmcs_status lmcs_space_load(struct lmcs_pool *pool, struct lmcs_error *error);
void lmcs_space_free(struct lmcs_space *space);

void lmcs_region_init(struct lmcs_region *region, struct lmcs_pool *pool, uint32_t purpose);
/* Makes the region leave the compactor's share, as captures do. */
void lmcs_region_leave_share(struct lmcs_region *region);
/* Announces bytes to be taken and the largest payload, so that extents fit. */
void lmcs_region_expect(struct lmcs_region *region, uint64_t bytes, uint64_t largest);
/* Takes backed room for a part. LMCS_FULL. */
enum lmcs_status lmcs_region_take(struct lmcs_region *region, uint64_t bytes, uint64_t *offset,
                                  struct lmcs_error *error);
/* Gives back all but the first `bytes` of the part taken last. */
void lmcs_region_shrink(struct lmcs_region *region, uint64_t offset, uint64_t bytes);
/* Records how far its extents are filled. */
enum lmcs_status lmcs_region_commit(struct lmcs_txn *txn, struct lmcs_region *region, struct lmcs_error *error);
/* Ends a region; its uncommitted room is free again. */
void lmcs_region_end(struct lmcs_region *region);

/* Expects that the next capture takes as much room as the region, about to be committed. */
void lmcs_space_expect_again(const struct lmcs_region *region);
/* Expects a next capture of `bytes`; 0: nothing is known, and nothing is prepared. */
void lmcs_space_expect(struct lmcs_pool *pool, uint64_t bytes);
/* Bytes expected; 0: unknown. */
uint64_t lmcs_space_expected(struct lmcs_pool *pool);
/*
 * Prepares space for the expected capture, if that is still to be done, in steps, until go_on returns false or a
 * capture takes space; another call continues. No lock is held meanwhile.
 */
enum lmcs_status lmcs_space_prepare(struct lmcs_pool *pool, bool (*go_on)(void *context), void *context,
                                    struct lmcs_error *error);
/* Gives prepared space back that no region took. */
enum lmcs_status lmcs_space_give_back(struct lmcs_pool *pool, struct lmcs_error *error);

/* LMCS_DAMAGED: a payload is in a range that an object's record declares free. */
enum lmcs_status lmcs_space_check_none(struct lmcs_txn *txn, uint64_t from, uint64_t end, struct lmcs_error *error);
/* Records that a part of a content begins (add) or ceases (retire) to be referred to. */
enum lmcs_status lmcs_space_add(struct lmcs_txn *txn, uint64_t offset, uint64_t bytes, uint64_t content,
                                struct lmcs_error *error);
enum lmcs_status lmcs_space_retire(struct lmcs_txn *txn, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
/* Releases up to `most` retired ranges that no reader needs; *done: how many. */
enum lmcs_status lmcs_space_release(struct lmcs_txn *txn, size_t most, size_t *done, struct lmcs_error *error);

/*
 * Gives back file space without live payloads, but keeps `keep` bytes of free extents. LMCS_DAMAGED, at the end:
 * extents with unsound records were skipped.
 */
enum lmcs_status lmcs_space_trim(struct lmcs_pool *pool, uint64_t keep, struct lmcs_error *error);
/* About the bytes that lmcs_space_trim(keep) would give back. */
uint64_t lmcs_space_waste(struct lmcs_pool *pool, uint64_t keep);
/* The next sparse extent from `from` on that no region has: *first to *end are used. */
bool lmcs_space_sparse(struct lmcs_pool *pool, uint64_t from, uint64_t *first, uint64_t *end);
/* The space that the pool's medium has addresses for. */
uint64_t lmcs_space_most(const struct lmcs_pool *pool);
/* The root's limit, at most lmcs_space_most. */
uint64_t lmcs_space_limit(const struct lmcs_pool *pool, const struct lmcs_root_df *root);
/* Bytes for captures: under the limit, on the disk, in free extents. */
uint64_t lmcs_space_free_bytes(struct lmcs_pool *pool);
/* Counts file space that live variables are about to take. LMCS_FULL: limit or disk. */
enum lmcs_status lmcs_space_charge(struct lmcs_pool *pool, uint64_t bytes, struct lmcs_error *error);
/* Counts bytes taken or (negative) given back by live variables. */
void lmcs_space_count(struct lmcs_pool *pool, int64_t bytes);
/* File space of extents and live variables, in bytes. */
uint64_t lmcs_space_used(struct lmcs_pool *pool);

#endif
