/* SPDX-License-Identifier: BSD-3-Clause */
/* records/shelf.h - records of shelves and snapshots, their indexes, tags and addresses. */
#ifndef LMCS_RECORDS_SHELF_H
#define LMCS_RECORDS_SHELF_H

#include "pages/txn.h"
#include "records/policy.h"

struct lmcs_shelf {
    struct lmcs_shelf_df df;
    char name[LMCS_MAX_NAME + 1];
    char policy[LMCS_MAX_POLICY + 1];
};

/* A text with a newer version's keys counts as no policy. */
void lmcs_shelf_policy(const struct lmcs_shelf *shelf, struct lmcs_policy *policy);

/* Finds a visible shelf. *found false: none. */
enum lmcs_status lmcs_shelf_find(struct lmcs_txn *txn, const char *name, struct lmcs_shelf *shelf, bool *found,
                                 struct lmcs_error *error);
/* Adds to an error about a missing or empty shelf the one of the most similar name. False: none with snapshots. */
bool lmcs_shelf_append_similar(struct lmcs_txn *txn, const char *name, struct lmcs_error *error);
/* LMCS_NOT_FOUND, with the name of a similar shelf, or else of existing ones. */
enum lmcs_status lmcs_fail_no_shelf(struct lmcs_txn *txn, const char *name, struct lmcs_error *error);
/* lmcs_shelf_find, but fails like lmcs_fail_no_shelf. */
enum lmcs_status lmcs_shelf_get(struct lmcs_txn *txn, const char *name, struct lmcs_shelf *shelf,
                                struct lmcs_error *error);
enum lmcs_status lmcs_shelf_load(struct lmcs_txn *txn, uint64_t id, struct lmcs_shelf *shelf, struct lmcs_error *error);
/* Loads a shelf by an id from another transaction. *found false: the shelf was removed. */
enum lmcs_status lmcs_shelf_load_if(struct lmcs_txn *txn, uint64_t id, struct lmcs_shelf *shelf, bool *found,
                                    struct lmcs_error *error);
/* lmcs_pass_over for one of many shelves, whose name it puts before the message. Outside a transaction. */
enum lmcs_status lmcs_shelf_pass_over(struct lmcs_pool *pool, uint64_t id, struct lmcs_passed *passed,
                                      enum lmcs_status status, struct lmcs_error *error);
/* Gives a shelf without an identity (its first snapshot, an earlier version) a new one. The caller saves the shelf. */
void lmcs_shelf_identify(struct lmcs_txn *txn, struct lmcs_shelf *shelf);
/* Identities: whether one is known, whether both are known and equal, or known and not equal. */
bool lmcs_shelf_is_known(const uint64_t identity[2]);
bool lmcs_shelf_is_same(const uint64_t a[2], const uint64_t b[2]);
bool lmcs_shelf_differs(const uint64_t a[2], const uint64_t b[2]);
/* Changes the name; the caller checks that it is free, and saves the shelf. */
enum lmcs_status lmcs_shelf_set_name(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *name,
                                     struct lmcs_error *error);
enum lmcs_status lmcs_shelf_check_name(const char *name, struct lmcs_error *error);
/* The new shelf has no identity. A staging shelf is not found by its name. */
enum lmcs_status lmcs_shelf_make(struct lmcs_txn *txn, const char *name, uint32_t flags, struct lmcs_shelf *shelf,
                                 struct lmcs_error *error);
/* Seals the trees and stores the record: a transaction's last action on a shelf. */
enum lmcs_status lmcs_shelf_save(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_error *error);
enum lmcs_status lmcs_shelf_delete(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_error *error);
/* Ids of shelves from `first` on. LMCS_DAMAGED: of some; *count is set. */
enum lmcs_status lmcs_shelf_ids(struct lmcs_txn *txn, uint64_t first, uint64_t *ids, size_t capacity, size_t *count,
                                struct lmcs_error *error);
/* *id (initially 0): the next shelf's; 0: no more. Outside a transaction. */
enum lmcs_status lmcs_shelf_next(struct lmcs_pool *pool, uint64_t *id, struct lmcs_error *error);
struct lmcs_root_tree_df *lmcs_shelf_tree(struct lmcs_shelf *shelf, uint8_t kind);

/* A snapshot's record with its inline metadata, NUL-terminated. */
struct lmcs_record {
    struct lmcs_snapshot_df df;
    char meta[LMCS_META_INLINE + 1];
    char url[LMCS_MAX_URL + 1]; /* of a remote one; "": it is in the pool */
};
static_assert(sizeof(struct lmcs_snapshot_df) + LMCS_META_INLINE + LMCS_MAX_URL <= LMCS_MAX_VALUE, "a remote record");

/* Listed, counted and addressed: in the pool, or remote. */
static inline bool lmcs_record_is_committed(const struct lmcs_record *record)
{
    return record->df.state == LMCS_SNAPSHOT_COMMITTED || record->df.state == LMCS_SNAPSHOT_REMOTE;
}

/* 1 to LMCS_MAX_URL bytes without spaces and control characters, "://" in them. */
bool lmcs_url_is_sound(const char *url);
/* LMCS_REMOTE, with the URL and the remedy, if the snapshot is remote. */
enum lmcs_status lmcs_record_check_local(struct lmcs_txn *txn, const struct lmcs_shelf *shelf,
                                         const struct lmcs_record *record, struct lmcs_error *error);

enum lmcs_status lmcs_record_get(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number,
                                 struct lmcs_record *record, bool *found, struct lmcs_error *error);
/* Reads a record from a value of the tree. */
enum lmcs_status lmcs_record_read(struct lmcs_txn *txn, const struct lmcs_shelf *shelf, uint64_t number,
                                  const void *value, size_t bytes, struct lmcs_record *record,
                                  struct lmcs_error *error);
/* Whether a snapshot awaits its group's decision. One whose record is unreadable does not. */
enum lmcs_status lmcs_record_is_prepared(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number,
                                         bool *prepared, struct lmcs_error *error);
/* Stores a record, also in the indexes by step and time if committed. */
enum lmcs_status lmcs_record_put(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct lmcs_record *record,
                                 struct lmcs_error *error);
/* Deletes a record with index entries and tags, without the manifest's pages. */
enum lmcs_status lmcs_record_delete(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const struct lmcs_record *record,
                                    uint64_t *tags, struct lmcs_error *error);
/* The neighbouring numbers, prepared ones included; 0: none. */
enum lmcs_status lmcs_record_before(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number, uint64_t *before,
                                    struct lmcs_error *error);
enum lmcs_status lmcs_record_after(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number, uint64_t *after,
                                   struct lmcs_error *error);
/* The nearest record of the same lineage, on one side. */
enum lmcs_status lmcs_record_neighbour(struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                       const struct lmcs_snapshot_df *of, bool newer, struct lmcs_record *record,
                                       bool *found, struct lmcs_error *error);
/* LMCS_DAMAGED: a snapshot has the next number, or a later one. */
enum lmcs_status lmcs_shelf_check_next(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_error *error);
/* Recomputes df.latest: newest committed. */
enum lmcs_status lmcs_shelf_find_latest(struct lmcs_txn *txn, struct lmcs_shelf *shelf, struct lmcs_error *error);

/* 1 to LMCS_MAX_NAME sound bytes, without '@' '~' ':' '{' '}' and '..'; no number, not "latest". */
enum lmcs_status lmcs_tag_check(const char *tag, struct lmcs_error *error);
enum lmcs_status lmcs_tag_put(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *tag, uint64_t number,
                              struct lmcs_error *error);
enum lmcs_status lmcs_tag_find(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *tag, uint64_t *number,
                               struct lmcs_error *error);
enum lmcs_status lmcs_tag_delete(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *tag,
                                 struct lmcs_error *error);
enum lmcs_status lmcs_tags_of(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number,
                              bool (*visit)(void *context, const char *tag), void *context, struct lmcs_error *error);

enum lmcs_status lmcs_record_is_tagged(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number, bool *tagged,
                                       struct lmcs_error *error);
/* In order of hash, until `visit` returns false. */
enum lmcs_status lmcs_tags_each(struct lmcs_txn *txn, struct lmcs_shelf *shelf,
                                bool (*visit)(void *context, const char *tag), void *context, struct lmcs_error *error);

/* Resolves an address to a number (grammar in lmcstore.h). LMCS_NOT_FOUND with a message. */
enum lmcs_status lmcs_shelf_resolve(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *which, uint64_t *number,
                                    struct lmcs_error *error);

/*
 * Resolves a range to its first and last number; equal for a single snapshot. clip: ends that do not exist, except
 * tags, are clipped as lmcs_snapshot_range_clip states.
 */
enum lmcs_status lmcs_shelf_resolve_range(struct lmcs_txn *txn, struct lmcs_shelf *shelf, const char *range, bool clip,
                                          uint64_t *first, uint64_t *last, struct lmcs_error *error);

/* Removes a snapshot with the pages and contents that only it has. */
enum lmcs_status lmcs_shelf_remove(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number,
                                   struct lmcs_removal *removal, struct lmcs_error *error);
/* The same, but the record stays, as that of a remote snapshot. Its metadata must be in the record. */
enum lmcs_status lmcs_shelf_let_go(struct lmcs_txn *txn, struct lmcs_shelf *shelf, uint64_t number, const char *url,
                                   struct lmcs_removal *removal, struct lmcs_error *error);

static inline uint64_t lmcs_step_key(int64_t step)
{
    return (uint64_t)step ^ ((uint64_t)1 << 63);
}

static inline int64_t lmcs_key_step(uint64_t key)
{
    return (int64_t)(key ^ ((uint64_t)1 << 63));
}

#endif
