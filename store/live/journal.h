/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * live/journal.h - journals, which change several places of the pool together, in place. Needs live->lock.
 *
 * Redo: bytes and their places. Undo, for media without private pages: old bytes of places about to be stored to.
 */
#ifndef LMCS_LIVE_JOURNAL_H
#define LMCS_LIVE_JOURNAL_H

#include "live/body.h"

#define LMCS_LEAST_JOURNAL ((uint64_t)64 << 10) /* bytes */

struct lmcs_journaled {
    uint64_t place;
    uint64_t bytes;
    const void *data;
};

/* ---- Common to both (journal.c) ---- */

typedef enum lmcs_status lmcs_journal_work(struct lmcs_pool *pool, const struct lmcs_journal_entry_df *df,
                                           uint64_t from, struct lmcs_error *error);

static inline struct lmcs_page_range_df lmcs_journal_range(const struct lmcs_pool *pool, enum lmcs_journal_kind kind)
{
    return pool->live->journals[kind];
}

static inline uint64_t lmcs_journal_entry_room(uint64_t bytes)
{
    return (bytes + LMCS_CELL_ALIGN - 1) & ~(uint64_t)(LMCS_CELL_ALIGN - 1);
}

/* Enters a range of at least `bytes` in the root. */
enum lmcs_status lmcs_journal_reserve(struct lmcs_pool *pool, enum lmcs_journal_kind kind, uint64_t bytes,
                                      struct lmcs_error *error);
/* The same, with file space. */
enum lmcs_status lmcs_journal_make_room(struct lmcs_pool *pool, enum lmcs_journal_kind kind, uint64_t bytes,
                                        struct lmcs_error *error);
/* Completes a header and writes it durably. */
enum lmcs_status lmcs_journal_write_header(struct lmcs_pool *pool, enum lmcs_journal_kind kind,
                                           struct lmcs_journal_df *header, struct lmcs_error *error);
/* *sealed: the header is whole, the journal may have to be applied. */
enum lmcs_status lmcs_journal_load_header(struct lmcs_pool *pool, enum lmcs_journal_kind kind,
                                          struct lmcs_journal_df *header, bool *sealed, struct lmcs_error *error);
/* Ends a journal durably. */
enum lmcs_status lmcs_journal_clear(struct lmcs_pool *pool, enum lmcs_journal_kind kind, struct lmcs_error *error);

uint64_t lmcs_journal_entry_check(const struct lmcs_journal_entry_df *entry, const void *data);
/* The data are at `from`; the place must be one of live variables. */
enum lmcs_status lmcs_journal_check_entry(struct lmcs_pool *pool, const struct lmcs_journal_entry_df *df, uint64_t from,
                                          struct lmcs_error *error);
/* Copies the data, at `from`, to its place. */
enum lmcs_status lmcs_journal_apply_entry(struct lmcs_pool *pool, const struct lmcs_journal_entry_df *df, uint64_t from,
                                          struct lmcs_error *error);
enum lmcs_status lmcs_journal_fail(const struct lmcs_pool *pool, uint64_t at, const char *what,
                                   struct lmcs_error *error);
/* Whether the range is in objects of live variables, or none. */
bool lmcs_journal_range_is_sound(const struct lmcs_pool *pool, enum lmcs_journal_kind kind);

/* ---- Redo (redo.c) ---- */

/* Writes a journal durably. `with_root`: the root that names its sequence commits it. *sequence 0: assigns one. */
enum lmcs_status lmcs_journal_write(struct lmcs_pool *pool, const struct lmcs_journaled *entries, size_t count,
                                    bool with_root, uint64_t *sequence, struct lmcs_error *error);
/* Writes the entries to their places durably, then ends the journal. */
enum lmcs_status lmcs_journal_finish(struct lmcs_pool *pool, const struct lmcs_journaled *entries, size_t count,
                                     struct lmcs_error *error);
/* Ends a perhaps sealed journal after a failure. If that fails, live variables are broken; `error` says so. */
void lmcs_journal_take_back(struct lmcs_pool *pool, struct lmcs_error *error);
/* Calls `work` for each entry. */
enum lmcs_status lmcs_journal_each(struct lmcs_pool *pool, const struct lmcs_journal_df *header,
                                   lmcs_journal_work *work, struct lmcs_error *error);
/* Makes a sealed journal durable that may be in the page cache only (REPAIR.md). */
enum lmcs_status lmcs_journal_write_again(struct lmcs_pool *pool, const struct lmcs_journal_df *header,
                                          struct lmcs_error *error);

/* ---- Undo (undo.c) ---- */

enum lmcs_status lmcs_undo_begin(struct lmcs_pool *pool, uint64_t limit_bytes, uint64_t *sequence,
                                 struct lmcs_error *error);
/* Saves a place's bytes durably. *at: position of the next entry. */
enum lmcs_status lmcs_undo_add(struct lmcs_pool *pool, uint64_t sequence, const struct lmcs_journaled *entry,
                               uint64_t *at, struct lmcs_error *error);
/* Restores all saved bytes durably and ends the journal. */
enum lmcs_status lmcs_undo_roll_back(struct lmcs_pool *pool, uint64_t sequence, struct lmcs_error *error);
enum lmcs_status lmcs_undo_check(struct lmcs_pool *pool, uint64_t sequence, struct lmcs_error *error);

/* ---- After a crash (recovery.c) ---- */

/* Pending journals must be whole and lead only to live variables. Writes nothing. After lmcs_live_space_begin. */
enum lmcs_status lmcs_journal_check(struct lmcs_pool *pool, const struct lmcs_root_df *root, struct lmcs_error *error);
/* Checks and applies pending journals, before any other change of the pool. */
enum lmcs_status lmcs_journal_recover(struct lmcs_pool *pool, struct lmcs_error *error);

#endif
