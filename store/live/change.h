/* SPDX-License-Identifier: BSD-3-Clause */
/* live/change.h - replacing records, making and resizing variables. Needs live->lock. */
#ifndef LMCS_LIVE_CHANGE_H
#define LMCS_LIVE_CHANGE_H

#include "live/body.h"

/* ---- Commits (commit.c) ---- */

/* Commits changes in one metadata transaction. `sequence`: the journal that it commits, or 0. */
enum lmcs_status lmcs_live_commit_changes(struct lmcs_pool *pool, const struct lmcs_live_change *changes, size_t count,
                                          uint64_t sequence, struct lmcs_error *error);
/*
 * Sets the body's record; the caller owns the returned old one. If the cell differs, value and version change in the
 * same step, and a pending value is dropped.
 */
struct lmcs_live_record *lmcs_live_body_set(struct lmcs_live_body *body, struct lmcs_live_record *record);

/* ---- Changes of bodies (change.c) ---- */

/*
 * Replaces (NULL: erases) at most two bodies' records in one step: by a commit, or within their transaction. Owns the
 * records; on failure their space is given back.
 */
enum lmcs_status lmcs_live_change_bodies(struct lmcs_live_body *const *bodies, struct lmcs_live_record *const *records,
                                         size_t count, struct lmcs_error *error);
enum lmcs_status lmcs_live_change_body(struct lmcs_live_body *body, struct lmcs_live_record *record,
                                       struct lmcs_error *error);
/*
 * Names `body`, new or unnamed, by `record` and erases `old` (or NULL) in one step, within the transaction of `old` or
 * of the shelf. Owns the record.
 */
enum lmcs_status lmcs_live_replace_body(struct lmcs_live_body *old, struct lmcs_live_body *body,
                                        struct lmcs_live_record *record, struct lmcs_error *error);
/* Frees an unused record, and space that only it has. */
void lmcs_live_record_discard(struct lmcs_live_body *body, struct lmcs_live_record *record);

/* ---- New variables (make.c) ---- */

/* Appends parts for `capacity` bytes to the df->part_count entries of `parts`. */
enum lmcs_status lmcs_live_take_parts(struct lmcs_pool *pool, struct lmcs_live_df *df, struct lmcs_part_df *parts,
                                      uint64_t capacity, struct lmcs_error *error);
/* Allocates file space for a tensor's pages from byte `from` on; *done: end of the pages that have it. */
enum lmcs_status lmcs_live_back_pages(struct lmcs_pool *pool, const struct lmcs_live_record *record, uint64_t from,
                                      uint64_t *done, struct lmcs_error *error);
/* Capacity in bytes of a tensor; reserve_bytes 0: the default. */
uint64_t lmcs_live_choose_capacity(const struct lmcs_pool *pool, uint64_t bytes, uint64_t reserve_bytes);
/*
 * Takes and fills a new variable's space. `like`: name, note, dtype, shape, form, size, slot and id (0: new). `value`,
 * of value_bytes, NULL: zeros.
 */
enum lmcs_status lmcs_live_make(struct lmcs_pool *pool, struct lmcs_live_shelf *shelf, struct lmcs_live_record *like,
                                uint64_t reserve_bytes, uint64_t version, const void *value, uint64_t value_bytes,
                                struct lmcs_live_record **record, struct lmcs_error *error);

#endif
