/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pages/space.h - extents: where payloads lie.
 *
 * An extent is filled from its first byte to its last and never reused in part: what dies in it leaves a hole, whose
 * file space can be given back, and an extent in which nothing lives any more is filled anew. A *region* is a writer's
 * own set of open extents, so that captures and the compactor fill theirs side by side, and what is captured together
 * lies, and dies, together.
 */
#ifndef LMCS_PAGES_SPACE_H
#define LMCS_PAGES_SPACE_H

#include "pages/txn.h"

struct lmcs_space;

#define LMCS_REGION_EXTENTS 8
struct lmcs_region {
    struct lmcs_pool *pool;
    uint32_t purpose;
    bool leaves_share;            /* what the compactor needs to write to is not taken: set for purpose 0 */
    struct lmcs_extent **extents; /* claimed */
    size_t count;
    size_t capacity;
    uint64_t largest;  /* payload, as far as that is known */
    uint64_t expected; /* bytes that are still to be taken, as far as that is known */
};

enum lmcs_status lmcs_space_load(struct lmcs_pool *pool, struct lmcs_error *error);
void lmcs_space_free(struct lmcs_space *space);

void lmcs_region_init(struct lmcs_region *region, struct lmcs_pool *pool, uint32_t purpose);
/* Has it leave the compactor's share, as captures do. */
void lmcs_region_leave_share(struct lmcs_region *region);
/* Says how much is about to be taken, and for the largest part, so that extents of a fitting size come in one go. */
void lmcs_region_expect(struct lmcs_region *region, uint64_t bytes, uint64_t largest);
/* Room for a part of `bytes`, backed with file space. LMCS_FULL when there is none. */
enum lmcs_status lmcs_region_take(struct lmcs_region *region, uint64_t bytes, uint64_t *offset,
                                  struct lmcs_error *error);
/* Gives back the end of what was taken last: of the part at `offset`, all but the first `bytes`. */
void lmcs_region_shrink(struct lmcs_region *region, uint64_t offset, uint64_t bytes);
/* Notes in the transaction how far the region's extents are filled. */
enum lmcs_status lmcs_region_commit(struct lmcs_txn *txn, struct lmcs_region *region, struct lmcs_error *error);
/* Gives the extents back: what was taken and not committed is free again. */
void lmcs_region_end(struct lmcs_region *region);

/* LMCS_DAMAGED when a payload lies anywhere between two places, where the record of an object says that none does. */
enum lmcs_status lmcs_space_check_none(struct lmcs_txn *txn, uint64_t from, uint64_t end, struct lmcs_error *error);
/* A payload part of a content begins, or ceases, to be referred to. */
enum lmcs_status lmcs_space_add(struct lmcs_txn *txn, uint64_t offset, uint64_t bytes, uint64_t content,
                                struct lmcs_error *error);
enum lmcs_status lmcs_space_retire(struct lmcs_txn *txn, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
/* Takes up to `most` ranges that no reader needs any more off the retired list; *done gets how many. */
enum lmcs_status lmcs_space_release(struct lmcs_txn *txn, size_t most, size_t *done, struct lmcs_error *error);

/*
 * Gives file space back that nothing lives in, but for `keep` bytes of free extents that stay warm. An extent whose
 * record is not sound is left as it is, and the others have their turn: then LMCS_DAMAGED.
 */
enum lmcs_status lmcs_space_trim(struct lmcs_pool *pool, uint64_t keep, struct lmcs_error *error);
/* File space that trim(keep) would give back, about. */
uint64_t lmcs_space_waste(struct lmcs_pool *pool, uint64_t keep);
/* The next extent at or behind `from` of which little lives, and none of it is open: first and end of its used part. */
bool lmcs_space_sparse(struct lmcs_pool *pool, uint64_t from, uint64_t *first, uint64_t *end);
/* Bytes that can still be taken: under the limit, on the disk, and in extents that are free. */
uint64_t lmcs_space_free_bytes(struct lmcs_pool *pool);
/* Counts file space that live variables are about to take, if the limit and the disk have it. */
enum lmcs_status lmcs_space_charge(struct lmcs_pool *pool, uint64_t bytes, struct lmcs_error *error);
/* The same of what they have taken, or given back, already. */
void lmcs_space_count(struct lmcs_pool *pool, int64_t bytes);
/* Space of the disk that extents and live variables take. */
uint64_t lmcs_space_used(struct lmcs_pool *pool);

#endif
