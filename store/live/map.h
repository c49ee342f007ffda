/* SPDX-License-Identifier: BSD-3-Clause */
/* live/map.h - the addresses of live tensors. */
#ifndef LMCS_LIVE_MAP_H
#define LMCS_LIVE_MAP_H

#include "live/body.h"

/* ---- Inherited mappings (fork.c) ---- */

struct lmcs_mapped {
    uint64_t at;
    uint64_t bytes;
    uint64_t place; /* in the pool */
};
struct lmcs_mapping {
    struct lmcs_mapping *next;
    char *at;
    uint64_t bytes;
    struct lmcs_lease *lease;
    struct lmcs_mapped *pages; /* mapped, or about to be */
    size_t page_count;
    size_t page_capacity;
    struct lmcs_mapping *next_known;
    struct lmcs_mapping **at_known;
};

/* Adds it to the process's list. */
void lmcs_mapping_enter(struct lmcs_mapping *mapping);
/* Also removes it from that list and frees it. */
void lmcs_mapping_unmap(struct lmcs_mapping *mapping);
/* Records pages before they are mapped. False: no memory. */
bool lmcs_mapping_add_pages(struct lmcs_mapping *mapping, struct lmcs_mapped pages);
/* Forgets pages between `from` and `end`, where `now` (NULL: nothing of the pool) is mapped. */
void lmcs_mapping_drop_pages(struct lmcs_mapping *mapping, uint64_t from, uint64_t end, const struct lmcs_mapped *now);

/* ---- Addresses (map.c) ---- */

/* The place of byte `offset` of a tensor. Reduces *bytes to those that follow it there. */
uint64_t lmcs_live_place(const struct lmcs_live_record *record, uint64_t offset, uint64_t *bytes);
/*
 * Maps a tensor for its record or its next one: at new addresses (body->moving) if it has none or has outgrown them,
 * else only pages behind `mapped_bytes`.
 */
enum lmcs_status lmcs_live_map(struct lmcs_live_body *body, const struct lmcs_live_record *record,
                               uint64_t mapped_bytes, struct lmcs_error *error);
/* Makes body->moving, if any, the newest mapping. Needs body->lock; same step as the change of record. */
void lmcs_live_move(struct lmcs_live_body *body);
/* Undoes lmcs_live_map for a record of `bytes`. */
void lmcs_live_unmap_growth(struct lmcs_live_body *body, uint64_t mapped_bytes, uint64_t bytes);
void lmcs_live_unmap_tail(struct lmcs_live_body *body, uint64_t bytes, uint64_t mapped_bytes);
void lmcs_live_unmap_all(struct lmcs_live_body *body);
/* Maps other pages at the same addresses: private, shared, or another record's. */
enum lmcs_status lmcs_live_remap(struct lmcs_live_body *body, const struct lmcs_live_record *record, bool private_pages,
                                 struct lmcs_error *error);
/*
 * Maps shared pages after a completed change. False: the system refused; later stores there reach no other process, and
 * live variables are broken (lmcs_live_break, with its locks).
 */
bool lmcs_live_share(struct lmcs_live_body *body, const struct lmcs_live_record *record);
/* Makes a tensor's bytes durable at its address. */
enum lmcs_status lmcs_live_persist_range(struct lmcs_live_body *body, uint64_t offset, uint64_t bytes,
                                         struct lmcs_error *error);

/* ---- Private pages (private_pages.c) ---- */

typedef enum lmcs_status lmcs_pages_visit(void *context, uint64_t offset, uint64_t bytes, struct lmcs_error *error);
/*
 * Visits written runs of a private mapping that differ from the pool's. *has_equal: some written runs equal the pool's
 * bytes; those, perhaps never persisted, are flushed and need a sync.
 */
enum lmcs_status lmcs_live_private_pages(struct lmcs_live_body *body, lmcs_pages_visit *visit, void *context,
                                         bool *has_equal, struct lmcs_error *error);

#endif
