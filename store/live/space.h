/* SPDX-License-Identifier: BSD-3-Clause */
/* live/space.h - the space of live variables. Needs live->lock. */
#ifndef LMCS_LIVE_SPACE_H
#define LMCS_LIVE_SPACE_H

#include "live/ranges.h"
#include "live/record.h"

struct lmcs_live_freed {
    struct lmcs_range range;
    uint64_t backed; /* leading bytes with file space */
    uint64_t epoch;  /* of the commit that freed it */
    bool is_cell;
};
struct lmcs_live_space {
    struct lmcs_ranges pages; /* free, without file space */
    struct lmcs_ranges cells; /* free, on pages with it */
    struct lmcs_ranges old;   /* free pages whose punch failed: may have file space and old bytes */
    bool is_old;              /* any free page may be old (no memory) */
    struct lmcs_live_freed *freed;
    size_t freed_count;
    size_t freed_next; /* next to check, when there are too many */
    size_t freed_capacity;
    uint64_t object_bytes;
};

/*
 * Opening: begin enters all objects as free, use removes space of records and journals, end frees the rest's file
 * space.
 */
enum lmcs_status lmcs_live_space_begin(struct lmcs_pool *pool, struct lmcs_error *error);
/* Whether the bytes are in one object. Between begin and the first use. */
bool lmcs_live_space_has(const struct lmcs_pool *pool, uint64_t offset, uint64_t bytes);
enum lmcs_status lmcs_live_space_use(struct lmcs_pool *pool, const struct lmcs_live_record *record,
                                     struct lmcs_error *error);
enum lmcs_status lmcs_live_space_use_pages(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, uint64_t backed,
                                           struct lmcs_error *error);
enum lmcs_status lmcs_live_space_end(struct lmcs_pool *pool, struct lmcs_error *error);
void lmcs_live_space_free(struct lmcs_live_space *space);

/* Takes adjacent pages without file space. LMCS_FULL. */
enum lmcs_status lmcs_live_take(struct lmcs_pool *pool, uint64_t bytes, uint64_t *offset, struct lmcs_error *error);
/* Takes these pages. False: they are not free. */
bool lmcs_live_take_at(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes);
/* Gives pages back; they are reused once no reader needs them. The first `backed` bytes have file space. */
void lmcs_live_give(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, uint64_t backed);
/* Allocates file space and makes the pages zero; lmcs_live_unback frees it. */
enum lmcs_status lmcs_live_back(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
void lmcs_live_unback(struct lmcs_pool *pool, uint64_t offset, uint64_t bytes);
enum lmcs_status lmcs_live_take_cell(struct lmcs_pool *pool, uint32_t bytes, uint64_t *offset,
                                     struct lmcs_error *error);
void lmcs_live_give_cell(struct lmcs_pool *pool, uint64_t offset, uint32_t bytes);
/* Gives back space of `from` that `keep` lacks. Either may be NULL. */
void lmcs_live_give_difference(struct lmcs_pool *pool, const struct lmcs_live_record *from,
                               const struct lmcs_live_record *keep);

#endif
